"""A TPU node and its controller created by one command of the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud
from tests.support.locations import US_ZONE

GROUPS = ("compute", "tpus", "execution-groups")
OPTIONS = ("--name=pair", "--accelerator-type=v2-8")
VERSION = "--tf-version=2.12.0"


@pytest.mark.soak
def test_execution_group_node(gcloud: Gcloud) -> None:
    result = gcloud.run(*GROUPS, "create", *OPTIONS, VERSION, "--tpu-only", "--preemptible")
    head, row = gcloud.run("compute", "tpus", "list", "--zone=-").stdout.splitlines()
    assert head.split() == ["NAME", "ZONE", "ACCELERATOR_TYPE", "NETWORK", "RANGE", "STATUS"]
    cells = row.split()
    assert [*cells[:4], cells[5]] == ["pair", US_ZONE, "v2-8", "default", "READY"]
    node = gcloud.json("compute", "tpus", "describe", "pair")
    assert node["tensorflowVersion"] == "2.12.0"
    assert node["schedulingConfig"] == {"preemptible": True}
    assert node["networkEndpoints"] == [{"ipAddress": node["ipAddress"], "port": 8470}]
    agent = node["serviceAccount"]
    assert f"Added Storage and Logging permissions to TPU Service Account:{agent}" in result.stderr
    bindings = gcloud.json("projects", "get-iam-policy", gcloud.project)["bindings"]
    roles = {each["role"] for each in bindings if f"serviceAccount:{agent}" in each["members"]}
    assert {"roles/logging.logWriter", "roles/storage.admin"} <= roles
    deleted = gcloud.run("compute", "tpus", "delete", "pair")
    assert "Deleted tpu [pair]." in deleted.stderr


@pytest.mark.soak
def test_newest_version_must_be_explicit(gcloud: Gcloud) -> None:
    """gcloud omits the patch version, like ctpu, whose 2.4 Google rejected: tensorflow/tpu#877."""
    failed = gcloud.run(*GROUPS, "create", *OPTIONS, "--tpu-only", check=False)
    assert 'The field "TensorflowVersion" cannot be "2.12".' in failed.stderr


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.0")
def test_execution_group_lifecycle(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    gcloud.make_key()  # otherwise ssh-keygen's randomart is part of the output
    # gcloud ends with a shell on the controller.
    result = gcloud.run(
        *GROUPS, "create", *OPTIONS, VERSION, stdin="hostname\nexit 3\n", check=False, seconds=900
    )
    assert (result.returncode, result.stdout) == (3, "pair\n"), result.stderr
    listing = (*GROUPS, "list")
    assert gcloud.run(*listing).stdout.split() == ["NAME", "STATUS", "pair", "Running"]
    for track in ((), ("alpha",)):
        output = gcloud.run(*track, *GROUPS, "describe", "pair").stdout
        assert "TPU TF Version:                      2.12.0" in output
    again = gcloud.run(*GROUPS, "create", *OPTIONS, VERSION)
    assert "TPU Node with name:pair already exists, try a different name" in again.stderr
    gcloud.run("beta", *GROUPS, "suspend", "pair")
    assert gcloud.run(*listing).stdout.split() == ["NAME", "STATUS", "pair", "Paused"]
    gcloud.run("beta", *GROUPS, "resume", "pair", "--accelerator-type=v2-8", VERSION)
    assert gcloud.run(*listing).stdout.split() == ["NAME", "STATUS", "pair", "Running"]
    [machine] = gcloud.json("beta", "compute", "instances", "list")
    assert (machine["name"], machine["status"]) == ("pair", "RUNNING")
    gcloud.run(*GROUPS, "delete", "pair")
    assert gcloud.json(*listing) == []
