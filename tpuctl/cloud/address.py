"""The address range that firewall rules let in: this machine, as the cloud sees it."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Unreachable

__all__ = ["own_address_range"]

# Both are reached over IPv4 alone, and so tell the address under which the machines will see us.
SERVICES = ("https://checkip.amazonaws.com", "https://api.ipify.org")
SECONDS = 10


async def own_address_range(endpoint: Endpoint) -> str:
    """`203.0.113.7/32`, asked of a public service; for the local cloud the loopback range.

    An address of IPv6 would open nothing: the machines have none of their own.
    """
    if endpoint.is_local:
        return "127.0.0.0/8"
    return await in_thread(_ask, SERVICES)


def _ask(services: Sequence[str]) -> str:
    import ipaddress

    import requests

    other = ""
    for service in services:
        try:
            answer = requests.get(service, timeout=SECONDS)
            answer.raise_for_status()
            # Not its `text`: without a header that tells, the encoding is guessed.
            address = ipaddress.ip_address(answer.content.decode("ascii").strip())
        except (requests.RequestException, ValueError):
            continue
        if address.version == 4 and address.is_global:
            return f"{address}/32"
        other = str(address)
    told = f"this machine is seen as {other}, and machines of Google's see it otherwise"
    raise Unreachable(
        "Own address unknown",
        told if other else "no service told under which address this machine is seen",
        hint="Need no address, with\n    network: {ssh: iap}\n"
        "or say which may use SSH, for example\n    network: {allow_from: [203.0.113.0/24]}",
    )
