"""Files of tpuctl are private to the user, whatever the umask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KEEPING = """
from tpuctl.cli.main import run
from tpuctl.files import cache_home
from tpuctl.preflight.rehearsal.history import RehearsalHistory
from tpuctl.remote.keys import config_home, default_key
from tpuctl.remote.openssh import openssh_command
from tpuctl.remote.ssh import Address

key = default_key()
openssh_command(Address("worker", 22, "me", ()), key.path, config_home() / "known_hosts" / "one")
RehearsalHistory(cache_home() / "rehearsals").new_folder("one")
assert run(["plan"]) == 2  # which `debug-dump` finds recorded
"""


def test_folders_are_private_with_open_umask(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    (tmp_path / "home").mkdir(mode=0o755)
    subprocess.run(
        [sys.executable, "-c", KEEPING],
        env=environment,
        cwd=tmp_path / "here",
        umask=0,
        check=True,
        capture_output=True,
        timeout=300,
    )
    places = ("home", "home/.config", "home/.config/tpuctl", "home/.cache", "home/.cache/tpuctl")
    places += ("home/.local/state", "home/.local/state/tpuctl/commands")
    modes = [oct((tmp_path / place).stat().st_mode & 0o777) for place in places]
    assert modes == ["0o755", *["0o700"] * 6], "existing folders are unchanged"
    (record,) = (tmp_path / "home/.local/state/tpuctl/commands").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
