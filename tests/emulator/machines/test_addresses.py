"""The addresses and ports of machines, and their persistence."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.network import addresses
from tpuctl.emulator.machines.network.addresses import Addresses, can_listen

NAMES = [f"projects/p/locations/z/nodes/n/workers/{worker}" for worker in range(4)]
has_loopback_network = pytest.mark.skipif(
    not can_listen("127.77.66.55", 0), reason="the system has one loopback address only"
)


def test_reservations_are_idempotent_and_persistent(tmp_path: Path) -> None:
    first = Addresses(tmp_path / "addresses.json").reserve(NAMES)
    again = Addresses(tmp_path / "addresses.json")
    assert again.reserve(NAMES) == first
    assert again.reserve([NAMES[2], NAMES[0]]) == [first[2], first[0]]
    assert len({(reservation.address, reservation.ssh_port) for reservation in first}) == len(NAMES)


@has_loopback_network
def test_released_address_is_reused(tmp_path: Path) -> None:
    kept = Addresses(tmp_path / "addresses.json")
    first = kept.reserve(NAMES)
    assert len({reservation.address for reservation in first}) == len(NAMES)
    kept.release(NAMES[1])
    assert kept.reserve(["another"])[0].address == first[1].address


@has_loopback_network
def test_two_local_clouds_use_different_addresses(tmp_path: Path) -> None:
    clouds = [Addresses(tmp_path / f"{number}.json") for number in range(3)]
    chosen_addresses = [
        reservation.address for cloud in clouds for reservation in cloud.reserve(NAMES)
    ]
    assert len(set(chosen_addresses)) == 3 * len(NAMES)


@has_loopback_network
def test_ssh_uses_port_22_if_allowed_and_free(tmp_path: Path) -> None:
    kept = Addresses(tmp_path / "addresses.json")
    [reservation] = kept.reserve(NAMES[:1])
    assert (reservation.ssh_port == 22) == can_listen(reservation.address, 22)
    assert (reservation.metadata_port == 80) == can_listen(reservation.address, 80)


@has_loopback_network
def test_used_port_is_not_chosen(tmp_path: Path, monkeypatch: Any) -> None:
    kept = Addresses(tmp_path / "addresses.json", ssh="high")
    [address] = [reservation.address for reservation in kept.reserve(["first"])]
    monkeypatch.setattr(addresses, "HIGH_PORTS", range(23450, 23453))
    kept.release("first")
    with socket.socket() as other:
        other.bind((address, 23451))
        other.listen()
        [reserved] = kept.reserve(["first"])
    used_ports = {reserved.ssh_port, reserved.metadata_port}
    assert reserved.address == address
    assert reserved.ssh_port in (23450, 23452)
    assert 23451 not in used_ports


def test_machines_share_address_without_loopback_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        addresses, "can_listen", lambda host, port: host == "127.0.0.1" and can_listen(host, port)
    )
    reservations = Addresses(tmp_path / "addresses.json").reserve(NAMES)
    assert {reservation.address for reservation in reservations} == {"127.0.0.1"}
    ports = [
        port
        for reservation in reservations
        for port in (reservation.ssh_port, reservation.metadata_port)
    ]
    assert len(set(ports)) == 2 * len(NAMES)
    assert not {22, 80} & set(ports)


async def test_high_ports_accept_connections(make_lab: Any) -> None:
    lab = await make_lab(ssh="high")
    spec = await lab.boot()
    assert spec.endpoint.ssh_port > 1024
    assert (await lab.run("echo high")).out == "high\n"


@has_loopback_network
async def test_servers_listen_only_on_loopback(make_lab: Any) -> None:
    others = {port for port in (22, 80) if not is_free_on_all_addresses(port)}
    lab = await make_lab()
    spec = await lab.boot()
    output = (await lab.run("echo $GCE_METADATA_HOST; echo $https_proxy")).out.split()
    metadata, proxy = (int(text.rpartition(":")[2]) for text in output)
    assert spec.endpoint.address.startswith("127.")
    for port in {spec.endpoint.ssh_port, metadata, proxy} - others:
        assert is_free_on_all_addresses(port)


def is_free_on_all_addresses(port: int) -> bool:
    """Whether no server uses the port on all addresses: otherwise it cannot be bound."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.255.255.1", port))
        except PermissionError:
            return False
        except OSError as problem:
            assert problem.errno == errno.EADDRINUSE
            return False
    return True


async def test_boot_reports_port_in_use(make_lab: Any) -> None:
    lab = await make_lab(ssh="high")
    spec = await lab.boot()
    await lab.host.shut_down(spec.name)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((spec.endpoint.address, spec.endpoint.ssh_port))
        other.listen()
        with pytest.raises(MachineError, match=f"port {spec.endpoint.ssh_port}.*in use"):
            await lab.host.boot(spec, lambda _: None)
    assert lab.host.count_running() == 0
    await lab.host.boot(spec, lambda _: None)
    assert (await lab.run("echo up")).out == "up\n"
