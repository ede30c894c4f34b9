"""Stacks in separate projects, on a local cloud with stub machines."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl, run_tpuctl
from tests.support.locations import PROJECT, PROJECT_NAME, ZONE
from tpuctl.api import Tpuctl
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.operations import long_operation
from tpuctl.errors import NotFound
from tpuctl.flows.stack.plan import Prepared
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud, status
from tpuctl.model.events import Event
from tpuctl.polling import Backoff, wait_until

SERVE = Path(__file__).resolve().with_name("serve_null.py")
ACCOUNT = "010CA1-010CA1-010CA1"  # the local cloud's open billing account
numbers = itertools.count(1)  # of stacks and projects; no two tests share a name


@contextmanager
def serving(home: Path) -> Iterator[LocalCloud]:
    """A local cloud without machines in a separate process, located by TPUCTL_LOCAL_HOME."""
    command = [sys.executable, str(SERVE), str(home), "instant"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, token = server.stdout.readline().split()
        try:
            url = f"http://127.0.0.1:{port}"
            address = {"url": url, "port": int(port), "pid": server.pid, "pace": "instant"}
            (home / "server.json").write_text(json.dumps(address), "utf-8")
            assert status(home) is not None, "commands would start another one"
            yield LocalCloud(url, token, int(port), server.pid, home, "instant")
        finally:
            server.terminate()
            server.wait(20)


def enable_apis(cloud: LocalCloud) -> None:
    """Enable what stacks need in the local cloud's own project, as the first `up` does: a test that
    asks for machines does not depend on a test before it."""
    opened = Cloud(Endpoint("local", cloud.url, cloud.token), PROJECT)
    services = [f"{name}.googleapis.com" for name in ("tpu", "compute", "iam")]

    async def enable() -> None:
        request = {"parent": PROJECT_NAME, "service_ids": services}
        method = opened.client("services").batch_enable_services
        operation = await opened.call("apis", method, request)
        await long_operation(opened, "services", operation.operation, subject="apis", seconds=60)

    asyncio.run(enable())


def use_cloud(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stacks and commands in any folder find the cloud."""
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(cloud.home))
    # Shared by all tests of the cloud: the SSH key is generated once.
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(cloud.home.parent / "config"))
    monkeypatch.setenv("TPUCTL_CLOUD", "local")


async def provision(stack: Tpuctl) -> Prepared:
    """Like `up`, without connecting to machines: they are stubs."""
    return await stack.provision(await stack.plan())


@dataclass(frozen=True)
class Bench:
    """A stack with its file, and the events it emitted."""

    stack: Tpuctl
    events: list[Event]

    @property
    def folder(self) -> Path:
        return self.stack.stack_file.parent

    async def provision(self) -> Prepared:
        return await provision(self.stack)

    async def preempt(self, cloud: LocalCloud) -> None:
        """Preempt the node, and wait until it is preempted."""

        async def is_gone() -> bool | None:
            try:
                return (await self.stack.node()).state == "PREEMPTED" or None
            except NotFound:  # Compute Engine deletes preempted instances
                return True

        # By its full name: other projects of the cloud may have a node of that name.
        node = await self.stack.node()
        remote_control.add_fault(cloud, "preempt", node=next(iter(node.instances), node.name))
        await wait_until(
            is_gone, description="the preemption", seconds=20, backoff=Backoff(0.02, 0.2)
        )

    def reopen(self) -> Tpuctl:
        """The same stack, loaded as by another program."""
        return Tpuctl(self.stack.stack_file, cloud="local", emit=self.events.append)

    async def call(self, client: str, method: str, *arguments: Any, **fields: Any) -> Any:
        cloud = self.stack.cloud
        return await cloud.call(method, getattr(cloud.client(client), method), *arguments, **fields)

    def type(self, *arguments: str, folder: Path | None = None, **env: str) -> tuple[int, str, str]:
        """Run a command line; returns exit code, stdout and stderr."""
        done = run_tpuctl(*arguments, folder=folder or self.folder, **env)
        return done.returncode, done.stdout, done.stderr

    def answer(self, *arguments: str, folder: Path | None = None) -> dict[str, Any]:
        """The JSON envelope that a command line prints."""
        code, out, errors = self.type(*arguments, "--json", folder=folder)
        envelope: dict[str, Any] = json.loads(out)
        assert envelope["exit_code"] == code, errors
        return envelope

    def in_terminal(self, *arguments: str, columns: int) -> str:
        """The output of a command line on a terminal of that width, both streams."""
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        output = b""
        with subprocess.Popen(
            [forked_tpuctl(), *arguments],
            cwd=self.folder,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        ):
            os.close(terminal)
            with contextlib.suppress(OSError):  # the terminal closes after all output was read
                while more := os.read(controller, 10_000):
                    output += more
        os.close(controller)
        return output.decode().replace("\r\n", "\n")


class Project:
    """A project that the first `up` creates, with any number of stacks."""

    def __init__(self, folder: Path) -> None:
        self.id = f"project-{os.getpid()}-{next(numbers)}"
        self.folder = folder

    @classmethod
    def spoken_to(cls, cloud: LocalCloud, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
        """A project for which commands in any folder find the cloud."""
        use_cloud(cloud, monkeypatch)
        return cls(folder)

    def stack(
        self,
        tpu: str = "",
        extra: str = "",
        *,
        name: str = "",
        type_name: str = "v3-8",
        zones: str = ZONE,
    ) -> Bench:
        """`tpu` has more keys of that section, besides type and zones."""
        name = name or f"stack-{next(numbers)}"
        folder = self.folder / f"{name}-{next(numbers)}"
        folder.mkdir()
        path = folder / "tpuctl.yaml"
        path.write_text(
            f"stack: {name}\nproject: {{id: {self.id}, create: true, billing_account: {ACCOUNT}}}\n"
            f"tpu: {{type: {type_name}, zones: [{zones}]{', ' if tpu else ''}{tpu}}}\n{extra}\n",
            "utf-8",
        )
        events: list[Event] = []
        return Bench(Tpuctl(path, cloud="local", emit=events.append), events)
