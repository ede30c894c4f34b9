"""HTTP rules of APIs whose official Python client speaks gRPC only, and so brings none.

From Google's discovery documents of tpu v1, tpu v2alpha1 and iam v1, as the Google Cloud SDK's
generated clients carry them (`generated_clients/apis/{tpu,iam}`, SDK 528).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["REST_RULES", "Options"]

# By method: as a client's own `_get_http_options` has them.
Options = Mapping[str, Sequence[Mapping[str, str]]]

_PLACE = "projects/*/locations/*"


def _option(verb: str, uri: str, body: str = "") -> dict[str, str]:
    return {"method": verb, "uri": uri, **({"body": body} if body else {})}


def _get(uri: str) -> list[dict[str, str]]:
    return [_option("get", uri)]


def _post(uri: str, body: str = "*") -> list[dict[str, str]]:
    return [_option("post", uri, body)]


def _delete(uri: str) -> list[dict[str, str]]:
    return [_option("delete", uri)]


def _shared(version: str) -> Options:
    """Operations and locations, which every host serves under its own version."""
    operation = f"/{version}/{{name={_PLACE}/operations/*}}"
    return {
        "get_operation": _get(operation),
        "list_operations": _get(f"/{version}/{{name={_PLACE}}}/operations"),
        "delete_operation": _delete(operation),
        "cancel_operation": _post(f"{operation}:cancel", ""),
        "get_location": _get(f"/{version}/{{name={_PLACE}}}"),
        "list_locations": _get(f"/{version}/{{name=projects/*}}/locations"),
    }


def _tpu(version: str) -> Options:
    """What v1 and v2alpha1 of Cloud TPU have in common."""
    parent, node = f"/{version}/{{parent={_PLACE}}}", f"/{version}/{{name={_PLACE}/nodes/*}}"
    return {
        **_shared(version),
        "list_nodes": _get(f"{parent}/nodes"),
        "get_node": _get(node),
        "create_node": _post(f"{parent}/nodes", "node"),
        "delete_node": _delete(node),
        "stop_node": _post(f"{node}:stop"),
        "start_node": _post(f"{node}:start"),
        "list_accelerator_types": _get(f"{parent}/acceleratorTypes"),
        "get_accelerator_type": _get(f"/{version}/{{name={_PLACE}/acceleratorTypes/*}}"),
    }


_TPU_V1: Options = {
    **_tpu("v1"),
    "reimage_node": _post(f"/v1/{{name={_PLACE}/nodes/*}}:reimage"),
    "list_tensor_flow_versions": _get(f"/v1/{{parent={_PLACE}}}/tensorflowVersions"),
    "get_tensor_flow_version": _get(f"/v1/{{name={_PLACE}/tensorflowVersions/*}}"),
}

_ALPHA = f"/v2alpha1/{{name={_PLACE}/nodes/*}}"
_ALPHA_PARENT = f"/v2alpha1/{{parent={_PLACE}}}"
_QUEUED = f"/v2alpha1/{{name={_PLACE}/queuedResources/*}}"

_TPU_ALPHA: Options = {
    **_tpu("v2alpha1"),
    "update_node": [
        _option("patch", f"/v2alpha1/{{node.name={_PLACE}/nodes/*}}", "node"),
    ],
    "get_guest_attributes": _post(f"{_ALPHA}:getGuestAttributes"),
    "simulate_maintenance_event": _post(f"{_ALPHA}:simulateMaintenanceEvent"),
    "perform_maintenance": _post(f"{_ALPHA}:performMaintenance"),
    "list_queued_resources": _get(f"{_ALPHA_PARENT}/queuedResources"),
    "get_queued_resource": _get(_QUEUED),
    "create_queued_resource": _post(f"{_ALPHA_PARENT}/queuedResources", "queued_resource"),
    "delete_queued_resource": _delete(_QUEUED),
    "reset_queued_resource": _post(f"{_QUEUED}:reset"),
    "perform_maintenance_queued_resource": _post(f"{_QUEUED}:performMaintenanceQueuedResource"),
    "list_reservations": _get(f"{_ALPHA_PARENT}/reservations"),
    "list_runtime_versions": _get(f"{_ALPHA_PARENT}/runtimeVersions"),
    "get_runtime_version": _get(f"/v2alpha1/{{name={_PLACE}/runtimeVersions/*}}"),
    "generate_service_identity": _post(f"{_ALPHA_PARENT}:generateServiceIdentity"),
}

_ACCOUNT = "projects/*/serviceAccounts/*"


def _in_projects_and_organizations(verb: str, uri: str, body: str = "") -> list[dict[str, str]]:
    return [
        _option(verb, uri.replace("OWNER", f"{owner}/*"), body)
        for owner in ("projects", "organizations")
    ]


_IAM: Options = {
    "list_service_accounts": _get("/v1/{name=projects/*}/serviceAccounts"),
    "get_service_account": _get(f"/v1/{{name={_ACCOUNT}}}"),
    "create_service_account": _post("/v1/{name=projects/*}/serviceAccounts"),
    "update_service_account": [_option("put", f"/v1/{{name={_ACCOUNT}}}", "*")],
    "patch_service_account": [_option("patch", f"/v1/{{service_account.name={_ACCOUNT}}}", "*")],
    "delete_service_account": _delete(f"/v1/{{name={_ACCOUNT}}}"),
    "undelete_service_account": _post(f"/v1/{{name={_ACCOUNT}}}:undelete"),
    "enable_service_account": _post(f"/v1/{{name={_ACCOUNT}}}:enable"),
    "disable_service_account": _post(f"/v1/{{name={_ACCOUNT}}}:disable"),
    "list_service_account_keys": _get(f"/v1/{{name={_ACCOUNT}}}/keys"),
    "get_service_account_key": _get(f"/v1/{{name={_ACCOUNT}/keys/*}}"),
    "create_service_account_key": _post(f"/v1/{{name={_ACCOUNT}}}/keys"),
    "upload_service_account_key": _post(f"/v1/{{name={_ACCOUNT}}}/keys:upload"),
    "delete_service_account_key": _delete(f"/v1/{{name={_ACCOUNT}/keys/*}}"),
    "get_iam_policy": _post(f"/v1/{{resource={_ACCOUNT}}}:getIamPolicy", ""),
    "set_iam_policy": _post(f"/v1/{{resource={_ACCOUNT}}}:setIamPolicy"),
    "test_iam_permissions": _post(f"/v1/{{resource={_ACCOUNT}}}:testIamPermissions"),
    "query_grantable_roles": _post("/v1/roles:queryGrantableRoles"),
    "list_roles": [
        _option("get", "/v1/roles"),
        *_in_projects_and_organizations("get", "/v1/{parent=OWNER}/roles"),
    ],
    "get_role": [
        _option("get", "/v1/{name=roles/*}"),
        *_in_projects_and_organizations("get", "/v1/{name=OWNER/roles/*}"),
    ],
    "create_role": _in_projects_and_organizations("post", "/v1/{parent=OWNER}/roles", "*"),
    "update_role": _in_projects_and_organizations("patch", "/v1/{name=OWNER/roles/*}", "role"),
    "delete_role": _in_projects_and_organizations("delete", "/v1/{name=OWNER/roles/*}"),
    "undelete_role": _in_projects_and_organizations(
        "post", "/v1/{name=OWNER/roles/*}:undelete", "*"
    ),
    "query_testable_permissions": _post("/v1/permissions:queryTestablePermissions"),
}

# By gRPC service.
REST_RULES: Mapping[str, Options] = {
    "google.cloud.tpu.v1.Tpu": _TPU_V1,
    "google.cloud.tpu.v2alpha1.Tpu": _TPU_ALPHA,
    "google.iam.admin.v1.IAM": _IAM,
}
