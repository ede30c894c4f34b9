"""What the machines' accounts may do: the stack's bucket, and a few things of the project."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tpuctl.cloud.classification import ApiDisabled
from tpuctl.errors import NotFound
from tpuctl.model.inventory import Group, InventoryItem
from tpuctl.model.names import RECOVERY_ROLE, WATCH_ROLE, stack_of_account
from tpuctl.resources.base import Query
from tpuctl.resources.policy_grants import PolicyGrants
from tpuctl.resources.stack_record import Contents, Record

__all__ = ["ROLES", "WRITERS", "AccountGrants", "BucketGrants", "NodeGrants", "ProjectGrants"]

# objectAdmin lacks storage.buckets.get, which TensorFlow's gs:// asks for.
ROLES = ("roles/storage.objectAdmin", "roles/storage.legacyBucketReader")
WRITERS = ("roles/logging.logWriter", "roles/monitoring.metricWriter")
USER = "roles/iam.serviceAccountUser"


class BucketGrants(PolicyGrants):
    """Reading and writing of the stack's bucket, granted on the bucket itself."""

    kind = "grants"
    group: ClassVar[Group] = "bucket"
    label = "what the machines may do in the bucket"
    unlisted_reason = "they go with the bucket"
    permissions = """
        look storage.admin storage.buckets.getIamPolicy
        update storage.admin storage.buckets.setIamPolicy storage.objects.create
        update storage.admin storage.objects.delete
    """

    @property
    def name(self) -> str:
        return self.stack.bucket

    @property
    def on(self) -> str:
        return f"bucket/{self.stack.bucket}"

    @property
    def roles(self) -> tuple[str, ...]:
        return ROLES

    @property
    def after(self) -> frozenset[str]:
        needed = {f"bucket/{self.stack.bucket}"}
        if self.stack.creates_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    def _because(self) -> str:
        return "the workers read and write the bucket"

    async def _others(self) -> list[Contents | None]:
        return await Record(self.stack, self.cloud).others()

    async def _policy(self) -> Any:
        bucket = self.cloud.client("storage").bucket(self.stack.bucket)
        return await self.cloud.call(
            self.address, bucket.get_iam_policy, requested_policy_version=3
        )

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        policy.version = 3
        policy.bindings = bindings
        bucket = self.cloud.client("storage").bucket(self.stack.bucket)
        await self.cloud.call(self.address, bucket.set_iam_policy, policy)


class NodeGrants(BucketGrants):
    """The same for a TPU node's service agent, which reads and writes gs:// for its TensorFlow."""

    kind = "node-grants"
    group = "TPU"
    label = "what the TPU node may do in the bucket"
    unlisted_reason = "they go with the bucket"
    permissions = """
        look storage.admin storage.buckets.getIamPolicy
        update storage.admin storage.buckets.setIamPolicy storage.objects.create
        update storage.admin storage.objects.delete
    """

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"bucket/{self.stack.bucket}", f"tpu/{self.stack.names.node}"})

    @property
    def own_roles(self) -> tuple[str, ...]:
        return ()

    def _because(self) -> str:
        return "the TPU node reads and writes the bucket as its service agent"

    async def account(self) -> str | None:
        """As the node itself says it."""
        name = (
            f"projects/{self.stack.project}/locations/{self.stack.zone}/"
            f"nodes/{self.stack.names.node}"
        )
        try:
            node = await self.cloud.call(
                self.address, self.cloud.client("tpu_v1").get_node, {"name": name}
            )
        except (NotFound, ApiDisabled):
            return None
        return str(node.service_account) or None


@dataclass
class _Policy:
    """The policy of a project or an account: its bindings as mappings, and their message."""

    message: dict[str, Any]

    @classmethod
    def of(cls, policy: Any) -> _Policy:
        from google.protobuf import json_format

        return cls(json_format.MessageToDict(policy))

    @property
    def bindings(self) -> list[dict[str, Any]]:
        return list(self.message.get("bindings", ()))

    def with_bindings(self, bindings: list[dict[str, Any]]) -> Any:
        """The message with others in it."""
        from google.iam.v1 import policy_pb2
        from google.protobuf import json_format

        plain = [{**binding, "members": sorted(binding["members"])} for binding in bindings]
        message = {**self.message, "version": 3, "bindings": plain}
        return json_format.ParseDict(message, policy_pb2.Policy())


