"""What a resource decides about what was observed: one file of `tests/cases` for each case.

A case says what is there (`observed`, left out when nothing is), what the stack file adds to the
plainest one (`stack`), and what `up` and `down` decide: an action with its fields and a part of
its reason, or the error that refuses it and a name in its text.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.cloud.iam_admin_v1.types import ServiceAccount
from google.cloud.storage import Bucket
from google.cloud.tpu_v2.types import Node

from tpuctl import errors
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.slim import compute_types
from tpuctl.engine.resource import Resource
from tpuctl.flows.provision import resources_of
from tpuctl.model.plan import Change
from tpuctl.model.stack import load_stack
from tpuctl.resources.network import Networks

CASES = Path(__file__).resolve().parents[1] / "cases"
PLAINEST = (
    "stack: bert\nproject: {id: my-project}\naccess: {user: someone}\n"
    "tpu: {type: v3-8, runtime: tpu-vm-tf-2.18.0-pjrt-v5p-and-below, zones: [europe-west4-a]}\n"
)


def observed_bucket(facts: dict[str, Any]) -> Bucket:
    bucket = Bucket(None, "any")
    bucket._set_properties(facts)
    return bucket


# What the official clients answer with, made of a case's facts.
OBSERVED = {
    "account": ServiceAccount,
    "apis": frozenset,
    "bucket": observed_bucket,
    "firewall": lambda facts: compute_types().Firewall(facts),
    "grants": frozenset,
    "network": lambda facts: Networks(facts["usable"], facts.get("own")),
    "node": Node,
    "project": dict,
}


def resource(kind: str, case: dict[str, Any], folder: Path) -> Resource:
    path = folder / "tpuctl.yaml"
    path.write_text(PLAINEST + case.get("stack", ""), "utf-8")
    found = resources_of(
        load_stack(path),
        Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project"),
        sources=("203.0.113.7/32",),
        public_key=lambda: "ssh-ed25519 AAAA",
        delete_bucket=case.get("delete_bucket", False),
    )
    return next(one for one in found if one.address.startswith(f"{kind}/"))


def check(change: Change, expected: dict[str, Any]) -> None:
    assert change.action.value == expected["action"]
    assert list(change.fields) == expected.get("fields", [])
    assert change.because
    assert expected.get("because", "") in change.because


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in CASES.glob("*/*.toml")],
)
def test_case(path: Path, tmp_path: Path) -> None:
    kind = path.parent.name
    case = tomllib.loads(path.read_text("utf-8"))
    observed = OBSERVED[kind](case["observed"]) if "observed" in case else None
    one = resource(kind, case, tmp_path)
    if "error" in case["up"]:
        with pytest.raises(getattr(errors, case["up"]["error"])) as caught:
            one.diff(observed)
        assert case["up"]["names"] in str(caught.value)
        assert caught.value.diagnostics[0].hint
    else:
        check(one.diff(observed), case["up"])
    check(one.removal(observed), case["down"])


def test_every_kind_of_resource_has_cases(tmp_path: Path) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_text(PLAINEST, "utf-8")
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project")
    kinds = {one.address.partition("/")[0] for one in resources_of(load_stack(path), cloud)}
    assert kinds == set(OBSERVED) == {folder.name for folder in CASES.iterdir()}
