"""The built wheel is complete, and the test suite runs it."""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from pathlib import Path

import pytest

import tpuctl
from tpuctl import assets
from tpuctl.flows.stack.init import prepare
from tpuctl.jobs.launch import SHIPPED

ROOT = Path(__file__).resolve().parents[2]


def test_suite_runs_installed_package() -> None:
    if "PYTHONPATH" in os.environ:
        pytest.skip("PYTHONPATH chooses another tpuctl")
    assert not Path(tpuctl.__file__).is_relative_to(ROOT / "tpuctl")
    assert importlib.metadata.version("tpuctl") == tpuctl.__version__


def test_wheel_contains_templates_and_shipped_files() -> None:
    source = ROOT / "templates"
    expected = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected
    for path in expected:
        assert (assets.templates() / path).read_bytes() == (source / path).read_bytes()
    package = Path(tpuctl.__file__).parent
    for name in SHIPPED:
        path = assets.shipped_programs()[name].relative_to(package)
        assert (package / path).read_bytes() == (ROOT / "tpuctl" / path).read_bytes()
    assert list((package / "local_cloud" / "image_locks").glob("*.txt"))


def test_init_writes_files_for_links_between_templates(tmp_path: Path) -> None:
    jobs = ROOT / "templates" / "jobs"
    links = [path.relative_to(jobs) for path in jobs.rglob("*") if path.is_symlink()]
    assert links, "no template shares a file with another: remove this test"
    for name in {link.parts[0] for link in links}:
        (tmp_path / name).mkdir()
        prepare(name, tmp_path / name, project="my-project").write()
    for link in links:
        written = tmp_path / link.parts[0] / link
        assert not written.is_symlink()
        assert written.read_bytes() == (jobs / link).read_bytes()


def test_locks_name_no_registry() -> None:
    locks = [
        *(ROOT / "requirements").glob("*.lock"),
        *ROOT.glob("tpuctl/local_cloud/image_locks/*.txt"),
    ]
    assert len(locks) >= 3
    for lock in locks:
        text = lock.read_text("utf-8")
        assert "://" not in text
        assert "index-url" not in text
        assert "--hash=sha256:" in text


def test_each_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "design" / "dependencies.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    listed = {name.strip() for row in rows for name in row.split("|")[1].split(",")}
    assert len(project["dependencies"]) > 10
    for requirement in project["dependencies"]:
        name = requirement.split(">")[0]
        # The table abbreviates google-cloud-tpu, google-cloud-compute, … to -tpu, -compute, …
        assert {name, name.removeprefix("google-cloud")} & listed, f"{name} has no reason"
