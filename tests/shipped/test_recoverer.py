"""The recoverer keeps `tpuctl wait` running on a controller until the job has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine_folder import machine_folder
from tests.support.polling import until
from tpuctl.flows.machines.handover import RECOVERER
from tpuctl.remote.keys import load_key

PROGRAM = machine_folder() / "recoverer.py"
WATCH = machine_folder() / "watchdog.py"
# Stands in for tpuctl: counts its starts, records its arguments, and executes orders.
PLAYER = """
import json, os, pathlib, sys, time
here = pathlib.Path.cwd()
begun = len(list(here.glob("begun.*"))) + 1
started = [sys.argv[1:], os.environ.get("TOKEN"), os.getpid()]
(here / f"begun.{begun}").write_text(json.dumps(started))
orders = here / f"orders.{begun}"
while not orders.exists():
    time.sleep(0.02)
order = json.loads(orders.read_text())
for line in order["lines"]:
    print(json.dumps(line), flush=True)
sys.exit(order["code"])
"""
ENDED = {"event": "JobEnded", "job": "j", "state": "failed", "exit_code": 3}


class Controller:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / ".tpuctl" / "recover" / "j"
        self.folder.mkdir(parents=True)
        player = home / "player.py"
        player.write_text(PLAYER, "utf-8")
        self.command = {
            "job": "j",
            "argv": [sys.executable, str(player), "wait", "j"],
            "env": {"TOKEN": "secret-value"},
        }
        for name in RECOVERER:
            (self.folder / name).write_bytes(PROGRAM.with_name(name).read_bytes())
        (self.folder / "tpuctl.yaml").write_text("env: secret-value\n", "utf-8")
        (self.folder / "command.json").write_text(json.dumps(self.command), "utf-8")

    def run(self, command: str, folder: Path | None = None) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-S", "-I", str(PROGRAM), command, str(folder or self.folder)],
            env={**os.environ, "HOME": str(self.home)},
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        )
        return dict(json.loads(done.stdout))

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text("utf-8"))

    def read_if_whole(self, name: str) -> Any:
        with contextlib.suppress(OSError, ValueError):
            return self.read(name)

    def begun(self, number: int) -> Any:
        """The arguments of the tpuctl process with this number."""
        until((self.folder / f"begun.{number}").exists, f"start {number}")
        return until(lambda: self.read_if_whole(f"begun.{number}"), "its arguments")

    def order(self, number: int, code: int, *lines: Any) -> None:
        part = self.folder / "orders.part"
        part.write_text(json.dumps({"code": code, "lines": lines}), "utf-8")
        part.rename(self.folder / f"orders.{number}")

    def give(self, order: str) -> None:
        """Give the folder an order that is repeated until it succeeds."""
        command = {**self.command, "until": "success", "order": order}
        part = self.folder / "command.part"
        part.write_text(json.dumps(command), "utf-8")
        part.rename(self.folder / "command.json")

    def kill(self) -> None:
        for each in self.folder.glob("state.json"):
            state = json.loads(each.read_text("utf-8"))
            for name in ("pid", "child"):
                if state.get(name):
                    try:
                        os.kill(state[name], signal.SIGKILL)
                    except ProcessLookupError:
                        continue


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    created = Controller(tmp_path)
    yield created
    created.kill()


def test_tpuctl_is_restarted_until_job_ends(controller: Controller) -> None:
    controller.run("start")
    assert controller.begun(1)[:2] == [["wait", "j"], "secret-value"]
    controller.order(1, 77, {"version": 1, "exit_code": 77})
    controller.begun(2)
    # The job's end, followed by another failure: `wait` has not ended.
    controller.order(2, 70, ENDED, {"version": 1, "exit_code": 70})
    controller.begun(3)
    controller.order(3, 3, {"event": "Note"}, ENDED, {"version": 1, "exit_code": 3})
    until((controller.folder / "result.json").exists, "the end")
    assert controller.read("result.json") == ENDED
    until(lambda: not (controller.folder / "tpuctl.yaml").exists(), "secrets being deleted")
    assert not (controller.folder / "command.json").exists()
    assert controller.run("start") == {"result": ENDED}
    log = (controller.folder / "log").read_text("utf-8")
    assert [json.loads(line).get("exit_code") for line in log.splitlines()] == [
        *(77, 3, 70, None, 3, 3)
    ]
    assert "secret-value" not in log


def test_only_one_tpuctl_runs_at_a_time(controller: Controller) -> None:
    state = controller.run("start")
    (_, _, child) = controller.begun(1)
    assert controller.run("start")["pid"] == state["pid"]
    os.kill(state["pid"], signal.SIGKILL)
    until(lambda: not is_alive(state["pid"]), "the death of the recoverer")
    assert is_alive(child), "its child keeps running"
    controller.run("start")
    assert not (controller.folder / "begun.2").exists()
    controller.order(1, 3, ENDED)
    until(lambda: not is_alive(child), "its end")
    assert controller.run("start")["pid"] != state["pid"]
    controller.begun(2)  # queries the job's end again, since nothing recorded it
    controller.order(2, 3, ENDED)
    until((controller.folder / "result.json").exists, "the end")


def test_watchdog_restarts_dead_recoverer(controller: Controller) -> None:
    """Calls its function like a controller's watchdog does at each check."""
    look = (
        # Isolated, as machines run it: it finds only what is named.
        f"import sys; sys.path.insert(0, {str(WATCH.parent)!r}); import watchdog; "
        "watchdog.homes = lambda: [sys.argv[1]]; watchdog.restart_recoverers()"
    )

    def revive() -> None:
        subprocess.run(
            [sys.executable, "-S", "-I", "-c", look, str(controller.home)], timeout=60, check=True
        )

    revive()  # after a reboot
    first = controller.begun(1)
    revive()
    assert not (controller.folder / "begun.2").exists()
    controller.kill()
    until(lambda: not is_alive(first[2]), "both being dead")
    revive()
    controller.begun(2)
    controller.order(2, 3, ENDED)
    until((controller.folder / "result.json").exists, "the end")
    revive()
    assert not (controller.folder / "begun.3").exists()


