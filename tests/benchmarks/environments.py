"""Environments of jobs on one and on sixteen machines: what uv and pip take, and what they load."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import Figure, goal, local_cloud, sized, stack_in
from tests.support.environment_machine import Machine
from tests.support.package_index import PackageIndex, package_index
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.jobs.launch import cache_spec
from tpuctl.model.text.names import TOOLS

# About the size of JAX with what it requires.
PACKAGES, MODULES, FUNCTIONS, LIBRARY_BYTES = 12, 120, 40, 100_000_000
WORKERS = 16
INSTALLERS = ("pip", "uv")


@dataclass
class Site:
    """The index and the bucket that the machines of a measurement share."""

    folder: Path
    index: PackageIndex
    variables: dict[str, str]
    bucket: str

    def machine(self, installer: str, number: int, *, has_bucket: bool) -> Machine:
        """A new machine; its environment is of its own unless it uses the bucket."""
        home = self.folder / f"{installer}-{has_bucket}-{number}"
        home.mkdir()
        machine = Machine(home)
        del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
        machine.variables |= {**self.variables, "PIP_INDEX_URL": self.index.url}
        if installer == "uv":
            machine.has_uv()
        machine.spec = {
            "job": f"20260101-000000-{installer}",
            "attempt": 1,
            "worker": number,
            "bucket": self.bucket,
            "cache": cache_spec("bench") if has_bucket else None,
            "tools": TOOLS,
        }
        # A comment of its own, so that the bucket has an environment of each installer.
        requirements = "\n".join([f"# {installer}", *package_names(), ""])
        (machine.folder / "code/requirements.txt").write_text(requirements)
        return machine


def environments() -> Iterator[Figure]:
    """Cold, in the bucket, and warm; pip first."""
    workers = sized(WORKERS, 2)
    with local_cloud("instant") as folder:
        make_packages(folder / "index")
        size = sum(path.stat().st_size for path in (folder / "index").iterdir())
        stack = stack_in(folder)
        asyncio.run(stack.up())
        variables = asyncio.run(machine_variables(stack))
        with package_index(folder / "index") as index:
            site = Site(folder, index, variables, stack.store.name)
            yield from one_worker(site)
            yield from many_workers(site, workers, size)


def one_worker(site: Site) -> Iterator[Figure]:
    cold, warm = {}, {}
    for installer in INSTALLERS:
        machine = site.machine(installer, 0, has_bucket=False)
        cold[installer] = create([machine])
        warm[installer] = min(create([machine]) for _ in range(sized(5, 1)))
        shutil.rmtree(machine.home)
    ratio = cold["uv"] / cold["pip"]
    yield Figure(
        "cold, one worker, uv",
        f"{cold['uv']:.1f} s",
        f"{ratio:.2f} × pip's {cold['pip']:.1f} s",
        goal("0.5 × pip", is_met=ratio <= 0.5),
    )
    yield Figure(
        "warm, one worker, uv",
        f"{warm['uv']:.2f} s",
        f"{warm['uv'] / warm['pip']:.2f} × pip's {warm['pip']:.2f} s",
        goal("1 s", is_met=warm["uv"] <= 1),
    )


def many_workers(site: Site, workers: int, size: int) -> Iterator[Figure]:
    cold, warm, later, loaded = {}, {}, {}, {}
    for installer in INSTALLERS:
        site.index.downloads.clear()
        machines = [site.machine(installer, n, has_bucket=True) for n in range(workers)]
        cold[installer] = create(machines)
        files = (site.index.folder / name for name in site.index.downloads)
        loaded[installer] = sum(file.stat().st_size for file in files) / size
        warm[installer] = min(create(machines) for _ in range(sized(3, 1)))
        new = site.machine(installer, workers, has_bucket=True)
        later[installer] = create([new])
        for machine in [*machines, new]:
            shutil.rmtree(machine.home)
    ratio = cold["uv"] / cold["pip"]
    yield Figure(
        f"cold, {workers} workers of which one installs, uv",
        f"{cold['uv']:.1f} s",
        f"{ratio:.2f} × pip's {cold['pip']:.1f} s",
    )
    yield Figure(
        "… bytes from the index, uv",
        f"{loaded['uv']:.2f} × the packages",
        f"pip {loaded['pip']:.2f} ×",
        goal("once", is_met=loaded["uv"] <= 1),
    )
    each = warm["uv"] / workers
    yield Figure(
        f"warm, {workers} workers at once, each, uv",
        f"{each:.2f} s",
        f"{warm['uv'] / warm['pip']:.2f} × pip's",
        goal("1 s", is_met=each <= 1),
    )
    yield Figure(
        "a later machine, from the bucket",
        f"{later['uv']:.1f} s",
        f"{later['uv'] / cold['uv']:.2f} × cold with {workers} workers",
    )


def create(machines: list[Machine]) -> float:
    """Create the environments of all machines at once; the seconds until the last one is there."""
    started = time.perf_counter()
    processes = [
        machine.begin(machine.folder, requirements="requirements.txt", **machine.install)
        for machine in machines
    ]
    for machine, process in zip(machines, processes, strict=True):
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError((errors + machine.log()).decode())
    return time.perf_counter() - started


async def machine_variables(stack: Tpuctl) -> dict[str, str]:
    """By which machines of the local cloud reach its bucket."""
    transport = (await stack.transports())[0]
    lines = (await transport.run(["env"])).check("env").stdout.decode().splitlines()
    await transport.close()
    names = ("GCE_", "https_proxy", "no_proxy", "NO_PROXY", "HTTPS_PROXY", "SSL_CERT")
    return dict(line.split("=", 1) for line in lines if line.startswith(names))


def package_names() -> list[str]:
    return [f"package-{number}" for number in range(sized(PACKAGES, 2))]


def make_packages(folder: Path) -> None:
    """Wheels with many modules, and one with a large library."""
    source = random.Random(7)
    for name in package_names():
        wheel = make_wheel(folder, name, "1.0")
        module = name.replace("-", "_")
        with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
            for number in range(sized(MODULES, 2)):
                values = (source.random() for _ in range(FUNCTIONS))
                functions = (f"def f(a, b={value}):\n    return a * b\n" for value in values)
                archive.writestr(f"{module}/m{number}.py", "\n".join(functions))
    with zipfile.ZipFile(folder / "package_0-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("package_0/library.so", os.urandom(sized(LIBRARY_BYTES, 1000)))
