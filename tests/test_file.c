/* test_file.c - reading and writing safetensors.

   What Python's package of that name writes is recorded here as bytes, and what we write is given to that package when
   NNT_TEST_PYTHON (an environment variable; else python3) can import it. The shared cases are looked for in
   NNT_TEST_SHARED. Files are made in the folder NNT_TEST_TMP and removed. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

#include <locale.h>
#include <math.h>
#include <time.h>
#ifndef _WIN32
#  include <signal.h>
#  include <sys/types.h>
#  include <sys/stat.h>
#  include <sys/wait.h>
#  include <unistd.h>
#endif

#ifndef NNT_TEST_SHARED
#  define NNT_TEST_SHARED "../shared"
#endif
#ifndef NNT_TEST_TMP
#  define NNT_TEST_TMP "."
#endif
#define FILE_A NNT_TEST_TMP "/test_file.safetensors"

/* ---- memory that is counted and can run out ---- */

typedef struct memory { size_t live, peak; int64_t left; } memory;      /* left: allocations that succeed; -1: all */

static void *memory_take(void *user, size_t bytes, size_t align)
{
    memory *m = (memory *)user;
    if (m->left == 0) return NULL;
    if (m->left > 0) m->left--;
    m->live += bytes;
    if (m->live > m->peak) m->peak = m->live;
    return nnti_default_alloc(NULL, bytes, align);
}
static void memory_give(void *user, void *p, size_t bytes)
{
    ((memory *)user)->live -= bytes;
    nnti_default_free(NULL, p, bytes);
}
static nnt_allocator memory_allocator(memory *m)
{
    nnt_allocator a;
    m->live = m->peak = 0;
    m->left = -1;
    a.alloc_fn = memory_take;
    a.free_fn = memory_give;
    a.user = m;
    return a;
}

/* ---- tensors ---- */

static nnti_file_tensor tensor(const char *name, float *data, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    nnti_file_tensor t;
    memset(&t, 0, sizeof t);
    t.name = name;
    t.rank = rank;
    t.size[0] = a;
    t.size[1] = b;
    t.size[2] = c;
    t.size[3] = d;
    t.data = data;
    return t;
}
static float bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static int same_bits(const float *a, const float *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

/* The net of the shared cases: a convolution of 1 channel to 2 filters of 3x3 with bias. */
typedef struct small_net { float weight[18], bias[2]; nnti_file_tensor t[2]; } small_net;

static void small_net_make(small_net *n)
{
    int i;
    for (i = 0; i < 18; i++) n->weight[i] = 77.0f + (float)i;
    n->bias[0] = n->bias[1] = 55.0f;
    n->t[0] = tensor("conv1.weight", n->weight, 4, 2, 1, 3, 3);
    n->t[1] = tensor("conv1.bias", n->bias, 1, 2, 0, 0, 0);
}
static int small_net_untouched(const small_net *n)
{
    int i, ok = n->bias[0] == 55.0f && n->bias[1] == 55.0f;
    for (i = 0; i < 18; i++) ok = ok && n->weight[i] == 77.0f + (float)i;
    return ok;
}
/* The values of ../shared/cases/safetensors/expected.json. */
static int small_net_loaded(const small_net *n)
{
    int i, ok = n->bias[0] == 0.5f && n->bias[1] == -2.25f;
    for (i = 0; i < 18; i++) ok = ok && n->weight[i] == -1.0f + 0.125f * (float)i;
    return ok;
}

/* ---- files ---- */

static size_t file_get(const char *path, unsigned char *to, size_t cap)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(to, 1, cap, f) : 0;
    if (f) fclose(f);
    return n;
}
static void file_put(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(p, 1, n, f) == n);
    if (f) fclose(f);
}
static int file_exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}
/* Temporary files that a save of FILE_A left behind. */
static int litter(void)
{
    int k, n = 0;
    char name[256];
    for (k = 0; k < 20; k++) {
        sprintf(name, "%s.tmp-%d", FILE_A, k);
        n += file_exists(name);
    }
    return n;
}
static void remove_all(void)
{
    int k;
    char name[256];
    remove(FILE_A);
    for (k = 0; k < 20; k++) {
        sprintf(name, "%s.tmp-%d", FILE_A, k);
        remove(name);
    }
}

/* A file in memory. Reads outside of it are a failure of the test; the n-th read can be made to fail. */
typedef struct image { const unsigned char *bytes; size_t length; int reads_left, bad; } image;

static int image_read(void *user, int64_t at, void *to, size_t n)
{
    image *m = (image *)user;
    if (m->reads_left == 0) return NNTI_SYSTEM_ENDED;
    if (m->reads_left > 0) m->reads_left--;
    if (at < 0 || (uint64_t)at > m->length || n > m->length - (size_t)at) {
        m->bad = 1;
        return NNTI_SYSTEM_ENDED;
    }
    memcpy(to, m->bytes + at, n);
    return 0;
}
/* Values of an open file into t[i].data, all or none. */
static nnt_result fetch_into(const nnti_st *f, nnti_file_tensor *t, int count)
{
    float *values;
    size_t bytes, done = 0;
    int i;
    nnt_result r = nnti_st_fetch(f, t, count, &values, &bytes);
    CHECK((r == NNT_OK) == (values != NULL));
    for (i = 0; !r && i < count; i++) {
        size_t n = (size_t)nnti_file_tensor_count(&t[i]);
        memcpy(t[i].data, values + done, n * sizeof(float));
        done += n;
    }
    nnti_free(f->a, values, bytes);
    return r;
}
static nnt_result load_tensors(const nnt_allocator *a, const char *path, nnti_file_tensor *t, int count, nnti_error *e)
{
    nnti_st_file f;
    nnt_result r = nnti_st_file_open(&f, a, "load", path, e);
    if (!r) r = fetch_into(&f.st, t, count);
    nnti_st_file_close(&f);
    return r;
}
/* The same from memory. */
static nnt_result load_image(const nnt_allocator *a, image *m, nnti_file_tensor *t, int count, nnti_error *e)
{
    nnti_source source;
    nnti_st f;
    nnt_result r;
    source.read_fn = image_read;
    source.user = m;
    source.length = (int64_t)m->length;
    r = nnti_st_open(&f, a, &source, "load", "memory", e);
    if (!r) r = fetch_into(&f, t, count);
    nnti_st_close(&f);
    CHECK(!m->bad);
    return r;
}
static nnt_result save_with(const nnti_file_calls *calls, const nnt_allocator *a, const char *path, const nnti_file_tensor *t,
                            int count, const nnti_file_pair *metadata, int pairs, nnti_error *e)
{
    nnti_st_content c;
    memset(&c, 0, sizeof c);
    c.t = t;
    c.count = count;
    c.metadata = metadata;
    c.pairs = pairs;
    return nnti_st_write(calls, a, path, &c, e);
}
static nnt_result save_tensors(const nnt_allocator *a, const char *path, const nnti_file_tensor *t, int count,
                               const nnti_file_pair *metadata, int pairs, nnti_error *e)
{
    nnti_file_calls calls = nnti_file_calls_default();
    return save_with(&calls, a, path, t, count, metadata, pairs, e);
}
static nnt_result load_bytes(const unsigned char *p, size_t n, nnti_file_tensor *t, int count, nnti_error *e)
{
    memory m;
    nnt_allocator a = memory_allocator(&m);
    image f;
    nnt_result r;
    f.bytes = p;
    f.length = n;
    f.reads_left = -1;
    f.bad = 0;
    nnti_clear_error(e);
    r = load_image(&a, &f, t, count, e);
    CHECK(m.live == 0);
    CHECK((r == NNT_OK) == (e->text[0] == 0));
    return r;
}
/* A file of a header and so many bytes of data, each 1. Returns its length. */
static size_t build(unsigned char *to, const char *header, size_t header_length, size_t data)
{
    size_t i;
    for (i = 0; i < 8; i++) to[i] = (unsigned char)((uint64_t)header_length >> 8 * i);
    memcpy(to + 8, header, header_length);
    memset(to + 8 + header_length, 1, data);
    return 8 + header_length + data;
}

