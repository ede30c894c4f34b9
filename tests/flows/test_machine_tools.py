"""Pythons and uv in the bucket: one machine downloads what is missing, the others unpack it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment_machine import TIMEOUT, UV, Machine, python_build
from tests.support.package_index import PackageIndex, package_index
from tests.support.python_mirror import PythonMirror, portable_interpreter, python_mirror
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.jobs.launch import cache_spec
from tpuctl.jobs.requirements.tool_archives import tool_archive
from tpuctl.model.jobs.installation import Tool
from tpuctl.model.text.names import TOOLS

pytestmark = pytest.mark.long

MINOR = "3.12" if sys.version_info[:2] != (3, 12) else "3.11"
REQUIREMENTS = "small-library\n"
VERSION = "import small_library as s, sys; print(s.__version__, sys.version.split()[0])"


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonMirror]:
    with python_mirror(tmp_path_factory.mktemp("mirror"), [MINOR]) as mirror:
        yield mirror


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    make_wheel(tmp_path / "index", "small-library", "3.0")
    with package_index(tmp_path / "index") as index:
        yield index


class Job:
    """A job on several machines, which share the bucket of a stack."""

    def __init__(self, stack: Tpuctl, variables: dict[str, str], folder: Path) -> None:
        self.stack = stack
        self.variables = variables  # of the machines
        self.folder = folder
        self.install: dict[str, Any] = {}
        self.machines: list[Machine] = []

    def machine(self, name: str) -> Machine:
        """A new machine of the job."""
        (self.folder / name).mkdir()
        machine = Machine(self.folder / name, pip=False)
        del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
        machine.variables |= self.variables
        machine.install = self.install
        self.machines.append(machine)
        machine.spec = {
            "job": "20260101-000000-acorn",
            "attempt": 1,
            "worker": len(self.machines) - 1,
            "bucket": self.stack.store.name,
            "cache": cache_spec("v2"),
            "tools": TOOLS,
        }
        (machine.folder / "code/requirements.txt").write_text(REQUIREMENTS)
        return machine

    def begin(self, machine: Machine) -> subprocess.Popen[bytes]:
        return machine.begin(machine.folder, requirements="requirements.txt", **self.install)

    def finish(self, process: subprocess.Popen[bytes], machine: Machine) -> str:
        """The output of the job's code on a machine."""
        out, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, (out + err + machine.log()).decode()
        return machine.evaluate(Path(machine.result()["virtual_env"]), VERSION)

    def run(self, machine: Machine) -> str:
        return self.finish(self.begin(machine), machine)

    async def objects(self) -> list[str]:
        return [info.name for info in await self.stack.store.list(f"{TOOLS}/")]


@pytest.fixture
async def job(
    stack: Tpuctl, tmp_path: Path, mirror: PythonMirror, index: PackageIndex
) -> AsyncIterator[Job]:
    transport = (await stack.transports())[0]
    lines = (await transport.run(["env"])).check("env").stdout.decode().splitlines()
    await transport.close()
    names = ("GCE_", "https_proxy", "no_proxy", "NO_PROXY", "HTTPS_PROXY", "SSL_CERT")
    variables = dict(line.split("=", 1) for line in lines if line.startswith(names))
    job = Job(stack, {**variables, **mirror.variables, "PIP_INDEX_URL": index.url}, tmp_path)
    job.install["uv"] = await store_uv(job)
    job.install["python"] = python_build(mirror, portable_interpreter(MINOR).version)
    mirror.requests.clear()
    yield job


async def store_uv(job: Job) -> dict[str, Any]:
    """Store uv in the bucket as the computer that submits a job does."""
    async with tool_archive(Tool.model_validate(UV)) as archive:
        name = f"{TOOLS}/{UV['key']}/{archive.sha256}.tar.gz"
        await job.stack.store.put_bytes(name, archive.path.read_bytes())
        return {**UV, "sha256": archive.sha256}


async def store_python(job: Job, mirror: PythonMirror) -> None:
    """The same for Python."""
    build = job.install["python"]
    content = mirror.archive(build["version"]).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    await job.stack.store.put_bytes(f"{TOOLS}/{build['key']}/{digest}.tar.gz", content)
    job.install["python"] = {**build, "sha256": digest}


