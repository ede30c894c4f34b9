"""The workers' service account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound, TpuctlError
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, stack_of_description
from tpuctl.resources.base import Query, StackResource


class ServiceAccount(StackResource):
    """Created for the stack, and identified by its description."""

    kind = "account"
    group = "account"
    label = "the machines' service account"
    permissions = """
        read iam.serviceAccountAdmin iam.serviceAccounts.get
        create iam.serviceAccountAdmin iam.serviceAccounts.create iam.serviceAccounts.delete
        create iam.serviceAccountAdmin iam.serviceAccounts.list
    """

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.creates_service_account

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        request = {"name": f"projects/{query.project}", "page_size": 100}
        for account in query.cloud.client("iam").list_service_accounts(request, **query.options):
            if owner := stack_of_description(account.description):
                yield InventoryItem(cls, account.email.partition("@")[0], owner)

    @property
    def name(self) -> str:
        return self.stack.names.service_account

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"bucket/{self.stack.bucket}"})

    @property
    def path(self) -> str:
        return (
            f"projects/{self.stack.project}/serviceAccounts/"
            f"{self.stack.names.service_account_email}"
        )

    async def observe(self) -> Any | None:
        return await self.find("iam", "get_service_account", {"name": self.path})

    def diff(self, observed: Any | None) -> Change:
        if observed is None:
            return self.create("a dedicated account for the workers")
        self._check(observed)
        if observed.disabled:
            raise _disabled(self.stack)
        return self.nothing("the account exists")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self.find("iam", "delete_service_account", {"name": self.path})
            return
        await self.create_or_adopt(self._create, self.observe, report, check=self._check)

    async def _create(self) -> None:
        request = {
            "name": f"projects/{self.stack.project}",
            "account_id": self.name,
            "service_account": {
                "display_name": f"TPU workers of stack {self.stack.name}",
                "description": self.stack.names.ownership,
            },
        }
        await self.call("iam", "create_service_account", request)

    def _check(self, observed: Any) -> None:
        if not self.is_ours(observed):
            raise Conflict(
                "Name taken",
                f"service account {self.stack.names.service_account_email} exists and was not "
                f"created for stack {self.stack.name}",
                hint="Choose another stack name, or use that account with\n"
                f"    tpu: {{service_account: {self.stack.names.service_account_email}}}",
            )


async def require_account(stack: Stack, cloud: Cloud) -> None:
    """Raise NotFound or Conflict if machines cannot use the account that the stack file names.

    Google's default accounts may be created by enabling an API; others that cannot be read count as
    usable.
    """
    account = stack.service_account
    if stack.creates_service_account or not account.endswith(".iam.gserviceaccount.com"):
        return
    request = {"name": f"projects/-/serviceAccounts/{account}"}
    try:
        observed = await cloud.call(account, cloud.client("iam").get_service_account, request)
    except NotFound as error:
        raise NotFound(
            "Service account not found",
            f"{account} (tpu.service_account) does not exist, or was deleted; machines that were "
            "created with it have no access",
            hint="Correct tpu.service_account, or remove it to let tpuctl create an account. To "
            f"list accounts:\n    gcloud iam service-accounts list --project={stack.project}",
        ) from error
    except TpuctlError:
        return
    if observed.disabled:
        raise _disabled(stack)


def _disabled(stack: Stack) -> Conflict:
    return Conflict(
        "Service account is disabled",
        f"{stack.service_account}: machines that use it have no access",
        hint="Enable it:\n"
        f"    gcloud iam service-accounts enable {stack.service_account} --project={stack.project}",
    )
