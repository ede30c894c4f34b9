"""What is measured, printed as ratios of one run on one machine: `make bench [ONLY=name]`.

Goals are printed beside the figures; nothing here fails because a machine is slow.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tpuctl.api import Tpuctl
from tpuctl.emulator import control
from tpuctl.emulator.pace import Pace
from tpuctl.model.events import Event, LogChunk, StepFinished

TPUCTL = str(Path(sys.executable).parent / "tpuctl")


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    what: str
    value: str
    beside: str = ""
    goal: str = ""


def wall(command: list[str], *, times: int = 7) -> float:
    """The least wall time of several runs, in seconds; the first one warms caches."""
    subprocess.run(command, capture_output=True, check=True)
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        best = min(best, time.perf_counter() - started)
    return best


@contextmanager
def local_cloud(pace: str) -> Iterator[Path]:
    """A local cloud of its own, in a folder that goes away with it."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        root = Path(folder)
        os.environ["TPUCTL_LOCAL_HOME"] = str(root / "cloud")
        os.environ["TPUCTL_CONFIG_HOME"] = str(root / "config")
        control.start(root / "cloud", pace=pace)
        try:
            yield root
        finally:
            control.stop(root / "cloud")


def stack_in(folder: Path, emit: Callable[[Event], None], *, name: str, runtime: str) -> Tpuctl:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"stack: {name}\nproject: {{id: local-project}}\n"
        f"tpu: {{type: v2-8, runtime: {runtime}, zones: [us-central1-b]}}\n",
        "utf-8",
    )
    return Tpuctl(path, cloud="local", emit=emit)


def help_time() -> Iterator[Figure]:
    """`tpuctl --help` against an empty Python and against gcloud's help."""
    bare = wall([sys.executable, "-c", "pass"])
    ours = wall([TPUCTL, "--help"])
    yield Figure("tpuctl --help", f"{ours:.3f} s", f"{ours / bare:.1f} × python -c pass", "0.15 s")
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        yield Figure("gcloud … tpu-vm --help", "gcloud is not here")
        return
    theirs = wall([gcloud, "compute", "tpus", "tpu-vm", "--help"], times=2)
    yield Figure("gcloud … tpu-vm --help", f"{theirs:.3f} s", f"{theirs / ours:.1f} × ours")


def up_time() -> Iterator[Figure]:
    """`up` of a new stack against the operations that must follow each other."""
    pace = Pace("quick")
    steps: list[StepFinished] = []

    def emit(event: Event) -> None:
        if isinstance(event, StepFinished):
            steps.append(event)

    with local_cloud("quick") as folder:
        stack = stack_in(folder, emit, name="bench", runtime="tpu-ubuntu2204-base")
        asyncio.run(stack.plan())  # makes clients and connections, which happens once
        started = time.perf_counter()
        asyncio.run(stack.up())
        took = time.perf_counter() - started
    path = pace.seconds("services.enable") + pace.seconds("tpu.nodes.create")
    yield Figure(
        "up of a new stack",
        f"{took:.2f} s",
        f"{took / path:.2f} × its critical path of {path:.1f} s",
        f"{1.05 * path + 0.5:.2f} s",
    )
    apart = sum(step.seconds for step in steps)
    yield Figure("… its steps one after another", f"{apart:.2f} s", f"{apart / took:.2f} × up")


def first_line() -> Iterator[Figure]:
    """From `run` to the first byte of the log, with a connection to make."""
    seen: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, LogChunk):
            seen.append(time.perf_counter())

    with local_cloud("instant") as folder:
        stack = stack_in(folder, emit, name="bench", runtime="tpu-ubuntu2204-base")
        asyncio.run(stack.up())
        (folder / "job").mkdir()
        script = folder / "job" / "hello.py"
        script.write_text("print('hello', flush=True)\n", "utf-8")
        times = []
        for _ in range(3):
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
    """The time of one command through the ssh program, where there is one."""
    if shutil.which("ssh") is None:
        return None
    return wall(asyncio.run(stack.ssh_command(0, ["true"])), times=3)


def tokens() -> Iterator[Figure]:
    """Tokens a second of the bundled job on a machine of the local cloud."""
    log: list[bytes] = []

    def emit(event: Event) -> None:
        if isinstance(event, LogChunk):
            log.append(event.data)

    with local_cloud("instant") as folder:
        stack = stack_in(folder, emit, name="bench", runtime="auto")
        subprocess.run(
            [TPUCTL, "--cloud", "local", "init", "--folder", str(folder / "new")],
            check=True,
            capture_output=True,
        )
        job = folder / "new" / "bert-pretraining"
        subprocess.run(
            [sys.executable, job / "gather.py"], cwd=job, check=True, capture_output=True
        )
        asyncio.run(stack.up())
        code = asyncio.run(stack.run(job / "pretrain.py"))
        asyncio.run(stack.down(delete_bucket=True))
    entries = [json.loads(line) for line in b"".join(log).splitlines() if line.startswith(b"{")]
    rates = sorted(one["tokens_per_second"] for one in entries if "tokens_per_second" in one)
    if code != 0 or not rates:
        yield Figure("tokens/s of the bundled job", f"it failed with {code}")
        return
    yield Figure(
        "tokens/s of the bundled job",
        f"{rates[len(rates) // 2]:,.0f}",
        f"median of {len(rates)} intervals, {os.cpu_count()} cores",
    )


SECTIONS = {"help": help_time, "up": up_time, "first-line": first_line, "tokens": tokens}


def main(wanted: list[str]) -> int:
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
        return 2
    table = Table("what", "measured", "ratio", "goal", title="Benchmarks", title_justify="left")
    console = Console()
    for name, section in SECTIONS.items():
        if wanted and name not in wanted:
            continue
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        for figure in section():
            table.add_row(figure.what, figure.value, figure.beside, figure.goal)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
