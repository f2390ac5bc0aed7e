/* nntrain.h - v0.1.0 - trains convolutional networks on the CPU - license at the end
@@DOC@@
*/
#ifndef NNTRAIN_H
#define NNTRAIN_H

#include <stddef.h>
#include <stdint.h>

#define NNT_VERSION_MAJOR 0
#define NNT_VERSION_MINOR 1
#define NNT_VERSION_PATCH 0

#ifndef NNT_API
#  ifdef NNT_STATIC
#    define NNT_API static
#  elif defined(__cplusplus)
#    define NNT_API extern "C"
#  else
#    define NNT_API extern
#  endif
#endif

/* ============================================================================
   Results, objects
   ============================================================================ */

/* What every function that can fail returns. The sentence that goes with it: nnt_error, nnt_dataset_error,
   nnt_loader_error. */
typedef enum nnt_result {
    NNT_OK = 0,
    NNT_ERR_ARGUMENT,       /* an argument is out of its range, or NULL where an object is needed */
    NNT_ERR_STATE,          /* the call does not fit what was called before: two compiles, step before compile */
    NNT_ERR_SHAPE,          /* shapes don't fit each other */
    NNT_ERR_MEMORY,         /* the allocator returned NULL, or a size does not fit size_t */
    NNT_ERR_FILE,           /* a file is missing, unreadable or can't be written */
    NNT_ERR_FORMAT,         /* a file's content is not what its name or header claims */
    NNT_ERR_DATA,           /* a label out of range, a value that is not a number */
    NNT_ERR_DEVICE,         /* unknown device, device compiled out, or a device that failed */
    NNT_ERR_UNSUPPORTED,    /* understood, but this build or device can't do it */
    NNT_ERR_NOT_FINITE,     /* the loss became infinite or not a number */
    NNT_ERR_STOPPED         /* a callback asked to stop */
} nnt_result;

/* The code's name, as "NNT_ERR_SHAPE". Never NULL. */
NNT_API const char *nnt_result_name(nnt_result r);

typedef struct nnt_net     nnt_net;         /* graph, weights, plan, optimizer state, last error; one thread at a time */
typedef struct nnt_tensor  nnt_tensor;      /* a shaped f32 array on a device; belongs to a net */
typedef struct nnt_dataset nnt_dataset;     /* numbered samples; may be shared by loaders and threads */
typedef struct nnt_loader  nnt_loader;      /* makes batches of a dataset, on worker threads */

/* A value in a net's graph. id 0 is invalid: what an erroneous call returns, and what later calls pass through. */
typedef struct nnt_node { nnt_net *net; int id; } nnt_node;

/* Where memory comes from. alloc_fn returns `bytes` bytes aligned to `align` (a power of two, 16 to 4096), or NULL;
   free_fn gets the same number of bytes back. Both may be called from the loader's threads. */
typedef struct nnt_allocator {
    void *(*alloc_fn)(void *user, size_t bytes, size_t align);
    void  (*free_fn)(void *user, void *p, size_t bytes);
    void  *user;
} nnt_allocator;

/* A net without layers, or NULL when memory is out. allocator NULL: malloc. The struct is copied. */
NNT_API nnt_net *nnt_new(const nnt_allocator *allocator);

/* Gives everything back, tensors included. NULL is fine. */
NNT_API void nnt_free(nnt_net *net);

/* The last error's sentence: where, what was given, what was needed, what to do. "" when there was none. Valid until
   the next call with this net. A NULL net answers "out of memory", since that is how a NULL net comes about. */
NNT_API const char *nnt_error(const nnt_net *net);

/* The last error's code: after building a graph, whether it has an error, without compiling it. */
NNT_API nnt_result nnt_error_code(const nnt_net *net);

/* ============================================================================
   Graph: inputs and layers
   Builders check shapes and record; they take no memory for weights. The first error stays with the net, later
   builders pass it through, nnt_compile returns it. Shapes are channels x height x width; the batch is left out.
   ============================================================================ */

/* The net's input, exactly one a net. Data for it is NCHW. A vector of n values is nnt_input(net, n, 1, 1). */
NNT_API nnt_node nnt_input(nnt_net *net, int channels, int height, int width);

/* Gives a layer the name under which its parameters are saved ("conv1" -> "conv1.weight", "conv1.bias") and errors
   speak of it. Returns x. Without a name a layer is called by its kind and a number: conv2d1, linear2. */
NNT_API nnt_node nnt_name(nnt_node x, const char *name);

/* Writes channels, height, width. NNT_ERR_ARGUMENT for an invalid node. */
NNT_API nnt_result nnt_shape(nnt_node x, int shape[3]);

/* How weights start. The usual is PyTorch's own default for conv2d and linear: uniform within
   +-1/sqrt(fan_in) for weight and bias, which is kaiming uniform with a = sqrt(5). */
enum {
    NNT_INIT_DEFAULT = 0,
    NNT_INIT_KAIMING_UNIFORM,   /* uniform within +-sqrt(6 / fan_in); bias 0. He et al. 2015, arXiv 1502.01852 */
    NNT_INIT_KAIMING_NORMAL,    /* normal, deviation sqrt(2 / fan_in); bias 0. The same paper */
    NNT_INIT_XAVIER_UNIFORM,    /* uniform within +-sqrt(6 / (fan_in + fan_out)); bias 0. Glorot and Bengio 2010 */
    NNT_INIT_XAVIER_NORMAL,     /* normal, deviation sqrt(2 / (fan_in + fan_out)); bias 0. The same paper */
    NNT_INIT_ZERO               /* weight 0, bias 0 */
};

/* 2-D convolution (cross-correlation), weights [filters][channels / groups][kernel_h][kernel_w] as PyTorch's.
   Output size: floor((size + 2 pad - dilation (kernel - 1) - 1) / stride) + 1. */
typedef struct nnt_conv_desc {
    int filters;                    /* output channels; required */
    int kernel;                     /* height, and width unless kernel_w is given; required */
    int kernel_w;
    int stride, stride_w;           /* 0: 1; width 0: as height */
    int pad, pad_w;                 /* zeros on both sides. pad_w 0: as height; NNT_NO_PAD: none */
    int dilation, dilation_w;       /* 0: 1 */
    int groups;                     /* 0: 1; both channels and filters must be multiples of it */
    int no_bias;
    int init;                       /* NNT_INIT_... */
} nnt_conv_desc;
#define NNT_NO_PAD (-1)
NNT_API nnt_node nnt_conv2d(nnt_node x, int filters, int kernel, int stride, int pad);
NNT_API nnt_node nnt_conv2d_ex(nnt_node x, nnt_conv_desc d);

/* Fully connected: flattens x, weights [features][inputs] as PyTorch's. Output features x 1 x 1. */
typedef struct nnt_linear_desc {
    int features;                   /* required */
    int no_bias;
    int init;                       /* NNT_INIT_... */
} nnt_linear_desc;
NNT_API nnt_node nnt_linear(nnt_node x, int features);
NNT_API nnt_node nnt_linear_ex(nnt_node x, nnt_linear_desc d);

/* (c, h, w) -> (c h w, 1, 1). Costs nothing. */
NNT_API nnt_node nnt_flatten(nnt_node x);

NNT_API nnt_node nnt_relu(nnt_node x);                         /* max(x, 0) */
NNT_API nnt_node nnt_leaky_relu(nnt_node x, float slope);      /* x > 0 ? x : slope x; slope at least 0 (usual 0.01) */
NNT_API nnt_node nnt_sigmoid(nnt_node x);
NNT_API nnt_node nnt_tanh(nnt_node x);
NNT_API nnt_node nnt_gelu(nnt_node x);                         /* x Phi(x), exact form (erf). arXiv 1606.08415 */
NNT_API nnt_node nnt_softmax(nnt_node x);                      /* over channels, for each position */

/* Pooling. Max pooling pads with minus infinity; of equal values the first in row order gets the gradient.
   ceil_mode: a last window may start inside the input or its left padding but not in the right padding, as PyTorch. */
typedef struct nnt_pool_desc {
    int kernel, kernel_w;           /* required; width 0: as height */
    int stride, stride_w;           /* 0: as kernel */
    int pad, pad_w;                 /* at most half of the kernel. pad_w 0: as height; NNT_NO_PAD: none */
    int ceil_mode;
    int exclude_pad;                /* avgpool: divide by the values inside the input only (count_include_pad = False) */
} nnt_pool_desc;
NNT_API nnt_node nnt_maxpool(nnt_node x, int kernel, int stride, int pad);
NNT_API nnt_node nnt_maxpool_ex(nnt_node x, nnt_pool_desc d);
NNT_API nnt_node nnt_avgpool(nnt_node x, int kernel, int stride, int pad);
NNT_API nnt_node nnt_avgpool_ex(nnt_node x, nnt_pool_desc d);
/* Means over windows [floor(i H / height), ceil((i+1) H / height)), as PyTorch's AdaptiveAvgPool2d. */
NNT_API nnt_node nnt_adaptive_avgpool(nnt_node x, int height, int width);
NNT_API nnt_node nnt_global_avgpool(nnt_node x);               /* mean of each channel: c x 1 x 1 */

