/* Sections about modules, the injected library and the runtime API. */
#define _GNU_SOURCE
#include "harness.h"
#include "sections.h"
#include <dlfcn.h>

void modules(void)
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

void injection(void)
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

struct dim3 { unsigned x, y, z; };

void runtime(void)
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
