"""Files that `tpuctl ci` writes: valid by the CI systems' schemas, with valid shell scripts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from tests.ci.hosts import make_repository
from tests.ci.shells import GitLabLoader, require_shell, scripts_of
from tests.support.gcloud import forked
from tests.support.properties import given
from tpuctl import __version__
from tpuctl.errors import Conflict, Usage
from tpuctl.flows.ci.git_checkout import Checkout, checkout_of
from tpuctl.flows.ci.pipeline_setup import setup_steps
from tpuctl.flows.ci.pipeline_text import require_plain, yaml_scalar
from tpuctl.flows.ci.pipelines import SYSTEMS, Pipeline, PipelineOptions, output_path, render, write

SCHEMAS = {
    "github": ["--builtin-schema", "vendor.github-workflows"],
    "gitlab": ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"],
    "cloudbuild": ["--builtin-schema", "vendor.cloudbuild"],
}
STACKS = {
    "plain": "",
    "long": "limits: {max_hours: 30}",
    "no bucket left": "bucket: {keep: false}",
    "short": "limits: {max_hours: 0.5}",
}
DEFAULT_OPTIONS = PipelineOptions()
OPTIONS = {
    "default": DEFAULT_OPTIONS,
    "all": PipelineOptions(
        run_arguments=(
            "-m",
            "package.train",
            "--",
            "--name",
            "it's $HOME; ${{ secrets.X }} `x` # \\",
        ),
        account="trainer@other-project.iam.gserviceaccount.com",
        provider="projects/123/locations/global/workloadIdentityPools/p-1/providers/q",
        push="release/1 and more",
        schedule="0 3 * * 1-5",
        hours=9.5,
        install="./wheels/tpuctl-0.1.0-py3-none-any.whl",
        hash="sha256:" + "0f" * 32,
    ),
    "a command": PipelineOptions(run_arguments=("--", "./train.sh", "a: b", '"')),
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def make(more: str = "", inside: str = "") -> Path:
        folder = make_repository(tmp_path / "repository", "bert-ko", more)
        if inside:
            subfolder = folder / inside
            subfolder.mkdir(parents=True)
            for name in ("tpuctl.yaml", "train.py"):
                (folder / name).rename(subfolder / name)
            folder = subfolder
        monkeypatch.chdir(folder)
        return folder

    return make


def render_pipeline(
    system: str, options: PipelineOptions = DEFAULT_OPTIONS, *, is_included: bool = False
) -> Pipeline:
    checkout = checkout_of(Path())
    stack_file = Path("tpuctl.yaml")
    return render(SYSTEMS[system], stack_file, options, checkout, is_included=is_included)


def load_yaml(text: str) -> Any:
    return yaml.load(text, GitLabLoader)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """Pipeline files for every kind of stack and for all options."""
    patch = pytest.MonkeyPatch()
    files: dict[str, dict[str, Path]] = {system: {} for system in SYSTEMS}
    folder_of_files = tmp_path_factory.mktemp("pipelines")
    for stack, more in STACKS.items():
        folder = make_repository(tmp_path_factory.mktemp("repository") / "r", "bert-ko", more)
        patch.chdir(folder)
        for name, options in OPTIONS.items():
            if stack != "plain" and name != "default":
                continue
            for system in SYSTEMS:
                file = folder_of_files / f"{system}-{stack}-{name}.yml".replace(" ", "-")
                file.write_text(render_pipeline(system, options).text, "utf-8")
                files[system][f"{stack}, {name}"] = file
    patch.undo()
    return files


@pytest.mark.parametrize("system", SYSTEMS)
def test_pipeline_matches_ci_schema(system: str, samples: dict[str, dict[str, Path]]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", *SCHEMAS[system]]
    paths = [str(file) for file in samples[system].values()]
    assert len(paths) == len(STACKS) + len(OPTIONS) - 1
    done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_schemas_reject_invalid_pipelines(repository: Any, tmp_path: Path) -> None:
    repository()
    for system, key in (("github", "runs-on"), ("gitlab", "when")):
        file = tmp_path / f"{system}.yml"
        text = render_pipeline(system).text
        assert f"{key}:" in text
        file.write_text(text.replace(f"{key}:", "nonsense:"), "utf-8")
        command = [sys.executable, "-m", "check_jsonschema", *SCHEMAS[system], str(file)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("system", SYSTEMS)
def test_scripts_are_valid_shell(
    system: str, samples: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    whole = [file.read_text("utf-8") for file in samples[system].values()]
    scripts = {script for text in whole for script in scripts_of(system, text)}
    assert len(scripts) > 5
    together = "\n".join(
        f"check_{n}() {{\n{script}\n}}" for n, script in enumerate(sorted(scripts))
    )
    require_shell(together if system != "cloudbuild" else together.replace("#!/", "# "), tmp_path)


def test_shell_errors_are_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        require_shell("if true; then\n", tmp_path)


# Content ----------------------------------------------------------------------------------------


def test_arguments_are_quoted_correctly(samples: dict[str, dict[str, Path]]) -> None:
    words = list(OPTIONS["all"].run_arguments)
    for system in ("gitlab", "cloudbuild"):
        scripts = scripts_of(system, samples[system]["plain, all"].read_text("utf-8"))
        (line,) = [li for script in scripts for li in script.splitlines() if "ci start" in li]
        assert shlex.split(line)[-len(words) :] == words
    workflow = load_yaml(samples["github"]["plain, all"].read_text("utf-8"))
    (step,) = [s for s in workflow["jobs"]["train"]["steps"] if s.get("id") == "start"]
    # Text that looks like a GitHub expression is escaped by an expression.
    assert step["run"].count("${{") == 2
    line = step["run"].replace("${{ '${{' }}", "${{").strip()
    assert shlex.split(line)[-len(words) :] == words


def test_pipeline_works_in_subfolder(repository: Any) -> None:
    repository(inside="models/bert ko")
    workflow = load_yaml(render_pipeline("github").text)
    assert workflow["defaults"]["run"]["working-directory"] == "models/bert ko"
    assert workflow["env"]["TPUCTL_STACK_FILE"] == "tpuctl.yaml"
    steps = load_yaml(render_pipeline("cloudbuild").text)["steps"]
    assert {
        step["dir"] for step in steps if "tpuctl" in step["script"] and "pip" not in step["script"]
    }
    assert all(step["dir"] == "models/bert ko" for step in steps if "dir" in step)
    assert """cd "$CI_PROJECT_DIR"/'models/bert ko'""" in render_pipeline("gitlab").text


FOLDER = "on/a$HOME ${X} $(id) `id`: 'b' #\"{c}"


def test_hostile_names_stay_names(repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """$$ is a dollar in Cloud Build's fields (substitute-variable-values) and in GitLab's variables
    (ci/variables, "use the $ character"); scripts contain the shell's quoting only."""
    folder = repository(inside=FOLDER)
    monkeypatch.chdir(folder.parents[len(Path(FOLDER).parts) - 1])

    def rendered(system: str) -> Any:
        options = PipelineOptions(push='it: "a" #b')
        checkout, file = checkout_of(Path()), Path(FOLDER, "tpuctl.yaml")
        return load_yaml(render(SYSTEMS[system], file, options, checkout, is_included=False).text)

    typed, doubled = f"{FOLDER}/tpuctl.yaml", f"{FOLDER}/tpuctl.yaml".replace("$", "$$")
    github = rendered("github")
    assert github["env"]["TPUCTL_STACK_FILE"] == typed
    assert (github[True] if True in github else github["on"])["push"]["branches"] == ['it: "a" #b']
    gitlab = rendered("gitlab")
    assert gitlab[".tpu"]["variables"]["TPUCTL_STACK_FILE"] == doubled
    conditions = [rule["if"] for rule in gitlab[".tpuctl"]["rules"]]
    assert conditions[-1].endswith("""$CI_COMMIT_BRANCH == 'it: "a" #b'""")
    assert f"TPUCTL_STACK_FILE={doubled}" in rendered("cloudbuild")["options"]["env"]

    monkeypatch.chdir(folder)
    cloudbuild = load_yaml(render_pipeline("cloudbuild").text)
    folders = {step["dir"] for step in cloudbuild["steps"] if "dir" in step}
    assert folders == {FOLDER.replace("$", "$$")}
    gitlab = load_yaml(render_pipeline("gitlab").text)
    assert shlex.split(gitlab[".tpuctl"]["before_script"][0])[1] == f"$CI_PROJECT_DIR/{FOLDER}"
    assert (
        load_yaml(render_pipeline("github").text)["defaults"]["run"]["working-directory"] == FOLDER
    )


