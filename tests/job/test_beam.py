"""Apache Beam writes the same records as one machine."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_environment import WIKIPEDIA
from tests.support.locked_environment import locked_python
from tests.support.subprocesses import run_captured

LOCK = Path(__file__).resolve().parents[2] / "requirements" / "beam.lock"
OPTIONS = ["--sequence-length", "64", "--seed", "3", "--duplication", "2"]


@pytest.fixture(scope="module")
def beam_python() -> Path:
    """A Python with Apache Beam and without TensorFlow."""
    return Path(locked_python(LOCK))


def write_text(data: Path) -> None:
    """Write the text stage's result: three files with the sample's words, and a broken line."""
    source = random.Random(1)
    sample = WIKIPEDIA.with_name("bert-pretraining") / "sample"
    words = " ".join(path.read_text("utf-8") for path in sample.glob("*.txt")).split()
    (data / "text").mkdir(parents=True)
    sizes = {}
    for number in range(3):
        documents = []
        for _ in range(200):
            lines = [" ".join(source.choices(words, k=source.randint(2, 20))) for _ in range(12)]
            documents.append("\n".join(lines))
        path = data / "text" / f"text-{number:05d}.txt"
        path.write_bytes("\n\n".join(documents).encode() + b"\n\xff\xfe\n")
        sizes[path.name] = path.stat().st_size
    manifest = {"fingerprint": "key", "files": sizes}
    (data / "text" / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def records_of(folder: Path, names: dict[str, int]) -> list[bytes]:
    """Return the sorted records of files with these names and sizes."""
    records = []
    for name, size in names.items():
        assert (folder / name).stat().st_size == size
        content, at = gzip.decompress((folder / name).read_bytes()), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            records.append(content[at + 12 : at + 12 + length])
            at += 12 + length + 4
    return sorted(records)


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # the first run creates the environment
def test_beam_writes_the_same_records(
    beam_python: Path, wiki_python: Path, job_environment: dict[str, str], tmp_path: Path
) -> None:
    def run(python: Path, program: str, *arguments: str, code: int = 0) -> str:
        done = run_captured(
            [python, WIKIPEDIA / program, *arguments], env=job_environment, cwd=tmp_path
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    data = tmp_path / "data"
    location = ("--data", str(data))
    output = run(beam_python, "prepare_beam.py", *location, *OPTIONS, code=2)
    advice = "create it first: python prepare.py text"
    assert output.splitlines()[-1] == f"error: {data}/text/manifest.json not found; {advice}"
    write_text(data)
    run(wiki_python, "prepare.py", "vocabulary", *location, "--vocabulary-size", "2000")
    output = run(wiki_python, "prepare.py", "records", *location, *OPTIONS, "--processes", "1")
    assert ", written\n" in output

    def result() -> tuple[dict[str, Any], list[bytes], list[bytes]]:
        manifest = json.loads((data / "records" / "manifest.json").read_text("utf-8"))
        listed = manifest.pop("files"), manifest.pop("held_out_files")
        training, held_out = (records_of(data / "records", names) for names in listed)
        return manifest, training, held_out

    expected = result()
    assert expected[0]["counts"]["lines_not_utf8"] == 3
    assert len(expected[1]) == expected[0]["counts"]["sequences"]
    assert len(expected[2]) == expected[0]["counts"]["held_out_sequences"] > 0

    (data / "records" / "part-00000-of-00099.tfrecord.gz").write_bytes(b"of another plan")
    output = run(beam_python, "prepare_beam.py", *location, *OPTIONS, "--runner", "DirectRunner")
    assert "sequences of 64 tokens" in output
    assert not (data / "records" / "part-00000.tfrecord.gz").exists()
    assert result() == expected
    # prepare.py accepts them as complete.
    output = run(wiki_python, "prepare.py", "records", *location, *OPTIONS)
    assert ", kept\n" in output


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_dataflow_package_is_complete(beam_python: Path, tmp_path: Path) -> None:
    """`--setup_file` builds this archive; it must contain all imported modules."""
    build = ["setup.py", "-q", "egg_info", "--egg-base", tmp_path, "sdist", "-d", tmp_path]
    subprocess.run([beam_python, *build], cwd=WIKIPEDIA, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path, "--strip-components=1"], check=True)
    # Isolated, so that only the archive is on the path. Links must be stored as files.
    check = f"import os, sys; sys.path.insert(0, {os.fspath(tmp_path)!r}); import prepare, records"
    check += "; assert prepare.__file__.startswith(sys.path[0]); records.RecordBuilder"
    check += "; assert 'tensorflow' not in sys.modules"
    subprocess.run([beam_python, "-I", "-c", check], check=True)
    assert not (tmp_path / "files.py").is_symlink()
