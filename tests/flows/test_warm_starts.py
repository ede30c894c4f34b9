"""Warm starts: what a worker installed or compiled is in the bucket for others and for later."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.polling import async_until
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.submission import Submission, bind_to_nodes
from tpuctl.jobs.shipped.downloads.bucket_cache import CachedObject
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.text.names import CACHE
from tpuctl.remote.transport import Transport

pytestmark = pytest.mark.long

MakeStack = Callable[..., Tpuctl]
ENVIRONMENTS = f"{CACHE}/environments/"
COMPILED = f"{CACHE}/compiled/v2/tpu-ubuntu2204-base/jax/"
# The program of the package must run in the environment of its own machine.
PRINT_VERSION = """
import subprocess, sys, small_library
print(small_library.__version__, small_library.__cached__.startswith(sys.prefix))
print(subprocess.check_output(["say-version"]).decode().strip())
"""
PRINTED = ["3.0 True", "version 3.0"]
INSTALLED = "tpuctl: installed the wheels in wheels (1 package, stored in the bucket)"
UNPACKED = "tpuctl: unpacked the wheels in wheels from the bucket (1 package)"


class Machines:
    """The workers of a stack, and the jobs that run on them."""

    def __init__(self, stack: Tpuctl, transports: Mapping[int, Transport]) -> None:
        self.stack = stack
        self.transports = transports
        self.folder = stack.stack_file.parent / "project"
        self.folder.mkdir()

    def add_wheel(self) -> None:
        make_wheel(
            self.folder / "wheels",
            "small-library",
            "3.0",
            text="def say(): print('version', __version__)\n",
            programs=["say-version = small_library:say"],
        )

    async def run(
        self,
        script: str = PRINT_VERSION,
        *,
        env: Mapping[str, str] | None = None,
        exit_code: int = 0,
    ) -> JobRecord:
        (self.folder / "job.py").write_text(script)
        stack = self.stack.stack
        submission = Submission.of(stack, self.folder / "job.py", cloud="local")
        nodes = [await self.stack.node()]
        submission = await bind_to_nodes(submission, stack, self.stack.cloud, nodes)
        submission = replace(submission, env={**submission.env, **(env or {})})
        record = await submit(submission, self.stack.store, self.transports, lambda _: None)
        assert await self.stack.follow(record) == exit_code
        return record

    async def logs(self, record: JobRecord) -> dict[int, list[str]]:
        """The lines of each worker's log, without durations."""
        logs = {}
        for worker in record.workers:
            log = (await self.stack.store.get_bytes(record.log_name(worker))).decode()
            logs[worker] = [re.sub(r" in [\d.]+ s$", "", line) for line in log.splitlines()]
        return logs

    async def log(self, record: JobRecord) -> list[str]:
        (log,) = (await self.logs(record)).values()
        return log

    async def on_workers(self, *argv: str) -> list[str]:
        results = [await transport.run(argv) for transport in self.transports.values()]
        return [result.check("test").stdout.decode() for result in results]

    async def pip_runs(self, record: JobRecord) -> int:
        """On how many workers pip installed something for this job."""
        path = f"{record.folder}/install.log"
        outputs = await self.on_workers("sh", "-c", f"cat {path} 2>/dev/null || :")
        return sum("Successfully installed" in output for output in outputs)

    async def clear(self) -> None:
        """Remove what later jobs would find, as on new machines."""
        await self.on_workers("rm", "-rf", ".tpuctl/envs", ".tpuctl/compiled")

    async def programs(self, count: int) -> list[str]:
        """The compiled programs in the bucket, once there are so many."""

        async def enough() -> list[str]:
            names = await self.objects(COMPILED)
            return names if len(names) >= count else []

        return list(await async_until(enough, f"{count} programs"))

    async def objects(self, prefix: str) -> list[str]:
        return [info.name for info in await self.stack.store.list(prefix)]


MakeMachines = Callable[..., Awaitable[Machines]]


@pytest.fixture
async def make_machines(make_stack: MakeStack) -> AsyncIterator[MakeMachines]:
    running = []

    async def make(*, has_wheel: bool = False, **options: str) -> Machines:
        stack = make_stack(**options)
        await stack.up()
        machines = Machines(stack, await stack.transports())
        running.append(machines)
        if has_wheel:
            machines.add_wheel()
        return machines

    yield make
    for machines in running:
        for transport in machines.transports.values():
            await transport.close()
        await machines.stack.down(delete_bucket=True)


# Environments -------------------------------------------------------------------------------


