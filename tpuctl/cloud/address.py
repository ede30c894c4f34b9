"""The caller's public address range, which firewall rules allow."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Unreachable

# Both are reachable over IPv4 only, so they report the address that the machines will see.
SERVICES = ("https://checkip.amazonaws.com", "https://api.ipify.org")
TIMEOUT_SECONDS = 10


async def caller_address_range(endpoint: Endpoint) -> str:
    """`203.0.113.7/32`, queried from a public service; for the local cloud the loopback range.

    An IPv6 address would be useless: the machines have none.
    """
    if endpoint.is_local:
        return "127.0.0.0/8"
    return await in_thread(_query, SERVICES)


def _query(services: Sequence[str]) -> str:
    import ipaddress

    import requests

    other = ""
    for service in services:
        try:
            answer = requests.get(service, timeout=TIMEOUT_SECONDS)
            answer.raise_for_status()
            # Not `text`, which guesses the encoding if no header declares it.
            address = ipaddress.ip_address(answer.content.decode("ascii").strip())
        except (requests.RequestException, ValueError):
            continue
        if address.version == 4 and address.is_global:
            return f"{address}/32"
        other = str(address)
    detail = f"public services see this machine as {other}, unlike Google's machines"
    raise Unreachable(
        "Public address unknown",
        detail if other else "no public service reported this machine's address",
        hint="Use IAP, which needs no address:\n    network: {ssh: iap}\n"
        "or set the addresses that may use SSH:\n    network: {allow_from: [203.0.113.0/24]}",
    )
