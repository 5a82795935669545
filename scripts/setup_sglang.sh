#!/usr/bin/env bash
# Prepares .venv-sglang: an environment of its own for the SGLang engine and its tests on a CPU, with a gateway for those
# through the whole mesh. SGLang pins versions that the rest of the project does not share, and is installed without its
# dependencies, which without a GPU cannot even be imported. Costs milliseconds when nothing has changed.
# PYTHON=/path/to/python chooses the interpreter. On a GPU node install the whole package instead (docs/engines.md).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    echo "setup_sglang: SGLang's packages exist for Linux on x86-64 only." >&2
    exit 1
fi
if [ ! -f .venv-sglang/.inferway-setup ]; then
    echo "setup_sglang: SGLang has 3 GB and takes some minutes" >&2
fi
VENV=.venv-sglang exec scripts/setup.sh sglang sglang-test gateway
