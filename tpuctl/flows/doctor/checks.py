"""Checks at the same time, each after those without which it would only repeat their failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tpuctl.errors import TpuctlError
from tpuctl.model.diagnosis import CheckState, Diagnosis, Finding, failed

__all__ = ["Check", "run_checks"]


@dataclass(frozen=True)
class Check:
    """`after` are checks that must not have failed; `beside` are only waited for."""

    name: str
    run: Callable[[], Awaitable[Finding]]
    after: tuple[str, ...] = ()
    wait_for: tuple[str, ...] = ()


async def run_checks(checks: Sequence[Check], report: Callable[[Finding], None]) -> Diagnosis:
    """Ask all of them; `tell` hears each finding as soon as it and those before it are known."""
    tasks: dict[str, asyncio.Task[Finding]] = {}
    begin = asyncio.Event()  # a check may wait for one that stands behind it

    async def run_check(check: Check) -> Finding:
        await begin.wait()
        await asyncio.gather(*(tasks[name] for name in check.wait_for))
        for name in check.after:
            if name not in tasks:  # there is no local cloud to be asked for when it is Google
                continue
            finding = await tasks[name]
            if finding.root or finding.state is CheckState.PROBLEM:
                root = finding.root or name
                return Finding(check.name, CheckState.UNASKED, f"waits for {root}", root=root)
        try:
            return await check.run()
        except TpuctlError as error:
            return failed(check.name, error)

    tasks.update({check.name: asyncio.create_task(run_check(check)) for check in checks})
    begin.set()
    findings = []
    try:
        for task in tasks.values():
            findings.append(await task)
            report(findings[-1])
    finally:
        for task in tasks.values():
            task.cancel()
    return Diagnosis(tuple(findings))
