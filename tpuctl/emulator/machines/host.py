"""The machines of one local cloud, all served by this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tpuctl.catalog import runtime, unlisted_runtime
from tpuctl.emulator.machines.interface import (
    STARTUP_SCRIPT,
    ConnectionPolicy,
    Endpoint,
    MachineError,
    MachineSpec,
)
from tpuctl.emulator.machines.isolation.fork_server import ForkServer
from tpuctl.emulator.machines.network.addresses import Addresses
from tpuctl.emulator.machines.network.firewall import Firewall
from tpuctl.emulator.machines.network.gateway import Gateway
from tpuctl.emulator.machines.programs.process_environment import (
    MachineFolder,
    SharedEnvironment,
)
from tpuctl.emulator.machines.programs.processes import Problems, find_problems
from tpuctl.files import private_folder
from tpuctl.local_cloud.folder_removal import remove_folder
from tpuctl.local_cloud.machine_images import ImageChoice, ImageStore
from tpuctl.local_cloud.pip_configuration import pip_configuration, uv_variables
from tpuctl.local_cloud.trust import trusted_certificates

# SSH and TLS take a third of a second to import, and 30 MB: a local cloud starts without them.
if TYPE_CHECKING:
    from tpuctl.emulator.machines.machine import Machine
    from tpuctl.emulator.machines.network.certificate_authority import Authority

T = TypeVar("T")

# Variables that may name keys and credentials outside the user's home: folders, and a file.
PRIVATE_FOLDERS = ("TPUCTL_CONFIG_HOME", "CLOUDSDK_CONFIG")
PRIVATE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_MACHINE = "tpuctl.emulator.machines.machine"
MAX_SERVERS = 16  # per TPU node: each uses some 400 MB of memory
SHUTDOWN_SECONDS = 3.0  # minimum between SIGTERM and SIGKILL on a machine that is shut down
SIGNAL_DELAY = 0.03  # part of a preemption notice until programs receive SIGTERM; a guess
MAX_OPEN_FILES = 1 << 16  # a slice of many workers has many streams


def _outermost(folders: Iterable[Path]) -> tuple[Path, ...]:
    """The folders that are not inside another one."""
    unique = {*folders}
    return tuple(folder for folder in sorted(unique) if unique.isdisjoint(folder.parents))


class LocalHost:
    """Implements `tpuctl.emulator.machines.interface.Host` on this computer.

    `home` is its state folder; `api_address` is the API server that answers for Google's hosts.
    """

    def __init__(
        self,
        home: Path,
        *,
        api_address: tuple[str, int],
        ssh: Literal["auto", "high"] = "auto",
        images: ImageStore | None = None,
        namespaces: bool = True,
    ) -> None:
        self._home = home.absolute()
        self.refuses_key: Callable[[str], bool] = lambda name: False
        self.os_login: Callable[[MachineSpec, str, str], bool | None] = lambda spec, user, key: None
        self.disk_limit: Callable[[str], int | None] = lambda name: None
        self.device_limit: Callable[[], int] = lambda: 0
        self._api_address = api_address
        self._images = images or ImageStore()
        self._ssh = ssh
        self._namespaces = namespaces
        self._problems = Problems("not started", "not started")
        self._firewall: Firewall | None = None
        self._policy: ConnectionPolicy | None = None
        self._machines: dict[str, Machine] = {}
        self._uses: dict[str, contextlib.ExitStack] = {}  # of the machines' images
        self._fork_server = ForkServer()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._shutdown_counts: defaultdict[str, int] = defaultdict(int)
        self._addresses: Addresses | None = None
        self._environment: asyncio.Task[SharedEnvironment] | None = None
        self._gateway: Gateway | None = None
        self._discarded = self._home / "discarded"  # disks that are being removed
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def isolation(self) -> str:
        """How machines are isolated from the computer: "user namespaces", or "none: reason"."""
        return (
            "user namespaces"
            if self._problems.namespaces is None
            else f"none: {self._problems.namespaces}"
        )

    @property
    def network(self) -> str:
        """Whether firewall rules are enforced: "enforced", or "…: reason"."""
        if self._problems.watch is None:
            return "enforced"
        return (
            "firewall rules are not enforced between machines here, only for SSH and for what "
            f"uses the proxy: {self._problems.watch}"
        )

    @property
    def refused_connections(self) -> list[str]:
        """What firewall rules have refused, with the reasons."""
        return [] if self._firewall is None else self._firewall.report()

    @property
    def image_notes(self) -> list[str]:
        """The distinct notes about the images of running machines."""
        return sorted({machine.note for machine in self._machines.values() if machine.note})

    async def start(self) -> None:
        """Prepare to reserve addresses and boot machines."""
        private_folder(self._home)
        self._home.chmod(0o700)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < target:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        self._addresses = Addresses(self._home / "addresses.json", ssh=self._ssh)
        self._discarded.mkdir(exist_ok=True)
        for leftover in self._discarded.iterdir():
            self._remove(leftover)
        self._problems = Problems("switched off", "namespaces are switched off")
        if self._namespaces:
            self._problems = await find_problems()
        if self._problems.watch is None and self._addresses.network is None:
            shared = "this computer has no loopback addresses for them"
            self._problems = Problems(self._problems.namespaces, shared)
        self._firewall = Firewall(self._addresses, watches=self._problems.watch is None)
        self._firewall.policy = self._policy
        self._gateway = Gateway(self._make_authority, self._api_address, self._home, self._firewall)
        await self._gateway.open()

    def enforce(self, policy: ConnectionPolicy) -> None:
        self._policy = policy
        if self._firewall is not None:
            self._firewall.policy = policy
            self._firewall.refresh()

    def refresh_firewall(self) -> None:
        if self._firewall is not None:
            self._firewall.refresh()

    async def connect_relay(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        addresses = self._require_started(self._addresses)
        endpoint, relay = addresses.find(name).endpoint, addresses.relay
        return await asyncio.open_connection(
            *(endpoint.address, endpoint.ssh_port),
            local_addr=None if relay is None else (relay, 0),
        )

    def _prepare_environment(self) -> asyncio.Task[SharedEnvironment]:
        """The shared environment, built lazily: reading pip's configuration takes half a second."""
        if self._environment is None:
            gateway = self._require_started(self._gateway)
            self._environment = asyncio.create_task(self._build_environment(gateway))
        return self._environment

    async def _build_environment(self, gateway: Gateway) -> SharedEnvironment:
        authority = await gateway.authority()
        return await asyncio.to_thread(self._write_environment, gateway, authority)

    def _write_environment(self, gateway: Gateway, authority: Authority) -> SharedEnvironment:
        import_module(_MACHINE)  # while this computer's settings are read, not when machines boot
        shared = self._home / "shared"
        shared.mkdir(exist_ok=True)
        certificates, pip_settings = shared / "certificates.pem", shared / "pip.conf"
        certificates.write_bytes(trusted_certificates(authority.certificate_pem))
        authority.write_folder(shared / "certificates")
        text, variables = pip_configuration()
        pip_settings.write_text(text, "utf-8")
        private_folder(self._images.downloads)
        return SharedEnvironment(
            certificates=certificates,
            certificate_folder=shared / "certificates",
            pip_settings=pip_settings,
            index_variables=variables | uv_variables(),
            downloads=self._images.downloads,
            proxy=gateway.machine_url,
            device_limit=lambda: self.device_limit(),  # noqa: PLW0108 - set by the owner
        )

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        addresses = self._require_started(self._addresses)
        self._prepare_environment()
        return [reservation.endpoint for reservation in addresses.reserve(names)]

    async def boot(self, spec: MachineSpec, progress: Callable[[str], None]) -> None:
        if spec.kind == "node" and len(spec.endpoints) > MAX_SERVERS:
            raise MachineError(
                f"{spec.node_id} has {len(spec.endpoints)} hosts, each a TensorFlow server on this "
                f"computer. The local cloud runs nodes of up to {MAX_SERVERS} hosts."
            )
        isolation_problem = self._problems.namespaces
        if spec.attribute(STARTUP_SCRIPT) is not None and isolation_problem is not None:
            raise MachineError(
                f"{spec.node_id} has a startup-script. Machines cannot be isolated from your files "
                f"on this computer ({isolation_problem}), so startup scripts are not allowed."
            )
        shutdowns_before = self._shutdown_counts[spec.name]
        choice = await asyncio.to_thread(self._choose, spec)
        with contextlib.ExitStack() as using:
            use = self._images.use
            versions = (choice.tensorflow, choice.python)
            await asyncio.to_thread(lambda: using.enter_context(use(*versions)))
            image = await self._images.ensure(choice.tensorflow, progress, python=choice.python)
            async with self._locks[spec.name]:
                if self._shutdown_counts[spec.name] != shutdowns_before:
                    raise MachineError(f"{spec.name} was shut down while it started.")
                if (running := self._machines.get(spec.name)) is not None:
                    running.reconfigure(spec)
                    return
                reservation = self._require_started(self._addresses).reserve([spec.name])[0]
                if reservation.endpoint != spec.endpoint:
                    raise MachineError(
                        f"{spec.name} is reserved at {reservation.endpoint}, not {spec.endpoint}."
                    )
                environment = await asyncio.shield(self._prepare_environment())
                from tpuctl.emulator.machines.machine import Machine

                machine = Machine(
                    spec,
                    folder=MachineFolder.of(self._home, spec.name),
                    reservation=reservation,
                    environment=environment,
                    image=image,
                    note=choice.note,
                    hidden=tuple(map(str, self._hidden())),
                    private_files=tuple(map(str, self._private_files())),
                    is_isolated=self._problems.namespaces is None,
                    firewall=self._require_started(self._firewall),
                    fork_server=self._fork_server,
                    refuses_key=lambda: self.refuses_key(spec.name),
                    os_login=self.os_login,
                    disk_limit=lambda: self.disk_limit(spec.name),
                    sign=self._sign,
                )
                progress("Starting the machine")
                await machine.start()
                self._machines[spec.name] = machine
                self._uses[spec.name] = using.pop_all()

    def _sign(self, claims: Mapping[str, Any]) -> str:
        from tpuctl.emulator.machines.servers.identity_tokens import IdentityKey

        return IdentityKey(self._home).sign(claims)

    def _make_authority(self) -> Authority:
        from tpuctl.emulator.machines.network.certificate_authority import Authority

        return Authority(self._home)

    def reconfigure(self, spec: MachineSpec) -> None:
        if (machine := self._machines.get(spec.name)) is not None:
            machine.reconfigure(spec)

    def set_event(self, name: str, key: str, value: str) -> None:
        if (machine := self._machines.get(name)) is not None:
            machine.set_event(key, value)

    async def preempt(self, name: str, notice: float) -> None:
        self.set_event(name, "preempted", "TRUE")
        await asyncio.sleep(notice * SIGNAL_DELAY)
        await self.shut_down(name, notice)

    async def shut_down(self, name: str, grace: float = 0.0) -> None:
        async with self._shutting_down(name):
            await self._stop(name, max(grace, SHUTDOWN_SECONDS))
            MachineFolder.of(self._home, name).failed_marker.unlink(missing_ok=True)

    async def fail_host(self, name: str, *, is_silent: bool) -> None:
        async with self._locks[name]:
            await self._running(name).fail_host(is_silent=is_silent)

    async def limit_disk(self, name: str, free: int | None) -> None:
        async with self._locks[name]:
            await self._running(name).limit_disk(free)

    def disk_free(self, name: str) -> int | None:
        machine = self._machines.get(name)
        return None if machine is None else machine.disk_free()

    def machines(self) -> list[str]:
        return list(self._machines)

    def _running(self, name: str) -> Machine:
        machine = self._machines.get(name)
        if machine is None:
            raise MachineError(f"{name} is not running.")
        return machine

    async def discard(self, name: str) -> None:
        async with self._shutting_down(name):
            await self._stop(name, 0)  # no grace period: its disk is deleted anyway
            leftover = self._discarded / secrets.token_hex(8)
            with contextlib.suppress(FileNotFoundError):
                MachineFolder.of(self._home, name).path.rename(leftover)
                self._remove(leftover)
            self._require_started(self._addresses).release(name)

    @contextlib.asynccontextmanager
    async def _shutting_down(self, name: str) -> AsyncIterator[None]:
        """Hold the machine's lock, and cancel a boot that still waits for its image."""
        self._shutdown_counts[name] += 1
        async with self._locks[name]:
            yield

    async def _stop_for_exit(self, name: str) -> None:
        """Stop it because the server stops; a failed host stays failed."""
        async with self._shutting_down(name):
            await self._stop(name, SHUTDOWN_SECONDS)

    async def _stop(self, name: str, grace: float) -> None:
        if (machine := self._machines.get(name)) is not None:
            await machine.stop(grace)
            del self._machines[name]  # only now: if interrupted, `close` stops it
            self._uses.pop(name).close()

    def _remove(self, folder: Path) -> None:
        """Remove a folder in the background; `close` waits for it."""
        removal = asyncio.create_task(asyncio.to_thread(remove_folder, folder))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        machine = self._machines.get(name)
        return machine.guest_attributes() if machine is not None else {}

    def console(self, name: str) -> bytes:
        try:
            return MachineFolder.of(self._home, name).console.read_bytes()
        except FileNotFoundError:
            return b""

    def count_running(self) -> int:
        return len(self._machines)

    async def close(self) -> None:
        await asyncio.gather(*(self._stop_for_exit(name) for name in list(self._machines)))
        await self._fork_server.close()
        if self._gateway is not None:
            await self._gateway.close()
        if self._environment is not None:
            await asyncio.wait([self._environment])
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _hidden(self) -> tuple[Path, ...]:
        """The folders that are empty for machines; none is inside another.

        The user's home is hidden except for what machines need to run. Where the home is the root
        folder, its hidden folders are.
        """
        home = Path.home()
        is_root = home == home.parent
        home_folders = [path for path in home.glob(".*") if path.is_dir()] if is_root else [home]
        configured = (os.environ.get(name) for name in PRIVATE_FOLDERS)
        extra_folders = [Path(path).expanduser().absolute() for path in configured if path]
        return _outermost(
            [self._home, *home_folders, *(path for path in extra_folders if path != path.parent)]
        )

    def _private_files(self) -> tuple[Path, ...]:
        """The files outside those folders that are empty for machines."""
        home, credentials_file = Path.home(), os.environ.get(PRIVATE_FILE)
        is_root = home == home.parent
        files = [path for path in home.glob(".*") if path.is_file()] if is_root else []
        files += [Path(credentials_file).expanduser().absolute()] if credentials_file else []
        hidden = {*self._hidden()}
        return tuple(path for path in files if hidden.isdisjoint(path.parents))

    def _choose(self, spec: MachineSpec) -> ImageChoice:
        """The image's TensorFlow and Python. MachineError if there is no image."""
        locks = self._images.locks()
        tensorflow, python, is_known = spec.tensorflow, spec.python, spec.kind == "instance"
        if spec.kind == "worker":
            version = spec.runtime_version
            tpu_runtime = runtime(version) or unlisted_runtime(version)
            is_known = tpu_runtime is not None
            if tpu_runtime is not None:
                tensorflow, python = tpu_runtime.tensorflow, tpu_runtime.python
            if is_known and tensorflow not in (None, *locks):
                nearest = self._images.nearest(str(tensorflow)) or [*locks][-1]
                choice = self._images.choose(nearest, python)
                note = f"TensorFlow {nearest} instead of {tensorflow}: no image has that."
                return replace(choice, note=f"{note} {choice.note}".rstrip())
            if is_known and runtime(version) is None and tensorflow is None:
                choice = self._images.choose(None, python)
                note = f"Plain Python: the runtime {version} is not known here."
                return replace(choice, note=f"{note} {choice.note}".rstrip())
        if tensorflow in locks or (tensorflow is None and is_known):
            return self._images.choose(tensorflow, python)
        label = "TPU node version" if spec.kind == "node" else "runtime"
        description = " ".join(
            word for word in (label, spec.runtime_version) if spec.runtime_version
        )
        available = ", ".join(f"TensorFlow {number}" for number in locks)
        raise MachineError(
            f"No image for {description or spec.node_id}"
            + (f" (TensorFlow {tensorflow})" if tensorflow is not None else "")
            + f". The local cloud has images with {available}"
            + ("." if spec.kind == "node" else ", and plain Python.")
        )

    @staticmethod
    def _require_started(value: T | None) -> T:
        if value is None:
            raise MachineError("The machine host is not started.")
        return value
