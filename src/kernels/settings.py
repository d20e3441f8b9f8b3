"""What the environment variables say, and their defaults; `kernels.diagnosis.variable_table` lists them.

Variables are read when they are needed, so that a change takes effect at the next call. huggingface_hub reads its own
ones once, when it is first imported.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from kernels.errors import RequestError
from kernels.models.address import HUB_WORD, HubAddress, parse_addresses
from kernels.models.requested_names import check_repo_id
from kernels.support.env_values import folder_in, split_paths, url_in

if TYPE_CHECKING:
    from kernels.models.mirror_keys import MirrorKey

__all__ = [
    "Verify",
    "backend_files",
    "cache_dir",
    "debug",
    "debugging",
    "disabled_backends",
    "endpoint",
    "environment",
    "hub_addresses",
    "hub_folders",
    "hub_token",
    "hub_tokens",
    "local_kernels",
    "lock_file",
    "locked_only",
    "mapping_disabled",
    "mirror_keys",
    "mirror_sign_key",
    "offline",
    "parse_address",
    "plain_hf_token",
    "policy_file",
    "preferred_backend",
    "progress_disabled",
    "refresh_seconds",
    "source_date",
    "telemetry_disabled",
    "token_source",
    "torch_environments",
    "trusted_publishers",
    "tune_files",
    "vendor_folders",
    "verify_when",
]


Verify = Literal["off", "install", "load"]
"""When the content of a build is checked: only what a lock pins, once; when it was installed or has changed since; at
every load."""

#: Variables of huggingface_hub that decide its token, besides `HF_TOKEN`. It reads the last one when it is imported.
_OTHER_TOKENS = ("HF_OIDC_RESOURCE", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN")

#: A host as `KERNELS_HUB_TOKEN` has it, perhaps with a port.
_HOST = r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?"

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_FALSE = frozenset({"", "0", "OFF", "NO", "FALSE"})


def _flag(name: str) -> bool:
    """The truth value of a variable; an unknown word is an error, so that no protection is off by mistake."""
    value = os.environ.get(name, "")
    if value.upper() not in _TRUE | _FALSE:
        raise RequestError(f"`{name}` is {value[:200]!r}; expected 1, true, yes or on, or 0, false, no or off.")
    return value.upper() in _TRUE


def _folder(name: str) -> Path | None:
    value = os.environ.get(name)
    return folder_in(name, value) if value else None


def _file(name: str, kind: str) -> Path | None:
    path = _folder(name)
    if path is not None and not os.path.isfile(path):
        raise RequestError(f"`{name}` is {os.environ[name]!r}; expected {kind} that exists.")
    return path


def _paths(name: str) -> tuple[Path, ...]:
    return tuple(folder_in(name, entry.strip()) for entry in split_paths(os.environ.get(name, "")) if entry.strip())


def _names(name: str) -> frozenset[str]:
    return frozenset(part.strip() for part in os.environ.get(name, "").split(",") if part.strip())


def environment() -> dict[str, str]:
    """Every variable that is set: `kernels doctor` looks for misspelt ones."""
    return dict(os.environ)


# The Hub and the cache. Every function raises `RequestError` where its variable is not valid.


def cache_dir() -> Path:
    """The folder of downloaded kernels: `KERNELS_CACHE`, or huggingface_hub's cache."""
    return _folder("KERNELS_CACHE") or folder_in("HF_HUB_CACHE", _huggingface_hub().HF_HUB_CACHE)


def hub_addresses() -> tuple[HubAddress, ...]:
    """Where kernels come from, in the order in which it is asked: `KERNELS_HUB`, or else the Hub in `HF_ENDPOINT`.

    A folder must exist, and no address may have a password.
    """
    value = os.environ.get("KERNELS_HUB", "")
    return parse_addresses("KERNELS_HUB", value or HUB_WORD, _hf_endpoint)


def parse_address(name: str, value: str) -> HubAddress:
    """One address as `KERNELS_HUB` has them, which an option gives.

    Args:
        name: The option, for messages.
        value: Its value.

    Raises:
        RequestError: It is no address, or several.
    """
    found = parse_addresses(name, value, _hf_endpoint)
    if len(found) > 1:
        raise RequestError(f"`{name}` has {len(found)} addresses; expected one.")
    return found[0]


