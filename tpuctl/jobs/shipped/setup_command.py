"""Runs a job's setup command once per machine and content.

Like `preparation.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I setup_command.py FOLDER`: standard library only, Python 3.8 and later. The command
is `install.setup` in FOLDER/spec.json. It runs in the bundle's folder, as the job's user, and runs
again if its text changes, or a file of the bundle that it names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.jobs.shipped.folder import Folder
    from tpuctl.jobs.shipped.run_once import Failure, RunOnce
else:
    from folder import Folder
    from run_once import Failure, RunOnce

__all__ = ["main"]

SEPARATORS = r"[\s;&|<>()'\"=]+"  # between words that may be file names


def named_files(text: str, code: str) -> Iterator[str]:
    """The files of the bundle that a command's text names."""
    for word in sorted(set(re.split(SEPARATORS, text))):
        path = os.path.join(code, word)
        if word and os.path.isfile(path):
            yield path


def cache_key(text: str, code: str) -> str:
    """A hash of everything that may change what the command does."""
    checksum = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    for path in named_files(text, code):
        with open(path, "rb") as source:
            content = hashlib.sha256(source.read()).digest()
        checksum.update(b"\0" + os.path.relpath(path, code).encode() + b"\0" + content)
    return checksum.hexdigest()[:24]


def main(arguments: list[str]) -> int:
    (path,) = arguments
    folder = Folder(path)
    spec = folder.read("spec.json")
    assert spec is not None
    command, code = spec["install"]["setup"], folder.file("code")
    home = os.path.expanduser("~/.tpuctl/setups/" + cache_key(command, code))
    once = RunOnce(folder, home, os.environ)

    def work() -> str:
        shell = shutil.which("bash") or "/bin/sh"
        exit_code = once.run(shell, "-e", "-c", command, cwd=code)
        if exit_code:
            raise Failure(f"the setup command failed with exit code {exit_code}")
        return "ran the setup command"

    try:
        once.do(work, "running the setup command")
    except Failure as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
