"""Every model class of transformers with marked layers, tiny, with kernels and without: docs/compatibility.md.

    python compat/transformers_models.py [--only llama,gemma3] [--again]

Each class is made from a shrunk configuration, run on the CPU, kernelized with stand-in kernels for all of its marks,
run again, unkernelized and run once more, in a process of its own with a time limit. Results are kept in
compat/transformers_models.json; a second run continues where the first one stopped, and `--again` begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "compat" / "transformers_models.json"
PAGE = ROOT / "docs" / "compatibility.md"
TRANSFORMERS, TORCH = "5.23.0", "2.13.0"
#: Seconds for one class.
LIMIT = 60
#: How the reason begins that a class's outputs are not the same with kernels.
OTHER_OUTPUTS = "the outputs with kernels differ"
#: What the results say of a class that was not run, and what the page says.
NOT_RUN = {
    "cannot be made tiny": "its tiny copy cannot be made",
    "does not run tiny": "its tiny copy does not run",
    "takes too long": f"its tiny copy takes longer than {LIMIT} s",
    "cannot be imported": "its module cannot be imported",
    "ended the process": "its tiny copy ended the process",
}
#: Errors of the script, which makes the inputs by their names, and of transformers, in fewer words.
IN_WORDS = {
    r"LookupError: it does not take (\w+)": r"it takes other inputs than \1",
    r"LookupError: nothing here makes (\w+)": r"the script has no values for its input \1",
    r"ImportError: \w+ requires the (\w+) library but .*": r"it needs the package \1",
}


def folders(python: Path) -> list[str]:
    """The models whose sources carry a mark."""
    code = """
import pathlib, re, transformers
marks = re.compile(r"^@use_kernel(_forward_from_hub|ized_func|_func_from_hub)", re.M)
for path in sorted(pathlib.Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
    if marks.search(path.read_text(encoding="utf-8")):
        print(f"{path.parent.name}.{path.stem}")
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def sweep(python: Path, modules: list[str], known: dict[str, dict[str, Any]], jobs: int) -> None:
    """Add the results of these modules to those that are known."""
    left = [module for module in modules if module not in known]
    lock = threading.Lock()

    def work(share: list[str]) -> None:
        while share:
            for module, results in _stream(python, share):
                with lock:
                    known[module] = results
                    _write(known)
                share.remove(module)
                print(
                    f"{len(known)}/{len(modules)} {module}", dict(Counter(_outcome(each) for each in results.values()))
                )
            if share:  # the process ended in this one
                known[share.pop(0)] = {"": {"failed": "ended the process"}}

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, [left[start::jobs] for start in range(jobs)]))


def _stream(python: Path, modules: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    script = Path(__file__).with_name("marked_models.py")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "KERNELS_", "PYTHON"))}
    kept |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"}
    with tempfile.TemporaryDirectory() as folder:
        kept |= {"KERNELS_CACHE": str(Path(folder, "cache")), "HF_HOME": str(Path(folder, "home"))}
        command = [str(python), str(script), str(LIMIT), folder, *modules]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=kept
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("["):
                    module, results = json.loads(line)
                    yield module, results


def _write(known: dict[str, dict[str, Any]]) -> None:
    """The results as JSON, a line for each class."""
    modules = []
    for module, results in sorted(known.items()):
        lines = [f"  {json.dumps(name)}: {json.dumps(each, sort_keys=True)}" for name, each in sorted(results.items())]
        modules.append(f" {json.dumps(module)}: {{\n" + ",\n".join(lines) + "\n }")
    RESULTS.write_text("{\n" + ",\n".join(modules) + "\n}\n", encoding="utf-8")


def _outcome(result: dict[str, Any]) -> str:
    return result.get("outcome") or result["failed"].split(":")[0]


# -- the table --------------------------------------------------------------------------------------------------------