def endpoint() -> str:
    """The URL of the first Hub or mirror that kernels come from over HTTP; of the Hub in `HF_ENDPOINT` without one."""
    _huggingface_hub()  # also for another Hub, which its client is used for
    urls = (each.value for each in hub_addresses() if each.kind in ("http", "hub"))
    return next(urls, None) or _hf_endpoint()


def hub_folders() -> tuple[Path, ...]:
    """The folders that kernels come from."""
    return tuple(Path(each.value) for each in hub_addresses() if each.kind == "folder")


def hub_token(url: str | None = None) -> str | None:
    """The token in `KERNELS_HUB_TOKEN` for a URL in `KERNELS_HUB`, which is used there before huggingface_hub's own.

    One token is for the only host there; each of a list `host=TOKEN,host:port=TOKEN` is for its host alone. No error
    shows a token.

    Args:
        url: The URL; None for a token that is for no host, as a server's own.

    Raises:
        RequestError: The value is not valid, or does not say which of the hosts in `KERNELS_HUB` gets a token.
    """
    tokens = hub_tokens()
    if url is None:
        if tokens and "" not in tokens:
            raise RequestError("`KERNELS_HUB_TOKEN` has a list of hosts with their tokens; expected one token alone.")
        return tokens.get("")
    hosts = {each.value: each.host for each in hub_addresses() if each.kind == "http"}
    if not tokens or url not in hosts:
        return None
    known = sorted(set(hosts.values()))
    if not tokens.keys().isdisjoint(known):
        return tokens.get(hosts[url])
    plain = tokens.get("", "")
    if plain and len(known) == 1 and plain.rstrip("=").lower() != known[0]:
        return plain
    raise RequestError(
        f"`KERNELS_HUB_TOKEN` does not say which host in `KERNELS_HUB` gets the token: {', '.join(known)}. Expected "
        f"{known[0]}=TOKEN; several are separated by commas."
    )


def _hide(token: str) -> None:
    """Hide a token in every message."""
    if token:
        from kernels.support import secrets  # where there is one

        secrets.register(token)


def plain_hf_token() -> str | None:
    """huggingface_hub's token where the variables alone decide it, empty for none; None where only it can tell.

    It also reads a stored login, which it may have to renew, and secrets of some services.
    """
    constants = _huggingface_hub()
    if any(os.environ.get(name) or getattr(constants, name, None) for name in _OTHER_TOKENS):
        return None
    if "google.colab" in sys.modules:
        return None
    token = os.environ.get("HF_TOKEN", "").strip()
    _hide(token)
    if not token and os.path.lexists(constants.HF_TOKEN_PATH):
        return None
    return token if token.isascii() and token.isprintable() else None


def hub_tokens() -> dict[str, str]:
    """The tokens in `KERNELS_HUB_TOKEN` by their host in lower case; "" is the host of a token that names none.

    A value with a comma, or with a `=` before its end, is a list: bearer tokens have neither (RFC 6750, 2.1). White
    space is removed: a secret that is mounted as a file ends with a line break. Each token is hidden in every message
    from now on.
    """
    value = os.environ.get("KERNELS_HUB_TOKEN", "").strip()
    listed = "," in value or "=" in value.rstrip("=")
    tokens: dict[str, str] = {}
    for entry in filter(None, map(str.strip, value.split(","))):
        host, token = map(str.strip, entry.split("=", 1)) if listed and "=" in entry else ("", entry)
        _hide(token)
        named = not listed or (token and re.fullmatch(_HOST, host))
        printable = token.isascii() and token.isprintable() and " " not in token
        if not named or not printable or tokens.setdefault(host.lower(), token) != token:
            raise RequestError(
                "`KERNELS_HUB_TOKEN` is not valid; expected one token, or host=TOKEN for each host, separated by "
                "commas. A token is printable ASCII without spaces."
            )
    return tokens


def _hf_endpoint() -> str:
    return url_in("HF_ENDPOINT", _huggingface_hub().ENDPOINT, "an http(s) URL with a host", token="HF_TOKEN")


