/* What fragments in the documentation may take for granted. */
#include "nntrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA ""
enum { COUNT = 100, CLASSES = 10 };

static nnt_net *net;
static nnt_node x, y, logits, loss;
static nnt_dataset *data, *train_set, *test_set;
static nnt_loader *loader, *train, *test;
static nnt_compile_desc build;
static nnt_fit_desc fit;
static nnt_loader_desc order;
static nnt_metrics m;
static nnt_batch batch;
static nnt_result r;
static float picture[COUNT * 784], answers[COUNT * CLASSES], loss_value;
static int64_t confusion[CLASSES * CLASSES];
static int32_t labels[COUNT];