def table(known: dict[str, dict[str, Any]]) -> str:
    """How many classes came out how, by mark, and what could not be run and why."""
    results = [
        each for classes in known.values() for each in classes.values() if each.get("failed") != "no marked layer"
    ]
    ran = [each for each in results if "outcome" in each]
    same = [each for each in ran if each["outcome"] == "same"]
    whole = sum(any("outcome" in each for each in classes.values()) for classes in known.values())
    largest = max(each["difference"] for each in same)
    back = sum(each["after"] <= each.get("noise", 0) for each in ran)
    lines = [
        f"{len(results)} classes of {len(known)} models carry marks; {len(ran)} of them, of {whole} models, were run.",
        f"{len(same)} give the same outputs with kernels (largest difference {largest:.0e}); {back} give the very same",
        "as before after `unkernelize`, with their own forwards.",
        "",
        "| mark | classes | layers | calls | largest difference |",
        "|---|---|---|---|---|",
    ]
    for mark in sorted({mark for each in ran for mark in each["marks"]}, key=str.lower):
        those = [each for each in same if mark in each["kernelized"]]
        layers = sum(each["kernelized"][mark] for each in those)
        calls = sum(each["calls"].get(mark, 0) for each in those)
        largest = max((each["difference"] for each in those), default=0.0)
        lines.append(f"| `{mark}` | {len(those)} | {layers} | {calls} | {largest:.0e} |")
    lines += ["", "| not the same, or not run | classes |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for classes in known.values():
        for name, each in classes.items():
            if each.get("outcome") not in (None, "same"):
                reasons.setdefault(_changed(each), []).append(name)
            elif each.get("failed", "no marked layer") != "no marked layer":
                reasons.setdefault(_reason(each["failed"]), []).append(name)
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(names) == 1 and not reason.startswith(OTHER_OUTPUTS):
            continue
        shown = ", ".join(f"`{name}`" for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"| {reason} | {shown} |")
    alone = sum(len(names) == 1 and not reason.startswith(OTHER_OUTPUTS) for reason, names in reasons.items())
    return "\n".join([*lines, f"| each for a reason of its own, in `compat/transformers_models.json` | {alone} |"])


def _changed(result: dict[str, Any]) -> str:
    """In what a class is not the same with kernels."""
    if result["outcome"] != "DIFFERENT":
        return f"some layers got no kernel: {', '.join(result['skipped'])}"
    return f"{OTHER_OUTPUTS} by {result['difference']} of the largest value"


def _reason(failed: str) -> str:
    """A reason in plain words, without what differs from class to class."""
    what, separator, error = failed.partition(":")
    text = re.sub(r" \([\w.]+:\d+\)$", "", error)
    for own, words in IN_WORDS.items():
        text = re.sub(own, words, text)
    text = re.sub(r"\d+", "N", text).replace("|", "/")
    return f"{NOT_RUN.get(what, what)}{separator}{text}"[:160]


def main() -> int:
    from environment import make_environment
    from page import write_section

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="models, separated by commas")
    parser.add_argument("--again", action="store_true", help="forget what is known")
    parser.add_argument("--retry", action="store_true", help="try those again that could not be made or run")
    parser.add_argument("--python", type=Path, help="an environment that has transformers")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    python = arguments.python or make_environment(
        "transformers", [f"transformers=={TRANSFORMERS}", f"torch=={TORCH}", "scipy", f"--editable={ROOT}"]
    )
    known = {} if arguments.again or not RESULTS.exists() else json.loads(RESULTS.read_text(encoding="utf-8"))
    modules = folders(python)
    if arguments.only:
        chosen = set(arguments.only.split(","))
        modules = [module for module in modules if module.split(".")[0] in chosen]
        known = {module: each for module, each in known.items() if module.split(".")[0] not in chosen}
    modules.sort(key=lambda module: module in known)  # first those that were never tried
    if arguments.retry:
        known = {module: each for module, each in known.items() if not any("failed" in one for one in each.values())}
    sweep(python, modules, known, arguments.jobs)
    if not arguments.only:
        write_section(PAGE, "transformers", lambda before: table(known))
    print(Counter(_outcome(each) for classes in known.values() for each in classes.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
