"""Comparing the records of two runs reports every difference, and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness.compare import Difference, compare, report, write_differences

Record = dict[str, Any]
Change = Callable[[Record], None]


@pytest.fixture
def record() -> Record:
    refusal = {"error": "NotFound", "code": "NOT_FOUND", "text": "not found"}
    return {
        "version": 1,
        "facts": {"cloud": "local", "health": "HEALTHY"},
        "steps": [
            {"name": "plan", "outcome": "done", "seconds": 1.0},
            {"name": "up", "outcome": "done", "seconds": 4.0},
        ],
        "substeps": {"up": {"node/STACK": {"action": "create", "outcome": "done", "seconds": 2.0}}},
        "answers": {
            "tpu_v2.get_node": {
                "fields": ["name", "networkEndpoints[].ipAddress", "schedulingConfig.spot"],
                "values": {"schedulingConfig.spot": ["true"], "apiVersion": ["V2"]},
            },
            "tpu_v2.list_nodes": {"fields": ["nodes[].name"], "values": {}},
        },
        "refusals": {"a node that is not there": refusal},
        "errors": {"tpu_v2.get_node": {"NotFound": refusal}},
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


def test_records_with_other_durations_do_not_differ(record: Record) -> None:
    def slow_down(other: Record) -> None:
        other["steps"][1]["seconds"] = 400.0
        other["substeps"]["up"]["node/STACK"]["seconds"] = 300.0
        other["states"]["up: the node"]["observed"][1]["seconds"] = 299.0
        other["states"]["up: the node"]["longest_gap"] = 3.2

    comparison = compare(record, google_record(record, slow_down))
    assert (comparison.differences, comparison.by_chance) == ((), ())
    assert ("up", 4.0, 400.0) in comparison.durations
    assert "| up | 4.0 s | 400.0 s | 100.0 |" in report(record, google_record(record, slow_down))


def set_value(path: str, value: Any) -> Change:
    """A change of the value at a path whose parts are separated by slashes."""
    *outer, last = path.split("/")

    def change(record: Record) -> None:
        target: Any = record
        for name in outer:
            target = target[int(name) if isinstance(target, list) else name]
        target[int(last) if isinstance(target, list) else last] = value

    return change


NODE = "answers/tpu_v2.get_node"
SEEN = "states/up: the node/observed"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_value("facts/health", "UNHEALTHY"), ("facts", "health", "HEALTHY", "UNHEALTHY")),
        (
            set_value(f"{NODE}/fields", ["name", "schedulingConfig.spot"]),
            (
                "fields of answers",
                "tpu_v2.get_node: networkEndpoints[].ipAddress",
                "there",
                "(nothing)",
            ),
        ),
        (
            set_value(f"{NODE}/values/schedulingConfig.spot", ["false"]),
            ("values in answers", "tpu_v2.get_node: schedulingConfig.spot", "true", "false"),
        ),
        (
            set_value("refusals/a node that is not there/text", "no such node"),
            ("refusals", "a node that is not there: text", "not found", "no such node"),
        ),
        (
            set_value("steps/1/outcome", "NoCapacity: none"),
            ("steps", "up", "done", "NoCapacity: none"),
        ),
        (
            set_value("steps", [{"name": "plan", "outcome": "done", "seconds": 1.0}]),
            ("steps", "their order", "plan, up", "plan"),
        ),
        (
            lambda record: record["substeps"]["up"]["node/STACK"].update(action="update"),
            ("substeps", "up: node/STACK", "create, done", "update, done"),
        ),
        (
            set_value(f"{SEEN}/1/state", "STARTING"),
            (
                "states",
                "up: the node",
                "ABSENT → CREATING → READY",
                "ABSENT → STARTING → READY",
            ),
        ),
    ],
)
def test_each_difference_is_reported(
    record: Record, change: Change, expected: tuple[str, str, str, str]
) -> None:
    other = google_record(record, change)
    comparison = compare(record, other)
    assert comparison.differences == (Difference(*expected),)
    for part in expected[1:]:
        assert part in report(record, other)
    assert compare(other, record).differences == (
        Difference(expected[0], expected[1], expected[3], expected[2]),
    )


def test_short_state_that_only_one_run_observed_may_be_chance(record: Record) -> None:
    def observe_rarely(other: Record) -> None:
        watched = other["states"]["up: the node"]
        watched["observed"] = [watched["observed"][0], watched["observed"][2]]
        watched["longest_gap"] = 3.0  # CREATING lasted two seconds

    comparison = compare(record, google_record(record, observe_rarely))
    assert comparison.differences == ()
    assert [difference.topic for difference in comparison.by_chance] == ["states"]


def test_states_in_other_order_are_a_difference(record: Record) -> None:
    def reverse_states(other: Record) -> None:
        other["states"]["up: the node"]["observed"].reverse()
        other["states"]["up: the node"]["longest_gap"] = 60.0

    assert [
        difference.topic
        for difference in compare(record, google_record(record, reverse_states)).differences
    ] == ["states"]


def test_calls_and_errors_of_only_one_run_may_be_chance(record: Record) -> None:
    def drop_calls(other: Record) -> None:
        del other["answers"]["tpu_v2.list_nodes"]
        del other["errors"]["tpu_v2.get_node"]

    comparison = compare(record, google_record(record, drop_calls))
    assert comparison.differences == ()
    assert [difference.where for difference in comparison.by_chance] == [
        "tpu_v2.list_nodes",
        "tpu_v2.get_node: NotFound",
    ]


def test_field_of_one_phase_may_be_chance(record: Record) -> None:
    field = "metadata.statusDetail"
    other = google_record(record, set_value(f"{NODE}/fields", [*_fields_of_node(record), field]))
    comparison = compare(record, other)
    assert comparison.differences == ()
    assert [difference.where for difference in comparison.by_chance] == [
        f"tpu_v2.get_node: {field}"
    ]


def _fields_of_node(record: Record) -> list[str]:
    return list(record["answers"]["tpu_v2.get_node"]["fields"])


def test_page_names_missing_run_until_both_exist(record: Record, tmp_path: Path) -> None:
    (tmp_path / "local.json").write_text(json.dumps(record), "utf-8")
    assert "TPUCTL_LIVE_PROJECT=my-project make live" in write_differences(tmp_path).read_text(
        "utf-8"
    )
    (tmp_path / "google.json").write_text(json.dumps(google_record(record)), "utf-8")
    page = write_differences(tmp_path).read_text("utf-8")
    assert page.startswith("# What differed between local and google\n\nNothing.\n")
