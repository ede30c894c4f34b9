"""Downloading a dump from a mirror, with network, server and disk errors."""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.mirror import Mirror, serve_mirror
from tests.support.polling import until

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
CONTENT = random.Random(1).randbytes(3_000_000)
NAME = "kowiki-20251101-pages-articles-multistream.xml.bz2"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve_mirror(Mirror()) as mirror:
        yield mirror


Fetch = Callable[..., dict[str, Any]]


@pytest.fixture
def fetch(job: SimpleNamespace, mirror: Mirror, tmp_path: Path) -> Fetch:
    """Choose and fetch in this process, without pauses between retries."""

    def run(language: str = "ko", date: str = "latest") -> dict[str, Any]:
        client = job.download.Client("tests/1 (a@example.org)", lambda line: None, pause=0)
        dump = job.fetch.choose(language, date, mirror.url, client)
        return dict(job.fetch.fetch(dump, str(tmp_path / "dump"), client))

    return run


def prepare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, JOB / "prepare.py", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_fetch_keeps_verified_download(mirror: Mirror, tmp_path: Path) -> None:
    mirror.publish("kowiki", "20251001", b"old")
    mirror.publish("kowiki", "20251101", CONTENT)
    arguments = ("fetch", "--mirror", mirror.url, "--data", tmp_path, "--contact", "me@example.org")
    first = prepare(*arguments)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == [NAME, "manifest.json"]
    manifest = json.loads((tmp_path / "dump" / "manifest.json").read_text("utf-8"))
    assert (manifest["wiki"], manifest["date"]) == ("kowiki", "20251101")
    assert "CC BY-SA" in manifest["license"]
    assert manifest["files"][0]["sha1"] == hashlib.sha1(CONTENT).hexdigest()
    assert first.stdout.splitlines()[0].startswith("fetch: kowiki of 20251101, 1 file, 3.0 MB")
    assert "sha1 verified" in first.stdout
    # Wikimedia blocks default User-Agents and requires a contact.
    agents = {request.headers["User-Agent"] for request in mirror.requests}
    assert len(agents) == 1
    assert "me@example.org" in agents.pop()

    second = prepare(*arguments)
    assert second.returncode == 0, second.stderr
    assert f"kept {NAME}" in second.stdout
    assert len(mirror.requests_for(NAME)) == 1


