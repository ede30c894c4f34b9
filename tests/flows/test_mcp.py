"""`tpuctl mcp`: an agent with the official client, over stdio, on the local cloud."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.forked_cli import run_tpuctl
from tests.support.polling import async_until
from tpuctl.cli.help.commands import COMMANDS, Effect
from tpuctl.cli.main import run
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.view.schemas import envelope_schema

if TYPE_CHECKING:
    from mcp.client.client import Client

STACK = (
    "stack: {name}\nproject: {{id: local-project}}\n"
    "tpu: {{type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}}\n"
)
SCRIPT = """
import sys, time
print("argument", sys.argv[1], flush=True)
time.sleep(float(sys.argv[1]))
"""
SAFE = {"plan", "status", "jobs", "logs", "explain", "check", "rehearse"}
SPENDING = {"up", "run", "stop", "down"}
ENVELOPE = Draft202012Validator(envelope_schema())


class Agent:
    """A client of `tpuctl mcp`, and what the program printed on stderr."""

    def __init__(self, client: Client, errors: Path) -> None:
        self.client = client
        self.errors = errors
        self.progress: list[str] = []

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The envelope that a tool answers with; both forms of it are the same."""
        result = await self.client.call_tool(name, arguments, progress_callback=self._note)
        (content,) = result.content
        assert not result.is_error, content
        envelope: dict[str, Any] = result.structured_content
        assert json.loads(content.text) == envelope  # type: ignore[union-attr]
        ENVELOPE.validate(envelope)
        assert envelope["command"] == name
        return envelope

    async def fail(self, name: str, **arguments: Any) -> str:
        """The text of a tool's error."""
        result = await self.client.call_tool(name, arguments)
        (content,) = result.content
        assert result.is_error, content
        text: str = content.text  # type: ignore[union-attr]
        assert "Traceback" not in text
        return text

    async def _note(self, _: float, __: float | None, message: str | None) -> None:
        self.progress.append(message or "")


@asynccontextmanager
async def agent(folder: Path, *options: str) -> AsyncIterator[Agent]:
    from mcp.client.client import Client  # not when tests are collected: it takes a while
    from mcp.client.stdio import StdioServerParameters, stdio_client

    errors = folder / "mcp.stderr"
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tpuctl", "--cloud", "local", "mcp", *options],
        cwd=folder,
        env=dict(os.environ),
    )
    with errors.open("w") as stderr:
        async with Client(stdio_client(server, errlog=stderr)) as client:
            yield Agent(client, errors)
    assert "Traceback" not in errors.read_text()


