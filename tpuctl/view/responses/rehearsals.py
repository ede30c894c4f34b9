"""Answers of `rehearse`: what was run or compiled on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tpuctl.preflight.compile.compile_report import Refusal, Sizes, SourceLine
from tpuctl.view.responses.base import (
    ABSENT,
    Length,
    Measurement,
    Number,
    Response,
    rounded,
    source,
)

__all__ = ["Compilation", "Rehearsal"]


class RehearsalTarget(Response):
    """The TPU that a script was rehearsed for."""

    type: str
    kind: Literal["vm", "node"]
    replicas: int
    chips: int
    bytes_per_replica: int
    tensorflow: str | None
    per_hour: Number | None


class RehearsalFinding(Response):
    topic: str
    severity: str
    message: str
    detail: str
    hint: str
    file: Path | None = source("where.file")
    line: int | None = source("where.line")


class MeasuredFunction(Response):
    """A compiled function, with the shapes of its arguments in each compilation."""

    function: str
    compilations: int
    seconds: Measurement
    peak_bytes: int | None
    dynamic: bool
    shapes: list[list[str]]


class Measurements(Response):
    """What was measured on this machine, in the first run; `replica_…` in the second."""

    steps: int
    step_seconds: Measurement | None
    waited_share: Measurement | None
    examples: int | None
    examples_per_second: Measurement | None
    losses: list[Measurement]
    planned_steps: int | None
    functions: list[MeasuredFunction]
    replicas: int | None
    replica_steps: int | None
    replica_examples: int | None


class Estimate(Response):
    """Lower and upper bounds for the whole run on the TPU, or why there are none."""

    unavailable_reason: str
    steps: int | None
    step_seconds: tuple[Measurement, Measurement] | None
    seconds: tuple[Measurement, Measurement] | None
    dollars: tuple[Measurement, Measurement] | None


class RehearsalRun(Response):
    """`stopped` is why tpuctl stopped it: `timeout`, `interrupted`, or empty."""

    mode: str
    replicas: int
    steps: Length
    exit_code: int | None
    stopped: str
    seconds: Annotated[Number, rounded(3)]
    log: Path


class Rehearsal(Response):
    """The result of a rehearsal; NaN and infinities are strings."""

    target: RehearsalTarget
    findings: list[RehearsalFinding] = source("assessment.findings")
    measured: Measurements = source("assessment.measured")
    estimate: Estimate = source("assessment.estimate")
    runs: list[RehearsalRun] = source("passes")
    skipped: list[str]
    output: str
    interrupted: bool = source("is_interrupted")


class CompiledBatch(Response):
    """`shortfall` is empty if the batch fits; `peak` is absent if its memory use is unknown."""

    batch: int | None
    sizes: Sizes | None
    shortfall: str
    compiler_message: str
    seconds: Number
    peak: int = source("sizes.peak", ABSENT)


class Compilation(Response):
    """The result of `rehearse --compile`. `requested`, `alternatives`, `largest_batch` and
    `batch_per_core` are per core, `batch` and `largest_total_batch` over all replicas."""

    script: str
    type: str
    generation: str
    replicas: int
    tensorflow: str
    runtime: str | None
    function: str
    where: SourceLine | None
    inputs: list[tuple[str, list[int]]]
    available_bytes: int | None
    requested: CompiledBatch | None
    alternatives: list[CompiledBatch]
    largest_batch: int | None
    largest_is_exact: bool
    refusal: Refusal | None
    dynamic_dimensions: int
    has_bfloat16: bool
    variable_bytes: int
    notes: list[str]
    batch_per_core: int | None = source("requested.batch")
    batch: int | None
    largest_total_batch: int | None
