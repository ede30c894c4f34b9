"""The context passed to flows: a stack, its cloud, and all other external dependencies."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpuctl.catalog import Runtime
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.files import private_folder
from tpuctl.model.events import Emit, ignore
from tpuctl.model.stack.stack import Stack
from tpuctl.polling import Clock
from tpuctl.remote.keys import KeyPair, config_home, default_key, load_key

if TYPE_CHECKING:
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.model.troubleshooting.command_record import RecordCall
    from tpuctl.remote.ssh import SshPool

# Environment variables set for tpuctl on a controller.
CONTROLLER, CLOUD = "TPUCTL_CONTROLLER", "TPUCTL_CONTROLLER_CLOUD"
CONTROLLER_ZONE = "TPUCTL_CONTROLLER_ZONE"

PrepareImage = Callable[[Runtime, Emit], Awaitable[None]]


async def _needs_no_image(runtime: Runtime, emit: Emit) -> None:
    """Google provides the images."""


class OpenStack(Protocol):
    """A stack as a command was given it: its file may be missing or invalid, and its cloud absent.
    Properties raise what is wrong."""

    @property
    def stack_file(self) -> Path: ...
    @property
    def bare(self) -> tuple[str, str] | None:
        """Name and project without a file, either may be empty."""

    @property
    def stack(self) -> Stack: ...
    @property
    def project(self) -> str: ...
    @property
    def cloud_name(self) -> str: ...
    @property
    def endpoint(self) -> Endpoint:
        """Starts the local cloud if it is not running."""

    @property
    def cloud(self) -> Cloud: ...
    @property
    def keys(self) -> Keys: ...
    @property
    def record_call(self) -> RecordCall | None: ...
    @property
    def context(self) -> Context: ...


@dataclass(frozen=True)
class Context:
    """Created by the API, passed from flow to helper, immutable.

    Creating one sends no request and reads no key.
    """

    stack: Stack
    cloud: Cloud
    keys: Keys
    emit: Emit = ignore
    has_file: bool = True  # otherwise only a name and a project, which must exist
    controller: str | None = None  # the stack's controller, if this program runs on it
    jobs_cloud: str = "google"  # name of the cloud that is passed to jobs
    prepare_image: PrepareImage = _needs_no_image  # builds the image of a runtime
    may_download: Callable[[str], bool] = lambda question: False  # what is large
    ssh_pool: SshPool | None = None  # keeps connections open from one step to the next

    @property
    def store(self) -> ObjectStore:
        """The objects of the stack's bucket."""
        return self.cloud.objects(self.stack.bucket)

    @property
    def clock(self) -> Clock:
        return self.cloud.clock

    @property
    def changes_only_tpu(self) -> bool:
        """Whether nothing but the TPU may be created, as on the stack's controller, or is to be, as
        of a TPU beside the stack's own."""
        return self.controller is not None or self.stack.names.number > 1


class Keys:
    """The SSH keys of one stack, read or created on first use."""

    def __init__(self, stack: Stack) -> None:
        self._configured = stack.file.access.ssh_key
        self._controller_key_path = (
            config_home() / "controllers" / f"{stack.project}-{stack.name}.pub"
        )

    @cached_property
    def pair(self) -> KeyPair:
        """The key named in the stack file, otherwise tpuctl's own, created if missing."""
        return default_key() if self._configured == "auto" else load_key(Path(self._configured))

    @property
    def exists(self) -> bool:
        """Whether `pair` exists; otherwise reading it creates a key."""
        return self._configured != "auto" or (config_home() / "ssh" / "id_ed25519").exists()

    def controller_keys(self) -> list[str]:
        """The public keys of the stack's controller, if known on this machine."""
        path = self._controller_key_path
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def save_controller_key(self, line: str) -> None:
        """Save the controller's key for the next `up` from this machine."""
        if self.controller_keys() != [line]:
            private_folder(self._controller_key_path.parent)
            self._controller_key_path.write_text(line + "\n", "utf-8")

    def public_lines(self) -> str:
        """The authorized public keys, one per line."""
        return "\n".join([self.pair.public_line, *self.controller_keys()])


def known_hosts() -> Path:
    """The folder of host keys that were trusted on first use."""
    return config_home() / "known_hosts"


def controller_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """The controller that this program runs on; None on other machines."""
    return environment.get(CONTROLLER) or None


def controller_zone(environment: Mapping[str, str] = os.environ) -> str:
    """The zone of the controller that this program runs on; empty on other machines."""
    return environment.get(CONTROLLER_ZONE, "")


def job_cloud(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The name of the cloud that jobs run in, for a program that uses the cloud `name`.

    On a controller the local cloud is named google and is reached at Google's addresses.
    """
    return environment.get(CLOUD) or name
