"""Finds or installs one exact tpuctl on a machine, for programs that run there unattended.

This file is sent to machines as it is and runs there as `python3 -S -I installer.py COMMAND
VERSION DIGEST`: standard library only, Python 3.8 and later. DIGEST identifies a wheel's content.
`find` prints the path of that tpuctl as JSON: {"program": PATH}, or null if it is not found.
`install` installs `~/.tpuctl/programs/DIGEST/tpuctl-VERSION-py3-none-any.whl` into a virtual
environment next to it, with dependencies pinned by its `runtime.lock`, then prints the same.

tpuctl needs a newer Python than some images have: then the distribution's package of one is
installed, if this user may do that. Where nothing can be downloaded, `install` has a fourth
argument, the source as JSON: `bucket`, and the names of the objects there with the archives of a
`python` and of the `packages` that are installed for it. Their names are their checksums.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.machine.network_variables import PROXIES, use_network
else:
    from network_variables import PROXIES, use_network

PYTHONS = ("python3.12", "python3.11", "python3.13", "python3.14")  # in order of preference
COMPLETE = "complete"
READ_BYTES = 1 << 20
NO_PYTHON = 4  # exit code if no Python is new enough, and none can be installed
SUDO = ("sudo", "-n", "DEBIAN_FRONTEND=noninteractive")
# Waits for apt's lock: a machine that has just booted installs updates by itself.
APT = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=300")
PIP = (
    "-I",
    "-m",
    "pip",
    "--no-input",
    "--disable-pip-version-check",
    "install",
    "--progress-bar=off",
)


def programs() -> str:
    return os.path.expanduser("~/.tpuctl/programs")


def find(version: str, digest: str) -> str | None:
    """The tpuctl installed here before, otherwise one of that version that the machine has."""
    folder = os.path.join(programs(), digest)
    if os.path.exists(os.path.join(folder, COMPLETE)):
        return program_path(folder)
    existing = shutil.which("tpuctl")
    if existing is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            version_output = subprocess.run(
                [existing, "--version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
            if version_output.stdout.decode(errors="replace").split() == ["tpuctl", version]:
                return existing
    return None


def ensure_installed(version: str, digest: str, source: dict[str, str]) -> str:
    """Install it; if another process is installing it, wait for its result."""
    folder = os.path.join(programs(), digest)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed = find(version, digest)
        if installed is None:
            installed = (unpack if source else install)(version, folder, source)
            remove_unused(digest)
        return installed


def install(version: str, folder: str, source: dict[str, str]) -> str:
    wheel = wheel_path(version, folder)
    lock = os.path.join(folder, "runtime.lock")
    with zipfile.ZipFile(wheel) as archive, open(lock, "wb") as target:
        target.write(archive.read("tpuctl/runtime.lock"))
    environment = os.path.join(folder, "environment")
    if not create_environment(environment, PYTHONS):
        install_python(environment)
    python = os.path.join(environment, "bin", "python")
    run([python, *PIP, "--require-hashes", "--only-binary=:all:", "--requirement", lock])
    run([python, *PIP, "--no-deps", "--no-index", wheel])
    open(os.path.join(folder, COMPLETE), "w", encoding="utf-8").close()
    return program_path(folder)


def unpack(version: str, folder: str, source: dict[str, str]) -> str:
    """Install it from the archives of the source."""
    home = os.path.join(folder, "python")
    environment = os.path.join(folder, "environment")
    fetch(source["bucket"], source["python"], home)
    shutil.rmtree(environment, ignore_errors=True)
    python = os.path.join(home, "python", "bin", "python3")
    run([python, "-I", "-m", "venv", "--without-pip", environment])
    (packages,) = glob.glob(
        os.path.join(glob.escape(environment), "lib", "python3*", "site-packages")
    )
    fetch(source["bucket"], source["packages"], packages)
    with zipfile.ZipFile(wheel_path(version, folder)) as archive:
        archive.extractall(packages)
    program = program_path(folder)
    with open(program, "w", encoding="utf-8") as file:
        # Not by `#!`, for which the path may be too long.
        file.write(f'#!/bin/sh\nexec "{environment}/bin/python" -m tpuctl "$@"\n')
    os.chmod(program, 0o700)
    open(os.path.join(folder, COMPLETE), "w", encoding="utf-8").close()
    return program


def fetch(bucket: str, name: str, target: str) -> None:
    """Unpack an archive in the bucket into a folder. Raises OSError if it is not intact."""
    store = importlib.import_module("storage").Bucket(bucket)  # takes a while to load
    path, digest = target + ".tar.gz", hashlib.sha256()
    with open(path, "wb") as file:
        with store.open("GET", store.object(name), alt="media") as response:
            for data in iter(lambda: response.read(READ_BYTES), b""):
                digest.update(data)
                file.write(data)
    if digest.hexdigest() != os.path.basename(name).partition(".")[0]:
        raise OSError(f"gs://{bucket}/{name} is not intact")
    os.makedirs(target, exist_ok=True)
    with tarfile.open(path) as archive:
        archive.extractall(target)
    os.remove(path)


def wheel_path(version: str, folder: str) -> str:
    return os.path.join(folder, f"tpuctl-{version}-py3-none-any.whl")


def remove_unused(digest: str) -> None:
    """Remove earlier installations, except those that recover a job."""
    commands = b""
    for path in glob.glob(os.path.expanduser("~/.tpuctl/recover/*/command.json")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            commands += file.read()
    for name in os.listdir(programs()):
        if name != digest and name.encode() not in commands:
            shutil.rmtree(os.path.join(programs(), name), ignore_errors=True)


def program_path(folder: str) -> str:
    return os.path.join(folder, "environment", "bin", "tpuctl")


def create_environment(environment: str, pythons: Sequence[str]) -> bool:
    """Whether one of these could create it: Debian's need another package for that."""
    for name in pythons:
        python = shutil.which(name)
        if python is not None:
            with contextlib.suppress(subprocess.CalledProcessError):
                run([python, "-I", "-m", "venv", "--clear", environment])
                return True
    return False


