"""A stack seen once, or watched until Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.model.snapshot import Snapshot

__all__ = ["moment_data", "show_moment", "watch_here"]


def moment_data(moment: Snapshot) -> dict[str, Any]:
    from tpuctl.view.job_progress import job_now_data
    from tpuctl.view.status import status_data

    seen = moment.status
    return status_data(
        seen.stack,
        seen.nodes,
        seen.bucket,
        seen.inventory,
        seen.charges,
        seen.advice,
        [job_now_data(one) for one in moment.jobs],
    )


def show_moment(moment: Snapshot, commands: Mapping[str, str], *, is_free: bool) -> None:
    from tpuctl.view.job_progress import job_facts
    from tpuctl.view.status import show_status

    seen = moment.status
    jobs = [fact for one in moment.jobs for fact in job_facts(one, moment.at)]
    show_status(
        seen.stack, seen.inventory, seen.charges, seen.advice, commands, jobs, is_free=is_free
    )


def watch_here(state: State, tpuctl: Tpuctl, interval: float, commands: Mapping[str, str]) -> None:
    """Show one moment after the other; in JSON a line for each, whether events were asked for
    or not, and the last one in the envelope."""
    from tpuctl.flows.signals import until_interrupted
    from tpuctl.model.events import StatusUpdate

    state.events = state.events or state.json

    async def in_json() -> None:
        async for moment in tpuctl.watch(interval):
            state.data = moment_data(moment)
            problem = moment.problem
            said = f"{problem.summary}: {problem.detail}" if problem is not None else ""
            state.view.on(StatusUpdate(moment.at.isoformat(), state.data, said))

    async def for_people() -> None:
        from tpuctl.view.live_status import Watching

        with Watching(interval, commands, is_free=state.is_free) as watching:
            async for moment in tpuctl.watch(interval):
                watching.show(moment)

    state.wait_for(until_interrupted(in_json() if state.json else for_people()))
