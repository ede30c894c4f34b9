"""The local cloud's server: assembles its parts, listens, and shuts down cleanly."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from tpuctl.emulator.faults.method_names import MethodNames
from tpuctl.emulator.faults.scheduled_faults import ScheduledFaults
from tpuctl.emulator.iam.oauth import OAuthEndpoints
from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.machines.interface import Host, MachineSpec
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.wire.control_api import ControlApi
from tpuctl.emulator.wire.google_api import GoogleApi
from tpuctl.emulator.wire.grpc_server import RpcServer
from tpuctl.emulator.wire.http import HttpHandler
from tpuctl.emulator.wire.http_request import Request, json_response
from tpuctl.emulator.wire.iap.tunnels import METHODS as TUNNEL_METHODS
from tpuctl.emulator.wire.iap.tunnels import Tunnels
from tpuctl.emulator.wire.network_policy import NetworkPolicy
from tpuctl.emulator.wire.protocol_switch import ProtocolSwitch
from tpuctl.emulator.wire.registry import Registry
from tpuctl.emulator.wire.routes import Router
from tpuctl.emulator.wire.transcript import Transcript
from tpuctl.files import private_folder
from tpuctl.local_cloud.home_lock import lock_home
from tpuctl.local_cloud.pace import DEFAULT_PACE, Pace
from tpuctl.version import __version__


class StartableHost(Host, Protocol):
    """A Host that must be started before use."""

    async def start(self) -> None: ...


def _find_apis() -> tuple[GoogleApi, ...]:
    """The APIs of all folders that have an `api.py`."""
    folder = Path(__file__).parent
    modules = sorted(file.relative_to(folder).parent.parts for file in folder.rglob("api.py"))
    names = (".".join((__package__, *parts, "api")) for parts in modules)
    return tuple(importlib.import_module(name).API for name in names)


APIS = _find_apis()
PACES = {step: seconds for api in APIS for step, seconds in api.paces.items()}

MakeHost = Callable[[Path, tuple[str, int]], StartableHost]


class Server:
    """One local cloud. Everything it acknowledged is persisted in its folder."""

    def __init__(
        self,
        home: Path,
        make_host: MakeHost,
        *,
        port: int = 0,
        pace: str = DEFAULT_PACE,
        transcript: Transcript | None = None,
    ) -> None:
        """`port` 0 picks a free one; `make_host` gets the folder and the API server's address."""
        self.home = home
        self.port = port
        self.pace = Pace(pace, PACES)
        self.stopping = asyncio.Event()
        self._make_host = make_host
        self._transcript = transcript
        self._started = time.time()

    async def start(self) -> None:
        """Open the state, listen, and resume what an earlier process left unfinished.

        Raises HomeInUse if another server has the folder, OSError if the port is in use.
        """
        private_folder(self.home)
        self.home.chmod(0o700)
        self._lock = lock_home(self.home)
        self.token = AccessTokens.read_or_create_token(self.home / "token")
        self.store = Store(self.home / "state.sqlite")
        access = AccessTokens(self.token, self.store)
        # Listen first: machines need the address of the APIs.
        self._http: HttpHandler | None = None
        self._switch = ProtocolSwitch(
            web.Server(self._answer_http, access_log=None, auto_decompress=False),
            self._open_rpc,
        )
        try:
            self.port = await self._switch.listen(self.port)
        except OSError:
            self.store.close()
            os.close(self._lock)
            raise
        self.host = self._make_host(self.home, ("127.0.0.1", self.port))
        await self.host.start()
        self.registry = Registry(self.home, self.store, self.pace, access, self.host, APIS)
        self.registry.projects.ensure_default()
        faults = self.registry.faults
        self.host.refuses_key = lambda name: (
            faults.take("ssh-key-refused", node=name, worker=name.rpartition("/workers/")[2])
            is not None
        )
        self.host.os_login = self._admit
        scheduled = ScheduledFaults(
            *(faults, self.host, self.registry.names_with_machines, self.registry.machine_service),
            self.registry.in_background,
        )
        self.host.disk_limit = scheduled.disk_limit
        self.host.device_limit = lambda: self.registry.settings.get("devices")
        policy = NetworkPolicy(self.registry)
        policy.watch(self.host.refresh_firewall)
        self.host.enforce(policy)
        router = Router(self.registry)
        self._rpc = RpcServer(router, access, self._transcript)
        storage: Any = self.registry.service("storage")
        storage.sweep()
        others = {*TUNNEL_METHODS, *(name for api in APIS for name in api.other_methods)}
        methods = MethodNames(router, lambda: others | {*storage.names()})
        self._control = ControlApi(self.registry, self.write_address, methods.require, scheduled)
        pages = OAuthEndpoints(access, self.home)
        self._tunnels = Tunnels(self.registry, policy)
        self._http = HttpHandler(
            *(router, access, storage, self._answer_local, pages, self._tunnels),
            self._transcript,
        )
        self.registry.operations.resume()
        for service in self.registry.machine_services():
            await service.resume()
        scheduled.resume()
        self.registry.weather.resume()

    def _admit(self, machine: MachineSpec, user: str, public_key: str) -> bool | None:
        os_login: Any = self.registry.service("os_login")
        is_sudoer: bool | None = os_login.admit(machine, user, public_key)
        return is_sudoer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """Stop the machines and close the store. Pending operations resume at the next start."""
        if self._http is not None:
            self.registry.traffic.close()  # held requests would delay the shutdown
            await self._tunnels.close()
        await self._switch.close()
        if self._http is not None:
            await self._rpc.close()
            await self.registry.close()
        await self.host.close()
        self.store.close()
        os.close(self._lock)
        if self._transcript is not None:
            self._transcript.close()

    async def _open_rpc(self) -> str:
        if self._http is None:
            raise OSError("not ready")
        return await self._rpc.open()

    async def _answer_http(self, raw: web.BaseRequest) -> web.StreamResponse:
        if self._http is None:
            return web.Response(status=503)
        return await self._http(raw)

    async def _answer_local(self, request: Request) -> web.StreamResponse:
        if (request.verb, request.path) == ("GET", "/_local/status"):
            return json_response(self.report())
        if (request.verb, request.path) == ("POST", "/_local/shutdown"):
            asyncio.get_running_loop().call_later(0.05, self.stopping.set)
            return json_response({"stopping": True})
        return await self._control.handle(request)

    def report(self) -> dict[str, Any]:
        """The content of `/_local/status`."""
        assert self._http is not None
        objects = self.store.row("SELECT count(*), coalesce(sum(size), 0) FROM objects")
        assert objects is not None
        return {
            "version": __version__,
            "pid": os.getpid(),
            "home": str(self.home),
            "url": self.url,
            "pace": self.pace.name,
            "isolation": getattr(self.host, "isolation", "none: there are no machines"),
            "image_notes": getattr(self.host, "image_notes", []),
            "network": getattr(self.host, "network", "firewall rules are not enforced"),
            "refused_connections": getattr(self.host, "refused_connections", []),
            "uptime_seconds": round(time.time() - self._started, 3),
            "projects": self.store.count("project"),
            "nodes": self.store.count("tpu.node"),
            "faults": sum(not fault.is_exhausted() for fault in self.registry.faults.all()),
            "machines": self.host.count_running(),
            "buckets": self.store.count("bucket"),
            "objects": int(objects[0]),
            "object_bytes": int(objects[1]),
            "requests": self._http.requests + self._rpc.calls,
        }

    def write_address(self) -> None:
        """Record this process's address for `local_cloud.server_process`."""
        path = self.home / "server.json"
        draft = path.with_suffix(".draft")
        draft.write_text(
            json.dumps(
                {
                    "url": self.url,
                    "port": self.port,
                    "pid": os.getpid(),
                    "pace": self.pace.name,
                    "version": __version__,
                }
            ),
            "utf-8",
        )
        draft.replace(path)
