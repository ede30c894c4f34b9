"""Private Google Access, by which machines without external addresses reach Google's APIs."""

from __future__ import annotations

from typing import Any, ClassVar

from tpuctl.engine.resource import Report
from tpuctl.errors import Denied, NotFound
from tpuctl.model.plan import Change
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.base import StackResource
from tpuctl.resources.network.network import Network

FIELD = "privateIpGoogleAccess"


class PrivateAccess(StackResource):
    """Enabled in the machines' subnetwork and never disabled: others may need it.

    It is free, and opens nothing to the outside.
    """

    kind = "private-access"
    group = "network"
    label = "Private Google Access for machines without external addresses"
    is_regional = True
    unlisted_reason = "it is a setting of a subnetwork"
    permissions = """
        read compute.viewer compute.subnetworks.get
        update compute.networkAdmin compute.subnetworks.setPrivateIpGoogleAccess
        update compute.networkAdmin compute.regionOperations.get
    """
    optional: ClassVar = {"update": "enabling Private Google Access"}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.file.network.ssh != "external"

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
        """The subnetwork; None if it does not exist, or is a host project's and not visible: the
        network reports that."""
        try:
            return await self.call("subnetworks", "get", **await self._where())
        except NotFound:
            return None
        except Denied:
            if self.stack.has_shared_network:
                return None
            raise

    async def _where(self) -> dict[str, str]:
        """The configured subnetwork, else the region's, which has the name of its network."""
        stack = self.stack
        name = stack.subnetwork_name or await self.network.usable_name()
        return {"project": stack.network_project, "region": stack.region, "subnetwork": name}

    def diff(self, observed: Any | None) -> Change:
        if observed is not None and observed.private_ip_google_access:
            return self.nothing(f"enabled in subnetwork {observed.name}")
        if self.stack.has_shared_network:
            host, name = self.stack.network_project, self.stack.subnetwork_name
            raise Denied(
                "Private Google Access is off",
                f"machines without external addresses in subnetwork {name} of project {host} "
                "cannot reach the bucket and the APIs",
                hint="Ask its administrator to run\n"
                f"    gcloud compute networks subnets update {name} --project={host} "
                f"--region={self.stack.region} --enable-private-ip-google-access",
            )
        return self.update(
            "machines without external addresses need it to reach the bucket and the APIs; "
            "it stays enabled",
            [FIELD],
        )

    def removal(self, observed: Any | None) -> Change:
        if observed is None:
            return self.nothing("no subnetwork")
        return self.leave("free, and others may need it")

    async def apply(self, change: Change, report: Report) -> None:
        operation = await self.call(
            "subnetworks",
            "set_private_ip_google_access_unary",
            **await self._where(),
            subnetworks_set_private_ip_google_access_request_resource={
                "private_ip_google_access": True
            },
        )
        await self.finish(operation)
