// CUDA C++ on a CPU: the threads of a block are fibers that take turns.
//
// A fiber runs until it has to wait for its warp (a shuffle) or its block
// (__syncthreads), or ends. Once all of them wait for the same thing they go on. If
// some wait for what others will never reach, or a kernel shuffles in only a part of a
// warp, launch() returns an error; a GPU would hang or compute nonsense.

#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <deque>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

using namespace std;

struct Dim {
    unsigned x = 1, y = 1, z = 1;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __constant__ static
// Blocks run one after the other: they share the memory, full of NaN at first.
#define __shared__ static __attribute__((section("shared")))
__shared__ __attribute__((used)) double some_shared_memory;
extern "C" char __start_shared[], __stop_shared[];

enum State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED };

struct Fiber {
    jmp_buf place;  // where it goes on; setjmp takes a tenth of the time of swapcontext
    ucontext_t context;  // where it begins
    vector<char> stack = vector<char>(1 << 16);
    bool has_begun = false;
    State state;
    int num_shuffles;
};

static deque<Fiber> fibers;
static jmp_buf scheduler;
static unsigned current;
static unsigned char slots[2][1024][16];  // of shuffles, by parity and thread
static void (*body)();

static void stop(State state) {
    fibers[current].state = state;
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

static void enter() {
    for (;;) {  // a fiber runs one thread of each block
        body();
        stop(ENDED);
    }
}

__attribute__((noinline)) static void resume() {
    if (_setjmp(scheduler)) return;
    Fiber& fiber = fibers[current];
    if (fiber.has_begun) _longjmp(fiber.place, 1);
    fiber.has_begun = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
    setcontext(&fiber.context);
}

static void __syncthreads() { stop(WAITS_FOR_BLOCK); }
static void __syncwarp(unsigned = 0xffffffff) { stop(WAITS_FOR_WARP); }
static void __threadfence() {}

// What a lane reads may be overwritten only by the shuffle after the next one.
template <class T> T exchanged(T value, unsigned lane) {
    unsigned first = current / 32 * 32, parity = fibers[current].num_shuffles++ % 2;
    memcpy(slots[parity][current], &value, sizeof(T));
    stop(WAITS_FOR_WARP);
    memcpy(&value, slots[parity][first + lane], sizeof(T));
    return value;
}
template <class T> T __shfl_sync(unsigned, T value, int lane) {
    return exchanged(value, lane % 32);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    return exchanged(value, (current % 32) ^ mask);
}
template <class T> T __shfl_down_sync(unsigned, T value, int delta) {
    unsigned lane = current % 32;
    return exchanged(value, lane + delta < 32 ? lane + delta : lane);
}
template <class T> T __shfl_up_sync(unsigned, T value, int delta) {
    int lane = current % 32;
    return exchanged(value, lane >= delta ? lane - delta : lane);
}

static unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static double __longlong_as_double(long long bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
template <class T> T atomicAdd(T* address, T value) {
    T old = *address;
    *address += value;
    return old;
}
static unsigned atomicOr(unsigned* address, unsigned value) {
    unsigned old = *address;
    *address |= value;
    return old;
}
static int __ffs(int bits) { return __builtin_ffs(bits); }

static bool release(unsigned first, unsigned end, State waiting) {
    unsigned num_waiting = 0, num_ended = 0;
    for (unsigned i = first; i < end; i++) {
        num_waiting += fibers[i].state == waiting;
        num_ended += fibers[i].state == ENDED;
    }
    // A shuffle needs all lanes; a barrier does not wait for threads that have ended.
    unsigned num_there = num_waiting;
    if (waiting == WAITS_FOR_BLOCK) num_there += num_ended;
    if (num_waiting == 0 || num_there != end - first) return false;
    for (unsigned i = first; i < end; i++)
        if (fibers[i].state == waiting) fibers[i].state = RUNS;
    return true;
}

// Runs each warp as far as it goes without the others, the first or the last one first:
// a barrier that is missing makes a difference.
static bool run_block(unsigned num_threads, bool is_reversed) {
    memset(__start_shared, 255, __stop_shared - __start_shared);
    for (unsigned i = 0; i < num_threads; i++) {
        fibers[i].state = RUNS;
        fibers[i].num_shuffles = 0;
    }
    unsigned num_warps = (num_threads + 31) / 32;
    for (;;) {
        for (unsigned i = 0; i < num_warps; i++) {
            unsigned first = (is_reversed ? num_warps - 1 - i : i) * 32;
            unsigned end = min(first + 32, num_threads);
            do {
                for (current = first; current < end; current++) {
                    if (fibers[current].state != RUNS) continue;
                    threadIdx.x = current % blockDim.x;
                    threadIdx.y = current / blockDim.x % blockDim.y;
                    threadIdx.z = current / blockDim.x / blockDim.y;
                    resume();
                }
            } while (release(first, end, WAITS_FOR_WARP));
        }
        unsigned num_ended = 0;
        for (unsigned i = 0; i < num_threads; i++)
            num_ended += fibers[i].state == ENDED;
        if (num_ended == num_threads) return true;
        if (!release(0, num_threads, WAITS_FOR_BLOCK)) {
            for (Fiber& fiber : fibers) fiber.has_begun = false;
            return false;
        }
    }
}

// The kinds of arguments, as CuPy passes them.
template <class T> char kind() {
    if (is_pointer<T>::value) return 'p';
    if (is_same<T, long long>::value) return 'i';
    if (is_same<T, unsigned long long>::value) return 'i';
    if (is_same<T, double>::value) return 'd';
    return '?';
}

template <class... A, size_t... I>
int launch_with(void (*kernel)(A...), const unsigned* dims, void** arguments,
                const char* kinds, index_sequence<I...>) {
    const char expected[] = {kind<A>()..., 0};
    if (strcmp(expected, kinds)) {
        fprintf(stderr, "The kernel takes %s; it is given %s.\n", expected, kinds);
        return 1;
    }
    static void (*called)(A...);
    static void** given;
    called = kernel;
    given = arguments;
    body = [] { called(*(A*)given[I]...); };
    gridDim = {dims[0], dims[1], dims[2]};
    blockDim = {dims[3], dims[4], dims[5]};
    unsigned num_threads = blockDim.x * blockDim.y * blockDim.z;
    if (num_threads == 0 || num_threads > 1024) return 2;
    if (gridDim.x == 0 || gridDim.y == 0 || gridDim.z == 0) return 2;
    if (gridDim.y > 65535 || gridDim.z > 65535) return 2;
    if (fibers.size() < num_threads) fibers.resize(num_threads);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                if (!run_block(num_threads, dims[6])) return 3;
    return 0;
}

// CuPy compiles with -ftz=true, so denormal numbers are 0, but not those of double.
template <class... A>
int launch(void (*kernel)(A...), const unsigned* dims, void** arguments,
           const char* kinds) {
#ifdef __SSE__
    unsigned before = _mm_getcsr();
    if (IS_SINGLE) _mm_setcsr(before | 0x8040);  // results, and operands
#endif
    int code = launch_with(kernel, dims, arguments, kinds, index_sequence_for<A...>());
#ifdef __SSE__
    _mm_setcsr(before);
#endif
    return code;
}