/* ---- round trips ---- */

static const char odd_quote[] = "quote\"back\\slash/\b\f\n\r\t\x01\x1f\x7f";
static const char odd_utf8[] = "gr\xc3\xb6\xc3\x9f" "e.\xe9\x87\x8d\xe3\x81\xbf.\xf0\x9f\x98\x80";

static void round_trip_keeps_bits_names_and_shapes(void)
{
    static float in[7][40000], out[7][40000];
    static char name[5001];
    memory m;
    nnt_allocator a = memory_allocator(&m);
    nnti_error e;
    nnti_file_tensor t[7];
    nnti_file_pair meta[2];
    int i, k;
    uint32_t r[4];
    memset(name, 'n', 5000);
    for (i = 0; i < 7; i++)
        for (k = 0; k < 40000; k += 4) {                /* all bit patterns are values: NaN, denormals, infinities */
            nnti_random4(r, 1, 0, 0, (uint32_t)i, (uint32_t)k / 4);
            memcpy(&in[i][k], r, 16);
        }
    t[0] = tensor(odd_quote, in[0], 4, 10, 10, 20, 20);         /* more than one block, not a multiple of it */
    t[1] = tensor(odd_utf8, in[1], 1, 16384, 0, 0, 0);
    t[2] = tensor("", in[2], 0, 0, 0, 0, 0);
    t[3] = tensor(" ", in[3], 2, 3, 0, 0, 0);                   /* no values at all */
    t[4] = tensor(name, in[4], 3, 7, 11, 13, 0);
    t[5] = tensor("a", in[5], 1, 1, 0, 0, 0);
    t[6] = tensor("aa", in[6], 2, 199, 201, 0, 0);
    meta[0].key = "format";
    meta[0].value = "pt";
    meta[1].key = odd_quote;
    meta[1].value = odd_utf8;
    CHECK(save_tensors(&a, FILE_A, t, 7, meta, 2, &e) == NNT_OK);
    CHECK(m.live == 0 && litter() == 0);
    for (i = 0; i < 7; i++) t[i].data = out[i];
    CHECK(load_tensors(&a, FILE_A, t, 7, &e) == NNT_OK);
    CHECK(m.live == 0);
    for (i = 0; i < 7; i++) {
        size_t n = (size_t)nnti_file_tensor_count(&t[i]);
        CHECKF(same_bits(in[i], out[i], n), "tensor %d", i);
        CHECKF(n == 40000 || out[i][n] == 0.0f, "tensor %d: written beyond its end", i);
    }
    t[0] = t[4];                                        /* any order, any subset */
    memset(out, 0, sizeof out);
    t[1] = t[5];
    CHECK(load_tensors(&a, FILE_A, t, 2, &e) == NNT_OK);
    CHECK(same_bits(in[4], out[4], 1001) && same_bits(in[5], out[5], 1));
    CHECK(save_tensors(&a, FILE_A, NULL, 0, NULL, 0, &e) == NNT_OK);
    CHECK(load_tensors(&a, FILE_A, NULL, 0, &e) == NNT_OK);
    CHECK(save_tensors(&a, FILE_A, NULL, 0, meta, 2, &e) == NNT_OK);
    CHECK(load_tensors(&a, FILE_A, NULL, 0, &e) == NNT_OK);
    remove_all();
}

static void written_bytes_are_these(void)
{
    static const char want[] =
        "\x98\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\\u000a\\\"\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]}}    "
        "\0\0\x80\x3f" "\0\0\x80\xbf" "\x01\0\0\0";
    static unsigned char got[1000];
    float a[2], b = bits(1);
    nnt_allocator d = nnti_allocator(NULL);
    nnti_file_tensor t[2];
    nnti_file_pair meta;
    nnti_error e;
    size_t n;
    a[0] = 1.0f;
    a[1] = -1.0f;
    meta.key = "format";
    meta.value = "pt";
    t[0] = tensor("a\n\"", a, 2, 2, 1, 0, 0);
    t[1] = tensor("b", &b, 0, 0, 0, 0, 0);
    CHECK(save_tensors(&d, FILE_A, t, 2, &meta, 1, &e) == NNT_OK);
    n = file_get(FILE_A, got, sizeof got);
    CHECKF(n == sizeof want - 1 && memcmp(got, want, n) == 0, "%d bytes: %s", (int)n, (const char *)got + 8);
    if (setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "de_DE.utf8")) {      /* one that has a decimal comma */
        CHECK(save_tensors(&d, FILE_A, t, 2, &meta, 1, &e) == NNT_OK);
        n = file_get(FILE_A, got, sizeof got);
        CHECK(n == sizeof want - 1 && memcmp(got, want, n) == 0);
        CHECK(load_tensors(&d, FILE_A, t, 2, &e) == NNT_OK);
        setlocale(LC_ALL, "C");
    }
    remove_all();
}

