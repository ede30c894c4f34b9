"""The fetch stage: a Wikipedia's dump from a mirror into `dump/`.

A mirror has a folder for each wiki and in it one for each dump: `kowiki/20251101/`. There
`dumpstatus.json` lists the files with their sizes and checksums; some mirrors have only
`kowiki-20251101-sha1sums.txt`. `kowiki/latest/` has the same sums of the last complete dump.
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
CHECKSUMS = ("sha1", "md5")  # what the dumps come with, the better one first


@dataclass(frozen=True)
class Dump:
    """A dump of articles: the wiki, the date, and its files by name."""

    wiki: str
    date: str
    files: dict[str, Remote]


def choose(language: str, date: str, mirror: str, client: Client) -> Dump:
    """Find out which files make up a dump. `date` is YYYYMMDD or "latest".

    "latest" is the newest dump whose articles are complete. Raises JobError when there is none
    such, naming the dates that there are.
    """
    wiki = f"{language.replace('-', '_')}wiki"
    if date != "latest":
        found = published(wiki, date, mirror, client)
        if isinstance(found, Dump):
            return found
        raise JobError(f"{found}{others(wiki, mirror, client)}", 2)
    for candidate in dates(wiki, mirror, client) or latest_by_sums(wiki, mirror, client):
        found = published(wiki, candidate, mirror, client)
        if isinstance(found, Dump):
            return found
    raise JobError(f"{mirror} has no complete dump of {wiki}; is --language {language} right?", 2)


def published(wiki: str, date: str, mirror: str, client: Client) -> Dump | str:
    """Return a dump's files as the mirror lists them, or why there is no dump to be had."""
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
            if articles := one_set(wiki, date, facts):
                found = {name: remote(f"{folder}/{name}", facts[name]) for name in articles}
                return Dump(wiki, date, found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"{folder}/dumpstatus.json is not as expected: {error!r}") from error
    return f"the dump of {wiki} of {date} is not complete yet"


def remote(url: str, facts: dict[str, Any]) -> Remote:
    algorithm = next((name for name in CHECKSUMS if facts.get(name)), "")
    return Remote(url, int(facts["size"]), algorithm, facts.get(algorithm, "").lower())


def by_sums(wiki: str, date: str, folder: str, client: Client) -> dict[str, Remote]:
    """Return the files that a list of checksums names, without their sizes."""
    for algorithm in CHECKSUMS:
        sums = client.text(f"{folder}/{wiki}-{date}-{algorithm}sums.txt") or ""
        rows = [line.split() for line in sums.splitlines()]
        named = {row[1].lstrip("*"): row[0].lower() for row in rows if len(row) == 2}
        if articles := one_set(wiki, date, named):
            return {
                name: Remote(f"{folder}/{name}", None, algorithm, named[name]) for name in articles
            }
    return {}


def one_set(wiki: str, date: str, names: Iterable[str]) -> list[str]:
    """Return the files that together have each article once.

    Of large wikis there are several files with a range of pages each, and sometimes also one with
    all of them. Multistream files come first: they are unpacked on all processors.
    """
    for kind in ("-multistream", ""):
        whole = f"{wiki}-{date}-pages-articles{kind}.xml.bz2"
        part = re.compile(rf"{wiki}-{date}-pages-articles{kind}\d+\.xml-p(\d+)p\d+\.bz2")
        parts = [(int(found[1]), name) for name in names if (found := part.fullmatch(name))]
        if whole in names or parts:
            return [whole] if whole in names else [name for _, name in sorted(parts)]
    return []


def dates(wiki: str, mirror: str, client: Client) -> list[str]:
    """Return the dates that the mirror's page for a wiki links to, the newest first."""
    page = client.text(f"{mirror}/{wiki}/") or ""
    return sorted(set(DATE_LINK.findall(page)), reverse=True)


def latest_by_sums(wiki: str, mirror: str, client: Client) -> list[str]:
    """Return the date of the last complete dump, for mirrors that show no folders."""
    for algorithm in CHECKSUMS:
        sums = client.text(f"{mirror}/{wiki}/latest/{wiki}-latest-{algorithm}sums.txt") or ""
        if found := re.search(rf"\b{wiki}-(\d{{8}})-pages-articles", sums):
            return [found[1]]
    return []


def others(wiki: str, mirror: str, client: Client) -> str:
    there = dates(wiki, mirror, client)
    return f"; there are {', '.join(there)}" if there else ""


def fetch(dump: Dump, folder: str, client: Client) -> dict[str, Any]:
    """Bring a dump's files into a folder, which may be in a bucket; return the manifest.

    What is there already is kept when size and checksum agree; what was begun goes on.
    """
    before = files.read_json(files.join(folder, "manifest.json")).get("files", [])
    listed = []
    for name, file in dump.files.items():
        place = files.join(folder, name)
        facts = {"name": name, "url": file.url, file.algorithm: file.checksum}
        if files.is_remote(folder):
            facts["bytes"] = to_bucket(
                file, place, facts in [without_size(b) for b in before], client
            )
        else:
            facts["bytes"] = to_disk(file, Path(place), client)
        listed.append(facts)
    manifest = {
        "wiki": dump.wiki,
        "date": dump.date,
        "license": LICENSE,
        "files": listed,
    }
    files.write_json(files.join(folder, "manifest.json"), manifest)
    return manifest


def to_disk(file: Remote, target: Path, client: Client) -> int:
    """Bring a file to its place; return its size in bytes."""
    if target.exists() and is_intact(target, file):
        client.say(f"fetch: kept {target.name}, {checked(file)}")
        return target.stat().st_size
    part = target.with_name(f"{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    began = time.monotonic()
    progress = Progress("fetch", file.size, have)
    try:
        download(file, target, client, progress.show)
    finally:
        progress.end()
    size = target.stat().st_size
    client.say(
        f"fetch: {target.name}, {megabytes(size)} in {duration(time.monotonic() - began)}, "
        f"{checked(file)}"
    )
    return size


def to_bucket(file: Remote, target: str, is_noted: bool, client: Client) -> int:
    """Bring a file into a bucket by way of the disk for temporary files; return its size."""
    if is_noted and files.exists(target):
        client.say(f"fetch: kept {target}")
        return files.stamp(target)[0]
    # The same place next time, so that a download that was cut short goes on.
    place = hashlib.sha256(target.encode("utf-8")).hexdigest()[:16]
    with_name = Path(tempfile.gettempdir(), f"dump-{place}", PurePosixPath(target).name)
    size = to_disk(file, with_name, client)
    files.copy(str(with_name), target)
    client.say(f"fetch: copied to {target}")
    shutil.rmtree(with_name.parent)
    return size


def checked(file: Remote) -> str:
    return f"{file.algorithm} agrees" if file.checksum else "no checksum was published"


def without_size(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "bytes"}
