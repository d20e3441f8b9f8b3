"""On an NVIDIA GPU: the probe, and builds chosen by the card's architecture."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
from hub import TestHub

from kernels import get_kernel, get_kernel_variants, install_kernel
from kernels.errors import UnsupportedArch
from kernels.target import Target

pytestmark = pytest.mark.gpu

TORCH_AND_PROBE = """
    import json, sys
    from kernels.target import Target
    target = Target.current()
    assert "torch" not in sys.modules, "the probe imported torch"
    import torch
    assert not torch.cuda.is_initialized(), "the probe initialised CUDA"
    [*devices] = target.backend_devices("cuda")
    assert len(devices) == torch.cuda.device_count(), (devices, torch.cuda.device_count())
    for device in devices:
        properties = torch.cuda.get_device_properties(device.index)
        assert device.name == properties.name, (device, properties)
        assert device.arch == f"{properties.major}.{properties.minor}"
        assert device.capability == properties.major * 10 + properties.minor
        assert abs(device.memory - properties.total_memory) < 0.05 * device.memory
    assert str(target.backend_version("cuda")) == torch.version.cuda
    assert target.default_backend == "cuda"
"""

FORK = """
    import multiprocessing, sys
    from kernels.target import Target
    import torch
    Target.current()

    def work(queue):
        queue.put(float(torch.ones(3, device="cuda").sum()))

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        assert queue.get(timeout=120) == 3.0
        child.join()
"""

WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None
    import importlib.metadata as metadata
    real = metadata.version
    def version(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)
    metadata.version = version
    from kernels.target import Target
    target = Target.probe()
    assert target.backend_devices("cuda"), target
    assert target.backend_version("cuda") is not None, target
"""


@pytest.mark.parametrize("code", [TORCH_AND_PROBE, FORK, WITHOUT_TORCH], ids=["as-torch-sees-it", "fork", "no-torch"])
def test_the_probe_finds_the_cards_and_leaves_cuda_alone(code: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


def arch() -> str:
    device = Target.current().backend_devices("cuda")[0]
    return device.arch


def compiled_name() -> str:
    target = Target.current()
    torch, cuda = str(target.torch).split(".")[:2], target.backend_version("cuda")
    assert cuda is not None
    return f"torch{torch[0]}{torch[1]}-cxx11-cu{cuda.major}{cuda.minor}-{target.cpu}-{target.os}"


def test_a_build_that_excludes_the_card_falls_through_to_one_that_covers_it(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=[compiled_name()], archs=["5.0"])
    hub.make_repo("acme/relu", variants=["torch-cuda"], archs=[arch()])
    assert get_kernel("acme/relu", version=1).variant == "torch-cuda"
    decisions = {each.variant.name: each for each in get_kernel_variants("acme/relu", version=1)}
    assert arch() in decisions[compiled_name()].reason  # type: ignore[union-attr]
    assert install_kernel("acme/relu", version=1, check_arch=False).name == compiled_name()


def test_a_build_that_covers_the_card_is_loaded(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=[compiled_name(), "torch-cuda"], archs=["5.0", f"{arch()}a"])
    assert get_kernel("acme/relu", version=1).variant == compiled_name()


def test_where_no_build_covers_the_card_the_error_says_so(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("acme/relu", variants=[compiled_name(), "torch-cuda"], archs=["5.0"])
    with pytest.raises(UnsupportedArch, match=arch()):
        get_kernel("acme/relu", version=1)


def test_a_kernel_for_the_processor_can_be_asked_for_on_a_gpu_machine(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-cuda", "torch-cpu"])
    assert get_kernel("acme/relu", version=1, backend="cpu").variant == "torch-cpu"
