"""Commands that make the local cloud misbehave: local fault, and local set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.state import State
from tpuctl.errors import NotFound, Usage

if TYPE_CHECKING:
    from tpuctl.emulator.client.server_process import LocalCloud

__all__ = ["fault_app", "set_setting"]

fault_app = typer.Typer(
    help="What is to go wrong in the local cloud: each fault strikes the calls that fit it."
    "\n\nExample: tpuctl local fault list",
    invoke_without_command=True,
)
_KINDS = (
    "What goes wrong: stockout, queue-fail, quota, deny, unavailable, error, dropped (cut off "
    "before the cloud acts), lost (cut off after it), cut (in the middle of what is sent), hold, "
    "slow, preempt, maintenance, key-refused, host-gone (a machine that answers no more) or "
    "disk-full."
)
_METHOD = (
    "Which calls: CreateNode, storage.objects.insert, Networks/*, or mutating for all that change "
    "something."
)
Option = typer.Option


@fault_app.callback()
def root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    state: State = context.obj
    state.command = f"local fault {context.invoked_subcommand}"


@fault_app.command()
def add(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help=_KINDS)],
    method: Annotated[str | None, Option("--method", help=_METHOD)] = None,
    project: Annotated[str | None, Option("--project", help="Only calls in this project.")] = None,
    zone: Annotated[str | None, Option("--zone", help="Only in this zone; * may stand.")] = None,
    region: Annotated[str | None, Option("--region", help="Only in this region.")] = None,
    type_name: Annotated[str | None, Option("--type", help="Only nodes of this type.")] = None,
    name: Annotated[str | None, Option("--name", help="Only what has this in its name.")] = None,
    caller: Annotated[
        str | None, Option("--caller", help="Only calls of this account's e-mail; * may stand.")
    ] = None,
    times: Annotated[
        str | None, Option("--times", help="How often it strikes: a number, or unlimited. [1]")
    ] = None,
    at: Annotated[
        int | None, Option("--at", help="Let pass what comes before the call of this number.")
    ] = None,
    text: Annotated[str | None, Option("--text", help="What the refusal says.")] = None,
    like: Annotated[
        str | None, Option("--like", help="For error: a wording of Google's, as quota-zone.")
    ] = None,
    code: Annotated[
        str | None, Option("--code", help="For error: a code of google.rpc, as ABORTED.")
    ] = None,
    http: Annotated[int | None, Option("--http", help="For error: the HTTP status.")] = None,
    operation: Annotated[
        bool, Option("--operation", help="For error: the call is accepted, its operation fails.")
    ] = False,
    after: Annotated[bool, Option("--after", help="For hold: after the cloud acted.")] = False,
    of: Annotated[
        str | None,
        Option("--of", help="For cut: request, as of uploads, or answer, as else."),
    ] = None,
    after_bytes: Annotated[
        int | None,
        Option(
            "--after-bytes",
            help="For cut: how much passes before, else half. For disk-full: how much can still be "
            "written, else nothing.",
        ),
    ] = None,
    limit: Annotated[str | None, Option("--limit", help="For quota: the limit's id.")] = None,
    number: Annotated[int | None, Option("--number", help="For quota: how much it allows.")] = None,
    node: Annotated[
        str | None,
        Option(
            "--node",
            help="For preempt, maintenance, key-refused, host-gone, disk-full: which node or "
            "instance.",
        ),
    ] = None,
    worker: Annotated[
        int | None,
        Option("--worker", help="For key-refused, host-gone, disk-full: of the node's this one."),
    ] = None,
    how: Annotated[
        str | None,
        Option("--how", help="For host-gone: silent, or refused to those who connect. [silent]"),
    ] = None,
    seconds: Annotated[
        float | None,
        Option("--seconds", help="For slow: added to the call or operation. Else: when, from now."),
    ] = None,
) -> None:
    """Make something go wrong, once unless told otherwise. It stays until removed or `local reset`.

    Example: tpuctl local fault add stockout --zone us-central1-b
    """
    from tpuctl.emulator.client import remote_control

    state: State = context.obj
    fields = {
        "method": method,
        "project": project,
        "zone": zone,
        "region": region,
        "type": type_name,
        "name": name,
        "caller": caller,
        "times": None if times is None else _count(times),
        "at": at,
        "text": text,
        "like": like,
        "code": code if code is None else code.upper(),
        "http": http,
        "operation": operation or None,
        "after": after or None,
        "of": of,
        "after_bytes": after_bytes,
        "limit": limit,
        "number": number,
        "node": node,
        "worker": worker,
        "how": how,
        "seconds": seconds,
    }
    fault = remote_control.add_fault(_started(), kind, **fields)
    state.answer(fault, lambda: print(fault["id"]))


@fault_app.command("list")
def list_faults(context: typer.Context) -> None:
    """List the faults with how often each was met, and which requests they hold.

    Example: tpuctl local fault list
    """
    from tpuctl.emulator.client import remote_control

    state: State = context.obj
    listed = remote_control.faults(_running())
    state.answer(listed, lambda: _show_faults(listed))


@fault_app.command()
def remove(
    context: typer.Context,
    fault: Annotated[str | None, typer.Argument(help="Its id.")] = None,
    everything: Annotated[bool, Option("--all", help="Every fault.")] = False,
) -> None:
    """Remove a fault, or all of them. Requests that it holds go on.

    Example: tpuctl local fault remove --all
    """
    from tpuctl.emulator.client import remote_control

    state: State = context.obj
    if (fault is None) == (not everything):
        raise Usage("Wrong usage", "name a fault, or say --all", hint=_LIST_HINT)
    cloud = _running()
    if fault is None:
        removed = remote_control.remove_all_faults(cloud)
    else:
        removed = [remote_control.remove_fault(cloud, fault)]
    state.answer(removed, lambda: _show_removed(removed))


@fault_app.command()
def release(
    context: typer.Context,
    fault: Annotated[str, typer.Argument(help="The id of a hold.")],
    drop: Annotated[bool, Option("--drop", help="Cut them off instead, without acting.")] = False,
) -> None:
    """Let the requests go on that a fault of kind hold has stopped. The fault stays.

    Example: tpuctl local fault release hold-1
    """
    from tpuctl.emulator.client import remote_control

    state: State = context.obj
    count = remote_control.release(_running(), fault, act=not drop)
    text = f"{count} request{'' if count == 1 else 's'} {'cut off' if drop else 'let go'}"
    state.answer({"released": count}, lambda: print(text))


_LIST_HINT = "See which there are:\n    tpuctl local fault list"


def _count(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _started() -> LocalCloud:
    """The user's local cloud, started if need be: it is about to be changed."""
    from tpuctl.emulator.client import server_process

    return server_process.start(server_process.default_home())


