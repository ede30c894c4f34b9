"""Prepares an attempt on a worker: determines its command, folder and environment variables.

Like `supervisor.py`, whose work this is, this file is sent to workers as it is: standard library
only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO, Any

    from tpuctl.jobs.shipped.machine.folder import Folder, private
    from tpuctl.jobs.shipped.machine.forked import Process, fork_program
    from tpuctl.jobs.shipped.machine.network_variables import GATEWAY, set_variables
else:
    from folder import Folder, private
    from forked import Process, fork_program
    from network_variables import GATEWAY, set_variables

SECRETS = "secrets.json"  # as uploaded
SECRET_VALUES = "secret_values.json"  # as passed to the script
SHELL_ENVIRONMENT = "environment.sh"  # below ~/.tpuctl, read by `tpuctl ssh`
INSTALLED = (
    *("requirements", "dependencies", "project", "wheels", "packages", "lock", "members"),
    "python",
)
JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"  # the job's variable, if set, is respected


class Failure(Exception):
    """The attempt cannot continue; `cause` is one word for the record."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class Command:
    """A command, its working folder and its environment variables."""

    def __init__(self, argv: list[str], cwd: str, environment: dict[str, str]) -> None:
        self.argv = argv
        self.cwd = cwd
        self.environment = environment


def tool_command(name: str, *arguments: str) -> list[str]:
    """The command line of another shipped program."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    return [sys.executable, "-S", "-I", path, *arguments]


def prepare(folder: Folder, spec: dict[str, Any], wait: Callable[[], None]) -> Command:
    """Fetch the secrets, the bundle and compiled programs, run the setup command, create the
    virtual environment.

    `python` is the same interpreter for a script, a module, and within a shell command. `wait` is
    called repeatedly in the meantime: it sleeps briefly, and may raise to end the preparation.
    """
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    set_variables(environment, spec.get("env", {}))
    if spec.get("secrets"):
        run_step(folder, wait, "secrets", forked("secret_fetch", folder))
        set_variables(environment, folder.read(SECRET_VALUES) or {})
    environment.pop(GATEWAY, None)
    code = folder.file("code")
    if spec.get("bundle"):
        run_step(folder, wait, "bundle", forked("fetch", folder))
    else:
        os.makedirs(code, exist_ok=True)
    python = shutil.which(spec.get("python", "python3")) or sys.executable
    prepend(environment, "PATH", image_programs(folder, python, environment))
    # The job's variables may configure pip, but not what its Python imports.
    for_tools = {name: environment[name] for name in environment if name[:6] != "PYTHON"}
    install = spec.get("install") or {}
    if install.get("setup"):
        command = tool_command("setup_command.py", folder.path)
        run_step(folder, wait, "setup", executed(command, for_tools))
    modules: list[str] = []
    if any(install.get(name) for name in INSTALLED):
        command = tool_command("environment.py", "create", folder.path, python)
        run_step(folder, wait, "requirements", executed(command, for_tools))
        environment_result = folder.read("environment.json")
        assert environment_result is not None
        python, modules = environment_result["python"], environment_result["python_path"]
        prepend(environment, "PATH", environment_result["path"])
        if environment_result["virtual_env"]:
            environment["VIRTUAL_ENV"] = environment_result["virtual_env"]
    cache = spec.get("cache")
    if cache and JAX_CACHE not in environment:
        run_step(folder, wait, "cache", forked("compilation_cache", folder))
        environment[JAX_CACHE] = os.path.expanduser(cache["folder"])
    sources = os.path.join(code, "src")
    if not modules and os.path.isdir(sources):
        modules = [sources]
    prepend(environment, "PYTHONPATH", modules)
    first, *others = spec["argv"]
    argv = [python if first == "{python}" else first, *others]
    return Command(argv, os.path.join(code, spec.get("cwd", "")), environment)


def delete_secrets(folder: Folder) -> None:
    """Delete the secrets: nothing more will be started."""
    for name in (SECRETS, SECRET_VALUES):
        with contextlib.suppress(FileNotFoundError):
            os.remove(folder.file(name))


def write_shell_environment(spec: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Write what gives a shell the job's packages and variables of tpuctl, but no others: the
    values of the user's may be secret."""
    env: dict[str, str] = spec.get("env") or {}
    variables = {name: env[name] for name in env if name.startswith("TPUCTL_")}
    if "VIRTUAL_ENV" in environment:
        variables["VIRTUAL_ENV"] = environment["VIRTUAL_ENV"]
    lines = [f"export {name}={shlex.quote(variables[name])}" for name in sorted(variables)]
    for name, default in (("PATH", os.defpath), ("PYTHONPATH", "")):
        path = environment.get(name, "")
        path = remove_suffix(path, os.environ.get(name, default)).rstrip(os.pathsep)
        if path:
            lines.append(f'export {name}={shlex.quote(path)}"${{{name}:+{os.pathsep}${name}}}"')
    with contextlib.suppress(OSError):  # the job runs without it, too
        home = Folder(os.path.expanduser("~/.tpuctl"))
        home.replace(SHELL_ENVIRONMENT, "".join(f"{line}\n" for line in lines).encode())


def remove_suffix(text: str, suffix: str) -> str:
    """As Python 3.9's method."""
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text


def prepend(environment: dict[str, str], name: str, folders: Sequence[str]) -> None:
    """Prepend folders to a search path."""
    if folders:
        existing = environment.get(name) or (os.defpath if name == "PATH" else "")
        environment[name] = os.pathsep.join([*folders, *([existing] if existing else [])])


def image_programs(folder: Folder, python: str, environment: dict[str, str]) -> list[str]:
    """Folders to prepend to PATH, so that `python` is the image's Python."""
    default_python = shutil.which("python", path=environment.get("PATH")) or ""
    if os.path.dirname(default_python) == os.path.dirname(python) and os.path.samefile(
        default_python, python
    ):
        return []
    programs = folder.file("bin")
    os.makedirs(programs, exist_ok=True)
    for name in ("python", "python3"):
        # Not a link: a virtual environment's Python finds its packages by its own path.
        with open(os.path.join(programs, name), "w", encoding="utf-8") as shim:
            shim.write(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
            os.fchmod(shim.fileno(), 0o755)
    return [programs]


def forked(name: str, folder: Folder) -> Callable[[IO[bytes]], Process]:
    """A step that runs a shipped program with this process's environment variables."""
    return lambda output: fork_program(name, folder.path, output=output.fileno())


def executed(
    argv: Sequence[str], environment: Mapping[str, str]
) -> Callable[[IO[bytes]], subprocess.Popen[bytes]]:
    """A step that runs a command with other environment variables."""
    import subprocess  # it takes a while to load

    return lambda output: subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def run_step(
    folder: Folder,
    wait: Callable[[], None],
    cause: str,
    start: Callable[[IO[bytes]], Process | subprocess.Popen[bytes]],
) -> None:
    """Run a step of the preparation; the last line of its output is its error."""
    with open(folder.file("step.log"), "w+b", opener=private) as output:
        child = start(output)
        try:
            while child.poll() is None:
                wait()
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # a fork without its session yet
                    os.killpg(child.pid, signal.SIGKILL)
                child.kill()
                child.wait()
        if child.returncode:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            raise Failure(cause, lines[-1] if lines else f"exit code {child.returncode}")
