"""A million lines through `logs -f`, and the delay between printing a line and showing it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tests.benchmarks.figures import Figure, command_of, goal, local_cloud, sized, stack_in
from tests.support.memory import peak_memory
from tpuctl.api import Tpuctl
from tpuctl.model.jobs.job import JobRecord

LINES = sized(1_000_000, 2_000)
MANY = f"""
import sys
for number in range(0, {LINES}, 1000):
    sys.stdout.write("".join(
        f"step {{step}} loss 2.71828 tokens/s 123456.7 accuracy 0.5772\\n"
        for step in range(number, number + 1000)
    ))
"""
PRINTED = sized(300, 20)
CLOCKED = f"""
import time
for number in range({PRINTED}):
    print(time.time_ns(), flush=True)
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Run:
    """One program from its start to its end, and its peak memory."""

    seconds: float
    bytes: int
    peak: int


def logs() -> Iterator[Figure]:
    with local_cloud("instant") as folder:
        stack = stack_in(folder)
        asyncio.run(stack.up())
        (folder / "job").mkdir()
        yield from _million(stack, folder)
        yield from _latency(stack, folder)


def _million(stack: Tpuctl, folder: Path) -> Iterator[Figure]:
    long, short = (_ended(stack, folder, text) for text in (MANY, "print('hello')"))
    runs: dict[str, list[Run]] = {"cat": [], "logs": [], "cat one": [], "logs one": []}
    for _ in range(sized(7, 1)):  # alternating, so that all run under the same load
        for more, record in (("", long), (" one", short)):
            cat = asyncio.run(stack.ssh_command(0, f"cat {record.folder}/log"))
            runs["cat" + more].append(_drained(cat))
            runs["logs" + more].append(_drained(command_of(stack, "logs", "-f", record.id)))
    assert {run.bytes for run in runs["cat"]} == {run.bytes for run in runs["logs"]}
    raw, tpuctl_seconds, raw_start, start = (
        min(run.seconds for run in runs[name]) for name in ("cat", "logs", "cat one", "logs one")
    )
    size = runs["logs"][0].bytes / 1e6
    yield Figure(
        f"{LINES:,} lines through logs -f, and its start",
        f"{tpuctl_seconds:.2f} s for {size:.0f} MB",
        f"{tpuctl_seconds / raw:.1f} × ssh cat ({raw:.2f} s)",
    )
    yield Figure(
        "  beyond the time of one line",
        f"{tpuctl_seconds - start:.2f} s",
        f"{(tpuctl_seconds - start) / (raw - raw_start):.2f} × ssh cat's ({raw - raw_start:.2f} s)",
        goal("1.2 ×", tpuctl_seconds - start <= 1.2 * (raw - raw_start)),
    )
    peaks = [max(run.peak for run in runs[name]) / 1e6 for name in ("logs", "logs one")]
    yield Figure("  memory of the client", f"{peaks[0]:.0f} MB", f"{peaks[1]:.0f} MB for one line")


def _latency(stack: Tpuctl, folder: Path) -> Iterator[Figure]:
    record = _submitted(stack, folder, CLOCKED)
    command = command_of(stack, "logs", "-f", record.id)
    waits = []
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            waits.append((time.time_ns() - int(line)) / 1e6)
            peak = max(peak, peak_memory(process.pid))
    waits = waits[-PRINTED // 2 :]  # lines printed before the client followed do not count
    yield Figure(
        "from a line printed to a line shown",
        f"p50 {median(waits):.0f} ms",
        f"p99 {quantiles(waits, n=100)[98]:.0f} ms",
        goal("p50 60 ms", median(waits) <= 60),
    )
    yield Figure("  memory of the client", f"{peak / 1e6:.0f} MB")


def _submitted(stack: Tpuctl, folder: Path, text: str) -> JobRecord:
    script = folder / "job" / "job.py"
    script.write_text(text, "utf-8")
    return asyncio.run(stack.submit(script))


def _ended(stack: Tpuctl, folder: Path, text: str) -> JobRecord:
    record = _submitted(stack, folder, text)
    asyncio.run(stack.follow(record, show=False))
    return record


def _drained(command: Sequence[str]) -> Run:
    """Run a program and discard its output, counting it, unlike a pipe to /dev/null."""
    size = peak = 0
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        while piece := program.stdout.read1(1 << 20):  # type: ignore[attr-defined]
            size += len(piece)
            peak = max(peak, peak_memory(program.pid))
    assert program.returncode == 0, command
    return Run(time.perf_counter() - started, size, peak)
