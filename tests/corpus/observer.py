"""Compiles the corpus's programs with XLA; runs inside an environment that has TensorFlow.

    observer.py cpu|tpu PROGRAM… > LINES

`cpu` runs each program with XLA forced on, as a TPU would compile it: a step called from plain
Python, a function that a TPU strategy runs, and what Keras trains. `tpu` runs it without XLA, then
lowers each of its steps with the operations of a TPU. Prints a line of JSON for each program. Every
program runs in a separate process, forked from one with TensorFlow imported.
"""

from __future__ import annotations

import os
import sys

os.environ.update(
    TF_CPP_MIN_LOG_LEVEL="3",
    TOKENIZERS_PARALLELISM="false",
    CUDA_VISIBLE_DEVICES="",
    FORCE_TF_AVAILABLE="1",  # transformers does not know the package of a TPU's TensorFlow
    TPU_LIBRARY_PATH="/nonexistent",  # otherwise TensorFlow waits for a TPU
)

import importlib.util
import json
import re
import signal
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph_api
from tensorflow.python.framework import func_graph

# An image's Python has no tpuctl. Appended last, so that its neighbors shadow nothing.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tpuctl" / "preflight"))
MODE = sys.argv[1]
LIMIT = 150  # seconds for one program
CHECKS = ("Assert", "CheckNumerics", "CheckNumericsV2")
DUMPED = re.compile(r"module_\d+\.(.+?)\.\d*\.?before_optimizations\.txt$")
# The name of a traced function: its own, and a number that differs for each trace.
TRACED = re.compile(r"^a_inference_(.+?)_\d+(?:__.*)?$")
UNKNOWN = 8  # examples, if a pipeline's batch size is unknown
KEPT: list[Any] = []  # owners of methods, which are lowered after the program has ended
plain_function = tf.function


class Step:
    """A function of the program that a TPU would compile when called from plain Python."""

    def __init__(self, function: Any, options: dict[str, Any], recorded: list[Any]) -> None:
        options = {key: value for key, value in options.items() if key != "jit_compile"}
        self.traced = plain_function(function, **options)
        self.compiled = plain_function(function, jit_compile=True, **options)
        self.recorded = recorded
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "step")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not tf.executing_eagerly():
            return self.traced(*arguments, **keywords)
        results = (self.compiled if MODE == "cpu" else self.traced)(*arguments, **keywords)
        if not any(record[0] is self.traced for record in self.recorded):
            self.recorded.append((self.traced, arguments, keywords))
        return results

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self
        bound = f"_bound_{self.__name__}_{id(self)}"
        if bound not in owner.__dict__:
            method = Step.__new__(Step)
            method.traced = self.traced.__get__(owner, kind)
            method.compiled = self.compiled.__get__(owner, kind)
            method.recorded, method.__name__ = self.recorded, self.__name__
            KEPT.append(owner)
            object.__setattr__(owner, bound, method)
        return owner.__dict__[bound]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["traced"], name)


class Strategy(tf.distribute.OneDeviceStrategy):
    """A TPU's strategy with one replica; it compiles the functions it runs."""

    recorded: list[Any]

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__("CPU:0")
        self.steps: dict[Any, Any] = {}

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        step = self.steps.get(fn)
        if step is None:
            converted = autograph_api.tf_convert(fn, ag_ctx.control_status_ctx())
            name = getattr(fn, "__name__", "step")
            step = plain_function(converted, autograph=False, jit_compile=MODE == "cpu")
            step._name = name
            self.steps[fn] = step
            self.recorded.append((converted, args, kwargs or {}))
        return super().run(step, args, kwargs)


