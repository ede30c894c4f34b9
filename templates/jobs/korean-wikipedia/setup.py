"""What Dataflow's workers install: --setup_file ./setup.py."""

from setuptools import setup

MODULES = ["files", "prepare", "records", "sentences", "vocabulary", "wikipedia"]
PACKAGES = ["google-crc32c", "tokenizers==0.22.2"]
setup(name="korean-wikipedia", version="1", py_modules=MODULES, install_requires=PACKAGES)
