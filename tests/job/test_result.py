"""What a run leaves, loaded as anybody would, and the one line that each error is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


@pytest.mark.soak
def test_result_and_errors(run_check: Callable[[str], None]) -> None:
    run_check("result.py")
