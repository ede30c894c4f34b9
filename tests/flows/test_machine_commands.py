"""ssh, cp, forward, status and explain, run as commands on a slice with three job workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl
from tests.support.ports import free_port
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control, server_process

NO_CHIPS = "the local cloud has no TPUs"
TRAINING = """
import json, sys, time
for step in range(1, 10_000):
    print(json.dumps({"step": step, "loss": 7.5, "tokens_per_second": 1234.5}), flush=True)
    time.sleep(0.2)
"""
FAILING = """
import os, time
if os.environ["TPUCTL_WORKER"] == "2":
    print("step [1] of [/2] was fine", flush=True)
    raise RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.0G")
time.sleep(600)
"""
SERVING = """
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the worker")
server = http.server.HTTPServer(("127.0.0.1", 0), Hello)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [forked_tpuctl(), *arguments],
            cwd=self.folder,
            capture_output=True,
            timeout=200,
            check=False,
        )
        stderr = done.stderr.decode()
        assert "Traceback" not in stderr, stderr
        return done.returncode, done.stdout.decode(), stderr

    def answer(self, *arguments: str) -> dict[str, Any]:
        code, out, stderr = self.run("--json", *arguments)
        envelope: dict[str, Any] = json.loads(out)
        assert envelope["exit_code"] == code, stderr
        return envelope

    @contextlib.contextmanager
    def background(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [forked_tpuctl(), *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def script(self, name: str, text: str) -> str:
        folder = self.folder / name.removesuffix(".py")
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
        return str((folder / name).relative_to(self.folder))


@pytest.fixture(scope="module")
def shell(
    local_cloud: server_process.LocalCloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("reaching")
    (folder / "tpuctl.yaml").write_text(
        "stack: reaching\nproject: {id: local-project}\n"
        "tpu: {type: v3-32, runtime: tpu-ubuntu2204-base, zones: [europe-west4-a]}\n"
        "job: {workers: [0, 1, 2]}\n",
        "utf-8",
    )
    shell = Shell(folder)
    code, _, stderr = shell.run("up", "--yes")
    assert code == 0, stderr
    yield shell
    assert shell.run("down", "--yes", "--delete-bucket")[0] == 0


def test_ssh_on_all_workers(shell: Shell) -> None:
    line = "echo out; echo err >&2; exit $(($(hostname | tail -c 2) == 2 ? 5 : 0))"
    code, out, stderr = shell.run("ssh", "--all-workers", "--", line)
    assert code == 5
    names = [f"[worker {number}] " for number in range(4)]
    assert sorted(out.splitlines()) == [f"{name}out" for name in names]
    assert sorted(stderr.splitlines()) == [f"{name}err" for name in names]

    response = shell.answer("ssh", "--all-workers", "--", "printf", "%s", "a  b")
    codes = [(worker["worker"], worker["exit_code"]) for worker in response["data"]["workers"]]
    assert codes == [(0, 0), (1, 0), (2, 0), (3, 0)]
    code, out, _ = shell.run("ssh", "worker-1", "--json", "--events", "--", "printf 'é\\377'")
    *events, envelope = map(json.loads, out.splitlines())
    assert code == 0
    assert {event["event"] for event in events} == {"CommandOutput"}
    assert envelope["data"] == {"workers": [{"worker": 1, "slice": None, "exit_code": 0}]}


@pytest.mark.soak
def test_job_runs_on_its_workers_and_ends_with_the_first_that_fails(shell: Shell) -> None:
    script = shell.script(
        "workers.py",
        "import os\n"
        "print('I am', os.environ['TPUCTL_WORKER'], 'of', os.environ['TPUCTL_WORKERS'])\n",
    )
    code, out, _ = shell.run("run", "--all-workers", script)
    assert code == 0
    assert sorted(out.splitlines()) == [f"[worker {n}] I am {n} of 4" for n in range(3)]
    failing = shell.script(
        "failing.py",
        "import os, sys, time\n"
        "if os.environ['TPUCTL_WORKER'] == '2':\n    sys.exit(11)\n"
        "time.sleep(600)\n",
    )
    code, _, errors = shell.run("run", failing)
    assert code == 11
    assert "worker 2" in errors
    processes = shell.run("ssh", "--all-workers", "--", "pgrep", "-af", "failing.py")[1]
    assert [line for line in processes.splitlines() if "pgrep" not in line] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("forward", "6006", "--worker", "9"), "workers 0 to 3, not 9"),
        (("explain", "nothing"), "nothing"),
    ],
)
def test_unknown_worker_and_job_are_reported(
    shell: Shell, arguments: tuple[str, ...], message: str
) -> None:
    code, out, stderr = shell.run(*arguments)
    assert code == (1 if arguments[0] == "explain" else 2)
    assert message in stderr + out


