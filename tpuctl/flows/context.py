"""What a story is handed: a stack, the cloud that it is in, and all else from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.keys import Keys
from tpuctl.model.events import Emit, ignore
from tpuctl.model.stack import Stack
from tpuctl.waiting import Clock

__all__ = ["Context", "PrepareImage"]

PrepareImage = Callable[[str | None, Emit], Awaitable[None]]


async def _needs_no_image(tensorflow: str | None, emit: Emit) -> None:
    """Google has its images ready."""


@dataclass(frozen=True)
class Context:
    """Made by the API, handed down from story to helper, never changed.

    Opening one asks nothing of the cloud, and reads no key.
    """

    stack: Stack
    cloud: Cloud
    keys: Keys
    emit: Emit = ignore
    has_file: bool = True  # else the stack is a name and a project, which must exist
    controller: str | None = None  # the stack's own, where this program runs on it
    jobs_cloud: str = "google"  # the name of the cloud that jobs are told they run in
    prepare_image: PrepareImage = _needs_no_image  # of this cloud's machines, for a TensorFlow

    @property
    def store(self) -> ObjectStore:
        """The objects of the stack's bucket."""
        return ObjectStore(self.cloud.client("storage"), self.stack.bucket)

    @property
    def clock(self) -> Clock:
        return self.cloud.clock
