"""The order of a queue, and what a controller cannot do alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.stacks import stack_from
from tpuctl.errors import Usage
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.queue.enqueue import require_unattended
from tpuctl.model.events import Note, StepStarted, WarningIssued
from tpuctl.model.jobs.queue import QueuePlace, in_order, open_jobs
from tpuctl.model.status.activity import MAX_LENGTH, activity_of

HEAD = "stack: one\nproject: {id: my-project}\n"
TPU = "tpu: {type: v5litepod-1}\n"


def test_order_is_started_then_priority_then_submission() -> None:
    places = [
        QueuePlace("running", 4, -5, is_started=True),
        QueuePlace("urgent", 3, 10),
        QueuePlace("first", 0),
        QueuePlace("second", 2),
        QueuePlace("late", 1, -1),
    ]
    shuffled = random.sample(places, len(places))
    assert in_order(shuffled) == places


def test_job_is_open_from_its_record_to_its_end() -> None:
    names = [
        "tpuctl/jobs/a/job.json",
        "tpuctl/jobs/b/job.json",
        "tpuctl/jobs/b/start.json",
        "tpuctl/jobs/c/job.json",
        "tpuctl/jobs/c/start.json",
        "tpuctl/jobs/c/ended.json",
        "tpuctl/jobs/d/start.json",
        "tpuctl/jobs/a/attempts/1/ended.json",
    ]
    assert open_jobs(names) == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("text", "problem", "where"),
    [
        (TPU, "has no controller", "controller"),
        (
            f"{TPU}controller: {{}}\njob: {{retries: {{preemption: 0, infrastructure: 0, "
            "requested: 0}}\n",
            "retries are all 0",
            "controller",
        ),
        (
            "tpu: {type: v3-8, kind: node}\ncontroller: {}\n",
            "account of a TPU node",
            "tpu.kind",
        ),
        (
            f"{TPU}controller: {{}}\njob: {{secrets: {{TOKEN: 'env:HERE', OTHER: secret:x}}}}\n",
            "TOKEN: the controller",
            "job.secrets",
        ),
    ],
)
def test_controller_cannot_go_on_without_this_computer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str, where: str
) -> None:
    monkeypatch.setenv("HERE", "not-to-be-shown")
    stack = stack_from(tmp_path, HEAD + text)
    with pytest.raises(Usage, match=problem) as caught:
        require_unattended(stack, Submission.of(stack, None, form="module", program="train"))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.where == where
    assert diagnostic.hint
    assert "not-to-be-shown" not in str(caught.value)


def test_activity_is_one_line_of_what_goes_on() -> None:
    problem: Any = WarningIssued(Usage("No capacity", "in a\nin b").diagnostics[0])
    assert activity_of(StepStarted("node/one", "create")) == "create node/one"
    assert activity_of(Note("\nFirst.\nSecond.")) == "First."
    assert activity_of(problem) == "No capacity: in a"
    assert len(activity_of(Note("x" * 1000))) == MAX_LENGTH
