"""Which checkpoint is taken up, whatever befell its files or whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


def test_only_complete_checkpoints_are_taken_up(run_check: Callable[[str], None]) -> None:
    run_check("checkpoints.py")


@pytest.mark.soak
@pytest.mark.release("more kills than `make test` has, in the same way")
def test_many_kills_in_the_midst_of_a_save(
    run_check: Callable[[str], None], job_environment: dict[str, str]
) -> None:
    job_environment["KILLS"] = "6"
    run_check("checkpoints.py")
