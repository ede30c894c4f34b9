"""Records of token sequences from text, written by any number of processes.

A record is a row of 16-bit numbers, little endian: the label of its pair of segments, then the
tokens `[CLS] first [SEP] second [SEP]`, padded with zeros. Records depend on the text, the
vocabulary and the plan alone, not on the number of processes or on an interruption.
"""

import os
import random
import signal
import struct
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import chain, pairwise
from multiprocessing import active_children, get_context, parent_process
from typing import Any, NamedTuple

import files
from files import JobError, join
from vocabulary import SPECIAL, documents, read_lines, vocabulary_hash

PAIRS = ("none", "nsp", "sop")
START, SEPARATOR = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
MIN_TOKENS = 8  # a document's shorter rest is left out
MAX_CACHED_WORDS = 300_000  # about 100 MB; then the cache is cleared


@dataclass(frozen=True)
class Plan:
    """What determines the records, besides the text and the vocabulary."""

    sequence_length: int
    # none; nsp: half of the second segments are from another document; sop: half are swapped
    pairs: str = "nsp"
    duplication: int = 1  # copies of the text, each with other pairs
    held_out: float = 0.01  # share of the documents that training never sees
    seed: int = 1
    short_sequences: float = 0.1  # share of sequences made shorter, as fine-tuning data has them

    @property
    def room(self) -> int:
        """The number of text tokens in a sequence: without [CLS] and each [SEP]."""
        return self.sequence_length - (2 if self.pairs == "none" else 3)


# Records for training, those for evaluation, and counts.
Part = tuple[list[bytes], list[bytes], dict[str, int]]


class Example(NamedTuple):
    """The ranges of tokens of one or two segments, and the label of the pair."""

    first: int
    first_end: int
    second: int
    second_end: int
    label: int


