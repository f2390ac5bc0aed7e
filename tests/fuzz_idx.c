/* fuzz_idx.c - whatever bytes an IDX or gzip file has, it gives samples or an error in words, and all memory back. The
   input is the file of the images, and then that of the labels beside images that are right. How to run it: fuzz.h, with
   -DNNT_TEST_STB -I/usr/include/stb. */
#include "stb.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

static const uint8_t three_images[16 + 3] = { 0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 7, 8, 9 };

static int try_files(const char *images, const char *labels, size_t size)
{
    counted c;
    nnt_allocator a = counted_allocator(&c);
    return fuzz_dataset(nnt_dataset_idx(images, labels, &a), &c, size);
}
static int try_input(const uint8_t *data, size_t size)
{
    char path[300], images[300];
    int good;
    sprintf(path, "%s/file", fuzz_folder());
    sprintf(images, "%s/images", fuzz_folder());
    fuzz_write(path, data, size);
    fuzz_write(images, three_images, sizeof three_images);
    good = try_files(path, NULL, size) | try_files(images, path, size + sizeof three_images);
    remove(path);
    remove(images);
    return good;
}

/* Images, images with channels, labels; each also as a gzip file of one stored block. */
#define FILE_OF(text) { text, sizeof text - 1 }
static const struct { const char *bytes; size_t size; } files[] = {
    FILE_OF("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02\x01\x02\x03\x04\x05\x06\x07\x08"),
    FILE_OF("\0\0\x08\x04\0\0\0\x01\0\0\0\x03\0\0\0\x01\0\0\0\x02\x01\x02\x03\x04\x05\x06"),
    FILE_OF("\0\0\x08\x01\0\0\0\x03\x01\0\x02")
};
static const char *const words[] = {
    "\x08\x01", "\x08\x03", "\x08\x04", "\x1F\x8B\x08", "\xFF\xFF\xFF\xFF", "\x7F\xFF\xFF\xFF", "\x01\x02", "name", "\x1F", "\x04"
};
static void put_le32(uint8_t *to, uint32_t v)
{
    int k;
    for (k = 0; k < 4; k++) to[k] = (uint8_t)(v >> 8 * k);
}
static size_t pack(uint8_t *to, const void *bytes, size_t n)
{
    memcpy(to, "\x1F\x8B\x08\0\0\0\0\0\0\x03\x01", 11);
    put_le32(to + 11, (uint32_t)n | ~(uint32_t)n << 16);
    memcpy(to + 15, bytes, n);
    put_le32(to + 15 + n, nnti_crc32((const uint8_t *)bytes, n));
    put_le32(to + 19 + n, (uint32_t)n);
    return n + 23;
}
static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    const uint32_t which = fuzz_roll(d, (uint32_t)(sizeof files / sizeof *files));
    static uint8_t plain[FUZZ_MAX];
    size_t n = files[which].size;
    int inside = (int)fuzz_roll(d, 2), packed = (int)fuzz_roll(d, 2);
    memcpy(plain, files[which].bytes, n);
    if (inside) n = fuzz_mutate(plain, n, d, words, sizeof words / sizeof *words);
    if (!packed || n > 1000) { memcpy(to, plain, n); return n; }
    n = pack(to, plain, n);
    return inside ? n : fuzz_mutate(to, n, d, words, sizeof words / sizeof *words);
}
