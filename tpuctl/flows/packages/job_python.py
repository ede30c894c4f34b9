"""The Python and the installer of a job, decided once, before it is submitted."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tpuctl.catalog import host_architecture
from tpuctl.errors import Diagnostic, Refused
from tpuctl.jobs.requirements.installation import read_installation
from tpuctl.jobs.requirements.locks import lock_problem
from tpuctl.jobs.requirements.python_archives import python_builds
from tpuctl.jobs.requirements.python_choice import PythonChoice, choose_python
from tpuctl.jobs.requirements.resolution import INDEXES, conflict, reason_of
from tpuctl.jobs.requirements.uv_program import tool_for_uv
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.scripts.python_request import request_of
from tpuctl.model.stack.schema import JobSection
from tpuctl.model.stack.secret_sources import source_of
from tpuctl.model.stack.stack import Stack


@dataclass(frozen=True)
class JobTarget:
    """What decides about a job's Python, apart from its files and the stack file."""

    image: str  # the machines' Python, as in "3.10"; "" if unknown
    architecture: str  # of the machines

    @classmethod
    def of(cls, stack: Stack, cloud: str) -> JobTarget:
        """That of the stack's workers. Machines of the local cloud are processes on this
        computer."""
        is_google = cloud == "google"
        architecture = host_architecture(stack.accelerator) if is_google else platform.machine()
        return cls(stack.image_python, architecture)


def stack_python(stack: Stack, cloud: str) -> PythonChoice:
    """The Python of jobs with the stack folder's own files, which a script's metadata may change.

    Raises Usage and Refused.
    """
    installation = read_installation(stack.file.job, stack.folder)
    target = JobTarget.of(stack, cloud)
    _, choice = with_tools(stack.file.job, installation, stack.folder, None, target)
    return choice


def with_tools(
    job: JobSection,
    installation: Installation,
    folder: Path,
    script: Path | None,
    target: JobTarget,
    where: str = "job.python",
) -> tuple[Installation, PythonChoice]:
    """The installation with the Python that the job brings, if it does, and with uv, if anything
    is to be installed; and why that Python. Asks the index, if it has to choose among Pythons.

    `where` is the key or option that sets `job.python`. Raises Usage and Refused.
    """
    request = request_of(job.python, folder, script, where=where)
    architecture, variables = target.architecture, _variables(job)
    lock, lock_errors = installation.lock, list[Diagnostic]()

    def problem(minor: str, may_build: bool) -> str | None:
        if lock is None:
            if variables is None:
                return None
            output = conflict(
                installation, folder, minor, architecture, variables, may_build=may_build
            )
            return None if output is None else reason_of(output)
        error = lock_problem(lock, folder, minor, architecture, may_build=may_build)
        if error is not None:
            lock_errors.append(error)
        return None if error is None else error.detail

    try:
        choice = choose_python(request, target.image, partial(python_builds, architecture), problem)
    except Refused as refused:
        if lock_errors:  # of each Python, more exact than that none fits
            raise _lock_refused(lock_errors) from refused
        raise
    if choice.build is None and lock is not None and target.image:
        error = lock_problem(lock, folder, target.image, architecture)
        if error is not None:
            raise _lock_refused([error])
    updates: dict[str, object] = {"python": choice.build}
    if installation.has_packages or choice.build is not None:
        updates["uv"] = tool_for_uv(architecture)
    return installation.model_copy(update=updates), choice


def _variables(job: JobSection) -> dict[str, str] | None:
    """The job's variables that name indexes and have their passwords, and those of this computer;
    None if an index is a secret that only machines can read."""
    variables = {**os.environ, **job.env}
    for name, text in job.secrets.items():
        source = source_of(name, text, "")
        if source.variable:
            variables[name] = os.environ.get(source.variable, "")
        elif name in INDEXES:
            return None
    return variables


def _lock_refused(errors: Sequence[Diagnostic]) -> Refused:
    """Why a lock fits none of the Pythons that the job may have."""
    details = dict.fromkeys(error.detail for error in errors)
    first = errors[0]
    return Refused(first.summary, "\n".join(details), hint=first.hint, where=first.where)
