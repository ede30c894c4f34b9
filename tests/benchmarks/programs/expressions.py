"""Ask XLA for a TPU about the bodies of functions in a file of cases, and keep what it says.

    expressions.py tests/corpus/expressions/bodies.toml [--write]

Prints each body of which the file says something else, and exits with 1 if there are any;
`--write` updates the verdicts. Needs tensorflow-tpu, no TPU.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path
from typing import Any

os.environ.update(
    TPU_LIBRARY_PATH="/nonexistent",  # the import waits for minutes for a TPU otherwise
    TF_CPP_MIN_LOG_LEVEL="3",
)
import tensorflow as tf

SPECS = (
    tf.TensorSpec((4, 8)),
    tf.TensorSpec((16,), tf.int32),
    tf.TensorSpec((), tf.int32),
    tf.TensorSpec((), tf.bool),
    tf.TensorSpec((4, 8), tf.uint8),
)


def verdict(body: dict[str, Any], folder: Path, number: int) -> str:
    path = folder / f"body_{number}.py"
    source = "import tensorflow as tf\n\n\ndef f(x, l, n, b, u):\n"
    path.write_text(source + textwrap.indent(body["source"], "    "), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = tf.function(module.f, jit_compile=True, autograph=body.get("autograph", True))
    try:
        lowered = function.experimental_get_compiler_ir(*SPECS)
        text = lowered(stage="hlo", platform_name="TPU")
    except Exception:  # whatever refuses it
        return "error"
    return "cost" if "<=" in text else "good"


def main(file: Path, is_written: bool) -> int:
    text = file.read_text("utf-8")
    head = text.partition("body = [\n")[0]
    bodies = tomllib.loads(text)["body"]
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, body in enumerate(bodies):
            actual = verdict(body, Path(folder), number)
            if actual != body["verdict"]:
                print(f"{body['verdict']} -> {actual}:\n{body['source']}", flush=True)
                body["verdict"] = actual
                different += 1
    if is_written:
        rows = []
        for body in bodies:
            off = "" if body.get("autograph", True) else "autograph = false, "
            start = "\n" if "\n" in body["source"] else ""
            source = f"{off}source = '''{start}{body['source']}'''"
            rows.append(f'  {{ verdict = "{body["verdict"]}", {source} }},\n')
        file.write_text(f"{head}body = [\n{''.join(rows)}]\n", "utf-8")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--write" in sys.argv))
