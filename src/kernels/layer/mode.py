"""The modes of a kernelized model, and which registered mode serves which."""

from __future__ import annotations

from enum import Flag

from kernels.errors import RequestError
from kernels.support.formatting import nearest_name, wrong_type

__all__ = ["REGISTERED_MODES", "KernelizeFallback", "Mode", "mode_meant", "serving_modes"]


class Mode(Flag):
    """What a model is used for: flags that combine, such as `Mode.TRAINING | Mode.TORCH_COMPILE`.

    `mode & ~Mode.TORCH_COMPILE` removes a flag: `~` gives a mask, which is not a mode by itself.

    Attributes:
        INFERENCE: The model only runs forward.
        TRAINING: The model is trained, so its layers need a backward pass. Excludes INFERENCE.
        TORCH_COMPILE: The model is compiled with `torch.compile`.
        FALLBACK: In a mapping only, and alone: the kernel that serves if no other mode does.

    Raises:
        RequestError: The flags exclude each other.

    Example:
        >>> Mode.TORCH_COMPILE in Mode.INFERENCE | Mode.TORCH_COMPILE
        True
    """

    FALLBACK = 1
    TRAINING = 2
    INFERENCE = 4
    TORCH_COMPILE = 8

    def __or__(self, other: Mode) -> Mode:
        return _combined(super().__or__(other))

    def __xor__(self, other: Mode) -> Mode:
        return _combined(super().__xor__(other))

    def __invert__(self) -> Mode:
        # Python 3.10 would combine it with `|`, which refuses most results.
        return Mode(sum(flag.value for flag in Mode) & ~self.value)

    def __str__(self) -> str:
        return " | ".join(flag.name or "" for flag in Mode if flag in self) or "NONE"


def _combined(mode: Mode) -> Mode:
    if not isinstance(mode, Mode):
        return NotImplemented
    if Mode.INFERENCE in mode and Mode.TRAINING in mode:
        raise RequestError("Mode.INFERENCE and Mode.TRAINING are mutually exclusive.")
    if Mode.FALLBACK in mode and mode != Mode.FALLBACK:
        raise RequestError("Mode.FALLBACK cannot be combined with other modes: it includes all of them.")
    return mode


class KernelizeFallback(Flag):
    """In which cases a layer may keep its own forward instead of an error.

    Attributes:
        NONE: Never.
        NO_LAYER: No kernel is mapped to the layer, or the kernel is not for its forward.
        NO_DEVICE: No kernel is mapped for the type of its device.
        NO_COMPATIBLE_PROPERTIES: No kernel is mapped for the properties of its device.
        NO_COMPATIBLE_MODE: No kernel is mapped for the mode, or the kernel's layer does not support it.
        CANNOT_LOAD: The kernel cannot be found, or no build of it suits this machine (`FileNotFoundError`).
        DEFAULT: All but CANNOT_LOAD.
        ALL: All of them.

    Example:
        >>> KernelizeFallback.CANNOT_LOAD in KernelizeFallback.DEFAULT
        False
    """

    NONE = 0
    NO_LAYER = 1
    NO_DEVICE = 2
    NO_COMPATIBLE_PROPERTIES = 4
    NO_COMPATIBLE_MODE = 8
    CANNOT_LOAD = 16

    DEFAULT = NO_LAYER | NO_DEVICE | NO_COMPATIBLE_PROPERTIES | NO_COMPATIBLE_MODE
    ALL = DEFAULT | CANNOT_LOAD


_INFERENCE_COMPILE = Mode.INFERENCE | Mode.TORCH_COMPILE
_TRAINING_COMPILE = Mode.TRAINING | Mode.TORCH_COMPILE

# A kernel that supports more (backward, compile) serves too, the nearest first.
_SERVING: dict[Mode, tuple[Mode, ...]] = {
    Mode.INFERENCE: (Mode.INFERENCE, _INFERENCE_COMPILE, Mode.TRAINING, _TRAINING_COMPILE, Mode.FALLBACK),
    Mode.TRAINING: (Mode.TRAINING, _TRAINING_COMPILE, Mode.FALLBACK),
    _INFERENCE_COMPILE: (_INFERENCE_COMPILE, _TRAINING_COMPILE, Mode.FALLBACK),
    _TRAINING_COMPILE: (_TRAINING_COMPILE, Mode.FALLBACK),
}

#: The modes that a kernel can be registered for, each once.
REGISTERED_MODES: tuple[Mode, ...] = tuple(dict.fromkeys(mode for serving in _SERVING.values() for mode in serving))


def mode_meant(value: object) -> str:
    """The mode that is meant by its name, as text, or "".

    Example:
        >>> mode_meant("inference"), mode_meant("INFERENSE"), mode_meant(3)
        ('Mode.INFERENCE', 'Mode.INFERENCE', '')
    """
    name = nearest_name(value, [mode.name or "" for mode in Mode])
    return "" if name is None else f"Mode.{name}"


def serving_modes(mode: Mode) -> tuple[Mode, ...]:
    """The registered modes that can serve a requested one, best first.

    Raises:
        TypeError: `mode` is not a `Mode`.
        RequestError: A model cannot be kernelized for this mode.

    Example:
        >>> [str(each) for each in serving_modes(Mode.TRAINING)]
        ['TRAINING', 'TRAINING | TORCH_COMPILE', 'FALLBACK']
    """
    if not isinstance(mode, Mode):
        raise wrong_type("mode", f"a Mode such as {mode_meant(mode) or 'Mode.INFERENCE'}", mode)
    serving = _SERVING.get(mode)
    if serving is not None:
        return serving
    if Mode.FALLBACK in mode:
        raise RequestError(f"`mode` is {mode}; Mode.FALLBACK can only be used to register kernel mappings.")
    raise RequestError(f"`mode` is {mode}; it must contain Mode.INFERENCE or Mode.TRAINING, and not both.")
