"""What a build needs of this client."""

from __future__ import annotations

import pytest
from packaging.version import Version

from kernels.errors import IncompatibleClient
from kernels.models.metadata import BackendInfo, KernelName, Metadata
from kernels.resolver import requirements


@pytest.mark.parametrize(
    ("installed", "needed", "suits"),
    [
        ("0.18.2", "0.18.2", True),
        ("0.18.2", "0.18.3", False),
        ("0.9.0", "0.10.0", False),  # as numbers, not as text
        ("0.18.2.dev1+gabc", "0.18.2", True),
        ("0.18.2-acme-3", "99.0.0", True),  # cannot be compared
    ],
)
def test_a_client_is_new_enough_or_names_the_version_that_is(
    installed: str, needed: str, suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "__version__", installed)
    metadata = Metadata("_relu", KernelName("relu"), BackendInfo("cpu"), kernels_minver=Version(needed))
    if suits:
        requirements.check_prerequisites("acme/relu", "torch-cpu", metadata)
    else:
        with pytest.raises(IncompatibleClient, match=f"needs kernels>={needed}; {installed} is installed"):
            requirements.check_prerequisites("acme/relu", "torch-cpu", metadata)
