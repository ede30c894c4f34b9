"""Makes the virtual environment that a job's requirements ask for, over the image's Python.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I environment.py make FOLDER REQUIREMENTS PYTHON`: standard library only, Python 3.8
and later. The environment sees the image's packages and never replaces the image's TensorFlow.
Environments are kept by what they were made from; a half-made one is never used. The result is
FOLDER/environment.json.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Any

__all__ = ["main"]

PIP_OPTIONS = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]


class Failure(Exception):
    """A command failed; the log has its output."""


class Environment:
    """The environment of one requirements file on one image."""

    def __init__(self, folder: str, requirements: str, python: str) -> None:
        self.folder = folder
        self.requirements = requirements
        self.python = python
        probe = [python, os.path.abspath(__file__), "probe"]
        self.image = json.loads(subprocess.check_output(probe, stdin=subprocess.DEVNULL))
        self.home = os.path.expanduser("~/.tpuctl/envs/" + self.key())
        self.inner = os.path.join(self.home, "bin", "python")

    def key(self) -> str:
        with open(self.requirements, "rb") as source:
            text = source.read()
        parts = [text, json.dumps(self.image, sort_keys=True).encode()]
        # Lines that name other files of the bundle mean something else in another bundle.
        if re.search(rb"^\s*(-|\.|/)|file:|\.(whl|gz)\s*$", text, re.MULTILINE):
            with open(os.path.join(self.folder, "spec.json"), encoding="utf-8") as spec:
                parts.append(str(json.load(spec).get("bundle")).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]

    def make(self) -> None:
        os.makedirs(os.path.dirname(self.home), exist_ok=True)
        lock = os.open(self.home + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # another job on this machine may be making it
        # Commands inherit the lock: it is held for as long as an orphaned pip works.
        os.set_inheritable(lock, True)
        complete = os.path.join(self.home, "complete")
        if not os.path.exists(complete):
            self.build(lock)
            open(complete, "w", encoding="utf-8").close()
        os.close(lock)

    def build(self, lock: int) -> None:
        name = os.path.basename(self.requirements)
        self.say(f"installing {name}")
        began = time.monotonic()
        shutil.rmtree(self.home, ignore_errors=True)
        with open(os.path.join(self.folder, "setup.log"), "w+b") as output:

            def run(*argv: str) -> bool:
                return not subprocess.call(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=os.path.dirname(self.requirements),
                    pass_fds=[lock],
                )

            # Without pip: images from Debian lack ensurepip, and their own pip is seen anyway.
            is_done = run(
                self.python, "-m", "venv", "--without-pip", "--system-site-packages", self.home
            )
            if is_done:
                options = [*PIP_OPTIONS, *self.keep_the_image()]
                if not run(self.inner, "-m", "pip", "--version"):
                    run(self.inner, "-m", "ensurepip")
                is_done = run(self.inner, "-m", "pip", "install", *options, "-r", self.requirements)
            if not is_done:
                output.seek(0)
                with open(os.path.join(self.folder, "log"), "ab") as log:
                    shutil.copyfileobj(output, log)
                raise Failure(f"{name} could not be installed")
        self.say(f"installed {name} in {time.monotonic() - began:.0f} s")

    def keep_the_image(self) -> list[str]:
        """Show the image's packages to the environment; pip's options that keep its TensorFlow."""
        where = [self.inner, "-I", os.path.abspath(__file__), "packages"]
        packages = subprocess.check_output(where, stdin=subprocess.DEVNULL).decode().strip()
        # When the image's Python is itself a virtual environment, the new one would see the
        # packages of the Python below it instead.
        with open(os.path.join(packages, "image.pth"), "w", encoding="utf-8") as pth:
            for path in self.image["paths"]:
                pth.write(f"import site; site.addsitedir({path!r})\n")
        tensorflow = self.image["tensorflow"]
        if tensorflow is None:
            return []
        if tensorflow["distribution"] != "tensorflow":
            stub = os.path.join(packages, "tensorflow-{}.dist-info".format(tensorflow["version"]))
            os.makedirs(stub)
            with open(os.path.join(stub, "METADATA"), "w", encoding="utf-8") as metadata:
                metadata.write("Metadata-Version: 2.1\nName: tensorflow\n")
                metadata.write("Version: {}\n".format(tensorflow["version"]))
                metadata.write(
                    "Summary: Stands for {distribution} of the image\n".format(**tensorflow)
                )
        constraints = os.path.join(self.folder, "constraints.txt")
        with open(constraints, "w", encoding="utf-8") as target:
            target.write("\n".join(tensorflow["pins"]) + "\n")
        return ["--constraint", constraints]

    def say(self, text: str) -> None:
        with open(os.path.join(self.folder, "log"), "ab") as log:
            log.write((f"tpuctl: {text}\n").encode())


def probe() -> dict[str, Any]:
    """What the image's Python offers; run by that Python, with its packages."""
    from importlib import metadata

    versions: dict[str, str] = {}
    provider = None
    for found in metadata.distributions():
        name = normal(found.metadata["Name"] or "")
        versions.setdefault(name, found.version)
        top_level = found.read_text("top_level.txt") or ""
        if "tensorflow" in top_level.split() and (provider is None or name == "tensorflow"):
            provider = (name, found)
    tensorflow = None
    if provider is not None:
        name, found = provider
        pins = {f"tensorflow=={found.version}", f"{name}=={found.version}"}
        for requirement in found.requires or ():
            needed = normal(re.split(r"[^\w.-]", requirement)[0])
            if needed in versions and "extra ==" not in requirement:
                pins.add(f"{needed}=={versions[needed]}")
        tensorflow = {"distribution": name, "version": found.version, "pins": sorted(pins)}
    return {
        "python": sys.version,
        "prefix": sys.prefix,
        "paths": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
        "tensorflow": tensorflow,
    }


def normal(name: str) -> str:
    """A distribution's name as comparisons need it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> int:
    if arguments == ["probe"]:
        print(json.dumps(probe()))
        return 0
    if arguments == ["packages"]:
        print(sysconfig.get_path("purelib"))
        return 0
    _, folder, requirements, python = arguments
    environment = Environment(folder, requirements, python)
    try:
        environment.make()
    except Failure as failure:
        print(failure)
        return 1
    with open(os.path.join(folder, "environment.json"), "w", encoding="utf-8") as target:
        json.dump({"home": environment.home}, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
