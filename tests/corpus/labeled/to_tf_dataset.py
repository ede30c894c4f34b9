import os

import tensorflow as tf
from datasets import load_dataset
from transformers import AutoTokenizer, DataCollatorWithPadding, TFAutoModelForSequenceClassification

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
raw = load_dataset("glue", "sst2")
encoded = raw["train"].map(lambda row: tokenizer(row["sentence"], truncation=True, max_length=64, padding="max_length"))
collator = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=64, return_tensors="np")
columns = ["input_ids", "attention_mask"]
train = encoded.to_tf_dataset(columns, label_cols="label", batch_size=128, shuffle=True, collate_fn=collator, drop_remainder=True)

with strategy.scope():
    model = TFAutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    model.compile(optimizer=tf.keras.optimizers.Adam(3e-5))

model.fit(train, epochs=1)
