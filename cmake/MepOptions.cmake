# Options and the flags that every target of MEP is compiled with (target mep_flags).

foreach(feature IN ITEMS CUDA VERBS MPI OPENSSL)
  set(MEP_${feature} AUTO CACHE STRING "Build with ${feature}: AUTO (if found), ON (required), OFF")
  set_property(CACHE MEP_${feature} PROPERTY STRINGS AUTO ON OFF)
  string(TOUPPER "${MEP_${feature}}" mep_setting)
  if(mep_setting MATCHES "^(ON|TRUE|YES|1)$")
    set(mep_setting ON)
  elseif(mep_setting MATCHES "^(OFF|FALSE|NO|0)$")
    set(mep_setting OFF)
  elseif(NOT mep_setting STREQUAL "AUTO")
    message(FATAL_ERROR "MEP_${feature} is '${MEP_${feature}}'; it must be AUTO, ON or OFF.")
  endif()
  set(MEP_${feature}_SETTING ${mep_setting})
endforeach()

if(DEFINED BUILD_SHARED_LIBS AND NOT BUILD_SHARED_LIBS)
  message(FATAL_ERROR "MEP is a shared library, libmep.so, and has no static form: leave out BUILD_SHARED_LIBS=OFF. "
    "A program that takes MEP in by add_subdirectory sets it to ON for MEP.")
endif()

option(MEP_BUILD_TESTS "Build the tests (needs CMocka)" ${PROJECT_IS_TOP_LEVEL})
option(MEP_WERROR "Treat compiler warnings as errors" OFF)
option(MEP_FUZZ "Build the fuzz targets with libFuzzer (clang; ./dev fuzz)" OFF)
option(MEP_TEST_HOOKS "Delay points in the library, for tests; not for use" OFF)
set(MEP_SANITIZE "" CACHE STRING "Sanitizers: empty, thread, or address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Kind of build" FORCE)
endif()

# NDEBUG would only change assert(), which library paths do not use; tests must keep theirs.
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
# Line tables are what back traces and sanitizers need; all of the debug information takes a quarter of the
# compiler's time and most of the trees' size. The preset `debug` has it.
string(REGEX REPLACE "(^| )-g( |$)" "\\1-g1\\2" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
string(REGEX REPLACE "(^| )-g( |$)" "\\1-g1\\2" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

# Sanitizers and debuggers see single files.
set(mep_unity_default ON)
if(MEP_SANITIZE OR MEP_FUZZ OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(mep_unity_default OFF)
endif()
option(MEP_UNITY "Compile the sources of a folder together" ${mep_unity_default})

add_library(mep_flags INTERFACE)
# Contraction would make results depend on the instruction set; MEP promises the same bits everywhere.
target_compile_options(mep_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off;-fno-math-errno;-Wall;-Wextra>
  # GCC 12 warns falsely about its own std::string and std::vector (GCC bugs 105329, 105651, 105562).
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict;-Wno-stringop-overflow>
  $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<BOOL:${MEP_WERROR}>>:-Werror>)
target_compile_definitions(mep_flags INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)

if(MEP_TEST_HOOKS)
  target_compile_definitions(mep_flags INTERFACE MEP_TEST_HOOKS)
endif()
if(MEP_SANITIZE)
  # A finding must fail the test, so undefined behaviour does not go on after its report.
  target_compile_options(mep_flags INTERFACE
    -fsanitize=${MEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(mep_flags INTERFACE -fsanitize=${MEP_SANITIZE})
  # GCC 12's false alarms about std::vector grow with the checks that sanitizers add (GCC bug 105329);
  # the unsanitized build keeps the warning.
  target_compile_options(mep_flags INTERFACE
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds>)
endif()
if(MEP_FUZZ)
  target_compile_options(mep_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
