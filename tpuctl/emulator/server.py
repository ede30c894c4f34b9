"""The local cloud's server: puts the parts together, opens the door, closes it cleanly."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from tpuctl import __version__
from tpuctl.emulator.access import Access
from tpuctl.emulator.front import Front
from tpuctl.emulator.http import HttpHandler, Request, json_response
from tpuctl.emulator.machine import Host
from tpuctl.emulator.pace import DEFAULT_PACE, Pace
from tpuctl.emulator.routes import Router
from tpuctl.emulator.rpc import RpcServer
from tpuctl.emulator.services.storage import StorageService
from tpuctl.emulator.status import ApiError
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World

__all__ = ["MakeHost", "Server", "StartableHost"]


class StartableHost(Host, Protocol):
    """A Host with a beginning: opens what its machines share."""

    async def start(self) -> None: ...


MakeHost = Callable[[Path, tuple[str, int]], StartableHost]


class Server:
    """One local cloud. Everything it acknowledged is in its folder and outlives it."""

    def __init__(
        self, home: Path, make_host: MakeHost, *, port: int = 0, pace: str = DEFAULT_PACE
    ) -> None:
        """`port` 0 picks one; `make_host` is called with the folder and the front's address."""
        self.home = home
        self.port = port
        self.pace = Pace(pace)
        self.stopping = asyncio.Event()
        self._make_host = make_host
        self._started = time.time()

    async def start(self) -> None:
        """Open the state, listen, and take up what an earlier process left unfinished."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home.chmod(0o700)
        self.token = Access.read_or_make_token(self.home / "token")
        self.store = Store(self.home / "state.sqlite")
        access = Access(self.token, self.store)
        # The port first: machines are told where the APIs are.
        self._http: HttpHandler | None = None
        self._front = Front(web.Server(self._answer_http, access_log=None), self._open_rpc)
        try:
            self.port = await self._front.listen(self.port)
        except OSError:
            self.store.close()
            raise
        self.host = self._make_host(self.home, ("127.0.0.1", self.port))
        await self.host.start()
        self.world = World(self.home, self.store, self.pace, access, self.host)
        self.world.projects.ensure_default()
        router = Router(self.world)
        self._rpc = RpcServer(router, access)
        storage = StorageService(self.world)
        storage.sweep()
        self._http = HttpHandler(router, access, storage.handle, self._answer_local)
        self.world.operations.resume()
        if self.store.count("tpu.node"):
            await self.world.service("tpu").resume()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """Shut the machines and the store. Pending operations stay, for the next start."""
        await self._front.close()
        if self._http is not None:
            await self._rpc.close()
            await self.world.close()
        await self.host.close()
        self.store.close()

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
        raise ApiError("NOT_FOUND", f"{request.verb} {request.path} is not there.")

    def report(self) -> dict[str, Any]:
        """What `/_local/status` tells."""
        assert self._http is not None
        objects = self.store.row("SELECT count(*), coalesce(sum(size), 0) FROM objects")
        assert objects is not None
        return {
            "version": __version__,
            "pid": os.getpid(),
            "home": str(self.home),
            "url": self.url,
            "pace": self.pace.name,
            "uptime_seconds": round(time.time() - self._started, 3),
            "projects": self.store.count("project"),
            "nodes": self.store.count("tpu.node"),
            "machines": self.host.count_running(),
            "buckets": self.store.count("bucket"),
            "objects": int(objects[0]),
            "object_bytes": int(objects[1]),
            "requests": self._http.requests + self._rpc.calls,
        }

    def write_address(self) -> None:
        """Leave word for `control` where this process answers."""
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
