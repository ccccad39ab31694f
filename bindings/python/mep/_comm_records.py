"""Facts and counts of a communicator, as the functions that tell them give them."""
from __future__ import annotations

import enum
from typing import List, NamedTuple, Optional

from . import _abi


class Reach(enum.IntEnum):
    """How a rank's memory is reached, as mep_reach_t of mep.h says."""

    NONE = _abi.MEP_REACH_NONE
    SELF = _abi.MEP_REACH_SELF
    MAPPED = _abi.MEP_REACH_MAPPED
    HOST = _abi.MEP_REACH_HOST
    QUEUES = _abi.MEP_REACH_QUEUES
    NETWORK = _abi.MEP_REACH_NETWORK
    ADAPTER = _abi.MEP_REACH_ADAPTER


class CommInfo(NamedTuple):
    """The values in force on a communicator, as mep_comm_info_t of mep.h says."""

    flags: int
    rank: int
    size: int
    live: int
    max_size: int
    device: Optional[int]
    quorum: int
    timeout_ms: int
    heartbeat_ms: int
    suspect_ms: int
    message_eager_bytes: int
    max_group_messages: int
    num_sms: int
    reach: List[Reach]
    transports: List[str]


class CommStats(NamedTuple):
    """Counts of this rank on a communicator since it was made, as mep_comm_stats_t of mep.h says."""

    collectives: int
    sends: int
    receives: int
    dispatches: int
    combines: int
    collective_bytes: int
    send_bytes: int
    receive_bytes: int
    dispatch_bytes: int
    combine_bytes: int
    partial_results: int
    errors_peer_failed: int
    errors_peer_left: int
    errors_timeout: int
    errors_mismatch: int
    errors_other: int
    view_changes: int
    ranks_lost: int
    ranks_admitted: int
