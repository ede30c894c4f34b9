"""Answers about the local cloud.

The status, settings and faults that its server returns as JSON are printed as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from tpuctl.local_cloud.cache import CacheItem
from tpuctl.view.columns import ABSENT, Number
from tpuctl.view.responses.base import NullIfEmpty, Response, source


class LocalCloud(Response):
    url: str
    pace: str
    folder: Path = source("home")
    pid: int


class LocalStatus(Response):
    """Only the first three are present if `running` is false: the bytes of its folder, and of
    images, packages, and downloads."""

    running: bool
    folder_bytes: int
    cache_bytes: int
    url: str = ABSENT
    folder: str = ABSENT
    version: str = ABSENT
    pid: int = ABSENT
    home: str = ABSENT
    pace: str = ABSENT
    isolation: str = ABSENT
    image_notes: list[str] = ABSENT
    network: str = ABSENT
    refused_connections: list[str] = ABSENT
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


class LocalPrune(Response):
    """The bytes that were freed, and what was deleted and kept."""

    freed_bytes: int
    deleted_items: list[CacheItem]
    kept_items: list[CacheItem]


class Token(Response):
    member: str
    token: str


class Environment(Response):
    """Environment variables to set and to unset."""

    set: dict[str, str]
    unset: list[str]


class Settings(Response):
    """`quota` has limits by id and location; null is unlimited. `zones` are closed ones that were
    opened. `devices` is how many of a TPU's a program sees at most; 0 is no limit."""

    pace: str
    nodes: str
    quota: dict[str, dict[str, int | None]]
    policies: list[str]
    denied_permissions: list[str]
    propagation: Number
    address: str
    reservations: list[str]
    devices: int
    zones: list[str]


class HeldCall(Response):
    """A request that a fault holds, since a Unix timestamp."""

    method: str
    caller: str
    since: Number


class Fault(Response):
    """A fault: its options as in `local fault add`, and the requests that it applied to.

    Faults that occur at a time have `due`, a Unix timestamp. `free_bytes` is what a disk still
    accepts.
    """

    model_config = ConfigDict(extra="allow")

    id: str
    kind: str
    times: int | Literal["unlimited"]
    matched: int
    applied: int
    error: str
    due: Number = ABSENT
    free_bytes: int | None = ABSENT
    exhausted: bool
    held_calls: list[HeldCall]


class ReleasedFaults(Response):
    released: int


class ReplayDifference(Response):
    """How a response differs: `kind` is status, reason, text, field or constant."""

    kind: Literal["status", "reason", "text", "field", "constant"]
    path: str
    recorded: str
    local: str


class ReplayedCall(Response):
    """A recorded call; `skipped` says why it was not compared."""

    file: Path
    where: str = source("call.where")
    method: str
    skipped: NullIfEmpty[str]
    differences: list[ReplayDifference]


class Replay(Response):
    """The calls of all files, with the numbers of those alike, different and not compared."""

    alike: int
    different: int
    skipped: int
    calls: list[ReplayedCall]
