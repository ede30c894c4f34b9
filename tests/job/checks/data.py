"""Checks of what TensorFlow reads from the records. First argument: a folder."""

import sys
from pathlib import Path

import numpy
import tensorflow as tf

import files
from corpus import records, wordpiece
from corpus.encoding import Encoder
from errors import JobError
from training.masking import mask
from training.reading import damaged_file, dataset, held_out

WORK = Path(sys.argv[1])
SAMPLE = files.text_files(str(Path(files.__file__).parent / "sample"))
SIZE, LENGTH, PREDICTIONS = 2000, 32, 5
TOKENIZER = wordpiece.train(SAMPLE, SIZE)
SHAPES = {
    "input_ids": (LENGTH, tf.int32),
    "input_mask": (LENGTH, tf.int32),
    "segment_ids": (LENGTH, tf.int32),
    "masked_lm_positions": (PREDICTIONS, tf.int32),
    "masked_lm_ids": (PREDICTIONS, tf.int32),
    "masked_lm_weights": (PREDICTIONS, tf.float32),
    "next_sentence_labels": (None, tf.int32),
}


def written(name, **changes):
    values = {"sequence_length": LENGTH, "predictions": PREDICTIONS, "duplication": 2}
    plan = records.RecordsPlan(**{**values, "shards": 3, "seed": 7, **changes})
    folder = str(WORK / name)
    return folder, records.write(SAMPLE, TOKENIZER, plan, folder, "key", 1)


def put_back(batch):
    """The rows before masking, by the predictions; and which places were hidden."""
    tokens = batch["input_ids"].numpy().copy()
    hidden = numpy.zeros(tokens.shape, bool)
    rows, places = numpy.nonzero(batch["masked_lm_weights"].numpy())
    columns = batch["masked_lm_positions"].numpy()[rows, places]
    tokens[rows, columns] = batch["masked_lm_ids"].numpy()[rows, places]
    hidden[rows, columns] = True
    return tokens, hidden


def check_shapes(batches, batch):
    for name, (width, kind) in SHAPES.items():
        spec = batches.element_spec[name]
        assert spec.shape == ([batch] if width is None else [batch, width]), (name, spec)
        assert spec.dtype == kind
    assert set(batches.element_spec) == set(SHAPES)


