/* Pictures on their way from files to batches: decoding, folders, transforms, caches, datasets made of others.

   All inputs are made here, in a temporary directory, pictures by small writers of their own; what transforms have to give
   comes from Pillow and torchvision (tests/golden/make_transforms.py) or from loops written out here. Decoding needs
   -DNNT_TEST_STB, that is stb_image. */
#include "stb.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef NNT_TEST_GOLDEN
#  define NNT_TEST_GOLDEN "tests/golden"
#endif

/* ---- helpers ---- */

static char root[2048], work_dir[128];      /* where the test was started; where its files are: the current directory */

/* Memory that is counted, and whose n-th allocation can be made to fail; in order, so not from several threads. */
typedef struct heap { int left, count; size_t live, peak; } heap;
static void *heap_alloc(void *user, size_t bytes, size_t align)
{
    heap *h = (heap *)user;
    if (h->left-- <= 0) return NULL;
    h->count++;
    h->live += bytes;
    if (h->live > h->peak) h->peak = h->live;
    return nnti_default_alloc(NULL, bytes, align);
}
static void heap_free(void *user, void *p, size_t bytes)
{
    ((heap *)user)->live -= bytes;
    nnti_default_free(NULL, p, bytes);
}
static nnt_allocator heap_of(heap *h, int left)
{
    nnt_allocator a;
    memset(h, 0, sizeof *h);
    h->left = left;
    a.alloc_fn = heap_alloc;
    a.free_fn = heap_free;
    a.user = h;
    return a;
}

/* Numerical Recipes' generator, as make_transforms.py has it. */
static uint32_t state = 1;
static uint8_t random_byte(void) { state = state * 1664525u + 1013904223u; return (uint8_t)(state >> 24); }
static void fill_random(uint8_t *to, size_t n, uint32_t seed) { for (state = seed; n; n--) *to++ = random_byte(); }

static nnt_loader_desc loader_desc(int batch, int workers)
{
    nnt_loader_desc d;
    memset(&d, 0, sizeof d);
    d.batch = batch;
    d.workers = workers;
    d.seed = 5;
    return d;
}
static nnt_transforms_desc transforms(const nnt_transform *list, int count)
{
    nnt_transforms_desc d;
    memset(&d, 0, sizeof d);
    d.list = list;
    d.count = count;
    return d;
}
/* A dataset of bytes: count pictures of channels x height x width, labels count from 0 modulo 3. */
static nnt_dataset *bytes_dataset(const uint8_t *x, int count, int channels, int height, int width)
{
    static int32_t labels[1024];
    nnt_arrays_desc d;
    int i;
    for (i = 0; i < 1024; i++) labels[i] = i % 3;
    memset(&d, 0, sizeof d);
    d.count = count;
    d.channels = channels;
    d.height = height;
    d.width = width;
    d.x_u8 = x;
    d.labels = labels;
    d.classes = 3;
    return nnt_dataset_arrays(d, NULL);
}
static nnti_image image_of(const void *pixels, int height, int width, int channels, int is_float)
{
    nnti_image m;
    m.height = height;
    m.width = width;
    m.channels = channels;
    m.is_float = is_float;
    m.stride = (int64_t)width * channels;
    m.pixels = pixels;
    return m;
}

/* ---- transforms against Pillow and torchvision ---- */

static int hex(char c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; }
static int apply_named(nnti_reading *r, const char *kind, const double p[5], nnti_image *m)
{
    static const char *const enhance[3] = { "brightness", "contrast", "saturation" };
    nnt_transform t;
    double a[6];
    int k;
    if (strcmp(kind, "gray") == 0) return nnti_to_gray(r, m);
    if (strcmp(kind, "affine") == 0) {
        nnti_affine_matrix(a, m->height, m->width, p[0], p[1], p[2], p[3], p[4]);
        return nnti_affine(r, m, a);
    }
    for (k = 0; k < 3; k++) if (strcmp(kind, enhance[k]) == 0) return nnti_enhance(r, m, k, p[0]);
    t = strcmp(kind, "shorter") == 0 ? nnt_resize_shorter((int)p[0])
      : strcmp(kind, "resize") == 0 ? nnt_resize((int)p[0], (int)p[1]) : nnt_center_crop((int)p[0], (int)p[1]);
    return nnti_apply(&t, 1, r, 0, 0, m);
}
/* All are the same bytes but for two: where sides are resized by different factors, Pillow (12 and later) may go along
   columns first, which rounds in between elsewhere; and turned pictures, whose sums Pillow cuts and we round, and of which
   pixels just on the border may fall in or out, since positions are computed in another order: at most two pixels. */
static void check_golden(const char *line, int isa)
{
    static uint8_t pixels[64 * 64 * 3 + NNTI_SLACK];
    char kind[16];
    int channels, from_height, from_width, height = 0, width = 0, seed, taken = 0, at = 0, most = 0, off = 0, i, x, y;
    double p[5] = { 0, 0, 0, 0, 0 };
    const char *colon = strchr(line, ':');
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    CHECK(colon && sscanf(line, "%15s %d %d %d %d%n", kind, &channels, &from_height, &from_width, &seed, &at) == 5);
    CHECK(colon && sscanf(colon + 1, "%d %d %n", &height, &width, &taken) == 2);
    if (!height || !width) return;
    for (i = 0; i < 5; i++) {
        char *end;
        p[i] = strtod(line + at, &end);
        at = (int)(end - line);
    }
    fill_random(pixels, (size_t)from_height * (size_t)from_width * (size_t)channels, (uint32_t)seed);
    m = image_of(pixels, from_height, from_width, channels, 0);
    nnti_reading_init(&r, &a);
    r.isa = isa;
    CHECK(apply_named(&r, kind, p, &m) == NNT_OK);
    CHECKF(m.height == height && m.width == width, "%s %d: %d x %d", kind, seed, m.height, m.width);
    if (strcmp(kind, "affine") == 0) most = 1;
    if (strcmp(kind, "resize") == 0 && fabs((double)from_height / height * width / from_width - 1) > 0.1) most = 1;
    for (y = 0, colon += 1 + taken; m.height == height && m.width == width && y < height; y++)
        for (x = 0; x < m.width * m.channels; x++, colon += 2)
            off += abs(((const uint8_t *)nnti_pixel(&m, y, 0))[x] - 16 * hex(colon[0]) - hex(colon[1])) > most;
    CHECKF(off <= (strcmp(kind, "affine") == 0 ? 6 : 0), "%s %d: %d values differ", kind, seed, off);
    nnti_reading_free(&r);
}
static void transforms_give_what_pillow_gives(void)
{
    static char line[8192];
    char path[2200];
    FILE *f;
    int lines = 0;
    sprintf(path, "%s%s/transforms.txt", NNT_TEST_GOLDEN[0] == '/' ? "" : root, NNT_TEST_GOLDEN);
    f = fopen(path, "r");
    CHECKF(f != NULL, "%s", path);
    while (f && fgets(line, sizeof line, f)) {
        if (line[0] == '#') continue;
        check_golden(line, NNTI_ISA_C);
        check_golden(line, nnti_isa_best());
        lines++;
    }
    if (f) fclose(f);
    CHECK(lines == 61);
}


/* ---- transforms against loops ---- */

/* Floats are resized with the same weights, unrounded. */
static void floats_are_resized_as_bytes_are(void)
{
    static uint8_t b[3 * 30 * 20 + NNTI_SLACK];
    static float f[3 * 30 * 20 + NNTI_SLACK];
    const nnt_transform t = nnt_resize(13, 11);
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r, q;
    nnti_image m = image_of(b, 30, 20, 3, 0), n = image_of(f, 30, 20, 3, 1);
    int i;
    fill_random(b, 1800, 9);
    for (i = 0; i < 1800; i++) f[i] = (float)b[i] / 255.0f;
    nnti_reading_init(&r, &a);
    nnti_reading_init(&q, &a);
    CHECK(nnti_apply(&t, 1, &r, 0, 0, &m) == NNT_OK && nnti_apply(&t, 1, &q, 0, 0, &n) == NNT_OK);
    for (i = 0; i < 13 * 11 * 3; i++)       /* bytes are rounded twice, each time by half at most */
        CHECKF(fabs((double)((const float *)n.pixels)[i] * 255 - ((const uint8_t *)m.pixels)[i]) <= 1.001, "value %d", i);
    nnti_reading_free(&r);
    nnti_reading_free(&q);
}
/* Rows end anywhere in a vector; memory ends where readers may read, for the sanitizer. */
static void check_resize_on_every_isa(int height, int width, int to_height, int to_width, int value)
{
    const size_t bytes = (size_t)height * (size_t)width * 3, to_bytes = (size_t)to_height * (size_t)to_width * 3;
    const nnt_transform t = nnt_resize(to_height, to_width);
    uint8_t *pixels = (uint8_t *)malloc(bytes + NNTI_SLACK);
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading plain;
    nnti_image want;
    int isa;
    CHECK(pixels != NULL);
    if (!pixels) return;
    fill_random(pixels, bytes + NNTI_SLACK, (uint32_t)(width * 40 + to_width));
    if (value >= 0) memset(pixels, value, bytes);
    want = image_of(pixels, height, width, 3, 0);
    nnti_reading_init(&plain, &a);
    plain.isa = NNTI_ISA_C;
    CHECK(nnti_apply(&t, 1, &plain, 0, 0, &want) == NNT_OK);
    for (isa = NNTI_ISA_C + 1; isa <= nnti_isa_best(); isa++) {
        nnti_image got = image_of(pixels, height, width, 3, 0);
        nnti_reading r;
        nnti_reading_init(&r, &a);
        r.isa = isa;
        CHECK(nnti_apply(&t, 1, &r, 0, 0, &got) == NNT_OK);
        CHECKF(got.width == to_width && memcmp(got.pixels, want.pixels, to_bytes) == 0, "%d x %d to %d x %d, isa %d", height, width,
               to_height, to_width, isa);
        nnti_reading_free(&r);
    }
    nnti_reading_free(&plain);
    free(pixels);
}
/* (v / 255 - mean) / deviation, each rounded to float, in one plane a channel. */
static void check_bytes_on_every_isa(int height, int width, float mean, float deviation)
{
    enum { MOST = 5 * 300 * 3 };
    static uint8_t pixels[MOST + NNTI_SLACK];
    static float got[MOST];
    const float means[3] = { mean, -mean, 0.456f }, deviations[3] = { deviation, 0.224f, 1 / deviation };
    const nnt_transform t = nnt_normalize(means, deviations, 3);
    const nnti_image m = image_of(pixels, height, width, 3, 0);
    nnti_bytes bytes;
    int isa, c, i, bad;
    fill_random(pixels, sizeof pixels, (uint32_t)width);
    nnti_bytes_normalize(&bytes, &t);
    if (deviation == 0.229f) CHECK(bytes.by_rule == (nnti_isa_best() == NNTI_ISA_AVX512));
    for (isa = NNTI_ISA_C; isa <= nnti_isa_best(); isa++) {
        nnti_to_planes(isa, got, &m, &bytes);
        for (bad = 0, c = 0; c < 3; c++) for (i = 0; i < height * width; i++) {
            const float share = (float)(pixels[3 * i + c] / 255.0), centered = share - means[c], want = centered / deviations[c];
            bad += memcmp(&want, &got[c * height * width + i], sizeof want) != 0;
        }
        CHECKF(bad == 0, "%d x %d, mean %g, deviation %g, isa %d: %d differ", height, width, (double)mean, (double)deviation, isa, bad);
    }
}
static void every_instruction_set_normalises_bytes_to_the_same_bits(void)
{
    int k;
    for (k = 1; k < 300; k++) check_bytes_on_every_isa(1 + k % 5, k, (float)k / 300, 0.001f * (float)k);
    check_bytes_on_every_isa(3, 256, 0.485f, 0.229f);
    check_bytes_on_every_isa(3, 256, 0, 1);
    check_bytes_on_every_isa(3, 256, 1e30f, 1e-30f);
    check_bytes_on_every_isa(3, 256, 1e-30f, 1e-38f);
}
static void every_instruction_set_resizes_to_the_same_bytes(void)
{
    int width, to;
    for (width = 1; width < 60; width++)
        for (to = 1; to < 40; to += 1 + to % 3) check_resize_on_every_isa(1 + width % 13, width, 1 + to % 5, to, -1);
    check_resize_on_every_isa(2, 3001, 1, 2, 255);          /* the largest sums, of many taps */
    check_resize_on_every_isa(3001, 2, 2, 5, 255);
    check_resize_on_every_isa(1, 1, 3, 77, 255);            /* and of one, the largest weight */
}
/* Cropping what was resized gives the same as resizing only the part. */
static void a_crop_after_a_resize_costs_no_bit(void)
{
    static uint8_t b[3 * 61 * 47 + NNTI_SLACK];
    const nnt_transform t[3] = { nnt_resize_shorter(29), nnt_random_crop(17, 23, 0), nnt_random_crop(20, 40, 9) };
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r, q;
    int index, k;
    fill_random(b, sizeof b, 4);
    nnti_reading_init(&r, &a);
    nnti_reading_init(&q, &a);
    for (index = 0; index < 40; index++) for (k = 1; k < 3; k++) {
        nnt_transform both[2];
        nnti_image m = image_of(b, 61, 47, 3, 0), n = m;
        int y;
        both[0] = t[0];
        both[1] = t[k];
        CHECK(nnti_apply(both, 2, &r, index, 0, &m) == NNT_OK);
        CHECK(nnti_apply(both, 1, &q, index, 0, &n) == NNT_OK && nnti_apply(both + 1, 1, &q, index, 1, &n) == NNT_OK);
        CHECK(m.height == n.height && m.width == n.width);
        for (y = 0; y < m.height; y++)
            CHECKF(memcmp(nnti_pixel(&m, y, 0), nnti_pixel(&n, y, 0), (size_t)m.width * 3) == 0, "sample %d, row %d", index, y);
    }
    nnti_reading_free(&r);
    nnti_reading_free(&q);
}

