"""What is measured, in a process of its own: `python workloads.py NAME ARGUMENTS` prints one line of JSON.

It runs in the environment of either client, so it uses only what both offer: the public calls, and for digests each
client's own. It imports nothing that the client under test might import first, except Torch where a row needs it, and
huggingface_hub where its session is to be there before.

The process says `ready` when it has imported what comes before the measurement, and begins at a line of its input: so
several can be made ready at the same time, and are measured one after the other, while nothing else runs.
"""

import json
import sys
import time

#: Workloads that begin in a bare Python.
BARE = {"choose", "choose_listed", "construct", "digest", "digest_one", "enter_mapping", "wire"}


def settle(session=False):
    """Import Torch and take its objects out of the garbage collector's sight.

    Else a collection of them (0.1 s) falls into the imports of either client, at one point or another.

    With `session`, huggingface_hub's session is made before, too, as in every program that uses transformers.
    """
    import gc
    import resource  # noqa: F401

    import torch

    if session:
        from huggingface_hub.utils import get_session

        get_session()
    gc.collect()
    gc.freeze()
    return torch


def processor_seconds():
    """Seconds of processor time, of all threads, in the program and in the system."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def get(repo_id, version=None, revision=None):
    """Seconds from before `import kernels` to the module, with Torch imported already; and of the call alone."""
    import torch

    processor = processor_seconds()
    start = time.perf_counter()
    from kernels import get_kernel

    imported = time.perf_counter()
    which = {"version": version} if revision is None else {"revision": revision}
    module = get_kernel(repo_id, backend="cpu", **which)
    end = time.perf_counter()
    processor = processor_seconds() - processor
    assert module.answer() == 42
    return {"seconds": end - start, "call": end - imported, "processor": processor, "torch": torch.__version__}


def first_byte(repo_id, version):
    """Milliseconds from before `import kernels` to the first connection, and the modules that were imported by then.

    Python tells an audit hook of each `connect`, which is the last that comes before the first byte. Counted are the
    modules that the request waits for: those that are there when its thread begins, and what that imports itself.
    """
    import threading

    found = {}
    before = set(sys.modules)
    main = threading.get_ident()

    def note(event, arguments):
        if "ms" in found:
            return
        if event == "import" and threading.get_ident() != main:
            found["modules"] += 1
        elif event == "socket.connect":
            found["ms"] = (time.perf_counter() - start) * 1e3
            found.setdefault("modules", len(set(sys.modules) - before))

    def begin(thread):
        found.setdefault("modules", len(set(sys.modules) - before))
        start_thread(thread)

    start_thread, threading.Thread.start = threading.Thread.start, begin
    sys.addaudithook(note)
    start = time.perf_counter()
    from kernels import get_kernel

    get_kernel(repo_id, version=version, backend="cpu")
    return {**found, "all": len(set(sys.modules) - before)}


def wire(rounds, connections):
    """Seconds of nothing but the requests, over huggingface_hub's session.

    Each list of `rounds` is asked for at once, over that many connections, when the one before it is in.
    """
    import gc
    import os
    from concurrent.futures import ThreadPoolExecutor

    from huggingface_hub.utils import get_session

    session, endpoint = get_session(), os.environ["HF_ENDPOINT"]
    gc.collect()
    gc.freeze()

    def ask(path):
        answer = session.get(endpoint + path)
        answer.raise_for_status()
        return len(answer.content)

    processor = processor_seconds()
    start = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        size = sum(sum(pool.map(ask, paths)) if len(paths) > 1 else ask(paths[0]) for paths in rounds)
        end = time.perf_counter()
    return {"seconds": end - start, "processor": processor_seconds() - processor, "bytes": size}


def hub_parts():
    """Milliseconds to import what makes huggingface_hub's session, and to make the session: its TLS context."""
    start = time.perf_counter()
    from huggingface_hub.utils import get_session

    imported = time.perf_counter()
    get_session()
    end = time.perf_counter()
    return {"import": (imported - start) * 1e3, "session": (end - imported) * 1e3}


