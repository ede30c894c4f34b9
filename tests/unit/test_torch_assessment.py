"""Assessments of rehearsals with PyTorch, from handwritten observations."""

from __future__ import annotations

from typing import Any

from tests.unit.test_rehearsal_assessment import (
    RESTORED,
    SAVED,
    STOPPED,
    finding_of,
    observed_pass,
    steps,
)
from tpuctl.preflight.rehearsal.assessment import assess
from tpuctl.preflight.rehearsal.findings import Assessment, Finding, Target
from tpuctl.preflight.rehearsal.passes import Pass

GIB = 1 << 30
V5E = Target("v5litepod-4", "v5e", 4, 4, 16 * GIB, per_hour=4.8)
STARTED = {"kind": "started", "torch": "2.9.0", "torch_xla": "2.9.0", "others": ["torch"]}
SYNC = {"file": "/job/train.py", "line": 20, "text": "torch_xla.sync()"}
UPDATE = {"file": "/job/train.py", "line": 19, "text": "optimizer.step()"}
MODEL = {"file": "/job/train.py", "line": 9, "text": "torch.linalg.eigvals(x)"}
COMPILED = {
    "kind": "compiled",
    "function": "the step",
    "where": SYNC,
    "seconds": 3.0,
    "shapes": [["float32", [8, 32]]],
    "trains": True,
    "peak": GIB,
    "devices": 4,
}
EIGHT = steps(2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6)


def first(*observations: Any, **more: Any) -> Pass:
    return observed_pass("xla", STARTED, *observations, replicas=4, **more)


def resumed(*observations: Any) -> Pass:
    return observed_pass("replicas", STARTED, *observations, replicas=4)


def assessment_of(*passes: Pass, target: Target = V5E) -> Assessment:
    return assess(passes, target, requested_steps=8)


def problem_of(assessment: Assessment, topic: str) -> Finding:
    [finding] = [problem for problem in assessment.problems if problem.topic == topic]
    return finding


def compiled(batch: int) -> dict[str, Any]:
    return {**COMPILED, "shapes": [["float32", [batch, 32]]]}


def test_good_script_has_no_problems() -> None:
    # The second step's program has the optimizer's state.
    run = first(COMPILED, EIGHT[:1], COMPILED, EIGHT[1:], SAVED, STOPPED)
    assessment = assessment_of(run, resumed(RESTORED, EIGHT[:3]))
    assert assessment.problems == ()
    assert assessment.measured["torch"] == "2.9.0"
    assert finding_of(assessment, "replicas").message == "the step runs on 4 devices"
    assert finding_of(assessment, "memory").severity == "fine"


def test_recompilations_name_their_reason() -> None:
    run = first(compiled(8), EIGHT[:1], compiled(12), EIGHT[1:2], compiled(16), EIGHT[2:], SAVED)
    finding = problem_of(assessment_of(run), "shapes")
    assert finding.severity == "cost"
    assert finding.message == (
        "1 compilation in 3.0 s after step 2, because shapes vary: "
        "the batch of input 1 is 8, 12, 16"
    )
    assert finding.where is not None and finding.where.line == 20
    again = [part for number in range(8) for part in (COMPILED, EIGHT[number])]
    finding = problem_of(assessment_of(first(again, SAVED, STOPPED)), "compiling")
    assert finding.message.startswith("6 compilations in 18.0 s after step 2: ")
    assert "PT_XLA_DEBUG_LEVEL" in finding.hint
    evaluation = {**COMPILED, "trains": False}
    between = [EIGHT[:3], COMPILED, EIGHT[3:4], evaluation, EIGHT[4:5], evaluation, EIGHT[5:]]
    run = first(COMPILED, *between, SAVED, STOPPED)
    assert assessment_of(run).problems == ()