def check_transformers():
    from transformers import AutoTokenizer

    folder = str(WORK / "tokenizer")
    wordpiece.save(TOKENIZER, folder, "key")
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("아침에 일어나면 창문을 연다.", "ㅋㅋ 漢字 Café"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == TOKENIZER.encode(text).ids
    assert theirs.mask_token_id == TOKENIZER.token_to_id("[MASK]")


def check_static():
    """Every record is there once in an epoch, and what belongs together still does."""
    folder, manifest = written("static")
    total = manifest["counts"]["sequences"]
    batches = dataset(folder, manifest, 1, 5, 0)
    check_shapes(batches, 1)
    rows = {}
    predictions = pairs = 0
    for one in batches.take(total):
        tokens, hidden = put_back(one)
        length = int(one["input_mask"].numpy().sum())
        segments = one["segment_ids"].numpy()[0]
        separators = numpy.flatnonzero(tokens[0] == 3)
        assert len(separators) == 2 and separators[1] == length - 1
        assert (
            segments == (numpy.arange(LENGTH) > separators[0]) * (numpy.arange(LENGTH) < length)
        ).all()
        assert not one["input_mask"].numpy()[0, length:].any() and tokens[0, 0] == 2
        predictions += int(hidden.sum())
        pairs += int(one["next_sentence_labels"].numpy()[0])
        key = (one["input_ids"].numpy().tobytes(), tokens.tobytes())
        rows[key] = rows.get(key, 0) + 1
    assert predictions == manifest["counts"]["predictions"]
    assert pairs == manifest["counts"]["pairs_from_elsewhere"]
    again = {}
    for one in dataset(folder, manifest, 1, 5, total).take(total):
        key = (one["input_ids"].numpy().tobytes(), put_back(one)[0].tobytes())
        again[key] = again.get(key, 0) + 1
    assert again == rows


def check_resume(masking):
    """What follows a step does not depend on where reading began."""
    folder, manifest = written(masking, masking=masking)
    total, batch = manifest["counts"]["sequences"], 16
    steps = 2 * total // batch + 3  # into the third epoch

    def rows(step, count, seed=5):
        taken = dataset(folder, manifest, batch, seed, step).take(count)
        return [row.tobytes() for one in taken for row in one["input_ids"].numpy()]

    whole = rows(0, steps)
    for step in (1, total // batch, total // batch + 1, steps - 2):
        assert rows(step, steps - step) == whole[step * batch :], step
    assert rows(0, 1, seed=6) != whole[:batch]
    epochs = [whole[:total], whole[total : 2 * total]]
    assert epochs[0] != epochs[1]
    # Static records come back as they were; dynamic ones are hidden in another way.
    assert (sorted(epochs[0]) == sorted(epochs[1])) == (masking == "static")


def check_dynamic():
    """The same text as with static masking, other places in each epoch, and whole words."""
    folder, manifest = written("dynamic", masking="dynamic")
    total, batch = manifest["counts"]["sequences"], 8
    goes_on = Encoder(TOKENIZER.to_str()).goes_on
    batches = dataset(folder, manifest, batch, 5, 0)
    check_shapes(batches, batch)
    texts, masks = [], {}
    kinds = {"hidden": 0, "left": 0, "changed": 0}
    wanted = 0
    for one in batches.take(20 * total // batch):
        tokens, hidden = put_back(one)
        shown, lengths = one["input_ids"].numpy(), one["input_mask"].numpy().sum(axis=1)
        assert (shown[~hidden] == tokens[~hidden]).all()
        special = (tokens == 2) | (tokens == 3) | (numpy.arange(LENGTH) >= lengths[:, None])
        assert not (hidden & special).any() and special[:, 0].all()
        follows = goes_on[tokens[:, 1:]] & ~special[:, :-1]
        assert (hidden[:, 1:] == hidden[:, :-1])[follows].all()
        kinds["hidden"] += int((shown[hidden] == 4).sum())
        kinds["left"] += int((shown[hidden] == tokens[hidden]).sum())
        changed = hidden & (shown != 4) & (shown != tokens)
        kinds["changed"] += int(changed.sum())
        assert (shown[changed] > 4).all()
        budget = numpy.clip(numpy.rint(0.15 * (lengths - 3)), 1, PREDICTIONS)
        assert (hidden.sum(axis=1) <= budget).all()
        wanted += int(budget.sum())
        for row, places in zip(tokens, one["masked_lm_positions"].numpy(), strict=True):
            texts.append(row.tobytes())
            masks.setdefault(row.tobytes(), set()).add(places.tobytes())
    chosen = sum(kinds.values())
    # Whole words do not always fill the few places of so short a sequence.
    assert 0.8 * wanted < chosen <= wanted, (chosen, wanted)
    deviation = 4 * (0.16 / chosen) ** 0.5
    assert abs(kinds["hidden"] / chosen - 0.8) < deviation, kinds
    assert abs(kinds["changed"] / chosen - 0.1) < deviation, kinds
    assert sorted(texts[:total]) == sorted(texts[total : 2 * total])
    assert sum(len(places) > 1 for places in masks.values()) > 0.9 * len(masks)


def check_every_word_is_as_likely():
    """Over many draws each word of a sequence is hidden as often as another of its length."""
    words = numpy.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 2, 1, 4, 1, 1, 2, 1, 1, 2])
    starts = numpy.zeros(LENGTH, bool)
    starts[1 + numpy.cumsum(words) - words] = True
    candidates = (numpy.arange(LENGTH) > 0) & (numpy.arange(LENGTH) <= words.sum())
    many = 4000
    tokens = tf.tile(tf.range(100, 100 + LENGTH)[None], [many, 1])
    special = {"padding": 0, "unknown": 1, "start": 2, "separator": 3, "mask": 4}
    found = mask(
        tokens,
        tf.tile(candidates[None], [many, 1]),
        tf.tile(starts[None], [many, 1]),
        PREDICTIONS,
        special,
        SIZE,
        tf.constant([40, 1], tf.int64),
    )
    _, hidden = put_back(found)
    often = hidden.mean(axis=0)[starts]
    for length in (1, 2):
        shares = often[words == length]
        assert shares.max() - shares.min() < 6 * (0.15 * 0.85 / many) ** 0.5 + 1e-9, shares
    assert hidden[:, ~candidates].sum() == 0 and (hidden.sum(axis=1) > 0).all()


def check_held_out():
    """All of it once, in the same order, the last batch filled with rows that count nowhere."""
    for name in ("static", "dynamic"):
        folder = str(WORK / name)
        manifest = files.read_json(f"{folder}/manifest.json")
        batch = 7
        batches = held_out(folder, manifest, batch)
        check_shapes(batches, batch)
        found = list(batches)
        lengths = numpy.concatenate([one["input_mask"].numpy().sum(axis=1) for one in found])
        assert (lengths > 0).sum() == manifest["counts"]["held_out_sequences"] > 2
        assert len(lengths) == -(-(lengths > 0).sum() // batch) * batch
        for one in found:
            nothing = one["input_mask"].numpy().sum(axis=1) == 0
            assert all(not value.numpy()[nothing].any() for value in one.values())
        for one, other in zip(found, held_out(folder, manifest, batch), strict=True):
            assert all((one[key].numpy() == other[key].numpy()).all() for key in one)
    folder, manifest = written("no held-out", held_out=0.0)
    assert manifest["held_out"] == [] and list(held_out(folder, manifest, 4)) == []


def check_large_vocabulary():
    """Ids beyond sixteen bits are read as well as written."""
    from corpus.layout import Layout
    from corpus.tfrecord import frame
    from training.reading import decoded

    layout = Layout(LENGTH, PREDICTIONS, "static", 100_000)
    rows = layout.rows(
        total=[3], first=[3], label=[1], count=[1],
        input_ids=numpy.arange(90_000, 90_000 + LENGTH),
        positions=numpy.array([1, 0, 0, 0, 0]), ids=numpy.array([99_999, 0, 0, 0, 0]),
    )  # fmt: skip
    (WORK / "large").write_bytes(frame(rows))
    for one in tf.data.TFRecordDataset(str(WORK / "large")).batch(1, drop_remainder=True):
        batch = decoded(one, layout, {}, (0, 0))
        assert batch["input_ids"][0, 5] == 90_005 and batch["masked_lm_ids"][0, 0] == 99_999


def check_damage():
    """A damaged or missing file is named, before training and when reading finds it."""
    folder, manifest = written("damaged")
    path = WORK / "damaged" / manifest["files"][1]["name"]
    content = path.read_bytes()

    def refused(make):
        try:
            make()
        except JobError as error:
            return str(error)
        raise AssertionError("nothing was refused")

    path.write_bytes(content[:-10])
    said = refused(lambda: dataset(folder, manifest, 4, 1, 0))
    assert str(path) in said and f"{len(content):,}" in said and "make the records again" in said
    path.unlink()
    assert f"{path} is missing" in refused(lambda: dataset(folder, manifest, 4, 1, 0))
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(8) + content[middle + 8 :])
    try:
        for _ in dataset(folder, manifest, 4, 1, 0).take(200):
            pass
        raise AssertionError("the damage was not found")
    except tf.errors.DataLossError as error:
        assert str(path) in str(damaged_file(error, folder, manifest))
    assert damaged_file(ValueError("another"), folder, manifest) is None


check_transformers()
check_static()
for kind in ("static", "dynamic"):
    check_resume(kind)
check_dynamic()
check_every_word_is_as_likely()
check_held_out()
check_large_vocabulary()
check_damage()
print("checked")
