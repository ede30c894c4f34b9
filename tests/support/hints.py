"""Every place in the code that makes a diagnostic, and every command that a text of ours tells."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tpuctl
from tpuctl import errors
from tpuctl.cloud import classification

__all__ = ["Site", "commands_told", "sites"]

PACKAGE = Path(tpuctl.__file__).parent
CLASSES = {
    name
    for module in (errors, classification)
    for name, one in vars(module).items()
    if inspect.isclass(one) and issubclass(one, errors.TpuctlError) and name != "InvalidStack"
}
CLASSIFICATION = Path(classification.__file__)
COMMAND = re.compile(r"(?m)^[ ]{4,}((?:tpuctl|gcloud) [^\n]*)$")
CONTINUED = re.compile(r"\\\n\s*")
HINT = 2  # its place among a Diagnostic's arguments


@dataclass(frozen=True)
class Site:
    """A call that makes a diagnostic, or an error with one."""

    path: str
    line: int
    summary: str
    has_hint: bool
    hint: str  # as far as it is written there, `1` for what is put in

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.summary}"


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [(path, ast.parse(path.read_text("utf-8"))) for path in files]


@cache
def sites() -> tuple[Site, ...]:
    return tuple(_sites())


def _sites() -> Iterator[Site]:
    for path, tree in _trees():
        ours = _ours(tree, path)
        if not ours:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in ours:
                    yield _site(node, name, str(path.relative_to(PACKAGE)))


def _ours(tree: ast.Module, path: Path) -> set[str]:
    """The names of our classes in a module: another may have a `Refused` of its own."""
    if path == PACKAGE / "errors.py":
        return set()
    known = {*CLASSES, "Diagnostic"}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name for one in node.names} & known
        if isinstance(node, ast.ClassDef) and path == CLASSIFICATION:
            found.add(node.name)
    return found


def _site(call: ast.Call, name: str, path: str) -> Site:
    given = [one for one in call.keywords if one.arg in ("hint", None)]
    hints: list[ast.expr] = [one.value for one in given]
    if name == "Diagnostic":
        hints += call.args[HINT : HINT + 1]
    has_all = any(isinstance(one, ast.Starred) for one in call.args)
    text = written(hints[0]) if hints else ""
    is_empty = bool(hints) and isinstance(hints[0], ast.Constant) and not hints[0].value
    summary = written(call.args[0]) if call.args else ""
    return Site(path, call.lineno, summary, (bool(hints) and not is_empty) or has_all, text)


def written(node: ast.AST) -> str:
    """The text of an expression, with `1` where something is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "1"
    if isinstance(node, ast.JoinedStr):
        return "".join(written(one) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return written(node.left) + written(node.right)
    return "1"


def commands_told() -> Iterator[tuple[str, str]]:
    """Each command on an indented line of a text in the code, and where it stands."""
    for path, tree in _trees():
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr | ast.BinOp)
            for part in ast.walk(node)
            if part is not node
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) or id(node) in inner:
                continue
            text = CONTINUED.sub(" ", written(node))
            for command in COMMAND.findall(text):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", command.rstrip()
