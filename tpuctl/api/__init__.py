"""The small Python interface: what the command line does, for programs. Wires everything, lazily.

For example:

    import asyncio
    from tpuctl import Tpuctl

    stack = Tpuctl("tpuctl.yaml", cloud="local")
    asyncio.run(stack.up())
    code = asyncio.run(stack.run("train.py"))
    asyncio.run(stack.down(delete_bucket=True))
"""

from __future__ import annotations

from tpuctl.api.answers import Down
from tpuctl.api.blocking import BlockingTpuctl, print_log
from tpuctl.api.insight import InsightApi
from tpuctl.api.jobs import JobApi
from tpuctl.api.machines import MachineApi
from tpuctl.model.snapshot import Moment, StackStatus

__all__ = ["BlockingTpuctl", "Down", "Moment", "StackStatus", "Tpuctl", "print_log"]


class Tpuctl(JobApi, MachineApi, InsightApi):
    """One stack, seen from this machine. Every method may be repeated at any time.

    Without a stack file, from its name and its project's id alone, a stack can be looked at and
    taken away: `Tpuctl(name="bert", project="my-project")`.
    """
