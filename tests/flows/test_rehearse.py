"""`rehearse`: runs scripts for a few steps on this machine, in the runtime's environment."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, Note
from tpuctl.polling import Backoff, wait_until

pytestmark = pytest.mark.tensorflow

PROLOGUE = """
import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
batch = 8 * strategy.num_replicas_in_sync
"""
GOOD = f"""{PROLOGUE}
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((32,)), tf.keras.layers.Dense(10)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = tf.random.stateless_normal((4096, 32), (1, 2))
pairs = tf.data.Dataset.from_tensor_slices((x, tf.argmax(x[:, :10], axis=1))).repeat()
model.fit(
    pairs.batch(batch, drop_remainder=True),
    epochs=20,
    steps_per_epoch=100,
    callbacks=[
        tf.keras.callbacks.BackupAndRestore(os.environ["TPUCTL_OUTPUT"] + "/backup", save_freq=2)
    ],
    verbose=2,
)
"""
# Without TensorFlow; prints its environment.
PRINT_ENVIRONMENT = """
import json, os, sys

print("ENVIRONMENT", json.dumps([sys.argv, os.getcwd(), dict(os.environ)]))
"""
ENDLESS = """
import os, subprocess, sys, time

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child.pid} ")
time.sleep(600)
"""
RUNTIME = "tpu-vm-tf-2.18.0-pjrt-v5p-and-below"
WITHOUT_TENSORFLOW = {
    "type_name": "v5litepod-1",
    "zone": "us-central1-a",
    "runtime": "v2-alpha-tpuv5-lite",
}


class RehearseCommand:
    """Runs the command in a stack's folder."""

    def __init__(self, stack: Tpuctl) -> None:
        self.folder = stack.stack_file.parent

    def write(self, text: str, name: str = "train.py") -> None:
        (self.folder / name).write_text(text, "utf-8")

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [forked_tpuctl(), "--cloud", "local", "rehearse", *words],
            cwd=self.folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        started = self.start(*words, **variables)
        out, stderr = started.communicate()
        return subprocess.CompletedProcess(words, started.returncode, out, stderr)

    def data(self, *words: str, **variables: str) -> tuple[int, Any]:
        done = self.run("--json", *words, **variables)
        answer = json.loads(done.stdout)
        assert answer["exit_code"] == done.returncode
        assert answer["data"] is not None, answer["diagnostics"]
        return done.returncode, answer["data"]


@pytest.fixture
def command(make_stack: Callable[..., Tpuctl]) -> RehearseCommand:
    return RehearseCommand(make_stack(runtime=RUNTIME, extra="job: {env: {EPOCHS: '3'}}\n"))


def finding_of(data: Any, topic: str) -> Any:
    [finding] = [finding for finding in data["findings"] if finding["topic"] == topic]
    return finding


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")


def printed_environment(data: Any) -> Any:
    log = Path(data["runs"][0]["log"]).read_text("utf-8")
    [line] = [line for line in log.splitlines() if line.startswith("ENVIRONMENT ")]
    return json.loads(line.removeprefix("ENVIRONMENT "))


@pytest.mark.timeout(900)  # the first time, the image is downloaded
def test_good_script_resumes_from_checkpoint_without_findings(command: RehearseCommand) -> None:
    command.write(GOOD)
    code, data = command.data("--steps", "4", "train.py")
    problems = [
        finding
        for finding in data["findings"]
        if finding["severity"] in ("error", "cost", "risk")
        and finding["topic"] != "data"  # how long steps wait depends on what else runs here
    ]
    assert (code, problems) == (0, [])
    assert data["measured"]["steps"] == 4
    assert data["measured"]["planned_steps"] == 2000
    assert [function["compilations"] for function in data["measured"]["functions"]] == [1]
    assert data["measured"]["examples"] == 8
    assert data["measured"]["replica_examples"] == 64
    assert finding_of(data, "compiling")["severity"] == "fine"
    assert finding_of(data, "loss")["severity"] == "fine"
    assert finding_of(data, "checkpoint")["severity"] == "fine"
    assert not (command.folder / "__pycache__").exists()


def test_script_sees_worker_environment_and_samples_but_not_google(
    command: RehearseCommand, make_stack: Callable[..., Tpuctl]
) -> None:
    command.write(PRINT_ENVIRONMENT)
    (command.folder / "data" / "inner").mkdir(parents=True)
    (command.folder / "data" / "inner" / "one.txt").write_text("1", "utf-8")
    bucket = f"samples-{command.folder.name}"
    code, data = command.data(
        *("--sample", f"data=gs://{bucket}/train", "train.py", "--", "--rate", "1e-4"),
        HF_TOKEN="mine",
        GOOGLE_APPLICATION_CREDENTIALS="/home/me/key.json",
    )
    argv, folder, variables = printed_environment(data)
    assert code == 0
    assert argv == ["train.py", "--rate", "1e-4"]
    assert folder == str(command.folder.resolve())
    assert variables["EPOCHS"] == "3"
    assert variables["TPUCTL_WORKER"] == "0"
    assert variables["TPU_NAME"] == "local"
    assert variables["TPUCTL_OUTPUT"] == data["output"]
    assert "HF_TOKEN" not in variables
    home = Path(os.environ["TPUCTL_LOCAL_HOME"])
    assert Path(variables["GOOGLE_APPLICATION_CREDENTIALS"]).is_relative_to(home)
    assert Path(variables["CLOUDSDK_CONFIG"]).is_relative_to(home)
    assert "127.0.0.1" in variables["https_proxy"]
    assert (
        finding_of(data, "script")["severity"] == "unknown"
    )  # without a framework, nothing is observed
    client = make_stack().cloud.client("storage")
    assert client.bucket(bucket).blob("train/inner/one.txt").download_as_bytes() == b"1"


