"""What a story is handed: a stack, the cloud that it is in, and all else from outside."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.files import private_folder
from tpuctl.model.events import Emit, ignore
from tpuctl.model.stack import Stack
from tpuctl.polling import Clock
from tpuctl.remote.keys import KeyPair, config_home, default_key, load_key

__all__ = [
    "CLOUD",
    "CONTROLLER",
    "Context",
    "Keys",
    "PrepareImage",
    "controller_name",
    "job_cloud",
    "known_hosts",
]

# What a program on a controller is told by its environment.
CONTROLLER, CLOUD = "TPUCTL_CONTROLLER", "TPUCTL_CONTROLLER_CLOUD"

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


class Keys:
    """The keys of one stack. Nothing is read, or made, before it is needed."""

    def __init__(self, stack: Stack) -> None:
        self._configured = stack.file.access.ssh_key
        self._controller_key_path = (
            config_home() / "controllers" / f"{stack.project}-{stack.name}.pub"
        )

    @cached_property
    def pair(self) -> KeyPair:
        """The key that the stack file names, else tpuctl's own, made when missing."""
        return (
            default_key()
            if self._configured == "auto"
            else load_key(Path(self._configured).expanduser())
        )

    @property
    def exists(self) -> bool:
        """Whether `pair` would make no key."""
        return self._configured != "auto" or (config_home() / "ssh" / "id_ed25519").exists()

    def controller_keys(self) -> list[str]:
        """With which the stack's controller logs in, as far as it is known here."""
        path = self._controller_key_path
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def save_controller_key(self, line: str) -> None:
        """Have the next `up` from here know the controller's key."""
        if self.controller_keys() != [line]:
            private_folder(self._controller_key_path.parent)
            self._controller_key_path.write_text(line + "\n", "utf-8")

    def public_lines(self) -> str:
        """The keys that machines let in, a line each."""
        return "\n".join([self.pair.public_line, *self.controller_keys()])


def known_hosts() -> Path:
    """The folder of host keys that were taken on trust."""
    return config_home() / "known_hosts"


def controller_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """The controller that this program runs on, working for its stack; None anywhere else."""
    return environment.get(CONTROLLER) or None


def job_cloud(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The cloud that jobs are in, for a program that speaks to the one of this name.

    On a controller the local cloud goes by Google's name, and answers at Google's addresses.
    """
    return environment.get(CLOUD) or name
