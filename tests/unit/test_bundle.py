"""Bundles: their contents, and that their names depend on nothing else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tpuctl.errors import Conflict, Refused, Usage
from tpuctl.flows.preflight import job_folders
from tpuctl.flows.preflight.job_folders import JobFolder
from tpuctl.jobs import file_hashes
from tpuctl.jobs.bundle import LARGE_BYTES, Bundle, build_bundle
from tpuctl.jobs.file_hashes import MIN_FILE_BYTES
from tpuctl.jobs.file_selection import FileRules
from tpuctl.jobs.missing_files import missing_file


def tree(root: Path, **files: str) -> Path:
    """Files by name, with `__` for a dot and `___` for a slash; returns the script."""
    for name, text in {"job__py": "print()", **files}.items():
        path = root / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "job.py"


def files(bundle: Bundle) -> dict[str, dict[str, Any]]:
    """The manifest's files by name."""
    result: dict[str, dict[str, Any]] = json.loads(bundle.manifest)["files"]
    return result


def content(bundle: Bundle, name: str) -> bytes:
    """The content of a file, from its source."""
    file = files(bundle)[name]
    source = bundle.sources[file["sha256"]]
    data = source.path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == file["sha256"]
    assert len(data) == file["size"] == source.size
    return data


def links(bundle: Bundle) -> dict[str, str]:
    result: dict[str, str] = json.loads(bundle.manifest)["links"]
    return result


def names(bundle: Bundle) -> list[str]:
    manifest = json.loads(bundle.manifest)
    return sorted([*manifest["files"], *manifest["folders"], *manifest["links"]])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def test_bundle_has_folder_and_its_digest(source: Path) -> None:
    script = tree(source, lib___model__py="x = 1", data__txt="hello")
    bundle = build_bundle(script)
    assert names(bundle) == ["data.txt", "job.py", "lib", "lib/model.py"]
    assert bundle.script == "job.py"
    assert bundle.files == 3
    assert bundle.size == len("print()x = 1hello")
    assert content(bundle, "lib/model.py") == b"x = 1"
    assert bundle.digest == hashlib.sha256(bundle.manifest).hexdigest()


def test_digest_ignores_location_and_times(tmp_path: Path) -> None:
    first = tree(tmp_path / "one", a___b__txt="b", c__txt="c")
    second = tree(tmp_path / "two/deeper", c__txt="c", a___b__txt="b")
    for path in second.parent.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    first_bundle = build_bundle(first)
    second_bundle = build_bundle(second)
    assert second_bundle.digest == first_bundle.digest
    assert list(second_bundle.sources) == list(first_bundle.sources)


def test_digest_depends_on_content_mode_and_name(source: Path) -> None:
    script = tree(source, run__sh="echo")
    digests = {build_bundle(script).digest}
    (source / "run.sh").chmod(0o755)
    bundle = build_bundle(script)
    executable = {name: file["executable"] for name, file in files(bundle).items()}
    assert executable == {"run.sh": True, "job.py": False}
    (source / "run.sh").write_text("echo 2")
    digests |= {bundle.digest, build_bundle(script).digest}
    (source / "run.sh").rename(source / "run2.sh")
    digests.add(build_bundle(script).digest)
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("rules", "shipped"),
    [
        ("*.txt", ["job.py", "lib", "lib/a.md"]),
        ("*.txt\n!a.txt", ["a.txt", "job.py", "lib", "lib/a.md", "lib/a.txt"]),
        ("/a.txt", ["b.txt", "job.py", "lib", "lib/a.md", "lib/a.txt"]),
        ("lib/", ["a.txt", "b.txt", "job.py"]),
        ("lib\n!lib/a.md", ["a.txt", "b.txt", "job.py"]),
        ("# a.txt\n\nlib/*.txt", ["a.txt", "b.txt", "job.py", "lib", "lib/a.md"]),
        ("\ufefflib/\r\n", ["a.txt", "b.txt", "job.py"]),
    ],
)
@pytest.mark.parametrize("file", [".gitignore", ".tpuctlignore"])
def test_ignore_files_are_respected(
    source: Path, file: str, rules: str, shipped: list[str]
) -> None:
    script = tree(source, a__txt="", b__txt="", lib___a__txt="", lib___a__md="")
    (source / file).write_bytes(rules.encode())
    assert names(build_bundle(script)) == [file, *shipped]


