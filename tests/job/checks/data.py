"""Checks of records and the batches that training reads. First argument: a folder."""

import json
import struct
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

import numpy
import tensorflow as tf
from settings import options_of

import data
from files import JobError, names
from input_pipeline import damaged_file, dataset, held_out, mask
from records import Plan, write
from vocabulary import documents, read_lines, train_vocabulary

WORK = Path(sys.argv[1])
SAMPLE = Path(data.__file__).parent / "sample"
TEXTS = [str(path) for path in sorted(SAMPLE.iterdir())]
SIZE, LENGTH, PREDICTIONS = 2000, 32, 5
SHAPES = {
    "input_ids": (LENGTH, tf.int32),
    "input_mask": (LENGTH, tf.int32),
    "segment_ids": (LENGTH, tf.int32),
    "masked_lm_positions": (PREDICTIONS, tf.int32),
    "masked_lm_ids": (PREDICTIONS, tf.int32),
    "masked_lm_weights": (PREDICTIONS, tf.float32),
    "next_sentence_labels": (None, tf.int32),
}


def lines():
    return [line for path in TEXTS for line in read_lines(path)]


TOKENIZER = train_vocabulary(lines, SIZE)
CONTINUES = [TOKENIZER.id_to_token(n).startswith("##") for n in range(SIZE)]
IS_CONTINUATION = numpy.array(CONTINUES)


def written(name, **changes):
    """Write the sample as records of pairs; return their folder and manifest."""
    folder = WORK / name
    (folder / "tokenizer").mkdir(parents=True)
    TOKENIZER.save(str(folder / "tokenizer" / "tokenizer.json"))
    # One text in three files, so that there are three files of records.
    texts = [text for path in TEXTS for text in documents(read_lines(path), Counter())]
    paths = []
    for number in range(3):
        path = folder / f"text-{number:05d}.txt"
        path.write_text("\n\n".join("\n".join(text) for text in texts[number::3]), "utf-8")
        paths.append(str(path))
    plan = Plan(**{"sequence_length": LENGTH, "duplication": 2, "seed": 7, **changes})
    return str(folder / "records"), write(paths, str(folder / "records"), TOKENIZER, plan, "key")


def batches_of(folder, manifest, batch, step, seed=5, **more):
    return dataset(folder, manifest, options_of(batch=batch, seed=seed, **more), step)


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


def check_fields():
    """An epoch has every record once, with consistent fields."""
    folder, manifest = written("fields")
    total = manifest["counts"]["sequences"]
    check_shapes(batches_of(folder, manifest, 1, 0), 1)
    rows, labels = Counter(), 0
    for batch in batches_of(folder, manifest, 1, 0).take(total):
        tokens, hidden = unmasked(batch)
        length = int(batch["input_mask"].numpy().sum())
        segments = batch["segment_ids"].numpy()[0]
        separators = numpy.flatnonzero(tokens[0] == 3)
        assert len(separators) == 2 and separators[1] == length - 1
        inside = numpy.arange(LENGTH) < length
        assert (segments == (numpy.arange(LENGTH) > separators[0]) * inside).all()
        assert (batch["input_mask"].numpy()[0] == inside).all() and tokens[0, 0] == 2
        assert hidden.any()
        labels += int(batch["next_sentence_labels"].numpy()[0])
        rows[tokens.tobytes()] += 1
    assert labels == manifest["counts"]["negative_pairs"] > 0
    again = Counter(
        unmasked(batch)[0].tobytes() for batch in batches_of(folder, manifest, 1, total).take(total)
    )
    assert again == rows


