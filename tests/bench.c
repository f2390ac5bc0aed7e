/* bench.c - one turn of a measurement, which build.sh repeats in turn with PyTorch's or OpenBLAS's and compares.

       bench list [WORD...]       the workloads, or those with such a name or group: "GROUP NAME THREADS"
       bench NAME THREADS         one turn: "nntrain NAME THREADS VALUE": milliseconds a step, GFLOP/s, GB/s or microseconds
       bench openblas NAME THREADS    the same product by OpenBLAS, if the system has it
       bench time COMMAND...      milliseconds from the start to the end of a program

   Beside the value stands what limits it: "flops NAME THREADS GFLOP" a step, "peak NAME THREADS GFLOP/s" of multiply-adds
   that touch nothing but registers, "stream NAME THREADS GB/s" of a loop that reads and writes as the op does. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "../examples/models.h"
#include <dlfcn.h>
#include <sys/wait.h>

/* ---- the workloads ---- */

static nnt_node mlp(nnt_net *net, int channels, int height, int width, int classes)
{
    nnt_node x = nnt_relu(nnt_linear(nnt_input(net, channels, height, width), 128));
    return nnt_linear(x, classes);
}
static nnt_node cnn(nnt_net *net, int channels, int height, int width, int classes)
{
    nnt_node x = nnt_input(net, channels, height, width);
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 32, 3, 1, 1)), 2, 2, 0);
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 64, 3, 1, 1)), 2, 2, 0);
    return nnt_linear(nnt_relu(nnt_linear(x, 128)), classes);
}
static nnt_node vgg_like(nnt_net *net, int channels, int height, int width, int classes)
{
    nnt_node x = nnt_input(net, channels, height, width);
    int filters;
    for (filters = 64; filters <= 256; filters *= 2) {
        x = nnt_relu(nnt_conv2d(x, filters, 3, 1, 1));
        x = nnt_maxpool(nnt_relu(nnt_conv2d(x, filters, 3, 1, 1)), 2, 2, 0);
    }
    return nnt_linear(x, classes);
}

typedef struct net_load {
    const char *group, *name;
    nnt_node (*build)(nnt_net *net, int channels, int height, int width, int classes);
    int batch, channels, size, classes;
    int alone;                          /* measured on one thread too */
} net_load;
static const net_load nets[] = {
    { "step", "mlp", mlp, 64, 1, 28, 10, 1 },
    { "step", "cnn", cnn, 64, 1, 28, 10, 1 },
    { "step", "vgg_like", vgg_like, 64, 3, 32, 10, 0 },
    { "step", "alexnet_32", alexnet, 32, 3, 224, 1000, 0 },
    { "step", "alexnet_64", alexnet, 64, 3, 224, 1000, 0 },
    { "step", "vgg16_8", vgg16, 8, 3, 224, 1000, 0 },
    { "step", "resnet18_8", resnet18, 8, 3, 224, 1000, 0 },
    { "step", "resnet50_16", resnet50, 16, 3, 224, 1000, 0 },
    { "predict", "predict_alexnet", alexnet, 1, 3, 224, 1000, 0 },
    { "predict", "predict_vgg16", vgg16, 1, 3, 224, 1000, 0 },
    { "predict", "predict_resnet18", resnet18, 1, 3, 224, 1000, 0 },
    { "predict", "predict_resnet50", resnet50, 1, 3, 224, 1000, 0 },
    { "start", "start", cnn, 64, 1, 28, 10, 0 }
};

