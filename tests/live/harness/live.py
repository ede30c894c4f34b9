"""One live run: its stack, and recorded operations on it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.live.harness.recorder import Recorder
from tests.live.harness.settings import Settings
from tests.live.harness.transcript import RecordingCloud, Redaction, Transcript
from tpuctl.api import Down, Tpuctl
from tpuctl.catalog import region_of
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound
from tpuctl.model.events import Event, LogChunk

T = TypeVar("T")
POLL_SECONDS = {"local": 0.1, "google": 3.0}  # between two requests for a resource's state


class Live:
    """The fixture of the tests. All its methods block: the tests run one after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.events: list[Event] = []
        self.recorder = Recorder(
            settings.record,
            Redaction(_private_names(settings) | _names(settings)),
            {
                "cloud": settings.cloud,
                "type": settings.type_name,
                "capacity": settings.capacity,
            },
        )
        self.transcript = Transcript(settings.transcript, Redaction(_private_names(settings)))
        self.stack = self.open(settings.stack, settings.stack_file())
        self._plain = Cloud(self.stack.endpoint, settings.project)

    def open(self, name: str, text: str) -> Tpuctl:
        """Open a stack whose steps and calls are recorded."""
        path = self.settings.folder / self.settings.stack / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        stack = Tpuctl(path, cloud=self.settings.cloud, emit=self._on)
        stack.cloud = RecordingCloud(stack.endpoint, self.settings.project)
        stack.cloud.transcript = self.transcript
        return stack

    def _on(self, event: Event) -> None:
        self.events.append(event)
        self.recorder.on(event)

    def run_step(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run something as a step of the record."""
        with self.recorder.step(name):
            return asyncio.run(work)

    def run_watched(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run a step while recording the node's states."""

        async def both() -> T:
            interval = POLL_SECONDS[self.settings.cloud]
            async with self.recorder.watch_states("the node", self._node_state, interval):
                return await work

        return self.run_step(name, both())

    async def _node_state(self) -> str | None:
        """The node's state in any of the zones, with calls that are not recorded."""
        client = self._plain.client("tpu")
        parent = f"projects/{self.settings.project}/locations"
        for zone in self.settings.zones:
            name = f"{parent}/{zone}/nodes/{self.settings.stack}-tpu"
            try:
                node = await self._plain.call("the node", client.get_node, {"name": name})
            except NotFound:
                continue
            return str(node.state.name)
        return None

    def up(self) -> None:
        self.run_watched("up", self.stack.up())

    def down(self) -> Down:
        return self.run_watched("down", self.stack.down(delete_bucket=True))

    def run_script(self, name: str, text: str, *arguments: str) -> tuple[int, bytes]:
        """Run a script; return its exit code and log. Checks that log chunks are contiguous."""
        folder = self.settings.folder / self.settings.stack / name
        folder.mkdir(exist_ok=True)
        script = folder / f"{name}.py"
        script.write_text(text, "utf-8")
        self.events.clear()
        code = self.run_step(f"run {name}", self.stack.run(script, arguments))
        log = b""
        for event in self.events:
            if isinstance(event, LogChunk):
                assert event.offset == len(log), "a duplicate or missing byte"
                log += event.data
        return code, log


def _private_names(settings: Settings) -> dict[str, str]:
    """Substitutes for the names of people and projects."""
    names = {settings.project: "example-project", str(Path.home()): "/home/user"}
    user = getpass.getuser()
    is_word = len(user) <= 3 or user == "root"  # which other texts contain
    return names if is_word else names | {user: "user"}


def _names(settings: Settings) -> dict[str, str]:
    """Substitutes for the names that differ between runs."""
    names = {
        settings.node_stack: "STACK-V1",
        settings.stack: "STACK",
        str(settings.folder): "FOLDER",
    }
    for zone in settings.zones:
        names |= {zone: "ZONE", region_of(zone): "REGION", region_of(zone).upper(): "REGION"}
    return names
