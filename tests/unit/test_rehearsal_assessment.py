"""Assessments of rehearsals, from handwritten observations."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.rehearsal.assessment import assess
from tpuctl.preflight.rehearsal.findings import Assessment, Finding, Target
from tpuctl.preflight.rehearsal.observations import parse
from tpuctl.preflight.rehearsal.passes import Mode, Pass

GIB = 1 << 30
V3 = Target("v3-8", "v3", 4, 8, 16 * GIB, per_hour=8.8, is_spot=True, tensorflow="2.18.0")
HERE = {"file": "/job/train.py", "line": 34, "text": "loss = step(x)"}
STARTED = {"kind": "started", "tensorflow": "2.18.0", "keras": "3.15.1", "devices": ["CPU:0"]}
STRATEGY = {"kind": "strategy", "name": "TPUStrategy", "replicas": 1, "where": HERE}
COMPILED = {
    "kind": "compiled",
    "function": "train_step",
    "where": HERE,
    "seconds": 4.2,
    "shapes": [["float32", [8, 32]]],
    "dynamic": 0,
    "peak": GIB,
}
SAVED = {"kind": "checkpoint", "action": "saved", "path": "gs://b/out/ckpt-8", "step": 8}
RESTORED = {"kind": "checkpoint", "action": "restored", "path": "gs://b/out/ckpt-8", "step": 8}
STOPPED = {"kind": "ended", "reason": "steps", "exit": 143}


def steps(*losses: float | None, examples: int = 8, waited: float = 0.0) -> list[dict[str, Any]]:
    common = {"kind": "step", "seconds": 0.5, "waited": waited, "examples": examples}
    return [{**common, "number": i, "loss": loss} for i, loss in enumerate(losses, 1)]


def observed_pass(mode: Mode, *observations: Any, replicas: int = 1, **more: Any) -> Pass:
    """A pass with observations in the shim's format; lists are flattened."""
    flat: list[Any] = []
    for observation in observations:
        flat += observation if isinstance(observation, list) else [observation]
    return Pass(mode, replicas, tuple(parse(map(json.dumps, flat))), **more)


def first(*observations: Any, **more: Any) -> Pass:
    return observed_pass("xla", STARTED, STRATEGY, *observations, **more)


GOOD = first(COMPILED, steps(2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6), SAVED, STOPPED)
RESUMED = observed_pass(
    "replicas", STARTED, RESTORED, steps(1.5, 1.4, examples=64), SAVED, STOPPED, replicas=8
)


def assessment_of(*passes: Pass, target: Target = V3, **more: Any) -> Assessment:
    return assess(passes, target, requested_steps=8, **more)


def finding_of(assessment: Assessment, topic: str) -> Finding:
    [finding] = [candidate for candidate in assessment.findings if candidate.topic == topic]
    return finding


def expect(
    assessment: Assessment,
    topic: str,
    severity: str,
    says: str = "",
    hint: str = "",
    line: int | None = None,
) -> Finding:
    """The only finding on the topic, which has this severity, these parts, and this line."""
    finding = finding_of(assessment, topic)
    assert finding.severity == severity
    assert says in finding.message
    assert hint in finding.hint
    assert line is None or (finding.where is not None and finding.where.line == line)
    return finding


def failed(kind: str, message: str, **more: Any) -> dict[str, Any]:
    """The end of a script with this error at its line 34."""
    error = {"type": kind, "message": message, "where": HERE}
    return {"kind": "ended", "reason": "failed", "exit": 1, "error": error, **more}


def test_good_script_has_no_problems() -> None:
    assessment = assessment_of(GOOD, RESUMED)
    assert assessment.problems == ()
    assert not assessment.has_errors
    expect(assessment, "checkpoint", "fine")
    expect(assessment_of(GOOD), "data", "fine")
    assert "64" in finding_of(assessment, "replicas").message


def test_evaluation_is_not_a_second_compilation() -> None:
    evaluated = {**COMPILED, "trains": False}
    losses = steps(2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6)
    assert assessment_of(first(COMPILED, losses, evaluated, SAVED, STOPPED), RESUMED).problems == ()
    again = assessment_of(first(COMPILED, losses, COMPILED, SAVED, STOPPED), RESUMED)
    assert [finding.topic for finding in again.problems] == ["shapes"]


