"""Fill the templates: from a draft to the files of a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from kernels.authoring.own_tests.by_name import is_importable
from kernels.authoring.scaffold.draft import TEMPLATES, Draft
from kernels.authoring.scaffold.guidance import guidance
from kernels.backends import Backend

__all__ = ["common_values", "device_templates", "fill", "fragment", "has_device_code", "render"]

#: The suffix of every template, so that none is taken for a source of this package.
_SUFFIX = ".in"

_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")
_DEVICE = TEMPLATES / "device"
_ANY = "any"
_OPTIONS = "options.toml.in"


def render(draft: Draft) -> dict[PurePosixPath, str]:
    """The files of a new kernel: their contents by path in the kernel's folder.

    Example:
        >>> from kernels.authoring.scaffold import draft_kernel
        >>> files = render(draft_kernel("rms-norm", backends=["cpu"]))
        >>> PurePosixPath("rms_norm_cpu/rms_norm.cpp") in files
        True
    """
    notes = guidance(draft.backends)
    values = common_values(draft)
    archs = (TEMPLATES / "archs" / f"{backend.name}.toml{_SUFFIX}" for backend in draft.backends)
    values["ARCHS"] = "".join(f"\n{_read(path)}".rstrip("\n") for path in archs if path.is_file())
    files = dict(_tree(TEMPLATES / "common", values))
    if draft.noarch:
        files.update(_noarch(draft, values))
    else:
        files.update(_compiled(draft, values))
    if notes is not None:
        files[PurePosixPath("GUIDANCE.md")] = notes
    return files


def has_device_code(backend: Backend) -> bool:
    """Whether a new kernel's sources for a backend are written for its device; else they use Torch's own operators.

    Example:
        >>> from kernels.backends import get
        >>> has_device_code(get("cuda")), has_device_code(get("tpu"))
        (True, False)
    """
    return device_templates(backend).name != _ANY


def common_values(draft: Draft) -> dict[str, str]:
    """What the templates of every kernel can name."""
    names = [backend.name for backend in draft.backends]
    values = {
        "NAME": draft.name,
        "PYTHON_NAME": draft.name.python_name,
        "REPO_ID": draft.test_repo_id,
        "LICENSE": draft.license,
        "UPLOAD_OPTIONS": " --repo-id org/name" if draft.repo_id is None else "",
        "BACKENDS": ", ".join(f'"{name}"' for name in names),
        # One per line, so that the source is formatted.
        "BACKEND_LINES": "\n".join(f'    "{name}",' for name in names),
        "BACKEND_LIST": ", ".join(names),
    }
    has_notes = guidance(draft.backends) is not None
    values["GUIDANCE_NOTE"] = fragment("guidance-note.md", values) + "\n\n" if has_notes else ""
    values["HUB"] = fragment("no-hub.toml" if draft.repo_id is None else "hub.toml", values)
    by_name = is_importable(draft.name.python_name)
    values["IMPORT_TEST"] = fragment("import-test.py", values) + "\n\n\n" if by_name else ""
    values["GENERAL"] = fragment("general.toml", values)
    return values


def _noarch(draft: Draft, values: dict[str, str]) -> dict[PurePosixPath, str]:
    """The files of a noarch kernel: one package for all backends, with Triton if all of them support it."""
    triton = dict(_tree(TEMPLATES / "triton", values))
    forbidden = [line for backend in draft.backends for line in backend.cuda_hacks_to_strip]
    allowed = not any(line in text for line in forbidden for text in triton.values())
    how, row = ("in-triton.md", "files-triton.md") if allowed else ("in-plain.md", None)
    said = {"WRITTEN_IN": fragment(how, values), "FILES": "" if row is None else f"{fragment(row, values)}\n"}
    code = triton if allowed else dict(_tree(TEMPLATES / "plain", values))
    return {**dict(_tree(TEMPLATES / "noarch", {**values, **said})), **code}


def _compiled(draft: Draft, values: dict[str, str]) -> dict[PurePosixPath, str]:
    files: dict[PurePosixPath, str] = {}
    kernels, registrations = [], []
    for backend in draft.backends:
        own = {**values, **_backend_values(backend)}
        device = device_templates(backend)
        folder = PurePosixPath(f"{draft.name.python_name}_{backend.name}")
        sources = {path: text for path, text in _tree(device, own) if path.name != _OPTIONS.removesuffix(_SUFFIX)}
        files.update({folder / path: text for path, text in sources.items()})
        options = device / _OPTIONS
        own["SOURCES"] = ", ".join(f'"{folder / path}"' for path in sources)
        own["OPTIONS"] = fill(_read(options), own) if options.is_file() else ""
        kernels.append(fragment("kernel.toml", own))
        registrations.append(fragment("registration.cpp", own))
    blocks = {"KERNELS": "\n\n".join(kernels), "REGISTRATIONS": "\n\n".join(registrations)}
    return {**files, **dict(_tree(TEMPLATES / "compiled", {**values, **blocks}))}


def _backend_values(backend: Backend) -> dict[str, str]:
    return {
        "BACKEND": backend.name,
        # The builder defines `<name>_KERNEL`.
        "BACKEND_MACRO": backend.name.upper(),
        "DISPATCH_KEY": backend.dispatch_key,
    }


def device_templates(backend: Backend) -> Path:
    """The templates for a backend, or for its device language, or else those for any device."""
    named = (_DEVICE / name for name in (backend.name, backend.device_language) if name)
    return next((folder for folder in named if folder.is_dir()), _DEVICE / _ANY)


def _tree(folder: Path, values: Mapping[str, str]) -> Iterator[tuple[PurePosixPath, str]]:
    for path in sorted(folder.rglob(f"*{_SUFFIX}")):
        name = path.relative_to(folder).as_posix().removesuffix(_SUFFIX)
        yield PurePosixPath(fill(name, values)), fill(_read(path), values)


def fragment(name: str, values: Mapping[str, str]) -> str:
    """A part of a file from its template, without a line break at its end."""
    return fill(_read(TEMPLATES / "fragments" / f"{name}{_SUFFIX}"), values).strip("\n")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def fill(text: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)
