#!/usr/bin/env bash
# Co-evolution of Qwen3-8B through TRL on 8 GPUs with DeepSpeed ZeRO-3 and vLLM; options and their sources: trl_coevolve.yaml.
# Needs: pip install -c constraints.txt ".[trl]" deepspeed vllm tensorboard, and data/anchors.jsonl and data/prompts.jsonl.
# Stop it at any time; the same command goes on. Options are passed on, e.g. bash examples/trl_coevolve.sh --set rounds=5
# The paper's ablations, each with an output_dir of its own:
#   --set generator.anchor_weight=0            without anchor ranking
#   --set generator.use_discriminability=false without discriminability
#   --set sample_from=initial                  generator trained on stale responses
#   --set generator_rounds=1                   policy under a stale generator
#   --set judge.rubric_source=prompt           static rubric, written from the prompt alone
set -euo pipefail
cd "$(dirname "$0")/.."
exec dynamicrubric coevolve --config examples/trl_coevolve.yaml "$@"
