/* fuzz_pictures.c - whatever bytes a picture has, decoding it gives pixels or an error in words, its EXIF block an
   orientation, and all memory back. How to run it: fuzz.h, with -DNNT_TEST_STB -I/usr/include/stb. */
#include "stb.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

static int try_decoding(const uint8_t *p, size_t n)
{
    nnt_folder_desc d;
    nnti_reading r;
    nnti_image m;
    counted c;
    nnt_allocator a = counted_allocator(&c);
    nnt_transform t[2];
    nnt_result code;
    memset(&d, 0, sizeof d);
    d.channels = n % 2 ? 3 : 1;
    d.max_pixels = 1 << 20;
    t[0] = nnt_resize(5, 9);
    t[1] = nnt_random_affine(30, 0.1f, 0.5f, 2);
    nnti_reading_init(&r, &a);
    code = nnti_decode(&r, &d, p, n, &m);
    RULE((code == NNT_OK) == (r.error.code == NNT_OK) && (code == NNT_OK) == (r.error.text[0] == 0));
    RULE(code || (m.width > 0 && m.height > 0 && (int64_t)m.width * m.height <= d.max_pixels && m.channels == d.channels));
    if (!code) RULE(nnti_apply(t, 2, &r, 1, 0, &m) == NNT_OK && m.height == 5 && m.width == 9);
    nnti_reading_free(&r);
    RULE(c.live == 0);
    return !code;
}
/* A PNG's checksums set right, so that changes in its chunks get as far as the decoder. */
static void repair(uint8_t *p, size_t n)
{
    size_t at = 8, length;
    for (; n - at >= 12; at += length + 12) {
        uint32_t crc;
        int k;
        length = nnti_be32(p + at);
        if (length > n - at - 12) break;
        crc = nnti_crc32(p + at + 4, length + 4);
        for (k = 0; k < 4; k++) p[at + 8 + length + (size_t)k] = (uint8_t)(crc >> 8 * (3 - k));
    }
}

static int try_input(const uint8_t *data, size_t size)
{
    const int orientation = nnti_exif_orientation(data, size);
    int good = try_decoding(data, size);
    RULE(orientation >= 1 && orientation <= 8);
    if (size >= 8 && memcmp(data, "\x89PNG", 4) == 0) {
        uint8_t *copy = (uint8_t *)malloc(size);
        RULE(copy != NULL);
        memcpy(copy, data, size);
        repair(copy, size);
        good = try_decoding(copy, size);
        free(copy);
    }
    return good || orientation > 1;
}

/* Small files of each kind, some with nothing to decode in them; by Pillow and zlib a grey and a progressive JPEG, an
   interlaced PNG with a palette and one of 16 bits with alpha. The last is what an EXIF block holds. */
