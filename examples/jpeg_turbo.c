/* jpeg_turbo.c - a folder of photos through libjpeg-turbo instead of stb_image.
   What it shows: a decoder of one's own (nnt_folder_desc.decode_fn). It decodes only as much as is asked for: when pictures
   are resized anyway (least_width, least_height), libjpeg's inverse transforms give them at a fraction of their size for
   less work than all of their pixels take; and of what a crop cuts off (part_x, part_width, ...) only the codes are read.
   Build: cc -O2 -I. examples/jpeg_turbo.c -o jpeg_turbo -ljpeg -lm -pthread
   Data:  a folder of class folders of .jpg, .jpeg files.
   Run:   ./jpeg_turbo FOLDER [--workers 2] [--batch 32] [--epochs 3] [--exact]
          --exact: all of each picture is decoded, as stb_image and Pillow do, and chroma is interpolated as they do
   Prints images a second of each epoch: decode, resize to 256, crop 224, normalise. */
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <jpeglib.h>
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* libjpeg calls error_exit when it can't go on; it must not return. */
typedef struct handler { struct jpeg_error_mgr base; jmp_buf back; char text[JMSG_LENGTH_MAX]; } handler;

static void on_error(j_common_ptr c)
{
    handler *h = (handler *)c->err;
    h->base.format_message(c, h->text);
    longjmp(h->back, 1);
}
/* Warnings are about damaged data, after which libjpeg goes on with grey: that is an error here. */
static void on_message(j_common_ptr c, int level) { if (level < 0) on_error(c); }

/* The smallest of 1/8, 1/4, 1/2 and 1 that keeps both sides. For others, 5/8 say, libjpeg-turbo has no vector code: all
   pixels come faster than five eighths of them. */
static void reduce(struct jpeg_decompress_struct *c, const nnt_picture *p)
{
    unsigned n;
    c->scale_denom = 8;
    for (n = 1; n < 8; n *= 2)
        if ((c->image_width * n + 7) / 8 >= (unsigned)p->least_width && (c->image_height * n + 7) / 8 >= (unsigned)p->least_height) break;
    c->scale_num = n;
}
/* Rows first to end - 1 are read, of each the columns from x on. */
typedef struct window { JDIMENSION first, end, x; } window;

static JDIMENSION scaled(int v, JDIMENSION out, JDIMENSION in, int up)
{
    return (JDIMENSION)(((uint64_t)v * out + (up ? in - 1 : 0)) / in);
}
/* Where chroma is interpolated, some pixels more than asked for: it depends on neighbours. */
static window look_through(struct jpeg_decompress_struct *c, const nnt_picture *p)
{
    window w = { 0, 0, 0 };
    w.end = c->output_height;
#ifdef LIBJPEG_TURBO_VERSION_NUMBER
    if (p->part_width) {
        const int interpolated = c->do_fancy_upsampling && (c->max_h_samp_factor > 1 || c->max_v_samp_factor > 1);
        const JDIMENSION more = interpolated ? 4 : 0, width = c->output_width, height = c->output_height;
        JDIMENSION right = scaled(p->part_x + p->part_width, width, c->image_width, 1) + more, columns;
        JDIMENSION bottom = scaled(p->part_y + p->part_height, height, c->image_height, 1) + more;
        w.x = scaled(p->part_x, width, c->image_width, 0);
        w.x -= w.x < more ? w.x : more;
        w.first = scaled(p->part_y, height, c->image_height, 0);
        w.first -= w.first < more ? w.first : more;
        if (right > width) right = width;
        if (bottom < height) w.end = bottom;
        columns = right - w.x;
        if (columns < width) jpeg_crop_scanline(c, &w.x, &columns);     /* to whole blocks; output_width becomes columns */
        if (w.first) jpeg_skip_scanlines(c, w.first);
    }
#else
    (void)p;
#endif
    return w;
}
/* Rows as they are: nntrain turns the picture as its EXIF says, afterwards. exact: whether user is not NULL. */
static nnt_result decode(void *user, nnt_picture *p, char *why, size_t cap)
{
    struct jpeg_decompress_struct c;
    handler h;
    window w;
    size_t row_bytes;
    uint8_t *to;
    c.err = jpeg_std_error(&h.base);
    h.base.error_exit = on_error;
    h.base.emit_message = on_message;
    if (setjmp(h.back)) {
        snprintf(why, cap, "libjpeg says: %s", h.text);
        jpeg_destroy_decompress(&c);
        return NNT_ERR_FORMAT;
    }
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, p->data, (unsigned long)p->bytes);
    jpeg_read_header(&c, TRUE);
    c.out_color_space = JCS_RGB;
    if (!user) {
        c.dct_method = JDCT_IFAST;
        c.do_fancy_upsampling = FALSE;
        if (p->least_width && p->least_height) reduce(&c, p);
    }
    jpeg_start_decompress(&c);
    to = nnt_picture_pixels(p, (int)c.output_width, (int)c.output_height);
    if (!to) {
        jpeg_destroy_decompress(&c);
        return NNT_ERR_MEMORY;
    }
    row_bytes = 3 * (size_t)c.output_width;
    w = look_through(&c, p);
    while (c.output_scanline < w.end) {
        JSAMPROW row = to + c.output_scanline * row_bytes + 3 * (size_t)w.x;
        jpeg_read_scanlines(&c, &row, 1);
    }
    jpeg_destroy_decompress(&c);        /* also in the middle: what comes below is not wanted */
    return NNT_OK;
}

int main(int argc, char **argv)
{
    static const float mean[3] = { 0.485f, 0.456f, 0.406f }, deviation[3] = { 0.229f, 0.224f, 0.225f };
    nnt_transform list[3];
    nnt_folder_desc folder = {0};
    nnt_transforms_desc transforms = {0};
    nnt_loader_desc order = {0};
    nnt_dataset *pictures, *data;
    nnt_loader *loader;
    nnt_batch batch;
    int i, exact = 0, epochs = 3, epoch, failed = 0;
    order.batch = 32;
    order.workers = 2;
    for (i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--exact")) exact = 1;
        else if (i + 1 < argc && !strcmp(argv[i], "--workers")) order.workers = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--batch")) order.batch = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--epochs")) epochs = atoi(argv[++i]);
        else break;
    }
    if (argc < 2 || i < argc) {
        fprintf(stderr, "usage: %s FOLDER [--workers N] [--batch N] [--epochs N] [--exact]\n", argv[0]);
        return 2;
    }
    list[0] = nnt_resize_shorter(256);
    list[1] = nnt_center_crop(224, 224);
    list[2] = nnt_normalize(mean, deviation, 3);
    transforms.list = list;
    transforms.count = 3;
    folder.extensions = "jpg jpeg";
    folder.decode_fn = decode;
    folder.user = exact ? &exact : NULL;
    if (order.workers == 0) order.workers = NNT_NO_WORKERS;
    pictures = nnt_dataset_folder(argv[1], folder, NULL);
    data = nnt_dataset_transform(pictures, transforms, NULL);
    loader = nnt_loader_new(data, order, NULL);
    for (epoch = 0; epoch < epochs && !failed; epoch++) {
        double start = seconds();
        int64_t samples = 0;
        while (!(failed = nnt_loader_next(loader, &batch) != NNT_OK) && batch.count) samples += batch.count;
        if (!failed) printf("%d pictures, %.0f a second\n", (int)samples, (double)samples / (seconds() - start));
    }
    if (failed) fprintf(stderr, "jpeg_turbo: %s\n", nnt_loader_error(loader));
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    nnt_dataset_free(pictures);
    return failed;
}
