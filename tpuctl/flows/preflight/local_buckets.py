"""Buckets of the local cloud for programs on this machine: created and filled as needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.engine.step import step
from tpuctl.errors import Unreachable, Usage

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.model.events import Emit
    from tpuctl.model.stack.stack import Stack

BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?=[/\s'\"`,;)]|$)")
Sample = tuple[Path, str, str]  # local path, bucket, prefix without leading or trailing slash
MAX_FILES_READ = 200  # source files searched for bucket names


def parse_sample(text: str) -> Sample:
    """`DIR=gs://bucket/prefix`. Raises Usage."""
    folder, equals, uri = text.partition("=")
    match = re.fullmatch(r"gs://([^/]+)/?(.*)", uri)
    if not equals or match is None:
        raise Usage(
            "Invalid sample",
            f"{text} is not of the form FOLDER=gs://BUCKET/PATH",
            hint="For example:\n    tpuctl rehearse --sample data=gs://my-bucket/data train.py",
            where="--sample",
        )
    path = Path(folder).expanduser()
    if not path.exists():
        raise Usage(
            "Sample not found",
            f"{folder} does not exist",
            where="--sample",
            hint="Pass an existing file or folder:\n"
            "    tpuctl rehearse --sample FOLDER=gs://BUCKET/PATH SCRIPT",
        )
    return path, match[1], match[2].strip("/")


def bucket_names(texts: Iterable[str], sources: Iterable[Path] = ()) -> set[str]:
    """The names of buckets in gs:// URIs in these texts and files."""
    names = {name for text in texts for name in BUCKET.findall(text)}
    for _, path in zip(range(MAX_FILES_READ), sources, strict=False):
        with suppress(OSError):
            if path.is_file():
                names |= set(BUCKET.findall(path.read_text("utf-8", "replace")))
    return names


async def on_local_cloud(stack: Stack, emit: Emit) -> Stack:
    """The stack as the local cloud can have it, which is started if necessary: in the local cloud's
    own project if it does not have the stack's, and with that project's bucket.

    A bucket in another project than its stack's would take the name from a later `up`.
    """
    from dataclasses import replace

    from tpuctl.cloud.clients import Cloud
    from tpuctl.errors import Conflict
    from tpuctl.flows.local_cloud import running_endpoint
    from tpuctl.local_cloud.defaults import DEFAULT_PROJECT
    from tpuctl.resources.project.project import is_active

    with suppress(Conflict):  # it is being deleted
        if await is_active(Cloud(running_endpoint(emit), DEFAULT_PROJECT), stack.project):
            return stack
    names = replace(stack.names, project=DEFAULT_PROJECT)
    bucket = names.bucket if stack.file.bucket.name == "auto" else stack.bucket
    return replace(stack, names=names, bucket=bucket)


async def prepare_local_cloud(
    buckets: Iterable[str], samples: Sequence[Sample], emit: Emit, stack: Stack | None
) -> dict[str, str | None]:
    """Start the local cloud if necessary, and create these buckets with these samples; first the
    stack's own, exactly as `up` creates it, so that `up` recognizes it later.

    Returns the variables that point a script at it; None means to unset one.
    """
    import os

    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.local_cloud import running_endpoint
    from tpuctl.local_cloud import server_process
    from tpuctl.local_cloud.defaults import DEFAULT_PROJECT
    from tpuctl.local_cloud.shell_env import environment_for
    from tpuctl.preflight.rehearsal.script_environment import shell_variables

    endpoint = running_endpoint(emit)
    running = server_process.status(server_process.default_home())
    if running is None:
        raise Unreachable(
            "Local cloud not reachable",
            "it stopped just now",
            hint="Start it again (its state is kept), then repeat the command:\n"
            "    tpuctl local up",
        )
    cloud = Cloud(endpoint, DEFAULT_PROJECT if stack is None else stack.project)
    location = "us-central1"
    if stack is not None:
        location = stack.bucket_location
        await _create_own_bucket(cloud, stack)
    await create_buckets(cloud, {*buckets, *(bucket for _, bucket, _ in samples)}, location)
    for sample in samples:
        with step(emit, f"gs://{sample[1]}/{sample[2]}", "copy") as progress:
            uploaded, unchanged = await upload_sample(cloud, sample, progress.report)
            progress.result = f"{uploaded} files uploaded, {unchanged} up to date"
    return environment_for(running, shell_variables(os.environ))


async def list_objects(uri: str, emit: Emit) -> list[str]:
    """The gs:// paths of the objects below a folder on the local cloud."""
    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.local_cloud import running_endpoint
    from tpuctl.local_cloud.defaults import DEFAULT_PROJECT

    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    store = Cloud(running_endpoint(emit), DEFAULT_PROJECT).objects(bucket)
    return [f"gs://{bucket}/{info.name}" for info in await store.list(prefix)]


async def _create_own_bucket(cloud: Cloud, stack: Stack) -> None:
    from tpuctl.resources.project.bucket import Bucket

    bucket = Bucket(stack, cloud)
    if await bucket.observe() is None:
        await bucket.apply(bucket.diff(None), _report_nothing)


def _report_nothing(text: str, share: float | None = None) -> None:
    """Creating a bucket has no progress to show."""


async def create_buckets(cloud: Cloud, names: Iterable[str], location: str) -> list[str]:
    """Create the buckets that do not exist; return the names of those created."""
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
            if not isinstance(converted, Conflict):  # created concurrently
                raise converted from error
    return created


async def upload_sample(
    cloud: Cloud, sample: Sample, report: Callable[[str, float | None], None]
) -> tuple[int, int]:
    """Upload a folder's files, or one file; return the numbers of uploaded and unchanged files."""
    path, bucket, prefix = sample
    store = cloud.objects(bucket)
    files = (
        [path] if path.is_file() else sorted(child for child in path.rglob("*") if child.is_file())
    )
    if not files:
        raise Usage(
            "Sample is empty",
            f"no files in {path}",
            where="--sample",
            hint="Add some of the data that the script reads, then repeat the command.",
        )
    existing = {info.name: info for info in await store.list(prefix)}
    uploaded = 0
    for number, file in enumerate(files):
        inside = file.name if path.is_file() else file.relative_to(path).as_posix()
        name = f"{prefix}/{inside}" if prefix else inside
        stored, status = existing.get(name), file.stat()
        report(inside, number / len(files))
        if (
            stored
            and stored.size == status.st_size
            and stored.updated.timestamp() > status.st_mtime
        ):
            continue
        await store.put_file(name, file, if_absent=False)
        uploaded += 1
    return uploaded, len(files) - uploaded
