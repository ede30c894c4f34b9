"""The machines of one local cloud, all served by this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from tpuctl.catalog import runtime
from tpuctl.emulator.machines.addresses import Addresses
from tpuctl.emulator.machines.certificate_authority import Authority
from tpuctl.emulator.machines.fork_server import Nursery
from tpuctl.emulator.machines.gateway import Gateway
from tpuctl.emulator.machines.identity_tokens import IdentityKey
from tpuctl.emulator.machines.images import Choice, ImageStore
from tpuctl.emulator.machines.interface import Endpoint, MachineError, MachineSpec
from tpuctl.emulator.machines.machine import STARTUP, Machine
from tpuctl.emulator.machines.process_environment import (
    Folder,
    Surroundings,
    pip_configuration,
)
from tpuctl.emulator.machines.processes import reason_against_namespaces
from tpuctl.emulator.machines.trust import trusted_certificates
from tpuctl.emulator.state.folder_removal import remove_folder
from tpuctl.files import private_folder

__all__ = ["LocalHost"]

T = TypeVar("T")

# What may name keys and credentials outside of the user's home: folders, and a file.
PRIVATE_FOLDERS = ("TPUCTL_CONFIG_HOME", "CLOUDSDK_CONFIG")
PRIVATE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
MOST_SERVERS = 16  # of one TPU node: each takes some 400 MB of memory
SHUTDOWN_SECONDS = 3.0  # what programs have to end well when their machine is switched off
MOST_FILES = 1 << 16  # open at once: a slice of many workers has many streams


def _outermost(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Those that are inside no other."""
    unique = {*folders}
    return tuple(folder for folder in sorted(unique) if unique.isdisjoint(folder.parents))