@pytest.mark.parametrize(
    ("losses", "severity", "says"),
    [
        ((2.3, 2.2, float("nan")), "error", "step 3"),
        ((2.3, 2.2, float("inf")), "error", "step 3"),
        ((0.7, 0.7, 0.7), "risk", ""),
        ((0.7, 0.8, 0.9), "fine", ""),
        ((0.7, 40.0, 900.0), "risk", ""),
        ((None, None, None), "unknown", ""),
        ((0.7,), "fine", ""),
    ],
)
def test_loss_of_few_steps(losses: Any, severity: str, says: str) -> None:
    expect(assessment_of(first(COMPILED, steps(*losses), STOPPED)), "loss", severity, says)


def test_nonfinite_loss_only_on_replicas_names_them() -> None:
    broken = observed_pass("replicas", STARTED, RESTORED, steps(float("nan")), STOPPED, replicas=8)
    expect(assessment_of(GOOD, broken), "loss", "error", "8 replicas")


def test_each_unsupported_operation_is_an_error_at_its_line() -> None:
    line = {"file": "/job/model.py", "line": 7, "text": "tf.py_function(f, [x], x.dtype)"}
    refused = {
        "kind": "refused",
        "function": "train_step",
        "where": HERE,
        "message": "Detected unsupported operations",
        "operations": [
            {"operation": "EagerPyFunc", "where": line},
            {"operation": "PrintV2", "where": None},
            {"operation": "EagerPyFunc", "where": line},
        ],
    }
    ended = failed("InvalidArgumentError", "Detected")
    errors = assessment_of(first(refused, ended, exit_code=1)).problems
    lines = [(error.severity, error.where and error.where.line) for error in errors]
    assert lines == [("error", 7), ("error", 34)]
    assert "EagerPyFunc" in errors[0].message
    assert "py_function" in errors[0].hint
    soft = assessment_of(first({**refused, "is_soft": True}, ended, exit_code=1))
    assert not soft.has_errors
    texts = [finding.message for finding in soft.findings if finding.topic == "compiling"]
    assert "soft placement" in texts[0]


def test_script_failure_is_reported_with_line_and_traceback() -> None:
    ended = failed("ImportError", "No module named 'nothere'")
    tail = ("Traceback", "ImportError: nothere")
    assessment = assessment_of(first(ended, exit_code=1, tail=tail))
    [error] = assessment.problems
    assert (error.severity, error.where and error.where.line) == ("error", 34)
    assert "nothere" in error.message
    assert "Traceback" in error.detail
    assert assessment.has_errors


READ = {"kind": "read", "path": "gs://data/ids.txt", "missing": True}
NOT_FOUND = "Object gs://data/train/part-0.tfrecord not found; HTTP response code 404"


@pytest.mark.parametrize(
    ("observations", "topic", "says", "hint"),
    [
        (
            [failed("NotFoundError", NOT_FOUND)],
            "data",
            "",
            "--sample FOLDER=gs://data/train SCRIPT",
        ),
        # The missing path comes from observed reads.
        ([READ, failed("NotFoundError", "HTTP response code 404")], "data", READ["path"], ""),
        ([READ, failed("ModuleNotFoundError", "No module named 'x'")], "script", "", ""),
        ([failed("ValueError", "gs://data/x has 3 columns, not 4")], "script", "", ""),
    ],
)
def test_missing_data_is_told_from_other_failures(
    observations: list[Any], topic: str, says: str, hint: str
) -> None:
    expect(assessment_of(first(observations, exit_code=1)), topic, "error", says, hint)


def test_failure_only_on_replicas_is_an_error() -> None:
    ended = failed("ValueError", "12 is not divisible by 8")
    second = observed_pass("replicas", STARTED, ended, replicas=8, exit_code=1)
    findings = assessment_of(GOOD, second).findings
    errors = [finding for finding in findings if finding.severity == "error"]
    assert [error.topic for error in errors] == ["replicas"]
    assert "on 8 replicas" in errors[0].message
    assert "12 is not divisible" in errors[0].message


def test_shim_failure_is_not_a_script_error() -> None:
    ended = failed("AttributeError", "no attribute 'seen'")
    ended["error"]["is_tpuctls"] = True
    raised = assessment_of(first(ended, exit_code=1))
    expect(raised, "observing", "error", "bug in tpuctl")
    second = observed_pass("replicas", STARTED, ended, replicas=8, exit_code=1)
    expect(assessment_of(GOOD, second), "observing", "unknown")
    ended = failed("RuntimeError", "a Tensor with 8 elements")
    raised = assessment_of(first(ended, exit_code=1))
    finding = expect(raised, "script", "error", line=34)
    assert finding.message == "RuntimeError: a Tensor with 8 elements"
    assert "bug in tpuctl" not in str(raised)