@given(st.text(min_size=1) | st.sampled_from(["on", "NO", "null", "~", ".inf", "off/", "y", "."]))
def test_scalar_is_read_back_as_the_same_text(text: str) -> None:
    try:
        line = yaml_scalar(require_plain(text, "--install"))
    except Usage:
        return
    assert yaml.safe_load(f"key: {line}\nother: [{line}]") == {"key": text, "other": [text]}


def test_steps_fit_into_their_jobs(samples: dict[str, dict[str, Path]]) -> None:
    for name, file in samples["github"].items():
        total, jobs = 0, load_yaml(file.read_text("utf-8"))["jobs"]
        for job in jobs.values():
            parts = [
                int(match[1])
                for step in job["steps"]
                if (match := re.search(r"--for (\d+)m", step.get("run", "")))
            ]
            up = [
                step["timeout-minutes"]
                for step in job["steps"]
                if step.get("name") == "Create the TPU"
            ]
            assert sum(parts) + sum(up) + 10 <= job["timeout-minutes"] <= 360
            assert len(parts) <= 1, "sign-in is renewed"
            total += sum(parts)
        hours = re.search(r"--timeout (\d+)([hm])", file.read_text("utf-8"))
        assert hours is not None
        limit = int(hours[1]) * (60 if hours[2] == "h" else 1)
        assert limit < total, name
    for file in samples["gitlab"].values():
        text = file.read_text("utf-8")
        assert text.count("timeout: 3h") == text.count("--for 150m")


