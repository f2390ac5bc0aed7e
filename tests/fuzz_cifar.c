/* fuzz_cifar.c - whatever bytes a CIFAR file has, and as whichever kind it is read, it gives samples with labels of that
   kind or an error in words, and all memory back. How to run it: fuzz.h. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

static int try_kind(const char *path, int kind, size_t size)
{
    static const int bytes[3] = { 3073, 3074, 3074 }, classes[3] = { 10, 100, 20 };
    const char *list[1];
    counted c;
    nnt_allocator a = counted_allocator(&c);
    nnt_dataset *d;
    int64_t i;
    list[0] = path;
    d = nnt_dataset_cifar(list, 1, kind, &a);
    if (nnt_dataset_error_code(d) == NNT_OK) RULE(nnt_dataset_count(d) > 0 && (size_t)nnt_dataset_count(d) * (size_t)bytes[kind] == size);
    for (i = 0; i < nnt_dataset_count(d); i++) RULE(nnt_dataset_label(d, i) >= 0 && nnt_dataset_label(d, i) < classes[kind]);
    return fuzz_dataset(d, &c, size);
}
static int try_input(const uint8_t *data, size_t size)
{
    char path[300];
    int kind, good = 0;
    sprintf(path, "%s/file", fuzz_folder());
    fuzz_write(path, data, size);
    for (kind = NNT_CIFAR10; kind <= NNT_CIFAR100_COARSE; kind++) good |= try_kind(path, kind, size);
    remove(path);
    return good;
}

/* One or two records, whose size is right more often than not. */
static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    const size_t record = 3073 + fuzz_roll(d, 2), records = 1 + fuzz_roll(d, 2);
    size_t n = record * records, i;
    memset(to, (int)fuzz_roll(d, 256), n);
    for (i = 0; i < records; i++) {
        to[i * record] = (uint8_t)fuzz_roll(d, 22);
        to[i * record + 1] = (uint8_t)fuzz_roll(d, 102);
    }
    if (fuzz_roll(d, 4) == 0) n = fuzz_roll(d, (uint32_t)n + 2);
    return n;
}
