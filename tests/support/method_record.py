"""Which methods the tests call, for the documentation: `tests/recorded/methods.json`.

`client` are those that Google's own clients call, `description` those whose responses were
validated against Google's discovery documents. `make methods` writes the file, and a run of all
tests fails if it lists a method that no test calls.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.transcripts import Tally

__all__ = ["FILE", "uncalled", "write"]

FILE = Path(__file__).parents[1] / "recorded" / "methods.json"


def write(tally: Tally) -> None:
    record = {"client": sorted(tally.called_by_clients), "description": sorted(tally.described)}
    FILE.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def uncalled(tally: Tally) -> list[str]:
    """What the file claims of methods that no test called in this way."""
    record = json.loads(FILE.read_text("utf-8"))
    called = {"client": tally.called_by_clients, "description": tally.described}
    return [
        f"{name} ({kind})"
        for kind, names in record.items()
        for name in names
        if name not in called[kind]
    ]
