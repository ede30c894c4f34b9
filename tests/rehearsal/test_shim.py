"""Unmodified scripts with real TensorFlow, observed from inside for a few steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.rehearsal.observations import (
    Checkpoint,
    Compiled,
    Eager,
    Ended,
    Planned,
    Read,
    Refused,
    Resolver,
    Shape,
    Started,
    Step,
    Strategy,
    Traced,
    Wrote,
)

pytestmark = pytest.mark.tensorflow
Rehearse = Callable[..., Any]


def geometric(first: float, factor: float, count: int) -> list[Any]:
    """Losses of steps that each reduce the error by the same factor."""
    return [pytest.approx(first * factor**number, rel=1e-3) for number in range(count)]


def check_loop(rehearse: Rehearse, python: Path, replicas: int) -> None:
    """A loop of several steps per call, which gets SIGTERM during its second call."""
    mode = "replicas" if replicas > 1 else "xla"
    options: dict[str, Any] = {"python": python, "mode": mode, "replicas": replicas, "steps": 3}
    quiet = ["quiet"] if replicas == 1 else []  # a step without a result also has a loss
    first = rehearse("loop.py", *quiet, **options)
    assert first.code == 0, first.output
    assert "from step 0" in first.output
    assert f"TPU devices: {replicas}" in first.output
    strategy = first.only(Strategy)
    assert (strategy.name, strategy.replicas, strategy.is_stub) == ("TPUStrategy", replicas, True)
    assert strategy.where.line == first.line("tf.distribute.TPUStrategy(resolver)")
    created, initialized = first.all(Resolver)
    assert created.where.line == first.line("TPUClusterResolver(")
    assert initialized.initialized.line == first.line("initialize_tpu_system")
    steps = first.all(Step)
    assert [step.number for step in steps] == [1, 2, 3, 4]  # the current call completes
    assert [step.loss for step in steps] == geometric(1.0, 0.36, 4)
    assert {step.examples for step in steps} == {8 * replicas}
    assert all(0 <= step.waited <= step.seconds for step in steps)
    saved = first.only(Checkpoint)
    assert (saved.action, saved.path, saved.step) == ("saved", "checkpoints/ckpt-4", 4)
    assert saved.where.line == first.line("manager.save")
    ended = first.only(Ended)
    assert (ended.reason, ended.exit, ended.error, ended.grace_expired) == ("steps", 0, None, False)
    if replicas == 1:
        compiled = first.only(Compiled)
        assert compiled.function == "step_fn"
        assert compiled.where.line == first.line("def step_fn")
        assert compiled.shapes == (Shape("float32", (8, 4)), Shape("float32", (8, 1)))
        assert (compiled.dynamic, compiled.trains) == (0, True)


def test_loop_of_several_steps_per_call_is_observed_and_stopped(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    check_loop(rehearse, tensorflow, 1)


@pytest.mark.soak
def test_loop_over_replicas_reports_common_loss_and_is_observed_resuming(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    check_loop(rehearse, tensorflow, 2)
    second = rehearse("loop.py", python=tensorflow, mode="replicas", replicas=2, steps=1)
    assert "from step 4" in second.output
    restored, saved = second.all(Checkpoint)
    assert (restored.action, restored.path) == ("restored", "checkpoints/ckpt-4")
    assert restored.where.line == second.line("checkpoint.restore")
    assert (saved.action, saved.path) == ("saved", "checkpoints/ckpt-6")


@pytest.mark.soak
def test_script_that_ignores_sigterm_is_killed_after_grace(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    rehearsed = rehearse("stubborn.py", python=tensorflow, grace=1)
    assert rehearsed.code == 143
    ended = rehearsed.only(Ended)
    assert (ended.reason, ended.grace_expired) == ("steps", True)
    assert "never" not in rehearsed.output


def test_each_shape_compiles_and_boolean_mask_is_a_dynamic_dimension(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    rehearsed = rehearse("shapes.py", python=tensorflow)
    assert rehearsed.code == 143, rehearsed.output
    assert rehearsed.output.splitlines()[-2:] == ["finally was run", "atexit was run"]
    assert rehearsed.output.count("loss ") == 3  # the fourth step was the last
    compiled = rehearsed.all(Compiled)
    assert [each.shapes for each in compiled] == [
        (Shape("int32", (4, length)), Shape("int32", (4,))) for length in (3, 5)
    ]
    for compilation in compiled:
        assert compilation.function == "train_step"
        assert compilation.where.line == rehearsed.line("def train_step")
        assert compilation.dynamic > 0
        assert compilation.peak > 50 * 8 * 4  # the table alone
    assert len(rehearsed.all(Traced)) == 2
    steps = rehearsed.all(Step)
    assert [step.examples for step in steps] == [4] * 4
    assert all(math.isfinite(step.loss) for step in steps)
    assert [step.waited for step in steps] == [None] * 4  # not a TensorFlow dataset
    assert rehearsed.only(Ended).reason == "steps"
    assert [each.path for each in rehearsed.all(Wrote)] == ["records", "copied"]
    assert [(each.path, each.missing) for each in rehearsed.all(Read)] == [("copied", False)]
    assert rehearsed.all(Resolver) == rehearsed.all(Strategy) == rehearsed.all(Eager) == []


def check_fit(rehearse: Rehearse, python: Path, replicas: int = 1, **more: Any) -> None:
    mode = "replicas" if replicas > 1 else "xla"
    rehearsed = rehearse("fit.py", python=python, mode=mode, replicas=replicas, **more)
    assert rehearsed.code == 0, rehearsed.output
    lines = rehearsed.output.splitlines()
    assert f"replicas {replicas}" in lines
    assert any(line.startswith("epochs 1 ") and "val_loss" in line for line in lines)
    assert "rows (960, 1)" in lines
    assert lines[-1] == "finished"
    planned = rehearsed.only(Planned)
    assert (planned.steps, planned.epochs) == (300, 5)
    assert planned.where.line == rehearsed.line("history = model.fit")
    steps = rehearsed.all(Step)
    assert [step.loss for step in steps] == geometric(4.0, 0.82**2, 4)
    assert [step.examples for step in steps] == [16] * 4
    assert all(0 <= step.waited <= step.seconds for step in steps)
    saved, restored = rehearsed.all(Checkpoint)
    assert (saved.action, saved.path, saved.step) == ("saved", "best.weights.h5", 4)
    assert (restored.action, restored.path) == ("restored", "best.weights.h5")
    assert restored.where.line == rehearsed.line("model.load_weights")
    training = [each for each in rehearsed.all(Compiled) if each.trains]
    shapes = (Shape("float32", (16, 8)), Shape("float32", (16, 1)))
    assert [each.shapes for each in training] == ([shapes] if replicas == 1 else [])
    ended = rehearsed.only(Ended)
    assert (ended.reason, ended.error) == ("finished", None)


def test_fit_stops_after_requested_steps_and_script_continues(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    check_fit(rehearse, tensorflow)


@pytest.mark.soak
def test_fit_runs_over_replicas(rehearse: Rehearse, tensorflow: Path) -> None:
    check_fit(rehearse, tensorflow, 2)


@pytest.mark.soak
def test_second_fit_beyond_requested_steps_ends_the_script(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    rehearsed = rehearse("fit.py", "again", python=tensorflow)
    assert rehearsed.code == 143
    assert "went on" not in rehearsed.output
    assert rehearsed.only(Ended).reason == "steps"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_older_version_is_observed(
    rehearse: Rehearse, image_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = image_python("2.12.0")
    check_loop(rehearse, python, 1)
    check_fit(rehearse, python, folder=tmp_path / "fit")
    check_fit(rehearse, python, 2, folder=tmp_path / "replicas")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_intermediate_version_is_observed(
    rehearse: Rehearse, image_python: Callable[[str], Path]
) -> None:
    check_fit(rehearse, image_python("2.15.0"), 2)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_keras_2_next_to_keras_3_is_observed(
    rehearse: Rehearse, job_python: Path, tmp_path: Path
) -> None:
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    check_fit(rehearse, job_python, environment=legacy)
    check_fit(rehearse, job_python, 2, environment=legacy, folder=tmp_path / "replicas")


def test_refusals_name_operation_and_line(
    rehearse: Rehearse, tensorflow: Path, tmp_path: Path
) -> None:
    (tmp_path / "saving.py").write_text("def save(value): pass\n", "utf-8")
    rehearsed = rehearse("refused.py", python=tensorflow)
    assert rehearsed.code == 1
    assert "LookupError: at the end" in rehearsed.output
    assert "with_arguments TypeError" in rehearsed.output
    assert "eagerly with_arguments TypeError" in rehearsed.output
    assert "eagerly with_unbuilt_model AttributeError" in rehearsed.output
    refused = rehearsed.all(Refused)
    assert [each.where.line for each in refused] == [
        rehearsed.line(text)
        for text in (
            "tf.numpy_function(",
            "gradient = tape.gradient(loss, weight)",
            "if loss > 1:",
            "loss.numpy()",
            "# in the step of an unbuilt model",
            "# in the step of an unbuilt model",
            "# in the layer",
        )
    ]
    [operation] = refused[0].operations
    assert operation.operation == "PyFunc"
    assert operation.where == refused[0].where
    assert refused[0].function == "with_python"
    assert "fixed tensor list size" in refused[1].message
    assert rehearsed.only(Eager).where.line == rehearsed.line("run_eagerly=True")
    assert [step.examples for step in rehearsed.all(Step)] == [32, 32]  # the eager model's
    ended = rehearsed.only(Ended)
    assert (ended.reason, ended.exit) == ("failed", 1)
    assert (ended.error.type, ended.error.message) == ("LookupError", "at the end")
    assert ended.error.where.line == rehearsed.line("raise LookupError")
    assert rehearsed.only(Started).tensorflow == "2.18.0"


def test_operations_of_refusals_are_those_that_xla_lacks(
    rehearse: Rehearse, tensorflow: Path
) -> None:
    rehearsed = rehearse("unsupported.py", python=tensorflow)
    assert rehearsed.code == 0, rehearsed.output
    refused = {each.function: each.operations for each in rehearsed.all(Refused)}
    places = {"branch": "in a branch", "loop": "in a loop", "function": "in another"}
    for name, comment in places.items():
        operations = refused[f"with_{name}"]
        assert [each.operation for each in operations] == ["AsString", "StringLength"]
        assert {each.where.line for each in operations} == {rehearsed.line(f"# {comment}")}
    [operation] = refused["with_text"]
    assert operation.operation == "StringLength"
    assert operation.where.line == rehearsed.line("# of an argument")
