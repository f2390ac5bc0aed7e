/* test_elementwise.c - random numbers, element by element ops and the optimizers of the CPU backend.

   Every op on every instruction set of this machine against loops in double precision written here; odd sizes, in place
   and not, fewer samples than the batch. Random numbers: published vectors of Philox, bits equal over instruction sets
   (memcmp), moments. Optimizers and schedules: values recorded from torch.optim in float64. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

typedef void (*kernel_fn)(const nnti_exec *, const nnt_op *, const nnt_run *);

enum { BATCH = 3, GUARDS = 16 };
static const int sizes[] = { 1, 3, 7, 15, 17, 64, 1000, 4097, 9001 };      /* 9001: more than one range, NNTI_RANGE */
enum { SIZES = (int)(sizeof sizes / sizeof *sizes) };
static const int thread_counts[4] = { 1, 2, 3, 8 };

static float not_a_number(void) { return nnti_bits_float(0x7fc00000u); }
static float infinite(void) { return nnti_bits_float(0x7f800000u); }
static int is_nan(float f) { return (nnti_float_bits(f) & 0x7fffffffu) > 0x7f800000u; }

/* The instruction sets that this machine runs, plain C first. */
static int isa_list(int *isa)
{
    int n = 0, best = nnti_isa_best();
    isa[n++] = NNTI_ISA_C;
    if (best == NNTI_ISA_NEON) isa[n++] = best;
    if (best == NNTI_ISA_AVX2 || best == NNTI_ISA_AVX512) isa[n++] = NNTI_ISA_AVX2;
    if (best == NNTI_ISA_AVX512) isa[n++] = best;
    return n;
}
static nnti_exec exec_of(int isa)
{
    nnti_exec e;
    e.pool = NULL;
    e.isa = isa;
    return e;
}
static nnt_run run_of(int count)
{
    nnt_run r;
    memset(&r, 0, sizeof r);
    r.count = count;
    r.seed = 0x123456789abcdefull;
    r.step = 0x500000009ull;
    r.grad_scale = 1;
    return r;
}
static nnt_op op_of(int size)
{
    nnt_op op;
    memset(&op, 0, sizeof op);
    op.in_c = op.out_c = size;
    op.in_h = op.in_w = op.out_h = op.out_w = 1;
    op.stream = 11;
    op.count = size;
    return op;
}

/* Values with words behind them that nobody may touch. */
typedef struct buffer { float *p; int64_t n; } buffer;
static buffer buffer_new(int64_t n)
{
    buffer b;
    int64_t i;
    b.n = n;
    b.p = (float *)nnti_default_alloc(NULL, (size_t)(n + GUARDS) * sizeof(float), NNTI_ALIGN);
    if (!b.p) { printf("out of memory\n"); exit(1); }
    for (i = 0; i < n + GUARDS; i++) b.p[i] = 12345.0f;
    return b;
}
static int buffer_guards_hold(const buffer *b)
{
    int i;
    for (i = 0; i < GUARDS; i++) if (nnti_float_bits(b->p[b->n + i]) != nnti_float_bits(12345.0f)) return 0;
    return 1;
}
static void buffer_free(buffer *b) { nnti_default_free(NULL, b->p, 0); b->p = NULL; }
/* Values within +-range, some of them 0; different for each salt. */
static void buffer_scatter(buffer *b, float range, uint32_t salt)
{
    int64_t i;
    for (i = 0; i < b->n; i++) {
        uint32_t w[4];
        nnti_random4(w, 99, salt, 0, 0, (uint32_t)i);
        b->p[i] = w[1] % 16 == 0 ? 0.0f : range * (2.0f * nnti_unit(w[0]) - 1.0f);
    }
}
static int same_bits(const float *a, const float *b, int64_t n) { return memcmp(a, b, (size_t)n * sizeof(float)) == 0; }
/* Both no number, or within relative of the wanted plus absolute. Equal infinities are close. */
static int is_close(float got, double want, double relative, double absolute)
{
    if (is_nan(got) || is_nan((float)want)) return is_nan(got) && is_nan((float)want);
    if (!nnti_finite(got)) return nnti_float_bits(got) == nnti_float_bits((float)want);
    return fabs((double)got - want) <= relative * fabs(want) + absolute;
}

/* ---- random numbers ---- */

static void philox_matches_published_vectors(void)
{
    /* Random123's known answers: zeros, ones, digits of pi */
    static const uint32_t counter[3][4] = { { 0, 0, 0, 0 }, { 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu },
        { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u } };
    static const uint32_t key[3][2] = { { 0, 0 }, { 0xffffffffu, 0xffffffffu }, { 0xa4093822u, 0x299f31d0u } };
    static const uint32_t want[3][4] = { { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u },
        { 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu }, { 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u } };
    int isa[4], isas = isa_list(isa), i, j;
    for (i = 0; i < 3; i++) {
        uint32_t c[4];
        memcpy(c, counter[i], sizeof c);
        nnti_philox(c, (uint64_t)key[i][1] << 32 | key[i][0]);
        CHECKF(memcmp(c, want[i], sizeof c) == 0, "vector %d", i);
        for (j = 0; j < isas; j++) {        /* the same counters through the layout of block, sample, step, stream */
            nnti_random_key k;
            k.seed = (uint64_t)key[i][1] << 32 | key[i][0];
            k.sample = counter[i][1];
            k.step = counter[i][2] | (uint64_t)(counter[i][3] >> 16) << 32;
            k.stream = counter[i][3] & 0xffffu;
            nnti_random_fill(isa[j], NNTI_DRAW_BITS, c, 4 * (int64_t)counter[i][0], 4, &k);
            CHECKF(memcmp(c, want[i], sizeof c) == 0, "vector %d isa %d", i, isa[j]);
        }
    }
}
/* 8471c433a5136c71: FNV digest of 2^22 normals and 64 corner cases, found with gcc and clang at all levels, by AVX2
   code and by a GPU kernel in an emulator, all of them written apart from this library. */
static void normals_have_the_known_digest(void)
{
    static const uint32_t edge[8] = { 0, 1, 0x7fffffffu, 0x80000000u, 0xffffffffu, 0xfffffffeu, 0x40000000u, 0xc0000000u };
    enum { COUNT = 1 << 22 };
    buffer z = buffer_new(COUNT);
    nnti_random_key k;
    int isa[4], isas = isa_list(isa), i, j, n;
    k.seed = 0x123456789abcdefull;
    k.step = 77;
    k.stream = k.sample = 0;
    for (i = 0; i < isas; i++) {
        uint64_t digest = 1469598103934665603ull;
        nnti_random_fill(isa[i], NNTI_DRAW_NORMAL, z.p, 0, COUNT, &k);
        for (n = 0; n < COUNT; n++) digest = (digest ^ nnti_float_bits(z.p[n])) * 1099511628211ull;
        for (j = 0; j < 8; j++)
            for (n = 0; n < 8; n++) {
                float a, b;
                nnti_normal_pair(edge[j], edge[n], &a, &b);
                CHECKF(nnti_finite(a) && nnti_finite(b), "words %08x %08x", (unsigned)edge[j], (unsigned)edge[n]);
                digest = (digest ^ nnti_float_bits(a)) * 1099511628211ull;
                digest = (digest ^ nnti_float_bits(b)) * 1099511628211ull;
            }
        CHECKF(digest == 0x8471c433a5136c71ull, "isa %d: %08x%08x", isa[i], (unsigned)(digest >> 32), (unsigned)digest);
    }
    buffer_free(&z);
}
static void fills_agree_from_any_start_on_any_isa(void)
{
    /* the last starts lie around block 2^32, where the next sample begins */
    static const int64_t starts[] = { 0, 1, 3, 61, 64, 1023, 17179869184LL - 70, 17179869184LL - 1, 17179869184LL + 5 };
    static const int64_t counts[] = { 1, 3, 7, 15, 17, 64, 65, 127, 1000 };
    int isa[4], isas = isa_list(isa), i, kind;
    size_t s, c;
    for (kind = NNTI_DRAW_BITS; kind <= NNTI_DRAW_NORMAL; kind++)
        for (s = 0; s < sizeof starts / sizeof *starts; s++)
            for (c = 0; c < sizeof counts / sizeof *counts; c++) {
                nnti_random_key k;
                buffer want = buffer_new(counts[c]);
                int64_t n;
                k.seed = 42;
                k.step = 0xabcd00000007ull;
                k.stream = 9;
                k.sample = 5;
                for (n = 0; n < counts[c]; n++) {
                    uint64_t block = (uint64_t)(starts[s] + n) / 4;
                    int word = (int)((starts[s] + n) % 4);
                    uint32_t w[4];
                    float z[2];
                    nnti_random4(w, 42, 0xabcd00000007ull, 9, 5 + (uint32_t)(block >> 32), (uint32_t)block);
                    if (kind == NNTI_DRAW_BITS) want.p[n] = nnti_bits_float(w[word]);
                    else if (kind == NNTI_DRAW_UNIT) want.p[n] = (float)((double)(w[word] >> 8) / 16777216.0);
                    else if (kind == NNTI_DRAW_SIGNED) want.p[n] = (float)((double)(w[word] >> 8) / 8388608.0 - 1.0);
                    else { nnti_normal_pair(w[word & 2], w[(word & 2) + 1], &z[0], &z[1]); want.p[n] = z[word & 1]; }
                }
                for (i = 0; i < isas; i++) {
                    buffer got = buffer_new(counts[c]);
                    nnti_random_fill(isa[i], kind, got.p, starts[s], counts[c], &k);
                    CHECKF(same_bits(got.p, want.p, counts[c]) && buffer_guards_hold(&got), "isa %d kind %d start %ld count %d",
                           isa[i], kind, (long)starts[s], (int)counts[c]);
                    buffer_free(&got);
                }
                buffer_free(&want);
            }
}
/* Against Box-Muller in double on the same words. u is rounded to 24 bits, 6e-8 / 2 of ln u at the most and so 3e-8 / r
   of the radius r, which is at most 3e-5 since r itself is not larger where u rounds to 1; the rest is float rounding. */
