BUCKET = "gs://my-bucket"
TRAIN = BUCKET + "/train.tfrecord"
