"""How Triton compiles for Acme's accelerators: as far as its registry asks."""

from triton.backends.compiler import BaseBackend, GPUTarget


class AcmeBackend(BaseBackend):
    binary_ext = "acme"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "acme"

    def hash(self) -> str:
        return "acme-1.0"

    def parse_options(self, options: dict) -> object:
        return object()

    def add_stages(self, stages: dict, options: object, language: object = None) -> None:
        stages["acme"] = lambda source, metadata: source

    def load_dialects(self, context: object) -> None: ...

    def get_module_map(self) -> dict:
        return {}
