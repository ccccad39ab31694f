# cmake -P: fails if this CMake is older than the build needs (presets of the version used here).
if(CMAKE_VERSION VERSION_LESS 3.25)
  message(FATAL_ERROR "CMake ${CMAKE_VERSION} is older than 3.25")
endif()
