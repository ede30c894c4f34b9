"""What a job's log says that it is doing, in the line below it."""

from __future__ import annotations

import pytest

from tpuctl.model.events import LogChunk
from tpuctl.view.progress.status_line import JobActivity


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def activity(clock: Clock, *chunks: bytes) -> JobActivity:
    result = JobActivity(clock)
    offset = 0
    for data in chunks:
        result.feed(LogChunk(0, data, offset))
        offset += len(data)
    return result


def test_preparation_is_named_with_its_duration(clock: Clock) -> None:
    installing = activity(clock, b"tpuctl: installing requi", b"rements.txt\n")
    assert str(installing) == "installing requirements.txt"
    clock.now = 34
    assert str(installing) == "installing requirements.txt, no new output for 34 s"


def test_progress_is_shown_until_output_stops(clock: Clock) -> None:
    training = activity(clock, b"tpuctl: installed\nstep 40 lo", b"ss 1.25\n")
    assert str(training) == "step 40, loss 1.25"
    clock.now = 90
    assert str(training) == "step 40, loss 1.25, no new output for 1:30"


def test_log_without_a_line_is_waited_for(clock: Clock) -> None:
    waiting = JobActivity(clock)
    clock.now = 12
    assert str(waiting) == "waiting for the log 12 s"


def test_silent_script(clock: Clock) -> None:
    silent = activity(clock, b"compiling the training loop\n")
    assert str(silent) == ""
    clock.now = 12
    assert str(silent) == "no new output for 12 s"


def test_next_attempt_begins_again(clock: Clock) -> None:
    job = activity(clock, b"step 40 loss 1.25\n")
    job.feed(LogChunk(0, b"restored\n", 0, attempt=2))
    assert str(job) == ""
    job.feed(LogChunk(0, b"step 30 loss 1.5\n", 9, attempt=2))
    assert str(job) == "step 30, loss 1.5"


def test_only_first_worker_counts(clock: Clock) -> None:
    job = activity(clock, b"step 1 loss 2\n")
    job.feed(LogChunk(1, b"step 9 loss 9\ntpuctl: installing requirements.txt\n", 0))
    assert str(job) == "step 1, loss 2"


def test_foreign_text_is_shown_without_control_characters(clock: Clock) -> None:
    assert "\x1b" not in str(activity(clock, b"tpuctl: \x1b]0;title\x07\x1b[2Jx\n"))
