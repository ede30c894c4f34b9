"""Runs a program in a terminal of 80 columns and prints what it shows there, without colors.

python shown_in_terminal.py PROGRAM ARGUMENT...
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

if __name__ == "__main__":
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = b""
    with subprocess.Popen(sys.argv[1:], stdin=theirs, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the terminal's end, once all was read
            while more := os.read(ours, 10_000):
                seen += more
    os.close(ours)
    print(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r", ""), end="")
    sys.exit(program.returncode)
