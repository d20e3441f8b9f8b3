"""Put a project's lockfile into `<name>.dist-info/` with hatchling: `[tool.hatch.build.hooks.kernels]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from kernels.wheel_hooks import wheel_files

__all__ = ["LockHook", "hatch_register_build_hook"]


class LockHook(BuildHookInterface[Any]):
    """The build hook."""

    PLUGIN_NAME = "kernels"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the lockfile, and the hashes beside it, to a wheel.

        Args:
            version: The kind of wheel: `standard` or `editable`.
            build_data: The wheel's content, which this changes.

        Raises:
            RequestError: The project's table of kernels is not valid.
            LockError: Its lockfile cannot be read.
        """
        if self.target_name != "wheel":  # an sdist has all files of the project
            return
        found = wheel_files(Path(self.root))
        for warning in found.warnings:
            self.app.display_warning(warning)
        # hatchling's `extra_metadata` is a folder below, where other clients do not look.
        folder = f"{self.build_config.builder.artifact_project_id}.dist-info"
        included = {str(file): f"{folder}/{name}" for name, file in found.files.items()}
        build_data["force_include"].update(included)
        if build_data.get("force_include_editable"):  # from another hook: it then replaces `force_include`
            build_data["force_include_editable"].update(included)


@hookimpl
def hatch_register_build_hook() -> type[LockHook]:
    """Register the hook."""
    return LockHook
