/* fashion_mnist.c - trains a convolutional net on 60,000 pictures of clothes and tests it on 10,000 others.
   What it shows: the whole way in one file, from .gz files to a trained, saved and reloaded net. Ctrl-C finishes the step
   and writes a snapshot (FILE.snapshot); with --resume the run goes on from it, and ends with the same bits.
   Build: cc -O2 examples/fashion_mnist.c -o fashion_mnist -lm -pthread      (stb_image, for inflate: -I where it is)
   Data:  Debian's package dataset-fashion-mnist, or a folder with its four .gz files.
   Run:   ./fashion_mnist [folder] [--epochs 5] [--threads 0] [--batch 64] [--lr 0.001] [--seed 1] [--out FILE]
          [--device cpu] [--resume]
   On a GPU: nvcc -O3 examples/fashion_mnist.c nntrain_cuda.cu -lcublas -lcublasLt -o fashion_mnist
          ./fashion_mnist --device cuda
   Prints: test accuracy 92.48 % after 5 epochs, 93.32 % with --epochs 15; about 35 s an epoch on two cores of a Xeon with
   AVX-512 that do nothing else. */
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG                                   /* its zlib is all that this program wants */
#if defined(__has_include)
#  if __has_include(<stb/stb_image.h>)
#    include <stb/stb_image.h>                          /* where Debian puts it */
#  else
#    include "stb_image.h"
#  endif
#else
#  include "stb_image.h"
#endif
#define NNTRAIN_IMPLEMENTATION
#include "../nntrain.h"
#include <signal.h>
#if !defined(_WIN32)
#  include <sys/resource.h>
#endif

enum { CLASSES = 10, PATH = 1024 };

static const char *const class_name[CLASSES] = {
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"
};

typedef struct options {
    const char *folder, *out, *device;
    char snapshot[PATH], report[PATH];
    int epochs, threads, batch, resume;
    float lr;
    unsigned seed;
} options;

/* conv-bn-relu-pool three times, then two linear layers: 242 thousand weights. */
static nnt_node fashion_net(nnt_net *net)
{
    nnt_node x = nnt_input(net, 1, 28, 28);
    x = nnt_relu(nnt_name(nnt_batchnorm(nnt_name(nnt_conv2d(x, 32, 3, 1, 1), "conv1")), "bn1"));
    x = nnt_maxpool(x, 2, 2, 0);
    x = nnt_relu(nnt_name(nnt_batchnorm(nnt_name(nnt_conv2d(x, 64, 3, 1, 1), "conv2")), "bn2"));
    x = nnt_maxpool(x, 2, 2, 0);
    x = nnt_relu(nnt_name(nnt_batchnorm(nnt_name(nnt_conv2d(x, 128, 3, 1, 1), "conv3")), "bn3"));
    x = nnt_dropout(nnt_maxpool(x, 2, 2, 0), 0.25f);
    x = nnt_dropout(nnt_relu(nnt_name(nnt_linear(x, 128), "fc1")), 0.25f);
    x = nnt_name(nnt_linear(x, CLASSES), "fc2");
    return nnt_cross_entropy(x);
}

static nnt_dataset *open_set(const char *folder, const char *prefix)
{
    char images[PATH], labels[PATH];
    snprintf(images, sizeof images, "%s/%s-images-idx3-ubyte.gz", folder, prefix);
    snprintf(labels, sizeof labels, "%s/%s-labels-idx1-ubyte.gz", folder, prefix);
    return nnt_dataset_idx(images, labels, NULL);
}

static nnt_loader *open_loader(nnt_dataset *data, const options *o, int shuffle)
{
    nnt_loader_desc d = {0};
    d.batch = o->batch;
    d.shuffle = shuffle;
    d.seed = o->seed;
    return nnt_loader_new(data, d, NULL);
}

static double peak_mib(void)
{
#if defined(_WIN32)
    return 0;
#else
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use)) return 0;
#  if defined(__APPLE__)
    return (double)use.ru_maxrss / (1024.0 * 1024.0);   /* bytes there */
#  else
    return (double)use.ru_maxrss / 1024.0;
#  endif
#endif
}

static void print_confusion(const int64_t *count)
{
    int row, col;
    printf("\nrows: what it is; columns: what the net says; last: share of the row that is right\n%-9s", "");
    for (col = 0; col < CLASSES; col++) printf("%9s", class_name[col]);
    printf("\n");
    for (row = 0; row < CLASSES; row++) {
        int64_t all = 0;
        printf("%-9s", class_name[row]);
        for (col = 0; col < CLASSES; col++) {
            printf("%9ld", (long)count[row * CLASSES + col]);
            all += count[row * CLASSES + col];
        }
        printf("%8.1f %%\n", all ? 100.0 * (double)count[row * CLASSES + row] / (double)all : 0.0);
    }
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL);                            /* the second one ends the program at once */
}
/* Between two steps is where a run can stop. */
static int progress_until_interrupted(void *user, nnt_net *net, const nnt_progress_info *info)
{
    return nnt_progress(user, net, info) || interrupted;
}

static nnt_result train(nnt_net *net, const options *o, nnt_loader *train_loader)
{
    static char summary[4096];
    nnt_compile_desc build = {0};
    nnt_fit_desc fit = {0};
    nnt_node loss = fashion_net(net);
    nnt_result r;

    build.batch = o->batch;
    build.threads = o->threads;
    build.device = o->device;
    build.seed = o->seed;
    build.optimizer = nnt_adam(o->lr);
    build.optimizer.schedule = NNT_SCHEDULE_COSINE;
    build.optimizer.schedule_steps = nnt_loader_batches(train_loader) * o->epochs;
    fit.epochs = o->epochs;
    fit.callback = progress_until_interrupted;
    fit.checkpoint.path = o->snapshot;
    fit.checkpoint.resume = o->resume;
    signal(SIGINT, on_interrupt);

    r = nnt_compile(net, loss, build);
    if (r) return r;
    nnt_summary(net, summary, sizeof summary);
    fputs(summary, stdout);
    fflush(stdout);
    return nnt_fit(net, train_loader, fit);
}

