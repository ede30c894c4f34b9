"""A controller that reaches nothing but Google gets this tpuctl, and a Python for it, from the
bucket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.controllers import on_controller
from tests.support.locations import ZONE
from tests.support.python_mirror import PythonMirror
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, StepFinished, WarningIssued
from tpuctl.model.text.names import TOOLS
from tpuctl.version import __version__

pytestmark = pytest.mark.long
INSTALLED = "ls -d ~/.tpuctl/programs/*/environment/bin/tpuctl"


async def test_controller_gets_tpuctl_from_the_bucket(
    make_stack: Callable[..., Tpuctl],
    pythons: PythonMirror,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its image has another tpuctl. What is stored once serves the next `up`."""
    monkeypatch.setattr("tpuctl.jobs.wheel.__version__", "0.1.1")
    stack = make_stack(zone=ZONE, extra="network: {ssh: iap}\ncontroller: {}\n")

    def warnings() -> list[str]:
        return [event.diagnostic.detail for event in events if isinstance(event, WarningIssued)]

    try:
        await stack.up()
        (without_addresses,) = warnings()
        async with on_controller(stack) as transport:
            program = (await transport.run(["sh", "-c", INSTALLED])).stdout.decode().strip()
            version = await transport.run([program, "--version"])
            assert version.stdout.decode() == f"tpuctl {__version__}\n", version.stderr
            types = await transport.run([program, "types", "v5e-8", "--json"])
            assert b"v5litepod-8" in types.stdout, types.stderr
            await transport.run(["rm", "-rf", ".tpuctl/programs"])
        stored = [entry.name for entry in await stack.store.list(TOOLS)]
        assert {name.split("/")[-2].split("-")[0] for name in stored} == {"cpython", "tpuctl"}
        (packages,) = [name for name in stored if "packages" in name]
        content = await stack.store.get_bytes(packages)
        await stack.store.put_bytes(packages, content[:-1])
        events.clear()
        await stack.up()
        assert "is not intact" in warnings()[0]
        await stack.store.put_bytes(packages, content)
        events.clear()
        await stack.up()
        ended = [event.address for event in events if isinstance(event, StepFinished)]
        assert ended[-1] == f"controller/{stack.stack.names.controller}"
        assert (warnings(), "job/tools" in ended) == ([], False), "they were stored"
    finally:
        await stack.down(delete_bucket=True)
    assert "PyPI" in without_addresses
