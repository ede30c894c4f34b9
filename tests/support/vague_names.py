"""Vague names and British spellings in the project's programs.

    python -m tests.support.vague_names [PATH …]

prints each of them, and exits with 1 if there are any: `make check` runs it. A vague name is
allowed in a function only with its type on the same line: `known: set[str] = set()`, or a
call of a class. Programs that are data, those of the corpus, are excluded.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

VAGUE = (
    {"one", "it", "this", "found", "told", "made", "wanted", "given", "asked", "ask", "said", "say"}
    | {"meant", "heard", "gone", "taken", "held", "kept", "sent", "seen", "shown", "known", "named"}
    | {"chosen", "own", "ours", "mine", "theirs", "what", "why", "have", "heed", "wishes"}
    | {"ran"}
)
BRITISH = re.compile(
    r"(?<![a-z])(?:organis|catalogue|colour|behaviour|normalis|initialis|recognis|serialis|favour|"
    r"honour|centre|analyse|optimis|summaris|tokenis|utilis|synchronis|authoris|minimis|maximis|"
    r"neighbour|artefact|labell|licence)",
    re.IGNORECASE,
)
FOLDERS = ("tpuctl", "tests", "templates", "docs")
DATA = re.compile(
    r"tests/(corpus/(expressions|labeled|planted|programs|scripts)|cases|rehearsal/programs)/|_texts\.toml"
)
Names = Iterator[tuple[int, str, str]]


def vague_names(source: str) -> Names:
    """Each binding of a vague name in a program: line, name and kind of name."""
    tree = ast.parse(source)
    yield from _scope(tree, "module-level name")


def _scope(scope: ast.AST, kind: str) -> Names:
    for node in _inside(scope):
        yield from (
            (line, name, place) for line, name, place in _bound(node, kind) if name in VAGUE
        )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _scope(node, "variable")
        elif isinstance(node, ast.ClassDef):
            yield from _scope(node, "attribute")


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, including definitions, whose bodies are separate scopes."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))


def _bound(node: ast.AST, kind: str) -> Names:
    """The names that a node binds; a variable counts if a loop or an untyped value binds it."""
    match node:
        case ast.arg():
            yield node.lineno, node.arg, "parameter"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.lineno, node.name, kind
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield node.lineno, name, kind
        case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
            yield node.lineno, node.attr, "attribute"
        case ast.Name(ctx=ast.Store()) if kind != "variable":
            yield node.lineno, node.id, kind
        case ast.Assign(targets=[ast.Name()], value=value) if _is_construction(value):
            pass
        case _ if kind == "variable":
            for target in _targets(node):
                yield from ((name.lineno, name.id, kind) for name in _names(target))


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return [target]
        case ast.comprehension(target=target) | ast.NamedExpr(target=target):
            return [target]
        case ast.withitem(optional_vars=ast.expr() as target):
            return [target]
        case _:
            return []


def _names(target: ast.expr) -> Iterator[ast.Name]:
    return (
        part
        for part in ast.walk(target)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )


def _is_construction(value: ast.expr) -> bool:
    """Whether an expression shows its type: a call of a class."""
    called = value.func if isinstance(value, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
    return name[:1].isupper() or name in {"set", "dict", "list", "Path"}


def british(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, match[0]) for match in BRITISH.finditer(line))


def _files(paths: Sequence[str]) -> Iterable[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *(paths or FOLDERS)], capture_output=True, text=True, check=True
    )
    return [Path(name) for name in listed.stdout.splitlines() if not DATA.search(name)]


def main(paths: Sequence[str]) -> int:
    problems = []
    for path in _files(paths):
        if path.suffix not in {".py", ".md", ".toml", ".yaml", ".yml", ".sh"} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            problems += [
                f"{path}:{line}: {kind} `{name}` is vague"
                for line, name, kind in sorted(set(vague_names(text)))
            ]
        if path != Path(__file__).relative_to(Path.cwd()):
            problems += [f"{path}:{line}: British: {word}" for line, word in british(text)]
    print("\n".join(problems) or "no vague names")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
