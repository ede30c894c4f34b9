"""TensorFlow 2 names that are missing from some versions; see `versioned_names`.

An entry covers all names below it: tensorflow.estimator also covers tensorflow.estimator.Estimator.

- since: the first version with it; omitted if 2.1 has it
- until: the first version without it; omitted if 2.18 has it; 2.0 for names of TensorFlow 1
- method: a method, of which a script contains only the last part, which may be a common word:
  strategy.run
- legacy: missing from Keras 3 only: with TF_USE_LEGACY_KERAS=1 in the environment, 2.16 and later
  still have it, from the package tf-keras
- raises: since `until` the name exists but raises when called
- instead: the replacement

Extracted from the wheels of each minor version from 2.1 to 2.18, with their Keras and estimator
packages, by tests/support/tensorflow_presence.py; tests verify this table against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NAMES"]

NAMES: Mapping[str, Mapping[str, Any]] = {
    # Distribution ---------------------------------------------------------------------------------
    "tensorflow.distribute.TPUStrategy": {
        "since": "2.3",
        "instead": "tf.distribute.experimental.TPUStrategy",
    },
    "tensorflow.distribute.Strategy.run": {
        "since": "2.2",
        "method": True,
        "instead": "strategy.experimental_run_v2",
    },
    "tensorflow.distribute.Strategy.experimental_run_v2": {
        "until": "2.4",
        "method": True,
        "instead": "strategy.run",
    },
    "tensorflow.distribute.Strategy.experimental_make_numpy_dataset": {
        "until": "2.4",
        "method": True,
        "instead": "tf.data.Dataset.from_tensor_slices",
    },
    "tensorflow.distribute.Strategy.distribute_datasets_from_function": {
        "since": "2.4",
        "method": True,
        "instead": "strategy.experimental_distribute_datasets_from_function",
    },
    "tensorflow.distribute.Strategy.experimental_distribute_values_from_function": {
        "since": "2.2",
        "method": True,
    },
    "tensorflow.distribute.Strategy.gather": {"since": "2.4", "method": True},
    "tensorflow.distribute.MultiWorkerMirroredStrategy": {
        "since": "2.4",
        "instead": "tf.distribute.experimental.MultiWorkerMirroredStrategy",
    },
    "tensorflow.distribute.ParameterServerStrategy": {
        "since": "2.8",
        "instead": "tf.distribute.experimental.ParameterServerStrategy",
    },
    "tensorflow.distribute.InputOptions": {"since": "2.3"},
    "tensorflow.distribute.DistributedValues": {"since": "2.2"},
    "tensorflow.distribute.experimental.CommunicationOptions": {"since": "2.4"},
    "tensorflow.distribute.experimental.CommunicationImplementation": {
        "since": "2.4",
        "instead": "tf.distribute.experimental.CollectiveCommunication",
    },
    "tensorflow.distribute.experimental.PreemptionCheckpointHandler": {
        "since": "2.10",
        "instead": "tf.train.CheckpointManager",
    },
    "tensorflow.distribute.cluster_resolver.TPUClusterResolver.connect": {
        "since": "2.3",
        "method": True,
        "instead": "tf.config.experimental_connect_to_cluster and "
        "tf.tpu.experimental.initialize_tpu_system",
    },
    "tensorflow.tpu.experimental.embedding.TPUEmbedding": {"since": "2.3"},
    "tensorflow.tpu.XLAOptions": {"since": "2.5"},
    "tensorflow.config.run_functions_eagerly": {
        "since": "2.3",
        "instead": "tf.config.experimental_run_functions_eagerly",
    },
    "tensorflow.config.experimental.get_memory_info": {"since": "2.5"},
    "tensorflow.config.experimental.enable_op_determinism": {"since": "2.8"},
    # Data -----------------------------------------------------------------------------------------
    "tensorflow.data.AUTOTUNE": {"since": "2.4", "instead": "tf.data.experimental.AUTOTUNE"},
    "tensorflow.data.Dataset.save": {
        "since": "2.10",
        "method": True,
        "instead": "tf.data.experimental.save",
    },
    "tensorflow.data.Dataset.load": {
        "since": "2.10",
        "method": True,
        "instead": "tf.data.experimental.load",
    },
    "tensorflow.data.Dataset.snapshot": {
        "since": "2.6",
        "method": True,
        "instead": "dataset.apply(tf.data.experimental.snapshot(...))",
    },
    "tensorflow.data.Dataset.bucket_by_sequence_length": {
        "since": "2.6",
        "method": True,
        "instead": "dataset.apply(tf.data.experimental.bucket_by_sequence_length(...))",
    },
    "tensorflow.data.Dataset.sample_from_datasets": {
        "since": "2.7",
        "method": True,
        "instead": "tf.data.experimental.sample_from_datasets",
    },
    "tensorflow.data.Dataset.choose_from_datasets": {
        "since": "2.7",
        "method": True,
        "instead": "tf.data.experimental.choose_from_datasets",
    },
    "tensorflow.data.Dataset.rejection_resample": {
        "since": "2.7",
        "method": True,
        "instead": "dataset.apply(tf.data.experimental.rejection_resample(...))",
    },
    "tensorflow.data.Dataset.ignore_errors": {
        "since": "2.11",
        "method": True,
        "instead": "dataset.apply(tf.data.experimental.ignore_errors())",
    },
    "tensorflow.data.Dataset.rebatch": {
        "since": "2.11",
        "method": True,
        "instead": "dataset.unbatch().batch(...)",
    },
    "tensorflow.data.Dataset.ragged_batch": {
        "since": "2.12",
        "method": True,
        "instead": "dataset.apply(tf.data.experimental.dense_to_ragged_batch(...))",
    },
    "tensorflow.data.Dataset.make_one_shot_iterator": {
        "until": "2.0",
        "method": True,
        "instead": "iter(dataset)",
    },
    "tensorflow.data.Dataset.make_initializable_iterator": {
        "until": "2.0",
        "method": True,
        "instead": "iter(dataset)",
    },
    "tensorflow.data.experimental.save": {"since": "2.3", "instead": "a TFRecord file"},
    "tensorflow.data.experimental.snapshot": {"since": "2.3", "instead": "dataset.cache()"},
    "tensorflow.data.experimental.service": {"since": "2.3"},
    "tensorflow.data.experimental.assert_cardinality": {"since": "2.2"},
    "tensorflow.data.experimental.StatsAggregator": {
        "until": "2.6",
        "instead": "tf.profiler.experimental",
    },
    "tensorflow.data.ThreadingOptions": {
        "since": "2.6",
        "instead": "tf.data.experimental.ThreadingOptions",
    },
    # Numbers, functions, checkpoints --------------------------------------------------------------
    "tensorflow.random.Generator": {"since": "2.2", "instead": "tf.random.experimental.Generator"},
    "tensorflow.random.get_global_generator": {
        "since": "2.2",
        "instead": "tf.random.experimental.get_global_generator",
    },
    "tensorflow.random.split": {
        "since": "2.12",
        "instead": "tf.random.experimental.stateless_split",
    },
    "tensorflow.random.fold_in": {
        "since": "2.12",
        "instead": "tf.random.experimental.stateless_fold_in",
    },
    "tensorflow.random.experimental.stateless_shuffle": {
        "since": "2.10",
        "instead": "tf.random.shuffle",
    },
    "tensorflow.experimental.numpy": {"since": "2.4"},
    "tensorflow.experimental.dtensor": {"since": "2.9"},
    "tensorflow.experimental.ExtensionType": {"since": "2.7"},
    "tensorflow.types.experimental.GenericFunction": {"since": "2.6"},
    "tensorflow.profiler.experimental": {"since": "2.2", "instead": "tf.summary.trace_on"},
    "tensorflow.train.CheckpointOptions": {"since": "2.3"},
    "tensorflow.nn.gelu": {"since": "2.4"},
    "tensorflow.nn.silu": {"since": "2.4", "instead": "tf.nn.swish"},
    "tensorflow.nn.experimental.stateless_dropout": {"since": "2.7", "instead": "tf.nn.dropout"},
    "tensorflow.image.stateless_random_crop": {"since": "2.4", "instead": "tf.image.random_crop"},
    "tensorflow.image.stateless_random_flip_left_right": {
        "since": "2.4",
        "instead": "tf.image.random_flip_left_right",
    },
    "tensorflow.math.approx_max_k": {"since": "2.10", "instead": "tf.math.top_k"},
    "tensorflow.io.gfile.join": {"since": "2.7", "instead": "os.path.join"},
    "tensorflow.mixed_precision.experimental": {
        "until": "2.9",
        "instead": "tf.keras.mixed_precision",
    },
    "tensorflow.train.experimental.LossScale": {
        "until": "2.9",
        "instead": "tf.keras.mixed_precision.LossScaleOptimizer",
    },
    "tensorflow.train.experimental.FixedLossScale": {
        "until": "2.9",
        "instead": "tf.keras.mixed_precision.LossScaleOptimizer",
    },
    "tensorflow.train.experimental.DynamicLossScale": {
        "until": "2.9",
        "instead": "tf.keras.mixed_precision.LossScaleOptimizer",
    },
    "tensorflow.train.experimental.enable_mixed_precision_graph_rewrite": {
        "until": "2.6",
        "instead": "tf.keras.mixed_precision.set_global_policy",
    },
    # Estimators -----------------------------------------------------------------------------------
    "tensorflow.estimator": {"until": "2.16", "instead": "a Keras model"},
    "tensorflow.compat.v1.estimator": {"until": "2.16", "instead": "a Keras model"},
    "tensorflow.compat.v1.estimator.tpu.TPUEstimator": {
        "until": "2.16",
        "instead": "a Keras model under tf.distribute.TPUStrategy",
    },
    "tensorflow.compat.v1.estimator.tpu.TPUConfig": {
        "until": "2.16",
        "instead": "a Keras model under tf.distribute.TPUStrategy",
    },
    "tensorflow.compat.v1.estimator.tpu.RunConfig": {
        "until": "2.16",
        "instead": "a Keras model under tf.distribute.TPUStrategy",
    },
    "tensorflow.compat.v1.estimator.tpu.TPUEstimatorSpec": {
        "until": "2.16",
        "instead": "a Keras model under tf.distribute.TPUStrategy",
    },
    "tensorflow.estimator.BoostedTreesClassifier": {"until": "2.9"},
    "tensorflow.keras.estimator.model_to_estimator": {
        "until": "2.16",
        "legacy": True,
        "instead": "the Keras model itself",
    },
    # Keras ----------------------------------------------------------------------------------------
    "tensorflow.keras.Model.fit_generator": {
        "until": "2.16",
        "method": True,
        "legacy": True,
        "instead": "model.fit",
    },
    "tensorflow.keras.Model.evaluate_generator": {
        "until": "2.16",
        "method": True,
        "legacy": True,
        "instead": "model.evaluate",
    },
    "tensorflow.keras.Model.predict_generator": {
        "until": "2.16",
        "method": True,
        "legacy": True,
        "instead": "model.predict",
    },
    "tensorflow.keras.Model.to_yaml": {
        "until": "2.16",
        "method": True,
        "legacy": True,
        "instead": "model.to_json",
    },
    "tensorflow.keras.Model.train_step": {
        "since": "2.2",
        "method": True,
        "instead": "a loop of your own",
    },
    "tensorflow.keras.Model.export": {
        "since": "2.12",
        "method": True,
        "instead": "tf.saved_model.save",
    },
    "tensorflow.keras.Model.reset_states": {"until": "2.16", "method": True, "legacy": True},
    "tensorflow.keras.Sequential.predict_classes": {
        "until": "2.6",
        "method": True,
        "instead": "model.predict and numpy.argmax",
    },
    "tensorflow.keras.Sequential.predict_proba": {
        "until": "2.6",
        "method": True,
        "instead": "model.predict",
    },
    "tensorflow.keras.metrics.Metric.reset_states": {
        "until": "2.16",
        "method": True,
        "legacy": True,
        "instead": "metric.reset_state",
    },
    "tensorflow.keras.metrics.Metric.reset_state": {
        "since": "2.5",
        "method": True,
        "instead": "metric.reset_states",
    },
    "tensorflow.keras.models.model_from_yaml": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.models.model_from_json",
    },
    "tensorflow.keras.utils.multi_gpu_model": {
        "until": "2.4",
        "instead": "tf.distribute.MirroredStrategy",
    },
    "tensorflow.keras.utils.set_random_seed": {"since": "2.7", "instead": "tf.random.set_seed"},
    "tensorflow.keras.utils.experimental.DatasetCreator": {
        "since": "2.5",
        "until": "2.16",
        "legacy": True,
        "instead": "the dataset itself",
    },
    "tensorflow.keras.utils.OrderedEnqueuer": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.data",
    },
    "tensorflow.keras.utils.GeneratorEnqueuer": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.data",
    },
    "tensorflow.keras.utils.image_dataset_from_directory": {
        "since": "2.6",
        "instead": "tf.keras.preprocessing.image_dataset_from_directory",
    },
    "tensorflow.keras.utils.text_dataset_from_directory": {
        "since": "2.6",
        "instead": "tf.keras.preprocessing.text_dataset_from_directory",
    },
    "tensorflow.keras.utils.timeseries_dataset_from_array": {
        "since": "2.6",
        "instead": "tf.keras.preprocessing.timeseries_dataset_from_array",
    },
    "tensorflow.keras.preprocessing.image_dataset_from_directory": {"since": "2.3"},
    "tensorflow.keras.preprocessing.text_dataset_from_directory": {"since": "2.3"},
    "tensorflow.keras.preprocessing.timeseries_dataset_from_array": {"since": "2.3"},
    "tensorflow.keras.utils.pad_sequences": {
        "since": "2.9",
        "instead": "tf.keras.preprocessing.sequence.pad_sequences",
    },
    "tensorflow.keras.utils.load_img": {
        "since": "2.6",
        "instead": "tf.keras.preprocessing.image.load_img",
    },
    "tensorflow.keras.utils.img_to_array": {
        "since": "2.6",
        "instead": "tf.keras.preprocessing.image.img_to_array",
    },
    "tensorflow.keras.utils.PyDataset": {"since": "2.16", "instead": "tf.keras.utils.Sequence"},
    "tensorflow.keras.utils.split_dataset": {
        "since": "2.10",
        "instead": "dataset.take and dataset.skip",
    },
    "tensorflow.keras.wrappers.scikit_learn": {"until": "2.13", "instead": "the package scikeras"},
    "tensorflow.keras.experimental.LinearModel": {"until": "2.16", "legacy": True},
    "tensorflow.keras.experimental.WideDeepModel": {"until": "2.16", "legacy": True},
    "tensorflow.keras.experimental.CosineDecay": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.optimizers.schedules.CosineDecay",
    },
    "tensorflow.keras.experimental.CosineDecayRestarts": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.optimizers.schedules.CosineDecayRestarts",
    },
    "tensorflow.keras.experimental.LinearCosineDecay": {
        "until": "2.5",
        "instead": "tf.keras.optimizers.schedules.CosineDecay",
    },
    "tensorflow.keras.experimental.NoisyLinearCosineDecay": {
        "until": "2.5",
        "instead": "tf.keras.optimizers.schedules.CosineDecay",
    },
    "tensorflow.keras.experimental.PeepholeLSTMCell": {
        "until": "2.9",
        "instead": "tf.keras.layers.LSTMCell",
    },
    "tensorflow.keras.experimental.SequenceFeatures": {"until": "2.16", "legacy": True},
    "tensorflow.keras.experimental.export_saved_model": {
        "until": "2.0",
        "instead": "tf.saved_model.save",
    },
    "tensorflow.keras.optimizers.schedules.CosineDecay": {
        "since": "2.5",
        "instead": "tf.keras.experimental.CosineDecay",
    },
    "tensorflow.keras.optimizers.schedules.CosineDecayRestarts": {
        "since": "2.5",
        "instead": "tf.keras.experimental.CosineDecayRestarts",
    },
    "tensorflow.keras.optimizers.experimental": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.optimizers",
    },
    "tensorflow.keras.optimizers.legacy.Adam": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "raises": True,
        "instead": "tf.keras.optimizers.Adam",
    },
    "tensorflow.keras.optimizers.legacy.SGD": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "raises": True,
        "instead": "tf.keras.optimizers.SGD",
    },
    "tensorflow.keras.optimizers.legacy.RMSprop": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "raises": True,
        "instead": "tf.keras.optimizers.RMSprop",
    },
    "tensorflow.keras.optimizers.legacy.Adagrad": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "raises": True,
        "instead": "tf.keras.optimizers.Adagrad",
    },
    "tensorflow.keras.optimizers.legacy.Ftrl": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "raises": True,
        "instead": "tf.keras.optimizers.Ftrl",
    },
    "tensorflow.keras.optimizers.legacy.Adadelta": {
        "since": "2.9",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.optimizers.Adadelta",
    },
    "tensorflow.keras.optimizers.AdamW": {"since": "2.12", "instead": "tf.keras.optimizers.Adam"},
    "tensorflow.keras.optimizers.Adafactor": {"since": "2.12"},
    "tensorflow.keras.optimizers.Lion": {"since": "2.13"},
    "tensorflow.keras.optimizers.LossScaleOptimizer": {
        "since": "2.16",
        "instead": "tf.keras.mixed_precision.LossScaleOptimizer",
    },
    "tensorflow.keras.mixed_precision.experimental": {
        "until": "2.9",
        "instead": "tf.keras.mixed_precision",
    },
    "tensorflow.keras.mixed_precision.set_global_policy": {
        "since": "2.4",
        "instead": "tf.keras.mixed_precision.experimental.set_policy",
    },
    "tensorflow.keras.mixed_precision.Policy": {
        "since": "2.4",
        "instead": "tf.keras.mixed_precision.experimental.Policy",
    },
    "tensorflow.keras.mixed_precision.LossScaleOptimizer": {
        "since": "2.4",
        "instead": "tf.keras.mixed_precision.experimental.LossScaleOptimizer",
    },
    "tensorflow.keras.callbacks.experimental.BackupAndRestore": {
        "since": "2.3",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.callbacks.BackupAndRestore",
    },
    "tensorflow.keras.callbacks.BackupAndRestore": {
        "since": "2.8",
        "instead": "tf.keras.callbacks.experimental.BackupAndRestore",
    },
    "tensorflow.keras.callbacks.SwapEMAWeights": {"since": "2.16"},
    "tensorflow.keras.layers.experimental.SyncBatchNormalization": {
        "since": "2.2",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.layers.BatchNormalization(synchronized=True)",
    },
    "tensorflow.keras.layers.experimental.EinsumDense": {
        "since": "2.3",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.layers.EinsumDense",
    },
    "tensorflow.keras.layers.experimental.RandomFourierFeatures": {
        "since": "2.3",
        "until": "2.16",
        "legacy": True,
    },
    "tensorflow.keras.layers.experimental.preprocessing": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.layers",
    },
    "tensorflow.keras.layers.experimental.preprocessing.Rescaling": {
        "since": "2.2",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.image.convert_image_dtype",
    },
    "tensorflow.keras.layers.experimental.preprocessing.RandomFlip": {
        "since": "2.2",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.image.random_flip_left_right",
    },
    "tensorflow.keras.layers.experimental.preprocessing.StringLookup": {
        "since": "2.3",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.lookup.StaticHashTable",
    },
    "tensorflow.keras.layers.experimental.preprocessing.CategoryEncoding": {
        "since": "2.3",
        "until": "2.16",
        "legacy": True,
        "instead": "tf.one_hot",
    },
    "tensorflow.keras.layers.Normalization": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.Normalization",
    },
    "tensorflow.keras.layers.TextVectorization": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.TextVectorization",
    },
    "tensorflow.keras.layers.Rescaling": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.Rescaling",
    },
    "tensorflow.keras.layers.Resizing": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.Resizing",
    },
    "tensorflow.keras.layers.RandomFlip": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.RandomFlip",
    },
    "tensorflow.keras.layers.RandomRotation": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.RandomRotation",
    },
    "tensorflow.keras.layers.RandomZoom": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.RandomZoom",
    },
    "tensorflow.keras.layers.RandomContrast": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.RandomContrast",
    },
    "tensorflow.keras.layers.RandomBrightness": {"since": "2.9"},
    "tensorflow.keras.layers.StringLookup": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.StringLookup",
    },
    "tensorflow.keras.layers.IntegerLookup": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.IntegerLookup",
    },
    "tensorflow.keras.layers.CategoryEncoding": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.CategoryEncoding",
    },
    "tensorflow.keras.layers.Discretization": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.Discretization",
    },
    "tensorflow.keras.layers.Hashing": {
        "since": "2.6",
        "instead": "tf.keras.layers.experimental.preprocessing.Hashing",
    },
    "tensorflow.keras.layers.EinsumDense": {
        "since": "2.10",
        "instead": "tf.keras.layers.experimental.EinsumDense",
    },
    "tensorflow.keras.layers.MultiHeadAttention": {"since": "2.4"},
    "tensorflow.keras.layers.GroupNormalization": {"since": "2.11"},
    "tensorflow.keras.layers.UnitNormalization": {"since": "2.9"},
    "tensorflow.keras.layers.SpectralNormalization": {"since": "2.13"},
    "tensorflow.keras.layers.Identity": {"since": "2.12", "instead": "tf.keras.layers.Lambda"},
    "tensorflow.keras.layers.TFSMLayer": {"since": "2.16", "instead": "tf.saved_model.load"},
    "tensorflow.keras.layers.DenseFeatures": {
        "until": "2.16",
        "legacy": True,
        "instead": "the preprocessing layers",
    },
    "tensorflow.keras.layers.LocallyConnected1D": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.layers.Conv1D",
    },
    "tensorflow.keras.layers.LocallyConnected2D": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.layers.Conv2D",
    },
    "tensorflow.keras.layers.AbstractRNNCell": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.layers.Layer",
    },
    "tensorflow.keras.layers.CuDNNLSTM": {"until": "2.0", "instead": "tf.keras.layers.LSTM"},
    "tensorflow.keras.layers.CuDNNGRU": {"until": "2.0", "instead": "tf.keras.layers.GRU"},
    "tensorflow.keras.losses.BinaryFocalCrossentropy": {"since": "2.8"},
    "tensorflow.keras.losses.CategoricalFocalCrossentropy": {"since": "2.13"},
    "tensorflow.keras.losses.Dice": {"since": "2.16"},
    "tensorflow.keras.metrics.F1Score": {"since": "2.13"},
    "tensorflow.keras.metrics.MeanTensor": {"until": "2.16", "legacy": True},
    "tensorflow.keras.metrics.MeanRelativeError": {"until": "2.16", "legacy": True},
    "tensorflow.keras.activations.gelu": {"since": "2.4", "instead": "tf.nn.gelu"},
    "tensorflow.keras.activations.mish": {"since": "2.13"},
    "tensorflow.keras.backend.function": {
        "until": "2.16",
        "legacy": True,
        "instead": "a tf.keras.Model",
    },
    "tensorflow.keras.backend.learning_phase": {
        "until": "2.16",
        "legacy": True,
        "instead": "the argument `training` of call",
    },
    "tensorflow.keras.backend.set_learning_phase": {
        "until": "2.16",
        "legacy": True,
        "instead": "the argument `training` of call",
    },
    "tensorflow.keras.backend.placeholder": {
        "until": "2.16",
        "legacy": True,
        "instead": "tf.keras.Input",
    },
    "tensorflow.keras.backend.get_session": {"until": "2.0", "instead": "eager execution"},
    "tensorflow.keras.backend.set_session": {"until": "2.0", "instead": "eager execution"},
    "tensorflow.keras.applications.EfficientNetB0": {"since": "2.3"},
    "tensorflow.keras.applications.EfficientNetV2B0": {"since": "2.8"},
    "tensorflow.keras.applications.ConvNeXtTiny": {"since": "2.10"},
    "tensorflow.keras.applications.MobileNetV3Small": {"since": "2.4"},
    "tensorflow.keras.applications.RegNetX002": {"since": "2.9", "until": "2.16", "legacy": True},
    "tensorflow.keras.applications.ResNetRS50": {"since": "2.9", "until": "2.16", "legacy": True},
    "tensorflow.keras.models.experimental.SharpnessAwareMinimization": {
        "since": "2.10",
        "until": "2.16",
        "legacy": True,
    },
    "tensorflow.keras.dtensor": {"since": "2.9", "until": "2.16", "legacy": True},
    "tensorflow.keras.ops": {"since": "2.16", "instead": "tf.math and tf.nn"},
    "tensorflow.keras.random": {"since": "2.16", "instead": "tf.random"},
    "tensorflow.keras.distribution": {"since": "2.16"},
    "tensorflow.keras.config": {"since": "2.16"},
    # TensorFlow 1 ---------------------------------------------------------------------------------
    "tensorflow.contrib": {"until": "2.0"},
    "tensorflow.Session": {"until": "2.0", "instead": "eager execution"},
    "tensorflow.InteractiveSession": {"until": "2.0", "instead": "eager execution"},
    "tensorflow.ConfigProto": {"until": "2.0", "instead": "tf.config"},
    "tensorflow.GPUOptions": {"until": "2.0", "instead": "tf.config"},
    "tensorflow.placeholder": {"until": "2.0", "instead": "an argument of a tf.function"},
    "tensorflow.get_variable": {"until": "2.0", "instead": "tf.Variable"},
    "tensorflow.variable_scope": {"until": "2.0", "instead": "tf.name_scope"},
    "tensorflow.global_variables_initializer": {"until": "2.0", "instead": "eager execution"},
    "tensorflow.get_default_graph": {"until": "2.0", "instead": "tf.function"},
    "tensorflow.reset_default_graph": {"until": "2.0", "instead": "tf.keras.backend.clear_session"},
    "tensorflow.set_random_seed": {"until": "2.0", "instead": "tf.random.set_seed"},
    "tensorflow.enable_eager_execution": {"until": "2.0", "instead": "nothing: it is on"},
    "tensorflow.to_float": {"until": "2.0", "instead": "tf.cast"},
    "tensorflow.to_int32": {"until": "2.0", "instead": "tf.cast"},
    "tensorflow.log": {"until": "2.0", "instead": "tf.math.log"},
    "tensorflow.div": {"until": "2.0", "instead": "tf.math.divide"},
    "tensorflow.layers": {"until": "2.0", "instead": "tf.keras.layers"},
    "tensorflow.flags": {"until": "2.0", "instead": "argparse"},
    "tensorflow.app": {"until": "2.0", "instead": "argparse"},
    "tensorflow.logging": {"until": "2.0", "instead": "logging"},
    "tensorflow.gfile": {"until": "2.0", "instead": "tf.io.gfile"},
    "tensorflow.python_io": {"until": "2.0", "instead": "tf.io"},
    "tensorflow.random_uniform": {"until": "2.0", "instead": "tf.random.uniform"},
    "tensorflow.random_normal": {"until": "2.0", "instead": "tf.random.normal"},
    "tensorflow.truncated_normal": {"until": "2.0", "instead": "tf.random.truncated_normal"},
    "tensorflow.truncated_normal_initializer": {
        "until": "2.0",
        "instead": "tf.keras.initializers.TruncatedNormal",
    },
    "tensorflow.sparse_to_dense": {"until": "2.0", "instead": "tf.sparse.to_dense"},
    "tensorflow.string_split": {"until": "2.0", "instead": "tf.strings.split"},
    "tensorflow.parse_single_example": {"until": "2.0", "instead": "tf.io.parse_single_example"},
    "tensorflow.parse_example": {"until": "2.0", "instead": "tf.io.parse_example"},
    "tensorflow.FixedLenFeature": {"until": "2.0", "instead": "tf.io.FixedLenFeature"},
    "tensorflow.VarLenFeature": {"until": "2.0", "instead": "tf.io.VarLenFeature"},
    "tensorflow.decode_raw": {"until": "2.0", "instead": "tf.io.decode_raw"},
    "tensorflow.read_file": {"until": "2.0", "instead": "tf.io.read_file"},
    "tensorflow.matrix_band_part": {"until": "2.0", "instead": "tf.linalg.band_part"},
    "tensorflow.depth_to_space": {"until": "2.0", "instead": "tf.nn.depth_to_space"},
    "tensorflow.assign": {"until": "2.0", "instead": "variable.assign"},
    "tensorflow.assign_add": {"until": "2.0", "instead": "variable.assign_add"},
    "tensorflow.image.resize_images": {"until": "2.0", "instead": "tf.image.resize"},
    "tensorflow.image.resize_bilinear": {"until": "2.0", "instead": "tf.image.resize"},
    "tensorflow.losses.sparse_softmax_cross_entropy": {
        "until": "2.0",
        "instead": "tf.keras.losses.SparseCategoricalCrossentropy",
    },
    "tensorflow.metrics.accuracy": {"until": "2.0", "instead": "tf.keras.metrics.Accuracy"},
    "tensorflow.nn.softmax_cross_entropy_with_logits_v2": {
        "until": "2.0",
        "instead": "tf.nn.softmax_cross_entropy_with_logits",
    },
    "tensorflow.nn.dynamic_rnn": {"until": "2.0", "instead": "tf.keras.layers.RNN"},
    "tensorflow.nn.rnn_cell": {"until": "2.0", "instead": "tf.keras.layers"},
    "tensorflow.train.AdamOptimizer": {"until": "2.0", "instead": "tf.keras.optimizers.Adam"},
    "tensorflow.train.GradientDescentOptimizer": {
        "until": "2.0",
        "instead": "tf.keras.optimizers.SGD",
    },
    "tensorflow.train.Saver": {"until": "2.0", "instead": "tf.train.Checkpoint"},
    "tensorflow.train.get_or_create_global_step": {"until": "2.0", "instead": "tf.Variable"},
    "tensorflow.train.exponential_decay": {
        "until": "2.0",
        "instead": "tf.keras.optimizers.schedules.ExponentialDecay",
    },
    "tensorflow.train.polynomial_decay": {
        "until": "2.0",
        "instead": "tf.keras.optimizers.schedules.PolynomialDecay",
    },
    "tensorflow.summary.FileWriter": {"until": "2.0", "instead": "tf.summary.create_file_writer"},
    "tensorflow.summary.merge_all": {"until": "2.0", "instead": "tf.summary.scalar"},
}
