"""The types of mep.h. Made by bindings/make_bindings.py from the tables of types and row formats; do not edit."""
MEP_INT8 = 1
MEP_UINT8 = 2
MEP_INT16 = 3
MEP_UINT16 = 4
MEP_INT32 = 5
MEP_UINT32 = 6
MEP_INT64 = 7
MEP_UINT64 = 8
MEP_FLOAT16 = 9
MEP_BFLOAT16 = 10
MEP_FLOAT32 = 11
MEP_FLOAT64 = 12
MEP_BOOL = 13
MEP_FLOAT8_E4M3 = 14
MEP_FLOAT8_E5M2 = 15

NUMBERS = {
    "int8": MEP_INT8, "uint8": MEP_UINT8, "int16": MEP_INT16, "uint16": MEP_UINT16,
    "int32": MEP_INT32, "uint32": MEP_UINT32, "int64": MEP_INT64, "uint64": MEP_UINT64,
    "float16": MEP_FLOAT16, "bfloat16": MEP_BFLOAT16, "float32": MEP_FLOAT32,
    "float64": MEP_FLOAT64, "bool": MEP_BOOL, "float8_e4m3": MEP_FLOAT8_E4M3,
    "float8_e4m3fn": MEP_FLOAT8_E4M3, "float8_e5m2": MEP_FLOAT8_E5M2
}

SIZES = {
    1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 9: 2, 10: 2, 11: 4, 12: 8, 13: 1, 14: 1, 15: 1
}

RAW = {  # types that NumPy lacks, and the unsigned integers that may hold them
    MEP_BFLOAT16: ("bfloat16", "uint16"), MEP_FLOAT8_E4M3: ("float8_e4m3fn", "uint8"),
    MEP_FLOAT8_E5M2: ("float8_e5m2", "uint8")
}

DLPACK = {  # (type code, bits) of DLPack
    (0, 8): 1, (1, 8): 2, (0, 16): 3, (1, 16): 4, (0, 32): 5, (1, 32): 6, (0, 64): 7, (1, 64): 8,
    (2, 16): 9, (4, 16): 10, (2, 32): 11, (2, 64): 12, (6, 8): 13, (10, 8): 14, (12, 8): 15
}

SCALES = {  # of rows: the values that share one, and its type
    "float32": (128, "float32"), "ue8m0": (128, "uint8"), "ue8m0_32": (32, "uint8")
}
