"""Keras 3 is checked for the framework that it computes with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.check import check_project, default_target
from tpuctl.preflight.findings import Target

LAYER = """
import os
{setting}
import keras
from keras import ops


class Gate(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            x = x * 2
        return x / 2 if ops.mean(x) > 1 else x{mark}


inputs = keras.Input((8,))
model = keras.Model(inputs, Gate()(inputs))
"""
MARK = "  # TPU601 error"


@pytest.mark.parametrize(
    ("setting", "is_jax"),
    [
        ('os.environ["KERAS_BACKEND"] = "jax"', True),
        ('os.environ.setdefault("KERAS_BACKEND", "jax")', True),
        ('os.environ.update({"KERAS_BACKEND": "jax"})', True),
        ('os.environ.update(KERAS_BACKEND="jax")', True),
        ('os.environ |= {"KERAS_BACKEND": "jax"}', True),
        ('from os import environ\nenviron["KERAS_BACKEND"] = "jax"', True),
        ('os.environ["KERAS_BACKEND"] = "tensorflow"', False),
        ('# os.environ["KERAS_BACKEND"] = "jax"', False),
        ('"""os.environ["KERAS_BACKEND"] = "jax"."""', False),
        ('settings = {}\nsettings["KERAS_BACKEND"] = "jax"', False),
    ],
)
def test_layers_are_judged_by_backend(tmp_path: Path, setting: str, is_jax: bool) -> None:
    source = LAYER.format(setting=setting, mark=MARK if is_jax else "")
    RuleChecker(tmp_path, "TPU6").assert_marked(source, default_target())
    reported = RuleChecker(tmp_path, "TPU0").findings(source, default_target(), {})
    assert bool(reported) != is_jax, reported


@pytest.mark.parametrize(
    ("setting", "variable", "is_jax"),
    [
        ("", "jax", True),
        ("", "tensorflow", False),
        ('os.environ.setdefault("KERAS_BACKEND", "jax")', "tensorflow", False),
        ('os.environ.setdefault("KERAS_BACKEND", "tensorflow")', "jax", True),
        ('os.environ["KERAS_BACKEND"] = "jax"', "tensorflow", True),
    ],
)
def test_job_sets_backend(tmp_path: Path, setting: str, variable: str, is_jax: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(LAYER.format(setting=setting, mark=""))
    target = Target(tensorflow="2.18.0", environment=(("KERAS_BACKEND", variable),))
    report = check_project(script, target)
    codes = {finding.code for finding in report.findings}
    assert ("TPU601" in codes, "TPU001" in codes) == (is_jax, not is_jax)
    assert report.framework == ("jax" if is_jax else "tensorflow")


def test_data_of_tensorflow_for_keras_on_jax(tmp_path: Path) -> None:
    source = LAYER.format(
        setting='os.environ["KERAS_BACKEND"] = "jax"\nimport tensorflow as tf', mark=MARK
    )
    RuleChecker(tmp_path, "TPU0", "TPU6").assert_marked(source, default_target())