/* C = A B, m x k by k x n; a transposed operand lies the other way round in memory. */
typedef struct product { const char *name; int m, n, k, turn_a, turn_b; } product;
static const product products[] = {
    { "square_1024", 1024, 1024, 1024, 0, 0 },
    { "square_2048", 2048, 2048, 2048, 0, 0 },
    { "mlp_fc1", 64, 128, 784, 0, 1 },
    { "mlp_fc1_weight", 128, 784, 64, 1, 0 },
    { "cnn_conv1", 32, 784, 9, 0, 0 },
    { "cnn_conv2", 64, 196, 288, 0, 0 },
    { "cnn_conv2_weight", 64, 288, 196, 0, 1 },
    { "conv3x3_64_at_32", 64, 1024, 576, 0, 0 },
    { "conv3x3_256_at_8_weight", 256, 2304, 64, 0, 1 },
    { "alexnet_conv1", 64, 3025, 363, 0, 0 },
    { "alexnet_conv2", 192, 729, 1600, 0, 0 },
    { "alexnet_fc6", 32, 4096, 9216, 0, 1 },
    { "alexnet_fc6_data", 32, 9216, 4096, 0, 0 },
    { "alexnet_fc6_weight", 4096, 9216, 32, 1, 0 },
    { "vgg16_conv1_1", 64, 50176, 27, 0, 0 },
    { "vgg16_conv4_2", 512, 784, 4608, 0, 0 },
    { "resnet50_1x1_at_56", 256, 3136, 64, 0, 0 },
    { "resnet50_1x1_at_7", 2048, 49, 512, 0, 0 },
    { "gemv_fc6", 1, 4096, 9216, 0, 1 },
    { "gemv_1000", 1, 1000, 2048, 0, 1 }
};

/* Ops that memory bounds. streams: reads and writes of the map of x, in all its passes; pattern: which loop is alike. */
enum { READ, COPY, TRIAD, QUARTER, UPDATE };
typedef struct op_load { const char *name; int kind, variant, n, c, size, kernel; double streams; int pattern; } op_load;
static const op_load ops[] = {
    { "bn_stats", NNT_OP_BN_STATS, 0, 32, 64, 112, 0, 1, READ },
    { "bn_apply", NNT_OP_BN_APPLY, 0, 32, 64, 112, 0, 2, COPY },
    { "bn_grad", NNT_OP_BN_GRAD, 0, 32, 64, 112, 0, 5, TRIAD },
    { "bn_stats_1x1", NNT_OP_BN_STATS, 0, 128, 4096, 1, 0, 1, READ },
    { "bn_apply_1x1", NNT_OP_BN_APPLY, 0, 128, 4096, 1, 0, 2, COPY },
    { "bn_grad_1x1", NNT_OP_BN_GRAD, 0, 128, 4096, 1, 0, 5, TRIAD },
    { "relu", NNT_OP_ACT, NNT_ACT_RELU, 32, 64, 112, 0, 2, COPY },
    { "relu_grad", NNT_OP_ACT_GRAD, NNT_ACT_RELU, 32, 64, 112, 0, 3, TRIAD },
    { "add", NNT_OP_ADD, 0, 32, 64, 112, 0, 3, TRIAD },
    { "copy", NNT_OP_COPY, 0, 32, 64, 112, 0, 2, COPY },
    { "accumulate", NNT_OP_ACCUMULATE, 0, 32, 64, 112, 0, 3, TRIAD },
    { "maxpool_2", NNT_OP_MAXPOOL, 0, 32, 64, 112, 2, 1.3125, QUARTER },
    { "maxpool_2_grad", NNT_OP_MAXPOOL_GRAD, 0, 32, 64, 112, 2, 1.3125, COPY },
    { "avgpool_2", NNT_OP_AVGPOOL, 0, 32, 64, 112, 2, 1.25, QUARTER },
    { "avgpool_2_grad", NNT_OP_AVGPOOL_GRAD, 0, 32, 64, 112, 2, 1.25, COPY },
    { "global_avgpool", NNT_OP_ADAPTIVE, 0, 32, 64, 112, 112, 1, READ },
    { "global_avgpool_grad", NNT_OP_ADAPTIVE_GRAD, 0, 32, 64, 112, 112, 1, COPY },
    { "softmax", NNT_OP_SOFTMAX, 0, 128, 1000, 1, 0, 2, COPY },
    { "softmax_grad", NNT_OP_SOFTMAX_GRAD, 0, 128, 1000, 1, 0, 3, TRIAD },
    { "cross_entropy", NNT_OP_CROSS_ENTROPY, 0, 128, 1000, 1, 0, 2, COPY },
    { "dropout", NNT_OP_DROPOUT, 0, 32, 64, 112, 0, 2, COPY },
    { "noise", NNT_OP_NOISE, NNT_NOISE_GAUSSIAN, 32, 64, 112, 0, 2, COPY },
    { "adam", NNT_OP_UPDATE, 0, 1, 6400, 64, 0, 7, UPDATE },
    { "gradient_norm", NNT_OP_GRAD_NORM, 0, 1, 6400, 64, 0, 1, READ }
};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- timing ---- */

