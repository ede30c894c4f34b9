"""The script of a folder that trains: by its name, or because it is the only one."""

from __future__ import annotations

import re
from pathlib import Path

from tpuctl.files import is_generated_folder
from tpuctl.model.scripts.framework import framework_of_script

# Names of training scripts, the more usual ones first.
NAMES = (("pretrain.py", "train.py"), ("finetune.py", "main.py", "run.py"))
NOT_RUN = re.compile(r"(__init__|setup|conftest|noxfile|test_.*|.*_test)\.py")
MAX_FOLDERS, MAX_SCRIPTS = 50, 200


def has_scripts(folder: Path) -> bool:
    """Whether a folder has Python scripts of its own, or a folder directly below it has some that
    use a framework."""
    return bool(_scripts(folder)) or any(
        framework_of_script(script) is not None for script in _scripts_below(folder)
    )


def find_script(folder: Path) -> Path | None:
    """The script of a folder, or else of the folders directly below it; None if it is not clear."""
    inside, below = _scripts(folder), _scripts_below(folder)
    for names in NAMES:
        for scripts in (inside, below):
            usual = [script for script in scripts if script.name in names]
            if usual:
                return usual[0] if len(usual) == 1 else None
    for scripts in (inside, below):
        training = [script for script in scripts if framework_of_script(script) is not None]
        if training:
            return training[0] if len(training) == 1 else None
    return inside[0] if len(inside) == 1 else None


def _scripts(folder: Path) -> list[Path]:
    try:
        files = sorted(folder.glob("*.py"))
    except OSError:
        return []
    return [path for path in files if not NOT_RUN.fullmatch(path.name)][:MAX_SCRIPTS]


def _scripts_below(folder: Path) -> list[Path]:
    try:
        folders = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
    folders = [path for path in folders if not is_generated_folder(path)][:MAX_FOLDERS]
    return [script for folder in folders for script in _scripts(folder)][:MAX_SCRIPTS]
