"""Libraries and programs that keep files in Cloud Storage, each with what it does there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.test_libraries import run_program, shell  # the second is a fixture
from tests.support.commands import succeed

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(1800)]

__all__ = ["shell"]


@pytest.fixture(scope="module")
def programs_folder(programs: Callable[[str], Path]) -> Path:
    """The programs of an environment with only those libraries."""
    return programs("storage_libraries")


@pytest.fixture(scope="module")
def python(programs_folder: Path) -> str:
    return str(programs_folder / "python")


BUCKET = """
import google.cloud.storage, sys
bucket = sys.argv[1]
google.cloud.storage.Client().create_bucket(bucket)
"""

SMART_OPEN = """
from smart_open import open
with open(f"gs://{bucket}/a/log.txt.gz", "w") as file:
    for number in range(200_000):
        file.write(f"{number}\\n")
with open(f"gs://{bucket}/a/log.txt.gz") as file:
    print(sum(1 for _ in file))
with open(f"gs://{bucket}/a/bytes", "wb") as file:
    file.write(b"0123456789")
with open(f"gs://{bucket}/a/bytes", "rb") as file:
    file.seek(-3, 2)
    print(file.read())
"""

CLOUDPATHLIB = """
from cloudpathlib import CloudPath
root = CloudPath(f"gs://{bucket}/")
(root / "a" / "one.txt").write_text("one")
(root / "a" / "b" / "two.txt").write_text("two")
print(sorted(path.name for path in root.rglob("*.txt")))
print((root / "a").is_dir(), (root / "no").exists())
(root / "a" / "one.txt").copy(root / "copy.txt")
(root / "copy.txt").rename(root / "moved.txt")
print((root / "moved.txt").read_text(), (root / "copy.txt").exists())
(root / "a").rmtree()
print([path.name for path in root.iterdir()])
"""

OBSTORE = """
import obstore
from obstore.store import GCSStore
store = GCSStore(bucket)
obstore.put(store, "a/large", b"x" * 30_000_000, chunk_size=8 << 20)
obstore.put(store, "a/small", b"0123456789")
try:
    obstore.put(store, "a/small", b"again", mode="create")
except obstore.exceptions.AlreadyExistsError:
    print("exists")
print(bytes(obstore.get_range(store, "a/small", start=3, end=6)))
print(obstore.head(store, "a/large")["size"])
obstore.copy(store, "a/small", "b/copy")
obstore.rename(store, "b/copy", "b/moved")
print(sorted(item["path"] for page in obstore.list(store) for item in page))
obstore.delete(store, ["a/large", "a/small"])
print(obstore.list_with_delimiter(store)["common_prefixes"])
"""

DATASETS = """
from datasets import Dataset, load_dataset, load_from_disk
data = Dataset.from_dict({"text": [f"line {number}" for number in range(10_000)]})
data.save_to_disk(f"gs://{bucket}/saved", num_shards=3)
print(load_from_disk(f"gs://{bucket}/saved")[9_999])
data.to_parquet(f"gs://{bucket}/files/one.parquet")
files = f"gs://{bucket}/files/*.parquet"
read = load_dataset("parquet", data_files=files, split="train", streaming=True)
print(sum(1 for _ in read))
"""

ORBAX = """
import jax.numpy as jnp
import orbax.checkpoint as ocp
state = {"step": 0, "weights": jnp.arange(1_000.0)}
options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager(f"gs://{bucket}/run", options=options) as manager:
    for step in range(4):
        manager.save(step, args=ocp.args.StandardSave({**state, "step": step}))
    manager.wait_until_finished()
    print(manager.all_steps())
with ocp.CheckpointManager(f"gs://{bucket}/run") as manager:
    last = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
    print(int(last["step"]), float(last["weights"].sum()))
"""


@pytest.mark.parametrize(
    ("name", "program", "printed"),
    [
        ("smart-open", SMART_OPEN, ["200000", "b'789'"]),
        (
            "cloudpathlib",
            CLOUDPATHLIB,
            ["['one.txt', 'two.txt']", "True False", "one False", "['moved.txt']"],
        ),
        (
            "obstore",
            OBSTORE,
            ["exists", "b'345'", "30000000", "['a/large', 'a/small', 'b/moved']", "['b']"],
        ),
        ("datasets", DATASETS, ["{'text': 'line 9999'}", "10000"]),
        ("orbax", ORBAX, ["[2, 3]", "3 499500.0"]),
    ],
)
def test_library_keeps_its_files_in_a_bucket(
    python: str, shell: dict[str, str], name: str, program: str, printed: list[str]
) -> None:
    assert run_program(python, BUCKET + program, shell, f"{name}-bucket") == printed


def test_rclone(programs_folder: Path, shell: dict[str, str], tmp_path: Path) -> None:
    settings = {"PROJECT_NUMBER": "local-project", "ENV_AUTH": "true", "BUCKET_POLICY_ONLY": "true"}
    variables = {
        **shell,
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        **{f"RCLONE_GCS_{name}": value for name, value in settings.items()},
    }
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "ü +%.txt").write_text("x")
    (source / "a" / "b" / "large").write_bytes(os.urandom(20_000_000))  # in several requests

    def rclone(command: str, *paths: str | Path, **more: str) -> str:
        words = [str(programs_folder / "rclone"), *command.split(), *map(str, paths)]
        return succeed(words, env=variables, timeout=120, **more).stdout

    bucket = ":gcs:rclone-bucket"
    rclone("mkdir", bucket)
    rclone("copy", source, f"{bucket}/x")
    rclone("check", source, f"{bucket}/x")
    rclone("sync", f"{bucket}/x", back)
    assert (back / "a" / "b" / "large").read_bytes() == (source / "a" / "b" / "large").read_bytes()
    rclone("copyto", f"{bucket}/x/a/ü +%.txt", f"{bucket}/y/one")
    rclone("moveto", f"{bucket}/y/one", f"{bucket}/y/two")
    assert rclone("cat", f"{bucket}/y/two") == "x"
    rclone("rcat", f"{bucket}/piped", input="piped\n")
    assert json.loads(rclone("size --json", bucket))["bytes"] == 20_000_000 + 2 + 6
    rclone("deletefile", f"{bucket}/piped")
    rclone("sync --delete-after", source / "a", f"{bucket}/x")
    files = ["x/b/large", "x/ü +%.txt", "y/two"]
    assert sorted(rclone("lsf -R --files-only", bucket).splitlines()) == files
    rclone("purge", bucket)
    assert rclone("lsd", ":gcs:").count("rclone-bucket") == 0