USER_CODE = """in user code:

    File "/job/train.py", line 31, in train  *
        return strategy.run(step, args=(x,))
    File "/x/tpuctl/simulated_tpu/script_calls.py", line 17, in call_script  *
        return function(*arguments, **keywords)

    AttributeError: 'SymbolicTensor' object has no attribute 'numpy'
"""


def test_error_with_another_type_is_named_as_raised() -> None:
    ended = failed("StagingError", USER_CODE.replace("AttributeError", "KeyError"))
    message = finding_of(assessment_of(first(ended, exit_code=1)), "script").message
    assert message.startswith("KeyError: ")


def test_autographs_calls_are_left_out() -> None:
    ended = failed("AttributeError", USER_CODE)
    text = "AttributeError: 'SymbolicTensor' object has no attribute 'numpy'"
    assert finding_of(assessment_of(first(ended, exit_code=1)), "script").message == text
    message = f"AttributeError: {USER_CODE}"
    refused = {"kind": "refused", "function": "step", "where": HERE, "message": message}
    compiling = assessment_of(first({**refused, "operations": []}, ended, exit_code=1))
    assert finding_of(compiling, "compiling").message == f"step cannot be compiled: {text}"


TPUCTL = Path(__file__).resolve().parents[2] / "tpuctl"
SHIMS = (TPUCTL / "preflight" / "shim", TPUCTL / "simulated_tpu")


