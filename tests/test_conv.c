/* Convolution, fully connected layers and the matrix product below them against loops in double precision (naive.h),
   for every instruction set of this machine. Each kernel runs with 1, 2, 3 and 8 threads, whose results must be equal in
   every bit; its workspace is full of NaN before and its outputs are followed by guard words. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#if defined(__GNUC__) || defined(__clang__)
#  pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "test.h"
#include "naive.h"

/* Errors are norms of the difference over norms of the double result. A float has 6e-8 of rounding; sums of up to a few
   thousand products, taken in blocks, stay below these. */
#define FORWARD_LIMIT 1e-6
#define GRADIENT_LIMIT 5e-6
/* Winograd's F(4x4, 3x3) rounds about twice as much; sums of 600 channels stay below this. See docs/speed.md. */
#define WINOGRAD_LIMIT 4e-6

/* ---- buffers, random values, pools ---- */

enum { GUARDS = 16, POOLS = 4, MOST_BUFFERS = 64 };
static const int pool_threads[POOLS] = { 1, 2, 3, 8 };
static nnti_pool *pools[POOLS];

static void *blocks[MOST_BUFFERS];
static float *guards[MOST_BUFFERS];
static int block_count;

static void release(void)
{
    int i, j;
    for (i = 0; i < block_count; i++) {
        for (j = 0; j < GUARDS; j++) CHECK(nnti_float_bits(guards[i][j]) == 0x5a5a5a5au);
        free(blocks[i]);
    }
    block_count = 0;
}
/* n floats on a 64-byte boundary, followed by guard words, until the next release. All NaN. */
static float *floats(size_t n)
{
    char *raw = (char *)malloc(n * sizeof(float) + GUARDS * sizeof(float) + 64);
    float *p;
    if (!raw || block_count == MOST_BUFFERS) exit(2);
    p = (float *)(void *)(raw + (64 - (size_t)(uintptr_t)raw % 64));
    memset(p, 0xff, n * sizeof(float));
    memset(p + n, 0x5a, GUARDS * sizeof(float));
    guards[block_count] = p + n;
    blocks[block_count++] = raw;
    return p;
}
static double *doubles(size_t n)
{
    double *p = (double *)(void *)floats(2 * n);
    size_t i;
    for (i = 0; i < n; i++) p[i] = 0.0;
    return p;
}
static uint32_t random_state;
static uint32_t random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}
static int random_int(int low, int high) { return low + (int)(random_bits() % (uint32_t)(high - low + 1)); }
static float *random_floats(size_t n)
{
    float *p = floats(n);
    size_t i;
    for (i = 0; i < n; i++) p[i] = (float)random_bits() / 8388608.0f - 1.0f;
    return p;
}
static double error_of(const float *got, const double *want, size_t n)
{
    double d = 0.0, s = 0.0;
    size_t i;
    for (i = 0; i < n; i++) {
        if (!nnti_finite(got[i])) return 1e30;
        d += (got[i] - want[i]) * (got[i] - want[i]);
        s += want[i] * want[i];
    }
    return s > 0.0 ? sqrt(d / s) : sqrt(d);
}
static int isa_count(void) { return nnti_isa_best() == NNTI_ISA_NEON ? 2 : nnti_isa_best() + 1; }
static int isa_at(int i) { return i && nnti_isa_best() == NNTI_ISA_NEON ? NNTI_ISA_NEON : i; }
static double worst_forward, worst_gradient;
static int configurations, few;

/* ---- running an op ---- */

typedef size_t (*workspace_fn)(const nnti_exec *e, const nnt_op *op, int batch);
typedef void (*run_fn)(const nnti_exec *e, const nnt_op *op, const nnt_run *run);

/* Runs with each pool from the same start of the output and of a second, optional one; all must give the same bits. */
static int run_all(int isa, nnt_op *op, const nnt_run *run, int batch, workspace_fn workspace, run_fn fn, int role,
                   size_t n, int role2, size_t n2)
{
    float *start = (float *)malloc((n + n2) * sizeof(float)), *first = (float *)malloc((n + n2) * sizeof(float));
    float *out = (float *)op->at[role], *out2 = role2 >= 0 ? (float *)op->at[role2] : NULL;
    int p, same = 1;
    if (!start || !first) exit(2);
    memcpy(start, out, n * sizeof(float));
    if (out2) memcpy(start + n, out2, n2 * sizeof(float));
    for (p = 0; p < POOLS; p++) {
        nnti_exec e;
        int mark = block_count;
        e.pool = pools[p];
        e.isa = isa;
        op->workspace_bytes = workspace(&e, op, batch);
        op->workspace = floats((op->workspace_bytes + 3) / 4);
        memcpy(out, start, n * sizeof(float));
        if (out2) memcpy(out2, start + n, n2 * sizeof(float));
        fn(&e, op, run);
        if (p == 0) {
            memcpy(first, out, n * sizeof(float));
            if (out2) memcpy(first + n, out2, n2 * sizeof(float));
        }
        same = same && !memcmp(first, out, n * sizeof(float))
               && (!out2 || !memcmp(first + n, out2, n2 * sizeof(float)));
        while (block_count > mark) {
            int j;
            block_count--;
            for (j = 0; j < GUARDS; j++) same = same && nnti_float_bits(guards[block_count][j]) == 0x5a5a5a5au;
            free(blocks[block_count]);
        }
    }
    free(start);
    free(first);
    return same;
}

/* ---- convolution ---- */

enum { BIAS = 1, RELU = 2, ACCUMULATE = 4, MASKED = 8, PARTIAL = 16, EXACT = 32 };

static nnt_op conv_op(const naive_conv *s)
{
    nnt_op op;
    memset(&op, 0, sizeof op);
    op.in_c = s->c; op.in_h = s->h; op.in_w = s->w;
    op.out_c = s->f; op.out_h = naive_conv_out_h(s); op.out_w = naive_conv_out_w(s);
    op.kernel_h = s->kh; op.kernel_w = s->kw; op.stride_h = s->sh; op.stride_w = s->sw;
    op.pad_h = s->ph; op.pad_w = s->pw; op.dilation_h = s->dh; op.dilation_w = s->dw; op.groups = s->g;
    return op;
}
static const char *conv_text(const naive_conv *s, int options, int isa)
{
    static char text[200];
    sprintf(text, "conv n=%d c=%d h=%d w=%d f=%d k=%dx%d s=%dx%d p=%dx%d d=%dx%d g=%d options=%d isa=%d", s->n, s->c,
            s->h, s->w, s->f, s->kh, s->kw, s->sh, s->sw, s->ph, s->pw, s->dh, s->dw, s->g, options, isa);
    return text;
}
static size_t no_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    (void)e;
    (void)op;
    (void)batch;
    return 0;
}
static void reference_forward(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    (void)e;
    nnti_conv_c_forward(op, run);
}
static void reference_data(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    (void)e;
    nnti_conv_c_data(op, run);
}
static void reference_weight(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    (void)e;
    nnti_conv_c_weight(op, run);
}

/* What a convolution does with its sums y[n][f][plane]. */
static void naive_end(double *y, size_t n, size_t plane, const float *b, size_t filters, int options)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (options & BIAS) y[i] += b[i / plane % filters];
        if ((options & RELU) && y[i] < 0.0) y[i] = 0.0;
    }
}
/* Forward, data and weights of one configuration on every instruction set, and on the plain loops. s->n samples are
   run, with PARTIAL of a batch that is larger. */
