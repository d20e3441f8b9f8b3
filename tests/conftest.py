"""Fixtures for every test; the modules they come from lie in tests/support (on pytest's `pythonpath`)."""

from __future__ import annotations

from hub_fixtures import hub, isolated_env, quick_retries

__all__ = ["hub", "isolated_env", "quick_retries"]
