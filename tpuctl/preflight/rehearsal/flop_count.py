"""Counts a program's floating-point operations in its HLO text before optimization.

Only multiplications and additions of `dot` and `convolution` are counted: they dominate, and the
published peak performance of chips refers to them. The count is None if it is unknown, for
example because they are in a loop with an unknown number of iterations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
COUNTED = ("dot", "convolution")


@dataclass
class _Computation:
    operations: float = 0.0
    called: list[str] = field(default_factory=list)
    looped: list[str] = field(default_factory=list)


def count_operations(text: str) -> float | None:
    """The operations of one execution of the program; None if unknown."""
    computations, entry = _parse(text)
    if entry is None:
        return None
    try:
        operations = _total(entry, computations, ())
    except _Unknown:
        return None
    return None if math.isnan(operations) else operations


class _Unknown(Exception):
    """The count cannot be derived from the text."""


def _parse(text: str) -> tuple[dict[str, _Computation], str | None]:
    computations: dict[str, _Computation] = {}
    entry, computation = None, _Computation()
    shapes: dict[str, tuple[int, ...]] = {}
    for line in COMMENT.sub("", text).splitlines():
        head = COMPUTATION.match(line)
        if head is not None and not line.startswith("HloModule"):
            computation = computations.setdefault(head["name"], _Computation())
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
        if code in COUNTED and dims is not None:
            computation.operations += _operation_count(code, rest, dims, shapes)
        names = CALLED.findall(rest)
        for branches in BRANCHES.findall(rest):
            names += [branch.strip().lstrip("%") for branch in branches.split(",")]
        (computation.looped if code == "while" else computation.called).extend(names)
    return computations, entry


def _total(name: str, computations: Mapping[str, _Computation], callers: tuple[str, ...]) -> float:
    computation = computations.get(name)
    if computation is None or name in callers:
        raise _Unknown
    path = (*callers, name)
    if any(_total(callee, computations, path) for callee in computation.looped):
        raise _Unknown
    return computation.operations + math.fsum(
        _total(callee, computations, path) for callee in computation.called
    )


def _operation_count(
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
    # Dilation inserts zeros, which need no multiplication.
    return 2.0 * math.prod(result) * math.prod(sizes) * inputs / math.prod(dilated)


def _window(text: str, name: str) -> list[int]:
    match = re.search(rf"\b{name}=([\dx]+)", text)
    return [int(number) for number in match[1].split("x")] if match else []


def _numbers(text: str, name: str) -> list[int]:
    match = re.search(rf"{name}=\{{([\d,]*)\}}", text)
    return [int(number) for number in match[1].split(",") if number] if match else []


def _dims(text: str) -> tuple[int, ...] | None:
    """The dimensions of an array, bounded ones as their bounds; None for a tuple."""
    match = SHAPE.match(text)
    if match is None:
        return None
    return tuple(int(size.strip(" <=")) for size in match["dims"].split(",") if size.strip())
