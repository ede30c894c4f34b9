"""The fetch stage: downloads a Wikipedia dump from a mirror into `dump/`.

A mirror has a folder for each wiki with a folder for each dump: `kowiki/20251101/`. Its
`dumpstatus.json` lists the files with their sizes and checksums; some mirrors have only
`kowiki-20251101-sha1sums.txt`. `kowiki/latest/` has the checksums of the last complete dump.
Source: https://meta.wikimedia.org/wiki/Data_dumps
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import files
from corpus.download import Client, Remote, download, is_intact
from corpus.progress import Progress, duration, megabytes
from errors import JobError

__all__ = ["MIRROR", "Dump", "choose", "fetch"]

MIRROR = "https://dumps.wikimedia.org"
LICENSE = "CC BY-SA 4.0 and GFDL, see https://dumps.wikimedia.org/legal.html"
JOBS = ("articlesmultistreamdump", "articlesdump")
DATE_LINK = re.compile(r'href="(?:[^"]*/)?(\d{8})/?"')
CHECKSUMS = ("sha1", "md5")  # in order of preference


@dataclass(frozen=True)
class Dump:
    """A dump of articles: the wiki, the date, and its files by name."""

    wiki: str
    date: str
    files: dict[str, Remote]


def choose(language: str, date: str, mirror: str, client: Client) -> Dump:
    """Return a dump with its files. `date` is YYYYMMDD or "latest".

    "latest" is the newest dump whose articles are complete. Raises JobError if it does not exist,
    listing the available dates.
    """
    wiki = f"{language.replace('-', '_')}wiki"
    if date != "latest":
        dump = published_dump(wiki, date, mirror, client)
        if isinstance(dump, Dump):
            return dump
        raise JobError(f"{dump}{other_dates(wiki, mirror, client)}", 2)
    for candidate in dates(wiki, mirror, client) or latest_by_sums(wiki, mirror, client):
        dump = published_dump(wiki, candidate, mirror, client)
        if isinstance(dump, Dump):
            return dump
    raise JobError(f"{mirror} has no complete dump of {wiki}; is --language {language} right?", 2)


def published_dump(wiki: str, date: str, mirror: str, client: Client) -> Dump | str:
    """Return a dump as the mirror lists it, or the reason it is not available."""
    folder = f"{mirror}/{wiki}/{date}"
    status = client.text(f"{folder}/dumpstatus.json")
    if status is None:
        listed = by_sums(wiki, date, folder, client)
        return Dump(wiki, date, listed) if listed else f"{mirror} has no dump of {wiki} of {date}"
    try:
        jobs = json.loads(status)["jobs"]
        for job in (jobs[name] for name in JOBS if name in jobs):
            if job["status"] != "done":
                continue
            facts = job.get("files", {})
            if articles := article_files(wiki, date, facts):
                remotes = {name: remote(f"{folder}/{name}", facts[name]) for name in articles}
                return Dump(wiki, date, remotes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"unexpected format of {folder}/dumpstatus.json: {error!r}") from error
    return f"the dump of {wiki} of {date} is not complete yet"


def remote(url: str, facts: dict[str, Any]) -> Remote:
    algorithm = next((name for name in CHECKSUMS if facts.get(name)), "")
    return Remote(url, int(facts["size"]), algorithm, facts.get(algorithm, "").lower())


def by_sums(wiki: str, date: str, folder: str, client: Client) -> dict[str, Remote]:
    """Return the files in a list of checksums, without their sizes."""
    for algorithm in CHECKSUMS:
        sums = client.text(f"{folder}/{wiki}-{date}-{algorithm}sums.txt") or ""
        rows = [line.split() for line in sums.splitlines()]
        checksums = {row[1].lstrip("*"): row[0].lower() for row in rows if len(row) == 2}
        if articles := article_files(wiki, date, checksums):
            return {
                name: Remote(f"{folder}/{name}", None, algorithm, checksums[name])
                for name in articles
            }
    return {}


def article_files(wiki: str, date: str, names: Iterable[str]) -> list[str]:
    """Return the files that together contain each article once.

    Large wikis have several files with a range of pages each, and sometimes also one with all
    pages. Multistream files are preferred: they are unpacked on all processors.
    """
    for kind in ("-multistream", ""):
        whole = f"{wiki}-{date}-pages-articles{kind}.xml.bz2"
        part = re.compile(rf"{wiki}-{date}-pages-articles{kind}\d+\.xml-p(\d+)p\d+\.bz2")
        parts = [(int(match[1]), name) for name in names if (match := part.fullmatch(name))]
        if whole in names or parts:
            return [whole] if whole in names else [name for _, name in sorted(parts)]
    return []


def dates(wiki: str, mirror: str, client: Client) -> list[str]:
    """Return the dates that the mirror's page for a wiki links to, newest first."""
    page = client.text(f"{mirror}/{wiki}/") or ""
    return sorted(set(DATE_LINK.findall(page)), reverse=True)


