// The gradients of an embedding and of an index: rows with the same id, added up.
//
// add_rows (functional/embedding.py) adds the rows of an id in pairs, the pairs in
// pairs, and so on. The order depends on the ids alone, as atomic additions would not.
// Here the same tree grows from left to right: sums[level] is the sum of 2^level rows
// that waits for its right neighbour. Row k completes as many sums as k has trailing
// ones in binary. For an index, np.add.at adds one row after another to 0.

#define THREADS 128
#define COLUMNS 4     // of one thread
#define WINDOW 1024   // ids that a block reads between two barriers
#define LEVELS 32     // of a tree of less than 2^32 rows

// A block of THREADS for each row and COLUMNS * THREADS columns; the first row of an id
// adds up all, and the others do nothing. Rows of the result without an id stay as they
// are. If the ids are sorted, a block reads its own alone.
extern "C" __global__ void add_rows(
    const long long* ids, const real* rows, long long num_rows, long long width,
    long long is_sorted, long long in_pairs, real* result) {
    __shared__ unsigned matches[WINDOW / 32];  // a bit for each id of the window
    const long long num_parts = (width - 1) / (COLUMNS * THREADS) + 1;
    const long long own = blockIdx.x / num_parts, id = ids[own];
    const long long left = blockIdx.x % num_parts * COLUMNS * THREADS + threadIdx.x;
    if (is_sorted && own > 0 && ids[own - 1] == id) return;
    real sums[LEVELS][COLUMNS];
    for (int i = 0; i < COLUMNS; ++i) sums[0][i] = 0;
    long long count = 0;
    long long start = is_sorted ? own - own % WINDOW : 0;
    for (; start < num_rows; start += WINDOW) {
        for (int i = threadIdx.x; i < WINDOW / 32; i += THREADS) matches[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < WINDOW && start + i < num_rows; i += THREADS)
            if (ids[start + i] == id) atomicOr(&matches[i / 32], 1u << i % 32);
        __syncthreads();
        for (int word = 0; word < WINDOW / 32; ++word) {
            for (unsigned bits = matches[word]; bits; bits &= bits - 1) {
                const long long row = start + 32 * word + __ffs(bits) - 1;
                if (row < own) return;  // the whole block: an earlier one adds them
                real sum[COLUMNS];
                for (int i = 0; i < COLUMNS; ++i) {
                    const long long column = left + i * THREADS;
                    sum[i] = column < width ? rows[row * width + column] : 0;
                }
                int level = 0;
                for (; in_pairs && count >> level & 1; ++level)
                    for (int i = 0; i < COLUMNS; ++i) sum[i] = sums[level][i] + sum[i];
                for (int i = 0; i < COLUMNS; ++i)
                    sums[level][i] = in_pairs ? sum[i] : sums[0][i] + sum[i];
                count = in_pairs ? count + 1 : 1;
            }
        }
        if (is_sorted && !(matches[WINDOW / 32 - 1] >> 31)) break;  // no more of them
        __syncthreads();
    }
    int level = 0;
    while (!(count >> level & 1)) ++level;
    for (int upper = level + 1; count >> upper; ++upper)
        if (count >> upper & 1) {  // more rows, which come before the others
            for (int i = 0; i < COLUMNS; ++i)
                sums[upper][i] = sums[upper][i] + sums[level][i];
            level = upper;
        }
    for (int i = 0; i < COLUMNS; ++i) {
        const long long column = left + i * THREADS;
        if (column < width) result[id * width + column] = sums[level][i];
    }
}
