/* test_golden.c - outputs, gradients and trainings against PyTorch's, through public functions only.

   Reads the files that tests/golden/make_golden.py recorded; what they hold and how is described there. The measure is
   the norm of the difference over the norm of PyTorch's float64 reference. Each case runs twice: on one thread in a net
   compiled for just the samples that it gets, and on two threads in a net compiled for more.
   NNT_TEST_GOLDEN: the files' directory. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include <math.h>
#include "test.h"

#ifndef NNT_TEST_GOLDEN
#define NNT_TEST_GOLDEN "tests/golden"
#endif

/* ---- what is compared, and how exactly ---- */

/* float32 has a rounding error of 6e-8. Outputs are sums of at most some hundred products, whose errors add up as a
   random walk; a gradient goes through two such sums and a loss; ten steps feed the errors of each into the next. */
enum { OUTPUTS, GRADIENTS, LOSSES, PARAMETERS, FIGURES };
static const char *const figure_name[FIGURES] = { "outputs", "gradients", "losses", "parameters" };
static const double tolerance[FIGURES] = { 1e-6, 5e-6, 1e-5, 1e-5 };

enum {
    MAX_NAME = 64, MAX_LAYERS = 32, MAX_VALUES = 64, MAX_BATCHES = 4, MAX_CONCAT = 4, MAX_CLASSES = 16, MAX_GROUPS = 16
};

typedef struct values { char *name; double *at; int count; } values;

typedef struct sample_batch { int count; values x, labels, targets; } sample_batch;

typedef struct golden_case {
    char         name[MAX_NAME];
    const char  *head;                      /* the "case" line */
    const char  *layer[MAX_LAYERS];         /* lines without their first word */
    const char  *optimizer;                 /* the same; NULL: none */
    values       give[MAX_VALUES], want[MAX_VALUES];
    sample_batch batch[MAX_BATCHES];
    int          layers, given, wanted, batches, steps;
} golden_case;

/* ---- reading ---- */

/* A whole text file with a 0 at its end, or NULL. */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    long size;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0) {
        text = (char *)malloc((size_t)size + 1);
        if (text) text[fread(text, 1, (size_t)size, file)] = 0;
    }
    fclose(file);
    return text;
}

