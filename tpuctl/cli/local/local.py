"""Commands for the local cloud: up, down, status, reset, prune, env, token, replay, set, fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.help.command_classes import App
from tpuctl.cli.local.env import print_environment, warn_shell
from tpuctl.cli.local.faults import fault_app, set_setting
from tpuctl.cli.local.replay import replay
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.local_cloud.cache import CacheItem

app = App(
    help="Run an emulation of Google Cloud on this machine, with real processes behind it."
    "\n\nExample: tpuctl local up",
    invoke_without_command=True,
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="local")


def _print_status(rows: dict[str, Any], refused: list[str]) -> None:
    _print_facts(rows)
    if refused:
        print("Refused by firewall rules and missing addresses:")
    for connection in refused:
        print(f"    {connection}")


def _print_facts(report: dict[str, Any]) -> None:
    from tpuctl.view.terminal.tables import print_facts

    print_facts([(name, str(value)) for name, value in report.items()])


@app.command()
def up(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Listen on this port.")
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option("--pace", metavar="instant|quick|real", help="Speed of operations."),
    ] = None,
) -> None:
    """Start the local cloud if it is not running.

    Example: tpuctl local up
    """
    from tpuctl.local_cloud import server_process

    state: State = context.obj
    cloud = server_process.start(server_process.default_home(), port=port, pace=pace)
    facts = {"url": cloud.url, "pace": cloud.pace, "folder": cloud.home, "pid": cloud.pid}
    state.answer(
        lambda: responses.local.LocalCloud(**facts),
        None if state.quiet else lambda: _print_facts(facts),
    )


@app.command()
def down(context: typer.Context) -> None:
    """Stop the local cloud and its machines; its data is kept.

    Example: tpuctl local down
    """
    from tpuctl.local_cloud import server_process

    state: State = context.obj
    stopped = server_process.stop(server_process.default_home())
    text = "Stopped the local cloud." if stopped else "The local cloud is not running."
    state.answer(lambda: responses.local.LocalDown(stopped=stopped), lambda: state.note(text))
    warn_shell(state)


@app.command()
def status(context: typer.Context) -> int:
    """Show the state of the local cloud, its contents, and the disk space of its folder and of the
    cache. Exits with 1 if it is not running.

    Example: tpuctl local status
    """
    from tpuctl.files import disk_usage
    from tpuctl.local_cloud import server_process
    from tpuctl.local_cloud.cache import cache_size
    from tpuctl.units import decimal_size

    state: State = context.obj
    home = server_process.default_home()
    cloud = server_process.status(home)
    sizes = {"folder_bytes": disk_usage(home), "cache_bytes": cache_size()}
    disk = {
        "disk space": decimal_size(sizes["folder_bytes"]),
        "cache": f"{decimal_size(sizes['cache_bytes'])}; to free it: tpuctl local prune",
    }
    if cloud is None:
        state.answer(
            lambda: responses.local.LocalStatus(running=False, **sizes),
            lambda: _print_facts({"running": "no", "folder": home} | disk),
        )
        state.note("\nTo start it:\n    tpuctl local up")
        return 1
    report = server_process.report(cloud)
    data = {"running": True, "url": cloud.url, "folder": str(cloud.home)} | sizes | report
    rows = {"running": "yes", "url": cloud.url, "folder": str(cloud.home)} | disk
    rows |= {name.replace("_", " "): value for name, value in report.items() if name != "home"}
    rows.pop("image notes", None)
    if notes := report.get("image_notes"):
        rows["images"] = " ".join(notes)
    rows.pop("refused connections", None)
    refused = report.get("refused_connections", [])
    rows["uptime seconds"] = round(report["uptime_seconds"])
    state.answer(data, lambda: _print_status(rows, refused))
    return 0


@app.command()
def reset(context: typer.Context) -> None:
    """Stop the local cloud and delete all its data. Machine images are kept; `tpuctl local prune`
    deletes those.

    Example: tpuctl local reset --yes
    """
    from tpuctl.local_cloud import server_process

    state: State = context.obj
    home = server_process.default_home()
    state.confirm(f"Delete everything in the local cloud at {home}?", default=False)
    server_process.reset(home)
    state.answer(
        lambda: responses.local.LocalReset(folder=home),
        lambda: state.note("The local cloud is empty."),
    )
    warn_shell(state)


@app.command()
def prune(
    context: typer.Context,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Keep what was used within this time, such as 12h or 30d.",
        ),
    ] = "",
) -> None:
    """Delete machine images, packages, and downloads that nothing uses; they are rebuilt when
    needed.

    Images that machines use are kept; while a rehearsal is running, so is
    everything but downloads. The local cloud's data is kept, too; `tpuctl local
    reset` deletes it.

    Example: tpuctl local prune --older-than 30d
    """
    from tpuctl.cli.parameters.arguments import duration
    from tpuctl.local_cloud import cache as local_cache
    from tpuctl.local_cloud import server_process
    from tpuctl.units import counted, decimal_size

    state: State = context.obj
    home, seconds = server_process.default_home(), duration(older_than, "--older-than") or 0.0
    items = local_cache.cache_items(home, seconds)
    unused = [item for item in items if not item.keep_reason]
    if unused:
        size = decimal_size(sum(item.bytes for item in unused))
        if not state.json:
            _print_cache(items)
        state.confirm(f"Delete {counted(len(unused), 'item')}, {size}?", default=False)
    deleted = local_cache.prune({item.path for item in unused}, home, seconds)
    paths = {item.path for item in deleted}
    others = [item for item in items if item.path not in paths]
    freed = sum(item.bytes for item in deleted)

    def show() -> None:
        rest = f" {decimal_size(sum(item.bytes for item in others))} are kept." if others else ""
        print(f"Freed {decimal_size(freed)}.{rest}" if deleted else f"Nothing to delete.{rest}")

    state.answer(
        lambda: responses.local.LocalPrune.model_validate(
            {"freed_bytes": freed, "deleted_items": deleted, "kept_items": others}
        ),
        show,
    )


def _print_cache(items: Sequence[CacheItem]) -> None:
    from tpuctl.units import counted, decimal_size
    from tpuctl.view.terminal.tables import print_table

    rows = [
        (
            item.kind,
            item.name,
            decimal_size(item.bytes),
            f"{counted(item.days, 'day')} ago" if item.days else "today",
            item.keep_reason or "-",
        )
        for item in items
    ]
    print_table(("kind", "name", "size", "last used", "kept"), rows, numbers=("size",))


@app.command()
def token(
    context: typer.Context,
    member: Annotated[
        str, typer.Argument(help="Caller: user:ann@example.com or serviceAccount:EMAIL.")
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="URL",
            help="Limit the token to this access scope (full URL). May be repeated.",
        ),
    ] = None,
) -> None:
    """Print an access token for a caller with only the permissions that IAM policies grant.

    Set TPUCTL_LOCAL_CALLER=MEMBER to run tpuctl as such a caller.

    Example: tpuctl local token user:ann@example.com
    """
    from tpuctl.local_cloud import remote_control, server_process

    state: State = context.obj
    cloud = server_process.start(server_process.default_home())
    access_token = remote_control.token(cloud, member, scope or ())
    state.answer(
        lambda: responses.local.Token(member=member, token=access_token),
        lambda: print(access_token),
    )


app.command("env")(print_environment)
app.command("replay")(replay)
app.command("set")(set_setting)
app.add_typer(fault_app, name="fault")
