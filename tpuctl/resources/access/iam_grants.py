"""Grants for the machines' accounts, on the stack's bucket, project and account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import Group, InventoryItem
from tpuctl.model.text.names import RECOVERY_ROLE, WATCHDOG_ROLE, stack_of_account
from tpuctl.resources.access.policy_grants import ApiPolicyGrants, PolicyGrants
from tpuctl.resources.base import Query
from tpuctl.resources.project.stack_record import Contents, Record

# objectAdmin lacks storage.buckets.get, which TensorFlow's gs:// needs.
ROLES = ("roles/storage.objectAdmin", "roles/storage.legacyBucketReader")
BUDGET_ROLES = ("roles/storage.objectUser",)
WRITERS = ("roles/logging.logWriter", "roles/monitoring.metricWriter")
USER = "roles/iam.serviceAccountUser"


class BucketGrants(PolicyGrants):
    """Read and write access to the stack's bucket, granted on the bucket."""

    kind = "grants"
    group: ClassVar[Group] = "bucket"
    label = "the machines' access to the bucket"
    unlisted_reason = "they are deleted with the bucket"
    permissions = """
        read storage.admin storage.buckets.getIamPolicy
        update storage.admin storage.buckets.setIamPolicy storage.objects.create
        update storage.admin storage.objects.delete
    """
    roles: ClassVar[tuple[str, ...]] = ROLES
    purpose = "workers need to read and write the bucket"

    @property
    def name(self) -> str:
        return self.stack.bucket

    @property
    def on(self) -> str:
        return f"bucket/{self.name}"

    async def _others(self) -> list[Contents | None]:
        return await Record(self.stack, self.cloud).others()

    async def _policy(self) -> Any:
        bucket = self.cloud.client("storage").bucket(self.name)
        return await self.cloud.call(
            self.address, bucket.get_iam_policy, requested_policy_version=3
        )

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        policy.version = 3
        policy.bindings = bindings
        bucket = self.cloud.client("storage").bucket(self.name)
        await self.cloud.call(self.address, bucket.set_iam_policy, policy)


class BudgetGrants(BucketGrants):
    """Read and write access to the ledger that all stacks of the project with a budget share."""

    kind = "budget-grants"
    label = "the machines' access to the project's budget"
    unlisted_reason = "in the stack's record"
    roles = BUDGET_ROLES
    purpose = "machines count what they spend"

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.budget is not None

    @property
    def name(self) -> str:
        return self.stack.names.budget_bucket

    @property
    def after(self) -> frozenset[str]:
        return super().after | {self.bucket_address}

    @property
    def bucket_address(self) -> str:
        return f"budget/{self.name}"

    async def _others(self) -> list[Contents | None]:
        if self.stack.creates_service_account:
            return []
        return await Record(self.stack, self.cloud).others_of_project()


class NodeGrants(BucketGrants):
    """The same for a TPU node's service agent, which TensorFlow on the node uses for gs://."""

    kind = "node-grants"
    group = "TPU"
    label = "the TPU node's access to the bucket"
    own_roles = ()
    purpose = "the TPU node's service agent needs to read and write the bucket"

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.is_node

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"bucket/{self.stack.bucket}", f"tpu/{self.stack.names.node}"})

    async def account(self) -> str | None:
        """The service agent that the node reports."""
        name = (
            f"projects/{self.stack.project}/locations/{self.stack.zone}/"
            f"nodes/{self.stack.names.node}"
        )
        node = await self.find("tpu_v1", "get_node", {"name": name})
        return (str(node.service_account) or None) if node is not None else None


class ProjectGrants(ApiPolicyGrants):
    """What can only be granted on the project: writing logs and metrics, watchdog and recovery
    roles."""

    kind = "project-grants"
    client = "projects"
    group = "project"
    label = "the machines' access to the project"
    permissions = """
        read resourcemanager.projectIamAdmin resourcemanager.projects.getIamPolicy
        update resourcemanager.projectIamAdmin resourcemanager.projects.setIamPolicy
    """

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        """Members with our custom roles, including deleted accounts."""
        project = query.project
        policy = query.cloud.client("projects").get_iam_policy(
            request={"resource": f"projects/{project}"}, **query.options
        )
        account = re.compile(rf"(?:deleted:)?serviceAccount:([^@]+)@{re.escape(project)}\.iam\.g")
        role_names = {f"projects/{project}/roles/{name}" for name in (WATCHDOG_ROLE, RECOVERY_ROLE)}
        members = (
            member
            for binding in policy.bindings
            if binding.role in role_names
            for member in binding.members
        )
        matches = (match for member in members if (match := account.match(member)))
        for owner in sorted({stack for match in matches if (stack := stack_of_account(match[1]))}):
            yield InventoryItem(cls, project, owner)

    @property
    def name(self) -> str:
        return self.stack.project

    @property
    def on(self) -> str:
        return f"project/{self.stack.project}"

    @property
    def roles(self) -> tuple[str, ...]:
        """A user-provided account gets only what limits and recovery need."""
        writers = WRITERS if self.stack.creates_service_account else ()
        watch = (self.stack.names.watchdog_role,) if self.stack.has_limits else ()
        recovery = (self.stack.names.recovery_role,) if self.stack.has_recovery else ()
        return (*writers, *watch, *recovery)

    @property
    def own_roles(self) -> tuple[str, ...]:
        names = self.stack.names
        return (*WRITERS, names.watchdog_role, names.recovery_role)

    @property
    def after(self) -> frozenset[str]:
        roles = {f"role/{name}" for name in (WATCHDOG_ROLE, RECOVERY_ROLE)}
        return super().after | roles | {"apis/needed"}

    @property
    def resource_name(self) -> str:
        return f"projects/{self.stack.project}"

    @property
    def purpose(self) -> str:  # type: ignore[override]
        watch = ", delete themselves at their limits" if self.stack.has_limits else ""
        recovery = ", recreate the TPU" if self.stack.has_recovery else ""
        return f"project-wide: machines write logs and metrics{watch}{recovery}"


class AccountGrants(ApiPolicyGrants):
    """Allows the account to act as itself, as creating a machine with an account requires.

    Granted on the account only, if the stack's controller recreates the TPU.
    """

    kind = "account-grants"
    client = "iam"
    group = "account"
    label = "permission to act as that account"
    unlisted_reason = "they are deleted with the account"
    permissions = """
        read iam.serviceAccountAdmin iam.serviceAccounts.getIamPolicy
        update iam.serviceAccountAdmin iam.serviceAccounts.setIamPolicy
        update storage.admin storage.objects.create storage.objects.delete
    """
    roles = (USER,)
    purpose = "the controller creates machines with its own account"

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        """A TPU node's machines have an account of Google's; its controller only logs in to itself,
        for which OS Login asks."""
        return stack.has_recovery and (not stack.is_node or stack.has_os_login)

    @property
    def name(self) -> str:
        return self.stack.service_account.partition("@")[0]

    @property
    def on(self) -> str:
        return f"account/{self.stack.service_account}"

    @property
    def resource_name(self) -> str:
        return f"projects/-/serviceAccounts/{self.stack.service_account}"
