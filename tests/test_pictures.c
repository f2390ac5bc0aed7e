/* Pictures on their way from files to batches: decoding, folders, transforms, caches, datasets made of others.

   All inputs are made here, in a temporary directory, pictures by small writers of their own; what transforms have to give
   comes from Pillow and torchvision (tests/golden/make_transforms.py) or from loops written out here. Decoding needs
   -DNNT_TEST_STB, that is stb_image. */
#ifdef NNT_TEST_STB
#  if defined(__GNUC__)
#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wpragmas"
#    pragma GCC diagnostic ignored "-Wunknown-warning-option"
#    pragma GCC diagnostic ignored "-Wunused-function"
#    pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#    pragma GCC diagnostic ignored "-Wconversion"
#    pragma GCC diagnostic ignored "-Wsign-conversion"
#    pragma GCC diagnostic ignored "-Wshadow"
#    pragma GCC diagnostic ignored "-Wcast-qual"
#    pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#    pragma GCC diagnostic ignored "-Wunused-parameter"
#  endif
#  define STB_IMAGE_IMPLEMENTATION
#  include <stb_image.h>
#  if defined(__GNUC__)
#    pragma GCC diagnostic pop
#  endif
#endif
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"
#include <dirent.h>
#include <sys/stat.h>
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

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    if (!getcwd(root, sizeof root - 2)) return 2;
    strcat(root, "/");
    (void)work_dir;
    TEST(transforms_give_what_pillow_gives);
    TEST(floats_are_resized_as_bytes_are);
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
    return TEST_END();
}
