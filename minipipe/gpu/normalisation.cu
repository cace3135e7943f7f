// Layer norm and RMS norm: a block for each row, or for 32 columns.

// Each row with mean square 1, times a weight; for a layer norm with mean 0 first.
template <bool IS_CENTRED>
__device__ void normalise(
    const real* x, const real* weight, const real* bias, real epsilon, real* result,
    real* normalised, real* scale, long long width) {
    x += blockIdx.x * width;
    result += blockIdx.x * width;
    normalised += blockIdx.x * width;
    real mean = 0, error = 0;
    if (IS_CENTRED) {
        real sum = 0;
        for (long long i = threadIdx.x; i < width; i += blockDim.x) sum += x[i];
        mean = sum_of_block(sum) / width;
        // The rounding error of a mean that is large beside the differences.
        sum = 0;
        for (long long i = threadIdx.x; i < width; i += blockDim.x) sum += x[i] - mean;
        error = sum_of_block(sum) / width;
    }
    real squares = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x) {
        real centred = x[i] - mean - error;
        squares += centred * centred;
    }
    real factor = 1 / sqrt(sum_of_block(squares) / width + epsilon);
    for (long long i = threadIdx.x; i < width; i += blockDim.x) {
        normalised[i] = (x[i] - mean - error) * factor;
        result[i] = normalised[i] * weight[i];
        if (IS_CENTRED) result[i] += bias[i];
    }
    if (threadIdx.x == 0) scale[blockIdx.x] = factor;
}

KERNEL layer_norm(
    const real* x, const real* weight, const real* bias, double epsilon, real* result,
    real* normalised, real* scale, long long width) {
    normalise<true>(x, weight, bias, epsilon, result, normalised, scale, width);
}

KERNEL rms_norm(
    const real* x, const real* weight, double epsilon, real* result, real* normalised,
    real* scale, long long width) {
    normalise<false>(x, weight, 0, epsilon, result, normalised, scale, width);
}

// The gradient of a row of x: of a = g * weight, without the parts along the normalised
// row and, for a layer norm, along the mean.
template <bool IS_CENTRED>
__device__ void gradient_of_row(
    const real* g, const real* normalised, const real* scale, const real* weight,
    real* gradient, long long width) {
    g += blockIdx.x * width;
    normalised += blockIdx.x * width;
    gradient += blockIdx.x * width;
    real sum = 0, along = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x) {
        sum += g[i] * weight[i];
        along += g[i] * normalised[i] * weight[i];
    }
    real mean = IS_CENTRED ? sum_of_block(sum) / width : 0;
    along = sum_of_block(along) / width;
    for (long long i = threadIdx.x; i < width; i += blockDim.x) {
        real rest = g[i] * weight[i] - mean - normalised[i] * along;
        gradient[i] = rest * scale[blockIdx.x];
    }
}

KERNEL layer_norm_gradient(
    const real* g, const real* normalised, const real* scale, const real* weight,
    real* gradient, long long width) {
    gradient_of_row<true>(g, normalised, scale, weight, gradient, width);
}

KERNEL rms_norm_gradient(
    const real* g, const real* normalised, const real* scale, const real* weight,
    real* gradient, long long width) {
    gradient_of_row<false>(g, normalised, scale, weight, gradient, width);
}

// The sum of g over rows, for the bias.
KERNEL sum_of_rows(
    const real* g, real* sums, long long num_rows, long long width) {
    long long column = blockIdx.x * 32LL + threadIdx.x % 32;
    real sum = 0;
    if (column < width)
        for (long long row = threadIdx.x / 32; row < num_rows; row += blockDim.x / 32)
            sum += g[row * width + column];
    sum = sum_of_columns(sum);
    if (threadIdx.x < 32 && column < width) sums[column] = sum;
}

// The sum of g * normalised over rows, for the weight.
KERNEL sum_of_products(
    const real* g, const real* normalised, real* sums, long long num_rows,
    long long width) {
    long long column = blockIdx.x * 32LL + threadIdx.x % 32;
    real sum = 0;
    if (column < width)
        for (long long row = threadIdx.x / 32; row < num_rows; row += blockDim.x / 32)
            sum += g[row * width + column] * normalised[row * width + column];
    sum = sum_of_columns(sum);
    if (threadIdx.x < 32 && column < width) sums[column] = sum;
}
