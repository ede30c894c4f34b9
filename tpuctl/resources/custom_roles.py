"""The custom roles that tpuctl makes in a project, so that machines may do no more than they must.

One lets them look at machines and delete them, the other lets a controller make the TPU anew.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tpuctl.cloud.classification import ApiDisabled
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.names import RECOVERY_ROLE, WATCH_ROLE
from tpuctl.model.plan import Change
from tpuctl.model.stack import Stack
from tpuctl.polling import Backoff, wait_until
from tpuctl.resources.base import StackResource

__all__ = [
    "RecoveryRole",
    "WatchRole",
    "recovery_permissions",
    "watch_permissions",
]

SECONDS = 60.0
# TPU VMs, TPU nodes and queued resources share these: IAM knows no permissions by the name of
# queued resources (github.com/iann0036/iam-dataset, gcp/map.json).
WATCH_TPU = ("tpu.nodes.get", "tpu.nodes.delete")
WATCH_CONTROLLER = (
    "compute.instances.get",
    "compute.instances.delete",
    "compute.instances.getGuestAttributes",
)
# Waiting for an operation asks about it; nodes of a stack are found by listing; the name of the
# network is asked for before a node is put into it.
RECOVERY = (
    "tpu.nodes.get",
    "tpu.nodes.list",
    "tpu.nodes.create",
    "tpu.nodes.delete",
    "tpu.operations.get",
    "compute.networks.get",
)
# The controller of a TPU node runs its jobs, and finds itself like any other machine that does.
CONTROLLER_LOOKUP = ("compute.instances.get", "compute.instances.getGuestAttributes")


def watch_permissions(stack: Stack) -> tuple[str, ...]:
    """What the watch on the stack's machines needs, and nothing more."""
    return WATCH_TPU if stack.controller is None else WATCH_TPU + WATCH_CONTROLLER


def recovery_permissions(stack: Stack) -> tuple[str, ...]:
    """What the controller needs to make the TPU anew, and nothing more."""
    return RECOVERY + CONTROLLER_LOOKUP if stack.is_node else RECOVERY


class ProjectRole(StackResource):
    """Shared by all stacks of the project, so that it only ever gains permissions.

    Never deleted: a deleted role's id cannot be used again for weeks, and a role that nobody is
    given grants nothing.
    """

    kind = "role"
    group = "project"
    label = "the custom roles by which machines delete and make TPUs"
    unlisted_reason = "all stacks of a project share them"
    permissions = """
        look iam.roleAdmin iam.roles.get
        create iam.roleAdmin iam.roles.create
        update iam.roleAdmin iam.roles.update
        update:deleted iam.roleAdmin iam.roles.undelete
    """
    optional = (
        "update",
        "extending a custom role that another stack made, or one that was deleted",
    )

    role: ClassVar[str]  # its id
    title: ClassVar[str]
    lets: ClassVar[str]  # whom do what
    needs_more: ClassVar[str]  # what may need more than the role has

    @property
    def name(self) -> str:
        return self.role

    @property
    def path(self) -> str:
        return f"projects/{self.stack.project}/roles/{self.role}"

    @property
    def included(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def after(self) -> frozenset[str]:
        return frozenset({"apis/needed"})

    async def observe(self) -> Any | None:
        client = self.cloud.client("iam")
        try:
            return await self.cloud.call(self.address, client.get_role, {"name": self.path})
        except (NotFound, ApiDisabled):
            return None

    def diff(self, observed: Any | None) -> Change:
        if observed is None:
            return self.create(f"project-wide: lets {self.lets}")
        missing = self._missing(observed)
        if observed.deleted:
            return self.update("project-wide: it was deleted, and is needed", ("deleted", *missing))
        if missing:
            return self.update(f"project-wide: {self.needs_more} of this stack needs more", missing)
        return self.nothing("the role is there")

    def removal(self, observed: Any | None) -> Change:
        if observed is None:
            return self.nothing("there is none")
        return self.leave("the project's stacks share it; alone it grants nothing")

    async def apply(self, change: Change, report: Report) -> None:
        """Bring it to what is needed, however it is found: other stacks do the same."""

        async def probe() -> bool | None:
            role = await self.observe()
            try:
                if role is None:
                    await self._create()
                elif role.deleted:
                    await self._call("undelete_role", {"name": self.path})
                elif self._missing(role):
                    await self._extend(role)
                else:
                    return True
            except Conflict as error:  # somebody else was faster, or it is not visible yet
                report(str(error), None)
            return None

        await wait_until(
            probe,
            description=f"role {self.role} being usable",
            seconds=SECONDS,
            backoff=Backoff(
                initial=0.05
            ),  # as a rule the second look finds it: machines wait for it
            clock=self.cloud.clock,
        )

    async def _create(self) -> None:
        request = {
            "parent": f"projects/{self.stack.project}",
            "role_id": self.role,
            "role": {
                "title": self.title,
                "description": f"Made by tpuctl: lets {self.lets}.",
                "included_permissions": list(self.included),
                "stage": "GA",
            },
        }
        await self._call("create_role", request)

    async def _extend(self, role: Any) -> None:
        """Under the etag that was read: other stacks extend it too."""
        permissions = [*role.included_permissions, *self._missing(role)]
        request = {
            "name": self.path,
            "role": {"included_permissions": permissions, "etag": role.etag},
            "update_mask": {"paths": ["included_permissions"]},
        }
        await self._call("update_role", request)

    async def _call(self, method: str, request: dict[str, Any]) -> None:
        client = self.cloud.client("iam")
        await self.cloud.call(self.address, getattr(client, method), request)

    def _missing(self, role: Any) -> tuple[str, ...]:
        existing = {*role.included_permissions}
        return tuple(permission for permission in self.included if permission not in existing)


class WatchRole(ProjectRole):
    """For all machines of stacks with limits."""

    role = WATCH_ROLE
    title = "tpuctl watch"
    lets = "the machines delete themselves at their limits"
    needs_more = "the watch"

    @property
    def included(self) -> tuple[str, ...]:
        return watch_permissions(self.stack)


class RecoveryRole(ProjectRole):
    """For the machines of stacks whose controller recovers their jobs."""

    role = RECOVERY_ROLE
    title = "tpuctl recovery"
    lets = "the controller make the TPU anew when it was taken away"
    needs_more = "the controller"

    @property
    def included(self) -> tuple[str, ...]:
        return recovery_permissions(self.stack)
