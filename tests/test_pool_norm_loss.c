/* Pooling, batch normalisation, softmax and losses: CPU kernels against naive loops in double, which stand here and are
   themselves proven by finite differences and by values that PyTorch gave (float64). Every instruction set of this machine
   runs, with 1, 2, 3 and 8 threads, whose results must be equal in every bit. Buffers have guard words around them. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

/* ---- buffers ---- */

enum { GUARD = 64, MAX_BUFFERS = 64 };
typedef struct buffer { char *raw, *p; size_t bytes; } buffer;
static buffer buffers[MAX_BUFFERS];
static int buffer_count;

/* Bytes aligned to 64 with a pattern before and behind, until the next release_buffers. */
static void *new_bytes(size_t bytes)
{
    buffer *b = &buffers[buffer_count++];
    if (buffer_count > MAX_BUFFERS) exit(2);
    b->raw = (char *)malloc(bytes + 2 * GUARD + 64);
    if (!b->raw) exit(2);
    b->p = b->raw + GUARD;
    b->p += (64 - (size_t)(uintptr_t)b->p % 64) % 64;
    b->bytes = bytes;
    memset(b->p - GUARD, 0x5a, GUARD);
    memset(b->p + bytes, 0x5a, GUARD);
    memset(b->p, 0x77, bytes);
    return b->p;
}
static float *new_floats(int64_t n) { return (float *)new_bytes((size_t)n * sizeof(float)); }
static double *new_doubles(int64_t n) { return (double *)new_bytes((size_t)n * sizeof(double)); }

static void release_buffers(void)
{
    int i, k;
    for (i = 0; i < buffer_count; i++) {
        buffer *b = &buffers[i];
        for (k = 0; k < GUARD; k++) CHECK(b->p[k - GUARD] == 0x5a && b->p[b->bytes + (size_t)k] == 0x5a);
        free(b->raw);
    }
    buffer_count = 0;
}

static uint32_t random_state = 1;
static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}
static float random_float(void) { return (float)(int32_t)random_u32() / 2147483648.0f; }       /* [-1, 1) */
static float *random_floats(int64_t n)
{
    float *p = new_floats(n);
    int64_t i;
    for (i = 0; i < n; i++) p[i] = random_float();
    return p;
}
/* Few different values, all below -1: ties, and padding must not win. */
static float *tied_floats(int64_t n)
{
    float *p = new_floats(n);
    int64_t i;
    for (i = 0; i < n; i++) p[i] = -2.0f - (float)(random_u32() % 3);
    return p;
}
static float *copy_floats(const float *from, int64_t n)
{
    float *p = new_floats(n);
    memcpy(p, from, (size_t)n * sizeof *p);
    return p;
}
static double *to_doubles(const float *from, int64_t n)
{
    double *p = new_doubles(n);
    int64_t i;
    for (i = 0; i < n; i++) p[i] = (double)from[i];
    return p;
}
/* Norm of the difference over norm of what is wanted (absolute where that is 0). */
static double error_of(const float *got, const double *want, int64_t n)
{
    double difference = 0, norm = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        if (!(d * d <= 1e300)) return 1e300;
        difference += d * d;
        norm += want[i] * want[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
static double error_of_values(const float *got, const double *want, int64_t n, double scale)
{
    double worst = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - want[i]) / scale;
        if (!(d <= worst)) worst = d <= 1e300 ? d : 1e300;
    }
    return worst;
}
static int is_nan(float f) { uint32_t u; memcpy(&u, &f, 4); return (u & 0x7fffffffu) > 0x7f800000u; }
static float bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

/* ---- running a kernel everywhere ---- */

typedef void (*kernel_fn)(const nnti_exec *e, const nnt_op *op, const nnt_run *run);

static const int thread_counts[4] = { 1, 2, 3, 8 };
static nnti_pool *pools[4];
static int isas[3], isa_count;
static int configurations;

static void start_pools(void)
{
    const nnt_allocator a = nnti_allocator(NULL);
    int i;
    for (i = 0; i < 4; i++) pools[i] = nnti_pool_start(&a, thread_counts[i]);
    isas[isa_count++] = NNTI_ISA_C;
    if (nnti_isa_best() == NNTI_ISA_NEON) isas[isa_count++] = NNTI_ISA_NEON;
    if (nnti_isa_best() == NNTI_ISA_AVX2 || nnti_isa_best() == NNTI_ISA_AVX512) isas[isa_count++] = NNTI_ISA_AVX2;
    if (nnti_isa_best() == NNTI_ISA_AVX512) isas[isa_count++] = NNTI_ISA_AVX512;
}
static void stop_pools(void)
{
    int i;
    for (i = 0; i < 4; i++) nnti_pool_stop(pools[i]);
}

/* What a kernel writes. start: its content before each run. */
typedef struct output { void *p; size_t bytes; void *start, *first; } output;
typedef struct outputs { output o[8]; int count; } outputs;

static void add_output(outputs *list, void *p, size_t bytes)
{
    output *o = &list->o[list->count++];
    o->p = p;
    o->bytes = bytes;
    o->start = new_bytes(bytes);
    o->first = new_bytes(bytes);
    memcpy(o->start, p, bytes);
}
static void add_floats(outputs *list, float *p, int64_t n) { add_output(list, p, (size_t)n * sizeof *p); }

/* Runs the kernel with every thread count from the same start. 1 when all results have the same bits. */
static int same_for_all_threads(kernel_fn k, const nnt_op *op, const nnt_run *run, int isa, outputs *list)
{
    int t, i, same = 1;
    for (t = 0; t < 4; t++) {
        nnti_exec e;
        e.pool = pools[t];
        e.isa = isa;
        for (i = 0; i < list->count; i++) memcpy(list->o[i].p, list->o[i].start, list->o[i].bytes);
        k(&e, op, run);
        for (i = 0; i < list->count; i++) {
            if (t == 0) memcpy(list->o[i].first, list->o[i].p, list->o[i].bytes);
            else if (memcmp(list->o[i].first, list->o[i].p, list->o[i].bytes)) same = 0;
        }
    }
    return same;
}

static nnt_op new_op(int kind, int c, int h, int w, int oc, int oh, int ow)
{
    nnt_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.in_c = c; op.in_h = h; op.in_w = w;
    op.out_c = oc; op.out_h = oh; op.out_w = ow;
    op.dilation_h = op.dilation_w = op.groups = 1;
    op.name = "test";
    return op;
}
static nnt_run new_run(int count)
{
    nnt_run run;
    memset(&run, 0, sizeof run);
    run.count = count;
    return run;
}
/* Finally gx = mask > 0 ? gx : 0, and before that gx += where asked for: what the flags mean, on a naive gradient. */
static void finish_naive(double *gx, int64_t n, const nnt_op *op, const float *start)
{
    const float *mask = (const float *)op->at[NNT_MASK];
    int64_t i;
    for (i = 0; i < n; i++) {
        if (op->flags & NNT_OPF_ACCUMULATE) gx[i] += (double)start[i];
        if (op->flags & NNT_OPF_MASK) gx[i] = mask[i] > 0 ? gx[i] : 0;
    }
}

/* ============================================================================
   Pooling
   ============================================================================ */

typedef struct pool_case { int n, c, h, w, kh, kw, sh, sw, ph, pw, ceil_mode; } pool_case;

static const pool_case pool_cases[] = {
    /* n  c   h   w  kh kw sh sw ph pw ceil */
    {  1, 1,  1,  1,  1, 1, 1, 1, 0, 0, 0 },     /* the smallest */
    {  1, 1,  1,  1,  3, 3, 2, 2, 1, 1, 0 },     /* a window that is mostly padding */
    {  1, 1,  2,  2,  2, 2, 2, 2, 0, 0, 0 },
    {  1, 1,  3,  3,  2, 2, 2, 2, 0, 0, 0 },     /* the last row and column are left out */
    {  1, 1,  3,  3,  2, 2, 2, 2, 0, 0, 1 },     /* or have windows of their own */
    {  2, 3,  8,  8,  2, 2, 2, 2, 0, 0, 0 },
    {  1, 2,  7,  7,  2, 2, 2, 2, 0, 0, 0 },
    {  1, 2,  7,  7,  2, 2, 2, 2, 0, 0, 1 },
    {  2, 3, 16, 16,  2, 2, 2, 2, 0, 0, 0 },     /* 8 wide outputs: one vector */
    {  1, 2, 17, 17,  2, 2, 2, 2, 0, 0, 1 },
    {  1, 1, 18, 18,  2, 2, 2, 2, 0, 0, 0 },     /* a vector and one */
    {  2, 2, 28, 28,  2, 2, 2, 2, 0, 0, 0 },
    {  1, 3, 30, 31,  2, 2, 2, 2, 1, 1, 0 },
    {  1, 1, 33, 35,  2, 2, 2, 2, 1, 1, 1 },
    {  1, 2, 55, 55,  3, 3, 2, 2, 0, 0, 0 },     /* AlexNet's */
    {  1, 2, 27, 27,  3, 3, 2, 2, 0, 0, 0 },
    {  2, 2, 13, 13,  3, 3, 2, 2, 0, 0, 0 },
    {  1, 2, 56, 56,  3, 3, 2, 2, 1, 1, 0 },     /* ResNet's */
    {  1, 1, 24, 25,  3, 3, 2, 2, 1, 1, 1 },
    {  1, 1, 25, 24,  3, 3, 2, 2, 1, 1, 1 },
    {  2, 1,  5,  6,  3, 3, 2, 2, 1, 1, 1 },
    {  1, 1,  4,  4,  3, 3, 2, 2, 0, 0, 1 },
    {  1, 2, 14, 14,  3, 3, 1, 1, 1, 1, 0 },     /* stride 1, as Inception's */
    {  1, 2,  9, 17,  3, 3, 1, 1, 1, 1, 0 },
    {  1, 1,  9, 40,  2, 5, 1, 1, 1, 2, 0 },
    {  1, 1, 11, 23,  5, 5, 1, 1, 2, 2, 0 },
    {  1, 1, 20, 21,  5, 5, 2, 2, 2, 2, 1 },
    {  1, 1, 21, 20,  4, 4, 2, 2, 2, 2, 0 },
    {  1, 2, 19, 23,  3, 2, 2, 1, 1, 0, 0 },     /* rectangular */
    {  1, 2, 19, 23,  2, 3, 1, 2, 0, 1, 1 },
    {  2, 1, 10, 30,  1, 4, 1, 2, 0, 2, 1 },
    {  2, 1, 30, 10,  4, 1, 2, 1, 2, 0, 0 },
    {  1, 1, 12, 12,  2, 2, 3, 3, 0, 0, 0 },     /* stride larger than the kernel: some inputs are in no window */
    {  1, 1, 11, 12,  2, 2, 3, 3, 1, 1, 1 },
    {  1, 1,  8,  9,  1, 1, 2, 2, 0, 0, 0 },
    {  1, 1, 13, 11,  1, 1, 3, 2, 0, 0, 1 },
    {  1, 1, 10, 10,  3, 3, 3, 3, 1, 1, 0 },
    {  1, 1, 10, 11,  3, 3, 3, 3, 1, 1, 1 },
    {  1, 3,  6,  6,  6, 6, 6, 6, 0, 0, 0 },     /* the kernel is the input */
    {  1, 1,  5,  4,  7, 6, 1, 1, 1, 1, 0 },     /* and the padded input */
    {  1, 1, 16, 16, 16, 16, 2, 2, 8, 8, 0 },    /* 256 values: the last index that fits a byte is 255 */
    {  1, 1, 18, 20, 17, 16, 1, 2, 3, 8, 0 },    /* 272: four bytes */
    {  1, 1, 20, 20, 1, 300, 1, 20, 0, 150, 1 }, /* wide windows that start in the padding */
    {  1, 1,  3,  5,  2, 4, 1, 4, 1, 2, 1 },
    {  3, 5,  5,  7,  3, 3, 2, 1, 1, 1, 1 },
    {  8, 64, 6,  6,  3, 3, 2, 2, 1, 1, 0 },     /* several chunks */
    {  2, 20, 32, 34, 2, 2, 2, 2, 0, 0, 0 },
};
enum { POOL_CASES = (int)(sizeof pool_cases / sizeof pool_cases[0]) };

