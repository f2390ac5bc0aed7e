/* fuzz_npy.c - whatever bytes an .npy file has, loading it gives as many values as it says or an error, and all memory
   back. How to run it: fuzz.h. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

enum { FUZZ_SEEDS = 8 };

static int try_input(const uint8_t *data, size_t size)
{
    counted m;
    nnt_allocator a = counted_allocator(&m);
    fuzz_image f;
    nnti_source s = fuzz_source(&f, data, size);
    nnti_npy n;
    nnti_error e;
    nnt_result r;
    nnti_clear_error(&e);
    r = nnti_npy_open(&n, &a, &s, "input", &e);
    RULE(m.live == 0 && m.peak <= NNTI_NPY_HEADER_MAX);
    if (r == NNT_OK) {
        float *values;
        RULE(n.count > 0 && (uint64_t)n.count * (uint64_t)n.width < size && n.rank >= 1 && n.rank <= 4);
        values = (float *)malloc((size_t)n.count * sizeof *values);
        RULE(values && nnti_npy_values(&n, &a, values) == NNT_OK && e.text[0] == 0);
        free(values);
    } else {
        RULE(e.code == (int)r && strncmp(e.text, "load 'input': ", 14) == 0 && e.text[14] && nnti_utf8_valid(e.text, strlen(e.text)));
    }
    RULE(m.live == 0);
    return r == NNT_OK;
}

static const char *const fuzz_words[] = {
    "'descr': ", "'fortran_order': ", "'shape': ", "True", "False", "(", ")", ",", "{", "}", "'", "\"", "\\", "L", "None",
    "'<f4'", "'>f8'", "'|b1'", "'|u1'", "'<i8'", "'=f2'", "()", "(1,)", "0", "1", "4294967296", "9223372036854775807",
    "99999999999999999999", "-1", "[('a', '<f4')]", "\xff", "\n", " "
};
static size_t fuzz_seed(uint8_t *to, uint32_t number)
{
    static const char *const header[FUZZ_SEEDS] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", "{'descr': '>f8', 'fortran_order': True, 'shape': (3, 1, 2), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", "{'descr': '<i8', 'fortran_order': False, 'shape': (), }",
        "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 2, 2, 2), }", "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 5), }",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }", "{'descr': '<u4', 'fortran_order': True, 'shape': (2, 5), }"
    };
    static const size_t bytes[FUZZ_SEEDS] = { 24, 48, 7, 8, 32, 5, 8, 40 };
    size_t length = strlen(header[number]), first = number % 2 ? 12 : 10, i;
    memcpy(to, "\x93NUMPY\1\0", 8);
    to[6] = (uint8_t)(number % 2 ? 2 + number % 4 / 2 : 1);
    memset(to + 8, 0, 4);
    to[8] = (uint8_t)length;
    memcpy(to + first, header[number], length);
    for (i = 0; i < bytes[number]; i++) to[first + length + i] = (uint8_t)(31 * i + number);
    return first + length + bytes[number];
}
static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    return fuzz_mutate(to, fuzz_seed(to, d->number % FUZZ_SEEDS), d, fuzz_words, sizeof fuzz_words / sizeof *fuzz_words);
}
