"""Extracting sentences from sources of every kind, deterministically."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.memory import process_tree, proportional_memory
from tests.support.polling import until
from tests.support.properties import given
from tests.support.wiki_dumps import HEAD, TAIL, multistream, page, whole

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"

ARTICLE = """{{정보상자|이름=서울}}
'''서울'''은 [[대한민국]]의 [[수도]]이다.<ref>책.</ref> 한강이 흐른다.

== 역사 ==
옛 이름은 '한양'이다.
[[파일:서울.jpg|섬네일|남산]]

== 각주 ==
[[분류:도시]]"""
SENTENCES = ["서울은 대한민국의 수도이다.", "한강이 흐른다.", "옛 이름은 '한양'이다."]


def extracted(folder: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """Return the extracted documents and the manifest."""
    manifest = json.loads((folder / "text" / "manifest.json").read_text("utf-8"))
    text = ""
    for file in manifest["files"]:
        content = (folder / "text" / file["name"]).read_bytes()
        assert len(content) == file["bytes"]
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert content.count(b"\n\n") == file["documents"]
        text += content.decode("utf-8")
    documents = [document.split("\n") for document in text.split("\n\n")[:-1]]
    assert manifest["counts"]["documents"] == len(documents)
    assert manifest["counts"]["sentences"] == sum(map(len, documents))
    return documents, manifest


def prepare(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, JOB / "prepare.py", "extract", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture
def extract(job: SimpleNamespace, tmp_path: Path) -> Any:
    """Extract a file with this name and content, in this process."""

    def run(name: str, content: bytes, **choices: Any) -> tuple[list[list[str]], dict[str, Any]]:
        (tmp_path / name).write_bytes(content)
        plan = job.extract.ExtractPlan(**choices)
        sources = job.sources.find([str(tmp_path / name)])
        job.extract.extract(sources, plan, str(tmp_path / "text"), "key", 1, lambda done, n: None)
        return extracted(tmp_path)

    return run


PAGES = [
    page("서울", ARTICLE),
    page("한성", "#넘겨주기 [[서울]]", redirect="서울"),
    page("옛 넘겨주기", "#REDIRECT [[서울]]"),
    page("토론:서울", "이야기다.", namespace=1),
    page("틀:가", "글이다.", namespace=10),
    page("자료", '{"a": 1}', model="json"),
    page("빈 글", ""),
    page("표만", "{|\n| 1\n|}"),
    page("부산", "부산은 항구다. 식은 <math>a</math>이다."),
]
SKIPPED = {
    "document without a sentence": 1,
    "no text": 1,
    "not an article": 2,
    "not wiki text": 1,
    "redirect": 2,
    "sentence with a formula": 1,
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dump.xml", whole(PAGES)),
        ("dump.xml.gz", gzip.compress(whole(PAGES))),
        ("dump.xml.bz2", bz2.compress(whole(PAGES))),
        ("dump-multistream.xml.bz2", multistream(PAGES, each=2)),
        ("kowiki-20251101-pages-articles-multistream1.xml-p1p9.bz2", multistream(PAGES, each=3)),
    ],
)
def test_dump_articles_are_extracted(extract: Any, name: str, content: bytes) -> None:
    documents, manifest = extract(name, content)
    assert documents == [SENTENCES, ["부산은 항구다."]]
    assert manifest["counts"]["pages"] == len(PAGES)
    assert manifest["skipped"] == SKIPPED


def test_broken_pages_are_skipped(extract: Any) -> None:
    pages = [
        page("서울", ARTICLE),
        page("깨진 XML", "글이다.").replace(b"</title>", b"</titel>"),
        page("끝이 없다", "글이다.").replace(b"  </page>\n", b""),
        page("UTF-8이 아니다", "글이다.").replace("글".encode(), b"\xff\xfe"),
        page("부산", "부산은 항구다."),
        page("잘렸다", "글이다.")[:200],
    ]
    documents, manifest = extract("dump.xml", HEAD + b"".join(pages))
    assert documents == [SENTENCES, ["부산은 항구다."]]
    assert manifest["skipped"] == {"broken page": 4}


SYLLABLES = range(0xAC00, 0xD7A4)


def noise(count: int) -> list[bytes]:
    """Return pages that compress badly, each with a distinct sentence."""
    source = random.Random(2)
    words = [
        "".join(chr(source.randrange(0xAC00, 0xD7A4)) for _ in range(400)) for _ in range(count)
    ]
    return [page(f"글 {n}", f"{n}번 글 {word}다.") for n, word in enumerate(words)]


def test_truncated_dump_keeps_whole_pages(extract: Any) -> None:
    pages = noise(300)
    packed = multistream(pages, each=50)
    documents, manifest = extract("dump.xml.bz2", packed[: len(packed) * 3 // 4])
    assert 199 < len(documents) < 250
    assert [int(document[0].partition("번")[0]) for document in documents] == list(
        range(len(documents))
    )
    assert manifest["skipped"]["cut short"] == 1


def test_damaged_stream_loses_only_its_own_pages(extract: Any) -> None:
    pages = noise(300)
    packed = bytearray(multistream(pages, each=50))
    middle = len(packed) // 2
    packed[middle : middle + 50] = bytes(50)
    documents, manifest = extract("dump.xml.bz2", bytes(packed))
    numbers = [int(document[0].partition("번")[0]) for document in documents]
    lost = set(range(300)) - set(numbers)
    assert numbers == sorted(set(numbers))
    assert 0 < len(lost) <= 50
    assert len({number // 50 for number in lost}) == 1
    assert manifest["skipped"]["damaged stream"] == 1


def test_oversized_stream_is_unpacked_incrementally(
    job: SimpleNamespace, extract: Any, monkeypatch: Any
) -> None:
    # A dump in one stream is unpacked as it is read; the next stream is found after damage.
    pages = noise(300)
    packed = bz2.compress(HEAD + b"".join(pages[:250])) + bz2.compress(b"".join(pages[250:]) + TAIL)
    monkeypatch.setattr(job.dump, "MAX_STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(job.dump, "READ_BYTES", 1 << 14)
    documents, manifest = extract("dump.xml.bz2", packed)
    assert len(documents) == 300
    assert manifest["skipped"] == {}
    damaged = bytearray(packed)
    damaged[100_000:100_050] = bytes(50)
    documents, manifest = extract("dump.xml.bz2", bytes(damaged))
    assert manifest["skipped"]["damaged stream"] == 1
    assert [document[0][:5] for document in documents] == [f"{n}번 " for n in range(250, 300)]


@given(data=st.data())
def test_pages_are_joined_across_block_borders(job: SimpleNamespace, data: st.DataObject) -> None:
    xml = whole(PAGES)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(xml)), max_size=6)))
    edges = [0, *cuts, len(xml)]
    blocks = []
    for start, end in itertools.pairwise(edges):
        block = job.sources.Block("xml", xml[start:end], end)
        blocks.append(job.documents.extractor("text")(block))
    total: Counter[str] = Counter()
    documents = []
    for piece in job.extract.join_pages(iter(blocks)):
        documents += piece.documents
        total += piece.skipped
    expected = ["\n".join([*SENTENCES, "", ""]), "부산은 항구다.\n\n"]
    assert [document.decode() for document in documents] == expected
    assert +total == SKIPPED


def test_plain_text_documents_are_extracted(extract: Any) -> None:
    text = (
        "하나다. 둘이다.\n셋이다.\r\n\r\n넷이다.\n".encode() + b"\xff\xfe\n" + "다섯이다.".encode()
    )
    for name, content in [("a.txt", text), ("b.txt.gz", gzip.compress(text))]:
        documents, manifest = extract(name, content)
        assert documents == [["하나다.", "둘이다.", "셋이다."], ["넷이다.", "다섯이다."]]
        assert manifest["skipped"] == {"line that is not UTF-8": 1}


def test_text_is_normalized(extract: Any) -> None:
    # Decomposed as macOS stores it, a byte order mark, spaces that do not break, a soft hyphen.
    text = "\ufeff\u1112\u1161\u11ab\u3000글\u00a0ㅋㅋ\u200b ｈ\u00ad.".encode()
    assert extract("a.txt", text)[0] == [["한 글 ㅋㅋ ｈ."]]


def test_json_lines_are_extracted(extract: Any) -> None:
    rows = [
        json.dumps({"text": "하나다. 둘이다.\n\n셋이다.", "id": 1}),
        "{broken",
        json.dumps({"body": "다른 칸이다."}),
        json.dumps({"text": ["목록"]}),
        "[" * 100_000,
        json.dumps({"text": "넷\ud800이다. 다섯이다."}),
        "",
        json.dumps("글"),
        json.dumps({"text": "여섯이다."}, ensure_ascii=False),
    ]
    documents, manifest = extract("a.jsonl", "\n".join(rows).encode())
    assert documents == [["하나다.", "둘이다.", "셋이다."], ["다섯이다."], ["여섯이다."]]
    assert manifest["skipped"] == {
        "line that is not JSON": 2,
        "line without a text text": 3,
        "sentence with unreadable characters": 1,
    }
    documents, _ = extract("b.jsonl", "\n".join(rows).encode(), column="body")
    assert documents == [["다른 칸이다."]]


@pytest.mark.parametrize("cut", [5, 3000])
def test_truncated_gzip_text_is_counted(extract: Any, cut: int) -> None:
    lines = "\n".join(f"{n}째 줄이다 {random.Random(n).random()}." for n in range(20_000))
    packed = gzip.compress(lines.encode())
    documents, manifest = extract("a.txt.gz", packed[:-cut])
    assert manifest["skipped"] == {"cut short": 1}
    assert 0.6 * 20_000 < sum(map(len, documents)) <= 20_000
    damaged = bytearray(packed)
    damaged[len(packed) // 2 : len(packed) // 2 + 20] = bytes(20)
    assert extract("b.txt.gz", bytes(damaged))[1]["skipped"]["damaged file"] == 1


def test_shards_stay_below_size_limit(job: SimpleNamespace, tmp_path: Path) -> None:
    shards = job.extract.Shards(str(tmp_path), limit=100)
    documents = [b"x" * size for size in (40, 60, 1, 99, 100, 250, 1)]
    for document in documents:
        shards.write(document)
    shards.close()
    sizes = [file["bytes"] for file in shards.files]
    assert sizes == [100, 100, 100, 250, 1]  # a document is never split
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == sizes
    names = [f"text-{n:05d}.txt" for n in range(5)]
    assert [file["name"] for file in shards.files] == names


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("none.txt", "no such file: {folder}/none.txt"),
        ("table.csv", "no text in {folder}/table.csv: a source is"),
        ("empty.txt", "no text in {folder}/empty.txt"),
        ("data/text/a.txt", "is in the output folder of this stage"),
        ("hf:owner/name", "hf:owner/name needs the package datasets: pip install datasets"),
    ],
)
def test_invalid_sources_fail_with_one_line(tmp_path: Path, argument: str, message: str) -> None:
    for name in ("table.csv", "empty.txt", "data/text/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    source = argument if argument.startswith("hf:") else str(tmp_path / argument)
    result = prepare(source, "--data", tmp_path / "data", code=1 if source[:3] == "hf:" else 2)
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert message.format(folder=tmp_path) in result.stderr
    assert not (tmp_path / "data" / "text" / "manifest.json").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_text_does_not_depend_on_process_count(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pages = [*PAGES, *noise(1000)]
    (source / "a.xml.bz2").write_bytes(multistream(pages, each=40))
    (source / "b.txt").write_text("하나다.\n\n둘이다.\n", "utf-8")
    (source / "c.jsonl").write_text('{"text": "셋이다."}\nx\n', "utf-8")
    (source / "ignored-multistream-index.txt.bz2").write_bytes(bz2.compress(b"1:2:x"))
    (source / "notes.md").write_text("아니다.", "utf-8")
    for processes in ("1", "3"):
        arguments = ("--processes", processes, "--shard-megabytes", "1")
        result = prepare(source, "--data", tmp_path / processes, *arguments)
        assert "written in" in result.stdout
    assert contents(tmp_path / "3" / "text") == contents(tmp_path / "1" / "text")
    documents, manifest = extracted(tmp_path / "1")
    assert len(documents) == 2 + 1000 + 2 + 1
    assert [item["documents"] for item in manifest["sources"]] == [1002, 2, 1]
    assert manifest["skipped"] == {**SKIPPED, "line that is not JSON": 1}
    assert len(manifest["files"]) == 2

    # An existing text is kept; another source or option replaces it.
    before = (tmp_path / "1" / "text" / "manifest.json").stat().st_mtime_ns
    again = prepare(source, "--data", tmp_path / "1", "--shard-megabytes", "1")
    assert "kept" in again.stdout
    assert (tmp_path / "1" / "text" / "manifest.json").stat().st_mtime_ns == before
    (source / "b.txt").write_text("다르다.\n", "utf-8")
    changed = prepare(source, "--data", tmp_path / "1", "--shard-megabytes", "64")
    assert "written in" in changed.stdout
    # No file of the earlier text remains.
    after = contents(tmp_path / "1" / "text")
    assert sorted(after) == ["manifest.json", "text-00000.txt"]
    # A failed run does not change the existing text.
    prepare(source / "c.jsonl", "--field", "txet", "--data", tmp_path / "1", code=2)
    assert contents(tmp_path / "1" / "text") == after


@pytest.mark.soak
def test_killed_extract_is_completed_by_next_run(tmp_path: Path) -> None:
    source = tmp_path / "a.xml.bz2"
    source.write_bytes(multistream(noise(4000), each=100))
    arguments = [str(source), "--processes", "2", "--shard-megabytes", "1", "--data"]
    folder = tmp_path / "killed" / "text"
    with subprocess.Popen(
        [sys.executable, JOB / "prepare.py", "extract", *arguments, tmp_path / "killed"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:

            def has_begun() -> bool:
                assert process.poll() is None
                return (folder / "text-00001.txt").exists()

            until(has_begun, "the second file")
            started = [pid for pid in process_tree(process.pid) if pid != process.pid]
        finally:
            process.kill()
    assert started and not (folder / "manifest.json").exists()  # orphaned workers
    until(lambda: not any(is_alive(pid) for pid in started), "the end of the workers")
    result = subprocess.run(
        [sys.executable, JOB / "prepare.py", "tokenizer", "--data", tmp_path / "killed"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2 and "no complete text in" in result.stderr
    prepare(*arguments, tmp_path / "killed")
    prepare(*arguments, tmp_path / "alone")
    assert contents(folder) == contents(tmp_path / "alone" / "text")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.soak
def test_extract_memory_is_bounded(tmp_path: Path) -> None:
    peaks = []
    pages = b"".join(noise(2000))
    for times in (5, 25):
        source = tmp_path / f"{times}.xml.bz2"
        stream = bz2.compress(pages)
        source.write_bytes(bz2.compress(HEAD) + stream * times + bz2.compress(TAIL))
        with subprocess.Popen(
            [
                sys.executable,
                JOB / "prepare.py",
                "extract",
                source,
                "--data",
                tmp_path / str(times),
            ],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        ) as process:
            try:
                peak = 0
                while process.poll() is None:
                    peak = max(peak, proportional_memory(process.pid))
                    time.sleep(0.1)
            finally:
                process.kill()
        assert process.returncode == 0
        peaks.append(peak)
    # Five times the text: keeping it in memory would take 50 MB more.
    assert peaks[1] < peaks[0] + 25_000_000, peaks
