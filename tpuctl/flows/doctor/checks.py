"""Checks at the same time, each after those without which it would only repeat their failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tpuctl.errors import TpuctlError
from tpuctl.model.diagnosis import CheckState, Diagnosis, Finding, failed

__all__ = ["Check", "examine"]


@dataclass(frozen=True)
class Check:
    """`after` are checks that must not have failed; `beside` are only waited for."""

    name: str
    ask: Callable[[], Awaitable[Finding]]
    after: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


async def examine(checks: Sequence[Check], tell: Callable[[Finding], None]) -> Diagnosis:
    """Ask all of them; `tell` hears each finding as soon as it and those before it are known."""
    tasks: dict[str, asyncio.Task[Finding]] = {}
    begin = asyncio.Event()  # a check may wait for one that stands behind it

    async def one(check: Check) -> Finding:
        await begin.wait()
        await asyncio.gather(*(tasks[name] for name in check.beside))
        for name in check.after:
            if name not in tasks:  # there is no local cloud to be asked for when it is Google
                continue
            before = await tasks[name]
            if before.root or before.state is CheckState.PROBLEM:
                root = before.root or name
                return Finding(check.name, CheckState.UNASKED, f"waits for {root}", root=root)
        try:
            return await check.ask()
        except TpuctlError as error:
            return failed(check.name, error)

    tasks.update({check.name: asyncio.create_task(one(check)) for check in checks})
    begin.set()
    findings = []
    try:
        for task in tasks.values():
            findings.append(await task)
            tell(findings[-1])
    finally:
        for task in tasks.values():
            task.cancel()
    return Diagnosis(tuple(findings))