static void check_conv(const naive_conv *s, int options)
{
    const int batch = s->n + ((options & PARTIAL) ? 3 : 0), oh = naive_conv_out_h(s), ow = naive_conv_out_w(s);
    const size_t nx = (size_t)s->n * (size_t)s->c * (size_t)s->h * (size_t)s->w;
    const size_t ny = (size_t)s->n * (size_t)s->f * (size_t)oh * (size_t)ow;
    const size_t nw = (size_t)s->f * (size_t)(s->c / s->g) * (size_t)s->kh * (size_t)s->kw, nf = (size_t)s->f;
    float *x = random_floats(nx), *w = random_floats(nw), *b = random_floats(nf), *gy = random_floats(ny),
          *mask = random_floats(nx);
    float *gx0 = random_floats(nx), *gw0 = random_floats(nw), *gb0 = random_floats(nf);
    float *y = floats(ny), *gx = floats(nx), *gw = floats(nw), *gb = floats(nf);
    double *want_y = doubles(ny), *want_gx = doubles(nx), *want_gw = doubles(nw), *want_gb = doubles(nf);
    const int exact = (options & EXACT) ? NNT_OPF_EXACT : 0;
    size_t i;
    int k;
    nnt_run run;
    memset(&run, 0, sizeof run);
    run.count = s->n;
    run.accumulate = (options & ACCUMULATE) != 0;

    naive_conv_forward(s, x, w, want_y);
    naive_end(want_y, ny, (size_t)(oh * ow), b, nf, options);
    naive_conv_data(s, gy, w, want_gx);
    for (i = 0; i < nx; i++) {
        if (options & ACCUMULATE) want_gx[i] += gx0[i];
        if ((options & MASKED) && mask[i] <= 0.0f) want_gx[i] = 0.0;
    }
    naive_conv_weight(s, x, gy, want_gw, want_gb);
    if (options & ACCUMULATE) {
        for (i = 0; i < nw; i++) want_gw[i] += gw0[i];
        for (i = 0; i < nf; i++) want_gb[i] += gb0[i];
    }
    configurations++;
    for (k = 0; k <= isa_count(); k++) {
        const int plain = k == isa_count(), isa = plain ? -1 : isa_at(k);
        nnt_op op = conv_op(s);
        double e;
        op.flags = exact | ((options & RELU) ? NNT_OPF_RELU : 0);
        op.at[NNT_X] = x; op.at[NNT_W] = w; op.at[NNT_B] = (options & BIAS) ? b : NULL; op.at[NNT_Y] = y;
        CHECKF(run_all(isa, &op, &run, batch, plain ? no_workspace : nnti_cpu_conv_workspace,
                       plain ? reference_forward : nnti_cpu_conv, NNT_Y, ny, -1, 0),
               "%s: forward differs between threads or writes behind its workspace", conv_text(s, options, isa));
        e = error_of(y, want_y, ny);
        CHECKF(e < (!plain && nnti_wino_pick(&op) ? WINOGRAD_LIMIT : FORWARD_LIMIT), "%s: forward %g",
               conv_text(s, options, isa), e);
        if (e > worst_forward) worst_forward = e;
        if (!plain && batch * oh * ow <= 64) {                      /* as lowering marks it */
            op.flags |= NNT_OPF_EXACT | NNT_OPF_FEW;
            memset(y, 0xff, ny * sizeof(float));
            CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_conv_workspace, nnti_cpu_conv, NNT_Y, ny, -1, 0),
                   "%s: forward of few positions differs between threads or writes behind its workspace", conv_text(s, options, isa));
            e = error_of(y, want_y, ny);
            CHECKF(e < FORWARD_LIMIT, "%s: forward of few positions %g", conv_text(s, options, isa), e);
            few++;
        }

        op = conv_op(s);
        op.flags = exact | ((options & ACCUMULATE) ? NNT_OPF_ACCUMULATE : 0) | ((options & MASKED) ? NNT_OPF_MASK : 0);
        op.at[NNT_GY] = gy; op.at[NNT_W] = w; op.at[NNT_GX] = gx; op.at[NNT_MASK] = (options & MASKED) ? mask : NULL;
        if (options & ACCUMULATE) memcpy(gx, gx0, nx * sizeof(float)); else memset(gx, 0xff, nx * sizeof(float));
        CHECKF(run_all(isa, &op, &run, batch, plain ? no_workspace : nnti_cpu_conv_data_workspace,
                       plain ? reference_data : nnti_cpu_conv_data, NNT_GX, nx, -1, 0),
               "%s: data differs between threads or writes behind its workspace", conv_text(s, options, isa));
        e = error_of(gx, want_gx, nx);
        CHECKF(e < GRADIENT_LIMIT, "%s: data %g", conv_text(s, options, isa), e);
        if (e > worst_gradient) worst_gradient = e;

        op = conv_op(s);
        op.flags = exact;
        op.at[NNT_X] = x; op.at[NNT_GY] = gy; op.at[NNT_GW] = gw; op.at[NNT_GB] = (options & BIAS) ? gb : NULL;
        if (options & ACCUMULATE) { memcpy(gw, gw0, nw * sizeof(float)); memcpy(gb, gb0, nf * sizeof(float)); }
        else { memset(gw, 0xff, nw * sizeof(float)); memset(gb, 0xff, nf * sizeof(float)); }
        CHECKF(run_all(isa, &op, &run, batch, plain ? no_workspace : nnti_cpu_conv_weight_workspace,
                       plain ? reference_weight : nnti_cpu_conv_weight, NNT_GW, nw, (options & BIAS) ? NNT_GB : -1, nf),
               "%s: weight differs between threads or writes behind its workspace", conv_text(s, options, isa));
        e = error_of(gw, want_gw, nw);
        CHECKF(e < GRADIENT_LIMIT, "%s: weight %g", conv_text(s, options, isa), e);
        if (e > worst_gradient) worst_gradient = e;
        if (options & BIAS) {
            e = error_of(gb, want_gb, nf);
            CHECKF(e < GRADIENT_LIMIT, "%s: bias %g", conv_text(s, options, isa), e);
        }
    }
    release();
}
/* ---- convolution with 2x2 max pooling of it ---- */

static nnt_op pooled_op(const naive_conv *s, int kind)
{
    nnt_op op = conv_op(s);
    op.kind = kind;
    op.mid_h = op.out_h;
    op.mid_w = op.out_w;
    op.out_h /= 2;
    op.out_w /= 2;
    op.pool_kernel_h = op.pool_kernel_w = op.pool_stride_h = op.pool_stride_w = 2;
    return op;
}
/* Lanes of the indices' order, 0: that of the map. */
static int pooled_lanes(int isa, const nnt_op *op)
{
    nnti_exec e;
    nnti_pooled p;
    e.pool = NULL;
    e.isa = isa;
    p = nnti_fused_pooled(&e, op);
    return p.isa ? p.isa->lanes : 0;
}
/* Where in the map [n][f][mid_h][mid_w] output i = [n][f][h][w] was taken from. */
static size_t pooled_place(const nnt_op *op, int lanes, const uint8_t *aux, size_t i)
{
    const size_t plane = (size_t)(op->out_h * op->out_w), channel = i / plane, at = i % plane;
    const size_t row = at / (size_t)op->out_w, column = at % (size_t)op->out_w, l = (size_t)lanes;
    const size_t k = lanes ? aux[(channel / l * plane + at) * l + channel % l] : aux[i];
    return (channel * (size_t)op->mid_h + 2 * row + k / 2) * (size_t)op->mid_w + 2 * column + k % 2;
}
static int pooled_without_map;
enum { OVER = 64 };

