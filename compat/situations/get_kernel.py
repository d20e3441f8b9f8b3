"""What `get_kernel` does."""

from __future__ import annotations

import os
import sys
from typing import Any

from setting import Setting, situation


def get(repo_id: str = "acme/relu", **options: Any) -> Any:
    from kernels import get_kernel

    return get_kernel(repo_id, **({"version": 1} | options))


@situation("get_kernel: a version")
def _(setting: Setting) -> object:
    module = get()
    return [module.repo_id, module.version, module.double(2), module.__name__ in sys.modules]


@situation("get_kernel: twice gives one module")
def _(setting: Setting) -> object:
    return get() is get()


@situation("get_kernel: a branch")
def _(setting: Setting) -> object:
    return get("acme/versions", version=None, revision="v2").version


@situation("get_kernel: a commit")
def _(setting: Setting) -> object:
    return get(version=None, revision=setting.commits["acme/relu@v1"]).version


@situation("get_kernel: neither version nor revision")
def _(setting: Setting) -> object:
    return get(version=None).version


@situation("get_kernel: a version and a revision")
def _(setting: Setting) -> object:
    return get(revision="v1").version


@situation("get_kernel: no such repository")
def _(setting: Setting) -> object:
    return get("acme/missing")


@situation("get_kernel: no such repository, by revision")
def _(setting: Setting) -> object:
    return get("acme/missing", version=None, revision="main")


@situation("get_kernel: no such version")
def _(setting: Setting) -> object:
    return get(version=9)


@situation("get_kernel: no such revision")
def _(setting: Setting) -> object:
    return get(version=None, revision="nightly")


@situation("get_kernel: a name without an organization")
def _(setting: Setting) -> object:
    return get("relu")


@situation("get_kernel: a name of three parts")
def _(setting: Setting) -> object:
    return get("acme/relu/v1")


@situation("get_kernel: no build for this machine")
def _(setting: Setting) -> object:
    return get("acme/gpu-only")


@situation("get_kernel: a repository without builds")
def _(setting: Setting) -> object:
    return get("acme/empty")


@situation("get_kernel: an unknown backend")
def _(setting: Setting) -> object:
    return get(backend="abacus")


@situation("get_kernel: a backend that this machine does not have")
def _(setting: Setting) -> object:
    return get(backend="cuda")


@situation("get_kernel: an untrusted publisher")
def _(setting: Setting) -> object:
    return get("stranger/relu")


@situation("get_kernel: an untrusted publisher, trust_remote_code=True")
def _(setting: Setting) -> object:
    return get("stranger/relu", trust_remote_code=True).repo_id


@situation("get_kernel: an untrusted publisher, trust_remote_code=[its repository]")
def _(setting: Setting) -> object:
    return get("stranger/relu", trust_remote_code=["stranger/relu"]).repo_id


@situation("get_kernel: an untrusted publisher, trust_remote_code=[another repository]")
def _(setting: Setting) -> object:
    return get("stranger/relu", trust_remote_code=["stranger/other"])


@situation("get_kernel: a publisher that the Hub does not know")
def _(setting: Setting) -> object:
    return get("nobody/relu")


@situation("get_kernel: metadata.json is missing")
def _(setting: Setting) -> object:
    return get("acme/no-metadata")


@situation("get_kernel: metadata.json is not JSON")
def _(setting: Setting) -> object:
    return get("acme/not-json")


@situation("get_kernel: metadata.json without an id")
def _(setting: Setting) -> object:
    return get("acme/no-id")


@situation("get_kernel: metadata.json of an unknown backend")
def _(setting: Setting) -> object:
    return get("acme/odd-backend")


@situation("get_kernel: a Python dependency that is not installed")
def _(setting: Setting) -> object:
    return get("acme/needs-helion")


@situation("get_kernel: a Python dependency that kernels may not have")
def _(setting: Setting) -> object:
    return get("acme/needs-unknown")


@situation("get_kernel: a newer client is required")
def _(setting: Setting) -> object:
    return get("acme/newer")


@situation("get_kernel: a kernel dependency")
def _(setting: Setting) -> object:
    return get("acme/dependent").below.repo_id


@situation("get_kernel: a kernel dependency that is not there")
def _(setting: Setting) -> object:
    return get("acme/dangling")


@situation("get_kernel: kernel dependencies in a circle")
def _(setting: Setting) -> object:
    return get("acme/circle-a")


@situation("get_kernel: a kernel dependency of an untrusted publisher")
def _(setting: Setting) -> object:
    return get("acme/trusting")


@situation("get_kernel: RuntimeError in the kernel's code")
def _(setting: Setting) -> object:
    return get("acme/raises-runtime")


@situation("get_kernel: ImportError in the kernel's code")
def _(setting: Setting) -> object:
    return get("acme/raises-import")


@situation("get_kernel: SyntaxError in the kernel's code")
def _(setting: Setting) -> object:
    return get("acme/raises-syntax")


@situation("get_kernel: after a failed import, nothing of it is in sys.modules")
def _(setting: Setting) -> object:
    before = set(sys.modules)
    try:
        get("acme/raises-runtime")
    except Exception:  # noqa: BLE001 - whatever it is
        pass
    return sorted(name for name in set(sys.modules) - before if name.startswith("_raises"))


@situation("get_kernel: an older version than the newest")
def _(setting: Setting) -> object:
    return get("acme/versions", version=1).version


@situation("get_kernel: a build from a dirty tree")
def _(setting: Setting) -> object:
    return get("acme/dirty").repo_id


@situation("get_kernel: a repository that has moved")
def _(setting: Setting) -> object:
    return get("acme/moved").repo_id


@situation("get_kernel: repositories that redirect to each other")
def _(setting: Setting) -> object:
    return get("acme/loop-a")


@situation("get_kernel: the Hub refuses the token")
def _(setting: Setting) -> object:
    return get("acme/refused")


@situation("get_kernel: the Hub forbids the repository")
def _(setting: Setting) -> object:
    return get("acme/forbidden")


@situation("get_kernel: gated files")
def _(setting: Setting) -> object:
    return get("acme/gated")


@situation("get_kernel: offline, downloaded before")
def _(setting: Setting) -> object:
    get()
    setting.offline()
    return get(version=None, revision=setting.commits["acme/relu@v1"]).version


@situation("get_kernel: offline, a version that was never downloaded")
def _(setting: Setting) -> object:
    setting.offline()
    return get()


@situation("get_kernel: offline, a revision that was never downloaded")
def _(setting: Setting) -> object:
    setting.offline()
    return get(version=None, revision="v1")


@situation("get_kernel: LOCAL_KERNELS")
def _(setting: Setting) -> object:
    os.environ["LOCAL_KERNELS"] = f"other/name={setting.local('acme/relu')}"
    return get("other/name").repo_id


@situation("get_kernel: LOCAL_KERNELS without a path")
def _(setting: Setting) -> object:
    os.environ["LOCAL_KERNELS"] = "other/name"
    return get("other/name")


@situation("get_kernel: LOCAL_KERNELS names a folder that is not there")
def _(setting: Setting) -> object:
    os.environ["LOCAL_KERNELS"] = f"other/name={setting.own / 'none'}"
    return get("other/name")


@situation("get_kernel: user_agent as a dict")
def _(setting: Setting) -> object:
    return get(user_agent={"app": "test"}).version
