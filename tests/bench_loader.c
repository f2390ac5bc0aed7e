/* bench_loader.c - a turn of what bench_loader_torch.py compares: pictures a second through the loader (decode, resize the
   shorter side to 256, center crop of 224, normalise; batches of 32, pictures repeated to 1,000), and milliseconds of
   adding normal noise to 64 x 3 x 224 x 224 numbers.
       bench_loader FOLDER stb|turbo|turbo_exact WORKERS      prints pictures a second; workers 0: in this thread
       bench_loader noise THREADS                       prints milliseconds
   WITH_TURBO: with the decoder of examples/jpeg_turbo.c. */
#define STB_IMAGE_IMPLEMENTATION
#include <stb_image.h>
#ifdef WITH_TURBO
#  define main jpeg_turbo_main
#  include "../examples/jpeg_turbo.c"
#  undef main
#else
#  define NNTRAIN_IMPLEMENTATION
#  include "nntrain.h"
#endif

enum { PICTURES = 1000 };

static int noise(int threads)
{
    static const int64_t shape[4] = { 64, 3, 224, 224 };
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc d = {0};
    nnt_tensor *x;
    double best = 1e9;
    int i;
    d.batch = 1;
    d.threads = threads;            /* tensors on the CPU are worked on by the net's threads */
    if (nnt_compile(net, nnt_linear(nnt_input(net, 1, 1, 1), 1), d)) return 1;
    x = nnt_tensor_new(net, "cpu", 4, shape);
    for (i = 0; x && i < 8; i++) {
        double start = nnti_seconds();
        if (nnt_tensor_add_noise(x, 0.1f, (uint64_t)i)) return 1;
        if (nnti_seconds() - start < best) best = nnti_seconds() - start;
    }
    printf("%.3f\n", 1e3 * best);
    nnt_free(net);
    return !x;
}

int main(int argc, char **argv)
{
    static const float mean[3] = { 0.485f, 0.456f, 0.406f }, deviation[3] = { 0.229f, 0.224f, 0.225f };
    static int64_t index[PICTURES];
    nnt_transform list[3];
    nnt_folder_desc folder = {0};
    nnt_transforms_desc transforms = {0};
    nnt_loader_desc order = {0};
    nnt_dataset *photos, *all, *data;
    nnt_loader *loader;
    nnt_batch batch;
    double start;
    int i, samples = 0;
    if (argc == 3 && strcmp(argv[1], "noise") == 0) return noise(atoi(argv[2]));
    if (argc != 4) return 2;
#ifdef WITH_TURBO
    if (strncmp(argv[2], "turbo", 5) == 0) folder.decode_fn = decode;
    if (strcmp(argv[2], "turbo_exact") == 0) folder.user = &folder;
#endif
    if (strcmp(argv[2], "stb") != 0 && !folder.decode_fn) { printf("0\n"); return 0; }
    list[0] = nnt_resize_shorter(256);
    list[1] = nnt_center_crop(224, 224);
    list[2] = nnt_normalize(mean, deviation, 3);
    transforms.list = list;
    transforms.count = 3;
    order.batch = 32;
    order.workers = atoi(argv[3]) ? atoi(argv[3]) : NNT_NO_WORKERS;
    photos = nnt_dataset_folder(argv[1], folder, NULL);
    for (i = 0; i < PICTURES && nnt_dataset_count(photos); i++) index[i] = i % nnt_dataset_count(photos);
    all = nnt_dataset_subset(photos, index, PICTURES, NULL);
    data = nnt_dataset_transform(all, transforms, NULL);
    loader = nnt_loader_new(data, order, NULL);
    start = nnti_seconds();
    while (nnt_loader_next(loader, &batch) == NNT_OK && batch.count) samples += batch.count;
    if (samples != PICTURES) { fprintf(stderr, "bench_loader: %s\n", nnt_loader_error(loader)); return 1; }
    printf("%.1f\n", samples / (nnti_seconds() - start));
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    nnt_dataset_free(all);
    nnt_dataset_free(photos);
    return 0;
}
