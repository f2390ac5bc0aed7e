/* test_errors.c - wrong uses, each with its code and its literal sentence; public functions only. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"
#include <math.h>

/* The graph's error: code and sentence, found by compile as well. */
static void check_graph(nnt_net *net, nnt_node x, nnt_result code, const char *sentence)
{
    nnt_compile_desc d;
    memset(&d, 0, sizeof d);
    d.batch = 4;
    CHECKF(nnt_error_code(net) == code, "%s", nnt_result_name(nnt_error_code(net)));
    CHECK_TEXT(nnt_error(net), sentence);
    CHECK(x.id == 0);
    x = nnt_relu(nnt_linear(nnt_conv2d(x, 4, 3, 1, 1), 3));         /* passes through */
    CHECK(x.id == 0);
    CHECK(nnt_compile(net, nnt_cross_entropy(x), d) == code);
    CHECK_TEXT(nnt_error(net), sentence);
    nnt_free(net);
}
#define GRAPH(c, h, w, expression, code, sentence) do { nnt_net *net = nnt_new(NULL); nnt_node x = nnt_input(net, c, h, w); x = (expression); check_graph(net, x, code, sentence); } while (0)

static nnt_conv_desc conv_of(int filters, int kernel)
{
    nnt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.filters = filters;
    d.kernel = kernel;
    return d;
}
static nnt_pool_desc pool_of(int kernel)
{
    nnt_pool_desc d;
    memset(&d, 0, sizeof d);
    d.kernel = kernel;
    return d;
}