enum { TIMES = 400 };
typedef struct clock_of { double seconds[TIMES], began, lap; int count, least; } clock_of;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return 0.5 * (v[n / 2] + v[(n - 1) / 2]);
}
static void clock_begin(clock_of *c, int least)
{
    c->count = 0;
    c->least = least;
    c->began = c->lap = nnti_seconds();
}
/* Ends a lap; 1 while there shall be more: for a second, but at least so many. bench_torch.py does the same. */
static int clock_more(clock_of *c)
{
    double now = nnti_seconds();
    c->seconds[c->count++] = now - c->lap;
    c->lap = nnti_seconds();
    return c->count < TIMES && (now - c->began < 1.0 || c->count < c->least);
}

/* ---- limits of the machine ---- */

enum { PEAK_ROUNDS = 1000000 };
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
/* GFLOP/s of all threads: the best of some tries, since a thread may come late. */
static double peak(nnti_pool *pool)
{
    double flops[NNTI_MAX_THREADS], best = 0;
    int i, t, threads = nnti_pool_threads(pool);
    for (i = 0; i < 5; i++) {
        double start = nnti_seconds(), all = 0;
        nnti_parallel(pool, threads, peak_chunk, flops);
        for (t = 0; t < threads; t++) all += flops[t];
        all *= 1e-9 / (nnti_seconds() - start);
        if (all > best) best = all;
    }
    return best;
}

/* y = a (+ b) in the widest vectors, or a sum that only reads: what memory gives when nothing is computed. QUARTER writes a
   value of y for four of a, UPDATE adds a to three arrays: y and the two behind it. */
typedef struct stream { float *y; const float *a, *b; int64_t count; float sums[1024]; int pattern; } stream;
#if defined(NNTI_X86)
#  define STREAM_ATTRIBUTE NNTI_AVX2 __attribute__((optimize("O3")))
#else
#  define STREAM_ATTRIBUTE
#endif
STREAM_ATTRIBUTE static void stream_range(const void *arg, int64_t begin, int64_t end)
{
    const stream *s = (const stream *)arg;
    float *NNTI_RESTRICT y = s->y;
    const float *a = s->a, *b = s->b;
    float sum[64] = { 0 };
    int64_t i, k;
    if (s->pattern == READ) {
        for (i = begin; i + 64 <= end; i += 64) for (k = 0; k < 64; k++) sum[k] += a[i + k];
        for (k = 1; k < 64; k++) sum[0] += sum[k];
        ((stream *)arg)->sums[begin / NNTI_RANGE % 1024] = sum[0];
    } else if (s->pattern == TRIAD) {
        for (i = begin; i < end; i++) y[i] = a[i] + b[i];
    } else if (s->pattern == COPY) {
        for (i = begin; i < end; i++) y[i] = 2.0f * a[i];
    } else if (s->pattern == QUARTER) {
        for (i = begin; i + 64 <= end; i += 64)
            for (k = 0; k < 16; k++) y[i / 4 + k] = (a[i + k] + a[i + 16 + k]) + (a[i + 32 + k] + a[i + 48 + k]);
    } else {
        float *NNTI_RESTRICT m = s->y + s->count, *NNTI_RESTRICT v = m + s->count;
        for (i = begin; i < end; i++) {
            y[i] += a[i];
            m[i] += a[i];
            v[i] += a[i];
        }
    }
}
static double stream_gbytes(const nnti_exec *e, int pattern, float *y, const float *a, const float *b, int64_t count)
{
    static const double streams[] = { 1.0, 2.0, 3.0, 1.25, 7.0 };      /* of each pattern */
    static stream s;
    clock_of c;
    s.y = y;
    s.count = count;
    s.a = a;
    s.b = b;
    s.pattern = pattern;
    nnti_for_ranges(e, count, stream_range, &s);
    clock_begin(&c, 5);
    do nnti_for_ranges(e, count, stream_range, &s); while (clock_more(&c) && c.count < 60);
    return streams[pattern] * 4e-9 * (double)count / median(c.seconds, c.count);
}

