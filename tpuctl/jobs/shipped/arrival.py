"""Moves what was sent of an attempt into its folder, once: `arrival.py SENT FOLDER`.

This file is sent to workers with `supervisor.py`, as it is: standard library only, Python 3.8 and
later. A client that sent an attempt and got no answer sends it again, perhaps while
the first sending is still at work. The first that is whole counts: files of an attempt that may
run already stay as they are, and secrets that it has removed do not come back.
"""

from __future__ import annotations

import fcntl
import os
import sys

__all__ = ["main"]

LAST = "spec.json"  # with it an attempt has arrived, and can be started


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: arrival.py SENT FOLDER", file=sys.stderr)
        return 2
    upload, folder = arguments
    names = sorted(os.listdir(upload), key=lambda name: name == LAST)
    if LAST not in names:
        print("the connection dropped while the job was being uploaded", file=sys.stderr)
        return 1
    with open(os.path.join(folder, "arrival.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(folder, LAST)):
            for name in names:
                os.replace(os.path.join(upload, name), os.path.join(folder, name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
