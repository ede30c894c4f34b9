"""Environments that uv installs: the image's packages stay, and pip's settings are obeyed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment_machine import Machine
from tests.support.package_index import PASSWORD, PackageIndex, package_index
from tests.support.wheels import make_project, make_wheel
from tpuctl.jobs.shipped.environment import pip_inputs, uv_settings

VERSIONS = "from importlib.metadata import version; print(*map(version, {!r}))"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, pip=False)  # so that pip cannot install anything
    machine.has_uv()
    return machine


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    (tmp_path / "index").mkdir()
    with package_index(tmp_path / "index") as index:
        yield index


@pytest.fixture
def connected(machine: Machine, index: PackageIndex) -> Machine:
    """A machine whose pip uses an index."""
    del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
    machine.variables["PIP_INDEX_URL"] = index.url
    return machine


def versions(machine: Machine, environment: Path, *names: str) -> str:
    return machine.evaluate(environment, VERSIONS.format(list(names)))


def test_bundled_wheels_are_installed_where_pip_is_not_to_use_an_index(machine: Machine) -> None:
    assert machine.variables["PIP_NO_INDEX"] == "1"
    make_wheel(machine.folder / "code/vendor", "small-library", "3.0")
    environment = machine.create_environment("small-library\n", wheels="vendor")
    assert versions(machine, environment, "small-library") == "3.0"


def test_uv_installs_on_top_of_image(machine: Machine) -> None:
    """As pip does in `test_requirements_are_installed_on_top_of_image`."""
    make_wheel(machine.wheels, "small-library", "3.0")
    make_wheel(machine.wheels, "layers", "1.0", requires=["tensorflow>=2.19,<2.20"])
    for name in ("array-library", "free-library", "extra-thing"):
        make_wheel(machine.wheels, name, "2.0")
    make_wheel(machine.wheels, "tensorflow", "2.19.9")  # must not be installed
    environment = machine.create_environment(
        "small-library\nlayers\nfree-library>=2\narray-library>=1\nextra-thing==2.0\n"
    )
    names = ["tensorflow", "layers", "array-library", "free-library", "extra-thing"]
    assert versions(machine, environment, *names) == "2.19.1 1.0 1.5 2.0 2.0"
    code = "import tensorflow; print(tensorflow.from_wheel, tensorflow.__version__)"
    assert machine.evaluate(environment, code) == "tensorflow-cpu 2.19.1"
    packages = next((environment / "lib").iterdir()) / "site-packages"
    installed = {path.name for path in packages.iterdir() if path.suffix == ".dist-info"}
    assert installed == {
        *("small_library-3.0.dist-info", "layers-1.0.dist-info", "free_library-2.0.dist-info"),
        *("extra_thing-2.0.dist-info", "tensorflow-2.19.1.dist-info"),
    }, "nothing is left of the image's"
    assert not (environment / ".lock").exists()


def test_package_of_image_is_not_installed_again(machine: Machine) -> None:
    environment = machine.create_environment("free-library\n")  # no wheel exists
    assert versions(machine, environment, "free-library") == "1.0"


def test_conflict_with_image_names_both(machine: Machine) -> None:
    make_wheel(machine.wheels, "tensorflow", "2.18.0")
    done = machine.create("tensorflow==2.18.0\n")
    assert done.returncode == 1
    assert b"2.18.0" in done.stdout
    assert b"2.19.1" in done.stdout


def test_wheels_of_bundle_need_no_index(connected: Machine, index: PackageIndex) -> None:
    wheels = connected.folder / "code/wheels"
    make_wheel(wheels, "small-library", "3.0", requires=["free-library>=2"])
    make_wheel(wheels, "free-library", "2.0")
    index.status = 500
    environment = connected.create_environment(wheels="wheels")
    assert versions(connected, environment, "small-library", "free-library") == "3.0 2.0"


def test_project_is_installed_beside_environment(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    code = machine.folder / "code"
    make_project(code / "packages/model", "model", "def say(): print('model')\n")
    make_project(code / "packages/data", "data", "import small_library\n")
    install = {"dependencies": ["small-library>=2"], "members": ["packages/model", "packages/data"]}
    environment = machine.create_environment(bundle="1", **install)
    assert evaluate_with_packages(machine, "import data, model; model.say()") == "model"
    program = Path(machine.result()["path"][0], "say-model").read_text()
    assert program.startswith(f"#!{environment}/bin/python\n")
    assert "tpuctl: installed the packages of the folder in " in machine.log().decode()
    make_project(code / "packages/model", "model", "def say(): print('changed')\n")
    assert machine.create_environment(bundle="2", **install) == environment
    assert evaluate_with_packages(machine, "import model; model.say()") == "changed"


def evaluate_with_packages(machine: Machine, code: str) -> str:
    """What the code prints in a job that has the packages of the bundle."""
    result = machine.result()
    variables = {**machine.variables, "PYTHONPATH": os.pathsep.join(result["python_path"])}
    return subprocess.check_output([result["python"], "-c", code], env=variables, text=True).strip()


# Where packages are -------------------------------------------------------------------------


def test_bytes_come_once(connected: Machine, index: PackageIndex) -> None:
    make_wheel(index.folder, "small-library", "3.0")
    make_wheel(index.folder, "other-library", "1.0")
    connected.create_environment("small-library\n")
    connected.create_environment("small-library\nother-library\n")
    assert sorted(index.downloads) == [
        "other_library-1.0-py3-none-any.whl",
        "small_library-3.0-py3-none-any.whl",
    ]


@pytest.mark.parametrize("kind", ["variable", "file", "user's file"])
def test_settings_of_pip_are_obeyed(
    connected: Machine, index: PackageIndex, tmp_path: Path, kind: str
) -> None:
    """The newest release of all indexes is installed, from one with a password."""
    make_wheel(index.folder, "small-library", "3.0")
    (tmp_path / "private").mkdir()
    make_wheel(tmp_path / "private", "small-library", "4.0")
    make_wheel(connected.wheels, "linked", "1.0")
    with package_index(tmp_path / "private", PASSWORD) as private:
        settings = {
            "index-url": index.url,
            "extra-index-url": private.url_with_password,
            "find-links": str(connected.wheels),
        }
        del connected.variables["PIP_INDEX_URL"], connected.variables["PIP_CONFIG_FILE"]
        if kind == "variable":
            for name, value in settings.items():
                connected.variables["PIP_" + name.upper().replace("-", "_")] = value
        else:
            file = tmp_path / ("pip.conf" if kind == "file" else ".config/pip/pip.conf")
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = (f"{name} = {value}" for name, value in settings.items())
            file.write_text("\n".join(["[global]", *lines, ""]))
            if kind == "file":
                connected.variables["PIP_CONFIG_FILE"] = str(file)
        environment = connected.create_environment("small-library\nlinked\n")
    assert versions(connected, environment, "small-library", "linked") == "4.0 1.0"
    assert PASSWORD.encode() not in connected.log()


def test_variables_of_uv_take_precedence(connected: Machine, index: PackageIndex) -> None:
    make_wheel(index.folder, "small-library", "3.0")
    connected.variables["PIP_INDEX_URL"] = "http://127.0.0.1:9/"
    connected.variables["UV_INDEX_URL"] = index.url
    # What a container sets for its own use of uv.
    connected.variables.update(UV_SYSTEM_PYTHON="1", UV_PYTHON="3.99", UV_LINK_MODE="symlink")
    environment = connected.create_environment("small-library\n")
    assert versions(connected, environment, "small-library") == "3.0"
    code = "import os, small_library as s; print(os.path.islink(s.__file__), s.__cached__)"
    is_link, cached = connected.evaluate(environment, code).split()
    assert is_link == "False"
    assert Path(cached).is_relative_to(environment)


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        ("small-library\n-r more.txt\n--find-links wheels\n-e .\n", {}, ""),
        ("small==1.0 \\\n  --hash=sha256:ab # --pre\n--require-hashes\n", {}, ""),
        ("https://${USER}:${TOKEN}@127.0.0.1/a.whl\n--index-url http://a/\n-ihttp://b/\n", {}, ""),
        ("small-library; python_version < '3'\n", {"PIP_NO_DEPS": "1", "PIP_PRE": "0"}, ""),
        ("--prefer-binary\nsmall-library\n", {}, "--prefer-binary"),
        ("small-library --global-option=x\n", {}, "--global-option"),
        ("small-library --config-settings a=b\n", {}, "--config-settings"),
        ("--pre\nsmall-library\n", {}, "--pre"),
        ("small-library==${VERSION}\n", {}, "variables in requirements"),
        ("small-library\n", {"PIP_TARGET": "x"}, "pip's setting target"),
        ("small-library\n", {"PIP_DRY_RUN": "false", "PIP_USER": "1"}, ""),
    ],
)
def test_what_only_pip_can_do_is_recognized(
    text: str, variables: dict[str, str], reason: str, tmp_path: Path
) -> None:
    variables = {"PIP_CONFIG_FILE": os.devnull, **variables}
    assert uv_settings.for_pip([text], variables, str(tmp_path)) == reason


@pytest.mark.soak
def test_pip_installs_what_uv_cannot(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has_uv()
    make_wheel(machine.wheels, "small-library", "3.0")
    (machine.folder / "code/more.txt").write_text("--prefer-binary\nsmall-library\n")
    environment = machine.create_environment("-r more.txt\n")
    assert versions(machine, environment, "small-library") == "3.0"
    assert b"pip installs requirements.txt: uv does not know --prefer-binary" in machine.log()


@pytest.mark.soak
def test_pip_installs_if_uv_is_unavailable(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has_uv()
    shutil.rmtree(machine.home / ".tpuctl/tools")
    make_wheel(machine.wheels, "small-library", "3.0")
    environment = machine.create_environment("small-library\n")
    assert versions(machine, environment, "small-library") == "3.0"
    assert b"is not in the bucket, and this machine could not download it" in machine.log()


def test_uvs_settings_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "a"\n[tool.uv]\nprerelease = "allow"\n[[tool.uv.index]]\nurl = "b"\n'
        "[tool.uvicorn]\nport = 1\n[build-system]\nrequires = []\n"
    )
    (tmp_path / "deep/uv.toml").write_text("no-index = true\n")
    assert uv_settings.configuration(str(tmp_path / "deep"), str(tmp_path)) == [
        "no-index = true\n",
        '[tool.uv]\nprerelease = "allow"',
        '[[tool.uv.index]]\nurl = "b"',
    ]


@pytest.mark.parametrize(
    ("config", "variables", "expected"),
    [
        (
            "[global]\nextra-index-url =\n  https://one.test/simple\n  https://two.test/simple\n",
            {},
            {
                "UV_INDEX": "https://one.test/simple https://two.test/simple",
                "UV_INDEX_STRATEGY": "unsafe-best-match",
            },
        ),
        (
            "[global]\nfind-links = /one\n[install]\nfind-links = /two /three\nno-index = yes\n",
            {},
            {"UV_FIND_LINKS": "/two,/three", "--no-index": ""},
        ),
        (
            "[global]\nindex-url = https://one.test/simple\n",
            {"PIP_INDEX_URL": "https://two.test/simple", "PIP_TRUSTED_HOST": "two.test"},
            {"UV_DEFAULT_INDEX": "https://two.test/simple", "UV_INSECURE_HOST": "two.test"},
        ),
        (
            "[global]\nindex-url = https://one.test/simple\n",
            {"UV_DEFAULT_INDEX": "https://three.test/simple"},
            {"UV_DEFAULT_INDEX": "https://three.test/simple"},
        ),
        ("no settings", {}, {}),
    ],
)
def test_uv_finds_packages_where_pip_would(
    tmp_path: Path, config: str, variables: dict[str, str], expected: dict[str, str]
) -> None:
    (tmp_path / "pip.conf").write_text(config, "utf-8")
    variables = {**variables, "PIP_CONFIG_FILE": "pip.conf", "HOME": str(tmp_path)}
    variables["XDG_CONFIG_DIRS"] = str(tmp_path / "none")
    result = uv_settings.uv_variables(variables, str(tmp_path), has_own_python=False)
    options = uv_settings.uv_options(variables, str(tmp_path))
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_INSECURE_HOST")
    indexes = {name: result[name] for name in names if name in result}
    strategy = {"UV_INDEX_STRATEGY": result["UV_INDEX_STRATEGY"]} if "UV_INDEX" in result else {}
    assert {**indexes, **strategy, **dict.fromkeys(options, "")} == expected


@pytest.mark.parametrize(
    ("text", "is_for_pip"),
    [
        ("plain\n", False),
        ("plain --hash=sha256:0 --hash=sha256:1  # --pre\n-e .\n--find-links wheels\n", False),
        ("--extra-index-url https://mirror.test/simple\n--no-index\n", False),
        ("--pre\nplain\n", True),
        ("plain --config-settings a=b\n", True),
        ("-r included.txt\n", True),
    ],
)
def test_options_that_only_pip_knows_are_recognized(
    tmp_path: Path, text: str, is_for_pip: bool
) -> None:
    (tmp_path / "included.txt").write_text("-r requirements.txt\n--use-pep517\n", "utf-8")
    (tmp_path / "requirements.txt").write_text(text, "utf-8")
    texts = [text, *pip_inputs.included_files(text, str(tmp_path), {})]
    variables = {"PIP_CONFIG_FILE": os.devnull}
    assert bool(uv_settings.for_pip(texts, variables, str(tmp_path))) == is_for_pip