/* What one batch of a transformed dataset holds. */
static void first_batch(nnt_dataset *d, nnt_loader_desc desc, int64_t epoch, float *x, int64_t values)
{
    nnt_loader *l = nnt_loader_new(d, desc, NULL);
    nnt_batch b;
    CHECKF(nnt_loader_rewind(l, epoch) == NNT_OK && nnt_loader_next(l, &b) == NNT_OK && b.count == desc.batch, "%s", nnt_loader_error(l));
    if (b.x) memcpy(x, b.x, (size_t)values * sizeof *x);
    nnt_loader_free(l);
}
/* Random crops of a picture whose pixels tell their place: each place comes, evenly, zeros where the pad is. */
static void random_crops_are_anywhere_evenly(void)
{
    static uint8_t b[1000 * 4 * 5];
    static float x[1000 * 4 * 5];
    const nnt_transform t = nnt_random_crop(4, 5, 1);
    nnt_transforms_desc desc = transforms(&t, 1);
    nnt_dataset *d = bytes_dataset(b, 1000, 1, 4, 5), *e = nnt_dataset_transform(d, desc, NULL);
    int seen[3][3], i, k, y, v;
    memset(seen, 0, sizeof seen);
    for (i = 0; i < 20000; i++) b[i] = (uint8_t)(1 + i % 20);
    first_batch(e, loader_desc(1000, 0), 2, x, 20000);
    for (i = 0; i < 1000; i++) {
        int found = 0;
        for (k = 0; k < 9; k++) {
            const int dy = k / 3 - 1, dx = k % 3 - 1;
            int same = 1;
            for (y = 0; y < 4; y++) for (v = 0; v < 5; v++) {
                const int sy = y + dy, sx = v + dx, inside = sy >= 0 && sy < 4 && sx >= 0 && sx < 5;
                same &= (int)(x[i * 20 + y * 5 + v] * 255 + 0.5f) == (inside ? 1 + sy * 5 + sx : 0);
            }
            if (same) { seen[k / 3][k % 3]++; found++; }
        }
        CHECKF(found == 1, "sample %d", i);
    }
    for (k = 0; k < 9; k++)                 /* 111 expected, deviation 10 */
        CHECKF(seen[k / 3][k % 3] > 60 && seen[k / 3][k % 3] < 165, "place %d: %d times", k, seen[k / 3][k % 3]);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
static void flips_come_with_their_probability(void)
{
    static uint8_t b[2000 * 6];
    static float x[2000 * 6];
    nnt_transform t[2] = { nnt_random_flip(0.25f), nnt_random_flip_vertical(0.5f) };
    nnt_dataset *d = bytes_dataset(b, 1000, 1, 2, 3), *e = nnt_dataset_transform(d, transforms(t, 2), NULL);
    int count[2][2], i, k, v, u;
    memset(count, 0, sizeof count);
    for (i = 0; i < 6000; i++) b[i] = (uint8_t)(i % 6);
    first_batch(e, loader_desc(1000, 0), 0, x, 6000);
    for (i = 0; i < 1000; i++) for (v = 0; v < 2; v++) for (u = 0; u < 2; u++) {
        int same = 1;
        for (k = 0; k < 6; k++) {
            const int y = v ? 1 - k / 3 : k / 3, c = u ? 2 - k % 3 : k % 3;
            same &= (int)(x[i * 6 + k] * 255 + 0.5f) == y * 3 + c;
        }
        count[v][u] += same;
    }
    CHECK(count[0][0] + count[0][1] + count[1][0] + count[1][1] == 1000);
    CHECKF(abs(count[0][1] + count[1][1] - 250) < 60, "%d of 1000 mirrored", count[0][1] + count[1][1]);     /* deviation 14 */
    CHECKF(abs(count[1][0] + count[1][1] - 500) < 70, "%d of 1000 upside down", count[1][0] + count[1][1]);  /* 16 */
    CHECKF(abs(count[1][1] - 125) < 50, "%d of 1000 both", count[1][1]);    /* one does not tell the other: 10 */
    t[0].p = 0;
    t[1].p = 1;
    nnt_dataset_free(e);
    e = nnt_dataset_transform(d, transforms(t, 2), NULL);
    first_batch(e, loader_desc(1000, 0), 0, x, 6000);
    for (i = 0; i < 6000; i++) CHECK((int)(x[i] * 255 + 0.5f) == (i % 6 + 3) % 6);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
static void resized_crops_stay_within_scale_and_ratio(void)
{
    nnt_transform t = nnt_random_resized_crop(1, 1);
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    int index, small_ones = 0, drawn = 0;
    double sum = 0;
    nnti_reading_init(&r, &a);
    for (index = 0; index < 2000; index++) {
        nnti_dice d = nnti_dice_new(&r, index, 0);
        nnti_part p = nnti_all_of(1, 1);
        double area, ratio;
        if (!nnti_draw_part(&t, &d, 300, 400, &p)) continue;
        drawn++;
        area = (double)p.height * p.width / 120000;
        ratio = (double)p.width / p.height;
        CHECK(p.y >= 0 && p.x >= 0 && p.y + p.height <= 300 && p.x + p.width <= 400);
        CHECKF(area > 0.078 && area <= 1.001 && ratio > 0.74 && ratio < 1.35, "%d x %d", p.width, p.height);   /* sides are whole */
        small_ones += area < 0.54;
        sum += area;
    }
    /* 20000 of torchvision's get_params on a picture of this size: 67.1 % under 0.54, mean 0.435; large ones often don't fit */
    CHECKF(drawn > 1980 && abs(small_ones - 1342) < 90 && fabs(sum / drawn - 0.435) < 0.02, "%d: %d, %g", drawn, small_ones, sum / drawn);
    for (index = 0; index < 2; index++) {   /* nothing of that ratio fits: the middle, as far as the ratio goes */
        nnti_part p = nnti_middle_part(&t, index ? 10 : 100, index ? 100 : 10);
        CHECK(index ? p.height == 10 && p.width == 13 && p.x == 43 && p.y == 0 : p.height == 13 && p.width == 10 && p.x == 0 && p.y == 43);
    }
    nnti_reading_free(&r);
}
/* Value by value in the order of the list: bytes / 255, normalised, noise, erased. */
static void values_are_normalised_exactly(void)
{
    static uint8_t b[3 * 256];
    static float x[3 * 256], f[3 * 256];
    static const float mean[3] = { 0.485f, 0.456f, 0.406f }, deviation[3] = { 0.229f, 0.224f, 0.225f };
    nnt_transform t[2] = { nnt_normalize(mean, deviation, 3), nnt_random_flip(0) };
    nnt_arrays_desc floats;
    nnt_dataset *d, *e;
    int form, i;
    for (i = 0; i < 768; i++) { b[i] = (uint8_t)i; f[i] = (float)((double)(i & 255) / 255.0); }
    memset(&floats, 0, sizeof floats);
    floats.count = 1;
    floats.channels = 3;
    floats.height = floats.width = 16;
    floats.x = f;
    for (form = 0; form < 4; form++) {      /* bytes at the end of the list, before another one; floats in both */
        d = form & 2 ? nnt_dataset_arrays(floats, NULL) : bytes_dataset(b, 1, 3, 16, 16);
        e = nnt_dataset_transform(d, transforms(t, 1 + (form & 1)), NULL);
        CHECK_TEXT(nnt_dataset_error(e), "");
        first_batch(e, loader_desc(1, NNT_NO_WORKERS), 0, x, 768);
        for (i = 0; i < 768; i++) {
            volatile float v = f[i], less = v - mean[i / 256], want = less / deviation[i / 256];
            CHECKF(x[i] == want, "form %d, value %d: %.9g, not %.9g", form, i, (double)x[i], (double)want);
        }
        nnt_dataset_free(e);
        nnt_dataset_free(d);
    }
}
static void noise_is_normal_and_not_clamped(void)
{
    enum { COUNT = 10, SIDE = 100, N = COUNT * 3 * SIDE * SIDE };
    static uint8_t b[N];
    static float x[N], y[N];
    nnt_transform t = nnt_pixel_noise(0.1f);
    nnt_dataset *d = bytes_dataset(b, COUNT, 3, SIDE, SIDE), *e = nnt_dataset_transform(d, transforms(&t, 1), NULL);
    double sum = 0, square = 0;
    int i, below = 0;
    first_batch(e, loader_desc(COUNT, 0), 0, x, N);
    first_batch(e, loader_desc(COUNT, 0), 1, y, N);
    for (i = 0; i < N; i++) { sum += x[i]; square += (double)x[i] * x[i]; below += x[i] < 0; }
    CHECKF(fabs(sum / N) < 0.001 && fabs(sqrt(square / N) - 0.1) < 0.001, "mean %g, deviation %g", sum / N, sqrt(square / N));
    CHECK(abs(below - N / 2) < 2000);       /* deviation 274 */
    CHECK(memcmp(x, y, sizeof x) != 0);
    CHECK(memcmp(x, x + N / COUNT, N / COUNT * sizeof *x) != 0);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
static void erasing_sets_one_part(void)
{
    enum { COUNT = 400, SIDE = 32 };
    static uint8_t b[COUNT * SIDE * SIDE];
    static float x[COUNT * SIDE * SIDE];
    nnt_transform t = nnt_random_erasing(0.5f);
    nnt_dataset *d, *e;
    int i, k, erased = 0;
    t.value = 7;
    memset(b, 255, sizeof b);
    d = bytes_dataset(b, COUNT, 1, SIDE, SIDE);
    e = nnt_dataset_transform(d, transforms(&t, 1), NULL);
    first_batch(e, loader_desc(COUNT, 0), 0, x, COUNT * SIDE * SIDE);
    for (i = 0; i < COUNT; i++) {
        int n = 0, top = SIDE, bottom = -1, left = SIDE, right = -1;
        for (k = 0; k < SIDE * SIDE; k++) {
            if (x[i * SIDE * SIDE + k] == 1) continue;
            CHECK(x[i * SIDE * SIDE + k] == 7);
            n++;
            top = nnti_min(top, k / SIDE);
            bottom = nnti_max(bottom, k / SIDE);
            left = nnti_min(left, k % SIDE);
            right = nnti_max(right, k % SIDE);
        }
        erased += n > 0;
        CHECK(n == 0 || (n == (bottom - top + 1) * (right - left + 1) && n >= 12 && n <= 380));     /* 2 to 33 % of 1024, whole sides */
    }
    CHECKF(abs(erased - COUNT / 2) < 60, "%d of %d", erased, COUNT);        /* deviation 10 */
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}

/* All that draws chance, one after the other. */
static nnt_dataset *augmented(nnt_dataset *d, size_t cache)
{
    static const float mean[3] = { 0.5f, 0.4f, 0.3f }, deviation[3] = { 0.2f, 0.25f, 0.3f };
    nnt_transform t[11];
    nnt_transforms_desc desc;
    t[0] = nnt_resize_shorter(20);
    t[1] = nnt_random_crop(18, 18, 2);
    t[2] = nnt_random_resized_crop(16, 14);
    t[3] = nnt_random_flip(0.5f);
    t[4] = nnt_random_flip_vertical(0.5f);
    t[5] = nnt_random_affine(15, 0.1f, 0.8f, 1.2f);
    t[5].shear = 5;
    t[6] = nnt_color_jitter(0.4f, 0.4f, 0.4f);
    t[7] = nnt_pixel_noise(0.01f);
    t[8] = nnt_random_crop(15, 14, 1);      /* after floats */
    t[9] = nnt_normalize(mean, deviation, 3);
    t[10] = nnt_random_erasing(0.5f);
    desc = transforms(t, 11);
    desc.cache_bytes = cache;
    return nnt_dataset_transform(d, desc, NULL);
}
enum { AUGMENTED = 3 * 15 * 14, MANY = 64 };
static void chance_depends_on_seed_epoch_and_sample_only(void)
{
    static uint8_t b[MANY * 3 * 24 * 30];
    static float want[3][MANY][AUGMENTED];
    static const size_t caches[3] = { 0, 20000, 1 << 20 };
    nnt_dataset *d;
    int workers, cache, epoch, i, k;
    for (i = 0; i < MANY; i++) fill_random(b + i * 3 * 24 * 30, 3 * 24 * 30, 77);      /* all the same picture */
    d = bytes_dataset(b, MANY, 3, 24, 30);
    for (cache = 0; cache < 3; cache++) {
        nnt_dataset *e = augmented(d, caches[cache]);
        CHECK_TEXT(nnt_dataset_error(e), "");
        for (workers = -1; workers < 6; workers++) {
            nnt_loader_desc desc = loader_desc(7, workers);
            nnt_loader *l;
            nnt_batch batch;
            desc.shuffle = workers != 1;
            desc.prefetch = workers == 2 ? 1 : 0;
            l = nnt_loader_new(e, desc, NULL);
            for (epoch = 0; epoch < 3; epoch++)
                while (nnt_loader_next(l, &batch) == NNT_OK && batch.count) for (i = 0; i < batch.count; i++) {
                    float *w = want[epoch][batch.indices[i]];
                    const float *x = batch.x + i * AUGMENTED;
                    if (cache == 0 && workers == -1) memcpy(w, x, AUGMENTED * sizeof *w);
                    CHECKF(memcmp(w, x, AUGMENTED * sizeof *w) == 0, "cache=%d workers=%d epoch=%d sample=%d", cache, workers, epoch,
                           (int)batch.indices[i]);
                }
            CHECK_TEXT(nnt_loader_error(l), "");
            nnt_loader_free(l);
        }
        nnt_dataset_free(e);
    }
    for (epoch = 0; epoch < 3; epoch++) for (i = 0; i < MANY; i++) for (k = 0; k < i; k++) {    /* and differs from sample to sample, */
        CHECKF(memcmp(want[epoch][i], want[epoch][k], sizeof *want[0]) != 0, "epoch %d: %d is %d", epoch, i, k);
        CHECK(epoch == 0 || memcmp(want[epoch][i], want[epoch - 1][i], sizeof *want[0]) != 0);  /* from epoch to epoch */
    }
    nnt_dataset_free(d);
}
/* A list in two datasets, one made of the other, draws what it draws in one. */
static void lists_can_be_cut_in_two(void)
{
    static uint8_t b[20 * 3 * 9 * 9];
    static float x[20 * 3 * 5 * 5], y[20 * 3 * 5 * 5];
    nnt_transform t[4] = { nnt_random_crop(8, 8, 1), nnt_random_flip(0.5f), nnt_random_crop(5, 5, 0), nnt_pixel_noise(0.1f) };
    nnt_dataset *d, *whole, *first, *second;
    int cut;
    fill_random(b, sizeof b, 3);
    d = bytes_dataset(b, 20, 3, 9, 9);
    whole = nnt_dataset_transform(d, transforms(t, 4), NULL);
    first_batch(whole, loader_desc(20, 0), 4, x, 20 * 75);
    for (cut = 0; cut <= 4; cut++) {
        first = nnt_dataset_transform(d, transforms(t, cut), NULL);
        second = nnt_dataset_transform(first, transforms(t + cut, 4 - cut), NULL);
        CHECK_TEXT(nnt_dataset_error(second), "");
        first_batch(second, loader_desc(20, 0), 4, y, 20 * 75);
        CHECKF(memcmp(x, y, sizeof x) == 0, "cut %d", cut);
        nnt_dataset_free(second);
        nnt_dataset_free(first);
    }
    nnt_dataset_free(whole);
    nnt_dataset_free(d);
}
static void check_transform_error(nnt_dataset *d, nnt_transform t, const char *text)
{
    nnt_dataset *e = nnt_dataset_transform(d, transforms(&t, 1), NULL);
    CHECK(nnt_dataset_error_code(e) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_dataset_error(e), text);
    nnt_dataset_free(e);
}
static void transform_errors_say_what_is_wrong(void)
{
    static uint8_t b[5 * 4 * 4];
    static const float one[5] = { 1, 1, 1, 1, 1 }, zero[5] = { 0, 0, 0, 0, 0 };
    nnt_dataset *five = bytes_dataset(b, 1, 5, 4, 4), *e, *g;
    nnt_transform t = nnt_random_flip(0.5f), many[300];
    nnt_transforms_desc desc;
    int i;
    check_transform_error(five, nnt_resize_shorter(0), "dataset_transform: transform 0: the shorter side has to be at least 1");
    check_transform_error(five, nnt_resize(3, 0), "dataset_transform: transform 0: height and width have to be at least 1");
    check_transform_error(five, nnt_random_crop(3, 3, -1), "dataset_transform: transform 0: pad has to be 0 to 1048576");
    check_transform_error(five, nnt_random_flip(1.5f), "dataset_transform: transform 0: p has to be 0 to 1");
    check_transform_error(five, nnt_color_jitter(1, 0, 0), "dataset_transform: transform 0: colours need 1 or 3 channels");
    check_transform_error(five, nnt_normalize(zero, one, 3), "dataset_transform: transform 0: channels has to be 1 or that of the samples, at most 4");
    check_transform_error(five, nnt_normalize(zero, one, 5), "dataset_transform: transform 0: channels has to be 1 or that of the samples, at most 4");
    check_transform_error(five, nnt_normalize(NULL, one, 1), "dataset_transform: transform 0: channels has to be 1 or that of the samples, at most 4");
    check_transform_error(five, nnt_normalize(zero, zero, 1), "dataset_transform: transform 0: deviations have to be above 0, means finite");
    check_transform_error(five, nnt_random_affine(5, 0, 0, 1), "dataset_transform: transform 0: scales have to be 0 < smallest <= largest");
    check_transform_error(five, nnt_random_affine(-5, 0, 1, 1), "dataset_transform: transform 0: degrees has to be 0 to 360, shear 0 to below 90, "
                          "translate 0 to 1");
    check_transform_error(five, nnt_pixel_noise(-1), "dataset_transform: transform 0: amount has to be at least 0");
    t.kind = 77;
    check_transform_error(five, t, "dataset_transform: transform 0: its kind is none of NNT_TRANSFORM_...");
    t = nnt_random_erasing(0.5f);
    t.scale[0] = 0;
    check_transform_error(five, t, "dataset_transform: transform 0: scale has to be 0 < smallest <= largest <= 1");
    t = nnt_random_resized_crop(3, 3);
    t.ratio[1] = 0;
    check_transform_error(five, t, "dataset_transform: transform 0: ratio has to be 0 < smallest <= largest");
    for (i = 0; i < 300; i++) many[i] = nnt_random_flip(0.5f);
    e = nnt_dataset_transform(five, transforms(many, 300), NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_transform: 300 transforms; a list of at most 256 is needed");
    nnt_dataset_free(e);
    e = nnt_dataset_transform(five, transforms(many, 200), NULL);
    g = nnt_dataset_transform(e, transforms(many, 57), NULL);
    CHECK_TEXT(nnt_dataset_error(g), "dataset_transform: 57 transforms; a list of at most 56 is needed");
    nnt_dataset_free(g);
    desc = transforms(many, 1);
    desc.cache_bytes = 1;
    g = nnt_dataset_transform(e, desc, NULL);
    CHECK_TEXT(nnt_dataset_error(g), "dataset_transform: cache_bytes would keep what the dataset below draws by chance; ask for the cache there");
    nnt_dataset_free(g);
    nnt_dataset_free(e);
    e = nnt_dataset_transform(NULL, transforms(many, 1), NULL);
    CHECK(nnt_dataset_error_code(e) == NNT_ERR_MEMORY);
    nnt_dataset_free(e);
    nnt_dataset_free(five);
}

/* ---- datasets made of others ---- */

static void splits_part_the_samples(void)
{
    static uint8_t b[103];
    static const double cuts[5] = { 0, 0.25, 0.5, 0.9, 1 };
    nnt_dataset *d = bytes_dataset(b, 103, 1, 1, 1);
    int seen[103], k, i, order = 0, other = 0;
    memset(seen, 0, sizeof seen);
    for (k = 0; k < 4; k++) {
        nnt_dataset *s = nnt_dataset_split(d, cuts[k], cuts[k + 1], 9, NULL), *t = nnt_dataset_split(d, cuts[k], cuts[k + 1], 10, NULL);
        CHECK(nnt_dataset_count(s) == (int64_t)(103 * cuts[k + 1] + 0.5) - (int64_t)(103 * cuts[k] + 0.5) && nnt_dataset_classes(s) == 3);
        for (i = 0; i < (int)nnt_dataset_count(s); i++) {
            seen[s->indices[i]]++;
            order += s->indices[i] == i;
            other += s->indices[i] == t->indices[i];
            CHECK(nnt_dataset_label(s, i) == (int32_t)(s->indices[i] % 3));
        }
        nnt_dataset_free(s);
        nnt_dataset_free(t);
    }
    for (i = 0; i < 103; i++) CHECK(seen[i] == 1);
    CHECK(order < 12 && other < 12);        /* 1 expected */
    nnt_dataset_free(d);
}
static void subsets_and_concatenations_keep_order(void)
{
    static uint8_t b[6] = { 0, 10, 20, 30, 40, 50 };
    static const int64_t pick[4] = { 5, 0, 5, 2 };
    static const int want[10] = { 50, 0, 50, 20, 0, 10, 20, 30, 40, 50 };
    nnt_dataset *d = bytes_dataset(b, 6, 1, 1, 1), *s = nnt_dataset_subset(d, pick, 4, NULL), *list[2], *c;
    float x[10], weights[3];
    int i;
    list[0] = s;
    list[1] = d;
    c = nnt_dataset_concat(list, 2, NULL);
    CHECK(nnt_dataset_count(c) == 10 && nnt_dataset_classes(c) == 3);
    first_batch(c, loader_desc(10, 0), 0, x, 10);
    for (i = 0; i < 10; i++) {
        CHECK((int)(x[i] * 255 + 0.5f) == want[i]);
        CHECK(nnt_dataset_label(c, i) == want[i] / 10 % 3);
    }
    CHECK(nnt_dataset_label(c, 10) == -1 && nnt_dataset_label(c, -1) == -1);
    /* labels 2 0 2 2 0 1 2 0 1 2: 3 of 0, 2 of 1, 5 of 2 */
    CHECK(nnt_dataset_class_weights(c, weights, 3) == NNT_OK);
    CHECK(fabs(weights[0] - 10.0 / 9) < 1e-6 && fabs(weights[1] - 10.0 / 6) < 1e-6 && fabs(weights[2] - 10.0 / 15) < 1e-6);
    CHECK(nnt_dataset_class_weights(c, weights, 2) == NNT_ERR_ARGUMENT && nnt_dataset_class_weights(NULL, weights, 2) == NNT_ERR_MEMORY);
    nnt_dataset_free(c);
    nnt_dataset_free(s);
    nnt_dataset_free(d);
}
static nnt_result no_sample(void *user, int64_t index, float *x, int32_t *label, float *target, char *why, size_t cap)
{
    (void)user; (void)index; (void)x; (void)label; (void)target; (void)why; (void)cap;
    return NNT_ERR_DATA;
}
static void errors_of_made_datasets_say_what_is_wrong(void)
{
    static uint8_t b[48];
    static const int64_t wrong[2] = { 0, 3 };
    nnt_dataset *d = bytes_dataset(b, 3, 1, 4, 4), *three = bytes_dataset(b, 1, 3, 4, 4), *other = bytes_dataset(b, 1, 1, 4, 3), *e, *list[2];
    nnt_transform crop = nnt_center_crop(2, 2);
    nnt_reader_desc reader;
    nnt_loader *l;
    float weights[4];
    e = nnt_dataset_subset(d, wrong, 2, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_subset: index 3 at place 1; the dataset has samples 0 to 2");
    list[0] = d;
    list[1] = e;
    nnt_dataset_free(nnt_dataset_concat(list, 2, NULL));
    nnt_dataset_free(e);
    e = nnt_dataset_subset(d, NULL, 2, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_subset: 2 indices (NULL); at least one is needed");
    nnt_dataset_free(e);
    e = nnt_dataset_split(d, 0.5, 0.5, 0, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_split: from 0.5 to 0.5; 0 <= from < to <= 1 is needed");
    nnt_dataset_free(e);
    e = nnt_dataset_split(d, 0.5, 0.51, 0, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_split: from 0.5 to 0.51 of 3 samples is none of them");
    nnt_dataset_free(e);
    e = nnt_dataset_concat(NULL, 1, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_concat: 1 datasets (NULL); at least one is needed");
    nnt_dataset_free(e);
    list[1] = three;
    e = nnt_dataset_concat(list, 2, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "dataset_concat: dataset 1 has 3 channels, 3 classes and targets of 0, the first one 1, 3 and 0; they have to "
               "agree");
    nnt_dataset_free(e);
    list[1] = other;                        /* of another size: fine, when a transform brings them to one */
    e = nnt_dataset_concat(list, 2, NULL);
    CHECK_TEXT(nnt_dataset_error(e), "");
    l = nnt_loader_new(e, loader_desc(1, 0), NULL);
    CHECK_TEXT(nnt_loader_error(l), "loader: the samples have no size known beforehand; bring them to one with nnt_dataset_transform. The first one: "
               "dataset_concat: dataset 1 has pictures of 3 x 4 (width, height), the first one of 4 x 4");
    nnt_loader_free(l);
    list[0] = nnt_dataset_transform(e, transforms(&crop, 1), NULL);
    CHECK(nnt_dataset_count(list[0]) == 4);
    nnt_dataset_free(list[0]);
    nnt_dataset_free(e);
    memset(&reader, 0, sizeof reader);
    reader.count = reader.channels = reader.height = reader.width = 1;
    reader.classes = 4;
    reader.read_fn = no_sample;
    e = nnt_dataset_reader(reader, NULL);
    CHECK(nnt_dataset_class_weights(e, weights, 4) == NNT_ERR_UNSUPPORTED);
    nnt_dataset_free(e);
    nnt_dataset_free(other);
    nnt_dataset_free(three);
    nnt_dataset_free(d);
}
static void datasets_survive_each_allocation_failing(void)
{
    static uint8_t b[40 * 3 * 24 * 30];
    static const int64_t pick[3] = { 0, 1, 2 };
    nnt_dataset *d = bytes_dataset(b, 40, 3, 24, 30), *list[2];
    int n;
    for (n = 0; n < 200; n++) {
        heap h;
        nnt_allocator a = heap_of(&h, n);
        nnt_transform t[2] = { nnt_resize(20, 20), nnt_random_resized_crop(8, 8) };
        nnt_transforms_desc desc = transforms(t, 2);
        nnt_dataset *s = nnt_dataset_split(d, 0, 0.5, 1, &a), *u = nnt_dataset_subset(d, pick, 3, &a), *c, *e;
        nnt_loader *l;
        nnt_batch batch;
        nnt_result r;
        list[0] = s;
        list[1] = u;
        c = nnt_dataset_concat(list, 2, &a);
        desc.cache_bytes = 100000;
        e = nnt_dataset_transform(c, desc, &a);
        l = nnt_loader_new(e, loader_desc(5, NNT_NO_WORKERS), &a);
        do r = nnt_loader_next(l, &batch); while (!r && batch.count);
        nnt_loader_free(l);
        nnt_dataset_free(e);
        nnt_dataset_free(c);
        nnt_dataset_free(u);
        nnt_dataset_free(s);
        CHECKF(h.live == 0, "allocation %d", n);
        CHECKF(r == NNT_OK || r == NNT_ERR_MEMORY, "allocation %d: %d", n, (int)r);
        if (r == NNT_OK && h.left > 0) break;           /* without memory for the cache it goes without */
    }
    CHECKF(n > 20 && n < 200, "%d", n);
    nnt_dataset_free(d);
}


/* ---- files of pictures ---- */

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    FILE *f;
    remove(name);
    f = fopen(name, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) { printf("can't write %s\n", name); exit(2); }
}
static void make_folder(const char *name) { if (mkdir(name, 0700)) { printf("can't make %s\n", name); exit(2); } }

/* Removes everything below the current directory, links as links. */
static void remove_all(const char *name)
{
    char path[1024];
    DIR *dir = opendir(name);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", name, entry->d_name) >= (int)sizeof path) continue;
        if (unlink(path)) remove_all(path);
    }
    if (dir) closedir(dir);
    if (strcmp(name, ".") != 0) rmdir(name);
}

static uint8_t *put_be(uint8_t *to, uint32_t v, int bytes)
{
    while (bytes--) *to++ = (uint8_t)(v >> 8 * bytes);
    return to;
}
static uint8_t *put_le(uint8_t *to, uint32_t v, int bytes)
{
    for (; bytes; bytes--, v >>= 8) *to++ = (uint8_t)v;
    return to;
}
static uint32_t crc32_of(const uint8_t *p, size_t bytes)        /* bit by bit */
{
    uint32_t c = 0xFFFFFFFFu;
    int k;
    for (; bytes; bytes--, p++) for (c ^= *p, k = 0; k < 8; k++) c = (c & 1u) ? (c >> 1) ^ 0xEDB88320u : c >> 1;
    return ~c;
}
static uint8_t *put_chunk(uint8_t *to, const char *kind, const uint8_t *data, size_t bytes)
{
    uint8_t *p = put_be(to, (uint32_t)bytes, 4);
    memcpy(p, kind, 4);
    if (bytes) memcpy(p + 4, data, bytes);
    return put_be(p + 4 + bytes, crc32_of(p, bytes + 4), 4);
}
/* A PNG of one stored block: rows of row_bytes bytes, unfiltered. palette: its bytes, or NULL. */
static size_t make_png(uint8_t *out, int width, int height, int depth, int color, const uint8_t *rows, int row_bytes,
                       const uint8_t *palette, int colors)
{
    static uint8_t data[70000];
    const size_t n = (size_t)height * (size_t)(row_bytes + 1);
    uint8_t head[13], *p = out, *q = data + 7;
    uint32_t a = 1, b = 0;
    int y;
    size_t i;
    memcpy(p, "\x89PNG\r\n\x1a\n", 8);
    put_be(put_be(head, (uint32_t)width, 4), (uint32_t)height, 4);
    head[8] = (uint8_t)depth;
    head[9] = (uint8_t)color;
    head[10] = head[11] = head[12] = 0;
    p = put_chunk(p + 8, "IHDR", head, 13);
    if (palette) p = put_chunk(p, "PLTE", palette, (size_t)colors * 3);
    memcpy(data, "\x78\x01\x01", 3);
    put_le(put_le(data + 3, (uint32_t)n, 2), ~(uint32_t)n, 2);
    for (y = 0; y < height; y++, q += row_bytes) { *q++ = 0; memcpy(q, rows + (size_t)y * (size_t)row_bytes, (size_t)row_bytes); }
    for (i = 0; i < n; i++) { a = (a + data[7 + i]) % 65521; b = (b + a) % 65521; }
    put_be(q, b << 16 | a, 4);
    p = put_chunk(p, "IDAT", data, n + 11);
    return (size_t)(put_chunk(p, "IEND", NULL, 0) - out);
}
static size_t make_bmp(uint8_t *out, int width, int height, const uint8_t *rgb)
{
    const int row = (3 * width + 3) / 4 * 4;
    uint8_t *p = out;
    int y, x;
    memset(out, 0, 54);
    memcpy(p, "BM", 2);
    put_le(p + 2, (uint32_t)(54 + row * height), 4);
    put_le(p + 10, 54, 4);
    put_le(p + 14, 40, 4);
    put_le(p + 18, (uint32_t)width, 4);
    put_le(p + 22, (uint32_t)height, 4);
    put_le(p + 26, 1, 2);
    put_le(p + 28, 24, 2);
    for (y = 0, p += 54; y < height; y++, p += row) for (x = 0; x < width; x++) {
        const uint8_t *from = rgb + ((height - 1 - y) * width + x) * 3;
        p[3 * x] = from[2];
        p[3 * x + 1] = from[1];
        p[3 * x + 2] = from[0];
    }
    return (size_t)(54 + row * height);
}
/* A GIF of 4 colours, its codes never longer than 3 bits since each pixel is preceded by a clear. */
static size_t make_gif(uint8_t *out, int width, int height, const uint8_t *palette, const uint8_t *index)
{
    uint8_t *p = out, *count;
    uint32_t bits = 0;
    int used = 0, i;
    memcpy(p, "GIF89a", 6);
    p = put_le(put_le(p + 6, (uint32_t)width, 2), (uint32_t)height, 2);
    *p++ = 0x81; *p++ = 0; *p++ = 0;        /* a palette of 4 */
    memcpy(p, palette, 12);
    p += 12;
    memcpy(p, "!\xF9\x04\0\0\0\0\0", 8);    /* a control block to step over */
    p += 8;
    *p++ = 0x2C;
    p = put_le(put_le(put_le(p, 0, 4), (uint32_t)width, 2), (uint32_t)height, 2);
    *p++ = 0;
    *p++ = 2;
    count = p++;
    for (i = 0; i <= 2 * width * height; i++) {     /* clear, pixel, clear, pixel, ..., end */
        const uint32_t code = i == 2 * width * height ? 5 : i % 2 ? index[i / 2] : 4;
        bits |= code << used;
        used += 3;
        for (; used >= 8; used -= 8, bits >>= 8) *p++ = (uint8_t)bits;
    }
    *p++ = (uint8_t)bits;
    *count = (uint8_t)(p - count - 1);
    *p++ = 0;
    *p++ = 0x3B;
    return (size_t)(p - out);
}
/* A JPEG in grey whose 8 x 8 blocks have one value each: quantum 8, so that a block's number is value - 128; twelve
   lengths in 4 bits each, and a one-bit code for "no more in this block". orientation 0: no EXIF; negative: big-endian. */
typedef struct bit_writer { uint8_t *p; uint32_t bits; int used; } bit_writer;
static void put_bits(bit_writer *w, uint32_t v, int n)
{
    while (n--) {
        w->bits = w->bits << 1 | (v >> n & 1u);
        if (++w->used < 8) continue;
        *w->p++ = (uint8_t)w->bits;
        if ((w->bits & 255u) == 255u) *w->p++ = 0;
        w->used = 0;
        w->bits = 0;
    }
}
static uint8_t *put_exif(uint8_t *p, int orientation)
{
    uint8_t *(*put)(uint8_t *, uint32_t, int) = orientation < 0 ? put_be : put_le;
    memcpy(p, "\xFF\xE1\0\x32" "Exif\0\0", 10);
    memcpy(p + 10, orientation < 0 ? "MM\0*" : "II*\0", 4);
    p = put(put(p + 14, 8, 4), 2, 2);
    p = put(put(put(put(p, 0x0100, 2), 4, 2), 1, 4), 77, 4);         /* a width, to step over */
    p = put(put(put(put(put(p, 0x0112, 2), 3, 2), 1, 4), (uint32_t)abs(orientation), 2), 0, 2);
    return put(put(p, 0, 4), 0, 4);         /* no next directory, and four more */
}
static size_t make_jpeg(uint8_t *out, int width, int height, const uint8_t *block, int orientation)
{
    uint8_t *p = out;
    bit_writer w;
    int i, last = 0, across = (width + 7) / 8, down = (height + 7) / 8;
    memcpy(p, "\xFF\xD8", 2);
    p += 2;
    if (orientation) p = put_exif(p, orientation);
    memcpy(p, "\xFF\xDB\0\x43\0", 5);
    memset(p + 5, 8, 64);
    p += 69;
    memcpy(p, "\xFF\xC0\0\x0B\x08", 5);
    p = put_be(put_be(p + 5, (uint32_t)height, 2), (uint32_t)width, 2);
    memcpy(p, "\x01\x01\x11\0\xFF\xC4\0\x1F\0" "\0\0\0\x0C\0\0\0\0\0\0\0\0\0\0\0\0", 25);
    p += 25;
    for (i = 0; i < 12; i++) *p++ = (uint8_t)i;
    memcpy(p, "\xFF\xC4\0\x14\x10" "\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" "\0\xFF\xDA\0\x08\x01\x01\0\0\x3F\0", 32);
    w.p = p + 32;
    w.bits = 0;
    w.used = 0;
    for (i = 0; i < across * down; i++) {
        const int change = block[i] - 128 - last, size = abs(change);
        int length = 0;
        while (size >> length) length++;
        put_bits(&w, (uint32_t)length, 4);
        put_bits(&w, (uint32_t)(change > 0 ? change : change + (1 << length) - 1), length);
        put_bits(&w, 0, 1);
        last = block[i] - 128;
    }
    while (w.used) put_bits(&w, 1, 1);
    memcpy(w.p, "\xFF\xD9", 2);
    return (size_t)(w.p + 2 - out);
}

static nnt_folder_desc rgb_folder(void)
{
    nnt_folder_desc d;
    memset(&d, 0, sizeof d);
    d.channels = 3;
    d.max_pixels = 100000000;
    return d;
}
/* Decodes bytes at the end of a piece of memory of their own, so that a sanitizer sees what is read beyond. */
static nnt_result try_decode(nnti_reading *r, const uint8_t *bytes, size_t n, nnti_image *m)
{
    const nnt_folder_desc d = rgb_folder();
    uint8_t *exact = (uint8_t *)malloc(n ? n : 1);
    nnt_result code;
    if (n) memcpy(exact, bytes, n);
    nnti_clear_error(&r->error);
    code = nnti_decode(r, &d, exact, n, m);
    free(exact);
    CHECKF((code == NNT_OK) == (r->error.code == NNT_OK), "%s", r->error.text);
    return code;
}

static uint8_t file_bytes[100000];
#ifdef NNT_TEST_STB

static void expect_pixels(size_t n, const uint8_t *rgb, int height, int width, const char *what)
{
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    int i;
    nnti_reading_init(&r, &a);
    CHECKF(try_decode(&r, file_bytes, n, &m) == NNT_OK, "%s: %s", what, r.error.text);
    CHECKF(!r.error.code && m.height == height && m.width == width && m.channels == 3 && !m.is_float, "%s", what);
    for (i = 0; !r.error.code && i < height * width * 3; i++)
        CHECKF(((const uint8_t *)m.pixels)[i] == rgb[i], "%s: value %d is %d, not %d", what, i, ((const uint8_t *)m.pixels)[i], rgb[i]);
    nnti_reading_free(&r);
}
/* One rule a kind: alpha dropped, grey to all three, 16 bits to the high byte, palettes expanded. */
static void pictures_of_every_kind_give_their_pixels(void)
{
    enum { W = 5, H = 3, N = W * H };
    uint8_t rgb[N * 3], gray[N * 3], rows[N * 8], palette[12];
    int i, k;
    fill_random(rgb, sizeof rgb, 8);
    for (i = 0; i < N * 3; i++) gray[i] = rgb[i / 3 * 3];
    expect_pixels(make_png(file_bytes, W, H, 8, 2, rgb, W * 3, NULL, 0), rgb, H, W, "rgb");
    for (i = 0; i < N; i++) rows[i] = rgb[3 * i];
    expect_pixels(make_png(file_bytes, W, H, 8, 0, rows, W, NULL, 0), gray, H, W, "grey");
    for (i = 0; i < N; i++) { rows[2 * i] = rgb[3 * i]; rows[2 * i + 1] = (uint8_t)(i * 16); }
    expect_pixels(make_png(file_bytes, W, H, 8, 4, rows, W * 2, NULL, 0), gray, H, W, "grey and alpha");
    for (i = 0; i < N * 4; i++) rows[i] = (uint8_t)(i % 4 == 3 ? 0 : rgb[i / 4 * 3 + i % 4]);
    expect_pixels(make_png(file_bytes, W, H, 8, 6, rows, W * 4, NULL, 0), rgb, H, W, "rgba, transparent");
    for (i = 0; i < N * 3; i++) { rows[2 * i] = rgb[i]; rows[2 * i + 1] = 255; }
    expect_pixels(make_png(file_bytes, W, H, 16, 2, rows, W * 6, NULL, 0), rgb, H, W, "16 bits");
    for (i = 0; i < 12; i++) palette[i] = rgb[i];
    for (i = 0; i < N; i++) { rows[i] = (uint8_t)(i * 7 % 4); for (k = 0; k < 3; k++) rgb[3 * i + k] = palette[rows[i] * 3 + k]; }
    expect_pixels(make_png(file_bytes, W, H, 8, 3, rows, W, palette, 4), rgb, H, W, "palette");
    for (i = 0; i < N; i++) if (rows[i] == 3) memset(rgb + 3 * i, 0, 3);        /* a colour that the palette lacks */
    expect_pixels(make_png(file_bytes, W, H, 8, 3, rows, W, palette, 3), rgb, H, W, "short palette");
    for (i = 0; i < N; i++) for (k = 0; k < 3; k++) rgb[3 * i + k] = palette[rows[i] * 3 + k];
    expect_pixels(make_gif(file_bytes, W, H, palette, rows), rgb, H, W, "gif");
    expect_pixels(make_bmp(file_bytes, W, H, rgb), rgb, H, W, "bmp");
}
/* Netpbm's: values from the top left, the high byte of 16 bits first. */
static void netpbm_files_give_their_pixels(void)
{
    enum { W = 5, H = 3, N = W * H };
    uint8_t rgb[N * 3], gray[N * 3];
    int i, color, wide;
    fill_random(rgb, sizeof rgb, 9);
    for (i = 0; i < N * 3; i++) gray[i] = rgb[i / 3];
    for (color = 0; color < 2; color++) for (wide = 0; wide < 2; wide++) {
        char head[40];
        size_t n = (size_t)sprintf(head, "P%d\n# a comment\n%d %d\n%d\n", color ? 6 : 5, W, H, wide ? 65535 : 255);
        memcpy(file_bytes, head, n);
        for (i = 0; i < N * (color ? 3 : 1); i++) {
            file_bytes[n++] = rgb[i];
            if (wide) file_bytes[n++] = (uint8_t)~rgb[i];
        }
        expect_pixels(n, color ? rgb : gray, H, W, wide ? "netpbm of 16 bits" : "netpbm");
    }
}
/* Against the naive meaning of each orientation: where a pixel of the upright picture comes from. */
static void pictures_are_turned_upright(void)
{
    enum { W = 24, H = 16, AW = 3, AH = 2 };
    uint8_t block[AW * AH], rgb[W * H * 3];
    int orientation, big, x, y, k;
    for (k = 0; k < AW * AH; k++) block[k] = (uint8_t)(30 + 37 * k);
    for (orientation = 0; orientation <= 8; orientation++) for (big = 0; big < 2; big++) {
        const int turned = orientation >= 5, w = turned ? H : W, h = turned ? W : H;
        for (y = 0; y < h; y++) for (x = 0; x < w; x++) {
            int sx = x, sy = y;
            switch (orientation) {
            case 2: sx = W - 1 - x; break;                              /* mirrored */
            case 3: sx = W - 1 - x; sy = H - 1 - y; break;              /* upside down */
            case 4: sy = H - 1 - y; break;
            case 5: sx = y; sy = x; break;
            case 6: sx = y; sy = H - 1 - x; break;                      /* the stored top is the right side */
            case 7: sx = W - 1 - y; sy = H - 1 - x; break;
            case 8: sx = W - 1 - y; sy = x; break;
            }
            for (k = 0; k < 3; k++) rgb[(y * w + x) * 3 + k] = block[sy / 8 * AW + sx / 8];
        }
        expect_pixels(make_jpeg(file_bytes, W, H, block, big ? -orientation : orientation), rgb, h, w, "orientation");
    }
}
static void text_kinds_of_ppm_are_refused_in_words(void)
{
    static const char text[] = "P3\n1 1\n255\n1 2 3\n";
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    nnti_reading_init(&r, &a);
    CHECK(try_decode(&r, (const uint8_t *)text, sizeof text - 1, &m) == NNT_ERR_FORMAT);
    CHECK_TEXT(r.error.text, "of PPM and PGM only the binary kinds, P6 and P5, are read");
    nnti_reading_free(&r);
}
/* A scan whose tables are missing: each of them becomes a comment. */
static void scans_without_their_tables_are_refused(void)
{
    const uint8_t block[1] = { 90 };
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    int tables = 0;
    size_t n, i;
    nnti_reading_init(&r, &a);
    n = make_jpeg(file_bytes, 8, 8, block, 0);
    for (i = 0; i + 1 < n; i++) {
        const uint8_t was = file_bytes[i + 1];
        if (file_bytes[i] != 0xFF || (was != 0xDB && was != 0xC4)) continue;
        tables++;
        file_bytes[i + 1] = 0xFE;
        CHECK(try_decode(&r, file_bytes, n, &m) == NNT_ERR_FORMAT);
        CHECK_TEXT(r.error.text, "a scan of the JPEG uses tables that are not in it; it is damaged, convert it");
        file_bytes[i + 1] = was;
    }
    CHECK(tables == 3 && try_decode(&r, file_bytes, n, &m) == NNT_OK);
    nnti_reading_free(&r);
}
/* Decoders have room for 256 codes a table; more are refused before one sees them, as is a table longer than its segment. */
static void tables_that_announce_too_many_codes_are_refused(void)
{
    static const int wrong[3][2] = { { 3, 255 }, { 15, 200 }, { 3, 13 } };      /* which count, its value: 12 codes are there */
    const uint8_t block[1] = { 90 };
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    size_t n, table;
    int k;
    nnti_reading_init(&r, &a);
    n = make_jpeg(file_bytes, 8, 8, block, 0);
    CHECKF(try_decode(&r, file_bytes, n, &m) == NNT_OK, "%s", r.error.text);
    for (table = 0; file_bytes[table] != 0xFF || file_bytes[table + 1] != 0xC4; table++) { }
    for (k = 0; k < 3; k++) {
        uint8_t *count = file_bytes + table + 5 + wrong[k][0];
        const uint8_t was = *count;
        *count = (uint8_t)wrong[k][1];
        CHECK(try_decode(&r, file_bytes, n, &m) == NNT_ERR_FORMAT);
        CHECK_TEXT(r.error.text, "a Huffman table of the JPEG announces more codes than there are");
        *count = was;
    }
    nnti_reading_free(&r);
}
/* Every picture cut off at every byte, and small ones with every bit flipped. JPEGs and GIFs have no checksum: they may
   give pixels. */
static void check_damage(const uint8_t *good, size_t n, size_t whole_from, int checksums, const char *what)
{
    static uint8_t copy[100000];
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    size_t i;
    nnti_reading_init(&r, &a);
    memcpy(copy, good, n);
    CHECKF(try_decode(&r, copy, n, &m) == NNT_OK, "%s: %s", what, r.error.text);
    for (i = 0; i < n; i++)
        CHECKF((try_decode(&r, copy, i, &m) == NNT_OK) == (i >= whole_from), "%s cut off at %d of %d: %s", what, (int)i, (int)n, r.error.text);
    for (i = 0; i < 8 * n; i++) {
        nnt_result code;
        copy[i / 8] ^= (uint8_t)(1 << i % 8);
        code = try_decode(&r, copy, n, &m);
        CHECKF(!checksums || code, "%s with bit %d flipped", what, (int)i);
        copy[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    nnti_reading_free(&r);
}
static void damaged_pictures_are_errors(void)
{
    static const uint8_t palette[12] = { 0, 0, 0, 255, 0, 0, 0, 255, 0, 9, 9, 9 };
    uint8_t block[6] = { 1, 200, 37, 90, 255, 128 }, rgb[5 * 4 * 3], index[20];
    size_t n;
    int i;
    fill_random(rgb, sizeof rgb, 2);
    for (i = 0; i < 20; i++) index[i] = rgb[i] & 3;
    n = make_png(file_bytes, 5, 4, 8, 2, rgb, 15, NULL, 0);
    check_damage(file_bytes, n, n, 1, "png");
    n = make_jpeg(file_bytes, 24, 16, block, 6);
    check_damage(file_bytes, n, n, 0, "jpeg");
    n = make_bmp(file_bytes, 5, 4, rgb);
    check_damage(file_bytes, n, n, 0, "bmp");
    n = make_gif(file_bytes, 5, 4, palette, index);
    check_damage(file_bytes, n, n - 1, 0, "gif");           /* the first frame ends before the last byte */
    memcpy(file_bytes, "P5 5 12 255\n", 12);
    memcpy(file_bytes + 12, rgb, 60);
    check_damage(file_bytes, 72, 72, 0, "pgm");
}
static void check_refused(const void *bytes, size_t n, nnt_result want, const char *text)
{
    heap h;
    nnt_allocator a = heap_of(&h, 100);
    nnti_reading r;
    nnti_image m;
    nnti_reading_init(&r, &a);
    CHECK(try_decode(&r, (const uint8_t *)bytes, n, &m) == want);
    CHECK_TEXT(r.error.text, text);
    CHECK(h.peak < 100000);                 /* nothing follows from a claim */
    nnti_reading_free(&r);
    CHECK(h.live == 0);
}
/* Another size in a PNG's header, which begins behind the signature. */
static void claim_size(uint8_t *png, uint32_t width, uint32_t height)
{
    put_be(put_be(png + 16, width, 4), height, 4);
    put_be(png + 29, crc32_of(png + 12, 17), 4);
}
static void claims_are_checked_before_they_are_believed(void)
{
    uint8_t rgb[12] = { 0 }, block[1] = { 7 };
    size_t n;
    check_refused("", 0, NNT_ERR_FORMAT, "the file is empty");
    check_refused("<!DOCTYPE html><html>", 21, NNT_ERR_FORMAT, "this is a web page; fetch the picture itself");
    check_refused("no picture", 10, NNT_ERR_FORMAT, "this is no JPEG, PNG, BMP, GIF, PGM or PPM");
    n = make_png(file_bytes, 2, 2, 8, 2, rgb, 6, NULL, 0);
    claim_size(file_bytes, 2147483647, 1);
    check_refused(file_bytes, n, NNT_ERR_FORMAT, "the PNG claims 2147483647 x 1 pixels, more than its 25 bytes can hold; it is cut off or damaged");
    claim_size(file_bytes, 100000, 100000);
    check_refused(file_bytes, n, NNT_ERR_FORMAT, "the PNG claims 100000 x 100000 pixels, more than its 25 bytes can hold; it is cut off or damaged");
    n = make_jpeg(file_bytes, 8, 8, block, 0);
    put_be(put_be(file_bytes + 76, 65500, 2), 65500, 2);
    check_refused(file_bytes, n, NNT_ERR_FORMAT, "the JPEG claims 65500 x 65500 pixels, more than its 153 bytes can hold; it is cut off or damaged");
    put_be(put_be(file_bytes + 76, 0, 2), 8, 2);
    check_refused(file_bytes, n, NNT_ERR_UNSUPPORTED, "the JPEG's header says 8 x 0 pixels; convert it");
    file_bytes[75] = 12;
    check_refused(file_bytes, n, NNT_ERR_UNSUPPORTED, "a JPEG of 12 bits; only 8 can be read");
    check_refused("\xFF\xD8\xFF\xD9", 4, NNT_ERR_FORMAT, "the JPEG has no scan: there is no picture in it");
    check_refused("\xFF\xD8\xFF\xDA\0\x02\xFF\xD9", 8, NNT_ERR_FORMAT, "the JPEG's scan comes before its frame header");
    check_refused("P5 3 3 15\n123456789", 19, NNT_ERR_UNSUPPORTED, "a PNM with values up to 15; only 255 and 65535 can be read");
    check_refused("P6 99999999999 3 255\n", 21, NNT_ERR_FORMAT, "the PNM's header lacks a width, height or largest value that can be read; it is damaged");
    check_refused("P6 0 3 255\n", 11, NNT_ERR_FORMAT, "the PNM's header says 0 x 3 pixels up to 255; it is damaged");
    check_refused("P6 40000 40000 255\n123", 22, NNT_ERR_FORMAT, "the PNM is cut off or damaged; fetch the file again");
    n = make_bmp(file_bytes, 2, 2, rgb);
    put_le(file_bytes + 22, 0x80000000u, 4);
    check_refused(file_bytes, n, NNT_ERR_FORMAT, "the BMP is cut off or damaged; fetch the file again");
    put_le(file_bytes + 30, 1, 4);
    check_refused(file_bytes, n, NNT_ERR_UNSUPPORTED, "a compressed BMP; only plain ones can be read");
}
/* A host that flips its textures does not flip ours, on our threads or on its own; and its switch is as it was. */
static void the_hosts_flip_does_not_matter(void)
{
    uint8_t rgb[4 * 6 * 3];
    float want[4 * 6 * 3];
    int workers, i, w, h, c;
    nnt_folder_desc desc;
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    size_t n;
    fill_random(rgb, sizeof rgb, 6);
    make_folder("flip");
    make_folder("flip/a");
    n = make_png(file_bytes, 4, 6, 8, 2, rgb, 12, NULL, 0);
    write_file("flip/a/x.png", file_bytes, n);
    for (i = 0; i < 72; i++) want[i % 3 * 24 + i / 3] = (float)((double)rgb[i] / 255.0);
    stbi_set_flip_vertically_on_load(1);
    memset(&desc, 0, sizeof desc);
    d = nnt_dataset_folder("flip", desc, NULL);
    for (workers = -1; workers < 9; workers++) {
        l = nnt_loader_new(d, loader_desc(1, workers), NULL);
        CHECKF(nnt_loader_next(l, &b) == NNT_OK && b.count == 1 && memcmp(b.x, want, sizeof want) == 0, "workers=%d", workers);
        nnt_loader_free(l);
    }
    {
        stbi_uc *host = stbi_load_from_memory(file_bytes, (int)n, &w, &h, &c, 3);
        CHECK(host && memcmp(host, rgb + 60, 12) == 0);
        stbi_image_free(host);
    }
    stbi_set_flip_vertically_on_load(0);
    nnt_dataset_free(d);
    remove_all("flip");
}

/* ---- folders ---- */

static void write_png(const char *name, uint8_t value, int width, int height)
{
    static uint8_t rows[64 * 64 * 3];
    memset(rows, value, sizeof rows);
    write_file(name, file_bytes, make_png(file_bytes, width, height, 8, 2, rows, width * 3, NULL, 0));
}
static nnt_dataset *open_folder(const char *path)
{
    nnt_folder_desc desc;
    memset(&desc, 0, sizeof desc);
    return nnt_dataset_folder(path, desc, NULL);
}
static void folders_become_classes(void)
{
    static const char *const names[5] = { "1", "10", "2", "B", "a" };
    static const char *const files[7] = { "f/1/A.PNG", "f/1/b.jPeG", "f/1/sub/deep/c.png", "f/10/x.png", "f/2/x.png", "f/B/x.png", "f/a/x.png" };
    static const int label[7] = { 0, 0, 0, 1, 2, 3, 4 };
    char name[600];
    nnt_dataset *d, *e;
    nnt_loader *l;
    nnt_batch b;
    int i;
    make_folder("f");
    for (i = 0; i < 5; i++) { sprintf(name, "f/%s", names[i]); make_folder(name); }
    make_folder("f/1/sub");
    make_folder("f/1/sub/deep");
    make_folder("f/.hidden");
    make_folder("f/1/.hidden");
    for (i = 0; i < 7; i++) write_png(files[i], (uint8_t)(10 * i), 3, 2);
    write_png("f/.hidden/x.png", 99, 3, 2);
    write_png("f/1/.hidden/x.png", 99, 3, 2);
    write_png("f/1/.x.png", 99, 3, 2);
    write_png("f/x.png", 99, 3, 2);
    write_png("f/1/png", 99, 3, 2);
    write_png("f/1/x.pngx", 99, 3, 2);
    write_png("f/1/x.", 99, 3, 2);
    CHECK(symlink("nowhere.png", "f/1/dangling.png") == 0);
    CHECK(symlink("..", "f/1/sub/back") == 0 && symlink("../..", "f/1/sub/root") == 0);
    d = open_folder("f/");
    CHECK_TEXT(nnt_dataset_error(d), "");
    CHECK(nnt_dataset_count(d) == 7 && nnt_dataset_classes(d) == 5);
    for (i = 0; i < 5; i++) CHECK_TEXT(nnt_dataset_class_name(d, i) ? nnt_dataset_class_name(d, i) : "", names[i]);
    CHECK(!nnt_dataset_class_name(d, 5) && !nnt_dataset_class_name(d, -1));
    for (i = 0; i < 7; i++) {
        CHECK(nnt_dataset_sample_name(d, i, name, sizeof name) == strlen(files[i]));
        CHECK_TEXT(name, files[i]);
        CHECK(nnt_dataset_label(d, i) == label[i]);
    }
    /* .hidden twice, .x.png, x.png beside the classes, png, x.pngx, x., dangling.png, and two links back */
    CHECKF(nnt_dataset_passed_over(d) == 10, "%d passed over", (int)nnt_dataset_passed_over(d));
    l = nnt_loader_new(d, loader_desc(7, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 7);
    for (i = 0; i < 7 && b.count; i++) CHECK((int)(b.x[i * 18] * 255 + 0.5f) == 10 * i && b.labels[i] == label[i]);
    nnt_loader_free(l);
    e = nnt_dataset_split(d, 0, 1, 3, NULL);        /* names go through datasets made of it */
    for (i = 0; i < 7; i++) {
        nnt_dataset_sample_name(e, i, name, sizeof name);
        CHECK_TEXT(name, files[e->indices[i]]);
    }
    CHECK_TEXT(nnt_dataset_class_name(e, 4), "a");
    CHECK(nnt_dataset_passed_over(e) == 10);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
    remove_all("f");
}
static void check_folder_error(const char *path, nnt_result code, const char *text)
{
    nnt_dataset *d = open_folder(path);
    CHECKF(nnt_dataset_error_code(d) == code, "%s: %d", path ? path : "NULL", (int)nnt_dataset_error_code(d));
    CHECK_TEXT(nnt_dataset_error(d), text);
    nnt_dataset_free(d);
}
static void folder_errors_say_what_is_wrong(void)
{
    nnt_folder_desc desc;
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    char why[200];
    nnt_preview_desc preview;
    memset(&desc, 0, sizeof desc);
    memset(&preview, 0, sizeof preview);
    make_folder("g");
    check_folder_error("nothing", NNT_ERR_FILE, "dataset_folder 'nothing': there is no such folder");
    check_folder_error("g", NNT_ERR_DATA, "dataset_folder 'g': there is no class folder in it; pictures have to lie in a folder for each class");
    write_png("g/x.png", 9, 2, 2);
    check_folder_error("g/x.png", NNT_ERR_FILE, "dataset_folder 'g/x.png': this is a file, not a folder");
    check_folder_error(NULL, NNT_ERR_ARGUMENT, "dataset_folder: path NULL, channels 3, max_pixels 100000000; a path, 1 or 3 channels and 1 to "
                       "2147483647 pixels are possible");
    make_folder("g/a");
    make_folder("g/emu");
    write_png("g/a/x.png", 9, 2, 2);
    check_folder_error("g", NNT_ERR_DATA, "dataset_folder: class folder 'emu' has no picture (jpg jpeg png bmp gif pgm ppm); fill or remove it");
    desc.channels = 2;
    d = nnt_dataset_folder("g", desc, NULL);
    CHECK(nnt_dataset_error_code(d) == NNT_ERR_ARGUMENT);
    nnt_dataset_free(d);
    desc.channels = 0;
    desc.extensions = "tif webp";
    write_png("g/emu/x.WEBP", 9, 2, 2);
    d = nnt_dataset_folder("g", desc, NULL);
    CHECK_TEXT(nnt_dataset_error(d), "dataset_folder: class folder 'a' has no picture (tif webp); fill or remove it");
    nnt_dataset_free(d);
    write_png("g/emu/y.png", 9, 3, 2);
    d = open_folder("g");
    l = nnt_loader_new(d, loader_desc(2, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_SHAPE);
    CHECK_TEXT(nnt_loader_error(l), "loader: sample 1: 'g/emu/y.png' is 3 x 2 (width, height), others are 2 x 2; bring them to one size with "
               "nnt_dataset_transform");
    nnt_loader_free(l);
    nnt_dataset_free(d);
    write_file("g/a/x.png", (const uint8_t *)"no", 2);
    write_file("g/emu/y.png", (const uint8_t *)"no", 2);
    d = open_folder("g");
    CHECK_TEXT(nnt_dataset_error(d), "");
    l = nnt_loader_new(d, loader_desc(2, 0), NULL);
    CHECK_TEXT(nnt_loader_error(l), "loader: the samples have no size known beforehand; bring them to one with nnt_dataset_transform. The first one: "
               "'g/a/x.png': this is no JPEG, PNG, BMP, GIF, PGM or PPM");
    CHECK(nnt_augment_preview(d, "sheet.png", preview, why, sizeof why) == NNT_ERR_SHAPE);
    CHECK_TEXT(why, "augment_preview: the samples have no size known beforehand; use nnt_dataset_transform");
    CHECK(nnt_augment_preview(NULL, "sheet.png", preview, NULL, 0) == NNT_ERR_MEMORY);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    remove_all("g");
}
static void grey_folders_and_pixel_limits(void)
{
    uint8_t rgb[3 * 3] = { 255, 0, 0, 0, 255, 0, 0, 0, 255 };
    nnt_folder_desc desc;
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    memset(&desc, 0, sizeof desc);
    make_folder("h");
    make_folder("h/a");
    write_file("h/a/x.png", file_bytes, make_png(file_bytes, 3, 1, 8, 2, rgb, 9, NULL, 0));
    desc.channels = 1;
    d = nnt_dataset_folder("h", desc, NULL);
    l = nnt_loader_new(d, loader_desc(1, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 1);
    if (b.x) CHECK((int)(b.x[0] * 255 + 0.5f) == 76 && (int)(b.x[1] * 255 + 0.5f) == 150 && (int)(b.x[2] * 255 + 0.5f) == 29);     /* Pillow's */
    nnt_loader_free(l);
    nnt_dataset_free(d);
    desc.max_pixels = 2;
    d = nnt_dataset_folder("h", desc, NULL);
    l = nnt_loader_new(d, loader_desc(1, 0), NULL);
    CHECK_TEXT(nnt_loader_error(l), "loader: the samples have no size known beforehand; bring them to one with nnt_dataset_transform. The first one: "
               "'h/a/x.png': its header says 3 x 1 pixels; max_pixels is 2");
    nnt_loader_free(l);
    nnt_dataset_free(d);
    remove_all("h");
}

/* Twenty pictures of two classes, two of them bad. */
static void make_bad_folder(void)
{
    char name[40];
    int i;
    make_folder("bad");
    make_folder("bad/cat");
    make_folder("bad/dog");
    for (i = 0; i < 20; i++) {
        sprintf(name, "bad/%s/%02d.png", i < 10 ? "cat" : "dog", i);
        if (i == 7 || i == 13) write_file(name, file_bytes, 40);
        else write_png(name, (uint8_t)(10 * i), 4, 4);
    }
}
static void bad_pictures_are_left_out_when_asked_for(void)
{
    nnt_dataset *d;
    int workers, batch, epoch, i;
    make_bad_folder();
    d = open_folder("bad");
    for (workers = -1; workers < 6; workers++) for (batch = 1; batch < 9; batch += 3) {
        nnt_loader_desc desc = loader_desc(batch, workers);
        nnt_loader *l;
        nnt_batch b;
        desc.on_bad = NNT_ON_BAD_SKIP;
        desc.shuffle = batch > 1;
        l = nnt_loader_new(d, desc, NULL);
        CHECK(nnt_loader_skipped(l) == 0 && !nnt_loader_skipped_why(l, 0));
        for (epoch = 0; epoch < 3; epoch++) {
            int seen[20], count = 0;
            memset(seen, 0, sizeof seen);
            while (nnt_loader_next(l, &b) == NNT_OK && b.count) for (i = 0; i < b.count; i++) {
                const int64_t index = b.indices[i];
                seen[index]++;
                count++;
                CHECK((int)(b.x[i * 48] * 255 + 0.5f) == 10 * index && b.labels[i] == index / 10);
            }
            CHECK(nnt_loader_epoch(l) == epoch + 1 && count == 18);
            for (i = 0; i < 20; i++) CHECK(seen[i] == (i != 7 && i != 13));
            CHECK(nnt_loader_skipped(l) == 2);
        }
        i = nnt_loader_skipped_why(l, 0) && strstr(nnt_loader_skipped_why(l, 0), "sample 13") != NULL;
        CHECK_TEXT(nnt_loader_skipped_why(l, i), "sample 7: 'bad/cat/07.png': the PNG is cut off or damaged; fetch the file again");
        CHECK_TEXT(nnt_loader_skipped_why(l, !i), "sample 13: 'bad/dog/13.png': the PNG is cut off or damaged; fetch the file again");
        CHECK(!nnt_loader_skipped_why(l, 2) && !nnt_loader_skipped_why(l, -1));
        nnt_loader_free(l);
    }
    for (workers = -1; workers < 6; workers++) {    /* and else the first one ends the epoch */
        nnt_loader *l = nnt_loader_new(d, loader_desc(4, workers), NULL);
        nnt_batch b;
        CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 4 && nnt_loader_next(l, &b) == NNT_ERR_FORMAT && b.count == 0);
        CHECK_TEXT(nnt_loader_error(l), "loader: sample 7: 'bad/cat/07.png': the PNG is cut off or damaged; fetch the file again");
        nnt_loader_free(l);
    }
    nnt_dataset_free(d);
    remove_all("bad");
}
static int next_descriptor(void)            /* the lowest number that is not in use */
{
    const int d = dup(0);
    if (d >= 0) close(d);
    return d;
}
/* Stopped between good and bad files, some of them just being read. */
static void stopped_loaders_of_a_folder_close_all_files(void)
{
    const int before = next_descriptor();
    int i;
    nnt_dataset *d;
    make_bad_folder();
    d = open_folder("bad");
    for (i = 0; i < 300; i++) {
        nnt_loader *l = nnt_loader_new(d, loader_desc(4, i % 4), NULL);
        nnt_batch b;
        int k;
        for (k = 0; k < i % 3; k++) CHECK((nnt_loader_next(l, &b) == NNT_OK) == (k == 0));
        nnt_loader_free(l);
    }
    CHECKF(next_descriptor() == before, "descriptor %d would be the next, %d before", next_descriptor(), before);
    nnt_dataset_free(d);
    remove_all("bad");
}
static void an_epoch_of_bad_pictures_is_an_error(void)
{
    nnt_loader_desc desc = loader_desc(2, 0);
    static const int64_t bad[3] = { 7, 13, 7 };
    nnt_dataset *d, *e;
    nnt_loader *l;
    nnt_batch b;
    make_bad_folder();
    d = open_folder("bad");
    e = nnt_dataset_subset(d, bad, 3, NULL);
    desc.on_bad = NNT_ON_BAD_SKIP;
    l = nnt_loader_new(e, desc, NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_DATA && b.count == 0 && nnt_loader_skipped(l) == 3);
    CHECK_TEXT(nnt_loader_error(l), "loader: not one sample of epoch 0 could be read; sample 0: 'bad/cat/07.png': the PNG is cut off or damaged; fetch "
               "the file again");
    nnt_loader_free(l);
    desc.on_bad = 7;
    l = nnt_loader_new(d, desc, NULL);
    CHECK_TEXT(nnt_loader_error(l), "loader: on_bad is 7; NNT_ON_BAD_ERROR or NNT_ON_BAD_SKIP is possible");
    nnt_loader_free(l);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
    remove_all("bad");
}

/* A decoder that counts: pictures of 6 x 6 whose value is the file's only byte. */
typedef struct own_decoder { int calls, mode; } own_decoder;
static nnt_result own_decode(void *user, nnt_picture *p, char *why, size_t cap)
{
    own_decoder *o = (own_decoder *)user;
    uint8_t *to;
    nnti_atomic_add(&o->calls, 1);
    CHECK(p->bytes == 1 && p->width == 0 && p->height == 0);
    if (o->mode == 1) return NNT_OK;
    if (o->mode == 2) return NNT_ERR_UNSUPPORTED;
    if (o->mode == 3) { nnti_format(why, cap, "a picture of %d", p->data[0]); return NNT_ERR_DATA; }
    if (o->mode == 4) return nnt_picture_pixels(p, 1 << 20, 1 << 20) ? NNT_OK : NNT_ERR_MEMORY;
    to = nnt_picture_pixels(p, 6, 6);
    if (!to) return NNT_ERR_MEMORY;
    memset(to, p->data[0], 6 * 6 * 3);
    return NNT_OK;
}
static void make_own_folder(void)
{
    char name[40];
    int i;
    make_folder("own");
    make_folder("own/a");
    for (i = 0; i < 30; i++) {
        const uint8_t value = (uint8_t)(i + 100);
        sprintf(name, "own/a/%02d.raw", i);
        write_file(name, &value, 1);
    }
}
static nnt_dataset *open_own(own_decoder *o)
{
    nnt_folder_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.extensions = "raw";
    desc.decode_fn = own_decode;
    desc.user = o;
    return nnt_dataset_folder("own", desc, NULL);
}
static void a_decoder_of_ones_own_replaces_stb_image(void)
{
    static const char *const why[5] = { "", "decode_fn took no pixels from nnt_picture_pixels", "NNT_ERR_UNSUPPORTED", "a picture of 100", "NNT_ERR_MEMORY" };
    own_decoder o;
    char text[300];
    make_own_folder();
    for (o.mode = 0; o.mode < 5; o.mode++) {
        nnt_dataset *d = open_own(&o);
        nnt_loader *l = nnt_loader_new(d, loader_desc(30, 2), NULL);
        nnt_batch b;
        int i;
        if (o.mode == 0) {
            CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 30);
            for (i = 0; i < 30 && b.count; i++) CHECK((int)(b.x[i * 108] * 255 + 0.5f) == 100 + i);
        } else {
            sprintf(text, "loader: the samples have no size known beforehand; bring them to one with nnt_dataset_transform. The first one: "
                    "'own/a/00.raw': %s", why[o.mode]);
            CHECK_TEXT(nnt_loader_error(l), text);
        }
        nnt_loader_free(l);
        nnt_dataset_free(d);
    }
    remove_all("own");
}
/* Decoded once, while the budget lasts; the batches don't tell. */
static void caches_decode_once_within_their_budget(void)
{
    static const size_t budgets[4] = { 0, 1, 1700, 1 << 20 };
    static float want[30 * 75];
    own_decoder o;
    int k, epoch, i;
    make_own_folder();
    o.mode = 0;
    for (k = 0; k < 4; k++) {
        heap h;
        nnt_allocator a = heap_of(&h, 10000);
        nnt_dataset *d = open_own(&o), *e;
        nnt_transform t[2] = { nnt_resize(7, 5), nnt_random_crop(5, 5, 2) };
        nnt_transforms_desc desc = transforms(t, 2);
        nnt_loader *l;
        nnt_batch b;
        size_t fixed;
        int first;
        desc.cache_bytes = budgets[k];
        e = nnt_dataset_transform(d, desc, &a);
        fixed = h.live;
        l = nnt_loader_new(e, loader_desc(30, NNT_NO_WORKERS), NULL);
        for (epoch = 0, first = 0; epoch < 3; epoch++) {
            o.calls = 0;
            CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 30);
            if (epoch == 0) first = o.calls;
            if (k == 0 && epoch == 2 && b.x) memcpy(want, b.x, sizeof want);
            CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 0);
        }
        CHECK(first == 30);
        CHECKF(k == 3 ? o.calls == 0 : k < 2 ? o.calls == 30 : o.calls > 10 && o.calls < 25, "budget %d: %d decoded", k, o.calls);
        CHECKF(h.live - fixed <= budgets[k], "%d bytes", (int)(h.live - fixed));
        CHECK(nnt_loader_rewind(l, 2) == NNT_OK && nnt_loader_next(l, &b) == NNT_OK && memcmp(b.x, want, sizeof want) == 0);
        nnt_loader_free(l);
        nnt_dataset_free(e);
        CHECK(h.live == 0);
        for (i = 1; i < 6; i += 2) {        /* several threads fill it, several loaders share it */
            nnt_loader *m[2];
            e = nnt_dataset_transform(d, desc, NULL);
            m[0] = nnt_loader_new(e, loader_desc(3, i), NULL);
            m[1] = nnt_loader_new(e, loader_desc(5, i), NULL);
            for (epoch = 0; epoch < 6; epoch++) {
                int64_t n = 0;
                while (nnt_loader_next(m[epoch % 2], &b) == NNT_OK && b.count) n += b.count;
                CHECK(n == 30);
            }
            nnt_loader_free(m[0]);
            nnt_loader_free(m[1]);
            nnt_dataset_free(e);
        }
        nnt_dataset_free(d);
    }
    remove_all("own");
}
/* A hundred thousand files: open in under a second of processor time when the folder is in the system's memory (what others run
   on the machine meanwhile is not the library's), names and 100 bytes a file. Sanitizers slow it down several times. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SECONDS = 10 };
#else
enum { SECONDS = 1 };
#endif
static double processor_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }
static void a_hundred_thousand_files_open_at_once(void)
{
    enum { FILES = 100000 };
    char name[40];
    heap h;
    nnt_allocator a = heap_of(&h, 10000);
    nnt_folder_desc desc;
    nnt_dataset *d;
    double start, taken = SECONDS;
    int i, k;
    memset(&desc, 0, sizeof desc);
    make_folder("many");
    make_folder("many/a");
    make_folder("many/b");
    for (i = 0; i < FILES; i++) {
        int f;
        sprintf(name, "many/%s/%05d.jpg", i & 1 ? "b" : "a", i);
        f = creat(name, 0600);
        if (f < 0) { remove_all("many"); SKIP("no room for 100000 files here"); }
        close(f);
    }
    for (k = 0; k < 3; k++) {
        start = processor_seconds();
        d = nnt_dataset_folder("many", desc, &a);
        start = processor_seconds() - start;
        taken = taken < start ? taken : start;
        CHECK(nnt_dataset_count(d) == FILES && nnt_dataset_label(d, FILES / 2) == 1 && nnt_dataset_label(d, FILES / 2 - 1) == 0);
        CHECKF(h.live < FILES * (9 + 1 + 100), "%d bytes a file", (int)(h.live / FILES));
        nnt_dataset_sample_name(d, FILES - 1, name, sizeof name);
        CHECK_TEXT(name, "many/b/99999.jpg");
        nnt_dataset_free(d);
        CHECK(h.live == 0);
    }
    CHECKF(taken < SECONDS, "%g s", taken);
    remove_all("many");
}
static void folders_survive_each_allocation_failing(void)
{
    int n;
    make_bad_folder();
    for (n = 0; n < 300; n++) {
        heap h;
        nnt_allocator a = heap_of(&h, n);
        nnt_folder_desc desc;
        nnt_loader_desc order = loader_desc(4, NNT_NO_WORKERS);
        nnt_dataset *d;
        nnt_loader *l;
        nnt_batch b;
        nnt_result r;
        memset(&desc, 0, sizeof desc);
        order.on_bad = NNT_ON_BAD_SKIP;
        d = nnt_dataset_folder("bad", desc, &a);
        l = nnt_loader_new(d, order, &a);
        do r = nnt_loader_next(l, &b); while (!r && b.count);
        CHECKF(r == NNT_OK || r == NNT_ERR_MEMORY || r == NNT_ERR_SHAPE, "allocation %d: %s", n, nnt_loader_error(l));     /* SHAPE: none could be looked at */
        nnt_loader_free(l);
        nnt_dataset_free(d);
        CHECKF(h.live == 0, "allocation %d", n);
        if (r == NNT_OK && h.left > 0) break;
    }
    CHECKF(n > 15 && n < 300, "%d", n);
    remove_all("bad");
}
static void previews_are_pngs_of_what_comes_out(void)
{
    static const float mean[3] = { 0.4f, 0.5f, 0.6f }, deviation[3] = { 0.2f, 0.25f, 0.3f };
    nnt_transform t[2] = { nnt_random_crop(6, 8, 1), nnt_normalize(mean, deviation, 3) };
    static uint8_t b[4 * 3 * 6 * 8];
    nnt_preview_desc p;
    nnt_dataset *d, *e;
    nnti_reading r;
    nnt_allocator a = nnti_allocator(NULL);
    static float x[4 * 144];
    char why[200];
    int i, row, column, c, y;
    fill_random(b, sizeof b, 5);
    d = bytes_dataset(b, 4, 3, 6, 8);
    e = nnt_dataset_transform(d, transforms(t, 2), NULL);
    memset(&p, 0, sizeof p);
    p.rows = 4;
    p.columns = 3;
    p.seed = 5;
    CHECK(nnt_augment_preview(e, "sheet.png", p, why, sizeof why) == NNT_OK);
    CHECK_TEXT(why, "");
    {
        int w = 0, h = 0, n = 0;
        stbi_uc *sheet = stbi_load("sheet.png", &w, &h, &n, 3);
        CHECK(sheet && w == 2 + 3 * 10 && h == 2 + 4 * 8);
        for (column = 0; column < 3; column++) {
            first_batch(e, loader_desc(4, NNT_NO_WORKERS), column, x, 4 * 144);     /* loader_desc's seed is 5 too */
            for (row = 0; sheet && row < 4; row++) for (c = 0; c < 3; c++) for (y = 0; y < 6; y++) for (i = 0; i < 8; i++) {
                const double v = ((double)x[row * 144 + c * 48 + y * 8 + i] * (double)deviation[c] + (double)mean[c]) * 255;
                CHECK(fabs(v - sheet[((2 + row * 8 + y) * w + 2 + column * 10 + i) * 3 + c]) < 0.501);
            }
        }
        stbi_image_free(sheet);
    }
    CHECK(nnt_augment_preview(e, "no/such/folder.png", p, why, sizeof why) == NNT_ERR_FILE);
    CHECK_TEXT(why, "augment_preview: 'no/such/folder.png' can't be created");
    CHECK(nnt_augment_preview(e, NULL, p, why, sizeof why) == NNT_ERR_ARGUMENT);
    p.rows = 100000;
    CHECK(nnt_augment_preview(e, "sheet.png", p, NULL, 0) == NNT_ERR_ARGUMENT);
    nnti_reading_init(&r, &a);
    nnti_reading_free(&r);
    remove("sheet.png");
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
#else
static void without_stb_image_pictures_are_refused_in_words(void)
{
    uint8_t rgb[12] = { 0 }, file[200];
    nnt_allocator a = nnti_allocator(NULL);
    nnti_reading r;
    nnti_image m;
    nnti_reading_init(&r, &a);
    CHECK(try_decode(&r, file, make_png(file, 2, 2, 8, 2, rgb, 6, NULL, 0), &m) == NNT_ERR_UNSUPPORTED);
    CHECK_TEXT(r.error.text, "decoding needs stb_image or a decode_fn; include stb_image.h before nntrain.h's implementation");
    nnti_reading_free(&r);
}
#endif

/* ---- what a decoder may leave out ---- */

/* Decodes nothing: pixels are a function of their place, at 1/reduced of the size when that is asked for and allowed. What
   is not asked for is poisoned, unless everything is to be filled. */
typedef struct painter { int fill_all, reduced, left_out; } painter;
static int reduced_size(int size, int by) { return (size + by - 1) / by; }
static nnt_result paint(void *user, nnt_picture *p, char *why, size_t cap)
{
    painter *o = (painter *)user;
    int by = o->reduced, width, height, x, y, k;
    uint8_t *to;
    (void)why; (void)cap;
    while (by > 1 && (!p->least_width || reduced_size(p->width, by) < p->least_width || reduced_size(p->height, by) < p->least_height)) by--;
    width = reduced_size(p->width, by);
    height = reduced_size(p->height, by);
    to = nnt_picture_pixels(p, width, height);
    CHECK(to && p->part_width > 0 && p->part_height > 0 && p->part_x >= 0 && p->part_y >= 0
          && p->part_x + p->part_width <= p->width && p->part_y + p->part_height <= p->height);
    if (!to) return NNT_ERR_MEMORY;
    for (y = 0; y < height; y++) for (x = 0; x < width; x++) {
        /* a pixel of the reduced picture is asked for when any of those it stands for is */
        const int wanted = (x + 1) * by > p->part_x && x * by < p->part_x + p->part_width
                        && (y + 1) * by > p->part_y && y * by < p->part_y + p->part_height;
        o->left_out += !wanted;
        for (k = 0; k < 3; k++) *to++ = wanted || o->fill_all ? (uint8_t)(7 * x + 11 * y + 50 * k + x * y) : 0xA5;
    }
    return NNT_OK;
}
static void read_painted(painter *o, const nnt_transform *list, int count, size_t cache, float *x, int64_t values)
{
    nnt_folder_desc desc;
    nnt_transforms_desc how;
    nnt_dataset *d, *e;
    memset(&desc, 0, sizeof desc);
    memset(&how, 0, sizeof how);
    desc.decode_fn = paint;
    desc.user = o;
    how.list = list;
    how.count = count;
    how.cache_bytes = cache;
    d = nnt_dataset_folder("painted", desc, NULL);
    e = nnt_dataset_transform(d, how, NULL);
    first_batch(e, loader_desc(9, 0), 3, x, values);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
/* Nine pictures of a size, one in each orientation. */
static void make_painted_folder(int width, int height)
{
    static uint8_t block[247 * 21];      /* a value for each 8 x 8 pixels of the largest picture */
    char name[40];
    int k;
    memset(block, 100, sizeof block);
    for (k = 0; k < 9; k++) {
        sprintf(name, "painted/a/%d.jpg", k);
        write_file(name, file_bytes, make_jpeg(file_bytes, width, height, block, k));
    }
}
static void what_a_decoder_may_leave_out_changes_no_bit(void)
{
    enum { SIDE = 20, VALUES = 9 * 3 * SIDE * SIDE };
    enum { SIZES = 8 };
    static const int sizes[SIZES][2] = {
        { 64, 96 }, { 97, 45 }, { 31, 120 }, { 22, 23 }, { 130, 131 }, { 90, 59 }, { 58, 59 }, { 88, 117 }
    };
    static float want[VALUES], got[VALUES];
    const nnt_transform lists[6][2] = {
        { nnt_resize_shorter(29), nnt_center_crop(SIDE, SIDE) }, { nnt_resize(24, 33), nnt_random_crop(SIDE, SIDE, 0) },
        { nnt_resize_shorter(SIDE), nnt_random_crop(SIDE, SIDE, 4) }, { nnt_random_resized_crop(SIDE, SIDE), nnt_random_flip(0.5f) },
        { nnt_center_crop(SIDE, SIDE), nnt_random_flip(0.5f) }, { nnt_random_crop(SIDE, SIDE, 3), nnt_random_flip(0.5f) }
    };
    int size, list, reduced, cache, left_out[6] = { 0, 0, 0, 0, 0, 0 };
    make_folder("painted");
    make_folder("painted/a");
    for (size = 0; size < SIZES; size++) {
        make_painted_folder(sizes[size][0], sizes[size][1]);
        for (list = 0; list < 6; list++) for (reduced = 1; reduced < 5; reduced++) for (cache = 0; cache < 2; cache++) {
            painter all = { 1, 1, 0 }, some = { 0, 1, 0 };
            all.reduced = some.reduced = reduced;
            read_painted(&all, lists[list], 2, 0, want, VALUES);
            read_painted(&some, lists[list], 2, cache ? 1 << 20 : 0, got, VALUES);
            CHECKF(memcmp(want, got, sizeof want) == 0, "size %d, list %d, by %d, cache %d", size, list, reduced, cache);
            left_out[list] += some.left_out;
        }
    }
    for (list = 0; list < 6; list++) CHECKF(left_out[list] > 5000, "list %d: %d left out", list, left_out[list]);
    remove_all("painted");
}
/* A strip many times as long as the shorter side, from which the longer one follows: rounding that by one moves it far. */
static void what_a_decoder_may_leave_out_of_a_panorama_changes_no_bit(void)
{
    enum { HEIGHT = 20, WIDTH = 120, VALUES = 9 * 3 * HEIGHT * WIDTH };
    static const int sizes[2][2] = { { 1975, 163 }, { 163, 1975 } };
    static float want[VALUES], got[VALUES];
    int size, reduced, left_out = 0;
    make_folder("painted");
    make_folder("painted/a");
    for (size = 0; size < 2; size++) {
        make_painted_folder(sizes[size][0], sizes[size][1]);
        for (reduced = 1; reduced < 9; reduced++) {
            const nnt_transform list[2] = {
                nnt_resize_shorter(HEIGHT), size ? nnt_random_crop(WIDTH, HEIGHT, 0) : nnt_random_crop(HEIGHT, WIDTH, 0)
            };
            painter all = { 1, 1, 0 }, some = { 0, 1, 0 };
            all.reduced = some.reduced = reduced;
            read_painted(&all, list, 2, 0, want, VALUES);
            read_painted(&some, list, 2, 0, got, VALUES);
            CHECKF(memcmp(want, got, sizeof want) == 0, "size %d, by %d", size, reduced);
            left_out += some.left_out;
        }
    }
    CHECKF(left_out > 5000, "%d left out", left_out);
    remove_all("painted");
}

/* ---- CIFAR ---- */

static void cifar_reads_ten_and_hundred(void)
{
    static uint8_t bytes[5 * 3074];
    static float x[3072];
    static const char *const files[2] = { "one.bin", "two.bin" };
    int kind, i;
    for (kind = 0; kind < 3; kind++) {
        const int labels = kind ? 2 : 1, record = 3072 + labels;
        nnt_dataset *d;
        fill_random(bytes, (size_t)(5 * record), 3);
        for (i = 0; i < 5; i++) {
            bytes[i * record] = (uint8_t)(i + 4);                      /* CIFAR-100: coarse */
            if (kind) bytes[i * record + 1] = (uint8_t)(99 - i);
        }
        write_file("one.bin", bytes, (size_t)(2 * record));
        write_file("two.bin", bytes + 2 * record, (size_t)(3 * record));
        d = nnt_dataset_cifar(files, 2, kind, NULL);
        CHECK_TEXT(nnt_dataset_error(d), "");
        CHECK(nnt_dataset_count(d) == 5 && nnt_dataset_classes(d) == (kind == NNT_CIFAR10 ? 10 : kind == NNT_CIFAR100_FINE ? 100 : 20));
        for (i = 0; i < 5; i++) CHECK(nnt_dataset_label(d, i) == (kind == NNT_CIFAR100_FINE ? 99 - i : i + 4));
        CHECK(kind ? !nnt_dataset_class_name(d, 3) : strcmp(nnt_dataset_class_name(d, 3), "cat") == 0);
        first_batch(d, loader_desc(1, 0), 0, x, 3072);
        for (i = 0; i < 3072; i++) CHECK((int)(x[i] * 255 + 0.5f) == bytes[labels + i]);
        nnt_dataset_free(d);
    }
}
static void check_cifar_error(const uint8_t *bytes, size_t n, int kind, nnt_result code, const char *text)
{
    const char *file = "c.bin";
    heap h;
    nnt_allocator a = heap_of(&h, 100);
    nnt_dataset *d;
    write_file(file, bytes, n);
    d = nnt_dataset_cifar(&file, 1, kind, &a);
    CHECK(nnt_dataset_error_code(d) == code);
    CHECK_TEXT(nnt_dataset_error(d), text);
    nnt_dataset_free(d);
    CHECK(h.live == 0);
}
static void cifar_errors_say_what_is_wrong(void)
{
    static uint8_t bytes[3 * 3073];
    const char *none = NULL;
    nnt_dataset *d;
    size_t n;
    for (n = 0; n < 3073; n += 61)          /* cut off anywhere */
        if (n) {
            char text[200];
            sprintf(text, "cifar 'c.bin': %d bytes; a file of CIFAR-10 has a multiple of 3073; it is cut off or another file", (int)n);
            check_cifar_error(bytes, n, NNT_CIFAR10, NNT_ERR_FORMAT, text);
        }
    check_cifar_error(bytes, 0, NNT_CIFAR100_FINE, NNT_ERR_FORMAT, "cifar 'c.bin': 0 bytes; a file of CIFAR-100 has a multiple of 3074; it is cut off or "
                      "another file");
    bytes[3073] = 10;
    check_cifar_error(bytes, sizeof bytes, NNT_CIFAR10, NNT_ERR_FORMAT, "cifar 'c.bin': label 10 of sample 1; CIFAR-10 has labels 0 to 9; it is damaged or "
                      "another file");
    d = nnt_dataset_cifar(&none, 1, 0, NULL);
    CHECK_TEXT(nnt_dataset_error(d), "dataset_cifar: a path is NULL");
    nnt_dataset_free(d);
    d = nnt_dataset_cifar(NULL, 1, 3, NULL);
    CHECK_TEXT(nnt_dataset_error(d), "dataset_cifar: 1 paths (NULL) of kind 3; at least one path and one of NNT_CIFAR... are needed");
    nnt_dataset_free(d);
    remove("c.bin");
}

/* Two records of a kind. */
static size_t make_cifar(uint8_t *to, int kind)
{
    const size_t record = kind ? 3074 : 3073;
    fill_random(to, 2 * record, 5);
    to[0] = 4;
    to[record] = 9;
    if (kind) { to[1] = 63; to[record + 1] = 99; }
    return 2 * record;
}
static nnt_result try_cifar(const char *path, int kind, nnt_dataset **d)
{
    *d = nnt_dataset_cifar(&path, 1, kind, NULL);
    return nnt_dataset_error_code(*d);
}
/* Records have no header: a file cut between them is a smaller file. */
static void cifar_cut_anywhere_but_between_records_is_an_error(void)
{
    static uint8_t bytes[2 * 3074];
    nnt_dataset *d;
    size_t n, i;
    int kind;
    for (kind = 0; kind < 3; kind++) {
        FILE *f = fopen("cut.bin", "wb");
        CHECK(f != NULL);
        if (!f) return;
        n = make_cifar(bytes, kind);
        for (i = 0; i <= n; i++) {
            const nnt_result got = try_cifar("cut.bin", kind, &d);
            CHECKF(i == n / 2 || i == n ? got == NNT_OK && nnt_dataset_count(d) == (i == n ? 2 : 1) : got == NNT_ERR_FORMAT,
                   "kind %d, %d bytes: %s", kind, (int)i, nnt_dataset_error(d));
            nnt_dataset_free(d);
            if (i < n) CHECK(fputc(bytes[i], f) != EOF && fflush(f) == 0);
        }
        fclose(f);
    }
    remove("cut.bin");
}
/* A label becomes another or an error; all else in a record is pixels, which may be anything. */
static void cifar_with_any_bit_flipped_has_labels_in_range(void)
{
    static const int classes[3] = { 10, 100, 20 }, label_at[3] = { 0, 1, 0 };
    static uint8_t bytes[2 * 3074];
    nnt_dataset *d;
    int kind, bit;
    for (kind = 0; kind < 3; kind++) {
        const size_t n = make_cifar(bytes, kind);
        FILE *f;
        write_file("flip.bin", bytes, n);
        f = fopen("flip.bin", "r+b");
        CHECK(f != NULL);
        if (!f) return;
        for (bit = 0; bit < 8 * (kind ? 3 : (int)n / 2); bit++) {       /* pixels are the same for all kinds */
            const int at = bit / 8, flipped = bytes[at] ^ 1 << bit % 8, label = at == label_at[kind] ? flipped : bytes[label_at[kind]];
            nnt_result got;
            CHECK(fseek(f, at, SEEK_SET) == 0 && fputc(flipped, f) != EOF && fflush(f) == 0);
            got = try_cifar("flip.bin", kind, &d);
            CHECKF(got == (label < classes[kind] ? NNT_OK : NNT_ERR_FORMAT), "kind %d, bit %d: %s", kind, bit, nnt_dataset_error(d));
            if (!got) CHECKF(nnt_dataset_count(d) == 2 && nnt_dataset_label(d, 0) == label, "kind %d, bit %d", kind, bit);
            nnt_dataset_free(d);
            CHECK(fseek(f, at, SEEK_SET) == 0 && fputc(bytes[at], f) != EOF);
        }
        fclose(f);
    }
    remove("flip.bin");
}

/* ---- main ---- */

static void enter_work_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > 80) tmp = "/tmp";
    sprintf(work_dir, "%s/nnt_test_pictures_%ld", tmp, (long)getpid());
    if (!getcwd(root, sizeof root - 8) || mkdir(work_dir, 0700) || chdir(work_dir)) {
        printf("can't use %s\n", work_dir);
        exit(2);
    }
    strcat(root, "/");
}
static void leave_work_dir(void)
{
    remove_all(".");
    if (chdir(root) || rmdir(work_dir)) printf("%s could not be removed\n", work_dir);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    enter_work_dir();
    TEST(transforms_give_what_pillow_gives);
    TEST(floats_are_resized_as_bytes_are);
    TEST(every_instruction_set_resizes_to_the_same_bytes);
    TEST(every_instruction_set_normalises_bytes_to_the_same_bits);
    TEST(a_crop_after_a_resize_costs_no_bit);
    TEST(random_crops_are_anywhere_evenly);
    TEST(flips_come_with_their_probability);
    TEST(resized_crops_stay_within_scale_and_ratio);
    TEST(values_are_normalised_exactly);
    TEST(noise_is_normal_and_not_clamped);
    TEST(erasing_sets_one_part);
    TEST(chance_depends_on_seed_epoch_and_sample_only);
    TEST(lists_can_be_cut_in_two);
    TEST(transform_errors_say_what_is_wrong);
    TEST(splits_part_the_samples);
    TEST(subsets_and_concatenations_keep_order);
    TEST(errors_of_made_datasets_say_what_is_wrong);
    TEST(datasets_survive_each_allocation_failing);
#ifdef NNT_TEST_STB
    TEST(pictures_of_every_kind_give_their_pixels);
    TEST(netpbm_files_give_their_pixels);
    TEST(pictures_are_turned_upright);
    TEST(scans_without_their_tables_are_refused);
    TEST(tables_that_announce_too_many_codes_are_refused);
    TEST(text_kinds_of_ppm_are_refused_in_words);
    TEST(damaged_pictures_are_errors);
    TEST(claims_are_checked_before_they_are_believed);
    TEST(the_hosts_flip_does_not_matter);
    TEST(folders_become_classes);
    TEST(folder_errors_say_what_is_wrong);
    TEST(grey_folders_and_pixel_limits);
    TEST(bad_pictures_are_left_out_when_asked_for);
    TEST(stopped_loaders_of_a_folder_close_all_files);
    TEST(an_epoch_of_bad_pictures_is_an_error);
    TEST(a_decoder_of_ones_own_replaces_stb_image);
    TEST(caches_decode_once_within_their_budget);
    TEST(a_hundred_thousand_files_open_at_once);
    TEST(folders_survive_each_allocation_failing);
    TEST(previews_are_pngs_of_what_comes_out);
#else
    TEST(without_stb_image_pictures_are_refused_in_words);
#endif
    TEST(what_a_decoder_may_leave_out_changes_no_bit);
    TEST(what_a_decoder_may_leave_out_of_a_panorama_changes_no_bit);
    TEST(cifar_reads_ten_and_hundred);
    TEST(cifar_errors_say_what_is_wrong);
    TEST(cifar_cut_anywhere_but_between_records_is_an_error);
    TEST(cifar_with_any_bit_flipped_has_labels_in_range);
    leave_work_dir();
    return TEST_END();
}