/* Batch normalisation over batch, height and width (arXiv 1502.03167). Training uses the batch's mean and biased
   variance and moves the running ones: r = (1 - momentum) r + momentum batch, with the unbiased variance; evaluation
   uses the running ones. Parameters name.weight (starts 1), name.bias (0), name.running_mean (0), name.running_var (1).
   Training on a single value per channel is an error. */
typedef struct nnt_batchnorm_desc { float momentum, eps; int no_affine; } nnt_batchnorm_desc;
NNT_API nnt_batchnorm_desc nnt_batchnorm_defaults(void);       /* momentum 0.1, eps 1e-5 */
NNT_API nnt_node nnt_batchnorm(nnt_node x);
NNT_API nnt_node nnt_batchnorm_ex(nnt_node x, nnt_batchnorm_desc d);

/* Training only: each value is 0 with probability p, else scaled by 1 / (1 - p). 0 <= p < 1. */
NNT_API nnt_node nnt_dropout(nnt_node x, float p);

/* Training only: noise, made where the net runs. Not clamped unless asked for. */
enum {
    NNT_NOISE_GAUSSIAN = 0,         /* x + amount n, n standard normal */
    NNT_NOISE_UNIFORM,              /* x + amount u, u uniform in [-1, 1) */
    NNT_NOISE_SALT_PEPPER           /* with probability amount the value becomes low or high, each as likely */
};
typedef struct nnt_noise_desc {
    int   kind;                     /* NNT_NOISE_... */
    float amount;                   /* at least 0; a probability for salt and pepper */
    float low, high;                /* salt and pepper's values and clamp's bounds; both 0: 0 and 1 */
    int   clamp;                    /* results to [low, high] */
} nnt_noise_desc;
NNT_API nnt_node nnt_noise(nnt_node x, float deviation);       /* gaussian */
NNT_API nnt_node nnt_noise_ex(nnt_node x, nnt_noise_desc d);

NNT_API nnt_node nnt_add(nnt_node a, nnt_node b);              /* element by element; shapes equal */
NNT_API nnt_node nnt_concat(nnt_node a, nnt_node b);           /* along channels; height and width equal */
NNT_API nnt_node nnt_concat_n(const nnt_node *x, int count);   /* two or more, the same */

/* Losses: what nnt_compile trains. The value is a mean over the batch's samples. */
typedef struct nnt_cross_entropy_desc {
    float label_smoothing;          /* in [0, 1): target (1 - s) one_hot + s / classes */
    const float *class_weights;     /* one a class, at least 0, copied; NULL: all 1. The mean is then a weighted one */
    int   class_weight_count;       /* has to be the number of classes when class_weights is given */
    int   use_ignore_index;         /* samples with this label count for nothing; */
    int   ignore_index;             /*   a batch of only such samples has loss 0 and gradient 0 (PyTorch: NaN) */
} nnt_cross_entropy_desc;
NNT_API nnt_node nnt_cross_entropy(nnt_node logits);           /* logits: classes x 1 x 1; targets are labels */
NNT_API nnt_node nnt_cross_entropy_ex(nnt_node logits, nnt_cross_entropy_desc d);
NNT_API nnt_node nnt_mse(nnt_node x);                          /* mean of squares over samples and values */

/* ============================================================================
   Optimizers and schedules
   ============================================================================ */

enum { NNT_OPTIMIZER_NONE = 0, NNT_OPTIMIZER_SGD, NNT_OPTIMIZER_ADAM, NNT_OPTIMIZER_ADAMW };
enum { NNT_SCHEDULE_CONSTANT = 0, NNT_SCHEDULE_STEP, NNT_SCHEDULE_COSINE };

/* Made by the constructors below, which fill every field; change what you like afterwards (zero then means zero).
   Updates equal torch.optim's: SGD v = momentum v + g, w -= lr v (nesterov: g + momentum v), the first v being g;
   Adam (arXiv 1412.6980) with bias correction, eps added to the corrected root; weight_decay joins the gradient in SGD
   and Adam, and shrinks the weight by lr weight_decay in AdamW (arXiv 1711.05101). */
typedef struct nnt_optimizer {
    int   kind;                     /* NNT_OPTIMIZER_... */
    float lr;
    float momentum;                 /* SGD */
    int   nesterov;                 /* SGD */
    float weight_decay;
    float beta1, beta2, eps;        /* Adam, AdamW */
    float clip_norm;                /* 0: none; else gradients are scaled so that the norm over all is at most this */
    int   accumulate;               /* batches an update: the gradient is that of their samples taken as one batch */
    /* The learning rate of update s (from 0) is nnt_learning_rate(&o, s): first a linear warm-up from
       lr * warmup_start over warmup_steps, then the schedule on s - warmup_steps. */
    int     schedule;               /* NNT_SCHEDULE_... */
    int64_t warmup_steps;
    float   warmup_start;           /* factor at step 0 */
    int64_t schedule_steps;         /* STEP: lr is multiplied by gamma each so many; COSINE: length of the half wave */
    float   gamma;                  /* STEP */
    float   lr_min;                 /* COSINE: where it ends and stays. SGDR without restarts, arXiv 1608.03983 */
} nnt_optimizer;

NNT_API nnt_optimizer nnt_sgd(float lr);       /* momentum 0, weight_decay 0 */
NNT_API nnt_optimizer nnt_adam(float lr);      /* betas 0.9, 0.999; eps 1e-8; weight_decay 0 */
NNT_API nnt_optimizer nnt_adamw(float lr);     /* as adam; weight_decay 0.01 */
NNT_API float nnt_learning_rate(const nnt_optimizer *o, int64_t step);

/* ============================================================================
   Compile, plan, parameters
   ============================================================================ */

typedef struct nnt_compile_desc {
    int           batch;            /* samples a step, at most; required */
    const char   *device;           /* NULL: "cpu". Others as registered: "null" counts and computes nothing */
    int           threads;          /* 0: one for each core that the process may use */
    uint64_t      seed;             /* of weights, dropout, noise. 0 is a seed as any other */
    nnt_optimizer optimizer;        /* zeroed: none, for prediction only */
    size_t        memory_limit;     /* bytes of the device; 0: none. Over it compile fails and says what would fit */
} nnt_compile_desc;

/* What a compiled net takes on its device, in bytes. total is what is allocated, in one piece. */
typedef struct nnt_memory {
    size_t params;                  /* weights and running statistics */
    size_t grads, optimizer;        /* gradients; momentum or Adam's two moments */
    size_t fixed;                   /* params + grads + optimizer: does not depend on the batch */
    size_t activations, gradients, workspace;   /* at the step where the sum is largest */
    size_t peak;                    /* largest sum of bytes alive at one time, fixed part left out */
    size_t arena;                   /* what packing them takes: peak or a little more */
    size_t total;                   /* fixed + arena */
    int    ops_train, ops_predict;  /* lengths of the two lists of resolved ops */
    int    peak_op;                 /* index in the training list of the op at the peak */
} nnt_memory;

/* Figures of nnt_compile without taking any memory on the device. */
NNT_API nnt_result nnt_plan(nnt_net *net, nnt_node loss, nnt_compile_desc desc, nnt_memory *out);

/* Reports the graph's first error, or lowers the graph, plans and takes the memory, and initialises weights. Once a
   net. `loss` is a loss node, or any other node for a net that only predicts. */
NNT_API nnt_result nnt_compile(nnt_net *net, nnt_node loss, nnt_compile_desc desc);

/* Parameters and running statistics in the order of the graph. name and shape may be NULL. */
NNT_API int        nnt_param_count(const nnt_net *net);
NNT_API const char *nnt_param_name(const nnt_net *net, int index);

/* Views of a parameter and of its gradient: writing to them writes to the net. NULL and an error when there is no such
   name, before compile, or (gradient) for running statistics and nets that only predict. */
NNT_API nnt_tensor *nnt_param(nnt_net *net, const char *name);
NNT_API nnt_tensor *nnt_grad(nnt_net *net, const char *name);

/* A table of layers, output shapes, parameters and FLOPs a sample (a multiplication and an addition are two). Writes at
   most cap bytes with the final 0 and returns the length that the whole needs without it, as snprintf. */
NNT_API size_t nnt_summary(const nnt_net *net, char *text, size_t cap);

