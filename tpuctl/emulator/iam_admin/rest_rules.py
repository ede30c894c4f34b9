"""HTTP rules of IAM Admin v1, whose client speaks gRPC only.

From Google's discovery document, as the Google Cloud SDK's generated clients carry it
(`generated_clients/apis/iam`, SDK 528).
"""

from __future__ import annotations

from tpuctl.emulator.wire.rest_rules import Options, delete, get, option, post

_ACCOUNT = "projects/*/serviceAccounts/*"


def _in_projects_and_organizations(verb: str, uri: str, body: str = "") -> list[dict[str, str]]:
    return [
        option(verb, uri.replace("OWNER", f"{owner}/*"), body)
        for owner in ("projects", "organizations")
    ]


IAM: Options = {
    "list_service_accounts": get("/v1/{name=projects/*}/serviceAccounts"),
    "get_service_account": get(f"/v1/{{name={_ACCOUNT}}}"),
    "create_service_account": post("/v1/{name=projects/*}/serviceAccounts"),
    "update_service_account": [option("put", f"/v1/{{name={_ACCOUNT}}}", "*")],
    "patch_service_account": [option("patch", f"/v1/{{service_account.name={_ACCOUNT}}}", "*")],
    "delete_service_account": delete(f"/v1/{{name={_ACCOUNT}}}"),
    "undelete_service_account": post(f"/v1/{{name={_ACCOUNT}}}:undelete"),
    "enable_service_account": post(f"/v1/{{name={_ACCOUNT}}}:enable"),
    "disable_service_account": post(f"/v1/{{name={_ACCOUNT}}}:disable"),
    "list_service_account_keys": get(f"/v1/{{name={_ACCOUNT}}}/keys"),
    "get_service_account_key": get(f"/v1/{{name={_ACCOUNT}/keys/*}}"),
    "create_service_account_key": post(f"/v1/{{name={_ACCOUNT}}}/keys"),
    "upload_service_account_key": post(f"/v1/{{name={_ACCOUNT}}}/keys:upload"),
    "delete_service_account_key": delete(f"/v1/{{name={_ACCOUNT}/keys/*}}"),
    "disable_service_account_key": post(f"/v1/{{name={_ACCOUNT}/keys/*}}:disable"),
    "enable_service_account_key": post(f"/v1/{{name={_ACCOUNT}/keys/*}}:enable"),
    "get_iam_policy": post(f"/v1/{{resource={_ACCOUNT}}}:getIamPolicy", ""),
    "set_iam_policy": post(f"/v1/{{resource={_ACCOUNT}}}:setIamPolicy"),
    "test_iam_permissions": post(f"/v1/{{resource={_ACCOUNT}}}:testIamPermissions"),
    "query_grantable_roles": post("/v1/roles:queryGrantableRoles"),
    "list_roles": [
        option("get", "/v1/roles"),
        *_in_projects_and_organizations("get", "/v1/{parent=OWNER}/roles"),
    ],
    "get_role": [
        option("get", "/v1/{name=roles/*}"),
        *_in_projects_and_organizations("get", "/v1/{name=OWNER/roles/*}"),
    ],
    "create_role": _in_projects_and_organizations("post", "/v1/{parent=OWNER}/roles", "*"),
    "update_role": _in_projects_and_organizations("patch", "/v1/{name=OWNER/roles/*}", "role"),
    "delete_role": _in_projects_and_organizations("delete", "/v1/{name=OWNER/roles/*}"),
    "undelete_role": _in_projects_and_organizations(
        "post", "/v1/{name=OWNER/roles/*}:undelete", "*"
    ),
    "query_testable_permissions": post("/v1/permissions:queryTestablePermissions"),
}
