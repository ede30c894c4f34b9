"""The ports at which the workers of a TPU reach each other, and whether firewall rules close them.

Rules as of cloud.google.com/firewall/docs/firewalls: the lowest priority number applies, denial
wins over permission at the same one, and what no rule allows is denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network

# Without these, no framework starts on several workers: libtpu and TensorFlow's server (8470, 8471,
# 8474), JAX's coordinator (8476, since 0.8.1 8482: jax-ml/jax#35905).
REQUIRED = (8470, 8471, 8474, 8476, 8482)
# At which libtpu connects the workers of several slices: MEGASCALE_PORT, which has no default
# (libtpu 0.0.17: "megascale_port is not set."); Ray sets the same (ray/util/tpu.py).
MEGASCALE_PORT = 8081


@dataclass(frozen=True)
class FirewallRule:
    """An ingress rule. Without source ranges and tags, all sources match; likewise targets."""

    priority: int
    allows: bool
    ports: tuple[tuple[str, int, int], ...]  # protocol, or "all"; first and last port
    source_ranges: tuple[str, ...] = ()
    source_tags: tuple[str, ...] = ()
    target_tags: tuple[str, ...] = ()
    is_restricted: bool = False  # to service accounts, which are not compared

    def covers(self, port: int, source: str, tag: str) -> bool:
        """Whether it applies to this TCP port, between machines with the tag in a source range."""
        if self.is_restricted or (self.target_tags and tag not in self.target_tags):
            return False
        has_sources = self.source_ranges or self.source_tags
        from_source = any(_contains(range_, source) for range_ in self.source_ranges)
        if has_sources and not from_source and tag not in self.source_tags:
            return False
        return any(
            protocol in ("all", "tcp", "6") and first <= port <= last
            for protocol, first, last in self.ports
        )


def closed_ports(
    rules: Iterable[FirewallRule], source: str, tag: str, ports: Iterable[int] = REQUIRED
) -> list[int]:
    """The ports that the rules close between the machines of a subnetwork.

    `source` is the subnetwork's range, `tag` the network tag of the machines.
    """
    ordered = sorted(rules, key=lambda rule: (rule.priority, rule.allows))
    closed = []
    for port in ports:
        first = next((rule for rule in ordered if rule.covers(port, source, tag)), None)
        if first is None or not first.allows:
            closed.append(port)
    return closed


def _contains(outer: str, inner: str) -> bool:
    """Whether one range contains the other, of the same IP version."""
    large, small = ip_network(outer, strict=False), ip_network(inner, strict=False)
    return large.version == small.version and (
        int(large.network_address) <= int(small.network_address)
        and int(small.broadcast_address) <= int(large.broadcast_address)
    )
