! Calls through the Fortran module on a world of one, and messages on one of two: buffers by reference
! without a copy, scalars, optional arguments, strings, derived-type handles by value.
program fortran_calls_test
  use mep
  implicit none
  type(mep_comm_config_t) :: config
  type(mep_comm_t) :: comm, comms(1), nobody
  type(mep_request_t) :: request
  type(mep_op_info_t) :: info
  type(mep_view_t) :: view
  type(mep_comm_stats_t) :: stats
  type(c_ptr) :: memory
  integer(c_int32_t) :: rank, done, kind, device
  integer(c_int64_t) :: epoch
  integer(c_int32_t), target :: states(1), slots(1)
  integer(c_int64_t), target :: members(1)
  real(c_double), asynchronous :: x(6), y(6), table(2, 3)
  real(c_double), pointer :: window(:)
  integer(c_int64_t) :: scalar
  character(len=:), allocatable :: text

  config%flags = MEP_COMM_SET_RANK
  config%size = 1
  call expect(MEP_SUCCESS, mep_comm_init(config, comm), 1)
  rank = 9
  call expect(MEP_SUCCESS, mep_comm_rank(comm, rank), 2)
  call check(rank == 0, 3)
  call expect(MEP_SUCCESS, mep_comm_epoch(comm, epoch), 4)
  call check(epoch == 1, 5)

  x = [1d0, 2d0, 3d0, 4d0, 5d0, 6d0]
  y = 0
  call expect(MEP_SUCCESS, mep_allreduce(x, y, 6_c_size_t, MEP_FLOAT64, MEP_SUM, comm), 6)
  call check(all(nint(y) == nint(x)), 7)
  scalar = 42
  call expect(MEP_SUCCESS, mep_allreduce_in_place(scalar, 1_c_size_t, MEP_INT64, MEP_MAX, comm), 8)
  call check(scalar == 42, 9)
  call expect(MEP_SUCCESS, mep_broadcast_in_place(x, 6_c_size_t, MEP_FLOAT64, 0, comm), 10)
  table = 7
  call expect(MEP_SUCCESS, mep_allgather(x, table, 6_c_size_t, MEP_FLOAT64, comm), 11)
  call check(nint(table(2, 3)) == 6, 12)
  call expect(MEP_SUCCESS, mep_allgather_in_place(table, 6_c_size_t, MEP_FLOAT64, comm), 13)
  call expect(MEP_SUCCESS, mep_barrier(comm), 14)
  call expect(MEP_SUCCESS, mep_comm_last_op(comm, info), 15)
  call check(info%result == MEP_SUCCESS .and. info%seq > 0, 16)

  y = 0
  call expect(MEP_SUCCESS, mep_reduce(x, y, 6_c_size_t, MEP_FLOAT64, MEP_SUM, 0, comm), 46)
  call check(all(nint(y) == nint(x)), 47)
  y = 0
  call expect(MEP_SUCCESS, mep_reduce_scatter(x, y, 6_c_size_t, MEP_FLOAT64, MEP_SUM, comm), 48)
  call check(all(nint(y) == nint(x)), 49)
  y = 0
  call expect(MEP_SUCCESS, mep_alltoall(x, y, 6_c_size_t, MEP_FLOAT64, comm), 50)
  call check(all(nint(y) == nint(x)), 51)
  y = 0
  call expect(MEP_SUCCESS, mep_gather(x, y, 6_c_size_t, MEP_FLOAT64, 0, comm), 52)
  call check(all(nint(y) == nint(x)), 53)
  y = 0
  call expect(MEP_SUCCESS, mep_scatter(x, y, 6_c_size_t, MEP_FLOAT64, 0, comm), 54)
  call check(all(nint(y) == nint(x)), 55)
  call expect(MEP_SUCCESS, mep_reduce_in_place(y, 6_c_size_t, MEP_FLOAT64, MEP_SUM, 0, comm), 56)
  call expect(MEP_SUCCESS, mep_gather_in_place(y, 6_c_size_t, MEP_FLOAT64, 0, comm), 57)
  call expect(MEP_SUCCESS, mep_scatter_in_place(y, 6_c_size_t, MEP_FLOAT64, 0, comm), 58)
  call expect(MEP_SUCCESS, mep_reduce_scatter_in_place(y, 6_c_size_t, MEP_FLOAT64, MEP_SUM, comm), 59)
  call check(all(nint(y) == nint(x)), 60)
  call expect(MEP_SUCCESS, mep_ialltoall(x, y, 6_c_size_t, MEP_FLOAT64, comm, request), 61)
  call expect(MEP_SUCCESS, mep_request_wait(request, MEP_TIMEOUT_DEFAULT, info=info), 62)

  y = 0
  call expect(MEP_SUCCESS, mep_allgatherv(x, y, [6_c_int64_t], MEP_FLOAT64, comm), 70)
  call check(all(nint(y) == nint(x)), 71)
  y = 0
  call expect(MEP_SUCCESS, mep_gatherv(x, y, 2_c_size_t, [2_c_int64_t], MEP_FLOAT64, 0, comm, &
      displs=[3_c_int64_t]), 72)
  call check(all(nint(y) == [0, 0, 0, 1, 2, 0]), 73)
  y = 0
  call expect(MEP_SUCCESS, mep_scatterv(x, y, 2_c_size_t, [2_c_int64_t], MEP_FLOAT64, 0, comm, &
      displs=[3_c_int64_t]), 74)
  call check(all(nint(y) == [4, 5, 0, 0, 0, 0]), 75)
  y = 0
  call expect(MEP_SUCCESS, mep_reduce_scatterv(x, y, [2_c_int64_t], MEP_FLOAT64, MEP_SUM, comm), 76)
  call check(all(nint(y) == [1, 2, 0, 0, 0, 0]), 77)
  y = 0
  call expect(MEP_SUCCESS, mep_ialltoallv(x, y, [2_c_int64_t], [2_c_int64_t], MEP_FLOAT64, comm, &
      request, senddispls=[1_c_int64_t], recvdispls=[4_c_int64_t]), 78)
  call expect(MEP_SUCCESS, mep_request_wait(request, MEP_TIMEOUT_DEFAULT, info=info), 79)
  call check(all(nint(y) == [0, 0, 0, 0, 2, 3]), 80)

  y = 0
  call expect(MEP_SUCCESS, mep_iallreduce(x, y, 6_c_size_t, MEP_FLOAT64, MEP_SUM, comm, request), 17)
  call check(c_associated(request%handle), 18)
  call expect(MEP_SUCCESS, mep_request_wait(request, MEP_TIMEOUT_DEFAULT, info=info), 19)
  call check(.not. c_associated(request%handle) .and. nint(y(6)) == 6, 20)
  call expect(MEP_SUCCESS, mep_ibroadcast_in_place(y, 6_c_size_t, MEP_FLOAT64, 0, comm, request), 21)
  done = 0
  do while (done == 0)
    call expect(MEP_SUCCESS, mep_request_test(request, done), 22)
  end do

  call expect(MEP_SUCCESS, mep_mem_alloc(comm, 80_c_size_t, 0, 0_c_size_t, memory), 23)
  call c_f_pointer(memory, window, [10])
  call check(all(nint(window) == 0), 24)
  window = 1
  call expect(MEP_SUCCESS, mep_allreduce_in_place(window, 10_c_size_t, MEP_FLOAT64, MEP_SUM, comm), 25)
  call expect(MEP_SUCCESS, mep_mem_free(comm, memory), 26)

  view%capacity = 1
  view%slots = c_loc(slots)
  view%incarnations = c_loc(members)
  view%states = c_loc(states)
  call expect(MEP_SUCCESS, mep_comm_view(comm, view), 27)
  call check(view%size == 1 .and. view%live == 1 .and. states(1) == MEP_PEER_ALIVE, 28)

  call expect(MEP_SUCCESS, mep_comm_set_name(comm, "by Fortran"), 29)
  call expect(MEP_SUCCESS, mep_comm_name(comm, text), 30)
  call check(text == "by Fortran", 31)
  call expect(MEP_SUCCESS, mep_comm_device(comm, kind, device), 32)
  call check(kind == MEP_DEVICE_HOST .and. device == 0, 33)

  call expect(MEP_ERR_INVALID_ARGUMENT, mep_barrier(nobody), 34)
  call expect(MEP_SUCCESS, mep_comm_stats(comm, stats), 125)
  call check(stats%collectives > 0 .and. stats%collective_bytes >= 80 .and. stats%errors_timeout == 0, 126)
  call check(len(mep_last_error()) > 0, 35)
  call check(mep_result_string(MEP_ERR_INVALID_ARGUMENT) == "MEP_ERR_INVALID_ARGUMENT", 36)
  call expect(MEP_ERR_INVALID_ARGUMENT, mep_allgather_in_place(table, 6_c_size_t, MEP_FLOAT64, nobody), 37)
  call check(mep_dtype_size(MEP_FLOAT64) == 8, 38)

  call expect(MEP_ERR_NOT_FOUND, mep_preferred_hca("gpu:4000", text), 43)
  call check(text == "", 44)
  call expect(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca("nowhere", text), 45)
  call expect(mep_preferred_hca("cpu", text), mep_comm_preferred_hca(comm, text), 53)

  call messages_to_itself
  call expect(MEP_SUCCESS, mep_comm_destroy(comm), 39)
  call messages_of_two
  call expect(MEP_SUCCESS, mep_comm_init_all(1, comms=comms), 40)
  call expect(MEP_SUCCESS, mep_comm_destroy(comms(1)), 41)
  call mep_struct_init(config, c_sizeof(config))
  call check(config%flags == 0 .and. config%struct_size == c_sizeof(config), 42)

