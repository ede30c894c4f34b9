"""Bundles: a manifest of the files to upload, and the content-addressed chunks of the files.

The manifest records names, content, executable bits and link targets and nothing else, so that
equal files have the same manifest at any time and place. Its SHA-256 is the bundle's name. It has
one line of JSON for each folder, link and file, and after a file one `[sha256, size]` for each of
its chunks. It is split into chunks itself, so that changing one of many files changes little of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from tpuctl.errors import Diagnostic, Refused, Usage
from tpuctl.jobs.chunk_cache import ChunkCache, Chunks
from tpuctl.jobs.chunking import split_chunks
from tpuctl.jobs.file_selection import Entry, select_files
from tpuctl.units import decimal_size

__all__ = ["LARGE_BYTES", "Bundle", "Source", "build_bundle"]

LARGE_BYTES = 50_000_000
MAX_KEY_BYTES = 1 << 20  # private keys and account files are never larger
PRIVATE_KEY = re.compile(
    rb"^-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s*\n(?:[\w-]+: .*\n|\s*\n)*[A-Za-z0-9+/=]{32,}",
    re.M,
)


class Source(NamedTuple):
    """The part of a file that contains a chunk."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class Bundle:
    """A built bundle: its digest, the sources of its chunks, and statistics for the user."""

    digest: str  # SHA-256 of the manifest
    manifest: tuple[bytes, ...]  # the SHA-256 of each of its chunks, in order
    chunks: Mapping[bytes, Source]  # by SHA-256: first the manifest's, then the files'
    files: int
    size: int  # total bytes of the files
    script: str  # the script's path in the bundle; empty if there is none
    warnings: tuple[Diagnostic, ...] = ()


def build_bundle(
    script: Path | None,
    scratch: Path,
    *,
    root: Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    cache_folder: Path | None = None,
) -> Bundle:
    """Bundle the script's folder, or `root`; write the manifest into the folder `scratch`.

    `root` is required without a script. `cache_folder` persists between runs, so that unchanged
    large files are not read again. Memory use grows with the number of chunks, not with their
    size. Raises Usage if the script does not exist or is excluded, Refused if a file looks like a
    private key.
    """
    if script is not None and not script.is_file():
        raise Usage("Script not found", str(script), hint="Pass the path of an existing file.")
    folder = root or (script.parent if script else None)
    assert folder is not None
    root = folder.resolve()
    script_name = _relative_script(root, script) if script else ""
    entries = list(select_files(root, include, exclude, script_name))
    if script_name and script_name not in {entry.name for entry in entries}:
        raise Usage(
            "Script is excluded from the upload",
            f"{script_name} is excluded by an ignore file or by job.exclude",
            hint=f"Add to the stack file\n    job: {{include: [{script_name}]}}",
        )
    path = scratch / "manifest"
    file_sources: dict[bytes, Source] = {}
    cache = ChunkCache(cache_folder, root)
    sizes = _write_manifest(entries, path, file_sources, cache)
    cache.save()
    manifest_sources: dict[bytes, Source] = {}
    with path.open("rb") as source:
        manifest_chunks = list(_read_chunks(source))
        _add_chunks(manifest_chunks, path, manifest_sources)
        source.seek(0)
        digest = hashlib.file_digest(source, "sha256")
    return Bundle(
        digest=digest.hexdigest(),
        manifest=tuple(sha for sha, _ in manifest_chunks),
        chunks={**manifest_sources, **file_sources},
        files=sum(entry.kind != "folder" for entry in entries),
        size=sum(sizes.values()),
        script=script_name,
        warnings=(
            *_link_warnings(entries),
            *_size_warnings({name: sizes[name] for name in sizes if not cache.is_unchanged(name)}),
        ),
    )