def choose(document, repo_id, commit):
    """Milliseconds to read a repository's index of a mirror and to choose a build, and the memory that they take."""
    import pathlib
    import tracemalloc

    from kernels.models.metadata import Metadata
    from kernels.models.mirror_document import MirrorDocument
    from kernels.resolver.choice import resolve
    from kernels.resolver.target import Target

    target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
    data = pathlib.Path(document).read_bytes()

    def once():
        index = MirrorDocument.parse(data, document).repository(repo_id, document)
        index.snapshot(commit)
        names = index.commits[commit].variants
        metadata = {name: Metadata.from_bytes(index.build(commit, name).metadata.encode()) for name in names}
        assert resolve(names, target, metadata=metadata).best is not None

    once()
    tracemalloc.start()
    once()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    times = []
    for _ in range(21):
        start = time.perf_counter()
        once()
        times.append((time.perf_counter() - start) * 1e3)
    return {"ms": sorted(times)[10], "mb": peak / 1e6}


def lockfile(project):
    """Seconds of `import kernels` and of `kernels download` of a project with a lockfile, Torch imported already."""
    import pathlib
    import types

    processor = processor_seconds()
    start = time.perf_counter()
    try:
        from kernels.cli.download import download_kernels
    except ImportError:
        from kernels import download_kernels

        imported = time.perf_counter()
        download_kernels(lock=pathlib.Path(project, "kernels.lock"))
    else:
        imported = time.perf_counter()
        download_kernels(types.SimpleNamespace(project_dir=pathlib.Path(project), all_variants=False))
    end = time.perf_counter()
    return {"seconds": end - start, "call": end - imported, "processor": processor_seconds() - processor}


def kernelize_repositories(repo_ids):
    """Seconds of `import kernels` and the first `kernelize` of a model whose layers need these repositories."""
    import torch

    processor = processor_seconds()
    start = time.perf_counter()
    from kernels import LayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

    def layer(name):
        class Layer(torch.nn.Module):
            def forward(self, x):
                return x

        return use_kernel_forward_from_hub(name)(Layer)()

    mapping = {
        f"Layer{index}": {"cpu": LayerRepository(repo_id, layer_name="Answer", version=1)}
        for index, repo_id in enumerate(repo_ids)
    }
    model = torch.nn.Sequential(*[layer(name) for name in mapping]).eval()
    called = time.perf_counter()
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    end = time.perf_counter()
    processor = processor_seconds() - processor
    assert all(module(torch.zeros(())).item() == 42 for module in model)
    return {"seconds": end - start, "call": end - called, "processor": processor}


def _marked():
    import torch

    from kernels import LayerRepository, use_kernel_forward_from_hub

    @use_kernel_forward_from_hub("Answer")
    class Answer(torch.nn.Module):
        def forward(self, x):
            return x + 41

    return Answer, lambda repo_id: {"Answer": {"cpu": LayerRepository(repo_id, layer_name="Answer", version=1)}}


