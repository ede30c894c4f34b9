"""The address range that firewall rules let in: this machine, as the cloud sees it."""

from __future__ import annotations

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Unreachable

__all__ = ["own_address_range"]

SERVICES = ("https://checkip.amazonaws.com", "https://api.ipify.org")


async def own_address_range(endpoint: Endpoint) -> str:
    """`203.0.113.7/32`, asked of a public service; for the local cloud the loopback range."""
    if endpoint.is_local:
        return "127.0.0.0/8"
    return await in_thread(_ask)


def _ask() -> str:
    import ipaddress

    import requests

    for service in SERVICES:
        try:
            text = requests.get(service, timeout=10).text.strip()
            address = ipaddress.ip_address(text)
        except (requests.RequestException, ValueError):
            continue
        return f"{address}/{address.max_prefixlen}"
    raise Unreachable(
        "Own address unknown",
        "no service told under which address this machine is seen",
        hint="Say which addresses may use SSH, for example\n"
        "    network: {allow_from: [203.0.113.0/24]}",
    )
