"""Sequence classification with the Hugging Face Trainer on TPU."""
import os

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

VOCAB = 400
MAX_LEN = 96


class Reviews(Dataset):
    """Synthetic token sequences of different lengths."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(8, MAX_LEN, (1,), generator=g))
            ids = torch.randint(3, VOCAB, (length,), generator=g)
            self.rows.append((ids, int((ids > VOCAB // 2).float().mean() > 0.5)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "label": label}


def collate(features):
    ids = torch.nn.utils.rnn.pad_sequence([f["input_ids"] for f in features], batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([f["label"] for f in features]),
    }


def accuracy(pred):
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


def main():
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=MAX_LEN, num_labels=2)
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        output_dir=os.environ.get("OUT_DIR", "reviews-out"),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        num_train_epochs=2,
        learning_rate=5e-4,
        logging_steps=100,
        fp16=True,
        dataloader_drop_last=True,
        save_strategy="no",
        report_to=[],
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Reviews(1600, 0),
        eval_dataset=Reviews(256, 1),
        data_collator=collate,
        compute_metrics=accuracy,
    )
    trainer.train()
    print(trainer.evaluate())


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
