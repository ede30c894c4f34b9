"""Completion scripts for shells, and where each shell loads them from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tpuctl.errors import Usage

__all__ = ["SHELLS", "InstalledScript", "current_shell", "install"]

MAX_PARENTS = 6
BASH = """\
_tpuctl_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" \\
        _TPUCTL_COMPLETE=bash "$1" 2>/dev/null))
}
complete -o default -F _tpuctl_completion tpuctl
"""

ZSH = """\
#compdef tpuctl
_tpuctl_completion() {
    local -a offers
    offers=("${(@f)$(env _TPUCTL_COMPLETE=zsh _TPUCTL_LINE="${words[1,$CURRENT]}" \\
        "${words[1]}" 2>/dev/null)}")
    if [[ -n "${offers[1]}" ]]; then
        _describe -V tpuctl offers
    else
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _tpuctl_completion "$@"
else
    compdef _tpuctl_completion tpuctl
fi
"""

FISH = """\
function __tpuctl_offers
    set -l offers (env _TPUCTL_COMPLETE=fish _TPUCTL_LINE=(commandline -cp) tpuctl 2>/dev/null)
    if test -n "$offers[1]"
        printf '%s\\n' $offers
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command tpuctl --no-files --keep-order --arguments '(__tpuctl_offers)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class InstalledScript(NamedTuple):
    script: Path
    changed: Path | None  # a file of the user to which a line was added


def current_shell() -> str:
    """The shell that started this program, or $SHELL. Raises Usage if it is not supported."""
    above = list(_parent_programs())
    for program in (*above, Path(os.environ.get("SHELL", "")).name):
        if program in SHELLS:
            return program
    name = above[0] if above else "unknown"
    raise Usage(
        "Unknown shell",
        f"completion supports {', '.join(SHELLS)}; this shell is {name}",
        hint="To choose a shell:\n    SHELL=bash tpuctl --install-completion",
    )


def _parent_programs() -> Iterator[str]:
    """The names of the parent processes, nearest first."""
    process = os.getppid()
    for _ in range(MAX_PARENTS):
        done = None
        with suppress(OSError):
            done = subprocess.run(
                ["ps", "-o", "ppid=,comm=", "-p", str(process)],
                capture_output=True,
                text=True,
                check=False,
            )
        parent, _, name = (done.stdout if done else "").strip().partition(" ")
        if not parent.isdigit():
            return
        yield Path(name.strip().lstrip("-")).name  # a login shell begins with -
        process = int(parent)


def install(shell: str) -> InstalledScript:
    """Write the shell's completion script. Idempotent."""
    return INSTALL[shell]()


def _bash() -> InstalledScript:
    script = _data("XDG_DATA_HOME", ".local/share") / "bash-completion/completions/tpuctl"
    _write(script, BASH)
    rc = Path.home() / ".bashrc"  # for users without bash-completion, which would load the script
    return InstalledScript(script, rc if _add_line(rc, f"source {_quoted(script)}") else None)


def _zsh() -> InstalledScript:
    folder = Path.home() / ".zfunc"
    _write(folder / "_tpuctl", ZSH)
    rc = Path(os.environ.get("ZDOTDIR", Path.home())) / ".zshrc"
    line = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
    return InstalledScript(folder / "_tpuctl", rc if _add_line(rc, line) else None)


def _fish() -> InstalledScript:
    script = _data("XDG_CONFIG_HOME", ".config") / "fish/completions/tpuctl.fish"
    _write(script, FISH)
    return InstalledScript(script, None)


INSTALL: dict[str, Callable[[], InstalledScript]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _quoted(path: Path) -> str:
    """Always quoted, so that the line is the same in all versions."""
    text = str(path).replace("'", "'\\''")
    return f"'{text}'"


def _data(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / usual)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _add_line(path: Path, line: str) -> bool:
    """Returns whether the line was added."""
    text = path.read_text("utf-8") if path.exists() else ""
    if line in text.splitlines():
        return False
    end = "" if not text or text.endswith("\n") else "\n"
    _write(path, f"{text}{end}{line}\n")
    return True
