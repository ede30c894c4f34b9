"""A TPU node: a TensorFlow server that a controller trains on, and its isolation."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import requests

from tests.support.locations import PARENT, PROJECT, ZONE
from tests.support.machine_specs import worker_spec
from tests.support.polling import async_until, until
from tpuctl import catalog
from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.machines.interface import Endpoint, MachineError, MachineSpec
from tpuctl.emulator.machines.network.addresses import Addresses
from tpuctl.emulator.machines.programs.processes import Init, RunningProcess
from tpuctl.emulator.machines.servers import tensorflow_server
from tpuctl.emulator.server import Server
from tpuctl.emulator.service_usage.default_network import add_default_network

BUCKET = "node-bucket"
VERSION = catalog.node_versions()[0]

# A controller's program: TPU devices are CPU devices here.
CONNECT = """
import sys, time
import tensorflow as tf
def connect():
    cluster = tf.train.ClusterSpec({"worker": ["ADDRESS"]})
    tf.config.experimental_connect_to_cluster(cluster, job_name="localhost", protocol="grpc")
connect()
DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"
"""
TRAIN = """
strategy = tf.distribute.OneDeviceStrategy(DEVICE)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
before = model.get_weights()[0].copy()
model.fit(tf.ones((8, 2)), tf.zeros((8, 1)) + 9.0, batch_size=8, epochs=1, verbose=0)
print(tf.__version__)
print(sorted({weight.device for weight in model.weights}))
print(bool((model.get_weights()[0] != before).all()))
"""
READ = """
def read(path):
    with tf.device(DEVICE):
        try:
            return [line.numpy() for line in tf.data.TextLineDataset(path)]
        except tf.errors.OpError as error:
            return type(error).__name__
open("/tmp/mine", "w").write("local")
import os
home = os.path.expanduser("~/mine")
open(home, "w").write("local")
print(open(home).read(), read(home), read("/tmp/mine"), read(sys.argv[1]))
print(read("gs://BUCKET/lines"))
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(
        tmp_path / "home", lambda home, api_address: LocalHost(home, api_address=api_address)
    )
    await made.start()
    yield made
    await made.close()


class Owner:
    """API calls as the local cloud's owner."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __call__(self, verb: str, path: str, **more: Any) -> Any:
        with requests.Session() as session:
            session.trust_env = False
            session.headers["Authorization"] = f"Bearer {self._server.token}"
            answer = session.request(verb, self._server.url + path, timeout=60, **more)
        assert answer.status_code < 300, (path, answer.status_code, answer.text)
        return answer.json() if answer.content else {}

    def wait(self, operation: Any) -> Any:
        """Poll until it is done; boots take as long as the import of TensorFlow."""

        def ended() -> Any:
            state = self("GET", f"/v1/{operation['name']}")
            return state if state.get("done") else None

        operation = until(ended, f"the end of {operation}", 600)
        assert "error" not in operation, operation
        return operation["response"]


async def boot_controller(server: Server, key: asyncssh.SSHKey) -> MachineSpec:
    """An instance, created directly by the host: Compute Engine's API is tested separately."""
    name = f"projects/{PROJECT}/zones/{ZONE}/instances/controller"
    email = "controller@local-project.iam.gserviceaccount.com"
    spec = MachineSpec(
        name=name,
        node_id="controller",
        worker=0,
        endpoints=tuple(await server.host.reserve([name])),
        project=PROJECT,
        project_number=server.registry.projects.require(PROJECT)["number"],
        zone=ZONE,
        accelerator_type="",
        runtime_version="",
        service_account=email,
        access_token=server.registry.access.token_for(email),
        metadata={"ssh-keys": f"anna:{key.export_public_key().decode().strip()}"},
        kind="instance",
        tensorflow=VERSION.tensorflow,
        machine_type="n1-standard-1",
    )
    await server.host.boot(spec, lambda _: None)
    return spec


async def run(spec: MachineSpec, key: asyncssh.SSHKey, program: str, *words: str) -> list[str]:
    async with asyncssh.connect(
        spec.endpoint.address,
        spec.endpoint.ssh_port,
        username="anna",
        client_keys=[key],
        known_hosts=None,
        config=None,
        agent_path=None,
    ) as connection:
        command = " ".join(["python3", "-", *words])
        done = await asyncio.wait_for(connection.run(command, input=program), 300)
    assert done.exit_status == 0, done.stderr
    return str(done.stdout).splitlines()


