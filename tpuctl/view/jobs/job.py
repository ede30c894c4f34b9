"""Jobs on stdout."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.view.columns import Fields
from tpuctl.view.responses.jobs import ListedJob
from tpuctl.view.terminal.tables import print_rows


def show_jobs(jobs: Sequence[Fields], *, is_wide: bool = False) -> None:
    """The jobs as a table; nothing without jobs.

    Columns that are the same for most stacks are left out if they have nothing to say.
    """
    without = {
        "values": not any(job["values"] for job in jobs),
        "attempt": all(job["attempt"] == 1 for job in jobs),
    }
    if jobs:
        omitted = [name for name, is_omitted in without.items() if is_omitted]
        print_rows(ListedJob, jobs, without=omitted, is_wide=is_wide)
