#!/bin/bash
# The trainer's records on one GPU, 4,096 tokens, 60 iterations each, beside torchtitan's and transformers' in the same call.
#
#   bash tools/measure_trainer.sh OUT PART...
#
#   7b         Llama-2-7B, local batch 2, bf16 states, bf16 and fp8, beside torchtitan with and without torchao's float8
#   8b         Llama-3-8B cut to 16 layers, local batch 2, fp32 states, likewise
#   fsdp       the 7B runs under FSDP2 on a mesh of one
#   fsdp32     the 1B and 8B runs, which have fp32 states, likewise
#   rowwise    the 7B fp8 run with scales of rows
#   1b         Llama 1B, local batch 2, fp32 states, bf16 and fp8
#   loss       500 steps of the 1B model on text, the first 100 warm-up (DATA is a folder of `knee data prepare`), bf16 and fp8
#   eager      the 7B and 1B runs without torch.compile, and transformers' model
#
# Needs torch and knee's base packages; PEERS is a folder of tools/carry_torchtitan.sh. A part takes one to four minutes
# on an H200.
set -u
out=${1:?give a folder}
shift
export PYTHONPATH=${PYTHONPATH:-src}
peers=${PEERS:-out/peers}

measure() { # NAME MODEL, then options of knee train
    local name=$1 model=$2
    shift 2
    python3 -m knee train "$model" --device cuda --cluster "${CLUSTER:-dgx-h200}" --local-batch 2 --steps "${STEPS:-60}" "$@" --out "$out/$name" 2>&1 |
        grep -E "tokens/s per GPU|error|hint" | sed "s/^/$name: /"
}

torchtitan() { # NAME MODEL, then options of benchmarks/torchtitan_llama.py
    local name=$1
    shift
    PYTHONPATH=$peers python3 benchmarks/torchtitan_llama.py "$@" --steps "${STEPS:-60}" --warmup 10 --out "$out/$name.json" 2>&1 |
        grep -E "tokens/s|Error" | tail -2 | sed "s/^/$name: /"
}

for part in "$@"; do
    case $part in
    7b)
        measure 7b-fp8 llama2-7b --state-dtype bf16 --compile --precision fp8
        torchtitan torchtitan-7b-fp8 llama2-7b --float8
        measure 7b-bf16 llama2-7b --state-dtype bf16 --compile
        torchtitan torchtitan-7b-bf16 llama2-7b
        ;;
    8b)
        measure 8b-16-layers-fp8 llama3-8b --set model.layers=16 --compile --precision fp8
        torchtitan torchtitan-8b-16-layers-fp8 llama3-8b --layers 16 --float8
        measure 8b-16-layers-bf16 llama3-8b --set model.layers=16 --compile
        torchtitan torchtitan-8b-16-layers-bf16 llama3-8b --layers 16
        torchtitan torchtitan-8b-16-layers-bf16-fsdp llama3-8b --layers 16 --sharding fsdp
        ;;
    fsdp)
        measure 7b-bf16-fsdp llama2-7b --state-dtype bf16 --compile --sharding fsdp
        measure 7b-fp8-fsdp llama2-7b --state-dtype bf16 --compile --sharding fsdp --precision fp8
        ;;
    fsdp32)
        for precision in bf16 fp8; do
            measure 1b-$precision-fsdp llama-1b --compile --sharding fsdp --precision $precision
            measure 8b-16-layers-$precision-fsdp llama3-8b --set model.layers=16 --compile --sharding fsdp --precision $precision
        done
        ;;
    rowwise)
        measure 7b-fp8-rowwise llama2-7b --state-dtype bf16 --compile --precision fp8 --fp8-recipe rowwise
        ;;
    1b)
        measure 1b-bf16 llama-1b --compile
        measure 1b-fp8 llama-1b --compile --precision fp8
        ;;
    loss)
        for precision in ${PRECISIONS:-bf16 fp8}; do
            measure loss-1b-$precision llama-1b --compile --precision $precision --data "${DATA:?give a folder}" --lr-warmup 100 --trace-steps 0 --steps 500
        done
        ;;
    eager)
        measure 7b-bf16-eager llama2-7b --state-dtype bf16
        measure 1b-bf16-eager llama-1b
        python3 benchmarks/transformers_llama.py --steps 60 --warmup 10 --out "$out/transformers.json" 2>&1 | grep transformers
        ;;
    *) echo "no part is called $part" >&2 && exit 2 ;;
    esac
done
