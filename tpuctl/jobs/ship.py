"""From a bundle to a running job: everything lands on the chosen workers, or nothing stays."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from tpuctl.cloud.objects import ObjectStore, Progress
from tpuctl.errors import Conflict, Denied, RemoteFailed, TpuctlError, Unreachable
from tpuctl.jobs.bundle import Bundle
from tpuctl.model.job import JobRecord, WorkerRecord
from tpuctl.model.names import BUNDLES
from tpuctl.remote.transport import Transport
from tpuctl.waiting import all_ended

__all__ = [
    "SHIPPED",
    "Launch",
    "command",
    "ship_bundle",
    "start",
    "stop",
    "stop_through_bucket",
]

SHIPPED = ("supervisor.py", "keeper.py", "courier.py", "environment.py")
GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class Launch:
    """What a worker needs beyond the job's record. Values of `env` may be secret."""

    requirements: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    worker_env: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    grace_seconds: float = GRACE_SECONDS


def command(record: JobRecord, name: str, *options: str) -> list[str]:
    """The command line of the job's supervisor on a worker, relative to the user's home."""
    script = f"{record.folder}/supervisor.py"
    return ["python3", "-S", "-I", script, name, record.folder, *options]


async def ship_bundle(
    bundle: Bundle,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    *,
    progress: Progress | None = None,
) -> tuple[str | None, bool]:
    """Put the bundle where the workers find it.

    Into the bucket, once for all of them, unless it is there already; when the bucket cannot be
    reached, onto each worker over SSH. Returns its name in the bucket, or None, and whether
    anything was sent.
    """
    name = f"{BUNDLES}/{bundle.digest}.tar.gz"
    try:
        return name, await store.put_file(name, bundle.path, progress=progress)
    except (Unreachable, Denied):
        path = f".tpuctl/bundles/{bundle.digest}.tar.gz"
        await all_ended(
            transport.put(bundle.path, path, mode=0o600, progress=progress)
            for transport in transports.values()
        )
        return None, True


async def start(
    record: JobRecord,
    launch: Launch,
    bundle_name: str | None,
    transports: Mapping[int, Transport],
) -> None:
    """Start the job on all its workers at the same time, or on none.

    When one does not start, the others are stopped and the failure names the worker.
    """
    workers = {worker: transports[worker] for worker in record.workers}
    failed: list[int] = []

    async def one(worker: int) -> None:
        spec = _spec(record, launch, bundle_name, worker)
        try:
            await _start_one(workers[worker], record, spec)
        except TpuctlError:
            failed.append(worker)
            raise

    try:
        await all_ended(one(worker) for worker in workers)
    except BaseException:
        await stop(record, workers, grace=0.0, because_of=failed[0] if failed else None)
        raise


async def stop(
    record: JobRecord,
    transports: Mapping[int, Transport],
    *,
    grace: float = GRACE_SECONDS,
    because_of: int | None = None,
) -> dict[int, WorkerRecord]:
    """Stop the job on these workers; what those that could be reached answered.

    `because_of` is the worker whose end is the reason, where that is one.
    """
    options = ["--grace", str(grace)]
    if because_of is not None:
        options += ["--worker", str(because_of)]

    async def one(transport: Transport) -> WorkerRecord | None:
        try:
            done = await transport.run(command(record, "stop", *options))
        except TpuctlError:
            return None
        return WorkerRecord.model_validate_json(done.stdout) if done.exit_code == 0 else None

    answers = await asyncio.gather(*(one(transport) for transport in transports.values()))
    return {
        worker: answer
        for worker, answer in zip(transports, answers, strict=True)
        if answer is not None
    }


async def stop_through_bucket(record: JobRecord, store: ObjectStore) -> None:
    """End the job where nobody could be asked: supervisors look there every few seconds."""
    with suppress(Conflict):  # it ends for another reason
        await store.put_bytes(record.end_name, b'{"worker": null}', if_generation=0)


async def _start_one(transport: Transport, record: JobRecord, spec: dict[str, Any]) -> None:
    parcel = _parcel({"spec.json": json.dumps(spec).encode()})
    unpack = ["sh", "-c", 'mkdir -p "$1" && tar -xf - -C "$1"', "sh", record.folder]
    sent = await transport.run(unpack, input=parcel)
    what = f"worker {transport.worker}: starting job {record.id}"
    sent.checked(what)
    started = await transport.run(command(record, "start"))
    if started.exit_code == 127:
        raise RemoteFailed(
            "Worker has no python3",
            what,
            hint="Choose a runtime of the table:\n    tpuctl runtimes",
        )
    started.checked(what)


def _parcel(more: Mapping[str, bytes]) -> bytes:
    """The shipped files, byte for byte, and the given ones, private, in one archive."""
    contents = {name: files("tpuctl.jobs").joinpath(name).read_bytes() for name in SHIPPED}
    parcel = io.BytesIO()
    with tarfile.open(fileobj=parcel, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in {**contents, **more}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            tar.addfile(info, io.BytesIO(content))
    return parcel.getvalue()


def _spec(
    record: JobRecord, launch: Launch, bundle_name: str | None, worker: int
) -> dict[str, Any]:
    """What the supervisor reads; its names are the supervisor's."""
    return {
        "job": record.id,
        "attempt": record.attempt,
        "worker": worker,
        "argv": ["{python}", record.script, *record.args],
        "env": {**launch.env, **launch.worker_env.get(worker, {})},
        "bundle": {"sha256": record.bundle, "name": bundle_name},
        "requirements": launch.requirements,
        "bucket": record.bucket,
        "prefix": record.attempt_prefix,
        "max_seconds": record.max_hours * 3600 if record.max_hours else None,
        "grace_seconds": launch.grace_seconds,
    }
