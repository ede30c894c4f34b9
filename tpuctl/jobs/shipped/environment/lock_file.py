"""Installs exactly what a lock says, with uv: hashes are checked, and nothing is resolved.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later. uv writes its own locks as pylock.toml (PEP 751), which it installs. Packages of the
bundle's folder are left out: they are installed as the job's project.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from typing import Any

    from tpuctl.jobs.shipped.environment.installer_errors import explain, place
    from tpuctl.jobs.shipped.environment.run_once import Failure, RunOnce
else:
    from installer_errors import explain, place
    from run_once import Failure, RunOnce

TEMPORARY = "pylock.tpuctl.toml"  # beside the lock, since its paths are relative
# Files of the bundle that a lock refers to, which differ between bundles.
FILE_REFERENCE = re.compile(r"\b(registry|path|url)\s*=\s*\"(?!\w[\w+.-]*://)")
PACKAGE = re.compile(r"(?m)^(?=\[\[packages\]\]\s*$)")
LOCAL_PACKAGE = re.compile(
    r"(?m)^\s*(directory\s*=|\[packages\.directory\]|archive\s*=\s*\{[^}]*\bpath\s*=)|"
    r"^\[packages\.archive\][^\[]*?^path\s*="
)
CHANGE = re.compile(r"(?m)^ ([-+]) (?P<name>[\w.-]+)==(?P<version>\S+)")
# A lock's settings of the job's that uv would apply to it as well.
UNSET = ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_NO_VERIFY_HASHES", "UV_NO_DEPS")


class LockedPackages:
    """The packages of one lock, in the bundle's folder `code`."""

    def __init__(
        self, lock: Mapping[str, Any], code: str, replaced: Mapping[str, str] | None = None
    ) -> None:
        """`replaced` names packages for the same version of another one, or for none ("")."""
        self.path = os.path.join(code, lock["path"])
        self.name: str = lock["path"]
        self.form: str = lock["form"]
        self.script: str = lock.get("script") or ""
        self.extras: Sequence[str] = lock.get("extras") or ()
        self.groups: Sequence[str] = lock.get("groups") or ()
        self.replaced = replaced or {}
        self.code = code
        self.cwd = os.path.dirname(self.path)
        try:
            with open(self.path, encoding="utf-8", errors="replace") as source:
                self.text = source.read()
        except OSError as error:
            raise Failure(f"{self.name} cannot be read: {error.strerror}") from error

    def __str__(self) -> str:
        """As in job.requirements."""
        names = ",".join([*self.extras, *self.groups])
        return f"{self.name}[{names}]" if names else self.name

    @property
    def inputs(self) -> list[str]:
        """What determines the installed packages."""
        replaced = json.dumps(self.replaced, sort_keys=True) if self.replaced else ""
        return [json.dumps([self.form, [*self.extras], [*self.groups]]) + replaced, self.text]

    @property
    def has_files(self) -> bool:
        """Whether it refers to files of the bundle."""
        return bool(FILE_REFERENCE.search(self.text))

    def install(
        self,
        once: RunOnce,
        uv: Sequence[str],
        variables: dict[str, str],
        pins: Mapping[str, str],
        sources: Sequence[str],
    ) -> list[str]:
        """Install the packages; returns those that are replaced, as `name version`. `uv` is the
        start of a command of `uv pip install`, `sources` are its options for packages that replace
        others.

        Raises Failure, also if the lock has another version of a package in `pins`, which belong
        to the TensorFlow of the image.
        """
        variables = {name: variables[name] for name in variables if name not in UNSET}
        with self.exported(once, uv[0], variables) as (path, options):
            command = [*uv, "--preview-features", "pylock", "-r", path, *options]
            if pins:
                self.require_pins(once, [*command, "--dry-run"], variables, pins)
            removed = self.remove_replaced(path)
            substitutes = [
                f"{self.replaced[name]}=={version}"
                for name, version in removed.items()
                if self.replaced[name]
            ]
            more = [*uv, "--no-deps", *sources, *substitutes]
            for argv in [command, *([more] if substitutes else [])]:
                if once.run(*argv, cwd=self.cwd, environment=variables):
                    raise self.failure(once)
        return [f"{name} {version}" for name, version in removed.items()]

    def remove_replaced(self, path: str) -> dict[str, str]:
        """Remove the replaced packages from a pylock.toml; returns their versions, by name."""
        if not self.replaced:
            return {}
        with open(path, encoding="utf-8") as source:
            text, removed = without_packages(source.read(), self.replaced)
        with open(path, "w", encoding="utf-8") as target:
            target.write(text)
        return removed

    @contextlib.contextmanager
    def exported(
        self, once: RunOnce, uv: str, variables: dict[str, str]
    ) -> Iterator[tuple[str, list[str]]]:
        """The lock as a pylock.toml that exists until the end of the block, and the options with
        which to install it."""
        target = os.path.join(self.cwd, TEMPORARY)
        options: list[str] = []
        try:
            if self.form == "pylock":
                for extra in self.extras:
                    options += ["--extra", extra]
                for group in self.groups:
                    options += ["--group", f"{target}:{group}"]
                with open(target, "w", encoding="utf-8") as copy:
                    copy.write(without_local_packages(self.text))
            elif once.run(*self.export(uv, target), cwd=self.cwd, environment=variables):
                raise self.failure(once)
            yield target, options
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(target)

    def export(self, uv: str, target: str) -> list[str]:
        argv = [uv, "export", "--frozen", "--quiet", "--color", "never", "--no-header"]
        argv += ["--format", "pylock.toml", "--no-emit-local"]
        argv += ["--no-default-groups", "--output-file", target]
        if self.form == "script":
            script = self.script or self.name[: -len(".lock")]
            return [*argv, "--script", os.path.join(self.code, script)]
        argv.append("--no-emit-workspace")
        for extra in self.extras:
            argv += ["--extra", extra]
        for group in self.groups:
            argv += ["--group", group]
        return argv

    def require_pins(
        self,
        once: RunOnce,
        dry_run: Sequence[str],
        variables: dict[str, str],
        pins: Mapping[str, str],
    ) -> None:
        """Raise Failure if the lock would replace one of these packages of the image."""
        before = len(once.output())
        if once.run(*dry_run, cwd=self.cwd, environment=variables):
            raise self.failure(once)
        for match in CHANGE.finditer(once.output()[before:]):
            name = re.sub(r"[-_.]+", "-", match["name"]).lower()
            if match[1] == "+" and pins.get(name, match["version"]) != match["version"]:
                raise Failure(
                    f"{self.name} has {name} {match['version']}, but the TensorFlow of the image "
                    f"comes with {name} {pins[name]}: lock that version, or set job.python, so "
                    f"that the job does not use the image's TensorFlow"
                )

    def failure(self, once: RunOnce) -> Failure:
        reason = explain(once.output())
        where = place(reason, [(self.name, self.text)])
        return Failure(f"{self} could not be installed" + (f": {reason}{where}" if reason else ""))


def without_packages(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """A pylock.toml without these packages, and the versions of those that it had."""
    remaining, removed = [], {}
    for part in PACKAGE.split(text):
        fields = dict(re.findall(r'(?m)^(name|version)\s*=\s*"([^"]*)"', part))
        name = re.sub(r"[-_.]+", "-", fields.get("name", "")).lower()
        if part.startswith("[[packages]]") and name in names:
            removed[name] = fields.get("version", "")
        else:
            remaining.append(part)
    return "".join(remaining), removed


def without_local_packages(text: str) -> str:
    """A pylock.toml without the packages of folders and files, which have no index."""
    parts = PACKAGE.split(text)
    return "".join(part for part in parts if not LOCAL_PACKAGE.search(part))
