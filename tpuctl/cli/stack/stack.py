"""Commands for stacks: plan, up, status, down, orphans."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.parameters.option_groups import expand_option_groups
from tpuctl.cli.parameters.options import ProjectId, Sorting, StackName, project_option, sorted_by
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.errors import TpuctlError
    from tpuctl.flows.stack.down import Teardown
    from tpuctl.flows.stack.plan import Prepared
    from tpuctl.model.status.inventory import ResourceKind
    from tpuctl.model.status.snapshot import Snapshot

Race = Annotated[
    bool,
    typer.Option(
        "--race",
        help="Request the TPU in all zones, and all of tpu.any_of, at once; keep the first.",
    ),
]
NewLimits = Annotated[
    bool,
    typer.Option(
        "--new-limits",
        help="Count the cost and hours of limits.max_cost and limits.max_hours from zero.",
    ),
]
AFTER_RACE = (
    "what was requested stays in every zone, and each TPU is charged once it is granted",
    "Repeat the command to continue the race. Or delete everything:\n    tpuctl down",
)


def plan(
    context: typer.Context,
    race: Race = False,
    with_forecast: Annotated[
        bool,
        typer.Option(
            "--forecast", help="Also estimate the wait for a TPU, preemptions, and their cost."
        ),
    ] = False,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="For the forecast: capacity over time; ZONE=FILE if it stands for one zone.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            metavar="N",
            min=0.01,
            max=100_000,
            help="For the forecast: hours of work. [limits.max_hours, or 24]",
        ),
    ] = None,
) -> None:
    """Show what `up` would create, change or keep, why, its cost and the quota it needs.

    Exits with 76 if the stack is known not to fit into the quota of any of its
    zones, and with 124 if nothing is left of its limits.

    A forecast is based on the requests that this computer remembers, and on
    traces; --trace and --hours imply --forecast.

    Example: tpuctl plan
    """
    from tpuctl.flows.stack.spending import require_left

    state: State = context.obj
    tpuctl = state.tpuctl()
    wants_forecast = with_forecast or trace or hours is not None
    forecast = tpuctl.forecast(trace or (), hours) if wants_forecast else None
    prepared = state.wait_for(tpuctl.plan(race=race))
    python = tpuctl.job_python()
    error = prepared.quota.error(prepared.stack.project, is_local=state.is_free)

    def show() -> None:
        _show_prepared(state, prepared)
        if forecast is not None:
            from tpuctl.view.stack.forecast import show_forecast

            show_forecast(forecast, is_free=state.is_free)
        if python.build is not None:
            state.note(f"Jobs bring {python}.")
        if error is None and not prepared.is_used_up:
            command = f"run {state.guess_script()}"
            if not prepared.plan.is_empty:
                command = f"up{' --race' * race}"
            state.suggest(f"{state.command_prefix} {command}")

    state.answer(lambda: responses.stacks.Plan.of(prepared, python.version, forecast), show)
    if error is not None:
        raise error
    require_left(prepared.stack, prepared.spending, prepared.budget)


def up(
    context: typer.Context,
    race: Race = False,
    new_limits: NewLimits = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Return when the stack's controller is up, which then creates the TPU.",
        ),
    ] = False,
) -> None:
    """Create or update the stack. Safe to interrupt and repeat.

    Example: tpuctl up --yes
    """
    from tpuctl.view.stack.cost import cost_sentence

    state: State = context.obj
    tpuctl = state.tpuctl()

    if detach:
        _up_detached(state, tpuctl, race=race)
        return
    if race:
        state.after_interrupt = AFTER_RACE
    prepared = state.wait_for(
        tpuctl.up(
            lambda prepared_plan: confirm_up(state, prepared_plan),
            race=race,
            new_limits=new_limits,
        )
    )
    stack = prepared.stack

    def show() -> None:
        nothing = "Nothing to do: stack" if prepared.plan.is_empty else "Stack"
        state.note(f"{nothing} {stack.name} is up: {stack.counted_type} in {stack.zone}.")
        state.note(cost_sentence(prepared.cost, is_free=state.is_free))
        state.suggest(f"{state.command_prefix} run {state.guess_script()}")

    state.answer(lambda: responses.stacks.Plan.model_validate(prepared), show)


def _up_detached(state: State, tpuctl: Tpuctl, *, race: bool) -> None:
    stack = state.wait_for(
        tpuctl.hand_over_up(lambda prepared_plan: confirm_up(state, prepared_plan), race=race)
    )

    def show() -> None:
        name = stack.names.controller
        state.note(f"{name} creates {stack.counted_type}; this computer may be switched off.")
        state.suggest(f"{state.command_prefix} status --watch")

    state.answer(lambda: responses.stacks.UpDetached(controller=stack.names.controller), show)


def confirm_up(state: State, prepared: Prepared) -> None:
    """Show the plan and ask, unless --yes. Raises if the user declines."""
    from tpuctl.view.stack.cost import cost_sentence

    if state.yes:
        if not prepared.enables_apis:  # otherwise it is not known yet
            for problem in prepared.quota.unread:
                state.announce(f"The {problem}.")
        if prepared.race_cost is not None:
            from tpuctl.view.stack.stack import race_text

            text = race_text(prepared.race_cost, prepared.stack, is_free=state.is_free)
            state.announce(text)
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
        bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=1, help="Seconds between refreshes with --watch.")
    ] = 5.0,
) -> None:
    """Show the stack's resources and jobs: state, progress, chip metrics, cost so far.

    With --stack and --project, no stack file is needed. With --watch, a terminal shows a table
    that refreshes in place; otherwise each refresh prints a line (JSON with --json). Press Ctrl-C
    to stop, with exit code 0.

    Example: tpuctl status --watch
    """
    from tpuctl.cli.stack.status import show_snapshot, watch_status
    from tpuctl.flows.stack.apply import combined_error

    state: State = context.obj
    tpuctl = client(context, stack, project)

    def typed(command: str) -> str:
        line = state.typed(command)
        is_named = not stack or state.stack_options in line
        return line if is_named else f"{line}  # in the folder of its stack file"

    if watch:
        watch_status(state, tpuctl, interval, typed)
        return
    snapshot = state.wait_for(tpuctl.snapshot())
    if stack and not snapshot.status.inventory and not snapshot.status.unlisted:
        state.announce(
            f"Nothing found. To list all stacks in project {project}:\n"
            f"    {state.cloud_prefix} orphans --all --project {shlex.quote(project)}"
        )
    if snapshot.problem is not None:
        state.warn(snapshot.problem)

    def show() -> None:
        show_snapshot(snapshot, typed, is_free=state.is_free)
        if snapshot.status.nodes and not snapshot.advice:
            state.suggest(typed("down") if stack else _job_command(state, snapshot))

    state.jobs += [job.record.id for job in snapshot.jobs]
    state.answer(lambda: responses.stacks.Status.of(snapshot), show)
    if snapshot.status.unlisted:
        raise combined_error(snapshot.status.unlisted, snapshot.status.stack.project)


def _job_command(state: State, snapshot: Snapshot) -> str:
    """A command for the running job, to run one, or to delete the stack that ran one."""
    running = [job.record for job in snapshot.jobs if job.status.exit_code is None]
    if running and running[0].kind == "notebook":
        return f"{state.command_prefix} notebook"
    if running:
        return f"{state.command_prefix} logs -f {running[0].id}"
    if snapshot.jobs:
        return f"{state.command_prefix} down"
    return f"{state.command_prefix} run {state.guess_script()}"


def down(
    context: typer.Context,
    delete_bucket: Annotated[
        bool, typer.Option("--delete-bucket", help="Also delete the bucket and everything in it.")
    ] = False,
    stack: StackName = "",
    project: ProjectId = "",
) -> int:
    """Delete the stack and verify what is left. Exits with 1 if billable resources remain.

    Example: tpuctl down --yes
    """
    from tpuctl.model.stack.stack_folder import other_folder
    from tpuctl.view.stack.cost import on_google
    from tpuctl.view.stack.stack import show_plan, show_remaining
    from tpuctl.view.terminal.text_wrapping import print_wrapped

    state: State = context.obj
    tpuctl = client(context, stack, project)

    def confirm(teardown: Teardown) -> None:
        if state.yes:
            return
        state.view.close()
        if not state.json:
            show_plan(teardown.plan, no_color=state.no_color)
        has_file = tpuctl.bare is None
        folder = other_folder(teardown.stack, state.cloud.value) if has_file else None
        origin = "" if folder is None else f", brought up from {folder}"
        state.confirm(f"Delete these resources{origin}?", default=not delete_bucket)

    done = state.wait_for(tpuctl.down(delete_bucket=delete_bucket, confirm=confirm))

    def show() -> None:
        if done.leaks or not state.quiet:
            show_remaining(done.remaining, is_free=state.is_free)
        if done.leaks:
            charged = on_google("Still charged", is_free=state.is_free)
            print_wrapped(f"{charged}: {', '.join(leak.address for leak in done.leaks)}.")
            print(f"To retry:\n    {state.command_prefix} down{_stack_options(stack, project)}")
        else:
            kept_items = [
                item.address for item in done.remaining if item.state == "kept" and item.is_billable
            ]
            rest = f" except {', '.join(kept_items)}, kept as requested" if kept_items else ""
            state.note(f"\nNo billable resources are left{rest}.")
            options = _stack_options(stack, project)
            if any(address.startswith("bucket/") for address in kept_items):
                state.note(
                    "To delete the bucket and everything in it:\n"
                    f"    {state.command_prefix} down --delete-bucket{options}"
                )

    state.answer(lambda: responses.stacks.Down.model_validate(done), show)
    return 1 if done.leaks else 0


@expand_option_groups
def orphans(
    context: typer.Context,
    *,
    project: Annotated[str, project_option("Project to search (default: the stack file's).")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also list resources in use.")] = False,
    sorting: Annotated[Sorting, sorted_by(lambda: (responses.stacks.OrphanedResource,))],
) -> int:
    """Find resources that stacks left behind in a project, in all zones.

    Exits with 1 if any of them is billable. If billable resources cannot be listed, it lists the
    others and fails.

    Example: tpuctl orphans --project my-project
    """
    from tpuctl.errors import ApiDisabled
    from tpuctl.flows.stack.apply import combined_error
    from tpuctl.view.stack.orphans import Orphans, show_orphans

    state: State = context.obj
    state.use_format(sorting.format)
    if project:
        _refuse_stack_file(context, "--project")
    else:
        _require_stack_file(state, "the project with --project")
    tpuctl = state.tpuctl(project=project)
    unlisted: dict[type[ResourceKind], TpuctlError] = {}
    items = state.wait_for(tpuctl.orphans(unlisted.__setitem__))
    project_orphans = Orphans.of(tpuctl.project, items, [kind.kind for kind in unlisted])
    failures = {
        f"{kind.kind}/*": error
        for kind, error in unlisted.items()
        if kind.is_billable or isinstance(error, ApiDisabled)
    }
    for kind, error in unlisted.items():
        if f"{kind.kind}/*" not in failures:
            state.warn(error.diagnostics[0])

    row_type = responses.stacks.OrphanedResource
    rows = {
        group.stack: sorting.apply(row_type, [row_type.row(resource) for resource in group.rows])
        for group in project_orphans.groups
    }

    def command(stack: str, *, is_bucket: bool) -> str:
        options = _stack_options(stack, project_orphans.project)
        return f"{state.cloud_prefix} down{' --delete-bucket' * is_bucket}{options}"

    def show() -> None:
        up = f"{state.cloud_prefix} up"
        show_orphans(
            project_orphans,
            row_type,
            rows,
            command,
            up,
            everything=everything,
            is_free=state.is_free,
            is_wide=state.is_wide,
        )

    state.answer(lambda: responses.stacks.Orphans.of(project_orphans, rows, command), show)
    if failures:
        raise combined_error(failures, tpuctl.project)
    return 1 if project_orphans.is_charged else 0


def client(context: typer.Context, stack: str, project: str) -> Tpuctl:
    """A client for the named stack, or for the stack file's. Both names or neither are required."""
    state: State = context.obj
    if not stack and not project:
        _require_stack_file(state, "the stack with --stack and --project")
        tpuctl = state.tpuctl()
        _require_readable(tpuctl)
        return tpuctl
    if not stack or not project:
        from tpuctl.errors import Usage

        missing = "--project" if stack else "--stack"
        raise Usage(
            "Missing option",
            "--stack and --project must be used together",
            hint=f"For example\n    tpuctl {state.command} --stack bert --project my-project",
            where=missing,
        )
    _refuse_stack_file(context, "--stack and --project")
    return state.tpuctl(name=stack, project=project)


