"""Cloud NAT, through which machines without external addresses reach the internet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import NotFound
from tpuctl.model.cost.cost import CostLine, nat_cost
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, stack_of_description
from tpuctl.resources.base import Query, StackResource, name_taken, time_of
from tpuctl.resources.network.network import Network

VMS = "ENDPOINT_TYPE_VM"
ALL_SUBNETWORKS = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")
PRIMARY = "PRIMARY_IP_RANGE"


class NatState(NamedTuple):
    """The stack's router, and whether its NAT, or that of another one, serves the machines."""

    router: Any | None
    serves: bool = False
    other: str = ""  # the router's name


class Nat(StackResource):
    """A Cloud Router in the TPU's region, with a NAT for the machines' subnetwork only: others of
    the network may be without internet on purpose.

    It is not created where another router's NAT serves that subnetwork: Google allows only one.
    """

    kind = "nat"
    group = "network"
    label = "Cloud NAT for machines without external addresses"
    is_zonal = True
    is_billable = True
    permissions = """
        read compute.viewer compute.routers.list
        create compute.networkAdmin compute.routers.create compute.routers.delete
        create compute.networkAdmin compute.networks.updatePolicy compute.regionOperations.get
    """

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.file.network.nat

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        for region, router in query.described("routers"):
            if owner := stack_of_description(router.get("description", "")):
                network = router.get("network", "").rpartition("/")[2]
                created = time_of(router.get("creationTimestamp"))
                name = router["name"]
                yield InventoryItem(cls, name, owner, region, detail=network, created=created)

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(Network(stack, cloud), item.zone)

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine:
        return nat_cost()

    def __init__(self, network: Network, region: str = "") -> None:
        """`region` is that of a leftover."""
        super().__init__(network.stack, network.cloud)
        self.network = network
        self._is_leftover = bool(region)
        self._region = region or self.stack.region

    @property
    def name(self) -> str:
        return self.stack.names.nat

    @property
    def after(self) -> frozenset[str]:
        return frozenset({self.network.address})

    @property
    def _where(self) -> dict[str, Any]:
        return {"project": self.stack.project, "region": self._region}

    async def observe(self) -> NatState | None:
        routers = await self._list()
        router = next((each for each in routers if each.name == self.name), None)
        serving = [] if self._is_leftover else await self._serving(routers)
        others = [name for name in serving if name != self.name]
        if router is None and not others:
            return None
        return NatState(router, self.name in serving, next(iter(others), ""))

    async def _list(self) -> list[Any]:
        client = self.cloud.client("routers")

        def listed(**options: Any) -> list[Any]:
            return [*client.list(self._where, **options)]

        try:
            return await self.cloud.call(self.address, listed)
        except NotFound:  # the project
            return []

    async def _serving(self, routers: list[Any]) -> list[str]:
        """The names of the routers whose NATs serve the machines."""
        networks = await self.network.existing()
        if networks is None or networks.usable is None:
            return []
        network, subnetwork = await self._paths()
        return [
            router.name
            for router in routers
            if router.network.endswith(f"/{network}")
            and any(_serves(nat, subnetwork) for nat in router.nats)
        ]

    async def _paths(self) -> tuple[str, str]:
        """The network, and the configured subnetwork, else the region's of the network's name."""
        name = await self.network.usable_name()
        subnetwork = self.stack.subnetwork_name or name
        base = f"projects/{self.stack.project}/regions/{self._region}"
        return self.stack.network_path(name), f"{base}/subnetworks/{subnetwork}"

    def is_ours(self, observed: NatState) -> bool:
        return observed.router is not None and super().is_ours(observed.router)

    def diff(self, observed: NatState | None) -> Change:
        if observed is not None and observed.router is not None:
            if not self.is_ours(observed):
                raise name_taken(self, stack_of_description(observed.router.description))
            if observed.serves:
                return self.nothing("the machines reach the internet")
        if observed is not None and observed.other:
            return self.nothing(f"router {observed.other} has a NAT for the machines")
        if observed is None:
            return self.create("the machines reach the internet; billed by the hour, and traffic")
        return self.create("recreating the router, whose NAT does not serve the machines")

    def removal(self, observed: NatState | None) -> Change:
        return super().removal(observed if observed is not None and observed.router else None)

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete()
            return
        observed = await self.observe()
        if observed is not None:
            if not self.diff(observed).is_work:
                return  # another program has created it in the meantime
            await self._delete()
        body = await self._desired()

        async def create() -> None:
            await self.insert("routers", {**self._where, "router_resource": body}, report)

        await self.create_or_adopt(create, self.observe, report, check=self.diff)

    async def _desired(self) -> dict[str, Any]:
        network, subnetwork = await self._paths()
        return {
            "name": self.name,
            "description": self.stack.names.ownership,
            "network": network,
            "nats": [
                {
                    "name": self.name,
                    "nat_ip_allocate_option": "AUTO_ONLY",
                    "source_subnetwork_ip_ranges_to_nat": "LIST_OF_SUBNETWORKS",
                    "subnetworks": [{"name": subnetwork, "source_ip_ranges_to_nat": [PRIMARY]}],
                }
            ],
        }

    async def _delete(self) -> None:
        await self.finish(
            await self.find("routers", "delete_unary", **self._where, router=self.name)
        )


def _serves(nat: Any, subnetwork: str) -> bool:
    """Whether a NAT leads machines with primary addresses of a subnetwork to the internet."""
    if nat.type_ == "PRIVATE" or (nat.endpoint_types and VMS not in nat.endpoint_types):
        return False
    return nat.source_subnetwork_ip_ranges_to_nat in ALL_SUBNETWORKS or any(
        entry.name.endswith(f"/{subnetwork}")
        and not {"ALL_IP_RANGES", PRIMARY}.isdisjoint(entry.source_ip_ranges_to_nat)
        for entry in nat.subnetworks
    )
