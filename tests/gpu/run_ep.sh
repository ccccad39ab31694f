#!/bin/sh
# Everything about dispatch and combine that wants a GPU: run_ep.sh FOLDER [SECONDS [SEED]]. Builds into
# FOLDER, runs the tests, then builds that lack one thing, which must fail, then the timings; a table last.
set -eu
out=$1
seconds=${2:-20}
seed=${3:-1}
here=$(cd "$(dirname "$0")" && pwd)
nvidia-smi >/dev/null 2>&1 || { echo "SKIPPED: no GPU"; exit 77; }
mutants="zero_count no_ticket_barrier no_acquire no_release"
variants="test bench"
for mutant in $mutants; do variants="$variants mutant_$mutant"; done
# shellcheck disable=SC2086
"$here/build_ep.sh" "$out" $variants
table=""
status=0
note() { # NAME RESULT
  table="$table$(printf '%-45s %s' "$1" "$2")
"
  [ "$2" = ok ] || status=1
}
for part in matrix faults soak signals fences; do
  result=ok
  timeout 300 "$out/ep_gpu_test" "$part" "$seconds" "$seed" || result=FAILED
  note "ep $part" "$result"
done
for mutant in $mutants; do
  result="FAILED: the tests do not notice it"
  if timeout 120 "$out/ep_gpu_mutant_$mutant" notices 10 "$seed"; then result=ok; fi
  note "ep build with $mutant is noticed" "$result"
done
timeout 300 "$out/ep_gpu_bench" 16
timeout 120 python3 "$here/ep_bench_torch.py" || echo "PyTorch: SKIPPED"
printf '%s' "$table"
exit $status
