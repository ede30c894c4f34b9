"""Run checks concurrently, skipping those whose prerequisites failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tpuctl.errors import TpuctlError
from tpuctl.model.troubleshooting.diagnosis import CheckState, Diagnosis, Finding, failed


@dataclass(frozen=True)
class Check:
    """`after` are checks that must have passed; `wait_for` must only have finished."""

    name: str
    run: Callable[[], Awaitable[Finding]]
    after: tuple[str, ...] = ()
    wait_for: tuple[str, ...] = ()


async def run_checks(checks: Sequence[Check], report: Callable[[Finding], None]) -> Diagnosis:
    """Run all checks; `report` gets the findings in order, each as soon as it is available."""
    tasks: dict[str, asyncio.Task[Finding]] = {}
    begin = asyncio.Event()  # a check may wait for a later one in the list

    async def run_check(check: Check) -> Finding:
        await begin.wait()
        await asyncio.gather(*(tasks[name] for name in check.wait_for))
        for name in check.after:
            if name not in tasks:  # "local cloud" is not checked on Google
                continue
            finding = await tasks[name]
            if finding.root or finding.state is CheckState.PROBLEM:
                root = finding.root or name
                return Finding(check.name, CheckState.SKIPPED, f"{root} failed", root=root)
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
