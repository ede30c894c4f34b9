"""The way to machines through Identity-Aware Proxy: not made, but it has to be allowed."""

from __future__ import annotations

from tpuctl.resources.base import CloudKind

__all__ = ["IapTunnel"]


class IapTunnel(CloudKind):
    """SSH through Google's relay, to machines without an open port."""

    kind = "iap"
    group = "network"
    label = "SSH through Identity-Aware Proxy"
    unlisted_reason = "nothing is made for it"
    permissions = """
        connect iap.tunnelResourceAccessor iap.tunnelInstances.accessViaIAP
    """
