"""Records how a run went, to compare the local cloud with Google Cloud; not what its calls return,
which is in the transcript."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.live.harness.transcript import Redaction
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Event, StepFinished, StepStarted


class Recorder:
    """Writes every observation immediately, so that a killed run leaves a partial record.

    `outcomes` and `seconds` are of a user's actions, such as `up`, and of their steps, such as
    `up: node/STACK`. Private names are replaced, so that the file can be published.
    """

    def __init__(self, path: Path, redaction: Redaction, facts: dict[str, Any]) -> None:
        self.path = path
        self.step_name = "before"
        self._redaction = redaction
        self._begun: dict[str, StepStarted] = {}
        self.record: dict[str, dict[str, Any]] = {
            "facts": facts,
            "outcomes": {},
            "seconds": {},
            "states": {},
        }

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.record, indent=1), "utf-8")
        part.replace(self.path)

    def fact(self, name: str, value: Any) -> None:
        """Record a value that should be the same on every cloud."""
        self.record["facts"][name] = self._redaction.content(value)
        self.save()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record the outcome and duration of a user's action."""
        self.step_name, before, began = name, self.step_name, time.monotonic()
        self._finish(name, "begun", 0.0)
        outcome = "done"
        try:
            yield
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.step_name = before
            self._finish(name, outcome, time.monotonic() - began)

    def on(self, event: Event) -> None:
        """Record the steps of the user's action from the flows' events."""
        if isinstance(event, StepStarted):
            self._begun[event.address] = event
        elif isinstance(event, StepFinished) and event.address in self._begun:
            action = self._begun.pop(event.address).action
            name = f"{self.step_name}: {event.address}"
            self._finish(name, f"{action}, {event.outcome.value}", event.seconds)

    def _finish(self, name: str, outcome: str, seconds: float) -> None:
        name = self._redaction.text(name)
        self.record["outcomes"][name] = self._redaction.text(outcome)
        self.record["seconds"][name] = round(seconds, 3)
        self.save()

    @contextmanager
    def expect_refusal(self, name: str, *expected: type[TpuctlError]) -> Iterator[None]:
        """Record the error raised in the block, which must be one of these."""
        try:
            yield
        except expected as error:
            self.record_refusal(name, error)
        else:
            raise AssertionError(f"{name}: was not refused")

    def record_refusal(self, name: str, error: TpuctlError) -> None:
        """Record what tpuctl makes of a refusal."""
        kind = f"{type(error).__name__}, {error.scope.value}"
        self.fact(f"refusal of {name}", f"{kind}: {error.diagnostics[0].summary}")

    @asynccontextmanager
    async def watch_states(
        self, resource: str, read_state: Callable[[], Awaitable[str | None]], interval: float
    ) -> AsyncIterator[None]:
        """Record a resource's states during the block, by polling.

        Short states may be missed; the longest gap between two requests is recorded too.
        """
        observed: list[dict[str, Any]] = []
        longest = 0.0
        is_finished = asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            last = time.monotonic()
            while True:
                is_last = is_finished.is_set()
                with contextlib.suppress(TpuctlError):
                    state = await read_state() or "ABSENT"
                    now = time.monotonic()
                    longest = max(longest, now - last)
                    if observed:
                        observed[-1]["seconds"] = round(observed[-1]["seconds"] + now - last, 3)
                    if not observed or observed[-1]["state"] != state:
                        observed.append({"state": state, "seconds": 0.0})
                    last = now
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_finished.wait(), interval)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            is_finished.set()
            await task
            self.record["states"][f"{self.step_name}: {resource}"] = {
                "observed": observed,
                "longest_gap": round(longest, 3),
            }
            self.save()
