"""Which lines of a log are steps, for the detection of hangs."""

from __future__ import annotations

import pytest

from tpuctl.jobs.shipped.supervision.hang import STEP


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (b'{"step": 1200, "loss": 2.31}', b"1200"),
        (b"{'loss': 2.31, 'step': 7}", b"7"),
        (b"completed step: 12, seconds: 1.203, loss: 10.7", b"12"),  # MaxText
        (b"INFO:tensorflow:global_step = 300 (1.2 sec)", b"300"),
        (b"Step 40/100", b"40"),
        (b"iter 250: loss 3.2, time 100ms", b"250"),  # nanoGPT
        (b"step_time: 12", None),
        (b"batch size: 128", None),
        (b"20 steps per second", None),
        (b"footstep 4", None),
    ],
)
def test_steps_are_recognized(line: bytes, step: bytes | None) -> None:
    match = STEP.search(line)
    assert (match[1] if match else None) == step
