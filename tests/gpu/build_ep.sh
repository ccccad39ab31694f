#!/bin/sh
# Builds the EP tests with nvcc alone: build_ep.sh OUTPUT_FOLDER [VARIANT...]
# Variants: test (delay points in the kernels), mutant_NAME (one thing left out: these must fail), bench
# (as the library is compiled), trace (the same, and says where the time went). Default: test and bench.
# MEP_GPU_ARCH names the architecture (sm_90).
set -eu
out=$1
shift
[ $# -gt 0 ] || set -- test bench
root=$(cd "$(dirname "$0")/../.." && pwd)
arch=${MEP_GPU_ARCH:-sm_90}
flags="-std=c++20 -O3 -lineinfo -arch=$arch --fmad=false -Werror all-warnings -I$root/src -I$root/include
  -I$root/tests -I$root/tests/gpu -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off"

compile() { # FOLDER SOURCE FLAGS
  mkdir -p "$1"
  # shellcheck disable=SC2086
  nvcc $flags $3 -c "$2" -o "$1/$(basename "$2" .cu).o"
}

kernels="$root/src/kernels/cuda/ep/dispatch.cu $root/src/kernels/cuda/ep/combine.cu
  $root/src/kernels/cuda/ep/throughput.cu $root/src/kernels/cuda/ep/expanded.cu
  $root/src/kernels/cuda/ep/queued_dispatch.cu $root/src/kernels/cuda/ep/queued_throughput.cu $root/src/kernels/cuda/ep/queued_combine.cu"
jobs=""
for variant in "$@"; do
  case $variant in
    mutant_*) defines="-DMEP_TEST_HOOKS -DMEP_MUTANT_$(echo "${variant#mutant_}" | tr a-z A-Z)" ;;
    bench) defines="" ;;
    trace) defines="-DMEP_EP_TRACE" ;;
    *) defines="-DMEP_TEST_HOOKS" ;;
  esac
  sources=$kernels
  [ "$variant" = bench ] || [ "$variant" = trace ] || sources="$kernels $root/tests/gpu/ep_signals.cu"
  for source in $sources; do
    compile "$out/$variant" "$source" "$defines" &
    jobs="$jobs $!"
  done
done
tests="matrix soak faults gpu_test"
for test in $tests; do
  compile "$out/tests" "$root/tests/gpu/ep_$test.cu" "" &
  jobs="$jobs $!"
done
for variant in "$@"; do
  [ "$variant" = bench ] || [ "$variant" = trace ] || continue
  compile "$out/tests" "$root/tests/gpu/ep_gpu_bench.cu" "" &
  jobs="$jobs $!"
done
for job in $jobs; do wait "$job"; done
for variant in "$@"; do
  objects="$out/$variant/ep_dispatch.o $out/$variant/ep_combine.o $out/$variant/ep_throughput.o
    $out/$variant/ep_expanded.o $out/$variant/ep_queued_dispatch.o $out/$variant/ep_queued_throughput.o $out/$variant/ep_queued_combine.o"
  if [ "$variant" = bench ] || [ "$variant" = trace ]; then
    nvcc -arch="$arch" $objects "$out/tests/ep_gpu_bench.o" -o "$out/ep_gpu_$variant"
  else
    objects="$objects $out/$variant/ep_signals.o"
    for test in $tests; do objects="$objects $out/tests/ep_$test.o"; done
    # shellcheck disable=SC2086
    nvcc -arch="$arch" $objects -o "$out/ep_gpu_$variant" -lpthread
  fi
done
