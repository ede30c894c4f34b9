"""Preparation of a job on a worker, and its command: real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine_folder import machine_folder
from tests.support.polling import until
from tests.support.subprocesses import run_captured
from tests.support.supervised_worker import Worker, worker_fixture
from tests.support.wheels import make_project, make_wheel
from tpuctl.jobs.job_shell import in_job_environment

SETUP_COMMAND = machine_folder() / "setup_command.py"
PRINT_PYTHON = "import sys; print(sys.executable)"


new_worker = worker_fixture([sys.executable])


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


# Commands -----------------------------------------------------------------------------------


def run_job(worker: Worker, argv: list[str], **more: Any) -> list[str]:
    """The output of a job with this command, without tpuctl's lines. Each job has a new folder
    with the code of the first."""
    first = worker.folder.with_name("1")
    count = len(list(first.parent.iterdir()))
    worker.folder = first.with_name(str(count + 1))
    shutil.copytree(first, worker.folder)
    worker.write_spec(PRINT_PYTHON, **{"argv": argv, **more})
    worker.record("start")
    log, record = worker.follow()
    assert record.state == "succeeded", log.decode()
    lines = log.decode().splitlines()
    return [line for line in lines if not line.startswith("tpuctl: ")]


def run_in_shell(worker: Worker, line: str) -> list[str]:
    """The output of a command of `tpuctl ssh`."""
    command = ["bash", "-c", in_job_environment(line)]
    return subprocess.check_output(command, env=worker.environment).decode().splitlines()


def test_all_commands_use_same_python(worker: Worker) -> None:
    code = worker.folder / "code"
    write(code / "sub/package/module.py", PRINT_PYTHON)
    commands = f"python -c '{PRINT_PYTHON}'\npython3 -c '{PRINT_PYTHON}'\n"
    write(code / "run.sh", f"#!/bin/sh\n{commands}", 0o755)
    forms = [["./run.sh"], ["{python}", "job.py"], ["{python}", "-m", "sub.package.module"]]
    outputs = {line for argv in forms for line in run_job(worker, argv)}
    command = [worker.python, "-c", PRINT_PYTHON]
    shell_output = subprocess.check_output(command, env=worker.environment)
    assert outputs == {shell_output.decode().strip()}, "the image's"
    assert {*run_in_shell(worker, commands)} == outputs

    make_wheel(code / "wheels", "small-library", "1.0")
    install = {"wheels": "wheels"}
    outputs = {line for argv in forms for line in run_job(worker, argv, install=install)}
    (programs,) = {Path(line).parent for line in outputs}
    assert programs.parent.parent == worker.home / ".tpuctl/envs", "the environment's"
    assert {*run_in_shell(worker, commands)} == outputs
    assert run_in_shell(worker, "python -c 'import small_library; print(1)'") == ["1"]


def test_src_packages_are_importable_unless_installed(new_worker: Worker) -> None:
    code = new_worker.folder / "code"
    write(code / "src/model.py", "print('from the folder')\n")
    for argv in (["{python}", "-m", "model"], ["sh", "-c", "exec python -m model"]):
        assert run_job(new_worker, argv) == ["from the folder"]
    assert run_in_shell(new_worker, "python3 -m model") == ["from the folder"]
    env = {"PYTHONPATH": str(code / "other")}
    write(code / "other/more.py", "print('from elsewhere')\n")
    assert run_job(new_worker, ["{python}", "-m", "more"], env=env) == ["from elsewhere"]
    make_project(code, "model", "print('as it was built')\n")
    install = {"dependencies": [], "project": "."}
    assert run_job(new_worker, ["{python}", "-m", "model"], install=install) == ["as it was built"]


def test_shell_has_variables_of_latest_job(new_worker: Worker) -> None:
    """Those of tpuctl; the values of others may be secret."""
    show = "env | grep -E '^(TPUCTL|TOKEN)' | sort"
    assert run_in_shell(new_worker, "exit 0") == []
    for job in ("one", "it's another"):
        env = {"TPUCTL_JOB": job, "TPUCTL_OUTPUT": "gs://a b", "TOKEN": "hush"}
        run_job(new_worker, ["true"], env=env)
        assert run_in_shell(new_worker, show) == [f"TPUCTL_JOB={job}", "TPUCTL_OUTPUT=gs://a b"]
    settings = new_worker.home / ".tpuctl/environment.sh"
    assert settings.stat().st_mode & 0o077 == 0
    assert "hush" not in settings.read_text()


def test_arguments_are_passed_unchanged(new_worker: Worker) -> None:
    argv = ["{python}", "-c", "import sys; print(sys.argv[1:])"]
    words = ["{python}", "a b", "", "--", "$HOME", "'"]
    assert run_job(new_worker, [*argv, *words]) == [repr(words)]


@pytest.mark.parametrize(
    ("mode", "text", "code", "message"),
    [
        (0o644, "#!/bin/sh\n", 126, "Permission denied"),
        (0o755, "#!/proc/absent/sh\n", 127, "No such file or directory"),
    ],
)
def test_command_that_cannot_start_is_reported(
    new_worker: Worker, mode: int, text: str, code: int, message: str
) -> None:
    write(new_worker.folder / "code/run.sh", text, mode)
    new_worker.write_spec("", argv=["./run.sh"])
    new_worker.record("start")
    log, record = new_worker.follow()
    assert (record.state, record.exit_code) == ("failed", code)
    assert log.decode() == f"tpuctl: cannot start ./run.sh: {message}\n"


# The setup command --------------------------------------------------------------------------


class Machine:
    """A home folder for jobs with a setup command; `done` has a line for each of its runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.jobs = 0
        self.variables = {"TOKEN": "open sesame"}

    def run(self, setup: str, files: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Run the setup of a new job: exit code, output, log."""
        self.jobs += 1
        folder = self.home / f"job-{self.jobs}"
        for name, text in (files or {}).items():
            write(folder / "code" / name, text, 0o755)
        (folder / "code").mkdir(parents=True, exist_ok=True)
        (folder / "spec.json").write_text(json.dumps({"install": {"setup": setup}}))
        done = run_captured(
            [sys.executable, "-S", "-I", str(SETUP_COMMAND), str(folder)],
            env={
                "HOME": str(self.home),
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                **self.variables,
            },
            timeout=120,
        )
        log = folder / "log"
        return done.returncode, done.stdout + done.stderr, log.read_text() if log.exists() else ""

    @property
    def done(self) -> list[str]:
        path = self.home / "done"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_setup_runs_once_per_machine_and_content(machine: Machine, tmp_path: Path) -> None:
    setup = "./prepare.sh all && echo 'done' >/dev/null"
    files = {"prepare.sh": '#!/bin/sh\necho "$1 $TOKEN" >> ~/done\n', "train.py": "1"}
    code, message, log = machine.run(setup, files)
    assert (code, message) == (0, "")
    assert log.startswith("tpuctl: running the setup command\ntpuctl: ran the setup command in ")
    assert machine.done == ["all open sesame"]
    # It runs again if a file that it names changes, but not for other files.
    assert machine.run(setup, {**files, "train.py": "2"}) == (0, "", "")
    assert len(machine.done) == 1
    machine.run(setup, {**files, "prepare.sh": "#!/bin/sh\necho again >> ~/done\n"})
    assert machine.done[1:] == ["again"]
    machine.run("echo text >> ~/done", files)
    assert machine.done[2:] == ["text"]
    another = Machine(tmp_path / "another")
    another.run(setup, files)
    assert len(another.done) == 1


def test_setup_runs_again_for_other_values_of_its_variables(machine: Machine) -> None:
    setup = 'PATH=$PATH:/opt; echo "$KIND" >> ~/done; ./prepare.sh'
    files = {"prepare.sh": '#!/bin/sh\ntest -n "${TOKEN}"\n'}
    steps: list[tuple[dict[str, str], int]] = [
        ({"KIND": "a"}, 1),
        ({"STEPS": "2"}, 1),  # not used
        ({"TPUCTL_ATTEMPT": "2"}, 1),
        ({"KIND": "b"}, 2),
        ({"TOKEN": "another"}, 3),  # in the file that it names
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/"}, 4),  # read by pip
    ]
    for variables, runs in steps:
        machine.variables |= variables
        assert machine.run(setup, files)[0] == 0
        assert len(machine.done) == runs


def test_failed_setup_is_logged_and_retried(machine: Machine) -> None:
    setup = "echo begun >> ~/done\necho 'first words'\nls /dev/null/absent\necho never >> ~/done"
    for count in (1, 2):
        code, message, log = machine.run(setup)
        assert (code, message) == (1, "the setup command failed with exit code 2\n")
        first, second, *rest = log.splitlines()
        assert (first, second) == ("tpuctl: running the setup command", "first words")
        assert any("/dev/null/absent" in line for line in rest)
        assert machine.done == ["begun"] * count


def test_job_with_failed_setup_never_starts(new_worker: Worker) -> None:
    new_worker.write_spec("print('never')", install={"setup": "echo 'no such package'; exit 100"})
    new_worker.record("start")
    log, record = new_worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 1, "setup")
    assert record.detail == "the setup command failed with exit code 100"
    assert log.decode().splitlines() == [
        "tpuctl: running the setup command",
        "no such package",
        "tpuctl: setup: the setup command failed with exit code 100",
    ]


def test_setup_runs_before_installation_and_shell_after_it(new_worker: Worker) -> None:
    code = new_worker.folder / "code"
    make_project(code / "model", "model", "value = 1\ndef say(): pass\n")
    shutil.move(code / "model/lib", code / "kept")
    setup = "python -c 'import sys; print(sys.version)' && mv kept model/lib"
    shell = 'python job.py; echo "$VIRTUAL_ENV"; command -v python; command -v say-model'
    new_worker.write_spec(
        "import model; print(model.value)",
        argv=["sh", "-c", shell],
        install={"setup": setup, "dependencies": ["./model"]},
    )
    new_worker.record("start")
    log, record = new_worker.follow()
    assert record.state == "succeeded", log.decode()
    value, home, python, program = log.decode().splitlines()[-4:]
    assert (value, python, program) == ("1", f"{home}/bin/python", f"{home}/bin/say-model")


# Interruptions ------------------------------------------------------------------------------


@pytest.fixture
def installing(new_worker: Worker, tmp_path: Path) -> Worker:
    """A worker during an installation that ends once the file `gate` exists."""
    gate = tmp_path / "gate"
    make_project(new_worker.folder / "code/model", "model", "value = 1\n", gate=gate)
    new_worker.write_spec("import model; print(model.value)", install={"dependencies": ["./model"]})
    new_worker.record("start")
    until(gate.with_name("gate.reached").exists, "building")
    return new_worker


@pytest.mark.soak
def test_start_after_all_processes_were_killed_during_installation(
    installing: Worker, tmp_path: Path
) -> None:
    assert installing.read("record.json")["state"] == "preparing"
    for pid in installing.processes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not installing.processes(), "the end of all processes")
    (tmp_path / "gate").touch()
    installing.record("start")
    log, record = installing.follow()
    assert record.state == "succeeded", log.decode()
    assert log.endswith(b"\n1\n")


def test_stop_during_installation(installing: Worker) -> None:
    record = installing.record("stop", "--grace", "5")
    assert (record.state, record.exit_code) == ("stopped", 143)
    until(lambda: not installing.processes(), "the end of all processes")
    assert b"installed" not in (installing.folder / "log").read_bytes()
