"""How often `run` talks to each worker before its first log line, on workers that do no work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.locations import PROJECT, ZONE
from tests.support.simulated_workers import simulated_cloud
from tpuctl.api import Tpuctl
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.model.events import Event, LogChunk


async def test_run_logs_in_once_and_sends_one_command_to_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "cloud").mkdir()
    (tmp_path / "job").mkdir()
    script = tmp_path / "job" / "hello.py"
    script.write_text("print('hello')\n", "utf-8")
    stack_file = tmp_path / "tpuctl.yaml"
    stack_file.write_text(
        f"stack: simulated\nproject: {{id: {PROJECT}}}\n"
        f"tpu: {{type: v3-32, zones: [{ZONE}], runtime: tpu-ubuntu2204-base}}\n",
        "utf-8",
    )
    events: list[Event] = []
    async with simulated_cloud(tmp_path / "cloud", 4, latency=0.0) as (server, report):
        stack = Tpuctl(stack_file, cloud="local", emit=events.append)
        stack.endpoint = Endpoint("local", f"http://127.0.0.1:{server.port}", server.token)
        await stack.provision(await stack.plan())
        assert await stack.run(script) == 0
        first, *others = report().workers

    log_workers = {event.worker for event in events if isinstance(event, LogChunk)}
    assert log_workers == {0}
    assert [worker.connections for worker in (first, *others)] == [1, 1, 1, 1]
    # One command sends and starts the supervisor, signals the start, and follows the log.
    assert [worker.commands for worker in others] == [["sh", "signal", "log"]] * 3
    # The first worker is also asked which job uses its chips, and whether it was signaled.
    assert [name for name in first.commands if name != "test"] == ["jobs", "sh", "signal", "log"]
    assert first.commands.count("test") <= 1