static void check_pooled(const naive_conv *s, int options)
{
    const int batch = s->n + ((options & PARTIAL) ? 3 : 0);
    const nnt_op shape = pooled_op(s, NNT_OP_CONV_POOL);
    const size_t nx = (size_t)s->n * (size_t)s->c * (size_t)s->h * (size_t)s->w, nf = (size_t)s->f;
    const size_t nm = (size_t)s->n * nf * (size_t)(shape.mid_h * shape.mid_w), ny = (size_t)s->n * nf * (size_t)(shape.out_h * shape.out_w);
    const size_t nw = nf * (size_t)s->c * (size_t)s->kh * (size_t)s->kw, na = (ny + 3) / 4;
    float *x = random_floats(nx), *w = random_floats(nw), *b = random_floats(nf), *gy = random_floats(ny), *mask = random_floats(nx);
    float *gx0 = random_floats(nx), *gw0 = random_floats(nw), *gb0 = random_floats(nf), *map_gy = floats(nm), *last_gy = floats(nm), *aux = floats(na);
    float *y = floats(ny), *gx = floats(nx), *gw = floats(nw), *gb = floats(nf);
    double *map = doubles(nm), *want_gx = doubles(nx), *want_gw = doubles(nw), *want_gb = doubles(nf);
    const int exact = (options & EXACT) ? NNT_OPF_EXACT : 0, accumulate = (options & ACCUMULATE) && !(options & OVER);
    size_t i;
    int k;
    nnt_run run;
    memset(&run, 0, sizeof run);
    run.count = s->n;
    run.accumulate = (options & ACCUMULATE) != 0;
    naive_conv_forward(s, x, w, map);
    naive_end(map, nm, (size_t)(shape.mid_h * shape.mid_w), b, nf, options);
    for (k = 0; k < isa_count(); k++) {
        const int isa = isa_at(k);
        nnt_op op = shape;
        int lanes, wrong = 0;
        double e, limit;
        op.flags = exact | ((options & RELU) ? NNT_OPF_RELU : 0);
        lanes = pooled_lanes(isa, &op);
        pooled_without_map += lanes > 0;
        op.at[NNT_X] = x; op.at[NNT_W] = w; op.at[NNT_B] = (options & BIAS) ? b : NULL; op.at[NNT_Y] = y; op.at[NNT_AUX] = aux;
        CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_conv_pool_workspace, nnti_cpu_conv_pool, NNT_Y, ny, NNT_AUX, na),
               "%s: pooled forward differs between threads or writes behind its workspace", conv_text(s, options, isa));
        limit = nnti_wino_pick(&op) ? WINOGRAD_LIMIT : FORWARD_LIMIT;
        for (i = 0; i < nm; i++) map_gy[i] = 0;
        for (i = 0; i < ny; i++) {
            /* the value at the index, and the largest of its window, which it may miss by rounding only; sums of K products of
               values up to 1 are some sqrt(K) in size. Limits are of norms: twice, as two values are compared, single ones of
               thousands are up to 5 of those off, and Winograd's first values of a tile up to twice its others */
            const size_t at = pooled_place(&op, lanes, (const uint8_t *)aux, i), mw = (size_t)op.mid_w;
            const size_t row = at / mw % (size_t)op.mid_h / 2 * 2, first = at / (mw * (size_t)op.mid_h) * mw * (size_t)op.mid_h + row * mw + at % mw / 2 * 2;
            const double largest = fmax(fmax(map[first], map[first + 1]), fmax(map[first + mw], map[first + mw + 1]));
            const double size = 20.0 * limit * (1.0 + sqrt((double)(s->c * s->kh * s->kw)));
            if (!(fabs(map[at] - largest) <= size) || !(fabs(y[i] - largest) <= size)) wrong++;
            map_gy[at] = gy[i];
        }
        if (k == 0 || memcmp(map_gy, last_gy, nm * sizeof(float))) {        /* what follows from other indices differs */
            for (i = 0; i < nx; i++) want_gx[i] = 0.0;
            for (i = 0; i < nw; i++) want_gw[i] = 0.0;
            for (i = 0; i < nf; i++) want_gb[i] = 0.0;
            naive_conv_data(s, map_gy, w, want_gx);
            naive_conv_weight(s, x, map_gy, want_gw, want_gb);
            for (i = 0; i < nx; i++) {
                if (accumulate) want_gx[i] += gx0[i];
                if ((options & (MASKED | OVER)) && mask[i] <= 0.0f) want_gx[i] = 0.0;
            }
            for (i = 0; i < nw && run.accumulate; i++) want_gw[i] += gw0[i];
            for (i = 0; i < nf && run.accumulate; i++) want_gb[i] += gb0[i];
            memcpy(last_gy, map_gy, nm * sizeof(float));
        }
        CHECKF(wrong == 0, "%s: %d of %d pooled values or indices", conv_text(s, options, isa), wrong, (int)ny);
        memset(gx, 0, nx * sizeof(float));
        if (ny <= nx) {                                             /* without indices, and indices alone: the same */
            op.at[NNT_AUX] = NULL;
            op.at[NNT_Y] = gx;
            CHECK(run_all(isa, &op, &run, batch, nnti_cpu_conv_pool_workspace, nnti_cpu_conv_pool, NNT_Y, ny, -1, 0));
            CHECKF(!memcmp(gx, y, ny * sizeof(float)), "%s: without indices", conv_text(s, options, isa));
            memset(gx, 0, nx * sizeof(float));
            op.at[NNT_AUX] = gx;
            op.at[NNT_Y] = NULL;
            CHECK(run_all(isa, &op, &run, batch, nnti_cpu_conv_pool_workspace, nnti_cpu_conv_pool, NNT_AUX, na, -1, 0));
            CHECKF(!memcmp(gx, aux, ny), "%s: indices alone", conv_text(s, options, isa));
        }

        op = pooled_op(s, NNT_OP_CONV_POOL_DATA);
        op.flags = exact | (accumulate ? NNT_OPF_ACCUMULATE : 0) | ((options & (MASKED | OVER)) ? NNT_OPF_MASK : 0)
                 | ((options & OVER) ? NNT_OPF_OVER : 0);
        op.at[NNT_GY] = gy; op.at[NNT_AUX] = aux; op.at[NNT_W] = w; op.at[NNT_GX] = gx;
        op.at[NNT_MASK] = (options & OVER) ? gx : (options & MASKED) ? mask : NULL;
        if (options & OVER) memcpy(gx, mask, nx * sizeof(float));
        else if (accumulate) memcpy(gx, gx0, nx * sizeof(float));
        else memset(gx, 0xff, nx * sizeof(float));
        CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_conv_pool_data_workspace, nnti_cpu_conv_pool_data, NNT_GX, nx, -1, 0),
               "%s: pooled data differs between threads or writes behind its workspace", conv_text(s, options, isa));
        e = error_of(gx, want_gx, nx);
        CHECKF(e < GRADIENT_LIMIT, "%s: pooled data %g", conv_text(s, options, isa), e);

        op = pooled_op(s, NNT_OP_CONV_POOL_WEIGHT);
        op.flags = exact;
        op.at[NNT_X] = x; op.at[NNT_GY] = gy; op.at[NNT_AUX] = aux; op.at[NNT_GW] = gw; op.at[NNT_GB] = (options & BIAS) ? gb : NULL;
        if (run.accumulate) { memcpy(gw, gw0, nw * sizeof(float)); memcpy(gb, gb0, nf * sizeof(float)); }
        else { memset(gw, 0xff, nw * sizeof(float)); memset(gb, 0xff, nf * sizeof(float)); }
        CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_conv_pool_weight_workspace, nnti_cpu_conv_pool_weight, NNT_GW, nw,
                       (options & BIAS) ? NNT_GB : -1, nf),
               "%s: pooled weight differs between threads or writes behind its workspace", conv_text(s, options, isa));
        e = error_of(gw, want_gw, nw);
        CHECKF(e < GRADIENT_LIMIT, "%s: pooled weight %g", conv_text(s, options, isa), e);
        e = options & BIAS ? error_of(gb, want_gb, nf) : 0.0;
        CHECKF(e < GRADIENT_LIMIT, "%s: pooled bias %g", conv_text(s, options, isa), e);
    }
    release();
}
static void check_pooled_square(int n, int c, int h, int w, int f, int k, int stride, int pad, int dilation)
{
    static const int options[] = { BIAS | RELU, ACCUMULATE | PARTIAL, BIAS | MASKED, RELU | OVER, BIAS | ACCUMULATE | MASKED, EXACT | BIAS | RELU };
    static int turn;
    naive_conv s = { n, c, h, w, f, k, k, stride, stride, pad, pad, dilation, dilation, 1 };
    check_pooled(&s, options[turn++ % 6]);
}
static void pooled_convolutions_of_few_weights(void)
{
    static const int filters[] = { 8, 16, 24, 32, 40, 48, 5 };
    int i;
    for (i = 0; i < 7; i++) check_pooled_square(3, 1, 8, 10, filters[i], 3, 1, 1, 1);
    for (i = 0; i < 6; i++) check_pooled_square(2, 3, 7 + i, 5 + 2 * i, 16, 3, 1, 1, 1);
    for (i = 0; i < 6; i++) check_pooled_square(2, 2, 9, 6 + i, 16, 5, 1, 2, 1);
    for (i = 0; i < 6; i++) check_pooled_square(2, 3, 12, 13, 32, 3, 1 + i % 3, i % 4, 1 + i / 3);
    check_pooled_square(1, 1, 30, 90, 16, 3, 1, 1, 1);                                      /* bands of rows */
    check_pooled_square(1, 1, 4, 1100, 16, 3, 1, 1, 1);                                     /* rows longer than a band's positions */
    for (i = 0; i < 2; i++) check_pooled_square(70, 1, 4, 4, 16, 3, 1, 1, 1);               /* more samples than parts */
    check_pooled_square(1, 1, 2, 2, 16, 1, 1, 0, 1);
    check_pooled_square(2, 5, 8, 8, 16, 4, 2, 1, 1);
}
static void pooled_convolutions_by_winograd(void)
{
    static const int channels[][2] = { { 16, 16 }, { 32, 64 }, { 64, 64 }, { 17, 48 }, { 40, 24 } };
    int i, j;
    for (i = 0; i < 5; i++)
        for (j = 0; j < 3; j++) check_pooled_square(1 + j, channels[i][0], 10 - 2 * j, 7 + j, channels[i][1], 3, 1, 1, 1);
    for (i = 0; i < 6; i++) check_pooled_square(1, 16, 6 + i, 9, 16, 5, 1, i % 4, 1);
    for (i = 0; i < 3; i++) check_pooled_square(2, 64, 4, 4, 64, 3, 1, 1, 1);               /* F(2x2, 3x3) */
    for (i = 0; i < 3; i++) check_pooled_square(1, 16, 4 + i, 130, 16, 3, 1, i % 3, 1);     /* several runs of tiles a row */
    check_pooled_square(8, 32, 14, 14, 64, 3, 1, 1, 1);
    check_pooled_square(1, 64, 19, 17, 80, 3, 1, 0, 1);
    check_pooled_square(1, 64, 3, 5, 64, 3, 1, 1, 1);                                       /* fewer tiles than parts */
}
/* Among equal values the first counts, as in pooling alone; a NaN reaches those windows that hold it. */
static void pooled_convolutions_take_the_first_of_equals_and_pass_nan(void)
{
    static const int channels[] = { 1, 64 };
    int i, k;
    for (i = 0; i < 2; i++) {
        const naive_conv s = { 1, channels[i], 8, 8, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1 };
        nnt_op op = pooled_op(&s, NNT_OP_CONV_POOL);
        float *x = floats((size_t)(64 * s.c)), *w = random_floats((size_t)(64 * s.c * 9)), *y = floats(64 * 16), *aux = floats(64 * 4);
        nnt_run run;
        memset(&run, 0, sizeof run);
        run.count = 1;
        op.flags = NNT_OPF_RELU;
        op.at[NNT_X] = x; op.at[NNT_W] = w; op.at[NNT_Y] = y; op.at[NNT_AUX] = aux;
        for (k = 0; k < isa_count(); k++) {
            int j, zeros = 0, finite = 0;
            memset(x, 0, (size_t)(64 * s.c) * sizeof *x);
            CHECK(run_all(isa_at(k), &op, &run, 1, nnti_cpu_conv_pool_workspace, nnti_cpu_conv_pool, NNT_Y, 64 * 16, NNT_AUX, 64 * 4));
            for (j = 0; j < 64 * 16; j++) zeros += y[j] == 0.0f && ((const uint8_t *)aux)[j] == 0;
            CHECKF(zeros == 64 * 16, "isa=%d: %d of 1024 first", isa_at(k), zeros);
#ifndef __FAST_MATH__
            x[7 * 8 + 7] = nnti_bits_float(0x7fc00000u);           /* the last pixel: all filters of the last window */
            CHECK(run_all(isa_at(k), &op, &run, 1, nnti_cpu_conv_pool_workspace, nnti_cpu_conv_pool, NNT_Y, 64 * 16, NNT_AUX, 64 * 4));
            for (j = 0; j < 64 * 16; j++) finite += nnti_finite(y[j]) && j % 16 == 15;
            CHECKF(finite == 0 && nnti_finite(y[0]), "isa=%d: %d windows with NaN are finite", isa_at(k), finite);
#else
            (void)finite;
#endif
        }
        release();
    }
}
/* Gradients that are all the same, as behind an average over the map: sums of many equal values are where floats lose most. */
static void pooled_bias_gradient_of_a_large_map_is_exact(void)
{
    const naive_conv s = { 4, 1, 512, 1024, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1 };
    nnt_op op = pooled_op(&s, NNT_OP_CONV_POOL_WEIGHT);
    const size_t nx = (size_t)4 * 512 * 1024, ny = (size_t)4 * 16 * 256 * 512;
    float *gy = floats(ny), *gb = floats(16), *aux = floats(ny / 4);
    double want[16];
    size_t i;
    int k;
    nnt_run run;
    memset(&run, 0, sizeof run);
    run.count = 4;
    for (i = 0; i < ny; i++) gy[i] = 1e-3f;
    memset(aux, 0, ny);
    for (i = 0; i < 16; i++) want[i] = 4.0 * 256 * 512 * (double)1e-3f;
    op.at[NNT_X] = random_floats(nx); op.at[NNT_GY] = gy; op.at[NNT_AUX] = aux; op.at[NNT_GW] = floats(16 * 9); op.at[NNT_GB] = gb;
    for (k = 0; k < isa_count(); k++) {
        if (!pooled_lanes(isa_at(k), &op)) continue;
        CHECK(run_all(isa_at(k), &op, &run, 4, nnti_cpu_conv_pool_weight_workspace, nnti_cpu_conv_pool_weight, NNT_GB, 16, -1, 0));
        CHECKF(error_of(gb, want, 16) < GRADIENT_LIMIT, "isa=%d: bias %g", isa_at(k), error_of(gb, want, 16));
    }
    release();
}
static void some_convolutions_pooled_without_a_map(void)
{
    if (test_argc > 1) return;
    printf("%d pooled convolutions without a map\n", pooled_without_map);
#if defined(NNTI_X86)
    CHECK(pooled_without_map >= 40 || nnti_isa_best() == NNTI_ISA_C);
#endif
}
/* Square kernel, stride, padding, dilation; the options change from call to call. */
static void check_square(int n, int c, int h, int w, int f, int k, int stride, int pad, int dilation, int groups)
{
    static int turn;
    naive_conv s;
    s.n = n; s.c = c; s.h = h; s.w = w; s.f = f;
    s.kh = s.kw = k; s.sh = s.sw = stride; s.ph = s.pw = pad; s.dh = s.dw = dilation; s.g = groups;
    check_conv(&s, turn++ * 7 % 32);
}

