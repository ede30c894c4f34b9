"""Restoring checkpoints with damaged files or from another run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


def test_only_complete_checkpoints_are_restored(run_forked_check: Callable[..., None]) -> None:
    run_forked_check("checkpoints.py")


@pytest.mark.soak
def test_repeated_kills_during_save(run_forked_check: Callable[..., None]) -> None:
    run_forked_check("checkpoints.py", KILLS="6")
