"""How many floating-point operations a program takes, from its HLO text before optimization.

Counted are multiplications and additions of `dot` and `convolution`, which are nearly all of what
a chip's published peak speaks of. None where that cannot be told: a loop around them may run any
number of times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["operations_of"]

COMPUTATION = re.compile(r"^\s*(?P<entry>ENTRY\s+)?%?(?P<name>[\w.\-]+)\s*(?:\([^=]*)?\{\s*$")
INSTRUCTION = re.compile(
    r"^\s*(?:ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*(?P<type>\([^=]*?\)|\S+)\s+(?P<code>[\w\-]+)\("
)
COMMENT = re.compile(r"/\*.*?\*/")
SHAPE = re.compile(r"\w+\[(?P<dims>[\d,<= ]*)\]")
OPERAND = re.compile(r"(?:\w+\[[\d,<= ]*\](?:\{[^}]*\})?\s+)?%?([A-Za-z_][\w.\-]*)")
CALLED = re.compile(
    r"(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
HEAVY = ("dot", "convolution")


@dataclass
class _Computation:
    operations: float = 0.0
    called: list[str] = field(default_factory=list)
    looped: list[str] = field(default_factory=list)


def operations_of(text: str) -> float | None:
    """Of one execution of the program; None where it cannot be told."""
    computations, entry = _read(text)
    if entry is None:
        return None
    try:
        operations = _total(entry, computations, ())
    except _Unknown:
        return None
    return None if math.isnan(operations) else operations


class _Unknown(Exception):
    """The number depends on what is not in the text."""


def _read(text: str) -> tuple[dict[str, _Computation], str | None]:
    found: dict[str, _Computation] = {}
    entry, here = None, _Computation()
    shapes: dict[str, tuple[int, ...]] = {}
    for line in COMMENT.sub("", text).splitlines():
        head = COMPUTATION.match(line)
        if head is not None and not line.startswith("HloModule"):
            here = found.setdefault(head["name"], _Computation())
            shapes = {}
            if head["entry"]:
                entry = head["name"]
            continue
        match = INSTRUCTION.match(line)
        if match is None:
            continue
        dims = _dims(match["type"])
        if dims is not None:
            shapes[match["name"]] = dims
        code, rest = match["code"], line[match.end() :]
        if code in HEAVY and dims is not None:
            here.operations += _heavy(code, rest, dims, shapes)
        names = CALLED.findall(rest)
        for several in BRANCHES.findall(rest):
            names += [branch.strip().lstrip("%") for branch in several.split(",")]
        (here.looped if code == "while" else here.called).extend(names)
    return found, entry


def _total(name: str, computations: Mapping[str, _Computation], within: tuple[str, ...]) -> float:
    computation = computations.get(name)
    if computation is None or name in within:
        raise _Unknown
    inside = (*within, name)
    if any(_total(each, computations, inside) for each in computation.looped):
        raise _Unknown
    return computation.operations + math.fsum(
        _total(each, computations, inside) for each in computation.called
    )


def _heavy(
    code: str, rest: str, result: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
) -> float:
    operands = OPERAND.findall(rest.partition(")")[0])
    if len(operands) < 2 or operands[0] not in shapes or operands[1] not in shapes:
        return math.nan
    left, right = shapes[operands[0]], shapes[operands[1]]
    if code == "dot":
        contracted = [left[at] for at in _numbers(rest, "lhs_contracting_dims")]
        return 2.0 * math.prod(result) * math.prod(contracted)
    window = re.search(r"window=\{([^}]*)\}", rest)
    labels = re.search(r"dim_labels=\w+_(\w+)->", rest)
    if labels is None:
        return math.nan
    sizes = _window(window[1] if window else "", "size")
    dilated = _window(window[1] if window else "", "lhs_dilate")
    inputs = right[labels[1].index("i")]
    # Dilation puts zeros between what is there, which take no multiplication.
    return 2.0 * math.prod(result) * math.prod(sizes) * inputs / math.prod(dilated)


def _window(text: str, name: str) -> list[int]:
    match = re.search(rf"\b{name}=([\dx]+)", text)
    return [int(number) for number in match[1].split("x")] if match else []


def _numbers(text: str, name: str) -> list[int]:
    match = re.search(rf"{name}=\{{([\d,]*)\}}", text)
    return [int(number) for number in match[1].split(",") if number] if match else []


def _dims(text: str) -> tuple[int, ...] | None:
    """Of an array; a bounded dimension counts with its bound. None for a tuple."""
    match = SHAPE.match(text)
    if match is None:
        return None
    return tuple(int(size.strip(" <=")) for size in match["dims"].split(",") if size.strip())
