/* nntrain_cuda.cu - the device "cuda" of nntrain.h - license: that of nntrain.h

   Compile and link this file with a program, and "cuda", "cuda:1", ... are devices beside "cpu":

       nvcc -O3 -arch=native program.c nntrain_cuda.cu -lcublas -lcublasLt
       build.device = "cuda";

   The object has to be linked itself: from a static library nothing would pull it in, since it is nobody's callee. It
   registers its backend when the program starts. It needs the CUDA Toolkit 12 or newer, a card of compute
   capability 7.5 (Turing) or newer, and a program without NNT_STATIC.

   CONFIGURATION
     NNT_CUDA_CHUNK      (32 << 20)   bytes of a column matrix, or of tiles' transforms, that lie in memory at one time; see
                                      >>conv and >>winograd
     NNT_CUDA_AHEAD      (64 << 10)   uploads from so many bytes on overlap with what runs; see >>backend
     NNT_CUDA_NO_GRAPH   not defined  kernels are launched one by one, not replayed as a graph
     NNT_CUDA_SYNC       not defined  waits for every op, so that any failure is told with its op; implies NO_GRAPH
     NNT_EXACT_CONV      not defined  as in nntrain.h: no convolution by Winograd's products
     NNT_CUDNN           not defined  convolutions by cuDNN (9 or newer; -lcudnn) where it has an algorithm: see >>cudnn
     NNT_CUDNN_BYTES     (64 << 20)   workspace that such an algorithm may take

   HOW IT IS CUT
     A step comes as a list of resolved ops (nnt_op); each kind has a function here that launches kernels. Kernels are
     written once for each way of walking through memory, and what they compute is handed to them as a functor:
       nnti_cuda_map      y[i] = f(a[i], b[i], c[i]), four values at a time
       nnti_cuda_each     f(i) for every i: what needs an index (images, windows, channels, random numbers)
       nnti_cuda_reduce   two sums over many values for each of many items; nnti_cuda_finish adds the parts up
       nnti_cuda_rows     a warp, or a thread, for each sample or position: softmax, cross-entropy
     Matrix products are cuBLAS's. Values are NCHW, f32, as everywhere in the library; with NNT_BF16 activations and their
     gradients lie in memory as bfloat16, and all that handles them is there once for each (T: see >>kernels).

   MEMORY
     The net's memory is one cudaMalloc of as many bytes as nnt_plan says. Beside it a device that is open takes cuBLAS's
     own memory (and cuDNN's), a workspace for it (4 MiB, 32 MiB from compute capability 9.0 on), and 8 MiB of pinned
     memory of the host. A step takes nothing. Kernels run on one stream of the device's own, a batch comes in on a second one while
     the step before is still computing; nothing runs on the default stream.

   DETERMINISM
     The same program gives the same bits on the same card: no atomics, sums are cut by shapes only and taken in a
     fixed order (in double), cuBLAS has one stream and a workspace of its own, and of cuDNN's algorithms only those are
     taken that it calls deterministic. Random numbers, and so the masks of
     dropout and noise, have the same bits as on the CPU: only operations whose rounding is defined take part.
     Everything else agrees with the CPU up to rounding.

   GRAPHS
     The first time that a list of ops comes, each op is waited for, so that a fault is told with its layer. The second
     time the list is captured as a CUDA graph, from then on it is replayed. What changes from step to step (seed and
     step of the random numbers) lies in device memory and is read by the kernels; what differs between graphs (samples in
     the batch, whether gradients are added) tells them apart. The update, whose learning rate changes, is one kernel and
     launched as it is.

   ERRORS
     Every call of CUDA and cuBLAS is checked; a failure becomes a code and a sentence with the op's name. After a fault
     in a kernel CUDA gives no access to the card in this process any more; the device then says so, and the program can
     go on on "cpu". Nothing is printed, nothing aborts. */

#include "nntrain.h"
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <cublasLt.h>
#if defined(NNT_CUDNN)
#  include <cudnn.h>
#  if CUDNN_MAJOR < 9
#    error "nntrain_cuda.cu: NNT_CUDNN needs cuDNN 9 or newer"
#  endif
#endif
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

/* How kernels are launched; tests compile this file for the CPU and define both for that. */
#ifndef NNT_LAUNCH
#  define NNT_LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#endif
#if defined(__CUDACC__)
#  define NNTI_CUDA_UNROLL _Pragma("unroll")        /* loops over arrays that have to be registers */
#else
#  define NNTI_CUDA_UNROLL
#endif
#ifndef NNT_CUDA_CHUNK
#  define NNT_CUDA_CHUNK (32 << 20)
#endif
#ifndef NNT_CUDA_AHEAD
#  define NNT_CUDA_AHEAD (64 << 10)
#endif
#ifndef NNT_CUDNN_BYTES
#  define NNT_CUDNN_BYTES (64 << 20)
#endif

namespace {

/* ============================================================================
   >>device   What an open device holds, and its sentences
   ============================================================================ */

enum {
    NNTI_CUDA_THREADS = 256,                /* of a block */
    NNTI_CUDA_WARP = 32,
    NNTI_CUDA_PINNED = 4 << 20,             /* bytes of each of the two buffers that transfers pass through */
    NNTI_CUDA_GRAPHS = 16,                  /* lists of ops that are kept as graphs */
    NNTI_CUDA_TEXT = 384,
    NNTI_CUDA_FETCH = 64                    /* bytes that can be fetched ahead of their download */
};

/* What kernels read that changes from step to step, and from part to part of a batch that comes in parts: first is the
   number of this run's first sample in its batch. */
struct nnti_cuda_now { uint64_t seed, step; int64_t first; };

/* A list of ops as a graph, and what would make it another one. exec NULL: seen once, not captured yet. */
struct nnti_cuda_graph {
    const nnt_op *ops;
    int count, samples, whole, accumulate;
    float loss_scale;
    uint64_t used;                          /* when, for replacing the oldest; 0: a free place */
    cudaGraphExec_t exec;
};

struct nnti_cuda {
    nnt_allocator a;
    int index, processors, capability;      /* capability: 90 for 9.0 */
    int dead, capturing;
    cudaStream_t stream, copies;            /* everything; uploads ahead of it */
    cublasHandle_t blas;
    cublasLtHandle_t lt;
#if defined(NNT_CUDNN)
    cudnnHandle_t dnn;
#endif
    void *workspace;                        /* cuBLAS's */
    size_t workspace_bytes;
    nnti_cuda_now *now;                     /* on the device */
    char *pinned[2];                        /* transfers pass through these in turn; */
    cudaEvent_t passed[2];                  /*   the last one through each */
    int turn;
    void *staging;                          /* of the net's memory: where uploads ahead wait for their turn */
    size_t staging_bytes;
    cudaEvent_t staged, taken;              /* it is full; it is free again */
    cudaEvent_t timed[2];
    char *fetched;                          /* pinned: what was fetched from fetched_from */
    const void *fetched_from;
    size_t fetched_bytes;
    cudaEvent_t fetch_done;
    const nnt_op *replayed;                 /* the list whose graph was launched last, for sentences */
    int replayed_count;
    uint64_t clock;
    nnti_cuda_graph graphs[NNTI_CUDA_GRAPHS];
    char text[NNTI_CUDA_TEXT];
};

/* Appends to a sentence of NNTI_CUDA_TEXT bytes. */
void nnti_cuda_put(char *text, const char *s)
{
    size_t at = strlen(text);
    while (*s && at + 1 < NNTI_CUDA_TEXT) text[at++] = *s++;
    text[at] = 0;
}
void nnti_cuda_put_number(char *text, int64_t v)
{
    char digits[24];
    int i = (int)sizeof digits - 1;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    digits[i] = 0;
    do digits[--i] = (char)('0' + u % 10); while (u /= 10);
    if (v < 0) digits[--i] = '-';
    nnti_cuda_put(text, digits + i);
}

const char *const nnti_cuda_kind_names[NNT_OP_KINDS] = {        /* in the order of NNT_OP_... */
    "nothing", "copy", "sum", "bytes to floats", "convolution", "gradient of convolution's input", "gradient of convolution's weights",
    "convolution and pooling", "gradient of convolution and pooling", "gradient of convolution and pooling's weights",
    "linear", "gradient of linear's input", "gradient of linear's weights", "activation", "gradient of activation",
    "maxpool", "gradient of maxpool", "avgpool", "gradient of avgpool", "adaptive avgpool", "gradient of adaptive avgpool",
    "dropout", "noise", "gradient of noise", "batchnorm's statistics", "batchnorm's running statistics", "batchnorm",
    "batchnorm", "gradient of batchnorm", "batchnorm and pooling", "gradient of batchnorm and pooling", "add", "concat",
    "gradient of concat", "softmax", "gradient of softmax", "cross_entropy", "mse", "norm of the gradient", "update"
};

/* "'conv1' (op 3)" */
void nnti_cuda_put_layer(char *text, const nnt_op *op)
{
    if (op->name) {
        nnti_cuda_put(text, "'");
        nnti_cuda_put(text, op->name);
        nnti_cuda_put(text, "' ");
    }
    nnti_cuda_put(text, "(op ");
    nnti_cuda_put_number(text, op->node);
    nnti_cuda_put(text, ")");
}
/* Begins the sentence of a failure: "convolution 'conv1' (op 3): " */
void nnti_cuda_say_op(nnti_cuda *d, const nnt_op *op)
{
    d->text[0] = 0;
    if (!op) return;
    nnti_cuda_put(d->text, op->kind >= 0 && op->kind < NNT_OP_KINDS ? nnti_cuda_kind_names[op->kind] : "unknown op");
    if (op->node > 0) {
        nnti_cuda_put(d->text, " ");
        nnti_cuda_put_layer(d->text, op);
    }
    nnti_cuda_put(d->text, ": ");
}
/* Ends it: clears what CUDA remembers of the failure and finds out whether the device still works. A fault in a kernel
   shows at some later call; without an op of its own it happened in the graph that was launched last. */
void nnti_cuda_say_rest(nnti_cuda *d, const nnt_op *op)
{
    cudaError_t e;
    (void)cudaGetLastError();
    if (d->capturing || !d->stream) return;
    e = cudaStreamSynchronize(d->stream);
    if (e == cudaSuccess) return;
    (void)cudaGetLastError();
    d->dead = 1;
    if (!op && d->replayed) {
        nnti_cuda_put(d->text, ", in a kernel from ");
        nnti_cuda_put_layer(d->text, &d->replayed[0]);
        nnti_cuda_put(d->text, " to ");
        nnti_cuda_put_layer(d->text, &d->replayed[d->replayed_count - 1]);
        nnti_cuda_put(d->text, " (NNT_CUDA_SYNC tells where)");
    }
    nnti_cuda_put(d->text, "; this process can't use the card any more, go on with device 'cpu'");
}
/* A call of CUDA's that failed, as result and sentence. op NULL: none in particular. */
nnt_result nnti_cuda_failed(nnti_cuda *d, const nnt_op *op, const char *what, cudaError_t e)
{
    if (d->dead) return NNT_ERR_DEVICE;     /* the first failure's sentence stays */
    nnti_cuda_say_op(d, op);
    nnti_cuda_put(d->text, what);
    nnti_cuda_put(d->text, ": ");
    nnti_cuda_put(d->text, cudaGetErrorString(e));
    nnti_cuda_say_rest(d, op);
    return e == cudaErrorMemoryAllocation ? NNT_ERR_MEMORY : NNT_ERR_DEVICE;
}
nnt_result nnti_cuda_blas_failed(nnti_cuda *d, const nnt_op *op, const char *what, cublasStatus_t s)
{
    if (d->dead) return NNT_ERR_DEVICE;
    nnti_cuda_say_op(d, op);
    nnti_cuda_put(d->text, what);
    switch (s) {
    case CUBLAS_STATUS_NOT_INITIALIZED:  nnti_cuda_put(d->text, ": cuBLAS could not be initialised"); break;
    case CUBLAS_STATUS_ALLOC_FAILED:     nnti_cuda_put(d->text, ": cuBLAS is out of memory"); break;
    case CUBLAS_STATUS_INVALID_VALUE:    nnti_cuda_put(d->text, ": cuBLAS takes these sizes for wrong"); break;
    case CUBLAS_STATUS_EXECUTION_FAILED: nnti_cuda_put(d->text, ": a kernel of cuBLAS failed"); break;
    case CUBLAS_STATUS_NOT_SUPPORTED:    nnti_cuda_put(d->text, ": cuBLAS can't do this"); break;
    default:
        nnti_cuda_put(d->text, ": cuBLAS status ");
        nnti_cuda_put_number(d->text, (int64_t)s);
    }
    nnti_cuda_say_rest(d, op);
    return s == CUBLAS_STATUS_ALLOC_FAILED ? NNT_ERR_MEMORY : NNT_ERR_DEVICE;
}

/* Returns from a function that gives nnt_result when a call fails. */
#define NNTI_CUDA_TRY(d, op, what, call)                                            \
    do {                                                                            \
        cudaError_t e_ = (call);                                                    \
        if (e_ != cudaSuccess) return nnti_cuda_failed(d, op, what, e_);            \
    } while (0)
#define NNTI_CUDA_TRY_BLAS(d, op, what, call)                                       \
    do {                                                                            \
        cublasStatus_t s_ = (call);                                                 \
        if (s_ != CUBLAS_STATUS_SUCCESS) return nnti_cuda_blas_failed(d, op, what, s_); \
    } while (0)
#define NNTI_CUDA_DO(call)                                                          \
    do {                                                                            \
        nnt_result r_ = (call);                                                     \
        if (r_) return r_;                                                          \
    } while (0)

/* Every function of the backend begins with this: CUDA's current device belongs to the thread, and another device or
   the program itself may have changed it. */
nnt_result nnti_cuda_enter(nnti_cuda *d)
{
    if (d->dead) return NNT_ERR_DEVICE;
    NNTI_CUDA_TRY(d, NULL, "choosing the device", cudaSetDevice(d->index));
    return NNT_OK;
}

/* ============================================================================
   >>kernels   The ways of walking through memory
   ============================================================================ */

/* ---- division by a number that is known at the launch ---- */

/* i / d = (mulhi(i, m) + i) >> s for i below 2^31 (Granlund and Montgomery 1994): a division costs a GPU some twenty
   instructions, this three. Larger i, of 64 bits, are divided. */
struct nnti_cuda_divisor { int64_t d; uint32_t m, s; };

nnti_cuda_divisor nnti_cuda_divide_by(int64_t d)
{
    nnti_cuda_divisor v = { d > 0 ? d : 1, 0, 31 };     /* of more than 2^31: the quotient is 0 */
    if (v.d > INT_MAX) return v;
    for (v.s = 0; ((int64_t)1 << v.s) < v.d; v.s++) { }
    v.m = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << v.s) - (uint64_t)v.d)) / (uint64_t)v.d + 1);
    return v;
}
__device__ __forceinline__ uint32_t nnti_cuda_quotient(uint32_t i, nnti_cuda_divisor d)
{
    return (__umulhi(i, d.m) + i) >> d.s;
}
__device__ __forceinline__ int64_t nnti_cuda_quotient(int64_t i, nnti_cuda_divisor d) { return i / d.d; }

/* *i = *i / d; returns the remainder. */
template <class I> __device__ __forceinline__ I nnti_cuda_split(I *i, nnti_cuda_divisor d)
{
    const I q = nnti_cuda_quotient(*i, d), rest = *i - q * (I)d.d;
    *i = q;
    return rest;
}

/* ---- each: f(i) for 0 <= i < n ---- */

/* Launch: any grid of NNTI_CUDA_THREADS threads. I: uint32_t when n is below 2^30, which makes indices cheap. Four blocks
   to a processor at least, that is at most 64 registers a thread: left to itself ptxas rather spills than use so many. */
template <class F, class I> __global__ void __launch_bounds__(NNTI_CUDA_THREADS, 4) nnti_cuda_each(F f, I n)
{
    const I step = (I)gridDim.x * (I)blockDim.x;
    for (I i = (I)blockIdx.x * (I)blockDim.x + (I)threadIdx.x; i < n; i += step) f(i);
}

/* Blocks for n threads' worth of work: no more than keep all processors busy, threads then take several turns. */
unsigned nnti_cuda_blocks(const nnti_cuda *d, int64_t n)
{
    const int64_t need = (n + NNTI_CUDA_THREADS - 1) / NNTI_CUDA_THREADS, most = (int64_t)d->processors * 32;
    return (unsigned)(need < most ? need : most);
}
nnt_result nnti_cuda_launched(nnti_cuda *d, const nnt_op *op)
{
    NNTI_CUDA_TRY(d, op, "launching a kernel", cudaGetLastError());
    return NNT_OK;
}
template <class F> nnt_result nnti_cuda_run_each(nnti_cuda *d, const nnt_op *op, F f, int64_t n)
{
    if (n <= 0) return NNT_OK;
    if (n < (int64_t)1 << 30)               /* a step past the end still fits */
        NNT_LAUNCH((nnti_cuda_each<F, uint32_t>), nnti_cuda_blocks(d, n), NNTI_CUDA_THREADS, 0, d->stream, f, (uint32_t)n);
    else
        NNT_LAUNCH((nnti_cuda_each<F, int64_t>), nnti_cuda_blocks(d, n), NNTI_CUDA_THREADS, 0, d->stream, f, n);
    return nnti_cuda_launched(d, op);
}

/* ---- what values of samples are in memory: T is float, or with NNT_OPF_HALF this. Kernels compute with floats ---- */

/* A bfloat16: the upper half of a float. Rounded to nearest even as it is written. */
struct nnti_cuda_half {
    uint16_t bits;
    __device__ __forceinline__ operator float() const { return __uint_as_float((uint32_t)bits << 16); }
    __device__ __forceinline__ nnti_cuda_half &operator=(float v)
    {
        bits = __bfloat16_as_ushort(__float2bfloat16_rn(v));
        return *this;
    }
};
template <class T> struct nnti_cuda_type;   /* four values as one, and cuBLAS's name */
template <> struct nnti_cuda_type<float> {
    typedef float4 four;
    static const cudaDataType blas = CUDA_R_32F;
};
template <> struct nnti_cuda_type<nnti_cuda_half> {
    typedef uint2 four;
    static const cudaDataType blas = CUDA_R_16BF;
};
template <class T> struct nnti_cuda_same { typedef T type; };      /* of parameters that T is not deduced from */

size_t nnti_cuda_element(const nnt_op *op) { return op->flags & NNT_OPF_HALF ? sizeof(nnti_cuda_half) : sizeof(float); }

/* Values 4 i to 4 i + 3. */
__device__ __forceinline__ float4 nnti_cuda_load4(const float *p, int64_t i) { return ((const float4 *)p)[i]; }
__device__ __forceinline__ float4 nnti_cuda_load4(const nnti_cuda_half *p, int64_t i)
{
    const uint2 v = ((const uint2 *)p)[i];
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}
__device__ __forceinline__ void nnti_cuda_store4(float *p, int64_t i, float4 v) { ((float4 *)p)[i] = v; }
__device__ __forceinline__ void nnti_cuda_store4(nnti_cuda_half *p, int64_t i, float4 v)
{
    nnti_cuda_half h[4];
    h[0] = v.x;
    h[1] = v.y;
    h[2] = v.z;
    h[3] = v.w;
    ((uint2 *)p)[i] = make_uint2(h[0].bits | (uint32_t)h[1].bits << 16, h[2].bits | (uint32_t)h[3].bits << 16);
}
template <class T> __device__ __forceinline__ float nnti_cuda_get(const T *p, int64_t i) { return p ? (float)p[i] : 0.0f; }
template <class T> __device__ __forceinline__ float4 nnti_cuda_get4(const T *p, int64_t i)
{
    return p ? nnti_cuda_load4(p, i) : make_float4(0, 0, 0, 0);
}

/* ---- map: y[i] = f(a[i], b[i], c[i]) ---- */

/* a, b, c: NULL is all zeros. y may be one of them. vector: all are aligned to four values. */
template <class F, class T> __global__ void __launch_bounds__(NNTI_CUDA_THREADS)
nnti_cuda_map(F f, T *y, const T *a, const T *b, const T *c, int64_t n, int vector)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t fours = vector ? n / 4 : 0;
    for (int64_t i = first; i < fours; i += step) {
        const float4 u = nnti_cuda_get4(a, i), v = nnti_cuda_get4(b, i), w = nnti_cuda_get4(c, i);
        nnti_cuda_store4(y, i, make_float4(f(u.x, v.x, w.x), f(u.y, v.y, w.y), f(u.z, v.z, w.z), f(u.w, v.w, w.w)));
    }
    for (int64_t i = fours * 4 + first; i < n; i += step)
        y[i] = f(nnti_cuda_get(a, i), nnti_cuda_get(b, i), nnti_cuda_get(c, i));
}
template <class T> int nnti_cuda_aligned(const T *p) { return (uintptr_t)p % (4 * sizeof(T)) == 0; }

template <class F, class T> nnt_result nnti_cuda_run_map(nnti_cuda *d, const nnt_op *op, F f, T *y, const typename nnti_cuda_same<T>::type *a,
    const typename nnti_cuda_same<T>::type *b, const typename nnti_cuda_same<T>::type *c, int64_t n)
{
    const int vector = nnti_cuda_aligned(y) && nnti_cuda_aligned(a) && nnti_cuda_aligned(b) && nnti_cuda_aligned(c);
    if (n <= 0) return NNT_OK;
    NNT_LAUNCH((nnti_cuda_map<F, T>), nnti_cuda_blocks(d, vector ? n / 4 + 1 : n), NNTI_CUDA_THREADS, 0, d->stream,
               f, y, a, b, c, n, vector);
    return nnti_cuda_launched(d, op);
}

/* to[i] = from[i] for i < n, four at a time, where To and From are different in memory */
template <class To, class From> struct nnti_cuda_retyped {
    To *to;
    const From *from;
    int64_t n;
    template <class I> __device__ void operator()(I i) const
    {
        const int64_t at = (int64_t)i * 4;
        if (at + 4 <= n) { nnti_cuda_store4(to, (int64_t)i, nnti_cuda_load4(from, (int64_t)i)); return; }
        for (int64_t k = at; k < n; k++) to[k] = (float)from[k];
    }
};
/* Both begin at multiples of four values. */
template <class To, class From> nnt_result nnti_cuda_retype(nnti_cuda *d, const nnt_op *op, To *to, const From *from, int64_t n)
{
    nnti_cuda_retyped<To, From> f = { to, from, n };
    return nnti_cuda_run_each(d, op, f, (n + 3) / 4);
}

/* ---- reduce: two sums for each of `items` ---- */

struct nnti_cuda_sums { double first, second; };

