"""TPU VMs through the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud
from tests.support.locations import US_ZONE

TPUS = ("compute", "tpus", "tpu-vm")
VERSION = "--version=tpu-ubuntu2204-base"
POD_ZONE = "us-central1-a"


def rows(table: str) -> list[list[str]]:
    """The cells below a table's header."""
    return [line.split() for line in table.splitlines()[1:]]


@pytest.mark.soak
def test_tpu_vm_lifecycle(gcloud: Gcloud) -> None:
    result = gcloud.run(
        *(*TPUS, "create", "bert", "--accelerator-type=v2-8", VERSION),
        *("--description=first", "--labels=a=1,b=2", "--metadata=k=v", "--tags=x,y"),
    )
    assert "Created tpu [bert]." in result.stderr
    pod = ("--accelerator-type=v2-32", VERSION, f"--zone={POD_ZONE}", "--internal-ips", "--spot")
    gcloud.run(*TPUS, "create", "pod", *pod)

    gcloud.run(
        *(*TPUS, "update", "bert", "--description=second", "--update-labels=c=3"),
        *("--remove-labels=a", "--add-tags=z", "--remove-tags=x", "--update-metadata=m=n"),
        "--internal-ips",
    )
    node = gcloud.json(*TPUS, "describe", "bert")
    assert node["name"] == f"projects/{gcloud.project}/locations/{US_ZONE}/nodes/bert"
    assert (node["state"], node["health"]) == ("READY", "HEALTHY")
    assert node["description"] == "second"
    assert node["labels"] == {"b": "2", "c": "3"}
    assert sorted(node["tags"]) == ["y", "z"]
    assert node["metadata"] == {"k": "v", "m": "n"}
    assert not node["networkConfig"].get("enableExternalIps")
    assert "accessConfig" not in node["networkEndpoints"][0]

    gcloud.run(*TPUS, "stop", "bert")
    listed = rows(gcloud.run(*TPUS, "list", "--zone=-").stdout)
    # NAME, ZONE, ACCELERATOR_TYPE, TYPE, TOPOLOGY, NETWORK; then RANGE; then STATUS
    assert [row[:6] for row in listed] == [
        ["pod", POD_ZONE, "v2-32", "V2", "4x4", "default"],
        ["bert", US_ZONE, "v2-8", "V2", "2x2", "default"],
    ]
    assert [row[7] for row in listed] == ["READY", "STOPPED"]
    deleted = gcloud.run(*TPUS, "delete", "bert")
    assert "Deleted tpu [bert]." in deleted.stderr


@pytest.mark.soak
def test_tpu_vm_types_and_versions(gcloud: Gcloud) -> None:
    versions = gcloud.run(*TPUS, "versions", "list").stdout.split()
    assert versions[0] == "RUNTIME_VERSION"
    assert "tpu-ubuntu2204-base" in versions
    version = gcloud.json(*TPUS, "versions", "describe", "tpu-ubuntu2204-base")
    assert version["version"] == "tpu-ubuntu2204-base"
    types = gcloud.run(*TPUS, "accelerator-types", "list").stdout.split()
    assert types[0] == "ACCELERATOR_TYPE"
    assert {"v2-8", "v3-8"} <= set(types)
    described = gcloud.json(*TPUS, "accelerator-types", "describe", "v2-8")
    assert described["acceleratorConfigs"] == [{"topology": "2x2", "type": "V2"}]
    identity = gcloud.json(*TPUS, "service-identity", "create")["identity"]["email"]
    assert identity.endswith("@gcp-sa-tpu.iam.gserviceaccount.com")
    topologies = rows(gcloud.run("compute", "tpus", "topologies", "list").stdout)
    assert ["2x2", "V2", "v2-8"] in topologies
    zones = rows(gcloud.run("compute", "tpus", "locations", "list").stdout)
    assert [US_ZONE, f"projects/{gcloud.project}/locations/{US_ZONE}"] in zones
    place = gcloud.json("compute", "tpus", "locations", "describe", US_ZONE)
    assert place["labels"] == {"cloud.googleapis.com/region": "us-central1"}


@pytest.mark.soak
def test_alpha_tpu_vms(gcloud: Gcloud) -> None:
    alpha = ("alpha", *TPUS)
    gcloud.run(*alpha, "create", "bert", "--accelerator-type=v2-8", VERSION)
    gcloud.run(*alpha, "update", "bert", "--update-labels=a=1", "--clear-metadata")
    event = gcloud.json(*alpha, "simulate-maintenance-event", "bert")
    assert event["metadata"]["verb"] == "simulateMaintenanceEvent"
    assert event["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2alpha1.Node"
    gcloud.run("compute", "disks", "create", "data", "--size=10GB")
    gcloud.run(*alpha, "attach-disk", "bert", "--disk=data", "--mode=read-only")
    source = f"projects/{gcloud.project}/zones/{US_ZONE}/disks/data"
    node = gcloud.json(*alpha, "describe", "bert")
    assert node["labels"] == {"a": "1"}
    assert node["dataDisks"] == [{"mode": "READ_ONLY", "sourceDisk": source}]
    gcloud.run(*alpha, "detach-disk", "bert", f"--disk={source}")
    assert "dataDisks" not in gcloud.json(*alpha, "describe", "bert")
    gcloud.run(*alpha, "stop", "bert")
    failed = gcloud.run(*alpha, "ssh", "bert", "--command=true", check=False)
    assert 'This TPU has state "STOPPED"' in failed.stderr
    gcloud.run(*alpha, "start", "bert")
    gcloud.run(*alpha, "delete", "bert")
    assert gcloud.json(*alpha, "list") == []


@pytest.mark.soak
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TPUS, "create", "b", "--accelerator-type=v2-9", VERSION), '"v2-9", could not be found'),
        ((*TPUS, "create", "b", "--accelerator-type=v2-8", "--version=TF_1"), '"TF_1" was not'),
        ((*TPUS, "create", "B", "--accelerator-type=v2-8", VERSION), 'node id "B" is invalid'),
        ((*TPUS, "stop", "absent"), "NOT_FOUND"),
        ((*TPUS, "describe", "absent"), "NOT_FOUND"),
        ((*TPUS, "accelerator-types", "describe", "v9-8"), "NOT_FOUND"),
    ],
)
def test_errors_are_shown(gcloud: Gcloud, arguments: tuple[str, ...], message: str) -> None:
    failed = gcloud.run(*arguments, check=False)
    assert failed.returncode == 1
    assert message in failed.stderr