static void convolutions_that_cannot_be(void)
{
    nnt_conv_desc d;
    GRAPH(256, 5, 5, nnt_conv2d(x, 8, 7, 1, 0), NNT_ERR_SHAPE, "conv2d 'conv2d1' (op 2): kernel 7x7 is larger than its input 5x5 (256 channels); add padding or drop a pooling before it");
    GRAPH(3, 2, 2, nnt_conv2d(x, 8, 7, 1, 1), NNT_ERR_SHAPE, "conv2d 'conv2d1' (op 2): kernel 7x7 is larger than its padded input 4x4 (3 channels); add padding or drop a pooling before it");
    d = conv_of(8, 3);
    d.dilation = 4;
    GRAPH(3, 8, 8, nnt_conv2d_ex(x, d), NNT_ERR_SHAPE, "conv2d 'conv2d1' (op 2): kernel 3x3 with dilation 4x4 reaches over 9x9, its padded input is 8x8 (3 channels); add padding or drop a pooling before it");
    GRAPH(3, 8, 8, nnt_conv2d(x, 0, 3, 1, 1), NNT_ERR_ARGUMENT, "conv2d 'conv2d1' (op 2): 0 filters; it needs at least 1");
    GRAPH(3, 8, 8, nnt_conv2d(x, 8, 0, 1, 1), NNT_ERR_ARGUMENT, "conv2d 'conv2d1' (op 2): kernel 0x0; it must be at least 1x1");
    GRAPH(3, 8, 8, nnt_conv2d(x, 8, 3, 0, 1), NNT_ERR_ARGUMENT, "conv2d 'conv2d1' (op 2): stride -1x-1; it must be at least 1");
    GRAPH(3, 8, 8, nnt_conv2d(x, 8, 3, 1, -2), NNT_ERR_ARGUMENT, "conv2d 'conv2d1' (op 2): padding -2x-2; it can't be negative");
    d = conv_of(8, 3);
    d.dilation = -1;
    GRAPH(3, 8, 8, nnt_conv2d_ex(x, d), NNT_ERR_ARGUMENT, "conv2d 'conv2d1' (op 2): dilation -1x-1; it must be at least 1");
    d = conv_of(8, 3);
    d.groups = 3;
    GRAPH(4, 8, 8, nnt_conv2d_ex(x, d), NNT_ERR_SHAPE, "conv2d 'conv2d1' (op 2): 3 groups don't divide 4 input channels and 8 filters");
    d = conv_of(8, 3);
    d.init = 77;
    GRAPH(4, 8, 8, nnt_conv2d_ex(x, d), NNT_ERR_ARGUMENT, "conv2d 'conv2d1' (op 2): init 77 is none of NNT_INIT_...");
    d = conv_of(8, 2000000000);
    d.dilation = 2;
    GRAPH(4, 8, 8, nnt_conv2d_ex(x, d), NNT_ERR_SHAPE, "conv2d 'conv2d1' (op 2): kernel 3999999999x3999999999 on padded input 8x8; sizes must stay below 2^31");
}
static void other_layers_that_cannot_be(void)
{
    nnt_pool_desc p;
    nnt_batchnorm_desc b = nnt_batchnorm_defaults();
    nnt_noise_desc n;
    nnt_cross_entropy_desc ce;
    const float weights[3] = { 1, 2, -1 };
    nnt_node two[2];
    GRAPH(3, 8, 8, nnt_maxpool(x, 3, 2, 2), NNT_ERR_ARGUMENT, "maxpool 'maxpool1' (op 2): padding 2x2 is more than half of the kernel 3x3");
    GRAPH(3, 2, 2, nnt_maxpool(x, 3, 2, 0), NNT_ERR_SHAPE, "maxpool 'maxpool1' (op 2): kernel 3x3 is larger than its input 2x2 (3 channels); add padding or drop a pooling before it");
    p = pool_of(3);
    p.stride = -3;
    GRAPH(3, 8, 8, nnt_avgpool_ex(x, p), NNT_ERR_ARGUMENT, "avgpool 'avgpool1' (op 2): stride -3x-3; it must be at least 1");
    GRAPH(3, 8, 8, nnt_adaptive_avgpool(x, 0, 2), NNT_ERR_ARGUMENT, "adaptive_avgpool 'adaptive_avgpool1' (op 2): output size 0x2; it must be at least 1x1");
    GRAPH(3, 8, 8, nnt_linear(x, -1), NNT_ERR_ARGUMENT, "linear 'linear1' (op 2): -1 features; it needs at least 1");
    GRAPH(65536, 256, 256, nnt_linear(x, 2), NNT_ERR_SHAPE, "linear 'linear1' (op 2): its input has 4294967296 values; at most 2^31 - 1");
    GRAPH(3, 8, 8, nnt_reshape(x, 3, 8, 9), NNT_ERR_SHAPE, "reshape 'reshape1' (op 2): 3x8x8 (192 values) can't become 3x8x9");
    GRAPH(3, 8, 8, nnt_leaky_relu(x, -0.5f), NNT_ERR_ARGUMENT, "leaky_relu 'leaky_relu1' (op 2): slope -0.5; it must be finite and at least 0, so that the output tells the input's sign");
    GRAPH(3, 8, 8, nnt_dropout(x, 1.0f), NNT_ERR_ARGUMENT, "dropout 'dropout1' (op 2): probability 1; it must be at least 0 and below 1");
    GRAPH(3, 8, 8, nnt_dropout(x, -0.1f), NNT_ERR_ARGUMENT, "dropout 'dropout1' (op 2): probability -0.1; it must be at least 0 and below 1");
    GRAPH(3, 8, 8, nnt_noise(x, -1.0f), NNT_ERR_ARGUMENT, "noise 'noise1' (op 2): amount -1; it must be finite and not negative");
    memset(&n, 0, sizeof n);
    n.kind = NNT_NOISE_SALT_PEPPER;
    n.amount = 1.5f;
    GRAPH(3, 8, 8, nnt_noise_ex(x, n), NNT_ERR_ARGUMENT, "noise 'noise1' (op 2): amount 1.5; salt and pepper's is a probability, at most 1");
    n.amount = 0.5f;
    n.low = 2;
    n.high = 1;
    GRAPH(3, 8, 8, nnt_noise_ex(x, n), NNT_ERR_ARGUMENT, "noise 'noise1' (op 2): low 2 and high 1; they must be finite, low not above high");
    n.kind = 9;
    GRAPH(3, 8, 8, nnt_noise_ex(x, n), NNT_ERR_ARGUMENT, "noise 'noise1' (op 2): kind 9 is none of NNT_NOISE_...");
    b.momentum = 1.5f;
    GRAPH(3, 8, 8, nnt_batchnorm_ex(x, b), NNT_ERR_ARGUMENT, "batchnorm 'batchnorm1' (op 2): momentum 1.5; it must be between 0 and 1");
    b.momentum = 0.1f;
    b.eps = -1;
    GRAPH(3, 8, 8, nnt_batchnorm_ex(x, b), NNT_ERR_ARGUMENT, "batchnorm 'batchnorm1' (op 2): eps -1; it must be finite and not negative");
    GRAPH(3, 8, 8, nnt_add(x, nnt_conv2d(x, 4, 1, 1, 0)), NNT_ERR_SHAPE, "add 'add1' (op 3): shapes differ: 3x8x8 and 4x8x8");
    GRAPH(3, 8, 8, nnt_concat(nnt_maxpool(x, 2, 2, 0), x), NNT_ERR_SHAPE, "concat 'concat1' (op 3): height and width differ: input 1 is 3x4x4 and input 2 is 3x8x8");
    GRAPH(3, 8, 8, (two[0] = x, nnt_concat_n(two, 1)), NNT_ERR_ARGUMENT, "concat 'concat1' (op 2): 1 input; it needs at least 2");
    GRAPH(3, 8, 8, nnt_cross_entropy(x), NNT_ERR_SHAPE, "cross_entropy 'cross_entropy1' (op 2): its input is 3x8x8; it needs classes x 1 x 1, as nnt_linear or nnt_global_avgpool give");
    memset(&ce, 0, sizeof ce);
    ce.label_smoothing = 1;
    GRAPH(3, 1, 1, nnt_cross_entropy_ex(x, ce), NNT_ERR_ARGUMENT, "cross_entropy 'cross_entropy1' (op 2): label_smoothing 1; it must be at least 0 and below 1");
    ce.label_smoothing = 0;
    ce.class_weights = weights;
    ce.class_weight_count = 2;
    GRAPH(3, 1, 1, nnt_cross_entropy_ex(x, ce), NNT_ERR_SHAPE, "cross_entropy 'cross_entropy1' (op 2): 2 class weights for 3 classes");
    ce.class_weight_count = 3;
    GRAPH(3, 1, 1, nnt_cross_entropy_ex(x, ce), NNT_ERR_ARGUMENT, "cross_entropy 'cross_entropy1' (op 2): the weight of class 2 is -1; it must be finite and not negative");
    GRAPH(3, 1, 1, nnt_relu(nnt_mse(x)), NNT_ERR_ARGUMENT, "relu 'relu1' (op 3): a loss has no values to build on; give it to nnt_compile");
}
static void inputs_and_names_that_cannot_be(void)
{
    nnt_net *net = nnt_new(NULL), *other = nnt_new(NULL);
    nnt_node x, y, nothing;
    GRAPH(0, 8, 8, x, NNT_ERR_ARGUMENT, "input 'input1' (op 1): shape 0x8x8; every size must be at least 1");
    GRAPH(3, 8, 8, nnt_input(net, 1, 2, 3), NNT_ERR_STATE, "input 'input1' (op 2): the net has an input already; a net has exactly one");
    GRAPH(3, 8, 8, nnt_name(x, ""), NNT_ERR_ARGUMENT, "nnt_name: op 1 is given no name; a name has at least one character");
    GRAPH(3, 8, 8, nnt_name(x, "a\nb"), NNT_ERR_ARGUMENT, "nnt_name: the name of op 1 holds a control character (10)");
    GRAPH(3, 8, 8, nnt_name(nnt_relu(nnt_name(x, "same")), "same"), NNT_ERR_ARGUMENT, "nnt_name: 'same' is the name of op 1 already; op 2 needs another");
    x = nnt_input(net, 1, 2, 2);
    y = nnt_input(other, 1, 2, 2);
    nnt_add(x, y);
    CHECK_TEXT(nnt_error(net), "add 'add1' (op 2): input 2 belongs to another net");
    nnt_free(net);
    nnt_free(other);
    net = nnt_new(NULL);
    x = nnt_input(net, 1, 2, 2);
    x.id = 77;
    nnt_relu(x);
    CHECK_TEXT(nnt_error(net), "relu 'relu1' (op 2): input 1 is not a node of this net (id 77)");
    nnt_free(net);
    memset(&nothing, 0, sizeof nothing);
    x = nnt_linear(nnt_conv2d(nothing, 1, 1, 1, 1), 4);
    CHECK(x.net == NULL && x.id == 0);
    CHECK(nnt_concat_n(NULL, 2).id == 0);
}

