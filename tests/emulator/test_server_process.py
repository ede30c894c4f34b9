"""The server as a process: killed at any time, stopped cleanly, started and found by others."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.locations import PARENT
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import await_end
from tpuctl.errors import Conflict, TpuctlError, Unreachable, Usage
from tpuctl.local_cloud import server_process
from tpuctl.local_cloud.server_process import LocalCloud

ROOT = Path(__file__).parents[2]


class Process:
    """A server without machines, in a separate process."""

    def __init__(self, home: Path, pace: str = "quick") -> None:
        program = ROOT / "tests" / "support" / "serve_null.py"
        self.child = subprocess.Popen(
            [sys.executable, str(program), str(home), pace],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.child.stdout is not None
        port, token = self.child.stdout.readline().split()
        self.url, self.token = f"http://127.0.0.1:{port}", token
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {token}"

    def request(self, verb: str, path: str, **more: Any) -> Any:
        return self.session.request(verb, self.url + path, timeout=60, **more)

    def end(self, number: int) -> int:
        self.child.send_signal(number)
        return self.child.wait(timeout=60)

    def close(self) -> None:
        if self.child.poll() is None:
            self.end(signal.SIGKILL)
        assert self.child.stdout is not None
        self.child.stdout.close()
        self.session.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    running: list[Process] = []

    def make(pace: str = "quick") -> Process:
        running.append(Process(tmp_path / "home", pace))
        return running[-1]

    yield make
    for process in running:
        process.close()


def enable(process: Process) -> None:
    path = "/v1/projects/local-project/services:batchEnable"
    apis = ["tpu.googleapis.com", "compute.googleapis.com"]
    operation = process.request("POST", path, json={"serviceIds": apis}).json()
    until(
        lambda: process.request("GET", f"/v1/{operation['name']}").json().get("done"),
        "the APIs being on",
    )


def test_kill_loses_nothing_acknowledged(serve: Any) -> None:
    """The next server serves it, and stops through its control API."""
    process = serve()
    process.request("POST", "/storage/v1/b?project=local-project", json={"name": "kept"})
    written: dict[str, str] = {}
    stop = threading.Event()

    def write(worker: int) -> None:
        session = requests.Session()
        session.trust_env = False
        headers = {"Authorization": f"Bearer {process.token}"}
        for index in range(10_000):
            name = f"{worker}-{index % 20}"
            url = f"{process.url}/upload/storage/v1/b/kept/o?uploadType=media&name={name}"
            try:
                answer = session.post(
                    url, data=f"{worker} {index}".encode() * 50, headers=headers, timeout=60
                )
            except requests.RequestException:
                break
            written[name] = answer.json()["generation"]
            if stop.is_set():
                break
        session.close()

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(write, worker) for worker in range(4)]
        until(lambda: len(written) >= 60, "sixty writes")
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        stop.set()
        for future in futures:
            future.result()
    again = serve()
    items = again.request("GET", "/storage/v1/b/kept/o").json()["items"]
    by_name = {item["name"]: item for item in items}
    for name, generation in written.items():
        # A write that was not acknowledged may have been the last one.
        assert int(by_name[name]["generation"]) >= int(generation)
    for name, item in by_name.items():
        content = again.request("GET", f"/storage/v1/b/kept/o/{name}?alt=media")
        assert len(content.content) == int(item["size"])
    assert again.request("POST", "/_local/shutdown").status_code == 200
    assert again.child.wait(timeout=60) == 0


def test_creation_completes_after_kill(serve: Any) -> None:
    """By the next server, which stops cleanly on SIGTERM."""
    process = serve()
    enable(process)
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    path = f"/v2/{PARENT}/nodes"
    operation = process.request("POST", f"{path}?nodeId=n", json=body).json()
    assert not operation.get("done")
    process.end(signal.SIGKILL)
    again = serve()
    while not operation.get("done"):
        operation = again.request("GET", f"/v2/{operation['name']}").json()
    assert operation["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.Node"
    assert operation["response"]["state"] == "READY"
    assert again.request("GET", f"{path}/n").json()["state"] == "READY"
    assert again.request("GET", "/_local/status").json()["machines"] == 1
    assert again.end(signal.SIGTERM) == 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cloud"
    yield folder
    server_process.stop(folder)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_client_starts_finds_and_stops_server(home: Path) -> None:
    assert server_process.status(home) is None
    cloud = server_process.start(home, ssh="high", pace="instant")
    assert server_process.status(home) == cloud
    assert server_process.start(home) == cloud
    report = server_process.report(cloud)
    assert (report["pid"], report["pace"], report["nodes"]) == (cloud.pid, "instant", 0)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    with pytest.raises(Conflict):
        server_process.start(home, pace="real")
    assert server_process.stop(home)
    assert server_process.status(home) is None
    assert not server_process.stop(home)
    again = server_process.start(home, ssh="high")
    assert (again.port, again.token, again.pace) == (cloud.port, cloud.token, "instant")


def test_concurrent_starts_create_one_server(home: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        clouds = set(pool.map(lambda _: server_process.start(home, ssh="high"), range(4)))
    assert len(clouds) == 1


def test_folder_has_one_server_whatever_path_leads_to_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    (tmp_path / "other").mkdir()
    paths = [home, tmp_path / "link", tmp_path / "other" / ".." / "cloud"]
    home.mkdir()
    with ThreadPoolExecutor(3) as pool:
        clouds = set(pool.map(lambda path: server_process.start(path, ssh="high").pid, paths))
    assert len(clouds) == 1
    for path in paths[1:]:
        with pytest.raises(Conflict, match="already running with different settings"):
            server_process.start(path, port=free_port())
    assert server_process.stop(tmp_path / "link")
    assert server_process.status(home) is None


def serve_directly(home: Path) -> subprocess.Popen[str]:
    """A server that was not started by the client, and so without its lock of starts."""
    command = [sys.executable, "-m", "tpuctl.emulator", "--home", str(home), "--ssh", "high"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_server_refuses_folder_of_another(home: Path, tmp_path: Path) -> None:
    cloud = server_process.start(home, ssh="high")
    (tmp_path / "link").symlink_to(home)
    with serve_directly(tmp_path / "link") as second:
        _, errors = second.communicate(timeout=60)
    assert second.returncode == 4
    assert f"Folder in use: process {cloud.pid} serves {tmp_path / 'link'}" in errors
    assert server_process.status(home) == cloud, "its record was not replaced"
    os.kill(cloud.pid, signal.SIGKILL)
    await_end(cloud.pid)
    again = server_process.start(home, ssh="high")
    assert (again.port, again.token) == (cloud.port, cloud.token)


def test_silent_server_keeps_its_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still write to the folder: no second one is started. `stop` ends it by any path."""
    monkeypatch.setattr(server_process, "_STOP_SECONDS", 0.1)
    cloud = server_process.start(home, ssh="high")
    (tmp_path / "link").symlink_to(home)
    record = json.loads((home / "server.json").read_text())
    (home / "server.json").write_text(json.dumps({**record, "url": "http://127.0.0.1:9"}))
    with pytest.raises(Unreachable, match=f"process {cloud.pid} serves"):
        server_process.start(tmp_path / "link", ssh="high")
    assert server_process.stop(tmp_path / "link")
    await_end(cloud.pid)


