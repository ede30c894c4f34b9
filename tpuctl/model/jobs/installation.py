"""What a job installs on a worker before its command starts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.text.names import TOOLS
from tpuctl.model.text.record_parsing import Name, Text

SHA256 = r"^[0-9a-f]{64}$"


class Tool(BaseModel):
    """A program that a job brings to its machines. The bucket keeps its archive by `key` and
    `sha256`, which together name exactly one content."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    key: Name = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]*$",
        description="Its name, version, platform and build.",
    )
    version: Name = Field(pattern=r"^[0-9][0-9A-Za-z.+]*$", description="Its version.")
    sha256: Name | None = Field(
        None,
        pattern=SHA256,
        description="Checksum of its archive; null if no computer has stored it yet.",
    )


def object_name(tool: Tool) -> str:
    """The object in the bucket with the archive of a tool that is stored there."""
    return f"{TOOLS}/{tool.key}/{tool.sha256}.tar.gz"


class PythonBuild(Tool):
    """A build of CPython, of python-build-standalone."""

    request: Name = Field(description="What uv calls it: cpython-3.12.11-linux-x86_64-gnu.")

    @property
    def minor(self) -> str:
        """The minor version: "3.12"."""
        return ".".join(self.version.split(".")[:2])


class LockFile(BaseModel):
    """A lock, which is obeyed to the hash."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    path: Text = Field(description="The file: uv.lock, pylock.toml, or the lock of a script.")
    form: Literal["uv", "script", "pylock"]
    script: Text = Field("", description="The script that a script's lock belongs to.")
    extras: tuple[Name, ...] = ()
    groups: tuple[Name, ...] = Field((), description="Dependency groups, without the default ones.")


class Installation(BaseModel):
    """Paths are relative to the bundle; missing ones are ignored, except the project. Part of the
    job's record, so that any machine can start another attempt."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    requirements: str | None = Field(None, description="A pip requirements file.")
    dependencies: tuple[str, ...] = Field(
        (), description="Dependencies of a pyproject.toml, as pip requirements."
    )
    project: str | None = Field(
        None, description="The folder of a Python package to build and install."
    )
    packages: tuple[str, ...] = Field((), description="Further pip requirements.")
    wheels: str | None = Field(
        None, description="A folder of wheels to install from, without a package index."
    )
    lock: LockFile | None = Field(
        None, description="A lock, which stands for requirements, dependencies and packages."
    )
    members: tuple[str, ...] = Field(
        (), description="Folders of further Python packages to build and install, as the project."
    )
    setup: str | None = Field(
        None, description="A shell command to run first, once per machine and content."
    )
    python: PythonBuild | None = Field(
        None, description="The Python that the job brings; null: the image's."
    )
    uv: Tool | None = Field(None, description="The uv that installs; null: the image's pip.")

    @property
    def has_packages(self) -> bool:
        return bool(
            self.requirements
            or self.dependencies
            or self.project
            or self.wheels
            or self.packages
            or self.lock
            or self.members
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What machines need before they can install anything."""
        return tuple(tool for tool in (self.python, self.uv) if tool is not None)


def lock_text(installation: Installation) -> str | None:
    """A lock as job.requirements names it: uv.lock[tpu]; None without one."""
    lock = installation.lock
    if lock is None:
        return None
    names = ",".join([*lock.extras, *lock.groups])
    return f"{lock.path}[{names}]" if names else lock.path
