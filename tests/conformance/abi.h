/* The driver and CUPTI declarations the conformance program needs, stated by us: no CUDA header is
 * needed to build it. tests/tests/conformance_layout.rs holds the same layouts against the real ones. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef unsigned int CUresult;
typedef unsigned int CUptiResult;
typedef int CUdevice;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUgraph, *CUgraphExec, *CUpti_SubscriberHandle;

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)
#define CU_STREAM_NON_BLOCKING 1u
#define CAPTURE_MODE_RELAXED 2

typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void *attrs;
    unsigned num_attrs;
} CUlaunchConfig;

enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2, DOMAIN_RESOURCE = 3 };
enum { SITE_ENTER = 0, SITE_EXIT = 1 };
enum { KIND_CONCURRENT_KERNEL = 10 };
enum { ATTR_DEVICE_BUFFER_SIZE = 0, ATTR_PER_THREAD_ACTIVITY_BUFFER = 9 };
enum { RESOURCE_CONTEXT_CREATED = 1, RESOURCE_CU_INIT_FINISHED = 5, RESOURCE_MODULE_LOADED = 6,
       RESOURCE_MODULE_UNLOAD_STARTING = 7, RESOURCE_MODULE_PROFILED = 8 };
enum { CBID_cuModuleLoadData = 19, CBID_cuModuleUnload = 22, CBID_cuLaunchKernel = 307, CBID_cuLaunchKernel_ptsz = 442,
       CBID_cuLaunchCooperativeKernel = 477, CBID_cuLaunchCooperativeKernel_ptsz = 478, CBID_cuGraphLaunch = 514,
       CBID_cuGraphLaunch_ptsz = 515, CBID_cuLaunchKernelEx = 652, CBID_cuLaunchKernelEx_ptsz = 653 };
enum { CBID_cudaLaunchKernel = 211 };

typedef struct {
    int site;
    const char *function_name;
    const void *params;
    const void *return_value;
    const char *symbol_name;
    CUcontext context;
    uint32_t context_uid;
    uint64_t *correlation_data;
    uint32_t correlation_id;
} CallbackData;
_Static_assert(sizeof(CallbackData) == 72, "CUpti_CallbackData");
_Static_assert(offsetof(CallbackData, correlation_id) == 64, "CUpti_CallbackData");

typedef struct {
    CUcontext context;
    void *handle;
    const void *descriptor;
} ResourceData;

typedef struct {
    uint32_t module_id;
    size_t cubin_size;
    const char *cubin;
} ModuleResourceData;

/* First 160 bytes of a kernel record, every CUDA version. */
typedef struct {
    uint32_t kind;
    uint8_t cache_config, shared_config;
    uint16_t registers;
    uint32_t partitioned_requested, partitioned_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation_id;
    int64_t grid_id;
    const char *name;
    void *reserved0;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout_requested, carveout, padding;
    uint32_t shared_executed;
    uint64_t graph_node_id;
    uint32_t shmem_limit, graph_id;
} Kernel5;
_Static_assert(sizeof(Kernel5) == 160, "CUpti_ActivityKernel5");
_Static_assert(offsetof(Kernel5, correlation_id) == 92 && offsetof(Kernel5, graph_id) == 156, "CUpti_ActivityKernel5");

typedef void (*CallbackFunc)(void *user, int domain, uint32_t cbid, const void *data);
typedef void (*RequestFunc)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*CompleteFunc)(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

#define CUDA_FUNCTIONS(X) \
    X(cuInit, (unsigned)) \
    X(cuDriverGetVersion, (int *)) \
    X(cuDeviceGetCount, (int *)) \
    X(cuDeviceGet, (CUdevice *, int)) \
    X(cuDeviceGetName, (char *, int, CUdevice)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
    X(cuCtxSetCurrent, (CUcontext)) \
    X(cuCtxSynchronize, (void)) \
    X(cuModuleLoadData, (CUmodule *, const void *)) \
    X(cuModuleUnload, (CUmodule)) \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    X(cuStreamCreate, (CUstream *, unsigned)) \
    X(cuStreamSynchronize, (CUstream)) \
    X(cuStreamBeginCapture_v2, (CUstream, int)) \
    X(cuStreamEndCapture, (CUstream, CUgraph *)) \
    X(cuStreamIsCapturing, (CUstream, int *)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphLaunch, (CUgraphExec, CUstream)) \
    X(cuGraphLaunch_ptsz, (CUgraphExec, CUstream)) \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuLaunchKernel_ptsz, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuLaunchCooperativeKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **)) \
    X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

#define CUPTI_FUNCTIONS(X) \
    X(cuptiGetVersion, (uint32_t *)) \
    X(cuptiSubscribe, (CUpti_SubscriberHandle *, CallbackFunc, void *)) \
    X(cuptiUnsubscribe, (CUpti_SubscriberHandle)) \
    X(cuptiEnableCallback, (uint32_t, CUpti_SubscriberHandle, int, uint32_t)) \
    X(cuptiEnableDomain, (uint32_t, CUpti_SubscriberHandle, int)) \
    X(cuptiGetCallbackName, (int, uint32_t, const char **)) \
    X(cuptiActivityRegisterCallbacks, (RequestFunc, CompleteFunc)) \
    X(cuptiActivityEnable, (uint32_t)) \
    X(cuptiActivityDisable, (uint32_t)) \
    X(cuptiActivityGetNextRecord, (uint8_t *, size_t, void **)) \
    X(cuptiActivityGetNumDroppedRecords, (CUcontext, uint32_t, size_t *)) \
    X(cuptiActivityFlushAll, (uint32_t)) \
    X(cuptiActivityGetAttribute, (uint32_t, size_t *, void *)) \
    X(cuptiActivitySetAttribute, (uint32_t, size_t *, void *)) \
    X(cuptiGetTimestamp, (uint64_t *)) \
    X(cuptiGetContextId, (CUcontext, uint32_t *)) \
    X(cuptiGetStreamIdEx, (CUcontext, CUstream, uint8_t, uint32_t *))

#define X(name, args) CUresult(*name) args;
struct cuda_table { CUDA_FUNCTIONS(X) };
struct cupti_table { CUPTI_FUNCTIONS(X) };
#undef X
