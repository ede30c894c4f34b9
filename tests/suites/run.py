"""`make suites`: runs them, and writes docs/reference/suites.md after a complete run."""

from __future__ import annotations

import argparse
import base64
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import requests

from tests.support.gcloud import environment_of, make_project
from tests.support.locations import US_ZONE
from tests.support.locked_environment import locked_python
from tpuctl.local_cloud import server_process
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "suites.md"
LOCK = ROOT / "requirements" / "clients" / "suites.lock"
OURS = "the local cloud's own"
SERVICES = ("cloudresourcemanager", "compute", "iam", "iamcredentials", "orgpolicy", "storage")
ROLES = ("roles/owner", "roles/storage.admin", "roles/iam.serviceAccountTokenCreator")
HEAD = """# Suites of others

<!-- Written by `make suites`: change tests/suites instead. -->

Tests of other projects, their code unchanged, against [the local cloud](../local-cloud.md) through
`tpuctl local env`. Each suite comes with the package that it tests. What did not pass is listed
with the reason: not emulated, by design, the client's own, or the local cloud's own.
"""


@dataclass(frozen=True)
class Suite:
    """One suite, as in suites.toml."""

    name: str
    title: str
    package: str
    sha256: str
    tests: str
    project: str = "suites-project"
    account: str = ""  # a service account, which owns the project if the suite runs as it
    has_key: bool = False
    quick: bool = False  # run in `make soak`, where it must pass in at least so many tests
    at_least: int = 1
    no_programs: Sequence[str] = ()
    unset: Sequence[str] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    def reason(self, failure: str) -> str:
        """Why a test, by its name and its error, did not pass."""
        for pattern, reason in self.reasons.items():
            if re.search(pattern, failure, re.DOTALL):
                return reason
        return OURS


@dataclass(frozen=True)
class Outcome:
    """How a suite ended; `failures` are names of tests with their errors."""

    passed: int
    skipped: int
    failures: Sequence[str]


def suites() -> list[Suite]:
    table = tomllib.loads(Path(__file__).with_name("suites.toml").read_text("utf-8"))
    return [Suite(name, **fields) for name, fields in table.items()]


def sources(suite: Suite) -> Path:
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
        programs = home / "bin"
        programs.mkdir()
        for name in suite.no_programs:
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
        for name in suite.unset:
            variables.pop(name, None)
        report = home / "report.xml"
        command = [str(locked_python(LOCK)), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--timeout=120", f"--junit-xml={report}", suite.tests]
        log = home / "output.txt"
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=sources(suite),
                env=variables,
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
    """What pytest reports in JUnit's format. A test whose end fails too is counted once."""
    passed, skipped = set(), set()
    failures: dict[str, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        problems = [*case.iter("failure"), *case.iter("error")]
        if problems:
            text = f"{problems[0].get('message') or ''}\n{problems[0].text or ''}"
            failures.setdefault(name, f"{name}: {text}")
        elif case.find("skipped") is not None:
            skipped.add(name)
        else:
            passed.add(name)
    return Outcome(len(passed - failures.keys()), len(skipped), list(failures.values()))


def page(outcomes: Mapping[str, Outcome], now: datetime) -> str:
    """The board, of a complete run."""
    parts = [HEAD, f"Run on {now:%Y-%m-%d} with tpuctl {__version__}.\n"]
    parts.append("| suite | version | passed | failed | skipped |\n|---|---|---|---|---|")
    details = []
    for suite in suites():
        outcome = outcomes[suite.name]
        package = suite.package.replace("==", " ")
        counts = f"{outcome.passed} | {len(outcome.failures)} | {outcome.skipped}"
        parts.append(f"| {suite.title} | {package} | {counts} |")
        details += _details(suite, outcome.failures)
    if details:
        parts += ["\n## What did not pass\n", "| suite | tests | reason |\n|---|---|---|", *details]
    return "\n".join(parts) + "\n"


def _details(suite: Suite, failures: Iterable[str]) -> Iterator[str]:
    reasons = Counter(suite.reason(failure) for failure in failures)
    for reason, count in sorted(reasons.items()):
        names = ""
        if reason == OURS:
            tests = (each for each in failures if suite.reason(each) == OURS)
            names = ": " + ", ".join(f"`{each.partition(': ')[0]}`" for each in tests)
        yield f"| {suite.title.partition(':')[0]} | {count} | {reason}{names} |"


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
        with tempfile.TemporaryDirectory(prefix="tpuctl-suite-") as home:
            outcome = outcomes[suite.name] = run(suite, Path(home))
        counts = (
            f"{outcome.passed} passed, {len(outcome.failures)} failed, {outcome.skipped} skipped"
        )
        print(f"{suite.name}: {counts}")
        for failure in outcome.failures:
            print(f"  {failure.partition(': ')[0]}: {suite.reason(failure)}")
    if not names:
        PAGE.write_text(page(outcomes, datetime.now(UTC)), "utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
