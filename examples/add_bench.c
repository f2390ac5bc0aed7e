/* add_bench.c - how long an addition of two batches of pictures takes, on every device that is there.
   What it shows: the same tensor functions on any device. The tensors are 64 x 3 x 224 x 224, a batch as ImageNet nets see
   it: 9.6 million numbers, 38.5 MB each. An addition reads two and writes one, so that memory decides, not arithmetic.
   Build: cc -O2 -I. examples/add_bench.c -o add_bench -lm -pthread
   Data:  none.
   Run:   ./add_bench [--rounds 20]
   Prints a line a device; a Xeon with AVX-512, two cores: cpu 2.8 ms, 40.6 GB/s.
   On a GPU: nvcc -O3 -I. examples/add_bench.c nntrain_cuda.cu -lcublas -lcublasLt -o add_bench */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const int64_t shape[4] = { 64, 3, 224, 224 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* The value of one number comes back to the host: by then the device has finished. */
static nnt_result wait_for(nnt_tensor *one, float *value) { return nnt_tensor_read(one, value); }

/* 1: measured; 0: there is no such device; -1: failed. */
static int bench(const char *device, int rounds, double *median)
{
    static const int64_t single[1] = { 1 };
    double ms[1000];
    float value = 0;
    nnt_net *net = nnt_new(NULL);
    nnt_tensor *a = nnt_tensor_new(net, device, 4, shape), *b, *c, *one;
    int i, result = 1;
    if (!a && nnt_error_code(net) == NNT_ERR_DEVICE) { nnt_free(net); return 0; }
    b = nnt_tensor_new(net, device, 4, shape);
    c = nnt_tensor_new(net, device, 4, shape);
    one = nnt_tensor_new(net, device, 1, single);
    if (!a || !b || !c || !one || nnt_tensor_uniform(a, 0, 1, 1) || nnt_tensor_uniform(b, 0, 1, 2)) result = -1;
    for (i = -3; result > 0 && i < rounds; i++) {
        double start;
        if (wait_for(one, &value)) result = -1;
        start = seconds();
        if (nnt_tensor_add(c, a, b) || wait_for(one, &value)) result = -1;
        if (i >= 0) ms[i] = 1e3 * (seconds() - start);
    }
    if (result < 0) fprintf(stderr, "add_bench: %s: %s\n", device, nnt_error(net));
    nnt_free(net);
    qsort(ms, (size_t)rounds, sizeof *ms, by_value);
    *median = ms[rounds / 2];
    return result;
}

int main(int argc, char **argv)
{
    static const char *const devices[] = { "cpu", "cuda:0", "cuda:1", "cuda:2", "cuda:3" };
    const double gigabytes = 3.0 * 64 * 3 * 224 * 224 * 4 / 1e9;
    int rounds = 20;
    double ms, cpu = 0;
    size_t i;
    if (argc == 3 && !strcmp(argv[1], "--rounds")) rounds = atoi(argv[2]);
    if ((argc != 1 && argc != 3) || rounds < 1 || rounds > 1000) {
        fprintf(stderr, "usage: %s [--rounds 1 to 1000]\n", argv[0]);
        return 2;
    }
    for (i = 0; i < sizeof devices / sizeof *devices; i++) {
        int r = bench(devices[i], rounds, &ms);
        if (r < 0) return 1;
        if (r == 0) continue;
        if (i == 0) cpu = ms;
        printf("%-8s %9.3f ms, %6.1f GB/s, %5.1f times the CPU\n", devices[i], ms, gigabytes / ms * 1e3, cpu / ms);
    }
    return 0;
}
