"""Shared VPC through the real gcloud: the administrator's part of docs/guides/company.md."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.docs.page_blocks import ROOT
from tests.support.callers import Member
from tests.support.gcloud import Gcloud, make_project
from tests.support.locations import US_ZONE

PAGE = (ROOT / "docs" / "guides" / "company.md").read_text("utf-8")
SHARED = ("compute", "shared-vpc")


def administrators_commands(project: str, number: str) -> list[list[str]]:
    """The commands of the page, for one project, in the region of the zone."""
    lines = PAGE.partition("### For the administrator")[2].partition("\n## ")[0].splitlines()
    text = "\n".join(line[2:] for line in lines if line.startswith("$ gcloud"))
    text = text.replace("PROJECT", project).replace("NUMBER", number)
    return [
        shlex.split(line)[1:] for line in text.replace("PERSON", "ann@example.com").splitlines()
    ]


def test_administrators_part_of_the_page(gcloud: Gcloud, tmp_path: Path) -> None:
    host = make_project(gcloud.cloud, "compute", project="net-host")
    at_host = f"--project={host}"
    gcloud.run("compute", "networks", "create", "corp", "--subnet-mode=custom", at_host)
    tpus = ("--network=corp", "--range=10.7.0.0/20", f"--region={US_ZONE[:-2]}", at_host)
    gcloud.run("compute", "networks", "subnets", "create", "tpus", *tpus)
    refused = gcloud.run(
        *SHARED, "associated-projects", "add", gcloud.project, f"--host-project={host}", check=False
    )
    assert f"'projects/{host}' is not a shared VPC host project." in refused.stderr
    gcloud.run(*SHARED, "enable", host)
    owner = Member.owner(gcloud.cloud)
    number = owner.send_ok("GET", f"/v1/projects/{gcloud.project}")["projectNumber"]
    commands = administrators_commands(gcloud.project, number)
    assert len(commands) == 7
    for command in commands:
        gcloud.run(*command)
    assert gcloud.json(*SHARED, "get-host-project", gcloud.project)["name"] == host
    machine = ("--machine-type=n1-standard-1", "--image-family=debian-12", "--no-address")
    subnet = f"--subnet=projects/{host}/regions/{US_ZONE[:-2]}/subnetworks/tpus"
    image = "--image-project=debian-cloud"
    [box] = gcloud.json("compute", "instances", "create", "box", *machine, image, subnet)
    assert box["networkInterfaces"][0]["network"].endswith("projects/net-host/global/networks/corp")
    network = f"--network=projects/{host}/global/networks/corp"
    subnetwork = subnet.replace("--subnet", "--subnetwork")
    tpu = ("--accelerator-type=v2-8", "--version=tpu-vm-base", network, subnetwork)
    gcloud.run("compute", "tpus", "tpu-vm", "create", "bert", *tpu, "--internal-ips")
    usable = gcloud.json("compute", "networks", "subnets", "list-usable", at_host)
    names = [item["subnetwork"].rpartition("/")[2] for item in usable if "corp" in item["network"]]
    assert names == ["tpus"]
