"""What the functions beside `get_kernel` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from get_kernel import get
from setting import Setting, situation


@situation("get_local_kernel: a repository's folder")
def _(setting: Setting) -> object:
    from kernels import get_local_kernel

    return get_local_kernel(setting.local("acme/relu")).repo_id


@situation("get_local_kernel: a variant's folder")
def _(setting: Setting) -> object:
    from kernels import get_local_kernel

    return get_local_kernel(setting.local("acme/relu") / "build" / "torch-cpu").repo_id


@situation("get_local_kernel: no such folder")
def _(setting: Setting) -> object:
    from kernels import get_local_kernel

    return get_local_kernel(setting.own / "none")


@situation("get_local_kernel: a folder without builds")
def _(setting: Setting) -> object:
    from kernels import get_local_kernel

    return get_local_kernel(setting.own)


@situation("get_local_kernel: a Python dependency that is not installed")
def _(setting: Setting) -> object:
    from kernels import get_local_kernel

    return get_local_kernel(setting.local("acme/needs-helion"))


def _has(repo_id: str, **options: Any) -> object:
    from kernels import has_kernel

    return has_kernel(repo_id, **({"version": 1} | options))


@situation("has_kernel: a build")
def _(setting: Setting) -> object:
    return _has("acme/relu")


@situation("has_kernel: no build for this machine")
def _(setting: Setting) -> object:
    return _has("acme/gpu-only")


@situation("has_kernel: no such repository")
def _(setting: Setting) -> object:
    return _has("acme/missing")


@situation("has_kernel: no such version")
def _(setting: Setting) -> object:
    return _has("acme/relu", version=9)


@situation("has_kernel: an untrusted publisher")
def _(setting: Setting) -> object:
    return _has("stranger/relu")


@situation("has_kernel: a Python dependency that is not installed")
def _(setting: Setting) -> object:
    return _has("acme/needs-helion")


@situation("has_kernel: neither version nor revision")
def _(setting: Setting) -> object:
    return _has("acme/relu", version=None)


def _install(repo_id: str = "acme/relu", **options: Any) -> object:
    from kernels import install_kernel

    path = install_kernel(repo_id, **({"version": 1} | options))
    return [isinstance(path, Path), path.name, (path / "__init__.py").exists()]


@situation("install_kernel: a version")
def _(setting: Setting) -> object:
    return _install()


@situation("install_kernel: a Python dependency that is not installed")
def _(setting: Setting) -> object:
    return _install("acme/needs-helion")


@situation("install_kernel: a newer client is required")
def _(setting: Setting) -> object:
    return _install("acme/newer")


@situation("install_kernel: local_files_only, never downloaded")
def _(setting: Setting) -> object:
    return _install(local_files_only=True)


@situation("install_kernel: local_files_only, downloaded before")
def _(setting: Setting) -> object:
    _install()
    commit = setting.commits["acme/relu@v1"]
    return _install(version=None, revision=commit, local_files_only=True)


@situation("install_kernel: an untrusted publisher")
def _(setting: Setting) -> object:
    return _install("stranger/relu")


@situation("install_kernel: no such repository")
def _(setting: Setting) -> object:
    return _install("acme/missing")


@situation("install_kernel: a repository that has moved")
def _(setting: Setting) -> object:
    return _install("acme/moved")


@situation("get_locked_kernel: a pinned kernel")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=setting.lock()).version


@situation("get_locked_kernel: no such lockfile")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=setting.own / "none.lock")


@situation("get_locked_kernel: the kernel is not pinned")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/gpu-only", lockfile=setting.lock())


@situation("get_locked_kernel: a lockfile that is not JSON")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=setting.write("kernels.lock", "no JSON"))


@situation("get_locked_kernel: a lockfile with an unknown field")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=setting.lock(note="mine"))


@situation("get_locked_kernel: a commit that is not there")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=setting.lock(lock={"commit": "0" * 40}))


@situation("get_locked_kernel: a commit that is not hexadecimal")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=setting.lock(lock={"commit": "main"}))


@situation("get_locked_kernel: an untrusted publisher")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("stranger/relu", lockfile=setting.lock("stranger/relu"))


@situation("get_locked_kernel: the caller's package has no lockfile")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel

    return get_locked_kernel("acme/relu", lockfile=None)


@situation("load_kernel: downloaded before")
def _(setting: Setting) -> object:
    from kernels import get_locked_kernel, load_kernel

    lockfile = setting.lock()
    return load_kernel("acme/relu", lockfile=lockfile) is get_locked_kernel("acme/relu", lockfile=lockfile)


@situation("load_kernel: downloaded before by get_kernel")
def _(setting: Setting) -> object:
    from kernels import load_kernel

    get()
    return load_kernel("acme/relu", lockfile=setting.lock()).version


@situation("load_kernel: never downloaded")
def _(setting: Setting) -> object:
    from kernels import load_kernel

    return load_kernel("acme/relu", lockfile=setting.lock())


@situation("load_kernel: no such lockfile")
def _(setting: Setting) -> object:
    from kernels import load_kernel

    return load_kernel("acme/relu", lockfile=setting.own / "none.lock")


@situation("load_kernel: the caller's package has no lockfile")
def _(setting: Setting) -> object:
    from kernels import load_kernel

    return load_kernel("acme/relu", lockfile=None)


@situation("get_kernel_variants: what is there and why not")
def _(setting: Setting) -> object:
    from kernels import get_kernel_variants

    found = get_kernel_variants("acme/variants", version=1)
    return sorted([type(each).__name__, each.variant.variant_str] for each in found)


@situation("get_kernel_variants: a variant's name and reason are text")
def _(setting: Setting) -> object:
    from kernels import VariantRejected, get_kernel_variants

    [found] = get_kernel_variants("acme/gpu-only", version=1)
    return [isinstance(found, VariantRejected), type(found.reason).__name__, found.variant.variant_str]


@situation("get_kernel_variants: no such repository")
def _(setting: Setting) -> object:
    from kernels import get_kernel_variants

    return get_kernel_variants("acme/missing", version=1)


@situation("get_kernel_variants: no such version")
def _(setting: Setting) -> object:
    from kernels import get_kernel_variants

    return get_kernel_variants("acme/relu", version=9)


@situation("get_kernel_dep: outside of a kernel's import")
def _(setting: Setting) -> object:
    from kernels import get_kernel_dep

    return get_kernel_dep("acme/relu")


@situation("get_kernel_dep: of a kernel that is not declared")
def _(setting: Setting) -> object:
    return get("acme/undeclared")


@situation("get_loaded_kernels: by version")
def _(setting: Setting) -> object:
    from kernels import get_loaded_kernels

    module = get()
    [loaded] = get_loaded_kernels()
    commit = setting.commits["acme/relu@v1"]
    return [loaded.module is module, loaded.repo_info.repo_id, loaded.repo_info.revision == commit]


@situation("get_loaded_kernels: by revision")
def _(setting: Setting) -> object:
    from kernels import get_loaded_kernels

    get(version=None, revision="v1")
    return get_loaded_kernels()[0].repo_info.revision


@situation("get_loaded_kernels: from a folder")
def _(setting: Setting) -> object:
    from kernels import get_loaded_kernels, get_local_kernel

    get_local_kernel(setting.local("acme/relu"))
    return get_loaded_kernels()[0].repo_info


@situation("get_loaded_kernels: locked")
def _(setting: Setting) -> object:
    from kernels import get_loaded_kernels, get_locked_kernel

    get_locked_kernel("acme/relu", lockfile=setting.lock())
    info = get_loaded_kernels()[0].repo_info
    return None if info is None else [info.repo_id, info.revision == setting.commits["acme/relu@v1"]]


@situation("get_loaded_kernels: a kernel and its dependency")
def _(setting: Setting) -> object:
    from kernels import get_loaded_kernels

    get("acme/dependent")
    return [each.repo_info and each.repo_info.repo_id for each in get_loaded_kernels()]


@situation("get_loaded_kernels: before any is loaded")
def _(setting: Setting) -> object:
    from kernels import get_loaded_kernels

    return get_loaded_kernels()
