"""Processes and environments of rehearsed scripts, and the history of rehearsals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuctl.polling import Backoff, wait_until
from tpuctl.preflight.rehearsal.script_environment import script_variables, shell_variables
from tpuctl.preflight.rehearsal.script_process import Command, Exit, last_lines, run

# Starts a child process in another session, writes both process IDs, and keeps running.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open("pids", "w").write(f"{os.getpid()} {child.pid} ")
time.sleep(600)
"""


def script(folder: Path, text: str) -> Command:
    (folder / "script.py").write_text(text, "utf-8")
    environment = {"PATH": os.environ["PATH"]}
    return Command([sys.executable, "script.py"], folder, environment)


async def run_script(folder: Path, text: str, seconds: float = 60.0) -> Exit:
    return await run(script(folder, text), folder / "run", seconds=seconds, poll=lambda: None)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in (b"Z", b"X")


async def wait_for(condition: Callable[[], bool], description: str) -> None:
    async def probe() -> bool | None:
        return condition() or None

    await wait_until(probe, description=description, seconds=60.0, backoff=Backoff(0.05, 0.2))


def pids_in(folder: Path) -> list[int]:
    path = folder / "pids"
    text = path.read_text("utf-8") if path.exists() else ""
    return [int(word) for word in text.split()] if text.endswith(" ") else []


async def test_output_and_exit_code_of_script(tmp_path: Path) -> None:
    text = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = await run_script(tmp_path, text)
    assert (done.code, done.stopped) == (3, "")
    assert set(last_lines(tmp_path / "run" / "log")) == {"out", "err"}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log"]


async def test_signal_exit_code_is_as_in_shells(tmp_path: Path) -> None:
    done = await run_script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.code == 128 + signal.SIGKILL


async def test_script_gets_sigterm_at_timeout(tmp_path: Path) -> None:
    text = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "time.sleep(600)\n"
    )
    done = await run_script(tmp_path, text, seconds=2.0)
    assert done.stopped == "timeout"
    assert last_lines(tmp_path / "run" / "log") == ("saved",)


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found through /proc")
async def test_cancel_kills_all_processes(tmp_path: Path) -> None:
    running = asyncio.ensure_future(run_script(tmp_path, FAMILY))
    await wait_for(lambda: len(pids_in(tmp_path)) == 2, "the script's start")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(map(is_alive, pids_in(tmp_path)))


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found through /proc")
async def test_killed_rehearsal_leaves_no_processes(tmp_path: Path) -> None:
    script(tmp_path, FAMILY)
    program = (
        "import asyncio, os, pathlib, sys\n"
        "from tpuctl.preflight.rehearsal.script_process import Command, run\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "command = Command([sys.executable, 'script.py'], folder, dict(os.environ))\n"
        "asyncio.run(run(command, folder / 'run', seconds=600, poll=lambda: None))\n"
    )
    rehearser = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        await wait_for(lambda: len(pids_in(tmp_path)) == 2, "the script's start")
    finally:
        rehearser.kill()
        rehearser.wait()
    await wait_for(lambda: not any(map(is_alive, pids_in(tmp_path))), "the script's end")


def test_credentials_are_not_passed_to_script() -> None:
    environment = {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/home/me",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "CLOUDSDK_CONFIG": "/home/me/gcloud",
        "HF_TOKEN": "secret",
        "PYTHONPATH": "/home/me/code",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "secret",
    }
    variables = script_variables(
        shell_variables(environment),
        {"GOOGLE_APPLICATION_CREDENTIALS": "/local/credentials.json", "GONE": None},
        {"EPOCHS": "3", "GONE": "1", "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/other.json"},
        home=Path("/cache/home"),
        shim=Path("/shim"),
        settings=Path("/settings.json"),
        programs=("/venv/bin",),
        modules=("/layer",),
    )
    assert not [value for value in variables.values() if "secret" in value or "/home/me" in value]
    assert variables["GOOGLE_APPLICATION_CREDENTIALS"] == "/local/credentials.json"
    assert variables["EPOCHS"] == "3"
    assert "GONE" not in variables
    assert variables["PYTHONPATH"].split(os.pathsep) == ["/shim", "/layer"]
    assert variables["PATH"].split(os.pathsep) == ["/venv/bin", "/bin"]
    assert variables["HOME"] == "/cache/home"


def test_rehearsals_are_remembered_by_content(tmp_path: Path) -> None:
    from dataclasses import replace

    from tpuctl.preflight.rehearsal.history import Content, RehearsalHistory

    history = RehearsalHistory(tmp_path)
    content = Content("ab12", "train.py", "v3-8", "tpu-vm-tf-2.18.0", "vm")
    assert not history.has(content)
    history.record(content, {"errors": False})
    assert RehearsalHistory(tmp_path).has(content)
    for other in ({"digest": "cd"}, {"program": "b.py"}, {"accelerator": "v2-8"}, {"kind": "node"}):
        assert not history.has(replace(content, **other))
    [remaining] = (tmp_path / "known").iterdir()
    assert json.loads(remaining.read_text("utf-8"))["digest"] == "ab12"


def test_old_rehearsal_folders_are_deleted(tmp_path: Path) -> None:
    from tpuctl.preflight.rehearsal.history import MAX_FOLDERS, RehearsalHistory

    history = RehearsalHistory(tmp_path)
    for number in range(MAX_FOLDERS + 3):
        run_folder = history.new_folder(f"run-{number:02}")
        os.utime(run_folder, (number, number))
    remaining = {path.name for path in (tmp_path / "runs").iterdir()}
    assert remaining == {f"run-{number:02}" for number in range(3, MAX_FOLDERS + 3)}
