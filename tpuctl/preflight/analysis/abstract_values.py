"""What an expression is while XLA's program is traced: Python's own, or a tensor of some kind."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from enum import IntEnum

from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.syntax import Function

__all__ = [
    "KNOWN",
    "OBJECT",
    "STATIC",
    "TENSOR",
    "UNKNOWN",
    "Closure",
    "Kind",
    "Owner",
    "Scope",
    "Value",
    "container",
    "join",
]


Owner = tuple[Module, ast.ClassDef]


class Kind(IntEnum):
    """What is further down wins where two ways meet."""

    STATIC = 0  # a Python value
    OBJECT = 1  # a layer, a data set, an optimizer: not a tensor
    UNKNOWN = 2
    KNOWN = 3  # a tensor whose value the compiler may know, as `tf.shape(x)[0]`
    TENSOR = 4
    SPARSE = 5
    RAGGED = 6


@dataclass(frozen=True)
class Value:
    """What is known of the values that an expression may have."""

    kind: Kind
    is_boolean: bool = False
    # A tensor, or a structure of them: a parameter, or what a layer returns.
    is_structure: bool = False
    items: tuple[Value, ...] | None = None  # of a tuple or list of a length that is known
    element: Value | None = None  # what is in a list or dictionary
    name: str = ""  # of a library's class that an object is of, or of a function of it
    closure: Closure | None = None  # a function of the project's own

    @property
    def is_tensor(self) -> bool:
        """Whether it surely is one tensor while the program is traced."""
        return self.kind >= Kind.KNOWN and not self.is_structure

    @property
    def is_computed(self) -> bool:
        """Whether it surely is a tensor whose value comes only when the program runs."""
        return self.kind >= Kind.TENSOR and not self.is_structure

    @property
    def is_symbolic(self) -> bool:
        """Whether it is a tensor, or a structure with tensors."""
        return self.kind >= Kind.KNOWN

    @property
    def is_constant(self) -> bool:
        """Whether the compiler knows it, and all that is in it."""
        items = (self.items or (self.inner,)) if self.is_container else (self,)
        return all(item.kind in (Kind.STATIC, Kind.KNOWN) for item in items)

    @property
    def is_container(self) -> bool:
        return self.items is not None or self.element is not None

    @property
    def inner(self) -> Value:
        """What iterating over it gives."""
        if self.items:
            return join(*self.items)
        if self.element is not None:
            return self.element
        if self.kind is Kind.KNOWN:
            return replace(self, kind=Kind.TENSOR)
        if self.kind in (Kind.OBJECT, Kind.RAGGED):
            return TENSOR if self.kind is Kind.RAGGED else UNKNOWN
        return replace(self, name="", closure=None)

    @property
    def single(self) -> Value:
        """The same, known to be one tensor: operations on structures fail."""
        return replace(self, is_structure=False) if self.is_structure else self


STATIC = Value(Kind.STATIC)
UNKNOWN = Value(Kind.UNKNOWN)
OBJECT = Value(Kind.OBJECT)
KNOWN = Value(Kind.KNOWN)
TENSOR = Value(Kind.TENSOR)


@dataclass(eq=False)
class Scope:
    """The names of a function while it is looked through."""

    module: Module
    node: ast.AST
    names: dict[str, Value] = field(default_factory=dict)
    enclosing: Scope | None = None
    owner: Owner | None = None  # the class whose method it is

    def find(self, name: str) -> Value | None:
        if name in self.names:
            return self.names[name]
        return None if self.enclosing is None else self.enclosing.find(name)


@dataclass(frozen=True)
class Closure:
    """A function of the project's own, and the names that it sees."""

    module: Module
    node: Function
    scope: Scope | None = None
    owner: Owner | None = None
    bound: tuple[Value, ...] = ()  # the first arguments, where they are given already


def join(*values: Value) -> Value:
    """What holds for a value that is one of several."""
    if not values:
        return UNKNOWN
    first = values[0]
    for value in values[1:]:
        if value is not first and value != first:
            first = _join_two(first, value)
    return first


def _join_two(left: Value, other: Value) -> Value:
    strong, weak = (left, other) if left.kind >= other.kind else (other, left)
    if strong.kind == weak.kind == Kind.STATIC and left.is_container and other.is_container:
        return container([join(left.inner, other.inner)])
    if strong.kind is Kind.UNKNOWN and weak.kind is Kind.OBJECT:
        strong = weak  # most is made under a condition, or is None before
    return replace(
        strong,
        is_boolean=left.is_boolean or other.is_boolean,
        is_structure=strong.is_structure,
        name=strong.name or weak.name if weak.kind == strong.kind else strong.name,
        closure=strong.closure or weak.closure,
    )


def container(values: list[Value]) -> Value:
    """A list or dictionary of some of these."""
    return Value(Kind.STATIC, element=join(*values) if values else STATIC)
