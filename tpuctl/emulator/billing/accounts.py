"""Cloud Billing v1: two accounts, one open and one closed, and project billing info.

The API need not be enabled in the project that is linked.
"""

from __future__ import annotations

import re
from typing import Any

from google.cloud.billing_v1.types import cloud_billing as messages
from google.iam.v1 import iam_policy_pb2

from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.projects import BILLING_ACCOUNTS, OPEN_ACCOUNT, ORGANIZATION, Project
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller

_ACCOUNT = re.compile(r"billingAccounts/[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}")
_FILTER = re.compile(r"\s*(?:open\s*=\s*(true|false))?\s*", re.IGNORECASE)


class BillingService(PolicyHandlers):
    """Handlers of google.cloud.billing.v1.CloudBilling for accounts and their projects."""

    async def list_billing_accounts(self, request: Any, caller: Caller) -> Any:
        match = _FILTER.fullmatch(request.filter)
        if match is None:
            raise invalid(f"Invalid filter: {request.filter!r}.")
        allows = self._registry.authority.allows
        names = [
            account
            for account in BILLING_ACCOUNTS
            if allows(caller.email, "billing.accounts.get", account)
        ]
        if match[1]:
            is_open = match[1].lower() == "true"
            names = [name for name in names if (name == OPEN_ACCOUNT) == is_open]
        if request.parent not in ("", ORGANIZATION):
            names = []
        rows, token = requested_page(request, names, max_size=100)
        return messages.ListBillingAccountsResponse.pb()(
            billing_accounts=[_account(name) for name in rows], next_page_token=token
        )

    async def get_billing_account(self, request: Any, caller: Caller) -> Any:
        return _account(self._check(request.name))

    async def list_project_billing_info(self, request: Any, caller: Caller) -> Any:
        account = self._check(request.name)
        projects = [
            project
            for project in self._registry.projects.all()
            if _billing_account(project) == account
        ]
        rows, token = requested_page(
            request, projects, lambda project: str(project["id"]), max_size=100
        )
        return messages.ListProjectBillingInfoResponse.pb()(
            project_billing_info=[_info(project) for project in rows], next_page_token=token
        )

    async def get_project_billing_info(self, request: Any, caller: Caller) -> Any:
        return _info(self._project(request.name))

    async def update_project_billing_info(self, request: Any, caller: Caller) -> Any:
        """Link a billing account, or unlink it with an empty name.

        A closed account can be linked and has the same effect as none, according to the method's
        description and to user reports.
        """
        project = self._project(request.name)
        account = request.project_billing_info.billing_account_name
        if account:
            self._check(account)
        self._registry.projects.link(project, account)
        return _info(project)

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        """No permissions for an unknown account; Google's response for one is not documented."""
        if not _ACCOUNT.fullmatch(request.resource):
            raise invalid("Request contains an invalid argument.")
        if request.resource not in BILLING_ACCOUNTS:
            return iam_policy_pb2.TestIamPermissionsResponse()
        return await super().test_iam_permissions(request, caller)

    def _policy_name(self, resource: str, verb: str) -> str:
        return self._check(resource)

    @staticmethod
    def _check(name: str) -> str:
        """The account's name. Google's error is the same for unknown and inaccessible accounts."""
        if not _ACCOUNT.fullmatch(name):
            raise invalid("Request contains an invalid argument.")
        if name not in BILLING_ACCOUNTS:
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        return name

    def _project(self, name: str) -> Project:
        kind, _, project = name.removesuffix("/billingInfo").partition("/")
        record = self._registry.projects.find(project)
        if kind != "projects" or record is None or record["state"] != "ACTIVE":
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        return record


def _billing_account(project: Project) -> str:
    """The linked account. Projects stored before accounts existed use the open one if billed."""
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
        billing_account_name=_billing_account(project),
        billing_enabled=project["billing"],
    )
