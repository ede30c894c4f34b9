"""Enforces the networks' rules on the machines of one local cloud.

Who connects is recognized by the source address: machines use their own, Identity-Aware Proxy
another one of the same network, and everything else is this computer. The kernel drops what is not
allowed: at listeners by socket filters, at connecting programs of machines by a `ConnectionWatch`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from tpuctl.emulator.machines.interface import ALLOWED, ConnectionPolicy, Verdict
from tpuctl.emulator.machines.network.addresses import SHARED, Addresses, Reservation
from tpuctl.emulator.machines.network.connection_watch import ConnectionWatch, Decisions
from tpuctl.emulator.machines.network.socket_filter import restrict_listener

log = logging.getLogger(__name__)
SSH, SERVING, DOMAIN = 22, 8470, 53
_MAX_REPORTED = 50


@dataclass(frozen=True)
class _Listener:
    """A listener of the server on a machine's address."""

    sockets: tuple[socket.socket, ...]
    port: int


class Firewall:
    """Without a policy, everything is allowed."""

    def __init__(self, addresses: Addresses, *, watches: bool) -> None:
        """`watches`: whether machines' programs can be watched."""
        self.policy: ConnectionPolicy | None = None
        self._addresses = addresses
        self.watches_programs = watches
        self._watches: dict[str, ConnectionWatch] = {}
        self._listeners: dict[str, _Listener] = {}
        self._refused: Counter[str] = Counter()
        self._closed: dict[str, str] = {}

    @property
    def machines(self) -> IPv4Network | None:
        """The addresses of all machines; None if they share one with this computer."""
        return self._addresses.network

    def between(self, source: str, target: str, port: int) -> Verdict:
        """A connection between machines, whose port is that on this computer."""
        if self.policy is None:
            return ALLOWED
        port = _public_port(self._addresses.find(target), port)
        verdict = self.policy.between(source, target, port)
        return self._reported(verdict, source, self.policy.label(target), port)

    def to_address(self, source: str, address: str | None, port: int) -> Verdict:
        """A connection of a machine to an address; None if it is unknown."""
        target = None if address is None else self._addresses.name_at(address)
        if target is not None:
            return ALLOWED if target == source else self.between(source, target, port)
        is_local = address is not None and IPv4Address(address).is_loopback
        if self.policy is None or is_local or port == DOMAIN:
            return ALLOWED  # name servers are always reachable, at Google's metadata server
        verdict = self.policy.to_internet(source, address, port)
        return self._reported(verdict, source, address or "the internet", port)

    def needs_address(self, source: str) -> bool:
        """Whether it matters which address on the internet a machine connects to."""
        return self.policy is not None and self.policy.limits_egress(source)

    def to_google(self, source: str, host: str) -> Verdict:
        """A connection of a machine to one of Google's hosts."""
        if self.policy is None:
            return ALLOWED
        return self._reported(self.policy.to_google(source), source, host, 443)

    def from_outside(self, target: str, port: int) -> Verdict:
        """A connection to a machine that is not recognized as a machine's."""
        if self.policy is None:
            return ALLOWED
        port = _public_port(self._addresses.find(target), port)
        verdict = self.policy.from_outside(target, port)
        if verdict.is_allowed or self.watches_programs:
            return verdict
        # Connections of machines come from this computer's address, too.
        others = [
            self.policy.between(name, target, port)
            for name in self._addresses.names()
            if name != target
        ]
        if self.machines is None:
            others.append(self.policy.from_relay(target, port))
        return next((other for other in others if other.is_allowed), verdict)

    def accepts(self, target: str, port: int) -> bool:
        """Whether the server may accept a connection that has passed the socket's filter."""
        return self.machines is not None or self.from_outside(target, port).is_allowed

    def source_address(self, machine: str) -> tuple[str, int] | None:
        """Where connections come from that the server opens for a machine."""
        address = self._addresses.find(machine).address
        return None if address == SHARED else (address, 0)

    # Listeners of the server.

    def guard(self, machine: str, sockets: Iterable[socket.socket], port: int) -> None:
        """Restrict the server's listener on the machine's address until `release`."""
        self._listeners[machine] = _Listener(tuple(sockets), port)
        self._restrict(machine)

    def release(self, machine: str) -> None:
        self._listeners.pop(machine, None)
        self._closed.pop(machine, None)

    def _restrict(self, machine: str) -> None:
        listener = self._listeners[machine]
        verdict = self.from_outside(machine, listener.port)
        self._closed.pop(machine, None)
        if self.policy is not None and not verdict.is_allowed:
            port = _public_port(self._addresses.find(machine), listener.port)
            label = self.policy.label(machine)
            self._closed[machine] = f"this computer to {label} tcp:{port}: {verdict.reason}"
        if self.machines is not None:
            address = self._addresses.find(machine).address
            for listening in listener.sockets:
                with contextlib.suppress(OSError):  # closed
                    restrict_listener(
                        *(listening, address, self.machines), allows_outside=verdict.is_allowed
                    )

    # Programs of machines.

    def watch(self, machine: str, notifications: int) -> None:
        """Decide about the connections of a machine's programs."""
        assert self.machines is not None, "programs are watched only if machines have addresses"
        decisions = Decisions(
            address=self._addresses.find(machine).address,
            machines=self.machines,
            allows_connection=lambda address, port: (
                self.to_address(machine, address, port).is_allowed
            ),
            allows_outside=lambda port: self.from_outside(machine, port).is_allowed,
            listening=lambda port: self._other_listening(machine, port),
        )
        self._watches[machine] = ConnectionWatch(notifications, decisions)

    def _other_listening(self, machine: str, port: int) -> str | None:
        """The address of the only other machine whose programs listen at this port, if any."""
        names = [
            name
            for name, watch in self._watches.items()
            if name != machine and watch.has_listener(port)
        ]
        return self._addresses.find(names[0]).address if len(names) == 1 else None

    def unwatch(self, machine: str) -> None:
        if (watch := self._watches.pop(machine, None)) is not None:
            watch.close()

    def refresh(self) -> None:
        """Apply changed rules."""
        for machine in self._listeners:
            self._restrict(machine)
        for watch in self._watches.values():
            watch.refresh()

    def report(self) -> list[str]:
        """The refused connections, and the machines closed to this computer, with the reasons."""
        refused = [
            f"{text} ({count} times)" if count > 1 else text
            for text, count in self._refused.items()
        ]
        return [*self._closed.values(), *refused]

    def _reported(self, verdict: Verdict, source: str, target: str, port: int) -> Verdict:
        if not verdict.is_allowed and self.policy is not None:
            text = f"{self.policy.label(source)} to {target} tcp:{port}: {verdict.reason}"
            if text not in self._refused:
                log.warning("dropped a connection of %s", text)
                if len(self._refused) >= _MAX_REPORTED:
                    del self._refused[next(iter(self._refused))]
            self._refused[text] += 1
        return verdict


def _public_port(reservation: Reservation, port: int) -> int:
    """The port on Google: SSH and TensorFlow may have others here."""
    return {reservation.ssh_port: SSH, reservation.serving_port: SERVING}.get(port, port)
