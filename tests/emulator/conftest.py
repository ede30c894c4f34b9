"""A local cloud in the test's own event loop, and the official clients pointed at it.

Google's clients block. Tests that are plain functions run in a thread, while the cloud answers in
the event loop; only the loop's thread may access its store.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.api_core.client_options import ClientOptions
from google.oauth2.credentials import Credentials

from tests.support.locations import PROJECT
from tests.support.null_host import NullHost
from tpuctl.emulator.server import Server
from tpuctl.emulator.state import store
from tpuctl.emulator.wire.transcript import Transcript
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

store.SYNCHRONOUS = "OFF"


class Cloud:
    """A running server and clients of it, which block."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url
        self.token = server.token
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._closing: list[Callable[[], Any]] = []

    def in_loop(self, function: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
        """Call it in the event loop's thread."""
        if threading.get_ident() == self._thread:
            return function(*arguments, **fields)

        async def call() -> Any:
            return function(*arguments, **fields)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    @property
    def host(self) -> Any:
        return self.server.host

    @property
    def local_cloud(self) -> LocalCloud:
        """The cloud as `remote_control` takes it."""
        server = self.server
        return LocalCloud(
            server.url, server.token, server.port, os.getpid(), server.home, "instant"
        )

    def channel(self, token: str | None = None) -> Any:
        """A gRPC channel that carries a token (none for "")."""
        channel = grpc.insecure_channel(
            f"127.0.0.1:{self.server.port}", options=[("grpc.enable_http_proxy", 0)]
        )
        self._closing.append(channel.close)
        bearer = self.token if token is None else token
        return grpc.intercept_channel(channel, _Bearer(bearer)) if bearer else channel

    def options(self) -> dict[str, Any]:
        return {
            "credentials": Credentials(token=self.token),
            "client_options": ClientOptions(api_endpoint=self.url),
        }

    def client(self, kind: Any, transport: str = "rest") -> Any:
        """One of Google's generated clients, over REST or gRPC, which is closed at the end."""
        if transport == "grpc":
            return kind(transport=kind.get_transport_class("grpc")(channel=self.channel()))
        return self.keep(kind(transport="rest", **self.options()))

    def discovered(self, api: str, version: str) -> Any:
        """A client built from Google's discovery document of an API, as many programs do."""
        import google_auth_httplib2
        import httplib2
        from googleapiclient import discovery

        client = discovery.build(
            api,
            version,
            http=google_auth_httplib2.AuthorizedHttp(
                Credentials(token=self.token), http=httplib2.Http(proxy_info=None)
            ),
            client_options={"api_endpoint": f"{self.url}/"},
            cache_discovery=False,
            static_discovery=True,
        )
        self._closing.append(client.close)
        return client

    def tpu(self, transport: str = "grpc") -> Any:
        from google.cloud import tpu_v2

        return self.client(tpu_v2.TpuClient, transport)

    def keep(self, client: Any) -> Any:
        """Register a client whose connections are closed at the end."""
        self._closing.append(client.transport.close)
        return client

    def storage(self, project: str = PROJECT) -> Any:
        from google.cloud import storage

        client = storage.Client(
            project=project,
            credentials=Credentials(token=self.token),
            client_options={"api_endpoint": self.url},
        )
        self._closing.append(client._http.close)
        return client

    def request(self, verb: str, path: str, *, token: str | None = None, **more: Any) -> Any:
        """A plain HTTP request with the bearer token."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        headers.update(more.pop("headers", {}))
        with requests.Session() as session:
            session.trust_env = False
            return session.request(verb, self.url + path, headers=headers, timeout=60, **more)

    @property
    def project_number(self) -> str:
        return str(self.in_loop(self.server.registry.projects.require, PROJECT)["number"])

    def enable(self, *apis: str, project: str = PROJECT) -> None:
        """Enable APIs directly in the store, for tests of something else."""
        self.in_loop(self._enable, apis, project)

    def _enable(self, apis: Sequence[str], project: str) -> None:
        from tpuctl.emulator.service_usage.default_network import add_default_network

        directory = self.server.registry.projects
        record = directory.require(project)
        for api in apis:
            directory.enable(record, f"{api}.googleapis.com")
            if api == "compute":
                add_default_network(self.server.store, record)

    def put_setting(self, name: str, value: Any) -> None:
        self.in_loop(self.server.registry.settings.put, name, value)

    def add_fault(self, kind: str, **fields: Any) -> str:
        """Add a fault over the control API; returns its id."""
        return str(remote_control.add_fault(self.local_cloud, kind, **fields)["id"])

    def used(self, fault_id: str) -> int:
        """How often a fault was applied."""
        return int(remote_control.fault(self.local_cloud, fault_id)["applied"])

    def close(self) -> None:
        for close in self._closing:
            close()


class _Bearer(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_unary_unary(self, call: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or []), ("authorization", f"Bearer {self._token}")]
        return call(details._replace(metadata=metadata), request)


MakeCloud = Callable[..., Any]


@pytest.fixture
async def server_loop() -> asyncio.AbstractEventLoop:
    """The event loop that the test's servers answer in."""
    return asyncio.get_running_loop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a plain test in a thread while the event loop of its servers runs."""
    fixtures = pyfuncitem.funcargs
    if "server_loop" not in fixtures or pyfuncitem.get_closest_marker("asyncio"):
        return None
    arguments = {name: fixtures[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    fixtures["server_loop"].run_until_complete(asyncio.to_thread(pyfuncitem.obj, **arguments))
    return True


@pytest.fixture
async def make_cloud(
    tmp_path: Path, server_loop: asyncio.AbstractEventLoop
) -> AsyncIterator[MakeCloud]:
    """Start servers, each in the folder named; a folder used twice is a restart."""
    clouds: list[Cloud] = []

    async def make(folder: str = "home", *, pace: str = "instant", port: int = 0) -> Cloud:
        transcript = Transcript.from_environment()
        server = Server(tmp_path / folder, NullHost, port=port, pace=pace, transcript=transcript)
        await server.start()
        clouds.append(Cloud(server))
        return clouds[-1]

    yield make
    for cloud in clouds:
        cloud.close()
        if not cloud.host.is_closed:
            await cloud.server.close()


@pytest.fixture
async def new_cloud(make_cloud: MakeCloud) -> Cloud:
    """A fresh local cloud, whose project has no API enabled."""
    made: Cloud = await make_cloud()
    return made


@pytest.fixture
async def cloud(new_cloud: Cloud) -> Cloud:
    """A fresh local cloud with Cloud TPU, Compute Engine and IAM enabled."""
    new_cloud.enable("tpu", "compute", "iam")
    return new_cloud