def test_each_following_step_signs_in(samples: dict[str, dict[str, Path]]) -> None:
    for file in samples["github"].values():
        for name, job in load_yaml(file.read_text("utf-8"))["jobs"].items():
            actions = [step.get("uses", "").partition("@")[0] for step in job["steps"]]
            assert actions.count("google-github-actions/auth") == (name != "check")
            may_sign_in = job.get("permissions", {}).get("id-token") == "write"
            assert may_sign_in == (name != "check")


def test_actions_are_pinned_with_version_comment(samples: dict[str, dict[str, Path]]) -> None:
    text = samples["github"]["plain, all"].read_text("utf-8")
    uses = re.findall(r"uses: (.*)", text)
    assert len({action.partition("@")[0] for action in uses}) == 4
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in uses)


@pytest.mark.parametrize("system", SYSTEMS)
def test_this_version_is_installed_with_hashes(system: str, repository: Any) -> None:
    repository()
    text = render_pipeline(system).text
    assert f"pip install --no-deps tpuctl=={__version__}\n" in text
    assert '--require-hashes -r "$lock"' in text
    commands_text = render_pipeline(system, OPTIONS["all"]).text
    assert f"--hash={OPTIONS['all'].hash}" in commands_text
    assert "--no-deps --require-hashes -r /tmp/tpuctl.txt" in commands_text


def test_records_are_read_before_bucket_is_deleted(samples: dict[str, dict[str, Path]]) -> None:
    for system in SYSTEMS:
        with_bucket = samples[system]["plain, default"].read_text("utf-8")
        without_bucket = samples[system]["no bucket left, default"].read_text("utf-8")
        assert with_bucket.index("tpuctl down --yes ||") < with_bucket.index("tpuctl ci summary")
        assert without_bucket.index("tpuctl down --yes ||") > without_bucket.index(
            "tpuctl ci summary"
        )


def test_long_capacity_wait_leaves_log_to_next_job(repository: Any) -> None:
    folder = repository()
    file = folder / "tpuctl.yaml"
    file.write_text(file.read_text("utf-8").replace("tpu: {", "tpu: {queue: true, "))
    jobs = load_yaml(render_pipeline("github").text)["jobs"]
    assert [*jobs] == ["check", "train", "train-2", "down"]
    assert jobs["down"]["needs"] == ["train", "train-2"]


# Defaults and errors ----------------------------------------------------------------------------


