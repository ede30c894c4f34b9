"""The report of a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Answer", "CompileReport", "Obstacle", "Refusal", "Sizes", "SourceLine", "source_line"]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's own code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Obstacle:
    """An operation that stands in the way, and the user's line that made it, where known."""

    operation: str
    where: SourceLine | None


@dataclass(frozen=True)
class Refusal:
    """Why there is no program. `by`: the script failed as it was traced, the compiler refused it,
    or tpuctl cannot hand it to the compiler, though a TPU may run it."""

    message: str
    origin: Literal["script", "compiler", "tpuctl"]
    where: SourceLine | None = None
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """Bytes of one core. New values of variables take the place of the old ones: `shared`."""

    arguments: int
    results: int
    shared: int
    temporary: int
    code: int

    @property
    def peak(self) -> int:
        """Everything at once: variables, batch, what lies between, and the program itself."""
        return self.arguments + self.results - self.shared + self.temporary + self.code


@dataclass(frozen=True)
class Answer:
    """What the compiler said of a batch: its sizes, or its words for too much."""

    batch: int | None  # of one core; None where the step has no batch that is known
    sizes: Sizes | None
    shortfall: str  # "16.59G of 15.48G"; empty where it fits
    compiler_message: str  # the compiler's own, in full
    seconds: float


@dataclass(frozen=True)
class CompileReport:
    """A step on one core of a TPU type, as its compiler sees it."""

    script: str
    type: str
    generation: str
    replicas: int
    tensorflow: str  # that it was lowered with
    runtime: str | None  # that the type's runtime has
    function: str = ""
    where: SourceLine | None = None
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    available_bytes: int | None = None  # of a core, for one program
    requested: Answer | None = None  # of the script's batch, or the one of --batch
    alternatives: tuple[Answer, ...] = ()
    largest_batch: int | None = None  # of one core, a power of two; 0 where not one fits
    largest_is_exact: bool = False  # the next one was refused
    refusal: Refusal | None = None
    dynamic_dimensions: int = 0
    has_bfloat16: bool = False
    variable_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 where it does not compile, or the batch does not fit."""
        fits = (
            self.refusal is None and self.requested is not None and self.requested.sizes is not None
        )
        return 0 if fits else 1

    def total_batch(self, batch: int) -> int:
        """The batch over all replicas."""
        return batch * self.replicas

    def as_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        for answer in (plain["requested"], *plain["alternatives"]):
            if answer and answer["sizes"]:
                answer["peak"] = Sizes(**answer["sizes"]).peak
        batch = self.requested.batch if self.requested is not None else None
        plain["batch_per_core"] = batch
        plain["batch"] = self.total_batch(batch) if batch is not None else None
        plain["largest_total_batch"] = (
            self.total_batch(self.largest_batch) if self.largest_batch is not None else None
        )
        return plain


def source_line(plain: Mapping[str, Any] | None) -> SourceLine | None:
    """What the shim wrote of a line."""
    if plain is None:
        return None
    return SourceLine(str(plain["file"]), int(plain["line"]), str(plain.get("text", "")))
