/* cuda_on_cpu.h - runs CUDA kernels, and the host code around them, on the CPU: for tests

   The .cu file is compiled as plain C++17 with the folder tests/cuda_on_cpu in front of the include path: cuda_runtime.h,
   cublas_v2.h, cudnn.h and so on there all come here. Link with cuda_on_cpu.cpp. No part of the CUDA Toolkit is needed.

   One thread of the system runs everything. Each CUDA thread is a fiber that gives way at barriers and warp operations
   only; a seed chooses the order. Three builds find different things:
     plain                    wrong results under any order of threads, blocks, streams and graph nodes; barriers and
                              shuffles that some threads don't reach; wrong launches, copies and captures
     ASan + UBSan             bounds to the byte, alignment, use after free
     race                     the .cu with -fsanitize=thread, everything else with -DCOC_RACE and without; not linked with
                              it, since the callbacks are here. Races in shared and global memory, reads of what nobody
                              wrote, accesses to host memory; counts of memory transactions
   Host code that touches device memory crashes in all three. What is found is printed and aborts.

   What the .cu has to keep to, which is nothing to nvcc:
     - launches are NNT_LAUNCH((kernel<...>), grid, block, dynamic shared bytes, stream, arguments...)
     - dynamic shared memory is named by NNT_DYN_SHARED(type, name)
     - no inline PTX, cooperative groups, textures, launches from kernels; in the race build neither std:: containers nor
       atomics of the host

   What this can't show: speed, the memory model (fences, "the last block sums up"), what the real cuBLAS supports, the
   last bits of CUDA's mathematical functions, registers and occupancy. */
#ifndef CUDA_ON_CPU_H
#define CUDA_ON_CPU_H

#include <stddef.h>
#include <stdint.h>

/* ============================================================================
   What tests set and ask; for C too
   ============================================================================ */

