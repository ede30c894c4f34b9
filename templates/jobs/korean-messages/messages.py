"""For Korean text without a download, and a task to test BERT.

Programs bring translations of their messages. `collect` gathers the Korean ones on this computer,
with the standard library alone: text to pretrain on, and a task (which program says this?).
`classify` fine-tunes a pretrained model on that task, then the same network from a random start,
and compares their accuracy: minutes on a CPU, in the environment of the pretraining.

    python messages.py collect
    python messages.py classify --model output/model
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import struct
import sys
import sysconfig
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A folder is Korean when it is called ko, ko_KR, ko.UTF-8 and so on; "kok" is Konkani.
CATALOGS = [f"{korean}/LC_MESSAGES/*.mo" for korean in ("ko", "ko[_.@]*")]
SHARES = ("usr/share", "usr/local/share", "opt/homebrew/share", "opt/local/share")
MAX_CLASSES, MIN_SENTENCES, MAX_TEST = 10, 200, 200  # of the task; the last two per class
MORE = """For more, install programs with translations (apt-get install git gettext vim) or Python
packages (pip install django sphinx), and collect again."""
MIN_HANGUL = 10  # syllables; anything shorter is a label, not a sentence
NOISE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # colors of a terminal
    r"|</?[A-Za-z][^<>]*>|&(?:\w+|#\d+);"  # markup
    r"|%%|%(?:\d+\$)?(?:\([^)]*\))?[-+ #0']*[*\d.]*(?:hh?|ll?|[jztLq])?(?:<?PRI\w+>?|[a-zA-Z])"
    r"|\$?\{[^{}]*\}|\$\([^()]*\)"  # {name}, $(name); above: %s, %2$d, %(name)s, %<PRIu64>
    r"|\s*\([_&]\w\)|(?<!\w)_(?=\w)"  # keyboard accelerators: 열기(_O)
)
EMPTY_PAIR = re.compile(r"\(\s*\)|\[\s*\]|<\s*>|'\s*'|\"\s*\"|`\s*'|‘\s*’|“\s*”|«\s*»|「\s*」")
PARAGRAPH_END = re.compile(r"\n\s*(?=\n|[-•*#]|\d+[.)])")  # an empty line, a bullet, an option
SENTENCE_END = re.compile(r"(?<=[.!?。])[\"'’”)」]?\s+(?=\S)")
# "--all  모두 …", and what "%s을(를) 열 수 없음" leaves: a particle that has no noun.
ORPHAN = re.compile(r"^-[^가-힣]*\s(?=\S*[가-힣])|^[가-힣]{0,2}\([가-힣]{1,2}\)\s+")


def read_catalog(content: bytes) -> list[str]:
    """Return the translations in a compiled catalog (`.mo`); plural forms are separate strings.

    The gettext module only looks up the translation of a message that one already knows.
    """
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(content[:4])
    if order is None:
        raise ValueError("not a message catalog")
    count, _, table = struct.unpack_from(f"{order}3I", content, 8)
    entries = struct.unpack_from(f"{order}{2 * count}I", content, table)
    pairs = zip(entries[::2], entries[1::2], strict=True)
    header, *translations = [content[start : start + length] for length, start in pairs] or [b""]
    charset = re.search(rb"charset=([\w-]+)", header)
    text = b"\0".join(translations)
    return text.decode(charset[1].decode() if charset else "utf-8", "replace").split("\0")


def clean(message: str) -> str:
    """Remove placeholders, markup, keyboard accelerators and colors from a message."""
    # Pairs twice: removing an empty one can leave another around it.
    return EMPTY_PAIR.sub("", EMPTY_PAIR.sub("", NOISE.sub("", message)))


def korean_sentences(message: str) -> Iterator[str]:
    """Yield the Korean sentences of a message, in NFC, each on one line."""
    for paragraph in PARAGRAPH_END.split(unicodedata.normalize("NFC", clean(message))):
        for part in SENTENCE_END.split(ORPHAN.sub("", " ".join(paragraph.split()))):
            sentence = re.sub(r"\s+([.,!?:;)])(?=\s|$)", r"\1", part.strip(" :;,-–—#|*•"))
            hangul = len(re.findall(r"[가-힣]", sentence))
            is_prose = hangul >= MIN_HANGUL and 2 * hangul >= sum(map(str.isalpha, sentence))
            if is_prose and sentence.isprintable() and "\ufffd" not in sentence:
                yield sentence


def find_catalogs(root: Path, packages: Path) -> list[tuple[str, Path]]:
    """Return the Korean catalogs of programs and of Python packages, with the program's name."""
    catalogs = set()
    for catalog in CATALOGS:
        for share in SHARES:
            for folder in ("locale*", "vim/vim*/lang"):
                catalogs |= {(p.stem, p) for p in (root / share).glob(f"{folder}/{catalog}")}
        for path in packages.glob(f"*/**/locale*/{catalog}"):
            catalogs.add((path.relative_to(packages).parts[0], path))
    # gtk30 and gtk40, postgres-15 and postgres-16 are one program with nearly the same messages.
    return sorted((re.sub(r"[-_.\d]+$", "", name) or name, path) for name, path in catalogs)