class ProjectGrants(PolicyGrants):
    """What cannot be granted on less than the project: writing logs and metrics, the watch."""

    kind = "project-grants"
    group = "project"
    label = "what the machines may do in the project"
    permissions = """
        look resourcemanager.projectIamAdmin resourcemanager.projects.getIamPolicy
        update resourcemanager.projectIamAdmin resourcemanager.projects.setIamPolicy
    """

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        """Who may delete or make machines by our roles, though their account may be gone."""
        project = query.project
        policy = query.cloud.client("projects").get_iam_policy(
            request={"resource": f"projects/{project}"}, **query.options
        )
        account = re.compile(rf"(?:deleted:)?serviceAccount:([^@]+)@{re.escape(project)}\.iam\.g")
        role_names = {f"projects/{project}/roles/{name}" for name in (WATCH_ROLE, RECOVERY_ROLE)}
        members = (
            member for each in policy.bindings if each.role in role_names for member in each.members
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
        """An account that was given is the giver's: it gets only what limits and recovery need."""
        writers = WRITERS if self.stack.creates_service_account else ()
        watch = (self.stack.names.watch_role,) if self.stack.has_limits else ()
        recovery = (self.stack.names.recovery_role,) if self.stack.has_recovery else ()
        return (*writers, *watch, *recovery)

    @property
    def own_roles(self) -> tuple[str, ...]:
        names = self.stack.names
        return (*WRITERS, names.watch_role, names.recovery_role)

    @property
    def after(self) -> frozenset[str]:
        """After the bucket, since the record lies there."""
        needed = {"apis/needed", f"bucket/{self.stack.bucket}"}
        needed |= {f"role/{name}" for name in (WATCH_ROLE, RECOVERY_ROLE)}
        if self.stack.creates_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    def _because(self) -> str:
        watch = ", and delete themselves at their limits" if self.stack.has_limits else ""
        recovery = ", and the controller makes the TPU anew" if self.stack.has_recovery else ""
        return f"project-wide: the machines write logs and metrics{watch}{recovery}"

    async def _policy(self) -> _Policy:
        request = {
            "resource": f"projects/{self.stack.project}",
            "options": {"requested_policy_version": 3},
        }
        client = self.cloud.client("projects")
        return _Policy.of(await self.cloud.call(self.address, client.get_iam_policy, request))

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        request = {
            "resource": f"projects/{self.stack.project}",
            "policy": policy.with_bindings(bindings),
        }
        client = self.cloud.client("projects")
        await self.cloud.call(self.address, client.set_iam_policy, request)


class AccountGrants(PolicyGrants):
    """The account may act as itself: Google asks that of whoever makes a machine with an account.

    Granted on the account alone, and needed where the stack's controller makes the TPU anew.
    """

    kind = "account-grants"
    group = "account"
    label = "who may act as that account"
    unlisted_reason = "they go with the account"
    permissions = """
        look iam.serviceAccountAdmin iam.serviceAccounts.getIamPolicy
        update iam.serviceAccountAdmin iam.serviceAccounts.setIamPolicy
        update storage.admin storage.objects.create storage.objects.delete
    """

    @property
    def name(self) -> str:
        return self.stack.service_account.partition("@")[0]

    @property
    def on(self) -> str:
        return f"account/{self.stack.service_account}"

    @property
    def roles(self) -> tuple[str, ...]:
        return (USER,)

    @property
    def after(self) -> frozenset[str]:
        needed = {f"bucket/{self.stack.bucket}"}
        if self.stack.creates_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    def _because(self) -> str:
        return "the controller makes machines with the account that it has itself"

    @property
    def _resource(self) -> str:
        return f"projects/-/serviceAccounts/{self.stack.service_account}"

    async def _policy(self) -> _Policy:
        request = {"resource": self._resource, "options": {"requested_policy_version": 3}}
        client = self.cloud.client("iam")
        return _Policy.of(await self.cloud.call(self.address, client.get_iam_policy, request))

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        request = {"resource": self._resource, "policy": policy.with_bindings(bindings)}
        client = self.cloud.client("iam")
        await self.cloud.call(self.address, client.set_iam_policy, request)