def examples(
    documents: Sequence[Sequence[int]], plan: Plan, generator: random.Random
) -> Iterator[Example]:
    """Yield the examples of all documents in order; only a short rest of a document is left out.

    A document is the list of its sentences' borders in one long list of tokens: [10, 14, 30] has
    two sentences, tokens 10 to 13 and 14 to 29.
    """
    # A sentence fits together with one that is too short to stand alone.
    room = plan.room
    longest = max(1, room - MIN_TOKENS if plan.pairs == "none" else room // 2)
    borders = [split_long_sentences(document, longest) for document in documents]
    for number, document in enumerate(borders):
        last, begin = len(document) - 1, 0
        while begin < last:
            budget = room
            if generator.random() < plan.short_sequences:
                budget = generator.randint(MIN_TOKENS, room)
            # As many sentences as fit, at least one; two if the first is too short.
            start = document[begin]
            end = max(begin + 1, bisect_right(document, start + budget) - 1)
            if document[end] - start < MIN_TOKENS:
                end = bisect_right(document, start + room) - 1
            stop = document[end]
            if stop - start < MIN_TOKENS:
                break  # the document's rest
            if plan.pairs == "none":
                yield Example(start, stop, stop, stop, 0)
            elif plan.pairs == "nsp" and len(borders) > 1 and generator.random() < 0.5:
                # The text that would have followed begins the next example.
                if end - begin > 1:
                    end = generator.randint(begin + 1, end - 1)
                stop = document[end]
                position = generator.randrange(len(borders) - 1)
                other = borders[position + (position >= number)]
                second = other[generator.randrange(len(other) - 1)]
                missing = max(1, max(budget, MIN_TOKENS) - (stop - start))
                yield Example(start, stop, second, min(other[-1], second + missing), 1)
            else:
                middle = (start + stop) // 2  # a single sentence is split in two
                if end - begin > 1:
                    middle = document[generator.randint(begin + 1, end - 1)]
                if plan.pairs == "sop" and generator.random() < 0.5:
                    yield Example(middle, stop, start, middle, 1)
                else:
                    yield Example(start, middle, middle, stop, 0)
            begin = end


def split_long_sentences(document: Sequence[int], longest: int) -> list[int]:
    """Return the borders, with additional ones that split sentences longer than `longest`."""
    borders = [document[0]]
    for start, end in pairwise(document):
        borders += [*range(start + longest, end, longest), end]
    return borders


class RecordBuilder:
    """Builds records. It caches the tokens of words, which do not depend on their neighbors."""

    def __init__(self, tokenizer_json: str, plan: Plan) -> None:
        from tokenizers import Tokenizer

        self.plan = plan
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        # "[MASK]" in a text is five letters and two brackets, not a hidden word.
        self.tokenizer.encode_special_tokens = True
        self.cache: dict[str, list[int]] = {}

    def build(self, lines: Iterable[str], number: int) -> Part:
        """Return the records of a text file; its number seeds the random choices."""
        plan, seed, skipped = self.plan, f"{self.plan.seed}/{number}", Counter[str]()
        texts = list(documents(lines, skipped))
        tokens, borders = self.encode(texts)
        chooser = random.Random(f"{seed}/held out")
        # In twos, so that a pair can take its second segment from the other document. The first
        # file holds some out if it can, so that a small text has held-out documents, too.
        twos = int(plan.held_out * len(borders) / 2 + chooser.random())
        twos = min(max(twos, number == 0 and plan.held_out > 0), len(borders) // 4)
        chosen = set(chooser.sample(range(len(borders)), 2 * twos))
        rest = [document for n, document in enumerate(borders) if n not in chosen]
        others = [borders[n] for n in sorted(chosen)]
        copies = [random.Random(f"{seed}/{copy}") for copy in range(plan.duplication)]
        training = [example for copy in copies for example in examples(rest, plan, copy)]
        random.Random(f"{seed}/order").shuffle(training)
        evaluation = list(examples(others, plan, random.Random(f"{seed}/evaluation")))
        counts = {
            "documents": len(rest),
            "held_out_documents": len(others),
            "sentences": sum(map(len, texts)),
            "sequences": len(training),
            "held_out_sequences": len(evaluation),
            "negative_pairs": sum(example.label for example in training),
            **skipped,
        }
        rows = [self.serialize(tokens, example) for example in training]
        return rows, [self.serialize(tokens, example) for example in evaluation], counts

    def encode(self, texts: Sequence[Sequence[str]]) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of all documents, and each document as the borders of its sentences."""
        if len(self.cache) > MAX_CACHED_WORDS:
            self.cache.clear()
        words = {word for sentence in chain.from_iterable(texts) for word in sentence.split()}
        new = list(words.difference(self.cache))
        encodings = self.tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self.cache.update(zip(new, (encoding.ids for encoding in encodings), strict=True))
        tokens: list[int] = []
        borders: list[list[int]] = []
        for document in texts:
            borders.append([len(tokens)])
            for sentence in document:
                for word in sentence.split():
                    tokens += self.cache[word]
                if len(tokens) > borders[-1][-1]:
                    borders[-1].append(len(tokens))
        return tokens, [document for document in borders if len(document) > 1]

    def serialize(self, tokens: list[int], example: Example) -> bytes:
        """Return the record of an example."""
        first, second = tokens[slice(*example[:2])], tokens[slice(*example[2:4])]
        row = [example.label, START, *first, SEPARATOR]
        if self.plan.pairs != "none":
            row += [*second, SEPARATOR]
        return struct.pack(f"<{len(row)}H", *row).ljust(2 * (self.plan.sequence_length + 1), b"\0")


def write(
    paths: Sequence[str], folder: str, tokenizer: Any, plan: Plan, key: str, processes: int = 1
) -> dict[str, Any]:
    """Write the records of text files, a part for each; return the manifest, written last.

    `key` is the fingerprint of all that determines the records: what has it is kept.
    """
    from tqdm import tqdm

    target = join(folder, "manifest.json")
    manifest = files.read_json(target)
    if manifest.get("fingerprint") == key:
        return manifest
    files.remove(target)
    parts = [files.read_json(join(folder, f"part-{n:05d}.json")) for n in range(len(paths))]
    missing = [n for n, part in enumerate(parts) if part.get("fingerprint") != key]
    texts = ((n, list(read_lines(paths[n]))) for n in missing)
    built = in_processes(partial(build_part, tokenizer.to_str(), plan), texts, processes)
    for n, part in zip(missing, tqdm(built, "records", len(missing), disable=None), strict=True):
        parts[n] = write_part(folder, n, key, part)
    counts, listed = Counter[str](), {}
    for part in parts:
        counts.update(part["counts"])
        listed |= part["files"]
    manifest = manifest_of(tokenizer, plan, key, counts, listed)
    listed_names = {*listed, *(f"part-{n:05d}.json" for n in range(len(paths)))}
    for name in set(files.names(folder)) - listed_names:
        files.remove(join(folder, name))  # of another text
    files.write_json(target, manifest)
    return manifest


def manifest_of(
    tokenizer: Any, plan: Plan, key: str, counts: dict[str, int], listed: dict[str, int]
) -> dict[str, Any]:
    """Return the content of `manifest.json`. Raises JobError if there is no sequence."""
    if not counts.get("sequences"):
        raise JobError(f"no sequence of --sequence-length {plan.sequence_length} in the text", 2)
    return {
        **asdict(plan),
        "fingerprint": key,
        "vocabulary_size": tokenizer.get_vocab_size(),
        "vocabulary_hash": vocabulary_hash(tokenizer),
        "counts": dict(counts),
        "files": {name: size for name, size in listed.items() if name.startswith("part")},
        "held_out_files": {name: size for name, size in listed.items() if name.startswith("held")},
    }


def in_processes(
    function: Callable[[Any], Any], items: Iterable[Any], processes: int
) -> Iterator[Any]:
    """Yield the function's results in the order of the items, taking only a few items ahead."""
    if processes == 1:
        yield from map(function, items)
        return
    # Spawned, not forked: TensorFlow's threads do not survive a fork.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), start_worker)
    pending: deque[Any] = deque()
    try:
        for item in items:
            # Processes started here inherit the blocked signal: Ctrl-C reaches only this one.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            pending.append(pool.submit(function, item))
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise JobError("a worker died, most likely out of memory: try fewer --processes") from error
    finally:
        for process in active_children():
            process.terminate()  # after Ctrl-C, what they do could take a minute
            process.join()
        pool._result_queue._writer.close()  # or it waits for the rest of what one was sending
        pool.shutdown(cancel_futures=True)


def start_worker() -> None:
    """Let a process exit when the one that started it is killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads would only compete for the cores

    def exit_with_parent() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


cached_builder = lru_cache(1)(RecordBuilder)


def build_part(tokenizer_json: str, plan: Plan, text: tuple[int, list[str]]) -> Part:
    """Return the records of a text file. Processes that do this do without TensorFlow."""
    number, lines = text
    return cached_builder(tokenizer_json, plan).build(lines, number)


def write_part(folder: str, number: int, key: str, part: Part) -> dict[str, Any]:
    """Write the records of a text file, and a description of them last; return it."""
    import tensorflow as tf

    training, held_out, counts = part
    options = tf.io.TFRecordOptions(compression_type="GZIP", compression_level=1)
    written = []
    with files.file_errors(folder, is_written=True):
        files.make_folder(folder)
        for kind, records in (("part", training), ("held-out", held_out)):
            if records:
                written.append(f"{kind}-{number:05d}.tfrecord.gz")
                with tf.io.TFRecordWriter(join(folder, written[-1]), options) as writer:
                    for record in records:
                        writer.write(record)
    about = {"fingerprint": key, "files": files.sizes(folder, written), "counts": counts}
    files.write_json(join(folder, f"part-{number:05d}.json"), about)
    return about
