"""Secret Manager through the real gcloud, which verifies CRC32C checksums."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud, make_project
from tpuctl.local_cloud.server_process import LocalCloud

ACCESSOR = "roles/secretmanager.secretAccessor"


@pytest.fixture
def gcloud(null_cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    project = make_project(null_cloud, "secretmanager")
    return Gcloud(null_cloud, tmp_path_factory.mktemp("gcloud"), project=project)


def test_secret_is_created_and_read(gcloud: Gcloud) -> None:
    result = gcloud.run("secrets", "create", "hf", "--data-file=-", stdin="hf_one")
    assert "Created version [1] of the secret [hf]" in result.stderr
    assert gcloud.run("secrets", "versions", "access", "latest", "--secret=hf").stdout == "hf_one"


@pytest.mark.soak
def test_secret_lifecycle(gcloud: Gcloud) -> None:
    run = gcloud.run
    run("secrets", "create", "hf", "--labels=team=nlp")
    run("secrets", "versions", "add", "hf", "--data-file=-", stdin="one")
    run("secrets", "versions", "add", "hf", "--data-file=-", stdin="two")
    assert run("secrets", "versions", "access", "1", "--secret=hf").stdout == "one"
    [listed] = gcloud.json("secrets", "list")
    assert listed["labels"] == {"team": "nlp"}
    assert gcloud.json("secrets", "describe", "hf") == listed
    run("secrets", "versions", "disable", "2", "--secret=hf")
    failed = run("secrets", "versions", "access", "latest", "--secret=hf", check=False)
    assert "is in DISABLED state" in failed.stderr
    run("secrets", "versions", "enable", "2", "--secret=hf")
    run("secrets", "versions", "destroy", "1", "--secret=hf")
    states = {
        version["name"][-1]: version["state"]
        for version in gcloud.json("secrets", "versions", "list", "hf")
    }
    assert states == {"1": "DESTROYED", "2": "ENABLED"}
    member = "--member=user:ann@example.com"
    run("secrets", "add-iam-policy-binding", "hf", member, f"--role={ACCESSOR}")
    policy = gcloud.json("secrets", "get-iam-policy", "hf")
    assert policy["bindings"] == [{"role": ACCESSOR, "members": ["user:ann@example.com"]}]
    run("secrets", "remove-iam-policy-binding", "hf", member, f"--role={ACCESSOR}")
    assert "bindings" not in gcloud.json("secrets", "get-iam-policy", "hf")
    run("secrets", "delete", "hf")
    assert gcloud.json("secrets", "list") == []
    absent = run("secrets", "versions", "access", "latest", "--secret=hf", check=False)
    assert "not found or has no versions" in absent.stderr
