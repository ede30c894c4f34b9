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

from tpuctl.emulator.machines.addresses import Reservation
from tpuctl.emulator.machines.attributes import Tree, identity_of, tree_of
from tpuctl.emulator.machines.disk_space import LimitedDisk
from tpuctl.emulator.machines.fork_server import Nursery
from tpuctl.emulator.machines.images import image_interpreter
from tpuctl.emulator.machines.interface import MachineError, MachineSpec
from tpuctl.emulator.machines.metadata import MetadataServer
from tpuctl.emulator.machines.port_forward import OwnNetwork
from tpuctl.emulator.machines.process_environment import ROOT, SHELL, Folder, Surroundings, hostname
from tpuctl.emulator.machines.processes import Init, Started, View
from tpuctl.emulator.machines.serving import PROGRAM, Serving
from tpuctl.emulator.machines.session import Session
from tpuctl.emulator.machines.sftp import MachineFiles
from tpuctl.emulator.machines.ssh import Acceptor, allowed_keys, host_key
from tpuctl.emulator.machines.superuser import COVERED, install_sudo, write_sudo_settings
from tpuctl.emulator.machines.tpuctl_on_instance import interpreter_folders, write_program
from tpuctl.emulator.machines.unreachable import Silence
from tpuctl.interpreters import current

__all__ = ["STARTUP", "Machine"]

log = logging.getLogger(__name__)

STARTUP = "startup-script"
_SILENT = "silent"


