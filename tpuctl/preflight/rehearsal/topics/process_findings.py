"""Findings that only several processes of a slice show: what differs between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import Joint, Waiting, Where
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.preflight.rehearsal.topics.exit_findings import failure

TOPIC = "processes"
Call = tuple[str, Where | None]
SAME_CALLS_HINT = (
    "Call it in every process, and leave to process 0 only what concerns no other:\n"
    "    if jax.process_index() == 0: print(…)"
)


def processes(run: Pass, target: Target) -> Iterator[Finding]:
    """Why the processes failed together, or that they did not."""
    count = len(run.processes)
    failed = [process for process in run.processes if process.has_failed]
    stuck = [process for process in run.processes if process.stopped == "timeout"]
    divided = _different_calls(run) if failed or stuck else None
    if divided is not None:
        yield divided
    elif failed:
        process = min(failed, key=_end)
        number = run.processes.index(process)
        finding = failure(process)
        yield replace(
            finding,
            topic=TOPIC if finding.topic == "script" else finding.topic,
            message=f"process {number} of {count} fails: {finding.message}",
        )
    elif stuck:
        yield _stuck(run)
    else:
        yield _complete(run, target)


def _end(process: Pass) -> float:
    """When a process failed: the first one to fail takes others with it."""
    ended = process.ended
    return ended.at if ended is not None and ended.error is not None else float("inf")


def _different_calls(run: Pass) -> Finding | None:
    """The first call that not all processes make, although it waits for all."""
    calls: list[list[Call]] = [
        [(joint.function, joint.where) for joint in process.of(Joint)] for process in run.processes
    ]
    for together in zip_longest(*calls):
        made: dict[Call, list[int]] = {}
        for number, call in enumerate(together):
            if call is not None:
                made.setdefault(call, []).append(number)
        others = [number for number, call in enumerate(together) if call is None]
        if len(made) == 1 and not _have_ended_or_moved_on(run, others):
            continue
        (function, where), numbers = min(made.items(), key=lambda item: len(item[1]))
        lines = [
            f"{_names(members)}: {name}, line {'?' if line is None else line.line}"
            for (name, line), members in made.items()
        ]
        if others:
            lines.append(f"{_names(others)}: no call")
        message = (
            f"{_names(numbers)} of {len(run.processes)} waits in {function}, which the others do "
            "not call"
        )
        return Finding(TOPIC, "error", message, "\n".join(lines), SAME_CALLS_HINT, where)
    return None


def _have_ended_or_moved_on(run: Pass, numbers: list[int]) -> bool:
    """Whether one of these processes will not make the others' call: it ended without an error, or
    waits elsewhere."""
    return any(
        not run.processes[number].has_failed
        and (not run.processes[number].stopped or bool(run.processes[number].of(Waiting)))
        for number in numbers
    )


def _stuck(run: Pass) -> Finding:
    lines: dict[Where | None, list[int]] = {}
    for number, process in enumerate(run.processes):
        waits = process.of(Waiting)
        if process.stopped == "timeout":
            lines.setdefault(waits[-1].where if waits else None, []).append(number)
    where, numbers = min(lines.items(), key=lambda item: (item[0] is None, len(item[1])))
    detail = "\n".join(
        f"{_names(members)}: line {'?' if line is None else line.line}"
        for line, members in lines.items()
    )
    message = f"{_names(numbers)} of {len(run.processes)} waits for others, which do not come"
    return Finding(TOPIC, "error", message, detail, SAME_CALLS_HINT, where)


def _complete(run: Pass, target: Target) -> Finding:
    count, devices = len(run.processes), run.replicas
    used = max(
        (
            compiled.devices
            for function in run.functions
            for compiled in function.compilations
            if compiled.devices and compiled.trains
        ),
        default=None,
    )
    if used is not None and used <= devices // count:
        return Finding(
            TOPIC,
            "risk",
            f"each of {count} processes trains alone, on {used} of {devices} devices: gradients "
            "are not combined",
            hint="Build the mesh from jax.devices(), which has those of all processes.",
        )
    parts = [f"{count} processes of {devices // count} devices each ran together"]
    if run.examples:
        parts.append(f"{run.examples} examples in all, {run.examples // count} in each")
    if count < target.workers:
        parts.append(f"{target.type} has {target.workers}")
    return Finding(TOPIC, "fine", "; ".join(parts))


def _names(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    return f"processes {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
