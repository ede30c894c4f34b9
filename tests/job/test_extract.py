"""Extracting sentences from sources of every kind, deterministically."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.memory import process_tree, proportional_memory
from tests.support.polling import until
from tests.support.subprocesses import run_captured
from tests.support.wiki_dumps import HEAD, TAIL, multistream, page, whole

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "korean-wikipedia"

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
    for name, size in manifest["files"].items():
        content = (folder / "text" / name).read_bytes()
        assert len(content) == size
        text += content.decode("utf-8")
    documents = [document.split("\n") for document in text.split("\n\n")[:-1]]
    assert manifest["counts"] == {
        "documents": len(documents),
        "sentences": sum(map(len, documents)),
    }
    return documents, manifest


@pytest.fixture
def extract(wiki: SimpleNamespace, local_files: None, tmp_path: Path) -> Any:
    """Extract a file with this name and content, in this process."""

    def run(name: str, content: bytes, *options: str) -> tuple[list[list[str]], dict[str, Any]]:
        path = tmp_path / name
        path.write_bytes(content)
        arguments = ["text", str(path), *options, "--data", str(tmp_path), "--processes", "1"]
        assert wiki.prepare.main(arguments) == 0
        return extracted(tmp_path)

    return run


@pytest.fixture
def prepare(wiki_python: Path, job_environment: dict[str, str]) -> Any:
    """Run the program."""

    def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        result = run_captured(
            [wiki_python, JOB / "prepare.py", *arguments],
            env={**job_environment, "HF_HUB_OFFLINE": "1"},
            timeout=120,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result

    return run


PAGES = [
    page("서울", ARTICLE),
    page("한성", "#넘겨주기 [[서울]]", redirect="서울"),
    page("토론:서울", "이야기다.", namespace=1),
    page("틀:가", "글이다.", namespace=10),
    page("빈 글", ""),
    page("표만", "{|\n| 1\n|}"),
    page("부산", "부산은 항구다. 식은 <math>a</math>이다."),
]
SKIPPED = {
    "document without a sentence": 2,
    "not an article": 2,
    "redirect": 1,
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
    assert manifest["skipped"] == SKIPPED
    assert manifest["license"] == "cc-by-sa-4.0"


def damage_of(manifest: dict[str, Any]) -> list[str]:
    """Return the names of the files that ended before their end."""
    reason = "damaged or cut short: "
    skipped = manifest["skipped"]
    damaged = [key for key in skipped if key.startswith(reason)]
    assert all(skipped[key] == 1 for key in damaged)
    return [Path(key).name for key in damaged]


BROKEN = {
    "tags": page("깨진 XML", "글이다.").replace(b"</title>", b"</titel>"),
    "no end": page("끝이 없다", "글이다.").replace(b"  </page>\n", b""),
    "not UTF-8": page("UTF-8이 아니다", "글이다.").replace("글".encode(), b"\xff\xfe"),
    "no number": page("수가 아니다", "글이다.").replace(b"<ns>0</ns>", b"<ns>x</ns>"),
    "no revision": b"<page><title>a</title><ns>0</ns><id>3</id></page>",
    "another element": page("새 요소", "글이다.").replace(b"<id>8</id>", b"<new>8</new>"),
    "cut short": page("잘렸다", "글이다.")[:200],
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_dump_is_used_up_to_broken_xml(extract: Any, broken: bytes) -> None:
    pages = [page("서울", ARTICLE), page("부산", "부산은 항구다."), broken]
    documents, manifest = extract("dump.xml", HEAD + b"".join(pages) + page("뒤", "뒤의 글이다."))
    assert documents == [SENTENCES, ["부산은 항구다."]]
    assert damage_of(manifest) == ["dump.xml"]


def test_sources_after_damaged_one_are_used(extract: Any, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("다음 글이다.", "utf-8")
    xml = HEAD + page("부산", "부산은 항구다.")  # without an end
    documents, manifest = extract("a.xml", xml, str(tmp_path / "b.txt"))
    assert documents == [["부산은 항구다."], ["다음 글이다."]]
    assert damage_of(manifest) == ["a.xml"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.xml", b"<html><body/></html>"),
        ("a.xml", b""),
        ("a.xml.bz2", b"no bzip2"),
        ("a.xml.bz2", multistream(PAGES)[:100]),
        ("a.txt.gz", b"no gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"text": 1}')[:15]),
    ],
    ids=["other XML", "empty", "not bzip2", "cut bzip2", "not gzip", "cut gzip"],
)
def test_wholly_unreadable_source_is_an_error(
    wiki: SimpleNamespace,
    local_files: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    arguments = ["text", str(path), "--data", str(tmp_path), "--processes", "1"]
    assert wiki.prepare.main(arguments) == 2
    error = capsys.readouterr().err
    assert error == f"error: no text in {path}: damaged or cut short: {path}\n"
    assert not (tmp_path / "text").exists()


def noise(count: int) -> list[bytes]:
    """Return pages that compress badly, each with a distinct sentence."""
    source = random.Random(2)
    words = [
        "".join(chr(source.randrange(0xAC00, 0xD7A4)) for _ in range(400)) for _ in range(count)
    ]
    return [page(f"글 {n}", f"{n}번 글 {word}다.") for n, word in enumerate(words)]


def test_truncated_dump_is_used_up_to_its_end(extract: Any) -> None:
    packed = multistream(noise(300), each=50)
    documents, manifest = extract("dump.xml.bz2", packed[: len(packed) * 3 // 4])
    assert 180 < len(documents) < 250  # the last block read, of 16 KB, may be lost
    numbers = [int(document[0].partition("번")[0]) for document in documents]
    assert numbers == list(range(len(numbers)))
    assert damage_of(manifest) == ["dump.xml.bz2"]


def test_dump_is_used_up_to_damage(extract: Any) -> None:
    packed = bytearray(multistream(noise(300), each=50))
    middle = len(packed) // 2
    packed[middle : middle + 50] = bytes(50)
    documents, manifest = extract("dump.xml.bz2", bytes(packed))
    numbers = [int(document[0].partition("번")[0]) for document in documents]
    assert numbers == list(range(len(numbers)))
    assert 80 < len(numbers) < 150
    assert damage_of(manifest) == ["dump.xml.bz2"]


def test_pages_may_span_compressed_streams(extract: Any) -> None:
    xml = whole(noise(30))
    packed = b"".join(bz2.compress(xml[at : at + 700]) for at in range(0, len(xml), 700))
    documents, manifest = extract("dump.xml.bz2", packed)
    assert len(documents) == 30
    assert manifest["skipped"] == {}


def test_last_revision_of_a_page_is_used(extract: Any) -> None:
    old, new = page("서울", "옛 글이다."), page("서울", "새 글이다.")
    revision = new[new.index(b"    <revision>") : new.index(b"  </page>")]
    both = old.replace(b"  </page>", revision + b"  </page>")
    assert extract("dump.xml", whole([both]))[0] == [["새 글이다."]]


def test_file_and_category_links_are_named_by_the_dump(extract: Any) -> None:
    head = HEAD.replace("분류".encode(), b"Kategorie")
    text = page("a", "Text. [[Kategorie:Musik]][[Datei:x]]")
    documents, _ = extract("dump.xml", head.replace("파일".encode(), b"Datei") + text + TAIL)
    assert documents == [["Text."]]


def test_text_without_empty_lines_is_split(wiki: SimpleNamespace, extract: Any) -> None:
    limit = wiki.vocabulary.MAX_DOCUMENT_LINES
    documents, _ = extract("a.txt", "글이다.\n".encode() * (limit + 1))
    assert list(map(len, documents)) == [limit, 1]


def test_plain_text_documents_are_extracted(extract: Any) -> None:
    text = (
        "하나다. 둘이다.\n셋이다.\r\n\r\n넷이다.\n".encode() + b"\xff\xfe\n" + "다섯이다.".encode()
    )
    for name, content in [("a.txt", text), ("b.txt.gz", gzip.compress(text))]:
        documents, manifest = extract(name, content)
        assert documents == [["하나다.", "둘이다.", "셋이다."], ["넷이다.", "다섯이다."]]
        assert manifest["skipped"] == {"lines_not_utf8": 1}
        assert "license" not in manifest


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
        "line without a text text": 5,
        "sentence with unreadable characters": 1,
    }
    documents, _ = extract("b.jsonl", "\n".join(rows).encode(), "--field", "body")
    assert documents == [["다른 칸이다."]]


@pytest.mark.parametrize("cut", [5, 3000])
def test_truncated_gzip_text_is_counted(extract: Any, cut: int) -> None:
    lines = "\n".join(f"{n}째 줄이다 {random.Random(n).random()}." for n in range(20_000))
    packed = gzip.compress(lines.encode())
    documents, manifest = extract("a.txt.gz", packed[:-cut])
    assert damage_of(manifest) == ["a.txt.gz"]
    assert 0.6 * 20_000 < sum(map(len, documents)) <= 20_000
    damaged = bytearray(packed)
    damaged[len(packed) // 2 : len(packed) // 2 + 20] = bytes(20)
    documents, manifest = extract("b.txt.gz", bytes(damaged))
    assert damage_of(manifest) == ["b.txt.gz"]
    assert 0.2 * 20_000 < sum(map(len, documents)) < 0.6 * 20_000


def test_files_end_at_size_limit(wiki: SimpleNamespace) -> None:
    documents = ["x" * size for size in (40, 60, 1, 99, 100, 250, 1)]
    texts = list(wiki.prepare.grouped(documents, 100))
    assert [len(text) for text in texts] == [100, 100, 100, 250, 1]  # a document is never split
    assert "".join(texts) == "".join(documents)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("none.txt", "no such file: {folder}/none.txt"),
        ("table.csv", "no text in {folder}/table.csv: a source is"),
        ("empty.txt", "no text in {folder}/empty.txt: empty"),
        ("data/text/a.txt", "is in the output folder of this stage"),
    ],
)
def test_invalid_sources_fail_with_one_line(
    wiki: SimpleNamespace,
    local_files: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    argument: str,
    message: str,
) -> None:
    for name in ("table.csv", "empty.txt", "data/text/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    source = str(tmp_path / argument)
    arguments = ["text", source, "--data", str(tmp_path / "data"), "--processes", "1"]
    assert wiki.prepare.main(arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1
    assert message.format(folder=tmp_path) in errors
    assert not (tmp_path / "data" / "text" / "manifest.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["text", "--processes", "0"],
        ["vocabulary", "--vocabulary-size", "65537"],
        ["records", "--sequence-length", "15"],
        ["records", "--held-out", "1"],
        ["records", "--pairs", "both"],
    ],
)
def test_invalid_options_are_refused(wiki: SimpleNamespace, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        wiki.prepare.main(arguments)
    assert refused.value.code == 2


@pytest.mark.parametrize(("stage", "missing"), [("vocabulary", "text"), ("records", "text")])
def test_stage_names_the_stage_before_it(
    wiki: SimpleNamespace,
    local_files: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stage: str,
    missing: str,
) -> None:
    assert wiki.prepare.main([stage, "--data", str(tmp_path)]) == 2
    command = f"python prepare.py {missing} --data {tmp_path}"
    assert f"no complete {missing} in {tmp_path}/{missing}; create it first: {command}" in (
        capsys.readouterr().err
    )


def test_headings_of_wikipedia_dataset_are_dropped(wiki: SimpleNamespace) -> None:
    lines_of = wiki.wikipedia.sentence_lines
    text = "서울은 수도다. \n\n역사 \n한양이라고 불렸다.\n* 목록\n분류:도시"
    texts, _, _ = wiki.wikipedia.extract([(lines_of, text)])
    assert texts == ["서울은 수도다.\n한양이라고 불렸다.\n\n"]
    texts, _, _ = wiki.wikipedia.extract([(str.splitlines, text)])
    assert "역사\n" in texts[0]


@pytest.mark.soak
@pytest.mark.tensorflow
def test_dataset_is_streamed(prepare: Any, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [{"text": f"{n}번 글이다. 끝이다.", "id": n} for n in range(600)] + [{"text": None}]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    data = tmp_path / "data"
    prepare("text", f"hf:{folder}", "--data", data, "--processes", "1")
    documents, manifest = extracted(data)
    assert documents == [[f"{n}번 글이다.", "끝이다."] for n in range(600)]
    assert manifest["skipped"] == {"document without a sentence": 1}
    arguments = ["text", f"hf:{folder}", "--data", data, "--processes", "1", "--field", "body"]
    result = prepare(*arguments, code=2)
    assert "has no column body; it has text, id: use --field" in result.stderr
    result = prepare("text", "--data", data, code=1)  # without a network
    assert result.stderr.startswith("error: cannot read hf:wikimedia/wikipedia/20231101.ko: ")
    assert len(result.stderr.splitlines()) == 1
    assert extracted(data)[0] == documents  # a failed run keeps the text


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.soak
@pytest.mark.tensorflow
def test_text_does_not_depend_on_process_count(prepare: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pages = [*PAGES, *noise(1000)]
    (source / "a.xml.bz2").write_bytes(multistream(pages, each=40))
    (source / "b.txt").write_text("하나다.\n\n둘이다.\n", "utf-8")
    (source / "c.jsonl").write_text('{"text": "셋이다."}\nx\n', "utf-8")
    (source / "ignored-multistream-index.txt.bz2").write_bytes(bz2.compress(b"1:2:x"))
    (source / "notes.md").write_text("아니다.", "utf-8")
    for processes in ("1", "3"):
        arguments = ("--processes", processes, "--file-megabytes", "1")
        result = prepare("text", source, "--data", tmp_path / processes, *arguments)
        assert ", written\n" in result.stdout
    assert contents(tmp_path / "3" / "text") == contents(tmp_path / "1" / "text")
    documents, manifest = extracted(tmp_path / "1")
    assert len(documents) == 2 + 1000 + 2 + 1
    names = [Path(item["name"]).name for item in manifest["sources"]]
    assert names == ["a.xml.bz2", "b.txt", "c.jsonl"]
    assert manifest["skipped"] == {**SKIPPED, "line without a text text": 1}
    assert len(manifest["files"]) == 2

    # An existing text is kept; another source or option replaces it.
    before = (tmp_path / "1" / "text" / "manifest.json").stat().st_mtime_ns
    again = prepare("text", source, "--data", tmp_path / "1", "--file-megabytes", "1")
    assert "kept" in again.stdout
    assert (tmp_path / "1" / "text" / "manifest.json").stat().st_mtime_ns == before
    (source / "b.txt").write_text("다르다.\n", "utf-8")
    changed = prepare("text", source, "--data", tmp_path / "1", "--file-megabytes", "64")
    assert ", written\n" in changed.stdout
    # No file of the earlier text remains.
    after = contents(tmp_path / "1" / "text")
    assert sorted(after) == ["manifest.json", "text-00000.txt"]
    # A failed run does not change the existing text.
    prepare("text", source / "c.jsonl", "--field", "txet", "--data", tmp_path / "1", code=2)
    assert contents(tmp_path / "1" / "text") == after


@pytest.fixture
def start(wiki_python: Path, job_environment: dict[str, str]) -> Any:
    """Start the text stage in a session of its own."""

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [wiki_python, JOB / "prepare.py", "text", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=job_environment,
            start_new_session=True,
        )

    return run


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_text_is_completed_by_next_run(
    prepare: Any, start: Any, tmp_path: Path, signal_number: signal.Signals
) -> None:
    source = tmp_path / "a.xml.bz2"
    source.write_bytes(multistream(noise(8000), each=100))
    arguments = [source, "--processes", "2", "--file-megabytes", "1", "--data"]
    folder = tmp_path / "stopped" / "text"
    with start(*arguments, tmp_path / "stopped") as process:
        try:

            def has_begun() -> bool:
                assert process.poll() is None
                return (folder / "text-00001.txt").exists()

            until(has_begun, "the second file")
            started = [pid for pid in process_tree(process.pid) if pid != process.pid]
            if signal_number == signal.SIGINT:  # a terminal sends it to all
                os.killpg(process.pid, signal.SIGINT)
                _, errors = process.communicate(timeout=60)
                assert process.returncode == 130
                assert errors == "\nstopped; run the same command again to resume\n"
        finally:
            process.kill()
    assert started and not (folder / "manifest.json").exists()  # orphaned workers
    until(lambda: not any(is_alive(pid) for pid in started), "the end of the workers")
    result = prepare("vocabulary", "--data", tmp_path / "stopped", code=2)
    assert "no complete text in" in result.stderr
    prepare("text", *arguments, tmp_path / "stopped")
    prepare("text", *arguments, tmp_path / "alone")
    assert contents(folder) == contents(tmp_path / "alone" / "text")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.soak
@pytest.mark.tensorflow
def test_extract_memory_is_bounded(start: Any, tmp_path: Path) -> None:
    peaks = []
    pages = b"".join(noise(2000))
    for times in (5, 25):
        source = tmp_path / f"{times}.xml.bz2"
        stream = bz2.compress(pages)
        source.write_bytes(bz2.compress(HEAD) + stream * times + bz2.compress(TAIL))
        options = ("--processes", "2", "--file-megabytes", "1", "--data", tmp_path / str(times))
        with start(source, *options) as process:
            try:
                peak = 0
                while process.poll() is None:
                    peak = max(peak, proportional_memory(process.pid, of_files=False))
                    time.sleep(0.1)
            finally:
                process.kill()
        assert process.returncode == 0
        peaks.append(peak)
    # Five times the text: keeping it in memory would take 50 MB more.
    assert peaks[1] < peaks[0] + 25_000_000, peaks
