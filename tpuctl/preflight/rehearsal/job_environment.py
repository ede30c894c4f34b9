"""Creates the environment of a job that brings its own Python or a lock, or that uv installs.

Unlike that of `job_packages`, which the program of the workers creates on top of an image, it can
be that of any Python, and is exactly a lock's.
"""

from __future__ import annotations

import asyncio
import configparser
import hashlib
import json
import os
import re
import shutil
import signal
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tpuctl.assets import program
from tpuctl.environments import exclusive, pip_variables
from tpuctl.errors import RemoteFailed
from tpuctl.model.jobs.installation import Installation, LockFile
from tpuctl.preflight.rehearsal.job_packages import Packages

MARKER = "complete"  # its time is that of the last use
OUTPUT = "install.log"
TAIL_LINES = 12
MAX_LINE_LENGTH = 120  # of a reported line, in characters
POLL_SECONDS = 0.5
# The rest of a requirements file is in the bundle: then a change of the bundle counts.
FILE_REFERENCE = re.compile(r"(?m)^\s*(-r|-c|-e|--(requirement|constraint|editable)|\.|/)|file:|"
                            r"\.(whl|gz|zip)\s*$")  # fmt: skip
INCLUDE = re.compile(r"(?m)^\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)")
# Options in requirements files that uv refuses or ignores.
PIP_OPTION = re.compile(
    r"(?m)(?:^|\s)--(?!(?:requirement|constraint|editable|(?:extra-)?index-url|find-links|no-index|"
    r"no-binary|only-binary|prefer-binary|require-hashes|trusted-host|hash)\b)[a-z]"
)
COMMENT = re.compile(r"(?m)(^|\s)#.*$")
PACKAGE_TABLE = re.compile(r"(?m)^\[\[packages\]\][ \t]*$")
# Settings of uv that decide nothing about what is installed.
IRRELEVANT = re.compile(r"UV_(CACHE|LINK|NO_PROGRESS|PREVIEW|PYTHON|.*_(USERNAME|PASSWORD))")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")
IDENTITY = (
    "import json, platform, sys; "
    "print(json.dumps([sys.version, sys.prefix, platform.machine(), *platform.libc_ver()]))"
)
# Prints the packages of a Python, with what they depend on.
METADATA = """
import importlib.metadata, json
print(json.dumps([
    [each.metadata["Name"], each.version, each.read_text("METADATA") or each.read_text("PKG-INFO")]
    for each in importlib.metadata.distributions() if each.metadata["Name"]
]))
"""
STUB = "{0}/METADATA,,\n{0}/RECORD,,\n"  # RECORD of a package that is the image's


@dataclass(frozen=True)
class EnvironmentRequest:
    """An environment for a job's code.

    `python` is the interpreter to base it on, whose packages remain visible if it is an image.
    `excluded` are packages of a lock that are left out, or replaced by another one of the same
    version. `config` is the text of a configuration
    file of pip, `variables` the environment of the installer, `home` the folder of the cache.
    """

    python: Path
    installation: Installation
    code: Path
    digest: str  # of the bundle
    home: Path
    uv: str  # the program
    is_image: bool = False
    excluded: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Requirements:
    """What to install: arguments of the installer, which runs in `cwd`, and what decides the
    result. `left_out` are packages of the lock, as `name version`; `substitutes` what is installed
    for them."""

    arguments: tuple[str, ...]
    cwd: Path
    inputs: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    substitutes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Image:
    """The Python below an environment; without packages unless it is an image."""

    identity: str
    packages: tuple[tuple[str, str, str], ...] = ()  # name, version, metadata
    paths: tuple[str, ...] = ()
    tensorflow: Mapping[str, Any] | None = None


