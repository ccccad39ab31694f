! MEP for Fortran: the whole of mep.h. Every function, type and constant has its C name and meaning;
! docs/reference/api.md (or mep.h) describes them. Differences from C:
!
!   - Functions return the result code; mep_result_string and mep_last_error return character strings.
!   - Structures set themselves up (struct_size included) when declared; no call of *_init is needed.
!   - `stream` is optional and comes last. Optional too: config, info, map, message, results,
!     and send and receive of dispatch and combine.
!   - Buffers are contiguous variables of any type, scalars too. Counts have kind c_size_t:
!     size(x, kind=c_size_t). In nonblocking calls, declare buffers (and message) asynchronous and touch
!     them only after the request is done, in a group after mep_group_end. For one buffer as input and
!     output, which Fortran does not allow as two arguments, call the form *_in_place.
!   - Fortran has no unsigned integers: 32-bit counts and times are c_int32_t, and -1 stands for
!     0xffffffff. Pointers inside structures are type(c_ptr): c_loc(x) of a variable with `target`.
!   - mep_request_waitany gives the place in the array from 1 on; 0: none.
!   - mep_comm_name, mep_preferred_hca, mep_comm_preferred_hca give allocatable strings; names passed in need no c_null_char.
module mep
  use, intrinsic :: iso_c_binding
  use mep_types
  use mep_c
  use mep_collectives
  use mep_messages
  use mep_helpers
  implicit none
  private :: c_result_string, c_last_error, c_comm_name, c_comm_set_name, &
      c_preferred_hca, c_comm_preferred_hca, c_comm_attach, c_request_waitany, c_dispatch, c_dispatch_send, c_dispatch_counts, &
      c_dispatch_receive, c_combine, c_combine_send, c_combine_receive, text_of, &
      given, own_block

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

  integer(c_int32_t) function mep_comm_name(comm, name) result(code)
    type(mep_comm_t), intent(in) :: comm
    character(len=:), allocatable, intent(out) :: name
    type(c_ptr) :: text
    text = c_null_ptr
    code = c_comm_name(comm, text)
    name = text_of(text)
  end function mep_comm_name

  integer(c_int32_t) function mep_comm_abort_with(comm, text) result(code)
    type(mep_comm_t), intent(in) :: comm
    character(len=*), intent(in) :: text
    code = c_comm_abort_with(comm, trim(text)//c_null_char)
  end function mep_comm_abort_with

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

  ! index: the place in requests from 1 on; 0: none.
  integer(c_int32_t) function mep_request_waitany(count, requests, timeout_ms, done, index, info) &
      result(code)
    integer(c_int32_t), intent(in) :: count, timeout_ms
    type(mep_request_t), intent(inout) :: requests(*)
    integer(c_int32_t), intent(out), optional :: done
    integer(c_int32_t), intent(out) :: index
    type(mep_op_info_t), intent(inout), optional :: info
    index = -1
    code = c_request_waitany(count, requests, timeout_ms, done, index, info)
    index = index + 1
  end function mep_request_waitany

  ! location: "cpu", "gpu:0", "numa:0" or a PCI address; name is empty after an error.
  integer(c_int32_t) function mep_preferred_hca(location, name) result(code)
    character(len=*), intent(in) :: location
    character(len=:), allocatable, intent(out) :: name
    character(kind=c_char), target :: bytes(128)
    bytes = c_null_char
    code = c_preferred_hca(trim(location)//c_null_char, bytes, 128_c_size_t)
    name = text_of(c_loc(bytes))
  end function mep_preferred_hca

  ! Near the GPU of comm, or the cores of this process where it has none.
  integer(c_int32_t) function mep_comm_preferred_hca(comm, name) result(code)
    type(mep_comm_t), intent(in) :: comm
    character(len=:), allocatable, intent(out) :: name
    character(kind=c_char), target :: bytes(128)
    bytes = c_null_char
    code = c_comm_preferred_hca(comm, c_null_ptr, bytes, 128_c_size_t)
    name = text_of(c_loc(bytes))
  end function mep_comm_preferred_hca

  integer(c_int32_t) function mep_dispatch_layout(comm, topk_idx, topk_idx_type, num_tokens, top_k, &
      num_experts, tokens_per_rank, tokens_per_expert, is_token_in_rank, stream) result(code)
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in) :: topk_idx
    integer(c_int32_t), intent(in) :: topk_idx_type, num_tokens, top_k, num_experts
    type(c_ptr), intent(in), optional :: tokens_per_rank, tokens_per_expert, is_token_in_rank, stream
    code = c_dispatch_layout(comm, topk_idx, topk_idx_type, num_tokens, top_k, num_experts, &
        given(tokens_per_rank), given(tokens_per_expert), given(is_token_in_rank), given(stream))
  end function mep_dispatch_layout

  ! x, topk_idx, topk_weights: c_loc of arrays; topk_weights may be c_null_ptr.
  integer(c_int32_t) function mep_dispatch(handle, x, topk_idx, topk_weights, num_tokens, view, options, stream) &
      result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(c_ptr), intent(in) :: x, topk_idx, topk_weights
    integer(c_int32_t), intent(in) :: num_tokens
    type(mep_ep_view_t), intent(inout), optional :: view
    type(mep_dispatch_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_dispatch(handle, x, topk_idx, topk_weights, num_tokens, view, options, given(stream))
  end function mep_dispatch

  integer(c_int32_t) function mep_dispatch_send(handle, x, topk_idx, topk_weights, num_tokens, options, stream) &
      result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(c_ptr), intent(in) :: x, topk_idx, topk_weights
    integer(c_int32_t), intent(in) :: num_tokens
    type(mep_dispatch_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_dispatch_send(handle, x, topk_idx, topk_weights, num_tokens, options, given(stream))
  end function mep_dispatch_send

  integer(c_int32_t) function mep_dispatch_counts(handle, x, topk_idx, topk_weights, num_tokens, options, stream) &
      result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(c_ptr), intent(in) :: x, topk_idx, topk_weights
    integer(c_int32_t), intent(in) :: num_tokens
    type(mep_dispatch_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_dispatch_counts(handle, x, topk_idx, topk_weights, num_tokens, options, given(stream))
  end function mep_dispatch_counts

  integer(c_int32_t) function mep_dispatch_receive(handle, view, options, stream) result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(mep_ep_view_t), intent(inout), optional :: view
    type(mep_dispatch_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_dispatch_receive(handle, view, options, given(stream))
  end function mep_dispatch_receive

  integer(c_int32_t) function mep_combine(handle, y, out, options, stream) result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(c_ptr), intent(in) :: y, out
    type(mep_combine_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_combine(handle, y, out, options, given(stream))
  end function mep_combine

  integer(c_int32_t) function mep_combine_send(handle, y, options, stream) result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(c_ptr), intent(in) :: y
    type(mep_combine_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_combine_send(handle, y, options, given(stream))
  end function mep_combine_send

  integer(c_int32_t) function mep_combine_receive(handle, out, options, stream) result(code)
    type(mep_ep_handle_t), intent(in) :: handle
    type(c_ptr), intent(in) :: out
    type(mep_combine_options_t), intent(in), optional :: options
    type(c_ptr), intent(in), optional :: stream
    code = c_combine_receive(handle, out, options, given(stream))
  end function mep_combine_receive

  ! ---- helpers ----------------------------------------------------------------------------------

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
