// Cross-entropy of labels: a block for each row of scores.

// The logarithms of the softmax, and that of the label.
KERNEL log_softmax_and_label(
    const real* scores, const long long* labels, real* logarithms, real* of_label,
    long long width) {
    scores += blockIdx.x * width;
    logarithms += blockIdx.x * width;
    real largest = scores[0];
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        largest = maximum(largest, scores[i]);
    largest = largest_of_block(largest);
    real sum = 0;
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        sum += exp(scores[i] - largest);
    real log_of_sum = log(sum_of_block(sum));
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        logarithms[i] = scores[i] - largest - log_of_sum;
    if (threadIdx.x == 0) {
        long long label = labels[blockIdx.x];
        bool exists = 0 <= label && label < width;
        // Labels are checked before; if not, the loss is NaN.
        real logarithm = exists ? scores[label] - largest - log_of_sum : log((real)-1);
        of_label[blockIdx.x] = logarithm;
    }
}

// (softmax - 1 at the label) * g / total; g is the gradient of the loss, one number.
KERNEL gradient_of_logits(
    const real* logarithms, const long long* labels, const real* g, double total,
    real* gradient, long long width) {
    logarithms += blockIdx.x * width;
    gradient += blockIdx.x * width;
    real factor = *g / (real)total;
    long long label = labels[blockIdx.x];
    for (long long i = threadIdx.x; i < width; i += blockDim.x)
        gradient[i] = (exp(logarithms[i]) - (i == label)) * factor;
}
