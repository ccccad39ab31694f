# The CUDA compiler: where it is looked for, and how kernels are compiled.

# Sets MEP_NVCC to a compiler, or leaves it empty: CUDACXX, the PATH, /usr/local/cuda, or what
# `./dev test` installs from PyPI into build/cuda-toolchain.
function(mep_find_nvcc)
  set(found "")
  if(DEFINED CMAKE_CUDA_COMPILER AND CMAKE_CUDA_COMPILER)
    set(found "${CMAKE_CUDA_COMPILER}")
  elseif(DEFINED ENV{CUDACXX})
    set(found "$ENV{CUDACXX}")
  else()
    find_program(MEP_NVCC_FOUND nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin
      "${CMAKE_CURRENT_LIST_DIR}/build/cuda-toolchain/nvidia/cu13/bin"
      "${PROJECT_SOURCE_DIR}/build/cuda-toolchain/nvidia/cu13/bin"
      "${PROJECT_SOURCE_DIR}/../../build/cuda-toolchain/nvidia/cu13/bin")
    if(MEP_NVCC_FOUND)
      set(found "${MEP_NVCC_FOUND}")
    endif()
    unset(MEP_NVCC_FOUND CACHE)
  endif()
  set(MEP_NVCC "${found}" PARENT_SCOPE)
endfunction()

# Sets MEP_CUDA_INCLUDE to the headers of the compiler MEP_NVCC: all that GPUs on the host (tests/cuda_on_host) need.
macro(mep_find_cuda_include)
  get_filename_component(mep_cuda_root "${MEP_NVCC}" REALPATH)
  get_filename_component(mep_cuda_root "${mep_cuda_root}" DIRECTORY)
  get_filename_component(mep_cuda_root "${mep_cuda_root}" DIRECTORY)
  find_path(MEP_CUDA_INCLUDE cuda_runtime.h NO_DEFAULT_PATH
    PATHS "${mep_cuda_root}/include" "${mep_cuda_root}/targets/x86_64-linux/include")
endmacro()

# Architectures of the kernels: machine code for these, and PTX of the last for what comes later. Empty: all
# that MEP supports, or, for a quick build, one.
set(MEP_CUDA_ARCHITECTURES "" CACHE STRING "GPU architectures, CMake's form; empty: what MEP supports")
option(MEP_CUDA_QUICK "Kernels for one architecture, without the programs of tests/gpu" OFF)
set(MEP_CUDA_QUICK_ARCHITECTURE 90 CACHE STRING "The architecture of MEP_CUDA_QUICK")

# Sets CMAKE_CUDA_ARCHITECTURES for the kernels.
macro(mep_choose_architectures)
  if(MEP_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "${MEP_CUDA_ARCHITECTURES}")
  elseif(MEP_CUDA_QUICK)
    set(CMAKE_CUDA_ARCHITECTURES "${MEP_CUDA_QUICK_ARCHITECTURE}")
  else()
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100")
  endif()
endmacro()

# enable_language(CUDA) and the static runtime library, which loads the driver itself when first used:
# libmep.so loads on machines without one. A macro: the language belongs to the caller's folder.
macro(mep_enable_cuda)
  mep_choose_architectures()
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${MEP_NVCC}")
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  enable_language(CUDA)
  # CMake 3.25 does not know that this compiler knows C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  mep_find_cuda_include()
  if(NOT TARGET CUDA::cudart_static)
    find_library(MEP_CUDART_STATIC cudart_static NO_DEFAULT_PATH
      PATHS "${mep_cuda_root}/lib64" "${mep_cuda_root}/lib" "${mep_cuda_root}/targets/x86_64-linux/lib"
      "${mep_cuda_root}/targets/sbsa-linux/lib")
    find_package(Threads REQUIRED)
    if(MEP_CUDART_STATIC AND MEP_CUDA_INCLUDE)
      add_library(CUDA::cudart_static STATIC IMPORTED GLOBAL)
      set_target_properties(CUDA::cudart_static PROPERTIES
        IMPORTED_LOCATION "${MEP_CUDART_STATIC}"
        INTERFACE_INCLUDE_DIRECTORIES "${MEP_CUDA_INCLUDE}")
      target_link_libraries(CUDA::cudart_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS} rt)
    endif()
  endif()
endmacro()

# Flags of a target with .cu files.
function(mep_cuda_target target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-lineinfo;-Xcompiler=-Wall,-Wextra,-Wno-restrict,-Wno-stringop-overflow,-ffp-contract=off>)
  if(MEP_WERROR)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>)
  endif()
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
endfunction()
