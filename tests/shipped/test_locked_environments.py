"""Locks are installed exactly, on a real image, from a real index on loopback."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment_machine import Machine, uv_path
from tests.support.machine_folder import machine_folder
from tests.support.package_index import PASSWORD, PackageIndex, package_index
from tests.support.supervised_worker import PYTHONS
from tests.support.wheels import make_project, make_wheel

INSTALLED = (
    "from importlib.metadata import distributions as d;"
    "print(*sorted(x.name + '=' + x.version for x in d(path=[__import__('sysconfig')"
    ".get_path('purelib')])))"
)
PYPROJECT = """
[project]
name = "top"
version = "0.1"
requires-python = ">=3.8"
dependencies = ["small-library", "member"]
[project.optional-dependencies]
tpu = ["extra-library"]
[dependency-groups]
train = ["group-library"]
dev = ["dev-library"]
[tool.uv.workspace]
members = ["packages/*"]
[tool.uv.sources]
member = {workspace = true}
[[tool.uv.index]]
name = "internal"
url = "INDEX"
default = true
"""
CREDENTIALS = {"UV_INDEX_INTERNAL_USERNAME": "reader", "UV_INDEX_INTERNAL_PASSWORD": PASSWORD}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    folder = tmp_path / "index"
    make_wheel(folder, "small-library", "3.0", requires=["shared-library>=1"])
    for name in ("shared-library", "extra-library", "group-library", "dev-library"):
        make_wheel(folder, name, "1.0")
    with package_index(folder) as index:
        yield index


@pytest.fixture
def machine(tmp_path: Path, index: PackageIndex) -> Machine:
    machine = Machine(tmp_path, pip=False)
    machine.has_uv()
    del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
    code = machine.folder / "code"
    make_project(code / "packages/member", "member", "def say(): print('member')\n")
    (code / "pyproject.toml").write_text(PYPROJECT.replace("INDEX", index.url))
    run_uv(machine, "lock")
    # A release after the lock.
    make_wheel(index.folder, "shared-library", "2.0")
    return machine


def run_uv(machine: Machine, *arguments: str) -> None:
    """Run uv where the code is, as its author does."""
    variables = {**machine.variables, **CREDENTIALS, "UV_CACHE_DIR": str(machine.home / "author")}
    argv = [str(uv_path()), *arguments, "--python", str(machine.python), "--quiet"]
    subprocess.check_call(argv, cwd=machine.folder / "code", env=variables)


def lock(form: str = "uv", path: str = "uv.lock", **more: Any) -> dict[str, Any]:
    return {"lock": {"form": form, "path": path, **more}}


def installed(machine: Machine, environment: Path) -> list[str]:
    """What the environment has itself."""
    names = machine.evaluate(environment, INSTALLED).split()
    return [name for name in names if not name.startswith("tensorflow=")]  # the image's, its stub


def fail(machine: Machine, **install: Any) -> str:
    """The only line of a job whose lock cannot be installed."""
    done = machine.create(**install)
    assert done.returncode == 1, machine.log().decode()
    (line,) = done.stdout.decode().splitlines()
    assert {path.suffix for path in (machine.home / ".tpuctl/envs").iterdir()} == {".lock"}
    return line


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_lock_is_installed_exactly(machine: Machine, index: PackageIndex, python: str) -> None:
    machine.interpreter = python
    environment = machine.create_environment(**lock())
    assert installed(machine, environment) == ["shared-library=1.0", "small-library=3.0"]
    assert b"tpuctl: installed uv.lock in " in machine.log()
    assert not list((machine.folder / "code").glob("pylock*"))
    both = machine.create_environment(**lock(extras=["tpu"], groups=["train"]), bundle="2")
    assert installed(machine, both) == [
        *("extra-library=1.0", "group-library=1.0", "shared-library=1.0", "small-library=3.0"),
    ]
    assert b"tpuctl: installed uv.lock[tpu,train] in " in machine.log()
    assert len(index.downloads) == 4, "each file once"


def test_lock_has_one_environment_for_all_bundles(machine: Machine) -> None:
    first = machine.create_environment(**lock(), members=["packages/member"])
    code = "import member; member.say()"
    assert run_in_job(machine, code) == "member"
    member = machine.folder / "code/packages/member/lib/member.py"
    member.write_text("def say(): print('changed')\n")
    again = machine.create_environment(**lock(), members=["packages/member"], bundle="2")
    assert again == first
    assert run_in_job(machine, code) == "changed"


def run_in_job(machine: Machine, code: str) -> str:
    result = machine.result()
    variables = {**machine.variables, "PYTHONPATH": result["python_path"][0]}
    return subprocess.check_output([result["python"], "-c", code], env=variables, text=True).strip()


def test_file_with_another_hash_ends_the_job(machine: Machine, index: PackageIndex) -> None:
    make_wheel(index.folder, "shared-library", "1.0", text="changed = True\n")
    line = fail(machine, **lock())
    start = "uv.lock could not be installed: shared-library 1.0 does not have the required hash: "
    assert line.startswith(start)
    lines = (machine.folder / "code/uv.lock").read_text().splitlines()
    number = lines.index('name = "shared-library"') + 1
    assert line.endswith(f"; nothing was installed (uv.lock:{number})")


def test_script_is_installed_by_its_lock(machine: Machine, index: PackageIndex) -> None:
    script = machine.folder / "code/train.py"
    script.write_text(
        "# /// script\n# requires-python = '>=3.8'\n# dependencies = ['group-library']\n"
        f"# [[tool.uv.index]]\n# url = '{index.url}'\n# default = true\n# ///\n"
    )
    run_uv(machine, "lock", "--script", "train.py")
    install = lock("script", "train.py.lock", script="train.py")
    assert installed(machine, machine.create_environment(**install)) == ["group-library=1.0"]


def test_pylock_is_installed_without_packages_of_the_folder(machine: Machine) -> None:
    run_uv(machine, "export", "--format", "pylock.toml", "-o", "pylock.toml", "--frozen")
    text = (machine.folder / "code/pylock.toml").read_text()
    assert "directory = " in text
    environment = machine.create_environment(**lock("pylock", "pylock.toml"))
    names = ["dev-library=1.0", "shared-library=1.0", "small-library=3.0"]
    assert installed(machine, environment) == names
    assert sorted((machine.folder / "code").glob("pylock*")) == [
        machine.folder / "code/pylock.toml"
    ]


def test_password_of_a_named_index_is_uvs(machine: Machine, index: PackageIndex) -> None:
    index.password = PASSWORD
    line = fail(machine, **lock())
    assert f"the index at {index.address} asks for a password (401 Unauthorized)" in line
    machine.variables |= CREDENTIALS
    assert installed(machine, machine.create_environment(**lock()))
    machine.variables["UV_INDEX_INTERNAL_PASSWORD"] = "another"
    (machine.folder / "log").write_bytes(b"")
    machine.create_environment(**lock())
    assert machine.log() == b"", "a password is not part of the key"


def test_lock_for_another_python_is_refused(machine: Machine) -> None:
    path = machine.folder / "code/pylock.toml"
    path.write_text(
        'lock-version = "1.0"\ncreated-by = "test"\nrequires-python = ">=3.99"\npackages = []\n'
    )
    line = fail(machine, **lock("pylock", "pylock.toml"))
    assert "the lock requires Python >=3.99, and the job's is 3." in line
    path.write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "foreign"\n'
        'version = "1.0"\nwheels = [{name = "foreign-1.0-cp27-cp27m-win32.whl", url = '
        f'"http://127.0.0.1:9/foreign-1.0-cp27-cp27m-win32.whl", hashes = {{sha256 = "{"0" * 64}"}}'
        "}]\n"
    )
    line = fail(machine, **lock("pylock", "pylock.toml"))
    assert "foreign 1.0 has no wheel for this Python and platform" in line


def test_missing_lock_and_unknown_extra_are_named(machine: Machine) -> None:
    assert "extra `absent`" in fail(machine, **lock(extras=["absent"])).lower()
    (machine.folder / "code/uv.lock").unlink()
    done = machine.create(**lock())
    assert done.stdout == b"uv.lock cannot be read: No such file or directory\n"


# The TensorFlow of the image ----------------------------------------------------------------


def test_lock_may_agree_with_tensorflow_of_image(machine: Machine, index: PackageIndex) -> None:
    make_wheel(index.folder, "array-library", "1.5")  # as in the image
    make_wheel(index.folder, "free-library", "2.0")  # not TensorFlow's
    relock(machine, "array-library==1.5", "free-library")
    environment = machine.create_environment(**lock())
    assert installed(machine, environment) == ["free-library=2.0"]
    code = "import tensorflow; print(tensorflow.from_wheel)"
    assert machine.evaluate(environment, code) == "tensorflow-cpu"


def relock(machine: Machine, *requirements: str) -> None:
    file = machine.folder / "code/pyproject.toml"
    text = file.read_text()
    old = 'dependencies = ["small-library", "member"]'
    file.write_text(text.replace(old, f"dependencies = {[*requirements]}", 1))
    run_uv(machine, "lock")


@pytest.mark.parametrize(
    ("requirement", "image"), [("array-library==2.0", "1.5"), ("tensorflow==2.18.0", "2.19.1")]
)
def test_lock_does_not_replace_tensorflow_of_image(
    machine: Machine, index: PackageIndex, requirement: str, image: str
) -> None:
    name, version = requirement.split("==")
    make_wheel(index.folder, name, version)
    relock(machine, requirement)
    index.downloads.clear()
    line = fail(machine, **lock())
    assert line.startswith(
        f"uv.lock has {name} {version}, but the TensorFlow of the image comes with {name} {image}: "
    )
    assert not [file for file in index.downloads if version in file], "nothing was downloaded"


def test_packages_of_a_pylock_are_left_out_with_all_their_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(machine_folder()))
    without_packages = importlib.import_module("lock_file").without_packages
    head = 'lock-version = "1.0"\n\n'
    remaining = '[[packages]]\nname = "jax"\nversion = "0.12.1"\n\n'
    left_out = '[[packages]]\nname = "LibTPU"\nversion = "0.0.50"\n[[packages.wheels]]\nurl = "x"\n'
    text, removed = without_packages(head + left_out + remaining, {"libtpu": ""})
    assert (text, removed) == (head + remaining, {"libtpu": "0.0.50"})
