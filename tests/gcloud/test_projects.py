"""Projects, their ancestors and policies, through the real gcloud."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.gcloud import Gcloud

ORGANIZATION, FOLDER = "400000000001", "500000000001"


def members(policy: dict[str, Any], role: str) -> list[str]:
    """The members of a role without a condition."""
    return [
        member
        for binding in policy.get("bindings", [])
        if binding["role"] == role and "condition" not in binding
        for member in binding["members"]
    ]


def test_project_lifecycle(bare_gcloud: Gcloud) -> None:
    gcloud, name = bare_gcloud, f"made-by-gcloud-{os.getpid()}"
    project = gcloud.json(
        "projects", "create", name, "--name=Made here", "--labels=a=b", f"--folder={FOLDER}"
    )
    assert project["projectId"] == name
    assert project["parent"] == {"type": "folder", "id": FOLDER}
    viewer = ("--member=user:jane@example.com", "--role=roles/viewer")
    policy = gcloud.json("projects", "add-iam-policy-binding", name, *viewer)
    assert members(policy, "roles/viewer") == ["user:jane@example.com"]
    gcloud.run("projects", "delete", name)
    [left] = gcloud.json("projects", "list", f"--filter=projectId={name} lifecycleState:*")
    assert left["lifecycleState"] == "DELETE_REQUESTED"


@pytest.mark.soak
def test_project_commands(bare_gcloud: Gcloud) -> None:
    gcloud, name = bare_gcloud, f"all-of-it-{os.getpid()}"
    gcloud.run("projects", "create", name, f"--organization={ORGANIZATION}")
    result = gcloud.run("projects", "create", name, check=False)
    assert "The project ID you specified is already in use by another project" in result.stderr
    denied = gcloud.run("projects", "create", f"{name}-2", "--organization=9", check=False)
    assert "'resourcemanager.projects.create' denied on parent" in denied.stderr
    absent = gcloud.run("projects", "describe", "not-there-at-all", check=False)
    assert "does not have permission to access projects instance" in absent.stderr

    table = gcloud.run("projects", "list", "--filter=parent.type:organization").stdout
    assert table.splitlines()[0].split() == ["PROJECT_ID", "NAME", "PROJECT_NUMBER"]
    assert name in table
    gcloud.run("projects", "update", name, "--name=Another")
    gcloud.run("alpha", "projects", "update", name, "--update-labels=c=d")
    [project] = gcloud.json("projects", "list", "--filter=labels.c=d")
    assert (project["projectId"], project["name"]) == (name, "Another")
    assert gcloud.json("projects", "describe", name) == project
    ancestors = gcloud.json("projects", "get-ancestors", name)
    assert ancestors == [
        {"id": name, "type": "project"},
        {"id": ORGANIZATION, "type": "organization"},
    ]
    gcloud.run("beta", "projects", "move", name, f"--folder={FOLDER}")
    kinds = [
        ancestor["type"] for ancestor in gcloud.json("projects", "get-ancestors-iam-policy", name)
    ]
    assert kinds == ["project", "folder", "organization"]

    [organization] = gcloud.json("organizations", "list")
    assert organization["name"] == f"organizations/{ORGANIZATION}"
    assert gcloud.json("organizations", "describe", ORGANIZATION) == organization
    [folder] = gcloud.json("resource-manager", "folders", "list", f"--organization={ORGANIZATION}")
    assert folder["name"] == f"folders/{FOLDER}"
    assert gcloud.json("resource-manager", "folders", "describe", FOLDER) == folder

    gcloud.run("projects", "delete", name)
    assert gcloud.json("projects", "list", f"--filter=projectId={name}") == []
    gcloud.run("projects", "undelete", name)
    assert gcloud.json("projects", "describe", name)["lifecycleState"] == "ACTIVE"


@pytest.mark.soak
def test_project_policy_commands(bare_gcloud: Gcloud) -> None:
    gcloud = bare_gcloud
    binding = (gcloud.project, "--member=user:jane@example.com", "--role=roles/tpu.viewer")
    until = '--condition=title=later,expression=request.time < timestamp("2030-01-01T00:00:00Z")'
    gcloud.run("projects", "add-iam-policy-binding", *binding, until)
    gcloud.run("projects", "add-iam-policy-binding", *binding, "--condition=None")
    policy = gcloud.json("projects", "get-iam-policy", gcloud.project)
    assert policy["version"] == 3
    assert members(policy, "roles/tpu.viewer") == ["user:jane@example.com"]
    gcloud.run("projects", "remove-iam-policy-binding", *binding, "--condition=None")
    policy = gcloud.json("projects", "remove-iam-policy-binding", *binding, until)
    assert all(binding["role"] != "roles/tpu.viewer" for binding in policy["bindings"])
    again = gcloud.run(
        "projects", "remove-iam-policy-binding", *binding, "--condition=None", check=False
    )
    assert "not found" in again.stderr
