"""TPU nodes (API v1) through the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud
from tests.support.locations import US_ZONE

TPUS = ("compute", "tpus")
OPTIONS = ("--accelerator-type=v2-8", "--version=2.12.0", "--network=default")


@pytest.mark.soak  # `make test` runs test_execution_groups.py
def test_tpu_node_lifecycle(gcloud: Gcloud) -> None:
    gcloud.run(*TPUS, "create", "node", *OPTIONS, "--range=10.9.0.0/29", "--preemptible")
    head, row = gcloud.run(*TPUS, "list", "--zone=-").stdout.splitlines()
    assert head.split() == ["NAME", "ZONE", "ACCELERATOR_TYPE", "NETWORK", "RANGE", "STATUS"]
    assert row.split() == ["node", US_ZONE, "v2-8", "default", "10.9.0.0/29", "READY"]
    node = gcloud.json(*TPUS, "describe", "node")
    assert node["tensorflowVersion"] == "2.12.0"
    assert node["schedulingConfig"] == {"preemptible": True}
    assert node["networkEndpoints"] == [{"ipAddress": node["ipAddress"], "port": 8470}]
    assert node["serviceAccount"].endswith("@cloud-tpu.iam.gserviceaccount.com")
    gcloud.run(*TPUS, "delete", "node")
    assert gcloud.json(*TPUS, "list") == []


@pytest.mark.soak
def test_other_tpu_node_commands(gcloud: Gcloud) -> None:
    gcloud.run(*TPUS, "create", "node", *OPTIONS, "--description=one")
    assert gcloud.json(*TPUS, "tpu-vm", "list") == []  # it is not a TPU VM
    other = gcloud.run(*TPUS, "tpu-vm", "describe", "node", check=False)
    assert 'use "gcloud compute tpus describe"' in other.stderr
    assert gcloud.json(*TPUS, "stop", "node")["response"]["state"] == "STOPPED"
    assert gcloud.json(*TPUS, "start", "node")["response"]["state"] == "READY"
    changed = gcloud.json(*TPUS, "reimage", "node", "--version=2.11.0")
    assert changed["response"]["tensorflowVersion"] == "2.11.0"
    for track in ("alpha", "beta"):
        [node] = gcloud.json(track, *TPUS, "list")
        assert (node["description"], node["state"]) == ("one", "READY")
    failed = gcloud.run(*TPUS, "create", "node", *OPTIONS, check=False)
    assert "already exists" in failed.stderr
    gcloud.run("beta", *TPUS, "delete", "node")


@pytest.mark.soak
def test_tpu_node_types_and_versions(gcloud: Gcloud) -> None:
    versions = gcloud.run(*TPUS, "versions", "list").stdout.split()
    assert versions[0] == "TENSORFLOW_VERSION"
    assert "2.12.0" in versions
    assert gcloud.json(*TPUS, "versions", "describe", "2.12.0")["version"] == "2.12.0"
    types = gcloud.run(*TPUS, "accelerator-types", "list").stdout.split()
    assert types == ["ACCELERATOR_TYPE", "v2-8", "v3-8"]
    assert gcloud.json(*TPUS, "accelerator-types", "describe", "v3-8")["type"] == "v3-8"