static void python_reads_what_we_write(void)
{
    static const char script[] = NNT_TEST_TMP "/test_file.py";
    static const char text[] =
        "import sys, struct\n"
        "from safetensors import safe_open, deserialize\n"
        "b = open(sys.argv[1], 'rb').read()\n"
        "t = dict(deserialize(b))\n"
        "quote = 'quote\"back\\\\slash/\\b\\f\\n\\r\\t\\x01\\x1f\\x7f'\n"
        "utf8 = 'gr\\u00f6\\u00dfe.\\u91cd\\u307f.\\U0001f600'\n"
        "assert sorted(t) == sorted([quote, utf8, 'z']), list(t)\n"
        "q = t[quote]\n"
        "assert q['dtype'] == 'F32' and list(q['shape']) == [2, 1, 3], q\n"
        "assert struct.unpack('<6f', q['data']) == (0, .5, 1, 1.5, 2, 2.5), q\n"
        "assert list(t['z']['shape']) == [0, 4] and list(t[utf8]['shape']) == []\n"
        "n = struct.unpack('<Q', b[:8])[0]\n"
        "import json\n"
        "assert n % 8 == 0 and json.loads(b[8:8 + n])['__metadata__'] == {'k\\n': 'v\"'}\n";
    float x[6], y = 7.0f;
    nnt_allocator d = nnti_allocator(NULL);
    nnti_file_tensor t[3];
    nnti_file_pair meta;
    nnti_error e;
    const char *python = getenv("NNT_TEST_PYTHON");
    char command[1000];
    int i;
    if (!python) python = "python3";
    if (strlen(python) > 300) SKIP("NNT_TEST_PYTHON is too long");
    sprintf(command, "\"%s\" -c \"import safetensors\" > %s/test_file.log 2>&1", python, NNT_TEST_TMP);
    if (system(command) != 0) {
        remove(NNT_TEST_TMP "/test_file.log");
        SKIP("no Python with safetensors (NNT_TEST_PYTHON)");
    }
    remove(NNT_TEST_TMP "/test_file.log");
    for (i = 0; i < 6; i++) x[i] = 0.5f * (float)i;
    meta.key = "k\n";
    meta.value = "v\"";
    t[0] = tensor(odd_quote, x, 3, 2, 1, 3, 0);
    t[1] = tensor(odd_utf8, &y, 0, 0, 0, 0, 0);
    t[2] = tensor("z", x, 2, 0, 4, 0, 0);
    CHECK(save_tensors(&d, FILE_A, t, 3, &meta, 1, &e) == NNT_OK);
    file_put(script, text, sizeof text - 1);
    sprintf(command, "\"%s\" %s %s", python, script, FILE_A);
    CHECK(system(command) == 0);
    remove(script);
    remove_all();
}

/* Made by safetensors 0.8.0 (Python) from torch tensors; what they hold is in the next function. */
static const unsigned char from_python[] =
    "\300\001\000\000\000\000\000\000"
    "{\"__metadata__\":{\"note\":\"gr\303\266\303\237er \\\"x\\\" \\\\ \\n\",\"format\":\"pt\"},"
    "\"bn.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"double\":{\"dtype\":\"F64\",\"shape\":[3,2,2],\"data_offsets\":[8,104]},"
    "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[104,104]},"
    "\"single\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[104,108]},"
    "\"brain\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[108,114]},"
    "\"half\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[114,126]}} "
    "\007\000\000\000\000\000\000\000\232\231\231\231\231\231\271\077\000\000\000\020\000\000\360\077"
    "\000\000\000\060\000\000\360\077\000\000\000\000\000\000\240\066\000\000\000\000\000\000\220\066"
    "\000\000\000\000\000\000\230\066\000\000\000\360\377\377\017\070\234\165\000\210\074\344\067\176"
    "\000\000\000\360\377\377\357\307\377\377\377\357\377\377\357\107\000\000\000\000\000\000\360\377"
    "\000\000\000\000\000\000\000\200\315\314\314\275\111\100\001\200\200\377\000\076\001\200\377\173"
    "\000\174\000\176\000\200";
enum { PYTHON_BYTES = sizeof from_python - 1 };        /* without the string's own 0 */
/* The same values as torch's .to(torch.float32) gives them, as bits. */
static const uint32_t python_half[6] = { 0x3fc00000, 0xb3800000, 0x477fe000, 0x7f800000, 0x7fc00000, 0x80000000 };
static const uint32_t python_brain[3] = { 0x40490000, 0x80010000, 0xff800000 };
static const uint32_t python_single[1] = { 0xbdcccccd };
static const uint32_t python_double[12] = {             /* 0.1, halfway cases, denormals, 1e300, ends of the range */
    0x3dcccccd, 0x3f800000, 0x3f800002, 0x1, 0x0, 0x1, 0x800000, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff800000,
        0x80000000
};
typedef struct python_net { float half[6], brain[3], single[1], doubles[12],
    empty[1]; nnti_file_tensor t[5]; } python_net;
static void python_net_make(python_net *n)
{
    memset(n, 0, sizeof *n);
    n->t[0] = tensor("half", n->half, 2, 2, 3, 0, 0);
    n->t[1] = tensor("brain", n->brain, 1, 3, 0, 0, 0);
    n->t[2] = tensor("single", n->single, 0, 0, 0, 0, 0);
    n->t[3] = tensor("double", n->doubles, 3, 3, 2, 2, 0);
    n->t[4] = tensor("empty", n->empty, 2, 0, 4, 0, 0);
}
static int is_same(const float *f, const uint32_t *want, int n) { return memcmp(f, want, 4 * (size_t)n) == 0; }
static int is_zero(const void *p, size_t n)
{
    const unsigned char *c = (const unsigned char *)p;
    while (n > 0 && *c == 0) c++, n--;
    return n == 0;
}
static int python_net_untouched(const python_net *n) { return is_zero(n, offsetof(python_net, t)); }

static void files_of_python_are_read(void)
{
    python_net n;
    nnti_error e;
    int64_t tracked[1];
    nnt_allocator d = nnti_allocator(NULL);
    python_net_make(&n);
    CHECKF(load_bytes(from_python, PYTHON_BYTES, n.t, 5, &e) == NNT_OK, "%s", e.text);
    CHECK(is_same(n.half, python_half, 6));
    CHECK(is_same(n.brain, python_brain, 3));
    CHECK(is_same(n.single, python_single, 1));
    CHECK(is_same(n.doubles, python_double, 12));
    python_net_make(&n);
    file_put(FILE_A, from_python, PYTHON_BYTES);
    CHECKF(load_tensors(&d, FILE_A, n.t, 5, &e) == NNT_OK, "%s", e.text);
    CHECK(is_same(n.doubles, python_double, 12) && is_same(n.half, python_half, 6));
    remove_all();
    tracked[0] = 0;                                     /* an integer that is wanted after all */
    python_net_make(&n);
    n.t[4] = tensor("bn.num_batches_tracked", (float *)(void *)tracked, 0, 0, 0, 0, 0);
    CHECK(load_bytes(from_python, PYTHON_BYTES, n.t, 5, &e) == NNT_ERR_UNSUPPORTED);
    CHECK_TEXT(e.text,
        "load 'memory': 'bn.num_batches_tracked' is I64 in the file; "
        "F32, F64, F16 and BF16 can be loaded, convert it first");
    CHECK(python_net_untouched(&n) && tracked[0] == 0);
}

/* ---- conversions ---- */

