"""Classes of failure, each recognized by a text seen in public."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.properties import given
from tpuctl.model.jobs.failures import Failure, Machines, classify
from tpuctl.model.jobs.job import WorkerRecord
from tpuctl.model.logs.log_tail_signatures import error_lines
from tpuctl.model.troubleshooting.known_errors import table

NOON = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
READY = Machines()
HERE = Path(__file__).parent
# What a program prints that does not find a TPU, or uses on the CPU what only a TPU has.
NO_FAULT_OF_SCRIPT = ("no-chips", "backend-unknown", "tensorflow-no-tpu", "needs-tpu")

# Class and text, as printed by jobs, libraries and Google.
SEEN: list[tuple[str, str]] = [
    (name, text)
    for name, texts in tomllib.loads((HERE / "failure_texts.toml").read_text("utf-8")).items()
    for text in texts
]

# Script failures that resemble infrastructure failures.
SCRIPT_FAILURES = [
    "ValueError: Unavailable",
    "KeyError: 'socket'",
    "AssertionError: heartbeat",
    "RuntimeError: preempted? no: the learning rate is 0",
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=5000): Max "
    "retries exceeded with url: /log (Caused by: [Errno 111] Connection refused)",
    "socket.gaierror: [Errno -2] Name or service not known",
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?",
    "PermissionError: [Errno 13] Permission denied: '/root/x'",
    *("Killed", "terminated", "SystemError: metadata server says no", "TimeoutError: network"),
]

FRAMES = b"""Traceback (most recent call last):
  File "/home/me/.tpuctl/jobs/a/1/code/train.py", line 3, in <module>
    main()
    ^^^^^^
  File "/home/me/.tpuctl/jobs/a/1/code/train.py", line 2, in main
    raise error  # UNAVAILABLE: Socket closed
"""


def worker(number: int = 0, state: str = "failed", **more: Any) -> WorkerRecord:
    fields = {
        "job": "j",
        "attempt": 1,
        "worker": number,
        "state": state,
        "exit_code": 1,
        "started": NOON,
        "finished": NOON,
        "cause": "script" if state == "failed" else "lost" if state == "lost" else "",
        "detail": "the script failed with exit code 1" if state == "failed" else "",
        **more,
    }
    return WorkerRecord.model_validate(fields)


def classified(log: bytes, machines: Machines = READY, **more: Any) -> Failure:
    failure = classify({0: worker(**more)}, {0: log}, machines)
    assert failure is not None
    return failure


@pytest.mark.parametrize(("name", "text"), SEEN)
def test_error_texts_are_classified(name: str, text: str) -> None:
    failure = classified(FRAMES + text.encode() + b"\n")
    assert (failure.name, failure.worker) == (name, 0)
    assert failure.detail == text.strip()
    assert classified(b"hello\n" + text.encode()).name == name, "without a traceback"
    assert failure.cause.endswith(".")
    assert failure.hint


def google_and_local(log: bytes) -> tuple[Failure, Failure]:
    """The failure with this log on Google's machines, and on those of the local cloud."""
    failures = [classify({0: worker()}, {0: log}, READY, is_local=local) for local in (False, True)]
    google, local = (failure for failure in failures if failure is not None)
    return google, local


@pytest.mark.parametrize("name", NO_FAULT_OF_SCRIPT)
def test_script_is_not_blamed_for_what_the_local_cloud_lacks(name: str) -> None:
    rows = tomllib.loads((HERE / "seen_texts.toml").read_text("utf-8"))["text"]
    text = next(row["text"] for row in rows if row["known"] == name)
    google, local = google_and_local(text.encode())
    assert (google.name, local.name) == (name, name)
    assert google.cause == table().by_name(name).cause
    assert local.cause.startswith("The local cloud has no TPU chips")
    assert "Google" in local.hint


def test_other_errors_have_the_same_cause_on_the_local_cloud() -> None:
    google, local = google_and_local(b"ModuleNotFoundError: No module named 'einops'\n")
    assert google == local


def test_every_known_error_has_a_seen_text() -> None:
    texts = tomllib.loads((HERE / "seen_texts.toml").read_text("utf-8"))["text"]
    answers = json.loads((HERE.parent / "flows/seen_errors.json").read_text("utf-8"))
    covered = {name for name, _ in SEEN} | {row["known"] for row in [*texts, *answers]}
    names = {entry.name for entry in table().errors}
    assert not names - covered, "add a text of it to tests/unit/seen_texts.toml"
    assert not covered - names, "the table has no such entry"
    assert len(covered) >= 150
    assert all(row["source"] for row in [*texts, *answers])


