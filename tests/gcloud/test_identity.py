"""Service accounts and roles through the real gcloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gcloud import Gcloud, make_project
from tpuctl.local_cloud.server_process import LocalCloud

ACCOUNTS = ("iam", "service-accounts")


@pytest.fixture
def iam_gcloud(null_cloud: LocalCloud, tmp_path: Path) -> Gcloud:
    """A user in a new project with the IAM API enabled."""
    return Gcloud(null_cloud, tmp_path / "gcloud", project=make_project(null_cloud, "iam"))


def test_owner_is_logged_in(null_cloud: LocalCloud, tmp_path: Path) -> None:
    gcloud = Gcloud(null_cloud, tmp_path / "gcloud")
    [account] = gcloud.json("auth", "list")
    assert account == {"account": gcloud.json("config", "list")["core"]["account"]} | {
        "status": "ACTIVE"
    }


@pytest.mark.soak
def test_service_account_with_custom_role(iam_gcloud: Gcloud) -> None:
    iam_gcloud.run(*ACCOUNTS, "create", "trainer", "--display-name=Trains")
    email = f"trainer@{iam_gcloud.project}.iam.gserviceaccount.com"
    permissions = ["tpu.nodes.delete", "tpu.nodes.get"]
    role = iam_gcloud.json(
        "iam", "roles", "create", "ender", f"--project={iam_gcloud.project}", "--title=Ends",
        f"--permissions={','.join(permissions)}",
    )  # fmt: skip
    assert role["includedPermissions"] == permissions
    # The policy of a missing account would be rejected.
    granted = iam_gcloud.json(
        "projects", "add-iam-policy-binding", iam_gcloud.project,
        f"--member=serviceAccount:{email}", f"--role={role['name']}",
    )  # fmt: skip
    assert {"role": role["name"], "members": [f"serviceAccount:{email}"]} in granted["bindings"]


@pytest.mark.soak
def test_service_account_commands(iam_gcloud: Gcloud) -> None:
    email = f"trainer@{iam_gcloud.project}.iam.gserviceaccount.com"
    iam_gcloud.run(*ACCOUNTS, "create", "trainer", "--description=why")
    again = iam_gcloud.run(*ACCOUNTS, "create", "trainer", check=False)
    assert "already exists within project" in again.stderr
    assert iam_gcloud.json(*ACCOUNTS, "describe", email)["description"] == "why"
    iam_gcloud.run(*ACCOUNTS, "update", email, "--display-name=Other")
    binding = (email, "--member=user:jane@example.com", "--role=roles/iam.serviceAccountUser")
    iam_gcloud.run(*ACCOUNTS, "add-iam-policy-binding", *binding)
    [granted] = iam_gcloud.json(*ACCOUNTS, "get-iam-policy", email)["bindings"]
    assert granted["members"] == ["user:jane@example.com"]
    iam_gcloud.run(*ACCOUNTS, "remove-iam-policy-binding", *binding)
    [key] = iam_gcloud.json(*ACCOUNTS, "keys", "list", f"--iam-account={email}")
    assert key["keyType"] == "SYSTEM_MANAGED"
    failed = iam_gcloud.run(
        *ACCOUNTS, "keys", "create", "key.json", f"--iam-account={email}", check=False
    )
    assert "Key creation is not allowed on this service account." in failed.stderr
    iam_gcloud.run(*ACCOUNTS, "disable", email)
    table = iam_gcloud.run(*ACCOUNTS, "list").stdout.splitlines()
    assert table[0].split() == ["DISPLAY", "NAME", "EMAIL", "DISABLED"]
    assert table[1].split() == ["Other", email, "True"]
    iam_gcloud.run(*ACCOUNTS, "enable", email)
    iam_gcloud.run(*ACCOUNTS, "delete", email)
    result = iam_gcloud.run(*ACCOUNTS, "describe", email, check=False)
    assert "Unknown service account" in result.stderr


@pytest.mark.soak
def test_role_commands(iam_gcloud: Gcloud) -> None:
    project_option = f"--project={iam_gcloud.project}"
    iam_gcloud.run(
        "iam",
        "roles",
        "create",
        "ender",
        project_option,
        "--permissions=tpu.nodes.get",
        "--stage=GA",
    )
    iam_gcloud.run(
        "iam", "roles", "update", "ender", project_option, "--add-permissions=tpu.nodes.delete"
    )
    role = iam_gcloud.json("iam", "roles", "describe", "ender", project_option)
    assert role["includedPermissions"] == ["tpu.nodes.delete", "tpu.nodes.get"]
    [listed] = iam_gcloud.json("iam", "roles", "list", project_option)
    assert listed["name"] == role["name"]
    iam_gcloud.run("iam", "roles", "delete", "ender", project_option)
    assert iam_gcloud.json("iam", "roles", "list", project_option) == []
    iam_gcloud.run("iam", "roles", "undelete", "ender", project_option)
    assert iam_gcloud.json("iam", "roles", "list", project_option) != []
    google = iam_gcloud.json("iam", "roles", "describe", "roles/tpu.viewer")
    assert "tpu.nodes.get" in google["includedPermissions"]
    absent = iam_gcloud.run("iam", "roles", "describe", "roles/nosuch", check=False)
    assert "The role named roles/nosuch was not found" in absent.stderr
