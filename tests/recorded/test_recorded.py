"""The local cloud answers as Google did: every table of facts, replayed over the wire.

A table is the responses of one recording, in their order. Its `source` names the recording: the
repository, path and commit, or the page that quotes it.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.conftest import MakeCloud, make_cloud, server_loop
from tpuctl.emulator.replay.recordings import read_recording
from tpuctl.emulator.replay.replayer import ReplayedCall, Replayer

__all__ = ["make_cloud", "server_loop"]

FOLDER = Path(__file__).parent
TABLES = sorted(FOLDER.rglob("*.toml"))
LEAST_FACTS = 400
APIS = (
    *("tpu", "compute", "storage", "cloudresourcemanager", "iam", "serviceusage"),
    *("cloudbilling", "secretmanager", "orgpolicy"),
)


def name_of(table: Path) -> str:
    return str(table.relative_to(FOLDER).with_suffix(""))


@pytest.mark.malformed  # some clients repeat in the body what is in the path
@pytest.mark.parametrize("table", TABLES, ids=name_of)
async def test_local_cloud_answers_as_recorded(table: Path, make_cloud: MakeCloud) -> None:
    cloud = await make_cloud()
    replayer = Replayer(cloud.url, cloud.token)

    def replay() -> list[ReplayedCall]:
        return list(replayer.replay(read_recording(table)))

    calls = await asyncio.to_thread(replay)
    replayer.close()
    differences = [
        f"{call.call.where}: {difference.kind} {difference.path}\n"
        f"    Google: {difference.recorded}\n    local cloud: {difference.local}"
        for call in calls
        for difference in call.differences
    ]
    assert not differences, "\n".join(differences)
    assert [f"{call.call.where}: {call.skipped}" for call in calls if call.skipped] == []


def test_tables_state_enough_facts_of_every_api() -> None:
    rows = [row for table in TABLES for row in tomllib.loads(table.read_text("utf-8"))["call"]]
    hosts = Counter(row["request"].split("/")[2].partition(".")[0] for row in rows)
    assert {api for api in APIS if not hosts[api]} == set()
    assert len(rows) >= LEAST_FACTS


@pytest.mark.parametrize("table", TABLES, ids=name_of)
def test_every_fact_has_a_source_and_states_something(table: Path) -> None:
    document = tomllib.loads(table.read_text("utf-8"))
    rows: list[dict[str, Any]] = document["call"]
    situations = [row["situation"] for row in rows]
    assert len(situations) == len(set(situations))
    for row in rows:
        assert row.get("source") or document.get("source"), row["situation"]
        is_error = row["status"] >= 400
        has_content = row.keys() & {"fields", "constants", "reason", "text", "absent"}
        is_empty = row["status"] in (204, 304, 308) or row["request"].startswith("DELETE")
        assert has_content or is_empty or is_error, row["situation"]
