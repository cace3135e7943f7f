// Activations: a thread for each element; or, with a bias that is added first, a block
// for each row.

// Value and slope of x P(x); P is the distribution function of a normal number.
__device__ inline void gelu_erf_of(real x, real* value, real* slope) {
    real probability = (real)0.5 * erfc(x * (real)-0.7071067811865476);
    real density = (real)0.3989422804014327 * exp((real)-0.5 * x * x);
    *value = x * probability;
    *slope = probability + x * density;
}

// The same with P(x) = (1 + tanh(c (x + 0.044715 x^3))) / 2, where c = sqrt(2 / pi).
__device__ inline void gelu_tanh_of(real x, real* value, real* slope) {
    const real scale = (real)0.7978845608028654, cubic = (real)0.035677408136300125;
    real square = x * x;
    real twice = 1 + tanh(x * (scale + cubic * square));
    real probability = (real)0.5 * twice;
    *value = x * probability;
    // tanh' = 1 - tanh^2 = 4 P (1 - P)
    *slope = probability * (1 + x * (scale + 3 * cubic * square) * (2 - twice));
}

// x times its gate, 1 / (1 + e^-x), from e^-|x|, so that nothing overflows.
__device__ inline void silu_of(real x, real* value, real* gate) {
    real small = exp(x >= 0 ? -x : x);
    *gate = (x >= 0 ? 1 : small) / (1 + small);
    *value = x * *gate;
}

template <void (*OF)(real, real*, real*)>
__device__ inline void each_element(
    const real* x, real* value, real* other, long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) OF(x[i], value + i, other + i);
}

template <void (*OF)(real, real*, real*)>
__device__ inline void each_sum(
    const real* x, const real* bias, real* value, real* other, long long width) {
    long long row = blockIdx.x * width;
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        OF(x[row + i] + bias[i], value + row + i, other + row + i);
}

KERNEL gelu_erf(const real* x, real* value, real* slope, long long size) {
    each_element<gelu_erf_of>(x, value, slope, size);
}

KERNEL gelu_tanh(const real* x, real* value, real* slope, long long size) {
    each_element<gelu_tanh_of>(x, value, slope, size);
}

KERNEL silu(const real* x, real* value, real* gate, long long size) {
    each_element<silu_of>(x, value, gate, size);
}

KERNEL bias_gelu_erf(
    const real* x, const real* bias, real* value, real* slope, long long width) {
    each_sum<gelu_erf_of>(x, bias, value, slope, width);
}

KERNEL bias_gelu_tanh(
    const real* x, const real* bias, real* value, real* slope, long long width) {
    each_sum<gelu_tanh_of>(x, bias, value, slope, width);
}

KERNEL bias_silu(
    const real* x, const real* bias, real* value, real* gate, long long width) {
    each_sum<silu_of>(x, bias, value, gate, width);
}

// The gradient of silu, from its result and the gate.
KERNEL silu_gradient(
    const real* g, const real* result, const real* gate, real* gradient,
    long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) gradient[i] = g[i] * (gate[i] + result[i] * (1 - gate[i]));
}

KERNEL relu(const real* x, real* result, long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) result[i] = maximum(x[i], 0);
}

KERNEL bias_relu(const real* x, const real* bias, real* result, long long width) {
    long long row = blockIdx.x * width;
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        result[row + i] = maximum(x[row + i] + bias[i], 0);
}

// The gradient of relu, from its result.
KERNEL relu_gradient(
    const real* g, const real* result, real* gradient, long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) gradient[i] = result[i] != 0 ? g[i] : 0;
}
