"""Resolves expressions to the project's functions and classes, and to their Keras bases."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, Function, dotted
from tpuctl.preflight.analysis.program.wrappers import PARTIAL, WRAPPERS
from tpuctl.preflight.findings import Target

Scoped = ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign
OLD_KERAS = "TF_USE_LEGACY_KERAS"


class Reference(NamedTuple):
    """A function of the project, and what `functools.partial` already binds."""

    module: Module
    function: Function
    positional: int = 0  # arguments, without `self`
    keywords: frozenset[str] = frozenset()


def function_of(project: Project, module: Module, node: ast.AST) -> tuple[Module, Function] | None:
    """The project's function that an expression refers to, if any."""
    reference = reference_of(project, module, node)
    return None if reference is None else (reference.module, reference.function)


def reference_of(project: Project, module: Module, node: ast.AST) -> Reference | None:
    """The project's function that an expression refers to, if any.

    Resolves names, `self.f`, `Trainer.f`, `tf.function(f)`, `jax.jit(f)` and
    `functools.partial(f, …)`.
    """
    seen: set[ast.AST] = set()
    positional, keywords = 0, frozenset[str]()
    while node not in seen:
        seen.add(node)
        if isinstance(node, ast.Lambda):
            return Reference(module, node, positional, keywords)
        if isinstance(node, ast.Call):
            name = module.names.of(node.func)
            if not node.args or name not in WRAPPERS:
                return None
            if name == PARTIAL:
                positional += len(node.args) - 1
                keywords |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and (owner := _owner(project, module, node)):
            method = method_of(project, *owner, node.attr)
            return None if method is None else Reference(*method, positional, keywords)
        elif isinstance(node, ast.Name) and (bound := _bound(project, module, node)) is not None:
            if not isinstance(bound, ast.Assign):
                return Reference(module, bound, positional, keywords)
            node = bound.value
        else:
            break
    name = module.names.of(node)
    definition = project.find(name) if name is not None else None
    if definition is not None and isinstance(
        definition[1], (ast.FunctionDef, ast.AsyncFunctionDef)
    ):
        return Reference(definition[0], definition[1], positional, keywords)
    return None


def _owner(
    project: Project, module: Module, node: ast.Attribute
) -> tuple[Module, ast.ClassDef] | None:
    """The class of `self.f`, `cls.f` or `Trainer.f`, if any."""
    if dotted(node.value) in ("self", "cls"):
        around = module.enclosing_class(node)
        return None if around is None else (module, around)
    return class_of(project, module, node.value)


def class_of(project: Project, module: Module, node: ast.AST) -> tuple[Module, ast.ClassDef] | None:
    """The project's class that an expression refers to, if any."""
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
    """A method of a class, possibly inherited from another class of the project."""
    for where, cls in _family(project, module, around):
        for part in cls.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                return where, part
    return None


def keras_bases(project: Project, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The Keras base classes of a class, such as "tensorflow.keras.layers.Layer".

    Includes bases inherited through the project's classes. Hugging Face's TensorFlow models count
    as "tf_keras.Model".
    """
    for name in library_bases(project, module, node):
        if name.startswith("transformers.") and ".TF" in name:
            yield "tf_keras.Model"
        elif keras_name(name) is not None:
            yield name


def library_bases(project: Project, module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The qualified names of a class's bases, also of those of its bases in the project."""
    for where, cls in _family(project, module, node):
        for base in cls.bases:
            name = where.names.of(base)
            if name is not None:
                yield name


def _family(
    project: Project, module: Module, node: ast.ClassDef
) -> Iterator[tuple[Module, ast.ClassDef]]:
    """A class and its base classes in the project, the class first."""
    seen: set[ast.AST] = set()
    pending = [(module, node)]
    while pending:
        where, cls = pending.pop(0)
        if cls in seen:
            continue
        seen.add(cls)
        yield where, cls
        bases = (class_of(project, where, base) for base in cls.bases)
        pending.extend(base for base in bases if base is not None)


def is_legacy_keras(project: Project, name: str, target: Target) -> bool:
    """Whether a qualified name belongs to Keras 2, whose layers AutoGraph converts."""
    if name.startswith("tf_keras."):
        return True
    if not name.startswith("tensorflow."):
        return False
    version = target.version
    if version is not None and version < (2, 16):
        return True
    return OLD_KERAS in project.texts


def _bound(project: Project, module: Module, node: ast.Name) -> Scoped | None:
    """The last definition of a function, or assignment that may refer to one, in scope.

    In `step = jax.jit(step)`, the inner name is the definition before.
    """
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    around = list(module.ancestors(node))
    for number, scope in enumerate(around):
        is_body = isinstance(scope, ast.ClassDef) and not any(
            isinstance(part, FUNCTIONS) for part in around[:number]
        )
        if not isinstance(scope, scopes) and not is_body:
            continue
        key = ("scope", scope)
        if key not in project.cache:
            definitions: dict[str, list[Scoped]] = {}
            for name, definition in _definitions(scope):
                definitions.setdefault(name, []).append(definition)
            project.cache[key] = definitions
        bound: list[Scoped] = project.cache[key].get(node.id, [])
        inside = [part for part in bound if isinstance(part, ast.Assign) and part in around]
        before = bound[bound.index(inside[0]) + 1 :] if inside else bound
        if before:
            return before[0]
    return None


def _definitions(scope: ast.AST) -> Iterator[tuple[str, Scoped]]:
    """The functions of a scope and assignments that may refer to one, last first."""
    pending = list(getattr(scope, "body", []))
    while pending:
        value = pending.pop()
        if isinstance(value, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield value.name, value
        elif isinstance(value, ast.Assign) and isinstance(value.targets[0], ast.Name):
            if isinstance(value.value, (ast.Lambda, ast.Call, ast.Name)):
                yield value.targets[0].id, value
        elif not isinstance(value, ast.ClassDef):
            pending.extend(
                part for part in ast.iter_child_nodes(value) if isinstance(part, ast.stmt)
            )