@pytest.fixture
def folder(local_cloud: LocalCloud, tmp_path: Path) -> Path:
    name = f"agent-{os.getpid()}-{tmp_path.name[-12:].strip('-_').replace('_', '-').lower()}"
    (tmp_path / "tpuctl.yaml").write_text(STACK.format(name=name), "utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    return tmp_path


def answer(folder: Path, *words: str) -> dict[str, Any]:
    """What the command line prints with --json."""
    done = run_tpuctl("--json", *words, folder=folder)
    envelope: dict[str, Any] = json.loads(done.stdout)
    return envelope


async def test_agent_trains_when_spending_is_allowed(folder: Path) -> None:
    async with agent(folder, "--allow-spending") as client:
        assert {tool.name for tool in (await client.client.list_tools()).tools} == SAFE | SPENDING
        plan = await client.call("plan")
        assert plan == answer(folder, "plan")
        assert {change["action"] for change in plan["data"]["changes"]} > {"create"}
        up = await client.call("up")
        assert up["data"]["changes"] == plan["data"]["changes"]
        assert any("create node/" in message for message in client.progress)
        # An agent may look around while a tool works.
        started, status = await asyncio.gather(
            client.call("run", script="train.py", arguments=["0"]), client.call("status")
        )
        assert [node["state"] for node in status["data"]["nodes"]] == ["READY"]
        job = started["data"]["job"]
        while (jobs := await client.call("jobs"))["data"][0]["exit_code"] is None:
            await asyncio.sleep(0.2)
        assert (jobs["data"][0]["id"], jobs["data"][0]["state"]) == (job, "succeeded")
        assert jobs == answer(folder, "jobs")
        logs = await client.call("logs", job=job)
        assert logs["data"].pop("text") == "argument 0\n"
        assert logs == answer(folder, "logs", job)
        assert "argument" not in client.errors.read_text(), "the log is in the answer alone"
        explained = await client.call("explain", job=job)
        assert explained == answer(folder, "explain", job)
        # Stopped before it ends by itself.
        await client.call("run", script="train.py", arguments=["600"])
        assert (await client.call("stop"))["data"]["state"] == "stopped"
        down = await client.call("down")
        assert {each["state"] for each in down["data"]["remaining"]} <= {"deleted", "kept"}
        assert (await client.call("status"))["data"]["nodes"] == []


async def test_nothing_that_costs_without_allow_spending(folder: Path) -> None:
    async with agent(folder) as client:
        tools = (await client.client.list_tools()).tools
        assert {tool.name for tool in tools} == SAFE
        for tool in tools:
            assert tool.annotations is not None
            effect = COMMANDS[tool.name].effect
            assert effect in (Effect.READS, Effect.LOCAL)
            assert tool.annotations.read_only_hint is (effect is Effect.READS)
            assert tool.annotations.destructive_hint is False
            Draft202012Validator.check_schema(tool.input_schema)
        assert "--allow-spending" in str(client.client.instructions)
        for name in SPENDING:
            text = await client.fail(name, **({"script": "train.py"} if name == "run" else {}))
            assert f"{name} {COMMANDS[name].effect.value}" in text
            assert "    tpuctl mcp --allow-spending" in text
        status = await client.call("status")
    assert status["data"]["resources"] == [], "nothing was created"


async def test_tools_that_wait_do_not_keep_others_waiting(
    folder: Path, local_cloud: LocalCloud
) -> None:
    """As when the cloud does not answer: a call is retried for 30 seconds."""
    default_threads = min(32, (os.cpu_count() or 1) + 4)  # of an event loop
    name = (folder / "tpuctl.yaml").read_text().split()[1]
    options = {"method": "storage.objects.list", "name": name, "times": "unlimited"}
    fault = await asyncio.to_thread(remote_control.add_fault, local_cloud, "hold", **options)

    def are_all_held() -> bool:
        held_calls = remote_control.fault(local_cloud, fault["id"])["held_calls"]
        return len(held_calls) == default_threads

    async with agent(folder) as client:
        call = client.client.call_tool
        slow = [asyncio.create_task(call("jobs", {})) for _ in range(default_threads)]
        await async_until(are_all_held, "a held call of each tool")
        await client.call("explain", error="There is no more capacity in the zone")
        assert not any(task.done() for task in slow)
        await asyncio.to_thread(remote_control.remove_fault, local_cloud, fault["id"])
        await asyncio.gather(*slow)


async def test_errors_and_findings_are_those_of_the_command_line(folder: Path) -> None:
    (folder / "wrong.py").write_text("import tensorflow as tf\nprint(\n", "utf-8")
    async with agent(folder) as client:
        assert (await client.call("check"))["data"]["type"] == "v2-8"
        checked = await client.call("check", scripts=["wrong.py"])
        assert checked == answer(folder, "check", "wrong.py")
        assert [finding["code"] for finding in checked["data"]["findings"]] == ["TPU000"]
        assert checked["exit_code"] == 1, "findings are the answer, not an error of the tool"
        (problem,) = answer(folder, "logs", "nonesuch")["diagnostics"]
        text = await client.fail("logs", job="nonesuch")
        assert text == f"{problem['summary']}: {problem['detail']}\n{problem['hint']}"
        assert "There is no tool".lower() in await client.fail("nonesuch")
        assert "'many' is not of type 'integer'" in await client.fail("logs", tail="many")
        assert "unexpected" in await client.fail("plan", yes=True)
        # Neither an option in place of a value, nor a value in place of an option.
        assert "Invalid arguments" in await client.fail("check", scripts=["--fix"])
        assert "Invalid pattern: '--follow ('" in await client.fail("logs", grep="--follow (")
        (folder / "tpuctl.yaml").write_text("stack: Agent\n", "utf-8")
        text = await client.fail("plan")
        assert "tpuctl.yaml:1" in text


@pytest.mark.soak
@pytest.mark.tensorflow
async def test_rehearse_answers_with_assessment(folder: Path) -> None:
    async with agent(folder) as client:
        rehearsed = await client.call("rehearse", script="train.py", arguments=["0"])
        assert rehearsed["data"]["runs"][0]["exit_code"] == 0
        assert any("rehearsal/xla" in message for message in client.progress)


@pytest.mark.soak
@pytest.mark.tensorflow
async def test_canceled_tool_ends_its_work(folder: Path) -> None:
    pid_file = folder / "pid"
    (folder / "endless.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    async with agent(folder) as client:
        call = asyncio.create_task(client.call("rehearse", script="endless.py"))
        await async_until(lambda: pid_file.exists() and pid_file.read_text() != "", "the script")
        call.cancel()
        await async_until(
            lambda: not Path(f"/proc/{pid_file.read_text()}").exists(), "the end of the script"
        )
        assert (await client.call("check"))["status"] == "ok", "the server goes on"


def test_stdout_is_protocol_alone(folder: Path) -> None:
    requests = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "plan", "arguments": {}}},
        {"id": 3, "method": "tools/call", "params": {"name": "explain", "arguments": {}}},
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "tpuctl", "--cloud", "local", "mcp"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        for request in requests:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
        server.stdin.flush()
        answers: list[dict[str, Any]] = []
        while len(answers) < 3:
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()  # as an agent ends
        assert server.stdout.read() == ""
        assert server.wait(20) == 0
    assert sorted(each["id"] for each in answers) == [1, 2, 3]
    assert all(each["jsonrpc"] == "2.0" for each in answers)


def test_interrupt_ends_server_that_waits_for_input(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tpuctl", "--cloud", "local", "mcp"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b"not a request\n")
        server.stdin.flush()
        server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130


def test_without_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert run(["mcp"]) == 1
    assert "pip install 'tpuctl[mcp]'" in capsys.readouterr().err
    assert run(["mcp", "--json"]) == 2