#ifdef __cplusplus
extern "C" {
#endif
enum { COC_AT_ONCE, COC_LATE, COC_AT_RANDOM };

void coc_seed(unsigned seed);           /* order of threads, blocks, graph nodes. 0: ascending, 1: descending, else random */
void coc_streams(int when);             /* queued work runs: COC_AT_ONCE; COC_LATE: when something waits for it */
void coc_memory(size_t bytes);          /* of each device; 0: none at all */
void coc_devices(int count);            /* -1: there is no driver */
void coc_fail_call(long n, int code);   /* the n-th call of the runtime or a library from now returns this; 0: none does */
void coc_fail_kernel(long n);           /* the n-th kernel from now dies while it runs: every later call fails */
void coc_recover(void);                 /* as if the process had been started again after that */
void coc_refuse(int on);                /* cublasLt finds no algorithm for any epilogue */
void coc_cudnn(int on);                 /* cuDNN has algorithms for convolutions; at first it has none */

long coc_calls(void);                   /* of the runtime and libraries since the start */
long coc_cudnn_calls(void);             /* those of cuDNN among them */
long coc_convolutions(void);            /* that cuDNN did since the start */
long coc_launches(void);
long coc_products(int batch);           /* calls of cublasGemmStridedBatchedEx with so many since the start */
long coc_epilogues(void);               /* products by cublasLt with something behind them since the start */
long coc_live(void);                    /* allocations, streams, events, graphs, handles that were not given back */
size_t coc_bytes(void), coc_peak_bytes(void);   /* device memory taken now, and at most since coc_memory was called */

/* Race build: memory transactions of kernels whose name has this text in it, over all accesses since the last call
   of coc_count_traffic(1). Sectors have 32 bytes; a request is one access by the threads of a warp. Passes: how often
   the 32 banks of shared memory are gone through. least: with the same words side by side. */
typedef struct coc_traffic { double requests, sectors, least_sectors, passes, least_passes; } coc_traffic;
void coc_count_traffic(int on);
coc_traffic coc_traffic_of(const char *kernel);
#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

/* ============================================================================
   The language: qualifiers, vectors, the thread's place
   ============================================================================ */

#define CUDA_ON_CPU 1
#define NNT_LAUNCH(kernel, grid, block, shared, stream, ...) \
    coc_launch(#kernel, kernel, dim3(grid), dim3(block), (size_t)(shared), stream, ##__VA_ARGS__)
#define NNT_DYN_SHARED(T, name) T *name = (T *)coc_dynamic_shared()

#define __global__ static
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define COC_UNCHECKED __attribute__((no_sanitize("thread")))

struct uint3 { unsigned x, y, z; };
struct alignas(8)  int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8)  uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8)  float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(4)  uchar4 { unsigned char x, y, z, w; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
static inline int2 make_int2(int x, int y) { return { x, y }; }
static inline int4 make_int4(int x, int y, int z, int w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }

struct coc_place { uint3 thread, block, threads, blocks; };
extern coc_place *coc_here;             /* of the running thread */
#define threadIdx (coc_here->thread)
#define blockIdx  (coc_here->block)
#define blockDim  (coc_here->threads)
#define gridDim   (coc_here->blocks)
static const int warpSize = 32;
void *coc_dynamic_shared();

/* ============================================================================
   Barriers, warp operations, atomics
   ============================================================================ */

enum { COC_BARRIER, COC_BARRIER_COUNT, COC_BARRIER_AND, COC_BARRIER_OR };
enum { COC_WARP_SYNC, COC_WARP_IDX, COC_WARP_UP, COC_WARP_DOWN, COC_WARP_XOR, COC_WARP_BALLOT };
int  coc_barrier(int kind, int predicate, int line);
void coc_warp(int kind, unsigned mask, int argument, int width, const void *in, void *out, size_t bytes, int line);

#define COC_LINE int line = __builtin_LINE()    /* of the caller: threads that wait at different lines are a mistake */
static inline void __syncthreads(COC_LINE) { coc_barrier(COC_BARRIER, 0, line); }
static inline int __syncthreads_count(int p, COC_LINE) { return coc_barrier(COC_BARRIER_COUNT, p, line); }
static inline int __syncthreads_and(int p, COC_LINE) { return coc_barrier(COC_BARRIER_AND, p, line); }
static inline int __syncthreads_or(int p, COC_LINE) { return coc_barrier(COC_BARRIER_OR, p, line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, COC_LINE) { coc_warp(COC_WARP_SYNC, mask, 0, 32, 0, 0, 0, line); }

#define COC_SHUFFLE(name, kind, A)                                                                                     \
    template <class T> static inline T name(unsigned mask, T v, A argument, int width = 32, COC_LINE)                  \
    {                                                                                                                  \
        T r;                                                                                                           \
        coc_warp(kind, mask, (int)argument, width, &v, &r, sizeof v, line);                                            \
        return r;                                                                                                      \
    }
COC_SHUFFLE(__shfl_sync, COC_WARP_IDX, int)
COC_SHUFFLE(__shfl_up_sync, COC_WARP_UP, unsigned)
COC_SHUFFLE(__shfl_down_sync, COC_WARP_DOWN, unsigned)
COC_SHUFFLE(__shfl_xor_sync, COC_WARP_XOR, int)
static inline unsigned __ballot_sync(unsigned mask, int p, COC_LINE)
{
    unsigned v = p != 0, r;
    coc_warp(COC_WARP_BALLOT, mask, 0, 32, &v, &r, sizeof v, line);
    return r;
}
static inline int __any_sync(unsigned mask, int p, COC_LINE) { return __ballot_sync(mask, p, line) != 0; }
static inline int __all_sync(unsigned mask, int p, COC_LINE) { return __ballot_sync(mask, !p, line) == 0; }

/* The callbacks of the race build see the access as one that may meet others of its kind. */
void coc_atomic(void *p, size_t bytes);
#define COC_ATOMIC(name, result)                                                                                       \
    template <class T> COC_UNCHECKED static inline T name(T *p, typename std::common_type<T>::type v)                  \
    {                                                                                                                  \
        T old;                                                                                                         \
        coc_atomic(p, sizeof *p);                                                                                      \
        old = *p;                                                                                                      \
        *p = result;                                                                                                   \
        return old;                                                                                                    \
    }
COC_ATOMIC(atomicAdd, (T)(old + v))
COC_ATOMIC(atomicMax, old > v ? old : v)
COC_ATOMIC(atomicMin, old < v ? old : v)
COC_ATOMIC(atomicExch, v)
COC_ATOMIC(atomicOr, (T)(old | v))

/* Copies to shared memory that land as late as they may: at the wait. */
void coc_copy_async(void *to, const void *from, size_t bytes);
void coc_copy_commit();
void coc_copy_wait(int prior);
static inline void __pipeline_memcpy_async(void *to, const void *from, size_t n) { coc_copy_async(to, from, n); }
static inline void __pipeline_commit() { coc_copy_commit(); }
static inline void __pipeline_wait_prior(int n) { coc_copy_wait(n); }

/* ============================================================================
   Arithmetic
   ============================================================================ */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __int_as_float(int u) { return __uint_as_float((unsigned)u); }
static inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline long min(long a, long b) { return a < b ? a : b; }
static inline long max(long a, long b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

/* Rounded once; -ffp-contract=off keeps them apart. */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __int2float_rn(int a) { return (float)a; }
static inline float __uint2float_rn(unsigned a) { return (float)a; }
static inline int __float2int_rn(float a) { return (int)rintf(a); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }

/* Functions that CUDA computes to some units in the last place give any value within that: no test can count on bits. */
float coc_about(float exact, float units);
#define __expf coc_expf                 /* the C library has these names too */
#define __logf coc_logf
#define rsqrtf coc_rsqrtf
static inline float coc_expf(float x) { return coc_about(expf(x), 2 + floorf(fabsf(1.173f * x))); }
static inline float coc_logf(float x) { return coc_about(logf(x), 3); }
static inline float coc_rsqrtf(float x) { return coc_about(1.0f / sqrtf(x), 2); }
static inline float __fdividef(float a, float b) { return coc_about(a / b, 2); }

uint16_t coc_to_half(float);
uint16_t coc_to_bfloat16(float);
float coc_from_half(uint16_t);
static inline float coc_from_bfloat16(uint16_t b) { return __uint_as_float((unsigned)b << 16); }
struct __half {
    uint16_t bits;
    __half() = default;
    __half(float f) : bits(coc_to_half(f)) {}
    operator float() const { return coc_from_half(bits); }
};
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : bits(coc_to_bfloat16(f)) {}
    operator float() const { return coc_from_bfloat16(bits); }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline __half __float2half(float f) { return __half(f); }
static inline __half __float2half_rn(float f) { return __half(f); }
static inline float __half2float(__half h) { return h; }
static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline float __bfloat162float(__nv_bfloat16 b) { return b; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return { a, b }; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return { v.x, v.y }; }

/* ============================================================================
   The runtime
   ============================================================================ */

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101, cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700, cudaErrorLaunchOutOfResources = 701, cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801, cudaErrorStreamCaptureUnsupported = 900, cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904, cudaErrorUnknown = 999
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16, cudaDevAttrL2CacheSize = 38, cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], major, minor, multiProcessorCount,
        l2CacheSize, maxThreadsPerMultiProcessor;
};
typedef struct coc_stream *cudaStream_t;
typedef struct coc_event *cudaEvent_t;
typedef struct coc_graph *cudaGraph_t, *cudaGraphExec_t;

const char *cudaGetErrorString(cudaError_t);
const char *cudaGetErrorName(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int *);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int device);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int device);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaRuntimeGetVersion(int *);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);

