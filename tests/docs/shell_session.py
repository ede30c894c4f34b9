"""A shell in a new folder that runs a page's commands one after another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.polling import until

TERMINAL = Path(__file__).with_name("run_in_terminal.py")


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def both(self) -> str:
        return self.out + self.err


class Session:
    """A bash process: commands share its folder, variables and functions.

    with Session(folder, programs) as session:
        assert session.run("tpuctl --version").code == 0
    """

    def __init__(self, folder: Path, programs: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = folder.parent / f"{folder.name}.session"
        self._files.mkdir()
        self._count = 0
        paths = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **environment, "PATH": os.pathsep.join(paths)},
            text=True,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.kill()
        self._shell.communicate()

    def run(
        self, command: str, *, in_terminal: bool = False, seconds: float = 1200.0
    ) -> CommandResult:
        """Run a command to completion, without input."""
        self._count += 1
        script, out, err, code = (
            self._files / f"{self._count}.{name}" for name in ("script", "out", "err", "code")
        )
        script.write_text(f"{command}\n", "utf-8")
        assert self._shell.stdin is not None
        launcher = f"{sys.executable} {TERMINAL} bash" if in_terminal else "source"
        self._shell.stdin.write(
            f"{launcher} {script} </dev/null >{out} 2>{err}; echo $? >{code}.new; "
            f"mv {code}.new {code}\n"
        )
        self._shell.stdin.flush()

        def has_ended() -> bool:
            assert self._shell.poll() is None, f"{command} ended the shell"
            return code.exists()

        until(has_ended, lambda: f"the end of {command}:\n{_read(err)}", seconds)
        return CommandResult(int(code.read_text("utf-8")), _read(out), _read(err))


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace") if path.exists() else ""
