"""Real machines on loopback, with plain Python images from the user's cache."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import asyncssh
import pytest
from aiohttp import web

from tests.support.machine_specs import worker_spec
from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.machines.interface import MachineSpec
from tpuctl.local_cloud.machine_images import ImageStore

NODE = "projects/lab/locations/europe-west4-a/nodes/bert"
BASE = "tpu-ubuntu2204-base"


@dataclass
class Lab:
    """A local cloud's machines, and a user who can log in to them."""

    host: LocalHost
    key: asyncssh.SSHKey
    home: Path
    specs: list[MachineSpec]

    @property
    def key_line(self) -> str:
        return f"anna:{self.key.export_public_key().decode().strip()}"

    @property
    def name(self) -> str:
        return self.specs[0].name

    async def boot(self, *, workers: int = 1, runtime: str = BASE, **metadata: str) -> MachineSpec:
        """Boot a node's workers; returns the first one's spec."""
        names = [f"{NODE}/workers/{worker}" for worker in range(workers)]
        endpoints = tuple(await self.host.reserve(names))
        entries = {key.replace("_", "-"): value for key, value in metadata.items()}
        self.specs = [
            worker_spec(
                *endpoints,
                worker=worker,
                accelerator_type="v3-8" if workers == 1 else "v3-32",
                runtime_version=runtime,
                metadata={"ssh-keys": self.key_line} | entries,
            )
            for worker in range(workers)
        ]
        for spec in self.specs:
            await self.host.boot(spec, lambda _: None)
        return self.specs[0]

    def change(self, **metadata: str) -> None:
        entries = {key.replace("_", "-"): value for key, value in metadata.items()}
        old = self.specs[0]
        self.specs[0] = replace(old, metadata=dict(old.metadata) | entries)
        self.host.reconfigure(self.specs[0])

    @contextlib.asynccontextmanager
    async def connect(
        self, *, user: str = "anna", key: asyncssh.SSHKey | None = None, worker: int = 0
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Log in, accepting only the host key in the machine's guest attributes."""
        endpoint = self.specs[worker].endpoint
        published = self.host.guest_attributes(self.specs[worker].name)["hostkeys"]["ssh-ed25519"]
        pinned = asyncssh.import_public_key(f"ssh-ed25519 {published}")
        async with asyncssh.connect(
            endpoint.address,
            endpoint.ssh_port,
            username=user,
            client_keys=[key or self.key],
            known_hosts=([pinned], [], []),
            config=None,
            agent_path=None,
            encoding=None,
        ) as connection:
            yield connection

    async def run(self, command: str, **options: object) -> SimpleNamespace:
        """Run a command; returns its status, exit signal, stdout and stderr as text."""
        async with self.connect() as connection:
            done = await asyncio.wait_for(connection.run(command, **options), 60)
        return SimpleNamespace(
            status=done.exit_status,
            signal=done.exit_signal[0] if done.exit_signal else None,
            out=done.stdout.decode(),
            error=done.stderr.decode(),
        )


@pytest.fixture(scope="session")
def images() -> ImageStore:
    """The images in the user's cache, like those of the flow tests."""
    return ImageStore()


@pytest.fixture(scope="session")
def key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


MakeLab = Callable[..., Awaitable[Lab]]


@pytest.fixture
async def make_lab(
    tmp_path: Path, images: ImageStore, key: asyncssh.SSHKey
) -> AsyncIterator[MakeLab]:
    """A factory of labs that are closed at the end; `folder` distinguishes several."""
    hosts: list[LocalHost] = []

    async def make(folder: str = "cloud", **options: object) -> Lab:
        settings: dict[str, object] = {"api_address": ("127.0.0.1", 9), "images": images} | options
        host = LocalHost(tmp_path / folder, **settings)  # type: ignore[arg-type]
        hosts.append(host)
        await host.start()
        return Lab(host, key, tmp_path / folder, [])

    yield make
    for host in hosts:
        await host.close()


@pytest.fixture
async def lab(make_lab: MakeLab) -> Lab:
    return await make_lab()


@pytest.fixture
async def isolated(lab: Lab) -> Lab:
    if lab.host.isolation != "user namespaces":
        pytest.skip(f"machines are not isolated here: {lab.host.isolation}")
    return lab


@pytest.fixture
async def booted(isolated: Lab) -> Lab:
    """A lab with a booted machine."""
    await isolated.boot()
    return isolated


@pytest.fixture(params=["isolated", "plain"])
async def either(request: pytest.FixtureRequest, make_lab: MakeLab) -> Lab:
    """A lab with a booted machine, once with namespaces and once without."""
    new_lab = await make_lab(namespaces=request.param == "isolated")
    if request.param == "isolated" and new_lab.host.isolation != "user namespaces":
        pytest.skip(f"machines are not isolated here: {new_lab.host.isolation}")
    return new_lab


@dataclass
class Seen:
    """A request received by the stand-in of the API server."""

    method: str
    host: str
    path: str
    headers: dict[str, str]
    body: bytes


class ApiServerStandIn:
    """Answers every request with 200 and "api_server", and records it."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.address = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._web = web.Server(self._answer)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Seen(request.method, request.host, request.path_qs, headers, body))
        return web.Response(text="api_server")

    async def open(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._web, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._web.shutdown(1)


@pytest.fixture
async def api_server() -> AsyncIterator[ApiServerStandIn]:
    stand_in = ApiServerStandIn()
    await stand_in.open()
    yield stand_in
    await stand_in.close()


@pytest.fixture
def private_key_file(tmp_path: Path, key: asyncssh.SSHKey) -> Iterator[Path]:
    file = tmp_path / "id_ed25519"
    key.write_private_key(file)
    file.chmod(0o600)
    yield file
