"""The decisions of a resource about observed state: one file of `tests/cases` for each case.

A case has the observed state (`observed`, omitted if nothing exists), additions to the minimal
stack file (`stack`), the name of the resource if there are several of its kind (`name`), and the
decisions of `up` and `down`: an action with its fields and a part of its reason, or the error
that rejects it and a name in its text.

A case may be `like` another one of its kind, `without` some of its keys, and with other values;
numbers are places in lists. Its decisions replace those of the other case as a whole.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.cloud.iam_admin_v1.types import Role, ServiceAccount
from google.cloud.storage import Bucket
from google.cloud.tpu_v1.types import Node as RemoteNode
from google.cloud.tpu_v2.types import Node, QueuedResource

from tests.support.stacks import stack_from
from tpuctl import errors
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.flows.stack.permissions import required_permissions
from tpuctl.google_imports import compute_types
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack.stack import load_stack
from tpuctl.resources.access.key_use import KeyState
from tpuctl.resources.access.policy_grants import Grants
from tpuctl.resources.access.secret_grants import ABSENT
from tpuctl.resources.base import StackResource
from tpuctl.resources.composition import KINDS, kind_of, resources_of
from tpuctl.resources.network.nat import NatState
from tpuctl.resources.network.network import Networks, RuleState
from tpuctl.resources.project.project import ProjectState
from tpuctl.resources.tpu.queued_resource import Request
from tpuctl.resources.tpu.tpu_group import Group
from tpuctl.resources.tpu.tpu_group_parts import Part

CASES = Path(__file__).resolve().parents[1] / "cases"
# Next to them are the cases of rules and of the local cloud's storage, which other tests use.
FOLDERS = [
    folder
    for folder in sorted(CASES.iterdir())
    if folder.name not in ("check", "jobset", "storage")
]
UNASKED = ("project:",)  # of a project that does not exist, no permission can be asked
IN_EVERY_STACK = {
    *("project", "apis", "project-grants", "account", "bucket", "grants"),
    *("network", "firewall", "node"),
}
MINIMAL_STACK = """
stack: bert
project: {PROJECT}
access: {{user: someone}}
tpu: {{zones: [europe-west4-a], {KIND}{TPU}}}
limits: {LIMITS}
job: {{retries: {RETRIES}, secrets: {SECRETS}}}
"""
TPUS = {
    "vm": "type: v3-8, runtime: tpu-vm-tf-2.18.0-pjrt-v5p-and-below",
    "node": "type: v3-8, kind: node, runtime: 2.12.0",
    "compute": "type: v6e-4, api: compute",
    "slice": "type: v6e-16, api: compute",
}


def observed_bucket(facts: dict[str, Any]) -> Bucket:
    bucket = Bucket(None, "any")
    bucket._set_properties(facts)
    return bucket


def grants(facts: dict[str, Any]) -> Grants:
    pairs = {
        name: frozenset((role, member) for role, member in value)
        for name, value in facts.items()
        if name != "roles"
    }
    return Grants(frozenset(facts["roles"]), **pairs)


def request(facts: dict[str, Any]) -> Request:
    queued = QueuedResource(facts["queued"]) if "queued" in facts else None
    return Request(queued, {name: Node(node) for name, node in facts.get("nodes", {}).items()})


def firewall(facts: dict[str, Any]) -> Any:
    """A rule, with its networks if they matter."""
    if "networks" not in facts:
        return compute_types().Firewall(facts)
    networks = Networks(facts["networks"]["usable"], facts["networks"].get("own"))
    rule = compute_types().Firewall(facts["rule"]) if "rule" in facts else None
    return RuleState(networks, rule)


def part(facts: dict[str, Any], message: Any) -> Part:
    """What a group is created from: unused unless the case says so."""
    fields = {key: value for key, value in facts.items() if key != "is_used"}
    return Part(message(fields), facts.get("is_used", False))


def group(facts: dict[str, Any]) -> Group:
    """A group with its machines: `count` of the instance that `machine` describes."""
    types = compute_types()
    machines = [types.Instance(facts["machine"])] * facts.get("count", 4)
    managed = [types.ManagedInstance(facts.get("managed", {}))] * facts.get("size", 4)
    manager = {"description": "Created by tpuctl for stack bert", "target_size": 4}
    manager |= facts.get("manager", {})
    return Group(types.InstanceGroupManager(manager), tuple(managed), tuple(machines))


def nat(facts: dict[str, Any]) -> NatState:
    router = None
    if "description" in facts:
        router = compute_types().Router({"description": facts["description"]})
    return NatState(router, facts.get("serves", False), facts.get("other", ""))


# Responses of the official clients, created from a case's values.
OBSERVED = {
    "account": ServiceAccount,
    "account-grants": grants,
    "apis": frozenset,
    "bucket": observed_bucket,
    "budget": observed_bucket,
    "budget-grants": grants,
    "controller": lambda facts: compute_types().Instance(facts),
    "disk": lambda facts: compute_types().Disk(facts),
    "firewall": firewall,
    "grants": grants,
    "group": group,
    "instance": lambda facts: compute_types().Instance(facts),
    "key": lambda facts: KeyState(**facts),
    "nat": nat,
    "network": lambda facts: Networks(facts["usable"], facts.get("own")),
    "node": Node,
    "node-grants": grants,
    "private-access": lambda facts: compute_types().Subnetwork(facts),
    "project": lambda facts: ProjectState(**facts),
    "project-grants": grants,
    "queued": request,
    "role": Role,
    "secret": lambda facts: grants(facts) if facts else ABSENT,
    "template": lambda facts: part(facts, compute_types().InstanceTemplate),
    "tpu": RemoteNode,
    "workload-policy": lambda facts: part(facts, compute_types().ResourcePolicy),
}


def read_case(path: Path) -> dict[str, Any]:
    """The case, completed with what it has of another."""
    case = tomllib.loads(path.read_text("utf-8"))
    if "like" not in case:
        return case
    whole = read_case(path.with_name(f"{case.pop('like')}.toml"))
    for names in case.pop("without", []):
        *above, last = names.split(".")
        del functools.reduce(part_of, above, whole)[last]
    decisions = {key: case.pop(key) for key in ("up", "down") if key in case}
    merge(whole, case)
    return whole | decisions


def part_of(value: Any, key: str) -> Any:
    return value[int(key)] if isinstance(value, list) else value[key]


def merge(whole: Any, changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        is_part = isinstance(value, dict) and (isinstance(whole, list) or key in whole)
        if is_part and isinstance(part_of(whole, key), dict | list):
            merge(part_of(whole, key), value)
        else:
            whole[key] = value


def stack_file(case: dict[str, Any]) -> str:
    """The minimal stack file of a `kind`, without limits and retries.

    A case may have other `project`, `limits`, `retries` and `secrets`, more keys in `tpu`, and
    further sections.
    """
    tpu = f", {case['tpu']}" if "tpu" in case else ""
    project = case.get("project", "{id: my-project}")
    kind = TPUS[case.get("kind", "vm")]
    limits = case.get("limits", "{idle: null}")
    retries = case.get("retries", "{preemption: 0, infrastructure: 0, failure: 0, requested: 0}")
    text = MINIMAL_STACK.format(
        PROJECT=project,
        KIND=kind,
        TPU=tpu,
        LIMITS=limits,
        RETRIES=retries,
        SECRETS=case.get("secrets", "{}"),
    )
    return text + case.get("stack", "")


def resource(kind: str, case: dict[str, Any], folder: Path) -> StackResource:
    stack = stack_from(folder, stack_file(case))
    resources = resources_of(
        stack,
        Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project"),
        sources=("203.0.113.7/32",),
        public_key=lambda: "ssh-ed25519 AAAA",
        delete_bucket=case.get("delete_bucket", False),
    )
    applying = {each for each in KINDS if issubclass(each, StackResource) and each.applies(stack)}
    assert {kind_of(each.address) for each in resources} == applying, (
        "tpuctl/resources/composition.py: resources_of creates others than those that apply"
    )
    address = f"{kind}/{case.get('name', '')}"
    candidates = [each for each in resources if each.address.startswith(address)]
    assert candidates, (
        f"no {address} in the stack of tests/cases/{kind}: `applies` of its kind says no"
    )
    return candidates[0]


def check(change: Change, expected: dict[str, Any]) -> None:
    assert change.action.value == expected["action"]
    assert list(change.fields) == expected.get("fields", [])
    assert change.because
    assert expected.get("because", "") in change.because
    check_permissions(change)


def check_permissions(change: Change) -> None:
    """Otherwise `up` fails halfway for a caller whom it promised that nothing is missing."""
    kind, fields = kind_of(change.address), ",".join(change.fields)
    if change.action not in (Action.CREATE, Action.UPDATE) or fields == "readiness":
        return
    if f"{kind.kind}:{fields}" not in UNASKED:
        assert any(each.is_for(Plan((change,))) for each in required_permissions([kind])), (
            f"{kind.__name__}: `permissions` lack a line for {change.action.value}:{fields}"
        )


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=f"{path.parent.name}-{path.stem}")
        for folder in FOLDERS
        for path in folder.glob("*.toml")
    ],
)
def test_case(path: Path, tmp_path: Path) -> None:
    kind = path.parent.name
    case = read_case(path)
    observed = OBSERVED[kind](case["observed"]) if "observed" in case else None
    tested = resource(kind, case, tmp_path)
    if "error" in case["up"]:
        with pytest.raises(getattr(errors, case["up"]["error"])) as caught:
            tested.diff(observed)
        assert case["up"]["names"] in str(caught.value)
        assert caught.value.diagnostics[0].hint
    else:
        check(tested.diff(observed), case["up"])
    check(tested.removal(observed), case["down"])


def test_every_kind_of_resource_has_cases() -> None:
    kinds = {kind.kind for kind in KINDS if issubclass(kind, StackResource)}
    folders = {folder.name for folder in FOLDERS}
    assert sorted(kinds - folders) == [], "have no file in tests/cases/KIND"
    assert sorted(folders - kinds) == [], "are folders of tests/cases, but no kinds"
    assert sorted(kinds - OBSERVED.keys()) == [], "are not in OBSERVED of this file"


def test_kinds_of_every_stack_are_meant_to_be(tmp_path: Path) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_text(stack_file({}), "utf-8")
    stack = load_stack(path)
    surplus = {kind.kind for kind in KINDS if kind.applies(stack)} - IN_EVERY_STACK
    assert not surplus, f"{surplus}: define `applies`, or add them to IN_EVERY_STACK of this file"
