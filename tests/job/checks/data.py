"""Checks of vocabulary and records; run by a Python with TensorFlow. First argument: a folder."""

import sys
import unicodedata
from pathlib import Path

import tensorflow as tf

import files
from corpus import records, wordpiece
from training.reading import dataset

WORK = Path(sys.argv[1])
SAMPLE = str(Path(files.__file__).parent / "sample")
PATHS = files.text_files(SAMPLE)
PLAN = records.RecordsPlan(sequence_length=32, predictions=5, duplication=2, shards=3, seed=7)
SIZE = 2000


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check_vocabulary() -> None:
    # Ties between letters are what once made it differ from run to run.
    hashes = {wordpiece.vocabulary_hash(wordpiece.train(PATHS, SIZE)) for _ in range(4)}
    assert len(hashes) == 1, hashes
    tokenizer = wordpiece.train(PATHS, SIZE)
    assert tokenizer.get_vocab_size() == SIZE
    assert [tokenizer.id_to_token(n) for n in range(5)] == wordpiece.SPECIAL
    text = "아침에 일어나면 창문을 연다."
    assert tokenizer.decode(tokenizer.encode(text).ids) == "아침에 일어나면 창문을 연다."
    apart = unicodedata.normalize("NFD", text)
    assert apart != text and tokenizer.encode(apart).ids == tokenizer.encode(text).ids
    assert tokenizer.encode("가[MASK]나").tokens[1] == "[MASK]"

    folder = str(WORK / "tokenizer")
    wordpiece.save(tokenizer, folder, "key")
    assert wordpiece.load(folder, "another key") is None
    loaded = wordpiece.load(folder, "key")
    assert wordpiece.vocabulary_hash(loaded) == wordpiece.vocabulary_hash(tokenizer)

    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).ids
    assert theirs.mask_token_id == tokenizer.token_to_id("[MASK]")


def check_records() -> None:
    tokenizer = wordpiece.train(PATHS, SIZE)
    manifest = records.write(PATHS, tokenizer, PLAN, str(WORK / "one"), "key")
    records.write(PATHS, tokenizer, PLAN, str(WORK / "two"), "key")
    assert contents(WORK / "one") == contents(WORK / "two")
    other = records.RecordsPlan(**{**vars(PLAN), "seed": 8})
    records.write(PATHS, tokenizer, other, str(WORK / "three"), "key")
    assert contents(WORK / "one") != contents(WORK / "three")
    assert records.load(str(WORK / "one"), "key") == manifest
    assert records.load(str(WORK / "one"), "another key") is None
    assert records.load(str(WORK / "none"), "key") is None

    found = []
    for item in manifest["files"]:
        path = str(WORK / "one" / item["name"])
        serialised = list(tf.data.TFRecordDataset(path, "GZIP").as_numpy_iterator())
        assert len(serialised) == item["sequences"] > 0
        found += [tf.train.Example.FromString(one).features.feature for one in serialised]
    counts = manifest["counts"]
    assert len(found) == counts["sequences"]
    weights = [sum(one["masked_lm_weights"].float_list.value) for one in found]
    assert sum(weights) == counts["predictions"]
    share = counts["predictions"] / (counts["tokens"] - 2 * len(found))
    assert 0.13 < share < 0.17, share
    for one in found:
        assert len(one["input_ids"].int64_list.value) == 32
        assert len(one["masked_lm_ids"].int64_list.value) == 5

    # Every text is there twice, under different masks.
    originals: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for one in found:
        shown = list(one["input_ids"].int64_list.value)
        whole = list(shown)
        for position, token, weight in zip(
            one["masked_lm_positions"].int64_list.value,
            one["masked_lm_ids"].int64_list.value,
            one["masked_lm_weights"].float_list.value,
            strict=True,
        ):
            if weight:
                whole[position] = token
        originals.setdefault(tuple(whole), set()).add(tuple(shown))
    assert len(originals) == len(found) / 2
    assert sum(len(masked) > 1 for masked in originals.values()) > 0.9 * len(originals)


def check_resume() -> None:
    folder = str(WORK / "one")
    manifest = records.load(folder, "key")
    total, batch = manifest["counts"]["sequences"], 16
    steps = 2 * total // batch + 3  # into the third epoch

    def rows(step: int, count: int, seed: int = 5) -> list[bytes]:
        taken = dataset(folder, manifest, batch, seed, step).take(count)
        return [row.tobytes() for one in taken for row in one["input_ids"].numpy()]

    whole = rows(0, steps)
    for step in (1, total // batch, total // batch + 1, steps - 2):
        assert rows(step, steps - step) == whole[step * batch :], step
    epochs = [whole[:total], whole[total : 2 * total]]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    assert rows(0, 1, seed=6) != whole[:batch]


for check in (check_vocabulary, check_records, check_resume):
    check()
print("checked")
