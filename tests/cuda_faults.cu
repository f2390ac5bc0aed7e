/* cuda_faults.cu - small programs for test_cuda_emulator.c. Each computes something, compares it with a plain loop and
   returns how many values are wrong; with fault = 1 it has the mistake that its name tells. */
#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <cuda_pipeline_primitives.h>
#include "cuda_faults.h"

static float *device_floats(int n)
{
    float *p = 0;
    return cudaMalloc(&p, (size_t)n * 4) ? 0 : p;
}
/* 1, 2, ... n on the device. */
static float *device_ramp(int n)
{
    float *p = device_floats(n), *h = new float[n];
    for (int i = 0; i < n; i++) h[i] = (float)(i + 1);
    cudaMemcpy(p, h, (size_t)n * 4, cudaMemcpyHostToDevice);
    delete[] h;
    return p;
}
/* Values that differ from a + b i modulo m; frees p. */
static int wrong(float *p, int n, float a, float b, int m)
{
    float *h = new float[n];
    int count = cudaMemcpy(h, p, (size_t)n * 4, cudaMemcpyDeviceToHost) != 0;
    for (int i = 0; i < n; i++) count += !(h[i] == a + b * (float)(i % m));
    delete[] h;
    return cudaFree(p) ? n : count;
}

/* ---- global memory ---- */

__global__ void doubled_kernel(float *y, const float *x, int n, int limit)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < limit) y[i] = i < n ? 2 * x[i] : 0;
}
static int doubled(int n, int limit, int blocks)
{
    float *x = device_ramp(n), *y = device_floats(n);
    NNT_LAUNCH(doubled_kernel, blocks, 64, 0, 0, y, x, n, limit);
    const int failed = cudaGetLastError() != cudaSuccess;
    cudaFree(x);
    return wrong(y, n, 2, 2, n) + failed;
}
int one_past_the_end(int fault) { return doubled(100, 100 + fault, 2); }
int too_few_blocks(int fault) { return doubled(130, 130, 3 - fault); }

int block_of_too_many_threads(int fault)
{
    float *x = device_ramp(4), *y = device_floats(4);
    NNT_LAUNCH(doubled_kernel, 1, fault ? 2048 : 1024, 0, 0, y, x, 4, 4);
    const int failed = cudaGetLastError() == cudaErrorInvalidConfiguration;
    cudaFree(x);
    cudaFree(y);
    return failed;
}
int empty_grid(int fault)
{
    NNT_LAUNCH(doubled_kernel, 1 - fault, 32, 0, 0, (float *)0, (const float *)0, 0, 0);
    return cudaGetLastError() == cudaErrorInvalidConfiguration;
}
int more_shared_memory_than_asked_for(int fault)
{
    NNT_LAUNCH(doubled_kernel, 1, 32, fault ? 50000 : 48000, 0, (float *)0, (const float *)0, 0, 0);
    return cudaGetLastError() == cudaErrorInvalidValue;
}

int use_after_free(int fault)
{
    float *x = device_ramp(64), *y = device_floats(64);
    if (fault) cudaFree(x);
    NNT_LAUNCH(doubled_kernel, 1, 64, 0, 0, y, x, 64, 64);
    if (!fault) cudaFree(x);
    return wrong(y, 64, 2, 2, 64);
}
int memory_that_nothing_wrote(int fault)
{
    float *x = fault ? device_floats(64) : device_ramp(64), *y = device_floats(64);
    NNT_LAUNCH(doubled_kernel, 1, 64, 0, 0, y, x, 64, 64);
    cudaFree(x);
    return wrong(y, 64, 2, 2, 64);
}
int host_pointer_in_a_kernel(int fault)
{
    float *host = new float[64], *x = device_ramp(64), *y = device_floats(64);
    for (int i = 0; i < 64; i++) host[i] = (float)(i + 1);
    NNT_LAUNCH(doubled_kernel, 1, 64, 0, 0, y, fault ? host : x, 64, 64);
    cudaFree(x);
    delete[] host;
    return wrong(y, 64, 2, 2, 64);
}
int host_reads_device_memory(int fault)
{
    float *x = device_ramp(64);
    const volatile float *seen = x;
    const int bad = fault && !(seen[0] == 1);
    return wrong(x, 64, 1, 1, 64) + bad;
}

