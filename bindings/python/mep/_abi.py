"""mep.h for ctypes: constants, structures and functions under their C names, and how libmep.so is found.

Needs the standard library only. Tests compare all of it with mep.h.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint32,
                    c_uint64, c_void_p)
from pathlib import Path

from ._collectives import COLLECTIVES
from ._type_numbers import *  # noqa: F403 - the types, MEP_INT8 and so on

MEP_VERSION_MAJOR = 0
MEP_VERSION_MINOR = 4
MEP_VERSION_PATCH = 0

MEP_SUCCESS = 0
MEP_PARTIAL = 1
MEP_IN_PROGRESS = 2
MEP_ERR_INVALID_ARGUMENT = -1
MEP_ERR_UNSUPPORTED = -2
MEP_ERR_NO_MEMORY = -3
MEP_ERR_SYSTEM = -4
MEP_ERR_INTERNAL = -5
MEP_ERR_TIMEOUT = -6
MEP_ERR_PEER_FAILED = -7
MEP_ERR_PEER_LEFT = -8
MEP_ERR_NO_QUORUM = -9
MEP_ERR_EVICTED = -10
MEP_ERR_BUSY = -11
MEP_ERR_FORKED = -12
MEP_ERR_MISMATCH = -13
MEP_ERR_BOOTSTRAP = -14
MEP_ERR_DENIED = -15
MEP_ERR_REVOKED = -16
MEP_ERR_ABORTED = -17
MEP_ERR_VERSION = -18
MEP_ERR_CAPACITY = -19
MEP_ERR_NOT_FOUND = -20
MEP_ERR_DEVICE = -21
MEP_ERR_THREAD = -22

MEP_TIMEOUT_DEFAULT = 0xFFFFFFFF

MEP_SUM = 1
MEP_PROD = 2
MEP_MIN = 3
MEP_MAX = 4
MEP_AVG = 5
MEP_AND = 6
MEP_OR = 7
MEP_XOR = 8

MEP_COMM_SET_RANK = 1
MEP_COMM_AUTO_RECOVER = 2
MEP_COMM_PROGRESS_THREAD = 4

MEP_DEVICE_HOST = 0
MEP_DEVICE_CUDA = 1
MEP_DEVICE_CUDA_BY_RANK = 2

MEP_QUORUM_MAJORITY = 0
MEP_QUORUM_WITNESS = 1

MEP_MAX_RANKS = 4096
MEP_MAX_NAME_BYTES = 63
MEP_MAX_STREAM_REQUESTS = 256
MEP_MAX_TOP_K = 64
MEP_MAX_EP_BUFFERS = 8
MEP_MAX_EP_NAME_BYTES = 65535

MEP_OP_INPUT_INTACT = 1
MEP_OP_STATUS_VERSION = 2

MEP_ANY_SOURCE = -1
MEP_ANY_TAG = -1
MEP_MESSAGE_EAGER_BYTES = 8144

MEP_PEER_ALIVE = 0
MEP_PEER_SLOW = 1
MEP_PEER_SUSPECT = 2
MEP_PEER_DEAD = 3
MEP_PEER_LEFT = 4
MEP_PEER_EXCLUDED = 5

MEP_REACH_NONE = 0
MEP_REACH_SELF = 1
MEP_REACH_MAPPED = 2
MEP_REACH_HOST = 3
MEP_REACH_QUEUES = 4
MEP_REACH_NETWORK = 5
MEP_REACH_ADAPTER = 6

MEP_LOG_ERROR = 0
MEP_LOG_WARN = 1
MEP_LOG_INFO = 2
MEP_LOG_DEBUG = 3

MEP_EP_LOW_LATENCY = 0
MEP_EP_SLOTTED = 1
MEP_EP_HIGH_THROUGHPUT = 2
MEP_EP_EXPANDED = 3

MEP_SCALE_FLOAT32 = 0
MEP_SCALE_UE8M0 = 1
MEP_SCALE_UE8M0_32 = 2

MEP_SCALE_ROW_MAJOR = 0
MEP_SCALE_COLUMN_MAJOR = 1

MEP_EP_LOSS_FAILS = 0
MEP_EP_LOSS_PARTIAL = 1
MEP_EP_LOSS_UNIFORM = 2
MEP_EP_LOSS_IN_STEP = 3

MEP_EP_NO_ROW_MEMORY = 1
MEP_EP_NO_COMBINE_MEMORY = 2
MEP_DISPATCH_REPLAY = 1
MEP_DISPATCH_NO_ROWS = 2
MEP_COMBINE_RENORMALIZE = 1

# Handles are plain addresses; c_void_p as a result or field reads as int or None.
mep_comm_t = c_void_p
mep_request_t = c_void_p
mep_ep_t = c_void_p
mep_memory_t = c_void_p
mep_registration_t = c_uint64
mep_ep_handle_t = c_void_p
mep_stream_t = c_void_p
mep_result_t = c_int32
mep_dtype_t = c_uint32
mep_op_t = c_uint32
mep_view_callback_t = CFUNCTYPE(None, c_void_p, c_uint64, c_int32)
mep_log_callback_t = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
mep_store_put_t = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
mep_store_get_t = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t),
                            c_uint32)


class mep_store_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("user", c_void_p),
        ("put", mep_store_put_t),
        ("get", mep_store_get_t),
    ]


class mep_comm_config_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("max_size", c_int32),
        ("device_type", c_uint32),
        ("device", c_int32),
        ("timeout_ms", c_uint32),
        ("init_timeout_ms", c_uint32),
        ("num_sms", c_uint32),
        ("job", c_char_p),
        ("rendezvous", c_char_p),
        ("transports", c_char_p),
        ("secret_file", c_char_p),
        ("store", POINTER(mep_store_t)),
        ("quorum", c_uint32),
        ("heartbeat_ms", c_uint32),
        ("suspect_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class mep_op_info_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("epoch", c_uint64),
        ("seq", c_uint64),
        ("result", mep_result_t),
        ("contributors_words", c_uint32),
        ("contributors", c_void_p),
        ("failed", c_void_p),
        ("failed_words", c_uint32),
        ("reserved", c_uint32),
    ]


class mep_comm_stats_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("collectives", c_uint64),
        ("sends", c_uint64),
        ("receives", c_uint64),
        ("dispatches", c_uint64),
        ("combines", c_uint64),
        ("collective_bytes", c_uint64),
        ("send_bytes", c_uint64),
        ("receive_bytes", c_uint64),
        ("dispatch_bytes", c_uint64),
        ("combine_bytes", c_uint64),
        ("partial_results", c_uint64),
        ("errors_peer_failed", c_uint64),
        ("errors_peer_left", c_uint64),
        ("errors_timeout", c_uint64),
        ("errors_mismatch", c_uint64),
        ("errors_other", c_uint64),
        ("view_changes", c_uint64),
        ("ranks_lost", c_uint64),
        ("ranks_admitted", c_uint64),
    ]


class mep_op_status_t(Structure):
    _fields_ = [
        ("version", c_uint32),
        ("failed_words", c_uint32),
        ("result", mep_result_t),
        ("failed_count", c_uint32),
        ("epoch", c_uint64),
        ("seq", c_uint64),
        ("bad_entries", c_uint32),
        ("reserved", c_uint32),
    ]


class mep_message_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("source", c_int32),
        ("tag", c_int32),
        ("bytes", c_uint64),
        ("dtype", mep_dtype_t),
        ("reserved", c_uint32),
    ]


class mep_comm_info_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("live", c_int32),
        ("max_size", c_int32),
        ("device_type", c_uint32),
        ("device", c_int32),
        ("quorum", c_uint32),
        ("timeout_ms", c_uint32),
        ("heartbeat_ms", c_uint32),
        ("suspect_ms", c_uint32),
        ("message_eager_bytes", c_uint64),
        ("max_group_messages", c_uint32),
        ("num_sms", c_uint32),
        ("capacity", c_uint32),
        ("reserved", c_uint32),
        ("reach", c_void_p),
        ("transports", c_void_p),
    ]


class mep_view_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("epoch", c_uint64),
        ("world_epoch", c_uint64),
        ("size", c_int32),
        ("live", c_int32),
        ("capacity", c_uint32),
        ("reserved", c_uint32),
        ("slots", c_void_p),
        ("incarnations", c_void_p),
        ("states", c_void_p),
    ]


class mep_range_t(Structure):
    _fields_ = [("count", c_int32), ("begin", c_int32)]


class mep_ep_config_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("layout", c_uint32),
        ("max_tokens_per_rank", c_uint32),
        ("hidden", c_uint32),
        ("top_k", c_uint32),
        ("num_experts", c_uint32),
        ("experts_per_rank", c_uint32),
        ("num_buffers", c_uint32),
        ("input_type", mep_dtype_t),
        ("wire_type", mep_dtype_t),
        ("combine_type", mep_dtype_t),
        ("scale_type", c_uint32),
        ("scale_layout", c_uint32),
        ("expert_alignment", c_uint32),
        ("num_sms", c_uint32),
        ("timeout_ms", c_uint32),
        ("max_replicas", c_uint32),
        ("row_bytes", c_uint32),
        ("side_bytes", c_uint32),
        ("on_loss", c_uint32),
        ("reserved", c_uint32),
    ]


class mep_ep_size_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("window_bytes", c_uint64),
        ("resident_bytes", c_uint64),
        ("private_bytes", c_uint64),
    ]


class mep_ep_view_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("recv_x", c_void_p),
        ("recv_scales", c_void_p),
        ("recv_count", c_void_p),
        ("src_info", c_void_p),
        ("layout_range", c_void_p),
        ("combine_input", c_void_p),
        ("recv_topk_idx", c_void_p),
        ("recv_topk_weights", c_void_p),
        ("token_rows", c_void_p),
        ("token_topk_idx", c_void_p),
        ("token_src_info", c_void_p),
        ("token_range", c_void_p),
        ("local_experts", c_uint32),
        ("first_expert", c_uint32),
        ("rows_per_expert", c_uint64),
    ]


class mep_dispatch_options_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("topk_idx_type", mep_dtype_t),
        ("timeout_ms", c_uint32),
        ("x_stride_bytes", c_uint64),
        ("x_scales", c_void_p),
        ("x_scales_stride_bytes", c_uint64),
        ("recv_x", c_void_p),
        ("recv_capacity", c_uint64),
        ("recv_scales", c_void_p),
        ("recv_scales_token_stride_bytes", c_uint64),
        ("recv_scales_group_stride_bytes", c_uint64),
        ("recv_count", c_void_p),
        ("recv_count_host", c_void_p),
        ("src_info", c_void_p),
        ("layout_range", c_void_p),
        ("token_range", c_void_p),
        ("recv_topk_idx", c_void_p),
        ("recv_topk_weights", c_void_p),
        ("recv_total", c_void_p),
        ("statistics", c_void_p),
        ("op_status", c_void_p),
        ("op_status_bytes", c_uint64),
        ("wait_ns", c_void_p),
        ("statistics_type", mep_dtype_t),
        ("reserved", c_uint32),
    ]


class mep_combine_options_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("topk_weights", c_void_p),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("out_stride_bytes", c_uint64),
        ("op_status", c_void_p),
        ("op_status_bytes", c_uint64),
        ("recv_topk_weights", c_void_p),
        ("wait_ns", c_void_p),
        ("num_tokens", c_uint32),
        ("timeout_ms", c_uint32),
        ("token_bias", c_void_p),
        ("token_bias2", c_void_p),
    ]


# name -> (result, argument types); const and the names of the arguments are in mep.h. Collectives come from
# the table of operations.
FUNCTIONS = {
    "mep_result_string": (c_char_p, [mep_result_t]),
    "mep_last_error": (c_char_p, []),
    "mep_version": (c_uint32, []),
    "mep_struct_init": (None, [c_void_p, c_size_t]),
    "mep_dtype_size": (c_size_t, [mep_dtype_t]),
    "mep_comm_init": (mep_result_t, [POINTER(mep_comm_config_t), POINTER(mep_comm_t)]),
    "mep_comm_init_all": (mep_result_t, [c_int32, POINTER(mep_comm_config_t), POINTER(mep_comm_t)]),
    "mep_comm_destroy": (mep_result_t, [mep_comm_t]),
    "mep_comm_rank": (mep_result_t, [mep_comm_t, POINTER(c_int32)]),
    "mep_comm_size": (mep_result_t, [mep_comm_t, POINTER(c_int32)]),
    "mep_comm_live_count": (mep_result_t, [mep_comm_t, POINTER(c_int32)]),
    "mep_comm_epoch": (mep_result_t, [mep_comm_t, POINTER(c_uint64)]),
    "mep_comm_device": (mep_result_t, [mep_comm_t, POINTER(c_uint32), POINTER(c_int32)]),
    "mep_comm_set_timeout": (mep_result_t, [mep_comm_t, c_uint32]),
    "mep_comm_query": (mep_result_t, [mep_comm_t, POINTER(mep_comm_info_t)]),
    "mep_mem_alloc": (mep_result_t, [mep_comm_t, c_size_t, c_uint32, c_size_t, POINTER(c_void_p)]),
    "mep_mem_free": (mep_result_t, [mep_comm_t, c_void_p]),
    "mep_comm_register": (mep_result_t, [mep_comm_t, c_void_p, c_size_t, POINTER(mep_registration_t)]),
    "mep_comm_deregister": (mep_result_t, [mep_comm_t, mep_registration_t]),
    "mep_mem_free_keep": (mep_result_t, [mep_comm_t, c_void_p, POINTER(mep_memory_t)]),
    "mep_memory_release": (mep_result_t, [mep_memory_t]),
    "mep_comm_last_op": (mep_result_t, [mep_comm_t, POINTER(mep_op_info_t)]),
    "mep_comm_async_result": (mep_result_t, [mep_comm_t]),
    "mep_comm_stats": (mep_result_t, [mep_comm_t, POINTER(mep_comm_stats_t)]),
    **COLLECTIVES,
    "mep_request_wait": (mep_result_t, [POINTER(mep_request_t), c_uint32, POINTER(c_int32),
                                        POINTER(mep_op_info_t)]),
    "mep_request_test": (mep_result_t, [POINTER(mep_request_t), POINTER(c_int32),
                                        POINTER(mep_op_info_t)]),
    "mep_request_info": (mep_result_t, [mep_request_t, POINTER(mep_op_info_t)]),
    "mep_request_event_fd": (mep_result_t, [mep_request_t, POINTER(c_int32)]),
    "mep_request_cancel": (mep_result_t, [POINTER(mep_request_t), POINTER(c_int32)]),
    "mep_request_waitall": (mep_result_t, [c_int32, POINTER(mep_request_t), c_uint32,
                                           POINTER(c_int32), POINTER(mep_result_t)]),
    "mep_request_waitany": (mep_result_t, [c_int32, POINTER(mep_request_t), c_uint32,
                                           POINTER(c_int32), POINTER(c_int32), POINTER(mep_op_info_t)]),
    "mep_send": (mep_result_t, [c_void_p, c_size_t, mep_dtype_t, c_int32, c_int32, mep_comm_t,
                                mep_stream_t]),
    "mep_recv": (mep_result_t, [c_void_p, c_size_t, mep_dtype_t, c_int32, c_int32, mep_comm_t,
                                POINTER(mep_message_t), mep_stream_t]),
    "mep_sendrecv": (mep_result_t, [c_void_p, c_size_t, c_int32, c_int32, c_void_p, c_size_t,
                                    c_int32, c_int32, mep_dtype_t, mep_comm_t,
                                    POINTER(mep_message_t), mep_stream_t]),
    "mep_isend": (mep_result_t, [c_void_p, c_size_t, mep_dtype_t, c_int32, c_int32, mep_comm_t,
                                 mep_stream_t, POINTER(mep_request_t)]),
    "mep_irecv": (mep_result_t, [c_void_p, c_size_t, mep_dtype_t, c_int32, c_int32, mep_comm_t,
                                 POINTER(mep_message_t), mep_stream_t, POINTER(mep_request_t)]),
    "mep_probe": (mep_result_t, [c_int32, c_int32, mep_comm_t, POINTER(mep_message_t)]),
    "mep_iprobe": (mep_result_t, [c_int32, c_int32, mep_comm_t, POINTER(c_int32),
                                  POINTER(mep_message_t)]),
    "mep_group_begin": (mep_result_t, []),
    "mep_group_end": (mep_result_t, []),
    "mep_comm_peer_state": (mep_result_t, [mep_comm_t, c_int32, POINTER(c_uint32)]),
    "mep_comm_view": (mep_result_t, [mep_comm_t, POINTER(mep_view_t)]),
    "mep_comm_lost_ranks": (mep_result_t, [mep_comm_t, c_void_p, mep_stream_t]),
    "mep_comm_forget_lost": (mep_result_t, [mep_comm_t, mep_stream_t]),
    "mep_comm_wait_view": (mep_result_t, [mep_comm_t, c_uint64, c_uint32]),
    "mep_comm_set_view_callback": (mep_result_t, [mep_comm_t, c_void_p, c_void_p]),
    "mep_comm_split": (mep_result_t, [mep_comm_t, c_int32, c_int32, POINTER(mep_comm_t)]),
    "mep_comm_dup": (mep_result_t, [mep_comm_t, POINTER(mep_comm_t)]),
    "mep_comm_shrink": (mep_result_t, [mep_comm_t, POINTER(mep_comm_t)]),
    "mep_comm_create_from_ranks": (mep_result_t, [mep_comm_t, c_void_p, c_int32, c_char_p,
                                                  POINTER(mep_comm_t)]),
    "mep_comm_agree": (mep_result_t, [mep_comm_t, c_uint64, POINTER(c_uint64)]),
    "mep_recover_ranks": (mep_result_t, [mep_comm_t, c_void_p, c_int32, c_uint32,
                                         POINTER(c_int32)]),
    "mep_comm_grow": (mep_result_t, [mep_comm_t, c_int32, c_uint32, POINTER(mep_comm_t)]),
    "mep_comm_join": (mep_result_t, [POINTER(mep_comm_config_t), POINTER(mep_comm_t)]),
    "mep_comm_attach": (mep_result_t, [mep_comm_t, c_char_p, POINTER(mep_comm_t)]),
    "mep_comm_name": (mep_result_t, [mep_comm_t, POINTER(c_char_p)]),
    "mep_comm_set_name": (mep_result_t, [mep_comm_t, c_char_p]),
    "mep_comm_evict": (mep_result_t, [mep_comm_t, c_int32]),
    "mep_comm_revoke": (mep_result_t, [mep_comm_t]),
    "mep_comm_abort": (mep_result_t, [mep_comm_t]),
    "mep_comm_abort_with": (mep_result_t, [mep_comm_t, c_char_p]),
    "mep_ep_buffer_size": (mep_result_t, [mep_comm_t, POINTER(mep_ep_config_t),
                                          POINTER(mep_ep_size_t)]),
    "mep_ep_create": (mep_result_t, [mep_comm_t, POINTER(mep_ep_config_t), POINTER(mep_ep_t)]),
    "mep_ep_destroy": (mep_result_t, [mep_ep_t]),
    "mep_ep_destroy_keep": (mep_result_t, [mep_ep_t, POINTER(mep_memory_t)]),
    "mep_ep_attach": (mep_result_t, [mep_comm_t, POINTER(mep_ep_config_t), POINTER(mep_ep_t)]),
    "mep_ep_handle_create": (mep_result_t, [mep_ep_t, c_uint32, POINTER(mep_ep_handle_t)]),
    "mep_ep_handle_destroy": (mep_result_t, [mep_ep_handle_t]),
    "mep_ep_set_expert_map": (mep_result_t, [mep_ep_t, c_void_p]),
    "mep_ep_buffer_view": (mep_result_t, [mep_ep_t, c_uint32, POINTER(mep_ep_view_t)]),
    "mep_dispatch_layout": (mep_result_t, [mep_comm_t, c_void_p, mep_dtype_t, c_uint32, c_uint32, c_uint32,
                                           c_void_p, c_void_p, c_void_p, mep_stream_t]),
    "mep_dispatch": (mep_result_t, [mep_ep_handle_t, c_void_p, c_void_p, c_void_p, c_uint32,
                                    POINTER(mep_ep_view_t), POINTER(mep_dispatch_options_t), mep_stream_t]),
    "mep_dispatch_send": (mep_result_t, [mep_ep_handle_t, c_void_p, c_void_p, c_void_p, c_uint32,
                                         POINTER(mep_dispatch_options_t), mep_stream_t]),
    "mep_dispatch_counts": (mep_result_t, [mep_ep_handle_t, c_void_p, c_void_p, c_void_p, c_uint32,
                                           POINTER(mep_dispatch_options_t), mep_stream_t]),
    "mep_dispatch_receive": (mep_result_t, [mep_ep_handle_t, POINTER(mep_ep_view_t),
                                            POINTER(mep_dispatch_options_t), mep_stream_t]),
    "mep_combine": (mep_result_t, [mep_ep_handle_t, c_void_p, c_void_p, POINTER(mep_combine_options_t),
                                   mep_stream_t]),
    "mep_combine_send": (mep_result_t, [mep_ep_handle_t, c_void_p, POINTER(mep_combine_options_t), mep_stream_t]),
    "mep_combine_receive": (mep_result_t, [mep_ep_handle_t, c_void_p, POINTER(mep_combine_options_t),
                                           mep_stream_t]),
    "mep_ep_last_op": (mep_result_t, [mep_ep_t, c_uint32, POINTER(mep_op_info_t)]),
    "mep_set_log_callback": (mep_result_t, [c_void_p, c_void_p]),
    "mep_log_to_descriptor": (None, [c_void_p, c_int32, c_char_p]),
    "mep_preferred_hca": (mep_result_t, [c_char_p, c_char_p, c_size_t]),
    "mep_comm_preferred_hca": (mep_result_t, [mep_comm_t, c_char_p, c_char_p, c_size_t]),
}


def candidates() -> list[str]:
    """Where libmep.so is looked for, in this order: MEP_LIBRARY, the package, the system loader."""
    chosen = os.environ.get("MEP_LIBRARY")
    if chosen:
        return [chosen]
    package = Path(__file__).resolve().parent
    names = ["libmep.so", "libmep.so.%d.%d" % (MEP_VERSION_MAJOR, MEP_VERSION_MINOR)]
    folders = [package, *sorted(package.glob("lib*/"))]
    found = [str(folder / name) for folder in folders for name in names if (folder / name).exists()]
    return found + list(reversed(names))


def load() -> ctypes.CDLL:
    """libmep.so with the types of all functions set. OSError says where it was looked for."""
    tried = []
    for name in candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            if Path(name).is_file():
                raise OSError(f"{name} does not load: {error}. A library that is missing comes from the system's packages "
                              "(Debian: apt install libhwloc15 libsodium23 libssl3 libibverbs1)") from error
            tried.append(str(error))
            continue
        for function, (result, arguments) in FUNCTIONS.items():
            entry = getattr(library, function, None)
            if entry is None:
                raise OSError(f"{name} has no {function}: it is older than this package")
            entry.restype = result
            entry.argtypes = arguments
        return library
    raise OSError("libmep.so was not found; set MEP_LIBRARY to its path. Tried: " + "; ".join(tried))
