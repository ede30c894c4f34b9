"""Assessments of rehearsals with JAX, from handwritten observations."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.unit.test_rehearsal_assessment import (
    SAVED,
    STOPPED,
    failed,
    finding_of,
    observed_pass,
    steps,
)
from tpuctl.preflight.rehearsal.assessment import assess
from tpuctl.preflight.rehearsal.findings import Assessment, Target
from tpuctl.preflight.rehearsal.job_packages import for_cpu, without_tensorflow
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.preflight.shim.jax.compiled_functions import JaxFunction

GIB = 1 << 30
V5E = Target("v5litepod-4", "v5e", 4, 4, 16 * GIB, per_hour=4.8)
STARTED = {"kind": "started", "tensorflow": None, "jax": "0.10.2", "others": ["jax"]}
DEFINITION = {"file": "/job/train.py", "line": 8, "text": "def train_step(state, batch):"}
LOOP = {"file": "/job/train.py", "line": 30, "text": "print(float(loss))"}
COMPILED = {
    "kind": "compiled",
    "function": "train_step",
    "where": DEFINITION,
    "seconds": 3.0,
    "shapes": [["float32", [8, 32]]],
    "names": ["batch['x']"],
    "changes": [],
    "peak": GIB,
    "devices": 4,
}
EIGHT = steps(2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6)


def first(*observations: Any, **more: Any) -> Pass:
    return observed_pass("xla", STARTED, *observations, replicas=4, **more)


def assessment_of(*passes: Pass, target: Target = V5E) -> Assessment:
    return assess(passes, target, requested_steps=8)


def compiled(batch: int, **more: Any) -> dict[str, Any]:
    return {**COMPILED, "shapes": [["float32", [batch, 32]]], **more}


def test_large_constants_are_a_cost_at_the_function() -> None:
    [finding] = [
        problem
        for problem in assessment_of(first(compiled(8, constants=GIB), EIGHT)).problems
        if problem.topic == "memory"
    ]
    assert "1.0 GiB of arrays from outside" in finding.message
    assert (finding.severity, finding.where is None) == ("cost", False)
    small = assessment_of(first(compiled(8, constants=1 << 20), EIGHT))
    assert "from outside" not in str(small)


def test_same_random_key_is_a_risk() -> None:
    assessment = assessment_of(first(compiled(8), EIGHT, {"kind": "samekey"}))
    assert finding_of(assessment, "randomness").severity == "risk"
    assert "randomness" not in str(assessment_of(first(compiled(8), EIGHT)))


def test_slow_setting_is_a_cost_at_its_line() -> None:
    configured = {"kind": "configured", "setting": "jax_debug_nans", "where": LOOP}
    [finding] = [
        each
        for each in assessment_of(first(compiled(8), EIGHT, configured)).problems
        if each.topic == "settings"
    ]
    assert (finding.severity, finding.message.split(":")[0]) == ("cost", "jax_debug_nans")
    assert finding.where is not None and finding.where.line == LOOP["line"]


def test_save_that_is_not_due_is_no_risk() -> None:
    assessment = assessment_of(first(compiled(8), EIGHT, {"kind": "postponed", "where": LOOP}))
    assert finding_of(assessment, "checkpoint").severity == "unknown"
    never = assessment_of(first(compiled(8), EIGHT))
    assert finding_of(never, "checkpoint").severity == "risk"


def test_copies_that_differ_are_a_risk_at_the_function() -> None:
    diverged = {"kind": "diverged", "function": "train_step", "where": DEFINITION}
    assessment = assessment_of(first(compiled(8), EIGHT, diverged))
    [finding] = [each for each in assessment.problems if each.topic == "replicas"]
    assert finding.severity == "risk"
    assert finding.where is not None and finding.where.line == DEFINITION["line"]


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("Array has been deleted with shape=float32[16,4].", "donate_argnums"),
        ("unbound axis name: data", "shard_map"),
    ],
)
def test_error_of_jax_has_a_hint(message: str, hint: str) -> None:
    ended = failed("RuntimeError", message)
    assert hint in finding_of(assessment_of(first(ended, exit_code=1)), "script").hint


def test_good_script_has_no_problems() -> None:
    restored = {**SAVED, "action": "restored"}
    second = observed_pass("replicas", STARTED, restored, steps(1.5, 1.4), replicas=4)
    assessment = assessment_of(first(COMPILED, EIGHT, SAVED, STOPPED), second)
    assert assessment.problems == ()
    assert finding_of(assessment, "replicas").message == "the step runs on 4 devices"
    assert finding_of(assessment, "checkpoint").severity == "fine"
    assert assessment.measured["jax"] == "0.10.2"


def test_recompilations_name_their_reason() -> None:
    shapes = [compiled(8), compiled(12, changes=["batch['x']: …"]), compiled(16)]
    finding = finding_of(assessment_of(first(*shapes, EIGHT, SAVED, STOPPED)), "shapes")
    assert finding.severity == "cost"
    assert finding.message == (
        "train_step was compiled 3 times in 9 s, because shapes vary: "
        "the batch of batch['x'] is 8, 12, 16"
    )
    assert finding.where is not None and finding.where.line == 8
    again = {**COMPILED, "changes": ["state.count: on any device, then on 4 devices as P()"]}
    assessment = assessment_of(first(COMPILED, again, EIGHT, SAVED, STOPPED))
    finding = finding_of(assessment, "compiling")
    assert "compiled 2 times" in finding.message and "placed differently" in finding.message
    assert finding.detail == "state.count: on any device, then on 4 devices as P()"
    assert "jax.device_put" in finding.hint
    again = {**COMPILED, "changes": ["rate: 0.1, then 0.2"]}
    finding = finding_of(assessment_of(first(COMPILED, again, EIGHT, SAVED, STOPPED)), "shapes")
    assert finding.detail == "rate: 0.1, then 0.2"
    evaluation = {**compiled(12), "function": "evaluate", "trains": False}
    evaluations = [evaluation, {**evaluation, "shapes": [["float32", [16, 32]]]}]
    assessment = assessment_of(first(COMPILED, *evaluations, EIGHT, SAVED, STOPPED))
    assert "shapes" not in {finding.topic for finding in assessment.findings}


def test_value_read_after_every_step_is_reported_once() -> None:
    reads = [{"kind": "fetched", "where": LOOP, "after_step": number} for number in range(1, 8)]
    finding = finding_of(assessment_of(first(COMPILED, EIGHT, *reads, STOPPED)), "transfers")
    assert finding.severity == "cost"
    assert finding.where is not None and finding.where.line == 30
    reads = [{"kind": "fetched", "where": LOOP, "after_step": number} for number in (1, 4, 7)]
    finding = finding_of(assessment_of(first(COMPILED, EIGHT, *reads, STOPPED)), "transfers")
    assert finding.severity == "fine"


def test_callbacks_and_gradients_outside_of_the_step_are_a_cost() -> None:
    callback = {"kind": "callback", "function": "jax.debug.print", "where": DEFINITION}
    reported = assessment_of(first(callback, COMPILED, EIGHT, STOPPED)).findings
    [finding] = [each for each in reported if "jax.debug.print" in each.message]
    assert finding.severity == "cost"
    eager = {"kind": "eager", "where": LOOP}
    finding = finding_of(assessment_of(first(eager, EIGHT, SAVED, STOPPED)), "compiling")
    assert finding.severity == "cost" and "jax.jit" in finding.message


def test_operations_compiled_between_steps_are_reported_by_line() -> None:
    grown = [
        {"kind": "compiled", "function": "concatenate", "where": LOOP, "after_step": number}
        for number in range(1, 8)
    ]
    assessment = assessment_of(first(COMPILED, EIGHT, *grown, STOPPED))
    [finding] = [
        finding
        for finding in assessment.findings
        if finding.topic == "compiling" and finding.severity == "cost"
    ]
    assert "concatenate" in finding.message and "5 times" in finding.message  # after two steps
    early = assessment_of(first(COMPILED, EIGHT, *grown[:2], STOPPED))
    assert finding_of(early, "compiling").severity == "fine"


def test_nan_suggests_setting_of_jax() -> None:
    losses = steps(2.3, float("nan"), 2.1)
    finding = finding_of(assessment_of(first(COMPILED, losses, SAVED, STOPPED)), "loss")
    assert finding.severity == "error"
    assert "jax_debug_nans" in finding.hint


def test_idle_devices_are_a_cost_and_other_workers_were_not_tested() -> None:
    alone = {**COMPILED, "devices": 1}
    finding = finding_of(assessment_of(first(alone, EIGHT, SAVED, STOPPED)), "replicas")
    assert finding.severity == "cost"
    assert finding.message == "the step runs on 1 of 4 devices of v5litepod-4"
    slice_of_four = Target("v5litepod-16", "v5e", 16, 16, 16 * GIB, workers=4)
    everywhere = {**COMPILED, "devices": 16}
    run = observed_pass("xla", STARTED, everywhere, EIGHT, SAVED, STOPPED, replicas=16)
    finding = finding_of(assessment_of(run, target=slice_of_four), "replicas")
    assert finding.severity == "unknown"
    assert "tpuctl --cloud local run" in finding.hint


def test_what_counts_as_saved() -> None:
    wrote = [{"kind": "wrote", "path": path} for path in ("/job/weights.npy", "/job/train.log")]
    finding = finding_of(assessment_of(first(COMPILED, EIGHT, *wrote, STOPPED)), "checkpoint")
    assert finding.severity == "risk"
    assert finding.detail.splitlines()[1:] == ["/job/weights.npy"]
    assert "orbax" in finding.hint
    outputs = ("gs://b/out/events.out.tfevents.1", "gs://b/out/weights.npz")
    run = first(COMPILED, EIGHT, STOPPED, outputs=outputs)
    finding = finding_of(assessment_of(run), "checkpoint")
    assert finding.severity == "unknown"
    assert "gs://b/out/weights.npz" in finding.message and "events" not in finding.message
    only_logs = first(COMPILED, EIGHT, STOPPED, outputs=outputs[:1])
    assert finding_of(assessment_of(only_logs), "checkpoint").severity == "risk"
    inference = {**COMPILED, "trains": False}
    run = first(inference, steps(None, None, None), STOPPED)
    topics = {finding.topic for finding in assessment_of(run).findings}
    assert not topics & {"loss", "checkpoint"}


def test_script_without_step_says_what_is_observed() -> None:
    finished = {"kind": "ended", "reason": "finished", "exit": 0}
    finding = finding_of(assessment_of(first(finished)), "script")
    assert finding.severity == "unknown"
    assert "jax.jit" in finding.hint


def test_requirements_for_a_cpu_have_nothing_for_tpus() -> None:
    requirements = (
        "jax[tpu]==0.10.2  # the newest\n"
        "libtpu==0.0.42 \\\n    --hash=sha256:00\n"
        "JAX[k8s, tpu]>=0.6\n"
        "torch_xla[tpu]~=2.9\n"
        "-f https://example.com/libtpu-releases/index.html\n"
        "libtpu-tools\noptax\n"
        "tensorflow_tpu==2.19.1\ntensorflow-tpu-tools\n"
    )
    assert for_cpu(requirements) == (
        "jax==0.10.2  # the newest\n"
        "JAX[k8s]>=0.6\n"
        "torch_xla~=2.9\n"
        "-f https://example.com/libtpu-releases/index.html\n"
        "libtpu-tools\noptax\n"
        "tensorflow==2.19.1\ntensorflow-tpu-tools\n"
    )
    # Nor another TensorFlow than the environment's.
    requirements = (
        "tensorflow==2.19.0 \\\n    --hash=sha256:00\nTensorFlow_TPU\ntensorflow-datasets\n"
        "tensorflow-cpu>=2.18  # for loading\nkeras\n"
    )
    assert without_tensorflow(requirements) == "tensorflow-datasets\nkeras\n"


def test_stand_in_for_a_compiled_function_is_an_instance_of_jaxs_protocol() -> None:
    """Since Python 3.12, protocols overlook what __getattr__ returns."""
    for name in ("__call__", "trace", "lower"):  # of jax.stages.Wrapped
        assert inspect.getattr_static(JaxFunction, name)
