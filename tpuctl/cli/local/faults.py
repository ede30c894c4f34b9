"""Commands that inject faults into the local cloud and change its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.help.command_classes import App
from tpuctl.cli.state import State
from tpuctl.errors import NotFound, Usage
from tpuctl.local_cloud.fault_kinds import FIELDS, KINDS
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.local_cloud.server_process import LocalCloud

fault_app = App(
    help="Inject faults into the local cloud; each fault affects matching calls."
    "\n\nExample: tpuctl local fault list",
    invoke_without_command=True,
)
_KINDS = f"{', '.join([*KINDS][:-1])} or {[*KINDS][-1]}."


def _with_field_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of a fault in place of its `**fields`."""
    *parameters, _ = signature(command, eval_str=True).parameters.values()
    parameters += (
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=typer.Option(
                False if field.type is bool else None,
                f"--{name.replace('_', '-')}",
                metavar=field.metavar,
                rich_help_panel=field.panel,
                help=field.help,
            ),
            annotation=field.type if field.type is bool else field.type | None,
        )
        for name, field in FIELDS.items()
    )
    command.__dict__["__signature__"] = Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@fault_app.command()
@_with_field_options
def add(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help=_KINDS)],
    **fields: Any,
) -> None:
    """Add a fault, by default for one call. It stays until removed or `local reset`.

    The page on the local cloud describes the kinds, and their options.

    Example: tpuctl local fault add stockout --zone us-central1-a
    """
    from tpuctl.local_cloud import remote_control

    state: State = context.obj
    if fields["times"] is not None:
        fields["times"] = _count(fields["times"])
    if fields["code"] is not None:
        fields["code"] = fields["code"].upper()
    fields = {name: None if value is False else value for name, value in fields.items()}
    if fields["trace"] is not None:
        fields["trace"] = str(Path(fields["trace"]).absolute())
    fault = remote_control.add_fault(_started(), kind, **fields)
    state.answer(fault, lambda: print(fault["id"]))


@fault_app.command("list")
def list_faults(context: typer.Context) -> None:
    """List the faults, how often each was applied, and the requests that they hold.

    Example: tpuctl local fault list
    """
    from tpuctl.local_cloud import remote_control

    state: State = context.obj
    listed = remote_control.faults(_running())
    state.answer(listed, lambda: _show_faults(listed))


@fault_app.command()
def remove(
    context: typer.Context,
    fault: Annotated[str | None, typer.Argument(help="Id of the fault.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all faults.")] = False,
) -> None:
    """Remove a fault, or all of them. Held requests continue.

    Example: tpuctl local fault remove --all
    """
    from tpuctl.local_cloud import remote_control

    state: State = context.obj
    if (fault is None) == (not everything):
        raise Usage("Invalid usage", "name a fault, or pass --all", hint=_LIST_HINT)
    cloud = _running()
    if fault is None:
        removed = remote_control.remove_all_faults(cloud)
    else:
        removed = [remote_control.remove_fault(cloud, fault)]
    state.answer(removed, lambda: _show_removed(state, removed))


@fault_app.command()
def release(
    context: typer.Context,
    fault: Annotated[str, typer.Argument(help="Id of a hold fault.")],
    drop: Annotated[bool, typer.Option("--drop", help="Drop the requests instead.")] = False,
) -> None:
    """Let requests continue that a hold fault has stopped. The fault stays.

    Example: tpuctl local fault release hold-1
    """
    from tpuctl.local_cloud import remote_control

    state: State = context.obj
    count = remote_control.release(_running(), fault, drop=drop)
    text = f"{counted(count, 'request')} {'dropped' if drop else 'released'}"
    state.answer(lambda: responses.local.ReleasedFaults(released=count), lambda: state.note(text))


_LIST_HINT = "To list the faults:\n    tpuctl local fault list"