cudaError_t coc_malloc(void **, size_t, int pinned);
template <class T> static inline cudaError_t coc_malloc_as(T **p, size_t bytes, int pinned)
{
    void *v = 0;
    cudaError_t e = coc_malloc(&v, bytes, pinned);
    if (!e) *p = (T *)v;
    return e;
}
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t n) { return coc_malloc_as(p, n, 0); }
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t n) { return coc_malloc_as(p, n, 1); }
template <class T> static inline cudaError_t cudaHostAlloc(T **p, size_t n, unsigned) { return coc_malloc_as(p, n, 1); }
cudaError_t cudaFree(void *);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaMemcpy(void *to, const void *from, size_t, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t, cudaMemcpyKind, cudaStream_t = 0);
cudaError_t cudaMemset(void *, int value, size_t);
cudaError_t cudaMemsetAsync(void *, int value, size_t, cudaStream_t = 0);

cudaError_t cudaStreamCreate(cudaStream_t *);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);
cudaError_t cudaEventCreate(cudaEvent_t *);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = 0);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t);
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

cudaError_t coc_function_attribute(const void *, cudaFuncAttribute, int);
template <class F> static inline cudaError_t cudaFuncSetAttribute(F *f, cudaFuncAttribute a, int v)
{
    return coc_function_attribute((const void *)f, a, v);
}