def check_resume():
    """The batches after a step do not depend on where reading started."""
    folder, manifest = str(WORK / "fields" / "records"), None
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    total, batch = manifest["counts"]["sequences"], 16
    steps = 2 * total // batch + 3  # into the third epoch

    def rows(step, count, seed=5):
        batches = batches_of(folder, manifest, batch, step, seed).take(count)
        return [row.tobytes() for part in batches for row in part["input_ids"].numpy()]

    whole = rows(0, steps)
    for step in (1, total // batch, total // batch + 1, steps - 2):
        assert rows(step, steps - step) == whole[step * batch :], step
    assert rows(0, 1, seed=6) != whole[:batch]
    # Each epoch is masked differently.
    assert sorted(whole[:total]) != sorted(whole[total : 2 * total])


def check_masking():
    """80, 10, 10 percent, other masks in each epoch, and whole words."""
    folder = str(WORK / "fields" / "records")
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    total, batch = manifest["counts"]["sequences"], 8
    texts, masks = [], {}
    kinds = {"hidden": 0, "left": 0, "changed": 0}
    budget_total = 0
    for rows in batches_of(folder, manifest, batch, 0).take(20 * total // batch):
        tokens, hidden = unmasked(rows)
        masked, lengths = rows["input_ids"].numpy(), rows["input_mask"].numpy().sum(axis=1)
        assert (masked[~hidden] == tokens[~hidden]).all()
        special = (tokens == 2) | (tokens == 3) | (numpy.arange(LENGTH) >= lengths[:, None])
        assert not (hidden & special).any() and special[:, 0].all()
        follows = IS_CONTINUATION[tokens[:, 1:]] & ~special[:, :-1]
        assert (hidden[:, 1:] == hidden[:, :-1])[follows].all()
        kinds["hidden"] += int((masked[hidden] == 4).sum())
        kinds["left"] += int((masked[hidden] == tokens[hidden]).sum())
        changed = hidden & (masked != 4) & (masked != tokens)
        kinds["changed"] += int(changed.sum())
        assert (masked[changed] > 4).all()
        budget = numpy.clip(numpy.rint(0.15 * (lengths - 3)), 1, PREDICTIONS)
        assert (hidden.sum(axis=1) <= budget).all()
        budget_total += int(budget.sum())
        for row, places in zip(tokens, rows["masked_lm_positions"].numpy(), strict=True):
            texts.append(row.tobytes())
            masks.setdefault(row.tobytes(), set()).add(places.tobytes())
    predicted = sum(kinds.values())
    # Whole words do not always fill the small budget of a short sequence.
    assert 0.8 * budget_total < predicted <= budget_total, (predicted, budget_total)
    deviation = 4 * (0.16 / predicted) ** 0.5
    assert abs(kinds["hidden"] / predicted - 0.8) < deviation, kinds
    # One random token in two thousand equals the original by chance.
    assert abs(kinds["changed"] / predicted - 0.1) < deviation, kinds
    assert sorted(texts[:total]) == sorted(texts[total : 2 * total])
    assert sum(len(places) > 1 for places in masks.values()) > 0.9 * len(masks)

    # Single tokens fill the budget, and take words apart.
    parted = 0
    for rows in batches_of(folder, manifest, batch, 0, whole_words=False).take(total // batch):
        tokens, hidden = unmasked(rows)
        lengths = rows["input_mask"].numpy().sum(axis=1)
        budget = numpy.clip(numpy.rint(0.15 * (lengths - 3)), 1, PREDICTIONS)
        assert (hidden.sum(axis=1) == budget).all()
        inside = IS_CONTINUATION[tokens[:, 1:]] & (tokens[:, :-1] > 4)
        parted += int(((hidden[:, 1:] != hidden[:, :-1]) & inside).sum())
    assert parted


def check_words_are_masked_uniformly():
    """Over many draws, words of the same length are masked equally often."""
    words = numpy.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 2, 1, 4, 1, 1, 2, 1, 1, 2])
    starts = numpy.zeros(LENGTH, bool)
    starts[1 + numpy.cumsum(words) - words] = True
    candidates = (numpy.arange(LENGTH) > 0) & (numpy.arange(LENGTH) <= words.sum())
    many = 4000
    tokens = tf.tile(tf.range(100, 100 + LENGTH)[None], [many, 1])
    masked_batch = mask(
        tokens,
        tf.tile(candidates[None], [many, 1]),
        tf.tile(starts[None], [many, 1]),
        PREDICTIONS,
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
    """Held-out records are read once, with the same masks, and the last batch is padded."""
    folder = str(WORK / "fields" / "records")
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    options = options_of(batch=7)
    check_shapes(held_out(folder, manifest, options), 7)
    batches = list(held_out(folder, manifest, options))
    lengths = numpy.concatenate([rows["input_mask"].numpy().sum(axis=1) for rows in batches])
    count = manifest["counts"]["held_out_sequences"]
    assert (lengths > 0).sum() == count > 2
    assert len(lengths) == -(-count // 7) * 7
    for rows in batches:
        is_padding = rows["input_mask"].numpy().sum(axis=1) == 0
        for name in ("input_mask", "segment_ids", "masked_lm_weights"):
            if name != "masked_lm_weights":
                assert not rows[name].numpy()[is_padding].any()
        assert not rows["masked_lm_weights"].numpy()[is_padding].any()
    for first, second in zip(batches, held_out(folder, manifest, options), strict=True):
        assert all((first[key].numpy() == second[key].numpy()).all() for key in first)
    folder, manifest = written("no held-out", held_out=0.0)
    assert manifest["held_out_files"] == {} and list(held_out(folder, manifest, options)) == []


def rows_of(folder, kind):
    """Parse the records of plain text by the documented format."""
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    rows = []
    for name in manifest[kind]:
        for record in tf.data.TFRecordDataset(str(Path(folder, name)), "GZIP"):
            rows.append(struct.unpack(f"<{LENGTH + 1}H", record.numpy()))
    return rows, manifest


def check_plain_text():
    """The records of plain text have all of it, in order, and what is held out apart."""
    output, log = WORK / "plain", []
    options = options_of(
        text=str(SAMPLE),
        output=str(output),
        data=str(output),
        vocabulary_size=SIZE,
        sequence_length=LENGTH,
        held_out=0.1,
        seed=3,
    )
    manifest = data.from_text(options, log.append)
    assert ", written (" in log[-1] and log[0].startswith(f"text: {SAMPLE} (cooking.txt, ")
    folder = output / "records"
    training, _ = rows_of(folder, "files")
    evaluation, _ = rows_of(folder, "held_out_files")
    texts = [text for path in TEXTS for text in documents(read_lines(path), Counter())]
    counts = manifest["counts"]
    assert (len(training), len(evaluation)) == (counts["sequences"], counts["held_out_sequences"])
    assert counts["documents"] == len(texts) - round(0.1 * len(texts)) < len(texts)
    assert counts["sentences"] == sum(map(len, texts))
    expected = Counter()
    for text in texts:
        ids = [
            token
            for sentence in text
            for token in TOKENIZER.encode(sentence, add_special_tokens=False).ids
        ]
        for start in range(0, len(ids), LENGTH - 2):
            if len(part := ids[start : start + LENGTH - 2]) >= 8:
                row = [0, 2, *part, 3]
                expected[(*row, *[0] * (LENGTH + 1 - len(row)))] += 1
    assert Counter([*training, *evaluation]) == expected
    assert not set(training) & set(evaluation)
    # The same text and options are kept; other options are not.
    before = {name: Path(folder, name).stat().st_mtime_ns for name in names(str(folder))}
    assert data.from_text(options, log.append) == manifest and ", kept (" in log[-1]
    assert before == {name: Path(folder, name).stat().st_mtime_ns for name in before}
    data.from_text(Namespace(**{**vars(options), "seed": 4}), log.append)
    assert ", written (" in log[-1]
    (folder / "manifest.json").write_text("{")
    again = data.from_text(options, log.append)
    assert again == manifest and ", written (" in log[-1]
    assert rows_of(folder, "files")[0] == training, "the same order"
    # The literal text "[MASK]" is no hidden word.
    rows = list(data.sequences(TOKENIZER, ["[MASK] 를 보고 [CLS] 를 쓴다 하나 둘 셋"], LENGTH))
    TOKENIZER.encode_special_tokens = True
    (row,) = data.sequences(TOKENIZER, ["[MASK] 를 보고 [CLS] 를 쓴다 하나 둘 셋"], LENGTH)
    TOKENIZER.encode_special_tokens = False
    assert 4 in struct.unpack(f"<{LENGTH + 1}H", rows[0])
    assert 4 not in struct.unpack(f"<{LENGTH + 1}H", row)
    ids = [row for row in [*training, *evaluation] if 4 in row[2:]]
    assert not ids


def refused(make):
    try:
        make()
    except JobError as error:
        return str(error)
    raise AssertionError("no error was raised")


def check_damage():
    """A damaged or missing file is reported, before training and while reading."""
    folder, manifest = written("damaged")
    path = Path(folder, list(manifest["files"])[1])
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    message = refused(lambda: batches_of(folder, manifest, 4, 0))
    assert str(path) in message and f"{len(content):,}" in message
    assert f"delete {folder} and create the records again" in message
    path.unlink()
    assert f"{path} is missing" in refused(lambda: batches_of(folder, manifest, 4, 0))
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(8) + content[middle + 8 :])
    try:
        for _ in batches_of(folder, manifest, 4, 0).take(200):
            pass
        raise AssertionError("the damage was not detected")
    except tf.errors.DataLossError as error:
        assert str(path) in str(damaged_file(error, folder, manifest))
    assert damaged_file(ValueError("another"), folder, manifest) is None


check_fields()
check_resume()
check_masking()
check_words_are_masked_uniformly()
check_held_out()
check_plain_text()
check_damage()
print("checked")
