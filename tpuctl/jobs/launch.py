"""Starts and stops jobs: a job runs on all its workers, or on none."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tpuctl.assets import program
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, RemoteFailed, TpuctlError, Unreachable
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.stack.secret_sources import Secrets
from tpuctl.model.text.names import CACHE, TOOLS, Names, notebooks_prefix
from tpuctl.model.text.record_parsing import parse_record
from tpuctl.polling import gather_all
from tpuctl.remote.transport import Result, Transport, with_retries

SHIPPED = (
    "arrival.py",
    "supervisor.py",
    "job_parent.py",
    "fetch.py",
    "setup_command.py",
    "environment.py",
    "secret_fetch.py",
    "uploader.py",
    "compilation_cache.py",
    "accelerator.py",
    "notebook.py",
    "attempt.py",  # from here on: modules that the programs above import
    "preparation.py",
    "run_once.py",
    "pip_inputs.py",
    "environment_store.py",
    "image_packages.py",
    "installer_errors.py",
    "lock_file.py",
    "uv_settings.py",
    "tools.py",
    "tool_archive.py",
    "tool_store.py",
    "bucket_lock.py",
    "bucket_cache.py",
    "tail.py",
    "chips.py",
    "logfile.py",
    "logindex.py",
    "folder.py",
    "forked.py",
    "clock.py",
    "network_variables.py",
    "start_barrier.py",
    "worker_names.py",
    "processes.py",
    "hang.py",
    "chip_metrics.py",
    "chip_reader.py",
    "stacks.py",
    "stack_handler.py",
    "start_check.py",
    "profiler.py",
    "trace_collector.py",
    "storage.py",
    "unpack.py",
    "bell.py",
    "notices.py",
    "outbox.py",
)
START_SIGNAL = "start"  # a file that workers wait for; only its existence counts
TAR_END = bytes(1024)  # of a tar archive
GRACE_SECONDS = 30.0
# Most jobs are ready by then, so that one command per worker is enough. The client sends to many
# workers one after the other, and those of the local cloud share a computer.
READY_SECONDS, READY_SECONDS_PER_WORKER = 3.0, 0.1
BARRIER_TIMEOUT_SECONDS = 1800.0  # how long ready workers wait for the others
# One command, since round trips take most of the time of a start; it also receives the start
# signal and streams the log. It is retried if the connection drops, and still starts the attempt
# only once: see `arrival.py` and the supervisor's lock.
START = """
new="$1/new.$$"
mkdir -p "$new" || exit 1
head -c "$2" | gzip -d | tar -xf - -C "$new" || { rm -rf "$new"; exit 1; }
set -- "$1" --upload "$new" --until "$3" --timeout "$4" --continue
exec python3 -S -I "$new/supervisor.py" start "$@"
"""


@dataclass(frozen=True)
class FirstAccess:
    """The account that accesses the bucket for the script; it may not have access yet.

    A script that fails because of that before `until` is restarted.
    """

    account: str
    until: datetime


@dataclass(frozen=True)
class Launch:
    """What a worker needs in addition to the job's record. Values of `env` may be secret."""

    env: Mapping[str, str] = field(default_factory=dict)
    worker_env: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    grace_seconds: float = GRACE_SECONDS
    first_access: FirstAccess | None = None
    secrets: Secrets = field(default_factory=Secrets)
    # For which machines ask Secret Manager again, while access that was granted is not in effect.
    secret_seconds: float = 0.0
    notify: Mapping[str, Any] | None = None  # as `notification_settings`
    compiled: str | None = None  # the folder of compiled programs below CACHE; None: no cache
    network: Mapping[str, Any] | None = None  # as `network_settings`
    addresses: tuple[str, ...] = ()  # of workers that wait for each other; empty: they do not
    at: datetime = field(default_factory=lambda: datetime.now(UTC))  # by Google's clock


def supervisor_command(record: JobRecord, name: str, *options: str) -> list[str]:
    """The command line of the job's supervisor on a worker, relative to the user's home."""
    script = f"{record.folder}/supervisor.py"
    return ["python3", "-S", "-I", script, name, record.folder, *options]


