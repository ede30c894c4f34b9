"""The API without asyncio, for scripts and for notebooks, which already run an event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from tpuctl.model.events import Emit, LogChunk, Note, WarningIssued

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.stack.plan import Prepared
    from tpuctl.model.events import Event
    from tpuctl.model.explanation import Explanation
    from tpuctl.model.job import JobRecord, JobStatus, JobSummary
    from tpuctl.model.report import RunReport
    from tpuctl.model.snapshot import StackStatus
    from tpuctl.model.status import Down

__all__ = ["BlockingTpuctl", "print_log"]

T = TypeVar("T")


def print_log(event: Event) -> None:
    """Print a job's log to stdout, and notes and warnings to stderr."""
    if isinstance(event, LogChunk):
        print(event.data.decode(errors="replace"), end="", flush=True)
    elif isinstance(event, Note):
        print(event.text, file=sys.stderr)
    elif isinstance(event, WarningIssued):
        print(f"{event.diagnostic.summary}: {event.diagnostic.detail}", file=sys.stderr)


async def _cancel_others() -> None:
    """End what an interrupted call has left, such as its connections."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class BlockingTpuctl:
    """One stack, like `Tpuctl`, with blocking methods.

    with BlockingTpuctl("tpuctl.yaml", cloud="local") as stack:
        stack.up()
        code = stack.run("train.py")
        stack.down()

    Calls may come from any thread, one at a time. Ctrl-C ends the call, not the job.
    """

    def __init__(
        self,
        stack_file: str | Path = "tpuctl.yaml",
        *,
        name: str = "",
        project: str = "",
        cloud: Literal["google", "local"] = "google",
        emit: Emit = print_log,
    ) -> None:
        from tpuctl.api.interface import Tpuctl

        self.api: Tpuctl = Tpuctl(stack_file, name=name, project=project, cloud=cloud, emit=emit)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the event loop; the stack is not changed. No method may be called afterwards."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `api` and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def plan(self) -> Prepared:
        """What `up` would do. Changes nothing."""
        return self.wait_for(self.api.plan())

    def up(
        self, confirm: Callable[[Prepared], None] | None = None, *, race: bool = False
    ) -> Prepared:
        """Bring the stack up. `confirm` receives the plan first; it may raise to cancel.

        `race` requests the TPU in all zones at once, and keeps the first that is granted.
        """
        return self.wait_for(self.api.up(confirm, race=race))

    def status(self) -> StackStatus:
        """What exists in the cloud now."""
        return self.wait_for(self.api.status())

    def run(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        up: bool = False,
        down: bool = False,
        each: Mapping[str, Sequence[object]] | None = None,
    ) -> int:
        """Submit a script, follow it to its end and return the job's exit code.

        `up` brings the stack up first; `down` takes it down afterwards, even after an error.
        `each` runs one job per combination of values, which are added to the arguments.
        """
        return self.wait_for(self.api.run(script, arguments, up=up, down=down, each=each))

    def submit(self, script: str | Path, arguments: Sequence[str] = ()) -> JobRecord:
        """Submit a script and return while it runs."""
        return self.wait_for(self.api.submit(script, arguments))

    def follow(self, record: JobRecord) -> int:
        """Emit the job's log until it ends; return its exit code."""
        return self.wait_for(self.api.follow(record))

    def job(self, name: str = "") -> JobRecord:
        """A job by its id or the last word of it; by default the running or the latest job."""
        return self.wait_for(self.api.job(name))

    def jobs(self) -> list[JobSummary]:
        """All jobs of the stack, latest first."""
        return self.wait_for(self.api.jobs())

    def log(self, record: JobRecord) -> None:
        """Emit what the job has logged so far."""
        self.wait_for(self.api.log(record))

    def stop(self, record: JobRecord) -> JobStatus:
        """Stop the job on every worker."""
        return self.wait_for(self.api.stop(record))

    def explain(self, record: JobRecord) -> Explanation:
        """Why the job ended as it did."""
        return self.wait_for(self.api.explain(record))

    def report(self, record: JobRecord) -> RunReport:
        """Everything known about the job: attempts, cost, metrics."""
        return self.wait_for(self.api.report(record))

    def down(self, *, delete_bucket: bool = False) -> Down:
        """Take the stack down; return what remains of it."""
        return self.wait_for(self.api.down(delete_bucket=delete_bucket))