static nnt_node small_net(nnt_net *net) { return nnt_linear(nnt_relu(nnt_name(nnt_linear(nnt_input(net, 2, 2, 1), 8), "hidden")), 3); }
static nnt_compile_desc usual(void)
{
    nnt_compile_desc d;
    memset(&d, 0, sizeof d);
    d.batch = 4;
    d.threads = 1;
    d.optimizer = nnt_sgd(0.1f);
    return d;
}
/* Compile with one thing wrong; afterwards the same net compiles when nothing is. */
static void check_compile(nnt_compile_desc d, nnt_result code, const char *sentence)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(small_net(net));
    nnt_result r = nnt_compile(net, loss, d);
    CHECKF(r == code, "%s", nnt_result_name(r));
    CHECK_TEXT(nnt_error(net), sentence);
    CHECK(nnt_error_code(net) == code);
    r = nnt_compile(net, loss, usual());
    CHECKF(r == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
}
static void compiles_that_cannot_be(void)
{
    nnt_compile_desc d;
    nnt_net *net;
    nnt_node x, loss;
    d = usual(); d.batch = 0;               check_compile(d, NNT_ERR_ARGUMENT, "compile: batch 0; it must be at least 1");
    d = usual(); d.batch = -3;              check_compile(d, NNT_ERR_ARGUMENT, "compile: batch -3; it must be at least 1");
    d = usual(); d.threads = -1;            check_compile(d, NNT_ERR_ARGUMENT, "compile: -1 threads; 0 means all cores, at most 256");
    d = usual(); d.device = "gpu";          check_compile(d, NNT_ERR_DEVICE, "compile: device 'gpu' is unknown; there are: cpu, null");
    d = usual(); d.device = "";             check_compile(d, NNT_ERR_DEVICE, "compile: device '' is unknown; there are: cpu, null");
    d = usual(); d.device = "cuda";         check_compile(d, NNT_ERR_DEVICE, "compile: device 'cuda': this program was built without CUDA; compile and link nntrain_cuda.cu with it: nvcc ... nntrain_cuda.cu -lcublas -lcublasLt; there are: cpu, null");
    d = usual(); d.device = "cuda:7";       check_compile(d, NNT_ERR_DEVICE, "compile: device 'cuda:7': this program was built without CUDA; compile and link nntrain_cuda.cu with it: nvcc ... nntrain_cuda.cu -lcublas -lcublasLt; there are: cpu, null");
    d = usual(); d.device = "cpu:1";        check_compile(d, NNT_ERR_DEVICE, "compile: device 'cpu:1': there is 1 of this kind, counted from 0");
    d = usual(); d.device = "cpu:-1";       check_compile(d, NNT_ERR_DEVICE, "compile: device 'cpu:-1': behind the colon stands a number from 0 on");
    d = usual(); d.device = "cpu:x";        check_compile(d, NNT_ERR_DEVICE, "compile: device 'cpu:x': behind the colon stands a number from 0 on");
    d = usual(); d.optimizer.lr = -1;       check_compile(d, NNT_ERR_ARGUMENT, "compile: learning rate -1; it must be finite and not negative");
    d = usual(); d.optimizer.kind = 9;      check_compile(d, NNT_ERR_ARGUMENT, "compile: optimizer kind 9 is none of NNT_OPTIMIZER_...");
    d = usual(); d.optimizer.nesterov = 1;  check_compile(d, NNT_ERR_ARGUMENT, "compile: nesterov needs a momentum above 0");
    d = usual(); d.optimizer.weight_decay = -1; check_compile(d, NNT_ERR_ARGUMENT, "compile: weight_decay -1; it must be finite and not negative");
    d = usual(); d.optimizer.clip_norm = -1; check_compile(d, NNT_ERR_ARGUMENT, "compile: clip_norm -1; it must be finite and not negative");
    d = usual(); d.optimizer.accumulate = -1; check_compile(d, NNT_ERR_ARGUMENT, "compile: accumulate -1 batches; it can't be negative");
    d = usual(); d.optimizer.schedule = NNT_SCHEDULE_COSINE; check_compile(d, NNT_ERR_ARGUMENT, "compile: schedule_steps 0; this schedule needs at least 1");
    d = usual(); d.optimizer.schedule = 5;  check_compile(d, NNT_ERR_ARGUMENT, "compile: schedule 5 is none of NNT_SCHEDULE_...");
    d = usual(); d.optimizer.warmup_steps = -1; check_compile(d, NNT_ERR_ARGUMENT, "compile: warmup_steps -1; it can't be negative");
    d = usual(); d.optimizer = nnt_adam(0.1f); d.optimizer.beta2 = 1;
    check_compile(d, NNT_ERR_ARGUMENT, "compile: betas 0.9 and 1; they must be at least 0 and below 1; nnt_adam(lr) fills in the usual 0.9 and 0.999");
    d = usual(); d.optimizer = nnt_adamw(0.1f); d.optimizer.beta1 = -0.5f;
    check_compile(d, NNT_ERR_ARGUMENT, "compile: betas -0.5 and 0.999; they must be at least 0 and below 1; nnt_adam(lr) fills in the usual 0.9 and 0.999");
    d = usual(); memset(&d.optimizer, 0, sizeof d.optimizer);
    d.optimizer.kind = NNT_OPTIMIZER_ADAM; d.optimizer.lr = 0.1f;       /* all else zero: a gradient of 0 would give 0 / 0 */
    check_compile(d, NNT_ERR_ARGUMENT, "compile: eps 0; it must be finite and above 0; nnt_adam(lr) fills in the usual 1e-8");
    d = usual(); d.optimizer = nnt_adamw(0.1f); d.optimizer.eps = -1e-8f;
    check_compile(d, NNT_ERR_ARGUMENT, "compile: eps -1e-8; it must be finite and above 0; nnt_adam(lr) fills in the usual 1e-8");
    d = usual(); d.optimizer = nnt_adam(0.1f); d.optimizer.eps = (float)HUGE_VAL;
    check_compile(d, NNT_ERR_ARGUMENT, "compile: eps inf; it must be finite and above 0; nnt_adam(lr) fills in the usual 1e-8");

    net = nnt_new(NULL);
    x = small_net(net);
    CHECK(nnt_compile(net, x, usual()) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(net), "compile: an optimizer is given, but op 4 (linear) is no loss; give nnt_cross_entropy(x) or nnt_mse(x), or leave the optimizer zeroed");
    loss = nnt_cross_entropy(x);
    CHECK(nnt_compile(net, loss, usual()) == NNT_OK);
    CHECK(nnt_compile(net, loss, usual()) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "compile: the net is compiled already; make another net for another batch or device");
    nnt_relu(x);
    CHECK_TEXT(nnt_error(net), "relu 'relu2' (op 6): the net is compiled; layers can't be added any more");
    nnt_free(net);

    net = nnt_new(NULL);
    x = nnt_name(nnt_relu(nnt_linear(nnt_input(net, 2, 2, 1), 3)), "linear1");
    CHECK(nnt_compile(net, nnt_cross_entropy(x), usual()) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(net), "compile: op 3 is named 'linear1', which is also the name that op 2 has without one; choose another");
    nnt_free(net);

    net = nnt_new(NULL);
    memset(&x, 0, sizeof x);
    CHECK(nnt_compile(net, x, usual()) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(net), "compile: the loss belongs to another net");
    x.net = net;
    CHECK(nnt_compile(net, x, usual()) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(net), "compile: the loss is not a node of this net (id 0)");
    nnt_free(net);
    CHECK(nnt_compile(NULL, x, usual()) == NNT_ERR_MEMORY);
    CHECK_TEXT(nnt_error(NULL), "out of memory");
}

