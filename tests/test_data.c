/* Datasets and the loader: arrays, readers, IDX and gzip files whole and broken, batches on any number of workers.

   All inputs are made here, in a temporary directory; two cases use what a machine may have: the shared cases
   (NNT_TEST_SHARED, relative to the root of the tree) and Debian's dataset-fashion-mnist. With -DNNT_TEST_STB stb_image
   is included and gzip files are unpacked; without it they have to be refused in words. */
#include "stb.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef NNT_TEST_SHARED
#  define NNT_TEST_SHARED "../shared"
#endif
#ifndef NNT_TEST_FASHION
#  define NNT_TEST_FASHION "/usr/share/datasets/fashion-mnist"
#endif

/* ---- helpers ---- */

static char root[2048], work_dir[128];      /* where the test was started; where its files are: the current directory */

/* Counts what is allocated; after `left` allocations it says no. */
typedef struct heap { size_t live, peak; int count, left; } heap;

static void *heap_alloc(void *user, size_t bytes, size_t align)
{
    heap *h = (heap *)user;
    void *p;
    if (h->left-- <= 0) return NULL;
    p = nnti_default_alloc(NULL, bytes, align);
    if (!p) return NULL;
    h->count++;
    h->live += bytes;
    if (h->live > h->peak) h->peak = h->live;
    return p;
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

#if !defined(NNT_NO_STDIO)
static uint32_t random_state = 1;
static uint32_t random32(void)              /* xorshift32, Marsaglia 2003 */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    FILE *f;
    remove(name);                           /* ext4 waits for the disk when a file is written over */
    f = fopen(name, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) { printf("can't write %s\n", name); exit(2); }
}
static size_t read_all(const char *path, uint8_t *to, size_t cap)      /* bytes, 0 when there is no such file */
{
    FILE *f = fopen(path, "rb");
    size_t got;
    if (!f) return 0;
    got = fread(to, 1, cap, f);
    fclose(f);
    return got;
}

static void put_be32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
}
/* The valid pair that most cases damage: 6 images of 5 x 4, value 37 i + 11, as the shared ones; labels 0 1 2 3 4 9. */
enum { IMAGES = 136, LABELS = 14 };
static void make_images(uint8_t out[IMAGES])
{
    int i;
    put_be32(out, 0x803); put_be32(out + 4, 6); put_be32(out + 8, 5); put_be32(out + 12, 4);
    for (i = 0; i < 120; i++) out[16 + i] = (uint8_t)(37 * i + 11);
}
static void make_labels(uint8_t out[LABELS])
{
    static const uint8_t label[6] = { 0, 1, 2, 3, 4, 9 };
    put_be32(out, 0x801); put_be32(out + 4, 6);
    memcpy(out + 8, label, 6);
}

/* RFC 1952, bit by bit. */
static uint32_t crc32_of(const uint8_t *p, size_t bytes)
{
    uint32_t c = 0xFFFFFFFFu;
    int k;
    for (; bytes; bytes--, p++)
        for (c ^= *p, k = 0; k < 8; k++) c = (c & 1u) ? (c >> 1) ^ 0xEDB88320u : c >> 1;
    return ~c;
}
static uint8_t *put_le(uint8_t *to, uint32_t v, int bytes)
{
    for (; bytes; bytes--, v >>= 8) *to++ = (uint8_t)v;
    return to;
}
/* gzip of stored blocks of at most `block` bytes, with the header fields that `flags` asks for. Returns its length. */
static size_t make_gzip(uint8_t *out, const uint8_t *data, size_t bytes, int flags, size_t block)
{
    static const char text[] = "a name";
    uint8_t *p = out;
    size_t at = 0, n;
    *p++ = 0x1F; *p++ = 0x8B; *p++ = 8; *p++ = (uint8_t)flags;
    p = put_le(p, 0, 4); *p++ = 0; *p++ = 3;
    if (flags & 4) { p = put_le(p, 5, 2); memcpy(p, "extra", 5); p += 5; }
    if (flags & 8) { memcpy(p, text, sizeof text); p += sizeof text; }
    if (flags & 16) { memcpy(p, text, sizeof text); p += sizeof text; }
    if (flags & 2) p = put_le(p, crc32_of(out, (size_t)(p - out)) & 0xFFFFu, 2);
    do {
        n = bytes - at < block ? bytes - at : block;
        *p++ = at + n == bytes;
        p = put_le(p, (uint32_t)n, 2);
        p = put_le(p, ~(uint32_t)n, 2);
        memcpy(p, data + at, n);
        p += n;
        at += n;
    } while (at < bytes);
    p = put_le(p, crc32_of(data, bytes), 4);
    p = put_le(p, (uint32_t)bytes, 4);
    return (size_t)(p - out);
}

/* Tries to open images (and labels when given) and frees them; returns the code, keeps the sentence. */
static char sentence[NNTI_ERROR_TEXT];
static nnt_result try_idx(const char *images, const char *labels)
{
    heap h;
    nnt_allocator a = heap_of(&h, 1000);
    nnt_dataset *d = nnt_dataset_idx(images, labels, &a);
    nnt_result r = nnt_dataset_error_code(d);
    int shape[3];
    strcpy(sentence, nnt_dataset_error(d));
    CHECK((r == NNT_OK) == (sentence[0] == 0));
    CHECK((r == NNT_OK) == (nnt_dataset_count(d) > 0));
    CHECK(nnt_dataset_shape(d, shape) == r);
    nnt_dataset_free(d);
    CHECK(h.live == 0);
    return r;
}
static nnt_result try_images(const char *name, const uint8_t *data, size_t bytes)
{
    write_file(name, data, bytes);
    return try_idx(name, NULL);
}
#endif /* NNT_NO_STDIO */

static nnt_loader_desc loader_desc(int batch, int shuffle, int workers)
{
    nnt_loader_desc d;
    memset(&d, 0, sizeof d);
    d.batch = batch;
    d.shuffle = shuffle;
    d.workers = workers;
    d.seed = 7;
    return d;
}

/* Samples that are told by their values: x = index * 100 + position, label = index % 10, target = -index, and a switch
   for each thing that can go wrong. */
typedef struct source {
    int     fail_at, bad_label_at, silent, no_label;
    double  seconds;                        /* that a sample takes, */
    int     uneven;                         /*   if its index is a multiple of this; 0: every sample */
    int     calls;                          /* atomic */
} source;

static nnt_result read_source(void *user, int64_t index, float *x, int32_t *label, float *target, char *why, size_t cap)
{
    source *s = (source *)user;
    int slow = s->seconds > 0 && (!s->uneven || index % s->uneven == 0);
    double start = slow ? nnti_seconds() : 0;
    int i;
    nnti_atomic_add(&s->calls, 1);
    if (s->fail_at && index == s->fail_at) {
        if (!s->silent) nnti_format(why, cap, "the picture %I is torn", index);
        return NNT_ERR_FILE;
    }
    for (i = 0; i < 6; i++) x[i] = (float)(index * 100 + i);
    if (!s->no_label) *label = s->bad_label_at && index == s->bad_label_at ? 10 : (int32_t)(index % 10);
    if (target) target[0] = (float)-index;
    while (slow && nnti_seconds() - start < s->seconds) nnti_yield();
    return NNT_OK;
}
static nnt_reader_desc reader_desc(source *s, int64_t count)
{
    nnt_reader_desc d;
    memset(&d, 0, sizeof d);
    d.count = count;
    d.channels = 1;
    d.height = 2;
    d.width = 3;
    d.target_size = 1;
    d.classes = 10;
    d.read_fn = read_source;
    d.user = s;
    return d;
}

/* Threads of this process, 0 where the system does not tell. */
/* Entries of a folder of Linux's own about this process, 0 where there is none. */
static int entries_of(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;
    if (!dir) return 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 2;                           /* . and .. */
}
static int thread_count(void) { return entries_of("/proc/self/task"); }
static int descriptor_count(void) { return entries_of("/proc/self/fd"); }
static long resident_pages(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long all, resident;
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &all, &resident) != 2) resident = 0;
    fclose(f);
    return resident;
}

/* ---- arrays ---- */

static nnt_arrays_desc arrays_desc(int64_t count, int channels, int height, int width)
{
    nnt_arrays_desc d;
    memset(&d, 0, sizeof d);
    d.count = count;
    d.channels = channels;
    d.height = height;
    d.width = width;
    return d;
}