/* The text after "WORD " when the line begins so, else NULL. */
static char *after(char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

/* The index-th of the words that single spaces part; "" when there are fewer. */
static void word(const char *line, int index, char to[MAX_NAME])
{
    size_t n = 0;
    for (; index > 0 && *line; line++) if (*line == ' ') index--;
    while (line[n] && line[n] != ' ' && n < MAX_NAME - 1) { to[n] = line[n]; n++; }
    to[n] = 0;
}

/* What follows " KEY=" in the line, or NULL. */
static const char *attribute(const char *line, const char *key)
{
    size_t n = strlen(key);
    for (; (line = strchr(line, ' ')) != NULL; line++)
        if (strncmp(line + 1, key, n) == 0 && line[n + 1] == '=') return line + n + 2;
    return NULL;
}
static double number(const char *line, const char *key, double otherwise)
{
    const char *s = attribute(line, key);
    return s ? strtod(s, NULL) : otherwise;
}
static int integer(const char *line, const char *key) { return (int)number(line, key, 0); }

/* "NAME : 1 2 3", or ": 1 2 3" when the name is taken off already. */
static int read_values(char *line, values *v)
{
    char *s = *line == ':' ? line + 1 : strstr(line, " : "), *end = s;
    size_t room = 1;
    v->name = line;
    v->count = 0;
    if (!s) return 0;
    if (*line != ':') { *s = 0; s += 3; }
    for (end = s; *end; end++) room += *end == ' ';
    v->at = (double *)malloc(room * sizeof *v->at);
    if (!v->at) return 0;
    for (; ; s = end) {
        double value = strtod(s, &end);
        if (end == s) break;
        v->at[v->count++] = value;
    }
    return *end == 0 && v->count > 0;
}

/* Takes one line of a case. 0: it makes no sense. */
static int read_line(golden_case *c, char *line)
{
    char *rest;
    if ((rest = after(line, "layer")) != NULL) {
        if (c->layers == MAX_LAYERS) return 0;
        c->layer[c->layers++] = rest;
    } else if ((rest = after(line, "optimizer")) != NULL) {
        c->optimizer = rest;
    } else if ((rest = after(line, "give")) != NULL) {
        return c->given < MAX_VALUES && read_values(rest, &c->give[c->given++]);
    } else if ((rest = after(line, "want")) != NULL) {
        return c->wanted < MAX_VALUES && read_values(rest, &c->want[c->wanted++]);
    } else if ((rest = after(line, "batch")) != NULL) {
        if (c->batches == MAX_BATCHES) return 0;
        c->batch[c->batches++].count = (int)strtol(rest, NULL, 10);
    } else if (c->batches > 0) {
        sample_batch *b = &c->batch[c->batches - 1];
        if ((rest = after(line, "x")) != NULL)       return read_values(rest, &b->x);
        if ((rest = after(line, "labels")) != NULL)  return read_values(rest, &b->labels);
        if ((rest = after(line, "targets")) != NULL) return read_values(rest, &b->targets);
        return 0;
    } else {
        return 0;
    }
    return 1;
}

/* Cuts the next line out of the text; NULL at its end. */
static char *next_line(char **text)
{
    char *line = *text, *end = strchr(line, '\n');
    if (!*line) return NULL;
    *text = end ? end + 1 : line + strlen(line);
    if (end) *end = 0;
    return line;
}

/* Reads the case at *text, which is left at the next. 0: there is none. A line that makes no sense fails the test. */
static int read_case(char **text, golden_case *c)
{
    char *line;
    memset(c, 0, sizeof *c);
    while (**text && (!c->head || strncmp(*text, "case ", 5) != 0)) {
        line = next_line(text);
        if (!*line || *line == '#') continue;
        if (!c->head && after(line, "case")) {
            c->head = after(line, "case");
            word(c->head, 0, c->name);
            c->steps = integer(c->head, "steps");
        } else {
            CHECKF(c->head && read_line(c, line), "%s: line \"%.60s\"", c->name, line);
        }
    }
    return c->head != NULL;
}

static void free_case(golden_case *c)
{
    int i;
    for (i = 0; i < c->given; i++) free(c->give[i].at);
    for (i = 0; i < c->wanted; i++) free(c->want[i].at);
    for (i = 0; i < c->batches; i++) {
        free(c->batch[i].x.at);
        free(c->batch[i].labels.at);
        free(c->batch[i].targets.at);
    }
}

/* ---- from lines to nets ---- */

typedef struct named_node { char name[MAX_NAME]; nnt_node node; } named_node;

static nnt_node add_conv2d(nnt_node x, const char *line)
{
    nnt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.filters    = integer(line, "filters");
    d.kernel     = integer(line, "kernel");
    d.kernel_w   = integer(line, "kernel_w");
    d.stride     = integer(line, "stride");
    d.stride_w   = integer(line, "stride_w");
    d.pad        = integer(line, "pad");
    d.pad_w      = integer(line, "pad_w");
    d.dilation   = integer(line, "dilation");
    d.dilation_w = integer(line, "dilation_w");
    d.groups     = integer(line, "groups");
    d.no_bias    = integer(line, "no_bias");
    return nnt_conv2d_ex(x, d);
}
static nnt_pool_desc pool_desc(const char *line)
{
    nnt_pool_desc d;
    memset(&d, 0, sizeof d);
    d.kernel      = integer(line, "kernel");
    d.kernel_w    = integer(line, "kernel_w");
    d.stride      = integer(line, "stride");
    d.stride_w    = integer(line, "stride_w");
    d.pad         = integer(line, "pad");
    d.pad_w       = integer(line, "pad_w");
    d.ceil_mode   = integer(line, "ceil_mode");
    d.exclude_pad = integer(line, "exclude_pad");
    return d;
}
static nnt_node add_linear(nnt_node x, const char *line)
{
    nnt_linear_desc d;
    memset(&d, 0, sizeof d);
    d.features = integer(line, "features");
    d.no_bias  = integer(line, "no_bias");
    return nnt_linear_ex(x, d);
}
static nnt_node add_batchnorm(nnt_node x, const char *line)
{
    nnt_batchnorm_desc d = nnt_batchnorm_defaults();
    d.momentum  = (float)number(line, "momentum", (double)d.momentum);
    d.eps       = (float)number(line, "eps", (double)d.eps);
    d.no_affine = integer(line, "no_affine");
    return nnt_batchnorm_ex(x, d);
}
static nnt_node add_cross_entropy(nnt_node x, const char *line)
{
    nnt_cross_entropy_desc d;
    float weights[MAX_CLASSES];
    const char *s = attribute(line, "class_weights");
    char *end;
    memset(&d, 0, sizeof d);
    d.label_smoothing  = (float)number(line, "label_smoothing", 0);
    d.use_ignore_index = integer(line, "use_ignore_index");
    d.ignore_index     = integer(line, "ignore_index");
    for (; s && d.class_weight_count < MAX_CLASSES; s = *end == ',' ? end + 1 : NULL)
        weights[d.class_weight_count++] = (float)strtod(s, &end);
    if (d.class_weight_count) d.class_weights = weights;
    return nnt_cross_entropy_ex(x, d);
}

/* One layer, of the inputs that its line names. */
static nnt_node add_layer(nnt_net *net, const char *kind, const char *line, const nnt_node *x, int inputs)
{
    int channels = integer(line, "channels"), height = integer(line, "height"), width = integer(line, "width");
    nnt_node unknown;
    if (!strcmp(kind, "input"))            return nnt_input(net, channels, height, width);
    if (!strcmp(kind, "reshape"))          return nnt_reshape(x[0], channels, height, width);
    if (!strcmp(kind, "linear"))           return add_linear(x[0], line);
    if (!strcmp(kind, "conv2d"))           return add_conv2d(x[0], line);
    if (!strcmp(kind, "batchnorm"))        return add_batchnorm(x[0], line);
    if (!strcmp(kind, "flatten"))          return nnt_flatten(x[0]);
    if (!strcmp(kind, "relu"))             return nnt_relu(x[0]);
    if (!strcmp(kind, "leaky_relu"))       return nnt_leaky_relu(x[0], (float)number(line, "slope", 0));
    if (!strcmp(kind, "sigmoid"))          return nnt_sigmoid(x[0]);
    if (!strcmp(kind, "tanh"))             return nnt_tanh(x[0]);
    if (!strcmp(kind, "gelu"))             return nnt_gelu(x[0]);
    if (!strcmp(kind, "softmax"))          return nnt_softmax(x[0]);
    if (!strcmp(kind, "dropout"))          return nnt_dropout(x[0], (float)number(line, "p", 0));
    if (!strcmp(kind, "maxpool"))          return nnt_maxpool_ex(x[0], pool_desc(line));
    if (!strcmp(kind, "avgpool"))          return nnt_avgpool_ex(x[0], pool_desc(line));
    if (!strcmp(kind, "adaptive_avgpool")) return nnt_adaptive_avgpool(x[0], height, width);
    if (!strcmp(kind, "global_avgpool"))   return nnt_global_avgpool(x[0]);
    if (!strcmp(kind, "add"))              return nnt_add(x[0], x[1]);
    if (!strcmp(kind, "concat"))           return inputs == 2 ? nnt_concat(x[0], x[1]) : nnt_concat_n(x, inputs);
    if (!strcmp(kind, "cross_entropy"))    return add_cross_entropy(x[0], line);
    if (!strcmp(kind, "mse"))              return nnt_mse(x[0]);
    unknown.net = net;
    unknown.id = 0;
    return unknown;                         /* not a node: an error at compile */
}

/* The nodes that a list as "a,b" names, in x; returns how many. */
static int find_inputs(const named_node *nodes, int count, const char *list, nnt_node x[MAX_CONCAT])
{
    int found = 0, i;
    while (*list && found < MAX_CONCAT) {
        size_t n = strcspn(list, ",");
        for (i = 0; i < count; i++)
            if (strlen(nodes[i].name) == n && strncmp(nodes[i].name, list, n) == 0) {
                x[found++] = nodes[i].node;
                break;
            }
        list += n + (list[n] == ',');
    }
    return found;
}

/* Adds all layers; returns the last, which is the loss. */
static nnt_node build(nnt_net *net, const golden_case *c)
{
    named_node nodes[MAX_LAYERS];
    nnt_node x[MAX_CONCAT];
    char kind[MAX_NAME], list[MAX_NAME];
    int i, inputs;
    memset(nodes, 0, sizeof nodes);
    for (i = 0; i < c->layers; i++) {
        memset(x, 0, sizeof x);
        word(c->layer[i], 0, kind);
        word(c->layer[i], 1, nodes[i].name);
        word(c->layer[i], 2, list);
        inputs = find_inputs(nodes, i, list, x);
        nodes[i].node = add_layer(net, kind, c->layer[i], x, inputs);
        if (!strcmp(kind, "linear") || !strcmp(kind, "conv2d") || !strcmp(kind, "batchnorm"))
            nnt_name(nodes[i].node, nodes[i].name);
    }
    return nodes[c->layers - 1].node;
}

/* Of the case's line; for a case without, an update that changes nothing. */
static nnt_optimizer optimizer_of(const golden_case *c)
{
    const char *line = c->optimizer ? c->optimizer : "sgd lr=0", *schedule = attribute(line, "schedule");
    float lr = (float)number(line, "lr", 0);
    nnt_optimizer o = strncmp(line, "adamw", 5) == 0 ? nnt_adamw(lr) : *line == 'a' ? nnt_adam(lr) : nnt_sgd(lr);
    o.momentum       = (float)number(line, "momentum", (double)o.momentum);
    o.nesterov       = integer(line, "nesterov");
    o.weight_decay   = (float)number(line, "weight_decay", (double)o.weight_decay);
    o.beta1          = (float)number(line, "beta1", (double)o.beta1);
    o.beta2          = (float)number(line, "beta2", (double)o.beta2);
    o.eps            = (float)number(line, "eps", (double)o.eps);
    o.clip_norm      = (float)number(line, "clip_norm", 0);
    o.accumulate     = (int)number(line, "accumulate", o.accumulate);
    o.warmup_steps   = integer(line, "warmup_steps");
    o.warmup_start   = (float)number(line, "warmup_start", (double)o.warmup_start);
    o.schedule_steps = integer(line, "schedule_steps");
    o.gamma          = (float)number(line, "gamma", (double)o.gamma);
    o.lr_min         = (float)number(line, "lr_min", (double)o.lr_min);
    if (schedule) o.schedule = *schedule == 's' ? NNT_SCHEDULE_STEP : NNT_SCHEDULE_COSINE;
    return o;
}

/* ---- running ---- */

/* What a run of a case carries. */
typedef struct golden_run {
    const golden_case *c;
    nnt_net *net;
    int      extra;                         /* samples that the net is compiled for beyond those it gets */
    int      quiet;                         /* don't print deviations */
    int      deviations;
    double   worst[FIGURES];
} golden_run;

static float *to_floats(const values *v)
{
    float *to = v->count ? (float *)malloc((size_t)v->count * sizeof *to) : NULL;
    int i;
    for (i = 0; to && i < v->count; i++) to[i] = (float)v->at[i];
    return to;
}

/* A nonzero code becomes a deviation with the library's sentence. Returns whether all is well. */
static int worked(golden_run *r, nnt_result result, const char *doing)
{
    if (result == NNT_OK) return 1;
    r->deviations++;
    if (!r->quiet) printf("  %s: %s: %s: %s\n", r->c->name, doing, nnt_result_name(result), nnt_error(r->net));
    return 0;
}

/* The norm of got - want over the norm of want. */
static double relative_error(const float *got, const values *want)
{
    double difference = 0, norm = 0, d;
    int i;
    for (i = 0; i < want->count; i++) {
        d = (double)got[i] - want->at[i];
        difference += d * d;
        norm += want->at[i] * want->at[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* got NULL counts as a deviation too. */
static void compare(golden_run *r, const values *want, const float *got, int64_t count)
{
    int figure = !strncmp(want->name, "grad:", 5) ? GRADIENTS : !r->c->steps ? OUTPUTS :
                 !strncmp(want->name, "state:", 6) ? PARAMETERS : LOSSES;
    double error;
    if (!got || count != want->count) {
        r->deviations++;
        if (!got) count = 0;
        if (!r->quiet) printf("  %s: %s: %d values, not %d\n", r->c->name, want->name, (int)count, want->count);
        return;
    }
    error = relative_error(got, want);
    if (!(error <= r->worst[figure])) r->worst[figure] = error;
    if (error <= tolerance[figure]) return;
    r->deviations++;
    if (!r->quiet)
        printf("  %s: %s in a net for %d samples more: relative error %.3g, allowed %.0e; first value %.9g, not %.9g\n",
               r->c->name, want->name, r->extra, error, tolerance[figure], (double)got[0], want->at[0]);
}

static void compare_tensor(golden_run *r, const values *want, nnt_tensor *t)
{
    int64_t count = t ? nnt_tensor_size(t, -1) : 0;
    float *got = count > 0 ? (float *)malloc((size_t)count * sizeof *got) : NULL;
    if (got && worked(r, nnt_tensor_read(t, got), "reading")) compare(r, want, got, count);
    else compare(r, want, NULL, 0);
    free(got);
}

static const values *find_want(const golden_case *c, const char *name)
{
    int i;
    for (i = 0; i < c->wanted; i++) if (!strcmp(c->want[i].name, name)) return &c->want[i];
    return NULL;
}

/* Writes every parameter and running statistic that the case gives. */
static int write_given(golden_run *r)
{
    const golden_case *c = r->c;
    int i, good = nnt_param_count(r->net) == c->given;
    if (!good && !r->quiet) printf("  %s: %d parameters, not %d\n", c->name, nnt_param_count(r->net), c->given);
    for (i = 0; i < c->given && good; i++) {
        nnt_tensor *t = nnt_param(r->net, c->give[i].name);
        float *data = to_floats(&c->give[i]);
        good = t && data && nnt_tensor_size(t, -1) == c->give[i].count && nnt_tensor_write(t, data) == NNT_OK;
        if (!good && !r->quiet) printf("  %s: can't write %s: %s\n", c->name, c->give[i].name, nnt_error(r->net));
        free(data);
    }
    if (!good) r->deviations++;
    return good;
}

/* The loss's input while training is target + gradient * values / 2, by the gradient of mse; "probe" is a linear layer
   that adds 0 to it and whose weight [values of a sample][samples] has its gradient. */
static void compare_training_output(golden_run *r, const values *want)
{
    const values *target = &r->c->batch[0].targets;
    nnt_tensor *t = nnt_grad(r->net, "probe.weight");
    int64_t count = t ? nnt_tensor_size(t, -1) : 0;
    float *gradient = count > 0 ? (float *)malloc((size_t)count * 2 * sizeof *gradient) : NULL, *y;
    int samples = r->c->batch[0].count, i, j;
    if (!gradient || count != target->count || !worked(r, nnt_tensor_read(t, gradient), "reading")) count = 0;
    y = gradient ? gradient + count : NULL;
    for (i = 0; i < samples && count; i++)
        for (j = 0; j < (int)count / samples; j++) {
            double g = (double)gradient[j * samples + i];
            int at = i * ((int)count / samples) + j;
            y[at] = (float)(target->at[at] + g * (double)count / 2);
        }
    compare(r, want, y, count);
    free(gradient);
}

static void predict(golden_run *r, const nnt_batch *b, const values *want)
{
    float *y = (float *)malloc((size_t)want->count * sizeof *y);
    if (y && worked(r, nnt_predict(r->net, b->x, b->count, y), "predict")) compare(r, want, y, want->count);
    free(y);
}

/* One batch forward and backward. */
static void check_layer(golden_run *r, const nnt_batch *b)
{
    const values *output = find_want(r->c, "output");
    float loss = 0;
    int i, states = 0;
    if (output) predict(r, b, output);
    if (!worked(r, nnt_backward(r->net, b, &loss), "backward")) return;
    for (i = 0; i < r->c->wanted; i++) {
        const values *want = &r->c->want[i];
        if (!strcmp(want->name, "loss")) compare(r, want, &loss, 1);
        if (!strcmp(want->name, "training_output")) compare_training_output(r, want);
        if (!strncmp(want->name, "grad:", 5)) compare_tensor(r, want, nnt_grad(r->net, want->name + 5));
        if (!strncmp(want->name, "state:", 6)) states = 1;
    }
    /* A backward pass leaves running statistics alone, a step moves them. */
    if (!states || !worked(r, nnt_step(r->net, b, NULL), "step")) return;
    for (i = 0; i < r->c->wanted; i++)
        if (!strncmp(r->c->want[i].name, "state:", 6))
            compare_tensor(r, &r->c->want[i], nnt_param(r->net, r->c->want[i].name + 6));
}

/* Several steps, over the batches in turn. */
static void check_training(golden_run *r, const nnt_batch *b)
{
    float *losses = (float *)malloc((size_t)r->c->steps * sizeof *losses);
    int i, good = losses != NULL;
    for (i = 0; i < r->c->steps && good; i++)
        good = worked(r, nnt_step(r->net, &b[i % r->c->batches], &losses[i]), "step");
    for (i = 0; i < r->c->wanted && good; i++) {
        const values *want = &r->c->want[i];
        if (!strcmp(want->name, "loss")) compare(r, want, losses, r->c->steps);
        if (!strncmp(want->name, "state:", 6)) compare_tensor(r, want, nnt_param(r->net, want->name + 6));
    }
    free(losses);
}

/* A batch's numbers in the types that the library takes. */
typedef struct batch_data { float *x, *targets; int32_t *labels; } batch_data;

static batch_data make_batch(const sample_batch *from, nnt_batch *to)
{
    batch_data d;
    int i;
    d.x = to_floats(&from->x);
    d.targets = to_floats(&from->targets);
    d.labels = from->labels.count ? (int32_t *)malloc((size_t)from->labels.count * sizeof *d.labels) : NULL;
    for (i = 0; d.labels && i < from->labels.count; i++) d.labels[i] = (int32_t)from->labels.at[i];
    memset(to, 0, sizeof *to);
    to->x = d.x;
    to->targets = d.targets;
    to->labels = d.labels;
    to->count = from->count;
    return d;
}

/* Runs the case; r has the deviations and the largest errors. */
static void run_case(golden_run *r, const golden_case *c, int extra, int quiet)
{
    nnt_batch batch[MAX_BATCHES];
    batch_data data[MAX_BATCHES];
    nnt_compile_desc d;
    nnt_node loss;
    int i;
    memset(r, 0, sizeof *r);
    memset(&d, 0, sizeof d);
    r->c = c;
    r->extra = extra;
    r->quiet = quiet;
    r->net = nnt_new(NULL);
    for (i = 0; i < c->batches; i++) {
        data[i] = make_batch(&c->batch[i], &batch[i]);
        if (batch[i].count > d.batch) d.batch = batch[i].count;
    }
    d.batch += extra;
    d.threads = extra ? 2 : 1;
    d.optimizer = optimizer_of(c);
    loss = build(r->net, c);
    if (worked(r, nnt_compile(r->net, loss, d), "compile") && write_given(r)) {
        if (c->steps) check_training(r, batch);
        else check_layer(r, batch);
    }
    nnt_free(r->net);
    for (i = 0; i < c->batches; i++) { free(data[i].x); free(data[i].targets); free(data[i].labels); }
}

/* ---- the largest figures of each group of cases: the part of their names before the dot ---- */

typedef struct group { char name[MAX_NAME]; int cases; double worst[FIGURES], torch32[FIGURES]; } group;

static group *find_group(group *groups, const char *name)
{
    size_t n = strcspn(name, ".");
    int i;
    for (i = 0; i < MAX_GROUPS - 1 && groups[i].cases; i++)
        if (strlen(groups[i].name) == n && strncmp(groups[i].name, name, n) == 0) return &groups[i];
    memcpy(groups[i].name, name, n);
    groups[i].name[n] = 0;
    return &groups[i];
}
static void note(group *g, const golden_run *r)
{
    char key[MAX_NAME];
    int k;
    for (k = 0; k < FIGURES; k++) {
        double torch32;
        strcpy(key, "torch32_");
        strcat(key, figure_name[k]);
        torch32 = number(r->c->head, key, 0);
        if (!(r->worst[k] <= g->worst[k])) g->worst[k] = r->worst[k];
        if (torch32 > g->torch32[k]) g->torch32[k] = torch32;
    }
}
static void print_groups(const group *groups)
{
    int i, k;
    for (i = 0; i < MAX_GROUPS && groups[i].cases; i++) {
        const char *comma = "";
        printf("golden %s (%d): ", groups[i].name, groups[i].cases);
        for (k = 0; k < FIGURES; k++)
            if (groups[i].torch32[k] > 0) {
                printf("%s%s %.1e (PyTorch's float32: %.1e)", comma, figure_name[k], groups[i].worst[k],
                       groups[i].torch32[k]);
                comma = ", ";
            }
        printf("\n");
    }
}

static char *read_golden(const char *file)
{
    char path[512];
    char *text;
    snprintf(path, sizeof path, "%.400s/%.64s.txt", NNT_TEST_GOLDEN, file);
    text = read_text(path);
    CHECKF(text, "can't read %s (run from the tree's root, or set NNT_TEST_GOLDEN)", path);
    return text;
}

static void check_file(const char *file, int expected_cases)
{
    static const int extra[2] = { 0, 3 };
    char *text = read_golden(file), *at = text;
    group groups[MAX_GROUPS];
    golden_case c;
    golden_run r;
    int cases = 0, i;
    if (!text) return;
    memset(groups, 0, sizeof groups);
    while (read_case(&at, &c)) {
        group *g = find_group(groups, c.name);
        g->cases++;
        cases++;
        for (i = 0; i < 2; i++) {
            run_case(&r, &c, extra[i], 0);
            note(g, &r);
            CHECKF(r.deviations == 0, "%s/%s.txt: %s", NNT_TEST_GOLDEN, file, c.name);
        }
        free_case(&c);
    }
    print_groups(groups);
    CHECKF(cases == expected_cases, "%d cases in %s.txt", cases, file);
    free(text);
}

static void layers_conv2d(void)        { check_file("conv2d", 28); }
static void layers_linear(void)        { check_file("linear", 7); }
static void layers_activations(void)   { check_file("activations", 21); }
static void layers_pooling(void)       { check_file("pooling", 50); }
static void layers_batchnorm(void)     { check_file("batchnorm", 10); }
static void graphs_with_branches(void) { check_file("graph", 24); }
static void losses(void)               { check_file("losses", 18); }
static void trainings_of_ten_steps(void) { check_file("training", 20); }

/* ---- the tests' own test ---- */

/* Moves the largest value so that the error is three times what is allowed. */
static void corrupt(values *v, double allowed)
{
    double norm = 0;
    int i, largest = 0;
    for (i = 0; i < v->count; i++) {
        norm += v->at[i] * v->at[i];
        if (fabs(v->at[i]) > fabs(v->at[largest])) largest = i;
    }
    v->at[largest] += 3 * allowed * (norm > 0 ? sqrt(norm) : 1.0);
}

/* In the first case of each file each reference in turn gets one slightly wrong value, and is then one value short. */
static void a_wrong_reference_is_reported(void)
{
    static const char *const file[] = {
        "conv2d", "linear", "activations", "pooling", "batchnorm", "graph", "losses", "training"
    };
    size_t f;
    for (f = 0; f < sizeof file / sizeof *file; f++) {
        char *text = read_golden(file[f]), *at = text;
        golden_case c;
        golden_run r;
        int i;
        if (!text) return;
        if (read_case(&at, &c)) {
            for (i = 0; i < c.wanted; i++) {
                values *want = &c.want[i];
                int figure = !strncmp(want->name, "grad:", 5) ? GRADIENTS : c.steps ? LOSSES : OUTPUTS, k;
                double *right = (double *)malloc((size_t)want->count * sizeof *right);
                CHECK(right);
                if (!right) break;
                memcpy(right, want->at, (size_t)want->count * sizeof *right);
                corrupt(want, tolerance[figure]);
                run_case(&r, &c, 0, 1);
                CHECKF(r.deviations == 1, "%s with a wrong %s: %d deviations", c.name, want->name, r.deviations);
                for (k = 0; k < want->count; k++) want->at[k] = right[k];
                if (strcmp(want->name, "output") && strcmp(want->name, "loss")) {
                    want->count--;
                    run_case(&r, &c, 0, 1);
                    CHECKF(r.deviations == 1, "%s with a short %s: %d deviations", c.name, want->name, r.deviations);
                    want->count++;
                }
                free(right);
            }
            free_case(&c);
        }
        free(text);
    }
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(layers_conv2d);
    TEST(layers_linear);
    TEST(layers_activations);
    TEST(layers_pooling);
    TEST(layers_batchnorm);
    TEST(graphs_with_branches);
    TEST(losses);
    TEST(trainings_of_ten_steps);
    TEST(a_wrong_reference_is_reported);
    return TEST_END();
}
