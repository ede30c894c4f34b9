"""Buckets of the local cloud for programs of this machine: made when missing, filled from here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.engine.step import step
from tpuctl.errors import Unreachable, Usage

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.model.events import Emit

__all__ = [
    "Sample",
    "bucket_names",
    "create_buckets",
    "parse_sample",
    "prepare_local_cloud",
    "upload_sample",
]

BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?=[/\s'\"`,;)]|$)")
Sample = tuple[Path, str, str]  # a folder here, a bucket, a prefix without slashes at its ends
MAX_FILES_READ = 200  # of a project, for the buckets that they name


def parse_sample(text: str) -> Sample:
    """`DIR=gs://bucket/prefix`. Raises Usage."""
    folder, equals, uri = text.partition("=")
    match = re.fullmatch(r"gs://([^/]+)/?(.*)", uri)
    if not equals or match is None:
        raise Usage(
            "Not a sample",
            f"{text} does not say which folder goes where",
            hint="For example\n    tpuctl rehearse --sample data=gs://my-bucket/data train.py",
            where="--sample",
        )
    path = Path(folder).expanduser()
    if not path.exists():
        raise Usage(
            "No such sample",
            f"{folder} does not exist",
            where="--sample",
            hint="Name a file or folder that is there:\n"
            "    tpuctl rehearse --sample FOLDER=gs://BUCKET/PATH SCRIPT",
        )
    return path, match[1], match[2].strip("/")


def bucket_names(texts: Iterable[str], sources: Iterable[Path] = ()) -> set[str]:
    """The names of buckets that stand in these texts and files."""
    names = {name for text in texts for name in BUCKET.findall(text)}
    for _, path in zip(range(MAX_FILES_READ), sources, strict=False):
        with suppress(OSError):
            if path.is_file():
                names |= set(BUCKET.findall(path.read_text("utf-8", "replace")))
    return names


async def prepare_local_cloud(
    buckets: Iterable[str], samples: Sequence[Sample], emit: Emit, *, location: str
) -> dict[str, str | None]:
    """The local cloud with these buckets and samples, started if need be.

    The answer are the variables that lead a script there; None means to unset one.
    """
    import os

    from tpuctl.api.local_cloud import running_endpoint
    from tpuctl.cloud.clients import Cloud
    from tpuctl.emulator.client import server_process
    from tpuctl.emulator.client.shell_env import environment_for
    from tpuctl.emulator.state.projects import DEFAULT_PROJECT
    from tpuctl.preflight.rehearsal.script_environment import shell_variables

    endpoint = running_endpoint(emit)
    running = server_process.status(server_process.default_home())
    if running is None:
        raise Unreachable(
            "The local cloud did not answer",
            "it went away just now",
            hint="Start it again, which keeps what it has, then repeat the command:\n"
            "    tpuctl local up",
        )
    cloud = Cloud(endpoint, DEFAULT_PROJECT)
    await create_buckets(cloud, {*buckets, *(bucket for _, bucket, _ in samples)}, location)
    for sample in samples:
        with step(emit, f"gs://{sample[1]}/{sample[2]}", "copy") as progress:
            counts = await upload_sample(cloud, sample, progress.report)
            progress.result = f"{counts['sent']} files, {counts['there']} there already"
    return environment_for(running, shell_variables(os.environ))


async def create_buckets(cloud: Cloud, names: Iterable[str], location: str) -> list[str]:
    """Make those that are not there; their names."""
    from tpuctl.cloud.errors import convert, is_foreign
    from tpuctl.cloud.threads import in_thread
    from tpuctl.errors import Conflict

    client = cloud.client("storage")
    created = []
    for name in sorted(names):

        def create(name: str = name) -> bool:
            if client.lookup_bucket(name) is not None:
                return False
            client.create_bucket(name, location=location)
            return True

        try:
            if await in_thread(create):
                created.append(name)
        except Exception as error:
            if not is_foreign(error):
                raise
            converted = convert(error, f"gs://{name}")
            if not isinstance(converted, Conflict):  # made by somebody else meanwhile
                raise converted from error
    return created


async def upload_sample(
    cloud: Cloud, sample: Sample, report: Callable[[str, float | None], None]
) -> Mapping[str, int]:
    """Upload a folder's files, or one file; how many were sent, and how many were there."""
    from tpuctl.cloud.objects import ObjectStore

    path, bucket, prefix = sample
    store = ObjectStore(cloud.client("storage"), bucket)
    files = (
        [path] if path.is_file() else sorted(child for child in path.rglob("*") if child.is_file())
    )
    if not files:
        raise Usage(
            "Sample is empty",
            f"there is no file in {path}",
            where="--sample",
            hint="Put into it some of the data that the script reads, then repeat the command.",
        )
    existing = {info.name: info for info in await store.list(prefix)}
    uploaded = 0
    for number, file in enumerate(files):
        inside = file.name if path.is_file() else file.relative_to(path).as_posix()
        name = f"{prefix}/{inside}" if prefix else inside
        there, status = existing.get(name), file.stat()
        report(inside, number / len(files))
        if there and there.size == status.st_size and there.updated.timestamp() > status.st_mtime:
            continue
        await store.put_file(name, file, if_absent=False)
        uploaded += 1
    return {"sent": uploaded, "there": len(files) - uploaded}
