! The collectives of mep.h as they are. Made by bindings/make_bindings.py from the table of operations;
! do not edit.
module mep_collectives_c
  use, intrinsic :: iso_c_binding
  use mep_types
  implicit none

  interface
    integer(c_int32_t) function c_barrier(comm, stream) bind(C, name="mep_barrier")
      import :: c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: stream
    end function c_barrier
    integer(c_int32_t) function c_broadcast(sendbuf, recvbuf, count, dtype, root, comm, stream) &
        bind(C, name="mep_broadcast")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
    end function c_broadcast
    integer(c_int32_t) function c_allgather(sendbuf, recvbuf, count, dtype, comm, stream) &
        bind(C, name="mep_allgather")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
    end function c_allgather
    integer(c_int32_t) function c_allreduce(sendbuf, recvbuf, count, dtype, op, comm, stream) &
        bind(C, name="mep_allreduce")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op
      type(mep_comm_t), value :: comm
    end function c_allreduce
    integer(c_int32_t) function c_reduce(sendbuf, recvbuf, count, dtype, op, root, comm, stream) &
        bind(C, name="mep_reduce")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op, root
      type(mep_comm_t), value :: comm
    end function c_reduce
    integer(c_int32_t) function c_gather(sendbuf, recvbuf, count, dtype, root, comm, stream) &
        bind(C, name="mep_gather")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
    end function c_gather
    integer(c_int32_t) function c_scatter(sendbuf, recvbuf, count, dtype, root, comm, stream) &
        bind(C, name="mep_scatter")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
    end function c_scatter
    integer(c_int32_t) function c_reduce_scatter(sendbuf, recvbuf, count, dtype, op, comm, stream) &
        bind(C, name="mep_reduce_scatter")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op
      type(mep_comm_t), value :: comm
    end function c_reduce_scatter
    integer(c_int32_t) function c_alltoall(sendbuf, recvbuf, count, dtype, comm, stream) &
        bind(C, name="mep_alltoall")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
    end function c_alltoall
    integer(c_int32_t) function c_allgatherv(sendbuf, recvbuf, counts, displs, dtype, comm, &
        stream) bind(C, name="mep_allgatherv")
      import :: c_int32_t, c_ptr, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
    end function c_allgatherv
    integer(c_int32_t) function c_gatherv(sendbuf, recvbuf, count, counts, displs, dtype, root, &
        comm, stream) bind(C, name="mep_gatherv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
    end function c_gatherv
    integer(c_int32_t) function c_scatterv(sendbuf, recvbuf, count, counts, displs, dtype, root, &
        comm, stream) bind(C, name="mep_scatterv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
    end function c_scatterv
    integer(c_int32_t) function c_reduce_scatterv(sendbuf, recvbuf, counts, displs, dtype, op, &
        comm, stream) bind(C, name="mep_reduce_scatterv")
      import :: c_int32_t, c_ptr, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_int32_t), value :: dtype, op
      type(mep_comm_t), value :: comm
    end function c_reduce_scatterv
    integer(c_int32_t) function c_alltoallv(sendbuf, recvbuf, sendcounts, senddispls, recvcounts, &
        recvdispls, dtype, comm, stream) bind(C, name="mep_alltoallv")
      import :: c_int32_t, c_ptr, mep_comm_t
      type(c_ptr), value :: sendbuf, recvbuf, sendcounts, senddispls, recvcounts, recvdispls, stream
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
    end function c_alltoallv
    integer(c_int32_t) function c_ibarrier(comm, stream, request) bind(C, name="mep_ibarrier")
      import :: c_int32_t, c_ptr, mep_comm_t, mep_request_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: stream
      type(mep_request_t), intent(out) :: request
    end function c_ibarrier
    integer(c_int32_t) function c_ibroadcast(sendbuf, recvbuf, count, dtype, root, comm, stream, &
        request) bind(C, name="mep_ibroadcast")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_ibroadcast
    integer(c_int32_t) function c_iallgather(sendbuf, recvbuf, count, dtype, comm, stream, &
        request) bind(C, name="mep_iallgather")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_iallgather
    integer(c_int32_t) function c_iallreduce(sendbuf, recvbuf, count, dtype, op, comm, stream, &
        request) bind(C, name="mep_iallreduce")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_iallreduce
    integer(c_int32_t) function c_ireduce(sendbuf, recvbuf, count, dtype, op, root, comm, stream, &
        request) bind(C, name="mep_ireduce")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op, root
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_ireduce
    integer(c_int32_t) function c_igather(sendbuf, recvbuf, count, dtype, root, comm, stream, &
        request) bind(C, name="mep_igather")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_igather
    integer(c_int32_t) function c_iscatter(sendbuf, recvbuf, count, dtype, root, comm, stream, &
        request) bind(C, name="mep_iscatter")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_iscatter
    integer(c_int32_t) function c_ireduce_scatter(sendbuf, recvbuf, count, dtype, op, comm, &
        stream, request) bind(C, name="mep_ireduce_scatter")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, op
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_ireduce_scatter
    integer(c_int32_t) function c_ialltoall(sendbuf, recvbuf, count, dtype, comm, stream, request) &
        bind(C, name="mep_ialltoall")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_ialltoall
    integer(c_int32_t) function c_iallgatherv(sendbuf, recvbuf, counts, displs, dtype, comm, &
        stream, request) bind(C, name="mep_iallgatherv")
      import :: c_int32_t, c_ptr, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_iallgatherv
    integer(c_int32_t) function c_igatherv(sendbuf, recvbuf, count, counts, displs, dtype, root, &
        comm, stream, request) bind(C, name="mep_igatherv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_igatherv
    integer(c_int32_t) function c_iscatterv(sendbuf, recvbuf, count, counts, displs, dtype, root, &
        comm, stream, request) bind(C, name="mep_iscatterv")
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_size_t), value :: count
      integer(c_int32_t), value :: dtype, root
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_iscatterv
    integer(c_int32_t) function c_ireduce_scatterv(sendbuf, recvbuf, counts, displs, dtype, op, &
        comm, stream, request) bind(C, name="mep_ireduce_scatterv")
      import :: c_int32_t, c_ptr, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, counts, displs, stream
      integer(c_int32_t), value :: dtype, op
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_ireduce_scatterv
    integer(c_int32_t) function c_ialltoallv(sendbuf, recvbuf, sendcounts, senddispls, recvcounts, &
        recvdispls, dtype, comm, stream, request) bind(C, name="mep_ialltoallv")
      import :: c_int32_t, c_ptr, mep_comm_t, mep_request_t
      type(c_ptr), value :: sendbuf, recvbuf, sendcounts, senddispls, recvcounts, recvdispls, stream
      integer(c_int32_t), value :: dtype
      type(mep_comm_t), value :: comm
      type(mep_request_t), intent(out) :: request
    end function c_ialltoallv
  end interface
end module mep_collectives_c
