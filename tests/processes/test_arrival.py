"""An attempt that is uploaded more than once is stored once, completely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine_folder import machine_folder
from tests.support.supervised_worker import PYTHONS

ARRIVAL = machine_folder() / "arrival.py"
# As `supervisor.py start --upload` does.
ACCEPT = """
import runpy, sys
arrival, *folders = sys.argv[1:]
sys.exit(0 if runpy.run_path(arrival)["accept_upload"](*folders) else 1)
"""


def write_upload(folder: Path, number: int, **files: str) -> Path:
    upload = folder / f"new.{number}"
    upload.mkdir(parents=True)
    for name, text in files.items():
        (upload / name.replace("_", ".")).write_text(text)
    return upload


def start_arrival(
    upload: Path, folder: Path, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    argv = [python, "-S", "-I", "-c", ACCEPT, str(ARRIVAL), str(upload), str(folder)]
    return subprocess.Popen(argv, stderr=subprocess.PIPE)


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.iterdir() if path.suffix in (".json", ".py"))
    return {path.name: path.read_text() for path in files}


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_first_complete_upload_is_used(tmp_path: Path, python: str) -> None:
    incomplete = write_upload(tmp_path, 0, secrets_json="0", supervisor_py="0")  # no spec yet
    with start_arrival(incomplete, tmp_path, python) as process:
        assert process.wait(120) == 1
    assert content(tmp_path) == {}
    for number in (1, 2):
        text = str(number)
        files = dict.fromkeys(("secrets_json", "supervisor_py", "spec_json"), text)
        upload = write_upload(tmp_path, number, **files)
        with start_arrival(upload, tmp_path, python) as process:
            assert process.wait(120) == 0
        assert not upload.exists()
        (tmp_path / "secrets.json").unlink(missing_ok=True)  # as when the attempt has ended
    assert content(tmp_path) == {"supervisor.py": "1", "spec.json": "1"}


def test_files_of_concurrent_uploads_are_not_mixed(tmp_path: Path) -> None:
    names = [f"program{number}_py" for number in range(20)]
    uploads = [
        write_upload(tmp_path, number, **dict.fromkeys([*names, "spec_json"], str(number)))
        for number in range(8)
    ]
    running = [start_arrival(each, tmp_path) for each in uploads]
    for each in running:
        assert each.wait(60) == 0
        each.communicate()
    files = content(tmp_path)
    assert len(files) == 21
    assert len({*files.values()}) == 1


def test_interrupted_arrival_is_completed(tmp_path: Path) -> None:
    """The first upload was killed after it had moved its bytecode, but not its spec."""
    folder = tmp_path / "1"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__/folder.cpython-38.pyc").write_text("0")
    upload = write_upload(folder, 1, supervisor_py="1", spec_json="1")
    (upload / "__pycache__").mkdir()
    with start_arrival(upload, folder) as process:
        assert process.wait(120) == 0
    assert content(folder) == {"supervisor.py": "1", "spec.json": "1"}
    assert not upload.exists()