@pytest.mark.parametrize("text", SCRIPT_FAILURES)
def test_script_failure_is_not_attributed_to_machines(text: str) -> None:
    for log in (FRAMES + text.encode() + b"\n", text.encode()):
        for state in ("READY", "PREEMPTED", ""):
            failure = classified(log, Machines(state=state, is_spot=True))
            assert failure.kind == "failure", (text, state)
            assert failure.name == "script" or table().by_name(failure.name).general, text


def test_general_error_explains_script_that_nothing_else_explains() -> None:
    failure = classified(FRAMES + b"TypeError: f() got an unexpected keyword argument 'x'\n")
    assert (failure.kind, failure.name) == ("failure", "arguments-differ")
    assert failure.detail.startswith("TypeError: f()")
    unavailable = b"jaxlib.XlaRuntimeError: UNAVAILABLE: Socket closed\n"
    workers = {0: worker(0), 1: worker(1)}
    logs = {0: FRAMES + b"KeyError: 'x'\n", 1: FRAMES + unavailable}
    other = classify(workers, logs, READY)
    assert other is not None and other.name == "peer-gone", "a specific cause of another worker"


@pytest.mark.parametrize("name", ["hbm", "import", "missing-data", "bucket-permission", "nan"])
def test_later_preemption_does_not_hide_script_failure(name: str) -> None:
    text = next(text for name_of_text, text in SEEN if name_of_text == name)
    failure = classified(FRAMES + text.encode(), Machines(state="PREEMPTED", is_spot=True))
    assert (failure.kind, failure.name) == ("failure", name)


def test_cause_is_found_among_other_lines() -> None:
    unavailable = b"UnavailableError: Socket closed\n"
    survived = FRAMES + unavailable + b"trying again\n"
    survived += b"".join(b"step %d\n" % number for number in range(100))
    assert classified(survived + b"no more data\n").name == "script"
    assert classified(survived + FRAMES + b"KeyError: 'x'\n").name == "missing-key"
    program = b"\n".join(b"  %d. Size: 64.00M Shape: f32[]" % number for number in range(30))
    hbm = b"XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\n"
    assert classified(FRAMES + hbm + program).name == "hbm", "by its first line"
    cause = FRAMES + b"jaxlib.XlaRuntimeError: UNAVAILABLE: Socket closed\n"
    direct = b"\nThe above exception was the direct cause of the following exception:\n\n"
    context_text = b"\nDuring handling of the above exception, another exception occurred:\n\n"
    for chain in (cause + direct + FRAMES, cause + context_text + FRAMES):
        assert classified(chain + b"RuntimeError: training failed\n").name == "peer-gone"
        assert classified(chain + b"ModuleNotFoundError: No module named 'x'\n").name == "import"


def test_script_failure_on_one_worker_takes_precedence() -> None:
    workers = {0: worker(0), 1: worker(1, finished=NOON.replace(minute=1))}
    logs = {
        0: FRAMES + b"XlaRuntimeError: UNAVAILABLE: Socket closed\n",
        1: FRAMES + b"XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm\n",
    }
    failure = classify(workers, logs, Machines())
    assert failure is not None
    assert (failure.kind, failure.name, failure.worker) == ("failure", "hbm", 1)


@pytest.mark.parametrize(
    ("machines", "kind", "name"),
    [
        (Machines(state="PREEMPTED", is_spot=True), "preemption", "preempted"),
        (Machines(state="SUSPENDED"), "preemption", "preempted"),
        (Machines(state="TERMINATED", is_spot=True), "preemption", "preempted"),
        (Machines(state="TERMINATED"), "infrastructure", "maintenance"),
        (Machines(state="REPAIRING"), "infrastructure", "maintenance"),
        (Machines(health="UNHEALTHY_MAINTENANCE"), "infrastructure", "maintenance"),
        (Machines(), "infrastructure", "worker-gone"),
        (Machines(state="", is_replaced=True, is_spot=True), "preemption", "replaced"),
        (Machines(state="", is_replaced=True), "ended", "deleted"),
        (
            Machines(state="CREATING", is_replaced=True, has_slices=True),
            "infrastructure",
            "replaced",
        ),
        (Machines(state="", is_spot=True), "ended", "deleted"),
        (Machines(state="DELETING", is_spot=True), "ended", "deleted"),
        (Machines(state="", limit="limits.max_cost, $5"), "ended", "limit"),
        (Machines(state="SUSPENDED", limit="tpu.queue.run_for, 4h"), "ended", "limit"),
        (Machines(state="STOPPED"), "ended", "node-stopped"),
        (Machines(state="PREEMPTED", is_spot=True, was_deleted_by_down=True), "ended", "down"),
    ],
)
def test_lost_machines_are_classified_by_node_state(
    machines: Machines, kind: str, name: str
) -> None:
    for lost in (worker(state="lost"), worker(cause="terminated", exit_code=143)):
        failure = classify({0: lost}, {0: b"step 1\n"}, machines)
        assert failure is not None
        if name == "worker-gone" and lost.cause == "terminated":
            name = "restarted"
        assert (failure.kind, failure.name) == (kind, name)