static void normals_are_box_muller_of_their_words(void)
{
    const double half_pi = 1.57079632679489661923;
    uint32_t i;
    double worst = 0;
    for (i = 0; i < 200000; i++) {
        uint32_t w[4];
        float z0, z1;
        double u, angle, radius, error;
        nnti_random4(w, 8, 7, 6, 5, i);
        if (i < 1000) w[0] = i * 4294967u;
        if (i >= 1000 && i < 1100) w[0] = 0xffffffffu - i * i;
        u = ((double)w[0] + 0.5) / 4294967296.0;
        angle = ((double)(int32_t)(w[1] << 2) / 4294967296.0 + (double)(w[1] >> 30)) * half_pi;
        radius = sqrt(-2.0 * log(u));
        nnti_normal_pair(w[0], w[1], &z0, &z1);
        error = fmax(fabs((double)z0 - radius * cos(angle)), fabs((double)z1 - radius * sin(angle)));
        worst = fmax(worst, error / (4e-7 * fmax(1.0, radius) + fmin(4e-8 / radius, 3e-5)));
    }
    CHECKF(worst < 1, "%g of what is allowed", worst);
}
/* 2^23 values, seed 42: each figure within 4 standard errors of a normal distribution's, one seed in 2000 would fail. */
static void normals_have_normal_moments(void)
{
    enum { COUNT = 1 << 23 };
    buffer z = buffer_new(COUNT);
    nnti_random_key k;
    double n = COUNT, mean = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0, largest = 0;
    int i, t, beyond[6] = { 0, 0, 0, 0, 0, 0 };
    memset(&k, 0, sizeof k);
    k.seed = 42;
    nnti_random_fill(nnti_isa_best(), NNTI_DRAW_NORMAL, z.p, 0, COUNT, &k);
    for (i = 0; i < COUNT; i++) {
        double v = (double)z.p[i], q = v * v;
        mean += v;
        m2 += q;
        m3 += q * v;
        m4 += q * q;
        if (i) lag += v * (double)z.p[i - 1];
        for (t = 1; t < 6; t++) beyond[t] += fabs(v) > t;
        largest = fmax(largest, fabs(v));
    }
    mean /= n, m2 /= n, m3 /= n, m4 /= n, lag /= n;
    CHECKF(fabs(mean) < 4 / sqrt(n), "mean %g", mean);
    CHECKF(fabs(m2 - 1) < 4 * sqrt(2 / n), "variance %g", m2);
    CHECKF(fabs(m3) < 4 * sqrt(15 / n), "skewness %g", m3);
    CHECKF(fabs(m4 - 3) < 4 * sqrt(96 / n), "kurtosis %g", m4);
    CHECKF(fabs(lag) < 4 / sqrt(n), "correlation of neighbours %g", lag);
    CHECKF(largest < 6.78, "largest %g", largest);
    for (t = 1; t < 6; t++) {
        double want = n * erfc(t / sqrt(2.0));
        CHECKF(fabs(beyond[t] - want) < 4 * sqrt(want) + 1, "beyond %d: %d, expected %g", t, beyond[t], want);
    }
    buffer_free(&z);
}
static void threshold_is_the_nearest_whole_number(void)
{
    static const float some[] = { 0.0f, 0.1f, 0.25f, 0.3f, 0.5f, 0.999999f, 0.99999994f, 1.0f, 1e-9f, 2.3283064e-10f, 1.1641532e-10f,
        1.1641531e-10f, 1e-20f, 1e-40f, 5.8207661e-11f };
    uint32_t i;
    size_t s;
    for (s = 0; s < sizeof some / sizeof *some; s++)
        CHECKF((double)nnti_threshold(some[s]) == floor(ldexp((double)some[s], 32) + 0.5), "p %g", (double)some[s]);
    for (i = 0; i < 0x3f800000u; i += 9973) {
        float p = nnti_bits_float(i);
        CHECKF((double)nnti_threshold(p) == floor(ldexp((double)p, 32) + 0.5), "p %g", (double)p);
    }
    CHECK(nnti_threshold(-0.5f) == 0);
    CHECK(nnti_threshold(2.0f) == (uint64_t)1 << 32);
}

static void tensor_random_kinds_follow_their_definitions(void)
{
    enum { COUNT = 20001 };
    int isa[4], isas = isa_list(isa), i, j;
    buffer z = buffer_new(COUNT), got = buffer_new(COUNT), first = buffer_new(COUNT);
    for (j = 0; j < COUNT; j++) {           /* the numbers themselves, one by one */
        uint32_t w[4];
        float pair[2];
        nnti_random4(w, 31, 0, 0xffff, 0, (uint32_t)j / 4);
        nnti_normal_pair(w[j & 2], w[(j & 2) + 1], &pair[0], &pair[1]);
        z.p[j] = pair[j & 1];
    }
    for (i = 0; i < isas; i++) {
        nnti_exec e = exec_of(isa[i]);
        int bad = 0;
        nnti_cpu_random(&e, got.p, COUNT, NNT_RANDOM_NORMAL, 0, 1, 31);
        for (j = 0; j < COUNT; j++) bad += nnti_float_bits(got.p[j]) != nnti_float_bits(z.p[j]);
        nnti_cpu_random(&e, got.p, COUNT, NNT_RANDOM_NORMAL, -3, 2, 31);
        for (j = 0; j < COUNT; j++) bad += !is_close(got.p[j], 2.0 * (double)z.p[j] - 3.0, 1e-7, 0);
        nnti_cpu_random(&e, got.p, COUNT, NNT_RANDOM_ADD_NORMAL, 0.5f, 0, 31);
        for (j = 0; j < COUNT; j++) bad += !is_close(got.p[j], 2.5 * (double)z.p[j] - 3.0, 1e-7, 1e-6);
        CHECKF(bad == 0, "isa %d", isa[i]);
        if (i == 0) memcpy(first.p, got.p, COUNT * sizeof(float));
        CHECKF(same_bits(first.p, got.p, COUNT), "isa %d", isa[i]);
    }
    CHECK(buffer_guards_hold(&got));
    buffer_free(&z);
    buffer_free(&got);
    buffer_free(&first);
}
static void uniform_stays_within_its_range_and_fills_it(void)
{
    static const float range[][2] = { { 0, 1 }, { -1, 1 }, { -2.5f, 7 }, { 1, 1.0000001f }, { 16777216, 16777218 }, { -3e38f, 3e38f },
        { -1, 0 }, { 0, 1e-40f }, { 100000, 100001 } };
    enum { COUNT = 300001 };
    int isa[4], isas = isa_list(isa), i, j;
    size_t r;
    buffer got = buffer_new(COUNT), first = buffer_new(COUNT);
    for (r = 0; r < sizeof range / sizeof *range; r++)
        for (i = 0; i < isas; i++) {
            nnti_exec e = exec_of(isa[i]);
            float a = range[r][0], b = range[r][1];
            double mean = 0, square = 0, width = (double)b - (double)a, share;
            int outside = 0;
            nnti_cpu_random(&e, got.p, COUNT, NNT_RANDOM_UNIFORM, a, b, 5);
            for (j = 0; j < COUNT; j++) {
                outside += !(got.p[j] >= a && got.p[j] < b);
                share = ((double)got.p[j] - (double)a) / width;
                mean += share;
                square += share * share;
            }
            CHECKF(outside == 0, "[%g, %g) isa %d: %d outside", (double)a, (double)b, isa[i], outside);
            mean /= (double)COUNT;
            square /= (double)COUNT;
            if (r < 3 || r == 5 || r == 6) {    /* where floats lie close enough: 4 standard errors */
                CHECKF(fabs(mean - 0.5) < 4 * sqrt(1.0 / 12 / (double)COUNT), "[%g, %g): mean %g", (double)a, (double)b, mean);
                CHECKF(fabs(square - 1.0 / 3) < 4 * sqrt(4.0 / 45 / (double)COUNT), "[%g, %g): mean square %g", (double)a, (double)b, square);
            }
            if (i == 0) memcpy(first.p, got.p, COUNT * sizeof(float));
            CHECKF(same_bits(first.p, got.p, COUNT), "[%g, %g) isa %d", (double)a, (double)b, isa[i]);
        }
    {   /* an empty range is its one value */
        nnti_exec e = exec_of(NNTI_ISA_C);
        nnti_cpu_random(&e, got.p, 1, NNT_RANDOM_UNIFORM, 2.0f, 2.0f, 5);
        CHECK(got.p[0] >= 2.0f && got.p[0] <= 2.0f);
    }
    buffer_free(&got);
    buffer_free(&first);
}