async def start(
    record: JobRecord,
    launch: Launch,
    bundle_name: str | None,
    transports: Mapping[int, Transport],
) -> dict[int, WorkerRecord]:
    """Send the job to all its workers, which prepare it in parallel; return their records.

    A single worker starts the script by itself. Several start it together or not at all:
    immediately if all are ready soon, otherwise once `start_barrier.begin`, or their uploaders,
    find them ready. If a worker cannot receive the job, the others are stopped, and the error
    names the worker.
    """
    workers = {worker: transports[worker] for worker in record.workers}
    # Compressed once for all: hundreds of workers are sent their own copies at the same time.
    programs = gzip.compress(_tar_entries({name: program(name).encode() for name in SHIPPED}))
    secrets = _secrets_file(launch)
    failed: list[int] = []

    async def start_worker(worker: int) -> WorkerRecord:
        spec = _spec(record, launch, bundle_name, worker)
        try:
            return await _send_job(workers[worker], record, programs, spec, secrets)
        except TpuctlError:
            failed.append(worker)
            raise

    try:
        records = dict(
            zip(workers, await gather_all(start_worker(w) for w in workers), strict=True)
        )
    except BaseException:
        await stop(record, workers, grace=0.0, failed_worker=failed[0] if failed else None)
        raise
    if are_ready(record, records):
        with suppress(Unreachable):  # they also poll the bucket
            await send_start_signal(record, workers)
    return records


def are_ready(record: JobRecord, records: Mapping[int, WorkerRecord]) -> bool:
    """Whether all workers of the job wait for the start signal."""
    states = [records[worker].state for worker in record.workers if worker in records]
    return len(states) == len(record.workers) > 1 and {*states} <= {"ready", "running"}


async def send_start_signal(record: JobRecord, transports: Mapping[int, Transport]) -> None:
    """Start all workers. Those that cannot be reached get the signal through the bucket."""
    first, *others = record.workers

    async def send(worker: int) -> None:
        try:
            if not await _signal_kept(record, transports[worker]):
                result = await transports[worker].run(["touch", f"{record.folder}/{START_SIGNAL}"])
                result.check(f"worker {worker}: starting job {record.id}")
        except Unreachable:
            if worker == first:
                raise

    await send(first)
    await gather_all(send(worker) for worker in others)


async def _signal_kept(record: JobRecord, transport: Transport) -> bool:
    """Send the start signal to the command that started the job; False if that has ended."""
    stream = transport.take(record.folder)
    if stream is None:
        return False
    is_answered = False
    try:
        with suppress(Unreachable):
            stream.write(START_SIGNAL.encode() + b"\n")
            is_answered = (await stream.read_line()).endswith(b"\n")
    finally:  # not kept after cancellation either: the answer would be taken for the log
        if is_answered:
            transport.keep(record.folder, stream)
        else:
            stream.close()
    return is_answered


async def stop(
    record: JobRecord,
    transports: Mapping[int, Transport],
    *,
    grace: float = GRACE_SECONDS,
    failed_worker: int | None = None,
) -> dict[int, WorkerRecord]:
    """Stop the job on these workers and return the records of those that answered.

    `failed_worker` is the worker whose failure is the reason, if any.
    """
    options = ["--grace", str(grace)]
    if failed_worker is not None:
        options += ["--worker", str(failed_worker)]

    async def stop_worker(transport: Transport) -> WorkerRecord | None:
        try:
            result = await transport.run(supervisor_command(record, "stop", *options))
        except TpuctlError:
            return None
        if result.exit_code != 0 or not result.stdout:  # the supervisor was never uploaded
            return None
        try:
            return parse_record(WorkerRecord, result.stdout, f"worker {transport.name}")
        except Conflict:  # then through the bucket
            return None

    answers = await asyncio.gather(*(stop_worker(transport) for transport in transports.values()))
    return {
        worker: answer
        for worker, answer in zip(transports, answers, strict=True)
        if answer is not None
    }


async def stop_through_bucket(record: JobRecord, store: ObjectStore) -> None:
    """Stop the job without connecting to a worker: supervisors poll the bucket."""
    with suppress(Conflict):  # it is already ending for another reason
        await store.put_bytes(record.end_name, b'{"worker": null}', if_generation=0)


async def _send_job(
    transport: Transport,
    record: JobRecord,
    programs: bytes,
    spec: dict[str, Any],
    secrets: Mapping[str, bytes],
) -> WorkerRecord:
    action = f"worker {transport.name}: starting job {record.id}"
    seconds = READY_SECONDS + READY_SECONDS_PER_WORKER * len(record.workers)
    until = ("ready", seconds) if spec["start_barrier"] else ("running", 0.0)
    files = {**secrets, "spec.json": json.dumps(spec).encode()}
    archive = programs + gzip.compress(build_archive((), files))
    argv = ["sh", "-c", START, "sh", record.folder, str(len(archive)), *map(str, until)]

    async def send() -> Result:
        stream = await transport.open_stream(argv, input=archive)
        is_kept = False
        try:
            line = await stream.read_line()
            if not line.endswith(b"\n"):
                return await stream.result()
            transport.keep(record.folder, stream)  # for the start signal and the log
            is_kept = True
            return Result(0, line)
        finally:
            if not is_kept:
                stream.close()

    started = await with_retries(send)
    if started.exit_code == 127:
        raise RemoteFailed(
            "Worker has no python3",
            action,
            hint="Choose a supported runtime:\n    tpuctl runtimes",
        )
    return parse_record(WorkerRecord, started.check(action).stdout, f"worker {transport.name}")


