"""The recipes of how-to-add.md work: their examples are added to copies of the repository.

Each part of a recipe is also omitted once: the test that the recipe names must report it. `make
test` adds three examples to the same copy, as people add one after another, and omits some parts;
`make soak` adds each of the others to a copy of its own, and omits every part.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

import tpuctl
from tests.docs.page_blocks import ROOT, blocks
from tpuctl.local_cloud import server_process

PAGE = ROOT / "docs" / "design" / "how-to-add.md"
MAX_RECIPE_LINES = 40  # not counting new files
SAMPLE = 3  # omitted parts of `make test`
QUICK = ("A rule of the check", "A known error", "A fault of the local cloud")
MAKE_DOCS = "make docs"
# A line with a file's name, followed by its content or a diff.
PART = re.compile(
    r"^`(?P<path>[\w./-]+)`:\n\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
# Compiled tests are copied, too: with their times, so that Python and pytest accept them.
EXCLUDED_FOLDERS = ("clients", "gcloud", "live", "oracle")
slow = pytest.mark.soak
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # each starts a dozen programs


@dataclass(frozen=True)
class Part:
    """A file that a recipe adds or changes."""

    path: str
    language: str
    text: str

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        if self.language != "diff":
            assert not file.exists(), f"{self.path} already exists"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.text, "utf-8")
            return
        lines = self.text.splitlines()
        before = "\n".join(line[1:] for line in lines if line[:1] != "+")
        after = "\n".join(line[1:] for line in lines if line[:1] != "-")
        text = file.read_text("utf-8")
        assert text.count(before) == 1, f"{self.path} does not contain exactly once:\n{before}"
        file.unlink()  # it may be a link to the pristine file
        file.write_text(text.replace(before, after), "utf-8")


def recipes() -> dict[str, str]:
    sections = re.split(r"^## (.+)\n", PAGE.read_text("utf-8"), flags=re.M)[1:]
    return dict(zip(sections[::2], sections[1::2], strict=True))


def parts(title: str) -> list[Part]:
    return [Part(*match.groups()) for match in PART.finditer(recipes()[title])]


def commands(title: str) -> list[str]:
    section = recipes()[title]
    first = PAGE.read_text("utf-8").partition(section)[0].count("\n")
    last = first + section.count("\n")
    section_blocks = [block for block in blocks(PAGE) if first < block.line <= last]
    return [
        command.text
        for block in section_blocks
        if block.language == "console"
        for command in block.commands
    ]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that the recipes and their tests need, including compiled ones."""
    tree = tmp_path_factory.mktemp("tree")
    package = Path(tpuctl.__file__).parent
    shutil.copytree(package, tree / "tpuctl", ignore=shutil.ignore_patterns("templates"))
    for folder in ("docs", "templates", "tests"):
        shutil.copytree(
            ROOT / folder, tree / folder, ignore=shutil.ignore_patterns(*EXCLUDED_FOLDERS)
        )
    for file in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / file, tree / file)
    return tree


@contextmanager
def applied(tree: Path, some_parts: Sequence[Part]) -> Iterator[None]:
    """Apply parts of recipes, and restore the files afterwards."""
    files = [tree / part.path for part in some_parts]
    before = {file: file.read_bytes() if file.exists() else None for file in files}
    try:
        for part in some_parts:
            part.apply(tree)
        yield
    finally:
        for file, content in before.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(content)


def copy_tree(source: Path, target: Path) -> None:
    """Link the programs, which are only replaced; `make docs` writes into other files."""

    def copy(source: str, target: str) -> None:
        is_program = source.endswith((".py", ".pyc"))
        (os.link if is_program else shutil.copy2)(source, target)

    shutil.copytree(source, target, copy_function=copy)


class Copy:
    """A copy of the repository, in which commands are run."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        words = shlex.split(command)
        if words[0] == "make":  # PYTHONPATH replaces the installation
            words[1:1] = ["-o", ".venv/.installed", f"BIN={Path(sys.executable).parent}"]
        else:
            assert words[0] == "tpuctl"
            words[:1] = [sys.executable, "-m", "tpuctl"]
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
        environment = {
            **inherited,
            "HOME": str(self.tree),
            "PYTHONPATH": str(self.tree),
            "TPUCTL_CLOUD": "local",
            "TPUCTL_LOCAL_HOME": str(self.home),
            "TPUCTL_YES": "1",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        }
        return subprocess.run(
            words, cwd=self.tree, env=environment, capture_output=True, check=False, text=True
        )

    @property
    def home(self) -> Path:
        """The home folder of its local cloud."""
        return self.tree / "local"

    def run_json(self, command: str) -> Any:
        """The data of a tpuctl command's JSON answer; the command must succeed."""
        run = self.run(f"{command} --json")
        assert run.returncode == 0, run.stdout + run.stderr
        return json.loads(run.stdout)["data"]

    def run_commands(self, title: str) -> None:
        """Run the commands of a recipe, which must succeed."""
        for command in commands(title):
            self.must_run(command)

    def must_run(self, command: str) -> None:
        run = self.run(command)
        assert run.returncode == 0, f"$ {command}\n{run.stdout}{run.stderr}"


