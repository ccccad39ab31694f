! One MoE layer: tokens go to their experts and come back combined. Expert e multiplies by e + 1.
! Fortran's first index is C's last: x(hidden, tokens) is the C array [tokens, hidden].
!
!   mep_run -n 4 ./moe_f90           (or mpirun -n 4 ./moe_f90, or ./moe_f90 alone)
program moe
  use mep
  implicit none
  integer, parameter :: tokens = 32, hidden = 64, top_k = 2, experts_per_rank = 2
  type(mep_comm_t) :: comm
  type(mep_ep_config_t) :: config
  type(mep_ep_t) :: ep
  type(mep_ep_handle_t) :: handle
  type(mep_ep_view_t) :: view
  type(mep_dispatch_options_t) :: options
  integer(c_int32_t) :: rank, size
  integer(c_int32_t), pointer :: received(:)
  integer(c_int32_t), target :: experts(top_k, tokens)
  real(c_float), target :: x(hidden, tokens), out(hidden, tokens), weights(top_k, tokens)
  real(c_float), pointer :: rows(:, :, :), y(:, :, :)
  integer :: t, e, n, num_experts
  logical :: right
  character(len=100) :: line

  call must(mep_comm_init(comm=comm), "mep_comm_init")
  call must(mep_comm_rank(comm, rank), "mep_comm_rank")
  call must(mep_comm_size(comm, size), "mep_comm_size")
  num_experts = experts_per_rank * size

  do t = 1, tokens  ! what a router would give
    experts(1, t) = mod(rank + t, num_experts)
    experts(2, t) = mod(experts(1, t) + 1 + mod(t, num_experts - 1), num_experts)
    x(:, t) = [(real(rank + 1) + real(t + n) / 8, n = 1, hidden)]
  end do
  weights(1, :) = 0.75
  weights(2, :) = 0.25

  config%max_tokens_per_rank = tokens
  config%hidden = hidden
  config%top_k = top_k
  config%num_experts = num_experts
  config%input_type = MEP_FLOAT32
  call must(mep_ep_create(comm, config, ep), "mep_ep_create")
  call must(mep_ep_handle_create(ep, 0_c_int32_t, handle), "mep_ep_handle_create")

  options%topk_idx_type = MEP_INT32
  call must(mep_dispatch(handle, c_loc(x), c_loc(experts), c_loc(weights), tokens, view, options), "mep_dispatch")
  call c_f_pointer(view%recv_x, rows, [hidden, size * tokens, experts_per_rank])
  call c_f_pointer(view%combine_input, y, [hidden, size * tokens, experts_per_rank])
  call c_f_pointer(view%recv_count, received, [experts_per_rank])

  do e = 1, experts_per_rank
    n = received(e)
    y(:, :n, e) = rows(:, :n, e) * real(rank * experts_per_rank + e)
  end do
  n = sum(received)
  call must(mep_combine(handle, view%combine_input, c_loc(out)), "mep_combine")

  right = .true.
  do t = 1, tokens
    associate (factor => 0.75 * (experts(1, t) + 1) + 0.25 * (experts(2, t) + 1))
      right = right .and. all(abs(out(:, t) - factor * x(:, t)) <= 1e-5 * abs(out(:, t)))
    end associate
  end do
  write (line, "(a,i0,a,i0,a,i0,2a)") "rank ", rank, " of ", size, ": ", n, &
      " rows came to its experts, the combined tokens are ", merge("right", "WRONG", right)
  print "(a)", trim(line)

  call must(mep_ep_handle_destroy(handle), "mep_ep_handle_destroy")
  call must(mep_ep_destroy(ep), "mep_ep_destroy")
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
end program moe
