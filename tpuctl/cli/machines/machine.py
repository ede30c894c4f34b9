"""Commands that reach a stack's machines: ssh, cp, forward, ssh-config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.completion.candidates import complete_workers
from tpuctl.cli.parameters.options import ProjectId, StackName
from tpuctl.cli.stack.stack import client
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.machines.forward import PortMapping
    from tpuctl.model.workers.worker_numbering import WorkerNumbering
    from tpuctl.remote.openssh import HostsFile, UserConfiguration

MAX_PORT = 65535
MAX_NAMES = 8  # of hosts, printed


def register(app: typer.Typer) -> None:
    # As with ssh, everything after the worker belongs to the remote command.
    app.command(context_settings={"allow_interspersed_args": False})(ssh)
    for command in (cp, forward):
        app.command()(command)
    app.command("ssh-config")(ssh_config)


def ssh(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKER] [-- COMMAND...]",
            help="Worker index, or SLICE.WORKER (default: 0); and a command to run instead of a "
            "shell.",
        ),
    ] = None,
    all_workers: Annotated[
        bool,
        typer.Option(
            "--all-workers", help="Run the command on all workers in parallel; prefix their output."
        ),
    ] = False,
    stack: StackName = "",
    project: ProjectId = "",
) -> int:
    """Open a shell on a worker, or run a command there or on all workers.

    Both have the environment of the job that started last: its packages, and TPUCTL_OUTPUT. A
    single word is run by the remote shell; several words are a command and its arguments. Exits
    with the command's exit code; with --all-workers, that of the first worker to fail.

    Example: tpuctl ssh --all-workers -- 'df -h / | tail -1'
    """
    from tpuctl.user_account import has_account

    state: State = context.obj
    tpuctl = client(context, stack, project)
    worker, line = _ssh_words(list(words or ()), tpuctl.stack.numbering, all_workers=all_workers)
    if all_workers or state.json:
        return _run_on_workers(state, tpuctl, line, None if all_workers else worker)
    if not has_account():
        return _run_without_ssh(state, tpuctl, line, worker)
    return _exec_ssh(state, tpuctl, line, worker)


def cp(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FROM... TO",
            help="WORKER:PATH is a path on a worker, relative to its home (or STACK-WORKER:PATH, "
            "as ssh-config names it); :PATH is a path on all workers, with --all-workers.",
        ),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Copy folders recursively.")
    ] = False,
    all_workers: Annotated[
        bool,
        typer.Option(
            "--all-workers", help="Copy to all workers, or from all into folders named worker-N."
        ),
    ] = False,
) -> None:
    """Copy files between this machine and workers, preserving modes, times and links.

    A file appears only when it is complete; dropped connections are reestablished.

    Example: tpuctl cp -r data 0:
    """
    from tpuctl.model.workers.copy_path import parse_copy

    state: State = context.obj
    tpuctl = state.tpuctl()
    request = parse_copy(
        paths,
        all_workers=all_workers,
        recursive=recursive,
        numbering=tpuctl.stack.numbering,
    )
    done = state.wait_for(tpuctl.copy(request, recursive=recursive))
    state.answer(lambda: responses.machines.CopyResult(workers=done))


def forward(
    context: typer.Context,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCALPORT:]PORT...",
            help="Local port (default: the same, or the next free one), and port on the worker.",
        ),
    ],
    worker: Annotated[
        str,
        typer.Option(
            "--worker",
            metavar="WORKER",
            help="Worker index, starting at 0, or SLICE.WORKER.",
            autocompletion=complete_workers,
        ),
    ] = "0",
) -> None:
    """Forward ports of a worker, such as TensorBoard's, to this machine.

    The ports are open to this machine only. Lost connections are reestablished. Press Ctrl-C to
    stop, with exit code 0.

    Example: tpuctl forward 6006
    """
    from tpuctl.flows.signals import until_interrupted
    from tpuctl.model.events import Event, PortForwarded

    state: State = context.obj
    mappings = [_port(port) for port in ports]
    tpuctl = state.tpuctl()
    numbering = tpuctl.stack.numbering
    number = _worker(worker, numbering)
    forwarded: list[PortForwarded] = []
    tell = tpuctl.emit

    def record() -> None:
        state.record(
            lambda: responses.machines.PortForwardings(
                worker=number, slice=numbering.slice_of(number), ports=forwarded
            )
        )

    def note(event: Event) -> None:
        if isinstance(event, PortForwarded):
            forwarded.append(event)
            record()
        tell(event)

    record()

    tpuctl.emit = note

    async def work() -> None:
        import asyncio

        from tpuctl.model.events import Note

        async with tpuctl.forward_ports(mappings, number):
            tell(Note("Press Ctrl-C to stop."))
            await asyncio.Event().wait()

    state.wait_for(until_interrupted(work()))


def ssh_config(
    context: typer.Context,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the hosts; write nothing.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the stack's hosts.")] = False,
) -> None:
    """Set up hosts for ssh, scp, rsync, git, and editors: STACK-0 is worker 0.

    Each connection looks up where the machine is, so the hosts stay valid when the TPU is
    recreated; they also work through IAP. They are in a separate file; the first time, tpuctl asks
    before it adds a line to ~/.ssh/config that includes it. `tpuctl down` removes the hosts.

    Example: tpuctl ssh-config
    """
    from tpuctl.remote.openssh import HostsFile, UserConfiguration

    state: State = context.obj
    tpuctl = state.tpuctl()
    stack = tpuctl.stack
    file = HostsFile(stack.name, stack.project, state.cloud.value)
    configuration = UserConfiguration()
    if remove:
        _remove_hosts(state, print_only, file, configuration)
        return
    hosts = state.wait_for(tpuctl.ssh_hosts())
    names = [host.name for host in hosts]
    includes = configuration.includes_hosts()
    if not print_only:
        questions = [f"Replace the hosts of {file.other_stack}?"] if file.other_stack else []
        if not includes:
            questions.append(f"Add the line {configuration.line} to {configuration.path}?")
        for question in questions:
            state.confirm(question)
        file.write(hosts)
        if not includes:
            configuration.include_hosts()
            includes = True

    def show() -> None:
        if print_only:
            print(file.text(hosts), end="")
            return
        listed = names if len(names) <= MAX_NAMES else [*names[: MAX_NAMES - 1], "…", names[-1]]
        state.note(f"ssh knows {', '.join(listed)}.")
        state.note(f"\nFor example:\n    ssh {hosts[0].name}\n    rsync -a data {hosts[0].name}:")

    included_by = str(configuration.path) if includes else None
    state.answer(
        lambda: responses.machines.SshHosts(
            hosts=names, file=str(file.path), included_by=included_by
        ),
        show,
    )


def _remove_hosts(
    state: State, print_only: bool, file: HostsFile, configuration: UserConfiguration
) -> None:
    from tpuctl.errors import Usage

    if print_only:
        raise Usage(
            "Conflicting options",
            "--print writes nothing, --remove removes hosts",
            hint="Use one of them.",
            where="--remove",
        )
    was_there = file.remove()
    was_included = configuration.exclude_hosts()

    def show() -> None:
        state.note(f"Removed {file.path}." if was_there else "The stack has no hosts here.")
        if was_included:
            state.note(f"{configuration.path} no longer includes the hosts.")

    includes = configuration.includes_hosts()
    included_by = str(configuration.path) if includes else None
    state.answer(
        lambda: responses.machines.SshHosts(hosts=[], file=str(file.path), included_by=included_by),
        show,
    )


def _exec_ssh(state: State, tpuctl: Tpuctl, line: str, worker: int) -> int:
    import os
    import shutil

    from tpuctl.errors import TpuctlError

    command = state.wait_for(tpuctl.ssh_command(worker, line))
    state.view.close()
    if shutil.which("ssh") is None:
        raise TpuctlError(
            "ssh not found", "there is no ssh on this machine", hint="Install OpenSSH."
        )
    os.execvp(command[0], command)


def _run_without_ssh(state: State, tpuctl: Tpuctl, line: str, worker: int) -> int:
    """ssh refuses a user without an account, as in containers."""
    from tpuctl.errors import Usage

    if not line:
        raise Usage(
            "User has no account",
            "ssh opens no shell for a user that is not in /etc/passwd",
            hint="Run single commands:\n    tpuctl ssh -- COMMAND\nor start the container with a "
            "user that has an account.",
        )
    return _run_on_workers(state, tpuctl, line, worker)


def _run_on_workers(state: State, tpuctl: Tpuctl, line: str, worker: int | None) -> int:
    from tpuctl.errors import Usage

    if not line:
        option = "--all-workers" if worker is None else "--json"
        raise Usage(
            "Missing command",
            f"{option} requires a command: a shell is interactive and on one worker",
            hint="Put the command after --, for example\n    tpuctl ssh --all-workers -- uptime",
            where=option,
        )
    if worker is None:
        state.view.name_workers(tpuctl.stack.numbering)
    endings = state.wait_for(tpuctl.run_on_workers(line, worker))
    ordered = sorted(endings, key=lambda ending: ending.worker)
    state.answer(lambda: responses.machines.CommandResult(workers=ordered))
    return next((ending.exit_code for ending in endings if ending.exit_code != 0), 0)


def _ssh_words(
    words: list[str], numbering: WorkerNumbering, *, all_workers: bool
) -> tuple[int, str]:
    """The worker and the remote command line."""
    import shlex

    from tpuctl.errors import Usage

    worker = numbering.parse(words[0]) if words else None
    if worker is not None:
        del words[0]
        if all_workers or words[:1] == ["--all-workers"]:
            raise Usage(
                "Conflicting options",
                f"{numbering.name(worker)} selects one worker, --all-workers selects all",
                hint="For example\n    tpuctl ssh --all-workers -- uptime",
                where="--all-workers",
            )
    if words[:1] == ["--"]:
        del words[0]
    return worker or 0, words[0] if len(words) == 1 else shlex.join(words)


def _worker(text: str, numbering: WorkerNumbering) -> int:
    from tpuctl.errors import Usage

    number = numbering.parse(text)
    if number is None:
        raise Usage(
            "Invalid worker",
            f"{text}: workers are numbered from {numbering.name(0)}",
            where="--worker",
            hint="Pass a number. To list the workers:\n    tpuctl status",
        )
    return number


def _port(text: str) -> PortMapping:
    from tpuctl.errors import Usage
    from tpuctl.flows.machines.forward import PortMapping

    # As for `ssh -L`, `docker run -p`, and `kubectl port-forward`.
    match = re.fullmatch(r"(?:([0-9]+):(?:(?:localhost|127\.0\.0\.1):)?)?([0-9]+)", text)
    numbers = [int(group) for group in match.groups() if group is not None] if match else []
    if not numbers or not all(0 < number <= MAX_PORT for number in numbers):
        raise Usage(
            "Invalid port",
            f"{text} is not PORT or LOCALPORT:PORT, each from 1 to {MAX_PORT}",
            hint="To open port 6006 of the worker as port 8080 of this machine:\n"
            "    tpuctl forward 8080:6006",
            where=text,
        )
    *local, remote = numbers
    return PortMapping(remote, *local)