async def create_environment(
    request: EnvironmentRequest, folder: Path, report: Callable[[str], None]
) -> Packages:
    """Create the environment unless it is cached; `folder` is a working folder.

    Several processes create it once, and an interrupted creation is never used. Raises
    RemoteFailed with the installer's last lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    creation = _Creation(request, folder, report)
    image = await creation.image()
    requirements = await creation.requirements()
    inputs = () if requirements is None else requirements.inputs
    uses = "uv" if creation.has_uv else "pip"
    key = _digest(image.identity, str(request.is_image), uses, *inputs)
    home = request.home / ".tpuctl" / "envs" / key
    await creation.once(home, lambda: creation.build(home, image, requirements))
    programs, modules = [str(home / "bin")], list[str]()
    projects = [
        name for name in (*request.installation.members, request.installation.project) if name
    ]
    if projects:
        layer = home.with_name(f"{key}-{_digest(request.digest, *projects)}")
        await creation.once(layer, lambda: creation.install_projects(home, layer, projects))
        programs.insert(0, str(layer / "bin"))
        modules.append(str(layer))
    left_out = () if requirements is None else requirements.left_out
    return Packages(home / "bin" / "python3", home, tuple(programs), tuple(modules), left_out)


def index_variables(config: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Settings of pip that say where packages are, as variables of uv. Those of uv take precedence.

    >>> index_variables("[global]\\nindex-url = https://mirror.test/simple\\n", {})
    {'UV_DEFAULT_INDEX': 'https://mirror.test/simple'}
    """
    parser = configparser.RawConfigParser()
    with suppress(configparser.Error):  # pip rejects it, too
        parser.read_string(config)
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings |= dict(parser.items(section))
    for name, value in variables.items():
        if name.startswith("PIP_"):
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    result = {}
    for key, variable, separator in (
        ("index-url", "UV_DEFAULT_INDEX", " "),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
        ("trusted-host", "UV_INSECURE_HOST", " "),
    ):
        if words := settings.get(key, "").split():
            result[variable] = separator.join(words)
    if "UV_INDEX" in result:
        result["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip, which looks in all indexes
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        result["UV_NO_INDEX"] = "1"
    return {name: value for name, value in result.items() if name not in variables}


def needs_pip(file: Path) -> bool:
    """Whether a requirements file, or one that it includes, has options that only pip knows."""
    files, read = [file], set[Path]()
    while files:
        path = files.pop()
        if path in read or not path.is_file():
            continue
        read.add(path)
        text = COMMENT.sub("", path.read_text("utf-8", "replace"))
        if PIP_OPTION.search(text):
            return True
        files += [(path.parent / name).resolve() for name in INCLUDE.findall(text)]
    return False


def without_packages(pylock: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """A pylock.toml without these packages, and the versions of those that it had."""
    head, *tables = PACKAGE_TABLE.split(pylock)
    remaining, removed = [head], {}
    for table in tables:
        text = f"[[packages]]{table}"
        package = tomllib.loads(text)["packages"][0]
        name = canonicalize_name(str(package.get("name", "")))
        if name in names:
            removed[str(name)] = str(package.get("version", ""))
        else:
            remaining.append(text)
    return "".join(remaining), removed


class _Creation:
    """The creation of one environment."""

    def __init__(
        self, request: EnvironmentRequest, folder: Path, report: Callable[[str], None]
    ) -> None:
        self.request, self.folder, self.report = request, folder, report
        self.installation = request.installation
        self.has_uv = self.installation.lock is not None or (
            self.installation.uv is not None
            and not needs_pip(request.code / (self.installation.requirements or ""))
        )
        variables = pip_variables(request.variables)
        self.variables = {
            **variables,
            **index_variables(request.config, variables),
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_PREVIEW_FEATURES": "pylock",  # says nothing about it
            "NO_COLOR": "1",
        }
        self.lock = -1

    async def image(self) -> _Image:
        python = str(self.request.python)
        if not self.request.is_image:
            return _Image((await self.output(python, "-I", "-S", "-c", IDENTITY)).strip())
        probe = self.folder / "image_packages.py"
        probe.write_text(program(probe.name), "utf-8")
        text = await self.output(python, str(probe), "probe")
        values = json.loads(text)
        packages = json.loads(await self.output(python, "-c", METADATA)) if self.has_uv else []
        return _Image(
            text, tuple(map(tuple, packages)), tuple(values["paths"]), values["tensorflow"]
        )

    async def requirements(self) -> Requirements | None:
        """What the job requires; None if nothing."""
        installation, code = self.installation, self.request.code
        if installation.lock is not None:
            return await self.locked(installation.lock)
        arguments: tuple[str, ...] = ()
        text, cwd = "", code
        file = code / (installation.requirements or "")
        wheels = sorted(
            path.name for path in (code / (installation.wheels or "")).glob("*.whl")
        ) if installation.wheels else []  # fmt: skip
        if file.is_file():
            text, cwd = file.read_text("utf-8", "replace"), file.parent
            arguments = ("-r", str(file))
        elif installation.dependencies:
            text, arguments = "\n".join(installation.dependencies), installation.dependencies
        elif wheels:
            arguments = tuple(sorted({wheel.split("-")[0] for wheel in wheels}))
        arguments += installation.packages
        if not arguments:
            return None
        text = "\n".join([text, *installation.packages])
        inputs = [*installation.dependencies, text, *self.settings()]
        if FILE_REFERENCE.search(text) or wheels:
            inputs.append(self.request.digest)
        return Requirements(arguments, cwd, tuple(CREDENTIALS.sub("", line) for line in inputs))

    def settings(self) -> Iterable[str]:
        """The installer's settings that decide what is installed."""
        prefix = "UV_" if self.has_uv else "PIP_"
        for name, value in sorted(self.variables.items()):
            if name.startswith(prefix) and not IRRELEVANT.match(name):
                yield f"{name}={value}"
        yield self.request.config

    async def locked(self, lock: LockFile) -> Requirements:
        code = self.request.code
        selection = [f"--extra={name}" for name in lock.extras]
        selection += [f"--group={name}" for name in lock.groups]
        file, cwd = self.folder / "pylock.toml", code
        if lock.form == "pylock":
            cwd = (code / lock.path).parent
            text = (code / lock.path).read_text("utf-8")
        else:
            scope = ["--no-emit-workspace", "--no-emit-local", "--no-default-groups", *selection]
            if lock.form == "script":
                scope, selection = ["--script", str(code / lock.script)], []
            else:
                cwd, selection = (code / lock.path).parent, []
            command = ["export", "--frozen", "--format=pylock.toml", f"--output-file={file}"]
            await self.run([self.request.uv, *command, "--no-header", *scope], cwd)
            text = file.read_text("utf-8")
        excluded = self.request.excluded
        text, removed = without_packages(text, excluded)
        file = cwd / f"pylock.tpuctl-{_digest(text)}.toml"  # beside what it names
        file.write_text(text, "utf-8")
        inputs = (text.replace(str(code), ""), *selection, *sorted(removed))
        return Requirements(
            ("-r", str(file), *selection),
            cwd,
            inputs,
            tuple(" ".join(entry).strip() for entry in removed.items()),
            tuple(
                f"{excluded[name]}=={version}"
                for name, version in removed.items()
                if excluded[name]
            ),
        )

    async def once(self, home: Path, build: Callable[[], Any]) -> None:
        """Build a folder unless it is complete, and note its use."""
        home.parent.mkdir(parents=True, exist_ok=True)
        waiting = "waiting for another process that is creating it"
        async with exclusive(Path(f"{home}.lock"), self.report, waiting=waiting) as lock:
            self.lock = lock
            if not (home / MARKER).exists():
                await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
                try:
                    await build()
                except BaseException:
                    shutil.rmtree(home, ignore_errors=True)
                    raise
            (home / MARKER).touch()

    async def build(self, home: Path, image: _Image, requirements: Requirements | None) -> None:
        python = str(self.request.python)
        command = [self.request.uv, "venv", "--no-project", "--no-config", "--python", python]
        await self.run([*command, str(home)], self.folder)
        [packages] = home.glob("lib/python*/site-packages")
        (packages / "image.pth").write_text(
            "".join(f"import site; site.addsitedir({path!r})\n" for path in image.paths), "utf-8"
        )
        options = self.keep_tensorflow(packages, image)
        if requirements is None:
            return
        stubs = list(_write_stubs(packages, image.packages)) if self.has_uv else []
        if not self.has_uv:
            await self.run([str(home / "bin" / "python3"), "-I", "-m", "ensurepip"], self.folder)
        arguments = [*self.sources(), *options, *requirements.arguments]
        await self.run([*self.installer(home), *arguments], requirements.cwd)
        if requirements.substitutes:
            command = [*self.installer(home), "--no-deps", *requirements.substitutes]
            await self.run(command, requirements.cwd)
        for stub in stubs:
            _remove_stub(stub)

    def installer(self, home: Path) -> list[str]:
        python = str(home / "bin" / "python3")
        if self.has_uv:
            return [self.request.uv, "pip", "install", "--python", python]
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
        return [python, "-I", "-m", "pip", "install", *options]

    def sources(self) -> list[str]:
        """Options to install from the bundle's wheels alone."""
        installation = self.installation
        if installation.lock is not None or not installation.wheels:
            return []
        return ["--no-index", "--find-links", str(self.request.code / installation.wheels)]

    def keep_tensorflow(self, packages: Path, image: _Image) -> list[str]:
        """Options that keep the image's TensorFlow, under the name that others require."""
        tensorflow = image.tensorflow
        if tensorflow is None or self.installation.lock is not None:
            return []
        if tensorflow["distribution"] != "tensorflow":
            stub = packages / f"tensorflow-{tensorflow['version']}.dist-info"
            stub.mkdir()
            (stub / "METADATA").write_text(_metadata("tensorflow", tensorflow["version"]), "utf-8")
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(tensorflow["pins"]) + "\n", "utf-8")
        return ["--constraint", str(constraints)]

    async def install_projects(self, home: Path, layer: Path, projects: list[str]) -> None:
        """Install the job's own packages, without their dependencies, into a folder."""
        options = [*self.sources(), "--no-deps", "--target", str(layer)]
        folders = [str(self.request.code / name) for name in projects]
        await self.run([*self.installer(home), *options, *folders], self.request.code)

    async def output(self, *command: str) -> str:
        """The output of a command that reads nothing and cannot fail but by a defect."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env=self.variables,
        )
        text, _ = await process.communicate()
        return text.decode()

    async def run(self, command: list[str], cwd: Path) -> None:
        """Run an installer, reporting its last line; its processes end with it. Raises
        RemoteFailed."""
        path = self.folder / OUTPUT
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=self.variables,
                pass_fds=[self.lock] if self.lock >= 0 else [],
                start_new_session=True,
            )
        waiting = asyncio.ensure_future(process.wait())
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=POLL_SECONDS)
                if lines := _lines(path):
                    self.report(lines[-1][:MAX_LINE_LENGTH])
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await waiting
        if process.returncode:
            lock = self.installation.lock
            raise RemoteFailed(
                "Installing requirements failed",
                "\n".join(_lines(path)[-TAIL_LINES:]) or "it failed without output",
                hint="Fix the requirements, which would fail on a worker too, and try again.",
                where=lock.path
                if lock is not None
                else self.installation.requirements or "job.requirements",
            )


def _write_stubs(packages: Path, distributions: Iterable[tuple[str, str, str]]) -> Iterable[Path]:
    """Let uv, which sees only the environment's folder, count packages of the image as
    installed."""
    for name, version, metadata in distributions:
        stub = packages / f"{canonicalize_name(name).replace('-', '_')}-{version}.dist-info"
        if not stub.exists():
            stub.mkdir()
            (stub / "METADATA").write_text(metadata or _metadata(name, version), "utf-8")
            (stub / "RECORD").write_text(STUB.format(stub.name), "utf-8")
            yield stub


def _remove_stub(stub: Path) -> None:
    """Remove a stub, unless the installer replaced it by the package."""
    record = stub / "RECORD"
    if record.is_file() and record.read_text("utf-8") == STUB.format(stub.name):
        shutil.rmtree(stub)


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: The image's\n"


def _lines(log: Path) -> list[str]:
    text = log.read_text("utf-8", "replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:24]
