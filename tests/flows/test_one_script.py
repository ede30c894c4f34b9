"""`run --tpu`: a script without a stack file gets a TPU, and only its bucket is left."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.projects import numbers, use_cloud
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.stack.stack import read_stack

# The import decides about the image, of which this one needs no download.
JAX = "try:\n    import jax\nexcept ImportError:\n    pass\n"
ENDLESS = f"{JAX}import time\nprint('it runs', flush=True)\nwhile True: time.sleep(0.1)\n"
TPU = ("--tpu", "v5e-1")
NAMED = re.compile(r"--stack (\S+) --project (\S+)")


@pytest.fixture
def folder(local_cloud: LocalCloud, tmp_path: Path) -> Iterator[Path]:
    """A folder without a stack file. What its scripts leave is deleted after the test."""
    path = tmp_path / f"lab{next(numbers)}"
    path.mkdir()
    yield path
    for script in path.glob("*.py"):
        asyncio.run(stack_of(script).down(delete_bucket=True))


def write(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text, "utf-8")
    return script


def stack_of(script: Path) -> Tpuctl:
    """The stack of a script, by its name."""
    from tpuctl.flows.stack.script_stack import stack_name
    from tpuctl.preflight.submit_gate import runnable

    name = stack_name(runnable(str(script)), "local-project")
    return Tpuctl(name=name, project="local-project", cloud="local")


def left(script: Path) -> list[str]:
    """The kinds of what is left of a script's stack."""
    return sorted({item.kind for item in asyncio.run(stack_of(script).status()).inventory})


