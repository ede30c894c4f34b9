"""`run --each`, and `jobs compare` of its jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.screen import Screen
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.errors import NotFound, Usage
from tpuctl.model.events import Event, LogChunk, Note

MakeStack = Callable[..., Tpuctl]

# Its loss depends on the learning rate. It fails if that is above 1, else it needs two attempts.
TRAIN = """
import argparse
import json
import os
import sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--steps", type=int, default=4)
arguments = parser.parse_args()
for step in range(1, arguments.steps + 1):
    print(json.dumps({"step": step, "loss": arguments.lr * step, "accuracy": step / 10}))
sys.exit(3 if arguments.lr > 1 else 75 if os.environ["TPUCTL_ATTEMPT"] == "1" else 0)
"""
# The first job ends at once; the second one waits for a stop.
ENDLESS = """
import sys
import time
print('{"step": 7, "loss": 0.25}')
print("running with", *sys.argv[1:], flush=True)
while sys.argv[1] == "--wait=yes":
    time.sleep(0.1)
"""


def write_script(stack: Tpuctl, text: str, name: str = "train.py") -> Path:
    path = stack.stack_file.parent / "job" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def tpuctl(stack: Tpuctl, *arguments: str, code: int = 0) -> str:
    done = run_tpuctl(*arguments, folder=stack.stack_file.parent)
    assert done.returncode == code, done.stderr
    return done.stdout


async def test_sweep_through_the_command_line(make_stack: MakeStack) -> None:
    stack = make_stack()
    write_script(stack, TRAIN)
    await stack.up()

    def type_commands() -> None:
        run = ("--yes", "--json", "run", "job/train.py", "--each", "lr=2,0.5", "--each", "steps=3")
        sweep = json.loads(tpuctl(stack, *run, code=3))["data"]["jobs"]
        assert [job["values"] for job in sweep] == [
            {"lr": "2", "steps": "3"},
            {"lr": "0.5", "steps": "3"},
        ]
        assert [(job["state"], job["exit_code"]) for job in sweep] == [
            ("failed", 3),
            ("succeeded", 0),
        ]
        assert [job["steps"] for job in sweep] == [3, 3]
        assert [job["metrics"] for job in sweep] == [
            {"loss": 6.0, "accuracy": 0.3},
            {"loss": 1.5, "accuracy": 0.3},
        ]
        assert all(job["cost"] > 0 and job["hours"] is not None for job in sweep)

        listed = {job["id"]: job for job in json.loads(tpuctl(stack, "--json", "jobs"))["data"]}
        assert len(listed) == 2
        assert all(listed[job["job"]]["values"] == job["values"] for job in sweep)
        assert listed[sweep[1]["job"]]["args"] == ["--lr=0.5", "--steps=3"]
        assert "lr=0.5 steps=3" in tpuctl(stack, "jobs")

    await asyncio.to_thread(type_commands)


async def test_sweep_uses_the_files_of_its_start(
    make_stack: MakeStack, events: list[Event]
) -> None:
    """A file that is edited while the first job runs does not change the second one."""
    edited: list[bool] = []

    def edit_file(event: Event) -> None:
        if isinstance(event, LogChunk) and not edited:
            script.write_text("raise SystemExit(9)\n", "utf-8")
            edited.append(True)
        events.append(event)

    stack = make_stack(emit=edit_file)
    script = write_script(stack, "print('before')\n")
    await stack.up()
    assert await stack.run(script, each={"seed": [1, 2]}) == 0
    assert edited
    first, second = (job.record for job in await stack.jobs())
    assert first.bundle == second.bundle
    notes = [event.text.strip() for event in events if isinstance(event, Note)]
    assert [note for note in notes if note.startswith("Job ")] == [
        "Job 1 of 2: seed=1",
        "Job 2 of 2: seed=2",
    ]


def test_ctrl_c_during_the_second_job(make_stack: MakeStack) -> None:
    stack = make_stack()
    folder = stack.stack_file.parent
    write_script(stack, ENDLESS)
    asyncio.run(stack.up())
    run = ("run", "job/train.py", "--each", "wait=no,yes,later")
    with Terminal(folder, *run) as terminal:
        terminal.wait_for("3 jobs run one after another")
        terminal.wait_for("Continue?")
        terminal.type("y\n")
        terminal.wait_for("running with --wait=yes\n")
        terminal.press_ctrl_c()
        terminal.wait_for("Ctrl-C again within")
        terminal.press_ctrl_c()
        assert terminal.end() == 143
        table = [line.split() for line in terminal.output.splitlines()]
    assert [row[2:4] for row in table if row[:1] == ["no"]] == [["succeeded", "0"]]
    assert [row[2:4] for row in table if row[:1] == ["yes"]] == [["stopped", "143"]]
    assert [row[-3:-1] for row in table if row[:1] == ["no"]] == [["7", "0.25"]], "step and loss"
    assert [row[:4] for row in table if row[:1] == ["later"]] == [["later", "-", "not", "started"]]
    again = Tpuctl(stack.stack_file, cloud="local")
    states = [job.status.state for job in asyncio.run(again.jobs())]
    assert sorted(states) == ["stopped", "succeeded"], "the third job was never submitted"


async def test_declined_sweep_submits_nothing(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    write_script(stack, TRAIN)
    run = ("run", "job/train.py")
    for code, message, *arguments in (
        (2, "Pass --yes", "--each", "lr=1,2"),
        (
            2,
            "100 of b are 200 jobs",
            "--each",
            "a=1,2",
            "--each",
            "b=" + ",".join(map(str, range(100))),
        ),
        (2, "is not NAME=VALUE", "--each", "lr"),
        (2, "is not NAME=VALUE", "--each", "a b=1"),
        (2, "has an empty value", "--each", "lr=1,,2"),
        (2, "repeats 1", "--each", "lr=1,1"),
        (2, "passed twice", "--each", "lr=1", "--each", "lr=2"),
        (2, "--detach does not wait", "--detach", "--each", "lr=1,2"),
        (2, "arguments contain --lr", "--each", "lr=1,2", "--", "--lr", "9"),
    ):
        done = await asyncio.to_thread(run_tpuctl, *run, *arguments, folder=stack.stack_file.parent)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert await stack.jobs() == []


async def test_comparison_after_machines_are_gone(make_stack: MakeStack) -> None:
    stack = make_stack()
    script = write_script(stack, TRAIN)
    await stack.up()
    assert await stack.run(script, ["--lr=0.5", "--steps=4"]) == 0
    write_script(stack, "data\n", "new.txt")
    script.write_text(TRAIN + "# changed\n")
    assert await stack.run(script, ["--lr", "2", "--steps=6"]) == 3
    script.write_text("print('no metrics')\n")
    assert await stack.run(script) == 0
    await stack.down()
    ids = {len(job.record.args): job.record.id for job in await stack.jobs()}
    first, second, third = ids[2], ids[3], ids[0]

    def type_commands() -> None:
        answer = json.loads(tpuctl(stack, "--json", "jobs", "compare", first, second))["data"]
        rows = {row["name"]: row for row in answer["rows"]}
        assert answer["jobs"] == [first, second]
        assert rows["--lr"]["values"] == ["0.5", "2"]
        assert rows["files changed"]["values"] == [[], ["new.txt (added)", "train.py"]]
        assert rows["exit code"]["values"] == [0, 3]
        assert rows["TPU type"] == {"name": "TPU type", "values": ["v2-8"] * 2, "differs": False}
        assert rows["steps"]["values"] == [4, 6]
        assert rows["loss at step 4"]["values"] == [2.0, 8.0]
        assert rows["lowest loss until step 4"]["values"] == [0.5, 2.0]
        assert rows["highest accuracy until step 4"]["values"] == [0.4, 0.4]
        assert rows["loss at the end"]["values"] == [2.0, 12.0]

        with Terminal(stack.stack_file.parent, "jobs", "compare", first, second) as terminal:
            assert terminal.end() == 0
            screen = Screen(200, 60)
            screen.feed(terminal.output.replace("\n", "\r\n"))
            lines = [line.rstrip() for line in screen.lines]
        assert max(map(len, lines)) <= 80
        assert any(line.split() == ["--lr", "0.5", "2"] for line in lines)
        assert not any(line.startswith("zone") for line in lines), "it is the same"
        words = [job.rpartition("-")[2] for job in (first, second, third)]
        everything = tpuctl(stack, "jobs", "compare", "--all", *words)
        assert any(line.startswith("zone") for line in everything.splitlines())
        assert "loss at step 4" in everything

    await asyncio.to_thread(type_commands)
    for names, error in (
        ([], Usage),
        ([first], Usage),
        ([first, first.rpartition("-")[2]], Usage),
        ([first, "unicorn"], NotFound),
    ):
        with pytest.raises(error):
            await stack.compare(names)
