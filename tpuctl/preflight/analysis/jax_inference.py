"""Abstract interpretation of the functions that JAX traces.

Every array operation in them has a tracer as its result, and Python decides everything else: it
runs loops, and both branches of no conditional. A rule may therefore call a failure certain only
in code that runs whenever the function does; `is_certain` tells.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tpuctl.preflight.analysis.abstract_values import (
    STATIC,
    STRUCTURE,
    TENSOR,
    UNKNOWN,
    Closure,
    Kind,
    Scope,
    Value,
    container,
    join,
)
from tpuctl.preflight.analysis.inference import Inference
from tpuctl.preflight.analysis.jax_compiled import CONTROL_FLOW, find_jax_traced, names_array
from tpuctl.preflight.analysis.jax_library import array_attribute, array_method, array_result
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.syntax import argument, default_of, elements_of
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.analysis.wrappers import TRANSFORMS

__all__ = ["JaxInference", "infer_jax"]

NUMBERS = {"int", "float", "bool"}
# Contexts in which arrays have values.
EAGER = {"jax.ensure_compile_time_eval", "jax.disable_jit", "jax.core.eval_context"}
CHOICES = ("jax.lax.cond", "jax.lax.switch")
STATIC_OF_NUMPY = {"shape", "ndim", "size", "issubdtype", "dtype", "finfo", "iinfo", "isscalar"}


def infer_jax(project: Project) -> JaxInference:
    """The inference of the functions of a project that JAX traces, cached."""
    if JaxInference not in project.cache:
        project.cache[JaxInference] = JaxInference(project)
    inference: JaxInference = project.cache[JaxInference]
    return inference


class JaxInference(Inference):
    """The functions that JAX traces, and the values of their expressions."""

    carries_loops = False

    def __init__(self, project: Project) -> None:
        self.doubts = 0  # conditionals around what is interpreted
        self.choices = 0  # calls of `jax.lax.cond` around it
        self.evaluated: set[ast.AST] = set()  # whenever their function is traced
        self.executed: set[ast.AST] = set()  # whenever the compiled program runs
        self.roots_of: dict[ast.AST, set[ast.AST]] = defaultdict(set)
        super().__init__(project, find_jax_traced(project) if project.uses_jax else {})

    def is_certain(self, node: ast.AST) -> bool:
        """Whether an expression is evaluated whenever the step is traced."""
        return node in self.evaluated

    @property
    def circumstances(self) -> tuple[Value, ...]:
        return (STATIC,) * bool(self.doubts) + (TENSOR,) * bool(self.choices)

    def record(self, node: ast.expr, value: Value) -> Value:
        if not self.doubts:
            self.evaluated.add(node)
            if not self.choices:
                self.executed.add(node)
        return super().record(node, value)

    def joined(self, *values: Value) -> Value:
        """Arrays only if all of the values are: a rule must not report one of several."""
        symbolic = [value for value in values if value.is_symbolic]
        if not symbolic:
            return join(*values)
        if len(symbolic) < len(values):
            return UNKNOWN
        return replace(
            TENSOR,
            is_structure=any(value.is_structure for value in symbolic),
            is_boolean=all(value.is_boolean for value in symbolic),
        )

    @contextmanager
    def doubting(self) -> Iterator[None]:
        """Interpret code that may not run."""
        self.doubts += 1
        try:
            yield
        finally:
            self.doubts -= 1

    # Functions --------------------------------------------------------------------------------

    def parameter_value(self, traced: Traced, parameter: ast.arg, index: int) -> Value:
        if parameter.arg in traced.untraced:
            return UNKNOWN
        if default_of(traced.node, parameter.arg) is not None:
            return UNKNOWN  # not traced unless a call passes it
        annotation = parameter.annotation
        is_number = isinstance(annotation, ast.Name) and annotation.id in NUMBERS
        is_single = is_number or names_array(traced.module, annotation)
        return TENSOR if is_single else STRUCTURE

    def run(self, closure: Closure, traced: Traced, bound: dict[str, Value]) -> Value:
        doubts, choices = self.doubts, self.choices
        self.choices += traced.is_root and traced.because.endswith(CHOICES)
        root = self.active[0] if self.active else closure.node
        self.roots_of[closure.node].add(root)
        try:
            return super().run(closure, traced, bound)
        finally:
            self.doubts, self.choices = doubts, choices

    def object_call(
        self, value: Value, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        result = super().object_call(value, arguments, keywords)
        if value.closure is None or value.name not in TRANSFORMS:
            return result
        if value.name.endswith("value_and_grad"):
            return Value(Kind.STATIC, items=(TENSOR, STRUCTURE)) if not value.fields else UNKNOWN
        return STRUCTURE if value.name == "jax.vmap" else UNKNOWN

    def _plain_call(
        self, func: ast.Name, arguments: list[Value], keywords: dict[str, Value], scope: Scope
    ) -> Value:
        result = super()._plain_call(func, arguments, keywords, scope)
        return UNKNOWN if func.id == "map" else result

    def library(
        self,
        node: ast.Call,
        name: str,
        arguments: list[Value],
        keywords: dict[str, Value],
        scope: Scope,
    ) -> Value:
        if self.project.find(name) is not None:
            return super().library(node, name, arguments, keywords, scope)
        if name in TRANSFORMS and arguments and arguments[0].closure is not None:
            # The keywords, such as `has_aux`, change what the function returns.
            return replace(arguments[0], name=name, fields=tuple(keywords.items()))
        for number, keyword in CONTROL_FLOW.get(name, {}).items():
            for part in elements_of(argument(node, number, keyword)):
                self._call_traced(name, self.value(part, scope))
        if name in ("jax.tree.map", "jax.tree_util.tree_map", "jax.tree_map"):
            return self._mapped(arguments, keywords)
        if name in ("jax.lax.scan", "jax.lax.while_loop", "jax.lax.fori_loop"):
            return container([STRUCTURE]) if name == "jax.lax.scan" else STRUCTURE
        if name.startswith("numpy.") and name.rpartition(".")[2] not in STATIC_OF_NUMPY:
            return UNKNOWN if any(value.is_symbolic for value in arguments) else STATIC
        result = array_result(name, arguments)
        return super().library(node, name, arguments, keywords, scope) if result is None else result

    def _call_traced(self, name: str, value: Value) -> None:
        """Call a function that `jax.lax` traces."""
        closure = value.closure
        if closure is not None:
            count = len(closure.node.args.args) - len(closure.bound)
            arguments = [STRUCTURE] * max(count, 0)
            if name == "jax.lax.fori_loop" and arguments:
                arguments[0] = TENSOR
            choices = self.choices
            self.choices += name in CHOICES
            self.call(closure, arguments, {})
            self.choices = choices

    def _mapped(self, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """The result of mapping the leaves of structures."""
        closure = arguments[0].closure if arguments else None
        leaves = [
            TENSOR if value.is_symbolic and not keywords else UNKNOWN for value in arguments[1:]
        ]
        if closure is not None:
            self.call(closure, leaves, {})
        return STRUCTURE if all(leaf.is_symbolic for leaf in leaves) and leaves else UNKNOWN

    def attribute_of(self, value: Value, name: str) -> Value:
        if value.is_symbolic:
            return array_attribute(value, name)
        return super().attribute_of(value, name)

    def method_result(self, value: Value, name: str, arguments: list[Value]) -> Value:
        if value.is_symbolic:
            return array_method(value, name)
        return super().method_result(value, name, arguments)

    def unknown_result(self, arguments: list[Value]) -> Value:
        """Functions of other libraries may return Python values, such as shapes."""
        return UNKNOWN

    # Conditionals -----------------------------------------------------------------------------

    def branches(self, statement: ast.If, scope: Scope) -> bool:
        with self.doubting():
            is_reached = super().branches(statement, scope)
        if is_reached and (_leaves(statement.body) or _leaves(statement.orelse)):
            self.doubts += 1  # until the function ends
        return is_reached

    def _of_ifexp(self, node: ast.IfExp, scope: Scope) -> Value:
        self.value(node.test, scope)
        with self.doubting():
            return self.joined(self.value(node.body, scope), self.value(node.orelse, scope))

    def _of_boolop(self, node: ast.BoolOp, scope: Scope) -> Value:
        first = self.value(node.values[0], scope)
        with self.doubting():
            return self.joined(first, *(self.value(part, scope) for part in node.values[1:]))

    def _on_try(self, statement: ast.Try | ast.TryStar, scope: Scope) -> bool:
        with self.doubting():
            return super()._on_try(statement, scope)

    _on_trystar = _on_try

    def _on_match(self, statement: ast.Match, scope: Scope) -> bool:
        with self.doubting():
            return super()._on_match(statement, scope)

    def _on_for(self, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> bool:
        if isinstance(loop, ast.While):
            self.value(loop.test, scope)
            with self.doubting():
                return super()._on_for(loop, scope)
        return super()._on_for(loop, scope)

    _on_asyncfor = _on_for
    _on_while = _on_for

    def _on_with(self, statement: ast.With | ast.AsyncWith, scope: Scope) -> bool:
        names = {scope.module.names.called(item.context_expr) for item in statement.items}
        if not names & EAGER:
            return super()._on_with(statement, scope)
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                scope.names[part.id] = UNKNOWN
        return True

    _on_asyncwith = _on_with


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch may end the function or the iteration, other than by an exception."""
    kinds = (ast.Return, ast.Continue, ast.Break)
    return any(isinstance(part, kinds) for statement in body for part in ast.walk(statement))
