"""Publish a kernel's builds to a Hub."""

from __future__ import annotations

from kernels.authoring.publish.local_builds import read_builds
from kernels.authoring.publish.model_card import kernel_card
from kernels.authoring.publish.upload import Upload, upload_kernel

__all__ = ["Upload", "kernel_card", "read_builds", "upload_kernel"]
