"""Assesses a rehearsal: derives findings for the TPU from the observations of its passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tpuctl.preflight.rehearsal.estimate import Chips, Estimate, estimate
from tpuctl.preflight.rehearsal.findings import Assessment, Finding, Target
from tpuctl.preflight.rehearsal.observations import Eager
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.preflight.rehearsal.topics import (
    compile_findings,
    device_findings,
    exit_findings,
    jax_findings,
    process_findings,
    torch_findings,
    training_findings,
)
from tpuctl.preflight.rehearsal.topics.varying_shapes import varying_dimensions


def assess(
    passes: Sequence[Pass], target: Target, *, requested_steps: int, operations: float | None = None
) -> Assessment:
    """Assess a rehearsal of `requested_steps` steps. `passes` are one or two, the first with XLA.

    `operations` is the number of floating-point operations in a step of the first pass, if known.
    """
    first, second = passes[0], passes[1] if len(passes) > 1 else None
    run_estimate = _estimate(first, second, target, operations)
    findings = list(_findings(first, second, target, run_estimate, requested_steps))
    return Assessment(tuple(findings), _measurements(first, second), run_estimate)


def _findings(
    first: Pass, second: Pass | None, target: Target, run_estimate: Estimate, requested_steps: int
) -> Iterator[Finding]:
    yield from exit_findings.first_pass(first, requested_steps)
    if second is not None and second.processes:
        yield from process_findings.processes(second, target)
    elif second is not None:
        yield from exit_findings.second_pass(second, first)
    if not exit_findings.was_observed(first):
        return
    if first.framework != "tensorflow":
        framework_findings = _jax_findings if first.framework == "jax" else _torch_findings
        yield from framework_findings(first, second, target, run_estimate)
        return
    yield from compile_findings.refusals(first)
    if not first.steps:
        return
    yield from compile_findings.compilations(first)
    yield from compile_findings.dynamic_shapes(first)
    yield training_findings.loss(first, second)
    yield compile_findings.memory(first, second, target)
    yield training_findings.pipeline(first, run_estimate)
    yield training_findings.replicas(first, second, target)
    yield from training_findings.checkpoints(first, second, target)
    yield training_findings.duration_and_cost(run_estimate, target)


def _jax_findings(
    first: Pass, second: Pass | None, target: Target, run_estimate: Estimate
) -> Iterator[Finding]:
    if not first.steps:
        return
    yield from jax_findings.compilations(first)
    yield from device_findings.transfers(first)
    yield from jax_findings.callbacks(first)
    yield from jax_findings.constants(first)
    yield from jax_findings.random_keys(first)
    yield from jax_findings.copies(first)
    yield from jax_findings.settings(first)
    if first.training_step is not None or first.losses:
        yield training_findings.loss(first, second)
        yield from training_findings.checkpoints(first, second, target)
    yield compile_findings.memory(first, second, target)
    yield training_findings.pipeline(first, run_estimate)
    if second is not None and second.processes:  # what they show is reported
        target = replace(target, workers=1)
    yield device_findings.devices(first, target, jax_findings.SHARD_HINT)
    yield training_findings.duration_and_cost(run_estimate, target)


def _torch_findings(
    first: Pass, second: Pass | None, target: Target, run_estimate: Estimate
) -> Iterator[Finding]:
    if not first.steps:
        return
    is_xla = not first.of(Eager)
    if is_xla:
        yield from torch_findings.compilations(first)
        yield from torch_findings.fallbacks(first)
        yield from device_findings.transfers(first)
    yield training_findings.loss(first, second)
    yield from training_findings.checkpoints(first, second, target)
    if is_xla:
        yield compile_findings.memory(first, second, target)
    yield training_findings.pipeline(first, run_estimate)
    yield torch_findings.devices(first, target)
    if is_xla:
        yield training_findings.duration_and_cost(run_estimate, target)


def _estimate(
    first: Pass, second: Pass | None, target: Target, operations: float | None
) -> Estimate:
    step_examples = first.examples
    global_examples = second.examples if second is not None else None
    if target.replicas == 1 or first.has_global_batch:
        global_examples = step_examples
    elif first.framework == "torch" and step_examples:
        global_examples = step_examples * target.replicas
    if operations is not None and step_examples and global_examples:
        operations *= global_examples / step_examples
    else:
        operations = None
    return estimate(
        Chips(target.generation, target.chips, target.per_hour),
        operations=operations,
        program_bytes=_program_bytes(first, global_examples),
        steps=first.planned_steps,
        has_dynamic_shapes=any(function.dynamic for function in first.functions),
        has_varying_shapes=any(
            not dimension.is_remainder
            for function in first.functions
            for dimension in varying_dimensions([entry.shapes for entry in function.compilations])
        ),
    )


def _program_bytes(first: Pass, global_examples: int | None) -> int | None:
    if not first.examples or not global_examples:
        return None
    peak = max((function.peak or 0 for function in first.functions), default=0)
    devices = first.replicas if first.has_global_batch else 1
    return int(peak * devices * (global_examples / first.examples)) or None


def _measurements(first: Pass, second: Pass | None) -> dict[str, Any]:
    """The measurements on this machine, for `--json`."""
    rate = None
    if first.examples and first.step_seconds:
        rate = first.examples / first.step_seconds
    return {
        "jax": first.jax,
        "torch": first.torch,
        "steps": len(first.steps),
        "step_seconds": first.step_seconds,
        "waited_share": first.waited_share,
        "examples": first.examples,
        "examples_per_second": rate,
        "losses": first.losses,
        "planned_steps": first.planned_steps,
        "functions": [
            {
                "function": function.name,
                "compilations": len(function.compilations),
                "seconds": function.seconds,
                "peak_bytes": function.peak,
                "dynamic": function.dynamic,
                "shapes": [list(map(str, compiled.shapes)) for compiled in function.compilations],
            }
            for function in first.functions
        ],
        "replicas": None if second is None else second.replicas,
        "replica_steps": None if second is None else len(second.steps),
        "replica_examples": None if second is None else second.examples,
    }
