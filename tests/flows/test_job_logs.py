"""Ranges of logs, read from machines and from the bucket."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_following import follow
from tests.support.job_spec import change_job_spec
from tests.support.polling import async_until
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import NotFound
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.logs import emit_worker_logs, filter_lines, start_offsets
from tpuctl.flows.jobs.submission import Submission
from tpuctl.model.events import Emit, Event, LogChunk, ignore
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.logs.log_range import LogRange
from tpuctl.remote.transport import Transport

MakeStack = Callable[..., Tpuctl]
MAX_LOG_BYTES = 1 << 20  # of a log on its machine
BURST = 40_000  # lines

SCRIPT = f"""
import os, sys, time
for burst in range(2):
    for start in range(0, {BURST}, 1000):
        print("".join(
            f"burst {{burst}} line {{number}} {{'.' * (number % 97)}}\\n"
            for number in range(start, start + 1000)
        ), end="")
        time.sleep(0.01)
    while not os.path.exists(os.path.expanduser(f"~/gate{{burst}}")):
        time.sleep(0.02)
print("the end")
"""


def burst(number: int) -> bytes:
    return "".join(
        f"burst {number} line {line} {'.' * (line % 97)}\n" for line in range(BURST)
    ).encode()


THE_END = b"the end\n"
WHOLE_LOG = burst(0) + burst(1) + THE_END


@dataclass
class EmittedLog:
    """The emitted log; checks that each chunk starts where the previous one ended."""

    start: int = 0
    data: bytes = b""

    def emit(self, event: Event) -> None:
        if isinstance(event, LogChunk):
            assert event.offset == self.start + len(self.data)
            self.data += event.data


async def on_machine(transport: Transport, *argv: str) -> bytes:
    return (await transport.run(argv)).stdout


async def log_of_range(
    part: LogRange, record: JobRecord, store: ObjectStore, transports: Mapping[int, Transport]
) -> bytes:
    data = b""

    def emit(event: Event) -> None:
        nonlocal data
        if isinstance(event, LogChunk):
            data += event.data

    await emit_worker_logs(record, record.workers[:1], store, transports, emit, part=part)
    return data


@pytest.mark.soak
async def test_log_ranges_after_the_machine_freed_its_log(
    stack: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_job_spec(monkeypatch, log_disk_bytes=MAX_LOG_BYTES, sync_seconds=0.2)
    (tmp_path / "long.py").write_text(SCRIPT)
    transports = await stack.transports()
    machine = transports[0]
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    submission = Submission.of(stack.stack, tmp_path / "long.py", cloud="local")
    record = await submit(submission, store, transports, ignore)

    async def is_indexed() -> bool:
        text = await on_machine(machine, "cat", f"{record.folder}/timestamps")
        return text.endswith(b" %d\n" % len(burst(0)))

    await async_until(is_indexed, "the first burst being indexed")
    between = datetime.now(UTC)
    emitted_log = EmittedLog()
    following = asyncio.ensure_future(follow(record, store, transports, emitted_log.emit))
    await machine.run(["touch", "gate0"])

    async def log_start() -> int:
        text = await on_machine(machine, "cat", f"{record.folder}/log_start.json")
        first = json.loads(text)["offset"] if text else 0
        return first if len(WHOLE_LOG) - first < MAX_LOG_BYTES else 0

    first = await async_until(log_start, "uploaded bytes being freed")
    used = int((await on_machine(machine, "stat", "-c", "%b", f"{record.folder}/log")).split()[0])
    assert used * 512 <= MAX_LOG_BYTES + (1 << 16)
    # A late follower reads from the bucket first, then from the machine.
    late = EmittedLog()
    following_late = asyncio.ensure_future(follow(record, store, transports, late.emit))
    await check_parts(WHOLE_LOG.removesuffix(THE_END), first, between, record, store, transports)

    await machine.run(["touch", "gate1"])
    for task in (following, following_late):
        assert await asyncio.wait_for(task, 120) == 0
    assert emitted_log.data == late.data == WHOLE_LOG
    assert await store.get_bytes(record.log_name(0)) == WHOLE_LOG

    await machine.close()
    await stack.down()
    await check_parts(WHOLE_LOG, first, between, record, store, {})


async def check_parts(
    log: bytes,
    first: int,
    between: datetime,
    record: JobRecord,
    store: ObjectStore,
    transports: Mapping[int, Transport],
) -> None:
    """Check ranges of this log, whose bytes before `first` are no longer on the machine."""
    lines = log.splitlines(keepends=True)
    later = log.removeprefix(burst(0))
    parts = {
        "all": (LogRange(), log),
        "last lines": (LogRange(lines=3), b"".join(lines[-3:])),
        "some freed": (LogRange(lines=BURST + 5), b"".join(lines[-BURST - 5 :])),
        "since": (LogRange(since=between), later),
        "since, last lines": (LogRange(since=between, lines=BURST + 5), later),
        "since, lines that match": (
            LogRange(since=between, pattern=re.compile("line 1234 ")),
            b"".join(line for line in later.splitlines(keepends=True) if b"line 1234 " in line),
        ),
        "from a byte": (LogRange(first - 10_000), log[first - 10_000 :]),
    }
    for name, (part, expected) in parts.items():
        assert await log_of_range(part, record, store, transports) == expected, name


ENDLESS = """
import time
number = 0
while True:
    for number in range(number, number + 50):
        print("line", number, "." * (number % 97))
    number += 1
    time.sleep(0.01)
