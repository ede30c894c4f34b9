"""A job on a machine that shuts down: the signals that it gets, and its final record."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import PYTHONS, ClockedWorker, worker_fixture

# Saves its state on SIGTERM until ~/enough exists; a second SIGTERM interrupts it.
SAVING = """
import os, signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    while not os.path.exists(os.path.expanduser("~/enough")):
        time.sleep(0.02)
    print("saved", flush=True)
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, save)
print("began", flush=True)
while True:
    time.sleep(1)
"""


worker = worker_fixture(PYTHONS[-1:], ClockedWorker)


def start_job(worker: ClockedWorker, *arguments: str, script: str = SAVING) -> None:
    worker.write_spec(script, *arguments, max_seconds=3600)
    worker.record("start")
    worker.until_logged(b"began")
    until(lambda: worker.read("started.json")["job_parent"] is not None, "the job parent's record")


def shut_down(worker: ClockedWorker) -> None:
    """As systemd does with leftovers of a session: SIGTERM, and SIGHUP immediately after it."""
    for pid in worker.processes():
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)


@pytest.mark.parametrize("code", [143, 0])
def test_saving_script_gets_one_sigterm_and_no_sighup(worker: ClockedWorker, code: int) -> None:
    start_job(worker, str(code))
    shut_down(worker)
    worker.until_logged(b"saving")
    worker.until_checked(6)  # enough for a signal to be forwarded
    (worker.home / "enough").touch()
    log, record = worker.follow()
    assert log == b"began\nsaving\nsaved\n"
    assert (record.state, record.exit_code, record.cause) == ("failed", 143, "terminated")


def test_supervisor_forwards_sigterm_to_script(worker: ClockedWorker) -> None:
    start_job(worker, "143")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    worker.until_logged(b"saving")
    worker.until_checked(6)
    (worker.home / "enough").touch()
    assert worker.follow()[0] == b"began\nsaving\nsaved\n"


def test_sighup_alone_ends_nothing(worker: ClockedWorker) -> None:
    """The end of a session does not stop a script without handlers."""
    start_job(worker, script="import time\nprint('began', flush=True)\ntime.sleep(600)")
    for pid in worker.processes():
        os.kill(pid, signal.SIGHUP)
    worker.until_checked(3)
    assert worker.record("status").state == "running"
    worker.pid_of("job.py")


def test_script_with_sighup_handler_gets_sighup(worker: ClockedWorker) -> None:
    script = "import signal, time\nsignal.signal(signal.SIGHUP, lambda *_: print('reloaded'))\n"
    start_job(worker, script=f"{script}print('began', flush=True)\nwhile True: time.sleep(1)")
    os.kill(worker.pid_of("job.py"), signal.SIGHUP)
    worker.until_logged(b"reloaded")


def test_simultaneous_kill_of_all_processes_is_not_a_job_failure(worker: ClockedWorker) -> None:
    """Including the job parent, which may not have been able to handle SIGTERM."""
    start_job(worker, script="import time\nprint('began', flush=True)\ntime.sleep(600)")
    supervisor = worker.pid_of("supervisor.py")
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGTERM)
    for part in ("job_parent.py", "job.py"):
        os.kill(worker.pid_of(part), signal.SIGKILL)
    os.kill(supervisor, signal.SIGCONT)
    _, record = worker.follow()
    assert (record.state, record.cause) == ("failed", "terminated")
