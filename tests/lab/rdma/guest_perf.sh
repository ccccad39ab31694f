#!/usr/bin/env bash
# In the guest: guest_perf.sh BUILD_FOLDER [RUNS]: put + signal beside perftest's ib_write_lat and
# ib_write_bw, in turn, best of RUNS; of latencies the fastest round counts, because with as many pollers
# as CPUs the others measure the scheduler. Prints the two tables of docs/verbs.md.
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

# table MODE PROGRAM COLUMN ORDER BYTES ROUNDS: sets ours and theirs to the best of all runs.
measure() {
  local mode=$1 program=$2 column=$3 order=$4 bytes=$5 rounds=$6 all_ours=() all_theirs=()
  for _ in $(seq "$runs"); do
    all_ours+=("$(timeout 60 "$build/tests/verbs_perf" "$mode" "$bytes" "$rounds" | cut -d ' ' -f 1)")
    perftest "$program" "$column" "$bytes" "$rounds"
    all_theirs+=("$answer")
  done
  ours=$(printf '%s\n' "${all_ours[@]}" | sort "$order" | head -n 1)
  theirs=$(printf '%s\n' "${all_theirs[@]}" | sort "$order" | head -n 1)
}

echo "| bytes | put + signal, us | ib_write_lat, us | ratio |"
echo "|---|---|---|---|"
for size in 8:300 64:300 1024:300 4096:300 65536:60; do
  measure lat ib_write_lat 3 -g "${size%:*}" "${size#*:}"
  awk -v n="${size%:*}" -v a="$ours" -v b="$theirs" \
    'BEGIN { printf "| %d | %.1f | %.1f | %.2f |\n", n, a, b, (b > 0 ? a / b : 0) }'
done
echo "| bytes | put + signal, MB/s | ib_write_bw, MB/s | their rate / ours |"
echo "|---|---|---|---|"
for size in 4096:1000 65536:200 1048576:30; do
  measure bw ib_write_bw 4 -gr "${size%:*}" "${size#*:}"
  awk -v n="${size%:*}" -v a="$ours" -v b="$theirs" \
    'BEGIN { b *= 1.048576; printf "| %d | %.0f | %.0f | %.2f |\n", n, a, b, (a > 0 ? b / a : 0) }'
done
