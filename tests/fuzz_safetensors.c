/* fuzz_safetensors.c - whatever bytes a file has, loading it gives values or an error, and all memory back. How to run
   it: fuzz.h. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

static void set_tensor(nnti_file_tensor *t, const char *name, int rank, int64_t a, int64_t b)
{
    memset(t, 0, sizeof *t);
    t->name = name;
    t->rank = rank;
    t->size[0] = a;
    t->size[1] = b;
}

static int try_input(const uint8_t *data, size_t size)
{
    nnti_file_tensor t[3];
    counted m;
    nnt_allocator a = counted_allocator(&m);
    fuzz_image f;
    nnti_source s = fuzz_source(&f, data, size);
    nnti_st st;
    nnti_file_pair pair;
    size_t at = 0;
    nnti_error e;
    float *values = NULL;
    size_t bytes = 0;
    nnt_result r;
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

typedef struct bytes_of { uint8_t *at; size_t length; } bytes_of;

static void insert(bytes_of *b, size_t at, const void *p, size_t n)
{
    if (at <= b->length) b->length = fuzz_insert(b->at, b->length, at, p, n);
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

static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    bytes_of made, *b = &made;
    const size_t data = 30;
    size_t n = sizeof fuzz_header - 1, i, changes = 1 + fuzz_roll(d, 6);
    b->at = to;
    b->length = 8 + n + data;
    memcpy(b->at + 8, fuzz_header, n);
    for (i = 0; i < data; i++) b->at[8 + n + i] = (uint8_t)fuzz_roll(d, 256);
    for (i = 0; i < changes; i++) {
        size_t header = b->length > 8 + data ? b->length - 8 - data : 0;
        size_t at = 8 + fuzz_roll(d, (uint32_t)header + 1), to = 8 + fuzz_roll(d, (uint32_t)header + 1), k = 1 + fuzz_roll(d, 40);
        uint8_t piece[64];
        const char *w = fuzz_words[fuzz_roll(d, (uint32_t)(sizeof fuzz_words / sizeof fuzz_words[0]))];
        switch (fuzz_roll(d, 7)) {
        case 0: b->at[at < b->length ? at : 8] ^= (uint8_t)(1 << fuzz_roll(d, 8)); break;
        case 1: b->at[at < b->length ? at : 8] = (uint8_t)fuzz_roll(d, 256); break;
        case 2: erase(b, at, fuzz_roll(d, 3) ? 1 : k); break;
        case 3: insert(b, at, w, strlen(w)); break;
        case 4:
            if (at + k > b->length) break;
            memcpy(piece, b->at + at, k);
            insert(b, to, piece, k);
            break;
        case 5: w = fuzz_words[fuzz_roll(d, FUZZ_NUMBERS)]; erase(b, at, 1); insert(b, at, w, strlen(w)); break;
        default:                                /* another digit where there is one */
            while (at < b->length && !(b->at[at] >= '0' && b->at[at] <= '9')) at++;
            if (at < b->length) b->at[at] = (uint8_t)('0' + fuzz_roll(d, 10));
            break;
        }
    }
    /* The header's length is made to fit, so that most get as far as the parser. */
    put_length(b, b->length > 8 + data ? b->length - 8 - data : 0);
    if (fuzz_roll(d, 20) == 0) put_length(b, fuzz_roll(d, 2) ? fuzz_roll(d, 1000) : ~(uint64_t)0 >> fuzz_roll(d, 64));
    if (fuzz_roll(d, 20) == 0) b->length = fuzz_roll(d, (uint32_t)b->length + 1);
    return b->length;
}
