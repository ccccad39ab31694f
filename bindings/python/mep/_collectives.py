"""The collectives of mep.h for ctypes. Made by bindings/make_bindings.py from the table of operations;
do not edit."""
from ctypes import POINTER, c_int32, c_size_t, c_uint32, c_void_p

# name -> (result, argument types)
COLLECTIVES = {
    "mep_barrier": (c_int32, [c_void_p, c_void_p]),
    "mep_broadcast": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_int32, c_void_p,
                                c_void_p]),
    "mep_allgather": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_void_p, c_void_p]),
    "mep_allreduce": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_uint32, c_void_p,
                                c_void_p]),
    "mep_reduce": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_uint32, c_int32, c_void_p,
                             c_void_p]),
    "mep_gather": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_int32, c_void_p, c_void_p]),
    "mep_scatter": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_int32, c_void_p,
                              c_void_p]),
    "mep_reduce_scatter": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_uint32, c_void_p,
                                     c_void_p]),
    "mep_alltoall": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_void_p, c_void_p]),
    "mep_ibarrier": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "mep_ibroadcast": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_int32, c_void_p,
                                 POINTER(c_void_p)]),
    "mep_iallgather": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_void_p,
                                 POINTER(c_void_p)]),
    "mep_iallreduce": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_uint32, c_void_p,
                                 POINTER(c_void_p)]),
    "mep_ireduce": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_uint32, c_int32, c_void_p,
                              POINTER(c_void_p)]),
    "mep_igather": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_int32, c_void_p,
                              POINTER(c_void_p)]),
    "mep_iscatter": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_int32, c_void_p,
                               POINTER(c_void_p)]),
    "mep_ireduce_scatter": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_uint32, c_void_p,
                                      POINTER(c_void_p)]),
    "mep_ialltoall": (c_int32, [c_void_p, c_void_p, c_size_t, c_uint32, c_void_p,
                                POINTER(c_void_p)]),
}
