"""What the start of a job costs a worker: interpreters and modules."""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys

import pytest

from tests.support.supervised_worker import PYTHONS, TIMEOUT, Worker, worker_fixture
from tpuctl.jobs.launch import SHIPPED, START, build_archive

SLOW_MODULES = ("argparse", "concurrent.futures", "dataclasses", "subprocess", "typing")
HTTP_MODULES = ("http.client", "ssl", "urllib.request")
PYTHON = """#!/bin/sh
echo "$4" >> {count}
exec {python} "$@"
"""


worker = worker_fixture(PYTHONS[-1:])


@pytest.mark.parametrize("program", ["supervisor.py", "job_parent.py"])
def test_programs_do_not_load_slow_modules(worker: Worker, program: str) -> None:
    """A worker loads them several times for each start, and each takes as long as the rest."""
    worker.write_spec("print('hello')")
    worker.record("start")
    worker.follow()
    arguments = {
        "supervisor.py": ["tail", str(worker.folder), "--follow"],
        "job_parent.py": [str(worker.home), str(worker.home), "true"],
    }
    script = str(worker.folder / program)
    command = [sys.executable, "-X", "importtime", "-S", "-I", script, *arguments[program]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "json" in loaded
    assert loaded.isdisjoint((*SLOW_MODULES, *HTTP_MODULES))


def test_one_interpreter_receives_and_starts_job(worker: Worker) -> None:
    """Of those that the client starts: the supervisor is a fork of it."""
    worker.write_spec("print('hello')")
    spec = (worker.folder / "spec.json").read_bytes()
    count, python = worker.home / "count", worker.home / "bin/python3"
    python.parent.mkdir()
    text = PYTHON.format(count=shlex.quote(str(count)), python=shlex.quote(worker.python))
    python.write_text(text, "utf-8")
    python.chmod(0o755)
    record = ".tpuctl/jobs/20260101-000000-birch/1"
    archive = gzip.compress(build_archive(SHIPPED, {"spec.json": spec}))
    subprocess.run(
        ["sh", "-c", START, "sh", record, str(len(archive)), "running", "0.0"],
        input=archive,
        env={**worker.environment, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        cwd=worker.home,
        timeout=TIMEOUT,
        check=True,
    )
    assert [line.split()[-1] for line in count.read_text().splitlines()] == ["start"]
    worker.folder = worker.home / record
    assert [path.name for path in worker.folder.glob("new.*")] == []
