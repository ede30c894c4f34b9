"""Google's error texts from public reports, replayed through the channel in which they appear.

`seen_errors.json` has each one's meaning and expected exit code, derived from the text and its
reported context. Responses and operations come from the local cloud, log lines from a job's record
in the bucket, and output of other programs is pasted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import Bench, Project
from tpuctl import errors
from tpuctl.api import Tpuctl
from tpuctl.errors import TpuctlError
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.troubleshooting.known_errors import table

SEEN_ERRORS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("seen_errors.json").read_text()
)
NODE = "kind: node, runtime: 2.12.0"
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def parametrize_cases(*channels: str) -> Any:
    cases = [case for case in SEEN_ERRORS if case["arrives"] in channels]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


@dataclass(frozen=True)
class Replay:
    """Stacks on a cloud to replay errors on, shared by the tests of this module."""

    cloud: LocalCloud
    project: Project
    stacks: dict[str, Bench]

    def bench(self, kind: str) -> Bench:
        if kind == "new":  # does not exist yet: project, APIs and grants are created first
            return Project(self.project.folder).stack()
        if kind not in self.stacks:
            tpu = NODE if kind in ("node", "controller") else ""
            self.stacks[kind] = self.project.stack(tpu)
        return self.stacks[kind]


@pytest.fixture(scope="module")
def replay(null_cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    with pytest.MonkeyPatch.context() as patch:
        project = Project.spoken_to(null_cloud, tmp_path_factory.mktemp("stacks"), patch)
        yield Replay(null_cloud, project, {})


async def error_of_command(bench: Bench, kind: str) -> TpuctlError:
    """The error raised by the API call behind the command."""
    stack = bench.reopen()
    with pytest.raises(TpuctlError) as caught:
        if kind == "jobs":
            await stack.jobs()
        else:
            await stack.provision(await stack.plan())
    return caught.value


@parametrize_cases("an answer", "an operation that fails")
async def test_cloud_error_is_classified(
    replay: Replay, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tpuctl.resources.base.ADOPT_SECONDS", 1.0
    )  # shorter: no other client creates resources
    bench = replay.bench(case["stack"])
    fault = remote_control.add_fault(replay.cloud, "error", **case["fault"], times="unlimited")
    try:
        met = await error_of_command(bench, case["stack"])
        used = remote_control.fault(replay.cloud, fault["id"])["applied"]
    finally:
        remote_control.remove_all_faults(replay.cloud)
    assert used
    assert isinstance(met, getattr(errors, case["error"]))
    assert met.exit_code == case["exit_code"]
    known_error, [diagnostic] = table().by_name(case["known"]), met.diagnostics
    assert diagnostic.summary == known_error.summary
    assert known_error.cause in diagnostic.detail
    if "text" in case["fault"]:
        assert case["text"].partition(" [EID")[0] in diagnostic.detail, (
            "the detail has the cloud's message"
        )
    names = {"project": bench.stack.project, "bucket": bench.stack.store.name}
    assert f"    {case['command'].format(**names)}" in diagnostic.hint.splitlines()


def test_up_prints_classified_cloud_error(replay: Replay) -> None:
    bench = replay.project.stack()
    remote_control.add_fault(
        replay.cloud, "error", method="CreateNode", google_error="location-policy"
    )
    code, out, stderr = bench.type("up", "--yes", "--verbose")
    assert (code, out) == (77, "")
    assert "google.api_core.exceptions.PermissionDenied: 403" in stderr
    assert "LOCATION_POLICY_VIOLATED" in stderr, "the error's details are shown"
    assert "Zone not allowed" in stderr
    assert "denied on 'locations/europe-west4-a'" in stderr
    assert "gcloud org-policies describe gcp.resourceLocations" in stderr


def record_of(bench: Bench, number: int) -> JobRecord:
    stack = bench.stack.stack
    return JobRecord(
        id=f"20260304-{number:06d}-acorn",
        stack=stack.name,
        project=stack.project,
        zone=stack.zone,
        node=stack.names.node,
        bucket=bench.stack.store.name,
        script="job.py",
        bundle="0" * 64,
        worker_count=1,
        workers=(0,),
        submitted=NOON,
    )


async def write_job_records(stack: Tpuctl, record: JobRecord, line: str) -> None:
    """Write the records of a job whose script died with this line to the bucket."""
    log = f'step 1\nTraceback (most recent call last):\n  File "job.py", line 2\n{line}\n'.encode()
    worker = WorkerRecord(
        job=record.id,
        attempt=1,
        worker=0,
        state="failed",
        exit_code=1,
        started=NOON,
        finished=NOON,
        log_bytes=len(log),
        cause="script",
        detail="the script failed with exit code 1",
        log_uploaded=True,
    )
    for name, data in (
        (record.object_name, record.model_dump_json().encode()),
        (record.record_name(0), worker.model_dump_json().encode()),
        (record.log_name(0), log),
    ):
        await stack.store.put_bytes(name, data)


@pytest.fixture(scope="module")
def stack_bench(replay: Replay) -> Bench:
    """A stack with a bucket and a healthy node."""
    bench = replay.project.stack()
    asyncio.run(Bench(bench.reopen(), []).provision())
    return bench


@parametrize_cases("a job's log")
async def test_error_in_log_is_classified(stack_bench: Bench, case: dict[str, Any]) -> None:
    stack = stack_bench.reopen()
    record = record_of(stack_bench, SEEN_ERRORS.index(case))
    await write_job_records(stack, record, case["text"])
    failure = (await stack.explain(await stack.job(record.id))).failure
    assert failure is not None
    assert (failure.kind, failure.name) == (case["fault"], case["known"])
    assert failure.cause == table().by_name(case["known"]).cause
    assert failure.detail == case["text"]
    command = case["command"].replace("SCRIPT", record.script)
    assert f"    {command}" in failure.hint.splitlines()


def test_explain_prints_classified_log_error(stack_bench: Bench) -> None:
    case = next(entry for entry in SEEN_ERRORS if entry["id"] == "tpu-in-use")
    record = record_of(stack_bench, 99_999)
    asyncio.run(write_job_records(stack_bench.reopen(), record, case["text"]))
    code, out, _ = stack_bench.type("explain", record.id)
    assert code == 0
    assert "Another process uses the TPU" in out
    assert f"    {case['command']}\n" in out


def test_explain_without_job_describes_stack(stack_bench: Bench, replay: Replay) -> None:
    bench = replay.project.stack()
    code, out, stderr = bench.type("explain")
    assert (code, out) == (1, "")
    assert "No jobs" in stderr
    assert "Nothing of the stack was found" in stderr
    assert "    tpuctl up\n" in stderr
    assert "tpuctl explain --error" in stderr


@parametrize_cases("an answer", "an operation that fails", "a job's log", "another program")
def test_pasted_error_is_classified(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Runs in this process, without a cloud."""
    from tpuctl.cli.main import run

    monkeypatch.chdir(tmp_path)
    for name in ("TPUCTL_STACK_FILE", "TPUCTL_CLOUD"):
        monkeypatch.delenv(name, raising=False)
    assert run(["explain", "--json", "--error", case["text"]]) == 0
    response = json.loads(capsys.readouterr().out)["data"]
    assert response["name"] == case["known"]
    assert response["summary"] and response["explanation"]
    command = case["command"].partition(" --")[0].partition("{")[0].partition("?")[0]
    command = re.sub(r" v\d\S*$", "", command)  # the TPU type is unknown here
    assert f"    {command}" in response["hint"]


def test_every_error_text_has_an_entry() -> None:
    names = {entry.name for entry in table().errors}
    assert {case["known"] for case in SEEN_ERRORS} <= names
    assert len({case["id"] for case in SEEN_ERRORS}) == len(SEEN_ERRORS)
