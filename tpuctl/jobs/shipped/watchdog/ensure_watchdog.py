"""Ensures, over SSH, that the machine's watchdog runs, and prints its state as JSON.

This file is sent to machines with `watchdog.py` and `folder.py`, as it is, and runs there as
`python3 -S -I ensure_watchdog.py`: standard library only, Python 3.8 and later. A watchdog starts
with its machine; if startup scripts are forbidden, or it was killed, this starts one.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys

# The other shipped files are in this folder: search it after the standard library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.machine.folder import is_locked
else:
    from folder import is_locked

WATCHDOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watchdog.py")


def folders() -> list[str]:
    """Possible folders of a watchdog, whichever user started it."""
    user_home = os.path.expanduser("~")
    homes = {
        user_home,
        "/root",
        *glob.glob("/home/*"),
        *glob.glob(os.path.dirname(user_home) + "/*"),
    }
    return ["/run/tpuctl", *(os.path.join(home, ".tpuctl/watchdog") for home in sorted(homes))]


def running_state() -> dict[str, Any] | None:
    """The state of the running watchdog; None if none is running."""
    for folder in folders():
        with contextlib.suppress(OSError):  # other users' folders may be unreadable
            if is_locked(os.path.join(folder, "lock")):
                with contextlib.suppress(ValueError):
                    with open(os.path.join(folder, "watchdog.json"), encoding="utf-8") as file:
                        return dict(json.load(file))
    return None


def start() -> None:
    """Start a watchdog: as root if allowed, since root sees the processes of all users.

    Not as root on the local cloud, where root sees no more.
    """
    import subprocess  # it takes a while to load

    command = [sys.executable, "-S", "-I", WATCHDOG, "start"]
    is_local = os.environ.get("GCE_METADATA_HOST", "").startswith("127.")
    if os.getuid() != 0 and not is_local:
        with contextlib.suppress(OSError):
            result = subprocess.run(
                ["sudo", "-n", *command], stdin=subprocess.DEVNULL, stdout=2, check=False
            )
            if result.returncode == 0:
                return
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=True)


def main() -> int:
    activity_file = os.path.expanduser("~/.tpuctl/watchdog/active")  # this check is activity
    os.makedirs(os.path.dirname(activity_file), exist_ok=True)
    with open(activity_file, "a", encoding="utf-8"):
        os.utime(activity_file)
    state = running_state()
    was_started = state is None
    if state is None:
        start()
        state = running_state()
    if state is None:
        print("the watchdog did not start: see ~/.tpuctl/watchdog/watchdog.log", file=sys.stderr)
        return 1
    print(json.dumps({**state, "was_started": was_started}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
