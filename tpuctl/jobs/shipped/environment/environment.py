"""Creates the virtual environment that a job requires, on top of the image's Python or its own.

Like `preparation.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I environment.py create FOLDER PYTHON`: standard library only, Python 3.8 and later.
It reads `install` from FOLDER/spec.json, and writes the job's interpreter and search paths to
FOLDER/environment.json. The environment of an image's Python sees the image's packages and never
replaces the image's TensorFlow; that of a Python that the job brings has the job's packages alone.
Environments are cached by their inputs, here and in the bucket; an incomplete one is never used.
Packages of the bundle, such as its project, are installed into a separate folder, so that a change
of their code does not change the environment. uv installs, or pip where only pip can.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.jobs.shipped.environment import uv_settings
    from tpuctl.jobs.shipped.environment.environment_store import EnvironmentStore
    from tpuctl.jobs.shipped.environment.image_packages import remove_stubs, this_platform
    from tpuctl.jobs.shipped.environment.installer_errors import (
        explain,
        is_not_found,
        pip_requirement,
        place,
    )
    from tpuctl.jobs.shipped.environment.lock_file import LockedPackages
    from tpuctl.jobs.shipped.environment.pip_inputs import (
        decode,
        digest,
        expand,
        included_files,
        pip_inputs,
        required_names,
        without_credentials,
    )
    from tpuctl.jobs.shipped.environment.run_once import Failure, RunOnce
    from tpuctl.jobs.shipped.environment.tools import MODULE, PIP_OPTIONS, Tools
    from tpuctl.jobs.shipped.machine.folder import Folder
else:
    import uv_settings
    from folder import Folder
    from image_packages import remove_stubs, this_platform
    from installer_errors import explain, is_not_found, pip_requirement, place
    from lock_file import LockedPackages
    from pip_inputs import (
        decode,
        digest,
        expand,
        included_files,
        pip_inputs,
        required_names,
        without_credentials,
    )
    from run_once import Failure, RunOnce
    from tools import MODULE, PIP_OPTIONS, Tools

# Lines that name files of the bundle, which differ between bundles; not options with a URL.
URL_OPTION = r"-(i|f|-index-url|-extra-index-url|-find-links)[ =]\s*https?:"
FILE_REFERENCE = re.compile(rf"(?m)^\s*(?!{URL_OPTION})(-|\.|/)|file:|\.(whl|gz|zip)\s*$")
IMAGE_PACKAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "image_packages.py")
LEFT_OUT = "left_out.json"  # in an environment
DETAILS_SECONDS = 60.0  # to ask pip about a failure


class Requirements(NamedTuple):
    """What is installed: a description, the installer's arguments and folder, and the requirements'
    text; or a lock, with further requirements."""

    description: str
    arguments: list[str]
    cwd: str
    text: str
    lock: LockedPackages | None = None


class Environment:
    """The packages that one job needs in addition to its Python's."""

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
        self.tools = Tools(folder, spec, python, variables)
        self.image: dict[str, Any] = {}
        self.home = ""
        self.venv_python = python

    def create(self) -> dict[str, Any]:
        """Create the environment if missing; returns its interpreter and search paths."""
        requested, packages = self.requirements(), self.packages()
        build = self.install.get("python")
        if requested is None and not packages and not build:
            return {"python": self.python, "virtual_env": None, "path": [], "python_path": []}
        if build:
            self.python = self.tools.python()
            self.image = {**own_python(build), "prefix": self.identity()}
        else:
            probe = [self.python, IMAGE_PACKAGES, "probe"]
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
        if packages:
            layer = self.install_packages(packages, requested)
            path.insert(0, os.path.join(layer, "bin"))
            modules.append(layer)
        result = {"python": self.venv_python, "virtual_env": home, "left_out": self.left_out()}
        return {**result, "path": path, "python_path": modules}

    def identity(self) -> str:
        """Which Python is this computer's, of a rehearsal: not exactly the job's."""
        if not self.tools.here:
            return ""
        argv = [self.python, "-I", "-S", "-c", "import sys; print(sys.prefix, sys.version)"]
        return subprocess.check_output(argv, stdin=subprocess.DEVNULL).decode().strip()

    def left_out(self) -> list[str]:
        """The packages of the lock that were replaced or left out."""
        try:
            with open(os.path.join(self.home, LEFT_OUT), encoding="utf-8") as source:
                names: list[str] = json.load(source)
            return names
        except FileNotFoundError:
            return []

    def requirements(self) -> Requirements | None:
        """What the job requires, and further packages."""
        declared = self.declared_requirements()
        packages: list[str] = self.install.get("packages") or []
        if not packages:
            return declared
        names = ", ".join(packages)
        if declared is None:
            return Requirements(names, ["--", *packages], self.code, "\n".join(packages))
        return declared._replace(
            description=f"{declared.description} and {names}",
            arguments=[*(declared.arguments or ["--"]), *packages],
            text="\n".join([declared.text, *packages]),
        )

    def packages(self) -> list[str]:
        """The folders of the bundle's packages, the project first."""
        project = self.install.get("project")
        members: list[str] = list(self.install.get("members") or ())
        return [*([] if project is None else [project]), *members]

    def declared_requirements(self) -> Requirements | None:
        """From a lock, otherwise a requirements file, otherwise a list, otherwise all wheels."""
        if self.install.get("lock"):
            lock = LockedPackages(self.install["lock"], self.code, self.spec.get("replaced"))
            return Requirements(str(lock), [], lock.cwd, "", lock)
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
            has_files = any(map(FILE_REFERENCE.search, [requested.text, *included]))
            if self.install.get("uv"):
                parts += uv_settings.configuration(requested.cwd, self.code)
            if requested.lock is not None:
                parts += requested.lock.inputs
                has_files = has_files or requested.lock.has_files
            if has_files:
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
        has_own_python = bool(self.install.get("python"))
        options = ["--without-pip", *([] if has_own_python else ["--system-site-packages"])]
        if once.run(self.python, *MODULE, "venv", *options, once.home):
            raise Failure(f"{self.python} cannot create a virtual environment")
        constraints = [] if has_own_python else self.keep_image_packages()
        if requested is None:
            return "created a virtual environment"

        def install() -> None:
            self.install_requirements(once, requested, constraints)

        return self.provide(once, install, requested.description, self.bucket_key(requested))

    def install_requirements(
        self, once: RunOnce, requested: Requirements, constraints: Sequence[str]
    ) -> None:
        """Install into the environment, by a lock, or with uv, or with pip. Raises Failure."""
        if requested.lock is not None:
            self.install_lock(once, requested.lock)
            if not requested.arguments:
                return
        names = required_names(requested.text)
        uv = self.uv_unless_pip(requested)
        if uv:
            with self.image_stubs():
                self.run_uv(once, uv, requested, *constraints)
            self.require_installed(names, "uv", "UV_… or PIP_…")
        else:
            self.require_pip(once)
            self.pip(once, requested, *constraints)
            self.require_installed(names, "pip", "PIP_…")

    def install_lock(self, once: RunOnce, lock: LockedPackages) -> None:
        pins: list[str] = (self.image.get("tensorflow") or {}).get("pins") or []
        if self.tools.here:  # this computer's images are not exactly those of machines
            pins = []
        by_name = dict(pin.split("==", 1) for pin in pins)
        uv = self.tools.uv()
        variables = self.uv_variables(lock.cwd)
        with self.image_stubs(*by_name) if by_name else contextlib.nullcontext():
            left_out = lock.install(once, self.uv_install(uv), variables, by_name, self.sources())
        if left_out:
            with open(os.path.join(self.home, LEFT_OUT), "w", encoding="utf-8") as target:
                json.dump(left_out, target)

    def uv_unless_pip(self, requested: Requirements) -> str:
        """The path of uv; "" if pip installs."""
        if not self.install.get("uv"):
            return ""
        reason = uv_settings.for_pip(self.texts(requested), self.variables, requested.cwd)
        if reason:
            self.folder.log(f"pip installs {requested.description}: uv does not know {reason}")
            return ""
        try:
            return self.tools.uv()
        except Failure as failure:
            self.folder.log(f"pip installs {requested.description}: {failure}")
            return ""

    def texts(self, requested: Requirements) -> list[str]:
        """The requirements, and those that they include, with their variables."""
        if requested.arguments[:1] != ["-r"]:
            return []
        with open(requested.arguments[1], "rb") as source:
            text = decode(source.read())
        return [text, *included_files(text, requested.cwd, {})]

    def install_packages(self, packages: list[str], requested: Requirements | None) -> str:
        """Install the bundle's own packages, without their dependencies; returns their folder."""
        names = [self.bundle[:24]]
        if packages != [self.install.get("project")]:
            names.append(joint_digest(*packages)[:8])
        once = RunOnce(self.folder, "-".join([self.home, *names]), self.variables)
        description = "the project" if len(packages) == 1 else "the packages of the folder"
        folders = [f"./{os.path.normpath(name)}" for name in packages]
        arguments = ["--no-deps", "--target", once.home, "--", *folders]
        needed = Requirements(description, arguments, self.code, "")
        key = self.bucket_key(requested, *packages, self.bundle)

        def install() -> None:
            uv = self.uv_unless_pip(needed)
            if uv:
                self.run_uv(once, uv, needed)
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(once.home, ".lock"))
            else:
                self.require_pip(once)
                self.pip(once, needed)

        once.do(
            lambda: self.provide(once, install, needed.description, key),
            f"installing {needed.description}",
        )
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

    def require_pip(self, once: RunOnce) -> None:
        """Add Python's own pip to the environment, unless it sees another one."""
        if once.run(self.venv_python, "-I", "-c", "import pip.__main__"):
            once.run(self.venv_python, *MODULE, "ensurepip")

    def pip(self, once: RunOnce, requested: Requirements, *options: str) -> None:
        argv = [self.venv_python, *MODULE, "pip", "install", *PIP_OPTIONS, *self.sources()]
        if once.run(*argv, *options, *requested.arguments, cwd=requested.cwd):
            output = once.output()
            raise self.failure(requested, output + self.pip_details(output, requested.cwd))

    def pip_details(self, output: str, cwd: str) -> str:
        """Why pip found nothing for a requirement, which it only says if asked."""
        name = pip_requirement(output)
        if not name:
            return ""
        folder = self.home + ".details"
        argv = [self.venv_python, *MODULE, "pip", "download", *PIP_OPTIONS, "-vv"]
        argv += [*self.sources(), "--no-deps", "--only-binary", ":all:", "--dest", folder, name]
        try:
            return self.details(argv, cwd, self.variables)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def details(self, argv: Sequence[str], cwd: str, variables: dict[str, str]) -> str:
        """The output of a command that only finds out more about a failure."""
        try:
            return subprocess.run(
                argv,
                cwd=cwd,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=DETAILS_SECONDS,
                check=False,
            ).stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return ""

    def run_uv(self, once: RunOnce, uv: str, requested: Requirements, *options: str) -> None:
        variables = self.uv_variables(requested.cwd)
        hosts = uv_settings.insecure_hosts(self.texts(requested))
        if hosts:
            listed = variables.get("UV_INSECURE_HOST", "").split()
            variables["UV_INSECURE_HOST"] = " ".join([*listed, *hosts])
        sources = self.sources()
        settings = uv_settings.uv_options(self.variables, requested.cwd)
        if sources:  # uv refuses an option that is given twice
            settings = [word for word in settings if word not in sources]
        arguments = [*sources, *settings, *options, *requested.arguments]
        argv = [*self.uv_install(uv), *arguments]
        if once.run(*argv, cwd=requested.cwd, environment=variables):
            output = once.output()
            if is_not_found(output):  # with several indexes, uv does not say that one has refused
                more = [*self.uv_install(uv), "--dry-run", "--index-strategy", "first-index"]
                output = self.details([*more, *arguments], requested.cwd, variables) + output
            raise self.failure(requested, output)

    def uv_install(self, uv: str) -> list[str]:
        """The start of a command that installs into the environment. Links to uv's cache take no
        space, and unlike symbolic ones are files for archives."""
        argv = [uv, "pip", "install", "--no-progress", "--color", "never", "--link-mode"]
        return [*argv, "hardlink", "--python", self.venv_python]

    def uv_variables(self, cwd: str) -> dict[str, str]:
        has_own_python = bool(self.install.get("python"))
        return uv_settings.uv_variables(self.variables, cwd, has_own_python=has_own_python)

    def sources(self) -> list[str]:
        """The options with which only the bundle's wheels are installed, if it has some."""
        if not self.wheels:
            return []
        return ["--no-index", "--find-links", os.path.dirname(self.wheels[0])]

    def failure(self, requested: Requirements, output: str) -> Failure:
        source = (
            " from the bundle's wheels alone (no index is used unless job.wheels is null)"
            if self.wheels
            else ""
        )
        reason = explain(output)
        return Failure(
            f"{requested.description} could not be installed{source}"
            + (f": {reason}{place(reason, self.sources_of(requested))}" if reason else "")
        )

    def sources_of(self, requested: Requirements) -> list[tuple[str, str]]:
        """The names and texts of the files that may list what is required."""
        names = [self.install["requirements"]] if requested.arguments[:1] == ["-r"] else []
        folder = self.install.get("project") or ""
        names.append(os.path.normpath(os.path.join(folder, "pyproject.toml")))
        names += (word for word in self.spec.get("argv") or () if word.endswith(".py"))
        files = []
        for name in names:
            path = os.path.join(self.code, name)
            if os.path.isfile(path):
                with open(path, "rb") as source:
                    files.append((name, decode(source.read())))
        return files

    def require_installed(self, names: list[str], installer: str, settings: str) -> None:
        """Raise Failure if the installer succeeded without installing these packages, or
        elsewhere."""
        absent = self.query("absent", *names).split()
        if absent:
            reason = f"its variables {settings} or settings prevent it"
            raise Failure(
                f"{installer} ended without error, but did not install {absent[0]}: {reason}"
            )

    def query(self, command: str, *arguments: str) -> str:
        """The answer of `image_packages.py` in the environment."""
        argv = [self.venv_python, "-I", IMAGE_PACKAGES, command, *arguments]
        return subprocess.check_output(argv, stdin=subprocess.DEVNULL).decode().strip()

    @contextlib.contextmanager
    def image_stubs(self, *names: str) -> Iterator[None]:
        """Let uv see these packages of the image, by default all, until the end of the block."""
        if self.install.get("python"):
            yield
            return
        stubs: list[str] = json.loads(self.query("stubs", *names))
        try:
            yield
        finally:
            remove_stubs(stubs)
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(self.home, ".lock"))  # uv's

    def keep_image_packages(self) -> list[str]:
        """Add the image's packages; returns the options that keep its TensorFlow."""
        packages = self.query("folder")
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


def own_python(build: dict[str, Any]) -> dict[str, Any]:
    """What takes the place of the image for a Python that the job brings, and determines the
    packages that are installed."""
    return {
        "python": build["key"],
        "prefix": "",
        "paths": [],
        "tensorflow": None,
        "packages": [],
        "platform": this_platform(),
    }


def main(arguments: list[str]) -> int:
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
