"""Every text that users meet, by the file in which it is written.

In programs these are string literals that contain words, and the docstrings of commands and of
published keys, which are help and descriptions; in data files, the values and comments that are
shown or copied. Placeholders are in braces. Messages of Google, TensorFlow and shells, patterns and
code are omitted where they can be recognized.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORDS = re.compile(r"[A-Za-z`'’\]})\"]{2,}[,.:;]? [A-Za-z`{(]+")
# Strings that are run, matched or sent, not read.
CODE = re.compile(
    r"^(#!|--|[a-z_]+=|SELECT |CREATE |INSERT |UPDATE |DELETE FROM|PRAGMA |import |from \w+ import)"
    r"|\\[bdsw]|\(\?[:P!=<i]|&&|\$\(|; do\b|>/dev/null|^[a-z]+ -[a-zA-Z]|</?\w+>.*\{"
)
# Calls whose strings are patterns or programs.
RUN = {
    "compile",
    "fullmatch",
    "match",
    "search",
    "sub",
    "split",
    "finditer",
    "execute",
    "warn_when",
}
# Tables in strings: permissions, and lists of single words.
TABLES = {"permissions", "WORDS", "LANGUAGE_CODES", "ABBREVIATED"}
# The docstrings of their classes describe published keys.
KEYS = ("tpuctl/model/events.py", "tpuctl/view/responses/")
# Modules whose texts are Google's.
OMITTED = re.compile(
    r"tpuctl/(emulator/(?!faults/scheduled|server|machines)|simulated_tpu/tensorflow_stubs)"
)
TABLES_WITH_TEXTS = (
    "tpuctl/model/troubleshooting/errors/*.toml",
    "tpuctl/preflight/analysis/tensorflow/versioned_names.json",
)
# Keys of tables with patterns and quotations, or about the table itself.
NOT_READ = {"match", "lines", "log", "response", "source", "keys"}


def texts() -> dict[str, list[str]]:
    """The texts of each file that has any, once each, without line breaks."""
    modules = [*(ROOT / "tpuctl").rglob("*.py"), *(ROOT / "templates").rglob("*.py")]
    tables = [path for pattern in TABLES_WITH_TEXTS for path in ROOT.glob(pattern)]
    templates = [
        path for path in (ROOT / "templates").rglob("*") if path.suffix in {".yaml", ".yml"}
    ]
    by_file = {}
    for path in sorted([*modules, *tables, *templates]):
        name = path.relative_to(ROOT).as_posix()
        if not OMITTED.match(name):
            by_file[name] = [*dict.fromkeys(" ".join(text.split()) for text in _texts(path, name))]
    return {name: lines for name, lines in by_file.items() if lines}


def _texts(path: Path, name: str) -> Iterator[str]:
    source = path.read_text("utf-8")
    match path.suffix:
        case ".py":
            return module_texts(source, name)
        case ".toml":
            return _table_texts(tomllib.loads(source))
        case ".json":
            return _table_texts(json.loads(source))
        case _:
            return comment_texts(source)


def module_texts(source: str, name: str) -> Iterator[str]:
    """The texts of a program, in order."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        text = _string(node)
        if text is None:
            todo += reversed(_read_parts(node, name))
        elif WORDS.search(text) and not CODE.search(text):
            yield text


def _read_parts(node: ast.AST, name: str) -> list[ast.AST]:
    """The parts of a node, except those that no user reads: most docstrings, patterns, types."""
    skipped: list[ast.AST] = []
    match node:
        case ast.Module() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            first = node.body[0] if node.body else None
            is_docstring = isinstance(first, ast.Expr) and _string(first.value) is not None
            if first is not None and is_docstring and not _is_published(node, name):
                skipped = [first]
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if called in RUN:
            skipped = [*node.args]
        case ast.AnnAssign():
            skipped = [node.annotation]
        case ast.Assign(targets=[ast.Name(id=assigned)]) if assigned in TABLES:
            skipped = [node.value]
    parts: list[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        for part in value if type(value) is list else (value,):
            # Most parts are names and their contexts, which contain no strings.
            if isinstance(part, ast.AST) and not isinstance(part, ast.Name | ast.expr_context):
                parts.append(part)
    return [part for part in parts if part not in skipped] if skipped else parts


def _is_published(node: ast.AST, name: str) -> bool:
    """Whether a docstring is a command's help, or describes keys."""
    if isinstance(node, ast.ClassDef):
        return name.startswith(KEYS) and not name.endswith("/base.py")
    is_command = name.startswith("tpuctl/cli/") and isinstance(node, ast.FunctionDef)
    return is_command and any(parameter.arg == "context" for parameter in node.args.args)


def _string(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else _placeholder(part)
                for part in values
            )
        case _:
            return None


def _placeholder(part: ast.AST) -> str:
    match part:
        case ast.FormattedValue(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return f"{{{name}}}"
        case _:
            return "{…}"


def _table_texts(table: Any) -> Iterator[str]:
    if isinstance(table, dict):
        for key, value in table.items():
            if key not in NOT_READ:
                yield from _table_texts(value)
    elif isinstance(table, list):
        for value in table:
            yield from _table_texts(value)
    elif isinstance(table, str) and WORDS.search(table):
        yield table


def comment_texts(text: str) -> Iterator[str]:
    for line in text.splitlines():
        _, mark, comment = line.partition("# ")
        if mark and WORDS.search(comment):
            yield comment
