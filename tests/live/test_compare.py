"""Comparing what two runs recorded reports every difference, and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness.compare import Difference, compare, write_differences
from tests.live.harness.transcript import Redaction, Transcript

Record = dict[str, Any]
Change = Callable[[Record], None]
STATES = "ABSENT → CREATING → READY"


@pytest.fixture
def record() -> Record:
    return {
        "facts": {"cloud": "local", "health": "HEALTHY", "refusal of a node": "NotFound: none"},
        "outcomes": {"plan": "done", "up": "done", "up: node/STACK": "create, done"},
        "seconds": {"plan": 1.0, "up": 4.0, "up: node/STACK": 2.0},
        "states": {
            "up: the node": {
                "observed": [
                    {"state": "ABSENT", "seconds": 0.2},
                    {"state": "CREATING", "seconds": 2.0},
                    {"state": "READY", "seconds": 0.1},
                ],
                "longest_gap": 0.1,
            }
        },
    }


def google_record(record: Record, change: Change = lambda record: None) -> Record:
    other = copy.deepcopy(record)
    other["facts"]["cloud"] = "google"
    change(other)
    return other


def test_records_with_other_durations_and_ids_do_not_differ(record: Record) -> None:
    def change(other: Record) -> None:
        other["seconds"]["up"] = 400.0
        other["outcomes"]["plan"] = "NoCapacity: none [EID: 0x1a2b] at 2026-11-21T00:15:00.123Z"
        other["states"]["up: the node"]["observed"][1]["seconds"] = 299.0
        other["states"]["up: the node"]["longest_gap"] = 3.2

    record["outcomes"]["plan"] = "NoCapacity: none [EID: 0x99ff] at 2026-11-22T01:15:00.456Z"
    assert compare(google_record(record, change), record) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda record: record["facts"].update(health="UNHEALTHY"),
            ("health", "UNHEALTHY", "HEALTHY"),
        ),
        (
            lambda record: record["facts"].update({"refusal of a node": "Usage: wrong"}),
            ("refusal of a node", "Usage: wrong", "NotFound: none"),
        ),
        (
            lambda record: record["outcomes"].update(up="NoCapacity: none"),
            ("up", "NoCapacity: none", "done"),
        ),
        (lambda record: record["outcomes"].pop("up"), ("up", "(nothing)", "done")),
        (
            lambda record: record["outcomes"].update({"up: node/STACK": "update, done"}),
            ("up: node/STACK", "update, done", "create, done"),
        ),
        (
            lambda record: record["states"]["up: the node"]["observed"][1].update(state="STARTING"),
            ("up: the node", "ABSENT → STARTING → READY", STATES),
        ),
    ],
)
def test_each_difference_is_reported(
    record: Record, change: Change, expected: tuple[str, str, str]
) -> None:
    other = google_record(record, change)
    assert compare(other, record) == [Difference(*expected)]
    where, google, local = expected
    assert compare(record, other) == [Difference(where, local, google)]


def test_short_state_that_only_one_run_observed_may_be_chance(record: Record) -> None:
    def observe_rarely(other: Record) -> None:
        watched = other["states"]["up: the node"]
        watched["observed"] = [watched["observed"][0], watched["observed"][2]]
        watched["longest_gap"] = 3.0  # CREATING lasted two seconds

    [difference] = compare(google_record(record, observe_rarely), record)
    assert (difference.where, difference.may_be_chance) == ("up: the node", True)


def test_states_in_other_order_are_a_difference(record: Record) -> None:
    def reverse_states(other: Record) -> None:
        other["states"]["up: the node"]["observed"].reverse()
        other["states"]["up: the node"]["longest_gap"] = 60.0

    [difference] = compare(google_record(record, reverse_states), record)
    assert (difference.where, difference.may_be_chance) == ("up: the node", False)


def test_page_names_missing_run_until_both_exist(record: Record, tmp_path: Path) -> None:
    (tmp_path / "local.jsonl").touch()
    for name in ("local", "google"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record), "utf-8")
        page = write_differences(tmp_path).read_text("utf-8")
        assert "TPUCTL_LIVE_PROJECT=my-project make live" in page


def test_page_has_differences_of_responses_and_runs(record: Record, tmp_path: Path) -> None:
    def change(other: Record) -> None:
        other["seconds"]["up"] = 400.0
        other["facts"]["health"] = "UNHEALTHY"

    for name, run in (("local", record), ("google", google_record(record, change))):
        (tmp_path / f"{name}.json").write_text(json.dumps(run), "utf-8")
    (tmp_path / "local.jsonl").write_text('{"kind": "rpc"}\n', "utf-8")
    transcript = Transcript(tmp_path / "google.jsonl", Redaction({}))
    path = "projects/my-project/global/networks/mine"
    text = f"The resource '{path}' could not be found"
    error = {"code": 404, "message": text, "errors": [{"reason": "notFound"}]}
    transcript.write(
        verb="GET",
        path=f"/compute/v1/{path}",
        query="",
        host="compute.googleapis.com",
        type="",
        body="",
        status=404,
        answer_type="application/json",
        answer=json.dumps({"error": error}),
    )
    lines = write_differences(tmp_path).read_text("utf-8").splitlines()
    assert (
        f"| compute.networks.get | text | {text} | The resource '{path}' was not found |" in lines
    )
    assert "| compute.networks.get | called | (nothing) |" in lines
    assert "| health | UNHEALTHY | HEALTHY |" in lines
    assert "| up | 400.0 s | 4.0 s | 100.0 |" in lines