def test_port_in_use_is_reported(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Usage) as caught:
            server_process.start(home, port=port, ssh="high")
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.summary == "Port in use"
    assert str(port) in diagnostic.detail
    assert "--port" in diagnostic.hint


def test_failed_start_reports_log_tail(home: Path) -> None:
    home.mkdir()
    (home / "state.sqlite").write_text("this is not a database, but long enough to be read" * 50)
    with pytest.raises(TpuctlError) as caught:
        server_process.start(home, ssh="high")
    assert "file is not a database" in caught.value.diagnostics[0].detail


def test_unresponsive_server_is_killed(home: Path) -> None:
    cloud = server_process.start(home, ssh="high")
    os.kill(cloud.pid, signal.SIGSTOP)
    record = json.loads((home / "server.json").read_text())
    (home / "server.json").write_text(json.dumps({**record, "url": "http://127.0.0.1:9"}))
    os.kill(cloud.pid, signal.SIGCONT)
    assert server_process.stop(home)
    await_end(cloud.pid)


@pytest.mark.parametrize(
    "answer",
    ["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "GET /_local HTTP/1.1\r\n\r\n", ""],
    ids=["truncated", "echo", "none"],
)
def test_invalid_answer_is_reported(answer: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer.encode())

        with ThreadPoolExecutor(1) as pool:
            pool.submit(serve)
            cloud = LocalCloud(f"http://127.0.0.1:{port}", "token", port, 0, tmp_path, "instant")
            with pytest.raises(Unreachable, match="Local cloud is not responding"):
                server_process.request(cloud, "GET", "/_local")


def test_process_with_reused_id_is_not_killed(home: Path) -> None:
    server_process.start(home, ssh="high")
    server_process.stop(home)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        record = json.loads((home / "server.json").read_text())
        (home / "server.json").write_text(json.dumps({**record, "pid": other.pid}))
        assert not server_process.stop(home)
        assert other.poll() is None


def test_reset_deletes_only_state(home: Path, tmp_path: Path) -> None:
    cloud = server_process.start(home, ssh="high")
    (home / "mine.txt").write_text("not the cloud's")
    server_process.reset(home)
    assert server_process.status(home) is None
    assert {path.name for path in home.iterdir()} == {"mine.txt", "lock", "server.lock"}
    (home / "mine.txt").unlink()
    again = server_process.start(home, ssh="high")
    assert again.token != cloud.token
    foreign = tmp_path / "papers"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(Usage):
        server_process.reset(foreign)
    assert (foreign / "thesis.txt").exists()


def test_client_imports_no_google_libraries() -> None:
    code = (
        "import sys, tpuctl.local_cloud.server_process; "
        "print([name for name in sys.modules if name.split('.')[0] in ('google', 'grpc')])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"


SERVED = """
import asyncio, sys
from pathlib import Path
from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.server import Server

async def main():
    home = Path(sys.argv[1])
    make_host = lambda folder, address: LocalHost(folder, api_address=address)
    server = Server(home, make_host, port=0, pace="instant")
    await server.start()
    print(sorted({name.partition(".")[0] for name in sys.modules} & {"asyncssh", "cryptography"}))
    await server.close()

asyncio.run(main())
"""


def test_server_starts_without_ssh_and_certificates(tmp_path: Path) -> None:
    """They are two fifths of its memory, and needed only for machines and shells."""
    answer = subprocess.run(
        [sys.executable, "-c", SERVED, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout.strip() == "[]"


def test_default_home_from_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path))
    assert server_process.default_home() == tmp_path
    monkeypatch.delenv("TPUCTL_LOCAL_HOME")
    assert server_process.default_home().name == "local"


def test_log_is_rotated_and_has_no_tokens(home: Path) -> None:
    home.mkdir()
    (home / "server.log").write_text("of former days\n" * 400_000)
    cloud = server_process.start(home, ssh="high")
    assert (home / "server.log").stat().st_size < 100_000
    assert (home / "server.log.old").read_text().startswith("of former days")
    with requests.Session() as session:
        session.trust_env = False
        session.get(f"{cloud.url}/t/{cloud.token}/storage/v1/b?pageToken=!", timeout=60)
        session.get(f"{cloud.url}/t/{cloud.token}/nowhere", timeout=60)
    assert cloud.token not in (home / "server.log").read_text()
    server_process.reset(home)
    assert {path.name for path in home.iterdir()} == {"lock", "server.lock"}
