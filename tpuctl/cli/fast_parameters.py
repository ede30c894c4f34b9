"""Convert plain option and argument values without pydantic.

Typer builds a pydantic validator for each parameter, and importing pydantic takes a third of a
second: strings, paths and choices are converted here. All other values, and all errors, go
through Typer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["use_fast_parameters", "use_fast_values"]

VALIDATED = ("exists", "resolve_path", "path_type", "parser", "allow_dash")


def use_fast_parameters(command: Any) -> None:
    """Use fast conversion for all parameters of a command and its subcommands."""
    for parameter in command.params:
        use_fast_values(parameter)
    for inner in getattr(command, "commands", {}).values():
        use_fast_parameters(inner)


def use_fast_values(parameter: Any) -> None:
    original = getattr(parameter, "get_runtime_param", None)
    if original is None or isinstance(getattr(original, "__self__", None), _FastParameter):
        return
    described = parameter.type_descriptor
    if not any(getattr(described.parameter_info, name, None) for name in VALIDATED):
        parameter.get_runtime_param = _FastParameter(described.annotation, original).get


class _FastParameter:
    def __init__(self, annotation: Any, usual: Callable[[], Any]) -> None:
        self._annotation, self._usual = annotation, usual

    def get(self) -> _FastParameter:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        annotation = self._annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if annotation is str and isinstance(value, str):
            return value
        if annotation is Path and isinstance(value, str | Path):
            return Path(value)
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            for member in annotation:
                if value is member or value == member.value:
                    return member
        if isinstance(annotation, type) and type(value) is annotation and not param.multiple:
            return value  # a default
        if annotation in (list[str], list[Path]) and isinstance(value, list | tuple):
            return [Path(path) for path in value] if annotation == list[Path] else list(value)
        return self._usual().coerce(value, param=param, ctx=ctx)
