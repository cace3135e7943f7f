// What all kernels have in common. `real` is float or double.

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)  // threads of a block

// The larger number; NaN if one is NaN.
__device__ inline real maximum(real a, real b) { return a != a || a >= b ? a : b; }

// All threads of a block call these with one number each, and get the sum or the
// maximum. The order is fixed, so the bits are the same in every launch: lanes at a
// distance of 16 first, then of 8, 4, 2 and 1; then the warps in the same way.

const unsigned ALL_LANES = 0xffffffff;

__device__ inline real sum_of_warp(real value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

__device__ inline real largest_of_warp(real value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = maximum(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

__device__ inline real sum_of_block(real value) {
    __shared__ real of_warps[32];
    int lane = threadIdx.x % 32;
    value = sum_of_warp(value);
    __syncthreads();  // other warps may still read the sums of an earlier call
    if (lane == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    // Each warp adds them up, so no further exchange is needed.
    return sum_of_warp(lane < blockDim.x / 32 ? of_warps[lane] : 0);
}

__device__ inline real largest_of_block(real value) {
    __shared__ real of_warps[32];
    int lane = threadIdx.x % 32;
    value = largest_of_warp(value);
    __syncthreads();
    if (lane == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    return largest_of_warp(of_warps[lane < blockDim.x / 32 ? lane : 0]);
}

// A block of 32 columns: a lane has one column, warp w the rows w, w + num_warps, …
// of it. Each warp adds up the numbers of all warps, in the same order.

__device__ inline real sum_of_columns(real value) {
    __shared__ real of_warps[32][32];
    int lane = threadIdx.x % 32;
    __syncthreads();
    of_warps[threadIdx.x / 32][lane] = value;
    __syncthreads();
    real sum = of_warps[0][lane];
    for (int warp = 1; warp < blockDim.x / 32; warp++) sum += of_warps[warp][lane];
    return sum;
}

__device__ inline real largest_of_columns(real value) {
    __shared__ real of_warps[32][32];
    int lane = threadIdx.x % 32;
    __syncthreads();
    of_warps[threadIdx.x / 32][lane] = value;
    __syncthreads();
    real largest = of_warps[0][lane];
    for (int warp = 1; warp < blockDim.x / 32; warp++)
        largest = maximum(largest, of_warps[warp][lane]);
    return largest;
}
