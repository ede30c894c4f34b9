"""Creates the virtual environment that a job requires, on top of the image's Python.

Like `preparation.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I environment.py create FOLDER PYTHON`: standard library only, Python 3.8 and later.
It reads `install` from FOLDER/spec.json, and writes the job's interpreter and search paths to
FOLDER/environment.json. The environment sees the image's packages and never replaces the image's
TensorFlow. Environments are cached by their inputs, here and in the bucket; an incomplete one is
never used. The bundle's own project, if it is a package, is installed into a separate folder, so
that a change of its code does not change the environment.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING, Any, NamedTuple

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.jobs.shipped.environment.environment_store import EnvironmentStore
    from tpuctl.jobs.shipped.environment.pip_inputs import (
        decode,
        digest,
        expand,
        pip_inputs,
        required_names,
        without_credentials,
    )
    from tpuctl.jobs.shipped.environment.run_once import Failure, RunOnce
    from tpuctl.jobs.shipped.machine.folder import Folder
else:
    from folder import Folder
    from pip_inputs import decode, digest, expand, pip_inputs, required_names, without_credentials
    from run_once import Failure, RunOnce

PIP_OPTIONS = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
# Lines that name files of the bundle, which differ between bundles; not options with a URL.
URL_OPTION = r"-(i|f|-index-url|-extra-index-url|-find-links)[ =]\s*https?:"
FILE_REFERENCE = re.compile(rf"(?m)^\s*(?!{URL_OPTION})(-|\.|/)|file:|\.(whl|gz|zip)\s*$")
# A module of Python, and not of the folder in which the command runs. `-P` is Python 3.11's.
MODULE = ("-I", "-m")


class Requirements(NamedTuple):
    """What pip installs: a description, pip's arguments and folder, and the requirements' text."""

    description: str
    arguments: list[str]
    cwd: str
    text: str


class Environment:
    """The packages that one job needs in addition to the image's."""

    def __init__(self, folder: Folder, python: str, variables: dict[str, str]) -> None:
        spec = folder.read("spec.json")
        assert spec is not None
        self.folder = folder
        self.spec = spec
        self.python = python
        self.variables = variables
        self.code = folder.file("code")
        self.install: dict[str, Any] = spec.get("install") or {}
        self.bundle = str((spec.get("bundle") or {}).get("sha256"))
        self.wheels = self.wheel_files()
        self.image: dict[str, Any] = {}
        self.home = ""
        self.venv_python = python

    def create(self) -> dict[str, Any]:
        """Create the environment if missing; returns its interpreter and search paths."""
        requested, project = self.requirements(), self.install.get("project")
        if requested is None and project is None:
            return {"python": self.python, "virtual_env": None, "path": [], "python_path": []}
        probe = [self.python, os.path.abspath(__file__), "probe"]
        output = subprocess.check_output(probe, stdin=subprocess.DEVNULL, env=self.variables)
        self.image = json.loads(output)
        self.home = home = os.path.expanduser("~/.tpuctl/envs/" + self.key(requested))
        self.venv_python = os.path.join(home, "bin", "python")
        once = RunOnce(self.folder, home, self.variables)
        doing = (
            "creating a virtual environment"
            if requested is None
            else f"installing {requested.description}"
        )
        once.do(lambda: self.build(once, requested), doing)
        path, modules = [os.path.join(home, "bin")], []
        if project is not None:
            layer = self.install_project(project, requested)
            path.insert(0, os.path.join(layer, "bin"))
            modules.append(layer)
        result = {"python": self.venv_python, "virtual_env": home}
        return {**result, "path": path, "python_path": modules}

    def requirements(self) -> Requirements | None:
        """What the job requires, and further packages."""
        declared = self.declared_requirements()
        packages: list[str] = self.install.get("packages") or []
        if not packages:
            return declared
        names = ", ".join(packages)
        if declared is None:
            return Requirements(names, ["--", *packages], self.code, "\n".join(packages))
        return Requirements(
            f"{declared.description} and {names}",
            [*declared.arguments, *packages],
            declared.cwd,
            "\n".join([declared.text, *packages]),
        )

    def declared_requirements(self) -> Requirements | None:
        """From a requirements file, otherwise a list, otherwise all wheels."""
        name: str = self.install.get("requirements") or ""
        path = os.path.join(self.code, name)
        if os.path.isfile(path):
            with open(path, "rb") as source:
                text = expand(decode(source.read()), self.variables)
            return Requirements(name, ["-r", path], os.path.dirname(path), text)
        dependencies = self.install.get("dependencies") or []
        if dependencies:
            text = "\n".join(dependencies)
            arguments = ["--", *dependencies]
            return Requirements("the dependencies in pyproject.toml", arguments, self.code, text)
        if self.wheels:
            # By name: pip chooses among wheels for several Pythons, and keeps what is pinned.
            names = sorted({os.path.basename(wheel).split("-")[0] for wheel in self.wheels})
            description = f"the wheels in {self.install['wheels']}"
            arguments = ["--upgrade", "--", *names]
            return Requirements(description, arguments, self.code, "\n".join(names))
        return None

    def wheel_files(self) -> list[str]:
        folder = os.path.join(self.code, self.install.get("wheels") or "")
        if not self.install.get("wheels") or not os.path.isdir(folder):
            return []
        paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder)))
        return [path for path in paths if path.endswith(".whl")]

    def key(self, requested: Requirements | None) -> str:
        """The cache key of an environment on this machine: equal only for interchangeable ones."""
        return joint_digest(json.dumps(self.image, sort_keys=True), *self.inputs(requested))

    def inputs(self, requested: Requirements | None) -> list[str]:
        """What determines the installed packages, except the image. Without passwords."""
        parts = []
        if requested is not None:
            included = pip_inputs(requested.text, requested.cwd, self.variables)
            parts += [json.dumps(requested.arguments[:1]), requested.text, *included]
            if any(map(FILE_REFERENCE.search, [requested.text, *included])):
                parts.append(self.bundle)
        for wheel in self.wheels:
            parts += [os.path.basename(wheel), digest(wheel)]
        return [without_credentials(part) for part in parts]

    def bucket_key(self, requested: Requirements | None, *parts: str) -> str:
        """The key of an environment in the bucket: equal for all machines that may share it.

        Unlike machines, the bucket outlives changes of the setup command.
        """
        image = {name: self.image[name] for name in self.image if name not in ("prefix", "paths")}
        setup = without_credentials(self.install.get("setup") or "")
        inputs = [setup, *self.inputs(requested), *parts]
        return joint_digest(json.dumps(image, sort_keys=True), *inputs)

    def build(self, once: RunOnce, requested: Requirements | None) -> str:
        """Build the virtual environment; returns what was done."""
        # Without pip: images from Debian lack ensurepip, and their own pip is seen anyway.
        options = ["--without-pip", "--system-site-packages", once.home]
        if once.run(self.python, *MODULE, "venv", *options):
            raise Failure(f"{self.python} cannot create a virtual environment")
        constraints = self.keep_image_packages()

        def install() -> None:
            if once.run(self.venv_python, *MODULE, "pip", "--version"):
                once.run(self.venv_python, *MODULE, "ensurepip")
            if requested is not None:
                self.pip(once, requested, *constraints)
                self.require_installed(required_names(requested.text))

        if requested is None:
            install()
            return "created a virtual environment"
        return self.provide(once, install, requested.description, self.bucket_key(requested))

    def install_project(self, project: str, requested: Requirements | None) -> str:
        """Install the bundle's own project, without its dependencies, and return its folder."""
        once = RunOnce(self.folder, f"{self.home}-{self.bundle[:24]}", self.variables)
        arguments = ["--no-deps", "--target", once.home, "."]
        needed = Requirements("the project", arguments, os.path.join(self.code, project), "")
        key = self.bucket_key(requested, project, self.bundle)

        def work() -> str:
            return self.provide(once, lambda: self.pip(once, needed), needed.description, key)

        once.do(work, "installing the project")
        return once.home

    def provide(
        self, once: RunOnce, install: Callable[[], None], description: str, key: str
    ) -> str:
        """Install, unless another worker's installation is in the bucket; returns what was done."""
        if not self.spec.get("cache"):
            install()
            return f"installed {description}"
        module = importlib.import_module("environment_store")  # with HTTP and TLS: takes a while
        store: EnvironmentStore = module.EnvironmentStore(self.folder, self.spec, key)
        return store.provide(once.home, self.home, install).format(description)

    def pip(self, once: RunOnce, requested: Requirements, *options: str) -> None:
        sources, source = [], ""
        if self.wheels:
            sources = ["--no-index", "--find-links", os.path.dirname(self.wheels[0])]
            source = " from the bundle's wheels alone (no index is used unless job.wheels is null)"
        argv = [self.venv_python, *MODULE, "pip", "install", *PIP_OPTIONS, *sources, *options]
        if once.run(*argv, *requested.arguments, cwd=requested.cwd):
            raise Failure(f"{requested.description} could not be installed{source}")

    def require_installed(self, names: list[str]) -> None:
        """Raise Failure if pip succeeded without installing these packages, or elsewhere."""
        command = [self.venv_python, "-I", os.path.abspath(__file__), "absent", *names]
        absent = subprocess.check_output(command, stdin=subprocess.DEVNULL).decode().split()
        if absent:
            reason = "its variables PIP_… or settings prevent it"
            raise Failure(f"pip ended without error, but did not install {absent[0]}: {reason}")

    def keep_image_packages(self) -> list[str]:
        """Add the image's packages; returns the options with which pip keeps its TensorFlow."""
        command = [self.venv_python, "-I", os.path.abspath(__file__), "packages"]
        packages = subprocess.check_output(command, stdin=subprocess.DEVNULL).decode().strip()
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
                    "Summary: Provided by {distribution} in the image\n".format(**tensorflow)
                )
        constraints = self.folder.file("constraints.txt")
        with open(constraints, "w", encoding="utf-8") as target:
            target.write("\n".join(tensorflow["pins"]) + "\n")
        return ["--constraint", constraints]


