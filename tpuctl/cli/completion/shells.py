"""Completion scripts for shells, and where each shell loads them from."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import shellingham

from tpuctl.errors import Usage

# The wheel has these files also where shells look for them.
SCRIPTS = {"bash": "tpuctl.bash", "zsh": "_tpuctl", "fish": "tpuctl.fish"}


def completion_script(shell: str) -> str:
    return files(__package__).joinpath("scripts", SCRIPTS[shell]).read_text("utf-8")


class InstalledScript(NamedTuple):
    script: Path
    changed: Path | None  # a file of the user to which a line was added


def parent_shell() -> str:
    """The nearest shell among the processes that started this program; empty if there is none."""
    with suppress(shellingham.ShellDetectionFailure):
        return str(shellingham.detect_shell()[0])
    return ""


def current_shell() -> str:
    """The shell that started this program, or $SHELL. Raises Usage if it is not supported."""
    parent = parent_shell() or "unknown"
    for shell in (parent, Path(os.environ.get("SHELL", "")).name):
        if shell in SCRIPTS:
            return shell
    raise Usage(
        "Unknown shell",
        f"completion supports {', '.join(SCRIPTS)}; this shell is {parent}",
        hint="To choose a shell:\n    SHELL=bash tpuctl --install-completion",
    )


def install(shell: str) -> InstalledScript:
    """Write the shell's completion script where the shell looks for it. Idempotent."""
    home = Path.home()
    startup_file, line = None, ""
    if shell == "bash":
        data = os.environ.get("XDG_DATA_HOME") or home / ".local/share"
        script = Path(data, "bash-completion/completions/tpuctl")
        # For users without bash-completion, which would load the script.
        startup_file, line = home / ".bashrc", f"source {_quote(script)}"
    elif shell == "zsh":
        script = home / ".zfunc/_tpuctl"
        startup_file = Path(os.environ.get("ZDOTDIR", home), ".zshrc")
        line = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
    else:
        config = os.environ.get("XDG_CONFIG_HOME") or home / ".config"
        script = Path(config, "fish/completions/tpuctl.fish")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(completion_script(shell), "utf-8")
    is_changed = startup_file is not None and _add_line(startup_file, line)
    return InstalledScript(script, startup_file if is_changed else None)


def _quote(path: Path) -> str:
    """Always quoted, so that the line is the same in all versions."""
    text = str(path).replace("'", "'\\''")
    return f"'{text}'"


def _add_line(path: Path, line: str) -> bool:
    """Returns whether the line was added."""
    text = path.read_text("utf-8") if path.exists() else ""
    if line in text.splitlines():
        return False
    end = "" if not text or text.endswith("\n") else "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}{end}{line}\n", "utf-8")
    return True
