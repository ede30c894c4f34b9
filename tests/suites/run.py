"""`make suites`: runs them, and writes their lines of docs/reference/suites.md."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any
from xml.etree import ElementTree

import requests

from tests.suites.topics import topics
from tests.support.gcloud import environment_of, make_project
from tests.support.locations import US_ZONE
from tests.support.locked_environment import locked_node_modules, locked_python
from tpuctl.local_cloud import server_process
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "suites.md"
CLIENTS = ROOT / "requirements" / "clients"
LOCK = CLIENTS / "suites.lock"
OURS = "the local cloud's own"
FOLDER = "TPUCTL_SUITES"  # the variable that names the folder of repositories' copies
SERVICES = (
    *("cloudresourcemanager", "compute", "iam", "iamcredentials", "orgpolicy", "secretmanager"),
    *("storage", "tpu"),
)
ROLES = ("roles/owner", "roles/storage.admin", "roles/iam.serviceAccountTokenCreator")
HEAD = """# Suites of others

<!-- Written by `make suites`: change tests/suites instead. -->

Tests of other projects, their code unchanged, against [the local cloud](../local-cloud.md) through
`tpuctl local env`. Each suite comes with the package that it tests or, if no package has it, from
a copy of its repository at a commit. What did not pass is listed with the reason: not emulated, by
design, the client's own, or the local cloud's own.
"""
CLIENT_HEAD = """
## Clients in the project's own tests

Not suites of others: short programs of this project, which use these packages unchanged.

