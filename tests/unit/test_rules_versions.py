"""Names of other TensorFlow versions, and TensorFlow among the dependencies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.model.scripts.requirement_files import allows
from tpuctl.preflight.check import check_path
from tpuctl.preflight.findings import Target

CODES = ("TPU405", "TPU406", "TPU503", "TPU504")
HEAD = "import os\nimport subprocess\nimport sys\n\nimport tensorflow as tf\n\n"


def of(version: str | None) -> Target:
    return Target("vm", version, 8)


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ("s = tf.distribute.TPUStrategy()  # TPU405 error", "2.1.0"),
        ("s = tf.distribute.TPUStrategy()  # TPU405 error", "2.2.0"),
        ("s = tf.distribute.TPUStrategy()", "2.3.0"),
        ("s = tf.distribute.experimental.TPUStrategy()", "2.2.0"),
        ("s = tf.distribute.experimental.TPUStrategy()  # TPU405 risk", "2.3.0"),
        ("s = tf.distribute.experimental.TPUStrategy()  # TPU405 risk", "2.18.0"),
        ("s = tf.distribute.experimental.TPUStrategy()", None),
        ("strategy = tf.distribute.get_strategy()\nstrategy.run(print)  # TPU405 error", "2.1.0"),
        ("strategy = tf.distribute.get_strategy()\nstrategy.run(print)", "2.2.0"),
        ("subprocess.run([])\nclass A:\n    def run(self):\n        pass\nA().run()", "2.1.0"),
        ("s = tf.distribute.get_strategy()\ns.experimental_run_v2(print)", "2.1.0"),
        ("s = tf.distribute.get_strategy()\ns.experimental_run_v2(print)  # TPU405 risk", "2.3.0"),
        ("s = tf.distribute.get_strategy()\ns.experimental_run_v2(print)  # TPU405 risk", None),
        ("s = tf.distribute.get_strategy()\ns.experimental_run_v2(print)  # TPU405 error", "2.4.0"),
        ("tf.contrib.layers.fully_connected(1)  # TPU406 error", "2.18.0"),
        ("tf.placeholder(tf.float32)  # TPU406 error", "2.18.0"),
        ("tf.compat.v1.placeholder(tf.float32)", "2.18.0"),
        ("from tensorflow.contrib import layers  # TPU406 error\nlayers.dense(1)", "2.18.0"),
        ("import tensorflow.contrib.slim as slim  # TPU406 error", "2.18.0"),
        ("tf.keras.optimizers.experimental.AdamW()  # TPU406 error", "2.18.0"),
        ("tf.keras.optimizers.AdamW()", "2.18.0"),
        ("tf.keras.optimizers.AdamW()  # TPU406 error", "2.3.0"),
        ("tf.data.experimental.AUTOTUNE", "2.18.0"),
        ("tf.data.AUTOTUNE  # TPU406 error", "2.3.0"),
        ("tf.data.AUTOTUNE", "2.4.0"),
        ("tf.data.AUTOTUNE", None),
        ("m = tf.keras.Sequential([])\nm.fit_generator([])  # TPU406 error", "2.18.0"),
        ("import keras\nm = keras.Model()\nm.fit([])", "2.18.0"),
        ("tf.log = tf.math.log", "2.18.0"),
        ("from tensorflow.python.framework import ops\nops.get_default_graph()", "2.18.0"),
    ],
)
def test_names_by_version(tmp_path: Path, source: str, version: str | None) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, of(version))


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    a = tf.data.AUTOTUNE\nexcept AttributeError:\n    a = -1",
        "try:\n    from tensorflow.contrib import layers\nexcept ImportError:\n    layers = None",
        "if hasattr(tf.data, 'AUTOTUNE'):\n    a = tf.data.AUTOTUNE",
        "a = tf.data.AUTOTUNE if hasattr(tf.data, 'AUTOTUNE') else -1",
        "a = hasattr(tf.data, 'AUTOTUNE') and tf.data.AUTOTUNE",
        "if tf.__version__ >= '2.4':\n    a = tf.data.AUTOTUNE",
        "NEW = tf.__version__ >= '2.4'\nif NEW:\n    a = tf.data.AUTOTUNE",
        "s = getattr(tf.distribute, 'TPUStrategy', tf.distribute.experimental.TPUStrategy)()",
        "a = getattr(tf.data, 'AUTOTUNE', -1)",
        "def f():\n    if not hasattr(tf.data, 'AUTOTUNE'):\n        return -1\n"
        "    return tf.data.AUTOTUNE",
    ],
)
def test_guarded_uses(tmp_path: Path, source: str) -> None:
    for version in ("2.3.0", "2.18.0"):
        assert RuleChecker(tmp_path, *CODES).findings(HEAD + source, of(version), {}) == []


def test_unrelated_guards_do_not_count(tmp_path: Path) -> None:
    for source in (
        "try:\n    a = tf.data.AUTOTUNE  # TPU406 error\nexcept ValueError:\n    a = -1",
        "if input():\n    a = tf.data.AUTOTUNE  # TPU406 error",
        "a = tf.data.AUTOTUNE  # TPU406 error\nif hasattr(tf, 'x'):\n    a = 1",
    ):
        RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, of("2.3.0"))


def test_keras_2_in_later_versions(tmp_path: Path) -> None:
    name = "tf.keras.layers.experimental.preprocessing.Rescaling(1)"
    checked = RuleChecker(tmp_path, *CODES)
    checked.assert_marked(f"{HEAD}{name}  # TPU406 error", of("2.18.0"))
    checked.assert_marked(f"{HEAD}os.environ['TF_USE_LEGACY_KERAS'] = '1'\n{name}", of("2.18.0"))
    checked.assert_marked(f"{HEAD}{name}", of("2.15.1"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("s.experimental_run_v2(f, args=(x,))", "s.run(f, args=(x,))"),
        ("s = tf.distribute.experimental.TPUStrategy(r)", "s = tf.distribute.TPUStrategy(r)"),
        (
            "s = tf.distribute.experimental.TPUStrategy(r, device_assignment=d)",
            "s = tf.distribute.experimental.TPUStrategy(r, device_assignment=d)",
        ),
    ],
)
def test_new_names_are_suggested(tmp_path: Path, before: str, after: str) -> None:
    assert RuleChecker(tmp_path, *CODES).apply_fixes(HEAD + before, of("2.18.0")) == HEAD + after


REQUIREMENTS = """# what the job needs
tensorflow==2.12.0  # TPU503 error
tensorflow >= 2.12, < 2.16  # TPU503 error
tensorflow[and-cuda]~=2.12.0  # TPU503 error
tensorflow==2.18.0
tensorflow>=2.15
tensorflow
TensorFlow_CPU==2.18.0  # TPU504 risk
tf-nightly  # TPU504 risk
tensorflow-datasets==4.9
tf-keras
tensorflow==2.12; python_version < "3.8"
"""


def test_requirements(tmp_path: Path) -> None:
    checked = RuleChecker(tmp_path, *CODES)
    checked.assert_marked(HEAD, of("2.18.0"), **{"requirements.txt": REQUIREMENTS})
    # A runtime without TensorFlow has no version that could be replaced.
    assert checked.findings(HEAD, of(None), {}) == []


LOADING = (
    "import jax\nimport tensorflow as tf  # tf.data\nos.system('pip install tensorflow-cpu')\n"
)


@pytest.mark.parametrize(
    "source",
    [
        LOADING,
        LOADING.replace("import jax\n", "from flax import linen\nimport jax.numpy as jnp\n"),
        LOADING.replace("import jax\n", "import torch_xla\n"),
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n",
    ],
)
def test_tensorflow_that_loads_data(tmp_path: Path, source: str) -> None:
    checked = RuleChecker(tmp_path, *CODES)
    requirements = "flax\ntensorflow==2.12.0\ntensorflow-cpu==2.12.0\n"
    assert not checked.findings(source, of("2.18.0"), {"requirements.txt": requirements})
    # On the image that the stack file names, pip keeps TensorFlow.
    target = replace(of("2.18.0"), image="tpu-vm-tf-2.18.0-pjrt")
    (finding,) = checked.findings(source, target, {"requirements.txt": requirements})
    assert (finding.code, finding.line, finding.severity) == ("TPU503", 2, "risk")
    assert "job: {framework: " in finding.hint


def test_tensorflow_beside_jax_that_uses_the_tpu(tmp_path: Path) -> None:
    source = HEAD + "import jax\nstrategy = tf.distribute.TPUStrategy()\n"
    files = {"requirements.txt": "tensorflow==2.12.0  # TPU503 error\n"}
    RuleChecker(tmp_path, *CODES).assert_marked(source, of("2.18.0"), **files)


def test_requirements_in_other_files(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "-r base.txt\n-r ../elsewhere.txt\n-r requirements.txt\n",
        "base.txt": "numpy\ntensorflow==2.12.0  # TPU503 error\n",
    }
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD, of("2.18.0"), **files)


def test_dependencies_of_a_project(tmp_path: Path) -> None:
    text = '[project]\nname = "a"\ndependencies = [\n  "numpy",\n  "tensorflow==2.12",\n]\n'
    checked = RuleChecker(tmp_path, *CODES)
    (finding,) = checked.findings(HEAD, of("2.18.0"), {"pyproject.toml": text})
    assert (finding.path.name, finding.line, finding.column, finding.code) == (
        "pyproject.toml",
        5,
        3,
        "TPU503",
    )
    # If there are requirements, only those are installed.
    assert checked.findings(HEAD, of("2.18.0"), {"requirements.txt": "numpy\n"}) == []
    for text in ("not TOML", "project = 1", "[project]\ndependencies = 1"):
        (tmp_path / "requirements.txt").unlink(missing_ok=True)
        assert checked.findings(HEAD, of("2.18.0"), {"pyproject.toml": text}) == []


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run([sys.executable, '-m', 'pip', 'install', 'tensorflow==2.12'])"
        "  # TPU503 error",
        "os.system('pip install tensorflow==2.12.0')  # TPU503 error",
        "subprocess.check_call('pip3 install -q tensorflow-cpu', shell=True)  # TPU504 risk",
        "os.system('pip install -U tensorflow')  # TPU504 risk",
        "os.system('pip install tensorflow')",
        "os.system('pip install tensorflow==2.18.0')",
        "os.system('pip install tensorflow-datasets')",
        "os.system('echo tensorflow==2.12.0')",
        "os.system(input())",
    ],
)
def test_packages_installed_by_script(tmp_path: Path, source: str) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, of("2.18.0"))


@pytest.mark.parametrize(
    ("clauses", "allowed"),
    [
        ("", True),
        ("==2.18.0", True),
        ("==2.18", True),
        ("==2.18.1", False),
        ("==2.18.*", True),
        ("==2.1.*", False),
        ("===2.18.0", True),
        ("!=2.18.0", False),
        ("~=2.15", True),
        ("~=2.15.0", False),
        ("~=2.18.0", True),
        (">=2.16", True),
        (">2.18", False),
        ("<2.18", False),
        ("<=2.18", True),
        (">=2.12,<3", True),
        (">=2.12,<2.16", False),
        (">=2.9", True),
        ("<3", True),
        ("what is this", True),
    ],
)
def test_version_clauses_match_pip(clauses: str, allowed: bool) -> None:
    assert allows(clauses, "2.18.0") is allowed


@pytest.mark.parametrize(
    ("requirements", "source", "reported"),
    [
        ("numpy", "import tensorflow as tf", "train.py:1 error"),
        ("numpy", "from tensorflow import keras", "train.py:1 error"),
        ("numpy\ntensorflow==2.19.0", "import tensorflow as tf", "requirements.txt:2 error"),
        ("numpy\ntensorflow-tpu==2.19.1", "import tensorflow as tf", ""),
        ("jax[tpu]", "import jax\nimport tensorflow as tf", ""),  # which loads data
        ("numpy", "try:\n    import tensorflow\nexcept ImportError:\n    tensorflow = None", ""),
    ],
)
def test_tensorflow_on_image_without_it(
    tmp_path: Path, requirements: str, source: str, reported: str
) -> None:
    target = Target(generation="v6e", image="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e")
    checker = RuleChecker(tmp_path, "TPU506")
    findings = checker.findings(source, target, {"requirements.txt": requirements})
    places = [f"{each.path.name}:{each.line} {each.severity}" for each in findings]
    assert places == ([reported] if reported else [])


def test_tensorflow_of_another_image_or_file(tmp_path: Path) -> None:
    target = Target(generation="v6e", image="tpu-ubuntu2204-base", installs_more=True)
    [finding] = RuleChecker(tmp_path, "TPU506").findings("import tensorflow as tf", target, {})
    assert finding.severity == "risk"
    target = Target(generation="tpu7x", image="ubuntu-accel-2404-amd64-tpu-tpu7x")
    files = {"requirements.txt": "tensorflow-tpu"}
    checker = RuleChecker(tmp_path, "TPU506")
    [finding] = checker.findings("import tensorflow as tf", target, files)
    assert (finding.severity, finding.line) == ("error", 1)
    assert "TensorFlow does not support tpu7x" in finding.message
    target = Target(generation="v6e", image="tpu-ubuntu2204-base", requirements="tpu.txt")
    files = {"requirements.txt": "tensorflow", "tpu.txt": "tensorflow-tpu==2.19.1"}
    checker = RuleChecker(tmp_path, "TPU506")
    assert not checker.findings("import tensorflow as tf", target, files)


def test_line_of_several_scripts_is_as_severe_as_its_worst_use(tmp_path: Path) -> None:
    shared = "import tensorflow as tf\n\n\ndef log():\n    tf.logging.info('x')\n"
    guard = "\nif __name__ == '__main__':\n"
    (tmp_path / "shared.py").write_text(shared, "utf-8")
    (tmp_path / "idle.py").write_text(f"import shared\n{guard}    print(shared)\n", "utf-8")
    (tmp_path / "train.py").write_text(f"import shared\n{guard}    shared.log()\n", "utf-8")
    for script, severities in [
        (tmp_path / "idle.py", ["risk"]),
        (tmp_path / "train.py", ["error"]),
        (tmp_path, ["error"]),
    ]:
        findings = check_path(script, of("2.18.0")).only(["TPU406"]).findings
        assert [finding.severity.value for finding in findings] == severities
