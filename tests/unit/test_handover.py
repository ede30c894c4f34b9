"""The stack file for a controller describes the same stack with all choices resolved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stacks import stack_from
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import RemoteFailed
from tpuctl.flows.machines.handover import install_result, stack_file
from tpuctl.model.stack.stack import Stack
from tpuctl.remote.transport import Result
from tpuctl.resources.composition import resources_of
from tpuctl.resources.machines.instance_metadata import metadata_of

KEYS = "ann:ssh-ed25519 AAAA ann\nben:ssh-ed25519 BBBB ben"
STACKS = {
    "plain": "tpu: {type: v3-8}\ncontroller: {}",
    "everything": """
tpu:
  type: v2-32
  zones: [europe-west4-a, us-central1-a]
  capacity: spot
  queue: {valid_until: 6h}
  service_account: theirs@my-project.iam.gserviceaccount.com
  metadata: {mine: yes-it-is}
  startup_script: begin.sh
labels: {team: korean}
controller: {machine_type: n2-standard-2, disk_gb: 60, image: debian-12}
bucket: {name: ours-alone, location: EU, allow_egress: true, keep: false}
network: {ssh: internal, allow: ["tcp:6006"], allow_from: [203.0.113.0/24], tags: [mine]}
access: {user: cara}
limits: {max_hours: 20, max_cost: 100, idle: null}
job:
  requirements: pyproject.toml
  env: {A: "1", B: "two words"}
  secrets: {C: env, D: secret:d}
  retries: {preemption: 4, infrastructure: 0, failure: 1, requested: 2}
""",
    "shared": """
names: {prefix: corp-}
tpu: {type: v3-8}
controller: {}
network: {name: projects/net-host/global/networks/corp, subnetwork: tpus}
""",
    "disks": "tpu: {type: v3-8, data_disks: [{size_gb: 20}, {name: mine}]}\ncontroller: {}",
    "node": "tpu: {type: v3-8, kind: node, runtime: 2.12.0, capacity: preemptible}",
}


def loaded(folder: Path, text: str) -> Stack:
    folder.mkdir()
    (folder / "begin.sh").write_text("true\n", "utf-8")
    return stack_from(folder, text)


def handed(stack: Stack, folder: Path) -> Stack:
    file = stack_file(stack, "default", KEYS, "10.240.7.0/29" if stack.is_node else "")
    folder.mkdir()
    if "startup_script" in file["tpu"]:
        script = stack.file.tpu.startup_script
        assert script is not None
        there = folder / file["tpu"]["startup_script"]
        there.write_bytes((stack.folder / script).read_bytes())
    return stack_from(folder, json.dumps(file, indent=1))


@pytest.mark.parametrize("name", STACKS)
def test_controller_stack_file_describes_same_stack(tmp_path: Path, name: str) -> None:
    text = f"stack: one\nproject: {{id: my-project, create: true}}\n{STACKS[name]}\n"
    stack = loaded(tmp_path / "here", text)
    here = stack.in_zone(stack.zones[-1])  # the zone where it came up
    there = handed(here, tmp_path / "there")
    same = ("names", "accelerator", "runtime", "zone", "bucket", "bucket_location", "user")
    for field in same:
        assert getattr(there, field) == getattr(here, field), field
    assert there.zones == (here.zone,)
    assert there.controller == here.controller
    assert there.file.job == here.file.job
    assert there.file.limits == here.file.limits
    assert there.file.labels == here.file.labels
    assert there.subnetwork_path == here.subnetwork_path
    assert there.service_account == here.service_account
    assert not there.file.project.create

    def addresses(stack: Stack) -> set[str]:
        cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project")
        return {each.address for each in resources_of(stack, cloud)}

    network = "network/default"
    assert addresses(there) - {network} == addresses(here) - {"network/main"}


def test_controller_stack_file_keeps_ssh_keys(tmp_path: Path) -> None:
    text = f"stack: one\nproject: {{id: my-project}}\n{STACKS['everything']}\n"
    here = loaded(tmp_path / "here", text)
    there = handed(here, tmp_path / "there")
    own_key = "cara:ssh-ed25519 CCCC cara"
    metadata = metadata_of(there, own_key)
    assert metadata["ssh-keys"].splitlines() == [*KEYS.splitlines(), own_key]
    before = metadata_of(here, own_key)
    assert {**metadata, "ssh-keys": ""} == {**before, "ssh-keys": ""}


def test_node_range_is_kept_unless_configured(tmp_path: Path) -> None:
    text = f"stack: one\nproject: {{id: my-project}}\n{STACKS['node']}\n"
    here = loaded(tmp_path / "here", text)
    assert handed(here, tmp_path / "there").file.network.node_range == "10.240.7.0/29"
    network = here.file.network.model_copy(update={"node_range": "service-networking"})
    with_network = replace(here, file=here.file.model_copy(update={"network": network}))
    there = handed(with_network, tmp_path / "named")
    assert there.file.network.node_range == "service-networking"


@pytest.mark.parametrize(
    ("code", "output", "detail", "hint"),
    [
        (4, "no Python from python3.11 on here", "no Python from python3.11", "image: ubuntu-2404"),
        (1, "Collecting a\nERROR: No matching distribution", "No matching", "package index"),
    ],
)
def test_installation_failure_on_controller_is_reported(
    tmp_path: Path, code: int, output: str, detail: str, hint: str
) -> None:
    stack = loaded(
        tmp_path / "here", f"stack: one\nproject: {{id: my-project}}\n{STACKS['plain']}\n"
    )
    with pytest.raises(RemoteFailed) as caught:
        install_result(Result(code, b"", output.encode()), stack)
    (diagnostic,) = caught.value.diagnostics
    assert detail in diagnostic.detail
    assert hint in diagnostic.hint