/* ---- dropout and noise ---- */

static uint32_t word_of(const nnt_run *run, uint32_t stream, int sample, int64_t element)
{
    uint32_t w[4];
    nnti_random4(w, run->seed, run->step, stream, (uint32_t)sample, (uint32_t)(element / 4));
    return w[element % 4];
}
/* Dropout's bits are promised to be equal over instruction sets; the expected value is one float product. */
static void dropout_matches_naive_in_place_and_not(void)
{
    static const float rate[] = { 0.0f, 0.1f, 0.5f, 0.9f };
    int isa[4], isas = isa_list(isa), i, s, place, n;
    size_t r;
    for (r = 0; r < sizeof rate / sizeof *rate; r++)
        for (s = 0; s < SIZES; s++)
            for (n = 1; n <= BATCH; n++)
                for (i = 0; i < isas; i++)
                    for (place = 0; place < 2; place++) {
                        nnti_exec e = exec_of(isa[i]);
                        nnt_run run = run_of(n);
                        nnt_op op = op_of(sizes[s]);
                        int64_t total = (int64_t)sizes[s] * BATCH, used = (int64_t)sizes[s] * n, j;
                        buffer x = buffer_new(total), y = buffer_new(total), *to = place ? &x : &y, before = buffer_new(total);
                        float scale = (float)(1.0 / (1.0 - (double)rate[r]));
                        int bad = 0;
                        buffer_scatter(&x, 3, 1);
                        x.p[0] = not_a_number();
                        memcpy(before.p, x.p, (size_t)total * sizeof(float));
                        op.f[0] = rate[r];
                        op.at[NNT_X] = x.p;
                        op.at[NNT_Y] = to->p;
                        nnti_cpu_dropout(&e, &op, &run);
                        for (j = 0; j < used; j++) {
                            double word = (double)word_of(&run, op.stream, (int)(j / sizes[s]), j % sizes[s]);
                            float want = word >= floor(ldexp((double)rate[r], 32) + 0.5) ? before.p[j] * scale : before.p[j] * 0.0f;
                            bad += nnti_float_bits(to->p[j]) != nnti_float_bits(want);
                        }
                        for (j = used; j < total; j++)
                            bad += nnti_float_bits(to->p[j]) != nnti_float_bits(place ? before.p[j] : 12345.0f);
                        CHECKF(bad == 0 && buffer_guards_hold(to), "dropout p=%g size=%d n=%d isa=%d in place=%d: %d wrong",
                               (double)rate[r], sizes[s], n, isa[i], place, bad);
                        buffer_free(&x);
                        buffer_free(&y);
                        buffer_free(&before);
                    }
}
/* Over 10^6 values: shares within 4 standard errors; the samples' and steps' masks differ. */
static void dropout_drops_its_share_anew_each_sample_step_and_layer(void)
{
    static const float rate[] = { 0.05f, 0.3f, 0.5f, 0.8f };
    enum { SIZE = 250000, SAMPLES = 4 };
    nnti_exec e = exec_of(nnti_isa_best());
    buffer x = buffer_new((int64_t)SIZE * SAMPLES), y = buffer_new((int64_t)SIZE * SAMPLES), z = buffer_new((int64_t)SIZE * SAMPLES);
    size_t r;
    int64_t i, total = (int64_t)SIZE * SAMPLES;
    for (i = 0; i < total; i++) x.p[i] = 1;
    for (r = 0; r < sizeof rate / sizeof *rate; r++) {
        nnt_op op = op_of(SIZE);
        nnt_run run = run_of(SAMPLES);
        double p = (double)rate[r], dropped = 0, both = 0, sum = 0;
        op.f[0] = rate[r];
        op.at[NNT_X] = x.p;
        op.at[NNT_Y] = y.p;
        nnti_cpu_dropout(&e, &op, &run);
        for (i = 0; i < total; i++) { dropped += y.p[i] <= 0; sum += (double)y.p[i]; }
        CHECKF(fabs(dropped / (double)total - p) < 4 * sqrt(p * (1 - p) / (double)total), "p %g: dropped %g", p, dropped / (double)total);
        CHECKF(fabs(sum / (double)total - 1) < 4 * sqrt(p / (1 - p) / (double)total), "p %g: mean %g", p, sum / (double)total);
        for (i = 0; i < SIZE; i++) both += y.p[i] <= 0 && y.p[i + SIZE] <= 0;
        CHECKF(fabs(both / (double)SIZE - p * p) < 4 * sqrt(p * p / (double)SIZE), "p %g: two samples %g", p, both / (double)SIZE);
        op.at[NNT_Y] = z.p;
        nnti_cpu_dropout(&e, &op, &run);
        CHECK(same_bits(y.p, z.p, total));
        run.step++;
        nnti_cpu_dropout(&e, &op, &run);
        CHECK(!same_bits(y.p, z.p, total));
        run.step--;
        op.stream++;
        nnti_cpu_dropout(&e, &op, &run);
        CHECK(!same_bits(y.p, z.p, total));
    }
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&z);
}

