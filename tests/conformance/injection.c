/* The library that CUDA_INJECTION64_PATH names in the injection sections: says when the driver calls
 * it and what works inside. It shares the program's stdout, so the order of lines is the order of calls. */
#include "abi.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_callback(void *user, int domain, uint32_t cbid, const void *data)
{
    (void)user;
    if (domain == DOMAIN_RESOURCE) {
        if (cbid == RESOURCE_CU_INIT_FINISHED) printf("  CU_INIT_FINISHED\n");
        if (cbid == RESOURCE_CONTEXT_CREATED) printf("  CONTEXT_CREATED\n");
        return;
    }
    const CallbackData *api = data;
    printf("  %s %s\n", api->site == SITE_ENTER ? "ENTER" : "EXIT ", api->function_name);
}

#define CUDA(name) ((CUresult(*)())dlsym(cuda, name))
#define CUPTI(name) ((CUptiResult(*)())dlsym(cupti, name))

__attribute__((visibility("default"))) int InitializeInjection(void)
{
    const char *what = getenv("CONFORMANCE_INJECTION");
    /* The program has loaded both: this only finds them. */
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
    CUpti_SubscriberHandle subscriber = NULL;
    int count = -1;
    printf("  InitializeInjection begins\n");
    if (!what || !cuda || !cupti) {
        printf("  libcuda or libcupti is not there by its soname\n");
        return 1;
    }
    unsigned result = CUDA("cuDeviceGetCount")(&count);
    printf("  cuDeviceGetCount -> %u", result);
    printf(result ? "\n" : " count %s\n", count > 0 ? "positive" : "0");
    if (!strcmp(what, "cuInit")) {
        printf("  > cuInit\n");
        result = CUDA("cuInit")(0u);
        printf("  < %u\n", result);
    }
    if (!strcmp(what, "subscribe")) {
        printf("  cuptiSubscribe -> %u\n", CUPTI("cuptiSubscribe")(&subscriber, on_callback, NULL));
        printf("  enable cuLaunchKernel -> %u\n", CUPTI("cuptiEnableCallback")(1u, subscriber, DOMAIN_DRIVER, CBID_cuLaunchKernel));
        printf("  enable cuInit -> %u\n", CUPTI("cuptiEnableCallback")(1u, subscriber, DOMAIN_DRIVER, 1u));
        printf("  enable CU_INIT_FINISHED -> %u\n", CUPTI("cuptiEnableCallback")(1u, subscriber, DOMAIN_RESOURCE, RESOURCE_CU_INIT_FINISHED));
        printf("  enable CONTEXT_CREATED -> %u\n", CUPTI("cuptiEnableCallback")(1u, subscriber, DOMAIN_RESOURCE, RESOURCE_CONTEXT_CREATED));
        printf("  cuptiActivityEnable -> %u\n", CUPTI("cuptiActivityEnable")(KIND_CONCURRENT_KERNEL));
        printf("  cuptiActivityDisable -> %u\n", CUPTI("cuptiActivityDisable")(KIND_CONCURRENT_KERNEL));
    }
    printf("  InitializeInjection ends\n");
    return strcmp(what, "refuse") ? 1 : 0;
}
