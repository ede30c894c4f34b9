"""The real gcloud through the local cloud's relay of Identity-Aware Proxy, and tpuctl's client.

gcloud uses Google's relay address, which leads to the local cloud in shells configured by
`tpuctl local env`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gcloud import Gcloud
from tpuctl.local_cloud import remote_control
from tpuctl.remote.iap import Destination, IapRoute, Relay

TPUS = ("compute", "tpus", "tpu-vm")
MACHINE_ZONE = "us-central1-a"
SIZE = 1_500_000
# Deterministic output without repeated lines.
PRINT_BYTES = f"seq 1 400000 | head -c {SIZE}"
EXPECTED = "".join(f"{number}\n" for number in range(1, 400_001))[:SIZE]


@pytest.mark.soak
def test_gcloud_ssh_through_iap_resumes_after_cut(machine_gcloud: Gcloud) -> None:
    gcloud, zone = machine_gcloud, f"--zone={MACHINE_ZONE}"
    gcloud.make_key()
    options = ("--accelerator-type=v2-32", "--version=tpu-ubuntu2204-base", "--internal-ips")
    gcloud.run(*TPUS, "create", "pod", *options, zone)
    # gcloud reconnects the session after an expired token; otherwise it starts a new one.
    cut = remote_control.add_fault(
        *(gcloud.cloud, "truncate"),
        project=gcloud.project,
        method="iap.tunnels.connect",
        after_bytes=400_000,
        code="UNAUTHENTICATED",
    )
    # Workers are found by the hostname in their guest attributes.
    through = ("--tunnel-through-iap", "--worker=2", zone)
    output = gcloud.run(
        "alpha", *TPUS, "ssh", "pod", *through, f"--command=hostname; {PRINT_BYTES}"
    ).stdout
    name, _, rest = output.partition("\n")
    assert name.endswith("-w-2")
    assert rest == EXPECTED, "no duplicate or missing bytes"
    assert remote_control.fault(gcloud.cloud, cut["id"])["applied"] == 1
    calls = [call["method"] for call in remote_control.calls(gcloud.cloud)]
    assert calls.count("iap.tunnels.connect") == calls.count("iap.tunnels.reconnect") == 1

    assert asyncio.run(_greeting(gcloud, name)).startswith(b"SSH-2.0-")
    closed = ("compute", "start-iap-tunnel", name, "23", "--listen-on-stdin", zone)
    assert "4003" in gcloud.run(*closed, check=False).stderr


async def _greeting(gcloud: Gcloud, instance: str) -> bytes:
    """The banner of the same worker's SSH server, read with tpuctl's client."""

    async def token() -> str:
        return gcloud.cloud.token

    relay = Relay(f"ws://127.0.0.1:{gcloud.cloud.port}/v4", token, is_local=True)
    opened = await IapRoute(relay, Destination(gcloud.project, MACHINE_ZONE, instance)).open()
    reader, writer = await asyncio.open_connection(sock=opened.socket)
    try:
        return await asyncio.wait_for(reader.readline(), 20)
    finally:
        writer.close()
        await opened.close()