contains

  subroutine messages_to_itself
    type(mep_comm_info_t) :: facts
    type(mep_message_t), asynchronous :: message
    type(mep_request_t) :: requests(3)
    type(mep_comm_t) :: own
    real(c_double), asynchronous :: sent(2000), got(2000)
    integer(c_int32_t) :: found, done, place, results(3)
    integer :: i
    sent = [(real(i, c_double), i = 1, 2000)]
    got = 0
    call expect(MEP_SUCCESS, mep_send(sent, 3_c_size_t, MEP_FLOAT64, 0, 7, comm), 100)
    call expect(MEP_SUCCESS, mep_probe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, message), 101)
    call check(message%source == 0 .and. message%tag == 7 .and. message%bytes == 24, 102)
    call expect(MEP_ERR_CAPACITY, mep_recv(got, 2_c_size_t, MEP_FLOAT64, 0, 7, comm), 103)
    call expect(MEP_SUCCESS, mep_recv(got, 6_c_size_t, MEP_FLOAT64, 0, 7, comm, message), 104)
    call check(all(nint(got(1:4)) == [1, 2, 3, 0]) .and. message%dtype == MEP_FLOAT64, 105)
    call expect(MEP_SUCCESS, mep_iprobe(0, 7, comm, found), 106)
    call check(found == 0, 107)
    call expect(MEP_SUCCESS, mep_sendrecv(sent, 2000_c_size_t, 0, 1, got, 2000_c_size_t, 0, 1, &
        MEP_FLOAT64, comm), 108)
    call check(all(nint(got) == nint(sent)), 109)

    got = 0
    call expect(MEP_SUCCESS, mep_irecv(got, 1_c_size_t, MEP_FLOAT64, 0, 2, comm, requests(3), message), 110)
    call expect(MEP_SUCCESS, mep_isend(sent(9), 1_c_size_t, MEP_FLOAT64, 0, 2, comm, requests(1)), 111)
    call expect(MEP_SUCCESS, mep_request_waitall(3, requests, MEP_TIMEOUT_DEFAULT, results=results), 112)
    call check(all(results == MEP_SUCCESS) .and. nint(got(1)) == 9 .and. message%tag == 2, 113)
    call expect(MEP_SUCCESS, mep_irecv(got, 1_c_size_t, MEP_FLOAT64, 0, 3, comm, requests(1)), 114)
    call expect(MEP_SUCCESS, mep_irecv(got(2), 1_c_size_t, MEP_FLOAT64, 0, 4, comm, requests(2)), 115)
    call expect(MEP_SUCCESS, mep_send(sent(5), 1_c_size_t, MEP_FLOAT64, 0, 4, comm), 116)
    call expect(MEP_SUCCESS, mep_request_waitany(3, requests, MEP_TIMEOUT_DEFAULT, index=place, info=info), 117)
    call check(place == 2 .and. info%result == MEP_SUCCESS .and. nint(got(2)) == 5, 118)
    call expect(MEP_SUCCESS, mep_request_waitany(3, requests, 1, done, place), 119)
    call check(done == 0 .and. place == 0 .and. c_associated(requests(1)%handle), 120)
    call expect(MEP_SUCCESS, mep_request_cancel(requests(1), done), 121)
    call check(done == 1 .and. .not. c_associated(requests(1)%handle), 122)
    call expect(MEP_SUCCESS, mep_request_waitany(3, requests, MEP_TIMEOUT_DEFAULT, index=place), 123)
    call check(place == 0, 124)

    got = 0
    call expect(MEP_SUCCESS, mep_group_begin(), 125)
    call expect(MEP_SUCCESS, mep_send(sent, 2000_c_size_t, MEP_FLOAT64, 0, 5, comm), 126)
    call expect(MEP_SUCCESS, mep_recv(got, 2000_c_size_t, MEP_FLOAT64, 0, 5, comm, message), 127)
    call expect(MEP_SUCCESS, mep_group_end(), 128)
    call check(all(nint(got) == nint(sent)) .and. message%bytes == 16000, 129)
    call expect(MEP_ERR_INVALID_ARGUMENT, mep_group_end(), 130)

    call expect(MEP_SUCCESS, mep_comm_dup(comm, own), 131)
    call expect(MEP_SUCCESS, mep_send(sent, 1_c_size_t, MEP_FLOAT64, 0, 6, comm), 132)
    call expect(MEP_SUCCESS, mep_iprobe(MEP_ANY_SOURCE, MEP_ANY_TAG, own, found, message), 133)
    call check(found == 0, 134)
    call expect(MEP_SUCCESS, mep_recv(got, 1_c_size_t, MEP_FLOAT64, 0, 6, comm), 135)
    call expect(MEP_SUCCESS, mep_comm_destroy(own), 136)
    call expect(MEP_SUCCESS, mep_comm_shrink(comm, own), 138)
    call expect(MEP_SUCCESS, mep_comm_destroy(own), 139)
    call expect(MEP_SUCCESS, mep_comm_query(comm, facts), 147)
    call check(facts%size == 1 .and. facts%device_type == MEP_DEVICE_HOST .and. facts%device == 0 .and. &
        facts%message_eager_bytes == 8144, 148)
    call expect(MEP_SUCCESS, mep_set_log_callback(c_null_funptr, c_null_ptr), 140)
    call mep_struct_init(message, c_sizeof(message))
    call check(message%struct_size == 32 .and. message%bytes == 0, 137)
  end subroutine messages_to_itself

  ! One thread plays both ranks: it sends what needs no receiver, and receives what has come.
  subroutine messages_of_two
    type(mep_comm_t) :: pair(2)
    type(mep_message_t) :: message
    integer(c_int64_t), asynchronous :: table(2, 3), copy(2, 3)
    integer :: i
    table = reshape([(int(i, c_int64_t), i = 1, 6)], [2, 3])
    copy = 0
    call expect(MEP_SUCCESS, mep_comm_init_all(2, comms=pair), 140)
    call expect(MEP_SUCCESS, mep_send(table, 6_c_size_t, MEP_INT64, 1, 9, pair(1)), 141)
    call expect(MEP_SUCCESS, mep_recv(copy, 6_c_size_t, MEP_INT64, MEP_ANY_SOURCE, MEP_ANY_TAG, pair(2), &
        message), 142)
    call check(all(copy == table) .and. message%source == 0 .and. message%tag == 9, 143)
    call expect(MEP_SUCCESS, mep_send(copy(2, 3), 1_c_size_t, MEP_INT64, 0, 8, pair(2)), 144)
    call expect(MEP_SUCCESS, mep_recv(table, 6_c_size_t, MEP_INT64, 1, 8, pair(1)), 145)
    call check(table(1, 1) == 6 .and. table(2, 1) == 2, 146)
    do i = 1, 2
      call expect(MEP_SUCCESS, mep_comm_destroy(pair(i)), 147)
    end do
  end subroutine messages_of_two

  subroutine expect(code, result, step)
    integer(c_int32_t), intent(in) :: code, result
    integer, intent(in) :: step
    if (result == code) return
    print "(a,i0,6a)", "step ", step, ": ", mep_result_string(result), ", expected ", &
        mep_result_string(code), "; ", mep_last_error()
    error stop 1
  end subroutine expect

  subroutine check(right, step)
    logical, intent(in) :: right
    integer, intent(in) :: step
    if (right) return
    print "(a,i0,a)", "step ", step, ": wrong value"
    error stop 1
  end subroutine check
end program fortran_calls_test
