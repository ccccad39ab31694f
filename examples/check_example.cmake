# cmake -DRANKS=N -DCOMMAND=PROGRAM;ARGS -P check_example.cmake: runs an example and looks for one line
# "rank R of N: ... right" from each rank.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
message("${output}${errors}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "exit status ${status}")
endif()
math(EXPR last "${RANKS} - 1")
foreach(rank RANGE ${last})
  if(NOT output MATCHES "rank ${rank} of ${RANKS}: [^\n]* right\n")
    message(FATAL_ERROR "no line 'rank ${rank} of ${RANKS}: ... right'")
  endif()
endforeach()
