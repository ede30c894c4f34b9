"""Custom roles that tpuctl creates in a project for least privilege.

One allows machines to get and delete machines, the other allows a controller to create the TPU, and
to take the stack down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict
from tpuctl.model.plan import Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import RECOVERY_ROLE, WATCHDOG_ROLE
from tpuctl.polling import Backoff
from tpuctl.resources.base import CloudKind, StackResource

TpuKinds = Callable[[Stack], Iterable[type[CloudKind]]]
SECONDS = 60.0
# Shared by TPU VMs, TPU nodes and queued resources: IAM has no separate permissions for queued
# resources (github.com/iann0036/iam-dataset, gcp/map.json).
WATCH_TPU = ("tpu.nodes.get", "tpu.nodes.delete")
WATCH_CONTROLLER = (
    "compute.instances.get",
    "compute.instances.delete",
    "compute.instances.getGuestAttributes",
)
WATCH_INSTANCES = ("compute.instances.get", "compute.instances.delete")
WATCH_GROUPS = (
    "compute.instances.get",
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroups.delete",
)
# To find the stack's other machines, and the time of their last activity.
WATCH_PEERS = ("compute.instances.list", "compute.instances.getGuestAttributes")
# Includes polling operations, listing nodes, and looking up the network before creating a node.
RECOVERY = (
    "tpu.nodes.get",
    "tpu.nodes.list",
    "tpu.nodes.create",
    "tpu.nodes.delete",
    "tpu.operations.get",
    "compute.networks.get",
)
# Likewise, in addition to what a kind declares; an operation reports a preemption.
RECOVERY_COMPUTE = (
    "compute.instances.getGuestAttributes",
    "compute.zoneOperations.list",
    "compute.networks.get",
)
# To delete, at the end, what is charged: the TPU, its disks, their NAT, and itself.
TAKE_DOWN = ("compute.instances.get", "compute.instances.delete")
TAKE_DOWN_DISKS = ("compute.disks.get", "compute.disks.delete", "compute.zoneOperations.get")
TAKE_DOWN_NAT = ("compute.routers.list", "compute.routers.delete", "compute.regionOperations.get")
# What only a user's `down` needs, to find what is left over.
CLEANUP = {
    *("compute.addresses.list", "compute.disks.list", "compute.routers.list"),
    *("compute.instanceTemplates.list", "compute.resourcePolicies.list"),
}
# With OS Login, to log in to the machines that run jobs, with sudo.
OS_LOGIN = ("compute.instances.osLogin", "compute.instances.osAdminLogin")
# The controller of a TPU node runs jobs, and looks itself up like any other worker.
CONTROLLER_LOOKUP = ("compute.instances.get", "compute.instances.getGuestAttributes")


def at_all_places(stack: Stack, needed: Callable[[Stack], Iterable[str]]) -> tuple[str, ...]:
    """The permissions that are needed wherever the stack's TPU may be created without its user."""
    places = stack.controller_places if stack.has_recovery else (stack.candidate,)
    of_each_kind = {(place.alternative, place.api): place for place in places}.values()
    names = (name for place in of_each_kind for name in needed(stack.at(place)))
    return tuple(dict.fromkeys(names))


def watchdog_permissions(stack: Stack) -> tuple[str, ...]:
    """The permissions that the watchdog on the stack's machines needs."""
    needed: tuple[str, ...] = WATCH_TPU
    if stack.is_compute:
        needed = WATCH_INSTANCES if stack.machine.hosts == 1 else WATCH_GROUPS
        if stack.worker_count > 1 or stack.controller is not None:
            needed += WATCH_PEERS
    return needed if stack.controller is None else (*dict.fromkeys(needed + WATCH_CONTROLLER),)


def recovery_permissions(stack: Stack, kinds: Iterable[type[CloudKind]]) -> tuple[str, ...]:
    """The permissions that the controller needs to create and delete the TPU, which is of these
    kinds, and to take the stack down, which it does not do beside a TPU node."""
    login = OS_LOGIN if stack.has_os_login else ()
    if stack.is_node:
        return RECOVERY + CONTROLLER_LOOKUP + login
    more = (
        *(TAKE_DOWN_DISKS if stack.file.tpu.data_disks else ()),
        *(TAKE_DOWN_NAT if stack.file.network.nat else ()),
        *login,
    )
    if stack.is_compute:
        lines = (line.split() for kind in kinds for line in kind.permissions.strip().splitlines())
        needed = (names for step, _, *names in lines if not step.startswith("update"))
        create = {name for names in needed for name in names if name.startswith("compute.")}
        create -= CLEANUP
        return tuple(sorted({*create, *RECOVERY_COMPUTE, *TAKE_DOWN, *more}))
    return RECOVERY + TAKE_DOWN + more


