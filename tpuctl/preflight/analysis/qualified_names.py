"""What the names in a file stand for: `tf.where` is `tensorflow.where`, whatever it is called."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache

from tpuctl.preflight.analysis.syntax import dotted

__all__ = ["KERAS", "Names", "keras_name"]

# The same things under other names.
_SAME = (
    ("tensorflow.compat.v2.", "tensorflow."),
    ("tensorflow._api.v2.", "tensorflow."),
    ("tensorflow.python.keras.", "tensorflow.keras."),
    ("tensorflow.python.framework.ops.", "tensorflow."),
    ("tensorflow.python.data.ops.dataset_ops.", "tensorflow.data."),
)
KERAS = ("tensorflow.keras.", "keras.", "tf_keras.")


class Names:
    """The imports of a file and its plain aliases (`layers = tf.keras.layers`).

    Imports within functions count for the whole file.
    """

    def __init__(self, nodes: Iterable[ast.AST], package: str = "") -> None:
        self.known: dict[str, str] = {}
        self.imported: list[str] = []  # modules, as dotted names
        self.stars: list[str] = []  # modules from which all names are taken
        self._told: dict[ast.AST, str | None] = {}  # what `of` is asked again and again
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
                self.known.setdefault(target.id, name)
        self._told.clear()

    def of(self, node: ast.AST) -> str | None:
        """The dotted name that an expression stands for, from its import on; None for others.

        `tf.keras.layers.Dense` is "tensorflow.keras.layers.Dense". A local name that was not
        imported stands for nothing.
        """
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        if node not in self._told:
            self._told[node] = self._of(node)
        return self._told[node]

    def _of(self, node: ast.AST) -> str | None:
        path = dotted(node)
        if path is None:
            return None
        first, _, rest = path.partition(".")
        if first not in self.known:
            return None
        return _canonical(f"{self.known[first]}.{rest}" if rest else self.known[first])

    def called(self, node: ast.AST) -> str | None:
        """Like `of`, of what a call calls; None where it is no call."""
        return self.of(node.func) if isinstance(node, ast.Call) else None

    def _import(self, node: ast.Import) -> None:
        for one in node.names:
            self.imported.append(one.name)
            if one.asname:
                self.known[one.asname] = _canonical(one.name)
            else:
                top = one.name.partition(".")[0]
                self.known[top] = top

    def _import_from(self, node: ast.ImportFrom, package: str) -> None:
        base = node.module or ""
        if node.level:
            parts = package.split(".") if package else []
            kept = parts[: len(parts) - (node.level - 1)]
            base = ".".join([*kept, *([base] if base else [])])
        for one in node.names:
            if one.name == "*":
                self.stars.append(base)
                self.imported.append(base)
                continue
            whole = f"{base}.{one.name}" if base else one.name
            self.imported.append(whole)
            self.known[one.asname or one.name] = _canonical(whole)

    def _import_by_call(self, node: ast.Call) -> None:
        if dotted(node.func) in ("importlib.import_module", "import_module", "__import__"):
            for value in node.args[:1]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    self.imported.append(value.value)


def keras_name(name: str | None) -> str | None:
    """What follows `keras.` in the name of something of any Keras: `layers.Dense`."""
    for prefix in KERAS:
        if name is not None and name.startswith(prefix):
            return name.removeprefix(prefix)
    return None


@cache
def _canonical(name: str) -> str:
    for other, one in _SAME:
        if name == other[:-1]:
            return one[:-1]
        if name.startswith(other):
            return one + name.removeprefix(other)
    return name
