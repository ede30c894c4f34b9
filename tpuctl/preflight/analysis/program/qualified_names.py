"""Resolves names in a file to qualified names: `tf.where` is `tensorflow.where`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache

from tpuctl.preflight.analysis.program.syntax import dotted

# Prefixes with the same meaning.
_ALIASES = (
    ("tensorflow.compat.v2.", "tensorflow."),
    ("tensorflow._api.v2.", "tensorflow."),
    ("tensorflow.python.keras.", "tensorflow.keras."),
    ("tensorflow.python.framework.ops.", "tensorflow."),
    ("tensorflow.python.data.ops.dataset_ops.", "tensorflow.data."),
)
# Functions that import the module with a name, by the ends of their names.
IMPORTERS = ("import_module", "__import__")
_NAME_TYPES = frozenset((ast.Name, ast.Attribute))
KERAS = ("tensorflow.keras.", "keras.", "tf_keras.")


class Names:
    """The imports and simple aliases (`layers = tf.keras.layers`) of a file.

    Imports inside functions apply to the whole file.
    """

    def __init__(self, nodes: Iterable[ast.AST], package: str = "") -> None:
        self.imports: dict[str, str] = {}
        self.imported: dict[str, ast.AST] = {}  # modules, as dotted names; what imports them first
        self.stars: list[str] = []  # modules of `import *`
        self._cache: dict[ast.AST, str | None] = {}  # results of `of`
        aliases: list[ast.Assign] = []
        for node in nodes:
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node, package)
            elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
                aliases.append(node)
            elif isinstance(node, ast.Call):
                self._import_by_call(node)
        for node in aliases:
            target = node.targets[0]
            name = self.of(node.value)
            if len(node.targets) == 1 and isinstance(target, ast.Name) and name is not None:
                self.imports.setdefault(target.id, name)
        self._cache.clear()

    def of(self, node: ast.AST) -> str | None:
        """The qualified name of an expression; None if it is not imported.

        `tf.keras.layers.Dense` is "tensorflow.keras.layers.Dense".
        """
        try:
            return self._cache[node]
        except KeyError:
            name = self._cache[node] = self._of(node)
            return name

    def _of(self, node: ast.AST) -> str | None:
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if not isinstance(first, ast.Name) or first.id not in self.imports:
            return None
        _, _, rest = (dotted(node) or "").partition(".")
        return _canonical(f"{self.imports[first.id]}.{rest}" if rest else self.imports[first.id])

    def called(self, node: ast.AST) -> str | None:
        """The qualified name of a called function; None for other expressions."""
        return self.of(node.func) if isinstance(node, ast.Call) else None

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imported.setdefault(alias.name, node)
            if alias.asname:
                self.imports[alias.asname] = _canonical(alias.name)
            else:
                top = alias.name.partition(".")[0]
                self.imports[top] = top

    def _import_from(self, node: ast.ImportFrom, package: str) -> None:
        base = node.module or ""
        if node.level:
            parts = package.split(".") if package else []
            parents = parts[: len(parts) - (node.level - 1)]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(base)
                self.imported.setdefault(base, node)
                continue
            whole = f"{base}.{alias.name}" if base else alias.name
            self.imported.setdefault(whole, node)
            self.imports[alias.asname or alias.name] = _canonical(whole)

    def _import_by_call(self, node: ast.Call) -> None:
        if dotted(node.func) in ("importlib.import_module", *IMPORTERS):
            for value in node.args[:1]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    self.imported.setdefault(value.value, node)


def keras_name(name: str | None) -> str | None:
    """The name without the prefix of any Keras package, such as `layers.Dense`, or None."""
    for prefix in KERAS:
        if name is not None and name.startswith(prefix):
            return name.removeprefix(prefix)
    return None


@cache
def _canonical(name: str) -> str:
    for other, canonical in _ALIASES:
        if name == other[:-1]:
            return canonical[:-1]
        if name.startswith(other):
            return canonical + name.removeprefix(other)
    return name
