"""Checks of vocabulary and records. First argument: a folder.

With "write" it only writes the records, slowly, so that the test can kill it.
"""

import os
import random
import signal
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy
import tensorflow as tf
from tokenizers import Tokenizer

import files
import records
import vocabulary

WORK = Path(sys.argv[1])
SAMPLE = sorted((Path(files.__file__).parent.parent / "bert-pretraining" / "sample").glob("*.txt"))
SIZE, LENGTH, FILES = 2000, 32, 6


def plan_of(**changes):
    return records.Plan(**{"sequence_length": LENGTH, "duplication": 2, "seed": 7, **changes})


def train(size=SIZE):
    lines = [line for path in SAMPLE for line in vocabulary.read_lines(str(path))]
    return vocabulary.train_vocabulary(lambda: lines, size)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def rows_of(folder, manifest, kind="files"):
    """Return label and tokens of all records, by the documented format."""
    rows = []
    for name, size in manifest[kind].items():
        path = Path(folder) / name
        assert path.stat().st_size == size
        for record in tf.data.TFRecordDataset(str(path), "GZIP").as_numpy_iterator():
            row = numpy.frombuffer(record, "<u2").tolist()
            assert len(row) == 1 + manifest["sequence_length"]
            rows.append((row[0], row[1:]))
    return rows


def text_files():
    """Write a text of a few hundred kilobytes in six files, with the sample's words."""
    generator = random.Random(1)
    words = " ".join(path.read_text("utf-8") for path in SAMPLE).split()
    paths = []
    for number in range(FILES):
        path = WORK / f"text-{number:05d}.txt"
        lines = []
        for _ in range(50):
            for _ in range(generator.randrange(1, 12)):
                lines.append(" ".join(generator.choices(words, k=generator.randrange(1, 20))))
            lines.append("")
        if not path.exists():
            path.write_text("\n".join(lines), "utf-8")
        paths.append(str(path))
    return paths


def check_vocabulary():
    # Ties between letters once made the vocabulary nondeterministic.
    hashes = {vocabulary.vocabulary_hash(train()) for _ in range(4)}
    assert len(hashes) == 1, hashes
    tokenizer = train()
    assert tokenizer.get_vocab_size() == SIZE
    assert tuple(tokenizer.id_to_token(n) for n in range(5)) == vocabulary.SPECIAL
    text = "아침에 일어나면 창문을 연다."
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    apart = unicodedata.normalize("NFD", text)
    assert apart != text and tokenizer.encode(apart).ids == tokenizer.encode(text).ids
    assert tokenizer.encode("가[MASK]나").tokens[1:-1][1] == "[MASK]"
    # Punctuation and Chinese characters are separate words, so they never continue a word.
    assert not {"##.", "##,", "##漢"} & set(tokenizer.get_vocab())


def check_encoding(tokenizer):
    """Encoding word by word equals encoding whole sentences."""
    generator = random.Random(2)
    builder = records.RecordBuilder(tokenizer.to_str(), plan_of())
    letters = "가나다라 abc.,!?「」漢字ㅋㅋㅎ\u1112\u1161\u11ab\u0301é\u200d\u3000\x07😀[MASK]##"
    sentences = ["".join(generator.choices(letters, k=generator.randrange(40))) for _ in range(500)]
    sentences += ["[MASK] [CLS]", "##가 ## #", "가" * 200, ""]
    for _ in range(2):  # the second time, all words are cached
        tokens, (borders,) = builder.encode([sentences])
        expected, ends = [], [0]
        for sentence in sentences:
            expected += builder.tokenizer.encode(sentence, add_special_tokens=False).ids
            ends += [len(expected)] if len(expected) > ends[-1] else []
        assert tokens == expected
        assert borders == ends
    assert tokenizer.token_to_id("[MASK]") not in tokens


def letters_of(tokens):
    """Encode tokens as a string, for substring search."""
    return "".join(map(chr, (1000 + token for token in tokens)))


def segments_of(tokens, pairs):
    """Return the segments without special tokens."""
    separators = [n for n, token in enumerate(tokens) if token == 3]
    assert tokens[0] == 2 and len(separators) == (1 if pairs == "none" else 2)
    assert not any(tokens[separators[-1] + 1 :])
    first, last = separators[0], separators[-1]
    return letters_of(tokens[1:first]), letters_of(tokens[first + 1 : max(first + 1, last)])


