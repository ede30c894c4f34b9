"""The time from `run` to the first log line, and the training speed of the bundled job."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.benchmarks.figures import TPUCTL, Figure, local_cloud, sized, stack_in, wall
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk
from tpuctl.model.logs.log_metrics import MetricReader

GATHERING = sized((), ("--max-megabytes", "0.1"))
# Of the bundled job; the smallest form prepares little, compiles once, and has two log lines.
OPTIONS = sized(
    (),
    (
        *("--vocabulary-size", "400", "--sequence-length", "32"),
        *("--steps", "4", "--steps-per-call", "2", "--batch", "16", "--replicas", "1"),
    ),
)


def first_line() -> Iterator[Figure]:
    """From `run` to the first byte of the log, including the connection."""
    seen: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, LogChunk):
            seen.append(time.perf_counter())

    with local_cloud("instant") as folder:
        stack = stack_in(folder, emit)
        asyncio.run(stack.up())
        (folder / "job").mkdir()
        script = folder / "job" / "hello.py"
        script.write_text("print('hello', flush=True)\n", "utf-8")
        times = []
        for _ in range(sized(3, 1)):
            seen.clear()
            started = time.perf_counter()
            asyncio.run(stack.run(script))
            times.append(seen[0] - started)
        ssh = stack_ssh(stack)
    yield Figure(
        "first log line after run",
        f"{min(times):.2f} s",
        f"{min(times) / ssh:.1f} × one ssh command" if ssh else "",
    )


def stack_ssh(stack: Tpuctl) -> float | None:
    """The time of one command through the ssh program, if it is installed."""
    if shutil.which("ssh") is None:
        return None
    return wall(asyncio.run(stack.ssh_command(0, "true")), times=3)


def tokens() -> Iterator[Figure]:
    """Tokens per second of the bundled job on a machine of the local cloud."""
    log: list[bytes] = []

    def emit(event: Event) -> None:
        if isinstance(event, LogChunk):
            log.append(event.data)

    with local_cloud("instant") as folder:
        stack = stack_in(folder, emit, tpu="runtime: auto")
        subprocess.run(
            [*TPUCTL, "--cloud", "local", "init", "--folder", str(folder / "new")],
            check=True,
            capture_output=True,
        )
        subprocess.run(
            [*TPUCTL, "init", "korean-messages", "--folder", str(folder / "new")],
            check=True,
            capture_output=True,
        )
        job = folder / "new" / "bert-pretraining"
        subprocess.run(
            [sys.executable, "korean-messages/messages.py", "collect", *GATHERING],
            cwd=folder / "new",
            check=True,
            capture_output=True,
        )
        asyncio.run(stack.up())
        code = asyncio.run(stack.run(job / "pretrain.py", OPTIONS))
        asyncio.run(stack.down(delete_bucket=True))
    points = MetricReader().feed(b"".join(log))
    rates = sorted(speed for point in points if (speed := point.values.get("tokens_per_second")))
    if code != 0 or not rates:
        tail = b"".join(log)[-2000:].decode("utf-8", "replace")
        raise RuntimeError(f"exit code {code}, {len(rates)} intervals: {tail}")
    yield Figure(
        "tokens/s of the bundled job",
        f"{rates[len(rates) // 2]:,.0f}",
        f"median of {len(rates)} intervals, {os.cpu_count()} cores",
    )
