/* What the driver and CUPTI do, as a transcript that is the same on a GPU and on the simulated driver.
 *
 *   conformance [--libcuda FILE] [--libcupti FILE] [--libcudart FILE] [--long-ms N] [--section NAME]
 *
 * Each section runs in a process of its own (a crash or a hang is a line of the transcript, not its
 * end). Lines with # in front describe the machine. Times and addresses are never printed, ids only
 * relative to the section's first. Exit status: 0 all sections ran, 1 one could not be set up. */
#define _GNU_SOURCE
#include "harness.h"
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECTION_SECONDS = 30 };
static const char *libcudart;

/* ---- sections: plain calls ---- */

static void names(void)
{
    static const struct { int domain; uint32_t cbid; } ids[] = {
        {1, 1}, {1, 19}, {1, 115}, {1, 116}, {1, 117}, {1, 307}, {1, 442}, {1, 477}, {1, 478}, {1, 480}, {1, 514}, {1, 515},
        {1, 652}, {1, 653}, {1, 678}, {2, 13}, {2, 211}, {2, 213}, {2, 214}, {2, 269}, {2, 270}, {2, 272}, {2, 311}, {2, 312},
        {2, 430}, {2, 431}, {1, 99999}, {2, 99999}, {99, 1},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const char *name = NULL;
        unsigned result = cupti.cuptiGetCallbackName(ids[i].domain, ids[i].cbid, &name);
        printf("domain %d cbid %u: %u %s\n", ids[i].domain, ids[i].cbid, result, !result && name ? name : "-");
    }
}

static void subscribing(void)
{
    CUpti_SubscriberHandle second = NULL;
    printf("before cuInit:\n");
    CALL(cupti.cuptiSubscribe(&subscriber, on_callback, NULL));
    CALL(cupti.cuptiSubscribe(&second, on_callback, NULL));
    CALL(cupti.cuptiUnsubscribe(subscriber));
    start_cuda();
    printf("after cuInit:\n");
    CALL(cupti.cuptiSubscribe(NULL, on_callback, NULL));
    CALL(cupti.cuptiSubscribe(&subscriber, on_callback, NULL));
    CALL(cupti.cuptiSubscribe(&second, on_callback, NULL));
    CALL(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER, CBID_cuLaunchKernel));
    CALL(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER, 99999));
    CALL(cupti.cuptiEnableCallback(1, subscriber, 99, 1));
    CALL(cupti.cuptiEnableDomain(1, subscriber, 99));
    CALL(cupti.cuptiEnableCallback(0, subscriber, DOMAIN_DRIVER, CBID_cuLaunchKernel));
    CALL(cupti.cuptiUnsubscribe(subscriber));
    CALL(cupti.cuptiSubscribe(&second, on_callback, NULL));
    CALL(cupti.cuptiUnsubscribe(second));
}

static void activity_results(void)
{
    uint8_t buffer[256] = {0};
    void *record = NULL;
    size_t dropped = 99;
    uint64_t now = 0;
    start_cuda();
    CALL(cupti.cuptiActivityFlushAll(0));
    CALL(cupti.cuptiActivityRegisterCallbacks(NULL, NULL));
    CALL(cupti.cuptiActivityRegisterCallbacks(on_request, on_complete));
    CALL(cupti.cuptiActivityEnable(9999));
    CALL(cupti.cuptiActivityDisable(9999));
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityDisable(KIND_CONCURRENT_KERNEL));
    CALL(cupti.cuptiActivityFlushAll(0));
    CALL(cupti.cuptiActivityFlushAll(1));
    CALL(cupti.cuptiActivityGetNextRecord(buffer, 0, &record));
    CALL(cupti.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped));
    printf("dropped %zu\n", dropped);
    CALL(cupti.cuptiGetTimestamp(&now));
    uint64_t wall = (uint64_t)time(NULL);
    printf("timestamp is wall-clock ns: %s\n", now / 1000000000u + 2 >= wall && now / 1000000000u <= wall + 2 ? "yes" : "no");
}

