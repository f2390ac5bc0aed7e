/* The header before anything else, and twice; with IMPLEMENTATION its implementation, twice too. */
#include "nntrain.h"
#include "nntrain.h"
#ifdef IMPLEMENTATION
#  define NNTRAIN_IMPLEMENTATION
#  include "nntrain.h"
#  include "nntrain.h"
#endif
