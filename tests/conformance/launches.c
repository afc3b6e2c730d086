/* Sections about launches: callbacks, ids, records, graphs, captures. */
#define _GNU_SOURCE
#include "harness.h"
#include "sections.h"

void launches(void)
{
    CUstream a, b;
    uint32_t ids[5] = {0};
    start_cuda();
    load_module();
    QUIET(cu.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    QUIET(cu.cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    CUlaunchConfig config = {{4, 1, 1}, {64, 1, 1}, 16, b, NULL, 0};
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    CALL(launch(f_short, NULL));
    CALL(launch(f_short, CU_STREAM_LEGACY));
    CALL(launch(f_short, CU_STREAM_PER_THREAD));
    CALL(launch(f_other, a));
    CALL(launch(f_short, a));
    expect(f_other, b);
    CALL(cu.cuLaunchKernelEx(&config, f_other, NULL, NULL));
    config.stream = NULL;
    expect(f_other, NULL);
    CALL(cu.cuLaunchKernelEx_ptsz(&config, f_other, NULL, NULL));
    CALL(cu.cuLaunchKernel_ptsz(f_other, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    expect(f_short, a);
    CALL(cu.cuLaunchCooperativeKernel(f_short, 2, 1, 1, 32, 1, 1, 0, a, NULL));
    settle();
    CALL(launch(f_short, NULL));
    CALL(cu.cuCtxSynchronize());
    CALL(launch(f_short, NULL));
    settle();
    CALL(cupti.cuptiGetStreamIdEx(context, NULL, 0, &ids[0]));
    CALL(cupti.cuptiGetStreamIdEx(context, NULL, 1, &ids[1]));
    CALL(cupti.cuptiGetStreamIdEx(context, CU_STREAM_PER_THREAD, 0, &ids[2]));
    CALL(cupti.cuptiGetStreamIdEx(context, a, 0, &ids[3]));
    CALL(cupti.cuptiGetStreamIdEx(context, b, 0, &ids[4]));
    printf("stream ids: default per-thread %s the per-thread handle, default %s it, two of ours %s\n",
           ids[1] == ids[2] ? "is" : "is not", ids[0] == ids[2] ? "is" : "is not", ids[3] == ids[4] ? "same" : "different");
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    printf("activity off, callbacks on:\n");
    CALL(launch(f_short, NULL));
    settle();
    CALL(cupti.cuptiUnsubscribe(subscriber));
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
    printf("activity on, nobody subscribed:\n");
    CALL(launch(f_short, NULL));
    settle();
}

void failing(void)
{
    start_cuda();
    load_module();
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    expect(f_short, NULL);
    CALL(cu.cuLaunchKernel(f_short, 1, 1, 1, 4096, 1, 1, 0, NULL, NULL, NULL));
    CALL(cu.cuLaunchKernel(f_short, 0, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CALL(launch(f_short, NULL));
    settle();
}

void failing_null_function(void)
{
    start_cuda();
    load_module();
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    expect(NULL, NULL);
    CALL(cu.cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CALL(launch(f_short, NULL));
    settle();
}

void failing_null_graph(void)
{
    start_cuda();
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    CALL(launch_graph(NULL, NULL));
    settle();
}

void graphs(void)
{
    CUstream stream;
    start_cuda();
    load_module();
    QUIET(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    CUgraphExec exec = capture_graph(stream, 10);
    printf("captured, not launched:\n");
    settle();
    CALL(launch_graph(exec, stream));
    CALL(launch_graph(exec, stream));
    settle();
    expect(exec, NULL);
    CALL(cu.cuGraphLaunch_ptsz(exec, NULL));
    settle();
    CUgraphExec second = capture_graph(stream, 1);
    CALL(launch_graph(second, stream));
    CALL(launch(f_short, stream));
    settle();
}

void graphs_of_before(void)
{
    CUstream stream;
    start_cuda();
    load_module();
    QUIET(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraphExec exec = capture_graph(stream, 10);
    CALL(launch_graph(exec, stream));
    CALL(cu.cuCtxSynchronize());
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    CALL(launch_graph(exec, stream));
    settle();
}

static void window(int site, uint32_t cbid, const CallbackData *data)
{
    (void)cbid;
    (void)data;
    unsigned result = site == SITE_ENTER ? cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL) : cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL);
    printf("  in the callback: activity %s -> %u\n", site == SITE_ENTER ? "on" : "off", result);
}

void windows(void)
{
    uint8_t off = 0;
    size_t size = sizeof off;
    CUstream stream;
    start_cuda();
    load_module();
    QUIET(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    subscribe();
    enable_launch_callbacks();
    CUgraphExec exec = capture_graph(stream, 10);
    CALL(cupti.cuptiActivitySetAttribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, &size, &off));
    CALL(cupti.cuptiActivityRegisterCallbacks(on_request, on_complete));
    CALL(launch(f_short, NULL));
    in_callback = window;
    CALL(launch(f_other, NULL));
    in_callback = NULL;
    CALL(launch(f_short, NULL));
    in_callback = window;
    CALL(launch_graph(exec, stream));
    in_callback = NULL;
    CALL(launch_graph(exec, stream));
    settle();
    printf("the same, switched around the call instead:\n");
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
    CALL(launch(f_other, NULL));
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    CALL(launch(f_short, NULL));
    settle();
}

static CUstream asked_streams[4];
static int asked;

static void ask_capturing(int site, uint32_t cbid, const CallbackData *data)
{
    static const char *const what[] = {"legacy", "legacy handle", "per-thread", "explicit"};
    (void)cbid;
    (void)data;
    if (site != SITE_EXIT) return;
    for (int i = 0; i < asked; i++) {
        int status = -1;
        unsigned result = cu.cuStreamIsCapturing(asked_streams[i], &status);
        printf("  in the callback: cuStreamIsCapturing(%s) -> %u", what[i], result);
        if (!result) printf(" status %d", status);
        printf("\n");
    }
}

void capturing(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    start_cuda();
    load_module();
    QUIET(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    asked_streams[1] = CU_STREAM_LEGACY;
    asked_streams[2] = CU_STREAM_PER_THREAD;
    asked_streams[3] = stream;
    asked = 4;
    in_callback = ask_capturing;
    CALL(launch(f_short, NULL));
    CALL(launch(f_short, CU_STREAM_PER_THREAD));
    CALL(launch(f_short, stream));
    CALL(cu.cuStreamBeginCapture_v2(stream, CAPTURE_MODE_RELAXED));
    CALL(launch(f_short, stream));
    CALL(launch(f_short, CU_STREAM_PER_THREAD));
    printf("switching activity while capturing:\n");
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
    CALL(launch(f_short, stream));
    CALL(cu.cuStreamEndCapture(stream, &graph));
    printf("graph %s\n", graph ? "made" : "missing");
    settle();
}
