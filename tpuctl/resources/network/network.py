"""The workers' network, and the firewall rule that allows SSH."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, Denied, NotFound, TpuctlError, Transient
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, stack_of_description
from tpuctl.polling import gather_all
from tpuctl.resources.base import Query, StackResource
from tpuctl.resources.network.host_project import shared_subnetwork


@dataclass(frozen=True)
class Networks:
    """Existing networks: the one to use, if any, and whether it is the stack's own."""

    usable: str | None
    own_description: str | None  # the description of the stack's own network
    problem: TpuctlError | None = None  # why that of a host project cannot be used


@dataclass(frozen=True)
class RuleState:
    """A firewall rule, if any, for those that depend on whose network it is in."""

    networks: Networks | None
    rule: Any | None

    @property
    def is_in_own_network(self) -> bool:
        return self.networks is not None and self.networks.own_description is not None


class Network(StackResource):
    """The project's `default` network, else one created for the stack."""

    kind = "network"
    group = "network"
    label = "the network of the machines"
    permissions = """
        read compute.viewer compute.networks.get compute.networks.list
        create compute.networkAdmin compute.networks.create compute.networks.delete
        create compute.networkAdmin compute.globalOperations.get
    """
    optional: ClassVar = {"create": "creating a network if the project has no `default`"}

    @classmethod
    def may_need(cls, action: str, stack: Stack) -> bool:
        return action != "create" or stack.network_name == "auto"

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        client = query.cloud.client("networks")
        for network in client.list(request={"project": query.project}, **query.options):
            if owner := stack_of_description(network.description):
                yield InventoryItem(cls, network.name, owner)

    @property
    def name(self) -> str:
        name = self.stack.network_name
        return "main" if name == "auto" else name

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"bucket/{self.stack.bucket}"})

    def __init__(self, stack: Stack, cloud: Cloud) -> None:
        super().__init__(stack, cloud)
        self._observed: Networks | None = None
        self._observing: asyncio.Task[Networks | None] | None = None

    async def observe(self) -> Networks | None:
        """Callers at the same time share one observation: rules depend on the network, too."""
        if self._observing is None or self._observing.done():
            self._observing = asyncio.ensure_future(self._observe())
        self._observed = await asyncio.shield(self._observing)
        return self._observed

    async def _observe(self) -> Networks | None:
        name = self.stack.network_name
        if self.stack.has_shared_network:
            return await self._observe_shared()
        if name != "auto":
            network = await self._get(name)
            return Networks(name, None) if network is not None else None
        own_name = self.stack.names.network
        own_network, default = await gather_all([self._get(own_name), self._get("default")])
        if own_network is not None:
            return Networks(own_name, own_network.description)
        return Networks("default", None) if default is not None else None

    async def _observe_shared(self) -> Networks | None:
        """What keeps the stack from using it keeps nothing from being deleted."""
        try:
            subnetwork = await shared_subnetwork(self.stack, self.cloud)
        except (Conflict, Denied) as error:
            return Networks(None, None, error)
        return None if subnetwork is None else Networks(self.name, None)

    async def existing(self) -> Networks | None:
        """The networks as last observed, or as they are now if there were none: while `up` runs,
        nothing deletes a network."""
        return self._observed or await self.observe()

    async def _get(self, name: str) -> Any | None:
        client = self.cloud.client("networks")
        try:
            return await self.cloud.call(
                f"network {name}", client.get, project=self.stack.project, network=name
            )
        except NotFound:
            return None

    async def usable_name(self) -> str:
        """The name of the existing network to use. Raises NotFound.

        That of a host project is not looked up: a controller may use it, and not see it.
        """
        if self.stack.has_shared_network:
            return self.name
        networks = await self.existing()
        if networks is None or networks.usable is None:
            raise NotFound(
                "No network",
                f"stack {self.stack.name} has no network to use",
                hint="Set network.name: auto in the stack file to create one:\n    tpuctl up",
            )
        return networks.usable

    def diff(self, observed: Networks | None) -> Change:
        if observed is None:
            if self.stack.has_shared_network:
                raise NotFound(
                    "No such subnetwork",
                    f"{self.stack.subnetwork_path} does not exist",
                    hint="To list those that you may use:\n    gcloud compute networks subnets "
                    f"list-usable --project={self.stack.network_project}",
                )
            if self.stack.network_name != "auto":
                raise NotFound(
                    "No such network",
                    f"project {self.stack.project} has no network {self.name}",
                    hint="Remove network.name to use `default` or create a network.",
                )
            return self.create("the project's `default`, else a new network for the stack")
        if observed.problem is not None:
            raise observed.problem
        if observed.own_description is not None and not self.is_ours(observed):
            raise Conflict(
                "Name taken",
                f"network {observed.usable} exists and was not created for this stack",
                hint=f"Use it with\n    network: {{name: {observed.usable}}}",
            )
        return self.nothing(f"network {observed.usable} exists")

    def is_ours(self, observed: Networks) -> bool:
        return observed.own_description == self.stack.names.ownership

    def removal(self, observed: Networks | None) -> Change:
        if observed is not None and observed.own_description is None:
            return self.leave("not created by tpuctl, never deleted")
        return super().removal(observed)

    async def revised(self, change: Change) -> Change:
        """Enabling the Compute API usually creates `default`."""
        if change.action is Action.CREATE and (observed := await self.observe()) is not None:
            return self.diff(observed)
        return change

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete()
        else:
            await self.create_or_adopt(self._insert, self.observe, report, check=self.diff)

    async def _insert(self) -> None:
        network = {
            "name": self.stack.names.network,
            "description": self.stack.names.ownership,
            "auto_create_subnetworks": True,
        }
        await self.finish(
            await self.call(
                "networks",
                "insert_unary",
                project=self.stack.project,
                network_resource=network,
            )
        )

    async def _delete(self) -> None:
        project, network = self.stack.project, self.stack.names.network
        await self.finish(
            await self.find("networks", "delete_unary", project=project, network=network)
        )


