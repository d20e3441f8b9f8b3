"""A YAML file of a vendor or a kernel, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernels.errors import RequestError
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import format_text

__all__ = ["Scalar", "read_yaml"]

#: A value that contains no other.
Scalar = bool | int | float | str | None

#: Five times the largest `tune_configs.yaml` of FlagGems; PyYAML takes some seconds for more.
_MAX_BYTES = 128 * 1024


def read_yaml(path: Path) -> Any:
    """The one value that a YAML file holds, as `yaml.safe_load` reads it.

    Args:
        path: The file.

    Returns:
        The value, or None when the file is empty.

    Raises:
        RequestError: The file cannot be read, is too large, or is not YAML of plain values.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "sizes.yaml")
        >>> _ = file.write_text("mm:\\n  block: 64\\n")
        >>> read_yaml(file)
        {'mm': {'block': 64}}
    """
    import yaml

    try:
        return yaml.safe_load(read_bounded(path, _MAX_BYTES).decode("utf-8-sig"))
    except FileTooLarge:
        raise RequestError(f"{path} has more than {_MAX_BYTES} bytes, the limit for a YAML file.") from None
    except NotRegularFile:
        raise RequestError(f"{path} is not a file; expected a YAML file.") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(f"{path} is not YAML: {format_text(' '.join(str(error).split()))}.") from None