static void every_half_widens_exactly(void)
{
    uint32_t h;
    for (h = 0; h < 0x10000; h++) {
        int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
        double v = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
        uint32_t got = nnti_f16_to_f32(h), want;
        float f = (float)(h & 0x8000 ? -v : v);         /* exact */
        memcpy(&want, &f, 4);
        if (exponent == 31)
            want = (h & 0x8000) << 16 | 0x7f800000u | (uint32_t)fraction << 13;
        CHECKF(got == want, "half %04x: %08x, not %08x", (unsigned)h, (unsigned)got, (unsigned)want);
    }
}
static void doubles_narrow_as_the_processor_does(void)
{
    uint32_t r[4], i;
    for (i = 0; i < 300000; i++) {
        volatile float f;
        float plain;
        double v;
        uint64_t u;
        uint32_t want, got;
        nnti_random4(r, 2, 0, 0, 0, i);
        u = (uint64_t)r[0] << 32 | r[1];
        if (i % 4 != 0) {                               /* around the ends of float's range and of its denormals */
            uint64_t e = i % 4 == 1 ? 1023 + 126 + r[2] % 4 : i % 4 == 2 ? 1023 - 151 + r[2] % 28 : 1023 - 2 + r[2] % 4;
            u = (u & 0x800fffffffffffffull) | e << 52;
        }
        if (i % 3 == 0) u &= ~(((uint64_t)1 << (r[3] % 53)) - 1);      /* many halfway cases */
        if (i % 7 == 0) u |= ((uint64_t)1 << (r[3] % 53)) - 1;
        memcpy(&v, &u, 8);
        f = (float)v;
        plain = f;
        memcpy(&want, &plain, 4);
        got = nnti_f64_to_f32(u);
#ifdef __FAST_MATH__                                    /* the processor then takes denormals for 0 */
        if ((got & 0x7fffffffu) <= 0x00800000u) continue;
#endif
        if ((u & 0x7fffffffffffffffull) > 0x7ff0000000000000ull)
            CHECKF((got & 0x7fffffffu) > 0x7f800000u, "%08x%08x is not a number", (unsigned)(u >> 32), (unsigned)u);
        else
            CHECKF(got == want, "double %08x%08x: %08x, not %08x", (unsigned)(u >> 32), (unsigned)u, (unsigned)got,
                (unsigned)want);
    }
    CHECK(nnti_f64_to_f32(0x7ff0000000000001ull) == 0x7fc00000u);       /* a payload that would vanish into infinity */
}

/* ---- headers, good and bad ---- */

#define F32_A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define AS_A(rest) "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]" rest "}"

typedef struct header_case { const char *header; int data; const char *error; } header_case;    /* error NULL: loads */

/* The net wants "a" of shape 2. What the reference implementation (0.8.0) accepts and refuses is the same, except where
   it says so. "H:" stands for the sentence's usual beginning. */
static const header_case header_cases[] = {
    { "{" F32_A "}", 8, NULL },
    { "{" F32_A "}  ", 8, NULL },
    { " { \"a\" : { } }", 8, "H:'{' expected at byte 0 of 14" },        /* accepted there, but its format says '{' */
    { "{\n\t\"a\" : {\r\"shape\" : [ 2 ] , \"data_offsets\" : [ 0 , 8 ] , \"dtype\" : \"F\\u00332\" } } \n", 8, NULL },
    { "{" F32_A ",\"__metadata__\":{\"x\":\"\\ud83d\\ude00\",\"y\":\"\"}}", 8, NULL },
    { "{\"__metadata__\":{}," F32_A "}", 8, NULL },
    { "{" AS_A(",\"x\":[1,{\"y\":[null,true,false,-0.5e+3,\"\",{},[]]}]") "}", 8, NULL },
    { "{" F32_A ",\"z\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[8,8]}}", 8, NULL },
    { "{" F32_A ",\"z\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[0,0]}}", 8, NULL },
    { "{" F32_A ",\"z\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[4,4]}}", 8,
      "'a' (bytes 0 to 8) and 'z' (4 to 4) overlap" },
    { "{" F32_A ",\"z\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,3],\"data_offsets\":[8,11]}}", 11, NULL },
    { "{" F32_A ",\"z\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[8,11]}}", 11, NULL },
    { "{" F32_A ",\"z\":{\"dtype\":\"F4\",\"shape\":[5],\"data_offsets\":[8,11]}}", 11,
      "'z' is 5 of F4, which is not a possible number of bytes" },
    { "{" F32_A ",\"z\":{\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[8,24]}}", 24,
      "'z' has dtype 'F128', which safetensors does not have" },
    { "{" F32_A ",\"z\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[8,8]}}", 8,
      "'z' is 4611686018427387904 of F32, which is not a possible number of bytes" },
    { "{" F32_A ",\"z\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[8,8]}}", 8,
      "'z' is 4294967296x4294967296 of F32, which is not a possible number of bytes" },
    { "{" F32_A ",\"z\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[8,8]}}", 8,
      "H:a number below 2^63 expected at byte 100 of 125" },
    { "{" F32_A ",\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[9,8]}}", 8,
      "'z' is 0 of F32, which takes 0 bytes, but its data_offsets are 9 and 8" },
    { "{" F32_A "," F32_A "}", 8, "'a' (bytes 0 to 8) and 'a' (0 to 8) overlap" },      /* accepted there */
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
      "\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
      "'a' is in the header twice" },                                                   /* accepted there */
    { "{" F32_A ",\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 8, NULL },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
      "bytes 0 to 4, before 'a', belong to no tensor" },
    { "{" F32_A "}", 9, "its header tells of 8 bytes of values and 9 are there; the rest belongs to no tensor" },
    { "{" F32_A "}", 7, "its header tells of 8 bytes of values and 7 are there; it was cut off" },
    { "{" F32_A ",\"__metadata__\":{\"x\":1}}", 8, "H:a string expected at byte 74 of 77" },
    { "{" F32_A ",\"__metadata__\":[]}", 8, "H:'{' expected at byte 69 of 72" },
    { "{" F32_A ",\"__metadata__\":null}", 8, "H:'{' expected at byte 69 of 74" },      /* accepted there */
    { "{\"__metadata__\":{},\"__metadata__\":{}," F32_A "}", 8, "H:__metadata__ once expected at byte 34 of 90" },
    { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
      "H:each of dtype, shape, data_offsets once expected at byte 28 of 68" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "H:dtype, shape and data_offsets expected at byte 32 of 33" },
    { "{\"a\":[\"F32\",[2],[0,8]]}", 8, "H:'{' expected at byte 5 of 23" },             /* accepted there */
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8,
      "H:',' or ']' expected at byte 30 of 56" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
      "H:a whole number expected at byte 29 of 55" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", 8,
      "H:a whole number expected at byte 31 of 55" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]}}", 8,
      "H:a whole number expected at byte 31 of 55" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "H:']' expected at byte 51 of 56" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8, "H:',' expected at byte 49 of 52" },
    { "{\"a\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "H:a string expected at byte 14 of 51" },
    { "{\"\\ud83d\":{}}", 8, "H:both halves of a surrogate pair expected at byte 8 of 13" },
    { "{\"\\ude00\":{}}", 8, "H:both halves of a surrogate pair expected at byte 8 of 13" },
    { "{\"\\ud83d\\u0041\":{}}", 8, "H:both halves of a surrogate pair expected at byte 14 of 19" },
    { "{\"\\u00g0\":{}}", 8, "H:four hexadecimal digits expected at byte 6 of 13" },
    { "{\"\\x\":{}}", 8, "H:an escape that JSON knows expected at byte 3 of 9" },
    { "{\"\n\":{}}", 8, "H:no control character expected at byte 2 of 8" },
    { "{\"a", 8, "H:the end of a string expected at byte 3 of 3" },
    { "{\"a\\", 8, "H:an escape that JSON knows expected at byte 4 of 4" },
    { "{" F32_A, 8, "H:',' or '}' expected at byte 53 of 53" },
    { "{" F32_A ",}", 8, "H:a string expected at byte 54 of 55" },
    { "{" F32_A "}x", 8, "H:only spaces after the last '}' expected at byte 54 of 55" },
    { "{" F32_A "}{}", 8, "H:only spaces after the last '}' expected at byte 54 of 56" },
    { "{" AS_A(",\"x\":nul") "}", 8, "H:a value expected at byte 57 of 62" },
    { "{" AS_A(",\"x\":1.") "}", 8, "H:a digit expected at byte 59 of 61" },
    { "{" AS_A(",\"x\":01") "}", 8, "H:',' or '}' expected at byte 58 of 61" },
    { "{" AS_A(",\"x\":1e") "}", 8, "H:a digit expected at byte 59 of 61" },
    { "{" AS_A(",\"x\":-") "}", 8, "H:a digit expected at byte 58 of 60" },
    { "{" AS_A(",\"x\":+1") "}", 8, "H:a value expected at byte 57 of 61" },
    { "{" AS_A(",\"x\":{1:2}") "}", 8, "H:a string expected at byte 58 of 64" },
    { "\xef\xbb\xbf{" F32_A "}", 8, "H:'{' expected at byte 0 of 57" },
    { "[]", 0, "H:'{' expected at byte 0 of 2" },
    { "", 0, "H:'{' expected at byte 0 of 0" },
    { "{\"\xc0\x80\":{}}", 0, "its header is not UTF-8; not a safetensors file" },
    { "{\"\xed\xa0\x80\":{}}", 0, "its header is not UTF-8; not a safetensors file" },
    { "{\"\xf4\x90\x80\x80\":{}}", 0, "its header is not UTF-8; not a safetensors file" },
    { "{\"\xe2\x82", 0, "its header is not UTF-8; not a safetensors file" },
    { "{}", 0, "'a' (2 here) is not in the file; layers need the names that they were saved under" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8,
      "'a' is 1x2 in the file and 2 here; the net probably differs" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,2,1,1],\"data_offsets\":[0,8]}}", 8,
      "'a' is 1x1x2x1x... (5 sizes) in the file and 2 here; the net probably differs" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8,
      "'a' is scalar in the file and 2 here; the net probably differs" },
    { "{\"a\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[0,16]}}", 16,
      "'a' is C64 in the file; F32, F64, F16 and BF16 can be loaded, convert it first" }
};

