"""Virtual environments of jobs, created on a real image by the shipped program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment_machine import SCRIPT, TIMEOUT, Machine
from tests.support.polling import until
from tests.support.wheels import make_project, make_wheel
from tpuctl.jobs.shipped.environment import environment_store, pip_inputs


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


VERSION_OF = "from importlib.metadata import version; print(version({!r}))"


def test_requirements_are_installed_on_top_of_image(tmp_path: Path) -> None:
    machine = Machine(tmp_path, pip=False)
    make_wheel(machine.wheels, "small-library", "3.0")
    make_wheel(machine.wheels, "layers", "1.0", requires=["tensorflow>=2.19,<2.20"])
    for name in ("array-library", "free-library", "extra-thing"):
        make_wheel(machine.wheels, name, "2.0")
    make_wheel(machine.wheels, "tensorflow", "2.19.9")  # must not be installed
    environment = machine.create_environment(
        "small-library\nlayers\nfree-library>=2\narray-library>=1\nextra-thing==2.0\n"
    )
    code = "import small_library, tensorflow; print(small_library.__version__, tensorflow)"
    output = machine.evaluate(environment, code)
    assert output.startswith("3.0 ")
    assert str(machine.home / "image") in output
    log = machine.log().decode().splitlines()
    assert log[0] == "tpuctl: installing requirements.txt"
    assert log[1].startswith("tpuctl: installed requirements.txt in ")
    assert len(log) == 2
    # The image's other TensorFlow package satisfies the requirement of "layers".
    code = "import tensorflow; print(tensorflow.from_wheel, tensorflow.__version__)"
    assert machine.evaluate(environment, code) == "tensorflow-cpu 2.19.1"
    # Only what that TensorFlow requires remains at the image's version.
    code = "from importlib.metadata import version; print(*map(version, {!r}))"
    names = ["tensorflow", "layers", "array-library", "free-library", "extra-thing"]
    versions = machine.evaluate(environment, code.format(names))
    assert versions == "2.19.1 1.0 1.5 2.0 2.0"
    code = "import extra_thing; print(extra_thing.__version__)"
    assert machine.evaluate(environment, code) == "2.0"


def test_conflict_with_image_fails_with_complete_log(machine: Machine) -> None:
    make_wheel(machine.wheels, "tensorflow", "2.18.0")
    done = machine.create("tensorflow==2.18.0\n")
    assert done.returncode == 1
    assert done.stdout.startswith(b"requirements.txt could not be installed: ")
    assert b"ERROR" in machine.log()
    assert b"tensorflow" in machine.log()
    # pip rejects other versions of each of these.
    pins = (machine.folder / "constraints.txt").read_text().splitlines()
    assert pins == ["array-library==1.5", "tensorflow-cpu==2.19.1", "tensorflow==2.19.1"]


def test_same_requirements_are_installed_once(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    first = machine.create_environment("small-library\n")
    (machine.folder / "log").write_bytes(b"")
    assert machine.create_environment("small-library\n") == first
    assert machine.log() == b""
    assert machine.create_environment("small-library  # other bytes\n") != first


@pytest.mark.soak
def test_further_packages_are_installed_next_to_requirements(machine: Machine) -> None:
    for name in ("thing", "tool"):
        make_wheel(machine.wheels, name, "1.0")
    without = machine.create_environment("thing\n")
    both = machine.create_environment("thing\n", packages=["tool"])
    assert both != without
    assert machine.evaluate(both, "import thing, tool; print('both')") == "both"
    assert b"installed requirements.txt and tool in" in machine.log()
    assert machine.evaluate(machine.create_environment(packages=["tool"]), "import tool") == ""


def test_incomplete_environment_is_recreated(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    first = machine.create_environment("small-library\n")
    (first / "complete").unlink()
    (first / "leftover").touch()
    assert machine.create_environment("small-library\n") == first
    assert not (first / "leftover").exists()


@pytest.mark.soak
def test_requirements_with_files_are_cached_per_bundle(machine: Machine) -> None:
    wheel = make_wheel(machine.folder / "code", "small-library", "3.0")
    first = machine.create_environment(f"./{wheel.name}\n")
    assert machine.create_environment(f"./{wheel.name}\n", bundle="2") != first
    assert machine.evaluate(first, VERSION_OF.format("small-library")) == "3.0"


@pytest.mark.soak
def test_options_with_urls_are_not_cached_per_bundle(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    requirements = "--extra-index-url=http://127.0.0.1:9/\n-f http://127.0.0.1:9/\nsmall-library\n"
    machine.variables["PIP_RETRIES"] = "0"
    first = machine.create_environment(requirements)
    assert machine.create_environment(requirements, bundle="2") == first


def test_environment_is_installed_if_bucket_is_unreachable(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    cache = {"environments": "tpuctl/cache/environments"}
    machine.spec = {"job": "j", "attempt": 1, "worker": 0, "bucket": "absent", "cache": cache}
    machine.variables["GCE_METADATA_HOST"] = "127.0.0.1:9"
    environment = machine.create_environment("small-library\n")
    assert machine.evaluate(environment, VERSION_OF.format("small-library")) == "3.0"
    _, reason, done = machine.log().decode().splitlines()
    assert reason.startswith("tpuctl: gs://absent/tpuctl/cache/environments/")
    assert reason.endswith(" is not available: [Errno 111] Connection refused")
    assert done.startswith("tpuctl: installed requirements.txt (1 package) in ")


@pytest.mark.parametrize(
    ("name", "text", "is_elsewhere"),
    [
        # packaging.python.org/en/latest/specifications/direct-url
        ("a.dist-info/direct_url.json", '{"url": "file:///a", "dir_info": {"editable": true}}', 1),
        ("a.dist-info/direct_url.json", '{"url": "file:///a", "dir_info": {}}', 0),
        ("a.dist-info/direct_url.json", '{"url": "https://a.org/a.whl", "archive_info": {}}', 0),
        ("a.egg-link", "/a\n.", 1),
        ("a.py", "", 0),
    ],
)
def test_editable_packages_are_recognized(
    tmp_path: Path, name: str, text: str, is_elsewhere: int
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert environment_store.is_editable(str(path)) == bool(is_elsewhere)


# Wheels of the bundle -----------------------------------------------------------------------

UNUSED_INDEX = "http://127.0.0.1:9/"  # an index that must not be queried: the discard port


@pytest.fixture
def connected(machine: Machine) -> Machine:
    """A machine that is configured to use only an index."""
    del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
    machine.variables.update(PIP_INDEX_URL=UNUSED_INDEX, PIP_RETRIES="0")
    return machine


def test_bundled_wheels_need_no_index_and_keep_tensorflow(connected: Machine) -> None:
    code = connected.folder / "code"
    make_wheel(code / "wheels", "small-library", "3.0", requires=["free-library>=2"])
    make_wheel(code / "wheels", "free-library", "2.0")  # the image has 1.0
    make_wheel(code / "wheels", "array-library", "2.0")  # pinned by TensorFlow
    other_wheel = make_wheel(code / "wheels", "small-library", "4.0")
    other_wheel.rename(other_wheel.with_name("small_library-4.0-cp27-none-any.whl"))
    environment = connected.create_environment(wheels="wheels")
    assert connected.evaluate(environment, VERSION_OF.format("small-library")) == "3.0"
    assert connected.evaluate(environment, VERSION_OF.format("free-library")) == "2.0"
    assert connected.evaluate(environment, VERSION_OF.format("array-library")) == "1.5"
    assert UNUSED_INDEX.encode() not in (connected.folder / "install.log").read_bytes()
    assert connected.log().startswith(b"tpuctl: installing the wheels in wheels\n")


def test_failed_install_is_logged_and_leaves_nothing(connected: Machine) -> None:
    wheels = connected.folder / "code/wheels"
    make_wheel(wheels, "small-library", "3.0", requires=["absent-library"])
    done = connected.create("small-library\n", wheels="wheels")
    assert done.returncode == 1
    assert done.stdout.decode() == (
        "requirements.txt could not be installed from the bundle's wheels alone (no index is "
        "used unless job.wheels is null): absent-library does not exist in the index\n"
    )
    install_log = (connected.folder / "install.log").read_bytes()
    assert b"absent-library" in install_log
    assert install_log in connected.log()
    environments = connected.home / ".tpuctl/envs"
    assert [path.suffix for path in environments.iterdir()] == [".lock"]


@pytest.mark.soak
def test_changed_wheel_creates_new_environment(connected: Machine) -> None:
    wheels = connected.folder / "code/wheels"
    make_wheel(wheels, "small-library", "3.0", text="value = 1\n")
    first = connected.create_environment("small-library\n", wheels="wheels", bundle="1")
    assert connected.create_environment("small-library\n", wheels="wheels", bundle="2") == first
    make_wheel(wheels, "small-library", "3.0", text="value = 2\n")
    second = connected.create_environment("small-library\n", wheels="wheels", bundle="3")
    values = [
        connected.evaluate(environment, "import small_library as s; print(s.value)")
        for environment in (first, second)
    ]
    assert values == ["1", "2"]


def test_environment_is_of_one_architecture(machine: Machine) -> None:
    """Machines of another architecture share neither the folder nor the archive in the bucket."""
    make_wheel(machine.wheels, "small-library", "3.0")
    first = machine.create_environment("small-library\n")
    assert machine.create_environment("small-library\n") == first
    packages = next((machine.home / "image/lib").iterdir()) / "site-packages"
    (packages / "sitecustomize.py").write_text(
        "import platform\nplatform.machine = lambda: 'aarch64'\n"
    )
    assert machine.create_environment("small-library\n") != first


# Projects -----------------------------------------------------------------------------------


def run_with(machine: Machine, *argv: str) -> str:
    """The output of a command that is started as environment.json requires."""
    environment = machine.result()
    variables = {
        **machine.variables,
        "PATH": os.pathsep.join([*environment["path"], machine.variables["PATH"]]),
        "PYTHONPATH": os.pathsep.join(environment["python_path"]),
    }
    program = shutil.which(argv[0], path=variables["PATH"])
    assert program is not None
    return subprocess.check_output([program, *argv[1:]], env=variables).decode().strip()


@pytest.mark.soak
def test_project_is_built_on_top_of_dependencies(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    code = machine.folder / "code"
    make_project(code, "model", "import small_library\ndef say(): print('first')\n")
    install = {"dependencies": ["small-library>=2"], "project": "."}
    environment = machine.create_environment(bundle="1", **install)
    assert run_with(machine, "say-model") == "first"
    assert run_with(machine, "python", "-c", VERSION_OF.format("model")) == "1.0"

    # Changed code: only the project is built again.
    make_project(code, "model", "import small_library\ndef say(): print('second')\n")
    (machine.folder / "log").write_bytes(b"")
    assert machine.create_environment(bundle="2", **install) == environment
    assert run_with(machine, "say-model") == "second"
    lines = machine.log().decode().splitlines()
    assert lines[0] == "tpuctl: installing the project"
    assert len(lines) == 2

    # The first code again: already built, even after a failed build of other code.
    (code / "backend.py").write_text("raise RuntimeError('no such thing')\n")
    assert machine.create(bundle="3", **install).returncode == 1
    assert b"no such thing" in machine.log()
    (machine.folder / "log").write_bytes(b"")
    machine.create_environment(bundle="1", **install)
    assert run_with(machine, "say-model") == "first"
    assert machine.log() == b""


@pytest.mark.soak
def test_project_with_dynamic_dependencies_is_cached_per_bundle(machine: Machine) -> None:
    code = machine.folder / "code"
    make_project(code, "model", "value = 1\n")
    first = machine.create_environment(dependencies=["./."], bundle="1")
    make_project(code, "model", "value = 2\n")
    second = machine.create_environment(dependencies=["./."], bundle="2")
    values = [
        machine.evaluate(environment, "import model; print(model.value)")
        for environment in (first, second)
    ]
    assert values == ["1", "2"]


# Interruptions ------------------------------------------------------------------------------


@pytest.fixture
def gate(machine: Machine) -> Iterator[Path]:
    """A file that the build of the project in `code` waits for; then `gate.reached` exists."""
    gate = machine.home / "gate"
    make_project(machine.folder / "code", "model", "value = 1\n", gate=gate)
    yield gate
    gate.touch()  # ends builds that still wait


def reached(gate: Path) -> Path:
    return gate.with_name("gate.reached")


def test_concurrent_jobs_share_one_installation(machine: Machine, gate: Path) -> None:
    other = machine.another_folder("other-job")
    first = machine.begin(machine.folder, dependencies=["./."])
    until(reached(gate).exists, "building")
    second = machine.begin(other, dependencies=["./."])
    until(lambda: b"waiting" in (other / "log").read_bytes(), "waiting")
    gate.touch()
    for process in (first, second):
        out, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, (out + err + machine.log()).decode()
    assert b"installed" in machine.log()
    assert b"installed" not in (other / "log").read_bytes()
    environments = [
        json.loads((folder / "environment.json").read_text()) for folder in (machine.folder, other)
    ]
    assert environments[0] == environments[1]


@pytest.mark.soak
@pytest.mark.parametrize("is_whole_tree", [True, False])
def test_start_after_kill_reinstalls(machine: Machine, gate: Path, is_whole_tree: bool) -> None:
    with machine.begin(machine.folder, dependencies=["./."]) as process:
        until(reached(gate).exists, "building")
        (os.killpg if is_whole_tree else os.kill)(process.pid, signal.SIGKILL)
    with machine.begin(machine.folder, dependencies=["./."]) as retry:
        if not is_whole_tree:  # its child process continues, and is waited for
            until(lambda: b"waiting" in machine.log(), "waiting")
        gate.touch()
        out, err = retry.communicate(timeout=TIMEOUT)
        assert retry.returncode == 0, (out + err + machine.log()).decode()
    environment = machine.create_environment(dependencies=["./."])
    assert machine.evaluate(environment, "import model; print(model.value)") == "1"
    assert machine.log().count(b"tpuctl: installed ") == 1


def test_dependency_is_not_parsed_as_pip_option(machine: Machine) -> None:
    assert machine.create(dependencies=["--version"]).returncode == 1
    assert b"Invalid requirement: '--version'" in machine.log()


# What decides the installation ----------------------------------------------------------------


def test_modules_of_the_job_do_not_run_during_installation(machine: Machine) -> None:
    """Modules of the folder with names of Python's or pip's, which `python -m` would prefer."""
    make_wheel(machine.wheels, "small-library", "3.0")
    code = machine.folder / "code"
    (code / "tokenize.py").write_text("raise SystemExit(0)\n")
    for name in ("pip", "venv", "ensurepip"):
        (code / name).mkdir()
        (code / name / "__init__.py").touch()
        (code / name / "__main__.py").touch()
    wheel = make_wheel(code / "libs", "other", "1.0")
    environment = machine.create_environment(f"small-library\n./libs/{wheel.name}\n")
    assert machine.evaluate(environment, VERSION_OF.format("other")) == "1.0"
    assert machine.evaluate(environment, VERSION_OF.format("small-library")) == "3.0"


@pytest.mark.parametrize("settings", [{"PIP_DRY_RUN": "1"}, {"PIP_TARGET": "elsewhere"}])
def test_installation_that_yields_nothing_fails(machine: Machine, settings: dict[str, str]) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    machine.variables |= settings
    done = machine.create("small-library\n")
    assert done.returncode == 1
    assert b"did not install small-library" in done.stdout
    environments = machine.home / ".tpuctl/envs"
    assert [path.suffix for path in environments.iterdir()] == [".lock"]


def keys_of(machine: Machine, requirements: str = "small-library\n") -> tuple[str, str]:
    """The keys on the machine and in the bucket."""
    (machine.folder / "code/requirements.txt").write_text(requirements)
    spec = {"bundle": {"sha256": "1"}, "install": {"requirements": "requirements.txt"}}
    (machine.folder / "spec.json").write_text(json.dumps(spec))
    code = (
        "import os, sys, environment, folder\n"
        "job = folder.Folder(sys.argv[1])\n"
        "e = environment.Environment(job, sys.executable, dict(os.environ))\n"
        "print(e.key(e.requirements()), e.bucket_key(e.requirements()))"
    )
    argv = [sys.executable, "-S", "-c", code, str(machine.folder)]
    keys = subprocess.check_output(argv, cwd=SCRIPT.parent, env=machine.variables, text=True)
    key, bucket_key = keys.split()
    return key, bucket_key


@pytest.mark.parametrize(
    ("settings", "file"),
    [
        ({"PIP_CONSTRAINT": "constraints.txt"}, ("", "")),
        ({"PIP_CONSTRAINT": "constraints.txt"}, ("constraints.txt", "array-library<2\n")),
        ({"PIP_CONSTRAINT": "constraints.txt"}, ("constraints.txt", "-c deep/more.txt\n")),
        ({"PIP_NO_DEPS": "1"}, ("", "")),
        ({"PIP_PRE": "1"}, ("", "")),
        ({"PIP_FIND_LINKS": "libs"}, ("libs/small_library-1.0.zip", "a")),
        ({"PIP_CONFIG_FILE": "pip.conf"}, ("pip.conf", "[install]\npre = true\n")),
        ({"UV_INDEX_URL": "http://127.0.0.1:9/"}, ("", "")),
        ({"SETUPTOOLS_SCM_PRETEND_VERSION": "2"}, ("", "")),
        ({}, ("../../.config/pip/pip.conf", "[global]\nindex-url = http://127.0.0.1:9/\n")),
    ],
)
def test_key_knows_what_decides_the_installation(
    machine: Machine, settings: dict[str, str], file: tuple[str, str]
) -> None:
    del machine.variables["PIP_CONFIG_FILE"]
    code = machine.folder / "code"
    (code / "deep").mkdir()
    (code / "libs").mkdir()
    for name in ("constraints.txt", "deep/more.txt", "pip.conf"):
        (code / name).touch()
    name, content = file
    if name:  # the content matters, with the same settings
        machine.variables |= settings
    before = keys_of(machine)
    machine.variables |= settings
    if name:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(content)
    after = keys_of(machine)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_key_knows_included_files_and_values_in_requirements(machine: Machine) -> None:
    shared = machine.home / "shared.txt"
    keys = []
    for text, value in (("", "1"), ("array-library<2\n", "1"), ("", "2")):
        shared.write_text(text)
        machine.variables["LIBRARY"] = value
        keys.append(keys_of(machine, f"-c {shared}\nsmall-library=={'${LIBRARY}'}\n"))
    assert len({key for pair in keys for key in pair}) == 6


def test_key_ignores_passwords_and_what_decides_nothing(machine: Machine) -> None:
    settings = {"PIP_EXTRA_INDEX_URL": "http://user:one@127.0.0.1:9/", "TOKEN": "a", "STEPS": "1"}
    machine.variables |= settings
    requirements = "small-library\nother @ https://${TOKEN}@127.0.0.1:9/other\n"
    first = keys_of(machine, requirements)
    machine.variables |= {"PIP_EXTRA_INDEX_URL": "http://user:two@127.0.0.1:9/", "TOKEN": "b"}
    machine.variables |= {"PIP_CACHE_DIR": "/tmp", "PIP_PROGRESS_BAR": "on", "STEPS": "2"}
    assert keys_of(machine, requirements) == first


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp949"])
def test_requirements_are_read_as_by_pip(encoding: str) -> None:
    mark = "# -*- coding: cp949 -*-\n" if encoding == "cp949" else ""
    text = f"{mark}# 한글\nsmall-library\n"
    assert pip_inputs.decode(text.encode(encoding)) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("six==1.16.0 --hash=sha256:ab  # why; not\n", ["six"]),
        ("jax[tpu]>=0.4,<1\nPyYAML\nzope.interface ~= 5\n", ["jax", "PyYAML", "zope.interface"]),
        ("six @ https://example.com/six.whl\n", ["six"]),
        ("six==1.16.0 \\\n  --hash=sha256:ab \\\n  --hash=sha256:cd\n", ["six"]),
        ("six; python_version < '3'\nsix \\\n ; python_version < '3'\n# six\n", []),
        ("libs/helper\n./libs/helper\nsix-1.0.whl\nhttps://a.org/six\ngit+https://a.org/s\n", []),
        ("-r more.txt\n-e .\n--index-url https://a.org\n", []),
    ],
)
def test_names_that_must_be_installed(text: str, names: list[str]) -> None:
    assert pip_inputs.required_names(text) == names
