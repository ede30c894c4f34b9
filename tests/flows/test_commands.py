"""Commands in a shell: their output, exit codes and effects."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.forked_cli import forked_tpuctl, run_tpuctl
from tests.support.stack_jobs import read_until
from tests.support.subprocesses import run_captured
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import server_process

pytestmark = pytest.mark.long

COUNTING = """
import sys, time
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


class Shell:
    """A folder with a stack that is up, in which commands are run."""

    def __init__(self, stack: Tpuctl) -> None:
        self.stack = stack
        self.folder = stack.stack_file.parent

    def script(self, name: str, text: str) -> str:
        folder = self.folder / name.removesuffix(".py")
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
        return str((folder / name).relative_to(self.folder))

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        done = run_tpuctl(*arguments, folder=self.folder, **(env or {}))
        return done.returncode, done.stdout, done.stderr

    def begin(self, *arguments: str, program: Sequence[str] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*(program or (forked_tpuctl(),)), *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self, part: str) -> str:
        """The processes on worker 0 with `part` in their command line."""
        processes = self.run("ssh", "0", "--", "pgrep", "-af", part)[1]
        return "\n".join(line for line in processes.splitlines() if "pgrep" not in line)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def shell(local_cloud: server_process.LocalCloud, shared_folder: Path) -> Iterator[Shell]:
    path = shared_folder / "tpuctl.yaml"
    path.write_text(
        "stack: commands\nproject: {id: local-project}\n"
        "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\n",
        "utf-8",
    )
    shell = Shell(Tpuctl(path, cloud="local"))
    code, _, errors = shell.run("up", "--yes")
    assert code == 0, errors
    yield shell
    assert shell.run("down", "--yes", "--delete-bucket")[0] == 0


def expected(lines: int) -> str:
    return "".join(f"line {number}\n" for number in range(lines))


def test_run_shows_log_and_returns_job_exit_code(shell: Shell) -> None:
    script = shell.script("counting.py", COUNTING)
    code, out, _ = shell.run("run", script, "--", "5", "0", "7")
    assert (code, out) == (7, expected(5))


@pytest.mark.soak
def test_options_after_dashes_go_to_script(shell: Shell) -> None:
    script = shell.script("arguments.py", "import sys\nprint(sys.argv[1:])\n")
    code, out, _ = shell.run("run", script, "--", "--json", "--cloud", "x", "-y")
    assert (code, out) == (0, "['--json', '--cloud', 'x', '-y']\n")


def test_job_environment_variables(shell: Shell) -> None:
    script = shell.script(
        "environment.py",
        "import json, os\n"
        "print(json.dumps({n: v for n, v in os.environ.items() if n.startswith(('TPU'))}))\n",
    )
    code, out, _ = shell.run("run", script)
    assert code == 0
    status = json.loads(out)
    job = status["TPUCTL_JOB"]
    bucket = shell.stack.stack.bucket
    assert status["TPUCTL_OUTPUT"] == f"gs://{bucket}/tpuctl/jobs/{job}/output"
    assert status["TPUCTL_FOLDER"].endswith(f"/.tpuctl/jobs/{job}/1")
    del status["TPUCTL_JOB"], status["TPUCTL_OUTPUT"], status["TPUCTL_FOLDER"]
    # The local cloud's, in place of what JAX asks TPU VMs.
    assert (status.pop("TPU_WORKER_ID"), status.pop("TPU_WORKER_HOSTNAMES")[:4]) == ("0", "127.")
    assert (status.pop("TPUCTL_TPU_DEVICES"), status.pop("TPUCTL_TPU_SLICE_DEVICES")) == ("8", "8")
    assert {name: status[name] for name in status if name != "TPUCTL_MACHINE"} == {
        "TPUCTL_ATTEMPT": "1",
        "TPUCTL_WORKER": "0",
        "TPUCTL_WORKERS": "1",
        "TPUCTL_TYPE": "v2-8",
        "TPUCTL_CHIPS": "4",
        "TPUCTL_BUCKET": bucket,
        "TPUCTL_CLOUD": "local",
        "TPU_NAME": "local",
        "TPU_ZONE": "us-central1-b",
        "TPU_PROJECT": "local-project",
    }


@pytest.mark.soak
def test_crashed_job_leaves_no_process(shell: Shell) -> None:
    script = shell.script("crashing.py", "raise RuntimeError('at once')\n")
    done = run_captured([forked_tpuctl(), "run", script], cwd=shell.folder)
    assert done.returncode == 1
    assert "RuntimeError: at once" in done.stdout  # the job's own traceback, in its log
    assert "Traceback" not in done.stderr
    assert shell.processes("crashing.py") == ""


def test_missing_or_invalid_script_is_not_uploaded(shell: Shell) -> None:
    before = json.loads(shell.run("jobs", "--json")[1])["data"]
    assert shell.run("run", "absent.py")[0] == 2
    broken = shell.script("broken.py", "if\n")
    code, _, errors = shell.run("run", broken)
    assert code == 65
    assert "broken.py:1" in errors
    assert json.loads(shell.run("jobs", "--json")[1])["data"] == before


