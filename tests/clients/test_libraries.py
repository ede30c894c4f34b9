"""Libraries other than Google's clients."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import succeed
from tests.support.machine_specs import worker_spec
from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.machines.interface import Endpoint
from tpuctl.emulator.machines.network.addresses import Addresses
from tpuctl.local_cloud import server_process
from tpuctl.local_cloud.shell_env import environment_for

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(1800)]

V4_ZONE = "us-central2-b"


@pytest.fixture(scope="module")
def python(programs: Callable[[str], Path]) -> str:
    """An environment with only those libraries."""
    return str(programs("libraries") / "python")


@pytest.fixture(scope="module")
def shell(
    cloud: server_process.LocalCloud, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The variables of a shell configured for a local cloud."""
    around = {"PATH": os.environ["PATH"], "HOME": str(tmp_path_factory.mktemp("me"))}
    changes = environment_for(cloud, around)
    return around | {name: value for name, value in changes.items() if value is not None}


def run_program(python: str, program: str, variables: dict[str, str], *arguments: str) -> list[str]:
    done = succeed([python, "-c", program, *arguments], env=variables, timeout=120)
    return done.stdout.splitlines()


GCSFS = """
import sys
import fsspec, gcsfs
bucket = sys.argv[1]
files = gcsfs.GCSFileSystem()
files.mkdir(bucket)
with fsspec.open(f"gs://{bucket}/folder/one", "w") as file:
    file.write("text")
files.pipe(f"{bucket}/folder/large", b"x" * 6_000_000)  # in several requests
print(files.ls(f"{bucket}/folder"), files.cat(f"{bucket}/folder/one"))
print(files.info(f"{bucket}/folder/large")["size"])
for content in (b"\\r", b"line\\r", b"line\\r\\n", b"--\\r\\n--", b""):
    files.pipe(f"{bucket}/folder/ending", content)
    assert files.cat(f"{bucket}/folder/ending") == content, content
files.mv(f"{bucket}/folder/one", f"{bucket}/two")
files.rm(f"{bucket}/folder", recursive=True)
print(files.find(bucket))
"""


@pytest.mark.parametrize("where", ["shell", "machine"])
def test_gcsfs(python: str, shell: dict[str, str], where: str) -> None:
    """On a machine no variable names the local cloud: gcsfs is configured to use the proxy."""
    variables = dict(shell)
    if where == "machine":
        del variables["STORAGE_EMULATOR_HOST"]
        variables["FSSPEC_GS"] = json.dumps({"session_kwargs": {"trust_env": True}})
    bucket = f"gcsfs-on-{where}"
    assert run_program(python, GCSFS, variables, bucket) == [
        f"['{bucket}/folder/large', '{bucket}/folder/one'] b'text'",
        "6000000",
        f"['{bucket}/two']",
    ]


TENSORSTORE = """
import gcsfs, tensorstore
gcsfs.GCSFileSystem().mkdir("tensorstore-bucket")
spec = {"driver": "zarr3", "kvstore": "gs://tensorstore-bucket/array/"}
array = tensorstore.open(spec, create=True, dtype="int32", shape=[100, 100]).result()
array[...] = 7
print(int(tensorstore.open(spec).result()[5, 5].read().result()))
"""


def test_tensorstore(python: str, shell: dict[str, str]) -> None:
    assert run_program(python, TENSORSTORE, shell) == ["7"]


HTTPLIB2 = """
import google.auth, google_auth_httplib2
credentials, project = google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])
http = google_auth_httplib2.AuthorizedHttp(credentials)
url = f"https://cloudresourcemanager.googleapis.com/v3/projects/{project}"
print(http.request(url)[0].status)
"""


def test_httplib2_with_google_api_client(python: str, shell: dict[str, str]) -> None:
    """It supports proxies if PySocks is installed."""
    assert run_program(python, HTTPLIB2, shell) == ["200"]


# JAX looks for libtpu and TPU chips, which are faked.
JAX = """
import os
from jax._src.clusters import cloud_tpu_cluster
cloud_tpu_cluster.running_in_cloud_tpu_vm = True
os.environ.pop("TPU_SKIP_MDS_QUERY", None)
cluster = cloud_tpu_cluster.GceTpuCluster
print(cluster.is_env_present(), cluster.get_process_count(), cluster.get_process_id())
print(cluster._get_worker_list_in_slice())
print(cloud_tpu_cluster.get_tpu_env_value("ACCELERATOR_TYPE"))
"""


async def test_jax_finds_its_slice(python: str, tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "cloud", api_address=("127.0.0.1", 9), ssh="high")
    await host.start()
    try:
        names = [f"projects/lab/locations/{V4_ZONE}/nodes/bert/workers/{n}" for n in range(4)]
        endpoints: tuple[Endpoint, ...] = tuple(await host.reserve(names))
        spec = worker_spec(
            *endpoints,
            worker=2,
            zone=V4_ZONE,
            accelerator_type="v4-32",
            service_account="",
            access_token="",
        )
        await host.boot(spec, lambda _: None)
        reserved = Addresses(tmp_path / "cloud" / "addresses.json", ssh="high").reserve([spec.name])
        root = f"{spec.endpoint.address}:{reserved[0].metadata_port}"
        variables = {"PATH": os.environ["PATH"], "GCE_METADATA_IP": root}
        out = await asyncio.to_thread(run_program, python, JAX, variables)
        addresses = [endpoint.address for endpoint in endpoints]
        assert out == ["True 4 2", repr(addresses), "v4-32"]
    finally:
        await host.close()
