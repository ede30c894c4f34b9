"""The template korean-messages: collecting catalogs below a temporary root, and its task."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.job.conftest import JOB


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


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


NUMERALS = ("하나", "둘", "셋", "넷", "다섯", "여섯", "일곱", "여덟", "아홉", "열")


def numbered(noun: str, count: int) -> dict[str, str]:
    """So many different sentences about something."""
    words = ["".join(NUMERALS[int(digit)] for digit in f"{i:03}") for i in range(count)]
    return {word: f"{noun} 번호 {word} 자리에서 찾을 수 없습니다." for word in words}


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
    return tmp_path / "root"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of installed Python packages."""
    return tmp_path / "packages"


def collected(module: ModuleType, root: Path, packages: Path, output: Path) -> list[list[str]]:
    """The rows of the task, after collecting."""
    module.collect(root, packages, output, 10**6)
    task = output / "messages.tsv"
    lines = task.read_text("utf-8").splitlines() if task.exists() else []
    return [line.split("\t") for line in lines]


def test_collect_cleans_and_deduplicates_korean_sentences(
    messages: ModuleType, root: Path, packages: Path, tmp_path: Path
) -> None:
    collected(messages, root, packages, tmp_path / "data")
    text = (tmp_path / "data" / "messages.txt").read_text("utf-8")
    assert text.splitlines() == [
        "파일을 읽을 수 없으므로 여기에서 그만둡니다.",
        "설정을 바꾼 다음에는 프로그램을 다시 시작해야 합니다.",
        "개의 꾸러미를 새로 설치해야 합니다.",
        "파일 하나를 지웠습니다 그러합니다",
        "파일 여러 개를 지웠습니다 그러합니다",
    ]


def test_collect_separates_programs_by_empty_line(
    messages: ModuleType, root: Path, packages: Path, tmp_path: Path
) -> None:
    sentences = {"a": "꾸러미에서 온 문장은 따로 적어야 합니다."}
    write(packages / "pack/locale/ko/LC_MESSAGES/django.mo", catalog(sentences))
    write(packages / "pack/apps/locale/ko/LC_MESSAGES/djangojs.mo", catalog(sentences))
    collected(messages, root, packages, tmp_path / "data")
    documents = (tmp_path / "data" / "messages.txt").read_text("utf-8").split("\n\n")
    assert [len(document.splitlines()) for document in documents] == [5, 1]
    assert documents[1] == sentences["a"] + "\n"


