"""The permission to reach machines through Identity-Aware Proxy."""

from __future__ import annotations

from tpuctl.model.stack.stack import Stack
from tpuctl.resources.base import CloudKind


class IapTunnel(CloudKind):
    """SSH through Google's relay, to machines without an open port."""

    kind = "iap"
    group = "network"
    label = "SSH through Identity-Aware Proxy"
    unlisted_reason = "nothing is created for it"
    permissions = """
        connect iap.tunnelResourceAccessor iap.tunnelInstances.accessViaIAP
    """

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.file.network.ssh == "iap"