"""


def endless(size: int) -> bytes:
    parts, length, number = [], 0, 0
    while length < size:
        parts.append(f"line {number} {'.' * (number % 97)}\n".encode())
        length += len(parts[-1])
        number += 1
    return b"".join(parts)[:size]


@pytest.mark.parametrize(
    ("lag", "seed"),
    [
        (0.1, 1),
        *(pytest.param(lag, seed, marks=pytest.mark.soak) for lag, seed in ((0.5, 2), (3.0, 3))),
    ],
)
async def test_log_resumes_from_bucket_after_machine_vanishes(
    stack: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: float, seed: int
) -> None:
    """The machine vanishes at a random time; the copy in the bucket is up to `lag` seconds old."""
    change_job_spec(monkeypatch, sync_seconds=lag)
    (tmp_path / "endless.py").write_text(ENDLESS)
    transports = await stack.transports()
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    submission = Submission.of(stack.stack, tmp_path / "endless.py", cloud="local")
    record = await submit(submission, store, transports, ignore)
    enough = random.Random(seed).randrange(50_000, 400_000)
    followed, late = EmittedLog(), EmittedLog()

    async def is_gone() -> bool:
        try:
            await stack.node()
        except NotFound:
            return True
        return False

    def watch(log: EmittedLog, **more: Any) -> asyncio.Future[int]:
        work = follow(record, store, emit=log.emit, is_gone=is_gone, **more)
        return asyncio.ensure_future(work)

    following = watch(followed, transports=transports)
    # A follower through the bucket gets as far as the copy.
    looking = watch(late, transports={})
    await async_until(lambda: len(followed.data) >= enough, "enough being logged")
    await async_until(lambda: store.exists(record.log_name(0)), "the bucket having a copy")
    await stack.down()
    assert await asyncio.wait_for(following, 120) == 69
    assert await asyncio.wait_for(looking, 120) == 69
    copy = await store.get_bytes(record.log_name(0))
    assert late.data == copy == endless(len(copy))
    assert followed.data == endless(len(followed.data))
    assert len(followed.data) >= max(enough, len(copy))
    for transport in transports.values():
        await transport.close()


SLICE = """
import os, sys, time
worker = os.environ["TPUCTL_WORKER"]
gate = os.path.expanduser("~/gate")
print("begin", worker)
print("waiting", end="")
while not os.path.exists(gate): time.sleep(0.02)
print(" no more")
for step in range(200):
    print("step", step, "of", worker, end="\\r\\n" if step % 10 else "\\r")
