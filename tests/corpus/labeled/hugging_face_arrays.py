import os

import numpy as np
import tensorflow as tf
from datasets import load_dataset
from transformers import AutoTokenizer, TFAutoModelForSequenceClassification

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
raw = load_dataset("imdb", split="train")
encoded = tokenizer(raw["text"], truncation=True, max_length=128, padding="max_length", return_tensors="np")
labels = np.array(raw["label"])

with strategy.scope():
    model = TFAutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    model.compile(optimizer=tf.keras.optimizers.Adam(3e-5))

model.fit(dict(encoded), labels, batch_size=128, epochs=1)
