"""Moves the uploaded files of an attempt into its folder, once: `arrival.py UPLOAD FOLDER`.

This file is sent to workers with `supervisor.py`, as it is: standard library only, Python 3.8 and
later. A client that gets no response retries the upload, perhaps while the first one is still in
progress. The first complete upload wins: a retry neither changes the files of an attempt that may
already be running, nor restores secrets that it has removed.
"""

from __future__ import annotations

import fcntl
import os
import sys

__all__ = ["main"]

SPEC = "spec.json"  # moved last: the attempt is complete with it


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: arrival.py UPLOAD FOLDER", file=sys.stderr)
        return 2
    upload, folder = arguments
    names = sorted(os.listdir(upload), key=lambda name: name == SPEC)
    if SPEC not in names:
        print("the connection dropped while the job was being uploaded", file=sys.stderr)
        return 1
    with open(os.path.join(folder, "arrival.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(folder, SPEC)):
            for name in names:
                os.replace(os.path.join(upload, name), os.path.join(folder, name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
