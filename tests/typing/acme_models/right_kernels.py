"""Getting kernels: the types of arguments and results."""

from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import assert_type

import kernels
from kernels import (
    BackendName,
    EnabledOps,
    FuncSpec,
    LoadedKernel,
    Metadata,
    RepoInfo,
    Target,
    VariantAccepted,
    VariantRejected,
    get_kernel,
    get_kernel_dep,
    get_kernel_variants,
    get_loaded_kernels,
    get_local_kernel,
    get_locked_kernel,
    has_kernel,
    install_kernel,
    load_kernel,
    use_kernel_ops,
)

assert_type(get_kernel("acme/activation", version=1), ModuleType)
assert_type(get_kernel("acme/activation", revision="v1", backend="cuda", trust_remote_code=["acme/other"]), ModuleType)
assert_type(get_kernel("acme/activation", user_agent={"acme-models": "1.0"}, device="cuda:1"), ModuleType)
assert_type(kernels.get_kernel("acme/activation", verify="load"), ModuleType)
assert_type(get_local_kernel(Path("activation"), backend="acme"), ModuleType)
assert_type(get_local_kernel("activation"), ModuleType)
assert_type(get_locked_kernel("acme/activation", lockfile=Path("kernels.lock")), ModuleType)
assert_type(load_kernel("acme/activation", lockfile="kernels.lock"), ModuleType)
assert_type(get_kernel_dep("acme/activation"), ModuleType)
assert_type(has_kernel("acme/activation", version=1), bool)
assert_type(install_kernel("acme/activation", version=1, target="torch2.9-cu128-x86_64-linux"), Path)

for variant in get_kernel_variants("acme/activation", target=Target.current()):
    if isinstance(variant, VariantRejected):
        assert_type(variant.reason, str)
    else:
        assert_type(variant, VariantAccepted)

loaded = get_loaded_kernels()
assert_type(loaded, list[LoadedKernel])
assert_type(loaded[0].metadata, Metadata)
assert_type(loaded[0].repo_info, RepoInfo | None)
assert_type(loaded[0].module, ModuleType)

target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
assert_type(target.default_backend, str)
assert_type(target.backends, dict[str, str | None])
assert_type(kernels.__version__, str)


def silu_and_mul(out: object, x: object, backend: BackendName | None = None) -> None:
    result: Any = get_kernel("acme/activation", version=1, backend=backend).silu_and_mul(out, x)
    assert result is None


with use_kernel_ops({"aten::silu": FuncSpec("acme/activation", "silu", version=1)}) as enabled:
    assert_type(enabled, EnabledOps)
