"""The report of a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Obstacle:
    """An operation that XLA cannot compile, and the user's line that creates it, if known."""

    operation: str
    where: SourceLine | None


@dataclass(frozen=True)
class Refusal:
    """Why the step does not compile.

    `origin`: the script failed during tracing, the compiler rejected the step, or tpuctl cannot
    pass it to the compiler although a TPU may run it.
    """

    message: str
    origin: Literal["script", "compiler", "tpuctl"]
    where: SourceLine | None = None
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """Memory use of one core, with JAX of one device, in bytes; `shared` is reused for the new
    values of variables."""

    arguments: int
    results: int
    shared: int
    temporary: int
    code: int

    @property
    def peak(self) -> int:
        """The total: variables, batch, temporary memory and the program itself."""
        return self.arguments + self.results - self.shared + self.temporary + self.code


@dataclass(frozen=True)
class BatchResult:
    """The compiler's result for a batch size: its memory use, or the error for lack of memory."""

    batch: int | None  # per core; None if the step has no known batch
    sizes: Sizes | None
    shortfall: str  # such as "16.59G of 15.48G"; empty if it fits
    compiler_message: str  # in full
    seconds: float


@dataclass(frozen=True)
class Collective:
    """How often a program communicates between devices in this way, and the bytes of the results
    on each."""

    operation: str  # such as all-reduce
    count: int
    bytes: int


@dataclass(frozen=True)
class CompileReport:
    """The result of compiling a step for one core of a TPU type; with JAX, for all that it uses."""

    script: str
    type: str
    generation: str
    replicas: int
    tensorflow: str | None  # the version that lowered the step, None for JAX
    runtime: str | None  # the TensorFlow version of the type's runtime
    function: str = ""
    where: SourceLine | None = None
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    available_bytes: int | None = None  # a core's memory limit
    requested: BatchResult | None = None  # for the script's batch size or --batch
    alternatives: tuple[BatchResult, ...] = ()
    largest_batch: int | None = None  # per core, a power of two; 0 if not one example fits
    largest_is_exact: bool = False  # whether twice as many do not fit
    refusal: Refusal | None = None
    dynamic_dimensions: int = 0
    has_bfloat16: bool = False
    variable_bytes: int = 0
    notes: tuple[str, ...] = ()
    topology: str = ""  # of a slice, for JAX
    slices: int = 1  # that the step was compiled for
    jax: str | None = None  # the job's version
    libtpu: str | None = None  # the job's version, whose compiler was used
    collectives: tuple[Collective, ...] | None = None  # None if unknown

    @property
    def exit_code(self) -> int:
        """1 if it does not compile or the batch does not fit, otherwise 0."""
        fits = (
            self.refusal is None and self.requested is not None and self.requested.sizes is not None
        )
        return 0 if fits else 1

    def total_batch(self, batch: int) -> int:
        """The batch over all replicas."""
        return batch * self.replicas

    @property
    def batch(self) -> int | None:
        """The requested batch over all replicas, if it is known."""
        batch = self.requested.batch if self.requested is not None else None
        return self.total_batch(batch) if batch is not None else None

    @property
    def largest_total_batch(self) -> int | None:
        """The largest batch over all replicas, if it is known."""
        return self.total_batch(self.largest_batch) if self.largest_batch is not None else None


def source_line(plain: Mapping[str, Any] | None) -> SourceLine | None:
    """A source line as written by the shim."""
    if plain is None:
        return None
    return SourceLine(str(plain["file"]), int(plain["line"]), str(plain.get("text", "")))
