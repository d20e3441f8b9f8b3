"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.errors import RequestError
from kernels.support.files import read_bounded
from kernels.support.formatting import format_value

if TYPE_CHECKING:
    from kernels.resolver.target import Target

__all__ = [
    "AllVariants",
    "AsJson",
    "BackendName",
    "BuildFirst",
    "BuiltFolder",
    "Kernel",
    "KernelOrVariant",
    "PolicyFile",
    "PublishBranch",
    "PublishTo",
    "Repository",
    "Revision",
    "TrustRemoteCode",
    "Version",
    "parse_target",
    "require_no_version",
]

#: The largest `--target` file that is read, in bytes.
_MAX_TARGET_BYTES = 4 * 1024 * 1024


def _backend_names() -> list[str]:
    from kernels import backends

    return [backend.name for backend in backends.all_backends()]


Repository = Annotated[str, typer.Argument(metavar="REPO", help="Repository, org/name.")]
Kernel = Annotated[str, typer.Argument(metavar="KERNEL", help="Repository (org/name) or path of a folder.")]
KernelOrVariant = Annotated[
    str,
    typer.Argument(metavar="KERNEL", help="Repository (org/name), or path of a repository's folder or one variant."),
]
Version = Annotated[int | None, typer.Option(metavar="N", help="Major version: the head of branch vN.")]
Revision = Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit.")]
BackendName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Backend, by any of its names. Default: KERNELS_BACKEND, or the one that Torch was built for.",
        autocompletion=_backend_names,
    ),
]
AllVariants = Annotated[bool, typer.Option("--all-variants", help="All builds, not only the one for this machine.")]
PublishTo = Annotated[
    str | None, typer.Option("--repo-id", metavar="REPO", help="Repository, org/name. Default: from build.toml.")
]
PublishBranch = Annotated[
    str | None,
    typer.Option("--branch", metavar="NAME", help="Branch. Default: from build.toml, or v<version> of the builds."),
]
BuiltFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains build/<variant>.")]
BuildFirst = Annotated[bool, typer.Option("--build", help="First build what this machine can build.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Signing policy. Default: KERNELS_POLICY, or the built-in policy."),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Accept publishers that are not trusted; KERNELS_TRUSTED_PUBLISHERS names some."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def require_no_version(path: object, version: int | None, revision: str | None) -> None:
    """Reject `--version` and `--revision` for a folder.

    Raises:
        RequestError: One of them is given.
    """
    if version is not None or revision is not None:
        raise RequestError(f"{path} is a folder, which has one version only; leave --version and --revision out.")


def parse_target(text: str) -> Target:
    """The value of `--target`: a target string, or the path of a file with a target's JSON.

    Raises:
        RequestError: The text is neither, or the file cannot be read.

    Example:
        >>> parse_target("torch2.9-cpu-x86_64-linux").torch
        '2.9'
    """
    from kernels.resolver.target import Target

    # Unlike `Path.is_file`, it returns False for text that cannot be a path.
    if os.path.isfile(text):
        try:
            return Target.from_json(read_bounded(text, _MAX_TARGET_BYTES))
        except OSError as error:
            raise RequestError(
                f"`target` is {format_value(text)}, which cannot be read: {error.strerror or error}."
            ) from None
        except RequestError as error:
            raise RequestError(f"{text}: {error}") from None
    if text.endswith(".json") or os.sep in text:
        raise RequestError(f"`target` is {format_value(text)}: file not found.")
    return Target.parse(text)
