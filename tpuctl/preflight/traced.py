"""Which functions of a project XLA compiles on a TPU, and how they are traced.

On a TPU it compiles what a replica runs: functions given to `strategy.run`, Keras' steps, layers
and losses, functions of `tf.function`, and whatever those call. It does not compile the loop
around them that takes the data, nor what `tf.data` maps: both run on the host.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.preflight.findings import Target
from tpuctl.preflight.names import dotted, keras_name
from tpuctl.preflight.source import Function, Module, Project

__all__ = ["Traced", "find_traced", "function_of", "is_legacy_keras", "keras_bases"]

Defined = ast.FunctionDef | ast.AsyncFunctionDef
RUNS = {"run", "experimental_run_v2"}  # methods of a strategy
TAKES_GRADIENTS = ("tensorflow.GradientTape", "tensorflow.gradients")
# Methods that Keras traces, and whether gradients are taken of them.
METHODS = {
    "call": True,
    "train_step": False,
    "test_step": False,
    "predict_step": False,
    "compute_loss": True,
    "update_state": False,
    "update_step": False,
}
PARENTS = ("layers.", "models.", "losses.", "metrics.", "optimizers.", "regularizers.")
PARENT_NAMES = ("Model", "Layer", "Loss", "Metric", "Optimizer", "Sequential", "Regularizer")
# What traces a function that it is given: its name, and the numbers of such arguments.
TRACE_ARGUMENTS = {
    "tensorflow.cond": (1, 2),
    "tensorflow.case": (0,),
    "tensorflow.while_loop": (0, 1),
    "tensorflow.map_fn": (0,),
    "tensorflow.vectorized_map": (0,),
    "tensorflow.scan": (0,),
    "tensorflow.foldl": (0,),
    "tensorflow.foldr": (0,),
    "tensorflow.recompute_grad": (0,),
    "tensorflow.custom_gradient": (0,),
    "tensorflow.switch_case": (1,),
}
# Methods of data sets whose functions run on the host.
HOST_METHODS = {"map", "filter", "flat_map", "interleave", "from_generator", "reduce", "scan"}
HOST_METHODS |= {"group_by_window", "bucket_by_sequence_length", "take_while", "apply", "batch"}
HOST_METHODS |= {
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
}
HOST_FUNCTIONS = {"tensorflow.py_function", "tensorflow.numpy_function", "tensorflow.py_func"}


@dataclass(frozen=True)
class Traced:
    """A function that becomes part of a program of XLA's."""

    module: Module
    node: Function
    because: str  # as in "`step` is given to strategy.run"
    autograph: bool = True  # whether an `if` or a loop on tensors is converted
    is_differentiated: bool = False  # whether gradients are taken of all of it
    no_autograph: str = ""  # why not, where it is not


def find_traced(project: Project, target: Target) -> dict[ast.AST, Traced]:
    """All of them, by their part of the tree."""
    return _Search(project, target).found