static void headers_are_taken_or_refused_in_these_words(void)
{
    static unsigned char file[2000];
    size_t i;
    for (i = 0; i < sizeof header_cases / sizeof header_cases[0]; i++) {
        const header_case *c = &header_cases[i];
        float data[2];
        char want[700];
        nnti_file_tensor t = tensor("a", data, 1, 2, 0, 0, 0);
        nnti_error e;
        size_t n = build(file, c->header, strlen(c->header), (size_t)c->data);
        nnt_result r;
        data[0] = data[1] = 9.0f;
        r = load_bytes(file, n, &t, 1, &e);
        if (!c->error) {
            CHECKF(r == NNT_OK && data[0] == bits(0x01010101) && data[1] == data[0], "%s: %s", c->header, e.text);
        } else {
            int usual = strncmp(c->error, "H:", 2) == 0;
            sprintf(want, "load 'memory': %s%s", usual ? "its header is not as safetensors has it: " : "",
                c->error + (usual ? 2 : 0));
            CHECKF(r != NNT_OK && strcmp(e.text, want) == 0, "%s\n  got  \"%s\"\n  want \"%s\"", c->header, e.text,
                want);
            CHECKF(data[0] == 9.0f && data[1] == 9.0f, "%s", c->header);
        }
    }
}

static void nesting_has_a_limit(void)
{
    static unsigned char file[300000];
    static char header[250000];
    static const int depths[] = { 1, 100, 101, 1000, 100000 };
    size_t k;
    for (k = 0; k < sizeof depths / sizeof depths[0]; k++) {
        float data[2];
        nnti_file_tensor t = tensor("a", data, 1, 2, 0, 0, 0);
        nnti_error e;
        int i, depth = depths[k];
        size_t n = (size_t)sprintf(header, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":");
        for (i = 0; i < depth; i++) header[n++] = '[';
        for (i = 0; i < depth; i++) header[n++] = ']';
        header[n++] = '}';
        header[n++] = '}';
        CHECKF((load_bytes(file, build(file, header, n, 8), &t, 1, &e) == NNT_OK) == (depth <= 100), "depth %d: %s",
            depth, e.text);
        if (depth > 100) CHECKF(strstr(e.text, "less nesting expected at byte 157") != NULL, "%s", e.text);
    }
}

static void long_and_odd_names_fit_the_sentence(void)
{
    static unsigned char file[5000];
    static char header[4000], name[2000];
    float data[2];
    nnti_file_tensor t;
    nnti_error e;
    int i;
    for (i = 0; i < 1000; i += 2) memcpy(name + i, "\xc3\xb6", 2);
    sprintf(header, "{\"%s\":{\"dtype\":\"U\\u0007\",\"shape\":[2],\"data_offsets\":[0,8]}}", name);
    t = tensor("a", data, 1, 2, 0, 0, 0);
    CHECK(load_bytes(file, build(file, header, strlen(header), 8), &t, 1, &e) == NNT_ERR_FORMAT);
    CHECKF(nnti_utf8_valid(e.text, strlen(e.text)) && strstr(e.text, "\xc3\xb6...' has dtype 'U\\u0007', which"), "%s",
        e.text);
    t = tensor(name, data, 1, 2, 0, 0, 0);
    CHECK(load_bytes(file, build(file, "{}", 2, 0), &t, 1, &e) == NNT_ERR_SHAPE);
    CHECK(nnti_utf8_valid(e.text, strlen(e.text)));
    t = tensor("fc1.weight", data, 2, 4096, 6400, 0, 0);
    strcpy(header, "{\"fc1.weight\":{\"dtype\":\"U8\",\"shape\":[4096,0],\"data_offsets\":[0,0]}}");
    CHECK(load_bytes(file, build(file, header, strlen(header), 0), &t, 1, &e) == NNT_ERR_SHAPE);
    CHECK_TEXT(e.text,
        "load 'memory': 'fc1.weight' is 4096x0 in the file and 4096x6400 here; the input size probably differs");
}

static void many_tensors_are_sorted_and_found(void)
{
    enum { COUNT = 3000 };
    static float data[COUNT];
    static char names[COUNT][16];
    static nnti_file_tensor t[COUNT];
    nnt_allocator d = nnti_allocator(NULL);
    nnti_error e;
    int i, k;
    for (i = 0; i < COUNT; i++) {
        data[i] = (float)i;
        k = (int)((int64_t)i * 7919 % COUNT);           /* every number once, in no order */
        sprintf(names[i], "n%x", (unsigned)k * 2654435761u);
        t[i] = tensor(names[i], &data[i], 1, 1, 0, 0, 0);
    }
    CHECK(save_tensors(&d, FILE_A, t, COUNT, NULL, 0, &e) == NNT_OK);
    memset(data, 0, sizeof data);
    CHECKF(load_tensors(&d, FILE_A, t, COUNT, &e) == NNT_OK, "%s", e.text);
    for (i = 0; i < COUNT; i++) CHECKF(data[i] == (float)i, "%d", i);
    remove_all();
}

