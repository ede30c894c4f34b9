"""Finds the boot image of a controller: the one in the stack file, or a default."""

from __future__ import annotations

import re

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound, Usage
from tpuctl.model.stack.stack import Stack

# Projects by the prefix of their image families (cloud.google.com/compute/docs/images/os-details;
# gcloud's execution_groups/util.py for the two with TensorFlow).
PROJECTS = {
    "ubuntu-": "ubuntu-os-cloud",
    "debian-": "debian-cloud",
    "rocky-": "rocky-linux-cloud",
    "tf2-": "deeplearning-platform-release",
    "common-": "deeplearning-platform-release",
    "tf-": "ml-images",
}
# The first is for controllers next to TPU VMs: its Python is new enough for tpuctl, which recovers
# jobs there. A controller that drives a TPU node runs the job itself, on packages for an older
# Python.
DEFAULT_IMAGE, DEFAULT_NODE_IMAGE = "ubuntu-2404-lts-amd64", "ubuntu-2204-lts"
LINK = re.compile(r"(?:.*/)?projects/([^/]+)/global/images/(family/)?([^/]+)$")
Candidate = tuple[str, str, bool]  # project, name, is_family


def image_candidates(
    image: str, tensorflow: str | None, project: str, default: str = DEFAULT_IMAGE
) -> tuple[Candidate, ...]:
    """Image candidates in order of preference. `project` is the stack's project."""
    if image == "auto":
        return _with_tensorflow(tensorflow) if tensorflow else (_family(default, project),)
    if link := LINK.match(image):
        return ((link[1], link[3], link[2] is not None),)
    parts = image.split("/")
    if len(parts) == 3 and parts[1] == "images":
        return ((parts[0], parts[2], False),)
    if len(parts) == 2:
        return ((parts[0], parts[1], True),)
    return (_family(image, project),)


def _family(name: str, project: str) -> Candidate:
    owners = [owner for prefix, owner in PROJECTS.items() if name.startswith(prefix)]
    return (owners[0] if owners else project, name, True)


def _with_tensorflow(version: str) -> tuple[Candidate, ...]:
    """The families that `gcloud compute tpus execution-groups create` uses.

    Names in ml-images include the patch version from 2.4 on, and earlier if it is not 0; those of
    Deep Learning VMs never do.
    """
    major, minor, patch = (int(part) for part in f"{version}.0".split(".")[:3])
    has_patch = patch > 0 or (major, minor) >= (2, 4)
    exact = f"tf-{major}-{minor}" + (f"-{patch}" if has_patch else "")
    return (
        ("ml-images", exact, True),
        (
            "deeplearning-platform-release",
            f"tf{major if major > 1 else ''}-{major}-{minor}-cpu",
            True,
        ),
    )


async def find_image(stack: Stack, cloud: Cloud) -> str:
    """`projects/P/global/images/I`. Raises NotFound."""
    section = stack.controller
    assert section is not None
    tensorflow = stack.runtime.tensorflow if stack.is_node else None
    default = DEFAULT_NODE_IMAGE if stack.is_node else DEFAULT_IMAGE
    failures = []
    for project, name, is_family in image_candidates(
        section.image, tensorflow, stack.project, default
    ):
        client = cloud.client("images")
        subject = f"image {project}/{name}"
        try:
            if is_family:
                image = await cloud.call(
                    subject, client.get_from_family, project=project, family=name
                )
            else:
                image = await cloud.call(subject, client.get, project=project, image=name)
        except (NotFound, Usage):
            failures.append(f"{project} has no {'family' if is_family else 'image'} {name}")
            continue
        return f"projects/{project}/global/images/{image.name}"
    raise NotFound(
        "Image not found",
        f"controller.image is {section.image}: {'; '.join(failures)}",
        hint=f"Set another image, as a family or PROJECT/FAMILY:\n"
        f"    controller: {{image: {default}}}",
    )
