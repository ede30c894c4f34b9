"""The packages of the image, and how installers keep them.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later. It also runs as `python -I image_packages.py NAME` in the Python of the image or of an
environment, and describes that.

uv does not see packages outside of a virtual environment. For the time of an installation, each of
the image's has a stub in the environment: metadata that say that it is installed. uv removes the
stub of a package that it replaces.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import sysconfig

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Of PEP 440; uv reads no metadata with other versions, which Debian's packages have.
VERSION = re.compile(
    r"v?(\d+!)?\d+(\.\d+)*([._]?(a|b|c|rc|alpha|beta|pre|preview)[._]?\d*)?"
    r"([._]?(post|rev|r)[._]?\d*)?([._]?dev[._]?\d*)?(\+[a-z0-9]+([._][a-z0-9]+)*)?",
    re.IGNORECASE,
)
STUB_FILES = {"METADATA", "RECORD"}


def probe() -> dict[str, Any]:
    """Describe the image's Python and its packages; runs in that Python."""
    from importlib import metadata

    versions: dict[str, str] = {}
    provider = None
    for distribution in metadata.distributions():
        name = normalize(distribution.metadata["Name"] or "")
        versions.setdefault(name, distribution.version)
        top_level = distribution.read_text("top_level.txt") or ""
        if "tensorflow" in top_level.split() and (provider is None or name == "tensorflow"):
            provider = (name, distribution)
    tensorflow = None
    if provider is not None:
        name, distribution = provider
        pins = {f"tensorflow=={distribution.version}", f"{name}=={distribution.version}"}
        for requirement in distribution.requires or ():
            needed = normalize(re.split(r"[^\w.-]", requirement)[0])
            if needed in versions and "extra ==" not in requirement:
                pins.add(f"{needed}=={versions[needed]}")
        tensorflow = {"distribution": name, "version": distribution.version, "pins": sorted(pins)}
    return {
        "python": sys.version,
        "prefix": sys.prefix,
        "paths": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
        "tensorflow": tensorflow,
        "packages": sorted(f"{name}=={version}" for name, version in versions.items()),
        "platform": this_platform(),
    }


def this_platform() -> list[str]:
    return [platform.machine(), *platform.libc_ver()]


def absent(names: list[str]) -> list[str]:
    """Those of the packages that are not installed for this Python."""
    from importlib import metadata

    installed = {
        normalize(distribution.metadata["Name"] or "") for distribution in metadata.distributions()
    }
    return [name for name in names if normalize(name) not in installed]


def add_stubs(names: list[str]) -> list[str]:
    """Add stubs of these packages of the image, of all if none is named, to the environment whose
    Python this is; returns their folders."""
    from importlib import metadata

    purelib = sysconfig.get_path("purelib")
    stubs: list[str] = []
    seen: set[str] = set()
    for distribution in metadata.distributions():
        name = normalize(distribution.metadata["Name"] or "")
        version = distribution.version
        if not name or name in seen or (names and name not in names):
            continue
        seen.add(name)  # later ones are not imported
        stub = os.path.join(purelib, f"{name.replace('-', '_')}-{version}.dist-info")
        if not VERSION.fullmatch(version or "") or os.path.exists(stub):
            continue
        stubs.append(stub)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in distribution.requires or ()]
        extras = distribution.metadata.get_all("Provides-Extra") or ()
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        write_stub(stub, lines)
    return stubs


def write_stub(stub: str, lines: Iterable[str]) -> None:
    folder = os.path.basename(stub)
    os.makedirs(stub)
    with open(os.path.join(stub, "METADATA"), "w", encoding="utf-8") as metadata:
        metadata.write("".join(f"{line}\n" for line in lines))
    with open(os.path.join(stub, "RECORD"), "w", encoding="utf-8") as record:
        record.write(f"{folder}/METADATA,,\n{folder}/RECORD,,\n")


def remove_stubs(stubs: Iterable[str]) -> None:
    """Remove the stubs that are left: those of packages that were not replaced."""
    for stub in stubs:
        if os.path.isdir(stub) and STUB_FILES.issuperset(os.listdir(stub)):
            shutil.rmtree(stub)


def normalize(name: str) -> str:
    """Normalize a distribution's name for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> int:
    command, *names = arguments
    if command == "probe":
        print(json.dumps(probe()))
    elif command == "absent":
        print(*absent(names))
    elif command == "stubs":
        print(json.dumps(add_stubs(names)))
    elif command == "folder":
        print(sysconfig.get_path("purelib"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