/* ============================================================================
   Data
   Constructors return an object that may hold an error instead of data; nnt_dataset_error tells, and everything that
   is given such an object returns its code and sentence. So only the last call has to be checked. NULL (memory out)
   is passed through too.
   ============================================================================ */

/* One sample for the loader: x has channels*height*width floats to fill, label and target are optional. Called from
   several threads at once. Return NNT_OK, or a code after writing a sentence of at most cap bytes to why. */
typedef nnt_result (*nnt_read_fn)(void *user, int64_t index, float *x, int32_t *label, float *target,
                                  char *why, size_t cap);

typedef struct nnt_reader_desc {
    int64_t     count;              /* samples; required */
    int         channels, height, width;        /* of one sample; required */
    int         target_size;        /* floats of a target; 0: none */
    int         classes;            /* labels are 0 .. classes-1; 0: no labels */
    nnt_read_fn read_fn;            /* required */
    void       *user;
} nnt_reader_desc;

typedef struct nnt_arrays_desc {
    int64_t        count;           /* samples; required */
    int            channels, height, width;     /* of one sample; required */
    const float   *x;               /* count*channels*height*width values, NCHW; or */
    const uint8_t *x_u8;            /*   the same as bytes, given to the net as value / 255 */
    const int32_t *labels;          /* count, or NULL */
    const float   *targets;         /* count*target_size, or NULL */
    int            target_size;
    int            classes;         /* 0: largest label + 1 */
} nnt_arrays_desc;

NNT_API nnt_dataset *nnt_dataset_arrays(nnt_arrays_desc d, const nnt_allocator *a);    /* arrays are not copied */
NNT_API nnt_dataset *nnt_dataset_reader(nnt_reader_desc d, const nnt_allocator *a);
/* IDX files as MNIST and Fashion-MNIST come: images of unsigned bytes (n, h, w) or (n, c, h, w), labels of unsigned
   bytes (n). A name that ends in .gz is inflated by stb_image, which has to be included before the implementation.
   Values reach the net as value / 255. labels NULL: none. */
NNT_API nnt_dataset *nnt_dataset_idx(const char *images, const char *labels, const nnt_allocator *a);
NNT_API void         nnt_dataset_free(nnt_dataset *d);                 /* after its loaders. NULL is fine */
NNT_API const char  *nnt_dataset_error(const nnt_dataset *d);
NNT_API nnt_result   nnt_dataset_error_code(const nnt_dataset *d);
NNT_API int64_t      nnt_dataset_count(const nnt_dataset *d);
NNT_API int          nnt_dataset_classes(const nnt_dataset *d);
NNT_API nnt_result   nnt_dataset_shape(const nnt_dataset *d, int shape[3]);

/* A batch: what nnt_step takes and nnt_loader_next gives. */
typedef struct nnt_batch {
    const float   *x;               /* count samples, NCHW */
    const int32_t *labels;          /* count; for cross_entropy */
    const float   *targets;         /* count times the loss's input size; for mse */
    int            count;           /* samples; fewer than the net's batch is fine */
    const int64_t *indices;         /* numbers in the dataset, from a loader; else NULL */
} nnt_batch;

typedef struct nnt_loader_desc {
    int      batch;                 /* samples a batch; required */
    int      shuffle;               /* a new order each epoch, from seed and epoch alone */
    int      drop_last;             /* leave out a last batch that is not full */
    uint64_t seed;
    int      workers;               /* threads that read ahead; 0: one; NNT_NO_WORKERS: in the caller's thread */
    int      prefetch;              /* finished batches kept at most; 0: 2 more than workers */
} nnt_loader_desc;
#define NNT_NO_WORKERS (-1)

NNT_API nnt_loader  *nnt_loader_new(nnt_dataset *d, nnt_loader_desc desc, const nnt_allocator *a);
NNT_API void         nnt_loader_free(nnt_loader *l);                   /* stops its threads. NULL is fine */
NNT_API const char  *nnt_loader_error(const nnt_loader *l);
NNT_API nnt_result   nnt_loader_error_code(const nnt_loader *l);
NNT_API nnt_dataset *nnt_loader_dataset(const nnt_loader *l);
NNT_API int64_t      nnt_loader_batches(const nnt_loader *l);          /* a whole epoch */
/* The next batch, valid until the next call; count 0: the epoch is over, and the call after that begins the next one. */
NNT_API nnt_result   nnt_loader_next(nnt_loader *l, nnt_batch *out);
NNT_API double       nnt_loader_wait_seconds(const nnt_loader *l);     /* spent waiting in nnt_loader_next so far */
NNT_API int64_t      nnt_loader_epoch(const nnt_loader *l);            /* of the next batch, from 0 */
NNT_API nnt_result   nnt_loader_rewind(nnt_loader *l, int64_t epoch);  /* the next batch is the first of that epoch */

/* ============================================================================
   Training
   ============================================================================ */

/* Forward, backward and, each optimizer.accumulate calls, the update. loss may be NULL. NNT_ERR_NOT_FINITE when the
   loss is not finite: nothing was updated then. */
NNT_API nnt_result nnt_step(nnt_net *net, const nnt_batch *batch, float *loss);

/* Applies gradients that wait for more batches (accumulate); without such it does nothing. */
NNT_API nnt_result nnt_update(nnt_net *net);

/* Forward and backward without an update, to look at gradients (nnt_grad). */
NNT_API nnt_result nnt_backward(nnt_net *net, const nnt_batch *batch, float *loss);

/* count samples, NCHW, as many as you like; y gets count rows of what the loss was given: for cross_entropy logits.
   Nothing random takes place, batch norm uses its running statistics. */
NNT_API nnt_result nnt_predict(nnt_net *net, const float *x, int64_t count, float *y);

typedef struct nnt_metrics {
    double  loss;                   /* mean over samples */
    double  accuracy, top5;         /* shares of samples, cross_entropy only */
    int64_t samples;                /* those that count: not the ignored ones */
    int64_t *confusion;             /* if given: classes*classes counts, [label][prediction], set to 0 first */
    int      confusion_classes;     /* classes that `confusion` has room for; must be the net's */
} nnt_metrics;
/* One epoch of the loader in evaluation form. Set confusion and confusion_classes (or zero them) before. */
NNT_API nnt_result nnt_evaluate(nnt_net *net, nnt_loader *loader, nnt_metrics *out);

/* What callbacks are told. */
enum { NNT_EVENT_STEP = 1, NNT_EVENT_EPOCH = 2 };
typedef struct nnt_progress_info {
    int     event;                  /* NNT_EVENT_STEP after each step, _EPOCH after each epoch and its validation */
    int     epoch, epochs;          /* epoch from 0 */
    int64_t batch, batches;         /* done in this epoch, in all of it */
    int64_t step;                   /* nnt_step calls of this net so far */
    float   lr;
    double  loss;                   /* STEP: of this batch; EPOCH: mean over the epoch's samples */
    double  loss_mean;              /* over the epoch's samples so far */
    double  accuracy;               /* EPOCH: on the training samples as they were trained on */
    int     has_validation;         /* EPOCH: validation holds figures */
    nnt_metrics validation;
    double  seconds, seconds_left;  /* since nnt_fit began; estimate to its end */
    double  wait_seconds;           /* waited for the loader since nnt_fit began */
    double  samples_per_second;     /* over the epoch so far, validation left out */
} nnt_progress_info;
/* Returns nonzero to stop: nnt_fit then returns NNT_ERR_STOPPED with everything in a usable state. */
typedef int (*nnt_callback)(void *user, nnt_net *net, const nnt_progress_info *info);

typedef struct nnt_fit_desc {
    int           epochs;           /* 0: 1 */
    nnt_loader   *validation;       /* evaluated after each epoch; or NULL */
    nnt_callback  callback;         /* nnt_progress for a ready-made one; or NULL */
    void         *user;
} nnt_fit_desc;
NNT_API nnt_result nnt_fit(nnt_net *net, nnt_loader *loader, nnt_fit_desc d);

/* The last nnt_fit, epoch by epoch: what its callbacks were told with NNT_EVENT_EPOCH. Valid until the next nnt_fit. */
NNT_API const nnt_progress_info *nnt_history(const nnt_net *net, int *epochs);

#ifndef NNT_NO_STDIO
/* A callback that shows a bar, images a second, loss and time left on stderr when that is a terminal, and a plain line
   an epoch when it is not. The only function of the library that prints, and only if given to nnt_fit. */
NNT_API int nnt_progress(void *user, nnt_net *net, const nnt_progress_info *info);

/* ============================================================================
   Files: safetensors (github.com/huggingface/safetensors, format 0.x), names as the layers'
   ============================================================================ */