@pytest.mark.parametrize(
    ("record", "kind", "name"),
    [
        (worker(state="timed_out", cause="max_hours"), "ended", "limit"),
        (worker(state="stopped", cause="stopped"), "ended", "stopped"),
        (worker(state="lost", cause="start"), "ended", "not-started"),
        (worker(state="lost", cause="claim"), "infrastructure", "not-started"),
        (worker(cause="supervisor"), "infrastructure", "supervisor"),
        (worker(cause="slice"), "infrastructure", "slice"),
        (worker(cause="hang", exit_code=124), "infrastructure", "hang"),
        (
            worker(
                cause="accelerator",
                detail="the TPU is already in use by process 7 (python3 train.py) of user me",
            ),
            "infrastructure",
            "libtpu-lock",
        ),
        (worker(cause="bundle", detail="cannot fetch it"), "infrastructure", "bundle"),
        (worker(cause="bundle", detail="HTTP Error 403"), "failure", "bucket-permission"),
        (worker(cause="signal", signal=9, exit_code=137), "failure", "killed"),
        (worker(exit_code=127), "failure", "command"),
        (worker(cause="setup", exit_code=1), "failure", "setup"),
    ],
)
def test_worker_records_are_classified(record: WorkerRecord, kind: str, name: str) -> None:
    failure = classify({0: record}, {}, Machines())
    assert failure is not None
    assert (failure.kind, failure.name) == (kind, name)


@pytest.mark.parametrize(
    ("log", "machines", "kind"),
    [
        (b"", READY, "requested"),
        (FRAMES + b"ModuleNotFoundError: No module named 'x'\n", READY, "requested"),
        (b"", Machines(state="PREEMPTED", is_spot=True), "preemption"),
        (b"", Machines(was_deleted_by_down=True), "ended"),
    ],
)
def test_exit_code_75_requests_another_attempt(log: bytes, machines: Machines, kind: str) -> None:
    assert classified(log, machines, exit_code=75).kind == kind


def test_request_of_any_worker_counts_if_others_lost_it() -> None:
    later = NOON + timedelta(seconds=1)
    workers = {0: worker(), 1: worker(1, exit_code=75, finished=later)}
    lost = b"UNAVAILABLE: Connection reset by peer\n"
    for log, kind in ((lost, "requested"), (FRAMES + b"ValueError: x\n", "failure")):
        failure = classify(workers, {0: log}, READY)
        assert failure is not None
        assert (failure.kind, failure.worker) == (kind, 1 if kind == "requested" else 0)


def test_pip_network_failure_is_not_missing_package() -> None:
    log = (
        b"WARNING: Retrying after connection broken by 'NewConnectionError: Failed to establish a "
        b"new connection: [Errno -3] Temporary failure in name resolution'\n"
        b"ERROR: Could not find a version that satisfies the requirement jax\n"
        b"ERROR: No matching distribution found for jax\n"
    )
    failure = classified(log, cause="requirements")
    assert (failure.kind, failure.name) == ("infrastructure", "network")


def test_tpu_node_preemption_explains_any_script_error() -> None:
    taken = Machines(state="PREEMPTED", is_spot=True, is_remote=True)
    assert classified(FRAMES + b"ValueError: x\n", taken).kind == "preemption"
    missing = FRAMES + b"ModuleNotFoundError: No module named 'x'\n"
    assert classified(missing, taken).name == "import"
    assert classify({0: worker(state="succeeded", exit_code=0)}, {}, Machines()) is None


@given(st.binary(max_size=2000))
def test_any_log_can_be_classified(log: bytes) -> None:
    assert all(line.strip() for line in error_lines(log))
    assert classified(log).kind in ("failure", "infrastructure")
