// For functions that hosts and kernels share: the format of what lies in windows stands once.
#pragma once

#ifdef __CUDACC__
#define MEP_HOST_DEVICE __host__ __device__
#else
#define MEP_HOST_DEVICE
#endif