def test_account_of_a_domains_project(repository: Any) -> None:
    folder = repository()
    text = re.sub(
        r"id: *[\w-]+", 'id: "example.com:p-roject"', (folder / "tpuctl.yaml").read_text()
    )
    (folder / "tpuctl.yaml").write_text(text, "utf-8")
    expected = "tpuctl-ci@p-roject.example.com.iam.gserviceaccount.com"
    assert render_pipeline("github").account == expected
    assert "@example.com:" not in render_pipeline("gitlab").text


def test_unknown_values_are_placeholders(repository: Any) -> None:
    folder = repository()
    assert "ci start --timeout 4h" in render_pipeline("github").text
    assert render_pipeline("github").text.count("train.py") == 2
    assert set(render_pipeline("github").placeholders) == {"PROJECT_NUMBER"}
    assert not render_pipeline("github", OPTIONS["all"]).placeholders
    (folder / "train.py").unlink()
    unknown = render_pipeline("github")
    assert set(unknown.placeholders) == {"PROJECT_NUMBER", "SCRIPT.py"}
    assert all(placeholder in unknown.text for placeholder in unknown.placeholders)


@pytest.mark.parametrize(
    "options",
    [
        PipelineOptions(run_arguments=("train.py", "--", "two\nlines")),
        PipelineOptions(account="invalid"),
        PipelineOptions(provider="projects/x/pools/y"),
        PipelineOptions(schedule="every monday"),
        PipelineOptions(hours=1000),
        PipelineOptions(hash="md5:1"),
    ],
)
def test_unsupported_pipeline_options_are_rejected(
    options: PipelineOptions, repository: Any
) -> None:
    repository()
    with pytest.raises(Usage):
        render_pipeline("github", options)


def test_stack_named_after_folder_is_rejected(repository: Any) -> None:
    folder = repository()
    file = folder / "tpuctl.yaml"
    file.write_text(file.read_text("utf-8").partition("\n")[2])
    with pytest.raises(Usage) as caught:
        render_pipeline("cloudbuild")
    assert "stack: " in caught.value.diagnostics[0].hint


def test_nothing_is_overwritten(repository: Any) -> None:
    folder = repository()
    checkout = checkout_of(folder)
    assert output_path(SYSTEMS["gitlab"], checkout, None) == folder / ".gitlab-ci.yml"
    write(folder / ".gitlab-ci.yml", "mine")
    assert output_path(SYSTEMS["gitlab"], checkout, None) == folder / ".gitlab/tpu.yml"
    write(folder / ".gitlab/tpu.yml", "mine too")
    with pytest.raises(Conflict):
        output_path(SYSTEMS["gitlab"], checkout, None)
    with pytest.raises(Conflict):
        write(folder / ".gitlab-ci.yml", "theirs")
    assert (folder / ".gitlab-ci.yml").read_text() == "mine"
    assert output_path(SYSTEMS["gitlab"], checkout, Path("other.yml")) == Path("other.yml")


def test_included_file_does_not_define_stages(repository: Any) -> None:
    repository()
    included = load_yaml(render_pipeline("gitlab", is_included=True).text)
    stages = [job["stage"] for job in included.values() if "stage" in job]
    assert "stages" not in included and {*stages} == {"tpu-check", "tpu-train", "tpu-down"}


