# cmake --install: headers, libraries, find_package(mep), mep.pc, man pages, documents. Tools install themselves
# (mep_add_tool), the bindings too. mep_programs builds all that is installed.
include(CMakePackageConfigHelpers)

set(mep_headers "${PROJECT_SOURCE_DIR}/include/mep.h")
if(TARGET mep_mpi)
  list(APPEND mep_headers "${PROJECT_SOURCE_DIR}/include/mep_mpi.h")
endif()
foreach(header IN LISTS mep_headers)
  if(EXISTS "${header}")
    install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT devel)
  endif()
endforeach()

set(mep_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/mep")
# The library is self-contained for its users: nothing that it links privately is exported.
install(TARGETS mep EXPORT mepTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime NAMELINK_COMPONENT devel)
install(EXPORT mepTargets NAMESPACE mep:: DESTINATION "${mep_cmake_dir}" COMPONENT devel)
if(TARGET mep_mpi)
  install(TARGETS mep_mpi EXPORT mepMpiTargets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT mpi NAMELINK_COMPONENT devel)
  install(EXPORT mepMpiTargets NAMESPACE mep:: DESTINATION "${mep_cmake_dir}" COMPONENT devel)
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/mepConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/mepConfig.cmake" INSTALL_DESTINATION "${mep_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mepConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/mepConfig.cmake" "${PROJECT_BINARY_DIR}/mepConfigVersion.cmake"
  DESTINATION "${mep_cmake_dir}" COMPONENT devel)

# Paths in mep.pc are relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH mep_pc_prefix
  "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" mep_pc_prefix "${mep_pc_prefix}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/mep.pc.in" "${PROJECT_BINARY_DIR}/mep.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/mep.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT devel)

file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/man/*.1")
install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT tools)
# One page a function, written where it is installed.
if(Python3_FOUND)
  install(CODE "
    set(mep_pages \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man3\")
    message(STATUS \"Installing: \${mep_pages}\")
    execute_process(COMMAND \"${Python3_EXECUTABLE}\" -B \"${PROJECT_SOURCE_DIR}/docs/make_api.py\" --man \"\${mep_pages}\"
      COMMAND_ERROR_IS_FATAL ANY)" COMPONENT devel)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT doc)
# The layout of the source tree is kept, since the pages link to each other.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT doc
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.c" PATTERN "*.cpp" PATTERN "*.f90" PATTERN "examples/*.py"
  PATTERN "man" EXCLUDE)
install(CODE "set(mep_documents \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\")" COMPONENT doc)
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/MepUnlinkDocuments.cmake" COMPONENT doc)
