"""Every environment variable and default, read in one place.

The variables are read when they are needed, not at import, so a change to the environment takes effect at the next
call. Those of huggingface_hub are read by huggingface_hub itself, once, when it is first imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from kernels.errors import RequestError
from kernels.models.requirement import check_repo_id
from kernels.support import secrets
from kernels.support.env_values import folder_in, is_url, split_paths, url_in, without_password

__all__ = [
    "VARIABLES",
    "Variable",
    "Verify",
    "backend_files",
    "backend_sources",
    "cache_dir",
    "disabled_backends",
    "endpoint",
    "environment_with_local_kernels",
    "hub_folder",
    "hub_token",
    "invalid_settings",
    "local_kernels",
    "lock_file",
    "locked_only",
    "mapping_disabled",
    "offline",
    "policy_file",
    "preferred_backend",
    "progress_disabled",
    "refresh_seconds",
    "telemetry_disabled",
    "token_source",
    "trusted_publishers",
    "tune_files",
    "variables_in_force",
    "vendor_folders",
    "verify_when",
]


@dataclass(frozen=True)
class Variable:
    """An environment variable: its name, what it does, and what holds when it is not set."""

    name: str
    meaning: str
    default: str
    secret: bool = False


#: Every variable this package heeds, in the order `kernels doctor` prints them.
VARIABLES: tuple[Variable, ...] = (
    Variable("KERNELS_CACHE", "folder of downloaded kernels", "huggingface_hub's cache"),
    Variable("KERNELS_HUB", "another Hub for kernels only: a URL, or a folder of repositories", "HF_ENDPOINT"),
    Variable("KERNELS_HUB_TOKEN", "token sent to the Hub that KERNELS_HUB names", "none", secret=True),
    Variable("KERNELS_BACKEND", "backend that is used where none is named", "the one Torch was built for"),
    Variable("KERNELS_BACKENDS_JSON", "files that declare backends: /path/a.json:/path/b.json", "none"),
    Variable("KERNELS_VENDOR_PATH", "folders of chip vendors: /path/a:/path/b", "none"),
    Variable("KERNELS_DISABLE_BACKENDS", "backends that are left out, separated by commas", "none"),
    Variable("KERNELS_TUNE_PATH", "files or folders of tune configurations that go before a vendor's", "none"),
    Variable("KERNELS_LOCKFILE", "lock that counts for every caller: /path/kernels.lock", "the caller's own"),
    Variable("KERNELS_LOCKED", "1: nothing but what a lock lists is loaded", "0"),
    Variable("KERNELS_REFRESH", "seconds for which a branch's head is not asked for again", "0"),
    Variable("KERNELS_TRUSTED_PUBLISHERS", "publishers trusted beside the Hub's own, separated by commas", "none"),
    Variable("KERNELS_POLICY", "file that says who may sign which kernels, and which must be signed", "none"),
    Variable("KERNELS_VERIFY", "when a build's content is checked: install (or changed since), load, off", "install"),
    Variable("LOCAL_KERNELS", "folders that stand in for repositories: org/name=/path:org/other=/path", "none"),
    Variable("DISABLE_KERNEL_MAPPING", "1: kernelize keeps every layer's own forward", "0"),
    Variable("HF_ENDPOINT", "the Hub's URL", "the public Hub"),
    Variable("HF_HOME", "huggingface_hub's folder", "~/.cache/huggingface"),
    Variable("HF_HUB_CACHE", "huggingface_hub's cache", "$HF_HOME/hub"),
    Variable("HF_TOKEN", "token sent to the Hub", "the one stored at login", secret=True),
    Variable("HF_HUB_OFFLINE", "1: never connect", "0"),
    Variable("HF_HUB_DISABLE_TELEMETRY", "1: the user agent says only which client this is", "0"),
    Variable("HF_HUB_DISABLE_PROGRESS_BARS", "1: no progress bars", "0"),
    Variable("HF_HUB_ETAG_TIMEOUT", "seconds to wait for an answer about a file or repository", "10"),
    Variable("HF_HUB_DOWNLOAD_TIMEOUT", "seconds to wait for the next bytes of a download", "10"),
)

#: When the content of a build is checked: never, when it was installed or has changed since, or at every load.
Verify = Literal["off", "install", "load"]

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_FALSE = frozenset({"", "0", "OFF", "NO", "FALSE"})


def _flag(name: str) -> bool:
    """Whether a variable says yes; a word that says neither is an error, as someone relies on what they meant."""
    value = os.environ.get(name, "")
    if value.upper() not in _TRUE | _FALSE:
        raise RequestError(f"`{name}` is {value[:200]!r}; expected 1, true, yes or on, or 0, false, no or off.")
    return value.upper() in _TRUE


def variables_in_force() -> dict[str, str]:
    """The variables of `VARIABLES` that are set, with their values; a secret's value, or part of a value, is hidden."""
    return {
        variable.name: "(set)" if variable.secret else without_password(os.environ[variable.name])
        for variable in VARIABLES
        if variable.name in os.environ
    }


