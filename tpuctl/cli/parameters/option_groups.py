"""Groups of options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints


def expand_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of each parameter that is a dataclass as options of its own.

    @dataclass(frozen=True)
    class Order:
        limit: Annotated[int, typer.Option("--limit")] = 0

    def types(context: typer.Context, *, order: Order) -> None: ...

    app.command()(expand_option_groups(types))

    `Annotated[Order, {"limit": Annotated[int, ...]}]` changes options of a group for a command.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, hint in hints.items():
        group, *changes = get_args(hint) if get_origin(hint) is Annotated else [hint]
        if is_dataclass(group):
            groups[name] = group
            for change in changes:
                options |= change
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            )
            continue
        inner = get_type_hints(groups[name], include_extras=True) | options
        parameters += (
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=inner[field.name],
            )
            for field in fields(groups[name])
        )

    @wraps(command)
    def run(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    run.__dict__["__signature__"] = Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