typedef struct noise_case { int variant; float amount, low, high, clamp; } noise_case;
static const noise_case noise_cases[] = {
    { NNT_NOISE_GAUSSIAN, 0.1f, 0, 1, 0 }, { NNT_NOISE_GAUSSIAN, 0.7f, -0.5f, 1, 1 }, { NNT_NOISE_GAUSSIAN, 0, 0, 1, 0 },
    { NNT_NOISE_UNIFORM, 0.3f, 0, 1, 0 }, { NNT_NOISE_UNIFORM, 0.9f, 0, 1, 1 },
    { NNT_NOISE_SALT_PEPPER, 0.2f, -2, 3, 0 }, { NNT_NOISE_SALT_PEPPER, 0.6f, 0, 1, 1 }, { NNT_NOISE_SALT_PEPPER, 1, 0, 1, 0 },
};
enum { NOISE_CASES = (int)(sizeof noise_cases / sizeof *noise_cases) };
static nnt_op noise_op(const noise_case *c, int size)
{
    nnt_op op = op_of(size);
    op.variant = c->variant;
    op.f[0] = c->amount;
    op.f[1] = c->low;
    op.f[2] = c->high;
    op.f[3] = c->clamp;
    return op;
}
/* What noise makes of x in double, before the clamp; *hit: salt or pepper took the value's place. */
static double noise_naive(const noise_case *c, const nnt_run *run, uint32_t stream, int sample, int64_t element, double x, int *hit)
{
    uint32_t word = word_of(run, stream, sample, element);
    *hit = 0;
    if (c->variant == NNT_NOISE_UNIFORM) return x + (double)c->amount * ((double)(word >> 8) / 8388608.0 - 1.0);
    if (c->variant == NNT_NOISE_GAUSSIAN) {
        float z[2];
        nnti_normal_pair(word_of(run, stream, sample, element & ~(int64_t)1), word_of(run, stream, sample, element | 1), &z[0], &z[1]);
        return x + (double)c->amount * (double)z[element & 1];
    }
    if ((double)word < floor(ldexp((double)c->amount / 2, 32) + 0.5)) { *hit = 1; return (double)c->low; }
    if ((double)word < floor(ldexp((double)c->amount, 32) + 0.5)) { *hit = 1; return (double)c->high; }
    return x;
}
/* 1e-7 of the largest term: one rounding. All instruction sets have to give the first one's bits. */
static void noise_matches_naive_in_place_and_not(void)
{
    int isa[4], isas = isa_list(isa), i, s, c, place, n;
    for (c = 0; c < NOISE_CASES; c++)
        for (s = 0; s < SIZES; s++)
            for (n = 1; n <= BATCH; n += 2)
                for (place = 0; place < 2; place++) {
                    int64_t total = (int64_t)sizes[s] * BATCH, used = (int64_t)sizes[s] * n, j;
                    buffer first = buffer_new(total);
                    for (i = 0; i < isas; i++) {
                        nnti_exec e = exec_of(isa[i]);
                        nnt_run run = run_of(n);
                        nnt_op op = noise_op(&noise_cases[c], sizes[s]);
                        buffer x = buffer_new(total), y = buffer_new(total), *to = place ? &x : &y, before = buffer_new(total);
                        int bad = 0, hit;
                        buffer_scatter(&x, 1.5f, 2);
                        x.p[used - 1] = not_a_number();
                        memcpy(before.p, x.p, (size_t)total * sizeof(float));
                        op.at[NNT_X] = x.p;
                        op.at[NNT_Y] = to->p;
                        nnti_cpu_noise(&e, &op, &run);
                        for (j = 0; j < used; j++) {
                            double want = noise_naive(&noise_cases[c], &run, op.stream, (int)(j / sizes[s]), j % sizes[s], (double)before.p[j], &hit);
                            if (noise_cases[c].clamp > 0 && !is_nan((float)want))
                                want = fmin(fmax(want, (double)op.f[1]), (double)op.f[2]);
                            bad += !is_close(to->p[j], want, 1e-7, 1e-7);
                            if (noise_cases[c].clamp > 0 && !is_nan(to->p[j])) bad += to->p[j] < op.f[1] || to->p[j] > op.f[2];
                        }
                        for (j = used; j < total; j++)
                            bad += nnti_float_bits(to->p[j]) != nnti_float_bits(place ? before.p[j] : 12345.0f);
                        if (i == 0) memcpy(first.p, to->p, (size_t)total * sizeof(float));
                        CHECKF(bad == 0 && buffer_guards_hold(to) && same_bits(first.p, to->p, total),
                               "noise case=%d size=%d n=%d isa=%d in place=%d: %d wrong", c, sizes[s], n, isa[i], place, bad);
                        buffer_free(&x);
                        buffer_free(&y);
                        buffer_free(&before);
                    }
                    buffer_free(&first);
                }
}
static void noise_grad_is_zero_where_the_value_was_replaced(void)
{
    int isa[4], isas = isa_list(isa), i, s, c, place;
    for (c = 0; c < NOISE_CASES; c++)
        for (s = 0; s < SIZES; s++)
            for (i = 0; i < isas; i++)
                for (place = 0; place < 2; place++) {
                    nnti_exec e = exec_of(isa[i]);
                    nnt_run run = run_of(2);
                    nnt_op op = noise_op(&noise_cases[c], sizes[s]);
                    int64_t total = (int64_t)sizes[s] * 2, j;
                    buffer x = buffer_new(total), gy = buffer_new(total), gx = buffer_new(total), *to = place ? &gy : &gx;
                    int bad = 0;
                    buffer_scatter(&x, 1.5f, 3);
                    for (j = 0; j < total; j++) gy.p[j] = (float)(j + 1);
                    op.at[NNT_X] = x.p;
                    op.at[NNT_GY] = gy.p;
                    op.at[NNT_GX] = to->p;
                    nnti_cpu_noise_grad(&e, &op, &run);
                    for (j = 0; j < total; j++) {
                        int hit;
                        double v = noise_naive(&noise_cases[c], &run, op.stream, (int)(j / sizes[s]), j % sizes[s], (double)x.p[j], &hit);
                        float want = (float)(j + 1);
                        if (noise_cases[c].clamp > 0) {
                            double border = fmin(fabs(v - (double)op.f[1]), fabs(v - (double)op.f[2]));
                            if (border > 0 && border < 1e-6) continue;      /* float and double may disagree */
                            hit |= v <= (double)op.f[1] || v >= (double)op.f[2];
                        }
                        if (hit) want = 0;
                        bad += nnti_float_bits(to->p[j]) != nnti_float_bits(want);
                    }
                    CHECKF(bad == 0 && buffer_guards_hold(to), "noise grad case=%d size=%d isa=%d in place=%d: %d wrong", c, sizes[s],
                           isa[i], place, bad);
                    buffer_free(&x);
                    buffer_free(&gy);
                    buffer_free(&gx);
                }
}
/* 10^6 values: mean of the added noise under 0.001, deviation within 1 %; shares within 4 standard errors. */
static void noise_has_its_mean_deviation_and_shares(void)
{
    enum { COUNT = 1000000 };
    nnti_exec e = exec_of(nnti_isa_best());
    nnt_run run = run_of(1);
    noise_case c = { NNT_NOISE_GAUSSIAN, 0.2f, 0, 1, 0 };
    buffer x = buffer_new(COUNT), y = buffer_new(COUNT);
    double mean = 0, square = 0, low = 0, high = 0;
    nnt_op op = noise_op(&c, COUNT);
    int i;
    for (i = 0; i < COUNT; i++) x.p[i] = 0.5f;
    op.at[NNT_X] = x.p;
    op.at[NNT_Y] = y.p;
    nnti_cpu_noise(&e, &op, &run);
    for (i = 0; i < COUNT; i++) { double v = (double)y.p[i] - 0.5; mean += v / (double)COUNT; square += v * v / (double)COUNT; }
    CHECKF(fabs(mean) < 0.001 && fabs(sqrt(square) / 0.2 - 1) < 0.01, "gaussian: mean %g deviation %g", mean, sqrt(square));
    op.variant = NNT_NOISE_UNIFORM;
    nnti_cpu_noise(&e, &op, &run);
    for (mean = square = 0, i = 0; i < COUNT; i++) { double v = (double)y.p[i] - 0.5; mean += v / (double)COUNT; square += v * v / (double)COUNT; }
    CHECKF(fabs(mean) < 0.001 && fabs(sqrt(square * 3) / 0.2 - 1) < 0.01, "uniform: mean %g deviation %g", mean, sqrt(square));
    op.variant = NNT_NOISE_SALT_PEPPER;
    nnti_cpu_noise(&e, &op, &run);
    for (i = 0; i < COUNT; i++) { low += y.p[i] <= 0; high += y.p[i] >= 1; }
    CHECKF(fabs(low / (double)COUNT - 0.1) < 4 * sqrt(0.09 / (double)COUNT) && fabs(high / (double)COUNT - 0.1) < 4 * sqrt(0.09 / (double)COUNT),
           "salt and pepper: %g low, %g high", low / (double)COUNT, high / (double)COUNT);
    buffer_free(&x);
    buffer_free(&y);
}

/* ---- activations ---- */

static const char *const act_name[] = { "relu", "leaky_relu", "sigmoid", "tanh", "gelu" };
static double normal_below(double x) { return 0.5 * erfc(-x / sqrt(2.0)); }
static double act_naive(int variant, double x, double slope)
{
    if (variant == NNT_ACT_RELU) return x < 0 ? 0 : x;
    if (variant == NNT_ACT_LEAKY_RELU) return x > 0 ? x : slope * x;
    if (variant == NNT_ACT_SIGMOID) return 1 / (1 + exp(-x));
    if (variant == NNT_ACT_TANH) return tanh(x);
    return x * normal_below(x);
}
static double act_slope_naive(int variant, double x, double slope)
{
    double y = act_naive(variant, x, slope);
    if (variant == NNT_ACT_RELU) return x <= 0 ? 0 : 1;
    if (variant == NNT_ACT_LEAKY_RELU) return x > 0 ? 1 : slope;
    if (variant == NNT_ACT_SIGMOID) return y * (1 - y);
    if (variant == NNT_ACT_TANH) return 1 - y * y;
    return normal_below(x) + x * exp(-x * x / 2) / sqrt(2 * 3.14159265358979323846);
}
/* Central differences in double; 1e-8: h^2 / 6 times the third derivative, which is below 1, and 1e-16 / h of rounding. */
static void naive_slopes_are_differences_of_the_naive_functions(void)
{
    const double h = 1e-5;
    int variant, i;
    for (variant = NNT_ACT_RELU; variant <= NNT_ACT_GELU; variant++)
        for (i = -60; i <= 60; i++) {
            const double x = i / 10.0 + 0.03, slope = (act_naive(variant, x + h, 0.2) - act_naive(variant, x - h, 0.2)) / (2 * h);
            CHECKF(fabs(slope - act_slope_naive(variant, x, 0.2)) < 1e-8, "%s at %g: %.12g and %.12g", act_name[variant], x, slope, act_slope_naive(variant, x, 0.2));
        }
}
/* 5e-7: 4 ulp of a float; absolutely 1e-7 since gelu's left tail goes through erfc of a rounded argument, and since
   results below the smallest normal number may be 0. */
