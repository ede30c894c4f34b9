"""What a job installs on a worker before its command starts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


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
    setup: str | None = Field(
        None, description="A shell command to run first, once per machine and content."
    )

    @property
    def has_packages(self) -> bool:
        return bool(
            self.requirements or self.dependencies or self.project or self.wheels or self.packages
        )