def network_differences(
    stack: Stack, network: str, subnetwork: str
) -> Iterator[tuple[str, str, str]]:
    """How the networks of an existing machine, as paths, differ from the stack file, as (field,
    actual, desired). A machine cannot move to another network."""
    name, subnetwork_name = stack.network_name, stack.subnetwork_name
    usable = ("default", stack.names.network) if name == "auto" else (name,)
    owner = network.partition("projects/")[2].partition("/")[0]
    is_elsewhere = bool(owner) and not owner.isdigit() and owner != stack.network_project
    if network and (_ends(network) not in usable or is_elsewhere):
        yield "network", network if is_elsewhere else _ends(network), stack.file.network.name
    if subnetwork and subnetwork_name not in (None, _ends(subnetwork)):
        yield "subnetwork", _ends(subnetwork), str(subnetwork_name)


def _ends(path: str) -> str:
    return path.rpartition("/")[2]


class Firewall(StackResource):
    """Allows SSH and the ports in `network.allow` from the given addresses to the workers.

    Also from the stack's controller, by its tag, if it recovers jobs.
    """

    kind = "firewall"
    group = "network"
    label = "the firewall rule that allows SSH"
    permissions = """
        read compute.viewer compute.firewalls.get compute.firewalls.list
        create compute.securityAdmin compute.firewalls.create compute.firewalls.delete
        create compute.securityAdmin compute.networks.updatePolicy compute.globalOperations.get
        update compute.securityAdmin compute.firewalls.update compute.networks.updatePolicy
        update compute.securityAdmin compute.firewalls.get compute.globalOperations.get
    """
    optional: ClassVar = {"update": "allowing a new address"}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return not stack.has_shared_network

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        client = query.cloud.client("firewalls")
        for rule in client.list(request={"project": query.project}, **query.options):
            if owner := stack_of_description(rule.description):
                yield InventoryItem(cls, rule.name, owner)

    def __init__(self, network: Network, sources: tuple[str, ...]) -> None:
        super().__init__(network.stack, network.cloud)
        self.network = network
        self.sources = sources

    @property
    def name(self) -> str:
        return self.stack.names.ssh_rule

    @property
    def after(self) -> frozenset[str]:
        return frozenset({self.network.address})

    async def observe(self) -> Any | None:
        return await self._find()

    @property
    def _where(self) -> dict[str, str]:
        return {"project": self.stack.network_project, "firewall": self.name}

    async def observe_with_network(self) -> RuleState | None:
        """None if neither the rule nor a network exists."""
        rule, networks = await asyncio.gather(self._find(), self.network.observe())
        return RuleState(networks, rule) if rule is not None or networks is not None else None

    async def revised_for_network(self, change: Change) -> Change:
        """The creation of a rule, now that it is known whose network it is in."""
        networks = await self.network.existing()
        is_needed = change.action is not Action.CREATE or networks is None
        return change if is_needed else self.diff(RuleState(networks, None))

    async def _find(self) -> Any | None:
        return await self.find("firewalls", "get", **self._where)

    def diff(self, observed: Any | None) -> Change:
        if observed is None:
            return self.create(self._purpose)
        self._check(observed)
        fields = [
            name
            for name, actual, desired in (
                ("sourceRanges", set(observed.source_ranges), set(self.sources)),
                ("allowed", _ports(observed), self._desired_ports()),
                ("targetTags", set(observed.target_tags), {self.stack.names.tag}),
                ("sourceTags", set(observed.source_tags), set(self._source_tags)),
            )
            if actual != desired
        ]
        if fields:
            return self.update(f"{' and '.join(fields)} changed", fields)
        return self.nothing(self._purpose)

    @property
    def _purpose(self) -> str:
        return f"allows SSH from {', '.join(self.sources)}"

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete()
        elif change.action is Action.UPDATE:
            await self._patch()
        else:
            existing = await self.create_or_adopt(self._create, self._find, report)
            if existing is not None and self.diff(await self.observe()).is_work:
                await self._patch()  # created by another program for another address, for example

    async def _create(self) -> None:
        await self.finish(await self._insert())

    async def _patch(self) -> None:
        rule = await self._desired()
        await self.finish(
            await self.call("firewalls", "patch_unary", **self._where, firewall_resource=rule)
        )

    async def _delete(self) -> None:
        await self.finish(await self.find("firewalls", "delete_unary", **self._where))

    async def _insert(self) -> Any:
        """Retried, since a new network may not be ready for rules yet."""
        project = self.stack.network_project
        for remaining in range(9, -1, -1):
            try:
                rule = await self._desired()
                return await self.call(
                    "firewalls", "insert_unary", project=project, firewall_resource=rule
                )
            except Transient:
                if not remaining:
                    raise
                await self.cloud.clock.sleep(3)
        raise AssertionError("the last try returns or raises")

    @property
    def _source_tags(self) -> list[str]:
        """Tags of machines that may connect over internal addresses."""
        is_needed = self.stack.has_recovery and not self.stack.is_node
        return [self.stack.names.tag] if is_needed else []

    def _desired_ports(self) -> set[tuple[str, str]]:
        named_ports = {"http": ("tcp", "80"), "https": ("tcp", "443")}
        ports = {("tcp", "22")}
        for entry in self.stack.file.network.allow:
            protocol, _, port = entry.partition(":")
            ports.add(named_ports.get(entry, (protocol, port)))
        return ports

    async def _desired(self) -> dict[str, Any]:
        network = await self.network.usable_name()
        return {
            "name": self.name,
            "description": self.stack.names.ownership,
            "network": self.stack.network_path(network),
            "direction": "INGRESS",
            "source_ranges": list(self.sources),
            "source_tags": self._source_tags,
            "target_tags": [self.stack.names.tag],
            "allowed": [
                {"I_p_protocol": protocol, "ports": [port]}
                for protocol, port in sorted(self._desired_ports())
            ],
        }

    def _check(self, observed: Any) -> None:
        if not self.is_ours(observed):
            raise Conflict(
                "Name taken",
                f"firewall rule {self.name} exists and was not created for this stack",
                hint="Choose another stack name, or delete the rule if it is yours.",
            )


def _ports(observed: Any) -> set[tuple[str, str]]:
    return {
        (str(allowed.I_p_protocol), str(port))
        for allowed in observed.allowed
        for port in allowed.ports
    }