class ProjectRole(StackResource):
    """Shared by all stacks of the project, so permissions are only added.

    Never deleted: the ID of a deleted role is blocked for weeks, and an unassigned role grants
    nothing.
    """

    kind = "role"
    group = "project"
    label = "custom roles that allow machines to delete and create TPUs"
    unlisted_reason = "shared by all stacks of a project"
    permissions = """
        read iam.roleAdmin iam.roles.get
        create iam.roleAdmin iam.roles.create
        update iam.roleAdmin iam.roles.update
        update:deleted iam.roleAdmin iam.roles.undelete
    """
    optional: ClassVar = {
        "update": "extending a custom role of another stack, or restoring a deleted one"
    }

    after = frozenset({"apis/needed"})
    role: ClassVar[str]  # its ID
    title: ClassVar[str]
    lets: ClassVar[str]  # completes "allows …"
    needs_more: ClassVar[str]  # who may need more permissions

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.has_limits or stack.has_recovery

    @property
    def name(self) -> str:
        return self.role

    @property
    def path(self) -> str:
        return f"projects/{self.stack.project}/roles/{self.role}"

    @property
    def included(self) -> tuple[str, ...]:
        raise NotImplementedError

    async def observe(self) -> Any | None:
        return await self.find("iam", "get_role", {"name": self.path})

    def diff(self, observed: Any | None) -> Change:
        if observed is None:
            return self.create(f"project-wide: allows {self.lets}")
        missing = self._missing(observed)
        if observed.deleted:
            return self.update("project-wide: restoring the deleted role", ("deleted", *missing))
        if missing:
            return self.update(
                f"project-wide: {self.needs_more} of this stack needs more permissions", missing
            )
        return self.nothing("the role exists")

    def removal(self, observed: Any | None) -> Change:
        if observed is None:
            return self.nothing("does not exist")
        return self.leave("shared by the project's stacks; grants nothing by itself")

    async def apply(self, change: Change, report: Report) -> None:
        """Converge to the needed state; other stacks may do the same concurrently."""

        async def probe() -> bool | None:
            role = await self.observe()
            try:
                if role is None:
                    await self._create()
                elif role.deleted:
                    await self.call("iam", "undelete_role", {"name": self.path})
                elif self._missing(role):
                    await self._extend(role)
                else:
                    return True
            except Conflict as error:  # a concurrent change, or it is not visible yet
                report(str(error), None)
            return None

        backoff = Backoff(initial=0.05)  # usually visible at the second poll
        await self.poll(probe, f"role {self.role} being usable", SECONDS, backoff)

    async def _create(self) -> None:
        request = {
            "parent": f"projects/{self.stack.project}",
            "role_id": self.role,
            "role": {
                "title": self.title,
                "description": f"Created by tpuctl: allows {self.lets}.",
                "included_permissions": list(self.included),
                "stage": "GA",
            },
        }
        await self.call("iam", "create_role", request)

    async def _extend(self, role: Any) -> None:
        """With the etag that was read: other stacks extend it too."""
        permissions = [*role.included_permissions, *self._missing(role)]
        request = {
            "name": self.path,
            "role": {"included_permissions": permissions, "etag": role.etag},
            "update_mask": {"paths": ["included_permissions"]},
        }
        await self.call("iam", "update_role", request)

    def _missing(self, role: Any) -> tuple[str, ...]:
        existing = {*role.included_permissions}
        return tuple(permission for permission in self.included if permission not in existing)


class WatchdogRole(ProjectRole):
    """For machines of stacks with limits."""

    role = WATCHDOG_ROLE
    title = "tpuctl watchdog"
    lets = "machines to delete themselves at their limits"
    needs_more = "the watchdog"

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.has_limits

    @property
    def included(self) -> tuple[str, ...]:
        return at_all_places(self.stack, watchdog_permissions)


class RecoveryRole(ProjectRole):
    """For stacks whose controller runs and recovers jobs."""

    role = RECOVERY_ROLE
    title = "tpuctl recovery"
    lets = "the controller to create the TPU, also after preemption, and to take the stack down"
    needs_more = "the controller"

    def __init__(self, stack: Stack, cloud: Cloud, kinds: TpuKinds) -> None:
        """`kinds` are those of a stack's TPU."""
        super().__init__(stack, cloud)
        self.kinds = kinds

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.has_recovery

    @property
    def included(self) -> tuple[str, ...]:
        return at_all_places(self.stack, lambda at: recovery_permissions(at, self.kinds(at)))
