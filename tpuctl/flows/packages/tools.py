"""What a job brings to its machines is in the bucket before the job starts, as far as possible."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from tpuctl.cloud.objects import ObjectInfo, ObjectStore, Progress
from tpuctl.engine.step import Step, step
from tpuctl.errors import Conflict, Denied, Diagnostic, NotFound, Refused, TpuctlError, Unreachable
from tpuctl.jobs.requirements.tool_archives import (
    LARGE_BYTES,
    LargeDownload,
    ToolUnavailable,
    tool_archive,
    tool_name,
)
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.installation import SHA256, Installation, PythonBuild, Tool, object_name
from tpuctl.model.text.names import TOOLS
from tpuctl.units import decimal_size, transferred

RENEWAL_AGE = timedelta(days=10)  # the bucket deletes what is older than thirty
STEP = "job/tools"
SUFFIX = ".tar.gz"


async def ensure_tools(
    installation: Installation,
    store: ObjectStore,
    emit: Emit,
    *,
    workers_have_internet: bool = True,
    may_download: Callable[[str], bool] = lambda question: True,
) -> Installation:
    """Store the Python and uv of a job in the bucket, unless it has them; returns the installation
    with their checksums.

    What this computer cannot download, a machine does, so that its checksum remains unknown; a
    warning says so. `may_download` is asked about large downloads. Raises Refused if machines
    cannot download it either, and Conflict if the content is not that of the job's earlier
    attempts.
    """
    if not installation.tools:
        return installation
    try:
        tools = await store_tools(
            installation.tools,
            store,
            emit,
            has_internet=workers_have_internet,
            may_download=may_download,
        )
    except Unlisted:  # the upload of the bundle has reported it
        return installation
    python, uv = installation.python, installation.uv
    return installation.model_copy(
        update={
            "python": None if python is None else tools[python.key],
            "uv": None if uv is None else tools[uv.key],
        }
    )


class Unlisted(TpuctlError):
    """What the bucket has cannot be listed."""


async def store_tools(
    tools: Sequence[Tool],
    store: ObjectStore,
    emit: Emit,
    *,
    has_internet: bool = False,
    may_download: Callable[[str], bool] = lambda question: True,
) -> Mapping[str, Tool]:
    """Store tools unless the bucket has them; returns all with their checksums, by key. Those of
    what this computer cannot download remain unknown, if machines have internet.

    Raises as `ensure_tools` does, and Unlisted.
    """
    try:
        objects = await store.list(f"{TOOLS}/", glob=f"**{SUFFIX}")
    except TpuctlError as error:
        diagnostic = error.diagnostics[0]
        raise Unlisted(diagnostic.summary, diagnostic.detail, hint=diagnostic.hint) from error
    by_key = {tool.key: tool for tool in tools}
    missing = []
    for tool in tools:
        entry = _stored(tool, objects)
        if entry is not None and await _is_kept(entry, store):
            by_key[tool.key] = _verified(tool, _checksum(entry))
        else:
            missing.append(tool)
    if missing:
        transfer = _Transfer(store, emit)
        by_key |= await transfer.run(missing, may_download)
        if transfer.problems:
            problem = _not_downloaded(transfer.problems, has_internet)
            if not has_internet:
                raise Refused(problem.summary, problem.detail, hint=problem.hint)
            emit(WarningIssued(problem))
    return by_key


async def require_available(installation: Installation) -> None:
    """Raise Refused unless this computer has, or can download, what the job brings: for machines
    without internet, before they are charged."""
    problems = {}
    for tool in installation.tools:
        try:
            async with tool_archive(tool):
                pass
        except ToolUnavailable as error:
            problems[tool] = error.diagnostics[0].detail
    if problems:
        problem = _not_downloaded(problems, workers_have_internet=False)
        raise Refused(problem.summary, problem.detail, hint=problem.hint)


def _stored(tool: Tool, objects: Sequence[ObjectInfo]) -> ObjectInfo | None:
    """The archive of a tool in the bucket: of several contents the known one, or the latest."""
    entries = [
        entry
        for entry in objects
        if entry.name.rpartition("/")[0] == f"{TOOLS}/{tool.key}"
        and re.match(SHA256, _checksum(entry))
        and tool.sha256 in (None, _checksum(entry))
    ]
    return max(entries, key=lambda entry: entry.created, default=None)


async def _is_kept(entry: ObjectInfo, store: ObjectStore) -> bool:
    """Whether an archive remains as long as a job may need it, for which its age is renewed."""
    if entry.created < store.clock.now() - RENEWAL_AGE:
        try:
            await store.touch(entry.name)
        except NotFound:  # deleted meanwhile
            return False
        except TpuctlError:  # another client renews it, or this one may not
            return True
    return True


class _Transfer:
    """Brings tools to the bucket, from this computer or from where it downloads them."""

    def __init__(self, store: ObjectStore, emit: Emit) -> None:
        self._store = store
        self._emit = emit
        self.problems: dict[Tool, str] = {}

    async def run(
        self, tools: Sequence[Tool], may_download: Callable[[str], bool]
    ) -> Mapping[str, Tool]:
        """Store what can be stored; returns it with its checksums, by key."""
        stored, large = await self._stored(tools, LARGE_BYTES)
        allowed = []
        for tool, size in large.items():
            text = f"{tool_name(tool)}, which the job brings, has {decimal_size(size)}"
            if may_download(f"{text}. Download it here, for all machines?"):
                allowed.append(tool)
            else:
                self.problems[tool] = (
                    f"{tool_name(tool)}: a download of {decimal_size(size)} was not confirmed; "
                    "--yes confirms it"
                )
        if allowed:
            more, _ = await self._stored(allowed, None)
            stored |= more
        return stored

    async def _stored(
        self, tools: Sequence[Tool], max_bytes: int | None
    ) -> tuple[dict[str, Tool], dict[Tool, int]]:
        """What was stored, and what is too large to be downloaded without a question."""
        stored: dict[str, Tool] = {}
        large: dict[Tool, int] = {}
        texts = []
        with suppress(ToolUnavailable), step(self._emit, STEP, "store") as progress:
            failure = None
            for tool in tools:
                try:
                    stored[tool.key], size = await self._store_tool(tool, progress, max_bytes)
                    texts.append(f"{tool_name(tool)} ({decimal_size(size)})")
                except LargeDownload as error:
                    large[tool] = error.size
                except (ToolUnavailable, Unreachable, Denied) as error:
                    self.problems[tool] = error.diagnostics[0].detail
                    failure = error
            if failure is not None and not stored:
                raise ToolUnavailable("Not downloaded", self.problems[tools[-1]]) from failure
            where = f" to gs://{self._store.name}" if texts else "nothing yet"
            missing = [tool_name(tool) for tool in tools if tool in self.problems]
            progress.result = "; ".join(
                (", ".join(texts) + where, *(f"{name} not downloaded" for name in missing))
            )
        return stored, large

    async def _store_tool(
        self, tool: Tool, progress: Step, max_bytes: int | None
    ) -> tuple[Tool, int]:
        name = tool_name(tool)

        def report(done: int, total: int) -> None:
            if total:
                progress.report_bytes(done, total, f"{name}: {transferred(done, total)}")
            else:
                progress.report(f"{name}: {decimal_size(done)}")

        def report_wait() -> None:
            progress.report(f"{name}: another tpuctl downloads it")

        async with tool_archive(tool, report, max_bytes=max_bytes, waiting=report_wait) as archive:
            verified = _verified(tool, archive.sha256)
            await self._store.put_file(
                object_name(verified),
                archive.path,
                progress=_on_event_loop(report),
            )
        return verified, archive.size


def _verified(tool: Tool, sha256: str) -> Tool:
    if tool.sha256 not in (None, sha256):
        raise Conflict(
            "Another build than before",
            f"{tool.key} now has the checksum {sha256}; that of the job's record is {tool.sha256}",
            hint="Submit the job again, to run on the build that exists now.",
        )
    return tool.model_copy(update={"sha256": sha256})


def _checksum(entry: ObjectInfo) -> str:
    return entry.name.rpartition("/")[2].removesuffix(SUFFIX)


def _on_event_loop(report: Progress) -> Progress:
    """A thread-safe progress callback that reports on this event loop."""
    loop = asyncio.get_running_loop()

    def report_threadsafe(done: int, total: int) -> None:
        loop.call_soon_threadsafe(report, done, total)

    return report_threadsafe


def _not_downloaded(problems: Mapping[Tool, str], workers_have_internet: bool) -> Diagnostic:
    """One message about all of them, with what to set."""
    settings = ["UV_PYTHON_INSTALL_MIRROR"] * any(isinstance(t, PythonBuild) for t in problems)
    settings += ["UV_DEFAULT_INDEX"] * any(not isinstance(t, PythonBuild) for t in problems)
    lines = [*problems.values()]
    if workers_have_internet:
        lines.append("One of the machines downloads it instead, and stores it for the others.")
        hint = "If the machines cannot do so, set a mirror that this computer or they reach,"
    else:
        lines.append("The machines cannot download it: they have no external addresses.")
        hint = "Set a mirror that this computer reaches,"
    commands = "".join(f"\n    export {name}=URL" for name in [*settings, "HTTPS_PROXY"])
    return Diagnostic(
        "Cannot download what the job runs on", "\n".join(lines), f"{hint} or a proxy:{commands}"
    )
