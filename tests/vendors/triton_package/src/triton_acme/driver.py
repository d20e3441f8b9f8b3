"""Acme's accelerators as Triton sees them; `ACME_DEVICES` says how many this machine has."""

import os

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class AcmeDriver(DriverBase):
    def __init__(self) -> None:
        print("Acme driver 1.0")

    @staticmethod
    def is_active() -> bool:
        return int(os.environ.get("ACME_DEVICES", "0")) > 0

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("acme", "a100x", 64)

    def get_active_torch_device(self) -> object:
        import torch

        return torch.device("cpu", 0)

    def get_benchmarker(self) -> object:
        return None
