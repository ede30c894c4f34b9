"""From text to records: MB per second compared with Hugging Face's `datasets.map`, and for 1 GB;
and from a dump to text."""

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
from tests.support.job_environment import WIKIPEDIA, job_python
from tests.support.locked_environment import locked_python
from tests.support.wiki_dumps import multistream, page

__all__ = ["preparation"]

PROGRAMS = Path(__file__).with_name("programs")
LOCK = Path(__file__).resolve().parents[2] / "requirements" / "benchmarks" / "datasets.lock"
FILES = sized(8, 2)
MEGABYTES = sized(6.0, 0.1)  # of a file
PAGES = sized(3_000, 30)
VOCABULARY = sized(16_000, 2_000)
ROUNDS = sized(2, 1)
# One segment, no pairs, each text once: the settings in which both give the same result.
ALIKE = {"sequence_length": 128, "pairs": "none", "held_out": 0.0, "short_sequences": 0.0}


def preparation() -> Iterator[Figure]:
    """Prepare the same text with both, alternating; then with the defaults; then a dump."""
    template_python, datasets_python = job_python(WIKIPEDIA), locked_python(LOCK)
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as name:
        root = Path(name)
        (root / "text").mkdir()
        paths = [root / "text" / f"text-{number:05d}.txt" for number in range(FILES)]
        size = write_text(paths, round(MEGABYTES * 1_000_000))
        train = "import sys; from vocabulary import train_vocabulary; "
        train += "lines = open(sys.argv[1], encoding='utf-8').readlines(); "
        train += f"train_vocabulary(lambda: lines, {VOCABULARY}).save(sys.argv[2])"
        (root / "tokenizer").mkdir()
        run(
            template_python,
            ["-c", train, str(paths[0]), str(root / "tokenizer" / "tokenizer.json")],
        )
        records_stage, map_stage = [], []
        for _ in range(ROUNDS):
            records_stage.append(prepare(template_python, "prepare_records.py", root, ALIKE))
            map_stage.append(prepare(datasets_python, "prepare_datasets.py", root, ALIKE))
        if records_stage[0]["sequences"] != map_stage[0]["sequences"]:
            counts = records_stage[0]["sequences"], map_stage[0]["sequences"]
            raise RuntimeError(f"sequences differ: {counts}")
        usual = prepare(template_python, "prepare_records.py", root, {"sequence_length": 128})
        read, seconds = extract(template_python, root)
    quickest = min(result["seconds"] for result in records_stage)
    map_seconds = min(result["seconds"] for result in map_stage)
    yield Figure(
        f"records of {size / 1e6:.0f} MB, compared with datasets.map",
        f"{size / 1e6 / quickest:.1f} MB/s, {size / 1e6 / map_seconds:.1f} MB/s",
        f"{map_seconds / quickest:.1f} × as fast",
        "2 ×",
    )
    yield Figure(
        "records with the default settings: pairs of segments",
        f"{size / 1e6 / usual['seconds']:.1f} MB/s, {usual['sequences']:,} sequences",
        f"1 GB in about {usual['seconds'] * 1e9 / size / 60:.0f} min on {os.cpu_count()} cores",
    )
    yield Figure(
        f"text of a dump: {read / 1e6:.0f} MB of XML, one process",
        f"{read / 1e6 / seconds:.1f} MB/s",
    )


def extract(python: Path, root: Path) -> tuple[int, float]:
    """Extract a dump's text in one process; return the XML's size and the seconds."""
    source = random.Random(1)
    lines = (root / "text" / "text-00000.txt").read_text("utf-8").split("\n")
    pages = [page(f"글 {number}", article(source, lines)) for number in range(PAGES)]
    (root / "dump.xml.bz2").write_bytes(multistream(pages))
    measure = "import sys, time, types, collections, tensorflow, wikipedia as w; "
    measure += "options = types.SimpleNamespace(field='text'); began = time.perf_counter(); "
    measure += "documents = w.read(sys.argv[1], 'dump', options, collections.Counter()); "
    measure += "print(len(w.extract(documents)[0]), time.perf_counter() - began)"
    output = run(python, ["-c", measure, str(root / "dump.xml.bz2")])
    documents, seconds = output.split()
    if int(documents) != PAGES:
        raise RuntimeError(f"{documents} documents of {PAGES} pages")
    return sum(map(len, pages)), float(seconds)


def article(source: random.Random, lines: list[str]) -> str:
    """Return an article with about as much markup as those of Korean Wikipedia have."""
    parts = ["{{정보상자|이름=글\n" + "".join(f"|칸{n}=[[값 {n}]]\n" for n in range(10)) + "}}\n"]
    for section in range(source.randint(1, 6)):
        parts.append(f"\n== 제목 {section} ==\n")
        for _ in range(source.randint(1, 8)):
            words = source.choice(lines).split() or ["글."]
            words[0] = f"[[{words[0]}|{words[0]}]]"
            reference = "<ref>{{웹 인용|url=https://example.org/a|제목=책}}</ref>"
            parts.append(" ".join(words) + reference * (source.random() < 0.3) + " ")
    table = "{|\n|-\n" + "| [[가]] || 나\n|-\n" * 5 + "|}\n"
    return "".join([*parts, "\n글이 있다.\n", table, "[[분류:글]]"])


def prepare(python: Path, program: str, root: Path, plan: dict[str, Any]) -> dict[str, Any]:
    output = run(
        python,
        [
            str(PROGRAMS / program),
            str(root / "text"),
            str(root / "tokenizer"),
            str(root / "made"),
            json.dumps(plan),
        ],
    )
    return dict(json.loads(output.splitlines()[-1]))


def run(python: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        [str(python), *arguments],
        env={**os.environ, "PYTHONPATH": str(WIKIPEDIA), "HF_HUB_OFFLINE": "1", "USE_TF": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def write_text(paths: list[Path], size: int) -> int:
    """Write files of `size` bytes whose words recur as those of Korean do; return their size.

    New words keep appearing (a Pitman-Yor process), which a program that caches words must
    handle: of the first 1.8 million words one in nine is new.
    """
    source = random.Random(1)
    syllables = [chr(0xAC00 + n) for n in source.sample(range(11172), 1200)]
    weights = list(accumulate(1 / (n + 3) for n in range(len(syllables))))
    endings = ["은", "는", "이", "가", "을", "를", "에", "에서"]
    endings += ["으로", "의", "하는", "했다", "이다"]
    words: list[str] = []
    new = 0

    def next_word() -> str:
        nonlocal new
        if source.random() >= (200 + 0.72 * new) / (len(words) + 200):
            return words[int(source.random() * len(words))]
        new += 1
        length = source.choices((1, 2, 3, 4), (1, 5, 3, 1))[0]
        stem = "".join(source.choices(syllables, cum_weights=weights, k=length))
        return stem + (source.choice(endings) if source.random() < 0.6 else "")

    for path in paths:
        written = 0
        with path.open("w", encoding="utf-8") as file:
            while written < size:
                lines = []
                for _ in range(source.randint(5, 60)):
                    line = []
                    for _ in range(source.randint(4, 18)):
                        line.append(next_word())
                        words.append(line[-1])
                    lines.append(" ".join(line) + ".")
                document = "\n".join(lines) + "\n\n"
                written += len(document.encode())
                file.write(document)
    return sum(path.stat().st_size for path in paths)