def token_source(address: str) -> str:
    """Where the token for a Hub is read, for messages.

    Args:
        address: The Hub's URL.

    Example:
        >>> token_source("http://127.0.0.1:8910")
        'KERNELS_HUB_TOKEN, with KERNELS_HUB set to that URL'
    """
    if address == str(_huggingface_hub().ENDPOINT).rstrip("/"):
        with suppress(RequestError):  # of an address that is not valid
            if HubAddress("http", address) in hub_addresses():
                return "KERNELS_HUB_TOKEN, or HF_TOKEN"
        return "HF_TOKEN, or the one that `hf auth login` stored"
    return "KERNELS_HUB_TOKEN, with KERNELS_HUB set to that URL"


def _huggingface_hub() -> Any:
    """huggingface_hub's own settings."""
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        value = os.environ.get(name, "0")
        if not value.isdecimal():  # huggingface_hub parses these when it is imported, and its error does not name them
            raise RequestError(f"`{name}` is {value[:200]!r}; expected a whole number of seconds.")
    from huggingface_hub import constants

    return constants


def offline() -> bool:
    """Whether no network may be used (`HF_HUB_OFFLINE`)."""
    return _flag("HF_HUB_OFFLINE") or bool(_huggingface_hub().is_offline_mode())


def telemetry_disabled() -> bool:
    """Whether the user agent has only the client's name and version (`HF_HUB_DISABLE_TELEMETRY`)."""
    return _flag("HF_HUB_DISABLE_TELEMETRY") or bool(_huggingface_hub().HF_HUB_DISABLE_TELEMETRY)


def progress_disabled() -> bool:
    """Whether downloads show no progress bars (`HF_HUB_DISABLE_PROGRESS_BARS`, or standard error is no terminal)."""
    _huggingface_hub()
    from huggingface_hub.utils import are_progress_bars_disabled

    return _flag("HF_HUB_DISABLE_PROGRESS_BARS") or bool(are_progress_bars_disabled())


def refresh_seconds() -> float:
    """For how many seconds a branch's head is not asked for again (`KERNELS_REFRESH`, default 0: once per process)."""
    value = os.environ.get("KERNELS_REFRESH", "0") or "0"
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise RequestError(f"`KERNELS_REFRESH` is {value[:200]!r}; expected a number of seconds, 0 or more.")
    return seconds


# Backends


def preferred_backend() -> str | None:
    """The default backend (`KERNELS_BACKEND`), by any of its names; None for Torch's own."""
    return os.environ.get("KERNELS_BACKEND") or None


def backend_files() -> tuple[Path, ...]:
    """Files that declare backends (`KERNELS_BACKENDS_JSON`), in order."""
    return _paths("KERNELS_BACKENDS_JSON")


def vendor_folders() -> tuple[Path, ...]:
    """Folders of chip vendors (`KERNELS_VENDOR_PATH`), in order."""
    return _paths("KERNELS_VENDOR_PATH")


def tune_files() -> tuple[Path, ...]:
    """Files of tune configurations that are searched before a vendor's (`KERNELS_TUNE_PATH`), in order."""
    return _paths("KERNELS_TUNE_PATH")


def disabled_backends() -> frozenset[str]:
    """Backends that are not used (`KERNELS_DISABLE_BACKENDS`), by their names or those of their entry points."""
    return _names("KERNELS_DISABLE_BACKENDS")


# Trust


def trusted_publishers() -> frozenset[str]:
    """Trusted publishers besides those that the Hub trusts (`KERNELS_TRUSTED_PUBLISHERS`)."""
    publishers = _names("KERNELS_TRUSTED_PUBLISHERS")
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
    """When the content of a build is checked: the argument, or `KERNELS_VERIFY`, or when it is installed.

    Args:
        asked: `off`, `install` or `load`; None for the variable, which may also be 1 (load) or 0 (install), or the
            other words of a flag except `off`.

    Raises:
        TypeError: The argument is neither a string nor None.
        RequestError: The argument or the variable is another word.

    Example:
        >>> verify_when("load")
        'load'
    """
    if asked is not None and not isinstance(asked, str):
        raise TypeError(f"`verify` is {asked!r} ({type(asked).__name__}); expected 'off', 'install' or 'load'.")
    name, value = ("KERNELS_VERIFY", os.environ.get("KERNELS_VERIFY", "")) if asked is None else ("verify", asked)
    word = value
    if asked is None:
        flags = dict.fromkeys(_FALSE - {"OFF"}, "install") | dict.fromkeys(_TRUE, "load")
        word = flags.get(value.upper(), value.lower())
    if word in get_args(Verify):
        return cast(Verify, word)
    from kernels.support.formatting import did_you_mean  # where there is a message

    hint = did_you_mean(word, get_args(Verify))
    raise RequestError(f"`{name}` is {value[:200]!r}; expected 'off', 'install' or 'load'.{hint}")


