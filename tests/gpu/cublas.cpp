// The functions of cuBLAS that minipipe calls, on the memory of the host: columns lie one
// after the other. Where cuBLAS reads and writes other memory than it should, so does
// this; what it refuses is refused.
#include <cstdint>
#include <cstring>

struct Handle {
    void* stream;
    size_t workspace;
    int mode;
};

static float from_half(uint16_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return value;
}

static uint16_t to_half(float value) {
    _Float16 half = value;
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}

static float from_brain(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_brain(float value) {  // rounds to even
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    return (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
}

static float to_tf32(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    std::memcpy(&value, &bits, 4);
    return value;
}

static double load(const void* array, int kind, int64_t i) {
    if (kind == 0) return static_cast<const float*>(array)[i];
    if (kind == 1) return static_cast<const double*>(array)[i];
    uint16_t bits = static_cast<const uint16_t*>(array)[i];
    return kind == 2 ? from_half(bits) : from_brain(bits);
}

static void store(void* array, int kind, int64_t i, double value) {
    if (kind == 0) static_cast<float*>(array)[i] = value;
    else if (kind == 1) static_cast<double*>(array)[i] = value;
    else static_cast<uint16_t*>(array)[i] = kind == 2 ? to_half(value) : to_brain(value);
}

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

extern "C" {

int num_products = 0;
int num_with_columns = 0;  // operands that are read as columns one after the other

int cublasCreate_v2(Handle** handle) {
    *handle = new Handle{nullptr, 0, 0};
    return SUCCESS;
}

int cublasSetStream_v2(Handle* handle, void* stream) {
    handle->stream = stream;
    handle->workspace = 0;
    return SUCCESS;
}

int cublasSetWorkspace_v2(Handle* handle, void* memory, size_t size) {
    if (!memory || reinterpret_cast<uintptr_t>(memory) % 16) return INVALID_VALUE;
    handle->workspace = size;
    return SUCCESS;
}

int cublasSetMathMode(Handle* handle, int mode) {
    handle->mode = mode;
    return SUCCESS;
}

int cublasGemmStridedBatchedEx(Handle* handle, int op_a, int op_b, int m, int n, int k,
        const void* alpha, const void* a, int kind_a, int lda, long long stride_a,
        const void* b, int kind_b, int ldb, long long stride_b, const void* beta,
        void* c, int kind_c, int ldc, long long stride_c, int count, int sums, int) {
    if (!handle || handle->workspace < 32u << 20 || handle->mode != 16)
        return NOT_INITIALIZED;
    if (lda < (op_a ? k : m) || ldb < (op_b ? n : k) || ldc < m || m < 1 || n < 1 || k < 1)
        return INVALID_VALUE;
    if (kind_a != kind_b || kind_a != kind_c || (sums == 70) != (kind_a == 1) ||
        (sums == 77 && kind_a != 0) || (sums != 68 && sums != 70 && sums != 77))
        return NOT_SUPPORTED;
    double scale = sums == 70 ? *static_cast<const double*>(alpha)
                              : *static_cast<const float*>(alpha);
    double old = sums == 70 ? *static_cast<const double*>(beta)
                            : *static_cast<const float*>(beta);
    if (scale != 1 || old != 0) return NOT_SUPPORTED;
    num_products++;
    num_with_columns += !!op_a + !!op_b;
    for (int64_t batch = 0; batch < count; batch++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t p = 0; p < k; p++) {
                    int64_t at_a = (op_a ? p + i * lda : i + p * lda) + batch * stride_a;
                    int64_t at_b = (op_b ? j + p * ldb : p + j * ldb) + batch * stride_b;
                    double x = load(a, kind_a, at_a), y = load(b, kind_b, at_b);
                    if (sums == 77) x = to_tf32(x), y = to_tf32(y);
                    sum += x * y;
                }
                store(c, kind_c, i + j * ldc + batch * stride_c, sum);
            }
    return SUCCESS;
}

int cublasGemmEx(Handle* handle, int op_a, int op_b, int m, int n, int k,
        const void* alpha, const void* a, int kind_a, int lda, const void* b, int kind_b,
        int ldb, const void* beta, void* c, int kind_c, int ldc, int sums, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, kind_a, lda, 0,
        b, kind_b, ldb, 0, beta, c, kind_c, ldc, 0, 1, sums, algorithm);
}
}
