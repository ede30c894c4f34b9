"""Commands for stacks: plan, up, status, down, orphans."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.options import ProjectId, StackName
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.down import Teardown
    from tpuctl.flows.plan import Prepared
    from tpuctl.model.snapshot import Snapshot

__all__ = ["confirm_up", "register"]

PANEL = "Stack"


def register(app: typer.Typer) -> None:
    for command in (plan, up, status, down, orphans):
        app.command(rich_help_panel=PANEL)(command)


def plan(context: typer.Context) -> None:
    """Show what `up` would create, change or leave, why, what it costs and the quota it needs.

    Example: tpuctl plan
    """
    state: State = context.obj
    prepared = state.wait_for(state.tpuctl().plan())

    def show() -> None:
        _show_prepared(state, prepared)
        print(f"\nNext:\n    {state.command_prefix} up")

    state.answer(_plan_data(prepared), show)


def up(context: typer.Context) -> None:
    """Bring the stack up. Safe to interrupt and to repeat.

    Example: tpuctl up --yes
    """
    from tpuctl.flows.init import guess_script
    from tpuctl.view.cost import cost_sentence

    state: State = context.obj
    tpuctl = state.tpuctl()

    prepared = state.wait_for(tpuctl.up(lambda prepared_plan: confirm_up(state, prepared_plan)))
    stack = prepared.stack

    def show() -> None:
        nothing = "Nothing to do: stack" if prepared.plan.is_empty else "Stack"
        print(f"{nothing} {stack.name} is up: {stack.accelerator.name} in {stack.zone}.")
        print(cost_sentence(prepared.cost, is_free=state.is_free))
        script = guess_script(state.stack_file)
        print(f"\nNext:\n    {state.command_prefix} run {script}\n    {state.command_prefix} down")

    state.answer(_plan_data(prepared), show)


def confirm_up(state: State, prepared: Prepared) -> None:
    """Show what would be made and ask, unless --yes. Raises where the answer is no."""
    from tpuctl.view.cost import cost_sentence

    if state.yes:
        return
    state.view.close()
    if not state.json:
        _show_prepared(state, prepared)
    state.confirm(f"{cost_sentence(prepared.cost, is_free=state.is_free)} Continue?")


def status(
    context: typer.Context,
    stack: StackName = "",
    project: ProjectId = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on looking, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=1, help="Seconds between two looks of --watch.")
    ] = 5.0,
) -> None:
    """Show what exists of the stack and how its jobs fare: state, progress, cost so far.

    Needs no stack file. With --watch a table is kept up to date, on a terminal; else there is a
    line for each look, of JSON with --json. Ctrl-C ends it, with exit code 0.

    Example: tpuctl status --watch
    """
    from tpuctl.cli.status import show_snapshot, snapshot_data, watch_status
    from tpuctl.model.events import Note, WarningIssued

    state: State = context.obj
    tpuctl = _client(context, stack, project)
    commands = {
        "up": f"{state.command_prefix} up",
        "down": f"{state.command_prefix} down{_stack_options(stack, project)}",
    }
    if watch:
        watch_status(state, tpuctl, interval, commands)
        return
    moment = state.wait_for(tpuctl.snapshot())
    if stack and not moment.status.inventory:
        state.view.on(
            Note(
                f"Should there be something? See what stacks {project} has:\n"
                f"    {state.cloud_prefix} orphans --all --project {shlex.quote(project)}"
            )
        )
    if moment.problem is not None:
        state.view.on(WarningIssued(moment.problem))

    def show() -> None:
        show_snapshot(moment, commands, is_free=state.is_free)
        if moment.status.nodes and not moment.status.advice:
            then = [] if stack else [_job_command(state, moment)]
            print(
                "\n".join(
                    ["", "Next:", *(f"    {command}" for command in [*then, commands["down"]])]
                )
            )

    state.answer(snapshot_data(moment), show)


def _job_command(state: State, moment: Snapshot) -> str:
    """What can be typed about the job that runs, else to run one."""
    from tpuctl.flows.init import guess_script

    running = [job.record.id for job in moment.jobs if job.status.exit_code is None]
    if running:
        return f"{state.command_prefix} logs -f {running[0]}"
    return f"{state.command_prefix} run {guess_script(state.stack_file)}"


def down(
    context: typer.Context,
    delete_bucket: Annotated[
        bool, typer.Option("--delete-bucket", help="Delete the bucket too, with all in it.")
    ] = False,
    stack: StackName = "",
    project: ProjectId = "",
) -> int:
    """Take the stack away and prove what is left. Exit code 1 if something still costs money.

    Example: tpuctl down --yes
    """
    from tpuctl.view.cost import on_google
    from tpuctl.view.stack import remaining_data, show_plan, show_remaining

    state: State = context.obj
    tpuctl = _client(context, stack, project)

    def confirm(teardown: Teardown) -> None:
        if state.yes:
            return
        state.view.close()
        if not state.json:
            show_plan(teardown.plan)
        state.confirm("Take this away?", default=not delete_bucket)

    done = state.wait_for(tpuctl.down(delete_bucket=delete_bucket, confirm=confirm))

    def show() -> None:
        show_remaining(done.remaining, is_free=state.is_free)
        if done.leaks:
            charged = on_google("Still charged", is_free=state.is_free)
            print(f"{charged}: {', '.join(leak.address for leak in done.leaks)}.")
            print(f"To try again:\n    {state.command_prefix} down{_stack_options(stack, project)}")
        else:
            kept_items = [
                item.address for item in done.remaining if item.state == "kept" and item.is_billable
            ]
            rest = f" but {', '.join(kept_items)}, asked to stay" if kept_items else ""
            print(f"\nNothing that costs money is left{rest}.")
            options = _stack_options(stack, project)
            if any(address.startswith("bucket/") for address in kept_items):
                print("To delete the bucket too, with all that is in it:")
                print(f"    {state.command_prefix} down --delete-bucket{options}")
            if not options:
                print(f"To bring the stack up again:\n    {state.command_prefix} up")

    state.answer({"remaining": remaining_data(done.remaining)}, show)
    return 1 if done.leaks else 0


def orphans(
    context: typer.Context,
    project: Annotated[
        str, typer.Option("--project", help="The project to look through; else the stack file's.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="List what is in use too.")] = False,
) -> int:
    """Look through a project, in every zone, for what stacks left behind.

    Exit code 1 if something of it costs money.

    Example: tpuctl orphans --project my-project
    """
    from tpuctl.view.orphans import Orphans, orphans_data, show_orphans

    state: State = context.obj
    if project:
        _refuse_stack_file(context, "--project")
    else:
        _require_stack_file(state, "the project itself with --project")
    tpuctl = state.tpuctl(project=project)
    project_orphans = Orphans.of(tpuctl.project, state.wait_for(tpuctl.orphans()))

    def command(stack: str) -> str:
        return f"{state.cloud_prefix} down{_stack_options(stack, project_orphans.project)}"

    def show() -> None:
        up = f"{state.cloud_prefix} up"
        show_orphans(project_orphans, command, up, everything=everything, is_free=state.is_free)

    state.answer(orphans_data(project_orphans, command), show)
    return 1 if project_orphans.is_charged else 0


def _client(context: typer.Context, stack: str, project: str) -> Tpuctl:
    """The stack of these names, of which both or none are given, else the stack file's."""
    state: State = context.obj
    if not stack and not project:
        _require_stack_file(state, "the stack itself with --stack and --project")
        tpuctl = state.tpuctl()
        _require_readable(tpuctl)
        return tpuctl
    if not stack or not project:
        from tpuctl.errors import Usage

        missing = "--project" if stack else "--stack"
        raise Usage(
            "Option missing",
            "a stack is named by both --stack and --project",
            hint=f"For example\n    tpuctl {state.command} --stack bert --project my-project",
            where=missing,
        )
    _refuse_stack_file(context, "--stack and --project")
    return state.tpuctl(name=stack, project=project)