static void calls_in_the_wrong_order(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node x = small_net(net), loss = nnt_cross_entropy(x);
    nnt_batch b;
    nnt_metrics m;
    nnt_fit_desc f;
    nnt_compile_desc d = usual();
    float v[16] = { 0 };
    memset(&b, 0, sizeof b);
    memset(&m, 0, sizeof m);
    memset(&f, 0, sizeof f);
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_STATE);            CHECK_TEXT(nnt_error(net), "step: call nnt_compile first");
    CHECK(nnt_backward(net, &b, NULL) == NNT_ERR_STATE);        CHECK_TEXT(nnt_error(net), "backward: call nnt_compile first");
    CHECK(nnt_predict(net, v, 1, v) == NNT_ERR_STATE);          CHECK_TEXT(nnt_error(net), "predict: call nnt_compile first");
    CHECK(nnt_evaluate(net, NULL, &m) == NNT_ERR_STATE);        CHECK_TEXT(nnt_error(net), "evaluate: call nnt_compile first");
    CHECK(nnt_fit(net, NULL, f) == NNT_ERR_STATE);              CHECK_TEXT(nnt_error(net), "fit: call nnt_compile first");
    CHECK(nnt_update(net) == NNT_ERR_STATE);                    CHECK_TEXT(nnt_error(net), "update: call nnt_compile first");
    CHECK(nnt_param(net, "hidden.weight") == NULL);             CHECK_TEXT(nnt_error(net), "nnt_param: parameters are there after nnt_compile");
#ifndef NNT_NO_STDIO
    CHECK(nnt_save(net, "x") == NNT_ERR_STATE);                 CHECK_TEXT(nnt_error(net), "save 'x': the net has no weights yet; call nnt_compile first");