/* Weights and running statistics, float32. Written beside, flushed, then renamed. */
NNT_API nnt_result nnt_save(nnt_net *net, const char *path);
/* All or nothing: every parameter has to be there with its shape, f32, f64, f16 or bf16; more tensors are an error. */
NNT_API nnt_result nnt_load(nnt_net *net, const char *path);
#endif

/* ============================================================================
   Tensors
   Belong to a net, which needs no layers for that, and use its allocator, threads and error text. Shapes have 1 to 4
   sizes. Functions that make one return NULL and leave an error. Operands of one call must be on one device.
   ============================================================================ */

NNT_API nnt_tensor *nnt_tensor_new(nnt_net *net, const char *device, int rank, const int64_t *size);  /* zeros */
NNT_API nnt_tensor *nnt_tensor_from(nnt_net *net, const char *device, int rank, const int64_t *size, const float *data);
NNT_API void        nnt_tensor_free(nnt_tensor *t);            /* nnt_free does it too. Views: frees the view only */
NNT_API int         nnt_tensor_rank(const nnt_tensor *t);
NNT_API int64_t     nnt_tensor_size(const nnt_tensor *t, int dim);     /* dim -1: number of elements; else 0 outside */
NNT_API float      *nnt_tensor_data(nnt_tensor *t);            /* on the CPU; NULL on other devices */
NNT_API nnt_result  nnt_tensor_fill(nnt_tensor *t, float value);
NNT_API nnt_result  nnt_tensor_randn(nnt_tensor *t, uint64_t seed);    /* standard normal */
NNT_API nnt_result  nnt_tensor_uniform(nnt_tensor *t, float low, float high, uint64_t seed);  /* in [low, high) */
NNT_API nnt_result  nnt_tensor_add_noise(nnt_tensor *t, float deviation, uint64_t seed);      /* t += deviation n */
NNT_API nnt_result  nnt_tensor_add(nnt_tensor *y, const nnt_tensor *a, const nnt_tensor *b);  /* y = a + b; may be same */
NNT_API nnt_result  nnt_tensor_scale(nnt_tensor *t, float factor);
NNT_API nnt_result  nnt_tensor_copy(nnt_tensor *to, const nnt_tensor *from);                  /* between any devices */
NNT_API nnt_result  nnt_tensor_read(const nnt_tensor *t, float *data);
NNT_API nnt_result  nnt_tensor_write(nnt_tensor *t, const float *data);

/* ============================================================================
   Devices: what a backend fills in, and what it is given
   ============================================================================ */

/* Kinds of resolved ops. What each reads and writes stands beside it, by role; [] is optional.
   n samples of this run; x is n*in_c*in_h*in_w, y is n*out_c*out_h*out_w. G.. are gradients. */
enum {
    NNT_OP_NONE = 0,
    NNT_OP_COPY,                /* X -> Y                     y = x */
    NNT_OP_ACCUMULATE,          /* X, Y -> Y                  y += x; MASK as below */
    NNT_OP_CONV,                /* X W [B] -> Y               flag RELU: y = max(y, 0) */
    NNT_OP_CONV_DATA,           /* GY W [MASK] -> GX          flag ACCUMULATE: gx += */
    NNT_OP_CONV_WEIGHT,         /* X GY -> GW [GB]            adds when run->accumulate */
    NNT_OP_LINEAR,              /* X W [B] -> Y               y[n][o] = sum_i x[n][i] w[o][i] + b[o]; flag RELU */
    NNT_OP_LINEAR_DATA,         /* GY W [MASK] -> GX          flag ACCUMULATE */
    NNT_OP_LINEAR_WEIGHT,       /* X GY -> GW [GB]            adds when run->accumulate */
    NNT_OP_ACT,                 /* X -> Y                     variant: NNT_ACT_...; X may be Y */
    NNT_OP_ACT_GRAD,            /* GY and Y (GELU: X) -> GX   GX may be GY */
    NNT_OP_MAXPOOL,             /* X -> Y AUX                 AUX: index in the window, 1 byte a value, 4 if kernel_h*kernel_w > 256 */
    NNT_OP_MAXPOOL_GRAD,        /* GY AUX [MASK] -> GX        flag ACCUMULATE */
    NNT_OP_AVGPOOL,             /* X -> Y                     variant 1: exclude_pad */
    NNT_OP_AVGPOOL_GRAD,        /* GY [MASK] -> GX            flag ACCUMULATE */
    NNT_OP_ADAPTIVE,            /* X -> Y                     adaptive average pooling */
    NNT_OP_ADAPTIVE_GRAD,       /* GY [MASK] -> GX            flag ACCUMULATE */
    NNT_OP_DROPOUT,             /* X -> Y                     f[0] = p; backward is the same op on gradients; X may be Y */
    NNT_OP_NOISE,               /* X -> Y                     variant NNT_NOISE_..., f: amount, low, high, clamp; X may be Y */
    NNT_OP_NOISE_GRAD,          /* GY X -> GX                 0 where salt or pepper or the clamp took over; GX may be GY */
    NNT_OP_BN_STATS,            /* X RUNNING -> STATS RUNNING  STATS: mean[c], 1/sqrt(var+eps)[c]. f: eps, momentum. Once a step */
    NNT_OP_BN_APPLY,            /* X STATS [W B] -> Y         flag RELU; X may be Y */
    NNT_OP_BN_EVAL,             /* X RUNNING [W B] -> Y       RUNNING: mean[c], var[c]; flag RELU; X may be Y */
    NNT_OP_BN_GRAD,             /* X GY STATS [W] [MASK] -> GX [GW GB]  GX may be GY or X; flag ACCUMULATE: gx +=; adds to GW, GB when run->accumulate */
    NNT_OP_ADD,                 /* X X2 -> Y                  flag RELU; X or X2 may be Y */
    NNT_OP_CONCAT,              /* X -> Y                     channels [channel_offset, +in_c) of y = x */
    NNT_OP_CONCAT_GRAD,         /* GY [MASK] -> GX            gx = channels [channel_offset, +in_c) of gy; flag ACCUMULATE */
    NNT_OP_SOFTMAX,             /* X -> Y                     over channels */
    NNT_OP_SOFTMAX_GRAD,        /* GY Y -> GX                 GX may be GY */
    NNT_OP_CROSS_ENTROPY,       /* X LABELS [W] -> LOSS [GX]  W: class weights. LOSS: see nnt_loss. GX may be X. f: smoothing */
    NNT_OP_MSE,                 /* X TARGETS -> LOSS [GX] */
    NNT_OP_GRAD_NORM,           /* GW -> LOSS                 sum of squares of a flat range of op->count values, as double */
    NNT_OP_UPDATE,              /* W GW [M V] -> W [M V]      the optimizer over a flat range of op->count values */
    NNT_OP_KINDS
};
enum { NNT_ACT_RELU = 0, NNT_ACT_LEAKY_RELU, NNT_ACT_SIGMOID, NNT_ACT_TANH, NNT_ACT_GELU };
enum {
    NNT_OPF_RELU = 1,           /* the result is passed through max(y, 0) */
    NNT_OPF_ACCUMULATE = 2,     /* GX += instead of = */
    NNT_OPF_MASK = 4,           /* finally GX = MASK > 0 ? GX : 0, that is backward of a relu whose output is MASK */
    NNT_OPF_FLAT = 8            /* reserved */
};
/* Roles: which operand a pointer is. */
enum {
    NNT_X = 0, NNT_X2, NNT_Y, NNT_AUX, NNT_STATS, NNT_MASK,
    NNT_GY, NNT_GX,
    NNT_W, NNT_B, NNT_GW, NNT_GB, NNT_M, NNT_V, NNT_RUNNING,
    NNT_LABELS, NNT_TARGETS, NNT_LOSS,
    NNT_ROLES
};

/* One resolved op: kind, shapes, parameters, pointers. Nothing in it changes between steps. */
typedef struct nnt_op {
    int   kind, flags, variant;
    int   in_c, in_h, in_w, out_c, out_h, out_w;
    int   kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
    int   channel_offset;           /* CONCAT */
    int   ignore_label, use_ignore; /* CROSS_ENTROPY */
    uint32_t stream;                /* of random numbers: differs for each layer that uses them */
    float f[4];
    int64_t count;                  /* UPDATE, GRAD_NORM: values */
    void *at[NNT_ROLES];            /* NULL: not there */
    void *workspace;                /* workspace_bytes, as the backend's workspace function asked for */
    size_t workspace_bytes;
    const char *name;               /* the layer, for messages */
    int   node;                     /* its number in the graph */
    double flops, bytes;            /* a sample: arithmetic, and memory read and written at the least */
} nnt_op;

