"""BERT by tf-models-official: its task, its pretrainer, its training loop: see exchange.py."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
import tf_keras
from exchange import OPTIMIZER, request, serve
from official.core import base_trainer, config_definitions
from official.nlp.configs import bert, encoders
from official.nlp.data import pretrain_dataloader
from official.nlp.tasks import masked_lm

arrays, model = request()
examples = tf.data.Dataset.from_tensor_slices(
    {
        "input_word_ids": arrays["input_ids"],
        "input_mask": arrays["input_mask"],
        "input_type_ids": arrays["segment_ids"],
        "masked_lm_positions": arrays["masked_lm_positions"],
        "masked_lm_ids": arrays["masked_lm_ids"],
        "masked_lm_weights": arrays["masked_lm_weights"],
    }
)
examples = examples.repeat().batch(model["batch"], drop_remainder=True).prefetch(2)
encoder = encoders.BertEncoderConfig(
    vocab_size=model["vocabulary"],
    hidden_size=model["hidden"],
    num_layers=model["layers"],
    num_attention_heads=model["heads"],
    intermediate_size=4 * model["hidden"],
    dropout_rate=model["dropout"],
    attention_dropout_rate=model["dropout"],
    max_position_embeddings=512,
    type_vocab_size=2,
)
task = masked_lm.MaskedLMTask(
    masked_lm.MaskedLMConfig(
        model=bert.PretrainerConfig(
            encoder=encoders.EncoderConfig(type="bert", bert=encoder),
            mlm_activation="gelu",
        ),
        train_data=pretrain_dataloader.BertPretrainDataConfig(use_next_sentence_label=False),
    )
)
network = task.build_model()
optimizer = tf_keras.optimizers.AdamW(**OPTIMIZER)
optimizer.exclude_from_weight_decay(var_names=["layer_norm", "bias"])
trainer = base_trainer.Trainer(
    config_definitions.ExperimentConfig(task=task.task_config),
    task,
    network,
    optimizer,
    evaluate=False,
    train_dataset=examples,
)


def train(steps: int) -> float:
    logs = trainer.train(tf.constant(steps))
    return float(logs["training_loss"])


serve(train, network.count_params)
