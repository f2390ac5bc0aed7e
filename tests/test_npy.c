/* test_npy.c - arrays in numpy's format, both ways. What numpy writes, and what it makes of the values as float32, is
   recorded in golden/npy.txt by golden/make_npy.py. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

#ifndef NNT_TEST_TMP
#  define NNT_TEST_TMP "."
#endif
#define FILE_A NNT_TEST_TMP "/test_npy.npy"

enum { BYTES = 2000, VALUES = 256 };
typedef struct record { char name[64], result[16], sizes[64], hex[2 * BYTES + 1], bits[8 * VALUES + 1]; int rank; unsigned char file[BYTES]; size_t length; } record;

static unsigned hex_digit(char c) { return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10); }
static FILE *open_records(void)
{
    FILE *f = fopen("tests/golden/npy.txt", "r");
    CHECK(f != NULL);
    return f;
}
static int next_record(FILE *f, record *r)
{
    size_t i;
    if (!f || fscanf(f, "%63s %15s %d %63s %4000s %2048s", r->name, r->result, &r->rank, r->sizes, r->hex, r->bits) != 6) return 0;
    r->length = strlen(r->hex) / 2;
    for (i = 0; i < r->length; i++) r->file[i] = (unsigned char)(hex_digit(r->hex[2 * i]) << 4 | hex_digit(r->hex[2 * i + 1]));
    return 1;
}
static int image_read(void *user, int64_t at, void *to, size_t n)
{
    const record *r = (const record *)user;
    CHECK(at >= 0 && (uint64_t)at <= r->length && n <= r->length - (size_t)at);
    memcpy(to, r->file + at, n);
    return 0;
}
/* Values of the record's first `length` bytes; at most VALUES. */
static nnt_result load_image(record *r, float *values, nnti_npy *n, nnti_error *e)
{
    nnt_allocator a = nnti_allocator(NULL);
    nnti_source s;
    nnt_result got;
    s.read_fn = image_read;
    s.user = r;
    s.length = (int64_t)r->length;
    nnti_clear_error(e);
    got = nnti_npy_open(n, &a, &s, "image", e);
    if (!got) CHECK(n->count <= VALUES);
    if (!got && n->count <= VALUES) got = nnti_npy_values(n, &a, values);
    CHECK((got == NNT_OK) == (e->text[0] == 0));
    return got;
}

static void what_numpy_writes_is_read_as_numpy_converts_it(void)
{
    FILE *f = open_records();
    static record r;
    float values[VALUES];
    nnti_npy n;
    nnti_error e;
    int records = 0;
    while (next_record(f, &r)) {
        nnt_result got = load_image(&r, values, &n, &e);
        int64_t i;
        int k;
        char sizes[64] = "";
        records++;
        if (strcmp(r.result, "ok") != 0) {
            CHECKF(got == NNT_ERR_UNSUPPORTED && strstr(e.text, "load 'image': ") == e.text, "%s: %d %s", r.name, (int)got, e.text);
            continue;
        }
        CHECKF(got == NNT_OK, "%s: %s", r.name, e.text);
        for (k = 0; k < n.rank && r.rank; k++) sprintf(sizes + strlen(sizes), k ? "x%d" : "%d", (int)n.size[k]);
        CHECK_TEXT(r.rank ? sizes : "-", r.sizes);
        CHECKF((size_t)n.count * 8 == strlen(r.bits), "%s", r.name);
        for (i = 0; i < n.count; i++) {
            unsigned want = 0;
            for (k = 0; k < 8; k++) want = want << 4 | hex_digit(r.bits[8 * i + k]);
            CHECKF(nnti_float_bits(values[i]) == want, "%s value %d: %08x, numpy has %08x", r.name, (int)i, (unsigned)nnti_float_bits(values[i]), want);
        }
    }
    if (f) fclose(f);
    CHECK(records == 26);
}
/* Cut at every byte: an error. Each bit flipped: an error, or values of another header. */
static void cut_or_flipped_files_do_no_harm(void)
{
    FILE *f = open_records();
    static record r, cut;
    float values[VALUES];
    nnti_npy n;
    nnti_error e;
    int refused = 0, taken = 0;
    while (next_record(f, &r)) {
        size_t at, bit;
        for (at = 0; at < r.length; at++) {
            cut = r;
            cut.length = at;
            CHECKF(load_image(&cut, values, &n, &e) != NNT_OK, "%s at %d", r.name, (int)at);
            for (bit = 0; bit < 8; bit++) {
                cut = r;
                cut.file[at] ^= (unsigned char)(1 << bit);
                if (load_image(&cut, values, &n, &e)) refused++;
                else taken++;
            }
        }
        if (test_case_failed) break;
    }
    if (f) fclose(f);
    CHECK(refused > 10000 && taken > 1000);
}