def function_of(project: Project, module: Module, node: ast.AST) -> tuple[Module, Function] | None:
    """The function of the project's own that an expression names, where it is one.

    Sees through `tf.function(f)` and `functools.partial(f, …)`, through `self.f` and plain names
    of one assignment.
    """
    if isinstance(node, ast.Lambda):
        return module, node
    if isinstance(node, ast.Call):
        name = module.names.of(node.func)
        is_wrapper = name in ("tensorflow.function", "functools.partial", *_WRAPPERS)
        return function_of(project, module, node.args[0]) if is_wrapper and node.args else None
    if isinstance(node, ast.Attribute) and dotted(node.value) in ("self", "cls"):
        around = module.class_around(node)
        return None if around is None else _method(project, module, around, node.attr)
    if isinstance(node, ast.Name):
        found = _visible(project, module, node)
        if found is not None:
            return found
    name = module.names.of(node)
    told = project.find(name) if name is not None else None
    if told is not None and isinstance(told[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
        return told[0], told[1]
    return None


def keras_bases(project: Project, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The names of Keras' classes, such as "tensorflow.keras.layers.Layer", that it derives from.

    Classes of the project's own in between are seen through. What Hugging Face's TensorFlow models
    derive from counts as "tf_keras.Model".
    """
    seen: set[ast.AST] = set()
    waiting: list[tuple[Module, ast.ClassDef]] = [(module, node)]
    while waiting:
        where, one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for base in one.bases:
            name = where.names.of(base)
            if name is not None and name.startswith("transformers.") and ".TF" in name:
                yield "tf_keras.Model"
            elif keras_name(name) is not None:
                assert name is not None
                yield name
            elif isinstance(base, ast.Name) and name is None:
                local = _class_named(where.tree, base.id)
                if local is not None:
                    waiting.append((where, local))
            elif name is not None:
                told = project.find(name)
                if told is not None and isinstance(told[1], ast.ClassDef):
                    waiting.append((told[0], told[1]))


def is_legacy_keras(project: Project, name: str, target: Target) -> bool:
    """Whether something of that name is Keras 2, whose layers autograph converts."""
    if name.startswith("tf_keras."):
        return True
    if not name.startswith("tensorflow."):
        return False
    version = target.version
    if version is not None and version < (2, 16):
        return True
    return any("TF_USE_LEGACY_KERAS" in module.text for module in project)


_WRAPPERS = ("tensorflow.autograph.experimental.do_not_convert", "tensorflow.recompute_grad")


class _Search:
    """Collects the roots, then what they call."""

    def __init__(self, project: Project, target: Target) -> None:
        self.project, self.target = project, target
        self.found: dict[ast.AST, Traced] = {}
        self.host: set[ast.AST] = set()
        for module in project:
            self._note_host(module)
        waiting = [one for module in project for one in self._roots(module)]
        while waiting:
            one = waiting.pop()
            known = self.found.get(one.node)
            if one.node in self.host and "tf.function" not in one.because:
                continue
            if known is not None:
                merged = replace(
                    known,
                    autograph=known.autograph and one.autograph,
                    no_autograph=known.no_autograph or one.no_autograph,
                    is_differentiated=known.is_differentiated or one.is_differentiated,
                )
                if merged == known:
                    continue
                one = merged
            self.found[one.node] = one
            waiting.extend(self._called(one))

    # Where tracing begins ---------------------------------------------------------------------

    def _note_host(self, module: Module) -> None:
        """What `tf.data` and Python run, not XLA."""
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            is_host = module.names.of(node.func) in HOST_FUNCTIONS or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in HOST_METHODS
                and not (module.names.of(node.func) or "").startswith(("tensorflow.map", "jax"))
                and module.names.of(node.func) not in TRACE_ARGUMENTS
            )
            if is_host:
                for argument in [*node.args, *(one.value for one in node.keywords)]:
                    found = function_of(self.project, module, argument)
                    if found is not None:
                        self.host.add(found[1])

    def _roots(self, module: Module) -> Iterator[Traced]:
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from self._decorated(module, node)
            elif isinstance(node, ast.Call):
                yield from self._given(module, node)
            elif isinstance(node, ast.ClassDef):
                yield from self._keras_methods(module, node)

    def _decorated(self, module: Module, node: Defined) -> Iterator[Traced]:
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = module.names.of(call.func if call is not None else decorator)
            if name in ("tensorflow.function", "functools.partial") and call is not None:
                is_function = name == "tensorflow.function" or (
                    bool(call.args) and module.names.of(call.args[0]) == "tensorflow.function"
                )
                if is_function:
                    yield from self._function(module, node, call)
            elif name == "tensorflow.function":
                yield from self._function(module, node, None)

    def _given(self, module: Module, node: ast.Call) -> Iterator[Traced]:
        name = module.names.of(node.func)
        if name == "tensorflow.function" and node.args:
            found = function_of(self.project, module, node.args[0])
            if found is not None:
                yield from self._function(*found, node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in RUNS and name is None:
            given = _argument(node, 0, "fn")
            found = None if given is None else function_of(self.project, module, given)
            if found is not None:
                text = f"{_title(found[1])} is given to {module.segment(node.func)}"
                yield Traced(*found, because=text)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            given = _argument(node, 1, "loss")
            for one in _several(given):
                found = function_of(self.project, module, one)
                if found is not None:
                    text = f"{_title(found[1])} is the loss of a model"
                    yield self._without(Traced(*found, text, is_differentiated=True), module)
        if keras_name(name) == "layers.Lambda" and node.args:
            found = function_of(self.project, module, node.args[0])
            if found is not None:
                assert name is not None
                layer = Traced(*found, f"{_title(found[1])} is a layer", is_differentiated=True)
                yield self._keras(layer, name)

    def _function(self, module: Module, node: Function, call: ast.Call | None) -> Iterator[Traced]:
        """Of `tf.function`: compiled, unless it is the loop on the host around what is compiled."""
        if _is_host_loop(module, node):
            return
        off = call is not None and _keyword(call, "autograph") is False
        yield Traced(
            module,
            node,
            f"{_title(node)} is a tf.function",
            autograph=not off,
            no_autograph="autograph is switched off for it" if off else "",
        )

    def _keras_methods(self, module: Module, node: ast.ClassDef) -> Iterator[Traced]:
        bases = list(keras_bases(self.project, module, node))
        if not any(_is_traced_base(name) for name in bases):
            return
        for one in node.body:
            if isinstance(one, ast.FunctionDef) and one.name in METHODS:
                text = f"Keras traces `{node.name}.{one.name}`"
                made = Traced(module, one, text, is_differentiated=METHODS[one.name])
                yield self._keras(made, bases[0])

    def _keras(self, one: Traced, name: str) -> Traced:
        if is_legacy_keras(self.project, name, self.target):
            return one
        return replace(one, autograph=False, no_autograph="Keras 3 traces it without autograph")

    def _without(self, one: Traced, module: Module) -> Traced:
        """A loss: of the Keras that the file imports."""
        known = module.names.known.values()
        uses = [f"{name}." for name in known if keras_name(f"{name}.") is not None]
        if not uses and "tensorflow" in known:
            uses = ["tensorflow.keras."]
        return self._keras(one, uses[0]) if uses else one

    # What they call ---------------------------------------------------------------------------

    def _called(self, one: Traced) -> Iterator[Traced]:
        for node in _own_calls(one.node):
            inner = self._reached(one, node)
            for module, function in inner:
                if function is one.node:
                    continue
                yield replace(
                    self._converted(one, module, function),
                    is_differentiated=one.is_differentiated or _is_taped(one.module, node),
                )

    def _reached(self, one: Traced, node: ast.Call) -> Iterator[tuple[Module, Function]]:
        found = function_of(self.project, one.module, node.func)
        if found is not None:
            yield found
        name = one.module.names.of(node.func)
        for number in TRACE_ARGUMENTS.get(name or "", ()):
            for given in _several(_argument(node, number, "")):
                told = function_of(self.project, one.module, given)
                if told is not None:
                    yield told

    def _converted(self, caller: Traced, module: Module, function: Function) -> Traced:
        off = _is_unconverted(module, function)
        return Traced(
            module,
            function,
            f"{_title(caller.node)} calls {_title(function)}, and {caller.because}"
            if "calls" not in caller.because
            else caller.because,
            autograph=caller.autograph and not off,
            no_autograph=caller.no_autograph or (off or ""),
        )


def _is_host_loop(module: Module, node: Function) -> bool:
    """Whether it hands replicas their work, or takes from an iterator."""
    for call in _own_calls(node):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in RUNS:
            continue
        if module.names.of(call.func) is None and (call.args or call.keywords):
            return True
    return False


def _is_unconverted(module: Module, node: Function) -> str | None:
    """Why autograph leaves a function alone; empty where it does not."""
    for decorator in getattr(node, "decorator_list", []):
        name = module.names.of(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name == "tensorflow.autograph.experimental.do_not_convert":
            return "it is marked with do_not_convert"
    return ""


def _is_taped(module: Module, node: ast.AST) -> bool:
    """Whether it stands under a gradient tape."""
    return any(
        isinstance(one, ast.With)
        and any(module.names.called(item.context_expr) in TAKES_GRADIENTS for item in one.items)
        for one in module.around(node)
    )


def _is_traced_base(name: str) -> bool:
    told = keras_name(name) or ""
    return told in PARENT_NAMES or told.startswith(PARENTS)


def _own_calls(node: Function) -> Iterator[ast.Call]:
    """The calls of a function, without those of functions defined in it."""
    body: list[Any] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while body:
        one = body.pop()
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(one, ast.Call):
            yield one
        body.extend(ast.iter_child_nodes(one))


def _visible(project: Project, module: Module, node: ast.Name) -> tuple[Module, Function] | None:
    """The function that a plain name means where it stands: of the scopes around it, then here."""
    scopes = [one for one in module.around(node) if isinstance(one, (ast.FunctionDef, ast.Module))]
    for scope in scopes:
        for one in _scope_statements(scope):
            if isinstance(one, ast.FunctionDef) and one.name == node.id:
                return module, one
            if (
                isinstance(one, ast.Assign)
                and isinstance(one.targets[0], ast.Name)
                and one.targets[0].id == node.id
                and isinstance(one.value, (ast.Lambda, ast.Call))
                and not (isinstance(one.value, ast.Call) and node in ast.walk(one.value))
            ):
                found = function_of(project, module, one.value)
                if found is not None:
                    return found
    return None


def _scope_statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function or a file, the last first, without those of inner functions."""
    waiting = list(getattr(scope, "body", []))
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting.extend(part for part in ast.iter_child_nodes(one) if isinstance(part, ast.stmt))


def _method(
    project: Project, module: Module, around: ast.ClassDef, name: str
) -> tuple[Module, Function] | None:
    for one in around.body:
        if isinstance(one, ast.FunctionDef) and one.name == name:
            return module, one
    for base in around.bases:
        told = module.names.of(base)
        found = project.find(told) if told is not None else None
        if found is None and isinstance(base, ast.Name):
            local = _class_named(module.tree, base.id)
            found = None if local is None or local is around else (module, local)
        if found is not None and isinstance(found[1], ast.ClassDef):
            return _method(project, found[0], found[1], name)
    return None


def _class_named(tree: ast.Module, name: str) -> ast.ClassDef | None:
    found = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == name]
    return found[-1] if found else None


def _argument(call: ast.Call, number: int, name: str) -> ast.expr | None:
    if len(call.args) > number:
        return call.args[number]
    return next((one.value for one in call.keywords if one.arg == name), None)


def _several(node: ast.expr | None) -> list[ast.expr]:
    """A value, or those of a list or dictionary of them."""
    if node is None:
        return []
    if isinstance(node, (ast.List, ast.Tuple)):
        return list(node.elts)
    return list(node.values) if isinstance(node, ast.Dict) else [node]


def _keyword(call: ast.Call, name: str) -> object:
    """The constant that a keyword is given, or None."""
    for one in call.keywords:
        if one.arg == name and isinstance(one.value, ast.Constant):
            return one.value.value
    return None


def _title(node: Function) -> str:
    return "a lambda" if isinstance(node, ast.Lambda) else f"`{node.name}`"
