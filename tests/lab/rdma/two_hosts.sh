#!/usr/bin/env bash
# COMMAND as one rank of two hosts: the lower half of the ranks plays one, the upper half the other, each
# with an RDMA device of its own.
number=$((MEP_RANK * 2 / MEP_SIZE))
export MEP_TEST_HOST=host$number MEP_HCA=rxe$number MEP_ALLOW_INSECURE=1
export MEP_RENDEZVOUS=${MEP_RENDEZVOUS:-127.0.0.1:7713}
exec "$@"
