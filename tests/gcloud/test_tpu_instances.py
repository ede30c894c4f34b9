"""TPUs of Compute Engine through the real gcloud, with the commands that Google documents."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

INSTANCES = ("compute", "instances")
IMAGE = (
    "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "--image-project=ubuntu-os-accelerator-images",
)
IN_ZONE = "--zone=us-east5-a"
V6E = ("--machine-type=ct6e-standard-4t", *IMAGE, "--maintenance-policy=TERMINATE", IN_ZONE)
LIMITED = ("--max-run-duration=4h", "--instance-termination-action=DELETE")

pytestmark = pytest.mark.long


def test_spot_instance(gcloud: Gcloud) -> None:
    spot = ("--provisioning-model=SPOT", "--instance-termination-action=DELETE")
    disk = ("--boot-disk-size=100GB", "--scopes=cloud-platform")
    (instance,) = gcloud.json(*INSTANCES, "create", "bert-tpu", *V6E, *spot, *disk)
    assert instance["status"] == "RUNNING"
    assert instance["scheduling"]["provisioningModel"] == "SPOT"
    assert instance["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert instance["disks"][0]["diskSizeGb"] == "100"
    table = gcloud.run(*INSTANCES, "list", "--filter=machineType~ct6e").stdout
    assert table.splitlines()[1].split()[:3] == ["bert-tpu", "us-east5-a", "ct6e-standard-4t"]
    types = gcloud.json("compute", "machine-types", "list", "--filter=name~ct6e", IN_ZONE.replace(
        "zone", "zones"))  # fmt: skip
    assert {row["name"] for row in types} == {f"ct6e-standard-{chips}t" for chips in (1, 4, 8)}
    assert types[0]["accelerators"][0]["guestAcceleratorType"] == "ct6e"
    gcloud.run(*INSTANCES, "delete", "bert-tpu", IN_ZONE)
    assert gcloud.json("compute", "disks", "list") == []


@pytest.mark.soak
def test_flex_start_and_standard_instances(gcloud: Gcloud) -> None:
    create = (*INSTANCES, "create")
    flex = ("--provisioning-model=FLEX_START", *LIMITED)
    (instance,) = gcloud.json("alpha", *create, "flex", *V6E, *flex)
    assert instance["scheduling"]["provisioningModel"] == "FLEX_START"
    assert instance["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
    assert "terminationTimestamp" in instance["resourceStatus"]["scheduling"]
    tpu7x = (
        *("--machine-type=tpu7x-standard-4t", "--zone=us-central1-c"),
        *("--image-family=ubuntu-accel-2404-amd64-tpu-tpu7x", IMAGE[1]),
        "--maintenance-policy=TERMINATE",
    )
    (instance,) = gcloud.json(*create, "ironwood", *tpu7x)
    assert instance["scheduling"]["provisioningModel"] == "STANDARD"


@pytest.mark.soak
def test_reserved_instances(gcloud: Gcloud) -> None:
    name = "--reservation=mine"
    gcloud.run("compute", "reservations", "create", "mine", IN_ZONE, "--vm-count=1",
               "--machine-type=ct6e-standard-4t", "--require-specific-reservation")  # fmt: skip
    bound = ("--provisioning-model=RESERVATION_BOUND", "--instance-termination-action=DELETE")
    affinity = ("--reservation-affinity=specific", name)
    gcloud.run(*INSTANCES, "create", "bert-tpu", *V6E, *bound, *affinity)
    (reservation,) = gcloud.json("compute", "reservations", "list")
    assert reservation["specificReservation"]["inUseCount"] == "1"
    result = gcloud.run(*INSTANCES, "create", "other", *V6E, *bound, *affinity, check=False)
    assert "No available resources in specified reservations" in result.stderr
    gcloud.run(*INSTANCES, "delete", "bert-tpu", IN_ZONE)
    gcloud.run("compute", "reservations", "delete", "mine", IN_ZONE)

    request = ("beta", "compute", "future-reservations")
    gcloud.run(*request, "create", "booked", IN_ZONE, "--tpu-version=V6E", "--chip-count=4",
               "--workload-type=BATCH", "--start-time=2030-01-01T00:00:00Z", "--duration=864000",
               "--reservation-mode=CALENDAR", "--planning-status=SUBMITTED",
               "--deployment-type=DENSE", "--require-specific-reservation",
               "--auto-delete-auto-created-reservations", "--reservation-name=slot")  # fmt: skip
    described = gcloud.json(*request, "describe", "booked", IN_ZONE)
    assert described["status"]["procurementStatus"] == "APPROVED"
    (listed,) = gcloud.json(*request, "list")
    assert listed["name"] == "booked"


@pytest.mark.soak
def test_rejected_instances(gcloud: Gcloud) -> None:
    v6e = [option for option in V6E if not option.startswith("--maintenance")]
    v5e = ("--machine-type=ct5lp-hightpu-1t", *V6E[1:])
    errors = {
        (*v5e,): "This user agent is not allowed to use the machine type [ct5lp-hightpu-1t].",
        (*v6e,): "Instances with guest accelerators do not support live migration.",
        (*V6E, "--boot-disk-type=pd-ssd"): "pd-ssd disk type cannot be used by ct6e-standard-4t",
        (*V6E[:-1], "--zone=us-central2-b", "--machine-type=tpu7x-standard-4t"): "does not exist",
    }
    for arguments, text in errors.items():
        result = gcloud.run(*INSTANCES, "create", "bert-tpu", *arguments, check=False)
        assert result.returncode == 1
        assert text in result.stderr, arguments
    assert gcloud.json(*INSTANCES, "list") == []


@pytest.mark.soak
def test_ssh_to_an_instance(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    gcloud.run(*INSTANCES, "create", "bert-tpu", *V6E)
    script = 'curl -sH Metadata-Flavor:Google "$GCE_METADATA_HOST/$0"'
    path = "computeMetadata/v1/instance/attributes/accelerator-type"
    command = f"--command={script.replace('$0', path)}"
    done = gcloud.run("compute", "ssh", "bert-tpu", IN_ZONE, command)
    assert done.stdout.splitlines()[-1] == "v6e-4"
