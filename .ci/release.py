"""Builds what a release consists of, and tries it: `make release`.

The sdist, the wheel that is built from it, their checksums and the changelog's section go to
build/release. The wheel is installed with the locked dependencies in an empty environment, where
`tpuctl` must run. Nothing is uploaded: .github/workflows/release.yml does that.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "release"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build a release and try it.")
    parser.add_argument(
        "--tag", default="", help="tag of the release, which must match the version"
    )
    parser.add_argument("--target", type=Path, default=TARGET, help="folder to write to")
    parser.add_argument("--no-install", action="store_true", help="do not try the wheel")
    options = parser.parse_args(arguments)
    version = read_version()
    if options.tag and options.tag != f"v{version}":
        sys.exit(f"error: the tag is {options.tag}, tpuctl/version.py has {version}")
    notes = changelog_section(version)
    shutil.rmtree(options.target, ignore_errors=True)
    options.target.mkdir(parents=True)
    sdist = build_sdist(options.target, version)
    wheel = build_wheel(sdist, options.target, version)
    require_files(wheel)
    if not options.no_install:
        try_wheel(wheel, version)
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in (sdist, wheel)
    ]
    (options.target / "SHA256SUMS").write_text("\n".join(sums) + "\n", "utf-8")
    (options.target / "notes.md").write_text(notes, "utf-8")
    print(f"tpuctl {version} is in {options.target}:")
    print("\n".join(f"    {file.name}" for file in sorted(options.target.iterdir())))
    return 0


def read_version() -> str:
    text = (ROOT / "tpuctl" / "version.py").read_text("utf-8")
    match = re.search(r'(?m)^__version__ = "([^"]+)"$', text)
    assert match is not None, "tpuctl/version.py has no version"
    return match[1]


def changelog_section(version: str) -> str:
    """The changelog's entries of this version."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    match = re.search(rf"(?ms)^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text)
    if match is None or not match[1].strip():
        sys.exit(f"error: CHANGELOG.md has no section {version}")
    return match[1].strip() + "\n"


def build_sdist(target: Path, version: str) -> Path:
    run("-m", "hatchling", "build", "--target", "sdist", "--directory", str(target))
    return require(target / f"tpuctl-{version}.tar.gz")


def build_wheel(sdist: Path, target: Path, version: str) -> Path:
    """From the sdist, as for users for whom there is no wheel."""
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(target))
    run("-m", "pip", "wheel", "--quiet", *options, str(sdist))
    return require(target / f"tpuctl-{version}-py3-none-any.whl")


def require_files(wheel: Path) -> None:
    """Exit if the wheel lacks what pyproject.toml adds to the package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    added = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].values()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [
        path for path in added if not any(name.endswith(f".data/data/{path}") for name in names)
    ]
    if missing:
        sys.exit(f"error: {wheel.name} lacks {', '.join(missing)}")


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel in an empty environment, with the locked dependencies, and run it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        run("-m", "venv", str(environment))
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        python = environment / "bin" / "python"
        lock = ROOT / "requirements" / "runtime.lock"
        run(*install, "--require-hashes", "-r", str(lock), python=python)
        run(*install, "--no-deps", str(wheel), python=python)
        run("-m", "pip", "check", python=python)
        done = subprocess.run(
            [environment / "bin" / "tpuctl", "--version"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": folder},
            capture_output=True,
            text=True,
            check=True,
        )
        if done.stdout != f"tpuctl {version}\n":
            sys.exit(f"error: tpuctl --version printed {done.stdout!r}")
        require(environment / "share" / "man" / "man1" / "tpuctl.1")


def run(*arguments: str, python: Path | str = sys.executable) -> None:
    subprocess.run([python, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def require(path: Path) -> Path:
    if not path.exists():
        sys.exit(f"error: {path.name} was not made")
    return path


if __name__ == "__main__":
    sys.exit(main())
