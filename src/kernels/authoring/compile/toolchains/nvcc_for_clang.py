"""nvcc's command lines as clang reads them: editors stand on clang, which stops at options that it does not have."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.authoring.compile.toolchains import cuda_folders

__all__ = ["clang_command"]

#: Options of nvcc that clang has too: the first also with their value as the next word.
_WITH_VALUE = ("-D", "-U", "-I", "-isystem", "-include")
_KEPT = (*_WITH_VALUE, "-std=", "--std=", "-O", "-g", "-W", "-w", "-f", "-m")

#: Options of nvcc that begin like a kept one, and are others in clang or none.
_DROPPED = ("-gencode", "-maxrregcount", "-fmad", "-ftz", "-forward-", "-m32", "-m64", "-Werror=", "-G")


def clang_command(command: Sequence[str], compiler: Sequence[str]) -> list[str]:
    """A command line of nvcc as clang reads it.

    Args:
        command: The command line, with the source and the object.
        compiler: The beginning of it that runs nvcc.

    Returns:
        The command line of the host's part. It reads device code too, and is the same for all architectures, of which
        clang knows fewer than nvcc.

    Example:
        >>> line = ["/x/nvcc", "--threads=0", "-Xcompiler=-fPIC,-Wall", "-DA", "-c", "a.cu"]
        >>> clang_command(line, line[:1])[-5:]
        ['-fPIC', '-Wall', '-DA', '-c', 'a.cu']
    """
    toolkit = cuda_folders.nvcc_folders(tuple(compiler))
    result = ["clang++", "-x", "cuda", "--cuda-host-only", f"--cuda-path={toolkit.root}", "-Wno-unknown-cuda-version"]
    result += [flag for folder in toolkit.include for flag in ("-isystem", str(folder))]
    words = iter(command[len(compiler) :])
    for word in words:
        name, _, value = word.partition("=")
        if name in ("-Xcompiler", "--compiler-options"):
            result += (value or next(words, "")).split(",")
        elif word in ("-c", "-o") or word in _WITH_VALUE:
            result += [word, next(words, "")]
        elif word.startswith(_KEPT) and not word.startswith(_DROPPED):
            result.append(word)
    return result
