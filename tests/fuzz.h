/* fuzz.h - the main of a fuzz target: a file that defines

       int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);       1: the input was taken, 0: refused

   and, under FUZZ_MAIN, calls fuzz_main with a function that makes cases. A broken rule ends the program by abort().
   With libFuzzer:   clang -g -fsanitize=fuzzer,address,undefined -I. -Itests tests/fuzz_x.c -o fuzz -lm -lpthread
   Without:          cc -g -fsanitize=address,undefined -DFUZZ_MAIN -I. -Itests tests/fuzz_x.c -o fuzz -lm -lpthread
       ./fuzz FILE...             runs these files
       ./fuzz --seeds FOLDER      writes the first cases, a corpus to begin with
       ./fuzz --random N [SEED]   runs N cases, mutations of valid inputs; one that fails can be repeated by its number:
       ./fuzz --case I [SEED] */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RULE(c) do { if (!(c)) { fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #c); abort(); } } while (0)

enum { FUZZ_MAX = 1 << 15, FUZZ_SEEDS = 8 };

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

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef FUZZ_MAIN
typedef struct fuzz_dice { uint64_t seed; uint32_t number, rolled; } fuzz_dice;
static uint32_t fuzz_roll(fuzz_dice *d, uint32_t sides)
{
    uint32_t r[4];
    nnti_random4(r, d->seed, 0, 0, d->number, d->rolled++);
    return r[0] % sides;
}
/* Writes case d->number, at most FUZZ_MAX bytes, and returns how many. */
typedef size_t (*fuzz_make_fn)(uint8_t *to, fuzz_dice *d);

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
static size_t fuzz_make(fuzz_make_fn make, uint64_t seed, uint32_t number, uint8_t *to)
{
    fuzz_dice d;
    d.seed = seed;
    d.number = number;
    d.rolled = 0;
    return make(to, &d);
}
static int fuzz_case(fuzz_make_fn make, uint64_t seed, uint32_t number)
{
    static uint8_t b[FUZZ_MAX];
    size_t length = fuzz_make(make, seed, number, b);
    uint8_t *exact = (uint8_t *)malloc(length ? length : 1);        /* so that a sanitizer sees its end */
    int taken;
    RULE(exact != NULL && length <= FUZZ_MAX);
    memcpy(exact, b, length);
    taken = LLVMFuzzerTestOneInput(exact, length);
    free(exact);
    return taken;
}
static int fuzz_file(const char *path)
{
    static uint8_t b[1 << 24];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(b, 1, sizeof b, f) : 0;
    if (!f) { fprintf(stderr, "can't read %s\n", path); return 1; }
    fclose(f);
    printf("%s: %s\n", path, LLVMFuzzerTestOneInput(b, n) ? "taken" : "refused");
    return 0;
}
static int fuzz_write_seeds(fuzz_make_fn make, const char *folder)
{
    static uint8_t b[FUZZ_MAX];
    uint32_t i;
    for (i = 0; i < FUZZ_SEEDS; i++) {
        char path[512];
        size_t n = fuzz_make(make, 1, i, b);
        FILE *f;
        sprintf(path, "%.480s/seed%u", folder, (unsigned)i);
        f = fopen(path, "wb");
        if (!f || fwrite(b, 1, n, f) != n) { fprintf(stderr, "can't write %s\n", path); if (f) fclose(f); return 1; }
        fclose(f);
    }
    return 0;
}
static int fuzz_main(int argc, char **argv, fuzz_make_fn make)
{
    int i, failed = 0;
    if (argc > 2 && strcmp(argv[1], "--seeds") == 0) return fuzz_write_seeds(make, argv[2]);
    if (argc > 2 && argv[1][0] == '-') {
        uint32_t number = (uint32_t)strtoul(argv[2], NULL, 10), k, taken = 0;
        uint64_t seed = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
        if (strcmp(argv[1], "--case") == 0) return fuzz_case(make, seed, number) ? 0 : 1;
        for (k = 0; k < number; k++) taken += (uint32_t)fuzz_case(make, seed, k);
        printf("%u cases of seed %lu, %u taken\n", (unsigned)number, (unsigned long)seed, (unsigned)taken);
        return 0;
    }
    for (i = 1; i < argc; i++) failed |= fuzz_file(argv[i]);
    return failed;
}
#endif
#endif