/* What differs from step to step. */
typedef struct nnt_run {
    int      count;                 /* samples in this run, 1 to batch */
    int      accumulate;            /* weight gradients are added to, not set */
    uint64_t seed, step;            /* of random numbers */
    float    loss_scale;            /* the loss's gradient is of (sum over samples of weight*loss) * loss_scale; 0: 1 / sum of weights */
    nnt_optimizer optimizer;        /* UPDATE: with lr of this step; */
    int64_t  update;                /*   number of this update from 1; */
    float    grad_scale;            /*   gradients are multiplied by this first */
} nnt_run;

/* What CROSS_ENTROPY and MSE write to LOSS. */
typedef struct nnt_loss {
    double sum;                     /* of weight*loss over samples */
    double weight;                  /* sum of the samples' weights */
    double correct, correct5;       /* samples whose label is the largest logit, among the five largest */
    double samples;                 /* that count */
} nnt_loss;

/* A device's functions. Order of calls: open; alloc; workspace for each op; run, upload, download in any order; release;
   close. Functions get the device that open made. All return NNT_OK or write a sentence to the device's text that
   `error` gives. Members marked (optional) may be NULL. */
#define NNT_BACKEND_ABI 1
typedef struct nnt_backend {
    int abi;                                                            /* NNT_BACKEND_ABI */
    const char *name;                                                   /* "cpu", "cuda", "null" */
    int        (*count)(void);                                          /* devices present */
    nnt_result (*open)(const nnt_allocator *a, int index, int threads, void **device, char *why, size_t cap);
    void       (*close)(void *device);
    void      *(*alloc)(void *device, size_t bytes);                    /* NULL when there is no memory; aligned to 64 */
    void       (*release)(void *device, void *p, size_t bytes);
    nnt_result (*upload)(void *device, void *to, const void *from, size_t bytes);
    nnt_result (*download)(void *device, void *to, const void *from, size_t bytes);
    nnt_result (*fill)(void *device, void *to, float value, int64_t count);
    int        (*supports)(void *device, const nnt_op *op);             /* (optional) 0: compile fails and names the op. NULL: all */
    size_t     (*workspace)(void *device, const nnt_op *op, int batch); /* (optional) bytes an op needs beside its operands. NULL: none */
    nnt_result (*run)(void *device, const nnt_op *ops, int count, const nnt_run *run);
    nnt_result (*sync)(void *device);                                   /* (optional) wait for everything. NULL: nothing to wait for */
    const char *(*error)(void *device);                                 /* (optional) the last failure's sentence */
    nnt_result (*random)(void *device, float *to, int64_t count, int kind, float a, float b, uint64_t seed); /* NNT_RANDOM_... */
    nnt_result (*axpby)(void *device, float *y, float a, const float *x, float b, const float *z, int64_t count); /* y = a x + b z; z NULL: y = a x */
} nnt_backend;
enum { NNT_RANDOM_NORMAL = 0, NNT_RANDOM_UNIFORM, NNT_RANDOM_ADD_NORMAL };   /* b n + a; [a, b); += a n */

/* Makes a backend known by its name. Before the first compile, from one thread: the table is the library's only global.
   The struct must live on. At most 8. */
NNT_API nnt_result nnt_backend_register(const nnt_backend *b);

#endif /* NNTRAIN_H */

#ifdef NNTRAIN_IMPLEMENTATION
#ifndef NNTI_IMPLEMENTED
#define NNTI_IMPLEMENTED

/* ============================================================================
   >>platform    System headers, compilers, time, files
   The only section that asks which system this is.
   ============================================================================ */

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#ifndef NNT_NO_STDIO
#  include <stdio.h>
#  include <errno.h>
#endif
#if defined(_WIN32)
#  define NNTI_WINDOWS 1
#  ifndef WIN32_LEAN_AND_MEAN
#    define NNTI_LEAN 1
#    define WIN32_LEAN_AND_MEAN
#  endif
#  include <windows.h>
#  ifdef NNTI_LEAN
#    undef WIN32_LEAN_AND_MEAN
#  endif
#else
#  define NNTI_POSIX 1
#  include <sys/types.h>
#  include <sys/stat.h>
#  include <sys/time.h>
#  include <sys/mman.h>
#  include <fcntl.h>
#  include <time.h>
#  include <unistd.h>
#  include <sched.h>
#  ifndef NNT_NO_THREADS
#    include <pthread.h>
#  endif
#endif

/* Every section is compiled whatever is switched off, so some functions stay unused in some configurations. */
#if defined(__GNUC__) || defined(__clang__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wunused-function"
#endif

#if defined(__GNUC__) || defined(__clang__)
#  define NNTI_RESTRICT __restrict__
#  define NNTI_NOINLINE __attribute__((noinline))
#  define NNTI_INLINE   static inline __attribute__((always_inline))
#elif defined(_MSC_VER)
#  define NNTI_RESTRICT __restrict
#  define NNTI_NOINLINE __declspec(noinline)
#  define NNTI_INLINE   static __forceinline
#else
#  define NNTI_RESTRICT
#  define NNTI_NOINLINE
#  define NNTI_INLINE   static
#endif

/* Instruction sets are chosen at run time, in functions that carry them as an attribute: no compiler flags needed. */
#if !defined(NNT_NO_SIMD) && (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#  define NNTI_X86 1
#  define NNTI_TARGET(isa) __attribute__((target(isa)))
#  define NNTI_AVX2   NNTI_TARGET("avx2,fma")
#  define NNTI_AVX512 NNTI_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#  include <immintrin.h>
#elif !defined(NNT_NO_SIMD) && defined(__aarch64__)
#  define NNTI_NEON 1
#  include <arm_neon.h>
#endif
enum { NNTI_ISA_C = 0, NNTI_ISA_AVX2 = 1, NNTI_ISA_AVX512 = 2, NNTI_ISA_NEON = 3 };

/* The best instruction set of this processor that the operating system lets programs use. */
static int nnti_isa_best(void)
{
#if defined(NNTI_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) return NNTI_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return NNTI_ISA_AVX2;
    return NNTI_ISA_C;
#elif defined(NNTI_NEON)
    return NNTI_ISA_NEON;
#else
    return NNTI_ISA_C;
#endif
}

/* Seconds from some fixed moment on. */
static double nnti_seconds(void)
{
#if defined(NNTI_WINDOWS)
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return (double)now.QuadPart / (double)rate.QuadPart;
#elif defined(CLOCK_MONOTONIC)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else                                       /* strict C99 hides clock_gettime */
    struct timeval t;
    gettimeofday(&t, NULL);
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
#endif
}

static uint32_t nnti_float_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float    nnti_bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
/* Looks at the bits, so that it still works under -ffast-math. */
static int nnti_finite(float f) { return (nnti_float_bits(f) & 0x7f800000u) != 0x7f800000u; }
static int nnti_finite_double(double d)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    return (u & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

static int     nnti_min(int a, int b) { return a < b ? a : b; }
static int     nnti_max(int a, int b) { return a > b ? a : b; }
static int64_t nnti_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t nnti_max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t nnti_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ============================================================================
   >>alloc    Memory through the user's functions, sizes without overflow
   ============================================================================ */

#define NNTI_ALIGN ((size_t)64)

/* *out = a * b; 0 when that does not fit. */
static int nnti_mul_size(size_t a, size_t b, size_t *out)
{
    if (b && a > SIZE_MAX / b) return 0;
    *out = a * b;
    return 1;
}
static int nnti_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b) return 0;
    *out = a + b;
    return 1;
}
/* Product of counts, -1 when it passes 2^62 or a factor is negative. */
static int64_t nnti_mul64(int64_t a, int64_t b)
{
    if (a < 0 || b < 0) return -1;
    if (b && a > ((int64_t)1 << 62) / b) return -1;
    return a * b;
}
static size_t nnti_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

#if defined(__linux__) && !defined(MADV_HUGEPAGE)       /* strict C hides it */
extern int madvise(void *, size_t, int);
#  define NNTI_MADV_HUGEPAGE 14
#elif defined(MADV_HUGEPAGE)
#  define NNTI_MADV_HUGEPAGE MADV_HUGEPAGE
#endif

