"""What a vendor and the author of a kernel write: a backend, and benchmarks."""

from typing import Any

from typing_extensions import assert_type

from kernels import BackendName, Benchmark, get_backend, list_backends, register_backend, unregister_backend
from kernels.backends import Backend, BackendProbe
from kernels.benchmarks import RMSNormBenchmark
from kernels.tuning import get_configs


class Acme(Backend):
    name = device_type = "acme"

    def probe(self) -> BackendProbe:
        return BackendProbe(found=False)


class Plain:
    name = "plain"
    device_type = "plain"

    def probe(self) -> BackendProbe:
        return BackendProbe(found=True)


register_backend(Acme())
register_backend(Acme)
register_backend(Plain)
any_name: BackendName = "acme" + "_two"
get_backend(any_name)
get_configs("mm", backend=any_name)
register_backend(Plain(), override=True)
unregister_backend("acme")
assert_type(get_backend("acme"), Backend)
names: list[str] = [entry.name for entry in list_backends()]


class Double(Benchmark):
    seed = 0

    def setup(self) -> None:
        self.x = 21

    def benchmark_double(self) -> None:
        self.out = self.kernel.double(self.x)

    def verify_double(self) -> int:
        return 2 * self.x


class Norm(RMSNormBenchmark):
    eps = 1e-6


assert_type(Double().x, int)
assert_type(Norm().eps, float)
assert_type(Norm().out, Any)
