"""Finds the functions of a project that XLA compiles on a TPU, and how they are traced.

Compiled are functions passed to `strategy.run`, Keras steps, layers and losses, tf.functions, and
everything that those call. The training loop around them and functions passed to `tf.data` run on
the host.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from tpuctl.preflight.analysis.program.functions import function_of, is_legacy_keras, keras_bases
from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    Function,
    argument,
    elements_of,
    own_nodes,
    title,
)
from tpuctl.preflight.analysis.program.tensorflow_calls import KERAS_METHODS, TRACE_ARGUMENTS
from tpuctl.preflight.analysis.tracing.host_functions import is_host
from tpuctl.preflight.analysis.tracing.reachability import Caller, reachability_of
from tpuctl.preflight.findings import Target

Defined = ast.FunctionDef | ast.AsyncFunctionDef
RUNS = {"run", "experimental_run_v2"}  # methods of a strategy
TAKES_GRADIENTS = ("tensorflow.GradientTape", "tensorflow.gradients")
# AutoGraph converts these methods in Keras 2; it converts no others, and none in Keras 3.
CONVERTED_METHODS = {"call", "update_state"}
TRACED_MODULES: tuple[str, ...] = (
    "layers.",
    "models.",
    "losses.",
    "metrics.",
    "optimizers.",
    "regularizers.",
)
TRACED_MODULES += ("constraints.",)
TRACED_BASES = ("Model", "Layer", "Loss", "Metric", "Optimizer", "Sequential", "Regularizer")
# Keyword arguments of layers that take functions on tensors.
LAYER_FUNCTIONS: tuple[str, ...] = (
    "activation",
    "kernel_regularizer",
    "bias_regularizer",
    "kernel_constraint",
)
LAYER_FUNCTIONS += ("activity_regularizer", "embeddings_regularizer", "recurrent_activation")
FUNCTION = "tensorflow.function"
UNCONVERTED = "tensorflow.autograph.experimental.do_not_convert"


@dataclass(frozen=True)
class Traced:
    """A function that is traced into an XLA program."""

    module: Module
    node: Function
    because: str  # such as "`step` is passed to strategy.run"
    autograph: bool = True  # whether AutoGraph converts it
    is_differentiated: bool = False  # whether gradients of the whole function are taken
    no_autograph: str = ""  # why AutoGraph does not convert it
    is_root: bool = True  # whether tracing starts with it
    is_own_program: bool = False  # whether it is a tf.function
    is_reached: bool = True  # whether the script calls it, directly or not
    calls: tuple[tuple[Module, ast.Call], ...] = ()  # calls that pass it to a strategy
    untraced: frozenset[str] = frozenset()  # parameters that are, or may be, Python values
    # Whether a node of it certainly runs whenever a step that reaches it does.
    runs: Callable[[ast.AST], bool] = field(default=lambda node: True, compare=False, repr=False)


def find_traced(project: Project, target: Target) -> dict[ast.AST, Traced]:
    """All traced functions, by node."""
    key = ("traced", target)
    if key not in project.cache:
        project.cache[key] = _Search(project, target).traced
    traced: dict[ast.AST, Traced] = project.cache[key]
    return traced


def is_taped(module: Module, node: ast.AST) -> bool:
    """Whether a node is inside a gradient tape."""
    return any(
        isinstance(ancestor, ast.With)
        and any(
            module.names.called(item.context_expr) in TAKES_GRADIENTS for item in ancestor.items
        )
        for ancestor in module.ancestors(node)
    )


def root_of(module: Module, node: Function) -> Traced | None:
    """The traced function, if a decorator is `tf.function`; None otherwise."""
    for decorator in getattr(node, "decorator_list", []):
        call = decorator if isinstance(decorator, ast.Call) else None
        name = module.names.of(call.func if call is not None else decorator)
        if name == "functools.partial" and call is not None and call.args:
            name = module.names.of(call.args[0])
        if name == FUNCTION:
            return _program(module, node, call)
    return None


def _program(module: Module, node: Function, call: ast.Call | None) -> Traced:
    is_disabled = call is not None and any(
        keyword.arg == "autograph"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in call.keywords
    )
    reason = (
        "autograph=False disables AutoGraph for it"
        if is_disabled
        else _unconverted_reason(module, node)
    )
    text = f"{title(node)} is a tf.function"
    return Traced(module, node, text, not reason, no_autograph=reason, is_own_program=True)


class _Search:
    """Collects the roots, then the functions that they call."""

    def __init__(self, project: Project, target: Target) -> None:
        self.project, self.target = project, target
        self.traced: dict[ast.AST, Traced] = {}
        # In code for JAX and other libraries, `run` is not a strategy's method.
        self.has_tensorflow = any(_keras_of(module) for module in project)
        self.reachability = reachability_of(project)
        roots = [root for module in project for root in self._roots(module)]
        pending = list(self._with_callers(roots))
        reached = [traced.module for traced in pending if traced.is_reached]
        if self.has_tensorflow and self.reachability.treat_as_libraries(reached):
            pending = list(self._with_callers(roots))
        while pending:
            current = pending.pop()
            if (
                current.node in self.host
                and not current.is_own_program
                and not self._is_reached(current)
            ):
                continue
            previous = self.traced.get(current.node)
            merged = current if previous is None else _merged(previous, current)
            if merged == previous:
                continue
            self.traced[current.node] = merged
            pending.extend(self._called(merged))

    def _is_reached(self, traced: Traced) -> bool:
        return Caller.SCRIPT in self.reachability.of(traced.module, traced.node)

    def _with_callers(self, roots: list[Traced]) -> Iterator[Traced]:
        """The roots with their reachability, without those that only pipelines call, that are only
        exported, or that only the script itself calls.

        If a strategy runs steps, tf.functions that these steps do not call run on the host.
        """
        steps = any(traced.calls and self._is_reached(traced) for traced in roots)
        for root in roots:
            caller = self.reachability.of(root.module, root.node)
            is_exported = not caller and root.node in self.reachability.flow.exported
            if caller is not Caller.PIPELINE and not is_exported and not self._is_on_host(root):
                is_step = bool(root.calls) or not (steps and root.is_own_program)
                yield replace(root, is_reached=is_step and self._is_reached(root))

    def _is_on_host(self, root: Traced) -> bool:
        """Whether it is a method of a metric or loss that no library receives: the inference
        analyzes it where a step calls it."""
        owner = root.module.parents.get(root.node)
        if not isinstance(owner, ast.ClassDef):
            return False
        bases = [keras_name(name) or "" for name in keras_bases(self.project, root.module, owner)]
        if not any(base.startswith(("metrics.", "losses.", "Metric", "Loss")) for base in bases):
            return False
        flow = self.reachability.flow
        family_of = self.reachability.definitions.family_of
        classes = {cls for cls in flow.created if owner in family_of(cls)}
        return bool(classes) and not classes & flow.escaped

    # Roots ------------------------------------------------------------------------------------

    @cached_property
    def host(self) -> set[ast.AST]:
        """The functions that `tf.data` or Python run on the host; not needed if none is traced."""
        values = [
            (module, value)
            for module in self.project
            for node in module.calls
            if is_host(self.project, module, node)
            for value in (*node.args, *(keyword.value for keyword in node.keywords))
        ]
        definitions = [function_of(self.project, *value) for value in values]
        return {definition[1] for definition in definitions if definition is not None}

    def _roots(self, module: Module) -> Iterator[Traced]:
        types = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Call, ast.ClassDef)
        for node in module.of_types(*types):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                program = root_of(module, node)
                if program is not None and not _is_host_loop(module, node):
                    yield program
            elif isinstance(node, ast.Call):
                yield from self._roots_of_call(module, node)
            elif self.project.keras_backend == "tensorflow":
                yield from self._keras_methods(module, node)

    def _roots_of_call(self, module: Module, node: ast.Call) -> Iterator[Traced]:
        name = module.names.of(node.func)
        if name == FUNCTION and node.args:
            definition = function_of(self.project, module, node.args[0])
            if definition is not None and not _is_host_loop(*definition):
                yield _program(*definition, node)
        is_run = isinstance(node.func, ast.Attribute) and node.func.attr in RUNS
        if is_run and name is None and self.has_tensorflow:
            yield from self._replicated(module, node)
        if self.project.keras_backend != "tensorflow":
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            for loss in elements_of(argument(node, 1, "loss")):
                yield from self._keras_function(module, loss, "the loss of a model", "loss")
            for loss in elements_of(argument(node, 2, "metrics")):
                yield from self._keras_function(module, loss, "a metric of a model", "metric")
        if keras_name(name) is not None and name is not None:
            if keras_name(name) == "layers.Lambda" and node.args:
                yield from self._keras_function(module, node.args[0], "a layer", "", name)
            for keyword in node.keywords:
                if keyword.arg in LAYER_FUNCTIONS:
                    text = f"the {keyword.arg} of a layer"
                    yield from self._keras_function(module, keyword.value, text, "", name)

    def _replicated(self, module: Module, node: ast.Call) -> Iterator[Traced]:
        value = argument(node, 0, "fn")
        definition = None if value is None else function_of(self.project, module, value)
        if definition is None:
            return
        program = root_of(*definition)
        text = f"{title(definition[1])} is passed to {module.segment(node.func)}"
        if program is None:
            around = module.enclosing_function(node)
            enclosing = None if around is None else root_of(module, around)
            reason = _unconverted_reason(*definition) or (
                "" if enclosing is None else enclosing.no_autograph
            )
            program = Traced(*definition, text, not reason, no_autograph=reason)
        yield replace(program, because=text, calls=((module, node),))

    def _keras_function(
        self, module: Module, node: ast.expr, role: str, part: str, name: str = ""
    ) -> Iterator[Traced]:
        """A function passed to Keras: a loss, a metric, or a function of a layer."""
        definition = function_of(self.project, module, node)
        if definition is None:
            return
        traced = root_of(*definition)
        text = f"{title(definition[1])} is {role}"
        if traced is None:
            traced = self._keras(Traced(*definition, text), name or _keras_of(module), bool(part))
        yield replace(traced, because=text, is_differentiated=part != "metric")

    def _keras_methods(self, module: Module, node: ast.ClassDef) -> Iterator[Traced]:
        bases = list(keras_bases(self.project, module, node))
        if not any(is_traced_base(name) for name in bases):
            return
        is_layer = any((keras_name(name) or "").startswith(("layers.", "Layer")) for name in bases)
        for method in node.body:
            if not isinstance(method, ast.FunctionDef) or method.name not in KERAS_METHODS:
                continue
            if method.name == "__call__" and is_layer:
                continue
            traced = root_of(module, method)
            if traced is None:
                text = f"Keras traces `{node.name}.{method.name}`"
                traced = Traced(module, method, text, is_differentiated=KERAS_METHODS[method.name])
                traced = self._keras(traced, bases[0], method.name in CONVERTED_METHODS)
            yield replace(traced, is_differentiated=KERAS_METHODS[method.name])

    def _keras(self, traced: Traced, name: str, is_converted: bool) -> Traced:
        if not name:
            return traced
        reason = _unconverted_reason(traced.module, traced.node)
        if not is_legacy_keras(self.project, name, self.target):
            reason = "Keras 3 traces it without AutoGraph"
        elif not is_converted:
            reason = "Keras traces it without AutoGraph"
        return replace(traced, autograph=not reason, no_autograph=reason)

    # Callees ----------------------------------------------------------------------------------

    def _called(self, traced: Traced) -> Iterator[Traced]:
        for node in traced.module.own_nodes(traced.node):
            if not isinstance(node, ast.Call):
                continue
            for module, function in self._reached(traced, node):
                if function is not traced.node:
                    is_differentiated = traced.is_differentiated or is_taped(traced.module, node)
                    callee = _callee(traced, module, function)
                    yield replace(callee, is_differentiated=is_differentiated)

    def _reached(self, traced: Traced, node: ast.Call) -> Iterator[tuple[Module, Function]]:
        definition = function_of(self.project, traced.module, node.func)
        if definition is not None:
            yield definition
        name = traced.module.names.of(node.func)
        for number in TRACE_ARGUMENTS.get(name or "", ()):
            for value in elements_of(argument(node, number, "")):
                function = function_of(self.project, traced.module, value)
                if function is not None:
                    yield function


def _merged(previous: Traced, traced: Traced) -> Traced:
    return replace(
        previous,
        autograph=previous.autograph and traced.autograph,
        no_autograph=previous.no_autograph or traced.no_autograph,
        is_differentiated=previous.is_differentiated or traced.is_differentiated,
        is_root=previous.is_root or traced.is_root,
        is_own_program=previous.is_own_program or traced.is_own_program,
        is_reached=previous.is_reached or traced.is_reached,
        calls=previous.calls + tuple(call for call in traced.calls if call not in previous.calls),
    )


def _callee(caller: Traced, module: Module, function: Function) -> Traced:
    """A function called by a traced function: converted like it, unless it is a tf.function."""
    program = root_of(module, function)
    if program is not None:
        return replace(program, is_reached=caller.is_reached)
    reason = caller.no_autograph or _unconverted_reason(module, function)
    text = caller.because
    if " calls " not in text:
        text = f"{title(caller.node)} calls {title(function)}, and {text}"
    return Traced(
        module,
        function,
        text,
        not reason,
        no_autograph=reason,
        is_root=False,
        is_reached=caller.is_reached,
    )


def _is_host_loop(module: Module, node: Function) -> bool:
    """Whether a function calls `strategy.run`."""
    for call in own_nodes(node):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        is_run = call.func.attr in RUNS and module.names.of(call.func) is None
        if is_run and (call.args or call.keywords):
            return True
    return False


def _unconverted_reason(module: Module, node: Function) -> str:
    """Why AutoGraph does not convert a function; empty if it does."""
    for decorator in getattr(node, "decorator_list", []):
        name = module.names.of(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name == UNCONVERTED:
            return "it is marked with do_not_convert"
    return ""


def _keras_of(module: Module) -> str:
    """The name prefix of the Keras package that a file imports."""
    imports = set(module.names.imports.values())
    for name in ("tf_keras", "keras", "tensorflow.keras"):
        if any(imported == name or imported.startswith(f"{name}.") for imported in imports):
            return f"{name}."
    return "tensorflow.keras." if "tensorflow" in imports else ""


def is_traced_base(name: str) -> bool:
    keras = keras_name(name) or ""
    return keras in TRACED_BASES or keras.startswith(TRACED_MODULES)
