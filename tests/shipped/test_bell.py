"""Which events the record of a worker stands for."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.jobs.shipped.notifications import bell

ALONE: dict[str, Any] = {"worker": 0, "start_barrier": None}
FIRST = {"worker": 0, "start_barrier": {"workers": [0, 1]}}
SECOND = {"worker": 1, "start_barrier": {"workers": [0, 1]}}


def record(state: str, **more: Any) -> dict[str, Any]:
    return {"state": state, "attempt": 1, "hang": None, "detail": "why", "cause": "", **more}


@pytest.mark.parametrize(
    ("spec", "worker_record", "is_first_end", "event"),
    [
        (ALONE, record("preparing"), False, ""),
        (ALONE, record("running"), False, ""),
        (ALONE, record("running", attempt=2), False, "recovered"),
        (SECOND, record("running", attempt=2), False, ""),
        (FIRST, record("running", hang={"worker": 0, "detail": "no step"}), False, "hung"),
        (FIRST, record("running", hang={"worker": 1, "detail": "no step"}), False, ""),
        (SECOND, record("running", hang={"worker": 1, "detail": "no step"}), False, "hung"),
        (FIRST, record("succeeded"), False, "ended"),
        (SECOND, record("succeeded"), False, "ended"),
        (SECOND, record("failed"), True, "failed"),
        (FIRST, record("failed"), False, ""),
        (FIRST, record("timed_out"), True, "failed"),
        (FIRST, record("lost"), True, "failed"),
        (FIRST, record("stopped"), True, ""),
    ],
)
def test_event_of_record(
    spec: dict[str, Any], worker_record: dict[str, Any], is_first_end: bool, event: str
) -> None:
    assert bell.event_of(worker_record, spec, is_first_end).get("event", "") == event


@pytest.mark.parametrize(
    ("others", "rings"),
    [
        ((), False),
        (("succeeded",), False),
        (("succeeded", "running"), False),
        (("succeeded", "failed"), False),
        (("succeeded", "succeeded"), True),
    ],
)
def test_job_has_ended_once_all_workers_have(others: tuple[str, ...], rings: bool) -> None:
    class Bucket:
        def read(self, name: str) -> Any:
            worker = int(name.removeprefix("a/worker-").removesuffix(".json"))
            assert worker != 1, "its own record is known"
            states = dict(zip((0, 2), others, strict=False))
            return {"state": states[worker]} if worker in states else None

    spec = {"worker": 1, "prefix": "a", "start_barrier": {"workers": [0, 1, 2]}}
    job_bell = bell.JobBell("", {**spec, "notify": {"on": ["ended"]}}, Bucket())
    rung: list[str] = []
    job_bell.ring = lambda record, event: rung.append(event["event"])  # type: ignore[method-assign]
    job_bell.update(record("succeeded"))
    assert rung == ["ended"] * rings


@pytest.mark.parametrize(("down_count", "is_taken_down"), [(3, False), (4, True), (None, True)])
def test_shutdown_by_down_is_no_news(
    down_count: int | None, is_taken_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bucket:
        def read(self, name: str) -> Any:
            return None if down_count is None else {"down_count": down_count}

    settings = {"on": ["failed"], "down_count": 3, "stack_record": "record.json"}
    job_bell = bell.JobBell("", {**ALONE, "notify": settings}, Bucket())
    ended = record("failed", cause="terminated")
    monkeypatch.setattr(bell, "is_preempted", lambda: False)
    assert job_bell.is_news(ended, bell.event_of(ended, ALONE, True)) is not is_taken_down
    monkeypatch.setattr(bell, "is_preempted", lambda: True)
    event = bell.event_of(ended, ALONE, True)
    assert not job_bell.is_news(ended, event), "preempted is not among the events"
    assert event["event"] == "preempted"