class Machine:
    """Made from its spec; `start` is called once, `stop` as often as one likes."""

    def __init__(
        self,
        spec: MachineSpec,
        *,
        folder: Folder,
        reservation: Reservation,
        surroundings: Surroundings,
        image: Path,
        note: str,
        hidden: tuple[str, ...],
        private_files: tuple[str, ...],
        is_isolated: bool,
        nursery: Nursery,
        refuses_key: Callable[[], bool],
        sign: Callable[[Mapping[str, Any]], str],
        disk_limit: Callable[[], int | None],
    ) -> None:
        """`sign` makes a token of claims, and may take a moment.

        `note` says how the image is not the one asked for, and is empty where it is.
        `disk_limit` is asked when programs begin to run: how many bytes they may write.
        """
        self.spec = spec
        self._folder = folder
        self._reservation = reservation
        self._surroundings = surroundings
        self._image = image
        self.note = note
        self._hidden = hidden
        self._private_files = private_files
        self._is_isolated = is_isolated
        self._nursery = nursery
        self._refuses_key = refuses_key
        self._sign = sign
        self._disk_limit = disk_limit
        self._disk = LimitedDisk(
            folder.limit,
            [folder.homes, folder.temporary, folder.python, surroundings.downloads],
            {folder.temporary: ("/tmp", "/var/tmp")},
        )
        self._silence = Silence()
        self._began = int(time.time())
        self._init: Init | None = None
        self._starting_init = asyncio.Lock()
        self._acceptor: Acceptor | None = None
        self._serving: Serving | None = None
        self._network: OwnNetwork | None = None
        self._host_key_text = ""
        self._events: dict[str, str] = {}
        self._guest: dict[str, dict[str, str]] = {}
        self._metadata = MetadataServer(
            self._tree, lambda: self.spec.access_token, self._identify, self._keep
        )

    async def start(self) -> None:
        """Returns when it accepts connections. Raises MachineError, with nothing left running."""
        await asyncio.to_thread(self._folder.make, self._image)
        if self.spec.kind == "instance":
            write_program(self._folder.python / "bin")
        if self.spec.kind != "node":
            self._acceptor = self._make_acceptor()
            install_sudo(self._folder)
        self.reconfigure(self.spec)
        if self._folder.lost.exists():  # before the server began anew, too
            await self.fail(is_silent=self._folder.lost.read_text("utf-8") == _SILENT)
            return
        await self._metadata.open(self.spec.endpoint.address, self._reservation.metadata_port)
        try:
            if self._acceptor is None:
                await self._start_serving()
            else:
                if self._disk_limit() is not None:
                    await self._first_process()  # what comes by SFTP is limited too
                await self._acceptor.open()
                script = self.spec.attribute(STARTUP)
                if script is not None:
                    await self._run_startup_script(script)
        except BaseException:
            await self.stop(0)
            raise

    def _make_acceptor(self) -> Acceptor:
        key = host_key(self._folder.host_key)
        self._host_key_text = key.export_public_key().decode().strip()
        self._guest = {"hostkeys": dict([self._host_key_text.split()[:2]])}
        if self.spec.kind == "worker":
            # By its key the Google Cloud SDK finds the instance that IAP is to lead to (528,
            # command_lib/compute/tpus/tpu_vm/ssh.py). The namespace is a guess.
            self._guest["tpu"] = {"hostname": hostname(self.spec)}
        reachable = {endpoint.address for endpoint in self.spec.endpoints}
        return Acceptor(self.spec.endpoint, key, self._session, reachable, self._refuses_key)

    def reconfigure(self, spec: MachineSpec) -> None:
        """Take over changed metadata: keys count from the next login on."""
        self.spec = spec
        allowed = allowed_keys(spec.metadata, spec.project_metadata)
        if self._acceptor is not None:
            self._acceptor.allowed = allowed
        self._folder.write_settings(spec, allowed, self._reservation.metadata_port)
        if self._acceptor is not None:
            write_sudo_settings(self._folder, self._variables(ROOT), is_isolated=self._is_isolated)
        self._metadata.changed()

    def set_event(self, key: str, value: str) -> None:
        """Change an instance value of the metadata server."""
        self._events[key] = value
        self._metadata.changed()

    def guest_attributes(self) -> Mapping[str, Mapping[str, str]]:
        """The host key, and what programs on the machine have written."""
        return {space: dict(values) for space, values in self._guest.items()}

    async def stop(self, grace: float) -> None:
        """End its processes, asked to `grace` seconds before, then its servers; the disk stays."""
        await self._end_programs(grace)
        if self._acceptor is not None:
            await self._acceptor.close()
        await self._metadata.close()
        self._silence.close()

    async def _end_programs(self, grace: float) -> None:
        if self._serving is not None:
            await self._serving.stop()
        if self._network is not None:
            await self._network.close()
        async with self._starting_init:
            if self._init is not None:
                await self._init.halt(grace)
        self._disk.forget()

    async def fail(self, *, is_silent: bool) -> None:
        """Be gone without a word, as when the host breaks, until `stop`: nothing asks programs.

        Whoever is connected or connects then hears nothing, or is refused.
        """
        self._folder.lost.write_text(_SILENT if is_silent else "refused", "utf-8")
        endpoint = self.spec.endpoint
        if self._acceptor is not None:
            if is_silent:
                self._silence.keep(self._acceptor.connections)
            await self._acceptor.close()
        await self._end_programs(0)
        await self._metadata.close()
        if is_silent:
            port = endpoint.serving_port if self.spec.kind == "node" else endpoint.ssh_port
            self._silence.occupy(endpoint.address, port)

    async def limit_disk(self, free: int | None) -> None:
        """Let programs write so many bytes more; None for any number. MachineError if it cannot."""
        if not self._is_isolated:
            raise MachineError(
                "A disk can be limited where machines have a view of their own of the file system, "
                "which this computer does not give them."
            )
        init = await self._first_process()
        if free is not None or self._disk.root:
            await self._disk.limit(init.pid, free)

    def disk_free(self) -> int | None:
        """How many bytes can still be written; None where nothing limits them."""
        return self._disk.free()

    def _tree(self) -> Tree:
        return tree_of(self.spec, hostname(self.spec), self._events, self._guest)

    async def _identify(self, audience: str, is_full: bool) -> str:
        claims = identity_of(self.spec, hostname(self.spec), audience, self._began, is_full)
        return await asyncio.to_thread(self._sign, claims)

    def _keep(self, space: str, key: str, value: str | None) -> None:
        if value is None:
            self._guest.get(space, {}).pop(key, None)
        else:
            self._guest.setdefault(space, {})[key] = value

    async def _run_startup_script(self, text: str) -> None:
        """Start it as a machine does at boot: nobody waits for it, the console tells of it."""
        script = self._folder.settings / "startup-script"
        script.write_text(text, "utf-8")
        script.chmod(0o700)
        environment = self._variables(ROOT)
        init = await self._first_process()
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

    async def _start_serving(self) -> None:
        """Run the TensorFlow server of a node, in a network of its own."""
        if not self._is_isolated:
            raise MachineError(
                f"{self.spec.node_id} cannot run: TensorFlow's server would listen on every "
                "interface of this computer, for this computer gives machines no network of "
                "their own."
            )
        shutil.copyfile(PROGRAM, self._folder.program)
        endpoint = self.spec.endpoint
        proxy = urlsplit(self._surroundings.proxy or "")
        outside = [(endpoint.address, self._reservation.metadata_port)]
        if proxy.hostname and proxy.port:
            outside.append((proxy.hostname, proxy.port))
        self._network = OwnNetwork((endpoint.address, endpoint.serving_port), outside)
        self._serving = Serving(
            self._launch_server, self._network, self._folder.console, self._report
        )
        await self._serving.start()

    async def _launch_server(
        self, files: tuple[int, int, int]
    ) -> tuple[Started, Callable[[int], None]]:
        """Start a node's TensorFlow server, whose cluster is all workers of the node."""
        places = [f"{endpoint.address}:{endpoint.serving_port}" for endpoint in self.spec.endpoints]
        init = await self._first_process()
        started = await init.spawn(
            [
                *(str(self._folder.python / "bin" / "python3"), "-I", str(self._folder.program)),
                *(str(self.spec.worker), *places),
            ],
            # gRPC dials the other workers, and controllers, through the gateway too.
            env=self._variables(ROOT)
            | {"grpc_proxy": self._surroundings.proxy or "", "no_grpc_proxy": "none.invalid"},
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
    ) -> tuple[Started, Callable[[int], None]]:
        environment = self._variables(user)
        init = await self._first_process()
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
        variables = self._surroundings.variables(
            self.spec, self._folder, self._reservation.metadata_port, user, self.note
        )
        # Without a view of its own, this is as near as the machine comes to its own /tmp.
        return (
            variables if self._is_isolated else variables | {"TMPDIR": str(self._folder.temporary)}
        )

    async def _first_process(self) -> Init:
        """The machine's first process, begun when something is to run on it."""
        async with self._starting_init:
            if self._folder.lost.exists():
                raise MachineError("The machine is gone.")
            if self._init is None or self._init.ended.is_set():
                self._disk.forget()
                view = self._view() if self._is_isolated else None
                self._init = await Init.start(view, self._nursery)
                if self._network is not None:
                    await self._network.join(self._init)
                free = self._disk_limit()
                if free is not None and self._is_isolated:
                    await self._disk.limit(self._init.pid, free)
            return self._init

    def _view(self) -> View:
        folder, settings = self._folder, self._folder.settings
        readable = [folder.path, self._image.resolve()]
        for path in {current().path, image_interpreter(self._image).path}:
            # Not the whole prefix: of an interpreter in ~/.local that would be more than it needs.
            interpreter = Path(path).resolve()
            prefix = interpreter.parent.parent
            readable += [interpreter.parent, Path(path).parent]  # links on the way to it
            readable += [prefix / name for name in ("lib", "lib64", "include")]
        readable += [self._surroundings.certificates, self._surroundings.pip_settings]
        if self.spec.kind == "instance":
            readable += interpreter_folders()
        writable = [folder.homes, folder.temporary, folder.python, self._surroundings.downloads]
        overlaid = {f"/etc/{name}": settings / name for name in ("passwd", "hosts", "hostname")}
        if self._acceptor is not None:
            overlaid[COVERED] = self._folder.sudo
        overlaid |= dict.fromkeys(self._private_files, settings / "empty")
        return View(
            writable=tuple(map(str, writable)),
            readable=tuple(map(str, readable)),
            temporary=str(folder.temporary),
            hostname=hostname(self.spec),
            hidden=self._hidden,
            overlaid={path: str(file) for path, file in overlaid.items()},
            network=self._network.outside if self._network is not None else None,
        )
