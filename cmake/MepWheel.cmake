# The component `wheel`, which no plain install has: what `pip install .` (pyproject.toml) adds to the Python sources of
# bindings/python/mep. The package is a small prefix of MEP, so that programs find the library as they do elsewhere:
#   platlib/mep/lib/      libmep.so and, in a build for a wheel, the libraries that it needs
#   platlib/mep/bin/      mep_run, mep_info, mep_perf
#   platlib/mep/include/  mep.h, for mep.torch
#   scripts/              a script of each program's name, which becomes that program
set(mep_wheel_programs mep_run mep_info mep_perf)
set(mep_platlib "${SKBUILD_PLATLIB_DIR}")
set(mep_scripts "${SKBUILD_SCRIPTS_DIR}")
if(NOT SKBUILD)
  set(mep_platlib platlib)
  set(mep_scripts scripts)
endif()
add_custom_target(mep_wheel DEPENDS mep ${mep_wheel_programs})

# Wheels have no links, so the library has the one name that programs ask for.
install(FILES "$<TARGET_FILE:mep>" DESTINATION "${mep_platlib}/mep/${CMAKE_INSTALL_LIBDIR}"
  RENAME "libmep.so.${MEP_SOVERSION}" COMPONENT wheel EXCLUDE_FROM_ALL)
install(TARGETS ${mep_wheel_programs}
  RUNTIME DESTINATION "${mep_platlib}/mep/bin" COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/include/mep.h"
  DESTINATION "${mep_platlib}/mep/include" COMPONENT wheel EXCLUDE_FROM_ALL)
foreach(program IN LISTS mep_wheel_programs)
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/bindings/python/become_program.py"
    DESTINATION "${mep_scripts}" RENAME "${program}" COMPONENT wheel EXCLUDE_FROM_ALL)
endforeach()

# The wheel brings hwloc and libsodium, so that it works where neither is installed. RDMA's libraries load drivers of their
# own version and stay the system's, as does libcrypto where a build asks for it: Python's ssl may need the same one. DT_RPATH, in place of RUNPATH, holds for what these libraries need in turn.
if(SKBUILD)
  set_target_properties(mep PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  foreach(target IN ITEMS mep ${mep_wheel_programs})
    target_link_options(${target} PRIVATE LINKER:--disable-new-dtags LINKER:--strip-all)
  endforeach()
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES \"$<TARGET_FILE:mep>\" RESOLVED_DEPENDENCIES_VAR needed
      PRE_EXCLUDE_REGEXES \"^lib(c|m|dl|rt|pthread|stdc\\\\+\\\\+|gcc_s|ibverbs|crypto|nl-.*)[.]so\" \"^ld-\")
    foreach(library IN LISTS needed)
      get_filename_component(name \"\${library}\" NAME)
      file(REAL_PATH \"\${library}\" file)
      file(INSTALL \"\${file}\" DESTINATION \"${mep_platlib}/mep/${CMAKE_INSTALL_LIBDIR}\" RENAME \"\${name}\")
    endforeach()" COMPONENT wheel)
endif()
