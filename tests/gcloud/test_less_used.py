"""Commands of the real gcloud that users of TPUs need now and then, each once."""

from __future__ import annotations

import json

import pytest

from tests.support.gcloud import Gcloud
from tests.support.locations import US_ZONE
from tpuctl.catalog import region_of

US_REGION = region_of(US_ZONE)


@pytest.mark.soak
def test_descriptions(gcloud: Gcloud) -> None:
    def described(*command: str) -> str:
        return str(gcloud.json(*command)["name"])

    assert described("compute", "networks", "describe", "default") == "default"
    subnet = ("compute", "networks", "subnets", "describe", "default")
    assert described(*subnet, f"--region={US_REGION}") == "default"
    assert described("compute", "zones", "describe", US_ZONE) == US_ZONE
    assert described("compute", "machine-types", "describe", "n1-standard-1") == "n1-standard-1"
    assert described("compute", "disk-types", "describe", "pd-ssd") == "pd-ssd"
    family = ("compute", "images", "describe-from-family", "debian-12", "--project=debian-cloud")
    image = described(*family)
    assert described("compute", "images", "describe", image, "--project=debian-cloud") == image
    assert image.startswith("debian-12-bookworm-v")
    gcloud.run("compute", "addresses", "create", "reserved", f"--region={US_REGION}")
    address = ("compute", "addresses", "describe", "reserved", f"--region={US_REGION}")
    assert described(*address) == "reserved"
    [operation] = gcloud.json("compute", "operations", "list", f"--filter=region:{US_REGION}")
    name = operation["name"]
    assert described("compute", "operations", "describe", name, f"--region={US_REGION}") == name
    route = gcloud.json("compute", "routes", "list")[0]["name"]
    assert described("compute", "routes", "describe", route) == route


@pytest.mark.soak
def test_disks_and_metadata_of_instances(gcloud: Gcloud) -> None:
    image = ("--image-family=debian-12", "--image-project=debian-cloud")
    gcloud.run("compute", "instances", "create", "box", *image, "--tags=web,old", "--labels=a=b")
    gcloud.run("compute", "disks", "create", "data", "--size=10GB")
    gcloud.run("compute", "disks", "add-labels", "data", "--labels=team=nlp")
    assert gcloud.json("compute", "disks", "describe", "data")["labels"] == {"team": "nlp"}
    gcloud.run("compute", "disks", "remove-labels", "data", "--labels=team")
    assert "labels" not in gcloud.json("compute", "disks", "describe", "data")
    gcloud.run("compute", "instances", "attach-disk", "box", "--disk=data")
    assert len(gcloud.json("compute", "instances", "describe", "box")["disks"]) == 2
    gcloud.run("compute", "instances", "detach-disk", "box", "--disk=data")
    gcloud.run("compute", "instances", "remove-tags", "box", "--tags=old")
    gcloud.run("compute", "instances", "remove-labels", "box", "--labels=a")
    box = gcloud.json("compute", "instances", "describe", "box")
    assert (len(box["disks"]), box["tags"]["items"], "labels" in box) == (1, ["web"], False)
    gcloud.run("compute", "project-info", "add-metadata", "--metadata=k=v,gone=1")
    gcloud.run("compute", "project-info", "remove-metadata", "--keys=gone")
    items = gcloud.json("compute", "project-info", "describe")["commonInstanceMetadata"]["items"]
    assert items == [{"key": "k", "value": "v"}]


@pytest.mark.soak
def test_policies_secrets_and_objects(gcloud: Gcloud) -> None:
    gcloud.run("services", "enable", "secretmanager.googleapis.com", "iam.googleapis.com")
    gcloud.run("secrets", "create", "token", "--replication-policy=automatic")
    (gcloud.folder / "value").write_text("hunter2")
    gcloud.run("secrets", "versions", "add", "token", "--data-file=value")
    version = gcloud.json("secrets", "versions", "describe", "1", "--secret=token")
    assert version["state"] == "ENABLED"

    account = f"trainer@{gcloud.project}.iam.gserviceaccount.com"
    gcloud.run("iam", "service-accounts", "create", "trainer")
    policy = gcloud.folder / "policy.json"
    viewer = {"role": "roles/viewer", "members": [f"serviceAccount:{account}"]}
    policy.write_text(json.dumps({"bindings": [viewer]}))
    gcloud.run("iam", "service-accounts", "set-iam-policy", account, str(policy))
    read = gcloud.json("iam", "service-accounts", "get-iam-policy", account)
    assert read["bindings"] == [viewer]
    number = gcloud.json("iam", "service-accounts", "describe", account)["uniqueId"]
    gcloud.run("iam", "service-accounts", "delete", account)
    gcloud.run("iam", "service-accounts", "undelete", number)
    assert gcloud.json("iam", "service-accounts", "describe", account)["uniqueId"] == number

    project = gcloud.json("projects", "get-iam-policy", gcloud.project)
    binding = viewer | {"role": "roles/tpu.viewer"}
    bindings = [*project.get("bindings", []), binding]
    policy.write_text(json.dumps({**project, "bindings": bindings}))
    gcloud.run("projects", "set-iam-policy", gcloud.project, str(policy))
    assert binding in gcloud.json("projects", "get-iam-policy", gcloud.project)["bindings"]

    bucket = f"gs://{gcloud.project}-objects"
    gcloud.run("storage", "buckets", "create", bucket)
    gcloud.run("storage", "cp", "value", f"{bucket}/value")
    [listed] = gcloud.json("storage", "objects", "list", bucket)
    assert (listed["name"], listed["size"]) == ("value", 7)
    agent = gcloud.run("storage", "service-agent").stdout.strip()
    assert agent.endswith("@gs-project-accounts.iam.gserviceaccount.com")
