"""Abstract interpretation of the functions that JAX traces.

Every array operation in them has a tracer as its result, and Python decides everything else: it
runs loops, and both branches of no conditional. A rule may therefore call a failure certain only
in code that runs whenever the function does; `is_certain` tells.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import replace
from functools import cached_property

from tpuctl.preflight.analysis.jax.compiled_functions import (
    CONTROL_FLOW,
    find_jax_traced,
    names_array,
)
from tpuctl.preflight.analysis.jax.library import (
    array_attribute,
    array_method,
    array_result,
    layer_result,
)
from tpuctl.preflight.analysis.program.functions import class_of, library_bases
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, default_of, elements_of
from tpuctl.preflight.analysis.program.wrappers import TRANSFORMS
from tpuctl.preflight.analysis.tracing.inference import Inference, leaves
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.analysis.values.abstract_values import (
    STATIC,
    STRUCTURE,
    TENSOR,
    UNKNOWN,
    Closure,
    Kind,
    Owner,
    Scope,
    Value,
    container,
    join,
)

NUMBERS = {"int", "float", "bool"}
# Classes whose objects are arguments of compiled functions, and called in them.
CALLED_MODULES = {"flax.nnx.Module", "equinox.Module"}
APPLIED_MODULE = "flax.linen.Module"
# Keywords of `apply` that it does not pass on, but for `method`, which names what it calls. The
# latter two add to what it returns.
KEYWORDS_OF_APPLY = {"rngs", "mutable", "capture_intermediates"}
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
        self.choices = 0  # calls of `jax.lax.cond` around it
        self.executed: set[ast.AST] = set()  # whenever the compiled program runs
        self.roots_of: dict[ast.AST, set[ast.AST]] = defaultdict(set)
        super().__init__(project, find_jax_traced(project))

    def is_certain(self, node: ast.AST) -> bool:
        """Whether an expression is evaluated whenever the step is traced."""
        return node in self.evaluated

    @property
    def circumstances(self) -> tuple[Value, ...]:
        return (STATIC,) * bool(self.doubts) + (TENSOR,) * bool(self.choices)

    def runs(self, module: Module, node: ast.AST) -> bool:
        return True  # rules ask `is_certain` about what fails

    def decision(self, test: ast.expr, scope: Scope) -> bool | None:
        return None

    def record(self, node: ast.expr, value: Value) -> Value:
        if not self.doubts and not self.choices:
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

    # Functions --------------------------------------------------------------------------------

    def parameter_value(self, traced: Traced, parameter: ast.arg, index: int) -> Value:
        if parameter.annotation is not None:
            owner = class_of(self.project, traced.module, parameter.annotation)
            is_module = owner is not None and not CALLED_MODULES.isdisjoint(
                library_bases(self.project, *owner)
            )
            if owner is not None and is_module and not self._subclasses_of(owner):
                return Value(Kind.OBJECT, owner=owner)
        if parameter.arg in traced.untraced:
            return UNKNOWN
        if default_of(traced.node, parameter.arg) is not None:
            return UNKNOWN  # not traced unless a call passes it
        annotation = parameter.annotation
        is_number = isinstance(annotation, ast.Name) and annotation.id in NUMBERS
        is_single = is_number or names_array(traced.module, annotation)
        return TENSOR if is_single else STRUCTURE

    def run(self, closure: Closure, traced: Traced, bound: dict[str, Value]) -> Value:
        choices = self.choices
        self.choices += traced.is_root and traced.because.endswith(CHOICES)
        root = self.active[0] if self.active else closure.node
        self.roots_of[closure.node].add(root)
        try:
            return super().run(closure, traced, bound)
        finally:
            self.choices = choices

    def object_call(
        self, value: Value, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if value.owner is not None and not value.is_class:
            method = self.member(*value.owner, "__call__")
            if method.closure is not None:
                return self.call(method.closure, arguments, keywords)
        result = layer_result(value, arguments)
        if result is not None:
            return result
        result = super().object_call(value, arguments, keywords)
        if value.closure is None or value.name not in TRANSFORMS:
            return result
        if value.name.endswith("value_and_grad"):
            options = {name for name, _ in value.fields}
            if not options <= {"has_aux", "argnums"}:
                return UNKNOWN
            is_pair = "has_aux" in options
            loss = Value(Kind.STATIC, items=(TENSOR, UNKNOWN)) if is_pair else TENSOR
            return Value(Kind.STATIC, items=(loss, STRUCTURE))
        return STRUCTURE if value.name == "jax.vmap" else UNKNOWN

    def _method_call(
        self, func: ast.Attribute, arguments: list[Value], keywords: dict[str, Value], scope: Scope
    ) -> Value:
        owner: Owner | None = None
        if func.attr == "apply":
            owner = self.value(func.value, scope).owner
        elif func.attr == "apply_fn":
            owner = self._applied
        if owner is None or APPLIED_MODULE not in library_bases(self.project, *owner):
            return super()._method_call(func, arguments, keywords, scope)
        if "method" in keywords:
            return UNKNOWN
        passed = {name: value for name, value in keywords.items() if name not in KEYWORDS_OF_APPLY}
        result = self.object_call(Value(Kind.OBJECT, owner=owner), arguments[1:], passed)
        return UNKNOWN if keywords.keys() & KEYWORDS_OF_APPLY - {"rngs"} else result

    @cached_property
    def _applied(self) -> Owner | None:
        """The class of Flax that every `TrainState` of the project applies, if there is one."""
        owners = {
            self.host.evaluate(module, keyword.value.value).owner
            if isinstance(keyword.value, ast.Attribute) and keyword.value.attr == "apply"
            else None
            for module in self.project
            for call in module.calls
            for keyword in call.keywords
            if keyword.arg == "apply_fn"
        }
        return owners.pop() if len(owners) == 1 else None

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
        if is_reached and (leaves(statement.body) or leaves(statement.orelse)):
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
