"""Commands of gcloud that tests run in forks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.gcloud import forked, require_gcloud


def test_modules_of_one_command_are_loaded_for_the_next(tmp_path: Path) -> None:
    variables = forked()
    modules = Path(variables["CLOUDSDK_PYTHON"]).with_name("modules")

    def loaded_by_command() -> set[str]:
        before = len(modules.read_text("utf-8"))
        subprocess.run(
            [require_gcloud(), "config", "configurations", "list"],
            env={"PATH": os.environ["PATH"], "CLOUDSDK_CONFIG": str(tmp_path), **variables},
            check=True,
            capture_output=True,
        )
        return set(modules.read_text("utf-8")[before:].split())

    loaded_by_command()
    loaded_by_command()  # some modules are loaded only by others that are loaded already
    assert loaded_by_command() == set()
