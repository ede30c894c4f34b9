"""Findings about training with PyTorch: compilations, operations on the host, the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import (
    Compiled,
    Distributed,
    Eager,
    Fallback,
    Shape,
    Step,
    Unsynchronized,
    Where,
)
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.preflight.rehearsal.topics import device_findings
from tpuctl.preflight.rehearsal.topics.compile_findings import describe, varying_shape_hints
from tpuctl.preflight.rehearsal.topics.varying_shapes import varying_dimensions
from tpuctl.units import counted

MAX_OPERATIONS = 5  # each with a finding
FIRST_STEPS = 2  # which compile: the second one has the optimizer's state
SYNC_HINT = (
    "Call torch_xla.sync() after the optimizer's step, or load batches with\n"
    "    torch_xla.distributed.parallel_loader.MpDeviceLoader\nwhich calls it."
)
PROGRAM_HINT = (
    "Keep shapes fixed, and pass numbers that change as tensors. For the reasons, run it with\n"
    "    PT_XLA_DEBUG_LEVEL=2"
)
SHARD_HINT = (
    "Shard the batch over all devices:\n"
    "    torch_xla.runtime.use_spmd()\n"
    '    mesh = xs.Mesh(np.arange(count), (count,), ("data",))\n'
    '    xs.mark_sharding(batch, mesh, ("data", None))'
)


def compilations(run: Pass) -> Iterator[Finding]:
    """Steps that no synchronization follows, or compilations after the first steps."""
    unsynchronized = run.of(Unsynchronized)
    if unsynchronized:
        yield Finding(
            "compiling",
            "cost",
            f"no torch_xla.sync() between {counted(len(unsynchronized), 'step')} and the next: "
            "XLA collects their operations into ever larger programs",
            hint=SYNC_HINT,
            where=unsynchronized[0].where,
        )
        return
    compiled = run.of(Compiled)
    late = _late_compilations(run)
    shapes = [entry.shapes for entry in compiled if entry.trains]
    if len(late) > 1 or (late and varying_dimensions(shapes)):
        yield _recompilation(late, shapes)
    elif compiled:
        seconds = sum(entry.seconds for entry in compiled)
        programs = counted(len(compiled), "program")
        yield Finding(
            "compiling", "fine", f"{programs} in {seconds:.1f} s; the step is not compiled again"
        )


def fallbacks(run: Pass) -> Iterator[Finding]:
    """Operations of the step that XLA does not have."""
    lines: dict[str, Where | None] = {}
    steps: dict[str, int] = {}
    for fallback in run.of(Fallback):
        name = fallback.operation
        lines[name] = lines.get(name) or fallback.where
        steps[name] = steps.get(name, 0) + 1
    repeated = (name for name in lines if steps[name] > 1 or len(run.steps) == 1)
    for name in islice(repeated, MAX_OPERATIONS):
        yield Finding(
            "transfers",
            "cost",
            f"{name} runs on the host in every step, because XLA does not have it: the TPU waits",
            hint="Replace it by other operations, or do it while loading the data.",
            where=lines[name],
        )


def devices(run: Pass, target: Target) -> Finding:
    """Whether the step runs on all devices of the slice, or on any."""
    eager = run.of(Eager)
    if eager:
        unused = counted(target.replicas, "device")
        return Finding(
            "replicas",
            "cost",
            f"trains on the CPU of the machine, not on the {unused} of {target.type}",
            hint="Install torch_xla[tpu], and move the model and each batch to\n"
            "    torch_xla.device()",
            where=eager[0].where,
        )
    launched = run.of(Distributed)
    if launched and target.replicas > 1:
        return device_findings.one_process("one process with one device", target.replicas)
    return device_findings.devices(run, target, SHARD_HINT)


def _late_compilations(run: Pass) -> dict[int, list[Compiled]]:
    """The compilations of training after the first steps, by the number of steps before them.

    Evaluation, or the first checkpoint, may compile a program of its own.
    """
    late: dict[int, list[Compiled]] = {}
    steps = 0
    for observation in run.observations:
        if isinstance(observation, Step):
            steps += 1
        elif isinstance(observation, Compiled) and observation.trains and steps >= FIRST_STEPS:
            late.setdefault(steps, []).append(observation)
    return late


def _recompilation(
    late: Mapping[int, list[Compiled]], shapes: Sequence[tuple[Shape, ...]]
) -> Finding:
    compiled = [entry for entries in late.values() for entry in entries]
    seconds = sum(entry.seconds for entry in compiled)
    where = compiled[0].where
    message = f"{counted(len(compiled), 'compilation')} in {seconds:.1f} s after step {FIRST_STEPS}"
    variations = varying_dimensions(shapes)
    if not variations:
        message += ": the program differs from step to step"
        return Finding("compiling", "cost", message, hint=PROGRAM_HINT, where=where)
    names = [f"input {number}" for number in range(1, len(shapes[0]) + 1)]
    varying = "; ".join(describe(variation, names) for variation in variations)
    hints = varying_shape_hints(shapes, variations) or [
        "Give every batch the same shape: pad it, or drop the last one."
    ]
    message += f", because shapes vary: {varying}"
    return Finding("shapes", "cost", message, hint="\n".join(hints), where=where)