def policy_file() -> Path | None:
    """The signing policy (`KERNELS_POLICY`), a file that exists, or None."""
    return _file("KERNELS_POLICY", "a TOML file")


def mirror_keys() -> tuple[MirrorKey, ...]:
    """Who may sign the documents of mirrors (`KERNELS_MIRROR_KEYS`); without any, no signature is required."""
    value = os.environ.get("KERNELS_MIRROR_KEYS")
    if not value:
        return ()
    from kernels.models.mirror_keys import mirror_keys_in

    return mirror_keys_in("KERNELS_MIRROR_KEYS", value)


def mirror_sign_key() -> Path | None:
    """The file with the private key that mirrors are signed with (`KERNELS_MIRROR_SIGN_KEY`), or None."""
    return _file("KERNELS_MIRROR_SIGN_KEY", "a file")


# Lockfiles, layers, local folders


def lock_file() -> Path | None:
    """The lockfile for all code (`KERNELS_LOCKFILE`); None for the caller's own."""
    return _folder("KERNELS_LOCKFILE")


def locked_only() -> bool:
    """Whether only kernels in a lockfile are loaded (`KERNELS_LOCKED`)."""
    return _flag("KERNELS_LOCKED")


def torch_environments() -> Path:
    """The folder of environments with a Torch each (`KERNELS_TORCH_ENVS`), which `kernels build --torch` looks into."""
    return _folder("KERNELS_TORCH_ENVS") or Path.home() / ".cache" / "kernels" / "torch-envs"


def source_date() -> int:
    """The time of the files in wheels, in seconds since 1970 (`SOURCE_DATE_EPOCH`); the default is that of Hatch.

    The variable: https://reproducible-builds.org/specs/source-date-epoch/.
    """
    value = os.environ.get("SOURCE_DATE_EPOCH") or "1580601600"
    # ZIP has no time after 2107.
    if not (value.isascii() and value.isdecimal() and len(value) <= 10 and int(value) < 4_354_819_200):
        raise RequestError(f"`SOURCE_DATE_EPOCH` is {value[:200]!r}; expected a number of seconds since 1970.")
    return int(value)


def debug() -> bool:
    """Whether the tracebacks of errors are shown whole (`KERNELS_DEBUG`)."""
    return _flag("KERNELS_DEBUG")


@contextmanager
def debugging(on: bool) -> Iterator[None]:
    """Let `KERNELS_DEBUG` be 1 during the block, if `on`: a program may run commands with `--debug` in its process."""
    before = os.environ.get("KERNELS_DEBUG", "")
    if on:
        os.environ["KERNELS_DEBUG"] = "1"
    try:
        yield
    finally:
        if on:
            os.environ["KERNELS_DEBUG"] = before


def mapping_disabled() -> bool:
    """Whether `kernelize` keeps every layer's own forward (`DISABLE_KERNEL_MAPPING`)."""
    return _flag("DISABLE_KERNEL_MAPPING")


def autotune_ignored() -> bool:
    """Whether `kernelize` ignores what `autotune` measured (`KERNELS_AUTOTUNE=off`)."""
    value = os.environ.get("KERNELS_AUTOTUNE", "").strip().lower()
    if value not in ("", "on", "off"):
        raise RequestError(f"KERNELS_AUTOTUNE: expected 'on' or 'off', got {value!r}.")
    return value == "off"


def local_kernels() -> dict[str, Path]:
    """Local folders that are used as repositories (`LOCAL_KERNELS`: `org/name=/path`), by repository."""
    overrides: dict[str, Path] = {}
    for entry in filter(str.strip, split_paths(os.environ.get("LOCAL_KERNELS", ""))):
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
