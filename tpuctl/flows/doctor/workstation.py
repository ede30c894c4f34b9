"""The check of the machine that tpuctl runs on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.model.stack.stack import Stack
from tpuctl.model.troubleshooting.diagnosis import CheckState, Finding, failed
from tpuctl.remote.keys import config_home, load_key

CHECK = "this machine"


def machine_finding(stack: Stack | None) -> Finding:
    """The SSH key is usable or can be created, and the `ssh` program is installed."""
    configured = stack.file.access.ssh_key if stack is not None else "auto"
    default_key = config_home() / "ssh" / "id_ed25519"
    if default_key.exists() or configured != "auto":
        try:
            key = load_key(default_key if configured == "auto" else Path(configured)).path
        except TpuctlError as error:
            return failed(CHECK, error)
        detail = f"SSH key {_short(key)}"
    else:
        folder = next(parent for parent in default_key.parents if parent.exists())
        if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
            return Finding(
                CHECK,
                CheckState.PROBLEM,
                f"cannot create an SSH key in {default_key.parent}: {folder} is not writable",
                "Use another configuration folder:\n    export TPUCTL_CONFIG_HOME=FOLDER",
                exit_code=2,
            )
        detail = "the SSH key is created on first use"
    if shutil.which("ssh") is None:
        return Finding(
            CHECK,
            CheckState.WARNING,
            f"{detail}; `ssh` is not installed, which `tpuctl ssh` needs to open a shell",
            "Install OpenSSH, for example:\n    sudo apt-get install openssh-client",
        )
    return Finding(CHECK, CheckState.OK, detail)


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