async def test_one_of_four_workers_installs(make_machines: MakeMachines) -> None:
    machines = await make_machines(has_wheel=True, type_name="v3-32", zone="europe-west4-a")
    record = await machines.run()
    assert await machines.pip_runs(record) == 1
    logs = await machines.logs(record)
    lines = Counter(line for log in logs.values() for line in log)
    assert (lines[INSTALLED], lines[UNPACKED]) == (1, 3)
    assert [lines[line] for line in PRINTED] == [4, 4]
    (archive,) = await machines.objects(ENVIRONMENTS)  # and no lock
    assert archive.endswith(".tar.gz")


@pytest.mark.soak
async def test_new_machine_unpacks_what_another_installed(make_machines: MakeMachines) -> None:
    machines = await make_machines(has_wheel=True)
    secret = "open-sesame"
    sources = {"PIP_EXTRA_INDEX_URL": f"http://user:{secret}@127.0.0.1:9/simple"}
    first = await machines.run(env=sources)
    assert INSTALLED in await machines.log(first)
    await machines.clear()
    # A new password for the same index changes nothing.
    second = await machines.run(env={"PIP_EXTRA_INDEX_URL": "http://me:x@127.0.0.1:9/simple"})
    assert await machines.pip_runs(second) == 0
    assert (await machines.log(second))[1:] == [UNPACKED, *PRINTED]
    # Another index may have other packages.
    await machines.clear()
    third = await machines.run(env={"PIP_EXTRA_INDEX_URL": "http://127.0.0.2:9/simple"})
    assert await machines.pip_runs(third) == 1
    for record in (first, second, third):
        assert secret not in str(await machines.log(record))
    archives = await machines.objects(ENVIRONMENTS)
    assert len(archives) == 2
    for name in archives:
        assert secret not in name
        assert secret.encode() not in await machines.stack.store.get_bytes(name)


