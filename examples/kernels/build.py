"""Build the example kernels into a folder of repositories: `python examples/kernels/build.py OUT [--noarch-only]`.

Each kernel here has two source folders, `compiled/` and `noarch/`; their builds become one repository,
`OUT/kernels-examples/<name>/v<version>/build/<variant>/`. Without a compiler the noarch builds are made, and a line
says so. Building again is quick: what has not changed is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile import build_kernel, default_backends, read_source
from kernels.errors import CompilerNotFound, KernelsError

__all__ = ["PUBLISHER", "Built", "build_examples", "main"]

PUBLISHER = "kernels-examples"


@dataclass(frozen=True)
class Built:
    """What was built.

    Attributes:
        variants: Every variant's folder.
        not_compiled: Why compiled builds are missing, by the kernel's name, with the backend where one is meant; empty
            when none is missing.
    """

    variants: tuple[Path, ...]
    not_compiled: dict[str, str]


def build_examples(out: Path, *, noarch_only: bool = False, sources: Path = Path(__file__).parent) -> Built:
    """Build every example kernel.

    Args:
        out: The folder of repositories.
        noarch_only: Leave the compiled builds out.
        sources: The folder that holds the kernels' folders.

    Returns:
        What was built, and what could not be for want of a compiler.

    Raises:
        KernelsError: A build failed.
    """
    variants: list[Path] = []
    not_compiled: dict[str, str] = {}
    for build_toml in sorted(sources.glob("*/*/build.toml")):
        source = read_source(build_toml.parent)
        if noarch_only and source.compiled:
            continue
        repository = out / PUBLISHER / source.name / f"v{source.version}"
        work = out.with_name(out.name + ".work") / source.name
        # Where `kernels benchmark` looks for them in a repository; both source folders have the same.
        for script in sorted((source.folder / "benchmarks").glob("benchmark*.py")):
            (repository / "benchmarks").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(script, repository / "benchmarks" / script.name)
        try:
            backends = default_backends(source)
        except CompilerNotFound as error:
            not_compiled[source.name] = str(error)
            continue
        for backend in backends:
            try:
                variants += build_kernel(source.folder, repository, backends=[backend], work_dir=work)
            except CompilerNotFound as error:
                not_compiled[f"{source.name} for {backend}"] = str(error)
    return Built(tuple(variants), not_compiled)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of repositories to write")
    parser.add_argument("--noarch-only", action="store_true", help="leave the compiled builds out")
    options = parser.parse_args(arguments)
    try:
        built = build_examples(options.out.absolute(), noarch_only=options.noarch_only)
    except (KernelsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for variant in built.variants:
        print(variant)
    for name, reason in built.not_compiled.items():
        print(f"{name} was not compiled. {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