def enable(server: Server) -> None:
    directory = server.registry.projects
    project = directory.require(PROJECT)
    for api in ("tpu", "compute", "storage"):
        directory.enable(project, f"{api}.googleapis.com")
    add_default_network(server.store, project)


@pytest.mark.soak
@pytest.mark.tensorflow(VERSION.tensorflow)
@pytest.mark.timeout(900)
async def test_controller_trains_on_node_with_gs_paths(
    server: Server, key: asyncssh.SSHKey
) -> None:
    enable(server)
    call = Owner(server)
    node = {"acceleratorType": "v3-8", "tensorflowVersion": VERSION.version}

    def make() -> Any:
        call("POST", f"/storage/v1/b?project={PROJECT}", json={"name": BUCKET})
        target = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=lines"
        call("POST", target, data=b"one\ntwo\n")
        return call.wait(call("POST", f"/v1/{PARENT}/nodes?nodeId=n", json=node))

    loopback_address = {"ipAddress": "127.0.0.1", "port": 8470}
    was_taken = accepts(loopback_address)
    operation = await asyncio.to_thread(make)
    members = [f"serviceAccount:{operation['serviceAccount']}"]
    grant = {"role": "roles/storage.objectViewer", "members": members}
    policy = await asyncio.to_thread(call, "GET", f"/storage/v1/b/{BUCKET}/iam")
    policy["bindings"] = [*policy.get("bindings", ()), grant]
    await asyncio.to_thread(call, "PUT", f"/storage/v1/b/{BUCKET}/iam", json=policy)

    assert operation["state"] == "READY"
    (endpoint,) = operation["networkEndpoints"]
    address = f"{endpoint['ipAddress']}:{endpoint['port']}"
    spec = await boot_controller(server, key)
    inside = spec.endpoint.address
    assert accepts(endpoint, inside)
    assert not accepts(endpoint), "it has no external address"
    if not was_taken:  # TensorFlow itself would listen on every interface
        assert not accepts(loopback_address)
    connect = CONNECT.replace("ADDRESS", address)
    outside = tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".tpuctl-test-")  # noqa: SIM115
    with outside as file:
        file.write(b"the user's\n")
        file.flush()
        program = connect + TRAIN + READ.replace("BUCKET", BUCKET)
        *trained, refused, read = await run(spec, key, program, file.name)
    assert trained == [
        VERSION.tensorflow,
        "['/job:worker/replica:0/task:0/device:CPU:0']",
        "True",
    ]
    if server.host.isolation == "user namespaces":
        assert refused == "local NotFoundError NotFoundError NotFoundError"
    assert read == "[b'one', b'two']"

    # A server that dies is restarted on the same port.
    first = pid_of_server(address)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await async_until(
        lambda: pid_of_server(address) not in (None, first), "the restart of the server"
    )
    await async_until(lambda: accepts(endpoint, inside), "connections being accepted")
    assert await run(spec, key, connect + TRAIN) == trained

    await asyncio.to_thread(call, "DELETE", f"/v1/{PARENT}/nodes/n")
    await async_until(lambda: pid_of_server(address) is None, "the end of the server")
    await asyncio.sleep(2 * tensorflow_server.RESTART_DELAY_SECONDS)
    assert pid_of_server(address) is None
    assert not accepts(endpoint, inside)


def accepts(endpoint: Any, source: str = "127.0.0.1") -> bool:
    """Whether it accepts connections from this address."""
    place = (endpoint["ipAddress"], endpoint["port"])
    with (
        contextlib.suppress(OSError),
        socket.create_connection(place, timeout=2, source_address=(source, 0)),
    ):
        return True
    return False


def pid_of_server(address: str) -> int | None:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if address.encode() in words and any(b"node_server.py" in word for word in words):
                return int(entry.name)
    return None


def spec_of_node(endpoint: Endpoint, *, hosts: int = 1, **more: Any) -> MachineSpec:
    name = f"{PARENT}/v1nodes/n/workers/0"
    fields = {"name": name, "node_id": "n", "project": PROJECT, "zone": ZONE, "kind": "node"}
    return worker_spec(*(endpoint,) * hosts, **fields, **more)


