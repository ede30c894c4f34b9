"""Rules on the datasets that scripts for TensorFlow train on."""
