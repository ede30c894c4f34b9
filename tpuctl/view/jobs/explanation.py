"""Why a job ended, on stdout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpuctl.view.terminal.tables import print_facts
from tpuctl.view.terminal.text_wrapping import print_wrapped

if TYPE_CHECKING:
    from tpuctl.errors import Diagnostic
    from tpuctl.model.jobs.explanation import Explanation
    from tpuctl.model.troubleshooting.command_record import CommandRecord
    from tpuctl.model.troubleshooting.pasted_error import Pasted

KINDS = {
    "preemption": "Google preempted its machines",
    "infrastructure": "a Google machine or service",
    "failure": "the job itself",
    "requested": "requested by the job",
    "ended": "on purpose",
}
FAULTS = {
    "infrastructure": "retried up to job.retries.infrastructure times",
    "failure": "retried up to job.retries.failure times: the job itself failed",
}
STATES = {
    "queued": "waits in the queue of its stack",
    "submitted": "was submitted; no worker has reported yet",
    "preparing": "is being prepared on its workers",
    "running": "is running",
    "succeeded": "succeeded",
    "failed": "failed",
    "stopped": "was stopped",
    "timed_out": "reached its time limit",
    "lost": "was lost with its machines",
}


def show_explanation(explanation: Explanation, as_typed: Callable[[str], str]) -> None:
    """`as_typed` turns the commands of a hint into what the user has to type."""
    record, failure, worker = explanation.record, explanation.failure, _worker(explanation)
    code = f" with exit code {explanation.status.exit_code}" if explanation.status.exit_code else ""
    attempt = f" (attempt {record.attempt})" if explanation.attempts else ""
    facts = [
        ("job", f"{record.id}: {record.command}"),
        ("", f"{_state(explanation)}{code}{attempt}"),
    ]
    if failure is not None:
        where = f", on {worker}" if worker and len(record.workers) > 1 else ""
        facts.append(("cause", failure.cause))
        facts.append(("class", f"{failure.name}: {KINDS[failure.kind]}{where}"))
        if failure.detail and not any(failure.detail in line for line in explanation.lines):
            facts.append(("detail", failure.detail))
    elif explanation.status.detail:
        facts.append(("", explanation.status.detail))
    print_facts(facts)
    if explanation.lines:
        print(f"\nIn the log{' of ' * bool(worker)}{worker}:")
        for line in explanation.lines:
            print(f"    {line}")
    for number, hang in explanation.hangs.items():
        print_wrapped(f"\nWorker {record.worker_name(number)} may hang: {hang.detail}")
        for call in hang.stack:
            print(f"    {call}")
    if failure is not None and failure.hint:
        print_wrapped(f"\n{as_typed(failure.hint)}")
    if explanation.attempts:
        print("\nBefore that:")
        for previous in explanation.attempts:
            print(f"    attempt {previous.number - 1}: {previous.verdict.cause}")
            if previous.verdict.detail:
                print(f"        {previous.verdict.detail}")
    if explanation.is_unqueried:
        print_wrapped("\nThe state of the machines is unknown; this is based on the bucket only.")


def _worker(explanation: Explanation) -> str:
    """The worker that failed first, if known."""
    failure = explanation.failure
    if failure is None or failure.worker is None:
        return ""
    return f"worker {explanation.record.worker_name(failure.worker)}"


def _state(explanation: Explanation) -> str:
    return STATES[explanation.status.state]


def show_message(message: Pasted) -> None:
    """The commands in its hint are those that the user has to type."""
    facts = [("message", message.line), ("meaning", message.summary), ("cause", message.cause)]
    if message.fault is not None:
        facts.append(("in a job", FAULTS[message.fault]))
    print_facts(facts)
    print_wrapped(f"\n{message.hint}")


def show_command(
    command: CommandRecord,
    diagnostics: Sequence[Diagnostic],
    meaning: Pasted | None,
    jobs_command: str,
) -> None:
    """Why a command failed. The commands in hints are those that the user has to type;
    `jobs_command`, if any, lists jobs to explain instead."""
    started = f"{command.started.astimezone():%Y-%m-%d %H:%M:%S}"
    facts = [("command", f"tpuctl {' '.join(command.arguments)}")]
    facts.append(("", f"started at {started}, failed with exit code {command.exit_code}"))
    for diagnostic in diagnostics:
        facts.append(("error", ": ".join(filter(None, (diagnostic.summary, diagnostic.detail)))))
    if meaning is not None and not any(
        meaning.cause in diagnostic.detail for diagnostic in diagnostics
    ):
        facts += [("meaning", meaning.summary), ("cause", meaning.cause)]
    print_facts(facts)
    for hint in dict.fromkeys(diagnostic.hint for diagnostic in diagnostics if diagnostic.hint):
        print_wrapped(f"\n{hint}")
    if jobs_command:
        print(f"\nTo explain a job instead, name one of these:\n    {jobs_command}")
