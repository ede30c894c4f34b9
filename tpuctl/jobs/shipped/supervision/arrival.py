"""Moves the uploaded files of an attempt into its folder, once.

Like `supervisor.py`, whose `start` does this first, this file is sent to workers as it is: standard
library only, Python 3.8 and later. A client that gets no response retries the upload, perhaps while
the first one is still in progress. The first complete upload wins: a retry neither changes the
files of an attempt that may already be running, nor restores secrets that it has removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

SPEC = "spec.json"  # moved last: the attempt is complete with it
BYTECODE = "__pycache__"  # of the programs that run already


def accept_upload(upload: str, folder: str) -> bool:
    """Move the files, unless the attempt has arrived before; delete what is left of the upload.

    Returns whether the upload was complete.
    """
    names = sorted({*os.listdir(upload)} - {BYTECODE}, key=lambda name: name == SPEC)
    is_complete = SPEC in names
    with open(os.path.join(folder, "arrival.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete and not os.path.exists(os.path.join(folder, SPEC)):
            for name in names:
                os.replace(os.path.join(upload, name), os.path.join(folder, name))
            with contextlib.suppress(OSError):  # there is none, or that of an interrupted arrival
                os.rename(os.path.join(upload, BYTECODE), os.path.join(folder, BYTECODE))
    try:
        os.rmdir(upload)
    except OSError:
        import shutil  # it takes a while to load

        shutil.rmtree(upload, ignore_errors=True)
    return is_complete
