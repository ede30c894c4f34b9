"""One machine: its disk, its processes and its servers, from boot to shutdown."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncssh

from tpuctl.emulator.machines.interface import STARTUP_SCRIPT, MachineError, MachineSpec
from tpuctl.emulator.machines.isolation.disk_space import LimitedDisk
from tpuctl.emulator.machines.isolation.fork_server import ForkServer
from tpuctl.emulator.machines.network.addresses import Reservation
from tpuctl.emulator.machines.network.firewall import Firewall
from tpuctl.emulator.machines.network.port_forward import MachineNetwork
from tpuctl.emulator.machines.network.unreachable import UnreachableAddress
from tpuctl.emulator.machines.programs.process_environment import (
    ROOT,
    SHELL,
    MachineFolder,
    SharedEnvironment,
    hostname,
)
from tpuctl.emulator.machines.programs.processes import Init, RunningProcess, View
from tpuctl.emulator.machines.programs.sudo_install import (
    HOST_SUDO,
    install_sudo,
    write_sudo_settings,
)
from tpuctl.emulator.machines.programs.tpuctl_on_instance import interpreter_folders, write_program
from tpuctl.emulator.machines.servers.metadata import MetadataServer
from tpuctl.emulator.machines.servers.metadata_tree import Tree, identity_claims, metadata_tree
from tpuctl.emulator.machines.servers.session import Session
from tpuctl.emulator.machines.servers.sftp import MachineFiles
from tpuctl.emulator.machines.servers.ssh import SshServer, allowed_keys, host_key
from tpuctl.emulator.machines.servers.tensorflow_server import PROGRAM, TensorflowServer
from tpuctl.interpreters import current
from tpuctl.local_cloud.machine_images import image_interpreter

log = logging.getLogger(__name__)

_SILENT = "silent"


class Machine:
    """A machine created from its spec; `start` is called once, `stop` is idempotent."""

    def __init__(
        self,
        spec: MachineSpec,
        *,
        folder: MachineFolder,
        reservation: Reservation,
        environment: SharedEnvironment,
        image: Path,
        note: str,
        hidden: tuple[str, ...],
        private_files: tuple[str, ...],
        is_isolated: bool,
        firewall: Firewall,
        fork_server: ForkServer,
        refuses_key: Callable[[], bool],
        os_login: Callable[[MachineSpec, str, str], bool | None],
        sign: Callable[[Mapping[str, Any]], str],
        disk_limit: Callable[[], int | None],
    ) -> None:
        """`sign` signs the claims of a token; it may block.

        `note` explains how the image differs from the requested one, if it does.
        `disk_limit` returns how many bytes programs may write; it is called when they start.
        """
        self.spec = spec
        self._folder = folder
        self._reservation = reservation
        self._environment = environment
        self._image = image
        self.note = note
        self._hidden = hidden
        self._private_files = private_files
        self._is_isolated = is_isolated
        self._firewall = firewall
        self._fork_server = fork_server
        self._refuses_key = refuses_key
        self._os_login = os_login
        self._allowed_keys: dict[str, list[asyncssh.SSHKey]] = {}  # of metadata, by user
        self._sudoers: dict[str, bool] = {}  # whether they may use sudo, by users of OS Login
        self._sign = sign
        self._disk_limit = disk_limit
        self._disk = LimitedDisk(
            folder.disk_limit,
            [folder.homes, folder.temporary, folder.python, environment.downloads],
            {folder.temporary: ("/tmp", "/var/tmp")},
        )
        self._unreachable = UnreachableAddress()
        self._started_at = int(time.time())
        self._init: Init | None = None
        self._starting_init = asyncio.Lock()
        self._ssh_server: SshServer | None = None
        self._tensorflow_server: TensorflowServer | None = None
        self._network: MachineNetwork | None = None
        self._host_key_text = ""
        self._booting: asyncio.Task[None] | None = None
        self._events: dict[str, str] = {}
        self._guest: dict[str, dict[str, str]] = {}
        self._metadata = MetadataServer(
            self._tree, lambda: self.spec.access_token, self._identify, self._store_guest_attribute
        )

    async def start(self) -> None:
        """Start it; returns when it accepts connections, or earlier if it has boot seconds.

        Cleans up on MachineError.
        """
        create = functools.partial(self._folder.create, has_chips=self.spec.has_chips)
        await asyncio.to_thread(create, self._image)
        if self.spec.kind == "instance":
            write_program(self._folder.python / "bin")
        if self.spec.kind != "node":
            self._ssh_server = self._make_ssh_server()
            install_sudo(self._folder)
        self.reconfigure(self.spec)
        if self._folder.failed_marker.exists():  # it failed before the server restarted
            self._publish_host_key()
            await self.fail_host(is_silent=self._folder.failed_marker.read_text("utf-8") == _SILENT)
            return
        await self._metadata.open(self.spec.endpoint.address, self._reservation.metadata_port)
        try:
            if self._ssh_server is None:
                await self._start_tensorflow_server()
            else:
                if self._disk_limit() is not None:
                    await self._ensure_init()  # SFTP is limited too
                if self.spec.boot_seconds:
                    self._booting = asyncio.create_task(self._finish_boot(self._ssh_server))
                    self._booting.add_done_callback(self._report_failed_boot)
                else:
                    await self._finish_boot(self._ssh_server)
        except BaseException:
            await self.stop(0)
            raise

    async def _finish_boot(self, ssh_server: SshServer) -> None:
        """Accept logins and run the startup script, once the operating system is up."""
        await asyncio.sleep(self.spec.boot_seconds)
        await ssh_server.open()
        self._publish_host_key()
        self._firewall.guard(self.spec.name, ssh_server.sockets, self.spec.endpoint.ssh_port)
        script = self.spec.attribute(STARTUP_SCRIPT)
        if script is not None:
            await self._run_startup_script(script)

    def _publish_host_key(self) -> None:
        if self._host_key_text:
            self._guest["hostkeys"] = dict([self._host_key_text.split()[:2]])

    def _report_failed_boot(self, booting: asyncio.Task[None]) -> None:
        if not booting.cancelled() and (problem := booting.exception()) is not None:
            self._report(str(problem))

    async def _stop_booting(self) -> None:
        if self._booting is not None:
            self._booting.cancel()
            await asyncio.gather(self._booting, return_exceptions=True)

    def _make_ssh_server(self) -> SshServer:
        key = host_key(self._folder.host_key)
        self._host_key_text = key.export_public_key().decode().strip()
        self._guest = {}
        if self.spec.kind == "worker":
            # The Google Cloud SDK looks up the instance for IAP by this key (528,
            # command_lib/compute/tpus/tpu_vm/ssh.py). The namespace is a guess.
            self._guest["tpu"] = {"hostname": hostname(self.spec)}
        reachable = {endpoint.address for endpoint in self.spec.endpoints}
        name = self.spec.name
        return SshServer(
            *(self.spec.endpoint, key, self._session, reachable, self._admit),
            self._refuses_key,
            lambda: self._firewall.accepts(name, self.spec.endpoint.ssh_port),
            lambda host, port: self._firewall.to_address(name, host, port).is_allowed,
            self._firewall.source_address(name),
        )

    def reconfigure(self, spec: MachineSpec) -> None:
        """Apply changed metadata; new keys are valid from the next login on."""
        self.spec = spec
        self._allowed_keys = allowed_keys(spec.metadata, spec.project_metadata)
        self._write_users()
        self._metadata.notify_changed()

    def _write_users(self) -> None:
        users = self._sudoers if self.spec.uses_os_login else self._allowed_keys
        # Users who logged in before exist, but root's account is not one of theirs.
        names = dict.fromkeys([*users, *(home.name for home in self._folder.homes.iterdir())])
        names.pop(ROOT, None)
        self._folder.write_settings(self.spec, names, self._reservation.metadata_port)
        if self._ssh_server is not None:
            denied = [user for user, is_sudoer in self._sudoers.items() if not is_sudoer]
            write_sudo_settings(
                *(self._folder, self._variables(ROOT), denied), is_isolated=self._is_isolated
            )

    def _admit(self, user: str, key: asyncssh.SSHKey) -> bool:
        """Whether the user may log in with the key."""
        if not self.spec.uses_os_login:
            return key in self._allowed_keys.get(user, [])
        text = key.export_public_key().decode().strip()
        is_sudoer = self._os_login(self.spec, user, text)
        if is_sudoer is None:
            return False
        if self._sudoers.get(user) is not is_sudoer:
            self._sudoers[user] = is_sudoer
            self._write_users()
        return True

    def set_event(self, key: str, value: str) -> None:
        """Set an instance value of the metadata server."""
        self._events[key] = value
        self._metadata.notify_changed()

    def guest_attributes(self) -> Mapping[str, Mapping[str, str]]:
        """The host key, and the values that programs on the machine have written."""
        return {space: dict(values) for space, values in self._guest.items()}

    async def stop(self, grace: float) -> None:
        """Stop its processes with a grace period, then its servers; the disk stays."""
        await self._stop_booting()
        self._firewall.release(self.spec.name)
        await self._stop_programs(grace)
        if self._ssh_server is not None:
            await self._ssh_server.close()
        await self._metadata.close()
        self._unreachable.close()

    async def _stop_programs(self, grace: float) -> None:
        if self._tensorflow_server is not None:
            await self._tensorflow_server.stop()
        if self._network is not None:
            await self._network.close()
        async with self._starting_init:
            if self._init is not None:
                await self._init.stop(grace)
        self._firewall.unwatch(self.spec.name)
        self._disk.reset()

    async def fail_host(self, *, is_silent: bool) -> None:
        """Simulate a host failure until `stop`: processes are killed.

        Connections then hang if `is_silent`, or are refused.
        """
        self._folder.failed_marker.write_text(_SILENT if is_silent else "refused", "utf-8")
        endpoint = self.spec.endpoint
        await self._stop_booting()
        self._firewall.release(self.spec.name)
        if self._ssh_server is not None:
            if is_silent:
                self._unreachable.hold(self._ssh_server.connections)
            await self._ssh_server.close()
        await self._stop_programs(0)
        await self._metadata.close()
        if is_silent:
            port = endpoint.serving_port if self.spec.kind == "node" else endpoint.ssh_port
            self._unreachable.occupy(endpoint.address, port)

    async def limit_disk(self, free: int | None) -> None:
        """Limit programs to `free` more bytes; None lifts the limit. MachineError on failure."""
        if not self._is_isolated:
            raise MachineError(
                "Disks can be limited only where machines are isolated; user namespaces are not "
                "available on this computer."
            )
        init = await self._ensure_init()
        if free is not None or self._disk.root:
            await self._disk.limit(init.pid, free)

    def disk_free(self) -> int | None:
        """How many bytes can still be written; None if unlimited."""
        return self._disk.free()

    def _tree(self) -> Tree:
        return metadata_tree(self.spec, hostname(self.spec), self._events, self._guest)

    async def _identify(self, audience: str, is_full: bool) -> str:
        claims = identity_claims(
            self.spec, hostname(self.spec), audience, self._started_at, is_full
        )
        return await asyncio.to_thread(self._sign, claims)

    def _store_guest_attribute(self, space: str, key: str, value: str | None) -> None:
        if value is None:
            self._guest.get(space, {}).pop(key, None)
        else:
            self._guest.setdefault(space, {})[key] = value

    async def _run_startup_script(self, text: str) -> None:
        """Start it in the background, as at boot; its output goes to the console."""
        script = self._folder.settings / "startup-script"
        script.write_text(text, "utf-8")
        script.chmod(0o700)
        environment = self._variables(ROOT)
        init = await self._ensure_init()
        null = os.open(os.devnull, os.O_RDONLY)
        console = os.open(self._folder.console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            await init.spawn(
                [str(script)] if text.startswith("#!") else [SHELL, str(script)],
                env=environment,
                cwd="/",
                files=(null, console, console),
            )
        finally:
            os.close(null)
            os.close(console)

    async def _start_tensorflow_server(self) -> None:
        """Run the TensorFlow server of a node, in its own network namespace."""
        if not self._is_isolated:
            raise MachineError(
                f"{self.spec.node_id} cannot run: without network namespaces, TensorFlow's server "
                "would listen on every interface of this computer."
            )
        shutil.copyfile(PROGRAM, self._folder.program)
        endpoint = self.spec.endpoint
        proxy = urlsplit(self._environment.proxy(self.spec.name))
        outside = [(endpoint.address, self._reservation.metadata_port)]
        if proxy.hostname and proxy.port:
            outside.append((proxy.hostname, proxy.port))
        self._network = MachineNetwork(
            (endpoint.address, endpoint.serving_port),
            outside,
            lambda sockets: self._firewall.guard(self.spec.name, sockets, endpoint.serving_port),
        )
        self._tensorflow_server = TensorflowServer(
            self._launch_tensorflow_server, self._network, self._folder.console, self._report
        )
        await self._tensorflow_server.start()

    async def _launch_tensorflow_server(
        self, files: tuple[int, int, int]
    ) -> tuple[RunningProcess, Callable[[int], None]]:
        """Start a node's TensorFlow server, in a cluster of all workers of the node."""
        addresses = [
            f"{endpoint.address}:{endpoint.serving_port}" for endpoint in self.spec.endpoints
        ]
        init = await self._ensure_init()
        started = await init.spawn(
            [
                *(str(self._folder.python / "bin" / "python3"), "-I", str(self._folder.program)),
                *(str(self.spec.worker), *addresses),
            ],
            # gRPC connects to the other workers, and to controllers, through the gateway too.
            env=self._variables(ROOT)
            | {
                "grpc_proxy": self._environment.proxy(self.spec.name),
                "no_grpc_proxy": "none.invalid",
            },
            cwd="/",
            files=files,
        )
        return started, functools.partial(init.signal, started)

    def _report(self, text: str) -> None:
        log.warning("%s: %s", self.spec.name, text)

    def _session(self, user: str) -> Session:
        home = self._folder.home(user)
        temporary = self._folder.temporary if self._is_isolated else Path("/tmp")
        writable = [self._folder.homes, temporary, self._folder.python]

        def files(channel: object) -> MachineFiles:
            return MachineFiles(channel, home, temporary, writable, self._disk)  # type: ignore[arg-type]

        return Session(functools.partial(self._run, user), files)

    async def _run(
        self,
        user: str,
        command: str | None,
        *,
        extra: Mapping[str, str],
        files: tuple[int, int, int] | None,
        terminal: tuple[int, int] | None,
    ) -> tuple[RunningProcess, Callable[[int], None]]:
        environment = self._variables(user)
        init = await self._ensure_init()
        started = await init.spawn(
            [SHELL] if command is None else [SHELL, "-c", command],
            env=environment | dict(extra),
            cwd=environment["HOME"],
            files=files,
            terminal=terminal,
            name="-" + Path(SHELL).name if command is None else None,
        )
        return started, functools.partial(init.signal, started)

    def _variables(self, user: str) -> dict[str, str]:
        variables = self._environment.variables(
            self.spec, self._folder, self._reservation.metadata_port, user, self.note
        )
        # Without isolation /tmp is shared with the computer.
        return (
            variables if self._is_isolated else variables | {"TMPDIR": str(self._folder.temporary)}
        )

    async def _ensure_init(self) -> Init:
        """The machine's init process, started on first use."""
        async with self._starting_init:
            if self._folder.failed_marker.exists():
                raise MachineError("The machine's host has failed.")
            if self._init is None or self._init.ended.is_set():
                self._disk.reset()
                view = self._view() if self._is_isolated else None
                self._init = await Init.start(view, self._fork_server)
                if self._network is not None:
                    await self._network.join(self._init)
                elif (notifications := self._init.take_notifications()) is not None:
                    self._firewall.watch(self.spec.name, notifications)
                free = self._disk_limit()
                if free is not None and self._is_isolated:
                    await self._disk.limit(self._init.pid, free)
            return self._init

    def _view(self) -> View:
        folder, settings = self._folder, self._folder.settings
        readable = [folder.path, self._image.resolve()]
        for path in {current().path, image_interpreter(self._image).path}:
            # Not the whole prefix, which may be ~/.local.
            interpreter = Path(path).resolve()
            prefix = interpreter.parent.parent
            readable += [interpreter.parent, Path(path).parent]  # links on the way to it
            readable += [prefix / name for name in ("lib", "lib64", "include")]
        readable += [self._environment.certificates, self._environment.certificate_folder]
        readable.append(self._environment.pip_settings)
        if self.spec.kind == "instance":
            readable += interpreter_folders()
        writable = [folder.homes, folder.temporary, folder.python, self._environment.downloads]
        overlaid = {f"/etc/{name}": settings / name for name in ("passwd", "hosts", "hostname")}
        if self._ssh_server is not None:
            overlaid[HOST_SUDO] = self._folder.sudo
        overlaid |= dict.fromkeys(self._private_files, settings / "empty")
        return View(
            writable=tuple(map(str, writable)),
            readable=tuple(map(str, readable)),
            temporary=str(folder.temporary),
            hostname=hostname(self.spec),
            hidden=self._hidden,
            overlaid={path: str(file) for path, file in overlaid.items()},
            network=self._network.outside if self._network is not None else None,
            is_watched=self._network is None and self._firewall.watches_programs,
        )
