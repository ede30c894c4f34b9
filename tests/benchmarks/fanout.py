"""A job on many workers at once, compared with gcloud on the same machines."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.benchmarks.figures import (
    Figure,
    cloud_in,
    command_of,
    gcloud_environment,
    goal,
    local_cloud,
    sized,
    skipped,
    stack_in,
)
from tests.support.locations import PROJECT, ZONE
from tests.support.memory import peak_memory, proportional_memory
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import server_process

SIZES = sized({1: "v3-8", 16: "v3-128", 64: "v3-512", 256: "v3-2048"}, {4: "v3-32"})
TIMEOUT = 300.0  # seconds for gcloud, which starts a program for each worker
WORKER_BYTES = 40 << 20  # memory of this computer for a worker and all that runs on it
GOAL, GOAL_AT = 10, 64
MEMORY = 150
# By default gcloud handles one worker after the other; its alpha can handle several at a time.
KINDS = (
    ("gcloud scp, then ssh", (), ()),
    ("gcloud alpha, all at a time", ("alpha",), ("--batch-size=all",)),
)
HELLO = "print('hello', flush=True)\n"
LIMITS = "limits: {idle: null}\n"  # without the watchdogs, which would be measured too


@dataclass(frozen=True)
class Run:
    """One run of a command: seconds to its first line and in all, and its peak memory in MB.

    `here` is the CPU time of the command and all that it started. The machines use the same
    processors here; with machines of their own, only this time would count.
    """

    first: float
    total: float
    cpu_seconds: float
    memory: float = 0.0


def fanout() -> Iterator[Figure]:
    """`tpuctl run` on 1 to 256 workers with output shown, compared with gcloud's scp and ssh."""
    sizes = [
        int(number) for number in os.environ.get("TPUCTL_BENCH_WORKERS", "").split(",") if number
    ]
    for workers in sizes or SIZES:
        if workers * WORKER_BYTES > free_memory():
            yield skipped(f"a job on {workers} workers", "not enough memory on this computer")
            continue
        with local_cloud("instant") as folder:
            yield from on_workers(folder, workers)


def free_memory() -> int:
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def on_workers(folder: Path, workers: int) -> Iterator[Figure]:
    stack = stack_in(folder, where=f"type: {SIZES[workers]}, zones: [{ZONE}]", extra=LIMITS)
    asyncio.run(stack.up())
    (folder / "job").mkdir()
    tpuctl_run = run_tpuctl(folder, stack, workers)
    label = f"{workers} worker{'s' if workers > 1 else ''}"
    cloud = cloud_in(folder)
    machines = proportional_memory(cloud.pid) / 1e6
    yield Figure(
        f"tpuctl run on {label}",
        f"{tpuctl_run.total:.2f} s",
        f"first line after {tpuctl_run.first:.2f} s; {tpuctl_run.cpu_seconds:.1f} s of client CPU; "
        f"{tpuctl_run.memory:.0f} MB",
        goal(f"{MEMORY} MB", tpuctl_run.memory <= MEMORY) if workers == max(SIZES) else "",
    )
    yield Figure("… all machines after it", f"{machines:.0f} MB")
    for how, track, options in KINDS:
        if track and workers == 1:
            continue  # nothing to parallelize
        gcloud_run = run_gcloud(
            folder, cloud, stack, track, options if workers > 1 else (), workers
        )
        if isinstance(gcloud_run, Figure):
            yield replace(gcloud_run, label=f"{how}, to {label}")
            continue
        ratio = gcloud_run.total / tpuctl_run.total
        is_goal = workers == GOAL_AT and not track
        yield Figure(
            f"{how}, to {label}",
            f"{gcloud_run.total:.2f} s",
            f"first line after {gcloud_run.first:.2f} s; {gcloud_run.cpu_seconds:.1f} s "
            "of client CPU; "
            f"{ratio:.1f} × ours",
            goal(f"{GOAL} × tpuctl's", ratio >= GOAL) if is_goal else "",
        )
        if not track:
            continue
        for quantity, spent, compared, limit, sizes in (
            ("time", tpuctl_run.total, gcloud_run.total, 2.0, (64, 256)),
            ("client CPU", tpuctl_run.cpu_seconds, gcloud_run.cpu_seconds, 0.2, (256,)),
        ):
            yield Figure(
                f"… tpuctl's {quantity}, compared with that",
                f"{spent / compared:.2f} ×",
                goal=goal(f"{limit:g} ×", spent <= limit * compared) if workers in sizes else "",
            )