static void activations_match_naive_in_place_and_not(void)
{
    int isa[4], isas = isa_list(isa), i, s, place, n, variant;
    for (variant = NNT_ACT_RELU; variant <= NNT_ACT_GELU; variant++)
        for (s = 0; s < SIZES; s++)
            for (n = 1; n <= BATCH; n += 2)
                for (i = 0; i < isas; i++)
                    for (place = 0; place < 2; place++) {
                        nnti_exec e = exec_of(isa[i]);
                        nnt_run run = run_of(n);
                        nnt_op op = op_of(sizes[s]);
                        int64_t total = (int64_t)sizes[s] * BATCH, used = (int64_t)sizes[s] * n, j;
                        buffer x = buffer_new(total), y = buffer_new(total), *to = place ? &x : &y, before = buffer_new(total);
                        double difference = 0, norm = 1e-30;
                        int bad = 0;
                        buffer_scatter(&x, s % 2 ? 1.0f : 12.0f, 4);
                        memcpy(before.p, x.p, (size_t)total * sizeof(float));
                        op.variant = variant;
                        op.f[0] = 0.1f;
                        op.at[NNT_X] = x.p;
                        op.at[NNT_Y] = to->p;
                        nnti_cpu_act(&e, &op, &run);
                        for (j = 0; j < used; j++) {
                            double want = act_naive(variant, (double)before.p[j], (double)op.f[0]), d = (double)to->p[j] - want;
                            bad += !is_close(to->p[j], want, 5e-7, 1e-7);
                            difference += d * d;
                            norm += want * want;
                        }
                        for (j = used; j < total; j++)
                            bad += nnti_float_bits(to->p[j]) != nnti_float_bits(place ? before.p[j] : 12345.0f);
                        CHECKF(bad == 0 && buffer_guards_hold(to), "%s size=%d n=%d isa=%d in place=%d: %d wrong", act_name[variant],
                               sizes[s], n, isa[i], place, bad);
                        CHECKF(sqrt(difference / norm) < 3e-7, "%s size=%d isa=%d: %g of the norm", act_name[variant], sizes[s],
                               isa[i], sqrt(difference / norm));
                        buffer_free(&x);
                        buffer_free(&y);
                        buffer_free(&before);
                    }
}
static void activation_gradients_match_naive_in_place_and_not(void)
{
    int isa[4], isas = isa_list(isa), i, s, place, n, variant;
    for (variant = NNT_ACT_RELU; variant <= NNT_ACT_GELU; variant++)
        for (s = 0; s < SIZES; s++)
            for (n = 1; n <= BATCH; n += 2)
                for (i = 0; i < isas; i++)
                    for (place = 0; place < 2; place++) {
                        nnti_exec e = exec_of(isa[i]);
                        nnt_run run = run_of(n);
                        nnt_op op = op_of(sizes[s]);
                        int64_t total = (int64_t)sizes[s] * BATCH, used = (int64_t)sizes[s] * n, j;
                        buffer x = buffer_new(total), y = buffer_new(total), g = buffer_new(total), gx = buffer_new(total);
                        buffer *to = place ? &g : &gx, before = buffer_new(total);
                        int bad = 0;
                        buffer_scatter(&x, s % 2 ? 1.0f : 6.0f, 5);
                        buffer_scatter(&g, 2, 6);
                        memcpy(before.p, g.p, (size_t)total * sizeof(float));
                        for (j = 0; j < total; j++) y.p[j] = (float)act_naive(variant, (double)x.p[j], 0.1);
                        op.variant = variant;
                        op.f[0] = 0.1f;
                        op.at[NNT_X] = variant == NNT_ACT_GELU ? x.p : NULL;
                        op.at[NNT_Y] = variant == NNT_ACT_GELU ? NULL : y.p;
                        op.at[NNT_GY] = g.p;
                        op.at[NNT_GX] = to->p;
                        nnti_cpu_act_grad(&e, &op, &run);
                        for (j = 0; j < used; j++) {        /* y is rounded: 1 - y^2 is good to 1e-7, not to an ulp */
                            double want = (double)before.p[j] * act_slope_naive(variant, (double)x.p[j], (double)op.f[0]);
                            bad += !is_close(to->p[j], want, 5e-7, 5e-7);
                        }
                        for (j = used; j < total; j++)
                            bad += nnti_float_bits(to->p[j]) != nnti_float_bits(place ? before.p[j] : 12345.0f);
                        CHECKF(bad == 0 && buffer_guards_hold(to), "%s grad size=%d n=%d isa=%d in place=%d: %d wrong",
                               act_name[variant], sizes[s], n, isa[i], place, bad);
                        buffer_free(&x);
                        buffer_free(&y);
                        buffer_free(&g);
                        buffer_free(&gx);
                        buffer_free(&before);
                    }
}
/* PyTorch's results for values that are no numbers, infinite, signed zeros and large; the rows' last column is not a
   number everywhere. gelu of +-infinity is left out: PyTorch gives "not a number" for both, here +infinity stays. */
static void activations_treat_special_values_as_pytorch(void)
{
    enum { COUNT = 9 };
    const float inf = infinite(), x[COUNT] = { -inf, inf, -0.0f, 0.0f, -100, 100, -1e30f, 1e30f, not_a_number() };
    const float want[5][COUNT] = { { 0, inf, -0.0f, 0, 0, 100, 0, 1e30f, x[8] }, { -inf, inf, -0.0f, 0, -10, 100, -1e29f, 1e30f, x[8] },
        { 0, 1, 0.5f, 0.5f, 0, 1, 0, 1, x[8] }, { -1, 1, -0.0f, 0, -1, 1, -1, 1, x[8] }, { 0, 0, -0.0f, 0, -0.0f, 100, -0.0f, 1e30f, x[8] } };
    const float slope[5][COUNT] = { { 0, 1, 0, 0, 0, 1, 0, 1, 1 }, { .1f, 1, .1f, .1f, .1f, 1, .1f, 1, .1f },
        { 0, 0, .25f, .25f, 0, 0, 0, 0, x[8] }, { 0, 0, 1, 1, 0, 0, 0, 0, x[8] }, { 0, 0, .5f, .5f, 0, 1, 0, 1, x[8] } };
    int isa[4], isas = isa_list(isa), i, j, variant;
    for (i = 0; i < isas; i++)
        for (variant = NNT_ACT_RELU; variant <= NNT_ACT_GELU; variant++) {
            nnti_exec e = exec_of(isa[i]);
            nnt_run run = run_of(1);
            nnt_op op = op_of(COUNT);
            float values[COUNT], y[COUNT], ones[COUNT], gx[COUNT];
            memcpy(values, x, sizeof values);
            for (j = 0; j < COUNT; j++) ones[j] = 1;
            op.variant = variant;
            op.f[0] = 0.1f;
            op.at[NNT_X] = values;
            op.at[NNT_Y] = y;
            op.at[NNT_GY] = ones;
            op.at[NNT_GX] = gx;
            nnti_cpu_act(&e, &op, &run);
            nnti_cpu_act_grad(&e, &op, &run);
            for (j = variant == NNT_ACT_GELU ? 2 : 0; j < COUNT; j++) {
                CHECKF(is_close(y[j], (double)want[variant][j], 1e-7, 1e-37), "%s(%g) isa=%d: %g", act_name[variant], (double)x[j], isa[i], (double)y[j]);
                CHECKF(is_close(gx[j], (double)slope[variant][j], 1e-7, 1e-37), "%s'(%g) isa=%d: %g", act_name[variant], (double)x[j], isa[i], (double)gx[j]);
                if (variant <= NNT_ACT_LEAKY_RELU && !is_nan(x[j]))
                    CHECKF(nnti_float_bits(y[j]) == nnti_float_bits(want[variant][j]) || j == 6, "%s(%g) isa=%d: sign", act_name[variant], (double)x[j], isa[i]);
            }
        }
}

/* ---- sums and copies ---- */

