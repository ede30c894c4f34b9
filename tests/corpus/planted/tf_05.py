"""Anchor-box detector head trained with a custom loop."""
import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128
ANCHORS = 64
STEPS = 30

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def input_fn():
    rng = np.random.default_rng(3)
    feats = rng.normal(size=(1024, ANCHORS, 32)).astype(np.float32)
    boxes = rng.uniform(size=(1024, ANCHORS, 4)).astype(np.float32)
    labels = (rng.uniform(size=(1024, ANCHORS)) < 0.2).astype(np.int32)
    ds = tf.data.Dataset.from_tensor_slices((feats, boxes, labels))
    return ds.shuffle(1024).repeat().batch(GLOBAL_BATCH, drop_remainder=True).prefetch(2)


with strategy.scope():
    inp = tf.keras.Input((ANCHORS, 32))
    hidden = tf.keras.layers.Dense(128, activation="relu")(inp)
    model = tf.keras.Model(inp, [tf.keras.layers.Dense(4)(hidden), tf.keras.layers.Dense(1)(hidden)])
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)


def numpy_iou(pred, target):
    lo = np.minimum(pred, target).sum(-1)
    hi = np.maximum(pred, target).sum(-1) + 1e-6
    return (lo / hi).astype(np.float32)


def box_loss(pred, target, labels):
    positive = labels > 0
    pred_pos = tf.boolean_mask(pred, positive)
    target_pos = tf.boolean_mask(target, positive)
    return tf.reduce_sum(tf.abs(pred_pos - target_pos)) / (GLOBAL_BATCH * ANCHORS)


def objectness_loss(pred_boxes, target, score, labels):
    iou = tf.py_function(numpy_iou, [pred_boxes, target], tf.float32)
    iou = tf.stop_gradient(tf.ensure_shape(iou, labels.shape))
    goal = iou * tf.cast(labels, tf.float32)
    bce = tf.nn.sigmoid_cross_entropy_with_logits(labels=goal, logits=score[..., 0])
    return tf.reduce_sum(bce) / (GLOBAL_BATCH * ANCHORS)


def replica_step(feats, boxes, labels):
    jitter = np.random.normal(scale=0.05, size=feats.shape).astype(np.float32)
    with tf.GradientTape() as tape:
        pred, score = model(feats + jitter, training=True)
        loss = box_loss(pred, boxes, labels) + objectness_loss(pred, boxes, score, labels)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    accuracy = tf.reduce_mean(tf.cast((score[..., 0] > 0) == (labels > 0), tf.float32))
    return loss, accuracy


@tf.function
def train_step(batch):
    loss, accuracy = strategy.run(replica_step, args=batch)
    total_loss = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
    mean_acc = strategy.reduce(tf.distribute.ReduceOp.SUM, accuracy, axis=None)
    return total_loss, mean_acc


def main():
    it = iter(strategy.experimental_distribute_dataset(input_fn()))
    for step in range(STEPS):
        loss, acc = train_step(next(it))
        if step % 10 == 0:
            print(f"step {step} loss {float(loss):.4f} objectness accuracy {float(acc):.3f}")


if __name__ == "__main__":
    main()