/* malloc with an alignment; large blocks ask for huge pages, whose first touch is several times cheaper. */
static void *nnti_default_alloc(void *user, size_t bytes, size_t align)
{
    const size_t huge = (size_t)2 << 20;
    char *raw, *p;
    size_t total;
    (void)user;
    if (bytes >= 2 * huge && align < huge) align = huge;
    if (!nnti_add_size(bytes, align + sizeof(void *), &total)) return NULL;
    raw = (char *)malloc(total);
    if (!raw) return NULL;
    p = raw + sizeof(void *);
    p += (align - (size_t)(uintptr_t)p % align) % align;
    memcpy(p - sizeof(void *), &raw, sizeof raw);
#ifdef NNTI_MADV_HUGEPAGE
    if (bytes >= 2 * huge) (void)madvise(p, bytes / huge * huge, NNTI_MADV_HUGEPAGE);   /* a wish: failing is fine */
#endif
    return p;
}
static void nnti_default_free(void *user, void *p, size_t bytes)
{
    char *raw;
    (void)user; (void)bytes;
    if (!p) return;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    free(raw);
}
static nnt_allocator nnti_allocator(const nnt_allocator *a)
{
    nnt_allocator d;
    if (a && a->alloc_fn && a->free_fn) return *a;
    d.alloc_fn = nnti_default_alloc;
    d.free_fn = nnti_default_free;
    d.user = NULL;
    return d;
}
/* Uninitialised memory, aligned to NNTI_ALIGN. bytes 0 gets one byte. */
static void *nnti_alloc(const nnt_allocator *a, size_t bytes)
{
    return a->alloc_fn(a->user, bytes ? bytes : 1, NNTI_ALIGN);
}
static void nnti_free(const nnt_allocator *a, void *p, size_t bytes)
{
    if (p) a->free_fn(a->user, p, bytes ? bytes : 1);
}
/* count * size bytes of zeros; NULL on overflow too. */
static void *nnti_zalloc(const nnt_allocator *a, size_t count, size_t size)
{
    size_t bytes;
    void *p;
    if (!nnti_mul_size(count, size, &bytes)) return NULL;
    p = nnti_alloc(a, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}
/* Makes room for at least `need` items in an array that grows; 0 when memory is out, the array as before then. */
static int nnti_grow(const nnt_allocator *a, void **array, size_t *cap, size_t need, size_t size)
{
    size_t wish = *cap ? *cap * 2 : 16, bytes;
    void *p;
    if (need <= *cap) return 1;
    if (wish < need) wish = need;
    if (!nnti_mul_size(wish, size, &bytes)) return 0;
    p = nnti_alloc(a, bytes);
    if (!p) return 0;
    if (*array) memcpy(p, *array, *cap * size);
    nnti_free(a, *array, *cap * size);
    *array = p;
    *cap = wish;
    return 1;
}

/* ============================================================================
   >>error    Sentences: a small formatter of our own, so that the host's locale and missing stdio change nothing
   ============================================================================ */

#define NNTI_ERROR_TEXT 512

typedef struct nnti_error { int code; char text[NNTI_ERROR_TEXT]; } nnti_error;

typedef struct nnti_text { char *to; size_t cap, length; } nnti_text;   /* length: what the whole would need */

static void nnti_put_char(nnti_text *t, char c)
{
    if (t->length + 1 < t->cap) t->to[t->length] = c;
    t->length++;
}
static void nnti_put_string(nnti_text *t, const char *s)
{
    while (*s) nnti_put_char(t, *s++);
}
static void nnti_put_unsigned(nnti_text *t, uint64_t v)
{
    char digits[24];
    int n = 0;
    do { digits[n++] = (char)('0' + (int)(v % 10)); v /= 10; } while (v);
    while (n) nnti_put_char(t, digits[--n]);
}
static void nnti_put_int(nnti_text *t, int64_t v)
{
    if (v < 0) { nnti_put_char(t, '-'); nnti_put_unsigned(t, (uint64_t)0 - (uint64_t)v); }
    else nnti_put_unsigned(t, (uint64_t)v);
}
/* v with `decimals` digits behind the point; |v| below 1e15. */
static void nnti_put_fixed(nnti_text *t, double v, int decimals)
{
    double scale = 1.0;
    uint64_t whole;
    int i;
    if (v < 0) { nnti_put_char(t, '-'); v = -v; }
    for (i = 0; i < decimals; i++) scale *= 10.0;
    whole = (uint64_t)(v * scale + 0.5);
    nnti_put_unsigned(t, whole / (uint64_t)scale);
    if (decimals > 0) {
        uint64_t rest = whole % (uint64_t)scale;
        nnti_put_char(t, '.');
        for (i = 0; i < decimals; i++) {
            scale /= 10.0;
            nnti_put_char(t, (char)('0' + (int)(rest / (uint64_t)(scale + 0.5) % 10)));
        }
    }
}
/* As %g with that many significant digits. */
static void nnti_put_double(nnti_text *t, double v, int digits)
{
    uint64_t u, mantissa;
    int exponent = 0, i, n;
    char d[24];
    memcpy(&u, &v, 8);
    if ((u & 0x7ff0000000000000ull) == 0x7ff0000000000000ull) {
        if (u & 0x000fffffffffffffull) { nnti_put_string(t, "nan"); return; }
        nnti_put_string(t, (u >> 63) ? "-inf" : "inf");
        return;
    }
    if (u >> 63) { nnti_put_char(t, '-'); v = -v; }
    if (!(v > 0)) { nnti_put_char(t, '0'); return; }
    {
        double limit = 1.0, scaled = v;
        for (i = 0; i < digits; i++) limit *= 10.0;
        exponent = (int)floor(log10(v));
        if (exponent - digits + 1 > 290)       scaled = v / 1e290 / pow(10.0, exponent - digits + 1 - 290);
        else if (exponent - digits + 1 < -290) scaled = v * 1e290 * pow(10.0, -(exponent - digits + 1) - 290);
        else if (exponent - digits + 1 >= 0)   scaled = v / pow(10.0, exponent - digits + 1);
        else                                   scaled = v * pow(10.0, -(exponent - digits + 1));
        mantissa = (uint64_t)(scaled + 0.5);
        if ((double)mantissa >= limit) { mantissa /= 10; exponent++; }
        else if ((double)mantissa < limit / 10.0) { mantissa *= 10; exponent--; }
    }
    for (n = digits - 1; n >= 0; n--) { d[n] = (char)('0' + (int)(mantissa % 10)); mantissa /= 10; }
    n = digits;
    while (n > 1 && d[n - 1] == '0') n--;
    if (exponent < -5 || exponent >= digits + 3) {
        nnti_put_char(t, d[0]);
        if (n > 1) { nnti_put_char(t, '.'); for (i = 1; i < n; i++) nnti_put_char(t, d[i]); }
        nnti_put_char(t, 'e');
        nnti_put_int(t, exponent);
    } else if (exponent < 0) {
        nnti_put_string(t, "0.");
        for (i = -1; i > exponent; i--) nnti_put_char(t, '0');
        for (i = 0; i < n; i++) nnti_put_char(t, d[i]);
    } else {
        for (i = 0; i <= exponent; i++) nnti_put_char(t, i < digits ? d[i] : '0');
        if (n > exponent + 1) { nnti_put_char(t, '.'); for (i = exponent + 1; i < n; i++) nnti_put_char(t, d[i]); }
    }
}
/* 3.1 GiB */
static void nnti_put_bytes(nnti_text *t, uint64_t bytes)
{
    static const char *const unit[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double v = (double)bytes;
    int u = -1;
    if (bytes < 1024) { nnti_put_unsigned(t, bytes); nnti_put_string(t, " B"); return; }
    while (v >= 1023.95 && u < 5) { v /= 1024.0; u++; }
    nnti_put_fixed(t, v, 1);
    nnti_put_char(t, ' ');
    nnti_put_string(t, unit[u]);
}
/* %s string, %d int, %I int64_t, %z size_t, %B size_t as KiB/MiB/GiB, %g double in 6 digits, %f double with 2 decimals,
   %c char, %% a percent sign. Width: digits between % and letter pad with spaces on the left, '-' on the right. */
static void nnti_vformat(nnti_text *t, const char *format, va_list args)
{
    const char *f;
    for (f = format; *f; f++) {
        size_t start, width = 0;
        int left = 0;
        if (*f != '%') { nnti_put_char(t, *f); continue; }
        f++;
        if (*f == '-') { left = 1; f++; }
        while (*f >= '0' && *f <= '9') width = width * 10 + (size_t)(*f++ - '0');
        start = t->length;
        switch (*f) {
        case 's': { const char *s = va_arg(args, const char *); nnti_put_string(t, s ? s : "(null)"); break; }
        case 'd': nnti_put_int(t, va_arg(args, int)); break;
        case 'I': nnti_put_int(t, va_arg(args, int64_t)); break;
        case 'z': nnti_put_unsigned(t, va_arg(args, size_t)); break;
        case 'B': nnti_put_bytes(t, va_arg(args, size_t)); break;
        case 'g': nnti_put_double(t, va_arg(args, double), 6); break;
        case 'f': nnti_put_fixed(t, va_arg(args, double), 2); break;
        case 'c': nnti_put_char(t, (char)va_arg(args, int)); break;
        case '%': nnti_put_char(t, '%'); break;
        default: return;                    /* our own mistake */
        }
        if (t->length - start < width) {
            size_t pad = width - (t->length - start), i, n = t->length - start;
            for (i = 0; i < pad; i++) nnti_put_char(t, ' ');
            if (!left && t->cap)            /* move the text to the right */
                for (i = n; i-- > 0; )
                    if (start + i + pad + 1 < t->cap) t->to[start + i + pad] = t->to[start + i];
            if (!left)
                for (i = 0; i < pad; i++) if (start + i + 1 < t->cap) t->to[start + i] = ' ';
        }
    }
}
static nnti_text nnti_text_begin(char *to, size_t cap)
{
    nnti_text t;
    t.to = to;
    t.cap = cap;
    t.length = 0;
    return t;
}
static void nnti_text_end(nnti_text *t)
{
    if (t->cap) t->to[t->length < t->cap ? t->length : t->cap - 1] = 0;
}
static void nnti_put(nnti_text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    nnti_vformat(t, format, args);
    va_end(args);
}
static size_t nnti_format(char *to, size_t cap, const char *format, ...)
{
    nnti_text t = nnti_text_begin(to, cap);
    va_list args;
    va_start(args, format);
    nnti_vformat(&t, format, args);
    va_end(args);
    nnti_text_end(&t);
    return t.length;
}
/* Keeps code and sentence and returns the code. e NULL: only the code. */
static nnt_result nnti_set_error(nnti_error *e, nnt_result code, const char *format, ...)
{
    if (e) {
        nnti_text t = nnti_text_begin(e->text, sizeof e->text);
        va_list args;
        va_start(args, format);
        nnti_vformat(&t, format, args);
        va_end(args);
        nnti_text_end(&t);
        e->code = (int)code;
    }
    return code;
}
static void nnti_clear_error(nnti_error *e) { e->code = NNT_OK; e->text[0] = 0; }

NNT_API const char *nnt_result_name(nnt_result r)
{
    switch (r) {
    case NNT_OK:              return "NNT_OK";
    case NNT_ERR_ARGUMENT:    return "NNT_ERR_ARGUMENT";
    case NNT_ERR_STATE:       return "NNT_ERR_STATE";
    case NNT_ERR_SHAPE:       return "NNT_ERR_SHAPE";
    case NNT_ERR_MEMORY:      return "NNT_ERR_MEMORY";
    case NNT_ERR_FILE:        return "NNT_ERR_FILE";
    case NNT_ERR_FORMAT:      return "NNT_ERR_FORMAT";
    case NNT_ERR_DATA:        return "NNT_ERR_DATA";
    case NNT_ERR_DEVICE:      return "NNT_ERR_DEVICE";
    case NNT_ERR_UNSUPPORTED: return "NNT_ERR_UNSUPPORTED";
    case NNT_ERR_NOT_FINITE:  return "NNT_ERR_NOT_FINITE";
    case NNT_ERR_STOPPED:     return "NNT_ERR_STOPPED";
    }
    return "unknown result";
}

/* ============================================================================
   >>threads    Threads, locks, and a pool that splits work in chunks that don't depend on the number of threads
   ============================================================================ */

#if defined(NNT_NO_THREADS)
typedef int nnti_mutex;
typedef int nnti_cond;
typedef int nnti_thread;
static int  nnti_mutex_init(nnti_mutex *m) { *m = 0; return 1; }
static void nnti_mutex_destroy(nnti_mutex *m) { (void)m; }
static void nnti_lock(nnti_mutex *m) { (void)m; }
static void nnti_unlock(nnti_mutex *m) { (void)m; }
static int  nnti_cond_init(nnti_cond *c) { *c = 0; return 1; }
static void nnti_cond_destroy(nnti_cond *c) { (void)c; }
static void nnti_cond_wait(nnti_cond *c, nnti_mutex *m) { (void)c; (void)m; }
static void nnti_cond_broadcast(nnti_cond *c) { (void)c; }
static int  nnti_thread_start(nnti_thread *t, void (*fn)(void *), void *arg) { (void)t; (void)fn; (void)arg; return 0; }
static void nnti_thread_join(nnti_thread *t) { (void)t; }
static void nnti_yield(void) { }
#elif defined(NNTI_WINDOWS)
typedef CRITICAL_SECTION   nnti_mutex;
typedef CONDITION_VARIABLE nnti_cond;
typedef struct nnti_thread { HANDLE handle; void (*fn)(void *); void *arg; } nnti_thread;
static int  nnti_mutex_init(nnti_mutex *m) { InitializeCriticalSection(m); return 1; }
static void nnti_mutex_destroy(nnti_mutex *m) { DeleteCriticalSection(m); }
static void nnti_lock(nnti_mutex *m) { EnterCriticalSection(m); }
static void nnti_unlock(nnti_mutex *m) { LeaveCriticalSection(m); }
static int  nnti_cond_init(nnti_cond *c) { InitializeConditionVariable(c); return 1; }
static void nnti_cond_destroy(nnti_cond *c) { (void)c; }
static void nnti_cond_wait(nnti_cond *c, nnti_mutex *m) { SleepConditionVariableCS(c, m, INFINITE); }
static void nnti_cond_broadcast(nnti_cond *c) { WakeAllConditionVariable(c); }
static DWORD WINAPI nnti_thread_main(LPVOID p)
{
    nnti_thread *t = (nnti_thread *)p;
    t->fn(t->arg);
    return 0;
}
/* t has to stay where it is until the join. */
static int nnti_thread_start(nnti_thread *t, void (*fn)(void *), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    t->handle = CreateThread(NULL, 0, nnti_thread_main, t, 0, NULL);
    return t->handle != NULL;
}
static void nnti_thread_join(nnti_thread *t) { WaitForSingleObject(t->handle, INFINITE); CloseHandle(t->handle); }
static void nnti_yield(void) { SwitchToThread(); }
#else
typedef pthread_mutex_t nnti_mutex;
typedef pthread_cond_t  nnti_cond;
typedef struct nnti_thread { pthread_t handle; void (*fn)(void *); void *arg; } nnti_thread;
static int  nnti_mutex_init(nnti_mutex *m) { return pthread_mutex_init(m, NULL) == 0; }
static void nnti_mutex_destroy(nnti_mutex *m) { pthread_mutex_destroy(m); }
static void nnti_lock(nnti_mutex *m) { pthread_mutex_lock(m); }
static void nnti_unlock(nnti_mutex *m) { pthread_mutex_unlock(m); }
static int  nnti_cond_init(nnti_cond *c) { return pthread_cond_init(c, NULL) == 0; }
static void nnti_cond_destroy(nnti_cond *c) { pthread_cond_destroy(c); }
static void nnti_cond_wait(nnti_cond *c, nnti_mutex *m) { pthread_cond_wait(c, m); }
static void nnti_cond_broadcast(nnti_cond *c) { pthread_cond_broadcast(c); }
static void *nnti_thread_main(void *p)
{
    nnti_thread *t = (nnti_thread *)p;
    t->fn(t->arg);
    return NULL;
}
/* t has to stay where it is until the join. 0 when the system has no more threads. */
static int nnti_thread_start(nnti_thread *t, void (*fn)(void *), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    return pthread_create(&t->handle, NULL, nnti_thread_main, t) == 0;
}
static void nnti_thread_join(nnti_thread *t) { pthread_join(t->handle, NULL); }
static void nnti_yield(void) { sched_yield(); }
#endif

#if defined(__GNUC__) || defined(__clang__)
static int  nnti_atomic_load(const int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void nnti_atomic_store(int *p, int v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static int  nnti_atomic_add(int *p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
#elif defined(_MSC_VER)
static int  nnti_atomic_load(const int *p) { return (int)_InterlockedOr((volatile long *)p, 0); }
static void nnti_atomic_store(int *p, int v) { _InterlockedExchange((volatile long *)p, v); }
static int  nnti_atomic_add(int *p, int v) { return (int)_InterlockedExchangeAdd((volatile long *)p, v); }
#else
#  define NNT_NO_THREADS_ATOMICS 1
static int  nnti_atomic_load(const int *p) { return *(const volatile int *)p; }
static void nnti_atomic_store(int *p, int v) { *(volatile int *)p = v; }
static int  nnti_atomic_add(int *p, int v) { int old = *p; *p = old + v; return old; }
#endif

NNTI_INLINE void nnti_pause(void)
{
#if defined(NNTI_X86)
    _mm_pause();
#elif defined(NNTI_NEON) && (defined(__GNUC__) || defined(__clang__))
    __asm__ __volatile__("yield");
#endif
}

/* Cores that this process may run on: affinity and, on Linux, the cgroup's quota. At least 1. */
static int nnti_core_count(void)
{
#if defined(NNT_NO_THREADS)
    return 1;
#elif defined(NNTI_WINDOWS)
    DWORD_PTR mine = 0, all = 0;
    int n = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all))
        for (; mine; mine &= mine - 1) n++;
    return n > 0 ? n : 1;
#else
    int cores = 1;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0 && online < 4096) cores = (int)online;
#  if defined(__linux__)
    {   /* read by hand: sched_getaffinity is hidden in strict C */
        char text[4096];
        ssize_t got = -1;
        int file = open("/proc/self/status", O_RDONLY), allowed = 0;
        if (file >= 0) { got = read(file, text, sizeof text - 1); close(file); }
        if (got > 0) {
            const char *s;
            text[got] = 0;
            s = strstr(text, "Cpus_allowed:");
            if (s)
                for (s += 13; *s && *s != '\n'; s++) {
                    int v = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 0;
                    for (; v; v &= v - 1) allowed++;
                }
            if (allowed > 0 && allowed < cores) cores = allowed;
        }
        file = open("/sys/fs/cgroup/cpu.max", O_RDONLY);
        got = -1;
        if (file >= 0) { got = read(file, text, sizeof text - 1); close(file); }
        if (got > 0) {                      /* "200000 100000" or "max 100000" */
            char *end;
            double quota, period;
            text[got] = 0;
            if (text[0] >= '0' && text[0] <= '9') {
                quota = (double)strtoul(text, &end, 10);
                period = (double)strtoul(end, NULL, 10);
                if (period > 0 && quota / period < cores) cores = nnti_max(1, (int)(quota / period + 0.5));
            }
        }
    }
#  endif
    return nnti_max(1, cores);
#endif
}

/* fn(arg, chunk, worker) for chunk = 0 .. chunks-1; worker is below the pool's thread count and names the thread's own
   scratch. Which worker gets a chunk must not change what the chunk computes. */
typedef void (*nnti_task)(void *arg, int64_t chunk, int worker);

enum { NNTI_MAX_THREADS = 256 };

typedef struct nnti_worker { struct nnti_pool *pool; int index; nnti_thread thread; } nnti_worker;

typedef struct nnti_pool {
    nnt_allocator a;
    int           threads;          /* the caller's included */
    int           started;
    int           generation;       /* atomic: goes up with each job */
    int           pending;          /* atomic: workers that have not finished the job */
    int           quit;             /* atomic */
    nnti_mutex    mutex;
    nnti_cond     wake, done;
    nnti_task     fn;
    void         *arg;
    int64_t       chunks;
    nnti_worker  *workers;
} nnti_pool;

static void nnti_pool_share(nnti_pool *p, int worker)
{
    int64_t first = p->chunks * worker / p->threads, last = p->chunks * (worker + 1) / p->threads, i;
    for (i = first; i < last; i++) p->fn(p->arg, i, worker);
}
static void nnti_pool_main(void *arg)
{
    nnti_worker *w = (nnti_worker *)arg;
    nnti_pool *p = w->pool;
    int seen = 0, spin;
    for (;;) {
        for (spin = 0; spin < 4000 && nnti_atomic_load(&p->generation) == seen && !nnti_atomic_load(&p->quit); spin++)
            nnti_pause();
        if (nnti_atomic_load(&p->generation) == seen && !nnti_atomic_load(&p->quit)) {
            nnti_lock(&p->mutex);
            while (nnti_atomic_load(&p->generation) == seen && !nnti_atomic_load(&p->quit)) nnti_cond_wait(&p->wake, &p->mutex);
            nnti_unlock(&p->mutex);
        }
        if (nnti_atomic_load(&p->quit)) return;
        seen = nnti_atomic_load(&p->generation);
        nnti_pool_share(p, w->index);
        if (nnti_atomic_add(&p->pending, -1) == 1) {
            nnti_lock(&p->mutex);
            nnti_cond_broadcast(&p->done);
            nnti_unlock(&p->mutex);
        }
    }
}
static void nnti_pool_stop(nnti_pool *p)
{
    int i;
    if (!p) return;
    nnti_lock(&p->mutex);
    nnti_atomic_store(&p->quit, 1);
    nnti_cond_broadcast(&p->wake);
    nnti_unlock(&p->mutex);
    for (i = 0; i < p->started; i++) nnti_thread_join(&p->workers[i].thread);
    nnti_cond_destroy(&p->wake);
    nnti_cond_destroy(&p->done);
    nnti_mutex_destroy(&p->mutex);
    nnti_free(&p->a, p->workers, (size_t)nnti_max(1, p->threads) * sizeof *p->workers);
    nnti_free(&p->a, p, sizeof *p);
}
/* threads 0: as many as cores. NULL when memory is out. Where the system refuses threads, the pool is smaller. */
static nnti_pool *nnti_pool_start(const nnt_allocator *a, int threads)
{
    nnti_pool *p = (nnti_pool *)nnti_zalloc(a, 1, sizeof *p);
    int i, wanted;
    if (!p) return NULL;
    p->a = *a;
    if (threads <= 0) threads = nnti_core_count();
#if defined(NNT_NO_THREADS) || defined(NNT_NO_THREADS_ATOMICS)
    threads = 1;
#endif
    wanted = nnti_min(threads, NNTI_MAX_THREADS);
    p->threads = wanted;
    p->workers = (nnti_worker *)nnti_zalloc(a, (size_t)wanted, sizeof *p->workers);
    if (!p->workers) { nnti_free(a, p, sizeof *p); return NULL; }
    if (!nnti_mutex_init(&p->mutex)) { nnti_free(a, p->workers, (size_t)wanted * sizeof *p->workers); nnti_free(a, p, sizeof *p); return NULL; }
    nnti_cond_init(&p->wake);
    nnti_cond_init(&p->done);
    for (i = 1; i < wanted; i++) {
        nnti_worker *w = &p->workers[p->started];
        w->pool = p;
        w->index = p->started + 1;
        if (!nnti_thread_start(&w->thread, nnti_pool_main, w)) break;
        p->started++;
    }
    return p;
}
static int nnti_pool_threads(const nnti_pool *p) { return p ? p->threads : 1; }

/* Runs all chunks and returns when they are done. Not from inside a chunk. p NULL: in this thread. */
static void nnti_parallel(nnti_pool *p, int64_t chunks, nnti_task fn, void *arg)
{
    int64_t i;
    int spin;
    if (chunks <= 0) return;
    if (!p || p->started == 0 || chunks == 1) {
        for (i = 0; i < chunks; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->chunks = chunks;
    nnti_atomic_store(&p->pending, p->started);
    nnti_lock(&p->mutex);
    nnti_atomic_add(&p->generation, 1);
    nnti_cond_broadcast(&p->wake);
    nnti_unlock(&p->mutex);
    nnti_pool_share(p, 0);
    for (i = p->started + 1; i < p->threads; i++) nnti_pool_share(p, (int)i);   /* shares of threads that did not start */
    for (spin = 0; spin < 4000 && nnti_atomic_load(&p->pending) > 0; spin++) nnti_pause();
    if (nnti_atomic_load(&p->pending) > 0) {
        nnti_lock(&p->mutex);
        while (nnti_atomic_load(&p->pending) > 0) nnti_cond_wait(&p->done, &p->mutex);
        nnti_unlock(&p->mutex);
    }
}

/* What a CPU kernel is given beside its op: who works for it, and with which instructions. */
typedef struct nnti_exec { nnti_pool *pool; int isa; } nnti_exec;

/* ============================================================================
   >>random    Philox4x32-10: random numbers from a key and a counter, in any order on any device
   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The counter of an element is
   (block in the sample, sample, step, stream | step's high half), four 32-bit words a block, element e in block e / 4.
   ============================================================================ */

static void nnti_philox(uint32_t c[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    int r;
    for (r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t x0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, x2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        c[0] = x0;
        c[2] = x2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
/* Block `block` of sample `sample` at a step, for a layer's stream (below 65536). */
static void nnti_random4(uint32_t out[4], uint64_t seed, uint64_t step, uint32_t stream, uint32_t sample, uint32_t block)
{
    out[0] = block;
    out[1] = sample;
    out[2] = (uint32_t)step;
    out[3] = stream | (uint32_t)(step >> 32) << 16;
    nnti_philox(out, seed);
}
static float nnti_unit(uint32_t bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }    /* [0, 1), exact */

/* @@SECTIONS@@ */

#if defined(__GNUC__) || defined(__clang__)
#  pragma GCC diagnostic pop
#endif
#endif /* NNTI_IMPLEMENTED */
#endif /* NNTRAIN_IMPLEMENTATION */