class LocalHost:
    """Implements `tpuctl.emulator.machines.interface.Host` on this computer.

    `home` holds all that it keeps; `front` is the API server that answers for Google's hosts.
    """

    def __init__(
        self,
        home: Path,
        *,
        front: tuple[str, int],
        ssh: Literal["auto", "high"] = "auto",
        images: ImageStore | None = None,
        namespaces: bool = True,
    ) -> None:
        self._home = home.absolute()
        self.refuses_key: Callable[[str], bool] = lambda name: False
        self.disk_limit: Callable[[str], int | None] = lambda name: None
        self._front = front
        self._images = images or ImageStore()
        self._ssh = ssh
        self._namespaces = namespaces
        self._against: str | None = "not started"
        self._machines: dict[str, Machine] = {}
        self._nursery = Nursery()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._endings: defaultdict[str, int] = defaultdict(int)
        self._addresses: Addresses | None = None
        self._preparing: asyncio.Task[Surroundings] | None = None
        self._gateway: Gateway | None = None
        self._discarded = self._home / "discarded"  # disks that are being removed
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def isolation(self) -> str:
        """How machines are kept from the computer: "user namespaces", or "none: reason"."""
        return "user namespaces" if self._against is None else f"none: {self._against}"

    @property
    def image_notes(self) -> list[str]:
        """The notes about the images of running machines, each once."""
        return sorted({machine.note for machine in self._machines.values() if machine.note})

    async def start(self) -> None:
        """Get ready to reserve and boot."""
        private_folder(self._home)
        self._home.chmod(0o700)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < target:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        self._addresses = Addresses(self._home / "addresses.json", ssh=self._ssh)
        self._discarded.mkdir(exist_ok=True)
        for left in self._discarded.iterdir():
            self._remove(left)
        self._against = "switched off"
        if self._namespaces:
            self._against = await reason_against_namespaces()
        authority = await asyncio.to_thread(Authority, self._home / "authority")
        self._gateway = Gateway(authority, self._front, self._home)
        await self._gateway.open()

    def _prepared(self) -> asyncio.Task[Surroundings]:
        """Begins when a machine is to come: pip is asked, which takes half a second."""
        if self._preparing is None:
            gateway = self._started(self._gateway)
            self._preparing = asyncio.create_task(
                asyncio.to_thread(self._prepare_surroundings, gateway)
            )
        return self._preparing

    def _prepare_surroundings(self, gateway: Gateway) -> Surroundings:
        shared = self._home / "shared"
        shared.mkdir(exist_ok=True)
        certificates, pip_settings = shared / "certificates.pem", shared / "pip.conf"
        certificates.write_bytes(trusted_certificates(gateway.authority.certificate_pem))
        text, variables = pip_configuration()
        pip_settings.write_text(text, "utf-8")
        private_folder(self._images.downloads)
        return Surroundings(
            certificates=certificates,
            pip_settings=pip_settings,
            pip_variables=variables,
            downloads=self._images.downloads,
            proxy=gateway.url,
        )

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        addresses = self._started(self._addresses)
        self._prepared()
        return [reservation.endpoint for reservation in addresses.reserve(names)]

    async def boot(self, spec: MachineSpec, progress: Callable[[str], None]) -> None:
        if spec.kind == "node" and len(spec.endpoints) > MOST_SERVERS:
            raise MachineError(
                f"{spec.node_id} has {len(spec.endpoints)} hosts. Each is a TensorFlow server of "
                f"its own on this computer: the local cloud runs nodes of up to {MOST_SERVERS}."
            )
        if spec.attribute(STARTUP) is not None and self._against is not None:
            raise MachineError(
                f"{spec.node_id} has a startup-script. Machines cannot be kept from your "
                f"files on this computer ({self._against}), so startup scripts are refused."
            )
        ended_before = self._endings[spec.name]
        choice = await asyncio.to_thread(self._choose, spec)
        image = await self._images.ensure(choice.tensorflow, progress)
        async with self._turns[spec.name]:
            if self._endings[spec.name] != ended_before:
                raise MachineError(f"{spec.name} was shut down while it started.")
            if (running := self._machines.get(spec.name)) is not None:
                running.reconfigure(spec)
                return
            reservation = self._started(self._addresses).reserve([spec.name])[0]
            if reservation.endpoint != spec.endpoint:
                raise MachineError(
                    f"{spec.name} is reserved at {reservation.endpoint}, not {spec.endpoint}."
                )
            machine = Machine(
                spec,
                folder=Folder.of(self._home, spec.name),
                reservation=reservation,
                surroundings=await asyncio.shield(self._prepared()),
                image=image,
                note=choice.note,
                hidden=tuple(map(str, self._hidden())),
                private_files=tuple(map(str, self._private_files())),
                is_isolated=self._against is None,
                nursery=self._nursery,
                refuses_key=lambda: self.refuses_key(spec.name),
                disk_limit=lambda: self.disk_limit(spec.name),
                sign=self._sign,
            )
            progress("Starting the machine")
            await machine.start()
            self._machines[spec.name] = machine

    def reconfigure(self, spec: MachineSpec) -> None:
        if (machine := self._machines.get(spec.name)) is not None:
            machine.reconfigure(spec)

    def set_event(self, name: str, key: str, value: str) -> None:
        if (machine := self._machines.get(name)) is not None:
            machine.set_event(key, value)

    async def shut(self, name: str) -> None:
        async with self._ending(name):
            await self._stop(name, SHUTDOWN_SECONDS)
            Folder.of(self._home, name).lost.unlink(missing_ok=True)

    async def lose(self, name: str, *, is_silent: bool) -> None:
        async with self._turns[name]:
            await self._running(name).fail(is_silent=is_silent)

    async def limit_disk(self, name: str, free: int | None) -> None:
        async with self._turns[name]:
            await self._running(name).limit_disk(free)

    def disk_free(self, name: str) -> int | None:
        machine = self._machines.get(name)
        return None if machine is None else machine.disk_free()

    def machines(self) -> list[str]:
        return list(self._machines)

    def _running(self, name: str) -> Machine:
        machine = self._machines.get(name)
        if machine is None:
            raise MachineError(f"{name} does not run.")
        return machine

    async def discard(self, name: str) -> None:
        async with self._ending(name):
            await self._stop(name, 0)  # nothing that its programs could still save is kept
            left = self._discarded / secrets.token_hex(8)
            with contextlib.suppress(FileNotFoundError):
                Folder.of(self._home, name).path.rename(left)
                self._remove(left)
            self._started(self._addresses).release(name)

    @contextlib.asynccontextmanager
    async def _ending(self, name: str) -> AsyncIterator[None]:
        """The machine's turn; a boot that is still waiting for its image comes too late."""
        self._endings[name] += 1
        async with self._turns[name]:
            yield

    async def _leave(self, name: str) -> None:
        """End it because the server ends: one that failed has still failed afterwards."""
        async with self._ending(name):
            await self._stop(name, SHUTDOWN_SECONDS)

    async def _stop(self, name: str, grace: float) -> None:
        if (machine := self._machines.get(name)) is not None:
            await machine.stop(grace)
            del self._machines[name]  # not before: who is interrupted leaves it to `close`

    def _remove(self, folder: Path) -> None:
        """Remove a folder while nobody waits but `close`."""
        removal = asyncio.create_task(asyncio.to_thread(remove_folder, folder))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        machine = self._machines.get(name)
        return machine.guest_attributes() if machine is not None else {}

    def console(self, name: str) -> bytes:
        try:
            return Folder.of(self._home, name).console.read_bytes()
        except FileNotFoundError:
            return b""

    def count_running(self) -> int:
        return len(self._machines)

    async def close(self) -> None:
        await asyncio.gather(*(self._leave(name) for name in list(self._machines)))
        await self._nursery.close()
        if self._gateway is not None:
            await self._gateway.close()
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _sign(self, claims: Mapping[str, Any]) -> str:
        return IdentityKey(self._home).sign(claims)

    def _hidden(self) -> tuple[Path, ...]:
        """The folders that machines see empty, none of them inside another.

        Of the user's home they see nothing but what they need to run: as at Google, where it is
        not. Where the home is the root of everything, all in it that is hidden.
        """
        home = Path.home()
        is_root = home == home.parent
        home_folders = [path for path in home.glob(".*") if path.is_dir()] if is_root else [home]
        configured = (os.environ.get(name) for name in PRIVATE_FOLDERS)
        elsewhere = [Path(path).expanduser().absolute() for path in configured if path]
        return _outermost(
            [self._home, *home_folders, *(path for path in elsewhere if path != path.parent)]
        )

    def _private_files(self) -> tuple[Path, ...]:
        """The files outside of those folders that machines see empty."""
        home, credentials_file = Path.home(), os.environ.get(PRIVATE_FILE)
        is_root = home == home.parent
        files = [path for path in home.glob(".*") if path.is_file()] if is_root else []
        files += [Path(credentials_file).expanduser().absolute()] if credentials_file else []
        hidden = {*self._hidden()}
        return tuple(path for path in files if hidden.isdisjoint(path.parents))

    def _choose(self, spec: MachineSpec) -> Choice:
        """The image's TensorFlow; none for bare Python. Refuses what has no image at all."""
        offered = self._images.locks()
        tensorflow, is_known = spec.tensorflow, spec.kind == "instance"
        if spec.kind == "worker":
            tpu_runtime = runtime(spec.runtime_version)
            tensorflow = tpu_runtime.tensorflow if tpu_runtime is not None else None
            is_known = tpu_runtime is not None
        if tensorflow in offered or (tensorflow is None and is_known):
            return self._images.choose(tensorflow)
        label = "TPU node version" if spec.kind == "node" else "runtime"
        description = " ".join(
            word for word in (label, spec.runtime_version) if spec.runtime_version
        )
        available = ", ".join(f"TensorFlow {number}" for number in offered)
        raise MachineError(
            f"The local cloud has no image for {description or spec.node_id}"
            + (f" (TensorFlow {tensorflow})" if tensorflow is not None else "")
            + f": it has those with {available}"
            + ("." if spec.kind == "node" else ", and bare Python.")
        )

    @staticmethod
    def _started(value: T | None) -> T:
        if value is None:
            raise MachineError("The host of the machines is not started.")
        return value