static void get_attribute(uint32_t attribute, size_t size)
{
    uint8_t value[16] = {0};
    size_t given = size;
    unsigned result = cupti.cuptiActivityGetAttribute(attribute, &size, value);
    printf("get %u with size %zu: %u", attribute, given, result);
    if (!result && size == 1) printf(" size 1 value %u", value[0]);
    if (!result && size == 8) printf(" size 8 value %zu", *(size_t *)(void *)value);
    printf("\n");
}

static void set_attribute(uint32_t attribute, size_t size, uint8_t first)
{
    uint8_t value[16] = {first};
    size_t given = size;
    unsigned result = cupti.cuptiActivitySetAttribute(attribute, &size, value);
    printf("set %u with size %zu to %u: %u\n", attribute, given, first, result);
}

static void attributes(void)
{
    start_cuda();
    load_module();
    get_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 1);
    get_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
    set_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 0, 0);
    set_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 1, 0);
    get_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 1);
    get_attribute(ATTR_DEVICE_BUFFER_SIZE, sizeof(size_t));
    get_attribute(ATTR_DEVICE_BUFFER_SIZE, 4);
    get_attribute(9999, 8);
    set_attribute(9999, 8, 0);
    subscribe();
    enable_activity();
    CALL(launch(f_short, NULL));
    printf("with a kind enabled and a buffer in use:\n");
    set_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 1, 1);
    get_attribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, 1);
    settle();
}

static void entry_points(void)
{
    static const char *const functions[] = {
        "cuInit", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuModuleUnload",
        "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLaunchKernel", "cuLaunchKernelEx",
        "cuLaunchCooperativeKernel", "cuGraphLaunch",
    };
    char twin[64];
    for (int pass = 0; pass < 2; pass++) {
        printf("%s cuInit:\n", pass ? "after" : "before");
        for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
            void *exported = dlsym(RTLD_DEFAULT, functions[i]), *given = NULL, *per_thread = NULL;
            int status = -1;
            snprintf(twin, sizeof twin, "%s_ptsz", functions[i]);
            void *exported_twin = dlsym(RTLD_DEFAULT, twin);
            unsigned result = cu.cuGetProcAddress_v2(functions[i], &given, 12000, 0, &status);
            printf("%s: exported %s; cuGetProcAddress_v2 %u status %d %s", functions[i], exported ? "yes" : "no", result, status,
                   given == exported ? "same" : "other");
            result = cu.cuGetProcAddress_v2(functions[i], &per_thread, 12000, 2, &status);
            printf("; per-thread stream %u status %d %s\n", result, status,
                   exported_twin && per_thread == exported_twin ? "twin" : per_thread == exported ? "same" : "other");
        }
        if (!pass) start_cuda();
    }
    void *none = &twin;
    int status = -1;
    unsigned result = cu.cuGetProcAddress_v2("cuNoSuchFunction", &none, 12000, 0, &status);
    printf("cuNoSuchFunction: %u status %d %s\n", result, status, none ? "pointer left or set" : "null");
}

/* ---- sections: launches ---- */

static void launches(void)
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

static void failing(void)
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

static void failing_null_function(void)
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

static void failing_null_graph(void)
{
    start_cuda();
    subscribe();
    enable_launch_callbacks();
    enable_activity();
    CALL(launch_graph(NULL, NULL));
    settle();
}

static void graphs(void)
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

static void graphs_of_before(void)
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

static void windows(void)
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

static void capturing(void)
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

/* ---- sections: buffers ---- */

static void flush_beside_running_kernel(void)
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

static void unsubscribe_with_work_queued(void)
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

static void hand_over_without_force(void) { hand_over(0); }
static void hand_over_forced(void) { hand_over(1); }

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

static void threads_one_buffer(void) { threads(0); }
static void threads_buffer_each(void) { threads(1); }

