#!/usr/bin/env bash
# Runs a command beside a real S3 server on loopback (moto), so that its tests find one: `.ci/s3.sh cargo test`.
# The command sees DRIFTLESS_S3_URL and what object_store reads from the environment (AWS_*); the server ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."

moto="${CARGO_TARGET_DIR:-target}/moto"
requirement="moto[s3,server]==5.2.5"
bucket=driftless

if [[ "$(cat "$moto/requirement" 2>/dev/null)" != "$requirement" ]]; then
    echo "s3: installs $requirement into $moto"
    python3 -m venv --clear "$moto"
    "$moto/bin/pip" install --quiet --disable-pip-version-check "$requirement"
    echo "$requirement" >"$moto/requirement"
fi

state="$(mktemp -d)"
# Port 0 lets the system choose a free one; the server names it in its log.
"$moto/bin/moto_server" --host 127.0.0.1 --port 0 >"$state/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$state"' EXIT

endpoint=""
for _ in $(seq 300); do
    endpoint="$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$state/log" | head -n 1 || true)"
    [[ -n "$endpoint" ]] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
if [[ -z "$endpoint" ]]; then
    echo "s3: the server did not start:" >&2
    cat "$state/log" >&2
    exit 1
fi
"$moto/bin/python" -c "
import urllib.request
urllib.request.urlopen(urllib.request.Request('$endpoint/$bucket', method='PUT'), timeout=30)
"

export DRIFTLESS_S3_URL="s3://$bucket" DRIFTLESS_REQUIRE_S3=1
export AWS_ENDPOINT_URL="$endpoint" AWS_ALLOW_HTTP=true AWS_REGION=us-east-1
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testtest
"$@"