static void arrays_come_out_of_the_loader_as_they_are(void)
{
    float x[5 * 6], targets[5 * 2];
    int32_t labels[5] = { 2, 0, 1, 1, 3 };
    nnt_arrays_desc s = arrays_desc(5, 1, 2, 3);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    int i, shape[3];
    for (i = 0; i < 30; i++) x[i] = 0.25f * (float)i - 3.0f;
    for (i = 0; i < 10; i++) targets[i] = (float)i;
    s.x = x;
    s.labels = labels;
    s.targets = targets;
    s.target_size = 2;
    d = nnt_dataset_arrays(s, NULL);
    CHECK_TEXT(nnt_dataset_error(d), "");
    CHECK(nnt_dataset_count(d) == 5);
    CHECK(nnt_dataset_classes(d) == 4);
    CHECK(nnt_dataset_shape(d, shape) == NNT_OK && shape[0] == 1 && shape[1] == 2 && shape[2] == 3);
    l = nnt_loader_new(d, loader_desc(4, 0, 0), NULL);
    CHECK(nnt_loader_batches(l) == 2);
    CHECK(nnt_loader_dataset(l) == d);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 4);
    CHECK(memcmp(b.x, x, 24 * sizeof *x) == 0);
    CHECK(memcmp(b.labels, labels, 4 * sizeof *labels) == 0);
    CHECK(memcmp(b.targets, targets, 8 * sizeof *targets) == 0);
    CHECK(b.indices[0] == 0 && b.indices[3] == 3);
    CHECK(((size_t)(uintptr_t)b.x & 63) == 0);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 1);
    CHECK(memcmp(b.x, x + 24, 6 * sizeof *x) == 0);
    CHECK(b.labels[0] == 3 && b.targets[0] == 8.0f && b.targets[1] == 9.0f && b.indices[0] == 4);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 0 && !b.x);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void bytes_become_value_by_255_exactly(void)
{
    uint8_t x[256];
    nnt_arrays_desc s = arrays_desc(1, 1, 16, 16);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    int i;
    for (i = 0; i < 256; i++) x[i] = (uint8_t)i;
    s.x_u8 = x;
    d = nnt_dataset_arrays(s, NULL);
    CHECK(nnt_dataset_classes(d) == 0);
    l = nnt_loader_new(d, loader_desc(1, 0, NNT_NO_WORKERS), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 1);
    CHECK(!b.labels && !b.targets);
    for (i = 0; i < 256; i++) {
        volatile float v = (float)i, whole = 255.0f;        /* volatile: a real division, whatever the flags */
        volatile float want = v / whole;
        CHECKF(b.x[i] == want, "value %d", i);
    }
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void check_arrays_error(nnt_arrays_desc s, nnt_result code, const char *text)
{
    nnt_dataset *d = nnt_dataset_arrays(s, NULL);
    CHECK(nnt_dataset_error_code(d) == code);
    CHECK_TEXT(nnt_dataset_error(d), text);
    nnt_dataset_free(d);
}
static void array_errors_say_what_is_wrong(void)
{
    float x[8] = { 0 };
    uint8_t bytes[8] = { 0 };
    int32_t labels[2] = { 0, 1 };
    nnt_arrays_desc good = arrays_desc(2, 1, 2, 2), s;
    good.x = x;
    check_arrays_error(good, NNT_OK, "");
    s = good; s.count = 0;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: count is 0; at least one sample is needed");
    s = good; s.count = -3;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: count is -3; at least one sample is needed");
    s = good; s.height = 0;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: a sample of 1 x 0 x 2 (channels, height, width); all "
                       "three have to be at least 1");
    s = good; s.width = -2; s.height = -2;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: a sample of 1 x -2 x -2 (channels, height, width); all "
                       "three have to be at least 1");
    s = good; s.x = NULL;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: x and x_u8 are both NULL; one of them has to hold the "
                       "samples");
    s = good; s.x_u8 = bytes;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: x and x_u8 are both given; one of them has to hold the "
                       "samples");
    s = good; s.target_size = 3;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: targets is NULL but target_size is 3; give both or "
                       "neither");
    s = good; s.targets = x;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: targets is given but target_size is 0; give both or "
                       "neither");
    s = good; s.targets = x; s.target_size = -1;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: target_size is -1 and classes 0; neither can be negative");
    s = good; s.classes = 10;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: classes is 10 but labels is NULL; give both or neither");
    s = good; s.labels = labels; s.classes = -1;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: target_size is 0 and classes -1; neither can be negative");
    s = good; s.channels = s.height = s.width = INT_MAX;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: a sample of 2147483647 x 2147483647 x 2147483647 is more "
                       "than can be addressed");
    s = good; s.count = INT64_MAX;
    check_arrays_error(s, NNT_ERR_ARGUMENT, "dataset_arrays: 9223372036854775807 samples of 1 x 2 x 2 are more than "
                       "can be addressed");
    s = good; s.labels = labels; s.classes = 1;
    check_arrays_error(s, NNT_ERR_DATA, "dataset_arrays: label 1 of sample 1; with 1 classes labels go from 0 to 0");
    labels[0] = -4;
    s = good; s.labels = labels;
    check_arrays_error(s, NNT_ERR_DATA, "dataset_arrays: label -4 of sample 0; with 2 classes labels go from 0 to 1");
    labels[0] = INT_MAX;
    check_arrays_error(s, NNT_ERR_DATA, "dataset_arrays: label 2147483647 of sample 0; with 2147483647 classes labels "
                       "go from 0 to 2147483646");
}

static void reader_errors_say_what_is_wrong(void)
{
    nnt_reader_desc s;
    nnt_dataset *d;
    source src;
    memset(&src, 0, sizeof src);
    s = reader_desc(&src, 10);
    s.read_fn = NULL;
    d = nnt_dataset_reader(s, NULL);
    CHECK(nnt_dataset_error_code(d) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_dataset_error(d), "dataset_reader: read_fn is NULL");
    nnt_dataset_free(d);
    s = reader_desc(&src, 0);
    d = nnt_dataset_reader(s, NULL);
    CHECK_TEXT(nnt_dataset_error(d), "dataset_reader: count is 0; at least one sample is needed");
    nnt_dataset_free(d);
}

static void an_object_with_an_error_passes_it_on(void)
{
    nnt_dataset *d = nnt_dataset_arrays(arrays_desc(0, 1, 1, 1), NULL);
    nnt_loader *l = nnt_loader_new(d, loader_desc(4, 0, 0), NULL);
    nnt_batch b;
    int shape[3] = { 1, 1, 1 };
    CHECK(nnt_loader_error_code(l) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_loader_error(l), "dataset_arrays: x and x_u8 are both NULL; one of them has to hold the samples");
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_ARGUMENT && b.count == 0);
    CHECK(nnt_loader_rewind(l, 0) == NNT_ERR_ARGUMENT);
    CHECK(nnt_loader_batches(l) == 0);
    CHECK(nnt_dataset_count(d) == 0 && nnt_dataset_classes(d) == 0);
    CHECK(nnt_dataset_shape(d, shape) == NNT_ERR_ARGUMENT && shape[0] == 0);
    nnt_loader_free(l);
    nnt_dataset_free(d);

    l = nnt_loader_new(NULL, loader_desc(4, 0, 0), NULL);
    CHECK(nnt_loader_error_code(l) == NNT_ERR_MEMORY);
    CHECK_TEXT(nnt_loader_error(l), "out of memory");
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_MEMORY);
    nnt_loader_free(l);

    CHECK_TEXT(nnt_dataset_error(NULL), "out of memory");
    CHECK_TEXT(nnt_loader_error(NULL), "out of memory");
    CHECK(nnt_dataset_error_code(NULL) == NNT_ERR_MEMORY && nnt_loader_error_code(NULL) == NNT_ERR_MEMORY);
    CHECK(nnt_loader_next(NULL, &b) == NNT_ERR_MEMORY && nnt_loader_rewind(NULL, 0) == NNT_ERR_MEMORY);
    CHECK(nnt_dataset_count(NULL) == 0 && nnt_loader_batches(NULL) == 0 && nnt_loader_epoch(NULL) == 0);
    CHECK(nnt_dataset_shape(NULL, shape) == NNT_ERR_MEMORY && !nnt_loader_dataset(NULL));
    nnt_dataset_free(NULL);
    nnt_loader_free(NULL);
}

/* ---- IDX ---- */

#if !defined(NNT_NO_STDIO)