def test_ctrl_c_detaches_and_logs_resume_at_same_byte(shell: Shell) -> None:
    script = shell.script("counting.py", COUNTING)
    real = (sys.executable, "-m", "tpuctl")
    process = shell.begin("run", script, "--", "25", "0.1", "3", program=real)
    output = read_until(process, "line 4\n")
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    output += out
    assert process.returncode == 130
    command = next(line.split() for line in errors.splitlines() if "logs -f" in line)
    code, rest, _ = shell.run(*command[1:])
    assert code == 3
    assert output + rest == expected(25)
    assert shell.run("logs", command[3])[1] == expected(25)
    assert shell.run("logs", command[3], "--offset", "10")[1] == expected(25)[10:]


def test_second_ctrl_c_stops_job(shell: Shell) -> None:
    script = shell.script("stopped.py", COUNTING)
    process = shell.begin("run", script, "--", "1000", "0.1", "0")
    read_until(process, "line 1\n")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert shell.processes("stopped.py") == ""
    jobs = json.loads(shell.run("jobs", "--json")[1])["data"]
    assert [job["state"] for job in jobs if job["script"] == "stopped.py"] == ["stopped"]


def test_killed_client_loses_nothing(shell: Shell) -> None:
    script = shell.script("counting.py", COUNTING)
    process = shell.begin("run", script, "--", "20", "0.1", "5")
    read_until(process, "line 2\n")
    process.kill()
    process.communicate()
    code, out, _ = shell.run("logs", "-f")
    assert (code, out) == (5, expected(20))


@pytest.mark.soak
def test_third_ctrl_c_does_not_wait_for_unresponsive_job(shell: Shell) -> None:
    script = shell.script(
        "deaf.py",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\nwhile True: time.sleep(1)\n",
    )
    process = shell.begin("run", script)
    read_until(process, "deaf\n")
    assert process.stderr is not None
    for line in ("Ctrl-C again", "has 30 seconds"):
        process.send_signal(signal.SIGINT)
        while line not in (errors := process.stderr.readline()):
            assert errors, f"ended without {line!r}"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "still being stopped" in errors
    shell.run("ssh", "0", "--", "pkill", "-9", "-f", "deaf.py")


def test_ssh_passes_command(shell: Shell) -> None:
    words = ["printf", "[%s]", "-l", "--yes", "a b"]
    assert shell.run("ssh", "0", "--", *words)[:2] == (0, "[-l][--yes][a b]")
    assert shell.run("ssh", "0", "printf", "%s", "-l")[:2] == (0, "-l")
    assert shell.run("ssh", "--", "exit 7")[0] == 7
    assert shell.run("ssh", "--", "pgrep", "-f", "no such program")[:2] == (1, ""), "not itself"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed")
def test_ssh_is_in_environment_of_job(shell: Shell) -> None:
    """A command, one on all workers, and a shell; input is passed on."""
    (shell.folder / "packaged/src").mkdir(parents=True)
    (shell.folder / "packaged/src/of_the_job.py").write_text("print('imported')")
    (shell.folder / "packaged/train.py").write_text("import of_the_job")
    assert shell.run("run", "packaged/train.py")[0] == 0
    for words in (("0", "--"), ("--all-workers", "--")):
        code, out, error = shell.run("ssh", *words, "python3", "-c", "import of_the_job")
        assert (code, out.rpartition("] ")[2]) == (0, "imported\n"), error
    lines = "python3 -c 'import of_the_job'; echo $TPUCTL_JOB; exit 9"
    done = run_captured([forked_tpuctl(), "ssh"], cwd=shell.folder, input=lines, timeout=60)
    assert done.returncode == 9, done.stderr
    imported, job = done.stdout.splitlines()
    assert imported == "imported"
    assert done.stderr == "", "ssh does not say that there is no terminal"
    assert shell.run("jobs", "show", job)[0] == 0


@pytest.mark.soak
def test_job_commands_without_jobs(
    local_cloud: server_process.LocalCloud, make_stack: Callable[..., Tpuctl]
) -> None:
    shell = Shell(make_stack())
    for command in ("logs", "wait", "stop"):
        code, _, errors = shell.run(command)
        assert (code, errors.splitlines()[0]) == (1, "error: No jobs")
        code, _, errors = shell.run(command, "otter")
        assert (code, errors.splitlines()[0]) == (1, "error: Job not found")


