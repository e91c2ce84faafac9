#!/bin/bash
# The trainer's records on one GPU: Llama 1B and 7B, 4,096 tokens, local batch 1 and 2, eager and compiled, 60 iterations
# each, and transformers' own model beside them. Needs torch, transformers and knee's base packages.
#
#   bash tools/measure_trainer.sh OUT
set -u
out=${1:?give a folder}
export PYTHONPATH=${PYTHONPATH:-src}
for batch in 2 1; do
    for how in compiled eager; do
        flag=$([ $how = compiled ] && echo --compile)
        python3 -m knee train llama2-7b --device cuda --local-batch $batch --state-dtype bf16 $flag \
            --out "$out/llama2-7b-batch$batch-$how" 2>&1 | grep -E "tokens/s per GPU|error|hint"
    done
done
python3 benchmarks/transformers_llama.py --steps 25 --warmup 5 --out "$out/transformers.json" 2>&1 | grep transformers
for batch in 2 1; do
    for how in compiled eager; do
        flag=$([ $how = compiled ] && echo --compile)
        python3 -m knee train llama-1b --device cuda --local-batch $batch $flag \
            --out "$out/llama-1b-batch$batch-$how" 2>&1 | grep -E "tokens/s per GPU|error|hint"
    done
done
