/* test_cuda.c - the device "cuda" (nntrain_cuda.cu) against the device "cpu": every op on its own, whole training runs,
   the same bits again and again, and everything that can fail made to fail.

   Compiled with cuda_on_cpu.h in every run of the tests, and with nvcc and NNT_TEST_ON_DEVICE by device_check.sh, where
   the cases that need the emulator are skipped. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"
#if defined(__GNUC__)
#  pragma GCC diagnostic ignored "-Wunused-function"       /* of naive.h */
#endif
#include "naive.h"
#ifndef NNT_TEST_ON_DEVICE
#  include "cuda_on_cpu.h"
#endif
#ifdef NNT_TEST_PART
#  define PART 1            /* another compiler's build: every op, and every order of threads and streams */
#else
#  define PART 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(COC_RACE) || PART
#  define SLOW 1            /* builds that look at a part of what one plain one does, most of which take 5 to 10 times as long */
#else
#  define SLOW 0
#endif

static uint32_t random_state = 1;
static uint32_t random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;       /* Numerical Recipes' generator */
    return random_state >> 8;
}
static int random_int(int low, int high) { return low + (int)(random_bits() % (uint32_t)(high - low + 1)); }
static float random_float(void) { return (float)random_bits() / 8388608.0f - 1.0f; }

/* What nets on other devices than "cpu" are compiled with. */
static int precision_now = NNT_FP32;

static const nnt_backend *cuda;
static void find_cuda(void)
{
    int i;
    for (i = 0; i < NNTI_MAX_BACKENDS && nnti_backends[i]; i++)
        if (strcmp(nnti_backends[i]->name, "cuda") == 0) cuda = nnti_backends[i];
}

/* ============================================================================
   A device that does every op twice: on the CPU, whose kernels are held against loops in double precision by other
   tests, and on the GPU, from the same operands. Each operand is an allocation of its own there, of just its size, so
   that nothing outside is read or written; what the op has to write is not uploaded.
   ============================================================================ */

/* Norm of the difference over the norm. The CPU's kernels are within 1e-6 of double loops (2e-6 for gradients: see
   test_conv.c), so that this keeps the GPU's within 1e-5 of them. Convolutions are exact on the CPU for that: the GPU's
   Winograd beside the CPU's would be the sum of two errors. */
static const double OP_LIMIT = 8e-6;

enum { MOST_BATCH = 8 };
typedef struct judge { void *cpu, *gpu; } judge;
static void *judges_gpu;                    /* opened once */
static int judged[NNT_OP_KINDS], judged_half[NNT_OP_KINDS], judged_flags[NNT_OP_KINDS];
static double worst[NNT_OP_KINDS], worst_half[NNT_OP_KINDS], worst_short;   /* worst_short: of products in TF32 */

static int multiplies(int kind) { return kind >= NNT_OP_CONV && kind <= NNT_OP_LINEAR_WEIGHT; }
static int is_half(const nnt_op *op) { return (op->flags & NNT_OPF_HALF) != 0; }
/* Groups of so few channels have kernels of their own, which multiply with the weights as they are. */
static int is_direct(const nnt_op *op)
{
    return op->groups > 1 && (op->in_c / op->groups < 16 || op->out_c / op->groups < 16);
}

static nnt_op exact(const nnt_op *op)
{
    nnt_op e = *op;
    if (e.kind >= NNT_OP_CONV && e.kind <= NNT_OP_CONV_POOL_WEIGHT) e.flags |= NNT_OPF_EXACT;
    return e;
}

static int64_t in_values(const nnt_op *op)  { return (int64_t)op->in_c * op->in_h * op->in_w; }
static int64_t out_values(const nnt_op *op) { return (int64_t)op->out_c * op->out_h * op->out_w; }
static int is_batchnorm(int kind) { return kind >= NNT_OP_BN_STATS && kind <= NNT_OP_BN_POOL_GRAD; }
static int of_bytes(const nnt_op *op) { return op->kind == NNT_OP_CONVERT || (op->flags & NNT_OPF_BYTES) != 0; }
/* Whether the values of a role are stored in bfloat16. */
static int role_is_half(const nnt_op *op, int role)
{
    if (!is_half(op)) return 0;
    switch (role) {
    case NNT_X: return !of_bytes(op) && !(op->flags & NNT_OPF_FLOAT_X);
    case NNT_Y: return !(op->flags & NNT_OPF_FLOAT_Y);
    default:    return role == NNT_X2 || role == NNT_MASK || role == NNT_GY || role == NNT_GX;
    }
}
static int is_flat(int kind) { return kind == NNT_OP_GRAD_NORM || kind == NNT_OP_UPDATE; }

static int64_t weight_values(const nnt_op *op)
{
    if (is_flat(op->kind)) return op->count;
    if (is_batchnorm(op->kind) || op->kind == NNT_OP_CROSS_ENTROPY) return op->in_c;
    if (op->kind >= NNT_OP_LINEAR && op->kind <= NNT_OP_LINEAR_WEIGHT) return in_values(op) * out_values(op);
    return (int64_t)op->out_c * (op->in_c / op->groups) * op->kernel_h * op->kernel_w;
}
/* Bytes of an index into a window of a pooling. */
static int64_t index_bytes(const nnt_op *op)
{
    const int alone = op->kind == NNT_OP_MAXPOOL || op->kind == NNT_OP_MAXPOOL_GRAD;
    return (alone ? op->kernel_h * op->kernel_w : op->pool_kernel_h * op->pool_kernel_w) > 256 ? 4 : 1;
}
static size_t operand_bytes(const nnt_op *op, int role, int n)
{
    const int64_t f = (int64_t)sizeof(float), v = role_is_half(op, role) ? 2 : f;
    switch (role) {
    case NNT_X:       return (size_t)((of_bytes(op) ? 1 : v) * n * in_values(op));
    case NNT_TARGETS: return (size_t)(f * n * in_values(op));
    case NNT_X2:
    case NNT_MASK:
    case NNT_GX:      return (size_t)(v * n * in_values(op));
    case NNT_Y:
    case NNT_GY:      return (size_t)(v * n * out_values(op));
    case NNT_AUX:     return (size_t)(index_bytes(op) * n * out_values(op));
    case NNT_W:
    case NNT_GW:      return (size_t)(f * weight_values(op));
    case NNT_B:
    case NNT_GB:      return (size_t)(f * (is_batchnorm(op->kind) ? op->in_c : op->out_c));
    case NNT_M:
    case NNT_V:       return (size_t)(f * op->count);
    case NNT_STATS:   return (size_t)(f * (of_bytes(op) ? 2 : 3) * op->in_c);
    case NNT_RUNNING: return (size_t)(f * 2 * op->in_c);
    case NNT_LABELS:  return (size_t)n * sizeof(int32_t);
    default:          return op->kind == NNT_OP_GRAD_NORM ? sizeof(double) : sizeof(nnt_loss);
    }
}
/* Whether the op writes all of an operand and reads nothing of it. */
static int only_written(const nnt_op *op, int role, const nnt_run *run)
{
    switch (role) {
    case NNT_Y:     return op->kind != NNT_OP_ACCUMULATE && op->kind != NNT_OP_CONCAT && op->kind != NNT_OP_ACT_GRAD
                           && op->kind != NNT_OP_SOFTMAX_GRAD;
    case NNT_GX:    return !(op->flags & NNT_OPF_ACCUMULATE);
    case NNT_GW:
    case NNT_GB:    return !is_flat(op->kind) && !run->accumulate;
    case NNT_AUX:   return op->kind == NNT_OP_MAXPOOL || op->kind == NNT_OP_CONV_POOL || op->kind == NNT_OP_BN_POOL;
    case NNT_STATS: return op->kind == NNT_OP_BN_STATS;
    case NNT_LOSS:  return 1;
    default:        return 0;
    }
}
/* Ops that compute nothing that could round differently, and random numbers. */
static int has_to_be_equal(int kind)
{
    return kind == NNT_OP_COPY || kind == NNT_OP_CONVERT || kind == NNT_OP_MAXPOOL || kind == NNT_OP_DROPOUT || kind == NNT_OP_NOISE
           || kind == NNT_OP_NOISE_GRAD || kind == NNT_OP_CONCAT || kind == NNT_OP_CONCAT_GRAD;
}

/* ---- bfloat16: a float's upper half, rounded to nearest even */

static const double HALF = 1.0 / 256;       /* how far rounding takes a value, by its size: 8 significant bits */

