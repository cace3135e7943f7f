// The softmax of attention over keys, which are rows: a block for 32 columns of a
// matrix of num_keys rows. A column belongs to a query: queries of heads that share
// keys lie side by side, num_queries of each.

// Query q sees keys 0 to q only, if is_causal, and of these what the mask shows. Its
// shape is (samples, num_keys, mask_width), where mask_width is num_queries, or 1
// for all queries alike; null shows all.
__device__ inline void softmax_of_columns(
    const real* scores, const bool* mask, long long mask_width,
    long long matrices_of_sample, long long num_queries, bool is_causal, real* weights,
    long long num_keys, long long num_columns) {
    long long tiles = (num_columns + 31) / 32;
    long long matrix = blockIdx.x / tiles;
    long long column = blockIdx.x % tiles * 32 + threadIdx.x % 32;
    long long query = column % num_queries;
    long long num_seen = num_keys;
    if (is_causal && query < num_keys) num_seen = query + 1;
    if (column >= num_columns) num_seen = num_keys = 0;
    scores += matrix * num_keys * num_columns + column;
    weights += matrix * num_keys * num_columns + column;
    if (mask) {
        mask += matrix / matrices_of_sample * num_keys * mask_width;
        if (mask_width > 1) mask += query;
    }
    int first = threadIdx.x / 32, step = blockDim.x / 32;
    const real lowest = log((real)0);  // minus infinity

    real largest = lowest;
    for (long long key = first; key < num_seen; key += step) {
        real score = scores[key * num_columns];
        if (mask && !mask[key * mask_width]) score = lowest;
        largest = maximum(largest, score);
    }
    largest = largest_of_columns(largest);
    if (mask && largest == lowest) largest = 0;  // it sees nothing: all weights are 0

    real sum = 0;
    for (long long key = first; key < num_seen; key += step) {
        real score = scores[key * num_columns];
        if (mask && !mask[key * mask_width]) score = lowest;
        sum += exp(score - largest);
    }
    sum = sum_of_columns(sum);
    if (mask && sum == 0) sum = 1;

    for (long long key = first; key < num_keys; key += step) {
        real score = scores[key * num_columns];
        if (key >= num_seen || (mask && !mask[key * mask_width])) score = lowest;
        weights[key * num_columns] = exp(score - largest) / sum;
    }
}

KERNEL softmax_over_keys(
    const real* scores, long long num_queries, long long is_causal, real* weights,
    long long num_keys, long long num_columns) {
    softmax_of_columns(
        scores, 0, 1, 1, num_queries, is_causal, weights, num_keys, num_columns);
}

KERNEL masked_softmax_over_keys(
    const real* scores, const bool* mask, long long mask_width,
    long long matrices_of_sample, long long num_queries, long long is_causal,
    real* weights, long long num_keys, long long num_columns) {
    softmax_of_columns(
        scores, mask, mask_width, matrices_of_sample, num_queries, is_causal, weights,
        num_keys, num_columns);
}

// The gradient of scores, from that of the weights after dropout.
KERNEL gradient_of_scores(
    const real* g, const real* weights, const real* dropped, real* gradient,
    long long num_keys, long long num_columns) {
    long long tiles = (num_columns + 31) / 32;
    long long column = blockIdx.x % tiles * 32 + threadIdx.x % 32;
    long long start = blockIdx.x / tiles * num_keys * num_columns + column;
    if (column >= num_columns) num_keys = 0;
    g += start;
    weights += start;
    dropped += start;
    gradient += start;
    int first = threadIdx.x / 32, step = blockDim.x / 32;
    real sum = 0;
    for (long long key = first; key < num_keys; key += step)
        sum += g[key * num_columns] * dropped[key * num_columns];
    sum = sum_of_columns(sum);
    for (long long key = first; key < num_keys; key += step) {
        long long i = key * num_columns;
        gradient[i] = g[i] * dropped[i] - weights[i] * sum;
    }
}