typedef struct header_case { const char *header; nnt_result result; const char *error; } header_case;
#define NOT_ONE "its header is not as numpy writes it; not an .npy file"
/* With 8 bytes of values behind. */
static const header_case header_cases[] = {
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", NNT_OK, "" },
    { "{\"shape\":(2L,),\"fortran_order\":True,\"descr\":\"<f4\"}\n", NNT_OK, "" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,2)}", NNT_OK, "" },
    { "{'descr': '<f8', 'fortran_order': False, 'shape': ()}", NNT_OK, "" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", NNT_OK, "" },
    { "", NNT_ERR_FORMAT, NOT_ONE },
    { "{}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4, 'fortran_order': False, 'shape': (2,)}", NNT_ERR_FORMAT, NOT_ONE },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", NNT_ERR_FORMAT, "its header tells of 3 values of 4 bytes, and 8 bytes are there" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", NNT_ERR_FORMAT, "its header tells of 1 values of 4 bytes, and 8 bytes are there" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296)}", NNT_ERR_FORMAT,
      "its shape has more values than any file" },
    { "{'descr': '|f4', 'fortran_order': False, 'shape': (2,)}", NNT_ERR_UNSUPPORTED,
      "its values are '|f4'; floats of 2, 4, 8 bytes, whole numbers of 1 to 8 and bools can be loaded, convert it first" },
    { "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", NNT_ERR_UNSUPPORTED,
      "its values are '|O'; floats of 2, 4, 8 bytes, whole numbers of 1 to 8 and bools can be loaded, convert it first" },
    { "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", NNT_ERR_UNSUPPORTED,
      "its values are records; save one field of them as an array of its own" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,2,1)}", NNT_ERR_UNSUPPORTED, "it has 5 dimensions; tensors have at most 4" }
};
static void headers_are_taken_or_refused_in_these_words(void)
{
    static record r;
    float values[VALUES];
    nnti_npy n;
    nnti_error e;
    size_t i;
    for (i = 0; i < sizeof header_cases / sizeof header_cases[0]; i++) {
        const header_case *c = &header_cases[i];
        size_t length = strlen(c->header);
        char want[300];
        nnt_result got;
        memcpy(r.file, "\x93NUMPY\1\0", 8);
        r.file[8] = (unsigned char)length;
        r.file[9] = 0;
        memcpy(r.file + 10, c->header, length);
        memset(r.file + 10 + length, 0, 8);
        r.length = 18 + length;
        got = load_image(&r, values, &n, &e);
        CHECKF(got == c->result, "%s: %s", c->header, e.text);
        sprintf(want, "load 'image': %s", c->error);
        CHECK_TEXT(e.text, c->result ? want : "");
    }
    memcpy(r.file, "\x93NUMPY\4\0", 8);
    CHECK(load_image(&r, values, &n, &e) == NNT_ERR_UNSUPPORTED);
    CHECK_TEXT(e.text, "load 'image': has format 4.0; 1.0, 2.0 and 3.0 are known");
    memcpy(r.file, "\x93NUMPY\2\0\xff\xff\xff\x7f", 12);
    CHECK(load_image(&r, values, &n, &e) == NNT_ERR_FORMAT);
}
static void tensors_go_through_files(void)
{
    static const int64_t sizes[4] = { 3, 5, 1, 7 };
    nnt_net *net = nnt_new(NULL);
    float data[105], back[105];
    unsigned char start[140];
    int rank, i;
    FILE *f;
    for (i = 0; i < 105; i++) data[i] = (float)i * 0.1f - 3.0f;
    for (rank = 1; rank <= 4; rank++) {
        int64_t count = rank == 1 ? 3 : rank == 4 ? 105 : 15;
        nnt_tensor *t = nnt_tensor_from(net, NULL, rank, sizes, data), *u;
        CHECKF(nnt_tensor_save_npy(t, FILE_A) == NNT_OK, "%s", nnt_error(net));
        u = nnt_tensor_load_npy(net, NULL, FILE_A);
        CHECKF(u && nnt_tensor_rank(u) == rank && nnt_tensor_size(u, -1) == count, "%s", nnt_error(net));
        for (i = 0; i < rank; i++) CHECK(nnt_tensor_size(u, i) == sizes[i]);
        CHECK(nnt_tensor_read(u, back) == NNT_OK && memcmp(back, data, (size_t)count * sizeof *data) == 0);
        nnt_tensor_free(t);
        nnt_tensor_free(u);
    }
    f = fopen(FILE_A, "rb");
    CHECK(f && fread(start, 1, sizeof start, f) == sizeof start);
    if (f) fclose(f);
    CHECK(memcmp(start, "\x93NUMPY\1\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5, 1, 7), }   ", 78) == 0);
    CHECK(start[127] == '\n' && memcmp(start + 128, data, 12) == 0);
    CHECK(!nnt_tensor_load_npy(net, NULL, NNT_TEST_TMP "/none.npy") && nnt_error_code(net) == NNT_ERR_FILE);
    CHECK_TEXT(nnt_error(net), "load '" NNT_TEST_TMP "/none.npy': can't be opened: no such file or folder");
    CHECK(!nnt_tensor_load_npy(net, NULL, NULL) && !nnt_tensor_load_npy(NULL, NULL, FILE_A));
    CHECK(nnt_tensor_save_npy(NULL, FILE_A) == NNT_ERR_ARGUMENT);
    remove(FILE_A);
    nnt_free(net);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(what_numpy_writes_is_read_as_numpy_converts_it);
    TEST(cut_or_flipped_files_do_no_harm);
    TEST(headers_are_taken_or_refused_in_these_words);
    TEST(tensors_go_through_files);
    return TEST_END();
}