/* Results are single additions, so bits are compared. */
static void sums_and_copies_match_naive(void)
{
    enum { COPY, ACCUMULATE, ADD, KINDS };
    int isa[4], isas = isa_list(isa), i, s, n, kind, flag, place;
    for (kind = COPY; kind < KINDS; kind++)
        for (flag = 0; flag < (kind == COPY ? 1 : 2); flag++)
            for (s = 0; s < SIZES; s++)
                for (n = 1; n <= BATCH; n += 2)
                    for (i = 0; i < isas; i++)
                        for (place = 0; place < 3; place++) {       /* y apart, y is x, y is x2 */
                            nnti_exec e = exec_of(isa[i]);
                            nnt_run run = run_of(n);
                            nnt_op op = op_of(sizes[s]);
                            int64_t total = (int64_t)sizes[s] * BATCH, used = (int64_t)sizes[s] * n, j;
                            buffer x = buffer_new(total), x2 = buffer_new(total), y = buffer_new(total), mask = buffer_new(total), want = buffer_new(total);
                            buffer *to = kind != ADD || place == 0 ? &y : place == 1 ? &x : &x2;
                            buffer_scatter(&x, 1, 7);
                            buffer_scatter(&x2, 1, 8);
                            buffer_scatter(&mask, 1, 9);
                            if (kind == ACCUMULATE) buffer_scatter(&y, 1, 10);
                            x.p[used / 2] = not_a_number();
                            mask.p[used / 2] = 1;
                            memcpy(want.p, to->p, (size_t)total * sizeof(float));
                            for (j = 0; j < used; j++) {
                                float v = x.p[j];
                                if (kind == ACCUMULATE) { v = y.p[j] + x.p[j]; if (flag && !(mask.p[j] > 0)) v = 0; }
                                if (kind == ADD) { v = x.p[j] + x2.p[j]; if (flag && v < 0) v = 0; }
                                want.p[j] = v;
                            }
                            if (flag) op.flags = kind == ADD ? NNT_OPF_RELU : NNT_OPF_MASK;
                            op.at[NNT_X] = x.p;
                            op.at[NNT_X2] = x2.p;
                            op.at[NNT_Y] = to->p;
                            op.at[NNT_MASK] = mask.p;
                            if (kind == COPY) nnti_cpu_copy(&e, &op, &run);
                            else if (kind == ACCUMULATE) nnti_cpu_accumulate(&e, &op, &run);
                            else nnti_cpu_add(&e, &op, &run);
                            CHECKF(same_bits(to->p, want.p, total) && buffer_guards_hold(to), "kind=%d flag=%d size=%d n=%d isa=%d place=%d", kind,
                                   flag, sizes[s], n, isa[i], place);
                            buffer_free(&x);
                            buffer_free(&x2);
                            buffer_free(&y);
                            buffer_free(&mask);
                            buffer_free(&want);
                        }
}
static void concat_and_its_gradient_match_naive(void)
{
    static const struct { int c, offset, whole, h, w; } cases[] = {
        { 1, 0, 2, 1, 1 }, { 1, 1, 2, 1, 1 }, { 3, 2, 7, 5, 3 }, { 7, 0, 7, 1, 17 }, { 4, 1, 5, 1000, 1 }, { 16, 16, 48, 23, 29 }
    };
    int isa[4], isas = isa_list(isa), i, n, flags;
    size_t k;
    for (k = 0; k < sizeof cases / sizeof *cases; k++)
        for (n = 1; n <= BATCH; n++)
            for (i = 0; i < isas; i++) {
                nnti_exec e = exec_of(isa[i]);
                nnt_run run = run_of(n);
                nnt_op op = op_of(1);
                int64_t plane = (int64_t)cases[k].h * cases[k].w, part = cases[k].c * plane, whole = cases[k].whole * plane, s, j;
                buffer x = buffer_new(BATCH * part), y = buffer_new(BATCH * whole), want = buffer_new(BATCH * whole);
                buffer gx = buffer_new(BATCH * part), gx_want = buffer_new(BATCH * part), mask = buffer_new(BATCH * part);
                buffer_scatter(&x, 1, 20);
                buffer_scatter(&mask, 1, 21);
                op.in_c = cases[k].c;
                op.out_c = cases[k].whole;
                op.in_h = op.out_h = cases[k].h;
                op.in_w = op.out_w = cases[k].w;
                op.channel_offset = cases[k].offset;
                op.at[NNT_X] = x.p;
                op.at[NNT_Y] = y.p;
                for (s = 0; s < n; s++)
                    for (j = 0; j < part; j++) want.p[s * whole + cases[k].offset * plane + j] = x.p[s * part + j];
                nnti_cpu_concat(&e, &op, &run);
                CHECKF(same_bits(y.p, want.p, BATCH * whole) && buffer_guards_hold(&y), "concat case=%d n=%d isa=%d", (int)k, n, isa[i]);
                buffer_scatter(&y, 1, 22);
                op.at[NNT_GY] = y.p;
                op.at[NNT_GX] = gx.p;
                op.at[NNT_MASK] = mask.p;
                for (flags = 0; flags < 4; flags++) {
                    op.flags = (flags & 1 ? NNT_OPF_ACCUMULATE : 0) | (flags & 2 ? NNT_OPF_MASK : 0);
                    buffer_scatter(&gx, 1, 23);
                    memcpy(gx_want.p, gx.p, (size_t)(BATCH * part) * sizeof(float));
                    for (s = 0; s < n; s++)
                        for (j = 0; j < part; j++) {
                            float v = y.p[s * whole + cases[k].offset * plane + j];
                            if (flags & 1) v += gx.p[s * part + j];
                            if ((flags & 2) && !(mask.p[s * part + j] > 0)) v = 0;
                            gx_want.p[s * part + j] = v;
                        }
                    nnti_cpu_concat_grad(&e, &op, &run);
                    CHECKF(same_bits(gx.p, gx_want.p, BATCH * part) && buffer_guards_hold(&gx), "concat grad case=%d n=%d isa=%d flags=%d",
                           (int)k, n, isa[i], flags);
                }
                buffer_free(&x);
                buffer_free(&y);
                buffer_free(&want);
                buffer_free(&gx);
                buffer_free(&gx_want);
                buffer_free(&mask);
            }
}
static void fill_and_axpby_match_naive(void)
{
    int isa[4], isas = isa_list(isa), i, s, place, with_z;
    for (s = 0; s < SIZES; s++)
        for (i = 0; i < isas; i++)
            for (with_z = 0; with_z < 2; with_z++)
                for (place = 0; place < 3; place++) {
                    nnti_exec e = exec_of(isa[i]);
                    buffer x = buffer_new(sizes[s]), z = buffer_new(sizes[s]), y = buffer_new(sizes[s]), want = buffer_new(sizes[s]);
                    buffer *to = place == 0 ? &y : place == 1 ? &x : &z;
                    int j, bad = 0;
                    buffer_scatter(&x, 1, 30);
                    buffer_scatter(&z, 1, 31);
                    for (j = 0; j < sizes[s]; j++) want.p[j] = x.p[j] + z.p[j];
                    for (j = 0; j < sizes[s]; j++) y.p[j] = (float)(0.3 * (double)x.p[j] + (with_z ? -1.7 * (double)z.p[j] : 0));
                    memcpy(want.p, y.p, (size_t)sizes[s] * sizeof(float));
                    nnti_cpu_axpby(&e, to->p, 0.3f, x.p, -1.7f, with_z ? z.p : NULL, sizes[s]);
                    for (j = 0; j < sizes[s]; j++) bad += !is_close(to->p[j], (double)want.p[j], 1e-6, 3e-7);
                    nnti_cpu_fill(&e, y.p, -0.25f, sizes[s]);
                    for (j = 0; j < sizes[s]; j++) bad += nnti_float_bits(y.p[j]) != nnti_float_bits(-0.25f);
                    CHECKF(bad == 0 && buffer_guards_hold(to) && buffer_guards_hold(&y), "size=%d isa=%d z=%d place=%d", sizes[s], isa[i],
                           with_z, place);
                    buffer_free(&x);
                    buffer_free(&y);
                    buffer_free(&z);
                    buffer_free(&want);
                }
}

/* ---- norm and optimizers ---- */

static void gradient_norm_matches_long_sum(void)
{
    static const int counts[] = { 1, 3, 7, 15, 17, 1000, 4097, 65536, 65537, 300001 };
    int isa[4], isas = isa_list(isa), i;
    size_t c;
    for (c = 0; c < sizeof counts / sizeof *counts; c++)
        for (i = 0; i < isas; i++) {
            nnti_exec e = exec_of(isa[i]);
            nnt_run run = run_of(1);
            nnt_op op = op_of(counts[c]);
            buffer g = buffer_new(counts[c]);
            long double want = 0;
            double got = 0;
            int j;
            buffer_scatter(&g, 1e15f, 40);          /* squares pass float's range when summed */
            for (j = 0; j < counts[c]; j++) want += (long double)g.p[j] * (long double)g.p[j];
            op.workspace_bytes = nnti_cpu_grad_norm_workspace(&e, &op, 1);
            op.workspace = malloc(op.workspace_bytes);
            op.at[NNT_GW] = g.p;
            op.at[NNT_LOSS] = &got;
            nnti_cpu_grad_norm(&e, &op, &run);
            CHECKF(fabs((double)((long double)got - want)) <= 1e-13 * (double)want, "count=%d isa=%d: %g", counts[c], isa[i], got);
            g.p[counts[c] / 2] = not_a_number();
            nnti_cpu_grad_norm(&e, &op, &run);
            CHECKF(!nnti_finite_double(got), "count=%d isa=%d", counts[c], isa[i]);
            free(op.workspace);
            buffer_free(&g);
        }
}

/* One update in double from float hyperparameters. */
static void update_naive(const nnt_optimizer *o, int64_t t, double scale, double *w, double g, double *m, double *v)
{
    double lr = (double)o->lr, decay = (double)o->weight_decay;
    g *= scale;
    if (o->kind == NNT_OPTIMIZER_ADAMW) *w *= 1 - lr * decay;
    else g += decay * *w;
    if (o->kind == NNT_OPTIMIZER_SGD) {
        double momentum = (double)o->momentum;
        *m = t == 1 ? g : momentum * *m + g;
        *w -= lr * (momentum > 0 ? o->nesterov ? g + momentum * *m : *m : g);
    } else {
        double b1 = (double)o->beta1, b2 = (double)o->beta2;
        *m = b1 * *m + (1 - b1) * g;
        *v = b2 * *v + (1 - b2) * g * g;
        *w -= lr * (*m / (1 - pow(b1, (double)t))) / (sqrt(*v / (1 - pow(b2, (double)t))) + (double)o->eps);
    }
}
static nnt_optimizer optimizer_case(int k)
{
    nnt_optimizer o = k < 5 ? nnt_sgd(0.1f) : k < 8 ? nnt_adam(0.1f) : nnt_adamw(0.1f);
    if (k >= 1 && k <= 4) o.momentum = 0.9f;
    if (k == 2 || k == 4) o.weight_decay = 0.05f;
    if (k == 3 || k == 4) o.nesterov = 1;
    if (k == 6) o.eps = 0.5f;
    if (k == 7) { o.beta1 = 0.5f; o.beta2 = 0.9f; o.weight_decay = 0.05f; }
    if (k == 8) o.weight_decay = 0.05f;
    if (k == 9) { o.beta1 = 0.5f; o.beta2 = 0.9f; o.eps = 0.5f; o.weight_decay = 0.3f; }
    return o;
}
enum { OPTIMIZER_CASES = 10 };