@pytest.mark.parametrize(
    ("url", "host", "name"),
    [
        ("git@github.com:ann/models.git", "github.com", "ann/models"),
        ("https://github.com/ann/models", "github.com", "ann/models"),
        ("https://token@gitlab.example.com/a/b/c.d.git", "gitlab.example.com", "a/b/c.d"),
        ("ssh://git@host.example:2222/ann/models.git/", "host.example", "ann/models"),
        ("../elsewhere", "", ""),
    ],
)
def test_hosting_service_is_read_from_git_remote(
    tmp_path: Path, url: str, host: str, name: str
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text(
        f'[remote "other"]\n\turl = git@x.example:x/y\n[remote "origin"]\n\turl = {url}\n'
    )
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/feature/x\n")
    (tmp_path / "sub").mkdir()
    assert checkout_of(tmp_path / "sub") == Checkout(
        tmp_path.resolve(), "sub", host, name, "feature/x"
    )


@pytest.mark.parametrize("branch", ["x$(touch${IFS}pwned)", "`id`", 'a"b', "a'||true||'", "a;b"])
def test_unsafe_branch_name_is_ignored(tmp_path: Path, branch: str) -> None:
    """Git allows such names, and users paste the printed setup commands into a shell."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
    assert checkout_of(tmp_path).branch == ""


# The one-time setup -----------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("options", OPTIONS)
def test_setup_is_shell_within_80_columns(
    system: str, options: str, repository: Any, tmp_path: Path
) -> None:
    repository()
    pipeline = render_pipeline(system, OPTIONS[options])
    steps = setup_steps(
        pipeline, checkout_of(Path()), OPTIONS[options], SYSTEMS[system].file, "tpuctl"
    )
    lines = [line for step in steps for line in step.commands]
    assert all(len(line) <= 76 for line in lines if "$" not in line and "--" in line), lines
    require_shell("\n".join(lines), tmp_path)
    text = "\n".join(lines)
    assert "tpuctl doctor --role" in text
    if system == "github":
        assert "assertion.repository == '$REPOSITORY'" in text
        assert "assertion.ref == 'refs/heads/main'" in text
        assert ("perl -pi" in text) == (options != "all")


@pytest.mark.soak
def test_setup_flags_exist_in_gcloud(repository: Any) -> None:
    """All flags in the printed commands are documented by `gcloud --help`."""
    environment = {**os.environ, **forked()}
    repository()
    used_flags: dict[str, set[str]] = {}
    for system in SYSTEMS:
        options = PipelineOptions(push="main")
        steps = setup_steps(
            render_pipeline(system), checkout_of(Path()), options, "f.yml", "tpuctl"
        )
        text = "\n".join(line for step in steps for line in step.commands).replace("\\\n", " ")
        for words in (
            shlex.split(command_line)
            for command_line in text.splitlines()
            if command_line.startswith("gcloud")
        ):
            names = words[1 : next(n for n, word in enumerate(words) if not word.islower())]
            flags = {word.partition("=")[0] for word in words if word.startswith("--")}
            used_flags.setdefault(" ".join(names), set()).update(flags)
    assert len(used_flags) >= 7
    for command, flags in used_flags.items():
        help_text, names = "", command.split()
        while not help_text and names:  # the first arguments may be mistaken for subcommands
            done = subprocess.run(
                ["gcloud", *names, "--help"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            help_text = done.stdout if done.returncode == 0 else ""
            names.pop()
        assert all(flag in help_text for flag in flags), f"{command}: {flags}"


def run_ci_command(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpuctl", "ci", "gitlab", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def test_included_file_is_committed_with_main_file(repository: Any) -> None:
    folder = repository(inside="models/bert")
    assert run_ci_command(folder).stdout.endswith("\n    git add ../../.gitlab-ci.yml\n")
    out = run_ci_command(folder).stdout
    assert "    include: [{local: .gitlab/tpu.yml}]\n" in out
    assert out.endswith("\n    git add ../../.gitlab-ci.yml ../../.gitlab/tpu.yml\n")


def test_missing_repository_is_reported(repository: Any) -> None:
    folder = repository()
    shutil.rmtree(folder / ".git")
    printed = run_ci_command(folder, "--print")
    assert "git init" in printed.stderr and "delete" not in printed.stderr
    stderr = " ".join(run_ci_command(folder).stderr.split())
    assert "git init" in stderr
    assert (
        "delete .gitlab-ci.yml, create the repository there, and run this command again" in stderr
    )
    before = (folder / ".gitlab-ci.yml").read_text("utf-8")
    # If this folder becomes the repository's root, the file stays valid.
    (folder / ".git").mkdir()
    assert render_pipeline("gitlab").text == before
    (folder / ".git").rename(folder.parent / ".git")
    (folder / ".gitlab-ci.yml").unlink()
    assert "../.gitlab-ci.yml" in run_ci_command(folder).stdout


def test_setup_is_in_json_answer(repository: Any) -> None:
    folder = repository()
    command = [sys.executable, "-m", "tpuctl", "ci", "gitlab", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == 0, done.stdout
    assert answer["data"]["file"] == str(folder / ".gitlab-ci.yml")
    assert (folder / ".gitlab-ci.yml").read_text("utf-8") == answer["data"]["text"]
    assert any("oldest_first" in " ".join(step["commands"]) for step in answer["data"]["setup"])
