"""On an NVIDIA GPU: builds chosen by the card's architecture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hub import TestHub
from this_card import arch, compiled_name

from kernels import get_kernel, get_kernel_variants, install_kernel
from kernels.errors import UnsupportedArch

pytestmark = pytest.mark.gpu


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
