"""Commands in hints are completed with the script and the job that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.job_records import job_record
from tpuctl.cli.state import CloudName, State
from tpuctl.errors import Diagnostic
from tpuctl.model.jobs.hint_commands import about_job, with_job, with_script


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({"path": "my model/train.py"}, "run 'my model/train.py'"),
        ({"path": "bert/train.py", "args": ("--steps", "5")}, "run bert/train.py -- --steps 5"),
        ({}, "run train.py"),  # of an earlier version, which did not record the path
        ({"kind": "module", "script": "bert.train", "args": ("x",)}, "run -m bert.train -- x"),
        ({"kind": "shell", "script": "./train.sh", "args": ("x",)}, "run -- ./train.sh x"),
        ({"kind": "notebook"}, "notebook"),
    ],
)
def test_job_is_submitted_again_as_it_was(fields: dict[str, Any], command: str) -> None:
    hint = "Submit it again:\n    tpuctl up\n    tpuctl run SCRIPT"
    expected = f"Submit it again:\n    tpuctl up\n    tpuctl {command}"
    assert about_job(hint, job_record(**fields)) == expected


def test_script_is_checked_without_the_arguments_of_the_job() -> None:
    hint = "Look:\n    tpuctl check SCRIPT\n    tpuctl rehearse --compile SCRIPT"
    job = job_record(path="a/train.py", args=("--steps", "5"))
    expected = "Look:\n    tpuctl check a/train.py\n    tpuctl rehearse --compile a/train.py"
    assert about_job(hint, job) == expected
    text = "SCRIPT is run by tpuctl run SCRIPT.\n    python SCRIPT"
    assert with_script(text, "train.py") == text


@pytest.mark.parametrize(
    ("command", "completed"),
    [
        ("tpuctl logs", "tpuctl logs plum"),
        ("tpuctl logs --all-workers", "tpuctl logs plum --all-workers"),
        ("tpuctl logs -f --tail 0", "tpuctl logs plum -f --tail 0"),
        ("tpuctl wait", "tpuctl wait plum"),
        *((same, same) for same in ("tpuctl logs rose", "tpuctl explain - < x", "tpuctl status")),
        ("tpuctl explain --error TEXT", "tpuctl explain --error TEXT"),
    ],
)
def test_job_is_named_where_the_latest_would_be_taken(command: str, completed: str) -> None:
    assert with_job(f"Then\n    {command}", "plum") == f"Then\n    {completed}"


def test_hint_of_a_command_is_about_its_script_cloud_and_stack_file() -> None:
    state = State(cloud=CloudName.google, script="x.py", program="x.py -- --steps 2")
    hint = "Run it:\n    tpuctl --cloud local run --up SCRIPT\n    tpuctl check SCRIPT"
    expected = "Run it:\n    tpuctl --cloud local run --up x.py -- --steps 2\n    tpuctl check x.py"
    assert state.with_command_prefix(Diagnostic("", hint=hint)).hint == expected
    state = State(cloud=CloudName.local, named_stack_file=Path("a b.yaml"))
    hint = "\n    tpuctl --cloud local up"
    expected = "\n    tpuctl --cloud local --stack-file 'a b.yaml' up"
    assert state.with_command_prefix(Diagnostic("", hint=hint)).hint == expected
