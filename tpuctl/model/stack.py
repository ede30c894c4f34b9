"""A stack: its file read and checked, with every default resolved."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from pathlib import Path

from tpuctl.catalog import (
    AcceleratorType,
    Price,
    Runtime,
    accelerator_type,
    node_price,
    region_of,
    runtime,
    runtime_for,
)
from tpuctl.errors import InvalidStack
from tpuctl.model.names import STACK_NAME, Names
from tpuctl.model.schema import StackFile
from tpuctl.model.stack_rules import chosen_zone, problems_of
from tpuctl.model.stack_text import read_stack_text

__all__ = ["Stack", "load_stack", "slug"]


@dataclass(frozen=True)
class Stack:
    """A valid stack. Nothing here is "auto" any more, but for the network's name."""

    path: Path
    file: StackFile
    names: Names
    accelerator: AcceleratorType
    runtime: Runtime
    zone: str
    bucket: str
    bucket_location: str
    user: str

    @property
    def name(self) -> str:
        return self.names.stack

    @property
    def project(self) -> str:
        return self.names.project

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def is_spot(self) -> bool:
        return self.file.tpu.capacity == "spot"

    @property
    def makes_service_account(self) -> bool:
        return self.file.tpu.service_account is None

    @property
    def service_account(self) -> str:
        return self.file.tpu.service_account or self.names.service_account_email

    @property
    def price(self) -> Price | None:
        """Of the node, for an hour."""
        return node_price(self.accelerator, self.zone, spot=self.is_spot)

    def job_workers(self) -> tuple[int, ...]:
        """The workers that start the script.

        Multi-host TensorFlow is driven from worker 0 alone; everything else starts everywhere.
        """
        wanted = self.file.job.workers
        everyone = tuple(range(self.accelerator.workers))
        if wanted == "all":
            return everyone
        if wanted == "auto":
            return (0,) if self.runtime.tensorflow else everyone
        return tuple(wanted)


def load_stack(path: Path) -> Stack:
    """Read and check a stack file. Raises InvalidStack with every problem found."""
    text = read_stack_text(path)
    file = text.validate()
    problems = list(problems_of(file, text))
    accelerator = accelerator_type(file.tpu.type)
    if problems or accelerator is None:
        raise InvalidStack(problems)
    auto = file.tpu.runtime == "auto"
    chosen = runtime_for(accelerator) if auto else runtime(file.tpu.runtime)
    if chosen is None:
        raise AssertionError("the rules let no stack without a runtime pass")
    names = Names(file.stack or slug(path.resolve().parent.name), file.project.id)
    zone = chosen_zone(file, accelerator)
    location = file.bucket.location.lower()
    return Stack(
        path=path,
        file=file,
        names=names,
        accelerator=accelerator,
        runtime=chosen,
        zone=zone,
        bucket=names.bucket if file.bucket.name == "auto" else file.bucket.name,
        bucket_location=region_of(zone) if location == "auto" else location,
        user=_user(file.access.user),
    )


def slug(text: str) -> str:
    """A stack name from a folder's name."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:26].strip("-")
    return slug if re.fullmatch(STACK_NAME, slug) else f"stack-{slug}"[:26].strip("-")


def _user(wanted: str) -> str:
    """A user name that a machine accepts; root may not log in on Google's images."""
    if wanted != "auto":
        return wanted
    try:
        local = getpass.getuser()
    except (OSError, KeyError):  # no entry for this user, as in some containers
        local = "tpuctl"
    slug = re.sub(r"[^a-z0-9_-]", "", local.lower())[:32]
    return slug if slug not in ("", "root") and not slug[0].isdigit() else "tpuctl"