/* What counts about a saved file: that a net which never trained gets the same answers from it. */
static int reload_and_compare(const options *o, nnt_loader *test_loader, const nnt_metrics *trained)
{
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc build = {0};
    nnt_metrics again = {0};
    nnt_result r;
    int same = 0;

    build.batch = o->batch;
    build.threads = o->threads;
    build.device = o->device;
    r = nnt_compile(net, fashion_net(net), build);
    if (!r) r = nnt_load(net, o->out);
    if (!r) r = nnt_evaluate(net, test_loader, &again);
    if (r) fprintf(stderr, "fashion_mnist: %s\n", nnt_error(net));
    else same = again.accuracy == trained->accuracy && again.loss == trained->loss;
    if (!r && !same)
        fprintf(stderr, "fashion_mnist: %s gives accuracy %.2f %%, loss %.6f; the trained net %.2f %%, %.6f\n", o->out,
                100 * again.accuracy, again.loss, 100 * trained->accuracy, trained->loss);
    nnt_free(net);
    return same;
}

static int run(const options *o, nnt_net *net, nnt_loader *train_loader, nnt_loader *test_loader)
{
    int64_t confusion[CLASSES * CLASSES];
    nnt_metrics m = {0};
    nnt_report_desc page = {0};
    const nnt_progress_info *history;
    int epochs;

    m.confusion = confusion;
    m.confusion_classes = CLASSES;
    if (train(net, o, train_loader) == NNT_ERR_STOPPED) {
        fprintf(stderr, "stopped after step %ld; --resume goes on from %s\n", (long)nnt_steps(net), o->snapshot);
        return 0;
    }
    if (nnt_error_code(net) || nnt_evaluate(net, test_loader, &m) || nnt_save(net, o->out)) {
        fprintf(stderr, "fashion_mnist: %s\n", nnt_error(net));
        return 0;
    }
    history = nnt_history(net, &epochs);
    print_confusion(confusion);
    printf("\ntest accuracy  %.2f %% of %ld pictures (loss %.4f, top-5 %.2f %%)\n", 100 * m.accuracy, (long)m.samples, m.loss,
           100 * m.top5);
    if (epochs > 0) printf("training time  %.1f s for %d epochs\n", history[epochs - 1].seconds, epochs);
    if (!reload_and_compare(o, test_loader, &m)) return 0;
    printf("peak memory    %.0f MiB\n", peak_mib());
    page.title = "Fashion-MNIST";
    page.data = test_loader;
    page.classes = class_name;
    if (nnt_report_html(net, o->report, page)) {
        fprintf(stderr, "fashion_mnist: %s\n", nnt_error(net));
        return 0;
    }
    printf("report         %s (for a browser)\n", o->report);
    printf("saved model    %s (reloaded into a fresh net: same accuracy)\n", o->out);
    return 1;
}

static int parse(int argc, char **argv, options *o)
{
    int i;
    for (i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (argv[i][0] != '-') { o->folder = argv[i]; continue; }
        if (!strcmp(argv[i], "--resume")) { o->resume = 1; continue; }
        if (!value) return 0;
        if (!strcmp(argv[i], "--epochs")) o->epochs = atoi(value);
        else if (!strcmp(argv[i], "--threads")) o->threads = atoi(value);
        else if (!strcmp(argv[i], "--batch")) o->batch = atoi(value);
        else if (!strcmp(argv[i], "--lr")) o->lr = (float)atof(value);
        else if (!strcmp(argv[i], "--seed")) o->seed = (unsigned)atoi(value);
        else if (!strcmp(argv[i], "--out")) o->out = value;
        else if (!strcmp(argv[i], "--device")) o->device = value;
        else return 0;
        i++;
    }
    snprintf(o->snapshot, sizeof o->snapshot, "%s.snapshot", o->out);
    snprintf(o->report, sizeof o->report, "%s.html", o->out);
    return o->epochs > 0 && o->batch > 0 && strlen(o->folder) < PATH - 40 && strlen(o->out) < PATH - 40;
}

int main(int argc, char **argv)
{
    options o = { "/usr/share/datasets/fashion-mnist", "fashion_mnist.safetensors", "cpu", "", "", 5, 0, 64, 0, 1e-3f, 1 };
    nnt_dataset *train_set, *test_set;
    nnt_loader *train_loader, *test_loader;
    nnt_net *net;
    int ok = 0;

    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: fashion_mnist [folder] [--epochs N] [--threads N] [--batch N] [--lr X] [--seed N] [--out FILE]\n"
                        "       [--device cpu|cuda] [--resume]\n");
        return 2;
    }
    train_set = open_set(o.folder, "train");
    test_set = open_set(o.folder, "t10k");
    train_loader = open_loader(train_set, &o, 1);
    test_loader = open_loader(test_set, &o, 0);
    net = nnt_new(NULL);

    if (nnt_loader_error_code(train_loader)) fprintf(stderr, "fashion_mnist: %s\n", nnt_loader_error(train_loader));
    else if (nnt_loader_error_code(test_loader)) fprintf(stderr, "fashion_mnist: %s\n", nnt_loader_error(test_loader));
    else ok = run(&o, net, train_loader, test_loader);

    nnt_free(net);
    nnt_loader_free(train_loader);
    nnt_loader_free(test_loader);
    nnt_dataset_free(train_set);
    nnt_dataset_free(test_set);
    return ok ? 0 : 1;
}
