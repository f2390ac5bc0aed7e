/* Another file of the same program: uses the library, and with NNT_STATIC has a copy of its own. */
#ifdef NNT_STATIC
#  define NNTRAIN_IMPLEMENTATION
#endif
#include "nntrain.h"

#ifdef __cplusplus
extern "C"
#endif
int second_unit(void);
int second_unit(void)
{
    nnt_net *net = nnt_new(NULL);
    int shape[3], failed;
    failed = nnt_shape(nnt_conv2d(nnt_input(net, 3, 9, 9), 4, 3, 2, 0), shape) != NNT_OK;
    failed = failed || shape[0] != 4 || shape[1] != 4 || shape[2] != 4;
    nnt_free(net);
    return failed;
}
