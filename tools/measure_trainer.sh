#!/bin/bash
# The trainer's records on one GPU: Llama 1B and 7B, 4,096 tokens, local batch 1 and 2, eager and compiled, 60 iterations
# each, and transformers' own model beside the largest. Needs torch, transformers and knee's base packages.
#
#   bash tools/measure_trainer.sh OUT [beside | rest]
#
# "beside" is 7B with local batch 2 and transformers' model, about 6 minutes on an H200; "rest" the other six runs, about 6.
set -u
out=${1:?give a folder}
export PYTHONPATH=${PYTHONPATH:-src}

measure() { # MODEL BATCH, then options of knee train
    local model=$1 batch=$2 how flag
    shift 2
    for how in compiled eager; do
        flag=$([ $how = compiled ] && echo --compile)
        python3 -m knee train "$model" --device cuda --local-batch "$batch" $flag "$@" \
            --out "$out/$model-batch$batch-$how" 2>&1 | grep -E "tokens/s per GPU|error|hint"
    done
}

if [ "${2:-beside}" = beside ]; then
    measure llama2-7b 2 --state-dtype bf16
    python3 benchmarks/transformers_llama.py --steps 60 --warmup 10 --out "$out/transformers.json" 2>&1 | grep transformers
fi
if [ "${2:-rest}" = rest ]; then
    measure llama2-7b 1 --state-dtype bf16
    measure llama-1b 2
    measure llama-1b 1
fi