@pytest.mark.parametrize(
    ("version", "tensorflow", "hosts", "message"),
    [
        ("2.4.1", "2.4.1", 1, r"No image for TPU node version 2\.4\.1 \(TensorFlow 2\.4\.1\)"),
        (
            "pytorch-1.13",
            None,
            1,
            "No image for TPU node version pytorch-1.13. The local cloud has images with",
        ),
        ("2.12.1", "2.12.1", 32, "32 hosts"),
    ],
)
async def test_error_names_unsupported_node(
    lab: Any, version: str, tensorflow: str | None, hosts: int, message: str
) -> None:
    (endpoint,) = await lab.host.reserve([f"{PARENT}/v1nodes/n/workers/0"])
    spec = spec_of_node(endpoint, runtime_version=version, tensorflow=tensorflow, hosts=hosts)
    with pytest.raises(MachineError, match=message):
        await lab.host.boot(spec, lambda _: None)
    assert lab.host.count_running() == 0


async def test_nodes_with_own_address_serve_on_8470(lab: Any) -> None:
    names = [f"{PARENT}/v1nodes/n/workers/{index}" for index in range(3)]
    endpoints = await lab.host.reserve(names)
    if endpoints[0].address == "127.0.0.1":
        pytest.skip("all machines share one address here")
    assert [endpoint.serving_port for endpoint in endpoints] == [8470] * 3


def test_nodes_that_share_an_address_differ_by_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems with only one loopback address."""
    monkeypatch.setattr(Addresses, "_choose_network", lambda self: None)
    addresses = Addresses(tmp_path / "addresses.json")
    names = [f"{PARENT}/v1nodes/n/workers/{index}" for index in range(2)]
    first, second = (reservation.endpoint for reservation in addresses.reserve(names))
    assert first.address == second.address == "127.0.0.1"
    ports = [first.serving_port, second.serving_port, first.ssh_port, second.ssh_port]
    assert len(set(ports)) == 4
    assert 8470 not in ports
    again = Addresses(tmp_path / "addresses.json")
    assert [reservation.endpoint for reservation in again.reserve(names)] == [first, second]


class Gate:
    """Records when it is opened and closed."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    async def open_port(self) -> None:
        self.moves.append("open")

    async def close_port(self) -> None:
        self.moves.append("close")


class Launcher:
    """Starts shell scripts, one after the other, instead of the server's program."""

    def __init__(self, init: Init, *scripts: str) -> None:
        self._init = init
        self._scripts = iter(scripts)
        self.started: list[RunningProcess] = []

    async def __call__(
        self, files: tuple[int, int, int]
    ) -> tuple[RunningProcess, Callable[[int], None]]:
        argv = ["/bin/sh", "-c", next(self._scripts)]
        started = await self._init.spawn(argv, env={"PATH": os.defpath}, cwd="/", files=files)
        self.started.append(started)
        return started, functools.partial(self._init.signal, started)


@pytest.fixture
async def init() -> AsyncIterator[Init]:
    init = await Init.start(None)
    yield init
    await init.stop(0)


async def test_failed_server_start_is_reported(init: Init, tmp_path: Path) -> None:
    launcher = Launcher(init, "echo no such port >&2; exit 3")
    server = tensorflow_server.TensorflowServer(
        launcher, Gate(), tmp_path / "console", lambda _: None
    )
    with pytest.raises(MachineError, match="no such port"):
        await server.start()


async def test_server_is_restarted_until_stopped(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_server, "RESTART_DELAY_SECONDS", 0.0)
    serve = "echo noise; echo serving at a port; exec sleep 60"
    launcher = Launcher(init, serve, "exit 1", serve, serve)
    reports: list[str] = []
    gate = Gate()
    server = tensorflow_server.TensorflowServer(
        launcher, gate, tmp_path / "console", reports.append
    )
    await server.start()
    assert len(launcher.started) == 1
    assert gate.moves == ["open"]
    init.signal(launcher.started[0], signal.SIGKILL)
    await async_until(lambda: len(gate.moves) == 3, "the gate to reopen")
    assert gate.moves == ["open", "close", "open"]
    assert len(launcher.started) == 3
    assert reports[0] == "the TensorFlow server exited with 137"
    await server.stop()
    init.signal(launcher.started[2], signal.SIGKILL)
    await launcher.started[2].exit
    await asyncio.sleep(0)
    assert len(launcher.started) == 3
