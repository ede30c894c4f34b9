"""Answers about the local cloud."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tpuctl.view.responses.base import ABSENT, Number, Response, source

__all__ = [
    "Environment",
    "Fault",
    "LocalCloud",
    "LocalDown",
    "LocalReset",
    "LocalStatus",
    "ReleasedFaults",
    "Settings",
    "Token",
]


class LocalCloud(Response):
    url: str
    pace: str
    folder: Path = source("home")
    pid: int


class LocalStatus(Response):
    """Only `running` is present if it is false."""

    running: bool
    url: str = ABSENT
    folder: str = ABSENT
    version: str = ABSENT
    pid: int = ABSENT
    home: str = ABSENT
    pace: str = ABSENT
    isolation: str = ABSENT
    image_notes: list[str] = ABSENT
    uptime_seconds: Number = ABSENT
    projects: int = ABSENT
    nodes: int = ABSENT
    faults: int = ABSENT
    machines: int = ABSENT
    buckets: int = ABSENT
    objects: int = ABSENT
    object_bytes: int = ABSENT
    requests: int = ABSENT


class LocalDown(Response):
    stopped: bool


class LocalReset(Response):
    folder: Path


class Token(Response):
    member: str
    token: str


class Environment(Response):
    """Environment variables to set and to unset."""

    set: dict[str, str]
    unset: list[str]

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> Environment:
        """From variables and their values; None unsets one."""
        return cls(
            set={name: value for name, value in values.items() if value is not None},
            unset=[name for name, value in values.items() if value is None],
        )


class Settings(Response):
    """`quota` has limits by id and location; null is unlimited."""

    pace: str
    nodes: str
    quota: dict[str, dict[str, int | None]]
    policies: list[str]
    denied_permissions: list[str]
    propagation: Number
    reservations: list[str]


class HeldCall(Response):
    """A request that a fault holds, since a Unix timestamp."""

    method: str
    caller: str
    since: Number


class Fault(Response):
    """A fault with its options; `due` is a Unix timestamp, `free_bytes` what a disk still takes."""

    id: str
    kind: str
    times: int | Literal["unlimited"]
    method: str = ABSENT
    project: str = ABSENT
    zone: str = ABSENT
    region: str = ABSENT
    type: str = ABSENT
    name: str = ABSENT
    caller: str = ABSENT
    at: int = ABSENT
    text: str = ABSENT
    google_error: str = ABSENT
    code: str = ABSENT
    http: int = ABSENT
    fail_operation: bool = ABSENT
    hold_response: bool = ABSENT
    body: str = ABSENT
    after_bytes: int = ABSENT
    limit: str = ABSENT
    number: int = ABSENT
    node: str = ABSENT
    worker: int = ABSENT
    mode: str = ABSENT
    seconds: Number = ABSENT
    matched: int
    applied: int
    error: str
    due: Number = ABSENT
    active: bool = ABSENT
    free_bytes: int | None = ABSENT
    exhausted: bool
    held_calls: list[HeldCall]


class ReleasedFaults(Response):
    released: int