def _count(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _started() -> LocalCloud:
    """The local cloud, started if needed."""
    from tpuctl.local_cloud import server_process

    return server_process.start(server_process.default_home())


def _running() -> LocalCloud:
    from tpuctl.local_cloud import server_process

    cloud = server_process.status(server_process.default_home())
    if cloud is None:
        raise NotFound(
            "The local cloud is not running",
            "faults and settings can only be changed while it runs",
            hint="Start it with\n    tpuctl local up",
        )
    return cloud


def _show_faults(faults: Sequence[Mapping[str, Any]]) -> None:
    from tpuctl.view.terminal.tables import print_table

    if not faults:
        print("No faults.")
        return
    counted = (
        *("id", "kind", "times", "at", "matched", "applied", "exhausted", "held_calls"),
        *("error", "due", "active", "free_bytes", "since"),
    )
    rows = []
    for fault in faults:
        about = " ".join(f"{key}={value}" for key, value in fault.items() if key not in counted)
        holds = [f"holds {call['method']}" for call in fault["held_calls"]]
        left = fault.get("free_bytes")
        room = [f"{left} bytes can still be written"] if left is not None else []
        state = "; ".join([*holds, *room, *([fault["error"]] if fault["error"] else [])])
        at = f" from call {fault['at']} on" if fault.get("at") else ""
        rows.append((fault["id"], about, f"{fault['applied']} of {fault['times']}{at}", state))
    print_table(("fault", "matches", "applied", ""), rows)


def _show_removed(state: State, removed: Sequence[Mapping[str, Any]]) -> None:
    for fault in removed:
        state.note(f"{fault['id']} removed, applied {fault['applied']} of {fault['times']}")
    if not removed:
        state.note("No faults to remove.")


# Settings.


def set_setting(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="nodes, quota, policy, denied-permission, propagation, address, reservation, "
            "zone, devices or pace (default: show all)."
        ),
    ] = None,
    values: Annotated[list[str] | None, typer.Argument(help="New value.")] = None,
) -> None:
    """Change a setting of the local cloud, or show all. `local reset` restores the defaults.

    `nodes allowed|denied`, `quota LIMIT ZONE NUMBER|unlimited`, `policy
    CONSTRAINT on|off`, `denied-permission PERMISSION on|off`, `propagation
    SECONDS` (delay of policy changes), `address ADDRESS` (of this computer, for
    firewall rules), `reservation NAME on|off`, `zone ZONE on|off` (one that
    Google opens to selected projects only), `devices NUMBER|all` (the most TPU
    devices that a program sees), `pace instant|quick|real`.

    Example: tpuctl local set quota TPUV5sLitepodServingPerProjectPerZoneForTPUAPI us-east5-a 4
    """
    from tpuctl.local_cloud import remote_control

    state: State = context.obj
    if name is None:
        settings = remote_control.settings(_running())
    else:
        changes = _changes(name, values or [])
        settings = remote_control.change_settings(_started(), **changes)
    state.answer(settings, lambda: _show_settings(settings))


_FORMS = {
    "nodes": "nodes allowed|denied",
    "quota": "quota LIMIT ZONE NUMBER|unlimited",
    "policy": "policy CONSTRAINT on|off",
    "denied-permission": "denied-permission PERMISSION on|off",
    "propagation": "propagation SECONDS",
    "address": "address ADDRESS",
    "reservation": "reservation NAME on|off",
    "zone": "zone ZONE on|off",
    "devices": "devices NUMBER|all",
    "pace": "pace instant|quick|real",
}
_SWITCHES = {
    "policy": "policies",
    "denied-permission": "denied_permissions",
    "reservation": "reservations",
    "zone": "zones",
}


def _changes(name: str, values: Sequence[str]) -> dict[str, Any]:
    """The request body for the server."""
    if name not in _FORMS:
        from tpuctl.spelling import nearest

        close = "".join(f"; did you mean {suggestion}?" for suggestion in nearest(name, _FORMS, 1))
        forms = "\n".join(f"    tpuctl local set {form}" for form in _FORMS.values())
        raise Usage("Unknown setting", f"{name}{close}", hint=f"Available settings:\n{forms}")
    if len(values) != len(_FORMS[name].split()) - 1:
        raise _malformed(name, f"got {len(values)} values")
    if name in ("nodes", "pace", "address"):
        return {name: values[0]}
    if name == "propagation":
        try:
            return {name: float(values[0])}
        except ValueError:
            raise _malformed(name, f"{values[0]} is not a number of seconds") from None
    if name == "devices":
        if values[0] != "all" and not _is_number(values[0]):
            raise _malformed(name, f"{values[0]} is neither a whole number nor all")
        return {name: 0 if values[0] == "all" else int(values[0])}
    if name == "quota":
        limit, place, number = values
        if number == "unlimited":
            return {"quota": {limit: {place: None}}}
        if not _is_number(number):
            raise _malformed(name, f"{number} is neither a whole number nor unlimited")
        return {"quota": {limit: {place: int(number)}}}
    item, switch = values
    if switch not in ("on", "off"):
        raise _malformed(name, f"{switch} is neither on nor off")
    return {_SWITCHES[name]: {item: switch == "on"}}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _malformed(name: str, problem: str) -> Usage:
    return Usage("Invalid usage", problem, hint=f"Usage:\n    tpuctl local set {_FORMS[name]}")


def _show_settings(settings: Mapping[str, Any]) -> None:
    from tpuctl.view.terminal.tables import print_facts

    rows = [("pace", str(settings["pace"])), ("nodes", str(settings["nodes"]))]
    rows.append(("propagation", f"{settings['propagation']:g} s"))
    rows.append(("address", str(settings["address"])))
    rows.append(("devices", str(settings["devices"] or "all")))
    for limit, places in settings["quota"].items():
        rows += [("quota", f"{limit} {place} {number}") for place, number in places.items()]
    for name, key in _SWITCHES.items():
        rows += [(name, f"{item} on") for item in settings[key]]
    print_facts(rows)