__device__ __forceinline__ double nnti_cuda_warp_sum(double v)
{
    for (int o = NNTI_CUDA_WARP / 2; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
/* Sums over a block of NNTI_CUDA_THREADS threads; thread 0 has them. */
__device__ __forceinline__ nnti_cuda_sums nnti_cuda_block_sums(nnti_cuda_sums s)
{
    __shared__ double part[2][NNTI_CUDA_THREADS / NNTI_CUDA_WARP];
    const int lane = (int)threadIdx.x % NNTI_CUDA_WARP, warp = (int)threadIdx.x / NNTI_CUDA_WARP;
    s.first = nnti_cuda_warp_sum(s.first);
    s.second = nnti_cuda_warp_sum(s.second);
    if (lane == 0) {
        part[0][warp] = s.first;
        part[1][warp] = s.second;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < NNTI_CUDA_THREADS / NNTI_CUDA_WARP; w++) {
            s.first += part[0][w];
            s.second += part[1][w];
        }
    return s;
}
/* Launch: blocks (items, parts). Block (item, p) sums f.add(item, i, &sums) over part p of 0 <= i < length, in a fixed
   order: thread t takes i = t, t + 256, ... of the part. With a single part it also calls f.finish(item, sums). */
template <class F> __global__ void __launch_bounds__(NNTI_CUDA_THREADS, 4)     /* 64 registers: sums in double need them */
nnti_cuda_reduce(F f, int64_t length, int64_t each, nnti_cuda_sums *partial)
{
    const int64_t begin = (int64_t)blockIdx.y * each, end = begin + each < length ? begin + each : length;
    const int item = (int)blockIdx.x;
    nnti_cuda_sums s = { 0, 0 };
    if (length < (int64_t)1 << 31)
        for (int64_t i = begin + threadIdx.x; i < end; i += NNTI_CUDA_THREADS) f.add(item, (uint32_t)i, &s);
    else
        for (int64_t i = begin + threadIdx.x; i < end; i += NNTI_CUDA_THREADS) f.add(item, i, &s);
    s = nnti_cuda_block_sums(s);
    if (threadIdx.x) return;
    if (gridDim.y == 1) f.finish(item, s);
    else partial[(int64_t)item * gridDim.y + blockIdx.y] = s;
}
/* Launch: a thread an item. */
template <class F> __global__ void __launch_bounds__(NNTI_CUDA_THREADS)
nnti_cuda_finish(F f, int items, int parts, const nnti_cuda_sums *partial)
{
    const int item = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    nnti_cuda_sums s = { 0, 0 };
    if (item >= items) return;
    for (int p = 0; p < parts; p++) {
        s.first += partial[(int64_t)item * parts + p].first;
        s.second += partial[(int64_t)item * parts + p].second;
    }
    f.finish(item, s);
}
/* How many blocks share an item: enough in all to keep a large card busy, and each with at least 4096 values. By shapes
   only, so that sums are the same on every card. */
int nnti_cuda_parts(int64_t items, int64_t length)
{
    const int64_t want = 1024 / (items > 0 ? items : 1), most = (length + 4095) / 4096;
    const int64_t parts = want < most ? want : most;
    return parts > 1 ? (int)parts : 1;
}
/* Room for the parts of any number of items: more than one part each is made of 512 items at most. */
size_t nnti_cuda_reduce_bytes(int64_t length) { return length > 4096 ? 1024 * sizeof(nnti_cuda_sums) : 0; }

template <class F> nnt_result nnti_cuda_run_parts(nnti_cuda *d, const nnt_op *op, F f, int items, int64_t length, int parts, nnti_cuda_sums *partial)
{
    NNT_LAUNCH((nnti_cuda_reduce<F>), dim3((unsigned)items, (unsigned)parts), NNTI_CUDA_THREADS, 0, d->stream,
               f, length, (length + parts - 1) / parts, partial);
    NNTI_CUDA_DO(nnti_cuda_launched(d, op));
    if (parts == 1) return NNT_OK;
    NNT_LAUNCH((nnti_cuda_finish<F>), (unsigned)((items + NNTI_CUDA_THREADS - 1) / NNTI_CUDA_THREADS), NNTI_CUDA_THREADS, 0,
               d->stream, f, items, parts, partial);
    return nnti_cuda_launched(d, op);
}
/* partial: nnti_cuda_reduce_bytes(length) bytes. */
template <class F> nnt_result nnti_cuda_run_reduce(nnti_cuda *d, const nnt_op *op, F f, int items, int64_t length, void *partial)
{
    return nnti_cuda_run_parts(d, op, f, items, length, nnti_cuda_parts(items, length), (nnti_cuda_sums *)partial);
}

/* ---- shapes ---- */

int64_t nnti_cuda_in_plane(const nnt_op *op) { return (int64_t)op->in_h * op->in_w; }
int64_t nnti_cuda_out_plane(const nnt_op *op) { return (int64_t)op->out_h * op->out_w; }
int64_t nnti_cuda_in_size(const nnt_op *op) { return op->in_c * nnti_cuda_in_plane(op); }
int64_t nnti_cuda_out_size(const nnt_op *op) { return op->out_c * nnti_cuda_out_plane(op); }
int64_t nnti_cuda_mid_size(const nnt_op *op) { return (int64_t)op->out_c * op->mid_h * op->mid_w; }
int64_t nnti_cuda_taps(const nnt_op *op) { return (int64_t)op->kernel_h * op->kernel_w; }
int64_t nnti_cuda_min(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t nnti_cuda_max(int64_t a, int64_t b) { return a > b ? a : b; }
size_t  nnti_cuda_max_size(size_t a, size_t b) { return a > b ? a : b; }
size_t  nnti_cuda_round(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <class T = float> const T *nnti_cuda_in(const nnt_op *op, int role) { return (const T *)op->at[role]; }
template <class T = float> T *nnti_cuda_out(const nnt_op *op, int role) { return (T *)op->at[role]; }
template <class T> const T *nnti_cuda_mask(const nnt_op *op) { return op->flags & NNT_OPF_MASK ? nnti_cuda_in<T>(op, NNT_MASK) : NULL; }
/* An operand of values of samples, from value `first` on; NULL stays NULL. */
void *nnti_cuda_values_from(const nnt_op *op, int role, int64_t first)
{
    return op->at[role] ? (char *)op->at[role] + first * (int64_t)nnti_cuda_element(op) : NULL;
}
int nnti_cuda_relu(const nnt_op *op) { return (op->flags & NNT_OPF_RELU) != 0; }
int nnti_cuda_adds(const nnt_op *op) { return (op->flags & NNT_OPF_ACCUMULATE) != 0; }

/* What the functions of ops are given beside device and op. */
struct nnti_cuda_job { int count, whole, accumulate; float loss_scale; const nnt_run *run; };      /* whole: samples of the batch */

/* What every gradient does with a finished value of gx: adds it when asked to, and masks it. Mask and gx are read where
   gx is written, so they may be the same. */
template <class T> struct nnti_cuda_gradient {
    T *gx;
    const T *mask;                          /* NULL: none */
    int adds;
    __device__ __forceinline__ void put(int64_t i, float g) const
    {
        if (adds) g += gx[i];
        if (mask && !(mask[i] > 0)) g = 0;
        gx[i] = g;
    }
};
template <class T> nnti_cuda_gradient<T> nnti_cuda_gradient_of(const nnt_op *op)
{
    nnti_cuda_gradient<T> g;
    g.gx = nnti_cuda_out<T>(op, NNT_GX);
    g.mask = nnti_cuda_mask<T>(op);
    g.adds = nnti_cuda_adds(op);
    return g;
}
template <class T> nnti_cuda_gradient<T> nnti_cuda_gradient_from(nnti_cuda_gradient<T> g, int64_t first)
{
    g.gx += first;
    if (g.mask) g.mask += first;
    return g;
}

__device__ __forceinline__ bool nnti_cuda_is_nan(float v) { return (__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u; }

/* ============================================================================
   >>elementwise   Sums, copies, activations, the update. CPU: >>elementwise of nntrain.h
   ============================================================================ */

/* a + b, then max(., 0), then mask > 0 ? . : 0 */
struct nnti_cuda_sum {
    int relu, masked;
    __device__ float operator()(float a, float b, float mask) const
    {
        float v = a + b;
        if (relu && v < 0) v = 0;
        return masked && !(mask > 0) ? 0 : v;
    }
};
template <class T> nnt_result nnti_cuda_run_sum(nnti_cuda *d, const nnt_op *op, T *y, const typename nnti_cuda_same<T>::type *a,
    const typename nnti_cuda_same<T>::type *b, const typename nnti_cuda_same<T>::type *mask, int relu, int64_t n)
{
    nnti_cuda_sum f = { relu, mask != NULL };
    return nnti_cuda_run_map(d, op, f, y, a, b, mask, n);
}
/* y = x, or from floats to bfloat16, or back */
template <class T> nnt_result nnti_cuda_copy(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t n = job->count * nnti_cuda_in_size(op);
    if (op->flags & NNT_OPF_FLOAT_X) return nnti_cuda_retype(d, op, nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_in(op, NNT_X), n);
    if (op->flags & NNT_OPF_FLOAT_Y) return nnti_cuda_retype(d, op, nnti_cuda_out(op, NNT_Y), nnti_cuda_in<T>(op, NNT_X), n);
    return nnti_cuda_run_sum(d, op, nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_in<T>(op, NNT_X), NULL, nnti_cuda_mask<T>(op), nnti_cuda_relu(op), n);
}
/* y += x, masked */
template <class T> nnt_result nnti_cuda_accumulate(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    return nnti_cuda_run_sum(d, op, nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_in<T>(op, NNT_Y), nnti_cuda_in<T>(op, NNT_X),
                             nnti_cuda_mask<T>(op), nnti_cuda_relu(op), job->count * nnti_cuda_in_size(op));
}
/* y = x + x2 */
template <class T> nnt_result nnti_cuda_add(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    return nnti_cuda_run_sum(d, op, nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_in<T>(op, NNT_X), nnti_cuda_in<T>(op, NNT_X2),
                             nnti_cuda_mask<T>(op), nnti_cuda_relu(op), job->count * nnti_cuda_out_size(op));
}

/* Where the values of a sample, four at a time, come from: values, NULL for zeros, or the bytes of pictures, which become
   floats on the way. four: values 4 block to 4 block + 3 of a sample, of which the first is value `at` of all; at is a
   multiple of 4. one: value `place` of a sample. */
template <class T> struct nnti_cuda_stored {
    const T *x;
    template <class I> __device__ __forceinline__ float4 four(int64_t at, I) const { return nnti_cuda_get4(x, at / 4); }
    template <class I> __device__ __forceinline__ float one(int64_t at, I) const { return nnti_cuda_get(x, at); }
};
struct nnti_cuda_pictures {                 /* x scale[c] + shift[c], rounded once, as nnti_convert_c */
    const uint8_t *x;
    const float *scale, *shift;
    int64_t plane;
    nnti_cuda_divisor fours;                /* plane / 4, where that leaves no rest */
    __device__ __forceinline__ float value(uint8_t v, int c) const { return __fmaf_rn((float)(int)v, scale[c], shift[c]); }
    template <class I> __device__ __forceinline__ float4 four(int64_t at, I block) const
    {
        const uchar4 v = *(const uchar4 *)(x + at);
        const I place = block * 4, size = (I)plane;
        if (plane % 4 == 0) {
            const int c = (int)nnti_cuda_quotient(block, fours);
            return make_float4(value(v.x, c), value(v.y, c), value(v.z, c), value(v.w, c));
        }
        return make_float4(value(v.x, (int)(place / size)), value(v.y, (int)((place + 1) / size)),
                           value(v.z, (int)((place + 2) / size)), value(v.w, (int)((place + 3) / size)));
    }
    template <class I> __device__ __forceinline__ float one(int64_t at, I place) const { return value(x[at], (int)(place / (I)plane)); }
};
template <class T> nnti_cuda_stored<T> nnti_cuda_stored_of(const nnt_op *op)
{
    nnti_cuda_stored<T> f = { nnti_cuda_in<T>(op, NNT_X) };
    return f;
}
nnti_cuda_pictures nnti_cuda_pictures_of(const nnt_op *op)
{
    const float *scale = nnti_cuda_in(op, NNT_STATS);
    nnti_cuda_pictures p = { (const uint8_t *)op->at[NNT_X], scale, scale + op->in_c, nnti_cuda_in_plane(op),
        nnti_cuda_divide_by(nnti_cuda_in_plane(op) / 4) };
    return p;
}
/* y = x scale[c] + shift[c] of bytes. Threads: `blocks` of four values a sample. */
template <class T> struct nnti_cuda_bytes_to_floats {
    nnti_cuda_pictures x;
    T *y;
    nnti_cuda_divisor blocks;
    int64_t size;                           /* values of a sample */
    template <class I> __device__ void operator()(I i) const
    {
        I sample = i;
        const I block = nnti_cuda_split(&sample, blocks), first = block * 4;
        const int64_t at = (int64_t)sample * size + (int64_t)first;
        if (size % 4 == 0) { nnti_cuda_store4(y, at / 4, x.four(at, block)); return; }
        for (int k = 0; k < 4; k++)
            if ((int64_t)first + k < size) y[at + k] = x.one(at + k, first + (I)k);
    }
};
template <class T> nnt_result nnti_cuda_convert(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t size = nnti_cuda_in_size(op), blocks = (size + 3) / 4;
    nnti_cuda_bytes_to_floats<T> f = { nnti_cuda_pictures_of(op), nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_divide_by(blocks), size };
    return nnti_cuda_run_each(d, op, f, job->count * blocks);
}

/* y[n][channel_offset + c][h][w] = x[n][c][h][w]; V: a value, or four, which all lie in one sample */
template <class V> struct nnti_cuda_concat_to {
    const V *x;
    V *y;
    nnti_cuda_divisor part;                 /* V of a sample of the smaller operand */
    int64_t whole, offset;                  /* of the larger one, and where the part begins in it */
    template <class I> __device__ void operator()(I i) const
    {
        I sample = i;
        const I at = nnti_cuda_split(&sample, part);
        y[(int64_t)sample * whole + offset + at] = x[i];
    }
};
template <class T> nnt_result nnti_cuda_concat(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t part = nnti_cuda_in_size(op), whole = nnti_cuda_out_size(op);
    const int64_t offset = op->channel_offset * nnti_cuda_in_plane(op);
    typedef typename nnti_cuda_type<T>::four V;
    nnti_cuda_concat_to<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_divide_by(part), whole, offset };
    if (part % 4 == 0 && whole % 4 == 0 && offset % 4 == 0) {
        nnti_cuda_concat_to<V> g = { (const V *)f.x, (V *)f.y, nnti_cuda_divide_by(part / 4), whole / 4, offset / 4 };
        return nnti_cuda_run_each(d, op, g, job->count * (part / 4));
    }
    return nnti_cuda_run_each(d, op, f, job->count * part);
}
/* gx[n][c][h][w] = gy[n][channel_offset + c][h][w] */
template <class T> struct nnti_cuda_concat_from {
    const T *gy;
    nnti_cuda_gradient<T> g;
    nnti_cuda_divisor part;
    int64_t whole, offset;
    template <class I> __device__ void operator()(I i) const
    {
        I sample = i;
        const I at = nnti_cuda_split(&sample, part);
        g.put((int64_t)i, gy[(int64_t)sample * whole + offset + at]);
    }
};
template <class T> nnt_result nnti_cuda_concat_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    nnti_cuda_concat_from<T> f = { nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_gradient_of<T>(op), nnti_cuda_divide_by(nnti_cuda_in_size(op)),
                                nnti_cuda_out_size(op), op->channel_offset * nnti_cuda_in_plane(op) };
    return nnti_cuda_run_each(d, op, f, job->count * nnti_cuda_in_size(op));
}

/* ---- activations: y = f(x), gx = gy f'(x) from y, or from x for gelu ---- */

template <int V> struct nnti_cuda_act_value {
    float slope;
    __device__ float operator()(float x, float, float) const
    {
        switch (V) {
        case NNT_ACT_RELU:       return x < 0 ? 0 : x;
        case NNT_ACT_LEAKY_RELU: return x > 0 ? x : slope * x;
        case NNT_ACT_SIGMOID:    return 1.0f / (1.0f + expf(-x));
        case NNT_ACT_TANH:       return tanhf(x);
        default:                 return 0.5f * x * erfcf(-0.70710678f * x);
        }
    }
};
template <int V> struct nnti_cuda_act_slope {
    float slope;
    __device__ float operator()(float g, float v, float) const
    {
        switch (V) {
        case NNT_ACT_RELU:       return v <= 0 ? 0 : g;
        case NNT_ACT_LEAKY_RELU: return v > 0 ? g : slope * g;
        case NNT_ACT_SIGMOID:    return g * (1.0f - v) * v;
        case NNT_ACT_TANH:       return g * (1.0f - v * v);
        default:                 return g * (0.5f * erfcf(-0.70710678f * v) + v * (0.39894228f * expf(-0.5f * v * v)));
        }
    }
};
template <int V, class T> nnt_result nnti_cuda_act_variant(nnti_cuda *d, const nnt_op *op, int64_t n)
{
    nnti_cuda_act_value<V> f = { op->f[0] };
    nnti_cuda_act_slope<V> g = { op->f[0] };
    if (op->kind == NNT_OP_ACT) return nnti_cuda_run_map(d, op, f, nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_in<T>(op, NNT_X), NULL, NULL, n);
    return nnti_cuda_run_map(d, op, g, nnti_cuda_out<T>(op, NNT_GX), nnti_cuda_in<T>(op, NNT_GY),
                             nnti_cuda_in<T>(op, V == NNT_ACT_GELU ? NNT_X : NNT_Y), NULL, n);
}
/* ACT and ACT_GRAD */
template <class T> nnt_result nnti_cuda_act(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t n = job->count * nnti_cuda_in_size(op);
    switch (op->variant) {
    case NNT_ACT_RELU:       return nnti_cuda_act_variant<NNT_ACT_RELU, T>(d, op, n);
    case NNT_ACT_LEAKY_RELU: return nnti_cuda_act_variant<NNT_ACT_LEAKY_RELU, T>(d, op, n);
    case NNT_ACT_SIGMOID:    return nnti_cuda_act_variant<NNT_ACT_SIGMOID, T>(d, op, n);
    case NNT_ACT_TANH:       return nnti_cuda_act_variant<NNT_ACT_TANH, T>(d, op, n);
    default:                 return nnti_cuda_act_variant<NNT_ACT_GELU, T>(d, op, n);
    }
}

/* ---- what tensors use ---- */

struct nnti_cuda_constant {
    float value;
    __device__ float operator()(float, float, float) const { return value; }
};
struct nnti_cuda_linear_mix {               /* a x + b z */
    float a, b;
    int two;
    __device__ float operator()(float x, float z, float) const { return two ? a * x + b * z : a * x; }
};

/* ---- the gradient's norm, the optimizer's step ---- */

/* loss = sum of gw[i]^2, a double */
struct nnti_cuda_squares {
    const float *g;
    double *to;
    template <class I> __device__ void add(int, I i, nnti_cuda_sums *s) const { s->first += (double)g[i] * (double)g[i]; }
    __device__ void finish(int, nnti_cuda_sums s) const { *to = s.first; }
};
nnt_result nnti_cuda_grad_norm(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *)
{
    nnti_cuda_squares f = { nnti_cuda_in(op, NNT_GW), (double *)op->at[NNT_LOSS] };
    return nnti_cuda_run_reduce(d, op, f, 1, op->count, op->workspace);
}
size_t nnti_cuda_grad_norm_bytes(const nnti_cuda *, const nnt_op *op, int) { return nnti_cuda_reduce_bytes(op->count); }

/* Formulas: nnti_sgd_c and nnti_adam_c of nntrain.h. m, v: NULL where the optimizer has none. */
struct nnti_cuda_step {
    int adam, nesterov;
    float *w, *m, *v;
    const float *g;
    float grad_scale, decay, lr, momentum;
    float shrink, beta1, beta2, rest1, rest2, rate, root, eps;
    __device__ __forceinline__ void one(float *wi, float gi, float *mi, float *vi) const
    {
        float g1 = gi * grad_scale + decay * *wi;
        if (adam) {
            *mi = beta1 * *mi + rest1 * g1;
            *vi = beta2 * *vi + rest2 * g1 * g1;
            *wi = shrink * *wi - rate * (*mi / (root * sqrtf(*vi) + eps));
            return;
        }
        if (m) {
            *mi = momentum * *mi + g1;
            g1 = nesterov ? g1 + momentum * *mi : *mi;
        }
        *wi -= lr * g1;
    }
    template <class I> __device__ void operator()(I i) const       /* values 4 i to 4 i + 3 */
    {
        float4 w4 = ((const float4 *)w)[i], g4 = ((const float4 *)g)[i], m4 = nnti_cuda_get4(m, (int64_t)i), v4 = nnti_cuda_get4(v, (int64_t)i);
        one(&w4.x, g4.x, &m4.x, &v4.x);
        one(&w4.y, g4.y, &m4.y, &v4.y);
        one(&w4.z, g4.z, &m4.z, &v4.z);
        one(&w4.w, g4.w, &m4.w, &v4.w);
        ((float4 *)w)[i] = w4;
        if (m) ((float4 *)m)[i] = m4;
        if (v) ((float4 *)v)[i] = v4;
    }
};
/* The range is a multiple of 16 values, at multiples of 64 bytes: see nnti_place_params. */
nnt_result nnti_cuda_update(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const nnt_optimizer *o = &job->run->optimizer;
    const double t = (double)job->run->update, beta1 = (double)o->beta1, beta2 = (double)o->beta2;
    nnti_cuda_step u;
    if (o->kind == NNT_OPTIMIZER_NONE) return NNT_OK;
    memset(&u, 0, sizeof u);
    u.adam = o->kind != NNT_OPTIMIZER_SGD;
    u.nesterov = o->nesterov;
    u.w = nnti_cuda_out(op, NNT_W);
    u.g = nnti_cuda_in(op, NNT_GW);
    u.m = nnti_cuda_out(op, NNT_M);
    u.v = nnti_cuda_out(op, NNT_V);
    u.grad_scale = job->run->grad_scale;
    u.lr = o->lr;
    u.shrink = 1.0f;
    if (o->kind == NNT_OPTIMIZER_ADAMW) u.shrink = (float)(1.0 - (double)o->lr * (double)o->weight_decay);
    else u.decay = o->weight_decay;
    if (u.adam) {
        u.beta1 = o->beta1;
        u.beta2 = o->beta2;
        u.rest1 = (float)(1.0 - beta1);
        u.rest2 = (float)(1.0 - beta2);
        u.rate = (float)((double)o->lr / (1.0 - pow(beta1, t)));
        u.root = (float)(1.0 / sqrt(1.0 - pow(beta2, t)));
        u.eps = o->eps;
    } else {
        u.momentum = o->momentum;
        if (!(o->momentum > 0)) u.m = NULL;
    }
    return nnti_cuda_run_each(d, op, u, op->count / 4);
}

/* ============================================================================
   >>random   Philox and normals with the bits of >>random and >>random-fill of nntrain.h
   Only operations whose rounding is defined: products and sums by intrinsics that the compiler does not contract.
   ============================================================================ */

/* Four words of block `block` of sample `sample`. */
__device__ __forceinline__ void nnti_cuda_philox(uint32_t c[4], uint64_t seed, uint64_t step, uint32_t stream, uint32_t sample, uint32_t block)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    c[0] = block;
    c[1] = sample;
    c[2] = (uint32_t)step;
    c[3] = stream | (uint32_t)(step >> 32) << 16;
    for (int r = 0; r < 10; r++) {
        const uint32_t h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0];
        const uint32_t h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
        c[0] = h1 ^ c[1] ^ k0;
        c[2] = h0 ^ c[3] ^ k1;
        c[1] = l1;
        c[3] = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
/* Two standard normals from two words; step by step nnti_normal_pair. */
__device__ __forceinline__ void nnti_cuda_normal_pair(uint32_t a, uint32_t b, float *z0, float *z1)
{
    const uint32_t sqrt_half = 0x3f3504f3u;
    const float f = __fmaf_rn((float)(int32_t)(a >> 16), 65536.0f, __fadd_rn((float)(int32_t)(a & 0xffffu), 0.5f));
    const uint32_t m = __float_as_uint(f) - sqrt_half;
    const float e = (float)(((int32_t)m >> 23) - 32);
    const float t = __fadd_rn(__uint_as_float((m & 0x7fffffu) + sqrt_half), -1.0f), q = __fmul_rn(t, t);
    float p = 7.0376836292e-2f, g, w, s, c, r;
    uint32_t swap, x, y;
    p = __fmaf_rn(p, t, -1.1514610310e-1f);
    p = __fmaf_rn(p, t, 1.1676998740e-1f);
    p = __fmaf_rn(p, t, -1.2420140846e-1f);
    p = __fmaf_rn(p, t, 1.4249322787e-1f);
    p = __fmaf_rn(p, t, -1.6668057665e-1f);
    p = __fmaf_rn(p, t, 2.0000714765e-1f);
    p = __fmaf_rn(p, t, -2.4999993993e-1f);
    p = __fmaf_rn(p, t, 3.3333331174e-1f);
    p = __fmaf_rn(__fmul_rn(p, t), q, __fmul_rn(e, -2.12194440e-4f));
    p = __fadd_rn(__fmaf_rn(q, -0.5f, p), t);
    p = __fmaf_rn(e, 0.693359375f, p);
    r = __fsqrt_rn(__fmul_rn(p, -2.0f));

    g = __fmul_rn((float)(int32_t)(b << 2), 3.6572951981e-10f);
    w = __fmul_rn(g, g);
    s = __fmaf_rn(-1.9515295891e-4f, w, 8.3321608736e-3f);
    s = __fmaf_rn(s, w, -1.6666654611e-1f);
    s = __fmaf_rn(__fmul_rn(s, w), g, g);
    c = __fmaf_rn(2.443315711809948e-5f, w, -1.388731625493765e-3f);
    c = __fmaf_rn(c, w, 4.166664568298827e-2f);
    c = __fmaf_rn(c, w, -0.5f);
    c = __fmaf_rn(c, w, 1.0f);
    swap = 0u - (b >> 30 & 1u);
    x = (__float_as_uint(s) & swap) | (__float_as_uint(c) & ~swap);
    y = (__float_as_uint(c) & swap) | (__float_as_uint(s) & ~swap);
    *z0 = __fmul_rn(r, __uint_as_float(x ^ ((b ^ b << 1) & 0x80000000u)));
    *z1 = __fmul_rn(r, __uint_as_float(y ^ (b & 0x80000000u)));
}

enum { NNTI_CUDA_BITS, NNTI_CUDA_SIGNED, NNTI_CUDA_NORMAL };       /* words; [-1, 1); standard normal */

/* Words to values of a kind, in place of them. */
template <int KIND> __device__ __forceinline__ void nnti_cuda_draw(const uint32_t c[4], float r[4])
{
    if (KIND == NNTI_CUDA_NORMAL) {
        nnti_cuda_normal_pair(c[0], c[1], &r[0], &r[1]);
        nnti_cuda_normal_pair(c[2], c[3], &r[2], &r[3]);
    } else {
        for (int i = 0; i < 4; i++) r[i] = __fmul_rn((float)((int32_t)(c[i] >> 8) - 8388608), 1.1920928955078125e-7f);
    }
}
/* p 2^32 to the nearest whole number, by integers only: nnti_threshold of nntrain.h */
uint64_t nnti_cuda_threshold(float p)
{
    uint32_t bits, mantissa;
    int shift;
    memcpy(&bits, &p, sizeof bits);
    mantissa = (bits & 0x7fffffu) | 0x800000u;
    shift = (int)(bits >> 23) - 118;
    if (bits >> 31 || bits == 0) return 0;
    if (shift >= 9) return (uint64_t)1 << 32;
    if (shift >= 0) return (uint64_t)mantissa << shift;
    if (shift < -24) return 0;
    return (mantissa + (1u << (-shift - 1))) >> -shift;
}

/* A thread takes a block of four values of a sample. F::value(operands of the value, word, number). */
struct nnti_cuda_blend { float scale, low, high; int clamp; };

__device__ __forceinline__ float nnti_cuda_bounded(const nnti_cuda_blend &b, float v)
{
    return v < b.low ? b.low : v > b.high ? b.high : v;
}
/* Dropout: y = x (word >= limit ? scale : 0), a product, so that what is not a number stays so. */
struct nnti_cuda_drop {
    enum { KIND = NNTI_CUDA_BITS };
    uint32_t limit;
    float scale;
    __device__ float value(float x, float, uint32_t word, float) const { return __fmul_rn(x, word >= limit ? scale : 0.0f); }
};
/* Noise: y = x + amount r, then to [low, high]. */
template <int K> struct nnti_cuda_add_noise {
    enum { KIND = K };
    nnti_cuda_blend b;
    __device__ float value(float x, float, uint32_t, float r) const
    {
        const float v = __fmaf_rn(b.scale, r, x);
        return b.clamp ? nnti_cuda_bounded(b, v) : v;
    }
};
/* Salt and pepper: a word below pepper gives low, below salt high, else x. */
struct nnti_cuda_salt {
    enum { KIND = NNTI_CUDA_BITS };
    nnti_cuda_blend b;
    uint64_t pepper, salt;
    __device__ float value(float x, float, uint32_t word, float) const
    {
        const float v = b.clamp ? nnti_cuda_bounded(b, x) : x;
        return word < pepper ? b.low : word < salt ? b.high : v;
    }
};
/* Gradients: gy, but 0 where the clamp or salt or pepper took over. x, gy. */
template <int K> struct nnti_cuda_noise_slope {
    enum { KIND = K };
    nnti_cuda_blend b;
    __device__ float value(float x, float gy, uint32_t, float r) const
    {
        const float v = __fmaf_rn(b.scale, r, x);
        return b.clamp && !(v > b.low && v < b.high) ? 0 : gy;
    }
};
struct nnti_cuda_salt_slope {
    enum { KIND = NNTI_CUDA_BITS };
    nnti_cuda_blend b;
    uint64_t salt;
    __device__ float value(float x, float gy, uint32_t word, float) const
    {
        return word < salt || (b.clamp && !(x > b.low && x < b.high)) ? 0 : gy;
    }
};
/* to[e] = F of x[e], gy[e] and the number of element e; X says where x comes from. Threads: `blocks` a sample. */
template <class F, class X, class T> struct nnti_cuda_random_each {
    F f;
    X x;
    T *to;
    const T *gy;                            /* NULL: zeros */
    const nnti_cuda_now *now;
    uint32_t stream;
    nnti_cuda_divisor blocks;
    int64_t size;                           /* values of a sample */
    template <class I> __device__ void operator()(I i) const
    {
        I sample = i;
        const I block = nnti_cuda_split(&sample, blocks), first = block * 4;
        const int64_t at = (int64_t)sample * size + (int64_t)first;
        uint32_t c[4];
        float r[4] = { 0, 0, 0, 0 };
        nnti_cuda_philox(c, now->seed, now->step, stream, (uint32_t)(now->first + (int64_t)sample), (uint32_t)block);
        if ((int)F::KIND != (int)NNTI_CUDA_BITS) nnti_cuda_draw<F::KIND>(c, r);
        if (size % 4 == 0) {
            const float4 v = x.four(at, block), g = nnti_cuda_get4(gy, at / 4);
            nnti_cuda_store4(to, at / 4, make_float4(f.value(v.x, g.x, c[0], r[0]), f.value(v.y, g.y, c[1], r[1]),
                                                     f.value(v.z, g.z, c[2], r[2]), f.value(v.w, g.w, c[3], r[3])));
            return;
        }
        for (int k = 0; k < 4; k++)
            if ((int64_t)first + k < size) to[at + k] = f.value(x.one(at + k, first + (I)k), nnti_cuda_get(gy, at + k), c[k], r[k]);
    }
};
template <class T, class F, class X> nnt_result nnti_cuda_run_random(nnti_cuda *d, const nnt_op *op, F f, X x, int to, const T *gy, int count)
{
    nnti_cuda_random_each<F, X, T> e;
    e.f = f;
    e.x = x;
    e.to = nnti_cuda_out<T>(op, to);
    e.gy = gy;
    e.now = d->now;
    e.stream = op->stream;
    e.size = nnti_cuda_in_size(op);
    e.blocks = nnti_cuda_divide_by((e.size + 3) / 4);
    return nnti_cuda_run_each(d, op, e, count * ((e.size + 3) / 4));
}
template <class T> nnt_result nnti_cuda_dropout(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    nnti_cuda_drop f = { (uint32_t)nnti_cuda_threshold(op->f[0]), (float)(1.0 / (1.0 - (double)op->f[0])) };
    return nnti_cuda_run_random<T>(d, op, f, nnti_cuda_stored_of<T>(op), NNT_Y, NULL, job->count);
}
/* f: amount, low, high, clamp */
nnti_cuda_blend nnti_cuda_blend_of(const nnt_op *op)
{
    nnti_cuda_blend b = { op->f[0], op->f[1], op->f[2], op->f[3] > 0 };
    return b;
}
template <class T, class X> nnt_result nnti_cuda_noise_on(nnti_cuda *d, const nnt_op *op, X x, int count)
{
    nnti_cuda_salt salt = { nnti_cuda_blend_of(op), nnti_cuda_threshold(op->f[0] * 0.5f), nnti_cuda_threshold(op->f[0]) };
    nnti_cuda_add_noise<NNTI_CUDA_SIGNED> uniform = { salt.b };
    nnti_cuda_add_noise<NNTI_CUDA_NORMAL> normal = { salt.b };
    switch (op->variant) {
    case NNT_NOISE_SALT_PEPPER: return nnti_cuda_run_random<T>(d, op, salt, x, NNT_Y, NULL, count);
    case NNT_NOISE_UNIFORM:     return nnti_cuda_run_random<T>(d, op, uniform, x, NNT_Y, NULL, count);
    default:                    return nnti_cuda_run_random<T>(d, op, normal, x, NNT_Y, NULL, count);
    }
}
/* Of bytes: conversion, normalisation and noise in one pass. */
template <class T> nnt_result nnti_cuda_noise(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    if (op->flags & NNT_OPF_BYTES) return nnti_cuda_noise_on<T>(d, op, nnti_cuda_pictures_of(op), job->count);
    return nnti_cuda_noise_on<T>(d, op, nnti_cuda_stored_of<T>(op), job->count);
}
template <class T> nnt_result nnti_cuda_noise_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const nnti_cuda_stored<T> x = nnti_cuda_stored_of<T>(op);
    const T *gy = nnti_cuda_in<T>(op, NNT_GY);
    nnti_cuda_salt_slope salt = { nnti_cuda_blend_of(op), nnti_cuda_threshold(op->f[0]) };
    nnti_cuda_noise_slope<NNTI_CUDA_SIGNED> uniform = { salt.b };
    nnti_cuda_noise_slope<NNTI_CUDA_NORMAL> normal = { salt.b };
    switch (op->variant) {
    case NNT_NOISE_SALT_PEPPER: return nnti_cuda_run_random<T>(d, op, salt, x, NNT_GX, gy, job->count);
    case NNT_NOISE_UNIFORM:     return nnti_cuda_run_random<T>(d, op, uniform, x, NNT_GX, gy, job->count);
    default:                    return nnti_cuda_run_random<T>(d, op, normal, x, NNT_GX, gy, job->count);
    }
}

/* Tensors: one sample of any length, stream 0xffff; blocks from 2^32 on go to the next sample. */
template <int KIND> struct nnti_cuda_tensor_random {
    float *to;
    nnti_cuda_blend b;
    float constant;
    int add;                                /* to += scale r, else = scale r + constant */
    uint64_t seed;
    int64_t count;
    template <class I> __device__ void operator()(I i) const
    {
        const int64_t at = (int64_t)i * 4;
        uint32_t c[4];
        float r[4];
        nnti_cuda_philox(c, seed, 0, 0xffffu, (uint32_t)((uint64_t)i >> 32), (uint32_t)i);
        nnti_cuda_draw<KIND>(c, r);
        for (int k = 0; k < 4; k++) {
            float v;
            if (at + k >= count) break;
            v = __fmaf_rn(b.scale, r[k], add ? to[at + k] : constant);
            to[at + k] = b.clamp ? nnti_cuda_bounded(b, v) : v;
        }
    }
};

/* ============================================================================
   >>gemm   Matrix products by cuBLAS
   cuBLAS counts columns first; a row-major matrix is its transpose there. "a, b, c" below are cuBLAS's.
   ============================================================================ */

/* c = op(a) op(b) + beta c, m x n x k, for `batch` of each, the steps between them given. */
struct nnti_cuda_product {
    int ta, tb, m, n, k, lda, ldb, ldc, batch;
    const void *a, *b;
    void *c;
    cudaDataType type, type_c;              /* of a and b; of c */
    float beta;
    int64_t step_a, step_b, step_c;
};
/* T: factors; C: results. */
template <class T, class C> nnti_cuda_product nnti_cuda_product_new(int m, int n, int k)
{
    nnti_cuda_product p;
    memset(&p, 0, sizeof p);
    p.m = m;
    p.n = n;
    p.k = k;
    p.batch = 1;
    p.type = nnti_cuda_type<T>::blas;
    p.type_c = nnti_cuda_type<C>::blas;
    return p;
}
/* Pedantic: products and sums in f32. TF32 rounds the factors to 11 bits first; factors that are bfloat16 have 8 already,
   and their products are exact in f32. Sums stay f32 with all. */
cublasComputeType_t nnti_cuda_compute_type(const nnt_op *op)
{
    if (op->flags & NNT_OPF_EXACT) return CUBLAS_COMPUTE_32F_PEDANTIC;
    if (op->flags & NNT_OPF_HALF) return CUBLAS_COMPUTE_32F;
    return op->precision == NNT_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_PEDANTIC;
}
nnt_result nnti_cuda_multiply(nnti_cuda *d, const nnt_op *op, const nnti_cuda_product *p)
{
    const float one = 1;
    NNTI_CUDA_TRY_BLAS(d, op, "matrix product", cublasGemmStridedBatchedEx(
        d->blas, p->ta ? CUBLAS_OP_T : CUBLAS_OP_N, p->tb ? CUBLAS_OP_T : CUBLAS_OP_N, p->m, p->n, p->k,
        &one, p->a, p->type, p->lda, p->step_a, p->b, p->type, p->ldb, p->step_b,
        &p->beta, p->c, p->type_c, p->ldc, p->step_c, p->batch, nnti_cuda_compute_type(op), CUBLAS_GEMM_DEFAULT));
    return NNT_OK;
}

/* `count` floats as cuBLAS wants them beside T: themselves, or rounded to bfloat16 into nnti_cuda_factor_bytes of room. */
size_t nnti_cuda_factor_bytes(const nnt_op *op, int64_t count) { return op->flags & NNT_OPF_HALF ? nnti_cuda_round((size_t)count * sizeof(nnti_cuda_half)) : 0; }
nnt_result nnti_cuda_factors(nnti_cuda *, const nnt_op *, const float *from, int64_t, void *, const float **to)
{
    *to = from;
    return NNT_OK;
}
nnt_result nnti_cuda_factors(nnti_cuda *d, const nnt_op *op, const float *from, int64_t count, void *room, const nnti_cuda_half **to)
{
    *to = (const nnti_cuda_half *)room;
    return nnti_cuda_retype(d, op, (nnti_cuda_half *)room, from, count);
}

/* What cublasLt makes of a product and the epilogue that goes with it. */
struct nnti_cuda_lt {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t wish;
};
void nnti_cuda_lt_free(nnti_cuda_lt *lt)    /* nothing can be done about a failure here */
{
    if (lt->wish) (void)cublasLtMatmulPreferenceDestroy(lt->wish);
    if (lt->c) (void)cublasLtMatrixLayoutDestroy(lt->c);
    if (lt->b) (void)cublasLtMatrixLayoutDestroy(lt->b);
    if (lt->a) (void)cublasLtMatrixLayoutDestroy(lt->a);
    if (lt->desc) (void)cublasLtMatmulDescDestroy(lt->desc);
}
int nnti_cuda_lt_wants(cublasLtMatmulPreference_t wish, cublasLtMatmulPreferenceAttributes_t what, uint32_t value)
{
    return !cublasLtMatmulPreferenceSetAttribute(wish, what, &value, sizeof value);
}
/* What an address is a multiple of; 256 is all that cublasLt asks for. */
uint32_t nnti_cuda_alignment(const void *p) { return (uint32_t)(((uintptr_t)p | 256) & (0 - ((uintptr_t)p | 256))); }
/* An algorithm that fits the workspace and the operands' addresses, which are multiples of 64 only where cublasLt takes 256
   for granted, and that adds parts of a sum as floats, in a separate step. 0: there is none. */
int nnti_cuda_lt_find(const nnti_cuda *d, const nnti_cuda_product *p, nnti_cuda_lt *lt, cublasLtMatmulHeuristicResult_t *found)
{
    int count = 0;
    return !cublasLtMatmulPreferenceCreate(&lt->wish)
        && !cublasLtMatmulPreferenceSetAttribute(lt->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &d->workspace_bytes, sizeof d->workspace_bytes)
        && nnti_cuda_lt_wants(lt->wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        && nnti_cuda_lt_wants(lt->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, nnti_cuda_alignment(p->a))
        && nnti_cuda_lt_wants(lt->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, nnti_cuda_alignment(p->b))
        && nnti_cuda_lt_wants(lt->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, nnti_cuda_alignment(p->c))
        && nnti_cuda_lt_wants(lt->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, nnti_cuda_alignment(p->c))
        && !cublasLtMatmulAlgoGetHeuristic(d->lt, lt->desc, lt->a, lt->b, lt->c, lt->c, lt->wish, 1, found, &count) && count > 0;
}
/* bias: one for each row of c, of c's type, which is the only one that cublasLt takes there; or NULL. 0: cublasLt can't. */
int nnti_cuda_lt_run(nnti_cuda *d, const nnt_op *op, const nnti_cuda_product *p, const void *bias, int relu, nnti_cuda_lt *lt)
{
    const float one = 1;
    const int32_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t end = bias ? relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU;
    cublasLtMatmulHeuristicResult_t found;
    if (cublasLtMatmulDescCreate(&lt->desc, nnti_cuda_compute_type(op), CUDA_R_32F)
        || cublasLtMatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta)
        || cublasLtMatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb)
        || cublasLtMatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof end)
        || (bias && cublasLtMatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias))
        || cublasLtMatrixLayoutCreate(&lt->a, p->type, (uint64_t)(p->ta ? p->k : p->m), (uint64_t)(p->ta ? p->m : p->k), p->lda)
        || cublasLtMatrixLayoutCreate(&lt->b, p->type, (uint64_t)(p->tb ? p->n : p->k), (uint64_t)(p->tb ? p->k : p->n), p->ldb)
        || cublasLtMatrixLayoutCreate(&lt->c, p->type_c, (uint64_t)p->m, (uint64_t)p->n, p->ldc)
        || !nnti_cuda_lt_find(d, p, lt, &found)) return 0;
    return !cublasLtMatmul(d->lt, lt->desc, &one, p->a, lt->a, p->b, lt->b, &p->beta, p->c, lt->c, p->c, lt->c,
                           &found.algo, d->workspace, d->workspace_bytes, d->stream);
}