def calls_of_script(file: Path) -> list[str]:
    """The calls of what a hook replaces, and of the script's functions, that are not marked."""
    names = {"original", "compiled", "fn", "item", "load", "result", "compute"}
    tree = ast.parse(file.read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    defined = {function.name for function in functions}
    called = [call for call in calls if getattr(call.func, "id", "") in names - defined]
    return [f"{file.name}:{call.lineno}" for call in called]


@pytest.mark.parametrize(
    "file",
    sorted(file for folder in SHIMS for file in folder.rglob("*.py")),
    ids=lambda file: f"{file.parent.name}/{file.stem}",
)
def test_hooks_call_the_script_where_its_exceptions_are_recognized(file: Path) -> None:
    unmarked = calls_of_script(file)
    if file.name == "lowering_session.py":
        unmarked = []  # exceptions are reported by `serve`
    assert unmarked == []


def test_failures_of_child_processes_and_gaps_of_the_shim_are_ignored() -> None:
    child = failed("ImportError", "no such module", process=2)
    finished = {"kind": "ended", "process": 1, "reason": "finished", "exit": 0}
    good = (COMPILED, steps(2.0, 1.9), SAVED)
    assert not assessment_of(first(*good, child, finished, exit_code=0)).has_errors
    bad = assessment_of(first(*good, finished, child, exit_code=1))
    assert "no such module" in finding_of(bad, "script").message
    gap = {"kind": "shim-failed", "action": "Keras", "traceback": "…"}
    assessment = assessment_of(first(gap, COMPILED, steps(2.0, 1.9), SAVED, STOPPED), RESUMED)
    expect(assessment, "observing", "unknown")
    assert not assessment.problems


def test_timeout_is_an_error_unless_there_were_steps() -> None:
    assessment = assessment_of(first(stopped="timeout", seconds=60.0))
    assert assessment.has_errors
    assert "60 s" in finding_of(assessment, "script").message
    some = first(COMPILED, steps(2.0, 1.9), SAVED, stopped="timeout", seconds=60.0)
    assert not assessment_of(some).has_errors
    assert "2 of 8" in finding_of(assessment_of(some), "script").message


def test_script_without_framework_is_unknown() -> None:
    started = {"kind": "started", "tensorflow": None}
    ended = {"kind": "ended", "reason": "finished", "exit": 0}
    assessment = assessment_of(observed_pass("xla", started, ended, exit_code=0))
    [finding] = assessment.findings
    expect(assessment, finding.topic, "unknown", "without importing")


def compiled(*shapes: list[int | None]) -> list[dict[str, Any]]:
    return [{**COMPILED, "shapes": [["int64", dims], ["int64", [8]]]} for dims in shapes]


LENGTHS = (17, 23, 41, 55, 60, 61, 70, 90, 120)


@pytest.mark.parametrize(
    ("compilations", "says", "hint", "absent"),
    [
        # 17 to 60 and 61 become 64, the others 128.
        (compiled(*([8, n] for n in LENGTHS)), "9 times", "multiples of 64: 2 instead of 9", "-"),
        (compiled([8, 64], [3, 64]), "", "drop_remainder=True", "multiples"),
        (compiled([8, 64], [8, 64]), "same shapes", "Python numbers", "-"),
        ({**COMPILED, "dynamic": 12}, "", "", "-"),
    ],
)
def test_varying_shapes_are_a_cost(compilations: Any, says: str, hint: str, absent: str) -> None:
    assessment = assessment_of(first(compilations, steps(2.0, 1.9), SAVED, STOPPED))
    finding = expect(assessment, "shapes", "cost", says, hint)
    assert absent == "-" or absent not in finding.hint


@pytest.mark.parametrize(
    ("peak", "whole", "severity"),
    [
        (15, 64, "risk"),  # one core's share of 64 over 8, close to the limit
        (20, 64, "risk"),
        (20, 8, "unknown"),  # the global batch on one core: less if split over eight
        (1, 8, "fine"),
        (None, 64, "unknown"),
    ],
)
def test_memory_is_compared_with_core_memory(peak: int | None, whole: int, severity: str) -> None:
    size = None if peak is None else peak * GIB
    observed = first({**COMPILED, "peak": size}, steps(2.0, 1.9, examples=8), SAVED, STOPPED)
    losses = steps(1.5, examples=whole)
    replicated = observed_pass("replicas", STARTED, RESTORED, losses, replicas=8)
    expect(assessment_of(observed, replicated), "memory", severity)


@pytest.mark.parametrize(
    ("more", "severity", "says"),
    [
        ({"waited": 0.4}, "cost", "80%"),
        ({"seconds": 0.002, "waited": 0.0018}, "fine", ""),
        ({"waited": None}, "unknown", ""),
    ],
)
def test_slow_input_pipeline_is_a_cost(more: dict[str, Any], severity: str, says: str) -> None:
    observed = [{**step, **more} for step in steps(*[2.0, 1.9] * 4)]
    expect(assessment_of(first(COMPILED, observed, SAVED, STOPPED)), "data", severity, says)


def test_missing_strategy_is_a_cost() -> None:
    observed = observed_pass("xla", STARTED, COMPILED, steps(2.0, 1.9), SAVED, STOPPED)
    expect(assessment_of(observed), "replicas", "cost", "8 cores")


@pytest.mark.parametrize(
    ("passes", "severity", "message"),
    [
        ((first(COMPILED, steps(2.0, 1.9), STOPPED),), "risk", "none in 2 steps"),
        ((GOOD,), "unknown", "was not tested"),
        ((GOOD, RESUMED), "fine", "resumes from step 8"),
        (
            (GOOD, observed_pass("replicas", STARTED, steps(2.3, 2.2), SAVED, replicas=8)),
            *("risk", "starts from scratch"),
        ),
    ],
)
def test_checkpoints(passes: tuple[Pass, ...], severity: str, message: str) -> None:
    expect(assessment_of(*passes), "checkpoint", severity, message)


LOCAL = {**SAVED, "path": "/tmp/ckpt-8", "where": HERE}


def test_local_checkpoint_is_a_risk_even_if_restored() -> None:
    back = {**RESTORED, "path": "/tmp/ckpt-8"}
    again = observed_pass("replicas", STARTED, back, steps(1.5, examples=64), STOPPED, replicas=8)
    assessment = assessment_of(first(COMPILED, steps(2.0, 1.9), LOCAL, STOPPED), again)
    problems = [problem for problem in assessment.problems if problem.topic == "checkpoint"]
    assert [problem.severity for problem in problems] == ["risk"]
    assert "/tmp/ckpt-8" in problems[0].message
    # A copy in the bucket is not local.
    copied = {"kind": "wrote", "path": "gs://b/out/ckpt-8.index"}
    good = (COMPILED, steps(2.0, 1.9), LOCAL, STOPPED)
    again = observed_pass("replicas", STARTED, steps(1.5, examples=64), STOPPED, replicas=8)
    assert not assessment_of(first(*good), RESUMED).problems  # restored from the bucket
    [risk] = assessment_of(first(*good, copied), again).problems
    assert "starts from scratch" in risk.message


PLANNED = {"kind": "planned", "steps": 100_000, "epochs": 1}


def test_compute_bound_run_with_known_steps_is_estimated() -> None:
    observed = first({**COMPILED, "peak": GIB}, PLANNED, steps(2.3, 2.2), SAVED, STOPPED)
    # 8 examples here, 64 on the slice: 492e12 operations, which take 4 chips of 123e12 1 s.
    assessment = assessment_of(observed, RESUMED, operations=492e12 / 8)
    low, high = assessment.estimate.seconds or (0.0, 0.0)
    assert (low, high) == pytest.approx((100_000 / 0.5, 100_000 / 0.15))
    cost = assessment.estimate.dollars
    assert cost is not None
    assert cost[0] == pytest.approx(8.8 * low / 3600)
    says = "100,000 steps in 2.3 to 7.7 days, $490 to $1,600"
    assert says in finding_of(assessment, "estimate").message


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"dynamic": 3}, "dynamic"), ({"peak": 10**13}, "limited by memory bandwidth"), ({}, "")],
)
def test_no_estimate_if_it_would_be_wrong(change: dict[str, Any], reason: str) -> None:
    observed = first({**COMPILED, **change}, PLANNED, steps(2.3, 2.2), SAVED, STOPPED)
    likely = assessment_of(observed, RESUMED, operations=492e12 / 8).estimate
    assert (likely.seconds is None) is bool(reason)
    assert reason in likely.unavailable_reason