def test_cp_uploads_and_downloads(shell: Shell) -> None:
    tree = shell.folder / "tree"
    (tree / "in side").mkdir(parents=True)
    (tree / "in side" / "é 안").write_text("odd")
    (tree / "run.sh").write_text("#!/bin/sh\necho it runs\n")
    (tree / "run.sh").chmod(0o755)
    code, out, stderr = shell.run("cp", "-r", "--all-workers", "tree", ":")
    assert (code, out) == (0, ""), stderr
    assert stderr.count("2 files") == 4
    assert shell.run("ssh", "3", "--", "./tree/run.sh")[1] == "it runs\n"
    assert shell.answer("cp", "reaching-0:tree/in side/é 안", "back")["data"] == {
        "workers": [{"worker": 0, "slice": None, "files": 1, "bytes": 3}]
    }
    assert (shell.folder / "back").read_text() == "odd"


def test_forward_until_ctrl_c(shell: Shell) -> None:
    with shell.background("ssh", "1", "--", "python3", "-u", "-c", SERVING) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with shell.background("forward", port, "--worker", "1") as forward:
            assert forward.stdout is not None
            url, _, rest = forward.stdout.readline().strip().partition("  ")
            assert rest == f"forwards to port {port} of worker 1"
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.read() == b"from the worker"
            forward.send_signal(signal.SIGINT)
            assert forward.wait(60) == 0
            assert forward.stderr is not None
            assert forward.stderr.read() == "Press Ctrl-C to stop.\n"
        free = free_port()
        # The local port first, as for ssh, docker, and kubectl.
        words = ("forward", f"{free}:{port}", "--worker", "1", "--json", "--events")
        with shell.background(*words) as forward:
            assert forward.stdout is not None
            opened = json.loads(forward.stdout.readline())
            assert (opened["event"], opened["port"]) == ("PortForwarded", int(port))
            assert opened["url"] == f"http://127.0.0.1:{free}"
            forward.send_signal(signal.SIGINT)
            envelope = json.loads(forward.stdout.read().splitlines()[-1])
            assert envelope["exit_code"] == 0
            assert envelope["data"]["ports"][0]["url"] == opened["url"]


@pytest.mark.soak
def test_status_watch_follows_stack_and_job(
    shell: Shell, local_cloud: server_process.LocalCloud
) -> None:
    job = shell.answer("run", "-d", shell.script("training.py", TRAINING))["data"]["job"]
    with shell.background("status", "--watch", "--interval", "1", "--json") as watching:
        assert watching.stdout is not None
        steps: list[int] = []
        while len(steps) < 2:  # each update has new progress
            update = json.loads(watching.stdout.readline())
            assert (update["event"], update["problem"]) == ("StatusUpdate", "")
            job_state = update["data"]["jobs"][-1]
            assert (job_state["id"], job_state["attempt"]) == (job, 1)
            states = job_state["worker_states"]  # uploaded with a delay of some seconds
            if job_state["progress"]["step"] is not None and len(states) == 3:
                assert job_state["state"] == "running"
                assert job_state["progress"]["loss"] == 7.5
                assert job_state["progress"]["tokens_per_second"] == 1234.5
                assert states == dict.fromkeys(("0", "1", "2"), "running")
                chips = job_state["chip_metrics"].values()
                assert [each["absence"] for each in chips] == [NO_CHIPS] * 3
                if not steps or job_state["progress"]["step"] > steps[-1]:
                    steps.append(job_state["progress"]["step"])
        assert update["data"]["per_hour"] > 0
        # The cloud denies requests for a while: reported, and watching continues.
        fault = remote_control.add_fault(
            local_cloud, "deny", method="*ListNodes*", times="unlimited"
        )
        problem = ""
        while not problem:
            update = json.loads(watching.stdout.readline())
            problem = update["problem"]
        assert update["data"]["stack"] == "reaching", "the last known state"
        remote_control.remove_fault(local_cloud, fault["id"])
        while problem:
            problem = json.loads(watching.stdout.readline())["problem"]
        watching.send_signal(signal.SIGINT)
        *_, envelope = watching.stdout.read().splitlines()
        assert watching.wait(60) == 0
        assert json.loads(envelope)["data"]["stack"] == "reaching"

    os.environ["COLUMNS"] = "80"
    try:
        with Terminal(shell.folder, "status", "--watch", "--interval", "1") as terminal:
            terminal.wait_for("tokens/s")
            terminal.wait_for("workers 0-2 running")
            terminal.wait_for(f"no chip metrics: {NO_CHIPS}")
            terminal.wait_for("press Ctrl-C to stop")
            terminal.press_ctrl_c()
            assert terminal.end() == 0
            plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.output)
            assert max(map(len, plain.replace("\r", "\n").split("\n"))) <= 80
    finally:
        del os.environ["COLUMNS"]

    assert shell.run("stop", job)[0] == 0


