"""The command that submits a job and follows it: run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.arguments import duration
from tpuctl.cli.following import PANEL, AllWorkers
from tpuctl.cli.help import Command
from tpuctl.cli.running import Running, require_sense
from tpuctl.cli.stack import confirm_up
from tpuctl.cli.state import State
from tpuctl.errors import Usage

if TYPE_CHECKING:
    from tpuctl.model.job import Form

__all__ = ["AFTER_DASHES", "AfterDashes", "register", "what_to_run"]


AFTER_DASHES = "tpuctl.after-dashes"


class AfterDashes(Command):
    """Keeps what stands after `--` apart: without a script before it, it is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        here = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER_DASHES] = args[here + 1 :]
        return super().parse_args(ctx, args[:here])


def register(app: typer.Typer) -> None:
    app.command(cls=AfterDashes, rich_help_panel=PANEL)(run)


def what_to_run(
    script: str | None,
    module: str | None,
    given: Sequence[str],
    after: Sequence[str],
    command: str = "run",
) -> tuple[str, Form, list[str]]:
    """What is to be run, in which form, with which arguments. Raises Usage for nothing at all."""
    if module is not None:
        before = [] if script is None else [script]
        return module, "module", [*before, *given, *after]
    if script is not None:
        return script, "script", [*given, *after]
    if after:
        return after[0], "shell", list(after[1:])
    raise Usage(
        "Nothing to run",
        "neither a script, nor a module, nor a command is named",
        hint=f"For example\n    tpuctl {command} train.py -- --steps 1000\n"
        f"    tpuctl {command} -m package.train"
        + ("\n    tpuctl run -- ./train.sh --steps 1000" if command == "run" else ""),
    )


def run(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="A script; its folder is shipped.", show_default=False)
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="The script's own, after --. Without a script: a command of the current folder, "
            "which is shipped."
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            "-m",
            metavar="NAME",
            help="Run a module, as python -m does; the current folder is shipped.",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Return once it has started on all workers, or say why not.",
        ),
    ] = False,
    up: Annotated[
        bool, typer.Option("--up", help="Bring the stack up first: plan, ask, make.")
    ] = False,
    down: Annotated[
        bool,
        typer.Option(
            "--down", help="Take the stack down at the end, whatever happened; the bucket stays."
        ),
    ] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME[=SOURCE]",
            help="A further secret, as in job.secrets: by its name alone from the environment "
            "here, or env:OTHER, or secret:NAME from Secret Manager. May be repeated.",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="End the job after this, as 90s, 30m or 2h, with 124. Its machines do, whoever "
            "follows it; limits.max_hours deletes them as well.",
        ),
    ] = "",
    all_workers: AllWorkers = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not look at it first.")] = False,
) -> int:
    """Run a script, module or command on the workers, show its log, end with its exit code.

    Ctrl-C leaves the job running; a second one stops it. With --down the stack goes at the end:
    the exit code is the job's, or 1 where that is 0 and something that costs money is left.

    Example: tpuctl run train.py -- --steps 1000
    """
    from tpuctl.model.secret_sources import parse_option

    state: State = context.obj
    require_sense(down=down, detach=detach)
    seconds = duration(timeout, "--timeout")
    what, form, words = what_to_run(script, module, arguments or (), context.meta[AFTER_DASHES])
    tpuctl = state.tpuctl()

    running = Running(
        state,
        tpuctl,
        lambda: tpuctl.submission(
            what,
            words,
            form=form,
            check=not no_check,
            timeout=seconds,
            secrets=dict(map(parse_option, secret or ())),
        ),
        lambda prepared: confirm_up(state, prepared),
        up=up,
        all_workers=all_workers,
        seconds=seconds,
        checks=not no_check,
    )

    async def detached() -> int:
        record = await running.start()
        state.data = {"job": record.id, "output": record.output}
        failed = await tpuctl.begin(record)
        if failed is not None:
            return failed
        state.answer(
            state.data,
            lambda: print(f"{record.id}\n\nNext:\n    {state.typed} logs -f {record.id}"),
        )
        return 0

    if detach:
        return state.wait_for(detached())
    return state.wait_for(running.follow_and_take_down() if down else running.follow())
