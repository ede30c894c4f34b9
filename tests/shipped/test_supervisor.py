"""The supervisor on a worker: real processes, no bucket, isolated Pythons."""

from __future__ import annotations

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import TIMEOUT, Worker
from tpuctl.jobs.shipped.machine.folder import Folder
from tpuctl.model.jobs.job import WorkerRecord


def test_start_returns_immediately_and_tail_has_every_byte(worker: Worker) -> None:
    worker.write_spec(
        "import sys\n"
        "print('one'); print('two', file=sys.stderr)\n"
        "sys.stdout.buffer.write(b'50%\\r100%\\r\\n\\x1b[31mred\\x1b[0m')\n"
    )
    assert worker.record("start").state in ("preparing", "running", "succeeded")
    log, record = worker.follow()
    assert log == b"one\ntwo\n50%\r100%\r\n\x1b[31mred\x1b[0m"
    assert (record.state, record.exit_code) == ("succeeded", 0)
    assert record.log_bytes == len(log)
    assert record.cause == ""
    assert record.finished is not None and record.finished >= record.started


def test_record_has_fields_of_client_model(worker: Worker) -> None:
    worker.write_spec("")
    worker.record("start")
    worker.follow()
    assert set(worker.read("record.json")) - {"clock"} == set(WorkerRecord.model_fields)


def test_tail_starts_at_offset(worker: Worker) -> None:
    worker.write_spec("print('0123456789')")
    worker.record("start")
    worker.follow()
    assert worker.follow(offset=4)[0] == b"456789\n"
    assert worker.follow(offset=11)[0] == b""


def test_tail_without_follow_ends_immediately(worker: Worker) -> None:
    worker.write_spec("import time\nprint('here')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"here")
    done = worker.run("tail")
    assert done.stdout == b"here\n"
    assert WorkerRecord.model_validate_json(done.stderr).state == "running"


@pytest.mark.parametrize(
    ("script", "code", "signal_number", "cause"),
    [
        ("raise SystemExit(7)", 7, None, "script"),
        ("raise ValueError('no')", 1, None, "script"),
        ("import os; os.kill(os.getpid(), 11)", 139, 11, "signal"),
        ("import os; os.kill(os.getpid(), 9)", 137, 9, "signal"),
    ],
)
def test_exit_code_of_script(
    worker: Worker, script: str, code: int, signal_number: int | None, cause: str
) -> None:
    worker.write_spec(script)
    worker.record("start")
    _, record = worker.follow()
    assert (record.state, record.exit_code, record.signal) == ("failed", code, signal_number)
    assert record.cause == cause


def test_missing_command_exits_with_127(worker: Worker) -> None:
    worker.write_spec("", argv=["no-such-program"])
    worker.record("start")
    log, record = worker.follow()
    assert record.exit_code == 127
    assert b"cannot start no-such-program: No such file or directory" in log


def test_arguments_and_environment_are_passed_unchanged(worker: Worker) -> None:
    script = "import os, sys; print(sys.argv[1:], os.environ['GREETING'], os.getcwd())"
    worker.write_spec(script, "--", "-x", "a b", "", env={"GREETING": "안녕"}, cwd="")
    worker.record("start")
    log, _ = worker.follow()
    assert log.decode() == f"['--', '-x', 'a b', ''] 안녕 {worker.folder / 'code'}\n"


def test_second_start_adopts_running_job(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"began")
    first = worker.pid_of("job.py")
    for _ in range(3):
        assert worker.record("start").state == "running"
    assert worker.pid_of("job.py") == first
    assert (worker.folder / "log").read_bytes() == b"began\n"


def test_concurrent_starts_run_one_job(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    starts = [worker.open("start") for _ in range(5)]
    for start in starts:
        _, stderr = start.communicate(timeout=TIMEOUT)
        assert start.returncode == 0, stderr.decode()
    worker.until_logged(b"began")
    worker.pid_of("job.py")
    assert (worker.folder / "log").read_bytes() == b"began\n"


def test_lock_check_does_not_hold_lock(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))

    def check(_: int) -> bool:
        return folder.is_locked("lock")

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(check, range(4000)))
    lock_handle = folder.lock("lock")
    assert lock_handle is not None
    assert folder.is_locked("lock")
    os.close(lock_handle)


def test_start_of_ended_job_does_not_rerun_it(worker: Worker) -> None:
    worker.write_spec("print('once')")
    worker.record("start")
    worker.follow()
    assert worker.record("start").state == "succeeded"
    assert worker.follow()[0] == b"once\n"


def test_killed_supervisor_is_replaced_and_exit_code_is_kept(worker: Worker) -> None:
    gate = worker.home / "gate"
    worker.write_spec(
        "import os, sys, time\n"
        "print('began')\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "print('ended'); sys.exit(5)\n"
    )
    worker.record("start")
    worker.until_logged(b"began")
    job = worker.pid_of("job.py")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGKILL)
    assert worker.record("status").state == "running"
    worker.pid_of("supervisor.py")  # a new one
    tail = worker.open("tail", "--follow")
    assert worker.pid_of("job.py") == job
    gate.touch()
    log, record = tail.communicate(timeout=TIMEOUT)
    assert log == b"began\nended\n"
    assert WorkerRecord.model_validate_json(record).exit_code == 5


def test_exit_code_is_recorded_without_supervisor(worker: Worker) -> None:
    worker.write_spec(
        "import time\nprint('began', flush=True)\ntime.sleep(0.5)\nraise SystemExit(9)"
    )
    worker.record("start")
    worker.until_logged(b"began")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGKILL)
    until((worker.folder / "exit.json").exists, "the job parent's record")
    _, record = worker.follow()
    assert (record.state, record.exit_code) == ("failed", 9)


