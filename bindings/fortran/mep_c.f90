! The functions of mep.h as they are, for Fortran; programs `use mep`. Functions with untyped buffers,
! strings or a stream appear here under a name c_*, and module mep gives them their Fortran form.
module mep_c
  use, intrinsic :: iso_c_binding
  use mep_types
  implicit none

  abstract interface
    ! For mep_comm_set_view_callback: pass c_funloc of a procedure of this form.
    subroutine mep_view_callback(user, world_epoch, live) bind(C)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: user
      integer(c_int64_t), value :: world_epoch
      integer(c_int32_t), value :: live
    end subroutine mep_view_callback

    ! For mep_set_log_callback, likewise; line ends with a c_null_char.
    subroutine mep_log_callback(user, level, line) bind(C)
      import :: c_ptr, c_char, c_int32_t
      type(c_ptr), value :: user
      integer(c_int32_t), value :: level
      character(kind=c_char), intent(in) :: line(*)
    end subroutine mep_log_callback
  end interface

  interface
    ! ---- version, types -----------------------------------------------------------------------
    integer(c_int32_t) function mep_version() bind(C)
      import :: c_int32_t
    end function mep_version

    integer(c_size_t) function mep_dtype_size(dtype) bind(C)
      import :: c_int32_t, c_size_t
      integer(c_int32_t), value :: dtype
    end function mep_dtype_size

    ! A declared structure needs it only to be set back: mep_struct_init(x, c_sizeof(x)).
    subroutine mep_struct_init(x, size) bind(C)
      import :: c_size_t
      type(*), intent(inout) :: x
      integer(c_size_t), value :: size
    end subroutine mep_struct_init

    ! ---- communicators --------------------------------------------------------------------------
    ! Without config: call mep_comm_init(comm=comm).
    integer(c_int32_t) function mep_comm_init(config, comm) bind(C)
      import :: c_int32_t, mep_comm_config_t, mep_comm_t
      type(mep_comm_config_t), intent(in), optional :: config
      type(mep_comm_t), intent(out) :: comm
    end function mep_comm_init

    integer(c_int32_t) function mep_comm_init_all(count, config, comms) bind(C)
      import :: c_int32_t, mep_comm_config_t, mep_comm_t
      integer(c_int32_t), value :: count
      type(mep_comm_config_t), intent(in), optional :: config
      type(mep_comm_t), intent(inout) :: comms(*)
    end function mep_comm_init_all

    integer(c_int32_t) function mep_comm_destroy(comm) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
    end function mep_comm_destroy

    integer(c_int32_t) function mep_comm_rank(comm, rank) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), intent(out) :: rank
    end function mep_comm_rank

    integer(c_int32_t) function mep_comm_size(comm, size) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), intent(out) :: size
    end function mep_comm_size

    integer(c_int32_t) function mep_comm_live_count(comm, live) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), intent(out) :: live
    end function mep_comm_live_count

    integer(c_int32_t) function mep_comm_epoch(comm, epoch) bind(C)
      import :: c_int32_t, c_int64_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int64_t), intent(out) :: epoch
    end function mep_comm_epoch

    integer(c_int32_t) function mep_comm_device(comm, type, device) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), optional, intent(out) :: type
      integer(c_int32_t), optional, intent(out) :: device
    end function mep_comm_device

    integer(c_int32_t) function mep_comm_set_timeout(comm, timeout_ms) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), value :: timeout_ms
    end function mep_comm_set_timeout

    ! Use c_f_pointer to give the memory a type and shape.
    integer(c_int32_t) function mep_mem_alloc(comm, bytes, flags, alignment, memory) bind(C)
      import :: c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_size_t), value :: bytes
      integer(c_int32_t), value :: flags
      integer(c_size_t), value :: alignment
      type(c_ptr), intent(out) :: memory
    end function mep_mem_alloc

    integer(c_int32_t) function mep_mem_free(comm, memory) bind(C)
      import :: c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: memory
    end function mep_mem_free

    integer(c_int32_t) function mep_comm_register(comm, memory, bytes, registration) bind(C)
      import :: c_int32_t, c_int64_t, c_ptr, c_size_t, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: memory
      integer(c_size_t), value :: bytes
      integer(c_int64_t), intent(out) :: registration
    end function mep_comm_register

    integer(c_int32_t) function mep_comm_deregister(comm, registration) bind(C)
      import :: c_int32_t, c_int64_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int64_t), value :: registration
    end function mep_comm_deregister

    integer(c_int32_t) function mep_mem_free_keep(comm, memory, kept) bind(C)
      import :: c_int32_t, c_ptr, mep_comm_t, mep_memory_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: memory
      type(mep_memory_t), intent(out) :: kept
    end function mep_mem_free_keep

    integer(c_int32_t) function mep_memory_release(kept) bind(C)
      import :: c_int32_t, mep_memory_t
      type(mep_memory_t), value :: kept
    end function mep_memory_release

    integer(c_int32_t) function mep_comm_last_op(comm, info) bind(C)
      import :: c_int32_t, mep_comm_t, mep_op_info_t
      type(mep_comm_t), value :: comm
      type(mep_op_info_t), intent(inout) :: info
    end function mep_comm_last_op

    integer(c_int32_t) function mep_comm_async_result(comm) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
    end function mep_comm_async_result

    integer(c_int32_t) function mep_comm_stats(comm, stats) bind(C)
      import :: c_int32_t, mep_comm_t, mep_comm_stats_t
      type(mep_comm_t), value :: comm
      type(mep_comm_stats_t), intent(inout) :: stats
    end function mep_comm_stats

    ! ---- requests -------------------------------------------------------------------------------
    integer(c_int32_t) function mep_request_wait(request, timeout_ms, done, info) bind(C)
      import :: c_int32_t, mep_request_t, mep_op_info_t
      type(mep_request_t), intent(inout) :: request
      integer(c_int32_t), value :: timeout_ms
      integer(c_int32_t), intent(out), optional :: done
      type(mep_op_info_t), intent(inout), optional :: info
    end function mep_request_wait

    integer(c_int32_t) function mep_request_test(request, done, info) bind(C)
      import :: c_int32_t, mep_request_t, mep_op_info_t
      type(mep_request_t), intent(inout) :: request
      integer(c_int32_t), intent(out) :: done
      type(mep_op_info_t), intent(inout), optional :: info
    end function mep_request_test

    integer(c_int32_t) function mep_request_info(request, info) bind(C)
      import :: c_int32_t, mep_request_t, mep_op_info_t
      type(mep_request_t), value :: request
      type(mep_op_info_t), intent(inout) :: info
    end function mep_request_info

    integer(c_int32_t) function mep_request_event_fd(request, fd) bind(C)
      import :: c_int32_t, mep_request_t
      type(mep_request_t), value :: request
      integer(c_int32_t), intent(out) :: fd
    end function mep_request_event_fd

    integer(c_int32_t) function mep_request_cancel(request, cancelled) bind(C)
      import :: c_int32_t, mep_request_t
      type(mep_request_t), intent(inout) :: request
      integer(c_int32_t), intent(out) :: cancelled
    end function mep_request_cancel

    integer(c_int32_t) function mep_request_waitall(count, requests, timeout_ms, done, results) bind(C)
      import :: c_int32_t, mep_request_t
      integer(c_int32_t), value :: count, timeout_ms
      type(mep_request_t), intent(inout) :: requests(*)
      integer(c_int32_t), intent(out), optional :: done
      integer(c_int32_t), intent(inout), optional :: results(*)
    end function mep_request_waitall

    ! ---- messages: those with buffers stand in module mep_messages --------------------------------
    integer(c_int32_t) function mep_probe(source, tag, comm, message) bind(C)
      import :: c_int32_t, mep_comm_t, mep_message_t
      integer(c_int32_t), value :: source, tag
      type(mep_comm_t), value :: comm
      type(mep_message_t), intent(inout), optional :: message
    end function mep_probe

    integer(c_int32_t) function mep_iprobe(source, tag, comm, found, message) bind(C)
      import :: c_int32_t, mep_comm_t, mep_message_t
      integer(c_int32_t), value :: source, tag
      type(mep_comm_t), value :: comm
      integer(c_int32_t), intent(out) :: found
      type(mep_message_t), intent(inout), optional :: message
    end function mep_iprobe

    integer(c_int32_t) function mep_group_begin() bind(C)
      import :: c_int32_t
    end function mep_group_begin

    integer(c_int32_t) function mep_group_end() bind(C)
      import :: c_int32_t
    end function mep_group_end

    ! ---- membership -----------------------------------------------------------------------------
    integer(c_int32_t) function mep_comm_peer_state(comm, rank, state) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), value :: rank
      integer(c_int32_t), intent(out) :: state
    end function mep_comm_peer_state

    integer(c_int32_t) function mep_comm_view(comm, view) bind(C)
      import :: c_int32_t, mep_comm_t, mep_view_t
      type(mep_comm_t), value :: comm
      type(mep_view_t), intent(inout) :: view
    end function mep_comm_view

    integer(c_int32_t) function mep_comm_lost_ranks(comm, lost, stream) bind(C)
      import :: c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: lost
      type(c_ptr), value :: stream
    end function mep_comm_lost_ranks

    integer(c_int32_t) function mep_comm_forget_lost(comm, stream) bind(C)
      import :: c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: stream
    end function mep_comm_forget_lost

    integer(c_int32_t) function mep_comm_query(comm, info) bind(C)
      import :: c_int32_t, mep_comm_t, mep_comm_info_t
      type(mep_comm_t), value :: comm
      type(mep_comm_info_t), intent(inout) :: info
    end function mep_comm_query

    integer(c_int32_t) function mep_comm_wait_view(comm, epoch, timeout_ms) bind(C)
      import :: c_int32_t, c_int64_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int64_t), value :: epoch
      integer(c_int32_t), value :: timeout_ms
    end function mep_comm_wait_view

    integer(c_int32_t) function mep_comm_set_view_callback(comm, callback, user) bind(C)
      import :: c_funptr, c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_funptr), value :: callback
      type(c_ptr), value :: user
    end function mep_comm_set_view_callback

    integer(c_int32_t) function mep_comm_split(comm, color, key, child) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), value :: color, key
      type(mep_comm_t), intent(out) :: child
    end function mep_comm_split

    integer(c_int32_t) function mep_comm_dup(comm, duplicate) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      type(mep_comm_t), intent(out) :: duplicate
    end function mep_comm_dup

    integer(c_int32_t) function mep_comm_shrink(comm, child) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      type(mep_comm_t), intent(out) :: child
    end function mep_comm_shrink

    integer(c_int32_t) function mep_comm_create_from_ranks(comm, ranks, count, name, child) bind(C)
      import :: c_int32_t, c_char, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), intent(in) :: ranks(*)
      integer(c_int32_t), value :: count
      character(kind=c_char), intent(in) :: name(*)
      type(mep_comm_t), intent(out) :: child
    end function mep_comm_create_from_ranks

    integer(c_int32_t) function mep_comm_agree(comm, flag, result) bind(C)
      import :: c_int32_t, c_int64_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int64_t), value :: flag
      integer(c_int64_t), intent(out) :: result
    end function mep_comm_agree

    integer(c_int32_t) function mep_recover_ranks(world, ranks, count, timeout_ms, admitted) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: world
      integer(c_int32_t), intent(in), optional :: ranks(*)
      integer(c_int32_t), value :: count, timeout_ms
      integer(c_int32_t), intent(out) :: admitted
    end function mep_recover_ranks

    integer(c_int32_t) function mep_comm_grow(world, count, timeout_ms, grown) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: world
      integer(c_int32_t), value :: count, timeout_ms
      type(mep_comm_t), intent(out) :: grown
    end function mep_comm_grow

    integer(c_int32_t) function mep_comm_join(config, comm) bind(C)
      import :: c_int32_t, mep_comm_config_t, mep_comm_t
      type(mep_comm_config_t), intent(in), optional :: config
      type(mep_comm_t), intent(out) :: comm
    end function mep_comm_join

    integer(c_int32_t) function mep_comm_evict(comm, rank) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      integer(c_int32_t), value :: rank
    end function mep_comm_evict

    integer(c_int32_t) function mep_comm_revoke(comm) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
    end function mep_comm_revoke

    integer(c_int32_t) function mep_comm_abort(comm) bind(C)
      import :: c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
    end function mep_comm_abort

    ! ---- expert parallelism -----------------------------------------------------------------------
    integer(c_int32_t) function mep_ep_buffer_size(comm, config, size_info) bind(C)
      import :: c_int32_t, mep_comm_t, mep_ep_config_t, mep_ep_size_t
      type(mep_comm_t), value :: comm
      type(mep_ep_config_t), intent(in) :: config
      type(mep_ep_size_t), intent(inout) :: size_info
    end function mep_ep_buffer_size

    integer(c_int32_t) function mep_ep_create(comm, config, ep) bind(C)
      import :: c_int32_t, mep_comm_t, mep_ep_config_t, mep_ep_t
      type(mep_comm_t), value :: comm
      type(mep_ep_config_t), intent(in) :: config
      type(mep_ep_t), intent(out) :: ep
    end function mep_ep_create

    integer(c_int32_t) function mep_ep_destroy(ep) bind(C)
      import :: c_int32_t, mep_ep_t
      type(mep_ep_t), value :: ep
    end function mep_ep_destroy

    integer(c_int32_t) function mep_ep_destroy_keep(ep, kept) bind(C)
      import :: c_int32_t, mep_ep_t, mep_memory_t
      type(mep_ep_t), value :: ep
      type(mep_memory_t), intent(out) :: kept
    end function mep_ep_destroy_keep

    integer(c_int32_t) function mep_ep_attach(comm, config, ep) bind(C)
      import :: c_int32_t, mep_comm_t, mep_ep_config_t, mep_ep_t
      type(mep_comm_t), value :: comm
      type(mep_ep_config_t), intent(in) :: config
      type(mep_ep_t), intent(out) :: ep
    end function mep_ep_attach

    integer(c_int32_t) function mep_ep_handle_create(ep, buffer, handle) bind(C)
      import :: c_int32_t, mep_ep_t, mep_ep_handle_t
      type(mep_ep_t), value :: ep
      integer(c_int32_t), value :: buffer
      type(mep_ep_handle_t), intent(out) :: handle
    end function mep_ep_handle_create

    integer(c_int32_t) function mep_ep_handle_destroy(handle) bind(C)
      import :: c_int32_t, mep_ep_handle_t
      type(mep_ep_handle_t), value :: handle
    end function mep_ep_handle_destroy

    ! Without map: back to physical ids.
    integer(c_int32_t) function mep_ep_set_expert_map(ep, map) bind(C)
      import :: c_int32_t, mep_ep_t
      type(mep_ep_t), value :: ep
      integer(c_int32_t), intent(in), optional :: map(*)
    end function mep_ep_set_expert_map

    integer(c_int32_t) function mep_ep_buffer_view(ep, buffer, view) bind(C)
      import :: c_int32_t, mep_ep_t, mep_ep_view_t
      type(mep_ep_t), value :: ep
      integer(c_int32_t), value :: buffer
      type(mep_ep_view_t), intent(inout) :: view
    end function mep_ep_buffer_view

    integer(c_int32_t) function mep_set_log_callback(callback, user) bind(C)
      import :: c_funptr, c_int32_t, c_ptr
      type(c_funptr), value :: callback
      type(c_ptr), value :: user
    end function mep_set_log_callback

    subroutine mep_log_to_descriptor(user, level, line) bind(C)
      import :: c_ptr, c_char, c_int32_t
      type(c_ptr), value :: user
      integer(c_int32_t), value :: level
      character(kind=c_char), intent(in) :: line(*)
    end subroutine mep_log_to_descriptor

    integer(c_int32_t) function mep_ep_last_op(ep, buffer, info) bind(C)
      import :: c_int32_t, mep_ep_t, mep_op_info_t
      type(mep_ep_t), value :: ep
      integer(c_int32_t), value :: buffer
      type(mep_op_info_t), intent(inout) :: info
    end function mep_ep_last_op
  end interface

  ! The C functions behind the procedures of module mep.
  interface
    type(c_ptr) function c_result_string(code) bind(C, name="mep_result_string")
      import :: c_int32_t, c_ptr
      integer(c_int32_t), value :: code
    end function c_result_string
    type(c_ptr) function c_last_error() bind(C, name="mep_last_error")
      import :: c_ptr
    end function c_last_error
    integer(c_int32_t) function c_comm_name(comm, name) bind(C, name="mep_comm_name")
      import :: c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), intent(out) :: name
    end function c_comm_name
    integer(c_int32_t) function c_comm_abort_with(comm, text) bind(C, name="mep_comm_abort_with")
      import :: c_char, c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      character(kind=c_char), intent(in) :: text(*)
    end function c_comm_abort_with
    integer(c_int32_t) function c_comm_set_name(comm, name) bind(C, name="mep_comm_set_name")
      import :: c_char, c_int32_t, mep_comm_t
      type(mep_comm_t), value :: comm
      character(kind=c_char), intent(in) :: name(*)
    end function c_comm_set_name
    integer(c_int32_t) function c_comm_attach(world, name, comm) bind(C, name="mep_comm_attach")
      import :: c_char, c_int32_t, mep_comm_t
      type(mep_comm_t), value :: world
      character(kind=c_char), intent(in) :: name(*)
      type(mep_comm_t), intent(out) :: comm
    end function c_comm_attach
    integer(c_int32_t) function c_preferred_hca(location, name, capacity) &
        bind(C, name="mep_preferred_hca")
      import :: c_char, c_int32_t, c_size_t
      character(kind=c_char), intent(in) :: location(*)
      character(kind=c_char), intent(inout) :: name(*)
      integer(c_size_t), value :: capacity
    end function c_preferred_hca

    integer(c_int32_t) function c_comm_preferred_hca(comm, location, name, capacity) &
        bind(C, name="mep_comm_preferred_hca")
      import :: c_char, c_int32_t, c_ptr, c_size_t, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: location
      character(kind=c_char), intent(inout) :: name(*)
      integer(c_size_t), value :: capacity
    end function c_comm_preferred_hca
    integer(c_int32_t) function c_request_waitany(count, requests, timeout_ms, done, index, info) &
        bind(C, name="mep_request_waitany")
      import :: c_int32_t, mep_request_t, mep_op_info_t
      integer(c_int32_t), value :: count, timeout_ms
      type(mep_request_t), intent(inout) :: requests(*)
      integer(c_int32_t), intent(out), optional :: done
      integer(c_int32_t), intent(inout) :: index
      type(mep_op_info_t), intent(inout), optional :: info
    end function c_request_waitany
    integer(c_int32_t) function c_dispatch_layout(comm, topk_idx, topk_idx_type, num_tokens, top_k, &
        num_experts, tokens_per_rank, tokens_per_expert, is_token_in_rank, stream) &
        bind(C, name="mep_dispatch_layout")
      import :: c_int32_t, c_ptr, mep_comm_t
      type(mep_comm_t), value :: comm
      type(c_ptr), value :: topk_idx
      integer(c_int32_t), value :: topk_idx_type, num_tokens, top_k, num_experts
      type(c_ptr), value :: tokens_per_rank, tokens_per_expert, is_token_in_rank, stream
    end function c_dispatch_layout
    integer(c_int32_t) function c_dispatch(handle, x, topk_idx, topk_weights, num_tokens, view, options, &
        stream) bind(C, name="mep_dispatch")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_ep_view_t, mep_dispatch_options_t
      type(mep_ep_handle_t), value :: handle
      type(c_ptr), value :: x, topk_idx, topk_weights
      integer(c_int32_t), value :: num_tokens
      type(mep_ep_view_t), intent(inout), optional :: view
      type(mep_dispatch_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_dispatch
    integer(c_int32_t) function c_dispatch_send(handle, x, topk_idx, topk_weights, num_tokens, options, stream) &
        bind(C, name="mep_dispatch_send")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_dispatch_options_t
      type(mep_ep_handle_t), value :: handle
      type(c_ptr), value :: x, topk_idx, topk_weights
      integer(c_int32_t), value :: num_tokens
      type(mep_dispatch_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_dispatch_send
    integer(c_int32_t) function c_dispatch_counts(handle, x, topk_idx, topk_weights, num_tokens, options, stream) &
        bind(C, name="mep_dispatch_counts")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_dispatch_options_t
      type(mep_ep_handle_t), value :: handle
      type(c_ptr), value :: x, topk_idx, topk_weights
      integer(c_int32_t), value :: num_tokens
      type(mep_dispatch_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_dispatch_counts
    integer(c_int32_t) function c_dispatch_receive(handle, view, options, stream) &
        bind(C, name="mep_dispatch_receive")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_ep_view_t, mep_dispatch_options_t
      type(mep_ep_handle_t), value :: handle
      type(mep_ep_view_t), intent(inout), optional :: view
      type(mep_dispatch_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_dispatch_receive
    integer(c_int32_t) function c_combine(handle, y, out, options, stream) bind(C, name="mep_combine")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_combine_options_t
      type(mep_ep_handle_t), value :: handle
      type(c_ptr), value :: y, out
      type(mep_combine_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_combine
    integer(c_int32_t) function c_combine_send(handle, y, options, stream) bind(C, name="mep_combine_send")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_combine_options_t
      type(mep_ep_handle_t), value :: handle
      type(c_ptr), value :: y
      type(mep_combine_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_combine_send
    integer(c_int32_t) function c_combine_receive(handle, out, options, stream) &
        bind(C, name="mep_combine_receive")
      import :: c_int32_t, c_ptr, mep_ep_handle_t, mep_combine_options_t
      type(mep_ep_handle_t), value :: handle
      type(c_ptr), value :: out
      type(mep_combine_options_t), intent(in), optional :: options
      type(c_ptr), value :: stream
    end function c_combine_receive
  end interface
end module mep_c