def test_order_is_repeated_until_it_succeeds(controller: Controller) -> None:
    """A queue: its files stay, and a later order is another run."""
    controller.give("one")
    controller.run("start")
    controller.begun(1)
    controller.order(1, 75)
    controller.begun(2)
    controller.order(2, 0)
    until((controller.folder / "result.json").exists, "the end")
    assert controller.read("result.json") == {"exit_code": 0, "order": "one"}
    assert controller.run("start") == {"result": {"exit_code": 0, "order": "one"}}
    assert not (controller.folder / "begun.3").exists()
    controller.give("two")
    controller.run("start")
    controller.begun(3)
    controller.order(3, 0)
    until(lambda: controller.read("result.json")["order"] == "two", "the end of the next order")
    assert (controller.folder / "tpuctl.yaml").exists()


def test_order_that_arrives_meanwhile_is_next(controller: Controller) -> None:
    controller.give("one")
    controller.run("start")
    controller.begun(1)
    controller.give("two")
    assert controller.run("start")["child"] == controller.read("state.json")["child"], "it runs"
    controller.order(1, 0)
    controller.begun(2)
    controller.order(2, 0)
    until(lambda: controller.read("result.json")["order"] == "two", "the end")
    assert not (controller.folder / "begun.3").exists()


def test_files_and_secrets_are_private(controller: Controller) -> None:
    controller.run("start")
    controller.begun(1)
    for name in ("state.json", "log", "lock"):
        assert (controller.folder / name).stat().st_mode & 0o077 == 0
    state = controller.read("state.json")
    for pid in (state["pid"], state["child"]):
        assert b"secret-value" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_ssh_key_is_created_once(controller: Controller) -> None:
    folder = controller.home / "config"
    line = controller.run("key", folder)["key"]
    assert controller.run("key", folder)["key"] == line
    key = load_key(folder / "ssh" / "id_ed25519")
    assert line.split()[:2] == key.public_line.split()[:2]
    assert key.path.stat().st_mode & 0o077 == 0
    assert [path.name for path in key.path.parent.iterdir()] == ["id_ed25519"]
