"""Organization policies in the way of a stack, as they are in force for its project.

Read by Organization Policy v2, policies.getEffectivePolicy. What each constraint forbids is from
cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints; groups of
locations, from …/organization-policy/defining-locations.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.catalog import region_of, zones
from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied
from tpuctl.model.diagnosis import DENIED, CheckState, Finding
from tpuctl.model.stack import Stack

__all__ = ["policies_finding"]

CHECK = "org policies"
GROUP = re.compile(r"in:([a-z0-9-]+)-locations")
ADMIN = "Somebody who keeps the organization's policies may except the project:\n"


@dataclass(frozen=True)
class Verdict:
    """What a policy in force means for the stack."""

    detail: str
    hint: str
    is_problem: bool = True


Rules = Sequence[Mapping[str, Any]]
Evaluate = Callable[[Stack, Rules], Verdict | None]


async def policies_finding(stack: Stack, cloud: Cloud, member: str) -> Finding:
    """All of them at once. A project outside any organization has none."""
    project = await cloud.call(
        "the project",
        cloud.client("projects").get_project,
        {"name": f"projects/{stack.project}"},
    )
    if not project.parent:
        return Finding(
            CHECK, CheckState.OK, "the project is in no organization, which could have any"
        )
    try:
        answers = await asyncio.gather(*(_rules(stack, cloud, name) for name in POLICIES))
    except ApiDisabled:
        return Finding(
            CHECK,
            CheckState.UNASKED,
            "their API is off in the project",
            "To have them asked, enable it with\n"
            f"    gcloud services enable orgpolicy.googleapis.com --project={stack.project}",
        )
    except Denied:
        return Finding(
            CHECK,
            CheckState.UNASKED,
            "you may not see them",
            "To have them asked, somebody who may grants you\n"
            f"    gcloud projects add-iam-policy-binding {stack.project} --member={member} "
            "--role=roles/orgpolicy.policyViewer",
        )
    verdicts = [
        (name, verdict)
        for (name, evaluate), rules in zip(POLICIES.items(), answers, strict=True)
        if (verdict := evaluate(stack, rules)) is not None
    ]
    if not verdicts:
        return Finding(CHECK, CheckState.OK, f"none of {len(POLICIES)} is in the way")
    verdicts.sort(key=lambda pair: not pair[1].is_problem)
    is_problem = verdicts[0][1].is_problem
    return Finding(
        CHECK,
        CheckState.PROBLEM if is_problem else CheckState.WARNING,
        "; ".join(f"{name}: {verdict.detail}" for name, verdict in verdicts),
        "\n".join(
            f"{verdict.hint}\n{ADMIN}    gcloud org-policies reset {name} --project={stack.project}"
            for name, verdict in verdicts
        ),
        exit_code=DENIED if is_problem else 0,
    )


async def _rules(stack: Stack, cloud: Cloud, constraint: str) -> Rules:
    path = f"/v2/projects/{stack.project}/policies/{constraint}:getEffectivePolicy"
    rest = cloud.client("rest")
    answer = await cloud.call("organization policies", rest.call, "GET", "orgpolicy", path)
    rules: Rules = answer.get("spec", {}).get("rules", ())
    return rules


def _is_enforced(rules: Rules) -> bool:
    return any(rule.get("enforce") for rule in rules)


def _limited(rules: Rules) -> bool:
    """Whether a list leaves out anything at all."""
    return any(rule.get("denyAll") or rule.get("values") for rule in rules)


def _external(stack: Stack, rules: Rules) -> Verdict | None:
    if stack.file.network.ssh != "external" or not _limited(rules):
        return None
    return Verdict(
        "machines may have no external addresses",
        "Do without them, and reach the machines through Identity-Aware Proxy:\n"
        "    network: {ssh: iap}",
    )


def _locations(stack: Stack, rules: Rules) -> Verdict | None:
    closed = [zone for zone in stack.zones if not _is_allowed(zone, rules)]
    bucket = [] if _is_allowed(stack.bucket_location, rules) else [stack.bucket_location]
    if not closed and not bucket:
        return None
    detail = "nothing may be made in " + ", ".join(dict.fromkeys([*closed, *bucket]))
    allowed = sorted(zone for zone in stack.accelerator.zones if _is_allowed(zone, rules))
    hint = f"{stack.accelerator.name} may be had in\n    tpu: {{zones: [{', '.join(allowed[:3])}]}}"
    if not allowed:
        hint = f"No zone that has {stack.accelerator.name} is allowed."
    is_problem = len(closed) == len(stack.zones) or bool(bucket)
    return Verdict(detail, hint, is_problem)


def _is_allowed(location: str, rules: Rules) -> bool:
    """Whether policies let things be in a zone, region or larger place."""
    if any(rule.get("denyAll") for rule in rules):
        return False
    values = [rule["values"] for rule in rules if "values" in rule]
    denied = [value for each in values for value in each.get("deniedValues", ())]
    allowed = [value for each in values for value in each.get("allowedValues", ())]
    return not _matches(location, denied) and (not allowed or _matches(location, allowed))


def _matches(location: str, entries: Iterable[str]) -> bool:
    names = {location, region_of(location)} if location in zones() else {location}
    for entry in entries:
        group = GROUP.fullmatch(entry)
        if group is None:
            if entry.removeprefix("is:") == location:
                return True
        else:
            part = "europe" if group[1] == "eu" else group[1]
            if any(name in (part, group[1]) or name.startswith(f"{part}-") for name in names):
                return True
    return False


def _accounts(stack: Stack, rules: Rules) -> Verdict | None:
    if not stack.creates_service_account or not _is_enforced(rules):
        return None
    return Verdict(
        "no service account can be made in the project",
        "Name one that is there already, for the machines to act as:\n"
        f"    tpu: {{service_account: NAME@{stack.project}.iam.gserviceaccount.com}}",
    )


def _members(stack: Stack, rules: Rules) -> Verdict | None:
    if not stack.is_node or not _limited(rules):
        return None
    return Verdict(
        "the TPU node's service agent, which is Google's, may be refused the bucket",
        "A TPU VM acts as an account of the project's own:\n    tpu: {kind: vm}",
        is_problem=False,
    )


def _os_login(stack: Stack, rules: Rules) -> Verdict | None:
    if not _is_enforced(rules):
        return None
    return Verdict(
        "machines look at OS Login alone, not at the SSH key that tpuctl gives them",
        "tpuctl cannot log in then.",
    )


def _shielded(stack: Stack, rules: Rules) -> Verdict | None:
    if stack.controller is None or not _is_enforced(rules):
        return None
    return Verdict(
        "the controller would need Secure Boot, which tpuctl does not ask for",
        "A TPU VM needs no controller." if stack.is_node else "Leave `controller` out.",
    )


POLICIES: Mapping[str, Evaluate] = {
    "compute.vmExternalIpAccess": _external,
    "compute.requireOsLogin": _os_login,
    "compute.requireShieldedVm": _shielded,
    "gcp.resourceLocations": _locations,
    "iam.disableServiceAccountCreation": _accounts,
    "iam.allowedPolicyMemberDomains": _members,
}