def test_failing_script_is_reported_with_location(command: RehearseCommand) -> None:
    command.write("import json\n\njson.loads('no')\n")
    done = command.run("train.py")
    assert done.returncode == 1
    assert "train.py:3 error script: " in done.stdout
    assert "JSONDecodeError" in done.stdout
    assert "rehearse train.py" in done.stdout.splitlines()[-1]


# Prints its folder, writes into it, and reads a file that is not uploaded.
IN_A_COPY = """
import os

print("FILES", sorted(os.listdir()), flush=True)
open("written.txt", "w").close()
open("notes.txt", "a").write("more")
import left_out
"""


def test_script_runs_in_a_copy_of_what_is_uploaded(command: RehearseCommand) -> None:
    folder = command.folder
    command.write(IN_A_COPY)
    others = {
        ".gitignore": "src/left_out.py\n",
        ".env": "TOKEN=x",
        "notes.txt": "notes",
        "src/left_out.py": "",
        "weights.h5": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }
    (folder / "src").mkdir()
    for name, text in others.items():
        (folder / name).write_text(text)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = command.run("--json", "--no-check", "train.py")
    data = json.loads(done.stdout)["data"]
    assert done.returncode == 1
    finding = finding_of(data, "files")
    assert "src/left_out.py is not uploaded: " in finding["message"]
    assert ".gitignore:1 (src/left_out.py)" in finding["message"]
    assert "job: {include: [/src/left_out.py]}" in finding["hint"]
    assert (Path(finding["file"]), finding["line"]) == (folder / "train.py", 7)
    assert "Credentials are not uploaded" in done.stdout
    assert "git lfs pull" in done.stdout
    log = Path(data["runs"][0]["log"]).read_text("utf-8")
    [listing] = [line for line in log.splitlines() if line.startswith("FILES ")]
    uploaded = {".gitignore", "notes.txt", "src", "train.py", "tpuctl.yaml", "weights.h5"}
    assert set(ast.literal_eval(listing.removeprefix("FILES "))) == uploaded
    assert f'File "{folder}/train.py", line 7' in log
    # The user's folder is as before; what the script wrote is kept until the next rehearsal.
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    written = Path(data["written"])
    texts = {path.name: path.read_text() for path in written.iterdir()}
    assert texts == {"written.txt": "", "notes.txt": "notesmore"}
    running = written.parents[1] / "another-rehearsal" / "files"
    running.mkdir(parents=True)
    command.write("print()\n")
    _, data = command.data("train.py")
    assert data["written"] is None
    assert not written.exists()
    assert running.exists(), "it may be in progress"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
async def test_ctrl_c_stops_all_processes(command: RehearseCommand) -> None:
    pids = command.folder / "pids"
    command.write(ENDLESS)
    started = command.start("train.py", "--", str(pids))

    async def written() -> bool | None:
        return (pids.exists() and pids.read_text("utf-8").endswith(" ")) or None

    await wait_until(
        written, description="the script's start", seconds=120, backoff=Backoff(0.1, 0.3)
    )
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=120)
    assert started.returncode == 130, stderr
    assert "Interrupted" in stderr
    assert not any(map(is_alive, map(int, pids.read_text("utf-8").split())))


def test_command_cannot_be_rehearsed(command: RehearseCommand) -> None:
    command.write("#!/bin/sh\n", "train.sh")
    (command.folder / "train.sh").chmod(0o755)
    done = command.run("train.sh")
    assert done.returncode == 65
    assert "Only Python can be rehearsed" in done.stderr


@pytest.mark.parametrize(
    ("framework", "machine"),
    [
        ("tensorflow", {"runtime": RUNTIME}),
        ("jax", WITHOUT_TENSORFLOW),
        ("torch_xla", WITHOUT_TENSORFLOW),
    ],
)
async def test_run_suggests_rehearsal_of_new_content(
    make_stack: Callable[..., Tpuctl], events: list[Event], framework: str, machine: dict[str, str]
) -> None:
    from tpuctl.flows.preflight.rehearse import RehearsalOptions

    stack = make_stack(**machine)
    script = stack.stack_file.parent / "job" / "train.py"
    script.parent.mkdir()
    # The framework that it would use need not be installed.
    script.write_text(f"if False:\n    import {framework}\nprint('trained')\n", "utf-8")
    await stack.up()

    async def suggestions() -> list[str]:
        events.clear()
        record = await stack.submit(script, ["--steps", "1"])
        assert await stack.follow(record) == 0
        notes = [event.text for event in events if isinstance(event, Note)]
        return [text for text in notes if "tpuctl rehearse" in text]

    [suggestion] = await suggestions()
    assert suggestion.endswith(f"    tpuctl rehearse {script} -- --steps 1")
    await stack.rehearse(stack.submission(script), RehearsalOptions())
    assert await suggestions() == []
    script.write_text(f"if False:\n    import {framework}\nprint('trained more')\n", "utf-8")
    assert len(await suggestions()) == 1
    await stack.down(delete_bucket=True)
