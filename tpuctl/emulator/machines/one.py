"""One machine: its disk, its processes and its servers, from boot to shutdown."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tpuctl.emulator.machine import MachineSpec
from tpuctl.emulator.machines.addresses import Reservation
from tpuctl.emulator.machines.attributes import Tree, tree_of
from tpuctl.emulator.machines.environment import SHELL, Folder, Surroundings, hostname
from tpuctl.emulator.machines.files import MachineFiles
from tpuctl.emulator.machines.images import base_interpreter
from tpuctl.emulator.machines.metadata import MetadataServer
from tpuctl.emulator.machines.processes import Init, Started, View
from tpuctl.emulator.machines.session import Session
from tpuctl.emulator.machines.ssh import Acceptor, allowed_keys, host_key

__all__ = ["STARTUP", "Machine"]

STARTUP = "startup-script"
ROOT = "root"  # whom startup scripts run as, in name


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
        hidden: tuple[str, ...],
        private_files: tuple[str, ...],
        is_isolated: bool,
    ) -> None:
        self.spec = spec
        self._folder = folder
        self._reservation = reservation
        self._surroundings = surroundings
        self._image = image
        self._hidden = hidden
        self._private_files = private_files
        self._is_isolated = is_isolated
        self._init: Init | None = None
        self._starting_init = asyncio.Lock()
        self._acceptor: Acceptor | None = None
        self._host_key_text = ""
        self._events: dict[str, str] = {}
        self._guest: dict[str, dict[str, str]] = {}
        self._metadata = MetadataServer(self._tree, lambda: self.spec.access_token, self._keep)

    async def start(self) -> None:
        """Returns when SSH accepts connections. Raises MachineError, with nothing left running."""
        await asyncio.to_thread(self._folder.make, self._image)
        key = host_key(self._folder.host_key)
        self._host_key_text = key.export_public_key().decode().strip()
        acceptor = Acceptor(
            self.spec.endpoint,
            key,
            self._session,
            {endpoint.address for endpoint in self.spec.endpoints},
        )
        self._acceptor = acceptor
        self._guest = {"hostkeys": dict([self._host_key_text.split()[:2]])}
        self.reconfigure(self.spec)
        await self._metadata.open(self.spec.endpoint.address, self._reservation.metadata_port)
        try:
            await acceptor.open()
            if STARTUP in self.spec.metadata:
                await self._run_startup_script(self.spec.metadata[STARTUP])
        except BaseException:
            await self.stop(0)
            raise

    def reconfigure(self, spec: MachineSpec) -> None:
        """Take over changed metadata: keys count from the next login on."""
        self.spec = spec
        if self._acceptor is not None:
            self._acceptor.allowed = allowed_keys(spec.metadata)
            self._folder.write_settings(
                spec, self._acceptor.allowed, self._reservation.metadata_port
            )
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
        async with self._starting_init:
            if self._init is not None:
                await self._init.halt(grace)
        if self._acceptor is not None:
            await self._acceptor.close()
        await self._metadata.close()

    def _tree(self) -> Tree:
        return tree_of(self.spec, hostname(self.spec), self._events, self._guest)

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

    def _session(self, user: str) -> Session:
        home = self._folder.home(user)
        temporary = self._folder.temporary if self._is_isolated else Path("/tmp")
        writable = [self._folder.homes, temporary, self._folder.python]

        def files(channel: object) -> MachineFiles:
            return MachineFiles(channel, home, temporary, writable)  # type: ignore[arg-type]

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
        found = self._surroundings.variables(
            self.spec, self._folder, self._reservation.metadata_port, user
        )
        # Without a view of its own, this is as near as the machine comes to its own /tmp.
        return found if self._is_isolated else found | {"TMPDIR": str(self._folder.temporary)}

    async def _first_process(self) -> Init:
        """The machine's first process, begun when something is to run on it."""
        async with self._starting_init:
            if self._init is None or self._init.gone.is_set():
                self._init = await Init.start(self._view() if self._is_isolated else None)
            return self._init

    def _view(self) -> View:
        folder, settings = self._folder, self._folder.settings
        interpreter = Path(base_interpreter()).resolve()
        readable = [folder.path, self._image.resolve(), interpreter.parent.parent]
        readable += [self._surroundings.certificates, self._surroundings.pip_settings]
        writable = [folder.homes, folder.temporary, folder.python, self._surroundings.downloads]
        overlaid = {f"/etc/{name}": settings / name for name in ("passwd", "hosts", "hostname")}
        overlaid |= dict.fromkeys(self._private_files, settings / "empty")
        return View(
            writable=tuple(map(str, writable)),
            readable=tuple(map(str, readable)),
            temporary=str(folder.temporary),
            hostname=hostname(self.spec),
            hidden=self._hidden,
            overlaid={path: str(file) for path, file in overlaid.items()},
        )
