"""Which connections of machines the networks of one local cloud allow.

Machines have loopback addresses, by which no firewall rule knows them. To rules, a machine has an
address in its subnetwork and, if it has an external sender, an address in 203.0.113.0/24
(TEST-NET-3). Machines of one network use their internal addresses, those of different networks
their external ones: no networks are peered. TPU nodes (API v1) are in a network of Google's that is
peered with the node's; its rules let in everything from there.

This computer is outside of all networks, at 127.0.0.1, as the client's firewall rules expect
(127.0.0.0/8), and at the address in the settings. If that is a private one, it is inside of all
networks, as through a VPN.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from tpuctl.emulator.machines.interface import ALLOWED, Verdict
from tpuctl.emulator.state.cloud_nat import ROUTERS, translates
from tpuctl.emulator.state.firewall_rules import EGRESS, INGRESS, Peer, deciding_rule
from tpuctl.emulator.state.locations import auto_range, regions
from tpuctl.emulator.wire.machine_service import NetworkInterface
from tpuctl.emulator.wire.registry import Registry

FIREWALLS, NETWORKS, SUBNETWORKS = "compute.firewalls", "compute.networks", "compute.subnetworks"
COMPUTER = IPv4Address("127.0.0.1")
RELAY = Peer(IPv4Address("35.235.240.1"))  # Identity-Aware Proxy uses 35.235.240.0/20
_EXTERNAL = IPv4Network("203.0.113.0/24")
# Private addresses (RFC 1918).
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_AUTO_RANGE = IPv4Network("10.128.0.0/9")


class NetworkPolicy:
    """Implements `tpuctl.emulator.machines.interface.ConnectionPolicy`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store
        self._rules: Mapping[str, Sequence[Mapping[str, Any]]] = {}  # by network
        self._version = -1

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` soon after changes of rules, or of what they apply to."""
        loop, pending = asyncio.get_running_loop(), False

        def call() -> None:
            nonlocal pending
            pending = False
            on_change()

        def schedule() -> None:
            nonlocal pending
            if not pending:  # once for all changes of a transaction
                pending = True
                loop.call_soon(call)

        with_machines = {kind for api in self._registry.apis for kind in api.with_machines}
        self._store.watch({FIREWALLS, ROUTERS, "setting", *with_machines}, schedule)

    def between(self, source: str, target: str, port: int) -> Verdict:
        """A connection of a machine to another one."""
        sender, receiver = self._interface(source), self._interface(target)
        if sender is None or receiver is None or source == target:
            return ALLOWED
        if sender.network == receiver.network:
            return self._between_addresses(
                *(sender, Peer(self._internal(sender), sender.identity)),
                *(receiver, Peer(self._internal(receiver), receiver.identity)),
                port,
            )
        for interface in (sender, receiver):
            if not interface.has_external_address:
                return Verdict.denied(
                    f"networks {_last(sender.network)} and {_last(receiver.network)} are not "
                    f"connected, and {self.label(interface.machine)} has no external address"
                )
        return self._between_addresses(
            sender, Peer(_external(sender)), receiver, Peer(_external(receiver)), port
        )

    def label(self, machine: str) -> str:
        """`bert worker 0`, or an instance's name."""
        name, _, worker = machine.partition("/workers/")
        return f"{_last(name)} worker {worker}" if worker else _last(name)

    def _between_addresses(
        self,
        sender: NetworkInterface,
        source: Peer,
        receiver: NetworkInterface,
        target: Peer,
        port: int,
    ) -> Verdict:
        verdict = self._check(EGRESS, sender, target, port)
        return verdict if not verdict.is_allowed else self._check(INGRESS, receiver, source, port)

    def from_outside(self, target: str, port: int) -> Verdict:
        """A connection from this computer to a machine's external address, or from inside."""
        interface = self._interface(target)
        if interface is None:
            return ALLOWED
        address = IPv4Address(self._registry.settings.get("address"))
        is_inside = any(address in block for block in _PRIVATE)
        if interface.is_managed or not (interface.has_external_address or is_inside):
            return Verdict.denied(f"{self.label(target)} has no external address")
        verdict = self._check(INGRESS, interface, Peer(address), port)
        if verdict.is_allowed or address == COMPUTER:
            return verdict
        return self._check(INGRESS, interface, Peer(COMPUTER), port)

    def from_relay(self, target: str, port: int) -> Verdict:
        """A connection of Identity-Aware Proxy to a machine's internal address."""
        interface = self._interface(target)
        return ALLOWED if interface is None else self._check(INGRESS, interface, RELAY, port)

    def to_internet(self, source: str, address: str | None, port: int) -> Verdict:
        """A connection of a machine to a host on the internet; its address may be unknown."""
        interface = self._interface(source)
        if interface is None:
            return ALLOWED
        if not interface.has_external_address and not self._has_nat(interface):
            return Verdict.denied(
                f"{self.label(source)} has no external address, and network "
                f"{_last(interface.network)} no Cloud NAT"
            )
        peer = Peer(None if address is None else IPv4Address(address))
        return self._check(EGRESS, interface, peer, port)

    def _has_nat(self, interface: NetworkInterface) -> bool:
        """Whether a NAT translates a machine's address: one of its network, in its region."""
        region = interface.subnetwork.rpartition("/subnetworks/")[0]
        return bool(region) and any(
            translates(nat, interface.subnetwork)
            for router in self._store.list_json(ROUTERS, f"{region}/routers/")
            if router["network"] == interface.network
            for nat in router.get("nats", ())
        )

    def limits_egress(self, source: str) -> bool:
        """Whether the network of a machine has rules for outgoing connections."""
        interface = self._interface(source)
        return interface is not None and any(
            rule["direction"] == EGRESS for rule in self._rules_of(interface.network)
        )

    def to_google(self, source: str) -> Verdict:
        """A connection of a machine to one of Google's APIs."""
        interface = self._interface(source)
        if interface is None or interface.is_managed:
            return ALLOWED
        has_way = (
            interface.has_external_address
            or self._subnetwork(interface).get("privateIpGoogleAccess")
            # It enables the other (cloud.google.com/nat/docs/nat-product-interactions).
            or self._has_nat(interface)
        )
        if not has_way:
            return Verdict.denied(
                f"{self.label(source)} has no external address, and subnetwork "
                f"{_last(interface.subnetwork)} no Private Google Access"
            )
        return self._check(EGRESS, interface, Peer(None), 443)

    def _check(self, direction: str, interface: NetworkInterface, peer: Peer, port: int) -> Verdict:
        if interface.is_managed:  # Google's own rules
            return ALLOWED
        rules = self._rules_of(interface.network)
        rule = deciding_rule(rules, direction, interface.identity, peer, port)
        if rule is None:
            if direction == EGRESS:
                return ALLOWED
            source = peer.address
            return Verdict.denied(
                f"no firewall rule of network {_last(interface.network)} allows tcp:{port} "
                f"from {source} to {self.label(interface.machine)}"
            )
        if rule.get("allowed"):
            return ALLOWED
        return Verdict.denied(f"firewall rule {rule['name']} denies tcp:{port}")

    def _rules_of(self, network: str) -> Sequence[Mapping[str, Any]]:
        version = self._store.version(FIREWALLS)
        if version != self._version:
            rules = defaultdict(list)
            for rule in self._store.list_json(FIREWALLS):
                rules[rule["network"]].append(rule)
            self._rules, self._version = rules, version
        return self._rules.get(network, ())

    def _interface(self, machine: str) -> NetworkInterface | None:
        for service in self._registry.machine_services():
            interface = service.interface(machine)
            if interface is not None:
                return interface
        return None

    def _subnetwork(self, interface: NetworkInterface) -> Mapping[str, Any]:
        """As stored; subnetworks that come with a network are stored only once changed."""
        return self._store.get_json(SUBNETWORKS, interface.subnetwork) or {}

    def _internal(self, interface: NetworkInterface) -> IPv4Address:
        """An address in the machine's subnetwork, after those of the network and the gateway."""
        text = interface.range or self._subnetwork(interface).get("ipCidrRange")
        region = interface.subnetwork.split("/")[3] if interface.subnetwork else ""
        if text is None and region in regions():
            text = auto_range(region)
        block = _AUTO_RANGE if text is None else IPv4Network(text)
        number = int(IPv4Address(interface.address)) % 2**16
        return block[2 + number % max(block.num_addresses - 3, 1)]


def _external(interface: NetworkInterface) -> IPv4Address:
    return _EXTERNAL[int(IPv4Address(interface.address)) % 2**8]


def _last(name: str) -> str:
    return name.rpartition("/")[2]
