// What all kernels have in common. `real` is float or double.

// Calls of the threads of a block with one number each: all get the sum, or the maximum.
// The order is fixed, so the bits are the same in every launch: neighbours 16 lanes apart
// first, then 8, 4, 2 and 1; then the warps in the same way.

const unsigned ALL_LANES = 0xffffffff;

__device__ inline real sum_of_warp(real value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

__device__ inline real largest_of_warp(real value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        real other = __shfl_xor_sync(ALL_LANES, value, distance);
        value = value < other ? other : value;
    }
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
