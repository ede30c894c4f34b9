"""Show a stack's status once, or watch it until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuctl.cli import responses
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.model.status.snapshot import Snapshot


def show_snapshot(snapshot: Snapshot, typed: Callable[[str], str], *, is_free: bool) -> None:
    from tpuctl.view.progress.job_progress import job_facts
    from tpuctl.view.stack.status import show_status

    stack_status = snapshot.status
    facts = [fact for job in snapshot.jobs for fact in job_facts(job, snapshot.at)]
    if snapshot.spending is not None:
        facts.append(("limits", f"used {snapshot.spending}"))
    if snapshot.budget is not None:
        facts.append(("budget", f"used {snapshot.budget}"))
    show_status(
        stack_status.stack,
        stack_status.inventory,
        stack_status.charges,
        snapshot.advice,
        typed,
        facts,
        at=stack_status.at,
        is_free=is_free,
    )


def watch_status(
    state: State, tpuctl: Tpuctl, interval: float, typed: Callable[[str], str]
) -> None:
    """Show each snapshot; with --json one line each, even without --events, and the last one in
    the envelope."""
    from tpuctl.flows.signals import until_interrupted
    from tpuctl.model.events import StatusUpdate

    state.events = state.events or state.json

    async def in_json() -> None:
        async for snapshot in tpuctl.watch(interval):
            state.jobs[:] = [job.record.id for job in snapshot.jobs]
            state.record(responses.stacks.Status.of(snapshot))
            problem = snapshot.problem
            problem_text = f"{problem.summary}: {problem.detail}" if problem is not None else ""
            state.view.on(StatusUpdate(snapshot.at.isoformat(), state.data, problem_text))

    async def for_people() -> None:
        from tpuctl.view.stack.live_status import LiveStatus

        with LiveStatus(interval, typed, is_free=state.is_free) as watching:
            async for snapshot in tpuctl.watch(interval):
                state.jobs[:] = [job.record.id for job in snapshot.jobs]
                watching.show(snapshot)

    state.wait_for(until_interrupted(in_json() if state.json else for_people()))
