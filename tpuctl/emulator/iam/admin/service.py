"""IAM Admin v1: service accounts and their policies. Users' own keys are refused."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from google.cloud.iam_admin_v1.types import iam as messages
from google.iam.v1 import iam_policy_pb2

from tpuctl.emulator.iam.admin.roles import RoleHandlers
from tpuctl.emulator.iam.policies import (
    ACCOUNTS,
    Policies,
    concurrent_change,
    from_message,
    to_message,
)
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, World

__all__ = ["IdentityService"]

_ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
_KEY_LIFE = 2 * 366 * 24 * 3600  # "up to two years and one month", says IAM's guide of keys
_DELETED = "account-deleted"  # by unique id, for as long as the local cloud lives

Account = dict[str, Any]


class IdentityService(RoleHandlers):
    """The handlers of google.iam.admin.v1.IAM."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._store = world.store
        self._policies = Policies(world.store)

    def handler(self, service: str) -> IdentityService:
        return self

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
            # "It can take 60 seconds or more before you can use" a new one, IAM's guide says.
            "visible": time.time() + self._world.pace.seconds("identity.accounts.visible"),
        }
        self._store.put_json(ACCOUNTS, name, account)
        return _message(account)

    async def get_service_account(self, request: Any, caller: Caller) -> Any:
        return _message(self._get(request.name))

    async def list_service_accounts(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.name)
        accounts = self._store.list_json(ACCOUNTS, f"projects/{project['id']}/serviceAccounts/")
        rows, token = page(
            accounts, request.page_size or 20, request.page_token, _name_of, max_size=100
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
        self._store.put_json(ACCOUNTS, account["name"], account)
        return _message(account)

    async def delete_service_account(self, request: Any, caller: Caller) -> None:
        """Policies go on to name it, as `deleted:serviceAccount:EMAIL?uid=ID`.

        As cloud.google.com/iam/docs/service-accounts-delete-undelete shows.
        """
        account = self._get(request.name)
        with self._store.transaction():
            self._store.put_json(_DELETED, account["unique_id"], account)
            self._store.delete(ACCOUNTS, account["name"])
            self._policies.move(account["name"], f"{_DELETED}/{account['unique_id']}")
            self._policies.rename_member(_member(account), _deleted_member(account))
            self._world.access.revoke(account["email"])

    async def undelete_service_account(self, request: Any, caller: Caller) -> Any:
        """By unique id alone, and only while no new account has the e-mail."""
        key = request.name.rpartition("/")[2]
        account = self._store.get_json(_DELETED, key)
        if account is None:
            raise missing(f"Unknown service account: {key}")
        self._project(f"projects/{account['project']}")
        if self._store.get(ACCOUNTS, account["name"]) is not None:
            raise ApiError(  # the words are a guess
                "ALREADY_EXISTS", f"Service account {account['email']} already exists."
            )
        with self._store.transaction():
            self._store.delete(_DELETED, key)
            self._store.put_json(ACCOUNTS, account["name"], account)
            self._policies.move(f"{_DELETED}/{key}", account["name"])
            self._policies.rename_member(_deleted_member(account), _member(account))
        return messages.UndeleteServiceAccountResponse.pb()(restored_account=_message(account))

    async def list_service_account_keys(self, request: Any, caller: Caller) -> Any:
        """The one that Google keeps for the account: users' own cannot be made here."""
        account = self._get(request.name)
        own = messages.ListServiceAccountKeysRequest.KeyType.USER_MANAGED
        if request.key_types and set(request.key_types) == {own}:
            return messages.ListServiceAccountKeysResponse.pb()()
        return messages.ListServiceAccountKeysResponse.pb()(keys=[_key(account)])

    async def get_service_account_key(self, request: Any, caller: Caller) -> Any:
        name, _, key = request.name.rpartition("/keys/")
        found = _key(self._get(name))
        if not found.name.endswith(f"/{key}"):
            raise missing(f"Service account key {key} does not exist.")
        return found

    def _require_creation(self, project: Project) -> None:
        """docs.cloud.google.com/iam/docs/troubleshoot-org-policies has the answer."""
        constraint, own = "iam.disableServiceAccountCreation", f"projects/{project['id']}"
        if not OrgPolicies(self._store).is_enforced(own, constraint):
            return
        text = "Service account creation is not allowed on this project."
        violation = {
            "type": f"constraints/{constraint}",
            "subject": f"{own}/serviceAccounts/?configvalue=",
            "description": text,
        }
        kind = "type.googleapis.com/google.rpc.PreconditionFailure"
        details = [{"@type": kind, "violations": [violation]}]
        raise ApiError("FAILED_PRECONDITION", text, details=details)

    async def create_service_account_key(self, request: Any, caller: Caller) -> Any:
        """Refused, as in every organization made since May 2024 that has not allowed it.

        cloud.google.com/resource-manager/docs/secure-by-default-organizations; the words are in
        many public issues.
        """
        account = self._get(request.name)
        text = "Key creation is not allowed on this service account."
        violation = {
            "type": "constraints/iam.disableServiceAccountKeyCreation",
            "subject": f"{account['name']}?configvalue={quote(account['email'], safe='')}",
            "description": text,
        }
        failure = {
            "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
            "violations": [violation],
        }
        raise ApiError("FAILED_PRECONDITION", text, details=[failure])

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
        account = self._get(request.resource)
        names = self._world.authority.granted(caller, account["name"], request.permissions)
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=names)

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
        for account in self._store.list_json(ACCOUNTS):
            if key in (account["email"], account["unique_id"]):
                project = self._world.projects.find(found[1])
                if found[1] == "-" or (project and project["id"] == account["project"]):
                    return dict(account)
        raise missing(f"Unknown service account: {key}")

    def _switch(self, name: str, *, disabled: bool) -> None:
        account = self._get(name)
        account["disabled"] = disabled
        self._store.put_json(ACCOUNTS, account["name"], account)


def _key(account: Account) -> Any:
    """Made with the account; Google renews its own from time to time."""
    digest = hashlib.sha1(account["unique_id"].encode(), usedforsecurity=False).hexdigest()
    kind = messages.ServiceAccountKey
    answer = kind.pb()(
        name=f"{account['name']}/keys/{digest}",
        key_algorithm=messages.ServiceAccountKeyAlgorithm.KEY_ALG_RSA_2048,
        key_origin=messages.ServiceAccountKeyOrigin.GOOGLE_PROVIDED,
        key_type=messages.ListServiceAccountKeysRequest.KeyType.SYSTEM_MANAGED,
    )
    answer.valid_after_time.FromSeconds(int(account["visible"]))
    answer.valid_before_time.FromSeconds(int(account["visible"]) + _KEY_LIFE)
    return answer


def _member(account: Account) -> str:
    return f"serviceAccount:{account['email']}"


def _deleted_member(account: Account) -> str:
    return f"deleted:serviceAccount:{account['email']}?uid={account['unique_id']}"


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