#endif
    memset(&d.optimizer, 0, sizeof d.optimizer);
    CHECK(nnt_compile(net, loss, d) == NNT_OK);
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "step: the net was compiled without an optimizer, for prediction only; set optimizer in nnt_compile_desc");
    CHECK(nnt_grad(net, "hidden.weight") == NULL);
    CHECK_TEXT(nnt_error(net), "nnt_grad: 'hidden.weight' has no gradient: the net was compiled without an optimizer");
    CHECK(nnt_param(net, "hidden.wait") == NULL);
    CHECK_TEXT(nnt_error(net), "nnt_param: there is no parameter 'hidden.wait'; nnt_param_name tells the names");
    nnt_free(net);
    net = nnt_new(NULL);
    x = small_net(net);
    CHECK(nnt_compile(net, x, d) == NNT_OK);
    CHECK(nnt_evaluate(net, NULL, &m) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "evaluate: the net was compiled without a loss");
    nnt_free(net);
    nnt_free(NULL);
    CHECK(nnt_step(NULL, &b, NULL) == NNT_ERR_ARGUMENT && nnt_fit(NULL, NULL, f) == NNT_ERR_ARGUMENT && nnt_predict(NULL, v, 1, v) == NNT_ERR_ARGUMENT);
}

static void nets_without_weights_cannot_learn(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_mse(nnt_relu(nnt_input(net, 1, 8, 8)));
    nnt_compile_desc d = usual();
    CHECK(nnt_compile(net, loss, d) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "compile: nothing in front of the loss has weights; add a layer that learns, or leave the optimizer zeroed");
    d.optimizer.kind = NNT_OPTIMIZER_NONE;
    CHECKF(nnt_compile(net, loss, d) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
}
static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static void batches_that_cannot_be(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(small_net(net));
    float x[5 * 4] = { 0.5f }, y[8], one, first, not_a_number;
    int32_t labels[5] = { 0, 1, 2, 0, 1 };
    nnt_batch b;
    nnt_compile_desc d = usual();
    CHECK(nnt_compile(net, loss, d) == NNT_OK);
    memset(&b, 0, sizeof b);
    b.count = 4;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_ARGUMENT);         CHECK_TEXT(nnt_error(net), "step: the batch has no x");
    CHECK(nnt_step(net, NULL, NULL) == NNT_ERR_ARGUMENT);       CHECK_TEXT(nnt_error(net), "step: the batch has no x");
    b.x = x;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_ARGUMENT);         CHECK_TEXT(nnt_error(net), "step: the batch has no labels; cross_entropy needs them");
    b.labels = labels;
    b.count = 0;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_ARGUMENT);         CHECK_TEXT(nnt_error(net), "step: the batch has 0 samples; it needs at least 1");
    b.count = 5;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_ARGUMENT);         CHECK_TEXT(nnt_error(net), "step: the batch has 5 samples; the net was compiled for at most 4");
    b.count = 4;
    labels[1] = 1000;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_DATA);             CHECK_TEXT(nnt_error(net), "step: label 1000 of sample 1 is out of range; the net has 3 classes, labels go from 0 to 2");
    labels[1] = -1;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_DATA);             CHECK_TEXT(nnt_error(net), "step: label -1 of sample 1 is out of range; the net has 3 classes, labels go from 0 to 2");
    labels[1] = 1;
    not_a_number = float_of_bits(0x7fc00000u);
    x[2 * 4 + 3] = not_a_number;
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_DATA);             CHECK_TEXT(nnt_error(net), "step: the input of sample 2 is nan at value 3; all values must be finite");
    x[2 * 4 + 3] = float_of_bits(0xff800000u);
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_DATA);             CHECK_TEXT(nnt_error(net), "step: the input of sample 2 is -inf at value 3; all values must be finite");
    CHECK(nnt_steps(net) == 0);
    x[2 * 4 + 3] = 1;
    CHECK(nnt_step(net, &b, &first) == NNT_OK && nnt_step(net, &b, &one) == NNT_OK && nnt_steps(net) == 2 && one < first);      /* trains on */
    CHECK(nnt_predict(net, NULL, 1, y) == NNT_ERR_ARGUMENT);    CHECK_TEXT(nnt_error(net), "predict: x is NULL");
    CHECK(nnt_predict(net, x, 1, NULL) == NNT_ERR_ARGUMENT);    CHECK_TEXT(nnt_error(net), "predict: y is NULL");
    CHECK(nnt_predict(net, x, -1, y) == NNT_ERR_ARGUMENT);      CHECK_TEXT(nnt_error(net), "predict: -1 samples; it can't be negative");
    CHECK(nnt_set_learning_rate(net, -1) == NNT_ERR_ARGUMENT);  CHECK_TEXT(nnt_error(net), "nnt_set_learning_rate: -1; it must be finite and not negative");
    nnt_free(net);
    net = nnt_new(NULL);
    CHECK(nnt_compile(net, nnt_mse(small_net(net)), d) == NNT_OK);
    CHECK(nnt_step(net, &b, NULL) == NNT_ERR_ARGUMENT);         CHECK_TEXT(nnt_error(net), "step: the batch has no targets; mse needs them");
    nnt_free(net);
}
static void gradients_that_wait_are_not_overwritten(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(small_net(net));
    float x[16] = { 0.5f };
    int32_t labels[4] = { 0, 1, 2, 0 };
    nnt_batch b;
    nnt_compile_desc d = usual();
    d.optimizer.accumulate = 3;
    memset(&b, 0, sizeof b);
    b.x = x;
    b.labels = labels;
    b.count = 4;
    CHECK(nnt_compile(net, loss, d) == NNT_OK && nnt_step(net, &b, NULL) == NNT_OK && nnt_step(net, &b, NULL) == NNT_OK);
    CHECK(nnt_backward(net, &b, NULL) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "backward: the gradients of 2 batches wait for their update; call nnt_update first");
    CHECK(nnt_update(net) == NNT_OK && nnt_backward(net, &b, NULL) == NNT_OK);
    nnt_free(net);
}

