/* cuda_faults.h - see cuda_faults.cu. X(name, what the plain build says, ASan + UBSan, race); "": not found, or not surely. */
#ifndef CUDA_FAULTS_H
#define CUDA_FAULTS_H

#define FAULTS(X)                                                                                                      \
    X(one_past_the_end, "", "use-after-poison", "outside of every allocation")                                         \
    X(too_few_blocks, "wrong result", "wrong result", "wrong result")                                                  \
    X(block_of_too_many_threads, "wrong result", "wrong result", "wrong result")                                       \
    X(empty_grid, "wrong result", "wrong result", "wrong result")                                                      \
    X(more_shared_memory_than_asked_for, "wrong result", "wrong result", "wrong result")                               \
    X(use_after_free, "signal 11", "use-after-poison", "outside of every allocation")                                           \
    X(memory_that_nothing_wrote, "wrong result", "wrong result", "nothing has written")                                \
    X(host_pointer_in_a_kernel, "", "", "memory of the host")                                                          \
    X(host_reads_device_memory, "signal 11", "SEGV", "signal 11")                                                      \
    X(misaligned_float4, "", "misaligned address", "")                                                                 \
    X(sum_without_atomics, "", "", "race")                                                                             \
    X(blocks_in_an_order, "wrong result", "wrong result", "race")                                                      \
    X(no_barrier_between_fill_and_use, "wrong result", "wrong result", "has not written is read")                      \
    X(no_barrier_between_use_and_refill, "wrong result", "wrong result", "race")                                       \
    X(shared_array_out_of_bounds, "", "out of bounds", "has not written is read")                          \
    X(shared_memory_read_before_written, "", "", "has not written is read")                                            \
    X(threads_return_before_a_barrier, "have returned", "have returned", "have returned")                              \
    X(threads_at_different_barriers, "different barriers", "different barriers", "different barriers")                 \
    X(full_mask_in_divergent_code, "takes no part", "takes no part", "takes no part")                                  \
    X(shuffle_from_a_lane_that_returned, "takes no part", "takes no part", "takes no part")                            \
    X(no_wait_for_an_asynchronous_copy, "wrong result", "wrong result", "has not written is read")                     \
    X(stream_does_not_wait_for_the_copy, "wrong result", "wrong result", "wrong result")                               \
    X(pinned_buffer_filled_again_too_early, "wrong result", "wrong result", "wrong result")                            \
    X(copy_over_what_is_still_in_use, "wrong result", "wrong result", "wrong result")                                  \
    X(result_read_without_waiting, "wrong result", "wrong result", "wrong result")                                     \
    X(scalar_frozen_into_a_graph, "wrong result", "wrong result", "wrong result")                                      \
    X(graph_without_an_edge, "wrong result", "wrong result", "wrong result")                                           \
    X(fork_that_does_not_join, "has not come back", "has not come back", "has not come back")                          \
    X(synchronizing_inside_of_a_capture, "while a stream is captured", "while a stream is captured",                   \
      "while a stream is captured")                                                                                    \
    X(product_beyond_its_operand, "leaves the allocation", "leaves the allocation", "leaves the allocation")           \
    X(memory_that_is_not_freed, "wrong result", "wrong result", "wrong result")

#ifdef __cplusplus
extern "C" {
#endif
#define DECLARE(name, plain, asan, race) int name(int fault);
FAULTS(DECLARE)
#undef DECLARE
#ifdef __cplusplus
}
#endif
#endif
