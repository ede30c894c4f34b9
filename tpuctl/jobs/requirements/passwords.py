"""Passwords in the addresses of packages and indexes, which must not reach the bucket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpuctl.errors import Refused

ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<user>[^/\s@:\"'\\]*)(?::(?P<password>[^/\s@\"']*))?@"
    r"(?P<rest>[^\s\"'#?]*)",
    re.IGNORECASE,
)
# Variables, which pip, uv and Hatch replace: `${TOKEN}` and `{env:TOKEN}`.
VARIABLE = re.compile(r"\$\{?\w+|\{env:\w+")
TOKEN = re.compile(r"(gh[opsu]_|github_pat_|glpat-|pypi-|hf_)\w|[\w-]{40,}$")
HEADER = re.compile(r"\s*#?\s*\[\[?([^\]]+)\]\]?\s*$")
NAME = re.compile(r"\s*#?\s*name\s*=\s*[\"']([^\"']+)[\"']")


def refuse_passwords(file: Path, lines: Iterable[tuple[int, str]] | None = None) -> None:
    """Raise Refused for the first address with a password in a file, or in the lines of it that
    matter. Comments and variables count as none."""
    for number, table, index, match in _passwords(lines or _uncommented(file)):
        rest = re.sub(r"[\x00-\x1f\x7f]", "", match["rest"])
        where = f"{table}: " if table else ""
        variable = re.sub(r"\W", "_", index or "NAME").upper()
        raise Refused(
            "Password in the address of a package",
            f"{where}the address {match['scheme']}://{rest} has a password, which the upload would "
            "store in the bucket",
            where=f"{file}:{number}",
            hint="Remove it from the file, and set it as a secret of the job, by the name of the "
            "index:\n"
            f"    job: {{env: {{UV_INDEX_{variable}_USERNAME: USER}}, "
            f"secrets: {{UV_INDEX_{variable}_PASSWORD: SECRET}}}}",
        )


def _passwords(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str, re.Match[str]]]:
    """Line, table, name of the index, and address."""
    table = index = ""
    listed = list(lines)
    for place, (number, text) in enumerate(listed):
        header = HEADER.match(text)
        if header is not None:
            table, index = header[1].strip(), _index_name(listed[place + 1 :])
        for match in ADDRESS.finditer(text):
            secret = match["password"] or (match["user"] if TOKEN.match(match["user"]) else "")
            if secret and VARIABLE.search(secret) is None:
                yield number, table, index, match


def _index_name(lines: Iterable[tuple[int, str]]) -> str:
    """The name in a table of an index, whose lines these are."""
    for _, text in lines:
        if HEADER.match(text):
            break
        if match := NAME.match(text):
            return match[1]
    return ""


def _uncommented(file: Path) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(file.read_text("utf-8", "replace").split("\n"), 1):
        if not text.lstrip().startswith("#"):
            yield number, text