static uint16_t to_half(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
static float from_half(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static float *widened(const void *halves, size_t count)
{
    float *x = (float *)malloc(count * sizeof *x + 1);
    size_t i;
    for (i = 0; i < count; i++) x[i] = from_half(((const uint16_t *)halves)[i]);
    return x;
}
static float *rounded(const float *from, size_t count)
{
    float *x = (float *)malloc(count * sizeof *x + 1);
    size_t i;
    for (i = 0; i < count; i++) x[i] = from_half(to_half(from[i]));
    return x;
}
static int without_epilogue;                /* cublasLt is not asked to add a linear layer's bias */

/* How often what an op leaves in a role has been rounded to bfloat16, the operands being what they are: as it is stored,
   and before. Norms of errors; terms of a sum that are rounded one by one count as if none cancelled another. */
static double roundings_of(const nnt_op *op, int role)
{
    const int overlap = op->pool_stride_h < op->pool_kernel_h || op->pool_stride_w < op->pool_kernel_w;
    const double taps = sqrt((double)op->kernel_h * op->kernel_w);
    switch (op->kind) {
    case NNT_OP_CONV:             return is_direct(op) ? 1 : 2.25;          /* product p, y = p + b: u (|y| + |p|), |p| <= |y| + |b| */
    case NNT_OP_LINEAR:           return without_epilogue ? 2.25 : 1.42;    /* y, and the bias: u (|y| + |b|) <= u sqrt(2) sqrt(y^2 + b^2) */
    case NNT_OP_CONV_DATA:        return is_direct(op) ? 1 : 1 + taps;      /* the columns */
    case NNT_OP_CONV_POOL_DATA:   return is_direct(op) ? 2 : 1 + taps + overlap;    /* the map: sums where windows overlap */
    case NNT_OP_CONV_POOL_WEIGHT: return overlap;
    default:                      return role_is_half(op, role);
    }
}
static double limit_of(const nnt_op *op, int role)
{
    if (is_half(op)) return OP_LIMIT + HALF * roundings_of(op, role);
    /* two factors rounded to 11 significant bits are off by 2^-11 of themselves at most, each */
    return multiplies(op->kind) && op->precision == NNT_TF32 ? 2.0 / 2048 : OP_LIMIT;
}

/* Operands that lie at one address are one copy. Copies begin where the library's do: at multiples of 64 bytes only.
   wide: what the CPU gets in its place, if that is not host: bfloat16 as floats, factors rounded. */
typedef struct copy { int role, upload; char *host, *device; float *wide; size_t bytes; } copy;
enum { OFF_BY = 64 };

static int collect(const nnt_op *op, const nnt_run *run, copy copies[NNT_ROLES])
{
    int role, i, count = 0;
    for (role = 0; role < NNT_ROLES; role++) {
        if (!op->at[role] || (op->kind == NNT_OP_UPDATE && role == NNT_LOSS)) continue;     /* left over from GRAD_NORM */
        for (i = 0; i < count && copies[i].host != op->at[role]; i++) { }
        if (i == count) {
            memset(&copies[count++], 0, sizeof copies[0]);
            copies[i].role = role;
            copies[i].host = (char *)op->at[role];
        }
        copies[i].bytes = operand_bytes(op, role, run->count) > copies[i].bytes ? operand_bytes(op, role, run->count) : copies[i].bytes;
        if (!only_written(op, role, run)) copies[i].upload = 1;
    }
    return count;
}
static char *take(judge *j, size_t bytes)
{
    char *p = (char *)cuda->alloc(j->gpu, bytes + OFF_BY);
    if (!p) { printf("out of memory on the GPU: %s\n", cuda->error(j->gpu)); exit(1); }
    return p + OFF_BY;
}
static void give(judge *j, char *p, size_t bytes) { cuda->release(j->gpu, p - OFF_BY, bytes + OFF_BY); }

/* Norm of the difference over that of want, or over `size` if that is larger. */
static double error_of(const float *got, const float *want, size_t n, double size)
{
    double d = 0, s = size * size;
    size_t i;
    for (i = 0; i < n; i++) {
        if (!nnti_finite(got[i])) return 1e30;
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        s += (double)want[i] * want[i];
    }
    return s > 0 ? sqrt(d / s) : sqrt(d);
}
static double relative(double got, double want) { return fabs(got - want) / (fabs(want) > 1e-30 ? fabs(want) : 1); }
static double loss_error(const nnt_loss *got, const nnt_loss *want)
{
    if (got->correct < want->correct || got->correct > want->correct || got->correct5 < want->correct5
        || got->correct5 > want->correct5 || got->samples < want->samples || got->samples > want->samples) return 1e30;
    return nnti_max_double(relative(got->sum, want->sum), relative(got->weight, want->weight));
}
/* Gradients of a bias are sums over many values, which can cancel: in front of a batch norm they are 0 but for rounding.
   Norm of the sums of their magnitudes, if all filters' are the same. */
static double size_of_sums(const nnt_op *op, int n)
{
    const float *gy = (const float *)op->at[NNT_GY];
    const int64_t count = n * out_values(op);
    double sum = 0;
    int64_t i;
    for (i = 0; i < count; i++) sum += fabs((double)gy[i]);
    return sum / sqrt((double)op->out_c);
}
/* Norm of the bias as it is added to each position, 0 without one. */
static double size_of_bias(const nnt_op *op, int n)
{
    const float *b = (const float *)op->at[NNT_B];
    double sum = 0;
    int c;
    if (!b || (op->kind != NNT_OP_CONV && op->kind != NNT_OP_LINEAR)) return 0;
    for (c = 0; c < op->out_c; c++) sum += (double)b[c] * b[c];
    return sqrt(sum * n * op->out_h * op->out_w);
}
/* The same of values that are stored in bfloat16. */
static double half_error(const nnt_op *op, int n, const copy *c, const void *halves)
{
    const size_t count = c->bytes / 2;
    float *got = widened(halves, count);
    double error = 0;
    size_t i;
    if (!has_to_be_equal(op->kind)) error = error_of(got, c->wide, count, c->role == NNT_Y ? size_of_bias(op, n) : 0);
    else for (i = 0; i < count; i++) if (((const uint16_t *)halves)[i] != to_half(c->wide[i])) error = 1e30;
    free(got);
    return error;
}
/* How far what the GPU left in an operand is from what the CPU left there. op: as the CPU has done it. */
static double operand_error(const nnt_op *stored, const nnt_op *op, int n, const copy *c, const void *got)
{
    if (role_is_half(stored, c->role)) return half_error(op, n, c, got);
    if (memcmp(got, c->host, c->bytes) == 0) return 0;
    if (has_to_be_equal(op->kind) || c->role == NNT_AUX || c->role == NNT_LABELS) return 1e30;
    if (c->role == NNT_LOSS && op->kind == NNT_OP_GRAD_NORM) return relative(*(const double *)got, *(const double *)(void *)c->host);
    if (c->role == NNT_LOSS) return loss_error((const nnt_loss *)got, (const nnt_loss *)(void *)c->host);
    return error_of((const float *)got, (const float *)(void *)c->host, c->bytes / sizeof(float),
                    c->role == NNT_GB ? size_of_sums(op, n) : 0);
}
static void compare(judge *j, const nnt_op *op, const nnt_op *on_cpu, const nnt_run *run, const copy *c)
{
    void *got = malloc(c->bytes);
    double error = 1e30, *most = is_half(op) ? &worst_half[op->kind] : op->precision == NNT_TF32 ? &worst_short : &worst[op->kind];
    if (cuda->download(j->gpu, got, c->device, c->bytes) == NNT_OK) error = operand_error(op, on_cpu, run->count, c, got);
    free(got);
    *most = nnti_max_double(*most, error);
    CHECKF(error <= limit_of(op, c->role), "op kind %d flags %d variant %d role %d: error %g; n %d, in %dx%dx%d, out %dx%dx%d, kernel %dx%d "
           "stride %dx%d pad %dx%d dilation %dx%d groups %d", op->kind, op->flags, op->variant, c->role, error, run->count, op->in_c,
           op->in_h, op->in_w, op->out_c, op->out_h, op->out_w, op->kernel_h, op->kernel_w, op->stride_h, op->stride_w, op->pad_h,
           op->pad_w, op->dilation_h, op->dilation_w, op->groups);
}
/* The op as the CPU can do it, on floats, and convolutions with sums of products as written. */
static nnt_op widened_op(const nnt_op *op, copy *copies, int count)
{
    nnt_op wide = exact(op);
    int i, role;
    wide.flags &= ~(NNT_OPF_HALF | NNT_OPF_FLOAT_X | NNT_OPF_FLOAT_Y);
    for (i = 0; i < count; i++) {
        copy *c = &copies[i];
        if (role_is_half(op, c->role)) c->wide = widened(c->host, c->bytes / 2);
        else if (is_half(op) && c->role == NNT_W && multiplies(op->kind) && !is_direct(op)) c->wide = rounded((const float *)(void *)c->host, c->bytes / sizeof(float));
        for (role = 0; role < NNT_ROLES && c->wide; role++) if (op->at[role] == c->host) wide.at[role] = c->wide;
    }
    return wide;
}
static void round_and_free(const nnt_op *op, copy *c)
{
    size_t i;
    if (c->wide && role_is_half(op, c->role))
        for (i = 0; i < c->bytes / 2; i++) ((uint16_t *)(void *)c->host)[i] = to_half(c->wide[i]);
    free(c->wide);
}
static nnt_result judge_op(judge *j, const nnt_op *op, const nnt_run *run)
{
    nnt_op twin = *op, wide;
    copy copies[NNT_ROLES];
    const int count = collect(op, run, copies);
    const size_t workspace = cuda->workspace ? cuda->workspace(j->gpu, op, MOST_BATCH) : 0;
    nnt_result r = NNT_OK;
    int i, role;
    twin.workspace_bytes = workspace;
    twin.workspace = workspace ? take(j, workspace) : NULL;
    for (i = 0; i < count; i++) {
        copies[i].device = take(j, copies[i].bytes);
        if (copies[i].upload && !r) r = cuda->upload(j->gpu, copies[i].device, copies[i].host, copies[i].bytes);
        for (role = 0; role < NNT_ROLES; role++) if (op->at[role] == copies[i].host) twin.at[role] = copies[i].device;
    }
    if (!r) r = cuda->run(j->gpu, &twin, 1, run);
    wide = widened_op(op, copies, count);
    if (!r) r = nnti_cpu_backend.run(j->cpu, &wide, 1, run);
    for (i = 0; i < count; i++) if (!r) compare(j, op, &wide, run, &copies[i]);
    for (i = 0; i < count; i++) {
        round_and_free(op, &copies[i]);
        give(j, copies[i].device, copies[i].bytes);
    }
    if (workspace) give(j, (char *)twin.workspace, workspace);
    judged[op->kind]++;
    judged_half[op->kind] += is_half(op);
    judged_flags[op->kind] |= op->flags;
    return r;
}

static nnt_result judge_open(const nnt_allocator *a, int index, int threads, void **device, char *why, size_t cap)
{
    judge *j = (judge *)calloc(1, sizeof *j);
    nnt_result r = nnti_cpu_backend.open(a, 0, threads, &j->cpu, why, cap);
    if (!r && !judges_gpu) r = cuda->open(a, index, threads, &judges_gpu, why, cap);
    j->gpu = judges_gpu;
    *device = j;
    return r;
}
static void judge_close(void *device)
{
    judge *j = (judge *)device;
    nnti_cpu_backend.close(j->cpu);
    free(j);
}
static void *judge_cpu(void *device) { return ((judge *)device)->cpu; }
static void *judge_alloc(void *device, size_t bytes) { return nnti_cpu_backend.alloc(judge_cpu(device), bytes); }
static void judge_release(void *device, void *p, size_t bytes) { nnti_cpu_backend.release(judge_cpu(device), p, bytes); }
static nnt_result judge_transfer(void *device, void *to, const void *from, size_t bytes) { return nnti_cpu_transfer(judge_cpu(device), to, from, bytes); }
static nnt_result judge_fill(void *device, void *to, float value, int64_t count) { return nnti_cpu_backend.fill(judge_cpu(device), to, value, count); }
static size_t judge_workspace(void *device, const nnt_op *op, int batch)
{
    const nnt_op reference = exact(op);
    return nnti_cpu_backend.workspace(judge_cpu(device), &reference, batch);
}
static nnt_result judge_run(void *device, const nnt_op *ops, int count, const nnt_run *run)
{
    nnt_result r = NNT_OK;
    int i;
    for (i = 0; i < count && !r; i++) r = judge_op((judge *)device, &ops[i], run);
    return r;
}
static const char *judge_error(void *device) { return cuda->error(((judge *)device)->gpu); }
static nnt_result judge_random(void *device, float *to, int64_t count, int kind, float a, float b, uint64_t seed)
{
    return nnti_cpu_backend.random(judge_cpu(device), to, count, kind, a, b, seed);
}
static nnt_result judge_axpby(void *device, float *y, float a, const float *x, float b, const float *z, int64_t count)
{
    return nnti_cpu_backend.axpby(judge_cpu(device), y, a, x, b, z, count);
}
static int judge_count(void) { return 1; }
static int judge_supports(void *device, const nnt_op *op) { return !cuda->supports || cuda->supports(((judge *)device)->gpu, op); }
static int judge_precision(void *device, int precision) { return cuda->precision(((judge *)device)->gpu, precision); }
static nnt_backend judge_backend;           /* optional members stay NULL */
static void register_judge(void)
{
    nnt_backend *b = &judge_backend;
    b->abi = NNT_BACKEND_ABI;
    b->name = "judge";
    b->count = judge_count;
    b->open = judge_open;
    b->close = judge_close;
    b->alloc = judge_alloc;
    b->release = judge_release;
    b->upload = b->download = judge_transfer;
    b->fill = judge_fill;
    b->supports = judge_supports;
    b->workspace = judge_workspace;
    b->run = judge_run;
    b->error = judge_error;
    b->random = judge_random;
    b->axpby = judge_axpby;
    b->precision = judge_precision;
    nnt_backend_register(b);
}

/* ---- nets for it ---- */

/* Two classes of input: values of a picture, or the number 1 in front of a layer of given size, whose weights are what
   the next layer gets, so that a gradient of the data is asked for. */
static nnt_node start(int channels, int height, int width)
{
    nnt_linear_desc d;
    memset(&d, 0, sizeof d);
    d.features = channels * height * width;
    d.init = NNT_INIT_XAVIER_UNIFORM;
    return nnt_reshape(nnt_linear_ex(nnt_input(nnt_new(NULL), 3, 1, 1), d), channels, height, width);
}
static nnt_compile_desc build(const char *device, int batch, nnt_optimizer o)
{
    nnt_compile_desc d;
    memset(&d, 0, sizeof d);
    d.batch = batch;
    d.threads = 1;
    d.seed = 7;
    d.device = device;
    d.optimizer = o;
    if (strcmp(device, "cpu") != 0) d.precision = precision_now;
    return d;
}
/* Random input and targets or labels, of as many samples as the judge sees at most. */
typedef struct sample_set { float *x, *targets; int32_t *labels; int64_t in, out; } sample_set;
static sample_set samples_for(const nnt_net *net, int count)
{
    sample_set s;
    int64_t i;
    s.in = nnti_node_volume(net, net->input);
    s.out = nnti_node_volume(net, net->output_node);
    s.x = (float *)malloc((size_t)(s.in * count) * sizeof(float));
    s.targets = (float *)malloc((size_t)(s.out * count) * sizeof(float));
    s.labels = (int32_t *)malloc((size_t)count * sizeof(int32_t));
    for (i = 0; i < s.in * count; i++) s.x[i] = random_float();
    for (i = 0; i < s.out * count; i++) s.targets[i] = random_float();
    for (i = 0; i < count; i++) s.labels[i] = random_int(0, net->nodes[net->output_node].shape[0] - 1);
    return s;
}
static void free_samples(sample_set s)
{
    free(s.x);
    free(s.targets);
    free(s.labels);
}
static nnt_batch batch_of(const sample_set *s, int first, int count)
{
    nnt_batch b;
    memset(&b, 0, sizeof b);
    b.x = s->x + s->in * first;
    b.targets = s->targets + s->out * first;
    b.labels = s->labels + first;
    b.count = count;
    return b;
}
/* Trains on a whole and on a smaller batch, and predicts; frees the net. */
static void judge_net(nnt_node loss, int batch, nnt_compile_desc d)
{
    nnt_net *net = loss.net;
    nnt_result r = nnt_compile(net, loss, d);
    CHECKF(r == NNT_OK, "%s", nnt_error(net));
    if (!r) {
        sample_set s = samples_for(net, batch);
        nnt_batch whole = batch_of(&s, 0, batch), part = batch_of(&s, 0, batch > 2 ? batch - 1 : batch);
        float *y = (float *)malloc((size_t)(s.out * batch) * sizeof *y);
        r = nnt_step(net, &whole, NULL);
        if (!r) r = nnt_step(net, &part, NULL);
        if (!r) r = nnt_predict(net, s.x, part.count, y);
        CHECKF(r == NNT_OK, "%s", nnt_error(net));
        free(y);
        free_samples(s);
    }
    nnt_free(net);
}
static void judge_mse(nnt_node x, int batch) { judge_net(nnt_mse(x), batch, build("judge", batch, nnt_sgd(0.05f))); }

static nnt_conv_desc conv(int filters, int kernel, int stride, int pad)
{
    nnt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.filters = filters;
    d.kernel = kernel;
    d.stride = stride;
    d.pad = pad;
    return d;
}
static void judge_conv(int batch, int c, int h, int w, nnt_conv_desc d) { judge_mse(nnt_conv2d_ex(start(c, h, w), d), batch); }

static void convolutions(void)
{
    nnt_conv_desc d;
    judge_conv(2, 3, 7, 9, conv(5, 3, 1, 1));
    judge_conv(3, 4, 8, 8, conv(6, 3, 2, 1));
    judge_conv(2, 2, 9, 9, conv(3, 5, 2, 2));
    judge_conv(2, 8, 6, 6, conv(16, 1, 1, 0));
    judge_conv(2, 8, 6, 7, conv(4, 1, 2, 0));
    judge_conv(1, 3, 23, 23, conv(8, 11, 4, 2));
    judge_conv(1, 3, 20, 20, conv(4, 7, 2, 3));
    judge_conv(2, 2, 5, 5, conv(3, 5, 1, 0));       /* as large as the input */
    judge_conv(2, 2, 4, 4, conv(3, 2, 3, 0));       /* smaller than the stride */
    judge_conv(2, 1, 3, 3, conv(1, 1, 1, 2));       /* padding beyond the kernel */
    judge_conv(1, 33, 4, 4, conv(65, 3, 1, 1));     /* around the warps' and tiles' sizes */
    judge_conv(8, 31, 3, 3, conv(33, 3, 1, 1));
    d = conv(4, 3, 1, 1);
    d.kernel_w = 5; d.stride_w = 2; d.pad_w = 2;
    judge_conv(2, 3, 6, 8, d);
    d = conv(4, 3, 1, 2);
    d.dilation = 2; d.no_bias = 1;
    judge_conv(2, 3, 9, 8, d);
    d.dilation_w = 3; d.pad_w = 3;
    judge_conv(2, 3, 9, 9, d);
    d = conv(6, 3, 1, 1);
    d.groups = 2;
    judge_conv(2, 4, 6, 6, d);
    d.groups = 6;                                   /* depthwise */
    judge_conv(3, 6, 7, 5, d);
    d = conv(12, 3, 2, 1);
    d.groups = 6;                                   /* two filters a channel */
    judge_conv(2, 6, 8, 8, d);
}
static void random_convolutions(void)
{
    int i;
    random_state = 5;
    for (i = 0; i < (SLOW || precision_now == NNT_BF16 ? 12 : 60); i++) {
        const int groups = random_int(0, 2) ? 1 : random_int(2, 3);
        nnt_conv_desc d = conv(groups * random_int(1, 6), random_int(1, 4), random_int(1, 3), random_int(0, 2));
        d.kernel_w = random_int(1, 4);
        d.stride_w = random_int(1, 3);
        d.pad_w = random_int(0, 1) ? random_int(1, 2) : NNT_NO_PAD;
        d.dilation = random_int(1, 2);
        d.dilation_w = random_int(1, 2);
        d.groups = groups;
        d.no_bias = random_int(0, 1);
        judge_conv(random_int(1, 4), groups * random_int(1, 5), random_int(7, 11), random_int(7, 11), d);
    }
}
/* ---- Winograd's products, for which most layers above are too small ---- */

static void *alone(void)                    /* the device that the judge has, or will have */
{
    const nnt_allocator a = nnti_allocator(NULL);
    char why[200];
    if (!judges_gpu && cuda->open(&a, 0, 1, &judges_gpu, why, sizeof why)) { printf("%s\n", why); exit(1); }
    return judges_gpu;
}
/* The op from operands of the host, of which it gets `result` back. Workspace is for `batch` samples. */
static void run_alone(nnt_op op, int count, int batch, int accumulate, int result)
{
    judge j = { NULL, alone() };
    copy copies[NNT_ROLES];
    nnt_run run;
    nnt_result r = NNT_OK;
    int i, role, copied;
    nnt_op twin = op;
    memset(&run, 0, sizeof run);
    run.count = count;
    run.accumulate = accumulate;
    copied = collect(&op, &run, copies);
    twin.workspace_bytes = cuda->workspace(j.gpu, &op, batch);
    twin.workspace = twin.workspace_bytes ? take(&j, twin.workspace_bytes) : NULL;
    for (i = 0; i < copied; i++) {
        copies[i].device = take(&j, copies[i].bytes);
        if (copies[i].upload && !r) r = cuda->upload(j.gpu, copies[i].device, copies[i].host, copies[i].bytes);
        for (role = 0; role < NNT_ROLES; role++) if (op.at[role] == copies[i].host) twin.at[role] = copies[i].device;
    }
    if (!r) r = cuda->run(j.gpu, &twin, 1, &run);
    if (!r) r = cuda->download(j.gpu, op.at[result], twin.at[result], operand_bytes(&op, result, count));
    CHECKF(r == NNT_OK, "%s", cuda->error(j.gpu));
    for (i = 0; i < copied; i++) give(&j, copies[i].device, copies[i].bytes);
    if (twin.workspace) give(&j, (char *)twin.workspace, twin.workspace_bytes);
}
static nnt_op conv_op(int kind, const naive_conv *s, int flags)
{
    nnt_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.flags = flags;
    op.in_c = s->c; op.in_h = s->h; op.in_w = s->w;
    op.out_c = s->f; op.out_h = naive_conv_out_h(s); op.out_w = naive_conv_out_w(s);
    op.kernel_h = s->kh; op.kernel_w = s->kw; op.stride_h = s->sh; op.stride_w = s->sw;
    op.pad_h = s->ph; op.pad_w = s->pw; op.dilation_h = s->dh; op.dilation_w = s->dw; op.groups = s->g;
    op.batch = 1 << 20;                     /* as in a plan for so many: small shapes go by Winograd then, too */
    return op;
}
static naive_conv conv_3x3(int n, int c, int h, int w, int f, int pad_h, int pad_w)
{
    naive_conv s = { n, c, h, w, f, 3, 3, 1, 1, pad_h, pad_w, 1, 1, 1 };
    return s;
}
static size_t conv_in(const naive_conv *s) { return (size_t)(s->c * s->h * s->w); }        /* values of a sample */
static size_t conv_out(const naive_conv *s) { return (size_t)(s->f * naive_conv_out_h(s) * naive_conv_out_w(s)); }
static size_t conv_weights(const naive_conv *s) { return (size_t)(s->f * (s->c / s->g) * s->kh * s->kw); }

static float *random_floats(size_t n)
{
    float *x = (float *)malloc(n * sizeof *x);
    size_t i;
    for (i = 0; i < n; i++) x[i] = random_float();
    return x;
}
static double distance(const float *got, const double *want, size_t n)      /* norm of the difference over the norm */
{
    double d = 0, size = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        if (!nnti_finite(got[i])) return 1e30;
        d += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return size > 0 ? sqrt(d / size) : sqrt(d);
}
enum { BIAS = 1, RELU = 2, ADDED = 4, MASKED = 8, OVER = 16, PARTIAL = 32, EVERY_OPTION = 64 };     /* OVER: MASKED, not ADDED */

/* Rounding of Winograd's transforms comes to that of sums: the bounds that the CPU's are held to (docs/speed.md), beside
   loops in double precision. */
static const double WINOGRAD_LIMIT = 4e-6, WINOGRAD_GRADIENT_LIMIT = 5e-6;
static double worst_winograd, worst_winograd_gradient;

static void conv_is(const char *what, const naive_conv *s, int options, const float *got, const double *want, size_t n, double limit, double *most)
{
    const double e = distance(got, want, n);
    CHECKF(e < limit, "%s: %g; n %d, in %dx%dx%d, %d filters, pad %dx%d, options %d", what, e, s->n, s->c, s->h, s->w, s->f, s->ph, s->pw, options);
    *most = nnti_max_double(*most, e);
}
static void forward_is_the_naive_one(const naive_conv *s, int options, int flags)
{
    const size_t n = (size_t)s->n, ny = n * conv_out(s), plane = conv_out(s) / (size_t)s->f;
    float *x = random_floats(n * conv_in(s)), *w = random_floats(conv_weights(s)), *b = random_floats((size_t)s->f), *y = random_floats(ny);
    double *want = (double *)calloc(ny, sizeof *want);
    nnt_op op = conv_op(NNT_OP_CONV, s, flags | (options & RELU ? NNT_OPF_RELU : 0));
    size_t i;
    op.at[NNT_X] = x;
    op.at[NNT_W] = w;
    op.at[NNT_B] = options & BIAS ? b : NULL;
    op.at[NNT_Y] = y;
    naive_conv_forward(s, x, w, want);
    for (i = 0; i < ny; i++) {
        if (options & BIAS) want[i] += (double)b[i / plane % (size_t)s->f];
        if ((options & RELU) && want[i] < 0) want[i] = 0;
    }
    run_alone(op, s->n, s->n + (options & PARTIAL ? 3 : 0), 0, NNT_Y);
    conv_is("forward", s, options, y, want, ny, WINOGRAD_LIMIT, &worst_winograd);
    free(x); free(w); free(b); free(y); free(want);
}
static void data_gradient_is_the_naive_one(const naive_conv *s, int options, int flags)
{
    const size_t n = (size_t)s->n, nx = n * conv_in(s);
    float *gy = random_floats(n * conv_out(s)), *w = random_floats(conv_weights(s)), *mask = random_floats(nx), *gx = random_floats(nx);
    double *want = (double *)calloc(nx, sizeof *want);
    nnt_op op;
    size_t i;
    if (options & OVER) options = (options | MASKED) & ~ADDED;
    op = conv_op(NNT_OP_CONV_DATA, s, flags | (options & ADDED ? NNT_OPF_ACCUMULATE : 0) | (options & MASKED ? NNT_OPF_MASK : 0)
                                      | (options & OVER ? NNT_OPF_OVER : 0));
    op.at[NNT_GY] = gy;
    op.at[NNT_W] = w;
    op.at[NNT_MASK] = options & MASKED ? mask : NULL;
    op.at[NNT_GX] = options & OVER ? mask : gx;
    naive_conv_data(s, gy, w, want);
    for (i = 0; i < nx; i++) {
        if (options & ADDED) want[i] += (double)gx[i];
        if ((options & MASKED) && mask[i] <= 0) want[i] = 0;
    }
    run_alone(op, s->n, s->n + (options & PARTIAL ? 3 : 0), 0, NNT_GX);
    conv_is("gradient of data", s, options, (const float *)op.at[NNT_GX], want, nx, WINOGRAD_GRADIENT_LIMIT, &worst_winograd_gradient);
    free(gy); free(w); free(mask); free(gx); free(want);
}
static void weight_gradient_is_the_naive_one(const naive_conv *s, int options, int flags)
{
    const size_t n = (size_t)s->n, nw = conv_weights(s);
    float *x = random_floats(n * conv_in(s)), *gy = random_floats(n * conv_out(s)), *gw = random_floats(nw), *gb = random_floats((size_t)s->f);
    double *want = (double *)calloc(nw, sizeof *want), *want_bias = (double *)calloc((size_t)s->f, sizeof *want_bias);
    nnt_op op = conv_op(NNT_OP_CONV_WEIGHT, s, flags);
    size_t i;
    op.at[NNT_X] = x;
    op.at[NNT_GY] = gy;
    op.at[NNT_GW] = gw;
    op.at[NNT_GB] = options & BIAS ? gb : NULL;
    naive_conv_weight(s, x, gy, want, want_bias);
    if (options & ADDED) for (i = 0; i < nw; i++) want[i] += (double)gw[i];
    run_alone(op, s->n, s->n + (options & PARTIAL ? 3 : 0), (options & ADDED) != 0, NNT_GW);
    conv_is("gradient of weights", s, options, gw, want, nw, WINOGRAD_GRADIENT_LIMIT, &worst_winograd_gradient);
    free(x); free(gy); free(gw); free(gb); free(want); free(want_bias);
}
static void winograd_is(naive_conv s, int options)
{
    forward_is_the_naive_one(&s, options, 0);
    data_gradient_is_the_naive_one(&s, options, 0);
    weight_gradient_is_the_naive_one(&s, options, 0);
}
static void winograd_on_maps_that_tiles_do_not_fill(void)
{
    int h, w, pad, turn = 0;
    random_state = 9;
    for (h = 1; h <= 9; h += SLOW ? 4 : 1)
        for (w = 1; w <= 13; w += SLOW ? 4 : 3)
            for (pad = 0; pad <= 2; pad++)
                if (h + 2 * pad > 2 && w + 2 * pad > 2) winograd_is(conv_3x3(2, 16, h, w, 16, pad, (pad + turn) % 3 ? pad : 2), turn * 7 % EVERY_OPTION), turn++;
    winograd_is(conv_3x3(3, 16, 8, 24, 16, 1, 1), BIAS | RELU | ADDED | MASKED);        /* rows of whole fours */
    winograd_is(conv_3x3(1, 16, 40, 3, 16, 0, 1), BIAS);
}
static void winograd_every_option_alone_and_together(void)
{
    int options;
    random_state = 10;
    for (options = 0; options < EVERY_OPTION; options += SLOW ? 5 : 1) {
        winograd_is(conv_3x3(5, 17, 7, 8, 19, 1, 1), options);
        winograd_is(conv_3x3(7, 19, 4, 4, 17, 1, 1), options);
    }
}
/* The sanitizers' builds have 32 tiles in memory at a time: chunks begin anywhere in a sample. */
static void winograd_chunks_of_tiles(void)
{
    random_state = 11;
    winograd_is(conv_3x3(9, 33, 13, 11, 65, 1, 1), BIAS | RELU | ADDED);
    winograd_is(conv_3x3(3, 64, 17, 17, 16, 2, 0), BIAS | MASKED);
    winograd_is(conv_3x3(40, 16, 4, 3, 31, 1, 1), OVER | PARTIAL);
}
/* Over many channels, values of both signs and values that a relu has passed (all of a bias's sign). */
static void winograd_error_over_many_channels(void)
{
    const naive_conv s = conv_3x3(2, SLOW ? 128 : 512, 8, 8, 16, 1, 1);
    random_state = 12;
    forward_is_the_naive_one(&s, 0, 0);
    weight_gradient_is_the_naive_one(&s, 0, 0);
    data_gradient_is_the_naive_one(&s, 0, 0);
    printf("errors of all: forward %.1e, gradients %.1e\n", worst_winograd, worst_winograd_gradient);
}
static void fully_connected(void)
{
    static const int sizes[6][3] = { { 1, 1, 1 }, { 2, 7, 5 }, { 8, 33, 65 }, { 3, 100, 10 }, { 1, 257, 3 }, { 5, 64, 64 } };
    nnt_linear_desc d;
    int i;
    random_state = 21;
    memset(&d, 0, sizeof d);
    for (i = 0; i < 6; i++) {
        d.features = sizes[i][2];
        d.no_bias = i % 2;
        judge_mse(nnt_relu(nnt_linear_ex(start(sizes[i][1], 1, 1), d)), sizes[i][0]);
    }
}

typedef nnt_node (*act_fn)(nnt_node x);
static nnt_node leaky(nnt_node x) { return nnt_leaky_relu(x, 0.1f); }
static void activations(void)
{
    static const act_fn acts[] = { nnt_relu, leaky, nnt_sigmoid, nnt_tanh, nnt_gelu, nnt_softmax };
    int i;
    for (i = 0; i < 6; i++) {
        judge_mse(acts[i](nnt_conv2d(start(3, 5, 7), 5, 1, 1, 0)), 3);
        judge_mse(nnt_linear(acts[i](start(13, 3, 3)), 4), 2);
        judge_mse(acts[i](nnt_linear(start(1, 1, 1), 70)), 2);
    }
}

static nnt_pool_desc window(int kernel, int stride, int pad, int ceil_mode)
{
    nnt_pool_desc d;
    memset(&d, 0, sizeof d);
    d.kernel = kernel;
    d.stride = stride;
    d.pad = pad;
    d.ceil_mode = ceil_mode;
    return d;
}
static void poolings(void)
{
    static const int shapes[7][4] = { { 2, 2, 0, 0 }, { 3, 2, 1, 0 }, { 3, 2, 0, 1 }, { 3, 1, 1, 0 }, { 2, 3, 1, 1 }, { 1, 2, 0, 0 }, { 5, 4, 2, 1 } };
    int i;
    for (i = 0; i < 7; i++) {
        nnt_pool_desc d = window(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
        judge_mse(nnt_maxpool_ex(start(3, 9, 11), d), 2);
        judge_mse(nnt_avgpool_ex(start(3, 9, 11), d), 2);
        d.exclude_pad = 1;
        judge_mse(nnt_avgpool_ex(nnt_relu(start(2, 10, 7)), d), 3);
        d.kernel_w = 3;
        d.stride_w = 2;
        d.pad_w = 1;
        judge_mse(nnt_maxpool_ex(nnt_relu(start(2, 10, 7)), d), 3);
    }
    judge_mse(nnt_maxpool_ex(start(1, 20, 19), window(17, 1, 3, 0)), 2);        /* an index takes 4 bytes */
    judge_mse(nnt_adaptive_avgpool(start(3, 10, 7), 3, 3), 2);
    judge_mse(nnt_adaptive_avgpool(nnt_relu(start(3, 4, 5)), 7, 6), 2);
    judge_mse(nnt_global_avgpool(start(5, 9, 9)), 3);
}

static void batchnorms(void)
{
    nnt_batchnorm_desc plain = nnt_batchnorm_defaults();
    plain.no_affine = 1;
    judge_mse(nnt_batchnorm(start(3, 6, 5)), 4);
    judge_mse(nnt_relu(nnt_batchnorm(start(4, 5, 5))), 3);
    judge_mse(nnt_batchnorm_ex(start(4, 5, 5), plain), 3);
    judge_mse(nnt_batchnorm(nnt_linear(start(9, 1, 1), 33)), 8);
    judge_mse(nnt_maxpool(nnt_relu(nnt_batchnorm(nnt_conv2d(start(3, 8, 8), 4, 3, 1, 1))), 2, 2, 0), 3);
    judge_mse(nnt_maxpool(nnt_batchnorm(start(2, 9, 9)), 3, 2, 1), 2);
    judge_mse(nnt_batchnorm(nnt_conv2d(start(2, 70, 70), 3, 3, 1, 1)), 2);      /* sums in several parts */
}

static void convolutions_with_pooling(void)
{
    judge_mse(nnt_maxpool(nnt_relu(nnt_conv2d(start(3, 8, 8), 4, 3, 1, 1)), 2, 2, 0), 3);
    judge_mse(nnt_maxpool(nnt_relu(nnt_conv2d(nnt_relu(nnt_conv2d(start(2, 9, 9), 3, 3, 1, 1)), 4, 3, 1, 1)), 3, 2, 1), 2);
    judge_mse(nnt_maxpool(nnt_conv2d(start(3, 7, 7), 4, 3, 2, 1), 2, 2, 0), 2);
    judge_mse(nnt_linear(nnt_maxpool(nnt_relu(nnt_conv2d(nnt_maxpool(nnt_relu(nnt_conv2d(start(1, 14, 14), 4, 5, 1, 2)), 2, 2, 0),
              6, 3, 1, 1)), 2, 2, 0), 5), 4);
}

static nnt_node noise_of_kind(nnt_node x, int kind, int clamp)
{
    nnt_noise_desc d;
    memset(&d, 0, sizeof d);
    d.amount = 0.3f;
    d.kind = kind;
    d.clamp = clamp;
    d.low = clamp ? -0.5f : 0;
    d.high = clamp ? 0.75f : 0;
    return nnt_noise_ex(x, d);
}
static void chance(void)
{
    int kind, clamp;
    for (kind = NNT_NOISE_GAUSSIAN; kind <= NNT_NOISE_SALT_PEPPER; kind++)
        for (clamp = 0; clamp < 2; clamp++) {
            judge_mse(nnt_linear(noise_of_kind(start(3, 5, 7), kind, clamp), 4), 3);
            judge_mse(noise_of_kind(nnt_relu(start(2, 3, 3)), kind, clamp), 2);
        }
    judge_mse(nnt_linear(nnt_dropout(nnt_relu(start(37, 1, 1)), 0.4f), 5), 5);
    judge_mse(nnt_dropout(start(3, 5, 5), 0.5f), 4);
    judge_mse(nnt_dropout(nnt_noise(start(1, 3, 3), 0.5f), 0.0f), 2);
}

/* Without a bias: in front of batch norm its gradient is rounding only, of which Adam makes whole steps. */
static nnt_node normalised(nnt_node x, int filters, int kernel, int stride)
{
    nnt_conv_desc d = conv(filters, kernel, stride, kernel / 2);
    d.no_bias = 1;
    return nnt_batchnorm(nnt_conv2d_ex(x, d));
}
static nnt_node residual(nnt_node x, int filters, int stride)
{
    nnt_node y = normalised(nnt_relu(normalised(x, filters, 3, stride)), filters, 3, 1);
    return nnt_relu(nnt_add(y, stride == 1 ? x : normalised(x, filters, 1, stride)));
}
static void branches(void)
{
    nnt_node x = nnt_relu(start(4, 6, 6)), y;
    judge_mse(nnt_concat(nnt_relu(nnt_conv2d(x, 3, 3, 1, 1)), nnt_avgpool(x, 3, 1, 1)), 3);
    x = start(4, 6, 6);
    judge_mse(nnt_add(x, nnt_relu(x)), 2);
    x = nnt_relu(start(4, 6, 6));
    judge_mse(nnt_add(nnt_linear(x, 7), nnt_linear(nnt_maxpool(x, 2, 2, 0), 7)), 2);
    x = nnt_conv2d(start(3, 7, 5), 4, 1, 1, 0);
    judge_mse(nnt_concat(x, nnt_concat(nnt_sigmoid(x), nnt_tanh(x))), 2);
    judge_mse(residual(residual(start(4, 6, 6), 4, 1), 6, 2), 3);
    x = nnt_relu(start(3, 8, 8));
    y = nnt_add(nnt_adaptive_avgpool(x, 2, 2), nnt_maxpool(x, 4, 4, 0));
    judge_mse(nnt_concat(y, nnt_avgpool(x, 4, 4, 0)), 2);
    x = nnt_relu(nnt_batchnorm(start(5, 4, 4)));
    judge_mse(nnt_concat(nnt_dropout(x, 0.3f), nnt_gelu(x)), 3);
}

/* Winograd's products as lowering makes them: with pooling, masks over gradients, sums at branches, partial batches. */
static void winograd_in_nets(void)
{
    nnt_conv_desc d = conv(24, 3, 1, 2);
    nnt_node x;
    judge_conv(8, 16, 9, 7, conv(16, 3, 1, 1));
    d.pad_w = NNT_NO_PAD;
    judge_conv(4, 18, 11, 13, d);
    judge_mse(nnt_maxpool(nnt_relu(nnt_conv2d(nnt_relu(nnt_conv2d(start(2, 9, 9), 16, 3, 1, 1)), 20, 3, 1, 1)), 3, 2, 1), 5);
    judge_mse(nnt_maxpool(nnt_conv2d(start(16, 8, 8), 16, 3, 1, 1), 2, 2, 0), 8);
    x = nnt_relu(start(16, 8, 8));
    judge_mse(nnt_concat(nnt_relu(nnt_conv2d(x, 16, 3, 1, 1)), nnt_conv2d(x, 17, 3, 1, 1)), 4);
    judge_mse(residual(start(16, 8, 8), 16, 1), 4);
}

/* Pictures as bytes. Noise on them is one op with the conversion; what else reads them gets floats. */
static nnt_node bytes_input(int channels, int height, int width)
{
    static const float mean[4] = { 0.5f, 0.4f, 0.3f, 0.6f }, deviation[4] = { 0.2f, 0.3f, 0.25f, 0.1f };
    return nnt_input_bytes(nnt_new(NULL), channels, height, width, mean, deviation);
}
/* converted: ops that convert and do nothing else, in a step's way forward; predictions have one, since they pass noise by. */
static void judge_bytes(nnt_node x, int converted)
{
    enum { MOST_VALUES = 4 * 3 * 8 * 8 };
    static uint8_t pictures[MOST_VALUES];
    static const int32_t labels[4] = { 0, 3, 1, 2 };
    nnt_net *net = x.net;
    nnt_result r = nnt_compile(net, nnt_cross_entropy(nnt_linear(x, 4)), build("judge", 4, nnt_sgd(0.1f)));
    nnt_batch b;
    float y[4 * 4];
    int i, found = 0;
    for (i = 0; i < MOST_VALUES; i++) pictures[i] = (uint8_t)random_int(0, 255);
    memset(&b, 0, sizeof b);
    b.bytes = pictures;
    b.labels = labels;
    b.count = 4;
    if (!r) r = nnt_step(net, &b, NULL);
    if (!r) r = nnt_predict_bytes(net, pictures, 3, y);
    CHECKF(r == NNT_OK, "%s", nnt_error(net));
    for (i = 0; i < net->plan.train.count; i++) {
        const nnt_op *op = &net->plan.train.ops[i];
        found += op->kind == NNT_OP_CONVERT && op->phase == NNT_PHASE_FORWARD;
    }
    CHECKF(found == converted, "%d conversions", found);
    nnt_free(net);
}
static void bytes(void)
{
    /* planes of whole fours; samples of them only; neither; values that with and without conversion take 64 bytes */
    static const int shapes[4][3] = { { 3, 8, 8 }, { 4, 3, 3 }, { 3, 7, 5 }, { 1, 2, 2 } };
    nnt_node x;
    int i, kind, clamp;
    for (i = 0; i < 4; i++) {
        judge_bytes(nnt_relu(nnt_conv2d(bytes_input(shapes[i][0], shapes[i][1], shapes[i][2]), 4, 3, 1, 1)), 1);
        for (kind = NNT_NOISE_GAUSSIAN; kind <= NNT_NOISE_SALT_PEPPER; kind++)
            for (clamp = 0; clamp < 2; clamp++)
                judge_bytes(noise_of_kind(bytes_input(shapes[i][0], shapes[i][1], shapes[i][2]), kind, clamp), 0);
    }
    judge_bytes(nnt_relu(nnt_conv2d(nnt_noise(bytes_input(3, 8, 8), 0.1f), 4, 3, 1, 1)), 0);
    x = bytes_input(3, 8, 8);
    judge_bytes(nnt_concat(nnt_noise(x, 0.1f), nnt_conv2d(x, 4, 3, 1, 1)), 1);
    CHECK(judged_flags[NNT_OP_NOISE] & NNT_OPF_BYTES);
}
static void losses(void)
{
    static const float class_weights[7] = { 1, 0.5f, 2, 0, 1.5f, 1, 3 };
    static const int classes[4] = { 2, 7, 33, 1000 };
    nnt_cross_entropy_desc d;
    int i;
    for (i = 0; i < 4; i++)
        judge_net(nnt_cross_entropy(nnt_linear(start(6, 1, 1), classes[i])), 8, build("judge", 8, nnt_sgd(0.1f)));
    memset(&d, 0, sizeof d);
    d.label_smoothing = 0.1f;
    judge_net(nnt_cross_entropy_ex(start(7, 1, 1), d), 5, build("judge", 5, nnt_sgd(0.1f)));
    d.class_weights = class_weights;
    d.class_weight_count = 7;
    judge_net(nnt_cross_entropy_ex(start(7, 1, 1), d), 8, build("judge", 8, nnt_sgd(0.1f)));
    d.use_ignore_index = 1;
    d.ignore_index = 1;
    judge_net(nnt_cross_entropy_ex(start(7, 1, 1), d), 8, build("judge", 8, nnt_sgd(0.1f)));
    judge_mse(start(3, 20, 20), 8);
}

static void optimizers(void)
{
    nnt_optimizer o[6];
    int i;
    o[0] = nnt_sgd(0.1f);
    o[1] = nnt_sgd(0.1f);
    o[1].momentum = 0.9f;
    o[1].weight_decay = 0.01f;
    o[2] = o[1];
    o[2].nesterov = 1;
    o[2].clip_norm = 0.1f;
    o[3] = nnt_adam(0.01f);
    o[3].weight_decay = 0.01f;
    o[4] = nnt_adamw(0.01f);
    o[4].clip_norm = 1e-3f;
    o[5] = nnt_adam(0.01f);
    o[5].accumulate = 2;
    for (i = 0; i < 6; i++)
        judge_net(nnt_cross_entropy(nnt_linear(nnt_relu(nnt_batchnorm(nnt_conv2d(start(2, 6, 6), 3, 3, 1, 1))), 5)), 4, build("judge", 4, o[i]));
    o[0].clip_norm = 1;                             /* sums in several parts */
    judge_net(nnt_mse(nnt_linear(start(40, 4, 4), 30)), 2, build("judge", 2, o[0]));
}

static void factors_are_rounded_on_request_only(void)
{
    nnt_compile_desc d = build("judge", 3, nnt_sgd(0.05f));
    d.precision = NNT_TF32;
    if (judges_gpu && !cuda->precision(judges_gpu, NNT_TF32)) SKIP("not on this card");
    worst_short = 0;
    judge_net(nnt_mse(nnt_linear(nnt_relu(nnt_conv2d(nnt_conv2d(start(3, 8, 8), 5, 3, 1, 1), 4, 1, 1, 0)), 7)), 3, d);
    CHECKF(worst_short > 1e-5, "tf32 is no other than fp32: %g", worst_short);
}

/* Any layers one after the other, with branches: combinations that nobody thought of. */
static nnt_node random_layer(nnt_node x, nnt_node *other)
{
    int s[3];
    nnt_shape(x, s);
    switch (random_int(0, 11)) {
    case 0:  return nnt_conv2d(x, random_int(1, 6), 3, 1, 1);
    case 1:  return nnt_conv2d(x, random_int(1, 6), 1, random_int(1, 2), 0);
    case 2:  return nnt_relu(x);
    case 3:  return nnt_batchnorm(x);
    case 4:  return s[1] > 3 && s[2] > 3 ? nnt_maxpool(x, random_int(2, 3), 2, random_int(0, 1)) : nnt_relu(x);
    case 5:  return nnt_dropout(x, 0.3f);
    case 6:  return nnt_noise(x, 0.2f);
    case 7:  return nnt_avgpool(x, 3, 1, 1);
    case 8:  return random_int(0, 1) ? nnt_gelu(x) : nnt_tanh(x);
    case 9:  return nnt_relu(nnt_conv2d(nnt_relu(x), 4, 3, 1, 1));
    case 10: *other = x; return x;
    default: {
        int t[3];
        if (!other->id) return nnt_relu(x);
        nnt_shape(*other, t);
        if (t[1] != s[1] || t[2] != s[2]) return nnt_relu(x);
        return t[0] == s[0] ? nnt_relu(nnt_add(x, *other)) : nnt_concat(x, *other);
    } }
}
static void random_nets(void)
{
    int i, k;
    random_state = 77;
    for (i = 0; i < (SLOW || precision_now == NNT_BF16 ? 10 : 50); i++) {
        nnt_node x = start(random_int(1, 4), random_int(5, 9), random_int(5, 9)), other;
        nnt_compile_desc d = build("judge", 3, nnt_sgd(0.05f));
        const int layers = random_int(3, 9);
        other.net = x.net;
        other.id = 0;
        if (i % 3 == 0) d.recompute = NNT_RECOMPUTE_LEAST_MEMORY;
        for (k = 0; k < layers; k++) x = random_layer(x, &other);
        judge_net(nnt_mse(nnt_linear(x, 3)), 3, d);
    }
}

/* All of the cases above with activations and their gradients in bfloat16. The CPU gets the same operands as floats, and
   weights that are rounded as they are for products; what it computes from them is rounded only to go on from. */
static void ops_on_bfloat16(void)
{
    int kind;
    if (judges_gpu && !cuda->precision(judges_gpu, NNT_BF16)) SKIP("not on this card");
    precision_now = NNT_BF16;
    convolutions();
    random_convolutions();
    fully_connected();
    activations();
    poolings();
    batchnorms();
    convolutions_with_pooling();
    chance();
    branches();
    bytes();
    losses();
    optimizers();
    random_nets();
    precision_now = NNT_FP32;
    for (kind = NNT_OP_NONE + 1; kind < NNT_OP_KINDS; kind++)
        if (!is_flat(kind)) CHECKF(judged_half[kind] > 0, "op kind %d", kind);
}

static void every_kind_of_op_was_compared(void)
{
    int kind;
    if (judges_gpu) cuda->close(judges_gpu);
    judges_gpu = NULL;
    if (test_argc > 1) SKIP("the cases before have to run too");
    for (kind = NNT_OP_NONE + 1; kind < NNT_OP_KINDS; kind++) CHECKF(judged[kind] > 0, "op kind %d", kind);
    for (kind = NNT_OP_NONE + 1; kind < NNT_OP_KINDS; kind++)
        printf("%d: %d times, flags %d, error %.1e, in bf16 %.1e%s", kind, judged[kind], judged_flags[kind], worst[kind], worst_half[kind], kind % 3 ? "; " : "\n");
    printf("\n");
}

/* ============================================================================
   Whole runs on device "cuda": against "cpu", and with the same bits whatever should not matter
   ============================================================================ */

enum {
    SAMPLES = 40, CHANNELS = 2, SIDE = 8, CLASSES = 5, VALUES = CHANNELS * SIDE * SIDE,
    STEPS = SLOW ? 4 : 6            /* two of whole batches, the second captured; of a part; whole, replayed */
};
static float   data_x[SAMPLES * VALUES];
static uint8_t data_bytes[SAMPLES * VALUES];
static int32_t data_labels[SAMPLES];

static void make_data(void)
{
    int n, i;
    random_state = 3;
    for (n = 0; n < SAMPLES; n++) {
        data_labels[n] = n * 3 % CLASSES;
        for (i = 0; i < VALUES; i++) {
            float *x = &data_x[n * VALUES + i];
            *x = 0.3f * random_float() + (i / SIDE % SIDE == data_labels[n] + 1 ? 1.0f : 0.0f);
            data_bytes[n * VALUES + i] = (uint8_t)(96 + 100 * *x);
        }
    }
}
static nnt_batch data_batch(int first, int count)
{
    nnt_batch b;
    memset(&b, 0, sizeof b);
    b.x = data_x + first * VALUES;
    b.bytes = data_bytes + first * VALUES;
    b.labels = data_labels + first;
    b.count = count;
    return b;
}

static nnt_node plain_cnn(nnt_node x)
{
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 6, 3, 1, 1)), 2, 2, 0);
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 8, 3, 1, 1)), 2, 2, 0);
    return nnt_linear(nnt_relu(nnt_linear(x, 16)), CLASSES);
}
static nnt_node residual_net(nnt_node x)
{
    x = nnt_relu(normalised(x, 4, 3, 1));
    return nnt_linear(nnt_global_avgpool(residual(residual(x, 4, 1), 8, 2)), CLASSES);
}
/* Three convolutions: with a column matrix, without, and by Winograd as long as 224 positions go through at a time. */
static nnt_node noisy_net(nnt_node x)
{
    nnt_conv_desc point = conv(16, 1, 1, 0), wide = conv(16, 3, 1, 0);
    point.no_bias = wide.no_bias = 1;
    x = nnt_relu(nnt_conv2d(nnt_noise(x, 0.1f), 6, 3, 1, 1));
    x = nnt_relu(nnt_conv2d_ex(nnt_conv2d_ex(x, point), wide));
    x = nnt_gelu(nnt_linear(nnt_dropout(nnt_avgpool(x, 2, 2, 0), 0.2f), 16));
    return nnt_linear(nnt_dropout(x, 0.5f), CLASSES);
}
typedef struct run_case { const char *name; nnt_node (*logits)(nnt_node x); int optimizer, accumulate, recompute; float clip; int bytes; } run_case;
static const run_case run_cases[] = {
    { "cnn, sgd with momentum",         plain_cnn,    NNT_OPTIMIZER_SGD,   1, NNT_RECOMPUTE_OFF,          0,    0 },
    { "cnn, adam, accumulated",         plain_cnn,    NNT_OPTIMIZER_ADAM,  2, NNT_RECOMPUTE_OFF,          0,    0 },
    { "residual, batch norm, clipped",  residual_net, NNT_OPTIMIZER_SGD,   1, NNT_RECOMPUTE_OFF,          1,    0 },
    { "residual, made again",           residual_net, NNT_OPTIMIZER_ADAMW, 1, NNT_RECOMPUTE_LEAST_MEMORY, 0,    0 },
    { "noise and dropout",              noisy_net,    NNT_OPTIMIZER_ADAM,  1, NNT_RECOMPUTE_OFF,          0,    0 },
    { "noise and dropout, made again",  noisy_net,    NNT_OPTIMIZER_SGD,   3, NNT_RECOMPUTE_LEAST_MEMORY, 0.5f, 0 },
    { "noise on bytes",                 noisy_net,    NNT_OPTIMIZER_SGD,   1, NNT_RECOMPUTE_OFF,          0,    1 }
};
enum { RUN_CASES = sizeof run_cases / sizeof run_cases[0] };

