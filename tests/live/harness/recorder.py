"""Records the observations of a run, to compare the local cloud with Google Cloud."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.live.harness.shapes import as_json, constants, fields, method_name, redacted
from tests.live.harness.transcript import Transcript
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Event, StepFinished, StepStarted

__all__ = ["Recorder", "RecordingCloud"]

VERSION = 1
T = TypeVar("T")


class Recorder:
    """Writes every observation immediately, so that a killed run leaves a partial record.

    Names, addresses, accounts, ids and times are left out, so that the file can be published.
    """

    def __init__(self, path: Path, names: dict[str, str], facts: dict[str, Any]) -> None:
        self.path = path
        self.names = names
        self.step_name = "before"
        self._begun: dict[str, StepStarted] = {}
        self.record: dict[str, Any] = {
            "version": VERSION,
            "facts": facts,
            "steps": [],
            "substeps": {},
            "answers": {},
            "refusals": {},
            "errors": {},
            "states": {},
        }

    def redacted(self, text: str) -> str:
        return redacted(text, self.names)

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.record, indent=1, sort_keys=True), "utf-8")
        part.replace(self.path)

    def fact(self, name: str, value: Any) -> None:
        """Record a value that should be the same on every cloud."""
        self.record["facts"][name] = self.redacted(value) if isinstance(value, str) else value
        self.save()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record the outcome and duration of a user's action."""
        self.step_name, before, began = name, self.step_name, time.monotonic()
        entry = {"name": name, "outcome": "begun", "seconds": 0.0}
        self.record["steps"].append(entry)
        self.save()
        try:
            yield
            entry["outcome"] = "done"
        except BaseException as error:
            entry["outcome"] = self.redacted(f"{type(error).__name__}: {error}")
            raise
        finally:
            entry["seconds"] = round(time.monotonic() - began, 3)
            self.step_name = before
            self.save()

    def on(self, event: Event) -> None:
        """Record the action, outcome and duration of a step's substeps from the flows' events."""
        if isinstance(event, StepStarted):
            self._begun[event.address] = event
        elif isinstance(event, StepFinished) and event.address in self._begun:
            begun = self._begun.pop(event.address)
            substeps = self.record["substeps"].setdefault(self.step_name, {})
            substeps[self.redacted(event.address)] = {
                "action": begun.action,
                "outcome": event.outcome.value,
                "seconds": round(event.seconds, 3),
            }

    def record_answer(self, method: str, answer: Any) -> None:
        """Merge the shape of an answer with those of the method's earlier answers."""
        shape = as_json(answer)
        if shape is None:
            return
        entry = self.record["answers"].setdefault(method, {"fields": [], "values": {}})
        entry["fields"] = sorted({*entry["fields"], *map(self.redacted, fields(shape))})
        for path, value in constants(shape):
            known_values = entry["values"].setdefault(self.redacted(path), [])
            if value not in known_values:
                known_values.append(value)
                known_values.sort()

    def record_error(self, method: str, error: TpuctlError) -> None:
        """Record the error of a call that was not expected to fail."""
        self.record["errors"].setdefault(method, {})[type(error).__name__] = self._describe(error)

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
        """Record the error of an expected refusal."""
        self.record["refusals"][name] = self._describe(error)
        self.save()

    def _describe(self, error: TpuctlError) -> dict[str, Any]:
        cause = error.__cause__
        code = getattr(cause, "grpc_status_code", None)
        return {
            "error": type(error).__name__,
            "summary": error.diagnostics[0].summary,
            "scope": error.scope.value,
            "code": code.name if code is not None else str(getattr(cause, "code", "")),
            "reason": str(getattr(cause, "reason", None) or ""),
            "text": self.redacted(str(getattr(cause, "message", "") or error)),
        }

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


class RecordingCloud(Cloud):
    """Official clients whose answers and errors are recorded, and whose calls are written down."""

    recorder: Recorder
    transcript: Transcript

    def _create(self, name: str) -> Any:
        return self.transcript.watch(super()._create(name))

    async def call(
        self,
        description: str,
        method: Callable[..., T],
        *args: Any,
        timeout: float = 60.0,
        **fields: Any,
    ) -> T:
        try:
            answer = await super().call(description, method, *args, timeout=timeout, **fields)
        except TpuctlError as error:
            self.recorder.record_error(method_name(method), error)
            raise
        if not method_name(method).startswith(
            "tpuctl."
        ):  # the caller records it under another name
            self.recorder.record_answer(method_name(method), answer)
        return answer
