"""Instances and their resources through the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

INSTANCES = ("compute", "instances")
SMALL = ("--machine-type=n1-standard-1", "--image-family=debian-12", "--image-project=debian-cloud")
METADATA = ("compute", "project-info", "add-metadata")

pytestmark = pytest.mark.long


@pytest.mark.soak
def test_several_instances_in_one_command(gcloud: Gcloud) -> None:
    label = "--labels=team=nlp"
    instances = gcloud.json(*INSTANCES, "create", "one", "two", *SMALL, label, "--metadata=a=b")
    assert sorted(instance["name"] for instance in instances) == ["one", "two"]
    gcloud.run(*INSTANCES, "stop", "one")
    table = gcloud.run(*INSTANCES, "list", "--filter=labels.team=nlp").stdout
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [("one", "TERMINATED"), ("two", "RUNNING")]
    gcloud.run(*INSTANCES, "delete", "one", "two")
    assert gcloud.json("compute", "disks", "list") == []


@pytest.mark.soak
def test_ssh_and_serial_port(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    script = "--metadata=startup-script=echo the machine is up"
    gcloud.run(*INSTANCES, "create", "box", *SMALL, script)
    done = gcloud.run("compute", "ssh", "box", "--command=hostname; exit 7", check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.endswith("\nbox\n")  # after the output of ssh-keygen
    output = gcloud.run(*INSTANCES, "get-serial-port-output", "box").stdout
    assert "the machine is up" in output


@pytest.mark.soak
def test_instance_commands(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    gcloud.run(*INSTANCES, "create", "box", *SMALL, "--tags=web", "--labels=a=b")
    box = ("box",)
    gcloud.run(*INSTANCES, "add-metadata", *box, "--metadata=k=v,gone=1")
    gcloud.run(*INSTANCES, "remove-metadata", *box, "--keys=gone")
    gcloud.run(*INSTANCES, "add-labels", *box, "--labels=c=d")
    gcloud.run(*INSTANCES, "add-tags", *box, "--tags=more")
    gcloud.run(*INSTANCES, "set-scheduling", *box, "--no-restart-on-failure")
    running = gcloud.run(*INSTANCES, "set-machine-type", *box, "--machine-type=n1-standard-2",
                         check=False)  # fmt: skip
    assert "must be stopped" in running.stderr
    gcloud.run("compute", "ssh", *box, "--command=touch mark")
    gcloud.run(*INSTANCES, "reset", *box)
    gcloud.run("compute", "ssh", *box, "--command=ls mark")
    (gcloud.folder / "sent").write_text("what is sent")
    gcloud.run("compute", "scp", "sent", "box:")
    gcloud.run("compute", "scp", "box:sent", "fetched")
    assert (gcloud.folder / "fetched").read_text() == "what is sent"
    gcloud.run(*INSTANCES, "stop", *box)
    gcloud.run(*INSTANCES, "set-machine-type", *box, "--machine-type=n1-standard-2")
    gcloud.run(*INSTANCES, "set-service-account", *box, "--no-service-account", "--no-scopes")
    gcloud.run(*INSTANCES, "set-disk-auto-delete", *box, "--disk=box", "--no-auto-delete")
    gcloud.run(*INSTANCES, "start", *box)
    description = gcloud.json(*INSTANCES, "describe", *box)
    assert description["machineType"].endswith("/machineTypes/n1-standard-2")
    assert description["labels"] == {"a": "b", "c": "d"}
    assert sorted(description["tags"]["items"]) == ["more", "web"]
    assert {"key": "k", "value": "v"} in description["metadata"]["items"]
    assert "gone" not in [item["key"] for item in description["metadata"]["items"]]
    assert description["scheduling"]["automaticRestart"] is False
    assert "serviceAccounts" not in description

    gcloud.run(*INSTANCES, "update", *box, "--deletion-protection")
    result = gcloud.run(*INSTANCES, "delete", *box, check=False)
    assert "protected against deletion" in result.stderr
    gcloud.run(*INSTANCES, "update", *box, "--no-deletion-protection")
    gcloud.run(*INSTANCES, "delete", *box)
    [disk] = gcloud.json("compute", "disks", "list")  # it is kept when the instance is deleted
    assert disk["name"] == "box"
    assert "users" not in disk


@pytest.mark.soak
def test_rejected_instances(gcloud: Gcloud) -> None:
    gcloud.run(*INSTANCES, "create", "box")
    errors = {
        ("create", "box"): "/instances/box' already exists",
        ("create", "Box"): "Must be a match of regex",
        (
            "create",
            "other",
            "--machine-type=n1-nothing-1",
        ): "type with name 'n1-nothing-1' does not exist",
        ("create", "other", "--image-family=none", "--image-project=debian-cloud"): "was not found",
        ("create", "other", "--zone=nowhere1-a"): "Unknown zone",
        ("create", "other", "--network=none"): "referenced network resource cannot be found",
        ("describe", "none"): "/instances/none' was not found",
        ("delete", "none"): "/instances/none' was not found",
    }
    for arguments, text in errors.items():
        failed = gcloud.run(*INSTANCES, *arguments, check=False)
        assert failed.returncode == 1
        assert text in failed.stderr, arguments


@pytest.mark.soak
def test_disk_network_and_address_commands(gcloud: Gcloud) -> None:
    def names(*command: str) -> list[str]:
        return [row["name"] for row in gcloud.json("compute", *command)]

    gcloud.run("compute", "disks", "create", "data", "--size=20", "--type=pd-ssd")
    gcloud.run("compute", "disks", "resize", "data", "--size=30")
    assert gcloud.json("compute", "disks", "describe", "data")["sizeGb"] == "30"
    gcloud.run("compute", "disks", "delete", "data")
    assert "pd-ssd" in names("disk-types", "list", "--zones=us-central1-b")
    assert names("disk-types", "list", "--filter=name=pd-ssd zone:us-central1-b") == ["pd-ssd"]
    assert "n1-standard-1" in names("machine-types", "list", "--zones=us-central1-b")
    assert "us-central1-b" in names("zones", "list")
    assert "us-central1" in names("regions", "list")
    assert gcloud.json("compute", "regions", "describe", "us-central1")["status"] == "UP"
    families = [image["family"] for image in gcloud.json("compute", "images", "list")]
    assert "ubuntu-2204-lts" in families

    custom = ("--network=custom", "--region=us-central1")
    gcloud.run("compute", "networks", "create", "custom", "--subnet-mode=custom")
    gcloud.run("compute", "networks", "subnets", "create", "part", *custom, "--range=10.9.0.0/24")
    in_use = gcloud.run("compute", "networks", "delete", "custom", check=False)
    assert "is already being used by" in in_use.stderr
    assert names("networks", "list") == ["custom", "default"]
    parts = gcloud.json("compute", "networks", "subnets", "list", "--filter=region:us-central1")
    assert {part["name"]: part["ipCidrRange"] for part in parts} == {
        "default": "10.128.0.0/20",
        "part": "10.9.0.0/24",
    }
    gcloud.run("compute", "networks", "subnets", "delete", "part", "--region=us-central1")
    gcloud.run("compute", "networks", "delete", "custom")

    gcloud.run("compute", "addresses", "create", "here", "--region=us-central1")
    gcloud.run("compute", "addresses", "create", "all", "--global")
    assert sorted(names("addresses", "list")) == ["all", "here"]
    gcloud.run("compute", "addresses", "delete", "here", "--region=us-central1")
    assert names("routes", "list", "--filter=destRange=0.0.0.0/0") != []
    gcloud.run(*METADATA, "--metadata=enable-oslogin=FALSE")
    project = gcloud.json("compute", "project-info", "describe")
    assert project["commonInstanceMetadata"]["items"] == [
        {"key": "enable-oslogin", "value": "FALSE"}
    ]
    assert {"NETWORKS", "CPUS_ALL_REGIONS"} <= {quota["metric"] for quota in project["quotas"]}
    kinds = {
        operation["operationType"] for operation in gcloud.json("compute", "operations", "list")
    }
    assert {"insert", "delete", "resize"} <= kinds


def test_disks_of_images_snapshots_and_disks(gcloud: Gcloud) -> None:
    """gcloud makes links of families and snapshots from its endpoint, and parses them again."""
    create = ("compute", "disks", "create")
    gcloud.run(*create, "image", *SMALL[1:])
    gcloud.run("compute", "snapshots", "create", "kept", "--source-disk=image")
    gcloud.run("beta", *create, "snapshot", "--source-snapshot=kept")
    gcloud.run(*create, "copy", "--source-disk=image")
    disks = {disk["name"]: disk for disk in gcloud.json("compute", "disks", "list")}
    assert [disks[name]["sizeGb"] for name in ("image", "snapshot", "copy")] == ["10"] * 3
    assert disks["image"]["sourceImage"].partition("/images/")[2].startswith("debian-12-")
    assert disks["snapshot"]["sourceSnapshot"].endswith("/global/snapshots/kept")
    assert disks["copy"]["sourceDisk"].endswith("/disks/image")


@pytest.mark.parametrize("group", ["tpus tpu-vm", "tpus", "instances"])
def test_listed_links_are_understood(gcloud: Gcloud, group: str) -> None:
    if group == "instances":
        gcloud.run(*INSTANCES, "create", "box")
    else:
        tpu = ("--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base")
        gcloud.run("compute", "tpus", "tpu-vm", "create", "box", *tpu)
    link = gcloud.run("compute", *group.split(), "list", "--uri").stdout.strip()
    assert gcloud.json("compute", *group.split(), "describe", link)["name"].endswith("box")
