"""Where the owner of the local cloud sits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Desk"]

TPUCTL = [sys.executable, "-m", "tpuctl"]


@dataclass(frozen=True)
class Desk:
    """A terminal session of the local cloud's owner."""

    folder: Path

    def type(self, *arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            [*TPUCTL, *arguments],
            cwd=folder or self.folder,
            env={**os.environ, "TPUCTL_CONFIG_HOME": str(self.folder / "own")},
            capture_output=True,
            text=True,
            timeout=600,  # in a soak, hundreds of machines of other tests may be busy beside it
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def role(self, folder: Path) -> str:
        """What a pipeline of the stack there may do."""
        code, out, err = self.type("doctor", "--role", folder=folder)
        assert code == 0, err
        return out

    def stop_soon(self, folder: Path) -> None:
        """Stop the stack's latest job, while something else goes on here."""
        threading.Thread(target=self.type, args=("stop",), kwargs={"folder": folder}).start()

    def answer(self, *arguments: str, folder: Path | None = None) -> Any:
        code, out, err = self.type(*arguments, "--json", folder=folder)
        assert code == 0, out + err
        return json.loads(out)["data"]
