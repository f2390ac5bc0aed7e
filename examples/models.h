/* models.h - graphs of torchvision's AlexNet, VGG-16, ResNet-18 and ResNet-50 for nntrain.

   Each function adds a net to `net` and returns its logits. Names of parameters are torchvision's ("features.0.weight",
   "layer1.0.conv1.weight"), so its weight files load as they are. Include it after nntrain.h; input is 3 x 224 x 224
   in torchvision's training, other sizes work.

       alexnet(net, 3, 224, 224, 1000)      61,100,840 parameters. Krizhevsky, arXiv 1404.5997
       vgg16(...)                          138,357,544. Simonyan and Zisserman, arXiv 1409.1556
       resnet18(...)                        11,689,512. He et al., arXiv 1512.03385
       resnet50(...)                        25,557,032 */
#ifndef MODELS_H
#define MODELS_H

#include <stdio.h>
#include <string.h>

/* nnt_name with a number in it: "features.%d" */
static nnt_node models_name(nnt_node x, const char *prefix, int number)
{
    char name[96];
    snprintf(name, sizeof name, "%s%d", prefix, number);
    return nnt_name(x, name);
}

static nnt_node alexnet_on(nnt_node x, int classes)
{
    x = nnt_maxpool(nnt_relu(models_name(nnt_conv2d(x, 64, 11, 4, 2), "features.", 0)), 3, 2, 0);
    x = nnt_maxpool(nnt_relu(models_name(nnt_conv2d(x, 192, 5, 1, 2), "features.", 3)), 3, 2, 0);
    x = nnt_relu(models_name(nnt_conv2d(x, 384, 3, 1, 1), "features.", 6));
    x = nnt_relu(models_name(nnt_conv2d(x, 256, 3, 1, 1), "features.", 8));
    x = nnt_maxpool(nnt_relu(models_name(nnt_conv2d(x, 256, 3, 1, 1), "features.", 10)), 3, 2, 0);
    x = nnt_flatten(nnt_adaptive_avgpool(x, 6, 6));
    x = nnt_relu(models_name(nnt_linear(nnt_dropout(x, 0.5f), 4096), "classifier.", 1));
    x = nnt_relu(models_name(nnt_linear(nnt_dropout(x, 0.5f), 4096), "classifier.", 4));
    return models_name(nnt_linear(x, classes), "classifier.", 6);
}
static nnt_node alexnet(nnt_net *net, int channels, int height, int width, int classes)
{
    return alexnet_on(nnt_input(net, channels, height, width), classes);
}

static nnt_node vgg16_on(nnt_node x, int classes)
{
    static const int filters[] = { 64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0 };   /* 0: pool */
    int i, number = 0;
    for (i = 0; i < (int)(sizeof filters / sizeof *filters); i++) {
        if (filters[i]) {
            x = nnt_relu(models_name(nnt_conv2d(x, filters[i], 3, 1, 1), "features.", number));
            number += 2;
        } else {
            x = nnt_maxpool(x, 2, 2, 0);
            number++;
        }
    }
    x = nnt_flatten(nnt_adaptive_avgpool(x, 7, 7));
    x = nnt_dropout(nnt_relu(models_name(nnt_linear(x, 4096), "classifier.", 0)), 0.5f);
    x = nnt_dropout(nnt_relu(models_name(nnt_linear(x, 4096), "classifier.", 3)), 0.5f);
    return models_name(nnt_linear(x, classes), "classifier.", 6);
}
static nnt_node vgg16(nnt_net *net, int channels, int height, int width, int classes)
{
    return vgg16_on(nnt_input(net, channels, height, width), classes);
}

/* A convolution without bias and the batch norm behind it: "layer1.0.conv1" and "layer1.0.bn1". */
static nnt_node models_conv_bn(nnt_node x, const char *conv, const char *bn, int filters, int kernel, int stride)
{
    nnt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.filters = filters;
    d.kernel = kernel;
    d.stride = stride;
    d.pad = kernel / 2;
    d.no_bias = 1;
    d.init = NNT_INIT_KAIMING_NORMAL;
    return nnt_name(nnt_batchnorm(nnt_name(nnt_conv2d_ex(x, d), conv)), bn);
}
/* filters: of the 3x3 convolutions; bottleneck: 1x1, 3x3, 1x1 with four times the filters at the end. */
static nnt_node models_block(nnt_node x, const char *prefix, int filters, int stride, int bottleneck)
{
    char conv[4][64], bn[4][64];
    int shape[3], out = bottleneck ? 4 * filters : filters, i;
    nnt_node y = x, shortcut = x;
    for (i = 0; i < 3; i++) {
        snprintf(conv[i], sizeof conv[i], "%s.conv%d", prefix, i + 1);
        snprintf(bn[i], sizeof bn[i], "%s.bn%d", prefix, i + 1);
    }
    snprintf(conv[3], sizeof conv[3], "%s.downsample.0", prefix);
    snprintf(bn[3], sizeof bn[3], "%s.downsample.1", prefix);
    if (bottleneck) {
        y = nnt_relu(models_conv_bn(y, conv[0], bn[0], filters, 1, 1));
        y = nnt_relu(models_conv_bn(y, conv[1], bn[1], filters, 3, stride));
        y = models_conv_bn(y, conv[2], bn[2], out, 1, 1);
    } else {
        y = nnt_relu(models_conv_bn(y, conv[0], bn[0], filters, 3, stride));
        y = models_conv_bn(y, conv[1], bn[1], filters, 3, 1);
    }
    if (nnt_shape(x, shape) == NNT_OK && (stride != 1 || shape[0] != out)) shortcut = models_conv_bn(x, conv[3], bn[3], out, 1, stride);
    return nnt_relu(nnt_add(y, shortcut));
}
static nnt_node models_resnet(nnt_node x, int classes, const int blocks[4], int bottleneck)
{
    int layer, i;
    x = nnt_maxpool(nnt_relu(models_conv_bn(x, "conv1", "bn1", 64, 7, 2)), 3, 2, 1);
    for (layer = 0; layer < 4; layer++)
        for (i = 0; i < blocks[layer]; i++) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "layer%d.%d", layer + 1, i);
            x = models_block(x, prefix, 64 << layer, layer > 0 && i == 0 ? 2 : 1, bottleneck);
        }
    return nnt_name(nnt_linear(nnt_global_avgpool(x), classes), "fc");
}
static nnt_node resnet18_on(nnt_node x, int classes)
{
    static const int blocks[4] = { 2, 2, 2, 2 };
    return models_resnet(x, classes, blocks, 0);
}
static nnt_node resnet18(nnt_net *net, int channels, int height, int width, int classes)
{
    return resnet18_on(nnt_input(net, channels, height, width), classes);
}
static nnt_node resnet50_on(nnt_node x, int classes)
{
    static const int blocks[4] = { 3, 4, 6, 3 };
    return models_resnet(x, classes, blocks, 1);
}
static nnt_node resnet50(nnt_net *net, int channels, int height, int width, int classes)
{
    return resnet50_on(nnt_input(net, channels, height, width), classes);
}

#endif
