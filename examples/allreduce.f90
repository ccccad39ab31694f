! The sum of a vector over all ranks, blocking and nonblocking.
!
!   mep_run -n 4 ./allreduce_f90     (or mpirun -n 4 ./allreduce_f90, or ./allreduce_f90 alone)
program allreduce
  use mep
  implicit none
  integer, parameter :: count = 1000
  type(mep_comm_t) :: comm
  type(mep_request_t) :: request
  integer(c_int32_t) :: rank, size
  integer :: i
  real(c_double) :: mine(count), total(count)
  real(c_double), asynchronous :: largest(count)
  logical :: right
  character(len=80) :: line

  call must(mep_comm_init(comm=comm), "mep_comm_init")
  call must(mep_comm_rank(comm, rank), "mep_comm_rank")
  call must(mep_comm_size(comm, size), "mep_comm_size")

  mine = [(real(rank + i, c_double), i = 1, count)]
  largest = mine
  ! In place and nonblocking: `largest` belongs to the request until the wait returns.
  call must(mep_iallreduce_in_place(largest, int(count, c_size_t), MEP_FLOAT64, MEP_MAX, comm, &
                                    request), "mep_iallreduce")
  call must(mep_request_wait(request, MEP_TIMEOUT_DEFAULT), "mep_request_wait")
  call must(mep_allreduce(mine, total, int(count, c_size_t), MEP_FLOAT64, MEP_SUM, comm), &
            "mep_allreduce")

  right = .true.
  do i = 1, count
    right = right .and. nint(total(i)) == i * size + size * (size - 1) / 2 &
                  .and. nint(largest(i)) == i + size - 1
  end do
  write (line, "(a,i0,a,i0,a,f0.1,a)") "rank ", rank, " of ", size, ": total(1) = ", total(1), &
      merge(", right", ", WRONG", right)
  print "(a)", trim(line)
  call must(mep_comm_destroy(comm), "mep_comm_destroy")
  if (.not. right) error stop 1

contains

  subroutine must(code, what)
    integer(c_int32_t), intent(in) :: code
    character(len=*), intent(in) :: what
    if (code >= 0) return
    print "(5a)", what, ": ", mep_result_string(code), ": ", mep_last_error()
    error stop 1
  end subroutine must
end program allreduce
