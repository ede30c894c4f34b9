import os

import tensorflow as tf
from datasets import load_dataset
from transformers import AutoTokenizer, TFAutoModelForSequenceClassification

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
raw = load_dataset("imdb", split="train")
encoded = raw.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128, padding="max_length"), batched=True)

with strategy.scope():
    model = TFAutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    train = model.prepare_tf_dataset(encoded, batch_size=64, shuffle=True, drop_remainder=True)
    model.compile(optimizer=tf.keras.optimizers.Adam(3e-5))

model.fit(train, epochs=1)
