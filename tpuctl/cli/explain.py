"""The command that says why a job ended: explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpuctl.cli.app import State
from tpuctl.cli.following import PANEL
from tpuctl.cli.options import Job

if TYPE_CHECKING:
    from tpuctl.model.explanation import Explanation

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(explain)


def explain(
    context: typer.Context,
    job: Job = "",
) -> None:
    """Say why a job failed: the class of failure, its cause, and the command that mends it.

    All attempts and workers are looked at, in the bucket: also after the machines are gone. Exit
    code 0 when that could be done, whatever became of the job.

    Example: tpuctl explain
    """
    from tpuctl.errors import Diagnostic
    from tpuctl.view.explanation import explanation_data, show_explanation

    state: State = context.obj
    tpuctl = state.tpuctl()

    async def work() -> Explanation:
        return await tpuctl.explain(await tpuctl.job(job))

    found = state.wait_for(work())

    def as_typed(hint: str) -> str:
        return state.as_typed(Diagnostic("", hint=hint)).hint

    state.answer(explanation_data(found, as_typed), lambda: show_explanation(found, as_typed))
