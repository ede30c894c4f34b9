"""What a job needs on a worker beside the image, before its command starts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Installation"]


class Installation(BaseModel):
    """Paths are relative to the bundle. What is not in the bundle is passed over, but for the
    project. All of it stands in the job's record: any machine can start another attempt with it."""

    model_config = ConfigDict(frozen=True)

    requirements: str | None = Field(None, description="A requirements file, in pip's format.")
    dependencies: tuple[str, ...] = Field(
        (), description="What a pyproject.toml asks for, as pip takes it."
    )
    project: str | None = Field(
        None, description="A folder that is a Python package: built and installed too."
    )
    wheels: str | None = Field(
        None, description="A folder of wheels: what is there is installed from it, no index asked."
    )
    setup: str | None = Field(
        None, description="A shell command that runs before, once for each machine and content."
    )
