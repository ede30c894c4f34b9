"""Bundles: what is in them, and that their bytes depend on nothing else."""

from __future__ import annotations

import os
import random
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tpuctl.errors import Refused, Usage
from tpuctl.jobs.bundle import LARGE_BYTES, Bundle, build_bundle


def tree(root: Path, **files: str) -> Path:
    """Files by name, with `__` for a dot and `___` for a slash; returns the script."""
    for name, text in {"job__py": "print()", **files}.items():
        path = root / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "job.py"


def names(bundle: Bundle) -> list[str]:
    with tarfile.open(bundle.path) as tar:
        return tar.getnames()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def test_holds_the_folder_and_knows_itself(source: Path, into: Path) -> None:
    script = tree(source, lib___model__py="x = 1", data__txt="hello")
    bundle = build_bundle(script, into)
    assert names(bundle) == ["data.txt", "job.py", "lib", "lib/model.py"]
    assert bundle.script == "job.py"
    assert bundle.files == 3
    assert bundle.content_bytes == len("print()x = 1hello")
    assert bundle.path.name == f"{bundle.digest}.tar.gz"
    assert bundle.size == bundle.path.stat().st_size


def test_same_files_elsewhere_and_later_give_the_same_bytes(tmp_path: Path, into: Path) -> None:
    first = tree(tmp_path / "one", a___b__txt="b", c__txt="c")
    second = tree(tmp_path / "two/deeper", c__txt="c", a___b__txt="b")
    for path in second.parent.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    one = build_bundle(first, into)
    bytes_of_one = one.path.read_bytes()
    two = build_bundle(second, into)
    assert two.digest == one.digest
    assert two.path.read_bytes() == bytes_of_one


def test_content_mode_and_name_count(source: Path, into: Path) -> None:
    script = tree(source, run__sh="echo")
    digests = {build_bundle(script, into).digest}
    (source / "run.sh").chmod(0o755)
    digests.add(build_bundle(script, into).digest)
    (source / "run.sh").write_text("echo 2")
    digests.add(build_bundle(script, into).digest)
    (source / "run.sh").rename(source / "run2.sh")
    digests.add(build_bundle(script, into).digest)
    assert len(digests) == 4


def test_executables_stay_executable(source: Path, into: Path) -> None:
    script = tree(source, run__sh="echo")
    (source / "run.sh").chmod(0o755)
    with tarfile.open(build_bundle(script, into).path) as tar:
        assert tar.getmember("run.sh").mode == 0o755
        assert tar.getmember("job.py").mode == 0o644


@pytest.mark.parametrize(
    ("rules", "shipped"),
    [
        ("*.txt", ["job.py", "lib", "lib/a.md"]),
        ("*.txt\n!a.txt", ["a.txt", "job.py", "lib", "lib/a.md", "lib/a.txt"]),
        ("/a.txt", ["b.txt", "job.py", "lib", "lib/a.md", "lib/a.txt"]),
        ("lib/", ["a.txt", "b.txt", "job.py"]),
        ("lib\n!lib/a.md", ["a.txt", "b.txt", "job.py"]),
        ("# a.txt\n\nlib/*.txt", ["a.txt", "b.txt", "job.py", "lib", "lib/a.md"]),
    ],
)
@pytest.mark.parametrize("file", [".gitignore", ".tpuctlignore"])
def test_ignore_files_are_respected(
    source: Path, into: Path, file: str, rules: str, shipped: list[str]
) -> None:
    script = tree(source, a__txt="", b__txt="", lib___a__txt="", lib___a__md="")
    (source / file).write_text(rules)
    assert names(build_bundle(script, into)) == [file, *shipped]


def test_deeper_ignore_files_and_ours_have_the_last_word(source: Path, into: Path) -> None:
    script = tree(
        source,
        __gitignore="*.txt",
        lib___a__txt="",
        lib___b__txt="",
        vocab__txt="",
        __tpuctlignore="!/vocab.txt",
    )
    (source / "lib/.gitignore").write_text("!a.txt")
    shipped = names(build_bundle(script, into))
    assert "lib/a.txt" in shipped
    assert "lib/b.txt" not in shipped
    assert "vocab.txt" in shipped


def test_ignore_files_above_count_within_the_repository(source: Path, into: Path) -> None:
    (source / ".gitignore").write_text("*.log")  # outside of the repository
    repository = source / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / ".gitignore").write_text("*.csv\n/jobs/bert/cache")
    script = tree(repository / "jobs/bert", a__csv="", a__log="", cache___x="", keep="")
    assert names(build_bundle(script, into)) == ["a.log", "job.py", "keep"]


@pytest.mark.parametrize("rule", ["/build/", "bert", "build/*"])
def test_a_folder_that_its_repository_ignores_is_shipped_whole(
    source: Path, into: Path, rule: str
) -> None:
    (source / ".git").mkdir(parents=True)
    (source / ".gitignore").write_text(f"{rule}\n*.csv\n")
    script = tree(source / "build/bert", a__csv="", __gitignore="*.log", b__log="")
    assert names(build_bundle(script, into)) == [".gitignore", "a.csv", "job.py"]


