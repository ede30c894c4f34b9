"""Bundles on machines: fetched with the machine's service account, or sent over SSH."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.job_following import follow
from tpuctl.api import Tpuctl
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.submission import Submission
from tpuctl.model.events import Event, LogChunk, StepFinished
from tpuctl.model.jobs.job import JobRecord
from tpuctl.remote.transport import Transport

BUNDLES = "tpuctl/bundles/"
ARCHIVE = ".tar.gz"
DISCARD_PORT = 9  # nothing listens there


@dataclass
class Bench:
    """A machine, and a folder with a script to run on it."""

    stack: Tpuctl
    worker: Transport
    folder: Path
    events: list[Event]
    transcript: Path

    async def submit(self, store: ObjectStore | None = None) -> JobRecord:
        self.events.clear()
        planned = Submission.of(self.stack.stack, self.folder / "job.py", cloud="local")
        workers = {0: self.worker}
        return await submit(planned, store or self.stack.store, workers, self.events.append)

    async def log(self, record: JobRecord, *, has_bucket: bool = True) -> str:
        store = self.stack.store if has_bucket else None
        ending = follow(record, store, {0: self.worker}, self.events.append)
        assert await asyncio.wait_for(ending, 120) == 0
        log = (event.data for event in self.events if isinstance(event, LogChunk))
        return b"".join(log).decode()

    async def on_worker(self, *argv: str) -> str:
        return (await self.worker.run(argv)).check("test").stdout.decode()

    async def archives(self) -> dict[str, str]:
        """The archives on the worker, with their inode numbers."""
        listed = await self.on_worker("sh", "-c", "cd .tpuctl/bundles && ls -i")
        numbered = dict(reversed(line.split()) for line in listed.splitlines())
        return {name: number for name, number in numbered.items() if name.endswith(ARCHIVE)}

    def fetched(self) -> list[str]:
        """The archives that were requested from the stack's bucket so far, in order."""
        names = []
        for line in self.transcript.read_text("utf-8").splitlines():
            call = json.loads(line)
            path = call.get("path", "").replace("%2F", "/")
            if f"/b/{self.stack.stack.bucket}/o/{BUNDLES}" in path and "alt=media" in call["query"]:
                names.append(path.rpartition("/")[2])
        return [name for name in names if name.endswith(ARCHIVE)]

    async def fetch(self, record: JobRecord) -> tuple[int, str]:
        """Have the worker fetch the job's bundle again, without cached state."""
        await self.on_worker("rm", "-rf", ".tpuctl/bundles", f"{record.folder}/code")
        program = f"{record.folder}/fetch.py"
        done = await self.worker.run(["python3", "-S", "-I", program, record.folder])
        assert done.stderr == b""
        return done.exit_code, done.stdout.decode()


@pytest.fixture
async def bench(
    make_stack: Callable[..., Tpuctl], tmp_path: Path, events: list[Event], transcript: Path
) -> AsyncIterator[Bench]:
    stack = make_stack()
    await stack.up()
    folder = tmp_path / "source"
    folder.mkdir()
    worker = (await stack.transports())[0]
    yield Bench(stack, worker, folder, events, transcript)
    await worker.close()
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_worker_fetches_missing_archives(bench: Bench) -> None:
    (bench.folder / "job.py").write_text(
        "import os, subprocess\n"
        "print(len(open('data/noise', 'rb').read()), os.readlink('data/link'))\n"
        "print(subprocess.check_output(['./run.sh']).decode())\n"
    )
    (bench.folder / "run.sh").write_text("#!/bin/sh\ncat data/link\n")
    (bench.folder / "run.sh").chmod(0o755)
    (bench.folder / "hello.txt").write_text("안녕")
    (bench.folder / "data").mkdir()
    (bench.folder / "data/noise").write_bytes(random.Random(1).randbytes(20_000_000))
    (bench.folder / "data/link").symlink_to("../hello.txt")
    first = await bench.submit()
    assert await bench.log(first) == "20000000 ../hello.txt\n안녕\n"
    before = await bench.archives()
    assert len(before) == 2, "the small files, and the large one"
    assert sorted(bench.fetched()) == sorted(before)

    (bench.folder / "hello.txt").write_text("다시")
    second = await bench.submit()
    assert await bench.log(second) == "20000000 ../hello.txt\n다시\n"
    after = await bench.archives()
    (new,) = after.keys() - before.keys()
    assert bench.fetched()[2:] == [new]
    assert {name: after[name] for name in before} == before, "the others are the same files"


