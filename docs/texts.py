"""Lists every text that users meet, by where it is written: the page docs/reference/texts.md.

In programs these are string literals that contain words, and the docstrings of commands and of
published keys, which are help and descriptions; in data files, the values and comments that are
shown or copied. Placeholders are in braces. Messages of Google, TensorFlow and shells, patterns and
code are omitted where they can be recognized.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["texts_page"]

ROOT = Path(__file__).resolve().parents[1]
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
AREAS = {
    "Commands": ("cli",),
    "Answers and reports": ("view", "api"),
    "What commands do": ("flows", "engine", "resources", "jobs", "remote", "cloud", "catalog"),
    "The stack file, jobs and errors": ("model",),
    "The check, the rehearsal and the compiler": ("preflight",),
    "The local cloud": ("emulator", "local_cloud", "simulated_tpu"),
}


def texts_page() -> str:
    lines = ["# Texts\n", "Every text that tpuctl prints or writes, by source file.\n"]
    modules = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tpuctl").rglob("*.py")}
    modules = {name: modules[name] for name in sorted(modules) if not OMITTED.match(name)}
    placed = {name for names in AREAS.values() for name in names}
    for area, folders in [*AREAS.items(), ("Everywhere", ("",))]:
        lines.append(f"\n## {area}\n")
        for name, path in modules.items():
            folder = name.split("/")[1]
            if folder in folders or (folders == ("",) and folder not in placed):
                lines += _section(name, module_texts(path.read_text(encoding="utf-8"), name))
        if area.startswith("The stack file"):
            for path in sorted((ROOT / "tpuctl/model/troubleshooting/errors").glob("*.toml")):
                lines += _section(
                    f"tpuctl/model/troubleshooting/errors/{path.name}", table_texts(path)
                )
    lines.append("\n## Templates\n")
    for path in sorted((ROOT / "templates").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            lines += _section(name, module_texts(path.read_text(encoding="utf-8"), name))
        elif path.suffix in {".yaml", ".yml"}:
            lines += _section(name, comment_texts(path.read_text(encoding="utf-8")))
    return "\n".join(lines) + "\n"


def _section(name: str, texts: Iterator[str]) -> list[str]:
    lines = [f"- {_escaped(text)}" for text in dict.fromkeys(texts)]
    return [f"\n### {name}\n", *lines] if lines else []


def _escaped(text: str) -> str:
    """A text on one line of Markdown, as a code span if it contains Markdown syntax."""
    flat = " ".join(text.split())
    return f"`` {flat} ``" if re.search(r"[<>*_|\[\]\\`#]", flat) else flat


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


def table_texts(path: Path) -> Iterator[str]:
    """The texts of a table, its patterns and quotations left out."""

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in {"match", "lines", "log", "response", "source"}:
                    yield from texts(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from texts(inner)
        elif isinstance(value, str) and WORDS.search(value):
            yield value

    return texts(tomllib.loads(path.read_text(encoding="utf-8")))


def comment_texts(text: str) -> Iterator[str]:
    for line in text.splitlines():
        _, mark, comment = line.partition("# ")
        if mark and WORDS.search(comment):
            yield comment
