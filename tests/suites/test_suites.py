"""The board of others' suites: how reports are counted, and the quick suites themselves."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from google.iam.v1 import iam_policy_pb2, policy_pb2

from tests.suites.run import (
    FOLDER,
    OURS,
    ROOT,
    Outcome,
    Suite,
    client_tests,
    outcome_of,
    page,
    run,
    sources,
    suites,
    values,
)
from tests.suites.topics import topics

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="passes"/>
<testcase classname="tests.test_a" name="fails"><failure message="501">E</failure></testcase>
<testcase classname="tests.test_a" name="ends"/>
<testcase classname="tests.test_a" name="ends"><error message="at its end">E</error></testcase>
<testcase classname="tests.test_a" name="waits"><skipped message="why"/></testcase>
</testsuite></testsuites>"""
OF_MOCHA = """<testsuite name="Mocha Tests" tests="5">
<testcase classname="Bucket file v1.2 writes" name="0"/>
<testcase classname="Bucket file v1.2 writes" name="0"/>
<testcase classname="Bucket" name="fails"><failure>404&#xA;Error: 404</failure></testcase>
<testcase classname="Bucket" name="fails"><failure>404&#xA;Error: 404</failure></testcase>
<testcase classname="Bucket" name="waits"><skipped/></testcase>
</testsuite>"""
QUICK = [suite for suite in suites() if suite.quick]


def test_each_test_is_counted_once(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcome = outcome_of(report)
    assert (outcome.passed, outcome.skipped) == (1, 1)
    names = [failure.partition(": ")[0] for failure in outcome.failures]
    assert names == ["test_a::fails", "test_a::ends"]


def test_tests_of_the_same_name_in_mocha_are_several(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(OF_MOCHA)
    outcome = outcome_of(report)
    assert (outcome.passed, outcome.skipped) == (2, 1)
    assert outcome.failures == ["Bucket::fails: \n404\nError: 404"] * 2


def test_topics_exist_without_messages() -> None:
    with topics() as variables, grpc.insecure_channel(variables["PUBSUB_EMULATOR_HOST"]) as channel:

        def call(method: str, request: bytes) -> bytes:
            answer: bytes = channel.unary_unary(method)(request, timeout=30)
            return answer

        policy = policy_pb2.Policy(bindings=[{"role": "roles/viewer", "members": ["allUsers"]}])
        change = iam_policy_pb2.SetIamPolicyRequest(resource="topic", policy=policy)
        call("/google.iam.v1.IAMPolicy/SetIamPolicy", change.SerializeToString())
        question = iam_policy_pb2.GetIamPolicyRequest(resource="topic").SerializeToString()
        answer = policy_pb2.Policy.FromString(
            call("/google.iam.v1.IAMPolicy/GetIamPolicy", question)
        )
        assert answer.bindings == policy.bindings
        name = b"\x0a\x05topic"  # field 1, of a topic and of a request for one
        for method in ("CreateTopic", "GetTopic"):
            assert call(f"/google.pubsub.v1.Publisher/{method}", name) == name
        with pytest.raises(grpc.RpcError) as error:
            call("/google.pubsub.v1.Publisher/Publish", b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_variables_may_hold_others() -> None:
    suite = replace(REPOSITORY, variables={"A": "$B/", "C": '{"b": "$unknown"}'})
    assert values(suite, {"B": "http://b"}) == {"A": "http://b/", "C": '{"b": "$unknown"}'}


def test_board_gives_the_reason_or_the_name() -> None:
    suite = suites()[0]
    pattern, reason = next(iter(suite.reasons.items()))
    failures = ["test_x::a: error of ours", f"test_x::b: {pattern.replace(chr(92), '')}"]
    outcomes = {each.name: Outcome(5, 0, []) for each in suites()}
    outcomes[suite.name] = Outcome(5, 1, failures[:1])
    text = page(outcomes, datetime(2026, 11, 29, tzinfo=UTC))
    assert f"| {suite.title} | {suite.version} | 5 | 1 | 1 |" in text
    assert f"| 1 | {OURS}: `test_x::a` |" in text
    assert reason not in text


REPOSITORY = Suite(
    "reader", "A reader's tests", "tests", repository="owner/reader", commit="0123456789abcdef"
)


def test_suite_of_repository_runs_where_there_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert not REPOSITORY.can_run
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert not REPOSITORY.can_run
    (tmp_path / "reader").mkdir()
    assert REPOSITORY.can_run


def test_suite_runs_in_a_copy_of_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "copies"))
    inner = tmp_path / "copies" / "reader" / "inner"
    inner.mkdir(parents=True)
    (inner / "test_it.py").write_text("")
    folder = sources(replace(REPOSITORY, folder="inner"), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["test_it.py"]
    (folder / "output").touch()
    assert [path.name for path in inner.iterdir()] == ["test_it.py"]


def test_clone_at_another_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    clone = str(tmp_path / "reader")
    subprocess.run(["git", "init", "--quiet", clone], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    commit = ["commit", "--quiet", "--allow-empty", "--message", "x"]
    subprocess.run(["git", "-C", clone, *author, *commit], check=True)
    with pytest.raises(SystemExit, match="reader is for 0123456789abcdef"):
        sources(REPOSITORY, tmp_path)


def test_board_keeps_the_lines_of_a_suite_that_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.suites.run.suites", lambda: [REPOSITORY])
    now = datetime(2026, 11, 29, tzinfo=UTC)
    failures = ["test_x::a: error of ours"]
    earlier = page({REPOSITORY.name: Outcome(5, 1, failures)}, now)
    assert "| A reader's tests | owner/reader 0123456789ab | 5 | 1 | 1 |" in earlier
    assert page({}, now, earlier) == earlier
    assert "| A reader's tests | owner/reader 0123456789ab | not run | | |" in page({}, now)


def test_board_tells_suites_with_one_beginning_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [replace(REPOSITORY, name=name, title=f"A client: {name}") for name in ("a", "b")]
    monkeypatch.setattr("tests.suites.run.suites", lambda: pair)
    now = datetime(2026, 11, 29, tzinfo=UTC)
    earlier = page({name: Outcome(5, 1, ["test_x::a: error"]) for name in "ab"}, now)
    assert page({"a": Outcome(5, 1, ["test_x::a: error"])}, now, earlier) == earlier
    cleared = page({"a": Outcome(6, 0, [])}, now, earlier)
    assert "| A client: a | 1 |" not in cleared
    assert "| A client: b | 1 |" in cleared


def test_board_lists_the_clients_of_the_projects_own_tests() -> None:
    rows = list(client_tests())
    assert len(rows) == len(list((ROOT / "tests" / "clients").glob("test_*.py")))
    assert any("test_libraries.py" in row and "tensorstore" in row for row in rows)
    assert any("test_node.py" in row and "@google-cloud/" in row for row in rows)
    text = page({}, datetime(2026, 11, 29, tzinfo=UTC))
    assert all(row in text for row in rows)


@pytest.mark.soak
@pytest.mark.malformed  # some of their calls are, on purpose or not
@pytest.mark.parametrize("suite", QUICK, ids=lambda suite: suite.name)
def test_quick_suite_fails_nowhere_without_a_reason(suite: Suite, tmp_path: Path) -> None:
    outcome = run(suite, tmp_path)
    assert [each for each in outcome.failures if suite.reason(each) == OURS] == []
    assert outcome.passed >= suite.at_least
