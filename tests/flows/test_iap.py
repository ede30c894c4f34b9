"""A slice without external addresses, used through IAP tunnels that drop."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncssh
import pytest

from tests.support.stack_jobs import displayed_log
from tests.support.worker_http import GREETING, read_greeting, serve_greeting
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, Unreachable
from tpuctl.flows.machines import workers
from tpuctl.flows.machines.forward import PortMapping
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import CommandOutput, Event, WarningIssued
from tpuctl.model.workers.copy_path import parse_copy

PRINT_LINES = """
for number in range(3000):
    print(f"{number:06d} {'x' * 60}", flush=number % 100 == 0)
"""


@pytest.fixture
async def slice_(
    make_stack: Callable[..., Tpuctl], local_cloud: server_process.LocalCloud
) -> AsyncIterator[Tpuctl]:
    stack = make_stack(
        type_name="v3-32",
        zone="europe-west4-a",
        extra="network: {ssh: iap}\njob: {workers: [1, 3]}\n",
    )
    await stack.up()
    yield stack
    for fault in remote_control.faults(local_cloud):
        remote_control.remove_fault(local_cloud, fault["id"])
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_jobs_commands_copies_and_ports_work_through_iap(
    slice_: Tpuctl,
    local_cloud: server_process.LocalCloud,
    events: list[Event],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await slice_.node()
    assert node.addresses == node.inner_addresses

    # A job whose log arrives through tunnels that are cut.
    script = tmp_path / "talk" / "talk.py"
    script.parent.mkdir()
    script.write_text(PRINT_LINES, "utf-8")
    cut = remote_control.add_fault(
        local_cloud, "truncate", method="iap.tunnels.*", after_bytes=50_000, times=3
    )
    assert await slice_.run(script) == 0
    expected = "".join(f"{number:06d} {'x' * 60}\n" for number in range(3000))
    assert displayed_log(events, 1) == expected, "the log of the first worker"
    assert remote_control.remove_fault(local_cloud, cut["id"])["applied"] == 3
    assert not any(
        isinstance(event, WarningIssued) and "onnection" in str(event) for event in events
    )

    # Commands and files.
    endings = await slice_.run_on_workers("hostname; exit 3")
    assert [result.exit_code for result in endings] == [3] * 4
    names = [event.data for event in events if isinstance(event, CommandOutput)]
    assert {name.strip()[-4:] for name in names} == {b"-w-0", b"-w-1", b"-w-2", b"-w-3"}
    source = tmp_path / "sent"
    source.write_bytes(os.urandom(1_000_000))
    await slice_.copy(parse_copy([str(source), "2:there"], all_workers=False))
    await slice_.copy(parse_copy(["2:there", str(tmp_path / "back")], all_workers=False))
    assert (tmp_path / "back").read_bytes() == source.read_bytes()

    # The ssh program with tpuctl as its proxy command.
    command = await slice_.ssh_command(2, "wc -c < there; exit 9")
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (9, "1000000"), done.stderr

    # Ports.
    async with serve_greeting(slice_) as port:
        events.clear()
        async with slice_.forward_ports([PortMapping(port)], 0):
            assert await read_greeting(events) == GREETING

    methods = {call["method"] for call in remote_control.calls(local_cloud)}
    assert {"iap.tunnels.connect", "iap.tunnels.reconnect"} <= methods

    # Any program on a machine can write guest attributes.
    monkeypatch.setattr(workers, "HOST_KEY_SECONDS", 0.1)
    write = (
        "curl -sf -X PUT -H 'Metadata-Flavor: Google' --data '-oProxyCommand=id' "
        "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/tpu/hostname"
    )
    assert [result.exit_code for result in await slice_.run_on_workers(write, 2)] == [0]
    with pytest.raises(Unreachable, match="worker 2") as unreachable:
        await slice_.transports()
    assert unreachable.value.diagnostics[0].summary == "Worker has no host name"


async def test_recreated_node_has_new_host_key(
    make_stack: Callable[..., Tpuctl],
) -> None:
    stack = make_stack(extra="network: {ssh: iap}\n")
    await stack.up()
    (before,) = (await stack.transports()).values()
    assert before.address.pinned_keys_file is None, "the machine has published its key"
    assert (await before.run(["true"])).exit_code == 0
    await before.close()
    first = await stack.node()

    name = f"projects/{stack.stack.project}/locations/{first.zone}/nodes/{first.name}"
    client = stack.cloud.client("tpu")
    operation = await stack.cloud.call("the node", client.delete_node, {"name": name})
    await asyncio.to_thread(operation.result, timeout=60)
    await stack.up()
    second = await stack.node()
    assert second.id != first.id
    (after,) = (await stack.transports()).values()
    assert after.address.host_keys != before.address.host_keys
    assert (await after.run(["true"])).exit_code == 0, "the new key is published"
    await after.close()
    with pytest.raises(Conflict, match="through IAP") as caught:  # still expects the old key
        await before.run(["true"])
    assert "tpuctl up" in caught.value.diagnostics[0].hint
    await before.close()
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_unpublished_host_key_is_trusted_on_first_use(
    make_stack: Callable[..., Tpuctl], local_cloud: server_process.LocalCloud, events: list[Event]
) -> None:
    stack = make_stack()
    await stack.up()
    deny = remote_control.add_fault(
        *(local_cloud, "deny"),
        method="GetGuestAttributes",
        name=stack.stack.names.node,
        times="unlimited",
    )
    try:
        events.clear()
        for _ in range(2):
            (transport,) = (await stack.transports()).values()
            assert (await transport.run(["true"])).exit_code == 0
            await transport.close()
        warnings = [each.diagnostic.summary for each in events if isinstance(each, WarningIssued)]
        assert warnings == ["Host key trusted on first use"], "only on first use"

        key_file = transport.address.pinned_keys_file
        assert key_file is not None
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh")
        key_file.write_bytes(other)
        (transport,) = (await stack.transports()).values()
        with pytest.raises(Conflict) as caught:
            await transport.run(["true"])
        command = caught.value.diagnostics[0].hint.splitlines()[-1].strip()
        await asyncio.to_thread(subprocess.run, ["sh", "-c", command], check=True)
        (transport,) = (await stack.transports()).values()
        assert (await transport.run(["true"])).exit_code == 0, "the suggested command fixes it"
        await transport.close()

        # Such a machine is not reachable through IAP.
        file = stack.stack_file
        file.write_text(file.read_text("utf-8") + "network: {ssh: iap}\n", "utf-8")
        tunnelled = Tpuctl(file, cloud="local")
        with pytest.raises(Unreachable, match="has no host name") as unreachable:
            await tunnelled.transports()
        assert "disableGuestAttributesAccess" in unreachable.value.diagnostics[0].hint
    finally:
        remote_control.remove_fault(local_cloud, deny["id"])
    assert (await stack.down(delete_bucket=True)).leaks == ()
