#!/usr/bin/env bash
# In the guest: guest_tests.sh slice|all BUILD_FOLDER [WORD]: runs the verbs tests of a build folder, or
# those whose name has WORD, one after the other, and says which failed. slice is what CI has time for.
set -u
mode=$1 build=$2 word=${3:-} failed=0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The guest's packets wait for CPUs that are emulated and shared: 2.1 s instead of 0.27 s until one is
# repeated, so that only links that are down count as such. The error paths are tried with the default.
export MEP_IB_TIMEOUT=${MEP_IB_TIMEOUT:-19}

# check LIMIT NAME COMMAND...
check() {
  local limit=$1 name=$2 start=$SECONDS code=0
  shift 2
  case "$name" in *"$word"*) ;; *) return ;; esac
  timeout "$limit" "$@" > /tmp/lab.out 2>&1 < /dev/null || code=$?
  if [ "$code" -eq 0 ]; then
    echo "passed  $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s, exit $code): $*"
    tail -n 100 /tmp/lab.out
    failed=1
  fi
}

# perf NAME RANKS ARGUMENT...: mep_perf over verbs alone; perf_hosts: on two hosts with shm within them.
perf() {
  local name=$1 ranks=$2
  shift 2
  check 250 "$name, $ranks ranks" env MEP_TRANSPORTS=verbs "$build/bin/mep_run" -n "$ranks" \
    "$build/bin/mep_perf" "$@" --check --no-machine
}
perf_hosts() {
  local name=$1
  shift
  check 250 "$name, 2 hosts of 4 ranks" env MEP_TRANSPORTS=shm,verbs "$build/bin/mep_run" -n 8 \
    "$here/two_hosts.sh" "$build/bin/mep_perf" "$@" --check --no-machine
}

# unit PROGRAM ARGUMENT...: a test of the library with verbs for transport.
unit() {
  check 400 "$*, by verbs" env MEP_TRANSPORTS=verbs "$build/tests/$1" "${@:2}"
}
# The same on 2 hosts of 4 ranks with shm within them. Their ranks are forked, so all use both devices.
unit_hosts() {
  check 400 "$*, 2 hosts of 4 ranks" env MEP_TRANSPORTS=shm,verbs "$build/tests/$1" "${@:2}" \
    --hosts 00001111
}

# gpus PROGRAM: ranks with a GPU that the host plays, on 2 hosts; kernels post to queues, the software NIC uses verbs.
gpus() {
  [ -x "$build/tests/$1" ] || return 0
  check 250 "$1, 2 hosts" env GPU_TEST_HOSTS=2 MEP_TRANSPORTS=shm,verbs "$build/tests/$1"
}

# Jobs under faults report case by case.
faults() {
  python3 "$here/guest_faults.py" "$build" "$@" < /dev/null || failed=1
}

moe=(moe --tokens 16 --hidden 1024 --topk 4 --experts 16 -i 5)
if [ "$mode" = slice ]; then
  check 150 "conformance, a slice" "$build/tests/verbs_conformance_test" slice
  perf allreduce 2 allreduce -b 8 -e 65536 -f 16 -i 20
  perf_hosts allreduce allreduce -b 8 -e 65536 -f 64 -i 10
  perf_hosts "dispatch and combine" "${moe[@]}"
  faults --slice -k "$word"
  check 250 "errors" env -u MEP_IB_TIMEOUT "$build/tests/verbs_errors_test"
  exit "$failed"
fi

check 900 "conformance" "$build/tests/verbs_conformance_test"
# Every collective that there is.
collectives=$(sed -n 's/^MEP_OPERATION(\([a-z_]*\),.*/\1/p' "$here/../../../src/protocol/operations.def")
for operation in $collectives; do
  perf "$operation" 4 "$operation" -b 8 -e 1M -f 64 -i 10
  perf_hosts "$operation" "$operation" -b 8 -e 256K -f 32 -i 10
done
for wire in bf16 fp8; do
  perf "dispatch and combine, $wire" 4 "${moe[@]}" --wire "$wire"
  perf_hosts "dispatch and combine, $wire" "${moe[@]}" --wire "$wire"
done
# All types, operators and sizes next to limits; random problems of experts; a rank that dies in them.
gpus on_host_ep_process
unit coll_matrix_processes_test --ranks 4
unit_hosts coll_matrix_processes_test --ranks 8
unit coll_random_threads_test --less 10
unit coll_requests_threads_test --less 10
unit coll_wrap_threads_test --less 10
unit coll_faults_threads_test --less 10
unit coll_lifecycle_processes_test --less 20
unit_hosts coll_lifecycle_processes_test --less 20
unit ep_moe_processes_test --less 2
unit_hosts ep_moe_processes_test --less 2 --ranks 8
unit ep_calls_test
unit ep_failure_processes_test --less 8
unit_hosts ep_failure_processes_test --less 8
faults -k "$word"
check 250 "errors" env -u MEP_IB_TIMEOUT "$build/tests/verbs_errors_test"
exit "$failed"