def test_steps_without_synchronization_are_a_cost_at_their_update() -> None:
    missing = [{"kind": "unsynchronized", "where": UPDATE, "after_step": step} for step in range(8)]
    again = [part for number in range(8) for part in (COMPILED, missing[number], EIGHT[number])]
    finding = problem_of(assessment_of(first(again, SAVED, STOPPED)), "compiling")
    assert finding.where is not None and finding.where.line == 19
    assert "torch_xla.sync()" in finding.message
    assert "MpDeviceLoader" in finding.hint


def test_operation_without_xla_is_reported_once_with_its_line() -> None:
    # Its line is found from the second step on.
    operation = {"kind": "fallback", "operation": "aten::linalg_eig", "where": None}
    repeated = [{**operation, "where": MODEL, "after_step": step} for step in range(1, 8)]
    run = first(COMPILED, {**operation, "after_step": 0}, EIGHT, *repeated, SAVED, STOPPED)
    finding = problem_of(assessment_of(run), "transfers")
    assert finding.severity == "cost"
    assert "aten::linalg_eig" in finding.message
    assert finding.where is not None and finding.where.line == 9
    operation = {"kind": "fallback", "operation": "aten::nonzero", "after_step": 0}
    assert assessment_of(first(COMPILED, operation, EIGHT, SAVED, STOPPED)).problems == ()


def test_torch_without_xla_leaves_the_tpu_idle() -> None:
    assessment = assessment_of(first({"kind": "eager", "where": UPDATE}, EIGHT, SAVED, STOPPED))
    [finding] = assessment.problems
    assert (finding.topic, finding.severity) == ("replicas", "cost")
    assert finding.message.endswith("not on the 4 devices of v5litepod-4")
    assert finding.where is not None and finding.where.line == 19
    assert not {"compiling", "memory", "estimate"} & {each.topic for each in assessment.findings}


def test_unsharded_step_is_a_cost() -> None:
    alone = {**COMPILED, "devices": 1}
    finding = problem_of(assessment_of(first(alone, EIGHT, SAVED, STOPPED)), "replicas")
    assert finding.message == "the step runs on 1 of 4 devices of v5litepod-4"
    assert "mark_sharding" in finding.hint
    launched = {"kind": "distributed", "where": None}
    alone = {**COMPILED, "devices": 1}
    finding = finding_of(assessment_of(first(launched, alone, EIGHT, SAVED)), "replicas")
    assert finding.severity == "unknown"
    assert "took the part of 4" in finding.message


def test_infinite_parameters_and_large_memory() -> None:
    infinite = {"kind": "nonfinite", "parameters": 2, "total": 9, "after_step": 8}
    finding = problem_of(assessment_of(first(COMPILED, EIGHT, infinite, SAVED)), "loss")
    assert finding.severity == "error"
    assert "2 of 9 parameters" in finding.message
    assert "set_detect_anomaly" in finding.hint
    large = {**COMPILED, "peak": 20 * GIB}
    finding = problem_of(assessment_of(first(large, EIGHT, SAVED, STOPPED)), "memory")
    assert (finding.severity, finding.hint) == ("risk", "")


def test_only_saved_checkpoints_are_resumed() -> None:
    weights = {**RESTORED, "path": "gs://b/pretrained.pt"}
    run = first(weights, COMPILED, EIGHT, SAVED, STOPPED)
    assert problem_of(assessment_of(run, resumed(weights, EIGHT[:3])), "checkpoint")
    assert assessment_of(run, resumed(weights, RESTORED, EIGHT[:3])).problems == ()
    local = {**SAVED, "path": "/tmp/checkpoint-8.pt"}
    run = first(COMPILED, EIGHT, local, STOPPED)
    assert "torch.save" in problem_of(assessment_of(run), "checkpoint").hint
    uploaded = first(COMPILED, EIGHT, local, STOPPED, outputs=("gs://b/out/checkpoint-8.pt",))
    assert assessment_of(uploaded).problems == ()


def test_script_without_step_says_what_is_observed() -> None:
    finished = {"kind": "ended", "reason": "finished", "exit": 0}
    finding = finding_of(assessment_of(first(finished)), "script")
    assert finding.severity == "unknown"
    assert "torch.optim" in finding.hint
