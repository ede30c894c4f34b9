"""Answers of `check`, `doctor` and `rehearse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from tpuctl.model.troubleshooting.role import Grant, RoleGroup
from tpuctl.preflight.compile.compile_report import Collective, Refusal, Sizes, SourceLine
from tpuctl.view.columns import ABSENT, Number
from tpuctl.view.responses.base import (
    Measurement,
    Response,
    rounded,
    source,
)


class CheckedStack(Response):
    """The checked stack file."""

    stack: str
    type: str
    zone: str
    runtime: str
    bucket: str
    price: str


class CheckFinding(Response):
    """A violation of a rule; lines and columns count from 1."""

    code: str
    severity: str
    file: Path = source("path")
    line: int
    column: Annotated[int, AfterValidator(lambda column: column + 1)]
    message: str
    hint: str
    fixable: Annotated[bool, BeforeValidator(bool)] = source("edits")


class CheckNote(Response):
    file: Path = source("path")
    line: int
    message: str


class CheckedScripts(Response):
    """The findings in scripts; the stack's keys are absent without a stack file."""

    stack: str = ABSENT
    type: str = ABSENT
    zone: str = ABSENT
    runtime: str = ABSENT
    bucket: str = ABSENT
    price: str = ABSENT
    target: str
    files: list[Path]
    findings: list[CheckFinding]
    suppressed: int
    notes: list[CheckNote]


class Rule(Response):
    code: str
    name: str
    severity: str
    summary: str
    rationale: str
    bad: str
    good: str


class Rules(Response):
    """Rules of the check, explained."""

    rules: list[Rule]


class Finding(Response):
    """The result of one check of `doctor`."""

    check: str
    state: str
    message: str
    hint: str
    command: str
    requires: str = source("root")


class Diagnosis(Response):
    """All checks, in the order to fix them."""

    checks: list[Finding]
    next: str


class DumpFile(Response):
    name: str
    about: str
    bytes: int = source("size")


class DebugDump(Response):
    """The archive that was written; `omitted` has reasons by name, `replaced` the number of
    different values by kind."""

    file: Path
    files: list[DumpFile]
    omitted: dict[str, str]
    replaced: dict[str, int]


class GcloudRole(Response):
    title: str
    description: str
    stage: str
    includedPermissions: list[str] = source("permissions")


class Role(Response):
    """A custom role; `role` is what `gcloud iam roles create --file` takes."""

    id: str
    project: str
    role: GcloudRole
    groups: list[RoleGroup]
    optional_permissions: list[str]
    grants: list[Grant]


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
    """What was measured on this machine, in the first run; `replica_…` in the second. `jax` or
    `torch` is the version of that framework if the script trains with it."""

    jax: str | None
    torch: str | None
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
    steps: Annotated[int, BeforeValidator(len)]
    exit_code: int | None
    stopped: str
    seconds: Annotated[Number, rounded(3)]
    log: Path


class Rehearsal(Response):
    """The result of a rehearsal; NaN and infinities are strings. `written` is the folder of the
    files that the script wrote to its own, if there are any."""

    target: RehearsalTarget
    findings: list[RehearsalFinding] = source("assessment.findings")
    measured: Measurements = source("assessment.measured")
    estimate: Estimate = source("assessment.estimate")
    runs: list[RehearsalRun] = source("passes")
    skipped: list[str]
    output: str
    interrupted: bool = source("is_interrupted")
    written: Path | None


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
    `batch_per_core` are per core, with JAX per device; `batch` and `largest_total_batch` are over
    all replicas. `topology` is that of each slice, empty with TensorFlow."""

    script: str
    type: str
    generation: str
    topology: str
    slices: int
    replicas: int
    tensorflow: str | None
    jax: str | None
    libtpu: str | None
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
    collectives: list[Collective] | None
    notes: list[str]
    batch_per_core: int | None = source("requested.batch")
    batch: int | None
    largest_total_batch: int | None
