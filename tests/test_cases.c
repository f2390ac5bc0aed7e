/* test_cases.c - numbers that other libraries got wrong in public, worked out by hand or with PyTorch in double.

   Each case says what went wrong elsewhere. Public functions only. */
#include "stb.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

#ifndef NNT_TEST_SHARED
#  define NNT_TEST_SHARED "../shared"
#endif

/* ---- a layer with a chosen input, whose gradients can be seen ---- */

enum { MAX_OUTPUT = 64 };

/* A net whose input is the number 1 and whose first layer, "in", is linear, so that the next layer gets exactly that
   layer's weights, and the weights' gradient is the gradient of what it gets. */
static nnt_node begin(int channels, int height, int width)
{
    nnt_linear_desc d;
    memset(&d, 0, sizeof d);
    d.features = channels * height * width;
    d.no_bias = 1;
    return nnt_reshape(nnt_name(nnt_linear_ex(nnt_input(nnt_new(NULL), 1, 1, 1), d), "in"), channels, height, width);
}

static int compile(nnt_node loss, int batch, nnt_optimizer optimizer)
{
    nnt_compile_desc d;
    nnt_result r;
    memset(&d, 0, sizeof d);
    d.batch = batch;
    d.threads = 1;
    d.optimizer = optimizer;
    r = nnt_compile(loss.net, loss, d);
    CHECKF(r == NNT_OK, "%s", nnt_error(loss.net));
    return r == NNT_OK;
}

static void set(nnt_net *net, const char *name, const float *values)
{
    nnt_tensor *t = nnt_param(net, name);
    CHECKF(t && nnt_tensor_write(t, values) == NNT_OK, "%s: %s", name, nnt_error(net));
}
static float weight(nnt_net *net, const char *name)
{
    float v = 0;
    nnt_tensor *t = nnt_param(net, name);
    CHECKF(t && nnt_tensor_size(t, -1) == 1 && nnt_tensor_read(t, &v) == NNT_OK, "%s: %s", name, nnt_error(net));
    return v;
}

/* Within 1e-4 of the larger of |want| and 1. */
static void expect(const char *what, const float *got, const float *want, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        double w = (double)want[i], allowed = 1e-4 * (fabs(w) > 1 ? fabs(w) : 1);
        CHECKF(fabs((double)got[i] - w) <= allowed, "%s[%d] is %.9g, not %.9g", what, i, (double)got[i], w);
    }
}
static void expect_gradient(nnt_net *net, const char *name, const float *want, int count)
{
    nnt_tensor *t = nnt_grad(net, name);
    float *got = (float *)malloc((size_t)count * sizeof *got);
    int good = t && got && nnt_tensor_size(t, -1) == count && nnt_tensor_read(t, got) == NNT_OK;
    CHECKF(good, "%s: %s", name, nnt_error(net));
    if (good) expect(name, got, want, count);
    free(got);
}

/* Runs a compiled net whose loss is mse: checks the output, and makes grad_out (NULL: ones) the gradient of it. */
static void run(nnt_net *net, const float *y, int count, const float *grad_out)
{
    float one = 1, got[MAX_OUTPUT], target[MAX_OUTPUT];
    nnt_batch b;
    int i;
    CHECKF(nnt_predict(net, &one, 1, got) == NNT_OK, "%s", nnt_error(net));
    expect("output", got, y, count);
    for (i = 0; i < count; i++)             /* the gradient is 2 (y - target) / count */
        target[i] = y[i] - 0.5f * (float)count * (grad_out ? grad_out[i] : 1);
    memset(&b, 0, sizeof b);
    b.x = &one;
    b.targets = target;
    b.count = 1;
    CHECKF(nnt_backward(net, &b, NULL) == NNT_OK, "%s", nnt_error(net));
}

static void expect_shape(nnt_node x, int channels, int height, int width)
{
    int shape[3] = { 0, 0, 0 };
    nnt_shape(x, shape);
    CHECKF(shape[0] == channels && shape[1] == height && shape[2] == width, "%dx%dx%d", shape[0], shape[1], shape[2]);
}

/* ---- layers ---- */

