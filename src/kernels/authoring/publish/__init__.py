"""Publish a kernel's builds to a Hub."""

from __future__ import annotations

from kernels.authoring.publish.local_builds import read_builds
from kernels.authoring.publish.preview import preview_card
from kernels.authoring.publish.result import FileChange, Upload
from kernels.authoring.publish.upload import upload_kernel

__all__ = ["FileChange", "Upload", "preview_card", "read_builds", "upload_kernel"]