static void runs_that_cannot_be(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(small_net(net));
    float x[10 * 4] = { 0 };
    int32_t labels[10] = { 0 };
    nnt_arrays_desc a;
    nnt_loader_desc l;
    nnt_fit_desc f;
    nnt_metrics m;
    nnt_dataset *data, *wide;
    nnt_loader *loader, *large, *other, *bad;
    int64_t confusion[16];
    memset(&a, 0, sizeof a);
    memset(&l, 0, sizeof l);
    memset(&f, 0, sizeof f);
    memset(&m, 0, sizeof m);
    a.count = 10; a.channels = 2; a.height = 2; a.width = 1; a.x = x; a.labels = labels;
    data = nnt_dataset_arrays(a, NULL);
    a.channels = 4; a.height = 1;
    wide = nnt_dataset_arrays(a, NULL);
    l.batch = 4;
    loader = nnt_loader_new(data, l, NULL);
    other = nnt_loader_new(wide, l, NULL);
    l.batch = 8;
    large = nnt_loader_new(data, l, NULL);
    bad = nnt_loader_new(nnt_dataset_idx("no/such/file", NULL, NULL), l, NULL);     /* its data set is freed below */
    CHECK(nnt_compile(net, loss, usual()) == NNT_OK);
    CHECK(nnt_fit(net, other, f) == NNT_ERR_SHAPE);             CHECK_TEXT(nnt_error(net), "fit: samples of the data set are 4x1x1; the net's input is 2x2x1");
    CHECK(nnt_fit(net, large, f) == NNT_ERR_ARGUMENT);          CHECK_TEXT(nnt_error(net), "fit: the loader's batches have 8 samples; the net was compiled for at most 4");
    f.epochs = -1;
    CHECK(nnt_fit(net, loader, f) == NNT_ERR_ARGUMENT);         CHECK_TEXT(nnt_error(net), "fit: -1 epochs; it can't be negative");
    f.epochs = 1;
    f.validation = other;
    CHECK(nnt_fit(net, loader, f) == NNT_ERR_SHAPE);            CHECK_TEXT(nnt_error(net), "fit: validation: samples of the data set are 4x1x1; the net's input is 2x2x1");
    f.validation = NULL;
    CHECK(nnt_fit(net, bad, f) != NNT_OK);                      CHECKF(strstr(nnt_error(net), "no/such/file") != NULL, "%s", nnt_error(net));
    CHECK(nnt_fit(net, NULL, f) == NNT_ERR_MEMORY);
    CHECK(nnt_evaluate(net, loader, NULL) == NNT_ERR_ARGUMENT); CHECK_TEXT(nnt_error(net), "evaluate: out is NULL");
    m.confusion = confusion;
    m.confusion_classes = 4;
    CHECK(nnt_evaluate(net, loader, &m) == NNT_ERR_ARGUMENT);   CHECK_TEXT(nnt_error(net), "evaluate: confusion has room for 4 classes; the net has 3");
    CHECK(nnt_fit(net, loader, f) == NNT_OK);                   /* and still works */
    nnt_loader_free(loader);
    nnt_loader_free(other);
    nnt_loader_free(large);
    {
        nnt_dataset *missing = nnt_loader_dataset(bad);
        nnt_loader_free(bad);
        nnt_dataset_free(missing);
    }
    nnt_dataset_free(data);
    nnt_dataset_free(wide);
    nnt_free(net);
}

static void tensors_that_cannot_be(void)
{
    nnt_net *net = nnt_new(NULL);
    int64_t size[4] = { 2, 3, 0, 1 }, huge[4] = { (int64_t)1 << 40, (int64_t)1 << 40, 1, 1 };
    nnt_tensor *a, *b;
    CHECK(nnt_tensor_new(net, "cpu", 0, size) == NULL);         CHECK_TEXT(nnt_error(net), "tensor: rank 0; it must be 1 to 4, with that many sizes");
    CHECK(nnt_tensor_new(net, "cpu", 5, size) == NULL);         CHECK_TEXT(nnt_error(net), "tensor: rank 5; it must be 1 to 4, with that many sizes");
    CHECK(nnt_tensor_new(net, "cpu", 3, size) == NULL);         CHECK_TEXT(nnt_error(net), "tensor: size 0 in dimension 2; it must be at least 1");
    CHECK(nnt_tensor_new(net, "cpu", 2, huge) == NULL);         CHECK_TEXT(nnt_error(net), "tensor: its sizes pass the address space");
    CHECK(nnt_tensor_new(net, "tpu", 2, size) == NULL);         CHECK_TEXT(nnt_error(net), "tensor: device 'tpu' is unknown; there are: cpu, null");
    a = nnt_tensor_new(net, "cpu", 2, size);
    b = nnt_tensor_new(net, "cpu", 1, size);
    CHECK(nnt_tensor_add(a, a, b) == NNT_ERR_SHAPE);            CHECK_TEXT(nnt_error(net), "nnt_tensor_add: 6 values and 2 values; the counts must be equal");
    CHECK(nnt_tensor_copy(a, b) == NNT_ERR_SHAPE);              CHECK_TEXT(nnt_error(net), "nnt_tensor_copy: 6 values and 2 values; the counts must be equal");
    CHECK(nnt_tensor_uniform(a, 2, 1, 0) == NNT_ERR_ARGUMENT);  CHECK_TEXT(nnt_error(net), "nnt_tensor_uniform: from 2 to 1; bounds must be finite, the first not above the second");
    CHECK(nnt_tensor_add_noise(a, -1, 0) == NNT_ERR_ARGUMENT);  CHECK_TEXT(nnt_error(net), "nnt_tensor_add_noise: deviation -1; it must be finite and not negative");
    CHECK(nnt_tensor_fill(NULL, 0) == NNT_ERR_ARGUMENT && nnt_tensor_new(NULL, "cpu", 1, size) == NULL);
    nnt_free(net);
}