def _relative_script(root: Path, script: Path) -> str:
    # Resolve the folder, but not the script itself, which may be a link.
    path = script.parent.resolve() / script.name
    if not path.is_relative_to(root):
        raise Usage(
            "Script is outside the uploaded folder",
            f"{script} is not below {root}",
            hint="Move the script into that folder, or run tpuctl in a folder that contains both.",
        )
    return path.relative_to(root).as_posix()


def _write_manifest(
    entries: Sequence[Entry], path: Path, chunks: dict[bytes, Source], cache: ChunkCache
) -> dict[str, int]:
    """Write the manifest, add the files' chunks to `chunks`, and return the size of each file."""
    sizes: dict[str, int] = {}
    keys: list[str] = []
    with path.open("w", encoding="ascii") as target:

        def line(value: Any) -> None:
            target.write(json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n")

        for entry in entries:
            if entry.kind == "folder":
                line({"folder": entry.name})
            elif entry.kind == "link":
                line({"link": entry.name, "target": entry.target})
            else:
                with entry.path.open("rb") as source:
                    status = os.fstat(source.fileno())
                    chunk_list = cache.get(entry.name, status)
                    if chunk_list is None:
                        if _is_key(source):
                            keys.append(entry.name)
                            continue
                        chunk_list = list(_read_chunks(source))
                        cache.put(entry.name, status, os.fstat(source.fileno()), chunk_list)
                line({"executable": bool(status.st_mode & 0o100), "file": entry.name})
                for sha, size in chunk_list:
                    line([sha.hex(), size])
                sizes[entry.name] = _add_chunks(chunk_list, entry.path, chunks)
    if keys:
        lines = "\n".join(f"    {name}" for name in keys)
        raise Refused(
            "Bundle would contain a private key",
            ", ".join(keys),
            hint=f"Move it elsewhere, or exclude it in .tpuctlignore:\n{lines}",
        )
    return sizes


def _read_chunks(source: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """SHA-256 and size of each chunk of a file, in order."""
    for chunk in split_chunks(source):
        yield hashlib.sha256(chunk).digest(), len(chunk)


def _add_chunks(file_chunks: Chunks, path: Path, chunks: dict[bytes, Source]) -> int:
    """Add the chunks of a file to `chunks`, and return their total size."""
    offset = 0
    for sha, size in file_chunks:
        chunks.setdefault(sha, Source(path, offset, size))
        offset += size
    return offset


def _is_key(source: IO[bytes]) -> bool:
    start = source.read(MAX_KEY_BYTES + 1)
    source.seek(0)
    if len(start) > MAX_KEY_BYTES:
        start = start[: 1 << 16]
    if b"PRIVATE KEY-----" in start and PRIVATE_KEY.search(start):
        return True
    if b'"private_key"' not in start and b'"refresh_token"' not in start:
        return False
    try:
        value = json.loads(start)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("type") in ("service_account", "authorized_user")


def _link_warnings(entries: Sequence[Entry]) -> tuple[Diagnostic, ...]:
    """A warning about the links that were followed."""
    followed = {entry.name: entry.origin for entry in entries if entry.origin}
    if not followed:
        return ()
    lines = "\n".join(f"    {name} -> {origin}" for name, origin in followed.items())
    return (
        Diagnostic(
            "Files outside the folder are uploaded",
            f"the targets of these links are included:\n{lines}",
            "Exclude files in .tpuctlignore.",
        ),
    )


def _size_warnings(sizes: Mapping[str, int]) -> tuple[Diagnostic, ...]:
    """A warning about large files that were not bundled before."""
    total = sum(sizes.values())
    if total <= LARGE_BYTES:
        return ()
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:3]
    largest = [name for name in largest if sizes[name] >= LARGE_BYTES / 10] or largest[:1]
    lines = [f"    {name}  {decimal_size(sizes[name])}" for name in largest]
    return (
        Diagnostic(
            "Bundle is large",
            f"{decimal_size(total)} are uploaded to every worker; the largest files:\n"
            + "\n".join(lines),
            "Store data in the bucket, and exclude it in .tpuctlignore.",
        ),
    )
