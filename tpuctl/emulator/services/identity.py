"""IAM Admin v1: service accounts and their policies. Keys and custom roles are not imitated."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping
from typing import Any

from google.cloud.iam_admin_v1.types import iam as messages
from google.iam.v1 import iam_policy_pb2

from tpuctl.emulator.operations import Effect
from tpuctl.emulator.paging import page
from tpuctl.emulator.policies import Policies, concurrent_change, from_message, to_message
from tpuctl.emulator.projects import Project
from tpuctl.emulator.status import ApiError, invalid, missing
from tpuctl.emulator.world import Caller, World

__all__ = ["IdentityService"]

_ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
_KIND = "account"

Account = dict[str, Any]


class IdentityService:
    """The handlers of google.iam.admin.v1.IAM that are about service accounts."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._policies = Policies(world.store)

    def handler(self, service: str) -> IdentityService:
        return self

    async def resume(self) -> None:
        return None

    async def create_service_account(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.name)
        account_id = request.account_id
        if not _ACCOUNT_ID.fullmatch(account_id):
            raise invalid(
                f"Invalid service account id {account_id!r}: 6 to 30 lower-case letters, digits "
                "and hyphens, a letter first, no hyphen last."
            )
        if len(request.service_account.display_name) > 100:
            raise invalid("The display name is longer than 100 characters.")
        email = f"{account_id}@{project['id']}.iam.gserviceaccount.com"
        name = f"projects/{project['id']}/serviceAccounts/{email}"
        if self._store.get(_KIND, name) is not None:
            raise ApiError(
                "ALREADY_EXISTS",
                f"Service account {account_id} already exists within project "
                f"projects/{project['id']}.",
                details=[
                    {
                        "@type": "type.googleapis.com/google.rpc.ResourceInfo",
                        "resourceName": name,
                    }
                ],
            )
        account: Account = {
            "name": name,
            "email": email,
            "project": project["id"],
            "unique_id": str(10**20 + secrets.randbelow(10**20)),
            "display_name": request.service_account.display_name,
            "description": request.service_account.description,
            "disabled": False,
        }
        self._store.put_json(_KIND, name, account)
        return _message(account)

    async def get_service_account(self, request: Any, caller: Caller) -> Any:
        return _message(self._get(request.name))

    async def list_service_accounts(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.name)
        accounts = self._store.list_json(_KIND, f"projects/{project['id']}/serviceAccounts/")
        rows, token = page(
            accounts, request.page_size or 20, request.page_token, _name_of, most=100
        )
        return messages.ListServiceAccountsResponse.pb()(
            accounts=[_message(row) for row in rows], next_page_token=token
        )

    async def patch_service_account(self, request: Any, caller: Caller) -> Any:
        account = self._get(request.service_account.name)
        for path in request.update_mask.paths or ("display_name", "description"):
            if path not in ("display_name", "description"):
                raise invalid(f"The field {path!r} cannot be updated.")
            account[path] = getattr(request.service_account, path)
        self._store.put_json(_KIND, account["name"], account)
        return _message(account)

    async def delete_service_account(self, request: Any, caller: Caller) -> None:
        account = self._get(request.name)
        with self._store.transaction():
            self._store.delete(_KIND, account["name"])
            self._policies.delete(account["name"])
            self._world.access.revoke(account["email"])

    async def enable_service_account(self, request: Any, caller: Caller) -> None:
        self._switch(request.name, disabled=False)

    async def disable_service_account(self, request: Any, caller: Caller) -> None:
        self._switch(request.name, disabled=True)

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        account = self._get(request.resource)
        return to_message(self._policies.get(account["name"]))

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        account = self._get(request.resource)
        wanted = from_message(request.policy)
        return to_message(self._policies.set(account["name"], wanted, concurrent_change()))

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        """Every permission asked for: policies are kept but not enforced yet."""
        self._get(request.resource)
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=request.permissions)

    def _project(self, name: str) -> Project:
        kind, _, project = name.partition("/")
        if kind != "projects" or not project:
            raise invalid(f"Invalid project name {name!r}.")
        return self._world.projects.require(project, "iam.googleapis.com")

    def _get(self, name: str) -> Account:
        """By e-mail or unique id; the project may be a wildcard."""
        found = re.fullmatch(r"projects/([^/]+)/serviceAccounts/([^/]+)", name)
        if found is None:
            raise invalid(f"Invalid service account name {name!r}.")
        key = found[2]
        for account in self._store.list_json(_KIND):
            if key in (account["email"], account["unique_id"]):
                project = self._world.projects.find(found[1])
                if found[1] == "-" or (project and project["id"] == account["project"]):
                    return dict(account)
        raise missing(f"Unknown service account: {key}")

    def _switch(self, name: str, *, disabled: bool) -> None:
        account = self._get(name)
        account["disabled"] = disabled
        self._store.put_json(_KIND, account["name"], account)


def _name_of(account: Account) -> str:
    return str(account["name"])


def _message(account: Account) -> Any:
    return messages.ServiceAccount.pb()(
        name=account["name"],
        project_id=account["project"],
        unique_id=account["unique_id"],
        email=account["email"],
        display_name=account["display_name"],
        description=account["description"],
        oauth2_client_id=account["unique_id"],
        disabled=account["disabled"],
        etag=base64.b64encode(b"account-1"),
    )
