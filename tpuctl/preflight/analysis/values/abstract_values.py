"""Abstract values of expressions: Python values, objects and tensors, with known constants."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from enum import IntEnum

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.program.syntax import Function
from tpuctl.preflight.analysis.values.constants import Constant, Constants, alternatives

Owner = tuple[Module, ast.ClassDef]


class Kind(IntEnum):
    """Kinds of values; joining two branches keeps the larger."""

    STATIC = 0  # a Python value
    OBJECT = 1  # a layer, dataset or optimizer: not a tensor
    UNKNOWN = 2
    KNOWN = 3  # a tensor whose value the compiler may know, such as `tf.shape(x)[0]`
    TENSOR = 4
    SPARSE = 5
    RAGGED = 6


@dataclass(frozen=True)
class Value:
    """An abstraction of the possible values of an expression."""

    kind: Kind
    is_boolean: bool = False
    is_number: bool = False  # certainly a Python number, in host code
    # A tensor or a structure of tensors, such as a parameter or the result of a layer; of a KNOWN
    # one, a tensor or a Python number, such as `x.shape[0] or tf.shape(x)[0]`.
    is_structure: bool = False
    items: tuple[Value, ...] | None = None  # of a tuple or list of known length
    element: Value | None = None  # of a list or dictionary of unknown length
    # Of a dictionary by constant key; of an object by keyword argument of its constructor.
    fields: tuple[tuple[object, Value], ...] = ()
    name: str = ""  # the class or function of a library
    owner: Owner | None = None  # the project's class that it is, or is an instance of
    is_class: bool = False
    closure: Closure | None = None  # a function of the project
    # The values that host code may compute for it; of a collection, such as the matches of a
    # pattern, those of its elements. Empty if unknown, and in traced code.
    constants: Constants = ()

    @property
    def is_tensor(self) -> bool:
        """Whether it is certainly a single tensor during tracing."""
        return self.kind >= Kind.KNOWN and not self.is_structure

    @property
    def is_computed(self) -> bool:
        """Whether it is certainly a tensor whose value is known only at run time."""
        return self.kind >= Kind.TENSOR and not self.is_structure

    @property
    def is_symbolic(self) -> bool:
        """Whether it is a tensor or a structure of tensors."""
        return self.kind >= Kind.KNOWN

    @property
    def is_constant(self) -> bool:
        """Whether its value and those of its elements are known at compile time."""
        items = (self.items or (self.inner,)) if self.is_container else (self,)
        return all(item.kind in (Kind.STATIC, Kind.KNOWN) for item in items)

    @property
    def is_container(self) -> bool:
        return self.items is not None or self.element is not None

    @property
    def inner(self) -> Value:
        """The value of its elements when iterated."""
        if self.items:
            return join(*self.items)
        if self.element is not None:
            return self.element
        if self.kind is Kind.KNOWN:
            return replace(self, kind=Kind.TENSOR)
        if self.kind in (Kind.OBJECT, Kind.RAGGED):
            return (TENSOR if self.kind is Kind.RAGGED else UNKNOWN).holding(self.constants)
        is_plain = not (self.name or self.closure)
        return self if is_plain else replace(self, name="", closure=None)

    def item(self, number: int) -> Value:
        """The value of an item; negative numbers count from the end."""
        items = self.items or ()
        return items[number] if -len(items) <= number < len(items) else self.inner

    def field(self, key: object) -> Value | None:
        """The value of a constant key or of a keyword argument, if it is known."""
        return next((value for name, value in self.fields if name == key), None)

    @property
    def all_constants(self) -> Constants:
        """The constants of the value, or those of its elements."""
        if self.constants or not self.is_container:
            return self.constants
        items = self.items or ((self.element,) if self.element is not None else ())
        return alternatives(item.all_constants for item in items)

    def holding(self, constants: Constants) -> Value:
        """The same value with these constants instead of its own."""
        return self if self.constants == constants else replace(self, constants=constants)

    @property
    def opaque(self) -> Value:
        """The same value without what only host code determines, also of its elements."""
        if not self.is_container:
            is_plain = not (self.constants or self.is_number)
            return self if is_plain else replace(self, is_number=False, constants=())
        items = None if self.items is None else tuple(item.opaque for item in self.items)
        element = None if self.element is None else self.element.opaque
        return replace(self, items=items, element=element, fields=(), constants=())

    @property
    def single(self) -> Value:
        """The value as a single tensor, since operations on structures fail; what may be a size
        that Python knows remains that."""
        if not self.is_structure or self.kind is Kind.KNOWN:
            return self
        return replace(self, is_structure=False)


STATIC = Value(Kind.STATIC)
NUMBER = Value(Kind.STATIC, is_number=True)
UNKNOWN = Value(Kind.UNKNOWN)
OBJECT = Value(Kind.OBJECT)
KNOWN = Value(Kind.KNOWN)
TENSOR = Value(Kind.TENSOR)
STRUCTURE = Value(Kind.TENSOR, is_structure=True)  # tensors, in a nest of containers


@dataclass(eq=False)
class Scope:
    """The names of a function while it is analyzed."""

    module: Module
    node: ast.AST
    names: dict[str, Value] = field(default_factory=dict)
    enclosing: Scope | None = None
    owner: Owner | None = None  # the class of a method

    def find(self, name: str) -> Value | None:
        if name in self.names:
            return self.names[name]
        return None if self.enclosing is None else self.enclosing.find(name)


@dataclass(frozen=True)
class Closure:
    """A function of the project and its enclosing scope."""

    module: Module
    node: Function
    scope: Scope | None = None
    owner: Owner | None = None
    bound: tuple[Value, ...] = ()  # leading arguments that are already bound


def join(*values: Value) -> Value:
    """The value of an expression that has one of several values."""
    if not values:
        return UNKNOWN
    joined = values[0]
    for value in values[1:]:
        if value is not joined and value != joined:
            joined = _join_two(joined, value)
    if len(values) > 1 and not all(value.is_container for value in values):
        return joined.holding(alternatives(value.all_constants for value in values))
    return joined


def _join_two(left: Value, right: Value) -> Value:
    strong, weak = (left, right) if left.kind >= right.kind else (right, left)
    if strong.kind == weak.kind == Kind.STATIC and left.is_container and right.is_container:
        if left.items and right.items and len(left.items) == len(right.items):
            pairs = zip(left.items, right.items, strict=True)
            return Value(Kind.STATIC, items=tuple(join(*pair) for pair in pairs))
        return container([join(left.inner, right.inner)])
    if strong.kind is Kind.UNKNOWN and weak.kind is Kind.OBJECT:
        strong = weak  # most objects are created conditionally, or None at first
    return replace(
        strong,
        is_boolean=left.is_boolean or right.is_boolean,
        is_number=left.is_number and right.is_number,
        is_structure=strong.is_structure or _may_be_other(strong, weak),
        fields=(),
        name=strong.name or weak.name if weak.kind == strong.kind else strong.name,
        owner=strong.owner or weak.owner,
        is_class=(strong if strong.owner else weak).is_class,
        closure=strong.closure or weak.closure,
    )


def _may_be_other(tensor: Value, other: Value) -> bool:
    """Whether what may be a tensor may also be a structure of tensors, or a size that Python
    knows."""
    if tensor.kind is Kind.KNOWN and other.kind is Kind.STATIC:
        return True
    return tensor.is_symbolic and (other.is_container or (other.is_symbolic and other.is_structure))


def constant(value: str | float | None) -> Value:
    """A Python value that is written in the source."""
    is_number = type(value) in (int, float)
    return Value(Kind.STATIC, isinstance(value, bool), is_number, constants=(Constant(value),))


def container(values: list[Value]) -> Value:
    """A list or dictionary with such elements."""
    return Value(Kind.STATIC, element=join(*values) if values else STATIC)
