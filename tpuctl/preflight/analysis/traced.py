"""Which functions of a project XLA compiles on a TPU, and how they are traced.

On a TPU it compiles what a replica runs: functions given to `strategy.run`, Keras' steps, layers
and losses, functions of `tf.function`, and whatever those call. It does not compile the loop
around them that takes the data, nor what `tf.data` maps: both run on the host.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpuctl.preflight.analysis.functions import function_of, is_legacy_keras, keras_bases
from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.reachability import Caller, reachability_of
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import Function, argument, own_nodes, several, title
from tpuctl.preflight.analysis.tensorflow_calls import KERAS_METHODS, TRACE_ARGUMENTS, is_host
from tpuctl.preflight.findings import Target

__all__ = ["Traced", "find_traced", "is_taped", "root_of"]

Defined = ast.FunctionDef | ast.AsyncFunctionDef
RUNS = {"run", "experimental_run_v2"}  # methods of a strategy
TAKES_GRADIENTS = ("tensorflow.GradientTape", "tensorflow.gradients")
# Keras 2 converts these; what else it traces, it takes as it is, like Keras 3 everything.
CONVERTED = {"call", "update_state"}
PARENTS: tuple[str, ...] = (
    "layers.",
    "models.",
    "losses.",
    "metrics.",
    "optimizers.",
    "regularizers.",
)
PARENTS += ("constraints.",)
PARENT_NAMES = ("Model", "Layer", "Loss", "Metric", "Optimizer", "Sequential", "Regularizer")
# Keywords of layers that take a function of tensors.
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
    """A function that becomes part of a program of XLA's."""

    module: Module
    node: Function
    because: str  # as in "`step` is given to strategy.run"
    autograph: bool = True  # whether an `if` or a loop on tensors is converted
    is_differentiated: bool = False  # whether gradients are taken of all of it
    no_autograph: str = ""  # why not, where it is not
    is_root: bool = True  # whether tracing begins with it
    is_own_program: bool = False  # whether it is one of `tf.function`
    is_reached: bool = True  # whether something that the script runs leads to it
    calls: tuple[tuple[Module, ast.Call], ...] = ()  # what hands it to a strategy


def find_traced(project: Project, target: Target) -> dict[ast.AST, Traced]:
    """All of them, by their part of the tree."""
    key = ("traced", target)
    if key not in project.known:
        project.known[key] = _Search(project, target).found
    found: dict[ast.AST, Traced] = project.known[key]
    return found


def is_taped(module: Module, node: ast.AST) -> bool:
    """Whether it stands under a gradient tape."""
    return any(
        isinstance(one, ast.With)
        and any(module.names.called(item.context_expr) in TAKES_GRADIENTS for item in one.items)
        for one in module.around(node)
    )


def root_of(module: Module, node: Function) -> Traced | None:
    """What a function's own decorators make of it, where one is `tf.function`."""
    for decorator in getattr(node, "decorator_list", []):
        call = decorator if isinstance(decorator, ast.Call) else None
        name = module.names.of(call.func if call is not None else decorator)
        if name == "functools.partial" and call is not None and call.args:
            name = module.names.of(call.args[0])
        if name == FUNCTION:
            return _program(module, node, call)
    return None


def _program(module: Module, node: Function, call: ast.Call | None) -> Traced:
    off = call is not None and any(
        one.arg == "autograph" and isinstance(one.value, ast.Constant) and one.value.value is False
        for one in call.keywords
    )
    why = "autograph is switched off for it" if off else _is_unconverted(module, node)
    text = f"{title(node)} is a tf.function"
    return Traced(module, node, text, not why, no_autograph=why, is_own_program=True)


