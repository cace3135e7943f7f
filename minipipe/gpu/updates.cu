// Launches over many arrays: SGD, Adam and AdamW (optim/rules.py); sums of squares, and
// a factor, of gradients (optim/scaling.py).
//
// Every operation rounds as there: compile without fused multiply-add.

// Addresses of a parameter's values, its gradient and two arrays of the state; or the
// address of a gradient, and its place among the sums.
struct Entry {
    long long values, gradient, first, second, size, first_block;
};

// NumPy halves a sum until at most 128 numbers are left, at multiples of eight. After
// so many halvings no part has more than 16 or 17 eights, and perhaps a rest.
__device__ int depth_of(long long size) {
    int depth = 0;
    while (size / 136 >> depth) depth++;
    return depth;
}

// An entry has a block for each 32 of these parts.
__device__ long long blocks_of(long long size) {
    const int depth = depth_of(size);
    return depth > 5 ? 1LL << (depth - 5) : 1;
}

// Return the entry that this block belongs to.
__device__ const Entry* entry_of_block(const Entry* entries, long long num_entries) {
    long long low = 0, high = num_entries;
    while (high - low > 1) {
        const long long middle = (low + high) / 2;
        if (entries[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return entries + low;
}

// The first element that a thread visits; its entry's blocks go on by `step_of`.
__device__ long long first_of(const Entry& entry) {
    return (blockIdx.x - entry.first_block) * blockDim.x + threadIdx.x;
}

__device__ long long step_of(const Entry& entry) {
    return blocks_of(entry.size) * blockDim.x;
}

extern "C" __global__ void sgd(
    const Entry* entries, long long num_entries, double rate, double momentum,
    double decay, long long nesterov) {
    const Entry entry = *entry_of_block(entries, num_entries);
    real* __restrict__ values = (real*)entry.values;
    const real* __restrict__ gradient = (const real*)entry.gradient;
    real* __restrict__ velocity = (real*)entry.first;
    const long long step = step_of(entry);
    for (long long i = first_of(entry); i < entry.size; i += step) {
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
    const long long step = step_of(entry);
    for (long long i = first_of(entry); i < entry.size; i += step) {
        const real p = values[i] * (real)shrink;
        real g = gradient[i];
        if (decay != 0) g = g + (real)decay * p;
        const real m = mean[i] * (real)beta1 + (real)(1 - beta1) * g;
        const real v = mean_square[i] * (real)beta2 + (real)(1 - beta2) * (g * g);
        real change = (real)rate * m;
        if (nesterov) change = (real)ahead * m + (real)(rate * (1 - beta1)) * g;
        mean[i] = m;
        mean_square[i] = v;
        values[i] = p - change / (sqrt(v) + (real)epsilon);
    }
}

extern "C" __global__ void scale(
    const Entry* entries, long long num_entries, double factor) {
    const Entry entry = *entry_of_block(entries, num_entries);
    real* __restrict__ values = (real*)entry.values;
    const long long step = step_of(entry);
    for (long long i = first_of(entry); i < entry.size; i += step)
        values[i] = values[i] * (real)factor;
}

// -- sums of squares, in the order of NumPy ---------------------------------------------

// Return the sum of at most 128 squares, in each of eight lanes: each adds up every
// eighth, then they are added in pairs, then come the last few.
__device__ double sum_of_few(const real* values, long long count) {
    const long long rest = count / 8 * 8;
    double sum = 0;
    for (long long i = threadIdx.x % 8; i < rest; i += 8)
        sum += (double)values[i] * (double)values[i];
    for (int distance = 1; distance < 8; distance *= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    for (long long i = rest; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

// Write the sum of 32 parts of an entry, which is a number for each block of 256
// threads. Eight lanes have a part each.
extern "C" __global__ void sums_of_parts(
    const Entry* entries, long long sums, long long num_entries) {
    const Entry entry = *entry_of_block(entries, num_entries);
    const int depth = depth_of(entry.size);
    const long long part = (blockIdx.x - entry.first_block) * 32 + threadIdx.x / 8;
    long long first = 0, count = entry.size / 8;  // in eights
    for (int level = depth - 1; level >= 0; level--) {
        const long long half = count / 2;
        const long long is_right = part >> level & 1;
        first += is_right * half;
        count = is_right ? count - half : half;
    }
    count *= 8;
    if (part == (1LL << depth) - 1) count += entry.size % 8;
    if (part >= 1LL << depth) count = 0;  // of a small entry: adds 0
    const long long half = count > 128 ? count / 16 * 8 : count;
    const real* values = (const real*)entry.values + first * 8;
    double sum = sum_of_few(values, half);
    sum += sum_of_few(values + half, count - half);
    for (int distance = 8; distance < 32; distance *= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    __shared__ double of_warps[8];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = of_warps[threadIdx.x % 8];
    for (int distance = 1; distance < 8; distance *= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (threadIdx.x == 0) ((double*)sums)[blockIdx.x] = sum;
}

// Add up the sums of each entry, a block each, in pairs of neighbours.
extern "C" __global__ void sums_of_entries(
    const Entry* entries, long long sums, long long results) {
    const Entry entry = entries[blockIdx.x];
    const long long count = blocks_of(entry.size);
    double* own = (double*)sums + entry.first_block;
    for (long long distance = 1; distance < count; distance *= 2) {
        const long long pair = 2 * distance;
        for (long long i = pair * threadIdx.x; i < count; i += pair * blockDim.x)
            own[i] += own[i + distance];
        __syncthreads();
    }
    if (threadIdx.x == 0) ((double*)results)[entry.gradient] = own[0];
}
