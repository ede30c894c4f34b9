"""The program that calls a function on a machine, also with the oldest Python of machines."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine_folder import machine_folder
from tests.support.supervised_worker import PYTHONS

PROGRAM = machine_folder() / "function_call.py"
MODULE = """
import tpuctl
from tpuctl import BlockingTpuctl

@tpuctl.job(stack="tpuctl.yaml")
def add(first, second=1):
    return first + second

@tpuctl.job()
def uses_client():
    with BlockingTpuctl("tpuctl.yaml"):
        pass
"""


@pytest.fixture(params=PYTHONS, ids=lambda path: Path(path).name)
def interpreter(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


def call(
    interpreter: str,
    folder: Path,
    function: str,
    arguments: bytes,
    *,
    module: str = MODULE,
    workers: tuple[int, ...] = (),
) -> tuple[int, dict[str, Any] | None]:
    """The program's exit code, and what it wrote."""
    code, attempt = folder / "code", folder / "attempt"
    call_folder = code / ".tpuctl"
    call_folder.mkdir(parents=True)
    attempt.mkdir()
    shutil.copy(PROGRAM, call_folder / "add.py")
    (code / "numbers_module.py").write_text(module, "utf-8")
    described = {
        "module": "numbers_module",
        "is_main": False,
        "file": "",
        "function": function,
        "python": "3.99.0",
        "max_bytes": 100,
    }
    (call_folder / "call.json").write_text(json.dumps(described), "utf-8")
    payload = {"arguments": arguments, "variables": {}}
    (call_folder / "arguments.pickle").write_bytes(pickle.dumps(payload, 4))
    spec = {"worker": 1, "start_barrier": {"workers": workers} if workers else None}
    (attempt / "spec.json").write_text(json.dumps(spec), "utf-8")
    done = subprocess.run(
        # -S: the environment of the tests has tpuctl, machines do not.
        [interpreter, "-S", ".tpuctl/add.py", f"numbers_module:{function}"],
        cwd=code,
        env={"PATH": os.environ["PATH"], "TPUCTL_FOLDER": str(attempt)},
        check=False,
    )
    file = attempt / "value.json"
    assert not file.exists() or file.stat().st_mode & 0o777 == 0o600
    return done.returncode, json.loads(file.read_text("utf-8")) if file.exists() else None


def test_value_is_written(interpreter: str, tmp_path: Path) -> None:
    code, written = call(interpreter, tmp_path, "add", pickle.dumps(((2,), {"second": 3}), 4))
    assert code == 0
    assert written is not None
    assert pickle.loads(base64.b64decode(written["value"])) == 5


def test_other_workers_write_no_value(interpreter: str, tmp_path: Path) -> None:
    arguments = pickle.dumps(((2,), {}), 4)
    assert call(interpreter, tmp_path, "add", arguments, workers=(0, 1)) == (0, None)


def test_arguments_of_newer_python_name_both_versions(interpreter: str, tmp_path: Path) -> None:
    # As pathlib's paths are pickled since Python 3.13, by a module that older ones do not have.
    arguments = b"c_pathlib_of_tomorrow\nPosixPath\n."
    code, written = call(interpreter, tmp_path, "add", arguments)
    assert code == 1
    assert written is not None
    error = written["error"]
    assert error["is_unsendable"]
    assert "the arguments cannot be loaded by Python 3." in error["message"]
    assert "(sent by Python 3.99.0): ModuleNotFoundError" in error["message"]


def test_client_is_not_on_machines(interpreter: str, tmp_path: Path) -> None:
    code, written = call(interpreter, tmp_path, "uses_client", pickle.dumps(((), {}), 4))
    assert code == 1
    assert written is not None
    assert "tpuctl.BlockingTpuctl is called" in written["error"]["message"]