async def test_truncated_archive_is_replaced(make_machines: MakeMachines) -> None:
    machines = await make_machines(has_wheel=True)
    await machines.run()
    (name,) = await machines.objects(ENVIRONMENTS)
    content = await machines.stack.store.get_bytes(name)
    await machines.stack.store.put_bytes(name, content[: len(content) // 2])
    await machines.clear()
    record = await machines.run()
    assert (await machines.log(record))[1:] == [
        f"tpuctl: deleting a corrupt archive: {name}",
        INSTALLED,
        *PRINTED,
    ]
    await machines.clear()
    assert UNPACKED in await machines.log(await machines.run())


@pytest.mark.soak
async def test_lock_of_lost_worker_is_taken_over(make_machines: MakeMachines) -> None:
    machines = await make_machines(has_wheel=True)
    record = await machines.run()
    (archive,) = await machines.objects(ENVIRONMENTS)
    lock = archive.rpartition("/")[0] + "/lock"
    await machines.stack.store.delete(archive)
    holder = {"worker": "worker 7 of job lost", "machine": "lost"}
    await machines.stack.store.put_bytes(lock, json.dumps(holder).encode())
    await machines.clear()
    await machines.on_workers(
        *("sed", "-i", 's/"environments"/"lease_seconds": 0.5, &/', f"{record.folder}/spec.json")
    )
    program = f"{record.folder}/environment.py create {record.folder}"
    await machines.on_workers("sh", "-c", f"python3 -S -I {program} $(command -v python3)")
    (log,) = await machines.on_workers("cat", f"{record.folder}/log")
    assert "tpuctl: waiting for worker 7 of job lost, which installs the packages\n" in log
    (archive,) = await machines.objects(ENVIRONMENTS)
    assert archive.endswith(".tar.gz")
    # A job that was stopped while it installed left the machine's own lock.
    await machines.stack.store.delete(archive)
    (machine,) = await machines.on_workers("cat", ".tpuctl/machine_id")
    holder = {"worker": "worker 0 of job stopped", "machine": machine}
    await machines.stack.store.put_bytes(lock, json.dumps(holder).encode())
    await machines.clear()
    assert (await machines.log(await machines.run()))[1:] == [INSTALLED, *PRINTED]


async def test_lock_of_earlier_attempt_is_taken_at_once(make_machines: MakeMachines) -> None:
    """Its machine is gone, or its processes were stopped; another job's may be installing."""
    machines = await make_machines(has_wheel=True)
    record = await machines.run()
    (archive,) = await machines.objects(ENVIRONMENTS)
    await machines.stack.store.delete(archive)
    holder = {"worker": "worker 0", "machine": "gone", "job": record.id, "attempt": 1}
    lock = archive.rpartition("/")[0] + "/lock"
    await machines.stack.store.put_bytes(lock, json.dumps(holder).encode())
    await machines.clear()
    spec = f"{record.folder}/spec.json"
    await machines.on_workers("sed", "-i", 's/"attempt": 1/"attempt": 2/', spec)
    program = f"{record.folder}/environment.py create {record.folder}"
    await machines.on_workers("sh", "-c", f"python3 -S -I {program} $(command -v python3)")
    (log,) = await machines.on_workers("cat", f"{record.folder}/log")
    assert "waiting for" not in log
    (archive,) = await machines.objects(ENVIRONMENTS)
    assert archive.endswith(".tar.gz")


@pytest.mark.soak
async def test_oldest_objects_are_pruned(make_machines: MakeMachines) -> None:
    machines = await make_machines()
    store = machines.stack.store
    record = await machines.run("print('has sent the programs')")
    for name in ("a", "b/c", "d"):
        await store.put_bytes(f"{ENVIRONMENTS}{name}", b"1234")
    code = (
        "import bucket_cache, storage; "
        f"bucket = storage.Bucket({store.name!r}); bucket_cache.prune(bucket, {CACHE!r}, 8)"
    )
    path = f"PYTHONPATH={record.folder}"
    await machines.on_workers("env", path, "python3", "-c", code)
    assert await machines.objects(ENVIRONMENTS) == [f"{ENVIRONMENTS}b/c", f"{ENVIRONMENTS}d"]


@pytest.mark.parametrize(("days", "is_too_old"), [(29, False), (31, True)])
def test_objects_are_used_for_thirty_days(days: int, is_too_old: bool) -> None:
    created = (datetime.now(UTC) - timedelta(days=days)).isoformat().replace("+00:00", "Z")
    item = {"name": "a", "size": "1", "generation": "1", "timeCreated": created}
    assert CachedObject(item).is_too_old == is_too_old


# Compiled programs --------------------------------------------------------------------------

# As JAX does: a program is written once, if it is not there.
COMPILE = """
import os, pathlib
folder = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
for name in "jit_step-1-cache", "jit_loss-2-cache":
    if (folder / name).exists():
        print("read", name, (folder / name).read_text())
    else:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("compiled by " + os.environ["TPUCTL_JOB"])
"""


async def test_new_machine_has_programs_compiled_before(make_machines: MakeMachines) -> None:
    machines = await make_machines()
    first = await machines.run(COMPILE)
    names = ["jit_loss-2-cache", "jit_step-1-cache"]
    assert await machines.programs(2) == [COMPILED + name for name in names]
    await machines.clear()
    second = await machines.run(COMPILE)
    bucket = machines.stack.stack.bucket
    assert await machines.log(second) == [
        f"tpuctl: downloaded 2 compiled programs from gs://{bucket}/{COMPILED.rstrip('/')}",
        f"read jit_step-1-cache compiled by {first.id}",
        f"read jit_loss-2-cache compiled by {first.id}",
    ]


async def test_incomplete_program_is_not_kept(make_machines: MakeMachines) -> None:
    machines = await make_machines()
    first = await machines.run(COMPILE)
    await machines.programs(2)
    name = ".tpuctl/compiled/v2/tpu-ubuntu2204-base/jax/jit_{}-cache"
    await machines.on_workers("truncate", "-s", "3", name.format("step-1"))
    await machines.on_workers("touch", name.format("other-3"))
    log = await machines.log(await machines.run(COMPILE))
    assert f"read jit_step-1-cache compiled by {first.id}" in log
    assert len(await machines.objects(COMPILED)) == 2
    # A process that is killed may be writing a program.
    killed = COMPILE.replace("jit_", "jit_killed_") + "os.kill(os.getpid(), 9)"
    await machines.run(killed, exit_code=137)
    assert len(await machines.objects(COMPILED)) == 2


@pytest.mark.soak
async def test_cache_of_user_is_respected(make_machines: MakeMachines) -> None:
    machines = await make_machines()
    script = "import os; print(os.environ['JAX_COMPILATION_CACHE_DIR'])"
    record = await machines.run(script, env={"JAX_COMPILATION_CACHE_DIR": "gs://mine/cache"})
    assert (await machines.log(record))[-1] == "gs://mine/cache"


async def test_nothing_is_kept_without_cache(make_machines: MakeMachines) -> None:
    machines = await make_machines(has_wheel=True, extra="job: {cache: false}\n")
    script = PRINT_VERSION + "import os; print(os.environ.get('JAX_COMPILATION_CACHE_DIR'))"
    record = await machines.run(script)
    assert await machines.log(record) == [
        "tpuctl: installing the wheels in wheels",
        "tpuctl: installed the wheels in wheels",
        *PRINTED,
        "None",
    ]
    assert await machines.objects(CACHE) == []
