"""The result of a run, loaded as users load it, and its one-line errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


@pytest.mark.soak
def test_result_and_errors(run_forked_check: Callable[..., None]) -> None:
    run_forked_check("result.py")
