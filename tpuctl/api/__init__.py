"""The Python API: what the command line does, for programs. Imports are lazy.

Example:

    import asyncio
    from tpuctl import Tpuctl

    stack = Tpuctl("tpuctl.yaml", cloud="local")
    asyncio.run(stack.up())
    code = asyncio.run(stack.run("train.py"))
    asyncio.run(stack.down(delete_bucket=True))
"""

from __future__ import annotations

from tpuctl.api.blocking import BlockingTpuctl, print_log
from tpuctl.api.interface import Tpuctl
from tpuctl.model.status.snapshot import Snapshot, StackStatus
from tpuctl.model.status.status import Down

__all__ = ["BlockingTpuctl", "Down", "Snapshot", "StackStatus", "Tpuctl", "print_log"]
