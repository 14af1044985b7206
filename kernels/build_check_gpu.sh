#!/usr/bin/env bash
# Builds the example check_gpu for machines with an older C library than this one's, to be carried to a machine with a GPU.
#
#     kernels/build_check_gpu.sh OUT
#
# It needs Rust and Python. The linker is zig, which knows the symbols of every glibc; it comes from PyPI, pinned, into a
# virtual environment beside the build products. The result is read: it fails if anything newer than $GLIBC is asked for.
set -euo pipefail
out="${1:?where to put the binary}"
root="$(cd "$(dirname "$0")/.." && pwd)"
GLIBC=2.17
ARCH=x86_64-unknown-linux-gnu

target="${CARGO_TARGET_DIR:-$root/target}"
venv="$target/zigbuild"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check cargo-zigbuild==0.23.4 ziglang==0.15.2
export PATH="$venv/bin:$PATH"
# `cargo zigbuild` finds zig in this environment's Python.
(cd "$root" && CARGO_TARGET_DIR="$target" cargo zigbuild --quiet --release --target "$ARCH.$GLIBC" \
    -p driftless-device --features cuda --example check_gpu)
built="$target/$ARCH/release/examples/check_gpu"

python3 "$root/kernels/glibc_of.py" "$built" "$GLIBC"
install -m 755 "$built" "$out"
