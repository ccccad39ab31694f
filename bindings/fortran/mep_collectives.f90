! The collectives of mep.h in Fortran's form; programs `use mep`. Made by bindings/make_bindings.py from
! the table of operations; do not edit.
module mep_collectives
  use, intrinsic :: iso_c_binding
  use mep_types
  use mep_helpers
  use mep_collectives_c
  implicit none
  private
  public :: mep_barrier
  public :: mep_broadcast
  public :: mep_broadcast_in_place
  public :: mep_allgather
  public :: mep_allgather_in_place
  public :: mep_allreduce
  public :: mep_allreduce_in_place
  public :: mep_reduce
  public :: mep_reduce_in_place
  public :: mep_gather
  public :: mep_gather_in_place
  public :: mep_scatter
  public :: mep_scatter_in_place
  public :: mep_reduce_scatter
  public :: mep_reduce_scatter_in_place
  public :: mep_alltoall
  public :: mep_allgatherv
  public :: mep_gatherv
  public :: mep_scatterv
  public :: mep_reduce_scatterv
  public :: mep_alltoallv
  public :: mep_ibarrier
  public :: mep_ibroadcast
  public :: mep_ibroadcast_in_place
  public :: mep_iallgather
  public :: mep_iallgather_in_place
  public :: mep_iallreduce
  public :: mep_iallreduce_in_place
  public :: mep_ireduce
  public :: mep_ireduce_in_place
  public :: mep_igather
  public :: mep_igather_in_place
  public :: mep_iscatter
  public :: mep_iscatter_in_place
  public :: mep_ireduce_scatter
  public :: mep_ireduce_scatter_in_place
  public :: mep_ialltoall
  public :: mep_iallgatherv
  public :: mep_igatherv
  public :: mep_iscatterv
  public :: mep_ireduce_scatterv
  public :: mep_ialltoallv