/* PyTorch's pooling_output_shape. */
static int pooled(int size, int kernel, int stride, int pad, int ceil_mode)
{
    int out = (size + 2 * pad - kernel + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    if (ceil_mode && (out - 1) * stride >= size + pad) out--;
    return out;
}
static nnt_op pool_op(int kind, const pool_case *p)
{
    nnt_op op = new_op(kind, p->c, p->h, p->w, p->c, pooled(p->h, p->kh, p->sh, p->ph, p->ceil_mode),
                       pooled(p->w, p->kw, p->sw, p->pw, p->ceil_mode));
    op.kernel_h = p->kh; op.kernel_w = p->kw;
    op.stride_h = p->sh; op.stride_w = p->sw;
    op.pad_h = p->ph; op.pad_w = p->pw;
    return op;
}
static const char *pool_text(const pool_case *p)
{
    static char text[160];
    snprintf(text, sizeof text, "pool n=%d c=%d h=%d w=%d k=%dx%d s=%dx%d p=%dx%d ceil=%d",
             p->n, p->c, p->h, p->w, p->kh, p->kw, p->sh, p->sw, p->ph, p->pw, p->ceil_mode);
    return text;
}
static int64_t in_size(const nnt_op *op, int n) { return (int64_t)n * op->in_c * op->in_h * op->in_w; }
static int64_t out_size(const nnt_op *op, int n) { return (int64_t)n * op->out_c * op->out_h * op->out_w; }

/* y and the place of each maximum in its plane; padded positions are walked over and left out. */
static void naive_maxpool(const nnt_op *op, int n, const double *x, double *y, int64_t *at)
{
    int64_t p, planes = (int64_t)n * op->in_c;
    int oy, ox, ky, kx;
    for (p = 0; p < planes; p++)
        for (oy = 0; oy < op->out_h; oy++)
            for (ox = 0; ox < op->out_w; ox++) {
                int64_t best = -1;
                for (ky = 0; ky < op->kernel_h; ky++)
                    for (kx = 0; kx < op->kernel_w; kx++) {
                        const int iy = oy * op->stride_h - op->pad_h + ky, ix = ox * op->stride_w - op->pad_w + kx;
                        int64_t i;
                        if (iy < 0 || iy >= op->in_h || ix < 0 || ix >= op->in_w) continue;
                        i = (p * op->in_h + iy) * op->in_w + ix;
                        if (best < 0 || x[i] > x[best]) best = i;
                    }
                *y++ = x[best];
                *at++ = best;
            }
}
/* i * size / out rounded down or up, found by counting. */
static int adaptive_edge(int i, int size, int out, int up)
{
    int edge = 0;
    while ((edge + 1) * out <= i * size) edge++;
    return up && edge * out < i * size ? edge + 1 : edge;
}
/* Means over windows: adaptive by PyTorch's start and end, plain by walking over the padded input. scatter: the gradient. */
static void naive_mean(const nnt_op *op, int n, double *x, double *y, int scatter)
{
    const int adaptive = op->kind == NNT_OP_ADAPTIVE || op->kind == NNT_OP_ADAPTIVE_GRAD;
    int64_t p, planes = (int64_t)n * op->in_c;
    int oy, ox, iy, ix;
    for (p = 0; p < planes; p++)
        for (oy = 0; oy < op->out_h; oy++)
            for (ox = 0; ox < op->out_w; ox++, y++) {
                int top = oy * op->stride_h - op->pad_h, left = ox * op->stride_w - op->pad_w, pass;
                int bottom = top + op->kernel_h, right = left + op->kernel_w;
                double sum = 0, count = 0;
                if (adaptive) {
                    top = adaptive_edge(oy, op->in_h, op->out_h, 0);
                    left = adaptive_edge(ox, op->in_w, op->out_w, 0);
                    bottom = adaptive_edge(oy + 1, op->in_h, op->out_h, 1);
                    right = adaptive_edge(ox + 1, op->in_w, op->out_w, 1);
                }
                for (pass = 0; pass < 2; pass++) {      /* count and sum, then scatter */
                    if (pass == 1 && !scatter) break;
                    for (iy = top; iy < bottom; iy++)
                        for (ix = left; ix < right; ix++) {
                            const int inside = iy >= 0 && iy < op->in_h && ix >= 0 && ix < op->in_w;
                            const int padded = iy < op->in_h + op->pad_h && ix < op->in_w + op->pad_w;
                            const int64_t i = (p * op->in_h + iy) * op->in_w + ix;
                            if (pass == 0 && (inside || (padded && op->variant == 0))) count += 1;
                            if (pass == 0 && inside) sum += x[i];
                            if (pass == 1 && inside) x[i] += *y / count;
                        }
                }
                if (!scatter) *y = sum / count;
            }
}

static void maxpool_equals_naive(void)
{
    int k, i, tied;
    for (k = 0; k < POOL_CASES; k++)
        for (tied = 0; tied < 2; tied++) {
            const pool_case *p = &pool_cases[k];
            nnt_op op = pool_op(NNT_OP_MAXPOOL, p);
            const nnt_run run = new_run(p->n);
            const int64_t in = in_size(&op, p->n), out = out_size(&op, p->n);
            const int wide = p->kh * p->kw > 256;
            float *x = tied ? tied_floats(in) : random_floats(in), *y = new_floats(out);
            void *aux = new_bytes((size_t)out * (wide ? 4 : 1));
            double *want = new_doubles(out);
            int64_t *at = (int64_t *)new_bytes((size_t)out * sizeof *at), j;
            outputs list;
            list.count = 0;
            naive_maxpool(&op, p->n, to_doubles(x, in), want, at);
            op.at[NNT_X] = x;
            op.at[NNT_Y] = y;
            op.at[NNT_AUX] = aux;
            add_floats(&list, y, out);
            add_output(&list, aux, (size_t)out * (wide ? 4 : 1));
            for (i = 0; i < isa_count; i++) {
                CHECKF(same_for_all_threads(nnti_cpu_maxpool, &op, &run, isas[i], &list), "%s isa=%d", pool_text(p), isas[i]);
                CHECKF(error_of(y, want, out) <= 0, "%s isa=%d", pool_text(p), isas[i]);
                for (j = 0; j < out; j++) {
                    const int32_t index = wide ? ((int32_t *)aux)[j] : ((uint8_t *)aux)[j];
                    const int64_t in_plane = at[j] % ((int64_t)p->h * p->w), o = j % ((int64_t)op.out_h * op.out_w);
                    const int64_t ky = in_plane / p->w - (o / op.out_w * p->sh - p->ph);
                    const int64_t kx = in_plane % p->w - (o % op.out_w * p->sw - p->pw);
                    if (index != ky * p->kw + kx) break;
                }
                CHECKF(j == out, "%s isa=%d index %d", pool_text(p), isas[i], (int)j);
                op.at[NNT_AUX] = NULL;                  /* prediction: the same values without indices */
                memset(y, 0, (size_t)out * sizeof *y);
                { nnti_exec e; e.pool = pools[1]; e.isa = isas[i]; nnti_cpu_maxpool(&e, &op, &run); }
                CHECKF(error_of(y, want, out) <= 0, "%s isa=%d without indices", pool_text(p), isas[i]);
                op.at[NNT_AUX] = aux;
            }
            configurations++;
            release_buffers();
        }
}
static void maxpool_grad_equals_naive(void)
{
    int k, i, flags;
    for (k = 0; k < POOL_CASES; k++)
        for (flags = 0; flags < 4; flags++) {
            const pool_case *p = &pool_cases[k];
            nnt_op op = pool_op(NNT_OP_MAXPOOL, p);
            const nnt_run run = new_run(p->n);
            const int64_t in = in_size(&op, p->n), out = out_size(&op, p->n);
            float *x = tied_floats(in), *gy = random_floats(out), *gx = random_floats(in), *mask = random_floats(in);
            double *want = new_doubles(in);
            int64_t *at = (int64_t *)new_bytes((size_t)out * sizeof *at), j;
            nnti_exec e;
            outputs list;
            list.count = 0;
            e.pool = pools[0];
            e.isa = NNTI_ISA_C;
            op.flags = (flags & 1 ? NNT_OPF_ACCUMULATE : 0) | (flags & 2 ? NNT_OPF_MASK : 0);
            op.at[NNT_X] = x;
            op.at[NNT_Y] = new_floats(out);
            op.at[NNT_AUX] = new_bytes((size_t)out * (p->kh * p->kw > 256 ? 4 : 1));
            op.at[NNT_GY] = gy;
            op.at[NNT_GX] = gx;
            op.at[NNT_MASK] = mask;
            nnti_cpu_maxpool(&e, &op, &run);
            naive_maxpool(&op, p->n, to_doubles(x, in), new_doubles(out), at);
            for (j = 0; j < in; j++) want[j] = 0;
            for (j = 0; j < out; j++) want[at[j]] += (double)gy[j];
            finish_naive(want, in, &op, gx);
            add_floats(&list, gx, in);
            op.kind = NNT_OP_MAXPOOL_GRAD;
            for (i = 0; i < isa_count; i++) {
                CHECKF(same_for_all_threads(nnti_cpu_maxpool_grad, &op, &run, isas[i], &list), "%s isa=%d", pool_text(p), isas[i]);
                /* up to 272 floats are added one by one */
                CHECKF(error_of(gx, want, in) < 1e-6, "%s isa=%d flags=%d: %g", pool_text(p), isas[i], flags, error_of(gx, want, in));
            }
            release_buffers();
        }
}
/* Means: forward and gradient for one op, with all flags. kinds: forward, gradient. */
static void check_mean(const nnt_op *shape, int n, kernel_fn forward, kernel_fn backward, int grad_kind, const char *text)
{
    nnt_op op = *shape;
    const nnt_run run = new_run(n);
    const int64_t in = in_size(&op, n), out = out_size(&op, n);
    float *x = random_floats(in), *y = new_floats(out), *gy = random_floats(out), *gx = random_floats(in), *mask = random_floats(in);
    double *want = new_doubles(out), *want_gx = new_doubles(in);
    outputs list, grads;
    int i, flags;
    int64_t j;
    list.count = grads.count = 0;
    op.at[NNT_X] = x; op.at[NNT_Y] = y; op.at[NNT_GY] = gy; op.at[NNT_GX] = gx; op.at[NNT_MASK] = mask;
    add_floats(&list, y, out);
    add_floats(&grads, gx, in);
    naive_mean(&op, n, to_doubles(x, in), want, 0);
    for (i = 0; i < isa_count; i++) {
        CHECKF(same_for_all_threads(forward, &op, &run, isas[i], &list), "%s isa=%d", text, isas[i]);
        /* sums are taken in double: only the result's rounding is left */
        CHECKF(error_of(y, want, out) < 6e-8, "%s isa=%d: %g", text, isas[i], error_of(y, want, out));
    }
    op.kind = grad_kind;
    for (flags = 0; flags < 4; flags++) {
        double *d = to_doubles(gy, out);
        op.flags = (flags & 1 ? NNT_OPF_ACCUMULATE : 0) | (flags & 2 ? NNT_OPF_MASK : 0);
        for (j = 0; j < in; j++) want_gx[j] = 0;
        naive_mean(&op, n, want_gx, d, 1);
        finish_naive(want_gx, in, &op, (const float *)grads.o[0].start);
        for (i = 0; i < isa_count; i++) {
            CHECKF(same_for_all_threads(backward, &op, &run, isas[i], &grads), "%s isa=%d", text, isas[i]);
            CHECKF(error_of(gx, want_gx, in) < 1e-6, "%s isa=%d flags=%d: %g", text, isas[i], flags, error_of(gx, want_gx, in));
        }
    }
    configurations++;
    release_buffers();
}
static void avgpool_and_gradient_equal_naive(void)
{
    int k, variant;
    for (k = 0; k < POOL_CASES; k++)
        for (variant = 0; variant < 2; variant++) {
            nnt_op op = pool_op(NNT_OP_AVGPOOL, &pool_cases[k]);
            op.variant = variant;
            check_mean(&op, pool_cases[k].n, nnti_cpu_avgpool, nnti_cpu_avgpool_grad, NNT_OP_AVGPOOL_GRAD, pool_text(&pool_cases[k]));
        }
}

static const int adaptive_cases[][6] = {
    /* n   c   h   w  oh  ow */
    {  1,  1,  1,  1,  1,  1 },
    {  1,  1, 10, 10,  3,  3 },
    {  2,  3, 10,  7,  3,  4 },
    {  1,  2,  7,  7,  1,  1 },
    {  3,  5, 13, 13,  6,  6 },
    {  2,  2, 13, 13,  1,  1 },
    {  1,  1, 64, 63,  1,  1 },
    {  2,  2,  3,  4,  7,  5 },      /* more out than in: windows overlap */
    {  1,  2,  1,  1,  6,  6 },
    {  1,  2,  6,  6,  6,  6 },
    {  1,  1,  5,  9,  1,  9 },
    {  1,  1,  5,  9,  5,  1 },
    {  2,  1, 17,  3,  4,  2 },
    {  1,  3,  8, 12,  2,  3 },
    {  4, 64,  7,  7,  1,  1 },
    {  4, 64, 14, 14,  6,  6 },
    {  1,  1,  2, 31,  1, 30 },
    {  1,  1,  1,  5,  1,  1 },
};
enum { ADAPTIVE_CASES = (int)(sizeof adaptive_cases / sizeof adaptive_cases[0]) };

static void adaptive_avgpool_and_gradient_equal_naive(void)
{
    int k;
    for (k = 0; k < ADAPTIVE_CASES; k++) {
        const int *a = adaptive_cases[k];
        const nnt_op op = new_op(NNT_OP_ADAPTIVE, a[1], a[2], a[3], a[1], a[4], a[5]);
        char text[96];
        snprintf(text, sizeof text, "adaptive n=%d c=%d h=%d w=%d oh=%d ow=%d", a[0], a[1], a[2], a[3], a[4], a[5]);
        check_mean(&op, a[0], nnti_cpu_adaptive, nnti_cpu_adaptive_grad, NNT_OP_ADAPTIVE_GRAD, text);
    }
}
/* torch 2.15, float64: x = arange(30) * 7 % 11 - 4 as 5 x 6, F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d. */
static void pooling_equals_recorded_values(void)
{
    static const double maxima[12] = { 5, 6, 6, -2, 5, 6, 5, 5, 6, 6, 5, 3 };
    static const int places[12] = { 6, 3, 3, 5, 6, 14, 17, 17, 25, 25, 28, 23 };
    static const int nan_places[12] = { 7, 7, 3, 5, 7, 14, 17, 17, 25, 25, 28, 23 };
    static const double with_pad[12] = { 0.5555555555555556, 1.1111111111111112, 0.6666666666666666, -1.0,
        0.6666666666666666, 1.1111111111111112, 0.4444444444444444, 0.6666666666666666, 0.3333333333333333,
        0.7777777777777778, 0.3333333333333333, 0.6666666666666666 };
    static const double without_pad[12] = { 1.25, 1.6666666666666667, 1.0, -3.0, 1.0, 1.1111111111111112,
        0.4444444444444444, 1.3333333333333333, 0.75, 1.1666666666666667, 0.5, 2.0 };
    static const double with_pad_4_3[6] = { 0.5625, 0.8125, -0.125, 1.0625, 1.25, 1.125 };
    static const double without_pad_4_3[6] = { 1.0, 1.0833333333333333, -0.3333333333333333, 1.8888888888888888,
        1.6666666666666667, 3.0 };
    static const double up[28] = { -0.5, 1.0, 4.0, 0.0, 1.25, 0.0, 3.0, -1.0, 2.0, 0.75, 1.0, -0.25, 1.0, 2.5, 0.0, 1.5,
        0.0, 1.5, -1.0, 0.5, 0.75, 2.25, -0.25, 1.25, 2.5, 4.0, 1.5, 3.0 };
    static const pool_case three = { 1, 1, 5, 6, 3, 3, 2, 2, 1, 1, 1 }, four = { 1, 1, 5, 6, 4, 4, 3, 3, 1, 1, 1 };
    float x[30], y[28];
    uint8_t aux[12];
    const nnt_run run = new_run(1);
    nnt_op op, average, narrow, adaptive;
    int i, k, nans;
    for (i = 0; i < 30; i++) x[i] = (float)(i * 7 % 11 - 4);
    for (k = 0; k < isa_count; k++) {
        nnti_exec e;
        e.pool = NULL;
        e.isa = isas[k];
        average = pool_op(NNT_OP_AVGPOOL, &three);
        narrow = pool_op(NNT_OP_AVGPOOL, &four);
        adaptive = new_op(NNT_OP_ADAPTIVE, 1, 5, 6, 1, 7, 4);
        average.at[NNT_X] = narrow.at[NNT_X] = adaptive.at[NNT_X] = x;
        average.at[NNT_Y] = narrow.at[NNT_Y] = adaptive.at[NNT_Y] = y;
        CHECK(average.out_h == 3 && average.out_w == 4 && narrow.out_h == 2 && narrow.out_w == 3);
        nnti_cpu_avgpool(&e, &average, &run);
        CHECK(error_of(y, with_pad, 12) < 6e-8);
        nnti_cpu_avgpool(&e, &narrow, &run);
        CHECK(error_of(y, with_pad_4_3, 6) < 6e-8);
        average.variant = narrow.variant = 1;
        nnti_cpu_avgpool(&e, &average, &run);
        CHECK(error_of(y, without_pad, 12) < 6e-8);
        nnti_cpu_avgpool(&e, &narrow, &run);
        CHECK(error_of(y, without_pad_4_3, 6) < 6e-8);
        nnti_cpu_adaptive(&e, &adaptive, &run);
        CHECK(error_of(y, up, 28) < 6e-8);
        for (nans = 0; nans < 2; nans++) {              /* NaN at (1, 1) and (2, 2) */
            op = pool_op(NNT_OP_MAXPOOL, &three);
            op.at[NNT_X] = x;
            op.at[NNT_Y] = y;
            op.at[NNT_AUX] = aux;
            if (nans) x[7] = x[14] = bits_float(0x7fc00000u);
            nnti_cpu_maxpool(&e, &op, &run);
            for (i = 0; i < 12; i++) {
                const int at = (nans ? nan_places : places)[i];
                const int ky = at / 6 - (i / 4 * 2 - 1), kx = at % 6 - (i % 4 * 2 - 1);
                CHECKF(aux[i] == ky * 3 + kx, "isa=%d nans=%d output %d: %d", isas[k], nans, i, aux[i]);
                CHECK(nans && (at == 7 || at == 14) ? is_nan(y[i]) : (double)y[i] >= maxima[i] && (double)y[i] <= maxima[i]);
            }
            x[7] = (float)(7 * 7 % 11 - 4);
            x[14] = (float)(14 * 7 % 11 - 4);
        }
    }
}
/* One NaN anywhere reaches exactly the outputs whose windows hold it; minus infinities give the first index. */
static void maxpool_passes_nan_and_minus_infinity(void)
{
    static const pool_case cases[] = {
        { 1, 1, 20, 21, 2, 2, 2, 2, 0, 0, 0 }, { 1, 1, 20, 21, 3, 3, 2, 2, 1, 1, 1 }, { 1, 1, 9, 19, 3, 3, 1, 1, 1, 1, 0 },
    };
    int k, i, o, j;
    for (k = 0; k < 3; k++)
        for (i = 0; i < isa_count; i++) {
            const pool_case *p = &cases[k];
            nnt_op op = pool_op(NNT_OP_MAXPOOL, p);
            const nnt_run run = new_run(1);
            const int in = p->h * p->w, out = op.out_h * op.out_w;
            float *x = random_floats(in), *y = new_floats(out);
            uint8_t *aux = (uint8_t *)new_bytes((size_t)out);
            nnti_exec e;
            e.pool = NULL;
            e.isa = isas[i];
            op.at[NNT_X] = x;
            op.at[NNT_Y] = y;
            op.at[NNT_AUX] = aux;
            for (j = 0; j < in; j++) {
                const float kept = x[j];
                x[j] = bits_float(0xffc00001u);
                nnti_cpu_maxpool(&e, &op, &run);
                for (o = 0; o < out; o++) {
                    const int ky = j / p->w - (o / op.out_w * p->sh - p->ph), kx = j % p->w - (o % op.out_w * p->sw - p->pw);
                    const int inside = ky >= 0 && ky < p->kh && kx >= 0 && kx < p->kw;
                    CHECKF(is_nan(y[o]) == inside && (!inside || aux[o] == ky * p->kw + kx), "%s isa=%d at=%d", pool_text(p), isas[i], j);
                }
                x[j] = kept;
            }
            for (j = 0; j < in; j++) x[j] = bits_float(0xff800000u);
            nnti_cpu_maxpool(&e, &op, &run);
            for (o = 0; o < out; o++) {
                const int ky = p->ph && o / op.out_w == 0, kx = p->pw && o % op.out_w == 0;
                CHECKF(aux[o] == ky * p->kw + kx, "%s isa=%d output %d: %d", pool_text(p), isas[i], o, aux[o]);
            }
            release_buffers();
        }
}

/* ============================================================================
   Batch normalisation
   ============================================================================ */

static const int bn_cases[][4] = {
    /* n   c   h   w */
    {  2,  1,  1,  1 },
    {  7,  3,  1,  1 },             /* behind a linear layer */
    { 33, 40,  1,  1 },
    {  1,  1,  2,  3 },             /* batch 1 */
    {  1,  5,  4,  4 },
    {  2,  3,  5,  7 },
    {  3,  2,  8,  1 },
    {  2,  2,  3,  3 },             /* one vector and one */
    {  2,  2,  7,  1 },             /* below a vector */
    {  4, 17,  7,  7 },
    {  5, 16, 13, 13 },
    {  2, 33,  4,  4 },
    { 16, 64,  7,  7 },             /* several chunks, several channels a chunk */
    {  8, 40, 16, 16 },
    {  2,  3, 96, 97 },             /* one channel a chunk */
    { 40, 256, 2, 2 },
    { 20, 600, 2, 1 },
    {  2,  2, 64, 64 },
};
enum { BN_CASES = (int)(sizeof bn_cases / sizeof bn_cases[0]) };

/* mean, 1 / sqrt(var + eps), unbiased var of each channel; two passes. */
static void naive_bn_stats(int n, int c, int hw, const double *x, double eps, double *mean, double *invstd, double *unbiased)
{
    const double m = (double)n * hw;
    int s, ch, i;
    for (ch = 0; ch < c; ch++) {
        double sum = 0, square = 0;
        for (s = 0; s < n; s++) for (i = 0; i < hw; i++) sum += x[((int64_t)s * c + ch) * hw + i];
        mean[ch] = sum / m;
        for (s = 0; s < n; s++)
            for (i = 0; i < hw; i++) {
                const double d = x[((int64_t)s * c + ch) * hw + i] - mean[ch];
                square += d * d;
            }
        invstd[ch] = 1 / sqrt(square / m + eps);
        unbiased[ch] = square / (m - 1);
    }
}
static void naive_bn_apply(int n, int c, int hw, const double *x, const double *mean, const double *invstd,
                           const double *w, const double *b, double *y)
{
    int64_t i, size = (int64_t)n * c * hw;
    for (i = 0; i < size; i++) {
        const int64_t ch = i / hw % c;
        y[i] = (x[i] - mean[ch]) * invstd[ch] * (w ? w[ch] : 1) + (b ? b[ch] : 0);
    }
}
/* The paper's own chain: through the normalised value, the variance and the mean. */
static void naive_bn_grad(int n, int c, int hw, const double *x, const double *gy, const double *mean, const double *invstd,
                          const double *w, double *gx, double *gw, double *gb)
{
    const double m = (double)n * hw;
    int s, ch, i;
    for (ch = 0; ch < c; ch++) {
        double gvar = 0, gmean = 0, off = 0;
        gw[ch] = gb[ch] = 0;
        for (s = 0; s < n; s++)
            for (i = 0; i < hw; i++) {
                const int64_t at = ((int64_t)s * c + ch) * hw + i;
                const double d = x[at] - mean[ch], gn = gy[at] * (w ? w[ch] : 1);
                gw[ch] += gy[at] * d * invstd[ch];
                gb[ch] += gy[at];
                gvar += gn * d * -0.5 * invstd[ch] * invstd[ch] * invstd[ch];
                gmean -= gn * invstd[ch];
                off += d;
            }
        gmean -= gvar * 2 * off / m;
        for (s = 0; s < n; s++)
            for (i = 0; i < hw; i++) {
                const int64_t at = ((int64_t)s * c + ch) * hw + i;
                gx[at] = gy[at] * (w ? w[ch] : 1) * invstd[ch] + gvar * 2 * (x[at] - mean[ch]) / m + gmean / m;
            }
    }
}
static void batchnorm_statistics_equal_naive(void)
{
    int k, i, shifted;
    for (k = 0; k < BN_CASES; k++)
        for (shifted = 0; shifted < 2; shifted++) {
            const int n = bn_cases[k][0], c = bn_cases[k][1], h = bn_cases[k][2], w = bn_cases[k][3];
            nnt_op op = new_op(NNT_OP_BN_STATS, c, h, w, c, h, w);
            const nnt_run run = new_run(n);
            const int64_t size = in_size(&op, n);
            float *x = random_floats(size), *stats = new_floats(3 * c), *running = random_floats(2 * c);
            double *want = new_doubles(3 * c), *want_running = to_doubles(running, 2 * c);
            outputs list, list2;
            int64_t j;
            int ch;
            list.count = list2.count = 0;
            op.f[0] = 1e-5f;
            op.f[1] = 0.3f;
            /* means of a thousand deviations: a plain sum of squares in float would lose all digits */
            if (shifted) for (j = 0; j < size; j++) x[j] = 1000.0f * (float)(1 + j / (h * w) % c) + x[j];
            naive_bn_stats(n, c, h * w, to_doubles(x, size), (double)op.f[0], want, want + c, want + 2 * c);
            for (ch = 0; ch < c; ch++) {
                const double m = (double)op.f[1];
                want_running[ch] = (1 - m) * want_running[ch] + m * want[ch];
                want_running[c + ch] = (1 - m) * want_running[c + ch] + m * want[2 * c + ch];
            }
            op.at[NNT_X] = x;
            op.at[NNT_STATS] = stats;
            op.at[NNT_RUNNING] = running;
            add_floats(&list, stats, 3 * c);
            add_floats(&list2, running, 2 * c);
            for (i = 0; i < isa_count; i++) {
                op.kind = NNT_OP_BN_STATS;
                CHECKF(same_for_all_threads(nnti_cpu_bn_stats, &op, &run, isas[i], &list), "n=%d c=%d h=%d w=%d", n, c, h, w);
                /* exact up to the rounding of results */
                CHECKF(error_of(stats, want, c) < 6e-8 && error_of(stats + c, want + c, c) < 6e-8
                       && error_of(stats + 2 * c, want + 2 * c, c) < 6e-8, "bn n=%d c=%d h=%d w=%d isa=%d: %g %g %g", n, c, h, w, isas[i],
                       error_of(stats, want, c), error_of(stats + c, want + c, c), error_of(stats + 2 * c, want + 2 * c, c));
                op.kind = NNT_OP_BN_RUNNING;
                CHECK(same_for_all_threads(nnti_cpu_bn_running, &op, &run, isas[i], &list2));
                for (ch = 0; ch < 2 * c; ch++) {        /* of the two terms, which may cancel */
                    const double terms = fabs(want_running[ch]) + 2 * fabs((double)((const float *)list2.o[0].start)[ch]);
                    CHECKF(fabs((double)running[ch] - want_running[ch]) < 1.2e-7 * terms, "running n=%d c=%d h=%d w=%d", n, c, h, w);
                }
            }
            configurations++;
            release_buffers();
        }
}
static void batchnorm_apply_equals_naive(void)
{
    int k, i, form, fused;
    for (k = 0; k < BN_CASES; k++)
        for (form = 0; form < 4; form++) {              /* bit 0: no affine, bit 1: evaluation */
            const int n = bn_cases[k][0], c = bn_cases[k][1], h = bn_cases[k][2], w = bn_cases[k][3];
            nnt_op op = new_op(form & 2 ? NNT_OP_BN_EVAL : NNT_OP_BN_APPLY, c, h, w, c, h, w);
            const kernel_fn run_it = form & 2 ? nnti_cpu_bn_eval : nnti_cpu_bn_apply;
            const nnt_run run = new_run(n);
            const int64_t size = in_size(&op, n);
            float *x = random_floats(size), *y = new_floats(size), *weight = random_floats(c), *bias = random_floats(c);
            float *stats = random_floats(2 * c), *plain = new_floats(size);
            double *want = new_doubles(size), *mean = new_doubles(c), *invstd = new_doubles(c);
            outputs list;
            int ch;
            int64_t j;
            list.count = 0;
            op.f[0] = 1e-3f;
            for (ch = 0; ch < c; ch++) {
                stats[c + ch] = 0.1f + fabsf(stats[c + ch]);
                mean[ch] = (double)stats[ch];
                invstd[ch] = form & 2 ? 1 / sqrt((double)stats[c + ch] + (double)op.f[0]) : (double)stats[c + ch];
            }
            op.at[NNT_X] = x;
            op.at[NNT_Y] = y;
            op.at[form & 2 ? NNT_RUNNING : NNT_STATS] = stats;
            if (!(form & 1)) { op.at[NNT_W] = weight; op.at[NNT_B] = bias; }
            naive_bn_apply(n, c, h * w, to_doubles(x, size), mean, invstd, form & 1 ? NULL : to_doubles(weight, c),
                           form & 1 ? NULL : to_doubles(bias, c), want);
            add_floats(&list, y, size);
            for (i = 0; i < isa_count; i++)
                for (fused = 0; fused < 2; fused++) {
                    op.flags = fused ? NNT_OPF_RELU : 0;
                    CHECKF(same_for_all_threads(run_it, &op, &run, isas[i], &list), "n=%d c=%d h=%d w=%d", n, c, h, w);
                    if (!fused) {
                        /* three roundings of values below about 4 */
                        CHECKF(error_of(y, want, size) < 2e-7, "bn n=%d c=%d h=%d w=%d form=%d isa=%d: %g", n, c, h, w, form, isas[i],
                               error_of(y, want, size));
                        memcpy(plain, y, (size_t)size * sizeof *y);
                    } else {
                        for (j = 0; j < size; j++) if (plain[j] < 0) plain[j] = 0;
                        CHECKF(!memcmp(plain, y, (size_t)size * sizeof *y), "n=%d c=%d h=%d w=%d", n, c, h, w);
                        op.at[NNT_Y] = x;               /* in place */
                        memcpy(y, x, (size_t)size * sizeof *x);
                        { nnti_exec e; e.pool = pools[2]; e.isa = isas[i]; run_it(&e, &op, &run); }
                        CHECKF(!memcmp(plain, x, (size_t)size * sizeof *x), "in place n=%d c=%d h=%d w=%d", n, c, h, w);
                        memcpy(x, y, (size_t)size * sizeof *x);
                        op.at[NNT_Y] = y;
                    }
                }
            configurations++;
            release_buffers();
        }
}
static void batchnorm_gradients_equal_naive(void)
{
    int k, i, form;
    for (k = 0; k < BN_CASES; k++)
        for (form = 0; form < 8; form++) {              /* bit 0: accumulate, 1: mask, 2: no affine */
            const int n = bn_cases[k][0], c = bn_cases[k][1], h = bn_cases[k][2], w = bn_cases[k][3], hw = h * w;
            nnt_op op = new_op(NNT_OP_BN_GRAD, c, h, w, c, h, w);
            nnt_run run = new_run(n);
            const int64_t size = in_size(&op, n);
            float *x = random_floats(size), *gy = random_floats(size), *gx = random_floats(size), *mask = random_floats(size);
            float *weight = random_floats(c), *gw = random_floats(c), *gb = random_floats(c), *stats = new_floats(2 * c);
            float *x0 = copy_floats(x, size), *gy0 = copy_floats(gy, size), *result = new_floats(size);
            double *mean = new_doubles(c), *invstd = new_doubles(c), *other = new_doubles(c);
            double *want = new_doubles(size), *want_gw = new_doubles(c), *want_gb = new_doubles(c), condition = 1;
            outputs list;
            int ch;
            list.count = 0;
            op.f[0] = 1e-5f;
            op.flags = (form & 1 ? NNT_OPF_ACCUMULATE : 0) | (form & 2 ? NNT_OPF_MASK : 0);
            run.accumulate = form & 1;
            naive_bn_stats(n, c, hw, to_doubles(x, size), (double)op.f[0], mean, invstd, other);
            for (ch = 0; ch < c; ch++) {
                stats[ch] = (float)mean[ch];
                stats[c + ch] = (float)invstd[ch];
                /* the mean that a kernel is given is rounded: by that many deviations times the unit */
                if (1 + fabs(mean[ch]) * invstd[ch] > condition) condition = 1 + fabs(mean[ch]) * invstd[ch];
            }
            naive_bn_grad(n, c, hw, to_doubles(x, size), to_doubles(gy, size), mean, invstd,
                          form & 4 ? NULL : to_doubles(weight, c), want, want_gw, want_gb);
            op.at[NNT_X] = x; op.at[NNT_GY] = gy; op.at[NNT_GX] = gx; op.at[NNT_STATS] = stats; op.at[NNT_MASK] = mask;
            finish_naive(want, size, &op, gx);
            if (run.accumulate) for (ch = 0; ch < c; ch++) { want_gw[ch] += (double)gw[ch]; want_gb[ch] += (double)gb[ch]; }
            add_floats(&list, gx, size);
            if (!(form & 4)) {
                op.at[NNT_W] = weight; op.at[NNT_GW] = gw; op.at[NNT_GB] = gb;
                add_floats(&list, gw, c);
                add_floats(&list, gb, c);
            }
            for (i = 0; i < isa_count; i++) {
                nnti_exec e;
                e.pool = pools[1];
                e.isa = isas[i];
                CHECKF(same_for_all_threads(nnti_cpu_bn_grad, &op, &run, isas[i], &list), "n=%d c=%d h=%d w=%d", n, c, h, w);
                /* means cancel most of gy where a channel has few values, so the bound is of gy times scale, not of gx */
                CHECKF(error_of_values(gx, want, size, 30) < 3e-7 * condition,
                       "bn_grad n=%d c=%d h=%d w=%d form=%d isa=%d: %g", n, c, h, w, form,
                       isas[i], error_of_values(gx, want, size, 30));
                if ((int64_t)n * hw > 8)
                    CHECKF(error_of(gx, want, size) < 1e-6, "bn_grad n=%d c=%d h=%d w=%d form=%d isa=%d: %g", n, c, h, w, form,
                           isas[i], error_of(gx, want, size));
                if (!(form & 4))
                    /* a sum of n h w terms of about 1, of either sign */
                    CHECKF(error_of_values(gw, want_gw, c, sqrt((double)n * hw) + 1) < 5e-7 * condition
                           && error_of_values(gb, want_gb, c, sqrt((double)n * hw) + 1) < 2e-7,
                           "bn_grad n=%d c=%d h=%d w=%d form=%d isa=%d", n, c, h, w, form, isas[i]);
                if (!(form & 1)) {                      /* gx in place of gy, of x */
                    memcpy(result, gx, (size_t)size * sizeof *gx);
                    op.at[NNT_GX] = gy;
                    nnti_cpu_bn_grad(&e, &op, &run);
                    CHECKF(!memcmp(result, gy, (size_t)size * sizeof *gx), "gx is gy: n=%d c=%d h=%d w=%d", n, c, h, w);
                    memcpy(gy, gy0, (size_t)size * sizeof *gy);
                    op.at[NNT_GX] = x;
                    nnti_cpu_bn_grad(&e, &op, &run);
                    CHECKF(!memcmp(result, x, (size_t)size * sizeof *gx), "gx is x: n=%d c=%d h=%d w=%d", n, c, h, w);
                    memcpy(x, x0, (size_t)size * sizeof *x);
                    op.at[NNT_GX] = gx;
                }
            }
            configurations++;
            release_buffers();
        }
}
/* The variance of values around 1e7 and of a constant channel; an outlier in front. */
static void batchnorm_statistics_keep_their_digits(void)
{
    enum { N = 4, HW = 1000 };
    nnt_op op = new_op(NNT_OP_BN_STATS, 3, HW, 1, 3, HW, 1);
    const nnt_run run = new_run(N);
    float *x = new_floats(3 * N * HW), stats[9];
    double want[9];
    int i, k;
    for (i = 0; i < 3 * N * HW; i++) {
        const int c = i / HW % 3;
        x[i] = c == 0 ? 1e7f + (float)(random_u32() % 5) : c == 1 ? 123456.7f : random_float();
    }
    x[2 * HW] = 1e8f;
    op.at[NNT_X] = x;
    op.at[NNT_STATS] = stats;
    op.f[0] = 1e-5f;
    naive_bn_stats(N, 3, HW, to_doubles(x, 3 * N * HW), (double)op.f[0], want, want + 3, want + 6);
    for (k = 0; k < isa_count; k++) {
        nnti_exec e;
        e.pool = pools[1];
        e.isa = isas[k];
        nnti_cpu_bn_stats(&e, &op, &run);
        for (i = 0; i < 9; i++)
            CHECKF(error_of(stats + i, want + i, 1) < 6e-8, "isa=%d value %d: %g for %g", isas[k], i, (double)stats[i], want[i]);
    }
    release_buffers();
}
static void relu_of_batchnorm_keeps_nan(void)
{
    int i, hw;
#ifdef __FAST_MATH__
    SKIP("-ffast-math promises that there are none");
#endif
    for (i = 0; i < isa_count; i++)
        for (hw = 1; hw <= 17; hw += 8) {
            nnt_op op = new_op(NNT_OP_BN_APPLY, 1, hw, 1, 1, hw, 1);
            const nnt_run run = new_run(1);
            float *x = random_floats(hw), *y = new_floats(hw), stats[2];
            nnti_exec e;
            e.pool = NULL;
            e.isa = isas[i];
            stats[0] = 0;
            stats[1] = 1;
            x[0] = x[hw - 1] = bits_float(0x7fc00000u);
            op.flags = NNT_OPF_RELU;
            op.at[NNT_X] = x;
            op.at[NNT_Y] = y;
            op.at[NNT_STATS] = stats;
            nnti_cpu_bn_apply(&e, &op, &run);
            CHECK(is_nan(y[0]) && is_nan(y[hw - 1]));
            release_buffers();
        }
}
/* torch 2.15, float64: BatchNorm2d(2, eps=1e-3, momentum=0.3) on x = (arange(24) * 7 % 17 - 5) / 2 as 3 x 2 x 2 x 2. */
static void batchnorm_equals_recorded_values(void)
{
    static const double y[24] = { -1.9552465603489408, 0.25, 2.455246560348941, -0.6951056687209747, 1.7078287398639382,
        2.7095587746161502, 2.0083477502896017, 1.307136725963053, -0.3800704458139831, 1.8251761145349576, -1.3251761145349576,
        0.8800704458139831, 1.206963722487832, 2.2086937572400442, 1.5074827329134957, 2.509212767665708, 1.1951056687209747,
        -1.9552465603489408, 0.25, 2.455246560348941, 2.409039764190487, 1.7078287398639382, 2.7095587746161502, 2.0083477502896017 };
    static const double gx[24] = { -0.5008376970731124, -0.1312646762112465, 0.23830834465061965, -0.19964305003576294,
        -0.28760957359848016, 0.26916752098821795, -0.14061104591751497, 0.15082141150330078, 0.03317322317707025,
        0.40274624403893633, -0.035205150647446226, 0.3343678702144198, 0.035039899959498216, -0.10939402978035236,
        0.1820384276404634, 0.03760449790061284, 0.5671841434272531, 0.12923274874087048, 0.4988057696027366,
        -1.336867769884338, -0.07817701364318971, 0.21325544377762604, 0.06882151403777546, -0.3409570528679574 };
    static const double eval[24] = { -2.6596946913350057, 0.25, 3.1596946913350057, -0.9970120105721452, 0.7262731640547706,
        2.3437040668423634, 1.2115024348910484, 0.07930080293973335, -0.5813413403814301, 2.3283533509535754,
        -1.8283533509535754, 1.0813413403814303, -0.08244228733902595, 1.534988615448567, 0.40278698349725195,
        2.0202178862848448, 1.4970120105721452, -2.6596946913350057, 0.25, 3.1596946913350057, 1.8584747960060857,
        0.7262731640547706, 2.3437040668423634, 1.2115024348910484 };
    static const double gw[2] = { 7.4558336087988, -4.666392411887389 }, gb[2] = { 2.5, -2.5 };
    static const double running_after[4] = { 1.0, -0.9374999999999999, 3.2545454545454544, 2.388068181818182 };
    float x[24], dy[24], got[24], stats[6], running[4] = { 1, -2, 2, 0.5f }, w[2] = { 1.5f, -0.5f }, b[2] = { 0.25f, 2 };
    float got_gw[2], got_gb[2];
    nnt_op op = new_op(NNT_OP_BN_STATS, 2, 2, 2, 2, 2, 2);
    const nnt_run run = new_run(3);
    nnti_exec e;
    int i;
    e.pool = NULL;
    e.isa = nnti_isa_best();
    for (i = 0; i < 24; i++) { x[i] = (float)(i * 7 % 17 - 5) / 2; dy[i] = (float)(i * 3 % 7 - 3) / 2; }
    op.f[0] = 1e-3f;
    op.f[1] = 0.3f;
    op.at[NNT_X] = x; op.at[NNT_Y] = op.at[NNT_GX] = got; op.at[NNT_GY] = dy; op.at[NNT_STATS] = stats; op.at[NNT_RUNNING] = running;
    op.at[NNT_W] = w; op.at[NNT_B] = b; op.at[NNT_GW] = got_gw; op.at[NNT_GB] = got_gb;
    nnti_cpu_bn_stats(&e, &op, &run);
    op.kind = NNT_OP_BN_RUNNING;
    nnti_cpu_bn_running(&e, &op, &run);
    CHECK(error_of(running, running_after, 4) < 1e-7);
    op.kind = NNT_OP_BN_APPLY;
    nnti_cpu_bn_apply(&e, &op, &run);
    CHECK(error_of(got, y, 24) < 2e-7);
    op.kind = NNT_OP_BN_GRAD;
    nnti_cpu_bn_grad(&e, &op, &run);
    CHECK(error_of(got, gx, 24) < 1e-6 && error_of(got_gw, gw, 2) < 1e-6 && error_of(got_gb, gb, 2) < 1e-6);
    op.kind = NNT_OP_BN_EVAL;
    nnti_cpu_bn_eval(&e, &op, &run);
    CHECK(error_of(got, eval, 24) < 2e-7);
}

/* ============================================================================
   Softmax and losses
   ============================================================================ */

static const int softmax_cases[][4] = {
    { 1, 1, 1, 1 }, { 2, 10, 1, 1 }, { 5, 3, 1, 1 }, { 1, 1000, 1, 1 }, { 3, 4, 2, 3 }, { 2, 7, 8, 8 }, { 1, 5, 13, 5 },
    { 2, 21, 9, 15 }, { 4, 2, 64, 1 }, { 1, 3, 1, 65 }, { 64, 100, 1, 1 }, { 3, 150, 10, 11 },
};
static void naive_softmax(int n, int c, int hw, const double *x, double *y)
{
    int s, i, ch;
    for (s = 0; s < n; s++)
        for (i = 0; i < hw; i++) {
            const int64_t at = (int64_t)s * c * hw + i;
            double top = x[at], sum = 0;
            for (ch = 1; ch < c; ch++) if (x[at + ch * hw] > top) top = x[at + ch * hw];
            for (ch = 0; ch < c; ch++) sum += exp(x[at + ch * hw] - top);
            for (ch = 0; ch < c; ch++) y[at + ch * hw] = exp(x[at + ch * hw] - top) / sum;
        }
}
static void naive_softmax_grad(int n, int c, int hw, const double *y, const double *gy, double *gx)
{
    int s, i, ch;
    for (s = 0; s < n; s++)
        for (i = 0; i < hw; i++) {
            const int64_t at = (int64_t)s * c * hw + i;
            double dot = 0;
            for (ch = 0; ch < c; ch++) dot += y[at + ch * hw] * gy[at + ch * hw];
            for (ch = 0; ch < c; ch++) gx[at + ch * hw] = y[at + ch * hw] * (gy[at + ch * hw] - dot);
        }
}
static void softmax_and_gradient_equal_naive(void)
{
    int k, i, large;
    for (k = 0; k < (int)(sizeof softmax_cases / sizeof softmax_cases[0]); k++)
        for (large = 0; large < 2; large++) {
            const int n = softmax_cases[k][0], c = softmax_cases[k][1], h = softmax_cases[k][2], w = softmax_cases[k][3];
            nnt_op op = new_op(NNT_OP_SOFTMAX, c, h, w, c, h, w);
            const nnt_run run = new_run(n);
            const int64_t size = in_size(&op, n);
            float *x = random_floats(size), *y = new_floats(size), *gy = random_floats(size), *gx = new_floats(size);
            double *want = new_doubles(size), *want_gx = new_doubles(size), *y_given = new_doubles(size);
            double *gy_double = to_doubles(gy, size);
            outputs list, list2, list3;
            int64_t j;
            list.count = list2.count = list3.count = 0;
            /* multiples of 8 around 1e8: differences are exact, so that only exp is measured */
            for (j = 0; j < size; j++) x[j] = large ? 1e8f + 8.0f * (float)(random_u32() % 4) : 4 * x[j];
            naive_softmax(n, c, h * w, to_doubles(x, size), want);
            op.at[NNT_X] = x; op.at[NNT_Y] = y; op.at[NNT_GY] = gy; op.at[NNT_GX] = gx;
            add_floats(&list, y, size);
            add_floats(&list2, gx, size);
            for (i = 0; i < isa_count; i++) {
                op.kind = NNT_OP_SOFTMAX;
                CHECKF(same_for_all_threads(nnti_cpu_softmax, &op, &run, isas[i], &list), "n=%d c=%d h=%d w=%d", n, c, h, w);
                CHECKF(error_of(y, want, size) < 3e-7, "softmax n=%d c=%d h=%d w=%d: %g", n, c, h, w, error_of(y, want, size));
                /* of the y that the kernel is given: where one class has nearly all, its rounding decides gx */
                for (j = 0; j < size; j++) y_given[j] = (double)y[j];
                naive_softmax_grad(n, c, h * w, y_given, gy_double, want_gx);
                op.kind = NNT_OP_SOFTMAX_GRAD;
                CHECKF(same_for_all_threads(nnti_cpu_softmax_grad, &op, &run, isas[i], &list2), "n=%d c=%d h=%d w=%d", n, c, h, w);
                CHECKF(error_of(gx, want_gx, size) < 1e-7, "softmax_grad n=%d c=%d h=%d w=%d: %g", n, c, h, w, error_of(gx, want_gx, size));
            }
            op.at[NNT_GX] = gy;                         /* in place */
            add_floats(&list3, gy, size);
            CHECK(same_for_all_threads(nnti_cpu_softmax_grad, &op, &run, isas[isa_count - 1], &list3));
            CHECKF(!memcmp(gx, gy, (size_t)size * sizeof *gx), "in place n=%d c=%d h=%d w=%d", n, c, h, w);
            configurations++;
            release_buffers();
        }
}

typedef struct entropy_case { int n, classes, weighted, use_ignore, ignore; double smoothing; float scale, spread; } entropy_case;
static const entropy_case entropy_cases[] = {
    /*  n classes w ignore      smooth  scale spread */
    {   1,    1, 0, 0,    0,    0.0,    0,      1 },
    {   1,    2, 0, 0,    0,    0.0,    0,      1 },
    {   4,   10, 0, 0,    0,    0.0,    0,      3 },
    { 128,   10, 0, 0,    0,    0.0,    0,      3 },
    {   7,    5, 1, 0,    0,    0.0,    0,      3 },
    {   7,    5, 0, 1,    2,    0.0,    0,      3 },
    {   7,    5, 1, 1, -100,    0.0,    0,      3 },
    {   9,    6, 0, 0,    0,    0.1,    0,      3 },
    {   9,    6, 1, 0,    0,    0.1,    0,      3 },
    {   9,    6, 0, 1,    3,    0.3,    0,      3 },
    {   9,    6, 1, 1, -100,    0.1,    0,      3 },
    {   9,    6, 1, 1,    0,    0.9,    0.125f, 3 },
    {   5,    3, 0, 0,    0,    0.0,    0.5f,   1 },
    {  33,  100, 1, 1,    7,    0.2,    0,      5 },
    {  16, 1000, 0, 0,    0,    0.0,    0,      5 },
    {  64, 1000, 1, 1, -100,    0.1,    0,      5 },
    {   6,    4, 0, 0,    0,    0.0,    0,    1e8f },
    {   6,    4, 1, 1, -100,    0.2,    0,    1e8f },
    {   6,   50, 0, 0,    0,    0.1,    0,     80 },
    {   3,    4, 0, 1, -100,    0.0,    0,      3 },
    {   3,    1, 1, 0,    0,    0.5,    0,      3 },
    {  20,    8, 1, 0,    0,    0.0,    2.0f,   0 },       /* all logits equal */
};
enum { ENTROPY_CASES = (int)(sizeof entropy_cases / sizeof entropy_cases[0]) };

/* The mean loss as PyTorch's documentation puts it: a target distribution q = (1 - s) one_hot + s / classes, the loss of a
   sample - sum_c w[c] q[c] log p[c], divided by the sum of w[label]. scale 0: that mean; else the sum times scale. */
static double naive_entropy(const entropy_case *p, const double *x, const int32_t *labels, const double *w, double scale, nnt_loss *out)
{
    int s, c;
    memset(out, 0, sizeof *out);
    for (s = 0; s < p->n; s++) {
        const double *row = x + (int64_t)s * p->classes;
        const int label = labels[s];
        double top = row[0], sum = 0, log_sum;
        int above = 0;
        if (p->use_ignore && label == p->ignore) continue;
        for (c = 0; c < p->classes; c++) if (row[c] > top) top = row[c];
        for (c = 0; c < p->classes; c++) sum += exp(row[c] - top);
        log_sum = log(sum);
        for (c = 0; c < p->classes; c++) {
            const double q = (1 - p->smoothing) * (c == label) + p->smoothing / p->classes;
            if (q > 0) out->sum += (w ? w[c] : 1) * q * (log_sum - (row[c] - top));
            above += row[c] > row[label] || (c < label && row[c] >= row[label]);
        }
        out->weight += w ? w[label] : 1;
        out->correct += above == 0;
        out->correct5 += above < 5;
        out->samples += 1;
    }
    return scale > 0 ? out->sum * scale : out->weight > 0 ? out->sum / out->weight : 0;
}
/* The derivative of that by its own formula: sum_c w[c] q[c] (p[k] - (c == k)). */
static void naive_entropy_grad(const entropy_case *p, const double *x, const int32_t *labels, const double *w, double scale, double *gx)
{
    double weight = 0;
    int s, c, k;
    for (s = 0; s < p->n; s++)
        if (!(p->use_ignore && labels[s] == p->ignore)) weight += w ? w[labels[s]] : 1;
    if (!(scale > 0)) scale = weight > 0 ? 1 / weight : 0;
    for (s = 0; s < p->n; s++) {
        const double *row = x + (int64_t)s * p->classes;
        double *g = gx + (int64_t)s * p->classes, top = row[0], sum = 0;
        for (c = 0; c < p->classes; c++) if (row[c] > top) top = row[c];
        for (c = 0; c < p->classes; c++) { sum += exp(row[c] - top); g[c] = 0; }
        if (p->use_ignore && labels[s] == p->ignore) continue;
        for (c = 0; c < p->classes; c++) {
            const double q = (w ? w[c] : 1) * ((1 - p->smoothing) * (c == labels[s]) + p->smoothing / p->classes);
            for (k = 0; k < p->classes; k++) g[k] += scale * q * (exp(row[k] - top) / sum - (c == k));
        }
    }
}
static void entropy_labels(const entropy_case *p, int32_t *labels)
{
    int s;
    for (s = 0; s < p->n; s++) {
        labels[s] = (int32_t)(random_u32() % (uint32_t)p->classes);
        if (p->use_ignore && s % 3 == 1) labels[s] = p->ignore;
    }
}
static void cross_entropy_equals_naive(void)
{
    int k, i, tied;
    for (k = 0; k < ENTROPY_CASES; k++)
        for (tied = 0; tied < 2; tied++) {
            const entropy_case *p = &entropy_cases[k];
            nnt_op op = new_op(NNT_OP_CROSS_ENTROPY, p->classes, 1, 1, 1, 1, 1);
            nnt_run run = new_run(p->n);
            const int64_t size = in_size(&op, p->n);
            float *x = random_floats(size), *gx = new_floats(size), *w = random_floats(p->classes);
            int32_t *labels = (int32_t *)new_bytes((size_t)p->n * sizeof *labels);
            nnt_loss *loss = (nnt_loss *)new_bytes(sizeof *loss), want;
            double *want_gx = new_doubles(size), *wd, *xd;
            outputs list, list2;
            int64_t j;
            int c;
            list.count = list2.count = 0;
            for (j = 0; j < size; j++) x[j] = p->spread * (tied ? (float)(random_u32() % 4) / 4 : x[j]);
            for (c = 0; c < p->classes; c++) w[c] = c % 4 == 3 ? 0 : 0.25f + fabsf(w[c]);
            entropy_labels(p, labels);
            wd = p->weighted ? to_doubles(w, p->classes) : NULL;
            xd = to_doubles(x, size);
            naive_entropy(p, xd, labels, wd, (double)p->scale, &want);
            naive_entropy_grad(p, xd, labels, wd, (double)p->scale, want_gx);
            run.loss_scale = p->scale;
            op.f[0] = (float)p->smoothing;
            op.use_ignore = p->use_ignore;
            op.ignore_label = p->ignore;
            op.at[NNT_X] = x; op.at[NNT_GX] = gx; op.at[NNT_LABELS] = labels; op.at[NNT_LOSS] = loss;
            if (p->weighted) op.at[NNT_W] = w;
            op.workspace_bytes = nnti_cpu_cross_entropy_workspace(NULL, &op, p->n);
            op.workspace = new_bytes(op.workspace_bytes);
            add_floats(&list, gx, size);
            add_output(&list, loss, sizeof *loss);
            for (i = 0; i < isa_count; i++) {
                CHECKF(same_for_all_threads(nnti_cpu_cross_entropy, &op, &run, isas[i], &list), "n=%d classes=%d", p->n, p->classes);
                /* exp in float has half a unit of error, log and sums are in double */
                CHECKF(fabs(loss->sum - want.sum) <= 1e-7 * (fabs(want.sum) + p->n), "entropy case %d: %.10g, want %.10g",
                       k, loss->sum, want.sum);
                CHECKF(fabs(loss->weight - want.weight) < 1e-12 * (1 + want.weight)
                       && memcmp(&loss->correct, &want.correct, 3 * sizeof(double)) == 0,
                       "entropy case %d: weight %g correct %g %g samples %g, want %g %g %g %g", k, loss->weight, loss->correct,
                       loss->correct5,
                       loss->samples, want.weight, want.correct, want.correct5, want.samples);
                CHECKF(error_of(gx, want_gx, size) < 3e-7, "entropy case %d: gradient %g", k, error_of(gx, want_gx, size));
            }
            op.at[NNT_GX] = NULL;                       /* evaluation: the same figures */
            memcpy(&want, loss, sizeof want);
            { nnti_exec e; e.pool = pools[3]; e.isa = isas[isa_count - 1]; nnti_cpu_cross_entropy(&e, &op, &run); }
            CHECKF(!memcmp(&want, loss, sizeof want), "entropy case %d without gradient", k);
            op.at[NNT_GX] = x;                          /* gx in place of x */
            add_floats(&list2, x, size);
            CHECK(same_for_all_threads(nnti_cpu_cross_entropy, &op, &run, isas[isa_count - 1], &list2));
            CHECKF(!memcmp(&want, loss, sizeof want) && !memcmp(gx, x, (size_t)size * sizeof *x), "entropy case %d in place", k);
            configurations++;
            release_buffers();
        }
}
/* torch 2.15, float64: logits (arange(24) * 5 % 13 - 6) / 3 as 4 x 6. */
static void cross_entropy_equals_recorded_values(void)
{
    static const double gx0[24] = { 0.002059981380335682, -0.32989584582294484, 0.09906466485839889, 0.006310286399775238,
        0.028087915265948577, 0.19437299791848647, 0.001928559405274138, 0.012265484694821508, -0.0018811901974179444,
        -0.036802831511937625, 0.026732657886359135, -0.002242680277099216, 0, 0, 0, 0, 0, 0, 0.23190081286619196,
        0.00987435366252687, 0.08272087389072179, 0.005174663397276982, -0.49221034370757755, 0.16253963989085987 };
    static const double gx1[24] = { -0.010594568789087483, -0.24644714389742692, 0.07845625643124203, -0.007472429488375052,
        0.020082991566376503, 0.16597489417727096, 0, 0, 0, 0, 0, 0, -0.18521619529859268, -0.008422438621241129,
        0.015053177664561409, 0.13934459451839507, -0.003241697618858902, 0.042482559355736214, 0.1301125913907988,
        -0.0038831690578639932, 0.039086295204263086, -0.010207990268933431, -0.24440040776874586, 0.08929268050048139 };
    static const double gx2[24] = { 0, 0, 0, 0, 0, 0, 0.0033946244066248386, 0.017972805145957935, 0.0012488125296960845,
        -0.06005484115328844, 0.03500624439602492, 0.0024323546749846657, -0.10186425589721484, 0.0021865801070591034,
        0.011576826621380118, 0.06129339336291357, 0.0042588765080119936, 0.02254857929785004, 0.3456035526712505,
        0.02401372759445975, 0.12714044182356474, 0.008834156687893098, -0.7532276453116568, 0.2476357665344887 };
    static const struct { int32_t third; int ignore; float smoothing; int weighted; double loss; const double *gx; } r[3] = {
        { -100, -100, 0.1f, 1, 2.743781990021153, gx0 },
        {    0,    3, 0.25f, 0, 2.425036487060452, gx1 },
        {    0,    1, 0, 1, 2.618024796494382, gx2 },
    };
    float w[6] = { 0.5f, 2, 1, 0.25f, 3, 1.5f }, x[24], gx[24];
    int32_t labels[4] = { 1, 3, 0, 4 };
    nnti_loss_row rows[4];
    nnt_loss loss;
    const nnt_run run = new_run(4);
    nnti_exec e;
    int i, k;
    e.pool = NULL;
    e.isa = nnti_isa_best();
    for (i = 0; i < 24; i++) x[i] = (float)(i * 5 % 13 - 6) / 3;
    for (k = 0; k < 3; k++) {
        nnt_op op = new_op(NNT_OP_CROSS_ENTROPY, 6, 1, 1, 1, 1, 1);
        labels[2] = r[k].third;
        op.use_ignore = 1;
        op.ignore_label = r[k].ignore;
        op.f[0] = r[k].smoothing;
        op.at[NNT_X] = x; op.at[NNT_GX] = gx; op.at[NNT_LABELS] = labels; op.at[NNT_LOSS] = &loss;
        op.at[NNT_W] = r[k].weighted ? w : NULL;
        op.workspace = rows;
        nnti_cpu_cross_entropy(&e, &op, &run);
        CHECKF(fabs(loss.sum / loss.weight - r[k].loss) < 2e-7, "%d: %.9g", k, loss.sum / loss.weight);
        CHECKF(error_of(gx, r[k].gx, 24) < 3e-7, "%d: %g", k, error_of(gx, r[k].gx, 24));
    }
}
static void cross_entropy_of_ignored_samples_is_zero(void)
{
    float x[6] = { 1, 2, 3, 4, 5, 6 }, gx[6], zero[6] = { 0, 0, 0, 0, 0, 0 };
    int32_t labels[2] = { -100, -100 };
    nnti_loss_row rows[2];
    nnt_loss loss, none;
    nnt_op op = new_op(NNT_OP_CROSS_ENTROPY, 3, 1, 1, 1, 1, 1);
    nnt_run run = new_run(2);
    nnti_exec e;
    int k;
    memset(&none, 0, sizeof none);
    e.pool = NULL;
    e.isa = nnti_isa_best();
    op.use_ignore = 1;
    op.ignore_label = -100;
    op.f[0] = 0.1f;
    op.workspace = rows;
    op.at[NNT_X] = x; op.at[NNT_GX] = gx; op.at[NNT_LABELS] = labels; op.at[NNT_LOSS] = &loss;
    for (k = 0; k < 2; k++) {
        run.loss_scale = (float)k;
        memset(gx, 0x77, sizeof gx);
        nnti_cpu_cross_entropy(&e, &op, &run);
        CHECK(!memcmp(&loss, &none, sizeof loss) && !memcmp(gx, zero, sizeof gx));
    }
}
/* A NaN logit makes the loss NaN, so that the step reports it, and ranks first as in torch.argmax. */
static void cross_entropy_passes_nan(void)
{
    float x[4], gx[4];
    int32_t label = 1;
    nnti_loss_row row;
    nnt_loss loss;
    nnt_op op = new_op(NNT_OP_CROSS_ENTROPY, 4, 1, 1, 1, 1, 1);
    const nnt_run run = new_run(1);
    nnti_exec e;
    int i;
    e.pool = NULL;
    e.isa = nnti_isa_best();
    op.workspace = &row;
    op.at[NNT_X] = x; op.at[NNT_GX] = gx; op.at[NNT_LABELS] = &label; op.at[NNT_LOSS] = &loss;
    for (i = 0; i < 4; i++) {
        x[0] = x[2] = x[3] = 1;
        x[1] = 2;
        x[i] = bits_float(0x7fc00000u);
        nnti_cpu_cross_entropy(&e, &op, &run);
        CHECK(is_nan((float)loss.sum) && is_nan(gx[0]) && is_nan(gx[3]));
        CHECK(i == 1 ? loss.correct > 0 : !(loss.correct > 0));
    }
}
static void mse_equals_naive(void)
{
    static const int cases[][3] = { { 1, 1, 0 }, { 3, 5, 0 }, { 8, 100, 1 }, { 2, 17, 0 }, { 64, 1000, 0 }, { 5, 3, 1 } };
    int k, i, s, v;
    for (k = 0; k < 6; k++) {
        const int n = cases[k][0], values = cases[k][1];
        nnt_op op = new_op(NNT_OP_MSE, values, 1, 1, 1, 1, 1);
        nnt_run run = new_run(n);
        const int64_t size = in_size(&op, n);
        float *x = random_floats(size), *t = random_floats(size), *gx = new_floats(size);
        nnt_loss *loss = (nnt_loss *)new_bytes(sizeof *loss);
        double *want = new_doubles(size), sum = 0, scale;
        outputs list;
        list.count = 0;
        run.loss_scale = cases[k][2] ? 0.25f : 0;
        scale = cases[k][2] ? 0.25 : 1.0 / n;
        for (s = 0; s < n; s++)
            for (v = 0; v < values; v++) {
                const double d = (double)x[s * values + v] - (double)t[s * values + v];
                sum += d * d / values;
                want[s * values + v] = 2 * d / values * scale;
            }
        op.at[NNT_X] = x; op.at[NNT_TARGETS] = t; op.at[NNT_GX] = gx; op.at[NNT_LOSS] = loss;
        op.workspace_bytes = nnti_cpu_mse_workspace(NULL, &op, n);
        op.workspace = new_bytes(op.workspace_bytes);
        add_floats(&list, gx, size);
        add_output(&list, loss, sizeof *loss);
        for (i = 0; i < isa_count; i++) {
            CHECK(same_for_all_threads(nnti_cpu_mse, &op, &run, isas[i], &list));
            CHECKF(fabs(loss->sum - sum) < 1e-12 * sum && error_of(gx, want, size) < 6e-8, "mse n=%d values=%d: %.17g, want %.17g",
                   n, values, loss->sum, sum);
            CHECK(loss->weight >= n && loss->weight <= n && loss->samples >= n && !(loss->correct > 0) && !(loss->correct5 > 0));
        }
        configurations++;
        release_buffers();
    }
}
/* Fewer samples than the batch: what lies behind stays as it was. */
static void a_partial_batch_leaves_the_rest_alone(void)
{
    static const pool_case three = { 2, 3, 9, 11, 3, 3, 2, 2, 1, 1, 0 };
    nnt_op op = pool_op(NNT_OP_MAXPOOL, &three), bn = new_op(NNT_OP_BN_APPLY, 3, 9, 11, 3, 9, 11);
    const int64_t in1 = in_size(&op, 1), out1 = out_size(&op, 1);
    const nnt_run run = new_run(1);
    float *x = random_floats(2 * in1), *y = random_floats(2 * out1), *y0 = copy_floats(y, 2 * out1), *stats = random_floats(9);
    float *z = random_floats(2 * in1), *z0 = copy_floats(z, 2 * in1), *one = new_floats(9);
    uint8_t *aux = (uint8_t *)new_bytes((size_t)(2 * out1));
    nnti_exec e;
    e.pool = pools[1];
    e.isa = nnti_isa_best();
    op.at[NNT_X] = x; op.at[NNT_Y] = y; op.at[NNT_AUX] = aux;
    nnti_cpu_maxpool(&e, &op, &run);
    CHECK(!memcmp(y + out1, y0 + out1, (size_t)out1 * sizeof *y) && aux[out1] == 0x77);
    bn.at[NNT_X] = x; bn.at[NNT_Y] = bn.at[NNT_GX] = z; bn.at[NNT_GY] = x; bn.at[NNT_STATS] = stats;
    nnti_cpu_bn_apply(&e, &bn, &run);
    CHECK(!memcmp(z + in1, z0 + in1, (size_t)in1 * sizeof *z));
    nnti_cpu_bn_grad(&e, &bn, &run);
    CHECK(!memcmp(z + in1, z0 + in1, (size_t)in1 * sizeof *z));
    bn.at[NNT_STATS] = one;                             /* the second sample must not enter the statistics */
    nnti_cpu_bn_stats(&e, &bn, &run);
    memcpy(stats, one, 9 * sizeof *one);
    x[in1] = 1e30f;
    nnti_cpu_bn_stats(&e, &bn, &run);
    CHECK(!memcmp(stats, one, 9 * sizeof *one));
    release_buffers();
}

/* ============================================================================
   The naive gradients, by finite differences in double
   ============================================================================ */

/* A scalar function of v, through whichever naive forward: sum of weights * outputs. */
typedef struct probe {
    int kind, n, c, hw;
    const nnt_op *op;
    const entropy_case *entropy;
    const int32_t *labels;
    const double *weights, *w, *b;
} probe;

static double probe_value(const probe *p, double *v)
{
    const int64_t out = p->op ? out_size(p->op, p->n) : (int64_t)p->n * p->c * p->hw;
    double *y = (double *)malloc((size_t)out * sizeof *y), sum = 0, stats[64];
    int64_t *at = (int64_t *)malloc((size_t)out * sizeof *at), i;
    nnt_loss loss;
    if (!y || !at) exit(2);
    switch (p->kind) {
    case NNT_OP_MAXPOOL: naive_maxpool(p->op, p->n, v, y, at); break;
    case NNT_OP_AVGPOOL: naive_mean(p->op, p->n, v, y, 0); break;
    case NNT_OP_SOFTMAX: naive_softmax(p->n, p->c, p->hw, v, y); break;
    case NNT_OP_BN_APPLY:
        naive_bn_stats(p->n, p->c, p->hw, v, 1e-3, stats, stats + p->c, stats + 2 * p->c);
        naive_bn_apply(p->n, p->c, p->hw, v, stats, stats + p->c, p->w, p->b, y);
        break;
    default: sum = naive_entropy(p->entropy, v, p->labels, p->w, (double)p->entropy->scale, &loss); break;
    }
    if (p->kind != NNT_OP_CROSS_ENTROPY) for (i = 0; i < out; i++) sum += y[i] * p->weights[i];
    free(y);
    free(at);
    return sum;
}
static double difference_error(const probe *p, double *v, const double *gradient, int64_t n)
{
    const double h = 1e-5;
    double worst = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const double kept = v[i];
        double up, down, d;
        v[i] = kept + h;
        up = probe_value(p, v);
        v[i] = kept - h;
        down = probe_value(p, v);
        v[i] = kept;
        d = fabs((up - down) / (2 * h) - gradient[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}
static void naive_gradients_equal_finite_differences(void)
{
    static const int small[] = { 1, 4, 7, 18, 20, 24, 28, 33, 37, 43 };
    int k, variant;
    probe p;
    memset(&p, 0, sizeof p);
    for (k = 0; k < (int)(sizeof small / sizeof small[0]); k++)
        for (variant = 0; variant < 3; variant++) {     /* avgpool's two, maxpool */
            const pool_case *c = &pool_cases[small[k]];
            nnt_op op = pool_op(variant < 2 ? NNT_OP_AVGPOOL : NNT_OP_MAXPOOL, c);
            const int64_t in = in_size(&op, c->n), out = out_size(&op, c->n);
            double *x = to_doubles(random_floats(in), in), *gy = to_doubles(random_floats(out), out), *gx = new_doubles(in);
            int64_t *at = (int64_t *)new_bytes((size_t)out * sizeof *at), i;
            op.variant = variant & 1;
            for (i = 0; i < in; i++) { gx[i] = 0; if (variant == 2) x[i] = (double)((i * 7919) % 100003) / 1000; }     /* no ties */
            p.kind = op.kind; p.n = c->n; p.op = &op; p.weights = gy;
            if (variant == 2) {
                naive_maxpool(&op, c->n, x, new_doubles(out), at);
                for (i = 0; i < out; i++) gx[at[i]] += gy[i];
            } else {
                naive_mean(&op, c->n, gx, gy, 1);
            }
            CHECKF(difference_error(&p, x, gx, in) < 1e-7, "%s variant=%d: %g", pool_text(c), variant, difference_error(&p, x, gx, in));
            release_buffers();
        }
    for (k = 0; k < 14; k++) {
        const int *a = adaptive_cases[k];
        const nnt_op op = new_op(NNT_OP_ADAPTIVE, a[1], a[2], a[3], a[1], a[4], a[5]);
        const int64_t in = in_size(&op, a[0]), out = out_size(&op, a[0]);
        double *x = to_doubles(random_floats(in), in), *gy = to_doubles(random_floats(out), out), *gx = new_doubles(in);
        if (in > 1500) { release_buffers(); continue; }
        memset(gx, 0, (size_t)in * sizeof *gx);
        p.kind = NNT_OP_AVGPOOL; p.n = a[0]; p.op = &op; p.weights = gy;
        naive_mean(&op, a[0], gx, gy, 1);
        CHECKF(difference_error(&p, x, gx, in) < 1e-8, "adaptive %d: %g", k, difference_error(&p, x, gx, in));
        release_buffers();
    }
    p.op = NULL;
    for (k = 0; k < 9; k++) {
        const int n = bn_cases[k][0], c = bn_cases[k][1], hw = bn_cases[k][2] * bn_cases[k][3];
        const int64_t size = (int64_t)n * c * hw;
        double *x = to_doubles(random_floats(size), size), *gy = to_doubles(random_floats(size), size), *gx = new_doubles(size);
        double stats[64], gw[64], gb[64];
        if (c > 20) { release_buffers(); continue; }
        p.kind = NNT_OP_BN_APPLY; p.n = n; p.c = c; p.hw = hw; p.weights = gy;
        p.w = to_doubles(random_floats(c), c);
        p.b = to_doubles(random_floats(c), c);
        naive_bn_stats(n, c, hw, x, 1e-3, stats, stats + c, stats + 2 * c);
        naive_bn_grad(n, c, hw, x, gy, stats, stats + c, p.w, gx, gw, gb);
        CHECKF(difference_error(&p, x, gx, size) < 2e-6, "bn %d: %g", k, difference_error(&p, x, gx, size));
        {   /* the weights': the function is linear in them, so one difference of any size is exact */
            double *w2 = to_doubles(random_floats(c), c), *b2 = to_doubles(random_floats(c), c), want = 0, before;
            probe q = p;
            int i;
            for (i = 0; i < c; i++) want += (w2[i] - p.w[i]) * gw[i] + (b2[i] - p.b[i]) * gb[i];
            before = probe_value(&p, x);
            q.w = w2;
            q.b = b2;
            CHECKF(fabs(probe_value(&q, x) - before - want) < 1e-9, "bn %d weights", k);
        }
        release_buffers();
    }
    p.w = p.b = NULL;
    for (k = 0; k < 8; k++) {
        const int n = softmax_cases[k][0], c = softmax_cases[k][1], hw = softmax_cases[k][2] * softmax_cases[k][3];
        const int64_t size = (int64_t)n * c * hw;
        double *x = to_doubles(random_floats(size), size), *gy = to_doubles(random_floats(size), size);
        double *y = new_doubles(size), *gx = new_doubles(size);
        if (size > 1200) { release_buffers(); continue; }
        p.kind = NNT_OP_SOFTMAX; p.n = n; p.c = c; p.hw = hw; p.weights = gy;
        naive_softmax(n, c, hw, x, y);
        naive_softmax_grad(n, c, hw, y, gy, gx);
        CHECKF(difference_error(&p, x, gx, size) < 1e-9, "softmax %d: %g", k, difference_error(&p, x, gx, size));
        release_buffers();
    }
    for (k = 0; k < ENTROPY_CASES; k++) {
        const entropy_case *c = &entropy_cases[k];
        const int64_t size = (int64_t)c->n * c->classes;
        double *x = to_doubles(random_floats(size), size), *gx = new_doubles(size);
        int32_t labels[128];
        if (size > 300) { release_buffers(); continue; }
        entropy_labels(c, labels);
        p.kind = NNT_OP_CROSS_ENTROPY; p.n = c->n; p.c = c->classes; p.hw = 1; p.entropy = c; p.labels = labels;
        p.w = c->weighted ? to_doubles(random_floats(c->classes), c->classes) : NULL;
        if (p.w) { double *w = new_doubles(c->classes); int i; for (i = 0; i < c->classes; i++) w[i] = 0.2 + fabs(p.w[i]); p.w = w; }
        naive_entropy_grad(c, x, labels, p.w, (double)c->scale, gx);
        CHECKF(difference_error(&p, x, gx, size) < 1e-8, "entropy %d: %g", k, difference_error(&p, x, gx, size));
        release_buffers();
    }
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    start_pools();
    TEST(naive_gradients_equal_finite_differences);
    TEST(maxpool_equals_naive);
    TEST(maxpool_grad_equals_naive);
    TEST(avgpool_and_gradient_equal_naive);
    TEST(adaptive_avgpool_and_gradient_equal_naive);
    TEST(pooling_equals_recorded_values);
    TEST(maxpool_passes_nan_and_minus_infinity);
    TEST(batchnorm_statistics_equal_naive);
    TEST(batchnorm_apply_equals_naive);
    TEST(batchnorm_gradients_equal_naive);
    TEST(batchnorm_statistics_keep_their_digits);
    TEST(relu_of_batchnorm_keeps_nan);
    TEST(batchnorm_equals_recorded_values);
    TEST(softmax_and_gradient_equal_naive);
    TEST(cross_entropy_equals_naive);
    TEST(cross_entropy_equals_recorded_values);
    TEST(cross_entropy_of_ignored_samples_is_zero);
    TEST(cross_entropy_passes_nan);
    TEST(mse_equals_naive);
    TEST(a_partial_batch_leaves_the_rest_alone);
    stop_pools();
    printf("pool, norm, loss: %d configurations\n", configurations);
    return TEST_END();
}
