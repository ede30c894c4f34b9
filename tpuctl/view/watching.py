"""A stack watched: a table that stays in its place on a terminal, else a line each time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tpuctl.model.charges import hourly, so_far
from tpuctl.model.cost import dollars
from tpuctl.view.progress import job_facts, job_sentence
from tpuctl.view.status import charges_table, status_facts
from tpuctl.view.tables import console, facts_table

if TYPE_CHECKING:
    from tpuctl.model.moment import Moment

__all__ = ["Watching", "moment_line"]


class Watching:
    """Shows one moment after the other on stdout; a context, which leaves the last one there."""

    def __init__(self, seconds: float, commands: Mapping[str, str]) -> None:
        """`commands` are the lines to type for what the advice says."""
        self._seconds = seconds
        self._commands = commands
        self._live = Live(console=console(), auto_refresh=False) if sys.stdout.isatty() else None

    def __enter__(self) -> Watching:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, moment: Moment) -> None:
        if self._live is None:
            print(moment_line(moment), flush=True)
        else:
            self._live.update(self._table(moment), refresh=True)

    def _table(self, moment: Moment) -> RenderableType:
        status = moment.status
        facts = status_facts(status.stack, status.found, status.charges)
        for job in moment.jobs:
            facts += job_facts(job, moment.at)
        parts: list[RenderableType] = [facts_table(facts)]
        table = charges_table(status.found, status.charges)
        if table is not None:
            parts += ["", table]
        for each in status.advice:
            parts += ["", Text(f"{each.text}\n    {self._commands[each.command]}")]
        parts.append("")
        if moment.problem is not None:
            said = f"{moment.problem.summary}: {moment.problem.detail}"
            parts.append(Text(f"{said}\nTrying again; above is what was seen last.", style="bold"))
        when = f"{_time(moment.at)}, every {self._seconds:g} s; Ctrl-C ends it."
        parts.append(Text(when, style="dim"))
        return Group(*parts)


def moment_line(moment: Moment) -> str:
    """Everything in one line, for logs and pipes."""
    status = moment.status
    if moment.problem is not None:
        return f"{_time(moment.at)} {moment.problem.summary}: {moment.problem.detail}"
    parts = [f"{one.kind} {one.name} {one.state}" for one in status.found if one.node is not None]
    parts += [f"request {one.name} {one.state}" for one in status.found if one.kind == "queued"]
    parts += [job_sentence(one, moment.at) for one in moment.jobs]
    per_hour, knows_prices = hourly(status.charges)
    spent, knows_all = so_far(status.charges)
    parts.append(
        f"{'' if knows_prices else 'at least '}{dollars(per_hour)}/h, "
        f"{'' if knows_all else 'at least '}{dollars(spent)} so far"
    )
    return f"{_time(moment.at)} {'; '.join(parts)}"


def _time(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"
