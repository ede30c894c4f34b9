"""Checks of what TensorFlow reads from the records. First argument: a folder."""

import sys
from pathlib import Path

import numpy
import tensorflow as tf

import files
from corpus import records, wordpiece
from corpus.encoding import Encoder
from errors import JobError
from training.input_pipeline import damaged_file, dataset, held_out
from training.masking import mask

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


def unmasked(batch):
    """Return the rows before masking, and which positions were masked."""
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
    loaded = AutoTokenizer.from_pretrained(folder)
    for text in ("아침에 일어나면 창문을 연다.", "ㅋㅋ 漢字 Café"):
        assert loaded(text, add_special_tokens=False)["input_ids"] == TOKENIZER.encode(text).ids
    assert loaded.mask_token_id == TOKENIZER.token_to_id("[MASK]")


def check_static():
    """An epoch has every record once, with consistent fields."""
    folder, manifest = written("static")
    total = manifest["counts"]["sequences"]
    batches = dataset(folder, manifest, 1, 5, 0)
    check_shapes(batches, 1)
    rows = {}
    predictions = pairs = 0
    for batch in batches.take(total):
        tokens, hidden = unmasked(batch)
        length = int(batch["input_mask"].numpy().sum())
        segments = batch["segment_ids"].numpy()[0]
        separators = numpy.flatnonzero(tokens[0] == 3)
        assert len(separators) == 2 and separators[1] == length - 1
        assert (
            segments == (numpy.arange(LENGTH) > separators[0]) * (numpy.arange(LENGTH) < length)
        ).all()
        assert not batch["input_mask"].numpy()[0, length:].any() and tokens[0, 0] == 2
        predictions += int(hidden.sum())
        pairs += int(batch["next_sentence_labels"].numpy()[0])
        key = (batch["input_ids"].numpy().tobytes(), tokens.tobytes())
        rows[key] = rows.get(key, 0) + 1
    assert predictions == manifest["counts"]["predictions"]
    assert pairs == manifest["counts"]["negative_pairs"]
    again = {}
    for batch in dataset(folder, manifest, 1, 5, total).take(total):
        key = (batch["input_ids"].numpy().tobytes(), unmasked(batch)[0].tobytes())
        again[key] = again.get(key, 0) + 1
    assert again == rows


def check_resume(masking):
    """The batches after a step do not depend on where reading started."""
    folder, manifest = written(masking, masking=masking)
    total, batch = manifest["counts"]["sequences"], 16
    steps = 2 * total // batch + 3  # into the third epoch

    def rows(step, count, seed=5):
        batches = dataset(folder, manifest, batch, seed, step).take(count)
        return [
            row.tobytes() for example_batch in batches for row in example_batch["input_ids"].numpy()
        ]

    whole = rows(0, steps)
    for step in (1, total // batch, total // batch + 1, steps - 2):
        assert rows(step, steps - step) == whole[step * batch :], step
    assert rows(0, 1, seed=6) != whole[:batch]
    epochs = [whole[:total], whole[total : 2 * total]]
    assert epochs[0] != epochs[1]
    # Static records repeat unchanged; dynamic ones are masked differently.
    assert (sorted(epochs[0]) == sorted(epochs[1])) == (masking == "static")


def check_dynamic():
    """The same text as with static masking, other masks in each epoch, and whole words."""
    folder, manifest = written("dynamic", masking="dynamic")
    total, batch = manifest["counts"]["sequences"], 8
    is_continuation = Encoder(TOKENIZER.to_str()).is_continuation
    batches = dataset(folder, manifest, batch, 5, 0)
    check_shapes(batches, batch)
    texts, masks = [], {}
    kinds = {"hidden": 0, "left": 0, "changed": 0}
    budget_total = 0
    for batch_of_rows in batches.take(20 * total // batch):
        tokens, hidden = unmasked(batch_of_rows)
        masked, lengths = (
            batch_of_rows["input_ids"].numpy(),
            batch_of_rows["input_mask"].numpy().sum(axis=1),
        )
        assert (masked[~hidden] == tokens[~hidden]).all()
        special = (tokens == 2) | (tokens == 3) | (numpy.arange(LENGTH) >= lengths[:, None])
        assert not (hidden & special).any() and special[:, 0].all()
        follows = is_continuation[tokens[:, 1:]] & ~special[:, :-1]
        assert (hidden[:, 1:] == hidden[:, :-1])[follows].all()
        kinds["hidden"] += int((masked[hidden] == 4).sum())
        kinds["left"] += int((masked[hidden] == tokens[hidden]).sum())
        changed = hidden & (masked != 4) & (masked != tokens)
        kinds["changed"] += int(changed.sum())
        assert (masked[changed] > 4).all()
        budget = numpy.clip(numpy.rint(0.15 * (lengths - 3)), 1, PREDICTIONS)
        assert (hidden.sum(axis=1) <= budget).all()
        budget_total += int(budget.sum())
        for row, places in zip(tokens, batch_of_rows["masked_lm_positions"].numpy(), strict=True):
            texts.append(row.tobytes())
            masks.setdefault(row.tobytes(), set()).add(places.tobytes())
    predicted = sum(kinds.values())
    # Whole words do not always fill the small budget of a short sequence.
    assert 0.8 * budget_total < predicted <= budget_total, (predicted, budget_total)
    deviation = 4 * (0.16 / predicted) ** 0.5
    assert abs(kinds["hidden"] / predicted - 0.8) < deviation, kinds
    assert abs(kinds["changed"] / predicted - 0.1) < deviation, kinds
    assert sorted(texts[:total]) == sorted(texts[total : 2 * total])
    assert sum(len(places) > 1 for places in masks.values()) > 0.9 * len(masks)


def check_words_are_masked_uniformly():
    """Over many draws, words of the same length are masked equally often."""
    words = numpy.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 2, 1, 4, 1, 1, 2, 1, 1, 2])
    starts = numpy.zeros(LENGTH, bool)
    starts[1 + numpy.cumsum(words) - words] = True
    candidates = (numpy.arange(LENGTH) > 0) & (numpy.arange(LENGTH) <= words.sum())
    many = 4000
    tokens = tf.tile(tf.range(100, 100 + LENGTH)[None], [many, 1])
    special = {"padding": 0, "unknown": 1, "start": 2, "separator": 3, "mask": 4}
    masked_batch = mask(
        tokens,
        tf.tile(candidates[None], [many, 1]),
        tf.tile(starts[None], [many, 1]),
        PREDICTIONS,
        special,
        SIZE,
        tf.constant([40, 1], tf.int64),
    )
    _, hidden = unmasked(masked_batch)
    often = hidden.mean(axis=0)[starts]
    for length in (1, 2):
        shares = often[words == length]
        assert shares.max() - shares.min() < 6 * (0.15 * 0.85 / many) ** 0.5 + 1e-9, shares
    assert hidden[:, ~candidates].sum() == 0 and (hidden.sum(axis=1) > 0).all()