/* Ten updates; 2e-6 of the sum of |w| and all steps is some ten roundings. */
static void updates_match_naive_for_odd_sizes(void)
{
    static const int counts[] = { 1, 3, 7, 15, 17, 1000, 4097, 20001 };
    int isa[4], isas = isa_list(isa), i, k, j;
    size_t c;
    for (k = 0; k < OPTIMIZER_CASES; k++)
        for (c = 0; c < sizeof counts / sizeof *counts; c++)
            for (i = 0; i < isas; i++) {
                nnti_exec e = exec_of(isa[i]);
                nnt_run run = run_of(1);
                nnt_op op = op_of(counts[c]);
                int64_t n = counts[c];
                buffer w = buffer_new(n), g = buffer_new(n), m = buffer_new(n), v = buffer_new(n);
                double *exact = (double *)calloc((size_t)n * 3, sizeof(double));
                int bad = 0, t;
                if (!exact) exit(1);
                run.optimizer = optimizer_case(k);
                run.grad_scale = 0.25f;
                buffer_scatter(&w, 1, 50);
                memset(m.p, 0, (size_t)n * sizeof(float));
                memset(v.p, 0, (size_t)n * sizeof(float));
                for (j = 0; j < n; j++) exact[3 * j] = (double)w.p[j];
                op.at[NNT_W] = w.p;
                op.at[NNT_GW] = g.p;
                op.at[NNT_M] = k ? m.p : NULL;
                op.at[NNT_V] = k >= 5 ? v.p : NULL;
                for (t = 1; t <= 10; t++) {
                    run.update = t;
                    buffer_scatter(&g, 2, 60 + (uint32_t)t);
                    nnti_cpu_update(&e, &op, &run);
                    for (j = 0; j < n; j++)
                        update_naive(&run.optimizer, t, (double)run.grad_scale, exact + 3 * j, (double)g.p[j], exact + 3 * j + 1, exact + 3 * j + 2);
                }
                for (j = 0; j < n; j++) bad += !is_close(w.p[j], exact[3 * j], 2e-6, 2e-6);
                CHECKF(bad == 0 && buffer_guards_hold(&w) && buffer_guards_hold(&m) && buffer_guards_hold(&v),
                       "optimizer case=%d count=%d isa=%d: %d wrong", k, counts[c], isa[i], bad);
                free(exact);
                buffer_free(&w);
                buffer_free(&g);
                buffer_free(&m);
                buffer_free(&v);
            }
}
/* Recorded with PyTorch 2.15 in float64:
       import torch
       from torch.optim import SGD, Adam, AdamW
       grads = [[0.1, -2.0, 1e-8, 0.3], [-0.02, 0.5, 3e-9, 0.0], [0.05, 1.5, -2e-8, -0.7]]
       def run(make):
           w = torch.tensor([1.0, -0.5, 0.25, 2.0], dtype=torch.float64, requires_grad=True)
           o = make([w])
           for g in grads:
               w.grad = torch.tensor(g, dtype=torch.float64)
               o.step()
           print(", ".join("%.12f" % v for v in w.tolist()))
       run(lambda p: SGD(p, lr=0.1))
       run(lambda p: SGD(p, lr=0.1, momentum=0.9))
       run(lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05))
       run(lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True))
       run(lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05))
       run(lambda p: Adam(p, lr=0.1))
       run(lambda p: Adam(p, lr=0.1, eps=0.5))
       run(lambda p: Adam(p, lr=0.1, betas=(0.5, 0.9), weight_decay=0.05))
       run(lambda p: AdamW(p, lr=0.1, weight_decay=0.05))
       run(lambda p: AdamW(p, lr=0.1, betas=(0.5, 0.9), eps=0.5, weight_decay=0.3))
   The third weight's gradients are about as large as Adam's eps. 1e-6: hyperparameters are floats here. */
static void updates_match_torch_optim(void)
{
    static const float grads[3][4] = { { 0.1f, -2.0f, 1e-8f, 0.3f }, { -0.02f, 0.5f, 3e-9f, 0.0f }, { 0.05f, 1.5f, -2e-8f, -0.7f } };
    static const double want[OPTIMIZER_CASES][4] = {
        { 0.987000000000, -0.500000000000, 0.250000000700, 2.040000000000 },
        { 0.971700000000, -0.203000000000, 0.249999998720, 1.988700000000 },
        { 0.943949625000, -0.192579937500, 0.243017467490, 1.933409000000 },
        { 0.961530000000, -0.232700000000, 0.249999999548, 2.029830000000 },
        { 0.922108927875, -0.222112126312, 0.240025460261, 1.951573241000 },
        { 0.785290956945, -0.361327022647, 0.178403676443, 1.871333439984 },
        { 0.969520641005, -0.391220976731, 0.249999997416, 1.960486359722 },
        { 0.755534302279, -0.423063828320, -0.008114796217, 1.891543049413 },
        { 0.771618844849, -0.355096694226, 0.175352833151, 1.842815719062 },
        { 0.886999489391, -0.400843695410, 0.228168248912, 1.813699729490 },
    };
    int isa[4], isas = isa_list(isa), i, k, t, j;
    for (k = 0; k < OPTIMIZER_CASES; k++)
        for (i = 0; i < isas; i++) {
            nnti_exec e = exec_of(isa[i]);
            nnt_run run = run_of(1);
            nnt_op op = op_of(4);
            float w[4] = { 1.0f, -0.5f, 0.25f, 2.0f }, m[4] = { 0, 0, 0, 0 }, v[4] = { 0, 0, 0, 0 }, g[4];
            run.optimizer = optimizer_case(k);
            op.at[NNT_W] = w;
            op.at[NNT_GW] = g;
            op.at[NNT_M] = m;
            op.at[NNT_V] = v;
            for (t = 0; t < 3; t++) {
                memcpy(g, grads[t], sizeof g);
                run.update = t + 1;
                nnti_cpu_update(&e, &op, &run);
            }
            for (j = 0; j < 4; j++) CHECKF(is_close(w[j], want[k][j], 0, 1e-6), "case %d isa %d w%d: %.9f, torch %.9f", k, isa[i], j, (double)w[j], want[k][j]);
        }
}
/* Published case: eps is added to sqrt(v_hat), after bias correction. */
static void adam_first_steps_with_large_eps(void)
{
    static const float grads[3] = { 0.1f, -0.02f, 1e-8f };
    static const double want[3] = { 0.900990, 0.850587, 0.811744 };
    int isa[4], isas = isa_list(isa), i, t;
    for (i = 0; i < isas; i++) {
        nnti_exec e = exec_of(isa[i]);
        nnt_run run = run_of(1);
        nnt_op op = op_of(1);
        float w = 1, g, m = 0, v = 0;
        run.optimizer = nnt_adam(0.1f);
        run.optimizer.eps = 1e-3f;
        op.at[NNT_W] = &w;
        op.at[NNT_GW] = &g;
        op.at[NNT_M] = &m;
        op.at[NNT_V] = &v;
        for (t = 0; t < 3; t++) {
            g = grads[t];
            run.update = t + 1;
            nnti_cpu_update(&e, &op, &run);
            CHECKF(is_close(w, want[t], 0, 1e-6), "isa %d step %d: %.7f", isa[i], t, (double)w);
        }
    }
}
static void constructors_fill_every_field(void)
{
    nnt_optimizer s = nnt_sgd(0.5f), a = nnt_adam(1e-3f), w = nnt_adamw(1e-3f);
    CHECK(s.kind == NNT_OPTIMIZER_SGD && a.kind == NNT_OPTIMIZER_ADAM && w.kind == NNT_OPTIMIZER_ADAMW);
    CHECK(is_close(s.lr, 0.5, 0, 0) && is_close(s.momentum, 0, 0, 0) && is_close(s.weight_decay, 0, 0, 0) && s.nesterov == 0);
    CHECK(is_close(a.beta1, 0.9, 1e-7, 0) && is_close(a.beta2, 0.999, 1e-7, 0) && is_close(a.eps, 1e-8, 1e-7, 0));
    CHECK(is_close(a.weight_decay, 0, 0, 0) && is_close(w.weight_decay, 0.01, 1e-7, 0));
    CHECK(s.accumulate == 1 && s.schedule == NNT_SCHEDULE_CONSTANT && s.warmup_steps == 0 && is_close(s.clip_norm, 0, 0, 0));
}
/* Recorded with PyTorch 2.15, lr 0.5, value before each of the optimizer's steps:
       def show(make, steps):
           o = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
           s, out = make(o), []
           for _ in range(steps):
               out.append(o.param_groups[0]["lr"]); o.step(); s.step()
           print(", ".join("%.9f" % v for v in out))
       show(lambda o: StepLR(o, 3, gamma=0.1), 10)
       show(lambda o: CosineAnnealingLR(o, 8, eta_min=0.05), 9)
       show(lambda o: LinearLR(o, start_factor=0.25, total_iters=4), 7)
       show(lambda o: SequentialLR(o, [LinearLR(o, start_factor=0.25, total_iters=4), CosineAnnealingLR(o, 4)], [4]), 9) */
