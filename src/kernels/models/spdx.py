"""Whether a licence is named as SPDX has it: what other tools search by, and people look up.

A name that SPDX does not have is no error, as published kernels have such names; it is mentioned.
"""

from __future__ import annotations

from kernels.support.formatting import format_value

__all__ = ["license_problem"]

#: The longest expression that is looked at: SPDX has none with more than a few licences.
_MAX_LENGTH = 1000


def license_problem(license: str) -> str | None:
    """What is wrong with a licence's name, a clause to append to a message; None where nothing is, or nobody can tell.

    Args:
        license: The `license` of a build.toml or a build's metadata.

    Example:
        >>> license_problem("apache-2.0") is license_problem("MIT OR LicenseRef-ours") is None
        True
    """
    try:
        from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
    except ImportError:  # packaging before 24.2, which knows no licences
        return None
    try:
        # It is compiled as a Python expression, whose depth counts.
        if len(license) > _MAX_LENGTH:
            raise InvalidLicenseExpression
        canonicalize_license_expression(license)
    except (InvalidLicenseExpression, LookupError, ValueError, RecursionError, MemoryError):
        return (
            f"`license` is {format_value(license)}, which is no SPDX expression: use one such as Apache-2.0 "
            "(https://spdx.org/licenses/), or LicenseRef-<name> for a licence of your own"
        )
    return None
