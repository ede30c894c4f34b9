"""What the shim in a rehearsed script's process wrote down, line by line, as values.

The shim (tpuctl/preflight/shim) imports nothing of tpuctl, so the form of its lines is held
between the two by tests, not by shared code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "Captured",
    "Checkpoint",
    "Compiled",
    "Eager",
    "Ended",
    "Failure",
    "Observation",
    "Operation",
    "Planned",
    "Read",
    "Refused",
    "Resolver",
    "Shape",
    "ShimFailed",
    "Started",
    "Step",
    "Strategy",
    "Traced",
    "Where",
    "Wrote",
    "parse",
    "read",
]


@dataclass(frozen=True)
class Where:
    """A line of the user's own code."""

    file: Path  # absolute
    line: int  # from 1
    text: str = ""  # the source line, without space around it

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Shape:
    """A tensor's type and dimensions; a dimension is None where it is not known."""

    dtype: str
    dims: tuple[int | None, ...] | None  # None: not even their number is known

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if dim is None else str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class Operation:
    """An operation that was refused; `where` is the user's line that made it."""

    operation: str
    where: Where | None = None


@dataclass(frozen=True)
class Failure:
    """The exception that ended a script."""

    type: str
    message: str
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One thing that was seen. A script may start several processes that are all observed."""

    process: int = 0  # its id
    at: float = 0.0  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class Started(Observation):
    """A process with Python began, or came to know its TensorFlow.

    Where a script does without TensorFlow this is all that is seen of it, beside its end; with
    TensorFlow there are two: the first before TensorFlow is imported.
    """

    tensorflow: str | None = None
    keras: str | None = None  # of the Keras that tf.keras is
    devices: tuple[str, ...] = ()  # logical ones
    script: str = ""  # sys.argv, as one line
    others: tuple[str, ...] = ()  # frameworks imported instead: jax, torch


@dataclass(frozen=True, kw_only=True)
class Strategy(Observation):
    """A distribution strategy was made; `stands_in` where it plays a TPU's."""

    name: str
    replicas: int
    where: Where | None = None
    stands_in: bool = False


@dataclass(frozen=True, kw_only=True)
class Resolver(Observation):
    """A TPUClusterResolver was made (`where`), or the TPU system initialized (`initialized`)."""

    where: Where | None = None
    initialized: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled(Observation):
    """One XLA compilation of a function for one set of shapes."""

    function: str
    where: Where | None = None
    seconds: float = 0.0
    shapes: tuple[Shape, ...] = ()
    dynamic: int | None = None  # bounded dynamic dimensions in the program before optimization
    peak: int | None = None  # bytes: arguments, results and temporaries
    program: str | None = None  # a file with its text; of a function's first compilation alone
    trains: bool = True  # it computes gradients; False for evaluation, prediction and others


@dataclass(frozen=True, kw_only=True)
class Traced(Observation):
    """A tf.function was traced anew, which need not mean a compilation."""

    function: str
    where: Where | None = None
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused(Observation):
    """XLA, or what leads to it, refused a function."""

    function: str
    where: Where | None = None
    message: str = ""
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step(Observation):
    """One training step; a call that takes several steps gives as many of these."""

    number: int  # from 1
    seconds: float
    waited: float | None = None  # of them, for data; None where it cannot be told
    loss: float | None = None  # may be NaN or infinite
    examples: int | None = None  # the global batch


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Observation):
    """A checkpoint, or weights, or a whole model, written or read."""

    action: Literal["saved", "restored"]
    path: str
    step: int | None = None
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Planned(Observation):
    """What the script would do in full; None where it is not known."""

    steps: int | None = None
    epochs: int | None = None
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Eager(Observation):
    """The script trains without tf.function (run_eagerly), which was left as it is."""

    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Captured(Observation):
    """The training step was handed over to be lowered instead of being executed."""

    function: str
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Read(Observation):
    """A data file was opened through TensorFlow to be read."""

    path: str
    missing: bool = False  # an object of a bucket that is not there


@dataclass(frozen=True, kw_only=True)
class Wrote(Observation):
    """A file was opened through TensorFlow to be written, or made by a copy or a new name."""

    path: str


@dataclass(frozen=True, kw_only=True)
class Ended(Observation):
    """The process ended; one killed from outside leaves no such line."""

    reason: Literal["steps", "finished", "failed"]
    exit: int | None = None
    error: Failure | None = None
    hard: bool = False  # it went on after SIGTERM, through the grace


@dataclass(frozen=True, kw_only=True)
class ShimFailed(Observation):
    """Something of the shim itself went wrong; the script went on without it."""

    action: str
    traceback: str = ""


KINDS: Mapping[str, type[Observation]] = {
    "captured": Captured,
    "checkpoint": Checkpoint,
    "compiled": Compiled,
    "eager": Eager,
    "ended": Ended,
    "planned": Planned,
    "read": Read,
    "refused": Refused,
    "resolver": Resolver,
    "shim-failed": ShimFailed,
    "started": Started,
    "step": Step,
    "strategy": Strategy,
    "traced": Traced,
    "wrote": Wrote,
}


def read(path: Path) -> list[Observation]:
    """What was observed so far, in order; nothing where there is no such file.

    The last line may be half-written by a process that was killed, or that still writes: it is
    left out. Any other line that cannot be understood becomes a ShimFailed.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    *lines, _ = content.split(b"\n")
    return list(parse(line.decode("utf-8", "replace") for line in lines))


def parse(lines: Iterable[str]) -> Iterable[Observation]:
    """The observations that whole lines stand for, one for each that is not blank."""
    for line in lines:
        if not line.strip():
            continue
        try:
            yield _observation(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"invalid observation ({error}): {line[:200]}"
            yield ShimFailed(action=problem)


def _observation(plain: dict[str, Any]) -> Observation:
    kind = KINDS[plain.pop("kind")]
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: _value(name, plain[name]) for name in plain if name in names})


def _value(name: str, plain: Any) -> Any:
    """A field's value: these names mean the same in all kinds."""
    if plain is None:
        return None
    if name in ("where", "initialized"):
        return _where(plain)
    if name == "shapes":
        return tuple(_shape(*shape) for shape in plain)
    if name == "operations":
        return tuple(
            Operation(str(operation["operation"]), _where(operation.get("where")))
            for operation in plain
        )
    if name == "error":
        return Failure(str(plain["type"]), str(plain["message"]), _where(plain.get("where")))
    if name in ("devices", "others"):
        return tuple(str(item) for item in plain)
    return plain


def _shape(dtype: str, dims: list[int | None] | None) -> Shape:
    return Shape(str(dtype), None if dims is None else tuple(dims))


def _where(plain: dict[str, Any] | None) -> Where | None:
    if plain is None:
        return None
    return Where(Path(plain["file"]), int(plain["line"]), str(plain.get("text") or ""))