static void at_exit(void)
{
    start_cuda();
    load_module();
    subscribe();
    enable_activity();
    CALL(launch(f_short, NULL));
    CALL(cu.cuCtxSynchronize());
    printf("main returns\n");
}

/* ---- sections: modules ---- */

static void modules(void)
{
    static const uint32_t events[] = {RESOURCE_MODULE_LOADED, RESOURCE_MODULE_UNLOAD_STARTING, RESOURCE_MODULE_PROFILED};
    CUmodule second;
    start_cuda();
    load_module();
    CALL(launch(f_short, NULL));
    subscribe();
    printf("a module was loaded before:\n");
    for (size_t i = 0; i < 3; i++)
        CALL(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_RESOURCE, events[i]));
    CALL(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER, CBID_cuModuleLoadData));
    CALL(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER, CBID_cuModuleUnload));
    CALL(launch(f_short, NULL));
    enable_activity();
    CALL(launch(f_short, NULL));
    CALL(cu.cuCtxSynchronize());
    printf("a module loaded now:\n");
    CALL(cu.cuModuleLoadData(&second, conformance_ptx));
    CALL(cu.cuModuleGetFunction(&f_other, second, "conf_other"));
    CALL(launch(f_other, NULL));
    CALL(cu.cuCtxSynchronize());
    CALL(cu.cuModuleUnload(second));
    CALL(cu.cuModuleUnload(module));
    settle();
    CALL(cu.cuModuleLoadData(&second, "this is no module"));
}

/* ---- sections: injection ---- */

static void injection(void)
{
    unsigned result = 0;
    for (int i = 0; i < 2; i++) {
        printf("> cuInit\n");
        result = cu.cuInit(0);
        printf("< %u\n", result);
    }
    if (result) return; /* spoiled by what the injected library did */
    QUIET(cu.cuDeviceGet(&device, 0));
    CALL(cu.cuDevicePrimaryCtxRetain(&context, device));
    use_context();
    load_module();
    CALL(launch(f_short, NULL));
    QUIET(cu.cuCtxSynchronize());
}

/* ---- sections: runtime ---- */

struct dim3 { unsigned x, y, z; };

static void runtime(void)
{
    if (!libcudart) {
        printf("not run\n");
        return;
    }
    void *rt = dlopen(libcudart, RTLD_NOW), *library = NULL, *kernel = NULL;
    if (!rt) fail("libcudart: %s", dlerror());
    int (*load)(void **, const void *, void *, void **, unsigned, void *, void **, unsigned) = must_dlsym(rt, "cudaLibraryLoadData");
    int (*get)(void **, void *, const char *) = must_dlsym(rt, "cudaLibraryGetKernel");
    int (*run)(const void *, struct dim3, struct dim3, void **, size_t, void *) = must_dlsym(rt, "cudaLaunchKernel");
    start_cuda();
    QUIET((unsigned)load(&library, conformance_ptx, NULL, NULL, 0, NULL, NULL, 0));
    QUIET((unsigned)get(&kernel, library, "conf_short"));
    struct dim3 one = {1, 1, 1};
    QUIET((unsigned)run(kernel, one, one, NULL, 0, NULL));
    subscribe();
    enable_launch_callbacks();
    CALL(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_RUNTIME, CBID_cudaLaunchKernel));
    enable_activity();
    CALL((unsigned)run(kernel, one, one, NULL, 0, NULL));
    CALL((unsigned)run(kernel, one, one, NULL, 0, NULL));
    settle();
}

/* ---- running them ---- */