print("last", worker, end="")
"""


async def test_log_of_all_workers_has_prefixes_and_matching_lines(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    stack = make_stack(type_name="v3-32", zone="europe-west4-a")
    await stack.up()
    (tmp_path / "slice.py").write_text(SLICE)
    transports = await stack.transports()
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    submission = Submission.of(stack.stack, tmp_path / "slice.py", cloud="local")
    record = await submit(submission, store, transports, ignore)
    assert record.workers == (0, 1, 2, 3)
    output = b""

    def emit(event: Event) -> None:
        nonlocal output
        if isinstance(event, LogChunk):
            output += event.data

    async def followed(emit: Emit, part: LogRange) -> int:
        begins = await start_offsets(part, record, record.workers, store, transports)
        with filter_lines(emit, record.workers, part) as emit_lines:
            return await follow(
                record,
                store,
                transports,
                emit_lines,
                from_offsets=begins,
                shown_workers=record.workers,
            )

    following = asyncio.ensure_future(followed(emit, LogRange()))
    # An incomplete line is shown anyway.
    waiting = [b"[worker %d] waiting" % worker for worker in record.workers]
    await async_until(lambda: all(line in output for line in waiting), "their waiting")
    for transport in transports.values():
        await transport.run(["touch", "gate"])
    assert await asyncio.wait_for(following, 120) == 0
    for worker in record.workers:
        expected = b"".join(
            b"[worker %d] step %d of %d%s" % (worker, step, worker, b"\r\n" if step % 10 else b"\r")
            for step in range(200)
        )
        steps = re.findall(rb"\[worker %d\] step [^\r\n]*\r\n?" % worker, output)
        assert b"".join(steps) == expected
        assert output.count(b"[worker %d] begin %d\n" % (worker, worker)) == 1
        assert output.count(b"[worker %d] last %d\n" % (worker, worker)) == 1
    output = b""
    part = LogRange(lines=15, pattern=re.compile(r"^step 19[5-9] "))
    assert await asyncio.wait_for(followed(emit, part), 120) == 0
    lines = sorted(output.split(b"\r\n"))
    assert lines == sorted(
        [b""]
        + [
            b"[worker %d] step %d of %d" % (worker, step, worker)
            for worker in record.workers
            for step in range(195, 200)
        ]
    )
    for transport in transports.values():
        await transport.close()
    await stack.down(delete_bucket=True)


BAR = """
import os, sys, time
gate = os.path.expanduser("~/gate")
for step in range(11):
    sys.stdout.write(f"\\r\\x1b[32m{'#' * step:10}\\x1b[0m {step * 10}%")
sys.stdout.write("\\n\\x1b[31mloading\\x1b[0m")
sys.stdout.flush()
while not os.path.exists(gate): time.sleep(0.02)
print(" done")
"""


@pytest.mark.soak
async def test_progress_bars_and_colors_pass_unchanged(stack: Tpuctl, tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    transports = await stack.transports()
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    submission = Submission.of(stack.stack, tmp_path / "bar.py", cloud="local")
    record = await submit(submission, store, transports, ignore)
    bar = "".join(f"\r\x1b[32m{'#' * step:10}\x1b[0m {step * 10}%" for step in range(11))
    folder = stack.stack_file.parent
    with Terminal(folder, "logs", "-f", record.id) as terminal:
        # An incomplete line is shown anyway.
        await asyncio.to_thread(terminal.wait_for, f"{bar}\n\x1b[31mloading\x1b[0m")
        assert "done" not in terminal.output
        await transports[0].run(["touch", "gate"])
        assert await asyncio.to_thread(terminal.end) == 0
        assert f"{bar}\n\x1b[31mloading\x1b[0m done\n" in terminal.output
    await transports[0].close()
