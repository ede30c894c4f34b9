"""Records written by Apache Beam are identical to those of one machine."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.support.locked_environment import locked_python

TESTS = Path(__file__).resolve().parents[1]
JOB = TESTS.parent / "templates" / "jobs" / "bert-pretraining"
LOCK = TESTS.parent / "requirements" / "beam.lock"
RECORDS = ["--sequence-length", "64", "--shards", "5", "--seed", "3", "--duplication", "2"]


@pytest.fixture(scope="module")
def beam_python() -> Path:
    """A Python with Apache Beam and without TensorFlow."""
    return Path(locked_python(LOCK))


def write_text(folder: Path) -> Path:
    """Write two and a half megabytes of the sample's words, with a broken line."""
    source = random.Random(1)
    words = " ".join(path.read_text("utf-8") for path in (JOB / "sample").glob("*.txt")).split()
    documents = []
    for _ in range(1500):
        lines = [" ".join(source.choices(words, k=source.randint(2, 20))) for _ in range(12)]
        documents.append("\n".join(lines))
    (folder / "text.txt").write_bytes("\n\n".join(documents).encode() + b"\n\xff\xfe\n")
    return folder / "text.txt"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.soak
@pytest.mark.timeout(900)  # the first run creates the environment
def test_beam_records_are_identical(
    beam_python: Path, job_environment: dict[str, str], tmp_path: Path
) -> None:
    def run(program: str, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [beam_python, JOB / program, *arguments],
            env=job_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    data = tmp_path / "data"
    output = run("prepare_beam.py", "--data", str(data), *RECORDS, code=2)
    assert (
        f"{data}/text/manifest.json not found; create it first: python prepare.py extract" in output
    )
    run("prepare.py", "extract", str(write_text(tmp_path)), "--data", str(data))
    run("prepare.py", "tokenizer", "--data", str(data), "--vocabulary-size", "2000")
    run("prepare.py", "records", "--data", str(data), *RECORDS)
    expected = contents(data / "records")
    assert len(expected) >= 1 + 2 * 5 - 4

    (data / "records" / "part-00000-of-00099.tfrecord.gz").write_bytes(b"of another plan")
    output = run(
        *("prepare_beam.py", "--data", str(data), *RECORDS),
        *("--runner", "DirectRunner", "--direct_num_workers", "2"),
        *("--direct_running_mode", "multi_processing"),
    )
    assert contents(data / "records") == expected
    assert "sequences of 64" in output
    # prepare.py accepts them as complete.
    assert "kept" in run("prepare.py", "records", "--data", str(data), *RECORDS)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_dataflow_package_is_complete(beam_python: Path, tmp_path: Path) -> None:
    """`--setup_file` builds this archive; it must contain all imported modules."""
    subprocess.run(
        [
            beam_python,
            "setup.py",
            "-q",
            "egg_info",
            "--egg-base",
            tmp_path,
            "sdist",
            "-d",
            tmp_path,
        ],
        cwd=JOB,
        check=True,
        capture_output=True,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path, "--strip-components=1"], check=True)
    # Isolated, so that only the archive is on the path.
    subprocess.run(
        [beam_python, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
         "import corpus.beam as b; assert b.__file__.startswith(sys.path[0])"],
        check=True,
    )  # fmt: skip
