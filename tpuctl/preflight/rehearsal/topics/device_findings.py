"""Findings about the devices that a step of JAX or PyTorch/XLA uses, and when it waits for them."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import Fetched, Where
from tpuctl.preflight.rehearsal.passes import Pass

MAX_LINES = 3  # of the script, each with a finding
MIN_READS = 3  # at one line, to conclude that every step reads a value


def transfers(run: Pass) -> Iterator[Finding]:
    """Lines that read a value of every step, for which the next step waits."""
    steps_by_line: dict[Where, set[int]] = {}
    for read in run.of(Fetched):
        if read.where is not None:
            steps_by_line.setdefault(read.where, set()).add(read.after_step)
    every = max(MIN_READS, len(run.steps) - 1)  # the script may end within the last step
    lines = [where for where, steps in steps_by_line.items() if len(steps) >= every]
    for where in lines[:MAX_LINES]:
        yield Finding(
            "transfers",
            "cost",
            "reads a value after every step: the TPU is idle until the next one is started",
            hint="Read it every 50 steps, say, or start the next step first.",
            where=where,
        )
    if run.steps and not lines:
        yield Finding("transfers", "fine", "no value is read after every step")


def devices(run: Pass, target: Target, shard_hint: str) -> Finding:
    """Whether the step of JAX or of PyTorch/XLA runs on all devices of the slice."""
    counts = [
        compiled.devices
        for function in run.functions
        for compiled in function.compilations
        if compiled.devices and compiled.trains
    ]
    if not counts:
        return Finding("replicas", "unknown", "the devices of the step are unknown")
    used, simulated = max(counts), run.replicas
    if used < simulated:
        return Finding(
            "replicas",
            "cost",
            f"the step runs on {used} of {target.replicas} devices of {target.type}",
            hint=shard_hint,
        )
    of_all = "" if used == target.replicas else f" ({target.type} has {target.replicas})"
    message = f"the step runs on {used} devices{of_all}" if used > 1 else "one device"
    if target.workers > 1:
        return one_process(f"{message}. One process", target.workers)
    return Finding("replicas", "fine", message)


def one_process(subject: str, count: int) -> Finding:
    """One process was enough for the rehearsal, where a slice has several."""
    return Finding(
        "replicas",
        "unknown",
        f"{subject} took the part of {count}: what differs between processes was not tested",
        hint="Run it on the local cloud, with a process for each worker:\n"
        "    tpuctl --cloud local run --up SCRIPT",
    )
