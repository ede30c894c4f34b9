"""Finds arguments whose first dimension is one of a loop in the step, not the batch."""

from __future__ import annotations

from typing import Any

SLICES = ("slice", "dynamic_slice")
# What passes an array on as it is, apart from its type and its place.
COPIES = ("convert_element_type", "copy", "sharding_constraint", "optimization_barrier")
BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def is_looped(program: Any, argument: Any) -> bool:
    """Whether a jaxpr takes an input, one of its variables, element by element of its first
    dimension: in `jax.lax.scan`, or by indexing."""
    return any(
        _takes_elements(equation, position) or _passes_on(equation, position)
        for equation in program.eqns
        for position, variable in enumerate(equation.invars)
        if variable is argument
    ) or any(
        is_looped(program, equation.outvars[0])
        for equation in program.eqns
        if equation.primitive.name in COPIES and equation.invars[0] is argument
    )


def _takes_elements(equation: Any, position: int) -> bool:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return bool(position >= params["num_consts"] + params["num_carry"])
    if name in SLICES and position == 0:
        size = equation.outvars[0].aval.shape[:1]
        return bool(size == (1,) and equation.invars[0].aval.shape[0] > 1)
    return False


def _passes_on(equation: Any, position: int) -> bool:
    """Whether a function, a body or a branch that gets the input takes it element by element."""
    name, params = equation.primitive.name, equation.params
    if name == "while":
        bodies, offset = [params["body_jaxpr"]], params["cond_nconsts"]
    elif name == "cond":
        bodies, offset = params["branches"], 1
    else:
        bodies, offset = [params[key] for key in BODIES if key in params], 0
    programs = [getattr(body, "jaxpr", body) for body in bodies]
    return any(
        is_looped(program, program.invars[position - offset])
        for program in programs
        if 0 <= position - offset < len(program.invars)
    )