def test_no_estimate_without_global_batch() -> None:
    observed = first(COMPILED, PLANNED, steps(2.3, 2.2), SAVED, STOPPED)
    says = "1,000 steps cost $2.44 per second of step time"
    expect(assessment_of(observed, operations=492e12 / 8), "estimate", "unknown", says)


def test_traceback_shows_only_lines_of_script(tmp_path: Path) -> None:
    from tpuctl.preflight.rehearsal.script_process import last_lines

    log = tmp_path / "log"
    log.write_text(
        "2026-11-22 01:54:58.98: I tensorflow/core/platform/cpu_feature_guard.cc:210] AVX2\n"
        "epoch 1\n"
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 3, in <module>\n'
        "    model.fit(data)\n"
        '  File "/images/lib/python3.11/site-packages/keras/fit.py", line 9, in fit\n'
        "    self.step()\n"
        "    ^^^^^^^^^^^\n"
        '  File "/x/tpuctl/preflight/shim/keras_fit.py", line 9, in fit\n'
        "    original()\n"
        '  File "/job/model.py", line 5, in call\n'
        "    raise ValueError\n"
        "ValueError: no\n",
        "utf-8",
    )
    assert last_lines(log) == (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 3, in <module>',
        "    model.fit(data)",
        '  File "/job/model.py", line 5, in call',
        "    raise ValueError",
        "ValueError: no",
    )


def test_converted_exception_shows_only_lines_of_script(tmp_path: Path) -> None:
    from tpuctl.preflight.rehearsal.script_process import last_lines

    log = tmp_path / "log"
    log.write_text(f"Traceback (most recent call last):\nAttributeError: {USER_CODE}", "utf-8")
    assert last_lines(log) == (
        "Traceback (most recent call last):",
        "AttributeError: in user code:",
        '    File "/job/train.py", line 31, in train  *',
        "        return strategy.run(step, args=(x,))",
        "    AttributeError: 'SymbolicTensor' object has no attribute 'numpy'",
    )


def test_last_lines_collapse_progress_bars(tmp_path: Path) -> None:
    from tpuctl.preflight.rehearsal.script_process import last_lines

    log = tmp_path / "log"
    log.write_bytes(b"one\n\r1/8 loss\r2/8 loss\rlast of it\n\n  \nlast\n")
    assert last_lines(log) == ("one", "last of it", "last")
    assert last_lines(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"error": {"type": "OSError", "message": "no room", "where": HERE}}, "no room"),
        ({"grace_expired": True}, "kept running after SIGTERM"),
    ],
)
def test_script_that_fails_at_sigterm_is_a_risk(more: dict[str, Any], message: str) -> None:
    observed = first(COMPILED, steps(*[2.0, 1.9] * 4), SAVED, {**STOPPED, **more})
    expect(assessment_of(observed), "script", "risk", message)