def run_tpuctl(folder: Path, stack: Tpuctl, workers: int) -> Run:
    """The better of two runs, except for slow ones; each ships a different script."""
    runs = []
    for number in range(sized(2, 1) if workers < max(SIZES) else 1):
        (folder / "job/hello.py").write_text(f"number = {number}\n{HELLO}", "utf-8")
        command = command_of(stack, "run", str(folder / "job/hello.py"), "--all-workers")
        runs.append(timed(command, os.environ, folder, workers))
    return min(runs, key=lambda run: run.total)


def run_gcloud(
    folder: Path,
    cloud: server_process.LocalCloud,
    stack: Tpuctl,
    track: tuple[str, ...],
    options: tuple[str, ...],
    workers: int,
) -> Run | Figure:
    """Copy the same folder to all machines and run its script; they accept gcloud's key."""
    environment = gcloud_environment(cloud, PROJECT, ZONE, folder)
    gcloud = ["gcloud", *track, "compute", "tpus", "tpu-vm"]
    where = [f"--zone={ZONE}", "--worker=all", *options]
    node = stack.stack.names.node
    try:
        first_ssh = [*gcloud, "ssh", node, f"--zone={ZONE}", "--worker=0", "--command=true"]
        subprocess.run(first_ssh, env=environment, cwd=folder, capture_output=True, check=True)
        copy = timed([*gcloud, "scp", "--recurse", "job", f"{node}:", *where], environment, folder)
        command = "--command=python3 job/hello.py"
        hello = timed([*gcloud, "ssh", node, *where, command], environment, folder, workers)
    except FileNotFoundError:
        return skipped("gcloud", "not installed")
    except subprocess.TimeoutExpired:
        return Figure("gcloud", f"longer than {TIMEOUT:.0f} s")
    except (subprocess.CalledProcessError, RuntimeError) as error:
        message = (
            error.stderr.decode() if isinstance(error, subprocess.CalledProcessError) else error
        )
        return Figure("gcloud", str(message).strip()[-300:], has_failed=True)
    return Run(
        copy.total + hello.first,
        copy.total + hello.total,
        copy.cpu_seconds + hello.cpu_seconds,
    )


def timed(command: list[str], environment: Mapping[str, str], folder: Path, lines: int = 0) -> Run:
    """Run a command that must print hello `lines` times."""
    errors = folder / "errors"
    began, before = time.perf_counter(), children_time()
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=stderr
        )
    assert process.stdout is not None
    largest = PeakMemory(process.pid)
    first, lines_read = 0.0, 0
    for line in process.stdout:
        if b"hello" in line:
            first = first or time.perf_counter() - began
            lines_read += 1
        if time.perf_counter() - began > TIMEOUT:
            process.kill()
            raise subprocess.TimeoutExpired(command, TIMEOUT)
    process.wait()
    total = time.perf_counter() - began
    if process.returncode or lines_read != lines:
        message = errors.read_text("utf-8", "replace")
        raise RuntimeError(
            f"exit code {process.returncode}, {lines_read} of {lines} lines: {message}"
        )
    return Run(first, total, children_time() - before, largest.bytes / 1e6)


def children_time() -> float:
    """CPU seconds of all finished child processes."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


class PeakMemory:
    """The peak memory of a process while it lives."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                peak = peak_memory(self._pid)
            except OSError:
                return
            if not peak:
                return  # it has ended
            self.bytes = peak
            time.sleep(0.02)
