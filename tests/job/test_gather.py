"""Collecting Korean text from catalogs, manuals and guides below a temporary root."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest


def catalog(messages: dict[str, str], charset: str = "UTF-8", order: str = "<") -> bytes:
    """Return a compiled catalog in msgfmt's format."""
    entries = {"": f"Content-Type: text/plain; charset={charset}\n", **messages}
    keys = sorted(entries)
    encoded = [[key.encode() for key in keys], [entries[key].encode(charset) for key in keys]]
    start = 28 + 16 * len(keys)
    tables, data = b"", b""
    for column in encoded:
        for item in column:
            tables += struct.pack(f"{order}2I", len(item), start + len(data))
            data += item + b"\0"
    header = struct.pack(f"{order}7I", 0x950412DE, 0, len(keys), 28, 28 + 8 * len(keys), 0, 0)
    return header + tables + data


@pytest.fixture
def root(tmp_path: Path) -> Path:
    share = tmp_path / "root" / "usr" / "share"
    messages = {
        "a": "'%s' 파일을 읽을 수 없으므로 여기에서 그만둡니다.",
        "b": "열기(_O)",
        "c": "설정을 바꾼 다음에는 프로그램을\n다시 시작해야 합니다. 그렇게 하시겠습니까?",
        "d": "This is only English, so it is removed.",
        "e": "<b>%d</b>개의 꾸러미를 새로 설치해야 합니다.",
        "f": "파일 하나를 지웠습니다 그러합니다\0파일 여러 개를 지웠습니다 그러합니다",
    }
    write(share / "locale/ko/LC_MESSAGES/one.mo", catalog(messages))
    again = {"z": "설정을 바꾼 다음에는 프로그램을 다시 시작해야 합니다.", **messages}
    write(share / "locale/ko_KR/LC_MESSAGES/two.mo", catalog(again, "EUC-KR", ">"))
    write(share / "locale/kok/LC_MESSAGES/no.mo", catalog({"a": "코카니 말이라고 하고 넣은 문장"}))
    write(share / "locale/ko/LC_MESSAGES/broken.mo", catalog(messages)[:60])
    page = r""".\" a comment that says 한국어로 쓴 설명이지만 보이지 않습니다.
.TH XZ 1
.SH 이름
\fBxz\fP는 파일을 압축하거나
압축을 푸는 프로그램입니다.
.PP
자세한 것은 \fIman\fP(1) 설명서를 읽으십시오.
.nf
보기로 든 명령이므로 여기에 넣지 않습니다.
.fi
"""
    write(share / "man/ko/man1/xz.1.gz", gzip.compress(page.encode()))
    return tmp_path / "root"


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def gathered(job: SimpleNamespace, root: Path, output: Path, most: int = 10**6) -> list[str]:
    messages: list[str] = []
    job.gather.gather(root, output, most, messages.append)
    return messages


def test_gather_cleans_and_deduplicates_korean_sentences(
    job: SimpleNamespace, root: Path, tmp_path: Path
) -> None:
    gathered(job, root, tmp_path / "data")
    text = (tmp_path / "data" / "messages.txt").read_text("utf-8")
    assert text.split("\n\n")[0].splitlines() == [
        "파일을 읽을 수 없으므로 여기에서 그만둡니다.",
        "설정을 바꾼 다음에는 프로그램을 다시 시작해야 합니다.",
        "개의 꾸러미를 새로 설치해야 합니다.",
        "파일 하나를 지웠습니다 그러합니다",
        "파일 여러 개를 지웠습니다 그러합니다",
    ]
    assert text.count("다시 시작해야") == 1
    assert "코카니" not in text


def test_gather_strips_roff_markup(job: SimpleNamespace, root: Path, tmp_path: Path) -> None:
    gathered(job, root, tmp_path / "data")
    assert (tmp_path / "data" / "manuals.txt").read_text("utf-8").splitlines() == [
        "xz는 파일을 압축하거나 압축을 푸는 프로그램입니다.",
        "자세한 것은 man(1) 설명서를 읽으십시오.",
    ]


def test_gather_reports_and_skips_broken_file(
    job: SimpleNamespace, root: Path, tmp_path: Path
) -> None:
    lines = gathered(job, root, tmp_path / "data")
    assert [line for line in lines if "broken.mo" in line and "cut short" in line]
    assert (tmp_path / "data" / "messages.txt").exists()


@pytest.mark.parametrize("most", [0, 80, 400])
def test_gather_stops_at_max_megabytes(
    job: SimpleNamespace, root: Path, tmp_path: Path, most: int
) -> None:
    gathered(job, root, tmp_path / "data", most)
    written = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.txt"))
    assert written <= most
    assert written > 0 or most == 0


def test_gather_reports_missing_korean_text(
    job: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data"
    assert job.gather.main(["--root", str(tmp_path), "--output", str(output)]) == 0
    assert "sample/" in capsys.readouterr().out
    assert not output.exists()


def test_gather_reports_unwritable_output(
    job: SimpleNamespace, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "data"
    blocked.write_text("a file where the folder should be")
    assert job.gather.main(["--root", str(root), "--output", str(blocked)]) == 1
    assert str(blocked) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "cleaned"),
    [
        ("%2$s에서 %1$d번", "에서 번"),
        ("%(name)s 님", " 님"),
        ("{count}개와 ${x}개", "개와 개"),
        ("<i>굵게</i>&nbsp;쓰기", "굵게쓰기"),
        ("파일(_F)", "파일"),
        ("100%% 끝", "100 끝"),
        ("(%s) 다음", " 다음"),
    ],
)
def test_gather_removes_placeholders(job: SimpleNamespace, message: str, cleaned: str) -> None:
    assert job.gather.clean_message(message) == cleaned


def test_gather_writes_composed_syllables(job: SimpleNamespace) -> None:
    apart = "\u1112\u1161\u11ab\u1100\u1173\u11af"  # two syllables, as macOS stores them
    sentence = f"{apart} 문장은 모아서 적어야 합니다."
    assert list(job.gather.korean_sentences(sentence)) == [
        "\ud55c\uae00 문장은 모아서 적어야 합니다."
    ]


def test_sample_is_korean_text_in_documents(job: SimpleNamespace) -> None:
    folder = Path(job.gather.__file__).parent / "sample"
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.txt"))]
    assert sum(len(text.encode()) for text in texts) > 25_000
    documents = [d for text in texts for d in job.text.documents(text.splitlines())]
    sentences = [sentence for document in documents for sentence in document]
    assert len(documents) > len(texts)
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert len(job.gather.HANGUL.findall(sentence)) >= 5, sentence