def test_vanished_job_is_lost_and_not_restarted(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"began")
    for part in ("supervisor.py", "job_parent.py", "job.py"):
        os.kill(worker.pid_of(part), signal.SIGKILL)
    until(lambda: not worker.processes(), "the end of all processes")
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("lost", 69, "lost")
    assert log.count(b"began") == 1


def test_stop_lets_job_save_and_ends_all_processes(worker: Worker) -> None:
    worker.write_spec(
        "import signal, subprocess, sys, time\n"
        "child = [sys.executable, '-c', 'import time; time.sleep(600)', 'stray']\n"
        "subprocess.Popen(child, start_new_session=True)\n"
        "def save(*_):\n"
        "    print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('began'); time.sleep(600)\n"
    )
    worker.record("start")
    worker.until_logged(b"began")
    worker.pid_of("stray")
    record = worker.record("stop", "--grace", "20")
    assert (record.state, record.exit_code, record.cause) == ("stopped", 143, "stopped")
    assert worker.follow()[0] == b"began\nsaved\n"
    until(lambda: not worker.processes(), "the end of all processes")


def test_stop_kills_job_after_grace_period(worker: Worker) -> None:
    worker.write_spec(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('no'))\n"
        "print('began')\n"
        "while True: time.sleep(1)\n"
    )
    worker.record("start")
    worker.until_logged(b"began")
    record = worker.record("stop", "--grace", "0.5")
    assert (record.state, record.exit_code, record.signal) == ("stopped", 143, 9)
    assert b"no\n" in worker.follow()[0]


def test_stop_of_ended_job_changes_nothing(worker: Worker) -> None:
    worker.write_spec("raise SystemExit(3)")
    worker.record("start")
    worker.follow()
    assert worker.record("stop").exit_code == 3


def test_stop_works_after_supervisor_was_killed(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"began")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGKILL)
    assert worker.record("stop", "--grace", "5").state == "stopped"
    until(lambda: not worker.processes(), "the end of all processes")


def test_processes_left_by_script_are_killed(worker: Worker) -> None:
    worker.write_spec(
        "import subprocess, sys\n"
        "child = [sys.executable, '-c', 'import time; time.sleep(600)', 'stray']\n"
        "subprocess.Popen(child, start_new_session=True)\n"
    )
    worker.record("start")
    assert worker.follow()[1].state == "succeeded"
    until(lambda: not worker.processes(), "the end of all processes")


def test_time_limit_stops_job(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)", max_seconds=1)
    worker.record("start")
    _, record = worker.follow()
    assert (record.state, record.exit_code) == ("timed_out", 124)
    assert record.cause == "max_hours"


def test_machine_shutdown_is_not_a_job_failure(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"began")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    _, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 143, "terminated")


def test_clean_exit_at_machine_shutdown_is_not_success(
    worker: Worker,
) -> None:
    worker.write_spec(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
        "print('began')\n"
        "time.sleep(600)"
    )
    worker.record("start")
    worker.until_logged(b"began")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    log, record = worker.follow()
    assert log == b"began\nsaved\n"
    assert (record.state, record.exit_code, record.cause) == ("failed", 143, "terminated")


def test_script_ended_just_before_supervisor_at_machine_shutdown(
    worker: Worker,
) -> None:
    worker.write_spec("import os, time\nprint(os.getpid())\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"\n")
    os.kill(int((worker.folder / "log").read_bytes()), signal.SIGTERM)
    until((worker.folder / "exit.json").exists, "the script's end")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    _, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 143, "terminated")


def test_end_of_other_worker_stops_this_one(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"began")
    (worker.folder / "end.json").write_text('{"worker": 3, "state": "failed"}')
    _, record = worker.follow()
    assert record.is_bystander
    assert record.detail == "worker 3 ended first"


def test_missing_job_exits_with_3(worker: Worker) -> None:
    for command in ("start", "status", "tail", "stop"):
        done = worker.run(command)
        assert done.returncode == 3
        assert b"no job in" in done.stderr


def test_missing_bundle_fails_job(worker: Worker) -> None:
    worker.write_spec("")
    shutil.rmtree(worker.folder / "code")
    spec = worker.read("spec.json")
    (worker.folder / "spec.json").write_text(json.dumps({**spec, "bundle": {"sha256": "0" * 64}}))
    worker.record("start")
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 1, "bundle")
    assert b"the bundle was not uploaded to this machine" in log


def test_tail_ends_when_reader_disconnects(worker: Worker) -> None:
    worker.write_spec("import time\nprint('began')\ntime.sleep(600)")
    worker.record("start")
    worker.until_logged(b"began")
    tail = worker.open("tail", "--follow")
    assert tail.stdout is not None and tail.stderr is not None
    assert tail.stdout.read(6) == b"began\n"
    tail.stdout.close()
    tail.wait(timeout=TIMEOUT)
    tail.stderr.close()


def test_first_line_notes_substituted_machine(worker: Worker) -> None:
    """A machine of the local cloud may have another TensorFlow than its runtime."""
    worker.write_spec("print('of the job')")
    note = "TensorFlow 2.20.0 instead of 2.18.0: no Python."
    worker.variables["TPUCTL_MACHINE_NOTE"] = note
    worker.record("start")
    log, _ = worker.follow()
    first, second = log.decode().splitlines()
    assert first == f"tpuctl: this machine has {note}"
    assert second == "of the job"
