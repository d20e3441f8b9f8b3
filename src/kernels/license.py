"""Whether a licence is named as SPDX has it: what other tools search by, and people look up.

A name that SPDX does not have is no error, as published kernels have such names; it is mentioned.
"""

from __future__ import annotations

from kernels.wording import shown

__all__ = ["license_problem"]


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
        canonicalize_license_expression(license)
    except InvalidLicenseExpression:
        return (
            f"`license` is {shown(license)}, which is no SPDX expression: use one such as Apache-2.0 "
            "(https://spdx.org/licenses/), or LicenseRef-<name> for a licence of your own"
        )
    return None