def test_collect_reports_and_skips_broken_file(
    messages: ModuleType, root: Path, packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write(root / "usr/share/locale/ko/LC_MESSAGES/empty.mo", b"")
    write(
        root / "usr/share/locale/ko/LC_MESSAGES/odd.mo",
        catalog({"a": "x"}).replace(b"UTF-8", b"UTF-9"),
    )
    collected(messages, root, packages, tmp_path / "data")
    lines = capsys.readouterr().out.splitlines()
    reasons = dict(re.findall(r"skipped .*/(\w+)\.mo: (.*)", "\n".join(lines)))
    assert set(reasons) == {"broken", "empty", "odd"}
    assert "not a message catalog" in reasons["empty"]
    assert "unknown encoding" in reasons["odd"]


@pytest.mark.parametrize("most", [0, 80, 400])
def test_collect_stops_at_max_megabytes(
    messages: ModuleType, root: Path, packages: Path, tmp_path: Path, most: int
) -> None:
    messages.collect(root, packages, tmp_path / "data", most)
    written = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.txt"))
    assert written <= most
    assert written > 0 or most == 0


def test_task_holds_out_test_sentences(
    messages: ModuleType, root: Path, packages: Path, tmp_path: Path
) -> None:
    locale = root / "usr/share/locale/ko/LC_MESSAGES"
    write(locale / "tool-15.mo", catalog(numbered("도구", 150)))
    write(locale / "tool-16.mo", catalog(numbered("연장", 150)))
    write(locale / "sheet.mo", catalog(numbered("문서", 200)))
    rows = collected(messages, root, packages, tmp_path / "data")
    assert Counter((name, split) for name, split, _ in rows) == {
        ("sheet", "train"): 150,
        ("sheet", "test"): 50,
        ("tool", "train"): 225,
        ("tool", "test"): 75,
    }
    text = set((tmp_path / "data" / "messages.txt").read_text("utf-8").splitlines())
    for _, split, sentence in rows:
        assert (sentence in text) == (split == "train")
    assert collected(messages, root, packages, tmp_path / "again") == rows


def test_too_few_messages_make_no_task(
    messages: ModuleType, root: Path, packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write(root / "usr/share/locale/ko/LC_MESSAGES/tool.mo", catalog(numbered("도구", 250)))
    data = tmp_path / "data"
    messages.collect(root, packages, data, 10**6)
    assert not (data / "messages.tsv").exists()
    assert "pip install" in capsys.readouterr().out
    assert len((tmp_path / "data" / "messages.txt").read_text("utf-8").splitlines()) == 250 + 6


def test_task_is_read_with_examples_per_class(messages: ModuleType, tmp_path: Path) -> None:
    rows = [("b", "test", "가"), ("b", "train", "나"), ("b", "train", "다"), ("a", "train", "라")]
    task = tmp_path / "messages.tsv"
    task.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    names, splits = messages.read_task(task, 1)
    assert names == ["a", "b"]
    assert splits == {"train": [("나", 1), ("라", 0)], "test": [("가", 1)]}
    assert len(messages.read_task(task, 0)[1]["train"]) == 3


def test_classify_reports_missing_task_and_model(
    messages: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "messages.tsv"
    command = ["classify", "--model", str(tmp_path / "model"), "--task", str(task)]
    assert messages.main(command) == 1
    assert str(task) in capsys.readouterr().err
    task.write_text("a\ttest\t가\n", "utf-8")
    assert messages.main(command) == 1
    assert str(tmp_path / "model") in capsys.readouterr().err


def test_collect_reports_missing_catalogs(
    messages: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data"
    assert messages.main(["collect", "--root", str(tmp_path), "--output", str(output)]) == 0
    assert f"found below {tmp_path}" in capsys.readouterr().out
    assert not output.exists()


def test_collect_reports_unwritable_output(
    messages: ModuleType, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "data"
    blocked.write_text("a file where the folder should be")
    assert messages.main(["collect", "--root", str(root), "--output", str(blocked)]) == 1
    assert str(blocked) in capsys.readouterr().err


@pytest.mark.parametrize("has_job", [False, True])
def test_collect_writes_into_neighboring_job_by_default(
    messages: ModuleType, root: Path, tmp_path: Path, has_job: bool
) -> None:
    script = tmp_path / "korean-messages" / "messages.py"
    write(script, Path(messages.__file__).read_bytes())
    folder = tmp_path / ("bert-pretraining" if has_job else "korean-messages")
    folder.mkdir(exist_ok=True)
    # -S: as no packages are installed, nothing but the standard library can be imported.
    command = [sys.executable, "-S", "-I", script, "collect", "--root", root]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert (folder / "data" / "messages.txt").is_file()


@pytest.mark.parametrize(
    ("message", "cleaned"),
    [
        ("%2$s에서 %1$d번", "에서 번"),
        ("%(name)s 님", " 님"),
        ("%<PRIu64>개와 %-10.3f개, %*d개", "개와 개, 개"),
        ("{count}개와 ${x}개", "개와 개"),
        ("<i>굵게</i>&nbsp;쓰기", "굵게쓰기"),
        ("파일(_F)", "파일"),
        ("100%% 끝", "100 끝"),
        ("(%s) 다음", " 다음"),
        ("\x1b[1m굵게\x1b[0m", "굵게"),
    ],
)
def test_clean_removes_placeholders(messages: ModuleType, message: str, cleaned: str) -> None:
    assert messages.clean(message) == cleaned


@pytest.mark.parametrize(
    ("message", "sentences"),
    [
        # Two syllables as macOS stores them.
        (
            "\u1112\u1161\u11ab\u1100\u1173\u11af 문장은 모아서 적어야 합니다.",
            ["\ud55c\uae00 문장은 모아서 적어야 합니다."],
        ),
        (
            "  -a, --all   이름이 점으로 시작하는 것도 보입니다",
            ["이름이 점으로 시작하는 것도 보입니다"],
        ),
        (
            "쓰는 방법은 다음과 같습니다:\n - 먼저 파일을 모두 지웁니다\n - 다음에 설정을 고칩니다",
            [
                "쓰는 방법은 다음과 같습니다",
                "먼저 파일을 모두 지웁니다",
                "다음에 설정을 고칩니다",
            ],
        ),
        ("%s을(를) 열 수 없으므로 그만둡니다 .", ["열 수 없으므로 그만둡니다."]),
        ("git commit --all --message 로 모두 기록하십시오 지금", []),
    ],
)
def test_sentences_of_message(messages: ModuleType, message: str, sentences: list[str]) -> None:
    assert list(messages.korean_sentences(message)) == sentences


def test_sample_is_korean_text_in_documents() -> None:
    texts = [path.read_text("utf-8") for path in sorted((JOB / "sample").glob("*.txt"))]
    assert sum(len(text.encode()) for text in texts) > 25_000
    assert sum(len(text.strip().split("\n\n")) for text in texts) > len(texts)
    sentences = [line for text in texts for line in text.splitlines() if line]
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert len(re.findall(r"[가-힣]", sentence)) >= 5, sentence
