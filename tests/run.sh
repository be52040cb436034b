#!/usr/bin/env bash
# Sets everything up and runs all tests. Options are passed on, e.g. bash tests/run.sh -m "not slow"
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/.ci/environment.sh"
cd "$root"
# Several test processes share the cores, so each takes one thread.
OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python -m pytest "$@"
