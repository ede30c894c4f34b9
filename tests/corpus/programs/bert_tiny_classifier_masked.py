import tensorflow as tf
from transformers import BertConfig, TFBertModel

config = BertConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)
encoder = TFBertModel(config)
encoder.build()
head = tf.Variable(tf.random.normal([8, 5]))


def token_loss(logits, labels):
    flat = tf.reshape(labels, [-1])
    active = tf.where(flat != -100)
    active = tf.squeeze(active, axis=1)
    logits = tf.gather(tf.reshape(logits, [-1, 5]), active)
    flat = tf.gather(flat, active)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(flat, logits))


@tf.function
def train_step(ids, labels):
    with tf.GradientTape() as tape:
        states = encoder(ids, training=True).last_hidden_state
        loss = token_loss(tf.einsum("blh,hc->blc", states, head), labels)
    head.assign_sub(0.1 * tape.gradient(loss, head))
    return loss


def train():
    for _ in range(2):
        ids = tf.random.uniform([4, 12], 0, 40, tf.int32)
        labels = tf.where(tf.random.uniform([4, 12]) < 0.3, -100, ids % 5)
        train_step(ids, labels)
