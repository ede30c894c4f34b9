"""Answers of `export`."""

from __future__ import annotations

from tpuctl.view.responses.base import Response, source


class Secret(Response):
    """A Secret that the cluster needs, and the shell command that creates it."""

    name: str
    command: str


class JobSet(Response):
    """A manifest; `file` is null if it was printed, `secret` if the job has no secrets."""

    name: str
    file: str | None
    text: str = source("manifest")
    bundle: str
    is_uploaded: bool
    secret: Secret | None
