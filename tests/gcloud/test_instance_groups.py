"""Slices as managed instance groups, by the commands that Google documents.

docs.cloud.google.com/compute/docs/tpus, create-tpu-mig-multi-host-slice and
quickstart-create-tpu-multi-host-slice
"""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

MANAGED = ("compute", "instance-groups", "managed")

pytestmark = pytest.mark.long


@pytest.mark.soak
def test_slice_commands(gcloud: Gcloud) -> None:
    gcloud.run(
        *("compute", "resource-policies", "create", "workload-policy", "slice"),
        *("--type=HIGH_THROUGHPUT", "--accelerator-topology=4x4", "--region=us-central1"),
    )
    gcloud.run(
        *("compute", "instance-templates", "create", "bert"),
        *("--machine-type=n1-standard-1", "--maintenance-policy=TERMINATE"),
        *("--image-project=ubuntu-os-cloud", "--image-family=ubuntu-2204-lts"),
        *("--provisioning-model=SPOT", "--instance-termination-action=DELETE"),
        *("--scopes=cloud-platform", "--boot-disk-size=100GB"),
    )
    policy = gcloud.json(
        *("compute", "resource-policies", "describe", "slice", "--region=us-central1")
    )
    assert policy["workloadPolicy"] == {"acceleratorTopology": "4x4", "type": "HIGH_THROUGHPUT"}
    gcloud.run(
        *(*MANAGED, "create", "bert", "--size=4", "--template=bert"),
        f"--workload-policy=projects/{gcloud.project}/regions/us-central1/resourcePolicies/slice",
    )
    gcloud.run(*MANAGED, "wait-until", "bert", "--stable")
    instances = gcloud.json(*MANAGED, "list-instances", "bert")
    assert [(each["currentAction"], each["instanceStatus"]) for each in instances] == [
        ("NONE", "RUNNING")
    ] * 4
    (group,) = gcloud.json(*MANAGED, "list")
    assert (group["name"], group["size"], group["targetSize"]) == ("bert", "4", 4)
    gcloud.run(*MANAGED, "delete", "bert")
    assert gcloud.json("compute", "instances", "list") == []
    gcloud.run("compute", "instance-templates", "delete", "bert")
    gcloud.run(*("compute", "resource-policies", "delete", "slice", "--region=us-central1"))
