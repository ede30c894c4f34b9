"""The fields of requests that the local cloud honors, where it does not keep a resource as it is.

Every other field is refused by its name: a field that is accepted and dropped is discovered only on
Google. Output-only fields are ignored, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.state.errors import unsupported_field

# Each field's own fields; None: it is kept with all that it contains.
Fields = Mapping[str, Any]


def _whole(*names: str) -> Fields:
    return dict.fromkeys(names)


_INITIALIZE_PARAMS = _whole(
    *("architecture", "description", "diskName", "diskSizeGb", "diskType"),
    *("enableConfidentialCompute", "labels", "licenses", "onUpdateAction", "provisionedIops"),
    *("provisionedThroughput", "replicaZones", "sourceImage", "sourceSnapshot"),
    "storagePool",
)
ATTACHED_DISK: Fields = {
    **_whole("autoDelete", "boot", "deviceName", "diskEncryptionKey", "diskSizeGb", "forceAttach"),
    **_whole("guestOsFeatures", "interface", "mode", "source", "type"),
    "initializeParams": _INITIALIZE_PARAMS,
}
# Of a disk that is attached later: it keeps its own size and features.
EXISTING_DISK = _whole(
    *ATTACHED_DISK.keys() - {"diskSizeGb", "guestOsFeatures", "initializeParams"}
)
_INTERFACE: Fields = {
    **_whole("network", "nicType", "queueCount", "stackType", "subnetwork"),
    "accessConfigs": _whole("name", "networkTier", "type"),
}
_PROPERTIES: Fields = {
    **_whole("advancedMachineFeatures", "canIpForward", "confidentialInstanceConfig"),
    **_whole("description", "keyRevocationActionType", "labels", "localSsdEncryptionMode"),
    **_whole("machineType", "metadata", "minCpuPlatform", "networkPerformanceConfig"),
    **_whole("privateIpv6GoogleAccess", "reservationAffinity", "resourcePolicies", "scheduling"),
    **_whole("serviceAccounts", "shieldedInstanceConfig", "tags"),
    "disks": ATTACHED_DISK,
    "networkInterfaces": _INTERFACE,
}
INSTANCE: Fields = {
    **_PROPERTIES,
    **_whole("deletionProtection", "displayDevice", "hostname", "name"),
    **_whole("shieldedInstanceIntegrityPolicy"),
    "params": _whole("requestValidForDuration"),
}
INSTANCE_TEMPLATE: Fields = {
    **_whole("description", "name", "sourceInstance", "sourceInstanceParams"),
    "properties": _PROPERTIES,
}
DISK: Fields = {
    **_whole("accessMode", "architecture", "description", "diskEncryptionKey"),
    **_whole("enableConfidentialCompute", "guestOsFeatures", "labels", "licenseCodes", "licenses"),
    **_whole("locationHint", "name", "options", "physicalBlockSizeBytes", "provisionedIops"),
    **_whole("provisionedThroughput", "replicaZones", "sizeGb", "sourceDisk", "sourceImage"),
    **_whole("sourceSnapshot", "storagePool", "type"),
    "asyncPrimaryDisk": _whole(
        "consistencyGroupPolicy", "consistencyGroupPolicyId", "disk", "diskId"
    ),
}
IMAGE: Fields = {
    **_whole("architecture", "description", "diskSizeGb", "family", "guestOsFeatures"),
    **_whole("imageEncryptionKey", "labels", "licenseCodes", "licenses", "name", "rawDisk"),
    **_whole("shieldedInstanceInitialState", "sourceDisk", "sourceImage", "sourceSnapshot"),
    **_whole("sourceType", "storageLocations"),
}
STORAGE_POOL = _whole(
    *("capacityProvisioningType", "description", "labels", "name"),
    *("performanceProvisioningType", "poolProvisionedCapacityGb", "poolProvisionedIops"),
    *("poolProvisionedThroughput", "storagePoolType"),
)
ROUTE = _whole(
    *("description", "destRange", "name", "network", "nextHopGateway", "nextHopInstance"),
    *("nextHopIp", "priority", "tags"),
)
ROUTER: Fields = {
    **_whole("bgp", "description", "encryptedInterconnectRouter", "name", "network"),
    "nats": {
        **_whole("autoNetworkTier", "effectiveTcpTimeWaitTimeoutSec", "endpointTypes"),
        **_whole("enableDynamicPortAllocation", "enableEndpointIndependentMapping"),
        **_whole("icmpIdleTimeoutSec", "logConfig", "maxPortsPerVm", "minPortsPerVm", "name"),
        **_whole("natIpAllocateOption", "natIps", "sourceSubnetworkIpRangesToNat"),
        **_whole("subnetworks", "tcpEstablishedIdleTimeoutSec", "tcpTimeWaitTimeoutSec"),
        **_whole("tcpTransitoryIdleTimeoutSec", "type", "udpIdleTimeoutSec"),
    },
}
START_WITH_KEYS: Fields = {
    "disks": {"source": None, "diskEncryptionKey": _whole("rawKey", "sha256")},
}
# Output only, as Google's descriptions say, or set by the server: fields of resources that clients
# have read are in their requests again.
OUTPUT_ONLY = frozenset(
    (
        *("architecture", "asyncSecondaryDisks", "cpuPlatform", "creationTimestamp"),
        *("fingerprint", "id", "index", "ipv6AccessType", "kind", "labelFingerprint"),
        *("lastAttachTimestamp", "lastDetachTimestamp", "lastStartTimestamp"),
        *("lastStopTimestamp", "lastSuspendedTimestamp", "licenses", "name", "region"),
        *("resourceStatus", "satisfiesPzi", "satisfiesPzs", "savedState", "selfLink"),
        *("shieldedInstanceInitialState", "sourceConsistencyGroupPolicy"),
        *("sourceConsistencyGroupPolicyId", "sourceDiskId", "sourceImageId"),
        *("sourceInstantSnapshotId", "sourceMachineImageId", "sourceSnapshotId"),
        *("startRestricted", "status", "statusMessage", "users", "zone"),
    )
)


def check_supported(body: Mapping[str, Any], fields: Fields, place: str = "resource") -> None:
    """Refuse a request with a field that would be dropped."""
    for name, value in body.items():
        if name not in fields:
            if name in OUTPUT_ONLY:
                continue
            raise unsupported_field(f"{place}.{name}")
        own_fields = fields[name]
        if own_fields is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                check_supported(item, own_fields, f"{place}.{name}[{index}]")
        else:
            check_supported(value, own_fields, f"{place}.{name}")