def joint_digest(*texts: str) -> str:
    content = "\0".join(texts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(content).hexdigest()[:24]


def probe() -> dict[str, Any]:
    """Describe the image's Python and its packages; runs in that Python."""
    from importlib import metadata

    versions: dict[str, str] = {}
    provider = None
    for distribution in metadata.distributions():
        name = normalize(distribution.metadata["Name"] or "")
        versions.setdefault(name, distribution.version)
        top_level = distribution.read_text("top_level.txt") or ""
        if "tensorflow" in top_level.split() and (provider is None or name == "tensorflow"):
            provider = (name, distribution)
    tensorflow = None
    if provider is not None:
        name, distribution = provider
        pins = {f"tensorflow=={distribution.version}", f"{name}=={distribution.version}"}
        for requirement in distribution.requires or ():
            needed = normalize(re.split(r"[^\w.-]", requirement)[0])
            if needed in versions and "extra ==" not in requirement:
                pins.add(f"{needed}=={versions[needed]}")
        tensorflow = {"distribution": name, "version": distribution.version, "pins": sorted(pins)}
    return {
        "python": sys.version,
        "prefix": sys.prefix,
        "paths": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
        "tensorflow": tensorflow,
        "packages": sorted(f"{name}=={version}" for name, version in versions.items()),
        "platform": [platform.machine(), *platform.libc_ver()],
    }


def absent(names: list[str]) -> list[str]:
    """Those of the packages that are not installed for this Python."""
    from importlib import metadata

    installed = {
        normalize(distribution.metadata["Name"] or "") for distribution in metadata.distributions()
    }
    return [name for name in names if normalize(name) not in installed]


def normalize(name: str) -> str:
    """Normalize a distribution's name for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> int:
    if arguments == ["probe"]:
        print(json.dumps(probe()))
        return 0
    if arguments[0] == "absent":
        print(*absent(arguments[1:]))
        return 0
    if arguments == ["packages"]:
        print(sysconfig.get_path("purelib"))
        return 0
    _, path, python = arguments
    folder = Folder(path)
    try:
        result = Environment(folder, python, dict(os.environ)).create()
    except Failure as failure:
        print(failure)
        return 1
    folder.write("environment.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
