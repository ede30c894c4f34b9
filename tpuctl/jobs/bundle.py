"""The script's folder as one archive whose bytes depend on nothing but the files' content.

What is shipped: everything below the folder, but for what `.gitignore` and `.tpuctlignore` files
name (in the folder, below it, and above it up to the repository's root), what the stack excludes,
and what never belongs on a worker. What the stack includes is shipped though ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from pathspec import GitIgnoreSpec

from tpuctl.errors import Conflict, Diagnostic, Refused, Usage

__all__ = ["LARGE_BYTES", "Bundle", "build_bundle"]

LARGE_BYTES = 50_000_000
IGNORE_FILES = (".gitignore", ".tpuctlignore")  # the later one has the last word
NEVER = frozenset(
    {
        ".DS_Store",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".tpuctl",
        "__pycache__",
    }
)
STAMP = 315532800  # 1980-01-01, the oldest time that every archive format can hold
KEY_SIZE = 1 << 20  # private keys and account files are never larger
PRIVATE_KEY = re.compile(
    rb"^-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s*\n(?:[\w-]+: .*\n|\s*\n)*[A-Za-z0-9+/=]{32,}",
    re.M,
)


@dataclass(frozen=True)
class Bundle:
    """A built bundle: its file, its SHA-256, and what a person may want to know of it."""

    path: Path
    digest: str
    size: int  # of the archive
    files: int
    content_bytes: int  # of the files in it
    script: str  # the script's path inside
    warnings: tuple[Diagnostic, ...] = ()


def build_bundle(
    script: Path,
    into: Path,
    *,
    root: Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Bundle:
    """Archive the script's folder, or `root`, into the folder `into`.

    The same files give the same bytes, whatever their times, owners and place. Memory does not
    grow with the files. Raises Usage when the script is not there or not among what is shipped,
    Refused when a file looks like a private key.
    """
    if not script.is_file():
        raise Usage("No such script", str(script), hint="Name a file that exists.")
    root = (root or script.parent).resolve()
    inside = _inside(root, script)
    entries = list(_walk(root, include, exclude))
    if inside not in {entry.name for entry in entries}:
        raise Usage(
            "Script is not shipped",
            f"{inside} is excluded by an ignore file or by job.exclude",
            hint=f"Add to the stack file\n    job: {{include: [{inside}]}}",
        )
    _refuse_keys(entries)
    temporary = into / ".bundle.tar.gz"
    digest = _archive(entries, temporary)
    path = into / f"{digest}.tar.gz"
    temporary.replace(path)
    content = sum(entry.path.stat().st_size for entry in entries if entry.kind == "file")
    return Bundle(
        path=path,
        digest=digest,
        size=path.stat().st_size,
        files=sum(entry.kind != "folder" for entry in entries),
        content_bytes=content,
        script=inside,
        warnings=_warnings(entries, path.stat().st_size),
    )


def _inside(root: Path, script: Path) -> str:
    # The folder is resolved, the script itself is not: it may be a link.
    place = script.parent.resolve() / script.name
    if not place.is_relative_to(root):
        raise Usage("Script is outside of the folder to ship", f"{script} is not below {root}")
    return place.relative_to(root).as_posix()


# What is shipped ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One member: `kind` is file, folder or link; `target` is where a link points."""

    name: str
    path: Path
    kind: str
    target: str = ""


Rules = tuple[tuple[Path, GitIgnoreSpec], ...]  # each spec with the folder it is relative to


def _walk(root: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Entry]:
    """Everything to ship, sorted by name."""
    wanted = GitIgnoreSpec.from_lines(include)
    unwanted = GitIgnoreSpec.from_lines(exclude)

    def visit(folder: Path, rules: Rules, is_ignored: bool) -> Iterator[Entry]:
        rules = (*rules, *_rules_of(folder))
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            name = path.relative_to(root).as_posix()
            is_folder = path.is_dir() and not path.is_symlink()
            spelled = name + "/" if is_folder else name
            if path.name in NEVER or (is_folder and (path / "pyvenv.cfg").exists()):
                continue
            if unwanted.match_file(spelled):
                continue
            hidden = (is_ignored or _is_ignored(path, is_folder, rules)) and not (
                wanted.match_file(spelled)
            )
            if is_folder:
                if hidden and not include:
                    continue
                below = list(visit(path, rules, hidden))
                if below or not hidden:
                    yield Entry(name, path, "folder")
                    yield from below
            elif not hidden:
                entry = _entry(root, name, path)
                if entry is not None:
                    yield entry

    yield from visit(root, _rules_above(root), False)


