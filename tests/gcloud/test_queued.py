"""Queued resources through the real gcloud, on both tracks."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud
from tests.support.locations import US_ZONE

QUEUED = ("compute", "tpus", "queued-resources")
OPTIONS = ("--accelerator-type=v2-8", "--runtime-version=tpu-ubuntu2204-base")


@pytest.mark.soak
def test_queued_resource_lifecycle(gcloud: Gcloud) -> None:
    gcloud.run(
        *(
            *QUEUED,
            "create",
            "request",
            *OPTIONS,
            "--node-prefix=worker",
            "--node-count=2",
            "--spot",
        ),
        *("--labels=a=1", "--metadata=k=v", "--tags=t", "--valid-until-duration=1h"),
    )
    head, row = gcloud.run(*QUEUED, "list", "--zone=-").stdout.splitlines()
    columns = ["NAME", "ZONE", "NODE_COUNT", "ACCELERATOR_TYPE", "TYPE", "TOPOLOGY", "STATE"]
    assert head.split() == columns
    # TYPE and TOPOLOGY are empty if the type was requested by name.
    assert row.split() == ["request", US_ZONE, "2", "v2-8", "ACTIVE"]
    resource = gcloud.json(*QUEUED, "describe", "request")
    specs = resource["tpu"]["nodeSpec"]
    assert [spec["nodeId"] for spec in specs] == ["worker-0", "worker-1"]
    assert specs[0]["node"]["labels"] == {"a": "1"}
    assert (resource["spot"], resource["state"]["state"]) == ({}, "ACTIVE")
    assert [*resource["queueingPolicy"]] == ["validUntilTime"]  # Google's sample has the duration
    assert gcloud.json(*QUEUED, "reset", "request")["done"] is True
    gcloud.run(*QUEUED, "delete", "request", "--force")


@pytest.mark.soak
def test_alpha_queued_resources(gcloud: Gcloud) -> None:
    alpha = ("alpha", *QUEUED)
    zone = "--zone=us-east5-b"
    gcloud.run(
        *(*alpha, "create", "flexible", "--node-id=n", "--accelerator-type=v6e-1", zone),
        *("--runtime-version=v2-alpha-tpuv6e", "--provisioning-model=flex-start"),
        "--max-run-duration=1h",
    )
    resource = gcloud.json(*alpha, "describe", "flexible", zone)
    assert resource["provisioningModel"] == "FLEX_START"
    assert resource["runDuration"]["maxRunDuration"] == "3600s"
    assert resource["runDuration"]["terminationTime"]
    assert gcloud.json(*alpha, "reset", "flexible", zone)["done"] is True
    assert [each["state"]["state"] for each in gcloud.json(*alpha, "list", zone)] == ["ACTIVE"]
    failed = gcloud.run(*alpha, "delete", "flexible", zone, check=False)
    assert "delete is not supported while in state ACTIVE" in failed.stderr
    gcloud.run(*alpha, "delete", "flexible", "--force", zone)
    assert gcloud.json(*alpha, "list", "--zone=-") == []
    assert gcloud.json("compute", "tpus", "tpu-vm", "list", "--zone=-") == []
    assert gcloud.json("alpha", "compute", "tpus", "reservations", "list") == []
