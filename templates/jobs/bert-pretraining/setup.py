"""The package for Beam's workers on Dataflow; not used for anything else."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent

setup(
    name="bert-pretraining-records",
    version="1.0",
    packages=["corpus"],
    py_modules=[path.stem for path in HERE.glob("*.py") if path.name != "setup.py"],
    install_requires=["numpy", "tokenizers==0.22.2"],
)
