"""Answers about machines: commands, copies, ports, and what is served from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.view.responses.base import (
    Response,
)

if TYPE_CHECKING:
    pass


class WorkerExit(Response):
    worker: int
    slice: int | None
    exit_code: int


class CommandResult(Response):
    """A command's exit code on each worker."""

    workers: list[WorkerExit]


class WorkerCopy(Response):
    worker: int
    slice: int | None
    files: int
    bytes: int


class CopyResult(Response):
    workers: list[WorkerCopy]


class ForwardedPort(Response):
    port: int
    local_port: int
    url: str


class PortForwardings(Response):
    worker: int
    slice: int | None
    ports: list[ForwardedPort]


class Dashboard(Response):
    """The dashboard's page; `url` has the token that it requires."""

    url: str


class Notebook(Response):
    """A notebook server while its port is forwarded."""

    job: str
    url: str
    files: str


class SshHosts(Response):
    """The hosts that ssh knows, or with --print would know, in `file`."""

    hosts: list[str]
    file: str
    included_by: str | None  # ssh's configuration; None if it does not include the file