def test_fetch_resumes_after_dropped_connection(
    mirror: Mirror, fetch: Fetch, tmp_path: Path
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.body_limits = [1_000_000, 1_500_000]
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT
    ranges = [request.headers.get("Range") for request in mirror.requests_for(NAME)]
    assert ranges == [None, "bytes=1000000-", "bytes=2500000-"]
    assert mirror.requests_for(NAME)[1].headers["If-Range"] == '"one"'


def test_fetch_restarts_without_range_support(mirror: Mirror, fetch: Fetch, tmp_path: Path) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.has_ranges = False
    mirror.body_limits = [1_000_000, 2_000_000]
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("tag", ["", 'W/"weak"'])
def test_fetch_restarts_without_strong_validator(
    mirror: Mirror, fetch: Fetch, tmp_path: Path, tag: str
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.tag = tag
    mirror.body_limits = [1_000_000]
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT
    assert [request.headers.get("Range") for request in mirror.requests_for(NAME)] == [None, None]


def test_fetch_restarts_changed_file(
    mirror: Mirror, fetch: Fetch, tmp_path: Path, job: SimpleNamespace
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.body_limits = [1_000_000] + [0] * 10
    with pytest.raises(job.errors.JobError, match="connection lost"):
        fetch()
    other = CONTENT[::-1]
    mirror.publish("kowiki", "20251101", other)
    mirror.tag, mirror.body_limits = '"two"', []
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == other


def test_fetch_rejects_wrong_content_range(mirror: Mirror, fetch: Fetch, tmp_path: Path) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.body_limits, mirror.shift = [1_000_000], 7
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [{"sha1": "0" * 40}, {"size": len(CONTENT) - 1}], ids=str)
def test_fetch_deletes_download_with_wrong_size_or_checksum(
    mirror: Mirror, fetch: Fetch, tmp_path: Path, job: SimpleNamespace, wrong: dict[str, Any]
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT, **wrong)
    with pytest.raises(job.errors.JobError, match="the download was deleted"):
        fetch()
    assert list((tmp_path / "dump").iterdir()) == []


def test_fetch_replaces_corrupt_existing_file(mirror: Mirror, fetch: Fetch, tmp_path: Path) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    fetch()
    (tmp_path / "dump" / NAME).write_bytes(CONTENT[:-1] + b"!")
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT


def test_fetch_retries_transient_errors(mirror: Mirror, fetch: Fetch, tmp_path: Path) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.answers = [(503, {"Retry-After": "0"}), (429, {}), (500, {})]
    fetch()
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answers", "message"),
    [([(403, {})], "403 Forbidden.*--contact"), ([(503, {})] * 9, "503 Service Unavailable")],
)
def test_fetch_reports_permanent_errors(
    mirror: Mirror, fetch: Fetch, job: SimpleNamespace, answers: list[Any], message: str
) -> None:
    mirror.answers = answers
    with pytest.raises(job.errors.JobError, match=message):
        fetch()


def test_fetch_lists_available_dates(mirror: Mirror, fetch: Fetch, job: SimpleNamespace) -> None:
    mirror.publish("kowiki", "20251001", CONTENT)
    mirror.publish("kowiki", "20251101", CONTENT)
    with pytest.raises(job.errors.JobError) as refused:
        fetch(date="20251115")
    assert "no dump of kowiki of 20251115" in str(refused.value)
    assert "20251101, 20251001" in str(refused.value)
    with pytest.raises(job.errors.JobError, match="--language xx"):
        fetch(language="xx")


def test_latest_is_the_newest_complete_dump(
    mirror: Mirror, fetch: Fetch, job: SimpleNamespace
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    path = mirror.publish("kowiki", "20251120", CONTENT).rpartition("/")[0] + "/dumpstatus.json"
    mirror.files[path] = mirror.files[path].replace(b'"done"', b'"in-progress"')
    assert fetch()["date"] == "20251101"
    with pytest.raises(job.errors.JobError, match="20251120 is not complete"):
        fetch(date="20251120")


def test_mirror_with_checksum_lists_only(mirror: Mirror, fetch: Fetch, tmp_path: Path) -> None:
    path = mirror.publish("kowiki", "20251101", CONTENT)
    sums = f"{hashlib.sha1(CONTENT).hexdigest()}  {NAME}\n{'0' * 40}  kowiki-20251101-x.sql.gz\n"
    mirror.files = {
        path: CONTENT,
        "/kowiki/latest/kowiki-latest-sha1sums.txt": sums.encode(),
        "/kowiki/20251101/kowiki-20251101-sha1sums.txt": sums.encode(),
    }
    assert fetch()["date"] == "20251101"
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT


def test_large_wiki_files_have_each_article_once(job: SimpleNamespace) -> None:
    parts = [
        "enwiki-20251101-pages-articles-multistream2.xml-p41243p151573.bz2",
        "enwiki-20251101-pages-articles-multistream1.xml-p1p41242.bz2",
        "enwiki-20251101-pages-articles-multistream10.xml-p4045403p5399366.bz2",
    ]
    others = [
        "enwiki-20251101-pages-articles-multistream-index1.txt-p1p41242.bz2",
        "enwiki-20251101-pages-articles1.xml-p1p41242.bz2",
        "enwiki-20251001-pages-articles-multistream.xml.bz2",
        "enwiki-20251101-pages-meta-history1.xml-p1p812.bz2",
    ]
    names = job.fetch.article_files("enwiki", "20251101", [*others, *parts])
    assert names == [parts[1], parts[0], parts[2]]
    whole = "enwiki-20251101-pages-articles-multistream.xml.bz2"
    assert job.fetch.article_files("enwiki", "20251101", [*parts, whole]) == [whole]
    assert job.fetch.article_files("enwiki", "20251101", others) == [others[1]]


def test_fetch_checks_free_space_first(
    mirror: Mirror, fetch: Fetch, job: SimpleNamespace, tmp_path: Path
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT, size=10**18)
    with pytest.raises(job.errors.JobError, match="free, 1,000,000,000,000"):
        fetch()
    assert (tmp_path / "dump" / f"{NAME}.part").stat().st_size == 0


def test_full_disk_is_reported(job: SimpleNamespace) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as file,
        pytest.raises(
            job.errors.JobError, match="/somewhere is full; the partial download is kept"
        ),
    ):
        job.download.append(file, b"x", Path("/somewhere"))


def test_concurrent_fetch_is_rejected(
    mirror: Mirror, fetch: Fetch, job: SimpleNamespace, tmp_path: Path
) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    (tmp_path / "dump").mkdir()
    with (tmp_path / "dump" / f"{NAME}.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(job.errors.JobError, match="another process is fetching"):
            fetch()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_fetch_is_resumed(mirror: Mirror, tmp_path: Path, number: int) -> None:
    mirror.publish("kowiki", "20251101", CONTENT)
    mirror.pause = threading.Event()
    arguments = ["fetch", "--mirror", mirror.url, "--data", str(tmp_path)]
    part = tmp_path / "dump" / f"{NAME}.part"
    with subprocess.Popen(
        [sys.executable, JOB / "prepare.py", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:

            def has_a_megabyte() -> bool:
                assert process.poll() is None
                return part.exists() and part.stat().st_size >= 1 << 20

            until(has_a_megabyte, "the first megabyte")
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            mirror.pause.set()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors.decode().strip() == "stopped; run the same command again to resume"
    size = part.stat().st_size
    mirror.pause = None
    result = prepare(*arguments)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "dump" / NAME).read_bytes() == CONTENT
    assert mirror.requests_for(NAME)[-1].headers["Range"] == f"bytes={size}-"
