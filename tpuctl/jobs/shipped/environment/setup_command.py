"""Runs a job's setup command once per machine and content.

Like `preparation.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I setup_command.py FOLDER`: standard library only, Python 3.8 and later. The command
is `install.setup` in FOLDER/spec.json. It runs in the bundle's folder, as the job's user, and runs
again if its text changes, a file of the bundle that it names, or a variable that they use.
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
    from collections.abc import Iterator, Mapping

    from tpuctl.jobs.shipped.environment.run_once import Failure, RunOnce
    from tpuctl.jobs.shipped.machine.folder import Folder
else:
    from folder import Folder
    from run_once import Failure, RunOnce

VARIABLE = re.compile(rb"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
SEPARATORS = r"[\s;&|<>()'\"=]+"  # between words that may be file names


def named_files(text: str, code: str) -> Iterator[str]:
    """The files of the bundle that a command's text names."""
    for word in sorted(set(re.split(SEPARATORS, text))):
        path = os.path.join(code, word)
        if word and os.path.isfile(path):
            yield path


def constant_variables(variables: Mapping[str, str], job: str) -> dict[str, str]:
    """Those that do not differ between jobs anyway, as paths in the job's folder do."""
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("TPUCTL_") and job not in value
    }


def cache_key(text: str, code: str, variables: Mapping[str, str]) -> str:
    """A hash of everything that may change what the command does: its text, the files that it
    names, and the variables that they use or that installers read."""
    command = text.encode("utf-8", "surrogateescape")
    checksum = hashlib.sha256(command)
    used = {name for name in variables if name.startswith(("PIP_", "UV_"))}
    used.update(name.decode() for name in VARIABLE.findall(command))
    for path in named_files(text, code):
        with open(path, "rb") as source:
            content = source.read()
        used.update(name.decode() for name in VARIABLE.findall(content))
        checksum.update(b"\0" + os.path.relpath(path, code).encode() + b"\0")
        checksum.update(hashlib.sha256(content).digest())
    for name in sorted(used & variables.keys()):
        checksum.update(f"\0{name}={variables[name]}".encode("utf-8", "surrogateescape"))
    return checksum.hexdigest()[:24]


def main(arguments: list[str]) -> int:
    (path,) = arguments
    folder = Folder(path)
    spec = folder.read("spec.json")
    assert spec is not None
    command, code = spec["install"]["setup"], folder.file("code")
    variables = constant_variables(os.environ, str(spec.get("job") or path))
    home = os.path.expanduser("~/.tpuctl/setups/" + cache_key(command, code, variables))
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
