/* fuzz_pictures.c - whatever bytes a file has: as a picture, EXIF block, IDX, CIFAR or gzip file, and as the names in a
   folder, it gives samples or an error in words, and all memory back. The first byte chooses which. How to run it: fuzz.h,
   with -DNNT_TEST_STB -I/usr/include/stb. */
#include "stb.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"
#include <sys/stat.h>
#include <unistd.h>

/* A place of one's own for files. */
static const char *folder_of(void)
{
    static char name[200];
    const char *tmp = getenv("TMPDIR");
    if (name[0]) return name;
    sprintf(name, "%.100s/nnt_fuzz_%ld", tmp ? tmp : "/tmp", (long)getpid());
    RULE(mkdir(name, 0700) == 0);
    return name;
}
static void write_at(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    RULE(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

static int try_picture(const uint8_t *p, size_t n)
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
static int try_dataset(const uint8_t *p, size_t n, int cifar)
{
    char path[300];
    const char *list[1];
    counted c;
    nnt_allocator a = counted_allocator(&c);
    nnt_loader_desc order;
    nnt_dataset *d;
    nnt_loader *l;
    nnt_batch b;
    int good;
    sprintf(path, "%s/file", folder_of());
    write_at(path, p, n);
    list[0] = path;
    d = cifar ? nnt_dataset_cifar(list, 1, cifar - 1, &a) : nnt_dataset_idx(path, NULL, &a);
    good = nnt_dataset_error_code(d) == NNT_OK;
    RULE(good == (nnt_dataset_error(d)[0] == 0));
    RULE(c.peak < 100000 + 1100 * n);                       /* a gzip file may really hold so much */
    memset(&order, 0, sizeof order);
    order.batch = 2;
    order.workers = NNT_NO_WORKERS;
    l = nnt_loader_new(d, order, NULL);
    RULE((nnt_loader_next(l, &b) == NNT_OK) == good);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    RULE(c.live == 0);
    remove(path);
    return good;
}
/* Names out of the bytes, parted by 0 or '/': files of a class folder. */
static int try_names(const uint8_t *p, size_t n)
{
    char class_path[300], made[64][340], name[40], got[700];
    nnt_folder_desc desc;
    counted c;
    nnt_allocator a = counted_allocator(&c);
    nnt_dataset *d;
    size_t i, length = 0;
    int64_t k;
    int count = 0;
    sprintf(class_path, "%s/class", folder_of());
    RULE(mkdir(class_path, 0700) == 0);
    for (i = 0; i <= n && count < 64; i++) {
        const int end = i == n || p[i] == 0 || p[i] == '/';
        if (!end) { if (length < 30) name[length++] = (char)p[i]; continue; }
        name[length] = 0;
        if (length && strcmp(name, ".") && strcmp(name, "..")) {
            FILE *f;
            sprintf(made[count], "%s/%s", class_path, name);
            f = fopen(made[count], "wb");
            if (f) { fclose(f); count++; }
        }
        length = 0;
    }
    memset(&desc, 0, sizeof desc);
    d = nnt_dataset_folder(folder_of(), desc, &a);
    RULE((nnt_dataset_error_code(d) == NNT_OK) == (nnt_dataset_count(d) > 0));
    RULE(nnt_dataset_error_code(d) == NNT_OK || nnt_dataset_error(d)[0]);
    RULE(nnt_dataset_count(d) + nnt_dataset_passed_over(d) <= count);
    for (k = 0; k < nnt_dataset_count(d); k++) {
        RULE(nnt_dataset_sample_name(d, k, got, sizeof got) < sizeof got && access(got, R_OK) == 0);
        RULE(nnt_dataset_label(d, k) == 0);
    }
    nnt_dataset_free(d);
    RULE(c.live == 0);
    while (count) remove(made[--count]);
    RULE(rmdir(class_path) == 0);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int orientation, good = 0;
    uint8_t *exact;
    if (size == 0) return 0;
    exact = (uint8_t *)malloc(size);                        /* so that a sanitizer sees its end */
    RULE(exact != NULL);
    memcpy(exact, data + 1, size - 1);
    switch (data[0] % 8) {
    case 0: case 1: case 2: good = try_picture(exact, size - 1); break;
    case 3:
        orientation = nnti_exif_orientation(exact, size - 1);
        RULE(orientation >= 1 && orientation <= 8);
        good = orientation > 1;
        break;
    case 4: good = try_dataset(exact, size - 1, 0); break;
    case 5: good = try_dataset(exact, size - 1, 1 + (int)(size % 3)); break;
    case 6: good = try_names(exact, size - 1); break;
    default:
        if (size > 2) { exact[0] = 0x1F; exact[1] = 0x8B; }
        good = try_dataset(exact, size - 1, 0);
    }
    free(exact);
    return good;
}

#ifdef FUZZ_MAIN
/* Small files of each kind, the choosing byte before them. */
#define SEED(text) { text, sizeof text - 1 }
static const struct { const char *bytes; size_t size; } seeds[] = {
    SEED("\0\xFF\xD8\xFF\xE1\0\x22" "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    "\xFF\xC0\0\x0B\x08\0\x08\0\x08\x01\x01\x11\0\xFF\xDA\0\x08\x01\x01\0\0\x3F\0\x12\x34\xFF\xD9"),
    SEED("\1\x89PNG\r\n\x1a\n\0\0\0\x0DIHDR\0\0\0\x02\0\0\0\x01\x08\0\0\0\0\0\0\0\0\0\0\0\0IDAT\0\0\0\0\0\0\0\0IEND\xAE\x42\x60\x82"),
    SEED("\2GIF89a\x02\0\x01\0\x80\0\0\0\0\0\xFF\xFF\xFF\x2C\0\0\0\0\x02\0\x01\0\0\x02\x02\x44\x0A\0\x3B"),
    SEED("\2BM\x3E\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x18\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\0\0"),
    SEED("\1P5 2 1 255\n\x01\x02"),
    SEED("\1P6 # x\n 1 1 65535\n\x01\x02\x03\x04\x05\x06"),
    SEED("\3MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"),
    SEED("\4\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02\x01\x02\x03\x04"),
    SEED("\6" "a.png\0B.JPG\0.hidden\0x.txt\0.png\0x.\0y.jpgg\0z.jpg/w.JpEg"),
    SEED("\7\x1F\x8B\x08\0\0\0\0\0\0\x03\x01\x02\0\xFD\xFF\0\0\0\0\0\0\x02\0\0\0")
};

static size_t fuzz_mutated(uint8_t *b, fuzz_dice *d)
{
    size_t n, i, changes;
    uint32_t which;
    which = fuzz_roll(d, (uint32_t)(sizeof seeds / sizeof *seeds) + 1);
    if (which == sizeof seeds / sizeof *seeds) {            /* CIFAR: its size is right now and then */
        n = 1 + 3073 * (1 + fuzz_roll(d, 2)) - (fuzz_roll(d, 3) == 0);
        memset(b, (int)fuzz_roll(d, 12), n);
        b[0] = 5;
    } else {
        n = seeds[which].size;
        memcpy(b, seeds[which].bytes, n);
    }
    changes = fuzz_roll(d, 7);
    for (i = 0; i < changes; i++) {
        const size_t at = n > 1 ? 1 + fuzz_roll(d, (uint32_t)n - 1) : 0;
        if (!at) break;
        switch (fuzz_roll(d, 5)) {
        case 0: b[at] ^= (uint8_t)(1 << fuzz_roll(d, 8)); break;
        case 1: b[at] = (uint8_t)fuzz_roll(d, 256); break;
        case 2: b[at] = (uint8_t)(fuzz_roll(d, 2) ? 255 : 0); break;
        case 3: memmove(b + at, b + at + 1, n - at - 1); n--; break;
        default: if (n < FUZZ_MAX - 1) { memmove(b + at + 1, b + at, n - at); b[at] = (uint8_t)fuzz_roll(d, 256); n++; }
        }
    }
    if (fuzz_roll(d, 20) == 0) n = 1 + fuzz_roll(d, (uint32_t)n);
    return n;
}
int main(int argc, char **argv)
{
    const int failed = fuzz_main(argc, argv, fuzz_mutated);
    rmdir(folder_of());
    return failed;
}
#endif
