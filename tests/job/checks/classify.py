"""Checks of korean-messages' classify on an untrained model and a task of distinct words."""

import contextlib
import importlib.util
import io
import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
from tokenizers import BertWordPieceTokenizer
from transformers import AutoTokenizer, BertConfig, BertTokenizerFast, TFBertForPreTraining

FOLDER = Path(sys.argv[1])
SCRIPT = Path(__file__).parents[3] / "templates" / "jobs" / "korean-messages" / "messages.py"
spec = importlib.util.spec_from_file_location("messages", SCRIPT)
messages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(messages)

WORDS = {"git": ["커밋", "브랜치", "원격", "병합"], "vim": ["버퍼", "창문", "매크로", "편집"]}
random = np.random.default_rng(1)
rows = [
    (name, split, " ".join(random.choice([*words, "파일", "없음"], 6)))
    for split, count in (("train", 40), ("test", 20))
    for name, words in WORDS.items()
    for _ in range(count + (name == "git"))
]
task = FOLDER / "messages.tsv"
task.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")

# The folder that the pretraining exports.
model = FOLDER / "model"
tokenizer = BertWordPieceTokenizer(lowercase=False)
tokenizer.train_from_iterator([sentence for _, _, sentence in rows], vocab_size=100)
config = BertConfig(
    vocab_size=tokenizer.get_vocab_size(),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
pretrained = TFBertForPreTraining(config)
pretrained(pretrained.dummy_inputs)
pretrained.save_pretrained(model)
BertTokenizerFast(tokenizer_object=tokenizer._tokenizer, do_lower_case=False).save_pretrained(model)

COMMAND = ["classify", "--model", str(model), "--task", str(task), "--seeds", "1", "--batch", "8"]
COMMAND += ["--sequence-length", "24", "--epochs", "4", "--learning-rate", "0.01"]


# A model whose weights have other names would be as good as a random start.
nameless = TFBertForPreTraining(config)
nameless.build()
nameless.save_pretrained(FOLDER / "nameless")
AutoTokenizer.from_pretrained(model).save_pretrained(FOLDER / "nameless")
errors = io.StringIO()
with contextlib.redirect_stderr(errors):
    assert messages.main([*COMMAND, "--model", str(FOLDER / "nameless")]) == 1
assert "lacks the weights bert/" in errors.getvalue(), errors.getvalue()


def classify() -> tuple[str, dict[str, object]]:
    """What the command prints, and its last line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert messages.main(COMMAND) == 0
    return out.getvalue(), json.loads(out.getvalue().splitlines()[-1])


text, result = classify()
accuracy = result["accuracy"]
assert (result["classes"], result["train"], result["test"]) == (["git", "vim"], 81, 41)
assert accuracy["most frequent class"] == [21 / 41]
assert list(map(len, accuracy.values())) == [1, 1, 1]
assert min(accuracy["pretrained"] + accuracy["random start"]) > 0.7, accuracy
assert classify()[1] == result, "the same seeds gave other accuracies"

# One start has the weights of the model, the other has not; both have the same shape.
starts = []


def record(network: object, *_: object) -> float:
    network(network.dummy_inputs)
    starts.append(network.get_weights())
    return float(len(starts))


messages.fine_tune = record
COMMAND[COMMAND.index("--seeds") + 1] = "2"
text, result = classify()
assert "pretrained           2.000 ± 1.414" in text, text
weights = pretrained.bert.embeddings.weight.numpy()
assert [any(np.array_equal(w, weights) for w in start) for start in starts] == [True, False] * 2
assert [w.shape for w in starts[0]] == [w.shape for w in starts[1]]

print("checked")
