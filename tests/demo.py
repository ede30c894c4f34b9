"""`make demo`: the bundled job on the local cloud, from `up` to `down`.

Runs the same commands as a user, with their output, and prints a table of the results. If a step
fails, everything that was started is taken down. Arguments are passed to the job.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "demo"
TPUCTL = str(Path(sys.executable).parent / "tpuctl")
console = Console(highlight=False)


class DemoError(Exception):
    """A step did not have the expected result."""


@dataclass
class Demo:
    """Runs the steps; collects their durations and results."""

    work: Path
    rows: list[tuple[str, str, float]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "TPUCTL_CLOUD": "local",
            "TPUCTL_LOCAL_HOME": str(FOLDER / "cloud"),
            "TPUCTL_CONFIG_HOME": str(FOLDER / "config"),
        }

    def announce(self, title: str, command: list[str]) -> None:
        command_line = " ".join(
            Path(command[0]).name if i == 0 else part for i, part in enumerate(command)
        )
        if console.is_terminal:
            console.print()
            console.print(Rule(Text(title, style="bold"), align="left"))
            console.print(Text(f"$ {command_line}", style="cyan"))
        else:
            print(f"\n== {title}\n$ {command_line}", flush=True)

    def step(self, title: str, *command: str) -> None:
        """Run a command and show its output."""
        self.announce(title, list(command))
        started = time.monotonic()
        code = subprocess.run(
            command, cwd=self.work, env=self.environment(), check=False
        ).returncode
        self.rows.append(
            (title, "done" if code == 0 else f"exit code {code}", time.monotonic() - started)
        )
        if code != 0:
            raise DemoError(f"{title}: exit code {code}")

    def output_of(self, *command: str) -> str:
        """Run a command and return its output."""
        return subprocess.run(
            command,
            cwd=self.work,
            env=self.environment(),
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def add_row(self, title: str, text: str) -> None:
        self.rows.append((title, text, 0.0))

    def table(self) -> None:
        table = Table("step", "result", title="Summary", title_justify="left")
        table.add_column("seconds", justify="right")
        for title, result, seconds in self.rows:
            table.add_row(title, result, f"{seconds:.1f}" if seconds else "")
        console.print()
        console.print(table)


def losses(log: str) -> list[float]:
    """The losses that the job printed."""
    return [float(loss) for loss in re.findall(r"^step \d+/\d+  loss (\S+)", log, re.MULTILINE)]


def bucket_objects(work: Path) -> dict[str, int]:
    """Names and sizes of the objects in the stack's bucket, from the storage API."""
    program = (
        "import json\n"
        "from tpuctl.api import Tpuctl\n"
        "stack = Tpuctl('tpuctl.yaml', cloud='local')\n"
        "storage = stack.cloud.client('storage')\n"
        "found = {one.name: one.size for one in storage.list_blobs(stack.stack.bucket)}\n"
        "print(json.dumps(found))\n"
    )
    answer: dict[str, int] = json.loads(Demo(work).output_of(sys.executable, "-c", program))
    return answer


def main(arguments: Sequence[str]) -> int:
    if FOLDER.exists():
        # An earlier demo that was killed may have left its local cloud running.
        FOLDER.joinpath("work").mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [TPUCTL, "local", "reset", "--yes", "--quiet"],
            cwd=FOLDER / "work",
            env=Demo(FOLDER / "work").environment(),
            check=False,
            capture_output=True,
        )
        shutil.rmtree(FOLDER)
    work = FOLDER / "work"
    work.mkdir(parents=True)
    demo = Demo(work)
    started = time.monotonic()
    try:
        demo.step("Start the local cloud", TPUCTL, "local", "up")
        demo.step("Write a stack and a job", TPUCTL, "init", "bert-pretraining", "--name", "demo")
        demo.step("Add a source of Korean text", TPUCTL, "init", "korean-messages")
        demo.step("Collect Korean text", sys.executable, "korean-messages/messages.py", "collect")
        demo.step("Bring the stack up", TPUCTL, "up", "--yes")
        demo.step("Pretrain BERT", TPUCTL, "run", "bert-pretraining/pretrain.py", "--", *arguments)
        check_results(demo)
        demo.step("Take the stack down", TPUCTL, "down", "--yes", "--delete-bucket")
    except DemoError as error:
        console.print(f"[bold red]The demo failed:[/] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted: taking everything down.")
        return 130
    finally:
        subprocess.run(
            [TPUCTL, "local", "down", "--quiet"],
            cwd=work,
            env=demo.environment(),
            check=False,
            capture_output=True,
        )
        demo.add_row("Total", f"{time.monotonic() - started:.0f} s")
        demo.table()
    return 0


def check_results(demo: Demo) -> None:
    """Check that the loss fell and that the checkpoint and the log are in the bucket."""
    jobs = json.loads(demo.output_of(TPUCTL, "jobs", "--json"))["data"]
    job = jobs[0]["id"]
    series = losses(demo.output_of(TPUCTL, "logs", job))
    if len(series) < 2 or not series[-1] < series[0]:
        raise DemoError(f"the loss did not fall: {series}")
    demo.add_row("Loss", f"{series[0]:.2f} → {series[-1]:.2f}")
    objects = bucket_objects(demo.work)
    checkpoints = [name for name in objects if "/checkpoints/" in name and name.endswith(".index")]
    logs = [name for name in objects if name.endswith("worker-0.log")]
    if not checkpoints or not logs or not objects[logs[0]]:
        raise DemoError(f"no checkpoint or no log among {sorted(objects)}")
    demo.add_row("Checkpoint in the bucket", checkpoints[-1].rsplit("/", 1)[1])
    demo.add_row("Log in the bucket", f"{objects[logs[0]]:,} bytes")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