/* ---- damage ---- */

static void a_file_cut_anywhere_is_an_error(void)
{
    size_t n;
    for (n = 0; n < PYTHON_BYTES; n++) {
        unsigned char *cut = (unsigned char *)malloc(n ? n : 1);        /* as long as it is, for the sanitizer */
        python_net net;
        nnti_error e;
        python_net_make(&net);
        CHECK(cut != NULL);
        if (!cut) return;
        memcpy(cut, from_python, n);
        CHECKF(load_bytes(cut, n, net.t, 5, &e) == NNT_ERR_FORMAT, "%d bytes: %s", (int)n, e.text);
        CHECKF(python_net_untouched(&net), "%d bytes", (int)n);
        free(cut);
    }
}
static void a_flipped_bit_gives_an_error_or_values(void)
{
    enum { HEADER = 8 + 448 };                          /* its length before it */
    static unsigned char file[PYTHON_BYTES];
    size_t i;
    int fine = 0;
    for (i = 0; i < 8 * PYTHON_BYTES; i++) {
        python_net n;
        nnti_error e;
        nnt_result r;
        python_net_make(&n);
        memcpy(file, from_python, sizeof file);
        file[i / 8] ^= (unsigned char)(1 << i % 8);
        r = load_bytes(file, sizeof file, n.t, 5, &e);
        if (i < 8 * HEADER) fine += r == NNT_OK;
        else CHECKF(r == NNT_OK, "bit %d: %s", (int)i, e.text);         /* data may be anything */
        if (r) CHECKF(python_net_untouched(&n), "bit %d: %s", (int)i, e.text);
        else CHECKF(is_same(n.single, python_single, 1) || n.single[0] != 0.0f, "bit %d", (int)i);
    }
    CHECKF(fine > 0 && fine < 1000, "%d of 3648 flips in the header load: those in metadata and in names that are passed over", fine);
}
static void random_headers_do_no_harm(void)
{
    static const char *const words[] = {
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u00", "\"a\"", "\"b\"", "\"dtype\"", "\"shape\"",
            "\"data_offsets\"", "\"F32\"",
        "\"I64\"", "\"__metadata__\"", "0", "1", "2", "8", "-1", "1e5", "18446744073709551616", "null", "true", " ",
            "\n", "\xc3\xb6", "\xff",
        "[2]", "[0,8]", "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", "\"dtype\":\"F32\"",
            "\"shape\":[2]", "\"data_offsets\":[0,8]",
        "{\"a\":{", "}}"
    };
    static unsigned char file[4000];
    static char header[3000];
    uint32_t i, loaded = 0;
    for (i = 0; i < 50000; i++) {
        float data[2];
        nnti_file_tensor t = tensor("a", data, 1, 2, 0, 0, 0);
        nnti_error e;
        uint32_t r[4], k, count;
        size_t n = 0;
        nnti_random4(r, 3, 0, 0, i, 0);
        count = r[0] % 30;
        if (r[1] % 2) n = (size_t)sprintf(header, "{\"a\":{");
        for (k = 0; k < count; k++) {
            const char *w;
            nnti_random4(r, 3, 0, 0, i, k + 1);
            w = words[r[0] % (sizeof words / sizeof words[0])];
            memcpy(header + n, w, strlen(w));
            n += strlen(w);
        }
        data[0] = data[1] = 9.0f;
        if (load_bytes(file, build(file, header, n, 8), &t, 1, &e) == NNT_OK) loaded++;
        else CHECKF(data[0] == 9.0f && data[1] == 9.0f, "seed 3, case %u", (unsigned)i);
    }
    CHECKF(loaded < 500, "%u", (unsigned)loaded);
}
static void a_read_error_leaves_everything_as_it_was(void)
{
    int n;
    for (n = 0; ; n++) {
        memory m;
        nnt_allocator a = memory_allocator(&m);
        image f;
        python_net net;
        nnti_error e;
        python_net_make(&net);
        f.bytes = from_python;
        f.length = PYTHON_BYTES;
        f.reads_left = n;
        f.bad = 0;
        if (load_image(&a, &f, net.t, 5, &e) == NNT_OK) break;
        CHECK(e.code == NNT_ERR_FILE && m.live == 0 && python_net_untouched(&net));
        CHECK_TEXT(e.text, "load 'memory': can't be read: it ended early; something else changed it meanwhile");
    }
    CHECK(n == 6);                                      /* length, header, four tensors with values */
}
static void no_memory_at_any_point_is_an_error(void)
{
    memory m;
    nnt_allocator a = memory_allocator(&m);
    int n;
    nnti_error e;
    for (n = 0; ; n++) {
        python_net net;
        image f;
        nnt_result r;
        python_net_make(&net);
        f.bytes = from_python;
        f.length = PYTHON_BYTES;
        f.reads_left = -1;
        f.bad = 0;
        m.left = n;
        r = load_image(&a, &f, net.t, 5, &e);
        CHECK(m.live == 0);
        if (r == NNT_OK) break;
        CHECK(r == NNT_ERR_MEMORY && python_net_untouched(&net));
        CHECKF(strstr(e.text, "load 'memory': out of memory; needs ") == e.text, "%s", e.text);
    }
    CHECK(n == 4);                                      /* header, entries, block, values */
    for (n = 0; ; n++) {
        small_net net;
        nnt_result r;
        small_net_make(&net);
        file_put(FILE_A, "old", 3);
        m.left = n;
        r = save_tensors(&a, FILE_A, net.t, 2, NULL, 0, &e);
        CHECK(m.live == 0 && litter() == 0);
        if (r == NNT_OK) break;
        CHECK(r == NNT_ERR_MEMORY);
        CHECKF(strstr(e.text, "save '" FILE_A "': out of memory; needs ") == e.text, "%s", e.text);
        CHECK(file_get(FILE_A, (unsigned char *)e.text, 10) == 3);
    }
    CHECK(n == 4);                                      /* a list of names, header, names, block */
    remove_all();
}

/* ---- saving ---- */

/* System calls of which one fails: the n-th write, flush, rename or close. */
typedef struct faulty { int writes, flushes, renames,
    closes; size_t largest_write; int die; } faulty;     /* calls before it; -1: none fails */
