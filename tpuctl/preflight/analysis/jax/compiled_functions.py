"""The functions of a project that JAX compiles, and what is passed to its compilers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tpuctl.preflight.analysis.program.functions import Reference, keras_bases, reference_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    Function,
    argument,
    dotted,
    elements_of,
    parameters_of,
    title,
)
from tpuctl.preflight.analysis.program.tensorflow_calls import KERAS_METHODS
from tpuctl.preflight.analysis.program.wrappers import COMPILERS, FILTERED, PARTIAL, TRANSFORMS
from tpuctl.preflight.analysis.tracing.reachability import Caller, reachability_of
from tpuctl.preflight.analysis.tracing.traced import Traced, is_traced_base

# Functions that trace their arguments wherever they are called: positions and names of these.
CONTROL_FLOW = {
    "jax.lax.scan": {0: "f"},
    "jax.lax.map": {0: "f"},
    "jax.lax.cond": {1: "true_fun", 2: "false_fun"},
    "jax.lax.switch": {1: "branches"},
    "jax.lax.while_loop": {0: "cond_fun", 1: "body_fun"},
    "jax.lax.fori_loop": {2: "body_fun"},
}
GRADIENTS = ("grad", "value_and_grad", "filter_grad", "filter_value_and_grad")
ARRAYS = ("jax.Array", "jax.numpy.ndarray", "jaxtyping.Array", "chex.Array")
SHAPED_ARRAYS = ("jaxtyping.Float", "jaxtyping.Int", "jaxtyping.Bool", "jaxtyping.Num")


class Compiled(NamedTuple):
    """A function that `jax.jit` or a similar function compiles."""

    name: str  # of the compiler, such as "jax.jit"
    module: Module  # of the call or decorator
    keywords: tuple[ast.keyword, ...]  # of the compiler
    reference: Reference | None  # the function, if it is the project's
    is_method: bool = False  # whether it is called without its first parameter
    is_decorated: bool = False  # and whether positions count that parameter nevertheless
    is_wrapped: bool = False  # by a decorator that may change its arguments
    is_gradient: bool = False  # of the function, as in `jax.jit(jax.grad(f))`

    def keyword(self, name: str) -> ast.expr | None:
        return next((keyword.value for keyword in self.keywords if keyword.arg == name), None)

    def constants(self, name: str) -> list[object]:
        """The constants in an option such as `donate_argnums`, if all are known."""
        return _constants(self.keyword(name)) or []

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that calls pass by position."""
        return self._parameters[self.is_method :]

    @property
    def _parameters(self) -> list[str]:
        if self.reference is None:
            return []
        arguments = self.reference.function.args
        names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
        return names[self.reference.positional :]

    @property
    def static(self) -> frozenset[str] | None:
        """The parameters that are not traced; None if that is not known."""
        numbers, names = (self.keyword(name) for name in COMPILERS[self.name])
        has_others = self.is_wrapped or any(keyword.arg is None for keyword in self.keywords)
        if self.name in FILTERED or has_others:
            return None
        positions, titles = _constants(numbers), _constants(names)
        if positions is None or titles is None:
            return None
        parameters = self._parameters if self.is_decorated else self.parameters
        by_position = {
            parameters[position]
            for position in positions
            if isinstance(position, int) and -len(parameters) <= position < len(parameters)
        }
        return frozenset(by_position | {title for title in titles if isinstance(title, str)})


def _constants(node: ast.expr | None) -> list[object] | None:
    """The constants in an option such as `static_argnums`; None if they are not written there."""
    values: list[object] = []
    for part in elements_of(node):
        is_negative = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
        inner = part.operand if isinstance(part, ast.UnaryOp) else part
        if not isinstance(inner, ast.Constant):
            return None
        if isinstance(inner.value, int) and is_negative:
            values.append(-inner.value)
        elif inner.value is not None:
            values.append(inner.value)
    return values


def names_array(module: Module, annotation: ast.expr | None) -> bool:
    """Whether an annotation is that of an array."""
    if isinstance(annotation, ast.Subscript):
        return module.names.of(annotation.value) in SHAPED_ARRAYS
    return annotation is not None and module.names.of(annotation) in ARRAYS


