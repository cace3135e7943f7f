// Softmax and cross-entropy: a block for each row of scores.

__device__ inline real largest_of_row(const real* scores, long long width) {
    real largest = scores[0];
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        largest = maximum(largest, scores[i]);
    return largest_of_block(largest);
}

__device__ inline real sum_of_exponentials(
    const real* scores, real largest, long long width) {
    real sum = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        sum += exp(scores[i] - largest);
    return sum_of_block(sum);
}

KERNEL softmax(const real* scores, real* weights, long long width) {
    scores += blockIdx.x * width;
    weights += blockIdx.x * width;
    real largest = largest_of_row(scores, width);
    real sum = sum_of_exponentials(scores, largest, width);
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        weights[i] = exp(scores[i] - largest) / sum;
}

KERNEL softmax_gradient(
    const real* g, const real* weights, real* gradient, long long width) {
    g += blockIdx.x * width;
    weights += blockIdx.x * width;
    gradient += blockIdx.x * width;
    real sum = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        sum += g[i] * weights[i];
    sum = sum_of_block(sum);
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        gradient[i] = weights[i] * (g[i] - sum);
}

__device__ inline void log_softmax_of_row(
    const real* scores, real* logarithms, long long width) {
    real largest = largest_of_row(scores, width);
    real log_of_sum = log(sum_of_exponentials(scores, largest, width));
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        logarithms[i] = scores[i] - largest - log_of_sum;
}

KERNEL log_softmax(const real* scores, real* logarithms, long long width) {
    long long row = blockIdx.x * width;
    log_softmax_of_row(scores + row, logarithms + row, width);
}

KERNEL log_softmax_gradient(
    const real* g, const real* logarithms, real* gradient, long long width) {
    g += blockIdx.x * width;
    logarithms += blockIdx.x * width;
    gradient += blockIdx.x * width;
    real sum = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x) sum += g[i];
    sum = sum_of_block(sum);
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        gradient[i] = g[i] - exp(logarithms[i]) * sum;
}

// Cross-entropy. A row with the label -1 does not count. Labels are checked before; a
// wrong one makes the loss NaN.

// How much class i is wanted in a row that counts.
__device__ inline real wanted(
    long long i, long long label, real smoothing, long long width) {
    return (i == label) * (1 - smoothing) + smoothing / width;
}

// The logarithms of the softmax, and the loss of each row.
KERNEL losses_of_rows(
    const real* scores, const long long* labels, double smoothing, real* logarithms,
    real* losses, long long width) {
    logarithms += blockIdx.x * width;
    log_softmax_of_row(scores + blockIdx.x * width, logarithms, width);
    long long label = labels[blockIdx.x];
    real sum = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x) {
        real weight = wanted(i, label, smoothing, width);
        if (weight != 0) sum += weight * logarithms[i];
    }
    sum = sum_of_block(sum);
    if (label < -1 || label >= width) sum = log((real)-1);
    if (threadIdx.x == 0) losses[blockIdx.x] = label == -1 ? 0 : -sum;
}

// The sum of all losses over the number of labels that count, if there are some; or
// over 1.
KERNEL mean_of_losses(
    const real* losses, const long long* labels, long long is_mean, real* loss,
    real* total, long long num_rows) {
    real sum = 0, count = 0;
    for (long long i = threadIdx.x; i < num_rows; i += blockDim.x) {
        sum += losses[i];
        count += labels[i] != -1;
    }
    sum = sum_of_block(sum);
    count = sum_of_block(count);
    if (threadIdx.x > 0) return;
    *total = is_mean && count > 0 ? count : 1;
    *loss = sum / *total;
}

// (softmax - wanted) * g / total; g is the gradient of the loss, one number.
KERNEL gradient_of_logits(
    const real* logarithms, const long long* labels, const real* g, const real* total,
    double smoothing, real* gradient, long long width) {
    logarithms += blockIdx.x * width;
    gradient += blockIdx.x * width;
    real factor = *g / *total;
    long long label = labels[blockIdx.x];
    for (long long i = threadIdx.x; i < width; i += blockDim.x) {
        real difference = 0;
        if (label != -1)
            difference = exp(logarithms[i]) - wanted(i, label, smoothing, width);
        gradient[i] = difference * factor;
    }
}
