"""`local env`: shell commands that point other programs at the local cloud."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.state import State
from tpuctl.errors import TpuctlError, Unreachable, Usage


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


_POSIX_SHELLS = {"bash", "zsh", "sh", "dash", "ksh", "mksh", "ash"}
_USAGE_BY_SHELL = {"fish": "tpuctl local env{} | source"}
_DEFAULT_USAGE = 'eval "$(tpuctl local env{})"'


def print_environment(
    context: typer.Context,
    shell: Annotated[
        Shell | None,
        typer.Option("--shell", help="Shell to print commands for (default: this one)."),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="PROJECT",
            help="Default project of these programs. [local-project]",
        ),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Restore the previous environment.")
    ] = False,
) -> None:
    """Print shell commands that point gcloud, client libraries and TensorFlow at the local cloud.

    Apply them with eval "$(tpuctl local env)", or in fish with tpuctl local env | source. Starts
    the local cloud if needed. Your gcloud configuration is not changed. Programs without endpoint
    settings use a proxy, which serves Google's addresses locally and forwards all other traffic.
    Undo with --unset.

    Example: tpuctl local env --shell bash
    """
    state: State = context.obj
    try:
        target_shell = shell or _current_shell()
        values = _unset_values() if unset else _environment(state, project)
    except TpuctlError:
        if not state.json:
            print("false;")  # keeps a script that evaluates this from continuing against Google
        raise
    state.answer(
        lambda: responses.local.Environment(
            set={name: value for name, value in values.items() if value is not None},
            unset=[name for name, value in values.items() if value is None],
        ),
        lambda: print("".join(lines_for(target_shell, values)), end=""),
    )
    if not state.json and not state.quiet:
        _print_usage(target_shell, values, unset)


def warn_shell(state: State) -> None:
    """Warn if this shell still points at a stopped local cloud."""
    from tpuctl.shell_record import RECORD

    if RECORD in os.environ:
        way = 'eval "$(tpuctl local env --unset)"'
        text = "This shell still sends its HTTPS traffic to the local cloud. To undo that:"
        state.announce(f"{text}\n    {way}")


def lines_for(shell: Shell, values: Mapping[str, str | None]) -> list[str]:
    """Statements that set these variables, or unset those that are None."""
    if shell is Shell.fish:
        return [
            f"set -e {name};\n" if value is None else f"set -gx {name} {_fish_quoted(value)};\n"
            for name, value in values.items()
        ]
    return [
        f"unset {name};\n" if value is None else f"export {name}={shlex.quote(value)};\n"
        for name, value in values.items()
    ]


def _fish_quoted(text: str) -> str:
    """In single quotes, fish escapes only backslashes and quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _current_shell() -> Shell:
    from tpuctl.cli.completion.shells import parent_shell

    # $SHELL is the login shell, from which another one may have been started.
    name = parent_shell() or Path(os.environ.get("SHELL") or "sh").name
    if name == "fish":
        return Shell.fish
    if name in _POSIX_SHELLS:
        return Shell.zsh if name == "zsh" else Shell.bash
    raise Usage(
        "Unknown shell",
        f"{name} is not supported",
        hint="Pass a shell:\n    tpuctl local env --shell bash|zsh|fish",
    )


def _environment(state: State, project: str | None) -> dict[str, str | None]:
    from tpuctl.flows.local_cloud import running_endpoint
    from tpuctl.local_cloud import server_process
    from tpuctl.local_cloud.shell_env import environment_for
    from tpuctl.model.stack.stack import minimal_stack

    if project is not None:
        minimal_stack("any", project)  # rejects invalid project ids
    running_endpoint(state.view.on)
    cloud = server_process.status(server_process.default_home())
    if cloud is None:
        raise Unreachable(
            "Local cloud not responding",
            "it stopped just now",
            hint="Start it again (its data is kept), then repeat the command:\n    tpuctl local up",
        )
    return environment_for(cloud, os.environ, project)


def _unset_values() -> dict[str, str | None]:
    from tpuctl.shell_record import restore_variables

    return restore_variables(os.environ)


def _print_usage(shell: Shell, values: Mapping[str, str | None], unset: bool) -> None:
    """On a terminal, say how to apply the commands."""
    from tpuctl.view.terminal.text_wrapping import print_wrapped

    use = _USAGE_BY_SHELL.get(shell.value, _DEFAULT_USAGE)
    if unset and not values:
        print_wrapped("This shell does not point at the local cloud.", sys.stderr)
    elif sys.stdout.isatty():
        flags = " --unset" if unset else ""
        way = "" if unset else f"\nTo undo it:\n    {use.format(' --unset')}"
        print_wrapped(f"\nTo apply this to your shell:\n    {use.format(flags)}{way}", sys.stderr)