static void schedules_match_torch(void)
{
    static const double step[10] = { 0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005, 0.005, 0.0005 };
    static const double cosine[9] = { 0.500000000, 0.482872895, 0.434099026, 0.361103772, 0.275000000, 0.188896228, 0.115900974, 0.067127105, 0.050000000 };
    static const double warm[7] = { 0.125, 0.21875, 0.3125, 0.40625, 0.5, 0.5, 0.5 };
    static const double warm_cosine[9] = { 0.125, 0.21875, 0.3125, 0.40625, 0.5, 0.426776695, 0.25, 0.073223305, 0.0 };
    nnt_optimizer o = nnt_sgd(0.5f);
    int i;
    CHECK(is_close(nnt_learning_rate(&o, 1000), 0.5, 0, 0));
    o.schedule_steps = 3;
    CHECK(is_close(nnt_learning_rate(&o, 1000), 0.5, 0, 0));
    o.schedule = NNT_SCHEDULE_STEP;
    o.gamma = 0.1f;
    for (i = 0; i < 10; i++) CHECKF(is_close(nnt_learning_rate(&o, i), step[i], 3e-7, 0), "step %d", i);
    o.schedule = NNT_SCHEDULE_COSINE;
    o.schedule_steps = 8;
    o.lr_min = 0.05f;
    for (i = 0; i < 9; i++) CHECKF(is_close(nnt_learning_rate(&o, i), cosine[i], 1e-7, 1e-9), "cosine %d", i);
    CHECK(is_close(nnt_learning_rate(&o, 1000000), 0.05, 1e-7, 0));     /* it stays where it ends */
    o.schedule = NNT_SCHEDULE_CONSTANT;
    o.warmup_steps = 4;
    o.warmup_start = 0.25f;
    for (i = 0; i < 7; i++) CHECKF(is_close(nnt_learning_rate(&o, i), warm[i], 1e-7, 0), "warm-up %d", i);
    o.schedule = NNT_SCHEDULE_COSINE;
    o.schedule_steps = 4;
    o.lr_min = 0;
    for (i = 0; i < 9; i++) CHECKF(is_close(nnt_learning_rate(&o, i), warm_cosine[i], 1e-7, 1e-9), "warm-up and cosine %d", i);
    o.schedule_steps = 0;                   /* no length: no schedule */
    CHECK(is_close(nnt_learning_rate(&o, 50), 0.5, 0, 0));
    CHECK(is_close(nnt_learning_rate(&o, -7), 0.125, 0, 0));
    CHECK(is_close(nnt_learning_rate(NULL, 0), 0, 0, 0));
}

/* ---- threads ---- */

typedef struct op_case { const char *name; kernel_fn kernel; int variant, flags; float f[4]; int same_on_all_isas; } op_case;
/* Three samples of 9001 values: four ranges. The same bits for 1, 2, 3 and 8 threads; where it is promised, and for sums,
   which are single operations, for all instruction sets too. */
static void bits_do_not_depend_on_threads(void)
{
    static const op_case cases[] = {
        { "copy", nnti_cpu_copy, 0, 0, { 0, 0, 0, 0 }, 1 },
        { "accumulate", nnti_cpu_accumulate, 0, NNT_OPF_MASK, { 0, 0, 0, 0 }, 1 },
        { "add", nnti_cpu_add, 0, NNT_OPF_RELU, { 0, 0, 0, 0 }, 1 },
        { "concat", nnti_cpu_concat, 0, 0, { 0, 0, 0, 0 }, 1 },
        { "concat_grad", nnti_cpu_concat_grad, 0, NNT_OPF_MASK, { 0, 0, 0, 0 }, 1 },
        { "relu", nnti_cpu_act, NNT_ACT_RELU, 0, { 0, 0, 0, 0 }, 1 },
        { "leaky_relu", nnti_cpu_act, NNT_ACT_LEAKY_RELU, 0, { 0.1f, 0, 0, 0 }, 1 },
        { "sigmoid", nnti_cpu_act, NNT_ACT_SIGMOID, 0, { 0, 0, 0, 0 }, 0 },
        { "tanh", nnti_cpu_act, NNT_ACT_TANH, 0, { 0, 0, 0, 0 }, 0 },
        { "gelu", nnti_cpu_act, NNT_ACT_GELU, 0, { 0, 0, 0, 0 }, 0 },
        { "gelu_grad", nnti_cpu_act_grad, NNT_ACT_GELU, 0, { 0, 0, 0, 0 }, 0 },
        { "dropout", nnti_cpu_dropout, 0, 0, { 0.3f, 0, 0, 0 }, 1 },
        { "gaussian", nnti_cpu_noise, NNT_NOISE_GAUSSIAN, 0, { 0.3f, 0, 1, 1 }, 1 },
        { "uniform", nnti_cpu_noise, NNT_NOISE_UNIFORM, 0, { 0.3f, 0, 1, 0 }, 1 },
        { "salt_pepper", nnti_cpu_noise, NNT_NOISE_SALT_PEPPER, 0, { 0.3f, 0, 1, 0 }, 1 },
        { "noise_grad", nnti_cpu_noise_grad, NNT_NOISE_GAUSSIAN, 0, { 0.3f, 0, 1, 1 }, 1 },
        { "adam", nnti_cpu_update, 0, 0, { 0, 0, 0, 0 }, 0 },
        { "grad_norm", nnti_cpu_grad_norm, 0, 0, { 0, 0, 0, 0 }, 0 },
    };
    enum { SIZE = 9001, TOTAL = SIZE * BATCH };
    nnt_allocator a = nnti_allocator(NULL);
    nnti_pool *pool[4];
    int isa[4], isas = isa_list(isa), i, t;
    size_t c;
    for (t = 0; t < 4; t++) pool[t] = nnti_pool_start(&a, thread_counts[t]);
    for (c = 0; c < sizeof cases / sizeof *cases; c++) {
        buffer reference = buffer_new(TOTAL);
        for (i = 0; i < isas; i++)
            for (t = 0; t < 4; t++) {
                nnti_exec e;
                nnt_run run = run_of(BATCH);
                nnt_op op = op_of(SIZE);
                buffer x = buffer_new(TOTAL), other = buffer_new(TOTAL), y = buffer_new(TOTAL), third = buffer_new(TOTAL);
                double space[8], sum = 0;
                e.pool = pool[t];
                e.isa = isa[i];
                buffer_scatter(&x, 1, 70);
                buffer_scatter(&other, 1, 71);
                buffer_scatter(&y, 1, 72);
                memset(third.p, 0, TOTAL * sizeof(float));
                op.variant = cases[c].variant;
                op.flags = cases[c].flags;
                memcpy(op.f, cases[c].f, sizeof op.f);
                op.count = TOTAL;
                op.workspace = space;
                op.at[NNT_X] = x.p;
                op.at[NNT_X2] = op.at[NNT_GY] = op.at[NNT_MASK] = op.at[NNT_GW] = op.at[NNT_M] = other.p;
                op.at[NNT_Y] = op.at[NNT_GX] = op.at[NNT_W] = y.p;
                op.at[NNT_V] = third.p;
                op.at[NNT_LOSS] = &sum;
                run.optimizer = nnt_adam(0.01f);
                run.update = 2;
                cases[c].kernel(&e, &op, &run);
                memcpy(third.p, &sum, sizeof sum);
                if (t == 0 && (i == 0 || !cases[c].same_on_all_isas)) {
                    memcpy(reference.p, y.p, TOTAL * sizeof(float));
                    if (cases[c].kernel == nnti_cpu_grad_norm) memcpy(reference.p, &sum, sizeof sum);
                }
                if (cases[c].kernel == nnti_cpu_grad_norm) memcpy(y.p, &sum, sizeof sum);
                CHECKF(same_bits(reference.p, y.p, TOTAL), "%s isa=%d threads=%d", cases[c].name, isa[i], thread_counts[t]);
                buffer_free(&x);
                buffer_free(&other);
                buffer_free(&y);
                buffer_free(&third);
            }
        buffer_free(&reference);
    }
    {   /* numbers for tensors, with threads */
        buffer reference = buffer_new(TOTAL), got = buffer_new(TOTAL);
        for (i = 0; i < isas; i++)
            for (t = 0; t < 4; t++) {
                nnti_exec e;
                e.pool = pool[t];
                e.isa = isa[i];
                nnti_cpu_random(&e, got.p, TOTAL, NNT_RANDOM_NORMAL, 1, 2, 3);
                if (i == 0 && t == 0) memcpy(reference.p, got.p, TOTAL * sizeof(float));
                CHECKF(same_bits(reference.p, got.p, TOTAL), "random isa=%d threads=%d", isa[i], thread_counts[t]);
            }
        buffer_free(&reference);
        buffer_free(&got);
    }
    for (t = 0; t < 4; t++) nnti_pool_stop(pool[t]);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(philox_matches_published_vectors);
    TEST(normals_have_the_known_digest);
    TEST(fills_agree_from_any_start_on_any_isa);
    TEST(normals_are_box_muller_of_their_words);
    TEST(normals_have_normal_moments);
    TEST(threshold_is_the_nearest_whole_number);
    TEST(tensor_random_kinds_follow_their_definitions);
    TEST(uniform_stays_within_its_range_and_fills_it);
    TEST(dropout_matches_naive_in_place_and_not);
    TEST(dropout_drops_its_share_anew_each_sample_step_and_layer);
    TEST(noise_matches_naive_in_place_and_not);
    TEST(noise_grad_is_zero_where_the_value_was_replaced);
    TEST(noise_has_its_mean_deviation_and_shares);
    TEST(naive_slopes_are_differences_of_the_naive_functions);
    TEST(activations_match_naive_in_place_and_not);
    TEST(activation_gradients_match_naive_in_place_and_not);
    TEST(activations_treat_special_values_as_pytorch);
    TEST(sums_and_copies_match_naive);
    TEST(concat_and_its_gradient_match_naive);
    TEST(fill_and_axpby_match_naive);
    TEST(gradient_norm_matches_long_sum);
    TEST(updates_match_naive_for_odd_sizes);
    TEST(updates_match_torch_optim);
    TEST(adam_first_steps_with_large_eps);
    TEST(constructors_fill_every_field);
    TEST(schedules_match_torch);
    TEST(bits_do_not_depend_on_threads);
    return TEST_END();
}
