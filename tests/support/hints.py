"""Finds every diagnostic created in the code, and every command in its texts."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tpuctl
from tpuctl import errors
from tpuctl.cloud import classification

PACKAGE = Path(tpuctl.__file__).parent
CLASSES = {
    name
    for module in (errors, classification)
    for name, node in vars(module).items()
    if inspect.isclass(node) and issubclass(node, errors.TpuctlError) and name != "InvalidStack"
}
CLASSIFICATION = Path(classification.__file__)
COMMAND = re.compile(r"(?m)^[ ]{4,}((?:tpuctl|gcloud) [^\n]*)$")
CONTINUED = re.compile(r"\\\n\s*")
# What files with either contain.
RELEVANT = re.compile(rf"[ ]{{4}}(?:tpuctl|gcloud) |\b(?:Diagnostic|{'|'.join(sorted(CLASSES))})\b")
HINT = 2  # its position among a Diagnostic's arguments


@dataclass(frozen=True)
class Site:
    """A call that creates a diagnostic, or an error with one."""

    path: str
    line: int
    summary: str
    has_hint: bool
    hint: str  # its literal text, with `1` for each inserted value

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.summary}"


def diagnostic_sites() -> tuple[Site, ...]:
    return _findings()[0]


def commands_in_texts() -> tuple[tuple[str, str], ...]:
    """Each command on an indented line of a text in the code, and its location."""
    return _findings()[1]


@cache
def _findings() -> tuple[tuple[Site, ...], tuple[tuple[str, str], ...]]:
    """Both, from one pass over the code."""
    sites: list[Site] = []
    commands: list[tuple[str, str]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if not RELEVANT.search(text):  # three quarters of the files, whose parsing takes a second
            continue
        nodes = list(_walk(ast.parse(text)))
        sites += _sites(nodes, path)
        commands += _commands(nodes, path)
    return tuple(sites), tuple(commands)


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, like `ast.walk`, but in a third of the time.

    Names and their contexts, which are most of the nodes, are omitted.
    """
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for field_name in node._fields:
            value = getattr(node, field_name, None)
            for part in value if type(value) is list else (value,):
                if isinstance(part, ast.AST) and not isinstance(part, ast.Name | ast.expr_context):
                    todo.append(part)


def _sites(nodes: Sequence[ast.AST], path: Path) -> Iterator[Site]:
    class_names = _class_names_in(nodes, path)
    for node in nodes if class_names else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in class_names:
                yield _site(node, name, str(path.relative_to(PACKAGE)))


def _class_names_in(nodes: Sequence[ast.AST], path: Path) -> set[str]:
    """The names of tpuctl's classes in a module: another module may define its own `Refused`."""
    if path == PACKAGE / "errors.py":
        return set()
    error_names = {*CLASSES, "Diagnostic"}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names} & error_names
        if isinstance(node, ast.ClassDef) and path == CLASSIFICATION:
            found.add(node.name)
    return found


def _site(call: ast.Call, name: str, path: str) -> Site:
    arguments = [node for node in call.keywords if node.arg in ("hint", None)]
    hints: list[ast.expr] = [node.value for node in arguments]
    if name == "Diagnostic":
        hints += call.args[HINT : HINT + 1]
    has_all = any(isinstance(node, ast.Starred) for node in call.args)
    text = written(hints[0]) if hints else ""
    is_empty = bool(hints) and isinstance(hints[0], ast.Constant) and not hints[0].value
    summary = written(call.args[0]) if call.args else ""
    return Site(path, call.lineno, summary, (bool(hints) and not is_empty) or has_all, text)


def written(node: ast.AST) -> str:
    """The text of an expression, with `1` for each inserted value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "1"
    if isinstance(node, ast.JoinedStr):
        return "".join(written(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return written(node.left) + written(node.right)
    return "1"


def _commands(nodes: Sequence[ast.AST], path: Path) -> Iterator[tuple[str, str]]:
    texts = [node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)]
    inner = {
        id(part)
        for node in texts
        if not isinstance(node, ast.Constant)
        for part in ast.walk(node)
        if part is not node
    }
    for node in texts:
        if id(node) not in inner:
            text = CONTINUED.sub(" ", written(node))
            for command in COMMAND.findall(text):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", command.rstrip()
