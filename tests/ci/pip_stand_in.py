"""Replaces pip: records what should be installed, and rejects missing hashes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def main(log: str, arguments: list[str]) -> None:
    if arguments[0] != "install":
        raise SystemExit(f"not emulated: pip {' '.join(arguments)}")
    if "--require-hashes" in arguments:
        file = Path(arguments[arguments.index("-r") + 1])
        text = file.read_text("utf-8").replace("\\\n", " ")
        required = [
            line for line in text.splitlines() if line and not line.lstrip().startswith("#")
        ]
        unhashed = [line for line in required if not HASH.search(line)]
        if unhashed or not required:
            raise SystemExit(f"without a hash: {unhashed}")
        names = [line.split()[0] for line in required]
    else:
        names = [argument for argument in arguments[1:] if not argument.startswith("-")]
        if "--no-deps" not in arguments:
            raise SystemExit("dependencies would be installed without hashes")
    with Path(log).open("a", encoding="utf-8") as file:
        file.write("\n".join(names) + "\n")


main(sys.argv[1], sys.argv[2:])
