"""The model card: a model's data, training, evaluation, and how to load it.

Its front matter is the YAML that the Hugging Face Hub reads
(huggingface.co/docs/hub/model-cards).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["is_korean", "model_card"]

KOREAN_SHARE = 0.2  # of a vocabulary's pieces that have a Hangul letter
LOADING = """\
```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", model="FOLDER")
print(fill_mask("… [MASK] …"))
```

`AutoModelForMaskedLM` and `AutoTokenizer` load it for PyTorch. For TensorFlow, use `transformers`
4.57 or earlier, the last version with TensorFlow models:

```python
model = TFAutoModelForMaskedLM.from_pretrained("FOLDER", use_safetensors=False)
```"""


def model_card(
    *,
    source: Mapping[str, Any],
    training: Mapping[str, Any],
    records: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    examples: Iterable[str],
    vocabulary: Iterable[str],
) -> str:
    """Return the card as Markdown.

    `source` describes the text's origin, if known, `training` the training run, `records` is the
    manifest of the records, `evaluation` has the measures on held-out text.
    """
    korean = is_korean(vocabulary)
    head: dict[str, Any] = {
        **({"language": ["ko"]} if korean else {}),
        "license": source.get("license") or "other",
        **({} if source.get("license") else {"license_name": "that-of-the-text"}),
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "mask_token": "[MASK]",
        "tags": ["bert", "fill-mask", "pretraining", *(["korean"] if korean else [])],
    }
    counts = records.get("counts", {})
    masked = f"at most {records.get('predictions')} tokens per sequence, " + (
        "whole words" if records.get("whole_words") else "single tokens"
    )
    if records.get("masking") == "dynamic":
        masked += ", masked again each time a sequence is read"
    else:
        masked += f", {records.get('duplication')} maskings of each text"
    data = {
        "source": source.get("name") or "unknown",
        "documents": counts.get("documents"),
        "sentences": counts.get("sentences"),
        "sequences": counts.get("sequences"),
        "tokens in them": counts.get("tokens"),
        "longest sequence": records.get("sequence_length"),
        "vocabulary": f"{records.get('vocabulary_size'):,} word pieces, cased, accents kept",
        "masked": masked,
        "second task": {
            "nsp": "whether two segments follow each other",
            "sop": "which of two segments comes first",
        }.get(str(records.get("pairs")), "none"),
    }
    quoted_examples = "\n".join(f"    {line}" for line in examples)
    parts = [
        f"---\n{yaml(head)}---",
        f"# BERT {training.get('size', '')}, pretrained from scratch".replace("  ", " "),
        "A masked language model, to be fine-tuned. It was trained by tpuctl's bundled job.",
        "## Text\n\n" + table(data),
        license_note(source),
        "## Training\n\n" + table(training),
        "## Evaluation\n\n"
        + (
            "On documents held out from training:\n\n" + table(evaluation)
            if evaluation
            else "No text was held out."
        ),
        *(
            [f"Masked words, and the model's guesses:\n\n{quoted_examples}"]
            if quoted_examples
            else []
        ),
        "## Use\n\n" + LOADING,
        f"The tokenizer truncates text to {records.get('sequence_length')} tokens: later positions "
        "were not trained.",
    ]
    return "\n\n".join(parts) + "\n"


def license_note(source: Mapping[str, Any]) -> str:
    """Return a paragraph on the text's license."""
    if source.get("license"):
        return f"The text is licensed under `{source['license']}`, and so is the model."
    return (
        "The license of the text is unknown. Before publishing the model, look it up and add it to "
        "the front matter of this file."
    )


def is_korean(vocabulary: Iterable[str]) -> bool:
    """Whether a vocabulary is Korean, by its share of Hangul."""
    pieces = list(vocabulary)
    hangul = sum(
        any(unicodedata.name(letter, "").startswith("HANGUL") for letter in piece)
        for piece in pieces
    )
    return hangul > KOREAN_SHARE * len(pieces)


def table(rows: Mapping[str, Any]) -> str:
    lines = [
        f"| {name.replace('_', ' ')} | {f'{value:,}' if isinstance(value, int) else value} |"
        for name, value in rows.items()
        if value is not None
    ]
    return "\n".join(["| | |", "|---|---|", *lines])


def yaml(values: Mapping[str, Any]) -> str:
    """Format plain values and lists as YAML; JSON values are valid YAML."""
    lines = []
    for name, value in values.items():
        entries = value if isinstance(value, list) else [value]
        quoted = [json.dumps(entry, ensure_ascii=False) for entry in entries]
        if isinstance(value, list):
            lines += [f"{name}:", *(f"- {text}" for text in quoted)]
        else:
            lines.append(f"{name}: {quoted[0]}")
    return "".join(f"{line}\n" for line in lines)
