/* Sections about activity buffers: flushes, running kernels, threads, who gets them back. */
#define _GNU_SOURCE
#include "harness.h"
#include "sections.h"
#include <pthread.h>

void flush_beside_running_kernel(void)
{
    CUstream slow, fast;
    start_cuda();
    load_module();
    warm_up();
    QUIET(cu.cuStreamCreate(&slow, CU_STREAM_NON_BLOCKING));
    QUIET(cu.cuStreamCreate(&fast, CU_STREAM_NON_BLOCKING));
    subscribe();
    enable_activity();
    CALL(launch_spin(slow));
    CALL(launch(f_short, fast));
    CALL(cu.cuStreamSynchronize(fast));
    CALL(cupti.cuptiActivityFlushAll(0));
    print_records();
    CALL(cu.cuStreamSynchronize(slow));
    CALL(cupti.cuptiActivityFlushAll(0));
    print_records();
    printf("forced:\n");
    CALL(launch_spin(slow));
    CALL(cupti.cuptiActivityFlushAll(1));
    print_records();
    settle();
    printf("afterwards:\n");
    CALL(launch(f_short, fast));
    settle();
}

void unsubscribe_with_work_queued(void)
{
    start_cuda();
    load_module();
    warm_up();
    subscribe();
    enable_activity();
    CALL(launch_spin(NULL));
    CALL(launch(f_short, NULL));
    CALL(launch(f_other, NULL));
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityFlushAll(0));
    CALL(cupti.cuptiUnsubscribe(subscriber));
    printf("outstanding %d\n", buffers_outstanding());
    CALL(cu.cuCtxSynchronize());
    printf("outstanding %d\n", buffers_outstanding());
    CALL(cupti.cuptiActivityFlushAll(0));
    print_records();
    printf("outstanding %d\n", buffers_outstanding());
}

static void hand_over(int flag)
{
    CUpti_SubscriberHandle other = NULL;
    start_cuda();
    load_module();
    warm_up();
    subscribe();
    enable_activity();
    CALL(launch_spin(NULL));
    CALL(launch(f_short, NULL));
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityFlushAll(flag));
    CALL(cupti.cuptiUnsubscribe(subscriber));
    CALL(cupti.cuptiSubscribe(&other, on_callback, NULL));
    CALL(cupti.cuptiActivityRegisterCallbacks(on_request, on_complete_other));
    CALL(cu.cuCtxSynchronize());
    CALL(cupti.cuptiActivityFlushAll(0));
    print_records();
    printf("outstanding %d\n", buffers_outstanding());
}

void hand_over_without_force(void) { hand_over(0); }
void hand_over_forced(void) { hand_over(1); }

static void *launch_on_thread(void *unused)
{
    (void)unused;
    use_context();
    QUIET(launch(f_short, NULL));
    return NULL;
}

static void threads(int per_thread)
{
    uint8_t value = (uint8_t)per_thread;
    size_t size = sizeof value;
    quiet_buffers = per_thread;
    start_cuda();
    load_module();
    warm_up();
    subscribe();
    CALL(cupti.cuptiActivitySetAttribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, &size, &value));
    CALL(cupti.cuptiActivityRegisterCallbacks(on_request, on_complete));
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, launch_on_thread, NULL)) fail("no thread");
        pthread_join(thread, NULL);
    }
    CALL(cu.cuCtxSynchronize());
    printf("buffers requested by three threads: %d\n", buffers_requested());
    settle();
    printf("outstanding %d\n", buffers_outstanding());
    quiet_buffers = false;
}

void threads_one_buffer(void) { threads(0); }
void threads_buffer_each(void) { threads(1); }

void at_exit(void)
{
    start_cuda();
    load_module();
    subscribe();
    enable_activity();
    CALL(launch(f_short, NULL));
    CALL(cu.cuCtxSynchronize());
    printf("main returns\n");
}
