"""The table of TensorFlow's names matches the wheels and the installed TensorFlow."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import tensorflow_presence
from tests.support.job_environment import job_python
from tests.support.prerequisites import require_image
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.preflight.analysis.tensorflow.versioned_names import read_names

ROWS: list[dict[str, Any]] = [{"name": name, **entry} for name, entry in read_names().items()]
READ: dict[str, str] = json.loads(tensorflow_presence.STORED.read_text("utf-8"))
KEYS = {"name", "since", "until", "method", "legacy", "raises", "instead"}

LOOK = """
import json, sys
import tensorflow
missing = []
for name in json.load(sys.stdin):
    here = tensorflow
    try:
        for part in name.split(".")[1:]:
            here = getattr(here, part)
    except AttributeError:
        missing.append(name)
print(json.dumps([tensorflow.__version__, missing]))
"""
CALL = """
import json, sys
import tensorflow
silent = []
for name in json.load(sys.stdin):
    here = tensorflow
    for part in name.split(".")[1:]:
        here = getattr(here, part)
    try:
        here()
    except ImportError:
        continue
    silent.append(name)
print(json.dumps(silent))
"""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def has(row: dict[str, Any], version: str) -> bool:
    """Whether a version has a name according to the table, even if it only raises."""
    is_there = numbers(version) >= numbers(row.get("since", "2.1"))
    until = row.get("until")
    return is_there and (until is None or "raises" in row or numbers(version) < numbers(until))


def query(python: Path, program: str, names: list[str], **environment: str) -> Any:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "/usr/bin:/bin", **environment}
    answer = subprocess.run(
        [python, "-c", program],
        input=json.dumps(names),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


def test_names_are_unique_with_valid_keys() -> None:
    names = [row["name"] for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(set(row) <= KEYS for row in ROWS)
    assert all("since" in row or "until" in row for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"].removeprefix("tensorflow."))
def test_versions_of_names_match_wheels(row: dict[str, Any]) -> None:
    versions = [version for version in tensorflow_presence.VERSIONS if has(row, version)]
    assert READ[row["name"]].split() == versions


def disagreements(python: Path, **environment: str) -> list[str]:
    version, missing = query(python, LOOK, [row["name"] for row in ROWS], **environment)
    if environment:
        expected = [row["name"] for row in ROWS if row.get("legacy")]
        return sorted(set(expected) & set(missing))
    return sorted(row["name"] for row in ROWS if has(row, version) == (row["name"] in missing))


@pytest.mark.soak
@pytest.mark.tensorflow
def test_image_matches_table() -> None:
    image = ImageStore().path_of("2.18.0") / "bin" / "python3"
    job_python()  # also builds the image
    assert disagreements(image) == []
    raising = [row["name"] for row in ROWS if row.get("raises")]
    assert raising
    assert query(image, CALL, raising) == []


@pytest.mark.soak
@pytest.mark.tensorflow
def test_tf_keras_has_names_removed_in_keras_3() -> None:
    python = job_python()
    assert disagreements(python, TF_USE_LEGACY_KERAS="1") == []


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.parametrize("version", ["2.12.0", "2.15.0"])
async def test_older_images_match_table(version: str) -> None:
    require_image(version)
    image = await ImageStore().ensure(version, lambda line: None)
    assert disagreements(image / "bin" / "python3") == []
