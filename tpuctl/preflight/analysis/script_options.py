"""The options that a script declares: argparse, absl, click and Typer."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.syntax import Function, default_of, dotted, parameters_of

__all__ = ["Option", "declared", "function_options"]


TYPER = ("typer.Option", "typer.Argument")


@dataclass(frozen=True)
class Option:
    """An option, and what it is where nobody gives it."""

    module: Module
    title: str  # such as "--data-dir"
    default: ast.expr | None


def declared(module: Module) -> dict[str, Option]:
    """Those of argparse and absl, by the attribute that has them."""
    found: dict[str, Option] = {}
    for node in module.calls:
        if not node.args:
            continue
        called = (dotted(node.func) or "").rpartition(".")[2]
        if isinstance(node.func, ast.Attribute):
            called = node.func.attr
        if called == "add_argument":
            names = _texts(node.args)
            given = _keyword(node, "dest")
            longest = next(
                (one for one in names if one.startswith("--")), names[0] if names else ""
            )
            name = longest.lstrip("-").replace("-", "_")
            if isinstance(given, ast.Constant):
                name = str(given.value)
            found[name] = Option(module, longest, _keyword(node, "default"))
        elif called.startswith("DEFINE_"):
            names = _texts(node.args[:1])
            default = node.args[1] if len(node.args) > 1 else _keyword(node, "default")
            if names:
                found[names[0]] = Option(module, f"--{names[0]}", default)
    found.pop("", None)
    return found


def function_options(module: Module, function: Function) -> dict[str, Option]:
    """Those of click and Typer, by the parameter that gets them."""
    found: dict[str, Option] = {}
    for decorator in getattr(function, "decorator_list", []):
        name = module.names.called(decorator)
        if name in ("click.option", "click.argument"):
            names = _texts(decorator.args)
            plain = [one for one in names if not one.startswith("-")]
            longest = next((one for one in names if one.startswith("--")), "")
            parameter = plain[0] if plain else longest.lstrip("-")
            default = _keyword(decorator, "default")
            found[parameter.replace("-", "_")] = Option(module, longest or parameter, default)
        elif isinstance(decorator, ast.Call) and _is_command(decorator):
            found = _typed(module, function) | found
    return found


def _is_command(decorator: ast.Call) -> bool:
    return (dotted(decorator.func) or "").endswith(".command")


def _typed(module: Module, function: Function) -> dict[str, Option]:
    found = {}
    for one in parameters_of(function):
        default = default_of(function, one.arg)
        if isinstance(default, ast.Call) and module.names.of(default.func) in TYPER:
            default = default.args[0] if default.args else _keyword(default, "default")
        found[one.arg] = Option(module, f"--{one.arg.replace('_', '-')}", default)
    return found


def _texts(nodes: list[ast.expr]) -> list[str]:
    return [
        one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)
