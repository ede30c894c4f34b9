"""Checks of the records stage, without TensorFlow. First argument: a folder.

With "write" it only writes the records, slowly, so that the test can kill it.
"""

import json
import random
import signal
import struct
import subprocess
import sys
import time
import unicodedata
import zlib
from collections import Counter
from pathlib import Path

import numpy

import files
from corpus import records, wordpiece
from corpus.encoding import Encoder
from corpus.layout import Layout
from corpus.record_builder import parse
from corpus.text import documents
from corpus.tfrecord import checksums, frame

WORK = Path(sys.argv[1])
SAMPLE = files.text_files(str(Path(files.__file__).parent / "sample"))
SIZE = 2000
PIECE = 20_000
SMALL = {"sequence_length": 32, "predictions": 5, "duplication": 2, "shards": 5, "seed": 7}


def plan_of(**changes):
    return records.RecordsPlan(**{**SMALL, **changes})


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def rows_of(folder, manifest, kind="files"):
    """Parse the files by the documented format: framing, then fields by name."""
    masking = manifest["masking"] if kind == "files" else "static"
    layout = Layout(
        manifest["sequence_length"], manifest["predictions"], masking, manifest["vocabulary_size"]
    )
    rows = []
    for item in manifest[kind]:
        content = (Path(folder) / item["name"]).read_bytes()
        assert len(content) == item["bytes"]
        plain = b""
        while content:
            member = zlib.decompressobj(31)
            plain += member.decompress(content)
            content = member.unused_data
        count, at = 0, 0
        while at < len(plain):
            (size,) = struct.unpack_from("<Q", plain, at)
            numbers = numpy.frombuffer(plain, "<u2", size // 2, at + 12).astype(int)
            row, place = {}, 0
            for name, width in layout.fields.items():
                row[name] = numbers[place : place + width].tolist()
                place += width
            assert place == len(numbers)
            rows.append(row)
            at += 12 + size + 4
            count += 1
        assert count == item["sequences"]
    return rows


def text_files():
    """Write a text of a few hundred kilobytes in two files, with the sample's words."""
    generator = random.Random(1)
    words = " ".join(Path(path).read_text("utf-8") for path in SAMPLE).split()
    paths = []
    for number in range(2):
        path = WORK / f"text-{number}.txt"
        if not path.exists():
            lines = []
            for _ in range(150):
                for _ in range(generator.randrange(1, 12)):
                    lines.append(" ".join(generator.choices(words, k=generator.randrange(1, 20))))
                lines.append("")
            path.write_text("\n".join(lines), "utf-8")
        paths.append(str(path))
    return paths


def check_vocabulary():
    # Ties between letters once made the vocabulary nondeterministic.
    hashes = {wordpiece.vocabulary_hash(wordpiece.train(SAMPLE, SIZE)) for _ in range(4)}
    assert len(hashes) == 1, hashes
    tokenizer = wordpiece.train(SAMPLE, SIZE)
    assert tokenizer.get_vocab_size() == SIZE
    assert [tokenizer.id_to_token(n) for n in range(5)] == wordpiece.SPECIAL
    text = "아침에 일어나면 창문을 연다."
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    apart = unicodedata.normalize("NFD", text)
    assert apart != text and tokenizer.encode(apart).ids == tokenizer.encode(text).ids
    assert tokenizer.encode("가[MASK]나").tokens[1] == "[MASK]"
    # Punctuation and Chinese characters are separate words, so they never continue a word.
    assert not {"##.", "##,", "##漢"} & set(tokenizer.get_vocab())

    folder = str(WORK / "tokenizer")
    wordpiece.save(tokenizer, folder, "key")
    assert wordpiece.load(folder, "another key") is None
    loaded = wordpiece.load(folder, "key")
    assert wordpiece.vocabulary_hash(loaded) == wordpiece.vocabulary_hash(tokenizer)


def check_sample():
    """A large text is sampled evenly."""
    assert wordpiece.sample_numbers(3, 10) == [0, 1, 2]
    assert wordpiece.sample_numbers(1000, 4) == [0, 250, 500, 750]
    counts = Counter({"가": 9990, "나": 9, "다": 1, " ": 500})
    assert wordpiece.alphabet(counts, 10) == ["가", "나"]
    assert wordpiece.alphabet(counts, 1) == ["가"]


def check_encoder(tokenizer):
    """Encoding word by word equals encoding whole sentences."""
    generator = random.Random(2)
    encoder = Encoder(tokenizer.to_str())
    letters = "가나다라 abc.,!?「」漢字ㅋㅋㅎ\u1112\u1161\u11ab\u0301é\u200d\u3000\x07😀[MASK]##"
    sentences = ["".join(generator.choices(letters, k=generator.randrange(40))) for _ in range(500)]
    sentences += ["[MASK] [CLS]", "##가 ## #", "가" * 200, ""]
    for known_before in (False, True):
        tokens, lengths = encoder.encode([sentence.split() for sentence in sentences])
        expected = [
            encoder.tokenizer.encode(sentence, add_special_tokens=False).ids
            for sentence in sentences
        ]
        assert lengths.tolist() == [len(ids) for ids in expected], known_before
        assert tokens.tolist() == [token for ids in expected for token in ids]
    assert tokenizer.token_to_id("[MASK]") not in tokens
    for token, is_continuation in enumerate(encoder.is_continuation):
        assert is_continuation == tokenizer.id_to_token(token).startswith("##")


def check_parsing():
    text = "\ufeff하나\r\n  둘   셋\n\n \n넷\u200b\n\u3000\n\u1112\u1161\u11ab\n"
    parsed, skipped = parse(text.encode())
    assert [[" ".join(words) for words in document] for document in parsed] == list(
        documents(text.split("\n"))
    )
    assert not skipped
    parsed, skipped = parse(b"one\n\xff\xfe two\nthree\n" + b"x" * 100_001 + b"\n\xed\xa0\x80")
    assert parsed == [[["one"], ["three"]]]
    assert skipped == {"lines_not_utf8": 2, "lines_too_long": 1}


def check_framing():
    # From RFC 3720, B.4: 32 bytes of zeros, of ones, ascending and descending.
    vectors = [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ]
    sums = checksums(
        numpy.frombuffer(b"".join(content for content, _ in vectors), "u1").reshape(4, 32)
    )
    for masked, (_, plain) in zip(sums.copy().view("<u4")[:, 0].tolist(), vectors, strict=True):
        turned = ((plain >> 15) | (plain << 17)) & 0xFFFFFFFF
        assert masked == (turned + 0xA282EAD8) & 0xFFFFFFFF
    assert len(frame(numpy.zeros((3, 5), "<u2"))) == 3 * (8 + 4 + 10 + 4)


def letters_of(tokens):
    """Encode tokens as a string, for substring search."""
    return "".join(map(chr, (1000 + token for token in tokens)))


def segments_of(row):
    """Return the segments of a row before masking, without special tokens."""
    tokens = list(row["input_ids"])
    for place in range(row["count"][0]):
        tokens[row["positions"][place]] = row["ids"][place]
    first, total = row["first"][0], row["total"][0]
    start, end = 2, 3  # [CLS], [SEP]
    assert tokens[0] == start and tokens[first - 1] == end == tokens[total - 1]
    assert not any(tokens[total:])
    return letters_of(tokens[1 : first - 1]), letters_of(tokens[first : max(first, total - 1)])


def check_content(tokenizer, pairs):
    """The records contain the whole text, document by document."""
    paths, folder = text_files(), WORK / pairs
    manifest = records.write(paths, tokenizer, plan_of(pairs=pairs), str(folder), "key", 1, PIECE)
    assert records.load(str(folder), "key") == manifest
    assert records.load(str(folder), "another key") is None
    texts = [
        letters_of(token for sentence in document for token in tokenizer.encode(sentence).ids)
        for path in paths
        for document in documents(files.lines(path))
    ]
    rows = {kind: rows_of(folder, manifest, kind) for kind in ("files", "held_out")}
    counts = manifest["counts"]
    assert counts["sequences"] == len(rows["files"])
    assert counts["held_out_sequences"] == len(rows["held_out"]) > 0
    assert counts["tokens"] == sum(row["total"][0] for row in rows["files"])
    assert counts["predictions"] == sum(row["count"][0] for row in rows["files"])
    assert counts["documents"] + counts["held_out_documents"] == len(texts) == 300
    assert counts["sentences"] == sum(
        len(document) for path in paths for document in documents(files.lines(path))
    )

    covered = [set() for _ in texts]
    kinds = [set() for _ in texts]
    for kind, of_kind in rows.items():
        for row in of_kind:
            first, second = segments_of(row)
            label = row["label"][0]
            if pairs == "nsp" and label:
                origins = [n for n, text in enumerate(texts) if first in text]
                others = [n for n, text in enumerate(texts) if second in text]
                assert origins and others and set(origins) != set(others)
                parts = [(n, first) for n in origins] + [(n, second) for n in others]
                parts_of_own = [(n, first) for n in origins]
            else:
                both = second + first if label else first + second
                origins = [n for n, text in enumerate(texts) if both in text]
                assert origins, row
                parts = parts_of_own = [(n, both) for n in origins]
            for n, part in parts_of_own:
                at = texts[n].index(part)
                covered[n].update(range(at, at + len(part)))
            if len(parts) == len(parts_of_own) == 1 or (pairs == "nsp" and len(parts) == 2):
                for n, _ in parts:
                    kinds[n].add(kind)
    # All tokens except a short rest are covered; no document is in training and evaluation.
    for text, tokens in zip(texts, covered, strict=True):
        missing = set(range(len(text))) - tokens
        assert min(missing, default=len(text)) > len(text) - 8, (sorted(missing), len(text))
    assert not any(len(document_kinds) > 1 for document_kinds in kinds)
    held_out = sum(document_kinds == {"held_out"} for document_kinds in kinds)
    assert held_out <= counts["held_out_documents"] <= 12
    labels = [row["label"][0] for row in rows["files"]]
    expected = 0 if pairs == "none" else 0.5
    assert abs(sum(labels) / len(labels) - expected) <= (2 / len(labels) ** 0.5) * (expected > 0)

    maskings = {}
    for row in rows["files"]:
        maskings.setdefault(segments_of(row), []).append(tuple(row["input_ids"]))
    again = [variants for variants in maskings.values() if len(variants) > 1]
    if pairs == "none":
        assert len(again) > 0.4 * len(maskings)
    assert sum(len(set(variant)) > 1 for variant in again) > 0.9 * len(again)


def check_masking(tokenizer):
    """80, 10, 10 percent, and whole words are masked."""
    folder = WORK / "masking"
    plan = plan_of(sequence_length=64, predictions=10, duplication=4)
    manifest = records.write(text_files(), tokenizer, plan, str(folder), "key", 1)
    is_continuation = Encoder(tokenizer.to_str()).is_continuation
    kinds = Counter()
    budget = 0
    for row in rows_of(folder, manifest):
        total, first, count = row["total"][0], row["first"][0], row["count"][0]
        places = row["positions"][:count]
        assert places == sorted(set(places)) and not any(row["positions"][count:])
        assert not any(row["ids"][count:])
        assert not {0, first - 1, total - 1} & set(places) and all(n < total for n in places)
        tokens = list(row["input_ids"])
        for place, token in zip(places, row["ids"], strict=False):
            token_shown = tokens[place]
            kinds[
                "hidden" if token_shown == 4 else "left" if token_shown == token else "changed"
            ] += 1
            assert token_shown == token or token_shown >= 4
            tokens[place] = token
        limit = min(10, max(1, round(0.15 * (total - 3))))
        assert count <= limit
        budget += limit
        for n in range(1, total - 1):
            # A continuation is masked if and only if the piece before it is.
            if is_continuation[tokens[n]] and n - 1 not in (0, first - 1):
                assert (n in places) == (n - 1 in places), (n, places)
    predicted = sum(kinds.values())
    assert 0.95 * budget < predicted <= budget, (predicted, budget)
    deviation = 4 * (0.16 / predicted) ** 0.5
    assert abs(kinds["hidden"] / predicted - 0.8) < deviation, kinds
    # One random token in two thousand equals the original by chance.
    assert abs(kinds["changed"] / predicted - 0.1) < deviation, kinds

    single = plan_of(whole_words=False)
    manifest = records.write(text_files(), tokenizer, single, str(folder), "another", 1)
    parted = 0
    for row in rows_of(folder, manifest):
        places = row["positions"][: row["count"][0]]
        assert len(places) == min(5, max(1, round(0.15 * (row["total"][0] - 3))))
        parted += any(
            is_continuation[token] and place - 1 not in places and place > 1
            for place, token in zip(places, row["ids"], strict=False)
        )
    assert parted


def check_processes(tokenizer):
    """The files do not depend on the number of processes, but on the seed."""
    results = {}
    for processes in (1, 2, 3):
        folder = WORK / f"processes-{processes}"
        records.write(text_files(), tokenizer, plan_of(), str(folder), "key", processes, PIECE)
        results[processes] = contents(folder)
    assert len(results[1]) > 6 and results[1] == results[2] == results[3]
    # Files of another text or plan are removed.
    folder = str(WORK / "processes-2")
    records.write(text_files(), tokenizer, plan_of(seed=8, shards=2), folder, "other", 1, PIECE)
    others = contents(folder)
    assert "part-00004-of-00005.tfrecord.gz" not in others
    assert "part-00001-of-00002.tfrecord.gz" in others
    assert "unfinished.json" not in others


def check_interrupted(tokenizer):
    """After a kill, complete shards are kept, and the final files are identical."""
    tokenizer.save(str(WORK / "tokenizer.json"))
    folder = WORK / "killed"
    note = folder / "unfinished.json"
    killed = subprocess.Popen([sys.executable, __file__, WORK, "write"], stderr=subprocess.DEVNULL)
    while not files.read_json(str(note)).get("done"):
        assert killed.poll() is None, "finished before the kill"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    done = files.read_json(str(note))["done"]
    assert 0 < done < 5 and not (folder / "manifest.json").exists()
    before = {
        item["name"]: (folder / item["name"]).stat()
        for item in json.loads(note.read_text())["training"]
    }
    assert len(before) == done
    records.write(text_files(), tokenizer, plan_of(), str(folder), "key", 1, PIECE)
    for name, status in before.items():
        now = (folder / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert contents(folder) == contents(WORK / "processes-1")


def write_slowly():
    """Write the records with a pause after each piece, so that there is time for a kill."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(WORK / "tokenizer.json"))
    add = records.RecordWriter.add

    def add_slowly(self, piece):
        add(self, piece)
        time.sleep(0.2)

    records.RecordWriter.add = add_slowly
    records.write(text_files(), tokenizer, plan_of(), str(WORK / "killed"), "key", 2, PIECE)


def check_broken(tokenizer):
    """Broken input is skipped and counted; a text of broken input only yields empty files."""
    path = WORK / "broken.txt"
    good = "\n".join(["가 나 다 라 마 바 사 아 자 차."] * 3)
    path.write_bytes(f"{good}\n\n".encode() * 8 + b"\xff\xfe\n" + b"x" * 200_000 + b"\n\x01\n")
    manifest = records.write([str(path)], tokenizer, plan_of(), str(WORK / "broken"), "key", 1)
    skipped = manifest["counts"]["skipped"]
    assert skipped == {"lines_not_utf8": 1, "lines_too_long": 1}, skipped
    assert manifest["counts"]["sequences"] > 0
    path.write_bytes(b"\xff\n" * 10)
    manifest = records.write([str(path)], tokenizer, plan_of(), str(WORK / "broken"), "other", 1)
    assert (
        manifest["counts"]["sequences"] == 0 == sum(item["sequences"] for item in manifest["files"])
    )


if __name__ == "__main__":
    if sys.argv[2:] == ["write"]:
        write_slowly()
        sys.exit()
    check_vocabulary()
    check_sample()
    check_parsing()
    check_framing()
    trained = wordpiece.train(SAMPLE, SIZE)
    check_encoder(trained)
    for kind in ("none", "nsp", "sop"):
        check_content(trained, kind)
    check_masking(trained)
    check_processes(trained)
    check_interrupted(trained)
    check_broken(trained)
    assert "tensorflow" not in sys.modules
    print("checked")