def check_held_out():
    """Held-out records are read once, in the same order, with the last batch padded."""
    for name in ("static", "dynamic"):
        folder = str(WORK / name)
        manifest = files.read_json(f"{folder}/manifest.json")
        batch = 7
        batches = held_out(folder, manifest, batch)
        check_shapes(batches, batch)
        all_batches = list(batches)
        lengths = numpy.concatenate(
            [examples["input_mask"].numpy().sum(axis=1) for examples in all_batches]
        )
        assert (lengths > 0).sum() == manifest["counts"]["held_out_sequences"] > 2
        assert len(lengths) == -(-(lengths > 0).sum() // batch) * batch
        for padded in all_batches:
            is_padding = padded["input_mask"].numpy().sum(axis=1) == 0
            assert all(not value.numpy()[is_padding].any() for value in padded.values())
        for first, second in zip(all_batches, held_out(folder, manifest, batch), strict=True):
            assert all((first[key].numpy() == second[key].numpy()).all() for key in first)
    folder, manifest = written("no held-out", held_out=0.0)
    assert manifest["held_out"] == [] and list(held_out(folder, manifest, 4)) == []


def check_large_vocabulary():
    """Ids beyond sixteen bits are written and read."""
    from corpus.layout import Layout
    from corpus.tfrecord import frame
    from training.input_pipeline import decode_batch

    layout = Layout(LENGTH, PREDICTIONS, "static", 100_000)
    rows = layout.rows(
        total=[3], first=[3], label=[1], count=[1],
        input_ids=numpy.arange(90_000, 90_000 + LENGTH),
        positions=numpy.array([1, 0, 0, 0, 0]), ids=numpy.array([99_999, 0, 0, 0, 0]),
    )  # fmt: skip
    (WORK / "large").write_bytes(frame(rows))
    for serialized in tf.data.TFRecordDataset(str(WORK / "large")).batch(1, drop_remainder=True):
        batch = decode_batch(serialized, layout, {}, (0, 0))
        assert batch["input_ids"][0, 5] == 90_005 and batch["masked_lm_ids"][0, 0] == 99_999


def check_damage():
    """A damaged or missing file is reported, before training and while reading."""
    folder, manifest = written("damaged")
    path = WORK / "damaged" / manifest["files"][1]["name"]
    content = path.read_bytes()

    def refused(make):
        try:
            make()
        except JobError as error:
            return str(error)
        raise AssertionError("no error was raised")

    path.write_bytes(content[:-10])
    message = refused(lambda: dataset(folder, manifest, 4, 1, 0))
    assert (
        str(path) in message
        and f"{len(content):,}" in message
        and "recreate the records" in message
    )
    path.unlink()
    assert f"{path} is missing" in refused(lambda: dataset(folder, manifest, 4, 1, 0))
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(8) + content[middle + 8 :])
    try:
        for _ in dataset(folder, manifest, 4, 1, 0).take(200):
            pass
        raise AssertionError("the damage was not detected")
    except tf.errors.DataLossError as error:
        assert str(path) in str(damaged_file(error, folder, manifest))
    assert damaged_file(ValueError("another"), folder, manifest) is None


check_transformers()
check_static()
for kind in ("static", "dynamic"):
    check_resume(kind)
check_dynamic()
check_words_are_masked_uniformly()
check_held_out()
check_large_vocabulary()
check_damage()
print("checked")