async def test_one_of_several_machines_downloads(
    job: Job, mirror: PythonMirror, index: PackageIndex
) -> None:
    machines = [job.machine(f"machine-{number}") for number in range(3)]
    processes = [job.begin(machine) for machine in machines]
    version = job.install["python"]["version"]
    for process, machine in zip(processes, machines, strict=True):
        assert job.finish(process, machine) == f"3.0 {version}"
    assert len(mirror.requests) == 1
    assert len(index.downloads) == 1
    logs = [machine.log().decode() for machine in machines]
    stored = f"tpuctl: downloaded Python {version} and stored it in the bucket in "
    assert sum(stored in log for log in logs) == 1
    assert sum(f"tpuctl: unpacked Python {version} from the bucket in " in log for log in logs) == 2
    names = [name for name in await job.objects() if "cpython" in name]
    digest = hashlib.sha256(mirror.archive(version).read_bytes()).hexdigest()
    assert names == [f"{TOOLS}/{job.install['python']['key']}/{digest}.tar.gz"], "and no lock"
    # Only the machine that installed needed uv.
    assert sum((m.home / ".tpuctl/tools" / UV["key"]).exists() for m in machines) == 1


async def test_later_machine_needs_the_bucket_alone(
    job: Job, mirror: PythonMirror, index: PackageIndex
) -> None:
    await store_python(job, mirror)
    first = job.machine("first")
    job.run(first)
    index.status = 500
    later = job.machine("later-machine-with-a-longer-name")
    assert job.run(later) == f"3.0 {job.install['python']['version']}"
    assert mirror.requests == []
    environment = Path(later.result()["virtual_env"])
    tool = later.home / ".tpuctl/tools" / job.install["python"]["key"]
    config = (environment / "pyvenv.cfg").read_text()
    assert f"home = {tool}/python/bin\n" in config
    assert str(first.home) not in config
    assert (environment / "bin/python").resolve().is_relative_to(tool)
    # Nothing of it is on the first machine.
    shutil.rmtree(first.home)
    assert later.evaluate(environment, VERSION)


async def test_corrupt_archive_is_deleted_and_replaced(job: Job, mirror: PythonMirror) -> None:
    await store_python(job, mirror)
    build = job.install["python"]
    name = f"{TOOLS}/{build['key']}/{build['sha256']}.tar.gz"
    await job.stack.store.put_bytes(name, b"corrupt")
    machine = job.machine("machine")
    assert job.run(machine)
    log = machine.log().decode()
    assert f"tpuctl: deleting a corrupt archive: {name}: its checksum is another\n" in log
    content = await job.stack.store.get_bytes(name)
    assert hashlib.sha256(content).hexdigest() == build["sha256"]


async def test_bucket_without_archive_and_mirror_is_one_message(
    job: Job, mirror: PythonMirror, tmp_path: Path
) -> None:
    job.variables["UV_PYTHON_DOWNLOADS_JSON_URL"] = str(tmp_path / "absent.json")
    machine = job.machine("machine")
    done = machine.create(REQUIREMENTS)
    assert done.returncode == 1
    (line,) = done.stdout.decode().splitlines()
    version = job.install["python"]["version"]
    assert line.startswith(f"Python {version} is not in the bucket, and this machine could not")
    assert not [name for name in await job.objects() if "cpython" in name], "no lock is left"


@pytest.mark.parametrize(
    "seconds", [0.4, *(pytest.param(n / 4, marks=pytest.mark.soak) for n in range(16))]
)
async def test_kill_at_any_time_leaves_nothing_half(job: Job, seconds: float) -> None:
    machine = job.machine("machine")
    process = job.begin(machine)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert job.run(machine)
    assert job.run(job.machine("another"))
    names = [name.rpartition("/")[2] for name in await job.objects()]
    assert "lock" not in names
    assert len(names) == 2


async def test_submitted_job_installs_with_uv_of_the_bucket(stack: Tpuctl, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    make_wheel(tmp_path / "job/wheels", "small-library", "3.0")
    script = tmp_path / "job/train.py"
    script.write_text("import small_library")
    assert await stack.run(script) == 0
    transport = (await stack.transports())[0]
    show = "cat .tpuctl/jobs/*/1/log .tpuctl/jobs/*/1/install.log"
    output = (await transport.run(["sh", "-c", show])).check("show").stdout.decode()
    await transport.close()
    assert f"tpuctl: unpacked uv {UV['version']} from the bucket in " in output
    assert "\n + small-library==3.0\n" in output, "uv's message"