def install_python(environment: str) -> None:
    """Create the environment with a Python from the distribution; exits if that fails."""
    if shutil.which("apt-get") is not None and shutil.which("sudo") is not None:
        with contextlib.suppress(subprocess.CalledProcessError):
            run_apt("update")
        for name in PYTHONS:
            with contextlib.suppress(subprocess.CalledProcessError):
                run_apt("install", "--yes", "--no-install-recommends", f"{name}-venv")
                if create_environment(environment, [name]):
                    return
    needed = f"no Python from {PYTHONS[1]} or later is installed or available as a package"
    print(f"{needed}: {system_name()}", file=sys.stderr)
    sys.exit(NO_PYTHON)


def run_apt(*arguments: str) -> None:
    """Run apt-get as root, with the proxies and certificates of this process, which sudo drops."""
    variables = [f"{name}={os.environ[name]}" for name in PROXIES if name in os.environ]
    certificates = os.environ.get("SSL_CERT_FILE", "")
    options = []
    with tempfile.NamedTemporaryFile() as readable:  # by the user of apt's downloads
        if os.path.exists(certificates):
            shutil.copyfile(certificates, readable.name)
            os.chmod(readable.name, 0o644)
            options = ["-o", f"Acquire::https::CAInfo={readable.name}"]
        run([*SUDO, *variables, *APT, *options, *arguments])


def run(argv: Sequence[str]) -> None:
    """Run a command with its output on stderr."""
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)


def system_name() -> str:
    with contextlib.suppress(OSError):
        with open("/etc/os-release", encoding="utf-8") as file:
            fields = dict(line.rstrip("\n").partition("=")[::2] for line in file)
        return fields.get("PRETTY_NAME", "").strip('"') or "an unknown system"
    return "an unknown system"


def main(arguments: list[str]) -> int:
    if len(arguments) not in (3, 4) or arguments[0] not in ("find", "install"):
        print("usage: installer.py find|install VERSION DIGEST [SOURCE]", file=sys.stderr)
        return 2
    command, version, digest, *source = arguments
    with open(os.path.join(HERE, "network.json"), encoding="utf-8") as file:
        use_network(json.load(file), HERE)
    try:
        if command == "find":
            installed = find(version, digest)
        else:
            installed = ensure_installed(version, digest, json.loads(source[0]) if source else {})
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"program": installed}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
