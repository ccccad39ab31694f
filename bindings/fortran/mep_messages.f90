! Messages from one rank to another, in Fortran's form; programs `use mep`.
module mep_messages
  use, intrinsic :: iso_c_binding
  use mep_types
  use mep_helpers
  implicit none
  private
  public :: mep_send, mep_recv, mep_sendrecv, mep_isend, mep_irecv

  interface
    integer(c_int32_t) function c_send(buffer, count, dtype, dest, tag, comm, stream) &
        bind(C, name="mep_send")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: buffer, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, dest, tag
      type(mep_comm_t), value :: comm
    end function c_send
    integer(c_int32_t) function c_recv(buffer, count, dtype, source, tag, comm, message, stream) &
        bind(C, name="mep_recv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_message_t
      type(c_ptr), value :: buffer, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, source, tag
      type(mep_comm_t), value :: comm
      type(mep_message_t), intent(inout), asynchronous, optional :: message
    end function c_recv
    integer(c_int32_t) function c_sendrecv(sendbuf, sendcount, dest, sendtag, recvbuf, recvcount, &
        source, recvtag, dtype, comm, message, stream) bind(C, name="mep_sendrecv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_message_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: sendcount, recvcount
      integer(c_int32_t), value :: dest, sendtag, source, recvtag, dtype
      type(mep_comm_t), value :: comm
      type(mep_message_t), intent(inout), asynchronous, optional :: message
    end function c_sendrecv
    integer(c_int32_t) function c_isend(buffer, count, dtype, dest, tag, comm, stream, request) &
        bind(C, name="mep_isend")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: buffer, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, dest, tag
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_isend
    integer(c_int32_t) function c_irecv(buffer, count, dtype, source, tag, comm, message, stream, request) &
        bind(C, name="mep_irecv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_message_t, mep_request_t
      type(c_ptr), value :: buffer, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, source, tag
      type(mep_comm_t), value :: comm
      type(mep_message_t), intent(inout), asynchronous, optional :: message
      type(mep_request_t), intent(out) :: request
    end function c_irecv
  end interface

contains

  integer(c_int32_t) function mep_send(buffer, count, dtype, dest, tag, comm, stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, dest, tag
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_send(c_loc(buffer), count, dtype, dest, tag, comm, given(stream))
  end function mep_send

  integer(c_int32_t) function mep_recv(buffer, count, dtype, source, tag, comm, message, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, source, tag
    type(mep_comm_t), intent(in) :: comm
    type(mep_message_t), intent(inout), asynchronous, optional :: message
    type(c_ptr), intent(in), optional :: stream
    code = c_recv(c_loc(buffer), count, dtype, source, tag, comm, message, given(stream))
  end function mep_recv

  integer(c_int32_t) function mep_sendrecv(sendbuf, sendcount, dest, sendtag, recvbuf, recvcount, &
      source, recvtag, dtype, comm, message, stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: sendcount, recvcount
    integer(c_int32_t), intent(in) :: dest, sendtag, source, recvtag, dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_message_t), intent(inout), asynchronous, optional :: message
    type(c_ptr), intent(in), optional :: stream
    code = c_sendrecv(c_loc(sendbuf), sendcount, dest, sendtag, c_loc(recvbuf), recvcount, source, &
        recvtag, dtype, comm, message, given(stream))
  end function mep_sendrecv

  integer(c_int32_t) function mep_isend(buffer, count, dtype, dest, tag, comm, request, stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, dest, tag
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_isend(c_loc(buffer), count, dtype, dest, tag, comm, given(stream), request)
  end function mep_isend

  ! The arguments that may be left out, message and stream, stand behind request. It belongs to the operation as the buffer does.
  integer(c_int32_t) function mep_irecv(buffer, count, dtype, source, tag, comm, request, message, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, source, tag
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(mep_message_t), intent(inout), asynchronous, optional :: message
    type(c_ptr), intent(in), optional :: stream
    code = c_irecv(c_loc(buffer), count, dtype, source, tag, comm, message, given(stream), request)
  end function mep_irecv
end module mep_messages
