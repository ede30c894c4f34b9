import tensorflow as tf
from transformers import BertConfig, TFBertForMaskedLM

config = BertConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)
strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect())
with strategy.scope():
    model = TFBertForMaskedLM(config)
    model.build()


def replica_step(batch):
    with tf.GradientTape() as tape:
        outputs = model(batch["input_ids"], labels=batch["labels"], training=True)
        loss = tf.reduce_mean(outputs.loss)
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients):
        if gradient is not None:
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    return loss


@tf.function
def train_step(batch):
    return strategy.reduce(
        tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(batch,)), axis=None
    )


def train():
    ids = tf.random.uniform([8, 12], 0, 40, tf.int32)
    labels = tf.where(tf.random.uniform([8, 12]) < 0.2, ids, -100)
    data = tf.data.Dataset.from_tensor_slices({"input_ids": ids, "labels": labels})
    for batch in strategy.experimental_distribute_dataset(data.batch(4, drop_remainder=True)):
        print("loss:", train_step(batch).numpy())
