"""Fields, operations, times, and links as recorded from Google.

Sources: GoogleCloudPlatform/k8s-config-connector at cdb85ecf. Below, MOCKCOMPUTE is its folder
mockgcp/mockcompute/testdata (recordings of the real API), FIXTURES its folder
pkg/test/resourcefixture/testdata/basic.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.locations import PROJECT
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.local_cloud import remote_control

GOOGLE = "https://www.googleapis.com/compute/v1"
BASE = f"/compute/v1/projects/{PROJECT}"
LINK = f"https://www.googleapis.com{BASE}"
REGIONAL, ZONAL = "/regions/us-central1", "/zones/us-central1-a"
DEBIAN = {"sourceImage": "projects/debian-cloud/global/images/family/debian-11"}
BOOT_FIELDS = {
    "licenses": [f"{GOOGLE}/projects/debian-cloud/global/licenses/debian-11-bullseye"],
    "guestOsFeatures": [
        {"type": feature}
        for feature in ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", "GVNIC", "SEV_CAPABLE")
    ],
    "architecture": "X86_64",
}
EMPTY = "42WmSpB8rSM="  # the fingerprint of no labels and of no tags
COMMON = {"kind", "id", "name", "selfLink", "creationTimestamp"}
NETWORK = {
    "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
    "routingConfig": {"bgpBestPathSelectionMode": "LEGACY", "routingMode": "REGIONAL"},
}
ADDRESS = {"status": "RESERVED", "networkTier": "PREMIUM", "labelFingerprint": EMPTY}

# Collection, body, the constants of the resource, and its other fields: all that it has.
RESOURCES = {
    # MOCKCOMPUTE/computesubnets
    "custom network": (
        "/global/networks",
        {"autoCreateSubnetworks": False},
        {**NETWORK, "autoCreateSubnetworks": False},
        {"selfLinkWithId"},
    ),
    # MOCKCOMPUTE/computenetworks/subnetmode-auto
    "auto network": (
        "/global/networks",
        {"autoCreateSubnetworks": True},
        {**NETWORK, "autoCreateSubnetworks": True},
        {"selfLinkWithId", "subnetworks"},
    ),
    # FIXTURES/compute/v1beta1/computenetwork/computenetworkbasic
    "network with a profile and internal IPv6": (
        "/global/networks",
        {
            "autoCreateSubnetworks": False,
            "enableUlaInternalIpv6": True,
            "networkProfile": f"projects/{PROJECT}/global/networkProfiles/us-central1-a-vpc-falcon",
        },
        {
            **NETWORK,
            "autoCreateSubnetworks": False,
            "enableUlaInternalIpv6": True,
            "networkProfile": f"{LINK}/global/networkProfiles/us-central1-a-vpc-falcon",
        },
        {"selfLinkWithId", "internalIpv6Range"},
    ),
    # MOCKCOMPUTE/address/crud
    "external address": (
        f"{REGIONAL}/addresses",
        {},
        {**ADDRESS, "addressType": "EXTERNAL", "description": ""},
        {"address", "region"},
    ),
    # cloud.google.com/solutions/sap, "HA cluster configuration guide for SAP HANA": the response
    # to describing a reserved address.
    "internal address": (
        f"{REGIONAL}/addresses",
        {"addressType": "INTERNAL", "subnetwork": "regions/us-central1/subnetworks/default"},
        {
            **ADDRESS,
            "addressType": "INTERNAL",
            "description": "",
            "purpose": "GCE_ENDPOINT",
            "subnetwork": f"{LINK}/regions/us-central1/subnetworks/default",
        },
        {"address", "region"},
    ),
    # FIXTURES/dns/v1beta1/dnsrecordset/dnsrecordset/_vcr_cassettes/tf.yaml: labels are ignored
    "range of addresses": (
        "/global/addresses",
        {
            "addressType": "INTERNAL",
            "description": "another test global address",
            "labels": {"cnrm-test": "true"},
            "network": f"projects/{PROJECT}/global/networks/default",
            "prefixLength": 16,
            "purpose": "VPC_PEERING",
        },
        {
            **ADDRESS,
            "addressType": "INTERNAL",
            "description": "another test global address",
            "network": f"{LINK}/global/networks/default",
            "prefixLength": 16,
            "purpose": "VPC_PEERING",
        },
        {"address"},
    ),
    # FIXTURES/osconfig/v1beta1/osconfigguestpolicy/_vcr_cassettes/tf.yaml, without the fields that
    # only v1beta has
    "boot disk": (
        f"{ZONAL}/disks",
        DEBIAN,
        {
            **BOOT_FIELDS,
            "sizeGb": "10",
            "status": "READY",
            "labelFingerprint": EMPTY,
            "licenseCodes": ["3853522013536123851"],
            "physicalBlockSizeBytes": "4096",
            "enableConfidentialCompute": False,
            "satisfiesPzi": False,
        },
        {"zone", "type", "sourceImage", "sourceImageId"},
    ),
    "instance": (
        f"{ZONAL}/instances",
        {
            "machineType": "zones/us-central1-a/machineTypes/n1-standard-1",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": DEBIAN}],
            "networkInterfaces": [{"network": "global/networks/default"}],
        },
        {
            "machineType": f"{LINK}/zones/us-central1-a/machineTypes/n1-standard-1",
            "tags": {"fingerprint": EMPTY},
            "scheduling": {
                "onHostMaintenance": "MIGRATE",
                "automaticRestart": True,
                "preemptible": False,
                "provisioningModel": "STANDARD",
            },
            "status": "RUNNING",
            "cpuPlatform": "Intel Haswell",
            "labelFingerprint": EMPTY,
            "startRestricted": False,
            "deletionProtection": False,
            "shieldedInstanceConfig": {
                "enableSecureBoot": False,
                "enableVtpm": True,
                "enableIntegrityMonitoring": True,
            },
            "shieldedInstanceIntegrityPolicy": {"updateAutoLearnPolicy": True},
            "satisfiesPzi": False,
            "resourceStatus": {"scheduling": {}},
        },
        {"zone", "networkInterfaces", "disks", "metadata", "fingerprint", "lastStartTimestamp"},
    ),
}


class Caller:
    """JSON over HTTP; operations are waited for."""

    def __init__(self, cloud: Any) -> None:
        self._cloud = cloud

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        response = self._cloud.request(verb, path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def finish(self, operation: Any) -> Any:
        path = operation["selfLink"].removeprefix("https://www.googleapis.com")
        done = self.call("POST", f"{path}/wait")
        assert done["status"] == "DONE" and "error" not in done, done
        return done

    def change(self, verb: str, path: str, body: Any = None) -> Any:
        return self.finish(self.call(verb, path, body))


@pytest.fixture
def compute(cloud: Any) -> Caller:
    return Caller(cloud)


@pytest.mark.parametrize("collection,body,constants,others", RESOURCES.values(), ids=RESOURCES)
def test_resources_have_the_recorded_fields(
    compute: Caller, collection: str, body: Any, constants: Any, others: set[str]
) -> None:
    compute.change("POST", BASE + collection, {"name": "subject", **body})
    resource = compute.call("GET", f"{BASE}{collection}/subject")
    assert {field: resource.get(field) for field in constants} == constants
    assert set(resource) == COMMON | set(constants) | others


def test_boot_disk_of_instance_is_attached_with_its_image_s_fields(compute: Caller) -> None:
    """FIXTURES/osconfig/v1beta1/osconfigguestpolicy/_vcr_cassettes/tf.yaml."""
    collection, body, _, _ = RESOURCES["instance"]
    compute.change("POST", BASE + collection, {"name": "subject", **body})
    instance = compute.call("GET", f"{BASE}{collection}/subject")
    (attachment,) = instance["disks"]
    assert attachment == {
        **BOOT_FIELDS,
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "source": f"{LINK}{ZONAL}/disks/subject",
        "deviceName": "persistent-disk-0",
        "index": 0,
        "boot": True,
        "autoDelete": True,
        "interface": "SCSI",
        "diskSizeGb": "10",
    }
    (interface,) = instance["networkInterfaces"]
    recorded = {"kind", "network", "subnetwork", "networkIP", "name", "fingerprint", "stackType"}
    assert set(interface) == recorded


@pytest.mark.parametrize(
    "collection,body",
    [(collection, body) for collection, body, _, _ in RESOURCES.values()],
    ids=RESOURCES,
)
def test_operations_state_target_and_caller(compute: Caller, collection: str, body: Any) -> None:
    """MOCKCOMPUTE/address/crud and computenetworks: every answer, from the first to the last.

    The name tells the time twice, in milliseconds and in microseconds, as in all cassettes:
    operation-1714008990864-616e1d10ad5ad-6f526b5f-414005b6.
    """
    target = f"{BASE}{collection}/subject"
    begun = compute.call("POST", BASE + collection, {"name": "subject", **body})
    done = compute.finish(begun)
    target_id = compute.call("GET", target)["id"]
    deleted = compute.change("DELETE", target)
    for operation, verb in ((begun, "insert"), (done, "insert"), (deleted, "delete")):
        assert operation["operationType"] == verb
        assert operation["targetId"] == target_id
        assert operation["targetLink"] == f"https://www.googleapis.com{target}"
        assert operation["user"] == "owner@local-cloud.invalid"
        assert operation["id"].isdigit()
        assert {"insertTime", "startTime"} < set(operation)
        name = re.fullmatch(
            r"operation-(\d{13})-([0-9a-f]{13})(-[0-9a-f]{8}){2}", operation["name"]
        )
        assert name is not None and int(name[2], 16) // 1000 == int(name[1])
    assert done["progress"] == 100
    assert "endTime" in done


# FIXTURES/compute/v1beta1/computenetwork/computenetworkbasic and computenetworkautocreatesubnets
@pytest.mark.parametrize(
    "changes,operation_type",
    [
        ({"enableUlaInternalIpv6": True}, "updateNetwork"),
        ({"routingConfig": {"routingMode": "GLOBAL"}}, "compute.networks.patch"),
    ],
)
def test_network_patch_keeps_other_settings(
    compute: Caller, changes: Any, operation_type: str
) -> None:
    done = compute.change("PATCH", f"{BASE}/global/networks/default", changes)
    assert done["operationType"] == operation_type
    network = compute.call("GET", f"{BASE}/global/networks/default")
    assert network["routingConfig"] == NETWORK["routingConfig"] | changes.get("routingConfig", {})
    assert network["autoCreateSubnetworks"] is True


@pytest.mark.parametrize("version", ["v1", "beta", "alpha"])
def test_links_have_the_version_of_the_request(compute: Caller, version: str) -> None:
    """The cassettes under FIXTURES call beta: all links of their responses are of beta."""
    base = f"/compute/{version}/projects/{PROJECT}"
    collection, body, _, _ = RESOURCES["instance"]
    begun = compute.call("POST", base + collection, {"name": "subject", **body})
    done = compute.finish(begun)
    instance = compute.call("GET", f"{base}{collection}/subject")
    links = re.findall(r"https://www.googleapis.com/compute/\w+", f"{begun} {done} {instance}")
    assert set(links) == {f"https://www.googleapis.com/compute/{version}"}


@pytest.mark.parametrize(
    "moment,text",
    [
        # Of instances and images in the cassette of osconfigguestpolicy, and of Debian 12
        # (mockcompute's public images).
        ("2024-04-25T01:53:57.119", "2024-04-24T18:53:57.119-07:00"),
        ("2024-04-15T20:30:29.979", "2024-04-15T13:30:29.979-07:00"),
        ("2025-02-13T22:26:09.387", "2025-02-13T14:26:09.387-08:00"),
        # Daylight saving time begins and ends, by the Energy Policy Act of 2005.
        ("2026-03-08T09:59:59.999", "2026-03-08T01:59:59.999-08:00"),
        ("2026-03-08T10:00:00.000", "2026-03-08T03:00:00.000-07:00"),
        ("2026-11-01T08:59:59.999", "2026-11-01T01:59:59.999-07:00"),
        ("2026-11-01T09:00:00.000", "2026-11-01T01:00:00.000-08:00"),
        ("2027-03-14T09:59:59.000", "2027-03-14T01:59:59.000-08:00"),
        ("2027-03-14T10:00:00.000", "2027-03-14T03:00:00.000-07:00"),
        ("2027-11-07T09:00:00.000", "2027-11-07T01:00:00.000-08:00"),
    ],
)
def test_times_are_pacific(moment: str, text: str) -> None:
    utc = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    # Half a millisecond more: a float is not exact.
    assert pacific_text(utc.timestamp() + 0.0005) == text


def test_every_time_of_compute_is_pacific(compute: Caller) -> None:
    collection, body, _, _ = RESOURCES["instance"]
    answers = [compute.change("POST", BASE + collection, {"name": "subject", **body})]
    for path in ("", ZONAL, REGIONAL, f"{ZONAL}/instances/subject", f"{ZONAL}/disks/subject"):
        answers.append(compute.call("GET", BASE + path))
    answers.append(compute.call("GET", f"{BASE}/global/networks/default"))
    answers.append(compute.call("GET", f"{BASE}/global/firewalls/default-allow-ssh"))
    for answer in answers:
        times = [
            value for field, value in answer.items() if re.fullmatch(r".*[tT]ime(stamp)?", field)
        ]
        assert times
        for time in times:
            assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}-0[78]:00", time)


def test_zone_lists_its_processors(compute: Caller) -> None:
    """MOCKCOMPUTE/computezones/crud."""
    zone = compute.call("GET", BASE + ZONAL)
    assert zone["supportsPzs"] is False
    assert len(zone["availableCpuPlatforms"]) == 17
    assert {"Intel Haswell", "AMD Turin", "Google Axion"} < set(zone["availableCpuPlatforms"])


def test_aggregated_list_with_all_scopes(compute: Caller) -> None:
    """MOCKCOMPUTE/computenetworks/subnetmode-auto: gcloud lists subnetworks of every scope."""
    path = f"{BASE}/aggregated/subnetworks"
    regional = compute.call("GET", path)["items"]
    everywhere = compute.call("GET", f"{path}?includeAllScopes=True")["items"]
    assert {scope.partition("/")[0] for scope in regional} == {"regions"}
    for scope in ("global", "zones/us-central1-a"):
        assert everywhere[scope]["warning"] == {
            "code": "NO_RESULTS_ON_PAGE",
            "message": f"No results for the scope '{scope}'.",
            "data": [{"key": "scope", "value": scope}],
        }
    assert everywhere["regions/us-central1"]["subnetworks"]


def test_disk_remembers_when_it_was_attached(compute: Caller) -> None:
    """Fields as a disk had that was attached and detached (a public report of 2026)."""
    collection, body, _, _ = RESOURCES["instance"]
    disk = f"{BASE}{ZONAL}/disks/data"
    compute.change("POST", f"{BASE}{ZONAL}/disks", {"name": "data", "sizeGb": "10"})
    assert not {"lastAttachTimestamp", "users"} & set(compute.call("GET", disk))
    compute.change("POST", BASE + collection, {"name": "subject", **body})
    instance = f"{BASE}{collection}/subject"
    source = {"source": f"{ZONAL.strip('/')}/disks/data", "deviceName": "data"}
    compute.change("POST", f"{instance}/attachDisk", source)
    attached = compute.call("GET", disk)
    assert attached["users"] == [f"https://www.googleapis.com{instance}"]
    compute.change("POST", f"{instance}/detachDisk?deviceName=data")
    detached = compute.call("GET", disk)
    assert "users" not in detached
    assert detached["lastAttachTimestamp"] == attached["lastAttachTimestamp"]
    assert detached["lastDetachTimestamp"] >= detached["lastAttachTimestamp"]


def test_labels_of_address_are_set_at_once(compute: Caller, cloud: Any) -> None:
    """FIXTURES/dns/v1beta1/dnsrecordset/dnsrecordset/_vcr_cassettes/tf.yaml."""
    remote_control.change_settings(cloud.local_cloud, pace="quick")
    address = f"{BASE}/global/addresses/subject"
    _, body, _, _ = RESOURCES["range of addresses"]
    compute.change("POST", f"{BASE}/global/addresses", {"name": "subject", **body})
    labels = {"labels": {"cnrm-test": "true"}, "labelFingerprint": EMPTY}
    operation = compute.call("POST", f"{address}/setLabels", labels)
    assert (operation["operationType"], operation["status"]) == ("setLabels", "DONE")
    assert operation["progress"] == 100
    after = compute.call("GET", address)
    assert after["labels"] == {"cnrm-test": "true"}
    assert after["labelFingerprint"] != EMPTY


def test_resources_are_addressed_by_id(compute: Caller) -> None:
    """The cassette of osconfigguestpolicy reads a template by its number."""
    network = compute.call("GET", f"{BASE}/global/networks/default")
    assert compute.call("GET", f"{BASE}/global/networks/{network['id']}") == network


# Each as reported in an issue or pull request, with its body; the names are ours.
INVALID_INSTANCES = {
    # docker-archive/infrakit.gcp#1
    "disks[0].initializeParams.sourceImage": (
        {"disks": [{"boot": True, "initializeParams": {"sourceImage": f"{LINK}/global/images/x"}}]},
        f"{LINK}/global/images/x",
        "The referenced image resource cannot be found.",
    ),
    # GoogleCloudPlatform/cloud-foundation-toolkit#95
    "disks[0].initializeParams.sourceImage of a family": (
        {"disks": [{"boot": True, "initializeParams": {"sourceImage": "family/debian-9"}}]},
        "family/debian-9",
        "The URL is malformed.",
    ),
    # digio/terraform-google-gitlab-runner#3
    "disks[0].initializeParams.diskSizeGb": (
        {"disks": [{"boot": True, "initializeParams": {**DEBIAN, "diskSizeGb": "5"}}]},
        "5",
        "Requested disk size cannot be smaller than the image size (10 GB)",
    ),
    # hashicorp/terraform-provider-google#275
    "disks[0].initializeParams.diskType": (
        {"disks": [{"boot": True, "initializeParams": {**DEBIAN, "diskType": "pd-ssd"}}]},
        "pd-ssd",
        "The URL is malformed.",
    ),
    # broadinstitute/cromwell#3776
    "disks[0].initializeParams.diskType of a zone": (
        {
            "disks": [
                {
                    "boot": True,
                    "initializeParams": {
                        **DEBIAN,
                        "diskType": "zones/us-central1-a/diskTypes/PERSISTENT_SSD",
                    },
                }
            ]
        },
        "zones/us-central1-a/diskTypes/PERSISTENT_SSD",
        "The referenced diskType resource cannot be found.",
    ),
    # arunoda/fastai-shell#5
    "disks[0].source": (
        {"disks": [{"boot": True, "source": f"{LINK}{ZONAL}/disks/missing"}]},
        f"{LINK}{ZONAL}/disks/missing",
        "The referenced disk resource cannot be found.",
    ),
    # btcpayserver/btcpayserver-googlecloud#7
    "networkInterfaces[0].network": (
        {"networkInterfaces": [{"network": "global/networks/missing"}]},
        "global/networks/missing",
        "The referenced network resource cannot be found.",
    ),
    # gruntwork-io/terratest#1132
    "machineType": (
        {"machineType": "zones/us-central1-a/machineTypes/n1-giant-9"},
        "zones/us-central1-a/machineTypes/n1-giant-9",
        "Machine type with name 'n1-giant-9' does not exist in zone 'us-central1-a'.",
    ),
    # hashicorp/terraform-provider-google#2140
    "networkInterfaces[0].subnetwork": (
        {"networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/missing"}]},
        "regions/us-central1/subnetworks/missing",
        "The referenced subnetwork resource cannot be found.",
    ),
}
INVALID_VALUE = "Invalid value for field '{}': '{}'. {}"
NAME_OR_ID = "Must be a match of regex '[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?|[1-9][0-9]{0,19}'"
ERRORS = {
    # rapid7/insightconnect-plugins#751, cloudyr/googleComputeEngineR#162
    "wrong name": (
        "POST",
        f"{ZONAL}/instances/instance-/start",
        None,
        (400, "invalid", INVALID_VALUE.format("instance", "instance-", NAME_OR_ID)),
    ),
    # GoogleCloudPlatform/magic-modules#7524
    "tier of internal address": (
        "POST",
        f"{REGIONAL}/addresses",
        {"name": "subject", "addressType": "INTERNAL", "networkTier": "PREMIUM"},
        (
            400,
            "invalid",
            "Invalid value for field 'resource.networkTier': 'PREMIUM'. An address with type "
            "INTERNAL cannot have a network tier.",
        ),
    ),
    # FIXTURES/compute/v1beta1/computenetwork/computenetworkbasic
    "missing network": (
        "GET",
        "/global/networks/missing",
        None,
        (
            404,
            "notFound",
            f"The resource 'projects/{PROJECT}/global/networks/missing' was not found",
        ),
    ),
    # skyplane-project/skyplane#683
    "firewall rule of missing network": (
        "POST",
        "/global/firewalls",
        {
            "name": "subject",
            "network": "global/networks/missing",
            "allowed": [{"IPProtocol": "tcp"}],
        },
        (
            404,
            "notFound",
            f"The resource 'projects/{PROJECT}/global/networks/missing' was not found",
        ),
    ),
    # GoogleCloudPlatform/google-cloud-powershell#537
    "ports": (
        "POST",
        "/global/firewalls",
        {"name": "subject", "allowed": [{"IPProtocol": "tcp", "ports": ["0..65535"]}]},
        (
            400,
            "invalid",
            "Invalid value for field 'resource.allowed[0].ports[0]': '0..65535'. Invalid port "
            "range specification.",
        ),
    ),
    # cloudfoundry/bosh-google-cpi-release#238
    "subnetwork in the automatic ranges": (
        "POST",
        f"{REGIONAL}/subnetworks",
        {
            "name": "subject",
            "network": "global/networks/default",
            "ipCidrRange": "10.200.0.0/16",
        },
        (
            400,
            "invalid",
            "Invalid value for field 'resource.ipCidrRange': '10.200.0.0/16'. Extended subnetworks "
            "in auto subnet mode networks cannot overlap with 10.128.0.0/9.",
        ),
    ),
    # tektoncd/plumbing#28
    "automatic subnetwork": (
        "DELETE",
        f"{REGIONAL}/subnetworks/default",
        None,
        (
            400,
            "invalidResourceUsage",
            "Invalid resource usage: 'Cannot delete auto subnetwork from an auto subnet mode "
            "network.'.",
        ),
    ),
    # hashicorp/terraform-provider-google#1469
    "subnetwork without fingerprint": (
        "PATCH",
        f"{REGIONAL}/subnetworks/default",
        {"enableFlowLogs": True},
        (400, "required", "Required field 'resource.fingerprint' not specified"),
    ),
}
for invalid_field, (changed, value, reason) in INVALID_INSTANCES.items():
    ERRORS[invalid_field] = (
        "POST",
        f"{ZONAL}/instances",
        {"name": "subject", **RESOURCES["instance"][1], **changed},
        (
            400,
            "invalid",
            INVALID_VALUE.format(f"resource.{invalid_field.partition(' ')[0]}", value, reason),
        ),
    )


@pytest.mark.parametrize("verb,path,body,error", ERRORS.values(), ids=ERRORS)
def test_errors_are_worded_as_reported(
    cloud: Any, verb: str, path: str, body: Any, error: tuple[int, str, str]
) -> None:
    status, reason, text = error
    response = cloud.request(verb, BASE + path, json=body)
    assert response.json()["error"] == {
        "code": status,
        "message": text,
        "errors": [{"message": text, "domain": "global", "reason": reason}],
    }
    assert response.status_code == status


def test_subnetworks_of_a_network_cannot_overlap(compute: Caller, cloud: Any) -> None:
    """tranquilitybase-io/tb-gcp#160: whatever their region."""
    compute.change(
        "POST", f"{BASE}/global/networks", {"name": "own", "autoCreateSubnetworks": False}
    )
    body = {"name": "first", "network": "global/networks/own", "ipCidrRange": "192.168.0.0/28"}
    compute.change("POST", f"{BASE}{REGIONAL}/subnetworks", body)
    path = f"{BASE}/regions/europe-west2/subnetworks"
    response = cloud.request("POST", path, json={**body, "name": "other"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "Invalid value for field 'resource.ipCidrRange': '192.168.0.0/28'. Invalid IPCidrRange: "
        "192.168.0.0/28 conflicts with existing subnetwork 'first' in region 'us-central1'."
    )


def test_internal_address_needs_a_subnetwork(compute: Caller, cloud: Any) -> None:
    """hashicorp/terraform#19507: without a default network there is no default subnetwork."""
    for rule in ("icmp", "internal", "rdp", "ssh"):
        compute.change("DELETE", f"{BASE}/global/firewalls/default-allow-{rule}")
    compute.change("DELETE", f"{BASE}/global/networks/default")
    body = {"name": "subject", "addressType": "INTERNAL"}
    path = f"{BASE}{REGIONAL}/addresses"
    response = cloud.request("POST", path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "Invalid value for field 'resource.subnetwork': ''. No default subnetwork was found for an "
        "address with type INTERNAL."
    )
