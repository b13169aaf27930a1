#!/bin/bash
# One part of the language model's training, on all GPUs of a machine that is available for a fixed time:
#
#     training/part.sh CORPUS KOKORO INITIAL FOLDER SEED SPEECH_MINUTES TRAINING_MINUTES [options of language_model]
#
# Each GPU speaks its share of the corpus for SPEECH_MINUTES and encodes it with the AudioVAE of the checkpoint INITIAL,
# from which the language model then continues. FOLDER gets data, latents and lm/averaged.pt, which `export` reads.
set -euo pipefail
corpus=$(realpath "$1") kokoro=$(realpath "$2") initial=$(realpath "$3") folder=$4 seed=$5 speech=$6 minutes=$7
shift 7
export PYTHONPATH=$(dirname "$(realpath "$0")")${PYTHONPATH:+:$PYTHONPATH}
export PYTORCH_ALLOC_CONF=expandable_segments:True OMP_NUM_THREADS=1
gpus=$(nvidia-smi --list-gpus | wc -l)
memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)
# A process takes up to 11 GB, and more than nine do not speak faster.
processes=$((memory / 12500 < 9 ? memory / 12500 : 9))
mkdir -p "$folder/latents" && cd "$folder"

for ((gpu = 0; gpu < gpus; gpu++)); do
    mkdir -p "data$gpu"
    gzip -dc "$corpus" | awk "NR % $gpus == $gpu" | gzip -n > "corpus$gpu.txt.gz"
    {
        python3 -m voxcpm_training.data "corpus$gpu.txt.gz" --kokoro "$kokoro" -o "data$gpu" --devices "cuda:$gpu" \
            --processes "$processes" --minutes "$speech" --seed "$seed$gpu" > "data$gpu.log" 2>&1 || true
        touch "data$gpu/done"
    } &
    python3 -m voxcpm_training.latents "data$gpu" "$initial" -o "latents$gpu" --device "cuda:$gpu" --watch 3 \
        > "latents$gpu.log" 2>&1 &
done
wait
for ((gpu = 0; gpu < gpus; gpu++)); do
    for shard in "latents$gpu"/shard-*.npz; do mv "$shard" "latents/shard-$gpu${shard##*shard-0}"; done
done
python3 -m torch.distributed.run --nproc-per-node "$gpus" -m voxcpm_training.language_model latents -o lm \
    --initial "$initial" --steps 1000000 --minutes "$minutes" --seed "$seed" "$@" > lm.log 2>&1
