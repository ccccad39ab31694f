! Helpers that several of the Fortran forms need.
module mep_helpers
  use, intrinsic :: iso_c_binding
  use mep_types
  use mep_c
  implicit none
  private
  public :: given, given_displs, own_block

contains

  pure type(c_ptr) function given(stream)
    type(c_ptr), intent(in), optional :: stream
    given = c_null_ptr
    if (present(stream)) given = stream
  end function given

  ! Where blocks lie; none given: one behind the other.
  type(c_ptr) function given_displs(displs)
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    given_displs = c_null_ptr
    if (present(displs)) given_displs = c_loc(displs)
  end function given_displs

  ! The block of this rank within a buffer that has one for each.
  integer(c_int32_t) function own_block(buffer, count, dtype, comm, block) result(code)
    type(c_ptr), intent(in) :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(out) :: block
    integer(c_int32_t) :: rank
    integer(c_intptr_t) :: address
    block = buffer
    code = mep_comm_rank(comm, rank)
    if (code /= MEP_SUCCESS) return
    address = transfer(buffer, address) + rank * count * mep_dtype_size(dtype)
    block = transfer(address, block)
  end function own_block
end module mep_helpers