/* ---- turns ---- */

static void say(const char *who, const char *name, int threads, double value)
{
    printf("%s %s %d %.5g\n", who, name, threads, value);
}

/* A step of training with Adam, or a prediction; for "start" only the first step, whose time the caller takes. */
static int net_turn(const net_load *load, int threads)
{
    const int pixels = load->channels * load->size * load->size, predict = strcmp(load->group, "predict") == 0;
    const int start = strcmp(load->group, "start") == 0;
    nnt_net *net = nnt_new(NULL);
    const nnt_allocator a = nnti_allocator(NULL);
    float *x = (float *)nnti_zalloc(&a, (size_t)(load->batch * pixels), sizeof *x), y[1000];
    int32_t labels[64];
    nnt_compile_desc d;
    nnt_batch batch;
    nnt_node logits;
    clock_of c;
    double flops = 0;
    int i, ok = 0;
    memset(&d, 0, sizeof d);
    memset(&batch, 0, sizeof batch);
    if (!x || !net) return 0;
    for (i = 0; i < load->batch * pixels; i++) x[i] = (float)(i % 997) / 997.0f;
    for (i = 0; i < load->batch; i++) labels[i] = i % load->classes;
    d.batch = batch.count = load->batch;
    d.threads = threads;
    d.optimizer = nnt_adam(1e-3f);
    if (predict) d.optimizer.kind = NNT_OPTIMIZER_NONE;
    batch.x = x;
    batch.labels = labels;
    logits = load->build(net, load->channels, load->size, load->size, load->classes);
    if (nnt_compile(net, predict ? logits : nnt_cross_entropy(logits), d)) goto done;
    clock_begin(&c, 2);
    for (i = 0; i == 0 || !start; i++) {
        if (predict ? nnt_predict(net, x, 1, y) : nnt_step(net, &batch, NULL)) goto done;
        if (i == 0) clock_begin(&c, 2);         /* the first one warms up */
        else if (!clock_more(&c)) break;
    }
    ok = 1;
    if (start) goto done;
    say("nntrain", load->name, threads, 1e3 * median(c.seconds, c.count));
    for (i = 0; i < (predict ? net->plan.predict.count : net->plan.train.count); i++)
        flops += (predict ? net->plan.predict.ops : net->plan.train.ops)[i].flops;
    say("flops", load->name, threads, 1e-9 * flops * load->batch);
    say("peak", load->name, threads, peak(((nnti_cpu *)net->on->device)->e.pool));
done:
    if (!ok) fprintf(stderr, "bench %s: %s\n", load->name, nnt_error(net));
    nnt_free(net);
    nnti_free(&a, x, (size_t)(load->batch * pixels) * sizeof *x);
    return ok;
}