/* The valid pair, by whatever names: values and labels as made. */
static void check_pair(const char *images, const char *labels)
{
    uint8_t want[IMAGES];
    static const int32_t label[6] = { 0, 1, 2, 3, 4, 9 };
    nnt_dataset *d = nnt_dataset_idx(images, labels, NULL);
    nnt_loader *l = nnt_loader_new(d, loader_desc(6, 0, 0), NULL);
    nnt_batch b;
    int i, shape[3];
    make_images(want);
    CHECK_TEXT(nnt_loader_error(l), "");
    CHECK(nnt_dataset_count(d) == 6 && nnt_dataset_classes(d) == (labels ? 10 : 0));
    CHECK(nnt_dataset_shape(d, shape) == NNT_OK && shape[0] == 1 && shape[1] == 5 && shape[2] == 4);
    if (nnt_loader_next(l, &b) == NNT_OK) {
        CHECK(b.count == 6);
        for (i = 0; i < 120; i++) CHECKF(b.x[i] == (float)(want[16 + i] / 255.0), "value %d of %s", i, images);
        CHECK(labels ? memcmp(b.labels, label, sizeof label) == 0 : !b.labels);
    }
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void idx_pair_reads(void)
{
    uint8_t images[IMAGES], labels[LABELS];
    make_images(images);
    make_labels(labels);
    write_file("images.idx", images, IMAGES);
    write_file("labels.idx", labels, LABELS);
    check_pair("images.idx", "labels.idx");
    check_pair("images.idx", NULL);
    /* a browser may have unpacked it and kept the name */
    write_file("unpacked.idx.gz", images, IMAGES);
    check_pair("unpacked.idx.gz", "labels.idx");
}

static void idx_of_four_dimensions_has_channels(void)
{
    uint8_t f[20 + 2 * 3 * 2 * 1];
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    int i, shape[3];
    put_be32(f, 0x804); put_be32(f + 4, 2); put_be32(f + 8, 3); put_be32(f + 12, 2); put_be32(f + 16, 1);
    for (i = 0; i < 12; i++) f[20 + i] = (uint8_t)(255 - i);
    write_file("colour.idx", f, sizeof f);
    d = nnt_dataset_idx("colour.idx", NULL, NULL);
    CHECK(nnt_dataset_shape(d, shape) == NNT_OK && shape[0] == 3 && shape[1] == 2 && shape[2] == 1);
    l = nnt_loader_new(d, loader_desc(2, 0, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 2 && b.x[0] == 1.0f && b.x[11] == (float)(244 / 255.0));
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

/* Expected values: expected.json beside the files. */
static void shared_idx_files_do_what_their_list_says(void)
{
    static const char *const names[] = {
        "images.idx", "labels.idx", "images.idx.gz", "labels.idx.gz", "gz_without_ending.idx",
        "wrong_magic.idx", "truncated.idx", "huge_dims.idx", "labels_short.idx", "html.idx"
    };
    static uint8_t data[4096];
    char path[3072];
    heap h;
    nnt_allocator a;
    nnt_dataset *d;
    size_t i, bytes;
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        sprintf(path, "%.2000s/%.900s/cases/idx/%s", NNT_TEST_SHARED[0] == '/' ? "" : root, NNT_TEST_SHARED, names[i]);
        bytes = read_all(path, data, sizeof data);
        if (!bytes) SKIP("no shared cases");
        write_file(names[i], data, bytes);
    }
    check_pair("images.idx", "labels.idx");     /* first pixels 11 48 85 122 are 37 i + 11, labels 0 1 2 3 4 9 */
#ifdef NNT_TEST_STB
    check_pair("images.idx.gz", "labels.idx.gz");
    check_pair("gz_without_ending.idx", "labels.idx");
    check_pair("images.idx", "labels.idx.gz");
#endif
    CHECK(try_idx("wrong_magic.idx", "labels.idx") == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'wrong_magic.idx': its header says 6 x 5 x 4 x 187716986 and needs 22526038340 bytes, "
               "the file has 136; it is cut off or damaged, fetch it again");
    CHECK(try_idx("truncated.idx", "labels.idx") == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'truncated.idx': its header says 6 x 5 x 4 and needs 136 bytes, the file has 119; it is "
               "cut off or damaged, fetch it again");
    CHECK(try_idx("images.idx", "labels_short.idx") == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx: 6 images in 'images.idx' but 5 labels in 'labels_short.idx'; the two files don't "
               "belong together");
    CHECK(try_idx("html.idx", NULL) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'html.idx': this is a web page, fetch the data file itself; an IDX file begins with the "
               "bytes 0 0 8, a gzip file with 31 139, this one with 60 33 68");
    a = heap_of(&h, 1000);
    d = nnt_dataset_idx("huge_dims.idx", "labels.idx", &a);
    CHECK(nnt_dataset_error_code(d) == NNT_ERR_FORMAT);
    CHECK_TEXT(nnt_dataset_error(d), "idx 'huge_dims.idx': its header says 2147483647 x 2147483647 x 2147483647, "
               "which can't be in 136 bytes; the file is damaged, fetch it again");
    CHECKF(h.peak < 65536, "%lu bytes", (unsigned long)h.peak);
    nnt_dataset_free(d);
}

static void idx_sentences_say_what_is_wrong(void)
{
    uint8_t f[IMAGES + 1], labels[LABELS];
    char path[600], want[700];
    int i;
    make_images(f);
    make_labels(labels);
    write_file("images.idx", f, IMAGES);
    write_file("labels.idx", labels, LABELS);
    CHECK(try_idx(NULL, NULL) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(sentence, "dataset_idx: images is NULL; give the path of an IDX file");
    CHECK(try_idx("missing.idx", NULL) == NNT_ERR_FILE);
    CHECK_TEXT(sentence, "read 'missing.idx': there is no such file");
    CHECK(try_idx("images.idx", "missing.idx") == NNT_ERR_FILE);
    CHECK_TEXT(sentence, "read 'missing.idx': there is no such file");
    CHECK(try_idx(".", NULL) == NNT_ERR_FILE);
    CHECK_TEXT(sentence, "read '.': it is a directory");
    CHECK(try_idx("/dev/null", NULL) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx '/dev/null': 0 bytes, fewer than the header of an IDX file; fetch the file again");
    CHECK(try_images("f.idx", f, 3) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'f.idx': 3 bytes, fewer than the header of an IDX file; fetch the file again");
    CHECK(try_images("f.idx", f, 11) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'f.idx': 11 bytes, but a header of 3 dimensions takes 16; the file is cut off, fetch it "
               "again");
    f[IMAGES] = 0;
    CHECK(try_images("f.idx", f, IMAGES + 1) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'f.idx': its header says 6 x 5 x 4 and needs 136 bytes, the file has 137; it is damaged "
               "or no IDX file, fetch it again");
    CHECK(try_idx("labels.idx", "images.idx") == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'labels.idx': has 1 dimensions; images have 3 (count, height, width) or 4 (count, "
               "channels, height, width); are images and labels swapped?");
    CHECK(try_idx("images.idx", "images.idx") == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'images.idx': has 3 dimensions; labels have 1 (count); are images and labels swapped?");
    f[2] = 0x0D;
    CHECK(try_images("f.idx", f, IMAGES) == NNT_ERR_UNSUPPORTED);
    CHECK_TEXT(sentence, "idx 'f.idx': holds floats; only unsigned bytes can be read, use nnt_dataset_arrays or "
               "nnt_dataset_reader for others");
    memcpy(f, "PK\003\004", 4);
    CHECK(try_images("f.idx.gz", f, IMAGES) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'f.idx.gz': this is no IDX file; an IDX file begins with the bytes 0 0 8, a gzip file "
               "with 31 139, this one with 80 75 3");
    make_images(f);
    put_be32(f + 4, 0);
    CHECK(try_images("f.idx", f, 16) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'f.idx': its header says 0 x 5 x 4: there are no values in it");
    make_images(f);
    put_be32(f + 12, 0);
    CHECK(try_images("f.idx", f, 16) == NNT_ERR_FORMAT);
    /* a long path keeps its end, and the sentence its own */
    for (i = 0; i < 200; i++) memcpy(path + 2 * i, "d/", 2);
    strcpy(path + 400, "missing.idx");
    CHECK(try_idx(path, NULL) == NNT_ERR_FILE);
    sprintf(want, "read '...%s': there is no such file", path + strlen(path) - 156);
    CHECK_TEXT(sentence, want);
}

static void idx_cut_off_at_every_byte_is_an_error(void)
{
    uint8_t images[IMAGES], labels[LABELS];
    size_t n;
    make_images(images);
    make_labels(labels);
    for (n = 0; n < IMAGES; n++) CHECKF(try_images("cut.idx", images, n) == NNT_ERR_FORMAT, "first %d bytes", (int)n);
    CHECK(try_images("cut.idx", images, IMAGES) == NNT_OK);
    for (n = 0; n < LABELS; n++) {
        write_file("cut_labels.idx", labels, n);
        CHECKF(try_idx("cut.idx", "cut_labels.idx") == NNT_ERR_FORMAT, "first %d bytes", (int)n);
    }
}

/* In the header an error; a file's pixels and labels may be any bytes. */
static void idx_with_any_bit_of_the_header_flipped_is_an_error(void)
{
    uint8_t images[IMAGES], labels[LABELS];
    int bit;
    make_images(images);
    make_labels(labels);
    for (bit = 0; bit < IMAGES * 8; bit++) {
        images[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECKF((try_images("flipped.idx", images, IMAGES) == NNT_OK) == (bit >= 16 * 8), "bit %d", bit);
        images[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    write_file("images.idx", images, IMAGES);
    for (bit = 0; bit < LABELS * 8; bit++) {
        labels[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_file("flipped.idx", labels, LABELS);
        CHECKF((try_idx("images.idx", "flipped.idx") == NNT_OK) == (bit >= 8 * 8), "bit %d", bit);
        labels[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* Garbage, garbage behind a good start, sizes at the edges of their range: never a crash, hardly ever data. */
static void random_garbage_is_an_error(void)
{
    static const uint32_t edges[] = { 0, 1, 2, 0x7FFFFFFF, 0x80000000u, 0xFFFFFFFFu, 0x10000, 0xFFFF };
    uint8_t f[64];
    int round, i, bytes, dims;
    random_state = 12345;
    for (round = 0; round < 3000; round++) {
        bytes = (int)(random32() % 64);
        for (i = 0; i < 64; i++) f[i] = (uint8_t)random32();
        if (round % 3) {
            dims = 3 + (int)(random32() & 1u);
            put_be32(f, 0x800u + (uint32_t)dims);
            for (i = 0; i < dims; i++) put_be32(f + 4 + 4 * i, edges[random32() % 8]);
            if (round % 3 == 2) { f[0] = 0x1F; f[1] = 0x8B; f[2] = 8; f[3] &= 0x1F; }
        }
        try_images("garbage.idx", f, (size_t)bytes);
    }
}

static void idx_survives_each_allocation_failing(void)
{
    uint8_t images[IMAGES], labels[LABELS];
    int n;
    make_images(images);
    make_labels(labels);
#ifdef NNT_TEST_STB
    {
        uint8_t packed[IMAGES + 64];
        write_file("images.idx", packed, make_gzip(packed, images, IMAGES, 0, 65535));
    }
#else
    write_file("images.idx", images, IMAGES);
#endif
    write_file("labels.idx", labels, LABELS);
    for (n = 0; n < 100; n++) {
        heap h;
        nnt_allocator a = heap_of(&h, n);
        nnt_dataset *d = nnt_dataset_idx("images.idx", "labels.idx", &a);
        nnt_result r = nnt_dataset_error_code(d);
        nnt_dataset_free(d);
        CHECKF(h.live == 0, "allocation %d", n);
        if (r == NNT_OK) break;
        CHECKF(r == NNT_ERR_MEMORY, "allocation %d", n);
    }
    CHECK(n >= 4 && n < 10);
}

/* ---- gzip ---- */

#ifdef NNT_TEST_STB

static void gzip_reads_with_every_header_field(void)
{
    uint8_t images[IMAGES], labels[LABELS], packed[2 * IMAGES];
    int flags;
    make_images(images);
    make_labels(labels);
    write_file("labels.idx", labels, LABELS);
    for (flags = 0; flags < 32; flags++) {
        write_file("flags.idx.gz", packed, make_gzip(packed, images, IMAGES, flags, flags & 1 ? 50 : 65535));
        check_pair("flags.idx.gz", "labels.idx");
    }
}

/* Longer than a stored block and than the checksum's stride, with an odd rest. */
static void gzip_of_many_blocks_reads(void)
{
    enum { N = 70001, BYTES = 16 + 3 * N };
    uint8_t *data = (uint8_t *)malloc(BYTES), *packed = (uint8_t *)malloc(BYTES + 1000);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    int i, wrong = 0;
    random_state = 99;
    put_be32(data, 0x803); put_be32(data + 4, N); put_be32(data + 8, 3); put_be32(data + 12, 1);
    for (i = 16; i < BYTES; i++) data[i] = (uint8_t)random32();
    write_file("blocks.gz", packed, make_gzip(packed, data, BYTES, 0, 65535));
    d = nnt_dataset_idx("blocks.gz", NULL, NULL);
    l = nnt_loader_new(d, loader_desc(N, 0, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == N);
    for (i = 0; i < 3 * N && b.count; i++) wrong += b.x[i] != (float)(data[16 + i] / 255.0);
    CHECK(wrong == 0);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    free(data);
    free(packed);
}

static void gzip_cut_off_at_every_byte_is_an_error(void)
{
    uint8_t images[IMAGES], packed[2 * IMAGES];
    size_t bytes, n;
    make_images(images);
    bytes = make_gzip(packed, images, IMAGES, 31, 65535);
    for (n = 0; n < bytes; n++) CHECKF(try_images("cut.gz", packed, n) == NNT_ERR_FORMAT, "first %d bytes", (int)n);
    CHECK(try_images("cut.gz", packed, n) == NNT_OK);
    packed[bytes] = 0;
    CHECK(try_images("cut.gz", packed, bytes + 1) == NNT_ERR_FORMAT);
}

/* With a checksum over the header nothing may change but the five bits that fill up the stored block's first byte. */
static void gzip_with_any_bit_flipped_is_an_error(void)
{
    enum { BLOCK = 10 + 7 + 7 + 7 + 2 };    /* behind header, extra field, name, comment, checksum */
    uint8_t images[IMAGES], packed[2 * IMAGES];
    size_t bytes;
    int bit;
    make_images(images);
    bytes = make_gzip(packed, images, IMAGES, 31, 65535);
    for (bit = 0; bit < (int)bytes * 8; bit++) {
        packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECKF(try_images("flipped.gz", packed, bytes) == (bit / 8 == BLOCK && bit % 8 > 2 ? NNT_OK : NNT_ERR_FORMAT),
               "bit %d: %s", bit, sentence);
        packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void gzip_sentences_say_what_is_wrong(void)
{
    uint8_t images[IMAGES], packed[4 * IMAGES];
    size_t bytes;
    heap h;
    nnt_allocator a;
    nnt_dataset *d;
    make_images(images);
    bytes = make_gzip(packed, images, IMAGES, 2, 65535);
    CHECK(try_images("g", packed, 9) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': its header is cut off; fetch the file again");
    packed[4] ^= 1;
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': its header's checksum is wrong; fetch the file again");
    bytes = make_gzip(packed, images, IMAGES, 0, 65535);
    CHECK(try_images("g", packed, 15) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': its ending is missing; fetch the file again");
    packed[2] = 7;
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': it is not compressed by DEFLATE; fetch the file again");
    packed[2] = 8; packed[3] = 0x40;
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': its header uses flags that are not defined; fetch the file again");
    packed[3] = 0; packed[bytes - 1] = 0xFF;
    write_file("g", packed, bytes);
    a = heap_of(&h, 1000);
    d = nnt_dataset_idx("g", NULL, &a);
    CHECK(nnt_dataset_error_code(d) == NNT_ERR_FORMAT);
    CHECK_TEXT(nnt_dataset_error(d), "gzip 'g': its ending claims 4278190216 bytes, more than 141 compressed ones can "
               "hold; it is cut off or damaged, fetch the file again");
    CHECKF(h.peak < 65536, "%lu bytes", (unsigned long)h.peak);
    nnt_dataset_free(d);
    packed[bytes - 1] = 0; packed[bytes - 8] ^= 1;
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': its content does not have the size (136 bytes) and checksum of its ending; it is "
               "cut off, damaged or several gzip files in one, fetch the file again");
    bytes = make_gzip(packed, images, IMAGES, 0, 65535);        /* two members */
    bytes += make_gzip(packed + bytes, images, IMAGES - 1, 0, 65535);
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "gzip 'g': its content does not have the size (135 bytes) and checksum of its ending; it is "
               "cut off, damaged or several gzip files in one, fetch the file again");
    bytes = make_gzip(packed, (const uint8_t *)"<html>", 6, 0, 65535);
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'g': this is a web page, fetch the data file itself; an IDX file begins with the bytes "
               "0 0 8, a gzip file with 31 139, this one with 60 104 116");
    bytes = make_gzip(packed, packed, 0, 0, 65535);
    CHECK(try_images("g", packed, bytes) == NNT_ERR_FORMAT);
    CHECK_TEXT(sentence, "idx 'g': 0 bytes, fewer than the header of an IDX file; fetch the file again");
}

/* Published: 60,000 and 10,000 pictures, as many of each class; the pixels' mean 0.2860 and deviation 0.3530. */
static void fashion_mnist_has_its_published_figures(void)
{
    static const int32_t test_labels[5] = { 9, 2, 1, 1, 6 };
    nnt_dataset *d = nnt_dataset_idx(NNT_TEST_FASHION "/train-images-idx3-ubyte.gz",
                                     NNT_TEST_FASHION "/train-labels-idx1-ubyte.gz", NULL);
    nnt_loader *l;
    nnt_batch b;
    double sum = 0, squares = 0;
    int64_t samples = 0;
    int i, per_class[10] = { 0 };
    if (nnt_dataset_error_code(d) == NNT_ERR_FILE) { nnt_dataset_free(d); SKIP("no Fashion-MNIST"); }
    l = nnt_loader_new(d, loader_desc(1000, 1, 2), NULL);
    CHECK_TEXT(nnt_loader_error(l), "");
    CHECK(nnt_dataset_classes(d) == 10);
    while (nnt_loader_next(l, &b) == NNT_OK && b.count) {
        for (i = 0; i < b.count * 784; i++) { sum += b.x[i]; squares += (double)b.x[i] * b.x[i]; }
        for (i = 0; i < b.count; i++) per_class[b.labels[i]]++;
        samples += b.count;
    }
    CHECK(samples == 60000);
    for (i = 0; i < 10; i++) CHECK(per_class[i] == 6000);
    sum /= 60000.0 * 784;
    squares /= 60000.0 * 784;
    CHECKF(fabs(sum - 0.2860) < 5e-5 && fabs(sqrt(squares - sum * sum) - 0.3530) < 5e-5, "mean %g", sum);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    d = nnt_dataset_idx(NNT_TEST_FASHION "/t10k-images-idx3-ubyte.gz",
                        NNT_TEST_FASHION "/t10k-labels-idx1-ubyte.gz", NULL);
    l = nnt_loader_new(d, loader_desc(5, 0, 0), NULL);
    CHECK(nnt_dataset_count(d) == 10000);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 5 && memcmp(b.labels, test_labels, sizeof test_labels) == 0);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    CHECK(try_idx(NNT_TEST_FASHION "/train-images-idx3-ubyte.gz", NNT_TEST_FASHION "/t10k-labels-idx1-ubyte.gz")
          == NNT_ERR_FORMAT);
}

/* A file of dynamic Huffman codes, cut and with bits flipped. */
static void a_real_gzip_file_damaged_anywhere_is_an_error(void)
{
    static uint8_t data[8192];
    uint8_t images[16] = { 0, 0, 8, 3, 0, 0, 0x27, 0x10, 0, 0, 0, 1, 0, 0, 0, 1 };
    static uint8_t ones[16 + 10000];
    size_t bytes = read_all(NNT_TEST_FASHION "/t10k-labels-idx1-ubyte.gz", data, sizeof data), n;
    if (!bytes) SKIP("no Fashion-MNIST");
    memcpy(ones, images, 16);
    write_file("ones.idx", ones, sizeof ones);
    write_file("real.gz", data, bytes);
    CHECK(try_idx("ones.idx", "real.gz") == NNT_OK);
    for (n = 0; n < bytes; n += n < 64 || n > bytes - 64 ? 1 : 37) {
        write_file("real.gz", data, n);
        CHECKF(try_idx("ones.idx", "real.gz") == NNT_ERR_FORMAT, "first %d bytes", (int)n);
    }
    for (n = 40; n < bytes; n += n < 200 ? 1 : 41) {         /* behind the header, which holds a date and a name */
        data[n] ^= (uint8_t)(1 << n % 8);
        write_file("real.gz", data, bytes);
        CHECKF(try_idx("ones.idx", "real.gz") != NNT_OK, "byte %d", (int)n);
        data[n] ^= (uint8_t)(1 << n % 8);
    }
}

#else

static void gzip_without_stb_image_is_refused_in_words(void)
{
    uint8_t images[IMAGES], packed[2 * IMAGES];
    make_images(images);
    CHECK(try_images("g.idx", packed, make_gzip(packed, images, IMAGES, 0, 65535)) == NNT_ERR_UNSUPPORTED);
    CHECK_TEXT(sentence, "gzip 'g.idx': this is a gzip file, and unpacking needs stb_image; include stb_image.h "
               "before nntrain.h's implementation, or use gunzip first");
}

#endif

#else

static void without_stdio_idx_is_refused_in_words(void)
{
    nnt_dataset *d = nnt_dataset_idx("a", "b", NULL);
    CHECK(nnt_dataset_error_code(d) == NNT_ERR_UNSUPPORTED);
    CHECK_TEXT(nnt_dataset_error(d), "dataset_idx: this build reads no files (NNT_NO_STDIO); use nnt_dataset_arrays or "
               "nnt_dataset_reader");
    nnt_dataset_free(d);
}

#endif

/* ---- loader ---- */

/* Reads epochs of source's samples, checks every value against its index, and counts how often each index came. */
static void check_epoch(nnt_loader *l, int64_t count, int batch, int drop_last, int shuffle, const char *line)
{
    int64_t expected = drop_last ? count / batch * batch : count, samples = 0, batches = 0;
    int *seen = (int *)calloc((size_t)count, sizeof *seen), i, k;
    nnt_batch b;
    for (;;) {
        CHECKF(nnt_loader_next(l, &b) == NNT_OK, "%s: %s", line, nnt_loader_error(l));
        if (!b.count) break;
        CHECKF(b.count == (count - samples < batch ? count - samples : batch), "%s: batch of %d", line, b.count);
        for (i = 0; i < b.count; i++) {
            int64_t index = b.indices[i];
            CHECKF(index >= 0 && index < count, "%s", line);
            CHECKF(shuffle || index == samples + i, "%s", line);
            seen[index]++;
            for (k = 0; k < 6; k++) CHECKF(b.x[i * 6 + k] == (float)(index * 100 + k), "%s", line);
            CHECKF(b.labels[i] == index % 10 && b.targets[i] == (float)-index, "%s", line);
        }
        samples += b.count;
        batches++;
    }
    CHECKF(samples == expected && batches == nnt_loader_batches(l), "%s: %d samples", line, (int)samples);
    for (i = 0; i < count; i++)
        CHECKF(seen[i] == 1 || (drop_last && seen[i] == 0), "%s: index %d came %d times", line, i, seen[i]);
    free(seen);
}

static void each_index_comes_once_an_epoch(void)
{
    static const int counts[] = { 1, 2, 7, 64, 103, 1000 }, batches[] = { 1, 3, 7, 64, 2000 };
    static const int workers[] = { -1, 0, 2, 5 };
    size_t c, b, w;
    int drop, shuffle, epoch;
    char line[200];
    for (c = 0; c < 6; c++) for (b = 0; b < 5; b++) for (w = 0; w < 4; w++) for (drop = 0; drop < 2; drop++)
        for (shuffle = 0; shuffle < 2; shuffle++) {
            source s;
            nnt_dataset *d;
            nnt_loader *l;
            nnt_loader_desc desc = loader_desc(batches[b], shuffle, workers[w]);
            if (drop && counts[c] < batches[b]) continue;
            memset(&s, 0, sizeof s);
            desc.drop_last = drop;
            desc.prefetch = (int)(c % 3);
            d = nnt_dataset_reader(reader_desc(&s, counts[c]), NULL);
            l = nnt_loader_new(d, desc, NULL);
            sprintf(line, "count=%d batch=%d workers=%d drop_last=%d shuffle=%d prefetch=%d", counts[c], batches[b],
                    workers[w], drop, shuffle, desc.prefetch);
            for (epoch = 0; epoch < 3; epoch++) {
                CHECKF(nnt_loader_epoch(l) == epoch, "%s", line);
                check_epoch(l, counts[c], batches[b], drop, shuffle, line);
            }
            nnt_loader_free(l);
            nnt_dataset_free(d);
        }
}

/* Orders computed by a Python program of its own from the description: Philox4x32-10 (checked against Random123's known
   answers), counter (block, 0, epoch, 65535 | high epoch), two words a draw, masked draws up to i, swaps downwards. */
static void the_order_is_the_documented_one(void)
{
    static const struct { uint64_t seed; int64_t epoch; int64_t order[12]; } want[] = {
        { 7, 0, { 11, 0, 9, 4, 2, 3, 6, 5, 10, 8, 1, 7 } },
        { 7, 1, { 7, 11, 3, 8, 0, 2, 6, 5, 10, 1, 4, 9 } },
        { 8, 0, { 1, 9, 3, 7, 10, 4, 6, 2, 0, 8, 11, 5 } },
        { 0xFEDCBA9876543210u, (int64_t)1 << 33, { 10, 7, 0, 9, 4, 11, 5, 3, 2, 1, 6, 8 } },
    };
    size_t i;
    for (i = 0; i < sizeof want / sizeof *want; i++) {
        source s;
        nnt_dataset *d;
        nnt_loader *l;
        nnt_batch b;
        nnt_loader_desc desc = loader_desc(12, 1, 0);
        memset(&s, 0, sizeof s);
        desc.seed = want[i].seed;
        d = nnt_dataset_reader(reader_desc(&s, 12), NULL);
        l = nnt_loader_new(d, desc, NULL);
        CHECK(nnt_loader_rewind(l, want[i].epoch) == NNT_OK);
        CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 12);
        CHECKF(memcmp(b.indices, want[i].order, sizeof want[i].order) == 0, "order %d", (int)i);
        nnt_loader_free(l);
        nnt_dataset_free(d);
    }
}

/* 24 orders of 4 samples over 24,000 epochs: chi-square with 23 degrees of freedom is below 49.7 but once in 1000
   times; the seed is fixed, so it is so always or never. */
static void all_orders_are_as_likely(void)
{
    int seen[256] = { 0 }, i, orders = 0;
    double chi = 0;
    nnt_loader_desc desc = loader_desc(4, 1, 2);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    d = nnt_dataset_reader(reader_desc(&s, 4), NULL);
    l = nnt_loader_new(d, desc, NULL);
    for (i = 0; i < 24000; i++) {
        if (nnt_loader_next(l, &b) != NNT_OK || b.count != 4) { CHECK(0); break; }
        seen[b.indices[0] | b.indices[1] << 2 | b.indices[2] << 4 | b.indices[3] << 6]++;
        CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 0);
    }
    for (i = 0; i < 256; i++) if (seen[i]) { orders++; chi += (seen[i] - 1000.0) * (seen[i] - 1000.0) / 1000.0; }
    CHECK(orders == 24);
    CHECKF(chi < 49.7, "chi-square %g", chi);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

/* Everything that two epochs and a half give, one behind the other. */
enum { STREAM = 103 * (6 + 4) * 3 };
static size_t record_stream(int workers, int prefetch, int64_t rewind_to, float *to)
{
    nnt_loader_desc desc = loader_desc(7, 1, workers);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    size_t n = 0;
    int i, calls;
    memset(&s, 0, sizeof s);
    desc.prefetch = prefetch;
    d = nnt_dataset_reader(reader_desc(&s, 103), NULL);
    l = nnt_loader_new(d, desc, NULL);
    if (rewind_to >= 0) CHECK(nnt_loader_rewind(l, rewind_to) == NNT_OK);
    for (calls = 0; calls < 2 * 16 + 8; calls++) {
        CHECK(nnt_loader_next(l, &b) == NNT_OK);
        to[n++] = (float)b.count;
        for (i = 0; i < b.count; i++) {
            memcpy(to + n, b.x + i * 6, 6 * sizeof *to);
            n += 6;
            to[n++] = (float)b.labels[i];
            to[n++] = b.targets[i];
            to[n++] = (float)b.indices[i];
        }
    }
    nnt_loader_free(l);
    nnt_dataset_free(d);
    return n;
}
static void batches_are_the_same_bits_for_any_workers(void)
{
    static const int workers[] = { 1, 2, 5, 8 }, prefetch[] = { 0, 1, 3, 40 };
    static float want[STREAM], got[STREAM];
    size_t n = record_stream(NNT_NO_WORKERS, 0, -1, want), w, p;
    for (w = 0; w < 4; w++) for (p = 0; p < 4; p++) {
        memset(got, 0, sizeof got);
        CHECKF(record_stream(workers[w], prefetch[p], -1, got) == n && memcmp(got, want, n * sizeof *want) == 0,
               "workers=%d prefetch=%d", workers[w], prefetch[p]);
    }
}

static void rewinding_anywhere_gives_that_epoch(void)
{
    static float want[STREAM], again[STREAM];
    int workers, calls;
    record_stream(NNT_NO_WORKERS, 0, 5, want);
    CHECK(record_stream(2, 0, 5, again) && memcmp(again, want, sizeof want) == 0);
    for (workers = -1; workers < 4; workers++) for (calls = 0; calls < 40; calls += 3) {
        nnt_dataset *d;
        nnt_loader *l;
        nnt_batch b;
        source s;
        int i;
        memset(&s, 0, sizeof s);
        d = nnt_dataset_reader(reader_desc(&s, 103), NULL);
        l = nnt_loader_new(d, loader_desc(7, 1, workers), NULL);
        for (i = 0; i < calls; i++) CHECK(nnt_loader_next(l, &b) == NNT_OK);
        CHECK(nnt_loader_rewind(l, 5) == NNT_OK && nnt_loader_epoch(l) == 5);
        CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 7);
        for (i = 0; i < 7 && b.count; i++)
            CHECKF(b.indices[i] == (int64_t)want[1 + i * 9 + 8], "workers=%d calls=%d", workers, calls);
        CHECK(nnt_loader_rewind(l, -1) == NNT_ERR_ARGUMENT);
        CHECK_TEXT(nnt_loader_error(l), "loader_rewind: epoch is -1; 0 to 281474976710655 are possible");
        CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 7);
        nnt_loader_free(l);
        nnt_dataset_free(d);
    }
}

/* From every position of three epochs the rest comes as it does without a seek; behind the last batch the epoch ends. */
static void seeking_anywhere_goes_on_as_if_read_up_to_there(void)
{
    enum { BATCHES = 5, CALLS = 3 * (BATCHES + 1) };
    int64_t want[CALLS][7];
    int counts[CALLS], workers, from, i, k;
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    d = nnt_dataset_reader(reader_desc(&s, 33), NULL);
    l = nnt_loader_new(d, loader_desc(7, 1, NNT_NO_WORKERS), NULL);
    for (i = 0; i < CALLS; i++) {
        CHECK(nnt_loader_epoch(l) == i / (BATCHES + 1) && nnt_loader_batch(l) == i % (BATCHES + 1));
        CHECK(nnt_loader_next(l, &b) == NNT_OK);
        counts[i] = b.count;
        for (k = 0; k < b.count; k++) want[i][k] = b.indices[k];
    }
    nnt_loader_free(l);
    for (workers = 0; workers < 3; workers++) {
        l = nnt_loader_new(d, loader_desc(7, 1, workers ? workers : NNT_NO_WORKERS), NULL);
        for (from = CALLS - 1; from >= 0; from--) {
            CHECK(nnt_loader_seek(l, from / (BATCHES + 1), from % (BATCHES + 1)) == NNT_OK);
            for (i = from; i < CALLS; i++) {
                CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == counts[i]);
                CHECKF(b.count == 0 || memcmp(b.indices, want[i], (size_t)b.count * sizeof *b.indices) == 0,
                       "workers=%d from=%d call=%d", workers, from, i);
            }
        }
        CHECK(nnt_loader_seek(l, 0, BATCHES + 1) == NNT_ERR_ARGUMENT);
        CHECK_TEXT(nnt_loader_error(l), "loader_seek: batch is 6; an epoch has 5");
        CHECK(nnt_loader_seek(l, -1, 0) == NNT_ERR_ARGUMENT && nnt_loader_seek(l, 0, -1) == NNT_ERR_ARGUMENT);
        nnt_loader_free(l);
    }
    CHECK(nnt_loader_seek(NULL, 0, 0) == NNT_ERR_MEMORY && nnt_loader_batch(NULL) == 0);
    nnt_dataset_free(d);
}

/* Workers in the middle of slow batches of the old epoch must not write into those of the new one. */
static void rewinding_while_workers_read_mixes_nothing(void)
{
    nnt_loader_desc desc = loader_desc(5, 1, 3);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    int round, i, k, calls;
    memset(&s, 0, sizeof s);
    s.seconds = 0.003;
    s.uneven = 7;
    desc.prefetch = 2;
    d = nnt_dataset_reader(reader_desc(&s, 40), NULL);
    l = nnt_loader_new(d, desc, NULL);
    for (round = 0; round < 40; round++) {
        CHECK(nnt_loader_rewind(l, round) == NNT_OK);
        for (calls = 0; calls < round % 6; calls++) {
            CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 5);
            for (i = 0; i < b.count; i++) for (k = 0; k < 6; k++)
                CHECKF(b.x[i * 6 + k] == (float)(b.indices[i] * 100 + k), "round %d call %d", round, calls);
        }
    }
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void epochs_are_counted_at_their_end(void)
{
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    d = nnt_dataset_reader(reader_desc(&s, 3), NULL);
    l = nnt_loader_new(d, loader_desc(2, 0, 0), NULL);
    CHECK(nnt_loader_batches(l) == 2 && nnt_loader_epoch(l) == 0);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 2 && nnt_loader_epoch(l) == 0);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 1 && nnt_loader_epoch(l) == 0);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 0 && nnt_loader_epoch(l) == 1);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 2 && nnt_loader_epoch(l) == 1);
    CHECK(nnt_loader_next(l, NULL) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_loader_error(l), "loader_next: out is NULL");
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 1);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

/* drop_last leaves out others each epoch. */
static void dropped_samples_differ_from_epoch_to_epoch(void)
{
    nnt_loader_desc desc = loader_desc(4, 1, 2);
    int missing[20] = { 0 }, epoch, i, kinds = 0;
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    desc.drop_last = 1;
    d = nnt_dataset_reader(reader_desc(&s, 9), NULL);
    l = nnt_loader_new(d, desc, NULL);
    for (epoch = 0; epoch < 30; epoch++) {
        int left = 36;                      /* 0 + 1 + .. + 8 less what comes is the one that does not */
        while (nnt_loader_next(l, &b) == NNT_OK && b.count) for (i = 0; i < b.count; i++) left -= (int)b.indices[i];
        missing[left]++;
    }
    for (i = 0; i < 9; i++) kinds += missing[i] > 0;
    CHECK(kinds >= 5);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void check_loader_error(nnt_dataset *d, nnt_loader_desc desc, nnt_result code, const char *text)
{
    nnt_loader *l = nnt_loader_new(d, desc, NULL);
    nnt_batch b;
    CHECK(nnt_loader_error_code(l) == code && nnt_loader_next(l, &b) == code && nnt_loader_batches(l) == 0);
    CHECK_TEXT(nnt_loader_error(l), text);
    nnt_loader_free(l);
}
static void loader_errors_say_what_is_wrong(void)
{
    nnt_loader_desc good = loader_desc(64, 1, 2), s;
    nnt_reader_desc large;
    nnt_dataset *d;
    source src;
    memset(&src, 0, sizeof src);
    d = nnt_dataset_reader(reader_desc(&src, 33), NULL);
    s = good; s.batch = 0;
    check_loader_error(d, s, NNT_ERR_ARGUMENT, "loader: batch is 0; at least 1 is needed");
    s = good; s.batch = -5;
    check_loader_error(d, s, NNT_ERR_ARGUMENT, "loader: batch is -5; at least 1 is needed");
    s = good; s.drop_last = 1;
    check_loader_error(d, s, NNT_ERR_ARGUMENT, "loader: drop_last with 33 samples and batch 64 leaves no batch; make "
                       "the batch smaller or keep the last one");
    s = good; s.workers = -2;
    check_loader_error(d, s, NNT_ERR_ARGUMENT, "loader: workers is -2; 0 to 256 or NNT_NO_WORKERS are possible");
    s = good; s.workers = 257;
    check_loader_error(d, s, NNT_ERR_ARGUMENT, "loader: workers is 257; 0 to 256 or NNT_NO_WORKERS are possible");
    s = good; s.prefetch = -1;
    check_loader_error(d, s, NNT_ERR_ARGUMENT, "loader: prefetch is -1; 0 (the usual) or a number of batches is "
                       "possible");
    nnt_dataset_free(d);
    large = reader_desc(&src, INT64_MAX);   /* buffers of more bytes than there are addresses */
    large.channels = 1 << 30;
    large.height = 1 << 20;
    d = nnt_dataset_reader(large, NULL);
    CHECK_TEXT(nnt_dataset_error(d), "");
    s = good; s.batch = INT_MAX;
    check_loader_error(d, s, NNT_ERR_MEMORY, "loader: no memory for 5 batches of 2147483647 samples; make batch or "
                       "prefetch smaller");
    nnt_dataset_free(d);
}

/* Batches of 10, sample 37 is bad: three good batches, then the error for as long as one asks, until the rewind. */
static void check_reader_failure(source s, nnt_result code, const char *text)
{
    int workers, i, round;
    for (workers = -1; workers < 6; workers++) {
        nnt_dataset *d = nnt_dataset_reader(reader_desc(&s, 100), NULL);
        nnt_loader *l = nnt_loader_new(d, loader_desc(10, 0, workers), NULL);
        nnt_batch b;
        for (round = 0; round < 3; round++) {
            for (i = 0; i < 3; i++) CHECKF(nnt_loader_next(l, &b) == NNT_OK && b.count == 10, "workers=%d", workers);
            for (i = 0; i < 2; i++) {
                CHECKF(nnt_loader_next(l, &b) == code && b.count == 0 && !b.x, "workers=%d", workers);
                CHECK(nnt_loader_error_code(l) == code);
                CHECK_TEXT(nnt_loader_error(l), text);
            }
            CHECK(nnt_loader_rewind(l, round) == NNT_OK && nnt_loader_error_code(l) == NNT_OK);
        }
        nnt_loader_free(l);
        nnt_dataset_free(d);
    }
}
static void a_bad_sample_is_reported_at_its_batch(void)
{
    source s;
    memset(&s, 0, sizeof s);
    s.fail_at = 37;
    check_reader_failure(s, NNT_ERR_FILE, "loader: sample 37: the picture 37 is torn");
    s.silent = 1;
    check_reader_failure(s, NNT_ERR_FILE, "loader: sample 37: NNT_ERR_FILE");
    memset(&s, 0, sizeof s);
    s.bad_label_at = 37;
    check_reader_failure(s, NNT_ERR_DATA, "loader: label 10 of sample 37; with 10 classes labels go from 0 to 9");
}
static void a_reader_that_gives_no_label_is_found_out(void)
{
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    s.no_label = 1;
    d = nnt_dataset_reader(reader_desc(&s, 100), NULL);
    l = nnt_loader_new(d, loader_desc(10, 0, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_DATA);
    CHECK_TEXT(nnt_loader_error(l), "loader: label -1 of sample 0; with 10 classes labels go from 0 to 9");
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

/* A sentence without an end, longer than the room for it. */
static nnt_result read_shouting(void *user, int64_t index, float *x, int32_t *label, float *target,
                                char *why, size_t cap)
{
    (void)user; (void)index; (void)x; (void)label; (void)target;
    memset(why, '!', cap);
    return NNT_ERR_DATA;
}
static void a_reader_may_write_all_of_its_room(void)
{
    nnt_reader_desc r = reader_desc(NULL, 3);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    r.read_fn = read_shouting;
    d = nnt_dataset_reader(r, NULL);
    l = nnt_loader_new(d, loader_desc(1, 0, 0), NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_DATA);
    CHECK(strncmp(nnt_loader_error(l), "loader: sample 0: !!!!", 22) == 0);
    CHECK(strlen(nnt_loader_error(l)) < NNTI_ERROR_TEXT);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void no_more_is_read_ahead_than_allowed(void)
{
#ifdef NNT_NO_THREADS
    SKIP("no threads");
#else
    nnt_loader_desc desc = loader_desc(4, 0, 2);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    double start;
    memset(&s, 0, sizeof s);
    desc.prefetch = 3;
    d = nnt_dataset_reader(reader_desc(&s, 1000), NULL);
    l = nnt_loader_new(d, desc, NULL);
    for (start = nnti_seconds(); nnti_atomic_load(&s.calls) < 12 && nnti_seconds() - start < 10; ) nnti_yield();
    for (start = nnti_seconds(); nnti_seconds() - start < 0.03; ) nnti_yield();
    CHECKF(nnti_atomic_load(&s.calls) == 12, "%d samples", nnti_atomic_load(&s.calls));
    CHECK(nnt_loader_next(l, &b) == NNT_OK);
    for (start = nnti_seconds(); nnti_atomic_load(&s.calls) < 16 && nnti_seconds() - start < 10; ) nnti_yield();
    for (start = nnti_seconds(); nnti_seconds() - start < 0.03; ) nnti_yield();
    CHECKF(nnti_atomic_load(&s.calls) == 16, "%d samples", nnti_atomic_load(&s.calls));
    nnt_loader_free(l);
    nnt_dataset_free(d);
#endif
}

static void a_batch_stays_valid_until_the_next_call(void)
{
    nnt_loader_desc desc = loader_desc(5, 1, 3);
    static float copy[30];
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    double start;
    int i;
    memset(&s, 0, sizeof s);
    desc.prefetch = 1;
    d = nnt_dataset_reader(reader_desc(&s, 50), NULL);
    l = nnt_loader_new(d, desc, NULL);
    for (i = 0; i < 30; i++) {
        CHECK(nnt_loader_next(l, &b) == NNT_OK);
        if (!b.count) continue;
        memcpy(copy, b.x, sizeof copy);
        for (start = nnti_seconds(); nnti_seconds() - start < 0.001; ) nnti_yield();
        CHECK(memcmp(copy, b.x, sizeof copy) == 0);
    }
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void leaving_after_one_batch_of_100_is_quick(void)
{
    int before = thread_count(), workers;
    for (workers = -1; workers < 6; workers++) {
        nnt_dataset *d;
        nnt_loader *l;
        nnt_batch b;
        source s;
        double start;
        memset(&s, 0, sizeof s);
        s.seconds = 0.001;
        d = nnt_dataset_reader(reader_desc(&s, 3200), NULL);
        l = nnt_loader_new(d, loader_desc(32, 1, workers), NULL);
        CHECK(nnt_loader_batches(l) == 100);
        CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 32);
        start = nnti_seconds();
        nnt_loader_free(l);
        CHECKF(nnti_seconds() - start < 1.0, "workers=%d: %g s", workers, nnti_seconds() - start);
        nnt_dataset_free(d);
        CHECKF(thread_count() == before, "workers=%d: %d threads, %d before", workers, thread_count(), before);
    }
}

/* A batch takes five seconds; nobody wants it any more. */
static void leaving_in_the_middle_of_a_slow_batch_is_quick(void)
{
    nnt_dataset *d;
    nnt_loader *l;
    source s;
    double start = nnti_seconds();
    memset(&s, 0, sizeof s);
    s.seconds = 0.001;
    d = nnt_dataset_reader(reader_desc(&s, 10000), NULL);
    l = nnt_loader_new(d, loader_desc(5000, 0, 2), NULL);
    while (nnt_loader_error_code(l) == NNT_OK && nnti_atomic_load(&s.calls) < 3 && nnti_seconds() - start < 0.1)
        nnti_yield();
    CHECK(nnt_loader_rewind(l, 3) == NNT_OK);
    nnt_loader_free(l);
    CHECKF(nnti_seconds() - start < 2.0, "%g s", nnti_seconds() - start);
    nnt_dataset_free(d);
}

static void waiting_is_measured(void)
{
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    s.seconds = 0.002;
    d = nnt_dataset_reader(reader_desc(&s, 20), NULL);
    l = nnt_loader_new(d, loader_desc(10, 0, NNT_NO_WORKERS), NULL);
    CHECK(nnt_loader_wait_seconds(l) == 0.0);
    CHECK(nnt_loader_next(l, &b) == NNT_OK);
    CHECKF(nnt_loader_wait_seconds(l) >= 0.0199, "%g s", nnt_loader_wait_seconds(l));
    CHECK(nnt_loader_next(l, &b) == NNT_OK);
    CHECKF(nnt_loader_wait_seconds(l) >= 0.0398, "%g s", nnt_loader_wait_seconds(l));
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

/* Started, stopped at any state, with any number of workers. A sanitizer makes a cycle some ten times slower, and keeps
   freed memory for a while: there are fewer cycles then, and the resident memory tells nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CYCLES = 1000, RESIDENT_TELLS = 0 };
#else
enum { CYCLES = 10000, RESIDENT_TELLS = 1 };
#endif
static void ten_thousand_loaders_leave_nothing_behind(void)
{
    int threads = 0, descriptors = 0, i;
    long resident = 0;
    heap h, hl;
    nnt_allocator a = heap_of(&h, 1000), al;
    source s;
    nnt_dataset *d;
    memset(&s, 0, sizeof s);
    d = nnt_dataset_reader(reader_desc(&s, 100), &a);
    for (i = 0; i < CYCLES; i++) {
        nnt_loader *l;
        nnt_batch b;
        al = heap_of(&hl, 1000);
        l = nnt_loader_new(d, loader_desc(9, 1, i % 4), &al);
        if (i % 3) CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 9);
        nnt_loader_free(l);
        CHECK(hl.live == 0);
        if (i == CYCLES / 10) {             /* behind what C library and sanitizer take once */
            threads = thread_count();
            descriptors = descriptor_count();
            resident = resident_pages();
        }
    }
    CHECKF(thread_count() == threads && descriptor_count() == descriptors, "%d threads, %d before; %d descriptors, %d before",
           thread_count(), threads, descriptor_count(), descriptors);
    /* the C library may give a thread another of its heaps: some hundred pages; a leaked stack a cycle were 18,000 at least */
    if (RESIDENT_TELLS) CHECKF(resident_pages() <= resident + 500, "%ld pages, %ld after %d loaders", resident_pages(), resident, CYCLES / 10);
    nnt_dataset_free(d);
    CHECK(h.live == 0);
}

static void fifty_epochs_take_no_threads_and_no_memory(void)
{
    int before = thread_count(), epoch, count = 0, threads = 0;
    heap h;
    nnt_allocator a = heap_of(&h, 1000);
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    source s;
    memset(&s, 0, sizeof s);
    d = nnt_dataset_reader(reader_desc(&s, 500), NULL);
    l = nnt_loader_new(d, loader_desc(32, 1, 3), &a);
    for (epoch = 0; epoch < 50; epoch++) {
        while (nnt_loader_next(l, &b) == NNT_OK && b.count) { }
        if (epoch == 0) { count = h.count; threads = thread_count(); }
        CHECK(h.count == count && thread_count() == threads);
    }
#ifndef NNT_NO_THREADS
    CHECK(before == 0 || threads == before + 3);
#endif
    nnt_loader_free(l);
    nnt_dataset_free(d);
    CHECK(thread_count() == before && h.live == 0);
}

static void several_loaders_share_a_dataset(void)
{
    nnt_loader *l[4];
    nnt_dataset *d;
    source s;
    char line[40];
    int i;
    memset(&s, 0, sizeof s);
    d = nnt_dataset_reader(reader_desc(&s, 211), NULL);
    for (i = 0; i < 4; i++) l[i] = nnt_loader_new(d, loader_desc(10, i & 1, 2), NULL);
    for (i = 0; i < 4; i++) { sprintf(line, "loader %d", i); check_epoch(l[i], 211, 10, 0, i & 1, line); }
    for (i = 0; i < 4; i++) nnt_loader_free(l[i]);
    nnt_dataset_free(d);
}

static void loader_survives_each_allocation_failing(void)
{
    int n;
    source s;
    memset(&s, 0, sizeof s);
    for (n = 0; n < 100; n++) {
        heap h;
        nnt_allocator a = heap_of(&h, n);
        nnt_dataset *d = nnt_dataset_reader(reader_desc(&s, 100), &a);
        nnt_loader *l = nnt_loader_new(d, loader_desc(9, 1, 2), &a);
        nnt_batch b;
        nnt_result r = nnt_loader_next(l, &b);
        CHECK(nnt_loader_error_code(l) == r && (r == NNT_OK || nnt_loader_error(l)[0]));
        nnt_loader_free(l);
        nnt_dataset_free(d);
        CHECKF(h.live == 0, "allocation %d", n);
        if (r == NNT_OK) break;
        CHECKF(r == NNT_ERR_MEMORY, "allocation %d", n);
    }
    CHECK(n >= 5 && n < 10);
}

/* ---- main ---- */

static void enter_work_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > 80) tmp = "/tmp";
    sprintf(work_dir, "%s/nnt_test_data_%ld", tmp, (long)getpid());
    if (!getcwd(root, sizeof root - 8) || mkdir(work_dir, 0700) || chdir(work_dir)) {
        printf("can't use %s\n", work_dir);
        exit(2);
    }
    strcat(root, "/");
}
static void leave_work_dir(void)
{
    DIR *dir = opendir(".");
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) if (entry->d_name[0] != '.') remove(entry->d_name);
    if (dir) closedir(dir);
    if (chdir(root) || rmdir(work_dir)) printf("%s could not be removed\n", work_dir);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    enter_work_dir();
    TEST(arrays_come_out_of_the_loader_as_they_are);
    TEST(bytes_become_value_by_255_exactly);
    TEST(array_errors_say_what_is_wrong);
    TEST(reader_errors_say_what_is_wrong);
    TEST(an_object_with_an_error_passes_it_on);
#ifndef NNT_NO_STDIO
    TEST(idx_pair_reads);
    TEST(idx_of_four_dimensions_has_channels);
    TEST(shared_idx_files_do_what_their_list_says);
    TEST(idx_sentences_say_what_is_wrong);
    TEST(idx_cut_off_at_every_byte_is_an_error);
    TEST(idx_with_any_bit_of_the_header_flipped_is_an_error);
    TEST(random_garbage_is_an_error);
    TEST(idx_survives_each_allocation_failing);
#ifdef NNT_TEST_STB
    TEST(gzip_reads_with_every_header_field);
    TEST(gzip_of_many_blocks_reads);
    TEST(gzip_cut_off_at_every_byte_is_an_error);
    TEST(gzip_with_any_bit_flipped_is_an_error);
    TEST(gzip_sentences_say_what_is_wrong);
    TEST(fashion_mnist_has_its_published_figures);
    TEST(a_real_gzip_file_damaged_anywhere_is_an_error);
#else
    TEST(gzip_without_stb_image_is_refused_in_words);
#endif
#else
    TEST(without_stdio_idx_is_refused_in_words);
#endif
    TEST(each_index_comes_once_an_epoch);
    TEST(the_order_is_the_documented_one);
    TEST(all_orders_are_as_likely);
    TEST(batches_are_the_same_bits_for_any_workers);
    TEST(rewinding_anywhere_gives_that_epoch);
    TEST(seeking_anywhere_goes_on_as_if_read_up_to_there);
    TEST(rewinding_while_workers_read_mixes_nothing);
    TEST(epochs_are_counted_at_their_end);
    TEST(dropped_samples_differ_from_epoch_to_epoch);
    TEST(loader_errors_say_what_is_wrong);
    TEST(a_bad_sample_is_reported_at_its_batch);
    TEST(a_reader_that_gives_no_label_is_found_out);
    TEST(a_reader_may_write_all_of_its_room);
    TEST(no_more_is_read_ahead_than_allowed);
    TEST(a_batch_stays_valid_until_the_next_call);
    TEST(leaving_after_one_batch_of_100_is_quick);
    TEST(leaving_in_the_middle_of_a_slow_batch_is_quick);
    TEST(waiting_is_measured);
    TEST(ten_thousand_loaders_leave_nothing_behind);
    TEST(fifty_epochs_take_no_threads_and_no_memory);
    TEST(several_loaders_share_a_dataset);
    TEST(loader_survives_each_allocation_failing);
    leave_work_dir();
    return TEST_END();
}
