"""What `autotune` decided, in the cache and in the project's file: whether it is for this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernels import settings
from kernels.diagnosis.finding import Findings
from kernels.errors import LockError, RequestError
from kernels.layer.device import ModuleDevice
from kernels.layer.tuned import AUTOTUNE_FILE, TunedLayer, cached_tuned, machine_facts, read_tuned
from kernels.resolver.find_lock import AT_A_TERMINAL, places_of
from kernels.resolver.target import Target
from kernels.support.formatting import plural

__all__ = ["check_autotune"]

_MEASURE = "Measure on this machine: kernels.autotune(model, …)"


def check_autotune() -> Findings:
    """Whether the decisions of `autotune` count, can be read, and were made for this machine."""
    found = Findings("autotune")
    try:
        ignored = settings.autotune_ignored()
        named, cached = settings.lock_file(), cached_tuned()
    except RequestError:  # reported with the variables
        return found
    if ignored:
        found.note("KERNELS_AUTOTUNE=off: kernelize ignores what autotune measured.", "Unset it to use that.")
        return found
    # Where a lockfile is looked for.
    places = places_of(AT_A_TERMINAL) if named is None else (str(named),)
    files = (os.path.join(os.path.dirname(place), AUTOTUNE_FILE) for place in places)
    try:
        path = next(filter(os.path.lexists, files), None)
        saved = [] if path is None else read_tuned(Path(path))
    except (LockError, RequestError) as error:
        found.problem(str(error), "Save it again, or remove it: report.save(…) of the report of autotune writes it.")
    else:
        use = f"Use it: kernelize(model, autotuned={AUTOTUNE_FILE!r})."
        _check_fit(found, str(path), saved, use, f"{_MEASURE}, and save the report.")
    unusable = sum(each is None for each in cached.values())
    if unusable:
        found.problem(
            f"Ignored {plural(unusable, 'decision')} of autotune in the cache: damaged, or of another user.",
            "Show and remove them: kernels cache autotune --remove",
        )
    known = [each for each in cached.values() if each is not None]
    _check_fit(found, "the cache", known, "kernelize uses them; to show them: kernels cache autotune", f"{_MEASURE}.")
    return found


def _check_fit(found: Findings, where: str, layers: Sequence[TunedLayer], use: str, measure: str) -> None:
    target = Target.current()
    if not layers or target.torch is None:
        return
    usable = target.torch_backends
    devices = [ModuleDevice(each.backend, each.index) for each in target.devices if each.backend in usable]
    here = [machine_facts(each) for each in (*devices, ModuleDevice("cpu", None))]
    misfits = list(filter(None, (_misfit(each.facts, here) for each in layers)))
    count = f"{plural(len(layers), 'decision')} of autotune in {where}"
    if not misfits:
        found.note(f"{count}, for this machine.", use)
    elif len(misfits) < len(layers):
        found.note(f"{count}, {len(misfits)} of them not for this machine: {misfits[0]}.", measure)
    else:
        found.note(f"{count}, none for this machine: {misfits[0]}.", measure)


def _misfit(facts: dict[str, str], here: Sequence[dict[str, str]]) -> str:
    """In what a decision differs from the nearest device of this machine; empty where it fits one."""
    names = {"device": "device", "arch": "architecture", "torch": "Torch", "backend": "backend version"}
    differences = [
        [
            f"{name} {facts.get(key) or 'none'}, here {each[key] or 'none'}"
            for key, name in names.items()
            if facts.get(key) != each[key]
        ]
        for each in here
    ]
    return "; ".join(sorted(differences, key=len)[0])
