"""Ray's cluster launcher: `ray up`, `exec`, `rsync-up` and `down` with its Google Cloud provider.

Machines have no Ray: the commands start other programs there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE
from tests.support.required_programs import require_programs

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

CLUSTER = """
cluster_name: {kind}
max_workers: 0
provider: {{type: gcp, region: us-central1, availability_zone: {zone}, project_id: {project}}}
auth: {{ssh_user: ray}}
head_node_type: head
available_node_types:
  head:
    resources: {{CPU: 2}}
    node_config: {node}
file_mounts: {{~/shipped: {shipped}}}
initialization_commands: ["sudo -n true"]
setup_commands: ["cat ~/shipped > ~/set-up"]
head_setup_commands: []
head_start_ray_commands: ["echo started >> ~/set-up"]
worker_start_ray_commands: []
"""
NODES = {
    "tpu": "{acceleratorType: v2-8, runtimeVersion: tpu-ubuntu2204-base}",
    "cpu": "{machineType: e2-small, disks: [{boot: true, autoDelete: true, initializeParams: "
    "{diskSizeGb: '20', sourceImage: projects/ubuntu-os-cloud/global/images/family/"
    "ubuntu-2204-lts}}]}",
}


@pytest.mark.parametrize("kind", ["tpu", "cpu"])
def test_ray_cluster_of_one_node(
    shell: Any, google: Any, programs: Callable[[str], Path], kind: str
) -> None:
    require_programs("rsync")  # Ray copies files with it
    shipped = shell.write("shipped", "shipped\n")
    values = {"kind": kind, "zone": US_ZONE, "project": shell.project, "shipped": shipped}
    config = shell.write("cluster.yaml", CLUSTER.format(**values, node=NODES[kind]))

    def ray(command: str, *arguments: str | Path) -> str:
        done = shell.run(programs("ray") / "ray", command, *arguments, RAY_USAGE_STATS_ENABLED="0")
        text: str = done.stdout
        return text

    ray("up", "--yes", "--no-config-cache", config)
    if kind == "tpu":
        [node] = google.nodes()
        assert node.accelerator_type == "v2-8"
    else:  # this Ray command finds no TPU head node: it queries only Compute Engine
        [instance] = google.instances()
        address = instance.network_interfaces[0].access_configs[0].nat_i_p
        assert address in ray("get-head-ip", config)
    out = ray("exec", config, "cat ~/set-up; whoami")
    assert out.split()[-3:] == ["shipped", "started", "ray"]
    ray("rsync-up", config, shipped, "~/again")
    assert "shipped" in ray("exec", config, "cat ~/again")
    ray("down", "--yes", config)
    assert google.remains() == []
