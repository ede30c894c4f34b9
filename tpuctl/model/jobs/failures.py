"""Classifies why an attempt ended: preemption, infrastructure, or the job itself.

`classify` combines three sources: the records of the workers' supervisors, the end of the log, and
the node's state in the cloud. The texts that logs are searched for are in `known_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpuctl.model.jobs.attempt import Retry
from tpuctl.model.jobs.job import EXIT_RETRY, WorkerRecord, first_failure
from tpuctl.model.logs.log_tail_signatures import LOG_TAIL, error_lines, last_lines
from tpuctl.model.troubleshooting.known_errors import KnownError, extract_facts, table

__all__ = ["LOG_TAIL", "Failure", "FailureKind", "Machines", "classify"]

# A budget of `job.retries`; "ended" was requested by a user or a limit.
FailureKind = Retry | Literal["ended"]

PREPARATION_CAUSES = (
    "bundle",
    "requirements",
    "setup",
    "command",
)  # causes before the script started
MACHINE_CAUSES = ("terminated", "lost", "supervisor", "hang")  # causes other than the script
SIGKILL, SIGTERM = 9, 15
KINDS_WITH_DETAIL = ("infrastructure", "failure")  # the other causes are complete

PREEMPTED_STATES = ("PREEMPTED", "SUSPENDING", "SUSPENDED")  # of nodes, and of requests
REPAIR_STATES = ("REPAIRING", "RESTARTING", "REIMAGING", "STARTING", "UNKNOWN")
STOPPED_STATES = ("STOPPED", "STOPPING", "HIDDEN", "HIDING", "UNHIDING")
DELETED_STATES = ("", "DELETING")

RETRY_HINT = "Retried automatically within job.retries. To retry now:\n    tpuctl wait"
LIMIT_HINT = "Raise limits.{} in the stack file."
COUNTED_LIMIT_HINT = f"{LIMIT_HINT[:-1]}, or count from zero:\n    tpuctl up --new-limits"
COUNTED_LIMITS = ("max_hours", "max_cost")
NO_CHIPS_CAUSE = (
    "The local cloud has no TPU chips, and the CPU that simulates them lacks what the script uses. "
    "The script may be right: on Google, a TPU may have it."
)
NO_CHIPS_HINT = "Run it on Google, or skip that part where TPUCTL_CLOUD is local."
RESUBMIT_HINT = "Create the stack and submit the job again:\n    tpuctl up\n    tpuctl run SCRIPT"


@dataclass(frozen=True)
class Machines:
    """The state in the cloud of the machines that ran an attempt.

    `state` is that of the worst node, or of an ended request; empty if there is none.
    """

    state: str = "READY"
    health: str = ""
    is_spot: bool = False  # may be preempted
    is_remote: bool = False  # a TPU node: the job keeps running if the node fails
    is_replaced: bool = False  # created since; the attempt's machines no longer exist
    has_slices: bool = False  # of which Google recreates one that fails
    was_deleted_by_down: bool = False  # by a `down` since the attempt began
    limit: str = ""  # the time or cost limit that was reached, if any


@dataclass(frozen=True)
class Failure:
    """A classified failure of an attempt."""

    kind: FailureKind
    name: str  # of the failure class, such as "libtpu-lock"
    cause: str  # in a sentence
    hint: str = ""  # the fix, with commands on their own indented lines
    worker: int | None = None  # the first to fail, if known
    detail: str = ""  # the line of its log, else its supervisor's message


def classify(
    workers: Mapping[int, WorkerRecord],
    logs: Mapping[int, bytes],
    machines: Machines,
    *,
    is_local: bool = False,
) -> Failure | None:
    """Why the attempt failed; None if it succeeded or has not ended.

    `workers` are the final records ("lost" for workers without one), `logs` the last LOG_TAIL bytes
    of their logs. A failure of the script, as shown by the log, remains that whatever happened to
    the node afterwards. If it ran on the local cloud (`is_local`), it is not blamed for what that
    lacks.
    """
    decisive = first_failure(workers.values())
    if decisive is None:
        return None
    failure = _intentional_end(decisive)
    if failure is None:
        log_failure = _requested_retry(decisive) or _from_logs(
            workers, logs, decisive, is_local=is_local
        )
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
        is_own = worker.cause == "timeout"
        is_counted = worker.cause in COUNTED_LIMITS
        limit_hint = (COUNTED_LIMIT_HINT if is_counted else LIMIT_HINT).format(worker.cause)
        hint = "Pass a longer --timeout." if is_own else limit_hint
        cause = "The job reached its time limit."
        if "(limits." in worker.detail:  # in the words of the machine's watchdog
            cause = f"The job was stopped: {worker.detail}."
        return Failure("ended", "limit", cause, hint)
    if worker.state == "stopped" and not worker.is_bystander:
        hint = "Submit it again:\n    tpuctl run SCRIPT"
        return Failure("ended", "stopped", "The job was stopped by a user.", hint)
    if worker.cause == "start":
        return Failure("ended", "not-started", "The job did not start.", RESUBMIT_HINT)
    return None


def _requested_retry(worker: WorkerRecord) -> Failure | None:
    if not worker.requests_retry:
        return None
    cause = f"The job asked for another attempt: it exited with code {EXIT_RETRY}."
    return Failure("requested", "requested", cause, RETRY_HINT, worker.worker)


def _from_logs(
    workers: Mapping[int, WorkerRecord],
    logs: Mapping[int, bytes],
    decisive: WorkerRecord,
    *,
    is_local: bool,
) -> Failure | None:
    """The failure shown by the log of the worker that failed first, or by another's.

    When one worker runs out of memory, or exits to be restarted, others see a closed connection: a
    failure of the script on any worker takes precedence, and then a requested retry.
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
            cause, hint = known_error.cause, known_error.hint(extract_facts(line))
            if is_local and known_error.needs_chips:
                cause, hint = NO_CHIPS_CAUSE, NO_CHIPS_HINT
            failures.append(Failure(kind, known_error.name, cause, hint, worker.worker, line))
    failure = min(failures, key=lambda failure: failure.kind != "failure", default=None)
    if failure is not None and failure.kind == "infrastructure":
        return next(filter(None, map(_requested_retry, order)), failure)
    return failure


