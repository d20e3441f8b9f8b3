"""What to do about failures of compilers whose own messages do not say it: a missing package, a host compiler."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["advice_for"]

#: Headers of libraries, and the Python package that has them, for CUDA 13; for CUDA 12 it ends in `-cu12`.
_PACKAGES = {
    r"cublas\w*\.h": "nvidia-cublas",
    r"curand\w*\.h": "nvidia-curand",
    r"cusparse\w*\.h": "nvidia-cusparse",
    r"cusolver\w*\.h": "nvidia-cusolver",
    r"cufft\w*\.h": "nvidia-cufft",
    r"nvrtc\.h": "nvidia-cuda-nvrtc",
    r"nvJitLink\.h": "nvidia-nvjitlink",
    r"(?:nvtx3/|nvToolsExt)[^\s':]*": "nvidia-nvtx",
    r"(?:cub|thrust|cuda/std|nv)/[^\s':]*": "nvidia-cuda-cccl",
    r"crt/[^\s':]*": "nvidia-cuda-crt",
    r"cupti\w*\.h": "nvidia-cuda-cupti",
}

#: Headers of ROCm's libraries, and what follows in the output of its compiler.
_ROCM_LIBRARIES = (
    (r"(?:hip(?:cub|blas|fft|rand|solver|sparse)|roc(?:blas|prim|rand|thrust|wmma))\w*[/.][^\s':]*", ""),
    (r"thrust/[^\s':]*", r"[\s\S]*when compiling for gfx"),
)

_CCBIN = "name an older one with NVCC_CCBIN (g++-13, for example), or install a newer CUDA toolkit"
_ONE_VERSION = (
    "The parts of the CUDA toolkit are of different versions. Install one version of all: pip install "
    "'nvidia-cuda-nvcc==X.Y.*' 'nvidia-cuda-crt==X.Y.*' 'nvidia-nvvm==X.Y.*' 'nvidia-cuda-runtime==X.Y.*', with the "
    "X.Y of Torch's CUDA."
)
_MISSING = r"fatal error: '?({})'?(?:: No such file or directory| file not found)"


def _in_package(package: str) -> Callable[[re.Match[str]], str]:
    return lambda match: (
        f"{match[1]} is not in the CUDA toolkit: install the rest of it, or pip install {package} (CUDA 12: "
        f"{package}-cu12)."
    )


def _of_rocm(match: re.Match[str]) -> str:
    return (
        f"{match[1]} is in a library of ROCm that is not installed: install ROCm's libraries for developers (Ubuntu: "
        "apt-get install rocm-dev hipcub-dev rocthrust-dev hipblas-dev hipsparse-dev hipsolver-dev)."
    )


def _of_processor(match: re.Match[str]) -> str:
    flag = match["flag"] or f"-march={match['value']}"
    return (
        f"{flag} is for another processor than this machine's, or for a newer compiler: build the kernel on a machine "
        "with that processor, or install a newer compiler."
    )


def _as_is(advice: str) -> Callable[[re.Match[str]], str]:
    return lambda match: advice


_KNOWN: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    # crt/host_config.h of the toolkit
    (
        r"unsupported GNU version! gcc versions later than ([0-9]+) are not supported",
        lambda match: f"This CUDA toolkit compiles with GCC {match[1]} at most: {_CCBIN}.",
    ),
    (
        r"unsupported clang version! clang version must be less than ([0-9]+)",
        lambda match: f"This CUDA toolkit compiles with a Clang before {match[1]}: {_CCBIN}.",
    ),
    (r"CUDA compiler and CUDA toolkit headers are incompatible", _as_is(_ONE_VERSION)),
    (r"ptxas fatal\s*: Unsupported \.version", _as_is(_ONE_VERSION)),
    (
        r"(?:cicc|libnvvm)\S*: (?:not found|No such file)",
        _as_is("nvcc has no cicc: install the whole CUDA toolkit, or pip install nvidia-nvvm of nvcc's version."),
    ),
    (
        _MISSING.format(r"cuda(?:_runtime\w*|_fp16|_bf16|_fp8)?\.h"),
        _as_is(
            "The CUDA toolkit was not found, or has no headers: install it, or set CUDA_HOME to its folder. `kernels "
            "doctor` shows which one is used."
        ),
    ),
    # Torch's headers include thrust's, which is a library of ROCm too.
    *((_MISSING.format(header) + end, _of_rocm) for header, end in _ROCM_LIBRARIES),
    *((_MISSING.format(header), _in_package(package)) for header, package in _PACKAGES.items()),
    (
        _MISSING.format(r"hip/\S+"),
        _as_is(
            "ROCm was not found, or has no headers: install it, or set ROCM_PATH to its folder. `kernels doctor` shows "
            "which one is used."
        ),
    ),
    # GCC and Clang, each with a value of another processor and with an option of one.
    (
        r"(?:bad value|unsupported argument) .(?P<value>[a-z0-9.+-]+). (?:for|to option) .-m(?:arch|cpu)="
        r"|(?:unrecognized command-line option|unsupported option) .(?P<flag>-m[a-z0-9=.+-]+)",
        _of_processor,
    ),
    (
        _MISSING.format(r"Python\.h"),
        _as_is(
            "This Python has no headers: install them (Debian: apt-get install python3-dev), or include registration.h."
        ),
    ),
)


def advice_for(output: str) -> str:
    """What to do about a compiler's failure, in a line; "" if its output is not a known one.

    Args:
        output: What the compiler printed.

    Example:
        >>> advice_for("a.cpp:1:10: fatal error: curand.h: No such file or directory")[:38]
        'curand.h is not in the CUDA toolkit: i'
        >>> advice_for("a.cpp:1:1: error: expected unqualified-id")
        ''
    """
    found = [(match.start(), advice(match)) for pattern, advice in _KNOWN if (match := re.search(pattern, output))]
    return min(found)[1] if found else ""  # the first failure has caused the others
