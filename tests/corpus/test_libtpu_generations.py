"""The first libtpu that knows a generation of TPUs, by the compilers in the wheels on PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.locked_environment import locked_python
from tpuctl.catalog import FIRST_LIBTPU
from tpuctl.emulator.machines.images import ImageStore

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


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", RELEASES)
def test_compiler_refuses_generations_that_are_newer(tmp_path: Path, release: str) -> None:
    download = (
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_31_x86_64"),
        *("--platform=manylinux_2_27_x86_64", "--no-input", "--quiet", f"--dest={tmp_path}"),
        f"libtpu=={release}",
    )
    cache = {"PIP_CACHE_DIR": str(ImageStore().downloads)}
    subprocess.run(download, check=True, env={**os.environ, **cache})
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("libtpu/libtpu.so", tmp_path)
    environment = {
        "TPU_LIBRARY_PATH": library,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    done = subprocess.run(
        [locked_python(PACKAGES), "-c", PROGRAM, *TOPOLOGIES.values()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    wheel.unlink()
    Path(library).unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    refused = {each for each, name in TOPOLOGIES.items() if name in done.stdout.split()}
    assert refused == RELEASES[release]


def test_rule_knows_what_compilers_refuse() -> None:
    for release, refused in RELEASES.items():
        numbers = _numbers(release)
        assert refused == {
            generation for generation, first in FIRST_LIBTPU.items() if numbers < _numbers(first)
        }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
