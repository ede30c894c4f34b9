"""Causal LM with the Hugging Face Trainer; fixed-length blocks and bf16 on TPU."""
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BLOCK = 64
VOCAB = 256


class ByteBlocks(Dataset):
    """Concatenated text cut into blocks of equal length, the remainder dropped."""

    def __init__(self, text):
        data = torch.tensor(list(text.encode("utf-8")), dtype=torch.long)
        usable = len(data) // BLOCK * BLOCK
        self.blocks = data[:usable].view(-1, BLOCK)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


def stack(features):
    return {k: torch.stack([f[k] for f in features]) for k in features[0]}


class Announce(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"[{state.global_step}] loss={logs['loss']:.3f}")


def on_tpu():
    try:
        import torch_xla.runtime as xr
    except ImportError:
        return False
    return xr.device_type() == "TPU"


def main():
    text = " ".join(f"{i} squared is {i * i};" for i in range(4000))
    train = ByteBlocks(text[:-4096])
    valid = ByteBlocks(text[-4096:])
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=BLOCK, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    out = os.environ.get("OUT_DIR", "")
    args = TrainingArguments(
        output_dir=out or "lm-out",
        max_steps=60,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=10,
        bf16=on_tpu(),
        logging_steps=20,
        save_strategy="steps",
        save_steps=30,
        save_total_limit=2,
        dataloader_drop_last=True,
        dataloader_num_workers=2,
        report_to=[],
    )
    trainer = Trainer(
        model=model, args=args, train_dataset=train, eval_dataset=valid,
        data_collator=stack, callbacks=[Announce()])
    resume = os.path.isdir(args.output_dir) and any(
        d.startswith("checkpoint-") for d in os.listdir(args.output_dir))
    trainer.train(resume_from_checkpoint=resume)
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print({k: round(v, 4) for k, v in metrics.items() if k.startswith("eval_")})


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
