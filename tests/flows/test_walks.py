"""A new user's commands on an empty cloud, in every order that makes sense; and every command that
they print, pasted."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tpuctl.local_cloud import server_process

pytestmark = pytest.mark.long

COMMAND = re.compile(r"(?m)^ {4,}(tpuctl [^\n]+)$")
# They change nothing: some are typed after each that does.
READERS = ("doctor", "plan", "status", "check", "check train.py", "jobs", "orphans")
HARMLESS = ("check", "doctor", "explain", "jobs", "logs", "orphans", "plan", "report", "status")
FAIL = "import missing_module\n"
ENDLESS = "import time\nprint('step 1 loss 2.5', flush=True)\ntime.sleep(600)\n"
TRAIN = 'for step in range(3):\n    print(f"step {step} loss {1 / (step + 1):.2f}", flush=True)\n'


def orders() -> Iterator[tuple[str, ...]]:
    """Each order of the commands that change something, with a stack whenever there is a run."""
    for order in itertools.permutations(("rehearse", "up", "run", "down")):
        places = [order.index(name) for name in ("up", "run", "down")]
        if places[0] < places[1] and not places[0] < places[2] < places[1]:
            yield order
    yield ("down", "down", "rehearse", "rehearse", "run --up", "up", "run", "rehearse")
    yield ("up", "down", "rehearse", "down --delete-bucket", "rehearse", "up", "down")


SAMPLED = ("rehearse", "up", "run", "down")


class Walk:
    """A user in a folder, on a local cloud of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cloud = server_process.start(folder.parent / "local", pace="instant")
        self.printed: dict[str, int | None] = {}  # commands, with their exit code once pasted

    def type(self, words: str) -> subprocess.CompletedProcess[str]:
        """Type a command, and keep those that it prints."""
        done = run_tpuctl("--yes", *shlex.split(words, comments=True), folder=self.folder)
        texts = f"{done.stdout}\n{done.stderr}"
        self.printed = dict.fromkeys(COMMAND.findall(texts)) | self.printed
        return done

    def succeed(self, words: str) -> str:
        done = self.type(words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def init(self, **changes: str) -> None:
        """Create the stack, with machines that have only Python: they start at once."""
        self.succeed("init --name walk --type v2-8")
        self.printed.pop("tpuctl run bert-pretraining/pretrain.py")  # `make demo` does that
        (self.folder / "train.py").write_text(TRAIN, "utf-8")
        path = self.folder / "tpuctl.yaml"
        text = path.read_text("utf-8")
        for key, value in {"runtime": "tpu-ubuntu2204-base", **changes}.items():
            text = re.sub(rf"\b{key}: \S+", f"{key}: {value}", text, count=1)
        path.write_text(text, "utf-8")

    def paste(self, *names: str) -> list[str]:
        """Paste the printed commands of these names, but each only once; return what failed."""
        failures = []
        for command in [*self.printed]:
            if self.printed[command] is None and shlex.split(command)[1] in names:
                done = self.type(command.removeprefix("tpuctl "))
                self.printed[command] = done.returncode
                # Following a job ends with the job's own exit code; `orphans` and what it says with
                # 1 until the project's APIs are enabled, since not everything can be listed.
                if done.returncode and not re.search(r" -f | orphans\b| --stack ", command):
                    failures.append(f"{command}: {done.stderr}")
        return failures


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "local"))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TPUCTL_CLOUD", "local")
    folder = tmp_path / "folder"
    folder.mkdir()
    yield Walk(folder)
    server_process.stop(tmp_path / "local")


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, id="-".join(order), marks=() if order == SAMPLED else pytest.mark.soak)
        for order in orders()
    ],
)
def test_commands_work_in_any_order(walk: Walk, order: tuple[str, ...]) -> None:
    walk.init()
    readers = itertools.cycle(READERS)
    is_up = False
    for command in order:
        script = command.startswith(("run", "rehearse"))
        out = walk.succeed(f"{command} train.py" if script else command)
        is_up = command == "up" or "--up" in command or (is_up and "down" not in command)
        if command == "rehearse":
            assert f"tpuctl run {'' if is_up else '--up '}train.py" in out
        for reader in itertools.islice(readers, 1 if order == SAMPLED else 3):
            walk.type(reader) if reader == "orphans" else walk.succeed(reader)


@pytest.mark.soak
def test_printed_commands_work_when_pasted(walk: Walk) -> None:
    walk.init(capacity="spot")
    # Without a stack: the hints of what fails, too.
    for words in ("doctor", "status", "jobs", "explain", "orphans", "run train.py", "stop"):
        walk.type(words)
    assert not walk.paste(*HARMLESS)
    for words in ("rehearse train.py", "down"):
        walk.succeed(words)
    walk.type("orphans --all")
    assert not walk.paste(*HARMLESS, "down")
    # Each command that runs the job or brings the stack up, and what then suggests itself.
    assert not walk.paste("up", "run")
    (walk.folder / "own").mkdir()
    (walk.folder / "own" / "fail.py").write_text(FAIL, "utf-8")
    assert walk.type("run own/fail.py -- --steps 3").returncode == 1
    job = job_of(walk.succeed("jobs"))
    assert "tpuctl run own/fail.py -- --steps 3" in walk.succeed(f"jobs show {job}")
    assert not walk.paste(*HARMLESS)
    for words in ("status", "doctor", "jobs", "explain"):
        walk.succeed(words)
    (walk.folder / "own" / "endless.py").write_text(ENDLESS, "utf-8")
    walk.succeed("run -d own/endless.py")
    job = job_of(walk.succeed("jobs"))
    assert f"tpuctl logs -f {job}" in walk.succeed("status")
    assert "stopped" in walk.succeed(f"stop {job}")
    assert "tpuctl run own/endless.py" in walk.succeed(f"explain {job}")
    assert not walk.paste(*HARMLESS)
    walk.succeed("down")
    assert "tpuctl run own/endless.py" in walk.succeed(f"explain {job}")
    assert not walk.paste("up")
    assert not walk.paste(*HARMLESS, "down")


def test_stack_of_which_the_bucket_is_left_is_deleted_as_orphans_says(walk: Walk) -> None:
    walk.init()
    walk.succeed("up")
    walk.succeed("down")
    walk.printed.clear()
    assert "bucket/walk-local-project" in walk.succeed("orphans --all")
    assert not walk.paste("down")
    assert "bucket/" not in walk.succeed("orphans --all")


def job_of(jobs: str) -> str:
    """The latest job in the output of `jobs`."""
    return jobs.splitlines()[2].split()[0]
