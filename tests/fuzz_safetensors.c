/* fuzz_safetensors.c - whatever bytes a file has, loading it gives values or an error, and all memory back.

   With libFuzzer:   clang -g -fsanitize=fuzzer,address,undefined -I. tests/fuzz_safetensors.c -o fuzz -lm -lpthread
   Without:          cc -g -fsanitize=address,undefined -DFUZZ_MAIN -I. tests/fuzz_safetensors.c -o fuzz -lm -lpthread
       ./fuzz FILE...             loads these files
       ./fuzz --random N [SEED]   loads N mutations of a valid file; the case that fails can be repeated by its number:
       ./fuzz --case I [SEED]
   A broken rule ends the program by abort(). */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RULE(c) do { if (!(c)) { fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #c); abort(); } } while (0)

typedef struct counted { size_t live, peak; } counted;
static void *counted_take(void *user, size_t bytes, size_t align)
{
    counted *m = (counted *)user;
    m->live += bytes;
    if (m->live > m->peak) m->peak = m->live;
    return nnti_default_alloc(NULL, bytes, align);
}
static void counted_give(void *user, void *p, size_t bytes)
{
    ((counted *)user)->live -= bytes;
    nnti_default_free(NULL, p, bytes);
}

typedef struct image { const uint8_t *bytes; size_t length; } image;
static int image_read(void *user, int64_t at, void *to, size_t n)
{
    const image *m = (const image *)user;
    RULE(at >= 0 && (uint64_t)at <= m->length && n <= m->length - (size_t)at);
    memcpy(to, m->bytes + at, n);
    return 0;
}
static void set_tensor(nnti_file_tensor *t, const char *name, int rank, int64_t a, int64_t b)
{
    memset(t, 0, sizeof *t);
    t->name = name;
    t->rank = rank;
    t->size[0] = a;
    t->size[1] = b;
}

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nnti_file_tensor t[3];
    counted m;
    nnt_allocator a;
    nnti_source s;
    nnti_st st;
    nnti_file_pair pair;
    size_t at = 0;
    image f;
    nnti_error e;
    float *values = NULL;
    size_t bytes = 0;
    nnt_result r;
    m.live = m.peak = 0;
    a.alloc_fn = counted_take;
    a.free_fn = counted_give;
    a.user = &m;
    f.bytes = data;
    f.length = size;
    s.read_fn = image_read;
    s.user = &f;
    s.length = (int64_t)size;
    set_tensor(&t[0], "a", 2, 2, 3);
    set_tensor(&t[1], "b", 1, 2, 0);
    set_tensor(&t[2], "c", 0, 0, 0);
    nnti_clear_error(&e);
    r = nnti_st_open(&st, &a, &s, "load", "input", &e);
    if (r == NNT_OK) {
        while (nnti_st_next_pair(&st, &at, &pair))
            RULE(pair.value + strlen(pair.value) < st.header + st.header_length && nnti_utf8_valid(pair.key, strlen(pair.key)) && nnti_utf8_valid(pair.value, strlen(pair.value)));
        RULE(at == st.metadata_length);
        r = nnti_st_fetch(&st, t, 3, &values, &bytes);
    }
    nnti_st_close(&st);
    RULE(m.peak < 200000 + 10 * size);          /* the header, a record for each of its tensors, and small change */
    if (r == NNT_OK) {
        RULE(values && bytes == 9 * sizeof(float) && e.text[0] == 0);
        nnti_free(&a, values, bytes);
    } else {
        RULE(!values && e.code == (int)r && strncmp(e.text, "load 'input': ", 14) == 0 && e.text[14]);
        RULE(nnti_utf8_valid(e.text, strlen(e.text)));
    }
    RULE(m.live == 0);
    return r == NNT_OK;
}

#ifdef FUZZ_MAIN
enum { CASE_MAX = 4096 };
typedef struct bytes_of { uint8_t at[CASE_MAX]; size_t length; } bytes_of;
typedef struct dice { uint64_t seed; uint32_t number, rolled; } dice;

static uint32_t roll(dice *d, uint32_t sides)
{
    uint32_t r[4];
    nnti_random4(r, d->seed, 0, 0, d->number, d->rolled++);
    return r[0] % sides;
}
static void insert(bytes_of *b, size_t at, const void *p, size_t n)
{
    if (at > b->length || b->length + n > CASE_MAX) return;
    memmove(b->at + at + n, b->at + at, b->length - at);
    memcpy(b->at + at, p, n);
    b->length += n;
}
static void erase(bytes_of *b, size_t at, size_t n)
{
    if (at > b->length || n > b->length - at) return;
    memmove(b->at + at, b->at + at + n, b->length - at - n);
    b->length -= n;
}
static void put_length(bytes_of *b, uint64_t length)
{
    int i;
    for (i = 0; i < 8; i++) b->at[i] = (uint8_t)(length >> 8 * i);
}

static const char fuzz_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"b\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[12,28]},"
    "\"c\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[28,30]},"
    "\"more\":{\"dtype\":\"F32\",\"shape\":[1,0],\"data_offsets\":[30,30],\"note\":[1.5e3,{\"x\":null}]}}";
static const char *const fuzz_words[] = {
    "0", "-", "1e9", ".", "null", "true", "9223372036854775807", "18446744073709551616", "4294967296",
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud83d\\ude00", "\\ud83d",
    "\xf0\x9f\x98\x80", "\xff", "\xc3",
    "\"F32\"", "\"F4\"", "\"I64\"", "\"BOOL\"", "\"dtype\":", "\"shape\":", "\"data_offsets\":", "\"a\":",
    "\"__metadata__\":{},", "[0,0]", "[[[[[[[[[[", "{\"a\":{\"a\":",
    ",\"d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"
};
enum { FUZZ_NUMBERS = 9 };                      /* the first of fuzz_words */

static void mutate(bytes_of *b, dice *d)
{
    const size_t data = 30;
    size_t n = sizeof fuzz_header - 1, i, changes = 1 + roll(d, 6);
    b->length = 8 + n + data;
    memcpy(b->at + 8, fuzz_header, n);
    for (i = 0; i < data; i++) b->at[8 + n + i] = (uint8_t)roll(d, 256);
    for (i = 0; i < changes; i++) {
        size_t header = b->length > 8 + data ? b->length - 8 - data : 0;
        size_t at = 8 + roll(d, (uint32_t)header + 1), to = 8 + roll(d, (uint32_t)header + 1), k = 1 + roll(d, 40);
        uint8_t piece[64];
        const char *w = fuzz_words[roll(d, (uint32_t)(sizeof fuzz_words / sizeof fuzz_words[0]))];
        switch (roll(d, 7)) {
        case 0: b->at[at < b->length ? at : 8] ^= (uint8_t)(1 << roll(d, 8)); break;
        case 1: b->at[at < b->length ? at : 8] = (uint8_t)roll(d, 256); break;
        case 2: erase(b, at, roll(d, 3) ? 1 : k); break;
        case 3: insert(b, at, w, strlen(w)); break;
        case 4:
            if (at + k > b->length) break;
            memcpy(piece, b->at + at, k);
            insert(b, to, piece, k);
            break;
        case 5: w = fuzz_words[roll(d, FUZZ_NUMBERS)]; erase(b, at, 1); insert(b, at, w, strlen(w)); break;
        default:                                /* another digit where there is one */
            while (at < b->length && !(b->at[at] >= '0' && b->at[at] <= '9')) at++;
            if (at < b->length) b->at[at] = (uint8_t)('0' + roll(d, 10));
            break;
        }
    }
    /* The header's length is made to fit, so that most get as far as the parser. */
    put_length(b, b->length > 8 + data ? b->length - 8 - data : 0);
    if (roll(d, 20) == 0) put_length(b, roll(d, 2) ? roll(d, 1000) : ~(uint64_t)0 >> roll(d, 64));
    if (roll(d, 20) == 0) b->length = roll(d, (uint32_t)b->length + 1);
}
static int run_case(uint64_t seed, uint32_t number)
{
    static bytes_of b;
    dice d;
    uint8_t *exact;
    int loaded;
    d.seed = seed;
    d.number = number;
    d.rolled = 0;
    mutate(&b, &d);
    exact = (uint8_t *)malloc(b.length ? b.length : 1);         /* so that a sanitizer sees its end */
    RULE(exact != NULL);
    memcpy(exact, b.at, b.length);
    loaded = LLVMFuzzerTestOneInput(exact, b.length);
    free(exact);
    return loaded;
}
static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    size_t cap = (size_t)1 << 24, n;
    uint8_t *p = (uint8_t *)malloc(cap);
    int loaded;
    if (!f || !p) {
        fprintf(stderr, "can't read %s\n", path);
        if (f) fclose(f);
        free(p);
        return 1;
    }
    n = fread(p, 1, cap, f);
    fclose(f);
    loaded = LLVMFuzzerTestOneInput(p, n);
    printf("%s: %s\n", path, loaded ? "loads" : "is refused");
    free(p);
    return 0;
}
int main(int argc, char **argv)
{
    int i, failed = 0;
    if (argc > 2 && argv[1][0] == '-') {
        uint32_t number = (uint32_t)strtoul(argv[2], NULL, 10), k, loaded = 0;
        uint64_t seed = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
        if (strcmp(argv[1], "--case") == 0) return run_case(seed, number) ? 0 : 1;
        for (k = 0; k < number; k++) loaded += (uint32_t)run_case(seed, k);
        printf("fuzz_safetensors: %u cases of seed %lu, %u load\n", (unsigned)number, (unsigned long)seed,
               (unsigned)loaded);
        return 0;
    }
    for (i = 1; i < argc; i++) failed |= run_file(argv[i]);
    return failed;
}
#endif
