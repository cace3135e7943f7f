// One launch that changes many parameters: SGD, Adam and AdamW (optim/rules.py).
//
// Every operation rounds as there: compile without fused multiply-add.

#define CHUNK 4096  // elements of one block

// A parameter; addresses of the values, the gradient and two arrays of the state.
struct Entry {
    long long values, gradient, first, second, size, first_chunk;
};

// Return the parameter that the chunk of this block belongs to.
__device__ const Entry* entry_of_block(const Entry* entries, long long num_entries) {
    long long low = 0, high = num_entries;
    while (high - low > 1) {
        const long long middle = (low + high) / 2;
        if (entries[middle].first_chunk <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return entries + low;
}

extern "C" __global__ void sgd(
    const Entry* entries, long long num_entries, double rate, double momentum,
    double decay, long long nesterov) {
    const Entry entry = *entry_of_block(entries, num_entries);
    real* __restrict__ values = (real*)entry.values;
    const real* __restrict__ gradient = (const real*)entry.gradient;
    real* __restrict__ velocity = (real*)entry.first;
    const long long start = (blockIdx.x - entry.first_chunk) * CHUNK;
    const long long stop = start + CHUNK < entry.size ? start + CHUNK : entry.size;
    for (long long i = start + threadIdx.x; i < stop; i += blockDim.x) {
        const real p = values[i];
        real g = gradient[i];
        if (decay != 0) g = g + (real)decay * p;
        if (momentum != 0) {
            const real v = velocity[i] * (real)momentum + g;
            velocity[i] = v;
            g = nesterov ? g + (real)momentum * v : v;
        }
        values[i] = p - (real)rate * g;
    }
}

extern "C" __global__ void adam(
    const Entry* entries, long long num_entries, double beta1, double beta2,
    double rate, double epsilon, double ahead, double shrink, double decay,
    long long nesterov) {
    const Entry entry = *entry_of_block(entries, num_entries);
    real* __restrict__ values = (real*)entry.values;
    const real* __restrict__ gradient = (const real*)entry.gradient;
    real* __restrict__ mean = (real*)entry.first;
    real* __restrict__ mean_square = (real*)entry.second;
    const long long start = (blockIdx.x - entry.first_chunk) * CHUNK;
    const long long stop = start + CHUNK < entry.size ? start + CHUNK : entry.size;
    for (long long i = start + threadIdx.x; i < stop; i += blockDim.x) {
        const real p = values[i] * (real)shrink;
        real g = gradient[i];
        if (decay != 0) g = g + (real)decay * p;
        const real m = mean[i] * (real)beta1 + (real)(1 - beta1) * g;
        const real v = mean_square[i] * (real)beta2 + (real)(1 - beta2) * (g * g);
        real step = (real)rate * m;
        if (nesterov) step = (real)ahead * m + (real)(rate * (1 - beta1)) * g;
        mean[i] = m;
        mean_square[i] = v;
        values[i] = p - step / (sqrt(v) + (real)epsilon);
    }
}
