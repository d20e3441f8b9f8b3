"""The table of all environment variables: for `kernels doctor`, and for the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

from kernels import settings
from kernels.errors import RequestError
from kernels.support.env_values import without_password

__all__ = ["GROUPS", "VARIABLES", "Variable", "active_variables", "invalid_settings"]


class Variable(NamedTuple):
    """An environment variable.

    Attributes:
        name: Its name.
        meaning: What it says.
        default: What holds where it is not set.
        read: Reads it, and raises a `RequestError` where it is not valid; None where huggingface_hub alone does.
        secret: Whether its value is never shown.
    """

    name: str
    meaning: str
    default: str
    read: Callable[[], object] | None = None
    secret: bool = False


#: The variables that this package reads, by what they are about, in the order of `kernels doctor`.
GROUPS: Mapping[str, tuple[Variable, ...]] = {
    "Where kernels come from": (
        Variable(
            "KERNELS_HUB",
            "where kernels come from: Hubs, mirrors and folders, asked in order",
            "HF_ENDPOINT",
            settings.hub_addresses,
        ),
        Variable("KERNELS_HUB_TOKEN", "token sent to the URL in KERNELS_HUB", "none", settings.hub_tokens, secret=True),
        Variable(
            "LOCAL_KERNELS",
            "local folders used as repositories: org/name=/path:org/other=/path",
            "none",
            settings.local_kernels,
        ),
        Variable("KERNELS_REFRESH", "seconds until the Hub is asked for a branch again", "0", settings.refresh_seconds),
    ),
    "Cache": (
        Variable("KERNELS_CACHE", "folder of downloaded kernels", "huggingface_hub's cache", settings.cache_dir),
    ),
    "Lockfiles": (
        Variable(
            "KERNELS_LOCKFILE", "lockfile for all code: /path/kernels.lock", "the caller's own", settings.lock_file
        ),
        Variable("KERNELS_LOCKED", "1: only kernels in a lockfile are loaded", "0", settings.locked_only),
    ),
    "Trust and verification": (
        Variable(
            "KERNELS_TRUSTED_PUBLISHERS",
            "trusted publishers besides the Hub's own, separated by commas",
            "none",
            settings.trusted_publishers,
        ),
        Variable("KERNELS_POLICY", "signing policy: a TOML file", "none", settings.policy_file),
        Variable(
            "KERNELS_MIRROR_KEYS",
            "public keys, one of which must sign a mirror",
            "none",
            settings.mirror_keys,
        ),
        Variable(
            "KERNELS_VERIFY",
            "when a build's content is checked: install or 0 (also if changed since), load or 1, off (what a lockfile "
            "pins, once)",
            "install",
            settings.verify_when,
        ),
    ),
    "Backends": (
        Variable("KERNELS_BACKEND", "default backend", "the one Torch was built for", settings.preferred_backend),
        Variable(
            "KERNELS_DISABLE_BACKENDS",
            "backends that are not used, separated by commas",
            "none",
            settings.disabled_backends,
        ),
        Variable(
            "KERNELS_BACKENDS_JSON",
            "files that declare backends: /path/a.json:/path/b.json",
            "none",
            settings.backend_files,
        ),
        Variable("KERNELS_VENDOR_PATH", "folders of chip vendors: /path/a:/path/b", "none", settings.vendor_folders),
        Variable(
            "KERNELS_TUNE_PATH",
            "files or folders of tune configurations, searched before a vendor's",
            "none",
            settings.tune_files,
        ),
    ),
    "Behaviour": (
        Variable(
            "DISABLE_KERNEL_MAPPING", "1: kernelize keeps every layer's own forward", "0", settings.mapping_disabled
        ),
        Variable(
            "KERNELS_AUTOTUNE",
            "off: kernelize ignores what `autotune` measured",
            "on",
            lambda: "off" if settings.autotune_ignored() else "on",
        ),
        Variable(
            "KERNELS_DEBUG", "1: errors show every frame of this package, and what led to them", "0", settings.debug
        ),
    ),
    "Building and publishing": (
        Variable(
            "KERNELS_TORCH_ENVS",
            "folder of environments for kernels build --torch",
            "~/.cache/kernels/torch-envs",
            settings.torch_environments,
        ),
        Variable(
            "SOURCE_DATE_EPOCH",
            "time of the files in wheels, in seconds since 1970",
            "2020-02-02",
            settings.source_date,
        ),
        Variable(
            "KERNELS_MIRROR_SIGN_KEY",
            "file with the private key that kernels mirror signs with",
            "none",
            settings.mirror_sign_key,
        ),
    ),
    "huggingface_hub": (
        Variable("HF_ENDPOINT", "the Hub's URL", "the public Hub", settings.endpoint),
        Variable("HF_HOME", "huggingface_hub's folder", "~/.cache/huggingface"),
        Variable("HF_HUB_CACHE", "huggingface_hub's cache", "$HF_HOME/hub"),
        Variable("HF_TOKEN", "token sent to the Hub", "the one stored at login", secret=True),
        Variable("HF_HUB_OFFLINE", "1: never connect", "0", settings.offline),
        Variable(
            "HF_HUB_DISABLE_TELEMETRY", "1: the user agent names only this client", "0", settings.telemetry_disabled
        ),
        Variable("HF_HUB_DISABLE_PROGRESS_BARS", "1: no progress bars", "0", settings.progress_disabled),
        Variable("HF_HUB_ETAG_TIMEOUT", "seconds to wait for an answer about a file or repository", "10"),
        Variable("HF_HUB_DOWNLOAD_TIMEOUT", "seconds to wait for the next bytes of a download", "10"),
    ),
}

#: Every one of them.
VARIABLES: tuple[Variable, ...] = tuple(chain.from_iterable(GROUPS.values()))


def active_variables() -> dict[str, str]:
    """The variables of `VARIABLES` that are set, with their values; secrets are hidden."""
    values = settings.environment()
    return {
        variable.name: "(set)" if variable.secret else _shown(variable, values[variable.name])
        for variable in VARIABLES
        if variable.name in values
    }


def _shown(variable: Variable, value: str) -> str:
    value = without_password(value)
    # A signed query is a secret.
    return re.sub(r"[?#][^,]*", "?(hidden)", value) if variable.name == "KERNELS_HUB" else value


def invalid_settings() -> list[str]:
    """The problems of the variables that are set, a sentence each."""
    problems = []
    for variable in VARIABLES:
        try:
            if variable.read is not None:
                variable.read()
        except RequestError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))
