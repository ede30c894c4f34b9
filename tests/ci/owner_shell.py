"""A shell of the local cloud's owner, outside of any pipeline."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.forked_cli import run_tpuctl


@dataclass(frozen=True)
class OwnerShell:
    """Runs tpuctl as the local cloud's owner."""

    folder: Path

    def run(self, *arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
        done = run_tpuctl(
            *arguments,
            folder=folder or self.folder,
            timeout=600,  # during `make soak`, other tests keep the computer busy
            TPUCTL_CONFIG_HOME=str(self.folder / "config"),
        )
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