/* Sizes that are possible one by one and absurd together are refused before anything is taken. */
static void absurd_sizes_are_refused(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_conv_desc c = conv_of(4, 2);
    nnt_pool_desc p = pool_of(1 << 30);
    nnt_compile_desc d = usual();
    nnt_memory m;
    nnt_node x = nnt_input(net, 1, 1, 1);
    c.pad = 1 << 29;
    p.stride = 1;
    x = nnt_maxpool_ex(nnt_conv2d_ex(x, c), p);
    CHECK_TEXT(nnt_error(net), "maxpool 'maxpool1' (op 3): kernel 1073741824x1073741824 has more than 2^31 - 1 values");
    nnt_free(net);
    net = nnt_new(NULL);
    p.kernel_w = 1;
    x = nnt_maxpool_ex(nnt_conv2d_ex(nnt_input(net, 1, 1, 1), c), p);
    CHECK(nnt_compile(net, nnt_cross_entropy(nnt_linear(nnt_global_avgpool(x), 3)), d) == NNT_ERR_MEMORY);
    CHECKF(strstr(nnt_error(net), "passes the address space") != NULL, "%s", nnt_error(net));
    nnt_free(net);
    net = nnt_new(NULL);
    x = nnt_conv2d_ex(nnt_input(net, 1, 1, 1), c);
    CHECK(nnt_plan(net, nnt_mse(x), d, &m) == NNT_ERR_MEMORY);
    nnt_free(net);
    net = nnt_new(NULL);                    /* a stride far beyond the input is one row, not many */
    c = conv_of(2, 3);
    c.stride = 20000;
    c.pad = 1;
    x = nnt_linear(nnt_conv2d_ex(nnt_conv2d(nnt_input(net, 1, 8, 8), 2, 3, 1, 1), c), 3);
    CHECKF(nnt_compile(net, nnt_cross_entropy(x), d) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
}
static void names_given_after_planning_count(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node a = nnt_linear(nnt_input(net, 2, 1, 1), 3), loss = nnt_cross_entropy(a);
    nnt_memory m;
    CHECK(nnt_plan(net, loss, usual(), &m) == NNT_OK);
    nnt_name(a, "first");
    CHECK(nnt_compile(net, loss, usual()) == NNT_OK);
    CHECK_TEXT(nnt_param_name(net, 0), "first.weight");
    nnt_free(net);
}
static void an_unlimited_limit_makes_nothing_again(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(nnt_linear(nnt_relu(nnt_conv2d(nnt_relu(nnt_conv2d(nnt_input(net, 1, 8, 8), 4, 3, 1, 1)), 4, 3, 1, 1)), 3));
    nnt_compile_desc d = usual();
    nnt_memory m;
    d.memory_limit = (size_t)-1;
    CHECK(nnt_plan(net, loss, d, &m) == NNT_OK && m.recomputed_ops == 0);
    nnt_free(net);
}
static void nodes_without_a_net_are_noticed_by_the_other(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node nothing, x = nnt_input(net, 1, 2, 2), both[2];
    memset(&nothing, 0, sizeof nothing);
    nnt_add(nothing, x);
    CHECK_TEXT(nnt_error(net), "add: input 1 is not a node");
    nnt_free(net);
    net = nnt_new(NULL);
    both[0] = nothing;
    both[1] = nnt_input(net, 1, 2, 2);
    nnt_concat_n(both, 2);
    CHECK_TEXT(nnt_error(net), "concat: input 1 is not a node");
    nnt_free(net);
}
static nnt_loader *inner_loader;
static int fits_again(void *user, nnt_net *net, const nnt_progress_info *p)
{
    nnt_fit_desc f;
    (void)user; (void)p;
    memset(&f, 0, sizeof f);
    CHECK(nnt_fit(net, inner_loader, f) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "fit: called from a callback of an nnt_fit of the same net");
    return 0;
}
static void fitting_inside_of_a_fit_is_refused(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(small_net(net));
    float x[10 * 4] = { 0 };
    int32_t labels[10] = { 0 };
    nnt_arrays_desc a;
    nnt_loader_desc l;
    nnt_fit_desc f;
    nnt_dataset *data;
    memset(&a, 0, sizeof a);
    memset(&l, 0, sizeof l);
    memset(&f, 0, sizeof f);
    a.count = 10; a.channels = 2; a.height = 2; a.width = 1; a.x = x; a.labels = labels;
    l.batch = 4;
    data = nnt_dataset_arrays(a, NULL);
    inner_loader = nnt_loader_new(data, l, NULL);
    f.callback = fits_again;
    f.epochs = 2;
    CHECK(nnt_compile(net, loss, usual()) == NNT_OK && nnt_fit(net, inner_loader, f) == NNT_OK);
    nnt_free(net);
    nnt_loader_free(inner_loader);
    nnt_dataset_free(data);
}
static void a_net_that_computes_nothing_can_be_reported(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc d = usual();
    char text[400];
    memset(&d.optimizer, 0, sizeof d.optimizer);
    CHECK(nnt_compile(net, nnt_dropout(nnt_flatten(nnt_input(net, 2, 2, 2)), 0.5f), d) == NNT_OK);
    nnt_memory_report(net, text, sizeof text);
    CHECKF(strstr(text, "nothing is computed") != NULL, "%s", text);
    CHECK(nnt_progress(NULL, net, NULL) == 0);
    nnt_free(net);
}

static void results_have_names(void)
{
    CHECK_TEXT(nnt_result_name(NNT_OK), "NNT_OK");
    CHECK_TEXT(nnt_result_name(NNT_ERR_NOT_FINITE), "NNT_ERR_NOT_FINITE");
    CHECK_TEXT(nnt_result_name((nnt_result)77), "unknown result");
}
/* The environment says how wide the terminal is; 0: nothing. */
static void columns(int n)
{
    static char set[32];
    sprintf(set, "COLUMNS=%d", n);
    putenv(set);
}
static void summary_lists_layers(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node x = nnt_input(net, 1, 28, 28);
    char text[2048], part[64];
    size_t length;
    columns(200);
    x = nnt_maxpool(nnt_relu(nnt_name(nnt_conv2d(x, 32, 3, 1, 1), "conv1")), 2, 2, 0);
    nnt_cross_entropy(nnt_linear(x, 10));
    length = nnt_summary(net, text, sizeof text);
    CHECK(length == strlen(text));
    CHECK_TEXT(text,
        "layer           kind           output    parameters   FLOPs\n"
        "input1          input          1x28x28\n"
        "conv1           conv2d         32x28x28         320   477 k\n"
        "relu1           relu           32x28x28              25.1 k\n"
        "maxpool1        maxpool        32x14x14              25.1 k\n"
        "linear1         linear         10x1x1         62730   125 k\n"
        "cross_entropy1  cross_entropy  loss                      60\n"
        "63050 parameters, 652 kFLOPs a sample forward\n");
    CHECK(nnt_summary(net, part, sizeof part) == length && strlen(part) == 63 && strncmp(part, text, 63) == 0);
    CHECK(nnt_summary(net, NULL, 0) == length);
    nnt_free(net);
}
/* What the eye counts in the longest line: bytes that begin a character of UTF-8. */
static int widest(const char *s)
{
    int most = 0, n = 0;
    for (; *s; s++) {
        n = *s == '\n' ? 0 : n + (((unsigned char)*s & 0xC0) != 0x80);
        if (n > most) most = n;
    }
    return most;
}
static void summary_fits_the_columns_there_are(void)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node x = nnt_name(nnt_conv2d(nnt_input(net, 3, 224, 224), 64, 7, 2, 3), "backbone.encoder.stages.0.blocks.0.conv1");
    char text[4096];
    int n;
    x = nnt_name(nnt_conv2d(x, 64, 3, 1, 1), "backbone.encoder.stages.0.blocks.0.conv2");
    x = nnt_name(nnt_conv2d(x, 64, 3, 1, 1), "gr\xc3\xb6\xc3\x9f" "er.gr\xc3\xb6\xc3\x9f" "er.gr\xc3\xb6\xc3\x9f" "er.gr\xc3\xb6\xc3\x9f" "er.1");
    nnt_cross_entropy(nnt_linear(nnt_global_avgpool(x), 10));
    for (n = 20; n < 200; n++) {
        columns(n);
        nnt_summary(net, text, sizeof text);
        CHECKF(n < 40 || widest(text) <= (n < 46 ? 46 : n), "%d columns: %d used", n, widest(text));   /* 46: the last line */
        CHECKF(strstr(text, "conv1 ") && strstr(text, "conv2 ") && strstr(text, "er.1 "), "%d columns:\n%s", n, text);
        CHECK((strstr(text, "backbone.encoder.stages.0.blocks.0.conv1 ") != NULL) == (n >= 90));
    }
    columns(60);
    nnt_summary(net, text, sizeof text);
    CHECK_TEXT(text,
        "layer                         output      parameters   FLOPs\n"
        "input1                        3x224x224\n"
        "backbone.~s.0.blocks.0.conv1  64x112x112        9472   237 M\n"
        "backbone.~s.0.blocks.0.conv2  64x112x112       36928   926 M\n"
        "gr\xc3\xb6\xc3\x9f" "er.gr~er.gr\xc3\xb6\xc3\x9f" "er.gr\xc3\xb6\xc3\x9f" "er.1  64x112x112       36928   926 M\n"
        "adaptive_avgpool1             64x1x1                   817 k\n"
        "linear1                       10x1x1             650  1.29 k\n"
        "cross_entropy1                loss                        60\n"
        "83978 parameters, 2.09 GFLOPs a sample forward\n");
    nnt_free(net);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(convolutions_that_cannot_be);
    TEST(other_layers_that_cannot_be);
    TEST(inputs_and_names_that_cannot_be);
    TEST(compiles_that_cannot_be);
    TEST(calls_in_the_wrong_order);
    TEST(nets_without_weights_cannot_learn);
    TEST(batches_that_cannot_be);
    TEST(gradients_that_wait_are_not_overwritten);
    TEST(runs_that_cannot_be);
    TEST(tensors_that_cannot_be);
    TEST(absurd_sizes_are_refused);
    TEST(names_given_after_planning_count);
    TEST(an_unlimited_limit_makes_nothing_again);
    TEST(nodes_without_a_net_are_noticed_by_the_other);
    TEST(fitting_inside_of_a_fit_is_refused);
    TEST(a_net_that_computes_nothing_can_be_reported);
    TEST(results_have_names);
    TEST(summary_lists_layers);
    TEST(summary_fits_the_columns_there_are);
    return TEST_END();
}