static double product_flops(const product *p) { return 2e-9 * p->m * p->n * p->k; }
static float *product_operands(const product *p, const nnt_allocator *a, size_t *bytes)
{
    const size_t floats = (size_t)p->m * (size_t)p->k + (size_t)p->k * (size_t)p->n + (size_t)p->m * (size_t)p->n;
    float *x;
    size_t i;
    *bytes = floats * sizeof *x;
    x = (float *)nnti_alloc(a, *bytes);
    if (x) for (i = 0; i < floats; i++) x[i] = (float)(i % 997) / 997.0f - 0.5f;
    return x;
}
/* The layers' own way where the product is one of theirs, else the product as it is. */
static int product_turn(const product *p, int threads)
{
    const nnt_allocator a = nnti_allocator(NULL);
    nnti_exec e;
    nnt_op op;
    nnt_run run;
    clock_of c;
    size_t bytes, workspace_bytes;
    float *x = product_operands(p, &a, &bytes), *y, *z;
    void *workspace;
    int linear = p->turn_b && !p->turn_a && p->m <= 64;
    e.isa = nnti_isa_best();
    e.pool = nnti_pool_start(&a, threads);
    y = x + (size_t)p->m * (size_t)p->k;
    z = y + (size_t)p->k * (size_t)p->n;
    memset(&op, 0, sizeof op);
    memset(&run, 0, sizeof run);
    run.count = p->m;
    op.in_h = op.in_w = op.out_h = op.out_w = 1;
    op.in_c = p->k;
    op.out_c = p->n;
    op.at[NNT_X] = x;
    op.at[NNT_W] = y;
    op.at[NNT_Y] = z;
    if (linear) workspace_bytes = nnti_cpu_linear_workspace(&e, &op, p->m);
    else {
        const nnti_gemm g = nnti_gemm_new(&e, p->m, p->n, p->k);
        workspace_bytes = nnti_gemm_workspace(&e, &g);
    }
    workspace = nnti_zalloc(&a, 1, workspace_bytes);
    op.workspace = workspace;
    op.workspace_bytes = workspace_bytes;
    clock_begin(&c, 3);
    do {
        if (linear) nnti_cpu_linear(&e, &op, &run);
        else {
            nnti_gemm g = nnti_gemm_new(&e, p->m, p->n, p->k);
            const nnti_operand left = p->turn_a ? nnti_operand_matrix(x, p->m, 1, p->m) : nnti_operand_matrix(x, p->m, p->k, 1);
            g.b = p->turn_b ? nnti_operand_matrix(y, p->n, p->k, 1) : nnti_operand_matrix(y, p->n, 1, p->n);
            g.c = z;
            nnti_gemm_run(&e, &g, &left, workspace);
        }
    } while (clock_more(&c));
    say("nntrain", p->name, threads, product_flops(p) / median(c.seconds + (c.count > 2), c.count - (c.count > 2)));
    say("peak", p->name, threads, peak(e.pool));
    nnti_pool_stop(e.pool);
    nnti_free(&a, workspace, workspace_bytes);
    nnti_free(&a, x, bytes);
    return 1;
}
/* OpenBLAS is opened only when asked for: its threads would stand in the way of ours. */
static int openblas_turn(const product *p, int threads)
{
    typedef void (*set_fn)(int);
    typedef void (*sgemm_fn)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
    const nnt_allocator a = nnti_allocator(NULL);
    /* a processor younger than the library would else get the kernels for the oldest ones */
    void *library = nnti_isa_best() == NNTI_ISA_AVX512 && setenv("OPENBLAS_CORETYPE", "SkylakeX", 0) ? NULL : dlopen("libopenblas.so.0", RTLD_NOW);
    void *set_at = library ? dlsym(library, "openblas_set_num_threads") : NULL, *sgemm_at = library ? dlsym(library, "cblas_sgemm") : NULL;
    set_fn set;
    sgemm_fn sgemm;
    clock_of c;
    size_t bytes;
    float *x, *y;
    if (!set_at || !sgemm_at) return 1;
    memcpy(&set, &set_at, sizeof set);
    memcpy(&sgemm, &sgemm_at, sizeof sgemm);
    x = product_operands(p, &a, &bytes);
    y = x + (size_t)p->m * (size_t)p->k;
    set(threads);
    clock_begin(&c, 3);
    do sgemm(101, 111 + p->turn_a, 111 + p->turn_b, p->m, p->n, p->k, 1.0f, x, p->turn_a ? p->m : p->k, y, p->turn_b ? p->k : p->n, 0.0f,
             y + (size_t)p->k * (size_t)p->n, p->n);
    while (clock_more(&c));
    say("openblas", p->name, threads, product_flops(p) / median(c.seconds + (c.count > 2), c.count - (c.count > 2)));
    nnti_free(&a, x, bytes);
    return 1;
}