static const struct section {
    const char *name;
    void (*body)(void);
    const char *injection; /* what the injected library does, NULL: none */
} sections[] = {
    {"names", names, NULL},
    {"subscribing", subscribing, NULL},
    {"activity_results", activity_results, NULL},
    {"attributes", attributes, NULL},
    {"entry_points", entry_points, NULL},
    {"launches", launches, NULL},
    {"failing", failing, NULL},
    {"failing_null_function", failing_null_function, NULL},
    {"failing_null_graph", failing_null_graph, NULL},
    {"graphs", graphs, NULL},
    {"graphs_of_before", graphs_of_before, NULL},
    {"windows", windows, NULL},
    {"capturing", capturing, NULL},
    {"flush_beside_running_kernel", flush_beside_running_kernel, NULL},
    {"unsubscribe_with_work_queued", unsubscribe_with_work_queued, NULL},
    {"hand_over_without_force", hand_over_without_force, NULL},
    {"hand_over_forced", hand_over_forced, NULL},
    {"threads_one_buffer", threads_one_buffer, NULL},
    {"threads_buffer_each", threads_buffer_each, NULL},
    {"at_exit", at_exit, NULL},
    {"modules", modules, NULL},
    {"injection", injection, "subscribe"},
    {"injection_refuses", injection, "refuse"},
    {"injection_calls_cuInit", injection, "cuInit"},
    {"runtime", runtime, NULL},
};

static void describe(void)
{
    char name[128] = "?";
    int version = 0;
    uint32_t api = 0;
    time_t now = time(NULL);
    char day[32];
    start_cuda();
    cu.cuDeviceGetName(name, sizeof name, device);
    cu.cuDriverGetVersion(&version);
    cupti.cuptiGetVersion(&api);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime(&now));
    printf("# gpu %s\n# cuda driver API %d.%d\n# cupti API %u\n# date %s\n", name, version / 1000, version % 1000 / 10, api, day);
    char line[256];
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file && fgets(line, sizeof line, file)) printf("# driver %s", line);
    if (file) fclose(file);
}

static int run_section(const char *self, char **argv, const struct section *s)
{
    char name[64] = "describe", library[PATH_MAX + 64];
    if (s) {
        snprintf(name, sizeof name, "%s", s->name);
        printf("== %s\n", name);
    }
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        char *args[32];
        int n = 0;
        while (argv[n] && n < 28) {
            args[n] = argv[n];
            n++;
        }
        args[n++] = "--section";
        args[n++] = name;
        args[n] = NULL;
        unsetenv("CUDA_INJECTION64_PATH");
        if (s && s->injection) {
            char copy[PATH_MAX];
            snprintf(copy, sizeof copy, "%s", self);
            snprintf(library, sizeof library, "%s/conformance_injection.so", dirname(copy));
            setenv("CUDA_INJECTION64_PATH", library, 1);
            setenv("CONFORMANCE_INJECTION", s->injection, 1);
        }
        execv(self, args);
        _exit(127);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) printf("did not end\n");
    else if (WIFSIGNALED(status)) printf("died of signal %d\n", WTERMSIG(status));
    else if (WEXITSTATUS(status)) printf("could not be set up\n");
    fflush(stdout);
    return WIFEXITED(status) && WEXITSTATUS(status) ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *libcuda = NULL, *libcupti = NULL, *only = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--libcuda")) libcuda = argv[i + 1];
        else if (!strcmp(argv[i], "--libcupti")) libcupti = argv[i + 1];
        else if (!strcmp(argv[i], "--libcudart")) libcudart = argv[i + 1];
        else if (!strcmp(argv[i], "--long-ms")) long_ns = strtoull(argv[i + 1], NULL, 10) * 1000000u;
        else if (!strcmp(argv[i], "--section")) only = argv[i + 1];
        else fail("unknown option %s", argv[i]);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) fail("/proc/self/exe");
    self[length] = 0;
    if (!only) {
        int failures = run_section(self, argv, NULL);
        for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
            failures += run_section(self, argv, &sections[i]);
        return failures ? 1 : 0;
    }
    alarm(SECTION_SECONDS);
    load_libraries(libcuda, libcupti);
    if (!strcmp(only, "describe")) {
        describe();
        return 0;
    }
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (!strcmp(only, sections[i].name)) {
            sections[i].body();
            return 0;
        }
    fail("no section %s", only);
}
