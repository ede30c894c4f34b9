"""From text to records: MB per second compared with Hugging Face's `datasets.map`, and for 1 GB."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, sized
from tests.support.job_environment import JOB, job_python
from tests.support.locked_environment import locked_python

__all__ = ["preparation"]

PROGRAMS = Path(__file__).with_name("programs")
LOCK = Path(__file__).resolve().parents[2] / "requirements" / "benchmarks" / "datasets.lock"
MEGABYTES = sized(24.0, 0.2)
VOCABULARY = sized(16_000, 2_000)
ROUNDS = sized(2, 1)
# One segment, no masks, each text once: the settings in which both give the same result.
ALIKE = {"sequence_length": 128, "predictions": 20, "duplication": 1, "shards": 4, "seed": 1}
ALIKE |= {"pairs": "none", "masking": "dynamic", "held_out": 0.0, "short_sequences": 0.0}
USUAL = {"sequence_length": 128, "predictions": 20, "duplication": 5, "shards": 4, "seed": 1}


def preparation() -> Iterator[Figure]:
    """Prepare the same text with both, alternating; then with the default settings."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as name:
        root = Path(name)
        text = root / "text.txt"
        size = write_text(text, round(MEGABYTES * 1_000_000))
        train = "import sys; from corpus import wordpiece; wordpiece.save("
        train += f"wordpiece.train([sys.argv[1]], {VOCABULARY}, 8), sys.argv[2], 'key')"
        run(job_python(), ["-c", train, str(text), str(root / "tokenizer")])
        records_stage, map_stage = [], []
        for _ in range(ROUNDS):
            records_stage.append(prepare(job_python(), "prepare_records.py", root, ALIKE))
            map_stage.append(prepare(locked_python(LOCK), "prepare_datasets.py", root, ALIKE))
        for unit in ("sequences", "tokens"):
            if records_stage[0][unit] != map_stage[0][unit]:
                raise RuntimeError(
                    f"{unit} differ: {records_stage[0][unit]:,}, {map_stage[0][unit]:,}"
                )
        usual = prepare(job_python(), "prepare_records.py", root, USUAL)
    quickest = min(run_result["seconds"] for run_result in records_stage)
    map_seconds = min(run_result["seconds"] for run_result in map_stage)
    yield Figure(
        f"records of {size / 1e6:.0f} MB, compared with datasets.map",
        f"{size / 1e6 / quickest:.1f} MB/s, {size / 1e6 / map_seconds:.1f} MB/s",
        f"{map_seconds / quickest:.1f} × as fast",
        "2 ×",
    )
    yield Figure(
        "records with the default settings: pairs, 5 copies masked",
        f"{size / 1e6 / usual['seconds']:.1f} MB/s, {usual['sequences']:,} sequences",
        f"1 GB in about {usual['seconds'] * 1e9 / size / 60:.0f} min on {os.cpu_count()} cores",
    )


def prepare(python: Path, program: str, root: Path, plan: dict[str, Any]) -> dict[str, Any]:
    output = run(
        python,
        [
            str(PROGRAMS / program),
            str(root / "text.txt"),
            str(root / "tokenizer"),
            str(root / "made"),
            json.dumps(plan),
        ],
    )
    return dict(json.loads(output.splitlines()[-1]))


def run(python: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        [str(python), *arguments],
        env={**os.environ, "PYTHONPATH": str(JOB), "HF_HUB_OFFLINE": "1", "USE_TF": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def write_text(path: Path, size: int) -> int:
    """Write text whose words recur as those of Korean do; return its size in bytes.

    New words keep appearing (a Pitman-Yor process), which a program that caches words must
    handle: of the first 1.8 million words one in nine is new.
    """
    source = random.Random(1)
    syllables = [chr(0xAC00 + n) for n in source.sample(range(11172), 1200)]
    weights = list(accumulate(1 / (n + 3) for n in range(len(syllables))))
    endings = [
        "은",
        "는",
        "이",
        "가",
        "을",
        "를",
        "에",
        "에서",
        "으로",
        "의",
        "하는",
        "했다",
        "이다",
    ]
    words: list[str] = []
    new = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            lines = []
            for _ in range(source.randint(5, 60)):
                words = []
                for _ in range(source.randint(4, 18)):
                    if source.random() < (200 + 0.72 * new) / (len(words) + 200):
                        length = source.choices((1, 2, 3, 4), (1, 5, 3, 1))[0]
                        word = "".join(source.choices(syllables, cum_weights=weights, k=length))
                        word += source.choice(endings) if source.random() < 0.6 else ""
                        new += 1
                    else:
                        word = words[int(source.random() * len(words))]
                    words.append(word)
                    words.append(word)
                lines.append(" ".join(words) + ".")
            written += len(("\n".join(lines)).encode()) + 2
            file.write("\n".join(lines) + "\n\n")
    return path.stat().st_size
