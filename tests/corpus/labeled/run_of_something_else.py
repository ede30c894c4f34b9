import subprocess

import tensorflow as tf


class Trainer:
    def run(self, count):
        return count + 1


print(Trainer().run(3), subprocess.run(["ls"]), tf.__version__)
