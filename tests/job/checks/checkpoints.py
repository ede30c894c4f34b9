"""Checks of which checkpoint is taken up, whatever befell the files; run with TensorFlow."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

from errors import JobError
from training.checkpoints import Checkpoints

FOLDER = Path(sys.argv[1])
RUN = {"size": "tiny", "batch": 16, "records": "f00d"}
SIZE = 4_000_000  # numbers: a save that takes long enough to be killed in


class Network(tf.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.zeros([size]))
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)


class Run:
    """A network whose every weight is the number of its step, and what its checkpoints said."""

    def __init__(self, folder: Path, size: int = 8, keep: int = 3, **of: object) -> None:
        self.network = Network(size)
        self.said: list[str] = []
        self.checkpoints = Checkpoints(
            str(folder),
            tf.train.Checkpoint(model=self.network),
            of={**RUN, **of},
            keep=keep,
            minutes=60,
            steps=0,
            say=self.said.append,
        )

    def save(self, *steps: int) -> None:
        for step in steps:
            self.network.step.assign(step)
            self.network.weights.assign(tf.fill(self.network.weights.shape, float(step)))
            self.checkpoints.save(step)

    def restored(self) -> int:
        """The step taken up, 0 for none; all of it is of that step."""
        path = self.checkpoints.restore()
        step = int(self.network.step)
        assert path == (self.checkpoints.path(step) if step else None)
        assert bool(tf.reduce_all(self.network.weights == float(step)))
        return step


def train_for_ever(folder: Path) -> None:
    """Save one checkpoint after another until killed."""
    run = Run(folder, SIZE, keep=2)
    step = run.restored()
    print("saving", flush=True)
    while True:
        step += 1
        run.save(step)


def steps_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


if len(sys.argv) > 2:
    train_for_ever(Path(sys.argv[2]))

# Only the newest few stay, each with three files.
folder = FOLDER / "kept"
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


for number, (damage, expected, said) in enumerate(
    [
        (cut_off, 20, "passing over {}/model-30: it was not written to its end"),
        (cut_marker, 20, "passing over {}/model-30: it was not written to its end"),
        (truncate, 20, "model-30.data-00000-of-00001 has 7 of "),
        (lose, 20, "model-30.data-00000-of-00001 is missing"),
        (lose_index, 20, "model-30.index is missing"),
        (spoil, 20, "passing over {}/model-30: "),
        (begin_another, 30, "passing over {}/model-40: it was not written to its end"),
        (stale_state, 30, ""),
    ]
):
    folder = FOLDER / f"damaged-{number}"
    Run(folder).save(10, 20, 30)
    damage(folder)
    run = Run(folder)
    assert run.restored() == expected, damage
    assert "\n".join(run.said).count("passing over") == bool(said), (damage, run.said)
    assert said.format(folder) in "".join(run.said), (damage, run.said)
    # What is left of it goes with the next complete one, and does not come back.
    run.save(50)
    found = {name.partition(".")[0] for name in steps_in(folder)} - {"checkpoint"}
    complete = [10, 20, 30] if expected == 30 else [10, 20]
    assert found == {f"model-{step}" for step in [*complete, 50][-3:]}, (damage, found)
    assert Run(folder).restored() == 50

# Nothing complete at all: the run begins anew, and says so.
folder = FOLDER / "nothing"
Run(folder).save(10)
cut_marker_of = folder / "model-10.json"
cut_marker_of.write_text("{")
run = Run(folder)
assert run.restored() == 0
assert len(run.said) == 1

# An older one goes only once the new one is complete.
folder = FOLDER / "unwritable"
run = Run(folder, keep=1)
run.save(10)
(folder / "model-20.json").mkdir()  # the marker cannot be written
try:
    run.save(20)
except JobError as error:
    assert str(folder) in str(error), error
else:
    raise AssertionError("a save that failed was taken for one that did not")
(folder / "model-20.json").rmdir()
assert Run(folder).restored() == 10

# Numbers that are none are never saved.
folder = FOLDER / "nan"
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

# Another run's are refused, and what differs is named.
try:
    Run(folder, batch=32).restored()
except JobError as error:
    assert error.exit_code == 2
    assert "(batch 16, now 32)" in str(error), error
else:
    raise AssertionError("another run's checkpoint was taken up")

# Asked for by another thread, it is due whatever the clock says, once, and says why.
run = Run(FOLDER / "asked")
assert not run.checkpoints.are_due(5)
run.checkpoints.ask("maintenance notice, X")
assert run.checkpoints.are_due(5)
run.save(5)
assert not run.checkpoints.are_due(6)
assert run.said == ["maintenance notice, X: saving at step 5"]
run.checkpoints.steps = 10
assert not run.checkpoints.are_due(14)
assert run.checkpoints.are_due(15)

# Killed in the midst of a save, again and again: what is there is whole, and never older.
folder = FOLDER / "killed"
generator, newest, within = random.Random(6), 0, 0
for _ in range(int(os.environ.get("KILLS", "2"))):
    command = [sys.executable, __file__, sys.argv[1], str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "saving\n"
        wanted = newest + generator.randrange(2, 6)
        while True:  # until files of that step appear, its marker not among them
            names = steps_in(folder) if folder.exists() else set()
            if any(name.startswith((f"model-{wanted}_temp", f"model-{wanted}.")) for name in names):
                break
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    names = steps_in(folder)
    within += f"model-{wanted}.json" not in names
    run = Run(folder, SIZE, keep=2)
    step = run.restored()
    assert wanted - 1 <= step <= wanted + 1, (step, wanted, names)
    marker = json.loads((folder / f"model-{step}.json").read_text())
    assert marker["step"] == step
    newest = step
assert within, "no kill fell into a save: make SIZE larger"
print("checked")