MakeCopy = Callable[[str], Copy]


@pytest.fixture
def make_copy(pristine: Path, tmp_path: Path) -> Iterator[MakeCopy]:
    """Makes a copy of its own with a recipe applied."""

    def make(title: str) -> Copy:
        tree = tmp_path / "tree"
        copy_tree(pristine, tree)
        for part in parts(title):
            part.apply(tree)
        return Copy(tree)

    yield make
    server_process.stop(tmp_path / "tree" / "local")


@pytest.fixture(scope="module")
def quick_copy(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy with the quick recipes applied.

    `make docs`, the first command of each and the slowest, is run once.
    """
    copy = Copy(tmp_path_factory.mktemp("quick") / "tree")
    copy_tree(pristine, copy.tree)
    for part in (part for title in QUICK for part in parts(title)):
        part.apply(copy.tree)
    copy.must_run(MAKE_DOCS)
    yield copy
    server_process.stop(copy.home)


def run_commands_after_docs(copy: Copy, title: str) -> None:
    first, *others = commands(title)
    assert first == MAKE_DOCS
    for command in others:
        copy.must_run(command)


@pytest.mark.parametrize("title", recipes())
def test_recipe_is_short(title: str) -> None:
    text = recipes()[title]
    for part in parts(title):
        if part.language != "diff":
            text = text.replace(part.text, "")
    lines = [line for line in text.splitlines() if line and not line.startswith(("```", "<!--"))]
    assert len(lines) <= MAX_RECIPE_LINES


def test_rule_recipe(quick_copy: Copy) -> None:
    """A rule in one file can be selected, explained and suppressed, and its tests pass."""
    copy = quick_copy
    (rule, _) = parts("A rule of the check")
    namespace: dict[str, Any] = {}
    exec(compile(rule.text, rule.path, "exec"), namespace)
    script = copy.tree / "build" / "train.py"  # without tpuctl's own requirements
    script.parent.mkdir(exist_ok=True)
    script.write_text(namespace["RULE"].bad, "utf-8")

    def check(arguments: str) -> list[str]:
        data = copy.run_json(f"tpuctl check {arguments}")
        return [entry["code"] for entry in data.get("rules", data.get("findings"))]

    assert check("build/train.py") == ["TPU901"]
    assert check("build/train.py --select TPU1") == []
    assert check("--explain cubed") == ["TPU901"]
    script.write_text(f"# tpuctl: ignore-file[cubed]\n{namespace['RULE'].bad}", "utf-8")
    assert check("build/train.py") == []
    run_commands_after_docs(copy, "A rule of the check")


def test_known_error_recipe(quick_copy: Copy) -> None:
    run_commands_after_docs(quick_copy, "A known error")
    answer = quick_copy.run_json("tpuctl explain --error 'Balloon 7 could not be inflated'")
    assert "toy-balloon" in json.dumps(answer)


def test_fault_recipe(quick_copy: Copy) -> None:
    copy = quick_copy
    run_commands_after_docs(copy, "A fault of the local cloud")
    cloud = server_process.status(copy.home)
    assert cloud is not None
    path = "/v2/projects/local-project/locations/us-central1-b/nodes"
    headers = {"Authorization": f"Bearer {cloud.token}"}
    with requests.Session() as session:
        session.trust_env = False
        response = session.get(cloud.url + path, headers=headers, timeout=30)
    assert response.json()["error"]["message"] == "Project local-project is locked by a toy."
    (fault,) = copy.run_json("tpuctl local fault list")
    assert (fault["kind"], fault["applied"]) == ("toy-locked", 1)


@slow
def test_emulated_method_recipe(make_copy: MakeCopy) -> None:
    copy = make_copy("An emulated method")
    copy.run_commands("An emulated method")
    rows = [
        line.split("|")
        for line in (copy.tree / "docs/reference/coverage.md").read_text("utf-8").splitlines()
        if line.startswith("| instances |")
    ]
    assert any("`setMinCpuPlatform`" in row[2] for row in rows)  # emulated
    assert not any("`setMinCpuPlatform`" in row[4] for row in rows)


@slow
def test_recorded_fact_recipe(make_copy: MakeCopy) -> None:
    copy = make_copy("A recorded fact")
    copy.run_commands("A recorded fact")


@slow
def test_resource_kind_recipe(make_copy: MakeCopy) -> None:
    copy = make_copy("A resource kind")
    copy.run_commands("A resource kind")
    stack = copy.tree / "tpuctl.yaml"
    stack.write_text(
        "stack: toy\nproject: {id: local-project}\n"
        "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\ncontroller: {}\n",
        "utf-8",
    )

    def changes(command: str) -> dict[str, str]:
        data = copy.run_json(command)
        return {change["address"]: change["action"] for change in data["changes"]}

    assert changes("tpuctl plan")["toy-address/toy-toy"] == "create"
    assert copy.run("tpuctl up").returncode == 0
    assert changes("tpuctl plan")["toy-address/toy-toy"] == "nothing"
    assert copy.run("tpuctl down").returncode == 0
    assert changes("tpuctl plan")["toy-address/toy-toy"] == "create"


@slow
@pytest.mark.parametrize("title", ["A key of the stack file", "An option of a command"])
def test_recipe_without_result_of_its_own(make_copy: MakeCopy, title: str) -> None:
    make_copy(title).run_commands(title)


@slow
def test_template_recipe(make_copy: MakeCopy) -> None:
    copy = make_copy("A template")
    assert "toy" in copy.run_json("tpuctl init --list")
    copy.run_commands("A template")
    assert (copy.tree / "hello" / "tpuctl.yaml").is_file()


@slow
def test_tpu_generation_recipe(make_copy: MakeCopy) -> None:
    copy = make_copy("A TPU generation")
    copy.run_commands("A TPU generation")
    (copy.tree / "tpuctl.yaml").write_text(
        "stack: toy\nproject: {id: local-project}\ntpu: {type: v9-8, zones: [us-east5-a]}\n",
        "utf-8",
    )
    run = copy.run("tpuctl plan")
    assert run.returncode == 0, run.stderr
    assert "v9-8" in run.stdout
    assert "$72" in run.stdout, "8 chips at $9"


# Recipe, number of the omitted part, the test that reports it, and its message.
OMITTED_PARTS = [
    (
        "A rule of the check",
        0,
        "test_case_files_belong_to_rules",
        "files without a rule: ['tpu901_cubed']",
    ),
    ("A rule of the check", 1, "test_rule_has_cases", "write tests/cases/check/tpu901_cubed.toml"),
    ("A rule of the check", None, "test_rule_has_texts_and_page", "lacks TPU901: make docs"),
    ("A known error", 0, "test_seen_text_is_recognized", "'toy-balloon'"),
    ("A known error", 1, "test_every_known_error_has_a_seen_text", "tests/unit/seen_texts.toml"),
    ("A fault of the local cloud", 0, "test_fault_kinds", "fault_kinds.py"),
    ("A fault of the local cloud", 1, "test_fault_kinds", "is not applied"),
    ("A key of the stack file", 0, "test_resource_cases", "toy_note"),
    (
        "A key of the stack file",
        1,
        "test_every_key_of_stack_file_is_read",
        "schema.py: no code of tpuctl reads ['network.toy_note']",
    ),
    ("A key of the stack file", None, "test_reference", "out of date: make docs"),
    ("An option of a command", 0, "test_toy_option", "--toy-first"),
    ("An option of a command", 1, "test_help", "runtimes.py: runtimes does not use toy_first"),
    ("An option of a command", None, "test_reference", "out of date: make docs"),
]
LONGER_OMITTED_PARTS = [
    ("An emulated method", 0, "test_effects", "instances.setMinCpuPlatform: add an Effect"),
    ("An emulated method", 2, "test_iam_table", "permissions.toml"),
    ("A resource kind", 2, "test_resource_kinds", "composition.KINDS"),
    ("A resource kind", 3, "test_resource_cases", "resources_of"),
    ("A resource kind", 6, "test_resource_cases", "OBSERVED"),
    ("A resource kind", 7, "test_resource_kinds", "architecture.md"),
    ("A template", 0, "test_templates", "templates/stacks/toy.yaml"),
    ("A template", 2, "test_templates", "tests/flows/test_templates.py: JOBS lacks ['toy']"),
    ("A TPU generation", 1, "test_generations", "prices"),
    ("A TPU generation", 2, "test_generations", "runtimes"),
    ("A TPU generation", 3, "test_generations", "tpuctl/catalog/quota.py"),
    (
        "A TPU generation",
        4,
        "test_generations",
        "tpuctl/emulator/machines/servers/metadata_tree.py",
    ),
    ("A TPU generation", 5, "test_generations", "tpuctl/preflight/rehearsal/estimate.py"),
]


def check_omitted_part(
    pristine: Path, title: str, omitted: int | None, test: str, expected: str
) -> None:
    some_parts = [part for number, part in enumerate(parts(title)) if number != omitted]
    with applied(pristine, some_parts):
        run = Copy(pristine).run(f"make unit T={test}")
    assert run.returncode == 2, run.stdout + run.stderr
    assert expected in run.stdout, run.stdout


def test_sampled_omitted_parts_are_reported(pristine: Path) -> None:
    for part in random.sample(OMITTED_PARTS, SAMPLE):
        check_omitted_part(pristine, *part)


@slow
@pytest.mark.parametrize(
    ("title", "omitted", "test", "expected"), [*OMITTED_PARTS, *LONGER_OMITTED_PARTS]
)
def test_omitted_part_is_reported(
    pristine: Path, title: str, omitted: int | None, test: str, expected: str
) -> None:
    check_omitted_part(pristine, title, omitted, test, expected)
