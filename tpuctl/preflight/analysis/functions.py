"""Which function or class of a project's own an expression means, and what of Keras it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.names import dotted, keras_name
from tpuctl.preflight.analysis.source import Function, Module, Project, parts_of
from tpuctl.preflight.findings import Target

__all__ = [
    "KERAS_METHODS",
    "TRACE_ARGUMENTS",
    "WRAPPERS",
    "argument",
    "class_of",
    "function_of",
    "is_host",
    "is_legacy_keras",
    "keras_bases",
    "method_of",
    "own_nodes",
    "several",
    "title",
]

Scoped = ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign
WRAPPERS = (
    "tensorflow.function",
    "functools.partial",
    "tensorflow.autograph.experimental.do_not_convert",
    "tensorflow.recompute_grad",
    "tensorflow.custom_gradient",
)
# Methods that Keras traces, and whether gradients are taken of them.
KERAS_METHODS = {
    "call": True,
    "train_step": False,
    "test_step": False,
    "predict_step": False,
    "compute_loss": True,
    "compute_metrics": False,
    "update_state": False,
    "update_step": False,
    "__call__": False,
}
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
    "tensorflow.nest.map_structure": (0,),
}
# Methods of data sets whose functions run on the host.
HOST_METHODS = {"map", "filter", "flat_map", "interleave", "from_generator", "reduce", "scan"}
HOST_METHODS |= {"group_by_window", "bucket_by_sequence_length", "take_while", "apply", "batch"}
HOST_METHODS |= {
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
}
HOST_FUNCTIONS = {"tensorflow.py_function", "tensorflow.numpy_function", "tensorflow.py_func"}
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
OLD_KERAS = "TF_USE_LEGACY_KERAS"


def function_of(project: Project, module: Module, node: ast.AST) -> tuple[Module, Function] | None:
    """The function of the project's own that an expression names, where it is one.

    Sees through `tf.function(f)` and `functools.partial(f, …)`, through `self.f` and plain names.
    """
    seen: set[ast.AST] = set()
    while node not in seen:
        seen.add(node)
        if isinstance(node, ast.Lambda):
            return module, node
        if isinstance(node, ast.Call):
            if not node.args or module.names.of(node.func) not in WRAPPERS:
                return None
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and dotted(node.value) in ("self", "cls"):
            around = module.class_around(node)
            return None if around is None else method_of(project, module, around, node.attr)
        elif isinstance(node, ast.Name) and (one := _bound(project, module, node)) is not None:
            if not isinstance(one, ast.Assign):
                return (module, one)
            node = one.value
        else:
            break
    name = module.names.of(node)
    told = project.find(name) if name is not None else None
    if told is not None and isinstance(told[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
        return told[0], told[1]
    return None


def class_of(project: Project, module: Module, node: ast.AST) -> tuple[Module, ast.ClassDef] | None:
    """The class of the project's own that an expression names."""
    name = module.names.of(node)
    if name is None:
        local = module.classes.get(node.id) if isinstance(node, ast.Name) else None
        return None if local is None else (module, local)
    told = project.find(name)
    return (told[0], told[1]) if told is not None and isinstance(told[1], ast.ClassDef) else None


def method_of(
    project: Project, module: Module, around: ast.ClassDef, name: str
) -> tuple[Module, Function] | None:
    """A method of a class, its own or one that it has from another of the project."""
    for where, one in _family(project, module, around):
        for part in one.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                return where, part
    return None


def keras_bases(project: Project, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The names of Keras' classes, such as "tensorflow.keras.layers.Layer", that it derives from.

    Classes of the project's own in between are seen through. What Hugging Face's TensorFlow models
    derive from counts as "tf_keras.Model".
    """
    for where, one in _family(project, module, node):
        for base in one.bases:
            name = where.names.of(base)
            if name is None:
                continue
            if name.startswith("transformers.") and ".TF" in name:
                yield "tf_keras.Model"
            elif keras_name(name) is not None:
                yield name


def _family(
    project: Project, module: Module, node: ast.ClassDef
) -> Iterator[tuple[Module, ast.ClassDef]]:
    """A class and those of the project that it derives from, itself first."""
    seen: set[ast.AST] = set()
    waiting = [(module, node)]
    while waiting:
        where, one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        yield where, one
        found = (class_of(project, where, base) for base in one.bases)
        waiting.extend(told for told in found if told is not None)


def is_legacy_keras(project: Project, name: str, target: Target) -> bool:
    """Whether something of that name is Keras 2, whose layers autograph converts."""
    if name.startswith("tf_keras."):
        return True
    if not name.startswith("tensorflow."):
        return False
    version = target.version
    if version is not None and version < (2, 16):
        return True
    if OLD_KERAS not in project.known:
        project.known[OLD_KERAS] = any(OLD_KERAS in module.text for module in project)
    return bool(project.known[OLD_KERAS])


def own_nodes(node: Function) -> Iterator[ast.AST]:
    """The parts of a function's body, without those of functions and classes defined in it."""
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while body:
        one = body.pop()
        if not isinstance(one, INNER):
            yield one
            body += parts_of(one)


def argument(call: ast.Call, number: int, name: str) -> ast.expr | None:
    """What a call gives for a parameter, by its place or its name."""
    if 0 <= number < len(call.args):
        return call.args[number]
    return next((one.value for one in call.keywords if one.arg == name), None)


def several(node: ast.expr | None) -> list[ast.expr]:
    """A value, or those of a list or dictionary of them."""
    if node is None:
        return []
    if isinstance(node, (ast.List, ast.Tuple)):
        return [inner for one in node.elts for inner in several(one)]
    return list(node.values) if isinstance(node, ast.Dict) else [node]


def title(node: Function) -> str:
    return "a lambda" if isinstance(node, ast.Lambda) else f"`{node.name}`"


def _bound(project: Project, module: Module, node: ast.Name) -> Scoped | None:
    """The last definition of a name in the scopes around it, or assignment of what may be one."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    for scope in module.around(node):
        if not isinstance(scope, scopes):
            continue
        key = ("scope", scope)
        if key not in project.known:
            project.known[key] = dict(reversed(list(_definitions(scope))))
        found: Scoped | None = project.known[key].get(node.id)
        if found is not None:
            return found
    return None


def _definitions(scope: ast.AST) -> Iterator[tuple[str, Scoped]]:
    """The functions of a scope and the assignments that could name one, the last first."""
    waiting = list(getattr(scope, "body", []))
    while waiting:
        one = waiting.pop()
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield one.name, one
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            if isinstance(one.value, (ast.Lambda, ast.Call, ast.Name)):
                yield one.targets[0].id, one
        elif not isinstance(one, ast.ClassDef):
            waiting.extend(part for part in ast.iter_child_nodes(one) if isinstance(part, ast.stmt))


def is_host(module: Module, call: ast.Call) -> bool:
    """Whether a call hands functions to `tf.data` or to Python on the host."""
    name = module.names.of(call.func)
    if name in HOST_FUNCTIONS:
        return True
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in HOST_METHODS
    return is_method and name not in TRACE_ARGUMENTS