static void conv_every_option_alone_and_together(void)
{
    naive_conv s = { 3, 4, 9, 7, 6, 3, 3, 1, 1, 1, 1, 1, 1, 2 };
    int options;
    for (options = 0; options < 32; options++) check_conv(&s, options);
    s.sh = s.sw = 2;
    for (options = 0; options < 32; options++) check_conv(&s, options);
}
static void conv_kernel_larger_than_stride_and_the_other_way_round(void)
{
    int k, stride, pad;
    for (k = 1; k <= 5; k++)
        for (stride = 1; stride <= 4; stride++)
            for (pad = 0; pad <= 2; pad += 2) check_square(2, 3, 9, 11, 5, k, stride, pad, 1, 1);
}
static void conv_kernel_equal_to_the_padded_input(void)
{
    int pad;
    for (pad = 0; pad <= 2; pad++) check_square(3, 2, 5, 5, 7, 5 + 2 * pad, 1, pad, 1, 1);
    check_square(2, 2, 5, 5, 3, 3, 3, 0, 2, 1);
    check_square(1, 1, 1, 1, 1, 1, 1, 0, 1, 1);
    check_square(2, 3, 1, 1, 4, 3, 2, 1, 1, 1);
}
static void conv_padding_beyond_the_kernel(void)
{
    check_square(2, 2, 4, 5, 3, 1, 1, 2, 1, 1);
    check_square(2, 2, 4, 5, 3, 2, 1, 5, 1, 1);
    check_square(2, 2, 4, 5, 3, 2, 3, 4, 1, 1);
    check_square(1, 1, 1, 1, 2, 3, 2, 6, 2, 1);
}
static void conv_one_by_one(void)
{
    int n;
    for (n = 1; n <= 3; n++) {
        check_square(n, 5, 7, 7, 3, 1, 1, 0, 1, 1);
        check_square(n, 5, 8, 6, 33, 1, 2, 0, 1, 1);
        check_square(n, 17, 3, 5, 16, 1, 3, 1, 1, 1);
    }
}
/* Gradients of the weights take panels of channels: more than 32 of them, not filled, of groups, of what strides leave,
   over samples that end within a block of sums, and in bands of rows. */
