"""A shell in a fresh folder, into which a page's commands are typed one after another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.polling import until

__all__ = ["Answer", "Session"]


TERMINAL = Path(__file__).with_name("run_in_terminal.py")


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def both(self) -> str:
        return self.out + self.err


class Session:
    """One bash: folders, variables and functions stay from command to command.

    with Session(folder, programs) as session:
        assert session.type("tpuctl --version").code == 0
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

    def type(self, command: str, *, in_terminal: bool = False, seconds: float = 1200.0) -> Answer:
        """Run a command to its end, without answers to prompts."""
        self._count += 1
        typed, out, err, code = (
            self._files / f"{self._count}.{name}" for name in ("typed", "out", "err", "code")
        )
        typed.write_text(f"{command}\n", "utf-8")
        assert self._shell.stdin is not None
        how = f"{sys.executable} {TERMINAL} bash" if in_terminal else "source"
        self._shell.stdin.write(
            f"{how} {typed} </dev/null >{out} 2>{err}; echo $? >{code}.new; mv {code}.new {code}\n"
        )
        self._shell.stdin.flush()

        def has_ended() -> bool:
            assert self._shell.poll() is None, f"{command} ended the shell"
            return code.exists()

        until(has_ended, lambda: f"the end of {command}:\n{_read(err)}", seconds)
        return Answer(int(code.read_text("utf-8")), _read(out), _read(err))


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace") if path.exists() else ""
