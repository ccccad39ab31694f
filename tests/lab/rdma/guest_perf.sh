#!/usr/bin/env bash
# In the guest: guest_perf.sh BUILD_FOLDER [RUNS]: put + signal, and a signal alone, beside perftest's
# ib_write_lat, ib_send_lat and ib_write_bw, in turn, best of RUNS; of latencies the fastest round counts,
# because with as many pollers as CPUs the others measure the scheduler. Prints the two tables of
# docs/measurements/soft-roce-guest.md.
set -u
build=$1 runs=${2:-3} port=20000

# perftest PROGRAM COLUMN BYTES ROUNDS: server and client on the two devices; prints that column.
perftest() {
  local program=$1 column=$2 bytes=$3 rounds=$4 server value
  port=$((port + 1))
  "$program" -d rxe1 -x 1 -p "$port" -s "$bytes" -n "$rounds" -F > /dev/null 2>&1 &
  server=$!
  for _ in $(seq 200); do
    grep -qi ":$(printf %04x "$port") .* 0A " /proc/net/tcp /proc/net/tcp6 && break
    sleep 0.05
  done
  value=$(timeout 60 "$program" -d rxe0 -x 1 -p "$port" -s "$bytes" -n "$rounds" -F 10.77.0.2 2>&1 |
    awk -v b="$bytes" -v c="$column" '$1 == b { print $c }')
  kill "$server" 2> /dev/null
  wait "$server" 2> /dev/null
  answer=${value:-0}
}

# best ORDER VALUE...: the first in that order.
best() {
  local order=$1
  shift
  printf '%s\n' "$@" | sort "$order" | head -n 1
}
ours() {
  timeout 60 "$build/tests/verbs_perf" "$@" | cut -d ' ' -f 1
}

echo "load $(cut -d ' ' -f 1-3 /proc/loadavg)"
echo "| bytes | put + signal, us | signal alone, us | ib_write_lat, us | ib_send_lat, us | ratio |"
echo "|---|---|---|---|---|---|"
for size in 8:300 64:300 1024:300 4096:300 65536:60; do
  bytes=${size%:*} rounds=${size#*:} both=() signals=() writes=() sends=()
  for _ in $(seq "$runs"); do
    both+=("$(ours lat "$bytes" "$rounds")")
    signals+=("$(ours lat 0 "$rounds")")
    perftest ib_write_lat 3 "$bytes" "$rounds"
    writes+=("$answer")
    perftest ib_send_lat 3 "$bytes" "$rounds"
    sends+=("$answer")
  done
  awk -v n="$bytes" -v a="$(best -g "${both[@]}")" -v s="$(best -g "${signals[@]}")" \
    -v b="$(best -g "${writes[@]}")" -v c="$(best -g "${sends[@]}")" \
    'BEGIN { printf "| %d | %.1f | %.1f | %.1f | %.1f | %.2f |\n", n, a, s, b, c, (b > 0 ? a / b : 0) }'
done
echo "| bytes | put + signal, MB/s | ib_write_bw, MB/s | their rate / ours |"
echo "|---|---|---|---|"
for size in 4096:1000 65536:200 1048576:30; do
  bytes=${size%:*} rounds=${size#*:} both=() writes=()
  for _ in $(seq "$runs"); do
    both+=("$(ours bw "$bytes" "$rounds")")
    perftest ib_write_bw 4 "$bytes" "$rounds"
    writes+=("$answer")
  done
  awk -v n="$bytes" -v a="$(best -gr "${both[@]}")" -v b="$(best -gr "${writes[@]}")" \
    'BEGIN { b *= 1.048576; printf "| %d | %.0f | %.0f | %.2f |\n", n, a, b, (a > 0 ? b / a : 0) }'
done
