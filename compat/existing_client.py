"""The compatibility promise as a test: what code for the existing client meets, there and here.

    python compat/existing_client.py [--folder FOLDER] [--check]

installs the existing client in an environment of its own, writes what is found out about it to `facts-0.17.2.json`,
and compares it with this client. `deliberate.toml` lists the differences that are meant, with the reasons; the table of
them is written into docs/migrating.md. Any other difference, and a reason for what no longer differs, is an error.
With `--check` the facts are read from the file, nothing is installed, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison import Difference, differences, is_named
from environment import make_environment
from hub_content import heads, hub_for_situations
from page import write_section
from public_names import public_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSION = "0.17.2"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FACTS = HERE / f"facts-{VERSION}.json"
DELIBERATE = HERE / "deliberate.toml"
PAGE = ROOT / "docs" / "migrating.md"
COMMANDS = ("benchmark", "check", "download", "info", "lock", "verify-signature", "versions")

_AGENTS = {
    "the User-Agent of requests": "acme/agent",
    "the User-Agent of requests, telemetry disabled": "acme/agent-off",
}
# Imported once for all situations, as this client reads the environment when it is called.
_OWN_PACKAGES = [
    "support",
    "models",
    "backends",
    "trust",
    "cache",
    "sources",
    "loader",
    "resolver",
    "operations",
    "layer",
    "cli",
]
# Which of them there are depends on the version of huggingface_hub, not on the client.
_OTHERS_FIELDS = ("hf_hub", "unknown", "agent")


def facts_of(python: str | Path, *, source: Path | None = None, only: Sequence[str] = ()) -> dict[str, Any]:
    """The facts about the client that a Python has.

    Args:
        python: The interpreter.
        source: The folder of this client, where the facts are about the one of this process.
        only: The situations to run, without the commands; everything if it is empty.
    """
    with tempfile.TemporaryDirectory(prefix="kernels-compat-") as temporary:
        folder = Path(temporary)
        environment = _environment(folder, source)
        names = public_names() if source else _run([python, HERE / "public_names.py"], folder, environment)
        commands = {name: _options(python, name, folder, environment) for name in COMMANDS if not only}
        with hub_for_situations(folder / "hub") as hub:
            setting = {
                "url": hub.url,
                "folder": str(folder / "runs"),
                "repositories": str(hub.root),
                "commits": heads(hub),
                "preload": own_modules(source) if source else [],
            }
            (folder / "setting.json").write_text(json.dumps(setting))
            environment["HF_ENDPOINT"] = hub.url
            situations = _run(
                [python, HERE / "situations" / "run.py", folder / "setting.json", *only], folder, environment
            )
            for name, repo_id in _AGENTS.items():
                agents = [each.headers["user-agent"] for each in hub.requests if f"{repo_id}/" in each.path]
                if name in situations and "returns" in situations[name]:
                    situations[name]["returns"] = _agent_fields(agents)
    return {"names": names, "commands": commands, "situations": situations}


def own_modules(source: Path) -> list[str]:
    """The modules of this client that situations use."""
    paths = [path for name in _OWN_PACKAGES for path in sorted((source / "kernels" / name).rglob("*.py"))]
    return [".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def _environment(folder: Path, source: Path | None) -> dict[str, str]:
    dropped = ("HF_", "HUGGING", "KERNELS_", "PYTHON", "LOCAL_KERNELS", "DISABLE_KERNEL_MAPPING")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {
        **kept,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_XET": "1",
        "COLUMNS": "200",
        "NO_COLOR": "1",
        # Loading from a folder of the Hub must not change what it serves.
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        **({} if source is None else {"PYTHONPATH": str(source)}),
    }


def _run(command: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> Any:
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def _options(python: str | Path, command: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """A command's options, as its help lists them."""
    code = "import sys; from kernels.cli import main; sys.exit(main())"
    done = subprocess.run(
        [str(python), "-c", code, command, "--help"], cwd=folder, env=environment, capture_output=True, text=True
    )
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", done.stdout)))


def _agent_fields(agents: Sequence[str]) -> list[str]:
    """The names of the fields that requests carry, without those of huggingface_hub."""
    fields = [{each.strip().partition("/")[0] for each in agent.split(";")} for agent in agents]
    return sorted(set().union(*fields) - set(_OTHERS_FIELDS))


def reasons() -> list[dict[str, Any]]:
    """The differences that are meant: patterns for what differs, and the reason."""
    found: list[dict[str, Any]] = tomllib.loads(DELIBERATE.read_text(encoding="utf-8"))["difference"]
    return found


def sort_out(found: Sequence[Difference], meant: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The rows of the page's table, and what is wrong: differences without a reason, reasons without a difference."""
    rows, wrong = [], []
    left = list(found)
    for reason in meant:
        own = [each for each in left if any(is_named(each, pattern) for pattern in reason["what"])]
        for pattern in reason["what"]:
            if not any(is_named(each, pattern) for each in found):
                wrong.append(f"deliberate.toml: nothing differs that {pattern!r} names.")
        left = [each for each in left if each not in own]
        # Those that differ alike share a row.
        alike: dict[tuple[str, str], list[str]] = {}
        for each in own:
            alike.setdefault((each.there, each.here), []).append(each.what)
        for (there, here), names in alike.items():
            cells = ["<br>".join(map(_cell, names)), _cell(there), _cell(here), reason["why"]]
            rows.append(f"| {' | '.join(cells)} |")
    wrong += [f"{each.what}: there {each.there}, here {each.here}" for each in left]
    return rows, wrong


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def render(rows: Sequence[str], facts: dict[str, Any]) -> str:
    """What stands between the page's markers."""
    names = sum(len(each) for module, each in facts["names"].items() if module != "kernels.layer")
    counts = f"{names} public names, {len(facts['commands'])} commands and {len(facts['situations'])} situations"
    table = ["| what | existing client | here | why |", "|---|---|---|---|", *rows]
    return f"Of {counts} of version {VERSION}, these differ:\n\n" + "\n".join(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="make the environment there; default: .venv-existing")
    parser.add_argument("--check", action="store_true", help="read the facts from the file, and write nothing")
    arguments = parser.parse_args()
    if not arguments.check:
        # Torch and other large packages are those of this environment.
        python = make_environment("existing", [f"kernels=={VERSION}", "tabulate"], folder=arguments.folder, borrow=True)
        FACTS.write_text(json.dumps(facts_of(python), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    # In the order of the file, which is that of the page.
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    own = facts_of(sys.executable, source=ROOT / "src")
    rows, wrong = sort_out(differences(facts, own), reasons())
    if not arguments.check:
        write_section(PAGE, "differences", lambda before: render(rows, facts))
    elif render(rows, facts) not in PAGE.read_text(encoding="utf-8"):
        wrong.append("docs/migrating.md is not up to date: make compat")
    print(f"{len(rows)} rows of differences that are meant, {len(wrong)} problems.")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
