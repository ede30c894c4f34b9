"""Help: one screen each, with a valid example; and the errors for mistyped commands."""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import tpuctl.cli
from tests.support.command_lines import parse
from tpuctl.cli.app import command_line
from tpuctl.cli.help.commands import COMMANDS, GROUPS, LEFT_COLUMN, SYNONYMS
from tpuctl.cli.help.help_pages import example_of
from tpuctl.cli.main import run
from tpuctl.cli.state import State

COLUMNS = 80
SCREEN = 23  # the prompt below it is the 24th row
ROWS = 40
ONE_SCREEN = ("local fault add", "rehearse", "prices", "ci", "ci github", "ci gitlab")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.chdir(tmp_path)
    for name in ("TPUCTL_CLOUD", "TPUCTL_JSON", "TPUCTL_STACK_FILE"):
        monkeypatch.delenv(name, raising=False)


def everything() -> Iterator[tuple[str, Any]]:
    """Each command and group by its words after tpuctl."""
    root = command_line()
    context = root.make_context("tpuctl", [], resilient_parsing=True)

    def inside(group: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name in group.list_commands(context):
            subcommand = group.get_command(context, name)
            assert subcommand is not None, (
                f"{path}{name} is in the command table but does not exist"
            )
            yield f"{path}{name}", subcommand
            if hasattr(subcommand, "list_commands"):
                yield from inside(subcommand, f"{path}{name} ")

    return inside(root, "")


ALL = dict(everything())


def test_command_table_is_complete() -> None:
    for listed_module in pkgutil.walk_packages(tpuctl.cli.__path__, "tpuctl.cli."):
        register = getattr(importlib.import_module(listed_module.name), "register", None)
        if register is None:
            continue
        holder = typer.Typer()
        register(holder)
        registered = {entry.name or entry.callback.__name__ for entry in holder.registered_commands}  # type: ignore[union-attr]
        registered |= {str(group.name) for group in holder.registered_groups}
        assert registered == {
            name
            for name, entry in COMMANDS.items()
            if f"tpuctl.cli.{entry.module}" == listed_module.name
        }
    for name, entry in COMMANDS.items():
        module = importlib.import_module(f"tpuctl.cli.{entry.module}")
        assert hasattr(module, "register") or callable(getattr(module, name.replace("-", "_")))
    assert set(SYNONYMS.values()) <= set(COMMANDS)
    assert not set(SYNONYMS) & set(COMMANDS)
    assert set(LEFT_COLUMN) < set(GROUPS)


@pytest.mark.parametrize("path", ["", *ALL])
def test_help_page_fits_screen(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path.split(), "--help"]) == 0
    page = capsys.readouterr().out
    lines = page.splitlines()
    assert len(lines) <= (SCREEN if path in ("", *ONE_SCREEN) else ROWS), page
    assert [line for line in lines if len(line) > COLUMNS and line.lstrip()[:6] != "tpuctl"] == []
    assert "\x1b" not in page


