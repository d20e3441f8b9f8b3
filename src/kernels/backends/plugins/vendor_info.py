"""What a vendor's folder says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.support.formatting import did_you_mean

__all__ = ["VendorInfo"]


@dataclass(frozen=True)
class VendorInfo:
    """What a vendor folder declares, as `vendor_info` in its `__init__.py`.

    The first five are those of FlagGems (`VendorInfoBase` in flag_gems/runtime/backend/backend_utils.py); the others
    are the fields of the same names in a file that declares backends (see `kernels.backends.plugins.json_backend`).

    Attributes:
        vendor_name: The vendor.
        device_name: Torch's device type.
        device_query_cmd: A command that succeeds where the vendor's device is there, run without a shell; None or ""
            where it is always there.
        dispatch_key: Torch's dispatch key. Default: that of the backends with this device type, else `PrivateUse1`.
        triton_extra_name: Name of the vendor's Triton library; kept for folders that have it.
        backend: The backend's name; a backend that is there already gets the folder. Default: the vendor's name.
        variant_token: Name in compiled variants.
        version: The version of the vendor's runtime: text, or where to ask for it.
        archs: The architectures of the devices: names, or where to ask for them.
        arch_rule: How architectures of builds and devices are compared.
        python_depends: Python dependencies that only this backend's kernels may have.
        experimental: Whether using it warns, once.
        guidance_block: Notes for who writes kernels: what the hardware is.
        kernel_guidance: Notes for who writes kernels: how to write them.
        cuda_hacks_to_strip: Source lines that must not stand in a kernel for it.
        detect: How to tell whether it is there, in place of `device_query_cmd`.

    Example:
        >>> VendorInfo(vendor_name="acme", device_name="acme", device_query_cmd="acme-smi").dispatch_key is None
        True
    """

    vendor_name: str
    device_name: str
    device_query_cmd: str | Sequence[str] | None = None
    dispatch_key: str | None = None
    triton_extra_name: str | None = None
    backend: str | None = None
    variant_token: str | None = None
    version: Any = None
    archs: Any = None
    arch_rule: str | None = None
    python_depends: Any = None
    experimental: bool | None = None
    guidance_block: str | None = None
    kernel_guidance: str | None = None
    cuda_hacks_to_strip: Sequence[str] | None = None
    detect: Mapping[str, Any] | None = None

    def __new__(cls, *_: Any, **named: Any) -> VendorInfo:
        """Refuse an unknown name, and suggest the nearest one."""
        allowed = list(cls.__dataclass_fields__)
        for name in named:
            if name not in allowed:
                hint = did_you_mean(name, allowed)
                raise TypeError(f"VendorInfo has no `{name}`.{hint} Expected one of {', '.join(allowed)}.")
        return super().__new__(cls)