__global__ void vector_kernel(float *y, const float *x, int shift)
{
    ((float4 *)(y + shift))[threadIdx.x] = ((const float4 *)x)[threadIdx.x];
}
int misaligned_float4(int fault)
{
    float *x = device_ramp(32), *y = device_floats(64);
    cudaMemset(y, 0, 64 * 4);
    NNT_LAUNCH(vector_kernel, 1, 8, 0, 0, y, x, fault ? 1 : 4);
    cudaFree(x);
    cudaFree(y);
    return 0;
}

/* Windows of three, one apart: each value is in up to three of them. */
__global__ void windows_kernel(float *sum, const float *x, int n, int fault)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    for (int k = 0; k < 3 && i + k < n; k++) {
        if (fault) sum[i + k] += x[i];
        else atomicAdd(&sum[i + k], x[i]);
    }
}
int sum_without_atomics(int fault)
{
    float *x = device_ramp(64), *sum = device_floats(64);
    cudaMemset(sum, 0, 64 * 4);
    NNT_LAUNCH(windows_kernel, 2, 32, 0, 0, sum, x, 64, fault);
    cudaFree(x);
    cudaFree(sum);
    return 0;
}
__global__ void next_kernel(float *x, int fault)        /* in one launch a block reads what another wrote */
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    x[i] = (float)i;
    if (fault && blockIdx.x == 1) x[i] += x[i - (int)blockDim.x];
}
int blocks_in_an_order(int fault)
{
    float *x = device_ramp(64);
    NNT_LAUNCH(next_kernel, 2, 32, 0, 0, x, fault);
    return wrong(x, 64, 0, 1, 64);
}

/* ---- shared memory and barriers ---- */

/* Rows of 64 through one tile, each turned round. */
__global__ void turn_kernel(float *y, const float *x, int rows, int no_fill_barrier, int no_refill_barrier)
{
    NNT_DYN_SHARED(float, tile);
    const int t = (int)threadIdx.x;
    for (int r = 0; r < rows; r++) {
        tile[t] = x[r * 64 + t];
        if (!no_fill_barrier) __syncthreads();
        y[r * 64 + t] = tile[63 - t];
        if (!no_refill_barrier) __syncthreads();
    }
}
static int turn(int no_fill_barrier, int no_refill_barrier)
{
    float *x = device_floats(192), *y = device_floats(192), h[192];
    for (int i = 0; i < 192; i++) h[i] = (float)(i - i % 64 + 63 - i % 64);
    cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice);
    NNT_LAUNCH(turn_kernel, 1, 64, 64 * sizeof(float), 0, y, x, 3, no_fill_barrier, no_refill_barrier);
    cudaFree(x);
    return wrong(y, 192, 0, 1, 192);
}
int no_barrier_between_fill_and_use(int fault) { return turn(fault, 0); }
int no_barrier_between_use_and_refill(int fault) { return turn(0, fault); }

