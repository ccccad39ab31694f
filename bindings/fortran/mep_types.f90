! Constants, handles and structures of mep.h for Fortran; programs `use mep`. The structures have C's
! layout and their defaults are those of mep_X_defaults(); tests compare them with C.
module mep_types
  use, intrinsic :: iso_c_binding, only: c_funptr, c_int32_t, c_int64_t, c_null_funptr, &
      c_null_ptr, c_ptr
  implicit none
  private

  integer(c_int32_t), parameter, public :: MEP_VERSION_MAJOR = 0
  integer(c_int32_t), parameter, public :: MEP_VERSION_MINOR = 4
  integer(c_int32_t), parameter, public :: MEP_VERSION_PATCH = 0

  integer(c_int32_t), parameter, public :: MEP_SUCCESS = 0
  integer(c_int32_t), parameter, public :: MEP_PARTIAL = 1
  integer(c_int32_t), parameter, public :: MEP_IN_PROGRESS = 2
  integer(c_int32_t), parameter, public :: MEP_ERR_INVALID_ARGUMENT = -1
  integer(c_int32_t), parameter, public :: MEP_ERR_UNSUPPORTED = -2
  integer(c_int32_t), parameter, public :: MEP_ERR_NO_MEMORY = -3
  integer(c_int32_t), parameter, public :: MEP_ERR_SYSTEM = -4
  integer(c_int32_t), parameter, public :: MEP_ERR_INTERNAL = -5
  integer(c_int32_t), parameter, public :: MEP_ERR_TIMEOUT = -6
  integer(c_int32_t), parameter, public :: MEP_ERR_PEER_FAILED = -7
  integer(c_int32_t), parameter, public :: MEP_ERR_PEER_LEFT = -8
  integer(c_int32_t), parameter, public :: MEP_ERR_NO_QUORUM = -9
  integer(c_int32_t), parameter, public :: MEP_ERR_EVICTED = -10
  integer(c_int32_t), parameter, public :: MEP_ERR_BUSY = -11
  integer(c_int32_t), parameter, public :: MEP_ERR_FORKED = -12
  integer(c_int32_t), parameter, public :: MEP_ERR_MISMATCH = -13
  integer(c_int32_t), parameter, public :: MEP_ERR_BOOTSTRAP = -14
  integer(c_int32_t), parameter, public :: MEP_ERR_DENIED = -15
  integer(c_int32_t), parameter, public :: MEP_ERR_REVOKED = -16
  integer(c_int32_t), parameter, public :: MEP_ERR_ABORTED = -17
  integer(c_int32_t), parameter, public :: MEP_ERR_VERSION = -18
  integer(c_int32_t), parameter, public :: MEP_ERR_CAPACITY = -19
  integer(c_int32_t), parameter, public :: MEP_ERR_NOT_FOUND = -20
  integer(c_int32_t), parameter, public :: MEP_ERR_DEVICE = -21
  integer(c_int32_t), parameter, public :: MEP_ERR_THREAD = -22

  ! A timeout that stands for the operation's own timeout; 0xffffffff, which is -1 here.
  integer(c_int32_t), parameter, public :: MEP_TIMEOUT_DEFAULT = -1

  ! Made by bindings/make_bindings.py from the table of types; do not edit.
  integer(c_int32_t), parameter, public :: MEP_INT8 = 1
  integer(c_int32_t), parameter, public :: MEP_UINT8 = 2
  integer(c_int32_t), parameter, public :: MEP_INT16 = 3
  integer(c_int32_t), parameter, public :: MEP_UINT16 = 4
  integer(c_int32_t), parameter, public :: MEP_INT32 = 5
  integer(c_int32_t), parameter, public :: MEP_UINT32 = 6
  integer(c_int32_t), parameter, public :: MEP_INT64 = 7
  integer(c_int32_t), parameter, public :: MEP_UINT64 = 8
  integer(c_int32_t), parameter, public :: MEP_FLOAT16 = 9
  integer(c_int32_t), parameter, public :: MEP_BFLOAT16 = 10
  integer(c_int32_t), parameter, public :: MEP_FLOAT32 = 11
  integer(c_int32_t), parameter, public :: MEP_FLOAT64 = 12
  integer(c_int32_t), parameter, public :: MEP_BOOL = 13
  integer(c_int32_t), parameter, public :: MEP_FLOAT8_E4M3 = 14
  integer(c_int32_t), parameter, public :: MEP_FLOAT8_E5M2 = 15
  ! End of what is made.

  integer(c_int32_t), parameter, public :: MEP_SUM = 1
  integer(c_int32_t), parameter, public :: MEP_PROD = 2
  integer(c_int32_t), parameter, public :: MEP_MIN = 3
  integer(c_int32_t), parameter, public :: MEP_MAX = 4
  integer(c_int32_t), parameter, public :: MEP_AVG = 5
  integer(c_int32_t), parameter, public :: MEP_AND = 6
  integer(c_int32_t), parameter, public :: MEP_OR = 7
  integer(c_int32_t), parameter, public :: MEP_XOR = 8

  integer(c_int32_t), parameter, public :: MEP_COMM_SET_RANK = 1
  integer(c_int32_t), parameter, public :: MEP_COMM_AUTO_RECOVER = 2
  integer(c_int32_t), parameter, public :: MEP_COMM_PROGRESS_THREAD = 4

  integer(c_int32_t), parameter, public :: MEP_DEVICE_HOST = 0
  integer(c_int32_t), parameter, public :: MEP_DEVICE_CUDA = 1
  integer(c_int32_t), parameter, public :: MEP_DEVICE_CUDA_BY_RANK = 2

  integer(c_int32_t), parameter, public :: MEP_QUORUM_MAJORITY = 0
  integer(c_int32_t), parameter, public :: MEP_QUORUM_WITNESS = 1

  integer(c_int32_t), parameter, public :: MEP_MAX_RANKS = 4096
  integer(c_int32_t), parameter, public :: MEP_MAX_NAME_BYTES = 63
  integer(c_int32_t), parameter, public :: MEP_MAX_STREAM_REQUESTS = 256
  integer(c_int32_t), parameter, public :: MEP_MAX_TOP_K = 64
  integer(c_int32_t), parameter, public :: MEP_MAX_EP_BUFFERS = 8
  integer(c_int32_t), parameter, public :: MEP_MAX_EP_NAME_BYTES = 65535

  integer(c_int32_t), parameter, public :: MEP_OP_INPUT_INTACT = 1
  integer(c_int32_t), parameter, public :: MEP_OP_STATUS_VERSION = 2

  integer(c_int32_t), parameter, public :: MEP_ANY_SOURCE = -1
  integer(c_int32_t), parameter, public :: MEP_ANY_TAG = -1
  integer(c_int32_t), parameter, public :: MEP_MESSAGE_EAGER_BYTES = 8144

  integer(c_int32_t), parameter, public :: MEP_PEER_ALIVE = 0
  integer(c_int32_t), parameter, public :: MEP_PEER_SLOW = 1
  integer(c_int32_t), parameter, public :: MEP_PEER_SUSPECT = 2
  integer(c_int32_t), parameter, public :: MEP_PEER_DEAD = 3
  integer(c_int32_t), parameter, public :: MEP_PEER_LEFT = 4
  integer(c_int32_t), parameter, public :: MEP_PEER_EXCLUDED = 5

  integer(c_int32_t), parameter, public :: MEP_REACH_NONE = 0
  integer(c_int32_t), parameter, public :: MEP_REACH_SELF = 1
  integer(c_int32_t), parameter, public :: MEP_REACH_MAPPED = 2
  integer(c_int32_t), parameter, public :: MEP_REACH_HOST = 3
  integer(c_int32_t), parameter, public :: MEP_REACH_QUEUES = 4
  integer(c_int32_t), parameter, public :: MEP_REACH_NETWORK = 5
  integer(c_int32_t), parameter, public :: MEP_REACH_ADAPTER = 6

  integer(c_int32_t), parameter, public :: MEP_LOG_ERROR = 0
  integer(c_int32_t), parameter, public :: MEP_LOG_WARN = 1
  integer(c_int32_t), parameter, public :: MEP_LOG_INFO = 2
  integer(c_int32_t), parameter, public :: MEP_LOG_DEBUG = 3

  integer(c_int32_t), parameter, public :: MEP_EP_LOW_LATENCY = 0
  integer(c_int32_t), parameter, public :: MEP_EP_SLOTTED = 1
  integer(c_int32_t), parameter, public :: MEP_EP_HIGH_THROUGHPUT = 2
  integer(c_int32_t), parameter, public :: MEP_EP_EXPANDED = 3

  integer(c_int32_t), parameter, public :: MEP_SCALE_FLOAT32 = 0
  integer(c_int32_t), parameter, public :: MEP_SCALE_UE8M0 = 1
  integer(c_int32_t), parameter, public :: MEP_SCALE_UE8M0_32 = 2

  integer(c_int32_t), parameter, public :: MEP_SCALE_ROW_MAJOR = 0
  integer(c_int32_t), parameter, public :: MEP_SCALE_COLUMN_MAJOR = 1

  integer(c_int32_t), parameter, public :: MEP_EP_LOSS_FAILS = 0
  integer(c_int32_t), parameter, public :: MEP_EP_LOSS_PARTIAL = 1
  integer(c_int32_t), parameter, public :: MEP_EP_LOSS_UNIFORM = 2
  integer(c_int32_t), parameter, public :: MEP_EP_LOSS_IN_STEP = 3

  integer(c_int32_t), parameter, public :: MEP_EP_NO_ROW_MEMORY = 1
  integer(c_int32_t), parameter, public :: MEP_EP_NO_COMBINE_MEMORY = 2
  integer(c_int32_t), parameter, public :: MEP_DISPATCH_REPLAY = 1
  integer(c_int32_t), parameter, public :: MEP_DISPATCH_NO_ROWS = 2
  integer(c_int32_t), parameter, public :: MEP_COMBINE_RENORMALIZE = 1

  ! Handles. c_associated(comm%handle) tells whether there is one.
  type, bind(C), public :: mep_comm_t
    type(c_ptr) :: handle = c_null_ptr
  end type mep_comm_t
  type, bind(C), public :: mep_request_t
    type(c_ptr) :: handle = c_null_ptr
  end type mep_request_t
  type, bind(C), public :: mep_ep_t
    type(c_ptr) :: handle = c_null_ptr
  end type mep_ep_t
  type, bind(C), public :: mep_memory_t
    type(c_ptr) :: handle = c_null_ptr
  end type mep_memory_t
  type, bind(C), public :: mep_ep_handle_t
    type(c_ptr) :: handle = c_null_ptr
  end type mep_ep_handle_t

  type, bind(C), public :: mep_store_t
    integer(c_int32_t) :: struct_size = 32
    integer(c_int32_t) :: flags = 0
    type(c_ptr) :: user = c_null_ptr
    type(c_funptr) :: put = c_null_funptr
    type(c_funptr) :: get = c_null_funptr
  end type mep_store_t

  type, bind(C), public :: mep_comm_config_t
    integer(c_int32_t) :: struct_size = 96
    integer(c_int32_t) :: flags = 0
    integer(c_int32_t) :: rank = 0
    integer(c_int32_t) :: size = 0
    integer(c_int32_t) :: max_size = 0
    integer(c_int32_t) :: device_type = 0
    integer(c_int32_t) :: device = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int32_t) :: init_timeout_ms = 0
    integer(c_int32_t) :: num_sms = 0
    type(c_ptr) :: job = c_null_ptr
    type(c_ptr) :: rendezvous = c_null_ptr
    type(c_ptr) :: transports = c_null_ptr
    type(c_ptr) :: secret_file = c_null_ptr
    type(c_ptr) :: store = c_null_ptr
    integer(c_int32_t) :: quorum = 0
    integer(c_int32_t) :: heartbeat_ms = 0
    integer(c_int32_t) :: suspect_ms = 0
    integer(c_int32_t) :: reserved = 0
  end type mep_comm_config_t

  type, bind(C), public :: mep_op_info_t
    integer(c_int32_t) :: struct_size = 56
    integer(c_int32_t) :: flags = 0
    integer(c_int64_t) :: epoch = 0
    integer(c_int64_t) :: seq = 0
    integer(c_int32_t) :: result = 0
    integer(c_int32_t) :: contributors_words = 0
    type(c_ptr) :: contributors = c_null_ptr
    type(c_ptr) :: failed = c_null_ptr
    integer(c_int32_t) :: failed_words = 0
    integer(c_int32_t) :: reserved = 0
  end type mep_op_info_t

  type, bind(C), public :: mep_comm_stats_t
    integer(c_int32_t) :: struct_size = 160
    integer(c_int32_t) :: flags = 0
    integer(c_int64_t) :: collectives = 0
    integer(c_int64_t) :: sends = 0
    integer(c_int64_t) :: receives = 0
    integer(c_int64_t) :: dispatches = 0
    integer(c_int64_t) :: combines = 0
    integer(c_int64_t) :: collective_bytes = 0
    integer(c_int64_t) :: send_bytes = 0
    integer(c_int64_t) :: receive_bytes = 0
    integer(c_int64_t) :: dispatch_bytes = 0
    integer(c_int64_t) :: combine_bytes = 0
    integer(c_int64_t) :: partial_results = 0
    integer(c_int64_t) :: errors_peer_failed = 0
    integer(c_int64_t) :: errors_peer_left = 0
    integer(c_int64_t) :: errors_timeout = 0
    integer(c_int64_t) :: errors_mismatch = 0
    integer(c_int64_t) :: errors_other = 0
    integer(c_int64_t) :: view_changes = 0
    integer(c_int64_t) :: ranks_lost = 0
    integer(c_int64_t) :: ranks_admitted = 0
  end type mep_comm_stats_t

  ! The header of a record; its bitmap follows.
  type, bind(C), public :: mep_op_status_t
    integer(c_int32_t) :: version = 0
    integer(c_int32_t) :: failed_words = 0
    integer(c_int32_t) :: result = 0
    integer(c_int32_t) :: failed_count = 0
    integer(c_int64_t) :: epoch = 0
    integer(c_int64_t) :: seq = 0
    integer(c_int32_t) :: bad_entries = 0
    integer(c_int32_t) :: reserved = 0
  end type mep_op_status_t

  type, bind(C), public :: mep_message_t
    integer(c_int32_t) :: struct_size = 32
    integer(c_int32_t) :: flags = 0
    integer(c_int32_t) :: source = 0
    integer(c_int32_t) :: tag = 0
    integer(c_int64_t) :: bytes = 0
    integer(c_int32_t) :: dtype = 0
    integer(c_int32_t) :: reserved = 0
  end type mep_message_t

  type, bind(C), public :: mep_comm_info_t
    integer(c_int32_t) :: struct_size = 88
    integer(c_int32_t) :: flags = 0
    integer(c_int32_t) :: rank = 0
    integer(c_int32_t) :: size = 0
    integer(c_int32_t) :: live = 0
    integer(c_int32_t) :: max_size = 0
    integer(c_int32_t) :: device_type = 0
    integer(c_int32_t) :: device = 0
    integer(c_int32_t) :: quorum = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int32_t) :: heartbeat_ms = 0
    integer(c_int32_t) :: suspect_ms = 0
    integer(c_int64_t) :: message_eager_bytes = 0
    integer(c_int32_t) :: max_group_messages = 0
    integer(c_int32_t) :: num_sms = 0
    integer(c_int32_t) :: capacity = 0
    integer(c_int32_t) :: reserved = 0
    type(c_ptr) :: reach = c_null_ptr
    type(c_ptr) :: transports = c_null_ptr
  end type mep_comm_info_t

  type, bind(C), public :: mep_view_t
    integer(c_int32_t) :: struct_size = 64
    integer(c_int32_t) :: flags = 0
    integer(c_int64_t) :: epoch = 0
    integer(c_int64_t) :: world_epoch = 0
    integer(c_int32_t) :: size = 0
    integer(c_int32_t) :: live = 0
    integer(c_int32_t) :: capacity = 0
    integer(c_int32_t) :: reserved = 0
    type(c_ptr) :: slots = c_null_ptr
    type(c_ptr) :: incarnations = c_null_ptr
    type(c_ptr) :: states = c_null_ptr
  end type mep_view_t

  type, bind(C), public :: mep_range_t
    integer(c_int32_t) :: count = 0
    integer(c_int32_t) :: begin = 0
  end type mep_range_t

  type, bind(C), public :: mep_ep_config_t
    integer(c_int32_t) :: struct_size = 96
    integer(c_int32_t) :: flags = 0
    type(c_ptr) :: name = c_null_ptr
    integer(c_int32_t) :: layout = 0
    integer(c_int32_t) :: max_tokens_per_rank = 0
    integer(c_int32_t) :: hidden = 0
    integer(c_int32_t) :: top_k = 0
    integer(c_int32_t) :: num_experts = 0
    integer(c_int32_t) :: experts_per_rank = 0
    integer(c_int32_t) :: num_buffers = 0
    integer(c_int32_t) :: input_type = 0
    integer(c_int32_t) :: wire_type = 0
    integer(c_int32_t) :: combine_type = 0
    integer(c_int32_t) :: scale_type = 0
    integer(c_int32_t) :: scale_layout = 0
    integer(c_int32_t) :: expert_alignment = 0
    integer(c_int32_t) :: num_sms = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int32_t) :: max_replicas = 0
    integer(c_int32_t) :: row_bytes = 0
    integer(c_int32_t) :: side_bytes = 0
    integer(c_int32_t) :: on_loss = 0
    integer(c_int32_t) :: reserved = 0
  end type mep_ep_config_t

  type, bind(C), public :: mep_ep_size_t
    integer(c_int32_t) :: struct_size = 32
    integer(c_int32_t) :: flags = 0
    integer(c_int64_t) :: window_bytes = 0
    integer(c_int64_t) :: resident_bytes = 0
    integer(c_int64_t) :: private_bytes = 0
  end type mep_ep_size_t

  type, bind(C), public :: mep_ep_view_t
    integer(c_int32_t) :: struct_size = 120
    integer(c_int32_t) :: flags = 0
    type(c_ptr) :: recv_x = c_null_ptr
    type(c_ptr) :: recv_scales = c_null_ptr
    type(c_ptr) :: recv_count = c_null_ptr
    type(c_ptr) :: src_info = c_null_ptr
    type(c_ptr) :: layout_range = c_null_ptr
    type(c_ptr) :: combine_input = c_null_ptr
    type(c_ptr) :: recv_topk_idx = c_null_ptr
    type(c_ptr) :: recv_topk_weights = c_null_ptr
    type(c_ptr) :: token_rows = c_null_ptr
    type(c_ptr) :: token_topk_idx = c_null_ptr
    type(c_ptr) :: token_src_info = c_null_ptr
    type(c_ptr) :: token_range = c_null_ptr
    integer(c_int32_t) :: local_experts = 0
    integer(c_int32_t) :: first_expert = 0
    integer(c_int64_t) :: rows_per_expert = 0
  end type mep_ep_view_t

  type, bind(C), public :: mep_dispatch_options_t
    integer(c_int32_t) :: struct_size = 184
    integer(c_int32_t) :: flags = 0
    integer(c_int32_t) :: topk_idx_type = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int64_t) :: x_stride_bytes = 0
    type(c_ptr) :: x_scales = c_null_ptr
    integer(c_int64_t) :: x_scales_stride_bytes = 0
    type(c_ptr) :: recv_x = c_null_ptr
    integer(c_int64_t) :: recv_capacity = 0
    type(c_ptr) :: recv_scales = c_null_ptr
    integer(c_int64_t) :: recv_scales_token_stride_bytes = 0
    integer(c_int64_t) :: recv_scales_group_stride_bytes = 0
    type(c_ptr) :: recv_count = c_null_ptr
    type(c_ptr) :: recv_count_host = c_null_ptr
    type(c_ptr) :: src_info = c_null_ptr
    type(c_ptr) :: layout_range = c_null_ptr
    type(c_ptr) :: token_range = c_null_ptr
    type(c_ptr) :: recv_topk_idx = c_null_ptr
    type(c_ptr) :: recv_topk_weights = c_null_ptr
    type(c_ptr) :: recv_total = c_null_ptr
    type(c_ptr) :: statistics = c_null_ptr
    type(c_ptr) :: op_status = c_null_ptr
    integer(c_int64_t) :: op_status_bytes = 0
    type(c_ptr) :: wait_ns = c_null_ptr
    integer(c_int32_t) :: statistics_type = 0
    integer(c_int32_t) :: reserved = 0
  end type mep_dispatch_options_t

  type, bind(C), public :: mep_combine_options_t
    integer(c_int32_t) :: struct_size = 96
    integer(c_int32_t) :: flags = 0
    type(c_ptr) :: topk_weights = c_null_ptr
    type(c_ptr) :: weights = c_null_ptr
    type(c_ptr) :: bias = c_null_ptr
    integer(c_int64_t) :: out_stride_bytes = 0
    type(c_ptr) :: op_status = c_null_ptr
    integer(c_int64_t) :: op_status_bytes = 0
    type(c_ptr) :: recv_topk_weights = c_null_ptr
    type(c_ptr) :: wait_ns = c_null_ptr
    integer(c_int32_t) :: num_tokens = 0
    integer(c_int32_t) :: timeout_ms = 0
    type(c_ptr) :: token_bias = c_null_ptr
    type(c_ptr) :: token_bias2 = c_null_ptr
  end type mep_combine_options_t
end module mep_types
