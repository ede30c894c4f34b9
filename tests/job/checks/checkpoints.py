"""Checks of restoring checkpoints with damaged files; run by a Python with TensorFlow."""

import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import tensorflow as tf
from settings import options_of

from checkpoints import Checkpoints
from files import JobError

FOLDER = Path(sys.argv[1])
RUN = {"size": "tiny", "batch": 16}
SIZE = 4_000_000  # weights: a save takes long enough to be killed


class Network(tf.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.zeros([size]))
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)


class Run:
    """A network whose weights equal its step, and the log of its checkpoints."""

    def __init__(self, folder: Path, size: int = 8, keep: int = 3, **of: object) -> None:
        self.network = Network(size)
        self.log: list[str] = []
        of = {**RUN, "output": str(folder.parent), "keep_checkpoints": keep, **of}
        self.options = options_of(checkpoint_minutes=60, **of)
        state = tf.train.Checkpoint(model=self.network)
        self.checkpoints = Checkpoints(state, self.options, "f00d", log=self.log.append)

    def save(self, *steps: int) -> None:
        for step in steps:
            self.network.step.assign(step)
            self.network.weights.assign(tf.fill(self.network.weights.shape, float(step)))
            self.checkpoints.save(step)

    def restored(self) -> int:
        """Restore; return the step, 0 for none, after checking that all weights match it."""
        path = self.checkpoints.restore()
        step = int(self.network.step)
        assert path == (self.checkpoints.path(step) if step else None)
        assert bool(tf.reduce_all(self.network.weights == float(step)))
        return step


def train_forever(folder: Path) -> None:
    """Save one checkpoint after another until killed."""
    run = Run(folder, SIZE, keep=2)
    step = run.restored()
    print("saving", flush=True)
    while True:
        step += 1
        run.save(step)


def steps_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def step_of(name: str) -> int:
    """The step whose file has that name; 0 for other files."""
    number = name.removeprefix("model-").partition(".")[0].partition("_")[0]
    return int(number) if number.isdigit() else 0


if len(sys.argv) > 2:
    train_forever(Path(sys.argv[2]))

# Only the newest checkpoints are kept, each with three files.
folder = FOLDER / "kept" / "checkpoints"
run = Run(folder, keep=2)
assert run.restored() == 0
run.save(10, 20, 30)
assert {name.partition(".")[0] for name in steps_in(folder)} == {"model-20", "model-30"}
assert len(steps_in(folder)) == 6
assert Run(folder).restored() == 30


def cut_off(folder: Path) -> None:
    (folder / "model-30.json").unlink()