/* (6 + 2 - 3) % 2 = 1: a row and a column of the padded input are never touched. */
static void conv_stride_leaves_a_column_untouched(void)
{
    static const float x[72] = {
        0, 0, 2, 3, -3, -2, 2, 3, -2, -1, 3, -1,
        -2, 2, -2, -1, 1, 0, -3, -3, 3, 2, 2, 0,
        2, -1, 0, 2, -3, -1, -3, 0, 3, -3, -1, -1,
        3, -2, 0, -2, -3, 2, -3, -2, 0, 0, -3, 3,
        2, 3, -3, 2, -1, 0, 3, -2, 2, -2, -1, 3,
        -1, 0, -1, -3, -1, 1, 0, 2, -1, 1, 2, 3
    };
    static const float w[54] = {
        2, -2, -3, -1, -1, 2, 0, -3, -1, 1, 2, 2, 3, -2, 3, -3, 0, -2,
        -2, 1, -1, 0, -2, -2, 2, 0, 1, 1, 3, -1, -2, 1, 3, 3, 3, 1,
        -1, -1, -3, -2, -1, -1, 1, 0, 1, 3, 3, 2, 3, -1, 3, 3, -2, 0
    };
    static const float grad_out[27] = {
        2, -3, -2, -2, -2, 2, 3, 1, -3, -3, -1, 0, 1, 0, -2, -2, 1, 2,
        -3, -3, 0, -1, 3, 0, -1, 0, 1
    };
    static const float y[27] = {
        -17, 5, -12, 4, 29, -3, 20, -36, -8, -11, -13, 8, 7, -12, -15, 10, 0, 11,
        0, -21, 6, -26, 2, 4, 17, -13, -17
    };
    static const float dx[72] = {
        7, 22, 8, 1, 2, -4, 0, -12, 10, 4, 0, -2,
        1, -9, -1, -9, 2, 8, -1, 1, 5, -14, 1, 0,
        2, 10, -3, 1, -2, -11, -9, -4, -3, 5, 9, 6,
        -4, -28, 8, -27, 4, -6, -7, -10, 8, 13, -2, 10,
        6, -3, 1, 13, -6, 0, 2, 28, -1, -5, -3, -12,
        -7, 1, -1, -4, 7, 0, -4, -8, 3, 17, 4, 8
    };
    static const float dw[54] = {
        -17, -6, -13, -19, 25, -5, 12, 5, 13, 8, 14, -7, 17, 11, -18, 5, -19, 2,
        3, 9, 13, 5, -16, 1, -13, -4, -16, -6, -3, 0, -8, -6, 10, 10, 17, 1,
        11, -3, -3, 8, -15, -14, -21, 14, 2, -8, -1, 7, 12, -20, 16, 1, 14, 3
    };
    static const float db[3] = { -4, -4, -4 };
    nnt_node node = begin(2, 6, 6);
    nnt_net *net = node.net;
    node = nnt_name(nnt_conv2d(node, 3, 3, 2, 1), "conv");
    expect_shape(node, 3, 3, 3);
    if (compile(nnt_mse(node), 1, nnt_sgd(0.1f))) {
        set(net, "in.weight", x);
        set(net, "conv.weight", w);
        nnt_tensor_fill(nnt_param(net, "conv.bias"), 0);
        run(net, y, 27, grad_out);
        expect_gradient(net, "in.weight", dx, 72);
        expect_gradient(net, "conv.weight", dw, 54);
        expect_gradient(net, "conv.bias", db, 3);
    }
    nnt_free(net);
}

/* One max pooling over a size x size plane, with ones as the gradient of its output. dx NULL: not looked at. */
static void check_maxpool(int size, nnt_pool_desc d, const float *x, int out, const float *y, const float *dx)
{
    nnt_node node = begin(1, size, size);
    nnt_net *net = node.net;
    node = nnt_maxpool_ex(node, d);
    expect_shape(node, 1, out, out);
    if (compile(nnt_mse(node), 1, nnt_sgd(0.1f))) {
        set(net, "in.weight", x);
        run(net, y, out * out, NULL);
        if (dx) expect_gradient(net, "in.weight", dx, size * size);
    }
    nnt_free(net);
}
static nnt_pool_desc pool(int kernel, int stride, int pad, int ceil_mode)
{
    nnt_pool_desc d;
    memset(&d, 0, sizeof d);
    d.kernel = kernel;
    d.stride = stride;
    d.pad = pad;
    d.ceil_mode = ceil_mode;
    return d;
}

/* Padding is minus infinity: no zero wins over negative inputs. */
static void maxpool_padding_never_wins(void)
{
    static const float x[16] = {
        -1, -1.1f, -1.2f, -1.3f, -1.4f, -1.5f, -1.6f, -1.7f,
        -1.8f, -1.9f, -2, -2.1f, -2.2f, -2.3f, -2.4f, -2.5f
    };
    static const float y[4] = {
        -1, -1.1f, -1.4f, -1.5f
    };
    static const float dx[16] = {
        1, 1, 0, 0, 1, 1, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0
    };
    check_maxpool(4, pool(3, 2, 1, 0), x, 2, y, dx);
}

/* The ceiling alone would give 4 windows a row, the last wholly in the padding. */
static void maxpool_ceil_has_no_window_in_the_padding(void)
{
    static const float y[9] = { 0, 2, 4, 10, 12, 14, 20, 22, 24 };
    float x[25];
    int i;
    for (i = 0; i < 25; i++) x[i] = (float)i;
    check_maxpool(5, pool(2, 2, 1, 0), x, 3, y, NULL);
    check_maxpool(5, pool(2, 2, 1, 1), x, 3, y, NULL);
}

/* Of equal values the first in row order gets all of the gradient. */
static void maxpool_tie_goes_to_the_first(void)
{
    static const float x[4] = { 1, 2, 2, 2 }, y[1] = { 2 }, dx[4] = { 0, 1, 0, 0 };
    check_maxpool(2, pool(2, 2, 0, 0), x, 1, y, dx);
}

/* Windows [0,4) [3,7) [6,10): ends rounded up, and each spreads its gradient by its own size. */
static void adaptive_avgpool_rounds_window_ends_up(void)
{
    static const float y[9] = {
        16.5f, 19.5f, 22.5f, 46.5f, 49.5f, 52.5f, 76.5f, 79.5f, 82.5f
    };
    static const float dx[100] = {
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.125f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.125f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.125f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.125f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f
    };
    float x[100];
    nnt_node node = begin(1, 10, 10);
    nnt_net *net = node.net;
    int i;
    for (i = 0; i < 100; i++) x[i] = (float)i;
    node = nnt_adaptive_avgpool(node, 3, 3);
    expect_shape(node, 1, 3, 3);
    if (compile(nnt_mse(node), 1, nnt_sgd(0.1f))) {
        set(net, "in.weight", x);
        run(net, y, 9, NULL);
        expect_gradient(net, "in.weight", dx, 100);
    }
    nnt_free(net);
}