def type_line(line: str, folder: Path, *more: str) -> str:
    """Run a printed command; returns what it prints."""
    program, *words = shlex.split(line)
    assert program == "tpuctl"
    done = run_tpuctl(*words, *more, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed(text: str, command: str) -> str:
    """The printed line with that command."""
    lines = [line.strip() for line in text.splitlines()]
    (line,) = {line for line in lines if line.startswith(f"tpuctl {command}")}
    return line


def test_only_the_bucket_is_left_and_used_again(folder: Path) -> None:
    script = write(folder, f"{JAX}import sys\nprint('hello', *sys.argv[1:])\n")
    done = run_tpuctl("run", "--yes", *TPU, "train.py", "--", "a b", folder=folder)
    assert (done.returncode, done.stdout) == (0, "hello a b\n"), done.stderr
    assert left(script) == ["bucket"]
    bucket = f"gs://{stack_of(script).stack.bucket}"
    for text in ("v5litepod-1, on demand, in ", "deleted at the end; by itself after 30m", bucket):
        assert text in done.stderr
    assert "create bucket/" in done.stderr
    assert "$1.20/h" in done.stderr
    show = printed(done.stderr, "jobs show")
    assert "train.py" in type_line(show, folder)
    assert type_line(show.replace("jobs show", "logs"), folder) == "hello a b\n"
    init = printed(done.stderr, "init")

    again = run_tpuctl("run", "--yes", *TPU, "train.py", folder=folder)
    assert (again.returncode, again.stdout) == (0, "hello\n"), again.stderr
    assert "create bucket/" not in again.stderr
    assert "tpuctl init" not in again.stderr, "advice is given once"
    assert left(script) == ["bucket"]

    type_line(init, folder, "--yes")
    jobs = type_line("tpuctl jobs", folder)
    assert jobs.count("train.py") == 2, "the stack file is of the same stack"
    assert read_stack(folder / "tpuctl.yaml").bucket == stack_of(script).stack.bucket
    refused = run_tpuctl("run", "--yes", "--tpu", "v6e-1", "train.py", folder=folder)
    assert "Stack file has another TPU" in refused.stderr


def test_failing_script_leaves_the_bucket_and_its_exit_code(folder: Path) -> None:
    script = write(folder, f"{JAX}raise SystemExit(7)\n")
    done = run_tpuctl("run", "--yes", "--json", *TPU, "train.py", folder=folder)
    assert done.returncode == 7, done.stderr
    assert '"job_exit_code": 7' in done.stdout
    assert left(script) == ["bucket"]


def test_kept_tpu_is_used_again_and_deleted_by_the_printed_command(folder: Path) -> None:
    script = write(folder, f"{JAX}print('hello')\n")
    done = run_tpuctl("run", "--yes", *TPU, "--keep", "train.py", folder=folder)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "costs $1.20/h on Google, until it has had no job or login for 30m" in done.stderr
    assert "node" in left(script)
    hostname = printed(done.stderr, "ssh")
    assert type_line(f"{hostname} -- echo here", folder) == "here\n"
    other = run_tpuctl("run", "--yes", "--tpu", "v5e-4", "train.py", folder=folder)
    assert other.returncode == 1
    assert "Another TPU is up for this script" in other.stderr
    assert "stack file" not in other.stderr
    again = run_tpuctl(*shlex.split(printed(done.stderr, "run"))[1:], folder=folder)
    assert (again.returncode, again.stdout) == (0, "hello\n"), again.stderr  # without --yes
    type_line(printed(done.stderr, "down"), folder, "--yes")
    assert left(script) == ["bucket"]


def test_question_shows_the_price_and_ctrl_c_takes_the_tpu_down(folder: Path) -> None:
    script = write(folder, ENDLESS)
    with Terminal(folder, "run", *TPU, "train.py") as terminal:
        terminal.wait_for("[Y/n]")
        assert "this stack costs $1.20/h" in terminal.sentences
        assert "run train.py, and delete it?" in terminal.sentences
        terminal.type("n\n")
        assert terminal.end() == 130
        assert "nothing was changed" in terminal.output
    assert left(script) == []
    with Terminal(folder, "run", *TPU, "train.py") as terminal:
        terminal.wait_for("[Y/n]")
        terminal.type("\n")
        terminal.wait_for("it runs\n")
        terminal.press_ctrl_c()
        terminal.wait_for("Ctrl-C again within")
        terminal.press_ctrl_c()
        assert terminal.end() == 143
    assert left(script) == ["bucket"]


def test_job_that_was_left_running_is_followed_by_the_name_of_its_stack(
    folder: Path,
) -> None:
    script = write(folder, ENDLESS)
    with Terminal(folder, "run", "--yes", *TPU, "train.py") as terminal:
        terminal.wait_for("it runs\n")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
        (names,) = {*NAMED.findall(terminal.sentences)}
    options = ("--stack", names[0], "--project", names[1])
    with Terminal(folder, "logs", "-f", *options) as terminal:
        terminal.wait_for("it runs\n")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
        assert shlex.join(options) in terminal.sentences
    assert run_tpuctl("stop", *options, folder=folder).returncode == 0
    assert run_tpuctl("down", "--yes", *options, folder=folder).returncode == 0
    assert left(script) == ["bucket"]


@pytest.mark.soak
def test_preempted_tpu_is_not_recreated_without_its_type(
    folder: Path, local_cloud: LocalCloud
) -> None:
    script = write(folder, ENDLESS)
    run_options = ("--yes", "--spot", "--keep", "--detach")
    done = run_tpuctl("run", *run_options, *TPU, "train.py", folder=folder)
    assert done.returncode == 0, done.stderr
    (names,) = {*NAMED.findall(done.stdout + done.stderr)}
    options = ("--stack", names[0], "--project", names[1])
    node = asyncio.run(stack_of(script).node())
    remote_control.add_fault(local_cloud, "preempt", node=node.name)
    done = run_tpuctl("wait", *options, folder=folder)
    assert done.returncode == 69, done.stderr
    assert "No further attempt: the stack was named without a stack file" in done.stderr
    assert "v2-8" not in done.stderr
    assert run_tpuctl("down", "--yes", *options, folder=folder).returncode == 0
    assert left(script) == ["bucket"]


def test_failed_up_is_taken_down(
    cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cloud(cloud, monkeypatch)
    script = write(tmp_path, f"{JAX}print('never')\n")
    remote_control.add_fault(cloud, "stockout", times="unlimited")
    done = run_tpuctl("run", "--yes", *TPU, "train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (75, ""), done.stderr
    assert left(script) == ["bucket"]
