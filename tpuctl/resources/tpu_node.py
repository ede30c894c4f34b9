"""The TPU VM node: one or more workers that carry the chips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl.cloud.errors import ApiDisabled
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NoCapacity, NotFound, OperationFailed, Usage
from tpuctl.model.names import STACK_LABEL
from tpuctl.model.plan import Action, Change
from tpuctl.resources.base import StackResource, once_visible
from tpuctl.resources.network import Network
from tpuctl.waiting import Backoff, wait_until

__all__ = ["TpuNode", "public_key_line", "ssh_keys_with"]

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CREATE_SECONDS = 1800.0
DELETE_SECONDS = 900.0
ON_ITS_WAY = ("CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING")
BEYOND_USE = ("PREEMPTED", "TERMINATED")


def public_key_line(user: str, public_key: str) -> str:
    """One line of `ssh-keys` metadata: USER:TYPE KEY USER."""
    kind, key = public_key.split()[:2]
    return f"{user}:{kind} {key} {user}"


def ssh_keys_with(existing: str, line: str) -> str:
    """The metadata value with one more line, others' lines kept."""
    lines = [one for one in existing.splitlines() if one.strip()]
    return "\n".join(lines if line in lines else [*lines, line])


class TpuNode(StackResource):
    """Made with the stack's label, tag, account and key; replaced when it was preempted."""

    kind = "node"
    is_billable = True

    def __init__(self, network: Network, public_key: Callable[[], str]) -> None:
        super().__init__(network.stack, network.cloud)
        self.network = network
        self.public_key = public_key  # called when needed: making a key is work
        self.zone = self.stack.zone
        self._name = self.stack.names.node

    @property
    def name(self) -> str:
        return self._name

    def elsewhere(self, zone: str, name: str) -> TpuNode:
        """A node of the stack that its file no longer describes: it can be taken down."""
        node = TpuNode(self.network, self.public_key)
        node.zone, node._name = zone, name
        return node

    @property
    def address(self) -> str:
        at_home = self.zone == self.stack.zone
        return f"{self.kind}/{self.name}" if at_home else f"{self.kind}/{self.zone}/{self.name}"

    @property
    def path(self) -> str:
        return f"projects/{self.stack.project}/locations/{self.zone}/nodes/{self.name}"

    @property
    def after(self) -> frozenset[str]:
        needed = {self.network.address}
        if self.stack.makes_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    @property
    def key_line(self) -> str:
        return public_key_line(self.stack.user, self.public_key())

    async def observe(self) -> Any | None:
        client = self.cloud.client("tpu")
        try:
            return await self.cloud.call(self.address, client.get_node, {"name": self.path})
        except (NotFound, ApiDisabled):
            return None

    def diff(self, observed: Any | None) -> Change:
        type_name = self.stack.accelerator.name
        if observed is None:
            return self.create(f"no node in {self.zone}: a {type_name} will be made")
        self._check(observed)
        state = observed.state.name
        if state in BEYOND_USE:
            return self.create(f"the node is {state} and is made again")
        for what, have, want in (
            ("type", observed.accelerator_type, type_name),
            ("runtime", observed.runtime_version, self.stack.runtime.version),
        ):
            if have != want:
                raise Conflict(
                    "Node differs",
                    f"node {self.name} has {what} {have}, the stack file says {want}",
                    hint="Take it down first, then bring it up anew:\n    tpuctl down",
                )
        if state == "STOPPED":
            return self.update("the node is STOPPED and is started", ("state",))
        if state in ON_ITS_WAY:
            return self.update(f"the node is {state}: waiting for it", ("wait",))
        if state != "READY":
            raise Conflict(
                "Node not usable",
                f"node {self.name} is {state}",
                hint="Wait until that has ended, then bring it up again. See how it is with\n"
                "    tpuctl status",
            )
        if self.key_line not in observed.metadata.get("ssh-keys", "").splitlines():
            return self.update("this machine's SSH key is added", ("ssh-keys",))
        return self.nothing(f"node is READY with {type_name}")

    def is_ours(self, observed: Any) -> bool:
        return bool(observed.labels.get(STACK_LABEL) == self.stack.name)

    def removal(self, observed: Any | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        return self.delete(f"{observed.accelerator_type} is charged while it exists")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete(report)
        elif change.action is Action.CREATE:
            found = await self.observe()
            if found is not None and found.state.name in BEYOND_USE:
                await self._delete(report)
            await self._create(report)
        elif "state" in change.fields:
            await self._start(report)
        elif "ssh-keys" in change.fields:
            await self._add_key(report)
        else:
            await self._until_ready(report)

    async def _create(self, report: Report) -> None:
        client = self.cloud.client("tpu")
        request = {
            "parent": f"projects/{self.stack.project}/locations/{self.zone}",
            "node_id": self.name,
            "node": await self._desired(),
        }

        async def ask() -> Any:
            return await self.cloud.call(self.address, client.create_node, request)

        report("asking for the node", None)
        try:
            operation = await once_visible(
                ask, self.stack.service_account, self.cloud, lambda text: report(text, None)
            )
        except Conflict as error:
            found = await self.observe()
            if found is None:
                raise error
            self._check(found)
        else:
            report("CREATING", None)
            await long_operation(
                self.cloud,
                "tpu",
                operation.operation,
                what=self.address,
                seconds=CREATE_SECONDS,
            )
        await self._until_ready(report)

    async def _desired(self) -> dict[str, Any]:
        names = self.stack.names
        return {
            "accelerator_type": self.stack.accelerator.name,
            "runtime_version": self.stack.runtime.version,
            "description": names.ownership,
            "network_config": {
                "network": f"projects/{self.stack.project}/global/networks/"
                f"{await self.network.chosen()}",
                "enable_external_ips": self.stack.file.network.ssh == "external",
            },
            "service_account": {"email": self.stack.service_account, "scope": [SCOPE]},
            "scheduling_config": {"spot": self.stack.is_spot},
            "labels": names.labels,
            "tags": [names.tag, *self.stack.file.network.tags],
            "metadata": {"ssh-keys": self.key_line, "enable-guest-attributes": "TRUE"},
        }

    async def _until_ready(self, report: Report) -> None:
        async def probe() -> bool | None:
            found = await self.observe()
            if found is None:
                raise OperationFailed("Node vanished", f"node {self.name} is gone")
            state = found.state.name
            if state == "READY":
                return True
            if state in BEYOND_USE:
                raise NoCapacity("Node preempted", f"node {self.name} became {state}")
            report(state, None)
            return None

        await wait_until(
            probe,
            what=f"node {self.name} becoming READY",
            seconds=CREATE_SECONDS,
            backoff=Backoff(0.2, 5.0),
            clock=self.cloud.clock,
        )

    async def _start(self, report: Report) -> None:
        report("STARTING", None)
        try:
            operation = await self.cloud.call(
                self.address, self.cloud.client("tpu").start_node, {"name": self.path}
            )
        except (Usage, Conflict):
            found = await self.observe()
            if found is None or found.state.name not in ("READY", *ON_ITS_WAY):
                raise
        else:
            await long_operation(
                self.cloud, "tpu", operation.operation, what=self.address, seconds=CREATE_SECONDS
            )
        await self._until_ready(report)

    async def _add_key(self, report: Report) -> None:
        found = await self.observe()
        if found is None:
            raise NotFound("Node vanished", f"node {self.name} is gone")
        metadata = dict(found.metadata)
        metadata["ssh-keys"] = ssh_keys_with(metadata.get("ssh-keys", ""), self.key_line)
        operation = await self.cloud.call(
            self.address,
            self.cloud.client("tpu").update_node,
            {
                "node": {"name": self.path, "metadata": metadata},
                "update_mask": {"paths": ["metadata"]},
            },
        )
        await long_operation(
            self.cloud, "tpu", operation.operation, what=self.address, seconds=DELETE_SECONDS
        )

    async def _delete(self, report: Report) -> None:
        report("DELETING", None)
        try:
            operation = await self.cloud.call(
                self.address, self.cloud.client("tpu").delete_node, {"name": self.path}
            )
        except NotFound:
            return
        except (Usage, Conflict):
            found = await self.observe()
            if found is not None and found.state.name != "DELETING":
                raise
            await self._until_gone()  # somebody else, or our own call whose answer was lost
            return
        await long_operation(
            self.cloud, "tpu", operation.operation, what=self.address, seconds=DELETE_SECONDS
        )

    async def _until_gone(self) -> None:
        async def probe() -> bool | None:
            return True if await self.observe() is None else None

        await wait_until(
            probe,
            what=f"node {self.name} being deleted",
            seconds=DELETE_SECONDS,
            backoff=Backoff(0.2, 5.0),
            clock=self.cloud.clock,
        )

    def _check(self, observed: Any) -> None:
        """Refuse a node that carries no label of ours."""
        if self.is_ours(observed):
            return
        owner = observed.labels.get(STACK_LABEL)
        raise Conflict(
            "Name taken",
            f"{self.address} exists and is not part of stack {self.stack.name}"
            + (f" (it belongs to stack {owner})" if owner else ""),
            hint="Choose another stack name, or delete it yourself if it is yours.",
        )
