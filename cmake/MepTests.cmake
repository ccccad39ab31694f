# How tests reach CTest: mep_test, or mep_add_test for a CMocka program. Each test has one label that says
# its size, by the time it takes on two idle cores:
#   small    a second or two
#   medium   up to about twenty seconds
#   large    more
# `./dev test` runs small and medium ones, `./dev test --full` all. A suite that is large gives a slice of
# itself as a test of its own, so that the short run covers it too. Other labels: `threads` for tests that
# run their ranks as threads (and so also under TSan and ASan), `addresses` for those that run under ASan though
# their ranks are processes, as newcomers are, `fuzz`, `gpu`, and the name of the folder.
set(MEP_TEST_SIZES small medium large)

# mep_test(NAME COMMAND... LABELS... [TIMEOUT SECONDS] [PROCESSORS N] [ENVIRONMENT...] [SKIP CODE]
# [LOCK RESOURCE] [SERIAL]): one CTest entry. Soak runs get sixty times the time. Under a sanitizer
# everything is slower, so the limit is four times as long.
function(mep_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "SERIAL" "TIMEOUT;PROCESSORS;SKIP;LOCK" "COMMAND;LABELS;ENVIRONMENT")
  if(test_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "test ${name}: what is ${test_UNPARSED_ARGUMENTS}?")
  endif()
  set(sizes ${test_LABELS})
  list(FILTER sizes INCLUDE REGEX "^(small|medium|large)$")
  list(LENGTH sizes count)
  if(NOT count EQUAL 1)
    list(JOIN MEP_TEST_SIZES ", " expected)
    message(FATAL_ERROR "test ${name}: its labels (${test_LABELS}) must have exactly one of ${expected}; "
      "cmake/MepTests.cmake says which")
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 120)
  endif()
  if(MEP_SANITIZE)
    math(EXPR test_TIMEOUT "${test_TIMEOUT} * 4")
  endif()
  if(MEP_TEST_SOAK)
    math(EXPR test_TIMEOUT "${test_TIMEOUT} * 60")
    list(APPEND test_ENVIRONMENT MEP_TEST_SOAK=1)
  endif()
  add_test(NAME ${name} COMMAND ${test_COMMAND})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${test_TIMEOUT} LABELS "${test_LABELS}" ENVIRONMENT "${test_ENVIRONMENT}")
  if(test_PROCESSORS)
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

# What the presets asan and tsan run: label `threads`, asan the fuzz targets and `addresses` too.
add_custom_target(mep_sanitizer_tests)

# mep_test_program(NAME SOURCES... [LIBRARIES...]): a program over mep_internal in tests/ of the build folder.
function(mep_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${program_SOURCES})
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
  if("threads" IN_LIST test_LABELS OR "addresses" IN_LIST test_LABELS)
    add_dependencies(mep_sanitizer_tests ${name})
  endif()
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