def _require_stack_file(state: State, instead: str) -> None:
    # Errors in an existing file are reported when it is read.
    if not os.path.lexists(state.stack_file):
        from tpuctl.errors import Usage

        raise Usage(
            "Stack file not found",
            f"{state.stack_file} does not exist",
            hint=f"Change to its folder, pass --stack-file, or name {instead}.",
        )


def _require_readable(tpuctl: Tpuctl) -> None:
    """Raise InvalidStack, with the alternative to a stack file in its hint."""
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
            f"{others} replace the stack file",
            hint=f"Remove --stack-file, or {others}.",
            where="--stack-file",
        )


def _stack_options(stack: str, project: str) -> str:
    """The options that name the same stack without its file."""
    if not stack:
        return ""
    return f" --stack {shlex.quote(stack)} --project {shlex.quote(project)}"


def _show_prepared(state: State, prepared: Prepared) -> None:
    from tpuctl.view.stack.stack import show_costs, show_plan, show_quota, show_spending

    show_plan(prepared.plan, no_color=state.no_color)
    costs = (prepared.cost, prepared.fallback_costs, prepared.race_cost)
    show_costs(prepared.stack, *costs, is_free=state.is_free)
    show_spending(prepared.spending, prepared.budget)
    show_quota(prepared.quota)
