/* smoke.c - one small net with most kinds of layers: trains, predicts, saves and loads. build.sh compiles it in every
   configuration; it uses nothing but the public functions and says what went wrong. With SECOND_UNIT it is linked with
   second.c. Argument: the file to save to. */
#include "nntrain.h"
#include <stdio.h>
#include <string.h>

enum { COUNT = 24, PIXELS = 8 * 8, CLASSES = 3, STEPS = 40 };

#ifdef SECOND_UNIT
#  ifdef __cplusplus
extern "C"
#  endif
int second_unit(void);
#endif

static int wrong(nnt_net *net, const char *what)
{
    printf("smoke: %s: %s\n", what, nnt_error(net));
    nnt_free(net);
    return 1;
}

static nnt_node smoke_net(nnt_net *net)
{
    nnt_node x = nnt_input(net, 1, 8, 8), left, right;
    x = nnt_noise(x, 0.05f);
    x = nnt_relu(nnt_batchnorm(nnt_name(nnt_conv2d(x, 8, 3, 1, 1), "conv1")));
    left = nnt_maxpool(x, 2, 2, 0);
    right = nnt_avgpool(nnt_gelu(nnt_conv2d(x, 8, 3, 1, 1)), 2, 2, 0);
    x = nnt_add(left, right);
    x = nnt_concat(x, nnt_tanh(left));
    x = nnt_adaptive_avgpool(x, 3, 3);
    x = nnt_dropout(nnt_leaky_relu(nnt_linear(x, 16), 0.01f), 0.1f);
    return nnt_linear(x, CLASSES);
}

int main(int argc, char **argv)
{
    static float x[COUNT * PIXELS], y[COUNT * CLASSES], again[COUNT * CLASSES];
    static int32_t label[COUNT];
    const uint32_t not_a_number = 0x7fc00000u;
    const char *path = argc > 1 ? argv[1] : "smoke.safetensors";
    nnt_net *net = nnt_new(NULL);
    nnt_node logits = smoke_net(net);
    nnt_compile_desc build;
    nnt_batch batch;
    nnt_result r;
    float first = 0, last = 0;
    int i, k, right = 0;

    for (i = 0; i < COUNT; i++) {                       /* a bright row whose height is the class */
        label[i] = i % CLASSES;
        for (k = 0; k < PIXELS; k++) x[i * PIXELS + k] = k / 8 / 3 == label[i] ? 1.0f : (float)((k * 7 + i * 5) % 11) / 20.0f;
    }
    memset(&build, 0, sizeof build);
    memset(&batch, 0, sizeof batch);
    build.batch = COUNT;
    build.threads = 2;
    build.optimizer = nnt_adam(1e-2f);
    batch.x = x;
    batch.labels = label;
    batch.count = COUNT;

    if (nnt_compile(net, nnt_cross_entropy(logits), build)) return wrong(net, "compile");
    for (i = 0; i < STEPS; i++) {
        if (nnt_step(net, &batch, &last)) return wrong(net, "step");
        if (i == 0) first = last;
    }
    if (!(last < 0.5f * first)) { printf("smoke: loss %g at first, %g at last\n", (double)first, (double)last); return 1; }
    if (nnt_predict(net, x, COUNT, y)) return wrong(net, "predict");
    for (i = 0; i < COUNT; i++) {
        int best = 0;
        for (k = 1; k < CLASSES; k++) if (y[i * CLASSES + k] > y[i * CLASSES + best]) best = k;
        right += best == label[i];
    }
    if (right < COUNT - 2) { printf("smoke: %d of %d right\n", right, COUNT); return 1; }
#ifndef NNT_NO_STDIO
    if (nnt_save(net, path)) return wrong(net, "save");
    if (nnt_tensor_fill(nnt_param(net, "conv1.weight"), 0.0f)) return wrong(net, "fill");
    if (nnt_load(net, path)) return wrong(net, "load");
    remove(path);
    if (nnt_predict(net, x, COUNT, again)) return wrong(net, "predict after load");
    if (memcmp(y, again, sizeof y)) { printf("smoke: other predictions after load\n"); return 1; }
#else
    (void)path;
    (void)again;
#endif
    memcpy(&x[3], &not_a_number, sizeof x[3]);          /* noticed even under -ffast-math */
    r = nnt_step(net, &batch, &last);
    if (r != NNT_ERR_NOT_FINITE && r != NNT_ERR_DATA) {
        printf("smoke: %s for a value that is not a number\n", nnt_result_name(r));
        return 1;
    }
    nnt_free(net);
#ifdef SECOND_UNIT
    if (second_unit()) { printf("smoke: second unit failed\n"); return 1; }
#endif
    return 0;
}
