"""Answers of `ci`."""

from __future__ import annotations

from tpuctl.view.responses.base import Response


class System(Response):
    """A CI system, and the path of its pipeline."""

    name: str
    title: str
    file: str


class SetupStep(Response):
    """Shell commands to run once."""

    title: str
    commands: list[str]


class Pipeline(Response):
    """A pipeline, and what the user must still do; `file` is null with --print."""

    file: str | None
    text: str
    placeholders: dict[str, str]
    setup: list[SetupStep]