class _Search:
    """Collects the roots, then what they call."""

    def __init__(self, project: Project, target: Target) -> None:
        self.project, self.target = project, target
        self.found: dict[ast.AST, Traced] = {}
        self.host: set[ast.AST] = set()
        # Of JAX and of other libraries nothing is known: their `run` is no strategy's.
        self.has_tensorflow = any(_keras_of(module) for module in project)
        for module in project:
            self._note_host(module)
        self.reachability = reachability_of(project)
        roots = [one for module in project for one in self._roots(module)]
        waiting = list(self._with_callers(roots))
        if not any(one.is_reached for one in waiting):
            self.reachability.enter()
            waiting = list(self._with_callers(roots))
        while waiting:
            one = waiting.pop()
            if one.node in self.host and not one.is_own_program and not self._is_reached(one):
                continue
            known = self.found.get(one.node)
            merged = one if known is None else _merged(known, one)
            if merged == known:
                continue
            self.found[one.node] = merged
            waiting.extend(self._called(merged))

    def _is_reached(self, one: Traced) -> bool:
        return Caller.SCRIPT in self.reachability.of(one.module, one.node)

    def _with_callers(self, roots: list[Traced]) -> Iterator[Traced]:
        """The roots with what is known of who calls them; without what only pipelines call.

        Where a strategy runs steps, the host runs other functions of `tf.function`, as far as
        those steps do not call them.
        """
        steps = any(one.calls and self._is_reached(one) for one in roots)
        for one in roots:
            if self.reachability.of(one.module, one.node) is not Caller.PIPELINE:
                is_step = bool(one.calls) or not (steps and one.is_own_program)
                yield replace(one, is_reached=is_step and self._is_reached(one))

    # Where tracing begins ---------------------------------------------------------------------

    def _note_host(self, module: Module) -> None:
        """What `tf.data` and Python run, not XLA."""
        for node in module.calls:
            if is_host(module, node):
                for given in [*node.args, *(one.value for one in node.keywords)]:
                    found = function_of(self.project, module, given)
                    if found is not None:
                        self.host.add(found[1])

    def _roots(self, module: Module) -> Iterator[Traced]:
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                made = root_of(module, node)
                if made is not None and not _is_host_loop(module, node):
                    yield made
            elif isinstance(node, ast.Call):
                yield from self._given(module, node)
            elif isinstance(node, ast.ClassDef):
                yield from self._keras_methods(module, node)

    def _given(self, module: Module, node: ast.Call) -> Iterator[Traced]:
        name = module.names.of(node.func)
        if name == FUNCTION and node.args:
            found = function_of(self.project, module, node.args[0])
            if found is not None and not _is_host_loop(*found):
                yield _program(*found, node)
        is_run = isinstance(node.func, ast.Attribute) and node.func.attr in RUNS
        if is_run and name is None and self.has_tensorflow:
            yield from self._replicated(module, node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            for one in several(argument(node, 1, "loss")):
                yield from self._handed(module, one, "the loss of a model", "loss")
            for one in several(argument(node, 2, "metrics")):
                yield from self._handed(module, one, "a metric of a model", "metric")
        if keras_name(name) is not None and name is not None:
            if keras_name(name) == "layers.Lambda" and node.args:
                yield from self._handed(module, node.args[0], "a layer", "", name)
            for keyword in node.keywords:
                if keyword.arg in LAYER_FUNCTIONS:
                    text = f"the {keyword.arg} of a layer"
                    yield from self._handed(module, keyword.value, text, "", name)

    def _replicated(self, module: Module, node: ast.Call) -> Iterator[Traced]:
        given = argument(node, 0, "fn")
        found = None if given is None else function_of(self.project, module, given)
        if found is None:
            return
        own = root_of(*found)
        text = f"{title(found[1])} is given to {module.segment(node.func)}"
        if own is None:
            around = module.function_around(node)
            made = None if around is None else root_of(module, around)
            why = _is_unconverted(*found) or ("" if made is None else made.no_autograph)
            own = Traced(*found, text, not why, no_autograph=why)
        yield replace(own, because=text, calls=((module, node),))

    def _handed(
        self, module: Module, node: ast.expr, role: str, part: str, name: str = ""
    ) -> Iterator[Traced]:
        """A function that Keras takes, and what it does with it."""
        found = function_of(self.project, module, node)
        if found is None:
            return
        made = root_of(*found)
        text = f"{title(found[1])} is {role}"
        if made is None:
            made = self._keras(Traced(*found, text), name or _keras_of(module), bool(part))
        yield replace(made, because=text, is_differentiated=part != "metric")

    def _keras_methods(self, module: Module, node: ast.ClassDef) -> Iterator[Traced]:
        bases = list(keras_bases(self.project, module, node))
        if not any(_is_traced_base(name) for name in bases):
            return
        is_layer = any((keras_name(name) or "").startswith(("layers.", "Layer")) for name in bases)
        for one in node.body:
            if not isinstance(one, ast.FunctionDef) or one.name not in KERAS_METHODS:
                continue
            if one.name == "__call__" and is_layer:
                continue
            made = root_of(module, one)
            if made is None:
                text = f"Keras traces `{node.name}.{one.name}`"
                made = Traced(module, one, text, is_differentiated=KERAS_METHODS[one.name])
                made = self._keras(made, bases[0], one.name in CONVERTED)
            yield replace(made, is_differentiated=KERAS_METHODS[one.name])

    def _keras(self, one: Traced, name: str, is_converted: bool) -> Traced:
        if not name:
            return one
        why = _is_unconverted(one.module, one.node)
        if not is_legacy_keras(self.project, name, self.target):
            why = "Keras 3 traces it without autograph"
        elif not is_converted:
            why = "Keras traces it without autograph"
        return replace(one, autograph=not why, no_autograph=why)

    # What they call ---------------------------------------------------------------------------

    def _called(self, one: Traced) -> Iterator[Traced]:
        for node in own_nodes(one.node):
            if not isinstance(node, ast.Call):
                continue
            for module, function in self._reached(one, node):
                if function is not one.node:
                    is_differentiated = one.is_differentiated or is_taped(one.module, node)
                    told = _callee(one, module, function)
                    yield replace(told, is_differentiated=is_differentiated)

    def _reached(self, one: Traced, node: ast.Call) -> Iterator[tuple[Module, Function]]:
        found = function_of(self.project, one.module, node.func)
        if found is not None:
            yield found
        name = one.module.names.of(node.func)
        for number in TRACE_ARGUMENTS.get(name or "", ()):
            for given in several(argument(node, number, "")):
                told = function_of(self.project, one.module, given)
                if told is not None:
                    yield told


def _merged(known: Traced, one: Traced) -> Traced:
    return replace(
        known,
        autograph=known.autograph and one.autograph,
        no_autograph=known.no_autograph or one.no_autograph,
        is_differentiated=known.is_differentiated or one.is_differentiated,
        is_root=known.is_root or one.is_root,
        is_own_program=known.is_own_program or one.is_own_program,
        is_reached=known.is_reached or one.is_reached,
        calls=known.calls + tuple(call for call in one.calls if call not in known.calls),
    )


def _callee(caller: Traced, module: Module, function: Function) -> Traced:
    """A function that a traced one calls: converted with it, unless it is a program of its own."""
    own = root_of(module, function)
    if own is not None:
        return replace(own, is_reached=caller.is_reached)
    why = caller.no_autograph or _is_unconverted(module, function)
    text = caller.because
    if " calls " not in text:
        text = f"{title(caller.node)} calls {title(function)}, and {text}"
    return Traced(
        module,
        function,
        text,
        not why,
        no_autograph=why,
        is_root=False,
        is_reached=caller.is_reached,
    )


def _is_host_loop(module: Module, node: Function) -> bool:
    """Whether it hands replicas their work."""
    for call in own_nodes(node):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        is_run = call.func.attr in RUNS and module.names.of(call.func) is None
        if is_run and (call.args or call.keywords):
            return True
    return False


def _is_unconverted(module: Module, node: Function) -> str:
    """Why autograph leaves a function alone; empty where it does not."""
    for decorator in getattr(node, "decorator_list", []):
        name = module.names.of(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name == UNCONVERTED:
            return "it is marked with do_not_convert"
    return ""


def _keras_of(module: Module) -> str:
    """A name of the Keras that a file imports."""
    known = set(module.names.known.values())
    for name in ("tf_keras", "keras", "tensorflow.keras"):
        if any(one == name or one.startswith(f"{name}.") for one in known):
            return f"{name}."
    return "tensorflow.keras." if "tensorflow" in known else ""


def _is_traced_base(name: str) -> bool:
    told = keras_name(name) or ""
    return told in PARENT_NAMES or told.startswith(PARENTS)