class Resolver:
    """A resolver that silently finds no TPU."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @staticmethod
    def connect(*_: Any, **__: Any) -> Resolver:
        return Resolver()

    def master(self) -> str:
        return ""


def observe(program: Path) -> dict[str, Any]:
    """Run one program in this process, which cannot be reused."""
    import keras

    source = program.read_text("utf-8")
    recorded: list[Any] = []
    lost: set[str] = set()
    stand_in_for_tpu(recorded)
    note_lost_checks(program, lost)
    if "TPUStrategy" not in source:
        force_functions(program.stem, recorded)
    force_keras(source, recorded)
    with tempfile.TemporaryDirectory() as dumps:
        if MODE == "cpu":
            flags = (
                f"--xla_dump_to={dumps} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
            )
            os.environ["XLA_FLAGS"] = flags
        observation: dict[str, Any] = {}
        keras.utils.set_random_seed(7)
        try:
            load(program).train()
        except Exception as error:  # any error of a program is a result
            observation |= refusal(error, program) if MODE == "cpu" else not_lowered(error)
        if MODE == "cpu":
            observation |= compilations(Path(dumps))
        if not {"refused", "unlowered"} & set(observation):
            observation |= lowered(recorded, program, observation.get("dynamic", 0))
    return observation | {"lost": sorted(lost)}


def stand_in_for_tpu(recorded: list[Any]) -> None:
    Strategy.recorded = recorded
    tf.distribute.TPUStrategy = tf.distribute.experimental.TPUStrategy = Strategy
    tf.distribute.cluster_resolver.TPUClusterResolver = Resolver
    tf.config.experimental_connect_to_cluster = lambda *_, **__: None
    tf.tpu.experimental.initialize_tpu_system = lambda *_, **__: None


def note_lost_checks(program: Path, lost: set[str]) -> None:
    """Watch for the program's own checks in compiled code; pipelines keep theirs."""
    create = func_graph.FuncGraph._create_op_internal

    def noted(graph: Any, op_type: str, *arguments: Any, **keywords: Any) -> Any:
        operation = create(graph, op_type, *arguments, **keywords)
        if op_type in CHECKS and is_of(program, [frame.filename for frame in operation.traceback]):
            lost.add(op_type)
        return operation

    func_graph.FuncGraph._create_op_internal = noted


def is_of(program: Path, files: list[str]) -> bool:
    """Whether the caller is in the program's folder, and not in a library or a pipeline."""
    if any("/tensorflow/python/data/" in file for file in files):
        return False
    user_files = [file for file in files if "/tensorflow/" not in file and file != __file__]
    return bool(user_files) and program.parent in Path(user_files[-1]).parents


