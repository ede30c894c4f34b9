"""Show a stack's status once, or watch it until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuctl.cli import responses
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.model.status.snapshot import Snapshot

__all__ = ["show_snapshot", "watch_status"]


def show_snapshot(moment: Snapshot, typed: Callable[[str], str], *, is_free: bool) -> None:
    from tpuctl.view.progress.job_progress import job_facts
    from tpuctl.view.stack.status import show_status

    stack_status = moment.status
    jobs = [fact for job in moment.jobs for fact in job_facts(job, moment.at)]
    show_status(
        stack_status.stack,
        stack_status.inventory,
        stack_status.charges,
        moment.advice,
        typed,
        jobs,
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
        async for moment in tpuctl.watch(interval):
            state.jobs[:] = [job.record.id for job in moment.jobs]
            state.record(responses.stacks.Status.of(moment))
            problem = moment.problem
            problem_text = f"{problem.summary}: {problem.detail}" if problem is not None else ""
            state.view.on(StatusUpdate(moment.at.isoformat(), state.data, problem_text))

    async def for_people() -> None:
        from tpuctl.view.stack.live_status import LiveStatus

        with LiveStatus(interval, typed, is_free=state.is_free) as watching:
            async for moment in tpuctl.watch(interval):
                state.jobs[:] = [job.record.id for job in moment.jobs]
                watching.show(moment)

    state.wait_for(until_interrupted(in_json() if state.json else for_people()))