def kernelize_modules(repo_id, counts, repeats):
    """Microseconds per module of `kernelize`, for each number of modules, once the kernel is loaded."""
    import gc

    import torch

    from kernels import Mode, kernelize, use_kernel_mapping

    layer, mapping = _marked()
    per_module = {}
    with use_kernel_mapping(mapping(repo_id), inherit_mapping=False):
        kernelize(layer().eval(), mode=Mode.INFERENCE, device="cpu")
        for count in counts:
            times = []
            for _ in range(repeats):
                model = torch.nn.ModuleList([layer() for _ in range(count)]).eval()
                gc.collect()
                start = time.perf_counter()
                kernelize(model, mode=Mode.INFERENCE, device="cpu")
                times.append(time.perf_counter() - start)
            per_module[str(count)] = sorted(times)[repeats // 2] / count * 1e6
    return per_module


def enter_mapping(layers, repeats):
    """Milliseconds to enter `use_kernel_mapping` with one layer while others are registered."""
    from kernels import LayerRepository, register_kernel_mapping, use_kernel_mapping

    register_kernel_mapping(
        {
            f"Layer{index}": {"cpu": LayerRepository("bench/small", layer_name="Answer", version=1)}
            for index in range(layers)
        }
    )
    one = {"Layer": {"cpu": LayerRepository("bench/small", layer_name="Answer", version=1)}}
    times = []
    for _ in range(repeats):
        context = use_kernel_mapping(one)
        start = time.perf_counter()
        context.__enter__()
        times.append(time.perf_counter() - start)
        context.__exit__(None, None, None)
    return {"ms": sorted(times)[repeats // 2] * 1e3}


def call_layer(repo_id, calls, repeats):
    """Nanoseconds that a call of a kernelized layer takes more than one of the same layer, called plainly.

    `noise` is the same difference between two plain layers.
    """
    import torch

    from kernels import Mode, get_kernel, kernelize, use_kernel_mapping

    layer, mapping = _marked()
    with use_kernel_mapping(mapping(repo_id), inherit_mapping=False):
        # A layer of a model: the model itself is called in a way of its own, which names the module in an error.
        kernelized = kernelize(torch.nn.Sequential(layer()).eval(), mode=Mode.INFERENCE, device="cpu")[0]
    plain_class = get_kernel(repo_id, version=1, backend="cpu").layers.Answer
    modules = {"kernelized": kernelized, "plain": plain_class().eval(), "plain again": plain_class().eval()}
    x = torch.zeros(())
    best = dict.fromkeys(modules, float("inf"))
    # The fastest of many short series: what else the machine does only ever adds.
    for _ in range(repeats):
        for name, module in modules.items():
            start = time.perf_counter_ns()
            for _ in range(calls):
                module(x)
            best[name] = min(best[name], (time.perf_counter_ns() - start) / calls)
    return {
        "ns": best["kernelized"] - best["plain"],
        "noise": abs(best["plain again"] - best["plain"]),
        "plain": best["plain"],
    }


def compile_layer(repo_id):
    """Graphs that `torch.compile` makes of a kernelized model of three layers called three times: 1 is all it needs.

    `fullgraph=True` turns a graph break into an error.
    """
    import torch

    from kernels import Mode, kernelize, use_kernel_mapping

    layer, mapping = _marked()
    model = torch.nn.Sequential(layer(), layer(), layer()).eval()
    with use_kernel_mapping(mapping(repo_id), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="cpu")
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        assert compiled(torch.zeros(8)).tolist() == [3 * 42.0] * 8
    return {"graphs": len(graphs)}


def plan_kinds(kinds, layers, repeats):
    """Microseconds per layer of `kernelize` of a model with many kinds of layers, each with its entry in the mapping.

    The kernels' layers are loaded already: what is left is the choice of each, its checks, and its replacement.
    """
    import gc

    import torch

    from kernels import Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

    class Kernel:
        def __init__(self):
            class Act(torch.nn.Module):
                def forward(self, x):
                    return x + 42

            self._layer = Act

        def load(self):
            return self._layer

    def kind(name):
        class Act(torch.nn.Module):
            def forward(self, x):
                return x + 41

        return use_kernel_forward_from_hub(name)(Act)

    classes = [kind(f"Act{index}") for index in range(kinds)]
    times = []
    with use_kernel_mapping({f"Act{index}": {"cpu": Kernel()} for index in range(kinds)}, inherit_mapping=False):
        for _ in range(repeats + 1):
            model = torch.nn.ModuleList([classes[index % kinds]() for index in range(layers)]).eval()
            gc.collect()
            start = time.perf_counter()
            kernelize(model, mode=Mode.INFERENCE, device="cpu")
            times.append(time.perf_counter() - start)
    # The first one reads the source of each class.
    return {"us": sorted(times[1:])[repeats // 2] / layers * 1e6, "first": times[0] / layers * 1e6}


def choose_listed(builds, files):
    """From a Hub's listing of many builds to the chosen one: milliseconds of each step, and the memory of all in MB."""
    import hashlib
    import tracemalloc

    from kernels.models.metadata import Metadata
    from kernels.models.snapshot import Snapshot
    from kernels.resolver.choice import rank
    from kernels.resolver.target import Target
    from kernels.sources.hub_responses import TREE_PAGE, listed_files

    def entry(path):
        return {"type": "file", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 4096, "path": path}

    kinds = [f"cxx11-{backend}-{cpu}-linux" for backend in ("cpu", "cu128", "rocm64") for cpu in ("x86_64", "aarch64")]
    names = [f"torch{1 + index // 1000}{index % 1000}-{kind}" for index in range(9000) for kind in kinds][:builds]
    parts = ["__init__.py", "metadata.json", *(f"part{index}.py" for index in range(files - 2))]
    entries = [entry(f"build/{name}/{part}") for name in names for part in parts]
    pages = [json.dumps(entries[start : start + 1000]).encode() for start in range(0, len(entries), 1000)]
    del entries
    target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
    fields = {"name": "many", "id": "_many_cuda_0a1b2c3", "version": 1, "license": "Apache-2.0", "python-depends": []}
    document = json.dumps({**fields, "backend": {"type": "cuda", "archs": ["9.0"]}}).encode()

    def once():
        start = time.perf_counter()
        listed = [file for page in pages for file in listed_files(TREE_PAGE.decode(page))]
        snapshot = Snapshot("bench/many", "0" * 40, tuple(listed))
        read = time.perf_counter()
        ranking = rank(snapshot.builds, target)
        best = next(iter(ranking.fitting))
        assert ranking.decide({best: Metadata.from_bytes(document)}).best is not None
        return (read - start) * 1e3, (time.perf_counter() - read) * 1e3

    once()
    listing, choosing = min(once() for _ in range(5))
    tracemalloc.start()
    once()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"listing": listing, "choosing": choosing, "mb": peak / 1e6}


def construct(project, repeats):
    """Microseconds for which a module of a project that has a lock makes a repository, once it has made one."""
    sys.path.insert(0, project)
    import model

    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model.make()
        times.append((time.perf_counter() - start) * 1e6)
    return {"us": sorted(times)[repeats // 2]}


def digest(path, size, repeats):
    """GB/s of checking a variant of `size` bytes against its SHA-256 digest."""
    verify = _digest_check(path)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        verify()
        best = min(best, time.perf_counter() - start)
    return {"gb_s": size / best / 1e9}


def _digest_check(path):
    """What compares a variant with its digest: of this package, of an older commit of it, or of the existing client."""
    try:
        from kernels.trust.content import BuildContent

        expected = BuildContent(path).digest("sha256")
        return lambda: BuildContent(path).check_digest(expected)
    except ImportError:
        pass
    try:
        from kernels.trust.digest import variant_digest, verify_digest

        expected = variant_digest(path, "sha256")
        return lambda: verify_digest(path, expected)
    except ImportError:
        from kernels._rust import Digest, DigestAlgorithm

        expected = Digest.hash_variant(DigestAlgorithm.SHA256, path)
        return lambda: expected.validate(Digest.hash_variant(DigestAlgorithm.SHA256, path))


def digest_one(path, repeats):
    """GB/s of hashing one large file, and of the same bytes in memory, which no other core can share."""
    import hashlib
    import os

    try:
        from kernels.trust.file_hashes import sha256_file
    except ImportError:  # an older commit
        from kernels.trust.digest import sha256_file

    size = os.path.getsize(path)
    memory = bytes(16 * 2**20)
    times = {"file": [], "memory": []}
    for _ in range(repeats):
        start = time.perf_counter()
        sha256_file(path)
        times["file"].append(size / (time.perf_counter() - start))
        start = time.perf_counter()
        hashlib.sha256(memory)
        times["memory"].append(len(memory) / (time.perf_counter() - start))
    return {name: max(each) / 1e9 for name, each in times.items()}


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    session = arguments.pop("session", False)
    if name not in BARE:
        settle(session)
    print("ready", file=sys.stderr, flush=True)  # what `-X importtime` writes after this belongs to the measurement
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(globals()[name](**arguments)))
