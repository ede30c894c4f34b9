"""The program to run: a script, a module or a shell command, with its arguments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.help.command_classes import Command
from tpuctl.errors import Usage

if TYPE_CHECKING:
    from tpuctl.cli.state import State
    from tpuctl.model.jobs.job import JobKind

JobScript = Annotated[
    str | None,
    typer.Argument(help="Script to run; its folder is uploaded.", show_default=False),
]
JobArguments = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arguments passed to the script, after --. Without a script: a command to run in "
        "the current folder, which is uploaded."
    ),
]
JobModule = Annotated[
    str | None,
    typer.Option("--module", "-m", metavar="NAME", help="Run a module, like python -m."),
]
JobPython = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="VERSION",
        help="Python of the job, as 3.12 (default: job.python).",
    ),
]
NoCheck = Annotated[bool, typer.Option("--no-check", help="Skip the preflight check.")]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGUMENTS...]", help="Arguments passed to the script."),
]
Module = Annotated[
    str | None,
    typer.Option("--module", "-m", metavar="NAME", help="Run a module instead of a script."),
]

AFTER_DASHES = "tpuctl.after-dashes"


class AfterDashes(Command):
    """Keeps the arguments after `--` apart: without a script, they are a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER_DASHES] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


def parse_program(
    context: typer.Context,
    script: str | None,
    module: str | None,
    arguments: Sequence[str] | None,
    command: str = "run",
) -> tuple[str, JobKind, list[str]]:
    """The program, its kind and its arguments; hints of the command are then about it.

    Raises Usage if there is no program.
    """
    state, after = context.obj, context.meta[AFTER_DASHES]
    words = [*(arguments or ()), *after]
    if module is not None:
        before = [] if script is None else [script]
        words = [*before, *words]
        _remember(state, ["-m", module], words)
        return module, "module", words
    if script is not None:
        _remember(state, [script], words)
        return script, "script", words
    if after:
        return after[0], "shell", list(after[1:])
    raise Usage(
        "Nothing to run",
        "pass a script, a module or a command",
        hint=f"For example\n    tpuctl {command} train.py -- --steps 1000\n"
        f"    tpuctl {command} -m package.train"
        + ("\n    tpuctl run -- ./train.sh --steps 1000" if command == "run" else ""),
    )


def _remember(state: State, program: Sequence[str], arguments: Sequence[str]) -> None:
    state.script = shlex.join(program)
    state.program = shlex.join([*program, *(["--", *arguments] if arguments else [])])
