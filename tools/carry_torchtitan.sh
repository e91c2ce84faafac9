#!/bin/bash
# Packages of torchtitan and torchao for a GPU machine without a network, into an ignored folder that travels there. With
# PYTHONPATH=out/peers benchmarks/torchtitan_llama.py runs on a machine that has torch 2.11, triton and tokenizers.
#
#   bash tools/carry_torchtitan.sh [FOLDER]
#
# The machine is x86_64 with Python 3.12. torch and the CUDA packages are not carried. torchao 0.17.0 is made for torch 2.11
# and later; its compiled extensions (int4, MXFP8) are removed, because float8 training is Python. The driver does without
# datasets (with pyarrow) and tensorboard.
set -eu
peers=${1:-out/peers}
python=${PYTHON:-python3}

rm -rf "$peers"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
    --target "$peers" --implementation cp --python-version 3.12 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 \
    torchtitan==0.2.2 torchao==0.17.0 torchdata==0.11.0 tyro==1.0.16 docstring-parser==0.18.0 typeguard==4.6.0 \
    typing-extensions==4.15.0 einops==0.8.2
find "$peers" -name "*.so" -delete
rm -rf "$peers"/bin "$peers"/test
du -sh "$peers"