@pytest.mark.soak
async def test_next_run_repairs_damaged_or_missing_archives(bench: Bench) -> None:
    store = bench.stack.store
    (bench.folder / "job.py").write_text("print(len(open('noise', 'rb').read()))\n")
    (bench.folder / "noise").write_bytes(random.Random(1).randbytes(100_000))
    record = await bench.submit()
    assert await bench.log(record) == "100000\n"
    (archive,) = await bench.archives()
    for name in (BUNDLES + archive, record.bundle_name):
        uri = f"gs://{store.name}/{name}"
        content = await store.get_bytes(name)
        middle = len(content) // 2
        await store.put_bytes(name, content[:middle] + bytes(50) + content[middle + 50 :])
        message = f"{uri} was corrupt and has been deleted: run the job again to upload it again\n"
        assert await bench.fetch(record) == (1, message)
        message = f"{uri} no longer exists: run the job again to upload it again\n"
        assert await bench.fetch(record) == (1, message), "the worker removed it"

        assert await bench.log(await bench.submit()) == "100000\n"
        assert await store.get_bytes(name) == content
        assert await bench.fetch(record) == (0, "")

    # An archive that is damaged only on the machine is fetched again.
    await bench.on_worker(
        "sh", "-c", f"rm -r {record.folder}/code; echo > .tpuctl/bundles/{archive}"
    )
    program = f"{record.folder}/fetch.py"
    await bench.on_worker("python3", "-S", "-I", program, record.folder)
    assert await bench.on_worker("wc", "-c", f"{record.folder}/code/noise") == (
        f"100000 {record.folder}/code/noise\n"
    )


@pytest.mark.soak
async def test_missing_archives_are_sent_over_ssh_without_bucket(bench: Bench) -> None:
    nowhere = Endpoint("local", f"http://127.0.0.1:{DISCARD_PORT}", bench.stack.endpoint.token)
    cloud = Cloud(nowhere, bench.stack.stack.project)
    broken = ObjectStore(cloud.client("storage"), bench.stack.stack.bucket, retry_seconds=0.5)
    (bench.folder / "noise").write_bytes(random.Random(1).randbytes(3_000_000))

    async def run(text: str, has_bucket: bool) -> str:
        """Run a script that prints the word; returns the note about its upload."""
        (bench.folder / "job.py").write_text(f"print({text!r}, len(open('noise', 'rb').read()))\n")
        record = await bench.submit(None if has_bucket else broken)
        assert await bench.log(record, has_bucket=has_bucket) == f"{text} 3000000\n"
        (message,) = (
            event.because
            for event in bench.events
            if isinstance(event, StepFinished) and event.address == "job/upload"
        )
        return message

    assert await run("one", True) == f"3.0 MB to gs://{broken.name}"
    before = await bench.archives()
    output = await run("two", False)
    assert output.endswith(" kB to the workers over SSH"), (
        "the archive that the machine fetched was not sent again"
    )
    assert await run("two", False) == "already on the workers"
    after = await bench.archives()
    assert {name: after[name] for name in before} == before
    assert bench.fetched() == list(before)

    await bench.on_worker("rm", "-r", ".tpuctl/bundles")
    assert await run("two", False) == "3.0 MB to the workers over SSH"
