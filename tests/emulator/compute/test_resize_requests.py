"""Resize requests: instances of a group that are created together, or wait together."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, ZONE

GROUP = {"project": PROJECT, "zone": ZONE, "instance_group_manager": "bert"}
WHICH = {**GROUP, "resize_request": "more"}
DURATION = {"requested_run_duration": {"seconds": 3600}}


def insert(engine: Any, **fields: Any) -> Any:
    resource = {"name": "more", "resize_by": 2, **DURATION, **fields}
    request = {**GROUP, "instance_group_manager_resize_request_resource": resource}
    return engine.instance_group_manager_resize_requests.insert_unary(request, timeout=60)


def get(engine: Any) -> Any:
    return engine.instance_group_manager_resize_requests.get(WHICH, timeout=60)


def wait_request(engine: Any, condition: Any) -> Any:
    deadline = time.monotonic() + 30
    while not condition(request := get(engine)):
        assert time.monotonic() < deadline, request
        time.sleep(0.02)
    return request


def create_group(engine: Any) -> None:
    engine.create_template()
    engine.wait_ok(engine.insert_group(size=0))


def test_request_creates_instances_with_run_duration(engine: Any) -> None:
    create_group(engine)
    engine.wait_ok(insert(engine))
    wait_request(engine, lambda request: request.state == "SUCCEEDED")
    group = engine.wait_stable()
    assert group.target_size == 2
    for name in engine.instance_names():
        scheduling = engine.get(name).scheduling
        assert scheduling.max_run_duration.seconds == 3600
        assert scheduling.instance_termination_action == "DELETE"
    (listed,) = engine.instance_group_manager_resize_requests.list(GROUP)
    assert listed.name == "more"
    engine.wait_ok(engine.instance_group_manager_resize_requests.delete_unary(WHICH))
    assert len(engine.instance_names()) == 2  # "does not delete instances"


def test_request_waits_for_all_of_its_instances(engine: Any) -> None:
    def set_quota(limit: int) -> None:
        quota = {"INSTANCES": {"europe-west4": limit}}
        answer = engine.cloud.request("PATCH", "/_local/settings", json={"quota": quota})
        assert answer.status_code == 200, answer.text

    set_quota(1)
    create_group(engine)
    engine.wait_ok(insert(engine))
    request = wait_request(engine, lambda request: request.status.last_attempt.error.errors)
    assert request.state == "ACCEPTED"
    assert request.status.last_attempt.error.errors[0].code == "QUOTA_EXCEEDED"
    assert engine.instance_names() == []
    code, _ = engine.wait_error(engine.instance_group_manager_resize_requests.delete_unary(WHICH))
    assert code == "CONDITION_NOT_MET"
    set_quota(2)
    wait_request(engine, lambda request: request.state == "SUCCEEDED")


def test_canceled_request_leaves_nothing(engine: Any) -> None:
    engine.cloud.put_setting("quota", {"INSTANCES": {"europe-west4": 1}})

    create_group(engine)
    engine.wait_ok(insert(engine))
    assert engine.group().target_size == 2
    cancel = engine.instance_group_manager_resize_requests.cancel_unary
    engine.wait_ok(cancel(WHICH))
    assert get(engine).state == "CANCELLED"
    group = engine.wait_stable()
    assert (group.target_size, engine.managed_instances()) == (0, [])
    code, text = engine.wait_error(cancel(WHICH))
    assert (code, "final state" in text) == ("CONDITION_NOT_MET", True)
    engine.wait_ok(engine.instance_group_managers.delete_unary(GROUP))
    with pytest.raises(exceptions.NotFound):
        get(engine)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"requested_run_duration": {"seconds": 60}}, "between 600 and 604800"),
        ({"requested_run_duration": None}, "Must be specified"),
        ({"resize_by": 0}, "Must be positive"),
    ],
)
def test_invalid_requests_are_rejected(engine: Any, fields: Any, complaint: str) -> None:
    create_group(engine)
    with pytest.raises(exceptions.BadRequest, match=complaint):
        insert(engine, **fields)


def test_groups_of_tpus_have_no_resize_requests(engine: Any) -> None:
    engine.create_tpu_template()
    engine.wait_ok(engine.insert_group(size=0))
    with pytest.raises(exceptions.BadRequest, match="with TPU is not allowed"):
        insert(engine)
