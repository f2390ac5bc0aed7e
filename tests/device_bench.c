/* device_bench.c - times on a GPU, for device_check.sh: training steps of known nets, and what noise and sums take.

       device_bench [--toy] [--device cuda]

   Prints a line for each: "ours NET BATCH PRECISION MILLISECONDS BYTES", and "ours noise|add VALUES fp32 MILLISECONDS 0".
   --toy: sizes that the emulator of cuda_on_cpu.h can do. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "../examples/models.h"

enum { CLASSES = 1000, WARM_UP = 5, STEPS = 20 };

typedef struct bench_net {
    const char *name;
    nnt_node (*logits)(nnt_net *net, int channels, int height, int width, int classes);
    int batch, size;
} bench_net;
static const bench_net nets[] = {
    { "alexnet", alexnet, 256, 224 }, { "vgg16", vgg16, 64, 224 }, { "resnet18", resnet18, 256, 224 }, { "resnet50", resnet50, 128, 224 }
};
static nnt_node small(nnt_net *net, int channels, int height, int width, int classes)
{
    nnt_node x = nnt_relu(nnt_batchnorm(nnt_conv2d(nnt_input(net, channels, height, width), 8, 3, 1, 1)));
    return nnt_linear(nnt_maxpool(x, 2, 2, 0), classes);
}
static const bench_net toy = { "small", small, 2, 8 };
static const char *const precision_names[] = { "fp32", "tf32", "bf16" };

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare_doubles);
    return v[n / 2];
}

/* Milliseconds of a step, whose loss is waited for. */
static int time_net(const bench_net *b, const char *device, int precision, int steps)
{
    nnt_net *net = nnt_new(NULL);
    const size_t values = (size_t)b->batch * 3 * (size_t)b->size * (size_t)b->size;
    float *x = (float *)malloc(values * sizeof *x);
    int32_t *labels = (int32_t *)malloc((size_t)b->batch * sizeof *labels);
    double ms[STEPS];
    nnt_compile_desc d;
    nnt_batch batch;
    nnt_result r;
    size_t i;
    int k;
    memset(&d, 0, sizeof d);
    memset(&batch, 0, sizeof batch);
    if (!x || !labels) { free(x); free(labels); nnt_free(net); return 1; }
    for (i = 0; i < values; i++) x[i] = (float)(i * 2654435761u % 1000u) / 1000.0f;     /* Knuth's multiplicative hash */
    for (k = 0; k < b->batch; k++) labels[k] = k % CLASSES;
    d.batch = b->batch;
    d.device = device;
    d.precision = precision;
    d.optimizer = nnt_sgd(0.01f);
    d.optimizer.momentum = 0.9f;
    batch.x = x;
    batch.labels = labels;
    batch.count = b->batch;
    r = nnt_compile(net, nnt_cross_entropy(b->logits(net, 3, b->size, b->size, CLASSES)), d);
    for (k = -WARM_UP; k < steps && !r; k++) {
        const double start = nnti_seconds();
        r = nnt_step(net, &batch, NULL);
        if (k >= 0) ms[k] = 1e3 * (nnti_seconds() - start);
    }
    if (r) printf("ours %s %d %s failed: %s\n", b->name, b->batch, precision_names[precision], nnt_error(net));
    else printf("ours %s %d %s %.4g %.0f\n", b->name, b->batch, precision_names[precision], median(ms, steps), (double)net->plan.memory.total);
    fflush(stdout);
    nnt_free(net);
    free(x);
    free(labels);
    return r != NNT_OK;
}

/* The article's two: noise onto a tensor, and a sum of two. */
static int time_tensors(const char *device, int64_t values)
{
    nnt_net *net = nnt_new(NULL);
    nnt_tensor *a = nnt_tensor_new(net, device, 1, &values), *b = nnt_tensor_new(net, device, 1, &values);
    nnt_result r = a && b ? NNT_OK : nnt_error_code(net) ? nnt_error_code(net) : NNT_ERR_DEVICE;
    float first = 0;
    int64_t one = 1;
    nnt_tensor *probe = nnt_tensor_new(net, device, 1, &one);
    int which, k;
    for (which = 0; which < 2 && !r; which++) {
        double ms[STEPS];
        for (k = -WARM_UP; k < STEPS && !r; k++) {
            const double start = nnti_seconds();
            r = which ? nnt_tensor_add(a, a, b) : nnt_tensor_add_noise(a, 0.1f, (uint64_t)(k + WARM_UP));
            if (!r) r = nnt_tensor_read(probe, &first);         /* waits for what is under way */
            if (k >= 0) ms[k] = 1e3 * (nnti_seconds() - start);
        }
        if (!r) printf("ours %s %.0f fp32 %.4g 0\n", which ? "add" : "noise", (double)values, median(ms, STEPS));
    }
    if (r) printf("ours tensors failed: %s\n", nnt_error(net));
    nnt_free(net);
    return r != NNT_OK;
}

int main(int argc, char **argv)
{
    const char *device = "cuda";
    int i, precision, small = 0, failed = 0;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--toy") == 0) small = 1;
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) device = argv[++i];
        else { fprintf(stderr, "usage: device_bench [--toy] [--device NAME]\n"); return 2; }
    }
    if (small) return time_net(&toy, device, NNT_FP32, 1) || time_tensors(device, 10000);
    failed |= time_tensors(device, 64 * 3 * 224 * 224);
    for (precision = NNT_TF32; precision <= NNT_BF16; precision++)
        for (i = 0; i < (int)(sizeof nets / sizeof nets[0]); i++) failed |= time_net(&nets[i], device, precision, STEPS);
    failed |= time_net(&nets[0], device, NNT_FP32, STEPS);
    return failed;
}