def invalid_settings() -> list[str]:
    """What is wrong with the variables that are set, a sentence each."""
    readers: tuple[Callable[[], object], ...] = (
        hub_folder, endpoint, hub_token, cache_dir, offline, refresh_seconds, trusted_publishers, local_kernels,
        backend_files, vendor_folders, tune_files, disabled_backends, verify_when, policy_file, lock_file, locked_only,
        mapping_disabled, telemetry_disabled, progress_disabled,
    )  # fmt: skip
    problems = []
    for read in readers:
        try:
            read()
        except RequestError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))


def cache_dir() -> Path:
    """The folder of downloaded kernels: `KERNELS_CACHE`, else huggingface_hub's cache.

    Raises:
        RequestError: It starts with `~` and a name that no user has.
    """
    value = os.environ.get("KERNELS_CACHE")
    if value:
        return folder_in("KERNELS_CACHE", value)
    return folder_in("HF_HUB_CACHE", _huggingface_hub().HF_HUB_CACHE)


def endpoint() -> str:
    """The URL of the Hub that kernels come from, without a trailing slash.

    Raises:
        RequestError: The URL in `KERNELS_HUB`, or in `HF_ENDPOINT`, is none, or holds a password.
    """
    constants = _huggingface_hub()  # also for another Hub: its client is used for that as well
    value = os.environ.get("KERNELS_HUB", "")
    if is_url(value):
        return url_in("KERNELS_HUB", value, "a folder, or a URL with a host", token="KERNELS_HUB_TOKEN")
    return url_in("HF_ENDPOINT", constants.ENDPOINT, "an http(s) URL with a host", token="HF_TOKEN")


def hub_folder() -> Path | None:
    """The folder of repositories that stands in for a Hub, when `KERNELS_HUB` names a folder.

    Raises:
        RequestError: `KERNELS_HUB` is neither a URL nor an existing folder.
    """
    value = os.environ.get("KERNELS_HUB", "")
    if not value or is_url(value):
        return None
    folder = folder_in("KERNELS_HUB", value)
    if not os.path.isdir(folder):
        raise RequestError(
            f"`KERNELS_HUB` is {without_password(value)!r}; expected an http(s) URL, or a folder that exists."
        )
    return folder


def hub_token() -> str | None:
    """The token for the Hub that `KERNELS_HUB` names: huggingface_hub's own token is never sent to another Hub.

    White space around it is removed: a secret that is mounted as a file ends with a line break.

    Raises:
        RequestError: It has a character that an HTTP header cannot carry. The message does not show it.
    """
    token = os.environ.get("KERNELS_HUB_TOKEN", "").strip()
    secrets.register(token)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise RequestError(
            "`KERNELS_HUB_TOKEN` has a character that an HTTP header cannot carry. Expected printable ASCII without "
            "spaces."
        )
    return token or None


def token_source(address: str) -> str:
    """Where the token for a Hub is looked for, for messages.

    Args:
        address: The Hub's URL.

    Example:
        >>> token_source("http://127.0.0.1:8910")
        'KERNELS_HUB_TOKEN, with KERNELS_HUB set to that URL'
    """
    if address == str(_huggingface_hub().ENDPOINT).rstrip("/"):
        return "HF_TOKEN, or the one that `hf auth login` stored"
    return "KERNELS_HUB_TOKEN, with KERNELS_HUB set to that URL"


#: Variables that huggingface_hub reads as whole numbers when it is imported, which fails without naming them.
_WHOLE_NUMBERS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")


