/* nntrain.h - v0.1.0 - trains convolutional networks on the CPU - license at the end

   A library in one file for programs in C99 or C++11 and later: describe a net, compile it, train it, save it.

   In exactly one C or C++ file, before the include:
       #define NNTRAIN_IMPLEMENTATION
       #include "nntrain.h"
   In all others only the include. Link with -lm -pthread (elsewhere: what the system calls mathematics and threads).
   Compile with optimisation, -O2 will do; no flag for the processor is needed, instruction sets are chosen at run time.
   For .gz data include stb_image.h (github.com/nothings/stb) above the implementation.

   A complete program: trains on MNIST's pictures and saves the weights

       #include <stdio.h>
       #define NNTRAIN_IMPLEMENTATION
       #include "nntrain.h"
       int main(void)
       {
           nnt_net *net = nnt_new(NULL);
           nnt_dataset *data = nnt_dataset_idx("train-images-idx3-ubyte", "train-labels-idx1-ubyte", NULL);
           nnt_loader_desc order = {0};
           nnt_compile_desc build = {0};
           nnt_fit_desc fit = {0};
           nnt_node x = nnt_input(net, 1, 28, 28);
           x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 32, 3, 1, 1)), 2, 2, 0);
           x = nnt_linear(nnt_relu(nnt_linear(x, 128)), 10);
           order.batch = build.batch = 64; order.shuffle = 1;
           build.optimizer = nnt_adam(1e-3f);
           fit.epochs = 5; fit.callback = nnt_progress;
           nnt_loader *loader = nnt_loader_new(data, order, NULL);
           if (nnt_compile(net, nnt_cross_entropy(x), build) || nnt_fit(net, loader, fit) || nnt_save(net, "mnist.st"))
               fprintf(stderr, "%s\n", nnt_error(net));
           nnt_free(net); nnt_loader_free(loader); nnt_dataset_free(data);
       }

   WHAT IT DOES NOT DO
     - read folders of pictures, augment pictures
     - several inputs or several losses in one net; recurrent nets, attention, transposed convolution
     - numbers other than 32-bit floats; saved weights in f16, bf16 and f64 are converted when loaded
     - replace PyTorch for research: it is for training inside a program of one's own

   SECTIONS of the implementation, bottom-up; search for the name with its >>
     >>platform     system headers, compilers, time                 >>file         reading, writing beside and renaming
     >>alloc        memory, sizes without overflow                  >>safetensors  the format of saved weights
     >>error        sentences                                       >>cpu          the CPU backend
     >>threads      locks, the pool of threads                      >>null         the backend that only counts
     >>memory-info  memory of the machine                           >>devices      the table of backends
     >>random       counter-based random numbers                    >>profile      where the time goes
     >>vectors      what vector types lack                          >>net          compile, parameters by name
     >>random-fill  arrays of random numbers                        >>tensor       shaped arrays on a device
     >>elementwise  activations, dropout, noise, sums, the update   >>input        whole files, gzip
     >>optimizer    constructors, learning rates                    >>data         datasets, IDX
     >>gemm         matrix products                                 >>loader       batches, made ahead by threads
     >>winograd     3x3 convolutions with fewer multiplications     >>health       a step op by op, values that are not finite
     >>conv         convolution                                     >>run          step, update, predict
     >>linear       fully connected layers                          >>weights      nets as files
     >>pool         max, average, adaptive pooling                  >>snapshot     runs as files: stop and go on
     >>norm         batch normalisation                             >>fit          evaluate, whole runs, progress
     >>loss         softmax, cross-entropy, squared error           >>seeing       profiles in words and pictures
     >>fused        convolution or batch norm with pooling
     >>graph        builders: shapes checked, inferred
     >>schedule     what to keep and what to make again
     >>plan         resolved ops, lifetimes, offsets
     >>stages       the training program for >>schedule
     >>report       plans in words and pictures

   CONFIGURATION: macros to define before the include, the same in all files of a program
     NNTRAIN_IMPLEMENTATION   not defined   in one file: the functions themselves, not only their declarations
     NNT_STATIC               not defined   functions are static: several copies in one program don't collide
     NNT_API                  extern        what stands before each function (in C++ extern "C"), for dllexport and such
     NNT_NO_SIMD              not defined   plain C kernels only
     NNT_NO_THREADS           not defined   one thread, and loaders read in the caller's thread
     NNT_EXACT_CONV           not defined   all convolutions as with nnt_conv_desc.exact
     NNT_NO_STDIO             not defined   no files: no nnt_save, nnt_load, nnt_progress; nnt_dataset_idx fails

   GLOSSARY
     net         a graph of layers; after compile also weights, plan, optimizer state. Holds the last error
     node        a value in the graph: what a layer gives. Two words, passed by value
     shape       channels x height x width of one sample; the batch is never part of it
     batch       samples that are worked on together; the compiled one is the most a step takes
     step        forward, backward and update for one batch
     op          a resolved piece of work: kind, sizes, pointers. A step is a list of them, run from first to last
     plan        which value lives at which place of the arena during a step
     arena       the one piece of memory that a net takes on its device
     keep        a value that backward needs is kept from forward until then,
     checkpoint  or made again from an earlier one that was kept (gradient checkpointing, recomputation)
     loader      makes batches of a dataset, in threads of its own
     snapshot    a run as a file: weights and all that its future depends on

   STEP BY STEP, in the order of calls
     1. nnt_new gives an empty net. NULL (no memory) may be passed on to everything: the first function that returns a
        result says NNT_ERR_MEMORY or NNT_ERR_ARGUMENT.
     2. nnt_input, then layers: nnt_conv2d, nnt_linear, nnt_flatten, nnt_reshape; nnt_relu, nnt_leaky_relu,
        nnt_sigmoid, nnt_tanh, nnt_gelu, nnt_softmax; nnt_maxpool, nnt_avgpool, nnt_adaptive_avgpool,
        nnt_global_avgpool; nnt_batchnorm, nnt_dropout, nnt_noise; nnt_add, nnt_concat, nnt_concat_n. What these can't
        say goes into a desc, zeroed but for what differs: nnt_conv2d_ex, nnt_linear_ex, nnt_maxpool_ex, nnt_avgpool_ex,
        nnt_noise_ex, and nnt_batchnorm_ex, whose desc begins as nnt_batchnorm_defaults (there zero means zero).
        nnt_name names a layer, nnt_shape tells what has been inferred.
     3. A loss ends the graph: nnt_cross_entropy, nnt_cross_entropy_ex, nnt_mse.
     4. nnt_sgd, nnt_adam or nnt_adamw fill an optimizer, whose fields may be changed. nnt_learning_rate tells what its
        schedule gives at a step.
     5. nnt_plan tells what training will take, nnt_plan_curve what it could take instead for some work done twice,
        nnt_max_batch which batch fits a limit; nnt_keep and nnt_checkpoint_sequential choose by hand; nnt_compile takes the memory and draws the weights. nnt_summary writes a table.
        nnt_memory_report and nnt_plan_write show what was planned. nnt_load starts from a saved net instead.
     6. Data: nnt_dataset_arrays, nnt_dataset_idx or nnt_dataset_reader; nnt_dataset_count, nnt_dataset_classes and
        nnt_dataset_shape describe it. nnt_loader_new makes batches of it.
     7. nnt_fit trains for some epochs, tells a callback (nnt_progress is one) and keeps nnt_history. Or a loop of one's
        own: nnt_loader_next, nnt_step; at the end nnt_update when gradients of several batches are accumulated.
        nnt_loader_batches, nnt_loader_epoch, nnt_loader_batch, nnt_loader_wait_seconds, nnt_loader_dataset tell where a
        loader is, nnt_loader_rewind and nnt_loader_seek put it elsewhere. nnt_steps and nnt_last_loss tell what the net has done,
        nnt_set_learning_rate changes its pace, nnt_backward only makes gradients.
        nnt_profile_start and nnt_profile_stop watch where the time goes (nnt_profile_loader: of a loop of one's own,
        nnt_profile_reset: from now on); nnt_profile_verdict says it in a sentence, nnt_profile_text in a table,
        nnt_profile_flame_svg, nnt_profile_trace and nnt_profile_folded in files, nnt_profile_rows in figures. nnt_health
        looks at outputs, weights and gradients of each layer, nnt_health_text shows them.
     8. nnt_evaluate gives loss, accuracy and confusion matrix; nnt_predict gives the net's answers.
     9. nnt_param_count, nnt_param_name, nnt_param and nnt_grad reach weights and gradients as tensors. nnt_tensor_new,
        nnt_tensor_from make some of one's own; nnt_tensor_rank, nnt_tensor_size, nnt_tensor_data, nnt_tensor_read
        look at them, nnt_tensor_fill, nnt_tensor_randn, nnt_tensor_uniform, nnt_tensor_write, nnt_tensor_copy fill
        them, nnt_tensor_add, nnt_tensor_scale, nnt_tensor_add_noise compute; nnt_tensor_free, or nnt_free.
    10. nnt_save, and nnt_load in the program that predicts; nnt_load_ex for files that were made for something else;
        nnt_set_metadata, nnt_metadata, nnt_metadata_key for texts that go with the weights. Runs that may be stopped or
        killed write snapshots: nnt_fit_desc.checkpoint, or nnt_snapshot and nnt_resume in a loop of one's own.
    11. nnt_free, nnt_loader_free, nnt_dataset_free, in this order or with the net last.

   ERRORS
     Functions return a code (nnt_result_name gives its name) and keep a sentence: nnt_error for nets,
     nnt_dataset_error and nnt_loader_error for theirs (their codes: nnt_dataset_error_code, nnt_loader_error_code).
     Nothing is printed, nothing aborts. Builders don't fail one by one: the first mistake stays with the net, later
     layers pass it through, nnt_compile returns it; nnt_error_code asks earlier. Datasets and loaders that could not be
     made carry their error to whoever uses them. NNT_ERR_NOT_FINITE: the loss left the range of numbers; the weights
     are those of before that step.

   SHAPES
     Data at the border is NCHW, weights are OIHW and [out][in], as PyTorch's. Vectors are n x 1 x 1. nnt_linear
     flattens its input. Results of nnt_predict have the shape of the loss's input (or of the node that was compiled).

   MEMORY
     nnt_compile takes everything that training needs from the device in one piece, and nnt_plan tells its size to the
     byte beforehand. A step takes nothing and gives nothing back. Values that are not needed at the same time share
     memory; dropout and noise keep no mask, since backward draws the same numbers again. With memory_limit, values that
     backward needs are not kept but made again from others, as few as it takes to stay within the limit
     (NNT_RECOMPUTE_... asks for other choices); losses and weights keep every bit. nnt_memory tells the price. A loader holds prefetch + 1
     batches. All memory comes from the allocator given to nnt_new, nnt_dataset_... and nnt_loader_new; NULL means
     malloc, and huge pages are asked for where the system has them.

   THREADS
     A net is used by one thread at a time; different nets may run in different threads. It computes on
     nnt_compile_desc.threads threads, the caller's included; by default one for each core that affinity and the cgroup's
     quota leave to the process. They start with the first step, keep their cores for a tenth of a millisecond when there
     is nothing to do, then sleep. A program that has a pool gives its parallel_for instead. A loader has
     threads of its own (workers), which call read_fn. Callbacks are called in the thread that called nnt_fit.
     nnt_backend_register comes before the first compile.

   DETERMINISM
     The same seed gives the same bits, whatever the number of threads and workers: work is split by shapes, sums have
     one order, and every random number belongs to (seed, step, layer, sample, element), every shuffle to (seed, epoch).
     Another instruction set or compiler may round differently: bits are the same on the same program and processor.
     The random numbers themselves are the same everywhere.

   DEVICES
     nnt_memory_info tells a device's memory. "cpu" computes; "null" counts ops and bytes and computes nothing, for tests and planning. "cuda", "cuda:1", ... are
     there when nntrain_cuda.cu is compiled and linked with the program: nvcc program.c nntrain_cuda.cu -lcublas -lcublasLt.
     A device is a struct of functions (nnt_backend) that is given resolved ops; see there. What a device can't do is an
     error at compile.

   FILES
     Weights are safetensors, f32, under "layer.weight", "layer.bias", "layer.running_mean", "layer.running_var": name
     layers as in PyTorch and files can be exchanged. Saving writes a file beside (NAME.tmp-0), flushes and renames it,
     so that there is a whole file at any moment. Loading checks everything before the first weight is changed.
     Of a symbolic link, the file that it leads to is replaced. Snapshots are the same with more arrays (nnt_snapshot):
     a run that was stopped or killed at any instant and resumed ends with the same bits as one that was not.
     docs/files.md lists the arrays and shows the exchange with PyTorch.

   LIMITS
     Sizes of a shape are ints; products of sizes are checked up to 2^62 and against size_t. A net has one input, one
     loss and at most 65,000 layers. 256 threads, 8 backends, tensors of 1 to 4 sizes, error sentences of 511 bytes.
     stb_image unpacks .gz files of less than 2 GiB.
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

/* The last error's code. After building a graph and before other calls: whether the graph has an error. */
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
    int exact;                      /* sums of products as written: no fast convolution, which rounds about twice as much */
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

/* The same values under another shape; flatten: (c h w, 1, 1). Cost nothing. */
NNT_API nnt_node nnt_flatten(nnt_node x);
NNT_API nnt_node nnt_reshape(nnt_node x, int channels, int height, int width);

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
    int   ignore_index;             /*   a batch of only such samples has loss 0 and gradient 0 (PyTorch: NaN). Data sets
                                         accept only labels from 0 on, batches of one's own also -100 */
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
    float clip_norm;                /* 0: none; else gradients (after accumulation) are scaled so that the norm over all
                                       is at most this */
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

/* A host's own threads, for engines that have a pool: runs task(arg, i) for i = 0 .. count-1, each once, in any order and
   wherever it likes, and returns when all are done. count is at most nnt_compile_desc.threads. */
typedef void (*nnt_parallel_fn)(void *user, int count, void (*task)(void *arg, int index), void *arg);

typedef struct nnt_compile_desc {
    int           batch;            /* samples a step, at most; required */
    const char   *device;           /* NULL: "cpu". Others as registered: "null" counts and computes nothing */
    int           threads;          /* 0: one for each core that the process may use */
    uint64_t      seed;             /* of weights, dropout, noise. 0 is a seed as any other */
    nnt_optimizer optimizer;        /* zeroed: none, for prediction only */
    size_t        memory_limit;     /* bytes of the device; 0: none. Over it values are made again in backward, as few as
                                       fit; what can't fit is an error that says what would */
    float         extra_work;       /* without a limit: the least memory with at most this share of a step's arithmetic
                                       done again, 0.2 = 20 % */
    int           recompute;        /* NNT_RECOMPUTE_... */
    int           segments;         /* for NNT_RECOMPUTE_SEGMENTS */
    nnt_parallel_fn parallel_for;   /* NULL: the net has threads of its own */
    void         *parallel_user;
    int           precision;        /* NNT_FP32, or on a GPU NNT_TF32, NNT_BF16 */
} nnt_compile_desc;

/* What the factors of matrix products (convolutions, linear layers, both ways) may be rounded to before they are
   multiplied, which a GPU's tensor cores do many times faster. Values, weights, sums and all else stay 32-bit floats, so
   that nothing has to be scaled. */
enum {
    NNT_FP32 = 0,                   /* not at all */
    NNT_TF32,                       /* 11 significant bits. What PyTorch does in convolutions unless told otherwise */
    NNT_BF16                        /* 8 significant bits */
};

/* Which forward values are made again in backward instead of being kept. The same bits in every case. */
enum {
    NNT_RECOMPUTE_AUTO = 0,         /* as memory_limit or extra_work ask; without either nothing */
    NNT_RECOMPUTE_OFF,
    NNT_RECOMPUTE_LEAST_MEMORY,     /* whatever the work */
    NNT_RECOMPUTE_SEGMENTS          /* as torch's checkpoint_sequential(net, segments, x): all segments but the last */
};

/* What a compiled net takes on its device, in bytes. total is what is allocated, in one piece. */
typedef struct nnt_memory {
    size_t params;                  /* weights and running statistics */
    size_t grads, optimizer;        /* gradients; momentum or Adam's two moments */
    size_t staging;                 /* on a GPU: room for the next batch while this one is worked on; else 0 */
    size_t fixed;                   /* params + grads + optimizer + staging: all that is there from step to step */
    size_t activations, gradients, workspace;   /* at the op where the sum is largest */
    size_t peak;                    /* largest sum of bytes alive at one time, fixed part left out */
    size_t arena;                   /* what packing them takes: peak or a little more */
    size_t total;                   /* fixed + arena */
    size_t total_store_all, total_least;    /* the two ends of what plans can have; without gaps from packing */
    double extra_work;              /* share of a step's arithmetic that is done again: 0.097 = 9.7 % */
    int    recomputed_ops;
    int    ops_train, ops_predict;  /* lengths of the two lists of resolved ops */
    int    peak_op;                 /* index in the training list of the op at the peak */
} nnt_memory;

/* Figures of nnt_compile without taking any memory on the device. */
NNT_API nnt_result nnt_plan(nnt_net *net, nnt_node loss, nnt_compile_desc desc, nnt_memory *out);

/* The choice that memory_limit and extra_work have: at most cap points (cap at least 2), memory ascending. Returns
   how many, 0 after an error. memory_limit, extra_work and recompute of desc are not looked at. */
typedef struct nnt_plan_point { size_t total; double extra_work; } nnt_plan_point;
NNT_API int nnt_plan_curve(nnt_net *net, nnt_node loss, nnt_compile_desc desc, nnt_plan_point *out, int cap);

/* Marks for recomputation; they have to come before nnt_compile. nnt_keep: x is kept for backward and never made again.
   nnt_checkpoint_sequential: the layers from `first` to `last` as torch's checkpoint_sequential(layers, segments, x): cut
   into so many segments, all of them but the last made again, everything outside kept. Cuts are where a single value
   passes. Then memory_limit, extra_work and recompute choose nothing any more. Both return what they were given. */
NNT_API nnt_node nnt_keep(nnt_node x);
NNT_API nnt_node nnt_checkpoint_sequential(nnt_node first, nnt_node last, int segments);

/* The largest batch that compiles within desc.memory_limit; 0: not even one sample, or an error. desc.batch is not
   looked at. */
NNT_API int nnt_max_batch(nnt_net *net, nnt_node loss, nnt_compile_desc desc);

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

/* What a compiled net's memory goes on: totals, what recomputing gives, and the largest values alive at the peak, by the
   layers' names. Writes and returns as nnt_summary. */
NNT_API size_t nnt_memory_report(const nnt_net *net, char *text, size_t cap);

#ifndef NNT_NO_STDIO
/* The plan of a compiled net's step as a file: a picture of the arena over the step when the name ends in .svg, else text:
   "arena BYTES", "buffer ID OFFSET BYTES FIRST LAST NAME" (FIRST -1: there before), "step I NAME FLOPS r:IDS w:IDS
   [ws:BYTES@OFFSET]", from which anyone can check that nothing overlaps. */
NNT_API nnt_result nnt_plan_write(nnt_net *net, const char *path);
#endif

/* A table of layers, output shapes, parameters and FLOPs a sample (a multiplication and an addition are two). Writes at
   most cap bytes with the final 0 and returns the length that the whole needs without it, as snprintf. */
NNT_API size_t nnt_summary(const nnt_net *net, char *text, size_t cap);

/* ============================================================================
   Data
   Constructors return an object that may hold an error instead of data; nnt_dataset_error tells, and everything that
   is given such an object returns its code and sentence. So only the last call has to be checked. NULL (memory out)
   is passed through too.
   ============================================================================ */

/* One sample for the loader: fills channels*height*width floats of x; *label, which is never NULL, when the reader has
   classes; target unless target_size is 0 (then it is NULL). Called from several threads at once. Return NNT_OK, or a code after writing a sentence of at most cap bytes to why. */
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
   bytes (n). A file compressed with gzip, told by its content, is unpacked by stb_image, which has to be included before
   the implementation. Values reach the net as value / 255; classes: the largest label + 1. labels NULL: none. */
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
NNT_API int64_t      nnt_loader_batch(const nnt_loader *l);            /* its number in that epoch; nnt_loader_batches: none left */
NNT_API nnt_result   nnt_loader_rewind(nnt_loader *l, int64_t epoch);  /* the next batch is the first of that epoch */
NNT_API nnt_result   nnt_loader_seek(nnt_loader *l, int64_t epoch, int64_t batch);     /* or that one; the same samples come */

/* ============================================================================
   Training
   ============================================================================ */

/* What a loss counts over a batch. */
typedef struct nnt_loss {
    double sum;                     /* of weight*loss over samples */
    double weight;                  /* sum of the samples' weights: class_weights[label], else 1; ignored samples 0 */
    double correct, correct5;       /* samples whose label is the largest logit, among the five largest */
    double samples;                 /* that count */
} nnt_loss;

/* Forward, backward and, each optimizer.accumulate calls, the update. loss may be NULL. NNT_ERR_NOT_FINITE when the
   loss is not finite: nothing was updated then. */
NNT_API nnt_result nnt_step(nnt_net *net, const nnt_batch *batch, float *loss);

/* Applies gradients that wait for more batches (accumulate); without such it does nothing. */
NNT_API nnt_result nnt_update(nnt_net *net);

/* Forward and backward, to look at gradients (nnt_grad): weights, running statistics and the count of steps stay as they
   are. Not while gradients wait for more batches. */
NNT_API nnt_result nnt_backward(nnt_net *net, const nnt_batch *batch, float *loss);

/* Counts of the last batch that nnt_step or nnt_backward saw. */
NNT_API nnt_loss   nnt_last_loss(const nnt_net *net);
NNT_API int64_t    nnt_steps(const nnt_net *net);              /* nnt_step calls that succeeded so far */
NNT_API nnt_result nnt_set_learning_rate(nnt_net *net, float lr);      /* optimizer.lr from now on; its schedule stays */

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

/* Snapshots that nnt_fit writes (see nnt_snapshot): at the end of each epoch, and when a callback stops it. */
typedef struct nnt_checkpoint_desc {
    const char *path;               /* of the newest; NULL: none are written */
    int64_t     every_steps;        /* also after each so many steps; 0: no */
    int         keep;               /* newest ones kept: path, path.1, path.2, ...; 0: 1 */
    int         best;               /* also path.best: of the best epoch so far, by nnt_fit_desc.monitor */
    int         resume;             /* go on from path if it is there, else begin: the same program can be started again */
} nnt_checkpoint_desc;

/* Which figure says that an epoch was better: of the validation data if there are any, else of the training data. */
enum { NNT_MONITOR_LOSS = 0, NNT_MONITOR_ACCURACY };

typedef struct nnt_fit_desc {
    int           epochs;           /* 0: 1 */
    nnt_loader   *validation;       /* evaluated after each epoch; or NULL */
    nnt_callback  callback;         /* nnt_progress for a ready-made one; or NULL */
    void         *user;
    nnt_checkpoint_desc checkpoint;
    int           monitor;          /* NNT_MONITOR_..., for checkpoint.best and patience */
    int           patience;         /* ends after so many epochs in a row without a better one; 0: never */
} nnt_fit_desc;
/* The loader goes on where it is: after a stop in the middle of an epoch, the first epoch is the rest of that one. After
   nnt_resume the run goes on as if it had not been interrupted; epochs counts those before too. Batches
   must not be larger than the compiled one (nnt_evaluate takes any). One loader should not serve training and validation. */
NNT_API nnt_result nnt_fit(nnt_net *net, nnt_loader *loader, nnt_fit_desc d);

/* ============================================================================
   Profile: where the time goes
   Off, it costs a branch an op; on, a look at the clock. On a device that works on its own, ops are timed by its events,
   or waited for one by one. Memory for the figures is taken by start and by the first call with a loader, none in a step.
   ============================================================================ */

/* From here on, or on again after nnt_profile_stop. After nnt_compile. */
NNT_API nnt_result nnt_profile_start(nnt_net *net);
/* Watches a loader too: its workers, and the waiting for it. nnt_fit and nnt_evaluate do it with theirs; for a loop of one's
   own. At most 4 loaders; they may be freed before or after the net. */
NNT_API nnt_result nnt_profile_loader(nnt_net *net, nnt_loader *loader);
NNT_API nnt_result nnt_profile_stop(nnt_net *net);
NNT_API nnt_result nnt_profile_reset(nnt_net *net);            /* all figures to 0; what is on stays on */

/* One line of a profile: a thread's time in one place, without what lies deeper. Levels that don't apply are "". All rows
   of a thread sum up to the time that it was watched. */
typedef struct nnt_profile_row {
    char    thread[32];             /* "net": the thread that trains; "loader 1 worker 2" */
    char    part[24];               /* "wait for data", "step", "predict", "callback", "elsewhere"; of a worker "batch", "idle" */
    char    phase[16];              /* "forward", "made again", "backward", "update", "upload", "read", "decode", ... */
    char    layer[64];              /* as nnt_name, or conv2d1 */
    char    kind[24];               /* of the op: "conv_weight" */
    int64_t count;                  /* times, or samples for a worker's stages */
    double  seconds, flops, bytes;  /* bytes: moved by a copy, or read and written by an op at the least */
} nnt_profile_row;
/* At most cap rows, in the order of a step; returns how many there are. */
NNT_API int    nnt_profile_rows(nnt_net *net, nnt_profile_row *rows, int cap);
/* A verdict in words: what to look at first, and what would help. Both write and return as nnt_summary. */
NNT_API size_t nnt_profile_verdict(nnt_net *net, char *text, size_t cap);
NNT_API size_t nnt_profile_text(nnt_net *net, char *text, size_t cap);     /* the verdict, threads, and the largest rows */
#ifndef NNT_NO_STDIO
NNT_API nnt_result nnt_profile_flame_svg(nnt_net *net, const char *path);  /* one picture: hover, click to zoom, search */
NNT_API nnt_result nnt_profile_trace(nnt_net *net, const char *path);      /* JSON for chrome://tracing and ui.perfetto.dev: the
                                                                              last 65,536 events of the net, 8,192 of a loader */
NNT_API nnt_result nnt_profile_folded(nnt_net *net, const char *path);     /* "a;b;c MICROSECONDS" for flamegraph.pl, speedscope */
#endif

/* ============================================================================
   Health: are the numbers all right?
   ============================================================================ */

/* What one batch says about a layer. */
typedef struct nnt_layer_health {
    char   layer[64], kind[24];     /* as nnt_name, or conv2d1; conv2d. A relu that a layer does with it belongs to that layer */
    int    relu;                    /* the output has passed a relu, */
    double output, output_max;      /* and its root mean square and largest magnitude are these, */
    double zeros, dead;             /*   so many of its values are 0, of its channels 0 in the whole batch: shares, 0 to 1 */
    double weight, gradient;        /* norms, roots of sums of squares, of weight and bias together; 0 without parameters */
    double update;                  /* norm of what the next update would change, divided by `weight`. Usual: near 1e-3 */
} nnt_layer_health;

/* Runs a step's ops one by one on a batch and looks at everything that they write; *count gets how many layers there are,
   rows at most cap of them. NNT_ERR_NOT_FINITE names the first value that is not finite, by layer and op. Afterwards all
   is as before, but for gradients and nnt_last_loss, which are the batch's. Takes about twice nnt_memory.fixed on the host
   meanwhile. nnt_step and nnt_fit look for the first such value by themselves when a loss is not finite. */
NNT_API nnt_result nnt_health(nnt_net *net, const nnt_batch *batch, nnt_layer_health *rows, int cap, int *count);
/* The rows as a table, and what is odd about them in words. Writes and returns as nnt_summary. */
NNT_API size_t nnt_health_text(const nnt_layer_health *rows, int count, char *text, size_t cap);

/* The last nnt_fit, epoch by epoch: what its callbacks were told with NNT_EVENT_EPOCH. Valid until the next nnt_fit. */
NNT_API const nnt_progress_info *nnt_history(const nnt_net *net, int *epochs);

#ifndef NNT_NO_STDIO
/* A callback that shows a bar, images a second, loss and time left on stderr when that is a terminal, and a plain line
   an epoch when it is not. The only function of the library that prints, and only if given to nnt_fit. */
NNT_API int nnt_progress(void *user, nnt_net *net, const nnt_progress_info *info);

/* ============================================================================
   Files: safetensors (github.com/huggingface/safetensors, format 0.x), names as the layers'
   ============================================================================ */

/* Weights and running statistics, float32, and the net's metadata. Written beside, flushed, then renamed. */
NNT_API nnt_result nnt_save(nnt_net *net, const char *path);
/* All or nothing: every parameter of the net has to be there with its shape, as f32, f64, f16 or bf16. Other tensors in
   the file are passed over. The file's metadata are the net's from then on. Snapshots can be loaded too. */
NNT_API nnt_result nnt_load(nnt_net *net, const char *path);

/* Loading from files that were made for something else. Zeroed it is nnt_load. */
typedef struct nnt_load_desc {
    const char *prefix;             /* only parameters whose names begin so; NULL: all */
    const char *file_prefix;        /* what stands in the file in its place; NULL: nothing */
    const char *exclude;            /* parameters whose names begin so keep their values: a last layer for other classes */
    int         allow_missing;      /* parameters that are not in the file keep their values; one has to be there */
    int         strict;             /* a tensor in the file that the net does not have is an error. Whole numbers are not
                                       (batch norm's num_batches_tracked), nor what a snapshot has beside the weights */
    char       *report;             /* what was loaded, missing, passed over, by name; at most report_cap bytes */
    size_t      report_cap;
} nnt_load_desc;
NNT_API nnt_result nnt_load_ex(nnt_net *net, const char *path, nnt_load_desc d);

/* Snapshots: the weights and everything else that the future of a run depends on: the optimizer's moments, gradients that
   wait for more batches, counts of steps, the seeds, the loader's position in its epoch; from inside of nnt_fit also what
   the epoch counted so far, the history, the best epoch. In the same container, under names that begin with "nntrain.".
   loader NULL: without. After a kill at any instant there is a whole snapshot. */
NNT_API nnt_result nnt_snapshot(nnt_net *net, nnt_loader *loader, const char *path);
/* Puts net and loader where they were: the same steps follow, bit for bit, on the same program and processor. The net has
   to be compiled as it was then; the learning rate is the one of then, set by nnt_set_learning_rate or not, unless it is
   compiled with another one now. Where path is missing, path.1 is taken (see nnt_checkpoint_desc.keep). */
NNT_API nnt_result nnt_resume(nnt_net *net, nnt_loader *loader, const char *path);
#endif

/* Texts that go with the weights into files: names of classes, where the data came from. Keys "format" and those that
   begin with "nntrain." are the library's. value NULL takes a text away. Both are copied. */
NNT_API nnt_result  nnt_set_metadata(nnt_net *net, const char *key, const char *value);
NNT_API const char *nnt_metadata(const nnt_net *net, const char *key);         /* NULL: there is none */
NNT_API const char *nnt_metadata_key(const nnt_net *net, int index);           /* in no special order; NULL behind the last */

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
   Devices: memory now; what a backend fills in, and what it is given
   ============================================================================ */

/* A device's memory at this moment, in bytes; 0 where the system does not tell. */
typedef struct nnt_memory_usage {
    size_t total;                   /* "cpu": what the machine has, or less where a control group allows the process less */
    size_t used, available;         /* sum up to total; memory that only caches files counts as available */
    size_t process;                 /* used by this process; "cpu": its resident pages */
} nnt_memory_usage;
/* device as in nnt_compile_desc, NULL: "cpu". After an error a sentence of at most cap bytes is in why, which may be NULL. */
NNT_API nnt_result nnt_memory_info(const char *device, nnt_memory_usage *out, char *why, size_t cap);

/* Kinds of resolved ops. What each reads and writes stands beside it, by role; [] is optional.
   n samples of this run; x is n*in_c*in_h*in_w, y is n*out_c*out_h*out_w. G.. are gradients. */
enum {
    NNT_OP_NONE = 0,
    NNT_OP_COPY,                /* X -> Y                     y = x */
    NNT_OP_ACCUMULATE,          /* X, Y -> Y                  y += x; MASK as below */
    NNT_OP_CONV,                /* X W [B] -> Y               flag RELU: y = max(y, 0) */
    NNT_OP_CONV_DATA,           /* GY W [MASK] -> GX          flag ACCUMULATE: gx += */
    NNT_OP_CONV_WEIGHT,         /* X GY -> GW [GB]            adds when run->accumulate */
    NNT_OP_CONV_POOL,           /* X W [B] -> Y [AUX]         convolution [relu] and max pooling of it; mid_h, mid_w, pool_...: between */
    NNT_OP_CONV_POOL_DATA,      /* GY AUX W [MASK] -> GX      flags as CONV_DATA */
    NNT_OP_CONV_POOL_WEIGHT,    /* X GY AUX -> GW [GB]        adds when run->accumulate */
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
    NNT_OP_ADAPTIVE_GRAD,       /* GY [MASK] -> GX            flags ACCUMULATE; OVER when the output is 1 x 1 */
    NNT_OP_DROPOUT,             /* X -> Y                     f[0] = p; backward is the same op on gradients; X may be Y.
                                   variant 1: backward needs neither (the mask of a relu before it is taken from Y) */
    NNT_OP_NOISE,               /* X -> Y                     variant NNT_NOISE_..., f: amount, low, high, clamp; X may be Y */
    NNT_OP_NOISE_GRAD,          /* GY X -> GX                 0 where salt or pepper or the clamp took over; GX may be GY */
    NNT_OP_BN_STATS,            /* X -> STATS                 mean[c], 1/sqrt(var+eps)[c], unbiased var[c]. f: eps */
    NNT_OP_BN_RUNNING,          /* STATS RUNNING -> RUNNING   r = (1 - f[1]) r + f[1] batch's. Once a step, never repeated */
    NNT_OP_BN_APPLY,            /* X STATS [W B] -> Y         flag RELU; X may be Y */
    NNT_OP_BN_EVAL,             /* X RUNNING [W B] -> Y       RUNNING: mean[c], var[c]; flag RELU; X may be Y */
    NNT_OP_BN_GRAD,             /* X GY STATS [W] [MASK] -> GX [GW GB]  GX may be GY or X; flag ACCUMULATE: gx +=; adds to GW, GB when run->accumulate */
    NNT_OP_BN_POOL,             /* X STATS [W B] -> Y [AUX]   batch norm [relu] and max pooling; RUNNING in place of STATS as BN_EVAL */
    NNT_OP_BN_POOL_GRAD,        /* X GY AUX STATS [W] -> GX [GW GB]  GX may be X; adds to GW, GB when run->accumulate */
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
    NNT_OPF_OVER = 8,           /* with MASK: GX may be MASK itself */
    NNT_OPF_EXACT = 16          /* CONV: sums of products as written, no fast convolution (nnt_conv_desc.exact) */
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
    int   mid_h, mid_w;             /* ..._POOL: sizes between the two; of out_c channels */
    int   pool_kernel_h, pool_kernel_w, pool_stride_h, pool_stride_w, pool_pad_h, pool_pad_w;
    int   channel_offset;           /* CONCAT */
    int   ignore_label, use_ignore; /* CROSS_ENTROPY */
    int   precision;                /* of matrix products: NNT_FP32, _TF32, _BF16 */
    uint32_t stream;                /* of random numbers: differs for each layer that uses them */
    float f[4];
    int64_t count;                  /* UPDATE, GRAD_NORM: values */
    void *at[NNT_ROLES];            /* NULL: not there */
    void *workspace;                /* workspace_bytes, as the backend's workspace function asked for */
    size_t workspace_bytes;
    const char *name;               /* the layer, for messages */
    int   node;                     /* its number in the graph */
    int   phase;                    /* NNT_PHASE_... */
    double flops, bytes;            /* a sample, at the whole batch: arithmetic, and memory read and written at the least */
} nnt_op;

enum { NNT_PHASE_FORWARD = 0, NNT_PHASE_AGAIN, NNT_PHASE_BACKWARD, NNT_PHASE_UPDATE };    /* AGAIN: recomputation */

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

/* A device's functions. Order of calls: open; alloc; workspace for each op; run, upload, download in any order; release;
   close. Functions get the device that open made. All return NNT_OK or write a sentence to the device's text that
   `error` gives. Members marked (optional) may be NULL. Work may still be under way when run, upload, fill, random and
   axpby return, as long as it looks to later calls as if it were done; its failure is then the result of a later call. */
#define NNT_BACKEND_ABI 2
typedef struct nnt_backend {
    int abi;                                                            /* NNT_BACKEND_ABI */
    const char *name;                                                   /* "cpu", "cuda", "null" */
    int        (*count)(void);                                          /* devices present; with 0, open is asked why */
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
    void       (*host_threads)(void *device, nnt_parallel_fn fn, void *user);   /* (optional) compute on these. NULL: it needs none */
    nnt_result (*memory)(int index, nnt_memory_usage *out, char *why, size_t cap);  /* (optional) of a device that need not be open.
                                                                           out comes zeroed. NULL: nnt_memory_info can't tell */
    int        (*precision)(void *device, int precision);               /* (optional) whether products can be NNT_TF32, _BF16. NULL: no */
    nnt_result (*fetch)(void *device, const void *from, size_t bytes);  /* (optional) begins a download of at most 64 bytes that the next
                                                                           download of the same bytes finishes; work that is run between
                                                                           the two goes on behind it. Only for work that is under way when run returns */
    nnt_result (*run_timed)(void *device, const nnt_op *ops, int count, const nnt_run *run, double *seconds); /* (optional) as run, waits,
                                                                           and adds the seconds of op i to seconds[i], for nnt_profile_start.
                                                                           NULL: ops are run one by one, between sync and a clock */
    void       (*stage)(void *device, void *buffer, size_t bytes);      /* (optional) memory of alloc's, as large as a batch's input, for uploads
                                                                           that begin before their turn. NULL: none is planned */
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
#  if defined(__GNUC__) && !defined(__clang__)      /* gcc 12's own _mm512 functions: a false alarm, and -O0's macros */
#    pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#  endif
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
static size_t  nnti_min_size(size_t a, size_t b) { return a < b ? a : b; }
static int64_t nnti_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ============================================================================
   >>alloc    Memory through the user's functions, sizes without overflow
   ============================================================================ */

#define NNTI_ALIGN ((size_t)64)
#define NNTI_TOO_LARGE (SIZE_MAX >> 12)     /* more bytes than any memory has; sums of some hundred don't wrap */

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
   The pool runs chunks on threads of its own or on the host's (nnt_parallel_fn); its caller works along.
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
typedef int nnti_thread_id;
static nnti_thread_id nnti_this_thread(void) { return 0; }
static int nnti_same_thread(nnti_thread_id a, nnti_thread_id b) { return a == b; }
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
typedef DWORD nnti_thread_id;
static nnti_thread_id nnti_this_thread(void) { return GetCurrentThreadId(); }
static int nnti_same_thread(nnti_thread_id a, nnti_thread_id b) { return a == b; }
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
typedef pthread_t nnti_thread_id;
static nnti_thread_id nnti_this_thread(void) { return pthread_self(); }
static int nnti_same_thread(nnti_thread_id a, nnti_thread_id b) { return pthread_equal(a, b) != 0; }
#endif

/* Sequentially consistent: the pool lets two threads each write one word and then look at the other's. */
#if defined(__GNUC__) || defined(__clang__)
static int  nnti_atomic_load(const int *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static void nnti_atomic_store(int *p, int v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
static int  nnti_atomic_add(int *p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
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

/* Processors in a line "Cpus_allowed: ff,ffffffff" of /proc/.../status; 0 when there is none. */
static int nnti_affinity_cores(const char *status)
{
    const char *s = strstr(status, "Cpus_allowed:");
    int cores = 0;
    for (s = s ? s + 13 : ""; *s && *s != '\n'; s++) {
        int v = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 0;
        for (; v; v &= v - 1) cores++;
    }
    return cores;
}
/* Processors' worth of time in a cgroup's cpu.max, "200000 100000" or "max 100000", rounded; 0: no limit. */
static int nnti_quota_cores(const char *text)
{
    char *end;
    double quota, period;
    if (text[0] < '0' || text[0] > '9') return 0;
    quota = (double)strtoul(text, &end, 10);
    period = (double)strtoul(end, NULL, 10);
    if (period <= 0) return 0;
    return quota / period < 1 ? 1 : quota / period > 65536 ? 0 : (int)(quota / period + 0.5);
}
#if defined(__linux__)
/* The start of a small file as text; 0 and "" when it can't be read. */
static int nnti_read_text(const char *path, char *text, size_t cap)
{
    int file = open(path, O_RDONLY);
    ssize_t got = file >= 0 ? read(file, text, cap - 1) : 0;
    if (file >= 0) close(file);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}
/* The smallest quota of this process's cgroup (version 2) and those above it; 0: none. In a container its own group is
   the root. */
static int nnti_cgroup_cores(void)
{
    char groups[1024], path[1200], text[64], *group, *end;
    int least = 0;
    nnti_read_text("/proc/self/cgroup", groups, sizeof groups);
    group = strstr(groups, "0::/");
    end = group ? strchr(group, '\n') : NULL;
    if (end) *end = 0;
    for (end = group ? group + strlen(group) : NULL; ; ) {
        int cores;
        nnti_format(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group && end > group + 4 ? group + 3 : "");
        nnti_read_text(path, text, sizeof text);
        cores = nnti_quota_cores(text);
        if (cores && (!least || cores < least)) least = cores;
        if (!group || end <= group + 4) return least;
        while (end > group + 4 && *--end != '/') { }        /* one level up */
        *end = 0;
    }
}
#endif
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
        int allowed, quota = nnti_cgroup_cores();
        nnti_read_text("/proc/thread-self/status", text, sizeof text);
        allowed = nnti_affinity_cores(text);
        if (allowed > 0 && allowed < cores) cores = allowed;
        if (quota > 0 && quota < cores) cores = quota;
    }
#  endif
    return cores;
#endif
}

/* fn(arg, chunk, worker) for chunk = 0 .. chunks-1; worker is below the pool's thread count and names the thread's own
   scratch. Which worker gets a chunk must not change what the chunk computes. */
typedef void (*nnti_task)(void *arg, int64_t chunk, int worker);

enum { NNTI_MAX_THREADS = 256, NNTI_MOST_CHUNKS = 1 << 30 };
#define NNTI_SPIN_SECONDS 1e-4      /* how long a thread that waits keeps its core: some times what waking one takes */

/* The chunks that one worker begins with. On a cache line of its own, since `next` changes with each chunk. */
typedef struct nnti_share { int next /* atomic */, last; char pad[56]; } nnti_share;
typedef struct nnti_worker { struct nnti_pool *pool; int index; nnti_thread thread; nnti_thread_id id; } nnti_worker;

/* A region is open while `state` is odd. Workers announce themselves by `inside` before they look whether it is; the
   caller closes it before it looks whether anybody is inside: so either a worker finds it closed, or the caller waits for
   that worker. Nobody waits for threads that have not woken up: others take their chunks. */
typedef struct nnti_pool {
    nnt_allocator a;
    int           threads;          /* the caller's included */
    int           started;          /* threads of our own; they start with the first region */
    int           state;            /* atomic */
    int           inside;           /* atomic: workers that may be at work */
    int           sleepers;         /* atomic: workers that sleep, or are about to */
    int           waiting;          /* atomic: the caller sleeps until nobody is inside */
    int           quit;             /* atomic */
    nnti_mutex    mutex;
    nnti_cond     wake, done;
    nnti_task     fn;
    void         *arg;
    nnti_share   *shares;           /* one a thread */
    nnti_worker  *workers;
    nnt_parallel_fn host;           /* NULL: threads of our own */
    void         *host_user;
} nnti_pool;

/* Chunks of the worker's own share, then what is left of others'. */
static void nnti_pool_work(nnti_pool *p, int worker)
{
    int k, i;
    for (k = 0; k < p->threads; k++) {
        nnti_share *s = &p->shares[(worker + k) % p->threads];
        while (nnti_atomic_load(&s->next) < s->last && (i = nnti_atomic_add(&s->next, 1)) < s->last) p->fn(p->arg, i, worker);
    }
}
/* Waits for a region that is not `seen`: spins for a while, then sleeps. Its state; even when the pool ends. */
static int nnti_pool_wait(nnti_pool *p, int seen)
{
    const double start = nnti_seconds();
    int state, spin;
    do {
        for (spin = 0; spin < 32; spin++) {
            state = nnti_atomic_load(&p->state);
            if ((state & 1 && state != seen) || nnti_atomic_load(&p->quit)) return state;
            nnti_pause();
        }
    } while (nnti_seconds() - start < NNTI_SPIN_SECONDS);
    nnti_lock(&p->mutex);
    nnti_atomic_add(&p->sleepers, 1);
    for (;;) {
        state = nnti_atomic_load(&p->state);
        if ((state & 1 && state != seen) || nnti_atomic_load(&p->quit)) break;
        nnti_cond_wait(&p->wake, &p->mutex);
    }
    nnti_atomic_add(&p->sleepers, -1);
    nnti_unlock(&p->mutex);
    return state;
}
static void nnti_pool_main(void *arg)
{
    nnti_worker *w = (nnti_worker *)arg;
    nnti_pool *p = w->pool;
    int seen = 0;
    nnti_lock(&p->mutex);
    w->id = nnti_this_thread();
    nnti_unlock(&p->mutex);
    for (;;) {
        const int state = nnti_pool_wait(p, seen);
        if (nnti_atomic_load(&p->quit)) return;
        nnti_atomic_add(&p->inside, 1);
        if (nnti_atomic_load(&p->state) == state) nnti_pool_work(p, w->index);
        seen = state;
        if (nnti_atomic_add(&p->inside, -1) == 1 && nnti_atomic_load(&p->waiting)) {
            nnti_lock(&p->mutex);
            nnti_cond_broadcast(&p->done);
            nnti_unlock(&p->mutex);
        }
    }
}
static void nnti_pool_free(nnti_pool *p)
{
    const nnt_allocator a = p->a;
    nnti_free(&a, p->workers, (size_t)p->threads * sizeof *p->workers);
    nnti_free(&a, p->shares, (size_t)p->threads * sizeof *p->shares);
    nnti_free(&a, p, sizeof *p);
}
static void nnti_pool_end_threads(nnti_pool *p)
{
    nnti_lock(&p->mutex);
    nnti_atomic_store(&p->quit, 1);
    nnti_cond_broadcast(&p->wake);
    nnti_unlock(&p->mutex);
    for (; p->started; p->started--) nnti_thread_join(&p->workers[p->started].thread);
    nnti_atomic_store(&p->quit, 0);
}
static void nnti_pool_stop(nnti_pool *p)
{
    if (!p) return;
    nnti_pool_end_threads(p);
    nnti_cond_destroy(&p->wake);
    nnti_cond_destroy(&p->done);
    nnti_mutex_destroy(&p->mutex);
    nnti_pool_free(p);
}
/* threads 0: as many as cores. NULL when memory is out. */
static nnti_pool *nnti_pool_start(const nnt_allocator *a, int threads)
{
    nnti_pool *p = (nnti_pool *)nnti_zalloc(a, 1, sizeof *p);
    if (!p) return NULL;
    p->a = *a;
    if (threads <= 0) threads = nnti_core_count();
#if defined(NNT_NO_THREADS) || defined(NNT_NO_THREADS_ATOMICS)
    threads = 1;
#endif
    p->threads = nnti_min(threads, NNTI_MAX_THREADS);
    p->workers = (nnti_worker *)nnti_zalloc(a, (size_t)p->threads, sizeof *p->workers);
    p->shares = (nnti_share *)nnti_zalloc(a, (size_t)p->threads, sizeof *p->shares);
    if (!p->workers || !p->shares || !nnti_mutex_init(&p->mutex)) { nnti_pool_free(p); return NULL; }
    nnti_cond_init(&p->wake);
    nnti_cond_init(&p->done);
    return p;
}
/* Our own threads, as many as the system gives: the chunks of those that are missing are taken by others. */
static void nnti_pool_begin_threads(nnti_pool *p)
{
    while (p->started + 1 < p->threads) {
        nnti_worker *w = &p->workers[p->started + 1];
        w->pool = p;
        w->index = p->started + 1;
        if (!nnti_thread_start(&w->thread, nnti_pool_main, w)) break;
        p->started++;
    }
}
static int nnti_pool_threads(const nnti_pool *p) { return p ? p->threads : 1; }

/* From now on on the host's threads; fn NULL: on our own. */
static void nnti_pool_set_host(nnti_pool *p, nnt_parallel_fn fn, void *user)
{
    nnti_pool_end_threads(p);
    memset(p->workers, 0, (size_t)p->threads * sizeof *p->workers);
    p->host = fn;
    p->host_user = user;
}
/* A share of a region on a thread of the host's. */
static void nnti_pool_host_task(void *arg, int index)
{
    nnti_pool *p = (nnti_pool *)arg;
    if (index < 0 || index >= p->threads) return;
    nnti_lock(&p->mutex);
    p->workers[index].id = nnti_this_thread();
    p->workers[index].index = index;
    nnti_unlock(&p->mutex);
    nnti_pool_work(p, index);
    nnti_lock(&p->mutex);
    p->workers[index].index = 0;
    nnti_unlock(&p->mutex);
}
/* Which worker this thread is, while a region is open; 0, which the others are not, is the caller. */
static int nnti_pool_here(nnti_pool *p)
{
    const nnti_thread_id me = nnti_this_thread();
    int i;
    nnti_lock(&p->mutex);
    for (i = p->threads - 1; i > 0; i--)
        if (p->workers[i].index == i && nnti_same_thread(p->workers[i].id, me)) break;
    nnti_unlock(&p->mutex);
    return i;
}
static void nnti_pool_wait_for_workers(nnti_pool *p)
{
    double start = 0;
    int spin;
    for (spin = 1; nnti_atomic_load(&p->inside); spin++) {
        nnti_pause();
        if (spin % 32) continue;
        if (spin == 32) start = nnti_seconds();
        else if (nnti_seconds() - start > NNTI_SPIN_SECONDS) break;
    }
    if (!nnti_atomic_load(&p->inside)) return;
    nnti_lock(&p->mutex);
    nnti_atomic_store(&p->waiting, 1);
    while (nnti_atomic_load(&p->inside)) nnti_cond_wait(&p->done, &p->mutex);
    nnti_atomic_store(&p->waiting, 0);
    nnti_unlock(&p->mutex);
}
static void nnti_pool_region(nnti_pool *p)
{
    if (!p->host && !p->started) nnti_pool_begin_threads(p);
    nnti_atomic_add(&p->state, 1);
    if (p->host) p->host(p->host_user, p->threads, nnti_pool_host_task, p);
    if (nnti_atomic_load(&p->sleepers)) {
        nnti_lock(&p->mutex);
        nnti_cond_broadcast(&p->wake);
        nnti_unlock(&p->mutex);
    }
    nnti_pool_work(p, 0);
    nnti_atomic_add(&p->state, 1);
    nnti_pool_wait_for_workers(p);
}

/* Runs all chunks and returns when they are done. From inside of a chunk, and for p NULL: in this thread. */
static void nnti_parallel(nnti_pool *p, int64_t chunks, nnti_task fn, void *arg)
{
    const int inside = p && p->threads > 1 && nnti_atomic_load(&p->state) & 1;
    int64_t i;
    int t;
    if (inside || !p || p->threads == 1 || chunks <= 1 || chunks > NNTI_MOST_CHUNKS) {
        const int worker = inside ? nnti_pool_here(p) : 0;
        for (i = 0; i < chunks; i++) fn(arg, i, worker);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    for (t = 0; t < p->threads; t++) {
        nnti_atomic_store(&p->shares[t].next, (int)(chunks * t / p->threads));
        p->shares[t].last = (int)(chunks * (t + 1) / p->threads);
    }
    nnti_pool_region(p);
}
#undef NNTI_SPIN_SECONDS

/* What a CPU kernel is given beside its op: who works for it, and with which instructions. */
typedef struct nnti_exec { nnti_pool *pool; int isa; } nnti_exec;

/* ============================================================================
   >>memory-info    Memory of the machine and of this process
   ============================================================================ */

#if defined(__linux__)
/* The number behind a word at the beginning of a line: "MemTotal:" of /proc/meminfo. -1: not there. */
static double nnti_number_of(const char *text, const char *word)
{
    size_t n = strlen(word);
    const char *line = text;
    while (line && *line) {
        if (strncmp(line, word, n) == 0) {
            for (line += n; *line == ' ' || *line == '\t'; line++) { }
            return *line >= '0' && *line <= '9' ? strtod(line, NULL) : -1;
        }
        line = strchr(line, '\n');
        if (line) line++;
    }
    return -1;
}
/* Files of one version of control groups; %s is the group's path. */
typedef struct nnti_cgroup_files { const char *mark, *limit, *used, *stat, *cache; } nnti_cgroup_files;

/* One group's limit and what is left of it, when they are less than what is known. A group without a limit says "max", or
   (version 1) a number larger than any memory. Pages that only cache files are given back when memory gets short. */
static void nnti_cgroup_limit(const nnti_cgroup_files *f, const char *path, double *total, double *available)
{
    char name[1200], text[8192];
    double limit, used, cache;
    nnti_format(name, sizeof name, f->limit, path);
    if (!nnti_read_text(name, text, sizeof text) || (limit = nnti_number_of(text, "")) < 0) return;
    nnti_format(name, sizeof name, f->used, path);
    used = nnti_read_text(name, text, sizeof text) ? nnti_number_of(text, "") : -1;
    nnti_format(name, sizeof name, f->stat, path);
    cache = nnti_read_text(name, text, sizeof text) ? nnti_number_of(text, f->cache) : -1;
    if (limit < *total) *total = limit;
    if (used < 0) return;
    used -= cache > 0 ? cache : 0;
    if (limit - used < *available) *available = limit > used ? limit - used : 0;
}
/* The group of this process and all those around it. In a container the path may be the host's, which is not to be seen
   from inside: then only the last step, the root, counts, and that is the container's own group. */
static void nnti_cgroup_limits(double *total, double *available)
{
    static const nnti_cgroup_files version[2] = {
        { "0::/", "/sys/fs/cgroup%s/memory.max", "/sys/fs/cgroup%s/memory.current", "/sys/fs/cgroup%s/memory.stat", "inactive_file" },
        { ":memory:/", "/sys/fs/cgroup/memory%s/memory.limit_in_bytes", "/sys/fs/cgroup/memory%s/memory.usage_in_bytes",
          "/sys/fs/cgroup/memory%s/memory.stat", "total_inactive_file" }
    };
    char text[4096], path[1024];
    int i;
    if (!nnti_read_text("/proc/self/cgroup", text, sizeof text)) return;
    for (i = 0; i < 2; i++) {
        const char *at = strstr(text, version[i].mark), *end;
        char *slash;
        if (!at) continue;
        at += strlen(version[i].mark) - 1;
        end = strchr(at, '\n');
        nnti_format(path, sizeof path, "%s", at);
        if (end && (size_t)(end - at) < sizeof path) path[end - at] = 0;
        while ((slash = strrchr(path, '/')) != NULL) {
            if (slash[1]) nnti_cgroup_limit(&version[i], path, total, available);
            *slash = 0;
        }
        nnti_cgroup_limit(&version[i], "", total, available);
    }
}
#endif

static nnt_result nnti_device_says(char *why, size_t cap, const char *text)
{
    nnti_format(why, cap, "%s", text);
    return NNT_ERR_DEVICE;
}
static nnt_result nnti_host_memory(int index, nnt_memory_usage *out, char *why, size_t cap)
{
    (void)index; (void)why; (void)cap;
#if defined(NNTI_WINDOWS)
    {
        MEMORYSTATUSEX m;
        m.dwLength = sizeof m;
        if (!GlobalMemoryStatusEx(&m)) return nnti_device_says(why, cap, "the system does not tell");
        out->total = (size_t)m.ullTotalPhys;
        out->available = (size_t)m.ullAvailPhys;
        out->used = out->total - out->available;
    }
#elif defined(__linux__)
    {
        char text[4096];
        double total, available, pages;
        long page = sysconf(_SC_PAGESIZE);
        if (!nnti_read_text("/proc/meminfo", text, sizeof text)) return nnti_device_says(why, cap, "/proc/meminfo can't be read");
        total = 1024.0 * nnti_number_of(text, "MemTotal:");
        available = 1024.0 * nnti_number_of(text, "MemAvailable:");
        if (available < 0) available = 1024.0 * nnti_number_of(text, "MemFree:");       /* kernels before 3.14 */
        if (total < 0 || available < 0) return nnti_device_says(why, cap, "/proc/meminfo has no MemTotal or no MemFree");
        nnti_cgroup_limits(&total, &available);
        out->total = (size_t)total;
        out->available = nnti_min_size((size_t)available, out->total);
        out->used = out->total - out->available;
        if (nnti_read_text("/proc/self/statm", text, sizeof text) && page > 0) {       /* size, then resident, in pages */
            const char *second = strchr(text, ' ');
            pages = second ? strtod(second, NULL) : 0;
            out->process = (size_t)(pages * (double)page);
        }
    }
#elif defined(_SC_PHYS_PAGES)
    {
        long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
        if (page > 0 && pages > 0) out->total = (size_t)page * (size_t)pages;
    }
#endif
    return NNT_OK;
}

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

/* ============================================================================
   >>vectors    Short vectors: what the compilers' vector types lack beside C's operators
   nnti_f8 is 8 floats, nnti_u8 8 words; a cast between them keeps the bits, comparisons give all ones or zeros.
   Functions end in the instruction set: nnti_fma_avx2 for 8 lanes, _avx512 for 16, _neon for 4.
   ============================================================================ */

#if defined(NNTI_X86)
typedef float    nnti_f8 __attribute__((vector_size(32)));
typedef int32_t  nnti_i8 __attribute__((vector_size(32)));
typedef uint32_t nnti_u8 __attribute__((vector_size(32)));

NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_set_avx2(float a) { return (nnti_f8)_mm256_set1_ps(a); }
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_fma_avx2(nnti_f8 a, nnti_f8 b, nnti_f8 c)
{
    return (nnti_f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_sqrt_avx2(nnti_f8 a) { return (nnti_f8)_mm256_sqrt_ps((__m256)a); }
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_round_avx2(nnti_f8 a)
{
    return (nnti_f8)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
NNTI_AVX2 NNTI_INLINE nnti_i8 nnti_to_int_avx2(nnti_f8 a) { return (nnti_i8)_mm256_cvtps_epi32((__m256)a); }
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_from_int_avx2(nnti_u8 a) { return (nnti_f8)_mm256_cvtepi32_ps((__m256i)a); }
/* A value that is not a number in b passes, one in a does not; of equal values b. */
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_max_avx2(nnti_f8 a, nnti_f8 b) { return (nnti_f8)_mm256_max_ps((__m256)a, (__m256)b); }
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_min_avx2(nnti_f8 a, nnti_f8 b) { return (nnti_f8)_mm256_min_ps((__m256)a, (__m256)b); }
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_select_avx2(nnti_i8 mask, nnti_f8 a, nnti_f8 b)        /* mask ? a : b */
{
    return (nnti_f8)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
}
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_abs_avx2(nnti_f8 a) { return (nnti_f8)((nnti_u8)a & 0x7fffffffu); }
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_copysign_avx2(nnti_f8 a, nnti_f8 sign)                   /* a at least +0 */
{
    return (nnti_f8)((nnti_u8)a | ((nnti_u8)sign & 0x80000000u));
}

/* The first n floats at p, and zeros; the other way round. n from 1; 8 and more are 8. */
static const int32_t nnti_lane_mask[16] = { -1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0 };
NNTI_AVX2 NNTI_INLINE __m256i nnti_lanes_avx2(int64_t n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(nnti_lane_mask + 8 - n));
}
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_get_avx2(const float *p, int64_t n)
{
    return (nnti_f8)(n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, nnti_lanes_avx2(n)));
}
NNTI_AVX2 NNTI_INLINE void nnti_put_avx2(float *p, nnti_f8 v, int64_t n)
{
    if (n >= 8) _mm256_storeu_ps(p, (__m256)v);
    else _mm256_maskstore_ps(p, nnti_lanes_avx2(n), (__m256)v);
}
#endif

/* ============================================================================
   >>random-fill    Arrays of random words, uniforms and normals, with the same bits from every instruction set
   Numbers of >>random, element e of a sample from block e / 4. Every multiply-add is an explicit fma and no product
   meets a bare addition, so that neither contraction nor the instruction set changes a bit. -ffast-math may.
   ============================================================================ */

/* The counter's words beside the block. */
typedef struct nnti_random_key { uint64_t seed, step; uint32_t stream, sample; } nnti_random_key;

enum { NNTI_DRAW_BITS, NNTI_DRAW_UNIT, NNTI_DRAW_SIGNED, NNTI_DRAW_NORMAL };  /* words; [0, 1); [-1, 1); normal: floats */
enum { NNTI_DRAW_GROUP = 64 };             /* elements made at a time: 16 blocks, a multiple of every vector's */

/* ln(1 + t) on [sqrt(1/2) - 1, sqrt(2) - 1], sine and cosine on [-pi/4, pi/4]: Cephes' single-precision polynomials. */
static const float nnti_log_poly[9] = { 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
    1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f };
static const float nnti_sin_poly[3] = { -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f };
static const float nnti_cos_poly[5] = { 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f, -0.5f, 1.0f };
#define NNTI_LN2_HIGH 0.693359375f          /* 10 bits, so that its products with exponents are exact */
#define NNTI_LN2_LOW  -2.12194440e-4f
#define NNTI_SQRT_HALF 0x3f3504f3u          /* bits of sqrt(1/2) */
#define NNTI_QUARTER_TURN 3.6572951981e-10f /* (pi / 2) / 2^32 */
#define NNTI_TWO_TO_M23 1.1920928955078125e-7f
#define NNTI_TWO_TO_M24 5.9604644775390625e-8f

/* Two independent standard normals from two words (Box and Muller 1958): sqrt(-2 ln u) times cosine and sine of an
   angle. At most 6.77; u is within (0, 1]. */
static void nnti_normal_pair(uint32_t a, uint32_t b, float *z0, float *z1)
{
    /* f = a + 1/2 rounded once, u = f / 2^32; f = 2^(e + 32) (1 + t) with 1 + t in [sqrt(1/2), sqrt(2)) */
    float f = fmaf((float)(int32_t)(a >> 16), 65536.0f, (float)(int32_t)(a & 0xffffu) + 0.5f);
    uint32_t m = nnti_float_bits(f) - NNTI_SQRT_HALF;
    float e = (float)(((int32_t)m >> 23) - 32);
    float t = nnti_bits_float((m & 0x7fffffu) + NNTI_SQRT_HALF) - 1.0f, q = t * t, p = nnti_log_poly[0];
    float g, w, s, c, r;
    uint32_t swap, sign0, sign1, x, y;
    int i;
    for (i = 1; i < 9; i++) p = fmaf(p, t, nnti_log_poly[i]);
    p = fmaf(p * t, q, e * NNTI_LN2_LOW);
    p = fmaf(q, -0.5f, p) + t;
    p = fmaf(e, NNTI_LN2_HIGH, p);                              /* ln u */
    r = sqrtf(p * -2.0f);

    /* the two top bits choose the quadrant, the other thirty an angle in [-pi/4, pi/4) */
    g = (float)(int32_t)(b << 2) * NNTI_QUARTER_TURN;
    w = g * g;
    s = nnti_sin_poly[0];
    for (i = 1; i < 3; i++) s = fmaf(s, w, nnti_sin_poly[i]);
    s = fmaf(s * w, g, g);
    c = nnti_cos_poly[0];
    for (i = 1; i < 5; i++) c = fmaf(c, w, nnti_cos_poly[i]);
    swap = 0u - (b >> 30 & 1u);
    sign0 = (b ^ b << 1) & 0x80000000u;
    sign1 = b & 0x80000000u;
    x = (nnti_float_bits(s) & swap) | (nnti_float_bits(c) & ~swap);
    y = (nnti_float_bits(c) & swap) | (nnti_float_bits(s) & ~swap);
    *z0 = r * nnti_bits_float(x ^ sign0);
    *z1 = r * nnti_bits_float(y ^ sign1);
}
/* to[0 .. 64 groups) = elements from 64 group on; blocks from 2^32 on go to the next sample. */
static void nnti_draw_groups_c(uint32_t *to, int kind, const nnti_random_key *k, uint64_t group, int64_t groups)
{
    uint64_t block = group * (NNTI_DRAW_GROUP / 4), end = block + (uint64_t)groups * (NNTI_DRAW_GROUP / 4);
    float z[4];
    int i;
    for (; block < end; block++, to += 4) {
        nnti_random4(to, k->seed, k->step, k->stream, k->sample + (uint32_t)(block >> 32), (uint32_t)block);
        if (kind == NNTI_DRAW_BITS) continue;
        if (kind == NNTI_DRAW_NORMAL) {
            nnti_normal_pair(to[0], to[1], &z[0], &z[1]);
            nnti_normal_pair(to[2], to[3], &z[2], &z[3]);
        } else if (kind == NNTI_DRAW_UNIT) {
            for (i = 0; i < 4; i++) z[i] = nnti_unit(to[i]);
        } else {
            for (i = 0; i < 4; i++) z[i] = (float)((int32_t)(to[i] >> 8) - 8388608) * NNTI_TWO_TO_M23;
        }
        memcpy(to, z, sizeof z);
    }
}

#if defined(NNTI_X86) || defined(NNTI_NEON)
/* The same for W blocks at a time; instantiated below. */
#define NNTI_DRAW_VARIANT(W, ISA, TARGET)                                                                              \
TARGET NNTI_INLINE void nnti_philox_##ISA(nnti_u##W *c, uint64_t key)                                                  \
{                                                                                                                      \
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);                                                           \
    nnti_u##W h0, l0, h1, l1;                                                                                          \
    int r;                                                                                                             \
    for (r = 0; r < 10; r++) {                                                                                         \
        nnti_mul_##ISA(c[0], 0xD2511F53u, &h0, &l0);                                                                   \
        nnti_mul_##ISA(c[2], 0xCD9E8D57u, &h1, &l1);                                                                   \
        c[0] = h1 ^ c[1] ^ k0;                                                                                         \
        c[1] = l1;                                                                                                     \
        c[2] = h0 ^ c[3] ^ k1;                                                                                         \
        c[3] = l0;                                                                                                     \
        k0 += 0x9E3779B9u;                                                                                             \
        k1 += 0xBB67AE85u;                                                                                             \
    }                                                                                                                  \
}                                                                                                                      \
/* p = p x + coefficient */                                                                                            \
TARGET NNTI_INLINE nnti_f##W nnti_horner_##ISA(nnti_f##W p, nnti_f##W x, float coefficient)                            \
{                                                                                                                      \
    return nnti_fma_##ISA(p, x, nnti_set_##ISA(coefficient));                                                          \
}                                                                                                                      \
TARGET NNTI_INLINE void nnti_normal_pair_##ISA(nnti_u##W *pa, nnti_u##W *pb)                                           \
{                                                                                                                      \
    nnti_u##W a = *pa, b = *pb, m, swap, x, y;                                                                         \
    nnti_f##W f, e, t, q, p, r, g, w, s, c;                                                                            \
    f = nnti_fma_##ISA(nnti_from_int_##ISA(a >> 16), nnti_set_##ISA(65536.0f), nnti_from_int_##ISA(a & 0xffffu) + 0.5f); \
    m = (nnti_u##W)f - NNTI_SQRT_HALF;                                                                                 \
    e = nnti_from_int_##ISA((nnti_u##W)((nnti_i##W)m >> 23) - 32u);                                                    \
    t = (nnti_f##W)((m & 0x7fffffu) + NNTI_SQRT_HALF) - 1.0f;                                                          \
    q = t * t;                                                                                                         \
    p = nnti_horner_##ISA(nnti_set_##ISA(nnti_log_poly[0]), t, nnti_log_poly[1]);                                      \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[2]);                                                                     \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[3]);                                                                     \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[4]);                                                                     \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[5]);                                                                     \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[6]);                                                                     \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[7]);                                                                     \
    p = nnti_horner_##ISA(p, t, nnti_log_poly[8]);                                                                     \
    p = nnti_fma_##ISA(p * t, q, e * NNTI_LN2_LOW);                                                                    \
    p = nnti_fma_##ISA(q, nnti_set_##ISA(-0.5f), p) + t;                                                               \
    p = nnti_fma_##ISA(e, nnti_set_##ISA(NNTI_LN2_HIGH), p);                                                           \
    r = nnti_sqrt_##ISA(p * -2.0f);                                                                                    \
    g = nnti_from_int_##ISA(b << 2) * NNTI_QUARTER_TURN;                                                               \
    w = g * g;                                                                                                         \
    s = nnti_horner_##ISA(nnti_set_##ISA(nnti_sin_poly[0]), w, nnti_sin_poly[1]);                                      \
    s = nnti_horner_##ISA(s, w, nnti_sin_poly[2]);                                                                     \
    s = nnti_fma_##ISA(s * w, g, g);                                                                                   \
    c = nnti_horner_##ISA(nnti_set_##ISA(nnti_cos_poly[0]), w, nnti_cos_poly[1]);                                      \
    c = nnti_horner_##ISA(c, w, nnti_cos_poly[2]);                                                                     \
    c = nnti_horner_##ISA(c, w, nnti_cos_poly[3]);                                                                     \
    c = nnti_horner_##ISA(c, w, nnti_cos_poly[4]);                                                                     \
    swap = (nnti_u##W)((nnti_i##W)(b << 1) >> 31);                                                                     \
    x = ((nnti_u##W)s & swap) | ((nnti_u##W)c & ~swap);                                                                \
    y = ((nnti_u##W)c & swap) | ((nnti_u##W)s & ~swap);                                                                \
    *pa = (nnti_u##W)(r * (nnti_f##W)(x ^ ((b ^ b << 1) & 0x80000000u)));                                              \
    *pb = (nnti_u##W)(r * (nnti_f##W)(y ^ (b & 0x80000000u)));                                                         \
}                                                                                                                      \
TARGET static void nnti_draw_groups_##ISA(uint32_t *to, int kind, const nnti_random_key *k, uint64_t group,            \
                                          int64_t groups)                                                              \
{                                                                                                                      \
    uint64_t block = group * (NNTI_DRAW_GROUP / 4), end = block + (uint64_t)groups * (NNTI_DRAW_GROUP / 4);            \
    nnti_u##W zero = { 0 }, c[4];                                                                                      \
    int i;                                                                                                             \
    for (; block < end; block += W, to += 4 * W) {                                                                     \
        c[0] = nnti_count_##ISA() + (uint32_t)block;                                                                   \
        c[1] = zero + (k->sample + (uint32_t)(block >> 32));                                                           \
        c[2] = zero + (uint32_t)k->step;                                                                               \
        c[3] = zero + (k->stream | (uint32_t)(k->step >> 32) << 16);                                                   \
        nnti_philox_##ISA(c, k->seed);                                                                                 \
        if (kind == NNTI_DRAW_NORMAL) {                                                                                \
            nnti_normal_pair_##ISA(&c[0], &c[1]);                                                                      \
            nnti_normal_pair_##ISA(&c[2], &c[3]);                                                                      \
        } else if (kind == NNTI_DRAW_UNIT) {                                                                           \
            for (i = 0; i < 4; i++) c[i] = (nnti_u##W)(nnti_from_int_##ISA(c[i] >> 8) * NNTI_TWO_TO_M24);              \
        } else if (kind == NNTI_DRAW_SIGNED) {                                                                         \
            for (i = 0; i < 4; i++)                                                                                    \
                c[i] = (nnti_u##W)(nnti_from_int_##ISA((c[i] >> 8) - 8388608u) * NNTI_TWO_TO_M23);                     \
        }                                                                                                              \
        nnti_interleave_##ISA(to, c);                                                                                  \
    }                                                                                                                  \
}
#endif

#if defined(NNTI_X86)
NNTI_AVX2 NNTI_INLINE nnti_u8 nnti_count_avx2(void)
{
    nnti_u8 lanes = { 0, 1, 2, 3, 4, 5, 6, 7 };
    return lanes;
}
/* a m as 64 bits in two halves */
NNTI_AVX2 NNTI_INLINE void nnti_mul_avx2(nnti_u8 a, uint32_t m, nnti_u8 *high, nnti_u8 *low)
{
    __m256i factor = _mm256_set1_epi32((int)m), even = _mm256_mul_epu32((__m256i)a, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
    *low = (nnti_u8)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = (nnti_u8)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
/* to[4 lane + i] = c[i][lane] */
NNTI_AVX2 NNTI_INLINE void nnti_interleave_avx2(uint32_t *to, const nnti_u8 *c)
{
    __m256i a0 = _mm256_unpacklo_epi32((__m256i)c[0], (__m256i)c[1]), a1 = _mm256_unpackhi_epi32((__m256i)c[0], (__m256i)c[1]);
    __m256i b0 = _mm256_unpacklo_epi32((__m256i)c[2], (__m256i)c[3]), b1 = _mm256_unpackhi_epi32((__m256i)c[2], (__m256i)c[3]);
    __m256i r0 = _mm256_unpacklo_epi64(a0, b0), r1 = _mm256_unpackhi_epi64(a0, b0);     /* blocks 0 4, 1 5 */
    __m256i r2 = _mm256_unpacklo_epi64(a1, b1), r3 = _mm256_unpackhi_epi64(a1, b1);     /* blocks 2 6, 3 7 */
    __m256i *p = (__m256i *)(void *)to;
    _mm256_storeu_si256(p, _mm256_permute2x128_si256(r0, r1, 0x20));
    _mm256_storeu_si256(p + 1, _mm256_permute2x128_si256(r2, r3, 0x20));
    _mm256_storeu_si256(p + 2, _mm256_permute2x128_si256(r0, r1, 0x31));
    _mm256_storeu_si256(p + 3, _mm256_permute2x128_si256(r2, r3, 0x31));
}
NNTI_DRAW_VARIANT(8, avx2, NNTI_AVX2)

typedef float    nnti_f16 __attribute__((vector_size(64)));
typedef int32_t  nnti_i16 __attribute__((vector_size(64)));
typedef uint32_t nnti_u16 __attribute__((vector_size(64)));

NNTI_AVX512 NNTI_INLINE nnti_f16 nnti_set_avx512(float a) { return (nnti_f16)_mm512_set1_ps(a); }
NNTI_AVX512 NNTI_INLINE nnti_f16 nnti_fma_avx512(nnti_f16 a, nnti_f16 b, nnti_f16 c)
{
    return (nnti_f16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
NNTI_AVX512 NNTI_INLINE nnti_f16 nnti_sqrt_avx512(nnti_f16 a) { return (nnti_f16)_mm512_sqrt_ps((__m512)a); }
NNTI_AVX512 NNTI_INLINE nnti_f16 nnti_from_int_avx512(nnti_u16 a) { return (nnti_f16)_mm512_cvtepi32_ps((__m512i)a); }
NNTI_AVX512 NNTI_INLINE nnti_u16 nnti_count_avx512(void)
{
    nnti_u16 lanes = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    return lanes;
}
NNTI_AVX512 NNTI_INLINE void nnti_mul_avx512(nnti_u16 a, uint32_t m, nnti_u16 *high, nnti_u16 *low)
{
    __m512i factor = _mm512_set1_epi32((int)m), even = _mm512_mul_epu32((__m512i)a, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
    *low = (nnti_u16)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = (nnti_u16)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
NNTI_AVX512 NNTI_INLINE void nnti_interleave_avx512(uint32_t *to, const nnti_u16 *c)
{
    __m512i a0 = _mm512_unpacklo_epi32((__m512i)c[0], (__m512i)c[1]), a1 = _mm512_unpackhi_epi32((__m512i)c[0], (__m512i)c[1]);
    __m512i b0 = _mm512_unpacklo_epi32((__m512i)c[2], (__m512i)c[3]), b1 = _mm512_unpackhi_epi32((__m512i)c[2], (__m512i)c[3]);
    __m512i r0 = _mm512_unpacklo_epi64(a0, b0), r1 = _mm512_unpackhi_epi64(a0, b0);     /* blocks 0 4 8 12, 1 5 9 13 */
    __m512i r2 = _mm512_unpacklo_epi64(a1, b1), r3 = _mm512_unpackhi_epi64(a1, b1);     /* blocks 2 6 10 14, 3 7 11 15 */
    __m512i s0 = _mm512_shuffle_i32x4(r0, r1, 0x44), s1 = _mm512_shuffle_i32x4(r2, r3, 0x44);   /* 0 4 1 5, 2 6 3 7 */
    __m512i s2 = _mm512_shuffle_i32x4(r0, r1, 0xee), s3 = _mm512_shuffle_i32x4(r2, r3, 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(s0, s1, 0x88));
    _mm512_storeu_si512(to + 16, _mm512_shuffle_i32x4(s0, s1, 0xdd));
    _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(s2, s3, 0x88));
    _mm512_storeu_si512(to + 48, _mm512_shuffle_i32x4(s2, s3, 0xdd));
}
NNTI_DRAW_VARIANT(16, avx512, NNTI_AVX512)
#elif defined(NNTI_NEON)
typedef float    nnti_f4 __attribute__((vector_size(16)));
typedef int32_t  nnti_i4 __attribute__((vector_size(16)));
typedef uint32_t nnti_u4 __attribute__((vector_size(16)));

NNTI_INLINE nnti_f4 nnti_set_neon(float a) { return (nnti_f4)vdupq_n_f32(a); }
NNTI_INLINE nnti_f4 nnti_fma_neon(nnti_f4 a, nnti_f4 b, nnti_f4 c)
{
    return (nnti_f4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
NNTI_INLINE nnti_f4 nnti_sqrt_neon(nnti_f4 a) { return (nnti_f4)vsqrtq_f32((float32x4_t)a); }
NNTI_INLINE nnti_f4 nnti_from_int_neon(nnti_u4 a) { return (nnti_f4)vcvtq_f32_s32((int32x4_t)a); }
NNTI_INLINE nnti_u4 nnti_count_neon(void)
{
    nnti_u4 lanes = { 0, 1, 2, 3 };
    return lanes;
}
NNTI_INLINE void nnti_mul_neon(nnti_u4 a, uint32_t m, nnti_u4 *high, nnti_u4 *low)
{
    uint64x2_t first = vmull_n_u32(vget_low_u32((uint32x4_t)a), m), last = vmull_n_u32(vget_high_u32((uint32x4_t)a), m);
    *low = (nnti_u4)vuzp1q_u32(vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(last));
    *high = (nnti_u4)vuzp2q_u32(vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(last));
}
NNTI_INLINE void nnti_interleave_neon(uint32_t *to, const nnti_u4 *c)
{
    uint32x4x4_t rows;
    int i;
    for (i = 0; i < 4; i++) rows.val[i] = (uint32x4_t)c[i];
    vst4q_u32(to, rows);
}
NNTI_DRAW_VARIANT(4, neon, )
#endif
#undef NNTI_DRAW_VARIANT

/* to[0 .. count) = elements first, first + 1, ... of the key's numbers: words, or floats of the same size. */
static void nnti_random_fill(int isa, int kind, void *to, int64_t first, int64_t count, const nnti_random_key *k)
{
    void (*draw)(uint32_t *, int, const nnti_random_key *, uint64_t, int64_t) = nnti_draw_groups_c;
    uint32_t *p = (uint32_t *)to, part[NNTI_DRAW_GROUP];
#if defined(NNTI_X86)
    if (isa == NNTI_ISA_AVX512) draw = nnti_draw_groups_avx512;
    else if (isa == NNTI_ISA_AVX2) draw = nnti_draw_groups_avx2;
#elif defined(NNTI_NEON)
    if (isa == NNTI_ISA_NEON) draw = nnti_draw_groups_neon;
#endif
    (void)isa;
    while (count > 0) {
        int64_t group = first / NNTI_DRAW_GROUP, skip = first % NNTI_DRAW_GROUP, n;
        if (skip == 0 && count >= NNTI_DRAW_GROUP) {
            n = count / NNTI_DRAW_GROUP * NNTI_DRAW_GROUP;
            draw(p, kind, k, (uint64_t)group, n / NNTI_DRAW_GROUP);
        } else {
            n = nnti_min64(count, NNTI_DRAW_GROUP - skip);
            draw(part, kind, k, (uint64_t)group, 1);
            memcpy(p, part + skip, (size_t)n * sizeof *p);
        }
        p += n;
        first += n;
        count -= n;
    }
}

/* p 2^32 to the nearest whole number, by integers only: a word below it is drawn with probability p. 0 to 2^32. */
static uint64_t nnti_threshold(float p)
{
    uint32_t bits = nnti_float_bits(p), mantissa = (bits & 0x7fffffu) | 0x800000u;
    int shift = (int)(bits >> 23) - 118;                        /* p = mantissa 2^(shift - 32) */
    if (bits >> 31 || bits == 0) return 0;
    if (shift >= 9) return (uint64_t)1 << 32;                   /* p is at least 1, or no number */
    if (shift >= 0) return (uint64_t)mantissa << shift;
    if (shift < -24) return 0;
    return (mantissa + (1u << (-shift - 1))) >> -shift;
}

/* ============================================================================
   >>elementwise    Kernels that treat each value on its own: activations, dropout, noise, sums, copies, the update
   They read and write op->at, cut in ranges whose borders depend on the shapes only. A value's result does not depend
   on where in a range it stands: the last lanes of a vector take the same way as the others.
   ============================================================================ */

/* fn(arg, begin, end) over ranges that make up 0 .. count, in parallel. */
typedef void (*nnti_range_fn)(const void *arg, int64_t begin, int64_t end);
typedef struct nnti_range_job { nnti_range_fn fn; const void *arg; int64_t count; } nnti_range_job;

enum { NNTI_RANGE = 8192 };                 /* values in a range: 32 KiB of each operand */

static void nnti_range_task(void *p, int64_t chunk, int worker)
{
    const nnti_range_job *job = (const nnti_range_job *)p;
    (void)worker;
    job->fn(job->arg, chunk * NNTI_RANGE, nnti_min64(job->count, (chunk + 1) * NNTI_RANGE));
}
static void nnti_for_ranges(const nnti_exec *e, int64_t count, nnti_range_fn fn, const void *arg)
{
    nnti_range_job job;
    job.fn = fn;
    job.arg = arg;
    job.count = count;
    nnti_parallel(e->pool, nnti_ceil_div(count, NNTI_RANGE), nnti_range_task, &job);
}
static int nnti_has_avx2(int isa) { return isa == NNTI_ISA_AVX2 || isa == NNTI_ISA_AVX512; }

static int64_t nnti_in_size(const nnt_op *op)  { return (int64_t)op->in_c * op->in_h * op->in_w; }
static int64_t nnti_out_size(const nnt_op *op) { return (int64_t)op->out_c * op->out_h * op->out_w; }

/* ---- sums: COPY, ACCUMULATE, ADD, CONCAT, CONCAT_GRAD ---- */

/* y = a + b, then max(y, 0), then mask > 0 ? y : 0. y may be a or b. */
typedef struct nnti_sum {
    int isa, relu;
    float *y;
    const float *a, *b, *mask;              /* b, mask: NULL for none */
} nnti_sum;

static void nnti_sum_c(const nnti_sum *s, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i < end; i++) {
        float v = s->a[i];
        if (s->b) v += s->b[i];
        if (s->relu && v < 0) v = 0;
        if (s->mask && !(s->mask[i] > 0)) v = 0;
        s->y[i] = v;
    }
}
#if defined(NNTI_X86)
NNTI_AVX2 NNTI_INLINE void nnti_sum_step_avx2(const nnti_sum *s, int64_t i, int64_t n)
{
    nnti_f8 zero = nnti_set_avx2(0), v = nnti_get_avx2(s->a + i, n);
    if (s->b) v += nnti_get_avx2(s->b + i, n);
    if (s->relu) v = nnti_max_avx2(zero, v);
    if (s->mask) v = (nnti_f8)((nnti_i8)v & (nnti_get_avx2(s->mask + i, n) > zero));
    nnti_put_avx2(s->y + i, v, n);
}
NNTI_AVX2 static void nnti_sum_avx2(const nnti_sum *s, int64_t begin, int64_t end)
{
    const nnti_sum t = *s;                  /* a copy that the stores can't change: its fields stay in registers */
    int64_t i;
    for (i = begin; i + 8 <= end; i += 8) nnti_sum_step_avx2(&t, i, 8);
    if (i < end) nnti_sum_step_avx2(&t, i, end - i);
}
#endif
static void nnti_sum_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_sum *s = (const nnti_sum *)arg;
#if defined(NNTI_X86)
    if (nnti_has_avx2(s->isa)) { nnti_sum_avx2(s, begin, end); return; }
#endif
    nnti_sum_c(s, begin, end);
}
/* The op's masks and flags; the caller sets y, a, b. */
static nnti_sum nnti_sum_of(const nnti_exec *e, const nnt_op *op)
{
    nnti_sum s;
    s.isa = e->isa;
    s.relu = (op->flags & NNT_OPF_RELU) != 0;
    s.y = NULL;
    s.a = s.b = NULL;
    s.mask = op->flags & NNT_OPF_MASK ? (const float *)op->at[NNT_MASK] : NULL;
    return s;
}

/* y = x */
static void nnti_cpu_copy(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_sum s = nnti_sum_of(e, op);
    s.a = (const float *)op->at[NNT_X];
    s.y = (float *)op->at[NNT_Y];
    nnti_for_ranges(e, run->count * nnti_in_size(op), nnti_sum_range, &s);
}
/* y += x, masked */
static void nnti_cpu_accumulate(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_sum s = nnti_sum_of(e, op);
    s.a = s.y = (float *)op->at[NNT_Y];
    s.b = (const float *)op->at[NNT_X];
    nnti_for_ranges(e, run->count * nnti_in_size(op), nnti_sum_range, &s);
}
/* y = x + x2, flag RELU */
static void nnti_cpu_add(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_sum s = nnti_sum_of(e, op);
    s.a = (const float *)op->at[NNT_X];
    s.b = (const float *)op->at[NNT_X2];
    s.y = (float *)op->at[NNT_Y];
    nnti_for_ranges(e, run->count * nnti_out_size(op), nnti_sum_range, &s);
}

/* Ranges over n samples of the smaller operand, split where the sample changes. */
typedef struct nnti_concat { nnti_sum sum; int64_t part, whole, offset; int backward; } nnti_concat;

static void nnti_concat_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_concat *c = (const nnti_concat *)arg;
    while (begin < end) {
        int64_t sample = begin / c->part, stop = nnti_min64(end, (sample + 1) * c->part);
        int64_t skip = c->offset + sample * (c->whole - c->part);       /* what the whole has in front of element 0 */
        nnti_sum s = c->sum;
        if (c->backward) s.a += skip;
        else s.y += skip;
        nnti_sum_range(&s, begin, stop);
        begin = stop;
    }
}
static void nnti_concat_run(const nnti_exec *e, const nnt_op *op, const nnt_run *run, const nnti_sum *s, int backward)
{
    nnti_concat c;
    c.sum = *s;
    c.part = nnti_in_size(op);
    c.whole = nnti_out_size(op);
    c.offset = (int64_t)op->channel_offset * op->in_h * op->in_w;
    c.backward = backward;
    nnti_for_ranges(e, run->count * c.part, nnti_concat_range, &c);
}
/* y[n][channel_offset + c][h][w] = x[n][c][h][w] */
static void nnti_cpu_concat(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_sum s = nnti_sum_of(e, op);
    s.a = (const float *)op->at[NNT_X];
    s.y = (float *)op->at[NNT_Y];
    nnti_concat_run(e, op, run, &s, 0);
}
/* gx[n][c][h][w] = gy[n][channel_offset + c][h][w], flags ACCUMULATE, MASK */
static void nnti_cpu_concat_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_sum s = nnti_sum_of(e, op);
    s.a = (const float *)op->at[NNT_GY];
    s.y = (float *)op->at[NNT_GX];
    if (op->flags & NNT_OPF_ACCUMULATE) s.b = s.y;
    nnti_concat_run(e, op, run, &s, 1);
}

/* ---- activations ---- */

/* Forward: to = f(v). Backward: to = g f', from y, or from x for gelu. to may be v or g. */
typedef struct nnti_act { int isa, variant; float slope; float *to; const float *g, *v; } nnti_act;

#define NNTI_SQRT_HALF_F 0.70710678118654752f
#define NNTI_ONE_BY_SQRT_2PI 0.39894228040143268f

NNTI_INLINE float nnti_act_c(int variant, float x, float slope)
{
    switch (variant) {
    case NNT_ACT_RELU:       return x < 0 ? 0 : x;
    case NNT_ACT_LEAKY_RELU: return x > 0 ? x : slope * x;
    case NNT_ACT_SIGMOID:    return 1.0f / (1.0f + expf(-x));
    case NNT_ACT_TANH:       return tanhf(x);
    default:                 return 0.5f * x * erfcf(-NNTI_SQRT_HALF_F * x);
    }
}
NNTI_INLINE float nnti_act_grad_c(int variant, float g, float v, float slope)
{
    switch (variant) {
    case NNT_ACT_RELU:       return v <= 0 ? 0 : g;
    case NNT_ACT_LEAKY_RELU: return v > 0 ? g : slope * g;
    case NNT_ACT_SIGMOID:    return g * (1.0f - v) * v;
    case NNT_ACT_TANH:       return g * (1.0f - v * v);
    default:                 return g * (0.5f * erfcf(-NNTI_SQRT_HALF_F * v) + v * (NNTI_ONE_BY_SQRT_2PI * expf(-0.5f * v * v)));
    }
}
NNTI_INLINE void nnti_act_loop_c(int variant, const nnti_act *a, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i < end; i++) a->to[i] = nnti_act_c(variant, a->v[i], a->slope);
}
NNTI_INLINE void nnti_act_grad_loop_c(int variant, const nnti_act *a, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i < end; i++) a->to[i] = nnti_act_grad_c(variant, a->g[i], a->v[i], a->slope);
}

#if defined(NNTI_X86)
/* exp(x) for x at most 0, within 1.5 ulp; 0 where the result would be below the smallest normal number.
   x = n ln 2 + r, Cephes' polynomial for exp(r). */
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_exp_avx2(nnti_f8 x)
{
    nnti_f8 lowest = nnti_set_avx2(-87.336540f), bounded = nnti_max_avx2(lowest, x), n, r, p;
    n = nnti_round_avx2(bounded * 1.44269504088896341f);
    r = nnti_fma_avx2(n, nnti_set_avx2(-NNTI_LN2_HIGH), bounded);
    r = nnti_fma_avx2(n, nnti_set_avx2(-(NNTI_LN2_LOW)), r);
    p = nnti_horner_avx2(nnti_set_avx2(1.9875691500e-4f), r, 1.3981999507e-3f);
    p = nnti_horner_avx2(p, r, 8.3334519073e-3f);
    p = nnti_horner_avx2(p, r, 4.1665795894e-2f);
    p = nnti_horner_avx2(p, r, 1.6666665459e-1f);
    p = nnti_horner_avx2(p, r, 5.0000001201e-1f);
    p = nnti_fma_avx2(p, r * r, r) + 1.0f;
    p = p * (nnti_f8)((nnti_u8)(nnti_to_int_avx2(n) + 127) << 23);
    return (nnti_f8)((nnti_i8)p & ~(x < lowest));
}
/* 1 / (1 + exp(-x)), without overflow: for x < 0 as exp(x) / (1 + exp(x)) */
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_sigmoid_avx2(nnti_f8 x)
{
    nnti_f8 e = nnti_exp_avx2(-nnti_abs_avx2(x));
    return nnti_select_avx2(x < nnti_set_avx2(0), e, nnti_set_avx2(1.0f)) / (e + 1.0f);
}
/* Cephes' polynomial for |x| < 0.625, else (1 - e) / (1 + e) with e = exp(-2 |x|) */
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_tanh_avx2(nnti_f8 x)
{
    nnti_f8 a = nnti_abs_avx2(x), z = x * x, p, e = nnti_exp_avx2(a * -2.0f);
    p = nnti_horner_avx2(nnti_set_avx2(-5.70498872745e-3f), z, 2.06390887954e-2f);
    p = nnti_horner_avx2(p, z, -5.37397155531e-2f);
    p = nnti_horner_avx2(p, z, 1.33314422036e-1f);
    p = nnti_horner_avx2(p, z, -3.33332819422e-1f);
    p = nnti_fma_avx2(p * z, x, x);
    return nnti_select_avx2(a < nnti_set_avx2(0.625f), p, nnti_copysign_avx2((1.0f - e) / (1.0f + e), x));
}
/* Normal distribution: returns Phi(x), *density = exp(-x^2 / 2) / sqrt(2 pi). With a = |x|, Phi(-a) is exp(-a^2 / 2)
   times t P(t), t = 1 / (1 + 0.26 a); P was fitted for the least relative error on [0, 13.3], 2e-8, and evaluates to
   3e-7 in single precision. Beyond 13.2 Phi(-a) is 0. */
NNTI_AVX2 NNTI_INLINE nnti_f8 nnti_phi_avx2(nnti_f8 x, nnti_f8 *density)
{
    nnti_f8 a = nnti_min_avx2(nnti_set_avx2(14.0f), nnti_abs_avx2(x)), half = a * 0.5f, q = a * half, e, t, p;
    e = nnti_exp_avx2(-q);
    e = nnti_fma_avx2(-e, nnti_fma_avx2(a, half, -q), e);      /* a^2 / 2 was rounded: what that lost */
    t = 1.0f / nnti_horner_avx2(a, nnti_set_avx2(0.26f), 1.0f);
    p = nnti_horner_avx2(nnti_set_avx2(3.089622036e-02f), t, -1.547408253e-01f);
    p = nnti_horner_avx2(p, t, 2.554678023e-01f);
    p = nnti_horner_avx2(p, t, -1.555372179e-01f);
    p = nnti_horner_avx2(p, t, 1.641533226e-01f);
    p = nnti_horner_avx2(p, t, 4.964213073e-02f);
    p = nnti_horner_avx2(p, t, 1.033914238e-01f);
    p = nnti_horner_avx2(p, t, 1.029649228e-01f);
    p = nnti_horner_avx2(p, t, 1.037621945e-01f);
    p = p * t * e;
    *density = e * NNTI_ONE_BY_SQRT_2PI;
    return nnti_select_avx2(x < nnti_set_avx2(0), p, 1.0f - p);
}
NNTI_AVX2 NNTI_INLINE void nnti_act_step_avx2(int variant, const nnti_act *a, int64_t i, int64_t n)
{
    nnti_f8 x = nnti_get_avx2(a->v + i, n), zero = nnti_set_avx2(0), y, density;
    switch (variant) {
    case NNT_ACT_RELU:       y = nnti_max_avx2(zero, x); break;
    case NNT_ACT_LEAKY_RELU: y = nnti_select_avx2(x > zero, x, x * a->slope); break;
    case NNT_ACT_SIGMOID:    y = nnti_sigmoid_avx2(x); break;
    case NNT_ACT_TANH:       y = nnti_tanh_avx2(x); break;
    default:                 y = x * nnti_phi_avx2(x, &density); break;
    }
    nnti_put_avx2(a->to + i, y, n);
}
NNTI_AVX2 NNTI_INLINE void nnti_act_grad_step_avx2(int variant, const nnti_act *a, int64_t i, int64_t n)
{
    nnti_f8 v = nnti_get_avx2(a->v + i, n), g = nnti_get_avx2(a->g + i, n), zero = nnti_set_avx2(0), density;
    switch (variant) {
    case NNT_ACT_RELU:       g = nnti_select_avx2(v <= zero, zero, g); break;
    case NNT_ACT_LEAKY_RELU: g = nnti_select_avx2(v > zero, g, g * a->slope); break;
    case NNT_ACT_SIGMOID:    g = g * (1.0f - v) * v; break;
    case NNT_ACT_TANH:       g = g * (1.0f - v * v); break;
    default:                 { nnti_f8 phi = nnti_phi_avx2(v, &density); g = g * nnti_fma_avx2(v, density, phi); break; }
    }
    nnti_put_avx2(a->to + i, g, n);
}
NNTI_AVX2 NNTI_INLINE void nnti_act_loop_avx2(int variant, const nnti_act *a, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i + 8 <= end; i += 8) nnti_act_step_avx2(variant, a, i, 8);
    if (i < end) nnti_act_step_avx2(variant, a, i, end - i);
}
NNTI_AVX2 NNTI_INLINE void nnti_act_grad_loop_avx2(int variant, const nnti_act *a, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i + 8 <= end; i += 8) nnti_act_grad_step_avx2(variant, a, i, 8);
    if (i < end) nnti_act_grad_step_avx2(variant, a, i, end - i);
}
#endif

/* A loop for each variant, in which the variant is a constant. */
#define NNTI_ACT_FUNCTION(name, loop)                                                   \
static void name(const nnti_act *p, int64_t begin, int64_t end)                         \
{                                                                                       \
    const nnti_act a = *p;                                                              \
    switch (a.variant) {                                                                \
    case NNT_ACT_RELU:       loop(NNT_ACT_RELU, &a, begin, end); break;                 \
    case NNT_ACT_LEAKY_RELU: loop(NNT_ACT_LEAKY_RELU, &a, begin, end); break;           \
    case NNT_ACT_SIGMOID:    loop(NNT_ACT_SIGMOID, &a, begin, end); break;              \
    case NNT_ACT_TANH:       loop(NNT_ACT_TANH, &a, begin, end); break;                 \
    default:                 loop(NNT_ACT_GELU, &a, begin, end); break;                 \
    }                                                                                   \
}
NNTI_ACT_FUNCTION(nnti_act_all_c, nnti_act_loop_c)
NNTI_ACT_FUNCTION(nnti_act_grad_all_c, nnti_act_grad_loop_c)
#if defined(NNTI_X86)
NNTI_AVX2 NNTI_ACT_FUNCTION(nnti_act_all_avx2, nnti_act_loop_avx2)
NNTI_AVX2 NNTI_ACT_FUNCTION(nnti_act_grad_all_avx2, nnti_act_grad_loop_avx2)
#endif
#undef NNTI_ACT_FUNCTION
#undef NNTI_SQRT_HALF_F
#undef NNTI_ONE_BY_SQRT_2PI

static void nnti_act_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_act *a = (const nnti_act *)arg;
#if defined(NNTI_X86)
    if (nnti_has_avx2(a->isa)) {
        if (a->g) nnti_act_grad_all_avx2(a, begin, end);
        else nnti_act_all_avx2(a, begin, end);
        return;
    }
#endif
    if (a->g) nnti_act_grad_all_c(a, begin, end);
    else nnti_act_all_c(a, begin, end);
}
static void nnti_act_run(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int to, int g, int v)
{
    nnti_act a;
    a.isa = e->isa;
    a.variant = op->variant;
    a.slope = op->f[0];
    a.to = (float *)op->at[to];
    a.g = g < 0 ? NULL : (const float *)op->at[g];
    a.v = (const float *)op->at[v];
    nnti_for_ranges(e, run->count * nnti_in_size(op), nnti_act_range, &a);
}
/* y = f(x) */
static void nnti_cpu_act(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_act_run(e, op, run, NNT_Y, -1, NNT_X);
}
/* gx = gy f'(x) */
static void nnti_cpu_act_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_act_run(e, op, run, NNT_GX, NNT_GY, op->variant == NNT_ACT_GELU ? NNT_X : NNT_Y);
}

/* ---- dropout and noise: the same bits from every instruction set ---- */

/* y = scale r + x, or + constant where x is NULL; one rounding. Then, if asked for, to [low, high]. */
typedef struct nnti_blend { float scale, constant; int clamp; float low, high; } nnti_blend;

static void nnti_blend_c(const nnti_blend *b, float *y, const float *r, const float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        float v = fmaf(b->scale, r[i], x ? x[i] : b->constant);
        if (b->clamp) v = v < b->low ? b->low : v > b->high ? b->high : v;
        y[i] = v;
    }
}
#if defined(NNTI_X86)
NNTI_AVX2 NNTI_INLINE void nnti_blend_step_avx2(const nnti_blend *b, float *y, const float *r, const float *x, int64_t n)
{
    nnti_f8 v = x ? nnti_get_avx2(x, n) : nnti_set_avx2(b->constant);
    v = nnti_fma_avx2(nnti_set_avx2(b->scale), nnti_get_avx2(r, n), v);
    if (b->clamp) v = nnti_min_avx2(nnti_set_avx2(b->high), nnti_max_avx2(nnti_set_avx2(b->low), v));
    nnti_put_avx2(y, v, n);
}
NNTI_AVX2 static void nnti_blend_avx2(const nnti_blend *p, float *y, const float *r, const float *x, int64_t n)
{
    const nnti_blend b = *p;
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) nnti_blend_step_avx2(&b, y + i, r + i, x ? x + i : NULL, 8);
    if (i < n) nnti_blend_step_avx2(&b, y + i, r + i, x ? x + i : NULL, n - i);
}
#endif
static void nnti_blend_run(int isa, const nnti_blend *b, float *y, const float *r, const float *x, int64_t n)
{
#if defined(NNTI_X86)
    if (nnti_has_avx2(isa)) { nnti_blend_avx2(b, y, r, x, n); return; }
#endif
    (void)isa;
    nnti_blend_c(b, y, r, x, n);
}

/* Ops with random numbers get their values in blocks within one sample: n values from element `first` of the key's
   sample, at offset `at` of the operands. */
enum { NNTI_DRAW_BLOCK = 512 };
typedef struct nnti_draw {
    int isa;
    const nnt_op *op;
    const nnt_run *run;
    void (*block)(const struct nnti_draw *d, const nnti_random_key *k, int64_t at, int64_t first, int64_t n);
} nnti_draw;

static void nnti_draw_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_draw *d = (const nnti_draw *)arg;
    int64_t size = nnti_in_size(d->op);
    nnti_random_key k;
    k.seed = d->run->seed;
    k.step = d->run->step;
    k.stream = d->op->stream;
    while (begin < end) {
        int64_t first = begin % size, n = nnti_min64(nnti_min64(end - begin, size - first), NNTI_DRAW_BLOCK - first % NNTI_DRAW_BLOCK);
        k.sample = (uint32_t)(begin / size);
        d->block(d, &k, begin, first, n);
        begin += n;
    }
}
static void nnti_draw_run(const nnti_exec *e, const nnt_op *op, const nnt_run *run,
                          void (*block)(const nnti_draw *, const nnti_random_key *, int64_t, int64_t, int64_t))
{
    nnti_draw d;
    d.isa = e->isa;
    d.op = op;
    d.run = run;
    d.block = block;
    nnti_for_ranges(e, run->count * nnti_in_size(op), nnti_draw_range, &d);
}

/* y = x (word >= limit ? scale : 0): a product, as PyTorch's, so that what is not a number stays so */
static void nnti_drop_c(float *y, const float *x, const uint32_t *words, uint32_t limit, float scale, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) y[i] = x[i] * (words[i] >= limit ? scale : 0.0f);
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_drop_avx2(float *y, const float *x, const uint32_t *words, uint32_t limit, float scale, int64_t n)
{
    nnti_f8 factor = nnti_set_avx2(scale);
    nnti_u8 limits = { 0 }, w;
    int64_t i;
    limits = limits + limit;
    for (i = 0; i + 8 <= n; i += 8) {
        memcpy(&w, words + i, sizeof w);
        nnti_put_avx2(y + i, nnti_get_avx2(x + i, 8) * (nnti_f8)((nnti_u8)factor & (nnti_u8)(w >= limits)), 8);
    }
    nnti_drop_c(y + i, x + i, words + i, limit, scale, n - i);
}
#endif
static void nnti_dropout_block(const nnti_draw *d, const nnti_random_key *k, int64_t at, int64_t first, int64_t n)
{
    uint32_t words[NNTI_DRAW_BLOCK], limit = (uint32_t)nnti_threshold(d->op->f[0]);     /* p < 1: it fits */
    float scale = (float)(1.0 / (1.0 - (double)d->op->f[0])), *y = (float *)d->op->at[NNT_Y] + at;
    const float *x = (const float *)d->op->at[NNT_X] + at;
    nnti_random_fill(d->isa, NNTI_DRAW_BITS, words, first, n, k);
#if defined(NNTI_X86)
    if (nnti_has_avx2(d->isa)) { nnti_drop_avx2(y, x, words, limit, scale, n); return; }
#endif
    nnti_drop_c(y, x, words, limit, scale, n);
}
static void nnti_cpu_dropout(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_draw_run(e, op, run, nnti_dropout_block);
}

/* f: amount, low, high, clamp */
static nnti_blend nnti_noise_blend(const nnt_op *op)
{
    nnti_blend b;
    b.scale = op->f[0];
    b.constant = 0;
    b.low = op->f[1];
    b.high = op->f[2];
    b.clamp = op->f[3] > 0;
    return b;
}
/* y = x + amount n, x + amount u, or a word decides: below amount / 2 low, below amount high, else x */
static void nnti_noise_block(const nnti_draw *d, const nnti_random_key *k, int64_t at, int64_t first, int64_t n)
{
    const nnt_op *op = d->op;
    const float *x = (const float *)op->at[NNT_X] + at;
    float *y = (float *)op->at[NNT_Y] + at;
    nnti_blend b = nnti_noise_blend(op);
    if (op->variant == NNT_NOISE_SALT_PEPPER) {
        uint32_t words[NNTI_DRAW_BLOCK];
        uint64_t low = nnti_threshold(op->f[0] * 0.5f), high = nnti_threshold(op->f[0]);
        int64_t i;
        nnti_random_fill(d->isa, NNTI_DRAW_BITS, words, first, n, k);
        for (i = 0; i < n; i++) {
            float v = x[i];
            if (b.clamp) v = v < b.low ? b.low : v > b.high ? b.high : v;
            y[i] = words[i] < low ? b.low : words[i] < high ? b.high : v;
        }
    } else {
        float r[NNTI_DRAW_BLOCK];
        nnti_random_fill(d->isa, op->variant == NNT_NOISE_UNIFORM ? NNTI_DRAW_SIGNED : NNTI_DRAW_NORMAL, r, first, n, k);
        nnti_blend_run(d->isa, &b, y, r, x, n);
    }
}
static void nnti_cpu_noise(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_draw_run(e, op, run, nnti_noise_block);
}
/* gx = gy where the noise was added, 0 where low or high took the value's place (on the bounds too,
   as PyTorch's clamp) */
static void nnti_noise_grad_block(const nnti_draw *d, const nnti_random_key *k, int64_t at, int64_t first, int64_t n)
{
    const nnt_op *op = d->op;
    const float *x = (const float *)op->at[NNT_X] + at, *gy = (const float *)op->at[NNT_GY] + at;
    float *gx = (float *)op->at[NNT_GX] + at, r[NNTI_DRAW_BLOCK];
    uint32_t words[NNTI_DRAW_BLOCK];
    uint64_t hit = 0;
    nnti_blend b = nnti_noise_blend(op);
    int64_t i;
    int clamp = b.clamp;
    b.clamp = 0;
    memset(words, 0, sizeof words);
    if (op->variant == NNT_NOISE_SALT_PEPPER) {
        hit = nnti_threshold(op->f[0]);
        nnti_random_fill(d->isa, NNTI_DRAW_BITS, words, first, n, k);
        memcpy(r, x, (size_t)n * sizeof *r);
    } else if (clamp) {
        nnti_random_fill(d->isa, op->variant == NNT_NOISE_UNIFORM ? NNTI_DRAW_SIGNED : NNTI_DRAW_NORMAL, r, first, n, k);
        nnti_blend_run(d->isa, &b, r, r, x, n);
    } else {
        memset(r, 0, sizeof r);
    }
    for (i = 0; i < n; i++)
        gx[i] = words[i] < hit || (clamp && !(r[i] > b.low && r[i] < b.high)) ? 0 : gy[i];
}
static void nnti_cpu_noise_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_draw_run(e, op, run, nnti_noise_grad_block);
}

/* ---- what tensors use ---- */

typedef struct nnti_fill { float *to; float value; } nnti_fill;
static void nnti_fill_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_fill *f = (const nnti_fill *)arg;
    float *to = f->to, value = f->value;
    int64_t i;
    for (i = begin; i < end; i++) to[i] = value;
}
static void nnti_cpu_fill(const nnti_exec *e, float *to, float value, int64_t count)
{
    nnti_fill f;
    f.to = to;
    f.value = value;
    nnti_for_ranges(e, count, nnti_fill_range, &f);
}

/* y = a x + b z; z NULL: y = a x. y may be x or z. */
typedef struct nnti_axpby { int isa; float *y; float a, b; const float *x, *z; } nnti_axpby;
static void nnti_axpby_c(const nnti_axpby *p, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i < end; i++) p->y[i] = p->z ? p->a * p->x[i] + p->b * p->z[i] : p->a * p->x[i];
}
#if defined(NNTI_X86)
NNTI_AVX2 NNTI_INLINE void nnti_axpby_step_avx2(const nnti_axpby *p, int64_t i, int64_t n)
{
    nnti_f8 v = nnti_get_avx2(p->x + i, n) * p->a;
    if (p->z) v = v + nnti_get_avx2(p->z + i, n) * p->b;
    nnti_put_avx2(p->y + i, v, n);
}
NNTI_AVX2 static void nnti_axpby_avx2(const nnti_axpby *p, int64_t begin, int64_t end)
{
    const nnti_axpby q = *p;
    int64_t i;
    for (i = begin; i + 8 <= end; i += 8) nnti_axpby_step_avx2(&q, i, 8);
    if (i < end) nnti_axpby_step_avx2(&q, i, end - i);
}
#endif
static void nnti_axpby_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_axpby *p = (const nnti_axpby *)arg;
#if defined(NNTI_X86)
    if (nnti_has_avx2(p->isa)) { nnti_axpby_avx2(p, begin, end); return; }
#endif
    nnti_axpby_c(p, begin, end);
}
static void nnti_cpu_axpby(const nnti_exec *e, float *y, float a, const float *x, float b, const float *z, int64_t count)
{
    nnti_axpby p;
    p.isa = e->isa;
    p.y = y;
    p.a = a;
    p.b = b;
    p.x = x;
    p.z = z;
    nnti_for_ranges(e, count, nnti_axpby_range, &p);
}

/* The largest float below f, which is finite. */
static float nnti_float_below(float f)
{
    uint32_t bits = nnti_float_bits(f);
    if (bits << 1 == 0) return nnti_bits_float(0x80000001u);
    return nnti_bits_float(bits >> 31 ? bits + 1 : bits - 1);
}

enum { NNTI_STREAM_TENSOR = 0xffff };       /* the stream of numbers that belong to no layer */
typedef struct nnti_random_job { int isa, kind, add; float *to; nnti_blend blend; nnti_random_key key; } nnti_random_job;

static void nnti_random_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_random_job *job = (const nnti_random_job *)arg;
    float r[NNTI_DRAW_BLOCK];
    while (begin < end) {
        int64_t n = nnti_min64(end - begin, NNTI_DRAW_BLOCK);
        float *to = job->to + begin;
        nnti_random_fill(job->isa, job->kind, r, begin, n, &job->key);
        nnti_blend_run(job->isa, &job->blend, to, r, job->add ? to : NULL, n);
        begin += n;
    }
}
/* NNT_RANDOM_NORMAL: b n + a; _UNIFORM: in [a, b), never b itself; _ADD_NORMAL: to += a n */
static void nnti_cpu_random(const nnti_exec *e, float *to, int64_t count, int kind, float a, float b, uint64_t seed)
{
    nnti_random_job job;
    memset(&job, 0, sizeof job);
    job.isa = e->isa;
    job.kind = kind == NNT_RANDOM_UNIFORM ? NNTI_DRAW_SIGNED : NNTI_DRAW_NORMAL;
    job.add = kind == NNT_RANDOM_ADD_NORMAL;
    job.to = to;
    job.key.seed = seed;
    job.key.stream = NNTI_STREAM_TENSOR;
    if (kind == NNT_RANDOM_UNIFORM) {       /* middle + half the width times [-1, 1): no overflow whatever a and b */
        job.blend.scale = 0.5f * b - 0.5f * a;
        job.blend.constant = 0.5f * a + 0.5f * b;
        job.blend.clamp = 1;
        job.blend.low = a;
        job.blend.high = a < b ? nnti_float_below(b) : a;
    } else {
        job.blend.scale = kind == NNT_RANDOM_NORMAL ? b : a;
        job.blend.constant = a;
    }
    nnti_for_ranges(e, count, nnti_random_range, &job);
}

/* ---- the gradient's norm, the optimizer's step ---- */

enum { NNTI_NORM_CHUNK = 65536 };           /* values whose squares are summed before the chunks' sums are */

static double nnti_square_sum_c(const float *g, int64_t n)
{
    double sum = 0;
    int64_t i;
    for (i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    return sum;
}
#if defined(NNTI_X86)
NNTI_AVX2 static double nnti_square_sum_avx2(const float *g, int64_t n)
{
    __m256d s0 = _mm256_setzero_pd(), s1 = s0, s2 = s0, s3 = s0;
    double part[4];
    int64_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(g + i)), b = _mm256_cvtps_pd(_mm_loadu_ps(g + i + 4));
        __m256d c = _mm256_cvtps_pd(_mm_loadu_ps(g + i + 8)), d = _mm256_cvtps_pd(_mm_loadu_ps(g + i + 12));
        s0 = _mm256_fmadd_pd(a, a, s0);
        s1 = _mm256_fmadd_pd(b, b, s1);
        s2 = _mm256_fmadd_pd(c, c, s2);
        s3 = _mm256_fmadd_pd(d, d, s3);
    }
    _mm256_storeu_pd(part, _mm256_add_pd(_mm256_add_pd(s0, s1), _mm256_add_pd(s2, s3)));
    return part[0] + part[1] + part[2] + part[3] + nnti_square_sum_c(g + i, n - i);
}
#endif
typedef struct nnti_norm { int isa; const float *g; int64_t count; double *sums; } nnti_norm;
static void nnti_norm_task(void *arg, int64_t chunk, int worker)
{
    const nnti_norm *p = (const nnti_norm *)arg;
    const float *g = p->g + chunk * NNTI_NORM_CHUNK;
    int64_t n = nnti_min64(NNTI_NORM_CHUNK, p->count - chunk * NNTI_NORM_CHUNK);
    (void)worker;
#if defined(NNTI_X86)
    if (nnti_has_avx2(p->isa)) { p->sums[chunk] = nnti_square_sum_avx2(g, n); return; }
#endif
    p->sums[chunk] = nnti_square_sum_c(g, n);
}
/* One double a chunk. */
static size_t nnti_cpu_grad_norm_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    (void)e; (void)batch;
    return (size_t)nnti_ceil_div(op->count, NNTI_NORM_CHUNK) * sizeof(double);
}
/* loss = sum of gw[i]^2, a double */
static void nnti_cpu_grad_norm(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_norm p;
    double sum = 0;
    int64_t i, chunks = nnti_ceil_div(op->count, NNTI_NORM_CHUNK);
    (void)run;
    p.isa = e->isa;
    p.g = (const float *)op->at[NNT_GW];
    p.count = op->count;
    p.sums = (double *)op->workspace;
    nnti_parallel(e->pool, chunks, nnti_norm_task, &p);
    for (i = 0; i < chunks; i++) sum += p.sums[i];
    memcpy(op->at[NNT_LOSS], &sum, sizeof sum);
}

/* One update with all that does not depend on the element worked out. */
typedef struct nnti_update {
    int   isa, kind, nesterov;
    float *w, *m, *v;
    const float *g;
    float grad_scale, decay;                /* g = grad_scale gw + decay w */
    float lr, momentum;                     /* SGD */
    float shrink, beta1, beta2, rest1, rest2, rate, root, eps;     /* Adam: see nnti_adam_c. rest: 1 - beta */
} nnti_update;

/* m = momentum m + g; w -= lr (m, or g + momentum m) */
static void nnti_sgd_c(const nnti_update *u, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i < end; i++) {
        float g = u->g[i] * u->grad_scale + u->decay * u->w[i];
        if (u->m) {
            float m = u->momentum * u->m[i] + g;
            u->m[i] = m;
            g = u->nesterov ? g + u->momentum * m : m;
        }
        u->w[i] -= u->lr * g;
    }
}
/* m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
   w = shrink w - rate m / (root sqrt(v) + eps), rate = lr / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t) */
static void nnti_adam_c(const nnti_update *u, int64_t begin, int64_t end)
{
    int64_t i;
    for (i = begin; i < end; i++) {
        float g = u->g[i] * u->grad_scale + u->decay * u->w[i];
        float m = u->beta1 * u->m[i] + u->rest1 * g, v = u->beta2 * u->v[i] + u->rest2 * g * g;
        u->m[i] = m;
        u->v[i] = v;
        u->w[i] = u->shrink * u->w[i] - u->rate * (m / (u->root * sqrtf(v) + u->eps));
    }
}
#if defined(NNTI_X86)
NNTI_AVX2 NNTI_INLINE void nnti_sgd_step_avx2(const nnti_update *u, int64_t i, int64_t n)
{
    nnti_f8 w = nnti_get_avx2(u->w + i, n), g = nnti_get_avx2(u->g + i, n) * u->grad_scale, m;
    g = nnti_fma_avx2(w, nnti_set_avx2(u->decay), g);
    if (u->m) {
        m = nnti_fma_avx2(nnti_get_avx2(u->m + i, n), nnti_set_avx2(u->momentum), g);
        nnti_put_avx2(u->m + i, m, n);
        g = u->nesterov ? nnti_fma_avx2(m, nnti_set_avx2(u->momentum), g) : m;
    }
    nnti_put_avx2(u->w + i, nnti_fma_avx2(g, nnti_set_avx2(-u->lr), w), n);
}
NNTI_AVX2 static void nnti_sgd_avx2(const nnti_update *p, int64_t begin, int64_t end)
{
    const nnti_update u = *p;
    int64_t i;
    for (i = begin; i + 8 <= end; i += 8) nnti_sgd_step_avx2(&u, i, 8);
    if (i < end) nnti_sgd_step_avx2(&u, i, end - i);
}
NNTI_AVX2 NNTI_INLINE void nnti_adam_step_avx2(const nnti_update *u, int64_t i, int64_t n)
{
    nnti_f8 w = nnti_get_avx2(u->w + i, n), g = nnti_get_avx2(u->g + i, n) * u->grad_scale, m, v, step;
    g = nnti_fma_avx2(w, nnti_set_avx2(u->decay), g);
    m = nnti_fma_avx2(nnti_get_avx2(u->m + i, n), nnti_set_avx2(u->beta1), g * u->rest1);
    v = nnti_fma_avx2(nnti_get_avx2(u->v + i, n), nnti_set_avx2(u->beta2), g * u->rest2 * g);
    nnti_put_avx2(u->m + i, m, n);
    nnti_put_avx2(u->v + i, v, n);
    step = m / nnti_fma_avx2(nnti_sqrt_avx2(v), nnti_set_avx2(u->root), nnti_set_avx2(u->eps));
    nnti_put_avx2(u->w + i, nnti_fma_avx2(step, nnti_set_avx2(-u->rate), w * u->shrink), n);
}
NNTI_AVX2 static void nnti_adam_avx2(const nnti_update *p, int64_t begin, int64_t end)
{
    const nnti_update u = *p;
    int64_t i;
    for (i = begin; i + 8 <= end; i += 8) nnti_adam_step_avx2(&u, i, 8);
    if (i < end) nnti_adam_step_avx2(&u, i, end - i);
}
#endif
static void nnti_update_range(const void *arg, int64_t begin, int64_t end)
{
    const nnti_update *u = (const nnti_update *)arg;
    int sgd = u->kind == NNT_OPTIMIZER_SGD;
#if defined(NNTI_X86)
    if (nnti_has_avx2(u->isa)) {
        if (sgd) nnti_sgd_avx2(u, begin, end);
        else nnti_adam_avx2(u, begin, end);
        return;
    }
#endif
    if (sgd) nnti_sgd_c(u, begin, end);
    else nnti_adam_c(u, begin, end);
}
static void nnti_cpu_update(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const nnt_optimizer *o = &run->optimizer;
    double t = (double)run->update, beta1 = (double)o->beta1, beta2 = (double)o->beta2;
    nnti_update u;
    if (o->kind == NNT_OPTIMIZER_NONE) return;
    memset(&u, 0, sizeof u);
    u.isa = e->isa;
    u.kind = o->kind;
    u.nesterov = o->nesterov;
    u.w = (float *)op->at[NNT_W];
    u.g = (const float *)op->at[NNT_GW];
    u.m = (float *)op->at[NNT_M];
    u.v = (float *)op->at[NNT_V];
    u.grad_scale = run->grad_scale;
    u.lr = o->lr;
    u.shrink = 1.0f;
    if (o->kind == NNT_OPTIMIZER_ADAMW) u.shrink = (float)(1.0 - (double)o->lr * (double)o->weight_decay);
    else u.decay = o->weight_decay;
    if (o->kind == NNT_OPTIMIZER_SGD) {
        u.momentum = o->momentum;
        if (nnti_float_bits(o->momentum) << 1 == 0) u.m = NULL;
    } else {
        u.beta1 = o->beta1;
        u.beta2 = o->beta2;
        u.rest1 = (float)(1.0 - beta1);
        u.rest2 = (float)(1.0 - beta2);
        u.rate = (float)((double)o->lr / (1.0 - pow(beta1, t)));
        u.root = (float)(1.0 / sqrt(1.0 - pow(beta2, t)));
        u.eps = o->eps;
    }
    nnti_for_ranges(e, op->count, nnti_update_range, &u);
}

#undef NNTI_LN2_HIGH
#undef NNTI_LN2_LOW
#undef NNTI_SQRT_HALF
#undef NNTI_QUARTER_TURN
#undef NNTI_TWO_TO_M23
#undef NNTI_TWO_TO_M24

/* ============================================================================
   >>optimizer    Constructors of nnt_optimizer and the learning rate of each step
   Pure functions. The update itself is a kernel of each device, on the CPU nnti_cpu_update in >>elementwise.
   ============================================================================ */

static nnt_optimizer nnti_optimizer_new(int kind, float lr, float weight_decay)
{
    nnt_optimizer o;
    memset(&o, 0, sizeof o);
    o.kind = kind;
    o.lr = lr;
    o.weight_decay = weight_decay;
    o.beta1 = 0.9f;
    o.beta2 = 0.999f;
    o.eps = 1e-8f;
    o.accumulate = 1;
    o.gamma = 0.1f;
    return o;
}
NNT_API nnt_optimizer nnt_sgd(float lr)   { return nnti_optimizer_new(NNT_OPTIMIZER_SGD, lr, 0); }
NNT_API nnt_optimizer nnt_adam(float lr)  { return nnti_optimizer_new(NNT_OPTIMIZER_ADAM, lr, 0); }
NNT_API nnt_optimizer nnt_adamw(float lr) { return nnti_optimizer_new(NNT_OPTIMIZER_ADAMW, lr, 0.01f); }

NNT_API float nnt_learning_rate(const nnt_optimizer *o, int64_t step)
{
    double lr, s;
    if (!o) return 0;
    lr = (double)o->lr;
    step = nnti_max64(step, 0);
    if (step < o->warmup_steps)
        return (float)(lr * ((double)o->warmup_start + (1.0 - (double)o->warmup_start) * (double)step / (double)o->warmup_steps));
    step -= nnti_max64(o->warmup_steps, 0);
    if (o->schedule_steps <= 0) return o->lr;
    s = (double)step / (double)o->schedule_steps;
    if (o->schedule == NNT_SCHEDULE_STEP) return (float)(lr * pow((double)o->gamma, (double)(step / o->schedule_steps)));
    if (o->schedule == NNT_SCHEDULE_COSINE) {
        if (s >= 1.0) return o->lr_min;
        return (float)((double)o->lr_min + (lr - (double)o->lr_min) * 0.5 * (1.0 + cos(3.14159265358979323846 * s)));
    }
    return o->lr;
}

/* ============================================================================
   >>gemm    Matrix products from packed panels; the operands may be images seen as matrices
   Reads operands through offset tables, so that a convolution needs no im2col
   buffer; packs panels into the op's workspace and writes C. Used by >>conv, >>linear.
   ============================================================================ */

/* C[m][n] = sum_k A[m][k] B[k][n], then + bias, + C, relu, mask. A lies packed in tiles of a few rows, [k][row]; B is
   packed a panel of some columns at a time, [k][column]. A tile function multiplies one by the other with all sums in
   registers. It finds the k-th row and column by tables of offsets, so that either operand may be something that was
   never packed, as long as its rows or columns lie side by side. The sum over k is cut in blocks whose length depends
   on k alone, each block is summed by itself and the blocks are added in order: an element's value depends neither on
   the number of threads nor on how C is cut up. */

enum {
    NNTI_PANEL_MAX = 32,            /* columns of a panel at most */
    NNTI_TILE_MAX = 14,             /* rows of a tile at most */
    NNTI_GROUP_MAX = 8,             /* panels that are packed together at most */
    NNTI_GEMM_KC = 320,             /* length of a block of k: with it a panel fits in the first-level cache */
    NNTI_GEMM_ROWS = 512            /* rows of C that one chunk of work has at most */
};

/* Where line i of an operand begins: i counts through outer, middle and inner, a nest of three loops. */
typedef struct nnti_lines {
    int64_t inner, middle;
    ptrdiff_t stride, middle_stride, outer_stride;
} nnti_lines;

/* A matrix of elements (line i, k) at x[offset of i + offset of k]. Lines are A's rows or B's columns. */
typedef struct nnti_operand {
    const float *x;
    nnti_lines lines;
    const int32_t *table;           /* the offset of k is k * step + table[k]; table may be NULL */
    ptrdiff_t step;
} nnti_operand;

/* Neighbouring lines whose offsets grow by a constant stride. */
typedef struct nnti_lane_run { int first, length; ptrdiff_t offset; } nnti_lane_run;

/* to[k * pitch + i] = x[k * step + table[k] + offset of line i] for k < count, i < width; 0 where no run covers i. */
typedef struct nnti_pack_job {
    float *to;
    ptrdiff_t pitch;
    int width, count;
    const float *x;
    const int32_t *table;
    ptrdiff_t step, stride;
    int runs;
    nnti_lane_run run[NNTI_PANEL_MAX];
} nnti_pack_job;

/* What a tile does with its sums: s + row_bias + col_bias, + C if add, max(s, 0) if relu, 0 unless mask > 0. The mask
   is laid out as C. relu is not for use with add. */
typedef struct nnti_tile_end {
    const float *row_bias, *col_bias, *mask;
    int add, relu;
} nnti_tile_end;

/* c[r * ldc + j] = the end of sum_k a[ta[k] + r] * b[tb[k] + j]. */
typedef void (*nnti_tile_fn)(int k, const float *a, const int32_t *ta, const float *b, const int32_t *tb, float *c,
                             ptrdiff_t ldc, const nnti_tile_end *end);

/* An instruction set's functions. A panel has up to `vecs` vectors of `lanes` columns. */
typedef struct nnti_gemm_isa {
    int lanes, vecs, rows, dot_columns;
    const nnti_tile_fn *tiles;      /* [vecs - 1][rows - 1] */
    void  (*pack_rows)(const nnti_pack_job *p);
    /* to[k * pitch + i] = x[i * ld + k] for k < count, i < lines; 0 for lines <= i < width */
    void  (*pack_transposed)(float *to, ptrdiff_t pitch, int width, const float *x, ptrdiff_t ld, int lines, int count);
    /* The same for a product that lies transposed: c[f * ldc + i] = the end of x[i * pitch + f], i < count, f < rows */
    void (*turn)(const float *x, ptrdiff_t pitch, int64_t count, int rows, float *c, ptrdiff_t ldc,
                 const nnti_tile_end *end);
    /* sums[r * pitch + j * lanes + l] += sum over p = l, l + lanes, .. < count of a[r * lda + p] * b[j * ldb + p] for
       r < rows, which is 1 or 2, and j < columns, at most dot_columns. b is 0 from count up to whole vectors. */
    void (*dots)(const float *a, ptrdiff_t lda, int rows, const float *b, ptrdiff_t ldb, int columns, int count,
                 float *sums, ptrdiff_t pitch);
    /* c[i * ldc + j] = the end of sum_k w[k] * x[table[k] + i * step + j] for i < rows, j < columns; row_bias[0] */
    void  (*plane)(const float *x, ptrdiff_t step, const int32_t *table, const float *w, int k, int rows, int columns,
                   float *c, ptrdiff_t ldc, const nnti_tile_end *end);
    float (*sum)(const float *x, int64_t count);
} nnti_gemm_isa;

static nnti_lines nnti_lines_plain(int64_t count, ptrdiff_t stride)
{
    nnti_lines l;
    l.inner = nnti_max64(1, count);
    l.middle = 1;
    l.stride = stride;
    l.middle_stride = l.outer_stride = 0;
    return l;
}
/* Runs of lines [first, first + count), count at most NNTI_PANEL_MAX. Returns how many; neighbours are joined. */
static int nnti_line_runs(const nnti_lines *l, int64_t first, int count, nnti_lane_run *run)
{
    int64_t m = first / l->inner, i = first - m * l->inner, o = m / l->middle;
    int done = 0, runs = 0;
    m -= o * l->middle;
    while (done < count) {
        int length = (int)nnti_min64(l->inner - i, count - done);
        ptrdiff_t offset = (ptrdiff_t)i * l->stride + (ptrdiff_t)m * l->middle_stride + (ptrdiff_t)o * l->outer_stride;
        if (runs && offset == run[runs - 1].offset + run[runs - 1].length * l->stride) run[runs - 1].length += length;
        else {
            run[runs].first = done;
            run[runs].length = length;
            run[runs++].offset = offset;
        }
        done += length;
        i = 0;
        if (++m == l->middle) { m = 0; o++; }
    }
    return runs;
}
/* Plain C: what the others have to equal. */

static void nnti_pack_rows_c(const nnti_pack_job *p)
{
    int k, i, r;
    for (k = 0; k < p->count; k++) {
        const float *x = p->x + k * p->step + (p->table ? p->table[k] : 0);
        float *to = p->to + k * p->pitch;
        for (i = 0; i < p->width; i++) to[i] = 0.0f;
        for (r = 0; r < p->runs; r++)
            for (i = 0; i < p->run[r].length; i++) to[p->run[r].first + i] = x[p->run[r].offset + i * p->stride];
    }
}
static void nnti_pack_transposed_c(float *to, ptrdiff_t pitch, int width, const float *x, ptrdiff_t ld, int lines,
                                   int count)
{
    int k, i;
    for (k = 0; k < count; k++)
        for (i = 0; i < width; i++) to[k * pitch + i] = i < lines ? x[i * ld + k] : 0.0f;
}
/* The end of one value; c and mask are its own. */
NNTI_INLINE float nnti_end_value(const nnti_tile_end *end, float bias, const float *c, const float *mask, float s)
{
    s += bias;
    if (end->add) s += *c;
    if (end->relu) s = s < 0.0f ? 0.0f : s;
    if (mask) s = *mask > 0.0f ? s : 0.0f;
    return s;
}
static void nnti_turn_c(const float *x, ptrdiff_t pitch, int64_t count, int rows, float *c, ptrdiff_t ldc,
                        const nnti_tile_end *end)
{
    int64_t i;
    int f;
    for (f = 0; f < rows; f++)
        for (i = 0; i < count; i++) {
            const ptrdiff_t at = f * ldc + (ptrdiff_t)i;
            c[at] = nnti_end_value(end, end->row_bias ? end->row_bias[f] : 0.0f, c + at,
                                   end->mask ? end->mask + at : NULL, x[(ptrdiff_t)i * pitch + f]);
        }
}
enum { NNTI_LANES_C = 4 };
static void nnti_dots_c(const float *a, ptrdiff_t lda, int rows, const float *b, ptrdiff_t ldb, int columns, int count,
                        float *sums, ptrdiff_t pitch)
{
    int r, j, p, l;
    for (r = 0; r < rows; r++)
        for (j = 0; j < columns; j++) {
            const float *x = a + r * lda, *y = b + j * ldb;
            float s[NNTI_LANES_C] = { 0.0f, 0.0f, 0.0f, 0.0f };
            for (p = 0; p < count - (NNTI_LANES_C - 1); p += NNTI_LANES_C)
                for (l = 0; l < NNTI_LANES_C; l++) s[l] += x[p + l] * y[p + l];
            for (l = 0; p < count; p++, l++) s[l] += x[p] * y[p];
            for (l = 0; l < NNTI_LANES_C; l++) sums[r * pitch + j * NNTI_LANES_C + l] += s[l];
        }
}
static void nnti_plane_c(const float *x, ptrdiff_t step, const int32_t *table, const float *w, int k, int rows,
                         int columns, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
    int i, j, q;
    for (i = 0; i < rows; i++)
        for (j = 0; j < columns; j++) {
            const ptrdiff_t at = i * ldc + j;
            float s = 0.0f;
            for (q = 0; q < k; q++) s += w[q] * x[table[q] + i * step + j];
            c[at] = nnti_end_value(end, end->row_bias ? end->row_bias[0] : 0.0f, c + at,
                                   end->mask ? end->mask + at : NULL, s);
        }
}
static float nnti_row_sum_c(const float *x, int64_t count)
{
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    int64_t i;
    for (i = 0; i < count - 3; i += 4) { s0 += x[i]; s1 += x[i + 1]; s2 += x[i + 2]; s3 += x[i + 3]; }
    for (; i < count; i++) s0 += x[i];
    return (s0 + s1) + (s2 + s3);
}
NNTI_INLINE void nnti_tile_c(const int rows, const int columns, int k, const float *a, const int32_t *ta,
                             const float *b, const int32_t *tb, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
    float s[4][8];
    int r, j;
    for (r = 0; r < rows; r++) for (j = 0; j < columns; j++) s[r][j] = 0.0f;
    for (; k > 0; k--, ta++, tb++)
        for (r = 0; r < rows; r++) for (j = 0; j < columns; j++) s[r][j] += a[*ta + r] * b[*tb + j];
    for (r = 0; r < rows; r++)
        for (j = 0; j < columns; j++) {
            const float bias = (end->row_bias ? end->row_bias[r] : 0.0f) + (end->col_bias ? end->col_bias[j] : 0.0f);
            float *at = c + r * ldc + j;
            *at = nnti_end_value(end, bias, at, end->mask ? end->mask + r * ldc + j : NULL, s[r][j]);
        }
}
#define NNTI_TILE(rows, vecs, isa, attribute, width) \
    attribute static void nnti_tile_##isa##_##rows##_##vecs(int k, const float *a, const int32_t *ta, const float *b, \
                                                            const int32_t *tb, float *c, ptrdiff_t ldc, \
                                                            const nnti_tile_end *end) \
    { \
        nnti_tile_##isa(rows, width, k, a, ta, b, tb, c, ldc, end); \
    }
#define NNTI_NO_ATTRIBUTE
#define NNTI_TILE_C(rows, vecs) NNTI_TILE(rows, vecs, c, NNTI_NO_ATTRIBUTE, 4 * vecs)
NNTI_TILE_C(1, 1) NNTI_TILE_C(2, 1) NNTI_TILE_C(3, 1) NNTI_TILE_C(4, 1)
NNTI_TILE_C(1, 2) NNTI_TILE_C(2, 2) NNTI_TILE_C(3, 2) NNTI_TILE_C(4, 2)
#undef NNTI_TILE_C

static const nnti_tile_fn nnti_tiles_c[] = {
    nnti_tile_c_1_1, nnti_tile_c_2_1, nnti_tile_c_3_1, nnti_tile_c_4_1,
    nnti_tile_c_1_2, nnti_tile_c_2_2, nnti_tile_c_3_2, nnti_tile_c_4_2
};
static const nnti_gemm_isa nnti_gemm_isa_c = {
    NNTI_LANES_C, 2, 4, 4, nnti_tiles_c,
    nnti_pack_rows_c, nnti_pack_transposed_c, nnti_turn_c, nnti_dots_c, nnti_plane_c, nnti_row_sum_c
};

/* The row R of a tile as macros: gcc keeps an array of vectors that a loop fills in memory, so each sum is a variable
   of its own. `rows` and `vecs` are constants after inlining, and what they exclude disappears. */
#define NNTI_ROWS_5(X) X(0) X(1) X(2) X(3) X(4)
#define NNTI_ROWS_6(X) NNTI_ROWS_5(X) X(5)
#define NNTI_ROWS_8(X) NNTI_ROWS_6(X) X(6) X(7)
#define NNTI_ROWS_9(X) NNTI_ROWS_8(X) X(8)
#define NNTI_ROWS_14(X) NNTI_ROWS_9(X) X(9) X(10) X(11) X(12) X(13)

#if defined(NNTI_X86)

/* Runs cut at the bounds of one vector. Lane l of the vector reads x[offset + l * stride]. */
typedef struct nnti_vector_runs {
    int count, low[NNTI_PANEL_MAX], high[NNTI_PANEL_MAX];
    ptrdiff_t offset[NNTI_PANEL_MAX];
} nnti_vector_runs;

static void nnti_vector_cut(nnti_vector_runs *v, const nnti_pack_job *p, int first, int lanes)
{
    int r;
    v->count = 0;
    for (r = 0; r < p->runs; r++) {
        int low = nnti_max(p->run[r].first, first), high = nnti_min(p->run[r].first + p->run[r].length, first + lanes);
        if (low >= high) continue;
        v->low[v->count] = low - first;
        v->high[v->count] = high - first;
        v->offset[v->count++] = p->run[r].offset + (first - p->run[r].first) * p->stride;
    }
}

/* AVX2 and FMA: 6 rows of 2 vectors of 8. */

NNTI_AVX2 NNTI_INLINE void nnti_tile_avx2(const int rows, const int vecs, int k, const float *a, const int32_t *ta,
                             const float *b, const int32_t *tb, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
#define NNTI_ROW(R) __m256 u##R = _mm256_setzero_ps(), v##R = u##R;
    NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    for (; k > 0; k--, ta++, tb++) {
        const float *x = a + *ta, *y = b + *tb;
        const __m256 b0 = _mm256_loadu_ps(y), b1 = vecs > 1 ? _mm256_loadu_ps(y + 8) : b0;
#define NNTI_ROW(R) \
        if (rows > R) { \
            const __m256 t = _mm256_broadcast_ss(x + R); \
            u##R = _mm256_fmadd_ps(t, b0, u##R); \
            if (vecs > 1) v##R = _mm256_fmadd_ps(t, b1, v##R); \
        }
        NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    }
#define NNTI_EACH(R, EXPR_U, EXPR_V) if (rows > R) { u##R = EXPR_U; if (vecs > 1) v##R = EXPR_V; }
    if (end->row_bias) {
#define NNTI_ROW(R) NNTI_EACH(R, _mm256_add_ps(u##R, _mm256_broadcast_ss(end->row_bias + R)), \
                                 _mm256_add_ps(v##R, _mm256_broadcast_ss(end->row_bias + R)))
        NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->col_bias) {
        const __m256 q0 = _mm256_loadu_ps(end->col_bias), q1 = vecs > 1 ? _mm256_loadu_ps(end->col_bias + 8) : q0;
#define NNTI_ROW(R) NNTI_EACH(R, _mm256_add_ps(u##R, q0), _mm256_add_ps(v##R, q1))
        NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->add) {
#define NNTI_ROW(R) NNTI_EACH(R, _mm256_add_ps(u##R, _mm256_loadu_ps(c + R * ldc)), \
                                 _mm256_add_ps(v##R, _mm256_loadu_ps(c + R * ldc + 8)))
        NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->relu) {                    /* this order of operands lets a NaN through */
        const __m256 zero = _mm256_setzero_ps();
#define NNTI_ROW(R) NNTI_EACH(R, _mm256_max_ps(zero, u##R), _mm256_max_ps(zero, v##R))
        NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->mask) {
        const __m256 zero = _mm256_setzero_ps();
        const float *m = end->mask;
#define NNTI_ROW(R) NNTI_EACH(R, _mm256_and_ps(u##R, _mm256_cmp_ps(_mm256_loadu_ps(m + R * ldc), zero, _CMP_GT_OQ)), \
                                 _mm256_and_ps(v##R, _mm256_cmp_ps(_mm256_loadu_ps(m + R * ldc + 8), zero, _CMP_GT_OQ)))
        NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
    }
#define NNTI_ROW(R) \
    if (rows > R) { \
        _mm256_storeu_ps(c + R * ldc, u##R); \
        if (vecs > 1) _mm256_storeu_ps(c + R * ldc + 8, v##R); \
    }
    NNTI_ROWS_6(NNTI_ROW)
#undef NNTI_ROW
#undef NNTI_EACH
}
#define NNTI_TILE_AVX2(rows, vecs) NNTI_TILE(rows, vecs, avx2, NNTI_AVX2, vecs)
#define NNTI_TILES_AVX2(vecs) \
    NNTI_TILE_AVX2(1, vecs) NNTI_TILE_AVX2(2, vecs) NNTI_TILE_AVX2(3, vecs) \
    NNTI_TILE_AVX2(4, vecs) NNTI_TILE_AVX2(5, vecs) NNTI_TILE_AVX2(6, vecs)
NNTI_TILES_AVX2(1)
NNTI_TILES_AVX2(2)
#undef NNTI_TILES_AVX2
#undef NNTI_TILE_AVX2

#define NNTI_NAMES(vecs) \
    nnti_tile_avx2_1_##vecs, nnti_tile_avx2_2_##vecs, nnti_tile_avx2_3_##vecs, \
    nnti_tile_avx2_4_##vecs, nnti_tile_avx2_5_##vecs, nnti_tile_avx2_6_##vecs
static const nnti_tile_fn nnti_tiles_avx2[] = { NNTI_NAMES(1), NNTI_NAMES(2) };
#undef NNTI_NAMES

/* Lanes low to high - 1. */
NNTI_AVX2 NNTI_INLINE __m256i nnti_lane_mask_avx2(int low, int high)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(low - 1)),
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
}
/* The first n lanes. Masked stores are slow on some processors. */
NNTI_AVX2 NNTI_INLINE void nnti_store_avx2(float *to, __m256 v, int n)
{
    __m128 q = _mm256_castps256_ps128(v);
    if (n >= 8) { _mm256_storeu_ps(to, v); return; }
    if (n & 4) { _mm_storeu_ps(to, q); to += 4; q = _mm256_extractf128_ps(v, 1); }
    if (n & 2) { _mm_storel_pi((__m64 *)(void *)to, q); to += 2; q = _mm_movehl_ps(q, q); }
    if (n & 1) _mm_store_ss(to, q);
}
/* The fields in variables: stores of vectors may alias anything, so the compiler would read them again each time. */
NNTI_AVX2 static void nnti_pack_rows_avx2(const nnti_pack_job *p)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i index = _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)p->stride));
    const ptrdiff_t pitch = p->pitch, step = p->step;
    const int count = p->count;
    int first, k, r;
    for (first = 0; first < p->width; first += 8) {
        const int width = nnti_min(8, p->width - first);
        const int32_t *table = p->table;
        const float *x = p->x;
        float *to = p->to + first;
        nnti_vector_runs v;
        nnti_vector_cut(&v, p, first, 8);
        if (p->stride == 1 && v.count == 1 && v.high[0] - v.low[0] == 8) {
            const float *x0 = x + v.offset[0];
            for (k = 0; k < count; k++, to += pitch, x0 += step)
                _mm256_storeu_ps(to, _mm256_loadu_ps(table ? x0 + table[k] : x0));
        } else if (p->stride == 1 && v.count <= 2 && v.count > 0) {
            const __m256i m0 = nnti_lane_mask_avx2(v.low[0], v.high[0]);
            const __m256i m1 = v.count > 1 ? nnti_lane_mask_avx2(v.low[1], v.high[1]) : _mm256_setzero_si256();
            const float *x0 = x + v.offset[0], *x1 = x + v.offset[v.count - 1];
            for (k = 0; k < count; k++, to += pitch, x0 += step, x1 += step) {
                const ptrdiff_t at = table ? table[k] : 0;
                nnti_store_avx2(to, _mm256_or_ps(_mm256_maskload_ps(x0 + at, m0), _mm256_maskload_ps(x1 + at, m1)),
                                width);
            }
        } else {
            __m256i m[8];
            for (r = 0; r < v.count; r++) m[r] = nnti_lane_mask_avx2(v.low[r], v.high[r]);
            for (k = 0; k < count; k++, to += pitch, x += step) {
                const float *at = table ? x + table[k] : x;
                __m256 s = _mm256_setzero_ps();
                if (p->stride == 1)
                    for (r = 0; r < v.count; r++) s = _mm256_or_ps(s, _mm256_maskload_ps(at + v.offset[r], m[r]));
                else
                    for (r = 0; r < v.count; r++)
                        s = _mm256_mask_i32gather_ps(s, at + v.offset[r], index, _mm256_castsi256_ps(m[r]), 4);
                nnti_store_avx2(to, s, width);
            }
        }
    }
}
/* Rows r[0..7] of 8 become columns. */
NNTI_AVX2 NNTI_INLINE void nnti_transpose_avx2(__m256 r[8])
{
    __m256 a0 = _mm256_unpacklo_ps(r[0], r[1]), a1 = _mm256_unpackhi_ps(r[0], r[1]);
    __m256 a2 = _mm256_unpacklo_ps(r[2], r[3]), a3 = _mm256_unpackhi_ps(r[2], r[3]);
    __m256 a4 = _mm256_unpacklo_ps(r[4], r[5]), a5 = _mm256_unpackhi_ps(r[4], r[5]);
    __m256 a6 = _mm256_unpacklo_ps(r[6], r[7]), a7 = _mm256_unpackhi_ps(r[6], r[7]);
    __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xee);
    __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xee);
    __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
    __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
    r[0] = _mm256_permute2f128_ps(b0, b4, 0x20); r[4] = _mm256_permute2f128_ps(b0, b4, 0x31);
    r[1] = _mm256_permute2f128_ps(b1, b5, 0x20); r[5] = _mm256_permute2f128_ps(b1, b5, 0x31);
    r[2] = _mm256_permute2f128_ps(b2, b6, 0x20); r[6] = _mm256_permute2f128_ps(b2, b6, 0x31);
    r[3] = _mm256_permute2f128_ps(b3, b7, 0x20); r[7] = _mm256_permute2f128_ps(b3, b7, 0x31);
}
NNTI_AVX2 static void nnti_pack_transposed_avx2(float *to, ptrdiff_t pitch, int width, const float *x, ptrdiff_t ld,
                                                int lines, int count)
{
    int first, k;
    for (first = 0; first < width; first += 8) {
        const int write = nnti_min(8, width - first), read = nnti_min(8, lines - first);
        const float *from = x + first * ld;
        for (k = 0; k < count; k += 8) {
            const int ks = nnti_min(8, count - k);
            const __m256i in = nnti_lane_mask_avx2(0, ks);
            float *out = to + k * pitch + first;
            __m256 r[8];
#define NNTI_ROW(R) r[R] = read > R ? _mm256_maskload_ps(from + R * ld + k, in) : _mm256_setzero_ps();
            NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
            nnti_transpose_avx2(r);
#define NNTI_ROW(R) if (ks > R) nnti_store_avx2(out + R * pitch, r[R], write);
            NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
        }
    }
}
NNTI_AVX2 static void nnti_turn_avx2(const float *x, ptrdiff_t pitch, int64_t count, int rows, float *c, ptrdiff_t ldc,
                                     const nnti_tile_end *end)
{
    const __m256 zero = _mm256_setzero_ps();
    int64_t i;
    int first, f;
    for (first = 0; first < rows; first += 8)
        for (i = 0; i < count; i += 8) {
            const int n = (int)nnti_min64(8, count - i);
            const __m256i keep = nnti_lane_mask_avx2(0, n);
            const float *from = x + (ptrdiff_t)i * pitch + first;
            __m256 r[8];
#define NNTI_ROW(R) r[R] = n > R ? _mm256_loadu_ps(from + R * pitch) : zero;
            NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
            nnti_transpose_avx2(r);
            for (f = 0; f < 8 && first + f < rows; f++) {
                const ptrdiff_t at = (first + f) * ldc + (ptrdiff_t)i;
                __m256 s = r[f];
                if (end->row_bias) s = _mm256_add_ps(s, _mm256_broadcast_ss(end->row_bias + first + f));
                if (end->add) s = _mm256_add_ps(s, _mm256_maskload_ps(c + at, keep));
                if (end->relu) s = _mm256_max_ps(zero, s);
                if (end->mask)
                    s = _mm256_and_ps(s, _mm256_cmp_ps(_mm256_maskload_ps(end->mask + at, keep), zero, _CMP_GT_OQ));
                nnti_store_avx2(c + at, s, n);
            }
        }
}
NNTI_AVX2 NNTI_INLINE void nnti_dots_tile_avx2(const int rows, const int columns, const float *a, ptrdiff_t lda,
                                               const float *b, ptrdiff_t ldb, int count, float *sums, ptrdiff_t pitch)
{
    int p;
#define NNTI_ROW(J) __m256 u##J = _mm256_setzero_ps(), v##J = u##J;
    NNTI_ROWS_5(NNTI_ROW)
#undef NNTI_ROW
    for (p = 0; p < count; p += 8) {
        const __m256i in = nnti_lane_mask_avx2(0, nnti_min(8, count - p));
        const __m256 x0 = _mm256_maskload_ps(a + p, in), x1 = rows > 1 ? _mm256_maskload_ps(a + lda + p, in) : x0;
#define NNTI_ROW(J) \
        if (columns > J) { \
            const __m256 y = _mm256_loadu_ps(b + J * ldb + p); \
            u##J = _mm256_fmadd_ps(x0, y, u##J); \
            if (rows > 1) v##J = _mm256_fmadd_ps(x1, y, v##J); \
        }
        NNTI_ROWS_5(NNTI_ROW)
#undef NNTI_ROW
    }
#define NNTI_ROW(J) \
    if (columns > J) { \
        float *s0 = sums + J * 8, *s1 = s0 + pitch; \
        _mm256_storeu_ps(s0, _mm256_add_ps(u##J, _mm256_loadu_ps(s0))); \
        if (rows > 1) _mm256_storeu_ps(s1, _mm256_add_ps(v##J, _mm256_loadu_ps(s1))); \
    }
    NNTI_ROWS_5(NNTI_ROW)
#undef NNTI_ROW
}
NNTI_AVX2 static void nnti_dots_avx2(const float *a, ptrdiff_t lda, int rows, const float *b, ptrdiff_t ldb,
                                     int columns, int count, float *sums, ptrdiff_t pitch)
{
#define NNTI_CASE(N) \
    case N: \
        if (rows > 1) nnti_dots_tile_avx2(2, N, a, lda, b, ldb, count, sums, pitch); \
        else nnti_dots_tile_avx2(1, N, a, lda, b, ldb, count, sums, pitch); \
        break;
    switch (columns) { NNTI_CASE(1) NNTI_CASE(2) NNTI_CASE(3) NNTI_CASE(4) NNTI_CASE(5) }
#undef NNTI_CASE
}
NNTI_AVX2 NNTI_INLINE void nnti_plane_store_avx2(__m256 s, float *c, ptrdiff_t at, __m256i in, int n,
                                                 const nnti_tile_end *end)
{
    if (end->row_bias) s = _mm256_add_ps(s, _mm256_broadcast_ss(end->row_bias));
    if (end->add) s = _mm256_add_ps(s, _mm256_maskload_ps(c + at, in));
    if (end->relu) s = _mm256_max_ps(_mm256_setzero_ps(), s);
    if (end->mask)
        s = _mm256_and_ps(s, _mm256_cmp_ps(_mm256_maskload_ps(end->mask + at, in), _mm256_setzero_ps(), _CMP_GT_OQ));
    nnti_store_avx2(c + at, s, n);
    (void)n;
}
NNTI_AVX2 static void nnti_plane_avx2(const float *x, ptrdiff_t step, const int32_t *table, const float *w, int k,
                                      int rows, int columns, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
    int i, j, q;
    for (j = 0; j < columns; j += 8) {
        const int n = nnti_min(8, columns - j);
        const __m256i in = nnti_lane_mask_avx2(0, n);
        for (i = 0; i < rows; i += 4) {
            const float *x0 = x + i * step + j;             /* rows behind the last repeat it */
            const ptrdiff_t d1 = i + 1 < rows ? step : 0;
            const ptrdiff_t d2 = i + 2 < rows ? d1 + step : d1, d3 = i + 3 < rows ? d2 + step : d2;
            __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
            for (q = 0; q < k; q++) {
                const float *y = x0 + table[q];
                const __m256 t = _mm256_broadcast_ss(w + q);
                s0 = _mm256_fmadd_ps(t, _mm256_maskload_ps(y, in), s0);
                s1 = _mm256_fmadd_ps(t, _mm256_maskload_ps(y + d1, in), s1);
                s2 = _mm256_fmadd_ps(t, _mm256_maskload_ps(y + d2, in), s2);
                s3 = _mm256_fmadd_ps(t, _mm256_maskload_ps(y + d3, in), s3);
            }
            nnti_plane_store_avx2(s0, c, i * ldc + j, in, n, end);
            if (i + 1 < rows) nnti_plane_store_avx2(s1, c, (i + 1) * ldc + j, in, n, end);
            if (i + 2 < rows) nnti_plane_store_avx2(s2, c, (i + 2) * ldc + j, in, n, end);
            if (i + 3 < rows) nnti_plane_store_avx2(s3, c, (i + 3) * ldc + j, in, n, end);
        }
    }
}
NNTI_AVX2 static float nnti_row_sum_avx2(const float *x, int64_t count)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    float lane[8];
    int64_t i, k;
    for (i = 0; i + 32 <= count; i += 32) {
        s0 = _mm256_add_ps(s0, _mm256_loadu_ps(x + i));
        s1 = _mm256_add_ps(s1, _mm256_loadu_ps(x + i + 8));
        s2 = _mm256_add_ps(s2, _mm256_loadu_ps(x + i + 16));
        s3 = _mm256_add_ps(s3, _mm256_loadu_ps(x + i + 24));
    }
    for (; i < count; i += 8)
        s0 = _mm256_add_ps(s0, _mm256_maskload_ps(x + i, nnti_lane_mask_avx2(0, (int)nnti_min64(8, count - i))));
    _mm256_storeu_ps(lane, _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
    for (i = 4; i > 0; i /= 2) for (k = 0; k < i; k++) lane[k] += lane[k + i];
    return lane[0];
}
static const nnti_gemm_isa nnti_gemm_isa_avx2 = {
    8, 2, 6, 5, nnti_tiles_avx2,
    nnti_pack_rows_avx2, nnti_pack_transposed_avx2, nnti_turn_avx2, nnti_dots_avx2, nnti_plane_avx2, nnti_row_sum_avx2
};

/* AVX-512: 14 rows of 2 vectors of 16. */

NNTI_AVX512 NNTI_INLINE void nnti_tile_avx512(const int rows, const int vecs, int k, const float *a, const int32_t *ta,
                             const float *b, const int32_t *tb, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
#define NNTI_ROW(R) __m512 u##R = _mm512_setzero_ps(), v##R = u##R;
    NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    for (; k > 0; k--, ta++, tb++) {
        const float *x = a + *ta, *y = b + *tb;
        const __m512 b0 = _mm512_loadu_ps(y), b1 = vecs > 1 ? _mm512_loadu_ps(y + 16) : b0;
#define NNTI_ROW(R) \
        if (rows > R) { \
            const __m512 t = _mm512_set1_ps(x[R]); \
            u##R = _mm512_fmadd_ps(t, b0, u##R); \
            if (vecs > 1) v##R = _mm512_fmadd_ps(t, b1, v##R); \
        }
        NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    }
#define NNTI_EACH(R, EXPR_U, EXPR_V) if (rows > R) { u##R = EXPR_U; if (vecs > 1) v##R = EXPR_V; }
    if (end->row_bias) {
#define NNTI_ROW(R) NNTI_EACH(R, _mm512_add_ps(u##R, _mm512_set1_ps(end->row_bias[R])), \
                                 _mm512_add_ps(v##R, _mm512_set1_ps(end->row_bias[R])))
        NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->col_bias) {
        const __m512 q0 = _mm512_loadu_ps(end->col_bias), q1 = vecs > 1 ? _mm512_loadu_ps(end->col_bias + 16) : q0;
#define NNTI_ROW(R) NNTI_EACH(R, _mm512_add_ps(u##R, q0), _mm512_add_ps(v##R, q1))
        NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->add) {
#define NNTI_ROW(R) NNTI_EACH(R, _mm512_add_ps(u##R, _mm512_loadu_ps(c + R * ldc)), \
                                 _mm512_add_ps(v##R, _mm512_loadu_ps(c + R * ldc + 16)))
        NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->relu) {                    /* this order of operands lets a NaN through */
        const __m512 zero = _mm512_setzero_ps();
#define NNTI_ROW(R) NNTI_EACH(R, _mm512_max_ps(zero, u##R), _mm512_max_ps(zero, v##R))
        NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    }
    if (end->mask) {
        const __m512 zero = _mm512_setzero_ps();
        const float *m = end->mask;
#define NNTI_ROW(R) \
        NNTI_EACH(R, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_loadu_ps(m + R * ldc), zero, _CMP_GT_OQ), u##R), \
                     _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_loadu_ps(m + R * ldc + 16), zero, _CMP_GT_OQ), v##R))
        NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
    }
#define NNTI_ROW(R) \
    if (rows > R) { \
        _mm512_storeu_ps(c + R * ldc, u##R); \
        if (vecs > 1) _mm512_storeu_ps(c + R * ldc + 16, v##R); \
    }
    NNTI_ROWS_14(NNTI_ROW)
#undef NNTI_ROW
#undef NNTI_EACH
}
#define NNTI_TILE_AVX512(rows, vecs) NNTI_TILE(rows, vecs, avx512, NNTI_AVX512, vecs)
#define NNTI_TILES_AVX512(vecs) \
    NNTI_TILE_AVX512(1, vecs) NNTI_TILE_AVX512(2, vecs) NNTI_TILE_AVX512(3, vecs) NNTI_TILE_AVX512(4, vecs) \
    NNTI_TILE_AVX512(5, vecs) NNTI_TILE_AVX512(6, vecs) NNTI_TILE_AVX512(7, vecs) NNTI_TILE_AVX512(8, vecs) \
    NNTI_TILE_AVX512(9, vecs) NNTI_TILE_AVX512(10, vecs) NNTI_TILE_AVX512(11, vecs) NNTI_TILE_AVX512(12, vecs) \
    NNTI_TILE_AVX512(13, vecs) NNTI_TILE_AVX512(14, vecs)
NNTI_TILES_AVX512(1)
NNTI_TILES_AVX512(2)
#undef NNTI_TILES_AVX512
#undef NNTI_TILE_AVX512

#define NNTI_NAMES(vecs) \
    nnti_tile_avx512_1_##vecs, nnti_tile_avx512_2_##vecs, nnti_tile_avx512_3_##vecs, nnti_tile_avx512_4_##vecs, \
    nnti_tile_avx512_5_##vecs, nnti_tile_avx512_6_##vecs, nnti_tile_avx512_7_##vecs, nnti_tile_avx512_8_##vecs, \
    nnti_tile_avx512_9_##vecs, nnti_tile_avx512_10_##vecs, nnti_tile_avx512_11_##vecs, nnti_tile_avx512_12_##vecs, \
    nnti_tile_avx512_13_##vecs, nnti_tile_avx512_14_##vecs
static const nnti_tile_fn nnti_tiles_avx512[] = { NNTI_NAMES(1), NNTI_NAMES(2) };
#undef NNTI_NAMES

NNTI_AVX512 NNTI_INLINE __mmask16 nnti_lane_mask_avx512(int low, int high)
{
    return (__mmask16)((0xffffu >> (16 - high)) & (0xffffu << low));
}
/* keep[lane] ? p[index[lane]] : s[lane]. The intrinsic is a macro without optimisation, and converts its mask by sign. */
#if defined(__GNUC__) && !defined(__clang__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
NNTI_AVX512 NNTI_INLINE __m512 nnti_gather_avx512(__m512 s, __mmask16 keep, __m512i index, const float *p)
{
    return _mm512_mask_i32gather_ps(s, keep, index, p, 4);
}
#if defined(__GNUC__) && !defined(__clang__)
#  pragma GCC diagnostic pop
#endif
/* The fields in variables: stores of vectors may alias anything, so the compiler would read them again each time. */
NNTI_AVX512 static void nnti_pack_rows_avx512(const nnti_pack_job *p)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i index = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)p->stride));
    const ptrdiff_t pitch = p->pitch, step = p->step;
    const int count = p->count;
    int first, k, r;
    for (first = 0; first < p->width; first += 16) {
        const __mmask16 keep = nnti_lane_mask_avx512(0, nnti_min(16, p->width - first));
        const int32_t *table = p->table;
        const float *x = p->x;
        float *to = p->to + first;
        __mmask16 m[16];
        nnti_vector_runs v;
        nnti_vector_cut(&v, p, first, 16);
        for (r = 0; r < v.count; r++) m[r] = nnti_lane_mask_avx512(v.low[r], v.high[r]);
        if (p->stride == 1 && v.count == 1) {
            const __mmask16 m0 = m[0];
            const float *x0 = x + v.offset[0];
            for (k = 0; k < count; k++, to += pitch, x0 += step)
                _mm512_mask_storeu_ps(to, keep, _mm512_maskz_loadu_ps(m0, table ? x0 + table[k] : x0));
        } else if (p->stride == 1 && v.count == 2) {
            const __mmask16 m0 = m[0], m1 = m[1];
            const float *x0 = x + v.offset[0], *x1 = x + v.offset[1];
            for (k = 0; k < count; k++, to += pitch, x0 += step, x1 += step) {
                const ptrdiff_t at = table ? table[k] : 0;
                _mm512_mask_storeu_ps(to, keep, _mm512_mask_loadu_ps(_mm512_maskz_loadu_ps(m0, x0 + at), m1, x1 + at));
            }
        } else if (p->stride == 2 && v.count == 1) {        /* a convolution's stride: the even floats of two vectors */
            const __m512i even = _mm512_add_epi32(lane, lane);
            const uint32_t bits = 0x55555555u & (0xffffffffu >> (32 - 2 * v.high[0])) & (0xffffffffu << 2 * v.low[0]);
            const float *x0 = x + v.offset[0];
            for (k = 0; k < count; k++, to += pitch, x0 += step) {
                const float *at = table ? x0 + table[k] : x0;
                const __m512 a = _mm512_maskz_loadu_ps((__mmask16)(bits & 0xffffu), at);
                const __m512 b = _mm512_maskz_loadu_ps((__mmask16)(bits >> 16), at + 16);
                _mm512_mask_storeu_ps(to, keep, _mm512_permutex2var_ps(a, even, b));
            }
        } else {
            for (k = 0; k < count; k++, to += pitch, x += step) {
                const float *at = table ? x + table[k] : x;
                __m512 s = _mm512_setzero_ps();
                if (p->stride == 1)
                    for (r = 0; r < v.count; r++) s = _mm512_mask_loadu_ps(s, m[r], at + v.offset[r]);
                else
                    for (r = 0; r < v.count; r++) s = nnti_gather_avx512(s, m[r], index, at + v.offset[r]);
                _mm512_mask_storeu_ps(to, keep, s);
            }
        }
    }
}
/* Rows r[0..15] of 16 become columns. */
NNTI_AVX512 NNTI_INLINE void nnti_transpose_avx512(__m512 r[16])
{
    __m512 t[16];
#define NNTI_PAIR(R) t[R] = _mm512_unpacklo_ps(r[R], r[R + 1]); t[R + 1] = _mm512_unpackhi_ps(r[R], r[R + 1]);
    NNTI_PAIR(0) NNTI_PAIR(2) NNTI_PAIR(4) NNTI_PAIR(6)
    NNTI_PAIR(8) NNTI_PAIR(10) NNTI_PAIR(12) NNTI_PAIR(14)
#undef NNTI_PAIR
#define NNTI_QUAD(R) \
    r[R]     = _mm512_shuffle_ps(t[R], t[R + 2], 0x44);     r[R + 1] = _mm512_shuffle_ps(t[R], t[R + 2], 0xee); \
    r[R + 2] = _mm512_shuffle_ps(t[R + 1], t[R + 3], 0x44); r[R + 3] = _mm512_shuffle_ps(t[R + 1], t[R + 3], 0xee);
    NNTI_QUAD(0) NNTI_QUAD(4) NNTI_QUAD(8) NNTI_QUAD(12)
#undef NNTI_QUAD
#define NNTI_COLUMN(R) \
    t[R]      = _mm512_shuffle_f32x4(r[R], r[R + 4], 0x88); \
    t[R + 4]  = _mm512_shuffle_f32x4(r[R], r[R + 4], 0xdd); \
    t[R + 8]  = _mm512_shuffle_f32x4(r[R + 8], r[R + 12], 0x88); \
    t[R + 12] = _mm512_shuffle_f32x4(r[R + 8], r[R + 12], 0xdd);
    NNTI_COLUMN(0) NNTI_COLUMN(1) NNTI_COLUMN(2) NNTI_COLUMN(3)
#undef NNTI_COLUMN
#define NNTI_COLUMN(R) \
    r[R]      = _mm512_shuffle_f32x4(t[R], t[R + 8], 0x88); \
    r[R + 8]  = _mm512_shuffle_f32x4(t[R], t[R + 8], 0xdd); \
    r[R + 4]  = _mm512_shuffle_f32x4(t[R + 4], t[R + 12], 0x88); \
    r[R + 12] = _mm512_shuffle_f32x4(t[R + 4], t[R + 12], 0xdd);
    NNTI_COLUMN(0) NNTI_COLUMN(1) NNTI_COLUMN(2) NNTI_COLUMN(3)
#undef NNTI_COLUMN
}
NNTI_AVX512 static void nnti_pack_transposed_avx512(float *to, ptrdiff_t pitch, int width, const float *x, ptrdiff_t ld,
                                                    int lines, int count)
{
    int first, k;
    for (first = 0; first < width; first += 16) {
        const __mmask16 keep = nnti_lane_mask_avx512(0, nnti_min(16, width - first));
        const int read = nnti_min(16, lines - first);
        const float *from = x + first * ld;
        for (k = 0; k < count; k += 16) {
            const int ks = nnti_min(16, count - k);
            const __mmask16 in = nnti_lane_mask_avx512(0, ks);
            float *out = to + k * pitch + first;
            __m512 r[16];
#define NNTI_ROW(R) r[R] = read > R ? _mm512_maskz_loadu_ps(in, from + R * ld + k) : _mm512_setzero_ps();
            NNTI_ROWS_14(NNTI_ROW) NNTI_ROW(14) NNTI_ROW(15)
#undef NNTI_ROW
            nnti_transpose_avx512(r);
#define NNTI_ROW(R) if (ks > R) _mm512_mask_storeu_ps(out + R * pitch, keep, r[R]);
            NNTI_ROWS_14(NNTI_ROW) NNTI_ROW(14) NNTI_ROW(15)
#undef NNTI_ROW
        }
    }
}
NNTI_AVX512 static void nnti_turn_avx512(const float *x, ptrdiff_t pitch, int64_t count, int rows, float *c,
                                         ptrdiff_t ldc, const nnti_tile_end *end)
{
    const __m512 zero = _mm512_setzero_ps();
    int64_t i;
    int first, f;
    for (first = 0; first < rows; first += 16)
        for (i = 0; i < count; i += 16) {
            const int n = (int)nnti_min64(16, count - i);
            const __mmask16 keep = nnti_lane_mask_avx512(0, n);
            const float *from = x + (ptrdiff_t)i * pitch + first;
            __m512 r[16];
#define NNTI_ROW(R) r[R] = n > R ? _mm512_loadu_ps(from + R * pitch) : zero;
            NNTI_ROWS_14(NNTI_ROW) NNTI_ROW(14) NNTI_ROW(15)
#undef NNTI_ROW
            nnti_transpose_avx512(r);
            for (f = 0; f < 16 && first + f < rows; f++) {
                const ptrdiff_t at = (first + f) * ldc + (ptrdiff_t)i;
                __m512 s = r[f];
                if (end->row_bias) s = _mm512_add_ps(s, _mm512_set1_ps(end->row_bias[first + f]));
                if (end->add) s = _mm512_add_ps(s, _mm512_maskz_loadu_ps(keep, c + at));
                if (end->relu) s = _mm512_max_ps(zero, s);
                if (end->mask) {
                    const __m512 m = _mm512_maskz_loadu_ps(keep, end->mask + at);
                    s = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(m, zero, _CMP_GT_OQ), s);
                }
                _mm512_mask_storeu_ps(c + at, keep, s);
            }
        }
}
NNTI_AVX512 NNTI_INLINE void nnti_dots_tile_avx512(const int rows, const int columns, const float *a, ptrdiff_t lda,
                                                   const float *b, ptrdiff_t ldb, int count, float *sums,
                                                   ptrdiff_t pitch)
{
    int p;
#define NNTI_ROW(J) __m512 u##J = _mm512_setzero_ps(), v##J = u##J;
    NNTI_ROWS_9(NNTI_ROW)
#undef NNTI_ROW
    for (p = 0; p < count; p += 16) {
        const __mmask16 in = nnti_lane_mask_avx512(0, nnti_min(16, count - p));
        const __m512 x0 = _mm512_maskz_loadu_ps(in, a + p), x1 = rows > 1 ? _mm512_maskz_loadu_ps(in, a + lda + p) : x0;
#define NNTI_ROW(J) \
        if (columns > J) { \
            const __m512 y = _mm512_loadu_ps(b + J * ldb + p); \
            u##J = _mm512_fmadd_ps(x0, y, u##J); \
            if (rows > 1) v##J = _mm512_fmadd_ps(x1, y, v##J); \
        }
        NNTI_ROWS_9(NNTI_ROW)
#undef NNTI_ROW
    }
#define NNTI_ROW(J) \
    if (columns > J) { \
        float *s0 = sums + J * 16, *s1 = s0 + pitch; \
        _mm512_storeu_ps(s0, _mm512_add_ps(u##J, _mm512_loadu_ps(s0))); \
        if (rows > 1) _mm512_storeu_ps(s1, _mm512_add_ps(v##J, _mm512_loadu_ps(s1))); \
    }
    NNTI_ROWS_9(NNTI_ROW)
#undef NNTI_ROW
}
NNTI_AVX512 static void nnti_dots_avx512(const float *a, ptrdiff_t lda, int rows, const float *b, ptrdiff_t ldb,
                                         int columns, int count, float *sums, ptrdiff_t pitch)
{
#define NNTI_CASE(N) \
    case N: \
        if (rows > 1) nnti_dots_tile_avx512(2, N, a, lda, b, ldb, count, sums, pitch); \
        else nnti_dots_tile_avx512(1, N, a, lda, b, ldb, count, sums, pitch); \
        break;
    switch (columns) {
    NNTI_CASE(1) NNTI_CASE(2) NNTI_CASE(3) NNTI_CASE(4) NNTI_CASE(5) NNTI_CASE(6) NNTI_CASE(7) NNTI_CASE(8) NNTI_CASE(9)
    }
#undef NNTI_CASE
}
NNTI_AVX512 NNTI_INLINE void nnti_plane_store_avx512(__m512 s, float *c, ptrdiff_t at, __mmask16 in, int n,
                                                     const nnti_tile_end *end)
{
    if (end->row_bias) s = _mm512_add_ps(s, _mm512_set1_ps(*(end->row_bias)));
    if (end->add) s = _mm512_add_ps(s, _mm512_maskz_loadu_ps(in, c + at));
    if (end->relu) s = _mm512_max_ps(_mm512_setzero_ps(), s);
    if (end->mask) {
        const __m512 m = _mm512_maskz_loadu_ps(in, end->mask + at);
        s = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(m, _mm512_setzero_ps(), _CMP_GT_OQ), s);
    }
    _mm512_mask_storeu_ps(c + at, in, s);
    (void)n;
}
NNTI_AVX512 static void nnti_plane_avx512(const float *x, ptrdiff_t step, const int32_t *table, const float *w, int k,
                                          int rows, int columns, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
    int i, j, q;
    for (j = 0; j < columns; j += 16) {
        const int n = nnti_min(16, columns - j);
        const __mmask16 in = nnti_lane_mask_avx512(0, n);
        for (i = 0; i < rows; i += 4) {
            const float *x0 = x + i * step + j;             /* rows behind the last repeat it */
            const ptrdiff_t d1 = i + 1 < rows ? step : 0;
            const ptrdiff_t d2 = i + 2 < rows ? d1 + step : d1, d3 = i + 3 < rows ? d2 + step : d2;
            __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
            for (q = 0; q < k; q++) {
                const float *y = x0 + table[q];
                const __m512 t = _mm512_set1_ps(*(w + q));
                s0 = _mm512_fmadd_ps(t, _mm512_maskz_loadu_ps(in, y), s0);
                s1 = _mm512_fmadd_ps(t, _mm512_maskz_loadu_ps(in, y + d1), s1);
                s2 = _mm512_fmadd_ps(t, _mm512_maskz_loadu_ps(in, y + d2), s2);
                s3 = _mm512_fmadd_ps(t, _mm512_maskz_loadu_ps(in, y + d3), s3);
            }
            nnti_plane_store_avx512(s0, c, i * ldc + j, in, n, end);
            if (i + 1 < rows) nnti_plane_store_avx512(s1, c, (i + 1) * ldc + j, in, n, end);
            if (i + 2 < rows) nnti_plane_store_avx512(s2, c, (i + 2) * ldc + j, in, n, end);
            if (i + 3 < rows) nnti_plane_store_avx512(s3, c, (i + 3) * ldc + j, in, n, end);
        }
    }
}
NNTI_AVX512 static float nnti_row_sum_avx512(const float *x, int64_t count)
{
    __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    float lane[16];
    int64_t i, k;
    for (i = 0; i + 64 <= count; i += 64) {
        s0 = _mm512_add_ps(s0, _mm512_loadu_ps(x + i));
        s1 = _mm512_add_ps(s1, _mm512_loadu_ps(x + i + 16));
        s2 = _mm512_add_ps(s2, _mm512_loadu_ps(x + i + 32));
        s3 = _mm512_add_ps(s3, _mm512_loadu_ps(x + i + 48));
    }
    for (; i < count; i += 16)
        s0 = _mm512_add_ps(s0, _mm512_maskz_loadu_ps(nnti_lane_mask_avx512(0, (int)nnti_min64(16, count - i)), x + i));
    _mm512_storeu_ps(lane, _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3)));
    for (i = 8; i > 0; i /= 2) for (k = 0; k < i; k++) lane[k] += lane[k + i];
    return lane[0];
}
static const nnti_gemm_isa nnti_gemm_isa_avx512 = {
    16, 2, 14, 9, nnti_tiles_avx512, nnti_pack_rows_avx512, nnti_pack_transposed_avx512,
    nnti_turn_avx512, nnti_dots_avx512, nnti_plane_avx512, nnti_row_sum_avx512
};

#elif defined(NNTI_NEON)

/* NEON: 8 rows of 3 vectors of 4. */

NNTI_INLINE void nnti_tile_neon(const int rows, const int vecs, int k, const float *a, const int32_t *ta,
                             const float *b, const int32_t *tb, float *c, ptrdiff_t ldc, const nnti_tile_end *end)
{
#define NNTI_ROW(R) float32x4_t u##R = vdupq_n_f32(0.0f), v##R = u##R, w##R = u##R;
    NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
    for (; k > 0; k--, ta++, tb++) {
        const float *x = a + *ta, *y = b + *tb;
        const float32x4_t b0 = vld1q_f32(y), b1 = vecs > 1 ? vld1q_f32(y + 4) : b0;
        const float32x4_t b2 = vecs > 2 ? vld1q_f32(y + 8) : b0;
        if (rows == 8) {                    /* all of a in two registers: eight would not leave room for the sums */
            const float32x4_t a0 = vld1q_f32(x), a1 = vld1q_f32(x + 4);
#define NNTI_ROW(R) \
            u##R = vfmaq_laneq_f32(u##R, b0, R < 4 ? a0 : a1, R & 3); \
            if (vecs > 1) v##R = vfmaq_laneq_f32(v##R, b1, R < 4 ? a0 : a1, R & 3); \
            if (vecs > 2) w##R = vfmaq_laneq_f32(w##R, b2, R < 4 ? a0 : a1, R & 3);
            NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
        } else {
#define NNTI_ROW(R) \
            if (rows > R) { \
                const float32x4_t t = vld1q_dup_f32(x + R); \
                u##R = vfmaq_f32(u##R, t, b0); \
                if (vecs > 1) v##R = vfmaq_f32(v##R, t, b1); \
                if (vecs > 2) w##R = vfmaq_f32(w##R, t, b2); \
            }
            NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
        }
    }
#define NNTI_VECTOR(S, R, J) \
    if (end->row_bias) S = vaddq_f32(S, vld1q_dup_f32(end->row_bias + R)); \
    if (end->col_bias) S = vaddq_f32(S, vld1q_f32(end->col_bias + J)); \
    if (end->add) S = vaddq_f32(S, vld1q_f32(c + R * ldc + J)); \
    if (end->relu) S = vmaxq_f32(S, vdupq_n_f32(0.0f)); \
    if (end->mask) S = vbslq_f32(vcgtzq_f32(vld1q_f32(end->mask + R * ldc + J)), S, vdupq_n_f32(0.0f)); \
    vst1q_f32(c + R * ldc + J, S);
#define NNTI_ROW(R) \
    if (rows > R) { \
        NNTI_VECTOR(u##R, R, 0) \
        if (vecs > 1) { NNTI_VECTOR(v##R, R, 4) } \
        if (vecs > 2) { NNTI_VECTOR(w##R, R, 8) } \
    }
    NNTI_ROWS_8(NNTI_ROW)
#undef NNTI_ROW
#undef NNTI_VECTOR
}
#define NNTI_TILE_NEON(rows, vecs) NNTI_TILE(rows, vecs, neon, NNTI_NO_ATTRIBUTE, vecs)
#define NNTI_TILES_NEON(vecs) \
    NNTI_TILE_NEON(1, vecs) NNTI_TILE_NEON(2, vecs) NNTI_TILE_NEON(3, vecs) NNTI_TILE_NEON(4, vecs) \
    NNTI_TILE_NEON(5, vecs) NNTI_TILE_NEON(6, vecs) NNTI_TILE_NEON(7, vecs) NNTI_TILE_NEON(8, vecs)
NNTI_TILES_NEON(1)
NNTI_TILES_NEON(2)
NNTI_TILES_NEON(3)
#undef NNTI_TILES_NEON
#undef NNTI_TILE_NEON

#define NNTI_NAMES(vecs) \
    nnti_tile_neon_1_##vecs, nnti_tile_neon_2_##vecs, nnti_tile_neon_3_##vecs, nnti_tile_neon_4_##vecs, \
    nnti_tile_neon_5_##vecs, nnti_tile_neon_6_##vecs, nnti_tile_neon_7_##vecs, nnti_tile_neon_8_##vecs
static const nnti_tile_fn nnti_tiles_neon[] = { NNTI_NAMES(1), NNTI_NAMES(2), NNTI_NAMES(3) };
#undef NNTI_NAMES

static const nnti_gemm_isa nnti_gemm_isa_neon = {
    NNTI_LANES_C, 3, 8, 4, nnti_tiles_neon,
    nnti_pack_rows_c, nnti_pack_transposed_c, nnti_turn_c, nnti_dots_c, nnti_plane_c, nnti_row_sum_c
};

#endif
#undef NNTI_TILE

static const nnti_gemm_isa *nnti_gemm_isa_of(const nnti_exec *e)
{
#if defined(NNTI_X86)
    if (e->isa == NNTI_ISA_AVX512) return &nnti_gemm_isa_avx512;
    if (e->isa == NNTI_ISA_AVX2) return &nnti_gemm_isa_avx2;
#elif defined(NNTI_NEON)
    if (e->isa == NNTI_ISA_NEON) return &nnti_gemm_isa_neon;
#endif
    (void)e;
    return &nnti_gemm_isa_c;
}

/* One product. The caller fills the first part, nnti_gemm_plan the second. */
typedef struct nnti_gemm {
    int m, k;
    int64_t n;
    nnti_operand b;
    float *c;
    ptrdiff_t ldc;                  /* between rows of C */
    nnti_lines c_lines;             /* where a column begins in a row of C */
    nnti_tile_end end;              /* pointers to the first row's or column's values */

    const nnti_gemm_isa *isa;
    int tiles;                      /* A's rows in tiles of nearly equal size */
    int kc;                         /* length of a block of k */
    int group;                      /* panels at a time; usually 1, a panel being in the first-level cache */
    const float *a;                 /* packed: block of k at k0 * m, in it a tile at its first row * block's length */
    const int32_t *tables;          /* nnti_gemm_tables: kc entries for each height of a tile and width of a panel */
    int in_place;                   /* B's panels are used where they are if they lie side by side; b.table is given */
} nnti_gemm;

static int nnti_tile_row(const nnti_gemm *g, int tile)      /* the tile's first row */
{
    return tile * (g->m / g->tiles) + nnti_min(tile, g->m % g->tiles);
}
static int nnti_panel_width(const nnti_gemm_isa *isa) { return isa->lanes * isa->vecs; }

static void nnti_gemm_plan(nnti_gemm *g, const nnti_gemm_isa *isa)
{
    int blocks = nnti_max(1, (int)nnti_ceil_div(g->k, NNTI_GEMM_KC));
    g->isa = isa;
    g->tiles = (int)nnti_ceil_div(g->m, isa->rows);
    g->kc = nnti_min(NNTI_GEMM_KC, nnti_max(1, (int)nnti_ceil_div(nnti_ceil_div(g->k, blocks), 8) * 8));
    /* C that does not fit in any cache and of which each pass changes much: go along its rows. */
    g->group = blocks == 1 && g->kc < 128 && (double)g->m * (double)g->n > 4e6 ? NNTI_GROUP_MAX : 1;
}
/* Offsets of packed k: k * height for the two heights that tiles have, then k * width for the widths of panels; last,
   room for those of B in place. */
static size_t nnti_gemm_table_bytes(const nnti_gemm *g)
{
    return nnti_round_up((size_t)(3 + g->isa->vecs) * (size_t)g->kc * sizeof(int32_t), 64);
}
static void nnti_gemm_tables(nnti_gemm *g, int32_t *tables)
{
    int i, k;
    g->tables = tables;
    for (i = 0; i < 2 + g->isa->vecs; i++) {
        const int step = i < 2 ? g->m / g->tiles + i : (i - 1) * g->isa->lanes;
        for (k = 0; k < g->kc; k++) *tables++ = k * step;
    }
}
static const int32_t *nnti_tile_table(const nnti_gemm *g, int rows)
{
    return g->tables + (rows - g->m / g->tiles) * g->kc;
}
static const int32_t *nnti_panel_table(const nnti_gemm *g, int width)
{
    return g->tables + (1 + width / g->isa->lanes) * g->kc;
}

/* Floats of A when packed, and of one worker's scratch. */
static size_t nnti_gemm_packed(const nnti_gemm *g) { return nnti_round_up((size_t)g->m * (size_t)g->k, 16); }
static size_t nnti_gemm_scratch(const nnti_gemm *g)
{
    const int rows = nnti_min(g->m, NNTI_GEMM_ROWS + NNTI_TILE_MAX);
    return nnti_round_up((size_t)g->group * (size_t)nnti_panel_width(g->isa) * (size_t)(g->kc + rows), 16);
}

/* Packs lines [first, first + lines) and k in [k0, k0 + count) to to[(k - k0) * pitch + line]; zeros up to width. */
static void nnti_pack_operand(const nnti_gemm_isa *isa, const nnti_operand *o, int64_t first, int lines, int width,
                              int k0, int count, float *to, ptrdiff_t pitch)
{
    nnti_pack_job p;
    p.runs = nnti_line_runs(&o->lines, first, lines, p.run);
    if (p.runs == 1 && o->lines.stride != 1 && !o->table && o->step == 1) {
        isa->pack_transposed(to, pitch, width, o->x + p.run[0].offset + k0, o->lines.stride, lines, count);
        return;
    }
    p.to = to;
    p.pitch = pitch;
    p.width = width;
    p.count = count;
    p.x = o->x + k0 * o->step;
    p.table = o->table ? o->table + k0 : NULL;
    p.step = o->step;
    p.stride = o->lines.stride;
    isa->pack_rows(&p);
}
/* Packs a tile of A for k in [k_first, k_last); `a` then holds k = 0 at its own k0. */
static void nnti_gemm_pack_a(const nnti_gemm *g, const nnti_operand *a, float *packed, int tile, int k_first,
                             int k_last, int k0)
{
    const int row = nnti_tile_row(g, tile), rows = nnti_tile_row(g, tile + 1) - row;
    int k, next;
    for (k = k_first; k < k_last; k = next) {
        const int block = k / g->kc * g->kc, length = nnti_min(g->kc, g->k - block);
        float *to = packed + (size_t)block * (size_t)g->m + (size_t)row * (size_t)length
                    + (size_t)(k - block) * (size_t)rows;
        next = nnti_min(block + length, k_last);
        nnti_pack_operand(g->isa, a, row, rows, rows, k - k0, next - k, to, rows);
    }
}

/* Brings a finished panel from its own buffer [row][width] to columns of C that don't lie side by side. */
static void nnti_gemm_scatter(const nnti_gemm *g, int row, int rows, int64_t column, int columns, const float *from,
                              int width)
{
    nnti_lane_run run[NNTI_PANEL_MAX];
    const int runs = nnti_line_runs(&g->c_lines, column, columns, run);
    const ptrdiff_t stride = g->c_lines.stride;
    int i, r, j;
    for (i = row; i < row + rows; i++, from += width)
        for (r = 0; r < runs; r++) {
            const ptrdiff_t at = i * g->ldc + run[r].offset;
            const float *s = from + run[r].first;
            float *c = g->c + at;
            if (g->end.mask) {
                const float *m = g->end.mask + at;
                for (j = 0; j < run[r].length; j++) {
                    const float v = g->end.add ? c[j * stride] + s[j] : s[j];
                    c[j * stride] = m[j * stride] > 0.0f ? v : 0.0f;
                }
            } else if (g->end.add) {
                for (j = 0; j < run[r].length; j++) c[j * stride] += s[j];
            } else {
                for (j = 0; j < run[r].length; j++) c[j * stride] = s[j];
            }
        }
}

/* A panel on its way through the blocks of k: its columns, and where its sums stand. */
typedef struct nnti_panel {
    int64_t column;
    int columns, width, direct;     /* direct: c is in C itself, side by side */
    const float *in_place;          /* B's columns where they are; NULL: packed to b */
    float *b, *c;
    ptrdiff_t ldc;
    float col_bias[NNTI_PANEL_MAX];
} nnti_panel;

static void nnti_panel_begin(const nnti_gemm *g, nnti_panel *p, int64_t column, int64_t end, float *b, float *spare,
                             int row)
{
    const int lanes = g->isa->lanes;
    nnti_lane_run run[NNTI_PANEL_MAX];
    int j;
    p->column = column;
    p->columns = (int)nnti_min64(nnti_panel_width(g->isa), end - column);
    p->width = (p->columns + lanes - 1) / lanes * lanes;
    p->b = b;
    p->direct = p->columns == p->width && g->c_lines.stride == 1
             && nnti_line_runs(&g->c_lines, column, p->columns, run) == 1;
    p->c = p->direct ? g->c + run[0].offset + row * g->ldc : spare;
    p->ldc = p->direct ? g->ldc : p->width;
    p->in_place = g->in_place && p->columns == p->width && g->b.lines.stride == 1
               && nnti_line_runs(&g->b.lines, column, p->columns, run) == 1 ? g->b.x + run[0].offset : NULL;
    if (g->end.col_bias)
        for (j = 0; j < p->width; j++) p->col_bias[j] = j < p->columns ? g->end.col_bias[column + j] : 0.0f;
}
/* One tile of a panel, for the block of k that starts at k0; `row` is the first row of the panel's sums. */
static void nnti_panel_tile(const nnti_gemm *g, const nnti_panel *p, int row, int tile, int k0, int count)
{
    const int first = nnti_tile_row(g, tile), rows = nnti_tile_row(g, tile + 1) - first;
    const float *a = g->a + (size_t)k0 * (size_t)g->m + (size_t)first * (size_t)count;
    const int last = k0 + count == g->k;
    float *c = p->c + (first - row) * p->ldc;
    nnti_tile_end end;
    end.row_bias = last && g->end.row_bias ? g->end.row_bias + first : NULL;
    end.col_bias = last && g->end.col_bias ? p->col_bias : NULL;
    end.mask = last && p->direct && g->end.mask ? g->end.mask + (c - g->c) : NULL;
    end.add = k0 > 0 || (p->direct && g->end.add);
    end.relu = last && g->end.relu;
    g->isa->tiles[(p->width / g->isa->lanes - 1) * g->isa->rows + rows - 1](
        count, a, nnti_tile_table(g, rows), p->in_place ? p->in_place : p->b,
        p->in_place ? g->b.table + k0 : nnti_panel_table(g, p->width), c, p->ldc, &end);
}
/* C's rows of tiles [tile0, tile1), columns [column0, column1). scratch: nnti_gemm_scratch floats. */
static void nnti_gemm_block(const nnti_gemm *g, int tile0, int tile1, int64_t column0, int64_t column1, float *scratch)
{
    const int width = nnti_panel_width(g->isa), row = nnti_tile_row(g, tile0), rows = nnti_tile_row(g, tile1) - row;
    float *spare = scratch + (size_t)g->group * (size_t)g->kc * (size_t)width;
    nnti_panel panel[NNTI_GROUP_MAX];
    int64_t column;
    for (column = column0; column < column1; column += (int64_t)g->group * width) {
        const int count = (int)nnti_min64(g->group, nnti_ceil_div(column1 - column, width));
        int p, t, k0 = 0;
        for (p = 0; p < count; p++)
            nnti_panel_begin(g, &panel[p], column + (int64_t)p * width, column1,
                             scratch + (size_t)p * (size_t)g->kc * (size_t)width,
                             spare + (size_t)p * (size_t)rows * (size_t)width, row);
        do {                                /* once even if k is 0: C is then all bias */
            const int length = nnti_min(g->kc, g->k - k0);
            for (p = 0; p < count; p++)
                if (!panel[p].in_place)
                    nnti_pack_operand(g->isa, &g->b, panel[p].column, panel[p].columns, panel[p].width, k0, length,
                                      panel[p].b, panel[p].width);
            for (t = tile0; t < tile1; t++)
                for (p = 0; p < count; p++) nnti_panel_tile(g, &panel[p], row, t, k0, length);
            k0 += length;
        } while (k0 < g->k);
        for (p = 0; p < count; p++)
            if (!panel[p].direct)
                nnti_gemm_scatter(g, row, rows, panel[p].column, panel[p].columns, panel[p].c, panel[p].width);
    }
}

/* How C is cut: row_blocks times column_blocks chunks, by its size alone. */
typedef struct nnti_gemm_cut { int row_blocks, column_blocks; int64_t columns; } nnti_gemm_cut;

static nnti_gemm_cut nnti_gemm_cut_of(const nnti_gemm *g)
{
    const int64_t width = (int64_t)g->group * nnti_panel_width(g->isa);
    const int64_t panels = nnti_max64(1, nnti_ceil_div(g->n, width));
    const double work = (double)g->m * (double)g->n * (double)g->k;
    const int wanted = work < 4e5 ? 1 : work > 64 * 2e5 ? 64 : (int)(work / 2e5);
    nnti_gemm_cut cut;
    cut.row_blocks = (int)nnti_ceil_div(g->m, NNTI_GEMM_ROWS);
    /* Few columns: cut the rows too, though each block of them packs B again. */
    if (panels < 16 && panels * cut.row_blocks < wanted)
        cut.row_blocks = nnti_max(cut.row_blocks, nnti_min(g->m / 128, (int)(16 / panels)));
    cut.columns = width * nnti_max64(1, panels * cut.row_blocks / nnti_max(wanted, cut.row_blocks));
    cut.column_blocks = (int)nnti_max64(1, nnti_ceil_div(g->n, cut.columns));
    return cut;
}

typedef struct nnti_gemm_job {
    const nnti_gemm *g;
    const nnti_operand *a;
    float *packed, *scratch;
    nnti_gemm_cut cut;
} nnti_gemm_job;

static void nnti_gemm_pack_task(void *arg, int64_t chunk, int worker)
{
    const nnti_gemm_job *job = (const nnti_gemm_job *)arg;
    (void)worker;
    nnti_gemm_pack_a(job->g, job->a, job->packed, (int)chunk, 0, job->g->k, 0);
}
static void nnti_gemm_task(void *arg, int64_t chunk, int worker)
{
    const nnti_gemm_job *job = (const nnti_gemm_job *)arg;
    const nnti_gemm *g = job->g;
    const int64_t rows = chunk % job->cut.row_blocks, columns = chunk / job->cut.row_blocks;
    const int tile0 = (int)(g->tiles * rows / job->cut.row_blocks);
    const int tile1 = (int)(g->tiles * (rows + 1) / job->cut.row_blocks);
    nnti_gemm_block(g, tile0, tile1, columns * job->cut.columns, nnti_min64(g->n, (columns + 1) * job->cut.columns),
                    job->scratch + (size_t)worker * nnti_gemm_scratch(g));
}
/* Runs chunks in this thread when they are little work. */
static void nnti_parallel_if(const nnti_exec *e, int wanted, int64_t chunks, nnti_task fn, void *arg)
{
    nnti_parallel(wanted ? e->pool : NULL, chunks, fn, arg);
}
static size_t nnti_gemm_workspace(const nnti_exec *e, const nnti_gemm *g)
{
    return nnti_gemm_table_bytes(g)
           + sizeof(float) * (nnti_gemm_packed(g) + (size_t)nnti_pool_threads(e->pool) * nnti_gemm_scratch(g));
}
/* B's rows lie side by side, and those of one panel fit in the first-level cache without falling on few of its sets. */
static int nnti_gemm_in_place(const nnti_gemm *g)
{
    const ptrdiff_t step = g->b.step;
    return !g->b.table && g->b.lines.stride == 1 && g->k <= g->kc && g->k * nnti_panel_width(g->isa) <= 8 * 1024
        && step % 128 != 0 && step < 1000000;
}
/* The whole product. workspace: nnti_gemm_workspace bytes. */
static void nnti_gemm_run(const nnti_exec *e, nnti_gemm *g, const nnti_operand *a, void *workspace)
{
    nnti_gemm_job job;
    job.g = g;
    job.a = a;
    job.packed = (float *)(void *)((char *)workspace + nnti_gemm_table_bytes(g));
    job.scratch = job.packed + nnti_gemm_packed(g);
    job.cut = nnti_gemm_cut_of(g);
    g->a = job.packed;
    nnti_gemm_tables(g, (int32_t *)workspace);
    if (nnti_gemm_in_place(g)) {
        int32_t *table = (int32_t *)workspace + (2 + g->isa->vecs) * g->kc;
        int k;
        for (k = 0; k < g->k; k++) table[k] = (int32_t)(k * g->b.step);
        g->b.table = table;
        g->b.step = 0;
        g->in_place = 1;
    }
    nnti_parallel_if(e, (int64_t)g->m * g->k > 64 * 1024, g->tiles, nnti_gemm_pack_task, &job);
    nnti_parallel(e->pool, (int64_t)job.cut.row_blocks * job.cut.column_blocks, nnti_gemm_task, &job);
}
/* A matrix in memory: element (line i, k) at x[i * line + k * step]. */
static nnti_operand nnti_operand_matrix(const float *x, int64_t lines, ptrdiff_t line, ptrdiff_t step)
{
    nnti_operand o;
    o.x = x;
    o.lines = nnti_lines_plain(lines, line);
    o.table = NULL;
    o.step = step;
    return o;
}
/* A product of m x k and k x n with C dense and nothing added. */
static nnti_gemm nnti_gemm_new(const nnti_exec *e, int m, int64_t n, int k)
{
    nnti_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.ldc = (ptrdiff_t)n;
    g.c_lines = nnti_lines_plain(n, 1);
    nnti_gemm_plan(&g, nnti_gemm_isa_of(e));
    return g;
}

/* ============================================================================
   >>winograd    3x3 convolutions of stride 1 with fewer multiplications: F(4x4, 3x3) and F(2x2, 3x3)
   Reads images into tiles, multiplies their transforms by those of the weights as 36 or 16 products, and writes images.
   Used by >>conv, which decides by shape alone.
   ============================================================================ */

/* Lavin and Gray, arXiv 1509.09308. A tile of m x m results comes from (m + 2) x (m + 2) values d by

       y = A' [sum over channels of (G w G') . (B' d B)] A        . multiplies element by element

   which takes (m + 2)^2 multiplications a channel instead of 9 m^2: 4 times fewer for m = 4, 2.25 for m = 2. The gradient
   of data is such a convolution too, by the weights turned by half a turn; that of the weights is the adjoint map,
   gw = G' [sum over tiles of (A gy A') . (B' d B)] G. The matrices follow from the points at which polynomials are
   evaluated: 0, 1, -1 and infinity for m = 2; for m = 4 0, +-p, +-q and infinity with p = 5/8, q = 3/2. Powers of these
   are exact in a float, and the error is half of that with the usual points 1 and 2 (docs/speed.md).

   Elements of the transforms lie apart, channels are the vectors' lanes: tiles of any size of map cost alike. */

enum {
    NNTI_WINO_LEAST = 16,           /* channels and filters below which the transforms cost more than they save */
    NNTI_WINO_RUN = 15              /* tiles of a row that are read together: 4 * 15 + 2 columns fit four vectors of 16 */
};
#define NNTI_WINO_P 0.625
#define NNTI_WINO_Q 1.5
#define NNTI_WINO_P2 (NNTI_WINO_P * NNTI_WINO_P)
#define NNTI_WINO_Q2 (NNTI_WINO_Q * NNTI_WINO_Q)
#define NNTI_WINO_N0 (1.0 / (NNTI_WINO_P2 * NNTI_WINO_Q2))
#define NNTI_WINO_NP (0.5 / (NNTI_WINO_P2 * (NNTI_WINO_P2 - NNTI_WINO_Q2)))
#define NNTI_WINO_NQ (0.5 / (NNTI_WINO_Q2 * (NNTI_WINO_Q2 - NNTI_WINO_P2)))

/* One side of each map, L of y = L x L'. X(i) is element i of a line, PUT(i, v) takes element i of L times the line.
   The vector type NNTI_V and its functions are the instruction set's. */
#define NNTI_LINE_DATA4(X, PUT) {           /* B': 6 to 6 */ \
        const NNTI_V x1 = X(1), x2 = X(2), x3 = X(3), x4 = X(4); \
        const NNTI_V e = NNTI_FMA(NNTI_SET(-NNTI_WINO_Q2), x2, x4), o = NNTI_FMA(NNTI_SET(-NNTI_WINO_Q2), x1, x3); \
        const NNTI_V f = NNTI_FMA(NNTI_SET(-NNTI_WINO_P2), x2, x4), g = NNTI_FMA(NNTI_SET(-NNTI_WINO_P2), x1, x3); \
        const NNTI_V sum = NNTI_SET(-(NNTI_WINO_P2 + NNTI_WINO_Q2)), product = NNTI_SET(NNTI_WINO_P2 * NNTI_WINO_Q2); \
        PUT(0, NNTI_FMA(product, X(0), NNTI_FMA(sum, x2, x4))) \
        PUT(1, NNTI_FMA(NNTI_SET(NNTI_WINO_P), o, e)) \
        PUT(2, NNTI_FMA(NNTI_SET(-NNTI_WINO_P), o, e)) \
        PUT(3, NNTI_FMA(NNTI_SET(NNTI_WINO_Q), g, f)) \
        PUT(4, NNTI_FMA(NNTI_SET(-NNTI_WINO_Q), g, f)) \
        PUT(5, NNTI_FMA(product, x1, NNTI_FMA(sum, x3, X(5)))) }
#define NNTI_LINE_DATA2(X, PUT) {           /* B': 4 to 4 */ \
        const NNTI_V x0 = X(0), x1 = X(1), x2 = X(2), x3 = X(3); \
        PUT(0, x2 - x0) PUT(1, x1 + x2) PUT(2, x2 - x1) PUT(3, x3 - x1) }
#define NNTI_LINE_KERNEL4(X, PUT) {         /* G: 3 to 6 */ \
        const NNTI_V x0 = X(0), x1 = X(1), x2 = X(2); \
        const NNTI_V e = NNTI_FMA(NNTI_SET(NNTI_WINO_P2), x2, x0) * NNTI_SET(NNTI_WINO_NP); \
        const NNTI_V f = NNTI_FMA(NNTI_SET(NNTI_WINO_Q2), x2, x0) * NNTI_SET(NNTI_WINO_NQ); \
        PUT(0, x0 * NNTI_SET(NNTI_WINO_N0)) \
        PUT(1, NNTI_FMA(NNTI_SET(NNTI_WINO_P * NNTI_WINO_NP), x1, e)) \
        PUT(2, NNTI_FMA(NNTI_SET(-NNTI_WINO_P * NNTI_WINO_NP), x1, e)) \
        PUT(3, NNTI_FMA(NNTI_SET(NNTI_WINO_Q * NNTI_WINO_NQ), x1, f)) \
        PUT(4, NNTI_FMA(NNTI_SET(-NNTI_WINO_Q * NNTI_WINO_NQ), x1, f)) \
        PUT(5, x2) }
#define NNTI_LINE_KERNEL2(X, PUT) {         /* G: 3 to 4 */ \
        const NNTI_V x0 = X(0), x1 = X(1), x2 = X(2), e = (x0 + x2) * NNTI_SET(0.5); \
        PUT(0, NNTI_SET(0) - x0) \
        PUT(1, NNTI_FMA(NNTI_SET(0.5), x1, e)) PUT(2, NNTI_FMA(NNTI_SET(-0.5), x1, e)) PUT(3, x2) }
#define NNTI_LINE_RESULT4(X, PUT) {         /* A': 6 to 4 */ \
        const NNTI_V x1 = X(1), x2 = X(2), x3 = X(3), x4 = X(4); \
        const NNTI_V e = x1 + x2, o = x1 - x2, f = x3 + x4, g = x3 - x4; \
        PUT(0, X(0) + (e + f)) \
        PUT(1, NNTI_FMA(NNTI_SET(NNTI_WINO_P), o, NNTI_SET(NNTI_WINO_Q) * g)) \
        PUT(2, NNTI_FMA(NNTI_SET(NNTI_WINO_P2), e, NNTI_SET(NNTI_WINO_Q2) * f)) \
        PUT(3, NNTI_FMA(NNTI_SET(NNTI_WINO_P * NNTI_WINO_P2), o, NNTI_FMA(NNTI_SET(NNTI_WINO_Q * NNTI_WINO_Q2), g, X(5)))) }
#define NNTI_LINE_RESULT2(X, PUT) {         /* A': 4 to 2 */ \
        const NNTI_V x1 = X(1), x2 = X(2); \
        PUT(0, X(0) + (x1 + x2)) PUT(1, (x1 - x2) + X(3)) }
#define NNTI_LINE_SPREAD4(X, PUT) {         /* A: 4 to 6 */ \
        const NNTI_V x0 = X(0), x1 = X(1), x2 = X(2), x3 = X(3); \
        const NNTI_V e = NNTI_FMA(NNTI_SET(NNTI_WINO_P2), x2, x0), f = NNTI_FMA(NNTI_SET(NNTI_WINO_Q2), x2, x0); \
        const NNTI_V o = NNTI_FMA(NNTI_SET(NNTI_WINO_P2), x3, x1), g = NNTI_FMA(NNTI_SET(NNTI_WINO_Q2), x3, x1); \
        PUT(0, x0) \
        PUT(1, NNTI_FMA(NNTI_SET(NNTI_WINO_P), o, e)) \
        PUT(2, NNTI_FMA(NNTI_SET(-NNTI_WINO_P), o, e)) \
        PUT(3, NNTI_FMA(NNTI_SET(NNTI_WINO_Q), g, f)) \
        PUT(4, NNTI_FMA(NNTI_SET(-NNTI_WINO_Q), g, f)) \
        PUT(5, x3) }
#define NNTI_LINE_SPREAD2(X, PUT) {         /* A: 2 to 4 */ \
        const NNTI_V x0 = X(0), x1 = X(1); \
        PUT(0, x0) PUT(1, x0 + x1) PUT(2, x0 - x1) PUT(3, x1) }
#define NNTI_LINE_WEIGHT4(X, PUT) {         /* G': 6 to 3 */ \
        const NNTI_V x1 = X(1), x2 = X(2), x3 = X(3), x4 = X(4); \
        const NNTI_V e = (x1 + x2) * NNTI_SET(NNTI_WINO_NP), f = (x3 + x4) * NNTI_SET(NNTI_WINO_NQ); \
        const NNTI_V o = (x1 - x2) * NNTI_SET(NNTI_WINO_P * NNTI_WINO_NP); \
        PUT(0, NNTI_FMA(NNTI_SET(NNTI_WINO_N0), X(0), e + f)) \
        PUT(1, NNTI_FMA(NNTI_SET(NNTI_WINO_Q * NNTI_WINO_NQ), x3 - x4, o)) \
        PUT(2, NNTI_FMA(NNTI_SET(NNTI_WINO_P2), e, NNTI_FMA(NNTI_SET(NNTI_WINO_Q2), f, X(5)))) }
#define NNTI_LINE_WEIGHT2(X, PUT) {         /* G': 4 to 3 */ \
        const NNTI_V x1 = X(1), x2 = X(2), e = (x1 + x2) * NNTI_SET(0.5); \
        PUT(0, e - X(0)) PUT(1, (x1 - x2) * NNTI_SET(0.5)) PUT(2, e + X(3)) }

/* For each of count tiles, at x + n xt and y + n yt: y[i * yi + j * yj] = L x L' of x[i * xi + j * xj], vectors of lanes. */
typedef void (*nnti_wino_fn)(int count, const float *x, ptrdiff_t xt, ptrdiff_t xi, ptrdiff_t xj,
                             float *y, ptrdiff_t yt, ptrdiff_t yi, ptrdiff_t yj);
#define NNTI_FROM_X(I) NNTI_LOAD(from + (I) * xi)
#define NNTI_FROM_T(J) t[n * width + (J)]
#define NNTI_TO_T(I, E) t[(I) * width + n] = E;
#define NNTI_TO_Y(J, E) NNTI_STORE(to + (J) * yj, E);
#define NNTI_WINO(NAME, isa, attribute, LINE, SIDE, TO) \
    attribute static void nnti_wino_##NAME##_##isa(int count, const float *x, ptrdiff_t xt, ptrdiff_t xi, ptrdiff_t xj, \
                                                   float *y, ptrdiff_t yt, ptrdiff_t yi, ptrdiff_t yj) \
    { \
        enum { width = SIDE }; \
        NNTI_V t[TO * width]; \
        for (; count > 0; count--, x += xt, y += yt) { \
            const float *from = x; \
            float *to = y; \
            int n; \
            for (n = 0; n < width; n++, from += xj) LINE(NNTI_FROM_X, NNTI_TO_T) \
            for (n = 0; n < TO; n++, to += yi) LINE(NNTI_FROM_T, NNTI_TO_Y) \
        } \
    }

/* A product whose rows of A lie apart: c[r * ldc + j] (+)= sum_k a[r * lda + k] b[k * width + j] for r < rows and all j of
   a panel; `add`: c is added to. */
typedef void (*nnti_strided_fn)(int k, const float *a, ptrdiff_t lda, const float *b, float *c, ptrdiff_t ldc, int add);

NNTI_INLINE void nnti_strided_c(const int rows, int k, const float *a, ptrdiff_t lda, const float *b, float *c,
                                ptrdiff_t ldc, int add)
{
    float s[4][8];
    int r, j;
    for (r = 0; r < rows; r++) for (j = 0; j < 8; j++) s[r][j] = 0.0f;
    for (; k > 0; k--, a++, b += 8)
        for (r = 0; r < rows; r++) for (j = 0; j < 8; j++) s[r][j] += a[r * lda] * b[j];
    for (r = 0; r < rows; r++) for (j = 0; j < 8; j++) c[r * ldc + j] = add ? c[r * ldc + j] + s[r][j] : s[r][j];
}
/* In vectors. Rows are reached from every third one, so that all addresses stay in registers. */
#define NNTI_STRIDED_NEW(R) NNTI_V u##R = NNTI_SET(0), v##R = u##R, w##R = u##R;
#define NNTI_STRIDED_ADD(R) \
    if (rows > R) { \
        const NNTI_V t = NNTI_SET((R < 3 ? p0 : R < 6 ? p3 : R < 9 ? p6 : R < 12 ? p9 : p12)[R % 3 * lda]); \
        u##R = NNTI_FMA(t, b0, u##R); \
        v##R = NNTI_FMA(t, b1, v##R); \
        if (NNTI_VECS > 2) w##R = NNTI_FMA(t, b2, w##R); \
    }
#define NNTI_STRIDED_OUT(R) \
    if (rows > R) { \
        float *to = c + R * ldc; \
        NNTI_STORE(to, add ? NNTI_LOAD(to) + u##R : u##R); \
        NNTI_STORE(to + NNTI_W, add ? NNTI_LOAD(to + NNTI_W) + v##R : v##R); \
        if (NNTI_VECS > 2) NNTI_STORE(to + 2 * NNTI_W, add ? NNTI_LOAD(to + 2 * NNTI_W) + w##R : w##R); \
    }
#define NNTI_STRIDED_KERNEL(isa, attribute, ROWS) \
    attribute NNTI_INLINE void nnti_strided_##isa(const int rows, int k, const float *a, ptrdiff_t lda, const float *b, \
                                                  float *c, ptrdiff_t ldc, int add) \
    { \
        const float *p0 = a, *p3 = p0 + 3 * lda, *p6 = p3 + 3 * lda, *p9 = p6 + 3 * lda, *p12 = p9 + 3 * lda; \
        ROWS(NNTI_STRIDED_NEW) \
        for (; k > 0; k--, p0++, p3++, p6++, p9++, p12++, b += NNTI_VECS * NNTI_W) { \
            const NNTI_V b0 = NNTI_LOAD(b), b1 = NNTI_LOAD(b + NNTI_W); \
            const NNTI_V b2 = NNTI_VECS > 2 ? NNTI_LOAD(b + 2 * NNTI_W) : b0; \
            ROWS(NNTI_STRIDED_ADD) \
            (void)b2; \
        } \
        ROWS(NNTI_STRIDED_OUT) \
    }
#define NNTI_STRIDED(isa, attribute, rows) \
    attribute static void nnti_strided_##isa##_##rows(int k, const float *a, ptrdiff_t lda, const float *b, float *c, \
                                                      ptrdiff_t ldc, int add) \
    { \
        nnti_strided_##isa(rows, k, a, lda, b, c, ldc, add); \
    }

enum { NNTI_WINO_DATA = 0, NNTI_WINO_KERNEL, NNTI_WINO_RESULT, NNTI_WINO_SPREAD, NNTI_WINO_WEIGHT, NNTI_WINO_MAPS };

typedef struct nnti_wino_isa {
    int lanes;
    nnti_wino_fn maps[2][NNTI_WINO_MAPS];       /* of F(2x2), of F(4x4) */
    nnti_strided_fn strided[NNTI_TILE_MAX];     /* [rows - 1] */
} nnti_wino_isa;

#define NNTI_WINO_KERNELS(isa, attribute) \
    NNTI_WINO(data2, isa, attribute, NNTI_LINE_DATA2, 4, 4)     NNTI_WINO(data4, isa, attribute, NNTI_LINE_DATA4, 6, 6) \
    NNTI_WINO(kernel2, isa, attribute, NNTI_LINE_KERNEL2, 3, 4) NNTI_WINO(kernel4, isa, attribute, NNTI_LINE_KERNEL4, 3, 6) \
    NNTI_WINO(result2, isa, attribute, NNTI_LINE_RESULT2, 4, 2) NNTI_WINO(result4, isa, attribute, NNTI_LINE_RESULT4, 6, 4) \
    NNTI_WINO(spread2, isa, attribute, NNTI_LINE_SPREAD2, 2, 4) NNTI_WINO(spread4, isa, attribute, NNTI_LINE_SPREAD4, 4, 6) \
    NNTI_WINO(weight2, isa, attribute, NNTI_LINE_WEIGHT2, 4, 3) NNTI_WINO(weight4, isa, attribute, NNTI_LINE_WEIGHT4, 6, 3)
#define NNTI_WINO_NAMES(isa) { \
    { nnti_wino_data2_##isa, nnti_wino_kernel2_##isa, nnti_wino_result2_##isa, nnti_wino_spread2_##isa, nnti_wino_weight2_##isa }, \
    { nnti_wino_data4_##isa, nnti_wino_kernel4_##isa, nnti_wino_result4_##isa, nnti_wino_spread4_##isa, nnti_wino_weight4_##isa } }

#define NNTI_V float
#define NNTI_SET(a) ((float)(a))
#define NNTI_FMA(a, b, c) ((a) * (b) + (c))
#define NNTI_LOAD(p) (*(p))
#define NNTI_STORE(p, v) (*(p) = (v))
NNTI_WINO_KERNELS(c, NNTI_NO_ATTRIBUTE)
NNTI_STRIDED(c, NNTI_NO_ATTRIBUTE, 1) NNTI_STRIDED(c, NNTI_NO_ATTRIBUTE, 2)
NNTI_STRIDED(c, NNTI_NO_ATTRIBUTE, 3) NNTI_STRIDED(c, NNTI_NO_ATTRIBUTE, 4)
#undef NNTI_V
#undef NNTI_SET
#undef NNTI_FMA
#undef NNTI_LOAD
#undef NNTI_STORE
static const nnti_wino_isa nnti_wino_isa_c = {
    1, NNTI_WINO_NAMES(c), { nnti_strided_c_1, nnti_strided_c_2, nnti_strided_c_3, nnti_strided_c_4 }
};

#if defined(NNTI_X86)
#define NNTI_V nnti_f8
#define NNTI_W 8
#define NNTI_VECS 2
#define NNTI_SET(a) nnti_set_avx2((float)(a))
#define NNTI_FMA nnti_fma_avx2
#define NNTI_LOAD(p) ((nnti_f8)_mm256_loadu_ps(p))
#define NNTI_STORE(p, v) _mm256_storeu_ps(p, (__m256)(v))
NNTI_WINO_KERNELS(avx2, NNTI_AVX2)
NNTI_STRIDED_KERNEL(avx2, NNTI_AVX2, NNTI_ROWS_6)
NNTI_STRIDED(avx2, NNTI_AVX2, 1) NNTI_STRIDED(avx2, NNTI_AVX2, 2) NNTI_STRIDED(avx2, NNTI_AVX2, 3)
NNTI_STRIDED(avx2, NNTI_AVX2, 4) NNTI_STRIDED(avx2, NNTI_AVX2, 5) NNTI_STRIDED(avx2, NNTI_AVX2, 6)
static const nnti_wino_isa nnti_wino_isa_avx2 = {
    8, NNTI_WINO_NAMES(avx2), { nnti_strided_avx2_1, nnti_strided_avx2_2, nnti_strided_avx2_3, nnti_strided_avx2_4,
                                nnti_strided_avx2_5, nnti_strided_avx2_6 }
};
#undef NNTI_V
#undef NNTI_W
#undef NNTI_VECS
#undef NNTI_SET
#undef NNTI_FMA
#undef NNTI_LOAD
#undef NNTI_STORE

#define NNTI_V nnti_f16
#define NNTI_W 16
#define NNTI_VECS 2
#define NNTI_SET(a) nnti_set_avx512((float)(a))
#define NNTI_FMA nnti_fma_avx512
#define NNTI_LOAD(p) ((nnti_f16)_mm512_loadu_ps(p))
#define NNTI_STORE(p, v) _mm512_storeu_ps(p, (__m512)(v))
NNTI_WINO_KERNELS(avx512, NNTI_AVX512)
NNTI_STRIDED_KERNEL(avx512, NNTI_AVX512, NNTI_ROWS_14)
NNTI_STRIDED(avx512, NNTI_AVX512, 1)  NNTI_STRIDED(avx512, NNTI_AVX512, 2)  NNTI_STRIDED(avx512, NNTI_AVX512, 3)
NNTI_STRIDED(avx512, NNTI_AVX512, 4)  NNTI_STRIDED(avx512, NNTI_AVX512, 5)  NNTI_STRIDED(avx512, NNTI_AVX512, 6)
NNTI_STRIDED(avx512, NNTI_AVX512, 7)  NNTI_STRIDED(avx512, NNTI_AVX512, 8)  NNTI_STRIDED(avx512, NNTI_AVX512, 9)
NNTI_STRIDED(avx512, NNTI_AVX512, 10) NNTI_STRIDED(avx512, NNTI_AVX512, 11) NNTI_STRIDED(avx512, NNTI_AVX512, 12)
NNTI_STRIDED(avx512, NNTI_AVX512, 13) NNTI_STRIDED(avx512, NNTI_AVX512, 14)
static const nnti_wino_isa nnti_wino_isa_avx512 = {
    16, NNTI_WINO_NAMES(avx512), {
        nnti_strided_avx512_1, nnti_strided_avx512_2, nnti_strided_avx512_3, nnti_strided_avx512_4, nnti_strided_avx512_5,
        nnti_strided_avx512_6, nnti_strided_avx512_7, nnti_strided_avx512_8, nnti_strided_avx512_9, nnti_strided_avx512_10,
        nnti_strided_avx512_11, nnti_strided_avx512_12, nnti_strided_avx512_13, nnti_strided_avx512_14 }
};

#elif defined(NNTI_NEON)
#define NNTI_V nnti_f4
#define NNTI_W 4
#define NNTI_VECS 3
#define NNTI_SET(a) nnti_set_neon((float)(a))
#define NNTI_FMA nnti_fma_neon
#define NNTI_LOAD(p) ((nnti_f4)vld1q_f32(p))
#define NNTI_STORE(p, v) vst1q_f32(p, (float32x4_t)(v))
NNTI_WINO_KERNELS(neon, NNTI_NO_ATTRIBUTE)
NNTI_STRIDED_KERNEL(neon, NNTI_NO_ATTRIBUTE, NNTI_ROWS_8)
NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 1) NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 2)
NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 3) NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 4)
NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 5) NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 6)
NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 7) NNTI_STRIDED(neon, NNTI_NO_ATTRIBUTE, 8)
static const nnti_wino_isa nnti_wino_isa_neon = {
    4, NNTI_WINO_NAMES(neon), { nnti_strided_neon_1, nnti_strided_neon_2, nnti_strided_neon_3, nnti_strided_neon_4,
                                nnti_strided_neon_5, nnti_strided_neon_6, nnti_strided_neon_7, nnti_strided_neon_8 }
};
#endif
#if defined(NNTI_X86) || defined(NNTI_NEON)
#undef NNTI_V
#undef NNTI_W
#undef NNTI_VECS
#undef NNTI_SET
#undef NNTI_FMA
#undef NNTI_LOAD
#undef NNTI_STORE
#endif
#undef NNTI_ROWS_5
#undef NNTI_ROWS_6
#undef NNTI_ROWS_8
#undef NNTI_ROWS_9
#undef NNTI_ROWS_14
#undef NNTI_NO_ATTRIBUTE

static const nnti_wino_isa *nnti_wino_isa_of(const nnti_exec *e)
{
#if defined(NNTI_X86)
    if (e->isa == NNTI_ISA_AVX512) return &nnti_wino_isa_avx512;
    if (e->isa == NNTI_ISA_AVX2) return &nnti_wino_isa_avx2;
#elif defined(NNTI_NEON)
    if (e->isa == NNTI_ISA_NEON) return &nnti_wino_isa_neon;
#endif
    (void)e;
    return &nnti_wino_isa_c;
}

/* m for this convolution; 0: not this way. By shape alone. */
static int nnti_wino_pick(const nnt_op *op)
{
#if !defined(NNT_EXACT_CONV)
    if (op->kernel_h == 3 && op->kernel_w == 3 && op->stride_h == 1 && op->stride_w == 1 && op->dilation_h == 1
        && op->dilation_w == 1 && op->groups == 1 && op->pad_h <= 2 && op->pad_w <= 2 && !(op->flags & NNT_OPF_EXACT)
        && op->in_c >= NNTI_WINO_LEAST && op->out_c >= NNTI_WINO_LEAST && (double)op->in_c * op->out_c < 1e7)
        return op->out_h > 2 || op->out_w > 2 ? 4 : 2;
#endif
    (void)op;
    return 0;
}

/* Images [n][channels][h][w], read in windows of size x size at every m positions from -pad on. */
typedef struct nnti_wino_image {
    const float *x;
    int channels, h, w, pad_h, pad_w, size;
    nnti_wino_fn map;
    ptrdiff_t row, element;         /* transforms lie as [element][tile][channel]: floats of a tile, of an element */
} nnti_wino_image;

/* The plan. Tiles are counted through samples, rows and columns. */
typedef struct nnti_wino {
    const nnti_gemm_isa *gemm;
    const nnti_wino_isa *isa;
    const nnti_wino_fn *maps;
    int m, side, elements;          /* results and values a side of a tile; side * side */
    int out_h, out_w, tiles_h, tiles_w;
    int64_t tiles;
    int most, block, blocks;        /* tiles of a block at most, of this run's blocks, how many of those */
    nnti_wino_image x, y;           /* y: results, or their gradient */
    int panels;                     /* of filters, or of channels for the gradient of weights */
    float *scratch;                 /* a worker's: transforms of a block, then a window */
    size_t scratch_floats;

    /* forward and gradient of data; weights are [element][panel][channel][filter] */
    int parts;                      /* of the panels */
    int turned;                     /* w is [channel][filter][3][3], to be turned by half a turn */
    const float *w;
    float *result, *weights;
    ptrdiff_t w_element;
    nnti_tile_end end;

    /* gradient of weights; sums are [element][filter][channel] */
    float *sums;
    int32_t *table_x, *table_y;     /* offsets of a block's tiles */
    int64_t first;                  /* tile of the block at work */
    int count, add;                 /* its tiles; not the first block */
} nnti_wino;

enum {
    NNTI_WINO_BLOCK_FLOATS = 384 * 1024,    /* of a block's transforms, about: they stay in a second-level cache */
    NNTI_WINO_BLOCK_LEAST = 56,             /* tiles for which it is worth to read all weights */
    NNTI_WINO_KC = 512                      /* channels that are summed in registers */
};

/* So many floats, and a few more so that lines at this distance don't share sets of a cache. */
static ptrdiff_t nnti_wino_pitch(ptrdiff_t floats) { return (ptrdiff_t)(nnti_round_up((size_t)floats, 16) | 16); }
static size_t nnti_wino_window_floats(const nnti_wino *t)
{
    return (size_t)t->side * (size_t)(NNTI_WINO_RUN * t->m + 2) * (size_t)t->isa->lanes;
}
static int nnti_wino_groups(const nnti_wino *t, int channels) { return (int)nnti_ceil_div(channels, t->isa->lanes); }

static void nnti_wino_plan(const nnti_exec *e, nnti_wino *t, int m, int out_h, int out_w, int batch)
{
    t->gemm = nnti_gemm_isa_of(e);
    t->isa = nnti_wino_isa_of(e);
    t->maps = t->isa->maps[m == 4];
    t->m = m;
    t->side = m + 2;
    t->elements = t->side * t->side;
    t->out_h = out_h;
    t->out_w = out_w;
    t->tiles_h = (out_h + m - 1) / m;
    t->tiles_w = (out_w + m - 1) / m;
    t->tiles = (int64_t)batch * t->tiles_h * t->tiles_w;
    t->x.row = nnti_wino_pitch((ptrdiff_t)nnti_round_up((size_t)t->x.channels, (size_t)nnti_panel_width(t->gemm)));
    t->y.row = nnti_wino_pitch((ptrdiff_t)nnti_round_up((size_t)t->y.channels, (size_t)nnti_panel_width(t->gemm)));
}
static void nnti_wino_elements(nnti_wino *t)        /* block is known */
{
    t->x.element = nnti_wino_pitch(t->block * t->x.row);
    t->y.element = nnti_wino_pitch(t->block * t->y.row);
}

/* Channels [c, c + lanes) of columns tiles of a row, to [size][(columns - 1) m + size][lanes]. */
static void nnti_wino_window(const nnti_wino *t, const nnti_wino_image *g, int c, int n, int row, int column, int columns,
                             float *to)
{
    const int lanes = t->isa->lanes, width = (columns - 1) * t->m + g->size;
    const int left = column * t->m - g->pad_w, q0 = nnti_min(width, nnti_max(0, -left));
    const int q1 = nnti_max(q0, nnti_min(width, g->w - left));
    const ptrdiff_t plane = (ptrdiff_t)g->h * g->w;
    const float *x = g->x + ((ptrdiff_t)n * g->channels + c) * plane;
    int r;
    for (r = 0; r < g->size; r++, to += (ptrdiff_t)width * lanes) {
        const int h = row * t->m - g->pad_h + r, inside = h >= 0 && h < g->h;
        const int first = inside ? q0 : width, last = inside ? q1 : width;
        memset(to, 0, (size_t)first * (size_t)lanes * sizeof *to);
        memset(to + (ptrdiff_t)last * lanes, 0, (size_t)(width - last) * (size_t)lanes * sizeof *to);
        if (first < last)
            t->gemm->pack_transposed(to + (ptrdiff_t)first * lanes, lanes, lanes, x + (ptrdiff_t)h * g->w + left + first,
                                     plane, nnti_min(lanes, g->channels - c), last - first);
    }
}
/* Calls for runs of neighbours among tiles [first, first + count): run sets sample, row, column, and says how many. */
typedef struct nnti_wino_at { int n, row, column, done, columns; } nnti_wino_at;
static int nnti_wino_next(const nnti_wino *t, nnti_wino_at *at, int64_t first, int count)
{
    const int64_t tile = first + at->done + at->columns;
    at->done += at->columns;
    if (at->done >= count) return 0;
    at->n = (int)(tile / t->tiles_w / t->tiles_h);
    at->row = (int)(tile / t->tiles_w % t->tiles_h);
    at->column = (int)(tile % t->tiles_w);
    at->columns = nnti_min(NNTI_WINO_RUN, nnti_min(count - at->done, t->tiles_w - at->column));
    return 1;
}
/* Transforms of channels [c, c + lanes) of some tiles: v[element * g->element + tile * g->row + c]. */
static void nnti_wino_read(const nnti_wino *t, const nnti_wino_image *g, int c, int64_t first, int count, float *window,
                           float *v)
{
    const int lanes = t->isa->lanes;
    nnti_wino_at at = { 0, 0, 0, 0, 0 };
    while (nnti_wino_next(t, &at, first, count)) {
        const ptrdiff_t pitch = (ptrdiff_t)((at.columns - 1) * t->m + g->size) * lanes;
        nnti_wino_window(t, g, c, at.n, at.row, at.column, at.columns, window);
        g->map(at.columns, window, (ptrdiff_t)t->m * lanes, pitch, lanes, v + at.done * g->row + c, g->row,
               t->side * g->element, g->element);
    }
}

/* ---- forward, and the gradient of data ---- */

/* A group of lanes of filters, all channels. */
static void nnti_wino_weights_task(void *arg, int64_t group, int worker)
{
    const nnti_wino *t = (const nnti_wino *)arg;
    const int lanes = t->isa->lanes, width = nnti_panel_width(t->gemm), channels = t->x.channels, filters = t->y.channels;
    const int f = (int)group * lanes, lines = nnti_max(0, nnti_min(lanes, filters - f)), tap = t->turned ? -lanes : lanes;
    float *taps = t->scratch + (size_t)worker * t->scratch_floats;
    float *to = t->weights + (ptrdiff_t)(f / width) * channels * width + f % width;
    int c, i, count;
    for (c = 0; c < channels; c += count) {
        count = nnti_min(16, channels - c);
        if (!t->turned)
            t->gemm->pack_transposed(taps, lanes, lanes, t->w + ((ptrdiff_t)f * channels + c) * 9, (ptrdiff_t)channels * 9,
                                     lines, count * 9);
        else
            for (i = 0; i < count; i++)
                t->gemm->pack_transposed(taps + (ptrdiff_t)i * 9 * lanes, lanes, lanes,
                                         t->w + ((ptrdiff_t)(c + i) * filters + f) * 9, 9, lines, 9);
        t->maps[NNTI_WINO_KERNEL](count, t->turned ? taps + 8 * lanes : taps, 9 * lanes, 3 * tap, tap,
                                  to + (ptrdiff_t)c * width, width, t->side * t->w_element, t->w_element);
    }
}
/* products[element][tile][filter] of panels [panel0, panel1), from the first of these on */
static void nnti_wino_multiply(const nnti_wino *t, const float *v, float *products, int count, int panel0, int panel1)
{
    const int width = nnti_panel_width(t->gemm), channels = t->x.channels;
    const int groups = (int)nnti_ceil_div(count, t->gemm->rows);
    int element, panel, k, length, i;
    for (element = 0; element < t->elements; element++)
        for (panel = panel0; panel < panel1; panel++)
            for (k = 0; k < channels; k += length) {
                const float *w = t->weights + element * t->w_element + ((ptrdiff_t)panel * channels + k) * width;
                length = nnti_min(NNTI_WINO_KC, channels - k);
                for (i = 0; i < groups; i++) {
                    const int tile = count * i / groups, rows = count * (i + 1) / groups - tile;
                    t->isa->strided[rows - 1](length, v + element * t->x.element + tile * t->x.row + k, t->x.row, w,
                                              products + element * t->y.element + tile * t->y.row
                                                  + (ptrdiff_t)(panel - panel0) * width, t->y.row, k > 0);
                }
            }
}
/* Results of filters [f, f + lanes) from their products. */
static void nnti_wino_write(const nnti_wino *t, const float *products, int f, int64_t first, int count, float *window)
{
    const int lanes = t->isa->lanes, m = t->m, filters = t->y.channels;
    const ptrdiff_t plane = (ptrdiff_t)t->out_h * t->out_w;
    nnti_wino_at at = { 0, 0, 0, 0, 0 };
    nnti_tile_end end = t->end;
    if (end.row_bias) end.row_bias += f;
    while (nnti_wino_next(t, &at, first, count)) {
        const ptrdiff_t pitch = (ptrdiff_t)at.columns * m * lanes;
        const int rows = nnti_min(m, t->out_h - at.row * m), columns = nnti_min(at.columns * m, t->out_w - at.column * m);
        ptrdiff_t to = ((ptrdiff_t)at.n * filters + f) * plane + (ptrdiff_t)at.row * m * t->out_w + at.column * m;
        int r;
        t->maps[NNTI_WINO_RESULT](at.columns, products + at.done * t->y.row, t->y.row, t->side * t->y.element, t->y.element,
                                  window, (ptrdiff_t)m * lanes, pitch, lanes);
        for (r = 0; r < rows; r++, to += t->out_w) {
            if (t->end.mask) end.mask = t->end.mask + to;
            t->gemm->turn(window + r * pitch, lanes, columns, nnti_min(lanes, filters - f), t->result + to, plane, &end);
        }
    }
}
static void nnti_wino_task(void *arg, int64_t chunk, int worker)
{
    const nnti_wino *t = (const nnti_wino *)arg;
    const int part = (int)(chunk % t->parts), panel0 = t->panels * part / t->parts;
    const int panel1 = t->panels * (part + 1) / t->parts, lanes = t->isa->lanes, width = nnti_panel_width(t->gemm);
    const int64_t block = chunk / t->parts, first = t->tiles * block / t->blocks;
    const int count = (int)(t->tiles * (block + 1) / t->blocks - first);
    float *v = t->scratch + (size_t)worker * t->scratch_floats, *products = v + t->elements * t->x.element;
    float *window = products + t->elements * t->y.element;
    int c, f;
    for (c = 0; c < t->x.channels; c += lanes) nnti_wino_read(t, &t->x, c, first, count, window, v);
    nnti_wino_multiply(t, v, products, count, panel0, panel1);
    for (f = panel0 * width; f < nnti_min(panel1 * width, t->y.channels); f += lanes)
        nnti_wino_write(t, products + f - panel0 * width, f, first, count, window);
}

/* Forward, or gradient of data when `turned`. No value depends on how tiles are cut into blocks, so that their number may
   follow batch and threads. */
static nnti_wino nnti_wino_conv_plan(const nnti_exec *e, const nnt_op *op, int m, int turned, int batch)
{
    const int threads = nnti_pool_threads(e->pool);
    nnti_wino t;
    memset(&t, 0, sizeof t);
    t.turned = turned;
    t.x.channels = turned ? op->out_c : op->in_c;
    t.y.channels = turned ? op->in_c : op->out_c;
    t.x.h = turned ? op->out_h : op->in_h;
    t.x.w = turned ? op->out_w : op->in_w;
    t.x.pad_h = turned ? 2 - op->pad_h : op->pad_h;
    t.x.pad_w = turned ? 2 - op->pad_w : op->pad_w;
    nnti_wino_plan(e, &t, m, turned ? op->in_h : op->out_h, turned ? op->in_w : op->out_w, batch);
    t.x.size = t.side;
    t.x.map = t.maps[NNTI_WINO_DATA];
    t.panels = (int)nnti_ceil_div(t.y.channels, nnti_panel_width(t.gemm));
    t.w_element = nnti_wino_pitch((ptrdiff_t)t.panels * nnti_panel_width(t.gemm) * t.x.channels);
    t.most = (int)(NNTI_WINO_BLOCK_FLOATS / (t.elements * (t.x.row + t.y.row)));
    t.most = nnti_max(NNTI_WINO_BLOCK_LEAST, t.most / t.gemm->rows * t.gemm->rows);
    t.blocks = (int)nnti_ceil_div(t.tiles, t.most);
    t.parts = 1;
    if (t.blocks >= threads) t.blocks = (int)nnti_ceil_div(t.blocks, threads) * threads;
    else if (t.tiles >= (int64_t)threads * 2 * t.gemm->rows) t.blocks = threads;
    else t.parts = nnti_min(t.panels, (int)nnti_ceil_div(threads, nnti_max(1, t.blocks)));
    t.block = (int)nnti_ceil_div(t.tiles, nnti_max(1, t.blocks));
    nnti_wino_elements(&t);
    t.scratch_floats = nnti_round_up((size_t)t.elements * (size_t)(t.x.element + t.y.element) + nnti_wino_window_floats(&t), 16);
    return t;
}
static size_t nnti_wino_conv_workspace(const nnti_exec *e, const nnt_op *op, int m, int turned, int batch)
{
    nnti_wino t = nnti_wino_conv_plan(e, op, m, turned, batch);
    size_t floats;
    t.block = (int)nnti_min64(t.most, t.tiles);         /* fewer samples may come in larger blocks than all */
    nnti_wino_elements(&t);
    floats = nnti_round_up((size_t)t.elements * (size_t)(t.x.element + t.y.element) + nnti_wino_window_floats(&t), 16);
    return sizeof(float) * ((size_t)t.elements * (size_t)t.w_element + (size_t)nnti_pool_threads(e->pool) * floats);
}
static int nnti_wino_is_work(const nnt_op *op, int count)      /* enough for several threads */
{
    return (double)count * op->in_c * op->out_c * op->out_h * op->out_w > 1e5;
}
static void nnti_wino_conv_place(nnti_wino *t, void *workspace)
{
    t->weights = (float *)workspace;
    t->scratch = t->weights + t->elements * t->w_element;
}
/* Brings the weights' transforms to the workspace, where they stay for nnti_wino_conv. */
static void nnti_wino_prepare(const nnti_exec *e, const nnt_op *op, int m, int turned)
{
    nnti_wino t = nnti_wino_conv_plan(e, op, m, turned, 1);
    nnti_wino_conv_place(&t, op->workspace);
    t.w = (const float *)op->at[NNT_W];
    nnti_parallel_if(e, (double)op->in_c * op->out_c > 2048, t.panels * (nnti_panel_width(t.gemm) / t.isa->lanes),
                     nnti_wino_weights_task, &t);
}
static void nnti_wino_conv(const nnti_exec *e, const nnt_op *op, int m, int turned, int count, const nnti_tile_end *end)
{
    nnti_wino t = nnti_wino_conv_plan(e, op, m, turned, count);
    nnti_wino_conv_place(&t, op->workspace);
    t.x.x = (const float *)op->at[turned ? NNT_GY : NNT_X];
    t.result = (float *)op->at[turned ? NNT_GX : NNT_Y];
    t.end = *end;
    nnti_parallel_if(e, nnti_wino_is_work(op, count), (int64_t)t.blocks * t.parts, nnti_wino_task, &t);
}

/* ---- gradient of the weights ---- */

/* A block of tiles at a time: first transforms of gy and x, split by channels; then sums += gy' x for each element, split
   by elements; each sum takes its tiles in order. At last the sums are brought to gw. */
enum { NNTI_WINO_WEIGHT_FLOATS = 2048 * 1024, NNTI_WINO_WEIGHT_LEAST = 128, NNTI_WINO_WEIGHT_MOST = 320 };

static nnti_wino nnti_wino_weight_plan(const nnti_exec *e, const nnt_op *op, int m, int batch)
{
    nnti_wino t;
    memset(&t, 0, sizeof t);
    t.x.channels = op->in_c;
    t.x.h = op->in_h;
    t.x.w = op->in_w;
    t.x.pad_h = op->pad_h;
    t.x.pad_w = op->pad_w;
    t.y.channels = op->out_c;
    t.y.h = op->out_h;
    t.y.w = op->out_w;
    nnti_wino_plan(e, &t, m, op->out_h, op->out_w, batch);
    t.x.size = t.side;
    t.x.map = t.maps[NNTI_WINO_DATA];
    t.y.size = m;
    t.y.map = t.maps[NNTI_WINO_SPREAD];
    t.panels = (int)nnti_ceil_div(op->in_c, nnti_panel_width(t.gemm));
    t.most = (int)(NNTI_WINO_WEIGHT_FLOATS / (t.elements * (t.x.row + t.y.row)));
    t.most = nnti_min(NNTI_WINO_WEIGHT_MOST, nnti_max(NNTI_WINO_WEIGHT_LEAST, t.most));
    t.block = (int)nnti_min64(t.most, t.tiles);
    nnti_wino_elements(&t);
    t.w_element = nnti_wino_pitch((ptrdiff_t)op->out_c * t.x.row);
    t.scratch_floats = nnti_round_up(nnti_wino_window_floats(&t), 16);
    return t;
}
static size_t nnti_wino_weight_tables(const nnti_wino *t) { return nnti_round_up(2 * (size_t)t->most * sizeof(int32_t), 64); }
static size_t nnti_wino_weight_workspace(const nnti_exec *e, const nnt_op *op, int m, int batch)
{
    const nnti_wino t = nnti_wino_weight_plan(e, op, m, batch);
    return nnti_wino_weight_tables(&t)
           + sizeof(float) * ((size_t)t.elements * (size_t)(t.w_element + t.x.element + t.y.element)
                              + (size_t)nnti_pool_threads(e->pool) * t.scratch_floats);
}
static float *nnti_wino_weight_x(const nnti_wino *t) { return t->sums + t->elements * t->w_element; }
static float *nnti_wino_weight_y(const nnti_wino *t) { return nnti_wino_weight_x(t) + t->elements * t->x.element; }

static void nnti_wino_read_task(void *arg, int64_t group, int worker)
{
    const nnti_wino *t = (const nnti_wino *)arg;
    const int lanes = t->isa->lanes, groups = nnti_wino_groups(t, t->x.channels), of_x = group < groups;
    float *window = t->scratch + (size_t)worker * t->scratch_floats;
    nnti_wino_read(t, of_x ? &t->x : &t->y, (int)(of_x ? group : group - groups) * lanes, t->first, t->count, window,
                   of_x ? nnti_wino_weight_x(t) : nnti_wino_weight_y(t));
}
static void nnti_wino_sum_task(void *arg, int64_t element, int worker)
{
    const nnti_wino *t = (const nnti_wino *)arg;
    const int filters = t->y.channels, tiles = (int)nnti_ceil_div(filters, t->gemm->rows);
    const float *x = nnti_wino_weight_x(t) + element * t->x.element, *y = nnti_wino_weight_y(t) + element * t->y.element;
    int panel, i;
    nnti_tile_end end;
    (void)worker;
    memset(&end, 0, sizeof end);
    end.add = t->add;
    for (panel = 0; panel < t->panels; panel++)
        for (i = 0; i < tiles; i++) {
            const int f = filters * i / tiles, rows = filters * (i + 1) / tiles - f;
            const ptrdiff_t c = (ptrdiff_t)panel * nnti_panel_width(t->gemm);
            t->gemm->tiles[(t->gemm->vecs - 1) * t->gemm->rows + rows - 1](
                t->count, y + f, t->table_y, x + c, t->table_x, t->sums + element * t->w_element + f * t->x.row + c,
                t->x.row, &end);
        }
}
/* gw[f][all channels] from the sums. */
static void nnti_wino_weight_task(void *arg, int64_t f, int worker)
{
    const nnti_wino *t = (const nnti_wino *)arg;
    const int lanes = t->isa->lanes, channels = t->x.channels;
    float *taps = t->scratch + (size_t)worker * t->scratch_floats;
    int c;
    for (c = 0; c < channels; c += lanes) {
        t->maps[NNTI_WINO_WEIGHT](1, t->sums + (ptrdiff_t)f * t->x.row + c, 0, t->side * t->w_element, t->w_element, taps, 0,
                                  3 * lanes, lanes);
        t->gemm->turn(taps, lanes, 9, nnti_min(lanes, channels - c), t->result + ((ptrdiff_t)f * channels + c) * 9, 9, &t->end);
    }
}
static void nnti_wino_weight_place(nnti_wino *t, const nnt_op *op)
{
    t->table_x = (int32_t *)op->workspace;
    t->table_y = t->table_x + t->most;
    t->sums = (float *)(void *)((char *)op->workspace + nnti_wino_weight_tables(t));
    t->scratch = nnti_wino_weight_y(t) + t->elements * t->y.element;
}
/* Adds samples to the sums in the workspace; `add` 0: the sums begin with them. */
static void nnti_wino_weight_add(const nnti_exec *e, const nnt_op *op, int m, int count, int add)
{
    nnti_wino t = nnti_wino_weight_plan(e, op, m, count);
    const int64_t blocks = nnti_ceil_div(t.tiles, t.most);
    const int work = nnti_wino_is_work(op, count);
    int64_t block;
    int i;
    nnti_wino_weight_place(&t, op);
    t.x.x = (const float *)op->at[NNT_X];
    t.y.x = (const float *)op->at[NNT_GY];
    for (i = 0; i < t.block; i++) {
        t.table_x[i] = (int32_t)(i * t.x.row);
        t.table_y[i] = (int32_t)(i * t.y.row);
    }
    for (block = 0; block < blocks; block++) {
        t.first = t.tiles * block / blocks;
        t.count = (int)(t.tiles * (block + 1) / blocks - t.first);
        t.add = add || block > 0;
        nnti_parallel_if(e, work, nnti_wino_groups(&t, t.x.channels) + nnti_wino_groups(&t, t.y.channels), nnti_wino_read_task,
                         &t);
        nnti_parallel_if(e, work, t.elements, nnti_wino_sum_task, &t);
    }
}
static void nnti_wino_weight_end(const nnti_exec *e, const nnt_op *op, int m, int accumulate)
{
    nnti_wino t = nnti_wino_weight_plan(e, op, m, 1);
    nnti_wino_weight_place(&t, op);
    t.result = (float *)op->at[NNT_GW];
    t.end.add = accumulate;
    nnti_parallel_if(e, (double)op->in_c * op->out_c > 2048, t.y.channels, nnti_wino_weight_task, &t);
}

/* ============================================================================
   >>conv    Convolution: forward, gradient of the data, gradient of the weights
   All three are products of >>gemm whose operands are images seen as matrices.
   The plain loops come first and say what is meant.
   ============================================================================ */

/* y[n][f][oh][ow] = b[f] + sum_{c,kh,kw} w[f][c][kh][kw] * x[n][c][oh sh + kh dh - ph][ow sw + kw dw - pw], where x is
   0 outside, and c runs over the channels of f's group. */

static int nnti_conv_in(const nnt_op *op)  { return op->in_c / op->groups; }        /* channels of a group */
static int nnti_conv_out(const nnt_op *op) { return op->out_c / op->groups; }       /* filters of a group */

/* t[i][j][k][l] of a dense tensor whose last three sizes are given. */
static double nnti_conv_c_at(const float *t, int sj, int sk, int sl, int i, int j, int k, int l)
{
    return t[(((size_t)i * (size_t)sj + (size_t)j) * (size_t)sk + (size_t)k) * (size_t)sl + (size_t)l];
}
/* w[f][c][kh][kw], c counted in f's group; x[n][c][h][w]; y[n][f][h][w]. */
static double nnti_conv_c_w(const nnt_op *op, const float *w, int f, int c, int kh, int kw)
{
    return nnti_conv_c_at(w, nnti_conv_in(op), op->kernel_h, op->kernel_w, f, c, kh, kw);
}
static double nnti_conv_c_x(const nnt_op *op, const float *x, int n, int c, int h, int w)
{
    return nnti_conv_c_at(x, op->in_c, op->in_h, op->in_w, n, c, h, w);
}
static double nnti_conv_c_y(const nnt_op *op, const float *y, int n, int f, int h, int w)
{
    return nnti_conv_c_at(y, op->out_c, op->out_h, op->out_w, n, f, h, w);
}

static void nnti_conv_c_forward(const nnt_op *op, const nnt_run *run)
{
    const float *x = (const float *)op->at[NNT_X], *w = (const float *)op->at[NNT_W], *b = (const float *)op->at[NNT_B];
    float *y = (float *)op->at[NNT_Y];
    int n, f, c, oh, ow, kh, kw;
    for (n = 0; n < run->count; n++)
        for (f = 0; f < op->out_c; f++) {
            const int c0 = f / nnti_conv_out(op) * nnti_conv_in(op);
            for (oh = 0; oh < op->out_h; oh++)
                for (ow = 0; ow < op->out_w; ow++) {
                    double s = b ? b[f] : 0.0;
                    for (c = 0; c < nnti_conv_in(op); c++)
                        for (kh = 0; kh < op->kernel_h; kh++)
                            for (kw = 0; kw < op->kernel_w; kw++) {
                                const int ih = oh * op->stride_h + kh * op->dilation_h - op->pad_h;
                                const int iw = ow * op->stride_w + kw * op->dilation_w - op->pad_w;
                                if (ih < 0 || ih >= op->in_h || iw < 0 || iw >= op->in_w) continue;
                                s += nnti_conv_c_w(op, w, f, c, kh, kw) * nnti_conv_c_x(op, x, n, c0 + c, ih, iw);
                            }
                    if ((op->flags & NNT_OPF_RELU) && s < 0.0) s = 0.0;
                    *y++ = (float)s;
                }
        }
}
/* gx[n][c][ih][iw] = sum of gy[n][f][oh][ow] * w[f][c][kh][kw] over all that meet there */
static void nnti_conv_c_data(const nnt_op *op, const nnt_run *run)
{
    const float *gy = (const float *)op->at[NNT_GY], *w = (const float *)op->at[NNT_W];
    const float *mask = (op->flags & NNT_OPF_MASK) ? (const float *)op->at[NNT_MASK] : NULL;
    float *gx = (float *)op->at[NNT_GX];
    int n, f, c, ih, iw, kh, kw;
    for (n = 0; n < run->count; n++)
        for (c = 0; c < op->in_c; c++) {
            const int group = c / nnti_conv_in(op), c0 = group * nnti_conv_in(op);
            for (ih = 0; ih < op->in_h; ih++)
                for (iw = 0; iw < op->in_w; iw++, gx++) {
                    double s = (op->flags & NNT_OPF_ACCUMULATE) ? *gx : 0.0;
                    for (f = group * nnti_conv_out(op); f < (group + 1) * nnti_conv_out(op); f++)
                        for (kh = 0; kh < op->kernel_h; kh++)
                            for (kw = 0; kw < op->kernel_w; kw++) {
                                const int h = ih + op->pad_h - kh * op->dilation_h;         /* oh sh and ow sw */
                                const int v = iw + op->pad_w - kw * op->dilation_w;
                                const int oh = h / op->stride_h, ow = v / op->stride_w;
                                if (h < 0 || v < 0 || h % op->stride_h || v % op->stride_w) continue;
                                if (oh >= op->out_h || ow >= op->out_w) continue;
                                s += nnti_conv_c_w(op, w, f, c - c0, kh, kw) * nnti_conv_c_y(op, gy, n, f, oh, ow);
                            }
                    if (mask) { if (!(*mask > 0.0f)) s = 0.0; mask++; }
                    *gx = (float)s;
                }
        }
}
/* gw[f][c][kh][kw] (+)= sum_{n,oh,ow} gy[n][f][oh][ow] * x[n][c][..][..], gb[f] (+)= sum_{n,oh,ow} gy[n][f][oh][ow] */
static void nnti_conv_c_weight(const nnt_op *op, const nnt_run *run)
{
    const float *x = (const float *)op->at[NNT_X], *gy = (const float *)op->at[NNT_GY];
    float *gw = (float *)op->at[NNT_GW], *gb = (float *)op->at[NNT_GB];
    int n, f, c, oh, ow, kh, kw;
    for (f = 0; f < op->out_c; f++) {
        const int c0 = f / nnti_conv_out(op) * nnti_conv_in(op);
        double sb = 0.0;
        for (n = 0; n < run->count; n++)
            for (oh = 0; oh < op->out_h; oh++)
                for (ow = 0; ow < op->out_w; ow++) sb += nnti_conv_c_y(op, gy, n, f, oh, ow);
        if (gb) gb[f] = (float)(sb + (run->accumulate ? gb[f] : 0.0));
        for (c = c0; c < c0 + nnti_conv_in(op); c++)
            for (kh = 0; kh < op->kernel_h; kh++)
                for (kw = 0; kw < op->kernel_w; kw++, gw++) {
                    double s = run->accumulate ? *gw : 0.0;
                    for (n = 0; n < run->count; n++)
                        for (oh = 0; oh < op->out_h; oh++)
                            for (ow = 0; ow < op->out_w; ow++) {
                                const int ih = oh * op->stride_h + kh * op->dilation_h - op->pad_h;
                                const int iw = ow * op->stride_w + kw * op->dilation_w - op->pad_w;
                                if (ih < 0 || ih >= op->in_h || iw < 0 || iw >= op->in_w) continue;
                                s += nnti_conv_c_y(op, gy, n, f, oh, ow) * nnti_conv_c_x(op, x, n, c, ih, iw);
                            }
                    *gw = (float)s;
                }
    }
}

/* Offsets in the tables below have 32 bits. */
static int nnti_conv_is_odd(const nnt_op *op)
{
    const double in = (double)op->in_c * (op->in_h + 2.0 * op->pad_h) * (op->in_w + 2.0 * op->pad_w);
    const double reach_h = (double)op->dilation_h * op->kernel_h, reach_w = (double)op->dilation_w * op->kernel_w;
    const double out = op->out_c * (op->out_h + reach_h) * (op->out_w + reach_w);
    const double weights = (double)op->out_c * nnti_conv_in(op) * op->kernel_h * op->kernel_w;
    return in > 1e9 || out > 1e9 || weights > 1e9;
}

/* Forward and data gradient are one thing, a sum over taps: out[i] = sum_t w[k_first + t k_step] * in[i stride + first
   + t step] along each axis, with out[i] written at out_first + i out_stride. Forward: t is kh. The gradient of a
   convolution with stride s falls into s phases of input rows ih = phase + i s; those kh with (phase + pad - kh
   dilation) divisible by s reach it, from output row i + (phase + pad - kh dilation) / s. */
typedef struct nnti_axis {
    int taps, first, step, k_first, k_step;
    int grid, stride;               /* positions i */
    int size;                       /* of `in` */
    int out_first, out_stride;
    int low, span;                  /* least of first + t step, and largest minus least */
} nnti_axis;

static nnti_axis nnti_axis_bounds(nnti_axis a)
{
    const int last = a.first + (a.taps - 1) * a.step;
    a.low = a.taps ? nnti_min(a.first, last) : 0;
    a.span = a.taps ? nnti_max(a.first, last) - a.low : 0;
    return a;
}
static nnti_axis nnti_axis_forward(int in, int out, int kernel, int stride, int pad, int dilation)
{
    nnti_axis a;
    a.taps = kernel;
    a.first = -pad;
    a.step = dilation;
    a.k_first = 0;
    a.k_step = 1;
    a.grid = out;
    a.stride = stride;
    a.size = in;
    a.out_first = 0;
    a.out_stride = 1;
    return nnti_axis_bounds(a);
}
static nnti_axis nnti_axis_data(int in, int out, int kernel, int stride, int pad, int dilation, int phase)
{
    nnti_axis a;
    int k;
    a.taps = a.first = a.step = a.k_first = a.k_step = 0;
    for (k = 0; k < kernel; k++) {
        const int at = phase + pad - k * dilation;
        if (at % stride) continue;
        if (a.taps == 0) { a.k_first = k; a.first = at / stride; }
        if (a.taps == 1) { a.k_step = k - a.k_first; a.step = at / stride - a.first; }
        a.taps++;
    }
    a.grid = phase < in ? (in - phase + stride - 1) / stride : 0;
    a.stride = 1;
    a.size = out;
    a.out_first = phase;
    a.out_stride = stride;
    return nnti_axis_bounds(a);
}

/* The plan of one such sum: per group a product of m x k and k x (samples, h.grid, w.grid), k = (channel, tap). A chunk
   takes some samples, or a band of rows of one, copies what it reads into a band with the padding in it, where columns
   of one stride's phase lie side by side, and from then on every panel is runs of neighbouring floats.
   Neighbouring positions are neighbours in the band for any tap. So with filters as columns the tiles of positions need
   no packing at all, only the weights do, once; what comes out lies transposed, which costs little when k is long. */
typedef struct nnti_taps {
    nnti_axis h, w;
    nnti_gemm g;                    /* of one group; n: columns of a chunk at most */
    nnti_operand a;                 /* weights of group 0; offsets of k in a_table */
    const float *x;
    int groups, x_channels, out_channels, channels;     /* channels: of x in a group */
    int out_h, out_w;
    ptrdiff_t a_group;              /* between groups' weights */
    int samples, rows;              /* of a chunk: more than one sample only with all rows */
    int row_blocks;                 /* chunks share columns and split g's rows */
    int bands;                      /* chunks of rows a sample */
    int direct;                     /* nothing to pad: the band is the image itself */
    int turned;                     /* the product is taken as its transpose: positions are rows, filters columns */
    int phase_width, band_rows;     /* band: [sample][channel][band_rows][w.stride][phase_width] */
    int row_step;                   /* rows of the band from one output row to the next: no row that no tap reads */
    ptrdiff_t pitch, plane, sample; /* between rows, channels, samples of the band */
    int32_t *a_table, *b_table;     /* k entries each */
    float *packed, *scratch;
    size_t packed_group, scratch_floats, product_floats;        /* a worker's scratch: product_floats, then the band */
    int count;
} nnti_taps;

enum {
    NNTI_CONV_COLUMNS = 512,        /* positions of a chunk, about */
    NNTI_CONV_BAND = 128 * 1024,    /* floats of a band that holds several samples, at most */
    NNTI_CONV_TURN_K = 96,          /* least k and least width of the grid for the transposed product */
    NNTI_CONV_TURN_WIDTH = 4
};

static int nnti_axis_inside(const nnti_axis *a)
{
    return a->low >= 0 && (a->grid - 1) * a->stride + a->low + a->span < a->size;
}
/* Turned: panels of filters, and filters with the last panel filled up to whole vectors. */
static int nnti_taps_panels(const nnti_taps *t) { return (int)nnti_ceil_div(t->g.m, nnti_panel_width(t->g.isa)); }
static int nnti_taps_filters(const nnti_taps *t)
{
    return (int)nnti_ceil_div(t->g.m, t->g.isa->lanes) * t->g.isa->lanes;
}

/* Sizes; everything that depends on the shape alone. */
static void nnti_taps_plan(const nnti_exec *e, nnti_taps *t)
{
    const int64_t grid = (int64_t)t->h.grid * t->w.grid;
    const int width = nnti_panel_width(nnti_gemm_isa_of(e));
    size_t band = 0;
    int chunks;
    t->samples = (int)nnti_max64(1, NNTI_CONV_COLUMNS / nnti_max64(1, grid));
    t->rows = t->h.grid;
    if (grid > 2 * NNTI_CONV_COLUMNS) t->rows = nnti_max(1, nnti_min(t->h.grid, NNTI_CONV_COLUMNS / t->w.grid + 1));
    t->bands = (t->h.grid + t->rows - 1) / nnti_max(1, t->rows);
    t->direct = t->w.stride == 1 && nnti_axis_inside(&t->h) && nnti_axis_inside(&t->w);
    t->phase_width = t->w.grid + t->w.span / t->w.stride;
    t->row_step = t->direct ? t->h.stride : nnti_min(t->h.stride, t->h.span + 1);
    if (t->direct) {
        t->pitch = t->w.size;
        t->plane = (ptrdiff_t)t->h.size * t->w.size;
        t->sample = t->plane * t->x_channels;
    } else {
        t->band_rows = (t->rows - 1) * t->row_step + t->h.span + 1;
        t->pitch = (ptrdiff_t)t->phase_width * t->w.stride;
        t->plane = t->pitch * t->band_rows;
        t->sample = t->plane * t->channels;
        while (t->samples > 1 && t->samples * t->sample > NNTI_CONV_BAND) t->samples--;
    }
    if (!t->direct) band = nnti_round_up((size_t)t->samples * (size_t)t->sample, 16);
    t->g.n = (int64_t)t->samples * t->rows * t->w.grid;
    t->g.k = t->channels * t->h.taps * t->w.taps;
    t->g.ldc = (ptrdiff_t)t->out_h * t->out_w;
    t->g.c_lines.inner = t->w.grid;
    t->g.c_lines.stride = t->w.out_stride;
    t->g.c_lines.middle_stride = (ptrdiff_t)t->h.out_stride * t->out_w;
    t->g.c_lines.outer_stride = (ptrdiff_t)t->out_channels * t->out_h * t->out_w;
    t->g.b.lines.inner = t->w.grid;
    t->g.b.lines.stride = 1;
    t->g.b.lines.middle_stride = t->pitch * t->row_step;
    t->g.b.lines.outer_stride = t->sample;
    nnti_gemm_plan(&t->g, nnti_gemm_isa_of(e));
    /* A single image of few positions leaves too few chunks: split the filters as well. */
    t->turned = t->g.k >= NNTI_CONV_TURN_K && t->w.grid >= NNTI_CONV_TURN_WIDTH && t->g.m >= t->g.isa->lanes / 2;
    chunks = t->groups * t->bands;
    t->row_blocks = t->turned ? 1 : (int)nnti_ceil_div(t->g.m, NNTI_GEMM_ROWS);
    if (chunks < 8 && (double)t->g.m * (double)grid * t->g.k > 4e6)
        t->row_blocks = nnti_max(t->row_blocks,
                                 nnti_min((t->turned ? nnti_taps_panels(t) : t->g.tiles + 1) / 2, 8 / chunks));
    t->packed_group = t->turned ? nnti_round_up((size_t)nnti_taps_filters(t) * (size_t)t->g.k, 16)
                                : nnti_gemm_packed(&t->g);
    t->product_floats = t->turned ? nnti_round_up((size_t)(t->g.n + t->w.grid) * (size_t)width, 16)
                                  : nnti_gemm_scratch(&t->g);
    t->scratch_floats = t->product_floats + band;
}
static size_t nnti_taps_table(const nnti_taps *t) { return nnti_round_up((size_t)t->g.k * sizeof(int32_t), 64); }
static size_t nnti_taps_workspace(const nnti_exec *e, const nnti_taps *t)
{
    if (t->h.grid <= 0 || t->w.grid <= 0) return 0;
    return 2 * nnti_taps_table(t) + nnti_gemm_table_bytes(&t->g)
           + sizeof(float)
                 * ((size_t)t->groups * t->packed_group + (size_t)nnti_pool_threads(e->pool) * t->scratch_floats);
}
static void nnti_taps_tables(nnti_taps *t, ptrdiff_t channel_weights, int kernel_w)
{
    int c, i, j;
    int32_t *a = t->a_table, *b = t->b_table;
    for (c = 0; c < t->channels; c++)
        for (i = 0; i < t->h.taps; i++)
            for (j = 0; j < t->w.taps; j++) {
                const int row = t->h.first + i * t->h.step - (t->direct ? 0 : t->h.low);
                const int column = t->w.first + j * t->w.step - (t->direct ? 0 : t->w.low);
                const int at = column % t->w.stride * t->phase_width + column / t->w.stride;
                const int kh = t->h.k_first + i * t->h.k_step, kw = t->w.k_first + j * t->w.k_step;
                *a++ = (int32_t)(c * channel_weights + kh * kernel_w + kw);
                *b++ = (int32_t)(c * t->plane + row * t->pitch + (t->direct ? column : at));
            }
}
/* Turned: a panel of weights, [block of k][panel][k][filter]. */
static void nnti_taps_pack_panel(const nnti_taps *t, const nnti_operand *a, float *packed, int panel)
{
    const int lanes = t->g.isa->lanes, first = panel * nnti_panel_width(t->g.isa);
    const int columns = nnti_min(nnti_panel_width(t->g.isa), t->g.m - first);
    const int width = (columns + lanes - 1) / lanes * lanes;
    int k, length;
    for (k = 0; k < t->g.k; k += length) {
        length = nnti_min(t->g.kc, t->g.k - k);
        nnti_pack_operand(t->g.isa, a, first, columns, width, k, length,
                          packed + (size_t)k * (size_t)nnti_taps_filters(t) + (size_t)first * (size_t)length, width);
    }
}
static int nnti_taps_pieces(const nnti_taps *t) { return t->turned ? nnti_taps_panels(t) : t->g.tiles; }
static void nnti_taps_pack_task(void *arg, int64_t chunk, int worker)
{
    const nnti_taps *t = (const nnti_taps *)arg;
    const int64_t group = chunk / nnti_taps_pieces(t);
    const int piece = (int)(chunk % nnti_taps_pieces(t));
    float *packed = t->packed + (size_t)group * t->packed_group;
    nnti_operand a = t->a;
    (void)worker;
    a.x += group * t->a_group;
    if (t->turned) nnti_taps_pack_panel(t, &a, packed, piece);
    else nnti_gemm_pack_a(&t->g, &a, packed, piece, 0, t->g.k, 0);
}
static int nnti_axis_uses_phase(const nnti_axis *a, int phase)
{
    int i;
    for (i = 0; i < a->taps; i++) if ((a->first + i * a->step - a->low) % a->stride == phase) return 1;
    return 0;
}
/* to[i * pitch + j] = x[top + i * step][left + j * stride] of a plane of h x w, 0 outside it; i < rows, j < columns. */
static void nnti_conv_window(const nnti_gemm_isa *isa, const float *x, int h, int w, int top, int step, int rows,
                             int left, int stride, int columns, float *to, ptrdiff_t pitch)
{
    const int r0 = top < 0 ? nnti_min(rows, (-top + step - 1) / step) : 0;
    const int r1 = nnti_max(r0, top < h ? nnti_min(rows, (h - top + step - 1) / step) : 0);
    const int q0 = left < 0 ? (-left + stride - 1) / stride : 0, q1 = left < w ? (w - left + stride - 1) / stride : 0;
    int q, r;
    for (r = 0; r < rows; r++) if (r < r0 || r >= r1) memset(to + r * pitch, 0, (size_t)columns * sizeof *to);
    if (r0 == r1) return;
    for (q = 0; q < columns; q += NNTI_PANEL_MAX) {
        nnti_pack_job p;
        const int low = nnti_max(q, q0), high = nnti_min(nnti_min(q + NNTI_PANEL_MAX, columns), q1);
        p.to = to + r0 * pitch + q;
        p.pitch = pitch;
        p.width = nnti_min(NNTI_PANEL_MAX, columns - q);
        p.count = r1 - r0;
        p.x = x + (ptrdiff_t)(top + r0 * step) * w;
        p.table = NULL;
        p.step = (ptrdiff_t)step * w;
        p.stride = stride;
        p.runs = high > low;
        p.run[0].first = low - q;
        p.run[0].length = high - low;
        p.run[0].offset = left + (ptrdiff_t)low * stride;
        isa->pack_rows(&p);
    }
}
/* What output rows [first, first + rows) read of one plane. */
static void nnti_taps_copy_plane(const nnti_taps *t, const float *x, int first, int rows, float *to)
{
    const int top = t->h.low + first * t->h.stride, dense = t->row_step == t->h.stride;
    int phase, r;
    for (phase = 0; phase < t->w.stride; phase++) {
        float *at = to + phase * t->phase_width;
        if (t->w.stride > 1 && !nnti_axis_uses_phase(&t->w, phase)) continue;
        if (dense)
            nnti_conv_window(t->g.isa, x, t->h.size, t->w.size, top, 1, (rows - 1) * t->row_step + t->h.span + 1,
                             t->w.low + phase, t->w.stride, t->phase_width, at, t->pitch);
        else
            for (r = 0; r < t->row_step; r++)
                nnti_conv_window(t->g.isa, x, t->h.size, t->w.size, top + r, t->h.stride, rows, t->w.low + phase,
                                 t->w.stride, t->phase_width, at + r * t->pitch, t->pitch * t->row_step);
    }
}
/* Turned: sums[position][column] of a panel, blocks of k one after the other. */
static void nnti_taps_sums(const nnti_taps *t, const nnti_gemm *g, int first, int width, int samples, int rows,
                           float *sums)
{
    const int tiles = (int)nnti_ceil_div(t->w.grid, g->isa->rows);
    const nnti_tile_fn *fn = g->isa->tiles + (width / g->isa->lanes - 1) * g->isa->rows - 1;
    int k, length, n, i, j;
    nnti_tile_end end;
    memset(&end, 0, sizeof end);
    for (k = 0; k < g->k; k += length) {
        float *to = sums;
        const float *b;
        length = nnti_min(g->kc, g->k - k);
        b = g->a + (size_t)k * (size_t)nnti_taps_filters(t) + (size_t)first * (size_t)length;
        end.add = k > 0;
        for (n = 0; n < samples; n++)
            for (i = 0; i < rows; i++)
                for (j = 0; j < tiles; j++) {
                    const int column = t->w.grid * j / tiles, count = t->w.grid * (j + 1) / tiles - column;
                    fn[count](length, g->b.x + n * t->sample + (ptrdiff_t)i * t->row_step * t->pitch + column,
                              t->b_table + k, b, nnti_panel_table(g, width), to, width, &end);
                    to += (ptrdiff_t)count * width;
                }
    }
}
/* Turned: a row of positions whose columns of C don't lie side by side. row: room for [columns][positions]. */
static void nnti_taps_scatter(const nnti_gemm *g, const float *sums, int width, int columns, float *row, float *c,
                              const float *bias, const float *mask)
{
    const ptrdiff_t stride = g->c_lines.stride, count = (ptrdiff_t)g->c_lines.inner;
    nnti_tile_end none;
    ptrdiff_t i;
    int f;
    memset(&none, 0, sizeof none);
    g->isa->turn(sums, width, count, columns, row, count, &none);
    for (f = 0; f < columns; f++, c += g->ldc, row += count) {
        const float b = bias ? bias[f] : 0.0f;
        for (i = 0; i < count; i++)
            c[i * stride] = nnti_end_value(&g->end, b, c + i * stride, mask ? mask + i * stride : NULL, row[i]);
        if (mask) mask += g->ldc;
    }
}
/* Turned: panels [panel0, panel1) of a chunk. */
static void nnti_taps_block(const nnti_taps *t, const nnti_gemm *g, int panel0, int panel1, int samples, int rows,
                            float *sums)
{
    const int lanes = g->isa->lanes;
    const int dense = g->c_lines.stride == 1 && t->w.grid == t->out_w && g->c_lines.middle_stride == t->out_w;
    int panel, n, i;
    for (panel = panel0; panel < panel1; panel++) {
        const int first = panel * nnti_panel_width(g->isa), columns = nnti_min(nnti_panel_width(g->isa), g->m - first);
        const int width = (columns + lanes - 1) / lanes * lanes;
        const float *from = sums;
        nnti_taps_sums(t, g, first, width, samples, rows, sums);
        for (n = 0; n < samples; n++) {
            const ptrdiff_t at = n * g->c_lines.outer_stride + first * g->ldc;
            nnti_tile_end end = g->end;
            if (end.row_bias) end.row_bias += first;
            if (end.mask) end.mask += at;
            if (dense) g->isa->turn(from, width, (int64_t)rows * t->w.grid, columns, g->c + at, g->ldc, &end);
            else
                for (i = 0; i < rows; i++)
                    nnti_taps_scatter(g, from + (ptrdiff_t)i * t->w.grid * width, width, columns, sums + t->g.n * width,
                                      g->c + at + i * g->c_lines.middle_stride, end.row_bias,
                                      end.mask ? end.mask + i * g->c_lines.middle_stride : NULL);
            from += (ptrdiff_t)rows * t->w.grid * width;
        }
    }
}
/* One filter a group: positions of a row are the lanes, and nothing is packed. */
static void nnti_taps_planes(const nnti_taps *t, const nnti_gemm *g, int samples, int rows)
{
    int n;
    for (n = 0; n < samples; n++) {
        const ptrdiff_t at = n * g->c_lines.outer_stride;
        nnti_tile_end end = g->end;
        if (end.mask) end.mask += at;
        g->isa->plane(g->b.x + n * t->sample, t->pitch * t->row_step, t->b_table, g->a, g->k, rows, t->w.grid,
                      g->c + at, g->c_lines.middle_stride, &end);
    }
}
static void nnti_taps_task(void *arg, int64_t chunk, int worker)
{
    const nnti_taps *t = (const nnti_taps *)arg;
    const int64_t row_block = chunk % t->row_blocks, rest = chunk / t->row_blocks;
    const int64_t band = rest % t->bands, rest2 = rest / t->bands;
    const int groups = t->groups, group = (int)(rest2 % groups), n0 = (int)(rest2 / groups) * t->samples;
    const int samples = nnti_min(t->samples, t->count - n0);
    const int i0 = (int)band * t->rows, rows = nnti_min(t->rows, t->h.grid - i0);
    const float *x = t->x + ((ptrdiff_t)n0 * t->x_channels + (ptrdiff_t)group * t->channels) * t->h.size * t->w.size;
    float *scratch = t->scratch + (size_t)worker * t->scratch_floats, *to = scratch + t->product_floats;
    const ptrdiff_t out = (((ptrdiff_t)n0 * t->out_channels + (ptrdiff_t)group * t->g.m) * t->out_h
                           + t->h.out_first + (ptrdiff_t)i0 * t->h.out_stride) * t->out_w + t->w.out_first;
    nnti_gemm g = t->g;
    int n, c, piece0, piece1;
    if (t->direct) g.b.x = x + (ptrdiff_t)i0 * t->h.stride * t->w.size;
    else {
        for (n = 0; n < samples; n++)
            for (c = 0; c < t->channels; c++)
                nnti_taps_copy_plane(t, x + ((ptrdiff_t)n * t->x_channels + c) * t->h.size * t->w.size, i0, rows,
                                     to + n * t->sample + c * t->plane);
        g.b.x = to;
    }
    g.a = t->packed + (size_t)group * t->packed_group;
    g.b.lines.middle = g.c_lines.middle = rows;
    g.c += out;
    if (g.end.mask) g.end.mask += out;
    if (g.end.row_bias) g.end.row_bias += (ptrdiff_t)group * g.m;
    piece0 = (int)(nnti_taps_pieces(t) * row_block / t->row_blocks);
    piece1 = (int)(nnti_taps_pieces(t) * (row_block + 1) / t->row_blocks);
    if (t->turned) nnti_taps_block(t, &g, piece0, piece1, samples, rows, scratch);
    else if (g.m == 1 && g.c_lines.stride == 1) nnti_taps_planes(t, &g, samples, rows);
    else nnti_gemm_block(&g, piece0, piece1, 0, (int64_t)samples * rows * t->w.grid, scratch);
}
static void nnti_taps_place(nnti_taps *t, const nnt_op *op)
{
    char *w = (char *)op->workspace;
    t->a_table = (int32_t *)(void *)w;
    t->b_table = (int32_t *)(void *)(w + nnti_taps_table(t));
    t->g.tables = (const int32_t *)(const void *)(w + 2 * nnti_taps_table(t));
    t->packed = (float *)(void *)(w + 2 * nnti_taps_table(t) + nnti_gemm_table_bytes(&t->g));
    t->scratch = t->packed + (size_t)t->groups * t->packed_group;
    t->g.b.table = t->b_table;
    t->a.table = t->a.step ? NULL : t->a_table;     /* forward: k lies side by side */
}
/* Tables and packed weights, which stay in the workspace. */
static void nnti_taps_prepare(const nnti_exec *e, nnti_taps *t, const nnt_op *op, ptrdiff_t channel_weights)
{
    if (t->h.grid <= 0 || t->w.grid <= 0) return;
    nnti_taps_place(t, op);
    nnti_gemm_tables(&t->g, (int32_t *)(void *)((char *)op->workspace + 2 * nnti_taps_table(t)));
    nnti_taps_tables(t, channel_weights, op->kernel_w);
    nnti_parallel_if(e, (int64_t)t->groups * t->g.m * t->g.k > 64 * 1024, (int64_t)t->groups * nnti_taps_pieces(t),
                     nnti_taps_pack_task, t);
}
static void nnti_taps_run(const nnti_exec *e, nnti_taps *t, const nnt_op *op, int count)
{
    const int64_t chunks = nnti_ceil_div(count, t->samples) * t->groups * t->bands * t->row_blocks;
    if (t->h.grid <= 0 || t->w.grid <= 0) return;
    nnti_taps_place(t, op);
    t->count = count;
    nnti_parallel_if(e, (double)count * t->groups * (double)t->g.m * t->g.k * t->h.grid * t->w.grid > 2e5, chunks,
                     nnti_taps_task, t);
}

static nnti_taps nnti_conv_plan(const nnti_exec *e, const nnt_op *op)
{
    nnti_taps t;
    memset(&t, 0, sizeof t);
    t.h = nnti_axis_forward(op->in_h, op->out_h, op->kernel_h, op->stride_h, op->pad_h, op->dilation_h);
    t.w = nnti_axis_forward(op->in_w, op->out_w, op->kernel_w, op->stride_w, op->pad_w, op->dilation_w);
    t.groups = op->groups;
    t.x_channels = op->in_c;
    t.out_channels = op->out_c;
    t.channels = nnti_conv_in(op);
    t.out_h = op->out_h;
    t.out_w = op->out_w;
    t.g.m = nnti_conv_out(op);
    nnti_taps_plan(e, &t);
    t.a_group = (ptrdiff_t)t.g.m * t.g.k;
    t.a = nnti_operand_matrix((const float *)op->at[NNT_W], t.g.m, t.g.k, 1);
    return t;
}
static size_t nnti_cpu_conv_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    nnti_taps t;
    if (nnti_conv_is_odd(op)) return 0;
    if (nnti_wino_pick(op)) return nnti_wino_conv_workspace(e, op, nnti_wino_pick(op), 0, batch);
    t = nnti_conv_plan(e, op);
    return nnti_taps_workspace(e, &t);
}
/* In two parts, for ops that run a few samples at a time: the weights, which the workspace then keeps; samples. */
static void nnti_conv_prepare(const nnti_exec *e, const nnt_op *op)
{
    nnti_taps t;
    if (nnti_conv_is_odd(op)) return;
    if (nnti_wino_pick(op)) { nnti_wino_prepare(e, op, nnti_wino_pick(op), 0); return; }
    t = nnti_conv_plan(e, op);
    nnti_taps_prepare(e, &t, op, (ptrdiff_t)op->kernel_h * op->kernel_w);
}
static void nnti_conv_samples(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_tile_end end;
    nnti_taps t;
    if (nnti_conv_is_odd(op)) { nnti_conv_c_forward(op, run); return; }
    memset(&end, 0, sizeof end);
    end.row_bias = (const float *)op->at[NNT_B];
    end.relu = (op->flags & NNT_OPF_RELU) != 0;
    if (nnti_wino_pick(op)) { nnti_wino_conv(e, op, nnti_wino_pick(op), 0, run->count, &end); return; }
    t = nnti_conv_plan(e, op);
    t.x = (const float *)op->at[NNT_X];
    t.g.c = (float *)op->at[NNT_Y];
    t.g.end = end;
    nnti_taps_run(e, &t, op, run->count);
}
static void nnti_cpu_conv(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_conv_prepare(e, op);
    nnti_conv_samples(e, op, run);
}

/* The phase (row, column) of the data gradient. */
static nnti_taps nnti_conv_data_plan(const nnti_exec *e, const nnt_op *op, int row, int column)
{
    nnti_taps t;
    memset(&t, 0, sizeof t);
    t.h = nnti_axis_data(op->in_h, op->out_h, op->kernel_h, op->stride_h, op->pad_h, op->dilation_h, row);
    t.w = nnti_axis_data(op->in_w, op->out_w, op->kernel_w, op->stride_w, op->pad_w, op->dilation_w, column);
    t.groups = op->groups;
    t.x_channels = op->out_c;
    t.out_channels = op->in_c;
    t.channels = nnti_conv_out(op);
    t.out_h = op->in_h;
    t.out_w = op->in_w;
    t.g.m = nnti_conv_in(op);
    nnti_taps_plan(e, &t);
    t.a_group = (ptrdiff_t)nnti_conv_out(op) * nnti_conv_in(op) * op->kernel_h * op->kernel_w;
    t.a = nnti_operand_matrix((const float *)op->at[NNT_W], t.g.m, (ptrdiff_t)op->kernel_h * op->kernel_w, 0);
    return t;
}
/* Phases; those from the input's size on have no rows. */
static int nnti_conv_phases_h(const nnt_op *op) { return nnti_min(op->stride_h, op->in_h); }
static int nnti_conv_phases_w(const nnt_op *op) { return nnti_min(op->stride_w, op->in_w); }

static size_t nnti_cpu_conv_data_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    size_t bytes = 0;
    int i, j;
    if (nnti_conv_is_odd(op)) return 0;
    if (nnti_wino_pick(op)) return nnti_wino_conv_workspace(e, op, nnti_wino_pick(op), 1, batch);
    for (i = 0; i < nnti_conv_phases_h(op); i++)
        for (j = 0; j < nnti_conv_phases_w(op); j++) {
            const nnti_taps t = nnti_conv_data_plan(e, op, i, j);
            bytes += nnti_round_up(nnti_taps_workspace(e, &t), NNTI_ALIGN);
        }
    return bytes;
}
/* In two parts as forward. Each phase has its own place in the workspace. */
static void nnti_conv_data_each(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int prepare)
{
    nnt_op part = *op;
    int i, j;
    for (i = 0; i < nnti_conv_phases_h(op); i++)
        for (j = 0; j < nnti_conv_phases_w(op); j++) {
            nnti_taps t = nnti_conv_data_plan(e, op, i, j);
            if (prepare) nnti_taps_prepare(e, &t, &part, (ptrdiff_t)nnti_conv_in(op) * op->kernel_h * op->kernel_w);
            else {
                t.x = (const float *)op->at[NNT_GY];
                t.g.c = (float *)op->at[NNT_GX];
                t.g.end.add = (op->flags & NNT_OPF_ACCUMULATE) != 0;
                t.g.end.mask = (op->flags & NNT_OPF_MASK) ? (const float *)op->at[NNT_MASK] : NULL;
                nnti_taps_run(e, &t, &part, run->count);
            }
            part.workspace = (char *)part.workspace + nnti_round_up(nnti_taps_workspace(e, &t), NNTI_ALIGN);
        }
}
static void nnti_conv_data_prepare(const nnti_exec *e, const nnt_op *op)
{
    if (nnti_conv_is_odd(op)) return;
    if (nnti_wino_pick(op)) nnti_wino_prepare(e, op, nnti_wino_pick(op), 1);
    else nnti_conv_data_each(e, op, NULL, 1);
}
static void nnti_conv_data_samples(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_tile_end end;
    if (nnti_conv_is_odd(op)) { nnti_conv_c_data(op, run); return; }
    if (!nnti_wino_pick(op)) { nnti_conv_data_each(e, op, run, 0); return; }
    memset(&end, 0, sizeof end);
    end.add = (op->flags & NNT_OPF_ACCUMULATE) != 0;
    end.mask = (op->flags & NNT_OPF_MASK) ? (const float *)op->at[NNT_MASK] : NULL;
    nnti_wino_conv(e, op, nnti_wino_pick(op), 1, run->count, &end);
}
static void nnti_cpu_conv_data(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_conv_data_prepare(e, op);
    nnti_conv_data_samples(e, op, run);
}

/* Gradient of the weights: per group a product gw'[f][(kh, kw, c)] = sum_k gy[f][k] x'[k][(kh, kw, c)] with k = (n, oh,
   ow). x' is a copy of the padded input with channels innermost, so that a row of a panel is runs of neighbouring
   floats. Work goes in blocks of some samples, or of a band of output rows of one: first the block's gy is packed and
   x' written, split by samples, then the block is multiplied, split by parts of gw'. So each part of gw' sums its k in
   order. At last gw' is brought to gw's order.
   A filter with few weights has too few columns for that. Then (dots) x' is [(c, kh, kw)][positions], and sums are
   taken along positions, in vectors whose lanes are added up at last. */
typedef struct nnti_conv_weight {
    const nnt_op *op;
    const nnti_gemm_isa *isa;
    nnti_gemm g;                    /* of one group and a whole block */
    const float *x, *gy;
    int channels, filters;          /* of a group */
    int samples, rows, bands;       /* of a block; blocks a sample */
    int band_rows, band_width;      /* x': [sample][group][band_rows][band_width][channels]; */
    int dots, positions;            /*   dots: [sample][group][channel, tap][positions], a block's, in whole vectors */
    int n0, block_samples, row0, block_rows, parts;     /* the block at work */
    int count, accumulate;
    nnti_gemm_cut cut;
    int32_t *table;
    float *packed, *image, *product, *scratch, *gb_part;
    double *gb_sum;
    size_t table_bytes, packed_group, image_floats, product_group, scratch_floats;
} nnti_conv_weight;

enum {
    NNTI_CONV_BLOCK = 384 * 1024,   /* floats of a block's operands, about */
    NNTI_CONV_FEW = 32,             /* weights of a filter for which sums along positions are faster */
    NNTI_CONV_DOTS = 8              /* filters of a chunk */
};

static void nnti_conv_weight_plan(const nnti_exec *e, const nnt_op *op, nnti_conv_weight *t)
{
    const int span_h = (op->kernel_h - 1) * op->dilation_h, span_w = (op->kernel_w - 1) * op->dilation_w;
    int64_t row, sample;
    memset(t, 0, sizeof *t);
    t->op = op;
    t->isa = nnti_gemm_isa_of(e);
    t->channels = nnti_conv_in(op);
    t->filters = nnti_conv_out(op);
    t->band_width = (op->out_w - 1) * op->stride_w + span_w + 1;
    row = (int64_t)op->out_c * op->out_w + (int64_t)op->in_c * t->band_width * op->stride_h;
    sample = (int64_t)op->out_c * op->out_h * op->out_w
           + (int64_t)op->in_c * t->band_width * ((op->out_h - 1) * op->stride_h + span_h + 1);
    t->dots = t->channels * op->kernel_h * op->kernel_w <= NNTI_CONV_FEW;
    if (t->dots) {
        row = (int64_t)op->in_c * op->kernel_h * op->kernel_w * op->out_w;
        sample = row * op->out_h;
    }
    t->samples = (int)nnti_max64(1, nnti_min64(256, NNTI_CONV_BLOCK / sample));
    t->rows = op->out_h;
    if (sample > NNTI_CONV_BLOCK) t->rows = (int)nnti_max64(1, nnti_min64(op->out_h, NNTI_CONV_BLOCK / row));
    t->bands = (op->out_h + t->rows - 1) / t->rows;
    t->band_rows = (t->rows - 1) * op->stride_h + span_h + 1;
    t->positions = (int)nnti_round_up((size_t)t->rows * (size_t)op->out_w, (size_t)t->isa->lanes);
    t->image_floats = nnti_round_up(
        (size_t)t->samples * (size_t)op->in_c * (size_t)t->band_rows * (size_t)t->band_width, 16);
    if (t->dots)
        t->image_floats = (size_t)t->samples * (size_t)op->in_c * (size_t)(op->kernel_h * op->kernel_w)
                          * (size_t)t->positions;
    t->g.m = t->filters;
    t->g.n = (int64_t)t->channels * op->kernel_h * op->kernel_w;
    t->g.k = t->samples * t->rows * op->out_w;
    t->g.ldc = (ptrdiff_t)nnti_round_up((size_t)t->g.n, (size_t)nnti_panel_width(t->isa));
    t->g.c_lines = nnti_lines_plain(t->g.n, 1);
    t->g.b.lines.inner = t->channels;
    t->g.b.lines.stride = 1;
    t->g.b.lines.middle = op->kernel_w;
    t->g.b.lines.middle_stride = (ptrdiff_t)op->dilation_w * t->channels;
    t->g.b.lines.outer_stride = (ptrdiff_t)op->dilation_h * t->band_width * t->channels;
    nnti_gemm_plan(&t->g, t->isa);
    t->table_bytes = nnti_round_up((size_t)t->g.k * sizeof(int32_t), 64);
    t->packed_group = t->dots ? 0 : nnti_gemm_packed(&t->g);
    if (t->dots) t->g.ldc = (ptrdiff_t)t->g.n * t->isa->lanes;
    t->product_group = nnti_round_up((size_t)t->filters * (size_t)t->g.ldc, 16);
    t->scratch_floats = t->dots ? 0 : nnti_gemm_scratch(&t->g);
    t->cut = nnti_gemm_cut_of(&t->g);
}
static size_t nnti_conv_weight_sums(const nnti_conv_weight *t)
{
    return nnti_round_up((size_t)t->op->out_c * sizeof(double), 64);
}

static size_t nnti_cpu_conv_weight_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    nnti_conv_weight t;
    size_t groups, floats;
    if (nnti_conv_is_odd(op)) return 0;
    if (nnti_wino_pick(op)) return nnti_wino_weight_workspace(e, op, nnti_wino_pick(op), batch);
    nnti_conv_weight_plan(e, op, &t);
    groups = (size_t)op->groups;
    floats = groups * (t.packed_group + t.product_group) + t.image_floats
             + (size_t)nnti_pool_threads(e->pool) * t.scratch_floats
             + nnti_round_up((size_t)t.samples * (size_t)op->out_c, 16);
    return t.table_bytes + nnti_gemm_table_bytes(&t.g) + nnti_conv_weight_sums(&t) + sizeof(float) * floats;
}
/* One image row [channels][width] of a group becomes [band_width][channels]. */
static void nnti_conv_weight_row(const nnti_conv_weight *t, const float *x, int ih, float *to)
{
    const nnt_op *op = t->op;
    const int q0 = nnti_min(op->pad_w, t->band_width), q1 = nnti_max(q0, nnti_min(t->band_width, op->in_w + op->pad_w));
    const ptrdiff_t channels = t->channels;
    if (ih < 0 || ih >= op->in_h) {
        memset(to, 0, (size_t)t->band_width * (size_t)channels * sizeof *to);
        return;
    }
    memset(to, 0, (size_t)q0 * (size_t)channels * sizeof *to);
    memset(to + q1 * channels, 0, (size_t)(t->band_width - q1) * (size_t)channels * sizeof *to);
    t->isa->pack_transposed(to + q0 * channels, channels, (int)channels, x + (ptrdiff_t)ih * op->in_w,
                                 (ptrdiff_t)op->in_h * op->in_w, (int)channels, q1 - q0);
}
/* A part of a sample of the block: some tiles of gy and some rows of x', of all groups. */
static void nnti_conv_weight_pack_task(void *arg, int64_t chunk, int worker)
{
    const nnti_conv_weight *t = (const nnti_conv_weight *)arg;
    const nnt_op *op = t->op;
    const int s = (int)(chunk / t->parts), part = (int)(chunk % t->parts), n = t->n0 + s;
    const int k = t->block_rows * op->out_w,
              band_rows = (t->block_rows - 1) * op->stride_h + (op->kernel_h - 1) * op->dilation_h + 1;
    const int tiles = op->groups * t->g.tiles, rows = op->groups * band_rows;
    int i;
    (void)worker;
    for (i = tiles * part / t->parts; i < tiles * (part + 1) / t->parts; i++) {
        const int group = i / t->g.tiles, tile = i % t->g.tiles, row = nnti_tile_row(&t->g, tile);
        const float *gy = t->gy + ((ptrdiff_t)n * op->out_c + (ptrdiff_t)group * t->filters) * op->out_h * op->out_w
                          + (ptrdiff_t)t->row0 * op->out_w;
        const nnti_operand a = nnti_operand_matrix(gy, t->filters, (ptrdiff_t)op->out_h * op->out_w, 1);
        int f;
        nnti_gemm_pack_a(&t->g, &a, t->packed + (size_t)group * t->packed_group, tile, s * k, (s + 1) * k, s * k);
        for (f = row; f < nnti_tile_row(&t->g, tile + 1); f++)
            t->gb_part[s * op->out_c + group * t->filters + f] = t->isa->sum(gy + (ptrdiff_t)f * op->out_h * op->out_w,
                                                                             k);
    }
    for (i = rows * part / t->parts; i < rows * (part + 1) / t->parts; i++) {
        const int group = i / band_rows, r = i % band_rows;
        nnti_conv_weight_row(
            t, t->x + ((ptrdiff_t)n * op->in_c + (ptrdiff_t)group * t->channels) * op->in_h * op->in_w,
            t->row0 * op->stride_h + r - op->pad_h,
            t->image + (((ptrdiff_t)s * op->groups + group) * t->band_rows + r) * t->band_width * t->channels);
    }
}
/* dots: x' of a part of one sample of the block. */
static void nnti_conv_weight_window_task(void *arg, int64_t chunk, int worker)
{
    const nnti_conv_weight *t = (const nnti_conv_weight *)arg;
    const nnt_op *op = t->op;
    const int s = (int)(chunk / t->parts), part = (int)(chunk % t->parts), taps = op->kernel_h * op->kernel_w;
    const int lines = op->in_c * taps, k = t->block_rows * op->out_w;
    int i;
    (void)worker;
    for (i = (int)((int64_t)lines * part / t->parts); i < (int)((int64_t)lines * (part + 1) / t->parts); i++) {
        const int c = i / taps, kh = i % taps / op->kernel_w, kw = i % op->kernel_w;
        float *to = t->image + ((ptrdiff_t)s * lines + i) * t->positions;
        nnti_conv_window(t->isa, t->x + ((ptrdiff_t)(t->n0 + s) * op->in_c + c) * op->in_h * op->in_w, op->in_h,
                         op->in_w, t->row0 * op->stride_h + kh * op->dilation_h - op->pad_h, op->stride_h,
                         t->block_rows, kw * op->dilation_w - op->pad_w, op->stride_w, op->out_w, to, op->out_w);
        memset(to + k, 0, (size_t)(t->positions - k) * sizeof *to);
    }
}
/* dots: some filters of a group with all of its (c, kh, kw), for all samples of the block. */
static void nnti_conv_weight_dots_task(void *arg, int64_t chunk, int worker)
{
    const nnti_conv_weight *t = (const nnti_conv_weight *)arg;
    const nnt_op *op = t->op;
    const int pieces = (t->filters + NNTI_CONV_DOTS - 1) / NNTI_CONV_DOTS, group = (int)(chunk / pieces),
              lines = (int)t->g.n;
    const int f0 = (int)(chunk % pieces) * NNTI_CONV_DOTS, f1 = nnti_min(t->filters, f0 + NNTI_CONV_DOTS),
              k = t->block_rows * op->out_w;
    const int blocks = (lines + t->isa->dot_columns - 1) / t->isa->dot_columns;
    const ptrdiff_t plane = (ptrdiff_t)op->out_h * op->out_w;
    float *product = t->product + (size_t)group * t->product_group;
    int s, b, f;
    (void)worker;
    if (!t->g.end.add) memset(product + f0 * t->g.ldc, 0, (size_t)((f1 - f0) * t->g.ldc) * sizeof *product);
    for (s = 0; s < t->block_samples; s++) {
        const float *gy = t->gy + ((ptrdiff_t)(t->n0 + s) * op->out_c + (ptrdiff_t)group * t->filters) * plane
                          + (ptrdiff_t)t->row0 * op->out_w;
        const float *image = t->image + ((ptrdiff_t)s * op->groups + group) * lines * t->positions;
        for (b = 0; b < blocks; b++) {
            const int line = lines * b / blocks, count = lines * (b + 1) / blocks - line;
            for (f = f0; f < f1; f += 2)
                t->isa->dots(gy + f * plane, plane, nnti_min(2, f1 - f), image + (ptrdiff_t)line * t->positions,
                             t->positions, count, k, product + f * t->g.ldc + (ptrdiff_t)line * t->isa->lanes,
                             t->g.ldc);
        }
        for (f = f0; f < f1; f++) t->gb_part[s * op->out_c + group * t->filters + f] = t->isa->sum(gy + f * plane, k);
    }
}
static void nnti_conv_weight_task(void *arg, int64_t chunk, int worker)
{
    const nnti_conv_weight *t = (const nnti_conv_weight *)arg;
    const int64_t rows = chunk % t->cut.row_blocks, rest = chunk / t->cut.row_blocks;
    const int64_t columns = rest % t->cut.column_blocks, group = rest / t->cut.column_blocks;
    nnti_gemm g = t->g;
    g.a = t->packed + (size_t)group * t->packed_group;
    g.b.x = t->image + group * t->band_rows * t->band_width * t->channels;
    g.c = t->product + (size_t)group * t->product_group;
    nnti_gemm_block(&g, (int)(g.tiles * rows / t->cut.row_blocks), (int)(g.tiles * (rows + 1) / t->cut.row_blocks),
                    columns * t->cut.columns, nnti_min64(g.n, (columns + 1) * t->cut.columns),
                    t->scratch + (size_t)worker * t->scratch_floats);
}
/* gw' of one filter, [kh][kw][c] or dots' [c][kh][kw][lane], to gw's [c][kh][kw]. */
static void nnti_conv_weight_out_task(void *arg, int64_t chunk, int worker)
{
    const nnti_conv_weight *t = (const nnti_conv_weight *)arg;
    const int taps = t->op->kernel_h * t->op->kernel_w, lanes = t->isa->lanes;
    const int64_t group = chunk / t->filters, f = chunk % t->filters;
    const float *from = t->product + (size_t)group * t->product_group + f * t->g.ldc;
    float *gw = (float *)t->op->at[NNT_GW] + chunk * t->channels * taps, *gb = (float *)t->op->at[NNT_GB];
    int c, k, l;
    (void)worker;
    for (c = 0; c < t->channels; c++)
        for (k = 0; k < taps; k++, gw++) {
            float s = 0.0f;
            if (t->dots) for (l = 0; l < lanes; l++) s += *from++;
            else s = from[k * t->channels + c];
            *gw = t->accumulate ? *gw + s : s;
        }
    if (gb) gb[chunk] = (float)(t->gb_sum[chunk] + (t->accumulate ? gb[chunk] : 0.0));
}
/* Where x' has the first channel of what output position k = (sample, row, column) of a block meets. */
static void nnti_conv_weight_table(nnti_conv_weight *t)
{
    const ptrdiff_t column = (ptrdiff_t)t->op->stride_w * t->channels;
    const ptrdiff_t row = (ptrdiff_t)t->op->stride_h * t->band_width * t->channels;
    const ptrdiff_t sample = (ptrdiff_t)t->op->groups * t->band_rows * t->band_width * t->channels;
    int32_t *table = t->table;
    int s, i, j;
    for (s = 0; s < t->samples; s++)
        for (i = 0; i < t->rows; i++)
            for (j = 0; j < t->op->out_w; j++) *table++ = (int32_t)(s * sample + i * row + j * column);
}
/* gb[f] (+)= sum_{n,oh,ow} gy[n][f][oh][ow] */
typedef struct nnti_conv_bias { const nnti_gemm_isa *isa; const nnt_op *op; const nnt_run *run; } nnti_conv_bias;
static void nnti_conv_bias_task(void *arg, int64_t f, int worker)
{
    const nnti_conv_bias *b = (const nnti_conv_bias *)arg;
    const int64_t plane = (int64_t)b->op->out_h * b->op->out_w;
    const float *gy = (const float *)b->op->at[NNT_GY] + f * plane;
    float *gb = (float *)b->op->at[NNT_GB] + f;
    double s = b->run->accumulate ? *gb : 0.0;
    int n;
    (void)worker;
    for (n = 0; n < b->run->count; n++, gy += plane * b->op->out_c) s += b->isa->sum(gy, plane);
    *gb = (float)s;
}
/* The sums of a batch that comes in parts may stay in the workspace until the last. */
enum { NNTI_FIRST_PART = 1, NNTI_LAST_PART = 2 };
static void nnti_conv_weight_wino(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int part, int accumulate)
{
    const int m = nnti_wino_pick(op);
    nnti_conv_bias bias;
    bias.isa = nnti_gemm_isa_of(e);
    bias.op = op;
    bias.run = run;
    if (op->at[NNT_GB])
        nnti_parallel_if(e, (double)run->count * op->out_c * op->out_h * op->out_w > 64 * 1024, op->out_c, nnti_conv_bias_task,
                         &bias);
    nnti_wino_weight_add(e, op, m, run->count, !(part & NNTI_FIRST_PART));
    if (part & NNTI_LAST_PART) nnti_wino_weight_end(e, op, m, accumulate);
}
static void nnti_cpu_conv_weight(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_conv_weight t;
    char *w = (char *)op->workspace;
    int band, s, f, big;
    if (nnti_conv_is_odd(op)) { nnti_conv_c_weight(op, run); return; }
    if (nnti_wino_pick(op)) {
        nnti_conv_weight_wino(e, op, run, NNTI_FIRST_PART | NNTI_LAST_PART, run->accumulate != 0);
        return;
    }
    nnti_conv_weight_plan(e, op, &t);
    big = (double)run->count * op->out_c * op->out_h * op->out_w * (double)t.g.n > 2e5;
    t.table = (int32_t *)(void *)w;
    w += t.table_bytes;
    nnti_gemm_tables(&t.g, (int32_t *)(void *)w);
    w += nnti_gemm_table_bytes(&t.g);
    t.gb_sum = (double *)(void *)w;
    t.packed = (float *)(void *)(w + nnti_conv_weight_sums(&t));
    t.image = t.packed + (size_t)op->groups * t.packed_group;
    t.product = t.image + t.image_floats;
    t.scratch = t.product + (size_t)op->groups * t.product_group;
    t.gb_part = t.scratch + (size_t)nnti_pool_threads(e->pool) * t.scratch_floats;
    t.x = (const float *)op->at[NNT_X];
    t.gy = (const float *)op->at[NNT_GY];
    t.count = run->count;
    t.accumulate = run->accumulate != 0;
    t.g.b.table = t.table;
    t.g.in_place = 1;
    nnti_conv_weight_table(&t);
    for (f = 0; f < op->out_c; f++) t.gb_sum[f] = 0.0;
    for (t.n0 = 0; t.n0 < run->count; t.n0 += t.samples)
        for (band = 0; band < t.bands; band++) {
            t.block_samples = nnti_min(t.samples, run->count - t.n0);
            t.row0 = band * t.rows;
            t.block_rows = nnti_min(t.rows, op->out_h - t.row0);
            t.parts = t.block_samples >= 8 ? 1 : 8;
            t.g.k = t.block_samples * t.block_rows * op->out_w;
            nnti_parallel_if(e, big, (int64_t)t.block_samples * t.parts,
                             t.dots ? nnti_conv_weight_window_task : nnti_conv_weight_pack_task, &t);
            if (t.dots)
                nnti_parallel_if(e, big, op->groups * nnti_ceil_div(t.filters, NNTI_CONV_DOTS),
                                 nnti_conv_weight_dots_task, &t);
            else
                nnti_parallel_if(e, big, (int64_t)op->groups * t.cut.row_blocks * t.cut.column_blocks,
                                 nnti_conv_weight_task, &t);
            for (s = 0; s < t.block_samples; s++)
                for (f = 0; f < op->out_c; f++) t.gb_sum[f] += t.gb_part[s * op->out_c + f];
            t.g.end.add = 1;
        }
    nnti_parallel_if(e, (double)op->out_c * (double)t.g.n > 32 * 1024, op->out_c, nnti_conv_weight_out_task, &t);
}

/* ============================================================================
   >>linear    Fully connected layers: three products
   x is [n][in], w [out][in], y [n][out] with in = in_c in_h in_w, as PyTorch's.
   ============================================================================ */

static int nnti_linear_in(const nnt_op *op) { return op->in_c * op->in_h * op->in_w; }
static int nnti_linear_out(const nnt_op *op) { return op->out_c * op->out_h * op->out_w; }

static size_t nnti_cpu_linear_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    const nnti_gemm g = nnti_gemm_new(e, batch, nnti_linear_out(op), nnti_linear_in(op));
    return nnti_gemm_workspace(e, &g);
}
/* y[n][o] = sum_i x[n][i] w[o][i] + b[o] */
static void nnti_cpu_linear(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int in = nnti_linear_in(op), out = nnti_linear_out(op);
    const nnti_operand x = nnti_operand_matrix((const float *)op->at[NNT_X], run->count, in, 1);
    nnti_gemm g = nnti_gemm_new(e, run->count, out, in);
    g.b = nnti_operand_matrix((const float *)op->at[NNT_W], out, in, 1);
    g.c = (float *)op->at[NNT_Y];
    g.end.col_bias = (const float *)op->at[NNT_B];
    g.end.relu = (op->flags & NNT_OPF_RELU) != 0;
    nnti_gemm_run(e, &g, &x, op->workspace);
}

/* With flag OVER, so many columns of gx at a time are made in the workspace, then masked on their way out: a product
   that takes several passes would write over the mask in the first. */
enum { NNTI_OVER_COLUMNS = 512 };
static int nnti_linear_data_columns(const nnt_op *op)
{
    return op->flags & NNT_OPF_OVER ? nnti_min(NNTI_OVER_COLUMNS, nnti_linear_in(op)) : nnti_linear_in(op);
}
static size_t nnti_linear_part_bytes(const nnt_op *op, int batch)
{
    if (!(op->flags & NNT_OPF_OVER)) return 0;
    return nnti_round_up((size_t)batch * (size_t)nnti_linear_data_columns(op) * sizeof(float), NNTI_ALIGN);
}
static size_t nnti_cpu_linear_data_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    const nnti_gemm g = nnti_gemm_new(e, batch, nnti_linear_data_columns(op), nnti_linear_out(op));
    return nnti_linear_part_bytes(op, batch) + nnti_gemm_workspace(e, &g);
}
typedef struct nnti_linear_part { const float *part, *mask; float *gx; int columns, in; } nnti_linear_part;

static void nnti_linear_part_row(void *arg, int64_t n, int worker)
{
    const nnti_linear_part *p = (const nnti_linear_part *)arg;
    const float *part = p->part + n * p->columns, *mask = p->mask + n * p->in;
    float *gx = p->gx + n * p->in;
    int i;
    (void)worker;
    for (i = 0; i < p->columns; i++) gx[i] = mask[i] > 0 ? part[i] : 0;
}
static void nnti_linear_data_over_mask(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int in = nnti_linear_in(op), out = nnti_linear_out(op), each = nnti_linear_data_columns(op);
    const nnti_operand gy = nnti_operand_matrix((const float *)op->at[NNT_GY], run->count, out, 1);
    float *part = (float *)op->workspace;
    int i;
    for (i = 0; i < in; i += each) {
        nnti_gemm g = nnti_gemm_new(e, run->count, nnti_min(each, in - i), out);
        nnti_linear_part rows;
        g.b = nnti_operand_matrix((const float *)op->at[NNT_W] + i, g.n, 1, in);
        g.c = part;
        nnti_gemm_run(e, &g, &gy, (char *)op->workspace + nnti_linear_part_bytes(op, run->count));
        rows.part = part;
        rows.mask = (const float *)op->at[NNT_MASK] + i;
        rows.gx = (float *)op->at[NNT_GX] + i;
        rows.columns = (int)g.n;
        rows.in = in;
        nnti_parallel_if(e, run->count * g.n > 16384, run->count, nnti_linear_part_row, &rows);
    }
}
/* gx[n][i] (+)= sum_o gy[n][o] w[o][i], then the mask */
static void nnti_cpu_linear_data(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int in = nnti_linear_in(op), out = nnti_linear_out(op);
    const nnti_operand gy = nnti_operand_matrix((const float *)op->at[NNT_GY], run->count, out, 1);
    nnti_gemm g;
    if (op->flags & NNT_OPF_OVER) { nnti_linear_data_over_mask(e, op, run); return; }
    g = nnti_gemm_new(e, run->count, in, out);
    g.b = nnti_operand_matrix((const float *)op->at[NNT_W], in, 1, in);
    g.c = (float *)op->at[NNT_GX];
    g.end.add = (op->flags & NNT_OPF_ACCUMULATE) != 0;
    g.end.mask = (op->flags & NNT_OPF_MASK) ? (const float *)op->at[NNT_MASK] : NULL;
    nnti_gemm_run(e, &g, &gy, op->workspace);
}

static size_t nnti_cpu_linear_weight_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    const nnti_gemm g = nnti_gemm_new(e, nnti_linear_out(op), nnti_linear_in(op), batch);
    return nnti_gemm_workspace(e, &g);
}
/* gw[o][i] (+)= sum_n gy[n][o] x[n][i], gb[o] (+)= sum_n gy[n][o] */
static void nnti_cpu_linear_weight(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int in = nnti_linear_in(op), out = nnti_linear_out(op);
    const float *y = (const float *)op->at[NNT_GY];
    float *gb = (float *)op->at[NNT_GB];
    const nnti_operand gy = nnti_operand_matrix(y, out, 1, out);
    nnti_gemm g = nnti_gemm_new(e, out, in, run->count);
    int n, o;
    g.b = nnti_operand_matrix((const float *)op->at[NNT_X], in, 1, in);
    g.c = (float *)op->at[NNT_GW];
    g.end.add = run->accumulate != 0;
    nnti_gemm_run(e, &g, &gy, op->workspace);
    if (!gb) return;
    if (!run->accumulate) for (o = 0; o < out; o++) gb[o] = 0.0f;
    for (n = 0; n < run->count; n++)
        for (o = 0; o < out; o++) gb[o] += y[(size_t)n * (size_t)out + (size_t)o];
}

/* ============================================================================
   >>pool    Max, average and adaptive average pooling
   Reads and writes dense NCHW planes, one at a time; planes are independent and are shared among the threads. Also
   holds what the sections below share: splitting a range of items, short vectors.
   ============================================================================ */

/* Items [first, last) of an op: planes, channels, positions or samples. */
typedef void (*nnti_slice_fn)(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last);

typedef struct nnti_slice_job {
    const nnti_exec *e;
    const nnt_op    *op;
    const nnt_run   *run;
    nnti_slice_fn    fn;
    int64_t          items, each;
} nnti_slice_job;

static void nnti_slice_task(void *arg, int64_t chunk, int worker)
{
    const nnti_slice_job *j = (const nnti_slice_job *)arg;
    (void)worker;
    j->fn(j->e, j->op, j->run, chunk * j->each, nnti_min64(j->items, (chunk + 1) * j->each));
}
/* Runs fn over all items, `each` a chunk. Both come from shapes alone, so the split does too. */
static void nnti_each_range(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t items, int64_t each,
                            nnti_slice_fn fn)
{
    nnti_slice_job j;
    j.e = e;
    j.op = op;
    j.run = run;
    j.fn = fn;
    j.items = items;
    j.each = each;
    nnti_parallel(e->pool, nnti_ceil_div(items, each), nnti_slice_task, &j);
}
/* Items a chunk, so that a chunk is worth handing to a thread. work: values that one item touches. */
static int64_t nnti_items_each(int64_t work)
{
    return nnti_max64(1, 16384 / nnti_max64(1, work));
}

static int64_t nnti_in_plane(const nnt_op *op) { return (int64_t)op->in_h * op->in_w; }
static int64_t nnti_out_plane(const nnt_op *op) { return (int64_t)op->out_h * op->out_w; }

static int nnti_is_nan(float f) { return (nnti_float_bits(f) & 0x7fffffffu) > 0x7f800000u; }

#if defined(NNTI_X86)
/* The sum of all 8, in one fixed order. */
NNTI_AVX2 static inline double nnti_sum_pd(__m256d a, __m256d b)
{
    const __m256d v = _mm256_add_pd(a, b);
    const __m128d h = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
}
NNTI_AVX2 static inline __m256d nnti_low_pd(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
NNTI_AVX2 static inline __m256d nnti_high_pd(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
#endif

/* Plain loops that also finish the rest of a vector loop are NNTI_INLINE, so that in there they are compiled for the
   vectors' instruction set. gcc 12 calls them without clearing the vector registers, which took half of the time. */

/* gx = mask > 0 ? gx : 0 */
NNTI_INLINE void nnti_apply_mask_c(float *gx, const float *mask, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) gx[i] = mask[i] > 0 ? gx[i] : 0;
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_apply_mask_avx2(float *gx, const float *mask, int64_t n)
{
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m256 keep = _mm256_cmp_ps(_mm256_loadu_ps(mask + i), _mm256_setzero_ps(), _CMP_GT_OQ);
        _mm256_storeu_ps(gx + i, _mm256_and_ps(_mm256_loadu_ps(gx + i), keep));
    }
    nnti_apply_mask_c(gx + i, mask + i, n - i);
}
#endif
static void nnti_apply_mask(const nnti_exec *e, float *gx, const float *mask, int64_t n)
{
#if defined(NNTI_X86)
    if (nnti_has_avx2(e->isa)) { nnti_apply_mask_avx2(gx, mask, n); return; }
#endif
    (void)e;
    nnti_apply_mask_c(gx, mask, n);
}

#if defined(NNTI_X86)
/* row[at .. at + 8), 0 standing for what lies behind the row's `width` values. */
NNTI_AVX2 static inline __m256 nnti_load8(const float *row, int at, int width)
{
    return at < width ? (__m256)nnti_get_avx2(row + at, width - at) : _mm256_setzero_ps();
}
/* row[at + 0, 1 .. 7 times stride], stride 1 or 2. With 2 the lanes hold 0 1 4 5 2 3 6 7, which unstride8 undoes. */
NNTI_AVX2 static inline __m256 nnti_strided8(const float *row, int at, int width, int stride)
{
    const __m256 v = nnti_load8(row, at, width);
    return stride == 1 ? v : _mm256_shuffle_ps(v, nnti_load8(row, at + 8, width), 0x88);
}
NNTI_AVX2 static inline __m256 nnti_unstride8(__m256 v, int stride)
{
    return stride == 1 ? v : _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8));
}
#endif

/* Output columns [from, to) whose windows lie inside the rows of input, borders left out. Empty: from == to. */
typedef struct nnti_columns { int from, to; } nnti_columns;

static nnti_columns nnti_whole_columns(const nnt_op *op)
{
    const int last = op->in_w + op->pad_w - op->kernel_w;                   /* where the last whole window starts */
    nnti_columns c;
    c.from = nnti_min(op->out_w, (int)nnti_ceil_div(op->pad_w, op->stride_w));
    c.to = last < 0 ? c.from : nnti_max(c.from, nnti_min(op->out_w, last / op->stride_w + 1));
    return c;
}

/* What every pooling's gradient does around its scatter into a plane of gx. */
static float *nnti_begin_gx_plane(const nnt_op *op, int64_t plane)
{
    const int64_t size = nnti_in_plane(op);
    float *gx = (float *)op->at[NNT_GX] + plane * size;
    if (!(op->flags & NNT_OPF_ACCUMULATE)) memset(gx, 0, (size_t)size * sizeof *gx);
    return gx;
}
static void nnti_end_gx_plane(const nnti_exec *e, const nnt_op *op, float *gx, int64_t plane)
{
    const int64_t size = nnti_in_plane(op);
    if (op->flags & NNT_OPF_MASK) nnti_apply_mask(e, gx, (const float *)op->at[NNT_MASK] + plane * size, size);
}

static void nnti_each_plane(const nnti_exec *e, const nnt_op *op, const nnt_run *run, nnti_slice_fn fn)
{
    const int64_t work = nnti_max64(nnti_in_plane(op), nnti_out_plane(op));
    nnti_each_range(e, op, run, (int64_t)run->count * op->in_c, nnti_items_each(work), fn);
}

/* ---- max pooling ---- */

/* Indices of maxima: kernel row * kernel_w + kernel column, in one byte where that is enough. */
static int nnti_maxpool_bytes(const nnt_op *op) { return (int64_t)op->kernel_h * op->kernel_w <= 256; }

static void *nnti_maxpool_aux(const nnt_op *op, int64_t at)
{
    if (!op->at[NNT_AUX]) return NULL;
    if (nnti_maxpool_bytes(op)) return (uint8_t *)op->at[NNT_AUX] + at;
    return (int32_t *)op->at[NNT_AUX] + at;
}

/* One window: *y = max over its part inside the input, at[0] = the first maximum's index. A NaN takes over and only
   another NaN takes over from it, as in PyTorch. x is the plane, aux NULL or the output row's indices. */
static void nnti_maxpool_window(const nnt_op *op, const float *x, int oy, int ox, float *y, void *aux)
{
    const int top = oy * op->stride_h - op->pad_h, left = ox * op->stride_w - op->pad_w;
    const int ky0 = nnti_max(0, -top), ky1 = nnti_min(op->kernel_h, op->in_h - top);
    const int kx0 = nnti_max(0, -left), kx1 = nnti_min(op->kernel_w, op->in_w - left);
    int ky, kx, at = ky0 * op->kernel_w + kx0;
    float best = x[(int64_t)(top + ky0) * op->in_w + left + kx0];
    for (ky = ky0; ky < ky1; ky++)
        for (kx = kx0; kx < kx1; kx++) {
            const float v = x[(int64_t)(top + ky) * op->in_w + left + kx];
            if (v > best || nnti_is_nan(v)) {
                best = v;
                at = ky * op->kernel_w + kx;
            }
        }
    y[ox] = best;
    if (!aux) return;
    if (nnti_maxpool_bytes(op)) ((uint8_t *)aux)[ox] = (uint8_t)at;
    else                        ((int32_t *)aux)[ox] = at;
}

#if defined(NNTI_X86)
/* The running maxima of 8 windows and where they are. */
typedef struct nnti_best8 { __m256 value; __m256i at; } nnti_best8;

NNTI_AVX2 static inline void nnti_maxpool_take(nnti_best8 *b, __m256 v, int at)
{
    const __m256 take = _mm256_or_ps(_mm256_cmp_ps(v, b->value, _CMP_GT_OQ), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    b->value = _mm256_blendv_ps(b->value, v, take);
    b->at = _mm256_blendv_epi8(b->at, _mm256_set1_epi32(at), _mm256_castps_si256(take));
}
/* Outputs [ox, ox + 8) of a row, the first `lanes` of which are wanted; their windows are whole columns. */
NNTI_AVX2 static inline void nnti_maxpool8_avx2(const nnt_op *op, const float *x, int oy, int ox, int lanes, int stride,
                                                float *y, uint8_t *aux)
{
    const int top = oy * op->stride_h - op->pad_h, left = ox * stride - op->pad_w;
    const int ky0 = nnti_max(0, -top), ky1 = nnti_min(op->kernel_h, op->in_h - top), kw = op->kernel_w;
    nnti_best8 b;
    int ky, kx;
    b.value = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xff800000u));     /* minus infinity */
    b.at = _mm256_set1_epi32(ky0 * kw);
    for (ky = ky0; ky < ky1; ky++) {
        const float *row = x + (int64_t)(top + ky) * op->in_w;
        for (kx = 0; kx < kw; kx++)
            nnti_maxpool_take(&b, nnti_strided8(row, left + kx, op->in_w, stride), ky * kw + kx);
    }
    nnti_put_avx2(y + ox, (nnti_f8)nnti_unstride8(b.value, stride), lanes);
    if (aux) {
        const __m256i at = _mm256_castps_si256(nnti_unstride8(_mm256_castsi256_ps(b.at), stride));
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(at), _mm256_extracti128_si256(at, 1));
        const __m128i bytes = _mm_packus_epi16(words, words);
        memcpy(aux + ox, &bytes, (size_t)nnti_min(lanes, 8));
    }
}
NNTI_AVX2 static void nnti_maxpool_columns_avx2(const nnt_op *op, const float *x, int oy, nnti_columns c,
                                                float *y, uint8_t *aux)
{
    int ox;
    if (op->stride_w == 1)
        for (ox = c.from; ox < c.to; ox += 8) nnti_maxpool8_avx2(op, x, oy, ox, c.to - ox, 1, y, aux);
    else
        for (ox = c.from; ox < c.to; ox += 8) nnti_maxpool8_avx2(op, x, oy, ox, c.to - ox, 2, y, aux);
}
#endif

/* One row of outputs. y and aux are the row's, x is the plane. */
static void nnti_maxpool_row(const nnti_exec *e, const nnt_op *op, const float *x, int oy, float *y, void *aux)
{
    int ox = 0;
#if defined(NNTI_X86)
    if (nnti_has_avx2(e->isa) && op->stride_w <= 2 && nnti_maxpool_bytes(op)) {
        const nnti_columns c = nnti_whole_columns(op);
        for (; ox < c.from; ox++) nnti_maxpool_window(op, x, oy, ox, y, aux);
        nnti_maxpool_columns_avx2(op, x, oy, c, y, (uint8_t *)aux);
        ox = c.to;
    }
#endif
    (void)e;
    for (; ox < op->out_w; ox++) nnti_maxpool_window(op, x, oy, ox, y, aux);
}
static void nnti_maxpool_planes(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    int64_t p;
    int oy;
    (void)run;
    for (p = first; p < last; p++) {
        const float *x = (const float *)op->at[NNT_X] + p * nnti_in_plane(op);
        for (oy = 0; oy < op->out_h; oy++) {
            const int64_t at = p * nnti_out_plane(op) + (int64_t)oy * op->out_w;
            nnti_maxpool_row(e, op, x, oy, (float *)op->at[NNT_Y] + at, nnti_maxpool_aux(op, at));
        }
    }
}
static void nnti_cpu_maxpool(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_maxpool_planes);
}

/* gx[maximum of each window] += gy, in row order. */
static void nnti_maxpool_scatter(const nnt_op *op, const float *gy, const void *aux, float *gx)
{
    const uint8_t *bytes = nnti_maxpool_bytes(op) ? (const uint8_t *)aux : NULL;
    const int32_t *words = (const int32_t *)aux;
    int32_t offset[256];                    /* of a window's values in the plane, from its corner: saves a division */
    int64_t i = 0;
    int oy, ox, k;
    if (bytes)
        for (k = 0; k < op->kernel_h * op->kernel_w; k++) offset[k] = k / op->kernel_w * op->in_w + k % op->kernel_w;
    for (oy = 0; oy < op->out_h; oy++) {
        const int64_t row = (int64_t)(oy * op->stride_h - op->pad_h) * op->in_w - op->pad_w;
        if (bytes)
            for (ox = 0; ox < op->out_w; ox++, i++) gx[row + ox * op->stride_w + offset[bytes[i]]] += gy[i];
        else
            for (ox = 0; ox < op->out_w; ox++, i++) {
                const int ky = words[i] / op->kernel_w, kx = words[i] % op->kernel_w;
                gx[row + ox * op->stride_w + (int64_t)ky * op->in_w + kx] += gy[i];
            }
    }
}
static void nnti_maxpool_grad_planes(const nnti_exec *e, const nnt_op *op, const nnt_run *run,
                                     int64_t first, int64_t last)
{
    int64_t p;
    (void)run;
    for (p = first; p < last; p++) {
        const int64_t at = p * nnti_out_plane(op);
        float *gx = nnti_begin_gx_plane(op, p);
        nnti_maxpool_scatter(op, (const float *)op->at[NNT_GY] + at, nnti_maxpool_aux(op, at), gx);
        nnti_end_gx_plane(e, op, gx, p);
    }
}
static void nnti_cpu_maxpool_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_maxpool_grad_planes);
}

/* ---- average pooling, plain and adaptive: the same but for where windows lie and what they divide by ---- */

/* One side of a window: input [begin, end), and how many the divisor counts. */
typedef struct nnti_span { int begin, end, counted; } nnti_span;

static nnti_span nnti_average_span(int i, int kernel, int stride, int pad, int size, int exclude_pad)
{
    nnti_span s;
    const int start = i * stride - pad, stop = nnti_min(start + kernel, size + pad);    /* ceil_mode may lie beyond */
    s.begin = nnti_max(start, 0);
    s.end = nnti_min(stop, size);
    s.counted = exclude_pad ? s.end - s.begin : stop - start;
    return s;
}
static nnti_span nnti_adaptive_span(int i, int size, int out)
{
    nnti_span s;
    s.begin = (int)((int64_t)i * size / out);
    s.end = (int)nnti_ceil_div((int64_t)(i + 1) * size, out);
    s.counted = s.end - s.begin;
    return s;
}
static int nnti_is_adaptive(const nnt_op *op)
{
    return op->kind == NNT_OP_ADAPTIVE || op->kind == NNT_OP_ADAPTIVE_GRAD;
}
static int nnti_is_global_mean(const nnt_op *op) { return nnti_is_adaptive(op) && op->out_h == 1 && op->out_w == 1; }
static nnti_span nnti_mean_rows(const nnt_op *op, int oy)
{
    if (nnti_is_adaptive(op)) return nnti_adaptive_span(oy, op->in_h, op->out_h);
    return nnti_average_span(oy, op->kernel_h, op->stride_h, op->pad_h, op->in_h, op->variant == 1);
}
static nnti_span nnti_mean_columns(const nnt_op *op, int ox)
{
    if (nnti_is_adaptive(op)) return nnti_adaptive_span(ox, op->in_w, op->out_w);
    return nnti_average_span(ox, op->kernel_w, op->stride_w, op->pad_w, op->in_w, op->variant == 1);
}

NNTI_INLINE double nnti_total_c(const float *x, int64_t n)
{
    double sum = 0;
    int64_t i;
    for (i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}
#if defined(NNTI_X86)
NNTI_AVX2 static double nnti_total_avx2(const float *x, int64_t n)
{
    __m256d a = _mm256_setzero_pd(), b = _mm256_setzero_pd();
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        a = _mm256_add_pd(a, nnti_low_pd(v));
        b = _mm256_add_pd(b, nnti_high_pd(v));
    }
    return nnti_sum_pd(a, b) + nnti_total_c(x + i, n - i);
}
#endif
static double nnti_total(const nnti_exec *e, const float *x, int64_t n)
{
#if defined(NNTI_X86)
    if (nnti_has_avx2(e->isa)) return nnti_total_avx2(x, n);
#endif
    (void)e;
    return nnti_total_c(x, n);
}

/* y[oy][ox] = sum of x over the window / what the window counts. x is the plane, y the row. */
static void nnti_mean_window(const nnt_op *op, const float *x, nnti_span r, int ox, float *y)
{
    const nnti_span c = nnti_mean_columns(op, ox);
    double sum = 0;
    int iy, ix;
    for (iy = r.begin; iy < r.end; iy++)
        for (ix = c.begin; ix < c.end; ix++) sum += (double)x[(int64_t)iy * op->in_w + ix];
    y[ox] = (float)(sum / ((double)r.counted * c.counted));
}
#if defined(NNTI_X86)
/* Outputs [ox, ox + 8) of a row, the first `lanes` of which are wanted; their windows are whole columns. */
NNTI_AVX2 static inline void nnti_mean8_avx2(const nnt_op *op, const float *x, nnti_span r, int ox, int lanes,
                                             int stride, float *y)
{
    const __m256d counted = _mm256_set1_pd((double)r.counted * op->kernel_w);
    const int left = ox * stride - op->pad_w;
    __m256d low = _mm256_setzero_pd(), high = low;
    __m256 mean;
    int iy, kx;
    for (iy = r.begin; iy < r.end; iy++)
        for (kx = 0; kx < op->kernel_w; kx++) {
            const __m256 v = nnti_strided8(x + (int64_t)iy * op->in_w, left + kx, op->in_w, stride);
            low = _mm256_add_pd(low, nnti_low_pd(v));
            high = _mm256_add_pd(high, nnti_high_pd(v));
        }
    mean = _mm256_castps128_ps256(_mm256_cvtpd_ps(_mm256_div_pd(low, counted)));
    mean = _mm256_insertf128_ps(mean, _mm256_cvtpd_ps(_mm256_div_pd(high, counted)), 1);
    nnti_put_avx2(y + ox, (nnti_f8)nnti_unstride8(mean, stride), lanes);
}
NNTI_AVX2 static void nnti_mean_columns_avx2(const nnt_op *op, const float *x, nnti_span r, nnti_columns c, float *y)
{
    int ox;
    if (op->stride_w == 1)
        for (ox = c.from; ox < c.to; ox += 8) nnti_mean8_avx2(op, x, r, ox, c.to - ox, 1, y);
    else
        for (ox = c.from; ox < c.to; ox += 8) nnti_mean8_avx2(op, x, r, ox, c.to - ox, 2, y);
}
#endif
static void nnti_mean_row(const nnti_exec *e, const nnt_op *op, const float *x, int oy, float *y)
{
    const nnti_span r = nnti_mean_rows(op, oy);
    int ox = 0;
#if defined(NNTI_X86)
    if (nnti_has_avx2(e->isa) && !nnti_is_adaptive(op) && op->stride_w <= 2) {
        const nnti_columns c = nnti_whole_columns(op);
        for (; ox < c.from; ox++) nnti_mean_window(op, x, r, ox, y);
        nnti_mean_columns_avx2(op, x, r, c, y);
        ox = c.to;
    }
#endif
    (void)e;
    for (; ox < op->out_w; ox++) nnti_mean_window(op, x, r, ox, y);
}
/* gx over the window += gy[oy][ox] / what the window counts */
static void nnti_mean_scatter(const nnt_op *op, const float *gy, float *gx)
{
    int oy, ox, iy, ix;
    for (oy = 0; oy < op->out_h; oy++) {
        const nnti_span r = nnti_mean_rows(op, oy);
        for (ox = 0; ox < op->out_w; ox++) {
            const nnti_span c = nnti_mean_columns(op, ox);
            const float g = *gy++ / ((float)r.counted * (float)c.counted);
            for (iy = r.begin; iy < r.end; iy++)
                for (ix = c.begin; ix < c.end; ix++) gx[(int64_t)iy * op->in_w + ix] += g;
        }
    }
}
static void nnti_mean_planes(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const int64_t in = nnti_in_plane(op), out = nnti_out_plane(op);
    const float *x = (const float *)op->at[NNT_X];
    float *y = (float *)op->at[NNT_Y];
    int64_t p;
    int oy;
    (void)run;
    for (p = first; p < last; p++) {
        if (nnti_is_global_mean(op))
            y[p] = (float)(nnti_total(e, x + p * in, in) / (double)in);
        else
            for (oy = 0; oy < op->out_h; oy++)
                nnti_mean_row(e, op, x + p * in, oy, y + p * out + (int64_t)oy * op->out_w);
    }
}
/* Of the global mean: each value is the same share of the one gradient, or 0 where the mask is. gx may be the mask. */
static void nnti_global_mean_grad(const nnt_op *op, int64_t plane)
{
    const int64_t in = nnti_in_plane(op);
    const float *mask = (const float *)op->at[NNT_MASK];
    const float g = 0.0f + ((const float *)op->at[NNT_GY])[plane] / (float)in;
    float *gx = (float *)op->at[NNT_GX] + plane * in;
    int64_t i;
    if (mask) for (mask += plane * in, i = 0; i < in; i++) gx[i] = mask[i] > 0 ? g : 0;
    else for (i = 0; i < in; i++) gx[i] = g;
}
static void nnti_mean_grad_planes(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const int global = nnti_is_global_mean(op) && !(op->flags & NNT_OPF_ACCUMULATE);
    int64_t p;
    (void)run;
    for (p = first; p < last; p++) {
        float *gx;
        if (global) { nnti_global_mean_grad(op, p); continue; }
        gx = nnti_begin_gx_plane(op, p);
        nnti_mean_scatter(op, (const float *)op->at[NNT_GY] + p * nnti_out_plane(op), gx);
        nnti_end_gx_plane(e, op, gx, p);
    }
}
static void nnti_cpu_avgpool(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_mean_planes);
}
static void nnti_cpu_avgpool_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_mean_grad_planes);
}
static void nnti_cpu_adaptive(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_mean_planes);
}
static void nnti_cpu_adaptive_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_mean_grad_planes);
}

/* ============================================================================
   >>norm    Batch normalisation
   Statistics and gradients work by channels, applying by planes. Sums are taken in double, sample after sample, so that
   they depend neither on threads nor on how channels are grouped.
   ============================================================================ */

/* STATS: mean[c], 1 / sqrt(var + eps)[c], unbiased var[c]. RUNNING: mean[c], unbiased var[c]. */

enum { NNTI_BN_BLOCK = 16 };                    /* channels that are summed side by side, at most */

/* Two sums of one channel: of d and d^2 for statistics, of gy and gy d for gradients. */
typedef struct nnti_bn_sums { double first, second; } nnti_bn_sums;

/* Channels a chunk. Several where planes are small, since reading them side by side is one run through memory; still at
   least 16 chunks when there are 16 channels. Tiny work is one chunk. */
static int64_t nnti_bn_channels_each(const nnt_op *op, const nnt_run *run)
{
    const int64_t hw = nnti_in_plane(op);
    if (run->count * hw * op->in_c <= 16384) return op->in_c;
    return nnti_max64(1, nnti_min64(nnti_ceil_div(1024, hw), nnti_min(NNTI_BN_BLOCK, op->in_c / 16)));
}
static void nnti_each_bn_channel(const nnti_exec *e, const nnt_op *op, const nnt_run *run, nnti_slice_fn fn)
{
    nnti_each_range(e, op, run, op->in_c, nnti_bn_channels_each(op, run), fn);
}
/* Where channel c of sample s begins. */
static int64_t nnti_bn_at(const nnt_op *op, int64_t s, int64_t c) { return (s * op->in_c + c) * nnti_in_plane(op); }

/* ---- statistics ---- */

/* sums += (x - origin), (x - origin)^2 */
NNTI_INLINE void nnti_bn_add_moments_c(const float *x, int64_t n, double origin, nnti_bn_sums *sums)
{
    double first = 0, second = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const double d = (double)x[i] - origin;
        first += d;
        second += d * d;
    }
    sums->first += first;
    sums->second += second;
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_bn_add_moments_avx2(const float *x, int64_t n, double origin, nnti_bn_sums *sums)
{
    const __m256d o = _mm256_set1_pd(origin);
    __m256d first0 = _mm256_setzero_pd(), first1 = first0, second0 = first0, second1 = first0;
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256d d0 = _mm256_sub_pd(nnti_low_pd(v), o), d1 = _mm256_sub_pd(nnti_high_pd(v), o);
        first0 = _mm256_add_pd(first0, d0);
        first1 = _mm256_add_pd(first1, d1);
        second0 = _mm256_fmadd_pd(d0, d0, second0);
        second1 = _mm256_fmadd_pd(d1, d1, second1);
    }
    sums->first += nnti_sum_pd(first0, first1);
    sums->second += nnti_sum_pd(second0, second1);
    nnti_bn_add_moments_c(x + i, n - i, origin, sums);
}
#endif
static void nnti_bn_add_moments(const nnti_exec *e, const float *x, int64_t n, double origin, nnti_bn_sums *sums)
{
#if defined(NNTI_X86)
    if (n >= 8 && nnti_has_avx2(e->isa)) { nnti_bn_add_moments_avx2(x, n, origin, sums); return; }
#endif
    (void)e;
    nnti_bn_add_moments_c(x, n, origin, sums);
}

/* Moments about the channel's first value. The variance is then sound whatever the mean: a value of the channel is at
   most sqrt(m) deviations away from the mean of its m values, so the subtraction loses at most a factor m in double. */
static void nnti_bn_stats_block(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const float *x = (const float *)op->at[NNT_X];
    float *mean = (float *)op->at[NNT_STATS], *invstd = mean + op->in_c, *unbiased = invstd + op->in_c;
    const int64_t hw = nnti_in_plane(op);
    const double m = (double)run->count * (double)hw;
    nnti_bn_sums sums[NNTI_BN_BLOCK];
    int64_t s, c;
    memset(sums, 0, sizeof sums);
    for (s = 0; s < run->count; s++)
        for (c = first; c < last; c++)
            nnti_bn_add_moments(e, x + nnti_bn_at(op, s, c), hw, (double)x[c * hw], &sums[c - first]);
    for (c = first; c < last; c++) {
        const double shift = sums[c - first].first / m, square = sums[c - first].second / m - shift * shift;
        const double var = square < 0 ? 0 : square;                         /* NaN stays */
        mean[c] = (float)((double)x[c * hw] + shift);
        invstd[c] = (float)(1 / sqrt(var + (double)op->f[0]));
        unbiased[c] = (float)(m > 1 ? var * (m / (m - 1)) : var);
    }
}
static void nnti_bn_stats_channels(const nnti_exec *e, const nnt_op *op, const nnt_run *run,
                                   int64_t first, int64_t last)
{
    for (; first < last; first += NNTI_BN_BLOCK)
        nnti_bn_stats_block(e, op, run, first, nnti_min64(last, first + NNTI_BN_BLOCK));
}
static void nnti_cpu_bn_stats(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_bn_channel(e, op, run, nnti_bn_stats_channels);
}

/* r = (1 - momentum) r + momentum batch */
static void nnti_cpu_bn_running(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const float *mean = (const float *)op->at[NNT_STATS], *unbiased = mean + 2 * (int64_t)op->in_c;
    float *running = (float *)op->at[NNT_RUNNING];
    const double momentum = (double)op->f[1];
    int c;
    (void)e; (void)run;
    for (c = 0; c < op->in_c; c++) {
        float *r = running + c, *v = running + op->in_c + c;
        *r = (float)((1 - momentum) * (double)*r + momentum * (double)mean[c]);
        *v = (float)((1 - momentum) * (double)*v + momentum * (double)unbiased[c]);
    }
}

/* ---- applying ---- */

/* One channel's y = (x - mean) * scale + shift. Subtracting first keeps the digits when the mean is large. */
typedef struct nnti_bn_affine { float mean, scale, shift; } nnti_bn_affine;

static nnti_bn_affine nnti_bn_affine_of(const nnt_op *op, int64_t c)
{
    const float *w = (const float *)op->at[NNT_W], *b = (const float *)op->at[NNT_B];
    nnti_bn_affine a;
    float invstd;
    if (op->kind == NNT_OP_BN_EVAL) {
        const float *running = (const float *)op->at[NNT_RUNNING];
        a.mean = running[c];
        invstd = (float)(1 / sqrt((double)running[op->in_c + c] + (double)op->f[0]));
    } else {
        const float *stats = (const float *)op->at[NNT_STATS];
        a.mean = stats[c];
        invstd = stats[op->in_c + c];
    }
    a.scale = w ? invstd * w[c] : invstd;
    a.shift = b ? b[c] : 0;
    return a;
}
/* The relu is a step of its own behind the same arithmetic: fused or not, the bits are the same. NaN passes. */
NNTI_INLINE void nnti_bn_affine_row_c(const float *x, float *y, int64_t n, nnti_bn_affine a, int relu)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float v = (x[i] - a.mean) * a.scale + a.shift;
        y[i] = relu && v < 0 ? 0 : v;
    }
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_bn_affine_row_avx2(const float *x, float *y, int64_t n, nnti_bn_affine a, int relu)
{
    const __m256 mean = _mm256_set1_ps(a.mean), scale = _mm256_set1_ps(a.scale), shift = _mm256_set1_ps(a.shift);
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_fmadd_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), mean), scale, shift);
        if (relu) v = _mm256_max_ps(_mm256_setzero_ps(), v);                /* of 0 and NaN the second, NaN */
        _mm256_storeu_ps(y + i, v);
    }
    nnti_bn_affine_row_c(x + i, y + i, n - i, a, relu);
}
#endif
static void nnti_bn_apply_planes(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const int64_t hw = nnti_in_plane(op);
    const int relu = (op->flags & NNT_OPF_RELU) != 0;
    int64_t p, c = first % op->in_c;
    (void)e; (void)run;
    for (p = first; p < last; p++, c = c + 1 < op->in_c ? c + 1 : 0) {
        const nnti_bn_affine a = nnti_bn_affine_of(op, c);
        const float *x = (const float *)op->at[NNT_X] + p * hw;
        float *y = (float *)op->at[NNT_Y] + p * hw;
#if defined(NNTI_X86)
        if (hw >= 8 && nnti_has_avx2(e->isa)) { nnti_bn_affine_row_avx2(x, y, hw, a, relu); continue; }
#endif
        nnti_bn_affine_row_c(x, y, hw, a, relu);
    }
}
static void nnti_cpu_bn_apply(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_bn_apply_planes);
}
static void nnti_cpu_bn_eval(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_plane(e, op, run, nnti_bn_apply_planes);
}

/* ---- gradients ---- */

/* sums += gy, gy (x - mean) */
NNTI_INLINE void nnti_bn_add_products_c(const float *x, const float *gy, int64_t n, float mean, nnti_bn_sums *sums)
{
    double first = 0, second = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        first += (double)gy[i];
        second += (double)gy[i] * (double)(x[i] - mean);
    }
    sums->first += first;
    sums->second += second;
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_bn_add_products_avx2(const float *x, const float *gy, int64_t n, float mean,
                                                nnti_bn_sums *sums)
{
    const __m256 o = _mm256_set1_ps(mean);
    __m256d first0 = _mm256_setzero_pd(), first1 = first0, second0 = first0, second1 = first0;
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m256 g = _mm256_loadu_ps(gy + i), d = _mm256_sub_ps(_mm256_loadu_ps(x + i), o);
        const __m256d g0 = nnti_low_pd(g), g1 = nnti_high_pd(g);
        first0 = _mm256_add_pd(first0, g0);
        first1 = _mm256_add_pd(first1, g1);
        second0 = _mm256_fmadd_pd(g0, nnti_low_pd(d), second0);
        second1 = _mm256_fmadd_pd(g1, nnti_high_pd(d), second1);
    }
    sums->first += nnti_sum_pd(first0, first1);
    sums->second += nnti_sum_pd(second0, second1);
    nnti_bn_add_products_c(x + i, gy + i, n - i, mean, sums);
}
#endif
static void nnti_bn_add_products(const nnti_exec *e, const float *x, const float *gy, int64_t n, float mean,
                                 nnti_bn_sums *sums)
{
#if defined(NNTI_X86)
    if (n >= 8 && nnti_has_avx2(e->isa)) { nnti_bn_add_products_avx2(x, gy, n, mean, sums); return; }
#endif
    (void)e;
    nnti_bn_add_products_c(x, gy, n, mean, sums);
}

/* One channel's gx = ((gy - mean_gy) - (x - mean) * slope) * scale, with slope = invstd^2 mean of gy (x - mean) and
   scale = invstd * w. mask NULL: none. gx may be gy or x. */
typedef struct nnti_bn_backward { float mean, mean_gy, slope, scale; int accumulate; } nnti_bn_backward;

NNTI_INLINE void nnti_bn_grad_row_c(const float *x, const float *gy, const float *mask, float *gx, int64_t n,
                                    nnti_bn_backward b)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float g = ((gy[i] - b.mean_gy) - (x[i] - b.mean) * b.slope) * b.scale;
        const float whole = b.accumulate ? gx[i] + g : g;
        gx[i] = !mask || mask[i] > 0 ? whole : 0;
    }
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_bn_grad_row_avx2(const float *x, const float *gy, const float *mask, float *gx, int64_t n,
                                            nnti_bn_backward b)
{
    const __m256 mean = _mm256_set1_ps(b.mean), mean_gy = _mm256_set1_ps(b.mean_gy);
    const __m256 slope = _mm256_set1_ps(b.slope), scale = _mm256_set1_ps(b.scale), zero = _mm256_setzero_ps();
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + i), mean);
        __m256 g = _mm256_mul_ps(_mm256_fnmadd_ps(d, slope, _mm256_sub_ps(_mm256_loadu_ps(gy + i), mean_gy)), scale);
        if (b.accumulate) g = _mm256_add_ps(_mm256_loadu_ps(gx + i), g);
        if (mask) g = _mm256_and_ps(g, _mm256_cmp_ps(_mm256_loadu_ps(mask + i), zero, _CMP_GT_OQ));
        _mm256_storeu_ps(gx + i, g);
    }
    nnti_bn_grad_row_c(x + i, gy + i, mask ? mask + i : NULL, gx + i, n - i, b);
}
#endif
static void nnti_bn_grad_row(const nnti_exec *e, const float *x, const float *gy, const float *mask, float *gx,
                             int64_t n, nnti_bn_backward b)
{
#if defined(NNTI_X86)
    if (n >= 8 && nnti_has_avx2(e->isa)) { nnti_bn_grad_row_avx2(x, gy, mask, gx, n, b); return; }
#endif
    (void)e;
    nnti_bn_grad_row_c(x, gy, mask, gx, n, b);
}

/* gw = invstd * sum of gy (x - mean), gb = sum of gy; added when run->accumulate. */
static void nnti_bn_weight_grads(const nnt_op *op, const nnt_run *run, int64_t c, nnti_bn_sums sums)
{
    float *gw = (float *)op->at[NNT_GW], *gb = (float *)op->at[NNT_GB];
    const double invstd = (double)((const float *)op->at[NNT_STATS])[op->in_c + c];
    if (gw) gw[c] = (float)(sums.second * invstd + (run->accumulate ? (double)gw[c] : 0));
    if (gb) gb[c] = (float)(sums.first + (run->accumulate ? (double)gb[c] : 0));
}
static nnti_bn_backward nnti_bn_backward_of(const nnt_op *op, int64_t c, nnti_bn_sums sums, double m)
{
    const float *stats = (const float *)op->at[NNT_STATS], *w = (const float *)op->at[NNT_W];
    const float invstd = stats[op->in_c + c];
    nnti_bn_backward b;
    b.mean = stats[c];
    b.mean_gy = (float)(sums.first / m);
    b.slope = (float)(sums.second / m * (double)invstd * (double)invstd);
    b.scale = w ? invstd * w[c] : invstd;
    b.accumulate = (op->flags & NNT_OPF_ACCUMULATE) != 0;
    return b;
}
/* Both passes over the same few channels, the second while they may still be in the cache. */
static void nnti_bn_grad_block(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const float *x = (const float *)op->at[NNT_X], *gy = (const float *)op->at[NNT_GY];
    const float *mask = op->flags & NNT_OPF_MASK ? (const float *)op->at[NNT_MASK] : NULL;
    const float *mean = (const float *)op->at[NNT_STATS];
    float *gx = (float *)op->at[NNT_GX];
    const int64_t hw = nnti_in_plane(op);
    const double m = (double)run->count * (double)hw;
    nnti_bn_sums sums[NNTI_BN_BLOCK];
    nnti_bn_backward b[NNTI_BN_BLOCK];
    int64_t s, c;
    memset(sums, 0, sizeof sums);
    for (s = 0; s < run->count; s++)
        for (c = first; c < last; c++) {
            const int64_t at = nnti_bn_at(op, s, c);
            nnti_bn_add_products(e, x + at, gy + at, hw, mean[c], &sums[c - first]);
        }
    for (c = first; c < last; c++) {
        nnti_bn_weight_grads(op, run, c, sums[c - first]);
        b[c - first] = nnti_bn_backward_of(op, c, sums[c - first], m);
    }
    for (s = 0; s < run->count; s++)
        for (c = first; c < last; c++) {
            const int64_t at = nnti_bn_at(op, s, c);
            nnti_bn_grad_row(e, x + at, gy + at, mask ? mask + at : NULL, gx + at, hw, b[c - first]);
        }
}
static void nnti_bn_grad_channels(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    for (; first < last; first += NNTI_BN_BLOCK)
        nnti_bn_grad_block(e, op, run, first, nnti_min64(last, first + NNTI_BN_BLOCK));
}
static void nnti_cpu_bn_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_bn_channel(e, op, run, nnti_bn_grad_channels);
}

/* ============================================================================
   >>loss    Softmax, cross-entropy and mean squared error
   Softmax goes over the channels of each position. The losses leave an nnt_loss, whose sums are taken in the order of
   the samples, and on request the gradient of their input.
   ============================================================================ */

/* ---- exponentials ---- */

/* v = exp(v), v at most 0. */
NNTI_INLINE void nnti_exp_row_c(float *v, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) v[i] = expf(v[i]);
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_exp_row_avx2(float *v, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i += 8) nnti_put_avx2(v + i, nnti_exp_avx2(nnti_get_avx2(v + i, n - i)), n - i);
}
#endif
static void nnti_exp_row(const nnti_exec *e, float *v, int64_t n)
{
#if defined(NNTI_X86)
    if (nnti_has_avx2(e->isa)) { nnti_exp_row_avx2(v, n); return; }
#endif
    (void)e;
    nnti_exp_row_c(v, n);
}
static float nnti_top_value(const float *x, int64_t n)
{
    float top = x[0];
    int64_t i;
    for (i = 1; i < n; i++) if (x[i] > top) top = x[i];
    return top;
}
/* Returns the sum of exp(x - top), top being the largest x, and leaves the terms in y, which may be x or NULL. */
static double nnti_exp_sum(const nnti_exec *e, const float *x, int64_t n, float top, float *y)
{
    float v[64];
    double sum = 0;
    int64_t i;
    int k, count;
    for (i = 0; i < n; i += count) {
        count = (int)nnti_min64(64, n - i);
        for (k = 0; k < count; k++) v[k] = x[i + k] - top;
        nnti_exp_row(e, v, count);
        for (k = 0; k < count; k++) sum += (double)v[k];
        if (y) memcpy(y + i, v, (size_t)count * sizeof *v);
    }
    return sum;
}

/* ---- softmax ---- */

enum { NNTI_SOFTMAX_BLOCK = 64 };               /* positions that go through the channels side by side, at most */

/* `count` neighbouring positions of a sample: at[c * stride + i] is channel c of position i. */
typedef struct nnti_positions { int64_t at, stride, channels; int count; } nnti_positions;

static int64_t nnti_softmax_blocks(const nnt_op *op) { return nnti_ceil_div(nnti_in_plane(op), NNTI_SOFTMAX_BLOCK); }

static nnti_positions nnti_softmax_positions(const nnt_op *op, int64_t item)
{
    const int64_t blocks = nnti_softmax_blocks(op), sample = item / blocks, from = item % blocks * NNTI_SOFTMAX_BLOCK;
    nnti_positions p;
    p.stride = nnti_in_plane(op);
    p.channels = op->in_c;
    p.at = sample * p.channels * p.stride + from;
    p.count = (int)nnti_min64(NNTI_SOFTMAX_BLOCK, p.stride - from);
    return p;
}
/* y = exp(x - max) / sum of exp(x - max) */
static void nnti_softmax_block(const nnti_exec *e, nnti_positions p, const float *x, float *y)
{
    float top[NNTI_SOFTMAX_BLOCK];
    double sum[NNTI_SOFTMAX_BLOCK];
    int64_t c;
    int i;
    for (i = 0; i < p.count; i++) {
        top[i] = x[i];
        sum[i] = 0;
    }
    for (c = 1; c < p.channels; c++)
        for (i = 0; i < p.count; i++) if (x[c * p.stride + i] > top[i]) top[i] = x[c * p.stride + i];
    for (c = 0; c < p.channels; c++) {
        float *row = y + c * p.stride;
        for (i = 0; i < p.count; i++) row[i] = x[c * p.stride + i] - top[i];
        nnti_exp_row(e, row, p.count);
        for (i = 0; i < p.count; i++) sum[i] += (double)row[i];
    }
    for (c = 0; c < p.channels; c++)
        for (i = 0; i < p.count; i++) y[c * p.stride + i] = (float)((double)y[c * p.stride + i] / sum[i]);
}
/* The same for a single position, whose channels are neighbours. */
static void nnti_softmax_row(const nnti_exec *e, int64_t channels, const float *x, float *y)
{
    const double sum = nnti_exp_sum(e, x, channels, nnti_top_value(x, channels), y);
    int64_t c;
    for (c = 0; c < channels; c++) y[c] = (float)((double)y[c] / sum);
}
/* gx = y (gy - sum of gy y) */
static void nnti_softmax_grad_block(nnti_positions p, const float *y, const float *gy, float *gx)
{
    double dot[NNTI_SOFTMAX_BLOCK];
    int64_t c;
    int i;
    for (i = 0; i < p.count; i++) dot[i] = 0;
    for (c = 0; c < p.channels; c++)
        for (i = 0; i < p.count; i++) dot[i] += (double)gy[c * p.stride + i] * (double)y[c * p.stride + i];
    for (c = 0; c < p.channels; c++)
        for (i = 0; i < p.count; i++) {
            const int64_t at = c * p.stride + i;
            gx[at] = (float)((double)y[at] * ((double)gy[at] - dot[i]));
        }
}
static void nnti_softmax_range(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    (void)run;
    for (; first < last; first++) {
        const nnti_positions p = nnti_softmax_positions(op, first);
        const float *x = (const float *)op->at[NNT_X] + p.at;
        float *y = (float *)op->at[NNT_Y] + p.at;
        if (p.stride == 1) nnti_softmax_row(e, p.channels, x, y);
        else               nnti_softmax_block(e, p, x, y);
    }
}
static void nnti_softmax_grad_range(const nnti_exec *e, const nnt_op *op, const nnt_run *run,
                                    int64_t first, int64_t last)
{
    (void)e; (void)run;
    for (; first < last; first++) {
        const nnti_positions p = nnti_softmax_positions(op, first);
        nnti_softmax_grad_block(p, (const float *)op->at[NNT_Y] + p.at, (const float *)op->at[NNT_GY] + p.at,
                                (float *)op->at[NNT_GX] + p.at);
    }
}
static void nnti_each_softmax_block(const nnti_exec *e, const nnt_op *op, const nnt_run *run, nnti_slice_fn fn)
{
    const int64_t work = op->in_c * nnti_min64(NNTI_SOFTMAX_BLOCK, nnti_in_plane(op));
    nnti_each_range(e, op, run, run->count * nnti_softmax_blocks(op), nnti_items_each(4 * work), fn);
}
static void nnti_cpu_softmax(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_softmax_block(e, op, run, nnti_softmax_range);
}
static void nnti_cpu_softmax_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_each_softmax_block(e, op, run, nnti_softmax_grad_range);
}

/* ---- what the losses share ---- */

/* A loss's workspace: what each sample came to, to be summed in order when all are there. rank: logits above its
   label's. */
typedef struct nnti_loss_row { double loss; int64_t rank; } nnti_loss_row;

static size_t nnti_loss_workspace(int batch) { return (size_t)batch * sizeof(nnti_loss_row); }

/* What gradients are multiplied by; LOSS holds its weight already. A batch without weight has the gradient 0. */
static double nnti_loss_scale(const nnt_op *op, const nnt_run *run)
{
    const nnt_loss *loss = (const nnt_loss *)op->at[NNT_LOSS];
    if (run->loss_scale > 0 || run->loss_scale < 0) return (double)run->loss_scale;
    return loss->weight > 0 ? 1 / loss->weight : 0;
}

/* ---- cross-entropy ---- */

static int nnti_counts(const nnt_op *op, int32_t label) { return !(op->use_ignore && label == op->ignore_label); }

/* a is before b among the largest; NaN before everything, as torch.argmax has it. */
static int nnti_logit_above(float a, float b) { return a > b || (nnti_is_nan(a) && !nnti_is_nan(b)); }

/* How many logits are larger than the label's, or equal and before it. */
static int64_t nnti_logit_rank(const float *x, int64_t classes, int32_t label)
{
    int64_t rank = 0, c;
    for (c = 0; c < label; c++) rank += !nnti_logit_above(x[label], x[c]);
    for (c = label + 1; c < classes; c++) rank += nnti_logit_above(x[c], x[label]);
    return rank;
}

/* With lp = x - log sum exp x, w[c] the class weights (1 without), s the smoothing and l the label, a sample's loss is
       -(1 - s) w[l] lp[l]  -  s / classes * sum_c w[c] lp[c]
   and its gradient, with p = exp(lp) and W the sum of w,
       ((1 - s) w[l] + s / classes * W) p[c]  -  s / classes * w[c]  -  ((1 - s) w[l] where c = l) */
typedef struct nnti_entropy {
    const float *w;
    double       hit, smooth;       /* (1 - s) w[l]; s / classes */
    double       all;               /* hit + smooth * W */
    int64_t      classes;
    int32_t      label;
} nnti_entropy;

static double nnti_class_weight(const nnti_entropy *n, int64_t c) { return n->w ? (double)n->w[c] : 1; }

static nnti_entropy nnti_entropy_of(const nnt_op *op, int32_t label)
{
    nnti_entropy n;
    int64_t c;
    n.w = (const float *)op->at[NNT_W];
    n.classes = nnti_in_size(op);
    n.label = label;
    n.hit = (1 - (double)op->f[0]) * nnti_class_weight(&n, label);
    n.smooth = (double)op->f[0] / (double)n.classes;
    n.all = n.hit;
    if (n.smooth > 0) for (c = 0; c < n.classes; c++) n.all += n.smooth * nnti_class_weight(&n, c);
    return n;
}
/* The part of the loss that is linear in x - top. A difference to the largest logit is exact in double, so that logits
   of 1e8 do no harm; without smoothing other classes don't count, not even 0 times an infinite logit. */
static double nnti_entropy_linear(const nnti_entropy *n, const float *x, float top)
{
    double rest = 0;
    int64_t c;
    if (n->smooth > 0)
        for (c = 0; c < n->classes; c++) rest += nnti_class_weight(n, c) * ((double)top - (double)x[c]);
    return n->hit * ((double)top - (double)x[n->label]) + n->smooth * rest;
}
/* gx holds exp(x - top), whose sum is given. */
static void nnti_entropy_grad(const nnti_entropy *n, double sum, double scale, float *gx)
{
    const double factor = scale * n->all / sum, smooth = scale * n->smooth;
    const double label = factor * (double)gx[n->label] - smooth * nnti_class_weight(n, n->label) - scale * n->hit;
    int64_t c;
    for (c = 0; c < n->classes; c++) gx[c] = (float)(factor * (double)gx[c] - smooth * nnti_class_weight(n, c));
    gx[n->label] = (float)label;
}
/* gx may be x, which is read for the last time where gx is first written. */
static void nnti_entropy_sample(const nnti_exec *e, const nnt_op *op, const float *x, int32_t label, nnti_loss_row *row,
                                float *gx, double scale)
{
    const nnti_entropy n = nnti_entropy_of(op, label);
    const float top = nnti_top_value(x, n.classes);
    const double linear = nnti_entropy_linear(&n, x, top);
    double sum;
    row->rank = nnti_logit_rank(x, n.classes, label);
    sum = nnti_exp_sum(e, x, n.classes, top, gx);
    row->loss = linear + n.all * log(sum);
    if (gx) nnti_entropy_grad(&n, sum, scale, gx);
}
static void nnti_entropy_samples(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const int32_t *labels = (const int32_t *)op->at[NNT_LABELS];
    const int64_t classes = nnti_in_size(op);
    const double scale = nnti_loss_scale(op, run);
    nnti_loss_row *rows = (nnti_loss_row *)op->workspace;
    int64_t s;
    for (s = first; s < last; s++) {
        float *gx = op->at[NNT_GX] ? (float *)op->at[NNT_GX] + s * classes : NULL;
        if (nnti_counts(op, labels[s]))
            nnti_entropy_sample(e, op, (const float *)op->at[NNT_X] + s * classes, labels[s], &rows[s], gx, scale);
        else if (gx)
            memset(gx, 0, (size_t)classes * sizeof *gx);
    }
}
static size_t nnti_cpu_cross_entropy_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    (void)e; (void)op;
    return nnti_loss_workspace(batch);
}
static void nnti_cpu_cross_entropy(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int32_t *labels = (const int32_t *)op->at[NNT_LABELS];
    const float *w = (const float *)op->at[NNT_W];
    const nnti_loss_row *rows = (const nnti_loss_row *)op->workspace;
    nnt_loss *loss = (nnt_loss *)op->at[NNT_LOSS];
    int s;
    memset(loss, 0, sizeof *loss);
    for (s = 0; s < run->count; s++) {
        if (!nnti_counts(op, labels[s])) continue;
        loss->weight += w ? (double)w[labels[s]] : 1;
        loss->samples += 1;
    }
    nnti_each_range(e, op, run, run->count, nnti_items_each(4 * nnti_in_size(op)), nnti_entropy_samples);
    for (s = 0; s < run->count; s++) {
        if (!nnti_counts(op, labels[s])) continue;
        loss->sum += rows[s].loss;
        loss->correct += rows[s].rank < 1;
        loss->correct5 += rows[s].rank < 5;
    }
}

/* ---- mean squared error ---- */

/* A sample's loss is the mean of (x - t)^2 over its values, the gradient 2 (x - t) / values. gx may be x. */
static void nnti_mse_samples(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int64_t first, int64_t last)
{
    const int64_t values = nnti_in_size(op);
    const double scale = nnti_loss_scale(op, run) * 2 / (double)values;
    nnti_loss_row *rows = (nnti_loss_row *)op->workspace;
    int64_t s, i;
    (void)e;
    for (s = first; s < last; s++) {
        const float *x = (const float *)op->at[NNT_X] + s * values;
        const float *t = (const float *)op->at[NNT_TARGETS] + s * values;
        float *gx = op->at[NNT_GX] ? (float *)op->at[NNT_GX] + s * values : NULL;
        double sum = 0;
        for (i = 0; i < values; i++) {
            const double d = (double)x[i] - (double)t[i];
            sum += d * d;
            if (gx) gx[i] = (float)(scale * d);
        }
        rows[s].loss = sum / (double)values;
    }
}
static size_t nnti_cpu_mse_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    (void)e; (void)op;
    return nnti_loss_workspace(batch);
}
static void nnti_cpu_mse(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const nnti_loss_row *rows = (const nnti_loss_row *)op->workspace;
    nnt_loss *loss = (nnt_loss *)op->at[NNT_LOSS];
    int s;
    memset(loss, 0, sizeof *loss);
    loss->weight = loss->samples = run->count;
    nnti_each_range(e, op, run, run->count, nnti_items_each(nnti_in_size(op)), nnti_mse_samples);
    for (s = 0; s < run->count; s++) loss->sum += rows[s].loss;
}

/* ============================================================================
   >>fused    Ops that keep a large map out of the arena: a few samples at a time pass through the workspace
   Convolution or batch norm followed by max pooling, both ways, and the gradient of data that is written over the
   activation that masks it. Built from the kernels above; how many samples at a time depends on shapes only.
   ============================================================================ */

enum { NNTI_FUSED_BYTES = 1 << 20 };        /* of the map that passes through: it stays in the second-level cache */

static int nnti_fused_samples(int64_t values)       /* of one sample's map */
{
    return (int)nnti_max64(1, nnti_min64(64, NNTI_FUSED_BYTES / (int64_t)sizeof(float) / values));
}
static int64_t nnti_mid_size(const nnt_op *op) { return (int64_t)op->out_c * op->mid_h * op->mid_w; }
/* Bytes of so many samples' values; of sizes that pass every memory a number that does so too, and of which sums don't wrap. */
static size_t nnti_fused_bytes(int64_t values, int samples)
{
    const int64_t n = nnti_mul64(values, samples);
    if (n < 0 || (uint64_t)n > NNTI_TOO_LARGE / sizeof(float)) return NNTI_TOO_LARGE;
    return nnti_round_up((size_t)n * sizeof(float), NNTI_ALIGN);
}
static size_t nnti_fused_map_bytes(int64_t values) { return nnti_fused_bytes(values, nnti_fused_samples(values)); }
/* The convolution (or batch norm) inside of a fused op, on the workspace behind the map. */
static nnt_op nnti_fused_front(const nnt_op *op, int kind, size_t map_bytes)
{
    nnt_op front = *op;
    front.kind = kind;
    front.out_h = op->mid_h;
    front.out_w = op->mid_w;
    front.workspace = op->workspace ? (char *)op->workspace + map_bytes : NULL;
    front.workspace_bytes = op->workspace_bytes - nnti_min_size(map_bytes, op->workspace_bytes);
    return front;
}
/* The pooling inside of it. */
static nnt_op nnti_fused_pool(const nnt_op *op, int kind)
{
    nnt_op pool = *op;
    pool.kind = kind;
    pool.flags = 0;
    pool.in_c = op->out_c;
    pool.in_h = op->mid_h;
    pool.in_w = op->mid_w;
    pool.kernel_h = op->pool_kernel_h;  pool.kernel_w = op->pool_kernel_w;
    pool.stride_h = op->pool_stride_h;  pool.stride_w = op->pool_stride_w;
    pool.pad_h = op->pool_pad_h;        pool.pad_w = op->pool_pad_w;
    pool.dilation_h = pool.dilation_w = pool.groups = 1;
    return pool;
}
static void *nnti_skip(const nnt_op *op, int role, int64_t values)
{
    char *p = (char *)op->at[role];
    return p ? p + values * (int64_t)sizeof(float) : NULL;
}
static void *nnti_skip_aux(const nnt_op *op, int64_t values)
{
    char *p = (char *)op->at[NNT_AUX];
    return p ? p + values * ((int64_t)op->pool_kernel_h * op->pool_kernel_w <= 256 ? 1 : 4) : NULL;
}

static size_t nnti_fused_forward_bytes(const nnt_op *op)
{
    const int64_t mid = nnti_mid_size(op);
    return nnti_fused_map_bytes(mid) + nnti_fused_bytes(nnti_out_size(op), nnti_fused_samples(mid));
}
/* X ... -> Y AUX, the front being CONV or BN_APPLY or BN_EVAL. Without Y only AUX is wanted: Y goes to the workspace. */
static void nnti_fused_forward(const nnti_exec *e, const nnt_op *op, const nnt_run *run, int front_kind)
{
    const int64_t in = nnti_in_size(op), out = nnti_out_size(op);
    const size_t map = nnti_fused_forward_bytes(op);
    const int each = nnti_fused_samples(nnti_mid_size(op));
    nnt_op front = nnti_fused_front(op, front_kind, map), pool = nnti_fused_pool(op, NNT_OP_MAXPOOL);
    nnt_run part = *run;
    int i;
    front.at[NNT_Y] = pool.at[NNT_X] = op->workspace;
    if (front_kind == NNT_OP_CONV) nnti_conv_prepare(e, &front);
    for (i = 0; i < run->count; i += each) {
        part.count = nnti_min(each, run->count - i);
        front.at[NNT_X] = nnti_skip(op, NNT_X, i * in);
        pool.at[NNT_Y] = op->at[NNT_Y] ? nnti_skip(op, NNT_Y, i * out) : (char *)op->workspace + nnti_fused_map_bytes(nnti_mid_size(op));
        pool.at[NNT_AUX] = nnti_skip_aux(op, i * out);
        if (front_kind == NNT_OP_CONV) nnti_conv_samples(e, &front, &part);
        else nnti_cpu_bn_apply(e, &front, &part);
        nnti_cpu_maxpool(e, &pool, &part);
    }
}
static void nnti_cpu_conv_pool(const nnti_exec *e, const nnt_op *op, const nnt_run *run) { nnti_fused_forward(e, op, run, NNT_OP_CONV); }
static size_t nnti_cpu_conv_pool_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    const size_t map = nnti_fused_forward_bytes(op);
    const nnt_op front = nnti_fused_front(op, NNT_OP_CONV, map);
    return map + nnti_cpu_conv_workspace(e, &front, nnti_min(batch, nnti_fused_samples(nnti_mid_size(op))));
}
static void nnti_cpu_bn_pool(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_fused_forward(e, op, run, op->at[NNT_STATS] ? NNT_OP_BN_APPLY : NNT_OP_BN_EVAL);
}
static size_t nnti_cpu_bn_pool_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    (void)e; (void)batch;
    return nnti_fused_forward_bytes(op);
}

/* GX (over MASK, if they are one) = gradient of data of `front`, whose GY is the map in the workspace when op pools, else
   op's own. The result of a few samples is made behind the map, then masked on its way out. */
static void nnti_data_over_mask(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int pools = op->kind == NNT_OP_CONV_POOL_DATA;
    const int64_t in = nnti_in_size(op), out = nnti_out_size(op);
    const size_t map = pools ? nnti_fused_map_bytes(nnti_mid_size(op)) : 0;
    const size_t data = op->flags & NNT_OPF_OVER ? nnti_fused_map_bytes(in) : 0;
    int each = pools ? nnti_fused_samples(nnti_mid_size(op)) : 64, i;
    nnt_op front = nnti_fused_front(op, NNT_OP_CONV_DATA, map + data), pool;
    nnt_run part = *run;
    memset(&pool, 0, sizeof pool);
    if (data) each = nnti_min(each, nnti_fused_samples(in));
    if (pools) {
        pool = nnti_fused_pool(op, NNT_OP_MAXPOOL_GRAD);
        front.at[NNT_GY] = pool.at[NNT_GX] = op->workspace;
    } else {
        front.out_h = op->out_h;
        front.out_w = op->out_w;
    }
    if (data) {
        front.flags &= ~NNT_OPF_MASK;
        front.at[NNT_GX] = (char *)op->workspace + map;
    }
    nnti_conv_data_prepare(e, &front);
    for (i = 0; i < run->count; i += each) {
        part.count = nnti_min(each, run->count - i);
        if (pools) {
            pool.at[NNT_GY] = nnti_skip(op, NNT_GY, i * out);
            pool.at[NNT_AUX] = nnti_skip_aux(op, i * out);
            nnti_cpu_maxpool_grad(e, &pool, &part);
        } else {
            front.at[NNT_GY] = nnti_skip(op, NNT_GY, i * out);
        }
        if (!data) {
            front.at[NNT_GX] = nnti_skip(op, NNT_GX, i * in);
            front.at[NNT_MASK] = nnti_skip(op, NNT_MASK, i * in);
        }
        nnti_conv_data_samples(e, &front, &part);
        if (data) {                         /* gx = mask > 0 ? result : 0 */
            nnt_op act;
            memset(&act, 0, sizeof act);
            act.kind = NNT_OP_ACT_GRAD;
            act.variant = NNT_ACT_RELU;
            act.in_c = act.out_c = op->in_c;
            act.in_h = act.out_h = op->in_h;
            act.in_w = act.out_w = op->in_w;
            act.at[NNT_GY] = front.at[NNT_GX];
            act.at[NNT_Y] = nnti_skip(op, NNT_MASK, i * in);
            act.at[NNT_GX] = nnti_skip(op, NNT_GX, i * in);
            nnti_cpu_act_grad(e, &act, &part);
        }
    }
}
static void nnti_cpu_conv_pool_data(const nnti_exec *e, const nnt_op *op, const nnt_run *run) { nnti_data_over_mask(e, op, run); }
static size_t nnti_cpu_conv_pool_data_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    const int pools = op->kind == NNT_OP_CONV_POOL_DATA;
    const size_t map = pools ? nnti_fused_map_bytes(nnti_mid_size(op)) : 0;
    const size_t data = op->flags & NNT_OPF_OVER ? nnti_fused_map_bytes(nnti_in_size(op)) : 0;
    nnt_op front = nnti_fused_front(op, NNT_OP_CONV_DATA, map + data);
    if (!pools) {
        front.out_h = op->out_h;
        front.out_w = op->out_w;
        return data + nnti_cpu_conv_data_workspace(e, &front, batch);
    }
    return map + data + nnti_cpu_conv_data_workspace(e, &front, nnti_min(batch, nnti_fused_samples(nnti_mid_size(op))));
}
static void nnti_cpu_conv_data_any(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    if (op->flags & NNT_OPF_OVER) nnti_data_over_mask(e, op, run);
    else nnti_cpu_conv_data(e, op, run);
}
static size_t nnti_cpu_conv_data_any_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    return op->flags & NNT_OPF_OVER ? nnti_cpu_conv_pool_data_workspace(e, op, batch) : nnti_cpu_conv_data_workspace(e, op, batch);
}

/* X GY AUX -> GW [GB]: the unpooled gradient passes through the workspace. */
static void nnti_cpu_conv_pool_weight(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    const int64_t in = nnti_in_size(op), out = nnti_out_size(op);
    const size_t map = nnti_fused_map_bytes(nnti_mid_size(op));
    const int each = nnti_fused_samples(nnti_mid_size(op));
    nnt_op front = nnti_fused_front(op, NNT_OP_CONV_WEIGHT, map), pool = nnti_fused_pool(op, NNT_OP_MAXPOOL_GRAD);
    nnt_run part = *run;
    int i;
    front.at[NNT_GY] = pool.at[NNT_GX] = op->workspace;
    for (i = 0; i < run->count; i += each) {
        part.count = nnti_min(each, run->count - i);
        part.accumulate = run->accumulate || i > 0;
        pool.at[NNT_GY] = nnti_skip(op, NNT_GY, i * out);
        pool.at[NNT_AUX] = nnti_skip_aux(op, i * out);
        front.at[NNT_X] = nnti_skip(op, NNT_X, i * in);
        nnti_cpu_maxpool_grad(e, &pool, &part);
        if (nnti_wino_pick(&front) && !nnti_conv_is_odd(&front))
            nnti_conv_weight_wino(e, &front, &part, (i == 0 ? NNTI_FIRST_PART : 0) | (i + each >= run->count ? NNTI_LAST_PART : 0),
                                  run->accumulate != 0);
        else nnti_cpu_conv_weight(e, &front, &part);
    }
}
static size_t nnti_cpu_conv_pool_weight_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    const size_t map = nnti_fused_map_bytes(nnti_mid_size(op));
    const nnt_op front = nnti_fused_front(op, NNT_OP_CONV_WEIGHT, map);
    return map + nnti_cpu_conv_weight_workspace(e, &front, nnti_min(batch, nnti_fused_samples(nnti_mid_size(op))));
}

/* Backward of pooling and batch norm together: X GY AUX STATS [W] -> GX [GW GB], GX may be X. A channel at a time; its
   unpooled gradient is made twice for each sample, in the worker's plane of the workspace. */
typedef struct nnti_bn_pool_job { const nnti_exec *e; const nnt_op *op; const nnt_run *run; } nnti_bn_pool_job;

static void nnti_unpool_plane(const nnt_op *op, int64_t pooled, float *plane)
{
    const float *gy = (const float *)op->at[NNT_GY] + pooled;
    const int wide = (int64_t)op->pool_kernel_h * op->pool_kernel_w > 256;
    int oh, ow;
    memset(plane, 0, (size_t)op->mid_h * (size_t)op->mid_w * sizeof *plane);
    for (oh = 0; oh < op->out_h; oh++)
        for (ow = 0; ow < op->out_w; ow++) {
            int64_t at = (int64_t)oh * op->out_w + ow;
            int k = wide ? ((const int32_t *)op->at[NNT_AUX])[pooled + at] : ((const uint8_t *)op->at[NNT_AUX])[pooled + at];
            int h = oh * op->pool_stride_h - op->pool_pad_h + k / op->pool_kernel_w, w = ow * op->pool_stride_w - op->pool_pad_w + k % op->pool_kernel_w;
            plane[(int64_t)h * op->mid_w + w] += gy[at];
        }
}
static void nnti_bn_pool_grad_task(void *arg, int64_t c, int worker)
{
    const nnti_bn_pool_job *job = (const nnti_bn_pool_job *)arg;
    const nnt_op *op = job->op;
    const int64_t hw = (int64_t)op->mid_h * op->mid_w, out = (int64_t)op->out_h * op->out_w;
    const float *x = (const float *)op->at[NNT_X], *mean = (const float *)op->at[NNT_STATS];
    float *gx = (float *)op->at[NNT_GX];
    float *plane = (float *)((char *)op->workspace + (size_t)worker * nnti_round_up((size_t)hw * sizeof(float), NNTI_ALIGN));
    nnti_bn_sums sums;
    nnti_bn_backward b;
    int64_t s;
    memset(&sums, 0, sizeof sums);
    for (s = 0; s < job->run->count; s++) {
        nnti_unpool_plane(op, (s * op->out_c + c) * out, plane);
        nnti_bn_add_products(job->e, x + (s * op->out_c + c) * hw, plane, hw, mean[c], &sums);
    }
    nnti_bn_weight_grads(op, job->run, c, sums);
    b = nnti_bn_backward_of(op, c, sums, (double)job->run->count * (double)hw);
    for (s = 0; s < job->run->count; s++) {
        int64_t at = (s * op->out_c + c) * hw;
        nnti_unpool_plane(op, (s * op->out_c + c) * out, plane);
        nnti_bn_grad_row(job->e, x + at, plane, NULL, gx + at, hw, b);
    }
}
static void nnti_cpu_bn_pool_grad(const nnti_exec *e, const nnt_op *op, const nnt_run *run)
{
    nnti_bn_pool_job job;
    job.e = e;
    job.op = op;
    job.run = run;
    nnti_parallel(e->pool, op->out_c, nnti_bn_pool_grad_task, &job);
}
static size_t nnti_cpu_bn_pool_grad_workspace(const nnti_exec *e, const nnt_op *op, int batch)
{
    (void)batch;
    return nnti_fused_bytes(nnti_mul64(op->mid_h, op->mid_w) + (int64_t)NNTI_ALIGN, nnti_pool_threads(e->pool));
}

/* ============================================================================
   >>graph    Builders: check shapes, infer the rest, record nodes and parameters
   Writes the net's nodes and parameters; knows nothing of devices, batches or memory. Chapter SHAPES above.
   ============================================================================ */

enum {
    NNTI_NODE_INPUT = 0, NNTI_NODE_CONV, NNTI_NODE_LINEAR, NNTI_NODE_RESHAPE, NNTI_NODE_ACT, NNTI_NODE_SOFTMAX,
    NNTI_NODE_MAXPOOL, NNTI_NODE_AVGPOOL, NNTI_NODE_ADAPTIVE, NNTI_NODE_BATCHNORM, NNTI_NODE_DROPOUT, NNTI_NODE_NOISE,
    NNTI_NODE_ADD, NNTI_NODE_CONCAT, NNTI_NODE_CROSS_ENTROPY, NNTI_NODE_MSE,
    NNTI_NODE_KINDS
};

typedef struct nnti_node {
    int   kind, number;             /* number: among those of its kind, from 1, for names such as conv2d3 */
    int   first_input, inputs;      /* in net->edges */
    int   shape[3];
    char *name;                     /* the user's, or NULL */
    int   keep;                     /* nnt_keep */
    nnt_op geometry;                /* sizes and parameters that its resolved ops start from */
    int   weight, bias, running;    /* indices of parameters, -1: none. running: mean; running + 1: variance */
    double flops;                   /* of forward, a sample */
} nnti_node;

/* What a parameter is for. Trained ones come first in memory, see nnti_place_params. */
enum { NNTI_PARAM_TRAINED = 0, NNTI_PARAM_RUNNING, NNTI_PARAM_CONSTANT };

typedef struct nnti_param {
    char   *name;                   /* "conv1.weight", made by nnt_plan or nnt_compile; CONSTANT has none */
    int     kind, node;
    const char *suffix;             /* "weight" */
    int     rank;
    int64_t size[4], count;
    int     init;                   /* NNT_INIT_..., or: */
    float   start;                  /*   the value of each element, when fan_in is 0 */
    int64_t fan_in, fan_out;
    float  *values;                 /* CONSTANT: count values, owned */
    size_t  offset;                 /* in floats, from the beginning of the net's memory */
} nnti_param;

typedef struct nnti_open_device {
    const nnt_backend *backend;
    int   index;
    void *device;
    char  text[24];                 /* as the user writes it: "cuda:1" */
} nnti_open_device;

struct nnt_tensor {
    nnt_net *net;
    nnti_open_device *on;
    int      rank, view;
    int64_t  size[4], count;
    float   *data;                  /* on the device */
    nnt_tensor *next, **link;       /* the net's list */
};

enum { NNTI_MAX_OPEN = 8 };

/* What lowering makes: see >>plan. */
typedef struct nnti_program {
    nnt_op *ops;                    /* resolved */
    size_t  cap;
    int     count;
    int    *operands;               /* count * NNT_ROLES value indices, -1: none, -2 - i: parameter i */
    size_t  operand_cap;
    int    *owner;                  /* the node that was lowered when the op was emitted */
    size_t  owner_cap;
    int     loss_op;                /* index of the loss, -1: none */
    int     update_ops;             /* the last so many ops belong to the update: BN_RUNNING */
} nnti_program;

typedef struct nnti_value {
    const char *what;               /* "activation", "gradient", ... for reports */
    int     node;
    int     kind;                   /* NNTI_VALUE_... */
    int     persistent;             /* lives the whole step, outside of what is scheduled */
    int     again;                  /* made again */
    int     given;                  /* filled before the first op */
    size_t  bytes;                  /* at the whole batch, rounded up to NNTI_ALIGN */
    int     first, last;            /* ops of the program that touch it first and last; first -1: before the first op */
    int     storage;                /* the value in whose place it lives */
    size_t  offset;                 /* in the arena */
} nnti_value;

enum { NNTI_VALUE_ACTIVATION = 0, NNTI_VALUE_GRADIENT, NNTI_VALUE_WORKSPACE };

typedef struct nnti_plan {
    nnti_program train, predict;
    nnti_value  *train_values, *predict_values;
    size_t       train_value_cap, predict_value_cap;
    int          train_value_count, predict_value_count;
    int          x[2], labels[2], targets[2], loss[2], output;      /* values: [0] of train, [1] of predict */
    size_t       norm_workspace;    /* behind the sum of squares at the end of the fixed part, for clip_norm */
    size_t       trained_floats, persistent_floats;     /* parameters in front, then running statistics and constants */
    nnt_memory   memory;
} nnti_plan;

/* Where a run of nnt_fit is; beside the net's and the loader's state all that its future depends on. */
typedef struct nnti_fit_state {
    int      resumed;               /* the next nnt_fit goes on from here */
    int64_t  epoch, batch;          /* batch: done in this epoch */
    nnt_loss sum;                   /* what the losses of this epoch counted so far */
    double   samples;               /* of this epoch so far */
    float    lr;                    /* of the last step */
    double   start, epoch_start;    /* on nnti_seconds' clock, pauses taken out */
    double   waited;                /* what the loader's wait_seconds would have been at the start */
    const nnt_loader *validation;   /* of the nnt_fit that runs */
    int      validated;             /* the run that goes on had a validation loader: */
    int64_t  validation_epoch;      /*   where it was, */
    uint64_t validation_seed;       /*   and under which seed */
    int64_t  best_epoch;            /* -1: none yet */
    double   best;                  /* its figure; smaller is better */
} nnti_fit_state;

typedef struct nnti_text_pair { char *key, *value; } nnti_text_pair;

struct nnt_net {
    nnt_allocator a;
    nnti_error    error;            /* the last one */
    nnti_error    graph_error;      /* the first of a builder; stays */
    nnti_node    *nodes;            /* id = index + 1 */
    size_t        node_cap;
    int           node_count;
    int          *edges;            /* indices of nodes */
    size_t        edge_cap;
    int           edge_count;
    int           kinds[NNTI_NODE_KINDS], acts[NNT_ACT_GELU + 1];     /* nodes of each kind, activations of each function */
    nnti_param   *params;
    size_t        param_cap;
    int           param_count;
    int           input;            /* its index, -1: none */
    int           checkpoint_first, checkpoint_last, checkpoint_segments;   /* nodes; segments 0: none */
    nnt_tensor   *tensors;
    nnti_open_device open[NNTI_MAX_OPEN];
    int           open_count;

    /* after nnt_compile */
    int           compiled, trains;
    int           loss_node, output_node;   /* loss_node -1: none */
    nnt_compile_desc desc;
    nnti_open_device *on;
    nnti_plan     plan;
    float        *memory;           /* on the device: trained parameters, persistent, gradients, moments, arena */
    size_t        memory_bytes;
    int64_t       steps, updates;
    int           pending;          /* batches whose gradients wait for the update */
    double        pending_weight;
    nnt_loss      last_loss;
    double        last_finite;      /* loss of the last step that had a finite one */
    float         compiled_lr;      /* before nnt_set_learning_rate */
    nnt_progress_info *history;
    int           history_count;
    size_t        history_cap;
    int           fitting;          /* inside of nnt_fit */
    struct nnti_recorder *profile;  /* what was recorded, or NULL */
    struct nnti_recorder *recording; /* the same while it runs, else NULL */
    struct nnti_inspector *inspector; /* looks at what ops write, or NULL */
    nnti_fit_state fit;
    nnti_text_pair *metadata;
    size_t        metadata_cap;
    int           metadata_count;
    const struct nnti_file_calls *file_calls;      /* tests put theirs here; NULL: the system's */
};

static const char *const nnti_kind_names[NNTI_NODE_KINDS] = {
    "input", "conv2d", "linear", "reshape", "activation", "softmax", "maxpool", "avgpool", "adaptive_avgpool", "batchnorm",
    "dropout", "noise", "add", "concat", "cross_entropy", "mse"
};
static const char *const nnti_act_names[] = { "relu", "leaky_relu", "sigmoid", "tanh", "gelu" };

/* A layer's number is its stream of random numbers, 16 bits; the last two streams are not layers'. */
enum { NNTI_MAX_NODES = 65000, NNTI_STREAM_PARAMS = 0xfffe };
enum { NNTI_NAME_TEXT = 96, NNTI_SHAPE_TEXT = 48 };

static const char *nnti_node_kind_name(const nnti_node *n)
{
    return n->kind == NNTI_NODE_ACT ? nnti_act_names[n->geometry.variant] : nnti_kind_names[n->kind];
}
/* The user's name, or conv2d3. */
static const char *nnti_node_name(const nnti_node *n, char text[NNTI_NAME_TEXT])
{
    if (n->name) return n->name;
    nnti_format(text, NNTI_NAME_TEXT, "%s%d", nnti_node_kind_name(n), n->number);
    return text;
}
static const char *nnti_shape_text(char text[NNTI_SHAPE_TEXT], const int shape[3])
{
    nnti_format(text, NNTI_SHAPE_TEXT, "%dx%dx%d", shape[0], shape[1], shape[2]);
    return text;
}
static int64_t nnti_volume(const int shape[3]) { return nnti_mul64(nnti_mul64(shape[0], shape[1]), shape[2]); }

static nnt_node nnti_invalid(nnt_net *net)
{
    nnt_node x;
    x.net = net;
    x.id = 0;
    return x;
}
/* NULL when x is not a node to build on. */
static nnti_node *nnti_get(nnt_node x)
{
    if (!x.net || x.id < 1 || x.id > x.net->node_count) return NULL;
    return &x.net->nodes[x.id - 1];
}
/* Keeps the graph's first error; where: "conv2d 'conv2d3' (op 7): " is put in front. */
static nnt_node nnti_fail(nnt_net *net, nnt_result code, const nnti_node *n, const char *format, ...)
{
    if (net && net->graph_error.code == NNT_OK) {
        nnti_text t = nnti_text_begin(net->graph_error.text, sizeof net->graph_error.text);
        char name[NNTI_NAME_TEXT];
        va_list args;
        if (n) nnti_put(&t, "%s '%s' (op %d): ", nnti_node_kind_name(n), nnti_node_name(n, name), net->node_count + 1);
        va_start(args, format);
        nnti_vformat(&t, format, args);
        va_end(args);
        nnti_text_end(&t);
        net->graph_error.code = (int)code;
        net->error = net->graph_error;
    }
    return nnti_invalid(net);
}

/* A draft of a node on `count` inputs, in *n; 0 when the net or an input carries an error already, or the call is too late. */
static int nnti_draft(nnti_node *n, int kind, int variant, const nnt_node *inputs, int count)
{
    nnt_net *net = inputs[0].net;
    const nnti_node *x;
    int i;
    memset(n, 0, sizeof *n);
    if (!net || net->graph_error.code != NNT_OK) return 0;
    n->kind = kind;
    n->geometry.variant = variant;
    n->weight = n->bias = n->running = -1;
    n->number = net->kinds[kind] + 1;
    if (kind == NNTI_NODE_ACT) {            /* relu1, tanh1: numbered by function */
        n->number = net->acts[variant] + 1;
    }
    if (net->compiled) {
        nnti_fail(net, NNT_ERR_STATE, n, "the net is compiled; layers can't be added any more");
        return 0;
    }
    if (net->node_count >= NNTI_MAX_NODES) {
        nnti_fail(net, NNT_ERR_UNSUPPORTED, n, "a net has at most %d layers", (int)NNTI_MAX_NODES);
        return 0;
    }
    for (i = 0; i < count; i++) {
        if (inputs[i].net != net) {
            nnti_fail(net, NNT_ERR_ARGUMENT, n, "input %d belongs to another net", i + 1);
            return 0;
        }
        x = nnti_get(inputs[i]);
        if (!x) {
            nnti_fail(net, NNT_ERR_ARGUMENT, n, "input %d is not a node of this net (id %d)", i + 1, inputs[i].id);
            return 0;
        }
        if (x->kind == NNTI_NODE_CROSS_ENTROPY || x->kind == NNTI_NODE_MSE) {
            nnti_fail(net, NNT_ERR_ARGUMENT, n, "a loss has no values to build on; give it to nnt_compile");
            return 0;
        }
    }
    x = nnti_get(inputs[0]);
    n->geometry.in_c = x->shape[0];
    n->geometry.in_h = x->shape[1];
    n->geometry.in_w = x->shape[2];
    memcpy(n->shape, x->shape, sizeof n->shape);
    return 1;
}

static nnt_node nnti_out_of_memory(nnt_net *net)
{
    return nnti_fail(net, NNT_ERR_MEMORY, NULL, "out of memory while building the graph");
}

/* Appends the draft. Shapes are final. */
static nnt_node nnti_finish(nnti_node *n, const nnt_node *inputs, int count)
{
    nnt_net *net = inputs[0].net;
    nnt_node out;
    void *nodes = net->nodes, *edges = net->edges;
    int i;
    if (nnti_volume(n->shape) < 0)
        return nnti_fail(net, NNT_ERR_SHAPE, n, "its output %dx%dx%d has more than 2^62 values", n->shape[0], n->shape[1], n->shape[2]);
    if (!nnti_grow(&net->a, &nodes, &net->node_cap, (size_t)net->node_count + 1, sizeof *net->nodes)) return nnti_out_of_memory(net);
    net->nodes = (nnti_node *)nodes;
    if (!nnti_grow(&net->a, &edges, &net->edge_cap, (size_t)net->edge_count + (size_t)count, sizeof *net->edges)) return nnti_out_of_memory(net);
    net->edges = (int *)edges;
    n->first_input = net->edge_count;
    n->inputs = count;
    for (i = 0; i < count; i++) net->edges[net->edge_count++] = inputs[i].id - 1;
    n->geometry.out_c = n->shape[0];
    n->geometry.out_h = n->shape[1];
    n->geometry.out_w = n->shape[2];
    net->kinds[n->kind]++;
    if (n->kind == NNTI_NODE_ACT) net->acts[n->geometry.variant]++;
    net->nodes[net->node_count++] = *n;
    out.net = net;
    out.id = net->node_count;
    return out;
}

/* A new parameter of the node that is being drafted; its index, or -1 when memory is out. */
static int nnti_add_param(nnt_net *net, int kind, const char *suffix, int rank, const int64_t *size)
{
    void *params = net->params;
    nnti_param *p;
    int i;
    if (!nnti_grow(&net->a, &params, &net->param_cap, (size_t)net->param_count + 1, sizeof *net->params)) {
        nnti_out_of_memory(net);
        return -1;
    }
    net->params = (nnti_param *)params;
    p = &net->params[net->param_count];
    memset(p, 0, sizeof *p);
    p->kind = kind;
    p->node = net->node_count;
    p->suffix = suffix;
    p->rank = rank;
    p->count = 1;
    for (i = 0; i < rank; i++) {
        p->size[i] = size[i];
        p->count = nnti_mul64(p->count, size[i]);
    }
    return net->param_count++;
}
/* Weight [out][in...] and bias [out] of a conv2d or linear node; 0 after an error. */
static int nnti_add_weights(nnt_net *net, nnti_node *n, int rank, const int64_t *size, int64_t fan_in, int64_t fan_out, int no_bias, int init)
{
    if (init < NNT_INIT_DEFAULT || init > NNT_INIT_ZERO) {
        nnti_fail(net, NNT_ERR_ARGUMENT, n, "init %d is none of NNT_INIT_...", init);
        return 0;
    }
    n->weight = nnti_add_param(net, NNTI_PARAM_TRAINED, "weight", rank, size);
    if (n->weight < 0) return 0;
    if (net->params[n->weight].count < 0) {
        nnti_fail(net, NNT_ERR_SHAPE, n, "its weight has more than 2^62 values");
        return 0;
    }
    net->params[n->weight].init = init;
    net->params[n->weight].fan_in = fan_in;
    net->params[n->weight].fan_out = fan_out;
    if (no_bias) return 1;
    n->bias = nnti_add_param(net, NNTI_PARAM_TRAINED, "bias", 1, size);
    if (n->bias < 0) return 0;
    if (init == NNT_INIT_DEFAULT) net->params[n->bias].fan_in = fan_in;
    return 1;
}

NNT_API nnt_node nnt_input(nnt_net *net, int channels, int height, int width)
{
    nnti_node n;
    nnt_node self = nnti_invalid(net);
    if (!net || net->graph_error.code != NNT_OK) return self;
    memset(&n, 0, sizeof n);
    n.kind = NNTI_NODE_INPUT;
    n.number = 1;
    n.weight = n.bias = n.running = -1;
    if (net->compiled) return nnti_fail(net, NNT_ERR_STATE, &n, "the net is compiled; layers can't be added any more");
    if (net->input >= 0) return nnti_fail(net, NNT_ERR_STATE, &n, "the net has an input already; a net has exactly one");
    if (channels < 1 || height < 1 || width < 1)
        return nnti_fail(net, NNT_ERR_ARGUMENT, &n, "shape %dx%dx%d; every size must be at least 1", channels, height, width);
    n.shape[0] = n.geometry.in_c = channels;
    n.shape[1] = n.geometry.in_h = height;
    n.shape[2] = n.geometry.in_w = width;
    net->input = net->node_count;
    return nnti_finish(&n, &self, 0);
}

NNT_API nnt_node nnt_name(nnt_node x, const char *name)
{
    nnti_node *n = nnti_get(x);
    const unsigned char *c = (const unsigned char *)name;
    size_t length;
    int i;
    if (!x.net || x.net->graph_error.code != NNT_OK) return nnti_invalid(x.net);
    if (!n) return nnti_fail(x.net, NNT_ERR_ARGUMENT, NULL, "nnt_name: not a node of this net (id %d)", x.id);
    if (!name || !*name) return nnti_fail(x.net, NNT_ERR_ARGUMENT, NULL, "nnt_name: op %d is given no name; a name has at least one character", x.id);
    if (x.net->compiled) return nnti_fail(x.net, NNT_ERR_STATE, NULL, "nnt_name: '%s': the net is compiled; names are final", name);
    for (; *c; c++)
        if (*c < 32) return nnti_fail(x.net, NNT_ERR_ARGUMENT, NULL, "nnt_name: the name of op %d holds a control character (%d)", x.id, (int)*c);
    length = (size_t)(c - (const unsigned char *)name) + 1;
    for (i = 0; i < x.net->node_count; i++)
        if (i != x.id - 1 && x.net->nodes[i].name && strcmp(x.net->nodes[i].name, name) == 0)
            return nnti_fail(x.net, NNT_ERR_ARGUMENT, NULL, "nnt_name: '%s' is the name of op %d already; op %d needs another", name, i + 1, x.id);
    if (n->name) nnti_free(&x.net->a, n->name, strlen(n->name) + 1);
    n->name = (char *)nnti_alloc(&x.net->a, length);
    if (!n->name) return nnti_out_of_memory(x.net);
    memcpy(n->name, name, length);
    for (i = 0; i < x.net->param_count; i++) {      /* nnt_plan may have made names from the old one */
        nnti_param *p = &x.net->params[i];
        if (p->node != x.id - 1 || !p->name) continue;
        nnti_free(&x.net->a, p->name, strlen(p->name) + 1);
        p->name = NULL;
    }
    return x;
}

/* 0 after an error: marks need nodes of a net that is not compiled. */
static int nnti_can_mark(nnt_node x, const char *where)
{
    if (!x.net || x.net->graph_error.code != NNT_OK) return 0;
    if (!nnti_get(x)) nnti_fail(x.net, NNT_ERR_ARGUMENT, NULL, "%s: not a node of this net (id %d)", where, x.id);
    else if (x.net->compiled) nnti_fail(x.net, NNT_ERR_STATE, NULL, "%s: the net is compiled; its plan is final", where);
    return x.net->graph_error.code == NNT_OK;
}
NNT_API nnt_node nnt_keep(nnt_node x)
{
    if (!nnti_can_mark(x, "nnt_keep")) return nnti_invalid(x.net);
    nnti_get(x)->keep = 1;
    return x;
}
NNT_API nnt_node nnt_checkpoint_sequential(nnt_node first, nnt_node last, int segments)
{
    if (!nnti_can_mark(first, "nnt_checkpoint_sequential") || !nnti_can_mark(last, "nnt_checkpoint_sequential")) return nnti_invalid(last.net);
    if (first.net != last.net || first.id > last.id)
        return nnti_fail(last.net, NNT_ERR_ARGUMENT, NULL, "nnt_checkpoint_sequential: op %d is not before op %d of the same net", first.id, last.id);
    if (segments < 1) return nnti_fail(last.net, NNT_ERR_ARGUMENT, NULL, "nnt_checkpoint_sequential: %d segments; it must be at least 1", segments);
    if (last.net->checkpoint_segments) return nnti_fail(last.net, NNT_ERR_STATE, NULL, "nnt_checkpoint_sequential: the net has one already; one run of layers can be marked");
    last.net->checkpoint_first = first.id - 1;
    last.net->checkpoint_last = last.id - 1;
    last.net->checkpoint_segments = segments;
    return last;
}

NNT_API nnt_result nnt_shape(nnt_node x, int shape[3])
{
    const nnti_node *n = nnti_get(x);
    if (!n || !shape) return NNT_ERR_ARGUMENT;
    memcpy(shape, n->shape, sizeof n->shape);
    return NNT_OK;
}

/* Fills what stays zero; negative values are left for the checks. */
static nnt_conv_desc nnti_conv_defaults(nnt_conv_desc d)
{
    d.kernel_w = d.kernel_w ? d.kernel_w : d.kernel;
    d.stride = d.stride ? d.stride : 1;
    d.stride_w = d.stride_w ? d.stride_w : d.stride;
    d.pad_w = d.pad_w == NNT_NO_PAD ? 0 : d.pad_w ? d.pad_w : d.pad;
    d.dilation = d.dilation ? d.dilation : 1;
    d.dilation_w = d.dilation_w ? d.dilation_w : d.dilation;
    d.groups = d.groups ? d.groups : 1;
    return d;
}
/* Sizes of windows and steps into the node; 0 after an error. What: "kernel" sizes must be positive, pads not negative. */
static int nnti_set_window(nnt_net *net, nnti_node *n, int kh, int kw, int sh, int sw, int ph, int pw, int dh, int dw)
{
    nnt_op *g = &n->geometry;
    if (kh < 1 || kw < 1) { nnti_fail(net, NNT_ERR_ARGUMENT, n, "kernel %dx%d; it must be at least 1x1", kh, kw); return 0; }
    if (sh < 1 || sw < 1) { nnti_fail(net, NNT_ERR_ARGUMENT, n, "stride %dx%d; it must be at least 1", sh, sw); return 0; }
    if (ph < 0 || pw < 0) { nnti_fail(net, NNT_ERR_ARGUMENT, n, "padding %dx%d; it can't be negative", ph, pw); return 0; }
    if (dh < 1 || dw < 1) { nnti_fail(net, NNT_ERR_ARGUMENT, n, "dilation %dx%d; it must be at least 1", dh, dw); return 0; }
    g->kernel_h = kh;   g->kernel_w = kw;
    g->stride_h = sh;   g->stride_w = sw;
    g->pad_h = ph;      g->pad_w = pw;
    g->dilation_h = dh; g->dilation_w = dw;
    return 1;
}
/* Kernel size with its gaps, and the padded input; both can pass the range of int. */
static int64_t nnti_reach(int kernel, int dilation) { return (int64_t)dilation * (kernel - 1) + 1; }
static int64_t nnti_padded(int size, int pad) { return (int64_t)size + 2 * (int64_t)pad; }

/* 0 after an error: kernel larger than the padded input, or a result that is no int. */
static int nnti_check_window(nnt_net *net, const nnti_node *n)
{
    const nnt_op *g = &n->geometry;
    int64_t h = nnti_padded(g->in_h, g->pad_h), w = nnti_padded(g->in_w, g->pad_w);
    int64_t kh = nnti_reach(g->kernel_h, g->dilation_h), kw = nnti_reach(g->kernel_w, g->dilation_w);
    if (h > INT_MAX || w > INT_MAX || kh > INT_MAX || kw > INT_MAX) {
        nnti_fail(net, NNT_ERR_SHAPE, n, "kernel %Ix%I on padded input %Ix%I; sizes must stay below 2^31", kh, kw, h, w);
        return 0;
    }
    if (kh <= h && kw <= w) return 1;
    if (g->dilation_h > 1 || g->dilation_w > 1)
        nnti_fail(net, NNT_ERR_SHAPE, n, "kernel %dx%d with dilation %dx%d reaches over %Ix%I, its padded input is %Ix%I (%d channels); add padding or drop a pooling before it",
                  g->kernel_h, g->kernel_w, g->dilation_h, g->dilation_w, kh, kw, h, w, g->in_c);
    else
        nnti_fail(net, NNT_ERR_SHAPE, n, "kernel %dx%d is larger than its %sinput %Ix%I (%d channels); add padding or drop a pooling before it",
                  g->kernel_h, g->kernel_w, g->pad_h || g->pad_w ? "padded " : "", h, w, g->in_c);
    return 0;
}

NNT_API nnt_node nnt_conv2d_ex(nnt_node x, nnt_conv_desc d)
{
    nnti_node n;
    nnt_op *g = &n.geometry;
    int64_t size[4], fan_in;
    if (!nnti_draft(&n, NNTI_NODE_CONV, 0, &x, 1)) return nnti_invalid(x.net);
    d = nnti_conv_defaults(d);
    if (d.filters < 1) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "%d filters; it needs at least 1", d.filters);
    if (!nnti_set_window(x.net, &n, d.kernel, d.kernel_w, d.stride, d.stride_w, d.pad, d.pad_w, d.dilation, d.dilation_w)
        || !nnti_check_window(x.net, &n)) return nnti_invalid(x.net);
    if (d.groups < 1 || g->in_c % d.groups || d.filters % d.groups)
        return nnti_fail(x.net, NNT_ERR_SHAPE, &n, "%d groups don't divide %d input channels and %d filters", d.groups, g->in_c, d.filters);
    g->groups = d.groups;
    if (d.exact) g->flags |= NNT_OPF_EXACT;
    n.shape[0] = d.filters;
    n.shape[1] = (int)((nnti_padded(g->in_h, d.pad) - nnti_reach(d.kernel, d.dilation)) / d.stride + 1);
    n.shape[2] = (int)((nnti_padded(g->in_w, d.pad_w) - nnti_reach(d.kernel_w, d.dilation_w)) / d.stride_w + 1);
    size[0] = d.filters;
    size[1] = g->in_c / d.groups;
    size[2] = d.kernel;
    size[3] = d.kernel_w;
    fan_in = nnti_mul64(nnti_mul64(size[1], size[2]), size[3]);
    if (!nnti_add_weights(x.net, &n, 4, size, fan_in, nnti_mul64(nnti_mul64(d.filters, size[2]), size[3]), d.no_bias, d.init)) return nnti_invalid(x.net);
    n.flops = (double)n.shape[0] * n.shape[1] * n.shape[2] * (2.0 * (double)fan_in + (d.no_bias ? 0 : 1));
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_conv2d(nnt_node x, int filters, int kernel, int stride, int pad)
{
    nnt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.filters = filters;
    d.kernel = kernel;
    d.stride = stride ? stride : -1;        /* here a zero is a mistake, not the usual */
    d.pad = pad;
    d.pad_w = pad ? pad : NNT_NO_PAD;
    return nnt_conv2d_ex(x, d);
}

NNT_API nnt_node nnt_linear_ex(nnt_node x, nnt_linear_desc d)
{
    nnti_node n;
    int64_t size[4], inputs;
    if (!nnti_draft(&n, NNTI_NODE_LINEAR, 0, &x, 1)) return nnti_invalid(x.net);
    inputs = nnti_volume(n.shape);
    if (d.features < 1) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "%d features; it needs at least 1", d.features);
    if (inputs > INT_MAX) return nnti_fail(x.net, NNT_ERR_SHAPE, &n, "its input has %I values; at most 2^31 - 1", inputs);
    size[0] = d.features;
    size[1] = inputs;
    n.shape[0] = d.features;
    n.shape[1] = n.shape[2] = 1;
    if (!nnti_add_weights(x.net, &n, 2, size, inputs, d.features, d.no_bias, d.init)) return nnti_invalid(x.net);
    n.flops = (double)d.features * (2.0 * (double)inputs + (d.no_bias ? 0 : 1));
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_linear(nnt_node x, int features)
{
    nnt_linear_desc d;
    memset(&d, 0, sizeof d);
    d.features = features;
    return nnt_linear_ex(x, d);
}

NNT_API nnt_node nnt_reshape(nnt_node x, int channels, int height, int width)
{
    nnti_node n;
    char was[NNTI_SHAPE_TEXT];
    int shape[3];
    shape[0] = channels;
    shape[1] = height;
    shape[2] = width;
    if (!nnti_draft(&n, NNTI_NODE_RESHAPE, 0, &x, 1)) return nnti_invalid(x.net);
    if (channels < 1 || height < 1 || width < 1 || nnti_volume(shape) != nnti_volume(n.shape))
        return nnti_fail(x.net, NNT_ERR_SHAPE, &n, "%s (%I values) can't become %dx%dx%d", nnti_shape_text(was, n.shape), nnti_volume(n.shape), channels, height, width);
    memcpy(n.shape, shape, sizeof shape);
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_flatten(nnt_node x)
{
    const nnti_node *n = nnti_get(x);
    int64_t values = n ? nnti_volume(n->shape) : 1;
    if (values > INT_MAX) return nnti_fail(x.net, NNT_ERR_SHAPE, NULL, "flatten: %I values; at most 2^31 - 1", values);
    return nnt_reshape(x, (int)values, 1, 1);
}

static nnt_node nnti_act_node(nnt_node x, int variant, float slope)
{
    nnti_node n;
    if (!nnti_draft(&n, NNTI_NODE_ACT, variant, &x, 1)) return nnti_invalid(x.net);
    if (!nnti_finite(slope) || slope < 0)
        return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "slope %g; it must be finite and at least 0, so that the output tells the input's sign", (double)slope);
    n.geometry.f[0] = slope;
    n.flops = (double)nnti_volume(n.shape);
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_relu(nnt_node x)                    { return nnti_act_node(x, NNT_ACT_RELU, 0); }
NNT_API nnt_node nnt_leaky_relu(nnt_node x, float slope) { return nnti_act_node(x, NNT_ACT_LEAKY_RELU, slope); }
NNT_API nnt_node nnt_sigmoid(nnt_node x)                 { return nnti_act_node(x, NNT_ACT_SIGMOID, 0); }
NNT_API nnt_node nnt_tanh(nnt_node x)                    { return nnti_act_node(x, NNT_ACT_TANH, 0); }
NNT_API nnt_node nnt_gelu(nnt_node x)                    { return nnti_act_node(x, NNT_ACT_GELU, 0); }
NNT_API nnt_node nnt_softmax(nnt_node x)
{
    nnti_node n;
    if (!nnti_draft(&n, NNTI_NODE_SOFTMAX, 0, &x, 1)) return nnti_invalid(x.net);
    n.flops = 5.0 * (double)nnti_volume(n.shape);
    return nnti_finish(&n, &x, 1);
}

/* Number of windows along one side. ceil_mode: the last may reach over the end but has to start before the right padding. */
static int nnti_pool_size(int size, int kernel, int stride, int pad, int ceil_mode)
{
    int64_t room = nnti_padded(size, pad) - kernel, count = room / stride + 1;
    if (ceil_mode && room % stride && count * stride < (int64_t)size + pad) count++;
    return (int)count;
}
static nnt_node nnti_pool_node(nnt_node x, int kind, nnt_pool_desc d)
{
    nnti_node n;
    const nnt_op *g = &n.geometry;
    if (!nnti_draft(&n, kind, d.exclude_pad ? 1 : 0, &x, 1)) return nnti_invalid(x.net);
    d.kernel_w = d.kernel_w ? d.kernel_w : d.kernel;
    d.stride_w = d.stride_w ? d.stride_w : d.stride ? d.stride : d.kernel_w;
    d.stride = d.stride ? d.stride : d.kernel;
    d.pad_w = d.pad_w == NNT_NO_PAD ? 0 : d.pad_w ? d.pad_w : d.pad;
    if (!nnti_set_window(x.net, &n, d.kernel, d.kernel_w, d.stride, d.stride_w, d.pad, d.pad_w, 1, 1)) return nnti_invalid(x.net);
    if (d.pad > d.kernel / 2 || d.pad_w > d.kernel_w / 2)
        return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "padding %dx%d is more than half of the kernel %dx%d", d.pad, d.pad_w, d.kernel, d.kernel_w);
    if (kind == NNTI_NODE_MAXPOOL && (int64_t)d.kernel * d.kernel_w > INT_MAX)
        return nnti_fail(x.net, NNT_ERR_SHAPE, &n, "kernel %dx%d has more than 2^31 - 1 values", d.kernel, d.kernel_w);
    if (!nnti_check_window(x.net, &n)) return nnti_invalid(x.net);
    n.shape[1] = nnti_pool_size(g->in_h, d.kernel, d.stride, d.pad, d.ceil_mode);
    n.shape[2] = nnti_pool_size(g->in_w, d.kernel_w, d.stride_w, d.pad_w, d.ceil_mode);
    n.flops = (double)nnti_volume(n.shape) * d.kernel * d.kernel_w;
    return nnti_finish(&n, &x, 1);
}
static nnt_pool_desc nnti_square_pool(int kernel, int stride, int pad)
{
    nnt_pool_desc d;
    memset(&d, 0, sizeof d);
    d.kernel = kernel;
    d.stride = stride;
    d.pad = pad;
    d.pad_w = pad ? pad : NNT_NO_PAD;
    return d;
}
NNT_API nnt_node nnt_maxpool_ex(nnt_node x, nnt_pool_desc d)
{
    d.exclude_pad = 0;                      /* padding never counts here */
    return nnti_pool_node(x, NNTI_NODE_MAXPOOL, d);
}
NNT_API nnt_node nnt_avgpool_ex(nnt_node x, nnt_pool_desc d) { return nnti_pool_node(x, NNTI_NODE_AVGPOOL, d); }
NNT_API nnt_node nnt_maxpool(nnt_node x, int kernel, int stride, int pad) { return nnt_maxpool_ex(x, nnti_square_pool(kernel, stride, pad)); }
NNT_API nnt_node nnt_avgpool(nnt_node x, int kernel, int stride, int pad) { return nnt_avgpool_ex(x, nnti_square_pool(kernel, stride, pad)); }
NNT_API nnt_node nnt_adaptive_avgpool(nnt_node x, int height, int width)
{
    nnti_node n;
    if (!nnti_draft(&n, NNTI_NODE_ADAPTIVE, 0, &x, 1)) return nnti_invalid(x.net);
    if (height < 1 || width < 1) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "output size %dx%d; it must be at least 1x1", height, width);
    n.shape[1] = height;
    n.shape[2] = width;
    n.flops = (double)nnti_volume(n.shape) * ((double)n.geometry.in_h / height + 1) * ((double)n.geometry.in_w / width + 1);
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_global_avgpool(nnt_node x) { return nnt_adaptive_avgpool(x, 1, 1); }

NNT_API nnt_batchnorm_desc nnt_batchnorm_defaults(void)
{
    nnt_batchnorm_desc d;
    d.momentum = 0.1f;
    d.eps = 1e-5f;
    d.no_affine = 0;
    return d;
}
NNT_API nnt_node nnt_batchnorm_ex(nnt_node x, nnt_batchnorm_desc d)
{
    nnti_node n;
    int64_t size[4];
    int variance;
    if (!nnti_draft(&n, NNTI_NODE_BATCHNORM, 0, &x, 1)) return nnti_invalid(x.net);
    if (!nnti_finite(d.momentum) || d.momentum < 0 || d.momentum > 1)
        return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "momentum %g; it must be between 0 and 1", (double)d.momentum);
    if (!nnti_finite(d.eps) || d.eps < 0) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "eps %g; it must be finite and not negative", (double)d.eps);
    n.geometry.f[0] = d.eps;
    n.geometry.f[1] = d.momentum;
    size[0] = n.shape[0];
    if (!d.no_affine) {
        n.weight = nnti_add_param(x.net, NNTI_PARAM_TRAINED, "weight", 1, size);
        n.bias = n.weight < 0 ? -1 : nnti_add_param(x.net, NNTI_PARAM_TRAINED, "bias", 1, size);
        if (n.bias < 0) return nnti_invalid(x.net);
        x.net->params[n.weight].start = 1.0f;
    }
    n.running = nnti_add_param(x.net, NNTI_PARAM_RUNNING, "running_mean", 1, size);
    variance = n.running < 0 ? -1 : nnti_add_param(x.net, NNTI_PARAM_RUNNING, "running_var", 1, size);
    if (variance < 0) return nnti_invalid(x.net);
    x.net->params[variance].start = 1.0f;
    n.flops = 4.0 * (double)nnti_volume(n.shape);
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_batchnorm(nnt_node x) { return nnt_batchnorm_ex(x, nnt_batchnorm_defaults()); }

NNT_API nnt_node nnt_dropout(nnt_node x, float p)
{
    nnti_node n;
    if (!nnti_draft(&n, NNTI_NODE_DROPOUT, 0, &x, 1)) return nnti_invalid(x.net);
    if (!nnti_finite(p) || p < 0 || p >= 1) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "probability %g; it must be at least 0 and below 1", (double)p);
    n.geometry.f[0] = p;
    n.flops = (double)nnti_volume(n.shape);
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_noise_ex(nnt_node x, nnt_noise_desc d)
{
    nnti_node n;
    if (!nnti_draft(&n, NNTI_NODE_NOISE, d.kind, &x, 1)) return nnti_invalid(x.net);
    if (d.kind < NNT_NOISE_GAUSSIAN || d.kind > NNT_NOISE_SALT_PEPPER) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "kind %d is none of NNT_NOISE_...", d.kind);
    if (!nnti_finite(d.amount) || d.amount < 0) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "amount %g; it must be finite and not negative", (double)d.amount);
    if (d.kind == NNT_NOISE_SALT_PEPPER && d.amount > 1) return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "amount %g; salt and pepper's is a probability, at most 1", (double)d.amount);
    if (!(d.low != 0) && !(d.high != 0)) d.high = 1;
    if (!nnti_finite(d.low) || !nnti_finite(d.high) || d.low > d.high)
        return nnti_fail(x.net, NNT_ERR_ARGUMENT, &n, "low %g and high %g; they must be finite, low not above high", (double)d.low, (double)d.high);
    n.geometry.f[0] = d.amount;
    n.geometry.f[1] = d.low;
    n.geometry.f[2] = d.high;
    n.geometry.f[3] = d.clamp ? 1.0f : 0.0f;
    n.flops = 2.0 * (double)nnti_volume(n.shape);
    return nnti_finish(&n, &x, 1);
}
NNT_API nnt_node nnt_noise(nnt_node x, float deviation)
{
    nnt_noise_desc d;
    memset(&d, 0, sizeof d);
    d.amount = deviation;
    return nnt_noise_ex(x, d);
}

NNT_API nnt_node nnt_add(nnt_node a, nnt_node b)
{
    nnti_node n;
    nnt_node in[2];
    const nnti_node *other;
    char sa[NNTI_SHAPE_TEXT], sb[NNTI_SHAPE_TEXT];
    in[0] = a;
    in[1] = b;
    if (!a.net && b.net) return nnti_fail(b.net, NNT_ERR_ARGUMENT, NULL, "add: input 1 is not a node");
    if (!nnti_draft(&n, NNTI_NODE_ADD, 0, in, 2)) return nnti_invalid(a.net);
    other = nnti_get(b);
    if (memcmp(n.shape, other->shape, sizeof n.shape) != 0)
        return nnti_fail(a.net, NNT_ERR_SHAPE, &n, "shapes differ: %s and %s", nnti_shape_text(sa, n.shape), nnti_shape_text(sb, other->shape));
    n.flops = (double)nnti_volume(n.shape);
    return nnti_finish(&n, in, 2);
}
NNT_API nnt_node nnt_concat_n(const nnt_node *x, int count)
{
    nnti_node n;
    int64_t channels = 0;
    int i;
    char sa[NNTI_SHAPE_TEXT], sb[NNTI_SHAPE_TEXT];
    if (!x || count < 1) return nnti_invalid(NULL);
    for (i = 1; !x[0].net && i < count; i++)
        if (x[i].net) return nnti_fail(x[i].net, NNT_ERR_ARGUMENT, NULL, "concat: input 1 is not a node");
    if (!nnti_draft(&n, NNTI_NODE_CONCAT, 0, x, count)) return nnti_invalid(x[0].net);
    if (count < 2) return nnti_fail(x[0].net, NNT_ERR_ARGUMENT, &n, "%d input; it needs at least 2", count);
    for (i = 0; i < count; i++) {
        const nnti_node *in = nnti_get(x[i]);
        if (in->shape[1] != n.shape[1] || in->shape[2] != n.shape[2])
            return nnti_fail(x[0].net, NNT_ERR_SHAPE, &n, "height and width differ: input 1 is %s and input %d is %s", nnti_shape_text(sa, n.shape), i + 1, nnti_shape_text(sb, in->shape));
        channels += in->shape[0];
    }
    if (channels > INT_MAX) return nnti_fail(x[0].net, NNT_ERR_SHAPE, &n, "%I channels; at most 2^31 - 1", channels);
    n.shape[0] = (int)channels;
    return nnti_finish(&n, x, count);
}
NNT_API nnt_node nnt_concat(nnt_node a, nnt_node b)
{
    nnt_node in[2];
    in[0] = a;
    in[1] = b;
    return nnt_concat_n(in, 2);
}

NNT_API nnt_node nnt_cross_entropy_ex(nnt_node logits, nnt_cross_entropy_desc d)
{
    nnti_node n;
    int64_t size[4];
    int i;
    char shape[NNTI_SHAPE_TEXT];
    if (!nnti_draft(&n, NNTI_NODE_CROSS_ENTROPY, 0, &logits, 1)) return nnti_invalid(logits.net);
    if (n.shape[1] != 1 || n.shape[2] != 1)
        return nnti_fail(logits.net, NNT_ERR_SHAPE, &n, "its input is %s; it needs classes x 1 x 1, as nnt_linear or nnt_global_avgpool give", nnti_shape_text(shape, n.shape));
    if (!nnti_finite(d.label_smoothing) || d.label_smoothing < 0 || d.label_smoothing >= 1)
        return nnti_fail(logits.net, NNT_ERR_ARGUMENT, &n, "label_smoothing %g; it must be at least 0 and below 1", (double)d.label_smoothing);
    n.geometry.f[0] = d.label_smoothing;
    n.geometry.use_ignore = d.use_ignore_index;
    n.geometry.ignore_label = d.ignore_index;
    if (d.class_weights) {
        float *copy;
        if (d.class_weight_count != n.shape[0])
            return nnti_fail(logits.net, NNT_ERR_SHAPE, &n, "%d class weights for %d classes", d.class_weight_count, n.shape[0]);
        for (i = 0; i < n.shape[0]; i++)
            if (!nnti_finite(d.class_weights[i]) || d.class_weights[i] < 0)
                return nnti_fail(logits.net, NNT_ERR_ARGUMENT, &n, "the weight of class %d is %g; it must be finite and not negative", i, (double)d.class_weights[i]);
        size[0] = n.shape[0];
        n.weight = nnti_add_param(logits.net, NNTI_PARAM_CONSTANT, "", 1, size);
        if (n.weight < 0) return nnti_invalid(logits.net);
        copy = (float *)nnti_alloc(&logits.net->a, (size_t)n.shape[0] * sizeof *copy);
        if (!copy) { logits.net->param_count--; return nnti_out_of_memory(logits.net); }
        memcpy(copy, d.class_weights, (size_t)n.shape[0] * sizeof *copy);
        logits.net->params[n.weight].values = copy;
    }
    n.flops = 6.0 * n.shape[0];
    return nnti_finish(&n, &logits, 1);
}
NNT_API nnt_node nnt_cross_entropy(nnt_node logits)
{
    nnt_cross_entropy_desc d;
    memset(&d, 0, sizeof d);
    return nnt_cross_entropy_ex(logits, d);
}
NNT_API nnt_node nnt_mse(nnt_node x)
{
    nnti_node n;
    if (!nnti_draft(&n, NNTI_NODE_MSE, 0, &x, 1)) return nnti_invalid(x.net);
    n.flops = 3.0 * (double)nnti_volume(n.shape);
    return nnti_finish(&n, &x, 1);
}

/* ============================================================================
   >>schedule    Recomputation: which values are kept, which are made again, and where each lies in the arena
   Reads a chain of stages (steps with the values that they read and write), writes a schedule: the list of steps to
   execute, a storage for each value with its life and offset, and the exact peak. Knows nothing of nets or devices.
   ============================================================================ */

/* A step is one kernel call. A value is written by forward steps of its stage, or by backward steps if it is a
   gradient. Forward steps may be executed again (except ONCE ones), backward steps are executed once. Values named
   x, y, gy, gx are a stage's border: y of stage i is x of stage i + 1, gx of stage i + 1 is gy of stage i. The mask of
   a relu that ends a stage is applied by the next stage, so that a backward needs x, gy and inner values, never y. */
enum { NNTI_VX = 0, NNTI_VY, NNTI_VGY, NNTI_VGX, NNTI_VINNER };    /* value ids in a stage; inner ones count on */
enum { NNTI_NO_VALUE = -1 };
enum {
    NNTI_STEP_ONCE  = 1,    /* has an effect outside the arena (running statistics): in the first forward only */
    NNTI_STEP_HEAVY = 2     /* a convolution or the like: a range of tapes is never re-made through it */
};
enum {
    NNTI_TAKE_MUST    = 1,  /* the kernel works in place: a schedule in which the storage can't be taken is none */
    NNTI_WRITE_ALWAYS = 2   /* the kernel can't leave this result out when nobody wants it */
};
enum { NNTI_STEP_READS = 8, NNTI_STEP_WRITES = 4, NNTI_STAGE_ORDERS = 6, NNTI_TAPES = 256 };

typedef struct nnti_stage_step {
    const char *name;
    int     op;                         /* the lowering's own number of the op */
    int     flags;                      /* NNTI_STEP_... */
    int     reads, writes;
    int     read[NNTI_STEP_READS];
    int     write[NNTI_STEP_WRITES];    /* a value that is also read is updated: then take it, with NNTI_TAKE_MUST */
    int     take[NNTI_STEP_WRITES];     /* the value whose storage this result may take over, or NNTI_NO_VALUE */
    int     rule[NNTI_STEP_WRITES];     /* NNTI_TAKE_MUST, NNTI_WRITE_ALWAYS */
    int64_t workspace;                  /* bytes */
    double  flops, moved;               /* arithmetic; bytes of memory traffic */
} nnti_stage_step;

typedef struct nnti_stage_value {
    const char *name;
    int64_t bytes;
    int     tape;                       /* number among the values that may be kept from forward to backward, or -1 */
    int     keep;                       /* the user wants it kept */
    int     first_maker, last_maker;    /* forward steps that write it; first is -1 when none does */
    int     read_forward;               /* a forward step reads it */
} nnti_stage_value;

typedef struct nnti_stage {
    const char       *name;
    nnti_stage_value *value;
    nnti_stage_step  *step;             /* forward, then the backward's alternative orders one after another */
    size_t            value_cap, step_cap;
    int               values, steps, tapes;
    int               orders;
    int               order[NNTI_STAGE_ORDERS + 1];     /* where each order begins; order[0] is where forward ends */
    int               base;             /* the chain's number of inner value v is base + v */
} nnti_stage;

/* The last stage is the one with the loss: its forward and backward follow each other and nothing in it is re-made. */
typedef struct nnti_chain {
    nnt_allocator a;
    nnti_stage   *stage;
    size_t        stage_cap;
    int           stages;
    int           failed;               /* memory ran out while building */
} nnti_chain;

/* Sets of tapes of a stage. */
enum { NNTI_TAPE_WORDS = NNTI_TAPES / 64 };
typedef struct nnti_tapes { uint64_t word[NNTI_TAPE_WORDS]; } nnti_tapes;

static int nnti_tapes_has(const nnti_tapes *s, int tape)
{
    return tape >= 0 && (s->word[tape / 64] >> (tape % 64) & 1);
}
static void nnti_tapes_add(nnti_tapes *s, int tape) { s->word[tape / 64] |= (uint64_t)1 << (tape % 64); }
static int nnti_tapes_within(const nnti_tapes *s, const nnti_tapes *of)
{
    int i;
    for (i = 0; i < NNTI_TAPE_WORDS; i++) if (s->word[i] & ~of->word[i]) return 0;
    return 1;
}
static int nnti_tapes_equal(const nnti_tapes *a, const nnti_tapes *b) { return memcmp(a, b, sizeof *a) == 0; }
static nnti_tapes nnti_tapes_none(void)
{
    nnti_tapes s;
    memset(&s, 0, sizeof s);
    return s;
}

/* ---- building a chain: stage by stage, in a stage the values, the forward steps, then one or more backward orders */

static void nnti_chain_begin(nnti_chain *c, const nnt_allocator *a)
{
    memset(c, 0, sizeof *c);
    c->a = nnti_allocator(a);
}
static void nnti_chain_free(nnti_chain *c)
{
    int i;
    for (i = 0; i < c->stages; i++) {
        nnti_free(&c->a, c->stage[i].value, c->stage[i].value_cap * sizeof *c->stage[i].value);
        nnti_free(&c->a, c->stage[i].step, c->stage[i].step_cap * sizeof *c->stage[i].step);
    }
    nnti_free(&c->a, c->stage, c->stage_cap * sizeof *c->stage);
    c->stage = NULL;
    c->stage_cap = 0;
    c->stages = 0;
}
/* A value of the stage begun last; tape: it may be kept for the backward. Its id, 0 when memory is out. */
static int nnti_chain_value(nnti_chain *c, const char *name, int64_t bytes, int tape)
{
    nnti_stage *s;
    nnti_stage_value *v;
    if (c->failed) return 0;
    s = &c->stage[c->stages - 1];
    if (!nnti_grow(&c->a, (void **)&s->value, &s->value_cap, (size_t)s->values + 1, sizeof *s->value)) {
        c->failed = 1;
        return 0;
    }
    v = &s->value[s->values];
    v->name = name;
    v->bytes = bytes;
    v->tape = tape && s->tapes < NNTI_TAPES ? s->tapes++ : -1;
    v->keep = 0;
    v->first_maker = v->last_maker = -1;
    v->read_forward = 0;
    return s->values++;
}
/* x and y are bytes; y of the last stage is 0. */
static void nnti_chain_stage(nnti_chain *c, const char *name, int64_t x, int64_t y)
{
    nnti_stage *s;
    if (c->failed) return;
    if (!nnti_grow(&c->a, (void **)&c->stage, &c->stage_cap, (size_t)c->stages + 1, sizeof *c->stage)) {
        c->failed = 1;
        return;
    }
    s = &c->stage[c->stages++];
    memset(s, 0, sizeof *s);
    s->name = name;
    nnti_chain_value(c, "x", x, 0);
    nnti_chain_value(c, "y", y, 0);
    nnti_chain_value(c, "gy", y, 0);
    nnti_chain_value(c, "gx", x, 0);
}
/* What follows is the (next) order of the backward. */
static void nnti_chain_backward(nnti_chain *c)
{
    nnti_stage *s;
    if (c->failed) return;
    s = &c->stage[c->stages - 1];
    if (s->orders == NNTI_STAGE_ORDERS) { c->failed = 1; return; }
    s->order[s->orders++] = s->steps;
    s->order[s->orders] = s->steps;
}
static void nnti_chain_step(nnti_chain *c, const nnti_stage_step *step)
{
    nnti_stage *s;
    int i;
    if (c->failed) return;
    s = &c->stage[c->stages - 1];
    if (!nnti_grow(&c->a, (void **)&s->step, &s->step_cap, (size_t)s->steps + 1, sizeof *s->step)) {
        c->failed = 1;
        return;
    }
    s->step[s->steps] = *step;
    if (s->orders == 0) {
        for (i = 0; i < step->reads; i++) s->value[step->read[i]].read_forward = 1;
        for (i = 0; i < step->writes; i++) {
            nnti_stage_value *v = &s->value[step->write[i]];
            if (v->first_maker < 0) v->first_maker = s->steps;
            v->last_maker = s->steps;
        }
    }
    s->steps++;
    s->order[s->orders] = s->steps;
}
static nnti_stage_step nnti_step_begin(const char *name, int op, double flops, double moved)
{
    nnti_stage_step s;
    memset(&s, 0, sizeof s);
    s.name = name;
    s.op = op;
    s.flops = flops;
    s.moved = moved;
    return s;
}
static void nnti_step_reads(nnti_stage_step *s, int value) { s->read[s->reads++] = value; }
static void nnti_step_writes(nnti_stage_step *s, int value, int take, int rule)
{
    s->write[s->writes] = value;
    s->take[s->writes] = take;
    s->rule[s->writes++] = rule;
}

static int nnti_stage_forward_end(const nnti_stage *s) { return s->orders ? s->order[0] : s->steps; }
static int nnti_step_reads_value(const nnti_stage_step *s, int value)
{
    int i;
    for (i = 0; i < s->reads; i++) if (s->read[i] == value) return 1;
    return 0;
}
static int nnti_step_writes_value(const nnti_stage_step *s, int value)
{
    int i;
    for (i = 0; i < s->writes; i++) if (s->write[i] == value) return 1;
    return 0;
}

/* Checks the rules that the rest relies on, rounds all sizes up to `align`, numbers the values. */
static nnt_result nnti_chain_end(nnti_chain *c, size_t align, nnti_error *e)
{
    int i, k, w, base = 2 * (c->stages + 1) - NNTI_VINNER;
    if (c->failed) return nnti_set_error(e, NNT_ERR_MEMORY, "out of memory");
    if (c->stages == 0) return nnti_set_error(e, NNT_ERR_STATE, "schedule: a chain without stages");
    for (i = 0; i < c->stages; i++) {
        nnti_stage *s = &c->stage[i];
        int forward = nnti_stage_forward_end(s), last = i + 1 == c->stages;
        if (s->orders == 0) return nnti_set_error(e, NNT_ERR_STATE, "schedule: stage '%s' has no backward", s->name);
        if (!last && s->value[NNTI_VY].bytes != s[1].value[NNTI_VX].bytes)
            return nnti_set_error(e, NNT_ERR_STATE, "schedule: stage '%s' writes %I bytes and the next reads %I",
                                  s->name, s->value[NNTI_VY].bytes, s[1].value[NNTI_VX].bytes);
        if (!last && s->value[NNTI_VY].first_maker < 0)
            return nnti_set_error(e, NNT_ERR_STATE, "schedule: stage '%s' does not write its y", s->name);
        for (k = 0; k < s->steps; k++) {
            const nnti_stage_step *p = &s->step[k];
            for (w = 0; w < p->writes; w++) {
                int first = s->value[p->write[w]].first_maker;
                if (k >= forward && first >= 0)
                    return nnti_set_error(e, NNT_ERR_STATE,
                                          "schedule: backward step '%s' of stage '%s' writes a forward value",
                                          p->name, s->name);
                if (k < forward && k != first && !nnti_step_reads_value(p, p->write[w]))
                    return nnti_set_error(e, NNT_ERR_STATE,
                                          "schedule: step '%s' of stage '%s' writes a value again without "
                                          "reading it", p->name, s->name);
                if (k < forward && !last && (p->flags & NNTI_STEP_ONCE))
                    return nnti_set_error(e, NNT_ERR_STATE,
                                          "schedule: step '%s' of stage '%s' may not be repeated, so its "
                                          "results can't be re-made", p->name, s->name);
            }
        }
        s->base = base;
        base += s->values - NNTI_VINNER;
    }
    for (i = 0; i < c->stages; i++) {
        nnti_stage *s = &c->stage[i];
        for (k = 0; k < s->values; k++) s->value[k].bytes = (int64_t)nnti_round_up((size_t)s->value[k].bytes, align);
        for (k = 0; k < s->steps; k++)
            s->step[k].workspace = (int64_t)nnti_round_up((size_t)s->step[k].workspace, align);
    }
    return NNT_OK;
}

/* A value's number in the chain: x_0..x_L, g_0..g_L, then the stages' inner values. */
static int nnti_chain_number(const nnti_chain *c, int stage, int value)
{
    switch (value) {
    case NNTI_VX:  return stage;
    case NNTI_VY:  return stage + 1;
    case NNTI_VGX: return c->stages + 1 + stage;
    case NNTI_VGY: return c->stages + 2 + stage;
    default:       return c->stage[stage].base + value;
    }
}
static int nnti_chain_numbers(const nnti_chain *c)
{
    const nnti_stage *s = &c->stage[c->stages - 1];
    return s->base + s->values;
}

/* ---- schedules: lists of step executions */

enum { NNTI_FIRST = 0, NNTI_AGAIN, NNTI_BACKWARD };     /* a forward step's first execution, a later one; backward */
typedef struct nnti_call {
    int      stage, step;
    int      phase;
    unsigned dropped;                   /* bit w: result w is not wanted and has no storage */
} nnti_call;
typedef struct nnti_calls { nnti_call *call; size_t cap; int count; } nnti_calls;

static const nnti_stage_step *nnti_call_step(const nnti_chain *c, const nnti_call *k)
{
    return &c->stage[k->stage].step[k->step];
}

/* Writes calls. `have` says which values of the stage at hand exist: since before, or for the next step only. */
enum { NNTI_ABSENT = 0, NNTI_HELD, NNTI_PASSING };
typedef struct nnti_emitter {
    nnt_allocator     a;
    const nnti_chain *chain;
    nnti_calls        out;
    unsigned char    *have;
    int               have_cap;
} nnti_emitter;

static int nnti_emitter_begin(nnti_emitter *w, const nnt_allocator *a, const nnti_chain *c)
{
    int i;
    memset(w, 0, sizeof *w);
    w->a = *a;
    w->chain = c;
    for (i = 0; i < c->stages; i++) w->have_cap = nnti_max(w->have_cap, c->stage[i].values);
    w->have = (unsigned char *)nnti_alloc(a, (size_t)w->have_cap);
    return w->have != NULL;
}
static void nnti_calls_free(const nnt_allocator *a, nnti_calls *s)
{
    nnti_free(a, s->call, s->cap * sizeof *s->call);
    memset(s, 0, sizeof *s);
}
static void nnti_emitter_free(nnti_emitter *w)
{
    nnti_calls_free(&w->a, &w->out);
    nnti_free(&w->a, w->have, (size_t)w->have_cap);
}
static int nnti_add_call(nnti_emitter *w, int stage, int step, int phase, unsigned dropped)
{
    nnti_call *k;
    if (!nnti_grow(&w->a, (void **)&w->out.call, &w->out.cap, (size_t)w->out.count + 1, sizeof *k)) return 0;
    k = &w->out.call[w->out.count++];
    k->stage = stage;
    k->step = step;
    k->phase = phase;
    k->dropped = dropped;
    return 1;
}
/* A stage's forward. Of its inner values those in `tapes` are wanted later; NULL: all. */
static int nnti_calls_forward(nnti_emitter *w, int stage, const nnti_tapes *tapes, int phase)
{
    const nnti_stage *s = &w->chain->stage[stage];
    int k, i, end = nnti_stage_forward_end(s);
    for (k = 0; k < end; k++) {
        const nnti_stage_step *p = &s->step[k];
        unsigned dropped = 0;
        if (phase == NNTI_AGAIN && (p->flags & NNTI_STEP_ONCE)) continue;
        for (i = 0; tapes && i < p->writes; i++) {
            const nnti_stage_value *v = &s->value[p->write[i]];
            if (p->write[i] != NNTI_VY && !v->read_forward && !nnti_tapes_has(tapes, v->tape)
                && !(p->rule[i] & NNTI_WRITE_ALWAYS)) dropped |= 1u << i;
        }
        if (!nnti_add_call(w, stage, k, phase, dropped)) return 0;
    }
    return 1;
}
/* What is there when a stage's backward begins: x and the tapes. */
static void nnti_calls_have(nnti_emitter *w, const nnti_stage *s, const nnti_tapes *tapes)
{
    int v;
    for (v = 0; v < s->values; v++) {
        int there = v == NNTI_VX || (v >= NNTI_VINNER && nnti_tapes_has(tapes, s->value[v].tape));
        w->have[v] = there ? NNTI_HELD : NNTI_ABSENT;
    }
}
/* Makes a forward value again, with all that this needs. y is left out unless it is what is wanted. */
static int nnti_calls_make(nnti_emitter *w, int stage, int value, const nnti_tapes *held)
{
    const nnti_stage *s = &w->chain->stage[stage];
    const nnti_stage_value *v = &s->value[value];
    int k, i;
    if (w->have[value] != NNTI_ABSENT || v->first_maker < 0) return 1;
    for (k = v->first_maker; k <= v->last_maker; k++) {
        const nnti_stage_step *p = &s->step[k];
        unsigned dropped = 0;
        if (!nnti_step_writes_value(p, value)) continue;
        for (i = 0; i < p->reads; i++)
            if (p->read[i] != value && !nnti_calls_make(w, stage, p->read[i], held)) return 0;
        for (i = 0; i < p->writes; i++)
            if (p->write[i] == NNTI_VY && value != NNTI_VY && !(p->rule[i] & NNTI_WRITE_ALWAYS)) dropped |= 1u << i;
        if (!nnti_add_call(w, stage, k, NNTI_AGAIN, dropped)) return 0;
        for (i = 0; i < p->writes; i++)
            if (p->write[i] != NNTI_VY && p->write[i] != value)
                w->have[p->write[i]] = nnti_tapes_has(held, s->value[p->write[i]].tape) ? NNTI_HELD : NNTI_PASSING;
    }
    w->have[value] = nnti_tapes_has(held, v->tape) ? NNTI_HELD : NNTI_PASSING;
    return 1;
}
/* A stage's backward from x, gy and `tapes`. Values in `held` stay once they are made again, others are made again
   for each step that reads them. tapes NULL: everything is there. */
static int nnti_calls_backward(nnti_emitter *w, int stage, const nnti_tapes *tapes, const nnti_tapes *held, int order)
{
    const nnti_stage *s = &w->chain->stage[stage];
    int k, i, v;
    if (tapes) nnti_calls_have(w, s, tapes);
    for (k = s->order[order]; k < s->order[order + 1]; k++) {
        for (i = 0; tapes && i < s->step[k].reads; i++)
            if (!nnti_calls_make(w, stage, s->step[k].read[i], held)) return 0;
        if (!nnti_add_call(w, stage, k, NNTI_BACKWARD, 0)) return 0;
        for (v = 0; tapes && v < s->values; v++) if (w->have[v] == NNTI_PASSING) w->have[v] = NNTI_ABSENT;
    }
    return 1;
}
/* Makes y from x and the tapes, by those steps only that this needs. */
static int nnti_calls_remake(nnti_emitter *w, int stage, const nnti_tapes *tapes)
{
    const nnti_stage *s = &w->chain->stage[stage];
    nnti_tapes none = nnti_tapes_none();
    int first = w->out.count, k, j, i;
    nnti_calls_have(w, s, tapes);
    if (!nnti_calls_make(w, stage, NNTI_VY, &none)) return 0;
    for (k = first; k < w->out.count; k++) {
        const nnti_stage_step *p = nnti_call_step(w->chain, &w->out.call[k]);
        for (i = 0; i < p->writes; i++) {
            int wanted = p->write[i] == NNTI_VY || (p->rule[i] & NNTI_WRITE_ALWAYS);
            for (j = first; j < w->out.count && !wanted; j++)
                wanted = nnti_step_reads_value(nnti_call_step(w->chain, &w->out.call[j]), p->write[i]);
            if (!wanted) w->out.call[k].dropped |= 1u << i;
        }
    }
    return 1;
}

/* ---- liveness: a storage lives from the call that writes it to the last call that reads what it holds */

typedef struct nnti_storage {
    int64_t bytes, offset;
    int     first, last;                /* calls */
    int     value;                      /* number of the first value in it; NNTI_NO_VALUE: a workspace */
    int     stage, local;               /* the same value as its stage names it */
    int     phase;                      /* of the call that made it; NNTI_PRESENT */
} nnti_storage;
enum { NNTI_PRESENT = 3 };

typedef struct nnti_instance { int last, storage, old; } nnti_instance;     /* old: the instance to take over, or -1 */
typedef struct nnti_present { int value, local; int64_t bytes; } nnti_present;

typedef struct nnti_life {
    nnti_storage  *storage;  size_t storage_cap;  int storages;
    /* storage of each read, then each write; -1: dropped */
    int           *operand;  size_t operand_cap;  int operands;
    int           *first;    size_t first_cap;      /* of call t: where its operands begin */
    int           *scratch;  size_t scratch_cap;    /* of call t: storage of its workspace, -1: none */
    int64_t       *live;     size_t live_cap;       /* bytes at call t, workspace included */
    int           *current;  size_t current_cap;    /* of a value: its newest instance */
    nnti_instance *instance; size_t instance_cap; int instances;
    int64_t        peak;
    int            peak_call, joins;
    int            refused;                         /* a call whose in-place work is impossible, or -1 */
} nnti_life;

static void nnti_life_free(const nnt_allocator *a, nnti_life *f)
{
    nnti_free(a, f->storage, f->storage_cap * sizeof *f->storage);
    nnti_free(a, f->operand, f->operand_cap * sizeof *f->operand);
    nnti_free(a, f->first, f->first_cap * sizeof *f->first);
    nnti_free(a, f->scratch, f->scratch_cap * sizeof *f->scratch);
    nnti_free(a, f->live, f->live_cap * sizeof *f->live);
    nnti_free(a, f->current, f->current_cap * sizeof *f->current);
    nnti_free(a, f->instance, f->instance_cap * sizeof *f->instance);
    memset(f, 0, sizeof *f);
}
static int nnti_life_room(const nnt_allocator *a, nnti_life *f, int calls, int values, int present)
{
    size_t n = (size_t)calls + 1, ops = n * (NNTI_STEP_READS + NNTI_STEP_WRITES);
    size_t made = n * (NNTI_STEP_WRITES + 1) + (size_t)present;
    return nnti_grow(a, (void **)&f->storage, &f->storage_cap, made, sizeof *f->storage)
        && nnti_grow(a, (void **)&f->operand, &f->operand_cap, ops, sizeof *f->operand)
        && nnti_grow(a, (void **)&f->first, &f->first_cap, n, sizeof *f->first)
        && nnti_grow(a, (void **)&f->scratch, &f->scratch_cap, n, sizeof *f->scratch)
        && nnti_grow(a, (void **)&f->live, &f->live_cap, n + 1, sizeof *f->live)
        && nnti_grow(a, (void **)&f->current, &f->current_cap, (size_t)values, sizeof *f->current)
        && nnti_grow(a, (void **)&f->instance, &f->instance_cap, made, sizeof *f->instance);
}
static int nnti_life_instance(nnti_life *f, int last, int old)
{
    nnti_instance *i = &f->instance[f->instances];
    i->last = last;
    i->storage = -1;
    i->old = old;
    return f->instances++;
}
static int nnti_life_storage(nnti_life *f, int64_t bytes, int first, int last, int value, int stage, int local,
                             int phase)
{
    nnti_storage *s = &f->storage[f->storages];
    s->bytes = bytes;
    s->offset = 0;
    s->first = first;
    s->last = last;
    s->value = value;
    s->stage = stage;
    s->local = local;
    s->phase = phase;
    return f->storages++;
}
/* Pass 1: which instance each operand means, and the last call that reads it. */
static nnt_result nnti_life_instances(nnti_life *f, const nnti_chain *c, const nnti_calls *calls)
{
    int t, i, made[NNTI_STEP_WRITES];
    for (t = 0; t < calls->count; t++) {
        const nnti_call *k = &calls->call[t];
        const nnti_stage_step *p = nnti_call_step(c, k);
        f->first[t] = f->operands;
        for (i = 0; i < p->reads; i++) {
            int found = f->current[nnti_chain_number(c, k->stage, p->read[i])];
            if (found < 0) return NNT_ERR_STATE;        /* read before it is written */
            f->instance[found].last = t;
            f->operand[f->operands++] = found;
        }
        for (i = 0; i < p->writes; i++) {
            int take = p->take[i];
            made[i] = k->dropped >> i & 1 ? -1 : nnti_life_instance(f, t,
                take == NNTI_NO_VALUE ? -1 : f->current[nnti_chain_number(c, k->stage, take)]);
            f->operand[f->operands++] = made[i];
        }
        for (i = 0; i < p->writes; i++)
            if (made[i] >= 0) f->current[nnti_chain_number(c, k->stage, p->write[i])] = made[i];
    }
    return NNT_OK;
}
/* Pass 2: storages. A result takes over the old value's storage when this call is the last that needs it and the sizes
   are equal: a small value in a large storage would occupy more than the planner, looking at single stages, counts. */
static void nnti_life_storages(nnti_life *f, const nnti_chain *c, const nnti_calls *calls)
{
    int t, i, j;
    for (t = 0; t < calls->count; t++) {
        const nnti_call *k = &calls->call[t];
        const nnti_stage_step *p = nnti_call_step(c, k);
        const int *made = f->operand + f->first[t] + p->reads;
        for (i = 0; i < p->writes; i++) {
            const nnti_stage_value *v = &c->stage[k->stage].value[p->write[i]];
            nnti_instance *n;
            int take = -1;
            if (made[i] < 0) continue;
            n = &f->instance[made[i]];
            if (n->old >= 0 && f->instance[n->old].last == t) take = f->instance[n->old].storage;
            if (take >= 0 && (f->storage[take].last != t || f->storage[take].bytes != v->bytes)) take = -1;
            for (j = 0; j < i && take >= 0; j++)
                if (made[j] >= 0 && f->instance[made[j]].storage == take) take = -1;
            if (take >= 0) {
                f->storage[take].last = n->last;
                f->joins++;
            } else {
                if (p->rule[i] & NNTI_TAKE_MUST) f->refused = t;
                take = nnti_life_storage(f, v->bytes, t, n->last, nnti_chain_number(c, k->stage, p->write[i]), k->stage,
                                         p->write[i], k->phase);
            }
            n->storage = take;
        }
    }
}
/* What a list of calls needs. `present` values exist before it, `wanted` ones (numbers; -1: none) must outlast it. */
static nnt_result nnti_simulate(const nnt_allocator *a, nnti_life *f, const nnti_chain *c, const nnti_calls *calls,
                                const nnti_present *present, int presents, const int *wanted, int wanteds)
{
    int t, i, end = calls->count;
    nnt_result r;
    f->refused = -1;
    if (!nnti_life_room(a, f, end, nnti_chain_numbers(c), presents)) return NNT_ERR_MEMORY;
    f->storages = f->operands = f->instances = f->joins = 0;
    for (i = 0; i < nnti_chain_numbers(c); i++) f->current[i] = -1;
    for (i = 0; i < presents; i++) f->current[present[i].value] = nnti_life_instance(f, -1, -1);
    r = nnti_life_instances(f, c, calls);
    if (r) return r;
    f->first[end] = f->operands;
    for (i = 0; i < wanteds; i++)
        if (wanted[i] >= 0 && f->current[wanted[i]] >= 0) f->instance[f->current[wanted[i]]].last = end;
    for (i = 0; i < presents; i++)
        f->instance[i].storage = nnti_life_storage(f, present[i].bytes, 0, nnti_max(0, f->instance[i].last),
                                                   present[i].value, 0, present[i].local, NNTI_PRESENT);
    nnti_life_storages(f, c, calls);
    for (i = 0; i < f->operands; i++) if (f->operand[i] >= 0) f->operand[i] = f->instance[f->operand[i]].storage;
    memset(f->live, 0, ((size_t)end + 1) * sizeof *f->live);
    for (i = 0; i < f->storages; i++) {
        nnti_storage *s = &f->storage[i];
        s->last = nnti_min(s->last, end - 1);
        f->live[s->first] += s->bytes;
        f->live[s->last + 1] -= s->bytes;
    }
    f->peak = 0;
    f->peak_call = 0;
    for (t = 1; t < end; t++) f->live[t] += f->live[t - 1];
    for (t = 0; t < end; t++) {
        f->live[t] += nnti_call_step(c, &calls->call[t])->workspace;
        if (f->live[t] > f->peak) { f->peak = f->live[t]; f->peak_call = t; }
    }
    return NNT_OK;
}
/* Workspaces become storages that live for one call. */
static void nnti_life_workspaces(nnti_life *f, const nnti_chain *c, const nnti_calls *calls)
{
    int t;
    for (t = 0; t < calls->count; t++) {
        const nnti_call *k = &calls->call[t];
        int64_t bytes = nnti_call_step(c, k)->workspace;
        f->scratch[t] = -1;
        if (bytes) f->scratch[t] = nnti_life_storage(f, bytes, t, t, NNTI_NO_VALUE, k->stage, NNTI_NO_VALUE, k->phase);
    }
}

/* ---- packing: storages to offsets. Greedy in five orders and with two ways to choose a gap; the best result counts.
   Pisarchyk and Lee 2020, arXiv 2001.03288, with restarts. */

enum { NNTI_PACK_SIZE = 0, NNTI_PACK_AREA, NNTI_PACK_LENGTH, NNTI_PACK_START, NNTI_PACK_LAST, NNTI_PACK_ORDERS };
typedef struct nnti_pack_key { int64_t k1, k2; int index; } nnti_pack_key;

static int nnti_pack_compare(const void *a, const void *b)
{
    const nnti_pack_key *x = (const nnti_pack_key *)a, *y = (const nnti_pack_key *)b;
    if (x->k1 != y->k1) return x->k1 < y->k1 ? -1 : 1;
    if (x->k2 != y->k2) return x->k2 < y->k2 ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}
static void nnti_pack_sort(nnti_pack_key *key, const nnti_storage *s, int count, int order)
{
    int i;
    for (i = 0; i < count; i++) {
        int64_t bytes = s[i].bytes, length = s[i].last - s[i].first + 1;
        key[i].index = i;
        key[i].k2 = s[i].first;
        switch (order) {
        case NNTI_PACK_SIZE:   key[i].k1 = -bytes; break;
        case NNTI_PACK_AREA:   key[i].k1 = -bytes * length; key[i].k2 = 0; break;
        case NNTI_PACK_LENGTH: key[i].k1 = -length; key[i].k2 = -bytes; break;
        case NNTI_PACK_START:  key[i].k1 = s[i].first; key[i].k2 = -s[i].last; break;
        default:               key[i].k1 = -s[i].last; break;
        }
    }
    qsort(key, (size_t)count, sizeof *key, nnti_pack_compare);
}
/* Places storages one by one, in the lowest gap or in the tightest. `placed` is kept in the order of offsets. */
static int64_t nnti_pack_place(nnti_storage *s, const nnti_pack_key *key, int count, int *placed, int tightest)
{
    int64_t top = 0;
    int i, j, n = 0;
    for (i = 0; i < count; i++) {
        nnti_storage *b = &s[key[i].index];
        int64_t at = 0, best = -1, best_gap = 0;
        b->offset = 0;
        if (b->bytes == 0) continue;
        for (j = 0; j < n; j++) {
            const nnti_storage *o = &s[placed[j]];
            if (o->last < b->first || o->first > b->last) continue;
            if (o->offset - at >= b->bytes && (best < 0 || o->offset - at < best_gap)) {
                best = at;
                best_gap = o->offset - at;
                if (!tightest) break;
            }
            at = nnti_max64(at, o->offset + o->bytes);
        }
        b->offset = best >= 0 ? best : at;
        for (j = n++; j > 0 && s[placed[j - 1]].offset > b->offset; j--) placed[j] = placed[j - 1];
        placed[j] = key[i].index;
        top = nnti_max64(top, b->offset + b->bytes);
    }
    return top;
}
/* No arena can be smaller than what lives at one call. */
static nnt_result nnti_pack_bound(const nnt_allocator *a, const nnti_storage *s, int count, int64_t *bound)
{
    int i, end = 0;
    int64_t *d, sum = 0;
    for (i = 0; i < count; i++) end = nnti_max(end, s[i].last + 1);
    d = (int64_t *)nnti_zalloc(a, (size_t)end + 1, sizeof *d);
    if (!d) return NNT_ERR_MEMORY;
    for (i = 0; i < count; i++) { d[s[i].first] += s[i].bytes; d[s[i].last + 1] -= s[i].bytes; }
    *bound = 0;
    for (i = 0; i < end; i++) { sum += d[i]; *bound = nnti_max64(*bound, sum); }
    nnti_free(a, d, ((size_t)end + 1) * sizeof *d);
    return NNT_OK;
}
/* Gives every storage its offset. *arena is at least *bound; offsets are sums of sizes, so aligned as these are. */
static nnt_result nnti_pack(const nnt_allocator *a, nnti_storage *s, int count, int64_t *arena, int64_t *bound)
{
    size_t n = (size_t)nnti_max(1, count);
    nnti_pack_key *key = (nnti_pack_key *)nnti_zalloc(a, n, sizeof *key);
    int *placed = (int *)nnti_zalloc(a, n, sizeof *placed);
    int64_t *best = (int64_t *)nnti_zalloc(a, n, sizeof *best);
    nnt_result r = key && placed && best ? nnti_pack_bound(a, s, count, bound) : NNT_ERR_MEMORY;
    int order, tightest, i;
    *arena = -1;
    for (order = 0; !r && order < NNTI_PACK_ORDERS && *arena != *bound; order++) {
        nnti_pack_sort(key, s, count, order);
        for (tightest = 0; tightest < 2 && *arena != *bound; tightest++) {
            int64_t top = nnti_pack_place(s, key, count, placed, tightest);
            if (*arena >= 0 && top >= *arena) continue;
            *arena = top;
            for (i = 0; i < count; i++) best[i] = s[i].offset;
        }
    }
    if (!r) for (i = 0; i < count; i++) s[i].offset = best[i];
    nnti_free(a, key, n * sizeof *key);
    nnti_free(a, placed, n * sizeof *placed);
    nnti_free(a, best, n * sizeof *best);
    return r;
}

/* ---- options of a stage: what to keep for its backward, and in which order to run it. Found by simulation. */

typedef struct nnti_option {
    nnti_tapes tapes, held;             /* kept from forward; stay once there in backward */
    int        order;
    int64_t    tape;                    /* bytes of tapes */
    int64_t    forward_peak, backward_peak;     /* x and the tapes included, gy only in the second */
    double     extra;                   /* work made again in the backward */
} nnti_option;

/* Tapes from which y is made without a heavy step, for ranges of stages that drop their outputs. Level 0 keeps
   the results of all heavy steps, level 1 only those that y needs. */
typedef struct nnti_level {
    int        exists, alone;           /* alone: making y does not need x */
    nnti_tapes tapes;
    int64_t    tape;
    int64_t    forward_held, forward_free, remake_held, remake_free;    /* peaks; x stays, x goes after its last use */
    double     work;                    /* of making y */
    int        option, options;
} nnti_level;
enum { NNTI_LEVELS = 2 };

typedef struct nnti_profile {
    double     work;                    /* of a repeated forward */
    int64_t    forward_held, forward_free;
    int        option, options;         /* the Pareto set in work, tape and both peaks */
    nnti_level level[NNTI_LEVELS];
} nnti_profile;

/* ---- the planner: for each range of stages (a, b) the Pareto front of peak and work for "x_a and g_b are there, make
   g_a". Choices of a range: */

enum {
    NNTI_WAY_BACKWARD = 0,  /* one stage: its backward by option `at`; of the last stage forward, loss and backward */
    NNTI_WAY_TAPE,          /* forward of the first stage with option `at`'s tapes, the rest, its backward */
    NNTI_WAY_SWEEP,         /* forward to x_at keeping nothing, (at, b), then (a, at) */
    NNTI_WAY_RANGE,         /* forward to x_at keeping the level's tapes but no outputs, (at, b), then taped (a, at) */
    NNTI_WAY_REMAKE         /* of a taped range: make x_at from tapes, taped (at, b), taped (a, at) */
};
/* first, second: the parts' own choice */
typedef struct nnti_choice { int kind, level, at, first, second; } nnti_choice;

/* A way with its numbers: peak = max(least, held + peak of first part, peak of second), work likewise a sum. */
typedef struct nnti_way {
    int     kind, level, at;
    int64_t least, held;
    double  work;
    int     first, second;              /* ranges as nnti_range numbers them, -1: no such part */
} nnti_way;
typedef int (*nnti_take_way)(void *arg, const nnti_way *w);     /* 0: out of memory */

typedef struct nnti_point { int64_t peak; double work; nnti_choice choice; } nnti_point;
typedef struct nnti_front { int first, count; } nnti_front;

enum { NNTI_FRONT_CAP = 400 };          /* a front is thinned to so many points: options are lost, never correctness */
enum { NNTI_EXACT_STAGES = 64 };        /* longer chains are planned on a budget cut in slots */
enum { NNTI_SLOTS = 192, NNTI_SLOTS_LONG = 128, NNTI_LONG_STAGES = 128 };      /* fewer for very long chains */

typedef struct nnti_planner {
    nnt_allocator     a;
    const nnti_chain *chain;
    double            moved_work;       /* work = flops + this * bytes moved */
    int               isa;
    int               exact;            /* fronts hold all answers; else only the least memory is known before asking */
    int               levels;           /* 0, 1 or 2 */
    double           *before;           /* work of one forward of stages 0 .. i-1, once-only steps left out */
    double            once_work, backward_work;
    nnti_profile     *profile;          /* distinct ones */
    int              *profile_of;       /* of stage i */
    int               profiles;
    nnti_option      *option;  size_t option_cap;  int options;
    nnti_option      *trial;   size_t trial_cap;   int trials;      /* of the stage at hand, before the Pareto filter */
    nnti_emitter      emitter;
    nnti_life         life;
    int               cap;
    nnti_front       *front;            /* by range; also without points once slots are used */
    nnti_point       *point;   size_t point_cap;   int points;
    nnti_point       *here;    size_t here_cap;    int heres;       /* front of the range at hand */
    nnti_point       *stair;   size_t stair_cap;   int stairs;
    nnti_point       *spare;   size_t spare_cap;
    /* by range: least work within 0 .. slots slots, as a share of all forward work */
    float            *slot;
    int              *lowest;           /* by range: first slot that is possible */
    float            *cheapest;         /* by range: work in all slots; beside the rows, for the cache's sake */
    size_t            slot_cells;
    int               slots;
    int64_t           unit;             /* bytes of a slot */
} nnti_planner;

static const nnti_profile *nnti_profile_at(const nnti_planner *p, int stage)
{
    return &p->profile[p->profile_of[stage]];
}
static int64_t nnti_x_bytes(const nnti_planner *p, int cut)
{
    return cut < p->chain->stages ? p->chain->stage[cut].value[NNTI_VX].bytes : 0;
}
static int64_t nnti_g_bytes(const nnti_planner *p, int cut) { return nnti_x_bytes(p, cut); }    /* of the same shape */
static double nnti_step_work(const nnti_planner *p, const nnti_stage_step *s)
{
    return s->flops + p->moved_work * s->moved;
}

/* Ranges 0 <= a < b <= stages, untaped (level -1) and taped ones, in rows of equal a. */
static int nnti_ranges(const nnti_planner *p) { return p->chain->stages * (p->chain->stages + 1) / 2; }
static int nnti_range(const nnti_planner *p, int level, int a, int b)
{
    return (level + 1) * nnti_ranges(p) + a * p->chain->stages - a * (a - 1) / 2 + b - a - 1;
}

static int nnti_present_add(nnti_present *present, int count, const nnti_chain *one, int value)
{
    present[count].value = nnti_chain_number(one, 0, value);
    present[count].local = value;
    present[count].bytes = one->stage[0].value[value].bytes;
    return count + 1;
}
typedef struct nnti_border { int x_there, g_there, x_stays; const nnti_tapes *there, *stay; } nnti_border;

/* Bytes at the worst call of what the emitter holds, on a chain that has only this stage. */
static nnt_result nnti_stage_peak(nnti_planner *p, const nnti_chain *one, const nnti_border *b, int64_t *peak)
{
    const nnti_stage *s = &one->stage[0];
    nnti_present present[2 + NNTI_TAPES];
    int wanted[3 + NNTI_TAPES], presents = 0, wanteds = 0, v;
    nnt_result r;
    if (b->x_there) presents = nnti_present_add(present, presents, one, NNTI_VX);
    if (b->g_there) presents = nnti_present_add(present, presents, one, NNTI_VGY);
    for (v = NNTI_VINNER; v < s->values; v++) {
        if (b->there && nnti_tapes_has(b->there, s->value[v].tape))
            presents = nnti_present_add(present, presents, one, v);
        if (b->stay && nnti_tapes_has(b->stay, s->value[v].tape)) wanted[wanteds++] = s->base + v;
    }
    if (b->x_stays) wanted[wanteds++] = nnti_chain_number(one, 0, NNTI_VX);
    wanted[wanteds++] = b->g_there ? -1 : nnti_chain_number(one, 0, NNTI_VY);
    wanted[wanteds++] = nnti_chain_number(one, 0, NNTI_VGX);
    r = nnti_simulate(&p->a, &p->life, one, &p->emitter.out, present, presents, wanted, wanteds);
    *peak = p->life.peak;
    return r;
}
static double nnti_calls_again(const nnti_planner *p, const nnti_chain *c, const nnti_calls *s)
{
    double sum = 0;
    int i;
    for (i = 0; i < s->count; i++)
        if (s->call[i].phase == NNTI_AGAIN) sum += nnti_step_work(p, nnti_call_step(c, &s->call[i]));
    return sum;
}
static int64_t nnti_tapes_bytes(const nnti_stage *s, const nnti_tapes *t)
{
    int64_t sum = 0;
    int v;
    for (v = NNTI_VINNER; v < s->values; v++) if (nnti_tapes_has(t, s->value[v].tape)) sum += s->value[v].bytes;
    return sum;
}
static nnt_result nnti_forward_peak(nnti_planner *p, const nnti_chain *one, const nnti_tapes *tapes, int x_stays,
                                    int64_t *peak)
{
    nnti_border b;
    memset(&b, 0, sizeof b);
    b.x_there = 1;
    b.x_stays = x_stays;
    b.stay = tapes;
    p->emitter.out.count = 0;
    if (!nnti_calls_forward(&p->emitter, 0, tapes, NNTI_FIRST)) return NNT_ERR_MEMORY;
    return nnti_stage_peak(p, one, &b, peak);
}
/* Adds the option that keeps `tapes`, and holds the values of `more` once they are made again, in every order. */
static nnt_result nnti_try_option(nnti_planner *p, const nnti_chain *one, const nnti_tapes *tapes,
                                  const nnti_tapes *more, int64_t forward_peak)
{
    const nnti_stage *s = &one->stage[0];
    nnti_border b;
    nnti_option o;
    int i, k, n;
    memset(&b, 0, sizeof b);
    b.x_there = b.g_there = 1;
    b.there = tapes;
    memset(&o, 0, sizeof o);
    o.tapes = o.held = *tapes;
    for (i = 0; i < NNTI_TAPE_WORDS; i++) o.held.word[i] |= more->word[i];
    o.tape = nnti_tapes_bytes(s, tapes);
    o.forward_peak = forward_peak;
    for (o.order = 0; o.order < s->orders; o.order++) {
        nnti_tapes made = nnti_tapes_none();
        nnt_result r;
        p->emitter.out.count = 0;
        if (!nnti_calls_backward(&p->emitter, 0, tapes, &o.held, o.order)) return NNT_ERR_MEMORY;
        for (k = 0; k < p->emitter.out.count; k++) {
            const nnti_stage_step *c = nnti_call_step(one, &p->emitter.out.call[k]);
            for (n = 0; n < c->writes; n++)
                if (s->value[c->write[n]].tape >= 0) nnti_tapes_add(&made, s->value[c->write[n]].tape);
        }
        if (!nnti_tapes_within(more, &made)) continue;         /* the same as a smaller `more` */
        r = nnti_stage_peak(p, one, &b, &o.backward_peak);
        if (r) return r;
        if (p->life.refused >= 0) continue;
        o.extra = nnti_calls_again(p, one, &p->emitter.out);
        if (!nnti_grow(&p->a, (void **)&p->trial, &p->trial_cap, (size_t)p->trials + 1, sizeof o))
            return NNT_ERR_MEMORY;
        p->trial[p->trials++] = o;
    }
    return NNT_OK;
}
static nnti_tapes nnti_tapes_of_bits(unsigned bits)
{
    nnti_tapes s = nnti_tapes_none();
    s.word[0] = bits;
    return s;
}
/* All pairs of kept and held values of a stage with few of them. */
static nnt_result nnti_try_all(nnti_planner *p, const nnti_chain *one)
{
    unsigned all = (1u << one->stage[0].tapes) - 1, keep, more;
    nnt_result r = NNT_OK;
    for (keep = 0; keep <= all && !r; keep++) {
        nnti_tapes tapes = nnti_tapes_of_bits(keep);
        int64_t peak;
        r = nnti_forward_peak(p, one, &tapes, 1, &peak);
        if (p->life.refused >= 0) continue;            /* a step in place needs a value that these tapes hold */
        for (more = all & ~keep; !r; more = (more - 1) & all & ~keep) {
            nnti_tapes rest = nnti_tapes_of_bits(more);
            r = nnti_try_option(p, one, &tapes, &rest, peak);
            if (more == 0) break;
        }
    }
    return r;
}
/* With many values: drop them one after another, those first whose bytes cost the least work to make again. */
static nnt_result nnti_try_greedy(nnti_planner *p, const nnti_chain *one)
{
    const nnti_stage *s = &one->stage[0];
    const nnti_tapes none = nnti_tapes_none();
    nnti_tapes tapes = none, dropped = none, light = none;
    nnt_result r = NNT_OK;
    int v, n;
    for (v = NNTI_VINNER; v < s->values; v++) if (s->value[v].tape >= 0) nnti_tapes_add(&tapes, s->value[v].tape);
    for (n = 0; n <= s->tapes && !r; n++) {
        int best = -1;
        double best_rate = 0;
        int64_t peak;
        int possible;
        r = nnti_forward_peak(p, one, &tapes, 1, &peak);
        possible = p->life.refused < 0;
        if (!r && possible) r = nnti_try_option(p, one, &tapes, &dropped, peak);
        if (!r && possible && n) r = nnti_try_option(p, one, &tapes, &light, peak);
        if (!r && possible && n) r = nnti_try_option(p, one, &tapes, &none, peak);
        for (v = NNTI_VINNER; v < s->values; v++) {
            const nnti_stage_value *q = &s->value[v];
            double rate = 0;
            int k;
            if (!nnti_tapes_has(&tapes, q->tape) || q->first_maker < 0) continue;
            for (k = q->first_maker; k <= q->last_maker; k++)
                if (nnti_step_writes_value(&s->step[k], v)) rate += nnti_step_work(p, &s->step[k]);
            rate /= (double)nnti_max64(1, q->bytes);
            if (best < 0 || rate < best_rate) { best = v; best_rate = rate; }
        }
        if (best < 0) break;
        tapes.word[s->value[best].tape / 64] &= ~((uint64_t)1 << (s->value[best].tape % 64));
        nnti_tapes_add(&dropped, s->value[best].tape);
        if (s->step[s->value[best].last_maker].flags & NNTI_STEP_HEAVY) nnti_tapes_add(&light, s->value[best].tape);
    }
    return r;
}
static int nnti_option_compare(const void *a, const void *b)
{
    const nnti_option *x = (const nnti_option *)a, *y = (const nnti_option *)b;
    if (x->extra < y->extra || x->extra > y->extra) return x->extra < y->extra ? -1 : 1;
    if (x->tape != y->tape) return x->tape < y->tape ? -1 : 1;
    if (x->backward_peak != y->backward_peak) return x->backward_peak < y->backward_peak ? -1 : 1;
    if (x->forward_peak != y->forward_peak) return x->forward_peak < y->forward_peak ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return memcmp(&x->tapes, &y->tapes, 2 * sizeof x->tapes);
}
static int nnti_option_beats(const nnti_option *x, const nnti_option *y)
{
    return x->extra <= y->extra && x->tape <= y->tape && x->backward_peak <= y->backward_peak
        && x->forward_peak <= y->forward_peak;
}
/* From the sorted trials to the planner's list: the Pareto set of those with exactly these tapes (NULL: of all). */
static nnt_result nnti_filter_options(nnti_planner *p, const nnti_tapes *tapes, int *first, int *count)
{
    int i, k;
    *first = p->options;
    for (i = 0; i < p->trials; i++) {
        const nnti_option *o = &p->trial[i];
        if (tapes && !nnti_tapes_equal(&o->tapes, tapes)) continue;
        for (k = *first; k < p->options && !nnti_option_beats(&p->option[k], o); k++) { }
        if (k < p->options) continue;
        if (!nnti_grow(&p->a, (void **)&p->option, &p->option_cap, (size_t)p->options + 1, sizeof *o))
            return NNT_ERR_MEMORY;
        p->option[p->options++] = *o;
    }
    *count = p->options - *first;
    return NNT_OK;
}
/* Adds to `t` the results of heavy steps that making `value` without these steps needs; 0 when one can't be kept. */
static int nnti_level_needs(const nnti_stage *s, int value, nnti_tapes *t)
{
    const nnti_stage_value *v = &s->value[value];
    int k, i;
    if (value == NNTI_VX || nnti_tapes_has(t, v->tape)) return 1;
    for (k = v->first_maker; k <= v->last_maker; k++) {
        if (k < 0) return 0;
        if (!nnti_step_writes_value(&s->step[k], value)) continue;
        if (s->step[k].flags & NNTI_STEP_HEAVY) {
            if (v->tape < 0) return 0;
            nnti_tapes_add(t, v->tape);
            return 1;
        }
        for (i = 0; i < s->step[k].reads; i++)
            if (s->step[k].read[i] != value && !nnti_level_needs(s, s->step[k].read[i], t)) return 0;
    }
    return 1;
}
static nnt_result nnti_profile_level(nnti_planner *p, const nnti_chain *one, int number, nnti_level *l)
{
    const nnti_stage *s = &one->stage[0];
    nnti_border b;
    nnt_result r;
    int v, k;
    memset(l, 0, sizeof *l);
    if (!nnti_level_needs(s, NNTI_VY, &l->tapes)) return NNT_OK;
    for (v = NNTI_VINNER; v < s->values && number == 0; v++) {
        const nnti_stage_value *q = &s->value[v];
        if (q->tape >= 0 && q->first_maker >= 0 && (s->step[q->last_maker].flags & NNTI_STEP_HEAVY))
            nnti_tapes_add(&l->tapes, q->tape);
    }
    l->tape = nnti_tapes_bytes(s, &l->tapes);
    if (l->tape == 0) return NNT_OK;                /* a stage without heavy steps: nothing to hold on to */
    r = nnti_filter_options(p, &l->tapes, &l->option, &l->options);
    if (r || l->options == 0) return r;
    p->emitter.out.count = 0;
    if (!nnti_calls_remake(&p->emitter, 0, &l->tapes)) return NNT_ERR_MEMORY;
    l->work = nnti_calls_again(p, one, &p->emitter.out);
    l->alone = 1;
    for (k = 0; k < p->emitter.out.count; k++)
        if (nnti_step_reads_value(nnti_call_step(one, &p->emitter.out.call[k]), NNTI_VX)) l->alone = 0;
    memset(&b, 0, sizeof b);
    b.there = b.stay = &l->tapes;
    b.x_there = b.x_stays = 1;
    r = nnti_stage_peak(p, one, &b, &l->remake_held);
    b.x_there = !l->alone;
    b.x_stays = 0;
    if (!r && p->life.refused >= 0) return NNT_OK;
    if (!r) r = nnti_stage_peak(p, one, &b, &l->remake_free);
    if (!r) r = nnti_forward_peak(p, one, &l->tapes, 1, &l->forward_held);
    if (!r) r = nnti_forward_peak(p, one, &l->tapes, 0, &l->forward_free);
    l->exists = !r;
    return r;
}
static nnt_result nnti_profile_last(nnti_planner *p, const nnti_chain *one, nnti_profile *f)
{
    nnti_border b;
    nnti_option o;
    nnt_result r;
    memset(&b, 0, sizeof b);
    memset(&o, 0, sizeof o);
    b.x_there = 1;
    p->emitter.out.count = 0;
    if (!nnti_calls_forward(&p->emitter, 0, NULL, NNTI_FIRST)
        || !nnti_calls_backward(&p->emitter, 0, NULL, NULL, 0)
        || !nnti_grow(&p->a, (void **)&p->option, &p->option_cap, (size_t)p->options + 1, sizeof o))
        return NNT_ERR_MEMORY;
    r = nnti_stage_peak(p, one, &b, &o.backward_peak);
    f->option = p->options;
    f->options = 1;
    p->option[p->options++] = o;
    return r ? r : p->life.refused >= 0 ? NNT_ERR_STATE : NNT_OK;
}
static nnt_result nnti_profile_stage(nnti_planner *p, int stage, nnti_profile *f)
{
    nnti_chain one = *p->chain;
    nnti_stage s = p->chain->stage[stage];
    nnti_tapes none = nnti_tapes_none();
    double pairs = s.orders;
    nnt_result r;
    int i;
    memset(f, 0, sizeof *f);
    s.base = 0;                         /* x0 x1 g0 g1 and the inner values, which start at 4 too */
    one.stage = &s;
    one.stages = 1;
    p->emitter.chain = &one;
    for (i = 0; i < nnti_stage_forward_end(&s); i++)
        if (!(s.step[i].flags & NNTI_STEP_ONCE)) f->work += nnti_step_work(p, &s.step[i]);
    if (stage + 1 == p->chain->stages) {
        r = nnti_profile_last(p, &one, f);
    } else {
        for (i = 0; i < s.tapes && pairs < 1e6; i++) pairs *= 3;
        p->trials = 0;
        r = nnti_forward_peak(p, &one, &none, 1, &f->forward_held);
        if (!r) r = nnti_forward_peak(p, &one, &none, 0, &f->forward_free);
        if (!r) r = pairs < 2500 ? nnti_try_all(p, &one) : nnti_try_greedy(p, &one);
        if (!r && p->trials) qsort(p->trial, (size_t)p->trials, sizeof *p->trial, nnti_option_compare);
        if (!r) r = nnti_filter_options(p, NULL, &f->option, &f->options);
        for (i = 0; i < NNTI_LEVELS && !r; i++) r = nnti_profile_level(p, &one, i, &f->level[i]);
    }
    p->emitter.chain = p->chain;
    return r;
}
static int nnti_steps_alike(const nnti_stage_step *x, const nnti_stage_step *y)
{
    return x->flags == y->flags && x->reads == y->reads && x->writes == y->writes && x->workspace == y->workspace
        && memcmp(x->read, y->read, sizeof x->read) == 0 && memcmp(x->write, y->write, sizeof x->write) == 0
        && memcmp(x->take, y->take, sizeof x->take) == 0 && memcmp(x->rule, y->rule, sizeof x->rule) == 0
        && !(x->flops < y->flops) && !(x->flops > y->flops) && !(x->moved < y->moved) && !(x->moved > y->moved);
}
static int nnti_stages_alike(const nnti_stage *x, const nnti_stage *y)
{
    int i;
    if (x->values != y->values || x->steps != y->steps || x->orders != y->orders) return 0;
    if (memcmp(x->order, y->order, sizeof x->order)) return 0;
    for (i = 0; i < x->values; i++)
        if (x->value[i].bytes != y->value[i].bytes || x->value[i].tape != y->value[i].tape) return 0;
    for (i = 0; i < x->steps; i++) if (!nnti_steps_alike(&x->step[i], &y->step[i])) return 0;
    return 1;
}
/* Profiles of all stages; alike ones share theirs. */
static nnt_result nnti_profile_all(nnti_planner *p)
{
    const nnti_chain *c = p->chain;
    int i, k, n;
    p->before[0] = 0;
    for (i = 0; i < c->stages; i++) {
        const nnti_stage *s = &c->stage[i];
        for (k = 0; k < i && !(i + 1 < c->stages && nnti_stages_alike(&c->stage[k], s)); k++) { }
        if (k < i) {
            p->profile_of[i] = p->profile_of[k];
        } else {
            nnt_result r = nnti_profile_stage(p, i, &p->profile[p->profiles]);
            if (r) return r;
            p->profile_of[i] = p->profiles++;
        }
        p->before[i + 1] = p->before[i] + nnti_profile_at(p, i)->work;
        for (k = 0; k < s->order[1]; k++) {
            if (k >= s->order[0]) p->backward_work += nnti_step_work(p, &s->step[k]);
            else if (s->step[k].flags & NNTI_STEP_ONCE) p->once_work += nnti_step_work(p, &s->step[k]);
        }
    }
    p->levels = 0;
    for (i = 0; i < c->stages; i++) {
        const nnti_level *l = nnti_profile_at(p, i)->level;
        for (n = 0; n < NNTI_LEVELS; n++)
            if (l[n].exists && (n == 0 || !nnti_tapes_equal(&l[0].tapes, &l[1].tapes)))
                p->levels = nnti_max(p->levels, n + 1);
    }
    return NNT_OK;
}

/* ---- the ways of a range */

/* The user's marks. A sweep that keeps `tapes` of a stage (NULL: none) may not drop what is marked. */
static int nnti_drops_kept(const nnti_stage *s, const nnti_tapes *tapes)
{
    int v;
    for (v = NNTI_VINNER; v < s->values; v++)
        if (s->value[v].keep && s->value[v].tape >= 0 && !(tapes && nnti_tapes_has(tapes, s->value[v].tape))) return 1;
    return 0;
}
static nnti_way nnti_way_of(int kind, int level, int at)
{
    nnti_way w;
    w.kind = kind;
    w.level = level;
    w.at = at;
    w.least = w.held = 0;
    w.work = 0;
    w.first = w.second = -1;
    return w;
}
static int nnti_ways_tape(const nnti_planner *p, int a, int b, nnti_take_way take, void *arg)
{
    const nnti_profile *f = nnti_profile_at(p, a);
    int k, one = b == a + 1, last = one && b == p->chain->stages;
    for (k = f->option; k < f->option + f->options; k++) {
        const nnti_option *o = &p->option[k];
        nnti_way w = nnti_way_of(one ? NNTI_WAY_BACKWARD : NNTI_WAY_TAPE, -1, k);
        if (!last && nnti_drops_kept(&p->chain->stage[a], &o->tapes)) continue;
        if (one && o->tape) continue;
        w.least = o->backward_peak;
        w.work = last ? f->work : o->extra;
        if (!one) {
            w.least = nnti_max64(w.least, o->forward_peak + nnti_g_bytes(p, b));
            w.held = nnti_x_bytes(p, a) + o->tape;
            w.work += f->work;
            w.first = nnti_range(p, -1, a + 1, b);
        }
        if (!take(arg, &w)) return 0;
    }
    return 1;
}
/* level -1: forward keeps nothing (SWEEP), else the level's tapes (RANGE). */
static int nnti_ways_sweep(const nnti_planner *p, int level, int a, int b, nnti_take_way take, void *arg)
{
    int64_t g = nnti_g_bytes(p, b), x = nnti_x_bytes(p, a), peak = 0, held = 0;
    int j;
    for (j = a + 1; j < b; j++) {
        const nnti_profile *f = nnti_profile_at(p, j - 1);
        const nnti_level *l = level < 0 ? NULL : &f->level[level];
        nnti_way w = nnti_way_of(l ? NNTI_WAY_RANGE : NNTI_WAY_SWEEP, level, j);
        if (l && !l->exists) break;
        if (nnti_drops_kept(&p->chain->stage[j - 1], l ? &l->tapes : NULL)) break;
        if (j - 1 > a && p->chain->stage[j - 2].value[NNTI_VY].keep) break;
        if (j - 1 == a) peak = g + (l ? l->forward_held : f->forward_held);
        else peak = nnti_max64(peak, g + x + held + (l ? l->forward_free : f->forward_free));
        if (l) held += l->tape;
        if (l && j == a + 1) continue;          /* one stage: that is NNTI_WAY_TAPE */
        w.least = peak;
        w.held = x + held;
        w.work = p->before[j] - p->before[a];
        w.first = nnti_range(p, -1, j, b);
        w.second = nnti_range(p, level, a, j);
        if (!take(arg, &w)) return 0;
    }
    return 1;
}
static int nnti_ways_taped(const nnti_planner *p, int level, int a, int b, nnti_take_way take, void *arg)
{
    int64_t g = nnti_g_bytes(p, b), x = nnti_x_bytes(p, a), all = 0, held = 0, peak = 0;
    double work = 0;
    int j, k;
    for (j = a; j < b; j++) {
        const nnti_level *l = &nnti_profile_at(p, j)->level[level];
        if (!l->exists) return 1;
        all += l->tape;
        for (k = l->option; b == a + 1 && k < l->option + l->options; k++) {
            nnti_way w = nnti_way_of(NNTI_WAY_BACKWARD, level, k);
            w.least = p->option[k].backward_peak;
            w.work = p->option[k].extra;
            if (!take(arg, &w)) return 0;
        }
    }
    for (j = a + 1; j < b; j++) {
        const nnti_level *l = &nnti_profile_at(p, j - 1)->level[level];
        nnti_way w = nnti_way_of(NNTI_WAY_REMAKE, level, j);
        if (l->alone) { work = 0; peak = 0; }      /* nothing before this stage needs to be made */
        held += l->tape;
        work += l->work;
        peak = nnti_max64(peak, all - l->tape + g + (j - 1 == a ? l->remake_held : x + l->remake_free));
        w.least = peak;
        w.held = x + held;
        w.work = work;
        w.first = nnti_range(p, level, j, b);
        w.second = nnti_range(p, level, a, j);
        if (!take(arg, &w)) return 0;
    }
    return 1;
}
static int nnti_ways(const nnti_planner *p, int level, int a, int b, nnti_take_way take, void *arg)
{
    int l;
    if (level >= 0) return nnti_ways_taped(p, level, a, b, take, arg);
    if (!nnti_ways_tape(p, a, b, take, arg)) return 0;
    for (l = -1; l < p->levels; l++) if (!nnti_ways_sweep(p, l, a, b, take, arg)) return 0;
    return 1;
}

/* ---- exact: fronts, ascending in peak and descending in work */

/* The front of one way: two staircases merged. Only points that the front at hand does not beat are kept. */
static int nnti_front_stairs(nnti_planner *p, const nnti_way *w, const nnti_front *f, const nnti_front *s)
{
    const nnti_point *first = f ? &p->point[f->first] : NULL, *second = s ? &p->point[s->first] : NULL;
    int n1 = f ? f->count : 0, n2 = s ? s->count : 0, i = 0, k = 0, rival = -1;
    double least = w->work + (f ? first[n1 - 1].work : 0) + (s ? second[n2 - 1].work : 0);
    int64_t peak = w->least;
    p->stairs = 0;
    if (!nnti_grow(&p->a, (void **)&p->stair, &p->stair_cap, (size_t)(n1 + n2 + 1), sizeof *p->stair)) return 0;
    if (f) peak = nnti_max64(peak, first[0].peak + w->held);
    if (s) peak = nnti_max64(peak, second[0].peak);
    while (peak < INT64_MAX) {
        nnti_point *o = &p->stair[p->stairs];
        while (i + 1 < n1 && first[i + 1].peak + w->held <= peak) i++;
        while (k + 1 < n2 && second[k + 1].peak <= peak) k++;
        while (rival + 1 < p->heres && p->here[rival + 1].peak <= peak) rival++;
        if (rival >= 0 && p->here[rival].work <= least) break;     /* nothing that follows can be better */
        o->peak = peak;
        o->work = w->work + (f ? first[i].work : 0) + (s ? second[k].work : 0);
        o->choice.kind = w->kind;
        o->choice.level = w->level;
        o->choice.at = w->at;
        o->choice.first = i;
        o->choice.second = k;
        if (rival < 0 || o->work < p->here[rival].work) p->stairs++;
        peak = INT64_MAX;
        if (i + 1 < n1) peak = first[i + 1].peak + w->held;
        if (k + 1 < n2) peak = nnti_min64(peak, second[k + 1].peak);
    }
    return 1;
}
/* Joins the stairs to the front at hand. */
static int nnti_front_fold(nnti_planner *p)
{
    int i = 0, k = 0, n = 0;
    nnti_point *swap;
    size_t swap_cap;
    if (!nnti_grow(&p->a, (void **)&p->spare, &p->spare_cap, (size_t)(p->heres + p->stairs), sizeof *p->spare))
        return 0;
    while (i < p->heres || k < p->stairs) {
        const nnti_point *x = i < p->heres ? &p->here[i] : NULL, *y = k < p->stairs ? &p->stair[k] : NULL, *o;
        if (!y || (x && (x->peak < y->peak || (x->peak == y->peak && x->work <= y->work)))) { o = x; i++; }
        else { o = y; k++; }
        if (n == 0 || o->work < p->spare[n - 1].work) p->spare[n++] = *o;
    }
    swap = p->here; p->here = p->spare; p->spare = swap;
    swap_cap = p->here_cap; p->here_cap = p->spare_cap; p->spare_cap = swap_cap;
    p->heres = n;
    return 1;
}
static int nnti_front_take(void *arg, const nnti_way *w)
{
    nnti_planner *p = (nnti_planner *)arg;
    const nnti_front *f = w->first >= 0 ? &p->front[w->first] : NULL, *s = w->second >= 0 ? &p->front[w->second] : NULL;
    if ((f && f->count == 0) || (s && s->count == 0)) return 1;
    return nnti_front_stairs(p, w, f, s) && (p->stairs == 0 || nnti_front_fold(p));
}
/* Thins the front at hand evenly, both ends staying, and stores it. */
static int nnti_front_store(nnti_planner *p, nnti_front *to)
{
    int n = nnti_min(p->heres, p->cap), i;
    if (!nnti_grow(&p->a, (void **)&p->point, &p->point_cap, (size_t)(p->points + n), sizeof *p->point)) return 0;
    to->first = p->points;
    to->count = n;
    for (i = 0; i < n; i++) {
        int from = n == p->heres || n < 2 ? i : (int)(((int64_t)2 * i * (p->heres - 1) + n - 1) / (2 * (n - 1)));
        p->point[p->points++] = p->here[from];
    }
    return 1;
}
static nnt_result nnti_fronts(nnti_planner *p)
{
    int level, a, b, stages = p->chain->stages;
    p->points = 0;
    for (level = p->levels - 1; level >= -1; level--)
        for (a = stages - 1; a >= 0; a--)
            for (b = a + 1; b <= stages; b++) {
                nnti_front *f = &p->front[nnti_range(p, level, a, b)];
                p->heres = 0;
                f->count = 0;
                if (level >= 0 && b == stages) continue;
                if (!nnti_ways(p, level, a, b, nnti_front_take, p) || !nnti_front_store(p, f)) return NNT_ERR_MEMORY;
            }
    return NNT_OK;
}

/* ---- slots: for one budget, the least work within each number of slots; sizes are rounded up to slots */

static const float NNTI_SLOT_NEVER = 1e30f;

static int nnti_slots_of(const nnti_planner *p, int64_t bytes)
{
    int64_t n = nnti_ceil_div(bytes, p->unit);
    return n > p->slots ? p->slots + 1 : (int)n;
}
/* to[i] = min(to[i], work + first[i] + second[i]). Rows fall: where to[i] has come down to `least`, below which the sum
   can't come, the rest has nothing to gain. */
static void nnti_slots_relax_c(float *to, const float *first, const float *second, float work, float least, int count)
{
    int i;
    for (i = 0; i < count && to[i] > least; i++) {
        float v = work + first[i] + second[i];
        to[i] = v < to[i] ? v : to[i];
    }
}
#if defined(NNTI_X86)
NNTI_AVX2 static void nnti_slots_relax_avx2(float *to, const float *first, const float *second, float work,
                                            float least, int count)
{
    __m256 w = _mm256_set1_ps(work);
    int i = 0;
    for (; i + 8 <= count && to[i] > least; i += 8) {
        __m256 v = _mm256_add_ps(_mm256_add_ps(w, _mm256_loadu_ps(first + i)), _mm256_loadu_ps(second + i));
        _mm256_storeu_ps(to + i, _mm256_min_ps(v, _mm256_loadu_ps(to + i)));
    }
    nnti_slots_relax_c(to + i, first + i, second + i, work, least, count - i);
}
#endif
/* range -1: the row of zeros behind the last */
static const float *nnti_slots_row(const nnti_planner *p, int range)
{
    int row = range >= 0 ? range : (p->levels + 1) * nnti_ranges(p);
    return p->slot + (size_t)row * (size_t)(p->slots + 1);
}
/* Where a way begins to be possible. */
static int nnti_slots_lowest(const nnti_planner *p, const nnti_way *w)
{
    int low = nnti_slots_of(p, w->least);
    if (w->first >= 0) low = nnti_max(low, p->lowest[w->first] + nnti_slots_of(p, w->held));
    if (w->second >= 0) low = nnti_max(low, p->lowest[w->second]);
    return low;
}
typedef struct nnti_slots_range { nnti_planner *p; float *row; int lowest; } nnti_slots_range;

static int nnti_slots_take(void *arg, const nnti_way *w)
{
    nnti_slots_range *s = (nnti_slots_range *)arg;
    nnti_planner *p = s->p;
    int low = nnti_slots_lowest(p, w), held = w->first >= 0 ? nnti_slots_of(p, w->held) : 0, count = p->slots - low + 1;
    float work = (float)(w->work / p->before[p->chain->stages]), least = work;
    const float *first, *second;
    if (count <= 0) return 1;
    first = nnti_slots_row(p, w->first) + low - held;
    second = nnti_slots_row(p, w->second) + low;
    s->lowest = nnti_min(s->lowest, low);
    if (w->first >= 0) least += p->cheapest[w->first];
    if (w->second >= 0) least += p->cheapest[w->second];
#if defined(NNTI_X86)
    if (p->isa == NNTI_ISA_AVX2 || p->isa == NNTI_ISA_AVX512) {
        nnti_slots_relax_avx2(s->row + low, first, second, work, least, count);
        return 1;
    }
#endif
    nnti_slots_relax_c(s->row + low, first, second, work, least, count);
    return 1;
}
/* A slot is chosen so that the largest x is a whole number of them: chains of equal stages lose nothing to rounding. */
static void nnti_slots_unit(nnti_planner *p, int64_t budget)
{
    int slots = p->chain->stages > NNTI_LONG_STAGES ? NNTI_SLOTS_LONG : NNTI_SLOTS;
    int64_t largest = 1, unit = nnti_max64(1, budget / slots);
    int i;
    for (i = 0; i < p->chain->stages; i++) largest = nnti_max64(largest, nnti_x_bytes(p, i));
    if (largest > unit) unit = nnti_ceil_div(largest, nnti_ceil_div(largest, unit));
    p->unit = unit;
    p->slots = (int)(budget / unit);
}
static nnt_result nnti_slots_solve(nnti_planner *p, int64_t budget)
{
    int level, a, b, stages = p->chain->stages, rows = (p->levels + 1) * nnti_ranges(p) + 1;
    size_t cells, i;
    nnti_slots_unit(p, budget);
    if (!nnti_mul_size((size_t)rows, (size_t)(p->slots + 1), &cells)) return NNT_ERR_MEMORY;
    if (cells > p->slot_cells) {
        nnti_free(&p->a, p->slot, p->slot_cells * sizeof *p->slot);
        p->slot_cells = cells;
        p->slot = (float *)nnti_zalloc(&p->a, cells, sizeof *p->slot);
        if (!p->slot) { p->slot_cells = 0; return NNT_ERR_MEMORY; }
    }
    if (!p->lowest) p->lowest = (int *)nnti_zalloc(&p->a, (size_t)rows, sizeof *p->lowest);
    if (!p->cheapest) p->cheapest = (float *)nnti_zalloc(&p->a, (size_t)rows, sizeof *p->cheapest);
    if (!p->lowest || !p->cheapest) return NNT_ERR_MEMORY;
    for (i = 0; i < cells - (size_t)(p->slots + 1); i++) p->slot[i] = NNTI_SLOT_NEVER;
    for (; i < cells; i++) p->slot[i] = 0;
    for (level = p->levels - 1; level >= -1; level--)
        for (b = 1; b <= stages; b++)                   /* b outside: first parts stay in the cache, second ones are */
            for (a = b - 1; a >= 0; a--) {              /* neighbours in memory */
                nnti_slots_range s;
                int range = nnti_range(p, level, a, b);
                s.p = p;
                s.row = p->slot + (size_t)range * (size_t)(p->slots + 1);
                s.lowest = p->slots + 1;
                if (level < 0 || b < stages) (void)nnti_ways(p, level, a, b, nnti_slots_take, &s);
                p->lowest[range] = s.lowest;
                p->cheapest[range] = s.row[p->slots];
            }
    return NNT_OK;
}
/* Least slots whose work is at most this, or -1. */
static int nnti_slots_for_work(const nnti_planner *p, double work)
{
    const float *row = nnti_slots_row(p, nnti_range(p, -1, 0, p->chain->stages));
    float limit = (float)(work / p->before[p->chain->stages] * 1.000001);      /* float sums may be a little above */
    int m;
    for (m = 0; m <= p->slots; m++) if (row[m] <= limit) return m;
    return -1;
}
typedef struct nnti_slots_best { const nnti_planner *p; int slot; float work; nnti_choice choice; } nnti_slots_best;

static int nnti_slots_compare(void *arg, const nnti_way *w)
{
    nnti_slots_best *s = (nnti_slots_best *)arg;
    int held = w->first >= 0 ? nnti_slots_of(s->p, w->held) : 0;
    float v;
    if (nnti_slots_lowest(s->p, w) > s->slot) return 1;
    v = (float)(w->work / s->p->before[s->p->chain->stages]) + nnti_slots_row(s->p, w->first)[s->slot - held]
      + nnti_slots_row(s->p, w->second)[s->slot];
    if (v >= s->work) return 1;
    s->work = v;
    s->choice.kind = w->kind;
    s->choice.level = w->level;
    s->choice.at = w->at;
    s->choice.first = s->slot - held;
    s->choice.second = s->slot;
    return 1;
}

/* ---- from choices to calls */

/* Answers how a range is to be done; state is what the choice of the range above said. */
typedef int (*nnti_choose)(void *arg, int level, int a, int b, int state, nnti_choice *out);

static int nnti_choose_front(void *arg, int level, int a, int b, int state, nnti_choice *out)
{
    const nnti_planner *p = (const nnti_planner *)arg;
    *out = p->point[p->front[nnti_range(p, level, a, b)].first + state].choice;
    return 1;
}
static int nnti_choose_slot(void *arg, int level, int a, int b, int state, nnti_choice *out)
{
    nnti_slots_best s;
    memset(&s, 0, sizeof s);
    s.p = (const nnti_planner *)arg;
    s.slot = state;
    s.work = NNTI_SLOT_NEVER;
    (void)nnti_ways(s.p, level, a, b, nnti_slots_compare, &s);
    *out = s.choice;
    return s.work < NNTI_SLOT_NEVER;
}
/* Segments by hand: segment[i] is 0 for a stage whose values are kept, else the number of the segment that it belongs
   to, which is made again as a whole when its backward comes. */
typedef struct nnti_by_hand { const nnti_planner *p; const int *segment; } nnti_by_hand;

static int nnti_choose_by_hand(void *arg, int level, int a, int b, int state, nnti_choice *out)
{
    const nnti_by_hand *h = (const nnti_by_hand *)arg;
    const nnti_profile *f = nnti_profile_at(h->p, a);
    int k, j = a, best = -1;
    (void)level;
    memset(out, 0, sizeof *out);
    out->first = state;                 /* state 0: still to sweep; 1: inside of a segment that is being done */
    if (state == 0 && h->segment[a] && a + 1 < b) {
        while (j < b && h->segment[j] == h->segment[a]) j++;
        if (j < b) {
            out->kind = NNTI_WAY_SWEEP;
            out->at = j;
            out->second = 1;
            return 1;
        }
    }
    for (k = f->option; k < f->option + f->options; k++) {
        const nnti_option *o = &h->p->option[k], *x = best >= 0 ? &h->p->option[best] : NULL;
        if (b == a + 1 && o->tape) continue;
        if (!x || o->extra < x->extra || (!(o->extra > x->extra) && (o->tape < x->tape
            || (o->tape == x->tape && o->backward_peak < x->backward_peak)))) best = k;
    }
    out->kind = b == a + 1 ? NNTI_WAY_BACKWARD : NNTI_WAY_TAPE;
    out->at = best;
    return best >= 0;
}

typedef struct nnti_walk {
    const nnti_planner *p;
    nnti_emitter       *to;
    unsigned char      *done;           /* by stage: its forward has been executed */
    nnti_choose         choose;
    void               *arg;
} nnti_walk;

static int nnti_walk_forward(nnti_walk *w, int stage, const nnti_tapes *tapes)
{
    int phase = w->done[stage] ? NNTI_AGAIN : NNTI_FIRST;
    w->done[stage] = 1;
    return nnti_calls_forward(w->to, stage, tapes, phase);
}
static nnt_result nnti_walk_range(nnti_walk *w, int level, int a, int b, int state)
{
    const nnti_planner *p = w->p;
    const nnti_option *o;
    nnti_tapes none = nnti_tapes_none();
    nnti_choice c;
    nnt_result r;
    int i, from;
    if (!w->choose(w->arg, level, a, b, state, &c)) return NNT_ERR_STATE;
    switch (c.kind) {
    case NNTI_WAY_BACKWARD:
        o = &p->option[c.at];
        if (b == p->chain->stages) {
            if (!nnti_walk_forward(w, a, NULL)) return NNT_ERR_MEMORY;
            return nnti_calls_backward(w->to, a, NULL, NULL, 0) ? NNT_OK : NNT_ERR_MEMORY;
        }
        return nnti_calls_backward(w->to, a, &o->tapes, &o->held, o->order) ? NNT_OK : NNT_ERR_MEMORY;
    case NNTI_WAY_TAPE:
        o = &p->option[c.at];
        if (!nnti_walk_forward(w, a, &o->tapes)) return NNT_ERR_MEMORY;
        r = nnti_walk_range(w, -1, a + 1, b, c.first);
        if (r) return r;
        return nnti_calls_backward(w->to, a, &o->tapes, &o->held, o->order) ? NNT_OK : NNT_ERR_MEMORY;
    case NNTI_WAY_REMAKE:
        for (from = c.at - 1; from > a && !nnti_profile_at(p, from)->level[level].alone; from--) { }
        for (i = from; i < c.at; i++)
            if (!nnti_calls_remake(w->to, i, &nnti_profile_at(p, i)->level[level].tapes)) return NNT_ERR_MEMORY;
        r = nnti_walk_range(w, level, c.at, b, c.first);
        return r ? r : nnti_walk_range(w, level, a, c.at, c.second);
    default:
        for (i = a; i < c.at; i++) {
            const nnti_tapes *tapes = c.kind == NNTI_WAY_RANGE ? &nnti_profile_at(p, i)->level[c.level].tapes : &none;
            if (!nnti_walk_forward(w, i, tapes)) return NNT_ERR_MEMORY;
        }
        r = nnti_walk_range(w, -1, c.at, b, c.first);
        return r ? r : nnti_walk_range(w, c.kind == NNTI_WAY_RANGE ? c.level : -1, a, c.at, c.second);
    }
}

/* ---- answers */

typedef struct nnti_schedule {
    nnti_calls calls;
    nnti_life  life;                    /* storages with offsets, operands of each call */
    int64_t    peak, arena;             /* live bytes at the worst call; what the offsets need */
    int64_t    predicted;               /* what the planner expected as peak; -1: it had no expectation */
    double     work;                    /* of the whole step */
    double     extra;                   /* of which made again */
    int        repeated;                /* calls that are executed again */
} nnti_schedule;

static void nnti_schedule_free(const nnt_allocator *a, nnti_schedule *s)
{
    nnti_calls_free(a, &s->calls);
    nnti_life_free(a, &s->life);
    memset(s, 0, sizeof *s);
}

static void nnti_planner_free(nnti_planner *p)
{
    size_t n = p->chain ? (size_t)p->chain->stages : 0;
    size_t rows = p->chain ? (size_t)(p->levels + 1) * (size_t)nnti_ranges(p) : 0;
    nnti_free(&p->a, p->before, (n + 1) * sizeof *p->before);
    nnti_free(&p->a, p->profile, n * sizeof *p->profile);
    nnti_free(&p->a, p->profile_of, n * sizeof *p->profile_of);
    nnti_free(&p->a, p->option, p->option_cap * sizeof *p->option);
    nnti_free(&p->a, p->trial, p->trial_cap * sizeof *p->trial);
    nnti_free(&p->a, p->front, rows * sizeof *p->front);
    nnti_free(&p->a, p->point, p->point_cap * sizeof *p->point);
    nnti_free(&p->a, p->here, p->here_cap * sizeof *p->here);
    nnti_free(&p->a, p->stair, p->stair_cap * sizeof *p->stair);
    nnti_free(&p->a, p->spare, p->spare_cap * sizeof *p->spare);
    nnti_free(&p->a, p->slot, p->slot_cells * sizeof *p->slot);
    nnti_free(&p->a, p->lowest, (rows + 1) * sizeof *p->lowest);
    nnti_free(&p->a, p->cheapest, (rows + 1) * sizeof *p->cheapest);
    nnti_emitter_free(&p->emitter);
    nnti_life_free(&p->a, &p->life);
    memset(p, 0, sizeof *p);
}
/* Prepares answers for a chain that nnti_chain_end has passed and that stays. moved_work: how many units of work a
   byte of memory traffic counts (0: only arithmetic counts). On an error everything is given back. */
static nnt_result nnti_planner_begin(nnti_planner *p, const nnt_allocator *a, const nnti_chain *c, double moved_work,
                                     int isa, nnti_error *e)
{
    size_t n = (size_t)c->stages;
    nnt_result r = NNT_ERR_MEMORY;
    memset(p, 0, sizeof *p);
    p->a = nnti_allocator(a);
    p->chain = c;
    p->moved_work = moved_work;
    p->isa = isa;
    p->exact = c->stages <= NNTI_EXACT_STAGES;
    p->cap = p->exact ? NNTI_FRONT_CAP : 1;            /* one point a front is enough for the least memory */
    p->before = (double *)nnti_zalloc(&p->a, n + 1, sizeof *p->before);
    p->profile = (nnti_profile *)nnti_zalloc(&p->a, n, sizeof *p->profile);
    p->profile_of = (int *)nnti_zalloc(&p->a, n, sizeof *p->profile_of);
    if (p->before && p->profile && p->profile_of && nnti_emitter_begin(&p->emitter, &p->a, c)) r = nnti_profile_all(p);
    if (!r) {
        p->front = (nnti_front *)nnti_zalloc(&p->a, (size_t)(p->levels + 1) * (size_t)nnti_ranges(p), sizeof *p->front);
        r = p->front ? nnti_fronts(p) : NNT_ERR_MEMORY;
    }
    if (!r && p->front[nnti_range(p, -1, 0, c->stages)].count == 0) r = NNT_ERR_STATE;
    if (r) nnti_planner_free(p);
    if (r == NNT_ERR_MEMORY) return nnti_set_error(e, r, "out of memory");
    return r ? nnti_set_error(e, r, "schedule: no schedule exists for this chain") : NNT_OK;
}
static const nnti_front *nnti_planner_front(const nnti_planner *p)
{
    return &p->front[nnti_range(p, -1, 0, p->chain->stages)];
}
/* Work of a step in which nothing is made again. */
static double nnti_planner_step_work(const nnti_planner *p)
{
    return p->before[p->chain->stages] + p->once_work + p->backward_work;
}
/* The least peak that any plan has. */
static int64_t nnti_planner_least(const nnti_planner *p) { return p->point[nnti_planner_front(p)->first].peak; }

/* Simulates and packs what the calls of `s` do. */
static nnt_result nnti_schedule_place(const nnti_planner *p, nnti_schedule *s)
{
    nnti_present x;
    int64_t bound;
    nnt_result r;
    int i;
    x.value = 0;
    x.local = NNTI_VX;
    x.bytes = nnti_x_bytes(p, 0);
    r = nnti_simulate(&p->a, &s->life, p->chain, &s->calls, &x, 1, NULL, 0);
    if (r) return r;
    if (s->life.refused >= 0) return NNT_ERR_STATE;
    s->peak = s->life.peak;
    nnti_life_workspaces(&s->life, p->chain, &s->calls);
    r = nnti_pack(&p->a, s->life.storage, s->life.storages, &s->arena, &bound);
    if (r) return r;
    if (bound != s->peak) return NNT_ERR_STATE;
    s->work = 0;
    for (i = 0; i < s->calls.count; i++) {
        s->work += nnti_step_work(p, nnti_call_step(p->chain, &s->calls.call[i]));
        s->repeated += s->calls.call[i].phase == NNTI_AGAIN;
    }
    s->extra = nnti_calls_again(p, p->chain, &s->calls);
    return NNT_OK;
}
/* Writes the calls of one way to do the chain, and places them. */
static nnt_result nnti_schedule_make(nnti_planner *p, nnti_choose choose, void *arg, int state, int64_t predicted,
                                     nnti_schedule *s)
{
    nnti_walk w;
    nnt_result r;
    size_t n = (size_t)p->chain->stages;
    memset(s, 0, sizeof *s);
    s->predicted = predicted;
    w.p = p;
    w.to = &p->emitter;
    w.choose = choose;
    w.arg = arg;
    w.done = (unsigned char *)nnti_zalloc(&p->a, n, 1);
    if (!w.done) return NNT_ERR_MEMORY;
    p->emitter.out.count = 0;
    r = nnti_walk_range(&w, -1, 0, p->chain->stages, state);
    nnti_free(&p->a, w.done, n);
    s->calls = p->emitter.out;
    memset(&p->emitter.out, 0, sizeof p->emitter.out);
    if (!r) r = nnti_schedule_place(p, s);
    /* The check of the planner's arithmetic. The two are equal, unless sizes were rounded up to slots or a once-only
       step, which every forward is planned with, needs more than its neighbours. */
    if (!r && predicted >= 0 && s->peak > predicted) r = NNT_ERR_STATE;
    if (r) nnti_schedule_free(&p->a, s);
    return r;
}
static nnt_result nnti_schedule_by_hand(nnti_planner *p, const int *segment, nnti_schedule *s)
{
    nnti_by_hand h;
    h.p = p;
    h.segment = segment;
    return nnti_schedule_make(p, nnti_choose_by_hand, &h, 0, -1, s);
}
static nnt_result nnti_schedule_point(nnti_planner *p, int index, nnti_schedule *s)
{
    return nnti_schedule_make(p, nnti_choose_front, p, index, p->point[nnti_planner_front(p)->first + index].peak, s);
}

/* What is asked for. */
enum {
    NNTI_ASK_LEAST_WORK = 0,    /* nothing is made again */
    NNTI_ASK_BUDGET,            /* least work whose arena is at most `budget` bytes */
    NNTI_ASK_WORK,              /* least memory with at most `extra` work made again */
    NNTI_ASK_LEAST_MEMORY,
    NNTI_ASK_SEGMENTS,          /* `segments` runs of equally many stages, all but the last made again */
    NNTI_ASK_BY_HAND            /* `segment`, see nnti_by_hand */
};
typedef struct nnti_ask { int kind; int64_t budget; double extra; int segments; const int *segment; } nnti_ask;

static nnt_result nnti_answer_segments(nnti_planner *p, int segments, nnti_schedule *s)
{
    int n = p->chain->stages, i, k;
    int *segment;
    nnt_result r;
    if (segments < 1) return NNT_ERR_ARGUMENT;
    segment = (int *)nnti_zalloc(&p->a, (size_t)n, sizeof *segment);
    if (!segment) return NNT_ERR_MEMORY;
    segments = nnti_min(segments, n);
    for (i = 0, k = 1; k < segments; k++)       /* segment k ends at round(k n / segments) */
        while (i < (2 * n * k + segments) / (2 * segments)) segment[i++] = k;
    r = nnti_schedule_by_hand(p, segment, s);
    nnti_free(&p->a, segment, (size_t)n * sizeof *segment);
    return r;
}
static nnt_result nnti_answer_exact(nnti_planner *p, const nnti_ask *ask, nnti_schedule *s)
{
    const nnti_front *f = nnti_planner_front(p);
    const nnti_point *point = &p->point[f->first];
    double limit = p->before[p->chain->stages] + ask->extra;
    int i = 0;
    nnt_result r;
    if (ask->kind == NNTI_ASK_LEAST_WORK) i = f->count - 1;
    if (ask->kind == NNTI_ASK_WORK)
        while (i + 1 < f->count && point[i].work > limit) i++;
    if (ask->kind != NNTI_ASK_BUDGET) return nnti_schedule_point(p, i, s);
    while (i + 1 < f->count && point[i + 1].peak <= ask->budget) i++;
    for (; i >= 0; i--) {               /* packing may have left gaps: then the next smaller one */
        r = nnti_schedule_point(p, i, s);
        if (r || s->arena <= ask->budget) return r;
        nnti_schedule_free(&p->a, s);
    }
    return NNT_ERR_UNSUPPORTED;
}
/* Replaces *s by *t when that is better: fits the budget and has less work, or less memory when work is the limit. */
static void nnti_schedule_better(const nnt_allocator *a, const nnti_ask *ask, nnti_schedule *s, nnti_schedule *t)
{
    int fits = ask->kind == NNTI_ASK_BUDGET ? t->arena <= ask->budget : t->extra <= ask->extra * 1.000001;
    int better = fits && (!s->calls.call || (ask->kind == NNTI_ASK_BUDGET ? t->extra < s->extra : t->arena < s->arena));
    nnti_schedule *drop = better ? s : t;
    nnti_schedule_free(a, drop);
    if (better) { *s = *t; memset(t, 0, sizeof *t); }
}
/* Long chains. Rounding up to slots makes plans smaller than their budget, so the budget is raised by what was left
   of it and the plan made again; for a limit of work it is lowered to what the plan needed, which makes slots finer. */
static nnt_result nnti_answer_slots(nnti_planner *p, const nnti_ask *ask, nnti_schedule *s)
{
    int range = nnti_range(p, -1, 0, p->chain->stages), tries;
    int64_t budget = ask->budget;
    double limit = p->before[p->chain->stages] + ask->extra;
    nnti_schedule t;
    nnt_result r;
    memset(s, 0, sizeof *s);
    if (ask->kind == NNTI_ASK_BUDGET) r = nnti_schedule_point(p, 0, s);    /* the least memory: one that may fit */
    else r = nnti_answer_segments(p, 1, s);
    if (r || ask->kind == NNTI_ASK_LEAST_WORK) return r;
    if (ask->kind == NNTI_ASK_WORK) budget = s->peak;
    else if (s->arena > ask->budget) { nnti_schedule_free(&p->a, s); return NNT_ERR_UNSUPPORTED; }
    for (tries = 0; tries < 4; tries++) {
        int slot;
        r = nnti_slots_solve(p, budget);
        if (r) break;
        slot = ask->kind == NNTI_ASK_WORK ? nnti_slots_for_work(p, limit) : p->slots;
        if (slot < 0 || p->lowest[range] > slot) break;
        r = nnti_schedule_make(p, nnti_choose_slot, p, slot, (int64_t)slot * p->unit, &t);
        if (r) break;
        if (ask->kind == NNTI_ASK_BUDGET) {
            int64_t next = (int64_t)((double)budget * ((double)ask->budget / (double)t.arena));
            nnti_schedule_better(&p->a, ask, s, &t);
            if (next <= budget + budget / 200) break;
            budget = next;
        } else {
            int64_t next = nnti_min64((int64_t)slot * p->unit, t.peak + t.peak / 8);
            nnti_schedule_better(&p->a, ask, s, &t);
            if (next > budget - budget / 50) break;
            budget = next;
        }
    }
    if (r) nnti_schedule_free(&p->a, s);
    return r;
}
/* NNT_ERR_UNSUPPORTED: no plan fits the budget; the sentence tells the least memory and its extra work. */
static nnt_result nnti_planner_answer(nnti_planner *p, const nnti_ask *ask, nnti_schedule *s, nnti_error *e)
{
    nnt_result r;
    memset(s, 0, sizeof *s);
    if (ask->kind == NNTI_ASK_SEGMENTS) r = nnti_answer_segments(p, ask->segments, s);
    else if (ask->kind == NNTI_ASK_BY_HAND) r = nnti_schedule_by_hand(p, ask->segment, s);
    else if (p->exact || ask->kind == NNTI_ASK_LEAST_MEMORY) r = nnti_answer_exact(p, ask, s);
    else r = nnti_answer_slots(p, ask, s);
    if (r == NNT_OK) return r;
    if (r == NNT_ERR_UNSUPPORTED)
        return nnti_set_error(e, r, "schedule: %B is too little; the least is %B", (size_t)ask->budget,
                              (size_t)nnti_planner_least(p));
    if (r == NNT_ERR_MEMORY) return nnti_set_error(e, r, "out of memory");
    return nnti_set_error(e, r, "schedule: the schedule does not do what the planner expected");
}

/* The curve of memory over extra work, ascending in memory: at most `cap` points evenly taken from the front. */
typedef struct nnti_curve_point { int64_t peak; double extra; } nnti_curve_point;

static void nnti_curve_add(nnti_curve_point *out, int *count, int64_t peak, double extra)
{
    int i, k = 0;
    for (i = 0; i < *count; i++)        /* drop points that the new one beats; leave when one beats it */
        if (out[i].peak <= peak && out[i].extra <= extra) return;
    for (i = 0; i < *count; i++)
        if (out[i].peak < peak || out[i].extra < extra) out[k++] = out[i];
    for (i = k; i > 0 && out[i - 1].peak > peak; i--) out[i] = out[i - 1];
    out[i].peak = peak;
    out[i].extra = extra;
    *count = k + 1;
}
/* Long chains: budgets in equal ratios between the ends. Each is planned and simulated. */
static nnt_result nnti_curve_slots(nnti_planner *p, nnti_curve_point *out, int cap, int *count)
{
    nnti_schedule s;
    nnti_ask ask;
    nnt_result r;
    double most;
    int i;
    memset(&ask, 0, sizeof ask);
    ask.kind = NNTI_ASK_LEAST_WORK;
    r = nnti_planner_answer(p, &ask, &s, NULL);
    if (r) return r;
    most = (double)s.peak;
    nnti_curve_add(out, count, s.peak, s.extra);
    nnti_schedule_free(&p->a, &s);
    for (i = cap - 2; i >= 0; i--) {
        double least = (double)nnti_planner_least(p);
        ask.kind = i ? NNTI_ASK_BUDGET : NNTI_ASK_LEAST_MEMORY;
        ask.budget = (int64_t)(least * pow(most / least, (double)i / (cap - 1)));
        r = nnti_planner_answer(p, &ask, &s, NULL);
        if (r == NNT_ERR_UNSUPPORTED) continue;     /* packing left gaps so close to the least */
        if (r) return r;
        nnti_curve_add(out, count, s.peak, s.extra);
        nnti_schedule_free(&p->a, &s);
    }
    return NNT_OK;
}
static nnt_result nnti_planner_curve(nnti_planner *p, nnti_curve_point *out, int cap, int *count)
{
    const nnti_front *f = nnti_planner_front(p);
    int i, n = nnti_min(cap, f->count);
    *count = 0;
    if (cap < 2) return NNT_ERR_ARGUMENT;
    if (!p->exact) return nnti_curve_slots(p, out, cap, count);
    for (i = 0; i < n; i++) {
        const nnti_point *o = &p->point[f->first + (n < 2 ? 0 : (int)((int64_t)i * (f->count - 1) / (n - 1)))];
        out[i].peak = o->peak;
        out[i].extra = o->work - p->before[p->chain->stages];
    }
    *count = n;
    return NNT_OK;
}

/* ---- proof: executes a schedule on an arena that remembers what lies where. Shares no code with the simulation. */

typedef struct nnti_region { int64_t offset, bytes; int value, version; } nnti_region;
typedef struct nnti_proof {
    const nnti_chain    *chain;
    const nnti_schedule *schedule;
    nnti_region         *region;        /* what the arena holds now */
    int                  regions;
    int                 *times;         /* by step, stages one after another: executions so far */
    int                 *order;         /* by stage: backward's order, -1: not known yet */
} nnti_proof;

/* How often `value` has been written before step `step` in the plain order forward, backward. */
static int nnti_proof_version(const nnti_stage *s, int order, int step, int value)
{
    int k, n = 0, forward = nnti_stage_forward_end(s);
    for (k = 0; k < nnti_min(step, forward); k++) n += nnti_step_writes_value(&s->step[k], value);
    for (k = s->order[order]; k < step && step > forward; k++) n += nnti_step_writes_value(&s->step[k], value);
    return n;
}
/* The version that a reader has to find: a border's value comes complete from the neighbour. */
static int nnti_proof_expected(const nnti_proof *q, int stage, int order, int step, int value)
{
    const nnti_stage *s = &q->chain->stage[stage];
    if (value == NNTI_VX) return stage == 0 ? 0 : nnti_proof_version(s - 1, 0, nnti_stage_forward_end(s - 1), NNTI_VY);
    if (value == NNTI_VGY) {
        int next = q->order[stage + 1];
        return next < 0 ? -1 : nnti_proof_version(s + 1, next, s[1].order[next + 1], NNTI_VGX);
    }
    return nnti_proof_version(s, order, step, value);
}
static const nnti_storage *nnti_proof_operand(const nnti_proof *q, int call, int operand)
{
    int i = q->schedule->life.operand[q->schedule->life.first[call] + operand];
    return i < 0 ? NULL : &q->schedule->life.storage[i];
}
static int nnti_overlap(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes)
{
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}
static void nnti_proof_put(nnti_proof *q, int64_t offset, int64_t bytes, int value, int version)
{
    int i, n = 0;
    for (i = 0; i < q->regions; i++) {
        const nnti_region *o = &q->region[i];
        int same = o->value == value && o->offset == offset;       /* an empty value overlaps nothing */
        if (!same && !nnti_overlap(o->offset, o->bytes, offset, bytes)) q->region[n++] = *o;
    }
    q->regions = n;
    if (value < 0) return;
    q->region[n].offset = offset;
    q->region[n].bytes = bytes;
    q->region[n].value = value;
    q->region[n].version = version;
    q->regions++;
}
static int nnti_proof_holds(const nnti_proof *q, int64_t offset, int value, int version)
{
    int i;
    for (i = 0; i < q->regions; i++)
        if (q->region[i].offset == offset && q->region[i].value == value) return q->region[i].version == version;
    return 0;
}
/* NULL, or what is wrong with call t. */
static const char *nnti_proof_call(nnti_proof *q, int t, int step_base)
{
    const nnti_schedule *s = q->schedule;
    const nnti_call *k = &s->calls.call[t];
    const nnti_stage *stage = &q->chain->stage[k->stage];
    const nnti_stage_step *p = &stage->step[k->step];
    const nnti_storage *room[NNTI_STEP_READS + NNTI_STEP_WRITES + 1];
    int i, j, order = 0, n = p->reads + p->writes, forward = nnti_stage_forward_end(stage);
    if (k->step >= forward) {
        while (order + 1 < stage->orders && stage->order[order + 1] <= k->step) order++;
        if (q->order[k->stage] >= 0 && q->order[k->stage] != order) return "mixes two orders of a backward";
        q->order[k->stage] = order;
    }
    if (q->times[step_base + k->step]++ && (k->step >= forward || (p->flags & NNTI_STEP_ONCE)))
        return "is executed twice";
    for (i = 0; i <= n; i++) {
        int dropped = i >= p->reads && i < n && (k->dropped >> (i - p->reads) & 1), scratch = s->life.scratch[t];
        if (i < n) room[i] = nnti_proof_operand(q, t, i);
        else room[i] = scratch >= 0 ? &s->life.storage[scratch] : NULL;
        if (!room[i]) {
            if (i < n ? !dropped : p->workspace > 0) return "lacks an operand";
            continue;
        }
        if (t < room[i]->first || t > room[i]->last) return "uses a storage outside of its life";
        if (room[i]->offset < 0 || room[i]->offset + room[i]->bytes > s->arena) return "leaves the arena";
    }
    for (i = 0; i < p->reads; i++) {
        int version = nnti_proof_expected(q, k->stage, order, k->step, p->read[i]);
        if (!nnti_proof_holds(q, room[i]->offset, nnti_chain_number(q->chain, k->stage, p->read[i]), version))
            return "reads a value that is not there";
    }
    for (i = p->reads; i <= n; i++)     /* results and workspace: apart from each other and from what is read */
        for (j = 0; room[i] && j < i; j++) {
            int same = room[j] == room[i] && i < n && j < p->reads && p->take[i - p->reads] == p->read[j];
            if (room[j] && !same && nnti_overlap(room[i]->offset, room[i]->bytes, room[j]->offset, room[j]->bytes))
                return "writes over an operand";
        }
    if (room[n]) nnti_proof_put(q, room[n]->offset, room[n]->bytes, -1, 0);
    for (i = 0; i < p->writes; i++) {
        const nnti_storage *to = room[p->reads + i];
        int64_t bytes = stage->value[p->write[i]].bytes;
        if (!to) continue;
        if (to->bytes < bytes) return "has too small a storage";
        nnti_proof_put(q, to->offset, bytes, nnti_chain_number(q->chain, k->stage, p->write[i]),
                       nnti_proof_version(stage, order, k->step, p->write[i]) + 1);
    }
    return NULL;
}
/* Every once-only step once, every step of the chosen backward once, each forward step at least once. */
static const char *nnti_proof_complete(const nnti_proof *q, int stage, int step_base)
{
    const nnti_stage *s = &q->chain->stage[stage];
    int k, order = q->order[stage];
    if (order < 0) return "has no backward";
    for (k = 0; k < s->steps; k++) {
        int wanted = k < nnti_stage_forward_end(s) || (k >= s->order[order] && k < s->order[order + 1]);
        if (wanted && q->times[step_base + k] == 0) return "misses a step";
    }
    return NULL;
}
static nnt_result nnti_schedule_prove(const nnt_allocator *a, const nnti_chain *c, const nnti_schedule *s,
                                      nnti_error *e)
{
    nnti_proof q;
    size_t steps = 0, n = (size_t)c->stages;
    size_t regions = (size_t)(s->life.storages + nnti_chain_numbers(c) + NNTI_STEP_WRITES);
    int *base = (int *)nnti_zalloc(a, n, sizeof *base);
    nnt_result r = NNT_OK;
    const char *wrong = NULL;
    int t, i;
    memset(&q, 0, sizeof q);
    q.chain = c;
    q.schedule = s;
    for (i = 0; base && i < c->stages; i++) { base[i] = (int)steps; steps += (size_t)c->stage[i].steps; }
    q.times = (int *)nnti_zalloc(a, steps, sizeof *q.times);
    q.order = (int *)nnti_zalloc(a, n, sizeof *q.order);
    q.region = (nnti_region *)nnti_zalloc(a, regions, sizeof *q.region);
    if (!base || !q.times || !q.order || !q.region) {
        r = nnti_set_error(e, NNT_ERR_MEMORY, "out of memory");
    } else {
        for (i = 0; i < c->stages; i++) q.order[i] = -1;
        nnti_proof_put(&q, s->life.storage[0].offset, s->life.storage[0].bytes, 0, 0);      /* x_0 */
        for (t = 0; t < s->calls.count && !r; t++) {
            const nnti_call *k = &s->calls.call[t];
            wrong = nnti_proof_call(&q, t, base[k->stage]);
            if (wrong) r = nnti_set_error(e, NNT_ERR_STATE, "schedule: call %d, step '%s' of stage '%s', %s", t,
                                          c->stage[k->stage].step[k->step].name, c->stage[k->stage].name, wrong);
        }
        for (i = 0; i < c->stages && !r; i++) {
            wrong = nnti_proof_complete(&q, i, base[i]);
            if (wrong) r = nnti_set_error(e, NNT_ERR_STATE, "schedule: stage '%s' %s", c->stage[i].name, wrong);
        }
    }
    nnti_free(a, q.region, regions * sizeof *q.region);
    nnti_free(a, q.order, n * sizeof *q.order);
    nnti_free(a, q.times, steps * sizeof *q.times);
    nnti_free(a, base, n * sizeof *base);
    return r;
}

/* ============================================================================
   >>plan    Lowering to resolved ops, lifetimes, offsets in one arena
   Reads the nodes of >>graph, writes nnti_plan: two flat lists of ops (one training step; prediction and evaluation),
   the values they pass on, and where each value lies. Touches no device. Chapter MEMORY above.

   Backward is recorded once, by walking the nodes from the loss to the input:
   - a node's turn comes when all that read its output have had theirs, so its gradient is complete; of several branches
     the longest goes first (nnti_lower_backwards);
   - relu has no backward of its own: the last op that adds to the gradient of its output also masks it by the sign of
     that output (NNT_OPF_MASK), so neither its input nor a mask is kept;
   - add, reshape and relu pass their gradient on in the same memory; who wants to change memory that others still
     need gets a copy (nnti_own);
   - dropout and noise keep nothing: backward draws the same numbers again.
   ============================================================================ */

typedef struct nnti_grad_slot {          /* the gradient of one node's output, while backward is recorded */
    int value;                      /* -1: nothing has been added yet */
    int last_op;                    /* the op that wrote to it last; -1: it came from elsewhere, unchanged */
} nnti_grad_slot;

typedef struct nnti_lowering {
    nnt_net *net;
    nnti_program *p;
    nnti_value **values;
    size_t   *value_cap;
    int      *value_count;
    int       batch, training, target, precision;
    int       failed, too_large;    /* too_large: because a size passes the address space, which a smaller batch cures */
    int      *at;                   /* node -> value of its output */
    int      *aux;                  /* node -> window indices or statistics */
    int      *readers;              /* node -> how many nodes that count read it */
    char     *needed;               /* node -> the target depends on it */
    char     *learns;               /* node -> a trained parameter is at or before it */
    char     *fused;                /* relu that its producer does: it has no op of its own */
    int      *pooled;               /* maxpool -> conv or batchnorm node that is done together with it, -1; */
    int      *pools;                /*   conv or batchnorm node -> that maxpool, -1 */
    int       current;              /* the node that is being lowered */
    int      *depth;                /* node -> nodes on the longest way from the input; */
    int      *pending;              /*   readers that backward has not been through; */
    int      *stack;                /*   nodes whose turn it is */
    nnti_grad_slot *slot;
    int      *shares;               /* value -> slots that hold it */
    size_t    share_cap;
} nnti_lowering;

static size_t nnti_values_bytes(const nnti_lowering *l, int64_t per_sample, size_t element)
{
    int64_t count = nnti_mul64(per_sample, l->batch);
    size_t bytes;
    if (count < 0 || (uint64_t)count > SIZE_MAX / element) return 0;
    bytes = (size_t)count * element;
    return bytes >= NNTI_TOO_LARGE ? 0 : nnti_round_up(bytes, NNTI_ALIGN);
}
static int nnti_lowering_grow(nnti_lowering *l, void **list, size_t *cap, size_t count, size_t element)
{
    if (nnti_grow(&l->net->a, list, cap, count, element)) return 1;
    l->failed = (int)nnti_set_error(&l->net->error, NNT_ERR_MEMORY, "compile: out of memory while planning");
    return 0;
}
/* A new value of so many bytes (0: a size that passed size_t, which fails); its index. */
static int nnti_new_value(nnti_lowering *l, int kind, int node, const char *what, size_t bytes)
{
    void *values = *l->values, *shares = l->shares;
    nnti_value *v;
    if (l->failed) return 0;
    if (bytes == 0) {
        char name[NNTI_NAME_TEXT];
        l->too_large = 1;
        l->failed = (int)nnti_set_error(&l->net->error, NNT_ERR_MEMORY, "compile: the %s of '%s' at batch %d passes the address space; use a smaller batch",
                                        what, nnti_node_name(&l->net->nodes[node], name), l->batch);
        return 0;
    }
    if (!nnti_lowering_grow(l, &values, l->value_cap, (size_t)*l->value_count + 1, sizeof **l->values)) return 0;
    *l->values = (nnti_value *)values;
    if (!nnti_lowering_grow(l, &shares, &l->share_cap, (size_t)*l->value_count + 1, sizeof *l->shares)) return 0;
    l->shares = (int *)shares;
    l->shares[*l->value_count] = 0;
    v = &(*l->values)[*l->value_count];
    memset(v, 0, sizeof *v);
    v->what = what;
    v->node = node;
    v->kind = kind;
    v->bytes = bytes;
    v->first = INT_MAX;
    v->last = -1;
    v->storage = *l->value_count;
    return (*l->value_count)++;
}
static int nnti_new_activation(nnti_lowering *l, int node)
{
    return nnti_new_value(l, NNTI_VALUE_ACTIVATION, node, "output", nnti_values_bytes(l, nnti_volume(l->net->nodes[node].shape), sizeof(float)));
}
static int nnti_new_gradient(nnti_lowering *l, int node)
{
    return nnti_new_value(l, NNTI_VALUE_GRADIENT, node, "gradient", nnti_values_bytes(l, nnti_volume(l->net->nodes[node].shape), sizeof(float)));
}

/* Appends an op of a node; the index of it, 0 after a failure. */
static int nnti_emit(nnti_lowering *l, int kind, int node)
{
    nnti_program *p = l->p;
    const nnti_node *n = &l->net->nodes[node];
    void *ops = p->ops, *operands = p->operands, *owner = p->owner;
    nnt_op *op;
    int i;
    if (l->failed) return 0;
    if (!nnti_lowering_grow(l, &ops, &p->cap, (size_t)p->count + 1, sizeof *p->ops)) return 0;
    p->ops = (nnt_op *)ops;
    if (!nnti_lowering_grow(l, &operands, &p->operand_cap, ((size_t)p->count + 1) * NNT_ROLES, sizeof *p->operands)) return 0;
    p->operands = (int *)operands;
    if (!nnti_lowering_grow(l, &owner, &p->owner_cap, (size_t)p->count + 1, sizeof *p->owner)) return 0;
    p->owner = (int *)owner;
    p->owner[p->count] = l->current;
    for (i = 0; i < NNT_ROLES; i++) p->operands[p->count * NNT_ROLES + i] = -1;
    op = &p->ops[p->count];
    *op = n->geometry;
    op->kind = kind;
    op->node = node + 1;
    op->stream = (uint32_t)(node + 1);
    op->precision = l->precision;
    op->flops = n->flops;
    if (kind == NNT_OP_CONV_POOL || kind == NNT_OP_CONV_POOL_DATA || kind == NNT_OP_CONV_POOL_WEIGHT || kind == NNT_OP_BN_POOL || kind == NNT_OP_BN_POOL_GRAD) {
        const nnt_op *pool = &l->net->nodes[l->pools[node]].geometry;
        op->mid_h = op->out_h;
        op->mid_w = op->out_w;
        op->out_h = pool->out_h;
        op->out_w = pool->out_w;
        op->pool_kernel_h = pool->kernel_h;  op->pool_kernel_w = pool->kernel_w;
        op->pool_stride_h = pool->stride_h;  op->pool_stride_w = pool->stride_w;
        op->pool_pad_h = pool->pad_h;        op->pool_pad_w = pool->pad_w;
    }
    return p->count++;
}
/* Operand `role` of op `op` is `value`. */
static void nnti_use(nnti_lowering *l, int op, int role, int value)
{
    nnti_value *v;
    if (l->failed) return;
    l->p->operands[op * NNT_ROLES + role] = value;
    v = &(*l->values)[value];
    v->first = nnti_min(v->first, op);
    v->last = nnti_max(v->last, op);
}
/* Parameter i is operand -2 - i until addresses are known. */
static void nnti_use_param(nnti_lowering *l, int op, int role, int param)
{
    if (!l->failed && param >= 0) l->p->operands[op * NNT_ROLES + role] = -2 - param;
}
static int nnti_input_of(const nnt_net *net, int node, int i) { return net->edges[net->nodes[node].first_input + i]; }

/* One op X -> Y for a node, which gets a new output value. */
static int nnti_emit_forward(nnti_lowering *l, int kind, int node)
{
    int op = nnti_emit(l, kind, node);
    nnti_use(l, op, NNT_X, l->at[nnti_input_of(l->net, node, 0)]);
    l->at[node] = nnti_new_activation(l, node);
    nnti_use(l, op, NNT_Y, l->at[node]);
    return op;
}
/* Whether a node gives its input on as it is: it has no op, its output lies where its input does. */
static int nnti_passes(const nnti_lowering *l, int node)
{
    const nnti_node *n = &l->net->nodes[node];
    const nnt_op *g = &n->geometry;
    switch (n->kind) {
    case NNTI_NODE_RESHAPE:  return 1;
    case NNTI_NODE_ADAPTIVE: return g->in_h == g->out_h && g->in_w == g->out_w;
    case NNTI_NODE_DROPOUT:  return !l->training || !(g->f[0] > 0);
    case NNTI_NODE_NOISE:    return !l->training || !(g->f[0] > 0 || g->f[3] > 0);
    default:                 return 0;
    }
}
static int nnti_only_reader(const nnti_lowering *l, int node)
{
    int i, k;
    if (l->readers[node] != 1 || node == l->target) return -1;
    for (i = node + 1; i < l->net->node_count; i++)
        for (k = 0; l->needed[i] && k < l->net->nodes[i].inputs; k++)
            if (nnti_input_of(l->net, i, k) == node) return i;
    return -1;
}
/* Whether the output of a node is positive just where a relu's is that it alone reads: the relu itself, max pooling,
   dropout (what it drops has no gradient anyway), and what passes values on. */
static int nnti_keeps_sign(const nnti_lowering *l, int node)
{
    for (;;) {
        const nnti_node *n = &l->net->nodes[node];
        int in;
        if (n->kind == NNTI_NODE_ACT) return n->geometry.variant == NNT_ACT_RELU;
        if (n->kind != NNTI_NODE_MAXPOOL && n->kind != NNTI_NODE_DROPOUT && !nnti_passes(l, node)) return 0;
        in = nnti_input_of(l->net, node, 0);
        if (nnti_only_reader(l, in) != node) return 0;
        node = in;
    }
}
/* The relu that alone reads this node, if the node's op can do it on the way out; -1: none. */
static int nnti_fusable_relu(const nnti_lowering *l, int node)
{
    int next = nnti_only_reader(l, node);
    return next >= 0 && l->net->nodes[next].kind == NNTI_NODE_ACT && l->net->nodes[next].geometry.variant == NNT_ACT_RELU ? next : -1;
}
/* The max pooling that takes all that this conv or batchnorm makes, perhaps through a relu; -1: none. The map between
   them then never lies in the arena. */
static int nnti_fusable_pool(const nnti_lowering *l, int node, int *relu)
{
    int next = nnti_fusable_relu(l, node);
    *relu = next >= 0 ? next : 0;
    next = nnti_only_reader(l, next >= 0 ? next : node);
    if (l->net->nodes[node].keep || (*relu && l->net->nodes[*relu].keep)) return -1;    /* there has to be a value to keep */
    return next >= 0 && l->net->nodes[next].kind == NNTI_NODE_MAXPOOL ? next : -1;
}
/* A conv or batchnorm op that pools as well: sizes, output and window indices are the maxpool's. */
static int nnti_emit_pooling(nnti_lowering *l, int kind, int node, int pool, int relu)
{
    const nnti_node *p = &l->net->nodes[pool];
    int op;
    l->pools[node] = pool;
    l->pooled[pool] = node;
    op = nnti_emit(l, kind, node);
    if (l->failed) return 0;
    if (relu) {
        l->fused[relu] = 1;
        l->p->ops[op].flags |= NNT_OPF_RELU;
    }
    nnti_use(l, op, NNT_X, l->at[nnti_input_of(l->net, node, 0)]);
    l->at[pool] = nnti_new_activation(l, pool);
    nnti_use(l, op, NNT_Y, l->at[pool]);
    if (l->training && l->learns[pool]) {
        size_t element = (int64_t)p->geometry.kernel_h * p->geometry.kernel_w <= 256 ? 1 : 4;
        l->aux[pool] = nnti_new_value(l, NNTI_VALUE_ACTIVATION, pool, "window index", nnti_values_bytes(l, nnti_volume(p->shape), element));
        nnti_use(l, op, NNT_AUX, l->aux[pool]);
    }
    return op;
}
static void nnti_fuse_relu(nnti_lowering *l, int op, int node)
{
    int relu = nnti_fusable_relu(l, node);
    if (relu < 0 || l->failed) return;
    l->p->ops[op].flags |= NNT_OPF_RELU;
    l->fused[relu] = 1;
}

static void nnti_lower_forward(nnti_lowering *l, int node)
{
    const nnti_node *n = &l->net->nodes[node];
    int op, in = n->inputs ? nnti_input_of(l->net, node, 0) : -1, i, offset, pool, relu = 0;
    l->current = node;
    switch (n->kind) {
    case NNTI_NODE_INPUT:
        l->at[node] = nnti_new_activation(l, node);
        if (!l->failed) {
            (*l->values)[l->at[node]].first = -1;
            (*l->values)[l->at[node]].given = 1;
        }
        break;
    case NNTI_NODE_RESHAPE: l->at[node] = l->at[in]; break;
    case NNTI_NODE_CONV:
    case NNTI_NODE_LINEAR:
        pool = n->kind == NNTI_NODE_CONV ? nnti_fusable_pool(l, node, &relu) : -1;
        if (pool >= 0) {
            op = nnti_emit_pooling(l, NNT_OP_CONV_POOL, node, pool, relu);
            nnti_use_param(l, op, NNT_W, n->weight);
            nnti_use_param(l, op, NNT_B, n->bias);
            break;
        }
        op = nnti_emit_forward(l, n->kind == NNTI_NODE_CONV ? NNT_OP_CONV : NNT_OP_LINEAR, node);
        nnti_use_param(l, op, NNT_W, n->weight);
        nnti_use_param(l, op, NNT_B, n->bias);
        nnti_fuse_relu(l, op, node);
        break;
    case NNTI_NODE_ACT:
        if (l->fused[node]) l->at[node] = l->at[in];
        else nnti_emit_forward(l, NNT_OP_ACT, node);
        break;
    case NNTI_NODE_SOFTMAX:  nnti_emit_forward(l, NNT_OP_SOFTMAX, node);  break;
    case NNTI_NODE_AVGPOOL:  nnti_emit_forward(l, NNT_OP_AVGPOOL, node);  break;
    case NNTI_NODE_ADAPTIVE:
        if (nnti_passes(l, node)) l->at[node] = l->at[in];
        else nnti_emit_forward(l, NNT_OP_ADAPTIVE, node);
        break;
    case NNTI_NODE_MAXPOOL:
        if (l->pooled[node] >= 0) break;
        op = nnti_emit_forward(l, NNT_OP_MAXPOOL, node);
        if (l->training && l->learns[node]) {
            size_t element = (int64_t)n->geometry.kernel_h * n->geometry.kernel_w <= 256 ? 1 : 4;
            l->aux[node] = nnti_new_value(l, NNTI_VALUE_ACTIVATION, node, "window index", nnti_values_bytes(l, nnti_volume(n->shape), element));
            nnti_use(l, op, NNT_AUX, l->aux[node]);
        }
        break;
    case NNTI_NODE_BATCHNORM:
        if (l->training) {
            op = nnti_emit(l, NNT_OP_BN_STATS, node);
            nnti_use(l, op, NNT_X, l->at[in]);
            l->aux[node] = nnti_new_value(l, NNTI_VALUE_ACTIVATION, node, "statistics", nnti_round_up((size_t)n->shape[0] * 3 * sizeof(float), NNTI_ALIGN));
            if (!l->failed) (*l->values)[l->aux[node]].persistent = 1;
            nnti_use(l, op, NNT_STATS, l->aux[node]);
        }
        pool = nnti_fusable_pool(l, node, &relu);
        if (pool >= 0) op = nnti_emit_pooling(l, NNT_OP_BN_POOL, node, pool, relu);
        else op = nnti_emit_forward(l, l->training ? NNT_OP_BN_APPLY : NNT_OP_BN_EVAL, node);
        if (l->training) nnti_use(l, op, NNT_STATS, l->aux[node]);
        else nnti_use_param(l, op, NNT_RUNNING, n->running);
        nnti_use_param(l, op, NNT_W, n->weight);
        nnti_use_param(l, op, NNT_B, n->bias);
        if (pool < 0) nnti_fuse_relu(l, op, node);
        break;
    case NNTI_NODE_DROPOUT:
    case NNTI_NODE_NOISE:
        if (nnti_passes(l, node)) l->at[node] = l->at[in];
        else {
            op = nnti_emit_forward(l, n->kind == NNTI_NODE_DROPOUT ? NNT_OP_DROPOUT : NNT_OP_NOISE, node);
            if (!l->failed && n->kind == NNTI_NODE_DROPOUT) l->p->ops[op].variant = nnti_keeps_sign(l, node);
        }
        break;
    case NNTI_NODE_ADD:
        op = nnti_emit_forward(l, NNT_OP_ADD, node);
        nnti_use(l, op, NNT_X2, l->at[nnti_input_of(l->net, node, 1)]);
        nnti_fuse_relu(l, op, node);
        break;
    case NNTI_NODE_CONCAT:
        l->at[node] = nnti_new_activation(l, node);
        for (i = 0, offset = 0; i < n->inputs; i++) {
            int from = nnti_input_of(l->net, node, i);
            op = nnti_emit(l, NNT_OP_CONCAT, node);
            nnti_use(l, op, NNT_X, l->at[from]);
            nnti_use(l, op, NNT_Y, l->at[node]);
            if (!l->failed) {
                l->p->ops[op].in_c = l->net->nodes[from].shape[0];
                l->p->ops[op].channel_offset = offset;
            }
            offset += l->net->nodes[from].shape[0];
        }
        break;
    default: break;                         /* losses: nnti_lower_loss */
    }
}

/* ---- gradients */

/* COPY or ACCUMULATE of a gradient of the node's output: X -> Y. */
static int nnti_emit_copy(nnti_lowering *l, int kind, int node, int x, int y)
{
    int op = nnti_emit(l, kind, node);
    nnti_use(l, op, NNT_X, x);
    nnti_use(l, op, NNT_Y, y);
    if (!l->failed) {
        nnt_op *o = &l->p->ops[op];
        o->in_c = o->out_c;
        o->in_h = o->out_h;
        o->in_w = o->out_w;
    }
    return op;
}
/* From here on the slot of `node` may be written to: when others hold the same memory, it moves to a copy. */
static int nnti_own(nnti_lowering *l, int node)
{
    int value = l->slot[node].value, copy;
    if (l->failed || l->shares[value] == 1) return value;
    copy = nnti_new_gradient(l, node);
    nnti_emit_copy(l, NNT_OP_COPY, node, value, copy);
    if (l->failed) return 0;
    l->shares[value]--;
    l->shares[copy] = 1;
    l->slot[node].value = copy;
    l->slot[node].last_op = -1;
    return copy;
}
/* Adds the gradient in `value`, which stays another's too, to a node's slot. */
static void nnti_give(nnti_lowering *l, int node, int value, int last_op)
{
    if (l->failed || !l->learns[node]) return;
    if (l->slot[node].value < 0) {
        l->slot[node].value = value;
        l->slot[node].last_op = last_op;
        l->shares[value]++;
    } else {
        int mine = nnti_own(l, node);
        l->slot[node].last_op = nnti_emit_copy(l, NNT_OP_ACCUMULATE, node, value, mine);
    }
}
/* GX of an op that can set or add: the slot of the node gets it. */
static void nnti_give_gx(nnti_lowering *l, int op, int node)
{
    if (l->failed) return;
    if (l->slot[node].value < 0) {
        l->slot[node].value = nnti_new_gradient(l, node);
        if (l->failed) return;
        l->shares[l->slot[node].value] = 1;
    } else {
        l->p->ops[op].flags |= NNT_OPF_ACCUMULATE;
    }
    nnti_use(l, op, NNT_GX, l->slot[node].value);
    l->slot[node].last_op = op;
}
/* An op from GY of a node to GX of its input i, emitted after the slot of that input has been made its own. */
static int nnti_emit_data(nnti_lowering *l, int kind, int node, int i)
{
    int in = nnti_input_of(l->net, node, i), op;
    if (l->slot[in].value >= 0) nnti_own(l, in);
    op = nnti_emit(l, kind, node);
    nnti_use(l, op, NNT_GY, l->slot[node].value);
    nnti_give_gx(l, op, in);
    return op;
}
/* An op that can only set GX: the result is then given to the input. */
static int nnti_emit_set(nnti_lowering *l, int kind, int node)
{
    int in = nnti_input_of(l->net, node, 0), op, gx;
    gx = nnti_new_gradient(l, in);
    op = nnti_emit(l, kind, node);
    nnti_use(l, op, NNT_GY, l->slot[node].value);
    nnti_use(l, op, NNT_GX, gx);
    nnti_give(l, in, gx, op);
    return op;
}
static int nnti_can_mask(int kind)
{
    return kind == NNT_OP_CONV_DATA || kind == NNT_OP_CONV_POOL_DATA || kind == NNT_OP_LINEAR_DATA || kind == NNT_OP_MAXPOOL_GRAD || kind == NNT_OP_AVGPOOL_GRAD
        || kind == NNT_OP_ADAPTIVE_GRAD || kind == NNT_OP_BN_GRAD || kind == NNT_OP_CONCAT_GRAD || kind == NNT_OP_ACCUMULATE;
}
static int nnti_can_go_over_mask(const nnt_op *op)
{
    if (op->flags & NNT_OPF_ACCUMULATE) return 0;
    return op->kind == NNT_OP_CONV_DATA || op->kind == NNT_OP_CONV_POOL_DATA || op->kind == NNT_OP_LINEAR_DATA
        || nnti_is_global_mean(op);
}
/* Backward of relu: the gradient of its output becomes 0 where the output is. Also for a max pooling that alone reads a
   relu: masking before or after it is the same, and its output is smaller. */
static void nnti_mask_slot(nnti_lowering *l, int node)
{
    nnti_grad_slot *s = &l->slot[node];
    int op = s->last_op, mine;
    if (l->failed) return;
    if (op >= 0 && l->shares[s->value] == 1 && nnti_can_mask(l->p->ops[op].kind) && !(l->p->ops[op].flags & NNT_OPF_MASK)) {
        nnt_op *o = &l->p->ops[op];
        o->flags |= NNT_OPF_MASK;
        if (nnti_can_go_over_mask(o)) o->flags |= NNT_OPF_OVER;
        nnti_use(l, op, NNT_MASK, l->at[node]);
        return;
    }
    mine = nnti_own(l, node);
    op = nnti_emit(l, NNT_OP_ACT_GRAD, node);
    nnti_use(l, op, NNT_GY, mine);
    nnti_use(l, op, NNT_GX, mine);
    nnti_use(l, op, NNT_Y, l->at[node]);
    if (!l->failed) {
        nnt_op *o = &l->p->ops[op];
        o->variant = NNT_ACT_RELU;
        o->in_c = o->out_c;
        o->in_h = o->out_h;
        o->in_w = o->out_w;
    }
}

/* A relu's mask is applied once, at the last node of such a run: its output is the smallest, and nothing before it has
   to be kept for that. */
static int nnti_masks_here(const nnti_lowering *l, int node)
{
    int reader = nnti_only_reader(l, node);
    return nnti_keeps_sign(l, node) && !(reader >= 0 && nnti_keeps_sign(l, reader));
}
/* Backward of a conv or batchnorm together with its pooling, whose gradient is complete and masked. */
static void nnti_lower_backward_pooled(nnti_lowering *l, int node, int pool)
{
    const nnti_node *n = &l->net->nodes[node];
    int in = nnti_input_of(l->net, node, 0), op, gx;
    if (n->kind == NNTI_NODE_CONV) {
        op = nnti_emit(l, NNT_OP_CONV_POOL_WEIGHT, node);
        nnti_use(l, op, NNT_X, l->at[in]);
        nnti_use(l, op, NNT_GY, l->slot[pool].value);
        nnti_use(l, op, NNT_AUX, l->aux[pool]);
        nnti_use_param(l, op, NNT_GW, n->weight);
        nnti_use_param(l, op, NNT_GB, n->bias);
        if (!l->learns[in]) return;
        if (l->slot[in].value >= 0) nnti_own(l, in);
        op = nnti_emit(l, NNT_OP_CONV_POOL_DATA, node);
        nnti_use(l, op, NNT_GY, l->slot[pool].value);
        nnti_use(l, op, NNT_AUX, l->aux[pool]);
        nnti_use_param(l, op, NNT_W, n->weight);
        nnti_give_gx(l, op, in);
        return;
    }
    gx = nnti_new_gradient(l, in);
    op = nnti_emit(l, NNT_OP_BN_POOL_GRAD, node);
    nnti_use(l, op, NNT_X, l->at[in]);
    nnti_use(l, op, NNT_GY, l->slot[pool].value);
    nnti_use(l, op, NNT_AUX, l->aux[pool]);
    nnti_use(l, op, NNT_STATS, l->aux[node]);
    nnti_use_param(l, op, NNT_W, n->weight);
    nnti_use_param(l, op, NNT_GW, n->weight);
    nnti_use_param(l, op, NNT_GB, n->bias);
    nnti_use(l, op, NNT_GX, gx);
    nnti_give(l, in, gx, -1);
}

static void nnti_lower_backward(nnti_lowering *l, int node)
{
    const nnti_node *n = &l->net->nodes[node];
    int op, in = n->inputs ? nnti_input_of(l->net, node, 0) : -1, i, offset, conv = n->kind == NNTI_NODE_CONV;
    if (l->slot[node].value < 0) return;    /* nothing that counts reads it */
    l->current = node;
    if (nnti_masks_here(l, node)) nnti_mask_slot(l, node);
    switch (n->kind) {
    case NNTI_NODE_CONV:
    case NNTI_NODE_LINEAR:
        op = nnti_emit(l, conv ? NNT_OP_CONV_WEIGHT : NNT_OP_LINEAR_WEIGHT, node);
        nnti_use(l, op, NNT_X, l->at[in]);
        nnti_use(l, op, NNT_GY, l->slot[node].value);
        nnti_use_param(l, op, NNT_GW, n->weight);
        nnti_use_param(l, op, NNT_GB, n->bias);
        if (l->learns[in]) {
            op = nnti_emit_data(l, conv ? NNT_OP_CONV_DATA : NNT_OP_LINEAR_DATA, node, 0);
            nnti_use_param(l, op, NNT_W, n->weight);
        }
        break;
    case NNTI_NODE_BATCHNORM:
        if (l->learns[in]) {
            op = nnti_emit_data(l, NNT_OP_BN_GRAD, node, 0);
        } else {                            /* batch norm right on the input: only its weights want a gradient */
            op = nnti_emit(l, NNT_OP_BN_GRAD, node);
            nnti_use(l, op, NNT_GY, l->slot[node].value);
            nnti_use(l, op, NNT_GX, nnti_new_gradient(l, in));
        }
        nnti_use(l, op, NNT_X, l->at[in]);
        nnti_use(l, op, NNT_STATS, l->aux[node]);
        nnti_use_param(l, op, NNT_W, n->weight);
        nnti_use_param(l, op, NNT_GW, n->weight);
        nnti_use_param(l, op, NNT_GB, n->bias);
        break;
    case NNTI_NODE_RESHAPE:
        nnti_give(l, in, l->slot[node].value, l->slot[node].last_op);
        break;
    case NNTI_NODE_ACT:
        if (n->geometry.variant == NNT_ACT_RELU) {
            nnti_give(l, in, l->slot[node].value, l->slot[node].last_op);
        } else {
            op = nnti_emit_set(l, NNT_OP_ACT_GRAD, node);
            if (n->geometry.variant == NNT_ACT_GELU) nnti_use(l, op, NNT_X, l->at[in]);
            else nnti_use(l, op, NNT_Y, l->at[node]);
        }
        break;
    case NNTI_NODE_SOFTMAX:
        op = nnti_emit_set(l, NNT_OP_SOFTMAX_GRAD, node);
        nnti_use(l, op, NNT_Y, l->at[node]);
        break;
    case NNTI_NODE_MAXPOOL:
        if (l->pooled[node] >= 0) { nnti_lower_backward_pooled(l, l->pooled[node], node); break; }
        op = nnti_emit_data(l, NNT_OP_MAXPOOL_GRAD, node, 0);
        nnti_use(l, op, NNT_AUX, l->aux[node]);
        break;
    case NNTI_NODE_AVGPOOL:  nnti_emit_data(l, NNT_OP_AVGPOOL_GRAD, node, 0);  break;
    case NNTI_NODE_ADAPTIVE:
        if (nnti_passes(l, node)) nnti_give(l, in, l->slot[node].value, l->slot[node].last_op);
        else nnti_emit_data(l, NNT_OP_ADAPTIVE_GRAD, node, 0);
        break;
    case NNTI_NODE_DROPOUT:
        if (nnti_passes(l, node)) { nnti_give(l, in, l->slot[node].value, l->slot[node].last_op); break; }
        {   /* the same op on gradients: X is GY, Y is GX */
            int gx = nnti_new_gradient(l, in);
            op = nnti_emit(l, NNT_OP_DROPOUT, node);
            nnti_use(l, op, NNT_X, l->slot[node].value);
            nnti_use(l, op, NNT_Y, gx);
            nnti_give(l, in, gx, -1);
        }
        break;
    case NNTI_NODE_NOISE:                   /* additive noise passes the gradient on; values that were replaced don't */
        if (nnti_passes(l, node) || (n->geometry.variant != NNT_NOISE_SALT_PEPPER && !(n->geometry.f[3] > 0))) {
            nnti_give(l, in, l->slot[node].value, -1);
        } else {
            op = nnti_emit_set(l, NNT_OP_NOISE_GRAD, node);
            nnti_use(l, op, NNT_X, l->at[in]);
        }
        break;
    case NNTI_NODE_ADD:
        for (i = 0; i < 2; i++) nnti_give(l, nnti_input_of(l->net, node, i), l->slot[node].value, -1);
        break;
    case NNTI_NODE_CONCAT:
        for (i = 0, offset = 0; i < n->inputs; i++) {
            int from = nnti_input_of(l->net, node, i);
            if (l->learns[from]) {
                op = nnti_emit_data(l, NNT_OP_CONCAT_GRAD, node, i);
                if (!l->failed) {
                    l->p->ops[op].in_c = l->net->nodes[from].shape[0];
                    l->p->ops[op].channel_offset = offset;
                }
            }
            offset += l->net->nodes[from].shape[0];
        }
        break;
    default: break;
    }
    if (!l->failed) l->shares[l->slot[node].value]--;
}

static int nnti_goes_first(const nnti_lowering *l, int a, int b)
{
    return l->depth[a] != l->depth[b] ? l->depth[a] > l->depth[b] : a > b;
}
/* Backward of all nodes up to `last`. Where branches meet, the longest is followed to its end first: a residual block's
   shortcut comes after its main branch and adds its part last, so that no gradient of the block's input has to wait
   while the main branch works. */
static void nnti_lower_backwards(nnti_lowering *l, int last)
{
    const nnt_net *net = l->net;
    int i, k, top = 0;
    for (i = 0; i <= last; i++) {
        l->pending[i] = l->readers[i];
        for (k = 0, l->depth[i] = 0; k < net->nodes[i].inputs; k++)
            l->depth[i] = nnti_max(l->depth[i], l->depth[nnti_input_of(net, i, k)] + 1);
    }
    l->stack[top++] = last;
    while (top > 0 && !l->failed) {
        int node = l->stack[--top], base = top, place;
        if (l->learns[node]) nnti_lower_backward(l, node);
        for (k = 0; k < net->nodes[node].inputs; k++) {
            int in = nnti_input_of(net, node, k);
            if (--l->pending[in]) continue;
            for (place = top++; place > base && nnti_goes_first(l, l->stack[place - 1], in); place--)
                l->stack[place] = l->stack[place - 1];
            l->stack[place] = in;
        }
    }
}

/* A value that is there before the first op and is filled from outside. */
static int nnti_new_given(nnti_lowering *l, int node, const char *what, int64_t per_sample, size_t element)
{
    int v = nnti_new_value(l, NNTI_VALUE_ACTIVATION, node, what, nnti_values_bytes(l, per_sample, element));
    if (!l->failed) {
        (*l->values)[v].first = -1;
        (*l->values)[v].persistent = (*l->values)[v].given = 1;
    }
    return v;
}
static void nnti_lower_loss(nnti_lowering *l, int node, int program, nnti_plan *plan)
{
    const nnti_node *n = &l->net->nodes[node];
    int in = nnti_input_of(l->net, node, 0), op, gx, cross = n->kind == NNTI_NODE_CROSS_ENTROPY;
    l->current = node;
    op = nnti_emit(l, cross ? NNT_OP_CROSS_ENTROPY : NNT_OP_MSE, node);
    l->p->loss_op = op;
    nnti_use(l, op, NNT_X, l->at[in]);
    if (cross) {
        plan->labels[program] = nnti_new_given(l, node, "labels", 1, sizeof(int32_t));
        nnti_use(l, op, NNT_LABELS, plan->labels[program]);
        nnti_use_param(l, op, NNT_W, n->weight);
    } else {
        plan->targets[program] = nnti_new_given(l, node, "targets", nnti_volume(l->net->nodes[in].shape), sizeof(float));
        nnti_use(l, op, NNT_TARGETS, plan->targets[program]);
    }
    plan->loss[program] = nnti_new_value(l, NNTI_VALUE_ACTIVATION, node, "loss", nnti_round_up(sizeof(nnt_loss), NNTI_ALIGN));
    if (!l->failed) (*l->values)[plan->loss[program]].persistent = 1;
    nnti_use(l, op, NNT_LOSS, plan->loss[program]);
    if (l->training && l->learns[in]) {
        gx = nnti_new_gradient(l, in);
        nnti_use(l, op, NNT_GX, gx);
        nnti_give(l, in, gx, op);
    }
}

/* ---- places */

/* Whether the op may write the operand of role `to` over the one of role `from`, when nothing needs that later. */
static int nnti_in_place(const nnt_op *op, int to, int from)
{
    switch (op->kind) {
    case NNT_OP_ACT: case NNT_OP_DROPOUT: case NNT_OP_NOISE: case NNT_OP_BN_APPLY: case NNT_OP_BN_EVAL:
        return to == NNT_Y && from == NNT_X;
    case NNT_OP_ADD:
        return to == NNT_Y && (from == NNT_X || from == NNT_X2);
    case NNT_OP_ACT_GRAD: case NNT_OP_NOISE_GRAD: case NNT_OP_SOFTMAX_GRAD:
        return to == NNT_GX && from == NNT_GY;
    case NNT_OP_BN_GRAD:
        return to == NNT_GX && (from == NNT_GY || from == NNT_X) && !(op->flags & NNT_OPF_ACCUMULATE);
    case NNT_OP_CONV_DATA: case NNT_OP_CONV_POOL_DATA: case NNT_OP_LINEAR_DATA: case NNT_OP_ADAPTIVE_GRAD:
        return to == NNT_GX && from == NNT_MASK && (op->flags & NNT_OPF_OVER) != 0;
    case NNT_OP_CROSS_ENTROPY: case NNT_OP_MSE: case NNT_OP_BN_POOL_GRAD:
        return to == NNT_GX && from == NNT_X;
    default: return 0;
    }
}
/* Joins storage where an op writes over an operand that dies there. Afterwards v->storage names the value that owns the
   place, whose first and last cover all that live in it. */
static void nnti_join_storage(const nnti_program *p, nnti_value *v)
{
    int i, to, from;
    for (i = 0; i < p->count; i++) {
        const int *o = &p->operands[i * NNT_ROLES];
        for (to = 0; to < NNT_ROLES; to++) {
            if (o[to] < 0 || v[o[to]].first != i || v[o[to]].storage != o[to]) continue;
            for (from = 0; from < NNT_ROLES; from++) {
                int owner;
                if (o[from] < 0 || !nnti_in_place(&p->ops[i], to, from)) continue;
                owner = v[o[from]].storage;
                if (v[owner].last != i || v[owner].bytes < v[o[to]].bytes) continue;
                v[o[to]].storage = owner;
                v[owner].last = v[o[to]].last;
                break;
            }
        }
    }
}

typedef struct nnti_place { int value, key_first; size_t bytes, area; } nnti_place;
static int nnti_by_size(const void *a, const void *b)
{
    const nnti_place *x = (const nnti_place *)a, *y = (const nnti_place *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->value - y->value;
}
static int nnti_by_area(const void *a, const void *b)
{
    const nnti_place *x = (const nnti_place *)a, *y = (const nnti_place *)b;
    if (x->area != y->area) return x->area < y->area ? 1 : -1;
    return x->value - y->value;
}
static int nnti_by_first(const void *a, const void *b)
{
    const nnti_place *x = (const nnti_place *)a, *y = (const nnti_place *)b;
    if (x->key_first != y->key_first) return x->key_first - y->key_first;
    return nnti_by_size(a, b);
}
/* Each storage at the lowest offset that is free over its life, in the given order (Pisarchyk and Lee, arXiv
   2001.03288, greedy by size, when the order is that). The arena's bytes. `sorted`: indices of what is placed already,
   by offset. */
static size_t nnti_place_all(nnti_value *v, const nnti_place *order, int count, int *sorted)
{
    size_t top = 0;
    int placed = 0, i, j;
    for (i = 0; i < count; i++) {
        nnti_value *mine = &v[order[i].value];
        size_t offset = 0;
        for (j = 0; j < placed; j++) {
            const nnti_value *other = &v[sorted[j]];
            if (other->first > mine->last || other->last < mine->first) continue;
            if (offset + mine->bytes <= other->offset) break;
            if (other->offset + other->bytes > offset) offset = other->offset + other->bytes;
        }
        mine->offset = offset;
        for (j = placed++; j > 0 && v[sorted[j - 1]].offset > offset; j--) sorted[j] = sorted[j - 1];
        sorted[j] = order[i].value;
        if (offset + mine->bytes > top) top = offset + mine->bytes;
    }
    return top;
}
/* Offsets for all values: the best of three orders. 0 when scratch memory is out. */
static int nnti_place_values(const nnt_allocator *a, nnti_value *v, int count, size_t *arena)
{
    int (*const orders[3])(const void *, const void *) = { nnti_by_size, nnti_by_area, nnti_by_first };
    nnti_place *order = (nnti_place *)nnti_zalloc(a, (size_t)count + 1, sizeof *order);
    int *sorted = (int *)nnti_zalloc(a, (size_t)count + 1, sizeof *sorted);
    int i, k, best = 0, n = 0, ok = order && sorted;
    if (ok) {
        for (i = 0; i < count; i++) {
            if (v[i].storage != i) continue;
            order[n].value = i;
            order[n].key_first = v[i].first;
            order[n].bytes = v[i].bytes;
            order[n].area = v[i].bytes / NNTI_ALIGN * (size_t)(v[i].last - v[i].first + 1);
            n++;
        }
        *arena = SIZE_MAX;
        for (k = 0; k <= 3; k++) {          /* the last round repeats the best */
            size_t top;
            qsort(order, (size_t)n, sizeof *order, orders[k < 3 ? k : best]);
            top = nnti_place_all(v, order, n, sorted);
            if (top < *arena) { *arena = top; best = k; }
        }
        for (i = 0; i < count; i++) v[i].offset = v[v[i].storage].offset;
    }
    nnti_free(a, order, ((size_t)count + 1) * sizeof *order);
    nnti_free(a, sorted, ((size_t)count + 1) * sizeof *sorted);
    return ok;
}

static void nnti_program_free(const nnt_allocator *a, nnti_program *p)
{
    nnti_free(a, p->ops, p->cap * sizeof *p->ops);
    nnti_free(a, p->operands, p->operand_cap * sizeof *p->operands);
    nnti_free(a, p->owner, p->owner_cap * sizeof *p->owner);
    memset(p, 0, sizeof *p);
}
static void nnti_plan_free(const nnt_allocator *a, nnti_plan *plan)
{
    nnti_program_free(a, &plan->train);
    nnti_program_free(a, &plan->predict);
    nnti_free(a, plan->train_values, plan->train_value_cap * sizeof *plan->train_values);
    nnti_free(a, plan->predict_values, plan->predict_value_cap * sizeof *plan->predict_values);
    memset(plan, 0, sizeof *plan);
}

/* ============================================================================
   >>stages    The training program as a chain of stages, and back
   Cuts the flat list of >>plan where a single value is passed on, hands the stages to >>schedule, and writes the
   program anew in the order, with the repetitions and at the places that it answers.

   Values that an op outside of the stages needs (labels, targets, the loss, batch statistics) are not scheduled: they
   lie in front of the arena for the whole step. Inside a stage each version of a value is one of the chain's values:
   an op that works in place reads one version and writes the next in its storage.
   ============================================================================ */

typedef struct nnti_staging {
    nnt_net       *net;
    nnti_program  *p;
    nnti_value    *v;
    int            values, stages, batch;
    int           *stage_of;        /* op -> stage, 0 .. stages-1 */
    int           *cut;             /* stage -> the value that it reads as x; cut[0] is the input */
    int           *gradient;        /* stage -> the value that holds the gradient of its y; -1: none */
    int           *local;           /* value -> its id in the stage at hand, the newest version; -1 */
    int           *maker;           /* value -> first op that writes it, -1: given */
    int           *forward_use;     /* value -> last op up to the loss that touches it */
    int           *backward_use;    /* value -> whether an op behind the loss reads it */
    signed char   *read_at;         /* op, role -> which of the step's reads it is, -1 */
    signed char   *write_at;        /* op, role -> which of its writes, -1 */
    int           *origin;          /* the chain's inner values, stage by stage -> value */
    size_t         origin_cap;
    int            origins;
    int           *origin_base;     /* stage -> where its inner values begin in origin */
    nnti_chain     chain;
    int            failed;
} nnti_staging;

/* In the order of NNT_OP_... */
static const char *const nnti_op_names[NNT_OP_KINDS] = {
    "none", "copy", "accumulate", "conv", "conv_data", "conv_weight",
    "conv_pool", "conv_pool_data", "conv_pool_weight", "linear", "linear_data", "linear_weight", "act", "act_grad",
    "maxpool", "maxpool_grad", "avgpool", "avgpool_grad", "adaptive", "adaptive_grad", "dropout", "noise", "noise_grad", "bn_stats",
    "bn_running", "bn_apply", "bn_eval", "bn_grad", "bn_pool", "bn_pool_grad", "add", "concat", "concat_grad", "softmax", "softmax_grad", "cross_entropy", "mse",
    "grad_norm", "update"
};
static int nnti_pools(int kind) { return kind == NNT_OP_MAXPOOL || kind == NNT_OP_CONV_POOL || kind == NNT_OP_BN_POOL; }
/* Whether an op writes the operand of a role; what it also reads is told by nnti_op_reads. */
static int nnti_op_writes(const nnt_op *op, int role)
{
    switch (role) {
    case NNT_Y:     return op->kind != NNT_OP_ACT_GRAD && op->kind != NNT_OP_SOFTMAX_GRAD;
    case NNT_AUX:   return nnti_pools(op->kind);
    case NNT_STATS: return op->kind == NNT_OP_BN_STATS;
    case NNT_GX: case NNT_LOSS: return 1;
    default:        return 0;
    }
}
static int nnti_op_reads(const nnt_op *op, int role)
{
    if (role == NNT_GX) return (op->flags & NNT_OPF_ACCUMULATE) != 0;
    if (role == NNT_Y && op->kind == NNT_OP_CONCAT) return op->channel_offset > 0;
    if (role == NNT_Y && op->kind == NNT_OP_ACCUMULATE) return 1;
    return !nnti_op_writes(op, role);
}
static int nnti_is_heavy(int kind)
{
    return kind == NNT_OP_CONV || kind == NNT_OP_LINEAR || kind == NNT_OP_CONV_POOL;
}
static const int *nnti_operands(const nnti_program *p, int op) { return &p->operands[op * NNT_ROLES]; }

/* The value that is alone passed on from op t to later forward ops, or -1. */
static int nnti_single_open(const nnti_staging *s, int t)
{
    int i, found = -1;
    for (i = 0; i < s->values; i++) {
        if (s->v[i].persistent || s->v[i].kind != NNTI_VALUE_ACTIVATION || s->maker[i] > t || s->forward_use[i] <= t) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}
/* Where the stage ends whose heavy op is `heavy`, the next one being `next`: behind the layers that belong to it, before
   those that backward makes again anyway. Writes the value; returns the op, or -1. */
static int nnti_choose_cut(const nnti_staging *s, int heavy, int next, int *value)
{
    int t, last = -1, early = -1, widens = 0;
    for (t = heavy; t < next; t++) {
        int kind = s->p->ops[t].kind, open;
        if (t > heavy && (kind == NNT_OP_NOISE || (kind == NNT_OP_DROPOUT && !s->p->ops[t].variant))) break;
        if (kind == NNT_OP_MAXPOOL || kind == NNT_OP_AVGPOOL || kind == NNT_OP_ADAPTIVE || kind == NNT_OP_ADD || kind == NNT_OP_CONCAT || kind == NNT_OP_BN_POOL) widens = 1;
        open = nnti_single_open(s, t);
        if (open < 0) continue;
        last = t;
        if (t + 1 < s->p->count && s->p->ops[t + 1].kind == NNT_OP_BN_STATS && early < 0) early = t;
    }
    t = early >= 0 && !widens ? early : last;
    if (t >= 0) *value = nnti_single_open(s, t);
    return t;
}
/* Forward ops to stages. */
static void nnti_cut_forward(nnti_staging *s)
{
    const nnti_program *p = s->p;
    int t, heavy = -1, begin = 0, stage = 0, i;
    for (t = 0; t <= p->loss_op; t++) {
        int value = -1, end;
        if (!nnti_is_heavy(p->ops[t].kind)) continue;
        if (heavy >= 0) {
            end = nnti_choose_cut(s, heavy, t, &value);
            if (end >= 0) {
                for (i = begin; i <= end; i++) s->stage_of[i] = stage;
                begin = end + 1;
                s->cut[++stage] = value;
            }
        }
        heavy = t;
    }
    for (i = begin; i <= p->loss_op; i++) s->stage_of[i] = stage;
    s->stages = stage + 1;
}
static int nnti_cut_stage(const nnti_staging *s, int value)     /* the stage that reads it as x, or -1 */
{
    int k;
    for (k = 0; k < s->stages; k++) if (s->cut[k] == value) return k;
    return -1;
}
/* Backward ops to stages, by the node that they were emitted for; one that needs its own node's output belongs to the
   stage that has that as x. 0 when the stages don't follow each other in reverse, or gradients cross where they must not. */
static int nnti_cut_backward(nnti_staging *s, const int *node_stage)
{
    const nnti_program *p = s->p;
    int t, role, k, stage = s->stages - 1;
    for (t = p->loss_op + 1; t < p->count - p->update_ops; t++) {
        const int *o = nnti_operands(p, t);
        int mine = node_stage[p->owner[t]];
        if (o[NNT_Y] >= 0 && !nnti_op_writes(&p->ops[t], NNT_Y)) {
            k = nnti_cut_stage(s, o[NNT_Y]);
            if (k >= 0) mine = k;
        }
        if (mine > stage) return 0;
        stage = mine;
        s->stage_of[t] = stage;
    }
    for (k = 0; k < s->stages; k++) s->gradient[k] = -1;
    for (t = p->loss_op + 1; t < p->count - p->update_ops; t++) {
        const int *o = nnti_operands(p, t);
        for (role = 0; role < NNT_ROLES; role++) {
            int v = o[role];
            if (v < 0 || s->v[v].persistent) continue;
            if (s->v[v].kind == NNTI_VALUE_GRADIENT) {
                if (s->maker[v] <= p->loss_op && s->stage_of[t] == s->stages - 1) continue;
                if (s->stage_of[s->maker[v]] == s->stage_of[t]) continue;
                k = s->stage_of[t];             /* made in a later stage: it must be this one's gy, and the only one */
                if (nnti_op_reads(&p->ops[t], role) && (s->gradient[k] < 0 || s->gradient[k] == v)) s->gradient[k] = v;
                else return 0;
            } else {                            /* forward values of other stages: x only */
                k = s->maker[v] < 0 ? 0 : s->stage_of[s->maker[v]];
                if (k != s->stage_of[t] && s->cut[s->stage_of[t]] != v) return 0;
                if (k == s->stage_of[t] && k + 1 < s->stages && s->cut[k + 1] == v) return 0;      /* y */
            }
        }
    }
    for (k = 0; k + 1 < s->stages; k++) if (s->gradient[k] < 0) return 0;
    return 1;
}

/* ---- to the chain */

static int nnti_inner(nnti_staging *s, int value, int tape)
{
    void *origin = s->origin;
    if (!nnti_grow(&s->net->a, &origin, &s->origin_cap, (size_t)s->origins + 1, sizeof *s->origin)) {
        s->failed = NNT_ERR_MEMORY;
        return 0;
    }
    s->origin = (int *)origin;
    s->origin[s->origins++] = value;
    return nnti_chain_value(&s->chain, s->v[value].what, (int64_t)s->v[value].bytes, tape);
}
static int nnti_local(nnti_staging *s, int stage, int value)
{
    if (s->local[value] >= 0) return s->local[value];
    if (s->cut[stage] == value) return s->local[value] = NNTI_VX;
    if (stage + 1 < s->stages && s->cut[stage + 1] == value) return s->local[value] = NNTI_VY;
    if (stage + 1 < s->stages && s->gradient[stage] == value && s->stage_of[s->maker[value]] != stage) return s->local[value] = NNTI_VGY;
    return s->local[value] = nnti_inner(s, value, s->v[value].kind == NNTI_VALUE_ACTIVATION && s->backward_use[value]);
}
/* The last op of this stage that writes a value: it makes the version that the stage before gets. */
static int nnti_last_writer(const nnti_staging *s, int stage, int value)
{
    int t, role, last = -1;
    for (t = s->p->loss_op + (stage + 1 < s->stages); t < s->p->count - s->p->update_ops; t++) {
        if (t != s->p->loss_op && s->stage_of[t] != stage) continue;
        for (role = 0; role < NNT_ROLES; role++)
            if (nnti_operands(s->p, t)[role] == value && nnti_op_writes(&s->p->ops[t], role)) last = t;
    }
    return last;
}
static void nnti_stage_op(nnti_staging *s, int stage, int t)
{
    const nnti_program *p = s->p;
    const nnt_op *op = &p->ops[t];
    const int *o = nnti_operands(p, t);
    int role, from, backward = t > p->loss_op, k, take_of[NNT_ROLES];
    int out = stage > 0 ? s->gradient[stage - 1] : -1;      /* the value that leaves as gx */
    nnti_stage_step step = nnti_step_begin(nnti_op_names[op->kind], t, op->flops * s->batch, 0);
    if (nnti_is_heavy(op->kind)) step.flags |= NNTI_STEP_HEAVY;
    if (op->kind == NNT_OP_BN_STATS) step.flags |= NNTI_STEP_ONCE;
    step.workspace = (int64_t)op->workspace_bytes;
    for (role = 0; role < NNT_ROLES; role++) {
        int v = o[role], id;
        take_of[role] = NNTI_NO_VALUE;
        if (v < 0 || s->v[v].persistent || !nnti_op_reads(op, role)) continue;
        id = nnti_local(s, stage, v);
        step.moved += (double)s->v[v].bytes;
        for (k = 0; k < step.reads && step.read[k] != id; k++) { }
        if (k == step.reads) {
            if (step.reads == NNTI_STEP_READS) { s->failed = NNT_ERR_UNSUPPORTED; return; }
            nnti_step_reads(&step, id);
        }
        s->read_at[t * NNT_ROLES + role] = (signed char)k;
    }
    for (role = 0; role < NNT_ROLES; role++) {              /* what may be written over, before versions change */
        int v = o[role];
        if (v < 0 || s->v[v].persistent || !nnti_op_writes(op, role) || s->local[v] >= 0) continue;
        for (from = 0; from < NNT_ROLES; from++)
            if (o[from] >= 0 && !s->v[o[from]].persistent && s->v[o[from]].bytes == s->v[v].bytes && nnti_in_place(op, role, from)) {
                if (!backward && s->local[o[from]] == NNTI_VX) continue;       /* x is held for the stage's backward */
                take_of[role] = s->local[o[from]];
                break;
            }
    }
    for (role = 0; role < NNT_ROLES; role++) {
        int v = o[role], id, take, rule = 0;
        if (v < 0 || s->v[v].persistent || !nnti_op_writes(op, role)) continue;
        if (step.writes == NNTI_STEP_WRITES) { s->failed = NNT_ERR_UNSUPPORTED; return; }
        step.moved += (double)s->v[v].bytes;
        take = take_of[role];
        if (s->local[v] >= 0) {                             /* works in place: the next version */
            take = s->local[v];
            rule = NNTI_TAKE_MUST;
        }
        if (v == out && t == nnti_last_writer(s, stage, v)) id = s->local[v] = NNTI_VGX;
        else if (s->local[v] >= 0 && backward)
            id = s->local[v] = nnti_inner(s, v, 0);
        else id = nnti_local(s, stage, v);
        if (role != NNT_AUX && !(role == NNT_Y && (op->kind == NNT_OP_CONV_POOL || op->kind == NNT_OP_BN_POOL))) rule |= NNTI_WRITE_ALWAYS;
        s->write_at[t * NNT_ROLES + role] = (signed char)step.writes;
        nnti_step_writes(&step, id, take, rule);
    }
    nnti_chain_step(&s->chain, &step);
}
/* at: node -> value of its output. */
static void nnti_make_chain(nnti_staging *s, const int *at)
{
    const nnti_program *p = s->p;
    int stage, t, i;
    for (stage = 0; stage < s->stages; stage++) {
        int last = stage + 1 == s->stages;
        for (i = 0; i < s->values; i++) s->local[i] = -1;
        s->origin_base[stage] = s->origins;
        nnti_chain_stage(&s->chain, "", (int64_t)s->v[s->cut[stage]].bytes, last ? 0 : (int64_t)s->v[s->cut[stage + 1]].bytes);
        for (t = 0; t <= p->loss_op; t++) if (s->stage_of[t] == stage) nnti_stage_op(s, stage, t);
        nnti_chain_backward(&s->chain);
        for (t = p->loss_op + 1; t < p->count - p->update_ops; t++) if (s->stage_of[t] == stage) nnti_stage_op(s, stage, t);
        if (s->chain.failed) { s->failed = NNT_ERR_MEMORY; return; }
        for (i = 0; i < s->net->node_count; i++)
            if (s->net->nodes[i].keep && at[i] >= 0 && s->local[at[i]] >= 0) s->chain.stage[stage].value[s->local[at[i]]].keep = 1;
    }
}

/* ---- and back */

/* The program's value that a storage was made for. */
static int nnti_storage_origin(const nnti_staging *s, const nnti_storage *q)
{
    switch (q->local) {
    case NNTI_VX:  return s->cut[q->stage];
    case NNTI_VY:  return s->cut[q->stage + 1];
    case NNTI_VGX: return s->gradient[q->stage - 1];
    case NNTI_VGY: return s->gradient[q->stage];
    default:       return s->origin[s->origin_base[q->stage] + q->local - NNTI_VINNER];
    }
}
/* The program as the schedule has it, in place of the old one: ops in the order of calls, one value for each storage
   behind the persistent ones. old_value maps the old persistent values. 0 when memory is out. */
static int nnti_apply_schedule(nnti_staging *s, const nnti_schedule *q, nnti_plan *plan, size_t persistent_bytes)
{
    const nnt_allocator *a = &s->net->a;
    const nnti_life *life = &q->life;
    nnti_program n;
    nnti_value *values;
    int *number, i, t, role, persistent = 0, total;
    memset(&n, 0, sizeof n);
    for (i = 0; i < s->values; i++) persistent += s->v[i].persistent;
    total = persistent + life->storages;
    n.cap = n.owner_cap = (size_t)(q->calls.count + s->p->update_ops);
    n.operand_cap = n.cap * NNT_ROLES;
    n.ops = (nnt_op *)nnti_zalloc(a, n.cap, sizeof *n.ops);
    n.owner = (int *)nnti_zalloc(a, n.owner_cap, sizeof *n.owner);
    n.operands = (int *)nnti_zalloc(a, n.operand_cap, sizeof *n.operands);
    values = (nnti_value *)nnti_zalloc(a, (size_t)total, sizeof *values);
    number = (int *)nnti_zalloc(a, (size_t)s->values, sizeof *number);
    if (!n.ops || !n.owner || !n.operands || !values || !number) {
        nnti_program_free(a, &n);
        nnti_free(a, values, (size_t)total * sizeof *values);
        nnti_free(a, number, (size_t)s->values * sizeof *number);
        return 0;
    }
    for (i = 0, persistent = 0; i < s->values; i++) {
        if (!s->v[i].persistent) continue;
        number[i] = persistent;
        values[persistent] = s->v[i];
        values[persistent].storage = persistent;
        values[persistent].first = -1;
        values[persistent++].last = q->calls.count + s->p->update_ops;
    }
    for (i = 0; i < life->storages; i++) {
        const nnti_storage *from = &life->storage[i];
        nnti_value *v = &values[persistent + i];
        if (from->value != NNTI_NO_VALUE) *v = s->v[nnti_storage_origin(s, from)];
        else { v->what = "workspace"; v->kind = NNTI_VALUE_WORKSPACE; }
        v->again = from->phase == NNTI_AGAIN;
        v->bytes = (size_t)from->bytes;
        v->first = from->phase == NNTI_PRESENT ? -1 : from->first;
        v->last = from->last;
        v->offset = persistent_bytes + (size_t)from->offset;
        v->storage = persistent + i;
        if (from->phase == NNTI_PRESENT) plan->x[0] = persistent + i;
    }
    for (i = 0; i < q->calls.count; i++) {
        const nnti_call *call = &q->calls.call[i];
        const nnti_stage_step *step = nnti_call_step(&s->chain, call);
        const int *operand = &life->operand[life->first[i]];
        t = step->op;
        n.ops[i] = s->p->ops[t];
        n.ops[i].phase = call->phase == NNTI_AGAIN ? NNT_PHASE_AGAIN : t > s->p->loss_op ? NNT_PHASE_BACKWARD : NNT_PHASE_FORWARD;
        n.owner[i] = s->p->owner[t];
        if (t == s->p->loss_op) n.loss_op = i;
        for (role = 0; role < NNT_ROLES; role++) {
            int o = nnti_operands(s->p, t)[role], k = t * NNT_ROLES + role, at = o;
            if (o >= 0 && s->v[o].persistent) at = number[o];
            else if (o >= 0) {
                at = s->write_at[k] >= 0 ? operand[step->reads + s->write_at[k]] : operand[s->read_at[k]];
                if (at >= 0) at += persistent;
            }
            n.operands[i * NNT_ROLES + role] = at;
        }
        if (life->scratch[i] >= 0) values[persistent + life->scratch[i]].node = n.ops[i].node - 1;
    }
    for (i = 0; i < s->p->update_ops; i++) {
        int to = q->calls.count + i;
        t = s->p->count - s->p->update_ops + i;
        n.ops[to] = s->p->ops[t];
        n.ops[to].phase = NNT_PHASE_UPDATE;
        n.owner[to] = s->p->owner[t];
        for (role = 0; role < NNT_ROLES; role++) {
            int o = nnti_operands(s->p, t)[role];
            n.operands[to * NNT_ROLES + role] = o >= 0 ? number[o] : o;
        }
    }
    n.count = q->calls.count + s->p->update_ops;
    n.update_ops = s->p->update_ops;
    if (plan->labels[0] >= 0) plan->labels[0] = number[plan->labels[0]];
    if (plan->targets[0] >= 0) plan->targets[0] = number[plan->targets[0]];
    plan->loss[0] = number[plan->loss[0]];
    nnti_free(a, number, (size_t)s->values * sizeof *number);
    nnti_program_free(a, &plan->train);
    nnti_free(a, plan->train_values, plan->train_value_cap * sizeof *plan->train_values);
    plan->train = n;
    plan->train_values = values;
    plan->train_value_cap = (size_t)total;
    plan->train_value_count = total;
    return 1;
}


/* ---- the whole way */

static void nnti_staging_free(nnti_staging *s, size_t ops, size_t values)
{
    const nnt_allocator *a = &s->net->a;
    nnti_free(a, s->stage_of, ops * sizeof *s->stage_of);
    nnti_free(a, s->read_at, ops * NNT_ROLES);
    nnti_free(a, s->write_at, ops * NNT_ROLES);
    nnti_free(a, s->cut, (ops + 1) * sizeof *s->cut);
    nnti_free(a, s->gradient, (ops + 1) * sizeof *s->gradient);
    nnti_free(a, s->origin_base, (ops + 1) * sizeof *s->origin_base);
    nnti_free(a, s->local, values * sizeof *s->local);
    nnti_free(a, s->maker, values * sizeof *s->maker);
    nnti_free(a, s->forward_use, values * sizeof *s->forward_use);
    nnti_free(a, s->backward_use, values * sizeof *s->backward_use);
    nnti_free(a, s->origin, s->origin_cap * sizeof *s->origin);
    nnti_chain_free(&s->chain);
}
static int nnti_staging_begin(nnti_staging *s, nnt_net *net, nnti_plan *plan, int batch)
{
    const nnt_allocator *a = &net->a;
    size_t ops = (size_t)plan->train.count, values = (size_t)plan->train_value_count;
    int t, role;
    memset(s, 0, sizeof *s);
    s->net = net;
    s->p = &plan->train;
    s->v = plan->train_values;
    s->values = plan->train_value_count;
    s->batch = batch;
    s->stage_of = (int *)nnti_zalloc(a, ops, sizeof *s->stage_of);
    s->read_at = (signed char *)nnti_alloc(a, ops * NNT_ROLES);
    s->write_at = (signed char *)nnti_alloc(a, ops * NNT_ROLES);
    s->cut = (int *)nnti_zalloc(a, ops + 1, sizeof *s->cut);
    s->gradient = (int *)nnti_zalloc(a, ops + 1, sizeof *s->gradient);
    s->origin_base = (int *)nnti_zalloc(a, ops + 1, sizeof *s->origin_base);
    s->local = (int *)nnti_zalloc(a, values, sizeof *s->local);
    s->maker = (int *)nnti_zalloc(a, values, sizeof *s->maker);
    s->forward_use = (int *)nnti_zalloc(a, values, sizeof *s->forward_use);
    s->backward_use = (int *)nnti_zalloc(a, values, sizeof *s->backward_use);
    nnti_chain_begin(&s->chain, a);
    if (!s->stage_of || !s->read_at || !s->write_at || !s->cut || !s->gradient || !s->origin_base || !s->local || !s->maker || !s->forward_use || !s->backward_use) return 0;
    memset(s->read_at, -1, ops * NNT_ROLES);
    memset(s->write_at, -1, ops * NNT_ROLES);
    for (t = 0; t < s->values; t++) s->maker[t] = s->forward_use[t] = -1;
    for (t = s->p->count - 1; t >= 0; t--)
        for (role = 0; role < NNT_ROLES; role++) {
            int v = nnti_operands(s->p, t)[role];
            if (v < 0) continue;
            if (nnti_op_writes(&s->p->ops[t], role)) s->maker[v] = t;
            if (t <= s->p->loss_op && s->forward_use[v] < 0) s->forward_use[v] = t;
            if (t > s->p->loss_op && nnti_op_reads(&s->p->ops[t], role)) s->backward_use[v] = 1;
        }
    s->cut[0] = plan->x[0];
    return 1;
}
/* At most so many stages: neighbours become one. Planning takes time with the third power of their number. */
static void nnti_merge_stages(nnti_staging *s, int most)
{
    int each = (s->stages + most - 1) / most, t, k;
    if (each <= 1) return;
    for (t = 0; t <= s->p->loss_op; t++) s->stage_of[t] /= each;
    for (k = 0; k * each < s->stages; k++) s->cut[k] = s->cut[k * each];
    s->stages = k;
}
/* at: node -> value of its output, as lowering left it. */
static void nnti_cut_stages(nnti_staging *s, const int *at, int most, int *node_stage)
{
    int i, t;
    nnti_cut_forward(s);
    nnti_merge_stages(s, most);
    for (i = s->net->node_count - 1; i >= 0; i--) {     /* what is fused with its pooling has no value: as its reader */
        int k;
        if (at[i] >= 0) node_stage[i] = s->maker[at[i]] >= 0 ? s->stage_of[s->maker[at[i]]] : 0;
        else
            for (k = i + 1, node_stage[i] = 0; k < s->net->node_count; k++)
                if (s->net->nodes[k].inputs && nnti_input_of(s->net, k, 0) == i) { node_stage[i] = node_stage[k]; break; }
    }
    if (nnti_cut_backward(s, node_stage)) return;
    for (t = 0; t < s->p->count; t++) s->stage_of[t] = 0;   /* a graph that is no chain: one stage, nothing made again */
    s->stages = 1;
}
/* What the planner is asked for. space: what memory_limit leaves for the arena without persistent values; -1: too little. */
static nnti_ask nnti_ask_of(const nnt_compile_desc *d, int64_t space, double step_work)
{
    nnti_ask ask;
    memset(&ask, 0, sizeof ask);
    ask.kind = NNTI_ASK_LEAST_WORK;
    if (d->recompute == NNT_RECOMPUTE_LEAST_MEMORY) ask.kind = NNTI_ASK_LEAST_MEMORY;
    else if (d->recompute == NNT_RECOMPUTE_SEGMENTS) {
        ask.kind = NNTI_ASK_SEGMENTS;
        ask.segments = d->segments;
    } else if (d->recompute == NNT_RECOMPUTE_AUTO && d->memory_limit) {
        ask.kind = NNTI_ASK_BUDGET;
        ask.budget = space;
    } else if (d->recompute == NNT_RECOMPUTE_AUTO && d->extra_work > 0) {
        ask.kind = NNTI_ASK_WORK;
        ask.extra = (double)d->extra_work * step_work;
    }
    return ask;
}
enum { NNTI_MOST_STAGES = 192 };

static int nnti_wants_recompute(const nnt_net *net, const nnt_compile_desc *d)
{
    if (net->checkpoint_segments || d->recompute == NNT_RECOMPUTE_LEAST_MEMORY || d->recompute == NNT_RECOMPUTE_SEGMENTS) return 1;
    return d->recompute == NNT_RECOMPUTE_AUTO && (d->memory_limit > 0 || d->extra_work > 0);
}
/* The segment of each stage, 0: kept. The stages of the marked layers in runs of equal count; the last run is kept. */
static void nnti_mark_segments(const nnt_net *net, const nnti_staging *s, const int *node_stage, int *segment)
{
    int first = node_stage[net->checkpoint_first], last = node_stage[net->checkpoint_last];
    int stages = last - first + 1, n = nnti_min(net->checkpoint_segments, stages), i;
    for (i = 0; i < s->stages; i++) segment[i] = 0;
    for (i = 0; i < stages; i++) {
        int k = (int)((int64_t)i * n / stages) + 1;
        if (k < n) segment[first + i] = k;
    }
}
/* Schedules the training program that has been lowered into the plan. curve: when not NULL, gets its points instead
   (cap, *count), and the plan is left as it is. *arena: persistent values and the schedule's arena. */
static nnt_result nnti_schedule_training(nnt_net *net, nnti_plan *plan, const nnt_compile_desc *d, const int *at, size_t fixed, size_t *arena,
                                         nnti_curve_point *curve, int cap, int *count, double *step_work)
{
    size_t ops = (size_t)plan->train.count, values = (size_t)plan->train_value_count, persistent = 0;
    nnt_memory *m = &plan->memory;
    nnti_staging s;
    nnti_planner planner;
    nnti_schedule q;
    nnti_ask ask;
    nnt_result r = NNT_ERR_MEMORY;
    int *node_stage = (int *)nnti_zalloc(&net->a, (size_t)net->node_count, sizeof *node_stage), i, planned = 0, most = NNTI_EXACT_STAGES;
    int *segment = (int *)nnti_zalloc(&net->a, ops + 1, sizeof *segment);
    memset(&q, 0, sizeof q);
    if (nnti_staging_begin(&s, net, plan, d->batch) && node_stage && segment) {
        for (i = 0; i < s.values; i++)
            if (s.v[i].persistent) { s.v[i].offset = persistent; persistent += s.v[i].bytes; }
        if (nnti_wants_recompute(net, d) || curve) most = NNTI_MOST_STAGES;
        nnti_cut_stages(&s, at, most, node_stage);
        nnti_make_chain(&s, at);
        r = (nnt_result)s.failed;
        if (!r) r = nnti_chain_end(&s.chain, NNTI_ALIGN, &net->error);
        if (!r) r = nnti_planner_begin(&planner, &net->a, &s.chain, 0.0, nnti_isa_best(), &net->error);
        planned = !r;
    }
    if (planned) {
        size_t left = d->memory_limit > fixed + persistent ? d->memory_limit - fixed - persistent : 0;
        int64_t space = (uint64_t)left > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)left;
        double work = nnti_planner_step_work(&planner);
        if (step_work) *step_work = work;
        m->total_least = fixed + persistent + (size_t)nnti_planner_least(&planner);
        if (curve) {
            r = nnti_planner_curve(&planner, curve, cap, count);
            for (i = 0; !r && i < *count; i++) curve[i].peak += (int64_t)(fixed + persistent);
        } else {
            nnti_schedule all;
            ask = nnti_ask_of(d, space, work);
            if (net->checkpoint_segments) {
                nnti_mark_segments(net, &s, node_stage, segment);
                ask.kind = NNTI_ASK_BY_HAND;
                ask.segment = segment;
            }
            r = nnti_planner_answer(&planner, &ask, &q, &net->error);
            if (r == NNT_ERR_UNSUPPORTED) {     /* nnti_plan_checked tells the user, with the least that there is */
                ask.kind = NNTI_ASK_LEAST_MEMORY;
                r = nnti_planner_answer(&planner, &ask, &q, &net->error);
            }
            ask.kind = NNTI_ASK_LEAST_WORK;
            if (!r) r = nnti_planner_answer(&planner, &ask, &all, &net->error);
            if (!r) {
                m->total_store_all = fixed + persistent + (size_t)all.peak;
                nnti_schedule_free(&net->a, &all);
                m->extra_work = work > 0 ? q.extra / work : 0;
                m->recomputed_ops = q.repeated;
                *arena = persistent + (size_t)q.arena;
                r = nnti_schedule_prove(&net->a, &s.chain, &q, &net->error);
            }
            if (!r && !nnti_apply_schedule(&s, &q, plan, persistent)) r = NNT_ERR_MEMORY;
        }
        nnti_schedule_free(&net->a, &q);
        nnti_planner_free(&planner);
    }
    nnti_staging_free(&s, ops, values);
    nnti_free(&net->a, node_stage, (size_t)net->node_count * sizeof *node_stage);
    nnti_free(&net->a, segment, (ops + 1) * sizeof *segment);
    if (r == NNT_ERR_MEMORY) nnti_set_error(&net->error, r, "compile: out of memory while planning");
    return r;
}

/* ---- both programs */

static void nnti_mark(nnti_lowering *l, int target)
{
    const nnt_net *net = l->net;
    int i, k;
    l->needed[target] = 1;
    for (i = target; i >= 0; i--) {
        if (!l->needed[i]) continue;
        for (k = 0; k < net->nodes[i].inputs; k++) {
            l->needed[nnti_input_of(net, i, k)] = 1;
            l->readers[nnti_input_of(net, i, k)]++;
        }
    }
    for (i = 0; i <= target; i++) {
        const nnti_node *n = &net->nodes[i];
        l->learns[i] = (char)(n->weight >= 0 && n->kind != NNTI_NODE_CROSS_ENTROPY);
        for (k = 0; k < n->inputs; k++) if (l->learns[nnti_input_of(net, i, k)]) l->learns[i] = 1;
        l->at[i] = l->aux[i] = l->slot[i].value = l->slot[i].last_op = l->pooled[i] = l->pools[i] = -1;
    }
}
static int nnti_is_loss(const nnti_node *n) { return n->kind == NNTI_NODE_CROSS_ENTROPY || n->kind == NNTI_NODE_MSE; }

/* Records one program up to node `target`. */
static void nnti_lower_program(nnti_lowering *l, nnti_plan *plan, int program, int target)
{
    const nnt_net *net = l->net;
    const nnti_node *t = &net->nodes[target];
    int last = nnti_is_loss(t) ? nnti_input_of(net, target, 0) : target, i;
    l->p->loss_op = -1;
    l->target = last;
    nnti_mark(l, target);
    for (i = 0; i <= last && !l->failed; i++) if (l->needed[i]) nnti_lower_forward(l, i);
    if (l->failed) return;
    plan->x[program] = l->at[net->input];
    if (nnti_is_loss(t)) nnti_lower_loss(l, target, program, plan);
    if (l->training) nnti_lower_backwards(l, last);
    if (l->failed) return;
    if (l->training) {
        for (i = 0; i <= last; i++) {       /* running statistics move once a step, when its loss is known to be finite */
            int op;
            if (!l->needed[i] || net->nodes[i].kind != NNTI_NODE_BATCHNORM) continue;
            op = nnti_emit(l, NNT_OP_BN_RUNNING, i);
            nnti_use(l, op, NNT_STATS, l->aux[i]);
            nnti_use_param(l, op, NNT_RUNNING, net->nodes[i].running);
            l->p->update_ops++;
        }
    } else {
        plan->output = l->at[last];
        (*l->values)[plan->output].last = nnti_max((*l->values)[plan->output].last, l->p->count);
    }
    if (plan->loss[program] >= 0 && !l->failed) (*l->values)[plan->loss[program]].last = l->p->count;
}

/* Workspace: a value of its own that lives during the one op; the op's at[] stays to be resolved. */
static void nnti_add_workspace(nnti_lowering *l, const nnti_open_device *on)
{
    int i, count = l->p->count;
    if (!on->backend->workspace) return;
    for (i = 0; i < count && !l->failed; i++) {
        nnt_op *op = &l->p->ops[i];
        size_t bytes = on->backend->workspace(on->device, op, l->batch);
        int v;
        if (bytes >= NNTI_TOO_LARGE) {
            nnti_new_value(l, NNTI_VALUE_WORKSPACE, op->node - 1, "workspace", 0);      /* says so */
            return;
        }
        op->workspace_bytes = bytes;
        if (!bytes || l->training) continue;        /* >>schedule finds places for those of training */
        v = nnti_new_value(l, NNTI_VALUE_WORKSPACE, op->node - 1, "workspace", bytes > SIZE_MAX - NNTI_ALIGN ? 0 : nnti_round_up(bytes, NNTI_ALIGN));
        if (l->failed) return;
        (*l->values)[v].first = (*l->values)[v].last = i;
    }
}

enum { NNTI_LOWERING_INTS = 8 };        /* arrays of nnti_lowering with an int for each node */

typedef struct nnti_wish {              /* what to plan, beside the net */
    int target, batch;
    const nnti_open_device *on;
    const nnt_compile_desc *desc;
    size_t fixed;
    nnti_curve_point *curve;            /* not NULL: only the training program's curve is wanted, */
    int cap, *count;
    size_t floor;                       /*   and what prediction needs in any case */
    double *step_work;
    int too_large;                      /* out: it failed because a size passes the address space */
} nnti_wish;

static nnt_result nnti_plan_program(nnt_net *net, nnti_plan *plan, int program, nnti_wish *w, size_t *arena)
{
    nnti_lowering l;
    size_t nodes = (size_t)net->node_count;
    int *ints;
    char *chars;
    memset(&l, 0, sizeof l);
    l.net = net;
    l.batch = w->batch;
    l.training = program == 0;
    l.precision = w->desc->precision;
    l.p = program ? &plan->predict : &plan->train;
    l.values = program ? &plan->predict_values : &plan->train_values;
    l.value_cap = program ? &plan->predict_value_cap : &plan->train_value_cap;
    l.value_count = program ? &plan->predict_value_count : &plan->train_value_count;
    plan->labels[program] = plan->targets[program] = plan->loss[program] = -1;
    ints = (int *)nnti_zalloc(&net->a, nodes * NNTI_LOWERING_INTS, sizeof *ints);
    chars = (char *)nnti_zalloc(&net->a, nodes * 3, 1);
    l.slot = (nnti_grad_slot *)nnti_zalloc(&net->a, nodes, sizeof *l.slot);
    *arena = 0;
    if (!ints || !chars || !l.slot) {
        l.failed = (int)nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: out of memory while planning");
    } else {
        l.at = ints;
        l.aux = ints + nodes;
        l.readers = ints + 2 * nodes;
        l.pooled = ints + 3 * nodes;
        l.pools = ints + 4 * nodes;
        l.depth = ints + 5 * nodes;
        l.pending = ints + 6 * nodes;
        l.stack = ints + 7 * nodes;
        l.needed = chars;
        l.learns = chars + nodes;
        l.fused = chars + 2 * nodes;
        nnti_lower_program(&l, plan, program, w->target);
        if (!l.failed) nnti_add_workspace(&l, w->on);
        if (!l.failed && l.training) {
            l.failed = (int)nnti_schedule_training(net, plan, w->desc, l.at, w->fixed, arena, w->curve, w->cap, w->count, w->step_work);
        } else if (!l.failed) {
            nnti_join_storage(l.p, *l.values);
            if (!nnti_place_values(&net->a, *l.values, *l.value_count, arena))
                l.failed = (int)nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: out of memory while planning");
        }
    }
    nnti_free(&net->a, ints, nodes * NNTI_LOWERING_INTS * sizeof *ints);
    nnti_free(&net->a, chars, nodes * 3);
    nnti_free(&net->a, l.slot, nodes * sizeof *l.slot);
    nnti_free(&net->a, l.shares, l.share_cap * sizeof *l.shares);
    w->too_large |= l.too_large;
    return (nnt_result)l.failed;
}

/* Bytes alive at op i, by kind; a value that several share counts once, as what owns the place. */
static size_t nnti_alive(const nnti_value *v, int count, int op, size_t by_kind[3])
{
    size_t sum = 0;
    int i;
    by_kind[0] = by_kind[1] = by_kind[2] = 0;
    for (i = 0; i < count; i++) {
        if (v[i].storage != i || v[i].first > op || v[i].last < op) continue;
        by_kind[v[i].kind] += v[i].bytes;
        sum += v[i].bytes;
    }
    return sum;
}

/* Where parameters lie, in floats: trained ones first, each at a multiple of 16; then running statistics, the variance
   right behind its mean, and constants. 0 when that passes size_t. */
static int nnti_place_params(nnt_net *net, nnti_plan *plan)
{
    size_t at = 0;
    int pass, i;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < net->param_count; i++) {
            nnti_param *p = &net->params[i];
            if ((p->kind == NNTI_PARAM_TRAINED) != (pass == 0)) continue;
            if (!(p->kind == NNTI_PARAM_RUNNING && i > 0 && net->params[i - 1].kind == NNTI_PARAM_RUNNING && net->params[i - 1].node == p->node))
                at = nnti_round_up(at, NNTI_ALIGN / sizeof(float));
            p->offset = at;
            if ((uint64_t)p->count > SIZE_MAX / 8 / sizeof(float) || !nnti_add_size(at, (size_t)p->count, &at) || at > SIZE_MAX / 8 / sizeof(float)) return 0;
        }
        at = nnti_round_up(at, NNTI_ALIGN / sizeof(float));
        if (pass == 0) plan->trained_floats = at;
    }
    plan->persistent_floats = at - plan->trained_floats;
    return 1;
}

static int nnti_moments(const nnt_optimizer *o)
{
    switch (o->kind) {
    case NNT_OPTIMIZER_SGD:   return o->momentum != 0 ? 1 : 0;
    case NNT_OPTIMIZER_ADAM:
    case NNT_OPTIMIZER_ADAMW: return 2;
    default:                  return 0;
    }
}

/* Both programs and all figures for one batch. On an error the plan is empty. */
static nnt_result nnti_make_plan(nnt_net *net, int target, const nnt_compile_desc *d, const nnti_open_device *on, nnti_plan *plan,
                                 nnti_wish *wish)
{
    nnt_memory *m = &plan->memory;
    int loss = nnti_is_loss(&net->nodes[target]), trains = loss && d->optimizer.kind != NNT_OPTIMIZER_NONE, i;
    size_t arena[2] = { 0, 0 }, by_kind[3];
    nnt_result r = NNT_OK;
    nnti_wish own;
    memset(plan, 0, sizeof *plan);
    if (!wish) { memset(&own, 0, sizeof own); wish = &own; }
    if (!nnti_place_params(net, plan))
        return nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: the parameters pass the address space");
    m->params = (plan->trained_floats + plan->persistent_floats) * sizeof(float);
    m->grads = trains ? plan->trained_floats * sizeof(float) : 0;
    m->optimizer = trains ? plan->trained_floats * sizeof(float) * (size_t)nnti_moments(&d->optimizer) : 0;
    if (trains && d->optimizer.clip_norm > 0) {     /* the sum of squares, then what taking it needs */
        nnt_op norm;
        memset(&norm, 0, sizeof norm);
        norm.kind = NNT_OP_GRAD_NORM;
        norm.count = (int64_t)plan->trained_floats;
        plan->norm_workspace = on->backend->workspace ? nnti_round_up(on->backend->workspace(on->device, &norm, d->batch), NNTI_ALIGN) : 0;
        m->optimizer += NNTI_ALIGN + plan->norm_workspace;
    }
    if (trains && on->backend->stage) {
        int64_t input = nnti_mul64(nnti_volume(net->nodes[net->input].shape), d->batch);
        m->staging = input < 0 || (uint64_t)input > NNTI_TOO_LARGE / sizeof(float) ? NNTI_TOO_LARGE : nnti_round_up((size_t)input * sizeof(float), NNTI_ALIGN);
    }
    m->fixed = m->params + m->grads + m->optimizer + m->staging;

    wish->target = target;
    wish->batch = d->batch;
    wish->on = on;
    wish->desc = d;
    wish->fixed = m->fixed;
    if (trains) r = nnti_plan_program(net, plan, 0, wish, &arena[0]);
    if (!r) r = nnti_plan_program(net, plan, 1, wish, &arena[1]);
    wish->floor = m->fixed + arena[1];
    if (r || wish->curve) { nnti_plan_free(&net->a, plan); return r; }
    m->arena = arena[0] > arena[1] ? arena[0] : arena[1];
    m->ops_train = plan->train.count;
    m->ops_predict = plan->predict.count;
    for (i = 0; i < (trains ? plan->train.count : plan->predict.count); i++) {
        size_t alive = trains ? nnti_alive(plan->train_values, plan->train_value_count, i, by_kind)
                              : nnti_alive(plan->predict_values, plan->predict_value_count, i, by_kind);
        if (alive <= m->peak) continue;
        m->peak = alive;
        m->peak_op = i;
        m->activations = by_kind[NNTI_VALUE_ACTIVATION];
        m->gradients = by_kind[NNTI_VALUE_GRADIENT];
        m->workspace = by_kind[NNTI_VALUE_WORKSPACE];
    }
    if (!nnti_add_size(m->fixed, m->arena, &m->total)) {
        nnti_plan_free(&net->a, plan);
        wish->too_large = 1;
        return nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: batch %d passes the address space; use a smaller batch", d->batch);
    }
    if (!trains) m->total_store_all = m->total_least = m->total;
    if (m->total_least < wish->floor) m->total_least = wish->floor;
    if (m->total_store_all < wish->floor) m->total_store_all = wish->floor;
    return NNT_OK;
}

#ifndef NNT_NO_STDIO
/* ============================================================================
   >>file    Files: read at a position; written beside, flushed, then renamed
   Hands out handles and the system's error numbers; knows nothing of what the files hold. A save that is killed at any
   moment leaves the old file or the new one, and at most one temporary file, which the next save takes away.
   ============================================================================ */

enum {                                      /* beside the system's own error numbers, which are positive */
    NNTI_SYSTEM_OK = 0,
    NNTI_SYSTEM_ENDED = -1,
    NNTI_SYSTEM_NOT_A_FILE = -2,
    NNTI_SYSTEM_BUSY = -3
};
enum { NNTI_TEMPORARIES = 16, NNTI_TEMPORARY_SUFFIX = 16 };     /* names tried; room for ".tmp-15" and the final 0 */
enum { NNTI_KEEP_MAX = 1000, NNTI_PATH = 4096 };                /* older files; what systems allow in a path */
enum { NNTI_FILE_BLOCK = 65536 };                               /* a multiple of 8 */

typedef intptr_t nnti_handle;                                   /* a descriptor or a HANDLE; -1: none */

/* Where bytes are read from. read_fn fills `bytes` bytes from position `at` on, or returns an error number. */
typedef struct nnti_source {
    int   (*read_fn)(void *user, int64_t at, void *to, size_t bytes);
    void   *user;
    int64_t length;
} nnti_source;

/* The system calls of a save, so that tests can make each one fail. write_fn may take fewer bytes than it is given and
   returns how many, or minus an error number; the others return an error number. */
typedef struct nnti_file_calls {
    int64_t (*write_fn)(void *user, nnti_handle h, const void *p, size_t bytes);
    int     (*flush_fn)(void *user, nnti_handle h);
    int     (*close_fn)(void *user, nnti_handle h);
    int     (*rename_fn)(void *user, const char *from, const char *to);
    void     *user;
} nnti_file_calls;

#if defined(NNTI_WINDOWS)
static int nnti_system_error(void) { return (int)GetLastError(); }
static HANDLE nnti_system_handle(nnti_handle h) { return (HANDLE)h; }

static int nnti_file_open(const char *path, nnti_handle *h, int64_t *length)
{
    LARGE_INTEGER size;
    HANDLE file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE) return nnti_system_error();
    if (GetFileType(file) != FILE_TYPE_DISK || !GetFileSizeEx(file, &size)) {
        CloseHandle(file);
        return NNTI_SYSTEM_NOT_A_FILE;
    }
    *h = (nnti_handle)file;
    *length = (int64_t)size.QuadPart;
    return NNTI_SYSTEM_OK;
}
static int nnti_file_read_at(void *user, int64_t at, void *to, size_t bytes)
{
    HANDLE file = nnti_system_handle(*(const nnti_handle *)user);
    LARGE_INTEGER position;
    DWORD got = 0;
    position.QuadPart = at;
    if (!SetFilePointerEx(file, position, NULL, FILE_BEGIN) || !ReadFile(file, to, (DWORD)bytes, &got, NULL))
        return nnti_system_error();
    return (size_t)got == bytes ? NNTI_SYSTEM_OK : NNTI_SYSTEM_ENDED;
}
static int64_t nnti_file_write(void *user, nnti_handle h, const void *p, size_t bytes)
{
    DWORD written = 0;
    (void)user;
    if (!WriteFile(nnti_system_handle(h), p, (DWORD)bytes, &written, NULL)) return -(int64_t)nnti_system_error();
    return (int64_t)written;
}
static int nnti_file_flush(void *user, nnti_handle h)
{
    (void)user;
    return FlushFileBuffers(nnti_system_handle(h)) ? NNTI_SYSTEM_OK : nnti_system_error();
}
static int nnti_file_close(void *user, nnti_handle h)
{
    (void)user;
    return CloseHandle(nnti_system_handle(h)) ? NNTI_SYSTEM_OK : nnti_system_error();
}
static int nnti_file_rename(void *user, const char *from, const char *to)
{
    (void)user;
    if (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) return NNTI_SYSTEM_OK;
    return nnti_system_error();
}
static void nnti_file_remove(const char *path) { DeleteFileA(path); }
static int nnti_file_link(const char *from, const char *to) { return CreateHardLinkA(to, from, NULL) != 0; }
static int nnti_is_missing(int code) { return code == ERROR_FILE_NOT_FOUND || code == ERROR_PATH_NOT_FOUND; }
static const char *nnti_follow_links(const char *path, char buffer[NNTI_PATH]) { (void)buffer; return path; }

/* Opens path.tmp-0, or with a higher number when another save is at it: sharing keeps a second writer out. The file may
   be renamed while it is open. */
static int nnti_temporary_open(const char *path, char *name, size_t cap, nnti_handle *h)
{
    int k;
    for (k = 0; k < NNTI_TEMPORARIES; k++) {
        HANDLE file;
        nnti_format(name, cap, "%s.tmp-%d", path, k);
        file = CreateFileA(name, GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, CREATE_ALWAYS, 0, NULL);
        *h = (nnti_handle)file;
        if (file != INVALID_HANDLE_VALUE) return NNTI_SYSTEM_OK;
        if (GetLastError() != ERROR_SHARING_VIOLATION) return nnti_system_error();
    }
    return NNTI_SYSTEM_BUSY;
}
/* Folders can't be opened here; MOVEFILE_WRITE_THROUGH stands in. */
static int nnti_folder_open(char *name, const char *path, nnti_handle *h)
{
    (void)name; (void)path; (void)h;
    return 0;
}
static const char *nnti_system_text(int code)
{
    switch (code) {
    case NNTI_SYSTEM_ENDED:       return "it ended early; something else changed it meanwhile";
    case NNTI_SYSTEM_NOT_A_FILE:  return "it is not a regular file";
    case NNTI_SYSTEM_BUSY:        return "too many saves to this path at once";
    case ERROR_FILE_NOT_FOUND:    return "no such file or folder";
    case ERROR_PATH_NOT_FOUND:    return "no such file or folder";
    case ERROR_ACCESS_DENIED:     return "permission denied";
    case ERROR_SHARING_VIOLATION: return "another program has it open";
    case ERROR_DISK_FULL:         return "no space left on the disk";
    default:                      return NULL;
    }
}
#else
#include <sys/file.h>

static int nnti_file_open(const char *path, nnti_handle *h, int64_t *length)
{
    struct stat s;
    int file;
    if (stat(path, &s) != 0) return errno;
    if (!S_ISREG(s.st_mode)) return NNTI_SYSTEM_NOT_A_FILE;     /* before open, which waits at a pipe */
    do file = open(path, O_RDONLY); while (file < 0 && errno == EINTR);
    if (file < 0) return errno;
    if (fstat(file, &s) != 0) {
        int code = errno;
        close(file);
        return code;
    }
    *h = file;
    *length = (int64_t)s.st_size;
    return NNTI_SYSTEM_OK;
}
static int nnti_file_read_at(void *user, int64_t at, void *to, size_t bytes)
{
    int file = (int)*(const nnti_handle *)user;
    char *p = (char *)to;
    if (lseek(file, (off_t)at, SEEK_SET) < 0) return errno;
    while (bytes > 0) {
        ssize_t got = read(file, p, bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return NNTI_SYSTEM_ENDED;
        p += got;
        bytes -= (size_t)got;
    }
    return NNTI_SYSTEM_OK;
}
static int64_t nnti_file_write(void *user, nnti_handle h, const void *p, size_t bytes)
{
    ssize_t written;
    (void)user;
    do written = write((int)h, p, bytes); while (written < 0 && errno == EINTR);
    return written < 0 ? -(int64_t)errno : (int64_t)written;
}
static int nnti_file_flush(void *user, nnti_handle h)
{
    int r;
    (void)user;
    do r = fsync((int)h); while (r != 0 && errno == EINTR);
    return r != 0 ? errno : NNTI_SYSTEM_OK;
}
static int nnti_file_close(void *user, nnti_handle h)
{
    (void)user;
    return close((int)h) != 0 && errno != EINTR ? errno : NNTI_SYSTEM_OK;   /* interrupted: closed all the same */
}
static int nnti_file_rename(void *user, const char *from, const char *to)
{
    (void)user;
    return rename(from, to) != 0 ? errno : NNTI_SYSTEM_OK;
}
static void nnti_file_remove(const char *path) { (void)unlink(path); }
/* Gives a file a second name, which must be free; 0 where the file system can't. */
static int nnti_file_link(const char *from, const char *to) { return link(from, to) == 0; }
static int nnti_is_missing(int code) { return code == ENOENT; }

#if defined(__linux__) && !defined(__cplusplus)
extern ssize_t readlink(const char *, char *, size_t);          /* strict C hides it */
#endif
/* Where a symbolic link leads, that the file there is replaced and not the link; path itself when it is none. */
static const char *nnti_follow_links(const char *path, char buffer[NNTI_PATH])
{
    char link[NNTI_PATH];
    int hops;
    for (hops = 0; hops < 40; hops++) {     /* as many as the system follows */
        ssize_t n = readlink(path, link, sizeof link - 1);
        const char *slash = strrchr(path, '/');
        size_t folder = n > 0 && link[0] != '/' && slash ? (size_t)(slash - path) + 1 : 0;
        if (n <= 0 || folder + (size_t)n >= NNTI_PATH) break;
        memmove(buffer, path, folder);
        memcpy(buffer + folder, link, (size_t)n);
        buffer[folder + (size_t)n] = 0;
        path = buffer;
    }
    return path;
}

static int nnti_file_is_named(int file, const char *name)
{
    struct stat a, b;
    return fstat(file, &a) == 0 && stat(name, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
/* Removes a temporary file that nobody holds a lock on: its writer was killed. 0 when somebody works on it. */
static int nnti_temporary_reclaim(const char *name)
{
    int file = open(name, O_RDWR), stale;
    if (file < 0) return 0;
    stale = flock(file, LOCK_EX | LOCK_NB) == 0 && nnti_file_is_named(file, name) && unlink(name) == 0;
    close(file);
    return stale;
}
/* Creates path.tmp-0, or with a higher number when another save is at it, and locks it until it is closed, which has to
   be after the rename. Names that depended on the process would pile up when processes are killed again and again. */
static int nnti_temporary_open(const char *path, char *name, size_t cap, nnti_handle *h)
{
    struct stat old;
    mode_t mode = 0666;
    int k = 0, tries;
    if (stat(path, &old) == 0) {
        if (!S_ISREG(old.st_mode)) return NNTI_SYSTEM_NOT_A_FILE;
        mode = old.st_mode & 0777;          /* a private file stays private */
    }
    for (tries = 0; tries < 4 * NNTI_TEMPORARIES && k < NNTI_TEMPORARIES; tries++) {
        int file;
        nnti_format(name, cap, "%s.tmp-%d", path, k);
        file = open(name, O_RDWR | O_CREAT | O_EXCL, mode);
        if (file >= 0) {
            /* Another process may reclaim the name between open and flock. File systems without locks fail with other
               codes: there O_EXCL alone keeps writers apart, and nothing is reclaimed. */
            int locked = flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
            *h = file;
            if (locked && nnti_file_is_named(file, name)) return NNTI_SYSTEM_OK;
            close(file);
        } else if (errno != EEXIST && errno != EINTR) {
            return errno;
        } else if (errno == EEXIST && !nnti_temporary_reclaim(name)) {
            k++;
        }
    }
    return NNTI_SYSTEM_BUSY;
}
/* The folder that path lies in; name has room for path. 0 where it can't be opened: then it isn't flushed. */
static int nnti_folder_open(char *name, const char *path, nnti_handle *h)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    memcpy(name, n ? path : ".", n ? n : 1);
    name[n ? n : 1] = 0;
    *h = open(name, O_RDONLY);
    return *h >= 0;
}
static const char *nnti_system_text(int code)
{
    switch (code) {
    case NNTI_SYSTEM_ENDED:      return "it ended early; something else changed it meanwhile";
    case NNTI_SYSTEM_NOT_A_FILE: return "it is not a regular file";
    case NNTI_SYSTEM_BUSY:       return "too many saves to this path at once";
    case ENOENT:                 return "no such file or folder";
    case ENOTDIR:                return "a part of its path is not a folder";
    case EACCES: case EPERM:     return "permission denied";
    case EROFS:                  return "the file system is read-only";
    case ENOSPC:                 return "no space left on the disk";
    case ENAMETOOLONG:           return "the name is too long";
    case EMFILE: case ENFILE:    return "too many open files";
    case EIO:                    return "the disk reported an error";
    default:                     return NULL;
    }
}
#endif

typedef struct nnti_reason { char text[64]; } nnti_reason;

/* What an error number means, in words that depend on no locale. */
static const char *nnti_reason_text(nnti_reason *r, int code)
{
    const char *known = nnti_system_text(code);
    if (known) return known;
    nnti_format(r->text, sizeof r->text, "system error %d", code);
    return r->text;
}
static nnti_file_calls nnti_file_calls_default(void)
{
    nnti_file_calls c;
    c.write_fn = nnti_file_write;
    c.flush_fn = nnti_file_flush;
    c.close_fn = nnti_file_close;
    c.rename_fn = nnti_file_rename;
    c.user = NULL;
    return c;
}

/* Collects what is written into blocks. The first failure stays, later puts do nothing. */
typedef struct nnti_writer {
    const nnti_file_calls *calls;
    nnti_handle    h;
    unsigned char *block;                   /* NNTI_FILE_BLOCK bytes */
    size_t         used;
    int            code;                    /* error number */
} nnti_writer;

static void nnti_writer_flush(nnti_writer *w)
{
    size_t done = 0;
    while (!w->code && done < w->used) {
        int64_t n = w->calls->write_fn(w->calls->user, w->h, w->block + done, w->used - done);
        if (n > 0) done += (size_t)n;
        else w->code = n < 0 ? (int)-n : NNTI_SYSTEM_ENDED;
    }
    w->used = 0;
}
static void nnti_writer_put(nnti_writer *w, const void *p, size_t bytes)
{
    const char *from = (const char *)p;
    while (bytes > 0) {
        size_t n = bytes < NNTI_FILE_BLOCK - w->used ? bytes : NNTI_FILE_BLOCK - w->used;
        memcpy(w->block + w->used, from, n);
        w->used += n;
        from += n;
        bytes -= n;
        if (w->used == NNTI_FILE_BLOCK) nnti_writer_flush(w);
    }
}

/* ============================================================================
   >>safetensors    Weights in a file: 8 bytes header length, a JSON header, the values
   github.com/huggingface/safetensors. Reads and writes arrays in host memory by name; whose arrays they are is up to
   the caller. Nothing that a file says is used before it was checked against the file's length.
   ============================================================================ */

enum { NNTI_ST_HEADER_MAX = 100000000 };    /* the format's own limit */
enum { NNTI_JSON_DEPTH = 100 };             /* of values that we pass over; the reference stops at 125 */
enum { NNTI_ST_SHAPE_TEXT = 96, NNTI_ST_NAME_TEXT = 112 };

/* The first four are those that weights may have; snapshots count in I64; of the others only the size matters. */
enum { NNTI_ST_F32, NNTI_ST_F64, NNTI_ST_F16, NNTI_ST_BF16, NNTI_ST_READABLE, NNTI_ST_I64 = NNTI_ST_READABLE };
typedef struct nnti_st_dtype { const char *name; int bits; } nnti_st_dtype;
static const nnti_st_dtype nnti_st_dtypes[] = {
    { "F32", 32 }, { "F64", 64 }, { "F16", 16 }, { "BF16", 16 }, { "I64", 64 },
    { "BOOL", 8 }, { "U8", 8 }, { "I8", 8 }, { "U16", 16 }, { "I16", 16 }, { "U32", 32 }, { "I32", 32 },
    { "U64", 64 }, { "C64", 64 }, { "F4", 4 }, { "F6_E2M3", 6 }, { "F6_E3M2", 6 }, { "F8_E5M2", 8 },
    { "F8_E4M3", 8 }, { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }
};

/* A tensor as the caller has it. */
typedef struct nnti_file_tensor {
    const char *name;
    int         rank;
    int64_t     size[4];
    int         kind;                       /* F32, F64 or I64 */
    void       *data;                       /* NULL: nnti_st_content.get_fn brings the values */
    size_t      at;                         /* for get_fn: where they are */
} nnti_file_tensor;
typedef struct nnti_file_pair { const char *key, *value; } nnti_file_pair;

/* What a file is made of. */
typedef struct nnti_st_content {
    const nnti_file_tensor *t;
    int                     count;
    const nnti_file_pair   *metadata;
    int                     pairs;
    nnt_result            (*get_fn)(void *user, const nnti_file_tensor *t, int64_t first, int64_t count, void *to);
    void                   *user;
    int                     keep;           /* files of this path: the new one and older ones as path.1, path.2, ... */
} nnti_st_content;

/* A tensor of a file. Strings lie in the header, without a final 0. */
typedef struct nnti_st_entry {
    const char *name, *dtype;
    size_t      name_length, dtype_length;
    int         kind;                       /* index in nnti_st_dtypes; -1: unknown */
    int         rank;                       /* may pass 4; size has the first four then */
    int64_t     size[4];
    int64_t     count;                      /* values; -1: more than 2^62 */
    int64_t     begin, end;                 /* bytes in the data */
    int         used;                       /* the caller asked for it */
} nnti_st_entry;

typedef struct nnti_st {
    const nnt_allocator *a;
    const nnti_source   *source;
    const char          *verb, *path;       /* for sentences */
    nnti_error          *e;
    char                *header;
    size_t               header_length;
    char                *metadata;          /* in the header: key, 0, value, 0, and so on */
    size_t               metadata_length;
    nnti_st_entry       *entries;           /* once opened: sorted by name */
    size_t               count, cap;
} nnti_st;

static nnt_result nnti_st_fail(const nnti_st *f, nnt_result code, const char *format, ...)
{
    nnti_text t;
    va_list args;
    if (!f->e) return code;
    t = nnti_text_begin(f->e->text, sizeof f->e->text);
    nnti_put(&t, "%s '%s': ", f->verb, f->path);
    va_start(args, format);
    nnti_vformat(&t, format, args);
    va_end(args);
    nnti_text_end(&t);
    f->e->code = (int)code;
    return code;
}
static nnt_result nnti_st_memory(const nnti_st *f, size_t bytes)
{
    return nnti_st_fail(f, NNT_ERR_MEMORY, "out of memory; needs %B more", bytes);
}
/* 64x3x3x3; a single value is "scalar". */
static const char *nnti_st_sizes_text(char text[NNTI_ST_SHAPE_TEXT], int rank, const int64_t *size)
{
    nnti_text t = nnti_text_begin(text, NNTI_ST_SHAPE_TEXT);
    int i;
    if (rank == 0) nnti_put_string(&t, "scalar");
    for (i = 0; i < nnti_min(rank, 4); i++) nnti_put(&t, i ? "x%I" : "%I", size[i]);
    if (rank > 4) nnti_put(&t, "x... (%d sizes)", rank);
    nnti_text_end(&t);
    return text;
}
/* s as it stands inside a JSON string. */
static void nnti_put_json(nnti_text *t, const char *s, size_t length)
{
    static const char hex[] = "0123456789abcdef";
    size_t i;
    for (i = 0; i < length; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') nnti_put_char(t, '\\');
        if (c >= 0x20) nnti_put_char(t, s[i]);
        else nnti_put(t, "\\u00%c%c", hex[c >> 4], hex[c & 15]);
    }
}
/* A name as it may stand in a sentence: control characters escaped, cut when long, but never inside a character. */
static const char *nnti_st_name_text(char text[NNTI_ST_NAME_TEXT], const char *s, size_t length)
{
    nnti_text t = nnti_text_begin(text, NNTI_ST_NAME_TEXT);
    size_t i, next;
    for (i = 0; i < length; i = next) {
        next = i + 1;
        while (next < length && ((unsigned char)s[next] & 0xC0) == 0x80) next++;
        if (t.length + (next - i) * 6 + 4 > NNTI_ST_NAME_TEXT) { nnti_put_string(&t, "..."); break; }
        if ((unsigned char)s[i] < 0x20) nnti_put_json(&t, s + i, next - i);
        else while (i < next) nnti_put_char(&t, s[i++]);
    }
    nnti_text_end(&t);
    return text;
}

/* UTF-8 as in RFC 3629: shortest form, no surrogates, up to U+10FFFF. */
static int nnti_utf8_valid(const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + length;
    while (s < end) {
        unsigned c = *s++, low = 0x80, high = 0xBF;     /* bounds of the byte after c */
        int more;
        if (c < 0x80) continue;
        if (c < 0xC2 || c > 0xF4) return 0;
        more = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
        for (; more > 0; more--, low = 0x80, high = 0xBF)
            if (s == end || *s < low || *s++ > high) return 0;
    }
    return 1;
}
static char *nnti_utf8_encode(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 63));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 63));
        *to++ = (char)(0x80 | (code >> 6 & 63));
    }
    *to++ = (char)(0x80 | (code & 63));
    return to;
}

/* A strict JSON reader (RFC 8259) over a text whose UTF-8 was checked. Functions return 0 after a fault; `expected`
   then says what should have stood at `at`. Strings are decoded in place: what they decode to is never longer. */
typedef struct nnti_json { char *text; size_t at, length; const char *expected; } nnti_json;

static int nnti_json_fail(nnti_json *j, const char *expected)
{
    if (!j->expected) j->expected = expected;
    return 0;
}
static int nnti_json_peek(const nnti_json *j) { return j->at < j->length ? (unsigned char)j->text[j->at] : -1; }
static int nnti_json_digit(const nnti_json *j) { return nnti_json_peek(j) >= '0' && nnti_json_peek(j) <= '9'; }
static void nnti_json_space(nnti_json *j)
{
    int c;
    while ((c = nnti_json_peek(j)) == ' ' || c == '\t' || c == '\n' || c == '\r') j->at++;
}
static int nnti_json_take(nnti_json *j, char c)
{
    nnti_json_space(j);
    if (nnti_json_peek(j) != c) return 0;
    j->at++;
    return 1;
}
static int nnti_json_need(nnti_json *j, char c, const char *expected)
{
    return nnti_json_take(j, c) || nnti_json_fail(j, expected);
}
static int nnti_json_hex4(nnti_json *j, uint32_t *code)
{
    int i;
    *code = 0;
    for (i = 0; i < 4; i++) {
        int c = nnti_json_peek(j);
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (v < 0) return nnti_json_fail(j, "four hexadecimal digits");
        *code = *code << 4 | (uint32_t)v;
        j->at++;
    }
    return 1;
}
/* What follows a backslash. */
static int nnti_json_escape(nnti_json *j, char **to)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int c = nnti_json_peek(j);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    uint32_t code, low;
    if (letter) {
        *(*to)++ = meanings[letter - letters];
        j->at++;
        return 1;
    }
    if (c != 'u') return nnti_json_fail(j, "an escape that JSON knows");
    j->at++;
    if (!nnti_json_hex4(j, &code)) return 0;
    if (code >= 0xD800 && code < 0xE000) {
        if (code >= 0xDC00 || j->length - j->at < 2 || j->text[j->at] != '\\' || j->text[j->at + 1] != 'u')
            return nnti_json_fail(j, "both halves of a surrogate pair");
        j->at += 2;
        if (!nnti_json_hex4(j, &low)) return 0;
        if (low < 0xDC00 || low >= 0xE000) return nnti_json_fail(j, "both halves of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    *to = nnti_utf8_encode(*to, code);
    return 1;
}
static int nnti_json_string(nnti_json *j, const char **s, size_t *length)
{
    char *to;
    int c;
    if (!nnti_json_need(j, '"', "a string")) return 0;
    *s = to = j->text + j->at;
    while ((c = nnti_json_peek(j)) != '"') {
        if (c < 0x20) return nnti_json_fail(j, c < 0 ? "the end of a string" : "no control character");
        j->at++;
        if (c != '\\') *to++ = (char)c;
        else if (!nnti_json_escape(j, &to)) return 0;
    }
    j->at++;
    *length = (size_t)(to - *s);
    return 1;
}
static int nnti_json_key(nnti_json *j, const char **s, size_t *length)
{
    return nnti_json_string(j, s, length) && nnti_json_need(j, ':', "':'");
}
static int nnti_json_count(nnti_json *j, int64_t *v)
{
    size_t first;
    nnti_json_space(j);
    first = j->at;
    *v = 0;
    for (; nnti_json_digit(j); j->at++) {
        int digit = nnti_json_peek(j) - '0';
        if (*v > (INT64_MAX - digit) / 10) return nnti_json_fail(j, "a number below 2^63");
        *v = *v * 10 + digit;
    }
    if (j->at == first || (j->text[first] == '0' && j->at > first + 1)) return nnti_json_fail(j, "a whole number");
    return 1;
}
static int nnti_json_digits(nnti_json *j)
{
    if (!nnti_json_digit(j)) return nnti_json_fail(j, "a digit");
    while (nnti_json_digit(j)) j->at++;
    return 1;
}
static int nnti_json_skip_number(nnti_json *j)
{
    int c = nnti_json_peek(j);
    if (c == '-') j->at++;
    if (nnti_json_peek(j) == '0') j->at++;
    else if (!nnti_json_digits(j)) return 0;
    if (nnti_json_peek(j) == '.') {
        j->at++;
        if (!nnti_json_digits(j)) return 0;
    }
    if ((c = nnti_json_peek(j)) == 'e' || c == 'E') {
        j->at++;
        if ((c = nnti_json_peek(j)) == '+' || c == '-') j->at++;
        if (!nnti_json_digits(j)) return 0;
    }
    return 1;
}
/* Passes over any value, which may nest `depth` deep. */
static int nnti_json_skip(nnti_json *j, int depth)
{
    static const char *const words[] = { "true", "false", "null" };
    const char *s;
    size_t n;
    int i;
    if (depth == 0) return nnti_json_fail(j, "less nesting");
    if (nnti_json_take(j, '{')) {
        if (nnti_json_take(j, '}')) return 1;
        do {
            if (!nnti_json_key(j, &s, &n) || !nnti_json_skip(j, depth - 1)) return 0;
        } while (nnti_json_take(j, ','));
        return nnti_json_need(j, '}', "',' or '}'");
    }
    if (nnti_json_take(j, '[')) {
        if (nnti_json_take(j, ']')) return 1;
        do {
            if (!nnti_json_skip(j, depth - 1)) return 0;
        } while (nnti_json_take(j, ','));
        return nnti_json_need(j, ']', "',' or ']'");
    }
    if (nnti_json_peek(j) == '"') return nnti_json_string(j, &s, &n);
    for (i = 0; i < 3; i++) {
        n = strlen(words[i]);
        if (j->length - j->at >= n && memcmp(j->text + j->at, words[i], n) == 0) {
            j->at += n;
            return 1;
        }
    }
    return (nnti_json_peek(j) == '-' || nnti_json_digit(j)) ? nnti_json_skip_number(j) : nnti_json_fail(j, "a value");
}

static int nnti_string_is(const char *s, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(s, word, length) == 0;
}
static int nnti_st_parse_shape(nnti_json *j, nnti_st_entry *x)
{
    x->count = 1;
    if (!nnti_json_need(j, '[', "'['")) return 0;
    if (nnti_json_take(j, ']')) return 1;
    do {
        int64_t size;
        if (!nnti_json_count(j, &size)) return 0;
        if (x->rank < 4) x->size[x->rank] = size;
        x->rank++;
        x->count = nnti_mul64(x->count, size);
    } while (nnti_json_take(j, ','));
    return nnti_json_need(j, ']', "',' or ']'");
}
static int nnti_st_parse_offsets(nnti_json *j, nnti_st_entry *x)
{
    return nnti_json_need(j, '[', "'['") && nnti_json_count(j, &x->begin) && nnti_json_need(j, ',', "','")
        && nnti_json_count(j, &x->end) && nnti_json_need(j, ']', "']'");
}
enum { NNTI_ST_HAS_DTYPE = 1, NNTI_ST_HAS_SHAPE = 2, NNTI_ST_HAS_OFFSETS = 4, NNTI_ST_HAS_ALL = 7 };

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} in any order; members that we don't know are passed over. */
static int nnti_st_parse_entry(nnti_json *j, nnti_st_entry *x)
{
    int seen = 0;
    if (!nnti_json_need(j, '{', "'{'")) return 0;
    if (!nnti_json_take(j, '}')) {
        do {
            const char *key;
            size_t n;
            int what, ok;
            if (!nnti_json_key(j, &key, &n)) return 0;
            what = nnti_string_is(key, n, "dtype")        ? NNTI_ST_HAS_DTYPE
                 : nnti_string_is(key, n, "shape")        ? NNTI_ST_HAS_SHAPE
                 : nnti_string_is(key, n, "data_offsets") ? NNTI_ST_HAS_OFFSETS : 0;
            if (seen & what) return nnti_json_fail(j, "each of dtype, shape, data_offsets once");
            seen |= what;
            ok = what == NNTI_ST_HAS_DTYPE   ? nnti_json_string(j, &x->dtype, &x->dtype_length)
               : what == NNTI_ST_HAS_SHAPE   ? nnti_st_parse_shape(j, x)
               : what == NNTI_ST_HAS_OFFSETS ? nnti_st_parse_offsets(j, x)
               : nnti_json_skip(j, NNTI_JSON_DEPTH);
            if (!ok) return 0;
        } while (nnti_json_take(j, ','));
        if (!nnti_json_need(j, '}', "',' or '}'")) return 0;
    }
    return seen == NNTI_ST_HAS_ALL || nnti_json_fail(j, "dtype, shape and data_offsets");
}
/* Strings move to the front of where they stood, each with a 0 behind it: that takes less than their quotes did. A pair
   that holds a 0 itself is left out. */
static int nnti_st_parse_metadata(nnti_st *f, nnti_json *j)
{
    const char *key, *value;
    size_t n, m;
    char *to;
    if (!nnti_json_need(j, '{', "'{'")) return 0;
    f->metadata = to = j->text + j->at;
    if (nnti_json_take(j, '}')) return 1;
    do {
        if (!nnti_json_key(j, &key, &n) || !nnti_json_string(j, &value, &m)) return 0;
        if (memchr(key, 0, n) || memchr(value, 0, m)) continue;
        memmove(to, key, n);
        to[n] = 0;
        memmove(to + n + 1, value, m);
        to[n + 1 + m] = 0;
        to += n + m + 2;
        f->metadata_length = (size_t)(to - f->metadata);
    } while (nnti_json_take(j, ','));
    return nnti_json_need(j, '}', "',' or '}'");
}
/* The pair at *at, which moves on; 0 at the end. */
static int nnti_st_next_pair(const nnti_st *f, size_t *at, nnti_file_pair *pair)
{
    if (*at >= f->metadata_length) return 0;
    pair->key = f->metadata + *at;
    pair->value = pair->key + strlen(pair->key) + 1;
    *at = (size_t)(pair->value - f->metadata) + strlen(pair->value) + 1;
    return 1;
}
/* Fills f->entries in the header's order. *room is set to 0 when there was no memory for them. */
static int nnti_st_parse_members(nnti_st *f, nnti_json *j, int *room)
{
    int metadata = 0;
    if (nnti_json_peek(j) != '{') return nnti_json_fail(j, "'{'");       /* no white space before it */
    j->at++;
    if (nnti_json_take(j, '}')) return 1;
    do {
        nnti_st_entry x;
        void *entries = f->entries;
        memset(&x, 0, sizeof x);
        if (!nnti_json_key(j, &x.name, &x.name_length)) return 0;
        if (nnti_string_is(x.name, x.name_length, "__metadata__")) {
            if (metadata++) return nnti_json_fail(j, "__metadata__ once");
            if (!nnti_st_parse_metadata(f, j)) return 0;
            continue;
        }
        if (!nnti_st_parse_entry(j, &x)) return 0;
        *room = nnti_grow(f->a, &entries, &f->cap, f->count + 1, sizeof x);
        f->entries = (nnti_st_entry *)entries;
        if (!*room) return 0;
        f->entries[f->count++] = x;
    } while (nnti_json_take(j, ','));
    return nnti_json_need(j, '}', "',' or '}'");
}
static nnt_result nnti_st_parse(nnti_st *f)
{
    nnti_json j;
    int room = 1;
    j.text = f->header;
    j.at = 0;
    j.length = f->header_length;
    j.expected = NULL;
    if (nnti_st_parse_members(f, &j, &room)) {
        nnti_json_space(&j);
        if (j.at == j.length) return NNT_OK;
        nnti_json_fail(&j, "only spaces after the last '}'");
    }
    if (!room) return nnti_st_memory(f, (f->count + 1) * sizeof *f->entries);
    return nnti_st_fail(f, NNT_ERR_FORMAT, "its header is not as safetensors has it: %s expected at byte %z of %z",
                        j.expected, j.at, j.length);
}

/* Heap sort: in place, and as fast on hostile orders as on others. before(a, b): a comes before b. */
static void nnti_st_sort(nnti_st_entry *x, size_t count, int (*before)(const nnti_st_entry *, const nnti_st_entry *))
{
    size_t start = count / 2, end = count;
    while (end > 1) {
        nnti_st_entry v;
        size_t hole = 0, child;
        if (start > 0) {                    /* the heap is still being made */
            hole = --start;
            v = x[hole];
        } else {
            v = x[--end];
            x[end] = x[0];
        }
        for (; (child = 2 * hole + 1) < end; hole = child) {
            if (child + 1 < end && before(&x[child], &x[child + 1])) child++;
            if (!before(&v, &x[child])) break;
            x[hole] = x[child];
        }
        x[hole] = v;
    }
}
static int nnti_st_by_offset(const nnti_st_entry *a, const nnti_st_entry *b)
{
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
}
static int nnti_st_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int c = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return c ? c : a_length < b_length ? -1 : a_length > b_length;
}
static int nnti_st_by_name(const nnti_st_entry *a, const nnti_st_entry *b)
{
    return nnti_st_compare(a->name, a->name_length, b->name, b->name_length) < 0;
}
static int nnti_st_kind(const nnti_st_entry *x)
{
    int i;
    for (i = 0; i < (int)(sizeof nnti_st_dtypes / sizeof nnti_st_dtypes[0]); i++)
        if (nnti_string_is(x->dtype, x->dtype_length, nnti_st_dtypes[i].name)) return i;
    return -1;
}
/* Whether dtype, shape and offsets of one tensor fit each other. */
static nnt_result nnti_st_check_entry(nnti_st *f, nnti_st_entry *x)
{
    char name[NNTI_ST_NAME_TEXT], other[NNTI_ST_NAME_TEXT], shape[NNTI_ST_SHAPE_TEXT];
    int64_t bits = -1;
    x->kind = nnti_st_kind(x);
    if (x->kind >= 0) bits = nnti_mul64(x->count, nnti_st_dtypes[x->kind].bits);
    if (bits >= 0 && bits % 8 == 0 && x->end - x->begin == bits / 8) return NNT_OK;
    nnti_st_name_text(name, x->name, x->name_length);
    nnti_st_name_text(other, x->dtype, x->dtype_length);
    nnti_st_sizes_text(shape, x->rank, x->size);
    if (x->kind < 0)
        return nnti_st_fail(f, NNT_ERR_FORMAT, "'%s' has dtype '%s', which safetensors does not have", name, other);
    if (bits < 0 || bits % 8 != 0)
        return nnti_st_fail(f, NNT_ERR_FORMAT, "'%s' is %s of %s, which is not a possible number of bytes",
                            name, shape, other);
    return nnti_st_fail(f, NNT_ERR_FORMAT,
                        "'%s' is %s of %s, which takes %I bytes, but its data_offsets are %I and %I",
                        name, shape, other, bits / 8, x->begin, x->end);
}
/* Tensors have to cover the data without a hole and without an overlap, up to the file's last byte. */
static nnt_result nnti_st_check_tiling(nnti_st *f)
{
    char name[NNTI_ST_NAME_TEXT], other[NNTI_ST_NAME_TEXT];
    int64_t data = f->source->length - 8 - (int64_t)f->header_length, covered = 0;
    size_t i;
    nnti_st_sort(f->entries, f->count, nnti_st_by_offset);
    for (i = 0; i < f->count; i++) {
        nnti_st_entry *x = &f->entries[i];
        nnt_result r = nnti_st_check_entry(f, x);
        if (r) return r;
        if (x->begin < covered)
            return nnti_st_fail(f, NNT_ERR_FORMAT, "'%s' (bytes %I to %I) and '%s' (%I to %I) overlap",
                                nnti_st_name_text(other, x[-1].name, x[-1].name_length), x[-1].begin, x[-1].end,
                                nnti_st_name_text(name, x->name, x->name_length), x->begin, x->end);
        if (x->begin > covered)
            return nnti_st_fail(f, NNT_ERR_FORMAT, "bytes %I to %I, before '%s', belong to no tensor",
                                covered, x->begin, nnti_st_name_text(name, x->name, x->name_length));
        covered = x->end;
    }
    if (covered > data)
        return nnti_st_fail(f, NNT_ERR_FORMAT,
                            "its header tells of %I bytes of values and %I are there; it was cut off", covered, data);
    if (covered < data)
        return nnti_st_fail(f, NNT_ERR_FORMAT,
            "its header tells of %I bytes of values and %I are there; the rest belongs to no tensor", covered, data);
    return NNT_OK;
}
static nnt_result nnti_st_check_names(nnti_st *f)
{
    char name[NNTI_ST_NAME_TEXT];
    size_t i;
    nnti_st_sort(f->entries, f->count, nnti_st_by_name);
    for (i = 1; i < f->count; i++)
        if (!nnti_st_by_name(&f->entries[i - 1], &f->entries[i]))
            return nnti_st_fail(f, NNT_ERR_FORMAT, "'%s' is in the header twice",
                                nnti_st_name_text(name, f->entries[i].name, f->entries[i].name_length));
    return NNT_OK;
}
static nnt_result nnti_st_read(const nnti_st *f, int64_t at, void *to, size_t bytes)
{
    nnti_reason why;
    int code = f->source->read_fn(f->source->user, at, to, bytes);
    if (!code) return NNT_OK;
    return nnti_st_fail(f, NNT_ERR_FILE, "can't be read: %s", nnti_reason_text(&why, code));
}
/* Numbers in files are little-endian. Compilers turn these into single loads and stores where that fits. */
static uint32_t nnti_get_le16(const unsigned char *p) { return (uint32_t)(p[0] | p[1] << 8); }
static uint32_t nnti_get_le32(const unsigned char *p) { return nnti_get_le16(p) | nnti_get_le16(p + 2) << 16; }
static uint64_t nnti_get_le64(const unsigned char *p) { return nnti_get_le32(p) | (uint64_t)nnti_get_le32(p + 4) << 32; }
static int nnti_little_endian(void)
{
    uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}
static void nnti_put_le32(unsigned char *p, uint32_t v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
    p[2] = (unsigned char)(v >> 16);
    p[3] = (unsigned char)(v >> 24);
}
static nnt_result nnti_st_read_header(nnti_st *f)
{
    unsigned char start[8];
    uint64_t length;
    nnt_result r;
    if (f->source->length < 8)
        return nnti_st_fail(f, NNT_ERR_FORMAT,
            "has %I bytes; a safetensors file begins with 8 that give its header's length", f->source->length);
    r = nnti_st_read(f, 0, start, 8);
    if (r) return r;
    length = nnti_get_le64(start);
    if (length > (uint64_t)f->source->length - 8 || length > NNTI_ST_HEADER_MAX) {
        char digits[24];
        nnti_text t = nnti_text_begin(digits, sizeof digits);
        nnti_put_unsigned(&t, length);
        nnti_text_end(&t);
        if (length > NNTI_ST_HEADER_MAX)
            return nnti_st_fail(f, NNT_ERR_FORMAT,
                                "its header would have %s bytes and at most %d are allowed; not a safetensors file",
                                digits, (int)NNTI_ST_HEADER_MAX);
        return nnti_st_fail(f, NNT_ERR_FORMAT,
            "its header would have %s bytes, but the file has %I; it was cut off or is no safetensors file",
                            digits, f->source->length);
    }
    f->header = (char *)nnti_alloc(f->a, (size_t)length);
    if (!f->header) return nnti_st_memory(f, (size_t)length);
    f->header_length = (size_t)length;
    r = nnti_st_read(f, 8, f->header, f->header_length);
    if (r) return r;
    if (!nnti_utf8_valid(f->header, f->header_length))
        return nnti_st_fail(f, NNT_ERR_FORMAT, "its header is not UTF-8; not a safetensors file");
    return NNT_OK;
}
static void nnti_st_close(nnti_st *f)
{
    nnti_free(f->a, f->entries, f->cap * sizeof *f->entries);
    nnti_free(f->a, f->header, f->header_length);
}
/* Reads the header and checks all that it says. To be closed in either case. */
static nnt_result nnti_st_open(nnti_st *f, const nnt_allocator *a, const nnti_source *source, const char *verb,
                               const char *path, nnti_error *e)
{
    nnt_result r;
    memset(f, 0, sizeof *f);
    f->a = a;
    f->source = source;
    f->verb = verb;
    f->path = path;
    f->e = e;
    r = nnti_st_read_header(f);
    if (!r) r = nnti_st_parse(f);
    if (!r) r = nnti_st_check_tiling(f);
    if (!r) r = nnti_st_check_names(f);
    return r;
}
static const nnti_st_entry *nnti_st_find(const nnti_st *f, const char *name)
{
    size_t low = 0, high = f->count, length = strlen(name);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const nnti_st_entry *x = &f->entries[middle];
        int c = nnti_st_compare(x->name, x->name_length, name, length);
        if (c == 0) return x;
        if (c < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}
/* Whether the file has t's values in t's shape. */
static nnt_result nnti_st_match(const nnti_st *f, const nnti_file_tensor *t)
{
    const nnti_st_entry *x = nnti_st_find(f, t->name);
    char name[NNTI_ST_NAME_TEXT], file[NNTI_ST_SHAPE_TEXT], here[NNTI_ST_SHAPE_TEXT];
    nnti_st_name_text(name, t->name, strlen(t->name));
    nnti_st_sizes_text(here, t->rank, t->size);
    if (!x)
        return nnti_st_fail(f, NNT_ERR_SHAPE,
            "'%s' (%s here) is not in the file; layers need the names that they were saved under", name, here);
    if (x->rank != t->rank || memcmp(x->size, t->size, (size_t)t->rank * sizeof t->size[0]) != 0) {
        int input = t->rank == 2 && x->rank == 2 && x->size[0] == t->size[0];
        return nnti_st_fail(f, NNT_ERR_SHAPE, "'%s' is %s in the file and %s here; the %s probably differs",
                            name, nnti_st_sizes_text(file, x->rank, x->size), here, input ? "input size" : "net");
    }
    if (x->kind >= NNTI_ST_READABLE)
        return nnti_st_fail(f, NNT_ERR_UNSUPPORTED,
                            "'%s' is %s in the file; F32, F64, F16 and BF16 can be loaded, convert it first",
                            name, nnti_st_dtypes[x->kind].name);
    return NNT_OK;
}

/* Conversions in whole numbers, so that neither -ffast-math nor flushed denormals change a value. */
static uint32_t nnti_f16_to_f32(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = (h & 0x3ffu) << 13;
    if (exponent == 31) return sign | 0x7f800000u | fraction;
    if (exponent == 0) {
        if (fraction == 0) return sign;
        for (exponent = 1; !(fraction & 0x800000u); exponent--) fraction <<= 1;     /* may wrap: only the sum counts */
        fraction &= 0x7fffffu;
    }
    return sign | (exponent + 112u) << 23 | fraction;
}
/* Rounds to the nearest, to even when halfway, as a cast does. */
static uint32_t nnti_f64_to_f32(uint64_t d)
{
    uint32_t sign = (uint32_t)(d >> 32) & 0x80000000u, bits;
    int exponent = (int)(d >> 52 & 0x7ff) - 896, shift = 29;        /* as f32 has it: 1 to 254 for normal values */
    uint64_t fraction = d & 0xfffffffffffffull, rest, half;
    if (exponent == 0x7ff - 896)
        return sign | 0x7f800000u | (fraction ? 0x400000u | (uint32_t)(fraction >> 29) : 0u);
    if (exponent > 254) return sign | 0x7f800000u;
    if (exponent < -23) return sign;                                /* below half of the smallest value, 2^-149 */
    fraction |= 0x10000000000000ull;
    if (exponent < 1) {
        shift += 1 - exponent;
        exponent = 1;
    }
    half = (uint64_t)1 << (shift - 1);
    rest = fraction & (2 * half - 1);
    bits = ((uint32_t)(exponent - 1) << 23) + (uint32_t)(fraction >> shift);
    if (rest > half || (rest == half && (bits & 1u))) bits++;       /* a carry ends in the exponent, where it belongs */
    return sign | bits;
}
static uint32_t nnti_st_value(int kind, const unsigned char *p)
{
    switch (kind) {
    case NNTI_ST_F64:  return nnti_f64_to_f32(nnti_get_le64(p));
    case NNTI_ST_F16:  return nnti_f16_to_f32(nnti_get_le16(p));
    case NNTI_ST_BF16: return nnti_get_le16(p) << 16;
    default:           return nnti_get_le32(p);
    }
}
/* Values of x as f32 to `to`, through a block of NNTI_FILE_BLOCK bytes. */
static nnt_result nnti_st_read_values(const nnti_st *f, const nnti_st_entry *x, unsigned char *block, float *to)
{
    int64_t at = 8 + (int64_t)f->header_length, done;
    size_t width = (size_t)nnti_st_dtypes[x->kind].bits / 8, i;
    for (done = x->begin; done < x->end; ) {
        size_t bytes = (size_t)nnti_min64(x->end - done, NNTI_FILE_BLOCK);
        nnt_result r = nnti_st_read(f, at + done, block, bytes);
        if (r) return r;
        for (i = 0; i < bytes; i += width, to++) {
            uint32_t bits = nnti_st_value(x->kind, block + i);
            memcpy(to, &bits, 4);           /* not through a float: the x87 would change a signalling NaN */
        }
        done += (int64_t)bytes;
    }
    return NNT_OK;
}
/* Number of values of t, -1 when it passes 2^62. */
static int64_t nnti_file_tensor_count(const nnti_file_tensor *t)
{
    int64_t n = 1;
    int i;
    for (i = 0; i < t->rank; i++) n = nnti_mul64(n, t->size[i]);
    return n;
}
/* Bytes of all values together; 0 when that is too much for size_t. */
static int nnti_file_tensor_bytes(const nnti_file_tensor *t, int count, size_t *bytes)
{
    int i;
    *bytes = 0;
    for (i = 0; i < count; i++) {
        int64_t n = nnti_mul64(nnti_file_tensor_count(&t[i]), (int64_t)sizeof(float));
        if (n < 0 || (uint64_t)n > SIZE_MAX || !nnti_add_size(*bytes, (size_t)n, bytes)) return 0;
    }
    return 1;
}
/* Reads t[0 .. count-1], all F32, one after the other, into *values, which the caller gives back (nnti_free, *bytes).
   The memory is taken only after everything was found to fit; *values is NULL after an error. */
static nnt_result nnti_st_fetch(const nnti_st *f, const nnti_file_tensor *t, int count, float **values, size_t *bytes)
{
    unsigned char *block = NULL;
    float *to = NULL;
    size_t done = 0;
    int i;
    nnt_result r = NNT_OK;
    *values = NULL;
    *bytes = 0;
    for (i = 0; !r && i < count; i++) r = nnti_st_match(f, &t[i]);
    if (!r && !nnti_file_tensor_bytes(t, count, bytes)) r = nnti_st_memory(f, SIZE_MAX);
    if (!r) {
        block = (unsigned char *)nnti_alloc(f->a, NNTI_FILE_BLOCK);
        to = (float *)nnti_alloc(f->a, *bytes);
        if (!block || !to) r = nnti_st_memory(f, *bytes + NNTI_FILE_BLOCK);
    }
    for (i = 0; !r && i < count; i++) {
        r = nnti_st_read_values(f, nnti_st_find(f, t[i].name), block, to + done);
        done += (size_t)nnti_file_tensor_count(&t[i]);
    }
    nnti_free(f->a, block, NNTI_FILE_BLOCK);
    if (r) nnti_free(f->a, to, *bytes);
    else *values = to;
    return r;
}
/* An I64 or F64 array of `rank` sizes as it is: at most cap values to `to`. Its sizes to size; a file without it gives
   sizes of 0. */
static nnt_result nnti_st_read_array(const nnti_st *f, const char *name, int kind, int rank, int64_t *size, void *to, size_t cap)
{
    const nnti_st_entry *x = nnti_st_find(f, name);
    char *p = (char *)to;
    int64_t i;
    nnt_result r;
    memset(size, 0, (size_t)rank * sizeof *size);
    if (!x) return NNT_OK;
    if (x->kind != kind || x->rank != rank || (uint64_t)x->count > cap)
        return nnti_st_fail(f, NNT_ERR_UNSUPPORTED, "'%s' is not as this version writes it; take the version that wrote it", name);
    memcpy(size, x->size, (size_t)rank * sizeof *size);
    r = nnti_st_read(f, 8 + (int64_t)f->header_length + x->begin, to, (size_t)(x->end - x->begin));
    for (i = 0; !r && i < x->count; i++) {
        uint64_t v = nnti_get_le64((unsigned char *)p + 8 * i);
        memcpy(p + 8 * i, &v, 8);
    }
    return r;
}

/* A file that is open, to be closed in either case. */
typedef struct nnti_st_file { nnti_st st; nnti_source source; nnti_handle h; } nnti_st_file;

static nnt_result nnti_st_file_open(nnti_st_file *f, const nnt_allocator *a, const char *verb, const char *path, nnti_error *e)
{
    nnti_reason why;
    int code;
    memset(f, 0, sizeof *f);
    f->h = -1;
    f->st.a = a;
    code = nnti_file_open(path, &f->h, &f->source.length);
    if (code)
        return nnti_set_error(e, NNT_ERR_FILE, "%s '%s': can't be opened: %s", verb, path, nnti_reason_text(&why, code));
    f->source.read_fn = nnti_file_read_at;
    f->source.user = &f->h;
    return nnti_st_open(&f->st, a, &f->source, verb, path, e);
}
static void nnti_st_file_close(nnti_st_file *f)
{
    nnti_st_close(&f->st);
    if (f->h != -1) (void)nnti_file_close(NULL, f->h);          /* was only read from */
}

/* The header with its length in front. 0 when the data passes 2^62 bytes. */
static int nnti_st_put_header(nnti_text *text, const nnti_st_content *c)
{
    const nnti_file_tensor *t = c->t;
    const nnti_file_pair *metadata = c->metadata;
    int count = c->count, pairs = c->pairs;
    int64_t at = 0;
    int i, k;
    nnti_put_char(text, '{');
    if (pairs > 0) nnti_put_string(text, "\"__metadata__\":{");
    for (i = 0; i < pairs; i++) {
        nnti_put_string(text, i ? ",\"" : "\"");
        nnti_put_json(text, metadata[i].key, strlen(metadata[i].key));
        nnti_put_string(text, "\":\"");
        nnti_put_json(text, metadata[i].value, strlen(metadata[i].value));
        nnti_put_char(text, '"');
    }
    if (pairs > 0) nnti_put_string(text, count > 0 ? "}," : "}");
    for (i = 0; i < count; i++) {
        int64_t bytes = nnti_mul64(nnti_file_tensor_count(&t[i]), nnti_st_dtypes[t[i].kind].bits / 8);
        if (bytes < 0 || at > ((int64_t)1 << 62) - bytes) return 0;
        nnti_put_string(text, i ? ",\"" : "\"");
        nnti_put_json(text, t[i].name, strlen(t[i].name));
        nnti_put(text, "\":{\"dtype\":\"%s\",\"shape\":[", nnti_st_dtypes[t[i].kind].name);
        for (k = 0; k < t[i].rank; k++) nnti_put(text, k ? ",%I" : "%I", t[i].size[k]);
        nnti_put(text, "],\"data_offsets\":[%I,%I]}", at, at + bytes);
        at += bytes;
    }
    nnti_put_char(text, '}');
    while (text->length % 8 != 0) nnti_put_char(text, ' ');      /* values start aligned */
    return 1;
}
static nnt_result nnti_st_bad_name(const char *path, const char *name, const char *why, nnti_error *e)
{
    char text[NNTI_ST_NAME_TEXT];
    return nnti_set_error(e, NNT_ERR_ARGUMENT, "save '%s': the name '%s' %s; give the layer another one (nnt_name)",
                          path, nnti_st_name_text(text, name, strlen(name)), why);
}
static nnt_result nnti_st_check_unique(const nnt_allocator *a, const char *path, const nnti_st_content *c, nnti_error *e)
{
    nnti_st_entry *x = (nnti_st_entry *)nnti_zalloc(a, (size_t)c->count, sizeof *x);
    nnt_result r = NNT_OK;
    int i;
    if (!x) return nnti_set_error(e, NNT_ERR_MEMORY, "save '%s': out of memory; needs %B", path, (size_t)c->count * sizeof *x);
    for (i = 0; i < c->count; i++) {
        x[i].name = c->t[i].name;
        x[i].name_length = strlen(c->t[i].name);
    }
    nnti_st_sort(x, (size_t)c->count, nnti_st_by_name);
    for (i = 1; i < c->count && !r; i++)
        if (!nnti_st_by_name(&x[i - 1], &x[i])) r = nnti_st_bad_name(path, x[i].name, "names two tensors", e);
    nnti_free(a, x, (size_t)c->count * sizeof *x);
    return r;
}
/* Names have to be such that the file can be read again. */
static nnt_result nnti_st_check_write(const nnt_allocator *a, const char *path, const nnti_st_content *c, nnti_error *e)
{
    char name[NNTI_ST_NAME_TEXT];
    int i;
    for (i = 0; i < c->count; i++) {
        if (!nnti_utf8_valid(c->t[i].name, strlen(c->t[i].name))) return nnti_st_bad_name(path, c->t[i].name, "is not UTF-8", e);
        if (strcmp(c->t[i].name, "__metadata__") == 0) return nnti_st_bad_name(path, c->t[i].name, "is taken by the format", e);
    }
    for (i = 0; i < c->pairs; i++)
        if (!nnti_utf8_valid(c->metadata[i].key, strlen(c->metadata[i].key))
            || !nnti_utf8_valid(c->metadata[i].value, strlen(c->metadata[i].value)))
            return nnti_set_error(e, NNT_ERR_ARGUMENT, "save '%s': metadata '%s' is not UTF-8",
                                  path, nnti_st_name_text(name, c->metadata[i].key, strlen(c->metadata[i].key)));
    return nnti_st_check_unique(a, path, c, e);
}
/* Turns values around where numbers are not little-endian. */
static void nnti_swap_to_le(unsigned char *p, size_t count, size_t width)
{
    size_t i, k;
    if (nnti_little_endian()) return;
    for (i = 0; i < count; i++, p += width)
        for (k = 0; k < width / 2; k++) {
            unsigned char c = p[k];
            p[k] = p[width - 1 - k];
            p[width - 1 - k] = c;
        }
}
static nnt_result nnti_st_write_values(nnti_writer *w, const nnti_st_content *c, const nnti_file_tensor *t)
{
    int64_t first = 0, count = nnti_file_tensor_count(t);
    size_t width = (size_t)nnti_st_dtypes[t->kind].bits / 8, n;
    nnt_result r = NNT_OK;
    for (; first < count && !w->code && !r; first += (int64_t)n) {
        if (NNTI_FILE_BLOCK - w->used < width) nnti_writer_flush(w);
        n = (NNTI_FILE_BLOCK - w->used) / width;
        if ((uint64_t)(count - first) < n) n = (size_t)(count - first);
        if (t->data) memcpy(w->block + w->used, (const char *)t->data + (size_t)first * width, n * width);
        else r = c->get_fn(c->user, t, first, (int64_t)n, w->block + w->used);
        nnti_swap_to_le(w->block + w->used, n, width);
        w->used += n * width;
        if (w->used == NNTI_FILE_BLOCK) nnti_writer_flush(w);
    }
    return r;
}
/* path.1 becomes path.2 and so on, and path is path.1 too. There is no moment without a file called path, except where
   the file system gives a file one name only. Returns an error number. */
static int nnti_keep_older(const nnti_file_calls *calls, const char *path, char *from, char *to, size_t cap, int keep)
{
    int k, code;
    for (k = keep - 1; k > 0; k--) {
        nnti_format(to, cap, "%s.%d", path, k);
        if (k > 1) nnti_format(from, cap, "%s.%d", path, k - 1);
        else nnti_file_remove(to);          /* was renamed, or is the only one to be kept */
        if (k == 1 && nnti_file_link(path, to)) break;
        code = calls->rename_fn(calls->user, k > 1 ? from : path, to);
        if (code && !nnti_is_missing(code)) return code;
    }
    return NNTI_SYSTEM_OK;
}
/* Memory of a save: names have room for the path and NNTI_TEMPORARY_SUFFIX. */
typedef struct nnti_st_room { char *header, *name[3]; unsigned char *block; size_t header_length, name_cap; } nnti_st_room;

/* Everything behind the check of names, with memory at hand. */
static nnt_result nnti_st_write_file(const nnti_file_calls *calls, const char *path, const nnti_st_room *room,
                                     const nnti_st_content *c, nnti_error *e)
{
    char *name = room->name[0];
    nnti_writer w;
    nnti_handle folder;
    nnti_reason why;
    unsigned char start[8];
    const char *step = "writing";
    int i, code, closed;
    nnt_result r = NNT_OK;
    code = nnti_temporary_open(path, name, room->name_cap, &w.h);
    if (code)
        return nnti_set_error(e, NNT_ERR_FILE, "save '%s': can't be created: %s", path, nnti_reason_text(&why, code));
    w.calls = calls;
    w.block = room->block;
    w.used = 0;
    w.code = 0;
    nnti_put_le32(start, (uint32_t)room->header_length);        /* at most NNTI_ST_HEADER_MAX */
    nnti_put_le32(start + 4, 0);
    nnti_writer_put(&w, start, 8);
    nnti_writer_put(&w, room->header, room->header_length);
    for (i = 0; i < c->count && !r; i++) r = nnti_st_write_values(&w, c, &c->t[i]);
    if (r) {                                /* the device failed, and has said so */
        (void)calls->close_fn(calls->user, w.h);
        nnti_file_remove(name);
        return r;
    }
    nnti_writer_flush(&w);
    code = w.code;
    if (!code) { step = "flushing"; code = calls->flush_fn(calls->user, w.h); }
    if (!code) { step = "renaming"; code = nnti_keep_older(calls, path, room->name[1], room->name[2], room->name_cap, c->keep); }
    if (!code) code = calls->rename_fn(calls->user, name, path);
    if (code) {
        (void)calls->close_fn(calls->user, w.h);
        nnti_file_remove(name);
        return nnti_set_error(e, NNT_ERR_FILE,
                              "save '%s': %s '%s' failed: %s; a file that was there before is unchanged",
                              path, step, name, nnti_reason_text(&why, code));
    }
    if (nnti_folder_open(name, path, &folder)) {
        code = calls->flush_fn(calls->user, folder);
        if (code == EINVAL) code = 0;       /* this file system has no such thing */
        (void)calls->close_fn(calls->user, folder);
    }
    closed = calls->close_fn(calls->user, w.h);
    if (!code) code = closed;
    if (code)
        return nnti_set_error(e, NNT_ERR_FILE,
                              "save '%s': the new file is in place, but may be lost if the power fails now: %s",
                              path, nnti_reason_text(&why, code));
    return NNT_OK;
}
/* Writes c's tensors in their order; metadata are strings for whoever reads the file. The new file takes the old one's
   place only when it is whole and on the disk; after an error the old one is still there. Of a link, what it leads to is
   replaced. */
static nnt_result nnti_st_write(const nnti_file_calls *calls, const nnt_allocator *a, const char *path,
                                const nnti_st_content *c, nnti_error *e)
{
    char linked[NNTI_PATH];
    nnti_text text = nnti_text_begin(NULL, 0);
    nnti_st_room room;
    size_t header_cap, names;
    nnt_result r;
    path = nnti_follow_links(path, linked);
    r = nnti_st_check_write(a, path, c, e);
    if (r) return r;
    if (!nnti_st_put_header(&text, c) || text.length > NNTI_ST_HEADER_MAX)
        return nnti_set_error(e, NNT_ERR_UNSUPPORTED,
                              "save '%s': too large for safetensors: its header may have %d bytes and needs %z",
                              path, (int)NNTI_ST_HEADER_MAX, text.length);
    header_cap = text.length + 1;
    room.header_length = text.length;
    room.name_cap = strlen(path) + NNTI_TEMPORARY_SUFFIX;
    names = 3 * room.name_cap;
    room.header = (char *)nnti_alloc(a, header_cap);
    room.name[0] = (char *)nnti_alloc(a, names);
    room.block = (unsigned char *)nnti_alloc(a, NNTI_FILE_BLOCK);
    if (room.header && room.name[0] && room.block) {
        room.name[1] = room.name[0] + room.name_cap;
        room.name[2] = room.name[1] + room.name_cap;
        text = nnti_text_begin(room.header, header_cap);
        nnti_st_put_header(&text, c);
        nnti_text_end(&text);
        r = nnti_st_write_file(calls, path, &room, c, e);
    } else {
        r = nnti_set_error(e, NNT_ERR_MEMORY,
                           "save '%s': out of memory; needs %B", path, header_cap + names + NNTI_FILE_BLOCK);
    }
    nnti_free(a, room.block, NNTI_FILE_BLOCK);
    nnti_free(a, room.name[0], names);
    nnti_free(a, room.header, header_cap);
    return r;
}
#endif /* NNT_NO_STDIO */

/* ============================================================================
   >>cpu    The CPU backend: a table from op kinds to kernels
   ============================================================================ */

typedef struct nnti_kernel {
    void   (*run)(const nnti_exec *e, const nnt_op *op, const nnt_run *run);
    size_t (*workspace)(const nnti_exec *e, const nnt_op *op, int batch);
} nnti_kernel;

static const nnti_kernel nnti_cpu_kernels[NNT_OP_KINDS] = {     /* in the order of NNT_OP_... */
    { NULL, NULL },
    { nnti_cpu_copy, NULL },
    { nnti_cpu_accumulate, NULL },
    { nnti_cpu_conv, nnti_cpu_conv_workspace },
    { nnti_cpu_conv_data_any, nnti_cpu_conv_data_any_workspace },
    { nnti_cpu_conv_weight, nnti_cpu_conv_weight_workspace },
    { nnti_cpu_conv_pool, nnti_cpu_conv_pool_workspace },
    { nnti_cpu_conv_pool_data, nnti_cpu_conv_pool_data_workspace },
    { nnti_cpu_conv_pool_weight, nnti_cpu_conv_pool_weight_workspace },
    { nnti_cpu_linear, nnti_cpu_linear_workspace },
    { nnti_cpu_linear_data, nnti_cpu_linear_data_workspace },
    { nnti_cpu_linear_weight, nnti_cpu_linear_weight_workspace },
    { nnti_cpu_act, NULL },
    { nnti_cpu_act_grad, NULL },
    { nnti_cpu_maxpool, NULL },
    { nnti_cpu_maxpool_grad, NULL },
    { nnti_cpu_avgpool, NULL },
    { nnti_cpu_avgpool_grad, NULL },
    { nnti_cpu_adaptive, NULL },
    { nnti_cpu_adaptive_grad, NULL },
    { nnti_cpu_dropout, NULL },
    { nnti_cpu_noise, NULL },
    { nnti_cpu_noise_grad, NULL },
    { nnti_cpu_bn_stats, NULL },
    { nnti_cpu_bn_running, NULL },
    { nnti_cpu_bn_apply, NULL },
    { nnti_cpu_bn_eval, NULL },
    { nnti_cpu_bn_grad, NULL },
    { nnti_cpu_bn_pool, nnti_cpu_bn_pool_workspace },
    { nnti_cpu_bn_pool_grad, nnti_cpu_bn_pool_grad_workspace },
    { nnti_cpu_add, NULL },
    { nnti_cpu_concat, NULL },
    { nnti_cpu_concat_grad, NULL },
    { nnti_cpu_softmax, NULL },
    { nnti_cpu_softmax_grad, NULL },
    { nnti_cpu_cross_entropy, nnti_cpu_cross_entropy_workspace },
    { nnti_cpu_mse, nnti_cpu_mse_workspace },
    { nnti_cpu_grad_norm, nnti_cpu_grad_norm_workspace },
    { nnti_cpu_update, NULL }
};

typedef struct nnti_cpu { nnt_allocator a; nnti_exec e; } nnti_cpu;

static int nnti_cpu_count(void) { return 1; }
static nnt_result nnti_cpu_open(const nnt_allocator *a, int index, int threads, void **device, char *why, size_t cap)
{
    nnti_cpu *cpu = (nnti_cpu *)nnti_zalloc(a, 1, sizeof *cpu);
    (void)index;
    if (cpu) {
        cpu->a = *a;
        cpu->e.isa = nnti_isa_best();
        cpu->e.pool = nnti_pool_start(a, threads);
    }
    if (!cpu || !cpu->e.pool) {
        nnti_free(a, cpu, sizeof *cpu);
        nnti_format(why, cap, "out of memory");
        return NNT_ERR_MEMORY;
    }
    *device = cpu;
    return NNT_OK;
}
static void nnti_cpu_close(void *device)
{
    nnti_cpu *cpu = (nnti_cpu *)device;
    nnt_allocator a = cpu->a;
    nnti_pool_stop(cpu->e.pool);
    nnti_free(&a, cpu, sizeof *cpu);
}
static void *nnti_cpu_alloc(void *device, size_t bytes) { return nnti_alloc(&((nnti_cpu *)device)->a, bytes); }
static void  nnti_cpu_release(void *device, void *p, size_t bytes) { nnti_free(&((nnti_cpu *)device)->a, p, bytes); }
static nnt_result nnti_cpu_transfer(void *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return NNT_OK;
}
static nnt_result nnti_cpu_fill_memory(void *device, void *to, float value, int64_t count)
{
    nnti_cpu_fill(&((nnti_cpu *)device)->e, (float *)to, value, count);
    return NNT_OK;
}
static size_t nnti_cpu_workspace(void *device, const nnt_op *op, int batch)
{
    const nnti_kernel *k = &nnti_cpu_kernels[op->kind];
    return k->workspace ? k->workspace(&((nnti_cpu *)device)->e, op, batch) : 0;
}
static nnt_result nnti_cpu_run(void *device, const nnt_op *ops, int count, const nnt_run *run)
{
    int i;
    for (i = 0; i < count; i++) nnti_cpu_kernels[ops[i].kind].run(&((nnti_cpu *)device)->e, &ops[i], run);
    return NNT_OK;
}
static nnt_result nnti_cpu_make_random(void *device, float *to, int64_t count, int kind, float a, float b, uint64_t seed)
{
    nnti_cpu_random(&((nnti_cpu *)device)->e, to, count, kind, a, b, seed);
    return NNT_OK;
}
static nnt_result nnti_cpu_combine(void *device, float *y, float a, const float *x, float b, const float *z, int64_t count)
{
    nnti_cpu_axpby(&((nnti_cpu *)device)->e, y, a, x, b, z, count);
    return NNT_OK;
}
static void nnti_cpu_host_threads(void *device, nnt_parallel_fn fn, void *user)
{
    nnti_pool_set_host(((nnti_cpu *)device)->e.pool, fn, user);
}
static const nnt_backend nnti_cpu_backend = {
    NNT_BACKEND_ABI, "cpu", nnti_cpu_count, nnti_cpu_open, nnti_cpu_close, nnti_cpu_alloc, nnti_cpu_release,
    nnti_cpu_transfer, nnti_cpu_transfer, nnti_cpu_fill_memory, NULL, nnti_cpu_workspace, nnti_cpu_run, NULL, NULL,
    nnti_cpu_make_random, nnti_cpu_combine, nnti_cpu_host_threads, nnti_host_memory, NULL, NULL, NULL, NULL
};

/* ============================================================================
   >>null    A device that counts and computes nothing: plans of any size run on it, without their memory
   ============================================================================ */

typedef struct nnti_null { nnt_allocator a; size_t bytes; int allocations; int64_t ops, uploads, downloads; } nnti_null;

static nnt_result nnti_null_open(const nnt_allocator *a, int index, int threads, void **device, char *why, size_t cap)
{
    nnti_null *n = (nnti_null *)nnti_zalloc(a, 1, sizeof *n);
    (void)index; (void)threads;
    if (!n) { nnti_format(why, cap, "out of memory"); return NNT_ERR_MEMORY; }
    n->a = *a;
    *device = n;
    return NNT_OK;
}
static void nnti_null_close(void *device)
{
    nnt_allocator a = ((nnti_null *)device)->a;
    nnti_free(&a, device, sizeof(nnti_null));
}
/* An address that nobody reads: its own alignment. */
static void *nnti_null_alloc(void *device, size_t bytes)
{
    nnti_null *n = (nnti_null *)device;
    n->bytes += bytes;
    n->allocations++;
    return (void *)NNTI_ALIGN;
}
static void nnti_null_release(void *device, void *p, size_t bytes) { if (p) ((nnti_null *)device)->bytes -= bytes; }
static nnt_result nnti_null_upload(void *device, void *to, const void *from, size_t bytes)
{
    (void)to; (void)from; (void)bytes;
    ((nnti_null *)device)->uploads++;
    return NNT_OK;
}
static nnt_result nnti_null_download(void *device, void *to, const void *from, size_t bytes)
{
    (void)from;
    memset(to, 0, bytes);
    ((nnti_null *)device)->downloads++;
    return NNT_OK;
}
static nnt_result nnti_null_fill(void *device, void *to, float value, int64_t count) { (void)device; (void)to; (void)value; (void)count; return NNT_OK; }
static nnt_result nnti_null_run(void *device, const nnt_op *ops, int count, const nnt_run *run)
{
    (void)ops; (void)run;
    ((nnti_null *)device)->ops += count;
    return NNT_OK;
}
static nnt_result nnti_null_random(void *device, float *to, int64_t count, int kind, float a, float b, uint64_t seed)
{
    (void)device; (void)to; (void)count; (void)kind; (void)a; (void)b; (void)seed;
    return NNT_OK;
}
static nnt_result nnti_null_combine(void *device, float *y, float a, const float *x, float b, const float *z, int64_t count)
{
    (void)device; (void)y; (void)a; (void)x; (void)b; (void)z; (void)count;
    return NNT_OK;
}
static const nnt_backend nnti_null_backend = {
    NNT_BACKEND_ABI, "null", nnti_cpu_count, nnti_null_open, nnti_null_close, nnti_null_alloc, nnti_null_release,
    nnti_null_upload, nnti_null_download, nnti_null_fill, NULL, NULL, nnti_null_run, NULL, NULL, nnti_null_random, nnti_null_combine,
    NULL, NULL, NULL, NULL, NULL, NULL
};

/* ============================================================================
   >>devices    The table of backends, and devices that a net has opened
   The table is the library's only global; it is written before the first compile.
   ============================================================================ */

enum { NNTI_MAX_BACKENDS = 8 };
static const nnt_backend *nnti_backends[NNTI_MAX_BACKENDS] = { &nnti_cpu_backend, &nnti_null_backend };

NNT_API nnt_result nnt_backend_register(const nnt_backend *b)
{
    int i;
    if (!b || b->abi != NNT_BACKEND_ABI || !b->name || !b->count || !b->open || !b->close || !b->alloc || !b->release
        || !b->upload || !b->download || !b->fill || !b->run || !b->random || !b->axpby) return NNT_ERR_ARGUMENT;
    for (i = 0; i < NNTI_MAX_BACKENDS && nnti_backends[i]; i++)
        if (strcmp(nnti_backends[i]->name, b->name) == 0) return nnti_backends[i] == b ? NNT_OK : NNT_ERR_STATE;
    if (i == NNTI_MAX_BACKENDS) return NNT_ERR_STATE;
    nnti_backends[i] = b;
    return NNT_OK;
}

/* Finds backend and index of "cpu", "cuda", "cuda:1". */
static nnt_result nnti_find_device(nnti_error *e, const char *where, const char *device, const nnt_backend **backend, int *index)
{
    const char *colon = strchr(device, ':'), *c;
    size_t length = colon ? (size_t)(colon - device) : strlen(device);
    int i, found = -1, count;
    *index = 0;
    for (i = 0; i < NNTI_MAX_BACKENDS && nnti_backends[i]; i++)
        if (strlen(nnti_backends[i]->name) == length && strncmp(nnti_backends[i]->name, device, length) == 0) found = i;
    if (found < 0) {
        char known[128];
        nnti_text t = nnti_text_begin(known, sizeof known);
        for (i = 0; i < NNTI_MAX_BACKENDS && nnti_backends[i]; i++) nnti_put(&t, "%s%s", i ? ", " : "", nnti_backends[i]->name);
        nnti_text_end(&t);
        if (length == 4 && strncmp(device, "cuda", 4) == 0)
            return nnti_set_error(e, NNT_ERR_DEVICE, "%s: device '%s': this program was built without CUDA; compile and link nntrain_cuda.cu with it: nvcc ... nntrain_cuda.cu -lcublas -lcublasLt; there are: %s", where, device, known);
        return nnti_set_error(e, NNT_ERR_DEVICE, "%s: device '%s' is unknown; there are: %s", where, device, known);
    }
    *backend = nnti_backends[found];
    count = (*backend)->count();
    if (colon) {
        int64_t v = 0;
        for (c = colon + 1; *c >= '0' && *c <= '9' && v < 100000; c++) v = v * 10 + (*c - '0');
        if (c == colon + 1 || *c)
            return nnti_set_error(e, NNT_ERR_DEVICE, "%s: device '%s': behind the colon stands a number from 0 on", where, device);
        *index = (int)v;
    }
    if (count > 0 && *index >= count)
        return nnti_set_error(e, NNT_ERR_DEVICE, "%s: device '%s': there %s %d of this kind, counted from 0", where, device, count == 1 ? "is" : "are", count);
    return NNT_OK;
}

NNT_API nnt_result nnt_memory_info(const char *device, nnt_memory_usage *out, char *why, size_t cap)
{
    const nnt_backend *backend = NULL;
    nnti_error e;
    char text[256];
    int index = 0;
    nnt_result r;
    if (why && cap) why[0] = 0;
    else { why = NULL; cap = 0; }
    if (!device) device = "cpu";
    nnti_clear_error(&e);
    text[0] = 0;
    if (!out) r = nnti_set_error(&e, NNT_ERR_ARGUMENT, "nnt_memory_info: out is NULL");
    else {
        memset(out, 0, sizeof *out);
        r = nnti_find_device(&e, "nnt_memory_info", device, &backend, &index);
    }
    if (!r && !backend->memory) r = nnti_set_error(&e, NNT_ERR_UNSUPPORTED, "nnt_memory_info: device '%s' does not tell its memory", device);
    if (!r) {
        r = backend->memory(index, out, text, sizeof text);
        if (r) nnti_set_error(&e, r, "nnt_memory_info: device '%s': %s", device, text);
    }
    if (r) nnti_format(why, cap, "%s", e.text);
    return r;
}

/* Opens a device, or finds it opened. */
static nnt_result nnti_open(nnt_net *net, const char *where, const char *device, int threads, nnti_open_device **out)
{
    const nnt_backend *backend = NULL;
    nnti_open_device *o;
    char why[256];
    int index, i;
    nnt_result r;
    if (!device) device = "cpu";
    r = nnti_find_device(&net->error, where, device, &backend, &index);
    if (r) return r;
    if (net->on && net->on->backend == backend && net->on->index == index) { *out = net->on; return NNT_OK; }
    for (i = 0; i < net->open_count && !threads; i++)
        if (net->open[i].backend == backend && net->open[i].index == index) { *out = &net->open[i]; return NNT_OK; }
    if (net->open_count == NNTI_MAX_OPEN) return nnti_set_error(&net->error, NNT_ERR_DEVICE, "%s: device '%s': a net has at most %d devices", where, device, (int)NNTI_MAX_OPEN);
    o = &net->open[net->open_count];
    memset(o, 0, sizeof *o);
    why[0] = 0;
    r = backend->open(&net->a, index, threads, &o->device, why, sizeof why);
    if (r) return nnti_set_error(&net->error, r, "%s: device '%s' can't be opened: %s", where, device, why);
    o->backend = backend;
    o->index = index;
    nnti_format(o->text, sizeof o->text, index ? "%s:%d" : "%s", backend->name, index);
    net->open_count++;
    *out = o;
    return NNT_OK;
}
/* The last one opened, again closed. */
static void nnti_close_last(nnt_net *net)
{
    nnti_open_device *o = &net->open[--net->open_count];
    o->backend->close(o->device);
}
/* A backend's failure as a sentence of the net's. */
static nnt_result nnti_device_failed(nnt_net *net, const nnti_open_device *on, nnt_result r, const char *where)
{
    const char *why = on->backend->error ? on->backend->error(on->device) : "";
    return nnti_set_error(&net->error, r, "%s: device '%s' failed%s%s", where, on->text, why && *why ? ": " : "", why ? why : "");
}

/* ============================================================================
   >>profile    Where the time goes: what a running net and its loaders write down
   The net's thread adds to its own rows, a loader's threads to a page of their own under the loader's mutex. Memory is
   taken when watching begins. >>seeing makes tables and pictures of it.
   ============================================================================ */

/* Stages of a loader's work on a batch. */
enum { NNTI_STAGE_READ = 0, NNTI_STAGE_DECODE, NNTI_STAGE_TRANSFORM, NNTI_STAGE_SHUFFLE, NNTI_STAGES };

/* A stopwatch for them: each lap gives the time since the one before to a stage. */
typedef struct nnti_laps { int on; double start, last, seconds[NNTI_STAGES]; } nnti_laps;

static void nnti_laps_begin(nnti_laps *l, int on)
{
    memset(l, 0, sizeof *l);
    l->on = on;
    if (on) l->start = l->last = nnti_seconds();
}
static void nnti_lap(nnti_laps *l, int stage)
{
    double now;
    if (!l->on) return;
    now = nnti_seconds();
    l->seconds[stage] += now - l->last;
    l->last = now;
}

typedef struct nnti_tally { int64_t count; double seconds, amount; } nnti_tally;   /* amount: samples, or a copy's bytes */

/* The last `cap` events, oldest first from count % cap on once there are more. */
typedef struct nnti_event { double start; float seconds; int row; } nnti_event;
typedef struct nnti_events { nnti_event *at; int cap; int64_t count; } nnti_events;

static void nnti_event_add(nnti_events *e, int row, double start, double seconds)
{
    nnti_event *x = &e->at[e->count++ % e->cap];
    x->start = start;
    x->seconds = (float)seconds;
    x->row = row;
}

/* Rows of the net's thread: parts of a step, the same of a prediction, the update, then all ops of both programs. */
enum { NNTI_PART_WHOLE = 0, NNTI_PART_CHECK, NNTI_PART_UPLOAD, NNTI_PART_DOWNLOAD, NNTI_PARTS };
enum { NNTI_ROW_NORM = 2 * NNTI_PARTS, NNTI_ROW_UPDATE, NNTI_ROW_CALLBACK, NNTI_ROW_OPS };
static int nnti_row(int program, int part) { return program * NNTI_PARTS + part; }

enum { NNTI_PROFILE_LOADERS = 4, NNTI_PROFILE_EVENTS = 65536, NNTI_LOADER_EVENTS = 8192, NNTI_EVENT_WAIT = -1 };

typedef struct nnti_worker_tally { double seconds[NNTI_STAGES], busy; int64_t samples, batches; } nnti_worker_tally;

/* What a loader's threads write; guarded by its mutex while there is a loader. */
typedef struct nnti_page {
    nnt_loader  *loader;                    /* whose; NULL: it was freed, the figures stay */
    nnti_mutex  *mutex;                     /* the loader's, */
    struct nnti_page **link;                /*   and its pointer to this page; NULL too then */
    int          running, workers;
    double       begun, seconds;            /* of the running stretch; of those before */
    nnti_tally   wait;                      /* of the thread that takes the batches */
    nnti_worker_tally *worker;              /* [0]: the taking thread, [1..workers]: the loader's own */
    nnti_events  events;                    /* row: worker, or NNTI_EVENT_WAIT */
} nnti_page;

typedef struct nnti_recorder {
    double       begun, seconds;            /* of the running stretch; of those before */
    double       epoch;                     /* when the figures begin: time 0 of the trace */
    nnti_tally  *row;
    int          rows;
    double      *op_seconds;                /* for nnt_backend.run_timed: as many as the longer program has ops */
    int          op_cap;
    nnti_events  events;
    nnti_page    page[NNTI_PROFILE_LOADERS];
    int          pages;
} nnti_recorder;

/* The clock, if anyone wants to know; goes with nnti_clocked. */
static double nnti_clock(const nnt_net *net) { return net->recording ? nnti_seconds() : 0; }

static void nnti_profile_add(nnti_recorder *p, int row, double start, double seconds, double amount)
{
    nnti_tally *t = &p->row[row];
    t->count++;
    t->seconds += seconds;
    t->amount += amount;
    nnti_event_add(&p->events, row, start, seconds);
}
/* A row's time from `start` until now. */
static void nnti_clocked(nnt_net *net, int row, double start, double amount)
{
    if (net->recording && start > 0) nnti_profile_add(net->recording, row, start, nnti_seconds() - start, amount);
}

/* Ops and their rows, from `row` on. amount: samples, or values of an update. */
static nnt_result nnti_profile_run(nnt_net *net, int row, const nnt_op *ops, int count, const nnt_run *run, double amount)
{
    nnti_recorder *p = net->recording;
    const nnt_backend *b = net->on->backend;
    double at = nnti_seconds(), now;
    nnt_result r = NNT_OK;
    int i;
    if (b->run_timed) {
        for (i = 0; i < count; i++) p->op_seconds[i] = 0;
        r = b->run_timed(net->on->device, ops, count, run, p->op_seconds);
        for (i = 0; i < count && !r; i++) {
            nnti_profile_add(p, row + i, at, p->op_seconds[i], amount);
            at += p->op_seconds[i];
        }
        return r;
    }
    if (b->sync) r = b->sync(net->on->device);
    for (i = 0; i < count && !r; i++) {
        r = b->run(net->on->device, &ops[i], 1, run);
        if (!r && b->sync) r = b->sync(net->on->device);
        now = nnti_seconds();
        nnti_profile_add(p, row + i, at, now - at, amount);
        at = now;
    }
    return r;
}

/* ---- pages of loaders */

static void nnti_page_lock(nnti_page *p) { if (p->mutex) nnti_lock(p->mutex); }
static void nnti_page_unlock(nnti_page *p) { if (p->mutex) nnti_unlock(p->mutex); }

/* With the mutex, down to nnti_page_clear. */
static int nnti_page_on(const nnti_page *p) { return p && p->running; }

static void nnti_page_work(nnti_page *p, int worker, const nnti_laps *l, int samples)
{
    nnti_worker_tally *w;
    double now;
    int i;
    if (!l->on || !nnti_page_on(p)) return;
    now = nnti_seconds();
    w = &p->worker[worker];
    for (i = 0; i < NNTI_STAGES; i++) w->seconds[i] += l->seconds[i];
    w->busy += now - l->start;
    w->samples += samples;
    w->batches += samples > 0;
    nnti_event_add(&p->events, worker, l->start, now - l->start);
}
static void nnti_page_wait(nnti_page *p, double start, double seconds, int samples)
{
    if (!nnti_page_on(p)) return;
    p->wait.count++;
    p->wait.seconds += seconds;
    p->wait.amount += samples;
    nnti_event_add(&p->events, NNTI_EVENT_WAIT, start, seconds);
}
static void nnti_page_run(nnti_page *p, int on, double now)
{
    if (p->running) p->seconds += now - p->begun;
    p->running = on;
    p->begun = now;
}
static void nnti_page_clear(nnti_page *p, double now)
{
    memset(p->worker, 0, ((size_t)p->workers + 1) * sizeof *p->worker);
    memset(&p->wait, 0, sizeof p->wait);
    p->events.count = 0;
    p->seconds = 0;
    p->begun = now;
}
static void nnti_page_free(const nnt_allocator *a, nnti_page *p)
{
    nnti_free(a, p->worker, ((size_t)p->workers + 1) * sizeof *p->worker);
    nnti_free(a, p->events.at, (size_t)p->events.cap * sizeof *p->events.at);
}
/* 0 when memory is out. */
static int nnti_page_init(const nnt_allocator *a, nnti_page *p, int workers)
{
    memset(p, 0, sizeof *p);
    p->workers = workers;
    p->events.cap = NNTI_LOADER_EVENTS;
    p->worker = (nnti_worker_tally *)nnti_zalloc(a, (size_t)workers + 1, sizeof *p->worker);
    p->events.at = (nnti_event *)nnti_zalloc(a, (size_t)p->events.cap, sizeof *p->events.at);
    if (p->worker && p->events.at) return 1;
    nnti_page_free(a, p);
    return 0;
}
/* The loader goes: what it did stays. */
static void nnti_page_orphan(nnti_page *p)
{
    p->loader = NULL;
    p->mutex = NULL;
    p->link = NULL;
}

/* ---- on and off */

/* What steps, predictions and waits took so far. */
static double nnti_profile_inside(nnti_recorder *p)
{
    double sum = p->row[nnti_row(0, NNTI_PART_WHOLE)].seconds + p->row[nnti_row(1, NNTI_PART_WHOLE)].seconds;
    int i;
    for (i = 0; i < p->pages; i++) {
        nnti_page_lock(&p->page[i]);
        sum += p->page[i].wait.seconds;
        nnti_page_unlock(&p->page[i]);
    }
    return sum;
}
static void nnti_profile_run_pages(nnti_recorder *p, int on, double now)
{
    int i;
    for (i = 0; i < p->pages; i++) {
        nnti_page_lock(&p->page[i]);
        nnti_page_run(&p->page[i], on, now);
        nnti_page_unlock(&p->page[i]);
    }
}
static void nnti_profile_switch(nnt_net *net, int on)
{
    nnti_recorder *p = net->profile;
    double now = nnti_seconds();
    if (net->recording) p->seconds += now - p->begun;
    p->begun = now;
    net->recording = on ? p : NULL;
    nnti_profile_run_pages(p, on, now);
}
static void nnti_profile_clear(nnti_recorder *p)
{
    double now = nnti_seconds();
    int i;
    memset(p->row, 0, (size_t)p->rows * sizeof *p->row);
    p->events.count = 0;
    p->seconds = 0;
    p->begun = p->epoch = now;
    for (i = 0; i < p->pages; i++) {
        nnti_page_lock(&p->page[i]);
        nnti_page_clear(&p->page[i], now);
        nnti_page_unlock(&p->page[i]);
    }
}
static void nnti_profile_free(nnt_net *net)
{
    nnti_recorder *p = net->profile;
    int i;
    if (!p) return;
    for (i = 0; i < p->pages; i++) {
        if (p->page[i].mutex) {             /* the loader lives on without a page */
            nnti_lock(p->page[i].mutex);
            *p->page[i].link = NULL;
            nnti_unlock(p->page[i].mutex);
        }
        nnti_page_free(&net->a, &p->page[i]);
    }
    nnti_free(&net->a, p->row, (size_t)p->rows * sizeof *p->row);
    nnti_free(&net->a, p->op_seconds, (size_t)p->op_cap * sizeof *p->op_seconds);
    nnti_free(&net->a, p->events.at, (size_t)p->events.cap * sizeof *p->events.at);
    nnti_free(&net->a, p, sizeof *p);
    net->profile = net->recording = NULL;
}
static nnt_result nnti_profile_new(nnt_net *net)
{
    nnti_recorder *p = (nnti_recorder *)nnti_zalloc(&net->a, 1, sizeof *p);
    int train = net->plan.train.count, predict = net->plan.predict.count;
    if (!p) return NNT_ERR_MEMORY;
    net->profile = p;
    p->rows = NNTI_ROW_OPS + train + predict;
    p->op_cap = nnti_max(1, nnti_max(train, predict));
    p->events.cap = NNTI_PROFILE_EVENTS;
    p->row = (nnti_tally *)nnti_zalloc(&net->a, (size_t)p->rows, sizeof *p->row);
    p->op_seconds = (double *)nnti_zalloc(&net->a, (size_t)p->op_cap, sizeof *p->op_seconds);
    p->events.at = (nnti_event *)nnti_zalloc(&net->a, (size_t)p->events.cap, sizeof *p->events.at);
    if (!p->row || !p->op_seconds || !p->events.at) {
        nnti_profile_free(net);
        return NNT_ERR_MEMORY;
    }
    nnti_profile_clear(p);
    return NNT_OK;
}
static nnt_result nnti_profile_needed(nnt_net *net, const char *where)
{
    if (net->profile) return NNT_OK;
    return nnti_set_error(&net->error, NNT_ERR_STATE, "%s: there is no profile; call nnt_profile_start first", where);
}

NNT_API nnt_result nnt_profile_start(nnt_net *net)
{
    if (!net) return NNT_ERR_ARGUMENT;
    if (!net->compiled) return nnti_set_error(&net->error, NNT_ERR_STATE, "nnt_profile_start: call nnt_compile first");
    if (!net->profile && nnti_profile_new(net)) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "nnt_profile_start: out of memory");
    nnti_profile_switch(net, 1);
    return NNT_OK;
}
NNT_API nnt_result nnt_profile_stop(nnt_net *net)
{
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_profile_needed(net, "nnt_profile_stop");
    if (!r) nnti_profile_switch(net, 0);
    return r;
}
NNT_API nnt_result nnt_profile_reset(nnt_net *net)
{
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_profile_needed(net, "nnt_profile_reset");
    if (!r) nnti_profile_clear(net->profile);
    return r;
}

/* ============================================================================
   >>net    Objects: making, compiling, freeing; parameters by name
   ============================================================================ */

NNT_API nnt_net *nnt_new(const nnt_allocator *allocator)
{
    nnt_allocator a = nnti_allocator(allocator);
    nnt_net *net = (nnt_net *)nnti_zalloc(&a, 1, sizeof *net);
    if (!net) return NULL;
    net->a = a;
    net->input = net->loss_node = net->output_node = -1;
    return net;
}

/* ---- metadata */

static int nnti_find_metadata(const nnt_net *net, const char *key)
{
    int i;
    for (i = 0; i < net->metadata_count; i++) if (strcmp(net->metadata[i].key, key) == 0) return i;
    return -1;
}
static void nnti_free_text(const nnt_allocator *a, char *text)
{
    if (text) nnti_free(a, text, strlen(text) + 1);
}
static char *nnti_copy_text(const nnt_allocator *a, const char *text)
{
    char *copy = (char *)nnti_alloc(a, strlen(text) + 1);
    if (copy) memcpy(copy, text, strlen(text) + 1);
    return copy;
}
static void nnti_remove_metadata(nnt_net *net, int index)
{
    nnti_free_text(&net->a, net->metadata[index].key);
    nnti_free_text(&net->a, net->metadata[index].value);
    net->metadata[index] = net->metadata[--net->metadata_count];
}
/* 0 when memory is out; everything as before then. */
static int nnti_put_metadata(nnt_net *net, const char *key, const char *value)
{
    int at = nnti_find_metadata(net, key), fresh = at < 0;
    char *k = fresh ? nnti_copy_text(&net->a, key) : NULL, *v = nnti_copy_text(&net->a, value);
    void *list = net->metadata;
    if (fresh && k && v) {
        at = net->metadata_count;
        if (!nnti_grow(&net->a, &list, &net->metadata_cap, (size_t)at + 1, sizeof *net->metadata)) at = -1;
        net->metadata = (nnti_text_pair *)list;
    }
    if (at < 0 || !v) {
        nnti_free_text(&net->a, k);
        nnti_free_text(&net->a, v);
        return 0;
    }
    if (fresh) {
        net->metadata[at].key = k;
        net->metadata_count++;
    } else {
        nnti_free_text(&net->a, net->metadata[at].value);
    }
    net->metadata[at].value = v;
    return 1;
}
static int nnti_is_own_key(const char *key) { return strcmp(key, "format") == 0 || strncmp(key, "nntrain.", 8) == 0; }

NNT_API nnt_result nnt_set_metadata(nnt_net *net, const char *key, const char *value)
{
    int at;
    if (!net) return NNT_ERR_ARGUMENT;
    if (!key || !*key) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_set_metadata: the key is %s", key ? "empty" : "NULL");
    if (nnti_is_own_key(key)) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_set_metadata: '%s' is one of the library's own keys; choose another", key);
    if (value) return nnti_put_metadata(net, key, value) ? NNT_OK : nnti_set_error(&net->error, NNT_ERR_MEMORY, "nnt_set_metadata: out of memory");
    at = nnti_find_metadata(net, key);
    if (at >= 0) nnti_remove_metadata(net, at);
    return NNT_OK;
}
NNT_API const char *nnt_metadata(const nnt_net *net, const char *key)
{
    int at = net && key ? nnti_find_metadata(net, key) : -1;
    return at >= 0 ? net->metadata[at].value : NULL;
}
NNT_API const char *nnt_metadata_key(const nnt_net *net, int index)
{
    return net && index >= 0 && index < net->metadata_count ? net->metadata[index].key : NULL;
}

NNT_API void nnt_free(nnt_net *net)
{
    nnt_allocator a;
    int i;
    if (!net) return;
    a = net->a;
    nnti_profile_free(net);
    while (net->tensors) nnt_tensor_free(net->tensors);
    if (net->memory) net->on->backend->release(net->on->device, net->memory, net->memory_bytes);
    while (net->open_count) nnti_close_last(net);
    nnti_plan_free(&a, &net->plan);
    for (i = 0; i < net->node_count; i++)
        if (net->nodes[i].name) nnti_free(&a, net->nodes[i].name, strlen(net->nodes[i].name) + 1);
    for (i = 0; i < net->param_count; i++) {
        nnti_param *p = &net->params[i];
        if (p->name) nnti_free(&a, p->name, strlen(p->name) + 1);
        if (p->values) nnti_free(&a, p->values, (size_t)p->count * sizeof *p->values);
    }
    nnti_free(&a, net->nodes, net->node_cap * sizeof *net->nodes);
    nnti_free(&a, net->edges, net->edge_cap * sizeof *net->edges);
    nnti_free(&a, net->params, net->param_cap * sizeof *net->params);
    nnti_free(&a, net->history, net->history_cap * sizeof *net->history);
    while (net->metadata_count) nnti_remove_metadata(net, net->metadata_count - 1);
    nnti_free(&a, net->metadata, net->metadata_cap * sizeof *net->metadata);
    nnti_free(&a, net, sizeof *net);
}
NNT_API const char *nnt_error(const nnt_net *net) { return net ? net->error.text : "out of memory"; }
NNT_API nnt_result nnt_error_code(const nnt_net *net) { return net ? (nnt_result)net->error.code : NNT_ERR_MEMORY; }

/* "conv1.weight" for all parameters; names of layers have to differ, given and made ones. */
static nnt_result nnti_make_names(nnt_net *net)
{
    char name[NNTI_NAME_TEXT], other[NNTI_NAME_TEXT];
    int i, k;
    for (i = 0; i < net->node_count; i++) {
        if (!net->nodes[i].name) continue;
        for (k = 0; k < net->node_count; k++)
            if (!net->nodes[k].name && strcmp(net->nodes[i].name, nnti_node_name(&net->nodes[k], other)) == 0)
                return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: op %d is named '%s', which is also the name that op %d has without one; choose another",
                                      i + 1, net->nodes[i].name, k + 1);
    }
    for (i = 0; i < net->param_count; i++) {
        nnti_param *p = &net->params[i];
        const char *layer;
        size_t length;
        if (p->kind == NNTI_PARAM_CONSTANT || p->name) continue;
        layer = nnti_node_name(&net->nodes[p->node], name);
        length = strlen(layer) + strlen(p->suffix) + 2;
        p->name = (char *)nnti_alloc(&net->a, length);
        if (!p->name) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: out of memory");
        nnti_format(p->name, length, "%s.%s", layer, p->suffix);
    }
    return NNT_OK;
}

static nnt_result nnti_check_optimizer(nnt_net *net, const nnt_optimizer *o)
{
    nnti_error *e = &net->error;
    if (o->kind == NNT_OPTIMIZER_NONE) return NNT_OK;
    if (o->kind < 0 || o->kind > NNT_OPTIMIZER_ADAMW) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: optimizer kind %d is none of NNT_OPTIMIZER_...", o->kind);
    if (!nnti_finite(o->lr) || o->lr < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: learning rate %g; it must be finite and not negative", (double)o->lr);
    if (!nnti_finite(o->weight_decay) || o->weight_decay < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: weight_decay %g; it must be finite and not negative", (double)o->weight_decay);
    if (!nnti_finite(o->momentum) || o->momentum < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: momentum %g; it must be finite and not negative", (double)o->momentum);
    if (!nnti_finite(o->clip_norm) || o->clip_norm < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: clip_norm %g; it must be finite and not negative", (double)o->clip_norm);
    if (o->accumulate < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: accumulate %d batches; it can't be negative", o->accumulate);
    if (o->kind == NNT_OPTIMIZER_SGD && o->nesterov && !(o->momentum > 0)) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: nesterov needs a momentum above 0");
    if (o->kind != NNT_OPTIMIZER_SGD
        && (!nnti_finite(o->beta1) || !nnti_finite(o->beta2) || !nnti_finite(o->eps) || o->beta1 < 0 || o->beta1 >= 1 || o->beta2 < 0 || o->beta2 >= 1 || o->eps < 0))
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: betas %g, %g and eps %g; betas must be at least 0 and below 1, eps not negative",
                              (double)o->beta1, (double)o->beta2, (double)o->eps);
    if (o->schedule < NNT_SCHEDULE_CONSTANT || o->schedule > NNT_SCHEDULE_COSINE) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: schedule %d is none of NNT_SCHEDULE_...", o->schedule);
    if (o->schedule != NNT_SCHEDULE_CONSTANT && o->schedule_steps < 1) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: schedule_steps %I; this schedule needs at least 1", o->schedule_steps);
    if (o->warmup_steps < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "compile: warmup_steps %I; it can't be negative", o->warmup_steps);
    return NNT_OK;
}
/* Everything that plan and compile check alike. target: index of the node. */
static nnt_result nnti_check_compile(nnt_net *net, nnt_node loss, const nnt_compile_desc *d, int *target)
{
    nnt_result r;
    if (net->graph_error.code) { net->error = net->graph_error; return (nnt_result)net->graph_error.code; }
    nnti_clear_error(&net->error);
    if (net->compiled) return nnti_set_error(&net->error, NNT_ERR_STATE, "compile: the net is compiled already; make another net for another batch or device");
    if (loss.net != net) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: the loss belongs to another net");
    if (!nnti_get(loss)) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: the loss is not a node of this net (id %d)", loss.id);
    *target = loss.id - 1;
    if (d->batch < 1) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: batch %d; it must be at least 1", d->batch);
    if (d->threads < 0 || d->threads > NNTI_MAX_THREADS)
        return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: %d threads; 0 means all cores, at most %d", d->threads, (int)NNTI_MAX_THREADS);
    if (d->recompute < NNT_RECOMPUTE_AUTO || d->recompute > NNT_RECOMPUTE_SEGMENTS)
        return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: recompute %d is none of NNT_RECOMPUTE_...", d->recompute);
    if (d->recompute == NNT_RECOMPUTE_SEGMENTS && d->segments < 1)
        return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: %d segments; it must be at least 1", d->segments);
    if (d->precision < NNT_FP32 || d->precision > NNT_BF16)
        return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: precision %d is none of NNT_FP32, NNT_TF32, NNT_BF16", d->precision);
    if (!nnti_finite(d->extra_work) || d->extra_work < 0)
        return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: extra_work %g; it must be finite and not negative", (double)d->extra_work);
    r = nnti_check_optimizer(net, &d->optimizer);
    if (r) return r;
    if (d->optimizer.kind != NNT_OPTIMIZER_NONE && !nnti_is_loss(&net->nodes[*target]))
        return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "compile: an optimizer is given, but op %d (%s) is no loss; give nnt_cross_entropy(x) or nnt_mse(x), or leave the optimizer zeroed",
                              loss.id, nnti_node_kind_name(&net->nodes[*target]));
    return nnti_make_names(net);
}
/* The largest batch below `high` whose plan fits, 0: none; -1 after an error. A plan's size grows with its batch. */
static int nnti_batch_that_fits(nnt_net *net, int target, const nnt_compile_desc *d, const nnti_open_device *on, int high)
{
    int low = 0;                            /* low fits, high does not */
    nnt_compile_desc trial = *d;
    nnti_error kept = net->error;
    while (high - low > 1) {
        nnti_plan plan;
        nnti_wish wish;
        int fits;
        memset(&wish, 0, sizeof wish);
        trial.batch = low + (high - low) / 2;
        fits = nnti_make_plan(net, target, &trial, on, &plan, &wish) == NNT_OK;
        if (!fits && !wish.too_large) return -1;
        if (fits) {
            fits = plan.memory.total <= d->memory_limit;
            nnti_plan_free(&net->a, &plan);
        }
        if (fits) low = trial.batch;
        else high = trial.batch;
    }
    net->error = kept;
    return low;
}
static nnt_result nnti_plan_checked(nnt_net *net, int target, const nnt_compile_desc *d, const nnti_open_device *on, nnti_plan *plan)
{
    nnt_result r;
    nnt_memory m;
    int i, k, fits;
    char recomputing[96], fitting[64];
    if (d->precision != NNT_FP32 && !(on->backend->precision && on->backend->precision(on->device, d->precision)))
        return nnti_set_error(&net->error, NNT_ERR_UNSUPPORTED, "compile: device '%s' can't multiply in %s; leave precision at NNT_FP32", on->text,
                              d->precision == NNT_TF32 ? "NNT_TF32" : "NNT_BF16");
    r = nnti_make_plan(net, target, d, on, plan, NULL);
    if (r) return r;
    for (k = 0; k < 2 && on->backend->supports; k++) {
        const nnti_program *p = k ? &plan->predict : &plan->train;
        for (i = 0; i < p->count; i++) {
            char name[NNTI_NAME_TEXT];
            if (on->backend->supports(on->device, &p->ops[i])) continue;
            nnti_set_error(&net->error, NNT_ERR_UNSUPPORTED, "compile: device '%s' can't do '%s' (op %d)", on->text,
                           nnti_node_name(&net->nodes[p->ops[i].node - 1], name), p->ops[i].node);
            nnti_plan_free(&net->a, plan);
            return NNT_ERR_UNSUPPORTED;
        }
    }
    m = plan->memory;
    if (!d->memory_limit || m.total <= d->memory_limit) return NNT_OK;
    nnti_plan_free(&net->a, plan);
    fits = nnti_batch_that_fits(net, target, d, on, d->batch);
    if (fits < 0) return (nnt_result)net->error.code;
    recomputing[0] = 0;
    if (m.recomputed_ops)
        nnti_format(recomputing, sizeof recomputing, " and recomputing gets it to %B (+%g %% work)", m.total, floor(1000.0 * m.extra_work + 0.5) / 10.0);
    if (fits) nnti_format(fitting, sizeof fitting, "batch %d fits", fits);
    else nnti_format(fitting, sizeof fitting, "not even batch 1 fits");
    return nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: needs %B at batch %d; memory_limit is %B%s; %s",
                          m.recomputed_ops ? m.total_store_all : m.total, d->batch, d->memory_limit, recomputing, fitting);
}

/* The device has no room for the plan. One that tells what is free, and that this is too little, is told what would fit. */
static nnt_result nnti_device_is_full(nnt_net *net, int target, const nnt_compile_desc *d, const nnti_open_device *on, size_t needs)
{
    nnt_compile_desc trial = *d;
    nnt_memory_usage m;
    char fitting[64];
    int fits = 0;
    memset(&m, 0, sizeof m);
    if (!on->backend->memory || on->backend->memory(on->index, &m, fitting, sizeof fitting) || m.available >= needs)
        return nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: device '%s' is out of memory: batch %d needs %B; use a smaller batch", on->text, d->batch, needs);
    trial.memory_limit = m.available;
    if (m.available) fits = nnti_batch_that_fits(net, target, &trial, on, d->batch + 1);
    if (fits > d->batch - 1 && d->batch > 0) nnti_format(fitting, sizeof fitting, "set memory_limit to that, so that values are recomputed");
    else if (fits) nnti_format(fitting, sizeof fitting, "batch %d fits", fits);
    else nnti_format(fitting, sizeof fitting, "not even batch 1 fits");
    return nnti_set_error(&net->error, NNT_ERR_MEMORY, "compile: device '%s' is out of memory: batch %d needs %B, %B of %B are free; %s", on->text, d->batch, needs,
                          m.available, m.total, fitting);
}

NNT_API nnt_result nnt_plan(nnt_net *net, nnt_node loss, nnt_compile_desc desc, nnt_memory *out)
{
    nnti_open_device *on = NULL;
    nnti_plan plan;
    int target = 0, opened;
    nnt_result r;
    if (!net || !out) return NNT_ERR_ARGUMENT;
    memset(out, 0, sizeof *out);
    r = nnti_check_compile(net, loss, &desc, &target);
    if (r) return r;
    opened = net->open_count;
    r = nnti_open(net, "plan", desc.device, desc.threads, &on);     /* workspace depends on the device */
    if (r) return r;
    r = nnti_plan_checked(net, target, &desc, on, &plan);
    if (!r) *out = plan.memory;
    if (!r) nnti_plan_free(&net->a, &plan);
    if (net->open_count > opened) nnti_close_last(net);
    return r;
}

NNT_API int nnt_plan_curve(nnt_net *net, nnt_node loss, nnt_compile_desc desc, nnt_plan_point *out, int cap)
{
    nnti_open_device *on = NULL;
    nnti_curve_point *points;
    nnti_plan plan;
    nnti_wish wish;
    double work = 0;
    int target = 0, opened, count = 0, kept, i;
    if (!net) return 0;
    desc.memory_limit = 0;
    if (nnti_check_compile(net, loss, &desc, &target)) return 0;
    if (!out || cap < 2) { nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_plan_curve: room for %d points; it needs at least 2", out ? cap : 0); return 0; }
    if (desc.optimizer.kind == NNT_OPTIMIZER_NONE) { nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_plan_curve: without an optimizer there is nothing to choose"); return 0; }
    opened = net->open_count;
    if (nnti_open(net, "plan", desc.device, desc.threads, &on)) return 0;
    points = (nnti_curve_point *)nnti_zalloc(&net->a, (size_t)cap, sizeof *points);
    memset(&wish, 0, sizeof wish);
    wish.curve = points;
    wish.cap = cap;
    wish.count = &count;
    wish.step_work = &work;
    if (!points) nnti_set_error(&net->error, NNT_ERR_MEMORY, "nnt_plan_curve: out of memory");
    else if (nnti_make_plan(net, target, &desc, on, &plan, &wish)) count = 0;
    for (i = 0, kept = 0; i < count; i++) {
        if (i + 1 < count && (size_t)points[i + 1].peak <= wish.floor) continue;    /* prediction needs more than both */
        out[kept].total = (size_t)points[i].peak > wish.floor ? (size_t)points[i].peak : wish.floor;
        out[kept++].extra_work = work > 0 ? points[i].extra / work : 0;
    }
    nnti_free(&net->a, points, (size_t)cap * sizeof *points);
    if (net->open_count > opened) nnti_close_last(net);
    return kept;
}

NNT_API int nnt_max_batch(nnt_net *net, nnt_node loss, nnt_compile_desc desc)
{
    nnti_open_device *on = NULL;
    int target = 0, opened, batch;
    if (!net) return 0;
    desc.batch = 1;
    if (nnti_check_compile(net, loss, &desc, &target)) return 0;
    if (!desc.memory_limit) { nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_max_batch: memory_limit is 0; it asks what fits within one"); return 0; }
    opened = net->open_count;
    if (nnti_open(net, "plan", desc.device, desc.threads, &on)) return 0;
    batch = nnti_batch_that_fits(net, target, &desc, on, INT_MAX);
    if (net->open_count > opened) nnti_close_last(net);
    return nnti_max(0, batch);
}

/* Bytes that an op reads and writes at the whole batch, each operand once. */
static double nnti_op_traffic(const nnt_net *net, const nnti_program *p, int op, const nnti_value *values)
{
    double sum = 0;
    int role;
    for (role = 0; role < NNT_ROLES; role++) {
        int o = nnti_operands(p, op)[role];
        double bytes = o >= 0 ? (double)values[o].bytes : o <= -2 ? (double)net->params[-2 - o].count * (double)sizeof(float) : 0;
        sum += bytes * (nnti_op_reads(&p->ops[op], role) + nnti_op_writes(&p->ops[op], role));
    }
    return sum;
}
/* Addresses for the operands of a program, once the memory is there. */
static void nnti_resolve(nnt_net *net, nnti_program *p, const nnti_value *values, int value_count, char *arena, float *grads)
{
    int i, role;
    for (i = 0; i < p->count; i++) {
        nnt_op *op = &p->ops[i];
        op->name = net->nodes[op->node - 1].name;
        op->bytes = nnti_op_traffic(net, p, i, values) / net->desc.batch;
        for (role = 0; role < NNT_ROLES; role++) {
            int o = p->operands[i * NNT_ROLES + role];
            if (o >= 0) op->at[role] = arena + values[o].offset;
            else if (o <= -2) op->at[role] = (role == NNT_GW || role == NNT_GB ? grads : net->memory) + net->params[-2 - o].offset;
        }
    }
    for (i = 0; i < value_count; i++)
        if (values[i].kind == NNTI_VALUE_WORKSPACE) p->ops[values[i].first].workspace = arena + values[i].offset;
}

/* `count` starting values of a parameter from element `first` on. */
static void nnti_start_values(const nnt_net *net, int index, float *to, int64_t first, int64_t count)
{
    const nnti_param *p = &net->params[index];
    double in = (double)p->fan_in, out = (double)p->fan_out;
    float scale = 0;
    int kind = NNTI_DRAW_SIGNED;
    int64_t i;
    nnti_random_key key;
    if (p->values) { memcpy(to, p->values + first, (size_t)count * sizeof *to); return; }
    if (p->fan_in > 0)
        switch (p->init) {
        case NNT_INIT_DEFAULT:         scale = (float)(1.0 / sqrt(in)); break;
        case NNT_INIT_KAIMING_UNIFORM: scale = (float)sqrt(6.0 / in); break;
        case NNT_INIT_KAIMING_NORMAL:  scale = (float)sqrt(2.0 / in); kind = NNTI_DRAW_NORMAL; break;
        case NNT_INIT_XAVIER_UNIFORM:  scale = (float)sqrt(6.0 / (in + out)); break;
        case NNT_INIT_XAVIER_NORMAL:   scale = (float)sqrt(2.0 / (in + out)); kind = NNTI_DRAW_NORMAL; break;
        default: break;
        }
    key.seed = net->desc.seed;
    key.step = 0;
    key.stream = NNTI_STREAM_PARAMS;
    key.sample = (uint32_t)index;
    if (scale > 0) nnti_random_fill(nnti_isa_best(), kind, to, first, count, &key);
    for (i = 0; i < count; i++) to[i] = scale > 0 ? to[i] * scale : p->start;
}
static nnt_result nnti_start_params(nnt_net *net)
{
    const nnti_open_device *on = net->on;
    enum { BLOCK = 4096 };
    float block[BLOCK];
    int i;
    /* the zeros between parameters stay zeros: updates run over all of it */
    nnt_result r = on->backend->fill(on->device, net->memory, 0.0f, (int64_t)((net->plan.memory.fixed - net->plan.memory.staging) / sizeof(float)));
    for (i = 0; i < net->param_count && !r; i++) {
        const nnti_param *p = &net->params[i];
        int64_t first;
        for (first = 0; first < p->count && !r; first += BLOCK) {
            int64_t count = nnti_min64(BLOCK, p->count - first);
            nnti_start_values(net, i, block, first, count);
            r = on->backend->upload(on->device, net->memory + p->offset + first, block, (size_t)count * sizeof(float));
        }
    }
    return r ? nnti_device_failed(net, on, r, "compile") : NNT_OK;
}

NNT_API nnt_result nnt_compile(nnt_net *net, nnt_node loss, nnt_compile_desc desc)
{
    nnti_open_device *on = NULL;
    const nnt_memory *m;
    int target = 0, opened;
    float *grads;
    nnt_result r;
    if (!net) return NNT_ERR_MEMORY;
    r = nnti_check_compile(net, loss, &desc, &target);
    if (r) return r;
    opened = net->open_count;
    r = nnti_open(net, "compile", desc.device, desc.threads, &on);
    if (!r && on->backend->host_threads) on->backend->host_threads(on->device, desc.parallel_for, desc.parallel_user);
    if (!r) r = nnti_plan_checked(net, target, &desc, on, &net->plan);
    if (!r) {
        m = &net->plan.memory;
        net->memory_bytes = m->total;
        net->memory = (float *)on->backend->alloc(on->device, m->total);
        if (!net->memory) {
            r = nnti_device_is_full(net, target, &desc, on, m->total);
        } else {
            net->on = on;
            net->desc = desc;
            net->trains = desc.optimizer.kind != NNT_OPTIMIZER_NONE;
            net->loss_node = nnti_is_loss(&net->nodes[target]) ? target : -1;
            net->output_node = net->loss_node >= 0 ? nnti_input_of(net, target, 0) : target;
            grads = net->memory + m->params / sizeof(float);
            if (m->staging) on->backend->stage(on->device, (char *)net->memory + m->fixed - m->staging, m->staging);
            nnti_resolve(net, &net->plan.train, net->plan.train_values, net->plan.train_value_count, (char *)net->memory + m->fixed, grads);
            nnti_resolve(net, &net->plan.predict, net->plan.predict_values, net->plan.predict_value_count, (char *)net->memory + m->fixed, grads);
            r = nnti_start_params(net);
        }
    }
    if (r) {                                /* as before the call */
        if (net->memory && net->plan.memory.staging) on->backend->stage(on->device, NULL, 0);
        if (net->memory) on->backend->release(on->device, net->memory, net->memory_bytes);
        net->memory = NULL;
        net->on = NULL;
        nnti_plan_free(&net->a, &net->plan);
        if (net->open_count > opened) nnti_close_last(net);
        return r;
    }
    net->desc.device = net->on->text;
    net->compiled_lr = desc.optimizer.lr;
    net->compiled = 1;
    return NNT_OK;
}

NNT_API int nnt_param_count(const nnt_net *net)
{
    int i, count = 0;
    for (i = 0; net && i < net->param_count; i++) if (net->params[i].kind != NNTI_PARAM_CONSTANT) count++;
    return count;
}
/* The index in net->params of the i-th parameter that has a name, -1: none. */
static int nnti_named_param(const nnt_net *net, int index)
{
    int i;
    for (i = 0; index >= 0 && i < net->param_count; i++)
        if (net->params[i].kind != NNTI_PARAM_CONSTANT && index-- == 0) return i;
    return -1;
}
NNT_API const char *nnt_param_name(const nnt_net *net, int index)
{
    int i = net ? nnti_named_param(net, index) : -1;
    return i >= 0 && net->params[i].name ? net->params[i].name : "";
}

static int nnti_find_param(nnt_net *net, const char *where, const char *name)
{
    int i;
    if (!net->compiled) { nnti_set_error(&net->error, NNT_ERR_STATE, "%s: parameters are there after nnt_compile", where); return -1; }
    for (i = 0; i < net->param_count && name; i++)
        if (net->params[i].name && strcmp(net->params[i].name, name) == 0) return i;
    nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "%s: there is no parameter '%s'; nnt_param_name tells the names", where, name ? name : "(null)");
    return -1;
}

/* ============================================================================
   >>tensor    Shaped arrays on a device, and views of parameters
   ============================================================================ */

static nnt_tensor *nnti_new_tensor(nnt_net *net, nnti_open_device *on, int rank, const int64_t *size, float *view)
{
    nnt_tensor *t = (nnt_tensor *)nnti_zalloc(&net->a, 1, sizeof *t);
    int i;
    if (!t) { nnti_set_error(&net->error, NNT_ERR_MEMORY, "tensor: out of memory"); return NULL; }
    t->net = net;
    t->on = on;
    t->rank = rank;
    t->count = 1;
    for (i = 0; i < rank; i++) { t->size[i] = size[i]; t->count *= size[i]; }
    t->view = view != NULL;
    t->data = view ? view : (float *)on->backend->alloc(on->device, (size_t)t->count * sizeof(float));
    if (!t->data) {
        nnti_set_error(&net->error, NNT_ERR_MEMORY, "tensor: device '%s' is out of memory: %B are needed", on->text, (size_t)t->count * sizeof(float));
        nnti_free(&net->a, t, sizeof *t);
        return NULL;
    }
    t->next = net->tensors;
    t->link = &net->tensors;
    if (t->next) t->next->link = &t->next;
    net->tensors = t;
    return t;
}
static nnt_tensor *nnti_param_view(nnt_net *net, const char *where, const char *name, int gradient)
{
    int i;
    const nnti_param *p;
    float *data;
    if (!net) return NULL;
    i = nnti_find_param(net, where, name);
    if (i < 0) return NULL;
    p = &net->params[i];
    if (gradient && (!net->trains || p->kind != NNTI_PARAM_TRAINED)) {
        nnti_set_error(&net->error, NNT_ERR_STATE, net->trains ? "%s: '%s' is not trained and has no gradient" : "%s: '%s' has no gradient: the net was compiled without an optimizer", where, name);
        return NULL;
    }
    data = net->memory + p->offset + (gradient ? net->plan.memory.params / sizeof(float) : 0);
    return nnti_new_tensor(net, net->on, p->rank, p->size, data);
}
NNT_API nnt_tensor *nnt_param(nnt_net *net, const char *name) { return nnti_param_view(net, "nnt_param", name, 0); }
NNT_API nnt_tensor *nnt_grad(nnt_net *net, const char *name)  { return nnti_param_view(net, "nnt_grad", name, 1); }

NNT_API nnt_tensor *nnt_tensor_from(nnt_net *net, const char *device, int rank, const int64_t *size, const float *data)
{
    nnti_open_device *on = NULL;
    nnt_tensor *t;
    int64_t count = 1;
    nnt_result r;
    int i;
    if (!net) return NULL;
    if (rank < 1 || rank > 4 || !size) { nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "tensor: rank %d; it must be 1 to 4, with that many sizes", rank); return NULL; }
    for (i = 0; i < rank; i++) {
        if (size[i] < 1) { nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "tensor: size %I in dimension %d; it must be at least 1", size[i], i); return NULL; }
        count = nnti_mul64(count, size[i]);
    }
    if (count < 0 || (uint64_t)count > SIZE_MAX / sizeof(float)) { nnti_set_error(&net->error, NNT_ERR_MEMORY, "tensor: its sizes pass the address space"); return NULL; }
    if (nnti_open(net, "tensor", device, 0, &on)) return NULL;
    t = nnti_new_tensor(net, on, rank, size, NULL);
    if (!t) return NULL;
    r = data ? on->backend->upload(on->device, t->data, data, (size_t)count * sizeof(float)) : on->backend->fill(on->device, t->data, 0.0f, count);
    if (r) { nnti_device_failed(net, on, r, "tensor"); nnt_tensor_free(t); return NULL; }
    return t;
}
NNT_API nnt_tensor *nnt_tensor_new(nnt_net *net, const char *device, int rank, const int64_t *size) { return nnt_tensor_from(net, device, rank, size, NULL); }
NNT_API void nnt_tensor_free(nnt_tensor *t)
{
    if (!t) return;
    if (!t->view) t->on->backend->release(t->on->device, t->data, (size_t)t->count * sizeof(float));
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    nnti_free(&t->net->a, t, sizeof *t);
}
NNT_API int nnt_tensor_rank(const nnt_tensor *t) { return t ? t->rank : 0; }
NNT_API int64_t nnt_tensor_size(const nnt_tensor *t, int dim)
{
    if (!t || dim < -1 || dim >= t->rank) return 0;
    return dim < 0 ? t->count : t->size[dim];
}
NNT_API float *nnt_tensor_data(nnt_tensor *t) { return t && t->on->backend == &nnti_cpu_backend ? t->data : NULL; }

static nnt_result nnti_tensor_done(const nnt_tensor *t, nnt_result r, const char *where)
{
    return r ? nnti_device_failed(t->net, t->on, r, where) : NNT_OK;
}
/* Two tensors of one call: as many values, on one device. */
static nnt_result nnti_tensor_match(const nnt_tensor *y, const nnt_tensor *x, const char *where, int any_device)
{
    if (y->count != x->count)
        return nnti_set_error(&y->net->error, NNT_ERR_SHAPE, "%s: %I values and %I values; the counts must be equal", where, y->count, x->count);
    if (!any_device && (y->on->backend != x->on->backend || y->on->index != x->on->index))
        return nnti_set_error(&y->net->error, NNT_ERR_DEVICE, "%s: operands are on '%s' and '%s'; copy one with nnt_tensor_copy first", where, y->on->text, x->on->text);
    return NNT_OK;
}
NNT_API nnt_result nnt_tensor_fill(nnt_tensor *t, float value)
{
    if (!t) return NNT_ERR_ARGUMENT;
    return nnti_tensor_done(t, t->on->backend->fill(t->on->device, t->data, value, t->count), "nnt_tensor_fill");
}
NNT_API nnt_result nnt_tensor_randn(nnt_tensor *t, uint64_t seed)
{
    if (!t) return NNT_ERR_ARGUMENT;
    return nnti_tensor_done(t, t->on->backend->random(t->on->device, t->data, t->count, NNT_RANDOM_NORMAL, 0.0f, 1.0f, seed), "nnt_tensor_randn");
}
NNT_API nnt_result nnt_tensor_uniform(nnt_tensor *t, float low, float high, uint64_t seed)
{
    if (!t) return NNT_ERR_ARGUMENT;
    if (!nnti_finite(low) || !nnti_finite(high) || low > high)
        return nnti_set_error(&t->net->error, NNT_ERR_ARGUMENT, "nnt_tensor_uniform: from %g to %g; bounds must be finite, the first not above the second", (double)low, (double)high);
    return nnti_tensor_done(t, t->on->backend->random(t->on->device, t->data, t->count, NNT_RANDOM_UNIFORM, low, high, seed), "nnt_tensor_uniform");
}
NNT_API nnt_result nnt_tensor_add_noise(nnt_tensor *t, float deviation, uint64_t seed)
{
    if (!t) return NNT_ERR_ARGUMENT;
    if (!nnti_finite(deviation) || deviation < 0) return nnti_set_error(&t->net->error, NNT_ERR_ARGUMENT, "nnt_tensor_add_noise: deviation %g; it must be finite and not negative", (double)deviation);
    return nnti_tensor_done(t, t->on->backend->random(t->on->device, t->data, t->count, NNT_RANDOM_ADD_NORMAL, deviation, 0.0f, seed), "nnt_tensor_add_noise");
}
NNT_API nnt_result nnt_tensor_add(nnt_tensor *y, const nnt_tensor *a, const nnt_tensor *b)
{
    nnt_result r;
    if (!y || !a || !b) return NNT_ERR_ARGUMENT;
    r = nnti_tensor_match(y, a, "nnt_tensor_add", 0);
    if (!r) r = nnti_tensor_match(y, b, "nnt_tensor_add", 0);
    if (r) return r;
    return nnti_tensor_done(y, y->on->backend->axpby(y->on->device, y->data, 1.0f, a->data, 1.0f, b->data, y->count), "nnt_tensor_add");
}
NNT_API nnt_result nnt_tensor_scale(nnt_tensor *t, float factor)
{
    if (!t) return NNT_ERR_ARGUMENT;
    return nnti_tensor_done(t, t->on->backend->axpby(t->on->device, t->data, factor, t->data, 0.0f, NULL, t->count), "nnt_tensor_scale");
}
NNT_API nnt_result nnt_tensor_read(const nnt_tensor *t, float *data)
{
    if (!t || !data) return NNT_ERR_ARGUMENT;
    return nnti_tensor_done(t, t->on->backend->download(t->on->device, data, t->data, (size_t)t->count * sizeof(float)), "nnt_tensor_read");
}
NNT_API nnt_result nnt_tensor_write(nnt_tensor *t, const float *data)
{
    if (!t || !data) return NNT_ERR_ARGUMENT;
    return nnti_tensor_done(t, t->on->backend->upload(t->on->device, t->data, data, (size_t)t->count * sizeof(float)), "nnt_tensor_write");
}
NNT_API nnt_result nnt_tensor_copy(nnt_tensor *to, const nnt_tensor *from)
{
    const nnti_open_device *a, *b;
    enum { BLOCK = 1024 };
    float block[BLOCK];
    int64_t i;
    nnt_result r;
    if (!to || !from) return NNT_ERR_ARGUMENT;
    r = nnti_tensor_match(to, from, "nnt_tensor_copy", 1);
    if (r || to->data == from->data) return r;
    a = from->on;
    b = to->on;
    if (a->backend == b->backend && a->index == b->index)
        return nnti_tensor_done(to, b->backend->axpby(b->device, to->data, 1.0f, from->data, 0.0f, NULL, to->count), "nnt_tensor_copy");
    if (a->backend == &nnti_cpu_backend) return nnt_tensor_write(to, from->data);
    if (b->backend == &nnti_cpu_backend) return nnt_tensor_read(from, to->data);
    for (i = 0; i < to->count && !r; i += BLOCK) {      /* between two devices: by way of the host */
        size_t bytes = (size_t)nnti_min64(BLOCK, to->count - i) * sizeof(float);
        r = a->backend->download(a->device, block, from->data + i, bytes);
        if (!r) r = b->backend->upload(b->device, to->data + i, block, bytes);
    }
    return nnti_tensor_done(to, r, "nnt_tensor_copy");
}

/* ============================================================================
   >>report    What a plan does, for people: memory in words, the arena as text and as a picture
   Reads a compiled net's plan.
   ============================================================================ */

/* The list of ops that a report is about. */
typedef struct nnti_subject { const nnti_program *p; const nnti_value *v; int values; } nnti_subject;

static nnti_subject nnti_subject_of(const nnt_net *net)
{
    nnti_subject s;
    s.p = net->trains ? &net->plan.train : &net->plan.predict;
    s.v = net->trains ? net->plan.train_values : net->plan.predict_values;
    s.values = net->trains ? net->plan.train_value_count : net->plan.predict_value_count;
    return s;
}
static const char *const nnti_phase_names[] = { "forward", "made again", "backward", "update" };

typedef struct nnti_live { size_t bytes; int value; } nnti_live;
static int nnti_by_bytes(const void *a, const void *b)
{
    const nnti_live *x = (const nnti_live *)a, *y = (const nnti_live *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->value - y->value;
}
NNT_API size_t nnt_memory_report(const nnt_net *net, char *text, size_t cap)
{
    nnti_text t = nnti_text_begin(text, cap);
    enum { MOST = 16 };
    nnti_live live[MOST + 1];
    char name[NNTI_NAME_TEXT];
    const nnt_memory *m;
    nnti_subject s;
    int i, n = 0, others = 0;
    size_t rest = 0;
    if (!net || !net->compiled) {
        nnti_put(&t, "the net is not compiled\n");
        nnti_text_end(&t);
        return t.length;
    }
    m = &net->plan.memory;
    s = nnti_subject_of(net);
    nnti_put(&t, "batch %d on %s: %B\n", net->desc.batch, net->on->text, m->total);
    nnti_put(&t, "  parameters %B, gradients %B, optimizer %B; values of a step %B", m->params, m->grads, m->optimizer, m->arena);
    if (m->staging) nnti_put(&t, "; the next batch %B", m->staging);
    nnti_put(&t, "\n");
    if (net->trains) {
        nnti_put(&t, "  keeping all: %B; least possible: %B; this plan makes %d of %d ops again, +%g %% of a step's work\n", m->total_store_all, m->total_least,
                 m->recomputed_ops, m->ops_train, floor(1000.0 * m->extra_work + 0.5) / 10.0);
    }
    if (!s.p->count) {
        nnti_put(&t, "nothing is computed\n");
        nnti_text_end(&t);
        return t.length;
    }
    nnti_put(&t, "at the peak (%B): op %d, %s of '%s', %s\n", m->peak, m->peak_op, nnti_op_names[s.p->ops[m->peak_op].kind],
             nnti_node_name(&net->nodes[s.p->ops[m->peak_op].node - 1], name), nnti_phase_names[s.p->ops[m->peak_op].phase]);
    for (i = 0; i < s.values; i++) {
        if (s.v[i].storage != i || s.v[i].first > m->peak_op || s.v[i].last < m->peak_op) continue;
        live[n].bytes = s.v[i].bytes;
        live[n++].value = i;
        qsort(live, (size_t)n, sizeof *live, nnti_by_bytes);
        if (n > MOST) { n = MOST; rest += live[MOST].bytes; others++; }
    }
    for (i = 0; i < n; i++) {
        const nnti_value *v = &s.v[live[i].value];
        char bytes[32];
        nnti_format(bytes, sizeof bytes, "%B", v->bytes);
        nnti_put(&t, "%12s  %s of '%s'%s\n", bytes, v->what, nnti_node_name(&net->nodes[v->node], name), v->again ? ", made again" : "");
    }
    if (others) {
        char bytes[32];
        nnti_format(bytes, sizeof bytes, "%B", rest);
        nnti_put(&t, "%12s  in %d others\n", bytes, others);
    }
    nnti_text_end(&t);
    return t.length;
}

#ifndef NNT_NO_STDIO
/* First and last op that has a storage as operand; -1 and -2: none. */
static void nnti_storage_use(const nnti_subject *s, int storage, int *first, int *last)
{
    int i, role;
    *first = -1;
    *last = -2;
    for (i = 0; i < s->p->count; i++)
        for (role = 0; role < NNT_ROLES; role++) {
            int o = nnti_operands(s->p, i)[role];
            if (o < 0 || s->v[o].storage != storage) continue;
            if (*last < 0) *first = i;
            *last = i;
        }
}
static void nnti_put_word(nnti_text *t, const char *w)      /* fields are split at spaces */
{
    for (; *w; w++) nnti_put_char(t, *w == ' ' || *w == ',' ? '_' : *w);
}
static void nnti_put_operands(nnti_text *t, const nnti_subject *s, int op, int written)
{
    int role, k, n = 0, list[NNT_ROLES];
    nnti_put(t, written ? " w:" : " r:");
    for (role = 0; role < NNT_ROLES; role++) {
        int o = nnti_operands(s->p, op)[role];
        if (o < 0 || !(written ? nnti_op_writes(&s->p->ops[op], role) : nnti_op_reads(&s->p->ops[op], role))) continue;
        for (k = 0; k < n && list[k] != s->v[o].storage; k++) { }
        if (k < n) continue;
        list[n++] = s->v[o].storage;
        nnti_put(t, n > 1 ? ",%d" : "%d", s->v[o].storage);
    }
}
static void nnti_plan_text(nnti_text *t, void *subject)
{
    const nnt_net *net = (const nnt_net *)subject;
    nnti_subject s = nnti_subject_of(net);
    char name[NNTI_NAME_TEXT];
    size_t arena = 0;
    int i, k, first, last;
    for (i = 0; i < s.values; i++) if (s.v[i].offset + s.v[i].bytes > arena) arena = s.v[i].offset + s.v[i].bytes;
    nnti_put(t, "# batch %d, peak %z bytes, %d ops made again\narena %z\n", net->desc.batch, net->plan.memory.peak, net->plan.memory.recomputed_ops, arena);
    for (i = 0; i < s.values; i++) {
        if (s.v[i].storage != i || s.v[i].kind == NNTI_VALUE_WORKSPACE) continue;
        nnti_storage_use(&s, i, &first, &last);
        if (last < 0) continue;
        nnti_put(t, "buffer %d %z %z %d %d ", i, s.v[i].offset, s.v[i].bytes, s.v[i].first < 0 && s.v[i].given ? -1 : first, last);
        nnti_put_word(t, nnti_node_name(&net->nodes[s.v[i].node], name));
        nnti_put_char(t, '.');
        nnti_put_word(t, s.v[i].what);
        nnti_put_char(t, '\n');
    }
    for (i = 0; i < s.p->count; i++) {
        const nnt_op *op = &s.p->ops[i];
        nnti_put(t, "step %d ", i);
        nnti_put_word(t, nnti_op_names[op->kind]);
        nnti_put_char(t, ':');
        nnti_put_word(t, nnti_node_name(&net->nodes[op->node - 1], name));
        nnti_put(t, " %g", op->flops * net->desc.batch);
        nnti_put_operands(t, &s, i, 0);
        nnti_put_operands(t, &s, i, 1);
        for (k = 0; k < s.values; k++)
            if (s.v[k].kind == NNTI_VALUE_WORKSPACE && s.v[k].first == i) nnti_put(t, " ws:%z@%z", s.v[k].bytes, s.v[k].offset);
        nnti_put_char(t, '\n');
    }
}

static void nnti_put_xml(nnti_text *t, const char *w)
{
    for (; *w; w++) {
        if (*w == '&') nnti_put_string(t, "&amp;");
        else if (*w == '<') nnti_put_string(t, "&lt;");
        else if (*w == '"') nnti_put_string(t, "&quot;");
        else nnti_put_char(t, *w);
    }
}
/* x: ops of the step, y: bytes of the arena, a rectangle for each storage; below, the sum of what lives. */
static void nnti_plan_svg(nnti_text *t, void *subject)
{
    const nnt_net *net = (const nnt_net *)subject;
    static const char *const colours[] = { "#4878a8", "#d08030", "#b04050", "#909090" };      /* kept, again, gradient, workspace */
    static const char *const legend[] = { "kept activation", "made again", "gradient", "workspace" };
    const double left = 86, top = 60, width = 984, height = 420, below = 110;
    nnti_subject s = nnti_subject_of(net);
    char name[NNTI_NAME_TEXT];
    size_t arena = 1, by_kind[3];
    double step = width / nnti_max(1, s.p->count);
    int i;
    for (i = 0; i < s.values; i++) if (s.v[i].offset + s.v[i].bytes > arena) arena = s.v[i].offset + s.v[i].bytes;
    nnti_put(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1100 660\" font-family=\"sans-serif\" font-size=\"13\">\n"
                "<rect width=\"1100\" height=\"660\" fill=\"#ffffff\"/>\n<text x=\"86\" y=\"24\" font-size=\"16\">Arena over one step: batch %d, %B, peak %B",
             net->desc.batch, arena, net->plan.memory.peak);
    nnti_put(t, " at op %d of %d, +%g %% work</text>\n", net->plan.memory.peak_op, s.p->count, floor(1000.0 * net->plan.memory.extra_work + 0.5) / 10.0);
    for (i = 0; i < 4; i++)
        nnti_put(t, "<rect x=\"%d\" y=\"36\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" y=\"47\">%s</text>\n", 86 + i * 150, colours[i], 104 + i * 150, legend[i]);
    nnti_put(t, "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"#f4f4f4\"/>\n", left, top, width, height);
    for (i = 0; i < s.values; i++) {
        const nnti_value *v = &s.v[i];
        int first = nnti_max(0, v->first), last = nnti_min(s.p->count - 1, v->last);
        if (v->storage != i || !v->bytes || last < first) continue;
        nnti_put(t, "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"%s\" stroke=\"#ffffff\" stroke-width=\"0.4\"><title>", left + first * step,
                 top + height - height * ((double)(v->offset + v->bytes) / (double)arena), (last - first + 1) * step, height * ((double)v->bytes / (double)arena),
                 colours[v->kind == NNTI_VALUE_WORKSPACE ? 3 : v->kind == NNTI_VALUE_GRADIENT ? 2 : v->again ? 1 : 0]);
        nnti_put_string(t, v->what);
        nnti_put_string(t, " of ");
        nnti_put_xml(t, nnti_node_name(&net->nodes[v->node], name));
        nnti_put(t, ", %B, ops %d to %d</title></rect>\n", v->bytes, first, last);
    }
    for (i = 0; i < s.p->count && s.p->loss_op >= 0; i++)
        if (i == s.p->loss_op)
            nnti_put(t, "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" stroke=\"#000000\" stroke-dasharray=\"4 3\"/><text x=\"%g\" y=\"%g\">loss</text>\n",
                     left + (i + 0.5) * step, top, left + (i + 0.5) * step, top + height + below, left + (i + 0.5) * step + 4, top + 14);
    nnti_put(t, "<polygon fill=\"#c8d8e8\" stroke=\"#4878a8\" points=\"%g,%g", left, top + height + below);
    for (i = 0; i < s.p->count; i++) {
        double y = top + height + below - (below - 20) * ((double)nnti_alive(s.v, s.values, i, by_kind) / (double)arena);
        nnti_put(t, " %g,%g %g,%g", left + i * step, y, left + (i + 1) * step, y);
    }
    nnti_put(t, " %g,%g\"/>\n", left + width, top + height + below);
    nnti_put(t, "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" stroke=\"#b00000\"/>\n", left, top + height + below - (below - 20) * ((double)net->plan.memory.peak / (double)arena),
             left + width, top + height + below - (below - 20) * ((double)net->plan.memory.peak / (double)arena));
    nnti_put(t, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">0</text><text x=\"%g\" y=\"%g\" text-anchor=\"end\">%B</text>\n", left - 6, top + height, left - 6, top + 12, arena);
    nnti_put(t, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">alive</text><text x=\"%g\" y=\"%g\">ops of the step: forward, loss, backward, update</text>\n</svg>\n",
             left - 6, top + height + below - 20, left, top + height + below + 24);
}
static int nnti_ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}
/* What write_fn writes, as a file. Called twice, first to measure: it has to write the same both times. */
typedef void (*nnti_text_writer)(nnti_text *t, void *subject);
static nnt_result nnti_write_text(nnt_net *net, const char *where, const char *path, nnti_text_writer write_fn, void *subject)
{
    nnti_text t = nnti_text_begin(NULL, 0);
    size_t length;
    char *text;
    FILE *file;
    int ok;
    write_fn(&t, subject);
    length = t.length;
    text = (char *)nnti_alloc(&net->a, length + 1);
    if (!text) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "%s: out of memory", where);
    t = nnti_text_begin(text, length + 1);
    write_fn(&t, subject);
    nnti_text_end(&t);
    file = fopen(path, "wb");
    ok = file && fwrite(text, 1, length, file) == length;
    if (file && fclose(file) != 0) ok = 0;
    nnti_free(&net->a, text, length + 1);
    return ok ? NNT_OK : nnti_set_error(&net->error, NNT_ERR_FILE, "%s: '%s' can't be %s", where, path, file ? "written to its end" : "created");
}
NNT_API nnt_result nnt_plan_write(nnt_net *net, const char *path)
{
    if (!net) return NNT_ERR_ARGUMENT;
    if (!path) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_plan_write: path is NULL");
    if (!net->compiled) return nnti_set_error(&net->error, NNT_ERR_STATE, "nnt_plan_write: call nnt_compile first");
    return nnti_write_text(net, "nnt_plan_write", path, nnti_ends_in(path, ".svg") ? nnti_plan_svg : nnti_plan_text, net);
}
#endif

/* ============================================================================
   >>input    Whole files, gzip
   Reads a file into memory and unpacks gzip through stb_image's inflate. What the bytes mean is for >>data to know.
   ============================================================================ */

#ifndef NNT_NO_STDIO

enum { NNTI_PATH_TEXT = 160 };

/* The path, or the end of a long one, so that a sentence keeps room for what happened. */
static const char *nnti_path_text(char to[NNTI_PATH_TEXT], const char *path)
{
    size_t length = strlen(path);
    if (length < NNTI_PATH_TEXT) return path;
    path += length - (NNTI_PATH_TEXT - 4);
    while (((unsigned char)*path & 0xC0) == 0x80) path++;       /* not in the middle of a character */
    nnti_format(to, NNTI_PATH_TEXT, "...%s", path);
    return to;
}

/* The common causes in our own words: strerror depends on the locale and may not be thread-safe. */
static const char *nnti_errno_text(int code)
{
    switch (code) {
    case ENOENT: return "there is no such file";
    case EACCES: return "reading it is not permitted";
    case EISDIR: return "it is a directory";
    case EMFILE: return "too many files are open";
    case EIO:    return "the disk reports an error";
    }
    return "the system can't read it";
}

/* Length of a file just opened, which is then at its start again. -1 when it has none, as a pipe. */
static int64_t nnti_file_size(FILE *f)
{
    int64_t size;
#if defined(NNTI_WINDOWS)                   /* whose long has 32 bits */
    if (_fseeki64(f, 0, SEEK_END)) return -1;
    size = (int64_t)_ftelli64(f);
#else
    if (fseek(f, 0, SEEK_END)) return -1;
    size = (int64_t)ftell(f);
#endif
    return size < 0 || fseek(f, 0, SEEK_SET) ? -1 : size;
}

static nnt_result nnti_read_open_file(const nnt_allocator *a, FILE *f, const char *name, size_t limit,
                                      uint8_t **data, size_t *bytes, nnti_error *e)
{
    int64_t size;
    size_t got;
    errno = 0;
    if (getc(f) == EOF && ferror(f))        /* a directory opens on some systems and fails here */
        return nnti_set_error(e, NNT_ERR_FILE, "read '%s': %s", name, nnti_errno_text(errno));
    size = nnti_file_size(f);
    if (size < 0)
        return nnti_set_error(e, NNT_ERR_FILE, "read '%s': its length can't be told; it has to be a regular file",
                              name);
    if ((uint64_t)size > limit)
        return nnti_set_error(e, NNT_ERR_FILE, "read '%s': %I bytes; at most %z can be read", name, size, limit);
    *bytes = (size_t)size;
    *data = (uint8_t *)nnti_alloc(a, *bytes);
    if (!*data) return nnti_set_error(e, NNT_ERR_MEMORY, "read '%s': no memory for its %z bytes", name, *bytes);
    errno = 0;
    got = fread(*data, 1, *bytes, f);
    if (got == *bytes) return NNT_OK;
    nnti_free(a, *data, *bytes);
    *data = NULL;
    return nnti_set_error(e, NNT_ERR_FILE, "read '%s': %z of %z bytes came; %s", name, got, *bytes,
                          ferror(f) ? nnti_errno_text(errno) : "the file became shorter meanwhile");
}

/* All of a file of at most `limit` bytes; the caller gives *data back with nnti_free(a, *data, *bytes). */
static nnt_result nnti_read_file(const nnt_allocator *a, const char *path, size_t limit,
                                 uint8_t **data, size_t *bytes, nnti_error *e)
{
    char text[NNTI_PATH_TEXT];
    const char *name = nnti_path_text(text, path);
    nnt_result r;
    FILE *f;
    *data = NULL;
    *bytes = 0;
    errno = 0;
    f = fopen(path, "rb");
    if (!f) return nnti_set_error(e, NNT_ERR_FILE, "read '%s': %s", name, nnti_errno_text(errno));
    r = nnti_read_open_file(a, f, name, limit, data, bytes, e);
    fclose(f);
    return r;
}

#if defined(STBI_INCLUDE_STB_IMAGE_H) && !defined(STBI_NO_ZLIB)

static uint32_t nnti_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* CRC-32 of gzip, four bytes a round: table[k][v] is the remainder of byte v followed by k zero bytes. */
static uint32_t nnti_crc32(const uint8_t *p, size_t bytes)
{
    uint32_t table[4][256], crc = 0xFFFFFFFFu;
    int i, k;
    for (i = 0; i < 256; i++) {
        uint32_t c = (uint32_t)i;
        for (k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1u)));
        table[0][i] = c;
    }
    for (i = 0; i < 256; i++)
        for (k = 1; k < 4; k++) table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255u];
    for (; bytes >= 4; bytes -= 4, p += 4) {
        crc ^= nnti_le32(p);
        crc = table[3][crc & 255u] ^ table[2][(crc >> 8) & 255u] ^ table[1][(crc >> 16) & 255u] ^ table[0][crc >> 24];
    }
    for (; bytes; bytes--, p++) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 255u];
    return ~crc;
}

enum { NNTI_GZIP_HCRC = 2, NNTI_GZIP_EXTRA = 4, NNTI_GZIP_NAME = 8, NNTI_GZIP_COMMENT = 16, NNTI_GZIP_RESERVED = 0xE0 };

/* Behind the text of zero-terminated bytes at `at`; beyond `bytes` when the end is missing. */
static size_t nnti_gzip_skip_text(const uint8_t *p, size_t bytes, size_t at)
{
    while (at < bytes && p[at]) at++;
    return at + 1;
}
/* Where the compressed data of a gzip file begins (RFC 1952), or 0 and why there is none. */
static size_t nnti_gzip_start(const uint8_t *p, size_t bytes, const char **why)
{
    size_t at = 10;
    *why = "its header is cut off";
    if (bytes < at) return 0;
    if (p[2] != 8) { *why = "it is not compressed by DEFLATE"; return 0; }
    if (p[3] & NNTI_GZIP_RESERVED) { *why = "its header uses flags that are not defined"; return 0; }
    if (p[3] & NNTI_GZIP_EXTRA) {
        if (bytes < at + 2) return 0;
        at += 2 + (size_t)p[at] + ((size_t)p[at + 1] << 8);
    }
    if (p[3] & NNTI_GZIP_NAME) at = nnti_gzip_skip_text(p, bytes, at);
    if (p[3] & NNTI_GZIP_COMMENT) at = nnti_gzip_skip_text(p, bytes, at);
    if (p[3] & NNTI_GZIP_HCRC) {
        if (bytes < at + 2) return 0;
        if ((nnti_crc32(p, at) & 0xFFFFu) != ((uint32_t)p[at] | (uint32_t)p[at + 1] << 8)) {
            *why = "its header's checksum is wrong";
            return 0;
        }
        at += 2;
    }
    return at < bytes ? at : 0;
}

/* Unpacks a gzip file of one member. The size in its ending is only a claim: it is believed up to what DEFLATE can do,
   1032 bytes from one (258 bytes from two bits), and the content has to agree with it and with the checksum. */
static nnt_result nnti_gunzip(const nnt_allocator *a, const char *name, const uint8_t *p, size_t bytes,
                              uint8_t **data, size_t *data_bytes, nnti_error *e)
{
    const char *why;
    size_t start = nnti_gzip_start(p, bytes, &why), claimed;
    int got;
    if (start && bytes - start < 8) { start = 0; why = "its ending is missing"; }
    if (!start) return nnti_set_error(e, NNT_ERR_FORMAT, "gzip '%s': %s; fetch the file again", name, why);
    claimed = nnti_le32(p + bytes - 4);
    if (claimed / 1032 > bytes - start - 8)
        return nnti_set_error(e, NNT_ERR_FORMAT, "gzip '%s': its ending claims %z bytes, more than %z compressed ones "
                              "can hold; it is cut off or damaged, fetch the file again", name, claimed,
                              bytes - start - 8);
    if (bytes - start > (size_t)INT_MAX || claimed > (size_t)INT_MAX)
        return nnti_set_error(e, NNT_ERR_UNSUPPORTED, "gzip '%s': %z bytes packed, %z unpacked; stb_image unpacks "
                              "less than 2 GiB, use gunzip first", name, bytes, claimed);
    *data = (uint8_t *)nnti_alloc(a, claimed);
    if (!*data) return nnti_set_error(e, NNT_ERR_MEMORY, "gzip '%s': no memory for the %z bytes in it", name, claimed);
    *data_bytes = claimed;
    /* with the ending: stb_image wants bytes behind the last symbol */
    got = stbi_zlib_decode_noheader_buffer((char *)*data, (int)claimed, (const char *)p + start, (int)(bytes - start));
    if (got >= 0 && (size_t)got == claimed && nnti_crc32(*data, claimed) == nnti_le32(p + bytes - 8)) return NNT_OK;
    nnti_free(a, *data, claimed);
    *data = NULL;
    *data_bytes = 0;
    return nnti_set_error(e, NNT_ERR_FORMAT, "gzip '%s': its content does not have the size (%z bytes) and checksum "
                          "of its ending; it is cut off, damaged or several gzip files in one, fetch the file again",
                          name, claimed);
}

#else

static nnt_result nnti_gunzip(const nnt_allocator *a, const char *name, const uint8_t *p, size_t bytes,
                              uint8_t **data, size_t *data_bytes, nnti_error *e)
{
    (void)a; (void)p; (void)bytes; (void)data; (void)data_bytes;
    return nnti_set_error(e, NNT_ERR_UNSUPPORTED, "gzip '%s': this is a gzip file, and unpacking needs stb_image; "
                          "include stb_image.h before nntrain.h's implementation, or use gunzip first", name);
}

#endif
#endif /* NNT_NO_STDIO */

/* ============================================================================
   >>data    Datasets: arrays, a reader of the user's, IDX files
   Checks what is given once, at creation; afterwards a dataset is never written to, so any number of threads may read
   it. Everything is a reader inside: >>loader only calls read_fn.
   ============================================================================ */

struct nnt_dataset {
    nnt_allocator   a;
    nnti_error      error;
    nnt_reader_desc reader;
    int64_t         sample;                 /* floats of one */
    nnt_arrays_desc arrays;                 /* what nnti_read_arrays reads */
    float           byte_value[256];        /* v / 255, rounded to the nearest float */
    uint8_t        *images;                 /* IDX: the unpacked file, and the labels made of the other one */
    size_t          images_bytes;
    int32_t        *labels;
    size_t          labels_bytes;
};

static nnt_dataset *nnti_dataset_new(const nnt_allocator *a)
{
    nnt_allocator own = nnti_allocator(a);
    nnt_dataset *d = (nnt_dataset *)nnti_zalloc(&own, 1, sizeof *d);
    int v;
    if (!d) return NULL;
    d->a = own;
    /* in double, so that a compiler that multiplies by 1/255 (-ffast-math) still gets every one right */
    for (v = 0; v < 256; v++) d->byte_value[v] = (float)((double)v / 255.0);
    return d;
}

/* Keeps the reader after checking that its sizes are positive and that a sample fits the memory's addresses. */
static nnt_result nnti_dataset_use(nnt_dataset *d, const char *who, const nnt_reader_desc *r)
{
    int64_t sample = nnti_mul64(r->channels, nnti_mul64(r->height, r->width));
    if (r->count <= 0)
        return nnti_set_error(&d->error, NNT_ERR_ARGUMENT, "%s: count is %I; at least one sample is needed", who,
                              r->count);
    if (r->channels <= 0 || r->height <= 0 || r->width <= 0)
        return nnti_set_error(&d->error, NNT_ERR_ARGUMENT, "%s: a sample of %d x %d x %d (channels, height, width); "
                              "all three have to be at least 1", who, r->channels, r->height, r->width);
    if (r->target_size < 0 || r->classes < 0)
        return nnti_set_error(&d->error, NNT_ERR_ARGUMENT, "%s: target_size is %d and classes %d; neither can be "
                              "negative", who, r->target_size, r->classes);
    if (sample < 0 || (uint64_t)sample > SIZE_MAX / sizeof(float))
        return nnti_set_error(&d->error, NNT_ERR_ARGUMENT, "%s: a sample of %d x %d x %d is more than can be "
                              "addressed", who, r->channels, r->height, r->width);
    if (!r->read_fn) return nnti_set_error(&d->error, NNT_ERR_ARGUMENT, "%s: read_fn is NULL", who);
    d->reader = *r;
    d->sample = sample;
    return NNT_OK;
}

static nnt_result nnti_read_arrays(void *user, int64_t index, float *x, int32_t *label, float *target,
                                   char *why, size_t cap)
{
    const nnt_dataset *d = (const nnt_dataset *)user;
    const nnt_arrays_desc *s = &d->arrays;
    size_t first = (size_t)index * (size_t)d->sample, n = (size_t)d->sample, i;
    (void)why; (void)cap;
    if (s->x) memcpy(x, s->x + first, n * sizeof *x);
    else for (i = 0; i < n; i++) x[i] = d->byte_value[s->x_u8[first + i]];
    if (s->labels) *label = s->labels[index];
    if (s->targets)
        memcpy(target, s->targets + (size_t)index * (size_t)s->target_size, (size_t)s->target_size * sizeof *target);
    return NNT_OK;
}

static nnt_result nnti_check_label(nnti_error *e, const char *who, int64_t sample, int32_t label, int classes)
{
    if (label >= 0 && label < classes) return NNT_OK;
    return nnti_set_error(e, NNT_ERR_DATA, "%s: label %d of sample %I; with %d classes labels go from 0 to %d", who,
                          label, sample, classes, classes - 1);
}
/* Largest label + 1, or INT_MAX: then the label INT_MAX is left over for nnti_check_label to refuse. */
static int nnti_count_classes(const int32_t *labels, int64_t count)
{
    int64_t i;
    int32_t largest = 0;
    for (i = 0; i < count; i++) if (labels[i] > largest) largest = labels[i];
    return largest < INT_MAX ? largest + 1 : INT_MAX;
}

static nnt_result nnti_use_arrays(nnt_dataset *d, const char *who, nnt_arrays_desc s)
{
    nnti_error *e = &d->error;
    nnt_reader_desc r;
    int64_t i;
    if (!s.x == !s.x_u8)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: x and x_u8 are both %s; one of them has to hold the samples",
                              who, s.x ? "given" : "NULL");
    if (!s.targets != !s.target_size)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: targets is %s but target_size is %d; give both or neither", who,
                              s.targets ? "given" : "NULL", s.target_size);
    if (s.classes > 0 && !s.labels)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: classes is %d but labels is NULL; give both or neither", who,
                              s.classes);
    memset(&r, 0, sizeof r);
    r.count = s.count;
    r.channels = s.channels;
    r.height = s.height;
    r.width = s.width;
    r.target_size = s.target_size;
    r.classes = s.labels && !s.classes ? nnti_count_classes(s.labels, s.count) : s.classes;
    r.read_fn = nnti_read_arrays;
    r.user = d;
    if (nnti_dataset_use(d, who, &r)) return (nnt_result)e->code;
    if ((uint64_t)s.count > SIZE_MAX / sizeof(float) / (uint64_t)nnti_max64(d->sample, s.target_size))
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: %I samples of %d x %d x %d are more than can be addressed",
                              who, s.count, s.channels, s.height, s.width);
    d->arrays = s;
    for (i = 0; s.labels && i < s.count; i++)
        if (nnti_check_label(e, who, i, s.labels[i], r.classes)) return (nnt_result)e->code;
    return NNT_OK;
}

NNT_API nnt_dataset *nnt_dataset_arrays(nnt_arrays_desc desc, const nnt_allocator *a)
{
    nnt_dataset *d = nnti_dataset_new(a);
    if (d) nnti_use_arrays(d, "dataset_arrays", desc);
    return d;
}

NNT_API nnt_dataset *nnt_dataset_reader(nnt_reader_desc desc, const nnt_allocator *a)
{
    nnt_dataset *d = nnti_dataset_new(a);
    if (d) nnti_dataset_use(d, "dataset_reader", &desc);
    return d;
}

#ifndef NNT_NO_STDIO

/* An IDX file: 00 00, the values' type, the number of dimensions, each size in 4 bytes (highest first), the values. */
enum { NNTI_IDX_BYTES = 0x08, NNTI_IDX_DIMS = 4 };

typedef struct nnti_idx {
    const char    *name;                    /* for sentences */
    char           name_text[NNTI_PATH_TEXT];
    uint8_t       *memory;                  /* the unpacked file */
    size_t         memory_bytes;
    int            dims;
    uint32_t       size[NNTI_IDX_DIMS];
    const uint8_t *values;
} nnti_idx;

/* What each kind of file has to look like. */
typedef struct nnti_idx_kind { int least_dims, most_dims; const char *wanted; } nnti_idx_kind;
static const nnti_idx_kind nnti_idx_images = {
    3, 4, "images have 3 (count, height, width) or 4 (count, channels, height, width)"
};
static const nnti_idx_kind nnti_idx_labels = { 1, 1, "labels have 1 (count)" };

/* What other values than unsigned bytes are called; NULL: no type of the format. */
static const char *nnti_idx_type_name(int type)
{
    switch (type) {
    case 0x09: return "signed bytes";
    case 0x0B: return "16-bit integers";
    case 0x0C: return "32-bit integers";
    case 0x0D: return "floats";
    case 0x0E: return "doubles";
    }
    return NULL;
}
static void nnti_idx_sizes_text(char *to, size_t cap, const nnti_idx *x)
{
    nnti_text t = nnti_text_begin(to, cap);
    int i;
    for (i = 0; i < x->dims; i++) nnti_put(&t, i ? " x %I" : "%I", (int64_t)x->size[i]);
    nnti_text_end(&t);
}

/* The first four bytes. */
static nnt_result nnti_idx_magic(nnti_idx *x, const nnti_idx_kind *kind, nnti_error *e)
{
    const uint8_t *p = x->memory;
    const char *type;
    if (x->memory_bytes < 4)
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': %z bytes, fewer than the header of an IDX file; fetch the "
                              "file again", x->name, x->memory_bytes);
    type = nnti_idx_type_name(p[2]);
    if (p[0] || p[1] || (p[2] != NNTI_IDX_BYTES && !type))
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': %s; an IDX file begins with the bytes 0 0 8, a gzip file "
                              "with 31 139, this one with %d %d %d", x->name, p[0] == '<' ? "this is a web page, fetch "
                              "the data file itself" : "this is no IDX file", p[0], p[1], p[2]);
    if (type)
        return nnti_set_error(e, NNT_ERR_UNSUPPORTED, "idx '%s': holds %s; only unsigned bytes can be read, use "
                              "nnt_dataset_arrays or nnt_dataset_reader for others", x->name, type);
    x->dims = p[3];
    if (x->dims < kind->least_dims || x->dims > kind->most_dims)
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': has %d dimensions; %s; are images and labels swapped?",
                              x->name, x->dims, kind->wanted);
    return NNT_OK;
}
static uint32_t nnti_be32(const uint8_t *p)
{
    return (uint32_t)p[3] | (uint32_t)p[2] << 8 | (uint32_t)p[1] << 16 | (uint32_t)p[0] << 24;
}
/* The sizes, which have to agree with the file's length to the byte. */
static nnt_result nnti_idx_sizes(nnti_idx *x, nnti_error *e)
{
    size_t head = 4 + 4 * (size_t)x->dims;
    int64_t values = 1, needed, present = (int64_t)x->memory_bytes;
    char sizes[64];
    int i;
    if (x->memory_bytes < head)
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': %z bytes, but a header of %d dimensions takes %z; the "
                              "file is cut off, fetch it again", x->name, x->memory_bytes, x->dims, head);
    for (i = 0; i < x->dims; i++) {
        x->size[i] = nnti_be32(x->memory + 4 + 4 * i);
        values = i > 0 && x->size[i] > (uint32_t)INT_MAX ? -1 : nnti_mul64(values, x->size[i]);
    }
    nnti_idx_sizes_text(sizes, sizeof sizes, x);
    if (values < 0)
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': its header says %s, which can't be in %I bytes; the file "
                              "is damaged, fetch it again", x->name, sizes, present);
    needed = values + (int64_t)head;
    if (needed != present)
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': its header says %s and needs %I bytes, the file has %I; "
                              "it is %s, fetch it again", x->name, sizes, needed, present,
                              needed > present ? "cut off or damaged" : "damaged or no IDX file");
    if (values == 0)
        return nnti_set_error(e, NNT_ERR_FORMAT, "idx '%s': its header says %s: there are no values in it", x->name,
                              sizes);
    x->values = x->memory + head;
    return NNT_OK;
}

static void nnti_idx_free(const nnt_allocator *a, nnti_idx *x)
{
    nnti_free(a, x->memory, x->memory_bytes);
    x->memory = NULL;
}
/* Reads, unpacks and checks a file. Whether it is compressed is told by its content: names get lost on the way, and
   browsers unpack without being asked. x is to be freed whatever is returned. */
static nnt_result nnti_idx_read(const nnt_allocator *a, const char *path, const nnti_idx_kind *kind, nnti_idx *x,
                                nnti_error *e)
{
    nnt_result r;
    memset(x, 0, sizeof *x);
    x->name = nnti_path_text(x->name_text, path);
    r = nnti_read_file(a, path, SIZE_MAX, &x->memory, &x->memory_bytes, e);
    if (!r && x->memory_bytes >= 2 && x->memory[0] == 0x1F && x->memory[1] == 0x8B) {
        uint8_t *packed = x->memory;
        size_t packed_bytes = x->memory_bytes;
        x->memory = NULL;
        r = nnti_gunzip(a, x->name, packed, packed_bytes, &x->memory, &x->memory_bytes, e);
        nnti_free(a, packed, packed_bytes);
    }
    if (!r) r = nnti_idx_magic(x, kind, e);
    if (!r) r = nnti_idx_sizes(x, e);
    return r;
}

/* Labels as 32-bit numbers, owned by the dataset. */
static nnt_result nnti_idx_take_labels(nnt_dataset *d, const nnti_idx *images, const nnti_idx *labels)
{
    size_t count = labels->size[0], bytes, i;
    if (images->size[0] != labels->size[0])
        return nnti_set_error(&d->error, NNT_ERR_FORMAT, "idx: %I images in '%s' but %I labels in '%s'; the two files "
                              "don't belong together", (int64_t)images->size[0], images->name,
                              (int64_t)labels->size[0], labels->name);
    if (nnti_mul_size(count, sizeof *d->labels, &bytes)) d->labels = (int32_t *)nnti_alloc(&d->a, bytes);
    if (!d->labels) return nnti_set_error(&d->error, NNT_ERR_MEMORY, "idx '%s': no memory for its %z labels",
                                          labels->name, count);
    d->labels_bytes = bytes;
    for (i = 0; i < count; i++) d->labels[i] = labels->values[i];
    return NNT_OK;
}
/* The images stay in memory as the bytes that they are. */
static nnt_result nnti_idx_use(nnt_dataset *d, nnti_idx *images)
{
    int last = images->dims - 1;
    nnt_arrays_desc s;
    memset(&s, 0, sizeof s);
    s.count = images->size[0];
    s.channels = images->dims == 4 ? (int)images->size[1] : 1;
    s.height = (int)images->size[last - 1];
    s.width = (int)images->size[last];
    s.x_u8 = images->values;
    s.labels = d->labels;
    d->images = images->memory;
    d->images_bytes = images->memory_bytes;
    images->memory = NULL;
    return nnti_use_arrays(d, "dataset_idx", s);
}

NNT_API nnt_dataset *nnt_dataset_idx(const char *images, const char *labels, const nnt_allocator *a)
{
    nnt_dataset *d = nnti_dataset_new(a);
    nnti_idx x, y;
    nnt_result r;
    if (!d) return NULL;
    if (!images) {
        nnti_set_error(&d->error, NNT_ERR_ARGUMENT, "dataset_idx: images is NULL; give the path of an IDX file");
        return d;
    }
    memset(&y, 0, sizeof y);
    r = nnti_idx_read(&d->a, images, &nnti_idx_images, &x, &d->error);
    if (!r && labels) r = nnti_idx_read(&d->a, labels, &nnti_idx_labels, &y, &d->error);
    if (!r && labels) r = nnti_idx_take_labels(d, &x, &y);
    if (!r) nnti_idx_use(d, &x);
    nnti_idx_free(&d->a, &x);
    nnti_idx_free(&d->a, &y);
    return d;
}

#else

NNT_API nnt_dataset *nnt_dataset_idx(const char *images, const char *labels, const nnt_allocator *a)
{
    nnt_dataset *d = nnti_dataset_new(a);
    (void)images; (void)labels;
    if (d) nnti_set_error(&d->error, NNT_ERR_UNSUPPORTED, "dataset_idx: this build reads no files (NNT_NO_STDIO); use "
                          "nnt_dataset_arrays or nnt_dataset_reader");
    return d;
}

#endif

NNT_API void nnt_dataset_free(nnt_dataset *d)
{
    nnt_allocator a;
    if (!d) return;
    a = d->a;
    nnti_free(&a, d->images, d->images_bytes);
    nnti_free(&a, d->labels, d->labels_bytes);
    nnti_free(&a, d, sizeof *d);
}

NNT_API const char *nnt_dataset_error(const nnt_dataset *d) { return d ? d->error.text : "out of memory"; }
NNT_API int64_t nnt_dataset_count(const nnt_dataset *d) { return d && !d->error.code ? d->reader.count : 0; }
NNT_API int nnt_dataset_classes(const nnt_dataset *d) { return d && !d->error.code ? d->reader.classes : 0; }
NNT_API nnt_result nnt_dataset_error_code(const nnt_dataset *d)
{
    return d ? (nnt_result)d->error.code : NNT_ERR_MEMORY;
}

NNT_API nnt_result nnt_dataset_shape(const nnt_dataset *d, int shape[3])
{
    nnt_result r = nnt_dataset_error_code(d);
    if (!shape) return r ? r : NNT_ERR_ARGUMENT;
    shape[0] = r ? 0 : d->reader.channels;
    shape[1] = r ? 0 : d->reader.height;
    shape[2] = r ? 0 : d->reader.width;
    return r;
}

/* ============================================================================
   >>loader    Batches of a dataset, made ahead by worker threads
   All memory is taken at creation. Tickets number the batches over all epochs; the batch of ticket t is made in slot
   t % slots and given out in the order of tickets, so neither content nor order depends on the workers.
   ============================================================================ */

/* A worker makes whole batches, not single samples: the threads meet only twice a batch, and of several bad samples it
   is always the batch's first that is reported. */
typedef struct nnti_slot {
    float     *x;
    int32_t   *labels;                      /* NULL when the dataset has none; targets too */
    float     *targets;
    int64_t   *indices;
    int        count;
    int64_t    ticket;                      /* of the batch that is finished here; -1: none */
    nnti_error error;                       /* what happened to it */
    nnti_laps  laps;                        /* what its making took, for a profile */
} nnti_slot;

struct nnt_loader {
    nnt_allocator   a;
    nnti_error      error;                  /* the last one */
    int             broken;                 /* creation failed, error says why */
    nnt_dataset    *dataset;
    nnt_loader_desc desc;
    int64_t         batches;                /* an epoch */
    int             rows;                   /* samples that a slot has room for */

    nnti_slot      *slots;
    int             slot_count;             /* finished or in work at most slot_count - 1: the caller holds one */
    void           *memory;                 /* all slots' arrays */
    size_t          memory_bytes;
    int64_t        *order;                  /* shuffled indices of epoch order_epoch; NULL: not shuffled */

    int64_t         epoch, batch;           /* what nnt_loader_next gives next */
    double          wait_seconds;

    nnti_mutex      mutex;                  /* guards from here on */
    nnti_cond       work, news;             /* for workers: there may be work; for the caller: something was finished */
    int             sync_count;             /* of the three, those that were made */
    int64_t         taken, claimed;         /* next ticket for the caller, for the workers */
    int64_t         claim_epoch, claim_batch;   /* what ticket `claimed` will be */
    int64_t         order_epoch;
    int             shuffling;              /* a worker is writing order: nobody may claim */
    int             active;                 /* workers outside of the mutex */
    int             halted;                 /* a batch failed: no more are made until the rewind */
    int             quit;
    int             cancel;                 /* atomic: what is in work is not wanted any more */
    nnti_thread    *threads;
    int             started;                /* 0: batches are made in nnt_loader_next */
    int             numbered;               /* threads that have taken their number */
    nnti_page      *page;                   /* a profile's, or NULL */
};

/* ---- order ---- */

enum { NNTI_STREAM_SHUFFLE = 0xFFFF };      /* layers count their streams from 1 */
#define NNTI_EPOCHS ((int64_t)1 << 48)      /* what fits the random numbers' counter */

typedef struct nnti_shuffle_draw { uint64_t seed, epoch, block; uint32_t word[4]; int used; } nnti_shuffle_draw;

static uint64_t nnti_draw64(nnti_shuffle_draw *s)
{
    if (s->used == 4) {
        nnti_random4(s->word, s->seed, s->epoch, NNTI_STREAM_SHUFFLE, (uint32_t)(s->block >> 32), (uint32_t)s->block);
        s->block++;
        s->used = 0;
    }
    s->used += 2;
    return s->word[s->used - 2] | (uint64_t)s->word[s->used - 1] << 32;
}

/* Fisher-Yates: for i = count-1 .. 1 swap order[i] with order[j], j uniform in [0, i]: as many bits as i has are drawn
   until they are at most i, which favours no j. 0 when *cancel became set; order is useless then. */
static int nnti_shuffle(int64_t *order, int64_t count, uint64_t seed, int64_t epoch, const int *cancel)
{
    nnti_shuffle_draw s;
    uint64_t mask = ~(uint64_t)0, j;
    int64_t i, swap;
    s.seed = seed;
    s.epoch = (uint64_t)epoch;
    s.block = 0;
    s.used = 4;
    for (i = 0; i < count; i++) order[i] = i;
    for (i = count - 1; i > 0; i--) {
        while (mask >> 1 >= (uint64_t)i) mask >>= 1;
        do j = nnti_draw64(&s) & mask; while (j > (uint64_t)i);
        swap = order[i];
        order[i] = order[j];
        order[j] = swap;
        if ((i & 0xFFFF) == 0 && nnti_atomic_load(cancel)) return 0;
    }
    return 1;
}

/* ---- making batches ---- */

static nnt_result nnti_read_sample(const nnt_dataset *d, nnti_slot *s, int row)
{
    const nnt_reader_desc *r = &d->reader;
    int64_t index = s->indices[row];
    float *target = s->targets ? s->targets + (size_t)row * (size_t)r->target_size : NULL;
    int32_t label = -1;                     /* so that a reader which gives none is found out */
    char why[NNTI_ERROR_TEXT - 64];
    nnt_result result;
    why[0] = 0;
    result = r->read_fn(r->user, index, s->x + (size_t)row * (size_t)d->sample, &label, target, why, sizeof why);
    nnti_lap(&s->laps, NNTI_STAGE_READ);
    why[sizeof why - 1] = 0;
    if (result)
        return nnti_set_error(&s->error, result, "loader: sample %I: %s", index,
                              why[0] ? why : nnt_result_name(result));
    if (!s->labels) return NNT_OK;
    s->labels[row] = label;
    return nnti_check_label(&s->error, "loader", index, label, r->classes);
}

/* Takes a ticket: the next batch's indices into its slot. With the mutex, and order being that of claim_epoch. */
static nnti_slot *nnti_loader_claim(nnt_loader *l)
{
    nnti_slot *s = &l->slots[l->claimed++ % l->slot_count];
    int64_t first = l->claim_batch * l->desc.batch, i;
    s->count = (int)nnti_min64(l->desc.batch, l->dataset->reader.count - first);
    for (i = 0; i < s->count; i++) s->indices[i] = l->order ? l->order[first + i] : first + i;
    nnti_clear_error(&s->error);
    if (++l->claim_batch == l->batches) { l->claim_batch = 0; l->claim_epoch++; }
    return s;
}
static void nnti_loader_make_order(nnt_loader *l, int worker)
{
    int64_t epoch = l->claim_epoch;
    nnti_laps laps;
    int done;
    nnti_laps_begin(&laps, nnti_page_on(l->page));
    l->shuffling = 1;
    nnti_unlock(&l->mutex);
    done = nnti_shuffle(l->order, l->dataset->reader.count, l->desc.seed, epoch, &l->cancel);
    nnti_lap(&laps, NNTI_STAGE_SHUFFLE);
    nnti_lock(&l->mutex);
    nnti_page_work(l->page, worker, &laps, 0);
    l->order_epoch = done ? epoch : -1;
    l->shuffling = 0;
    nnti_cond_broadcast(&l->work);
}
static void nnti_loader_make_batch(nnt_loader *l, int worker)
{
    int64_t ticket = l->claimed;
    nnti_slot *s = nnti_loader_claim(l);
    int i;
    nnti_laps_begin(&s->laps, nnti_page_on(l->page));
    nnti_unlock(&l->mutex);
    for (i = 0; i < s->count && !s->error.code && !nnti_atomic_load(&l->cancel); i++)
        nnti_read_sample(l->dataset, s, i);
    nnti_lock(&l->mutex);
    nnti_page_work(l->page, worker, &s->laps, i);
    s->ticket = ticket;
    if (s->error.code) l->halted = 1;
}
/* One piece of work: the order of an epoch that begins, or a batch. Called with the mutex, which is free meanwhile.
   worker: from 1 on, 0 the thread that wants the batch. */
static void nnti_loader_make(nnt_loader *l, int worker)
{
    l->active++;
    if (l->order && l->order_epoch != l->claim_epoch) nnti_loader_make_order(l, worker);
    else nnti_loader_make_batch(l, worker);
    l->active--;
    nnti_cond_broadcast(&l->news);
}

static int nnti_loader_has_work(const nnt_loader *l)
{
    return !l->shuffling && !l->halted && !nnti_atomic_load(&l->cancel) && l->claimed - l->taken < l->slot_count - 1;
}
static void nnti_loader_main(void *arg)
{
    nnt_loader *l = (nnt_loader *)arg;
    int worker;
    nnti_lock(&l->mutex);
    worker = ++l->numbered;
    while (!l->quit) {
        if (nnti_loader_has_work(l)) nnti_loader_make(l, worker);
        else nnti_cond_wait(&l->work, &l->mutex);
    }
    nnti_unlock(&l->mutex);
}

/* ---- creation ---- */

static nnt_loader_desc nnti_loader_defaults(nnt_loader_desc d)
{
    d.workers = d.workers == 0 ? 1 : d.workers == NNT_NO_WORKERS ? 0 : d.workers;   /* from here on a plain number */
    if (d.prefetch == 0 && d.workers > 0 && d.workers <= NNTI_MAX_THREADS) d.prefetch = d.workers + 2;
    return d;
}

static nnt_result nnti_loader_check(nnt_loader *l)
{
    const nnt_loader_desc *d = &l->desc;
    nnti_error *e = &l->error;
    int64_t count = nnt_dataset_count(l->dataset);
    nnt_result r = nnt_dataset_error_code(l->dataset);
    if (r) return nnti_set_error(e, r, "%s", nnt_dataset_error(l->dataset));
    if (d->batch <= 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "loader: batch is %d; at least 1 is needed",
                                             d->batch);
    if (d->workers < 0 || d->workers > NNTI_MAX_THREADS)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "loader: workers is %d; 0 to %d or NNT_NO_WORKERS are possible",
                              d->workers, (int)NNTI_MAX_THREADS);
    if (d->prefetch < 0 || d->prefetch == INT_MAX)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "loader: prefetch is %d; 0 (the usual) or a number of batches is "
                              "possible", d->prefetch);
    if (d->drop_last && count < d->batch)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "loader: drop_last with %I samples and batch %d leaves no batch; "
                              "make the batch smaller or keep the last one", count, d->batch);
    l->batches = d->drop_last ? count / d->batch : (count - 1) / d->batch + 1;
    l->rows = (int)nnti_min64(d->batch, count);
    l->slot_count = d->workers ? d->prefetch + 1 : 1;
    return NNT_OK;
}

/* Adds an array of rows * width values to *total, rounded up so that the next one is aligned too. 0 on overflow. */
static int nnti_add_rows(size_t *total, int rows, int64_t width, size_t size)
{
    size_t bytes;
    if (!nnti_mul_size((size_t)width, size, &bytes) || !nnti_mul_size((size_t)rows, bytes, &bytes)) return 0;
    if (!nnti_add_size(bytes, NNTI_ALIGN - 1, &bytes)) return 0;
    return nnti_add_size(*total, bytes / NNTI_ALIGN * NNTI_ALIGN, total);
}
/* The next such array out of the slots' memory; NULL when it has no width. */
static void *nnti_carve_rows(char **at, int rows, int64_t width, size_t size)
{
    void *p = width ? *at : NULL;
    *at += nnti_round_up((size_t)rows * (size_t)width * size, NNTI_ALIGN);
    return p;
}

static nnt_result nnti_loader_take_memory(nnt_loader *l)
{
    const nnt_reader_desc *r = &l->dataset->reader;
    int64_t sample = l->dataset->sample, labels = r->classes > 0, targets = r->target_size;
    size_t slot = 0;
    char *at;
    int i;
    if (nnti_add_rows(&slot, l->rows, sample, sizeof(float)) && nnti_add_rows(&slot, l->rows, labels, sizeof(int32_t))
        && nnti_add_rows(&slot, l->rows, targets, sizeof(float)) && nnti_add_rows(&slot, l->rows, 1, sizeof(int64_t))
        && nnti_mul_size(slot, (size_t)l->slot_count, &l->memory_bytes))
        l->memory = nnti_alloc(&l->a, l->memory_bytes);
    l->slots = (nnti_slot *)nnti_zalloc(&l->a, (size_t)l->slot_count, sizeof *l->slots);
    if (l->desc.shuffle && (uint64_t)r->count <= SIZE_MAX / sizeof *l->order)
        l->order = (int64_t *)nnti_zalloc(&l->a, (size_t)r->count, sizeof *l->order);
    if (l->desc.workers) l->threads = (nnti_thread *)nnti_zalloc(&l->a, (size_t)l->desc.workers, sizeof *l->threads);
    if (!l->memory || !l->slots || (l->desc.shuffle && !l->order) || (l->desc.workers && !l->threads))
        return nnti_set_error(&l->error, NNT_ERR_MEMORY, "loader: no memory for %d batches of %d samples; make batch "
                              "or prefetch smaller", l->slot_count, l->rows);
    at = (char *)l->memory;
    for (i = 0; i < l->slot_count; i++) {
        nnti_slot *s = &l->slots[i];
        s->x = (float *)nnti_carve_rows(&at, l->rows, sample, sizeof(float));
        s->labels = (int32_t *)nnti_carve_rows(&at, l->rows, labels, sizeof(int32_t));
        s->targets = (float *)nnti_carve_rows(&at, l->rows, targets, sizeof(float));
        s->indices = (int64_t *)nnti_carve_rows(&at, l->rows, 1, sizeof(int64_t));
        s->ticket = -1;
    }
    return NNT_OK;
}

/* Threads live from here to nnt_loader_free. Where the system gives fewer, those do the work; none, the caller. */
static nnt_result nnti_loader_start(nnt_loader *l)
{
    l->order_epoch = -1;
    if (nnti_mutex_init(&l->mutex)) l->sync_count = 1;
    if (l->sync_count == 1 && nnti_cond_init(&l->work)) l->sync_count = 2;
    if (l->sync_count == 2 && nnti_cond_init(&l->news)) l->sync_count = 3;
    if (l->sync_count < 3) return nnti_set_error(&l->error, NNT_ERR_MEMORY, "loader: the system has no mutex left");
    while (l->started < l->desc.workers && nnti_thread_start(&l->threads[l->started], nnti_loader_main, l))
        l->started++;
    return NNT_OK;
}

NNT_API nnt_loader *nnt_loader_new(nnt_dataset *d, nnt_loader_desc desc, const nnt_allocator *a)
{
    nnt_allocator own = nnti_allocator(a);
    nnt_loader *l = (nnt_loader *)nnti_zalloc(&own, 1, sizeof *l);
    nnt_result r;
    if (!l) return NULL;
    l->a = own;
    l->dataset = d;
    l->desc = nnti_loader_defaults(desc);
    r = nnti_loader_check(l);
    if (!r) r = nnti_loader_take_memory(l);
    if (!r) r = nnti_loader_start(l);
    l->broken = r != NNT_OK;
    return l;
}

NNT_API void nnt_loader_free(nnt_loader *l)
{
    nnt_allocator a;
    int i;
    if (!l) return;
    if (l->started) {
        nnti_lock(&l->mutex);
        nnti_atomic_store(&l->cancel, 1);
        l->quit = 1;
        nnti_cond_broadcast(&l->work);
        nnti_unlock(&l->mutex);
        for (i = 0; i < l->started; i++) nnti_thread_join(&l->threads[i]);
    }
    if (l->page) nnti_page_orphan(l->page);
    if (l->sync_count > 2) nnti_cond_destroy(&l->news);
    if (l->sync_count > 1) nnti_cond_destroy(&l->work);
    if (l->sync_count > 0) nnti_mutex_destroy(&l->mutex);
    a = l->a;
    nnti_free(&a, l->threads, (size_t)l->desc.workers * sizeof *l->threads);
    if (l->order) nnti_free(&a, l->order, (size_t)l->dataset->reader.count * sizeof *l->order);
    nnti_free(&a, l->slots, (size_t)l->slot_count * sizeof *l->slots);
    nnti_free(&a, l->memory, l->memory_bytes);
    nnti_free(&a, l, sizeof *l);
}

/* ---- use ---- */

NNT_API const char *nnt_loader_error(const nnt_loader *l) { return l ? l->error.text : "out of memory"; }
NNT_API nnt_result nnt_loader_error_code(const nnt_loader *l)
{
    return l ? (nnt_result)l->error.code : NNT_ERR_MEMORY;
}
NNT_API nnt_dataset *nnt_loader_dataset(const nnt_loader *l) { return l ? l->dataset : NULL; }
NNT_API int64_t nnt_loader_batches(const nnt_loader *l) { return l && !l->broken ? l->batches : 0; }
NNT_API double nnt_loader_wait_seconds(const nnt_loader *l) { return l ? l->wait_seconds : 0.0; }
NNT_API int64_t nnt_loader_epoch(const nnt_loader *l) { return l ? l->epoch : 0; }
NNT_API int64_t nnt_loader_batch(const nnt_loader *l) { return l ? l->batch : 0; }

/* Samples of the largest batch that comes. For >>run; 0 when creation failed. */
static int nnti_loader_batch_size(const nnt_loader *l) { return l && !l->broken ? l->rows : 0; }

/* Waits for the batch of ticket `taken` and takes it, unless it failed: then it stays for the next call to meet. */
static nnti_slot *nnti_loader_take(nnt_loader *l)
{
    nnti_slot *s = &l->slots[l->taken % l->slot_count];
    double start = nnti_seconds(), waited;
    nnti_lock(&l->mutex);
    while (s->ticket != l->taken) {
        if (l->started) nnti_cond_wait(&l->news, &l->mutex);
        else nnti_loader_make(l, 0);
    }
    if (!s->error.code) {
        l->taken++;                         /* gives the slot before this one back to the workers */
        nnti_cond_broadcast(&l->work);
    }
    waited = nnti_seconds() - start;
    nnti_page_wait(l->page, start, waited, s->count);
    nnti_unlock(&l->mutex);
    l->wait_seconds += waited;
    return s;
}

NNT_API nnt_result nnt_loader_next(nnt_loader *l, nnt_batch *out)
{
    nnti_slot *s;
    if (out) memset(out, 0, sizeof *out);
    if (!l) return NNT_ERR_MEMORY;
    if (l->broken) return (nnt_result)l->error.code;
    if (!out) return nnti_set_error(&l->error, NNT_ERR_ARGUMENT, "loader_next: out is NULL");
    if (l->batch == l->batches) {
        l->batch = 0;
        l->epoch++;
        return NNT_OK;
    }
    s = nnti_loader_take(l);
    if (s->error.code) {
        l->error = s->error;
        return (nnt_result)l->error.code;
    }
    l->batch++;
    out->x = s->x;
    out->labels = s->labels;
    out->targets = s->targets;
    out->count = s->count;
    out->indices = s->indices;
    return NNT_OK;
}

/* Puts the loader anywhere, also under another seed; batch may be that behind the last. */
static void nnti_loader_move(nnt_loader *l, uint64_t seed, int64_t epoch, int64_t batch)
{
    nnti_lock(&l->mutex);
    nnti_atomic_store(&l->cancel, 1);       /* workers stop within a sample */
    while (l->active) nnti_cond_wait(&l->news, &l->mutex);
    nnti_atomic_store(&l->cancel, 0);
    if (l->desc.seed != seed) l->order_epoch = -1;
    l->desc.seed = seed;
    l->taken = l->claimed;                  /* what was made ahead is given up */
    l->halted = 0;
    l->claim_epoch = batch < l->batches ? epoch : epoch + 1;
    l->claim_batch = batch < l->batches ? batch : 0;
    nnti_cond_broadcast(&l->work);
    nnti_unlock(&l->mutex);
    l->epoch = epoch;
    l->batch = batch;
    nnti_clear_error(&l->error);
}
static nnt_result nnti_loader_check_move(nnt_loader *l, const char *where, int64_t epoch, int64_t batch)
{
    if (!l) return NNT_ERR_MEMORY;
    if (l->broken) return (nnt_result)l->error.code;
    if (epoch < 0 || epoch >= NNTI_EPOCHS)
        return nnti_set_error(&l->error, NNT_ERR_ARGUMENT, "%s: epoch is %I; 0 to %I are possible", where, epoch,
                              (int64_t)(NNTI_EPOCHS - 1));
    if (batch < 0 || batch > l->batches)
        return nnti_set_error(&l->error, NNT_ERR_ARGUMENT, "%s: batch is %I; an epoch has %I", where, batch, l->batches);
    return NNT_OK;
}
NNT_API nnt_result nnt_loader_rewind(nnt_loader *l, int64_t epoch)
{
    nnt_result r = nnti_loader_check_move(l, "loader_rewind", epoch, 0);
    if (!r) nnti_loader_move(l, l->desc.seed, epoch, 0);
    return r;
}
NNT_API nnt_result nnt_loader_seek(nnt_loader *l, int64_t epoch, int64_t batch)
{
    nnt_result r = nnti_loader_check_move(l, "loader_seek", epoch, batch);
    if (!r) nnti_loader_move(l, l->desc.seed, epoch, batch);
    return r;
}
#undef NNTI_EPOCHS

/* ---- profiles */

NNT_API nnt_result nnt_profile_loader(nnt_net *net, nnt_loader *l)
{
    nnti_recorder *p;
    nnti_page *page;
    nnt_result r;
    int i;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_profile_needed(net, "nnt_profile_loader");
    if (r) return r;
    if (!l || l->broken) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_profile_loader: %s", nnt_loader_error(l));
    p = net->profile;
    for (i = 0; i < p->pages; i++) if (l->page == &p->page[i]) return NNT_OK;
    if (l->page) return nnti_set_error(&net->error, NNT_ERR_STATE, "nnt_profile_loader: another net's profile watches this loader");
    if (p->pages == NNTI_PROFILE_LOADERS)
        return nnti_set_error(&net->error, NNT_ERR_UNSUPPORTED, "nnt_profile_loader: a profile watches at most %d loaders", (int)NNTI_PROFILE_LOADERS);
    page = &p->page[p->pages];
    if (!nnti_page_init(&net->a, page, l->started)) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "nnt_profile_loader: out of memory");
    p->pages++;
    page->loader = l;
    page->mutex = &l->mutex;
    page->link = &l->page;
    nnti_lock(&l->mutex);
    nnti_page_run(page, net->recording != NULL, nnti_seconds());
    l->page = page;
    nnti_unlock(&l->mutex);
    return NNT_OK;
}
/* As fit and evaluate do it: a loader too many, or another net's, is no reason to fail. */
static nnt_result nnti_profile_follow(nnt_net *net, nnt_loader *l)
{
    nnti_error kept = net->error;
    nnt_result r = net->recording ? nnt_profile_loader(net, l) : NNT_OK;
    if (!r || r == NNT_ERR_MEMORY) return r;
    net->error = kept;
    return NNT_OK;
}

/* ============================================================================
   >>health    A step looked at op by op: the size of what is written, and the first value that is not finite
   Ops run one at a time, and what they wrote is fetched. For nnt_health, and once a loss is not finite.
   ============================================================================ */

typedef struct nnti_inspector {
    nnt_net *net;
    nnt_layer_health *row;          /* for each node, or NULL: only whether values are finite */
    double  *squares, *values, *channels;   /* sums for the rows */
    float   *buffer;                /* what an op wrote */
    size_t   bytes;
    char     found[256];            /* "first non-finite value: ..." */
} nnti_inspector;

/* What an op wrote: `samples` times `count` values, `stride` apart, from value `first` on. */
typedef struct nnti_written { const void *at; int64_t first, count, stride; int samples, channels; } nnti_written;

/* 0 when the op does not write that role, or no floats. */
static int nnti_written_by(const nnt_net *net, const nnti_program *p, int index, int role, int samples, nnti_written *w)
{
    const nnt_op *op = &p->ops[index];
    int64_t in = (int64_t)op->in_c * op->in_h * op->in_w, out = (int64_t)op->out_c * op->out_h * op->out_w;
    int o = nnti_operands(p, index)[role];
    memset(w, 0, sizeof *w);
    w->at = op->at[role];
    w->samples = samples;
    w->channels = op->out_c;
    if (o == -1 || !w->at) return 0;
    switch (role) {
    case NNT_Y:
        if (!nnti_op_writes(op, role)) return 0;
        w->count = w->stride = op->kind == NNT_OP_COPY || op->kind == NNT_OP_ACCUMULATE ? in : out;
        if (op->kind == NNT_OP_CONCAT) {
            w->first = (int64_t)op->channel_offset * op->in_h * op->in_w;
            w->count = in;
            w->channels = op->in_c;
        }
        break;
    case NNT_GX:
        w->count = w->stride = in;
        break;
    case NNT_STATS:
        if (!nnti_op_writes(op, role)) return 0;
        w->count = 3 * (int64_t)op->in_c;
        w->samples = 1;
        break;
    case NNT_GW: case NNT_GB:
        w->count = net->params[-2 - o].count;
        w->samples = 1;
        break;
    default: return 0;
    }
    return 1;
}
static int64_t nnti_first_bad(const float *x, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++) if (!nnti_finite(x[i])) return i;
    return -1;
}
static nnt_result nnti_inspect_fetch(nnti_inspector *s, const void *from, size_t bytes)
{
    const nnti_open_device *on = s->net->on;
    nnt_result r = on->backend->download(on->device, s->buffer, from, bytes);
    return r ? nnti_device_failed(s->net, on, r, "health") : NNT_OK;
}
/* "output of 'conv3'", "gradient of 'conv3.weight'" */
static void nnti_put_result_name(nnti_text *t, const nnt_net *net, const nnti_program *p, int index, int role)
{
    const nnt_op *op = &p->ops[index];
    const nnti_node *n = &net->nodes[op->node - 1];
    char name[NNTI_NAME_TEXT];
    int o = nnti_operands(p, index)[role];
    if (role == NNT_GW || role == NNT_GB) nnti_put(t, "gradient of '%s'", net->params[-2 - o].name);
    else nnti_put(t, "%s '%s'", role == NNT_STATS ? "statistics of" : role == NNT_GX || op->phase == NNT_PHASE_BACKWARD ? "gradient of the input of" : "output of",
                  nnti_node_name(n, name));
    nnti_put(t, " (%s%s)", nnti_op_names[op->kind], op->phase == NNT_PHASE_AGAIN ? ", made again" : "");
}
static nnt_result nnti_inspect_found(nnti_inspector *s, nnti_text *t, const char *where)
{
    nnti_put(t, ", step %I", s->net->steps);
    nnti_text_end(t);
    return nnti_set_error(&s->net->error, NNT_ERR_NOT_FINITE, "%s: %s", where, s->found);
}
static nnti_text nnti_inspect_begin(nnti_inspector *s)
{
    nnti_text t = nnti_text_begin(s->found, sizeof s->found);
    nnti_put_string(&t, "first non-finite value: ");
    return t;
}
/* A forward output into its layer's row. */
static void nnti_inspect_output(nnti_inspector *s, const nnt_op *op, const nnti_written *w)
{
    int node = op->node - 1, c, n;
    int64_t plane = w->count / w->channels, i;
    nnt_layer_health *r = &s->row[node];
    r->relu = (op->flags & NNT_OPF_RELU) != 0 || (op->kind == NNT_OP_ACT && op->variant == NNT_ACT_RELU);
    for (c = 0; c < w->channels; c++) {
        int64_t zeros = 0;
        for (n = 0; n < w->samples; n++) {
            const float *x = s->buffer + n * w->stride + w->first + c * plane;
            for (i = 0; i < plane; i++) {
                double v = (double)x[i];
                zeros += !(v > 0) && !(v < 0);
                s->squares[node] += v * v;
                if (fabs(v) > r->output_max) r->output_max = fabs(v);
            }
        }
        r->zeros += (double)zeros;          /* counts, until nnti_inspect_end */
        r->dead += zeros == w->samples * plane;
    }
    s->values[node] += (double)w->samples * (double)w->count;
    s->channels[node] += w->channels;
}
/* What op `index` has just written. */
static nnt_result nnti_inspect_op(nnti_inspector *s, const nnti_program *p, int index, int samples, const char *where)
{
    static const int roles[] = { NNT_STATS, NNT_Y, NNT_GX, NNT_GW, NNT_GB };
    const nnt_op *op = &p->ops[index];
    nnti_written w;
    nnt_result r;
    size_t k;
    int n;
    if (nnti_operands(p, index)[NNT_LOSS] >= 0) {
        nnt_loss loss;
        r = nnti_inspect_fetch(s, op->at[NNT_LOSS], sizeof loss);
        if (r) return r;
        memcpy(&loss, s->buffer, sizeof loss);
        if (!nnti_finite_double(loss.sum)) {
            nnti_text t = nnti_inspect_begin(s);
            nnti_put_result_name(&t, s->net, p, index, NNT_LOSS);
            nnti_put(&t, ": %g", loss.sum);
            return nnti_inspect_found(s, &t, where);
        }
    }
    for (k = 0; k < sizeof roles / sizeof *roles; k++) {
        if (!nnti_written_by(s->net, p, index, roles[k], samples, &w)) continue;
        r = nnti_inspect_fetch(s, w.at, (size_t)((w.samples - 1) * w.stride + w.first + w.count) * sizeof(float));
        if (r) return r;
        for (n = 0; n < w.samples; n++) {
            const float *x = s->buffer + n * w.stride + w.first;
            int64_t bad = nnti_first_bad(x, w.count);
            if (bad >= 0) {
                nnti_text t = nnti_inspect_begin(s);
                nnti_put_result_name(&t, s->net, p, index, roles[k]);
                nnti_put(&t, ": %g at value %I", (double)x[bad], bad);
                if (w.stride) nnti_put(&t, " of sample %d", n);
                return nnti_inspect_found(s, &t, where);
            }
        }
        if (s->row && roles[k] == NNT_Y && op->phase == NNT_PHASE_FORWARD) nnti_inspect_output(s, op, &w);
    }
    return NNT_OK;
}
static nnt_result nnti_inspect_run(nnti_inspector *s, const nnti_program *p, int first, int last, const nnt_run *run, const char *where)
{
    const nnti_open_device *on = s->net->on;
    nnt_result r = NNT_OK;
    int i;
    for (i = first; i < last && !r; i++) {
        r = on->backend->run(on->device, &p->ops[i], 1, run);
        r = r ? nnti_device_failed(s->net, on, r, where) : nnti_inspect_op(s, p, i, run->count, where);
    }
    return r;
}
/* All parameters and running statistics. */
static nnt_result nnti_inspect_params(nnti_inspector *s, const char *when, const char *where)
{
    nnt_net *net = s->net;
    int i;
    for (i = 0; i < net->param_count; i++) {
        const nnti_param *p = &net->params[i];
        int64_t bad;
        nnt_result r;
        if (p->kind == NNTI_PARAM_CONSTANT) continue;
        r = nnti_inspect_fetch(s, net->memory + p->offset, (size_t)p->count * sizeof(float));
        if (r) return r;
        bad = nnti_first_bad(s->buffer, p->count);
        if (bad >= 0) {
            nnti_text t = nnti_inspect_begin(s);
            nnti_put(&t, "'%s' %s: %g at value %I", p->name, when, (double)s->buffer[bad], bad);
            return nnti_inspect_found(s, &t, where);
        }
    }
    return NNT_OK;
}
static void nnti_inspector_free(nnti_inspector *s)
{
    const nnt_allocator *a = &s->net->a;
    size_t nodes = (size_t)s->net->node_count;
    nnti_free(a, s->buffer, s->bytes);
    nnti_free(a, s->row, nodes * sizeof *s->row);
    nnti_free(a, s->squares, 3 * nodes * sizeof *s->squares);
}
/* rows: wanted. 0 when memory is out; to be freed also then. */
static int nnti_inspector_init(nnti_inspector *s, nnt_net *net, int rows)
{
    size_t nodes = (size_t)net->node_count;
    int i;
    memset(s, 0, sizeof *s);
    s->net = net;
    s->bytes = sizeof(nnt_loss);
    for (i = 0; i < net->plan.train_value_count; i++) if (net->plan.train_values[i].bytes > s->bytes) s->bytes = net->plan.train_values[i].bytes;
    for (i = 0; i < net->param_count; i++)
        if ((size_t)net->params[i].count * sizeof(float) > s->bytes) s->bytes = (size_t)net->params[i].count * sizeof(float);
    s->buffer = (float *)nnti_alloc(&net->a, s->bytes);
    if (!rows) return s->buffer != NULL;
    s->row = (nnt_layer_health *)nnti_zalloc(&net->a, nodes, sizeof *s->row);
    s->squares = (double *)nnti_zalloc(&net->a, 3 * nodes, sizeof *s->squares);
    if (!s->buffer || !s->row || !s->squares) return 0;
    s->values = s->squares + nodes;
    s->channels = s->values + nodes;
    return 1;
}

/* ============================================================================
   >>run    Steps: batches in, ops through the backend, loss out, update
   Reads the plan's two lists of ops; everything that differs from step to step is in nnt_run.
   ============================================================================ */

static char *nnti_arena(const nnt_net *net) { return (char *)net->memory + net->plan.memory.fixed; }
static void *nnti_value_address(const nnt_net *net, int program, int value)
{
    const nnti_value *v = program ? net->plan.predict_values : net->plan.train_values;
    return nnti_arena(net) + v[value].offset;
}
static int64_t nnti_node_volume(const nnt_net *net, int node) { return nnti_volume(net->nodes[node].shape); }

static nnt_result nnti_upload(nnt_net *net, int program, int value, const void *from, size_t bytes, const char *where)
{
    double start = nnti_clock(net);
    nnt_result r = net->on->backend->upload(net->on->device, nnti_value_address(net, program, value), from, bytes);
    nnti_clocked(net, nnti_row(program, NNTI_PART_UPLOAD), start, (double)bytes);
    return r ? nnti_device_failed(net, net->on, r, where) : NNT_OK;
}
static int nnti_op_row(const nnt_net *net, const nnti_program *p, int op)
{
    return NNTI_ROW_OPS + (p == &net->plan.train ? 0 : net->plan.train.count) + op;
}
/* Device to host. */
static nnt_result nnti_download(nnt_net *net, int program, void *to, const void *from, size_t bytes, const char *where)
{
    double start = nnti_clock(net);
    nnt_result r = net->on->backend->download(net->on->device, to, from, bytes);
    nnti_clocked(net, nnti_row(program, NNTI_PART_DOWNLOAD), start, (double)bytes);
    return r ? nnti_device_failed(net, net->on, r, where) : NNT_OK;
}
static nnt_result nnti_run_ops(nnt_net *net, const nnti_program *p, int first, int last, const nnt_run *run, const char *where)
{
    nnt_result r = NNT_OK;
    if (net->inspector) return nnti_inspect_run(net->inspector, p, first, last, run, where);
    if (last > first && net->recording) r = nnti_profile_run(net, nnti_op_row(net, p, first), p->ops + first, last - first, run, run->count);
    else if (last > first) r = net->on->backend->run(net->on->device, p->ops + first, last - first, run);
    return r ? nnti_device_failed(net, net->on, r, where) : NNT_OK;
}

static nnt_result nnti_check_finite(nnt_net *net, const char *where, const char *what, const float *x, int64_t per_sample, int64_t samples)
{
    int64_t i, n = per_sample * samples;
    uint32_t bad = 0;
    for (i = 0; i < n; i++) {               /* the exponent's bits all set: adding one to them carries into the sign's place */
        uint32_t u;
        memcpy(&u, &x[i], 4);
        bad |= (u & 0x7fffffffu) + 0x00800000u;
    }
    if (!(bad & 0x80000000u)) return NNT_OK;
    for (i = 0; i < n && nnti_finite(x[i]); i++) { }
    return nnti_set_error(&net->error, NNT_ERR_DATA, "%s: %s of sample %I is %g at value %I; all values must be finite", where, what, i / per_sample, (double)x[i], i % per_sample);
}
/* Everything that a batch can be wrong in, before anything of it is used. */
static nnt_result nnti_look_at_batch(nnt_net *net, const nnt_batch *b, const char *where, int any_count)
{
    const nnti_node *loss;
    nnti_error *e = &net->error;
    int64_t volume = nnti_node_volume(net, net->input);
    nnt_result r;
    int i, classes;
    if (net->loss_node < 0) return nnti_set_error(e, NNT_ERR_STATE, "%s: the net was compiled without a loss; give nnt_compile nnt_cross_entropy(x) or nnt_mse(x)", where);
    loss = &net->nodes[net->loss_node];
    if (!b || !b->x) return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: the batch has no x", where);
    if (b->count < 1) return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: the batch has %d samples; it needs at least 1", where, b->count);
    if (!any_count && b->count > net->desc.batch)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: the batch has %d samples; the net was compiled for at most %d", where, b->count, net->desc.batch);
    r = nnti_check_finite(net, where, "the input", b->x, volume, b->count);
    if (r) return r;
    if (loss->kind == NNTI_NODE_MSE) {
        if (!b->targets) return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: the batch has no targets; mse needs them", where);
        return nnti_check_finite(net, where, "the target", b->targets, nnti_node_volume(net, net->output_node), b->count);
    }
    if (!b->labels) return nnti_set_error(e, NNT_ERR_ARGUMENT, "%s: the batch has no labels; cross_entropy needs them", where);
    classes = net->nodes[net->output_node].shape[0];
    for (i = 0; i < b->count; i++) {
        if (loss->geometry.use_ignore && b->labels[i] == loss->geometry.ignore_label) continue;
        if (b->labels[i] < 0 || b->labels[i] >= classes)
            return nnti_set_error(e, NNT_ERR_DATA, "%s: label %d of sample %d is out of range; the net has %d classes, labels go from 0 to %d", where, (int)b->labels[i], i, classes, classes - 1);
    }
    return NNT_OK;
}
/* any_count: for an evaluation, which takes larger batches in pieces. */
static nnt_result nnti_check_batch(nnt_net *net, const nnt_batch *b, const char *where, int any_count)
{
    double start = nnti_clock(net);
    nnt_result r = nnti_look_at_batch(net, b, where, any_count);
    nnti_clocked(net, nnti_row(any_count, NNTI_PART_CHECK), start, 0);
    return r;
}
/* Batch norm can't train on one value for each channel: its variance would be 0. */
static nnt_result nnti_check_batchnorm(nnt_net *net, int count, const char *where)
{
    int i;
    char name[NNTI_NAME_TEXT];
    if (count != 1) return NNT_OK;
    for (i = 0; i < net->plan.train.count; i++) {
        const nnt_op *op = &net->plan.train.ops[i];
        if (op->kind == NNT_OP_BN_STATS && (int64_t)op->in_h * op->in_w == 1)
            return nnti_set_error(&net->error, NNT_ERR_SHAPE, "%s: batchnorm '%s' would train on a batch of 1 with 1 value a channel, whose variance is 0; use larger batches, or drop_last in the loader",
                                  where, nnti_node_name(&net->nodes[op->node - 1], name));
    }
    return NNT_OK;
}
static nnt_result nnti_ready(nnt_net *net, const char *where)
{
    if (net->graph_error.code) { net->error = net->graph_error; return (nnt_result)net->graph_error.code; }
    if (!net->compiled) return nnti_set_error(&net->error, NNT_ERR_STATE, "%s: call nnt_compile first", where);
    return NNT_OK;
}
static nnt_result nnti_ready_to_train(nnt_net *net, const char *where)
{
    nnt_result r = nnti_ready(net, where);
    if (r) return r;
    if (!net->trains) return nnti_set_error(&net->error, NNT_ERR_STATE, "%s: the net was compiled without an optimizer, for prediction only; set optimizer in nnt_compile_desc", where);
    return NNT_OK;
}

/* Puts count samples of a batch, from sample `first` on, into the program's values. */
static nnt_result nnti_put_batch(nnt_net *net, int program, const nnt_batch *b, int first, int count, const char *where)
{
    const nnti_plan *p = &net->plan;
    int64_t volume = nnti_node_volume(net, net->input), out = nnti_node_volume(net, net->output_node);
    nnt_result r = nnti_upload(net, program, p->x[program], b->x + volume * first, (size_t)(volume * count) * sizeof(float), where);
    if (!r && p->labels[program] >= 0) r = nnti_upload(net, program, p->labels[program], b->labels + first, (size_t)count * sizeof(int32_t), where);
    if (!r && p->targets[program] >= 0) r = nnti_upload(net, program, p->targets[program], b->targets + out * first, (size_t)(out * count) * sizeof(float), where);
    return r;
}
static nnt_result nnti_get_loss(nnt_net *net, int program, nnt_loss *out, const char *where)
{
    return nnti_download(net, program, out, nnti_value_address(net, program, net->plan.loss[program]), sizeof *out, where);
}
static double nnti_max_double(double a, double b) { return a > b ? a : b; }
static double nnti_mean_loss(const nnt_loss *l) { return l->weight > 0 ? l->sum / l->weight : 0; }

static int nnti_accumulates(const nnt_net *net) { return nnti_max(1, net->desc.optimizer.accumulate); }

/* The loss of a batch is not finite: runs its forward ops again, one by one, to find where that began. "" when there is no
   memory for it, or when it does not happen again. */
static void nnti_locate(nnt_net *net, const nnt_batch *b, const nnt_run *run, const char *where, char *found, size_t cap)
{
    const nnti_program *p = &net->plan.train;
    nnti_inspector s;
    nnt_result r;
    found[0] = 0;
    if (net->inspector) return;
    if (nnti_inspector_init(&s, net, 0)) {
        r = nnti_inspect_params(&s, "before the step", where);
        if (!r) r = nnti_put_batch(net, 0, b, 0, b->count, where);
        if (!r) r = nnti_inspect_run(&s, p, 0, p->loss_op + 1, run, where);
        if (r == NNT_ERR_NOT_FINITE) nnti_format(found, cap, "; %s", s.found);
    }
    nnti_inspector_free(&s);
}

/* Forward, loss and backward of one batch. While batches are accumulated, each sample's weight is divided by the
   compiled batch, and the update's grad_scale puts the sum of all weights in its place. */
static nnt_result nnti_forward_backward(nnt_net *net, const nnt_batch *b, const char *where, nnt_run *run)
{
    const nnti_open_device *on = net->on;
    const nnti_program *p = &net->plan.train;
    /* backward is under way while the loss is looked at; gradients that are added to wait until it is known to be finite */
    const int ahead = on->backend->fetch != NULL && !net->pending;
    nnt_result r;
    memset(run, 0, sizeof *run);
    run->count = b->count;
    run->accumulate = net->pending > 0;
    run->seed = net->desc.seed;
    run->step = (uint64_t)net->steps;
    run->loss_scale = nnti_accumulates(net) > 1 ? 1.0f / (float)net->desc.batch : 0.0f;
    r = nnti_put_batch(net, 0, b, 0, b->count, where);
    if (!r) r = nnti_run_ops(net, p, 0, p->loss_op + 1, run, where);
    if (!r && ahead) {
        r = on->backend->fetch(on->device, nnti_value_address(net, 0, net->plan.loss[0]), sizeof net->last_loss);
        if (r) return nnti_device_failed(net, on, r, where);
        r = nnti_run_ops(net, p, p->loss_op + 1, p->count - p->update_ops, run, where);
    }
    if (!r) r = nnti_get_loss(net, 0, &net->last_loss, where);
    if (r) return r;
    if (!nnti_finite_double(net->last_loss.sum) || !nnti_finite((float)nnti_mean_loss(&net->last_loss))) {
        char last[64], found[300];
        last[0] = 0;
        if (net->steps > 0) nnti_format(last, sizeof last, ", after %g in the step before", net->last_finite);
        nnti_locate(net, b, run, where, found, sizeof found);
        return nnti_set_error(&net->error, NNT_ERR_NOT_FINITE, "%s: the loss of step %I is %g%s; nothing was updated; a smaller learning rate (now %g) or clip_norm may help%s",
                              where, net->steps, nnti_mean_loss(&net->last_loss), last, (double)nnt_learning_rate(&net->desc.optimizer, net->updates), found);
    }
    return ahead ? NNT_OK : nnti_run_ops(net, p, p->loss_op + 1, p->count - p->update_ops, run, where);
}

/* An op of the update, which is in no program. */
static nnt_result nnti_run_alone(nnt_net *net, int row, const nnt_op *op, const nnt_run *run, const char *where)
{
    nnt_result r = net->recording ? nnti_profile_run(net, row, op, 1, run, (double)op->count) : net->on->backend->run(net->on->device, op, 1, run);
    return r ? nnti_device_failed(net, net->on, r, where) : NNT_OK;
}
/* One pass over all trained parameters. */
static nnt_result nnti_apply_update(nnt_net *net, const char *where)
{
    const nnt_memory *m = &net->plan.memory;
    float *grads = net->memory + m->params / sizeof(float), *moments = grads + m->grads / sizeof(float);
    double norm;
    nnt_op op;
    nnt_run run;
    nnt_result r;
    memset(&op, 0, sizeof op);
    memset(&run, 0, sizeof run);
    run.optimizer = net->desc.optimizer;
    run.optimizer.lr = nnt_learning_rate(&net->desc.optimizer, net->updates);
    run.update = net->updates + 1;
    run.grad_scale = 1.0f;
    if (nnti_accumulates(net) > 1 && net->pending_weight > 0) run.grad_scale = (float)(net->desc.batch / net->pending_weight);
    op.count = (int64_t)net->plan.trained_floats;
    op.name = "update";
    op.at[NNT_GW] = grads;
    if (net->desc.optimizer.clip_norm > 0) {
        char *squares = (char *)net->memory + m->fixed - m->staging - net->plan.norm_workspace - NNTI_ALIGN;
        op.kind = NNT_OP_GRAD_NORM;
        op.at[NNT_LOSS] = squares;
        op.workspace = squares + NNTI_ALIGN;
        op.workspace_bytes = net->plan.norm_workspace;
        r = nnti_run_alone(net, NNTI_ROW_NORM, &op, &run, where);
        if (!r) r = nnti_download(net, 0, &norm, squares, sizeof norm, where);
        if (r) return r;
        norm = sqrt(norm) * (double)run.grad_scale;
        if (!nnti_finite_double(norm)) {
            net->pending = 0;
            net->pending_weight = 0;
            return nnti_set_error(&net->error, NNT_ERR_NOT_FINITE, "%s: the gradients of update %I are not finite; nothing was updated; a smaller learning rate (now %g) may help",
                                  where, net->updates, (double)run.optimizer.lr);
        }
        /* as torch.nn.utils.clip_grad_norm_ */
        if (norm + 1e-6 > (double)net->desc.optimizer.clip_norm) run.grad_scale *= (float)((double)net->desc.optimizer.clip_norm / (norm + 1e-6));
    }
    op.kind = NNT_OP_UPDATE;
    op.at[NNT_W] = net->memory;
    if (nnti_moments(&net->desc.optimizer) > 0) op.at[NNT_M] = moments;
    if (nnti_moments(&net->desc.optimizer) > 1) op.at[NNT_V] = moments + op.count;
    r = op.count > 0 ? nnti_run_alone(net, NNTI_ROW_UPDATE, &op, &run, where) : NNT_OK;
    if (r) return r;
    net->updates++;
    net->pending = 0;
    net->pending_weight = 0;
    return NNT_OK;
}

NNT_API nnt_result nnt_update(nnt_net *net)
{
    double start;
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_ready_to_train(net, "update");
    if (r || !net->pending) return r;
    start = nnti_clock(net);
    r = nnti_apply_update(net, "update");
    nnti_clocked(net, nnti_row(0, NNTI_PART_WHOLE), start, 0);
    return r;
}

static nnt_result nnti_step(nnt_net *net, const nnt_batch *batch, float *loss)
{
    const nnti_program *p = &net->plan.train;
    nnt_run run;
    nnt_result r = nnti_ready_to_train(net, "step");
    if (!r) r = nnti_check_batch(net, batch, "step", 0);
    if (!r) r = nnti_check_batchnorm(net, batch->count, "step");
    if (!r) r = nnti_forward_backward(net, batch, "step", &run);
    if (r) return r;
    net->pending++;
    net->pending_weight += net->last_loss.weight;
    if (net->pending >= nnti_accumulates(net)) r = nnti_apply_update(net, "step");
    if (!r) r = nnti_run_ops(net, p, p->count - p->update_ops, p->count, &run, "step");     /* running statistics */
    if (r) return r;
    net->steps++;
    net->last_finite = nnti_mean_loss(&net->last_loss);
    if (loss) *loss = (float)net->last_finite;
    return NNT_OK;
}
NNT_API nnt_result nnt_step(nnt_net *net, const nnt_batch *batch, float *loss)
{
    double start;
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    start = nnti_clock(net);
    r = nnti_step(net, batch, loss);
    nnti_clocked(net, nnti_row(0, NNTI_PART_WHOLE), start, r ? 0 : batch->count);
    return r;
}

/* While batches are accumulated, gradients are divided by the compiled batch; this makes them those of the last one. */
static double nnti_gradient_scale(const nnt_net *net)
{
    return nnti_accumulates(net) > 1 && net->last_loss.weight > 0 ? net->desc.batch / net->last_loss.weight : 1;
}
static nnt_result nnti_scale_gradients(nnt_net *net, const char *where)
{
    float *grads = net->memory + net->plan.memory.params / sizeof(float);
    nnt_result r = NNT_OK;
    if (nnti_accumulates(net) > 1 && net->last_loss.weight > 0)
        r = net->on->backend->axpby(net->on->device, grads, (float)nnti_gradient_scale(net), grads, 0.0f, NULL, (int64_t)net->plan.trained_floats);
    return r ? nnti_device_failed(net, net->on, r, where) : NNT_OK;
}
static nnt_result nnti_ready_for_gradients(nnt_net *net, const nnt_batch *batch, const char *where)
{
    nnt_result r = nnti_ready_to_train(net, where);
    if (!r && net->pending) r = nnti_set_error(&net->error, NNT_ERR_STATE, "%s: the gradients of %d batches wait for their update; call nnt_update first", where, net->pending);
    if (!r) r = nnti_check_batch(net, batch, where, 0);
    return r ? r : nnti_check_batchnorm(net, batch->count, where);
}
static nnt_result nnti_backward(nnt_net *net, const nnt_batch *batch, float *loss)
{
    nnt_run run;
    nnt_result r = nnti_ready_for_gradients(net, batch, "backward");
    if (!r) r = nnti_forward_backward(net, batch, "backward", &run);
    if (!r) r = nnti_scale_gradients(net, "backward");
    if (r) return r;
    if (loss) *loss = (float)nnti_mean_loss(&net->last_loss);
    return NNT_OK;
}
NNT_API nnt_result nnt_backward(nnt_net *net, const nnt_batch *batch, float *loss)
{
    double start;
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    start = nnti_clock(net);
    r = nnti_backward(net, batch, loss);
    nnti_clocked(net, nnti_row(0, NNTI_PART_WHOLE), start, r ? 0 : batch->count);
    return r;
}

/* ---- health */

/* Adds the squares of `count` values on the device, or of their differences from `from`. */
static nnt_result nnti_inspect_norm(nnti_inspector *s, const float *at, const float *from, int64_t count, double *sum)
{
    nnt_result r = nnti_inspect_fetch(s, at, (size_t)count * sizeof(float));
    int64_t i;
    for (i = 0; i < count && !r; i++) {
        double v = (double)s->buffer[i] - (from ? (double)from[i] : 0);
        *sum += v * v;
    }
    return r;
}
enum { NNTI_NORM_WEIGHT = 0, NNTI_NORM_GRADIENT, NNTI_NORM_UPDATE };
/* One of a layer's three sums over its trained parameters. kept: the weights before the update. */
static nnt_result nnti_inspect_norms(nnti_inspector *s, int which, const float *kept)
{
    nnt_net *net = s->net;
    const float *grads = net->memory + net->plan.memory.params / sizeof(float);
    nnt_result r = NNT_OK;
    int i;
    for (i = 0; i < net->param_count && !r; i++) {
        const nnti_param *p = &net->params[i];
        nnt_layer_health *row = &s->row[p->node];
        if (p->kind != NNTI_PARAM_TRAINED) continue;
        if (which == NNTI_NORM_WEIGHT) r = nnti_inspect_norm(s, net->memory + p->offset, NULL, p->count, &row->weight);
        else if (which == NNTI_NORM_GRADIENT) r = nnti_inspect_norm(s, grads + p->offset, NULL, p->count, &row->gradient);
        else r = nnti_inspect_norm(s, net->memory + p->offset, kept + p->offset, p->count, &row->update);
    }
    return r;
}
/* What the next update would do, and back again. */
static nnt_result nnti_inspect_update(nnti_inspector *s, const nnt_run *run)
{
    nnt_net *net = s->net;
    const nnti_open_device *on = net->on;
    const nnti_program *p = &net->plan.train;
    size_t bytes = net->plan.memory.fixed;
    int64_t updates = net->updates;
    float *kept = (float *)nnti_alloc(&net->a, bytes);
    nnt_result r, back;
    if (!kept) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "health: out of memory; needs %B", bytes);
    r = on->backend->download(on->device, kept, net->memory, bytes);
    if (r) {
        nnti_free(&net->a, kept, bytes);
        return nnti_device_failed(net, on, r, "health");
    }
    net->pending_weight = net->last_loss.weight;
    r = nnti_apply_update(net, "health");
    if (r == NNT_ERR_NOT_FINITE) {          /* each gradient was finite */
        nnti_text t = nnti_inspect_begin(s);
        nnti_put_string(&t, "the sum of the squares of all gradients (grad_norm)");
        r = nnti_inspect_found(s, &t, "health");
    }
    if (!r) r = nnti_run_ops(net, p, p->count - p->update_ops, p->count, run, "health");
    if (!r) r = nnti_inspect_params(s, "after the update", "health");
    if (!r) r = nnti_inspect_norms(s, NNTI_NORM_UPDATE, kept);
    back = on->backend->upload(on->device, net->memory, kept, bytes);
    net->updates = updates;
    net->pending = 0;
    net->pending_weight = 0;
    nnti_free(&net->a, kept, bytes);
    return back ? nnti_device_failed(net, on, back, "health") : r;
}
/* Sums become roots and shares; rows without anything are left out. */
static int nnti_inspect_end(nnti_inspector *s, nnt_layer_health *rows, int cap)
{
    nnt_net *net = s->net;
    char name[NNTI_NAME_TEXT];
    int i, count = 0;
    for (i = 0; i < net->node_count; i++) {
        nnt_layer_health r = s->row[i];
        if (!(s->values[i] > 0) && !(r.weight > 0)) continue;
        nnti_format(r.layer, sizeof r.layer, "%s", nnti_node_name(&net->nodes[i], name));
        nnti_format(r.kind, sizeof r.kind, "%s", nnti_node_kind_name(&net->nodes[i]));
        if (s->values[i] > 0) {
            r.output = sqrt(s->squares[i] / s->values[i]);
            r.zeros /= s->values[i];
            r.dead /= s->channels[i];
        }
        r.update = r.weight > 0 ? sqrt(r.update / r.weight) : 0;
        r.weight = sqrt(r.weight);
        r.gradient = sqrt(r.gradient) * nnti_gradient_scale(net);
        if (count++ < cap && rows) rows[count - 1] = r;
    }
    return count;
}
static nnt_result nnti_health(nnt_net *net, const nnt_batch *batch, nnt_layer_health *rows, int cap, int *count)
{
    nnti_inspector s;
    nnt_run run;
    nnt_result r = nnti_ready_for_gradients(net, batch, "health");
    if (r) return r;
    if (!nnti_inspector_init(&s, net, 1)) r = nnti_set_error(&net->error, NNT_ERR_MEMORY, "health: out of memory");
    net->inspector = &s;
    if (!r) r = nnti_inspect_params(&s, "before the step", "health");
    if (!r) r = nnti_inspect_norms(&s, NNTI_NORM_WEIGHT, NULL);
    if (!r) r = nnti_forward_backward(net, batch, "health", &run);
    if (!r) r = nnti_inspect_norms(&s, NNTI_NORM_GRADIENT, NULL);
    if (!r) r = nnti_inspect_update(&s, &run);
    if (!r) r = nnti_scale_gradients(net, "health");
    net->inspector = NULL;
    if (s.channels) *count = nnti_inspect_end(&s, rows, cap);
    nnti_inspector_free(&s);
    return r;
}
NNT_API nnt_result nnt_health(nnt_net *net, const nnt_batch *batch, nnt_layer_health *rows, int cap, int *count)
{
    struct nnti_recorder *recording;
    int own;
    nnt_result r;
    if (!count) count = &own;
    *count = 0;
    if (!net) return NNT_ERR_ARGUMENT;
    recording = net->recording;             /* a profile is about steps, not about this */
    net->recording = NULL;
    r = nnti_health(net, batch, rows, cap, count);
    net->recording = recording;
    return r;
}

NNT_API nnt_loss nnt_last_loss(const nnt_net *net)
{
    nnt_loss none;
    memset(&none, 0, sizeof none);
    return net ? net->last_loss : none;
}
NNT_API int64_t nnt_steps(const nnt_net *net) { return net ? net->steps : 0; }
NNT_API nnt_result nnt_set_learning_rate(nnt_net *net, float lr)
{
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_ready_to_train(net, "nnt_set_learning_rate");
    if (r) return r;
    if (!nnti_finite(lr) || lr < 0) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "nnt_set_learning_rate: %g; it must be finite and not negative", (double)lr);
    net->desc.optimizer.lr = lr;
    return NNT_OK;
}

/* Evaluation form of `count` samples; with_loss: labels or targets are there and the loss is taken. */
static nnt_result nnti_evaluate_samples(nnt_net *net, const nnt_batch *b, int first, int count, int with_loss, const char *where)
{
    const nnti_program *p = &net->plan.predict;
    nnt_run run;
    nnt_result r;
    memset(&run, 0, sizeof run);
    run.count = count;
    if (with_loss) r = nnti_put_batch(net, 1, b, first, count, where);
    else r = nnti_upload(net, 1, net->plan.x[1], b->x + nnti_node_volume(net, net->input) * first, (size_t)(nnti_node_volume(net, net->input) * count) * sizeof(float), where);
    return r ? r : nnti_run_ops(net, p, 0, with_loss || p->loss_op < 0 ? p->count : p->loss_op, &run, where);
}
static nnt_result nnti_get_output(nnt_net *net, float *y, int count, const char *where)
{
    return nnti_download(net, 1, y, nnti_value_address(net, 1, net->plan.output), (size_t)(nnti_node_volume(net, net->output_node) * count) * sizeof(float), where);
}

NNT_API nnt_result nnt_predict(nnt_net *net, const float *x, int64_t count, float *y)
{
    int64_t i, in, out;
    double start;
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_ready(net, "predict");
    if (r) return r;
    if (!x || !y) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "predict: %s is NULL", x ? "y" : "x");
    if (count < 0) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "predict: %I samples; it can't be negative", count);
    in = nnti_node_volume(net, net->input);
    out = nnti_node_volume(net, net->output_node);
    start = nnti_clock(net);
    for (i = 0; i < count && !r; i += net->desc.batch) {
        nnt_batch b;
        memset(&b, 0, sizeof b);
        b.x = x + i * in;
        b.count = (int)nnti_min64(net->desc.batch, count - i);
        r = nnti_evaluate_samples(net, &b, 0, b.count, 0, "predict");
        if (!r) r = nnti_get_output(net, y + i * out, b.count, "predict");
    }
    nnti_clocked(net, nnti_row(1, NNTI_PART_WHOLE), start, (double)count);
    return r;
}

/* The error of a loader or of its data set becomes the net's. */
static nnt_result nnti_loader_failed(nnt_net *net, const nnt_loader *loader, const char *where)
{
    nnt_result r = nnt_loader_error_code(loader);
    return nnti_set_error(&net->error, r ? r : NNT_ERR_ARGUMENT, "%s: %s", where, nnt_loader_error(loader));
}

#ifndef NNT_NO_STDIO
/* ============================================================================
   >>weights    Nets as files: nnt_save, nnt_load
   Lists the arrays in a net's memory under the names that files have for them; >>safetensors reads and writes them.
   ============================================================================ */

/* Arrays that hold something for each parameter: base is where they begin in the net's memory, in floats. */
typedef struct nnti_family { const char *prefix; size_t base; } nnti_family;
enum { NNTI_FAMILIES = 4 };

/* Weights, or all that a snapshot has: names as torch.optim's. Only weights are there for running statistics too. */
static int nnti_families(const nnt_net *net, int snapshot, int pending, nnti_family f[NNTI_FAMILIES])
{
    static const char *const moment[3][2] = { { NULL, NULL }, { "nntrain.momentum_buffer.", NULL }, { "nntrain.exp_avg.", "nntrain.exp_avg_sq." } };
    const nnt_memory *m = &net->plan.memory;
    size_t grads = m->params / sizeof(float), moments = grads + m->grads / sizeof(float);
    int count = nnti_moments(&net->desc.optimizer), n = 0, i;
    f[n].prefix = "";
    f[n++].base = 0;
    if (!snapshot) return n;
    for (i = 0; i < count; i++) {
        f[n].prefix = moment[count][i];
        f[n++].base = moments + (size_t)i * net->plan.trained_floats;
    }
    if (pending) {
        f[n].prefix = "nntrain.grad.";
        f[n++].base = grads;
    }
    return n;
}

typedef struct nnti_arrays {
    nnti_file_tensor *t;
    int    count, cap;
    char  *names;                           /* one behind the other */
    size_t names_bytes;
} nnti_arrays;

static void nnti_arrays_free(const nnt_allocator *a, nnti_arrays *x)
{
    nnti_free(a, x->t, (size_t)x->cap * sizeof *x->t);
    nnti_free(a, x->names, x->names_bytes);
}
/* Whether parameters of this name are in a family. */
static int nnti_in_family(const nnti_param *p, int family)
{
    return p->kind == NNTI_PARAM_TRAINED || (p->kind == NNTI_PARAM_RUNNING && family == 0);
}
static int nnti_starts_with(const char *s, const char *start) { return !start || strncmp(s, start, strlen(start)) == 0; }

/* Lists the families' arrays behind `extra` empty places. of: names to take and how the file changes them. To be freed in
   either case. */
static nnt_result nnti_list_arrays(nnt_net *net, const char *where, const nnti_family *f, int families, int extra,
                                   const nnt_load_desc *of, nnti_arrays *x)
{
    size_t cut = of->prefix ? strlen(of->prefix) : 0;
    const char *put = of->file_prefix ? of->file_prefix : "";
    char *to;
    int i, k;
    memset(x, 0, sizeof *x);
    x->cap = extra;
    for (k = 0; k < families; k++)
        for (i = 0; i < net->param_count; i++)
            if (nnti_in_family(&net->params[i], k)) {
                x->cap++;
                x->names_bytes += strlen(f[k].prefix) + strlen(put) + strlen(net->params[i].name) + 1;
            }
    x->t = (nnti_file_tensor *)nnti_zalloc(&net->a, (size_t)x->cap, sizeof *x->t);
    x->names = to = (char *)nnti_alloc(&net->a, x->names_bytes);
    if (!x->t || !x->names) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "%s: out of memory", where);
    x->count = extra;
    for (k = 0; k < families; k++)
        for (i = 0; i < net->param_count; i++) {
            const nnti_param *p = &net->params[i];
            nnti_file_tensor *t = &x->t[x->count];
            if (!nnti_in_family(p, k) || !nnti_starts_with(p->name, of->prefix)
                || (of->exclude && nnti_starts_with(p->name, of->exclude))) continue;
            t->name = to;
            to += nnti_format(to, x->names_bytes - (size_t)(to - x->names), "%s%s%s", f[k].prefix, put, p->name + cut) + 1;
            t->rank = p->rank;
            memcpy(t->size, p->size, sizeof p->size);
            t->at = f[k].base + p->offset;
            x->count++;
        }
    return NNT_OK;
}

static nnt_result nnti_net_get(void *user, const nnti_file_tensor *t, int64_t first, int64_t count, void *to)
{
    nnt_net *net = (nnt_net *)user;
    nnt_result r = net->on->backend->download(net->on->device, to, net->memory + t->at + first, (size_t)count * sizeof(float));
    return r ? nnti_device_failed(net, net->on, r, "save") : NNT_OK;
}
static nnt_result nnti_write_arrays(nnt_net *net, const char *path, const nnti_arrays *x, int keep)
{
    nnti_file_calls calls = net->file_calls ? *net->file_calls : nnti_file_calls_default();
    size_t pairs = (size_t)net->metadata_count + 2;
    nnti_file_pair *pair = (nnti_file_pair *)nnti_zalloc(&net->a, pairs, sizeof *pair);
    nnti_st_content c;
    char version[32];
    nnt_result r;
    int i;
    if (!pair) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "save '%s': out of memory", path);
    nnti_format(version, sizeof version, "%d.%d.%d", NNT_VERSION_MAJOR, NNT_VERSION_MINOR, NNT_VERSION_PATCH);
    pair[0].key = "format";                 /* shapes and order are PyTorch's */
    pair[0].value = "pt";
    pair[1].key = "nntrain.version";
    pair[1].value = version;
    for (i = 0; i < net->metadata_count; i++) {
        pair[2 + i].key = net->metadata[i].key;
        pair[2 + i].value = net->metadata[i].value;
    }
    memset(&c, 0, sizeof c);
    c.t = x->t;
    c.count = x->count;
    c.metadata = pair;
    c.pairs = (int)pairs;
    c.get_fn = nnti_net_get;
    c.user = net;
    c.keep = keep;
    r = nnti_st_write(&calls, &net->a, path, &c, &net->error);
    nnti_free(&net->a, pair, pairs * sizeof *pair);
    return r;
}
/* values: all arrays of x from `first` on, one behind the other. */
static nnt_result nnti_upload_arrays(nnt_net *net, const nnti_arrays *x, int first, const float *values, const char *where)
{
    int i;
    for (i = first; i < x->count; i++) {
        size_t n = (size_t)nnti_file_tensor_count(&x->t[i]);
        nnt_result r = net->on->backend->upload(net->on->device, net->memory + x->t[i].at, values, n * sizeof *values);
        if (r) return nnti_device_failed(net, net->on, r, where);
        values += n;
    }
    return NNT_OK;
}
/* The file's texts become the net's. */
static nnt_result nnti_take_metadata(nnt_net *net, const nnti_st *f)
{
    nnti_file_pair pair;
    size_t at = 0;
    while (nnti_st_next_pair(f, &at, &pair))
        if (!nnti_is_own_key(pair.key) && *pair.key && !nnti_put_metadata(net, pair.key, pair.value)) return nnti_st_memory(f, strlen(pair.value));
    return NNT_OK;
}
static nnt_result nnti_check_file_call(nnt_net *net, const char *path, const char *verb)
{
    nnti_clear_error(&net->error);
    if (!path) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "%s: path is NULL", verb);
    if (!net->compiled) return nnti_set_error(&net->error, NNT_ERR_STATE, "%s '%s': the net has no weights yet; call nnt_compile first", verb, path);
    return NNT_OK;
}

NNT_API nnt_result nnt_save(nnt_net *net, const char *path)
{
    nnti_family f[NNTI_FAMILIES];
    nnt_load_desc all;
    nnti_arrays x;
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_check_file_call(net, path, "save");
    if (r) return r;
    memset(&all, 0, sizeof all);
    r = nnti_list_arrays(net, "save", f, nnti_families(net, 0, 0, f), 0, &all, &x);
    if (!r) r = nnti_write_arrays(net, path, &x, 1);
    nnti_arrays_free(&net->a, &x);
    return r;
}

/* ---- loading */

/* Takes arrays that the file lacks out of the list. */
static nnt_result nnti_drop_missing(const nnti_st *f, nnti_arrays *x, nnti_text *report)
{
    char name[NNTI_ST_NAME_TEXT];
    int i, kept = 0;
    for (i = 0; i < x->count; i++) {
        if (nnti_st_find(f, x->t[i].name)) x->t[kept++] = x->t[i];
        else nnti_put(report, "not in the file: '%s'\n", nnti_st_name_text(name, x->t[i].name, strlen(x->t[i].name)));
    }
    if (!kept && x->count)
        return nnti_st_fail(f, NNT_ERR_SHAPE, "it has none of the %d parameters, not even '%s'; names or prefixes differ",
                            x->count, nnti_st_name_text(name, x->t[0].name, strlen(x->t[0].name)));
    x->count = kept;
    return NNT_OK;
}
/* Whether a tensor of the file that no parameter asked for is no mistake: numbers of a snapshot, whole numbers, what
   stands under another prefix, and what d->exclude asked to leave. */
static int nnti_may_be_extra(const nnti_st_entry *x, const nnt_load_desc *d)
{
    size_t put = d->file_prefix ? strlen(d->file_prefix) : 0, cut = d->prefix ? strlen(d->prefix) : 0;
    const char *own = "nntrain.";
    if (x->name_length >= strlen(own) && memcmp(x->name, own, strlen(own)) == 0) return 1;
    if (x->kind >= NNTI_ST_READABLE) return 1;
    if (x->name_length < put || memcmp(x->name, d->file_prefix ? d->file_prefix : "", put) != 0) return 1;
    if (!d->exclude || strlen(d->exclude) < cut) return 0;
    return x->name_length - put >= strlen(d->exclude) - cut && memcmp(x->name + put, d->exclude + cut, strlen(d->exclude) - cut) == 0;
}
/* Tensors of the file that are not in x. */
static nnt_result nnti_check_extra(const nnti_st *f, const nnti_arrays *x, const nnt_load_desc *d, nnti_text *report)
{
    char name[NNTI_ST_NAME_TEXT], shape[NNTI_ST_SHAPE_TEXT];
    size_t i;
    int k;
    for (k = 0; k < x->count; k++) {
        const nnti_st_entry *e = nnti_st_find(f, x->t[k].name);
        if (e) f->entries[e - f->entries].used = 1;
    }
    for (i = 0; i < f->count; i++) {
        const nnti_st_entry *e = &f->entries[i];
        if (e->used) continue;
        nnti_st_name_text(name, e->name, e->name_length);
        nnti_put(report, "passed over: '%s' (%s %s)\n", name, nnti_st_dtypes[e->kind].name, nnti_st_sizes_text(shape, e->rank, e->size));
        if (d->strict && !nnti_may_be_extra(e, d))
            return nnti_st_fail(f, NNT_ERR_SHAPE, "'%s' (%s) is in the file and not in the net, and strict was asked for", name, shape);
    }
    return NNT_OK;
}
NNT_API nnt_result nnt_load_ex(nnt_net *net, const char *path, nnt_load_desc d)
{
    nnti_family family[NNTI_FAMILIES];
    nnti_text report = nnti_text_begin(d.report, d.report ? d.report_cap : 0);
    nnti_st_file f;
    nnti_arrays x;
    float *values = NULL;
    size_t bytes = 0;
    int all;
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_check_file_call(net, path, "load");
    if (r) return r;
    r = nnti_list_arrays(net, "load", family, nnti_families(net, 0, 0, family), 0, &d, &x);
    all = x.count;
    if (!r && !all) r = nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "load '%s': no parameter is left to load; prefix is '%s', exclude '%s'", path, d.prefix ? d.prefix : "", d.exclude ? d.exclude : "");
    if (!r) {
        r = nnti_st_file_open(&f, &net->a, "load", path, &net->error);
        if (!r && d.allow_missing) r = nnti_drop_missing(&f.st, &x, &report);
        if (!r) r = nnti_st_fetch(&f.st, x.t, x.count, &values, &bytes);
        if (!r) r = nnti_check_extra(&f.st, &x, &d, &report);
        if (!r) r = nnti_take_metadata(net, &f.st);
        if (!r) r = nnti_upload_arrays(net, &x, 0, values, "load");     /* the file is all right: only the device can fail */
        nnti_st_file_close(&f);
    }
    if (!r) nnti_put(&report, "%d of %d parameters loaded\n", x.count, all);
    nnti_text_end(&report);
    nnti_free(&net->a, values, bytes);
    nnti_arrays_free(&net->a, &x);
    return r;
}
NNT_API nnt_result nnt_load(nnt_net *net, const char *path)
{
    nnt_load_desc all;
    memset(&all, 0, sizeof all);
    return nnt_load_ex(net, path, all);
}

/* ============================================================================
   >>snapshot    A run as a file: nnt_snapshot, nnt_resume
   The weights' file of >>weights with more arrays: a moment or two and, while batches are accumulated, a gradient for
   each parameter, and three arrays of numbers. docs/files.md lists them.
   ============================================================================ */

/* "nntrain.counts" is this as I64, "nntrain.values" the next one as F64. Members are added at the end only, 0 in older
   files. */
typedef struct nnti_snapshot_counts {
    int64_t seed, steps, updates, pending;
    int64_t moments;                        /* of the optimizer */
    int64_t has_loader, loader_seed, loader_epoch, loader_batch, loader_batches, loader_rows;
    int64_t fit_epoch, fit_batch, fit_best_epoch;
    int64_t has_validation, validation_seed, validation_epoch;
} nnti_snapshot_counts;
typedef struct nnti_snapshot_values {
    double pending_weight, last_finite, lr, compiled_lr;
    double sum, weight, correct, correct5, counted;             /* nnt_loss of the epoch so far */
    double samples, seconds, epoch_seconds, wait_seconds, best, step_lr;
} nnti_snapshot_values;
enum {
    NNTI_SNAPSHOT_COUNTS = (int)(sizeof(nnti_snapshot_counts) / sizeof(int64_t)),
    NNTI_SNAPSHOT_VALUES = (int)(sizeof(nnti_snapshot_values) / sizeof(double)),
    NNTI_HISTORY_COLUMNS = 18,
    NNTI_SNAPSHOT_EXTRA = 3                 /* these two and the history */
};
#define NNTI_COUNT_MAX ((int64_t)1 << 53)

static void nnti_history_to_row(const nnt_progress_info *p, double *x)
{
    x[0] = p->epoch;  x[1] = p->epochs;  x[2] = (double)p->batch;  x[3] = (double)p->batches;  x[4] = (double)p->step;
    x[5] = (double)p->lr;  x[6] = p->loss;  x[7] = p->loss_mean;  x[8] = p->accuracy;
    x[9] = p->has_validation;  x[10] = p->validation.loss;  x[11] = p->validation.accuracy;  x[12] = p->validation.top5;
    x[13] = (double)p->validation.samples;
    x[14] = p->seconds;  x[15] = p->seconds_left;  x[16] = p->wait_seconds;  x[17] = p->samples_per_second;
}
static int64_t nnti_to_count(double v) { return v > 0 && v < (double)NNTI_COUNT_MAX ? (int64_t)v : 0; }
static void nnti_history_from_row(const double *x, nnt_progress_info *p)
{
    memset(p, 0, sizeof *p);
    p->event = NNT_EVENT_EPOCH;
    p->epoch = (int)nnti_min64(nnti_to_count(x[0]), INT_MAX);
    p->epochs = (int)nnti_min64(nnti_to_count(x[1]), INT_MAX);
    p->batch = nnti_to_count(x[2]);
    p->batches = nnti_to_count(x[3]);
    p->step = nnti_to_count(x[4]);
    p->lr = (float)x[5];
    p->loss = x[6];
    p->loss_mean = x[7];
    p->accuracy = x[8];
    p->has_validation = x[9] != 0;
    p->validation.loss = x[10];
    p->validation.accuracy = x[11];
    p->validation.top5 = x[12];
    p->validation.samples = nnti_to_count(x[13]);
    p->seconds = x[14];
    p->seconds_left = x[15];
    p->wait_seconds = x[16];
    p->samples_per_second = x[17];
}
static void nnti_snapshot_take(const nnt_net *net, const nnt_loader *loader, nnti_snapshot_counts *c, nnti_snapshot_values *v)
{
    const nnti_fit_state *fit = &net->fit;
    double now = nnti_seconds();
    memset(c, 0, sizeof *c);
    memset(v, 0, sizeof *v);
    c->seed = (int64_t)net->desc.seed;
    c->steps = net->steps;
    c->updates = net->updates;
    c->pending = net->pending;
    c->moments = nnti_moments(&net->desc.optimizer);
    if (loader) {
        c->has_loader = 1;
        c->loader_seed = (int64_t)loader->desc.seed;
        c->loader_epoch = loader->epoch;
        c->loader_batch = loader->batch;
        c->loader_batches = loader->batches;
        c->loader_rows = loader->desc.batch;
    }
    v->pending_weight = net->pending_weight;
    v->last_finite = net->last_finite;
    v->lr = (double)net->desc.optimizer.lr;
    v->compiled_lr = (double)net->compiled_lr;
    c->fit_best_epoch = -1;
    if (!net->fitting) return;
    c->fit_epoch = fit->epoch;
    c->fit_batch = fit->batch;
    c->fit_best_epoch = fit->best_epoch;
    if (fit->validation) {
        c->has_validation = 1;
        c->validation_seed = (int64_t)fit->validation->desc.seed;
        c->validation_epoch = fit->validation->epoch;
    }
    v->sum = fit->sum.sum;
    v->weight = fit->sum.weight;
    v->correct = fit->sum.correct;
    v->correct5 = fit->sum.correct5;
    v->counted = fit->sum.samples;
    v->samples = fit->samples;
    v->seconds = now - fit->start;
    v->epoch_seconds = now - fit->epoch_start;
    v->wait_seconds = nnt_loader_wait_seconds(loader) - fit->waited;
    v->best = fit->best;
    v->step_lr = (double)fit->lr;
}
static void nnti_set_array(nnti_file_tensor *t, const char *name, int kind, int rank, int64_t rows, int64_t columns, void *data)
{
    t->name = name;
    t->kind = kind;
    t->rank = rank;
    t->size[0] = rows;
    t->size[1] = columns;
    t->data = data;
}
static nnt_result nnti_write_snapshot(nnt_net *net, const nnt_loader *loader, const char *path, int keep)
{
    nnti_family f[NNTI_FAMILIES];
    nnti_snapshot_counts counts;
    nnti_snapshot_values values;
    nnt_load_desc all;
    nnti_arrays x;
    int64_t epochs = net->fitting ? net->history_count : 0;
    size_t bytes = (size_t)epochs * NNTI_HISTORY_COLUMNS * sizeof(double);
    double *history = (double *)nnti_alloc(&net->a, bytes);
    nnt_result r;
    int i;
    memset(&all, 0, sizeof all);
    nnti_snapshot_take(net, loader, &counts, &values);
    r = nnti_list_arrays(net, "save", f, nnti_families(net, 1, net->pending, f), NNTI_SNAPSHOT_EXTRA, &all, &x);
    if (!r && !history) r = nnti_set_error(&net->error, NNT_ERR_MEMORY, "save '%s': out of memory", path);
    if (!r) {
        nnti_set_array(&x.t[0], "nntrain.counts", NNTI_ST_I64, 1, NNTI_SNAPSHOT_COUNTS, 0, &counts);
        nnti_set_array(&x.t[1], "nntrain.values", NNTI_ST_F64, 1, NNTI_SNAPSHOT_VALUES, 0, &values);
        nnti_set_array(&x.t[2], "nntrain.history", NNTI_ST_F64, 2, epochs, NNTI_HISTORY_COLUMNS, history);
        for (i = 0; i < (int)epochs; i++) nnti_history_to_row(&net->history[i], history + i * NNTI_HISTORY_COLUMNS);
        r = nnti_write_arrays(net, path, &x, keep);
    }
    nnti_arrays_free(&net->a, &x);
    nnti_free(&net->a, history, bytes);
    return r;
}

NNT_API nnt_result nnt_snapshot(nnt_net *net, nnt_loader *loader, const char *path)
{
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_check_file_call(net, path, "save");
    if (r) return r;
    if (loader && loader->broken) return nnti_loader_failed(net, loader, "snapshot");
    return nnti_write_snapshot(net, loader, path, 1);
}

/* ---- going on */

static nnt_result nnti_check_counts(const nnt_net *net, const nnt_loader *loader, const nnti_st *f, const nnti_snapshot_counts *c, const nnti_snapshot_values *v)
{
    nnti_snapshot_counts small = *c;
    int64_t list[NNTI_SNAPSHOT_COUNTS];
    double value[NNTI_SNAPSHOT_VALUES];
    int i, moments = nnti_moments(&net->desc.optimizer);
    small.seed = small.loader_seed = small.validation_seed = 0;     /* any number */
    small.fit_best_epoch++;                 /* may be -1 */
    memcpy(list, &small, sizeof list);
    memcpy(value, v, sizeof value);
    for (i = 0; i < NNTI_SNAPSHOT_COUNTS; i++)
        if (list[i] < 0 || list[i] > NNTI_COUNT_MAX) return nnti_st_fail(f, NNT_ERR_FORMAT, "its count %d is %I, which is no count", i, list[i]);
    for (i = 0; i < NNTI_SNAPSHOT_VALUES; i++)
        if (!nnti_finite_double(value[i])) return nnti_st_fail(f, NNT_ERR_FORMAT, "its value %d is not finite", i);
    if (c->fit_best_epoch > c->fit_epoch || c->fit_epoch >= INT_MAX || c->pending >= INT_MAX
        || c->loader_epoch >= (int64_t)1 << 48 || c->validation_epoch >= (int64_t)1 << 48
        || c->loader_batch > c->loader_batches || !nnti_finite((float)v->lr) || v->lr < 0)
        return nnti_st_fail(f, NNT_ERR_FORMAT, "its counts contradict each other");
    if (c->moments != moments)
        return nnti_st_fail(f, NNT_ERR_STATE, "its optimizer has %I values for each weight, as %s, and this net's has %d; compile with the same optimizer, or take the weights only (nnt_load)",
                            c->moments, c->moments == 2 ? "adam" : c->moments == 1 ? "sgd with momentum" : "sgd without momentum", moments);
    if (c->pending && c->pending >= nnti_accumulates(net))
        return nnti_st_fail(f, NNT_ERR_STATE, "%I batches wait for their update; this net is compiled to accumulate %d; compile with the same number", c->pending, nnti_accumulates(net));
    if (loader && c->has_loader && c->loader_batch > 0 && (c->loader_batches != loader->batches || c->loader_rows != loader->desc.batch))
        return nnti_st_fail(f, NNT_ERR_STATE, "it stands at batch %I of %I batches of %I samples; this loader has %I of %d; give it the same data and batch",
                            c->loader_batch, c->loader_batches, c->loader_rows, loader->batches, loader->desc.batch);
    return NNT_OK;
}
/* Room for the rows of a history, still empty. */
static nnt_result nnti_read_history(const nnti_st *f, nnt_progress_info **to, size_t *count)
{
    const nnti_st_entry *x = nnti_st_find(f, "nntrain.history");
    int64_t size[2];
    double *rows = NULL;
    size_t values = 0, i;
    nnt_result r = NNT_OK;
    *to = NULL;
    *count = 0;
    if (!x || x->rank != 2 || x->size[1] != NNTI_HISTORY_COLUMNS || x->size[0] < 1 || x->size[0] > INT_MAX) return NNT_OK;      /* only for people */
    values = (size_t)x->count;
    rows = (double *)nnti_zalloc(f->a, values, sizeof *rows);
    *to = (nnt_progress_info *)nnti_zalloc(f->a, (size_t)x->size[0], sizeof **to);
    if (!rows || !*to) r = nnti_st_memory(f, values * sizeof *rows);
    if (!r) r = nnti_st_read_array(f, "nntrain.history", NNTI_ST_F64, 2, size, rows, values);
    *count = (size_t)x->size[0];
    for (i = 0; i < *count && !r; i++) nnti_history_from_row(rows + i * NNTI_HISTORY_COLUMNS, *to + i);
    nnti_free(f->a, rows, values * sizeof *rows);
    if (!r) return NNT_OK;
    nnti_free(f->a, *to, *count * sizeof **to);
    *to = NULL;
    *count = 0;
    return r;
}
static void nnti_snapshot_give(nnt_net *net, nnt_loader *loader, const nnti_snapshot_counts *c, const nnti_snapshot_values *v)
{
    nnti_fit_state *fit = &net->fit;
    double now = nnti_seconds();
    net->desc.seed = (uint64_t)c->seed;
    net->steps = c->steps;
    net->updates = c->updates;
    net->pending = (int)c->pending;
    net->pending_weight = v->pending_weight;
    net->last_finite = v->last_finite;
    if ((double)net->compiled_lr == v->compiled_lr) net->desc.optimizer.lr = (float)v->lr;
    if (loader && c->has_loader)
        nnti_loader_move(loader, (uint64_t)c->loader_seed, c->loader_epoch, c->loader_batch);
    memset(fit, 0, sizeof *fit);
    fit->resumed = 1;
    fit->epoch = c->fit_epoch;
    fit->batch = c->fit_batch;
    fit->validated = c->has_validation != 0;
    fit->validation_seed = (uint64_t)c->validation_seed;
    fit->validation_epoch = c->validation_epoch;
    fit->best_epoch = c->fit_best_epoch;
    fit->best = v->best;
    fit->lr = (float)v->step_lr;
    fit->sum.sum = v->sum;
    fit->sum.weight = v->weight;
    fit->sum.correct = v->correct;
    fit->sum.correct5 = v->correct5;
    fit->sum.samples = v->counted;
    fit->samples = v->samples;
    fit->start = now - v->seconds;
    fit->epoch_start = now - v->epoch_seconds;
    fit->waited = nnt_loader_wait_seconds(loader) - v->wait_seconds;
}
static nnt_result nnti_resume_from(nnt_net *net, nnt_loader *loader, const nnti_st *f)
{
    nnti_family family[NNTI_FAMILIES];
    nnti_snapshot_counts c;
    nnti_snapshot_values v;
    nnt_load_desc all;
    nnti_arrays x;
    nnt_progress_info *history = NULL;
    float *values = NULL;
    size_t bytes = 0, epochs = 0;
    int64_t size;
    nnt_result r;
    memset(&c, 0, sizeof c);
    memset(&v, 0, sizeof v);
    memset(&all, 0, sizeof all);
    r = nnti_st_read_array(f, "nntrain.counts", NNTI_ST_I64, 1, &size, &c, NNTI_SNAPSHOT_COUNTS);
    if (r) return r;
    if (!size) return nnti_st_fail(f, NNT_ERR_FORMAT, "it has no state of a run; it is a file of weights (nnt_load)");
    r = nnti_st_read_array(f, "nntrain.values", NNTI_ST_F64, 1, &size, &v, NNTI_SNAPSHOT_VALUES);
    if (!r) r = nnti_check_counts(net, loader, f, &c, &v);
    if (r) return r;
    r = nnti_list_arrays(net, "resume", family, nnti_families(net, 1, c.pending > 0, family), 0, &all, &x);
    if (!r) r = nnti_st_fetch(f, x.t, x.count, &values, &bytes);
    if (!r) r = nnti_read_history(f, &history, &epochs);
    if (!r) r = nnti_take_metadata(net, f);
    if (!r) r = nnti_upload_arrays(net, &x, 0, values, "resume");       /* the file is all right: only the device can fail */
    if (!r) {
        nnti_snapshot_give(net, loader, &c, &v);
        nnti_free(&net->a, net->history, net->history_cap * sizeof *net->history);
        net->history = history;
        net->history_cap = epochs;
        net->history_count = (int)epochs;
        history = NULL;
    }
    nnti_free(&net->a, history, epochs * sizeof *history);
    nnti_free(&net->a, values, bytes);
    nnti_arrays_free(&net->a, &x);
    return r;
}
/* *found: whether there was a file; without one NNT_ERR_FILE. */
static nnt_result nnti_resume(nnt_net *net, nnt_loader *loader, const char *path, int *found)
{
    size_t cap = strlen(path) + NNTI_TEMPORARY_SUFFIX;
    char *older;
    nnti_handle h;
    int64_t length;
    nnti_st_file f;
    nnt_result r;
    int code = nnti_file_open(path, &h, &length);
    *found = !nnti_is_missing(code);
    if (!code) (void)nnti_file_close(NULL, h);
    older = (char *)nnti_alloc(&net->a, cap);
    if (!older) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "resume '%s': out of memory", path);
    nnti_format(older, cap, *found ? "%s" : "%s.1", path);
    r = nnti_st_file_open(&f, &net->a, "resume", older, &net->error);
    if (f.h != -1) *found = 1;
    else if (!*found) nnti_set_error(&net->error, r, "resume '%s': can't be opened: no such file or folder", path);
    if (!r) r = nnti_resume_from(net, loader, &f.st);
    nnti_st_file_close(&f);
    nnti_free(&net->a, older, cap);
    return r;
}
NNT_API nnt_result nnt_resume(nnt_net *net, nnt_loader *loader, const char *path)
{
    nnt_result r;
    int found;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_check_file_call(net, path, "resume");
    if (!r) r = nnti_ready_to_train(net, "resume");
    if (r) return r;
    if (net->fitting) return nnti_set_error(&net->error, NNT_ERR_STATE, "resume: called from a callback of an nnt_fit of the same net");
    if (loader && loader->broken) return nnti_loader_failed(net, loader, "resume");
    return nnti_resume(net, loader, path, &found);
}
#endif /* NNT_NO_STDIO */

/* ============================================================================
   >>fit    Whole runs: evaluation, epochs, progress
   ============================================================================ */

static nnt_result nnti_check_loader(nnt_net *net, nnt_loader *loader, const char *where)
{
    int shape[3];
    char a[NNTI_SHAPE_TEXT], b[NNTI_SHAPE_TEXT];
    const nnti_node *in = &net->nodes[net->input];
    if (nnt_loader_error_code(loader)) return nnti_loader_failed(net, loader, where);
    if (nnt_dataset_shape(nnt_loader_dataset(loader), shape)) return nnti_loader_failed(net, loader, where);
    if (memcmp(shape, in->shape, sizeof shape) != 0)
        return nnti_set_error(&net->error, NNT_ERR_SHAPE, "%s: samples of the data set are %s; the net's input is %s", where, nnti_shape_text(a, shape), nnti_shape_text(b, in->shape));
    return NNT_OK;
}
static int nnti_largest(const float *x, int count)
{
    int i, best = 0;
    for (i = 1; i < count; i++) if (x[i] > x[best]) best = i;
    return best;
}
/* Adds a batch's samples to the confusion matrix. logits: room for one compiled batch. */
static nnt_result nnti_count_confusion(nnt_net *net, const nnt_batch *b, int first, int count, float *logits, nnt_metrics *m)
{
    const nnt_op *loss = &net->nodes[net->loss_node].geometry;
    int classes = net->nodes[net->output_node].shape[0], i;
    nnt_result r = nnti_get_output(net, logits, count, "evaluate");
    for (i = 0; i < count && !r; i++) {
        int label = b->labels[first + i];
        if (loss->use_ignore && label == loss->ignore_label) continue;
        m->confusion[(int64_t)label * classes + nnti_largest(logits + (int64_t)i * classes, classes)]++;
    }
    return r;
}

NNT_API nnt_result nnt_evaluate(nnt_net *net, nnt_loader *loader, nnt_metrics *out)
{
    nnt_loss sum, part;
    nnt_batch b;
    float *logits = NULL;
    size_t logits_bytes = 0;
    double start;
    nnt_result r;
    int first;
    if (!net) return NNT_ERR_ARGUMENT;
    r = nnti_ready(net, "evaluate");
    if (r) return r;
    if (!out) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "evaluate: out is NULL");
    if (net->loss_node < 0) return nnti_set_error(&net->error, NNT_ERR_STATE, "evaluate: the net was compiled without a loss");
    r = nnti_check_loader(net, loader, "evaluate");
    if (r) return r;
    if (out->confusion) {
        int classes = net->nodes[net->output_node].shape[0];
        if (net->nodes[net->loss_node].kind != NNTI_NODE_CROSS_ENTROPY || out->confusion_classes != classes)
            return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "evaluate: confusion has room for %d classes; the net has %d", out->confusion_classes, classes);
        memset(out->confusion, 0, (size_t)classes * (size_t)classes * sizeof *out->confusion);
        logits_bytes = (size_t)net->desc.batch * (size_t)classes * sizeof *logits;
        logits = (float *)nnti_alloc(&net->a, logits_bytes);
        if (!logits) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "evaluate: out of memory");
    }
    memset(&sum, 0, sizeof sum);
    r = nnti_profile_follow(net, loader);
    if (!r) r = nnt_loader_rewind(loader, nnt_loader_epoch(loader));
    while (!r) {
        r = nnt_loader_next(loader, &b);
        if (r) { r = nnti_loader_failed(net, loader, "evaluate"); break; }
        if (!b.count) break;
        start = nnti_clock(net);
        r = nnti_check_batch(net, &b, "evaluate", 1);
        for (first = 0; first < b.count && !r; first += net->desc.batch) {
            int count = nnti_min(net->desc.batch, b.count - first);
            r = nnti_evaluate_samples(net, &b, first, count, 1, "evaluate");
            if (!r) r = nnti_get_loss(net, 1, &part, "evaluate");
            if (!r && logits) r = nnti_count_confusion(net, &b, first, count, logits, out);
            if (r) break;
            sum.sum += part.sum;
            sum.weight += part.weight;
            sum.correct += part.correct;
            sum.correct5 += part.correct5;
            sum.samples += part.samples;
        }
        nnti_clocked(net, nnti_row(1, NNTI_PART_WHOLE), start, b.count);
    }
    nnti_free(&net->a, logits, logits_bytes);
    if (r) return r;
    out->loss = nnti_mean_loss(&sum);
    out->accuracy = sum.samples > 0 ? sum.correct / sum.samples : 0;
    out->top5 = sum.samples > 0 ? sum.correct5 / sum.samples : 0;
    out->samples = (int64_t)sum.samples;
    return NNT_OK;
}

/* The samples of an epoch's last batch, when it is the only partial one. */
static nnt_result nnti_check_last_batch(nnt_net *net, nnt_loader *loader, int batch, int64_t batches)
{
    int64_t rest = nnt_dataset_count(nnt_loader_dataset(loader)) - (batches - 1) * batch;
    return rest == 1 ? nnti_check_batchnorm(net, 1, "fit: the epoch's last batch") : NNT_OK;
}

static void nnti_estimate(nnt_progress_info *p, double start)
{
    double done = (double)p->epoch + (p->batches > 0 ? (double)p->batch / (double)p->batches : 0);
    p->seconds = nnti_seconds() - start;
    p->seconds_left = done > 0 ? p->seconds / done * ((double)p->epochs - done) : 0;
}

/* The callback's wish to stop. Its own time is what no step, prediction or wait inside of it took. */
static int nnti_call_back(nnt_net *net, const nnt_fit_desc *d, nnt_progress_info *p)
{
    double start, inside;
    int stop;
    if (!d->callback) return 0;
    if (!net->recording) return d->callback(d->user, net, p);
    start = nnti_seconds();
    inside = nnti_profile_inside(net->recording);
    stop = d->callback(d->user, net, p);
    if (net->recording) {
        nnti_tally *t = &net->recording->row[NNTI_ROW_CALLBACK];
        double took = nnti_seconds() - start;
        t->count++;
        t->seconds += nnti_max_double(0, took - (nnti_profile_inside(net->recording) - inside));
        nnti_event_add(&net->recording->events, NNTI_ROW_CALLBACK, start, took);
    }
    return stop;
}

/* ---- snapshots of a run */

#ifdef NNT_NO_STDIO
static nnt_result nnti_fit_snapshot(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d) { (void)net; (void)loader; (void)d; return NNT_OK; }
static nnt_result nnti_fit_best(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d) { (void)net; (void)loader; (void)d; return NNT_OK; }
static nnt_result nnti_fit_resume(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    (void)loader;
    if (!d->checkpoint.path) return NNT_OK;
    return nnti_set_error(&net->error, NNT_ERR_UNSUPPORTED, "fit: checkpoint.path needs files, which NNT_NO_STDIO leaves out");
}
#else
static nnt_result nnti_fit_snapshot(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    if (!d->checkpoint.path) return NNT_OK;
    return nnti_write_snapshot(net, loader, d->checkpoint.path, nnti_max(1, d->checkpoint.keep));
}
static nnt_result nnti_fit_best(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    size_t cap = d->checkpoint.path ? strlen(d->checkpoint.path) + sizeof ".best" : 0;
    char *path;
    nnt_result r;
    if (!cap || !d->checkpoint.best) return NNT_OK;
    path = (char *)nnti_alloc(&net->a, cap);
    if (!path) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "fit: out of memory");
    nnti_format(path, cap, "%s.best", d->checkpoint.path);
    r = nnti_write_snapshot(net, loader, path, 1);
    nnti_free(&net->a, path, cap);
    return r;
}
/* What checkpoint.resume asks for: no snapshot yet is no error. */
static nnt_result nnti_fit_resume(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    int found = 0;
    nnt_result r;
    if (!d->checkpoint.path || !d->checkpoint.resume || net->fit.resumed) return NNT_OK;
    r = nnti_resume(net, loader, d->checkpoint.path, &found);
    if (r && !found) nnti_clear_error(&net->error);
    return found ? r : r == NNT_ERR_FILE ? NNT_OK : r;
}
#endif

/* A step is over: tells the callback, and writes a snapshot if one is due. Not NNT_OK ends the run. */
static nnt_result nnti_fit_after_step(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d, nnt_progress_info *p, const nnt_loss *l)
{
    nnti_fit_state *fit = &net->fit;
    nnt_result r = NNT_OK;
    int stop = 0;
    if (d->callback) {
        p->event = NNT_EVENT_STEP;
        p->loss = nnti_mean_loss(l);
        p->loss_mean = nnti_mean_loss(&fit->sum);
        p->samples_per_second = fit->samples / nnti_max_double(1e-9, nnti_seconds() - fit->epoch_start);
        p->wait_seconds = nnt_loader_wait_seconds(loader) - fit->waited;
        nnti_estimate(p, fit->start);
        stop = nnti_call_back(net, d, p);
    }
    if (stop || (d->checkpoint.every_steps > 0 && net->steps % d->checkpoint.every_steps == 0)) r = nnti_fit_snapshot(net, loader, d);
    if (r || !stop) return r;
    return nnti_set_error(&net->error, NNT_ERR_STOPPED, "fit: the callback stopped it in epoch %d after batch %I", p->epoch, p->batch);
}

/* One epoch of training, or what is left of it. */
static nnt_result nnti_fit_epoch(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d, nnt_progress_info *p)
{
    nnti_fit_state *fit = &net->fit;
    nnt_batch b;
    nnt_result r;
    r = nnti_profile_follow(net, loader);
    if (r) return r;
    p->epoch = (int)fit->epoch;
    p->batch = fit->batch;
    p->lr = fit->lr;
    for (;;) {
        nnt_loss l;
        r = nnt_loader_next(loader, &b);
        if (r) return nnti_loader_failed(net, loader, "fit");
        if (!b.count) break;
        p->lr = fit->lr = nnt_learning_rate(&net->desc.optimizer, net->updates);
        r = nnt_step(net, &b, NULL);
        if (r) {
            if (r == NNT_ERR_NOT_FINITE || r == NNT_ERR_DATA) {
                nnti_error e = net->error;
                nnti_set_error(&net->error, r, "fit: epoch %d, batch %I: %s", p->epoch, p->batch, e.text);
            }
            return r;
        }
        l = nnt_last_loss(net);
        fit->sum.sum += l.sum;
        fit->sum.weight += l.weight;
        fit->sum.correct += l.correct;
        fit->sum.samples += l.samples;
        fit->samples += b.count;
        p->batch = ++fit->batch;
        p->step = nnt_steps(net);
        r = nnti_fit_after_step(net, loader, d, p, &l);
        if (r) return r;
    }
    r = nnt_update(net);                    /* what accumulate has left over */
    p->samples_per_second = fit->samples / nnti_max_double(1e-9, nnti_seconds() - fit->epoch_start);
    return r;
}
/* Figures of the epoch that is over, and the validation's, to p and the history. */
static nnt_result nnti_fit_close_epoch(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d, nnt_progress_info *p)
{
    nnti_fit_state *fit = &net->fit;
    void *history = net->history;
    nnt_result r;
    p->event = NNT_EVENT_EPOCH;
    p->step = nnt_steps(net);
    p->loss = p->loss_mean = nnti_mean_loss(&fit->sum);
    p->accuracy = fit->sum.samples > 0 ? fit->sum.correct / fit->sum.samples : 0;
    p->wait_seconds = nnt_loader_wait_seconds(loader) - fit->waited;
    memset(&p->validation, 0, sizeof p->validation);
    if (d->validation) {
        r = nnt_evaluate(net, d->validation, &p->validation);
        if (r) return r;
        p->has_validation = 1;
    }
    nnti_estimate(p, fit->start);
    if (!nnti_grow(&net->a, &history, &net->history_cap, (size_t)net->history_count + 1, sizeof *net->history))
        return nnti_set_error(&net->error, NNT_ERR_MEMORY, "fit: out of memory");
    net->history = (nnt_progress_info *)history;
    net->history[net->history_count++] = *p;
    return NNT_OK;
}
/* Whether the epoch is the best so far; it is the best one then. */
static int nnti_fit_improved(nnti_fit_state *fit, const nnt_fit_desc *d, const nnt_progress_info *p)
{
    double figure = d->monitor == NNT_MONITOR_ACCURACY ? -(p->has_validation ? p->validation.accuracy : p->accuracy)
                  : p->has_validation ? p->validation.loss : p->loss;
    if (fit->best_epoch >= 0 && !(figure < fit->best)) return 0;
    fit->best = figure;
    fit->best_epoch = fit->epoch;
    return 1;
}
static int nnti_fit_is_over(const nnti_fit_state *fit, const nnt_fit_desc *d, int epochs)
{
    if (fit->epoch >= epochs) return 1;
    return d->patience > 0 && fit->batch == 0 && fit->best_epoch >= 0 && fit->epoch - 1 - fit->best_epoch >= d->patience;
}
static nnt_result nnti_fit_check(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    nnti_error *e = &net->error;
    int batch;
    nnt_result r = nnti_ready_to_train(net, "fit");
    if (r) return r;
    if (d->epochs < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: %d epochs; it can't be negative", d->epochs);
    if (d->patience < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: patience of %d epochs; it can't be negative", d->patience);
    if (d->monitor < NNT_MONITOR_LOSS || d->monitor > NNT_MONITOR_ACCURACY) return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: monitor %d is none of NNT_MONITOR_...", d->monitor);
    if (d->checkpoint.every_steps < 0) return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: checkpoint.every_steps is %I; it can't be negative", d->checkpoint.every_steps);
    if (d->checkpoint.keep < 0 || d->checkpoint.keep > 1000) return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: checkpoint.keep is %d; 0 to 1000 are possible", d->checkpoint.keep);
    if (!d->checkpoint.path && (d->checkpoint.every_steps || d->checkpoint.keep || d->checkpoint.best || d->checkpoint.resume))
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: checkpoint has no path; give it a file's name");
    r = nnti_check_loader(net, loader, "fit");
    if (!r && d->validation) r = nnti_check_loader(net, d->validation, "fit: validation");
    if (r) return r;
    batch = nnti_loader_batch_size(loader);
    if (batch > net->desc.batch)
        return nnti_set_error(e, NNT_ERR_ARGUMENT, "fit: the loader's batches have %d samples; the net was compiled for at most %d", batch, net->desc.batch);
    if (nnt_loader_batches(loader) < 1) return nnti_set_error(e, NNT_ERR_DATA, "fit: the loader has no batch in an epoch; it has fewer samples than a batch and drop_last");
    return nnti_check_last_batch(net, loader, batch, nnt_loader_batches(loader));
}
/* The state of a run that begins; one that goes on has it from nnti_resume. */
static nnt_result nnti_fit_begin(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    nnti_fit_state *fit = &net->fit;
    nnt_result r = nnti_fit_resume(net, loader, d);
    if (r) return r;
    if (fit->resumed) {
        fit->resumed = 0;
        fit->validation = d->validation;
        if (d->validation && fit->validated) nnti_loader_move(d->validation, fit->validation_seed, fit->validation_epoch, 0);
        return NNT_OK;
    }
    nnti_free(&net->a, net->history, net->history_cap * sizeof *net->history);
    net->history = NULL;
    net->history_cap = 0;
    net->history_count = 0;
    memset(fit, 0, sizeof *fit);
    fit->start = fit->epoch_start = nnti_seconds();
    fit->waited = nnt_loader_wait_seconds(loader);
    fit->best_epoch = -1;
    fit->validation = d->validation;
    return NNT_OK;
}

static nnt_result nnti_fit(nnt_net *net, nnt_loader *loader, const nnt_fit_desc *d)
{
    nnti_fit_state *fit = &net->fit;
    nnt_progress_info p;
    nnt_result r = nnti_fit_check(net, loader, d);
    int improved, stop;
    if (r) return r;
    nnti_clear_error(&net->error);
    r = nnti_fit_begin(net, loader, d);
    memset(&p, 0, sizeof p);
    p.epochs = nnti_max(1, d->epochs);
    p.batches = nnt_loader_batches(loader);
    while (!r && !nnti_fit_is_over(fit, d, p.epochs)) {
        r = nnti_fit_epoch(net, loader, d, &p);
        if (!r) r = nnti_fit_close_epoch(net, loader, d, &p);
        if (r) return r;
        improved = nnti_fit_improved(fit, d, &p);
        stop = nnti_call_back(net, d, &p);
        fit->epoch++;
        fit->batch = 0;
        memset(&fit->sum, 0, sizeof fit->sum);
        fit->samples = 0;
        fit->epoch_start = nnti_seconds();
        if (improved) r = nnti_fit_best(net, loader, d);
        if (!r) r = nnti_fit_snapshot(net, loader, d);
        if (!r && stop) r = nnti_set_error(&net->error, NNT_ERR_STOPPED, "fit: the callback stopped it after epoch %d", p.epoch);
    }
    return r;
}

NNT_API nnt_result nnt_fit(nnt_net *net, nnt_loader *loader, nnt_fit_desc d)
{
    nnt_result r;
    if (!net) return NNT_ERR_ARGUMENT;
    if (net->fitting) return nnti_set_error(&net->error, NNT_ERR_STATE, "fit: called from a callback of an nnt_fit of the same net");
    net->fitting = 1;
    r = nnti_fit(net, loader, &d);
    net->fitting = 0;
    return r;
}

NNT_API const nnt_progress_info *nnt_history(const nnt_net *net, int *epochs)
{
    if (epochs) *epochs = net ? net->history_count : 0;
    return net ? net->history : NULL;
}

/* ---- tables and progress */

static int64_t nnti_node_params(const nnt_net *net, int node)
{
    int64_t sum = 0;
    int i;
    for (i = 0; i < net->param_count; i++)
        if (net->params[i].node == node && net->params[i].kind == NNTI_PARAM_TRAINED) sum += net->params[i].count;
    return sum;
}
/* 1.43 G, 12 k */
static void nnti_put_count(nnti_text *t, double v, size_t width)
{
    static const char unit[] = " kMGTPE";
    char text[32];
    nnti_text own = nnti_text_begin(text, sizeof text);
    size_t i;
    int u = 0;
    while (v >= 999.5 && u < 6) { v /= 1000.0; u++; }
    if (u == 0) nnti_put_int(&own, (int64_t)(v + 0.5));
    else { nnti_put_fixed(&own, v, v < 9.995 ? 2 : v < 99.95 ? 1 : 0); nnti_put_char(&own, ' '); nnti_put_char(&own, unit[u]); }
    nnti_text_end(&own);
    for (i = own.length; i < width; i++) nnti_put_char(t, ' ');
    nnti_put_string(t, text);
}
NNT_API size_t nnt_summary(const nnt_net *net, char *text, size_t cap)
{
    nnti_text t = nnti_text_begin(text, cap);
    int64_t params = 0;
    double flops = 0;
    int i;
    for (i = 0; net && i < net->node_count; i++) {
        const nnti_node *n = &net->nodes[i];
        char name[NNTI_NAME_TEXT], shape[NNTI_SHAPE_TEXT];
        if (i == 0) nnti_put(&t, "%-24s%-18s%-18s%12s%10s\n", "layer", "kind", "output", "parameters", "FLOPs");
        nnti_put(&t, "%-24s%-18s%-18s%12I", nnti_node_name(n, name), nnti_node_kind_name(n), nnti_is_loss(n) ? "loss" : nnti_shape_text(shape, n->shape), nnti_node_params(net, i));
        nnti_put_count(&t, n->flops, 10);
        nnti_put_char(&t, '\n');
        params = nnti_min64(params, INT64_MAX - nnti_node_params(net, i)) + nnti_node_params(net, i);
        flops += n->flops;
    }
    nnti_put(&t, "%I parameters, ", params);
    nnti_put_count(&t, flops, 0);
    nnti_put(&t, "FLOPs a sample forward\n");
    nnti_text_end(&t);
    return t.length;
}

#ifndef NNT_NO_STDIO
/* 1:23:45 or 2:05 */
static void nnti_put_time(nnti_text *t, double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600) {
        nnti_put(t, "%I:", s / 3600);
        if (s / 60 % 60 < 10) nnti_put_char(t, '0');
    }
    nnti_put(t, "%I:", s / 60 % 60);
    if (s % 60 < 10) nnti_put_char(t, '0');
    nnti_put_int(t, s % 60);
}
static int nnti_stderr_is_terminal(void)
{
#if defined(NNTI_POSIX)
    return isatty(2);
#else
    return 0;
#endif
}
NNT_API int nnt_progress(void *user, nnt_net *net, const nnt_progress_info *p)
{
    char line[256];
    nnti_text t = nnti_text_begin(line, sizeof line);
    int terminal = nnti_stderr_is_terminal(), i;
    (void)user; (void)net;
    if (!p) return 0;
    if (p->event == NNT_EVENT_STEP) {
        /* about 200 refreshes an epoch, always the last */
        int64_t every = nnti_max64(1, p->batches / 200);
        if (!terminal || (p->batch % every && p->batch != p->batches)) return 0;
        nnti_put(&t, "\r%3d/%d [", p->epoch + 1, p->epochs);
        for (i = 0; i < 24; i++) nnti_put_char(&t, p->batch * 24 >= (int64_t)(i + 1) * p->batches ? '=' : ' ');
        nnti_put(&t, "] %5I images/s  loss ", (int64_t)(p->samples_per_second + 0.5));
        nnti_put_fixed(&t, p->loss_mean, 4);
        nnti_put_string(&t, "  left ");
        nnti_put_time(&t, p->seconds_left);
        nnti_put_string(&t, "  ");
    } else {
        if (terminal) nnti_put_string(&t, "\r\033[K");
        nnti_put(&t, "%3d/%d  loss ", p->epoch + 1, p->epochs);
        nnti_put_fixed(&t, p->loss, 4);
        nnti_put_string(&t, "  accuracy ");
        nnti_put_fixed(&t, 100.0 * p->accuracy, 2);
        nnti_put_string(&t, " %");
        if (p->has_validation) {
            nnti_put_string(&t, "  validation loss ");
            nnti_put_fixed(&t, p->validation.loss, 4);
            nnti_put_string(&t, "  accuracy ");
            nnti_put_fixed(&t, 100.0 * p->validation.accuracy, 2);
            nnti_put_string(&t, " %");
        }
        nnti_put(&t, "  %I images/s  ", (int64_t)(p->samples_per_second + 0.5));
        nnti_put_time(&t, p->seconds);
        nnti_put_char(&t, '\n');
    }
    nnti_text_end(&t);
    fputs(line, stderr);
    fflush(stderr);
    return 0;
}
#endif

/* ============================================================================
   >>seeing    Profiles in words, tables and pictures
   Reads what >>profile wrote down: first into rows, of which everything else is made.
   ============================================================================ */

/* Rows as they are asked for: at most cap are kept, count says how many there are. */
typedef struct nnti_sheet { nnt_profile_row *row; int cap, count; nnt_profile_row spare; } nnti_sheet;

static nnt_profile_row *nnti_sheet_add(nnti_sheet *s, const char *thread, const char *part, const char *phase, int64_t count, double seconds)
{
    nnt_profile_row *r = s->count < s->cap ? &s->row[s->count] : &s->spare;
    s->count++;
    memset(r, 0, sizeof *r);
    nnti_format(r->thread, sizeof r->thread, "%s", thread);
    nnti_format(r->part, sizeof r->part, "%s", part);
    nnti_format(r->phase, sizeof r->phase, "%s", phase);
    r->count = count;
    r->seconds = seconds;
    return r;
}
static double nnti_not_negative(double v) { return v > 0 ? v : 0; }

static const char *const nnti_program_parts[] = { "step", "predict" };
static const char *const nnti_part_names[NNTI_PARTS] = { "", "check", "upload", "download" };
static const char *const nnti_stage_names[NNTI_STAGES] = { "read", "decode", "transform", "shuffle" };

/* Arithmetic that an op's own figure stands for: what only moves or gathers values has a layer's figure, not its own. */
static double nnti_op_arithmetic(const nnt_op *op)
{
    int moves = op->kind == NNT_OP_COPY || op->kind == NNT_OP_ACCUMULATE || op->kind == NNT_OP_CONCAT || op->kind == NNT_OP_CONCAT_GRAD
             || op->kind == NNT_OP_BN_RUNNING;
    return moves ? 0 : op->flops;
}
static void nnti_sheet_ops(nnti_sheet *s, const nnt_net *net, int program)
{
    const nnti_recorder *p = net->profile;
    const nnti_program *ops = program ? &net->plan.predict : &net->plan.train;
    const nnti_tally *t = p->row + NNTI_ROW_OPS + (program ? net->plan.train.count : 0);
    char name[NNTI_NAME_TEXT];
    int i;
    for (i = 0; i < ops->count; i++) {
        const nnt_op *op = &ops->ops[i];
        nnt_profile_row *r;
        if (!t[i].count) continue;
        r = nnti_sheet_add(s, "net", nnti_program_parts[program], nnti_phase_names[op->phase], t[i].count, t[i].seconds);
        nnti_format(r->layer, sizeof r->layer, "%s", nnti_node_name(&net->nodes[op->node - 1], name));
        nnti_format(r->kind, sizeof r->kind, "%s", nnti_op_names[op->kind]);
        r->flops = nnti_op_arithmetic(op) * t[i].amount;
        r->bytes = op->bytes * t[i].amount;
    }
}
/* The update's ops: 4 bytes a value, read or written so often. */
static void nnti_sheet_update(nnti_sheet *s, const nnt_net *net, int row, int kind, int times)
{
    const nnti_tally *t = &net->profile->row[row];
    nnt_profile_row *r;
    if (!t->count) return;
    r = nnti_sheet_add(s, "net", "step", "update", t->count, t->seconds);
    nnti_format(r->kind, sizeof r->kind, "%s", nnti_op_names[kind]);
    r->bytes = 4.0 * times * t->amount;
}
/* Everything of steps or predictions. The first row is what none of the others took. */
static void nnti_sheet_program(nnti_sheet *s, const nnt_net *net, int program)
{
    const nnti_recorder *p = net->profile;
    const nnti_tally *whole = &p->row[nnti_row(program, NNTI_PART_WHOLE)];
    int part, i, first = s->count;
    nnt_profile_row *own;
    double inside = 0;
    if (!whole->count) return;
    own = nnti_sheet_add(s, "net", nnti_program_parts[program], "", whole->count, whole->seconds);
    for (part = NNTI_PART_CHECK; part < NNTI_PARTS; part++) {
        const nnti_tally *t = &p->row[nnti_row(program, part)];
        if (!t->count) continue;
        inside += t->seconds;
        nnti_sheet_add(s, "net", nnti_program_parts[program], nnti_part_names[part], t->count, t->seconds)->bytes = t->amount;
    }
    for (i = 0; i < (program ? net->plan.predict.count : net->plan.train.count); i++)
        inside += p->row[NNTI_ROW_OPS + (program ? net->plan.train.count : 0) + i].seconds;
    nnti_sheet_ops(s, net, program);
    if (!program) {
        inside += p->row[NNTI_ROW_NORM].seconds + p->row[NNTI_ROW_UPDATE].seconds;
        nnti_sheet_update(s, net, NNTI_ROW_NORM, NNT_OP_GRAD_NORM, 1);
        nnti_sheet_update(s, net, NNTI_ROW_UPDATE, NNT_OP_UPDATE, 3 + 2 * nnti_moments(&net->desc.optimizer));
    }
    if (first < s->cap) own->seconds = nnti_not_negative(whole->seconds - inside);
}
static double nnti_page_seconds(const nnti_page *p, double now) { return p->seconds + (p->running ? now - p->begun : 0); }
static double nnti_profile_seconds(const nnt_net *net, double now)
{
    return net->profile->seconds + (net->recording ? now - net->profile->begun : 0);
}
/* A worker's stages; `waiting`: in the thread of the net, inside of its wait. Returns their sum. */
static double nnti_sheet_stages(nnti_sheet *s, const nnti_worker_tally *w, const char *thread, const char *part)
{
    double sum = 0;
    int i;
    for (i = 0; i < NNTI_STAGES; i++) {
        if (!(w->seconds[i] > 0)) continue;
        nnti_sheet_add(s, thread, part, nnti_stage_names[i], i == NNTI_STAGE_SHUFFLE ? w->batches : w->samples, w->seconds[i]);
        sum += w->seconds[i];
    }
    return sum;
}
/* Rows of the loader's workers. */
static void nnti_sheet_workers(nnti_sheet *s, const nnti_page *p, int number, double now)
{
    char thread[32];
    int i;
    for (i = 1; i <= p->workers; i++) {
        const nnti_worker_tally *w = &p->worker[i];
        nnti_format(thread, sizeof thread, "loader %d worker %d", number, i);
        nnti_sheet_add(s, thread, "batch", "", w->batches, nnti_not_negative(w->busy - nnti_sheet_stages(s, w, thread, "batch")));
        nnti_sheet_add(s, thread, "idle", "", 0, nnti_not_negative(nnti_page_seconds(p, now) - w->busy));
    }
}
static void nnti_profile_sheet(nnt_net *net, nnti_sheet *s)
{
    nnti_recorder *p = net->profile;
    const nnti_tally *callback = &p->row[NNTI_ROW_CALLBACK];
    double now = nnti_seconds(), known = p->row[nnti_row(0, NNTI_PART_WHOLE)].seconds + p->row[nnti_row(1, NNTI_PART_WHOLE)].seconds + callback->seconds;
    int i;
    for (i = 0; i < p->pages; i++) {
        nnti_page *page = &p->page[i];
        nnti_page_lock(page);
        known += page->wait.seconds;
        if (page->wait.count)
            nnti_sheet_add(s, "net", "wait for data", "", page->wait.count,
                           nnti_not_negative(page->wait.seconds - nnti_sheet_stages(s, &page->worker[0], "net", "wait for data")));
        nnti_page_unlock(page);
    }
    nnti_sheet_program(s, net, 0);
    nnti_sheet_program(s, net, 1);
    if (callback->count) nnti_sheet_add(s, "net", "callback", "", callback->count, callback->seconds);
    nnti_sheet_add(s, "net", "elsewhere", "", 0, nnti_not_negative(nnti_profile_seconds(net, now) - known));
    for (i = 0; i < p->pages; i++) {
        nnti_page_lock(&p->page[i]);
        nnti_sheet_workers(s, &p->page[i], i + 1, now);
        nnti_page_unlock(&p->page[i]);
    }
}
NNT_API int nnt_profile_rows(nnt_net *net, nnt_profile_row *rows, int cap)
{
    nnti_sheet s;
    if (!net || !net->profile) return 0;
    memset(&s, 0, sizeof s);
    s.row = rows;
    s.cap = rows ? cap : 0;
    nnti_profile_sheet(net, &s);
    return s.count;
}
/* All rows in memory of their own: cap of them have to be freed. 0 when memory is out, or there is no profile. */
static int nnti_profile_read(nnt_net *net, nnti_sheet *s)
{
    memset(s, 0, sizeof *s);
    s->cap = nnt_profile_rows(net, NULL, 0);
    s->row = s->cap ? (nnt_profile_row *)nnti_zalloc(&net->a, (size_t)s->cap, sizeof *s->row) : NULL;
    if (!s->row) return 0;
    nnti_profile_sheet(net, s);
    s->count = nnti_min(s->count, s->cap);
    return 1;
}
static void nnti_sheet_free(nnt_net *net, nnti_sheet *s) { nnti_free(&net->a, s->row, (size_t)s->cap * sizeof *s->row); }

/* ---- words */

static void nnti_put_percent(nnti_text *t, double share)
{
    nnti_put_fixed(t, 100.0 * share, share < 0.0995 ? 1 : 0);
    nnti_put_string(t, " %");
}
static void nnti_put_rate(nnti_text *t, double v) { nnti_put_double(t, v, v < 100 ? 2 : 3); }

/* "backward conv2 conv_weight", "upload" */
static void nnti_put_place(nnti_text *t, const nnt_profile_row *r)
{
    const char *const level[4] = { r->part, r->phase, r->layer, r->kind };
    int i, first = r->phase[0] != 0, n = 0;     /* the part only where nothing stands below it */
    if (first && strcmp(r->part, "step") != 0) first = 0;
    for (i = first; i < 4; i++) {
        if (!level[i][0]) continue;
        if (n++) nnti_put_char(t, ' ');
        nnti_put_string(t, level[i]);
    }
}
/* What a loader's threads did together. */
static nnti_worker_tally nnti_page_sum(const nnti_page *p)
{
    nnti_worker_tally sum;
    int i, k;
    memset(&sum, 0, sizeof sum);
    for (i = 0; i <= p->workers; i++) {
        sum.busy += p->worker[i].busy;
        sum.samples += p->worker[i].samples;
        for (k = 0; k < NNTI_STAGES; k++) sum.seconds[k] += p->worker[i].seconds[k];
    }
    return sum;
}
static int nnti_longest_stage(const nnti_worker_tally *w)
{
    int i, best = 0;
    for (i = 1; i < NNTI_STAGES; i++) if (w->seconds[i] > w->seconds[best]) best = i;
    return best;
}
/* The loader is what holds things up. net_rate: samples a second that the net would take. */
static void nnti_put_loader_verdict(nnti_text *t, const nnti_page *p, double net_rate)
{
    nnti_worker_tally sum = nnti_page_sum(p);
    double one = sum.busy > 0 ? (double)sum.samples / sum.busy : 0;
    int stage = nnti_longest_stage(&sum), workers = nnti_max(1, p->workers), cores = nnti_core_count();
    if (!(one > 0) || !(net_rate > 0)) {
        nnti_put_string(t, ": no batch was finished in the time");
        return;
    }
    nnti_put(t, p->workers ? ": %d worker%s " : ": the net's own thread (workers is NNT_NO_WORKERS) ", p->workers, p->workers > 1 ? "s" : "");
    nnti_put_string(t, workers > 1 ? "make " : "makes ");
    nnti_put_rate(t, one * workers);
    nnti_put(t, " samples/s (%s ", nnti_stage_names[stage]);
    nnti_put_percent(t, sum.busy > 0 ? sum.seconds[stage] / sum.busy : 0);
    nnti_put_string(t, "), the net takes ");
    nnti_put_rate(t, net_rate);
    {
        double wish = ceil(net_rate / one);
        int most = NNTI_MAX_THREADS, want = wish < most ? nnti_max((int)wish, nnti_min(most, p->workers + 1)) : most;
        nnti_put(t, "; try workers=%d", want);
        if (want > cores) nnti_put(t, " (there %s %d core%s; more threads help where reading waits, not where it computes)", cores == 1 ? "is" : "are", cores, cores == 1 ? "" : "s");
    }
    if (stage == NNTI_STAGE_TRANSFORM) nnti_put_string(t, ", or noise as a layer (nnt_noise)");
}
/* Nothing waits for data: what computing goes on. */
static void nnti_put_compute_verdict(nnti_text *t, const nnti_sheet *s, double wall, double wait)
{
    const nnt_profile_row *top = NULL;
    double again = 0, callback = 0, elsewhere = 0;
    int i;
    for (i = 0; i < s->count; i++) {
        const nnt_profile_row *r = &s->row[i];
        if (strcmp(r->thread, "net") != 0) continue;
        if (strcmp(r->part, "callback") == 0) callback = r->seconds;
        if (strcmp(r->part, "elsewhere") == 0) elsewhere = r->seconds;
        if (strcmp(r->phase, nnti_phase_names[NNT_PHASE_AGAIN]) == 0) again += r->seconds;
        if (r->kind[0] && (!top || r->seconds > top->seconds)) top = r;
    }
    nnti_put_string(t, "computing: data is waited for ");
    nnti_put_percent(t, wait / wall);
    nnti_put_string(t, " of the time");
    if (top) {
        nnti_put_string(t, "; the largest part is ");
        nnti_put_place(t, top);
        nnti_put_string(t, ", ");
        nnti_put_percent(t, top->seconds / wall);
        if (top->flops > 0 && top->seconds > 0) {
            nnti_put_string(t, " at ");
            nnti_put_rate(t, top->flops / top->seconds * 1e-9);
            nnti_put_string(t, " GFLOP/s");
        }
    }
    if (again > 0.05 * wall) { nnti_put_string(t, "; values made again (memory_limit) take "); nnti_put_percent(t, again / wall); }
    if (callback > 0.1 * wall) { nnti_put_string(t, "; the callback takes "); nnti_put_percent(t, callback / wall); }
    if (elsewhere > 0.2 * wall) { nnti_put_string(t, "; outside of the library pass "); nnti_put_percent(t, elsewhere / wall); }
}
/* One sentence. A tenth of the time is what makes waiting the first thing to look at. */
static void nnti_put_verdict(nnti_text *t, nnt_net *net, nnti_sheet *s)
{
    nnti_recorder *p = net->profile;
    const nnti_tally *step = &p->row[nnti_row(0, NNTI_PART_WHOLE)], *predict = &p->row[nnti_row(1, NNTI_PART_WHOLE)];
    double wall = nnti_profile_seconds(net, nnti_seconds()), wait = 0, computing = step->seconds + predict->seconds;
    int i, worst = -1;
    for (i = 0; i < p->pages; i++) {
        nnti_page_lock(&p->page[i]);
        wait += p->page[i].wait.seconds;
        if (worst < 0 || p->page[i].wait.seconds > p->page[worst].wait.seconds) worst = i;
        nnti_page_unlock(&p->page[i]);
    }
    if (!(wall > 0) || !(wait + computing > 0)) {
        nnti_put_string(t, "nothing was recorded: call nnt_profile_start, then nnt_fit or nnt_step");
        return;
    }
    if (wait < 0.1 * wall) {
        nnti_put_compute_verdict(t, s, wall, wait);
        return;
    }
    nnti_put_string(t, "waiting for data ");
    nnti_put_percent(t, wait / wall);
    nnti_put_string(t, " of the time");
    nnti_page_lock(&p->page[worst]);
    nnti_put_loader_verdict(t, &p->page[worst], computing > 0 ? (step->amount + predict->amount) / computing : 0);
    nnti_page_unlock(&p->page[worst]);
}

/* Writes what write_fn makes of all rows, or why there are none. */
typedef void (*nnti_sheet_writer)(nnti_text *t, nnt_net *net, nnti_sheet *s);
static size_t nnti_write_sheet(nnt_net *net, char *text, size_t cap, nnti_sheet_writer write_fn)
{
    nnti_text t = nnti_text_begin(text, cap);
    nnti_sheet s;
    if (!net || !net->profile) nnti_put_string(&t, "there is no profile; call nnt_profile_start first\n");
    else if (!nnti_profile_read(net, &s)) nnti_put_string(&t, "out of memory\n");
    else {
        write_fn(&t, net, &s);
        nnti_sheet_free(net, &s);
    }
    nnti_text_end(&t);
    return t.length;
}
NNT_API size_t nnt_profile_verdict(nnt_net *net, char *text, size_t cap) { return nnti_write_sheet(net, text, cap, nnti_put_verdict); }

/* A number in a column; "" where there is none. */
static void nnti_put_column(nnti_text *t, double v, int decimals, size_t width)
{
    char text[40];
    nnti_text own = nnti_text_begin(text, sizeof text);
    size_t i;
    if (v > 0 && v < 1e12) nnti_put_fixed(&own, v, decimals);
    nnti_text_end(&own);
    for (i = own.length; i < width; i++) nnti_put_char(t, ' ');
    nnti_put_string(t, text);
}
static void nnti_put_profile_row(nnti_text *t, const nnt_profile_row *r, double wall)
{
    nnti_put_column(t, 100.0 * r->seconds / wall, 1, 6);
    nnti_put_string(t, " %");
    nnti_put_column(t, r->seconds, 3, 11);
    nnti_put(t, "%9I", r->count);
    nnti_put_column(t, r->seconds > 0 ? r->flops / r->seconds * 1e-9 : 0, 1, 10);
    nnti_put_column(t, r->seconds > 0 ? r->bytes / r->seconds * 1e-9 : 0, 1, 8);
    nnti_put_string(t, "  ");
    nnti_put_place(t, r);
    nnti_put_char(t, '\n');
}
static void nnti_put_workers(nnti_text *t, const nnti_page *p, int number, double now)
{
    double wall = nnti_page_seconds(p, now);
    int i, k;
    nnti_put(t, "loader %d: waited for %I times, ", number, p->wait.count);
    nnti_put_fixed(t, p->wait.seconds, 3);
    nnti_put_string(t, " s\n");
    for (i = 0; i <= p->workers; i++) {
        const nnti_worker_tally *w = &p->worker[i];
        if (!w->batches) continue;
        if (i) nnti_put(t, "  worker %d: ", i);
        else nnti_put_string(t, "  in the net's thread: ");
        nnti_put_string(t, "busy ");
        nnti_put_percent(t, wall > 0 ? w->busy / wall : 0);
        nnti_put_string(t, " of the time, ");
        nnti_put_rate(t, w->busy > 0 ? (double)w->samples / w->busy : 0);
        nnti_put_string(t, " samples/s while busy");
        for (k = 0; k < NNTI_STAGES; k++) {
            if (!(w->seconds[k] > 0)) continue;
            nnti_put(t, ", %s ", nnti_stage_names[k]);
            nnti_put_percent(t, w->seconds[k] / w->busy);
        }
        nnti_put_char(t, '\n');
    }
}
/* The net's thread in front, its longest rows first. */
static int nnti_by_seconds(const void *a, const void *b)
{
    const nnt_profile_row *x = (const nnt_profile_row *)a, *y = (const nnt_profile_row *)b;
    int x_net = strcmp(x->thread, "net") == 0, y_net = strcmp(y->thread, "net") == 0;
    if (x_net != y_net) return y_net - x_net;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}
static void nnti_put_profile(nnti_text *t, nnt_net *net, nnti_sheet *s)
{
    enum { MOST = 40 };
    double now = nnti_seconds(), wall = nnti_profile_seconds(net, now), rest = 0;
    int i, others = 0;
    nnti_put_verdict(t, net, s);
    nnti_put_string(t, "\n\nwatched for ");
    nnti_put_fixed(t, wall, 3);
    nnti_put(t, " s on %s; the net's thread:\n   share    seconds    times   GFLOP/s    GB/s\n", net->on->text);
    if (!(wall > 0)) wall = 1;
    qsort(s->row, (size_t)s->count, sizeof *s->row, nnti_by_seconds);
    for (i = 0; i < s->count && strcmp(s->row[i].thread, "net") == 0 && s->row[i].seconds > 0; i++) {
        if (i < MOST) nnti_put_profile_row(t, &s->row[i], wall);
        else { rest += s->row[i].seconds; others++; }
    }
    if (others) {
        nnti_put_column(t, 100.0 * rest / wall, 1, 6);
        nnti_put_string(t, " %");
        nnti_put_column(t, rest, 3, 11);
        nnti_put(t, "%9s%10s%8s  in %d others\n", "", "", "", others);
    }
    for (i = 0; i < net->profile->pages; i++) {
        nnti_page_lock(&net->profile->page[i]);
        nnti_put_workers(t, &net->profile->page[i], i + 1, now);
        nnti_page_unlock(&net->profile->page[i]);
    }
}
NNT_API size_t nnt_profile_text(nnt_net *net, char *text, size_t cap) { return nnti_write_sheet(net, text, cap, nnti_put_profile); }

/* ---- health */

static void nnti_put_number(nnti_text *t, double v, size_t width)
{
    char text[40];
    nnti_text own = nnti_text_begin(text, sizeof text);
    size_t i;
    nnti_put_double(&own, v, 3);
    nnti_text_end(&own);
    for (i = own.length; i < width; i++) nnti_put_char(t, ' ');
    nnti_put_string(t, text);
}
/* What is odd about a layer. The bounds are rules of thumb: an update of a thousandth of the weight is usual. */
static void nnti_put_oddity(nnti_text *t, const nnt_layer_health *r)
{
    if (r->relu && r->dead >= 0.4) {
        nnti_put(t, "%s: ", r->layer);
        nnti_put_percent(t, r->dead);
        nnti_put_string(t, " of its channels are 0 for the whole batch (dead relus): a smaller learning rate, leaky_relu or batchnorm may help\n");
    }
    if (r->weight > 0 && !(r->gradient > 0)) nnti_put(t, "%s: its gradient is 0: it does not learn\n", r->layer);
    else if (r->update > 0.1) nnti_put(t, "%s: an update changes it by more than a tenth: the learning rate is large\n", r->layer);
    else if (r->weight > 0 && r->update < 1e-6) nnti_put(t, "%s: an update changes it by less than a millionth: it hardly learns\n", r->layer);
}
NNT_API size_t nnt_health_text(const nnt_layer_health *rows, int count, char *text, size_t cap)
{
    nnti_text t = nnti_text_begin(text, cap);
    int i;
    nnti_put(&t, "%-24s%-14s%10s%10s%8s%8s%10s%10s%10s\n", "layer", "kind", "output", "largest", "zeros", "dead", "weight", "gradient", "update");
    for (i = 0; rows && i < count; i++) {
        const nnt_layer_health *r = &rows[i];
        nnti_put(&t, "%-24s%-14s", r->layer, r->kind);
        nnti_put_number(&t, r->output, 10);
        nnti_put_number(&t, r->output_max, 10);
        nnti_put_column(&t, 100 * r->zeros, 1, 6);
        nnti_put_string(&t, r->zeros > 0 ? " %" : "  ");
        nnti_put_column(&t, r->relu ? 100 * r->dead : 0, 1, 6);
        nnti_put_string(&t, r->relu && r->dead > 0 ? " %" : "  ");
        if (r->weight > 0) {
            nnti_put_number(&t, r->weight, 10);
            nnti_put_number(&t, r->gradient, 10);
            nnti_put_number(&t, r->update, 10);
        }
        nnti_put_char(&t, '\n');
    }
    for (i = 0; rows && i < count; i++) nnti_put_oddity(&t, &rows[i]);
    nnti_text_end(&t);
    return t.length;
}

#ifndef NNT_NO_STDIO
/* ---- folded stacks */

static void nnti_put_folded(nnti_text *t, void *subject)
{
    const nnti_sheet *s = (const nnti_sheet *)subject;
    double sum = 0;
    int i, k;
    for (i = 0; i < s->count; i++) {
        const nnt_profile_row *r = &s->row[i];
        const char *level[5], *c;
        int64_t before = (int64_t)(sum * 1e6 + 0.5), after;
        sum += r->seconds;
        after = (int64_t)(sum * 1e6 + 0.5);     /* so that roundings don't add up */
        if (after == before) continue;
        level[0] = r->thread; level[1] = r->part; level[2] = r->phase; level[3] = r->layer; level[4] = r->kind;
        for (k = 0; k < 5; k++) {
            if (!level[k][0]) continue;
            if (k) nnti_put_char(t, ';');
            for (c = level[k]; *c; c++) nnti_put_char(t, *c == ';' || (unsigned char)*c < ' ' ? '_' : *c);
        }
        nnti_put(t, " %I\n", after - before);
    }
}

/* ---- flame graph: a box for each place, below it those that its time went on in, as wide as their time */

typedef struct nnti_frame {
    const char *name;
    const nnt_profile_row *row;     /* its first; a leaf's own */
    int    parent, first, last, next, depth;    /* first and last child, next sibling; -1: none */
    double seconds, start;
} nnti_frame;
typedef struct nnti_flame { nnt_net *net; nnti_sheet sheet; nnti_frame *at; int count, cap, depth; char verdict[400]; } nnti_flame;

static int nnti_frame_add(nnti_flame *f, int parent, const char *name, const nnt_profile_row *row)
{
    nnti_frame *n = &f->at[f->count];
    memset(n, 0, sizeof *n);
    n->name = name;
    n->row = row;
    n->parent = parent;
    n->first = n->last = n->next = -1;
    if (parent >= 0) {
        nnti_frame *up = &f->at[parent];
        n->depth = up->depth + 1;
        if (up->last >= 0) f->at[up->last].next = f->count;
        else up->first = f->count;
        up->last = f->count;
    }
    f->depth = nnti_max(f->depth, n->depth);
    return f->count++;
}
static int nnti_frame_child(nnti_flame *f, int parent, const char *name, const nnt_profile_row *row)
{
    int i;
    for (i = f->at[parent].first; i >= 0; i = f->at[i].next)
        if (strcmp(f->at[i].name, name) == 0) return i;
    return nnti_frame_add(f, parent, name, row);
}
static void nnti_flame_build(nnti_flame *f)
{
    int i, k;
    nnti_frame_add(f, -1, "all", NULL);
    for (i = 0; i < f->sheet.count; i++) {
        const nnt_profile_row *r = &f->sheet.row[i];
        const char *level[5];
        int at = 0;
        if (!(r->seconds > 0) || strcmp(r->part, "idle") == 0) continue;    /* workers without work would take all the width */
        level[0] = r->thread; level[1] = r->part; level[2] = r->phase; level[3] = r->layer; level[4] = r->kind;
        f->at[0].seconds += r->seconds;
        for (k = 0; k < 5; k++) {
            if (!level[k][0]) continue;
            at = nnti_frame_child(f, at, level[k], r);
            f->at[at].seconds += r->seconds;
        }
    }
    for (i = 0; i < f->count; i++) {            /* parents come before their children */
        double start = f->at[i].start;
        for (k = f->at[i].first; k >= 0; k = f->at[k].next) {
            f->at[k].start = start;
            start += f->at[k].seconds;
        }
    }
}
/* The width below which boxes are left out: with at most so many the file stays below 300 KB. */
static double nnti_flame_least(const nnti_flame *f)
{
    enum { MOST = 800 };
    double least = f->at[0].seconds * 1e-4;
    int i, n = MOST + 1;
    while (n > MOST) {
        for (i = 0, n = 0; i < f->count; i++) n += f->at[i].seconds >= least;
        if (n > MOST) least *= 1.25;
    }
    return least;
}
static const char *nnti_frame_class(const nnti_frame *n)
{
    const nnt_profile_row *r = n->row;
    int i;
    if (n->depth < 2) return "o";
    if (strcmp(r->part, "elsewhere") == 0) return "i";
    if (strcmp(r->part, "wait for data") == 0 || strcmp(r->part, "batch") == 0) return "w";
    for (i = 0; i < 4 && n->depth > 2; i++)
        if (strcmp(r->phase, nnti_phase_names[i]) == 0) return i == 0 ? "f" : i == 1 ? "a" : i == 2 ? "b" : "u";
    return "o";
}
static void nnti_put_xml_text(nnti_text *t, const char *w)      /* control characters don't exist in XML */
{
    char one[2] = { 0, 0 };
    for (; *w; w++) {
        one[0] = (unsigned char)*w < ' ' ? ' ' : *w;
        nnti_put_xml(t, one);
    }
}
static void nnti_put_frame(nnti_text *t, const nnti_flame *f, const nnti_frame *n)
{
    double all = f->at[0].seconds, thread = all;
    const nnti_frame *up = n;
    while (up->depth > 1) up = &f->at[up->parent];
    if (n->depth) thread = up->seconds;
    nnti_put(t, "<svg class=\"e %s\" x=\"", n->depth ? nnti_frame_class(n) : "o");
    nnti_put_fixed(t, 100.0 * n->start / all, 4);
    nnti_put(t, "%%\" y=\"%d\" width=\"", 18 * n->depth);
    nnti_put_fixed(t, 100.0 * n->seconds / all, 4);
    nnti_put_string(t, "%\" height=\"18\"><title>");
    nnti_put_xml_text(t, n->name);
    nnti_put_string(t, ": ");
    nnti_put_double(t, n->seconds, 3);
    nnti_put_string(t, " s, ");
    nnti_put_percent(t, n->seconds / all);
    if (n->depth > 1) {
        nnti_put_string(t, ", of its thread ");
        nnti_put_percent(t, n->seconds / thread);
    }
    if (n->first < 0 && n->row && n->row->flops > 0) {
        nnti_put_string(t, ", GFLOP/s ");
        nnti_put_rate(t, n->row->flops / n->row->seconds * 1e-9);
    }
    if (n->first < 0 && n->row && n->row->bytes > 0) {
        nnti_put_string(t, ", GB/s ");
        nnti_put_rate(t, n->row->bytes / n->row->seconds * 1e-9);
    }
    nnti_put_string(t, "</title><rect width=\"100%\" height=\"17\"/><text x=\"3\" y=\"13\">");
    nnti_put_xml_text(t, n->name);
    nnti_put_string(t, "</text></svg>\n");
}
/* Places and widths are percentages, so that the picture fills its window at any width with letters of one size. */
static void nnti_put_flame(nnti_text *t, void *subject)
{
    const nnti_flame *f = (const nnti_flame *)subject;
    double least = nnti_flame_least(f);
    int i;
    nnti_put(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"nntf\" width=\"100%%\" height=\"%d\">\n<style>\n", 110 + 18 * (f->depth + 1));
    nnti_put_string(t,
        ".nntf{font:12px sans-serif;background:#fff;color:#222}.nntf .h{padding:6px 8px;line-height:1.35}.nntf .h p{margin:4px 0}"
        ".nntf input{font:inherit;width:9em;float:right}.nntf .m{float:right;margin-right:8px}"
        ".nntf .e{cursor:pointer}.nntf .e text{fill:#111;pointer-events:none}.nntf .o rect{fill:#d4d4d4}.nntf .i rect{fill:#ececec}"
        ".nntf .w rect{fill:#f2c14e}.nntf .f rect{fill:#8fc1e3}.nntf .a rect{fill:#f0a35e}.nntf .b rect{fill:#e58a8a}.nntf .u rect{fill:#b7a1d9}"
        ".nntf .x rect{fill:#c026d3}.nntf .x text{fill:#fff}.nntf .up{opacity:.6}.nntf .e:hover rect{stroke:#000}\n"
        "@media (prefers-color-scheme:dark){.nntf{background:#1b1b1d;color:#ddd}.nntf input{background:#333;color:#ddd;border:1px solid #666}}\n"
        "</style>\n<foreignObject width=\"100%\" height=\"104\"><div xmlns=\"http://www.w3.org/1999/xhtml\" class=\"h\">"
        "<input type=\"search\" placeholder=\"search\" aria-label=\"search\"/><span class=\"m\"></span><b>Where ");
    nnti_put_double(t, f->at[0].seconds, 3);
    nnti_put_string(t, " s of work and waiting went</b><p class=\"v\">");
    nnti_put_xml_text(t, f->verdict);
    nnti_put_string(t, "</p></div></foreignObject>\n<svg y=\"104\" width=\"100%\" height=\"");
    nnti_put(t, "%d\">\n", 18 * (f->depth + 1));
    for (i = 0; i < f->count; i++) if (f->at[i].seconds >= least) nnti_put_frame(t, f, &f->at[i]);
    nnti_put_string(t, "</svg>\n<script><![CDATA[\n"
        "(function () {\n"
        "var own = document.currentScript, top = own && own.ownerSVGElement || document.documentElement, near = 5e-4;\n"
        "var verdict = top.querySelector('.v'), words = verdict.textContent, found = top.querySelector('.m'), input = top.querySelector('input');\n"
        "var all = [].map.call(top.querySelectorAll('svg.e'), function (e) {\n"
        "  var title = e.querySelector('title').textContent;\n"
        "  return { e: e, x: parseFloat(e.getAttribute('x')), w: parseFloat(e.getAttribute('width')), y: +e.getAttribute('y'),\n"
        "           title: title, name: title.slice(0, title.lastIndexOf(': ')).toLowerCase() };\n"
        "});\n"
        "function covers(a, b) { return a.y <= b.y && a.x <= b.x + near && a.x + a.w >= b.x + b.w - near; }\n"
        "function zoom(z) {\n"
        "  all.forEach(function (a) {\n"
        "    var above = a !== z && covers(a, z), shown = above || covers(z, a);\n"
        "    a.e.style.display = shown ? '' : 'none';\n"
        "    a.e.setAttribute('x', (above ? 0 : (a.x - z.x) / z.w * 100) + '%');\n"
        "    a.e.setAttribute('width', (above ? 100 : a.w / z.w * 100) + '%');\n"
        "    a.e.classList.toggle('up', above);\n"
        "  });\n"
        "}\n"
        "function search() {\n"
        "  var word = input.value.toLowerCase(), sum = 0, hits;\n"
        "  all.forEach(function (a) { a.hit = word !== '' && a.name.indexOf(word) >= 0; a.e.classList.toggle('x', a.hit); });\n"
        "  hits = all.filter(function (a) { return a.hit; });\n"
        "  hits.forEach(function (a) { if (!hits.some(function (b) { return b !== a && covers(b, a); })) sum += a.w; });\n"
        "  found.textContent = word === '' ? '' : sum.toFixed(1) + ' %';\n"
        "}\n"
        "all.forEach(function (a) {\n"
        "  a.e.addEventListener('click', function () { zoom(a); });\n"
        "  a.e.addEventListener('mouseover', function () { verdict.textContent = a.title; });\n"
        "  a.e.addEventListener('mouseout', function () { verdict.textContent = words; });\n"
        "});\n"
        "input.addEventListener('input', search);\n"
        "}());\n]]></script>\n</svg>\n");
}
/* All that a picture needs, also inside of a larger report; nnti_flame_close gives the memory back, also after a failure. */
static int nnti_flame_open(nnti_flame *f, nnt_net *net)
{
    nnti_text t = nnti_text_begin(f->verdict, sizeof f->verdict);
    memset(f, 0, sizeof *f);
    f->net = net;
    if (!nnti_profile_read(net, &f->sheet)) return 0;
    f->cap = 1 + 5 * f->sheet.count;
    f->at = (nnti_frame *)nnti_zalloc(&net->a, (size_t)f->cap, sizeof *f->at);
    if (!f->at) return 0;
    nnti_put_verdict(&t, net, &f->sheet);
    nnti_text_end(&t);
    nnti_flame_build(f);
    return 1;
}
static void nnti_flame_close(nnti_flame *f)
{
    nnti_free(&f->net->a, f->at, (size_t)f->cap * sizeof *f->at);
    nnti_sheet_free(f->net, &f->sheet);
}

/* ---- trace: Chrome's format, read by Perfetto too */

/* Layer, kind and phase of a row of the net's thread. */
static void nnti_put_event_name(nnti_text *t, const nnt_net *net, int row)
{
    static const char *const other[] = { "grad_norm", "update", "callback" };
    const nnt_op *op = NULL;
    char name[NNTI_NAME_TEXT];
    const char *layer, *phase = "";
    int i = row - NNTI_ROW_OPS;
    if (i >= 0) op = i < net->plan.train.count ? &net->plan.train.ops[i] : &net->plan.predict.ops[i - net->plan.train.count];
    nnti_put_string(t, "{\"name\":\"");
    if (op) {
        layer = nnti_node_name(&net->nodes[op->node - 1], name);
        nnti_put_json(t, layer, strlen(layer));
        nnti_put(t, " %s", nnti_op_names[op->kind]);
        phase = nnti_phase_names[op->phase];
    } else if (row >= NNTI_ROW_NORM) nnti_put_string(t, other[row - NNTI_ROW_NORM]);
    else if (row % NNTI_PARTS) nnti_put_string(t, nnti_part_names[row % NNTI_PARTS]);
    else nnti_put_string(t, nnti_program_parts[row / NNTI_PARTS]);
    nnti_put(t, "\",\"cat\":\"%s\"", *phase ? phase : "net");
}
static void nnti_put_times(nnti_text *t, const nnti_event *e, double epoch, int thread)
{
    nnti_put(t, ",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":", thread);
    nnti_put_fixed(t, nnti_not_negative(e->start - epoch) * 1e6, 3);
    nnti_put_string(t, ",\"dur\":");
    nnti_put_fixed(t, (double)e->seconds * 1e6, 3);
    nnti_put_string(t, "},\n");
}
static void nnti_put_thread(nnti_text *t, int thread, const char *name)
{
    nnti_put(t, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", thread, name);
}
static const nnti_event *nnti_event_at(const nnti_events *e, int i)     /* i-th of those that are left */
{
    return &e->at[(e->count > e->cap ? e->count + i : i) % e->cap];
}
static int nnti_events_left(const nnti_events *e) { return (int)nnti_min64(e->count, e->cap); }

static void nnti_put_trace(nnti_text *t, void *subject)
{
    const nnt_net *net = (const nnt_net *)subject;
    const nnti_recorder *p = net->profile;
    char name[40];
    int i, k, thread = 2;
    nnti_put_string(t, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    nnti_put_thread(t, 1, "net");
    for (i = 0; i < nnti_events_left(&p->events); i++) {
        const nnti_event *e = nnti_event_at(&p->events, i);
        nnti_put_event_name(t, net, e->row);
        nnti_put_times(t, e, p->epoch, 1);
    }
    for (k = 0; k < p->pages; k++) {
        const nnti_events *events = &p->page[k].events;
        for (i = 1; i <= p->page[k].workers; i++) {
            nnti_format(name, sizeof name, "loader %d worker %d", k + 1, i);
            nnti_put_thread(t, thread + i - 1, name);
        }
        for (i = 0; i < nnti_events_left(events); i++) {
            const nnti_event *e = nnti_event_at(events, i);
            nnti_put(t, "{\"name\":\"%s\",\"cat\":\"loader\"", e->row == NNTI_EVENT_WAIT ? "wait for data" : "batch");
            nnti_put_times(t, e, p->epoch, e->row > 0 ? thread + e->row - 1 : 1);
        }
        thread += p->page[k].workers;
    }
    nnti_put_string(t, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"nntrain\"}}\n]}\n");
}

/* ---- files */

static nnt_result nnti_profile_file(nnt_net *net, const char *where, const char *path)
{
    if (!net) return NNT_ERR_ARGUMENT;
    if (!path) return nnti_set_error(&net->error, NNT_ERR_ARGUMENT, "%s: path is NULL", where);
    return nnti_profile_needed(net, where);
}
NNT_API nnt_result nnt_profile_flame_svg(nnt_net *net, const char *path)
{
    nnti_flame f;
    nnt_result r = nnti_profile_file(net, "nnt_profile_flame_svg", path);
    if (r) return r;
    if (nnti_flame_open(&f, net)) r = nnti_write_text(net, "nnt_profile_flame_svg", path, nnti_put_flame, &f);
    else r = nnti_set_error(&net->error, NNT_ERR_MEMORY, "nnt_profile_flame_svg: out of memory");
    nnti_flame_close(&f);
    return r;
}
NNT_API nnt_result nnt_profile_folded(nnt_net *net, const char *path)
{
    nnti_sheet s;
    nnt_result r = nnti_profile_file(net, "nnt_profile_folded", path);
    if (r) return r;
    if (!nnti_profile_read(net, &s)) return nnti_set_error(&net->error, NNT_ERR_MEMORY, "nnt_profile_folded: out of memory");
    r = nnti_write_text(net, "nnt_profile_folded", path, nnti_put_folded, &s);
    nnti_sheet_free(net, &s);
    return r;
}
NNT_API nnt_result nnt_profile_trace(nnt_net *net, const char *path)
{
    nnt_result r = nnti_profile_file(net, "nnt_profile_trace", path);
    int on;
    if (r) return r;
    on = net->recording != NULL;
    nnti_profile_switch(net, 0);            /* the events have to stand still while they are written */
    r = nnti_write_text(net, "nnt_profile_trace", path, nnti_put_trace, net);
    nnti_profile_switch(net, on);
    return r;
}
#endif

#if defined(__GNUC__) || defined(__clang__)
#  pragma GCC diagnostic pop
#endif
#endif /* NNTI_IMPLEMENTED */
#endif /* NNTRAIN_IMPLEMENTATION */

/*
------------------------------------------------------------------------------
This software is available under 2 licenses -- choose whichever you prefer.
------------------------------------------------------------------------------
ALTERNATIVE A - MIT License
Copyright (c) 2026 the nntrain authors
Permission is hereby granted, free of charge, to any person obtaining a copy of
this software and associated documentation files (the "Software"), to deal in
the Software without restriction, including without limitation the rights to
use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
of the Software, and to permit persons to whom the Software is furnished to do
so, subject to the following conditions:
The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
------------------------------------------------------------------------------
ALTERNATIVE B - Public Domain (www.unlicense.org)
This is free and unencumbered software released into the public domain.
Anyone is free to copy, modify, publish, use, compile, sell, or distribute this
software, either in source code form or as a compiled binary, for any purpose,
commercial or non-commercial, and by any means.
In jurisdictions that recognize copyright laws, the author or authors of this
software dedicate any and all copyright interest in the software to the public
domain. We make this dedication for the benefit of the public at large and to
the detriment of our heirs and successors. We intend this dedication to be an
overt act of relinquishment in perpetuity of all present and future rights to
this software under copyright law.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN
ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
------------------------------------------------------------------------------
*/
