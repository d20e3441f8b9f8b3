"""hatchling puts a project's lock into `<name>.dist-info/`: the build hook `[tool.hatch.build.hooks.kernels]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from kernels.wheel_hooks import shipment

__all__ = ["LockHook", "hatch_register_build_hook"]


class LockHook(BuildHookInterface[Any]):
    """The build hook."""

    PLUGIN_NAME = "kernels"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the lock, and the hashes beside it, to a wheel.

        Args:
            version: What kind of wheel is built: `standard` or `editable`.
            build_data: What hatchling puts into it.

        Raises:
            RequestError: The project's table of kernels is not what is allowed.
            LockError: Its lock cannot be read.
        """
        if self.target_name != "wheel":  # an sdist has all files of the project
            return
        found = shipment(Path(self.root))
        for warning in found.warnings:
            self.app.display_warning(warning)
        # hatchling's own place for more metadata is a folder below, `extra_metadata`, where other clients do not look.
        folder = f"{self.build_config.builder.artifact_project_id}.dist-info"
        included = {str(file): f"{folder}/{name}" for name, file in found.files.items()}
        build_data["force_include"].update(included)
        if build_data.get("force_include_editable"):  # another hook's: then it alone counts
            build_data["force_include_editable"].update(included)


@hookimpl
def hatch_register_build_hook() -> type[LockHook]:
    """Tell hatchling of the hook."""
    return LockHook
