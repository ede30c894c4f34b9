"""Slices as managed instance groups, by the commands that Google documents.

docs.cloud.google.com/compute/docs/tpus, create-tpu-mig-multi-host-slice and
quickstart-create-tpu-multi-host-slice
"""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

MANAGED = ("compute", "instance-groups", "managed")

pytestmark = pytest.mark.long


def create_parts(gcloud: Gcloud, topology: str) -> str:
    """Create a workload policy and a template, both named "bert"; the policy's URL."""
    gcloud.run(
        *("compute", "resource-policies", "create", "workload-policy", "bert"),
        *("--type=HIGH_THROUGHPUT", f"--accelerator-topology={topology}", "--region=us-central1"),
    )
    gcloud.run(
        *("compute", "instance-templates", "create", "bert"),
        *("--machine-type=ct6e-standard-4t", "--maintenance-policy=TERMINATE"),
        "--image-project=ubuntu-os-accelerator-images",
        "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        *("--provisioning-model=SPOT", "--instance-termination-action=DELETE"),
        *("--scopes=cloud-platform", "--boot-disk-size=100GB"),
    )
    return f"projects/{gcloud.project}/regions/us-central1/resourcePolicies/bert"


@pytest.mark.soak
def test_slice_commands(gcloud: Gcloud) -> None:
    policy_url = create_parts(gcloud, topology="4x4")
    policy = gcloud.json(
        *("compute", "resource-policies", "describe", "bert", "--region=us-central1")
    )
    assert policy["workloadPolicy"] == {"acceleratorTopology": "4x4", "type": "HIGH_THROUGHPUT"}
    gcloud.run(
        *(*MANAGED, "create", "bert", "--size=4", "--template=bert"),
        *("--default-action-on-vm-failure=do-nothing", f"--workload-policy={policy_url}"),
    )
    gcloud.run(*MANAGED, "wait-until", "bert", "--stable")
    instances = gcloud.json(*MANAGED, "list-instances", "bert")
    assert [(each["currentAction"], each["instanceStatus"]) for each in instances] == [
        ("NONE", "RUNNING")
    ] * 4
    (group,) = gcloud.json(*MANAGED, "list")
    assert (group["name"], group["size"], group["targetSize"]) == ("bert", "4", 4)
    assert group["status"]["appliedAcceleratorTopologies"] == [
        {"acceleratorTopology": "4x4", "state": "ACTIVE"}
    ]
    assert gcloud.json(*MANAGED, "list-errors", "bert") == []
    (view,) = gcloud.json("compute", "instance-groups", "list")
    assert view["isManaged"] == "Yes"
    names = [each["name"] for each in instances]
    gcloud.run(*MANAGED, "recreate-instances", "bert", f"--instances={','.join(names)}")
    gcloud.run(*MANAGED, "wait-until", "bert", "--stable")
    in_use = gcloud.run("compute", "instance-templates", "delete", "bert", check=False)
    assert "already being used by" in in_use.stderr
    gcloud.run(*MANAGED, "delete", "bert")
    assert gcloud.json("compute", "instances", "list") == []
    gcloud.run("compute", "instance-templates", "delete", "bert")
    gcloud.run("compute", "resource-policies", "delete", "bert", "--region=us-central1")


@pytest.mark.soak
def test_flex_start_slice_commands(gcloud: Gcloud) -> None:
    """As in a public report of 2026-07: a regional template, and a group that grows from zero."""
    policy_url = create_parts(gcloud, topology="4x4")
    gcloud.run(
        *("beta", "compute", "instance-templates", "create", "flex"),
        *("--instance-template-region=us-central1", "--machine-type=ct6e-standard-4t"),
        *("--provisioning-model=FLEX_START", "--max-run-duration=7d"),
        *("--instance-termination-action=DELETE", "--maintenance-policy=TERMINATE"),
        "--image-project=ubuntu-os-accelerator-images",
        "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        *("--boot-disk-size=200GB", "--no-address"),
    )
    template = f"projects/{gcloud.project}/regions/us-central1/instanceTemplates/flex"
    group = (
        *("create", "flex", "--size=0", f"--template={template}"),
        *("--default-action-on-vm-failure=do-nothing", f"--workload-policy={policy_url}"),
    )
    rejected = gcloud.run(*MANAGED, *group, check=False)
    assert "MIGs with TPU accelerator topology require BULK mode" in rejected.stderr
    gcloud.run("alpha", *MANAGED, *group, "--target-size-policy-mode=bulk")
    gcloud.run(*MANAGED, "resize", "flex", "--size=4")
    gcloud.run(*MANAGED, "wait-until", "flex", "--stable")
    rejected = gcloud.run(
        *(*MANAGED, "resize-requests", "create", "flex", "--resize-request=more"),
        *("--resize-by=4", "--requested-run-duration=1h"),
        check=False,
    )
    assert "with TPU is not allowed" in rejected.stderr
    gcloud.run(*MANAGED, "resize", "flex", "--size=0")
    gcloud.run(*MANAGED, "wait-until", "flex", "--stable")
    assert gcloud.json("compute", "instances", "list") == []


@pytest.mark.soak
def test_resize_request_commands(gcloud: Gcloud) -> None:
    gcloud.run("compute", "instance-templates", "create", "plain", "--machine-type=n1-standard-1")
    gcloud.run(*MANAGED, "create", "plain", "--size=0", "--template=plain")
    requests = (*MANAGED, "resize-requests")
    gcloud.run(
        *(*requests, "create", "plain", "--resize-request=more", "--resize-by=2"),
        "--requested-run-duration=1h",
    )
    gcloud.run(*MANAGED, "wait-until", "plain", "--stable")
    (request,) = gcloud.json(*requests, "list", "plain")
    assert (request["name"], request["state"]) == ("more", "SUCCEEDED")
    gcloud.run(*requests, "delete", "plain", "--resize-requests=more")
    instances = gcloud.json(*MANAGED, "list-instances", "plain")
    assert len(instances) == 2
    gcloud.run(*MANAGED, "delete-instances", "plain", f"--instances={instances[0]['name']}")
    gcloud.run(*MANAGED, "update", "plain", "--default-action-on-vm-failure=do-nothing")
    gcloud.run(*MANAGED, "delete", "plain")


@pytest.mark.soak
def test_machines_of_slice_know_each_other(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    policy_url = create_parts(gcloud, topology="2x4")
    gcloud.run(
        *(*MANAGED, "create", "bert", "--size=2", "--template=bert"),
        f"--workload-policy={policy_url}",
    )
    gcloud.run(*MANAGED, "wait-until", "bert", "--stable")
    names = [each["name"] for each in gcloud.json(*MANAGED, "list-instances", "bert")]
    attributes = "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
    command = (
        f"for key in worker-id worker-network-endpoints tpu-env; do "
        f"curl -s -H 'Metadata-Flavor: Google' {attributes}/$key; echo; done; "
        f"getent hosts {names[0]} | grep -c ."
    )
    output = gcloud.run("compute", "ssh", names[1], f"--command={command}").stdout
    lines = output.splitlines()
    assert {"1", ",".join(names), "TOPOLOGY: '2x4'", "TPU_WORKER_ID: '1'"} <= set(lines)
    assert lines[-1] == "1"
    gcloud.run(*MANAGED, "delete", "bert")