def test_nested_and_tpuctl_ignore_files_take_precedence(source: Path) -> None:
    script = tree(source, __gitignore="*.txt", lib___a__txt="", lib___b__txt="", vocab__txt="")
    tree(source, __tpuctlignore="!/vocab.txt")
    (source / "lib/.gitignore").write_text("!a.txt")
    shipped = names(build_bundle(script))
    assert ("lib/a.txt" in shipped, "lib/b.txt" in shipped) == (True, False)
    assert "vocab.txt" in shipped


def test_ignore_files_of_parent_folders_apply_within_repository(source: Path) -> None:
    (source / ".gitignore").write_text("*.log")  # outside the repository
    repository = source / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / ".gitignore").write_text("*.csv\n/jobs/bert/cache")
    script = tree(repository / "jobs/bert", a__csv="", a__log="", cache___x="", keep="")
    assert names(build_bundle(script)) == ["a.log", "job.py", "keep"]


@pytest.mark.parametrize("rule", ["/build/", "bert", "build/*"])
def test_folder_ignored_by_its_repository_is_uploaded(source: Path, rule: str) -> None:
    (source / ".git").mkdir(parents=True)
    (source / ".gitignore").write_text(f"{rule}\n*.csv\n")
    script = tree(source / "build/bert", a__csv="", __gitignore="*.log", b__log="")
    assert names(build_bundle(script)) == [".gitignore", "a.csv", "job.py"]


