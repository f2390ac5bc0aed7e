/* bench.c - one turn of the measurements that build.sh repeats and compares: full training steps (forward, backward,
   Adam) of two nets, and a product of two 1024 x 1024 matrices beside the processor's peak. Prints "nntrain WHAT
   THREADS VALUE" lines: the median of milliseconds a step, or GFLOP/s. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"

enum { BATCH = 64, PIXELS = 28 * 28, CLASSES = 10, MOST = 512 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int n) { qsort(v, (size_t)n, sizeof *v, by_value); return v[n / 2]; }

static nnt_node mlp(nnt_node x) { return nnt_linear(nnt_relu(nnt_linear(x, 128)), CLASSES); }

static nnt_node cnn(nnt_node x)
{
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 32, 3, 1, 1)), 2, 2, 0);
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 64, 3, 1, 1)), 2, 2, 0);
    return nnt_linear(nnt_relu(nnt_linear(x, 128)), CLASSES);
}

/* Milliseconds of a step. */
static int bench_net(const char *what, nnt_node (*build)(nnt_node), int threads, int steps)
{
    static float x[BATCH * PIXELS];
    static int32_t labels[BATCH];
    double ms[MOST];
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc d;
    nnt_batch batch;
    int i, warm = steps / 5 + 2;

    for (i = 0; i < BATCH * PIXELS; i++) x[i] = (float)(i % 997) / 997.0f;
    for (i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    memset(&d, 0, sizeof d);
    memset(&batch, 0, sizeof batch);
    d.batch = BATCH;
    d.threads = threads;
    d.optimizer = nnt_adam(1e-3f);
    batch.x = x;
    batch.labels = labels;
    batch.count = BATCH;
    if (nnt_compile(net, nnt_cross_entropy(build(nnt_input(net, 1, 28, 28))), d)) goto failed;
    for (i = -warm; i < steps; i++) {
        double start = nnti_seconds();
        if (nnt_step(net, &batch, NULL)) goto failed;
        if (i >= 0) ms[i] = 1e3 * (nnti_seconds() - start);
    }
    printf("nntrain %s %d %.4f\n", what, threads, median(ms, steps));
    nnt_free(net);
    return 1;
failed:
    fprintf(stderr, "bench %s: %s\n", what, nnt_error(net));
    nnt_free(net);
    return 0;
}

/* --- peak: multiply-adds that touch nothing but registers --- */

enum { PEAK_ROUNDS = 2000000 };
#if defined(NNTI_X86)
#  define TEN(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9)
NNTI_AVX2 NNTI_NOINLINE static double peak_avx2(void)
{
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
#  define DECLARE(k) __m256 s##k = _mm256_set1_ps(0.1f * (k));
#  define FMA(k) s##k = _mm256_fmadd_ps(s##k, a, b);
#  define SUM(k) a0 = _mm256_add_ps(a0, s##k);
    __m256 a0 = a;
    float out[8];
    int i;
    TEN(DECLARE)
    for (i = 0; i < PEAK_ROUNDS; i++) { TEN(FMA) }
    TEN(SUM)
    _mm256_storeu_ps(out, a0);
    return out[0] > 1e30f ? 0 : 2.0 * 8 * 10 * PEAK_ROUNDS;
#  undef DECLARE
#  undef FMA
#  undef SUM
}
NNTI_AVX512 NNTI_NOINLINE static double peak_avx512(void)
{
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
#  define DECLARE(k) __m512 s##k = _mm512_set1_ps(0.1f * (k));
#  define FMA(k) s##k = _mm512_fmadd_ps(s##k, a, b);
#  define SUM(k) a0 = _mm512_add_ps(a0, s##k);
    __m512 a0 = a;
    float out[16];
    int i;
    TEN(DECLARE)
    for (i = 0; i < PEAK_ROUNDS; i++) { TEN(FMA) }
    TEN(SUM)
    _mm512_storeu_ps(out, a0);
    return out[0] > 1e30f ? 0 : 2.0 * 16 * 10 * PEAK_ROUNDS;
#  undef DECLARE
#  undef FMA
#  undef SUM
}
#endif

static void peak_chunk(void *arg, int64_t chunk, int worker)
{
    double *flops = (double *)arg;
    (void)worker;
#if defined(NNTI_X86)
    flops[chunk] = nnti_isa_best() == NNTI_ISA_AVX512 ? peak_avx512() : nnti_isa_best() == NNTI_ISA_AVX2 ? peak_avx2() : 0;
#else
    flops[chunk] = 0;
#endif
}
static double peak(nnti_pool *pool, int threads)
{
    double flops[2] = { 0, 0 }, start = nnti_seconds();
    nnti_parallel(pool, threads, peak_chunk, flops);
    return (flops[0] + flops[1]) / (nnti_seconds() - start) * 1e-9;
}

/* C = A B; peak and product in turn, since the clock of the processor changes. */
static int bench_gemm(int threads)
{
    enum { SIZE = 1024, TURNS = 9 };
    const nnt_allocator a = nnti_allocator(NULL);
    const size_t bytes = (size_t)SIZE * SIZE * sizeof(float);
    double gflops[TURNS], limit[TURNS];
    nnti_exec e;
    nnti_gemm g;
    nnti_operand left;
    float *x = (float *)nnti_zalloc(&a, 3, bytes), *workspace = NULL;
    size_t workspace_bytes = 0;
    int i, ok = 0;
    e.isa = nnti_isa_best();
    e.pool = nnti_pool_start(&a, threads);
    if (x && e.pool) {
        g = nnti_gemm_new(&e, SIZE, SIZE, SIZE);
        workspace_bytes = nnti_gemm_workspace(&e, &g);
        workspace = (float *)nnti_zalloc(&a, 1, workspace_bytes);
    }
    if (workspace) {
        for (i = 0; i < 2 * SIZE * SIZE; i++) x[i] = (float)(i % 997) / 997.0f;
        left = nnti_operand_matrix(x, SIZE, SIZE, 1);
        g.b = nnti_operand_matrix(x + (size_t)SIZE * SIZE, SIZE, 1, SIZE);
        g.c = x + 2 * (size_t)SIZE * SIZE;
        nnti_gemm_run(&e, &g, &left, workspace);
        for (i = 0; i < TURNS; i++) {
            double start;
            limit[i] = peak(e.pool, threads);
            start = nnti_seconds();
            nnti_gemm_run(&e, &g, &left, workspace);
            gflops[i] = 2.0 * SIZE * SIZE * SIZE / (nnti_seconds() - start) * 1e-9;
        }
        printf("nntrain gemm %d %.2f\nnntrain peak %d %.2f\n", threads, median(gflops, TURNS), threads, median(limit, TURNS));
        ok = 1;
    }
    nnti_free(&a, workspace, workspace_bytes);
    nnti_free(&a, x, 3 * bytes);
    nnti_pool_stop(e.pool);
    return ok;
}

int main(void)
{
    int threads, ok = 1;
    for (threads = 1; ok && threads <= 2; threads++)
        ok = bench_net("mlp", mlp, threads, 300) && bench_net("cnn", cnn, threads, 30) && bench_gemm(threads);
    return ok ? 0 : 1;
}
