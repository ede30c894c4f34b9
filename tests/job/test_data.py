"""Vocabulary, records and network, in a Python that has TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


def test_tensorflow_reads_records(run_forked_check: Callable[..., None]) -> None:
    run_forked_check("data.py")


@pytest.mark.soak
def test_network_loss_and_optimizer(run_forked_check: Callable[..., None]) -> None:
    run_forked_check("network.py")