@pytest.mark.soak
def test_status_lines_and_explain_of_running_job(shell: Shell) -> None:
    job = shell.answer("run", "-d", shell.script("training.py", TRAINING))["data"]["job"]
    with shell.background("status", "--watch", "--interval", "1") as watching:
        assert watching.stdout is not None
        word = job.rpartition("-")[2]
        pattern = (
            rf"\d\d:\d\d:\d\d node reaching-tpu READY; job {word} running.*, "
            rf"no chip metrics: {NO_CHIPS}; "
            r"\$[\d.]+/h, .* so far on Google"
        )
        while "running" not in (line := watching.stdout.readline().strip()):
            assert line, "no output"
        assert re.fullmatch(pattern, line)
        assert watching.stdout.readline(), "no second line"

    code, out, _ = shell.run("explain")
    assert code == 0
    assert "is running" in out
    assert shell.run("stop", job)[0] == 0
    explanation = shell.answer("explain", word)["data"]
    assert (explanation["state"], explanation["failure"]["kind"]) == ("stopped", "ended")
    code, out, _ = shell.run("status")
    assert code == 0
    assert f"{job}: stopped with exit code 143" in out


def test_explain_failed_job(shell: Shell) -> None:
    code, _, _ = shell.run("run", shell.script("failing.py", FAILING))
    assert code == 1
    code, out, stderr = shell.run("explain")
    assert (code, stderr) == (0, "")
    assert "failed with exit code 1" in out
    assert "on worker 2" in out
    assert "RuntimeError: RESOURCE_EXHAUSTED" in out
    assert "step [1] of [/2] was fine" in out
    assert "    tpuctl types" in out
    explanation = shell.answer("explain")["data"]
    assert (explanation["state"], explanation["exit_code"], explanation["attempt"]) == (
        "failed",
        1,
        1,
    )
    failure = explanation["failure"]
    assert (failure["name"], failure["kind"], failure["worker"]) == ("hbm", "failure", 2)
    assert any("RESOURCE_EXHAUSTED" in line for line in failure["lines"])
    assert explanation["previous_failures"] == []

    code, out, _ = shell.run("--json", "--events", "logs", "--all-workers")
    *events, envelope = map(json.loads, out.splitlines())
    assert (code, envelope["exit_code"]) == (0, 0)
    logs = dict.fromkeys(range(3), "")
    for event in events:
        assert event["event"] == "LogChunk"
        assert event["offset"] == len(logs[event["worker"]])
        logs[event["worker"]] += event["data"]
    assert logs[0] == logs[1] == ""
    assert logs[2].startswith("step [1] of [/2] was fine\nTraceback"), (
        "no worker names in the log: events have them"
    )


def test_explain_names_rule_that_left_out_the_file(shell: Shell) -> None:
    name = shell.script("reads.py", "print(open('labels' + '.json'))")
    (shell.folder / "reads/labels.json").write_text("{}")
    (shell.folder / "reads/.tpuctlignore").write_text("# data\nlabels.json\n")
    assert shell.run("run", name)[0] == 1
    failure = shell.answer("explain")["data"]["failure"]
    assert failure["name"] == "missing-data"
    assert "labels.json is on this computer" in failure["cause"]
    assert "reads/.tpuctlignore:2 (labels.json)" in failure["cause"]
    assert "job: {include: [/labels.json]}" in failure["hint"]


@pytest.mark.soak
async def test_explain_from_bucket_after_machines_are_gone(
    make_stack: Callable[..., Tpuctl], local_cloud: server_process.LocalCloud, tmp_path: Path
) -> None:
    stack = make_stack()
    await stack.up()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "good.py").write_text("print('well done')")
    (tmp_path / "job" / "bad.py").write_text("raise SystemExit('no such data: gs://x/y')")
    good = await stack.submit(tmp_path / "job" / "good.py")
    assert await stack.follow(good) == 0
    bad = await stack.submit(tmp_path / "job" / "bad.py")
    assert await stack.follow(bad) == 1
    explained = await stack.explain(good)
    assert (explained.status.state, explained.failure) == ("succeeded", None)
    alive = await stack.explain(bad)
    await stack.down()
    for _ in range(2):  # the second time, the cloud denies listing machines
        after_down = await stack.explain(bad)
        assert after_down.failure is not None and alive.failure is not None
        assert after_down.failure.name == alive.failure.name
        assert "no such data: gs://x/y" in after_down.lines[-1]
        fault = remote_control.add_fault(local_cloud, "deny", method="*ListNodes*", times=4)
    assert after_down.is_unqueried
    remote_control.remove_fault(local_cloud, fault["id"])
    await stack.down(delete_bucket=True)
