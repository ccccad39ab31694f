# How tests reach CTest: mep_test, or mep_add_test for a CMocka program. Each test has one label that says
# which command runs it, and the commands above it do not:
#   quick  `./dev test`: a second or two on two idle cores; one slice of each family
#   gate   `./dev test --full`: whatever else has one outcome, in any order of events
#   soak   `./dev soak`: what explores, and what repeats other tests in another environment
# Labels for sanitizers: `threads` (ranks are threads; TSan and ASan), `addresses` (ranks are processes, as
# joiners are; ASan), `fuzz` (ASan). `./dev soak` runs all of these; the gate runs under TSan what has `tsan`
# too, and under ASan what has `asan` or `fuzz`. A test with `waits` waits for limits of time, and needs no core
# meanwhile: the gate runs it beside the others. Further labels: `gpu`, and the name of the folder.
set(MEP_TEST_TIERS quick gate soak)

# The quick tests' target: the programs that their command lines name, and all that is installed.
add_custom_target(mep_quick_tests)
add_dependencies(mep_quick_tests mep_programs)

# mep_test(NAME COMMAND... LABELS... [TIMEOUT SECONDS] [PROCESSORS N] [ENVIRONMENT...] [SKIP CODE]
# [LOCK RESOURCE] [SERIAL]): one CTest entry. Under a sanitizer everything is slower,
# so the limit is four times as long.
function(mep_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "SERIAL" "TIMEOUT;PROCESSORS;SKIP;LOCK" "COMMAND;LABELS;ENVIRONMENT")
  if(test_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "test ${name}: what is ${test_UNPARSED_ARGUMENTS}?")
  endif()
  list(JOIN MEP_TEST_TIERS "|" tiers)
  set(tier ${test_LABELS})
  list(FILTER tier INCLUDE REGEX "^(${tiers})$")
  list(LENGTH tier count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "test ${name}: its labels (${test_LABELS}) must have exactly one of ${tiers}; "
      "cmake/MepTests.cmake says which")
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 120)
  endif()
  if(MEP_SANITIZE)
    math(EXPR test_TIMEOUT "${test_TIMEOUT} * 4")
  endif()
  add_test(NAME ${name} COMMAND ${test_COMMAND})
  if(tier STREQUAL "quick")
    string(REGEX MATCHALL "TARGET_[A-Z_]+:[A-Za-z0-9_]+" used "${test_COMMAND};${test_ENVIRONMENT}")
    list(TRANSFORM used REPLACE ".*:" "")
    list(GET test_COMMAND 0 program)
    foreach(target IN LISTS used program)
      if(TARGET "${target}")
        add_dependencies(mep_quick_tests "${target}")
      endif()
    endforeach()
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${test_TIMEOUT} LABELS "${test_LABELS}" ENVIRONMENT "${test_ENVIRONMENT}")
  if(test_PROCESSORS AND NOT "waits" IN_LIST test_LABELS)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${test_PROCESSORS})
  endif()
  if(DEFINED test_SKIP)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE ${test_SKIP})
  endif()
  if(test_LOCK)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK ${test_LOCK})
  endif()
  if(test_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# The tests that `./dev soak` runs in the trees asan and tsan, and the part of them that the gate runs.
add_custom_target(mep_sanitizer_tests)
add_custom_target(mep_sanitizer_gate)

# mep_sanitized(TARGET LABEL...): the tree's sanitizer has this program, by the labels of its test.
function(mep_sanitized target)
  if("threads" IN_LIST ARGN OR "addresses" IN_LIST ARGN OR "fuzz" IN_LIST ARGN)
    add_dependencies(mep_sanitizer_tests ${target})
  endif()
  if("fuzz" IN_LIST ARGN OR (MEP_SANITIZE STREQUAL "thread" AND "tsan" IN_LIST ARGN) OR
     (NOT MEP_SANITIZE STREQUAL "thread" AND "asan" IN_LIST ARGN))
    add_dependencies(mep_sanitizer_gate ${target})
  endif()
endfunction()

# mep_test_program(NAME SOURCES... [LIBRARIES...]): a program over mep_internal in tests/ of the build folder.
function(mep_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${program_SOURCES})
  mep_precompile(${name})
  target_link_libraries(${name} PRIVATE mep_flags mep_internal ${program_LIBRARIES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
endfunction()

# mep_add_test(NAME SOURCES... [LIBRARIES...] [ARGS...] and what mep_test takes): a CMocka program over
# mep_internal and its CTest entry. Sources include "support/cmocka_cpp.hpp".
function(mep_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "SERIAL" "TIMEOUT;PROCESSORS;SKIP;LOCK"
    "SOURCES;LIBRARIES;ARGS;LABELS;ENVIRONMENT")
  if(NOT MEP_HAVE_CMOCKA)
    return()
  endif()
  mep_test_program(${name} SOURCES ${test_SOURCES} LIBRARIES ${test_LIBRARIES} PkgConfig::CMOCKA)
  mep_sanitized(${name} ${test_LABELS})
  set(options "")
  if(test_SERIAL)
    set(options SERIAL)
  endif()
  foreach(word IN ITEMS TIMEOUT PROCESSORS SKIP LOCK LABELS ENVIRONMENT)
    if(DEFINED test_${word})
      list(APPEND options ${word} ${test_${word}})
    endif()
  endforeach()
  mep_test(${name} COMMAND ${name} ${test_ARGS} ${options})
endfunction()
