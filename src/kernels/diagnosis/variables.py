"""The environment variables: values that are not valid, names that are misspelt, tokens that cannot be one."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from kernels import settings
from kernels.diagnosis import variable_table
from kernels.diagnosis.finding import Findings
from kernels.errors import RequestError
from kernels.support import secrets
from kernels.support.env_values import is_url
from kernels.support.formatting import format_value, nearest_name

__all__ = ["check_variables", "shown_variables"]

#: The beginning of this package's names, as people write it.
_PREFIX = re.compile(r"(?i)_?(?:HF_)?KERNELS?_")
#: What Kubernetes sets for a service that is called "kernels" (kubernetes.io, "Discovering services").
_SERVICE = re.compile(
    r"[A-Z0-9_]+_(SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
#: What the completion of a shell sets for a command called `kernels`.
_COMPLETION = re.compile(r"_?KERNELS_COMPLETE")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "KERNELS_HUB_TOKEN")
_LONGEST = 300
_OWN = "KERNELS_"


def shown_variables() -> dict[str, str]:
    """The variables of this package that are set, without secrets, and not longer than a line or two."""
    return {
        name: value if len(value) <= _LONGEST else f"{value[:_LONGEST]}… ({len(value)} characters)"
        for name, value in variable_table.active_variables().items()
    }


def check_variables() -> Findings:
    """Invalid values, an invalid policy, misspelt names, folders that do not exist, malformed tokens."""
    found = Findings("variables")
    for message in dict.fromkeys([*variable_table.invalid_settings(), *_invalid_policy()]):
        found.problem(message, "Correct it, or unset the variable.")
    _check_names(found)
    _check_folders(found)
    _check_tokens(found)
    return found


def _invalid_policy() -> list[str]:
    """What is wrong with the active signing policy."""
    from kernels.trust.policy import active_policy

    try:
        active_policy()
    except RequestError as error:
        return [str(error)]
    return []


def _check_names(found: Findings) -> None:
    known = {variable.name for variable in variable_table.VARIABLES}
    own = [name for name in known if not name.startswith("HF_")]
    for name in sorted(settings.environment()):
        if name in known or _SERVICE.fullmatch(name) or _COMPLETION.fullmatch(name):
            continue
        shown = format_value(name).strip("'\"")
        upper, prefix = name.upper(), _PREFIX.match(name)
        if prefix is not None:
            # Without what all of them begin with: it alone would make every two of them similar.
            rest = nearest_name(upper[prefix.end() :], [each[len(_OWN) :] for each in own if each.startswith(_OWN)])
            meant = nearest_name(upper, own, 0.85) if rest is None else _OWN + rest
        elif upper.startswith("HF_"):
            theirs = [each for each in known if each.startswith("HF_")]
            meant = None if name in _read_by_huggingface_hub() else nearest_name(upper, theirs, 0.93)
        else:
            meant = nearest_name(upper, own, 0.85)
        if meant is not None:
            found.problem(f"{shown} is set, which nothing reads.", f"Did you mean {meant}?")
        elif name.startswith(_OWN):
            found.note(f"{shown} is set, which this package does not read.", "Unset it, unless it is another's.")


def _read_by_huggingface_hub() -> frozenset[str]:
    try:
        from huggingface_hub import constants
    except Exception:  # noqa: BLE001 - reported with the packages
        return frozenset()
    return frozenset({*vars(constants), "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"})


def _check_folders(found: Findings) -> None:
    """Paths that are read only when they are needed: who sets them means something that is there."""
    try:
        for repo_id, folder in settings.local_kernels().items():
            if not os.path.isdir(folder):
                found.problem(
                    f"LOCAL_KERNELS has {format_value(repo_id)} at {_shown(folder)}, which is no folder.",
                    "Correct the path, or take the entry out.",
                )
            elif not os.path.isdir(folder / "build") and not os.path.isfile(folder / "metadata.json"):
                found.problem(
                    f"LOCAL_KERNELS has {format_value(repo_id)} at {_shown(folder)}, which has no folder build/.",
                    "Name the folder of the repository, or build it: kernels build.",
                )
    except RequestError:
        pass  # reported as an invalid value
    try:
        for path in settings.tune_files():
            if not os.path.exists(path):
                found.problem(
                    f"KERNELS_TUNE_PATH has {_shown(path)}, which does not exist.",
                    "Correct the path, or take the entry out.",
                )
    except RequestError:
        pass


def _shown(path: Path) -> str:
    return format_value(str(path), 300)


def _check_tokens(found: Findings) -> None:
    """A token's form. The messages do not show it."""
    environment = settings.environment()
    for name in _TOKENS:
        token = environment.get(name)
        if not token:
            continue
        if name == "KERNELS_HUB_TOKEN":  # a list is checked where it is read, and each of its tokens hidden
            with suppress(RequestError):
                if "" not in (settings.hub_tokens() or [""]):
                    continue
        else:
            secrets.register(token)
        text = token.strip()
        fix = f"Set {name} to the token alone, as the Hub's page shows it."
        if not text:
            found.problem(f"{name} is blank.", fix)
        elif "\n" in text or "\r" in text:
            found.problem(f"{name} has a line break in it.", fix)
        elif not text.isascii() or not text.isprintable() or " " in text:
            found.problem(f"{name} has a character that no token has: a space, or one that is not ASCII.", fix)
        elif text[0] in "'\"`<" or text[-1] in "'\"`>":
            found.problem(f"{name} has quotation marks or brackets around it.", fix)
        elif text.startswith(("$", "%")) or "{" in text:
            found.problem(f"{name} has the name of a variable that was not replaced.", fix)
        elif text.lower().startswith(("bearer", "token=", "hf_token=")):
            found.problem(f"{name} has a word before the token.", fix)
        elif text != token:
            found.note(f"{name} has white space around the token, which is not sent.", fix)
    if environment.get("KERNELS_HUB_TOKEN") and not is_url(environment.get("KERNELS_HUB", "")):
        found.note("KERNELS_HUB_TOKEN is set, but not sent: KERNELS_HUB names no Hub.", "Set KERNELS_HUB to its URL.")