/* ---- losses ---- */

/* Equal logits of 1e8 gave a loss of 0 elsewhere, or one that isn't finite. */
static void cross_entropy_of_huge_logits(void)
{
    static const float logits[2] = { 1e8f, 1e8f }, gradient[2] = { 0.5f, -0.5f };
    float one = 1, loss = 0;
    int32_t label = 1;
    nnt_batch b;
    nnt_node node = begin(2, 1, 1);
    memset(&b, 0, sizeof b);
    b.x = &one;
    b.labels = &label;
    b.count = 1;
    if (compile(nnt_cross_entropy(node), 1, nnt_sgd(0.1f))) {
        set(node.net, "in.weight", logits);
        CHECKF(nnt_backward(node.net, &b, &loss) == NNT_OK, "%s", nnt_error(node.net));
        CHECKF(fabs((double)loss - 0.693147) < 1e-6, "loss %.9g", (double)loss);
        expect_gradient(node.net, "in.weight", gradient, 2);
    }
    nnt_free(node.net);
}

/* Three classes, two samples with logits (2.5, 0, 0) and (0, 0, 2.5). */
static const float three_logits[6] = { 2.5f, 0, 0, 0, 0, 2.5f };     /* "fc.weight": [class][sample] */
static const float two_units[4] = { 1, 0, 0, 1 };

static nnt_net *three_classes(int use_ignore_index, int ignore_index)
{
    nnt_cross_entropy_desc c;
    nnt_linear_desc d;
    nnt_node node = nnt_input(nnt_new(NULL), 2, 1, 1);
    memset(&c, 0, sizeof c);
    memset(&d, 0, sizeof d);
    c.use_ignore_index = use_ignore_index;
    c.ignore_index = ignore_index;
    d.features = 3;
    d.no_bias = 1;
    node = nnt_name(nnt_linear_ex(node, d), "fc");
    if (compile(nnt_cross_entropy_ex(node, c), 2, nnt_sgd(0.1f))) set(node.net, "fc.weight", three_logits);
    return node.net;
}
static nnt_batch two_samples(const int32_t *labels)
{
    nnt_batch b;
    memset(&b, 0, sizeof b);
    b.x = two_units;
    b.labels = labels;
    b.count = 2;
    return b;
}

/* Elsewhere the CPU raised, and the GPU gave a loss as if nothing were. */
static void cross_entropy_label_out_of_range(void)
{
    static const int32_t wrong[2] = { 0, 1000 }, negative[2] = { -1, 0 }, right[2] = { 0, 2 };
    nnt_net *net = three_classes(0, 0);
    nnt_batch b = two_samples(wrong);
    float loss = 0, w[6];
    const char *sentence;
    CHECK(nnt_step(net, &b, &loss) == NNT_ERR_DATA);
    sentence = nnt_error(net);
    CHECKF(strstr(sentence, "1000") && strstr(sentence, "sample 1") && strstr(sentence, "3"), "\"%s\"", sentence);
    CHECK(nnt_tensor_read(nnt_param(net, "fc.weight"), w) == NNT_OK);
    CHECK(memcmp(w, three_logits, sizeof w) == 0);
    b = two_samples(negative);
    CHECK(nnt_step(net, &b, &loss) == NNT_ERR_DATA);
    b = two_samples(right);                 /* and trains on: -ln(e^2.5 / (e^2.5 + 2)) = 0.151949 */
    CHECKF(nnt_step(net, &b, &loss) == NNT_OK, "%s", nnt_error(net));
    CHECKF(fabs((double)loss - log(1 + 2 * exp(-2.5))) < 1e-6, "loss %.9g", (double)loss);
    nnt_free(net);
}

/* PyTorch gives NaN for 0 / 0 here; a batch that says nothing must not end a training. */
static void cross_entropy_of_ignored_samples_only_is_zero(void)
{
    static const int32_t ignored[2] = { 255, 255 };
    static const float zero[6] = { 0, 0, 0, 0, 0, 0 };
    nnt_net *net = three_classes(1, 255);
    nnt_batch b = two_samples(ignored);
    float loss = 1;
    CHECKF(nnt_backward(net, &b, &loss) == NNT_OK, "%s", nnt_error(net));
    CHECKF(!(loss > 0 || loss < 0), "loss %.9g", (double)loss);
    expect_gradient(net, "fc.weight", zero, 6);
    nnt_free(net);
}

/* ---- means over samples ---- */

static nnt_result evaluate(nnt_net *net, nnt_arrays_desc arrays, int batch, nnt_metrics *m)
{
    nnt_loader_desc d;
    nnt_dataset *data = nnt_dataset_arrays(arrays, NULL);
    nnt_loader *loader;
    nnt_result r;
    memset(&d, 0, sizeof d);
    memset(m, 0, sizeof *m);
    d.batch = batch;
    d.workers = NNT_NO_WORKERS;
    loader = nnt_loader_new(data, d, NULL);
    r = nnt_evaluate(net, loader, m);
    CHECKF(r == NNT_OK, "batch %d: %s", batch, nnt_error(net));
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    return r;
}

