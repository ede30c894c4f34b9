"""A training step on one device and on two, in a Python that has TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


@pytest.mark.soak
def test_step_on_one_and_two_devices(run_forked_check: Callable[..., None]) -> None:
    run_forked_check("step.py")
