#!/usr/bin/env bash
# Sets everything up and runs two rounds of co-evolution with the embedded model on a CPU; ends with a report to open.
# Options are passed on, e.g. bash examples/demo.sh --set rounds=1
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/.ci/environment.sh"
cd "$root"
dynamicrubric coevolve --config examples/cpu.yaml "$@"