/* y += bias, then max(y, 0). W values at a time, all of one channel. */
template <int W, class T> struct nnti_cuda_finish_map {
    T *y;
    const float *bias;                      /* NULL: none */
    int relu;
    nnti_cuda_divisor plane, channels;      /* of a channel, divided by W */
    template <class I> __device__ void operator()(I i) const
    {
        I at = i;
        float b;
        (void)nnti_cuda_split(&at, plane);
        b = bias ? bias[nnti_cuda_split(&at, channels)] : 0;
        for (int k = 0; k < W; k++) {
            const float v = y[(int64_t)i * W + k] + b;
            y[(int64_t)i * W + k] = relu && v < 0 ? 0 : v;
        }
    }
};
template <class T> struct nnti_cuda_finish_map<4, T> {
    T *y;
    const float *bias;
    int relu;
    nnti_cuda_divisor plane, channels;
    __device__ __forceinline__ float one(float v, float b) const { return relu && v + b < 0 ? 0 : v + b; }
    template <class I> __device__ void operator()(I i) const
    {
        I at = i;
        const float4 v = nnti_cuda_load4(y, (int64_t)i);
        float b;
        (void)nnti_cuda_split(&at, plane);
        b = bias ? bias[nnti_cuda_split(&at, channels)] : 0;
        nnti_cuda_store4(y, (int64_t)i, make_float4(one(v.x, b), one(v.y, b), one(v.z, b), one(v.w, b)));
    }
};
/* y[n][channel][position], `plane` positions. */
template <class T> nnt_result nnti_cuda_add_bias(nnti_cuda *d, const nnt_op *op, T *y, const float *bias, int relu, int64_t samples,
                                                 int64_t channels, int64_t plane)
{
    if (!bias && !relu) return NNT_OK;
    if (plane % 4 == 0 && nnti_cuda_aligned(y)) {
        nnti_cuda_finish_map<4, T> f = { y, bias, relu, nnti_cuda_divide_by(plane / 4), nnti_cuda_divide_by(channels) };
        return nnti_cuda_run_each(d, op, f, samples * channels * (plane / 4));
    }
    nnti_cuda_finish_map<1, T> f = { y, bias, relu, nnti_cuda_divide_by(plane), nnti_cuda_divide_by(channels) };
    return nnti_cuda_run_each(d, op, f, samples * channels * plane);
}

/* ============================================================================
   >>linear   x is [n][in], w [out][in], y [n][out]
   ============================================================================ */

/* Where the workspace has, rounded, the weights and behind them the bias. */
size_t nnti_cuda_linear_factor_bytes(const nnt_op *op) { return nnti_cuda_factor_bytes(op, nnti_cuda_in_size(op) * nnti_cuda_out_size(op)); }
size_t nnti_cuda_linear_bytes(const nnti_cuda *, const nnt_op *op, int)
{
    return nnti_cuda_linear_factor_bytes(op) + nnti_cuda_factor_bytes(op, nnti_cuda_out_size(op));
}
/* p, bias and relu in one by cuBLASLt, where it can. T: of y, and so of the bias too. */
template <class T> nnt_result nnti_cuda_linear_at_once(nnti_cuda *d, const nnt_op *op, const nnti_cuda_product *p, const float *bias, int relu, int *done)
{
    const T *b = NULL;
    nnti_cuda_lt lt;
    if (bias) NNTI_CUDA_DO(nnti_cuda_factors(d, op, bias, p->m, (char *)op->workspace + nnti_cuda_linear_factor_bytes(op), &b));
    memset(&lt, 0, sizeof lt);
    *done = nnti_cuda_lt_run(d, op, p, b, relu, &lt);
    nnti_cuda_lt_free(&lt);
    return NNT_OK;
}
/* y[n][o] = sum_i x[n][i] w[o][i] + b[o], then max(y, 0) */
template <class T> nnt_result nnti_cuda_linear(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int in = (int)nnti_cuda_in_size(op), out = (int)nnti_cuda_out_size(op), relu = nnti_cuda_relu(op);
    const float *bias = nnti_cuda_in(op, NNT_B);
    T *y = nnti_cuda_out<T>(op, NNT_Y);
    const T *w;
    int done = 0;
    nnti_cuda_product p = nnti_cuda_product_new<T, T>(out, job->count, in);
    NNTI_CUDA_DO(nnti_cuda_factors(d, op, nnti_cuda_in(op, NNT_W), (int64_t)in * out, op->workspace, &w));
    p.ta = 1;
    p.a = w;
    p.lda = p.ldb = in;
    p.b = nnti_cuda_in<T>(op, NNT_X);
    p.c = y;
    p.ldc = out;
    if (bias || relu) NNTI_CUDA_DO(nnti_cuda_linear_at_once<T>(d, op, &p, bias, relu, &done));
    if (done) return NNT_OK;
    NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &p));
    return nnti_cuda_add_bias(d, op, y, bias, relu, job->count, out, 1);
}
/* Samples whose gx are there at one time when they are to be written over their mask. */
int nnti_cuda_over_samples(const nnt_op *op, int count)
{
    return (int)nnti_cuda_max(1, nnti_cuda_min(count, NNT_CUDA_CHUNK / (nnti_cuda_in_size(op) * (int64_t)nnti_cuda_element(op))));
}
/* The weights' factors, then gx of some samples. */
size_t nnti_cuda_linear_data_bytes(const nnti_cuda *, const nnt_op *op, int batch)
{
    const size_t factors = nnti_cuda_linear_factor_bytes(op);
    if (!(op->flags & NNT_OPF_OVER)) return factors;
    return factors + (size_t)nnti_cuda_over_samples(op, batch) * (size_t)nnti_cuda_in_size(op) * nnti_cuda_element(op);
}
/* gx[n][i] (+)= sum_o gy[n][o] w[o][i], then the mask. Over the mask, by way of the workspace. */
template <class T> nnt_result nnti_cuda_linear_data(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int in = (int)nnti_cuda_in_size(op), out = (int)nnti_cuda_out_size(op), over = (op->flags & NNT_OPF_OVER) != 0;
    const int each = over ? nnti_cuda_over_samples(op, job->count) : job->count;
    const T *w;
    NNTI_CUDA_DO(nnti_cuda_factors(d, op, nnti_cuda_in(op, NNT_W), (int64_t)in * out, op->workspace, &w));
    for (int n = 0; n < job->count; n += each) {
        const int samples = (int)nnti_cuda_min(each, job->count - n);
        const int64_t first = (int64_t)n * in;
        T *gx = nnti_cuda_out<T>(op, NNT_GX) + first, *to = over ? (T *)((char *)op->workspace + nnti_cuda_linear_factor_bytes(op)) : gx;
        nnti_cuda_product p = nnti_cuda_product_new<T, T>(in, samples, out);
        p.a = w;
        p.lda = p.ldc = in;
        p.b = nnti_cuda_in<T>(op, NNT_GY) + (int64_t)n * out;
        p.ldb = out;
        p.c = to;
        p.beta = nnti_cuda_adds(op) ? 1.0f : 0.0f;
        NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &p));
        if (!nnti_cuda_mask<T>(op)) continue;
        NNTI_CUDA_DO(nnti_cuda_run_sum(d, op, gx, to, NULL, nnti_cuda_mask<T>(op) + first, 0, (int64_t)samples * in));
    }
    return NNT_OK;
}
/* to[o] (+)= sum_n gy[n][o]; neighbouring threads read neighbouring columns */
template <class T> struct nnti_cuda_column_sum {
    const T *gy;
    float *to;
    int rows, adds;
    int64_t columns;
    template <class I> __device__ void operator()(I o) const
    {
        double s = adds ? (double)to[o] : 0;
        for (int n = 0; n < rows; n++) s += (double)gy[n * columns + (int64_t)o];
        to[o] = (float)s;
    }
};
/* gw[o][i] (+)= sum_n gy[n][o] x[n][i], gb[o] (+)= sum_n gy[n][o] */
template <class T> nnt_result nnti_cuda_linear_weight(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int in = (int)nnti_cuda_in_size(op), out = (int)nnti_cuda_out_size(op);
    nnti_cuda_column_sum<T> f = { nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_out(op, NNT_GB), job->count, job->accumulate, out };
    nnti_cuda_product p = nnti_cuda_product_new<T, float>(in, out, job->count);
    p.a = nnti_cuda_in<T>(op, NNT_X);
    p.lda = p.ldc = in;
    p.b = nnti_cuda_in<T>(op, NNT_GY);
    p.ldb = out;
    p.tb = 1;
    p.c = nnti_cuda_out(op, NNT_GW);
    p.beta = job->accumulate ? 1.0f : 0.0f;
    NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &p));
    return f.to ? nnti_cuda_run_each(d, op, f, out) : NNT_OK;
}

/* ============================================================================
   >>cudnn   The convolutions of >>conv by cuDNN, with -DNNT_CUDNN
   For each call cuDNN gets to know the shapes and tells its algorithms, the fastest first; the first that gives the same
   bits each time and fits the workspace computes. What cuDNN can't do, >>conv does. Also what has to be as written
   (NNT_OPF_EXACT), and what is stored in bfloat16 (NNT_OPF_HALF).
   ============================================================================ */

enum { NNTI_CUDNN_FORWARD, NNTI_CUDNN_DATA, NNTI_CUDNN_WEIGHT };

#if defined(NNT_CUDNN)
enum { NNTI_CUDNN_ALGORITHMS = 8 };         /* there are no more of a kind */

/* A convolution as cuDNN sees it, and how it would compute it. */
struct nnti_cudnn {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    int algorithm;
    size_t bytes;
};
void nnti_cudnn_free(nnti_cudnn *c)         /* nothing can be done about a failure here */
{
    if (c->conv) (void)cudnnDestroyConvolutionDescriptor(c->conv);
    if (c->w) (void)cudnnDestroyFilterDescriptor(c->w);
    if (c->y) (void)cudnnDestroyTensorDescriptor(c->y);
    if (c->x) (void)cudnnDestroyTensorDescriptor(c->x);
}
int nnti_cudnn_takes(const nnt_op *op) { return !(op->flags & (NNT_OPF_EXACT | NNT_OPF_HALF)); }

