"""The observations that the shim writes in a rehearsed script's process, one JSON line each.

The shim (tpuctl/preflight/shim) does not import tpuctl, so tests rather than shared code keep
both sides of the format consistent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Where:
    """A line of the user's code."""

    file: Path  # absolute
    line: int  # from 1
    text: str = ""  # the source line, stripped

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Shape:
    """A tensor's type and dimensions; an unknown dimension is None."""

    dtype: str
    dims: tuple[int | None, ...] | None  # None if the rank is unknown

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if dim is None else str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class Operation:
    """An operation that XLA rejected; `where` is the user's line that created it."""

    operation: str
    where: Where | None = None


@dataclass(frozen=True)
class Failure:
    """The exception that ended a script."""

    type: str
    message: str
    where: Where | None = None
    is_tpuctls: bool = False  # whether the shim raised it, not what it calls for the script


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A single observation. If a script starts several processes, all are observed."""

    process: int = 0  # the process ID
    at: float = 0.0  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class Started(Observation):
    """A Python process imported TensorFlow, trains with another framework, or exited."""

    tensorflow: str | None = None
    jax: str | None = None  # its version, if it trains or the process imported nothing else
    torch: str | None = None  # the same for PyTorch
    torch_xla: str | None = None  # if it was imported
    keras: str | None = None  # the version of tf.keras
    devices: tuple[str, ...] = ()  # logical devices
    script: str = ""  # sys.argv, joined by spaces
    others: tuple[str, ...] = ()  # other frameworks that were imported: jax, torch


@dataclass(frozen=True, kw_only=True)
class Strategy(Observation):
    """A distribution strategy was created; `is_stub` if it stands in for a TPU's."""

    name: str
    replicas: int
    where: Where | None = None
    is_stub: bool = False


@dataclass(frozen=True, kw_only=True)
class Resolver(Observation):
    """A TPUClusterResolver was created (`where`), or the TPU system initialized (`initialized`)."""

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
    program: str | None = None  # file with the HLO text; only for a function's first compilation
    trains: bool = True  # computes gradients; False for evaluation, prediction and so on
    # With JAX or PyTorch/XLA:
    names: tuple[str, ...] = ()  # of the arguments in `shapes`, which exclude the state
    changes: tuple[str, ...] = ()  # of the arguments since the previous compilation
    devices: int | None = None  # that the results are on
    constants: int = 0  # bytes of arrays that are not arguments
    after_step: int | None = None  # an operation outside of any function, so many steps before it


@dataclass(frozen=True, kw_only=True)
class Traced(Observation):
    """A tf.function was traced or retraced, not necessarily compiled."""

    function: str
    where: Where | None = None
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused(Observation):
    """Tracing, lowering or XLA rejected a function."""

    function: str
    where: Where | None = None
    message: str = ""
    operations: tuple[Operation, ...] = ()
    is_soft: bool = False  # whether TensorFlow may run the operations on a TPU's host instead


@dataclass(frozen=True, kw_only=True)
class Step(Observation):
    """One training step; a call that runs several steps writes one observation for each."""

    number: int  # from 1
    seconds: float
    waited: float | None = None  # seconds of waiting for data; None if unknown
    loss: float | None = None  # may be NaN or infinite
    examples: int | None = None  # the global batch size


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Observation):
    """A checkpoint, weights or a whole model were saved or restored."""

    action: Literal["saved", "restored"]
    path: str
    step: int | None = None
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Postponed(Observation):
    """Orbax's manager did not save at a step: its interval is longer."""

    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Planned(Observation):
    """The length of the full run, as passed to fit; None if unknown."""

    steps: int | None = None
    epochs: int | None = None
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Eager(Observation):
    """The script trains eagerly, outside of a tf.function, or with PyTorch without XLA."""

    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Fetched(Observation):
    """The script read the value of an array or a tensor on a device after a step."""

    after_step: int
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Callback(Observation):
    """A function compiled by JAX calls back to the host."""

    function: str  # such as jax.debug.print
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Distributed(Observation):
    """The script called `jax.distributed.initialize` or `torch_xla.launch`."""

    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class SameKey(Observation):
    """All steps of a script with JAX drew random numbers by the same key alone."""


@dataclass(frozen=True, kw_only=True)
class Configured(Observation):
    """The script gave a setting of JAX a value that slows every step down."""

    setting: str  # such as jax_debug_nans
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Diverged(Observation):
    """Devices hold different copies of what a step with JAX returns as replicated state."""

    function: str
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Joint(Observation):
    """A process called what all processes of a slice must call, in the same order."""

    function: str  # compiled by JAX, or of multihost_utils
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting(Observation):
    """The script has not moved from a line for a while, perhaps waiting for another process."""

    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Unsynchronized(Observation):
    """A step of PyTorch/XLA (`where`: its update) was followed by the next one without a call of
    `torch_xla.sync`."""

    after_step: int
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Fallback(Observation):
    """PyTorch/XLA ran an operation on the host in a step: XLA does not have it."""

    operation: str  # such as aten::linalg_eig
    after_step: int
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class NonFinite(Observation):
    """Parameters with values that are infinite or not a number."""

    parameters: int
    total: int
    after_step: int


@dataclass(frozen=True, kw_only=True)
class Captured(Observation):
    """The training step was captured for lowering instead of being executed."""

    function: str
    where: Where | None = None


@dataclass(frozen=True, kw_only=True)
class Read(Observation):
    """A data file was opened for reading through TensorFlow."""

    path: str
    missing: bool = False  # a bucket's object that does not exist


@dataclass(frozen=True, kw_only=True)
class Wrote(Observation):
    """A file was opened for writing, by Python, or through TensorFlow, which also copies them."""

    path: str


@dataclass(frozen=True, kw_only=True)
class Ended(Observation):
    """The process exited; not written if it was killed from outside."""

    reason: Literal["steps", "finished", "failed"]
    exit: int | None = None
    error: Failure | None = None
    grace_expired: bool = False  # still running at the end of the grace period after SIGTERM


@dataclass(frozen=True, kw_only=True)
class ShimFailed(Observation):
    """Part of the shim failed; the script continued without it."""

    action: str
    traceback: str = ""


# By their names in a line: the class's in lowercase.
KINDS: Mapping[str, type[Observation]] = {
    "shim-failed": ShimFailed,
    **{kind.__name__.lower(): kind for kind in Observation.__subclasses__()},
}


def read(path: Path) -> list[Observation]:
    """The observations in a file, in order; none if it does not exist.

    An incomplete last line, of a process that was killed or is still writing, is ignored. Any
    other invalid line becomes a ShimFailed.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    *lines, _ = content.split(b"\n")
    return list(parse(line.decode("utf-8", "replace") for line in lines))


def parse(lines: Iterable[str]) -> Iterable[Observation]:
    """Parse complete lines, ignoring blank ones; see `read` for invalid lines."""
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
    """Convert a field's value; names have the same meaning in all kinds."""
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
        where, is_tpuctls = _where(plain.get("where")), bool(plain.get("is_tpuctls"))
        return Failure(str(plain["type"]), str(plain["message"]), where, is_tpuctls)
    if isinstance(plain, list):
        return tuple(str(item) for item in plain)
    return plain


def _shape(dtype: str, dims: list[int | None] | None) -> Shape:
    return Shape(str(dtype), None if dims is None else tuple(dims))


def _where(plain: dict[str, Any] | None) -> Where | None:
    if plain is None:
        return None
    return Where(Path(plain["file"]), int(plain["line"]), str(plain.get("text") or ""))