static void conv_one_by_one_of_many_channels(void)
{
    static const naive_conv blocks = { 3, 40, 21, 20, 9, 1, 1, 1, 1, 0, 0, 1, 1, 1 };
    int i;
    for (i = 33; i <= 100; i += 15) check_square(1 + i % 3, i, 5, 7, i * 7 % 40 + 1, 1, 1 + i % 4, 0, 1, 1);
    check_square(2, 80, 6, 5, 42, 1, 1, 0, 1, 2);
    check_square(2, 80, 6, 5, 42, 1, 2, 0, 1, 2);
    check_square(1, 40, 92, 91, 7, 1, 1, 0, 1, 1);
    check_square(1, 40, 184, 182, 7, 1, 2, 0, 1, 1);
    for (i = 0; i < 32; i += 5) check_conv(&blocks, i);
}
static void conv_rectangular(void)
{
    static const naive_conv cases[] = {
        /* n  c  h   w   f  kh kw sh sw ph pw dh dw g */
        {  2, 3, 6, 11,  4, 1, 5, 1, 1, 0, 2, 1, 1, 1 },
        {  2, 3, 11, 6,  4, 5, 1, 1, 1, 2, 0, 1, 1, 1 },
        {  1, 2, 8, 13,  5, 3, 2, 2, 3, 1, 0, 1, 2, 1 },
        {  1, 4, 13, 8,  6, 2, 3, 3, 1, 0, 1, 2, 1, 2 },
        {  3, 1, 1, 40,  3, 1, 9, 1, 2, 0, 4, 1, 1, 1 },
        {  3, 1, 40, 1,  3, 9, 1, 2, 1, 4, 0, 1, 1, 1 },
        {  2, 6, 5, 33, 12, 3, 3, 1, 2, 1, 1, 1, 3, 3 },
        {  2, 2, 10, 10, 2, 4, 3, 4, 3, 2, 1, 1, 1, 1 },
        {  2, 2, 8,  8,  3, 3, 3, 20, 11, 3, 2, 1, 1, 1 }       /* strides larger than the input */
    };
    size_t i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_conv(&cases[i], 0);
        check_conv(&cases[i], BIAS | ACCUMULATE | MASKED | RELU);
    }
}
static void conv_dilated(void)
{
    int d, stride;
    for (d = 2; d <= 4; d++) for (stride = 1; stride <= 4; stride++) check_square(2, 2, 13, 12, 3, 3, stride, d, d, 1);
}
static void conv_groups_up_to_depthwise(void)
{
    int stride;
    for (stride = 1; stride <= 2; stride++) {
        check_square(2, 6, 8, 9, 6, 3, stride, 1, 1, 2);
        check_square(2, 6, 8, 9, 12, 3, stride, 1, 1, 3);
        check_square(2, 6, 8, 9, 6, 3, stride, 1, 1, 6);
        check_square(1, 5, 17, 19, 10, 5, stride, 2, 1, 5);
        check_square(2, 8, 6, 6, 8, 1, stride, 0, 1, 8);
        check_square(1, 3, 14, 30, 3, 3, stride, 1, 2, 3);
    }
}
static void conv_sizes_around_the_vectors(void)
{
    int i;
    for (i = 1; i <= 36; i++) check_square(1 + i % 2, 1 + i % 5, 3, i, 1 + i * 5 % 31, 3, 1, 1, 1, 1);
    for (i = 1; i <= 35; i += 2) check_square(2, i, 4, 5, 36 - i, 3, 1 + i % 3, 1, 1, 1);
    check_square(1, 16, 8, 8, 32, 3, 1, 1, 1, 1);
    check_square(3, 32, 4, 4, 16, 3, 1, 1, 1, 1);
    check_square(2, 3, 30, 45, 7, 7, 4, 3, 1, 1);
}
static void conv_of_real_nets_scaled_down(void)
{
    check_square(5, 1, 28, 28, 32, 3, 1, 1, 1, 1);
    check_square(3, 32, 14, 14, 64, 3, 1, 1, 1, 1);
    check_square(1, 3, 67, 67, 16, 11, 4, 2, 1, 1);
    check_square(1, 3, 56, 56, 16, 7, 2, 3, 1, 1);
    check_square(11, 24, 7, 7, 24, 3, 1, 1, 1, 1);
    check_square(1, 8, 40, 40, 16, 3, 2, 1, 1, 1);
    check_square(1, 4, 50, 48, 20, 3, 1, 1, 1, 1);
}
static void conv_sums_longer_than_a_block(void)
{
    check_square(2, 90, 4, 4, 30, 3, 1, 1, 1, 1);
    check_square(1, 48, 3, 3, 530, 1, 1, 0, 1, 1);
}
/* Maps of all sizes around tiles of 4 x 4 and 2 x 2; channels and filters around vectors, panels, tiles of the product. */
static void winograd_tiles_that_maps_do_not_fill(void)
{
    int i;
    for (i = 1; i <= 14; i++) check_square(1 + i % 3, 16 + i % 4 * 5, i, 15 - i, 16 + i * 3 % 23, 3, 1, 1 + (i < 3), 1, 1);
    for (i = 0; i < 3; i++) check_square(2, 17, 9, 10, 18, 3, 1, i, 1, 1);
    check_square(2, 33, 2, 2, 49, 3, 1, 1, 1, 1);
    check_square(2, 33, 3, 4, 49, 3, 1, 1, 1, 1);
    check_square(2, 16, 3, 70, 16, 3, 1, 1, 1, 1);
}
static void winograd_kernels_of_5x5(void)
{
    int i;
    for (i = 1; i <= 9; i++) check_square(1 + i % 3, 16 + i % 4 * 5, i, 11 - i, 16 + i * 3 % 23, 5, 1, 2 + (i < 3) + i % 2, 1, 1);
    check_square(3, 17, 13, 13, 33, 5, 1, 2, 1, 1);
    check_square(1, 18, 9, 7, 19, 5, 1, 0, 1, 1);
}
static void winograd_every_option_alone_and_together(void)
{
    naive_conv s = { 2, 19, 6, 7, 21, 3, 3, 1, 1, 1, 1, 1, 1, 1 };
    int options;
    for (options = 0; options < 32; options++) check_conv(&s, options);
    check_conv(&s, BIAS | EXACT);
}
static void winograd_blocks_of_tiles_and_of_sums(void)
{
    check_square(70, 16, 7, 7, 17, 3, 1, 1, 1, 1);          /* more tiles than a block, samples across its border */
    check_square(1, 20, 5, 5, 100, 3, 1, 1, 1, 1);          /* few tiles: filters are split */
    check_square(1, 600, 4, 4, 16, 3, 1, 1, 1, 1);          /* more channels than are summed in registers */
}
/* A sample's result and gradient have the same bits alone, in a batch and in parts of a batch. */
static void winograd_results_do_not_depend_on_the_rest_of_the_batch(void)
{
    enum { N = 9, C = 24, F = 40, H = 11 };
    naive_conv s = { N, C, H, H, F, 3, 3, 1, 1, 1, 1, 1, 1, 1 };
    const size_t x1 = (size_t)C * H * H, y1 = (size_t)F * H * H;
    nnt_op op = conv_op(&s);
    nnt_run run;
    int k, i;
    memset(&run, 0, sizeof run);
    op.at[NNT_W] = random_floats((size_t)C * F * 9);
    for (k = 0; k < isa_count(); k++) {
        float *x = random_floats(N * x1), *y = floats(N * y1), *alone = floats(y1), *gx = floats(N * x1), *gx_alone = floats(x1);
        CHECK(nnti_wino_pick(&op) == NNTI_WINO_4_3);
        op.at[NNT_X] = x; op.at[NNT_Y] = y; op.at[NNT_GY] = y; op.at[NNT_GX] = gx;
        run.count = N;
        CHECK(run_all(isa_at(k), &op, &run, N, nnti_cpu_conv_workspace, nnti_cpu_conv, NNT_Y, N * y1, -1, 0));
        CHECK(run_all(isa_at(k), &op, &run, N, nnti_cpu_conv_data_workspace, nnti_cpu_conv_data, NNT_GX, N * x1, -1, 0));
        run.count = 1;
        for (i = 0; i < N; i++) {
            op.at[NNT_X] = x + (size_t)i * x1; op.at[NNT_Y] = alone; op.at[NNT_GY] = y + (size_t)i * y1; op.at[NNT_GX] = gx_alone;
            CHECK(run_all(isa_at(k), &op, &run, 1, nnti_cpu_conv_workspace, nnti_cpu_conv, NNT_Y, y1, -1, 0));
            CHECK(run_all(isa_at(k), &op, &run, 1, nnti_cpu_conv_data_workspace, nnti_cpu_conv_data, NNT_GX, x1, -1, 0));
            CHECK(!memcmp(alone, y + (size_t)i * y1, y1 * sizeof(float)));
            CHECK(!memcmp(gx_alone, gx + (size_t)i * x1, x1 * sizeof(float)));
        }
        while (block_count > 1) free(blocks[--block_count]);
    }
    release();
}
/* The bound that docs/speed.md states: against loops in double precision, 512 channels, values of both signs and values
   that a relu has passed. */
