"""Runs a program in a terminal with 80 columns and prints its output without colors.

python run_in_terminal.py PROGRAM ARGUMENT...
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
    parent_end, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    output = b""
    with subprocess.Popen(
        sys.argv[1:], stdin=child_end, stdout=child_end, stderr=child_end
    ) as program:
        os.close(child_end)
        with contextlib.suppress(OSError):  # the program closed the terminal
            while more := os.read(parent_end, 10_000):
                output += more
    os.close(parent_end)
    print(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()).replace("\r", ""), end="")
    sys.exit(program.returncode)