def _require_stack_file(state: State, instead: str) -> None:
    # What is wrong with one that exists is reported when it is read.
    if not os.path.lexists(state.stack_file):
        from tpuctl.errors import Usage

        raise Usage(
            "No stack file",
            f"{state.stack_file} does not exist",
            hint=f"Go to its folder, name it with --stack-file, or name {instead}.",
        )


def _require_readable(tpuctl: Tpuctl) -> None:
    """Raise InvalidStack, with how to do without such a file."""
    from dataclasses import replace

    from tpuctl.errors import InvalidStack

    try:
        _ = tpuctl.stack
    except InvalidStack as error:
        *others, last = error.diagnostics
        hint = f"{last.hint}\nOr name the stack: --stack NAME --project PROJECT.".lstrip()
        raise InvalidStack([*others, replace(last, hint=hint)]) from None


def _refuse_stack_file(context: typer.Context, others: str) -> None:
    source = context.find_root().get_parameter_source("stack_file")
    if source is not None and source.name == "COMMANDLINE":
        from tpuctl.errors import Usage

        raise Usage(
            "Conflicting options",
            f"{others} stand in for a stack file",
            hint="Leave --stack-file out, or the others.",
            where="--stack-file",
        )


def _stack_options(stack: str, project: str) -> str:
    """What a command needs to speak of the same stack without its file."""
    if not stack:
        return ""
    return f" --stack {shlex.quote(stack)} --project {shlex.quote(project)}"


def _plan_data(prepared: Prepared) -> dict[str, Any]:
    from tpuctl.view.stack import plan_data

    return plan_data(
        prepared.stack, prepared.plan, prepared.cost, prepared.costs_elsewhere, prepared.quota
    )


def _show_prepared(state: State, prepared: Prepared) -> None:
    from tpuctl.view.stack import show_costs, show_plan, show_quota

    show_plan(prepared.plan)
    costs = (prepared.cost, prepared.costs_elsewhere)
    show_costs(prepared.stack, *costs, is_free=state.is_free)
    show_quota(prepared.quota)
