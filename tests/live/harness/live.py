"""One live run: its stack, and recorded operations on it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.live.harness.recorder import Recorder, RecordingCloud
from tests.live.harness.settings import Settings
from tpuctl.api import Down, Tpuctl
from tpuctl.catalog import region_of
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound
from tpuctl.model.events import Event, LogChunk

__all__ = ["POLL_SECONDS", "Live"]

T = TypeVar("T")
POLL_SECONDS = {"local": 0.1, "google": 3.0}  # between two looks at a thing's state


class Live:
    """What the tests are handed. Everything blocks: the tests run one after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.events: list[Event] = []
        self.recorder = Recorder(
            settings.record,
            _names(settings),
            {
                "cloud": settings.cloud,
                "type": settings.type_name,
                "capacity": settings.capacity,
            },
        )
        self.stack = self.open(settings.stack, settings.stack_file())
        self._plain = Cloud(self.stack.endpoint, settings.project)

    def open(self, name: str, text: str) -> Tpuctl:
        """A stack whose steps and calls are written down."""
        path = self.settings.folder / self.settings.stack / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        stack = Tpuctl(path, cloud=self.settings.cloud, emit=self._on)
        cloud = RecordingCloud(stack.endpoint, self.settings.project)
        cloud.recorder = self.recorder
        stack.cloud = cloud
        return stack

    def _on(self, event: Event) -> None:
        self.events.append(event)
        self.recorder.on(event)

    def run_step(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Do something that is worth a line of the record."""
        with self.recorder.step(name):
            return asyncio.run(work)

    def run_watched(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """The same, while the node's states are recorded."""

        async def both() -> T:
            every = POLL_SECONDS[self.settings.cloud]
            async with self.recorder.watch_states("the node", self._node_state, every):
                return await work

        return self.run_step(name, both())

    async def _node_state(self) -> str | None:
        """Of the node in whichever zone it is, by calls that are not written down."""
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
        """The exit code of a script and its log; every byte of the log came once, in order."""
        folder = self.settings.folder / self.settings.stack / name
        folder.mkdir(exist_ok=True)
        script = folder / f"{name}.py"
        script.write_text(text, "utf-8")
        self.events.clear()
        code = self.run_step(f"run {name}", self.stack.run(script, arguments))
        log = b""
        for event in self.events:
            if isinstance(event, LogChunk):
                assert event.offset == len(log), "a byte came twice, or not at all"
                log += event.data
        return code, log


def _names(settings: Settings) -> dict[str, str]:
    """What tells this run and this project from others, and what to write for it."""
    names = {
        settings.node_stack: "STACK-V1",
        settings.stack: "STACK",
        settings.project: "PROJECT",
        str(settings.folder): "FOLDER",
        str(Path.home()): "HOME",
    }
    for zone in settings.zones:
        names |= {zone: "ZONE", region_of(zone): "REGION", region_of(zone).upper(): "REGION"}
    user = getpass.getuser()
    return names | ({user: "USER"} if len(user) > 3 and user != "root" else {})
