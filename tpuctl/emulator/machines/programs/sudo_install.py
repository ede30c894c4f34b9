"""Installs a machine's sudo and its settings."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuctl.emulator.machines.programs.process_environment import MachineFolder

HOST_SUDO = "/usr/bin/sudo"  # this computer's, if any, which would not work on machines
_PROGRAM = Path(__file__).with_name("sudo.py")
_SCRIPT = """#!/bin/sh
exec {python} -I -S {program} {settings} "$@"
"""


def install_sudo(folder: MachineFolder) -> None:
    """Install it on the machine."""
    program = folder.settings / "sudo.py"
    shutil.copyfile(_PROGRAM, program)
    words = (folder.python / "bin" / "python3", program, folder.settings / "sudo.json")
    python, program_word, settings = (shlex.quote(str(word)) for word in words)
    text = _SCRIPT.format(python=python, program=program_word, settings=settings)
    for script in (folder.python / "bin" / "sudo", folder.sudo):
        script.write_text(text, "utf-8")
        script.chmod(0o755)


def write_sudo_settings(
    folder: MachineFolder,
    environment: Mapping[str, str],
    denied: Sequence[str],
    *,
    is_isolated: bool,
) -> None:
    """Write the settings of the program, which `denied` users may not use."""
    settings = {
        "root": is_isolated,
        "denied": list(denied),
        "environment": dict(environment),
        "passwd": str(folder.root_passwd),
    }
    (folder.settings / "sudo.json").write_text(json.dumps(settings), "utf-8")