def _running() -> LocalCloud:
    from tpuctl.emulator.client import server_process

    cloud = server_process.status(server_process.default_home())
    if cloud is None:
        raise NotFound(
            "The local cloud is not running",
            "its faults and settings can be seen and removed when it runs",
            hint="Start it with\n    tpuctl local up",
        )
    return cloud


def _show_faults(faults: Sequence[Mapping[str, Any]]) -> None:
    from tpuctl.view.tables import print_table

    if not faults:
        print("There are no faults.")
        return
    counted = (
        *("id", "kind", "times", "at", "seen", "used", "spent", "waiting"),
        *("problem", "due", "active", "free"),
    )
    rows = []
    for fault in faults:
        about = " ".join(f"{key}={value}" for key, value in fault.items() if key not in counted)
        holds = [f"holds {waiting['method']}" for waiting in fault["waiting"]]
        left = fault.get("free")
        room = [f"{left} bytes can still be written"] if left is not None else []
        state = "; ".join([*holds, *room, *([fault["problem"]] if fault["problem"] else [])])
        at = f" from call {fault['at']} on" if fault.get("at") else ""
        rows.append((fault["id"], about, f"{fault['used']} of {fault['times']}{at}", state))
    print_table(("fault", "about", "used", ""), rows)


def _show_removed(removed: Sequence[Mapping[str, Any]]) -> None:
    for fault in removed:
        print(f"{fault['id']} removed, used {fault['used']} of {fault['times']}")
    if not removed:
        print("There were no faults.")


# Settings.


def set_setting(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="nodes, quota, policy, denied-permission, propagation, reservation or pace; "
            "all if empty."
        ),
    ] = None,
    values: Annotated[list[str] | None, typer.Argument(help="What it is to be.")] = None,
) -> None:
    """Change a setting of the local cloud at once, or show what is set. `local reset` forgets all.

    `nodes allowed|denied`, `quota LIMIT ZONE NUMBER|unlimited`, `policy CONSTRAINT on|off`,
    `denied-permission PERMISSION on|off`, `propagation SECONDS` (until changed policies are felt),
    `reservation NAME on|off`, `pace instant|quick|real`.

    Example: tpuctl local set quota TPUV5sLitepodServingPerProjectPerZoneForTPUAPI us-east5-a 4
    """
    from tpuctl.emulator.client import remote_control

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
    "reservation": "reservation NAME on|off",
    "pace": "pace instant|quick|real",
}
_SWITCHES = {
    "policy": "policies",
    "denied-permission": "denied_permissions",
    "reservation": "reservations",
}


def _changes(name: str, values: Sequence[str]) -> dict[str, Any]:
    """What the server is asked to change."""
    if name not in _FORMS:
        from tpuctl.spelling import nearest

        close = "".join(f"; did you mean {suggestion}?" for suggestion in nearest(name, _FORMS, 1))
        forms = "\n".join(f"    tpuctl local set {form}" for form in _FORMS.values())
        raise Usage("No such setting", f"{name}{close}", hint=f"The settings are\n{forms}")
    if len(values) != len(_FORMS[name].split()) - 1:
        raise _malformed(name, f"{len(values)} values were given")
    if name in ("nodes", "pace"):
        return {name: values[0]}
    if name == "propagation":
        try:
            return {name: float(values[0])}
        except ValueError:
            raise _malformed(name, f"{values[0]} is no number of seconds") from None
    if name == "quota":
        limit, place, number = values
        if number == "unlimited":
            return {"quota": {limit: {place: None}}}
        if not (number.isascii() and number.isdigit()):
            raise _malformed(name, f"{number} is no whole number, and not unlimited")
        return {"quota": {limit: {place: int(number)}}}
    item, switch = values
    if switch not in ("on", "off"):
        raise _malformed(name, f"{switch} is neither on nor off")
    return {_SWITCHES[name]: {item: switch == "on"}}


def _malformed(name: str, problem: str) -> Usage:
    return Usage("Wrong usage", problem, hint=f"Write it as\n    tpuctl local set {_FORMS[name]}")


def _show_settings(settings: Mapping[str, Any]) -> None:
    from tpuctl.view.tables import print_facts

    rows = [("pace", str(settings["pace"])), ("nodes", str(settings["nodes"]))]
    rows.append(("propagation", f"{settings['propagation']:g} s"))
    for limit, places in settings["quota"].items():
        rows += [("quota", f"{limit} {place} {number}") for place, number in places.items()]
    for name, key in _SWITCHES.items():
        rows += [(name, f"{item} on") for item in settings[key]]
    print_facts(rows)