def check_content(tokenizer, pairs):
    """The records contain the whole text, document by document."""
    paths, folder = text_files(), WORK / pairs
    manifest = records.write(paths, str(folder), tokenizer, plan_of(pairs=pairs), "key")
    assert records.write(paths, str(folder), tokenizer, plan_of(pairs=pairs), "key") == manifest
    documents = [
        document
        for path in paths
        for document in vocabulary.documents(vocabulary.read_lines(path), Counter())
    ]
    texts = [
        letters_of(
            token
            for sentence in document
            for token in tokenizer.encode(sentence, add_special_tokens=False).ids
        )
        for document in documents
    ]
    rows = {kind: rows_of(folder, manifest, kind) for kind in ("files", "held_out_files")}
    counts = manifest["counts"]
    assert counts["sequences"] == len(rows["files"])
    assert counts["held_out_sequences"] == len(rows["held_out_files"]) > 0
    assert counts["negative_pairs"] == sum(label for label, _ in rows["files"])
    assert counts["documents"] + counts["held_out_documents"] == len(texts) == 50 * FILES
    assert counts["sentences"] == sum(map(len, documents))
    assert manifest["vocabulary_size"] == SIZE and manifest["pairs"] == pairs

    covered = [set() for _ in texts]
    kinds = [set() for _ in texts]
    for kind, of_kind in rows.items():
        for label, tokens in of_kind:
            first, second = segments_of(tokens, pairs)
            if pairs == "nsp" and label:
                origins = [n for n, text in enumerate(texts) if first in text]
                others = [n for n, text in enumerate(texts) if second in text]
                assert origins and others and set(origins) != set(others)
                parts_of_own = [(n, first) for n in origins]
                parts = parts_of_own + [(n, second) for n in others]
            else:
                both = second + first if label else first + second
                parts = parts_of_own = [(n, both) for n, text in enumerate(texts) if both in text]
                assert parts, tokens
            for n, part in parts_of_own:
                at = texts[n].index(part)
                covered[n].update(range(at, at + len(part)))
            if len(parts) == len(parts_of_own) == 1 or (pairs == "nsp" and len(parts) == 2):
                for n, _ in parts:
                    kinds[n].add(kind)
    # All tokens except a short rest are covered; no document is in training and evaluation.
    for text, positions in zip(texts, covered, strict=True):
        missing = set(range(len(text))) - positions
        assert min(missing, default=len(text)) > len(text) - 8, (sorted(missing), len(text))
    assert not any(len(document_kinds) > 1 for document_kinds in kinds)
    held_out = sum(document_kinds == {"held_out_files"} for document_kinds in kinds)
    assert held_out <= counts["held_out_documents"] <= 12
    labels = [label for label, _ in rows["files"]]
    expected = 0 if pairs == "none" else 0.5
    assert abs(sum(labels) / len(labels) - expected) <= (2 / len(labels) ** 0.5) * (expected > 0)


def check_processes(tokenizer):
    """The files do not depend on the number of processes, but on the seed."""
    results = {}
    for processes in (1, 2, 3):
        folder = WORK / f"processes-{processes}"
        records.write(text_files(), str(folder), tokenizer, plan_of(), "key", processes)
        results[processes] = contents(folder)
    assert len(results[1]) > 2 * FILES and results[1] == results[2] == results[3]
    # Files of another text or plan are removed.
    folder = str(WORK / "processes-2")
    (WORK / "processes-2" / "part-00000-of-00002.tfrecord.gz").touch()  # as Beam names them
    records.write(text_files()[:2], folder, tokenizer, plan_of(seed=8), "other")
    others = contents(folder)
    assert {name for name in others if name.startswith("part")} == {
        f"part-0000{number}.{suffix}" for number in range(2) for suffix in ("json", "tfrecord.gz")
    }
    assert others["part-00000.tfrecord.gz"] != results[1]["part-00000.tfrecord.gz"]


def check_interrupted(tokenizer):
    """After a kill, the processes end, complete parts are kept, and the result is identical."""
    tokenizer.save(str(WORK / "tokenizer.json"))
    folder = WORK / "killed"
    killed = subprocess.Popen([sys.executable, __file__, WORK, "write"], stderr=subprocess.DEVNULL)

    def complete():
        names = [path.stem for path in folder.glob("part-*.json") if files.read_json(str(path))]
        return {path.name: path.stat() for name in names for path in folder.glob(f"{name}.*")}

    while len(complete()) < 4:
        assert killed.poll() is None, "finished before the kill"
        time.sleep(0.01)
    workers = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text("ascii").split()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(workers) >= 2
    while any(is_alive(pid) for pid in workers):
        time.sleep(0.01)
    before = complete()
    assert len(before) < 2 * FILES and not (folder / "manifest.json").exists()
    records.write(text_files(), str(folder), tokenizer, plan_of(), "key")
    for name, status in before.items():
        now = (folder / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert contents(folder) == contents(WORK / "processes-1")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


WRITE_PART = records.write_part


def write_part_slowly(*arguments):
    result = WRITE_PART(*arguments)
    time.sleep(0.5)
    return result


def write_slowly():
    """Write the records with a pause after each part, so that there is time for a kill."""
    records.write_part = write_part_slowly
    tokenizer = Tokenizer.from_file(str(WORK / "tokenizer.json"))
    records.write(text_files(), str(WORK / "killed"), tokenizer, plan_of(), "key", 2)


def check_broken(tokenizer):
    """Broken lines are skipped and counted; a text without a sequence is an error."""
    path = WORK / "broken.txt"
    good = "\n".join(["가 나 다 라 마 바 사 아 자 차."] * 3)
    path.write_bytes(f"{good}\n\n".encode() * 8 + b"\xff\xfe\n" + b"x" * 200_000 + b"\n\x01\n")
    manifest = records.write([str(path)], str(WORK / "broken"), tokenizer, plan_of(), "key")
    counts = manifest["counts"]
    assert (counts["lines_not_utf8"], counts["lines_too_long"]) == (1, 1), counts
    assert counts["sequences"] > 0
    path.write_bytes(b"\xff\n" * 10)
    try:
        records.write([str(path)], str(WORK / "broken"), tokenizer, plan_of(), "other")
    except files.JobError as error:
        assert error.exit_code == 2 and "no sequence of --sequence-length 32" in str(error)
    else:
        raise AssertionError("no error was raised")
    assert not (WORK / "broken" / "manifest.json").exists()


if __name__ == "__main__":
    if sys.argv[2:] == ["write"]:
        write_slowly()
        sys.exit()
    check_vocabulary()
    trained = train()
    check_encoding(trained)
    for kind in ("none", "nsp", "sop"):
        check_content(trained, kind)
    check_processes(trained)
    check_interrupted(trained)
    check_broken(trained)
    print("checked")
