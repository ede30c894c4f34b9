"""What a job brings to its machines is in the bucket before the job starts, as far as possible."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.engine.step import Step, step
from tpuctl.errors import Conflict, Diagnostic, NotFound, Refused, RemoteFailed, TpuctlError
from tpuctl.jobs.requirements.tool_archives import fetch_archive, sha256_of
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.installation import Installation, PythonBuild, Tool
from tpuctl.model.text.names import TOOLS
from tpuctl.units import decimal_size, transferred

RENEWAL_AGE = timedelta(days=10)  # the bucket deletes what is older than thirty
STEP = "job/tools"


async def ensure_tools(
    installation: Installation,
    store: ObjectStore,
    emit: Emit,
    *,
    have_internet: bool = True,
) -> Installation:
    """Store the Python and uv of a job in the bucket, unless it has them; returns the installation
    with their checksums.

    What this computer cannot download, a machine does, so that its checksum remains unknown;
    unless the machines do not `have_internet`: then Refused is raised. Raises Conflict if the
    content is not that of the job's earlier attempts.
    """
    if not installation.tools:
        return installation
    try:
        stored = await _stored(installation.tools, store)
    except TpuctlError:  # the upload of the bundle has reported it
        return installation
    tools = {tool.key: tool for tool in installation.tools}
    missing = [tool for tool in installation.tools if tool.key not in stored]
    for key, entry in stored.items():
        tools[key] = _verified(tools[key], _checksum(entry))
        if entry.updated < datetime.now(UTC) - RENEWAL_AGE:
            with suppress(Conflict, NotFound):  # another client renews it
                await store.touch(entry.name)
    for tool in missing:
        try:
            with step(emit, STEP, "store", tool.key) as progress:
                tools[tool.key] = await _store(tool, store, progress)
        except RemoteFailed as error:
            problem = _not_downloaded(tool, error)
            if not have_internet:
                raise Refused(problem.summary, problem.detail, hint=problem.hint) from error
            emit(WarningIssued(problem))
    python, uv = installation.python, installation.uv
    return installation.model_copy(
        update={
            "python": None if python is None else tools[python.key],
            "uv": None if uv is None else tools[uv.key],
        }
    )


async def _stored(tools: tuple[Tool, ...], store: ObjectStore) -> Mapping[str, ObjectInfo]:
    """The archives that the bucket has, by key; of several contents the one that is known."""
    objects = await store.list(f"{TOOLS}/", glob="**.tar.gz")
    stored = {}
    for tool in tools:
        existing = [entry for entry in objects if entry.name.startswith(f"{TOOLS}/{tool.key}/")]
        if tool.sha256 is not None:
            existing = [entry for entry in existing if _checksum(entry) == tool.sha256]
        if existing:
            stored[tool.key] = existing[0]
    return stored


async def _store(tool: Tool, store: ObjectStore, progress: Step) -> Tool:
    progress.report(f"downloads {tool.key}")
    archive = await fetch_archive(tool, lambda size: progress.report(decimal_size(size)))
    verified = _verified(tool, sha256_of(archive))
    await store.put_file(
        f"{TOOLS}/{tool.key}/{verified.sha256}.tar.gz",
        archive,
        progress=partial(_report_sent, progress),
    )
    size = decimal_size(archive.stat().st_size)
    progress.result = f"{tool.key}, {size} to gs://{store.name}"
    return verified


def _verified(tool: Tool, sha256: str) -> Tool:
    if tool.sha256 not in (None, sha256):
        raise Conflict(
            "Another build than before",
            f"{tool.key} has the checksum {sha256}; the job's record has {tool.sha256}",
            hint="Submit the job again.",
        )
    return tool.model_copy(update={"sha256": sha256})


def _checksum(entry: ObjectInfo) -> str:
    return entry.name.rpartition("/")[2].removesuffix(".tar.gz")


def _report_sent(progress: Step, done: int, total: int) -> None:
    progress.report_bytes(done, total, transferred(done, total))


def _not_downloaded(tool: Tool, error: RemoteFailed) -> Diagnostic:
    is_python = isinstance(tool, PythonBuild)
    name = f"Python {tool.version}" if is_python else f"uv {tool.version}"
    setting = (
        "a mirror that this computer can reach:\n    export UV_PYTHON_INSTALL_MIRROR=URL"
        if is_python
        else "an index that has it:\n    export UV_DEFAULT_INDEX=URL"
    )
    return Diagnostic(
        f"Cannot download {name} here",
        f"{error.diagnostics[0].detail}\nOne of the machines downloads it, if it can.",
        hint=f"If the machines cannot either, set a proxy (HTTPS_PROXY), or {setting}",
    )
