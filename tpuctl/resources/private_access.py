"""Private Google Access: how machines without external addresses reach the bucket and the APIs."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.operations import compute_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import NotFound
from tpuctl.model.plan import Change
from tpuctl.resources.base import StackResource
from tpuctl.resources.network import Network

__all__ = ["PrivateAccess"]

SECONDS = 300.0
FIELD = "privateIpGoogleAccess"


class PrivateAccess(StackResource):
    """Switched on in the subnetwork of the machines, and left on: others may have come to need it.

    It opens nothing to the outside, and is free of charge.
    """

    kind = "private-access"
    group = "network"
    label = "Google's APIs for machines without external addresses"
    unlisted_reason = "it is a setting of a subnetwork"
    permissions = """
        look compute.viewer compute.subnetworks.get
        update compute.networkAdmin compute.subnetworks.setPrivateIpGoogleAccess
        update compute.networkAdmin compute.regionOperations.get
    """
    optional = ("update", "switching Private Google Access on")

    def __init__(self, network: Network) -> None:
        super().__init__(network.stack, network.cloud)
        self.network = network

    @property
    def name(self) -> str:
        return self.stack.region

    @property
    def after(self) -> frozenset[str]:
        return frozenset({self.network.address})

    async def observe(self) -> Any | None:
        """The subnetwork; None while there is none to be seen."""
        try:
            name = await self._subnetwork()
            return await self.cloud.call(
                self.address,
                self.cloud.client("subnetworks").get,
                project=self.stack.project,
                region=self.stack.region,
                subnetwork=name,
            )
        except (NotFound, ApiDisabled):
            return None

    async def _subnetwork(self) -> str:
        """The one named, else that of the region, which has the name of its network."""
        return self.stack.file.network.subnetwork or await self.network.usable_name()

    def diff(self, observed: Any | None) -> Change:
        if observed is not None and observed.private_ip_google_access:
            return self.nothing(f"subnetwork {observed.name} has it")
        return self.update(
            "machines without external addresses reach the bucket and the APIs by it alone; "
            "it stays on",
            [FIELD],
        )

    def removal(self, observed: Any | None) -> Change:
        if observed is None:
            return self.nothing("there is no subnetwork")
        return self.leave("it costs nothing, and others may need it")

    async def apply(self, change: Change, report: Report) -> None:
        name = await self._subnetwork()
        operation = await self.cloud.call(
            self.address,
            self.cloud.client("subnetworks").set_private_ip_google_access_unary,
            project=self.stack.project,
            region=self.stack.region,
            subnetwork=name,
            subnetworks_set_private_ip_google_access_request_resource={
                "private_ip_google_access": True
            },
        )
        await compute_operation(self.cloud, operation, subject=self.address, seconds=SECONDS)