def called_compiler(project: Project, module: Module, node: ast.AST) -> Compiled | None:
    """What `jax.jit(f, …)` or `functools.partial(jax.jit, …)(f)` compiles."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name, keywords = _compiler(module, node.func)
    if not name or name == PARTIAL:
        return None
    reference = reference_of(project, module, node.args[0])
    *transforms, innermost = _transformed(module, node.args[0])
    is_gradient = any((module.names.called(part) or "").endswith(GRADIENTS) for part in transforms)
    return Compiled(
        name,
        module,
        (*keywords, *node.keywords),
        reference,
        is_method=isinstance(innermost, ast.Attribute),
        is_gradient=is_gradient,
    )


def decorated(module: Module, function: Function) -> Compiled | None:
    """The compiled function, if a decorator compiles it."""
    decorators: list[ast.expr] = getattr(function, "decorator_list", [])
    for number, decorator in enumerate(decorators):
        name, keywords = _compiler(module, decorator)
        if not name and isinstance(decorator, ast.Call) and not decorator.args:
            name, keywords = _compiler(module, decorator.func)
            keywords = (*keywords, *decorator.keywords)
        if name:
            reference = Reference(module, function)
            is_wrapped = not all(_is_plain(module, inner) for inner in decorators[number + 1 :])
            return Compiled(
                name, module, keywords, reference, is_decorated=True, is_wrapped=is_wrapped
            )
    return None


def _is_plain(module: Module, decorator: ast.expr) -> bool:
    """Whether a decorator certainly leaves the arguments as they are."""
    head = decorator.func if isinstance(decorator, ast.Call) else decorator
    return module.names.of(head) in TRANSFORMS or dotted(head) in ("staticmethod", "classmethod")


def _compiler(module: Module, node: ast.AST) -> tuple[str, tuple[ast.keyword, ...]]:
    """The name of the compiler that an expression is, and its keywords so far; "" for others."""
    name = module.names.of(node)
    if name in COMPILERS:
        return name, ()
    is_partial = module.names.called(node) == PARTIAL
    if is_partial and isinstance(node, ast.Call) and len(node.args) == 1:
        name = module.names.of(node.args[0])
        if name in COMPILERS:
            return name, tuple(node.keywords)
    return "", ()


def _transformed(module: Module, node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and what it transforms: last `self.f` in `jax.vmap(self.f)`."""
    yield node
    while isinstance(node, ast.Call) and node.args:
        if module.names.of(node.func) not in (*TRANSFORMS, PARTIAL):
            break
        node = node.args[0]
        yield node


def find_jax_traced(project: Project) -> dict[ast.AST, Traced]:
    """The functions that JAX traces, by node; not those that they call."""
    reachability = reachability_of(project)
    roots = [root for module in project for root in _roots(project, module)]
    roots += [root for module in project for root in _keras_roots(project, module)]
    reached = [root.module for root in roots if reachability.of(root.module, root.node)]
    reachability.treat_as_libraries(reached)
    traced: dict[ast.AST, Traced] = {}
    for root in roots:
        is_reached = Caller.SCRIPT in reachability.of(root.module, root.node)
        previous = traced.get(root.node, root)
        untraced = root.untraced | previous.untraced
        traced[root.node] = replace(previous, is_reached=is_reached, untraced=untraced)
    return traced


def _roots(project: Project, module: Module) -> Iterator[Traced]:
    for function in module.of_types(ast.FunctionDef):
        compiled = decorated(module, function)
        if compiled is not None:
            yield from _compiled_root(compiled)
    for call in module.calls:
        compiled = called_compiler(project, module, call)
        if compiled is not None:
            yield from _compiled_root(compiled)
        name = module.names.of(call.func) or ""
        for number, keyword in CONTROL_FLOW.get(name, {}).items():
            for part in elements_of(argument(call, number, keyword)):
                reference = reference_of(project, module, part)
                if reference is not None:
                    because = f"{title(reference.function)} is passed to {name}"
                    yield _root(reference, because, frozenset(), is_bound=False)


def _keras_roots(project: Project, module: Module) -> Iterator[Traced]:
    """The methods of layers, models, losses and metrics that Keras traces with JAX."""
    if project.keras_backend != "jax":
        return
    for owner in module.of_types(ast.ClassDef):
        if not any(map(is_traced_base, keras_bases(project, module, owner))):
            continue
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name in KERAS_METHODS:
                because = f"Keras traces `{owner.name}.{method.name}`"
                reference = Reference(module, method)
                yield _root(reference, because, frozenset({"training", "mask"}), is_bound=False)


def _compiled_root(compiled: Compiled) -> Iterator[Traced]:
    reference = compiled.reference
    if reference is None:
        return
    static = compiled.static
    untraced = frozenset(_unknown(compiled) if static is None else static)
    because = f"{title(reference.function)} is compiled by {compiled.name}"
    yield _root(reference, because, untraced, is_bound=compiled.is_method)


def _root(
    reference: Reference, because: str, untraced: frozenset[str], *, is_bound: bool
) -> Traced:
    arguments = reference.function.args
    names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    bound = names[: reference.positional + (is_bound and bool(reference.positional))]
    return Traced(
        reference.module,
        reference.function,
        because,
        autograph=False,
        untraced=untraced | reference.keywords | frozenset(bound),
    )


def _unknown(compiled: Compiled) -> Iterator[str]:
    """The parameters that may be untraced if nothing more is known."""
    assert compiled.reference is not None
    module, function = compiled.reference.module, compiled.reference.function
    for parameter in parameters_of(function):
        if compiled.name not in FILTERED or not names_array(module, parameter.annotation):
            yield parameter.arg