def force_functions(module: str, recorded: list[Any]) -> None:
    def function(func: Any = None, **options: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") != module:
            return plain_function(func, **options)
        if func is None:
            return lambda function: Step(function, options, recorded)
        return Step(func, options, recorded)

    tf.function = function


def force_keras(source: str, recorded: list[Any]) -> None:
    import keras

    kinds = [keras.Model]
    if "tf_keras" in source or "transformers" in source:
        import tf_keras

        kinds.append(tf_keras.Model)
    for kind in kinds:
        compile_, fit = kind.compile, kind.fit

        def compiled(self: Any, *arguments: Any, _of: Any = compile_, **options: Any) -> Any:
            options |= {"jit_compile": MODE == "cpu", "run_eagerly": False}
            return _of(self, *arguments, **options)

        def fitted(self: Any, *arguments: Any, _of: Any = fit, **options: Any) -> Any:
            self.train_step = noted_step(self.train_step, recorded)
            return _of(self, *arguments, **options | {"verbose": 0})

        kind.compile, kind.fit = compiled, fitted


def noted_step(train_step: Any, recorded: list[Any]) -> Any:
    """Wrap it, recording the arguments of its first trace."""
    known: list[Any] = []

    def noted(data: Any) -> Any:
        if train_step not in known:
            known.append(train_step)
            converted = autograph_api.tf_convert(train_step, ag_ctx.control_status_ctx())
            recorded.append((converted, (data,), {}))
        return train_step(data)

    return noted


def load(program: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[program.stem] = module
    sys.path.insert(0, str(program.parent))  # as Python does with a program's folder
    spec.loader.exec_module(module)
    return module


def refusal(error: Exception, program: Path) -> dict[str, Any]:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == program
    ]
    text = str(error)
    lines += [
        int(number) for number in re.findall(re.escape(str(program)) + r'", line (\d+)', text)
    ]
    return {"refused": f"{type(error).__name__}: {text}", "line": lines[-1] if lines else None}


def compilations(dumps: Path) -> dict[str, Any]:
    """Count compilations of the most often compiled function, and unknown dimensions."""
    counted: dict[str, int] = {}
    dynamic = 0
    for path in sorted(dumps.glob("*before_optimizations.txt")):
        match = DUMPED.search(path.name)
        name_match = TRACED.match(match.group(1)) if match else None
        if name_match is None:
            continue
        counted[name_match.group(1)] = counted.get(name_match.group(1), 0) + 1
        dynamic = max(dynamic, path.read_text("utf-8", "replace").count("<="))
    return {"compilations": counted, "dynamic": dynamic}


def lowered(recorded: list[Any], program: Path, dynamic: int) -> dict[str, Any]:
    """Lower the program's compiled functions with arguments of known shapes only.

    This matches a TPU; compiling for this machine's CPU may turn their values into constants.
    """
    for function, arguments, keywords in recorded:
        try:
            query_step = asked_for(function, arguments, keywords)
        except Exception as error:
            return not_lowered(error)
        try:
            text = query_step(stage="hlo", **({"platform_name": "TPU"} if MODE == "tpu" else {}))
        except Exception as error:
            return refusal(error, program)
        dynamic = max(dynamic, text.count("<="))
    return {"lowered": len(recorded), "dynamic": dynamic}


def asked_for(function: Any, arguments: Any, keywords: Any) -> Any:
    """Return the function to lower; for an absent TPU, variables become arguments."""
    leaves = tf.nest.flatten((arguments, keywords))
    tensors = [index for index, leaf in enumerate(leaves) if is_array(leaf)]
    specs = [spec_of(leaves[index]) for index in tensors]

    def flat(*values: Any) -> Any:
        given = list(leaves)
        for index, value in zip(tensors, values, strict=True):
            given[index] = value
        packed, packed_named = tf.nest.pack_sequence_as((arguments, keywords), given)
        return [
            leaf for leaf in tf.nest.flatten(function(*packed, **packed_named)) if is_array(leaf)
        ]

    whole = plain_function(flat, jit_compile=True, autograph=False)
    if MODE == "cpu":
        return whole.experimental_get_compiler_ir(*specs)
    from shim.tensorflow.pure_function import PureFunction

    traced = plain_function(flat, jit_compile=True, autograph=False)  # branches as in XLA
    step = PureFunction(traced.get_concrete_function(*specs))
    compiled = plain_function(step, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*step.variables, *specs)


def not_lowered(error: Exception) -> dict[str, Any]:
    return {"unlowered": f"{type(error).__name__}: {error}"}


def is_array(value: Any) -> bool:
    return tf.is_tensor(value) or hasattr(value, "__array__")


def spec_of(value: Any) -> tf.TensorSpec:
    tensor = value if tf.is_tensor(value) else tf.convert_to_tensor(value)
    shape = [UNKNOWN if size is None else size for size in tensor.shape]
    return tf.TensorSpec(shape, tensor.dtype)


def answer(program: Path) -> dict[str, Any]:
    """Observe in a separate process and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "observation.json")
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(LIMIT)
                quiet = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
                written.write_text(json.dumps(observe(program)), "utf-8")
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if written.exists():
            return dict(json.loads(written.read_text("utf-8")))
        log = Path(folder, "log").read_text("utf-8", "replace")
        return {"crashed": f"status {status}: {log[-1500:]}"}


def main(programs: list[Path]) -> None:
    import keras  # noqa: F401  (once for all that are forked)

    sources = "".join(path.read_text("utf-8") for path in programs)
    if "tf_keras" in sources or "transformers" in sources:
        import tf_keras  # noqa: F401
    if "transformers" in sources:
        import transformers  # noqa: F401
    for program in programs:
        print(json.dumps({"program": program.name, **answer(program)}), flush=True)


if __name__ == "__main__":
    main([Path(argument).resolve() for argument in sys.argv[2:]])
