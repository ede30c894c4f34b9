"""The options that a script declares: argparse, absl, click and Typer."""

from __future__ import annotations

import ast
from typing import NamedTuple

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.program.syntax import Function, default_of, dotted, parameters_of

TYPER = ("typer.Option", "typer.Argument")


class Option(NamedTuple):
    """An option and its default."""

    module: Module
    title: str  # such as "--data-dir"
    default: ast.expr | None


def declared(module: Module) -> dict[str, Option]:
    """Options of argparse and absl, by attribute name."""
    options: dict[str, Option] = {}
    for node in module.calls:
        if not node.args:
            continue
        called = (dotted(node.func) or "").rpartition(".")[2]
        if isinstance(node.func, ast.Attribute):
            called = node.func.attr
        if called == "add_argument":
            names = _texts(node.args)
            dest = _keyword(node, "dest")
            longest = next(
                (name for name in names if name.startswith("--")), names[0] if names else ""
            )
            name = longest.lstrip("-").replace("-", "_")
            if isinstance(dest, ast.Constant):
                name = str(dest.value)
            options[name] = Option(module, longest, _keyword(node, "default"))
        elif called.startswith("DEFINE_"):
            names = _texts(node.args[:1])
            default = node.args[1] if len(node.args) > 1 else _keyword(node, "default")
            if names:
                options[names[0]] = Option(module, f"--{names[0]}", default)
    options.pop("", None)
    return options


def function_options(module: Module, function: Function) -> dict[str, Option]:
    """Options of click and Typer, by parameter name."""
    options: dict[str, Option] = {}
    for decorator in getattr(function, "decorator_list", []):
        name = module.names.called(decorator)
        if name in ("click.option", "click.argument"):
            names = _texts(decorator.args)
            plain = [name for name in names if not name.startswith("-")]
            longest = next((name for name in names if name.startswith("--")), "")
            parameter = plain[0] if plain else longest.lstrip("-")
            default = _keyword(decorator, "default")
            options[parameter.replace("-", "_")] = Option(module, longest or parameter, default)
        elif isinstance(decorator, ast.Call) and _is_command(decorator):
            options = _typed(module, function) | options
    return options


def _is_command(decorator: ast.Call) -> bool:
    return (dotted(decorator.func) or "").endswith(".command")


def _typed(module: Module, function: Function) -> dict[str, Option]:
    options = {}
    for parameter in parameters_of(function):
        default = default_of(function, parameter.arg)
        if isinstance(default, ast.Call) and module.names.of(default.func) in TYPER:
            default = default.args[0] if default.args else _keyword(default, "default")
        options[parameter.arg] = Option(module, f"--{parameter.arg.replace('_', '-')}", default)
    return options


def _texts(nodes: list[ast.expr]) -> list[str]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