def latest_by_sums(wiki: str, mirror: str, client: Client) -> list[str]:
    """Return the date of the last complete dump, for mirrors without folder listings."""
    for algorithm in CHECKSUMS:
        sums = client.text(f"{mirror}/{wiki}/latest/{wiki}-latest-{algorithm}sums.txt") or ""
        if match := re.search(rf"\b{wiki}-(\d{{8}})-pages-articles", sums):
            return [match[1]]
    return []


def other_dates(wiki: str, mirror: str, client: Client) -> str:
    available = dates(wiki, mirror, client)
    return f"; available: {', '.join(available)}" if available else ""


def fetch(dump: Dump, folder: str, client: Client) -> dict[str, Any]:
    """Download a dump's files to a folder, which may be in a bucket; return the manifest.

    Existing files with the right size and checksum are kept; partial downloads are resumed.
    """
    previous = files.read_json(files.join(folder, "manifest.json")).get("files", [])
    listed = []
    for name, file in dump.files.items():
        target = files.join(folder, name)
        facts = {"name": name, "url": file.url, file.algorithm: file.checksum}
        if files.is_remote(folder):
            facts["bytes"] = download_to_bucket(
                file, target, facts in [without_size(b) for b in previous], client
            )
        else:
            facts["bytes"] = download_to_disk(file, Path(target), client)
        listed.append(facts)
    manifest = {
        "wiki": dump.wiki,
        "date": dump.date,
        "license": LICENSE,
        "files": listed,
    }
    files.write_json(files.join(folder, "manifest.json"), manifest)
    return manifest


def download_to_disk(file: Remote, target: Path, client: Client) -> int:
    """Download a file to a local folder; return its size in bytes."""
    if target.exists() and is_intact(target, file):
        client.log(f"fetch: kept {target.name}, {checksum_note(file)}")
        return target.stat().st_size
    part = target.with_name(f"{target.name}.part")
    downloaded = part.stat().st_size if part.exists() else 0
    began = time.monotonic()
    progress = Progress("fetch", file.size, downloaded)
    try:
        download(file, target, client, progress.show)
    finally:
        progress.end()
    size = target.stat().st_size
    client.log(
        f"fetch: {target.name}, {megabytes(size)} in {duration(time.monotonic() - began)}, "
        f"{checksum_note(file)}"
    )
    return size


def download_to_bucket(file: Remote, target: str, is_recorded: bool, client: Client) -> int:
    """Download a file to a temporary folder and copy it to a bucket; return its size."""
    if is_recorded and files.exists(target):
        client.log(f"fetch: kept {target}")
        return files.size_and_mtime(target)[0]
    # The same folder every time, so an interrupted download is resumed.
    digest = hashlib.sha256(target.encode("utf-8")).hexdigest()[:16]
    temporary = Path(tempfile.gettempdir(), f"dump-{digest}", PurePosixPath(target).name)
    size = download_to_disk(file, temporary, client)
    files.copy(str(temporary), target)
    client.log(f"fetch: copied to {target}")
    shutil.rmtree(temporary.parent)
    return size


def checksum_note(file: Remote) -> str:
    return f"{file.algorithm} verified" if file.checksum else "no published checksum"


def without_size(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "bytes"}