def test_include_and_exclude_of_the_stack(source: Path, into: Path) -> None:
    script = tree(
        source,
        __gitignore="data/\n*.bin",
        data___big__csv="",
        data___small__csv="",
        model__bin="",
        notes__md="",
    )
    bundle = build_bundle(script, into, include=["data/small.csv", "*.bin"], exclude=["*.md"])
    assert names(bundle) == [".gitignore", "data", "data/small.csv", "job.py", "model.bin"]


def test_what_never_belongs_on_a_worker(source: Path, into: Path) -> None:
    script = tree(source)
    for name in (".git/config", "__pycache__/x.pyc", "env/pyvenv.cfg", "env/bin/python"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    assert names(build_bundle(script, into, include=["*"])) == ["job.py"]


def test_links_inside_stay_links_and_links_outside_become_files(
    source: Path, into: Path, tmp_path: Path
) -> None:
    script = tree(source, lib___a__txt="inside")
    (tmp_path / "outside.txt").write_text("outside")
    (source / "relative").symlink_to("lib/a.txt")
    (source / "lib/absolute").symlink_to(source / "job.py")
    (source / "folder").symlink_to("lib")
    (source / "copied").symlink_to(tmp_path / "outside.txt")
    with tarfile.open(build_bundle(script, into).path) as tar:
        links = {name: tar.getmember(name).linkname for name in tar.getnames()}
        assert links["relative"] == "lib/a.txt"
        assert links["lib/absolute"] == "../job.py"
        assert links["folder"] == "lib"
        copied = tar.extractfile("copied")
        assert copied is not None and copied.read() == b"outside"


@pytest.mark.parametrize("target", ["/usr", "no-such/../../file"])
def test_links_that_would_break_are_refused(source: Path, into: Path, target: str) -> None:
    script = tree(source)
    (source / "link").symlink_to(target)
    with pytest.raises(Usage, match="link points to"):
        build_bundle(script, into)


def private_key(kind: serialization.PrivateFormat) -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(
        serialization.Encoding.PEM, kind, serialization.NoEncryption()
    ).decode()


def test_private_keys_are_refused_by_name(source: Path, into: Path) -> None:
    script = tree(
        source,
        lib___id_ed25519=private_key(serialization.PrivateFormat.OpenSSH),
        server__pem="some text first\n" + private_key(serialization.PrivateFormat.PKCS8),
        account__json='{"type": "service_account", "private_key": "..."}',
        user__json='{"type": "authorized_user", "refresh_token": "..."}',
    )
    with pytest.raises(Refused) as refused:
        build_bundle(script, into)
    detail = refused.value.diagnostics[0].detail
    assert detail == "account.json, lib/id_ed25519, server.pem, user.json"


def test_what_only_speaks_of_keys_is_shipped(source: Path, into: Path) -> None:
    script = tree(
        source,
        check__py='PEM = "-----BEGIN PRIVATE KEY-----"\n',
        guide__md="-----BEGIN PRIVATE KEY-----\nyour key here\n-----END PRIVATE KEY-----\n",
        settings__json='{"type": "service", "private_key": ""}',
        public__pem="-----BEGIN PUBLIC KEY-----\n" + "A" * 60 + "\n-----END PUBLIC KEY-----\n",
    )
    assert build_bundle(script, into).files == 5


def test_ignored_keys_do_not_matter(source: Path, into: Path) -> None:
    key = private_key(serialization.PrivateFormat.OpenSSH)
    script = tree(source, __tpuctlignore="/id_*", id_ed25519=key)
    assert "id_ed25519" not in names(build_bundle(script, into))


def test_large_bundles_warn_and_memory_stays_small(source: Path, into: Path) -> None:
    script = tree(source)
    noise = random.Random(1)
    with (source / "weights.bin").open("wb") as target:
        for _ in range(LARGE_BYTES // 1_000_000 + 2):
            target.write(noise.randbytes(1_000_000))
    tracemalloc.start()
    try:
        bundle = build_bundle(script, into)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [warning.summary for warning in bundle.warnings] == ["Bundle is large"]
    assert "weights.bin  52 MB" in bundle.warnings[0].detail
    assert peak < 10_000_000


def test_small_bundles_do_not_warn(source: Path, into: Path) -> None:
    assert build_bundle(tree(source), into).warnings == ()


def test_a_missing_script_is_named(source: Path, into: Path) -> None:
    with pytest.raises(Usage, match=r"nothing\.py"):
        build_bundle(source / "nothing.py", into)


def test_a_script_outside_of_the_folder_is_refused(source: Path, into: Path) -> None:
    script = tree(source)
    other = source / "other"
    other.mkdir()
    with pytest.raises(Usage, match="outside of the folder"):
        build_bundle(script, into, root=other)


def test_an_ignored_script_is_refused(source: Path, into: Path) -> None:
    script = tree(source, __gitignore="*.py")
    with pytest.raises(Usage, match="Script is not shipped"):
        build_bundle(script, into)


def test_a_wider_folder_keeps_the_scripts_place(source: Path, into: Path) -> None:
    tree(source, jobs___train__py="")
    bundle = build_bundle(source / "jobs/train.py", into, root=source)
    assert bundle.script == "jobs/train.py"