def _signature(worker: WorkerRecord, log: bytes) -> tuple[KnownError, str] | None:
    if worker.state not in ("failed", "lost", "stopped") or worker.cause in MACHINE_CAUSES:
        return None
    if worker.cause not in PREPARATION_CAUSES:
        return _first_match([*error_lines(log), worker.detail], table().signatures)
    # Without a network, an installer eventually reports that a package does not exist.
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
    """The failure according to the cloud, if the script did not fail by itself."""
    is_killed = worker.cause == "signal" and worker.signal in (SIGKILL, SIGTERM)
    is_of_machine = worker.cause in MACHINE_CAUSES or is_killed or log_failure is not None
    if not (is_of_machine or machines.is_remote):
        return None
    if machines.was_deleted_by_down:
        return Failure("ended", "down", "The stack was deleted.", RESUBMIT_HINT)
    state = machines.state
    is_gone = state in (*DELETED_STATES, "SUSPENDING", "SUSPENDED")
    if machines.limit and (is_gone or (machines.is_replaced and not machines.is_spot)):
        return Failure(
            "ended",
            "limit",
            f"The node was deleted at its limit: {machines.limit}.",
            "Raise it in the stack file.",
        )
    if state in PREEMPTED_STATES or (state == "TERMINATED" and machines.is_spot):
        return Failure(
            "preemption", "preempted", f"Google preempted the node: it is {state}.", RETRY_HINT
        )
    if machines.is_replaced and machines.is_spot:
        return Failure(
            "preemption", "replaced", "The node was preempted and has been replaced.", RETRY_HINT
        )
    if machines.is_replaced and machines.has_slices:
        return Failure(
            "infrastructure", "replaced", "One of the slices was replaced by a new one.", RETRY_HINT
        )
    if state in DELETED_STATES or machines.is_replaced:
        return Failure(
            "ended", "deleted", "The node was deleted, by a limit or a user.", RESUBMIT_HINT
        )
    if state in STOPPED_STATES:
        return Failure(
            "ended",
            "node-stopped",
            f"The node was stopped by a user: it is {state}.",
            RESUBMIT_HINT,
        )
    if state in (*REPAIR_STATES, "TERMINATED", "FAILED") or "MAINTENANCE" in machines.health:
        condition = state if state != "READY" else machines.health
        return Failure(
            "infrastructure",
            "maintenance",
            f"The node is under maintenance by Google: it is {condition}.",
            RETRY_HINT,
        )
    return None


def _from_record(worker: WorkerRecord, log: bytes) -> Failure:
    """The failure according to the record, if neither log nor cloud shows a cause."""
    if worker.cause == "claim":
        return Failure("infrastructure", "not-started", "The attempt did not start.", RETRY_HINT)
    if worker.cause == "terminated":
        cause = "The machine was shut down and restarted; its node is READY."
        return Failure("infrastructure", "restarted", cause, RETRY_HINT)
    if worker.cause == "hang":
        cause = "The job made no progress, and job.limits.on_hang is restart."
        return Failure("infrastructure", "hang", cause, "Read the stacks:\n    tpuctl logs")
    if worker.cause == "supervisor":
        return Failure("infrastructure", "supervisor", "The job's supervisor failed.", RETRY_HINT)
    if worker.cause == "bundle":
        cause = "The bundle did not reach the machine."
        return Failure("infrastructure", "bundle", cause, RETRY_HINT)
    if worker.cause == "slice":
        cause = "Not all workers became ready to start."
        return Failure("infrastructure", "slice", cause, RETRY_HINT)
    if worker.state == "lost" or worker.cause == "lost":
        cause = "The worker no longer exists, or lost its processes."
        return Failure("infrastructure", "worker-gone", cause, RETRY_HINT)
    if worker.signal == SIGKILL or worker.exit_code == 128 + SIGKILL:
        cause = "The script was killed, most likely because the worker ran out of memory."
        hint = "Check the kernel log for out-of-memory messages:\n    tpuctl ssh 0 -- sudo dmesg"
        return Failure("failure", "killed", cause, hint)
    if worker.exit_code in (126, 127):
        cause = "The command could not be run on the worker."
        return Failure("failure", "command", cause, "Check it on the worker:\n    tpuctl ssh")
    if worker.cause in PREPARATION_CAUSES:
        cause = "The job's dependencies could not be installed."
        return Failure("failure", worker.cause, cause, "Read the log:\n    tpuctl logs")
    lines = error_lines(log)
    general = table().match_general(lines) if worker.cause == "script" else None
    if general is not None:
        known_error, line = general
        hint = known_error.hint(extract_facts(line))
        return Failure("failure", known_error.name, known_error.cause, hint, detail=line)
    return Failure(
        "failure",
        "script",
        "The script failed.",
        "Read its log:\n    tpuctl logs",
        detail=lines[0].strip() if lines and worker.cause == "script" else "",
    )