/* Whether cuDNN means that it does not do this, rather than that something went wrong. */
int nnti_cudnn_declines(cudnnStatus_t s)
{
    const int category = CUDNN_STATUS_CATEGORY((int)s);
    return category == (int)CUDNN_STATUS_NOT_SUPPORTED || category == (int)CUDNN_STATUS_BAD_PARAM;
}
nnt_result nnti_cudnn_failed(nnti_cuda *d, const nnt_op *op, const char *what, cudnnStatus_t s)
{
    if (d->dead) return NNT_ERR_DEVICE;
    nnti_cuda_say_op(d, op);
    nnti_cuda_put(d->text, what);
    nnti_cuda_put(d->text, ": ");
    nnti_cuda_put(d->text, cudnnGetErrorString(s));
    nnti_cuda_say_rest(d, op);
    return s == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED || s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
        ? NNT_ERR_MEMORY : NNT_ERR_DEVICE;
}
cudnnStatus_t nnti_cudnn_describe(const nnt_op *op, int count, nnti_cudnn *c)
{
    cudnnStatus_t s = cudnnCreateTensorDescriptor(&c->x);
    if (!s) s = cudnnCreateTensorDescriptor(&c->y);
    if (!s) s = cudnnCreateFilterDescriptor(&c->w);
    if (!s) s = cudnnCreateConvolutionDescriptor(&c->conv);
    if (!s) s = cudnnSetTensor4dDescriptor(c->x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, count, op->in_c, op->in_h, op->in_w);
    if (!s) s = cudnnSetTensor4dDescriptor(c->y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, count, op->out_c, op->out_h, op->out_w);
    if (!s) s = cudnnSetFilter4dDescriptor(c->w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, op->out_c, op->in_c / op->groups, op->kernel_h, op->kernel_w);
    if (!s) s = cudnnSetConvolution2dDescriptor(c->conv, op->pad_h, op->pad_w, op->stride_h, op->stride_w, op->dilation_h, op->dilation_w,
                                                CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (!s) s = cudnnSetConvolutionGroupCount(c->conv, op->groups);
    if (!s) s = cudnnSetConvolutionMathType(c->conv, op->precision == NNT_FP32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH);   /* the default: tf32 */
    return s;
}
/* P: one of cuDNN's three kinds of the same struct. */
template <class P> cudnnStatus_t nnti_cudnn_pick(const P *p, int count, size_t room, nnti_cudnn *c)
{
    for (int i = 0; i < count; i++) {
        if (p[i].status || p[i].determinism != CUDNN_DETERMINISTIC || p[i].memory > room) continue;
        c->algorithm = (int)p[i].algo;
        c->bytes = p[i].memory;
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t nnti_cudnn_choose(const nnti_cuda *d, int direction, size_t room, nnti_cudnn *c)
{
    cudnnConvolutionFwdAlgoPerf_t forward[NNTI_CUDNN_ALGORITHMS];
    cudnnConvolutionBwdDataAlgoPerf_t data[NNTI_CUDNN_ALGORITHMS];
    cudnnConvolutionBwdFilterAlgoPerf_t weight[NNTI_CUDNN_ALGORITHMS];
    cudnnStatus_t s;
    int count = 0;
    switch (direction) {
    case NNTI_CUDNN_FORWARD:
        s = cudnnGetConvolutionForwardAlgorithm_v7(d->dnn, c->x, c->w, c->conv, c->y, NNTI_CUDNN_ALGORITHMS, &count, forward);
        return s ? s : nnti_cudnn_pick(forward, count, room, c);
    case NNTI_CUDNN_DATA:
        s = cudnnGetConvolutionBackwardDataAlgorithm_v7(d->dnn, c->w, c->y, c->conv, c->x, NNTI_CUDNN_ALGORITHMS, &count, data);
        return s ? s : nnti_cudnn_pick(data, count, room, c);
    default:
        s = cudnnGetConvolutionBackwardFilterAlgorithm_v7(d->dnn, c->x, c->y, c->conv, c->w, NNTI_CUDNN_ALGORITHMS, &count, weight);
        return s ? s : nnti_cudnn_pick(weight, count, room, c);
    }
}
/* Of `count` samples, in at most `room` bytes of workspace. To be freed, whatever comes of it. */
cudnnStatus_t nnti_cudnn_prepare(const nnti_cuda *d, const nnt_op *op, int direction, int count, size_t room, nnti_cudnn *c)
{
    cudnnStatus_t s;
    memset(c, 0, sizeof *c);
    if (!nnti_cudnn_takes(op)) return CUDNN_STATUS_NOT_SUPPORTED;
    s = nnti_cudnn_describe(op, count, c);
    return s ? s : nnti_cudnn_choose(d, direction, room, c);
}
size_t nnti_cudnn_bytes(const nnti_cuda *d, const nnt_op *op, int direction, int count)
{
    nnti_cudnn c;
    cudnnStatus_t s;
    if (cudaSetDevice(d->index)) return 0;
    s = nnti_cudnn_prepare(d, op, direction, count, NNT_CUDNN_BYTES, &c);
    nnti_cudnn_free(&c);
    return s ? 0 : nnti_cuda_round(c.bytes);
}
/* X W -> Y, GY W -> GX or X GY -> GW, `beta` times what was there added; neither bias nor mask. done 0: cuDNN does not do
   this, and nothing has happened. */
nnt_result nnti_cudnn_run(nnti_cuda *d, const nnt_op *op, int direction, int count, float beta, int *done)
{
    const float one = 1;
    nnti_cudnn c;
    cudnnStatus_t s = nnti_cudnn_prepare(d, op, direction, count, op->workspace_bytes, &c);
    if (!s) switch (direction) {
    case NNTI_CUDNN_FORWARD:
        s = cudnnConvolutionForward(d->dnn, &one, c.x, op->at[NNT_X], c.w, op->at[NNT_W], c.conv, (cudnnConvolutionFwdAlgo_t)c.algorithm,
                                    op->workspace, c.bytes, &beta, c.y, op->at[NNT_Y]);
        break;
    case NNTI_CUDNN_DATA:
        s = cudnnConvolutionBackwardData(d->dnn, &one, c.w, op->at[NNT_W], c.y, op->at[NNT_GY], c.conv, (cudnnConvolutionBwdDataAlgo_t)c.algorithm,
                                         op->workspace, c.bytes, &beta, c.x, op->at[NNT_GX]);
        break;
    default:
        s = cudnnConvolutionBackwardFilter(d->dnn, &one, c.x, op->at[NNT_X], c.y, op->at[NNT_GY], c.conv, (cudnnConvolutionBwdFilterAlgo_t)c.algorithm,
                                           op->workspace, c.bytes, &beta, c.w, op->at[NNT_GW]);
    }
    nnti_cudnn_free(&c);
    *done = !s;
    return !s || nnti_cudnn_declines(s) ? NNT_OK : nnti_cudnn_failed(d, op, "cuDNN", s);
}
nnt_result nnti_cudnn_open(nnti_cuda *d)
{
    cudnnStatus_t s = cudnnCreate(&d->dnn);
    if (!s) s = cudnnSetStream(d->dnn, d->stream);
    return s ? nnti_cudnn_failed(d, NULL, "starting cuDNN", s) : NNT_OK;
}
void nnti_cudnn_close(nnti_cuda *d) { if (d->dnn) (void)cudnnDestroy(d->dnn); }
#else
int nnti_cudnn_takes(const nnt_op *) { return 0; }
size_t nnti_cudnn_bytes(const nnti_cuda *, const nnt_op *, int, int) { return 0; }
nnt_result nnti_cudnn_run(nnti_cuda *, const nnt_op *, int, int, float, int *done) { *done = 0; return NNT_OK; }
nnt_result nnti_cudnn_open(nnti_cuda *) { return NNT_OK; }
void nnti_cudnn_close(nnti_cuda *) {}
#endif

/* ============================================================================
   >>winograd   Convolutions 3x3 of stride 1 with fewer multiplications. CPU: >>winograd of nntrain.h
   Lavin and Gray, arXiv 1509.09308. A tile of M x M results comes from a window d of (M + 2) x (M + 2) values by

       y = A' [sum over channels of (G w G') . (B' d B)] A        . multiplies element by element

   so that all channels, filters and tiles are one product for each of the window's 36 elements (16 for M = 2): a strided
   batch. The gradient of the input is such a convolution of gy by the weights turned by half a turn; that of the weights is the
   adjoint map, gw = G' [sum over tiles of (A gy A') . (B' d B)] G.

   Only in f32, where multiplications are what takes the time: M = 4 makes 4 times fewer of them, and moves 44 bytes for each
   channel and position where a column matrix has 80 and M = 2 has 72. Tensor cores have multiplications to spare, and would round
   the transforms. M = 2 is for maps of at most 4x4, which larger tiles would not fill: its weights are 16 products and not 36.
   Points are the CPU's, 0, +-5/8, +-3/2 and infinity for M = 4, whose error is half of that with the usual 1 and 2.

   The workspace holds the weights' transforms [element][filter][channel], then for a chunk of tiles, counted through samples,
   rows and columns, those of the windows [element][channel][tile] and of the results [element][filter][tile], which have NNT_CUDA_CHUNK
   bytes at most (or 32 tiles) and stay in the L2 cache. A tile's results don't depend on the chunk that it is in.
   ============================================================================ */

enum {
    NNTI_CUDA_WINO_LEAST = 16,              /* channels and filters, as on the CPU: with less the sums bound nothing */
    NNTI_CUDA_WINO_MOST = 1 << 20,          /* channels x filters: their transforms have 151 MB then */
    NNTI_CUDA_WINO_LINE = 32,               /* tiles: what chunks are multiples of, and rows of transforms are aligned to */
    NNTI_CUDA_WINO_RATE = 24                /* multiply-adds that a card does while it moves a float, see below */
};
/* Whether the multiplications that tiles save take longer than what is moved for it. Weights' transforms are written and read,
   as many floats for each channel and filter as a window has elements e; so are those of windows, for channels and for
   filters; but no columns, 9 floats for each channel and position. By the batch that the net is compiled for, so that a
   picture's results don't depend on how many come with it. Data sheets say 25 multiply-adds a float for an A100, 28 for an
   H200, 51 for a T4, 164 for an RTX 4090: where they are cheap, a few layers of a single picture go without. */
int nnti_cuda_wino_pays(const nnt_op *op, int side)
{
    const double e = (side + 2) * (side + 2), samples = (double)nnti_cuda_max(1, op->batch), c = op->in_c, f = op->out_c;
    const int down = (op->out_h + side - 1) / side, across = (op->out_w + side - 1) / side;
    const double positions = samples * op->out_h * op->out_w, tiles = samples * down * across;
    const double saved = c * f * (9 * positions - e * tiles), moved = 2 * e * (c * f + (c + f) * tiles) - 2 * 9 * c * positions;
    return saved > NNTI_CUDA_WINO_RATE * moved;
}
/* Results along a tile's side; 0: not by Winograd. By shapes and the plan's batch. */
int nnti_cuda_wino_side(const nnt_op *op)
{
#if !defined(NNT_EXACT_CONV)
    if (op->precision == NNT_FP32 && !(op->flags & NNT_OPF_EXACT) && op->kernel_h == 3 && op->kernel_w == 3 && op->groups == 1
        && op->stride_h == 1 && op->stride_w == 1 && op->dilation_h == 1 && op->dilation_w == 1 && op->pad_h < 3 && op->pad_w < 3
        && op->in_c >= NNTI_CUDA_WINO_LEAST && op->out_c >= NNTI_CUDA_WINO_LEAST && (int64_t)op->in_c * op->out_c <= NNTI_CUDA_WINO_MOST) {
        const int side = op->in_h > 4 || op->in_w > 4 ? 4 : 2;
        return nnti_cuda_wino_pays(op, side) ? side : 0;
    }
#endif
    (void)op;
    return 0;
}

/* ---- one side of each map: y = L x for a line of `from` values. Powers of the points are exact. ---- */

#define NNTI_CUDA_P2 0.390625f              /* (5/8)^2 */
#define NNTI_CUDA_Q2 2.25f                  /* (3/2)^2 */
#define NNTI_CUDA_N0 (1.0f / (NNTI_CUDA_P2 * NNTI_CUDA_Q2))
#define NNTI_CUDA_NP (0.5f / (NNTI_CUDA_P2 * (NNTI_CUDA_P2 - NNTI_CUDA_Q2)))
#define NNTI_CUDA_NQ (0.5f / (NNTI_CUDA_Q2 * (NNTI_CUDA_Q2 - NNTI_CUDA_P2)))

template <int M> struct nnti_cuda_wino_data;        /* B': a window's line */
template <> struct nnti_cuda_wino_data<4> {
    enum { from = 6, to = 6 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = x[4] - NNTI_CUDA_Q2 * x[2], o = 0.625f * (x[3] - NNTI_CUDA_Q2 * x[1]);
        const float f = x[4] - NNTI_CUDA_P2 * x[2], g = 1.5f * (x[3] - NNTI_CUDA_P2 * x[1]);
        y[0] = NNTI_CUDA_P2 * NNTI_CUDA_Q2 * x[0] + (x[4] - (NNTI_CUDA_P2 + NNTI_CUDA_Q2) * x[2]);
        y[1] = e + o;
        y[2] = e - o;
        y[3] = f + g;
        y[4] = f - g;
        y[5] = NNTI_CUDA_P2 * NNTI_CUDA_Q2 * x[1] + (x[5] - (NNTI_CUDA_P2 + NNTI_CUDA_Q2) * x[3]);
    }
};
template <> struct nnti_cuda_wino_data<2> {
    enum { from = 4, to = 4 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        y[0] = x[2] - x[0];
        y[1] = x[1] + x[2];
        y[2] = x[2] - x[1];
        y[3] = x[3] - x[1];
    }
};
template <int M> struct nnti_cuda_wino_kernel;      /* G: weights */
template <> struct nnti_cuda_wino_kernel<4> {
    enum { from = 3, to = 6 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = (x[0] + NNTI_CUDA_P2 * x[2]) * NNTI_CUDA_NP, o = 0.625f * NNTI_CUDA_NP * x[1];
        const float f = (x[0] + NNTI_CUDA_Q2 * x[2]) * NNTI_CUDA_NQ, g = 1.5f * NNTI_CUDA_NQ * x[1];
        y[0] = x[0] * NNTI_CUDA_N0;
        y[1] = e + o;
        y[2] = e - o;
        y[3] = f + g;
        y[4] = f - g;
        y[5] = x[2];
    }
};
template <> struct nnti_cuda_wino_kernel<2> {
    enum { from = 3, to = 4 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = (x[0] + x[2]) * 0.5f, o = x[1] * 0.5f;
        y[0] = -x[0];
        y[1] = e + o;
        y[2] = e - o;
        y[3] = x[2];
    }
};
template <int M> struct nnti_cuda_wino_result;      /* A': sums of products */
template <> struct nnti_cuda_wino_result<4> {
    enum { from = 6, to = 4 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = x[1] + x[2], o = 0.625f * (x[1] - x[2]), f = x[3] + x[4], g = 1.5f * (x[3] - x[4]);
        y[0] = x[0] + (e + f);
        y[1] = o + g;
        y[2] = NNTI_CUDA_P2 * e + NNTI_CUDA_Q2 * f;
        y[3] = NNTI_CUDA_P2 * o + (NNTI_CUDA_Q2 * g + x[5]);
    }
};
template <> struct nnti_cuda_wino_result<2> {
    enum { from = 4, to = 2 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        y[0] = x[0] + (x[1] + x[2]);
        y[1] = (x[1] - x[2]) + x[3];
    }
};
template <int M> struct nnti_cuda_wino_spread;      /* A: a gradient of results */
template <> struct nnti_cuda_wino_spread<4> {
    enum { from = 4, to = 6 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = x[0] + NNTI_CUDA_P2 * x[2], o = 0.625f * (x[1] + NNTI_CUDA_P2 * x[3]);
        const float f = x[0] + NNTI_CUDA_Q2 * x[2], g = 1.5f * (x[1] + NNTI_CUDA_Q2 * x[3]);
        y[0] = x[0];
        y[1] = e + o;
        y[2] = e - o;
        y[3] = f + g;
        y[4] = f - g;
        y[5] = x[3];
    }
};
template <> struct nnti_cuda_wino_spread<2> {
    enum { from = 2, to = 4 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        y[0] = x[0];
        y[1] = x[0] + x[1];
        y[2] = x[0] - x[1];
        y[3] = x[1];
    }
};
template <int M> struct nnti_cuda_wino_weight;      /* G': sums of products, for the gradient of weights */
template <> struct nnti_cuda_wino_weight<4> {
    enum { from = 6, to = 3 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = (x[1] + x[2]) * NNTI_CUDA_NP, o = (x[1] - x[2]) * (0.625f * NNTI_CUDA_NP);
        const float f = (x[3] + x[4]) * NNTI_CUDA_NQ, g = (x[3] - x[4]) * (1.5f * NNTI_CUDA_NQ);
        y[0] = NNTI_CUDA_N0 * x[0] + (e + f);
        y[1] = o + g;
        y[2] = NNTI_CUDA_P2 * e + (NNTI_CUDA_Q2 * f + x[5]);
    }
};
template <> struct nnti_cuda_wino_weight<2> {
    enum { from = 4, to = 3 };
    static __device__ __forceinline__ void run(const float *x, float *y)
    {
        const float e = (x[1] + x[2]) * 0.5f;
        y[0] = e - x[0];
        y[1] = (x[1] - x[2]) * 0.5f;
        y[2] = e + x[3];
    }
};
#undef NNTI_CUDA_P2
#undef NNTI_CUDA_Q2
#undef NNTI_CUDA_N0
#undef NNTI_CUDA_NP
#undef NNTI_CUDA_NQ

/* Both sides, y = L x L': get(i, j) gives x[i][j], put(i, y) takes a row. All loops are unrolled: a thread keeps its tile in
   registers. */
template <class L, class Get, class Put> __device__ __forceinline__ void nnti_cuda_wino_both(const Get &get, const Put &put)
{
    float t[L::to][L::from];
    NNTI_CUDA_UNROLL
    for (int j = 0; j < L::from; j++) {
        float x[L::from], y[L::to];
        NNTI_CUDA_UNROLL
        for (int i = 0; i < L::from; i++) x[i] = get(i, j);
        L::run(x, y);
        NNTI_CUDA_UNROLL
        for (int i = 0; i < L::to; i++) t[i][j] = y[i];
    }
    NNTI_CUDA_UNROLL
    for (int i = 0; i < L::to; i++) {
        float y[L::to];
        L::run(t[i], y);
        put(i, y);
    }
}

/* ---- kernels: a thread for each channel of a tile, or each filter of a channel ---- */

/* A chunk: which tiles of which map. Threads i are [channel][tile], `line` tiles, of which those from `count` on do nothing. */
struct nnti_cuda_wino_chunk {
    int channels, h, w, count, first;       /* first: tile of the first sample, whose maps the pointers point to */
    nnti_cuda_divisor line, down, across;
};
struct nnti_cuda_wino_place { int64_t plane; int channel, row, column; };       /* of a tile: its sample's and channel's map */

template <class I> __device__ __forceinline__ bool nnti_cuda_wino_find(const nnti_cuda_wino_chunk &k, I i, nnti_cuda_wino_place *at)
{
    I c = i, n = nnti_cuda_split(&c, k.line);
    if (n >= (I)k.count) return false;
    n += (I)k.first;
    at->column = (int)nnti_cuda_split(&n, k.across);
    at->row = (int)nnti_cuda_split(&n, k.down);
    at->channel = (int)c;
    at->plane = ((int64_t)n * k.channels + (int64_t)c) * k.h * k.w;
    return true;
}
/* v[element][channel][tile] = L x L' for windows of x, or tiles of gy, from row M t - pad_h on; values outside are 0 */
template <class L, int M> struct nnti_cuda_wino_read {
    nnti_cuda_wino_chunk k;
    const float *x;
    float *v;
    int pad_h, pad_w;
    int64_t element;                        /* floats of one */
    template <class I> __device__ void operator()(I i) const
    {
        nnti_cuda_wino_place at;
        if (!nnti_cuda_wino_find(k, i, &at)) return;
        const int top = at.row * M - pad_h, left = at.column * M - pad_w, h = k.h, w = k.w;
        const int64_t step = element;
        const float *from = x + at.plane;
        float *to = v + i;
        nnti_cuda_wino_both<L>(
            [=](int r, int s) {
                const int ih = top + r, iw = left + s;
                return ih >= 0 && ih < h && iw >= 0 && iw < w ? from[ih * w + iw] : 0.0f;
            },
            [=](int r, const float *y) {
                NNTI_CUDA_UNROLL
                for (int s = 0; s < L::to; s++) to[(r * L::to + s) * step] = y[s];
            });
    }
};
/* Where results go, and what becomes of them on the way: bias, what is there already, max(., 0), the mask. NULL: none */
struct nnti_cuda_wino_end {
    float *y;
    const float *bias, *mask;
    int relu, adds;
};
/* y = A' v A, then all of that. vector: rows are whole fours. */
template <int M> struct nnti_cuda_wino_write {
    nnti_cuda_wino_chunk k;
    const float *v;
    nnti_cuda_wino_end to;
    int vector;
    int64_t element;
    __device__ __forceinline__ float finish(float v, float b, float old, float mask) const
    {
        v = v + b + old;
        if (to.relu && v < 0) v = 0;
        return mask > 0 ? v : 0;
    }
    __device__ __forceinline__ void four(int64_t at, const float (&r)[4], float b) const
    {
        const float4 old = nnti_cuda_get4(to.adds ? (const float *)to.y : NULL, at / 4);
        const float4 mask = to.mask ? nnti_cuda_load4(to.mask, at / 4) : make_float4(1, 1, 1, 1);
        nnti_cuda_store4(to.y, at / 4, make_float4(finish(r[0], b, old.x, mask.x), finish(r[1], b, old.y, mask.y),
                                                    finish(r[2], b, old.z, mask.z), finish(r[3], b, old.w, mask.w)));
    }
    __device__ __forceinline__ void four(int64_t, const float (&)[2], float) const {}      /* tiles of 2 don't have them */
    template <class I> __device__ void operator()(I i) const
    {
        nnti_cuda_wino_place at;
        if (!nnti_cuda_wino_find(k, i, &at)) return;
        const int row = at.row * M, column = at.column * M, width = k.w - column;
        const int64_t step = element, first = at.plane + (int64_t)row * k.w + column;
        const float *from = v + i, b = to.bias ? to.bias[at.channel] : 0;
        nnti_cuda_wino_both<nnti_cuda_wino_result<M> >(
            [&](int r, int s) { return from[(r * (M + 2) + s) * step]; },
            [&](int r, const float (&y)[M]) {
                const int64_t start = first + (int64_t)r * k.w;
                if (row + r >= k.h) return;
                if (M == 4 && vector) { four(start, y, b); return; }
                NNTI_CUDA_UNROLL
                for (int s = 0; s < M; s++)
                    if (s < width)
                        to.y[start + s] = finish(y[s], b, to.adds ? to.y[start + s] : 0, to.mask ? to.mask[start + s] : 1);
            });
    }
};
/* u[element][filter][channel] = G w G', turned by half a turn for the gradient of the input. Threads: filter, channel. */
template <int M> struct nnti_cuda_wino_weights {
    const float *w;
    float *u;
    int turned;
    int64_t element;
    template <class I> __device__ void operator()(I i) const
    {
        const int64_t step = element;
        const float *from = w + (int64_t)i * 9 + (turned ? 8 : 0);
        const int next = turned ? -1 : 1;
        float *to = u + i;
        nnti_cuda_wino_both<nnti_cuda_wino_kernel<M> >(
            [=](int r, int s) { return from[(r * 3 + s) * next]; },
            [=](int r, const float *y) {
                NNTI_CUDA_UNROLL
                for (int s = 0; s < M + 2; s++) to[(r * (M + 2) + s) * step] = y[s];
            });
    }
};
/* gw (+)= G' sums G. Threads: filter, channel. */
template <int M> struct nnti_cuda_wino_weight_gradient {
    const float *sums;
    float *gw;
    int adds;
    int64_t element;
    template <class I> __device__ void operator()(I i) const
    {
        const int64_t step = element;
        const float *from = sums + i;
        float *to = gw + (int64_t)i * 9;
        const int add = adds;
        nnti_cuda_wino_both<nnti_cuda_wino_weight<M> >(
            [=](int r, int s) { return from[(r * (M + 2) + s) * step]; },
            [=](int r, const float *y) {
                NNTI_CUDA_UNROLL
                for (int s = 0; s < 3; s++) to[r * 3 + s] = add ? to[r * 3 + s] + y[s] : y[s];
            });
    }
};

/* ---- what the host does ---- */

/* A map of op, cut in tiles that begin at -pad. */
struct nnti_cuda_wino_map { int channels, h, w, pad_h, pad_w; };

nnti_cuda_wino_map nnti_cuda_wino_in(const nnt_op *op, int pad_h, int pad_w)
{
    nnti_cuda_wino_map m = { op->in_c, op->in_h, op->in_w, pad_h, pad_w };
    return m;
}
nnti_cuda_wino_map nnti_cuda_wino_out(const nnt_op *op, int pad_h, int pad_w)
{
    nnti_cuda_wino_map m = { op->out_c, op->out_h, op->out_w, pad_h, pad_w };
    return m;
}
/* How `samples` maps are cut: tiles down and across each, tiles of a chunk, room for those of fewer samples too. Floats of the
   weights' transforms. */
struct nnti_cuda_wino { int elements, down, across, each, room; int64_t tiles, weights; };

nnti_cuda_wino nnti_cuda_wino_cut(const nnt_op *op, int64_t samples, nnti_cuda_wino_map m)
{
    const int64_t side = nnti_cuda_wino_side(op), line = NNTI_CUDA_WINO_LINE;
    nnti_cuda_wino p;
    int64_t most, chunks;
    p.elements = (int)((side + 2) * (side + 2));
    p.down = (int)((m.h + side - 1) / side);
    p.across = (int)((m.w + side - 1) / side);
    p.tiles = samples * p.down * p.across;
    p.weights = (p.elements * (int64_t)op->in_c * op->out_c + 63) / 64 * 64;
    most = NNT_CUDA_CHUNK / (p.elements * ((int64_t)op->in_c + op->out_c) * (int64_t)sizeof(float));
    most = nnti_cuda_max(1, most / line) * line;
    chunks = (p.tiles + most - 1) / most;                       /* of one size, since a small rest makes a slow product */
    p.each = (int)(((p.tiles + chunks - 1) / chunks + line - 1) / line * line);
    p.room = (int)nnti_cuda_min(most, (p.tiles + line - 1) / line * line);
    return p;
}
size_t nnti_cuda_wino_bytes(const nnt_op *op, int samples, nnti_cuda_wino_map m)
{
    const nnti_cuda_wino p = nnti_cuda_wino_cut(op, samples, m);
    return nnti_cuda_round((size_t)(p.weights + (int64_t)p.elements * (op->in_c + op->out_c) * p.room) * sizeof(float));
}
/* The tiles of m from `first` on, and in *start where its sample begins. */
nnti_cuda_wino_chunk nnti_cuda_wino_chunk_of(const nnti_cuda_wino *p, nnti_cuda_wino_map m, int64_t first, int64_t *start)
{
    const int64_t a_sample = (int64_t)p->down * p->across;
    nnti_cuda_wino_chunk k;
    k.channels = m.channels;
    k.h = m.h;
    k.w = m.w;
    k.count = (int)nnti_cuda_min(p->each, p->tiles - first);
    k.first = (int)(first % a_sample);
    k.line = nnti_cuda_divide_by(p->each);
    k.down = nnti_cuda_divide_by(p->down);
    k.across = nnti_cuda_divide_by(p->across);
    *start = first / a_sample * m.channels * m.h * m.w;
    return k;
}
template <class L, int M> nnt_result nnti_cuda_wino_run_read(nnti_cuda *d, const nnt_op *op, const nnti_cuda_wino *p, nnti_cuda_wino_map m,
                                                             int64_t first, const float *x, float *v)
{
    nnti_cuda_wino_read<L, M> f;
    int64_t start;
    f.k = nnti_cuda_wino_chunk_of(p, m, first, &start);
    f.x = x + start;
    f.v = v;
    f.pad_h = m.pad_h;
    f.pad_w = m.pad_w;
    f.element = (int64_t)m.channels * p->each;
    return nnti_cuda_run_each(d, op, f, f.element);
}
template <int M> nnt_result nnti_cuda_wino_run_write(nnti_cuda *d, const nnt_op *op, const nnti_cuda_wino *p, nnti_cuda_wino_map m,
                                                     int64_t first, const float *v, nnti_cuda_wino_end to)
{
    nnti_cuda_wino_write<M> f;
    int64_t start;
    f.k = nnti_cuda_wino_chunk_of(p, m, first, &start);
    f.v = v;
    f.to = to;
    f.to.y += start;
    if (to.mask) f.to.mask += start;
    f.vector = m.w % 4 == 0 && nnti_cuda_aligned(f.to.y) && nnti_cuda_aligned(f.to.mask);
    f.element = (int64_t)m.channels * p->each;
    return nnti_cuda_run_each(d, op, f, f.element);
}
/* x convolved with w, of which a row is a filter; turned: gy with w turned, of which a column is one. */
template <int M> nnt_result nnti_cuda_wino_convolve(nnti_cuda *d, const nnt_op *op, int count, const float *x, nnti_cuda_wino_map in,
                                                    nnti_cuda_wino_map out, nnti_cuda_wino_end to, int turned)
{
    const nnti_cuda_wino p = nnti_cuda_wino_cut(op, count, out);
    const int64_t weights = (int64_t)op->in_c * op->out_c;
    float *u = (float *)op->workspace, *v = u + p.weights, *sums = v + (int64_t)p.elements * in.channels * p.each;
    nnti_cuda_wino_weights<M> f = { nnti_cuda_in(op, NNT_W), u, turned, weights };
    NNTI_CUDA_DO(nnti_cuda_run_each(d, op, f, weights));
    for (int64_t first = 0; first < p.tiles; first += p.each) {
        nnti_cuda_product g = nnti_cuda_product_new<float, float>((int)nnti_cuda_min(p.each, p.tiles - first), out.channels, in.channels);
        g.a = v;
        g.lda = g.ldc = p.each;
        g.step_a = (int64_t)in.channels * p.each;
        g.tb = turned;
        g.b = u;
        g.ldb = op->in_c;
        g.step_b = weights;
        g.c = sums;
        g.step_c = (int64_t)out.channels * p.each;
        g.batch = p.elements;
        NNTI_CUDA_DO((nnti_cuda_wino_run_read<nnti_cuda_wino_data<M>, M>(d, op, &p, in, first, x, v)));
        NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &g));
        NNTI_CUDA_DO(nnti_cuda_wino_run_write<M>(d, op, &p, out, first, sums, to));
    }
    return NNT_OK;
}
/* y = convolution of x */
nnt_result nnti_cuda_wino_forward(nnti_cuda *d, const nnt_op *op, int count, const float *bias, int relu)
{
    const nnti_cuda_wino_map in = nnti_cuda_wino_in(op, op->pad_h, op->pad_w), out = nnti_cuda_wino_out(op, 0, 0);
    const nnti_cuda_wino_end to = { nnti_cuda_out(op, NNT_Y), bias, NULL, relu, 0 };
    const float *x = nnti_cuda_in(op, NNT_X);
    return nnti_cuda_wino_side(op) == 4 ? nnti_cuda_wino_convolve<4>(d, op, count, x, in, out, to, 0)
                                        : nnti_cuda_wino_convolve<2>(d, op, count, x, in, out, to, 0);
}
/* gx (+)= convolution of gy, then the mask; each value of the mask is read where gx goes over it */
nnt_result nnti_cuda_wino_backward_data(nnti_cuda *d, const nnt_op *op, int count)
{
    const nnti_cuda_wino_map in = nnti_cuda_wino_out(op, 2 - op->pad_h, 2 - op->pad_w), out = nnti_cuda_wino_in(op, 0, 0);
    const nnti_cuda_wino_end to = { nnti_cuda_out(op, NNT_GX), NULL, nnti_cuda_mask<float>(op), 0, nnti_cuda_adds(op) };
    const float *gy = nnti_cuda_in(op, NNT_GY);
    return nnti_cuda_wino_side(op) == 4 ? nnti_cuda_wino_convolve<4>(d, op, count, gy, in, out, to, 1)
                                        : nnti_cuda_wino_convolve<2>(d, op, count, gy, in, out, to, 1);
}
/* gw (+)= gradient of the weights. Sums [element][filter][channel] go over the chunks in order. */
template <int M> nnt_result nnti_cuda_wino_weight_sums(nnti_cuda *d, const nnt_op *op, int count, int accumulate)
{
    const nnti_cuda_wino_map in = nnti_cuda_wino_in(op, op->pad_h, op->pad_w), out = nnti_cuda_wino_out(op, 0, 0);
    const nnti_cuda_wino p = nnti_cuda_wino_cut(op, count, out);
    const int64_t weights = (int64_t)op->in_c * op->out_c;
    float *sums = (float *)op->workspace, *v = sums + p.weights, *z = v + (int64_t)p.elements * in.channels * p.each;
    nnti_cuda_wino_weight_gradient<M> f = { sums, nnti_cuda_out(op, NNT_GW), accumulate, weights };
    for (int64_t first = 0; first < p.tiles; first += p.each) {
        nnti_cuda_product g = nnti_cuda_product_new<float, float>(op->in_c, op->out_c, (int)nnti_cuda_min(p.each, p.tiles - first));
        g.ta = 1;
        g.a = v;
        g.b = z;
        g.lda = g.ldb = p.each;
        g.step_a = (int64_t)in.channels * p.each;
        g.step_b = (int64_t)out.channels * p.each;
        g.c = sums;
        g.ldc = op->in_c;
        g.step_c = weights;
        g.batch = p.elements;
        g.beta = first ? 1.0f : 0.0f;
        NNTI_CUDA_DO((nnti_cuda_wino_run_read<nnti_cuda_wino_data<M>, M>(d, op, &p, in, first, nnti_cuda_in(op, NNT_X), v)));
        NNTI_CUDA_DO((nnti_cuda_wino_run_read<nnti_cuda_wino_spread<M>, M>(d, op, &p, out, first, nnti_cuda_in(op, NNT_GY), z)));
        NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &g));
    }
    return nnti_cuda_run_each(d, op, f, weights);
}
nnt_result nnti_cuda_wino_backward_weight(nnti_cuda *d, const nnt_op *op, int count, int accumulate)
{
    return nnti_cuda_wino_side(op) == 4 ? nnti_cuda_wino_weight_sums<4>(d, op, count, accumulate)
                                        : nnti_cuda_wino_weight_sums<2>(d, op, count, accumulate);
}

