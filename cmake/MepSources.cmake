# How sources become targets.
#   mep_internal  object library of all of src/ (hidden symbols included); tests link it
#   mep           libmep.so, the same objects behind the version script
#   mep_mpi       libmep_mpi.so, only the MPI bootstrap
# A new .cpp in a folder under src/, or a new folder, is found without editing any list.

# Adds the sources of one folder and of its subfolders to mep_internal. A subfolder with its own
# CMakeLists.txt speaks for itself (it calls target_sources(mep_internal ...) or this function).
function(mep_add_folder folder)
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  if(sources)
    target_sources(mep_internal PRIVATE ${sources})
  endif()
  file(GLOB entries LIST_DIRECTORIES true CONFIGURE_DEPENDS "${folder}/*")
  foreach(entry IN LISTS entries)
    if(NOT IS_DIRECTORY "${entry}")
      continue()
    endif()
    get_filename_component(name "${entry}" NAME)
    if((name STREQUAL "cuda" AND NOT MEP_HAVE_CUDA) OR (name STREQUAL "verbs" AND NOT MEP_HAVE_VERBS))
      continue()
    endif()
    if(EXISTS "${entry}/CMakeLists.txt")
      add_subdirectory("${entry}")
    else()
      mep_add_folder("${entry}")
    endif()
  endforeach()
endfunction()

# Flags for single files of mep_internal, from any folder: mep_source_options(FILE OPTION...).
function(mep_source_options file)
  # The AVX-512 headers of GCC 12 warn about a variable that they leave undefined on purpose.
  if(ARGN MATCHES "-mavx512" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
     CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND ARGN -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  set_source_files_properties("${CMAKE_CURRENT_SOURCE_DIR}/${file}"
    TARGET_DIRECTORY mep_internal PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()

# All programs and what they need, without tests.
add_custom_target(mep_programs)

# mep_add_tool(NAME SOURCES... LIBRARIES...): a program that is built into bin/ and installed.
function(mep_add_tool name)
  cmake_parse_arguments(tool "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${tool_SOURCES})
  target_link_libraries(${name} PRIVATE mep_flags ${tool_LIBRARIES})
  add_dependencies(mep_programs ${name})
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
endfunction()

# mep_test_properties(NAME [TIMEOUT SECONDS] [LABELS...] [PROCESSORS N] [ENVIRONMENT...]): what every
# CTest entry gets, however it was added. Soak runs get sixty times the time. Under a sanitizer
# everything is slower, so the limit is four times as long.
function(mep_test_properties name)
  cmake_parse_arguments(test "" "TIMEOUT;PROCESSORS" "LABELS;ENVIRONMENT" ${ARGN})
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
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${test_TIMEOUT} LABELS "${test_LABELS}" ENVIRONMENT "${test_ENVIRONMENT}")
  if(test_PROCESSORS)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${test_PROCESSORS})
  endif()
endfunction()

# What the presets asan and tsan run: label `threads`, asan the fuzz targets too.
add_custom_target(mep_sanitizer_tests)

# mep_add_test(NAME SOURCES... [LIBRARIES...] [LABELS...] [TIMEOUT SECONDS] [PROCESSORS N] [ARGS...]
# [ENVIRONMENT...]): a CMocka program over mep_internal and its CTest entry. Sources include
# "support/cmocka_cpp.hpp". Label `threads`: the test also runs under TSan and ASan.
function(mep_add_test name)
  cmake_parse_arguments(test "" "TIMEOUT;PROCESSORS" "SOURCES;LIBRARIES;LABELS;ARGS;ENVIRONMENT" ${ARGN})
  if(NOT MEP_HAVE_CMOCKA)
    return()
  endif()
  add_executable(${name} ${test_SOURCES})
  target_link_libraries(${name} PRIVATE mep_flags mep_internal ${test_LIBRARIES} PkgConfig::CMOCKA)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  if("threads" IN_LIST test_LABELS)
    add_dependencies(mep_sanitizer_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name} ${test_ARGS})
  mep_test_properties(${name} TIMEOUT "${test_TIMEOUT}" PROCESSORS "${test_PROCESSORS}"
    LABELS ${test_LABELS} ENVIRONMENT ${test_ENVIRONMENT})
endfunction()
