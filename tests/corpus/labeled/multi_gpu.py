from tensorflow.keras.utils import multi_gpu_model

print(multi_gpu_model)