| tests | packages |
|---|---|"""


@dataclass(frozen=True)
class Suite:
    """One suite, as in suites.toml."""

    name: str
    title: str
    tests: str  # files or folders, separated by spaces
    package: str = ""
    sha256: str = ""
    repository: str = ""  # instead of a package: its name on GitHub,
    commit: str = ""
    folder: str = "."  # and where in it the tests run
    project: str = "suites-project"
    account: str = ""  # a service account, which owns the project if the suite runs as it
    has_key: bool = False
    quick: bool = False  # run in `make soak`, where it must pass in at least so many tests
    at_least: int = 1
    timeout: int = 120  # of a test, in seconds
    no_programs: Sequence[str] = ()
    unset: Sequence[str] = ()
    # A value may have others, as $STORAGE_EMULATOR_HOST.
    variables: Mapping[str, str] = field(default_factory=dict)
    node: str = ""  # the folder in requirements/clients of its packages, if it runs in mocha,
    build: str = ""  # and the command that compiles it
    topics: bool = False  # Pub/Sub's, which the local cloud does not emulate: see topics.py
    buckets: Sequence[str] = ()  # that must exist
    stand_ins: str = ""  # what its run does not take from the local cloud, for the board
    reasons: Mapping[str, str] = field(default_factory=dict)

    def reason(self, failure: str) -> str:
        """Why a test, by its name and its error, did not pass."""
        for pattern, reason in self.reasons.items():
            if re.search(pattern, failure, re.DOTALL):
                return reason
        return OURS

    @property
    def version(self) -> str:
        if self.repository:
            return f"{self.repository} {self.commit[:12]}"
        return self.package.replace("==", " ")

    @property
    def checkout(self) -> Path | None:
        """The copy of its repository, a clone or an export; None if there is none here."""
        folder = Path(os.environ.get(FOLDER, "")) / self.repository.rpartition("/")[2]
        return folder if os.environ.get(FOLDER) and folder.is_dir() else None

    @property
    def can_run(self) -> bool:
        return not self.repository or self.checkout is not None


@dataclass(frozen=True)
class Outcome:
    """How a suite ended; `failures` are names of tests with their errors."""

    passed: int
    skipped: int
    failures: Sequence[str]


def suites() -> list[Suite]:
    table = tomllib.loads(Path(__file__).with_name("suites.toml").read_text("utf-8"))
    return [Suite(name, **fields) for name, fields in table.items()]


def sources(suite: Suite, home: Path) -> Path:
    """The folder in which a suite runs: of its package, or in a copy of its repository."""
    checkout = suite.checkout if suite.repository else None
    if checkout is None:
        return unpacked_package(suite)
    if (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        if commit != suite.commit:
            sys.exit(f"{checkout} is at {commit}, and {suite.name} is for {suite.commit}")
    copy = home / "sources"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    return copy / suite.folder


def unpacked_package(suite: Suite) -> Path:
    """The unpacked source distribution of a suite's package, downloaded once."""
    folder = ImageStore().cache / "suites" / suite.sha256[:16]
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        listed = folder / "requirements.txt"
        listed.write_text(f"{suite.package} --hash=sha256:{suite.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
        command += ["--dest", str(folder), "--requirement", str(listed)]
        subprocess.run(command, check=True)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        archive.unlink()
        (folder / "complete").touch()
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def run(suite: Suite, home: Path) -> Outcome:
    """Run a suite on a local cloud of its own in `home`."""
    cloud = server_process.start(home / "cloud", pace="instant")
    try:
        variables = environment_of(cloud, suite.project, US_ZONE, home)
        variables["GOOGLE_CLOUD_PROJECT"] = suite.project
        make_project(cloud, *SERVICES, project=suite.project)
        with requests.Session() as session:
            admin = _Admin(cloud, suite.project, session)
            if suite.account:
                email = admin.create_account(suite.account)
                if suite.has_key:
                    file = admin.create_key(email, home)
                    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)
            for bucket in suite.buckets:
                admin.create_bucket(bucket)
        programs = home / "bin"
        programs.mkdir()
        for name in suite.no_programs:
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
        for name in suite.unset:
            variables.pop(name, None)
        variables.update(values(suite, variables))
        folder, report = sources(suite, home), home / "report.xml"
        command = (_mocha if suite.node else _pytest)(suite, folder, report)
        log = home / "output.txt"
        with log.open("w") as output, topics() if suite.topics else nullcontext({}) as of_topics:
            subprocess.run(
                command,
                cwd=folder,
                env={**variables, **of_topics},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not report.exists():
            sys.exit(f"{suite.name} did not run:\n{log.read_text()[-2000:]}")
        return outcome_of(report)
    finally:
        server_process.stop(home / "cloud")


def values(suite: Suite, variables: Mapping[str, str]) -> dict[str, str]:
    """A suite's own variables, which may hold others."""
    return {
        name: Template(value).safe_substitute(variables) for name, value in suite.variables.items()
    }


def _pytest(suite: Suite, folder: Path, report: Path) -> list[str]:
    command = [str(locked_python(LOCK)), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    limit = f"--timeout={suite.timeout}"
    return [*command, limit, f"--junit-xml={report}", *suite.tests.split()]


def _mocha(suite: Suite, folder: Path, report: Path) -> list[str]:
    """The command for a suite in JavaScript, after it has been compiled."""
    modules = locked_node_modules(LOCK.parent / suite.node)
    (folder / "node_modules").symlink_to(modules)
    built = subprocess.run(
        suite.build, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    if built.returncode:
        sys.exit(f"{suite.name} was not built:\n{(built.stdout + built.stderr)[-2000:]}")
    command = [str(modules / ".bin" / "mocha"), "--exit", "--timeout=60000"]
    options = ["--reporter=xunit", f"--reporter-option=output={report}"]
    options.append(f"--require={Path(__file__).with_name('mocha_setup.cjs')}")
    return [*command, *options, *suite.tests.split()]


class _Admin:
    """The owner of a suite's project, by plain requests."""

    def __init__(
        self, cloud: server_process.LocalCloud, project: str, session: requests.Session
    ) -> None:
        self._cloud = cloud
        self._project = project
        self._session = session
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {cloud.token}"

    def create_account(self, name: str) -> str:
        path = f"/v1/projects/{self._project}/serviceAccounts"
        return str(self._post(path, {"accountId": name})["email"])

    def create_bucket(self, name: str) -> None:
        self._post(f"/storage/v1/b?project={self._project}", {"name": name})

    def create_key(self, email: str, folder: Path) -> Path:
        """The key file of an account, which gets ROLES. Keys must be permitted first."""
        name = f"projects/{self._project}/policies/iam.disableServiceAccountKeyCreation"
        path = f"/v2/projects/{self._project}/policies"
        self._post(path, {"name": name, "spec": {"reset": True}})
        project = f"/v3/projects/{self._project}"
        policy = self._post(f"{project}:getIamPolicy", {})
        for role in ROLES:
            policy["bindings"].append({"role": role, "members": [f"serviceAccount:{email}"]})
        self._post(f"{project}:setIamPolicy", {"policy": policy})
        key = self._post(f"/v1/projects/{self._project}/serviceAccounts/{email}/keys", {})
        file = folder / "key.json"
        file.write_bytes(base64.b64decode(key["privateKeyData"]))
        return file

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self._session.post(self._cloud.url + path, json=body, timeout=60)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer


def outcome_of(report: Path) -> Outcome:
    """What pytest or mocha reports as JUnit does. A test whose end fails too is counted once."""
    results: list[tuple[str, str | None]] = []  # names of tests, with the error; None: passed
    skipped = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module = re.sub(r"^[\w.]*\.", "", case.get("classname", ""))
        name = f"{module}::{case.get('name')}"
        problems = [*case.iter("failure"), *case.iter("error")]
        if case.find("skipped") is not None:
            skipped += 1
        elif not problems:
            results.append((name, None))
        else:
            text = f"{problems[0].get('message') or ''}\n{problems[0].text or ''}"
            # pytest reports the end of a test after the test.
            if problems[0].tag == "error" and results and results[-1][0] == name:
                text = results.pop()[1] or text
            results.append((name, text))
    failures = [f"{name}: {text}" for name, text in results if text is not None]
    return Outcome(len(results) - len(failures), skipped, failures)


def page(outcomes: Mapping[str, Outcome], now: datetime, earlier: str = "") -> str:
    """The board. A suite that did not run keeps its lines of `earlier`."""
    parts = [HEAD, f"Last run on {now:%Y-%m-%d} with tpuctl {__version__}.\n"]
    parts.append("| suite | version | passed | failed | skipped |\n|---|---|---|---|---|")
    details = []
    for suite in suites():
        if suite.name not in outcomes:
            rows = [line for line in earlier.splitlines() if line.startswith(f"| {suite.title} |")]
            parts += rows[:1] or [f"| {suite.title} | {suite.version} | not run | | |"]
            details += rows[1:]
            continue
        outcome = outcomes[suite.name]
        counts = f"{outcome.passed} | {len(outcome.failures)} | {outcome.skipped}"
        parts.append(f"| {suite.title} | {suite.version} | {counts} |")
        details += _details(suite, outcome.failures)
    parts += [f"\n{suite.title}: {suite.stand_ins}." for suite in suites() if suite.stand_ins]
    if details:
        parts += ["\n## What did not pass\n", "| suite | tests | reason |\n|---|---|---|", *details]
    parts += [CLIENT_HEAD, *client_tests()]
    return "\n".join(parts) + "\n"


def client_tests() -> Iterator[str]:
    """What the project's own tests of clients use, from the lists of their packages."""
    for file in sorted((ROOT / "tests" / "clients").glob("test_*.py")):
        name = file.stem.removeprefix("test_")
        if name == "node":
            packages = list(
                json.loads((CLIENTS / name / "package.json").read_text())["dependencies"]
            )
        else:
            lines = (CLIENTS / f"{name}.in").read_text("utf-8").splitlines()
            packages = [line.split("#")[0].strip() for line in lines]
        names = ", ".join(sorted(each for each in packages if each))
        yield f"| `{file.relative_to(ROOT)}` | {names} |"


def _details(suite: Suite, failures: Iterable[str]) -> Iterator[str]:
    reasons = Counter(suite.reason(failure) for failure in failures)
    for reason, count in sorted(reasons.items()):
        names = ""
        if reason == OURS:
            tests = (each for each in failures if suite.reason(each) == OURS)
            names = ": " + ", ".join(f"`{each.partition(': ')[0]}`" for each in tests)
        yield f"| {suite.title} | {count} | {reason}{names} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SUITE")
    names = set(parser.parse_args().names)
    available = {suite.name: suite for suite in suites()}
    if unknown := names - available.keys():
        sys.exit(f"No suite {', '.join(unknown)}. There are: {', '.join(available)}")
    outcomes = {}
    for suite in available.values():
        if names and suite.name not in names:
            continue
        if not suite.can_run:
            where = f"{FOLDER} names no folder with a copy of {suite.repository}"
            print(f"{suite.name}: skipped, since {where}")
            continue
        with tempfile.TemporaryDirectory(prefix="tpuctl-suite-") as home:
            outcome = outcomes[suite.name] = run(suite, Path(home))
        counts = (
            f"{outcome.passed} passed, {len(outcome.failures)} failed, {outcome.skipped} skipped"
        )
        print(f"{suite.name}: {counts}", flush=True)
        for failure in outcome.failures:
            print(f"  {failure.partition(': ')[0]}: {suite.reason(failure)}")
    if outcomes:
        earlier = PAGE.read_text("utf-8")
        PAGE.write_text(page(outcomes, datetime.now(UTC), earlier), "utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