static void winograd_error_over_512_channels_is_below_2e_5(void)
{
    naive_conv s = { 1, 512, 8, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1 };
    const size_t nx = 512 * 64, ny = 16 * 64, nw = 16 * 512 * 9;
    int k, relu;
    for (relu = 0; relu < 2; relu++) {
        nnt_op op = conv_op(&s);
        nnt_run run;
        float *x = random_floats(nx), *w = random_floats(nw), *y = floats(ny);
        double *want = doubles(ny);
        size_t i;
        memset(&run, 0, sizeof run);
        run.count = 1;
        for (i = 0; relu && i < nx; i++) if (x[i] < 0.0f) x[i] = 0.0f;
        op.at[NNT_X] = x; op.at[NNT_W] = w; op.at[NNT_Y] = y;
        naive_conv_forward(&s, x, w, want);
        for (k = 0; k < isa_count(); k++) {
            double e, largest = 0.0, mean = 0.0;
            CHECK(run_all(isa_at(k), &op, &run, 1, nnti_cpu_conv_workspace, nnti_cpu_conv, NNT_Y, ny, -1, 0));
            e = error_of(y, want, ny);
            for (i = 0; i < ny; i++) { largest = fmax(largest, fabs(y[i] - want[i])); mean += want[i] * want[i] / (double)ny; }
            CHECKF(e < WINOGRAD_LIMIT, "isa=%d relu=%d: %g", isa_at(k), relu, e);
            CHECKF(largest / sqrt(mean) < 2e-5, "isa=%d relu=%d: largest %g", isa_at(k), relu, largest / sqrt(mean));
        }
        release();
    }
}
static void winograd_is_turned_off_by_a_field(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_conv_desc d;
    nnt_compile_desc build;
    nnt_node x = nnt_input(net, 16, 8, 8);
    int i, exact = 0, fast = 0;
    memset(&d, 0, sizeof d);
    memset(&build, 0, sizeof build);
    d.filters = 16;
    d.kernel = 3;
    d.pad = 1;
    x = nnt_conv2d_ex(x, d);
    d.exact = 1;
    x = nnt_conv2d_ex(x, d);
    build.batch = 4;         /* few positions would turn it off as well */
    build.optimizer = nnt_sgd(0.1f);
    CHECK(nnt_compile(net, nnt_cross_entropy(nnt_global_avgpool(x)), build) == NNT_OK);
    for (i = 0; i < net->plan.train.count; i++) {
        const nnt_op *op = &net->plan.train.ops[i];
        if (op->kind != NNT_OP_CONV && op->kind != NNT_OP_CONV_DATA && op->kind != NNT_OP_CONV_WEIGHT) continue;
        if (op->flags & NNT_OPF_EXACT) { exact++; CHECK(nnti_wino_pick(op) == NNTI_WINO_NONE); }
        else { fast++; CHECK(nnti_wino_pick(op) == NNTI_WINO_4_3); }
    }
    CHECK(exact == 3 && fast == 2);
    nnt_free(net);
}
static void conv_random_configurations(void)
{
    int i;
    for (i = 0; i < 110; i++) {
        naive_conv s;
        random_state = 100u + (uint32_t)i;
        s.g = random_int(1, 3);
        s.n = random_int(1, 3); s.c = s.g * random_int(1, 4); s.f = s.g * random_int(1, 7);
        s.h = random_int(1, 12); s.w = random_int(1, 20);
        s.kh = random_int(1, 4); s.kw = random_int(1, 4); s.sh = random_int(1, 3); s.sw = random_int(1, 3);
        s.ph = random_int(0, 3); s.pw = random_int(0, 3); s.dh = random_int(1, 3); s.dw = random_int(1, 3);
        if (s.h + 2 * s.ph < s.dh * (s.kh - 1) + 1 || s.w + 2 * s.pw < s.dw * (s.kw - 1) + 1) continue;
        check_conv(&s, random_int(0, 31));
    }
}
static void conv_lets_nan_through(void)
{
    naive_conv s = { 1, 2, 5, 5, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1 };
    nnt_op op = conv_op(&s);
    nnt_run run;
    int k;
#ifdef __FAST_MATH__
    SKIP("-ffast-math");
#endif
    memset(&run, 0, sizeof run);
    run.count = 1;
    op.flags = NNT_OPF_RELU;
    op.at[NNT_X] = random_floats(50);
    op.at[NNT_W] = random_floats(54);
    op.at[NNT_Y] = floats(75);
    ((float *)op.at[NNT_X])[12] = nnti_bits_float(0x7fc00000u);
    for (k = 0; k < isa_count(); k++) {
        const float *y = (const float *)op.at[NNT_Y];
        CHECK(run_all(isa_at(k), &op, &run, 1, nnti_cpu_conv_workspace, nnti_cpu_conv, NNT_Y, 75, -1, 0));
        CHECK(!nnti_finite(y[12]) && !nnti_finite(y[6]) && !nnti_finite(y[18]));
        CHECK(nnti_finite(y[0]) && nnti_finite(y[4]) && nnti_finite(y[24]) && nnti_finite(y[13 + 1]));
    }
    release();
}
static void at_least_300_convolutions_were_checked(void)
{
    if (test_argc > 1) return;
    printf("%d convolutions (%d of few positions), worst error: forward %.2g, gradients %.2g\n", configurations, few, worst_forward,
           worst_gradient);
    CHECK(configurations >= 300 && few >= 100);
}