def cut_marker(folder: Path) -> None:
    text = (folder / "model-30.json").read_text()
    (folder / "model-30.json").write_text(text[: len(text) // 2])


def truncate(folder: Path) -> None:
    os.truncate(folder / "model-30.data-00000-of-00001", 7)


def lose(folder: Path) -> None:
    (folder / "model-30.data-00000-of-00001").unlink()


def lose_index(folder: Path) -> None:
    (folder / "model-30.index").unlink()


def spoil(folder: Path) -> None:
    path = folder / "model-30.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[0] ^= 0xFF
    path.write_bytes(content)


def begin_another(folder: Path) -> None:
    (folder / "model-40_temp").mkdir()
    (folder / "model-40_temp" / "part-00000-of-00001.index").write_bytes(b"x")
    (folder / "model-40.index").write_bytes(b"x")


def stale_state(folder: Path) -> None:
    (folder / "checkpoint").write_text('model_checkpoint_path: "model-99"\n')


for number, (damage, expected, message) in enumerate(
    [
        (cut_off, 20, "skipping {}/model-30: incomplete"),
        (cut_marker, 20, "skipping {}/model-30: incomplete"),
        (truncate, 20, "model-30.data-00000-of-00001 has 7 of "),
        (lose, 20, "model-30.data-00000-of-00001 is missing"),
        (lose_index, 20, "model-30.index is missing"),
        (spoil, 20, "skipping {}/model-30: "),
        (begin_another, 30, "skipping {}/model-40: incomplete"),
        (stale_state, 30, ""),
    ]
):
    folder = FOLDER / f"damaged-{number}" / "checkpoints"
    Run(folder).save(10, 20, 30)
    damage(folder)
    run = Run(folder)
    assert run.restored() == expected, damage
    assert "\n".join(run.log).count("skipping") == bool(message), (damage, run.log)
    assert message.format(folder) in "".join(run.log), (damage, run.log)
    # Leftover files are removed by the next complete save.
    run.save(50)
    remaining = {name.partition(".")[0] for name in steps_in(folder)} - {"checkpoint"}
    complete = [10, 20, 30] if expected == 30 else [10, 20]
    assert remaining == {f"model-{step}" for step in [*complete, 50][-3:]}, (damage, remaining)
    assert Run(folder).restored() == 50

# Without a complete checkpoint the run starts over, and logs it.
folder = FOLDER / "nothing" / "checkpoints"
Run(folder).save(10)
cut_marker_of = folder / "model-10.json"
cut_marker_of.write_text("{")
run = Run(folder)
assert run.restored() == 0
assert len(run.log) == 1

# An old checkpoint is removed only after the new one is complete.
folder = FOLDER / "unwritable" / "checkpoints"
run = Run(folder, keep=1)
run.save(10)
(folder / "model-20.json").mkdir()  # the marker cannot be written
try:
    run.save(20)
except JobError as error:
    assert str(folder) in str(error), error
else:
    raise AssertionError("a failed save raised no error")
(folder / "model-20.json").rmdir()
assert Run(folder).restored() == 10

# Infinite and NaN weights are never saved.
folder = FOLDER / "nan" / "checkpoints"
run = Run(folder)
run.save(10)
for value in (float("nan"), float("inf")):
    run.network.weights[3].assign(value)
    try:
        run.checkpoints.save(20)
    except JobError as error:
        assert str(error).startswith("NaN loss during training: "), error
        assert f"{folder}/model-10 is kept" in str(error), error
    else:
        raise AssertionError(f"{value} was saved")
assert Run(folder).restored() == 10

# Checkpoints of another run are rejected, and the difference is reported.
try:
    Run(folder, batch=32).restored()
except JobError as error:
    assert error.exit_code == 2
    assert "(batch 16, now 32)" in str(error), error
else:
    raise AssertionError("another run's checkpoint was restored")

# A requested save is due immediately, once, and its reason is logged.
run = Run(FOLDER / "asked" / "checkpoints")
assert not run.checkpoints.is_due(5)
run.checkpoints.request_save("maintenance notice, X")
assert run.checkpoints.is_due(5)
run.save(5)
assert not run.checkpoints.is_due(6)
assert run.log == ["maintenance notice, X: saving at step 5"]
run.options.checkpoint_steps = 10
assert not run.checkpoints.is_due(14)
assert run.checkpoints.is_due(15)

# After repeated kills during a save, the newest complete checkpoint is restored.
folder = FOLDER / "killed" / "checkpoints"
generator, newest, within = random.Random(6), 0, 0
for _ in range(int(os.environ.get("KILLS", "2"))):
    script = [*shlex.split(os.environ["FORKED_PYTHON"]), __file__, FOLDER, folder]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "saving\n"
        target_step = newest + generator.randrange(2, 6)
        seen_step = 0
        while seen_step < target_step:  # a later one, if this process had to wait for a processor
            seen_step = max(map(step_of, steps_in(folder)), default=0) if folder.exists() else 0
            assert child.poll() is None
        child.kill()
        child.stdout.read()  # until the forked process has ended, too
    names = steps_in(folder)
    within += f"model-{seen_step}.json" not in names
    run = Run(folder, SIZE, keep=2)
    step = run.restored()
    latest_step = max(map(step_of, names))  # it may be incomplete; the one before it is not
    assert max(seen_step, latest_step) - 1 <= step <= latest_step, (step, seen_step, names)
    marker = json.loads((folder / f"model-{step}.json").read_text())
    assert marker["step"] == step
    newest = step
assert within, "no kill interrupted a save: increase SIZE"
print("checked")
