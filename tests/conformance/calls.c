/* Sections about single calls: names, results, attributes, addresses. */
#define _GNU_SOURCE
#include "harness.h"
#include "sections.h"
#include <dlfcn.h>
#include <time.h>

void names(void)
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

void subscribing(void)
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

void activity_results(void)
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

void attributes(void)
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

void entry_points(void)
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
