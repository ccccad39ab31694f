! MEP for Fortran: the whole of mep.h. Every function, type and constant has its C name and meaning;
! docs/reference/api.md (or mep.h) describes them. What differs from C:
!
!   - Functions return the result code; mep_result_string and mep_last_error return character strings.
!   - Structures set themselves up (struct_size included) when declared; no call of *_init is needed.
!   - `stream` is optional and comes last. Optional too: config, info, map.
!   - Buffers are contiguous variables of any type, scalars too. Counts have kind c_size_t:
!     size(x, kind=c_size_t). In nonblocking calls, declare buffers asynchronous and touch them only
!     after the request is done. For one buffer as input and output, which Fortran does not allow as
!     two arguments, call the form *_in_place.
!   - Fortran has no unsigned integers: 32-bit counts and times are c_int32_t, and -1 stands for
!     0xffffffff. Pointers inside structures are type(c_ptr): c_loc(x) of a variable with `target`.
!   - mep_comm_name, mep_comm_transport, mep_preferred_hca give allocatable strings; names passed in need no c_null_char.
module mep
  use, intrinsic :: iso_c_binding
  use mep_types
  use mep_c
  implicit none
  private :: c_result_string, c_last_error, c_comm_transport, c_comm_name, c_comm_set_name, &
      c_preferred_hca, c_comm_attach, c_barrier, c_broadcast, c_allgather, c_allreduce, c_ibroadcast, c_iallgather, &
      c_iallreduce, c_dispatch, c_combine, text_of, given, own_block

