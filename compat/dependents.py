"""Which packages build on `kernels`, what they use of it, and whether it works here: docs/compatibility.md.

    python compat/dependents.py [--wheels FOLDER] [--again]

downloads the newest wheel of each package, reads it without running it, writes compat/dependents.json, does each of
these things here with stand-in kernels, and writes the table. With `--again` the JSON is used as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from email.parser import Parser
from pathlib import Path
from typing import Any

from page import write_section
from run_uses import run_all
from uses import UNKNOWN, Use, uses_in

ROOT = Path(__file__).resolve().parents[1]
FACTS = ROOT / "compat" / "dependents.json"
PAGE = ROOT / "docs" / "compatibility.md"

#: The packages whose newest wheels are read.
PACKAGES = tuple(
    """
    accelerate axolotl bitsandbytes cache-dit colpali-engine compressed-tensors diffsynth diffusers fla-core
    flash-linear-attention gpt-oss lerobot lighteval liger-kernel llamafactory llmcompressor lmdeploy ms-swift
    nemo-automodel nemo-toolkit openrlhf optimum optimum-habana optimum-quanto peft sdnq sentence-transformers sglang
    timm torchao torchtitan transformers trl unsloth unsloth-zoo verl vllm vllm-omni xfuser auto-round
    docling-ibm-models
    """.split()  # noqa: SIM905
)


def download(folder: Path) -> list[Path]:
    """The wheels, without what they depend on."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name in PACKAGES:
        there = sorted(folder.glob(f"{name.replace('-', '_')}-*.whl"))
        if not there:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--python-version=3.12", f"--dest={folder}", name], check=True)
            there = sorted(folder.glob(f"{name.replace('-', '_')}-*.whl"))
        found.append(there[-1])
    return found


def read(wheel: Path) -> dict[str, Any]:
    """The package in a wheel: its name, version, what it requires, and what it uses of `kernels`."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = Parser().parsestr(archive.read(next(name for name in names if name.endswith("/METADATA"))).decode())
        uses = []
        for name in sorted(name for name in names if name.endswith(".py")):
            try:
                uses += [(name, use) for use in uses_in(archive.read(name).decode("utf-8"))]
            except (SyntaxError, UnicodeDecodeError):  # templates and sources of other languages
                continue
    required = [each.split(";")[0].strip() for each in about.get_all("Requires-Dist", [])]
    return {
        "package": about["Name"],
        "version": about["Version"],
        "requires": sorted({each for each in required if re.match(r"kernels($|[<>=~!\[ ])", each)}),
        "uses": _merged(uses),
    }


def _merged(uses: list[tuple[str, Use]]) -> list[dict[str, Any]]:
    """Equal uses in one file are one, with all their lines."""
    merged: dict[str, dict[str, Any]] = {}
    for file, use in uses:
        facts = {key: value for key, value in dataclasses.asdict(use).items() if value and key != "line"}
        key = json.dumps([file, facts], sort_keys=True)
        merged.setdefault(key, {"file": file, "lines": [], **facts})["lines"].append(use.line)
    return list(merged.values())


# -- the table --------------------------------------------------------------------------------------------------------


def table(facts: Mapping[str, Any], outcomes: list[list[str]]) -> str:
    lines = ["| package | where | uses | catches | here |", "|---|---|---|---|---|"]
    for package, outcome in zip(facts["packages"], outcomes, strict=True):
        rows: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for use, result in zip(package["uses"], outcome, strict=True):
            if use["kind"] == "import" and use["name"].count(".") == 1:
                continue  # the calls say it
            catches = ", ".join(f"`{name}`" for name in use.get("catches", ()))
            place = f"{use['file'].rsplit('/', 1)[-1]}:{use['lines'][0]}"
            rows[_form(use), catches, result] += [place] * len(use["lines"])
        for number, ((form, catches, result), places) in enumerate(rows.items()):
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            name = f"{package['package']} {package['version']}" if not number else ""
            lines.append(f"| {name} | {places[0]}{more} | {form} | {catches} | {result} |")
    required = [f"{each['package']}: `{', '.join(each['requires'])}`" for each in facts["packages"] if each["requires"]]
    none = ", ".join(f"{each['package']} {each['version']}" for each in facts["without"])
    return "\n".join([*lines, "", f"They require: {'; '.join(required)}.", "", f"Read, and not using it: {none}."])


def _form(use: Mapping[str, Any]) -> str:
    name = use["name"].removeprefix("kernels.")
    if use["kind"] == "asks":
        return f"whether `{use['name']}` is installed"
    if use["kind"] == "import":
        return f"`import {use['name']}`"
    if use["kind"] != "call":
        return f"`{name}`"
    parts = ["…"] * len(use.get("positional", ()))
    for key, value in use.get("keywords", {}).items():
        shown = "{…}" if isinstance(value, dict) else "…" if value == UNKNOWN or key.endswith("_id") else repr(value)
        parts.append(f"{key}={'…' if key in {'layer_name', 'revision'} else shown.replace('kernels.', '')}")
    read = "".join(f".{each}" for each in use.get("reads", ())[:1])
    return f"`{name}({', '.join(parts)}){read}`".replace("'", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="where the wheels are kept")
    parser.add_argument("--again", action="store_true", help="use compat/dependents.json as it is")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.again:
            packages = [read(wheel) for wheel in download(arguments.wheels or Path(folder, "wheels"))]
            packages.sort(key=lambda package: package["package"].lower())
            facts = {
                "packages": [package for package in packages if package["uses"] or package["requires"]],
                "without": [
                    {key: package[key] for key in ("package", "version")}
                    for package in packages
                    if not (package["uses"] or package["requires"])
                ],
            }
            FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        facts = json.loads(FACTS.read_text(encoding="utf-8"))
        outcomes = run_all(facts["packages"], Path(folder, "run"))
    write_section(PAGE, "dependents", lambda before: table(facts, outcomes))
    failed = [outcome for each in outcomes for outcome in each if outcome.startswith("FAILED")]
    print(*failed, sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
