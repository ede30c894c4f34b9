"""Which differences between a recorded and a local response are reported."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tpuctl.emulator.replay.comparison import (
    Response,
    compare,
    matching_items,
    parse_response,
    response_of_facts,
)
from tpuctl.emulator.replay.identifiers import Identifiers


def response(status: int = 200, /, *, is_complete: bool = True, **content: Any) -> Response:
    headers = {"content-type": "application/json"}
    return parse_response(status, headers, json.dumps(content).encode(), is_complete=is_complete)


def error(code: int, message: str, **more: Any) -> Response:
    return response(code, error={"code": code, "message": message, **more})


NOT_FOUND = error(404, "The resource 'a' was not found", status="NOT_FOUND")


@pytest.mark.parametrize(
    ("recorded", "local", "kind", "path"),
    [
        (response(), error(404, "no"), "status", ""),
        (NOT_FOUND, error(404, "The resource 'b' was not found", status="NOT_FOUND"), "text", ""),
        (NOT_FOUND, error(404, "The resource 'a' was not found"), "reason", ""),
        (response(kind="k#n", mtu=1460), response(kind="k#n"), "field", "mtu"),
        (response(kind="k#n"), response(kind="k#n", mtu=1460), "field", "mtu"),
        (response(mode="REGIONAL"), response(mode="GLOBAL"), "constant", "mode"),
        (response(auto=True), response(auto=False), "constant", "auto"),
        (response(config={"on": True}), response(config={"on": False}), "constant", "config.on"),
        (response(tags=["a", "b"]), response(tags=["a"]), "constant", "tags[]"),
        (response(boot={}), response(), "field", "boot"),
        (
            response(scopes=["https://x/auth/a", "https://x/auth/b"]),
            response(scopes=["https://x/auth/a"]),
            *("constant", "scopes[]"),
        ),
    ],
)
def test_difference_is_reported(recorded: Response, local: Response, kind: str, path: str) -> None:
    reported = {(difference.kind, difference.path) for difference in compare(recorded, local)}
    assert (kind, path) in reported


@pytest.mark.parametrize(
    ("recorded", "local"),
    [
        (response(id="123", etag="a"), response(id="456", etag="b")),
        (
            response(creationTimestamp="2024-04-24T18:53:58.020-07:00"),
            response(creationTimestamp="2026-01-01T00:00:00.000-08:00"),
        ),
        (response(natIP="34.1.2.3"), response(natIP="127.0.0.1")),
        (response(is_complete=False, a=1), response(a=1, b=2)),
        (response(boot={}), response(boot={"disk": 1}, is_complete=False)),
        (
            response(kind="compute#operation", status="RUNNING", progress=0),
            response(kind="compute#operation", status="DONE", progress=100, endTime="t"),
        ),
        (
            response(name="operations/1", metadata={"statusDetail": "Creating."}),
            response(name="operations/1", metadata={}),
        ),
        (response(metadata={}), response(metadata={"tpuctl-ssh-port": "20022"})),
        (
            error(429, "Quota exceeded. [EID: 0x1a2b]"),
            error(429, "Quota exceeded. [EID: 0x99ff00]"),
        ),
    ],
)
def test_what_every_run_has_differently_is_not_reported(
    recorded: Response, local: Response
) -> None:
    assert [d for d in compare(recorded, local) if d.path != "boot.disk"] == []


def test_grpc_response_lacks_only_fields_with_default_values() -> None:
    recorded = replace(response(a=1), omits_defaults=True)
    defaults = {"b": False, "c": "", "d": [], "e": "0", "f": "STATE_UNSPECIFIED"}
    assert compare(recorded, response(a=1, **defaults)) == []
    [difference] = compare(recorded, response(a=1, b=False, id="7"))
    assert (difference.kind, difference.path) == ("field", "id")


def test_errors_are_compared_by_what_they_have() -> None:
    masked = parse_response(404, {}, b"fake error message", is_masked=True)
    assert compare(masked, NOT_FOUND) == []
    assert [d.kind for d in compare(masked, error(403, "no"))] == ["status"]

    def xml(code: str, more: str = "") -> Response:
        body = f"<Error><Code>{code}</Code><Message>m</Message>{more}</Error>"
        return parse_response(404, {"content-type": "application/xml"}, body.encode())

    assert compare(xml("NoSuchKey"), xml("NoSuchKey")) == []
    differences = compare(xml("NoSuchKey", "<Details>d</Details>"), xml("NoSuchBucket"))
    assert {(d.kind, d.path) for d in differences} == {("reason", ""), ("field", "xml:Details")}


def test_facts_state_presence_absence_and_values() -> None:
    row = {
        "status": 200,
        "fields": ["id"],
        "absent": ["health"],
        "constants": {"state": "OK", "tags[]": ["a"]},
    }
    facts = response_of_facts(row)
    assert compare(facts, response(id="1", state="OK", tags=["a", "b"], more=1)) == []
    differences = compare(facts, response(state="BAD", tags=["b"], health="GOOD"))
    assert {(d.kind, d.path) for d in differences} == {
        ("field", "id"),
        ("field", "health"),
        ("constant", "state"),
        ("constant", "tags[]"),
    }


def test_only_items_of_both_lists_are_compared() -> None:
    recorded = {"items": [{"name": "a", "x": 1}, {"name": "other"}], "nextPageToken": "t"}
    local = {"items": [{"name": "default"}, {"name": "a", "x": 1}]}
    first, other = matching_items(recorded, local)
    assert first == other == {"items": [{"name": "a", "x": 1}]}


def test_identifiers_are_learned_from_responses_and_translated_both_ways() -> None:
    identifiers = Identifiers()
    assert identifiers.to_local("networks/${networkID}") == "networks/network0"
    identifiers.learn(
        {"name": "operation-17-a", "targetId": "1234567"},
        {"name": "operation-99-b", "targetId": "7654321"},
    )
    identifiers.learn({"etag": "CAE=abcdef01"}, {"etag": "CAQ=fedcba98"})
    assert (
        identifiers.to_local("operations/operation-17-a/wait") == "operations/operation-99-b/wait"
    )
    assert identifiers.value_to_local("etag", "CAE=abcdef01") == "CAQ=fedcba98"
    assert identifiers.to_recorded("x/network0/operation-99-b") == "x/${networkID}/operation-17-a"


def test_request_about_an_unanswered_call_is_lost() -> None:
    identifiers = Identifiers()
    identifiers.lose({"name": "operation-1-a"})
    assert identifiers.is_lost("/global/operations/operation-1-a")
    identifiers.learn({"name": "operation-1-a"}, {"name": "operation-2-b"})
    assert not identifiers.is_lost("/global/operations/operation-1-a")
