"""Billing off, an API disabled mid-way, an account without a role: what commands say about it."""

from __future__ import annotations

import pytest

from tests.support.projects import Bench, Project
from tpuctl.errors import Usage
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud


def fail(bench: Bench, command: str) -> tuple[int, str]:
    """The exit code of a command, and its errors with their hints."""
    envelope = bench.answer(*command.split(), "--yes")
    texts = [
        f"{each['summary']}: {each['detail']}\n{each['hint']}" for each in envelope["diagnostics"]
    ]
    return int(envelope["exit_code"]), "\n".join(texts)


BILLING = ("billing-disabled", {}, "billing", "gcloud billing projects link")
ROLE = ("missing-role", {"role": "tpu.admin"}, "tpu.nodes.", "roles/tpu.admin")
API = ("api-disabled", {}, "tpu.googleapis.com", "gcloud services enable tpu.googleapis.com")


@pytest.mark.parametrize(
    ("command", "kind", "fields", "cause", "hint"),
    [
        *((command, *BILLING) for command in ("up", "run train.py", "down")),
        *((command, *ROLE) for command in ("up", "run train.py", "down")),
        *((command, *API) for command in ("up", "run train.py", "down")),
    ],
)
async def test_cause_and_fix_are_reported(
    project: Project,
    cloud: LocalCloud,
    command: str,
    kind: str,
    fields: dict[str, str],
    cause: str,
    hint: str,
) -> None:
    bench = project.stack()
    (bench.folder / "train.py").write_text("print(1)\n", "utf-8")
    await bench.provision()
    limits = {} if kind == "missing-role" else {"project": project.id}
    remote_control.add_fault(cloud, kind, **fields, **limits)
    code, text = fail(bench, command)
    # What `down` could not ask about may still be there.
    assert code == (1 if (command, kind) == ("down", "api-disabled") else 77), text
    assert cause in text and hint in text


async def test_api_disabled_midway_stops_up_at_the_node(
    project: Project, cloud: LocalCloud
) -> None:
    bench = project.stack()
    fields = {"method": "CreateNode", "project": project.id}
    fault = remote_control.add_fault(cloud, "api-disabled", **fields)
    code, text = fail(bench, "up")
    assert code == 77
    assert "gcloud services enable tpu.googleapis.com" in text
    assert remote_control.remove_fault(cloud, fault["id"])["applied"] == 1
    await bench.provision()  # continues where it stopped


async def test_api_is_that_of_the_call(project: Project, cloud: LocalCloud) -> None:
    bench = project.stack()
    await bench.provision()
    fields = {"method": "google.cloud.compute.*", "project": project.id}
    remote_control.add_fault(cloud, "api-disabled", **fields)
    text = fail(bench, "up")[1]
    assert "gcloud services enable compute.googleapis.com" in text


async def test_only_the_account_without_the_role_is_denied(
    project: Project, cloud: LocalCloud
) -> None:
    bench = project.stack()
    fields = {"role": "roles/tpu.admin", "caller": "ann@example.com"}
    fault = remote_control.add_fault(cloud, "missing-role", **fields)
    await bench.provision()
    assert remote_control.remove_fault(cloud, fault["id"])["applied"] == 0


def test_unknown_role_is_rejected(cloud: LocalCloud) -> None:
    with pytest.raises(Usage, match=r"Unknown role 'tpu\.admn'.*tpu\.admin"):
        remote_control.add_fault(cloud, "missing-role", role="tpu.admn")