/* A launch: arguments are converted to the parameters' types and copied when it is made, as nvcc does. */
struct coc_call {
    virtual void run() const = 0;
    virtual ~coc_call() {}
    size_t bytes;
};
template <class... P> struct coc_call_of : coc_call {
    void (*kernel)(P...);
    std::tuple<typename std::remove_cv<P>::type...> arguments;
    template <class... A> coc_call_of(void (*k)(P...), A &&...a) : kernel(k), arguments(static_cast<P>(a)...) { bytes = sizeof *this; }
    COC_UNCHECKED void run() const { std::apply(kernel, arguments); }
};
void coc_enqueue(const char *name, const char *types, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t, coc_call *);
template <class... P, class... A>
COC_UNCHECKED static inline void coc_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                            cudaStream_t s, A &&...a)
{
    static_assert(sizeof...(P) == sizeof...(A), "a kernel is launched with the wrong number of arguments");
    coc_enqueue(name, __PRETTY_FUNCTION__, (const void *)kernel, grid, block, shared, s, new coc_call_of<P...>(kernel, a...));
}

/* ============================================================================
   cuBLAS and cuBLASLt: products, and what can follow them
   ============================================================================ */

enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
typedef cudaDataType_t cudaDataType;
enum cublasComputeType_t {
    CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_32F_FAST_16BF = 75,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};
enum cublasMath_t {
    CUBLAS_DEFAULT_MATH = 0, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
};
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };
enum cublasAtomicsMode_t { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 };
typedef struct coc_blas *cublasHandle_t, *cublasLtHandle_t;

const char *cublasGetStatusString(cublasStatus_t);
cublasStatus_t cublasCreate(cublasHandle_t *);
cublasStatus_t cublasDestroy(cublasHandle_t);
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t);
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t);
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t);
cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType, int lda, long long stride_a, const void *b, cudaDataType, int ldb, long long stride_b, const void *beta,
    void *c, cudaDataType, int ldc, long long stride_c, int batch, cublasComputeType_t, cublasGemmAlgo_t);
static inline cublasStatus_t cublasGemmEx(
    cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType at, int lda, const void *b, cudaDataType bt, int ldb, const void *beta, void *c, cudaDataType ct, int ldc,
    cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, compute, algo);
}
static inline cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *alpha, const float *a,
    int lda, long long sa, const float *b, int ldb, long long sb, const float *beta, float *c, int ldc, long long sc, int batch)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, sa, b, CUDA_R_32F, ldb, sb, beta, c,
                                      CUDA_R_32F, ldc, sc, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
static inline cublasStatus_t cublasSgemm(
    cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *alpha, const float *a,
    int lda, const float *b, int ldb, const float *beta, float *c, int ldc)
{
    return cublasSgemmStridedBatched(h, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}

enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_TRANSB = 4, CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26
};
/* Bits: 2 relu, 4 bias, 8 gradient of relu, 16 gradient of the bias, 128 with the relu's mask, 256 and 512 sums of A, B. */
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_RELU_AUX = 130, CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_RELU_BIAS = 6, CUBLASLT_EPILOGUE_RELU_AUX_BIAS = 134, CUBLASLT_EPILOGUE_DRELU = 136,
    CUBLASLT_EPILOGUE_DRELU_BGRAD = 152, CUBLASLT_EPILOGUE_BGRADA = 256, CUBLASLT_EPILOGUE_BGRADB = 512
};
enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
};
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
};
enum cublasLtReductionScheme_t {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0, CUBLASLT_REDUCTION_SCHEME_INPLACE = 1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4, CUBLASLT_REDUCTION_SCHEME_MASK = 7
};
typedef struct coc_matmul *cublasLtMatmulDesc_t;
typedef struct coc_layout *cublasLtMatrixLayout_t;
typedef struct coc_preference *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t { uint64_t data[8]; };
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
};
cublasStatus_t cublasLtCreate(cublasLtHandle_t *);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *, cudaDataType, uint64_t rows, uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t *, int *got);
cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t, const void *alpha, const void *a, cublasLtMatrixLayout_t, const void *b,
    cublasLtMatrixLayout_t, const void *beta, const void *c, cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t,
    const cublasLtMatmulAlgo_t *, void *workspace, size_t, cudaStream_t);