def collect(root: Path, packages: Path, output: Path, max_bytes: int) -> int:
    """Write `messages.txt` and `messages.tsv`; return the number of sentences, all different."""
    programs: dict[str, list[str]] = {}
    seen: set[str] = set()
    for program, path in find_catalogs(root, packages):
        try:
            messages = read_catalog(path.read_bytes())
        except (OSError, ValueError, LookupError, struct.error) as error:
            print(f"skipped {path}: {error}")  # damaged, or in an unknown character set
            continue
        for sentence in (s for message in messages for s in korean_sentences(message)):
            size = len(sentence.encode()) + 1
            if sentence not in seen and size <= max_bytes:
                max_bytes -= size
                seen.add(sentence)
                programs.setdefault(program, []).append(sentence)
    if not seen:
        return 0
    largest = sorted(programs, key=lambda name: (-len(programs[name]), name))[:MAX_CLASSES]
    classes = [name for name in largest if len(programs[name]) >= MIN_SENTENCES]
    rows: list[tuple[str, str, str]] = []
    for name in classes if len(classes) > 1 else []:
        # The order of hashes looks random and is the same on every computer.
        shuffled = sorted(programs[name], key=lambda s: hashlib.sha256(s.encode()).digest())
        tests = min(len(shuffled) // 4, MAX_TEST)
        rows += [(name, "test" if i < tests else "train", s) for i, s in enumerate(shuffled)]
    held_out = {sentence for _, split, sentence in rows if split == "test"}
    texts = ["\n".join(s for s in programs[p] if s not in held_out) for p in sorted(programs)]
    output.mkdir(parents=True, exist_ok=True)
    text, task = output / "messages.txt", output / "messages.tsv"
    text.write_text("\n\n".join(texts) + "\n", "utf-8")
    print(f"{text}: {len(seen) - len(held_out)} sentences of {len(programs)} programs")
    task.unlink(missing_ok=True)
    if rows:
        task.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
        print(f"{task}: {len(rows)} sentences, one class each for {', '.join(classes)}")
    else:
        print(f"no task: it needs two programs with {MIN_SENTENCES} sentences each.\n{MORE}")
    return len(seen)


def read_task(path: Path, examples_per_class: int) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the names of the classes, and of each split the pairs (sentence, class)."""
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    names = sorted({name for name, _, _ in rows})
    splits: dict[str, list[Any]] = {"train": [], "test": []}
    examples: Counter[str] = Counter()
    for name, split, sentence in rows:
        examples[name] += split == "train"
        if split == "test" or not 0 < examples_per_class < examples[name]:
            splits[split].append((sentence, names.index(name)))
    return names, splits


def fine_tune(network: Any, data: Any, options: argparse.Namespace, seed: int) -> float:
    """Train a classifier and return its accuracy; the seed decides the order of the examples."""
    import numpy
    import tensorflow as tf
    from transformers import create_optimizer

    (inputs, labels), (test_inputs, test_labels) = data
    random = numpy.random.default_rng(seed)
    order = numpy.concatenate([random.permutation(len(labels)) for _ in range(options.epochs)])
    steps = len(order) // options.batch
    order = order[: steps * options.batch]
    optimizer, _ = create_optimizer(options.learning_rate, steps, num_warmup_steps=steps // 10)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer=optimizer, loss=loss)
    shuffled = {name: values[order] for name, values in inputs.items()}
    network.fit(shuffled, labels[order], batch_size=options.batch, shuffle=False, verbose=0)
    logits = network.predict(test_inputs, batch_size=128, verbose=0).logits
    return float((logits.argmax(-1) == test_labels).mean())


def classify(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the pretrained model, a random start and the most frequent class on the task."""
    names, splits = read_task(options.task, options.examples_per_class)
    if not Path(options.model, "tf_model.h5").is_file():
        raise OSError(f"no tf_model.h5 in {options.model}, the folder of an exported model")
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}  # before importing it
    import numpy
    import tensorflow as tf
    from transformers import AutoConfig, AutoTokenizer
    from transformers import TFAutoModelForSequenceClassification as Classifier
    from transformers.utils.logging import set_verbosity_error

    set_verbosity_error()  # missing weights are examined below
    tf.config.experimental.enable_op_determinism()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    config = AutoConfig.from_pretrained(options.model, num_labels=len(names))
    shape = {"max_length": options.sequence_length, "padding": "max_length", "truncation": True}
    data = []
    for sentences, labels in (zip(*splits[split], strict=True) for split in ("train", "test")):
        inputs = tokenizer(list(sentences), **shape, return_tensors="np")
        data.append((dict(inputs), numpy.array(labels)))
    accuracies: dict[str, list[float]] = {"pretrained": [], "random start": []}
    started = time.monotonic()
    for seed in range(1, options.seeds + 1):
        for start, measured in accuracies.items():
            tf.keras.utils.set_random_seed(seed)
            if start == "pretrained":
                network, loaded = Classifier.from_pretrained(
                    options.model, config=config, use_safetensors=False, output_loading_info=True
                )
                # New are the classifier and, after a pretraining without pairs, the pooler.
                if missing := [key for key in loaded["missing_keys"] if "/encoder/" in key]:
                    raise OSError(f"{options.model} lacks the weights {', '.join(missing)}")
            else:
                network = Classifier.from_config(config)
            measured.append(fine_tune(network, data, options, seed))
            print(f"seed {seed}, {start}: {measured[-1]:.3f}", flush=True)
    counts = numpy.bincount(data[1][1])
    accuracies["most frequent class"] = [float(counts.max() / counts.sum())]
    sizes = {split: len(pairs) for split, pairs in splits.items()}
    print(f"\naccuracy with {len(names)} classes, {time.monotonic() - started:.0f} s")
    for start, measured in accuracies.items():
        spread = f" ± {statistics.stdev(measured):.3f}" if len(measured) > 1 else ""
        print(f"    {start:<20} {statistics.mean(measured):.3f}{spread}")
    return {"classes": names, **sizes, "accuracy": accuracies}