contains

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
    if (code /= MEP_SUCCESS) return
    code = c_allgather(block, c_loc(recvbuf), count, dtype, comm, given(stream))
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

  integer(c_int32_t) function mep_reduce(sendbuf, recvbuf, count, dtype, op, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_reduce(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, root, comm, given(stream))
  end function mep_reduce

  ! For root; the others call mep_reduce.
  integer(c_int32_t) function mep_reduce_in_place(buffer, count, dtype, op, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_reduce(c_loc(buffer), c_loc(buffer), count, dtype, op, root, comm, given(stream))
  end function mep_reduce_in_place

  integer(c_int32_t) function mep_gather(sendbuf, recvbuf, count, dtype, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_gather(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, given(stream))
  end function mep_gather

  ! The rank's own block of recvbuf is its input.
  ! For root; the others call mep_gather.
  integer(c_int32_t) function mep_gather_in_place(recvbuf, count, dtype, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(recvbuf), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_gather(block, c_loc(recvbuf), count, dtype, root, comm, given(stream))
  end function mep_gather_in_place

  integer(c_int32_t) function mep_scatter(sendbuf, recvbuf, count, dtype, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_scatter(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, given(stream))
  end function mep_scatter

  ! The rank's own block of buffer is its output.
  ! For root; the others call mep_scatter.
  integer(c_int32_t) function mep_scatter_in_place(buffer, count, dtype, root, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(buffer), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_scatter(c_loc(buffer), block, count, dtype, root, comm, given(stream))
  end function mep_scatter_in_place

  integer(c_int32_t) function mep_reduce_scatter(sendbuf, recvbuf, count, dtype, op, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_reduce_scatter(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, comm, given(stream))
  end function mep_reduce_scatter

  ! The rank's own block of buffer is its output.
  integer(c_int32_t) function mep_reduce_scatter_in_place(buffer, count, dtype, op, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(buffer), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_reduce_scatter(c_loc(buffer), block, count, dtype, op, comm, given(stream))
  end function mep_reduce_scatter_in_place

  integer(c_int32_t) function mep_alltoall(sendbuf, recvbuf, count, dtype, comm, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    code = c_alltoall(c_loc(sendbuf), c_loc(recvbuf), count, dtype, comm, given(stream))
  end function mep_alltoall

  integer(c_int32_t) function mep_allgatherv(sendbuf, recvbuf, counts, dtype, comm, stream, &
      displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_allgatherv(c_loc(sendbuf), c_loc(recvbuf), c_loc(counts), given_displs(displs), &
        dtype, comm, given(stream))
  end function mep_allgatherv

  integer(c_int32_t) function mep_gatherv(sendbuf, recvbuf, count, counts, dtype, root, comm, &
      stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_gatherv(c_loc(sendbuf), c_loc(recvbuf), count, c_loc(counts), given_displs(displs), &
        dtype, root, comm, given(stream))
  end function mep_gatherv

  integer(c_int32_t) function mep_scatterv(sendbuf, recvbuf, count, counts, dtype, root, comm, &
      stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_scatterv(c_loc(sendbuf), c_loc(recvbuf), count, c_loc(counts), given_displs(displs), &
        dtype, root, comm, given(stream))
  end function mep_scatterv

  integer(c_int32_t) function mep_reduce_scatterv(sendbuf, recvbuf, counts, dtype, op, comm, &
      stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_reduce_scatterv(c_loc(sendbuf), c_loc(recvbuf), c_loc(counts), given_displs(displs), &
        dtype, op, comm, given(stream))
  end function mep_reduce_scatterv

  integer(c_int32_t) function mep_alltoallv(sendbuf, recvbuf, sendcounts, recvcounts, dtype, comm, &
      stream, senddispls, recvdispls) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_int64_t), intent(in), target, contiguous :: sendcounts(:), recvcounts(:)
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: senddispls(:), recvdispls(:)
    code = c_alltoallv(c_loc(sendbuf), c_loc(recvbuf), c_loc(sendcounts), &
        given_displs(senddispls), c_loc(recvcounts), given_displs(recvdispls), dtype, comm, &
        given(stream))
  end function mep_alltoallv

  integer(c_int32_t) function mep_ibarrier(comm, request, stream) result(code)
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ibarrier(comm, given(stream), request)
  end function mep_ibarrier

  integer(c_int32_t) function mep_ibroadcast(sendbuf, recvbuf, count, dtype, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ibroadcast(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, given(stream), &
        request)
  end function mep_ibroadcast

  integer(c_int32_t) function mep_ibroadcast_in_place(buffer, count, dtype, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ibroadcast(c_loc(buffer), c_loc(buffer), count, dtype, root, comm, given(stream), &
        request)
  end function mep_ibroadcast_in_place

  integer(c_int32_t) function mep_iallgather(sendbuf, recvbuf, count, dtype, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_iallgather(c_loc(sendbuf), c_loc(recvbuf), count, dtype, comm, given(stream), request)
  end function mep_iallgather

  ! The rank's own block of recvbuf is its input.
  integer(c_int32_t) function mep_iallgather_in_place(recvbuf, count, dtype, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(recvbuf), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_iallgather(block, c_loc(recvbuf), count, dtype, comm, given(stream), request)
  end function mep_iallgather_in_place

  integer(c_int32_t) function mep_iallreduce(sendbuf, recvbuf, count, dtype, op, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_iallreduce(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, comm, given(stream), &
        request)
  end function mep_iallreduce

  integer(c_int32_t) function mep_iallreduce_in_place(buffer, count, dtype, op, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_iallreduce(c_loc(buffer), c_loc(buffer), count, dtype, op, comm, given(stream), &
        request)
  end function mep_iallreduce_in_place

  integer(c_int32_t) function mep_ireduce(sendbuf, recvbuf, count, dtype, op, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ireduce(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, root, comm, given(stream), &
        request)
  end function mep_ireduce

  ! For root; the others call mep_ireduce.
  integer(c_int32_t) function mep_ireduce_in_place(buffer, count, dtype, op, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ireduce(c_loc(buffer), c_loc(buffer), count, dtype, op, root, comm, given(stream), &
        request)
  end function mep_ireduce_in_place

  integer(c_int32_t) function mep_igather(sendbuf, recvbuf, count, dtype, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_igather(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, given(stream), &
        request)
  end function mep_igather

  ! The rank's own block of recvbuf is its input.
  ! For root; the others call mep_igather.
  integer(c_int32_t) function mep_igather_in_place(recvbuf, count, dtype, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(recvbuf), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_igather(block, c_loc(recvbuf), count, dtype, root, comm, given(stream), request)
  end function mep_igather_in_place

  integer(c_int32_t) function mep_iscatter(sendbuf, recvbuf, count, dtype, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_iscatter(c_loc(sendbuf), c_loc(recvbuf), count, dtype, root, comm, given(stream), &
        request)
  end function mep_iscatter

  ! The rank's own block of buffer is its output.
  ! For root; the others call mep_iscatter.
  integer(c_int32_t) function mep_iscatter_in_place(buffer, count, dtype, root, comm, request, &
      stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(buffer), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_iscatter(c_loc(buffer), block, count, dtype, root, comm, given(stream), request)
  end function mep_iscatter_in_place

  integer(c_int32_t) function mep_ireduce_scatter(sendbuf, recvbuf, count, dtype, op, comm, &
      request, stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ireduce_scatter(c_loc(sendbuf), c_loc(recvbuf), count, dtype, op, comm, &
        given(stream), request)
  end function mep_ireduce_scatter

  ! The rank's own block of buffer is its output.
  integer(c_int32_t) function mep_ireduce_scatter_in_place(buffer, count, dtype, op, comm, &
      request, stream) result(code)
    type(*), dimension(..), asynchronous, contiguous, target :: buffer
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    type(c_ptr) :: block
    code = own_block(c_loc(buffer), count, dtype, comm, block)
    if (code /= MEP_SUCCESS) return
    code = c_ireduce_scatter(c_loc(buffer), block, count, dtype, op, comm, given(stream), request)
  end function mep_ireduce_scatter_in_place

  integer(c_int32_t) function mep_ialltoall(sendbuf, recvbuf, count, dtype, comm, request, stream) &
      result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    code = c_ialltoall(c_loc(sendbuf), c_loc(recvbuf), count, dtype, comm, given(stream), request)
  end function mep_ialltoall

  integer(c_int32_t) function mep_iallgatherv(sendbuf, recvbuf, counts, dtype, comm, request, &
      stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_iallgatherv(c_loc(sendbuf), c_loc(recvbuf), c_loc(counts), given_displs(displs), &
        dtype, comm, given(stream), request)
  end function mep_iallgatherv

  integer(c_int32_t) function mep_igatherv(sendbuf, recvbuf, count, counts, dtype, root, comm, &
      request, stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_igatherv(c_loc(sendbuf), c_loc(recvbuf), count, c_loc(counts), given_displs(displs), &
        dtype, root, comm, given(stream), request)
  end function mep_igatherv

  integer(c_int32_t) function mep_iscatterv(sendbuf, recvbuf, count, counts, dtype, root, comm, &
      request, stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_size_t), intent(in) :: count
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype, root
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_iscatterv(c_loc(sendbuf), c_loc(recvbuf), count, c_loc(counts), given_displs(displs), &
        dtype, root, comm, given(stream), request)
  end function mep_iscatterv

  integer(c_int32_t) function mep_ireduce_scatterv(sendbuf, recvbuf, counts, dtype, op, comm, &
      request, stream, displs) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_int64_t), intent(in), target, contiguous :: counts(:)
    integer(c_int32_t), intent(in) :: dtype, op
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: displs(:)
    code = c_ireduce_scatterv(c_loc(sendbuf), c_loc(recvbuf), c_loc(counts), given_displs(displs), &
        dtype, op, comm, given(stream), request)
  end function mep_ireduce_scatterv

  integer(c_int32_t) function mep_ialltoallv(sendbuf, recvbuf, sendcounts, recvcounts, dtype, &
      comm, request, stream, senddispls, recvdispls) result(code)
    type(*), dimension(..), asynchronous, contiguous, target, intent(in) :: sendbuf
    type(*), dimension(..), asynchronous, contiguous, target :: recvbuf
    integer(c_int64_t), intent(in), target, contiguous :: sendcounts(:), recvcounts(:)
    integer(c_int32_t), intent(in) :: dtype
    type(mep_comm_t), intent(in) :: comm
    type(mep_request_t), intent(out) :: request
    type(c_ptr), intent(in), optional :: stream
    integer(c_int64_t), intent(in), target, contiguous, optional :: senddispls(:), recvdispls(:)
    code = c_ialltoallv(c_loc(sendbuf), c_loc(recvbuf), c_loc(sendcounts), &
        given_displs(senddispls), c_loc(recvcounts), given_displs(recvdispls), dtype, comm, &
        given(stream), request)
  end function mep_ialltoallv
end module mep_collectives
