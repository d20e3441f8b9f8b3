"""Tune configurations and heuristics of Triton kernels, for this machine's hardware.

A kernel asks for the configurations that its vendor, or its user, has found to be fast:

    @triton.autotune(configs=get_configs("mm"), key=["M", "N", "K"])
    @triton.heuristics(get_heuristics("mm"))
    @triton.jit
    def mm_kernel(...): ...

Searched are, in this order: the files and folders that `KERNELS_TUNE_PATH` names; the folder of the backend's vendor
(`Backend.folder`); the calling kernel's own folder; and what the caller gives as `default=`. The first that has the
operator gives the whole answer, and the answer's `origin` says which it was.

A folder has `tune_configs.yaml` and `heuristics_config_utils.py`, in the form that FlagGems gave them:

    mm:                              # an operator: a list of configurations
      - META: {BLOCK_M: 64, BLOCK_N: 128}
        num_warps: 4                 # left out: 4
        num_stages: 3                # left out: 2
        num_ctas: 1                  # left out: 1
        maxnreg: 128                 # any further argument of the installed `triton.Config`
    softmax:
      - gen: true                    # every combination of what the parameters may be
        param_map:
          META:
            TILE_M: tile_m           # one of the list of that name
            TILE_N: [32, 64]         # one of these
            ROWS: 2                  # always this
          num_warps: warps
        tile_m: [1, 2]
        warps: [4, 8]
    attention:
      - gen: true
        param_map: {META: metas, num_warps: [4, 8]}
        metas:                       # whole ones to choose from
          - {BLOCK_M: 64, BLOCK_N: 128}
          - {BLOCK_M: 128, BLOCK_N: 64}
    archs:                           # no operator: a section for an architecture goes before the rest
      "9.0":
        mm:
          - META: {BLOCK_M: 128, BLOCK_N: 256}
            num_warps: 8

Combinations come in the order of `itertools.product` over META's parameters and then the others, as they are written.
An architecture's section has the name its backend gives the architecture. It holds for one operator at a time: what it
does not have is taken from the rest of the file. Where no section has the name of the device's architecture, the one
for which a build would run on the device (`Backend.arch_reason`) is taken; of several, the nearest.

Files are read again when they change.
"""

from __future__ import annotations

from kernels.tuning.config_sources import TuneOrigin
from kernels.tuning.entries import TuneEntry, TuneFile, read_configs
from kernels.tuning.lookup import Configs, Heuristics, get_configs, get_heuristics

__all__ = [
    "Configs",
    "Heuristics",
    "TuneEntry",
    "TuneFile",
    "TuneOrigin",
    "get_configs",
    "get_heuristics",
    "read_configs",
]