def git(folder: Path, *words: str) -> None:
    """Run git without the settings of this machine's user."""
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def repository(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in an empty repository, of a user whose settings are in `gitconfig`."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    git(source, "init", "-q")
    return tree(source)


def test_git_ignores_more_than_ignore_files_name(repository: Path, tmp_path: Path) -> None:
    source = repository.parent
    tree(source, sub___private__txt="", global__txt="", default__txt="")
    (source / ".git/info/exclude").write_text("private.txt\n")
    tree(tmp_path, xdg___git___ignore="default.txt\n", mine="global.txt\n!private.txt\n")
    assert names(build_bundle(repository)) == ["global.txt", "job.py", "sub"]
    git(source, "config", "--global", "core.excludesFile", str(tmp_path / "mine"))
    assert names(build_bundle(repository)) == ["default.txt", "job.py", "sub"]
    tree(source, __gitignore="!global.txt", sub___deeper___job__py="")  # which takes precedence
    built = build_bundle(source / "sub/deeper/job.py", root=source)
    assert "global.txt" in names(built)
    tree(source / "sub/deeper", private__txt="", keep="")
    assert names(build_bundle(source / "sub/deeper/job.py")) == ["job.py", "keep"]


def test_worktrees_share_exclusions_and_submodules_have_their_own(
    repository: Path, tmp_path: Path
) -> None:
    source, other = repository.parent, tmp_path / "other"
    git(source, "commit", "-q", "--allow-empty", "-m", "x")
    tree(other, a__txt="", b__txt="")
    for words in ("init -q", "add .", "commit -q -m x"):
        git(other, *words.split())
    git(source, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "m")
    git(source, "worktree", "add", "-q", str(tmp_path / "tree"))
    (source / ".git/info/exclude").write_text("a.txt\n/outside.txt\n")
    (source / ".git/modules/m/info/exclude").write_text("untracked.txt\n")
    tree(source, a__txt="", outside__txt="", m___untracked__txt="", m___outside__txt="")
    uploaded = {".gitmodules", "job.py", "m", "m/a.txt", "m/b.txt", "m/job.py", "m/outside.txt"}
    assert {*names(build_bundle(repository))} == uploaded
    script = tree(tmp_path / "tree", a__txt="", c__txt="")
    assert names(build_bundle(script)) == ["c.txt", "job.py"]


def test_tracked_files_are_uploaded_even_if_git_ignores_them(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = repository.parent
    tree(source, __gitignore="*.json\ndata/\n", config__json="", data___a__txt="", own__txt="")
    git(source, "add", "-f", "config.json", "data/a.txt", "own.txt")
    tree(source, other__json="", data___b__txt="", __tpuctlignore="own.txt", excluded__json="")
    git(source, "add", "-f", "excluded.json")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")  # as in a hook of another repository
    built = names(build_bundle(repository, exclude=["excluded.json"]))
    ignored = ["other.json", "data/b.txt", "own.txt", "excluded.json"]
    assert built == [".gitignore", ".tpuctlignore", "config.json", "data", "data/a.txt", "job.py"]
    assert not {*ignored} & {*built}
    (source / ".tpuctlignore").write_text("data")
    assert "data/a.txt" not in names(build_bundle(repository))
    monkeypatch.setenv("PATH", "/nonexistent")  # without git, nothing is known to be tracked
    assert "config.json" not in names(build_bundle(repository))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="changes the owner of a file")
def test_repository_of_another_user_is_read_without_running_its_programs(
    repository: Path,
) -> None:
    source = repository.parent
    tree(source, __gitignore="*.json\n", config__json="", hook__sh="#!/bin/sh\ntouch ran\n")
    (source / "hook.sh").chmod(0o755)
    git(source, "add", "-f", "config.json")
    git(source, "config", "core.fsmonitor", str(source / "hook.sh"))
    for path in (source, *source.rglob("*")):
        os.chown(path, 12345, 12345)
    assert "config.json" in names(build_bundle(repository))
    assert not (source / "ran").exists()


def test_excluded_file_has_the_rule_that_excludes_it(repository: Path) -> None:
    source = repository.parent
    tree(source, __gitignore="\n# data\n/data/ \n", data___deep___x="", a__csv="", b__txt="")
    tree(source.parent, outside__py="")
    (source / "data/deep/.tpuctlignore").write_text("y")
    tree(source, data___deep___y="", __env="")
    rules = FileRules(source, ["data/deep/y"], ["*.csv"])
    rule = {
        name: excluded.rule if (excluded := rules.exclusion_of(source / name)) else None
        for name in ("data/deep/x", "data/deep/y", "a.csv", "b.txt", ".env", ".git/HEAD")
    }
    ignore = os.path.relpath(source / ".gitignore")
    assert rule == {
        "data/deep/x": f"{min(ignore, str(source / '.gitignore'), key=len)}:3 (/data/)",
        "data/deep/y": None,
        "a.csv": "job.exclude (*.csv)",
        "b.txt": None,
        ".env": "files with credentials are not uploaded",
        ".git/HEAD": ".git is never uploaded",
    }
    outside = rules.exclusion_of(source.parent / "outside.py")
    assert outside is not None
    assert "outside of the folder" in outside.rule


def test_include_and_exclude_of_stack_file(source: Path) -> None:
    script = tree(source, __gitignore="data/\n*.bin", model__bin="", notes__md="")
    tree(source, data___big__csv="", data___small__csv="")
    bundle = build_bundle(script, include=["data/small.csv", "*.bin"], exclude=["*.md"])
    assert names(bundle) == [".gitignore", "data", "data/small.csv", "job.py", "model.bin"]


@pytest.mark.parametrize(
    "name", ["a b.csv", "it's, [1]*?.csv", "#x: {y}", "!z", "한글.csv", "end "]
)
def test_setting_that_is_suggested_includes_the_file(source: Path, name: str) -> None:
    script = tree(source, __gitignore="*\n!job.py\n")
    for other in (name, "other.csv", "it's, [1]xy.csv"):
        (source / other).touch()
    exclusion = FileRules(source).exclusion_of(source / name)
    assert exclusion is not None
    setting = yaml.safe_load(exclusion.remedy.partition("\n")[2])
    assert names(build_bundle(script, include=setting["job"]["include"])) == sorted(
        [name, "job.py"]
    )


def test_default_exclusions(source: Path) -> None:
    script = tree(source)
    for name in (".git/config", "__pycache__/x.pyc", "env/pyvenv.cfg", "env/bin/python"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    assert names(build_bundle(script, include=["*"])) == ["job.py"]


def test_internal_links_are_kept(source: Path) -> None:
    script = tree(source, lib___a__txt="inside")
    (source / "relative").symlink_to("lib/a.txt")
    (source / "lib/absolute").symlink_to(source / "job.py")
    (source / "folder").symlink_to("lib")
    (source / "itself").symlink_to("itself")
    built = build_bundle(script)
    assert links(built) == {
        "relative": "lib/a.txt",
        "lib/absolute": "../job.py",
        "folder": "lib",
        "itself": "itself",
    }
    assert built.warnings == ()


@pytest.fixture
def outside_links(source: Path, tmp_path: Path) -> Path:
    """A script next to links to a file and to a folder outside."""
    script = tree(source, lib___a__txt="inside")
    tree(tmp_path / "outside", a__txt="a", deep___b__txt="b")
    (tmp_path / "outside/near").symlink_to("a.txt")
    (source / "lib/file").symlink_to(tmp_path / "outside/a.txt")
    (source / "folder").symlink_to("../outside")
    return script


def test_external_links_are_rejected_and_listed(outside_links: Path) -> None:
    with pytest.raises(
        Usage, match=r"folder points to \.\./outside; lib/file points to /"
    ) as caught:
        build_bundle(outside_links)
    hint = caught.value.diagnostics[0].hint
    assert "job: {include: [/folder, /lib/file]}" in hint
    built = build_bundle(outside_links, exclude=["/folder", "/lib/file"])
    assert not {"folder", "lib/file"} & {*names(built)}
    with pytest.raises(Usage, match=r"^[^;]* lib/file points to [^;]*$"):
        build_bundle(outside_links, include=["/folder"])


def test_included_external_links_are_followed_with_warning(outside_links: Path) -> None:
    built = build_bundle(outside_links, include=["/folder", "/lib/file"])
    assert content(built, "lib/file") == b"a"
    assert content(built, "folder/deep/b.txt") == b"b"
    assert links(built)["folder/near"] == "a.txt"
    (warning,) = built.warnings
    assert "folder -> ../outside\n    lib/file -> /" in warning.detail


def test_script_may_be_external_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("print()")
    (source / "train.py").symlink_to("../shared.py")
    built = build_bundle(source / "train.py")
    assert content(built, "train.py") == b"print()"
    assert "train.py -> ../shared.py" in built.warnings[0].detail


def test_external_folder_with_link_cycle_is_rejected(source: Path, tmp_path: Path) -> None:
    script = tree(source)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/again").symlink_to(tmp_path / "outside")
    (source / "folder").symlink_to("../outside")
    with pytest.raises(Usage, match="folder/again points to"):
        build_bundle(script, include=["/folder"])


@pytest.mark.parametrize("include", [[], ["link"]])
@pytest.mark.parametrize("target", ["no-such/../../file", "/no-such"])
def test_broken_external_links_are_rejected(source: Path, target: str, include: list[str]) -> None:
    script = tree(source)
    (source / "link").symlink_to(target)
    with pytest.raises(Usage, match="link points to"):
        build_bundle(script, include=include)


def private_key(kind: serialization.PrivateFormat) -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(
        serialization.Encoding.PEM, kind, serialization.NoEncryption()
    ).decode()


def test_private_keys_are_rejected_by_name(source: Path) -> None:
    script = tree(
        source,
        lib___id_ed25519=private_key(serialization.PrivateFormat.OpenSSH),
        server__pem="some text first\n" + private_key(serialization.PrivateFormat.PKCS8),
        account__json='{"type": "service_account", "private_key": "..."}',
        user__json='{"type": "authorized_user", "refresh_token": "..."}',
    )
    with pytest.raises(Refused) as refused:
        build_bundle(script)
    detail = refused.value.diagnostics[0].detail
    assert detail == "account.json, lib/id_ed25519, server.pem, user.json"


CREDENTIALS = (
    *(".env", ".env.local", "conf/.env", ".envrc", ".netrc", "_netrc", ".git-credentials"),
    *(".npmrc", ".pypirc", ".aws/credentials", "kaggle.json", ".kaggle/kaggle.json", "key.ppk"),
    *(".docker/config.json", ".huggingface/token", ".cache/huggingface/token", ".kube/config"),
    *(".config/gcloud/credentials.db", ".streamlit/secrets.toml", "client_secret_1.json"),
)
NO_CREDENTIALS = (
    *(".env.example", ".env.sample", "env", "environment.env.py", "docker/config.json"),
    *("credentials", ".aws/config", "token", "gcloud/x", ".streamlit/config.toml", ".config/x"),
)


def test_files_with_tokens_are_left_out_and_named(source: Path) -> None:
    script = tree(source, __gitignore="/ignored")
    for name in (*CREDENTIALS, *NO_CREDENTIALS, "ignored/.env"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"{name}: hf_0123456789")
    for include in ([], ["*"], ["conf", ".aws"]):
        built = build_bundle(script, include=[*include, "/.envrc", "kaggle.json"])
        added = {".envrc", "kaggle.json", ".kaggle/kaggle.json"}  # included by their own names
        left_out = {*CREDENTIALS} - added
        assert {*NO_CREDENTIALS} | added <= {*names(built)}
        assert not left_out & {*names(built)}
        (warning,) = built.warnings
        assert "job.secrets" in warning.hint
        reported = {*warning.detail.split(", ")}
        left_out = left_out - {".config/gcloud/credentials.db"} | {".config/gcloud"}
        assert reported - {"ignored/.env"} == left_out
        assert ("ignored/.env" in reported) is (include == ["*"])
        hinted = warning.hint.partition("include: [")[2].partition("]")[0].split(", ")
        assert {f"/{name}" for name in reported} == {*hinted}
    assert not build_bundle(script, exclude=[".*", "key.ppk", "*.json", "conf", "_netrc"]).warnings


def test_files_that_mention_keys_and_ignored_keys_are_accepted(source: Path) -> None:
    script = tree(
        source,
        check__py='PEM = "-----BEGIN PRIVATE KEY-----"\n',
        guide__md="-----BEGIN PRIVATE KEY-----\nyour key here\n-----END PRIVATE KEY-----\n",
        settings__json='{"type": "service", "private_key": ""}',
        public__pem="-----BEGIN PUBLIC KEY-----\n" + "A" * 60 + "\n-----END PUBLIC KEY-----\n",
    )
    assert build_bundle(script).files == 5
    key = private_key(serialization.PrivateFormat.OpenSSH)
    tree(source, __tpuctlignore="/id_*", id_ed25519=key)
    assert "id_ed25519" not in names(build_bundle(script))


def test_git_lfs_pointers_are_named(source: Path) -> None:
    # github.com/git-lfs/git-lfs/blob/main/docs/spec.md
    pointer = (
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
    )
    script = tree(source, weights__h5=pointer, real__h5="x" + pointer, long__txt=pointer * 20)
    (warning,) = build_bundle(script).warnings
    assert warning.detail.startswith("weights.h5: ")
    assert "git lfs pull" in warning.hint
    assert content(build_bundle(script), "weights.h5").decode() == pointer


def test_any_name_that_a_file_system_allows_is_kept(source: Path) -> None:
    script = tree(source, **{"new\nline\x1b[31m": "", "n" * 255: "n"})
    latin = os.fsdecode(b"caf\xe9.txt")
    tree(source, **{latin.replace(".", "__"): "latin", "other": ""})
    (source / "link").symlink_to(latin)
    (source / ".gitignore").write_bytes(b"caf\xe8.txt\nother\n")
    built = build_bundle(script, include=["한글.txt"])
    assert content(built, latin) == b"latin"
    assert links(built) == {"link": latin}
    assert {"n" * 255, "new\nline\x1b[31m"} < {*names(built)}
    (source / ".gitignore").write_bytes(b"caf\xe9.txt\n")
    assert latin not in names(build_bundle(script))


def test_sockets_and_pipes_are_skipped(source: Path) -> None:
    script = tree(source)
    os.mkfifo(source / "pipe")
    os.mkfifo(source / ".env")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(source / "socket"))
        assert names(build_bundle(script)) == ["job.py"]


def test_folder_that_cannot_be_read_is_named(source: Path) -> None:
    script = tree(source)
    inner = os.open(source, os.O_RDONLY)
    for _ in range(20):  # beyond the longest path that the system accepts
        os.mkdir("d" * 250, dir_fd=inner)
        outer, inner = inner, os.open("d" * 250, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    with pytest.raises(Usage, match=r"…d+\S*: File name too long"):
        build_bundle(script)


def test_files_that_vanish_or_lose_permission_are_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tree(source, gone="", locked="")
    opened = Path.open

    def open_file(path: Path, *arguments: Any) -> Any:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        path.with_name("gone").unlink(missing_ok=True)  # after the folder was listed
        return opened(path, *arguments)

    monkeypatch.setattr(Path, "open", open_file)
    with pytest.raises(Conflict, match="gone"):
        build_bundle(script)
    with pytest.raises(Usage, match="locked: Permission denied"):
        build_bundle(script)


def test_ignore_file_that_cannot_be_read_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(source, __gitignore="")

    def read_text(path: Path, *_: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", read_text)
    for work in (FileRules(source).select, lambda: FileRules(source).exclusion_of(source / "x")):
        with pytest.raises(Usage, match=r"\.gitignore: Permission denied"):
            work()


def test_large_bundle_warns_with_bounded_memory(source: Path) -> None:
    script = tree(source)
    with (source / "weights.bin").open("wb") as target:
        target.truncate(LARGE_BYTES + 2_000_000)
    tracemalloc.start()
    try:
        bundle = build_bundle(script)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [warning.summary for warning in bundle.warnings] == ["Bundle is large"]
    assert "weights.bin  52.0 MB" in bundle.warnings[0].detail
    assert peak < 10_000_000


def test_unchanged_large_files_are_not_read_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tree(source, small__txt="small")
    large = source / "large.bin"
    large.write_bytes(random.Random(1).randbytes(MIN_FILE_BYTES * 2))
    hashes = tmp_path / "cache/hashes.json"
    fresh = build_bundle(script)
    assert build_bundle(script, hashes=hashes) == fresh
    assert not hashes.exists(), "a new file may change without a new timestamp"
    wait_until_cacheable(large, monkeypatch)
    assert build_bundle(script, hashes=hashes) == fresh
    assert hashes.parent.stat().st_mode & 0o777 == 0o700
    cached = json.loads(hashes.read_text())
    assert list(cached) == [str(large)]

    # The cache is used: changing it changes the bundle.
    *stamp, _ = cached[str(large)]
    hashes.write_text(json.dumps({str(large): [*stamp, "0" * 64]}))
    assert files(build_bundle(script, hashes=hashes))["large.bin"]["sha256"] == "0" * 64
    modified = large.stat().st_mtime_ns
    with large.open("r+b") as file:  # the same size, and the same times as far as they can be set
        file.write(b"x")
    os.utime(large, ns=(modified, modified))
    changed = build_bundle(script)
    assert changed.digest != fresh.digest
    for text in (hashes.read_text(), json.dumps({str(large): 1}), "[", "1"):
        hashes.write_text(text)
        assert build_bundle(script, hashes=hashes) == changed


def wait_until_cacheable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a file is old enough to be cached: a tenth of a second instead of two."""
    monkeypatch.setattr(file_hashes, "MIN_AGE_NS", 100_000_000)
    deadline = time.time() + 30
    while time.time_ns() - path.stat().st_ctime_ns <= file_hashes.MIN_AGE_NS:
        assert time.time() < deadline
        time.sleep(0.1)


def enlarge(path: Path, size: int) -> None:
    with path.open("wb") as target:
        target.truncate(size)


def test_warning_about_large_files_is_given_once(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tree(source)
    assert build_bundle(script).warnings == ()
    enlarge(source / "old.bin", LARGE_BYTES)
    enlarge(source / "small.bin", 1_000)
    wait_until_cacheable(source / "small.bin", monkeypatch)
    hashes = source.parent / "hashes.json"
    (first,) = build_bundle(script, hashes=hashes).warnings
    assert ("old.bin" in first.detail, "small.bin" in first.detail) == (True, False)
    assert build_bundle(script, hashes=hashes).warnings == ()
    enlarge(source / "new.bin", LARGE_BYTES)
    (second,) = build_bundle(script, hashes=hashes).warnings
    assert ("new.bin" in second.detail, "old.bin" in second.detail) == (True, False)


@pytest.mark.parametrize("can_link", [True, False])
def test_copy_of_bundle_shares_large_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    script = tree(source, lib___run__sh="echo", same="print()")
    (source / "lib/run.sh").chmod(0o700)
    (source / "link").symlink_to("lib/run.sh")
    with (source / "large.bin").open("wb") as target:
        target.truncate(job_folders.MAX_COPIED_BYTES + 1)
    copied: list[Path] = []
    copyfile = shutil.copyfile

    def copy_file(path: Path, target: Path) -> None:
        copied.append(path)
        copyfile(path, target)

    def link(path: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(shutil, "copyfile", copy_file)
    if not can_link:
        monkeypatch.setattr(os, "link", link)
    copy = JobFolder(build_bundle(script), tmp_path / "copy")
    shared = copy.path / "large.bin"
    assert (source / "large.bin") not in copied
    assert shared.stat().st_size == job_folders.MAX_COPIED_BYTES + 1
    assert (copy.path / "lib/run.sh").stat().st_mode & 0o777 == 0o755
    assert (copy.path / "link").readlink() == Path("lib/run.sh")
    for name in ("job.py", "same"):
        (copy.path / name).write_text("changed")
        assert (source / name).read_text() == "print()"
    (copy.path / "lib/new").touch()
    assert copy.keep_written() == 3
    assert sorted(path.name for path in copy.path.rglob("*")) == ["job.py", "lib", "new", "same"]
    assert (source / "large.bin").exists()


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("[Errno 2] No such file or directory: 'data/x.csv'", "data/x.csv"),
        ("ModuleNotFoundError: No module named 'helper'", "helper.py"),
        ("No module named 'helper.more'", "helper.py"),
        ("No module named 'inner'", "src/inner/__init__.py"),
        ("cannot import name 'x' from 'package' (/job/package/__init__.py)", "package/x.py"),
        ("data/x.csv; No such file or directory [Op:ReadFile]", "data/x.csv"),
        ("FileNotFoundError: /job/data/x.csv not found.", "data/x.csv"),
        ("File data/x.csv does not exist", "data/x.csv"),
        ("No such file or directory: '../outside.csv'", "../outside.csv"),
        ("No module named 'sibling'", "../sibling.py"),
        ("No such file or directory: 'job.py'", None),
        ("No such file or directory: 'data/absent'", None),
        ("No module named '.'; '..' \0 / \udce9 " + "x" * 5000, None),
    ],
)
def test_missing_file_of_an_error_is_found(source: Path, message: str, name: str | None) -> None:
    tree(source, __gitignore="/data/\nhelper.py\ninner/\nx.py\n", data___x__csv="", helper__py="")
    tree(source, package___x__py="")
    (source / "src/inner").mkdir(parents=True)
    (source / "src/inner/__init__.py").touch()
    tree(source.parent, outside__csv="", sibling__py="")
    missing = missing_file(message, FileRules(source), "/job", [source.parent])
    path = None if missing is None else os.path.relpath(missing[0], source)
    assert path == name


def test_script_must_be_in_the_uploaded_folder(source: Path) -> None:
    script = tree(source, jobs___train__py="", other___x="")
    with pytest.raises(Usage, match=r"nothing\.py"):
        build_bundle(source / "nothing.py")
    with pytest.raises(Usage, match="outside the uploaded folder"):
        build_bundle(script, root=source / "other")
    assert build_bundle(source / "jobs/train.py", root=source).script == "jobs/train.py"
    (source / ".gitignore").write_text("*.py")
    with pytest.raises(Usage, match="Script is excluded from the upload"):
        build_bundle(script)
