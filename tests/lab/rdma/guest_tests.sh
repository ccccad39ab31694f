#!/usr/bin/env bash
# In the guest: runs the verbs tests of a build folder, one after the other, and says which failed.
set -u
mode=$1 build=$2 failed=0

# check NAME COMMAND...
check() {
  local name=$1 start=$SECONDS code=0
  shift
  "$@" > /tmp/lab.out 2>&1 < /dev/null || code=$?
  if [ "$code" -eq 0 ]; then
    echo "passed  $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s, exit $code): $*"
    tail -n 40 /tmp/lab.out
    failed=1
  fi
}

# job NAME RANKS COMMAND...: ranks that reach each other by verbs.
job() {
  local name=$1 ranks=$2
  shift 2
  check "$name" env MEP_TRANSPORTS="${transports:-verbs}" timeout 250 \
    "$build/bin/mep_run" -n "$ranks" "$@"
}

if [ "$mode" = all ]; then
  check "conformance" timeout 900 "$build/tests/verbs_conformance_test"
else
  check "conformance, a slice" timeout 150 "$build/tests/verbs_conformance_test" slice
fi
perf=$build/bin/mep_perf
job "allreduce, 2 ranks" 2 "$perf" allreduce -b 8 -e 65536 -f 16 --check
if [ "$mode" = all ]; then
  for operation in barrier broadcast allgather allreduce reduce gather scatter reduce_scatter alltoall; do
    job "$operation, 4 ranks" 4 "$perf" "$operation" -b 8 -e 1048576 -f 64 --check
  done
  moe=(moe --tokens 16 --hidden 1024 --topk 4 --experts 16 --check)
  job "dispatch and combine, 4 ranks" 4 "$perf" "${moe[@]}"
  hosts=(bash "$(dirname "$0")/two_hosts.sh")
  for operation in barrier broadcast allgather allreduce alltoall; do
    transports=shm,verbs job "$operation, 2 hosts of 2 ranks" 4 "${hosts[@]}" \
      "$perf" "$operation" -b 8 -e 65536 -f 64 --check
  done
  transports=shm,verbs job "dispatch and combine, 2 hosts of 2 ranks" 4 "${hosts[@]}" "$perf" "${moe[@]}"
  transports=shm,verbs job "allreduce, 2 hosts of 4 ranks" 8 "${hosts[@]}" \
    "$perf" allreduce -b 8 -e 4096 -f 512 --check
fi
check "errors" timeout 250 "$build/tests/verbs_errors_test"
exit "$failed"
