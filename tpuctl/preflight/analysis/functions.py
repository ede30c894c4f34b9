"""Which function or class of a project's own an expression means, and what of Keras it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import Function, dotted
from tpuctl.preflight.analysis.tensorflow_calls import WRAPPERS
from tpuctl.preflight.findings import Target

__all__ = ["class_of", "function_of", "is_legacy_keras", "keras_bases", "method_of"]

Scoped = ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign
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
            around = module.enclosing_class(node)
            return None if around is None else method_of(project, module, around, node.attr)
        elif isinstance(node, ast.Name) and (bound := _bound(project, module, node)) is not None:
            if not isinstance(bound, ast.Assign):
                return (module, bound)
            node = bound.value
        else:
            break
    name = module.names.of(node)
    definition = project.find(name) if name is not None else None
    if definition is not None and isinstance(
        definition[1], (ast.FunctionDef, ast.AsyncFunctionDef)
    ):
        return definition[0], definition[1]
    return None


def class_of(project: Project, module: Module, node: ast.AST) -> tuple[Module, ast.ClassDef] | None:
    """The class of the project's own that an expression names."""
    name = module.names.of(node)
    if name is None:
        local = module.classes.get(node.id) if isinstance(node, ast.Name) else None
        return None if local is None else (module, local)
    definition = project.find(name)
    return (
        (definition[0], definition[1])
        if definition is not None and isinstance(definition[1], ast.ClassDef)
        else None
    )


def method_of(
    project: Project, module: Module, around: ast.ClassDef, name: str
) -> tuple[Module, Function] | None:
    """A method of a class, its own or one that it has from another of the project."""
    for where, cls in _family(project, module, around):
        for part in cls.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                return where, part
    return None


def keras_bases(project: Project, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The names of Keras' classes, such as "tensorflow.keras.layers.Layer", that it derives from.

    Classes of the project's own in between are seen through. What Hugging Face's TensorFlow models
    derive from counts as "tf_keras.Model".
    """
    for where, cls in _family(project, module, node):
        for base in cls.bases:
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
        where, cls = waiting.pop(0)
        if cls in seen:
            continue
        seen.add(cls)
        yield where, cls
        bases = (class_of(project, where, base) for base in cls.bases)
        waiting.extend(base for base in bases if base is not None)


def is_legacy_keras(project: Project, name: str, target: Target) -> bool:
    """Whether something of that name is Keras 2, whose layers autograph converts."""
    if name.startswith("tf_keras."):
        return True
    if not name.startswith("tensorflow."):
        return False
    version = target.version
    if version is not None and version < (2, 16):
        return True
    if OLD_KERAS not in project.cache:
        project.cache[OLD_KERAS] = any(OLD_KERAS in module.text for module in project)
    return bool(project.cache[OLD_KERAS])


def _bound(project: Project, module: Module, node: ast.Name) -> Scoped | None:
    """The last definition of a name in the scopes around it, or assignment of what may be one."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    for scope in module.ancestors(node):
        if not isinstance(scope, scopes):
            continue
        key = ("scope", scope)
        if key not in project.cache:
            project.cache[key] = dict(reversed(list(_definitions(scope))))
        definition: Scoped | None = project.cache[key].get(node.id)
        if definition is not None:
            return definition
    return None


def _definitions(scope: ast.AST) -> Iterator[tuple[str, Scoped]]:
    """The functions of a scope and the assignments that could name one, the last first."""
    waiting = list(getattr(scope, "body", []))
    while waiting:
        value = waiting.pop()
        if isinstance(value, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield value.name, value
        elif isinstance(value, ast.Assign) and isinstance(value.targets[0], ast.Name):
            if isinstance(value.value, (ast.Lambda, ast.Call, ast.Name)):
                yield value.targets[0].id, value
        elif not isinstance(value, ast.ClassDef):
            waiting.extend(
                part for part in ast.iter_child_nodes(value) if isinstance(part, ast.stmt)
            )