contains

  function mep_result_string(code) result(text)
    integer(c_int32_t), intent(in) :: code
    character(len=:), allocatable :: text
    text = text_of(c_result_string(code))
  end function mep_result_string

  function mep_last_error() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_last_error())
  end function mep_last_error

  integer(c_int32_t) function mep_comm_transport(comm, rank, name) result(code)
    type(mep_comm_t), intent(in) :: comm
    integer(c_int32_t), intent(in) :: rank
    character(len=:), allocatable, intent(out) :: name
    type(c_ptr) :: text
    text = c_null_ptr
    code = c_comm_transport(comm, rank, text)
    name = text_of(text)
  end function mep_comm_transport

  integer(c_int32_t) function mep_comm_name(comm, name) result(code)
    type(mep_comm_t), intent(in) :: comm
    character(len=:), allocatable, intent(out) :: name
    type(c_ptr) :: text
    text = c_null_ptr
    code = c_comm_name(comm, text)
    name = text_of(text)
  end function mep_comm_name

  integer(c_int32_t) function mep_comm_set_name(comm, name) result(code)
    type(mep_comm_t), intent(in) :: comm
    character(len=*), intent(in) :: name
    code = c_comm_set_name(comm, trim(name)//c_null_char)
  end function mep_comm_set_name

  integer(c_int32_t) function mep_comm_attach(world, name, comm) result(code)
    type(mep_comm_t), intent(in) :: world
    character(len=*), intent(in) :: name
    type(mep_comm_t), intent(out) :: comm
    code = c_comm_attach(world, trim(name)//c_null_char, comm)
  end function mep_comm_attach

  ! location: "cpu", "gpu:0", "numa:0" or a PCI address; name is empty after an error.
  integer(c_int32_t) function mep_preferred_hca(location, name) result(code)
    character(len=*), intent(in) :: location
    character(len=:), allocatable, intent(out) :: name
    character(kind=c_char) :: bytes(128)
    integer :: i
    bytes = c_null_char
    code = c_preferred_hca(trim(location)//c_null_char, bytes, 128_c_size_t)
    name = ""
    if (code /= MEP_SUCCESS) return
    do i = 1, 128
      if (bytes(i) == c_null_char) exit
      name = name//bytes(i)
    end do
  end function mep_preferred_hca

  integer(c_int32_t) function mep_barrier(comm, stream) result(code)
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_barrier(comm, given(stream))
  end function mep_barrier

  integer(c_int32_t) function mep_broadcast(sendbuf, recvbuf, count, dtype, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_broadcast(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, given(stream))
  end function mep_broadcast

  integer(c_int32_t) function mep_broadcast_in_place(buffer, count, dtype, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_broadcast(c_loc(buffer), c_loc(buffer), count, dtype, root, comm, given(stream))
  end function mep_broadcast_in_place

  integer(c_int32_t) function mep_allgather(sendbuf, recvbuf, count, dtype, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_allgather(c_loc(sendbuf), c_loc(recvbuf), count, dtype, comm, given(stream))
  end function mep_allgather

  ! The rank's own block of recvbuf is its input.
  integer(c_int32_t) function mep_allgather_in_place(recvbuf, count, dtype, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(recvbuf), count, dtype, comm, block)
    if (code == MEP_SUCCESS) then
      code = c_allgather(block, c_loc(recvbuf), count, dtype, comm, given(stream))
    end if
  end function mep_allgather_in_place

  integer(c_int32_t) function mep_allreduce(sendbuf, recvbuf, count, dtype, op, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_allreduce(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, comm, given(stream))
  end function mep_allreduce

  integer(c_int32_t) function mep_allreduce_in_place(buffer, count, dtype, op, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_allreduce(c_loc(buffer), c_loc(buffer), count, dtype, op, comm, given(stream))
  end function mep_allreduce_in_place

  integer(c_int32_t) function mep_ibroadcast(sendbuf, recvbuf, count, dtype, root, comm, request) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    code = c_ibroadcast(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, request)
  end function mep_ibroadcast

  integer(c_int32_t) function mep_ibroadcast_in_place(buffer, count, dtype, root, comm, request) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    code = c_ibroadcast(c_loc(buffer), c_loc(buffer), count, dtype, root, comm, request)
  end function mep_ibroadcast_in_place

  integer(c_int32_t) function mep_iallgather(sendbuf, recvbuf, count, dtype, comm, request) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    code = c_iallgather(c_loc(sendbuf), c_loc(recvbuf), count, dtype, comm, request)
  end function mep_iallgather

  integer(c_int32_t) function mep_iallgather_in_place(recvbuf, count, dtype, comm, request) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr) :: block
    code = own_block(c_loc(recvbuf), count, dtype, comm, block)
    if (code == MEP_SUCCESS) then
      code = c_iallgather(block, c_loc(recvbuf), count, dtype, comm, request)
    end if
  end function mep_iallgather_in_place

  integer(c_int32_t) function mep_iallreduce(sendbuf, recvbuf, count, dtype, op, comm, request) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    code = c_iallreduce(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, comm, request)
  end function mep_iallreduce

  integer(c_int32_t) function mep_iallreduce_in_place(buffer, count, dtype, op, comm, request) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    code = c_iallreduce(c_loc(buffer), c_loc(buffer), count, dtype, op, comm, request)
  end function mep_iallreduce_in_place

  integer(c_int32_t) function mep_dispatch(handle, args, stream) result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(mep_dispatch_args_t), intent(in) :: args
    type(c_ptr), intent(in), optional :: stream
    code = c_dispatch(handle, args, given(stream))
  end function mep_dispatch

  integer(c_int32_t) function mep_combine(handle, args, stream) result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(mep_combine_args_t), intent(in) :: args
    type(c_ptr), intent(in), optional :: stream
    code = c_combine(handle, args, given(stream))
  end function mep_combine

  ! ---- helpers ----------------------------------------------------------------------------------

  pure type(c_ptr) function given(stream)
    type(c_ptr), intent(in), optional :: stream
    given = c_null_ptr
    if (present(stream)) given = stream
  end function given

  ! The block of this rank within the receive buffer of an allgather.
  integer(c_int32_t) function own_block(recvbuf, count, dtype, comm, block) result(code)
    type(c_ptr), intent(in) :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(out) :: block
    integer(c_int32_t) :: rank
    integer(c_intptr_t) :: address
    block = recvbuf
    code = mep_comm_rank(comm, rank)
    if (code /= MEP_SUCCESS) return
    address = transfer(recvbuf, address) + rank * count * mep_dtype_size(dtype)
    block = transfer(address, block)
  end function own_block

  function text_of(text) result(copy)
    type(c_ptr), intent(in) :: text
    character(len=:), allocatable :: copy
    character(kind=c_char), pointer :: bytes(:)
    integer :: length, i
    copy = ""
    if (.not. c_associated(text)) return
    ! C's strings have no length; the pointer is to as many bytes as have been looked at.
    length = 0
    do
      call c_f_pointer(text, bytes, [length + 1])
      if (bytes(length + 1) == c_null_char) exit
      length = length + 1
    end do
    if (length == 0) return
    copy = repeat(" ", length)
    do i = 1, length
      copy(i:i) = bytes(i)
    end do
  end function text_of
end module mep