/* Sums of a block: of each warp by shuffles, then of the warps through shared memory. */
__global__ void sum_kernel(float *y, const float *x, int beyond, int all_parts)
{
    __shared__ float part[32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    float v = x[threadIdx.x];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (lane == 0) part[warp + beyond] = v;
    __syncthreads();
    if (warp) return;
    v = all_parts || lane < warps ? part[lane] : 0;
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (lane == 0) y[0] = v;
}
static int sum(int beyond, int all_parts)
{
    float *x = device_ramp(96), *y = device_floats(1);
    NNT_LAUNCH(sum_kernel, 1, 96, 0, 0, y, x, beyond, all_parts);
    cudaFree(x);
    return wrong(y, 1, 96 * 97 / 2, 0, 1);
}
int shared_array_out_of_bounds(int fault) { return sum(fault * 32, 0); }
int shared_memory_read_before_written(int fault) { return sum(0, fault); }

__global__ void leave_kernel(float *y, const float *x, int stay, int divergent)
{
    const int t = (int)threadIdx.x;
    if (t >= stay) return;
    if (divergent && t < 7) __syncthreads();
    else __syncthreads();
    y[t] = x[t];
}
static int leave(int stay, int divergent)
{
    float *x = device_ramp(64), *y = device_ramp(64);
    NNT_LAUNCH(leave_kernel, 1, 64, 0, 0, y, x, stay, divergent);
    cudaFree(x);
    return wrong(y, 64, 1, 1, 64);
}
int threads_return_before_a_barrier(int fault) { return leave(64 - fault, 0); }
int threads_at_different_barriers(int fault) { return leave(64, fault); }

__global__ void shuffle_kernel(float *y, int divergent, int first)
{
    const int lane = (int)threadIdx.x;
    if (lane < first) return;
    float v = (float)lane;
    if (!divergent || lane < 16) v = __shfl_sync(0xffffffffu, v, lane ^ 16);
    y[lane] = v - (float)(lane ^ 16) + (float)lane;
}
static int shuffle(int divergent, int first)
{
    float *y = device_ramp(32);
    NNT_LAUNCH(shuffle_kernel, 1, 32, 0, 0, y, divergent, first);
    return wrong(y, 32, 0, 1, 32);
}
int full_mask_in_divergent_code(int fault) { return shuffle(fault, 0); }
int shuffle_from_a_lane_that_returned(int fault) { return shuffle(0, fault); }

__global__ void pipeline_kernel(float *y, const float *x, int rows, int ahead)
{
    NNT_DYN_SHARED(float, stage);
    const int lane = (int)threadIdx.x;
    float v = 0;
    __pipeline_memcpy_async(&stage[lane], &x[lane], 4);
    __pipeline_commit();
    for (int r = 0; r < rows; r++) {
        if (r + 1 < rows) __pipeline_memcpy_async(&stage[(r + 1) % 2 * 32 + lane], &x[(r + 1) * 32 + lane], 4);
        __pipeline_commit();
        __pipeline_wait_prior(ahead);
        __syncwarp();
        v += stage[r % 2 * 32 + 31 - lane];
        __syncwarp();
    }
    __pipeline_wait_prior(0);
    y[31 - lane] = v;
}
int no_wait_for_an_asynchronous_copy(int fault)
{
    float *x = device_ramp(96), *y = device_floats(32);
    NNT_LAUNCH(pipeline_kernel, 1, 32, 64 * sizeof(float), 0, y, x, 3, 1 + fault);
    cudaFree(x);
    return wrong(y, 32, 1 + 33 + 65, 3, 32);
}

/* ---- streams and graphs ---- */

__global__ void add_kernel(float *y, const float *x, const float *factor, float frozen, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] += (factor ? *factor : frozen) * x[i];
}

/* Adds up four pinned batches, copied on one stream and used on another. */
static int pipeline(int no_event, int no_wait_for_the_buffer, int no_wait_for_the_use)
{
    enum { N = 64, BATCHES = 4 };
    float *host[2], *x[2], *y = device_floats(N);
    cudaStream_t copy, compute;
    cudaEvent_t copied[2], used[2];
    cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    cudaMemset(y, 0, N * 4);
    for (int b = 0; b < 2; b++) {
        x[b] = device_floats(N);
        cudaMallocHost(&host[b], N * 4);
        cudaMemset(x[b], 0, N * 4);
        cudaEventCreateWithFlags(&copied[b], cudaEventDisableTiming);
        cudaEventCreateWithFlags(&used[b], cudaEventDisableTiming);
    }
    for (int k = 0; k < BATCHES; k++) {
        const int b = k & 1;
        if (k > 1 && !no_wait_for_the_buffer) cudaEventSynchronize(copied[b]);
        for (int i = 0; i < N; i++) host[b][i] = (float)(i * (k + 1));
        if (k > 1 && !no_wait_for_the_use) cudaStreamWaitEvent(copy, used[b], 0);
        cudaMemcpyAsync(x[b], host[b], N * 4, cudaMemcpyHostToDevice, copy);
        cudaEventRecord(copied[b], copy);
        if (!no_event) cudaStreamWaitEvent(compute, copied[b], 0);
        NNT_LAUNCH(add_kernel, 1, N, 0, compute, y, x[b], (const float *)0, 1.0f, N);
        cudaEventRecord(used[b], compute);
    }
    cudaStreamSynchronize(compute);
    cudaStreamSynchronize(copy);
    for (int b = 0; b < 2; b++) {
        cudaEventDestroy(copied[b]);
        cudaEventDestroy(used[b]);
        cudaFree(x[b]);
        cudaFreeHost(host[b]);
    }
    cudaStreamDestroy(copy);
    cudaStreamDestroy(compute);
    return wrong(y, N, 0, 10, N);
}
int stream_does_not_wait_for_the_copy(int fault) { return pipeline(fault, 0, 0); }
int pinned_buffer_filled_again_too_early(int fault) { return pipeline(0, fault, 0); }
int copy_over_what_is_still_in_use(int fault) { return pipeline(0, 0, fault); }

