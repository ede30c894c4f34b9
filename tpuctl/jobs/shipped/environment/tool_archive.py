"""The archive of a tool: what it contains, and how it is unpacked.

Used by `tools.py`, this file is sent to workers as it is: standard library only, Python 3.8 and
later.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import tarfile
import zlib

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.environment.run_once import Failure
else:
    from run_once import Failure

PYTHON, UV = "python/bin/python3", "uv"  # the programs, below the folder of their tool


class Tool:
    """A tool as the spec names it, and its program's path in the archive."""

    def __init__(self, title: str, record: dict[str, Any], program: str) -> None:
        self.title = title
        self.record = record
        self.program = program
        self.key: str = record["key"]
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+_-]*", self.key):
            raise Failure(f"{self.key!r} is not the key of a tool")

    def __str__(self) -> str:
        return self.title

    @property
    def sha256(self) -> str | None:
        """The checksum of its archive; None if no computer has stored it."""
        return self.record.get("sha256")

    @property
    def is_exact(self) -> bool:
        """Whether only an archive with this checksum will do, as each machine that downloads the
        build gets the same; machines pack uv themselves."""
        return self.sha256 is not None and self.program == PYTHON


def extract(path: str, home: str, tool: Tool) -> None:
    """Fill the folder `home` with an archive's files, and nothing outside. Raises ValueError if it
    is not that of the tool, and Failure if the disk is full."""
    shutil.rmtree(home, ignore_errors=True)
    try:
        os.makedirs(home)
        with tarfile.open(path, "r:gz") as archive:
            archive.extraction_filter = lambda member, _: member  # `is_inside` does it
            for member in archive:
                if not is_inside(member):
                    raise ValueError(f"{member.name!r} is not a file of {tool}")
                member.mode |= 0o700 if member.isdir() else 0o600
                member.uid, member.gid, member.uname, member.gname = (
                    os.getuid(),
                    os.getgid(),
                    "",
                    "",
                )
                archive.extract(member, home)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"the archive of {tool} is damaged: {error}") from error
    except OSError as error:
        raise cannot_unpack(tool, error) from error
    if not os.access(os.path.join(home, tool.program), os.X_OK):
        raise ValueError(f"the archive of {tool} has no {tool.program}")


def cannot_unpack(tool: Tool, error: OSError) -> Failure:
    return Failure(f"{tool} cannot be unpacked: {error.strerror or error}")


def is_inside(member: tarfile.TarInfo) -> bool:
    """Whether a member and its target, if it is a link, are below the folder of the archive."""
    paths = [member.name]
    if member.issym():
        paths.append(os.path.join(os.path.dirname(member.name), member.linkname))
    elif member.islnk():
        paths.append(member.linkname)
    elif not (member.isfile() or member.isdir()):
        return False
    return not any(
        os.path.isabs(path) or os.path.normpath(path).split(os.sep)[0] == os.pardir
        for path in paths
    )
