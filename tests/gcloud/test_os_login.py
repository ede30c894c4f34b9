"""The real gcloud logs in to machines that use OS Login."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

USER = "owner_local_cloud_invalid"
ON = "--metadata=enable-oslogin=TRUE"
WHO = "--command=whoami"
TPUS = ("compute", "tpus", "tpu-vm")


@pytest.mark.soak
def test_gcloud_logs_in_as_the_profiles_user(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    gcloud.make_key()
    gcloud.run("compute", "project-info", "add-metadata", ON)
    small = ("--machine-type=n1-standard-1", "--image-family=ubuntu-2204-lts",
             "--image-project=ubuntu-os-cloud")  # fmt: skip
    gcloud.run("compute", "instances", "create", "box", *small)
    output = gcloud.run("compute", "ssh", "box", WHO, "--ssh-key-expire-after=1h").stdout
    assert output == f"{USER}\n"
    (key,) = gcloud.json("compute", "os-login", "ssh-keys", "list")
    assert key["value"]["expirationTimeUsec"]
    profile = gcloud.json("compute", "os-login", "describe-profile")
    assert [account["username"] for account in profile["posixAccounts"]] == [USER]

    gcloud.run(*TPUS, "create", "bert", "--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base")
    assert gcloud.run(*TPUS, "ssh", "bert", WHO).stdout == f"{USER}\n"