/* ============================================================================
   >>conv   Convolutions: products with column matrices, own kernels for small groups
   y[n][f][oh][ow] = b[f] + sum_{c,r,s} w[f][c][r][s] x[n][c][oh sh + r dh - ph][ow sw + s dw - pw], x being 0 outside.
   The column matrix col[c,r,s][n,oh,ow] holds the x that each weight meets. It is never there as a whole: a tile of some
   samples, or of some rows of one sample, that has NNT_CUDA_CHUNK bytes at most and stays in the L2 cache. Three products:
       y[n]   = w col[n]           a 1x1 convolution reads x itself
       dcol[n] = w^T gy[n]         then gx gathers what belongs to it, so that sums have one order
       gw     = gy col^T           over the whole tile, gy arranged as [f][n,oh,ow]
   ============================================================================ */

int nnti_cuda_group_in(const nnt_op *op) { return op->in_c / op->groups; }
int nnti_cuda_group_out(const nnt_op *op) { return op->out_c / op->groups; }
int64_t nnti_cuda_weights(const nnt_op *op) { return (int64_t)op->out_c * nnti_cuda_group_in(op) * nnti_cuda_taps(op); }
/* The workspace behind the weights' factors. */
void *nnti_cuda_behind_factors(const nnt_op *op) { return (char *)op->workspace + nnti_cuda_factor_bytes(op, nnti_cuda_weights(op)); }

/* Groups too small for a matrix product, depthwise convolution above all. */
int nnti_cuda_is_direct(const nnt_op *op)
{
    return op->groups > 1 && nnti_cuda_min(nnti_cuda_group_in(op), nnti_cuda_group_out(op)) < 16;
}
/* The column matrix would be x itself. */
int nnti_cuda_is_pointwise(const nnt_op *op)
{
    return nnti_cuda_taps(op) == 1 && op->stride_h == 1 && op->stride_w == 1 && op->pad_h == 0 && op->pad_w == 0;
}

/* What kernels need to know of a convolution. */
struct nnti_cuda_geometry {
    int in_c, in_h, in_w, out_c, out_h, out_w, kernel_h, kernel_w;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group_in, group_out;
};
nnti_cuda_geometry nnti_cuda_geometry_of(const nnt_op *op)
{
    nnti_cuda_geometry g = { op->in_c, op->in_h, op->in_w, op->out_c, op->out_h, op->out_w, op->kernel_h, op->kernel_w,
        op->stride_h, op->stride_w, op->pad_h, op->pad_w, op->dilation_h, op->dilation_w, nnti_cuda_group_in(op), nnti_cuda_group_out(op) };
    return g;
}

/* How the column matrix is cut. rows: of output, or for the gradient of x rows of input, which out_rows rows of output
   reach at most. */
struct nnti_cuda_tiles { int samples, rows, out_rows; size_t bytes; };

/* Bytes of the column matrix for one row of output of one sample; extra: channels beside it that the tile holds. */
int64_t nnti_cuda_row_bytes(const nnt_op *op, int64_t extra)
{
    return (op->in_c * nnti_cuda_taps(op) + extra) * op->out_w * (int64_t)nnti_cuda_element(op);
}
/* Rows of output, at most, that `rows` rows of input are made of. */
int64_t nnti_cuda_reach(const nnt_op *op, int64_t rows)
{
    return nnti_cuda_min(op->out_h, (rows - 1 + (int64_t)(op->kernel_h - 1) * op->dilation_h) / op->stride_h + 1);
}
nnti_cuda_tiles nnti_cuda_cut(const nnt_op *op, int count, int64_t extra, int by_input)
{
    const int64_t row = nnti_cuda_row_bytes(op, extra), fit = nnti_cuda_max(1, NNT_CUDA_CHUNK / row);      /* rows of output */
    nnti_cuda_tiles t;
    int64_t rows;
    t.samples = (int)nnti_cuda_max(1, nnti_cuda_min(count, fit / op->out_h));
    t.rows = by_input ? op->in_h : op->out_h;
    t.out_rows = op->out_h;
    if (fit < op->out_h) {
        rows = by_input ? (fit - 1) * op->stride_h + 1 - (int64_t)(op->kernel_h - 1) * op->dilation_h : fit;
        t.rows = (int)nnti_cuda_min(t.rows, nnti_cuda_max(1, rows));
        t.out_rows = by_input ? (int)nnti_cuda_reach(op, t.rows) : t.rows;
    }
    t.bytes = nnti_cuda_round((size_t)t.samples * (size_t)t.out_rows * (size_t)row);
    return t;
}

/* col[c,r,s][n,oh,ow] = x[n][c][..][..] for a tile: rows [row, row + rows) of `columns` / (rows out_w) samples from x on */
template <class T> struct nnti_cuda_im2col {
    const T *x;
    T *col;
    nnti_cuda_geometry g;
    int row;
    nnti_cuda_divisor columns, out_w, rows, kernel_w, kernel_h;
    template <class I> __device__ void operator()(I i) const
    {
        I n = i, c;
        float v = 0;
        c = i;
        n = nnti_cuda_split(&c, columns);
        const int ow = (int)nnti_cuda_split(&n, out_w), oh = row + (int)nnti_cuda_split(&n, rows);
        const int s = (int)nnti_cuda_split(&c, kernel_w), r = (int)nnti_cuda_split(&c, kernel_h);
        const int ih = oh * g.stride_h - g.pad_h + r * g.dilation_h, iw = ow * g.stride_w - g.pad_w + s * g.dilation_w;
        if (ih >= 0 && ih < g.in_h && iw >= 0 && iw < g.in_w)
            v = x[(((int64_t)n * g.in_c + (int64_t)c) * g.in_h + ih) * g.in_w + iw];
        col[i] = v;
    }
};
template <class T> nnt_result nnti_cuda_make_columns(nnti_cuda *d, const nnt_op *op, const T *x, T *col, int samples, int row, int rows)
{
    const int64_t columns = (int64_t)samples * rows * op->out_w;
    nnti_cuda_im2col<T> f;
    f.x = x;
    f.col = col;
    f.g = nnti_cuda_geometry_of(op);
    f.row = row;
    f.columns = nnti_cuda_divide_by(columns);
    f.out_w = nnti_cuda_divide_by(op->out_w);
    f.rows = nnti_cuda_divide_by(rows);
    f.kernel_w = nnti_cuda_divide_by(op->kernel_w);
    f.kernel_h = nnti_cuda_divide_by(op->kernel_h);
    return nnti_cuda_run_each(d, op, f, columns * op->in_c * nnti_cuda_taps(op));
}
/* gx[n][c][ih][iw] = sum over r, s of col[c,r,s][n,oh,ow], for rows [row, row + rows) of input; col begins at output row
   first_out and has out_rows of them */
template <class T> struct nnti_cuda_col2im {
    const T *col;
    nnti_cuda_gradient<T> to;                /* at the tile's first sample */
    nnti_cuda_geometry g;
    int row, first_out, out_rows;
    int64_t columns;
    nnti_cuda_divisor in_w, rows, in_c;
    template <class I> __device__ void operator()(I i) const
    {
        I n = i;
        const int iw = (int)nnti_cuda_split(&n, in_w), ih = row + (int)nnti_cuda_split(&n, rows);
        const int c = (int)nnti_cuda_split(&n, in_c);
        const T *from = col + (int64_t)c * g.kernel_h * g.kernel_w * columns + (int64_t)n * out_rows * g.out_w;
        float sum = 0;
        for (int r = 0; r < g.kernel_h; r++) {
            const int h = ih + g.pad_h - r * g.dilation_h, oh = h / g.stride_h;
            if (h < 0 || oh * g.stride_h != h || oh >= g.out_h) continue;
            for (int s = 0; s < g.kernel_w; s++) {
                const int w = iw + g.pad_w - s * g.dilation_w, ow = w / g.stride_w;
                if (w < 0 || ow * g.stride_w != w || ow >= g.out_w) continue;
                sum += from[(int64_t)(r * g.kernel_w + s) * columns + (int64_t)(oh - first_out) * g.out_w + ow];
            }
        }
        to.put((((int64_t)n * g.in_c + c) * g.in_h + ih) * g.in_w + iw, sum);
    }
};
/* to[f][n,p] = gy[n][f][row out_w + p], `part` positions p */
template <class T> struct nnti_cuda_gather_filters {
    const T *gy;
    T *to;
    nnti_cuda_divisor part, samples;
    int64_t filters, plane;
    template <class I> __device__ void operator()(I i) const
    {
        I f = i;
        const int64_t p = (int64_t)nnti_cuda_split(&f, part), n = (int64_t)nnti_cuda_split(&f, samples);
        to[i] = gy[(n * filters + (int64_t)f) * plane + p];
    }
};
/* gb[f] (+)= sum over n, p of gy[n][f][p] */
template <class T> struct nnti_cuda_filter_sum {
    const T *gy;
    float *gb;
    int adds;
    int64_t filters, size;
    nnti_cuda_divisor plane;
    template <class I> __device__ void add(int f, I i, nnti_cuda_sums *s) const
    {
        I n = i;
        const int64_t p = (int64_t)nnti_cuda_split(&n, plane);
        s->first += (double)gy[((int64_t)n * filters + f) * size + p];
    }
    __device__ void finish(int f, nnti_cuda_sums s) const { gb[f] = (float)(s.first + (adds ? (double)gb[f] : 0)); }
};

/* ---- direct kernels: a thread for each value, a block for each weight ---- */

template <class T, class C> struct nnti_cuda_direct_forward {
    const T *x;
    const float *w, *bias;
    C *y;
    int relu;
    nnti_cuda_geometry g;
    nnti_cuda_divisor out_w, out_h, out_c;
    template <class I> __device__ void operator()(I i) const
    {
        I n = i;
        const int ow = (int)nnti_cuda_split(&n, out_w), oh = (int)nnti_cuda_split(&n, out_h), f = (int)nnti_cuda_split(&n, out_c);
        const float *weight = w + (int64_t)f * g.group_in * g.kernel_h * g.kernel_w;
        const int first = f / g.group_out * g.group_in;
        float sum = bias ? bias[f] : 0;
        for (int c = 0; c < g.group_in; c++)
            for (int r = 0; r < g.kernel_h; r++) {
                const int ih = oh * g.stride_h - g.pad_h + r * g.dilation_h;
                for (int s = 0; s < g.kernel_w; s++, weight++) {
                    const int iw = ow * g.stride_w - g.pad_w + s * g.dilation_w;
                    if (ih < 0 || ih >= g.in_h || iw < 0 || iw >= g.in_w) continue;
                    sum += *weight * x[(((int64_t)n * g.in_c + first + c) * g.in_h + ih) * g.in_w + iw];
                }
            }
        y[i] = relu && sum < 0 ? 0 : sum;
    }
};
template <class T> struct nnti_cuda_direct_data {
    const T *gy;
    const float *w;
    nnti_cuda_gradient<T> to;
    nnti_cuda_geometry g;
    nnti_cuda_divisor in_w, in_h, in_c;
    template <class I> __device__ void operator()(I i) const
    {
        I n = i;
        const int iw = (int)nnti_cuda_split(&n, in_w), ih = (int)nnti_cuda_split(&n, in_h), channel = (int)nnti_cuda_split(&n, in_c);
        const int group = channel / g.group_in, c = channel - group * g.group_in;
        float sum = 0;
        for (int f = group * g.group_out; f < (group + 1) * g.group_out; f++)
            for (int r = 0; r < g.kernel_h; r++) {
                const int h = ih + g.pad_h - r * g.dilation_h, oh = h / g.stride_h;
                if (h < 0 || oh * g.stride_h != h || oh >= g.out_h) continue;
                for (int s = 0; s < g.kernel_w; s++) {
                    const int v = iw + g.pad_w - s * g.dilation_w, ow = v / g.stride_w;
                    if (v < 0 || ow * g.stride_w != v || ow >= g.out_w) continue;
                    sum += w[(((int64_t)f * g.group_in + c) * g.kernel_h + r) * g.kernel_w + s]
                         * gy[(((int64_t)n * g.out_c + f) * g.out_h + oh) * g.out_w + ow];
                }
            }
        to.put((int64_t)i, sum);
    }
};
/* gw[f][c][r][s] (+)= sum over n, oh, ow of gy[n][f][oh][ow] x[n][c][..][..] */
template <class T> struct nnti_cuda_direct_weight {
    const T *x, *gy;
    float *gw;
    int adds;
    nnti_cuda_geometry g;
    nnti_cuda_divisor out_w, out_h;
    template <class I> __device__ void add(int item, I i, nnti_cuda_sums *sums) const
    {
        I n = i;
        const int ow = (int)nnti_cuda_split(&n, out_w), oh = (int)nnti_cuda_split(&n, out_h);
        const int s = item % g.kernel_w, r = item / g.kernel_w % g.kernel_h, fc = item / g.kernel_w / g.kernel_h;
        const int f = fc / g.group_in, c = f / g.group_out * g.group_in + fc % g.group_in;
        const int ih = oh * g.stride_h - g.pad_h + r * g.dilation_h, iw = ow * g.stride_w - g.pad_w + s * g.dilation_w;
        if (ih < 0 || ih >= g.in_h || iw < 0 || iw >= g.in_w) return;
        sums->first += (double)gy[(((int64_t)n * g.out_c + f) * g.out_h + oh) * g.out_w + ow]
                     * (double)x[(((int64_t)n * g.in_c + c) * g.in_h + ih) * g.in_w + iw];
    }
    __device__ void finish(int item, nnti_cuda_sums s) const { gw[item] = (float)(s.first + (adds ? (double)gw[item] : 0)); }
};

/* ---- forward ---- */

size_t nnti_cuda_conv_bytes(const nnti_cuda *d, const nnt_op *op, int batch)
{
    const size_t columns = nnti_cuda_is_pointwise(op) ? 0
        : nnti_cuda_wino_side(op) ? nnti_cuda_wino_bytes(op, batch, nnti_cuda_wino_out(op, 0, 0)) : nnti_cuda_cut(op, batch, 0, 0).bytes;
    const size_t own = nnti_cuda_is_direct(op) ? 0 : nnti_cuda_factor_bytes(op, nnti_cuda_weights(op)) + columns;
    return nnti_cuda_max_size(own, nnti_cudnn_bytes(d, op, NNTI_CUDNN_FORWARD, batch));
}
/* A product for each group: y = w a, a being x or columns with `lda` between its rows. */
template <class T, class C> nnt_result nnti_cuda_conv_products(nnti_cuda *d, const nnt_op *op, const T *w, const T *a, int lda, int64_t step_a, C *y,
                                                               int positions, int samples)
{
    const int in = nnti_cuda_group_in(op), out = nnti_cuda_group_out(op), taps = (int)nnti_cuda_taps(op);
    for (int group = 0; group < op->groups; group++) {
        nnti_cuda_product p = nnti_cuda_product_new<T, C>(positions, out, in * taps);
        p.a = a + (int64_t)group * in * taps * lda;
        p.lda = lda;
        p.step_a = step_a;
        p.b = w + (int64_t)group * out * in * taps;
        p.ldb = in * taps;
        p.c = y + group * out * nnti_cuda_out_plane(op);
        p.ldc = (int)nnti_cuda_out_plane(op);
        p.step_c = nnti_cuda_out_size(op);
        p.batch = samples;
        NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &p));
    }
    return NNT_OK;
}
/* y = convolution of x, without bias and relu when `bare`. C: what y is in memory. */
template <class T, class C> nnt_result nnti_cuda_conv_forward(nnti_cuda *d, const nnt_op *op, int count, int bare)
{
    const int64_t in = nnti_cuda_in_size(op), out = nnti_cuda_out_size(op);
    const T *x = nnti_cuda_in<T>(op, NNT_X), *w;
    const float *bias = bare ? NULL : nnti_cuda_in(op, NNT_B);
    const int relu = !bare && nnti_cuda_relu(op);
    C *y = nnti_cuda_out<C>(op, NNT_Y);
    int done;
    NNTI_CUDA_DO(nnti_cudnn_run(d, op, NNTI_CUDNN_FORWARD, count, 0, &done));
    if (done) return nnti_cuda_add_bias(d, op, y, bias, relu, count, op->out_c, nnti_cuda_out_plane(op));
    if (nnti_cuda_is_direct(op)) {
        nnti_cuda_direct_forward<T, C> f = { x, nnti_cuda_in(op, NNT_W), bias, y, relu, nnti_cuda_geometry_of(op),
            nnti_cuda_divide_by(op->out_w), nnti_cuda_divide_by(op->out_h), nnti_cuda_divide_by(op->out_c) };
        return nnti_cuda_run_each(d, op, f, count * out);
    }
    NNTI_CUDA_DO(nnti_cuda_factors(d, op, nnti_cuda_in(op, NNT_W), nnti_cuda_weights(op), op->workspace, &w));
    if (nnti_cuda_is_pointwise(op)) {
        NNTI_CUDA_DO(nnti_cuda_conv_products(d, op, w, x, (int)nnti_cuda_in_plane(op), in, y, (int)nnti_cuda_out_plane(op), count));
        return nnti_cuda_add_bias(d, op, y, bias, relu, count, op->out_c, nnti_cuda_out_plane(op));
    }
    if (nnti_cuda_wino_side(op)) return nnti_cuda_wino_forward(d, op, count, bias, relu);
    const nnti_cuda_tiles t = nnti_cuda_cut(op, count, 0, 0);
    T *col = (T *)nnti_cuda_behind_factors(op);
    for (int n = 0; n < count; n += t.samples) {
        const int samples = (int)nnti_cuda_min(t.samples, count - n);
        for (int row = 0; row < op->out_h; row += t.rows) {
            const int rows = (int)nnti_cuda_min(t.rows, op->out_h - row), positions = rows * op->out_w;
            NNTI_CUDA_DO(nnti_cuda_make_columns(d, op, x + n * in, col, samples, row, rows));
            NNTI_CUDA_DO(nnti_cuda_conv_products(d, op, w, col, samples * positions, positions,
                                                 y + n * out + (int64_t)row * op->out_w, positions, samples));
        }
        NNTI_CUDA_DO(nnti_cuda_add_bias(d, op, y + n * out, bias, relu, samples, op->out_c, nnti_cuda_out_plane(op)));
    }
    return NNT_OK;
}
template <class T> nnt_result nnti_cuda_conv(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    return nnti_cuda_conv_forward<T, T>(d, op, job->count, 0);
}

/* ---- gradient of the input ---- */

/* The product may write gx itself: its columns are gx, and nothing is masked behind it. */
int nnti_cuda_data_in_place(const nnt_op *op) { return nnti_cuda_is_pointwise(op) && !(op->flags & NNT_OPF_MASK); }

/* cuDNN knows no masks: gx goes over its mask by way of the workspace, some samples at a time. 0 bytes: all at once. */
size_t nnti_cuda_over_bytes(const nnt_op *op, int count)
{
    if (!nnti_cudnn_takes(op) || !(op->flags & NNT_OPF_OVER)) return 0;
    return nnti_cuda_round((size_t)nnti_cuda_over_samples(op, count) * (size_t)nnti_cuda_in_size(op) * sizeof(float));
}
size_t nnti_cuda_conv_data_bytes(const nnti_cuda *d, const nnt_op *op, int batch)
{
    const size_t over = nnti_cuda_over_bytes(op, batch), columns = nnti_cuda_data_in_place(op) ? 0
        : nnti_cuda_wino_side(op) ? nnti_cuda_wino_bytes(op, batch, nnti_cuda_wino_in(op, 0, 0)) : nnti_cuda_cut(op, batch, 0, 1).bytes;
    const size_t own = nnti_cuda_is_direct(op) ? 0 : nnti_cuda_factor_bytes(op, nnti_cuda_weights(op)) + columns;
    return nnti_cuda_max_size(own, over + nnti_cudnn_bytes(d, op, NNTI_CUDNN_DATA, over ? nnti_cuda_over_samples(op, batch) : batch));
}
/* A product for each group: columns = w^T gy, `positions` of each sample from gy on. */
template <class T> nnt_result nnti_cuda_data_products(nnti_cuda *d, const nnt_op *op, const T *w, const T *gy, int positions, T *col, int ldc,
                                                      int64_t step_c, int samples, float beta)
{
    const int in = nnti_cuda_group_in(op), out = nnti_cuda_group_out(op), taps = (int)nnti_cuda_taps(op);
    for (int group = 0; group < op->groups; group++) {
        nnti_cuda_product p = nnti_cuda_product_new<T, T>(positions, in * taps, out);
        p.a = gy + group * out * nnti_cuda_out_plane(op);
        p.lda = (int)nnti_cuda_out_plane(op);
        p.step_a = nnti_cuda_out_size(op);
        p.tb = 1;
        p.b = w + (int64_t)group * out * in * taps;
        p.ldb = in * taps;
        p.c = col + (int64_t)group * in * taps * ldc;
        p.ldc = ldc;
        p.step_c = step_c;
        p.batch = samples;
        p.beta = beta;
        NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &p));
    }
    return NNT_OK;
}
/* One tile: rows [row, row + rows) of gx, of `samples` samples from n on. */
template <class T> nnt_result nnti_cuda_data_tile(nnti_cuda *d, const nnt_op *op, const T *w, int n, int samples, int row, int rows)
{
    const int reach = (op->kernel_h - 1) * op->dilation_h, low = row + op->pad_h - reach;
    const int first = low <= 0 ? 0 : (low + op->stride_h - 1) / op->stride_h;
    const int end = (int)nnti_cuda_min(op->out_h, (row + rows - 1 + op->pad_h) / op->stride_h + 1);
    const int positions = end > first ? (end - first) * op->out_w : 0;      /* 0: nothing reaches these rows */
    T *col = (T *)nnti_cuda_behind_factors(op);
    nnti_cuda_col2im<T> f;
    if (positions)
        NNTI_CUDA_DO(nnti_cuda_data_products(d, op, w, nnti_cuda_in<T>(op, NNT_GY) + n * nnti_cuda_out_size(op) + (int64_t)first * op->out_w,
                                             positions, col, samples * positions, positions, samples, 0));
    f.col = col;
    f.to = nnti_cuda_gradient_from(nnti_cuda_gradient_of<T>(op), n * nnti_cuda_in_size(op));
    f.g = nnti_cuda_geometry_of(op);
    f.g.out_h = positions ? end : 0;
    f.row = row;
    f.first_out = first;
    f.out_rows = positions ? end - first : 0;
    f.columns = (int64_t)samples * positions;
    f.in_w = nnti_cuda_divide_by(op->in_w);
    f.rows = nnti_cuda_divide_by(rows);
    f.in_c = nnti_cuda_divide_by(op->in_c);
    return nnti_cuda_run_each(d, op, f, (int64_t)samples * op->in_c * rows * op->in_w);
}
template <class T> nnt_result nnti_cuda_own_data(nnti_cuda *d, const nnt_op *op, int count)
{
    const T *w;
    if (nnti_cuda_is_direct(op)) {
        nnti_cuda_direct_data<T> f = { nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_in(op, NNT_W), nnti_cuda_gradient_of<T>(op), nnti_cuda_geometry_of(op),
            nnti_cuda_divide_by(op->in_w), nnti_cuda_divide_by(op->in_h), nnti_cuda_divide_by(op->in_c) };
        return nnti_cuda_run_each(d, op, f, count * nnti_cuda_in_size(op));
    }
    NNTI_CUDA_DO(nnti_cuda_factors(d, op, nnti_cuda_in(op, NNT_W), nnti_cuda_weights(op), op->workspace, &w));
    if (nnti_cuda_data_in_place(op))
        return nnti_cuda_data_products(d, op, w, nnti_cuda_in<T>(op, NNT_GY), (int)nnti_cuda_out_plane(op), nnti_cuda_out<T>(op, NNT_GX),
                                       (int)nnti_cuda_in_plane(op), nnti_cuda_in_size(op), count, nnti_cuda_adds(op) ? 1.0f : 0.0f);
    if (nnti_cuda_wino_side(op)) return nnti_cuda_wino_backward_data(d, op, count);
    const nnti_cuda_tiles t = nnti_cuda_cut(op, count, 0, 1);
    for (int n = 0; n < count; n += t.samples)
        for (int row = 0; row < op->in_h; row += t.rows)
            NNTI_CUDA_DO(nnti_cuda_data_tile(d, op, w, n, (int)nnti_cuda_min(t.samples, count - n), row, (int)nnti_cuda_min(t.rows, op->in_h - row)));
    return NNT_OK;
}
/* By cuDNN, then the mask. over: bytes of the workspace that gx passes through, or 0. */
template <class T> nnt_result nnti_cuda_library_data(nnti_cuda *d, const nnt_op *op, int count, size_t over, int *done)
{
    nnt_op bare = *op;
    if (over) {
        bare.at[NNT_GX] = op->workspace;
        bare.workspace = (char *)op->workspace + over;
        bare.workspace_bytes = op->workspace_bytes - over;
    }
    NNTI_CUDA_DO(nnti_cudnn_run(d, &bare, NNTI_CUDNN_DATA, count, nnti_cuda_adds(op) ? 1.0f : 0.0f, done));
    if (!*done || !nnti_cuda_mask<T>(op)) return NNT_OK;
    return nnti_cuda_run_sum(d, op, nnti_cuda_out<T>(op, NNT_GX), nnti_cuda_in<T>(&bare, NNT_GX), NULL, nnti_cuda_mask<T>(op), 0, count * nnti_cuda_in_size(op));
}
template <class T> nnt_result nnti_cuda_conv_backward_data(nnti_cuda *d, const nnt_op *op, int count)
{
    const size_t over = nnti_cuda_over_bytes(op, count);
    const int each = over ? nnti_cuda_over_samples(op, count) : count;
    for (int n = 0; n < count; n += each) {
        const int samples = (int)nnti_cuda_min(each, count - n);
        nnt_op part = *op;
        int done;
        part.at[NNT_GY] = nnti_cuda_values_from(op, NNT_GY, n * nnti_cuda_out_size(op));
        part.at[NNT_GX] = nnti_cuda_values_from(op, NNT_GX, n * nnti_cuda_in_size(op));
        part.at[NNT_MASK] = nnti_cuda_values_from(op, NNT_MASK, n * nnti_cuda_in_size(op));
        NNTI_CUDA_DO(nnti_cuda_library_data<T>(d, &part, samples, over, &done));
        if (!done) NNTI_CUDA_DO(nnti_cuda_own_data<T>(d, &part, samples));
    }
    return NNT_OK;
}
template <class T> nnt_result nnti_cuda_conv_data(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    return nnti_cuda_conv_backward_data<T>(d, op, job->count);
}

