"""Check a licence's SPDX identifier. Another name is only mentioned, as published kernels have such names."""

from __future__ import annotations

from kernels.support.formatting import format_value

__all__ = ["license_problem"]

#: The longest expression that is checked.
_MAX_LENGTH = 1000


def license_problem(license: str) -> str | None:
    """The problem of a licence's name, a clause to append to a message; None if it is valid or cannot be checked.

    Args:
        license: The `license` of a build.toml or a build's metadata.

    Example:
        >>> license_problem("apache-2.0") is license_problem("MIT OR LicenseRef-ours") is None
        True
    """
    try:
        from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
    except ImportError:  # packaging before 24.2
        return None
    try:
        # packaging compiles it as a Python expression, whose depth is limited.
        if len(license) > _MAX_LENGTH:
            raise InvalidLicenseExpression
        canonicalize_license_expression(license)
    except (InvalidLicenseExpression, LookupError, ValueError, RecursionError, MemoryError):
        return (
            f"`license` is {format_value(license)}, which is no SPDX expression: use one such as Apache-2.0 "
            "(https://spdx.org/licenses/), or LicenseRef-<name> for another licence"
        )
    return None