/* Losses 1, 1, 1, 1, 6 in batches of two: the mean of the batches' means is 2.667, that of the samples 2. */
static void evaluation_is_a_mean_over_samples(void)
{
    static const float x[5] = { 0, 0, 0, 0, 0 }, target[5] = { 1, -1, 1, 1, 2.44948974f /* root of 6 */ };
    nnt_arrays_desc a;
    nnt_metrics m;
    nnt_node node = nnt_linear(nnt_input(nnt_new(NULL), 1, 1, 1), 1);
    memset(&a, 0, sizeof a);
    a.count = 5;
    a.channels = a.height = a.width = 1;
    a.x = x;
    a.targets = target;
    a.target_size = 1;
    if (compile(nnt_mse(nnt_name(node, "fc")), 2, nnt_sgd(0.1f))) {
        nnt_tensor_fill(nnt_param(node.net, "fc.bias"), 0);
        evaluate(node.net, a, 2, &m);
        CHECKF(fabs(m.loss - 2) < 1e-6 && m.samples == 5, "%.9g over %d", m.loss, (int)m.samples);
    }
    nnt_free(node.net);
}

/* 103 samples give the same loss and accuracy whatever the batch; a last batch of one counts as one. */
static void evaluation_does_not_depend_on_the_batch(void)
{
    enum { SAMPLES = 103, VALUES = 6, CLASSES = 4 };
    static const int batches[5] = { 1, 7, 50, 103, 200 };
    float x[SAMPLES * VALUES];
    int32_t labels[SAMPLES];
    nnt_arrays_desc a;
    nnt_metrics first, m;
    nnt_node node = nnt_linear(nnt_input(nnt_new(NULL), VALUES, 1, 1), CLASSES);
    uint32_t random = 1;
    int i;
    for (i = 0; i < SAMPLES * VALUES; i++) {
        random = random * 1664525u + 1013904223u;       /* Numerical Recipes' generator */
        x[i] = (float)(random >> 8) / 8388608.0f - 1;
    }
    for (i = 0; i < SAMPLES; i++) labels[i] = (i * 7 + 3) % 11 % CLASSES;
    memset(&a, 0, sizeof a);
    memset(&first, 0, sizeof first);
    a.count = SAMPLES;
    a.channels = VALUES;
    a.height = a.width = 1;
    a.x = x;
    a.labels = labels;
    a.classes = CLASSES;
    if (compile(nnt_cross_entropy(node), 200, nnt_sgd(0.1f)))
        for (i = 0; i < 5; i++) {
            evaluate(node.net, a, batches[i], &m);
            if (i == 0) first = m;
            CHECKF(m.samples == SAMPLES, "batch %d: %d samples", batches[i], (int)m.samples);
            CHECKF(fabs(m.loss - first.loss) <= 1e-6 * first.loss, "batch %d: loss %.9g", batches[i], m.loss);
            CHECKF(!(m.accuracy < first.accuracy || m.accuracy > first.accuracy), "batch %d: accuracy %.9g", batches[i],
                   m.accuracy);
        }
    nnt_free(node.net);
}

/* ---- optimizer ---- */

/* eps is added to the root of the corrected second moment: with an eps that isn't tiny other places give other numbers.
   One weight w from 1 on, and gradients 0.1, -0.02, 1e-8. */
static void adam_first_steps(void)
{
    static const double gradient[3] = { 0.1, -0.02, 1e-8 }, want[3] = { 0.90099, 0.850587, 0.811744 };
    static const float start = 1, x = 0.01f;
    nnt_optimizer o = nnt_adam(0.1f);
    nnt_node node = begin(1, 1, 1);
    int i;
    o.eps = 1e-3f;
    if (compile(nnt_mse(node), 1, o)) {
        set(node.net, "in.weight", &start);
        for (i = 0; i < 3; i++) {
            /* the loss is (w x - t)^2, its gradient 2 x (w x - t); a small x keeps t's rounding out of it */
            float t = (float)((double)weight(node.net, "in.weight") * (double)x - gradient[i] / (2 * (double)x));
            nnt_batch b;
            memset(&b, 0, sizeof b);
            b.x = &x;
            b.targets = &t;
            b.count = 1;
            CHECKF(nnt_step(node.net, &b, NULL) == NNT_OK, "%s", nnt_error(node.net));
            CHECKF(fabs((double)weight(node.net, "in.weight") - want[i]) <= 1e-6, "step %d: %.9g, not %.9g", i + 1,
                   (double)weight(node.net, "in.weight"), want[i]);
        }
    }
    nnt_free(node.net);
}

/* ---- plan ---- */

