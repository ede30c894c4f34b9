"""A shell of the local cloud's owner, outside of any pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["OwnerShell"]

TPUCTL = [sys.executable, "-m", "tpuctl"]


@dataclass(frozen=True)
class OwnerShell:
    """Runs tpuctl as the local cloud's owner."""

    folder: Path

    def run(self, *arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            [*TPUCTL, *arguments],
            cwd=folder or self.folder,
            env={**os.environ, "TPUCTL_CONFIG_HOME": str(self.folder / "config")},
            capture_output=True,
            text=True,
            timeout=600,  # during `make soak`, other tests keep the computer busy
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def role(self, folder: Path) -> str:
        """The role that the folder's stack needs in a pipeline, as YAML."""
        code, out, err = self.run("doctor", "--role", folder=folder)
        assert code == 0, err
        return out

    def stop_soon(self, folder: Path) -> None:
        """Stop the stack's latest job in the background."""
        threading.Thread(target=self.run, args=("stop",), kwargs={"folder": folder}).start()

    def run_json(self, *arguments: str, folder: Path | None = None) -> Any:
        code, out, err = self.run(*arguments, "--json", folder=folder)
        assert code == 0, out + err
        return json.loads(out)["data"]