/* ---- gradient of the weights ---- */

size_t nnti_cuda_conv_weight_bytes(const nnti_cuda *d, const nnt_op *op, int batch)
{
    const size_t sums = nnti_cuda_reduce_bytes(batch * nnti_cuda_out_plane(op));
    const size_t own = nnti_cuda_is_direct(op) ? 0
        : nnti_cuda_wino_side(op) ? nnti_cuda_wino_bytes(op, batch, nnti_cuda_wino_out(op, 0, 0)) : nnti_cuda_cut(op, batch, op->out_c, 0).bytes;
    return nnti_cuda_max_size(nnti_cuda_max_size(sums, own), nnti_cudnn_bytes(d, op, NNTI_CUDNN_WEIGHT, batch));
}
/* One tile: gw = gy col^T + beta gw. The tile's part of gy lies behind its columns, arranged as [f][n,p]; a single
   sample's is that already. */
template <class T> nnt_result nnti_cuda_weight_tile(nnti_cuda *d, const nnt_op *op, int n, int samples, int row, int rows, float beta)
{
    const int in = nnti_cuda_group_in(op), out = nnti_cuda_group_out(op), taps = (int)nnti_cuda_taps(op);
    const int positions = rows * op->out_w, length = samples * positions;
    const T *gy = nnti_cuda_in<T>(op, NNT_GY) + n * nnti_cuda_out_size(op) + (int64_t)row * op->out_w;
    T *col = (T *)op->workspace, *gathered = col + (int64_t)op->in_c * taps * length;
    NNTI_CUDA_DO(nnti_cuda_make_columns(d, op, nnti_cuda_in<T>(op, NNT_X) + n * nnti_cuda_in_size(op), col, samples, row, rows));
    if (samples > 1) {
        nnti_cuda_gather_filters<T> f = { gy, gathered, nnti_cuda_divide_by(positions), nnti_cuda_divide_by(samples), op->out_c, nnti_cuda_out_plane(op) };
        NNTI_CUDA_DO(nnti_cuda_run_each(d, op, f, (int64_t)op->out_c * length));
    }
    for (int group = 0; group < op->groups; group++) {
        nnti_cuda_product p = nnti_cuda_product_new<T, float>(in * taps, out, length);
        p.ta = 1;
        p.a = col + (int64_t)group * in * taps * length;
        p.lda = length;
        p.ldb = samples > 1 ? length : (int)nnti_cuda_out_plane(op);
        p.b = (samples > 1 ? gathered : gy) + (int64_t)group * out * p.ldb;
        p.c = nnti_cuda_out(op, NNT_GW) + (int64_t)group * out * in * taps;
        p.ldc = in * taps;
        p.beta = beta;
        NNTI_CUDA_DO(nnti_cuda_multiply(d, op, &p));
    }
    return NNT_OK;
}
template <class T> nnt_result nnti_cuda_own_weight(nnti_cuda *d, const nnt_op *op, int count, int accumulate)
{
    if (nnti_cuda_is_direct(op)) {
        nnti_cuda_direct_weight<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_out(op, NNT_GW), accumulate,
            nnti_cuda_geometry_of(op), nnti_cuda_divide_by(op->out_w), nnti_cuda_divide_by(op->out_h) };
        return nnti_cuda_run_reduce(d, op, f, (int)nnti_cuda_weights(op), count * nnti_cuda_out_plane(op), op->workspace);
    }
    if (nnti_cuda_wino_side(op)) return nnti_cuda_wino_backward_weight(d, op, count, accumulate);
    const nnti_cuda_tiles t = nnti_cuda_cut(op, count, op->out_c, 0);
    float beta = accumulate ? 1.0f : 0.0f;
    for (int n = 0; n < count; n += t.samples)
        for (int row = 0; row < op->out_h; row += t.rows, beta = 1.0f)
            NNTI_CUDA_DO(nnti_cuda_weight_tile<T>(d, op, n, (int)nnti_cuda_min(t.samples, count - n), row,
                                               (int)nnti_cuda_min(t.rows, op->out_h - row), beta));
    return NNT_OK;
}
template <class T> nnt_result nnti_cuda_conv_backward_weight(nnti_cuda *d, const nnt_op *op, int count, int accumulate)
{
    int done;
    NNTI_CUDA_DO(nnti_cudnn_run(d, op, NNTI_CUDNN_WEIGHT, count, accumulate ? 1.0f : 0.0f, &done));
    if (!done) NNTI_CUDA_DO(nnti_cuda_own_weight<T>(d, op, count, accumulate));
    if (!op->at[NNT_GB]) return NNT_OK;
    nnti_cuda_filter_sum<T> f = { nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_out(op, NNT_GB), accumulate, op->out_c, nnti_cuda_out_plane(op),
        nnti_cuda_divide_by(nnti_cuda_out_plane(op)) };
    return nnti_cuda_run_reduce(d, op, f, op->out_c, count * nnti_cuda_out_plane(op), op->workspace);
}
template <class T> nnt_result nnti_cuda_conv_weight(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    return nnti_cuda_conv_backward_weight<T>(d, op, job->count, job->accumulate);
}

/* ============================================================================
   >>pool   Max, average and adaptive average pooling. CPU: >>pool of nntrain.h
   Backward gathers: a value of gx looks for the windows that it lies in, in row order.
   ============================================================================ */

struct nnti_cuda_window {
    int in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    int wide;                               /* indices of maxima have 4 bytes, not 1 */
};
nnti_cuda_window nnti_cuda_window_of(const nnt_op *op)
{
    nnti_cuda_window w = { op->in_h, op->in_w, op->out_h, op->out_w, op->kernel_h, op->kernel_w, op->stride_h, op->stride_w,
        op->pad_h, op->pad_w, nnti_cuda_taps(op) > 256 };
    return w;
}
/* The pooling inside of a fused op. */
nnti_cuda_window nnti_cuda_pool_window_of(const nnt_op *op)
{
    nnti_cuda_window w = { op->mid_h, op->mid_w, op->out_h, op->out_w, op->pool_kernel_h, op->pool_kernel_w, op->pool_stride_h,
        op->pool_stride_w, op->pool_pad_h, op->pool_pad_w, (int64_t)op->pool_kernel_h * op->pool_kernel_w > 256 };
    return w;
}
__device__ __forceinline__ int nnti_cuda_index_at(const void *aux, int wide, int64_t i)
{
    return wide ? ((const int32_t *)aux)[i] : (int)((const uint8_t *)aux)[i];
}

/* What batch norm does to a channel: (x - mean) scale + shift. */
struct nnti_cuda_affine {
    const float *mean, *invstd;
    const float *w, *b;                     /* NULL: 1, 0 */
    __device__ __forceinline__ void of(int c, float *m, float *scale, float *shift) const
    {
        *m = mean[c];
        *scale = w ? invstd[c] * w[c] : invstd[c];
        *shift = b ? b[c] : 0;
    }
};

/* y = max over the window, aux = the first maximum's index. A NaN takes over, and only another NaN from it. FRONT: what
   happens to each value first: 0 nothing, 1 bias and relu of a convolution, 2 batch norm and relu. y, aux may be NULL. */
template <int FRONT, class X, class T> struct nnti_cuda_max_forward {
    const X *x;
    const float *bias;
    nnti_cuda_affine norm;
    int relu;
    T *y;
    void *aux;
    nnti_cuda_window w;
    nnti_cuda_divisor out_w, out_h, channels;
    template <class I> __device__ void operator()(I i) const
    {
        I plane = i;
        const int ox = (int)nnti_cuda_split(&plane, out_w), oy = (int)nnti_cuda_split(&plane, out_h);
        const int top = oy * w.stride_h - w.pad_h, left = ox * w.stride_w - w.pad_w;
        const int ky0 = top < 0 ? -top : 0, ky1 = min(w.kernel_h, w.in_h - top);
        const int kx0 = left < 0 ? -left : 0, kx1 = min(w.kernel_w, w.in_w - left);
        const X *from = x + (int64_t)plane * w.in_h * w.in_w;
        float mean = 0, scale = 1, shift = 0, best = 0;
        int at = -1;
        if (FRONT) {
            I sample = plane;
            const int c = (int)nnti_cuda_split(&sample, channels);
            if (FRONT == 1) shift = bias ? bias[c] : 0;
            else norm.of(c, &mean, &scale, &shift);
        }
        for (int ky = ky0; ky < ky1; ky++)
            for (int kx = kx0; kx < kx1; kx++) {
                float v = from[(int64_t)(top + ky) * w.in_w + left + kx];
                if (FRONT == 1) v += shift;
                if (FRONT == 2) v = (v - mean) * scale + shift;
                if (FRONT && relu && v < 0) v = 0;
                if (at < 0 || v > best || nnti_cuda_is_nan(v)) {
                    best = v;
                    at = ky * w.kernel_w + kx;
                }
            }
        if (y) y[i] = best;
        if (aux && w.wide) ((int32_t *)aux)[i] = at;
        else if (aux) ((uint8_t *)aux)[i] = (uint8_t)at;
    }
};
template <int FRONT, class X, class T> nnt_result nnti_cuda_run_max(nnti_cuda *d, const nnt_op *op, nnti_cuda_max_forward<FRONT, X, T> f, nnti_cuda_window w, int64_t samples)
{
    f.w = w;
    f.out_w = nnti_cuda_divide_by(w.out_w);
    f.out_h = nnti_cuda_divide_by(w.out_h);
    f.channels = nnti_cuda_divide_by(op->out_c);
    return nnti_cuda_run_each(d, op, f, samples * nnti_cuda_out_size(op));
}
template <class T> nnt_result nnti_cuda_maxpool(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    nnti_cuda_max_forward<0, T, T> f;
    memset(&f, 0, sizeof f);
    f.x = nnti_cuda_in<T>(op, NNT_X);
    f.y = nnti_cuda_out<T>(op, NNT_Y);
    f.aux = op->at[NNT_AUX];
    return nnti_cuda_run_max(d, op, f, nnti_cuda_window_of(op), job->count);
}
/* The first and last window, of `windows`, that position i lies in. */
__device__ __forceinline__ void nnti_cuda_windows(int i, int kernel, int stride, int pad, int windows, int *first, int *last)
{
    const int low = i + pad - kernel + 1;
    *first = low <= 0 ? 0 : (low + stride - 1) / stride;
    *last = min((i + pad) / stride, windows - 1);
}
/* Sum of gy over the windows of a plane whose maximum is at (ih, iw). at: where the plane's windows begin. */
template <class T> __device__ __forceinline__ float nnti_cuda_unpool(const nnti_cuda_window &w, const T *gy, const void *aux, int64_t at, int ih, int iw)
{
    int y0, y1, x0, x1;
    float sum = 0;
    nnti_cuda_windows(ih, w.kernel_h, w.stride_h, w.pad_h, w.out_h, &y0, &y1);
    nnti_cuda_windows(iw, w.kernel_w, w.stride_w, w.pad_w, w.out_w, &x0, &x1);
    for (int oy = y0; oy <= y1; oy++)
        for (int ox = x0; ox <= x1; ox++) {
            const int64_t o = at + (int64_t)oy * w.out_w + ox;
            const int here = (ih - oy * w.stride_h + w.pad_h) * w.kernel_w + iw - ox * w.stride_w + w.pad_w;
            if (nnti_cuda_index_at(aux, w.wide, o) == here) sum += gy[o];
        }
    return sum;
}
template <class T> struct nnti_cuda_max_backward {
    const T *gy;
    const void *aux;
    nnti_cuda_gradient<T> to;
    nnti_cuda_window w;
    nnti_cuda_divisor in_w, in_h;
    template <class I> __device__ void operator()(I i) const
    {
        I plane = i;
        const int iw = (int)nnti_cuda_split(&plane, in_w), ih = (int)nnti_cuda_split(&plane, in_h);
        to.put((int64_t)i, nnti_cuda_unpool(w, gy, aux, (int64_t)plane * w.out_h * w.out_w, ih, iw));
    }
};
template <class T> nnt_result nnti_cuda_run_unpool(nnti_cuda *d, const nnt_op *op, const T *gy, const void *aux, nnti_cuda_gradient<T> to, nnti_cuda_window w,
                                                   int64_t planes)
{
    nnti_cuda_max_backward<T> f = { gy, aux, to, w, nnti_cuda_divide_by(w.in_w), nnti_cuda_divide_by(w.in_h) };
    return nnti_cuda_run_each(d, op, f, planes * w.in_h * w.in_w);
}
template <class T> nnt_result nnti_cuda_maxpool_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    return nnti_cuda_run_unpool(d, op, nnti_cuda_in<T>(op, NNT_GY), op->at[NNT_AUX], nnti_cuda_gradient_of<T>(op), nnti_cuda_window_of(op),
                                (int64_t)job->count * op->in_c);
}

/* ---- averages: windows of avgpool and of adaptive pooling differ in where they lie and what they divide by ---- */

struct nnti_cuda_span { int begin, end, counted; };

struct nnti_cuda_means {
    nnti_cuda_window w;
    int adaptive, exclude_pad;
    __device__ __forceinline__ nnti_cuda_span span(int i, int kernel, int stride, int pad, int size, int out) const
    {
        nnti_cuda_span s;
        if (adaptive) {
            s.begin = (int)((int64_t)i * size / out);
            s.end = (int)(((int64_t)(i + 1) * size + out - 1) / out);
            s.counted = s.end - s.begin;
            return s;
        }
        const int start = i * stride - pad, stop = min(start + kernel, size + pad);     /* ceil_mode may lie beyond */
        s.begin = max(start, 0);
        s.end = min(stop, size);
        s.counted = exclude_pad ? s.end - s.begin : stop - start;
        return s;
    }
    __device__ __forceinline__ nnti_cuda_span rows(int oy) const { return span(oy, w.kernel_h, w.stride_h, w.pad_h, w.in_h, w.out_h); }
    __device__ __forceinline__ nnti_cuda_span columns(int ox) const { return span(ox, w.kernel_w, w.stride_w, w.pad_w, w.in_w, w.out_w); }
    /* The first and last window that position i lies in. */
    __device__ __forceinline__ void windows(int i, int kernel, int stride, int pad, int size, int out, int *first, int *last) const
    {
        if (!adaptive) { nnti_cuda_windows(i, kernel, stride, pad, out, first, last); return; }
        *first = (int)((int64_t)i * out / size);
        *last = (int)(((int64_t)(i + 1) * out + size - 1) / size) - 1;
    }
};
nnti_cuda_means nnti_cuda_means_of(const nnt_op *op)
{
    nnti_cuda_means m = { nnti_cuda_window_of(op), op->kind == NNT_OP_ADAPTIVE || op->kind == NNT_OP_ADAPTIVE_GRAD, op->variant == 1 };
    return m;
}
template <class T> struct nnti_cuda_mean_forward {
    const T *x;
    T *y;
    nnti_cuda_means m;
    nnti_cuda_divisor out_w, out_h;
    template <class I> __device__ void operator()(I i) const
    {
        I plane = i;
        const int ox = (int)nnti_cuda_split(&plane, out_w), oy = (int)nnti_cuda_split(&plane, out_h);
        const nnti_cuda_span r = m.rows(oy), c = m.columns(ox);
        const T *from = x + (int64_t)plane * m.w.in_h * m.w.in_w;
        double sum = 0;
        for (int iy = r.begin; iy < r.end; iy++)
            for (int ix = c.begin; ix < c.end; ix++) sum += (double)from[(int64_t)iy * m.w.in_w + ix];
        y[i] = (float)(sum / ((double)r.counted * (double)c.counted));
    }
};
/* The mean of a whole plane: a block for each. */
template <class T> struct nnti_cuda_plane_mean {
    const T *x;
    T *y;
    int64_t plane;
    template <class I> __device__ void add(int item, I i, nnti_cuda_sums *s) const { s->first += (double)x[item * plane + (int64_t)i]; }
    __device__ void finish(int item, nnti_cuda_sums s) const { y[item] = (float)(s.first / (double)plane); }
};
/* AVGPOOL and ADAPTIVE */
template <class T> nnt_result nnti_cuda_mean(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t planes = (int64_t)job->count * op->in_c;
    if (op->kind == NNT_OP_ADAPTIVE && nnti_cuda_out_plane(op) == 1 && nnti_cuda_in_plane(op) >= NNTI_CUDA_THREADS / 2 && planes <= INT_MAX) {
        nnti_cuda_plane_mean<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_in_plane(op) };
        return nnti_cuda_run_reduce(d, op, f, (int)planes, f.plane, op->workspace);
    }
    nnti_cuda_mean_forward<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_out<T>(op, NNT_Y), nnti_cuda_means_of(op),
        nnti_cuda_divide_by(op->out_w), nnti_cuda_divide_by(op->out_h) };
    return nnti_cuda_run_each(d, op, f, planes * nnti_cuda_out_plane(op));
}
size_t nnti_cuda_mean_bytes(const nnti_cuda *, const nnt_op *op, int)
{
    return op->kind == NNT_OP_ADAPTIVE && nnti_cuda_out_plane(op) == 1 ? nnti_cuda_reduce_bytes(nnti_cuda_in_plane(op)) : 0;
}
template <class T> struct nnti_cuda_mean_backward {
    const T *gy;
    nnti_cuda_gradient<T> to;
    nnti_cuda_means m;
    nnti_cuda_divisor in_w, in_h;
    template <class I> __device__ void operator()(I i) const
    {
        I plane = i;
        const int ix = (int)nnti_cuda_split(&plane, in_w), iy = (int)nnti_cuda_split(&plane, in_h);
        const T *from = gy + (int64_t)plane * m.w.out_h * m.w.out_w;
        int y0, y1, x0, x1;
        float sum = 0;
        m.windows(iy, m.w.kernel_h, m.w.stride_h, m.w.pad_h, m.w.in_h, m.w.out_h, &y0, &y1);
        m.windows(ix, m.w.kernel_w, m.w.stride_w, m.w.pad_w, m.w.in_w, m.w.out_w, &x0, &x1);
        for (int oy = y0; oy <= y1; oy++) {
            const nnti_cuda_span r = m.rows(oy);
            for (int ox = x0; ox <= x1; ox++)
                sum += from[(int64_t)oy * m.w.out_w + ox] / ((float)r.counted * (float)m.columns(ox).counted);
        }
        to.put((int64_t)i, sum);
    }
};
template <class T> nnt_result nnti_cuda_mean_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    nnti_cuda_mean_backward<T> f = { nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_gradient_of<T>(op), nnti_cuda_means_of(op),
        nnti_cuda_divide_by(op->in_w), nnti_cuda_divide_by(op->in_h) };
    return nnti_cuda_run_each(d, op, f, job->count * nnti_cuda_in_size(op));
}

/* ============================================================================
   >>norm   Batch normalisation. CPU: >>norm of nntrain.h
   ============================================================================ */

/* Where value i of a channel lies: channel c of sample i / plane. */
struct nnti_cuda_channel {
    int64_t channels, size;
    nnti_cuda_divisor plane;
    template <class I> __device__ __forceinline__ int64_t at(int c, I i) const
    {
        I n = i;
        const int64_t p = (int64_t)nnti_cuda_split(&n, plane);
        return ((int64_t)n * channels + c) * size + p;
    }
};
nnti_cuda_channel nnti_cuda_channel_of(int64_t channels, int64_t plane)
{
    nnti_cuda_channel c = { channels, plane, nnti_cuda_divide_by(plane) };
    return c;
}
/* STATS: mean[c], 1 / sqrt(var + eps)[c], unbiased var[c]; moments about the channel's first value, as on the CPU */
template <class T> struct nnti_cuda_moments {
    const T *x;
    float *stats;
    nnti_cuda_channel where;
    double count, eps;
    template <class I> __device__ void add(int c, I i, nnti_cuda_sums *s) const
    {
        const double v = (double)x[where.at(c, i)] - (double)x[(int64_t)c * where.size];
        s->first += v;
        s->second += v * v;
    }
    __device__ void finish(int c, nnti_cuda_sums s) const
    {
        const double shift = s.first / count, square = s.second / count - shift * shift, var = square < 0 ? 0 : square;
        stats[c] = (float)((double)x[(int64_t)c * where.size] + shift);
        stats[where.channels + c] = (float)(1 / sqrt(var + eps));
        stats[2 * where.channels + c] = (float)(count > 1 ? var * (count / (count - 1)) : var);
    }
};
template <class T> nnt_result nnti_cuda_bn_stats(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t length = job->count * nnti_cuda_in_plane(op);
    nnti_cuda_moments<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_out(op, NNT_STATS), nnti_cuda_channel_of(op->in_c, nnti_cuda_in_plane(op)),
        (double)length, (double)op->f[0] };
    return nnti_cuda_run_reduce(d, op, f, op->in_c, length, op->workspace);
}
size_t nnti_cuda_bn_stats_bytes(const nnti_cuda *, const nnt_op *op, int batch) { return nnti_cuda_reduce_bytes(batch * nnti_cuda_in_plane(op)); }

/* r = (1 - momentum) r + momentum batch */
struct nnti_cuda_running {
    const float *stats;
    float *running;
    int channels;
    double momentum;
    template <class I> __device__ void operator()(I c) const
    {
        float *r = running + c, *v = r + channels;
        *r = (float)((1 - momentum) * (double)*r + momentum * (double)stats[c]);
        *v = (float)((1 - momentum) * (double)*v + momentum * (double)stats[2 * (int64_t)channels + c]);
    }
};
nnt_result nnti_cuda_bn_running(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *)
{
    nnti_cuda_running f = { nnti_cuda_in(op, NNT_STATS), nnti_cuda_out(op, NNT_RUNNING), op->in_c, (double)op->f[1] };
    return nnti_cuda_run_each(d, op, f, op->in_c);
}

/* to[c] = 1 / sqrt(var[c] + eps) */
struct nnti_cuda_invstd {
    const float *var;
    float *to;
    double eps;
    template <class I> __device__ void operator()(I c) const { to[c] = (float)(1 / sqrt((double)var[c] + eps)); }
};
/* From STATS; from RUNNING where the op has no STATS, whose invstd are made in the workspace first. */
nnt_result nnti_cuda_affine_of(nnti_cuda *d, const nnt_op *op, int channels, nnti_cuda_affine *a)
{
    const float *from = nnti_cuda_in(op, op->at[NNT_STATS] ? NNT_STATS : NNT_RUNNING);
    nnti_cuda_invstd f = { from + channels, (float *)op->workspace, (double)op->f[0] };
    a->mean = from;
    a->invstd = op->at[NNT_STATS] ? from + channels : f.to;
    a->w = nnti_cuda_in(op, NNT_W);
    a->b = nnti_cuda_in(op, NNT_B);
    return op->at[NNT_STATS] ? NNT_OK : nnti_cuda_run_each(d, op, f, channels);
}
size_t nnti_cuda_bn_eval_bytes(const nnti_cuda *, const nnt_op *op, int) { return (size_t)op->in_c * sizeof(float); }

/* y = (x - mean) scale + shift, relu */
template <class T> struct nnti_cuda_normalise {
    const T *x;
    T *y;
    nnti_cuda_affine norm;
    int relu, vector;
    nnti_cuda_divisor plane, channels;      /* plane: divided by 4 when vector */
    template <class I> __device__ void operator()(I i) const
    {
        I at = i;
        float mean, scale, shift;
        (void)nnti_cuda_split(&at, plane);
        norm.of((int)nnti_cuda_split(&at, channels), &mean, &scale, &shift);
        if (vector) {
            const float4 v = nnti_cuda_load4(x, (int64_t)i);
            nnti_cuda_store4(y, (int64_t)i, make_float4(one(v.x, mean, scale, shift), one(v.y, mean, scale, shift),
                                                        one(v.z, mean, scale, shift), one(v.w, mean, scale, shift)));
        } else {
            y[i] = one(x[i], mean, scale, shift);
        }
    }
    __device__ __forceinline__ float one(float v, float mean, float scale, float shift) const
    {
        v = (v - mean) * scale + shift;
        return relu && v < 0 ? 0 : v;
    }
};
/* BN_APPLY and BN_EVAL */
template <class T> nnt_result nnti_cuda_bn_apply(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t plane = nnti_cuda_in_plane(op);
    const int vector = plane % 4 == 0;
    nnti_cuda_affine norm;
    NNTI_CUDA_DO(nnti_cuda_affine_of(d, op, op->in_c, &norm));
    nnti_cuda_normalise<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_out<T>(op, NNT_Y), norm, nnti_cuda_relu(op), vector,
        nnti_cuda_divide_by(vector ? plane / 4 : plane), nnti_cuda_divide_by(op->in_c) };
    return nnti_cuda_run_each(d, op, f, job->count * nnti_cuda_in_size(op) / (vector ? 4 : 1));
}

/* One channel's gx = ((gy - mean_gy) - (x - mean) slope) scale, with slope = invstd^2 mean of gy (x - mean) and
   scale = invstd w. */
struct nnti_cuda_bn_backward { float mean, mean_gy, slope, scale; };

/* What becomes of the two sums, of gy and of gy (x - mean): GW, GB, and the numbers for gx. */
struct nnti_cuda_bn_finish {
    const float *stats, *w;
    float *gw, *gb;
    nnti_cuda_bn_backward *to;
    int channels, adds;
    double count;
    __device__ __forceinline__ void finish(int c, nnti_cuda_sums s) const
    {
        const float invstd = stats[channels + c];
        nnti_cuda_bn_backward b;
        b.mean = stats[c];
        b.mean_gy = (float)(s.first / count);
        b.slope = (float)(s.second / count * (double)invstd * (double)invstd);
        b.scale = w ? invstd * w[c] : invstd;
        to[c] = b;
        if (gw) gw[c] = (float)(s.second * (double)invstd + (adds ? (double)gw[c] : 0));
        if (gb) gb[c] = (float)(s.first + (adds ? (double)gb[c] : 0));
    }
};
nnti_cuda_bn_finish nnti_cuda_bn_finish_of(const nnt_op *op, int channels, int accumulate, double count)
{
    nnti_cuda_bn_finish f = { nnti_cuda_in(op, NNT_STATS), nnti_cuda_in(op, NNT_W), nnti_cuda_out(op, NNT_GW), nnti_cuda_out(op, NNT_GB),
        (nnti_cuda_bn_backward *)op->workspace, channels, accumulate, count };
    return f;
}
/* The channels' numbers, then the parts of their sums. */
size_t nnti_cuda_bn_numbers(int channels) { return nnti_cuda_round((size_t)channels * sizeof(nnti_cuda_bn_backward)); }

