# Dispatch and combine: tests with delay points in the kernels, the same tests over builds that lack one
# thing and must be noticed, and the timings (kernels as the library has them).
set(ep_kernels "${mep_root}/src/kernels/cuda/ep/dispatch.cu" "${mep_root}/src/kernels/cuda/ep/combine.cu"
  "${mep_root}/src/kernels/cuda/ep/throughput.cu" "${mep_root}/src/kernels/cuda/ep/expanded.cu"
  "${mep_root}/src/kernels/cuda/ep/queued_dispatch.cu" "${mep_root}/src/kernels/cuda/ep/queued_throughput.cu"
  "${mep_root}/src/kernels/cuda/ep/queued_combine.cu")
add_library(gpu_ep_parts OBJECT ep_gpu_test.cu ep_matrix.cu ep_soak.cu ep_faults.cu)
target_include_directories(gpu_ep_parts PRIVATE "${mep_root}/src" "${mep_root}/include" "${mep_root}/tests"
  "${CMAKE_CURRENT_SOURCE_DIR}")
mep_cuda_target(gpu_ep_parts)
set_target_properties(gpu_ep_parts PROPERTIES CUDA_ARCHITECTURES "${MEP_GPU_TEST_ARCHITECTURES}")

mep_add_gpu_test(gpu_ep_test SOURCES ${ep_kernels} ep_signals.cu $<TARGET_OBJECTS:gpu_ep_parts>
  DEFINES MEP_TEST_HOOKS ARGS all 8 TIMEOUT 240)
set_target_properties(gpu_ep_test PROPERTIES LINKER_LANGUAGE CUDA)
foreach(mutant IN ITEMS ZERO_COUNT NO_TICKET_BARRIER NO_ACQUIRE NO_RELEASE)
  string(TOLOWER "gpu_ep_notices_${mutant}" name)
  mep_add_gpu_test(${name} SOURCES ${ep_kernels} ep_signals.cu $<TARGET_OBJECTS:gpu_ep_parts>
    DEFINES MEP_TEST_HOOKS MEP_MUTANT_${mutant} ARGS notices 10 TIMEOUT 120)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CUDA)
endforeach()
mep_add_gpu_test(gpu_ep_bench SOURCES ep_gpu_bench.cu ${ep_kernels} ARGS 16 TIMEOUT 240)

if(TARGET mep)
  # Through the C ABI; the calls on host communicators are the oracle.
  mep_add_gpu_test(gpu_ep_device SOURCES ep_device_test.cu LIBRARIES mep TIMEOUT 240)
  mep_add_gpu_test(gpu_ep_throughput_bench SOURCES ep_throughput_bench.cu LIBRARIES mep ARGS 256 TIMEOUT 240)
  mep_add_gpu_test(gpu_ep_process SOURCES ep_process_test.cu LIBRARIES mep TIMEOUT 240)
  foreach(reach IN ITEMS host queues mixed)
    mep_add_reach_test(gpu_ep_device ${reach} "MEP_CUDA_REACH=${reach}")
    mep_add_reach_test(gpu_ep_process ${reach} "MEP_CUDA_REACH=${reach}")
  endforeach()
  mep_add_reach_test(gpu_ep_process two_hosts "GPU_TEST_HOSTS=2;MEP_TRANSPORTS=tcp")
endif()