/* ============================================================================
   cuDNN: convolutions of floats in NCHW
   ============================================================================ */

#define CUDNN_MAJOR 9
#define CUDNN_STATUS_CATEGORY(s) ((s) / 1000 * 1000)
enum cudnnStatus_t {
    CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1001, CUDNN_STATUS_BAD_PARAM = 2000, CUDNN_STATUS_NOT_SUPPORTED = 3000,
    CUDNN_STATUS_NOT_SUPPORTED_SHAPE = 3002, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003,
    CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004, CUDNN_STATUS_EXECUTION_FAILED = 5000
};
enum cudnnDataType_t { CUDNN_DATA_FLOAT = 0 };
enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW = 0 };
enum cudnnConvolutionMode_t { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 };
enum cudnnMathType_t {
    CUDNN_DEFAULT_MATH = 0, CUDNN_TENSOR_OP_MATH = 1, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2, CUDNN_FMA_MATH = 3
};
enum cudnnDeterminism_t { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 };
enum cudnnConvolutionFwdAlgo_t : int {};          /* the emulated ones are in cuda_on_cpu.cpp */
enum cudnnConvolutionBwdDataAlgo_t : int {};
enum cudnnConvolutionBwdFilterAlgo_t : int {};
template <class A> struct coc_performance {
    A algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
};
typedef coc_performance<cudnnConvolutionFwdAlgo_t> cudnnConvolutionFwdAlgoPerf_t;
typedef coc_performance<cudnnConvolutionBwdDataAlgo_t> cudnnConvolutionBwdDataAlgoPerf_t;
typedef coc_performance<cudnnConvolutionBwdFilterAlgo_t> cudnnConvolutionBwdFilterAlgoPerf_t;
typedef struct coc_dnn *cudnnHandle_t;
typedef struct coc_tensor *cudnnTensorDescriptor_t;
typedef struct coc_filter *cudnnFilterDescriptor_t;
typedef struct coc_convolution *cudnnConvolutionDescriptor_t;

const char *cudnnGetErrorString(cudnnStatus_t);
cudnnStatus_t cudnnCreate(cudnnHandle_t *);
cudnnStatus_t cudnnDestroy(cudnnHandle_t);
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t);
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t, int n, int c, int h, int w);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int k, int c, int h, int w);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t);
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t, int pad_h, int pad_w, int stride_h, int stride_w,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t, cudnnDataType_t);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t, int);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t);
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t y,
    int wanted, int *got, cudnnConvolutionFwdAlgoPerf_t *);
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t dx,
    int wanted, int *got, cudnnConvolutionBwdDataAlgoPerf_t *);
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t, cudnnFilterDescriptor_t dw,
    int wanted, int *got, cudnnConvolutionBwdFilterAlgoPerf_t *);
cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t, const void *alpha, cudnnTensorDescriptor_t, const void *x, cudnnFilterDescriptor_t, const void *w,
    cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, void *workspace, size_t, const void *beta, cudnnTensorDescriptor_t, void *y);
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t, const void *alpha, cudnnFilterDescriptor_t, const void *w, cudnnTensorDescriptor_t, const void *dy,
    cudnnConvolutionDescriptor_t, cudnnConvolutionBwdDataAlgo_t, void *workspace, size_t, const void *beta, cudnnTensorDescriptor_t, void *dx);
cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t, const void *alpha, cudnnTensorDescriptor_t, const void *x, cudnnTensorDescriptor_t, const void *dy,
    cudnnConvolutionDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, void *workspace, size_t, const void *beta, cudnnFilterDescriptor_t, void *dw);
#endif
#endif