static int op_turn(const op_load *load, int threads)
{
    const nnt_allocator a = nnti_allocator(NULL);
    const int64_t values = (int64_t)load->n * load->c * load->size * load->size;
    const size_t bytes = (size_t)values * sizeof(float);
    const int weights = load->kind == NNT_OP_UPDATE || load->kind == NNT_OP_GRAD_NORM;
    float *memory = (float *)nnti_zalloc(&a, 5, bytes), *x[5];
    void *workspace;
    size_t workspace_bytes;
    nnti_exec e;
    nnti_cpu cpu;
    nnt_op op;
    nnt_run run;
    clock_of c;
    int64_t i;
    e.isa = nnti_isa_best();
    e.pool = nnti_pool_start(&a, threads);
    cpu.a = a;
    cpu.e = e;
    if (!memory || !e.pool) return 0;
    for (i = 0; i < 5; i++) x[i] = memory + i * values;
    for (i = 0; i < 2 * values; i++) memory[i] = (float)(i % 997) / 997.0f - 0.5f;
    memset(&op, 0, sizeof op);
    memset(&run, 0, sizeof run);
    run.count = load->n;
    run.grad_scale = 1;
    run.update = 10;
    run.optimizer = nnt_adam(1e-3f);
    op.kind = load->kind;
    op.variant = load->variant;
    op.in_c = op.out_c = load->c;
    op.in_h = op.in_w = op.out_h = op.out_w = load->size;
    op.kernel_h = op.kernel_w = op.stride_h = op.stride_w = load->kernel;
    if (load->kernel) op.out_h = op.out_w = load->size / load->kernel;
    op.count = values;
    op.f[0] = load->kind == NNT_OP_DROPOUT ? 0.5f : load->kind == NNT_OP_NOISE ? 0.1f : load->kind == NNT_OP_CROSS_ENTROPY ? 0.0f : 1e-5f;
    op.at[NNT_X] = x[0];
    op.at[NNT_X2] = op.at[NNT_GY] = op.at[NNT_GW] = x[1];
    op.at[NNT_Y] = op.at[NNT_GX] = x[2];
    op.at[NNT_AUX] = op.at[NNT_STATS] = op.at[NNT_M] = x[3];
    op.at[NNT_LABELS] = op.at[NNT_LOSS] = op.at[NNT_V] = x[4];
    if (load->kind == NNT_OP_ACT_GRAD || load->kind == NNT_OP_SOFTMAX_GRAD) op.at[NNT_Y] = x[0];
    if (load->kind == NNT_OP_CROSS_ENTROPY) op.at[NNT_LOSS] = x[3];
    if (weights) op.at[NNT_W] = x[0];
    else op.at[NNT_GW] = NULL;
    workspace_bytes = nnti_cpu_workspace(&cpu, &op, load->n);
    workspace = nnti_zalloc(&a, 1, workspace_bytes);
    op.workspace = workspace;
    op.workspace_bytes = workspace_bytes;
    nnti_cpu_run(&cpu, &op, 1, &run);
    clock_begin(&c, 5);
    do nnti_cpu_run(&cpu, &op, 1, &run); while (clock_more(&c) && c.count < 60);
    say("nntrain", load->name, threads, load->streams * 1e-9 * (double)bytes / median(c.seconds, c.count));
    say("stream", load->name, threads, stream_gbytes(&e, load->pattern, x[2], x[0], x[1], values));
    nnti_pool_stop(e.pool);
    nnti_free(&a, workspace, workspace_bytes);
    nnti_free(&a, memory, 5 * bytes);
    return 1;
}

