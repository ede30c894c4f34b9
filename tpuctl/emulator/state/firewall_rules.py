"""Which firewall rule of a network decides about a connection.

cloud.google.com/firewall/docs/firewalls: the matching rule with the lowest priority number decides,
of equal ones a rule that denies. Without a matching rule, incoming connections are denied and
outgoing ones allowed (the implied rules). Rules are stateful: responses need no rule. A source tag
or source service account matches machines of the same network only; a rule with source ranges too
matches either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Any

Row = Mapping[str, Any]
INGRESS, EGRESS = "INGRESS", "EGRESS"
_TCP = ("all", "tcp", "6")
_EVERYWHERE = IPv4Network("0.0.0.0/0")


@dataclass(frozen=True)
class Identity:
    """By what rules recognize a machine, besides its address."""

    tags: frozenset[str] = frozenset()
    service_account: str = ""


@dataclass(frozen=True)
class Peer:
    """The other end of a connection.

    `address` is None for an unknown address on the internet. `identity` is that of a machine in the
    same network that uses its internal address.
    """

    address: IPv4Address | None
    identity: Identity = Identity()


def deciding_rule(
    rules: Iterable[Row], direction: str, machine: Identity, peer: Peer, port: int
) -> Row | None:
    """The rule that applies to a TCP connection of the machine; None for the implied one.

    `peer` is the source of an incoming connection, the destination of an outgoing one.
    """
    matching = [
        rule
        for rule in rules
        if rule["direction"] == direction
        and not rule["disabled"]
        and _targets(rule, machine)
        and _matches_peer(rule, direction, peer)
        and _includes_port(rule.get("allowed") or rule.get("denied") or (), port)
    ]
    return min(
        matching, key=lambda rule: (rule["priority"], bool(rule.get("allowed"))), default=None
    )


def _targets(rule: Row, machine: Identity) -> bool:
    """Without targets, a rule applies to all machines of the network."""
    if rule.get("targetTags"):
        return not machine.tags.isdisjoint(rule["targetTags"])
    accounts = rule.get("targetServiceAccounts")
    return not accounts or machine.service_account in accounts


def _matches_peer(rule: Row, direction: str, peer: Peer) -> bool:
    if direction == EGRESS:
        return _contains(rule.get("destinationRanges") or ("0.0.0.0/0",), peer.address)
    return (
        _contains(rule.get("sourceRanges", ()), peer.address)
        or not peer.identity.tags.isdisjoint(rule.get("sourceTags", ()))
        or (
            peer.identity.service_account != ""
            and peer.identity.service_account in rule.get("sourceServiceAccounts", ())
        )
    )


def _contains(ranges: Sequence[str], address: IPv4Address | None) -> bool:
    networks = [_network(text) for text in ranges]
    return _EVERYWHERE in networks or any(
        address in network for network in networks if network is not None and address is not None
    )


@cache
def _network(text: str) -> IPv4Network | None:
    network = ip_network(text)
    return network if isinstance(network, IPv4Network) else None


def _includes_port(protocols: Iterable[Row], port: int) -> bool:
    return any(
        protocol["IPProtocol"].lower() in _TCP
        and any(_in_range(ports, port) for ports in protocol.get("ports") or ("0-65535",))
        for protocol in protocols
    )


def _in_range(ports: str, port: int) -> bool:
    first, _, last = ports.partition("-")
    return int(first) <= port <= int(last or first)