def main(arguments: list[str] | None = None) -> int:
    here = Path(__file__).resolve().parent
    job = here.parent / "bert-pretraining"
    folder = (job if job.is_dir() else here) / "data"
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("collect", help="collect Korean messages on this computer")
    command.add_argument("--output", type=Path, default=folder, help=f"(default: {folder})")
    command.add_argument("--root", type=Path, default=Path("/"), help="folder to search")
    command.add_argument("--max-megabytes", type=float, default=20.0, help="of text (default: 20)")
    command = commands.add_parser("classify", help="fine-tune a model on the task, and compare")
    command.add_argument("--model", required=True, help="folder that the pretraining exported")
    command.add_argument("--task", type=Path, default=folder / "messages.tsv")
    command.add_argument("--examples-per-class", type=int, default=100, help="0: all")
    command.add_argument("--epochs", type=int, default=10)
    command.add_argument("--batch", type=int, default=32)
    command.add_argument("--learning-rate", type=float, default=1e-3)
    command.add_argument("--sequence-length", type=int, default=32)
    command.add_argument("--seeds", type=int, default=3, help="runs, for mean and spread")
    options = parser.parse_args(arguments)
    packages = Path(sysconfig.get_paths()["purelib"])
    try:
        if options.command == "classify":
            print(json.dumps(classify(options)))
            return 0
        size = int(options.max_megabytes * 1e6)
        if not collect(options.root, packages, options.output, size):
            print(f"no Korean message catalogs found below {options.root} and {packages}")
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