static int fault_here(int *left, int die)
{
    if (*left < 0) return 0;
    if ((*left)-- > 0) return 0;
#ifndef _WIN32
    if (die) raise(SIGKILL);
#endif
    (void)die;
    return 1;
}
static int64_t faulty_write(void *user, nnti_handle h, const void *p, size_t n)
{
    faulty *f = (faulty *)user;
    if (fault_here(&f->writes, f->die)) return -ENOSPC;
    if (f->largest_write && n > f->largest_write) n = f->largest_write;
    return nnti_file_write(NULL, h, p, n);
}
static int faulty_flush(void *user, nnti_handle h)
{
    faulty *f = (faulty *)user;
    return fault_here(&f->flushes, f->die) ? EIO : nnti_file_flush(NULL, h);
}
static int faulty_close(void *user, nnti_handle h)
{
    faulty *f = (faulty *)user;
    int r = nnti_file_close(NULL, h);
    return fault_here(&f->closes, f->die) ? EIO : r;
}
static int faulty_rename(void *user, const char *from, const char *to)
{
    faulty *f = (faulty *)user;
    return fault_here(&f->renames, f->die) ? EACCES : nnti_file_rename(NULL, from, to);
}
static nnti_file_calls faulty_calls(faulty *f)
{
    nnti_file_calls c;
    f->writes = f->flushes = f->renames = f->closes = -1;
    f->largest_write = 0;
    f->die = 0;
    c.write_fn = faulty_write;
    c.flush_fn = faulty_flush;
    c.close_fn = faulty_close;
    c.rename_fn = faulty_rename;
    c.user = f;
    return c;
}
/* A file of 200 KB, that is four writes; its values tell which save it is of. */
enum { BIG = 50000 };
static nnt_result save_big(const nnti_file_calls *c, float value, nnti_error *e)
{
    static float data[BIG];
    nnt_allocator d = nnti_allocator(NULL);
    nnti_file_tensor t = tensor("big", data, 1, BIG, 0, 0, 0);
    int i;
    for (i = 0; i < BIG; i++) data[i] = value;
    return save_with(c, &d, FILE_A, &t, 1, NULL, 0, e);
}
/* The value that the file holds throughout, -1 when it can't be loaded or is a mixture. */
static float load_big(void)
{
    static float data[BIG];
    nnt_allocator d = nnti_allocator(NULL);
    nnti_file_tensor t = tensor("big", data, 1, BIG, 0, 0, 0);
    nnti_error e;
    int i;
    if (load_tensors(&d, FILE_A, &t, 1, &e) != NNT_OK) return -1.0f;
    for (i = 0; i < BIG; i++) if (data[i] != data[0]) return -1.0f;
    return data[0];
}
static void a_failed_save_leaves_the_old_file_and_nothing_else(void)
{
    static const char *const step[] = { "writing", "flushing", "renaming" };
    static const char *const cause[] = { "no space left on the disk", "the disk reported an error",
        "permission denied" };
    faulty f;
    nnti_file_calls c = faulty_calls(&f);
    nnti_error e;
    char want[600];
    int kind, n, failed = 0;
    CHECK(save_big(&c, 1.0f, &e) == NNT_OK && load_big() == 1.0f);
    for (kind = 0; kind < 3; kind++)
        for (n = 0; n < (kind == 0 ? 4 : 1); n++) {
            c = faulty_calls(&f);
            *(kind == 0 ? &f.writes : kind == 1 ? &f.flushes : &f.renames) = n;
            CHECK(save_big(&c, 2.0f, &e) == NNT_ERR_FILE);
            sprintf(want, "save '%s': %s '%s.tmp-0' failed: %s; a file that was there before is unchanged", FILE_A,
                step[kind], FILE_A, cause[kind]);
            CHECK_TEXT(e.text, want);
            CHECKF(load_big() == 1.0f && litter() == 0, "%s %d", step[kind], n);
            failed++;
        }
    CHECK(failed == 6);
    for (n = 0; n < 2; n++) {                           /* after the rename: the folder's flush, the closing */
        c = faulty_calls(&f);
        if (n == 0) f.flushes = 1;
        else f.closes = 1;
        CHECK(save_big(&c, 3.0f + (float)n, &e) == NNT_ERR_FILE);
        CHECK_TEXT(e.text,
            "save '" FILE_A "': the new file is in place, but may be lost if the power fails now: "
            "the disk reported an error");
        CHECK(load_big() == 3.0f + (float)n && litter() == 0);
    }
    c = faulty_calls(&f);
    f.largest_write = 1000;                             /* a disk that takes little at a time */
    CHECK(save_big(&c, 5.0f, &e) == NNT_OK && load_big() == 5.0f);
    remove_all();
    c = faulty_calls(&f);
    f.renames = 0;                                      /* where there was no file, there is none */
    CHECK(save_big(&c, 6.0f, &e) == NNT_ERR_FILE && !file_exists(FILE_A) && litter() == 0);
    remove_all();
}
static void a_killed_save_leaves_a_whole_file_and_no_pile(void)
{
#ifdef _WIN32
    SKIP("needs fork");
#else
    faulty f;
    nnti_file_calls c = faulty_calls(&f);
    nnti_error e;
    float value = 1.0f;
    int i, killed = 0;
    CHECK(save_big(&c, value, &e) == NNT_OK);
    for (i = 0; i < 90; i++) {
        pid_t child = fork();
        float got;
        int status = 0;
        if (child == 0) {                               /* killed at the n-th write, flush,
            rename or close of its second save */
            c = faulty_calls(&f);
            f.die = 1;
            if (i % 9 < 4) f.writes = 4 + i % 9;
            else if (i % 9 < 6) f.flushes = 2 + i % 9 - 4;
            else if (i % 9 < 7) f.renames = 1;
            else f.closes = 2 + i % 9 - 7;
            if (i % 9 >= 4) f.largest_write = 60000;
            (void)save_big(&c, value + 1.0f, &e);
            (void)save_big(&c, value + 2.0f, &e);
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        killed += WIFSIGNALED(status) ? 1 : 0;
        got = load_big();
        CHECKF(got == value + 1.0f || got == value + 2.0f, "kill %d: %g after %g", i, got, value);
        CHECKF(litter() <= 1, "kill %d: %d files", i, litter());
        value = got;
    }
    CHECKF(killed == 90, "%d", killed);
    c = faulty_calls(&f);
    CHECK(save_big(&c, 0.0f, &e) == NNT_OK && load_big() == 0.0f && litter() == 0);
    remove_all();
#endif
}
static void saves_at_once_do_not_meet(void)
{
    char name[300];
    nnti_handle h;
    faulty f;
    nnti_file_calls c = faulty_calls(&f);
    nnti_error e;
    CHECK(nnti_temporary_open(FILE_A, name, sizeof name, &h) == 0);
    CHECK_TEXT(name, FILE_A ".tmp-0");
    CHECK(save_big(&c, 1.0f, &e) == NNT_OK && load_big() == 1.0f);      /* by way of .tmp-1 */
    CHECK(litter() == 1 && file_exists(name));                          /* the other's file is still its own */
    CHECK(nnti_file_write(NULL, h, "x", 1) == 1 && nnti_file_close(NULL, h) == 0);
    CHECK(save_big(&c, 2.0f, &e) == NNT_OK && load_big() == 2.0f);      /* now it is a dead one's */
    CHECK(litter() == 0);
    remove_all();
}
static void what_can_not_be_opened_or_created_is_named(void)
{
    nnt_allocator d = nnti_allocator(NULL);
    small_net n;
    nnti_error e;
    small_net_make(&n);
    CHECK(load_tensors(&d, NNT_TEST_TMP "/no-such/a.safetensors", n.t, 2, &e) == NNT_ERR_FILE);
    CHECK_TEXT(e.text, "load '" NNT_TEST_TMP "/no-such/a.safetensors': can't be opened: no such file or folder");
    CHECK(save_tensors(&d, NNT_TEST_TMP "/no-such/a.safetensors", n.t, 2, NULL, 0, &e) == NNT_ERR_FILE);
    CHECK_TEXT(e.text, "save '" NNT_TEST_TMP "/no-such/a.safetensors': can't be created: no such file or folder");
#ifndef _WIN32
    CHECK(load_tensors(&d, NNT_TEST_TMP, n.t, 2, &e) == NNT_ERR_FILE);
    CHECK_TEXT(e.text, "load '" NNT_TEST_TMP "': can't be opened: it is not a regular file");
    CHECK(load_tensors(&d, "/dev/null", n.t, 2, &e) == NNT_ERR_FILE);
    CHECK(save_tensors(&d, "/dev/null", n.t, 2, NULL, 0, &e) == NNT_ERR_FILE);
    CHECK_TEXT(e.text, "save '/dev/null': can't be created: it is not a regular file");
#endif
    CHECK(small_net_untouched(&n));
}
static void names_that_could_not_be_read_again_are_refused(void)
{
    nnt_allocator d = nnti_allocator(NULL);
    small_net n;
    nnti_error e;
    nnti_file_pair meta;
    small_net_make(&n);
    n.t[1].name = "conv1.weight";
    CHECK(save_tensors(&d, FILE_A, n.t, 2, NULL, 0, &e) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(e.text,
        "save '" FILE_A "': the name 'conv1.weight' names two tensors; give the layer another one (nnt_name)");
    n.t[1].name = "__metadata__";
    CHECK(save_tensors(&d, FILE_A, n.t, 2, NULL, 0, &e) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(e.text,
        "save '" FILE_A "': the name '__metadata__' is taken by the format; give the layer another one (nnt_name)");
    n.t[1].name = "\xff";
    CHECK(save_tensors(&d, FILE_A, n.t, 2, NULL, 0, &e) == NNT_ERR_ARGUMENT);
    meta.key = "k";
    meta.value = "\x80";
    CHECK(save_tensors(&d, FILE_A, n.t, 1, &meta, 1, &e) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(e.text, "save '" FILE_A "': metadata 'k' is not UTF-8");
    CHECK(!file_exists(FILE_A) && litter() == 0);
}
static void a_private_file_stays_private(void)
{
#ifdef _WIN32
    SKIP("no such permissions");
#else
    faulty f;
    nnti_file_calls c = faulty_calls(&f);
    nnti_error e;
    struct stat s;
    CHECK(save_big(&c, 1.0f, &e) == NNT_OK);
    CHECK(chmod(FILE_A, 0600) == 0);
    CHECK(save_big(&c, 2.0f, &e) == NNT_OK);
    CHECK(stat(FILE_A, &s) == 0 && (s.st_mode & 0777) == 0600 && load_big() == 2.0f);
    remove_all();
#endif
}

/* ---- shared cases ---- */

typedef struct shared_case { const char *file; nnt_result result; const char *error; } shared_case;
static const shared_case shared_cases[] = {
    { "good", NNT_OK, "" },
    { "good_f16", NNT_OK, "" },
    { "good_bf16", NNT_OK, "" },
    { "extra_tensor", NNT_OK, "" },
    { "header_longer_than_file", NNT_ERR_FORMAT,
      "its header would have 100000 bytes, but the file has 224; it was cut off or is no safetensors file" },
    { "header_length_2e63", NNT_ERR_FORMAT,
      "its header would have 9223372036854775808 bytes and at most 100000000 are allowed; not a safetensors file" },
    { "seven_bytes", NNT_ERR_FORMAT, "has 7 bytes; a safetensors file begins with 8 that give its header's length" },
    { "overlap", NNT_ERR_FORMAT, "'conv1.weight' (bytes 0 to 72) and 'conv1.bias' (64 to 72) overlap" },
    { "shape_larger_than_data", NNT_ERR_FORMAT,
      "'conv1.weight' is 1000x1000 of F32, which takes 4000000 bytes, but its data_offsets are 0 and 4" },
    { "not_json", NNT_ERR_FORMAT, "its header is not as safetensors has it: a string expected at byte 33 of 37" },
    { "not_utf8", NNT_ERR_FORMAT, "its header is not UTF-8; not a safetensors file" },
    { "unknown_dtype", NNT_ERR_FORMAT, "'conv1.weight' has dtype 'F31', which safetensors does not have" },
    { "wrong_shape_for_net", NNT_ERR_SHAPE,
      "'conv1.weight' is 1x2x3x3 in the file and 2x1x3x3 here; the net probably differs" },
    { "missing_bias", NNT_ERR_SHAPE,
      "'conv1.bias' (2 here) is not in the file; layers need the names that they were saved under" }
};
static void shared_cases_give_what_they_should(void)
{
    size_t i;
    if (!file_exists(NNT_TEST_SHARED "/cases/safetensors/good.safetensors")) SKIP("no " NNT_TEST_SHARED "/cases");
    for (i = 0; i < sizeof shared_cases / sizeof shared_cases[0]; i++) {
        const shared_case *c = &shared_cases[i];
        char path[500], want[700];
        memory m;
        nnt_allocator a = memory_allocator(&m);
        small_net n;
        nnti_error e;
        nnt_result r;
        clock_t start = clock();
        nnti_clear_error(&e);
        sprintf(path, "%s/cases/safetensors/%s.safetensors", NNT_TEST_SHARED, c->file);
        sprintf(want, "load '%s': %s", path, c->error);
        small_net_make(&n);
        r = load_tensors(&a, path, n.t, 2, &e);
        CHECKF(r == c->result, "%s: %s", c->file, nnt_result_name(r));
        CHECK_TEXT(e.text, c->error[0] ? want : "");
        CHECKF(r ? small_net_untouched(&n) : small_net_loaded(&n), "%s", c->file);
        CHECKF(m.live == 0 && m.peak < 200000, "%s: %d bytes", c->file, (int)m.peak);
        CHECKF((double)(clock() - start) < 0.010 * CLOCKS_PER_SEC, "%s takes too long", c->file);
    }
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    remove_all();
    TEST(round_trip_keeps_bits_names_and_shapes);
    TEST(written_bytes_are_these);
    TEST(python_reads_what_we_write);
    TEST(files_of_python_are_read);
    TEST(every_half_widens_exactly);
    TEST(doubles_narrow_as_the_processor_does);
    TEST(headers_are_taken_or_refused_in_these_words);
    TEST(nesting_has_a_limit);
    TEST(long_and_odd_names_fit_the_sentence);
    TEST(many_tensors_are_sorted_and_found);
    TEST(a_file_cut_anywhere_is_an_error);
    TEST(a_flipped_bit_gives_an_error_or_values);
    TEST(random_headers_do_no_harm);
    TEST(a_read_error_leaves_everything_as_it_was);
    TEST(no_memory_at_any_point_is_an_error);
    TEST(a_failed_save_leaves_the_old_file_and_nothing_else);
    TEST(a_killed_save_leaves_a_whole_file_and_no_pile);
    TEST(saves_at_once_do_not_meet);
    TEST(what_can_not_be_opened_or_created_is_named);
    TEST(names_that_could_not_be_read_again_are_refused);
    TEST(a_private_file_stays_private);
    TEST(shared_cases_give_what_they_should);
    return TEST_END();
}
