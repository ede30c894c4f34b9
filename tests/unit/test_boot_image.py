"""The image of a controller's boot disk."""

from __future__ import annotations

import pytest

from tpuctl.resources.machines.boot_image import DEFAULT_NODE_IMAGE, image_candidates


# As chosen by gcloud's execution_groups, with families named as in ml-images.
@pytest.mark.parametrize(
    ("tensorflow", "family", "deep_learning"),
    [
        ("2.12.0", "tf-2-12-0", "tf2-2-12-cpu"),
        ("2.9.3", "tf-2-9-3", "tf2-2-9-cpu"),
        ("2.4.0", "tf-2-4-0", "tf2-2-4-cpu"),
        ("2.3.0", "tf-2-3", "tf2-2-3-cpu"),
        ("2.3.4", "tf-2-3-4", "tf2-2-3-cpu"),
        ("2.2.0", "tf-2-2", "tf2-2-2-cpu"),
        ("1.15.5", "tf-1-15-5", "tf-1-15-cpu"),
    ],
)
def test_auto_image_matches_node_tensorflow(
    tensorflow: str, family: str, deep_learning: str
) -> None:
    assert image_candidates("auto", tensorflow, "mine") == (
        ("ml-images", family, True),
        ("deeplearning-platform-release", deep_learning, True),
    )


@pytest.mark.parametrize(
    ("image", "project", "name", "is_family"),
    [
        ("auto", "ubuntu-os-cloud", "ubuntu-2404-lts-amd64", True),
        ("ubuntu-2204-lts", "ubuntu-os-cloud", "ubuntu-2204-lts", True),
        ("debian-12", "debian-cloud", "debian-12", True),
        ("tf-2-12-0", "ml-images", "tf-2-12-0", True),
        ("tf2-2-12-cpu", "deeplearning-platform-release", "tf2-2-12-cpu", True),
        ("our-family", "mine", "our-family", True),
        ("theirs/their-family", "theirs", "their-family", True),
        ("theirs/images/one-2024", "theirs", "one-2024", False),
        ("projects/theirs/global/images/one-2024", "theirs", "one-2024", False),
        ("projects/theirs/global/images/family/ours", "theirs", "ours", True),
        (
            "https://www.googleapis.com/compute/v1/projects/theirs/global/images/one-2024",
            "theirs",
            "one-2024",
            False,
        ),
    ],
)
def test_image_name_formats(image: str, project: str, name: str, is_family: bool) -> None:
    assert image_candidates(image, None, "mine") == ((project, name, is_family),)


def test_node_controller_uses_older_image() -> None:
    candidates = image_candidates("auto", None, "mine", DEFAULT_NODE_IMAGE)
    assert candidates == (("ubuntu-os-cloud", "ubuntu-2204-lts", True),)