/* ---- product ---- */

static void check_gemm(int m, int n, int k, int ta, int tb, int add)
{
    const size_t nc = (size_t)m * (size_t)n;
    float *a = random_floats((size_t)m * (size_t)k), *b = random_floats((size_t)k * (size_t)n);
    float *rows = random_floats((size_t)m), *columns = random_floats((size_t)n), *c0 = random_floats(nc),
          *c = floats(nc), *first = floats(nc);
    double *want = doubles(nc), size = 0.0, left = 0.0;
    size_t i;
    int q, p;
    naive_gemm(m, n, k, a, ta ? 1 : (size_t)k, ta ? (size_t)m : 1, b, tb ? 1 : (size_t)n, tb ? (size_t)k : 1, want);
    for (i = 0; i < nc; i++) {
        want[i] += rows[i / (size_t)n] + columns[i % (size_t)n] + (add ? c0[i] : 0.0);
        size += want[i] * want[i];
        if (!add && want[i] < 0.0) want[i] = 0.0;
        left += want[i] * want[i];
    }
    for (q = 0; q < isa_count(); q++)
        for (p = 0; p < POOLS; p++) {
            nnti_exec e;
            nnti_gemm g;
            nnti_operand oa = nnti_operand_matrix(a, m, ta ? 1 : k, ta ? m : 1);
            double err;
            int mark = block_count;
            e.pool = pools[p];
            e.isa = isa_at(q);
            g = nnti_gemm_new(&e, m, n, k);
            g.b = nnti_operand_matrix(b, n, tb ? k : 1, tb ? 1 : n);
            g.c = c;
            g.end.row_bias = rows;
            g.end.col_bias = columns;
            g.end.add = add;
            g.end.relu = !add;
            if (add) memcpy(c, c0, nc * sizeof(float)); else memset(c, 0xff, nc * sizeof(float));
            nnti_gemm_run(&e, &g, &oa, floats((nnti_gemm_workspace(&e, &g) + 3) / 4));
            err = error_of(c, want, nc);
            if (left > 0.0) err *= sqrt(left / size);      /* of few sums relu may leave none but a small one */
            CHECKF(err < FORWARD_LIMIT, "gemm m=%d n=%d k=%d ta=%d tb=%d add=%d isa=%d: %g", m, n, k, ta, tb, add,
                   e.isa, err);
            if (p == 0) memcpy(first, c, nc * sizeof(float));
            CHECKF(!memcmp(first, c, nc * sizeof(float)),
                   "gemm m=%d n=%d k=%d ta=%d tb=%d isa=%d: %d threads give other bits", m, n, k, ta, tb, e.isa,
                   pool_threads[p]);
            while (block_count > mark) {
                int j;
                block_count--;
                for (j = 0; j < GUARDS; j++) CHECK(nnti_float_bits(guards[block_count][j]) == 0x5a5a5a5au);
                free(blocks[block_count]);
            }
        }
    release();
}
static void gemm_all_transposes_and_odd_sizes(void)
{
    static const int sizes[][3] = { { 1, 1, 1 },     { 1, 50, 3 },      { 50, 1, 3 },     { 2, 3, 1000 },
                                    { 5, 16, 7 },    { 6, 32, 8 },      { 7, 33, 9 },     { 13, 31, 17 },
                                    { 14, 48, 15 },  { 15, 47, 16 },    { 28, 64, 385 },  { 29, 65, 384 },
                                    { 64, 10, 128 }, { 10, 128, 64 },   { 64, 128, 100 }, { 600, 40, 20 },
                                    { 33, 500, 70 }, { 100, 100, 900 }, { 1, 300, 200 },  { 300, 7, 400 } };
    size_t i;
    int t;
    random_state = 1;           /* the same numbers whichever tests ran before */
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (t = 0; t < 8; t++) check_gemm(sizes[i][0], sizes[i][1], sizes[i][2], t & 1, t >> 1 & 1, t >> 2);
}
static void gemm_every_tile_height_and_panel_width(void)
{
    int m, n;
    for (m = 1; m <= 30; m++) check_gemm(m, 40, 5, m & 1, m >> 1 & 1, m % 3 == 0);
    for (n = 1; n <= 70; n += 3) check_gemm(9, n, 6, n & 1, n >> 1 & 1, n % 3 == 0);
}

/* ---- fully connected ---- */

