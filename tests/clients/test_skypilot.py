"""SkyPilot: launch, exec, failover and down, of a TPU VM and of a CPU VM.

It downloads three things that are not in its package. The catalog is provided here, in its cache
folder. The installer of uv (astral.sh) and a Python 3.10 are for the machines: if they cannot
download them, `launch` creates the machines and logs in to them, and `exec` is skipped.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE
from tests.support.required_programs import require_programs
from tpuctl.local_cloud import remote_control

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

FULL = "us-central1-a"
PORT = 46580  # of its server: sky/server/constants.py
CATALOG = {
    "vms.csv": """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
e2-standard-2,2.0,8.0,,,,us-central1,us-central1-a,0.067,0.02
e2-standard-2,2.0,8.0,,,,us-central1,us-central1-b,0.067,0.02
n1-highmem-8,8.0,52.0,,,,us-central1,us-central1-b,0.4732,0.0996
,,,tpu-v2-8,1.0,,us-central1,us-central1-b,4.5,1.35
""",
    "images.csv": """\
Tag,Region,OS,OSVersion,ImageId,CreationDate
skypilot:custom-cpu-ubuntu-2204,,ubuntu,22.04,IMAGE,20260915
""",
    "accelerator_quota_mapping.csv": """\
Accelerator,Region,OnDemandInstanceCode,SpotInstanceCode
""",
}
IMAGES = "projects/ubuntu-os-cloud/global/images"
TASKS = {
    "cpu": "{infra: gcp/us-central1, instance_type: e2-standard-2}",
    "tpu": "{infra: gcp/us-central1, accelerators: tpu-v2-8, "
    "accelerator_args: {tpu_vm: true, runtime_version: tpu-ubuntu2204-base}}",
}
Sky = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sky(shell: Any, programs: Callable[[str], Path]) -> Iterator[Sky]:
    """The program, in a home folder with gcloud's configuration and the catalog."""
    require_programs("gcloud", "rsync", "ssh")
    with contextlib.closing(socket.socket()) as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.fail(f"something listens on port {PORT}, where SkyPilot's server has to")
    # It reads only ~/.config/gcloud and ignores CLOUDSDK_CONFIG.
    (shell.home / ".config").mkdir()
    (shell.home / ".config" / "gcloud").symlink_to(shell.variables["CLOUDSDK_CONFIG"])
    image = shell.run(
        *("gcloud", "compute", "images", "describe-from-family", "ubuntu-2204-lts"),
        *("--project=ubuntu-os-cloud", "--format=value(name)"),
    )
    for name, text in CATALOG.items():
        filled = text.replace("IMAGE", f"{IMAGES}/{image.stdout.strip()}")
        shell.write(f".sky/catalogs/v8/gcp/{name}", filled)

    def run(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = shell.run(
            *(programs("skypilot") / "sky", *arguments),
            check=check,
            seconds=900,
            PATH=f"{programs('skypilot')}:{shell.variables['PATH']}",
            SKYPILOT_DISABLE_USAGE_COLLECTION="1",
        )
        return done

    yield run
    run("api", "stop", check=False)


def launch(sky: Sky, shell: Any, kind: str) -> bool:
    """Whether everything worked; False if machines could not download its runtime."""
    task = shell.write(f"{kind}.yaml", f"resources: {TASKS[kind]}\nrun: echo ran on a {kind}\n")
    done = sky("launch", "--yes", "--cluster", kind, task, check=False)
    if done.returncode == 0:
        assert f"ran on a {kind}" in done.stdout
        return True
    assert re.search(r"local/bin/uv.*No such file", done.stderr), done.stdout + done.stderr
    return False


@pytest.mark.malformed  # numbers instead of int64 strings
def test_launch_failover_exec_and_down(sky: Sky, shell: Any, google: Any) -> None:
    assert "GCP: enabled" in sky("check", "gcp").stdout
    stockout = remote_control.add_fault(google.cloud, "stockout", zone=FULL)
    is_ready = launch(sky, shell, "cpu")
    assert remote_control.fault(google.cloud, stockout["id"])["applied"] == 1
    assert google.instances(FULL) == []
    [instance] = google.instances(US_ZONE)
    assert (instance.status, instance.labels["skypilot-head-node"]) == ("RUNNING", "1")
    if is_ready:
        assert "again on" in sky("exec", "cpu", "echo again on $(hostname)").stdout
    sky("down", "--yes", "cpu")
    assert google.instances(US_ZONE) == []

    is_ready = launch(sky, shell, "tpu")
    [node] = google.nodes(US_ZONE)
    assert (node.accelerator_type, node.state.name) == ("v2-8", "READY")
    if is_ready:
        assert "again on" in sky("exec", "tpu", "echo again on $(hostname)").stdout
    sky("down", "--yes", "tpu")
    assert "No existing clusters" in sky("status").stdout
    assert google.remains(FULL, US_ZONE) == []