def build_archive(names: Iterable[str], files: Mapping[str, bytes]) -> bytes:
    """A tar archive of shipped programs, unmodified, and further files, all private."""
    programs = {name: program(name).encode() for name in names}
    return _tar_entries(programs) + _tar_entries(files) + TAR_END


def _tar_entries(contents: Mapping[str, bytes]) -> bytes:
    """The files as entries of a tar archive, without its end, so that they can be concatenated."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            tar.addfile(info, io.BytesIO(content))
        size = archive.tell()
    return archive.getvalue()[:size]


def _spec(
    record: JobRecord, launch: Launch, bundle_name: str | None, worker: int
) -> dict[str, Any]:
    """The spec.json that the supervisor reads, and whose keys it defines."""
    return {
        "job": record.id,
        "attempt": record.attempt,
        "worker": worker,
        "argv": record.argv,
        "env": {**launch.env, **launch.worker_env.get(worker, {})},
        "bundle": {"sha256": record.bundle, "name": bundle_name},
        "install": record.installation.model_dump(),
        "bucket": record.bucket,
        "prefix": record.attempt_prefix,
        **_limit(record, launch.at),
        "hang": record.limits.spec,
        "grace_seconds": launch.grace_seconds,
        "first_access": _first_access(launch.first_access, launch.at),
        "network": launch.network,
        "secrets": sorted(launch.secrets.sources),
        "cache": cache_spec(launch.compiled) if bundle_name else None,
        "tools": TOOLS if record.bucket else None,
        "notebooks": notebooks_prefix(record.stack) if record.kind == "notebook" else None,
        "notify": _notify(record, launch),
        "slice_workers": record.numbering.workers_per_slice if record.slices > 1 else None,
        "start_barrier": _start_barrier(record, launch) if len(record.workers) > 1 else None,
    }


def _notify(record: JobRecord, launch: Launch) -> dict[str, Any] | None:
    if launch.notify is None:
        return None
    placement = record.placement
    return {**launch.notify, "down_count": placement.down_count if placement is not None else 0}


def _start_barrier(record: JobRecord, launch: Launch) -> dict[str, Any]:
    return {
        "workers": record.workers,
        "addresses": launch.addresses,
        "timeout_seconds": BARRIER_TIMEOUT_SECONDS,
        "rule": Names(record.stack, record.project).worker_rule,
    }


def cache_spec(compiled: str | None) -> dict[str, str] | None:
    """What is kept in the bucket for later attempts, and the machine's copy of compiled programs.

    Frameworks name compiled programs by their versions; folders keep generations and runtimes
    apart, whose machines would only download what they cannot use.
    """
    if compiled is None:
        return None
    return {
        "environments": f"{CACHE}/environments",
        "compiled": f"{CACHE}/compiled/{compiled}",
        "folder": f"~/.tpuctl/compiled/{compiled}",
    }


def _secrets_file(launch: Launch) -> dict[str, bytes]:
    """Separate from the spec, since it is removed when the attempt has ended."""
    if not launch.secrets.sources:
        return {}
    content = {
        "values": dict(launch.secrets.values),
        "references": launch.secrets.references,
        "retry_seconds": launch.secret_seconds,
    }
    return {"secrets.json": json.dumps(content).encode()}


def _limit(record: JobRecord, at: datetime) -> dict[str, Any]:
    """The maximum duration of the attempt, and the name of the limit that sets it."""
    limits = [(record.max_hours * 3600, "max_hours")] if record.max_hours else []
    if record.timeout is not None:
        elapsed = at - record.submitted if record.attempt > 1 else timedelta()
        limits.append((max(1.0, record.timeout - elapsed.total_seconds()), "timeout"))
    seconds, limit = min(limits, default=(None, ""))
    return {"max_seconds": seconds, "limit": limit}


def _first_access(first_access: FirstAccess | None, at: datetime) -> dict[str, Any] | None:
    """In seconds from now, since the worker's clock may differ."""
    if first_access is None:
        return None
    seconds = (first_access.until - at).total_seconds()
    return {"account": first_access.account, "seconds": seconds} if seconds > 0 else None