#define SEED(text) { text, sizeof text - 1 }
static const struct { const char *bytes; size_t size; } seeds[] = {
    SEED("\xFF\xD8\xFF\xE1\0\x22" "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    "\xFF\xC0\0\x0B\x08\0\x08\0\x08\x01\x01\x11\0\xFF\xDA\0\x08\x01\x01\0\0\x3F\0\x12\x34\xFF\xD9"),
    SEED("\x89PNG\r\n\x1a\n\0\0\0\x0DIHDR\0\0\0\x02\0\0\0\x01\x08\0\0\0\0\0\0\0\0\0\0\0\0IDAT\0\0\0\0\0\0\0\0IEND\xAE\x42\x60\x82"),
    SEED("\xFF\xD8\xFF\xDB\0C\0\x35%(/(!5/+/<95\x3FP\x85WPIIP\xA3u{a\x85\xC1\xAA\xCB\xC8\xBE\xAA\xBA\xB7\xD5\xF0"
    "\xFF\xFF\xD5\xE2\xFF\xE6\xB7\xBA\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xCE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
    "\xFF\xFF\xFF\xC0\0\x0B\x08\0\x07\0\x09\x01\x01\x11\0\xFF\xC4\0\x15\0\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    "\x02\xFF\xC4\0!\x10\0\0\x05\x02\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x03\x11!\x91\x12\x13\x14RSq\xD1\xFF\xDA"
    "\0\x08\x01\x01\0\0\x3F\0`\x85" "e\xC5v&\x97>\x8CV\x91\xDE" "6l~\x8F\xFF\xD9"),
    SEED("\xFF\xD8\xFF\xDB\0C\0P7<F<2PFAFZUP_x\xC8\x82xnnx\xF5\xAF\xB9\x91\xC8\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
    "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
    "\xFF\xFF\xFF\xFF\xFF\xDB\0C\x01UZZxix\xEB\x82\x82\xEB\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
    "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
    "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xC2\0\x11\x08\0\x09\0\x11\x03\x01\x22\0"
    "\x02\x11\x01\x03\x11\x01\xFF\xC4\0\x14\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xFF\xC4\0\x15\x01\x01\x01\0\0"
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\xFF\xDA\0\x0C\x03\x01\0\x02\x10\x03\x10\0\0\x01\x04\x0A\xFF\xC4\0\x14\x10"
    "\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0 \xFF\xDA\0\x08\x01\x01\0\x01\x05\x02_\xFF\xC4\0\x15\x11\x01\x01\0\0\0\0"
    "\0\0\0\0\0\0\0\0\0\0\0\x11\xFF\xDA\0\x08\x01\x03\x01\x01\x3F\x01\x88\xFF\xC4\0\x15\x11\x01\x01\0\0\0\0\0\0"
    "\0\0\0\0\0\0\0\0\0\x11\xFF\xDA\0\x08\x01\x02\x01\x01\x3F\x01\x88\xFF\xC4\0\x14\x10\x01\0\0\0\0\0\0\0\0\0\0"
    "\0\0\0\0\0 \xFF\xDA\0\x08\x01\x01\0\x06\x3F\x02_\xFF\xC4\0\x14\x10\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0 \xFF"
    "\xDA\0\x08\x01\x01\0\x01\x3F!_\xFF\xDA\0\x0C\x03\x01\0\x02\0\x03\0\0\0\x10\xC3\x1F\xFF\xC4\0\x15\x11\x01"
    "\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x11\xFF\xDA\0\x08\x01\x03\x01\x01\x3F\x10\x94\xBF\xFF\xC4\0\x15\x11\x01"
    "\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x10\xFF\xDA\0\x08\x01\x02\x01\x01\x3F\x10!\xFF\xC4\0\x17\x10\0\x03\x01"
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x11 \xFF\xDA\0\x08\x01\x01\0\x01\x3F\x10\xA8\xA8\xAB\x1F\xFF\xD9"),
    SEED("\x89PNG\x0D\x0A\x1A\x0A\0\0\0\x0DIHDR\0\0\0\x02\0\0\0\x02\x04\x03\0\0\x01\xF7\x9F \x81\0\0\0\x0CPLTE\0"
    "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A\x0B\xDCL8\x9C\0\0\0\x01tRNS\x80\xAD^[F\0\0\0\x0EIDATx\xDA" "c\x10`"
    "T`\x12\x02\0\0\xD0\0F\xB5\x96\xE9\x09\0\0\0\0IEND\xAE" "B`\x82"),
    SEED("\x89PNG\x0D\x0A\x1A\x0A\0\0\0\x0DIHDR\0\0\0\x02\0\0\0\x03\x10\x06\0\0\0\xE9z\x02\xC2\0\0\0;IDATx\xDA"
    "" "cd\xE4\xE0\x17\x93U\xD1" "6\xB2tp\xF7\x0B\x8DI\xCE" "bf\xE6\x12\x94\x90W\xD3" "5\xB1v\xF2\x0C\x08\x8FK"
    "\xCD" "aa\xE1\x16\x92TP\xD7" "3\xB5q\xF6\x0A\x8C\x88O\xCB\x05\0\xE9\xC0\x0A" "a\xA3\x0FY`\0\0\0\0IEND\xAE"
    "" "B`\x82"),
    SEED("GIF89a\x02\0\x01\0\x80\0\0\0\0\0\xFF\xFF\xFF\x2C\0\0\0\0\x02\0\x01\0\0\x02\x02\x44\x0A\0\x3B"),
    SEED("BM\x3E\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x18\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\0\0"),
    SEED("P5 2 1 255\n\x01\x02"),
    SEED("P6 # x\n 1 1 65535\n\x01\x02\x03\x04\x05\x06"),
    SEED("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0")
};

static const char *const words[] = {
    "\xFF\xD8\xFF", "\xFF\xC0", "\xFF\xC2", "\xFF\xC4", "\xFF\xDB", "\xFF\xDA", "\xFF\xDD", "\xFF\xD9", "\xFF\xE1", "Exif", "II*", "MM",
    "IHDR", "PLTE", "tRNS", "IDAT", "IEND", "CgBI", "GIF89a", "GIF87a", "BM", "P5 ", "P6 ", "65535", "\x21\xF9", "\x7F\xFF\xFF\xFF"
};
static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    const uint32_t which = fuzz_roll(d, (uint32_t)(sizeof seeds / sizeof *seeds));
    memcpy(to, seeds[which].bytes, seeds[which].size);
    return fuzz_mutate(to, seeds[which].size, d, words, sizeof words / sizeof *words);
}
