/* fuzz.h - the driver of a fuzz target: a file that includes nntrain.h's implementation, then this, and defines

       static int try_input(const uint8_t *data, size_t size);     1: the input was taken, 0: refused; data ends at size
       static size_t make_input(uint8_t *to, fuzz_dice *d);        writes a case, at most FUZZ_MAX bytes: a valid input,
                                                                   changed by chance; returns how many bytes

   A broken rule ends the program by abort(). ./build.sh sanitize builds it with a main of its own and runs some cases,
   ./build.sh fuzz builds it with libFuzzer, which also mixes such cases in:
       cc    -g -fsanitize=address,undefined -I. -Itests tests/fuzz_x.c -o x -lm -lpthread
       clang -g -fsanitize=fuzzer,address,undefined -DFUZZ_LIBFUZZER -I. -Itests tests/fuzz_x.c -o x -lm -lpthread
   Without libFuzzer:
       ./x FILE...             runs these files
       ./x --random N [SEED]   runs N cases; one that fails can be repeated by its number:
       ./x --case I [SEED] */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RULE(c) do { if (!(c)) { fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #c); abort(); } } while (0)

enum { FUZZ_MAX = 1 << 15 };

typedef struct fuzz_dice { uint64_t seed; uint32_t number, rolled; } fuzz_dice;

static int try_input(const uint8_t *data, size_t size);
static size_t make_input(uint8_t *to, fuzz_dice *d);

/* Memory that is counted. */
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
static nnt_allocator counted_allocator(counted *m)
{
    nnt_allocator a;
    m->live = m->peak = 0;
    a.alloc_fn = counted_take;
    a.free_fn = counted_give;
    a.user = m;
    return a;
}

/* A file in memory. */
typedef struct fuzz_image { const uint8_t *bytes; size_t length; } fuzz_image;
static int fuzz_read(void *user, int64_t at, void *to, size_t n)
{
    const fuzz_image *m = (const fuzz_image *)user;
    RULE(at >= 0 && (uint64_t)at <= m->length && n <= m->length - (size_t)at);
    memcpy(to, m->bytes + at, n);
    return 0;
}
static nnti_source fuzz_source(fuzz_image *m, const uint8_t *data, size_t size)
{
    nnti_source s;
    m->bytes = data;
    m->length = size;
    s.read_fn = fuzz_read;
    s.user = m;
    s.length = (int64_t)size;
    return s;
}

/* A folder of one's own for files on disk. */
static char fuzz_folder_name[200];
static void fuzz_folder_remove(void) { rmdir(fuzz_folder_name); }
static const char *fuzz_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    if (fuzz_folder_name[0]) return fuzz_folder_name;
    sprintf(fuzz_folder_name, "%.100s/nnt_fuzz_%ld", tmp ? tmp : "/tmp", (long)getpid());
    RULE(mkdir(fuzz_folder_name, 0700) == 0 && atexit(fuzz_folder_remove) == 0);
    return fuzz_folder_name;
}
static void fuzz_write(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    RULE(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}
/* What a dataset of a file of n bytes gives: samples or a sentence, and memory that the file justifies. Frees it. */
static int fuzz_dataset(nnt_dataset *d, const counted *c, size_t n)
{
    const int good = nnt_dataset_error_code(d) == NNT_OK;
    nnt_loader_desc order;
    nnt_loader *l;
    nnt_batch b;
    RULE(good == (nnt_dataset_error(d)[0] == 0));
    RULE(c->peak < 100000 + 1100 * n);                      /* a gzip file may really hold so much */
    memset(&order, 0, sizeof order);
    order.batch = 2;
    order.workers = NNT_NO_WORKERS;
    l = nnt_loader_new(d, order, NULL);
    RULE((nnt_loader_next(l, &b) == NNT_OK) == good);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    RULE(c->live == 0);
    return good;
}

/* ---- making cases ---- */

static uint32_t fuzz_roll(fuzz_dice *d, uint32_t sides)
{
    uint32_t r[4];
    nnti_random4(r, d->seed, 0, 0, d->number, d->rolled++);
    return r[0] % sides;
}
static size_t fuzz_insert(uint8_t *b, size_t length, size_t at, const void *p, size_t n)
{
    if (length + n > FUZZ_MAX) return length;
    memmove(b + at + n, b + at, length - at);
    memcpy(b + at, p, n);
    return length + n;
}
/* Changes near the front are likelier: that is where headers are. */
static size_t fuzz_mutate(uint8_t *b, size_t length, fuzz_dice *d, const char *const *word, uint32_t words)
{
    uint32_t i, changes = 1 + fuzz_roll(d, 5);
    for (i = 0; i < changes && length; i++) {
        uint32_t front = fuzz_roll(d, 2) && length > 400 ? 400 : (uint32_t)length;
        size_t at = fuzz_roll(d, front), n = 1 + fuzz_roll(d, 24);
        const char *w = word[fuzz_roll(d, words)];
        uint8_t piece[64];
        if (n > length - at) n = length - at;
        switch (fuzz_roll(d, 7)) {
        case 0: b[at] ^= (uint8_t)(1 << fuzz_roll(d, 8)); break;
        case 1: b[at] = (uint8_t)fuzz_roll(d, 256); break;
        case 2: memmove(b + at, b + at + n, length - at - n); length -= n; break;
        case 3: length = fuzz_insert(b, length, at, w, strlen(w)); break;
        case 4: memcpy(piece, b + at, n); length = fuzz_insert(b, length, fuzz_roll(d, (uint32_t)length), piece, n); break;
        case 5: n = strlen(w) < length - at ? strlen(w) : length - at; memcpy(b + at, w, n); break;
        default: length = fuzz_roll(d, 8) ? length : at; break;
        }
    }
    return length;
}
static size_t fuzz_case(uint8_t *to, uint64_t seed, uint32_t number)
{
    fuzz_dice d;
    size_t length;
    d.seed = seed;
    d.number = number;
    d.rolled = 0;
    length = make_input(to, &d);
    RULE(length <= FUZZ_MAX);
    return length;
}

/* ---- drivers ---- */

#ifdef FUZZ_LIBFUZZER
#ifdef __cplusplus
extern "C" {
#endif
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    static uint8_t b[FUZZ_MAX];
    size_t length = seed % 16 ? 0 : fuzz_case(b, 1, seed / 16);
    if (!length || length > most) return LLVMFuzzerMutate(data, size, most);
    memcpy(data, b, length);
    return length;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)try_input(data, size);
    return 0;
}
#ifdef __cplusplus
}
#endif
#else
static int fuzz_try(const uint8_t *p, size_t length)
{
    uint8_t *exact = (uint8_t *)malloc(length ? length : 1);        /* so that a sanitizer sees its end */
    int taken;
    RULE(exact != NULL);
    memcpy(exact, p, length);
    taken = try_input(exact, length);
    free(exact);
    return taken;
}
static int fuzz_try_case(uint64_t seed, uint32_t number)
{
    static uint8_t b[FUZZ_MAX];
    return fuzz_try(b, fuzz_case(b, seed, number));
}
static int fuzz_try_file(const char *path)
{
    static uint8_t b[1 << 24];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(b, 1, sizeof b, f) : 0;
    if (!f) { fprintf(stderr, "can't read %s\n", path); return 1; }
    fclose(f);
    printf("%s: %s\n", path, fuzz_try(b, n) ? "taken" : "refused");
    return 0;
}
int main(int argc, char **argv)
{
    int i, failed = 0;
    if (argc > 2 && argv[1][0] == '-') {
        uint32_t number = (uint32_t)strtoul(argv[2], NULL, 10), k, taken = 0;
        uint64_t seed = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
        if (strcmp(argv[1], "--case") == 0) return fuzz_try_case(seed, number) ? 0 : 1;
        for (k = 0; k < number; k++) taken += (uint32_t)fuzz_try_case(seed, k);
        printf("%u cases of seed %lu, %u taken\n", (unsigned)number, (unsigned long)seed, (unsigned)taken);
        return 0;
    }
    for (i = 1; i < argc; i++) failed |= fuzz_try_file(argv[i]);
    return failed;
}
#endif
#endif
