/* bench_memory.c - one fresh process: compiles a net, takes steps, and prints what was planned beside what the system
   says that the process used at most. build.sh bench memory runs it for each row of its table.

       bench_memory NET BATCH WORK [STEPS]     alexnet, vgg16, resnet50; WORK: share of extra work, 0 keeps all

   Prints "NET BATCH WORK planned MB peak MB batch MB extra SHARE ms STEP": planned is nnt_plan's total, peak the largest
   resident set less what the process had before the net, batch the caller's own pictures, which no plan contains. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "../examples/models.h"
#include <stdio.h>
#include <sys/resource.h>

static double peak_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
#if defined(__APPLE__)
    return (double)u.ru_maxrss;
#else
    return 1024.0 * (double)u.ru_maxrss;
#endif
}
static float *pictures(int64_t values)
{
    float *x = (float *)malloc((size_t)values * sizeof *x);
    int64_t i;
    for (i = 0; x && i < values; i++) x[i] = (float)(i * 2654435761u % 1000u) / 1000.0f - 0.5f;
    return x;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "alexnet";
    const int size = argc > 2 ? atoi(argv[2]) : 0, steps = argc > 4 ? atoi(argv[4]) : 2;
    const int64_t values = (int64_t)3 * 224 * 224 * size;
    nnt_net *net = nnt_new(NULL);
    nnt_node loss;
    nnt_compile_desc d;
    nnt_memory m;
    nnt_batch b;
    float *x;
    int32_t *labels;
    double before, best = 1e30;
    int i, status = 1;
    if (size < 1 || steps < 1) { fprintf(stderr, "bench_memory alexnet|vgg16|resnet18|resnet50 BATCH WORK [STEPS]\n"); return 2; }
    memset(&d, 0, sizeof d);
    memset(&b, 0, sizeof b);
    x = pictures(values);
    labels = (int32_t *)calloc((size_t)size, sizeof *labels);
    if (!x || !labels) { fprintf(stderr, "out of memory\n"); return 1; }
    for (i = 0; i < size; i++) labels[i] = i % 1000;
    before = peak_bytes();
    if (strcmp(name, "alexnet") == 0) loss = nnt_cross_entropy(alexnet(net, 3, 224, 224, 1000));
    else if (strcmp(name, "vgg16") == 0) loss = nnt_cross_entropy(vgg16(net, 3, 224, 224, 1000));
    else if (strcmp(name, "resnet18") == 0) loss = nnt_cross_entropy(resnet18(net, 3, 224, 224, 1000));
    else loss = nnt_cross_entropy(resnet50(net, 3, 224, 224, 1000));
    d.batch = size;
    d.optimizer = nnt_adam(1e-4f);
    d.extra_work = (float)(argc > 3 ? atof(argv[3]) : 0);
    b.x = x;
    b.labels = labels;
    b.count = size;
    if (nnt_plan(net, loss, d, &m) || nnt_compile(net, loss, d)) goto out;
    for (i = 0; i < steps; i++) {
        double start = nnti_seconds();
        if (nnt_step(net, &b, NULL)) goto out;
        best = nnti_seconds() - start < best ? nnti_seconds() - start : best;
    }
    printf("%s %d %g planned %.1f peak %.1f batch %.1f extra %.4f ms %.1f\n", name, size, (double)d.extra_work,
           (double)m.total / 1e6, (peak_bytes() - before) / 1e6, 4e-6 * (double)values, m.extra_work, 1e3 * best);
    status = 0;
out:
    if (status) fprintf(stderr, "%s: %s\n", name, nnt_error(net));
    nnt_free(net);
    free(labels);
    free(x);
    return status;
}
