! A rank of a Fortran job: fortran_join_ranks member | joiner | grown. join_job.py says what happens to it.
module join_ranks_views
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int32_t), volatile :: told_live = -1
contains
  subroutine note_view(user, world_epoch, live) bind(C)
    type(c_ptr), value :: user
    integer(c_int64_t), value :: world_epoch
    integer(c_int32_t), value :: live
    if (world_epoch > 1 .and. .not. c_associated(user)) told_live = live
  end subroutine note_view
end module join_ranks_views

program fortran_join_ranks
  use, intrinsic :: iso_fortran_env, only: output_unit
  use mep
  use join_ranks_views
  implicit none
  interface
    integer(c_int) function c_pause() bind(C, name="pause")
      import :: c_int
    end function c_pause
  end interface
  integer(c_int32_t), parameter :: patience = 100000
  character(len=16) :: role
  type(mep_comm_config_t) :: config
  type(mep_comm_t) :: world, grown, none
  integer(c_int32_t) :: rank, live, admitted, state, result

  call get_command_argument(1, role)
  config%timeout_ms = patience
  config%init_timeout_ms = patience
  if (role == "member") then
    config%max_size = 4
    call expect(MEP_SUCCESS, mep_comm_init(config, world), 1)
    call survive()
  else
    config%flags = MEP_COMM_SET_RANK
    config%rank = merge(1, 3, role == "joiner")
    call expect(MEP_SUCCESS, mep_comm_join(config, world), 2)
  end if
  if (role == "grown") then
    call expect_total(world, 1111, 3)
  else
    call expect_total(world, 111, 4)
    call expect(MEP_SUCCESS, mep_comm_grow(world, 1, patience, grown), 5)
    call expect_total(grown, 1111, 6)
    call expect_total(world, 111, 7)
    call expect(MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(grown, 1, 1, none), 8)
    call expect(MEP_SUCCESS, mep_comm_destroy(grown), 9)
  end if
  call expect(MEP_SUCCESS, mep_comm_destroy(world), 10)

contains
  subroutine expect(wanted, found, place)
    integer(c_int32_t), intent(in) :: wanted, found
    integer, intent(in) :: place
    if (wanted == found) return
    print *, trim(role), ": at ", place, ": ", found, " instead of ", wanted
    error stop 1
  end subroutine expect

  subroutine expect_total(comm, wanted, place)
    type(mep_comm_t), intent(in) :: comm
    integer, intent(in) :: wanted, place
    integer(c_int64_t) :: value
    call expect(MEP_SUCCESS, mep_comm_rank(comm, rank), place)
    value = 10_c_int64_t**rank
    call expect(MEP_SUCCESS, mep_allreduce_in_place(value, 1_c_size_t, MEP_INT64, MEP_SUM, comm), place)
    call expect(int(wanted, c_int32_t), int(value, c_int32_t), place)
  end subroutine expect_total

  subroutine survive()
    integer(c_int32_t) :: wanted(1)
    call expect(MEP_SUCCESS, &
                mep_comm_set_view_callback(world, c_funloc(note_view), c_null_ptr), 20)
    call expect(MEP_SUCCESS, mep_barrier(world), 21)
    call expect(MEP_SUCCESS, mep_comm_rank(world, rank), 22)
    print *, "all are there"
    flush (output_unit)
    if (rank == 1) then
      if (c_pause() /= 0) error stop 2  ! join_job.py kills it
    end if
    call expect(MEP_SUCCESS, mep_comm_wait_view(world, 1_c_int64_t, patience), 23)
    call expect(MEP_SUCCESS, mep_comm_live_count(world, live), 24)
    call expect(2_c_int32_t, live, 25)
    call expect(MEP_SUCCESS, mep_comm_peer_state(world, 1, state), 26)
    call expect(MEP_PEER_DEAD, state, 27)
    do while (told_live < 0)
    end do
    call expect(2_c_int32_t, told_live, 28)
    call expect(MEP_ERR_PEER_FAILED, mep_barrier(world), 29)
    wanted = 1
    result = mep_recover_ranks(world, wanted, 1, patience, admitted)
    call expect(MEP_SUCCESS, result, 30)
    call expect(1_c_int32_t, admitted, 31)
    call expect(MEP_SUCCESS, mep_comm_set_view_callback(world, c_null_funptr, c_null_ptr), 32)
  end subroutine survive
end program fortran_join_ranks
