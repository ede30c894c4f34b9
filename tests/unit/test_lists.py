"""Lists: one declaration of a row gives its tables, JSON, YAML, and what it can be sorted by."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

import pytest

import tpuctl.cli
from tpuctl.cli import tab_completion
from tpuctl.cli.app import command_line
from tpuctl.cli.main import run
from tpuctl.view.columns import Column, Number, Row, columns_shown, sort_keys, sort_rows
from tpuctl.view.terminal import tables

WRITERS = {tables.print_table, tables.table}  # take headings


class Pond(Row):
    name: Annotated[str, Column()]
    depth: Annotated[Number | None, Column("at {place}", sort="depth deepest")]
    fish: Annotated[list[str], Column(show=lambda row: ", ".join(row["fish"]))]
    is_frozen: bool


PONDS: list[dict[str, Any]] = [
    {"name": "pond-10", "depth": None, "fish": ["tench"], "is_frozen": True},
    {"name": "pond-9", "depth": 2.5, "fish": ["carp", "perch"], "is_frozen": False},
    {"name": "pond-8", "depth": 12, "fish": [], "is_frozen": False},
]


def list_commands() -> dict[str, Any]:
    """The commands with wide tables, by name."""
    root: Any = command_line()
    context = root.make_context("tpuctl", [], resilient_parsing=True)
    commands = {name: root.get_command(context, name) for name in root.list_commands(context)}
    return {
        name: command
        for name, command in commands.items()
        if any("wide" in (getattr(option, "help", None) or "") for option in command.params)
    }


def mentioned(code: Any) -> Iterator[Any]:
    """The functions and classes of tpuctl that a function or class mentions, at any depth."""
    queue, visited = [inspect.unwrap(code)], set()
    while queue:
        code = queue.pop()
        if code in visited:
            continue
        visited.add(code)
        yield code
        if code in WRITERS or code is tables.print_rows:
            continue
        names = dict(vars(sys.modules[code.__module__]))
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tpuctl."):
                module = __import__(str(node.module), fromlist=["*"])
                names |= {alias.name: getattr(module, alias.name, None) for alias in node.names}
        variables = {
            n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for node in ast.walk(tree):
            target = (
                names.get(node.id)
                if isinstance(node, ast.Name) and node.id not in variables
                else None
            )
            target = inspect.unwrap(target) if isinstance(target, FunctionType) else target
            where = getattr(target, "__module__", "")
            if isinstance(target, type | FunctionType) and where.startswith(
                ("tpuctl.cli.", "tpuctl.view.")
            ):
                queue.append(target)


def test_lists_are_found() -> None:
    assert {"types", "zones", "runtimes", "prices", "quota", "orphans", "jobs"} <= {
        *list_commands()
    }


@pytest.mark.parametrize("name", list_commands())
def test_list_declares_columns_on_its_rows_alone(name: str) -> None:
    code = {*mentioned(list_commands()[name].callback)}
    assert tables.print_rows in code, f"{name} prints no rows with tables.print_rows"
    assert not code & WRITERS, f"{name} has headings beside those of its rows"


@pytest.mark.parametrize("name", list_commands())
def test_shells_complete_sort_keys(name: str) -> None:
    assert len(tab_completion.candidates_for([name, "--sort"], "")) > 2


@pytest.mark.parametrize("name", ["types", "zones", "runtimes", "prices", "quota"])
def test_every_key_sorts(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([name, "--sort", "nothing", "--json"]) == 2
    (diagnostic,) = json.loads(capsys.readouterr().out)["diagnostics"]
    keys = diagnostic["hint"].partition("Valid keys: ")[2].rstrip(".").split(", ")
    assert len(keys) > 2
    for key in keys:
        assert run([name, "--sort", f"-{key}", "--limit", "2"]) == 0, key
    capsys.readouterr()
    assert {*keys} <= {c.word for c in tab_completion.candidates_for([name, "--sort"], "")}


def test_tables_have_marked_columns_and_wide_ones_all() -> None:
    assert [*columns_shown(Pond, PONDS, (), is_wide=False)] == ["name", "depth", "fish"]
    assert [*columns_shown(Pond, PONDS, ("name",), is_wide=False)] == ["depth", "fish"]
    wide = columns_shown(Pond, PONDS, ("name",), is_wide=True)
    assert {name: column.title for name, column in wide.items()} == {
        "depth": "at {place}",
        "fish": "fish",
        "name": "name",
        "is_frozen": "is frozen",
    }
    assert [name for name, column in wide.items() if column.is_number] == ["depth"]


def test_rows_are_printed_as_declared(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_rows(Pond, PONDS, {"place": "noon"})
    heading, _, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading == ["name", "at", "noon", "fish"]
    assert lines == [
        ["pond-10", "-", "tench"],
        ["pond-9", "$2.50", "carp,", "perch"],
        ["pond-8", "12"],
    ]


@pytest.mark.parametrize(
    ("field", "is_descending", "names"),
    [
        ("name", False, ["pond-8", "pond-9", "pond-10"]),
        ("depth", False, ["pond-9", "pond-8", "pond-10"]),
        ("depth", True, ["pond-8", "pond-9", "pond-10"]),
        ("fish", False, ["pond-8", "pond-9", "pond-10"]),
    ],
)
def test_rows_are_sorted_by_a_field(field: str, is_descending: bool, names: list[str]) -> None:
    rows = sort_rows(Pond, PONDS, field, is_descending=is_descending)
    assert [row["name"] for row in rows] == names


def test_keys_are_fields_unless_declared() -> None:
    assert sort_keys(Pond, PONDS) == {
        "name": "name",
        "depth": "depth",
        "deepest": "depth",
        "fish": "fish",
        "is-frozen": "is_frozen",
    }


def test_sort_option_is_declared_once() -> None:
    folder = Path(tpuctl.cli.__file__).parent
    with_option = [path for path in folder.rglob("*.py") if '"--sort"' in path.read_text("utf-8")]
    assert [path.name for path in with_option] == ["options.py"], "sorted_by gives a command --sort"