/* Microseconds of a parallel region in which nothing happens. */
static void nothing(void *arg, int64_t chunk, int worker) { (void)arg; (void)chunk; (void)worker; }
static int region_turn(int threads)
{
    const nnt_allocator a = nnti_allocator(NULL);
    nnti_pool *pool = nnti_pool_start(&a, threads);
    clock_of c;
    int i;
    clock_begin(&c, 5);
    do for (i = 0; i < 100; i++) nnti_parallel(pool, 2 * threads, nothing, NULL); while (clock_more(&c));
    say("nntrain", "empty_region", threads, 1e6 / 100 * median(c.seconds, c.count));
    nnti_pool_stop(pool);
    return 1;
}

/* ---- the words ---- */

static int time_program(char **command)
{
    double start = nnti_seconds();
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        execvp(command[0], command);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || status) return 0;
    printf("%.3f\n", 1e3 * (nnti_seconds() - start));
    return 1;
}

static void list_if(int words, char **word, const char *group, const char *name, int threads, int *found)
{
    int i;
    for (i = 0; i < words; i++)
        if (strcmp(word[i], group) == 0 || strcmp(word[i], name) == 0) { found[i] = 1; break; }
    if (words == 0 || i < words) printf("%s %s %d\n", group, name, threads);
}
static int list(int words, char **word)
{
    int found[64] = { 0 }, i, t, all = nnti_core_count(), turns = all > 1 ? 2 : 1;
    if (words > 64) return 0;
    for (i = 0; i < COUNT(nets); i++)
        for (t = nets[i].alone ? 0 : turns - 1; t < turns; t++) list_if(words, word, nets[i].group, nets[i].name, t ? all : 1, found);
    for (t = 0; t < turns; t++) for (i = 0; i < COUNT(products); i++) list_if(words, word, "gemm", products[i].name, t ? all : 1, found);
    for (i = 0; i < COUNT(ops); i++) list_if(words, word, "ops", ops[i].name, all, found);
    list_if(words, word, "threads", "empty_region", all, found);
    for (i = 0; i < words; i++)
        if (!found[i]) { fprintf(stderr, "bench: no workload or group '%s'; the groups: step predict start gemm ops threads\n", word[i]); return 0; }
    return 1;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    int i, threads, ok = -1;
    if (strcmp(name, "list") == 0) return !list(argc - 2, argv + 2);
    if (strcmp(name, "time") == 0 && argc > 2) return !time_program(argv + 2);
    if (strcmp(name, "openblas") == 0 && argc > 3) {
        for (i = 0; i < COUNT(products); i++) if (strcmp(argv[2], products[i].name) == 0) return !openblas_turn(&products[i], atoi(argv[3]));
        return 2;
    }
    threads = argc > 2 ? atoi(argv[2]) : 0;
    for (i = 0; i < COUNT(nets); i++)     if (strcmp(name, nets[i].name) == 0)     ok = net_turn(&nets[i], threads);
    for (i = 0; i < COUNT(products); i++) if (strcmp(name, products[i].name) == 0) ok = product_turn(&products[i], threads);
    for (i = 0; i < COUNT(ops); i++)      if (strcmp(name, ops[i].name) == 0)      ok = op_turn(&ops[i], threads);
    if (strcmp(name, "empty_region") == 0) ok = region_turn(threads);
    if (ok < 0) fprintf(stderr, "usage: bench list [WORD...] | NAME THREADS | openblas NAME THREADS | time COMMAND...\n");
    return ok < 0 ? 2 : !ok;
}
