"""IAM Admin v1: service accounts and their policies."""

from __future__ import annotations

import base64
import re
import secrets
import time
from typing import Any

from google.cloud.iam_admin_v1.types import iam as messages

from tpuctl.emulator.iam.policies import ACCOUNTS
from tpuctl.emulator.iam_admin.keys import KeyHandlers, violation
from tpuctl.emulator.iam_admin.roles import RoleHandlers
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import ApiError, error_detail, invalid, missing
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller, Registry

_ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
_DELETED = "account-deleted"  # kind in the store, by unique ID; never purged

Account = dict[str, Any]


class IdentityService(RoleHandlers, KeyHandlers, PolicyHandlers):
    """Handlers of google.iam.admin.v1.IAM."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._store = registry.store

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
        self._require_creation(project)
        email = f"{account_id}@{project['id']}.iam.gserviceaccount.com"
        name = f"projects/{project['id']}/serviceAccounts/{email}"
        if self._store.get(ACCOUNTS, name) is not None:
            raise ApiError(
                "ALREADY_EXISTS",
                f"Service account {account_id} already exists within project "
                f"projects/{project['id']}.",
                details=[error_detail("ResourceInfo", resourceName=name)],
            )
        now = time.time()
        account: Account = {
            "name": name,
            "email": email,
            "project": project["id"],
            "unique_id": str(10**20 + secrets.randbelow(10**20)),
            "display_name": request.service_account.display_name,
            "description": request.service_account.description,
            "disabled": False,
            # IAM's guide: "It can take 60 seconds or more before you can use" a new account.
            "created_at": now,
            "visible_at": now + self._registry.pace.seconds("identity.accounts.visible"),
        }
        self._store.put_json(ACCOUNTS, name, account)
        return _message(account)

    async def get_service_account(self, request: Any, caller: Caller) -> Any:
        return _message(self._get(request.name))

    async def list_service_accounts(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.name)
        accounts = self._store.list_json(ACCOUNTS, f"projects/{project['id']}/serviceAccounts/")
        rows, token = requested_page(request, accounts, default_size=20, max_size=100)
        return messages.ListServiceAccountsResponse.pb()(
            accounts=[_message(row) for row in rows], next_page_token=token
        )

    async def patch_service_account(self, request: Any, caller: Caller) -> Any:
        """The response has only the name and what the mask names: k8s-config-connector@cdb85ecf17,
        mockgcp/mockiam/testdata/serviceaccount/crud."""
        account = self._get(request.service_account.name)
        paths = request.update_mask.paths or ("display_name", "description")
        for path in paths:
            if path not in ("display_name", "description"):
                raise invalid(f"The field {path!r} cannot be updated.")
            account[path] = getattr(request.service_account, path)
        self._store.put_json(ACCOUNTS, account["name"], account)
        changed = messages.ServiceAccount.pb()(name=account["name"])
        for path in paths:
            setattr(changed, path, account[path])
        return changed

    async def delete_service_account(self, request: Any, caller: Caller) -> None:
        """Policies keep it as `deleted:serviceAccount:EMAIL?uid=ID`; its keys are deleted.

        See cloud.google.com/iam/docs/service-accounts-delete-undelete.
        """
        account = self._get(request.name)
        with self._store.transaction():
            self._store.put_json(_DELETED, account["unique_id"], account)
            self._store.delete(ACCOUNTS, account["name"])
            self._policies.move(account["name"], f"{_DELETED}/{account['unique_id']}")
            self._policies.rename_member(_member(account), _deleted_member(account))
            self._registry.access.revoke(account["email"])

    async def undelete_service_account(self, request: Any, caller: Caller) -> Any:
        """By unique ID only, and only while no other account has the email."""
        key = request.name.rpartition("/")[2]
        account = self._store.get_json(_DELETED, key)
        if account is None:
            raise missing("Unknown service account")
        self._project(f"projects/{account['project']}")
        if self._store.get(ACCOUNTS, account["name"]) is not None:
            raise ApiError(  # the wording is a guess
                "ALREADY_EXISTS", f"Service account {account['email']} already exists."
            )
        with self._store.transaction():
            self._store.delete(_DELETED, key)
            self._store.put_json(ACCOUNTS, account["name"], account)
            self._policies.move(f"{_DELETED}/{key}", account["name"])
            self._policies.rename_member(_deleted_member(account), _member(account))
        return messages.UndeleteServiceAccountResponse.pb()(restored_account=_message(account))

    def _require_creation(self, project: Project) -> None:
        """Wording from docs.cloud.google.com/iam/docs/troubleshoot-org-policies."""
        constraint, resource = "iam.disableServiceAccountCreation", f"projects/{project['id']}"
        if OrgPolicies(self._store).is_enforced(resource, constraint):
            text = "Service account creation is not allowed on this project."
            raise violation(text, constraint, f"{resource}/serviceAccounts/?configvalue=")

    async def enable_service_account(self, request: Any, caller: Caller) -> None:
        self._switch(request.name, disabled=False)

    async def disable_service_account(self, request: Any, caller: Caller) -> None:
        self._switch(request.name, disabled=True)

    def _policy_name(self, resource: str, verb: str) -> str:
        return str(self._get(resource)["name"])

    def _project(self, name: str) -> Project:
        kind, _, project = name.partition("/")
        if kind != "projects" or not project:
            raise invalid(f"Invalid project name {name!r}.")
        return self._registry.projects.require(project, "iam.googleapis.com")

    def _get(self, name: str) -> Account:
        """By email or unique ID; the project may be a wildcard."""
        match = re.fullmatch(r"projects/([^/]+)/serviceAccounts/([^/]+)", name)
        if match is None:
            raise invalid(f"Invalid service account name {name!r}.")
        key = match[2]
        for account in self._store.list_json(ACCOUNTS):
            if key in (account["email"], account["unique_id"]):
                project = self._registry.projects.find(match[1])
                if match[1] == "-" or (project and project["id"] == account["project"]):
                    return dict(account)
        raise missing("Unknown service account")

    def _switch(self, name: str, *, disabled: bool) -> None:
        account = self._get(name)
        account["disabled"] = disabled
        self._store.put_json(ACCOUNTS, account["name"], account)


def _member(account: Account) -> str:
    return f"serviceAccount:{account['email']}"


def _deleted_member(account: Account) -> str:
    return f"deleted:serviceAccount:{account['email']}?uid={account['unique_id']}"


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
