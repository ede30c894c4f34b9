"""HTTP rules of Cloud TPU v1 and v2alpha1, whose clients support gRPC only.

From Google's discovery documents, as included in the Google Cloud SDK's generated clients
(`generated_clients/apis/tpu`, SDK 528).
"""

from __future__ import annotations

from tpuctl.emulator.wire.rest_rules import Options, delete, get, option, post

_LOCATION = "projects/*/locations/*"


def _common_rules(version: str) -> Options:
    """Operations and locations, which every version has."""
    operation = f"/{version}/{{name={_LOCATION}/operations/*}}"
    return {
        "get_operation": get(operation),
        "list_operations": get(f"/{version}/{{name={_LOCATION}}}/operations"),
        "delete_operation": delete(operation),
        "cancel_operation": post(f"{operation}:cancel", ""),
        "get_location": get(f"/{version}/{{name={_LOCATION}}}"),
        "list_locations": get(f"/{version}/{{name=projects/*}}/locations"),
    }


def _tpu_rules(version: str) -> Options:
    """Rules common to v1 and v2alpha1 of Cloud TPU."""
    parent, node = f"/{version}/{{parent={_LOCATION}}}", f"/{version}/{{name={_LOCATION}/nodes/*}}"
    return {
        **_common_rules(version),
        "list_nodes": get(f"{parent}/nodes"),
        "get_node": get(node),
        "create_node": post(f"{parent}/nodes", "node"),
        "delete_node": delete(node),
        "stop_node": post(f"{node}:stop"),
        "start_node": post(f"{node}:start"),
        "list_accelerator_types": get(f"{parent}/acceleratorTypes"),
        "get_accelerator_type": get(f"/{version}/{{name={_LOCATION}/acceleratorTypes/*}}"),
    }


TPU_V1: Options = {
    **_tpu_rules("v1"),
    "reimage_node": post(f"/v1/{{name={_LOCATION}/nodes/*}}:reimage"),
    "list_tensor_flow_versions": get(f"/v1/{{parent={_LOCATION}}}/tensorflowVersions"),
    "get_tensor_flow_version": get(f"/v1/{{name={_LOCATION}/tensorflowVersions/*}}"),
}

_ALPHA = f"/v2alpha1/{{name={_LOCATION}/nodes/*}}"
_ALPHA_PARENT = f"/v2alpha1/{{parent={_LOCATION}}}"
_QUEUED = f"/v2alpha1/{{name={_LOCATION}/queuedResources/*}}"

TPU_V2ALPHA1: Options = {
    **_tpu_rules("v2alpha1"),
    "update_node": [
        option("patch", f"/v2alpha1/{{node.name={_LOCATION}/nodes/*}}", "node"),
    ],
    "get_guest_attributes": post(f"{_ALPHA}:getGuestAttributes"),
    "simulate_maintenance_event": post(f"{_ALPHA}:simulateMaintenanceEvent"),
    "perform_maintenance": post(f"{_ALPHA}:performMaintenance"),
    "list_queued_resources": get(f"{_ALPHA_PARENT}/queuedResources"),
    "get_queued_resource": get(_QUEUED),
    "create_queued_resource": post(f"{_ALPHA_PARENT}/queuedResources", "queued_resource"),
    "delete_queued_resource": delete(_QUEUED),
    "reset_queued_resource": post(f"{_QUEUED}:reset"),
    "perform_maintenance_queued_resource": post(f"{_QUEUED}:performMaintenanceQueuedResource"),
    "list_reservations": get(f"{_ALPHA_PARENT}/reservations"),
    "list_runtime_versions": get(f"{_ALPHA_PARENT}/runtimeVersions"),
    "get_runtime_version": get(f"/v2alpha1/{{name={_LOCATION}/runtimeVersions/*}}"),
    "generate_service_identity": post(f"{_ALPHA_PARENT}:generateServiceIdentity"),
}
