"""Commands that reach a stack's machines: ssh, cp, forward."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.follow import PANEL
from tpuctl.cli.options import Worker
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.flows.forward import PortMapping

__all__ = ["register"]

MAX_PORT = 65535


def register(app: typer.Typer) -> None:
    # What follows the worker is the command's own, as with ssh itself.
    app.command(rich_help_panel=PANEL, context_settings={"allow_interspersed_args": False})(ssh)
    for command in (cp, forward):
        app.command(rich_help_panel=PANEL)(command)


def ssh(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKER] [-- COMMAND...]",
            help="Which worker, 0 if none is named, and what to run there instead of a shell.",
        ),
    ] = None,
    all_workers: Annotated[
        bool,
        typer.Option("--all-workers", help="Run the command on all at once, naming who says what."),
    ] = False,
) -> int:
    """Open a shell on a worker, or run a command there or on all workers.

    One word is a line of the remote shell, several are a command and its arguments. The exit code
    is the command's: with --all-workers that of the first to fail.

    Example: tpuctl ssh --all-workers -- 'df -h / | tail -1'
    """
    state: State = context.obj
    worker, line = _ssh_words(list(words or ()), all_workers=all_workers)
    if all_workers or state.json:
        return _run_on_workers(state, line, None if all_workers else worker)
    return _exec_ssh(state, line, worker)


def cp(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FROM... TO",
            help="A path on a worker is WORKER:PATH, from the home there; :PATH is on all.",
        ),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Folders too, with all in them.")
    ] = False,
    all_workers: Annotated[
        bool,
        typer.Option(
            "--all-workers", help="To all workers, or from all into a folder worker-N for each."
        ),
    ] = False,
) -> None:
    """Copy files between this machine and workers. Modes, times and links are kept.

    A file is in its place when it is whole, not before; a dropped connection is made anew.

    Example: tpuctl cp -r data 0:
    """
    from tpuctl.model.copy_path import parse_copy

    state: State = context.obj
    request = parse_copy(paths, all_workers=all_workers)
    done = state.wait_for(state.tpuctl().copy(request, recursive=recursive))
    data = [
        {"worker": result.worker, "files": result.files, "bytes": result.bytes} for result in done
    ]
    state.answer({"workers": data})


def forward(
    context: typer.Context,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="PORT[:LOCALPORT]...",
            help="The worker's port, and the one here: the same or the next free one if not given.",
        ),
    ],
    worker: Worker = "0",
) -> None:
    """Reach ports of a worker, such as TensorBoard's, at addresses of this machine.

    Only this machine can use them. Lost connections are made anew. Ctrl-C ends it, with exit
    code 0.

    Example: tpuctl forward 6006
    """
    from tpuctl.flows.signals import until_interrupted
    from tpuctl.model.events import Event, PortForwarded

    state: State = context.obj
    number = _worker(worker)
    mappings = [_port(port) for port in ports]
    tpuctl = state.tpuctl()
    state.data = {"worker": number, "ports": []}
    tell = tpuctl.emit

    def note(event: Event) -> None:
        if isinstance(event, PortForwarded):
            mapping = {"port": event.port, "local_port": event.local_port, "url": event.url}
            state.data["ports"].append(mapping)
        tell(event)

    tpuctl.emit = note

    async def work() -> None:
        import asyncio

        from tpuctl.model.events import Note

        async with tpuctl.forward_ports(mappings, number):
            tell(Note("Ctrl-C ends it."))
            await asyncio.Event().wait()

    state.wait_for(until_interrupted(work()))


def _exec_ssh(state: State, line: str, worker: int) -> int:
    import os
    import shutil

    from tpuctl.errors import TpuctlError

    command = state.wait_for(state.tpuctl().ssh_command(worker, line))
    state.view.close()
    if shutil.which("ssh") is None:
        raise TpuctlError("No ssh program", "ssh is not on this machine", hint="Install OpenSSH.")
    os.execvp(command[0], command)


def _run_on_workers(state: State, line: str, worker: int | None) -> int:
    from tpuctl.errors import Usage

    if not line:
        option = "--all-workers" if worker is None else "--json"
        raise Usage(
            "No command",
            f"a shell stays on one worker and answers to people: {option} needs a command",
            hint="Put it after --, as in\n    tpuctl ssh --all-workers -- uptime",
            where=option,
        )
    tpuctl = state.tpuctl()
    if worker is None:
        state.view.name_workers(range(tpuctl.stack.worker_count))
    endings = state.wait_for(tpuctl.run_on_workers(line, worker))
    ordered = sorted(endings, key=lambda ending: ending.worker)
    state.answer(
        {
            "workers": [
                {"worker": ending.worker, "exit_code": ending.exit_code} for ending in ordered
            ]
        }
    )
    return next((ending.exit_code for ending in endings if ending.exit_code != 0), 0)


def _ssh_words(words: list[str], *, all_workers: bool) -> tuple[int, str]:
    """The worker and the line of the remote shell that the words are."""
    import shlex

    from tpuctl.errors import Usage
    from tpuctl.model.copy_path import parse_worker

    worker = parse_worker(words[0]) if words else None
    if worker is not None:
        del words[0]
        if all_workers or words[:1] == ["--all-workers"]:
            raise Usage(
                "Conflicting options",
                f"{worker} selects one worker, --all-workers selects all",
                hint="For example\n    tpuctl ssh --all-workers -- uptime",
                where="--all-workers",
            )
    if words[:1] == ["--"]:
        del words[0]
    return worker or 0, words[0] if len(words) == 1 else shlex.join(words)


def _worker(text: str) -> int:
    from tpuctl.errors import Usage
    from tpuctl.model.copy_path import parse_worker

    number = parse_worker(text)
    if number is None:
        raise Usage(
            "No such worker",
            f"{text}: workers are numbered from 0",
            where="--worker",
            hint="Give a number. The workers that there are:\n    tpuctl status",
        )
    return number


def _port(text: str) -> PortMapping:
    from tpuctl.errors import Usage
    from tpuctl.flows.forward import PortMapping

    match = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text)
    numbers = [int(group) for group in match.groups() if group is not None] if match else []
    if not numbers or not all(0 < number <= MAX_PORT for number in numbers):
        raise Usage(
            "No such port",
            f"{text} is not PORT or PORT:LOCALPORT, each from 1 to {MAX_PORT}",
            hint="For example\n    tpuctl forward 6006:8080",
            where=text,
        )
    return PortMapping(*numbers)
