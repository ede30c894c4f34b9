"""gsutil, which delegates to gcloud storage (`[GSUtil] use_gcloud_storage=True`)."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.support.gcloud import Gcloud

_numbers = itertools.count(1)


@pytest.fixture
def bucket() -> str:
    """A unique name."""
    return f"gsutil-{os.getpid()}-{next(_numbers)}"


@pytest.mark.soak
def test_gsutil_commands(gcloud: Gcloud, bucket: str) -> None:
    root = f"gs://{bucket}"
    gcloud.gsutil("mb", "-l", "europe-west4", "-b", "on", root)
    for name in ("a", "sub/b"):
        path = gcloud.folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    gcloud.gsutil("-m", "rsync", "-r", "tree", f"{root}/tree")
    listed = gcloud.gsutil("ls", "-l", f"{root}/**").stdout
    assert f"{root}/tree/a\n" in listed and f"{root}/tree/sub/b\n" in listed
    assert "TOTAL: 2 objects, 6 bytes" in listed
    assert gcloud.gsutil("du", "-s", root).stdout.split() == ["6", root]
    gcloud.gsutil("cp", "tree/a", f"{root}/copy")
    gcloud.gsutil("mv", f"{root}/copy", f"{root}/moved")
    assert gcloud.gsutil("cat", f"{root}/moved").stdout == "a"
    gcloud.gsutil("cp", f"{root}/moved", "back")
    assert (gcloud.folder / "back").read_text() == "a"
    output = gcloud.gsutil("stat", f"{root}/moved").stdout
    assert "Hash (md5):" in output
    assert "Content-Length:         1" in output
    gcloud.gsutil("iam", "ch", "user:someone@example.com:objectViewer", root)
    assert "user:someone@example.com" in gcloud.gsutil("iam", "get", root).stdout
    full = gcloud.gsutil("rb", root, check=False)
    assert full.returncode == 1
    assert "not empty" in full.stderr
    gcloud.gsutil("rm", "-r", f"{root}/moved", f"{root}/tree")
    gcloud.gsutil("versioning", "set", "on", root)
    gcloud.gsutil("rb", root)
