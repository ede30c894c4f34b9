"""`export`: write a job for another engine, with its bundle in the stack's bucket."""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tpuctl.catalog import host_architecture
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Diagnostic
from tpuctl.flows.jobs.job_start import new_record, upload, with_bundle
from tpuctl.flows.jobs.submission import Submission, with_job_python
from tpuctl.flows.packages.job_python import JobTarget
from tpuctl.flows.packages.tools import ensure_tools
from tpuctl.jobs.bundle_upload import record_name
from tpuctl.jobs.jobset import (
    DEFAULT_IMAGE,
    JobSetSettings,
    build_manifest,
    programs_archive,
    programs_name,
    require_all_workers,
    require_exportable,
    require_names,
    secret_name,
)
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.job import new_job_id
from tpuctl.model.scripts.requirement_files import required
from tpuctl.model.stack.secret_sources import Source
from tpuctl.model.stack.stack import Stack
from tpuctl.version import __version__

# As on Docker Hub, perhaps of a mirror: python:3.12, python:3.12.7-slim.
PYTHON_IMAGE = re.compile(r"(?:.*/)?python:(?P<minor>3\.\d+)\b")
TENSORFLOW_FOR_TPUS = {"tensorflow-tpu", "tf-nightly-tpu"}


@dataclass(frozen=True)
class ExportedJobSet:
    """A manifest, and what it needs."""

    name: str
    manifest: str
    bundle: str  # URL of its record
    is_uploaded: bool
    secret: str  # the Secret that the cluster needs; empty if the job has no secrets
    secret_command: tuple[str, ...]  # lines of the command that creates it


def exportable(stack: Stack) -> Stack:
    """The stack, to prepare its jobs without the values of their secrets.

    Raises Usage if GKE cannot run its jobs.
    """
    stack.require_valid()
    require_exportable(stack)
    job = stack.file.job.model_copy(update={"secrets": {}})
    return replace(stack, file=stack.file.model_copy(update={"job": job}))


async def export_jobset(
    stack: Stack,
    submission: Submission,
    settings: JobSetSettings,
    name: str = "",
    *,
    store: ObjectStore | None,
    emit: Emit,
) -> ExportedJobSet:
    """The manifest of the JobSet `name`, by default a new one, for a job of `exportable` stacks.

    What its pods download is uploaded to `store`, the stack's bucket; None: nothing is uploaded.
    Raises Usage if not all workers run the job.
    """
    require_all_workers(submission.workers, submission.worker_count)
    now = datetime.now(UTC)
    name = name or f"job-{new_job_id(now, random.SystemRandom())}"
    require_names(name, settings)
    target = JobTarget(python_of_image(settings.image), host_architecture(stack.accelerator))
    submission = with_job_python(submission, stack, target)
    submission = await with_bundle(submission, emit)
    bundle, programs = submission.bundle, programs_archive()
    assert bundle is not None
    if store is not None:
        await upload(bundle, store, {}, emit)
        installation = await ensure_tools(submission.installation, store, emit)
        submission = replace(submission, installation=installation)
        await store.put_bytes(programs_name(programs), programs)  # renewed, if it exists
    _warn_of_image(submission, settings, emit)
    _warn_of_retries(submission, emit)
    record = new_record(submission, bundle, name, now)
    record = record.model_copy(update={"bundle_name": record_name(bundle)})
    comment = (
        f"Written by tpuctl {__version__} for the stack {stack.name}.\n"
        f"gs://{record.bucket} keeps the bundle for some weeks; then export the job again."
    )
    return ExportedJobSet(
        name=name,
        manifest=build_manifest(stack, record, settings, programs_name(programs), comment),
        bundle=f"gs://{record.bucket}/{record.bundle_name}",
        is_uploaded=store is not None,
        secret=secret_name(stack) if stack.secrets else "",
        secret_command=_secret_command(stack),
    )


def python_of_image(image: str) -> str:
    """The minor version of the Python of a container image, as in "3.12"; "" if its name does not
    tell."""
    match = PYTHON_IMAGE.match(image)
    return match["minor"] if match else ""


def _secret_command(stack: Stack) -> tuple[str, ...]:
    """Values are passed by files: command lines are visible to other users of the computer."""
    if not stack.secrets:
        return ()
    options = [
        f"--from-file={name}=<({_print_secret(source)})" for name, source in stack.secrets.items()
    ]
    lines = [f"kubectl create secret generic {secret_name(stack)}", *(f"    {o}" for o in options)]
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])


def _print_secret(source: Source) -> str:
    if source.variable:
        return f'printf %s "${source.variable}"'
    project, name = source.secret.split("/")[1::2]
    return shlex.join(
        [
            *("gcloud", "secrets", "versions", "access", source.version),
            *(f"--secret={name}", f"--project={project}"),
        ]
    )


def _warn_of_image(submission: Submission, settings: JobSetSettings, emit: Emit) -> None:
    """Emit a warning if the pods would have no TensorFlow, which the images of TPU VMs have."""
    choice, requirements = submission.framework, submission.installation.requirements
    if choice is None or choice.framework != "tensorflow" or settings.image != DEFAULT_IMAGE:
        return
    assert submission.root is not None
    names = {package.name for package in required(submission.root, requirements)}
    if not names & TENSORFLOW_FOR_TPUS:
        problem = Diagnostic(
            "The image has no TensorFlow",
            f"{settings.image} has only Python, and no requirement installs tensorflow-tpu",
            hint="Add tensorflow-tpu to the requirements, or choose an image with --image.",
        )
        emit(WarningIssued(problem))


def _warn_of_retries(submission: Submission, emit: Emit) -> None:
    """JobSet cannot count failures of the script apart from other restarts."""
    retries = submission.retries
    if retries.failure:
        problem = Diagnostic(
            "A script that fails is restarted more often",
            f"job.retries.failure is {retries.failure}, but JobSet has one counter for all causes: "
            f"{retries.total} restarts",
            hint="To end the job when its script fails, set\n    job: {retries: {failure: 0}}",
        )
        emit(WarningIssued(problem))
