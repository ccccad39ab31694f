# How sources become targets.
#   mep_objects   object library of all of src/, compiled once; mep_chaos links it
#   mep_parts     an archive of these objects; tools that use some of them link it
#   mep           libmep.so, these objects behind the version script
#   mep_internal  the same with all symbols visible, a shared library; tests link it
#   mep_mpi       libmep_mpi.so, only the MPI bootstrap
# A new .cpp in a folder under src/, or a new folder, is found without editing any list.

# Headers of the C++ library that most files include, compiled once for the library and once for programs. Files
# include what they use all the same: clang-tidy reads them without.
set(MEP_STANDARD_HEADERS <algorithm> <array> <atomic> <cerrno> <chrono> <cstddef> <cstdint> <cstdio> <cstdlib>
  <cstring> <functional> <map> <memory> <mutex> <new> <optional> <set> <span> <string> <thread> <unordered_map>
  <utility> <vector>)

# mep_precompile(TARGET): the headers as programs have them, compiled for one that does nothing.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/mep_standard_headers.cpp" CONTENT "int main() { return 0; }\n")
add_executable(mep_standard_headers "${CMAKE_BINARY_DIR}/mep_standard_headers.cpp")
target_link_libraries(mep_standard_headers PRIVATE mep_flags)
target_precompile_headers(mep_standard_headers PRIVATE ${MEP_STANDARD_HEADERS})
set_target_properties(mep_standard_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/src")
# mep_name_precompiled(TARGET FOLDER): what stands for the precompiled headers in the keys of ccache
# (CCACHE_PCH_EXTSUM). GCC never writes the same bytes twice, so that by its bytes no object would answer for
# another tree's.
set(mep_include_all "")
foreach(header IN LISTS MEP_STANDARD_HEADERS)
  string(APPEND mep_include_all "#include ${header}\n")
endforeach()
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/mep_include_all.cpp" CONTENT "${mep_include_all}")
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -std=c++20 -E "${CMAKE_BINARY_DIR}/mep_include_all.cpp" -P
  OUTPUT_VARIABLE mep_all_included ERROR_QUIET)
string(SHA256 mep_headers_sum "${mep_all_included}")
unset(mep_all_included)
function(mep_name_precompiled target folder)
  file(CONFIGURE OUTPUT "${folder}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum" CONTENT
    "${target} ${mep_headers_sum} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${CMAKE_CXX_FLAGS} ${MEP_SANITIZE} ${MEP_TEST_HOOKS} ${MEP_WERROR}\n")
endfunction()
mep_name_precompiled(mep_standard_headers "${CMAKE_BINARY_DIR}")

function(mep_precompile target)
  target_precompile_headers(${target} REUSE_FROM mep_standard_headers)
  # GCC 12 does not know that a precompiled header is the system's, and warns falsely about its std::string.
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds>)
endfunction()

# mep_compile_alone(FILE...): sources that no unit takes in; those with flags of their own must be.
function(mep_compile_alone)
  foreach(file IN LISTS ARGN)
    get_filename_component(file "${file}" ABSOLUTE)
    set_property(GLOBAL APPEND PROPERTY MEP_COMPILED_ALONE "${file}")
  endforeach()
endfunction()

# mep_unite(RESULT NAME BASE SOURCES...): with MEP_UNITY, units of at most 16 of these sources each, and the sources that
# are compiled alone; else the sources. Their target has the folder BASE among its include directories: a unit names
# its sources from there, so that its bytes, and the objects that ccache keeps, are the same in every clone.
function(mep_unite result name base)
  set(sources ${ARGN})
  set(${result} ${sources} PARENT_SCOPE)
  get_property(alone GLOBAL PROPERTY MEP_COMPILED_ALONE)
  set(others ${sources})
  list(REMOVE_ITEM others ${alone})
  list(LENGTH others count)
  if(NOT MEP_UNITY OR count LESS 2)
    return()
  endif()
  list(REMOVE_ITEM sources ${others})
  math(EXPR units "(${count} + 15) / 16")
  foreach(unit RANGE 1 ${units})
    math(EXPR first "${count} * (${unit} - 1) / ${units}")
    math(EXPR length "${count} * ${unit} / ${units} - ${first}")
    list(SUBLIST others ${first} ${length} members)
    set(text "")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # It takes an included source for a header, whose unnamed namespaces other files could see.
      set(text "#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"\n")
    endif()
    foreach(member IN LISTS members)
      file(RELATIVE_PATH member "${base}" "${member}")
      string(APPEND text "#include \"${member}\"\n")
    endforeach()
    set(file "${PROJECT_BINARY_DIR}/units/${name}_${unit}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
    list(APPEND sources "${file}")
  endforeach()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# Adds sources of a folder to mep_objects.
function(mep_add_sources folder)
  file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}/src" "${folder}")
  string(REPLACE "/" "_" name "${name}")
  mep_unite(sources "${name}" "${PROJECT_SOURCE_DIR}/src" ${ARGN})
  target_sources(mep_objects PRIVATE ${sources})
endfunction()

# Adds the sources of one folder and of its subfolders to mep_objects. A subfolder with its own
# CMakeLists.txt speaks for itself (it calls target_sources(mep_objects ...) or this function).
function(mep_add_folder folder)
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  mep_add_sources("${folder}" ${sources})
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

# Flags for single files of mep_objects, from any folder: mep_source_options(FILE OPTION...).
function(mep_source_options file)
  # The AVX-512 headers of GCC 12 warn about a variable that they leave undefined on purpose.
  if(ARGN MATCHES "-mavx512" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
     CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND ARGN -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  set_source_files_properties("${CMAKE_CURRENT_SOURCE_DIR}/${file}"
    TARGET_DIRECTORY mep_objects PROPERTIES COMPILE_OPTIONS "${ARGN}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# All that is installed: programs, libraries and the bindings'. No tests.
add_custom_target(mep_programs)

# mep_add_tool(NAME SOURCES... LIBRARIES...): a program that is built into bin/ and installed. Its sources, with whole
# paths, are compiled together.
function(mep_add_tool name)
  cmake_parse_arguments(tool "" "" "SOURCES;LIBRARIES" ${ARGN})
  set(united ${tool_SOURCES})
  list(FILTER united INCLUDE REGEX "^/.*[.]cpp$")
  list(REMOVE_ITEM tool_SOURCES ${united})
  mep_unite(united ${name} "${CMAKE_CURRENT_SOURCE_DIR}" ${united})
  add_executable(${name} ${united} ${tool_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  mep_precompile(${name})
  target_link_libraries(${name} PRIVATE mep_flags ${tool_LIBRARIES})
  add_dependencies(mep_programs ${name})
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
endfunction()