def _huggingface_hub() -> Any:
    """huggingface_hub's own settings."""
    for name in _WHOLE_NUMBERS:
        value = os.environ.get(name)
        try:
            valid = value is None or int(value) >= 0
        except ValueError:
            valid = False
        if not valid:
            raise RequestError(f"`{name}` is {value!r}; expected a whole number of seconds.")
    from huggingface_hub import constants

    return constants


def preferred_backend() -> str | None:
    """The backend that is used where none is named (`KERNELS_BACKEND`), by any of its names; None for Torch's own."""
    return os.environ.get("KERNELS_BACKEND") or None


def backend_files() -> tuple[Path, ...]:
    """Files that declare backends (`KERNELS_BACKENDS_JSON`), in the order in which they count.

    Raises:
        RequestError: A path starts with `~` and a name that no user has.
    """
    return _paths("KERNELS_BACKENDS_JSON")


def vendor_folders() -> tuple[Path, ...]:
    """Folders of chip vendors (`KERNELS_VENDOR_PATH`), in order.

    Raises:
        RequestError: A path starts with `~` and a name that no user has.
    """
    return _paths("KERNELS_VENDOR_PATH")


def tune_files() -> tuple[Path, ...]:
    """Files of tune configurations that go before a vendor's (`KERNELS_TUNE_PATH`), the first one first.

    Raises:
        RequestError: A path starts with `~` and a name that no user has.
    """
    return _paths("KERNELS_TUNE_PATH")


def disabled_backends() -> frozenset[str]:
    """Backends that are left out (`KERNELS_DISABLE_BACKENDS`), by their own names or those of their entry points."""
    value = os.environ.get("KERNELS_DISABLE_BACKENDS", "")
    return frozenset(part.strip() for part in value.split(",") if part.strip())


def backend_sources() -> tuple[str | None, ...]:
    """What the environment says of backends, as it stands there: another answer means to look again."""
    get = os.environ.get
    return get("KERNELS_BACKENDS_JSON"), get("KERNELS_VENDOR_PATH"), get("KERNELS_DISABLE_BACKENDS")


def offline() -> bool:
    """Whether nothing may be asked of a network (`HF_HUB_OFFLINE`).

    Raises:
        RequestError: The variable says neither yes nor no.
    """
    if _flag("HF_HUB_OFFLINE"):
        return True
    return bool(_huggingface_hub().is_offline_mode())


def telemetry_disabled() -> bool:
    """Whether the user agent must not say more than the client's name and version.

    Raises:
        RequestError: `HF_HUB_DISABLE_TELEMETRY` says neither yes nor no.
    """
    return _flag("HF_HUB_DISABLE_TELEMETRY") or bool(_huggingface_hub().HF_HUB_DISABLE_TELEMETRY)


def progress_disabled() -> bool:
    """Whether downloads show no progress bars: told so, or standard error is not a terminal.

    Raises:
        RequestError: `HF_HUB_DISABLE_PROGRESS_BARS` says neither yes nor no.
    """
    from huggingface_hub.utils import are_progress_bars_disabled

    return _flag("HF_HUB_DISABLE_PROGRESS_BARS") or bool(are_progress_bars_disabled())


def refresh_seconds() -> float:
    """For how many seconds a branch's head is taken as known (`KERNELS_REFRESH`, default 0: once per process).

    Raises:
        RequestError: It is not a number, or negative.
    """
    value = os.environ.get("KERNELS_REFRESH", "0") or "0"
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise RequestError(f"`KERNELS_REFRESH` is {value!r}; expected a number of seconds, 0 or more.")
    return seconds


def trusted_publishers() -> frozenset[str]:
    """Publishers that are trusted beside those the Hub marks (`KERNELS_TRUSTED_PUBLISHERS`).

    Raises:
        RequestError: An entry is no publisher's name.
    """
    value = os.environ.get("KERNELS_TRUSTED_PUBLISHERS", "")
    publishers = frozenset(part.strip() for part in value.split(",") if part.strip())
    for publisher in sorted(publishers):
        try:
            check_repo_id(f"{publisher}/name")
        except RequestError:
            raise RequestError(
                f"`KERNELS_TRUSTED_PUBLISHERS` has the entry {publisher[:200]!r}; expected names of publishers "
                "(the org of org/name), separated by commas."
            ) from None
    return publishers


