"""Bundles: a manifest of the files to upload, and where each of them is on this computer.

The manifest records names, content, executable bits and link targets and nothing else, so that
equal files have the same manifest at any time and place. Its SHA-256 is the bundle's name:

    {"files": {NAME: {"executable": BOOLEAN, "sha256": HEX, "size": BYTES}},
     "folders": [NAME], "links": {NAME: TARGET}}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from tpuctl.errors import Conflict, Diagnostic, Refused, Usage
from tpuctl.files import is_lfs_pointer
from tpuctl.jobs.file_hashes import FileHashes
from tpuctl.jobs.file_selection import Entry, FileRules, include_setting, unreadable_error
from tpuctl.units import decimal_size

LARGE_BYTES = 50_000_000
MAX_NAMES = 5  # in a warning
MAX_KEY_BYTES = 1 << 20  # private keys and account files are never larger
PRIVATE_KEY = re.compile(
    rb"^-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s*\n(?:[\w-]+: .*\n|\s*\n)*[A-Za-z0-9+/=]{32,}",
    re.M,
)


class Source(NamedTuple):
    """A file with the content that a bundle needs."""

    path: Path
    size: int  # bytes


@dataclass(frozen=True)
class Bundle:
    """A built bundle: its digest, the sources of its content, and statistics for the user."""

    digest: str  # SHA-256 of the manifest
    manifest: bytes
    sources: Mapping[str, Source]  # by SHA-256, in the order of the manifest
    files: int
    size: int  # total bytes of the files
    script: str  # the script's path in the bundle; empty if there is none
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def sources_of_python(self) -> list[Path]:
        """Where the Python files are on this computer."""
        files = json.loads(self.manifest)["files"].items()
        names = [file["sha256"] for name, file in files if name.endswith(".py")]
        return [self.sources[sha].path for sha in names]


def build_bundle(
    script: Path | None,
    *,
    root: Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    additions: Mapping[str, Path] = MappingProxyType({}),
    hashes: Path | None = None,
) -> Bundle:
    """Bundle the script's folder, or `root`, which is required without a script.

    `additions` are files from elsewhere, by their names FOLDER/FILE in the bundle; what is selected
    from a project has no such folder.

    The file `hashes` persists between runs, so that unchanged large files are not read again.
    Memory use grows with the number of files, not with their size. Raises Usage if the script does
    not exist or is excluded, Refused if a file looks like a private key.
    """
    if script is not None and not script.is_file():
        raise Usage("Script not found", str(script), hint="Pass the path of an existing file.")
    folder = root or (script.parent if script else None)
    assert folder is not None
    root = folder.resolve()
    script_name = _relative_script(root, script) if script else ""
    rules = FileRules(root, include, exclude, script_name)
    selection = rules.select()
    entries = list(selection.entries)
    if script_name and script_name not in {entry.name for entry in entries}:
        exclusion = rules.exclusion_of(root / script_name)
        raise Usage(
            "Script is excluded from the upload",
            f"{script_name}: {exclusion.rule if exclusion is not None else 'not a file'}",
            hint=exclusion.remedy if exclusion is not None else "",
        )
    for folder_name in sorted({Path(name).parent.as_posix() for name in additions}):
        entries.append(Entry(folder_name, root, "folder"))
    entries += (Entry(name, path, "file") for name, path in additions.items())
    cache = FileHashes(hashes)
    files = _hash_files([entry for entry in entries if entry.kind == "file"], root, cache)
    cache.save()
    manifest = {
        "files": {
            name: {"executable": file.is_executable, "sha256": file.sha256, "size": file.size}
            for name, file in files.items()
        },
        "folders": [entry.name for entry in entries if entry.kind == "folder"],
        "links": {entry.name: entry.target for entry in entries if entry.kind == "link"},
    }
    text = json.dumps(manifest, separators=(",", ":"), sort_keys=True).encode("ascii")
    new_sizes = {name: file.size for name, file in files.items() if not file.is_cached}
    return Bundle(
        digest=hashlib.sha256(text).hexdigest(),
        manifest=text,
        sources={file.sha256: Source(file.path, file.size) for file in files.values()},
        files=len(entries) - len(manifest["folders"]),
        size=sum(file.size for file in files.values()),
        script=script_name,
        warnings=(
            *_link_warnings(entries),
            *_credential_warnings(selection.credentials),
            *_pointer_warnings(files),
            *_size_warnings(new_sizes),
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


class _HashedFile(NamedTuple):
    path: Path
    size: int
    sha256: str
    is_executable: bool
    is_cached: bool  # unchanged since it was bundled before
    is_pointer: bool  # of Git LFS


def _hash_files(entries: Sequence[Entry], root: Path, cache: FileHashes) -> dict[str, _HashedFile]:
    """The files by name. Raises Refused if some of them look like private keys."""
    files: dict[str, _HashedFile] = {}
    keys: list[str] = []
    for entry in entries:
        try:
            file = _hash_file(entry.path, cache)
        except FileNotFoundError:
            raise file_changed_error(entry.path) from None
        except OSError as error:
            raise unreadable_error(error, root) from error
        if file is None:
            keys.append(entry.name)
        else:
            files[entry.name] = file
    if keys:
        lines = "\n".join(f"    {name}" for name in keys)
        raise Refused(
            "Bundle would contain a private key",
            ", ".join(keys),
            hint=f"Move it elsewhere, or exclude it in .tpuctlignore:\n{lines}",
        )
    return files


def _hash_file(path: Path, cache: FileHashes) -> _HashedFile | None:
    """The file with its hash; None if it looks like a private key."""
    with path.open("rb") as source:
        status = os.fstat(source.fileno())
        cached = cache.get(path, status)
        if cached is None and _is_key(source):
            return None
        is_pointer = is_lfs_pointer(source, status.st_size)
        source.seek(0)
        sha = cached or hashlib.file_digest(source, "sha256").hexdigest()
        size = status.st_size if cached else source.tell()
        cache.put(path, status, os.fstat(source.fileno()), sha)
    is_executable = bool(status.st_mode & 0o100)
    return _HashedFile(path, size, sha, is_executable, cached is not None, is_pointer)


def file_changed_error(path: Path) -> Conflict:
    """The error for a file that changed after it was selected."""
    return Conflict(
        "File changed while it was being bundled",
        str(path),
        hint="Run the command again.",
    )


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


def _credential_warnings(names: Sequence[str]) -> tuple[Diagnostic, ...]:
    """A warning about files that are left out, since they hold tokens or passwords."""
    if not names:
        return ()
    return (
        Diagnostic(
            "Credentials are not uploaded",
            ", ".join(names),
            "Pass tokens with job.secrets, or exclude the files in .tpuctlignore. To upload them:\n"
            f"    {include_setting(names)}",
        ),
    )


def _pointer_warnings(files: Mapping[str, _HashedFile]) -> tuple[Diagnostic, ...]:
    """A warning about files whose content Git LFS has not downloaded."""
    names = [name for name, file in files.items() if file.is_pointer]
    if not names:
        return ()
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return (
        Diagnostic(
            "Git LFS pointers instead of files",
            f"{', '.join(names[:MAX_NAMES])}{more}: what is uploaded only refers to the content",
            "Download the content:\n    git lfs pull",
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
