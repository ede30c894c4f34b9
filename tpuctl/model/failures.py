"""Why an attempt ended: taken away, broken machines, or the job's own doing, told apart.

`classify` weighs three witnesses: how the workers' supervisors say it ended, how the log ended,
and what the cloud says of the node. The texts that logs are searched for are in `known_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpuctl.model.job import WorkerRecord, first_failure
from tpuctl.model.known_errors import KnownError, extract_facts, table
from tpuctl.model.log_tail_signatures import LOG_TAIL, error_lines, last_lines

__all__ = ["LOG_TAIL", "Failure", "FailureKind", "Machines", "classify"]

# The first three are the budgets of `job.retries`; "ended" is what somebody, or a limit, wanted.
FailureKind = Literal["preemption", "infrastructure", "failure", "ended"]

PREPARATION_CAUSES = (
    "bundle",
    "requirements",
    "setup",
    "command",
)  # causes before the script has begun
MACHINE_CAUSES = ("terminated", "lost", "supervisor")  # causes that are never the script's
SIGKILL, SIGTERM = 9, 15
KINDS_WITH_DETAIL = ("infrastructure", "failure")  # the other causes say all

PREEMPTED_STATES = ("PREEMPTED", "SUSPENDING", "SUSPENDED")  # of nodes, and of requests
REPAIR_STATES = ("REPAIRING", "RESTARTING", "REIMAGING", "STARTING", "UNKNOWN")
STOPPED_STATES = ("STOPPED", "STOPPING", "HIDDEN", "HIDING", "UNHIDING")
DELETED_STATES = ("", "DELETING")

RETRY_HINT = "It is tried again within job.retries. By hand:\n    tpuctl wait"
RESUBMIT_HINT = "Bring it up, then submit again:\n    tpuctl up\n    tpuctl run"


@dataclass(frozen=True)
class Machines:
    """What the cloud says of the machines that ran an attempt.

    `state` is that of its worst node, or of a request that is over; empty where there is none.
    """

    state: str = "READY"
    health: str = ""
    is_spot: bool = False  # Google may take it away
    is_remote: bool = False  # a TPU node: the job runs on beside it when it goes
    is_replaced: bool = False  # made since: what ran the attempt is gone
    was_deleted_by_down: bool = False  # by a `down` since the attempt began
    limit: str = ""  # of time or money, that it had reached, if any


@dataclass(frozen=True)
class Failure:
    """A class of failure, and how it befell one attempt."""

    kind: FailureKind
    name: str  # of the class, as "libtpu-lock"
    cause: str  # in a sentence
    hint: str = ""  # what mends it, a command on its own indented line
    worker: int | None = None  # that it befell first, where it was one
    detail: str = ""  # the line of its log, else its supervisor's words


def classify(
    workers: Mapping[int, WorkerRecord], logs: Mapping[int, bytes], machines: Machines
) -> Failure | None:
    """Why the attempt ended other than well; None when it did well, or has not ended.

    `workers` are the final records, "lost" ones of those that left none; `logs` are the ends of
    their logs, LOG_TAIL bytes each. What a log shows to be the script's own failure stays that,
    whatever became of the node afterwards.
    """
    decisive = first_failure(workers.values())
    if decisive is None:
        return None
    failure = _intentional_end(decisive)
    if failure is None:
        log_failure = _from_logs(workers, logs, decisive)
        if log_failure is not None and log_failure.kind == "failure":
            failure = log_failure
        else:
            failure = _from_machines(decisive, machines, log_failure) or log_failure
    failure = failure or _from_record(decisive, logs.get(decisive.worker, b""))
    return replace(
        failure,
        worker=decisive.worker if failure.worker is None else failure.worker,
        detail=failure.detail or (decisive.detail if failure.kind in KINDS_WITH_DETAIL else ""),
    )


def _intentional_end(worker: WorkerRecord) -> Failure | None:
    if worker.state == "timed_out":
        return Failure(
            "ended",
            "limit",
            "The job reached its time limit.",
            "Allow more with limits.max_hours in the stack file.",
        )
    if worker.state == "stopped" and not worker.is_bystander:
        return Failure(
            "ended", "stopped", "Somebody stopped the job.", "Submit it again:\n    tpuctl run"
        )
    if worker.first_cause == "start" and worker.attempt == 1:  # whoever submitted it was told
        return Failure("ended", "not-started", "The job did not start.", RESUBMIT_HINT)
    return None


def _from_logs(
    workers: Mapping[int, WorkerRecord], logs: Mapping[int, bytes], decisive: WorkerRecord
) -> Failure | None:
    """What the log of the worker that failed first shows, or that of another.

    One worker's lack of memory is the others' closed connection: the script's own failure, on
    whichever worker, goes before what broke around it.
    """
    order = sorted(
        workers.values(), key=lambda worker: (worker.worker != decisive.worker, worker.worker)
    )
    failures = []
    for worker in order:
        match = _signature(worker, logs.get(worker.worker, b""))
        if match is not None:
            known_error, line = match
            kind = known_error.fault or "failure"
            hint = known_error.hint(extract_facts(line))
            failures.append(
                Failure(kind, known_error.name, known_error.why, hint, worker.worker, line)
            )
    return min(failures, key=lambda failure: failure.kind != "failure", default=None)


def _signature(worker: WorkerRecord, log: bytes) -> tuple[KnownError, str] | None:
    if worker.state not in ("failed", "lost", "stopped") or worker.first_cause in MACHINE_CAUSES:
        return None
    if worker.first_cause not in PREPARATION_CAUSES:
        return _first_match([*error_lines(log), worker.detail], table().signatures)
    # An installer without a network goes on to say that there is no such package.
    lines = [worker.detail, *last_lines(log)]
    infrastructure = [
        known_error for known_error in table().signatures if known_error.fault == "infrastructure"
    ]
    return _first_match(lines, infrastructure) or _first_match(lines, table().signatures)


def _first_match(
    lines: Sequence[str], candidates: Sequence[KnownError]
) -> tuple[KnownError, str] | None:
    for line in lines:
        for candidate in candidates:
            if candidate.is_line(line):
                return candidate, line.strip()
    return None


def _from_machines(
    worker: WorkerRecord, machines: Machines, log_failure: Failure | None
) -> Failure | None:
    """What the cloud says, where it can be the reason: a script that failed by itself has one."""
    is_killed = worker.first_cause == "signal" and worker.signal in (SIGKILL, SIGTERM)
    is_of_machine = worker.first_cause in MACHINE_CAUSES or is_killed or log_failure is not None
    if not (is_of_machine or machines.is_remote):
        return None
    if machines.was_deleted_by_down:
        return Failure("ended", "down", "The stack was taken down.", RESUBMIT_HINT)
    state = machines.state
    is_gone = state in (*DELETED_STATES, "SUSPENDING", "SUSPENDED")
    if machines.limit and (is_gone or (machines.is_replaced and not machines.is_spot)):
        return Failure(
            "ended",
            "limit",
            f"The node was deleted at its limit: {machines.limit}.",
            "Allow more in the stack file.",
        )
    if state in PREEMPTED_STATES or (state == "TERMINATED" and machines.is_spot):
        return Failure(
            "preemption", "preempted", f"Google took the node away: it is {state}.", RETRY_HINT
        )
    if machines.is_replaced and machines.is_spot:
        return Failure(
            "preemption", "replaced", "The node is gone; there is another one.", RETRY_HINT
        )
    if state in DELETED_STATES or machines.is_replaced:
        return Failure(
            "ended", "deleted", "The node was deleted, by a limit or by somebody.", RESUBMIT_HINT
        )
    if state in STOPPED_STATES:
        return Failure(
            "ended", "node-stopped", f"Somebody stopped the node: it is {state}.", RESUBMIT_HINT
        )
    if state in (*REPAIR_STATES, "TERMINATED", "FAILED") or "MAINTENANCE" in machines.health:
        condition = state if state != "READY" else machines.health
        return Failure(
            "infrastructure",
            "maintenance",
            f"Google maintains the node: it is {condition}.",
            RETRY_HINT,
        )
    return None


def _from_record(worker: WorkerRecord, log: bytes) -> Failure:
    """What is left to say when neither log nor cloud gives a reason."""
    if worker.first_cause == "start":
        return Failure("infrastructure", "not-started", "The attempt did not start.", RETRY_HINT)
    if worker.first_cause == "terminated":
        cause = "The machine was shut down, and its node is READY: it was started again."
        return Failure("infrastructure", "restarted", cause, RETRY_HINT)
    if worker.first_cause == "supervisor":
        return Failure("infrastructure", "supervisor", "The job's supervisor failed.", RETRY_HINT)
    if worker.first_cause == "bundle":
        cause = "The bundle did not reach the machine."
        return Failure("infrastructure", "bundle", cause, RETRY_HINT)
    if worker.first_cause == "slice":
        cause = "Not all workers became ready to start."
        return Failure("infrastructure", "slice", cause, RETRY_HINT)
    if worker.state == "lost" or worker.first_cause == "lost":
        cause = "The worker is gone, or lost what ran on it."
        return Failure("infrastructure", "worker-gone", cause, RETRY_HINT)
    if worker.signal == SIGKILL or worker.exit_code == 128 + SIGKILL:
        cause = "The script was killed, most often since the worker's memory was used up."
        hint = (
            "See how much there is, and what the system says of it:\n    tpuctl ssh 0 -- sudo dmesg"
        )
        return Failure("failure", "killed", cause, hint)
    if worker.exit_code in (126, 127):
        cause = "The command cannot be run on the worker."
        return Failure("failure", "command", cause, "Look at it there:\n    tpuctl ssh")
    if worker.first_cause in PREPARATION_CAUSES:
        cause = "What the job needs could not be installed."
        return Failure("failure", worker.first_cause, cause, "Read the log:\n    tpuctl logs")
    lines = error_lines(log)
    return Failure(
        "failure",
        "script",
        "The script failed by itself.",
        "Read its log:\n    tpuctl logs",
        detail=lines[0].strip() if lines and worker.first_cause == "script" else "",
    )
