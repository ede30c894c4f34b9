"""Reads the program that JAX traced for a call: its constants and its random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class TracedProgram:
    """The program of a compiled function, from the cache of its traces."""

    def __init__(self, compiled: Any, arguments: Any, keywords: Any) -> None:
        self.program = compiled.trace(*arguments, **keywords).jaxpr

    @property
    def constant_bytes(self) -> int:
        """The size of the arrays that the function takes from outside, not as arguments."""
        return sum(int(getattr(constant, "nbytes", 0)) for constant in self.program.consts)

    @property
    def draws_by_key_alone(self) -> bool:
        """Whether it draws random numbers that depend on nothing but the keys that it is passed:
        it folds no other argument, such as the step's number, into one."""
        draws = False
        for equation in _equations(self.program.jaxpr):
            name = equation.primitive.name
            draws = draws or name == "random_bits"
            if name == "random_fold_in" and not hasattr(equation.invars[1], "val"):
                return False
        return draws


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, (list, tuple)) else [value]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)
