# Queues that kernels post to, and the software NIC alone.
add_library(gpu_queue_nic OBJECT
  "${mep_root}/src/transport/gpu_queue/request_check.cpp" "${mep_root}/src/transport/gpu_queue/served_queue.cpp"
  "${mep_root}/src/transport/gpu_queue/soft_nic.cpp" "${mep_root}/src/transport/doorbell.cpp"
  "${mep_root}/src/base/clock.cpp" "${mep_root}/src/base/device_filter.cpp" "${mep_root}/src/base/env.cpp"
  "${mep_root}/src/base/fork_hold.cpp" "${mep_root}/src/base/library_thread.cpp" "${mep_root}/src/base/log.cpp"
  "${mep_root}/src/base/rank_path.cpp"
  "${mep_root}/src/base/status.cpp" "${mep_root}/src/transport/cuda/device_memory.cpp")
target_include_directories(gpu_queue_nic PRIVATE "${mep_root}/src" "${mep_root}/include" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
set_target_properties(gpu_queue_nic PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
mep_add_gpu_test(gpu_queue_test SOURCES queue_test.cu $<TARGET_OBJECTS:gpu_queue_nic> TIMEOUT 240)
mep_add_gpu_test(gpu_queue_bench SOURCES queue_bench.cu $<TARGET_OBJECTS:gpu_queue_nic> ARGS 2000 TIMEOUT 240)
set_target_properties(gpu_queue_test gpu_queue_bench PROPERTIES LINKER_LANGUAGE CUDA)
