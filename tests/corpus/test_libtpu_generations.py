"""What the compilers in libtpu's wheels on PyPI know: generations by release, and slices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.locked_environment import locked_python
from tests.support.subprocesses import run_captured
from tpuctl.catalog import FIRST_LIBTPU, accelerator_types
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.preflight.compile.batch_search import memory_limit
from tpuctl.preflight.compile.compilation import CompileRequest, settings_of

PACKAGES = Path(__file__).resolve().parents[2] / "requirements" / "jax.lock"
TOPOLOGIES = {
    "v2": "v2:2x2",
    "v3": "v3:2x2",
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
# The last release without a generation and the first with it; in between, none was published.
RELEASES = {"0.0.1": {"v6e", "tpu7x"}, "0.0.2": {"tpu7x"}, "0.0.24": {"tpu7x"}, "0.0.27": set()}
PROGRAM = """
import sys
from jax.experimental import topologies

for name in sys.argv[1:]:
    try:
        topologies.get_topology_desc(platform="tpu", topology_name=name)
    except Exception as error:
        assert "Invalid TPU external name" in str(error), error
        print(name)
"""


# The release that JAX 0.10.2 requires.
CURRENT = "0.0.42.1"
# Prints the devices and the hosts of slices, and one device's memory as the compiler reports it.
SLICES = """
import json, sys
import jax
from jax.experimental import topologies

number = jax.ShapeDtypeStruct((1 << 34,), "float32")
for line in sys.stdin:
    devices = topologies.get_topology_desc(platform="tpu", **json.loads(line)).devices
    hosts = {(getattr(each, "slice_index", 0), each.process_index) for each in devices}
    place = jax.sharding.SingleDeviceSharding(devices[0])
    adding = jax.jit(lambda a, b: a + b, in_shardings=place)
    message = ""
    if len(devices) <= 8:
        try:
            adding.lower(number, number).compile()
        except Exception as error:
            message = str(error)
    print(json.dumps([len(devices), len(hosts), message]))
"""


@contextmanager
def compiler(folder: Path, release: str) -> Iterator[dict[str, str]]:
    """The environment of JAX with the compiler of a release."""
    download = (
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_31_x86_64"),
        *("--platform=manylinux_2_27_x86_64", "--no-input", "--quiet", f"--dest={folder}"),
        f"libtpu=={release}",
    )
    cache = {"PIP_CACHE_DIR": str(ImageStore().downloads)}
    subprocess.run(download, check=True, env={**os.environ, **cache})
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("libtpu/libtpu.so", folder)
    wheel.unlink()
    try:
        yield {
            **os.environ,
            "TPU_LIBRARY_PATH": library,
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    finally:
        Path(library).unlink()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", RELEASES)
def test_compiler_refuses_generations_that_are_newer(tmp_path: Path, release: str) -> None:
    with compiler(tmp_path, release) as environment:
        done = run_captured(
            [locked_python(PACKAGES), "-c", PROGRAM, *TOPOLOGIES.values()], env=environment
        )
    assert done.returncode == 0, done.stderr[-2000:]
    refused = {each for each, name in TOPOLOGIES.items() if name in done.stdout.split()}
    assert refused == RELEASES[release]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_compiler_has_the_devices_hosts_and_memory_of_all_types(tmp_path: Path) -> None:
    types = [each for each in accelerator_types().values() if each.topology]
    assert {each.generation for each in types} == FIRST_LIBTPU.keys()
    cases = [(each, slices) for each in types for slices in (1, 2) if slices * each.chips <= 8192]
    requests = []
    for accelerator, slices in cases:
        request = CompileRequest(
            *("train.py", accelerator.name, accelerator.generation, accelerator.devices, None),
            is_jax=True,
            topology=accelerator.topology,
            hosts=accelerator.workers,
            slices=slices,
        )
        settings = settings_of(request, tmp_path, tmp_path, tmp_path, "vm")
        requests.append(json.dumps(settings["compile"]["topology"]))
    with compiler(tmp_path, CURRENT) as environment:
        done = run_captured(
            [locked_python(PACKAGES), "-c", SLICES], input="\n".join(requests), env=environment
        )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for (accelerator, slices), (devices, hosts, message) in zip(cases, answers, strict=True):
        assert devices == slices * accelerator.devices, accelerator.name
        assert hosts == slices * accelerator.workers, accelerator.name
        if message:
            available = memory_limit(message)
            gigabytes = accelerator.hbm_gb_per_chip * accelerator.chips / accelerator.devices
            # A part is reserved; of v5p, the compiler has slightly more than was published.
            assert available is not None
            assert 0.93 <= available / (1 << 30) / gigabytes <= 1.01, accelerator.name


def test_rule_knows_what_compilers_refuse() -> None:
    for release, refused in RELEASES.items():
        numbers = _numbers(release)
        assert refused == {
            generation for generation, first in FIRST_LIBTPU.items() if numbers < _numbers(first)
        }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
