"""What `kernels.verify`, requests and commands do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from get_kernel import get
from setting import Setting, situation


@situation("verify_variant: a build without a signature")
def _(setting: Setting) -> object:
    from kernels.verify import verify_variant

    return type(verify_variant(setting.local("acme/relu") / "build" / "torch-cpu")).__qualname__


@situation("verify_variant: a signature that is not a bundle")
def _(setting: Setting) -> object:
    from kernels.verify import verify_variant

    found = verify_variant(setting.local("acme/bad-signature") / "build" / "torch-cpu")
    return [type(found).__qualname__, type(found.reason).__name__]


@situation("verify_variant: a folder without files")
def _(setting: Setting) -> object:
    from kernels.verify import verify_variant

    return type(verify_variant(setting.own)).__qualname__


@situation("GitHubWorkflowPolicy: without signers")
def _(setting: Setting) -> object:
    from kernels.verify import GitHubWorkflowPolicy

    return GitHubWorkflowPolicy(repo_id="acme/kernels", signer_uris=[]) is None


@situation("GitHubWorkflowPolicy: its attributes")
def _(setting: Setting) -> object:
    from kernels.verify import GitHubWorkflowPolicy

    policy = GitHubWorkflowPolicy(repo_id="acme/kernels", signer_uris=["https://github.com/acme/w.yaml@main"])
    return [policy.repo_id, policy.signer_uris]


def _telemetry(disabled: bool) -> None:
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = disabled
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = str(int(disabled))


# The Hub notes the headers of these two; `existing_client.py` adds them.
@situation("the User-Agent of requests")
def _(setting: Setting) -> object:
    _telemetry(disabled=False)
    return get("acme/agent", user_agent={"app": "test"}).version


@situation("the User-Agent of requests, telemetry disabled")
def _(setting: Setting) -> object:
    _telemetry(disabled=True)
    return get("acme/agent-off", user_agent={"app": "test"}).version


def _command(*arguments: object) -> object:
    """A command's exit status. An error that it raises ends the process with 1."""
    from kernels.cli import main

    sys.argv = ["kernels", *map(str, arguments)]
    try:
        main()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception:  # noqa: BLE001 - whatever it is
        return 1
    return 0


def _project(setting: Setting, table: str) -> Path:
    folder = setting.own / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(f'[project]\nname = "p"\nversion = "1"\n{table}', encoding="utf-8")
    return folder


@situation("kernels: no command")
def _(setting: Setting) -> object:
    return _command()


@situation("kernels: an unknown command")
def _(setting: Setting) -> object:
    return _command("brew")


@situation("kernels versions: a repository")
def _(setting: Setting) -> object:
    return _command("versions", "acme/versions")


@situation("kernels versions: no such repository")
def _(setting: Setting) -> object:
    return _command("versions", "acme/missing")


@situation("kernels info: a version")
def _(setting: Setting) -> object:
    return _command("info", "acme/relu", "--version", 1)


@situation("kernels info: a folder, as JSON")
def _(setting: Setting) -> object:
    return _command("info", setting.local("acme/relu"), "--json")


@situation("kernels info: neither version nor revision")
def _(setting: Setting) -> object:
    return _command("info", "acme/relu")


@situation("kernels info: no such repository")
def _(setting: Setting) -> object:
    return _command("info", "acme/missing", "--version", 1)


@situation("kernels lock, then kernels download")
def _(setting: Setting) -> object:
    folder = _project(setting, '[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    locked = _command("lock", folder)
    [entry] = json.loads((folder / "kernels.lock").read_text(encoding="utf-8"))
    known = {"dependency": entry["dependency"], "commit": entry["lock"]["commit"] == setting.commits["acme/relu@v1"]}
    return [locked, known, _command("download", folder), _command("download", folder, "--all-variants")]


@situation("kernels lock: no such version")
def _(setting: Setting) -> object:
    return _command("lock", _project(setting, '[tool.kernels.dependencies]\n"acme/relu" = 9\n'))


@situation("kernels lock: no kernels in pyproject.toml")
def _(setting: Setting) -> object:
    return _command("lock", _project(setting, ""))


@situation("kernels lock: no pyproject.toml")
def _(setting: Setting) -> object:
    return _command("lock", setting.own)


@situation("kernels download: no lockfile")
def _(setting: Setting) -> object:
    return _command("download", _project(setting, ""))


@situation("kernels verify-signature: a build without a signature")
def _(setting: Setting) -> object:
    return _command("verify-signature", "acme/relu", 1)


@situation("kernels verify-signature: builds without a signature are left out")
def _(setting: Setting) -> object:
    return _command("verify-signature", "acme/relu", 1, "--filter-unsigned")


@situation("kernels benchmark: no such repository")
def _(setting: Setting) -> object:
    return _command("benchmark", "acme/missing", "--version", 1)


@situation("kernels benchmark: neither version nor branch")
def _(setting: Setting) -> object:
    return _command("benchmark", "acme/benchmarked")


@situation("kernels benchmark: a folder")
def _(setting: Setting) -> object:
    return _command("benchmark", setting.local("acme/benchmarked"), "--iterations", 2, "--warmup", 1)


@situation("kernels benchmark: a folder without benchmarks")
def _(setting: Setting) -> object:
    return _command("benchmark", setting.local("acme/relu"))


@situation("kernels benchmark: a workload whose result is wrong")
def _(setting: Setting) -> object:
    return _command("benchmark", setting.local("acme/wrong-benchmark"), "--iterations", 2, "--warmup", 1)


@situation("kernels benchmark: --output, --json")
def _(setting: Setting) -> object:
    output = setting.own / "result.json"
    folder = setting.local("acme/benchmarked")
    status = _command("benchmark", folder, "--iterations", 2, "--warmup", 1, "--output", output, "--json")
    result = json.loads(output.read_text(encoding="utf-8"))
    [workload] = result["results"]
    return [
        status,
        sorted(result),
        sorted(result["machineInfo"]),
        workload["workload"],
        sorted(workload["timingResults"]),
        workload["verified"],
    ]


@situation("kernels check")
def _(setting: Setting) -> object:
    return _command("check", "acme/relu")
