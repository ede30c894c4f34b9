"""Whole runs on local clouds: their results, their records, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness.compare import compare, write_differences
from tests.live.harness.settings import Settings
from tests.support.polling import until
from tpuctl.api import Tpuctl
from tpuctl.emulator.replay.recordings import read_recording
from tpuctl.emulator.replay.replayer import replay
from tpuctl.local_cloud import remote_control, server_process

HERE = Path(__file__).resolve().parent
SECONDS = 150.0


@dataclass
class Run:
    """`make live` on a local cloud that is started and stopped by the test."""

    cloud: server_process.LocalCloud
    folder: Path
    process: subprocess.Popen[str]

    @property
    def record(self) -> dict[str, Any]:
        """What the run has recorded so far."""
        path = self.folder / "local.json"
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return found

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out

    def wait(self, condition: Callable[[], bool]) -> None:
        def is_met() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return condition()

        until(is_met, "the condition", SECONDS)

    def is_creating_node(self) -> bool:
        return server_process.report(self.cloud)["nodes"] == 1


MakeRun = Callable[..., Run]


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeRun]:
    runs: list[Run] = []

    def make(**environment: str) -> Run:
        home = tmp_path_factory.mktemp("live-cloud") / "local"
        folder = tmp_path_factory.mktemp("live")
        cloud = server_process.start(home, pace="quick")
        variables = {name: value for name, value in os.environ.items() if "TPUCTL_" not in name}
        variables |= {
            "TPUCTL_LIVE_CLOUD": "local",
            "TPUCTL_LIVE_FOLDER": str(folder),
            "TPUCTL_LIVE_LOCAL_HOME": str(home),
        }
        process = subprocess.Popen(
            [sys.executable, HERE / "run.py"],
            env=variables | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # SIGINT must not reach pytest
        )
        runs.append(Run(cloud, folder, process))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        with run.process:  # closes its output, also of one that a failed test has not read
            pass
        server_process.stop(run.cloud.home)


def counts(cloud: server_process.LocalCloud) -> dict[str, int]:
    """The number of billable resources."""
    report = server_process.report(cloud)
    return {name: report[name] for name in ("nodes", "buckets")}


NOTHING = {"nodes": 0, "buckets": 0}


@pytest.mark.soak
def test_two_runs_pass_without_differences(make_run: MakeRun, tmp_path: Path) -> None:
    runs = make_run(), make_run()
    for run in runs:
        code, out = run.end()
        assert code == 0, out
        assert "Nothing is left of live-" in out
        assert counts(run.cloud) == NOTHING
    for name, run in zip(("google", "local"), runs, strict=True):
        for ending in ("json", "jsonl"):
            (run.folder / f"local.{ending}").rename(tmp_path / f"{name}.{ending}")
    first, other = (read_json(tmp_path / f"{name}.json") for name in ("google", "local"))
    assert [each for each in compare(first, other) if not each.may_be_chance] == []
    assert first["facts"]["TPU nodes"] == "refused"
    names = [name for name in first["outcomes"] if ": " not in name]
    assert names[:1] == ["plan"] and names[-1:] == ["down"]
    assert {*names} >= {"up", "up again", "status", "run counting-0", "run counting-3"}
    states = [state["state"] for state in first["states"]["up: the node"]["observed"]]
    assert states[-1] == "READY"
    for name in ("google", "local"):
        text = (tmp_path / f"{name}.json").read_text("utf-8")
        for private in ("local-project", "127.0.0.1", "gserviceaccount", str(runs[0].folder)):
            assert private not in text, private
    calls = replay(read_recording(tmp_path / "google.jsonl"), nodes="denied")
    different = {call.method for call in calls if call.differences}
    assert different <= {"serviceusage.services.list"}, "no API was enabled in that project"
    assert sum(call.is_alike for call in calls) > 200
    compared = {call.method for call in calls if not call.skipped}
    for method in ("tpu.projects.locations.nodes.get", "storage.buckets.get"):
        assert method in compared
    assert "serviceusage.services.list" in write_differences(tmp_path).read_text("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


@pytest.mark.soak
def test_interrupted_run_leaves_nothing(make_run: MakeRun) -> None:
    """Interrupted by Ctrl-C, by killing pytest, or by its time limit."""
    interrupted, killed, timed_out = make_run(), make_run(), make_run(TPUCTL_LIVE_MINUTES="0.12")
    for run in (interrupted, killed):
        run.wait(run.is_creating_node)
    os.killpg(interrupted.process.pid, signal.SIGINT)
    os.kill(pid_of_pytest(killed), signal.SIGKILL)
    for name, run, expected in (
        ("Ctrl-C", interrupted, 130),
        ("SIGKILL", killed, 1),
        ("limit", timed_out, 124),
    ):
        code, out = run.end()
        assert code == expected, (name, out)
        assert "Nothing is left of live-" in out, (name, out)
        assert counts(run.cloud) == NOTHING, name


def pid_of_pytest(run: Run) -> int:
    """The id of the run's pytest process."""
    result = subprocess.run(
        ["pgrep", "-P", str(run.process.pid), "-f", "test_stack.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout)


@pytest.mark.soak
async def test_failed_cleanup_reports_resources_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "local"
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(home))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    cloud = server_process.start(home, pace="instant")
    try:
        settings = Settings.from_environment({"TPUCTL_LIVE_CLOUD": "local"})
        settings.save(tmp_path / "run.json")
        path = tmp_path / "tpuctl.yaml"
        path.write_text(settings.stack_file(), "utf-8")
        await Tpuctl(path, cloud="local").up()
        fault = remote_control.add_fault(
            cloud, "error", method="DeleteNode", code="PERMISSION_DENIED", times=1000
        )
        code, out = clean(tmp_path / "run.json")
        assert code == 1
        assert f"STILL THERE, CHARGED: node/{settings.zones[0]}/{settings.stack}-tpu" in out
        assert settings.down_command(settings.stack) in out
        assert counts(cloud)["nodes"] == 1
        remote_control.remove_fault(cloud, fault["id"])
        assert clean(tmp_path / "run.json")[0] == 0
        assert counts(cloud) == NOTHING
    finally:
        server_process.stop(home)


def clean(run: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.live.harness.cleanup", run],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
