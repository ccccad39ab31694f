program module_user
  use mep
  implicit none
  if (mep_version() /= MEP_VERSION_MAJOR * 10000 + MEP_VERSION_MINOR * 100 + MEP_VERSION_PATCH) error stop 1
  if (mep_result_string(MEP_ERR_TIMEOUT) /= "MEP_ERR_TIMEOUT") error stop 2
end program module_user
