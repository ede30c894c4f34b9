"""The stack of `make live`, brought up once for all tests of it, on the cloud that was chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.harness.live import Live
from tests.live.harness.settings import Settings

# `make live` says by this which run it is; without it nothing here speaks to any cloud.
RUN = os.environ.get("TPUCTL_LIVE_RUN")
collect_ignore = [] if RUN else ["test_stack.py"]


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The run, with nothing made yet."""
    assert RUN is not None
    yield Live(Settings.load(Path(RUN)))


@pytest.fixture(scope="session")
def stack(live: Live) -> Live:
    """The run, with its stack up. Where that failed, so does whatever needs it."""
    live.up()
    return live
