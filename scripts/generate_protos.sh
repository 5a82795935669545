#!/usr/bin/env bash
# Regenerates inferway/api/v1 from protos/. The output is committed; tests/unit/mesh/test_protos.py compares.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.}
python=${PYTHON:-.venv/bin/python}
"$python" -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    protos/inferway/api/v1/*.proto