/* 514 x 2048 x 2048 = 2155872256 values pass 2^31: the plan tells exact bytes, and the counting device takes it. */
static void plan_of_more_than_2_to_the_31_values(void)
{
    const double input = 2155872256.0 * 4, output = 2048.0 * 2048 * 4, weights = (514 * 9 + 1) * 4;
    nnt_net *net = nnt_new(NULL);
    nnt_node node = nnt_conv2d(nnt_input(net, 514, 2048, 2048), 1, 3, 1, 1);
    nnt_compile_desc d;
    nnt_memory m;
    memset(&d, 0, sizeof d);
    memset(&m, 0, sizeof m);
    if (sizeof(size_t) < 8) { nnt_free(net); SKIP("size_t is too small for that"); }
    d.batch = 1;
    d.device = "null";
    expect_shape(node, 1, 2048, 2048);
    CHECKF(nnt_plan(net, node, d, &m) == NNT_OK, "%s", nnt_error(net));
    CHECKF((double)m.peak >= input + output && (double)m.peak < input + output + 65536, "peak %.0f", (double)m.peak);
    CHECKF((double)m.params >= weights && (double)m.params < weights + 4096, "params %.0f", (double)m.params);
    CHECKF(m.total == m.fixed + m.arena && m.arena >= m.peak, "total %.0f", (double)m.total);
    CHECKF(nnt_compile(net, node, d) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
}


#ifndef NNT_NO_STDIO
/* ---- files: ../shared/cases and ../shared/data, where the machine has them ---- */

static char cases_root[2048], cases_dir[128];

static char *whole_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = (char *)calloc(1, 200000);
    if (f && text) { text[fread(text, 1, 199999, f)] = 0; fclose(f); return text; }
    if (f) fclose(f);
    free(text);
    return NULL;
}
/* What stands behind "name" : in an object's text up to `end`; NULL when there is none. */
static const char *json_find(const char *text, const char *end, const char *name)
{
    char quoted[100];
    const char *at;
    sprintf(quoted, "\"%s\":", name);
    at = strstr(text, quoted);
    return at && at < end ? at + strlen(quoted) : NULL;
}
static double json_number(const char *text, const char *end, const char *name, double otherwise)
{
    const char *at = json_find(text, end, name);
    return at ? strtod(at, NULL) : otherwise;
}
/* Three numbers of an array. */
static int json_three(const char *text, const char *end, const char *name, double to[3])
{
    const char *at = json_find(text, end, name);
    int k;
    if (!at) return 0;
    for (k = 0, at = strchr(at, '[') + 1; k < 3; k++) { char *next; to[k] = strtod(at, &next); at = next + strspn(next, ", \n"); }
    return 1;
}
static void link_to(const char *target, const char *name)
{
    remove(name);
    if (symlink(target, name)) { printf("can't link %s\n", name); exit(2); }
}
/* The only picture of folder "one/c", which is a link to `path`, in a loader's batch; transforms may be NULL. The loader is
   left to the caller, who reads its error. */