@pytest.mark.parametrize("path", ALL)
def test_help_page_names_every_option(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path.split(), "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    for parameter in ALL[path].params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert set(parameter.opts) <= set(words), parameter.name


# Options of one name that are about different things, by metavar.
DIFFERENT = {
    "--format": {None, "FORMAT"},  # its choices; those of all tables
    "--limit": {"N", "LIMIT"},  # rows of a table; a limit of quota
    "--service-account": {"EMAIL", "NAME"},  # Google's; Kubernetes'
}


def test_options_of_one_name_have_one_metavar() -> None:
    metavars: dict[str, set[str | None]] = {}
    for path, command in ALL.items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.is_flag:
                name, metavar = parameter.opts[0], parameter.metavar
                metavars.setdefault(max(parameter.opts, key=len), set()).add(metavar)
                if parameter.type_descriptor.annotation is str and metavar is None:
                    assert name == "--text", f"{path} {name}: TEXT says nothing"
    assert {name: names for name, names in metavars.items() if len(names) > 1} == DIFFERENT


def test_help_with_n_names_its_metavar() -> None:
    for path, command in ALL.items():
        for parameter in command.params:
            if re.search(r"(?<!-)\bN(th)?\b", getattr(parameter, "help", None) or ""):
                assert parameter.metavar == "N", f"{path} {parameter.opts}"


def test_every_option_is_used() -> None:
    """An option that the command does not read would be accepted, and ignored."""
    unused = []
    for file in Path(tpuctl.cli.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                names = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
                unused += [
                    f"{file.name}: {function.name} does not use {argument.arg}"
                    for argument in (*function.args.args, *function.args.kwonlyargs)
                    if argument.annotation is not None
                    and "Option(" in (option := ast.unparse(argument.annotation))
                    and "callback=" not in option
                    and argument.arg not in names
                ]
    assert not unused, "\n".join(unused)


@pytest.mark.parametrize("path", ["", "run", "ci", "ci github", "local fault", "local fault add"])
def test_help_command_prints_help_page(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert run(["help", *path.split()]) == 0
    assert capsys.readouterr().out == page


@pytest.mark.parametrize("path", ALL)
def test_help_examples_are_valid_commands(path: str) -> None:
    examples = example_of(ALL[path])
    assert examples, f"no Example: in the help of {path}"
    for example in examples:
        words = first_command(example)
        while "=" in words[0]:  # an environment variable
            words.pop(0)
        assert words.pop(0) == "tpuctl", example
        assert f"{parse(words).command_path} ".startswith(f"tpuctl {path} ")


def first_command(line: str) -> list[str]:
    """The words before the first |, > or ; of the shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: word.strip("|<>;&()"), lexer))


def test_narrow_and_wide_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (40, 60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        for path in ([], ["run"], ["help", "options"]):
            assert run([*path, "--help"]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert max(map(len, lines)) <= min(columns, 100)


def test_help_page_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    for arguments in (["run", "--help"], ["help", "run"], ["--version"]):
        assert run(arguments) == 0
        page = capsys.readouterr().out
        assert run([*arguments, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["status"], answer["data"]["text"]) == ("ok", page.rstrip("\n"))


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        ("upp", "tpuctl up"),
        ("stat", "tpuctl status"),
        ("destroy", "tpuctl down"),
        ("tensorboard", "tpuctl forward"),
        ("jobs shwo", "tpuctl jobs show"),
        ("local fualt", "tpuctl local fault"),
        ("local fault ad", "tpuctl local fault add"),
        ("local start", "tpuctl local up"),
        ("local stop", "tpuctl local down"),
        ("local list", "tpuctl local status"),
        ("local wipe", "tpuctl local reset"),
        ("local config", "tpuctl local set"),
        ("types --zon europe-west4-a", "tpuctl types --zone"),
        ("logs --folow", "tpuctl logs --follow"),
        ("up --jsn", "tpuctl up --json"),
        ("--cloud locla up", "tpuctl --cloud local"),
        ("help lgos", "tpuctl help logs"),
        ("help opt", "tpuctl help options"),
        ("init kears", "keras"),
        ("types --zone europe-west4-q", "europe-west4-a"),
        ("prices v3-9", "v3-8"),
    ],
)
def test_nearest_command_is_suggested(
    typed: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Did you mean" in captured.err
    assert suggestion in captured.err


def test_no_suggestion_without_similar_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["qqqqqq"]) == 2
    err = capsys.readouterr().err
    assert "Did you mean" not in err
    assert "tpuctl --help" in err


@pytest.mark.parametrize("path", ALL)
def test_values_are_converted_like_typer(path: str) -> None:
    texts: dict[Any, str] = {Path: "~/새", str: "a b", list[str]: "한", int: "3", float: "2.5"}
    command = ALL[path]
    needed = ["x" for parameter in command.params if parameter.required]
    for parameter in command.params:
        kind = parameter.type_descriptor.annotation
        if parameter.param_type_name == "argument" or kind is bool:
            continue
        text = texts.get(kind) or next(iter(kind)).value
        context = command.make_context(path, [parameter.opts[-1], text, *needed], obj=State())
        value = context.params[parameter.name]
        converted = parameter.process_value(context, [text] if parameter.multiple else text)
        assert (value, type(value)) == (converted, type(converted))
        default = command.make_context(path, [*needed], obj=State()).params[parameter.name]
        assert default == (parameter.process_value(context, default) or default)
