"""The stack of `make live`, brought up once for all its tests on the configured cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.harness.live import Live
from tests.live.harness.settings import Settings

# The settings file of the run, set by `make live`; without it the tests need no cloud.
RUN = os.environ.get("TPUCTL_LIVE_RUN")
collect_ignore = [] if RUN else ["test_stack.py"]


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The run, before anything is created."""
    assert RUN is not None
    yield Live(Settings.load(Path(RUN)))


@pytest.fixture(scope="session")
def stack(live: Live) -> Live:
    """The run, with its stack up. If `up` fails, all tests that need the stack fail."""
    live.up()
    return live