static nnt_loader *load_one(const char *path, const nnt_transform *t, nnt_dataset **d, nnt_dataset **e, nnt_batch *b)
{
    const char *dot = strrchr(path, '.');
    nnt_folder_desc desc;
    nnt_loader_desc order;
    nnt_transforms_desc list;
    nnt_loader *l;
    char name[100];
    memset(&desc, 0, sizeof desc);
    memset(&order, 0, sizeof order);
    memset(&list, 0, sizeof list);
    sprintf(name, "one/c/x%s", dot);
    link_to(path, name);
    *d = nnt_dataset_folder("one", desc, NULL);
    list.list = t;
    list.count = t ? 1 : 0;
    *e = t ? nnt_dataset_transform(*d, list, NULL) : NULL;
    order.batch = 1;
    order.workers = NNT_NO_WORKERS;
    l = nnt_loader_new(t ? *e : *d, order, NULL);
    nnt_loader_next(l, b);
    remove(name);
    return l;
}
static void unload(nnt_loader *l, nnt_dataset *d, nnt_dataset *e)
{
    nnt_loader_free(l);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
static double mean_of(const nnt_batch *b, const int shape[3], int c, int y, int x, int height, int width)
{
    double sum = 0;
    int i, k;
    for (i = y; i < y + height; i++) for (k = x; k < x + width; k++) sum += (double)b->x[(c * shape[1] + i) * shape[2] + k];
    return sum * 255 / height / width;
}
static void check_picture(const char *folder, const char *name, const char *text, const char *end, double tolerance)
{
    static const char *const corner[4] = { "top_left", "top_right", "bottom_left", "bottom_right" };
    const char *expect = json_find(text, end, "expect");
    char path[2300];
    nnt_dataset *d, *e;
    nnt_batch b;
    nnt_loader *l;
    int shape[3], c, k;
    double want[3];
    sprintf(path, "%s%s/%s", cases_root, folder, name);
    l = load_one(path, NULL, &d, &e, &b);
    if (expect && !strncmp(expect, " \"error\"", 8)) {
        CHECKF(b.count == 0, "%s was read", name);
        CHECKF(strstr(nnt_loader_error(l), "one/c/x") != NULL, "%s: \"%s\" does not name the file", name, nnt_loader_error(l));
    } else if (expect && !strncmp(expect, " \"ok\"", 5)) {
        CHECKF(b.count == 1, "%s: %s", name, nnt_loader_error(l));
        nnt_dataset_shape(d, shape);
        CHECKF(shape[2] == (int)json_number(text, end, "width", 0) && shape[1] == (int)json_number(text, end, "height", 0), "%s: %d x %d", name,
               shape[2], shape[1]);
        if (b.count && json_three(text, end, "rgb_mean", want))
            for (c = 0; c < 3; c++)
                CHECKF(fabs(mean_of(&b, shape, c, 0, 0, shape[1], shape[2]) - want[c]) <= tolerance, "%s: channel %d is %g, not %g", name, c,
                       mean_of(&b, shape, c, 0, 0, shape[1], shape[2]), want[c]);
        for (k = 0; k < 4 && b.count; k++) if (json_three(text, end, corner[k], want))
            for (c = 0; c < 3; c++) {
                const double got = mean_of(&b, shape, c, k & 2 ? shape[1] - 8 : 0, k & 1 ? shape[2] - 8 : 0, 8, 8);
                CHECKF(fabs(got - want[c]) <= tolerance, "%s: %s of channel %d is %g, not %g", name, corner[k], c, got, want[c]);
            }
    }
    unload(l, d, e);
}
/* Every file that a list tells about. */
static void check_list(const char *folder, double tolerance, int least)
{
    char path[2300], name[200];
    char *text;
    const char *at;
    int count = 0;
    sprintf(path, "%s%s/expected.json", cases_root, folder);
    text = whole_text(path);
    if (!text) SKIP("no shared data here");
    for (at = strstr(text, "\"files\""); at && (at = strstr(at + 1, ": {")) != NULL; ) {
        const char *quote = at - 1, *next, *end;
        if (*quote != '"') continue;
        while (quote > text && quote[-1] != '"') quote--;
        if (!memchr(quote, '.', (size_t)(at - 1 - quote))) continue;       /* "rgb_corners" is no file */
        memcpy(name, quote, (size_t)(at - 1 - quote));
        name[at - 1 - quote] = 0;
        for (end = at; ; end = next + 1) {          /* up to the next name with a dot in it */
            const char *q;
            next = strstr(end + 1, ": {");
            if (!next) { end = text + strlen(text); break; }
            for (q = next - 1; q > text && q[-1] != '"'; q--) { }
            if (memchr(q, '.', (size_t)(next - 1 - q))) { end = q; break; }
        }
        check_picture(folder, name, at, end, json_number(at, end, "tolerance", tolerance));
        count++;
    }
    CHECKF(count >= least, "%d files", count);
    free(text);
}
#ifdef NNT_TEST_STB
static void shared_pictures_are_read_or_refused(void) { check_list(NNT_TEST_SHARED "/cases/images", 1.5, 21); }
static void pngsuite_is_read_or_refused(void) { check_list(NNT_TEST_SHARED "/data/pngsuite", 0.5, 170); }
static void photos_have_their_colours(void) { check_list(NNT_TEST_SHARED "/data/photos", 1.5, 24); }

/* One pixel to 8 x 8 is that colour everywhere; 5000 rows to 2 are means as wide as the filter is. */
static void extreme_resizes_give_their_values(void)
{
    static const int tall[4] = { 219, 219, 36, 36 }, one[3] = { 10, 200, 30 };
    nnt_transform to8 = nnt_resize(8, 8), to2 = nnt_resize(2, 2);
    char path[2300];
    nnt_dataset *d, *e;
    nnt_loader *l;
    nnt_batch b;
    int i;
    sprintf(path, "%s%s/cases/images/one.png", cases_root, NNT_TEST_SHARED);
    if (access(path, R_OK)) SKIP("no shared cases here");
    l = load_one(path, &to8, &d, &e, &b);
    CHECKF(b.count == 1, "%s", nnt_loader_error(l));
    for (i = 0; b.count && i < 192; i++) CHECK((int)(b.x[i] * 255 + 0.5f) == one[i / 64]);
    unload(l, d, e);
    sprintf(path, "%s%s/cases/images/tall_1x5000.png", cases_root, NNT_TEST_SHARED);
    l = load_one(path, &to2, &d, &e, &b);
    CHECKF(b.count == 1, "%s", nnt_loader_error(l));
    for (i = 0; b.count && i < 12; i++) CHECK(abs((int)(b.x[i] * 255 + 0.5f) - tall[i % 4]) <= 1);
    unload(l, d, e);
}

static nnt_dataset *shared_folder(const char *name)
{
    char path[2300];
    nnt_folder_desc desc;
    memset(&desc, 0, sizeof desc);
    if (name[0] == '/') strcpy(path, name);
    else sprintf(path, "%s%s/cases/folders/%s", cases_root, NNT_TEST_SHARED, name);
    return nnt_dataset_folder(path, desc, NULL);
}
static void check_classes(nnt_dataset *d, int count, const char *const *names, const int *counts)
{
    int64_t i;
    int c, found[8];
    memset(found, 0, sizeof found);
    CHECK_TEXT(nnt_dataset_error(d), "");
    CHECK(nnt_dataset_classes(d) == count);
    for (c = 0; c < count; c++) CHECK_TEXT(nnt_dataset_class_name(d, c) ? nnt_dataset_class_name(d, c) : "NULL", names[c]);
    for (i = 0; i < nnt_dataset_count(d); i++) found[nnt_dataset_label(d, i)]++;
    for (c = 0; c < count; c++) CHECKF(found[c] == counts[c], "class %s: %d", names[c], found[c]);
    nnt_dataset_free(d);
}
static void shared_folders_have_their_classes(void)
{
    static const char *const order[5] = { "1", "10", "2", "B", "a" }, *const pets[3] = { "cat", "dog", "pool" };
    static const char *const odd[4] = { "caf\xc3\xa9", "with space", "zebra", "\xe6\x97\xa5\xe6\x9c\xac" };
    static const int two[5] = { 2, 2, 2, 2, 2 }, one[4] = { 1, 1, 1, 1 }, extensions[2] = { 6, 1 }, ten[2] = { 10, 10 }, links[3] = { 2, 1, 1 };
    char path[2300], target[2400];
    nnt_dataset *d;
    sprintf(path, "%s%s/cases/folders/order", cases_root, NNT_TEST_SHARED);
    if (access(path, R_OK)) SKIP("no shared cases here");
    check_classes(shared_folder("order"), 5, order, two);
    check_classes(shared_folder("hidden"), 2, pets, one);
    check_classes(shared_folder("extensions"), 2, pets, extensions);
    check_classes(shared_folder("non_ascii"), 4, odd, one);
    check_classes(shared_folder("bad_in_the_middle"), 2, pets, ten);
    /* what the list says a test has to make: an empty class; links to a folder and to a file */
    if (mkdir("made", 0700) || mkdir("made/emu", 0700) || mkdir("links", 0700) || mkdir("links/cat", 0700)) exit(2);
    sprintf(target, "%s%s/cases/folders/empty_class/cat", cases_root, NNT_TEST_SHARED);
    link_to(target, "made/cat");
    sprintf(path, "%s/made", cases_dir);
    d = shared_folder(path);
    CHECKF(nnt_dataset_error_code(d) && strstr(nnt_dataset_error(d), "'emu'"), "%s", nnt_dataset_error(d));
    nnt_dataset_free(d);
    sprintf(target, "%s%s/cases/folders/links/pool", cases_root, NNT_TEST_SHARED);
    link_to(target, "links/dog");
    link_to(target, "links/pool");
    sprintf(target, "%s%s/cases/folders/links/cat/a.png", cases_root, NNT_TEST_SHARED);
    link_to(target, "links/cat/a.png");
    sprintf(target, "%s%s/cases/folders/links/pool/p.png", cases_root, NNT_TEST_SHARED);
    link_to(target, "links/cat/b.png");
    sprintf(path, "%s/links", cases_dir);
    check_classes(shared_folder(path), 3, pets, links);
}
/* A bad file in the middle of an epoch: named, or left out and counted, whatever the threads. */
static void a_shared_folder_with_bad_pictures(void)
{
    int skip, workers, epoch, i;
    nnt_dataset *d = shared_folder("bad_in_the_middle");
    if (nnt_dataset_error_code(d)) { nnt_dataset_free(d); SKIP("no shared cases here"); }
    for (skip = 0; skip < 2; skip++) for (workers = -1; workers < 4; workers++) {
        nnt_loader_desc desc;
        nnt_loader *l;
        nnt_batch b;
        memset(&desc, 0, sizeof desc);
        desc.batch = 4;
        desc.shuffle = 1;
        desc.workers = workers;
        desc.on_bad = skip ? NNT_ON_BAD_SKIP : NNT_ON_BAD_ERROR;
        l = nnt_loader_new(d, desc, NULL);
        for (epoch = 0; epoch < 2; epoch++) {
            int seen[20], count = 0;
            memset(seen, 0, sizeof seen);
            while (nnt_loader_next(l, &b) == NNT_OK && b.count)
                for (i = 0; i < b.count; i++) { seen[b.indices[i]]++; count++; CHECK(b.labels[i] == b.indices[i] / 10); }
            if (!skip) break;
            CHECKF(count == 18 && !seen[7] && !seen[13], "%d of 20: %s", count, nnt_loader_error(l));
            for (i = 0; i < 20; i++) CHECK(seen[i] <= 1);
        }
        if (skip) CHECK(nnt_loader_skipped(l) == 2 && strstr(nnt_loader_skipped_why(l, 0), ".jpg'") && strstr(nnt_loader_skipped_why(l, 1), ".jpg'"));
        else CHECKF(nnt_loader_error_code(l) && (strstr(nnt_loader_error(l), "cat/07.jpg") || strstr(nnt_loader_error(l), "dog/13.jpg")), "%s",
                    nnt_loader_error(l));
        nnt_loader_free(l);
    }
    nnt_dataset_free(d);
}
static void a_shared_folder_of_several_sizes(void)
{
    nnt_transform to8 = nnt_resize(8, 8);
    nnt_transforms_desc list;
    nnt_loader_desc desc;
    nnt_dataset *d = shared_folder("sizes"), *e;
    nnt_loader *l;
    nnt_batch b;
    int i;
    if (nnt_dataset_error_code(d)) { nnt_dataset_free(d); SKIP("no shared cases here"); }
    memset(&desc, 0, sizeof desc);
    memset(&list, 0, sizeof list);
    desc.batch = 4;
    l = nnt_loader_new(d, desc, NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_ERR_SHAPE);
    CHECKF(strstr(nnt_loader_error(l), ".png'") && strstr(nnt_loader_error(l), " others are "), "%s", nnt_loader_error(l));
    nnt_loader_free(l);
    list.list = &to8;
    list.count = 1;
    e = nnt_dataset_transform(d, list, NULL);
    l = nnt_loader_new(e, desc, NULL);
    CHECK(nnt_loader_next(l, &b) == NNT_OK && b.count == 4);
    for (i = 0; b.count && i < 4 * 192; i++) CHECK((int)(b.x[i] * 255 * 1000 + 0.5f) == 9000);
    nnt_loader_free(l);
    nnt_dataset_free(e);
    nnt_dataset_free(d);
}
/* 600 and 180 pictures of 32 x 32: mean and deviation of each channel as their list says. */
static void cifar3_has_its_statistics(void)
{
    static const char *const sets[2] = { "train", "test" };
    static const double mean[2][3] = { { 0.4944, 0.4828, 0.4664 }, { 0.5112, 0.4993, 0.4735 } };
    static const double deviation[2][3] = { { 0.2479, 0.2439, 0.2592 }, { 0.2475, 0.2449, 0.2568 } };
    int s, c, i, k;
    for (s = 0; s < 2; s++) {
        char path[2300];
        nnt_folder_desc desc;
        nnt_loader_desc order;
        nnt_dataset *d;
        nnt_loader *l;
        nnt_batch b;
        double sum[3] = { 0, 0, 0 }, square[3] = { 0, 0, 0 }, n = 0;
        memset(&desc, 0, sizeof desc);
        memset(&order, 0, sizeof order);
        sprintf(path, "%s%s/data/cifar3/%s", cases_root, NNT_TEST_SHARED, sets[s]);
        if (access(path, R_OK)) SKIP("no shared data here");
        d = nnt_dataset_folder(path, desc, NULL);
        order.batch = 60;
        l = nnt_loader_new(d, order, NULL);
        CHECK(nnt_dataset_classes(d) == 3 && nnt_dataset_count(d) == (s ? 180 : 600));
        CHECK_TEXT(nnt_dataset_class_name(d, 2) ? nnt_dataset_class_name(d, 2) : "NULL", "ship");
        while (nnt_loader_next(l, &b) == NNT_OK && b.count) for (i = 0, n += b.count; i < b.count; i++) for (c = 0; c < 3; c++) for (k = 0; k < 1024; k++) {
            const double v = (double)b.x[(i * 3 + c) * 1024 + k];
            sum[c] += v;
            square[c] += v * v;
        }
        for (c = 0; c < 3 && n > 0; c++) {
            const double m = sum[c] / n / 1024;
            CHECKF(fabs(m - mean[s][c]) < 0.003 && fabs(sqrt(square[c] / n / 1024 - m * m) - deviation[s][c]) < 0.003, "%s, channel %d: %g", sets[s], c, m);
        }
        nnt_loader_free(l);
        nnt_dataset_free(d);
    }
}
#endif
static nnt_dataset *shared_cifar(const char *name)
{
    char path[2300];
    const char *list[1];
    sprintf(path, "%s%s/cases/cifar/%s", cases_root, NNT_TEST_SHARED, name);
    list[0] = path;
    return nnt_dataset_cifar(list, 1, NNT_CIFAR10, NULL);
}
static void shared_cifar_files_do_what_their_list_says(void)
{
    static const int label[3] = { 3, 0, 9 };
    nnt_dataset *d = shared_cifar("cifar10_3.bin");
    nnt_loader_desc desc;
    nnt_loader *l;
    nnt_batch b;
    int i;
    if (nnt_dataset_error_code(d) == NNT_ERR_FILE) { nnt_dataset_free(d); SKIP("no shared cases here"); }
    memset(&desc, 0, sizeof desc);
    desc.batch = 3;
    l = nnt_loader_new(d, desc, NULL);
    CHECKF(nnt_loader_next(l, &b) == NNT_OK && b.count == 3, "%s", nnt_loader_error(l));
    for (i = 0; i < 3 && b.count; i++) CHECK(b.labels[i] == label[i]);
    for (i = 0; i < 4 && b.count; i++) CHECK((int)(b.x[3072 + i] * 255 + 0.5f) == i + 1);
    nnt_loader_free(l);
    nnt_dataset_free(d);
    d = shared_cifar("cifar10_partial.bin");
    CHECKF(nnt_dataset_error_code(d) == NNT_ERR_FORMAT && strstr(nnt_dataset_error(d), "7646"), "%s", nnt_dataset_error(d));
    nnt_dataset_free(d);
    d = shared_cifar("cifar10_label_10.bin");
    CHECKF(nnt_dataset_error_code(d) == NNT_ERR_FORMAT && strstr(nnt_dataset_error(d), "label 10 of sample 1"), "%s", nnt_dataset_error(d));
    nnt_dataset_free(d);
}

static void enter_cases_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > 80) tmp = "/tmp";
    sprintf(cases_dir, "%s/nnt_test_cases_%ld", tmp, (long)getpid());
    if (NNT_TEST_SHARED[0] != '/') {
        if (!getcwd(cases_root, sizeof cases_root - 8)) exit(2);
        strcat(cases_root, "/");
    }
    if (mkdir(cases_dir, 0700) || chdir(cases_dir) || mkdir("one", 0700) || mkdir("one/c", 0700)) { printf("can't use %s\n", cases_dir); exit(2); }
}
static void leave_cases_dir(void)
{
    static const char *const made[] = {
        "one/c", "one", "made/emu", "made/cat", "made", "links/dog", "links/pool", "links/cat/a.png", "links/cat/b.png", "links/cat", "links"
    };
    size_t i;
    for (i = 0; i < sizeof made / sizeof *made; i++) remove(made[i]);
    if (chdir("/") || rmdir(cases_dir)) printf("%s could not be removed\n", cases_dir);
}
#endif

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(conv_stride_leaves_a_column_untouched);
    TEST(maxpool_padding_never_wins);
    TEST(maxpool_ceil_has_no_window_in_the_padding);
    TEST(maxpool_tie_goes_to_the_first);
    TEST(adaptive_avgpool_rounds_window_ends_up);
    TEST(cross_entropy_of_huge_logits);
    TEST(cross_entropy_label_out_of_range);
    TEST(cross_entropy_of_ignored_samples_only_is_zero);
    TEST(evaluation_is_a_mean_over_samples);
    TEST(evaluation_does_not_depend_on_the_batch);
    TEST(adam_first_steps);
    TEST(plan_of_more_than_2_to_the_31_values);
#ifndef NNT_NO_STDIO
    enter_cases_dir();
#ifdef NNT_TEST_STB
    TEST(shared_pictures_are_read_or_refused);
    TEST(pngsuite_is_read_or_refused);
    TEST(photos_have_their_colours);
    TEST(extreme_resizes_give_their_values);
    TEST(shared_folders_have_their_classes);
    TEST(a_shared_folder_with_bad_pictures);
    TEST(a_shared_folder_of_several_sizes);
    TEST(cifar3_has_its_statistics);
#endif
    TEST(shared_cifar_files_do_what_their_list_says);
    leave_cases_dir();
#endif
    return TEST_END();
}