def _entry(root: Path, name: str, path: Path) -> Entry | None:
    """A file or link; a link out of the folder becomes what it points to."""
    if not path.is_symlink():
        return Entry(name, path, "file") if path.is_file() else None  # no sockets, no pipes
    target = Path(os.path.normpath(path.parent / path.readlink()))
    if target.is_relative_to(root):
        return Entry(name, path, "link", os.path.relpath(target, path.parent))
    if path.is_file():
        return Entry(name, path, "file")
    raise Usage(
        "Link leaves the folder to ship",
        f"{name} points to {path.readlink()}",
        hint=f"Copy what it points to, or leave it out in .tpuctlignore:\n    /{name}",
    )


def _is_ignored(path: Path, is_folder: bool, rules: Rules) -> bool:
    """As git decides: the deepest ignore file that says anything about the path wins."""
    for folder, spec in reversed(rules):
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False


def _rules_of(folder: Path) -> Rules:
    found = []
    for name in IGNORE_FILES:
        file = folder / name
        if file.is_file():
            lines = file.read_text("utf-8", errors="replace").splitlines()
            found.append((folder, GitIgnoreSpec.from_lines(lines)))
    return tuple(found)


def _rules_above(root: Path) -> Rules:
    """Ignore files between the repository's root and the folder; none outside a repository.

    A repository that ignores the folder itself has nothing to say about what is in it: whoever
    runs a script from there means it.
    """
    above: list[Path] = []
    folder = root
    while not (folder / ".git").exists():
        if folder.parent == folder:
            return ()
        folder = folder.parent
        above.append(folder)
    rules = tuple(rule for folder in reversed(above) for rule in _rules_of(folder))
    inside = [root, *above[:-1]]  # below the repository's root
    return (
        ()
        if any(_is_ignored(folder, True, _outside(folder, rules)) for folder in inside)
        else rules
    )


def _outside(folder: Path, rules: Rules) -> Rules:
    """The rules of the folders around this one."""
    return tuple(rule for rule in rules if folder != rule[0] and folder.is_relative_to(rule[0]))


# What is refused and warned about -----------------------------------------------------------


def _refuse_keys(entries: Sequence[Entry]) -> None:
    found = [entry.name for entry in entries if entry.kind == "file" and _is_key(entry.path)]
    if found:
        lines = "\n".join(f"    {name}" for name in found)
        raise Refused(
            "Bundle would contain a private key",
            ", ".join(found),
            hint=f"Move it away, or leave it out in .tpuctlignore:\n{lines}",
        )


def _is_key(path: Path) -> bool:
    with path.open("rb") as source:
        start = source.read(KEY_SIZE + 1)
    if len(start) > KEY_SIZE:
        start = start[: 1 << 16]
    if PRIVATE_KEY.search(start):
        return True
    if b'"private_key"' not in start and b'"refresh_token"' not in start:
        return False
    try:
        value = json.loads(start)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("type") in ("service_account", "authorized_user")


def _warnings(entries: Sequence[Entry], size: int) -> tuple[Diagnostic, ...]:
    if size <= LARGE_BYTES:
        return ()
    files = [entry for entry in entries if entry.kind == "file"]
    files.sort(key=lambda entry: entry.path.stat().st_size, reverse=True)
    lines = [f"    {entry.name}  {entry.path.stat().st_size / 1e6:.0f} MB" for entry in files[:3]]
    return (
        Diagnostic(
            "Bundle is large",
            f"{size / 1e6:.0f} MB are shipped; the largest files are\n" + "\n".join(lines),
            "Put data in the bucket, and leave it out with .tpuctlignore.",
        ),
    )


# The archive --------------------------------------------------------------------------------


class _Digesting:
    """A file to write to that knows the SHA-256 of what was written."""

    def __init__(self, target: IO[bytes]) -> None:
        self.target = target
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.target.write(data)

    def flush(self) -> None:
        self.target.flush()


def _archive(entries: Sequence[Entry], path: Path) -> str:
    with path.open("wb") as file:
        target = _Digesting(file)
        # No file name and no time in the gzip header: both would change the bytes.
        with (
            gzip.GzipFile("", "wb", 6, cast(Any, target), mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            for entry in entries:
                _add(tar, entry)
    return target.digest.hexdigest()


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mtime = STAMP
    if entry.kind == "folder":
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    elif entry.kind == "link":
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
        tar.addfile(info)
    else:
        with entry.path.open("rb") as source:
            status = os.fstat(source.fileno())
            info.size = status.st_size
            info.mode = 0o755 if status.st_mode & 0o100 else 0o644
            try:
                tar.addfile(info, source)
            except OSError as error:
                raise Conflict(
                    "File changed while it was bundled", entry.name, hint="Run the command again."
                ) from error
