"""Fixtures for every test; the modules they come from lie in tests/fixtures (on pytest's `pythonpath`)."""

from __future__ import annotations

import signal
import threading
from importlib.util import find_spec

from hub_fixtures import hub, isolated_env, quick_retries
from process_fixtures import brief_waits, each_environment, new_process, no_secrets, on_the_processor
from s3_server import s3_environment, s3_server
from torch_environments import older_torch
from writable_hub import writable_hub

__all__ = [
    "brief_waits",
    "each_environment",
    "hub",
    "isolated_env",
    "new_process",
    "no_secrets",
    "older_torch",
    "on_the_processor",
    "quick_retries",
    "s3_environment",
    "s3_server",
    "writable_hub",
]

if threading.current_thread() is threading.main_thread():
    # A shell lets what it starts in the background ignore Ctrl-C, and children inherit that: tests that interrupt one
    # would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # On a machine with other work any example may take long: time is no property that these tests are about.
    settings.register_profile("kernels", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("kernels")
