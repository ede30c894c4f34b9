"""Cloud Billing v1: two accounts, one open and one closed, and which of them pays for a project.

Any project's API may ask: the API itself need not be enabled in the project that is linked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud.billing_v1.types import cloud_billing as messages
from google.iam.v1 import iam_policy_pb2

from tpuctl.emulator.iam.policies import Policies, concurrent_change, from_message, to_message
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.state.projects import BILLING_ACCOUNTS, OPEN_ACCOUNT, ORGANIZATION, Project
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, World

__all__ = ["BillingService"]

_ACCOUNT = re.compile(r"billingAccounts/[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}")
_FILTER = re.compile(r"\s*(?:open\s*=\s*(true|false))?\s*", re.IGNORECASE)


class BillingService:
    """The handlers of google.cloud.billing.v1.CloudBilling about accounts and their projects."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, world: World) -> None:
        self._world = world
        self._policies = Policies(world.store)

    def handler(self, service: str) -> BillingService:
        return self

    async def list_billing_accounts(self, request: Any, caller: Caller) -> Any:
        wanted = _FILTER.fullmatch(request.filter)
        if wanted is None:
            raise invalid(f"Invalid filter: {request.filter!r}.")
        may = self._world.authority.allows
        names = [one for one in BILLING_ACCOUNTS if may(caller.email, "billing.accounts.get", one)]
        if wanted[1]:
            is_open = wanted[1].lower() == "true"
            names = [name for name in names if (name == OPEN_ACCOUNT) == is_open]
        if request.parent not in ("", ORGANIZATION):
            names = []
        rows, token = page(names, request.page_size, request.page_token, str, max_size=100)
        return messages.ListBillingAccountsResponse.pb()(
            billing_accounts=[_account(name) for name in rows], next_page_token=token
        )

    async def get_billing_account(self, request: Any, caller: Caller) -> Any:
        return _account(self._check(request.name))

    async def list_project_billing_info(self, request: Any, caller: Caller) -> Any:
        account = self._check(request.name)
        chosen = [each for each in self._world.projects.all() if _payer(each) == account]
        rows, token = page(chosen, request.page_size, request.page_token, _identity, max_size=100)
        return messages.ListProjectBillingInfoResponse.pb()(
            project_billing_info=[_info(project) for project in rows], next_page_token=token
        )

    async def get_project_billing_info(self, request: Any, caller: Caller) -> Any:
        return _info(self._project(request.name))

    async def update_project_billing_info(self, request: Any, caller: Caller) -> Any:
        """Link, or unlink with an empty name.

        A closed account can be linked, and has the same effect as none: so say the method's own
        description and reports of those who did it.
        """
        project = self._project(request.name)
        account = request.project_billing_info.billing_account_name
        if account:
            self._check(account)
        self._world.projects.link(project, account)
        return _info(project)

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        account = self._check(request.resource)
        return to_message(self._policies.get(account))

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        account = self._check(request.resource)
        wanted = from_message(request.policy)
        return to_message(self._policies.set(account, wanted, concurrent_change()))

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        """Of an account that is not there, none.

        What Google answers for an absent account was not found.
        """
        if not _ACCOUNT.fullmatch(request.resource):
            raise invalid("Request contains an invalid argument.")
        if request.resource not in BILLING_ACCOUNTS:
            return iam_policy_pb2.TestIamPermissionsResponse()
        names = self._world.authority.granted(caller, request.resource, request.permissions)
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=names)

    @staticmethod
    def _check(name: str) -> str:
        """The account's name; absent and closed to the caller are one and the same to Google."""
        if not _ACCOUNT.fullmatch(name):
            raise invalid("Request contains an invalid argument.")
        if name not in BILLING_ACCOUNTS:
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        return name

    def _project(self, name: str) -> Project:
        kind, _, project = name.removesuffix("/billingInfo").partition("/")
        found = self._world.projects.find(project)
        if kind != "projects" or found is None or found["state"] != "ACTIVE":
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        return found


def _identity(project: Project) -> str:
    return str(project["id"])


def _payer(project: Project) -> str:
    """Its account; of a project from before there were accounts, the open one if it had billing."""
    return str(project.get("account", OPEN_ACCOUNT if project["billing"] else ""))


def _account(name: str) -> Any:
    return messages.BillingAccount.pb()(
        name=name,
        open_=name == OPEN_ACCOUNT,
        display_name=BILLING_ACCOUNTS[name],
        parent=ORGANIZATION,
        currency_code="USD",
    )


def _info(project: Project) -> Any:
    return messages.ProjectBillingInfo.pb()(
        name=f"projects/{project['id']}/billingInfo",
        project_id=project["id"],
        billing_account_name=_payer(project),
        billing_enabled=project["billing"],
    )
