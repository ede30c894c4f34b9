"""gcloud sees the resources that tpuctl creates, and tpuctl those that gcloud creates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gcloud import Gcloud
from tests.support.locations import US_ZONE
from tests.support.projects import Project
from tpuctl.local_cloud.server_process import LocalCloud


@pytest.fixture
def project(
    null_cloud: LocalCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """A project on gcloud's local cloud, for tpuctl's commands."""
    return Project.spoken_to(null_cloud, tmp_path, monkeypatch)


async def test_gcloud_shows_stack_as_in_its_file(
    project: Project, null_cloud: LocalCloud, tmp_path: Path
) -> None:
    bench = project.stack(
        "kind: vm",
        "controller: {machine_type: n1-standard-2, disk_gb: 60}",
        name="seen",
        type_name="v2-8",
        zones=US_ZONE,
    )
    await bench.provision()
    names = bench.stack.stack.names
    gcloud = Gcloud(null_cloud, tmp_path / "gcloud", project=project.id)

    node = gcloud.json("compute", "tpus", "tpu-vm", "describe", names.node)
    assert node["acceleratorType"] == "v2-8"
    assert node["state"] == "READY"
    assert node["labels"]["tpuctl-stack"] == "seen"
    account = node["serviceAccount"]["email"]

    [bucket] = gcloud.json("storage", "buckets", "list")
    assert bucket["name"] == bench.stack.stack.bucket
    assert bucket["location"] == "US-CENTRAL1"
    assert bucket["labels"]["tpuctl-stack"] == "seen"

    [machine] = gcloud.json("compute", "instances", "list", "--filter=labels.tpuctl-stack=seen")
    assert machine["name"] == names.controller
    assert machine["machineType"].endswith("/zones/us-central1-b/machineTypes/n1-standard-2")
    assert machine["disks"][0]["diskSizeGb"] == "60"

    rules = gcloud.json("compute", "firewall-rules", "list", "--filter=name~^seen")
    allowing = [rule for rule in rules if "allowed" in rule]
    assert [sorted(allowed["ports"]) for rule in allowing for allowed in rule["allowed"]] == [
        ["22"]
    ]
    assert all("0.0.0.0/0" not in rule["sourceRanges"] for rule in allowing)
    (deny_rule,) = [rule for rule in rules if "denied" in rule]
    assert deny_rule["denied"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert int(deny_rule["priority"]) > int(allowing[0]["priority"])

    policy = gcloud.json("projects", "get-iam-policy", project.id)
    roles = {
        binding["role"]
        for binding in policy["bindings"]
        if f"serviceAccount:{account}" in binding["members"]
    }
    assert roles, "the machines' account has no roles"
    assert "roles/owner" not in roles
    assert "roles/editor" not in roles


@pytest.mark.soak
async def test_orphans_finds_labeled_resources_created_by_gcloud(
    project: Project, null_cloud: LocalCloud, tmp_path: Path
) -> None:
    bench = project.stack(name="tidy", type_name="v2-8", zones=US_ZONE)
    await bench.provision()
    gcloud = Gcloud(null_cloud, tmp_path / "gcloud", project=project.id)
    label = "--labels=tpuctl-stack=stray"
    options = ("--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base", label)
    gcloud.run("compute", "tpus", "tpu-vm", "create", "stray-node", *options)
    gcloud.run("compute", "instances", "create", "stray-machine", label)
    gcloud.run("compute", "disks", "create", "stray-disk", "--size=10", "--type=pd-ssd", label)

    stacks = bench.answer("orphans", "--project", project.id)["data"]["stacks"]
    [stray] = [stack for stack in stacks if stack["stack"] == "stray"]
    # The boot disk has no label, and is deleted with its instance.
    resources = {
        (row["kind"], row["zone"], row["name"], row["state"]) for row in stray["resources"]
    }
    assert resources == {
        ("node", US_ZONE, "stray-node", "READY"),
        ("controller", US_ZONE, "stray-machine", "RUNNING"),
        ("disk", US_ZONE, "stray-disk", "READY"),
    }
