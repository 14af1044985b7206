#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: is every kernel right, and how fast is it. One table, within four minutes.
#
#     kernels/check_gpu.sh [BINARY [OPTION VALUE]...]
#
# BINARY is the example check_gpu of driftless-device, built elsewhere for x86-64 and a C library no newer than this
# machine's (build_check_gpu.sh makes it); without it, it is built here, which takes Rust. Options are those of the example: --elements,
# --sync-elements, --rounds.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
binary="${1:-}"
if [ -z "$binary" ]; then
    (cd "$root" && cargo build --release -p driftless-device --features cuda --example check_gpu)
    binary="${CARGO_TARGET_DIR:-$root/target}/release/examples/check_gpu"
fi
exec timeout 240 "$binary" --golden "$root/tests/golden/adamw" "${@:2}"