@pytest.mark.soak
def test_up_creates_nothing_without_key_folder(
    make_stack: Callable[..., Tpuctl], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    shell = Shell(make_stack())
    code, _, errors = shell.run("up", "--yes", env={"TPUCTL_CONFIG_HOME": str(tmp_path / "file")})
    assert code == 2, errors
    assert json.loads(shell.run("status", "--json")[1])["data"]["bucket"] is None


def test_detach_wait_and_stop(shell: Shell) -> None:
    script = shell.script("counting.py", COUNTING)
    code, out, _ = shell.run("run", "--detach", script, "--json", "--", "3", "0.1", "9")
    job = json.loads(out)["data"]["job"]
    assert code == 0
    assert shell.run("wait", job)[0] == 9
    code, out, _ = shell.run("run", "-d", script, "--json", "--", "600", "0.1", "0")
    job = json.loads(out)["data"]["job"]
    code, out, _ = shell.run("stop", job, "--json")
    assert (code, json.loads(out)["data"]["state"]) == (0, "stopped")
    assert shell.run("wait", job)[0] == 143
    assert shell.run("stop", job)[0] == 0  # repeating it changes nothing


@pytest.mark.soak
def test_another_laptop_needs_up_first(shell: Shell, tmp_path: Path) -> None:
    script = shell.script("counting.py", COUNTING)
    other = {"TPUCTL_CONFIG_HOME": str(tmp_path / "other")}
    code, _, errors = shell.run("run", script, "--", "1", "0", "0", env=other)
    assert code == 69
    assert "SSH key" in errors
    assert "tpuctl up" in errors
    assert shell.run("up", "--yes", env=other)[0] == 0
    assert shell.run("run", script, "--", "1", "0", "0", env=other)[0] == 0
    assert shell.run("run", script, "--", "1", "0", "0")[0] == 0  # the first one is still allowed


def test_output_bytes_are_unchanged(shell: Shell) -> None:
    text = (
        "import sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(bytes(range(256)))\n"
        "out.write('\\r10%\\r20%\\x1b[32m초록\\x1b[0m no newline'.encode())\n"
    )
    script = shell.script("bytes.py", text)
    done = subprocess.run(
        [forked_tpuctl(), "run", script], cwd=shell.folder, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == bytes(range(256)) + "\r10%\r20%\x1b[32m초록\x1b[0m no newline".encode()


def test_max_hours_stops_job_with_124(shell: Shell) -> None:
    script = shell.script("long.py", COUNTING)
    original = (shell.folder / "tpuctl.yaml").read_text("utf-8")
    short = shell.folder / "short.yaml"
    short.write_text(original + "limits: {max_hours: 0.0004}\n", "utf-8")  # 1.4 seconds
    code, _, errors = shell.run(
        "--stack-file", "short.yaml", "run", script, "--", "600", "0.1", "0"
    )
    assert code == 124
    assert "limit" in errors


@pytest.mark.soak
def test_records_and_logs_survive_machine(
    make_stack: Callable[..., Tpuctl],
) -> None:
    shell = Shell(make_stack())
    script = shell.script("counting.py", COUNTING)
    code, _, errors = shell.run("run", script, "--", "1", "0", "0")
    assert code == 1
    assert "tpuctl up" in errors, "the error suggests `tpuctl up`"
    assert shell.run("up", "--yes")[0] == 0
    assert shell.run("run", script, "--", "4", "0", "6")[0] == 6
    assert shell.run("down", "--yes")[0] == 0
    assert shell.run("logs")[1] == expected(4)
    code, out, _ = shell.run("logs", "-f")
    assert (code, out) == (6, expected(4))
    answer = json.loads(shell.run("jobs", "--json")[1])["data"]
    assert [(job["state"], job["exit_code"]) for job in answer] == [("failed", 6)]
    assert shell.run("down", "--yes", "--delete-bucket")[0] == 0


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used_port:
        port = used_port.getsockname()[1]
        done = run_captured(
            [forked_tpuctl(), "local", "up", "--port", str(port)],
            env=os.environ | {"TPUCTL_LOCAL_HOME": str(tmp_path / "cloud")},
        )
    assert done.returncode not in (0, 70)
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False)
    assert left.returncode == 1, "a server was left running"


@pytest.mark.soak
def test_local_cloud_up_down_and_reset(tmp_path: Path) -> None:
    def local(*arguments: str) -> tuple[int, dict[str, object]]:
        done = run_captured(
            [forked_tpuctl(), "local", *arguments, "--json"],
            env=os.environ | {"TPUCTL_LOCAL_HOME": str(tmp_path / "cloud")},
        )
        return done.returncode, json.loads(done.stdout)["data"]

    code, status = local("status")
    assert (code, status["running"], status["folder_bytes"]) == (1, False, 0)
    code, first = local("up")
    assert code == 0
    assert local("up")[1]["pid"] == first["pid"], "a second start finds the first"
    assert local("status")[1]["running"] is True
    assert local("down") == (0, {"stopped": True})
    assert local("down") == (0, {"stopped": False})
    assert local("up")[1]["url"] == first["url"], "the port is kept"
    assert local("down") == (0, {"stopped": True})
    port = int(str(first["url"]).rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        code, moved = local("up")
    assert (code, moved["url"] != first["url"]) == (0, True), "unless the port is in use"
    assert local("reset", "--yes")[0] == 0
    assert local("status")[0] == 1
