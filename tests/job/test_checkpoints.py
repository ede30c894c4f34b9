"""Restoring checkpoints with damaged files or from another run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


def test_only_complete_checkpoints_are_restored(run_check: Callable[[str], None]) -> None:
    run_check("checkpoints.py")


@pytest.mark.soak
@pytest.mark.release("more kills than `make test` has, in the same way")
def test_repeated_kills_during_save(
    run_check: Callable[[str], None], job_environment: dict[str, str]
) -> None:
    job_environment["KILLS"] = "6"
    run_check("checkpoints.py")
