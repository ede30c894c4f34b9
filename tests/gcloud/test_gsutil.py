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


def test_round_trip(gcloud: Gcloud, bucket: str) -> None:
    gcloud.gsutil("mb", "-l", "europe-west4", "-b", "on", f"gs://{bucket}")
    (gcloud.folder / "file").write_text("hello")
    gcloud.gsutil("cp", "file", f"gs://{bucket}/dir/file")
    gcloud.gsutil("cp", f"gs://{bucket}/dir/file", "back")
    assert (gcloud.folder / "back").read_text() == "hello"


@pytest.mark.soak
@pytest.mark.release("an older client; `gcloud storage` is tested on every commit")
def test_gsutil_commands(gcloud: Gcloud, bucket: str) -> None:
    root = f"gs://{bucket}"
    gcloud.gsutil("mb", root)
    for name in ("a", "sub/b"):
        path = gcloud.folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    gcloud.gsutil("-m", "rsync", "-r", "tree", f"{root}/tree")
    assert gcloud.gsutil("ls", f"{root}/**").stdout.split() == [
        f"{root}/tree/a",
        f"{root}/tree/sub/b",
    ]
    assert "TOTAL: 2 objects, 6 bytes" in gcloud.gsutil("ls", "-l", f"{root}/**").stdout
    assert gcloud.gsutil("du", "-s", root).stdout.split() == ["6", root]
    gcloud.gsutil("cp", f"{root}/tree/a", f"{root}/copy")
    gcloud.gsutil("mv", f"{root}/copy", f"{root}/moved")
    assert gcloud.gsutil("cat", f"{root}/moved").stdout == "a"
    output = gcloud.gsutil("stat", f"{root}/moved").stdout
    assert "Hash (md5):" in output
    assert "Content-Length:         1" in output
    gcloud.gsutil("versioning", "set", "on", root)
    gcloud.gsutil("versioning", "set", "off", root)
    gcloud.gsutil("iam", "ch", "user:someone@example.com:objectViewer", root)
    assert "user:someone@example.com" in gcloud.gsutil("iam", "get", root).stdout
    gcloud.gsutil("rm", f"{root}/moved")
    full = gcloud.gsutil("rb", root, check=False)
    assert full.returncode == 1
    assert "not empty" in full.stderr
    gcloud.gsutil("rm", "-r", f"{root}/tree")
    gcloud.gsutil("rb", root)
    assert gcloud.gsutil("ls", root, check=False).returncode == 1