template <class T> struct nnti_cuda_bn_products : nnti_cuda_bn_finish {
    const T *x, *gy;
    nnti_cuda_channel where;
    template <class I> __device__ void add(int c, I i, nnti_cuda_sums *s) const
    {
        const int64_t at = where.at(c, i);
        s->first += (double)gy[at];
        s->second += (double)gy[at] * (double)(x[at] - stats[c]);
    }
};
template <class T> struct nnti_cuda_bn_slope {
    const T *x, *gy;
    nnti_cuda_gradient<T> to;
    const nnti_cuda_bn_backward *numbers;
    nnti_cuda_divisor plane, channels;
    template <class I> __device__ void operator()(I i) const
    {
        I at = i;
        (void)nnti_cuda_split(&at, plane);
        const nnti_cuda_bn_backward b = numbers[nnti_cuda_split(&at, channels)];
        to.put((int64_t)i, ((gy[i] - b.mean_gy) - (x[i] - b.mean) * b.slope) * b.scale);
    }
};
template <class T> nnt_result nnti_cuda_bn_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t plane = nnti_cuda_in_plane(op), length = job->count * plane;
    char *partial = (char *)op->workspace + nnti_cuda_bn_numbers(op->in_c);
    nnti_cuda_bn_products<T> sums;
    static_cast<nnti_cuda_bn_finish &>(sums) = nnti_cuda_bn_finish_of(op, op->in_c, job->accumulate, (double)length);
    sums.x = nnti_cuda_in<T>(op, NNT_X);
    sums.gy = nnti_cuda_in<T>(op, NNT_GY);
    sums.where = nnti_cuda_channel_of(op->in_c, plane);
    NNTI_CUDA_DO(nnti_cuda_run_reduce(d, op, sums, op->in_c, length, partial));
    nnti_cuda_bn_slope<T> f = { sums.x, sums.gy, nnti_cuda_gradient_of<T>(op), sums.to, nnti_cuda_divide_by(plane), nnti_cuda_divide_by(op->in_c) };
    return nnti_cuda_run_each(d, op, f, length * op->in_c);
}
size_t nnti_cuda_bn_grad_bytes(const nnti_cuda *, const nnt_op *op, int batch)
{
    return nnti_cuda_bn_numbers(op->in_c) + nnti_cuda_reduce_bytes(batch * nnti_cuda_in_plane(op));
}

/* ============================================================================
   >>loss   Softmax, cross-entropy and mean squared error. CPU: >>loss of nntrain.h
   A row is what one warp, or one thread where rows are many and interleaved, goes over: the classes of a sample or the
   channels of a position.
   ============================================================================ */

__device__ __forceinline__ float nnti_cuda_warp_top(float v)
{
    for (int o = NNTI_CUDA_WARP / 2; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
/* Launch: LANES threads a row, whole rows to a warp: f.row(row, lane, LANES). Every lane of a warp takes part. */
template <class F, int LANES> __global__ void __launch_bounds__(NNTI_CUDA_THREADS, 4) nnti_cuda_rows(F f, int64_t rows)
{
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    if (row < rows) f.template row<LANES>(row, (int)threadIdx.x % LANES);
}
template <class F> nnt_result nnti_cuda_run_rows(nnti_cuda *d, const nnt_op *op, F f, int64_t rows, int a_warp_each)
{
    const int64_t threads = rows * (a_warp_each ? NNTI_CUDA_WARP : 1), blocks = (threads + NNTI_CUDA_THREADS - 1) / NNTI_CUDA_THREADS;
    if (a_warp_each) NNT_LAUNCH((nnti_cuda_rows<F, NNTI_CUDA_WARP>), (unsigned)blocks, NNTI_CUDA_THREADS, 0, d->stream, f, rows);
    else             NNT_LAUNCH((nnti_cuda_rows<F, 1>), (unsigned)blocks, NNTI_CUDA_THREADS, 0, d->stream, f, rows);
    return nnti_cuda_launched(d, op);
}
template <int LANES> __device__ __forceinline__ double nnti_cuda_row_sum(double v) { return LANES > 1 ? nnti_cuda_warp_sum(v) : v; }
template <int LANES> __device__ __forceinline__ float nnti_cuda_row_top(float v) { return LANES > 1 ? nnti_cuda_warp_top(v) : v; }

/* y = exp(x - max) / sum of exp(x - max) over channels */
template <class T> struct nnti_cuda_softmax_forward {
    const T *x;
    T *y;
    int channels;
    int64_t plane;
    template <int LANES> __device__ void row(int64_t row, int lane) const
    {
        const int64_t first = row / plane * channels * plane + row % plane;
        float top = x[first];
        double sum = 0;
        for (int c = lane; c < channels; c += LANES) top = fmaxf(top, x[first + c * plane]);
        top = nnti_cuda_row_top<LANES>(top);
        for (int c = lane; c < channels; c += LANES) sum += (double)expf(x[first + c * plane] - top);
        sum = nnti_cuda_row_sum<LANES>(sum);
        for (int c = lane; c < channels; c += LANES) y[first + c * plane] = (float)((double)expf(x[first + c * plane] - top) / sum);
    }
};
/* gx = y (gy - sum of gy y); gx may be gy */
template <class T> struct nnti_cuda_softmax_backward {
    const T *y, *gy;
    T *gx;
    int channels;
    int64_t plane;
    template <int LANES> __device__ void row(int64_t row, int lane) const
    {
        const int64_t first = row / plane * channels * plane + row % plane;
        double dot = 0;
        for (int c = lane; c < channels; c += LANES) dot += (double)gy[first + c * plane] * (double)y[first + c * plane];
        dot = nnti_cuda_row_sum<LANES>(dot);
        for (int c = lane; c < channels; c += LANES) {
            const int64_t at = first + c * plane;
            gx[at] = (float)((double)y[at] * ((double)gy[at] - dot));
        }
    }
};
template <class T> nnt_result nnti_cuda_softmax(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t plane = nnti_cuda_in_plane(op);
    nnti_cuda_softmax_forward<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_out<T>(op, NNT_Y), op->in_c, plane };
    return nnti_cuda_run_rows(d, op, f, job->count * plane, plane == 1);
}
template <class T> nnt_result nnti_cuda_softmax_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t plane = nnti_cuda_in_plane(op);
    nnti_cuda_softmax_backward<T> f = { nnti_cuda_in<T>(op, NNT_Y), nnti_cuda_in<T>(op, NNT_GY), nnti_cuda_out<T>(op, NNT_GX), op->in_c, plane };
    return nnti_cuda_run_rows(d, op, f, job->count * plane, plane == 1);
}

/* What a sample came to, its loss being linear + scale ln sum: a loss's workspace. rank: logits above its label's. */
struct nnti_cuda_loss_row { double linear, scale, sum; int64_t rank; };

/* Bytes of the rows of a batch; the parts of sums follow. */
size_t nnti_cuda_loss_rows(int batch) { return nnti_cuda_round((size_t)batch * sizeof(nnti_cuda_loss_row)); }

__device__ __forceinline__ int nnti_cuda_counts(int use_ignore, int ignore, int32_t label) { return !(use_ignore && label == ignore); }

/* LOSS's weight and samples from the labels of the whole batch, when its first part comes; the rest of LOSS begins with
   zeros. One item, one part, so that sums have one order. w NULL: weights are 1. */
struct nnti_cuda_loss_weight {
    const nnti_cuda_now *now;
    const int32_t *labels;                  /* NULL: all samples count */
    const float *w;
    nnt_loss *loss;
    int use_ignore, ignore;
    template <class I> __device__ void add(int, I i, nnti_cuda_sums *s) const
    {
        if (labels && !nnti_cuda_counts(use_ignore, ignore, labels[i])) return;
        s->first += w ? (double)w[labels[i]] : 1;
        s->second += 1;
    }
    __device__ void finish(int, nnti_cuda_sums s) const
    {
        if (now->first) return;
        loss->sum = loss->correct = loss->correct5 = 0;
        loss->weight = s.first;
        loss->samples = s.second;
    }
};
/* Adds the rows to LOSS's sum and hits; labels NULL: all count, and nothing is a hit. which 0: sum and correct, 1: correct5. */
struct nnti_cuda_loss_sum {
    const nnti_cuda_now *now;
    const nnti_cuda_loss_row *rows;
    const int32_t *labels;
    nnt_loss *loss;
    int use_ignore, ignore, which;
    template <class I> __device__ void add(int, I i, nnti_cuda_sums *s) const
    {
        if (labels && !nnti_cuda_counts(use_ignore, ignore, labels[now->first + (int64_t)i])) return;
        if (!which) s->first += rows[i].linear + rows[i].scale * log(rows[i].sum);
        if (labels) s->second += rows[i].rank < (which ? 5 : 1);
    }
    __device__ void finish(int, nnti_cuda_sums s) const
    {
        if (which) { loss->correct5 += s.second; return; }
        loss->sum += s.first;
        loss->correct += s.second;
    }
};
/* What gradients are multiplied by: scale, or 1 / weight when it is 0. */
__device__ __forceinline__ double nnti_cuda_loss_scale(float scale, const nnt_loss *loss)
{
    if (scale > 0 || scale < 0) return (double)scale;
    return loss->weight > 0 ? 1 / loss->weight : 0;
}
/* a is before b among the largest; NaN before everything, as torch.argmax has it. */
__device__ __forceinline__ bool nnti_cuda_above(float a, float b) { return a > b || (nnti_cuda_is_nan(a) && !nnti_cuda_is_nan(b)); }

/* A sample's loss and gradient: see nnti_entropy of nntrain.h. gx may be x: each value is read for the last time by the
   lane that writes it. */
template <class T> struct nnti_cuda_entropy {
    const nnti_cuda_now *now;
    const T *x;
    const float *w;
    const int32_t *labels;
    T *gx;                                  /* NULL: only the loss */
    nnti_cuda_loss_row *rows;
    const nnt_loss *loss;
    int classes, use_ignore, ignore;
    float scale, smoothing;
    __device__ __forceinline__ double weight(int c) const { return w ? (double)w[c] : 1; }
    template <int LANES> __device__ void row(int64_t sample, int lane) const
    {
        const T *z = x + sample * classes;
        const int32_t label = labels[now->first + sample];
        T *g = gx ? gx + sample * classes : NULL;
        if (!nnti_cuda_counts(use_ignore, ignore, label)) {
            for (int c = lane; g && c < classes; c += LANES) g[c] = 0;
            return;
        }
        const double s = (double)smoothing, hit = (1 - s) * weight(label), smooth = s / (double)classes;
        const float mine = z[label];
        float top = z[0];
        double sum = 0, rank = 0, all = 0, rest = 0;
        for (int c = lane; c < classes; c += LANES) top = fmaxf(top, z[c]);
        top = nnti_cuda_row_top<LANES>(top);
        for (int c = lane; c < classes; c += LANES) {
            const float v = z[c];
            sum += (double)expf(v - top);
            if (c < label) rank += !nnti_cuda_above(mine, v);
            if (c > label) rank += nnti_cuda_above(v, mine);
            if (smooth > 0) {
                all += smooth * weight(c);
                rest += weight(c) * ((double)top - (double)v);
            }
        }
        sum = nnti_cuda_row_sum<LANES>(sum);
        rank = nnti_cuda_row_sum<LANES>(rank);
        all = hit + nnti_cuda_row_sum<LANES>(all);
        rest = nnti_cuda_row_sum<LANES>(rest);
        if (lane == 0) {
            rows[sample].linear = hit * ((double)top - (double)mine) + smooth * rest;
            rows[sample].scale = all;
            rows[sample].sum = sum;
            rows[sample].rank = (int64_t)rank;
        }
        if (!g) return;
        const double scaled = nnti_cuda_loss_scale(scale, loss), factor = scaled * all / sum;
        for (int c = lane; c < classes; c += LANES)
            g[c] = (float)(factor * (double)expf(z[c] - top) - scaled * smooth * weight(c) - (c == label ? scaled * hit : 0));
    }
};
template <class T> nnt_result nnti_cuda_cross_entropy(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int32_t *labels = (const int32_t *)op->at[NNT_LABELS];
    nnt_loss *loss = (nnt_loss *)op->at[NNT_LOSS];
    nnti_cuda_loss_weight weight = { d->now, labels, nnti_cuda_in(op, NNT_W), loss, op->use_ignore, op->ignore_label };
    nnti_cuda_entropy<T> f = { d->now, nnti_cuda_in<T>(op, NNT_X), weight.w, labels, nnti_cuda_out<T>(op, NNT_GX), (nnti_cuda_loss_row *)op->workspace, loss,
        (int)nnti_cuda_in_size(op), op->use_ignore, op->ignore_label, job->loss_scale, op->f[0] };
    nnti_cuda_loss_sum sum = { d->now, f.rows, labels, loss, op->use_ignore, op->ignore_label, 0 };
    NNTI_CUDA_DO(nnti_cuda_run_parts(d, op, weight, 1, job->whole, 1, NULL));
    NNTI_CUDA_DO(nnti_cuda_run_rows(d, op, f, job->count, 1));
    NNTI_CUDA_DO(nnti_cuda_run_parts(d, op, sum, 1, job->count, 1, NULL));
    sum.which = 1;
    return nnti_cuda_run_parts(d, op, sum, 1, job->count, 1, NULL);
}
size_t nnti_cuda_cross_entropy_bytes(const nnti_cuda *, const nnt_op *, int batch) { return nnti_cuda_loss_rows(batch); }

/* A sample's loss is the mean of (x - t)^2 over its values, the gradient 2 (x - t) / values. gx may be x. */
template <class T> struct nnti_cuda_squared_error {
    const T *x;
    const float *t;
    T *gx;
    nnti_cuda_loss_row *rows;
    int64_t values;
    double scale;
    template <class I> __device__ void add(int sample, I i, nnti_cuda_sums *s) const
    {
        const int64_t at = sample * values + (int64_t)i;
        const double v = (double)x[at] - (double)t[at];
        s->first += v * v;
        if (gx) gx[at] = (float)(scale * v);
    }
    __device__ void finish(int sample, nnti_cuda_sums s) const
    {
        rows[sample].linear = s.first / (double)values;
        rows[sample].scale = 0;
        rows[sample].sum = 1;
        rows[sample].rank = 0;
    }
};
template <class T> nnt_result nnti_cuda_mse(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t values = nnti_cuda_in_size(op);
    nnt_loss *loss = (nnt_loss *)op->at[NNT_LOSS];
    char *partial = (char *)op->workspace + nnti_cuda_loss_rows(job->count);
    const double scale = job->loss_scale > 0 || job->loss_scale < 0 ? (double)job->loss_scale : 1 / (double)job->whole;
    nnti_cuda_loss_weight weight = { d->now, NULL, NULL, loss, 0, 0 };
    nnti_cuda_squared_error<T> f = { nnti_cuda_in<T>(op, NNT_X), nnti_cuda_in(op, NNT_TARGETS), nnti_cuda_out<T>(op, NNT_GX),
        (nnti_cuda_loss_row *)op->workspace, values, scale * 2 / (double)values };
    nnti_cuda_loss_sum sum = { d->now, f.rows, NULL, loss, 0, 0, 0 };
    NNTI_CUDA_DO(nnti_cuda_run_parts(d, op, weight, 1, job->whole, 1, NULL));
    NNTI_CUDA_DO(nnti_cuda_run_reduce(d, op, f, job->count, values, partial));
    return nnti_cuda_run_parts(d, op, sum, 1, job->count, 1, NULL);
}
size_t nnti_cuda_mse_bytes(const nnti_cuda *, const nnt_op *op, int batch)
{
    return nnti_cuda_loss_rows(batch) + nnti_cuda_reduce_bytes(nnti_cuda_in_size(op));
}

/* ============================================================================
   >>fused   A convolution's or batch norm's output that is pooled at once, and both ways back
   Pooling adds bias, relu or batch norm to the values as it reads them. A convolution's map passes through the workspace
   a few samples at a time, forward as floats whatever is stored, so that what is pooled is rounded once; batch norm's is
   never there.
   ============================================================================ */

/* Samples whose maps, of `element` bytes a value, are there at one time. */
int nnti_cuda_fused_samples(const nnt_op *op, int count, size_t element)
{
    const int64_t each = nnti_cuda_mid_size(op) * (int64_t)element;
    return (int)nnti_cuda_max(1, nnti_cuda_min(count, NNT_CUDA_CHUNK / each));
}
size_t nnti_cuda_map_bytes(const nnt_op *op, int count, size_t element)
{
    return nnti_cuda_round((size_t)nnti_cuda_fused_samples(op, count, element) * (size_t)nnti_cuda_mid_size(op) * element);
}
/* The convolution inside: of samples from n on, whose map (Y or GY) begins the workspace. */
nnt_op nnti_cuda_fused_conv(const nnt_op *op, size_t map, int role, int64_t n)
{
    nnt_op conv = *op;
    conv.out_h = op->mid_h;
    conv.out_w = op->mid_w;
    conv.at[role] = op->workspace;
    conv.workspace = op->workspace ? (char *)op->workspace + map : NULL;
    conv.workspace_bytes = op->workspace_bytes > map ? op->workspace_bytes - map : 0;
    conv.at[NNT_X] = nnti_cuda_values_from(op, NNT_X, n * nnti_cuda_in_size(op));
    conv.at[NNT_GX] = nnti_cuda_values_from(op, NNT_GX, n * nnti_cuda_in_size(op));
    conv.at[NNT_MASK] = nnti_cuda_values_from(op, NNT_MASK, n * nnti_cuda_in_size(op));
    return conv;
}
void *nnti_cuda_aux_from(const nnt_op *op, int64_t first)
{
    const int wide = (int64_t)op->pool_kernel_h * op->pool_kernel_w > 256;
    return op->at[NNT_AUX] ? (char *)op->at[NNT_AUX] + first * (wide ? 4 : 1) : NULL;
}
/* map = gy taken back to where it came from, for samples from n on */
template <class T> nnt_result nnti_cuda_fused_unpool(nnti_cuda *d, const nnt_op *op, int64_t n, int samples)
{
    const int64_t first = n * nnti_cuda_out_size(op);
    nnti_cuda_gradient<T> to = { (T *)op->workspace, NULL, 0 };
    return nnti_cuda_run_unpool(d, op, nnti_cuda_in<T>(op, NNT_GY) + first, nnti_cuda_aux_from(op, first), to, nnti_cuda_pool_window_of(op),
                                (int64_t)samples * op->out_c);
}
/* X W [B] -> Y [AUX] */
template <class T> nnt_result nnti_cuda_conv_pool(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int each = nnti_cuda_fused_samples(op, job->count, sizeof(float));
    for (int n = 0; n < job->count; n += each) {
        const int samples = (int)nnti_cuda_min(each, job->count - n);
        const int64_t first = n * nnti_cuda_out_size(op);
        const nnt_op conv = nnti_cuda_fused_conv(op, nnti_cuda_map_bytes(op, job->count, sizeof(float)), NNT_Y, n);
        nnti_cuda_max_forward<1, float, T> f;
        memset(&f, 0, sizeof f);
        f.x = (const float *)op->workspace;
        f.bias = nnti_cuda_in(op, NNT_B);
        f.relu = nnti_cuda_relu(op);
        f.y = op->at[NNT_Y] ? nnti_cuda_out<T>(op, NNT_Y) + first : NULL;
        f.aux = nnti_cuda_aux_from(op, first);
        NNTI_CUDA_DO((nnti_cuda_conv_forward<T, float>(d, &conv, samples, 1)));
        NNTI_CUDA_DO(nnti_cuda_run_max(d, op, f, nnti_cuda_pool_window_of(op), samples));
    }
    return NNT_OK;
}
size_t nnti_cuda_conv_pool_bytes(const nnti_cuda *d, const nnt_op *op, int batch)
{
    const nnt_op conv = nnti_cuda_fused_conv(op, 0, NNT_Y, 0);
    return nnti_cuda_map_bytes(op, batch, sizeof(float)) + nnti_cuda_conv_bytes(d, &conv, nnti_cuda_fused_samples(op, batch, sizeof(float)));
}
/* GY AUX W [MASK] -> GX */
template <class T> nnt_result nnti_cuda_conv_pool_data(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int each = nnti_cuda_fused_samples(op, job->count, nnti_cuda_element(op));
    for (int n = 0; n < job->count; n += each) {
        const int samples = (int)nnti_cuda_min(each, job->count - n);
        const nnt_op conv = nnti_cuda_fused_conv(op, nnti_cuda_map_bytes(op, job->count, nnti_cuda_element(op)), NNT_GY, n);
        NNTI_CUDA_DO(nnti_cuda_fused_unpool<T>(d, op, n, samples));
        NNTI_CUDA_DO(nnti_cuda_conv_backward_data<T>(d, &conv, samples));
    }
    return NNT_OK;
}
size_t nnti_cuda_conv_pool_data_bytes(const nnti_cuda *d, const nnt_op *op, int batch)
{
    const nnt_op conv = nnti_cuda_fused_conv(op, 0, NNT_GY, 0);
    return nnti_cuda_map_bytes(op, batch, nnti_cuda_element(op)) + nnti_cuda_conv_data_bytes(d, &conv, nnti_cuda_fused_samples(op, batch, nnti_cuda_element(op)));
}
/* X GY AUX -> GW [GB] */
template <class T> nnt_result nnti_cuda_conv_pool_weight(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int each = nnti_cuda_fused_samples(op, job->count, nnti_cuda_element(op));
    for (int n = 0; n < job->count; n += each) {
        const int samples = (int)nnti_cuda_min(each, job->count - n);
        const nnt_op conv = nnti_cuda_fused_conv(op, nnti_cuda_map_bytes(op, job->count, nnti_cuda_element(op)), NNT_GY, n);
        NNTI_CUDA_DO(nnti_cuda_fused_unpool<T>(d, op, n, samples));
        NNTI_CUDA_DO(nnti_cuda_conv_backward_weight<T>(d, &conv, samples, job->accumulate || n > 0));
    }
    return NNT_OK;
}
size_t nnti_cuda_conv_pool_weight_bytes(const nnti_cuda *d, const nnt_op *op, int batch)
{
    const nnt_op conv = nnti_cuda_fused_conv(op, 0, NNT_GY, 0);
    return nnti_cuda_map_bytes(op, batch, nnti_cuda_element(op)) + nnti_cuda_conv_weight_bytes(d, &conv, nnti_cuda_fused_samples(op, batch, nnti_cuda_element(op)));
}
/* X STATS or RUNNING [W B] -> Y [AUX] */
template <class T> nnt_result nnti_cuda_bn_pool(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    nnti_cuda_max_forward<2, T, T> f;
    memset(&f, 0, sizeof f);
    f.x = nnti_cuda_in<T>(op, NNT_X);
    NNTI_CUDA_DO(nnti_cuda_affine_of(d, op, op->out_c, &f.norm));
    f.relu = nnti_cuda_relu(op);
    f.y = nnti_cuda_out<T>(op, NNT_Y);
    f.aux = op->at[NNT_AUX];
    return nnti_cuda_run_max(d, op, f, nnti_cuda_pool_window_of(op), job->count);
}
/* A program has STATS or RUNNING for all of its ops, but that is not known yet when this is asked. */
size_t nnti_cuda_bn_pool_bytes(const nnti_cuda *, const nnt_op *op, int) { return (size_t)op->out_c * sizeof(float); }
/* Sums of gy and gy (x - mean): only maxima have a gradient, so they go over the pooled values. */
template <class T> struct nnti_cuda_bn_pool_products : nnti_cuda_bn_finish {
    const T *x, *gy;
    const void *aux;
    nnti_cuda_window w;
    nnti_cuda_divisor out_w, out_h;
    template <class I> __device__ void add(int c, I i, nnti_cuda_sums *s) const
    {
        I n = i;
        const int ox = (int)nnti_cuda_split(&n, out_w), oy = (int)nnti_cuda_split(&n, out_h);
        const int64_t plane = (int64_t)n * channels + c, at = (plane * w.out_h + oy) * w.out_w + ox;
        const int k = nnti_cuda_index_at(aux, w.wide, at), ky = k / w.kernel_w;
        const int ih = oy * w.stride_h - w.pad_h + ky, iw = ox * w.stride_w - w.pad_w + (k - ky * w.kernel_w);
        s->first += (double)gy[at];
        s->second += (double)gy[at] * (double)(x[(plane * w.in_h + ih) * w.in_w + iw] - stats[c]);
    }
};
template <class T> struct nnti_cuda_bn_pool_slope {
    const T *x, *gy;
    const void *aux;
    nnti_cuda_gradient<T> to;
    const nnti_cuda_bn_backward *numbers;
    nnti_cuda_window w;
    nnti_cuda_divisor in_w, in_h, channels;
    template <class I> __device__ void operator()(I i) const
    {
        I plane = i;
        const int iw = (int)nnti_cuda_split(&plane, in_w), ih = (int)nnti_cuda_split(&plane, in_h);
        I sample = plane;
        const nnti_cuda_bn_backward b = numbers[nnti_cuda_split(&sample, channels)];
        const float g = nnti_cuda_unpool(w, gy, aux, (int64_t)plane * w.out_h * w.out_w, ih, iw);
        to.put((int64_t)i, ((g - b.mean_gy) - (x[i] - b.mean) * b.slope) * b.scale);
    }
};
/* X GY AUX STATS [W] -> GX [GW GB] */
template <class T> nnt_result nnti_cuda_bn_pool_grad(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job)
{
    const int64_t mid = job->count * (int64_t)op->mid_h * op->mid_w;
    char *partial = (char *)op->workspace + nnti_cuda_bn_numbers(op->out_c);
    nnti_cuda_bn_pool_products<T> sums;
    nnti_cuda_bn_pool_slope<T> f;
    static_cast<nnti_cuda_bn_finish &>(sums) = nnti_cuda_bn_finish_of(op, op->out_c, job->accumulate, (double)mid);
    sums.x = f.x = nnti_cuda_in<T>(op, NNT_X);
    sums.gy = f.gy = nnti_cuda_in<T>(op, NNT_GY);
    sums.aux = f.aux = op->at[NNT_AUX];
    sums.w = f.w = nnti_cuda_pool_window_of(op);
    sums.out_w = nnti_cuda_divide_by(op->out_w);
    sums.out_h = nnti_cuda_divide_by(op->out_h);
    f.to = nnti_cuda_gradient_of<T>(op);
    f.numbers = sums.to;
    f.in_w = nnti_cuda_divide_by(op->mid_w);
    f.in_h = nnti_cuda_divide_by(op->mid_h);
    f.channels = nnti_cuda_divide_by(op->out_c);
    NNTI_CUDA_DO(nnti_cuda_run_reduce(d, op, sums, op->out_c, job->count * nnti_cuda_out_plane(op), partial));
    return nnti_cuda_run_each(d, op, f, mid * op->out_c);
}
size_t nnti_cuda_bn_pool_grad_bytes(const nnti_cuda *, const nnt_op *op, int batch)
{
    return nnti_cuda_bn_numbers(op->out_c) + nnti_cuda_reduce_bytes(batch * nnti_cuda_out_plane(op));
}

/* ============================================================================
   >>run   Lists of ops: one by one, or as a graph
   ============================================================================ */

struct nnti_cuda_kernel {
    nnt_result (*run[2])(nnti_cuda *d, const nnt_op *op, const nnti_cuda_job *job);     /* of floats; with NNT_OPF_HALF */
    size_t (*bytes)(const nnti_cuda *d, const nnt_op *op, int batch);   /* of workspace; NULL: none */
};
#define NNTI_CUDA_BOTH(run) { run<float>, run<nnti_cuda_half> }
const nnti_cuda_kernel nnti_cuda_kernels[NNT_OP_KINDS] = {      /* in the order of NNT_OP_... */
    { { NULL, NULL }, NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_copy), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_accumulate), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_convert), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_conv), nnti_cuda_conv_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_conv_data), nnti_cuda_conv_data_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_conv_weight), nnti_cuda_conv_weight_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_conv_pool), nnti_cuda_conv_pool_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_conv_pool_data), nnti_cuda_conv_pool_data_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_conv_pool_weight), nnti_cuda_conv_pool_weight_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_linear), nnti_cuda_linear_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_linear_data), nnti_cuda_linear_data_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_linear_weight), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_act), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_act), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_maxpool), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_maxpool_grad), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_mean), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_mean_grad), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_mean), nnti_cuda_mean_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_mean_grad), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_dropout), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_noise), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_noise_grad), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_bn_stats), nnti_cuda_bn_stats_bytes },
    { { nnti_cuda_bn_running, nnti_cuda_bn_running }, NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_bn_apply), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_bn_apply), nnti_cuda_bn_eval_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_bn_grad), nnti_cuda_bn_grad_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_bn_pool), nnti_cuda_bn_pool_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_bn_pool_grad), nnti_cuda_bn_pool_grad_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_add), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_concat), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_concat_grad), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_softmax), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_softmax_grad), NULL },
    { NNTI_CUDA_BOTH(nnti_cuda_cross_entropy), nnti_cuda_cross_entropy_bytes },
    { NNTI_CUDA_BOTH(nnti_cuda_mse), nnti_cuda_mse_bytes },
    { { nnti_cuda_grad_norm, nnti_cuda_grad_norm }, nnti_cuda_grad_norm_bytes },
    { { nnti_cuda_update, nnti_cuda_update }, NULL }
};