int result_read_without_waiting(int fault)
{
    float *x = device_ramp(64), *y = device_floats(64);
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    NNT_LAUNCH(doubled_kernel, 1, 64, 0, s, y, x, 64, 64);
    if (!fault) cudaStreamSynchronize(s);
    float h[64];
    cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost);         /* the legacy stream waits for no such stream */
    cudaStreamDestroy(s);
    cudaFree(x);
    cudaFree(y);
    return !(h[63] == 128);
}

/* y += factor x in a graph, which is captured once and run three times with another factor each. */
int scalar_frozen_into_a_graph(int fault)
{
    enum { N = 64 };
    float *x = device_ramp(N), *y = device_floats(N), *factor = device_floats(1);
    cudaStream_t s;
    cudaGraph_t graph = 0;
    cudaGraphExec_t exec = 0;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMemset(y, 0, N * 4);
    for (int k = 1; k <= 3; k++) {
        const float f = (float)k;
        cudaMemcpyAsync(factor, &f, 4, cudaMemcpyHostToDevice, s);
        if (!exec) {
            cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
            NNT_LAUNCH(add_kernel, 1, N, 0, s, y, x, fault ? (const float *)0 : factor, f, N);
            cudaStreamEndCapture(s, &graph);
            cudaGraphInstantiate(&exec, graph, 0);
        }
        cudaGraphLaunch(exec, s);
    }
    cudaStreamSynchronize(s);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(s);
    cudaFree(x);
    cudaFree(factor);
    return wrong(y, N, 6, 6, N);
}
/* Captures y += x and y += x on two streams, with or without an edge between the two. */
static int two_streams(int no_edge, int no_join, int synchronize)
{
    enum { N = 64 };
    float *x = device_ramp(N), *y = device_ramp(N), *z = device_floats(N);
    cudaStream_t a, b;
    cudaEvent_t begun, added;
    cudaGraph_t graph = 0;
    cudaGraphExec_t exec = 0;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&begun, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&added, cudaEventDisableTiming);
    cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(begun, a);
    cudaStreamWaitEvent(b, begun, 0);
    NNT_LAUNCH(add_kernel, 1, N, 0, b, y, x, (const float *)0, 1.0f, N);
    if (synchronize) cudaStreamSynchronize(a);
    cudaEventRecord(added, b);
    if (!no_edge && !no_join) cudaStreamWaitEvent(a, added, 0);
    NNT_LAUNCH(doubled_kernel, 1, N, 0, a, z, y, N, N);
    if (no_edge && !no_join) cudaStreamWaitEvent(a, added, 0);
    cudaStreamEndCapture(a, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, a);
    cudaStreamSynchronize(a);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begun);
    cudaEventDestroy(added);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    cudaFree(x);
    cudaFree(y);
    return wrong(z, N, 4, 4, N);
}
int graph_without_an_edge(int fault) { return two_streams(fault, 0, 0); }
int fork_that_does_not_join(int fault) { return two_streams(0, fault, 0); }
int synchronizing_inside_of_a_capture(int fault) { return two_streams(0, 0, fault); }

/* ---- cuBLAS, leaks ---- */

int product_beyond_its_operand(int fault)
{
    float *a = device_ramp(12), *b = device_ramp(12), *c = device_floats(9);
    const float one = 1, zero = 0;
    cublasHandle_t h;
    cublasCreate(&h);
    cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_T, 3, 3, 4 + fault, &one, a, 3, b, 3, &zero, c, 3);
    cublasDestroy(h);
    cudaFree(a);
    cudaFree(b);
    float corner = 0;
    cudaMemcpy(&corner, c, 4, cudaMemcpyDeviceToHost);
    cudaFree(c);
    return !(corner == 1 + 16 + 49 + 100);
}
int memory_that_is_not_freed(int fault)
{
    const long before = coc_live();
    float *p = device_floats(8);
    if (!fault) cudaFree(p);
    return coc_live() != before;
}