static nnt_compile_desc desc_of(const run_case *c, const char *device)
{
    nnt_compile_desc d = build(device, MOST_BATCH, nnt_sgd(0.05f));
    if (c->optimizer == NNT_OPTIMIZER_ADAM) d.optimizer = nnt_adam(2e-3f);
    else if (c->optimizer == NNT_OPTIMIZER_ADAMW) d.optimizer = nnt_adamw(2e-3f);
    else d.optimizer.momentum = 0.9f;
    d.optimizer.accumulate = c->accumulate;
    d.optimizer.clip_norm = c->clip;
    d.recompute = c->recompute;
    return d;
}
static nnt_node input_of(nnt_net *net, const run_case *c)
{
    static const float mean[CHANNELS] = { 0.4f, 0.5f }, deviation[CHANNELS] = { 0.3f, 0.4f };
    return c->bytes ? nnt_input_bytes(net, CHANNELS, SIDE, SIDE, mean, deviation) : nnt_input(net, CHANNELS, SIDE, SIDE);
}
/* Trains for some steps, every third on a smaller batch. losses may be NULL. NULL after a failure. */
static nnt_net *train(const run_case *c, nnt_compile_desc d, int steps, float *losses)
{
    nnt_net *net = nnt_new(NULL);
    nnt_result r = nnt_compile(net, nnt_cross_entropy(c->logits(input_of(net, c))), d);
    int i;
    for (i = 0; i < steps && !r; i++) {
        nnt_batch b = data_batch(i * MOST_BATCH % (SAMPLES - MOST_BATCH + 1), i % 3 == 2 ? MOST_BATCH - 3 : MOST_BATCH);
        float loss = 0;
        r = nnt_step(net, &b, &loss);
        if (losses) losses[i] = loss;
    }
    if (!r) r = nnt_update(net);
    CHECKF(r == NNT_OK, "%s: %s", c->name, nnt_error(net));
    if (!r) return net;
    nnt_free(net);
    return NULL;
}
/* All that lasts: weights, running statistics, gradients and moments. To be freed. */
static float *state_of(nnt_net *net, size_t *count)
{
    float *state;
    *count = net->plan.memory.fixed / sizeof(float);
    state = (float *)malloc(*count * sizeof *state);
    CHECK(net->on->backend->download(net->on->device, state, net->memory, *count * sizeof *state) == NNT_OK);
    return state;
}
static int same_state(nnt_net *a, nnt_net *b)
{
    size_t na, nb;
    float *x = state_of(a, &na), *y = state_of(b, &nb);
    const size_t trained = (a->plan.memory.params + a->plan.memory.grads + a->plan.memory.optimizer) / sizeof *x;
    const int same = na == nb && memcmp(x, y, trained * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

/* Roundings differ, and a training run makes more of a difference at each step; Adam, which divides by the gradient's
   size, most. After six steps it is about 1e-6 here: a wrong formula or a wrong mask gives 1e-2. */
static const double RUN_LIMIT = 1e-4;

/* In bfloat16 each activation and each gradient of one is off by HALF of itself at most. These nets have ten layers at
   most; roundings add up by chance, so that ten make sqrt(10) HALF of a loss or of what the weights moved. */
static const double RUN_LIMIT_HALF = 3.17 / 256;
static double run_limit(void) { return precision_now == NNT_BF16 ? RUN_LIMIT_HALF : RUN_LIMIT; }

/* The run that `gpu` asks for, against the CPU's. */
static void run_equals_the_cpus(const run_case *c, nnt_compile_desc gpu)
{
    float on_cpu[STEPS], on_gpu[STEPS];
    nnt_net *a = train(c, desc_of(c, "cpu"), STEPS, on_cpu), *b = train(c, gpu, STEPS, on_gpu);
    int k;
    if (a && b) {
        size_t n;
        float *x = state_of(a, &n), *y = state_of(b, &n);
        const size_t params = a->plan.trained_floats + a->plan.persistent_floats;
        CHECKF(error_of(y, x, params, 0) < run_limit(), "%s: weights differ by %g", c->name, error_of(y, x, params, 0));
        for (k = 0; k < STEPS; k++)
            CHECKF(fabs((double)on_cpu[k] - (double)on_gpu[k]) < run_limit(), "%s: loss of step %d: %.7g, %.7g", c->name, k, (double)on_cpu[k], (double)on_gpu[k]);
        CHECK(!gpu.micro_batch || b->plan.memory.micro_batch == gpu.micro_batch);
        free(x);
        free(y);
    }
    nnt_free(a);
    nnt_free(b);
}
static void runs_equal_the_cpus(void)
{
    int i;
    for (i = 0; i < (int)RUN_CASES; i++) run_equals_the_cpus(&run_cases[i], desc_of(&run_cases[i], "cuda"));
}
/* Parts of any size, the last one smaller: the same samples get the same noise, and gradients and losses add up. */
static void batches_in_parts_equal_the_cpus_whole_ones(void)
{
    int i;
    for (i = 0; i < (int)RUN_CASES; i++) {
        nnt_compile_desc d = desc_of(&run_cases[i], "cuda");
        if (run_cases[i].logits == residual_net) continue;      /* batch norm's statistics are of the whole batch */
        for (d.micro_batch = 1; d.micro_batch < MOST_BATCH; d.micro_batch += SLOW || precision_now == NNT_BF16 ? 4 : 2) run_equals_the_cpus(&run_cases[i], d);
    }
}
/* Under another order of threads, blocks and streams too, and as long as each op is launched by itself as in a graph. All
   orders: see below. */
static void runs_give_the_same_bits_again(void)
{
    int i, k;
    for (i = 0; i < (int)RUN_CASES; i++) {
        nnt_net *first = train(&run_cases[i], desc_of(&run_cases[i], "cuda"), STEPS, NULL);
        for (k = 0; k < 2 && first; k++) {
            nnt_net *again;
#ifndef NNT_TEST_ON_DEVICE
            coc_seed((unsigned)k + 1);
            coc_streams(k % 2 ? COC_AT_RANDOM : COC_AT_ONCE);
#endif
            again = train(&run_cases[i], desc_of(&run_cases[i], "cuda"), STEPS, NULL);
            if (again) CHECKF(same_state(first, again), "%s, order %d", run_cases[i].name, k);
            nnt_free(again);
        }
#ifndef NNT_TEST_ON_DEVICE
        coc_seed(0);
        coc_streams(COC_LATE);
#endif
        nnt_free(first);
    }
}
static void values_made_again_change_no_bit(void)
{
    int i;
    for (i = 0; i < (int)RUN_CASES; i++) {
        run_case kept = run_cases[i], made = run_cases[i];
        nnt_net *a, *b;
        kept.recompute = NNT_RECOMPUTE_OFF;
        made.recompute = NNT_RECOMPUTE_LEAST_MEMORY;
        a = train(&kept, desc_of(&kept, "cuda"), STEPS, NULL);
        b = train(&made, desc_of(&made, "cuda"), STEPS, NULL);
        if (a && b) CHECKF(same_state(a, b), "%s", run_cases[i].name);
        nnt_free(a);
        nnt_free(b);
    }
}
/* Steps, predictions and gradients in turn: each list of ops has its own graph. */
static void predicting_in_between_changes_nothing(void)
{
    nnt_net *a = train(&run_cases[2], desc_of(&run_cases[2], "cuda"), 3, NULL), *b = train(&run_cases[2], desc_of(&run_cases[2], "cuda"), 3, NULL);
    float y[SAMPLES * CLASSES], again[SAMPLES * CLASSES];
    int i;
    if (a && b)
        for (i = 0; i < 3; i++) {
            nnt_batch batch = data_batch(i, MOST_BATCH);
            CHECK(nnt_step(a, &batch, NULL) == NNT_OK);
            CHECK(nnt_predict(b, data_x, SAMPLES, y) == NNT_OK && nnt_predict(b, data_x, SAMPLES, again) == NNT_OK);
            CHECK(memcmp(y, again, sizeof y) == 0);
            CHECK(nnt_step(b, &batch, NULL) == NNT_OK);
        }
    if (a && b) CHECK(same_state(a, b));
    nnt_free(a);
    nnt_free(b);
}
static void predictions_and_evaluations_equal_the_cpus(void)
{
    nnt_net *a = train(&run_cases[2], desc_of(&run_cases[2], "cpu"), 2, NULL), *b = train(&run_cases[2], desc_of(&run_cases[2], "cuda"), 2, NULL);
    float y[SAMPLES * CLASSES], want[SAMPLES * CLASSES];
    nnt_arrays_desc arrays;
    nnt_loader_desc order;
    nnt_metrics on_cpu, on_gpu;
    nnt_dataset *data;
    nnt_loader *loader;
    memset(&arrays, 0, sizeof arrays);
    memset(&order, 0, sizeof order);
    memset(&on_cpu, 0, sizeof on_cpu);
    memset(&on_gpu, 0, sizeof on_gpu);
    arrays.count = SAMPLES - 3;             /* the last batch is smaller */
    arrays.channels = CHANNELS;
    arrays.height = arrays.width = SIDE;
    arrays.x = data_x;
    arrays.labels = data_labels;
    arrays.classes = CLASSES;
    order.batch = MOST_BATCH;
    data = nnt_dataset_arrays(arrays, NULL);
    loader = nnt_loader_new(data, order, NULL);
    if (a && b) {
        CHECK(nnt_predict(a, data_x, SAMPLES - 1, want) == NNT_OK && nnt_predict(b, data_x, SAMPLES - 1, y) == NNT_OK);
        CHECKF(error_of(y, want, (SAMPLES - 1) * CLASSES, 0) < run_limit(), "%g", error_of(y, want, (SAMPLES - 1) * CLASSES, 0));
        CHECKF(nnt_evaluate(a, loader, &on_cpu) == NNT_OK && nnt_evaluate(b, loader, &on_gpu) == NNT_OK, "%s", nnt_error(b));
        CHECKF(fabs(on_cpu.loss - on_gpu.loss) < run_limit() && on_cpu.samples == on_gpu.samples, "%g, %g", on_cpu.loss, on_gpu.loss);
        CHECK(fabs(on_cpu.accuracy - on_gpu.accuracy) < 1e-9);
    }
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    nnt_free(a);
    nnt_free(b);
}

/* ---- every order of threads, blocks and graph nodes, with every one of the streams ---- */

#ifndef NNT_TEST_ON_DEVICE
enum { PICTURE_SIDE = 64, PICTURE = PICTURE_SIDE * PICTURE_SIDE, PICTURES = 4, PICTURE_STEPS = 4, SEEDS = 6 };
/* Each kind of convolution, noise, dropout, batch norm, a branch. A batch of pictures is large enough to be uploaded ahead
   of its turn, on a stream of its own. */
static nnt_node picture_net(nnt_node x)
{
    nnt_conv_desc wide = conv(16, 3, 1, 1), point = conv(4, 1, 1, 0);
    wide.no_bias = point.no_bias = 1;
    x = nnt_noise(nnt_relu(normalised(x, 16, 7, 8)), 0.1f);
    x = nnt_maxpool(nnt_add(x, nnt_relu(nnt_conv2d_ex(x, wide))), 2, 2, 0);
    return nnt_linear(nnt_relu(nnt_linear(nnt_dropout(nnt_conv2d_ex(x, point), 0.2f), 16)), CLASSES);
}
typedef struct picture_case { const char *name; int precision, accumulate, recompute; } picture_case;
typedef struct outcome { float losses[PICTURE_STEPS], y[PICTURE_STEPS][PICTURES * CLASSES], *state; size_t bytes; } outcome;

/* Steps op by op, captured, of fewer samples, replayed; predictions op by op and captured. All from one buffer, which is
   used for something else as soon as a call returns. */
static void train_on_pictures(const picture_case *c, outcome *o)
{
    static float x[PICTURES * PICTURE];
    nnt_compile_desc d = build("cuda", PICTURES, nnt_sgd(0.05f));
    nnt_net *net = nnt_new(NULL);
    nnt_result r;
    size_t count;
    int step, i;
    memset(o, 0, sizeof *o);
    d.precision = c->precision;
    d.recompute = c->recompute;
    d.optimizer.momentum = 0.9f;
    d.optimizer.accumulate = c->accumulate;
    r = nnt_compile(net, nnt_cross_entropy(picture_net(nnt_input(net, 1, PICTURE_SIDE, PICTURE_SIDE))), d);
    random_state = 13;
    for (step = 0; step < PICTURE_STEPS && !r; step++) {
        nnt_batch b = data_batch(step, step == 2 ? PICTURES - 1 : PICTURES);
        b.x = x;
        for (i = 0; i < PICTURES * PICTURE; i++) x[i] = random_float();
        r = nnt_step(net, &b, &o->losses[step]);
        for (i = 0; i < PICTURES * PICTURE; i++) x[i] = random_float();
        if (!r && step > 1) r = nnt_predict(net, x, PICTURES, o->y[step]);
    }
    CHECKF(r == NNT_OK, "%s: %s", c->name, nnt_error(net));
    if (!r) {
        o->state = state_of(net, &count);
        o->bytes = net->plan.memory.params + net->plan.memory.grads + net->plan.memory.optimizer;
    }
    nnt_free(net);
}
static void every_order_gives_the_same_bits(void)
{
    static const picture_case cases[2] = {
        { "in floats", NNT_FP32, 1, NNT_RECOMPUTE_OFF },
        { "in bfloat16, made again, accumulated", NNT_BF16, 2, NNT_RECOMPUTE_LEAST_MEMORY }
    };
    static const int streams[3] = { COC_AT_ONCE, COC_LATE, COC_AT_RANDOM };
    static outcome first, again;
    int i, seed, k;
    for (i = 0; i < 2; i++) {
        for (seed = 0; seed < (SLOW && !PART ? 2 : SEEDS); seed++)
            for (k = 0; k < 3; k++) {
                outcome *o = seed || k ? &again : &first;
                coc_seed((unsigned)seed);
                coc_streams(streams[k]);
                train_on_pictures(&cases[i], o);
                if (o == &first || !first.state || !again.state) continue;
                CHECKF(memcmp(first.losses, again.losses, sizeof first.losses) == 0 && memcmp(first.y, again.y, sizeof first.y) == 0
                       && memcmp(first.state, again.state, first.bytes) == 0, "%s: threads %d, streams %d", cases[i].name, seed, k);
                free(again.state);
            }
        free(first.state);
    }
    coc_seed(0);
    coc_streams(COC_LATE);
}
#endif

/* ---- the same with activations and their gradients in bfloat16 ---- */

static int has_bfloat16(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc d = desc_of(&run_cases[0], "cuda");
    nnt_memory m;
    nnt_result r;
    d.precision = NNT_BF16;
    r = nnt_plan(net, nnt_cross_entropy(plain_cnn(nnt_input(net, CHANNELS, SIDE, SIDE))), d, &m);
    nnt_free(net);
    return r != NNT_ERR_UNSUPPORTED;
}
static void in_bfloat16(void (*test)(void))
{
    if (!has_bfloat16()) SKIP("not on this card");
    precision_now = NNT_BF16;
    test();
    precision_now = NNT_FP32;
}
static void runs_in_bfloat16_follow_the_cpus(void) { in_bfloat16(runs_equal_the_cpus); }
static void batches_in_parts_in_bfloat16_do_too(void) { in_bfloat16(batches_in_parts_equal_the_cpus_whole_ones); }
static void runs_in_bfloat16_give_the_same_bits_again(void) { in_bfloat16(runs_give_the_same_bits_again); }
static void values_made_again_in_bfloat16_change_no_bit(void) { in_bfloat16(values_made_again_change_no_bit); }
static void predicting_in_bfloat16_changes_nothing(void) { in_bfloat16(predicting_in_between_changes_nothing); }
static void predictions_in_bfloat16_follow_the_cpus(void) { in_bfloat16(predictions_and_evaluations_equal_the_cpus); }

/* The loss over the last steps of some: what chance makes of each is far below what learning does (1.6 before). */
static double loss_after(const run_case *c, nnt_compile_desc d)
{
    enum { LONG = 36, LAST = 6 };
    float losses[LONG];
    nnt_net *net = train(c, d, LONG, losses);
    double sum = 0;
    int i;
    for (i = LONG - LAST; i < LONG && net; i++) sum += (double)losses[i];
    nnt_free(net);
    return net ? sum / LAST : 1e30;
}
static void nets_learn_in_bfloat16_as_in_floats(void)
{
    static const int learners[2] = { 0, 2 };        /* plain; residual with batch norm */
    int i;
    if (!has_bfloat16()) SKIP("not on this card");
    for (i = 0; i < 2; i++) {
        const run_case *c = &run_cases[learners[i]];
        nnt_compile_desc d = desc_of(c, "cuda");
        const double on_cpu = loss_after(c, desc_of(c, "cpu"));
        double in_half;
        d.precision = NNT_BF16;
        in_half = loss_after(c, d);
        printf("%s: loss %.4f in floats on the CPU, %.4f in bfloat16\n", c->name, on_cpu, in_half);
        CHECKF(on_cpu < 0.5 && in_half < 0.5 && fabs(on_cpu - in_half) < 0.1, "%s: %g, %g", c->name, on_cpu, in_half);
    }
}
/* Bytes of a plan: values at its peak, parameters and optimizer. */
static nnt_memory planned(int precision)
{
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc d = desc_of(&run_cases[2], "cuda");
    nnt_node x = nnt_input(net, 3, 32, 32);
    nnt_memory m;
    int i;
    memset(&m, 0, sizeof m);
    d.batch = 64;
    d.precision = precision;
    d.recompute = NNT_RECOMPUTE_OFF;
    for (i = 0; i < 4; i++) x = nnt_relu(normalised(x, 16, 3, 1));
    CHECKF(nnt_plan(net, nnt_cross_entropy(nnt_linear(nnt_global_avgpool(x), CLASSES)), d, &m) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
    return m;
}
static void activations_in_bfloat16_take_half_the_memory(void)
{
    nnt_memory whole, half;
    double share;
    if (!has_bfloat16()) SKIP("not on this card");
    whole = planned(NNT_FP32);
    half = planned(NNT_BF16);
    share = (double)(half.activations + half.gradients) / (double)(whole.activations + whole.gradients);
    printf("activations and gradients: %d of %d KiB\n", (int)((half.activations + half.gradients) >> 10), (int)((whole.activations + whole.gradients) >> 10));
    CHECKF(share >= 0.5 && share < 0.55, "%g", share);      /* the input is there as floats too */
    CHECK(half.fixed == whole.fixed && half.total < whole.total);
}
/* Every value of it, in both programs: 2 bytes where that is so, the rest as in floats. */
static void what_is_given_and_taken_stays_floats(void)
{
    nnt_net *net, *half;
    float y[5 * CLASSES], want[5 * CLASSES];
    const nnti_plan *p;
    if (!has_bfloat16()) SKIP("not on this card");
    net = train(&run_cases[4], desc_of(&run_cases[4], "cuda"), 1, NULL);
    precision_now = NNT_BF16;
    half = train(&run_cases[4], desc_of(&run_cases[4], "cuda"), 1, NULL);
    precision_now = NNT_FP32;
    if (net && half) {
        p = &half->plan;
        CHECK(p->train_values[p->x[0]].bytes == net->plan.train_values[net->plan.x[0]].bytes);
        CHECK(p->train.ops[0].kind == NNT_OP_COPY && p->train.ops[0].flags == (NNT_OPF_HALF | NNT_OPF_FLOAT_X));
        CHECK(p->predict_values[p->output].bytes == net->plan.predict_values[net->plan.output].bytes);
        CHECK(nnt_predict(net, data_x, 5, want) == NNT_OK && nnt_predict(half, data_x, 5, y) == NNT_OK);
        CHECKF(error_of(y, want, 5 * CLASSES, 0) < RUN_LIMIT_HALF, "%g", error_of(y, want, 5 * CLASSES, 0));
    }
    nnt_free(net);
    nnt_free(half);
}
enum { MOST_LAYERS = 32 };
static int health_of(nnt_net *net, nnt_layer_health *rows, char *sentence, size_t cap)
{
    nnt_batch b = data_batch(0, MOST_BATCH);
    int count = 0;
    nnt_result r = nnt_health(net, &b, rows, MOST_LAYERS, &count);
    snprintf(sentence, cap, "%s", r ? nnt_error(net) : "");
    return count;
}
static void health_is_told_of_bfloat16_too(void)
{
    static const float not_a_number = NAN;
    nnt_layer_health want[MOST_LAYERS], got[MOST_LAYERS];
    nnt_net *net, *half;
    char text[2][512];
    int count, i;
    if (!has_bfloat16()) SKIP("not on this card");
    net = train(&run_cases[2], desc_of(&run_cases[2], "cuda"), 2, NULL);
    precision_now = NNT_BF16;
    half = train(&run_cases[2], desc_of(&run_cases[2], "cuda"), 2, NULL);
    precision_now = NNT_FP32;
    if (net && half) {
        count = health_of(net, want, text[0], sizeof text[0]);
        CHECK(count > 5 && count == health_of(half, got, text[1], sizeof text[1]));
        CHECK_TEXT(text[0], "");
        CHECK_TEXT(text[1], "");
        for (i = 0; i < count; i++) {
            CHECKF(relative(got[i].output, want[i].output) < 4 * HALF, "%s: output %g, %g", want[i].layer, got[i].output, want[i].output);
            CHECKF(relative(got[i].weight, want[i].weight) < 4 * HALF, "%s: weight %g, %g", want[i].layer, got[i].weight, want[i].weight);
            /* a single value: each of up to 16 layers before it has rounded once */
            CHECKF(relative(got[i].output_max, want[i].output_max) < 16 * HALF, "%s: largest %g, %g", want[i].layer, got[i].output_max, want[i].output_max);
            /* those within a few roundings of 0 may be on either side of it */
            CHECKF(fabs(got[i].zeros - want[i].zeros) < 0.02, "%s: zeros %g, %g", want[i].layer, got[i].zeros, want[i].zeros);
        }
        for (i = 0; i < 2; i++) {
            nnt_net *sick = i ? half : net;
            nnt_tensor *t = nnt_param(sick, "conv2d2.weight");
            float w[8 * 8 * 9];
            CHECK(t && nnt_tensor_size(t, -1) <= 8 * 8 * 9 && nnt_tensor_read(t, w) == NNT_OK);
            w[5] = not_a_number;
            CHECK(t && nnt_tensor_write(t, w) == NNT_OK);
            health_of(sick, got, text[i], sizeof text[i]);
        }
        CHECK(strstr(text[0], "first non-finite value: ") != NULL);
        CHECK_TEXT(text[1], text[0]);
    }
    nnt_free(net);
    nnt_free(half);
}

/* ---- tensors ---- */

static void tensors_have_the_cpus_bits(void)
{
    static const int64_t sizes[5] = { 1, 3, 64, 1001, 70001 };
    nnt_net *net = nnt_new(NULL);
    int i, k;
    for (i = 0; i < 5; i++) {
        const size_t bytes = (size_t)sizes[i] * sizeof(float);
        float *x = (float *)malloc(bytes), *y = (float *)malloc(bytes);
        nnt_tensor *a = nnt_tensor_new(net, "cpu", 1, &sizes[i]), *b = nnt_tensor_new(net, "cuda", 1, &sizes[i]);
        CHECKF(a && b, "%s", nnt_error(net));
        for (k = 0; k < 5 && a && b; k++) {
            nnt_tensor *t[2];
            int side;
            t[0] = a;
            t[1] = b;
            for (side = 0; side < 2; side++) {
                nnt_result r = k == 0 ? nnt_tensor_randn(t[side], 11) : k == 1 ? nnt_tensor_add_noise(t[side], 0.25f, 12)
                             : k == 2 ? nnt_tensor_uniform(t[side], -2.0f, 3.0f, 13) : k == 3 ? nnt_tensor_scale(t[side], 1.7f)
                             : nnt_tensor_add(t[side], t[side], t[side]);
                if (!r) r = nnt_tensor_read(t[side], side ? y : x);
                CHECKF(r == NNT_OK, "%s", nnt_error(net));
            }
            CHECKF(memcmp(x, y, bytes) == 0, "%d values, operation %d: error %g", (int)sizes[i], k, error_of(y, x, (size_t)sizes[i], 0));
        }
        CHECK(a && b && nnt_tensor_fill(a, 2.5f) == NNT_OK && nnt_tensor_copy(b, a) == NNT_OK && nnt_tensor_read(b, y) == NNT_OK);
        CHECK(y[0] == 2.5f && y[sizes[i] - 1] == 2.5f && nnt_tensor_data(b) == NULL);
        free(x);
        free(y);
    }
    nnt_free(net);
}

/* ============================================================================
   What can fail is made to fail
   ============================================================================ */

#ifdef NNT_TEST_ON_DEVICE
#  define EMULATED(name) static void name(void) { SKIP("needs the emulator"); }
EMULATED(every_order_gives_the_same_bits)
EMULATED(winograd_is_used_where_it_should_be)
EMULATED(winograd_is_used_where_it_pays)
EMULATED(winograd_results_do_not_depend_on_the_rest_of_the_batch)
EMULATED(convolutions_by_cudnn)
EMULATED(runs_by_cudnn_equal_the_cpus)
EMULATED(too_little_memory_is_a_sentence_and_no_leak)
EMULATED(too_little_memory_with_cudnn_is_too)
EMULATED(too_large_a_batch_is_told_which_would_fit)
EMULATED(every_call_that_fails_is_an_error_and_no_leak)
EMULATED(failures_in_bfloat16_are_too)
EMULATED(every_call_that_fails_with_cudnn_is_too)
EMULATED(a_kernel_that_dies_is_told_and_the_cpu_goes_on)
EMULATED(devices_that_are_not_there)
EMULATED(products_without_an_epilogue)
EMULATED(two_devices_side_by_side)
EMULATED(kernels_move_no_more_memory_than_they_must)
#else
/* Compile, three steps, of which the third is smaller, predictions for some samples, and away. */
typedef struct life { char sentence[512]; float y[5 * CLASSES]; long calls; } life;      /* calls: before nnt_free */
static nnt_result live(const char *device, life *l)
{
    nnt_net *net = nnt_new(NULL);
    const run_case *c = &run_cases[4];
    nnt_compile_desc d = desc_of(c, device);
    nnt_result r;
    int i;
    memset(l, 0, sizeof *l);
    d.optimizer.clip_norm = 1;
    r = nnt_compile(net, nnt_cross_entropy(c->logits(nnt_input(net, CHANNELS, SIDE, SIDE))), d);
    for (i = 0; i < 3 && !r; i++) {
        nnt_batch b = data_batch(0, i == 2 ? 5 : MOST_BATCH);
        r = nnt_step(net, &b, NULL);
    }
    if (!r) r = nnt_predict(net, data_x, 5, l->y);
    if (r) snprintf(l->sentence, sizeof l->sentence, "%s", nnt_error(net));
    l->calls = coc_calls();
    nnt_free(net);
    return r;
}
/* ---- Winograd: one product for each element of a tile, all in one call */

static void products_for(const naive_conv *s, int batch, int flags, int precision, long of_36, long of_16)
{
    static const int kinds[3] = { NNT_OP_CONV, NNT_OP_CONV_DATA, NNT_OP_CONV_WEIGHT };
    const size_t n = (size_t)s->n;
    float *x = random_floats(n * conv_in(s)), *y = random_floats(n * conv_out(s)), *w = random_floats(conv_weights(s));
    int i;
    for (i = 0; i < 3; i++) {
        const long before_36 = coc_products(36), before_16 = coc_products(16);
        nnt_op op = conv_op(kinds[i], s, flags);
        op.precision = precision;
        op.batch = batch;
        op.at[i == 1 ? NNT_GX : NNT_X] = x;
        op.at[i == 0 ? NNT_Y : NNT_GY] = y;
        op.at[i == 2 ? NNT_GW : NNT_W] = w;
        run_alone(op, s->n, s->n, 0, i == 0 ? NNT_Y : i == 1 ? NNT_GX : NNT_GW);
        CHECKF(coc_products(36) - before_36 == of_36 && coc_products(16) - before_16 == of_16,
               "op kind %d, batch %d, flags %d, precision %d: %ld of 36, %ld of 16", kinds[i], batch, flags, precision,
               coc_products(36) - before_36, coc_products(16) - before_16);
    }
    free(x); free(y); free(w);
}
static void products_are(const naive_conv *s, int flags, int precision, long of_36, long of_16)
{
    products_for(s, 1 << 20, flags, precision, of_36, of_16);
}
static long net_products(nnt_node loss, int batch, int precision)
{
    const long before = coc_products(36);
    nnt_compile_desc d = build("judge", batch, nnt_sgd(0.05f));
    d.precision = precision;
    judge_net(loss, batch, d);
    return coc_products(36) - before;
}
static void winograd_is_used_where_it_should_be(void)
{
    const naive_conv usual = conv_3x3(2, 16, 6, 5, 16, 1, 1), small = conv_3x3(2, 16, 4, 4, 16, 1, 1);
    naive_conv s = usual;
    nnt_conv_desc d = conv(16, 3, 1, 1);
    long before;
    life l;
    products_are(&usual, 0, NNT_FP32, 1, 0);
    products_are(&small, 0, NNT_FP32, 0, 1);
    products_are(&usual, NNT_OPF_EXACT, NNT_FP32, 0, 0);
    products_are(&usual, 0, NNT_TF32, 0, 0);
    products_are(&usual, 0, NNT_BF16, 0, 0);
    s.c = 15;                       products_are(&s, 0, NNT_FP32, 0, 0);
    s = usual; s.f = 15;            products_are(&s, 0, NNT_FP32, 0, 0);
    s = usual; s.kw = 2;            products_are(&s, 0, NNT_FP32, 0, 0);
    s = usual; s.ph = 3;            products_are(&s, 0, NNT_FP32, 0, 0);
    s = usual; s.sw = 2;            products_are(&s, 0, NNT_FP32, 0, 0);
    s = usual; s.dh = 2;            products_are(&s, 0, NNT_FP32, 0, 0);
    s = usual; s.g = 2; s.c = 32; s.f = 32; products_are(&s, 0, NNT_FP32, 0, 0);
    /* two steps of three products, and predictions; a fused one as well as one alone */
    CHECK(net_products(nnt_mse(nnt_conv2d_ex(start(16, 8, 8), d)), 4, NNT_FP32) >= 7);
    CHECK(net_products(nnt_mse(nnt_maxpool(nnt_relu(nnt_conv2d_ex(start(16, 8, 8), d)), 2, 2, 0)), 4, NNT_FP32) >= 7);
    CHECK(net_products(nnt_mse(nnt_conv2d_ex(start(16, 8, 8), d)), 4, NNT_TF32) == 0);
    CHECK(net_products(nnt_mse(nnt_conv2d_ex(start(16, 4, 4), d)), 4, NNT_FP32) == 0);      /* nor tiles of 4x4 there */
    before = coc_products(36);
    CHECKF(live("cuda", &l) == NNT_OK && coc_products(36) > before, "%s", l.sentence);      /* what is made to fail below */
    d.exact = 1;
    CHECK(net_products(nnt_mse(nnt_conv2d_ex(start(16, 8, 8), d)), 4, NNT_FP32) == 0);
}
/* By hand for 64 channels and filters on 12x12, in multiplications and in what the card does while it moves what is more to
   move (times 24): one picture saves 4096 (9 x 144 - 36 x 9) = 4.0e6 and moves 72 (4096 + 128 x 9) - 18 x 64 x 144 = 212e3
   floats, 5.1e6; two save 8.0e6 and move 129e3, 3.1e6. For 32 on 7x7 one picture saves 0.3e6 for 1.5e6; eight save 2.4e6 and
   move less than columns do. Few samples of a plan for many are done as many would be. */
static void winograd_is_used_where_it_pays(void)
{
    naive_conv s = conv_3x3(1, 64, 12, 12, 64, 1, 1);
    nnt_conv_desc d = conv(16, 3, 1, 1);
    products_for(&s, 1, 0, NNT_FP32, 0, 0);
    products_for(&s, 2, 0, NNT_FP32, 1, 0);
    s = conv_3x3(1, 32, 7, 7, 32, 1, 1);
    products_for(&s, 1, 0, NNT_FP32, 0, 0);
    products_for(&s, 8, 0, NNT_FP32, 1, 0);
    CHECK(net_products(nnt_mse(nnt_conv2d_ex(start(16, 8, 8), d)), 1, NNT_FP32) == 0);
    CHECK(net_products(nnt_mse(nnt_conv2d_ex(start(16, 8, 8), d)), 4, NNT_FP32) > 0);
}
/* Nor on the chunk that its tiles come in: those of all samples are other ones than those of each. */
static void winograd_results_do_not_depend_on_the_rest_of_the_batch(void)
{
    naive_conv s = conv_3x3(9, 16, 11, 11, 24, 1, 1);
    const size_t in = conv_in(&s), out = conv_out(&s);
    float *x = random_floats(9 * in), *y = random_floats(9 * out), *gx = random_floats(9 * in), *w = random_floats(conv_weights(&s));
    float *y_alone = random_floats(out), *gx_alone = random_floats(in);
    nnt_op forward = conv_op(NNT_OP_CONV, &s, 0), data = conv_op(NNT_OP_CONV_DATA, &s, 0);
    int i;
    forward.at[NNT_W] = data.at[NNT_W] = w;
    forward.at[NNT_X] = x;
    forward.at[NNT_Y] = data.at[NNT_GY] = y;
    data.at[NNT_GX] = gx;
    run_alone(forward, 9, 9, 0, NNT_Y);
    run_alone(data, 9, 9, 0, NNT_GX);
    for (i = 0; i < 9; i++) {
        forward.at[NNT_X] = x + (size_t)i * in;
        forward.at[NNT_Y] = y_alone;
        data.at[NNT_GY] = y + (size_t)i * out;
        data.at[NNT_GX] = gx_alone;
        run_alone(forward, 1, 1, 0, NNT_Y);
        run_alone(data, 1, 1, 0, NNT_GX);
        CHECK(memcmp(y_alone, y + (size_t)i * out, out * sizeof(float)) == 0);
        CHECK(memcmp(gx_alone, gx + (size_t)i * in, in * sizeof(float)) == 0);
    }
    free(x); free(y); free(gx); free(w); free(y_alone); free(gx_alone);
}
/* ---- with NNT_CUDNN: the same by cuDNN's convolutions, of which the emulator has some when it is asked to */

static int has_cudnn(void)
{
    const long before = coc_convolutions();
    life l;
    coc_cudnn(1);
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
    coc_cudnn(0);
    return coc_convolutions() > before;
}
static void convolutions_by_cudnn(void)
{
    if (!has_cudnn()) SKIP("nntrain_cuda.cu was compiled without NNT_CUDNN");
    coc_cudnn(1);
    convolutions();
    random_convolutions();
    convolutions_with_pooling();
    branches();
    optimizers();
    factors_are_rounded_on_request_only();
    coc_cudnn(0);
}
static void runs_by_cudnn_equal_the_cpus(void)
{
    if (!has_cudnn()) SKIP("nntrain_cuda.cu was compiled without NNT_CUDNN");
    coc_cudnn(1);
    runs_equal_the_cpus();
    values_made_again_change_no_bit();
    coc_cudnn(0);
}
static void memory_is_stepped(int steps)
{
    life l;
    size_t need, limit;
    int refused = 0;
    coc_memory((size_t)1 << 30);
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
    need = coc_peak_bytes();
    for (limit = 0; limit < need; limit += need / (size_t)steps + 1) {
        const long before = coc_live();
        nnt_result r;
        coc_memory(limit);
        r = live("cuda", &l);
        CHECKF(r == NNT_ERR_MEMORY || r == NNT_ERR_DEVICE, "%d of %d bytes: %s", (int)limit, (int)need, nnt_result_name(r));
        CHECKF(strstr(l.sentence, "memory") != NULL && strstr(l.sentence, "cuda") != NULL, "\"%s\"", l.sentence);
        CHECKF(coc_live() == before, "%d of %d bytes: %ld objects are left", (int)limit, (int)need, coc_live() - before);
        refused++;
    }
    CHECK(refused > 5);
    coc_memory(need);
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
    coc_memory((size_t)1 << 33);
}
static void too_little_memory_is_a_sentence_and_no_leak(void) { memory_is_stepped(SLOW ? 12 : 100); }
static void too_little_memory_with_cudnn_is_too(void)
{
    if (!has_cudnn()) SKIP("nntrain_cuda.cu was compiled without NNT_CUDNN");
    coc_cudnn(1);
    memory_is_stepped(SLOW ? 8 : 40);
    coc_cudnn(0);
}
/* What is needed, what is free, and a batch that fits, which then does. */
static void too_large_a_batch_is_told_which_would_fit(void)
{
    nnt_compile_desc d = desc_of(&run_cases[0], "cuda");
    nnt_net *net = nnt_new(NULL);
    nnt_result r;
    const char *fits;
    coc_memory((size_t)8 << 20);
    d.batch = 4096;
    r = nnt_compile(net, nnt_cross_entropy(plain_cnn(nnt_input(net, CHANNELS, SIDE, SIDE))), d);
    fits = strstr(nnt_error(net), "; batch ");
    CHECKF(r == NNT_ERR_MEMORY && fits && strstr(nnt_error(net), " free") != NULL, "%s \"%s\"", nnt_result_name(r), nnt_error(net));
    d.batch = fits ? atoi(fits + 8) : 1;
    CHECKF(d.batch > 1 && d.batch < 4096, "%d", d.batch);
    nnt_free(net);
    net = nnt_new(NULL);
    r = nnt_compile(net, nnt_cross_entropy(plain_cnn(nnt_input(net, CHANNELS, SIDE, SIDE))), d);
    CHECKF(r == NNT_OK, "batch %d: %s", d.batch, nnt_error(net));
    nnt_free(net);
    coc_memory((size_t)1 << 33);
}
/* A call may also be tried in another way (a list of ops that can't be captured is launched op by op), and a plan is made
   without what cuDNN does not tell: then the results are what they were. */
static void every_call_fails_in_turn(int step)
{
    const long start = coc_calls(), start_cudnn = coc_cudnn_calls();
    long before_free, n, all, cudnn, survived = 0;
    life good, l;
    CHECKF(live("cuda", &good) == NNT_OK, "%s", good.sentence);
    all = coc_calls() - start;
    cudnn = coc_cudnn_calls() - start_cudnn;
    before_free = good.calls - start;
    for (n = 1; n <= all && test_case_failed < 5; n += step) {
        const long before = coc_live();
        nnt_result r;
        coc_fail_call(n, 999);              /* cudaErrorUnknown */
        r = live("cuda", &l);
        coc_fail_call(0, 0);
        if (r) CHECKF((r == NNT_ERR_DEVICE || r == NNT_ERR_MEMORY) && strstr(l.sentence, "cuda") != NULL, "call %ld: %s \"%s\"", n,
                      nnt_result_name(r), l.sentence);
        else CHECKF(memcmp(l.y, good.y, sizeof l.y) == 0, "call %ld of %ld", n, all);
        CHECKF(coc_live() == before, "call %ld of %ld (%s): %ld objects are left", n, all, l.sentence, coc_live() - before);
        if (!r && n <= before_free) survived++;
    }
    printf("%ld calls, %ld of them before nnt_free, %ld of cuDNN; %ld were got round\n", all, before_free, cudnn, survived);
    CHECK(survived < (all - cudnn) / 10 + cudnn);
    CHECKF(live("cuda", &l) == NNT_OK && memcmp(l.y, good.y, sizeof l.y) == 0, "%s", l.sentence);
}
static void every_call_that_fails_is_an_error_and_no_leak(void) { every_call_fails_in_turn(SLOW ? 13 : 1); }
static void failures_in_bfloat16_are_too(void)
{
    precision_now = NNT_BF16;
    memory_is_stepped(SLOW ? 8 : 40);
    every_call_fails_in_turn(SLOW ? 41 : 7);
    precision_now = NNT_FP32;
}
static void every_call_that_fails_with_cudnn_is_too(void)
{
    if (!has_cudnn()) SKIP("nntrain_cuda.cu was compiled without NNT_CUDNN");
    coc_cudnn(1);
    every_call_fails_in_turn(SLOW ? 41 : 7);
    coc_cudnn(0);
}
static void a_kernel_that_dies_is_told_and_the_cpu_goes_on(void)
{
    const long start = coc_launches();
    long all, n;
    life l;
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
    all = coc_launches() - start;
    for (n = 1; n <= all && test_case_failed < 5; n += SLOW ? 11 : 3) {
        const long before = coc_live();
        nnt_result r;
        coc_fail_kernel(n);
        r = live("cuda", &l);
        coc_fail_kernel(0);
        CHECKF(r == NNT_ERR_DEVICE && strstr(l.sentence, "cpu") != NULL, "kernel %ld: %s \"%s\"", n, nnt_result_name(r), l.sentence);
        CHECKF(coc_live() == before, "kernel %ld: %ld objects are left", n, coc_live() - before);
        CHECKF(live("cpu", &l) == NNT_OK, "%s", l.sentence);
        coc_recover();
    }
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
}
static void devices_that_are_not_there(void)
{
    life l;
    CHECK(live("cuda:1", &l) == NNT_ERR_DEVICE);
    CHECK_TEXT(l.sentence, "compile: device 'cuda:1': there is 1 of this kind, counted from 0");
    coc_devices(0);
    CHECKF(live("cuda", &l) == NNT_ERR_DEVICE && strstr(l.sentence, "no card") != NULL, "\"%s\"", l.sentence);
    coc_devices(-1);
    CHECKF(live("cuda", &l) == NNT_ERR_DEVICE && strstr(l.sentence, "driver") != NULL, "\"%s\"", l.sentence);
    coc_devices(1);
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
}
/* cublasLt may find no algorithm for a product with a bias behind it: then that is an op of its own. */
static void epilogue_or_not(double limit)
{
    const long before = coc_epilogues();
    long used;
    life with, without;
    CHECKF(live("cuda", &with) == NNT_OK, "%s", with.sentence);
    used = coc_epilogues();
    CHECK(used > before);
    coc_refuse(without_epilogue = 1);
    CHECKF(live("cuda", &without) == NNT_OK, "%s", without.sentence);
    fully_connected();
    cuda->close(judges_gpu);
    judges_gpu = NULL;
    coc_refuse(without_epilogue = 0);
    CHECK(coc_epilogues() == used);
    CHECKF(error_of(without.y, with.y, 5 * CLASSES, 0) < limit, "%g", error_of(without.y, with.y, 5 * CLASSES, 0));
}
static void products_without_an_epilogue(void)
{
    epilogue_or_not(1e-5);
    precision_now = NNT_BF16;
    epilogue_or_not(RUN_LIMIT_HALF);
    precision_now = NNT_FP32;
}
/* Two nets on two devices, in turn; tensors from one to the other. */
static void two_devices_side_by_side(void)
{
    nnt_net *a, *b, *net;
    nnt_tensor *x, *y;
    float *got;
    int64_t size = 300;
    int i;
    coc_devices(2);
    a = train(&run_cases[0], desc_of(&run_cases[0], "cuda:0"), 1, NULL);
    b = train(&run_cases[0], desc_of(&run_cases[0], "cuda:1"), 1, NULL);
    for (i = 0; i < 3 && a && b; i++) {
        nnt_batch batch = data_batch(i, MOST_BATCH);
        CHECK(nnt_step(a, &batch, NULL) == NNT_OK && nnt_step(b, &batch, NULL) == NNT_OK);
    }
    if (a && b) CHECK(same_state(a, b));
    nnt_free(a);
    nnt_free(b);
    net = nnt_new(NULL);
    x = nnt_tensor_new(net, "cuda:0", 1, &size);
    y = nnt_tensor_new(net, "cuda:1", 1, &size);
    got = (float *)malloc((size_t)size * sizeof *got);
    CHECKF(x && y && nnt_tensor_fill(x, 3) == NNT_OK && nnt_tensor_copy(y, x) == NNT_OK && nnt_tensor_read(y, got) == NNT_OK && got[299] == 3, "%s", nnt_error(net));
    free(got);
    nnt_free(net);
    coc_devices(1);
}

/* Sectors that are moved for those that the values take, from the first blocks of each launch. */
typedef struct traffic_bound { const char *kernel; double most; const char *why; } traffic_bound;
static const traffic_bound traffic_bounds[] = {
    { "nnti_cuda_map",            1.05, "four values a thread, side by side" },
    { "nnti_cuda_step",           1.05, "the update: as map" },
    { "nnti_cuda_random_each",    1.3,  "four values a thread; a sample may begin within a sector" },
    { "nnti_cuda_wino_write",     1.3,  "neighbouring tiles; rows of 6 values, of its smaller map, are written one by one" },
    { "nnti_cuda_wino_read",      2.6,  "windows overlap and begin at every fourth value: the L1 cache has what a thread's next reads" }
};
static void kernels_move_no_more_memory_than_they_must(void)
{
    life l;
    size_t i;
#ifndef COC_RACE
    SKIP("counted by the race build");
#endif
    coc_count_traffic(1);
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
    precision_now = NNT_BF16;
    CHECKF(live("cuda", &l) == NNT_OK, "%s", l.sentence);
    precision_now = NNT_FP32;
    coc_count_traffic(0);
    for (i = 0; i < sizeof traffic_bounds / sizeof traffic_bounds[0]; i++) {
        const coc_traffic t = coc_traffic_of(traffic_bounds[i].kernel);
        printf("%s: %.0f requests, %.0f sectors, %.0f at least; %.0f passes, %.0f at least\n", traffic_bounds[i].kernel, t.requests, t.sectors,
               t.least_sectors, t.passes, t.least_passes);
        CHECKF(t.requests > 0 && t.sectors <= traffic_bounds[i].most * t.least_sectors, "%s: %g sectors for %g", traffic_bounds[i].kernel,
               t.sectors, t.least_sectors);
        CHECKF(t.passes <= 1.05 * t.least_passes, "%s: %g passes through shared memory for %g", traffic_bounds[i].kernel, t.passes, t.least_passes);
    }
}
#endif

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    find_cuda();
    if (!cuda) { printf("there is no backend \"cuda\"\n0 passed, 1 failed, 0 skipped\n"); return 1; }
    register_judge();
#ifndef NNT_TEST_ON_DEVICE
    coc_streams(COC_LATE);
#endif
    make_data();
    TEST(convolutions);
    TEST(random_convolutions);
    TEST(winograd_on_maps_that_tiles_do_not_fill);
    TEST(winograd_every_option_alone_and_together);
    TEST(winograd_chunks_of_tiles);
    TEST(winograd_error_over_many_channels);
    TEST(winograd_is_used_where_it_should_be);
    TEST(winograd_is_used_where_it_pays);
    TEST(winograd_results_do_not_depend_on_the_rest_of_the_batch);
    TEST(fully_connected);
    TEST(activations);
    TEST(poolings);
    TEST(batchnorms);
    TEST(convolutions_with_pooling);
    TEST(chance);
    TEST(branches);
    TEST(winograd_in_nets);
    TEST(bytes);
    TEST(losses);
    TEST(optimizers);
    TEST(factors_are_rounded_on_request_only);
    TEST(random_nets);
    TEST(ops_on_bfloat16);
    TEST(convolutions_by_cudnn);
    TEST(every_kind_of_op_was_compared);
    TEST(every_order_gives_the_same_bits);
    if (PART) return TEST_END();
    TEST(runs_equal_the_cpus);
    TEST(batches_in_parts_equal_the_cpus_whole_ones);
    TEST(runs_give_the_same_bits_again);
    TEST(values_made_again_change_no_bit);
    TEST(predicting_in_between_changes_nothing);
    TEST(predictions_and_evaluations_equal_the_cpus);
    TEST(runs_in_bfloat16_follow_the_cpus);
    TEST(batches_in_parts_in_bfloat16_do_too);
    TEST(runs_in_bfloat16_give_the_same_bits_again);
    TEST(values_made_again_in_bfloat16_change_no_bit);
    TEST(predicting_in_bfloat16_changes_nothing);
    TEST(predictions_in_bfloat16_follow_the_cpus);
    TEST(nets_learn_in_bfloat16_as_in_floats);
    TEST(activations_in_bfloat16_take_half_the_memory);
    TEST(what_is_given_and_taken_stays_floats);
    TEST(health_is_told_of_bfloat16_too);
    TEST(tensors_have_the_cpus_bits);
    TEST(runs_by_cudnn_equal_the_cpus);
    TEST(too_little_memory_is_a_sentence_and_no_leak);
    TEST(too_little_memory_with_cudnn_is_too);
    TEST(too_large_a_batch_is_told_which_would_fit);
    TEST(every_call_that_fails_is_an_error_and_no_leak);
    TEST(failures_in_bfloat16_are_too);
    TEST(every_call_that_fails_with_cudnn_is_too);
    TEST(a_kernel_that_dies_is_told_and_the_cpu_goes_on);
    TEST(devices_that_are_not_there);
    TEST(products_without_an_epilogue);
    TEST(two_devices_side_by_side);
    TEST(kernels_move_no_more_memory_than_they_must);
    return TEST_END();
}