/* Samples of the batch that this run is of. */
int nnti_cuda_whole(const nnt_run *run) { return run->whole > 0 ? run->whole : run->count; }

/* Launch: one thread. Its argument is copied at the launch, so the host may go on at once. */
__global__ void nnti_cuda_set_now(nnti_cuda_now *to, nnti_cuda_now now) { *to = now; }

nnt_result nnti_cuda_tell_now(nnti_cuda *d, const nnt_run *run)
{
    const nnti_cuda_now now = { run->seed, run->step, run->first };
    NNT_LAUNCH(nnti_cuda_set_now, 1, 1, 0, d->stream, d->now, now);
    return nnti_cuda_launched(d, NULL);
}

/* The ops in order. each: wait for every one, so that a fault in a kernel is told with its op. */
nnt_result nnti_cuda_run_ops(nnti_cuda *d, const nnt_op *ops, int count, const nnt_run *run, int each)
{
    nnti_cuda_job job = { run->count, nnti_cuda_whole(run), run->accumulate, run->loss_scale, run };
    for (int i = 0; i < count; i++) {
        const nnti_cuda_kernel *k = ops[i].kind > 0 && ops[i].kind < NNT_OP_KINDS ? &nnti_cuda_kernels[ops[i].kind] : &nnti_cuda_kernels[0];
        const int half = (ops[i].flags & NNT_OPF_HALF) != 0;
        if (!k->run[half]) {
            nnti_cuda_say_op(d, &ops[i]);
            nnti_cuda_put(d->text, "this device does not know it");
            return NNT_ERR_UNSUPPORTED;
        }
        NNTI_CUDA_DO(k->run[half](d, &ops[i], &job));
        if (each) NNTI_CUDA_TRY(d, &ops[i], "its kernels failed", cudaStreamSynchronize(d->stream));
    }
    return NNT_OK;
}

/* ---- graphs ---- */

/* Whether nothing in the list is from run but what graphs are told apart by: an update has a learning rate. */
int nnti_cuda_repeats(const nnt_op *ops, int count)
{
#if defined(NNT_CUDA_NO_GRAPH) || defined(NNT_CUDA_SYNC)
    (void)ops; (void)count;
    return 0;
#else
    for (int i = 0; i < count; i++) if (ops[i].kind == NNT_OP_UPDATE) return 0;
    return count > 1;
#endif
}
/* This list among the graphs; NULL: it has not been seen. */
nnti_cuda_graph *nnti_cuda_find_graph(nnti_cuda *d, const nnt_op *ops, int count, const nnt_run *run)
{
    for (int i = 0; i < NNTI_CUDA_GRAPHS; i++) {
        nnti_cuda_graph *g = &d->graphs[i];
        if (g->used && g->ops == ops && g->count == count && g->samples == run->count && g->whole == nnti_cuda_whole(run)
            && g->accumulate == run->accumulate && memcmp(&g->loss_scale, &run->loss_scale, sizeof g->loss_scale) == 0) return g;
    }
    return NULL;
}
nnti_cuda_graph *nnti_cuda_oldest_graph(nnti_cuda *d)
{
    nnti_cuda_graph *oldest = &d->graphs[0];
    for (int i = 1; i < NNTI_CUDA_GRAPHS; i++) if (d->graphs[i].used < oldest->used) oldest = &d->graphs[i];
    return oldest;
}
/* Makes the list a graph. Nothing runs. */
nnt_result nnti_cuda_capture(nnti_cuda *d, nnti_cuda_graph *g, const nnt_run *run)
{
    cudaGraph_t graph = NULL;
    cudaError_t e;
    nnt_result r;
    NNTI_CUDA_TRY(d, NULL, "beginning a graph", cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    d->capturing = 1;
    r = nnti_cuda_run_ops(d, g->ops, g->count, run, 0);
    d->capturing = 0;
    e = cudaStreamEndCapture(d->stream, &graph);
    if (r) nnti_cuda_say_rest(d, g->ops);
    else if (e) r = nnti_cuda_failed(d, NULL, "ending a graph", e);
    if (!r) {
        e = cudaGraphInstantiate(&g->exec, graph, 0);
        if (e) { g->exec = NULL; r = nnti_cuda_failed(d, NULL, "making a graph", e); }
    }
    if (graph) (void)cudaGraphDestroy(graph);
    return r;
}
void nnti_cuda_drop_graph(nnti_cuda_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    memset(g, 0, sizeof *g);
}
/* The first time one by one, waiting for each; then captured; then replayed. */
nnt_result nnti_cuda_run_graph(nnti_cuda *d, const nnt_op *ops, int count, const nnt_run *run)
{
    nnti_cuda_graph *g = nnti_cuda_find_graph(d, ops, count, run);
    if (g) {
        g->used = ++d->clock;
        if (!g->exec) NNTI_CUDA_DO(nnti_cuda_capture(d, g, run));
        NNTI_CUDA_TRY(d, &ops[0], "replaying the ops from this one on", cudaGraphLaunch(g->exec, d->stream));
        d->replayed = ops;
        d->replayed_count = count;
        return NNT_OK;
    }
    g = nnti_cuda_oldest_graph(d);
    nnti_cuda_drop_graph(g);
    NNTI_CUDA_DO(nnti_cuda_run_ops(d, ops, count, run, 1));
    g->ops = ops;
    g->count = count;
    g->samples = run->count;
    g->whole = nnti_cuda_whole(run);
    g->accumulate = run->accumulate;
    g->loss_scale = run->loss_scale;
    g->used = ++d->clock;
    return NNT_OK;
}

/* ============================================================================
   >>backend   The functions of nnt_backend
   ============================================================================ */

int nnti_cuda_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
}

void nnti_cuda_close(void *device)
{
    nnti_cuda *d = (nnti_cuda *)device;
    const nnt_allocator a = d->a;
    int i;
    (void)cudaSetDevice(d->index);          /* nothing can be done about failures on the way out */
    if (d->stream) (void)cudaStreamSynchronize(d->stream);
    if (d->copies) (void)cudaStreamSynchronize(d->copies);
    for (i = 0; i < NNTI_CUDA_GRAPHS; i++) nnti_cuda_drop_graph(&d->graphs[i]);
    for (i = 0; i < 2; i++) {
        if (d->passed[i]) (void)cudaEventDestroy(d->passed[i]);
        if (d->pinned[i]) (void)cudaFreeHost(d->pinned[i]);
    }
    if (d->fetch_done) (void)cudaEventDestroy(d->fetch_done);
    if (d->fetched) (void)cudaFreeHost(d->fetched);
    if (d->staged) (void)cudaEventDestroy(d->staged);
    if (d->taken) (void)cudaEventDestroy(d->taken);
    for (i = 0; i < 2; i++) if (d->timed[i]) (void)cudaEventDestroy(d->timed[i]);
    nnti_cudnn_close(d);
    if (d->lt) (void)cublasLtDestroy(d->lt);
    if (d->blas) (void)cublasDestroy(d->blas);
    if (d->now) (void)cudaFree(d->now);
    if (d->workspace) (void)cudaFree(d->workspace);
    if (d->copies) (void)cudaStreamDestroy(d->copies);
    if (d->stream) (void)cudaStreamDestroy(d->stream);
    (void)cudaGetLastError();
    a.free_fn(a.user, d, sizeof *d);
}

/* Everything an open device holds. What is there when a call fails, close gives back. */
nnt_result nnti_cuda_begin(nnti_cuda *d)
{
    cudaDeviceProp card;
    const nnti_cuda_now zero = { 0, 0, 0 };
    int count = 0, i;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e || count < 1) {
        (void)cudaGetLastError();
        nnti_cuda_put(d->text, "there is no card that CUDA can use");
        if (e) { nnti_cuda_put(d->text, " ("); nnti_cuda_put(d->text, cudaGetErrorString(e)); nnti_cuda_put(d->text, ")"); }
        nnti_cuda_put(d->text, "; install NVIDIA's driver, or use device 'cpu'");
        return NNT_ERR_DEVICE;
    }
    if (d->index >= count) {
        nnti_cuda_put(d->text, "there are only ");
        nnti_cuda_put_number(d->text, count);
        nnti_cuda_put(d->text, ", counted from 0");
        return NNT_ERR_DEVICE;
    }
    NNTI_CUDA_TRY(d, NULL, "choosing the device", cudaSetDevice(d->index));
    NNTI_CUDA_TRY(d, NULL, "asking for the card's properties", cudaGetDeviceProperties(&card, d->index));
    d->processors = card.multiProcessorCount > 0 ? card.multiProcessorCount : 1;
    d->capability = card.major * 10 + card.minor;
    d->workspace_bytes = (size_t)(d->capability >= 90 ? 32 : 4) << 20;
    NNTI_CUDA_TRY(d, NULL, "making a stream", cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    NNTI_CUDA_TRY(d, NULL, "making a stream", cudaStreamCreateWithFlags(&d->copies, cudaStreamNonBlocking));
    NNTI_CUDA_TRY(d, NULL, "making an event", cudaEventCreateWithFlags(&d->staged, cudaEventDisableTiming));
    NNTI_CUDA_TRY(d, NULL, "making an event", cudaEventCreateWithFlags(&d->taken, cudaEventDisableTiming));
    NNTI_CUDA_TRY(d, NULL, d->capability >= 90 ? "32 MiB of memory for cuBLAS" : "4 MiB of memory for cuBLAS", cudaMalloc((void **)&d->workspace, d->workspace_bytes));
    NNTI_CUDA_TRY(d, NULL, "memory for the step's number", cudaMalloc((void **)&d->now, sizeof *d->now));
    for (i = 0; i < 2; i++) {
        NNTI_CUDA_TRY(d, NULL, "pinned memory of the host", cudaMallocHost((void **)&d->pinned[i], NNTI_CUDA_PINNED));
        NNTI_CUDA_TRY(d, NULL, "making an event", cudaEventCreateWithFlags(&d->passed[i], cudaEventDisableTiming));
        NNTI_CUDA_TRY(d, NULL, "making an event", cudaEventCreate(&d->timed[i]));
    }
    NNTI_CUDA_TRY(d, NULL, "pinned memory of the host", cudaMallocHost((void **)&d->fetched, NNTI_CUDA_FETCH));
    NNTI_CUDA_TRY(d, NULL, "making an event", cudaEventCreateWithFlags(&d->fetch_done, cudaEventDisableTiming));
    NNTI_CUDA_TRY_BLAS(d, NULL, "starting cuBLAS", cublasCreate(&d->blas));
    NNTI_CUDA_TRY_BLAS(d, NULL, "giving cuBLAS its stream", cublasSetStream(d->blas, d->stream));
    /* parts of a sum are added as floats, not as the bfloat16 that the sum ends in */
    NNTI_CUDA_TRY_BLAS(d, NULL, "asking cuBLAS for sums in f32", cublasSetMathMode(d->blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    NNTI_CUDA_TRY_BLAS(d, NULL, "giving cuBLAS its workspace", cublasSetWorkspace(d->blas, d->workspace, d->workspace_bytes));
    NNTI_CUDA_TRY_BLAS(d, NULL, "starting cuBLASLt", cublasLtCreate(&d->lt));
    NNTI_CUDA_DO(nnti_cudnn_open(d));
    /* the first kernel: fails when the program was built for other cards */
    NNT_LAUNCH(nnti_cuda_set_now, 1, 1, 0, d->stream, d->now, zero);
    NNTI_CUDA_TRY(d, NULL, "the first kernel (was the program built for this card? nvcc -arch=native)", cudaGetLastError());
    NNTI_CUDA_TRY(d, NULL, "the first kernel", cudaStreamSynchronize(d->stream));
    return NNT_OK;
}
void nnti_cuda_why(char *why, size_t cap, const char *text)
{
    size_t length = strlen(text);
    if (!cap) return;
    if (length >= cap) length = cap - 1;
    memcpy(why, text, length);
    why[length] = 0;
}
nnt_result nnti_cuda_open(const nnt_allocator *a, int index, int threads, void **device, char *why, size_t cap)
{
    nnti_cuda *d = (nnti_cuda *)a->alloc_fn(a->user, sizeof *d, 64);
    nnt_result r;
    (void)threads;
    if (!d) {
        nnti_cuda_why(why, cap, "out of memory");
        return NNT_ERR_MEMORY;
    }
    memset(d, 0, sizeof *d);
    d->a = *a;
    d->index = index;
    r = nnti_cuda_begin(d);
    if (!r) { *device = d; return NNT_OK; }
    nnti_cuda_why(why, cap, d->text);
    nnti_cuda_close(d);
    return r;
}
const char *nnti_cuda_error(void *device) { return ((nnti_cuda *)device)->text; }

void *nnti_cuda_alloc(void *device, size_t bytes)
{
    nnti_cuda *d = (nnti_cuda *)device;
    void *p = NULL;
    if (nnti_cuda_enter(d)) return NULL;
    if (cudaMalloc(&p, bytes ? bytes : 1) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}
void nnti_cuda_release(void *device, void *p, size_t bytes)
{
    nnti_cuda *d = (nnti_cuda *)device;
    (void)bytes;
    if (!p) return;
    (void)cudaSetDevice(d->index);
    (void)cudaStreamSynchronize(d->copies);                    /* what still runs may use it */
    (void)cudaStreamSynchronize(d->stream);
    (void)cudaFree(p);
    (void)cudaGetLastError();
}
nnt_result nnti_cuda_memory(int index, nnt_memory_usage *out, char *why, size_t cap)
{
    cudaError_t e = cudaSetDevice(index);
    if (e == cudaSuccess) e = cudaMemGetInfo(&out->available, &out->total);
    if (e != cudaSuccess) {
        nnti_cuda_why(why, cap, cudaGetErrorString(e));
        (void)cudaGetLastError();
        return NNT_ERR_DEVICE;
    }
    out->used = out->total - out->available;
    return NNT_OK;
}

size_t nnti_cuda_part(size_t bytes) { return bytes < (size_t)NNTI_CUDA_PINNED ? bytes : (size_t)NNTI_CUDA_PINNED; }

/* The next of the two pinned buffers, once the transfer that used it last is through. */
nnt_result nnti_cuda_next_pinned(nnti_cuda *d, int *which)
{
    *which = d->turn;
    d->turn ^= 1;
    NNTI_CUDA_TRY(d, NULL, "waiting for a transfer", cudaEventSynchronize(d->passed[*which]));
    return NNT_OK;
}
/* Copies by way of the pinned buffers: while one is on its way the other is filled. Returns when `from` has been read. */
nnt_result nnti_cuda_send(nnti_cuda *d, void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    for (size_t at = 0; at < bytes; at += NNTI_CUDA_PINNED) {
        const size_t part = nnti_cuda_part(bytes - at);
        int i;
        NNTI_CUDA_DO(nnti_cuda_next_pinned(d, &i));
        memcpy(d->pinned[i], (const char *)from + at, part);
        NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaMemcpyAsync((char *)to + at, d->pinned[i], part, cudaMemcpyHostToDevice, stream));
        NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaEventRecord(d->passed[i], stream));
    }
    return NNT_OK;
}
/* A batch comes in on a stream of its own, while the step before is still computing, as far as the staging buffer; from
   there it takes its turn among the kernels. */
nnt_result nnti_cuda_send_ahead(nnti_cuda *d, void *to, const void *from, size_t bytes)
{
    NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaStreamWaitEvent(d->copies, d->taken, 0));
    NNTI_CUDA_DO(nnti_cuda_send(d, d->staging, from, bytes, d->copies));
    NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaEventRecord(d->staged, d->copies));
    NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaStreamWaitEvent(d->stream, d->staged, 0));
    NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaMemcpyAsync(to, d->staging, bytes, cudaMemcpyDeviceToDevice, d->stream));
    NNTI_CUDA_TRY(d, NULL, "copying to the card", cudaEventRecord(d->taken, d->stream));
    return NNT_OK;
}
nnt_result nnti_cuda_upload(void *device, void *to, const void *from, size_t bytes)
{
    nnti_cuda *d = (nnti_cuda *)device;
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    if (d->staging && bytes <= d->staging_bytes && bytes >= (size_t)NNT_CUDA_AHEAD) return nnti_cuda_send_ahead(d, to, from, bytes);
    return nnti_cuda_send(d, to, from, bytes, d->stream);
}
/* bytes of the net's memory for uploads ahead. NULL: no longer. */
void nnti_cuda_stage(void *device, void *buffer, size_t bytes)
{
    nnti_cuda *d = (nnti_cuda *)device;
    d->staging = buffer;
    d->staging_bytes = bytes;
}
/* Begins the download of a few bytes, which the next download of the same waits for instead of for everything. */
nnt_result nnti_cuda_fetch(void *device, const void *from, size_t bytes)
{
    nnti_cuda *d = (nnti_cuda *)device;
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    d->fetched_from = NULL;
    if (bytes > NNTI_CUDA_FETCH) return NNT_OK;
    NNTI_CUDA_TRY(d, NULL, "copying from the card", cudaMemcpyAsync(d->fetched, from, bytes, cudaMemcpyDeviceToHost, d->stream));
    NNTI_CUDA_TRY(d, NULL, "copying from the card", cudaEventRecord(d->fetch_done, d->stream));
    d->fetched_from = from;
    d->fetched_bytes = bytes;
    return NNT_OK;
}
/* While one part is on its way, the one before is copied out of its pinned buffer. */
nnt_result nnti_cuda_download(void *device, void *to, const void *from, size_t bytes)
{
    nnti_cuda *d = (nnti_cuda *)device;
    size_t at, part = 0, before = 0;
    int i = 0, last = 0;
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    if (d->fetched_from == from && d->fetched_bytes == bytes) {
        d->fetched_from = NULL;
        NNTI_CUDA_TRY(d, NULL, "waiting for the card", cudaEventSynchronize(d->fetch_done));
        memcpy(to, d->fetched, bytes);
        return NNT_OK;
    }
    for (at = 0; at < bytes; at += part, before = part, last = i) {
        part = nnti_cuda_part(bytes - at);
        NNTI_CUDA_DO(nnti_cuda_next_pinned(d, &i));
        NNTI_CUDA_TRY(d, NULL, "copying from the card", cudaMemcpyAsync(d->pinned[i], (const char *)from + at, part, cudaMemcpyDeviceToHost, d->stream));
        NNTI_CUDA_TRY(d, NULL, "copying from the card", cudaEventRecord(d->passed[i], d->stream));
        if (!at) continue;
        NNTI_CUDA_TRY(d, NULL, "waiting for the card", cudaEventSynchronize(d->passed[last]));
        memcpy((char *)to + at - before, d->pinned[last], before);
    }
    if (!bytes) return NNT_OK;
    NNTI_CUDA_TRY(d, NULL, "waiting for the card", cudaEventSynchronize(d->passed[last]));
    memcpy((char *)to + bytes - before, d->pinned[last], before);
    return NNT_OK;
}

nnt_result nnti_cuda_fill(void *device, void *to, float value, int64_t count)
{
    nnti_cuda *d = (nnti_cuda *)device;
    nnti_cuda_constant f = { value };
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    return nnti_cuda_run_map(d, NULL, f, (float *)to, NULL, NULL, NULL, count);
}
/* y = a x + b z; z NULL: y = a x. y may be x or z. */
nnt_result nnti_cuda_axpby(void *device, float *y, float a, const float *x, float b, const float *z, int64_t count)
{
    nnti_cuda *d = (nnti_cuda *)device;
    nnti_cuda_linear_mix f = { a, b, z != NULL };
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    return nnti_cuda_run_map(d, NULL, f, y, x, z, NULL, count);
}
/* The largest float below f, which is finite. */
float nnti_cuda_below(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = bits << 1 == 0 ? 0x80000001u : bits >> 31 ? bits + 1 : bits - 1;
    memcpy(&f, &bits, sizeof bits);
    return f;
}
template <int KIND> nnt_result nnti_cuda_random_kind(nnti_cuda *d, float *to, int64_t count, const nnti_cuda_blend &b, float constant, int add, uint64_t seed)
{
    nnti_cuda_tensor_random<KIND> f;
    f.to = to;
    f.b = b;
    f.constant = constant;
    f.add = add;
    f.seed = seed;
    f.count = count;
    return nnti_cuda_run_each(d, NULL, f, (count + 3) / 4);
}
/* NNT_RANDOM_NORMAL: b n + a; _UNIFORM: in [a, b), never b itself; _ADD_NORMAL: to += a n. As nnti_cpu_random. */
nnt_result nnti_cuda_random(void *device, float *to, int64_t count, int kind, float a, float b, uint64_t seed)
{
    nnti_cuda *d = (nnti_cuda *)device;
    nnti_cuda_blend blend = { kind == NNT_RANDOM_NORMAL ? b : a, 0, 0, 0 };
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    if (kind != NNT_RANDOM_UNIFORM) return nnti_cuda_random_kind<NNTI_CUDA_NORMAL>(d, to, count, blend, a, kind == NNT_RANDOM_ADD_NORMAL, seed);
    blend.scale = 0.5f * b - 0.5f * a;
    blend.low = a;
    blend.high = a < b ? nnti_cuda_below(b) : a;
    blend.clamp = 1;
    return nnti_cuda_random_kind<NNTI_CUDA_SIGNED>(d, to, count, blend, 0.5f * a + 0.5f * b, 0, seed);
}

/* Bytes are read where noise is put on them; other ops get them by way of CONVERT. cuBLAS counts in ints. */
int nnti_cuda_supports(void *device, const nnt_op *op)
{
    const int64_t most = INT_MAX, group = op->groups > 0 ? op->groups : 1;
    (void)device;
    if (op->kind <= 0 || op->kind >= NNT_OP_KINDS || !nnti_cuda_kernels[op->kind].run[0]) return 0;
    if ((op->flags & NNT_OPF_BYTES) && op->kind != NNT_OP_NOISE) return 0;
    switch (op->kind) {
    case NNT_OP_CONV: case NNT_OP_CONV_DATA: case NNT_OP_CONV_WEIGHT:
        return nnti_cuda_in_plane(op) <= most && nnti_cuda_out_plane(op) <= most && op->in_c / group * nnti_cuda_taps(op) <= most
            && op->out_c * (op->in_c / group) * nnti_cuda_taps(op) <= most;
    case NNT_OP_CONV_POOL: case NNT_OP_CONV_POOL_DATA: case NNT_OP_CONV_POOL_WEIGHT:
        return nnti_cuda_in_plane(op) <= most && (int64_t)op->mid_h * op->mid_w <= most && op->in_c / group * nnti_cuda_taps(op) <= most
            && op->out_c * (op->in_c / group) * nnti_cuda_taps(op) <= most;
    case NNT_OP_LINEAR: case NNT_OP_LINEAR_DATA: case NNT_OP_LINEAR_WEIGHT:
        return nnti_cuda_in_size(op) <= most && nnti_cuda_out_size(op) <= most;
    default: return 1;
    }
}
/* TF32 and bf16 are there from Ampere on. 2: values are stored in bfloat16 (NNT_OPF_HALF). */
int nnti_cuda_precision(void *device, int precision)
{
    if (precision == NNT_FP32) return 1;
    if (((nnti_cuda *)device)->capability < 80) return 0;
    return precision == NNT_TF32 ? 1 : precision == NNT_BF16 ? 2 : 0;
}
size_t nnti_cuda_workspace(void *device, const nnt_op *op, int batch)
{
    const nnti_cuda_kernel *k = &nnti_cuda_kernels[op->kind];
    return k->bytes ? k->bytes((nnti_cuda *)device, op, batch) : 0;
}
nnt_result nnti_cuda_run(void *device, const nnt_op *ops, int count, const nnt_run *run)
{
    nnti_cuda *d = (nnti_cuda *)device;
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    if (count < 1) return NNT_OK;
    NNTI_CUDA_DO(nnti_cuda_tell_now(d, run));
    if (nnti_cuda_repeats(ops, count)) return nnti_cuda_run_graph(d, ops, count, run);
#if defined(NNT_CUDA_SYNC)
    return nnti_cuda_run_ops(d, ops, count, run, 1);
#else
    return nnti_cuda_run_ops(d, ops, count, run, 0);
#endif
}
/* As run, but with the seconds of each op. */
nnt_result nnti_cuda_run_timed(void *device, const nnt_op *ops, int count, const nnt_run *run, double *seconds)
{
    nnti_cuda *d = (nnti_cuda *)device;
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    NNTI_CUDA_DO(nnti_cuda_tell_now(d, run));
    for (int i = 0; i < count; i++) {
        float milliseconds = 0;
        NNTI_CUDA_TRY(d, &ops[i], "timing", cudaEventRecord(d->timed[0], d->stream));
        NNTI_CUDA_DO(nnti_cuda_run_ops(d, &ops[i], 1, run, 0));
        NNTI_CUDA_TRY(d, &ops[i], "timing", cudaEventRecord(d->timed[1], d->stream));
        NNTI_CUDA_TRY(d, &ops[i], "its kernels failed", cudaEventSynchronize(d->timed[1]));
        NNTI_CUDA_TRY(d, &ops[i], "timing", cudaEventElapsedTime(&milliseconds, d->timed[0], d->timed[1]));
        seconds[i] += 1e-3 * (double)milliseconds;
    }
    return NNT_OK;
}
nnt_result nnti_cuda_sync(void *device)
{
    nnti_cuda *d = (nnti_cuda *)device;
    NNTI_CUDA_DO(nnti_cuda_enter(d));
    NNTI_CUDA_TRY(d, NULL, "waiting for the card", cudaStreamSynchronize(d->stream));
    return NNT_OK;
}

const nnt_backend nnti_cuda_backend = {
    NNT_BACKEND_ABI, "cuda", nnti_cuda_count, nnti_cuda_open, nnti_cuda_close, nnti_cuda_alloc, nnti_cuda_release,
    nnti_cuda_upload, nnti_cuda_download, nnti_cuda_fill, nnti_cuda_supports, nnti_cuda_workspace, nnti_cuda_run, nnti_cuda_sync,
    nnti_cuda_error, nnti_cuda_random, nnti_cuda_axpby, NULL, nnti_cuda_memory, nnti_cuda_precision, nnti_cuda_fetch, nnti_cuda_run_timed, nnti_cuda_stage, 0
};

/* Makes "cuda" known before main begins. */
struct nnti_cuda_registration {
    nnti_cuda_registration() { (void)nnt_backend_register(&nnti_cuda_backend); }
};
const nnti_cuda_registration nnti_cuda_registered;

}  /* namespace */