static void check_linear(int n, int in, int out, int options)
{
    const size_t nx = (size_t)n * (size_t)in, ny = (size_t)n * (size_t)out, nw = (size_t)in * (size_t)out,
                 nb = (size_t)out;
    float *x = random_floats(nx), *w = random_floats(nw), *b = random_floats(nb), *gy = random_floats(ny),
          *mask = random_floats(nx);
    float *gx0 = random_floats(nx), *gw0 = random_floats(nw), *gb0 = random_floats(nb);
    float *y = floats(ny), *gx = floats(nx), *gw = floats(nw), *gb = floats(nb);
    double *want_y = doubles(ny), *want_gx = doubles(nx), *want_gw = doubles(nw), *want_gb = doubles(nb);
    const int batch = n + ((options & PARTIAL) ? 5 : 0);
    size_t i;
    int q;
    nnt_run run;
    memset(&run, 0, sizeof run);
    run.count = n;
    run.accumulate = (options & ACCUMULATE) != 0;
    naive_linear_forward(n, in, out, x, w, want_y);
    for (i = 0; i < ny; i++) {
        if (options & BIAS) want_y[i] += b[i % nb];
        if ((options & RELU) && want_y[i] < 0.0) want_y[i] = 0.0;
    }
    naive_linear_data(n, in, out, gy, w, want_gx);
    for (i = 0; i < nx; i++) {
        if (options & ACCUMULATE) want_gx[i] += gx0[i];
        if ((options & MASKED) && mask[i] <= 0.0f) want_gx[i] = 0.0;
    }
    naive_linear_weight(n, in, out, x, gy, want_gw, want_gb);
    if (options & ACCUMULATE) {
        for (i = 0; i < nw; i++) want_gw[i] += gw0[i];
        for (i = 0; i < nb; i++) want_gb[i] += gb0[i];
    }
    for (q = 0; q < isa_count(); q++) {
        const int isa = isa_at(q);
        nnt_op op;
        double e;
        memset(&op, 0, sizeof op);
        op.in_c = in; op.out_c = out; op.in_h = op.in_w = op.out_h = op.out_w = 1;
        if (in % 6 == 0) { op.in_c = in / 6; op.in_h = 2; op.in_w = 3; }
        op.at[NNT_X] = x; op.at[NNT_W] = w; op.at[NNT_B] = (options & BIAS) ? b : NULL; op.at[NNT_Y] = y;
        op.at[NNT_GY] = gy;
        op.at[NNT_GX] = gx;
        op.at[NNT_GW] = gw;
        op.at[NNT_GB] = (options & BIAS) ? gb : NULL;
        op.at[NNT_MASK] = mask;
        op.flags = (options & RELU) ? NNT_OPF_RELU : 0;
        CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_linear_workspace, nnti_cpu_linear, NNT_Y, ny, -1, 0),
               "linear n=%d in=%d out=%d isa=%d: forward's bits", n, in, out, isa);
        e = error_of(y, want_y, ny);
        CHECKF(e < FORWARD_LIMIT, "linear n=%d in=%d out=%d options=%d isa=%d: forward %g", n, in, out, options, isa,
               e);
        op.flags = ((options & ACCUMULATE) ? NNT_OPF_ACCUMULATE : 0) | ((options & MASKED) ? NNT_OPF_MASK : 0);
        if (options & ACCUMULATE) memcpy(gx, gx0, nx * sizeof(float)); else memset(gx, 0xff, nx * sizeof(float));
        CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_linear_data_workspace, nnti_cpu_linear_data, NNT_GX, nx, -1, 0),
               "linear n=%d in=%d out=%d isa=%d: data's bits", n, in, out, isa);
        e = error_of(gx, want_gx, nx);
        CHECKF(e < GRADIENT_LIMIT, "linear n=%d in=%d out=%d options=%d isa=%d: data %g", n, in, out, options, isa, e);
        if ((options & MASKED) && !(options & ACCUMULATE)) {        /* over the mask */
            op.flags |= NNT_OPF_OVER;
            op.at[NNT_MASK] = gx;
            memcpy(gx, mask, nx * sizeof(float));
            CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_linear_data_workspace, nnti_cpu_linear_data, NNT_GX, nx, -1, 0),
                   "linear n=%d in=%d out=%d isa=%d: data's bits over the mask", n, in, out, isa);
            e = error_of(gx, want_gx, nx);
            CHECKF(e < GRADIENT_LIMIT, "linear n=%d in=%d out=%d isa=%d: data over the mask %g", n, in, out, isa, e);
        }
        if (options & ACCUMULATE) { memcpy(gw, gw0, nw * sizeof(float)); memcpy(gb, gb0, nb * sizeof(float)); }
        CHECKF(run_all(isa, &op, &run, batch, nnti_cpu_linear_weight_workspace, nnti_cpu_linear_weight, NNT_GW, nw,
                       (options & BIAS) ? NNT_GB : -1, nb),
               "linear n=%d in=%d out=%d isa=%d: weight's bits", n, in, out, isa);
        e = error_of(gw, want_gw, nw);
        CHECKF(e < GRADIENT_LIMIT, "linear n=%d in=%d out=%d options=%d isa=%d: weight %g", n, in, out, options, isa,
               e);
        if (options & BIAS) {
            e = error_of(gb, want_gb, nb);
            CHECKF(e < GRADIENT_LIMIT, "linear n=%d in=%d out=%d options=%d isa=%d: bias %g", n, in, out, options, isa,
                   e);
        }
    }
    release();
}
static void linear_batches_from_one_to_many(void)
{
    static const int batches[] = { 1, 2, 3, 4, 5, 8, 13, 14, 15, 31, 64, 100 };
    size_t i;
    for (i = 0; i < sizeof batches / sizeof *batches; i++) {
        check_linear(batches[i], 37, 11, (int)i * 7 % 32);
        check_linear(batches[i], 96, 40, (int)i * 5 % 32);
        check_linear(batches[i], 784, 10, (int)i * 3 % 32);
    }
}
static void linear_odd_sizes_and_options(void)
{
    int options;
    for (options = 0; options < 32; options++)
        check_linear(1 + options % 5, 1 + options * 3, 8 + options * 5 % 37, options);
    check_linear(3, 1, 1, BIAS);
    check_linear(2, 2000, 130, BIAS | RELU);
    check_linear(2, 130, 2000, ACCUMULATE | MASKED);
    check_linear(3, 530, 400, MASKED);          /* several passes, over the mask too */
    check_linear(33, 600, 130, MASKED | BIAS);
}

int main(int argc, char **argv)
{
    nnt_allocator a = nnti_allocator(NULL);
    int i;
    TEST_BEGIN(argc, argv);
    random_state = 1;
    for (i = 0; i < POOLS; i++) pools[i] = nnti_pool_start(&a, pool_threads[i]);
    TEST(conv_every_option_alone_and_together);
    TEST(conv_kernel_larger_than_stride_and_the_other_way_round);
    TEST(conv_kernel_equal_to_the_padded_input);
    TEST(conv_padding_beyond_the_kernel);
    TEST(conv_one_by_one);
    TEST(conv_one_by_one_of_many_channels);
    TEST(conv_rectangular);
    TEST(conv_dilated);
    TEST(conv_groups_up_to_depthwise);
    TEST(conv_sizes_around_the_vectors);
    TEST(conv_of_real_nets_scaled_down);
    TEST(conv_sums_longer_than_a_block);
    TEST(winograd_tiles_that_maps_do_not_fill);
    TEST(winograd_kernels_of_5x5);
    TEST(winograd_every_option_alone_and_together);
    TEST(winograd_blocks_of_tiles_and_of_sums);
    TEST(winograd_results_do_not_depend_on_the_rest_of_the_batch);
    TEST(winograd_error_over_512_channels_is_below_2e_5);
    TEST(winograd_is_turned_off_by_a_field);
    TEST(conv_random_configurations);
    TEST(conv_lets_nan_through);
    TEST(pooled_convolutions_of_few_weights);
    TEST(pooled_convolutions_by_winograd);
    TEST(pooled_convolutions_take_the_first_of_equals_and_pass_nan);
    TEST(pooled_bias_gradient_of_a_large_map_is_exact);
    TEST(some_convolutions_pooled_without_a_map);
    TEST(at_least_300_convolutions_were_checked);
    TEST(gemm_all_transposes_and_odd_sizes);
    TEST(gemm_every_tile_height_and_panel_width);
    TEST(linear_batches_from_one_to_many);
    TEST(linear_odd_sizes_and_options);
    for (i = 0; i < POOLS; i++) nnti_pool_stop(pools[i]);
    return TEST_END();
}
