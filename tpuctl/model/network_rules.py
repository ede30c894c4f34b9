"""Which ways to the machines a stack file may ask for."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from tpuctl.errors import Diagnostic
from tpuctl.model.schema import StackFile
from tpuctl.model.stack_text import StackText

__all__ = ["network_problems"]


def network_problems(file: StackFile, text: StackText) -> Iterator[Diagnostic]:
    """What `network.ssh` and `network.allow_from` cannot be, or cannot be together."""
    where = text.where("network.allow_from")
    if file.network.allow_from and file.network.ssh == "iap":
        yield Diagnostic(
            "Address ranges beside IAP",
            "network.allow_from: with ssh: iap nobody comes in but Identity-Aware Proxy: "
            "who may, roles decide, not addresses",
            "Take allow_from out, or use\n    network: {ssh: external}",
            where,
        )
    for entry in file.network.allow_from:
        try:
            range_ = ipaddress.ip_network(entry)
        except ValueError as error:
            yield Diagnostic(
                "No address range",
                f"network.allow_from: {entry}: {error}",
                "For example\n    network: {allow_from: [203.0.113.0/24, 198.51.100.7]}",
                where,
            )
            continue
        if range_.version != 4:
            yield Diagnostic(
                "Address range of IPv6",
                f"network.allow_from: {entry}: the machines have IPv4 addresses alone, "
                "so that nobody comes from there",
                "Give the IPv4 addresses, or need none with\n    network: {ssh: iap}",
                where,
            )
