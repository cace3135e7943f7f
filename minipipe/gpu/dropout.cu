// Dropout with the random numbers of NumPy's Philox: uniform (functional/dropping.py).
//
// Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": a block of four
// numbers of 64 bits is a function of a counter and a key. NumPy's first block has
// counter 1. Each number gives two of 32 bits, the lower half first, and the upper 24
// bits of these are a float32 from [0, 1).

typedef unsigned long long Word;

// A block of random numbers; key: seed, layer, step, microbatch, draw.
__device__ void philox(const Word* key, Word number, Word* block) {
    Word a = number + 1, b = key[2], c = key[3], d = key[4];
    Word low = key[0], high = key[1];
    for (int round = 0; round < 10; ++round) {
        const Word of_a = __umul64hi(0xD2E7470EE14C6C93ULL, a);
        const Word of_c = __umul64hi(0xCA5A826395121157ULL, c);
        const Word next_b = 0xCA5A826395121157ULL * c;
        const Word next_d = 0xD2E7470EE14C6C93ULL * a;
        a = of_c ^ b ^ low;
        c = of_a ^ d ^ high;
        b = next_b;
        d = next_d;
        low += 0x9E3779B97F4A7C15ULL;
        high += 0xBB67AE8584CAA73BULL;
    }
    block[0] = a;
    block[1] = b;
    block[2] = c;
    block[3] = d;
}

#define ELEMENTS 8  // of one thread: those of one block of random numbers

// The array is part `place` of `count` parts along some axis, of which all axes from
// there on have `inner` elements; the numbers are those of all parts.
extern "C" __global__ void dropped(
    const real* array, const Word* key, long long inner, long long place,
    long long count, double probability, real* result, bool* keep, long long size) {
    const real factor = 1 / (1 - probability);
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    Word block[4];
    long long drawn = -1;
    for (long long i = thread * ELEMENTS; i < (thread + 1) * ELEMENTS; ++i) {
        if (i >= size) return;
        long long number = i;
        if (count > 1) number = (i / inner * count + place) * inner + i % inner;
        if (number / ELEMENTS != drawn) {
            drawn = number / ELEMENTS;
            philox(key, drawn, block);
        }
        const int half = number % ELEMENTS;
        const unsigned bits = block[half / 2] >> 32 * (half % 2);
        keep[i] = (bits >> 8) * (1.0f / 16777216.0f) >= (float)probability;
        result[i] = keep[i] ? array[i] * factor : 0;
    }
}

// The gradient of dropped.
extern "C" __global__ void kept(
    const real* g, const bool* keep, double probability, real* result,
    long long size) {
    const real factor = 1 / (1 - probability);
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) result[i] = keep[i] ? g[i] * factor : 0;
}