def verify_when(asked: object = None) -> Verify:
    """When the content of a build is checked: as asked, else as `KERNELS_VERIFY` says, else when it is installed.

    Args:
        asked: `off`, `install`, `load`, or None for what the variable says. There, 1 also means load, and 0 install.

    Raises:
        TypeError: What is asked is neither a string nor None.
        RequestError: It is another word, or the variable's value is.

    Example:
        >>> verify_when("load")
        'load'
    """
    if asked is not None and not isinstance(asked, str):
        raise TypeError(f"`verify` is {asked!r} ({type(asked).__name__}); expected 'off', 'install' or 'load'.")
    value = os.environ.get("KERNELS_VERIFY", "") if asked is None else asked
    for when in get_args(Verify):
        if value == when or (asked is None and value.lower() == when):
            return cast("Verify", when)
    if asked is None and value.upper() in _TRUE:
        return "load"
    if asked is None and value.upper() in _FALSE:
        return "install"
    name = "KERNELS_VERIFY" if asked is None else "verify"
    raise RequestError(f"`{name}` is {value[:200]!r}; expected 'off', 'install' or 'load'.")


def policy_file() -> Path | None:
    """The file that says who may sign which kernels (`KERNELS_POLICY`), or None.

    Raises:
        RequestError: There is no such file.
    """
    value = os.environ.get("KERNELS_POLICY", "")
    if not value:
        return None
    path = folder_in("KERNELS_POLICY", value)
    if not os.path.isfile(path):
        raise RequestError(f"`KERNELS_POLICY` is {value!r}; expected a TOML file that exists.")
    return path


def lock_file() -> Path | None:
    """The lock that counts for every caller (`KERNELS_LOCKFILE`); None for the caller's own.

    Raises:
        RequestError: It starts with `~` and a name that no user has.
    """
    value = os.environ.get("KERNELS_LOCKFILE")
    return folder_in("KERNELS_LOCKFILE", value) if value else None


def locked_only() -> bool:
    """Whether nothing but what a lock lists may be loaded (`KERNELS_LOCKED`).

    Raises:
        RequestError: The variable says neither yes nor no.
    """
    return _flag("KERNELS_LOCKED")


def mapping_disabled() -> bool:
    """Whether `kernelize` keeps every layer's own forward (`DISABLE_KERNEL_MAPPING`).

    Raises:
        RequestError: The variable says neither yes nor no.
    """
    return _flag("DISABLE_KERNEL_MAPPING")


def local_kernels() -> dict[str, Path]:
    """Folders that stand in for repositories (`LOCAL_KERNELS`), by repository.

    Raises:
        RequestError: An entry is not `org/name=/path`.
    """
    value = os.environ.get("LOCAL_KERNELS", "")
    overrides: dict[str, Path] = {}
    for entry in filter(str.strip, split_paths(value)):
        repo_id, _, path = (part.strip() for part in entry.partition("="))
        try:
            check_repo_id(repo_id)
        except RequestError:
            path = ""
        if not path:
            raise RequestError(
                f"`LOCAL_KERNELS` has the entry {entry[:200]!r}; expected org/name=/path, entries separated by ':'."
            )
        overrides[repo_id] = folder_in("LOCAL_KERNELS", path)
    return overrides


def environment_with_local_kernels(folders: Mapping[str, Path]) -> dict[str, str]:
    """The environment for a process in which folders stand in for repositories, beside those that do already.

    Args:
        folders: The folder of each repository, by `org/name`.

    Raises:
        RequestError: A path cannot stand in `LOCAL_KERNELS`.
    """
    for path in folders.values():
        # A colon separates entries there, and the space around one is not part of it.
        if ":" in path.relative_to(path.anchor).as_posix() or str(path) != str(path).strip():
            raise RequestError(
                f"`folder` is {str(path)!r}; expected a path without ':' and without space at its end, as it has to "
                "stand in LOCAL_KERNELS."
            )
    own = [f"{repo_id}={path}" for repo_id, path in folders.items()]
    # Of two entries for one repository the later one counts.
    return {**os.environ, "LOCAL_KERNELS": ":".join([*filter(None, [os.environ.get("LOCAL_KERNELS")]), *own])}


def _paths(name: str) -> tuple[Path, ...]:
    return tuple(folder_in(name, entry.strip()) for entry in split_paths(os.environ.get(name, "")) if entry.strip())
