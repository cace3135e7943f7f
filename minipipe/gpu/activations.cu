// Activations: a thread for each element.

// Value and slope of x P(x); P is the distribution function of a normal number.
KERNEL gelu_erf(
    const real* x, real* value, real* slope, long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= size) return;
    real probability = (real)0.5 * erfc(x[i] * (real)-0.7071067811865476);
    real density = (real)0.3989422804014327 * exp((real)-0.5 * x[i] * x[i]);
    value[i] = x[i] * probability;
    slope[i] = probability + x[i] * density;
}

// The same with P(x) = (1 + tanh(c (x + 0.044715 x^3))) / 2, where c = sqrt(2 / pi).
KERNEL gelu_tanh(
    const real* x, real* value, real* slope, long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= size) return;
    const real scale = (real)0.7978845608028654, cubic = (real)0.035677408136300125;
    real square = x[i] * x[i];
    real twice = 1 + tanh(x[i] * (scale + cubic * square));
    real probability = (real)0.5 * twice;
    value[i] = x[i] * probability;
    // tanh' = 1 - tanh^2 = 4 P (1 - P)
    slope[i] = probability * (1 + x[i] * (scale + 3 * cubic * square) * (2 - twice));
}

// The gradient of max(x, 0), from its result.
KERNEL relu_gradient(
    const real* g, const real* result, real* gradient, long long size) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) gradient[i] = result[i] != 0 ? g[i] : 0;
}
