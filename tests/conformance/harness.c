#define _GNU_SOURCE
#include "harness.h"
#include <dlfcn.h>
#include <glob.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cuda_table cu;
struct cupti_table cupti;
unsigned long long long_ns = 500000000ull;
CUdevice device;
CUcontext context;
CUmodule module;
CUfunction f_short, f_other, f_spin;
CUpti_SubscriberHandle subscriber;
void (*in_callback)(int, uint32_t, const CallbackData *);

/* conf_spin keeps one thread busy for the nanoseconds of its only parameter. */
const char conformance_ptx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry conf_short()\n{\n\tret;\n}\n"
    ".visible .entry conf_other()\n{\n\tret;\n}\n"
    ".visible .entry conf_spin(.param .u64 nanoseconds)\n{\n"
    "\t.reg .pred %p<2>;\n\t.reg .b64 %rd<5>;\n"
    "\tld.param.u64 %rd1, [nanoseconds];\n"
    "\tmov.u64 %rd2, %globaltimer;\n"
    "again:\n"
    "\tmov.u64 %rd3, %globaltimer;\n"
    "\tsub.u64 %rd4, %rd3, %rd2;\n"
    "\tsetp.lt.u64 %p1, %rd4, %rd1;\n"
    "\t@%p1 bra again;\n"
    "\tret;\n}\n";

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "conformance: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    _exit(1);
}

void *must_dlsym(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) fail("no symbol %s", name);
    return symbol;
}

/* The first that loads: the given path, the loader's own search, the usual places of a toolkit. */
static void *open_cupti(const char *given)
{
    static const char *const places[] = {
        "/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.13",
        "/usr/local/cuda*/lib64/libcupti.so.13",
        "/usr/local/cuda*/targets/*/lib/libcupti.so.13",
        "/usr/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.13",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.13",
        "/opt/*/lib/python3*/site-packages/nvidia/*/lib/libcupti.so.13",
    };
    if (given) return dlopen(given, RTLD_NOW);
    void *library = dlopen("libcupti.so.13", RTLD_NOW);
    for (size_t i = 0; !library && i < sizeof places / sizeof *places; i++) {
        glob_t found;
        if (glob(places[i], 0, NULL, &found) == 0)
            for (size_t j = 0; !library && j < found.gl_pathc; j++)
                library = dlopen(found.gl_pathv[j], RTLD_NOW);
        globfree(&found);
    }
    return library;
}

void load_libraries(const char *libcuda, const char *libcupti)
{
    /* libcuda first: some libcupti versions crash without it. */
    void *library = dlopen(libcuda ? libcuda : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) fail("libcuda: %s", dlerror());
#define X(name, args) cu.name = (CUresult(*) args)must_dlsym(library, #name);
    CUDA_FUNCTIONS(X)
#undef X
    library = open_cupti(libcupti);
    if (!library) fail("libcupti: %s", dlerror());
#define X(name, args) cupti.name = (CUresult(*) args)must_dlsym(library, #name);
    CUPTI_FUNCTIONS(X)
#undef X
}

/* ---- callbacks ---- */

static uint32_t first_id;
static const void *expected_function;
static CUstream expected_stream;

void expect(const void *function, CUstream stream)
{
    expected_function = function;
    expected_stream = stream;
}

static int relative(uint32_t id)
{
    if (!first_id) first_id = id;
    return (int)(id - first_id);
}

static const void *word(const void *base, size_t offset)
{
    return *(const void *const *)((const char *)base + offset);
}

static void print_params(uint32_t cbid, const void *params)
{
    const void *function = NULL, *stream = NULL;
    switch (cbid) {
    case CBID_cuLaunchKernel: case CBID_cuLaunchKernel_ptsz:
    case CBID_cuLaunchCooperativeKernel: case CBID_cuLaunchCooperativeKernel_ptsz:
        function = word(params, 0);
        stream = word(params, 40);
        break;
    case CBID_cuLaunchKernelEx: case CBID_cuLaunchKernelEx_ptsz:
        function = word(params, 8);
        stream = word(word(params, 0), 32);
        break;
    case CBID_cuGraphLaunch: case CBID_cuGraphLaunch_ptsz:
        function = word(params, 0);
        stream = word(params, 8);
        break;
    default:
        return;
    }
    printf(" function=%s stream=%s", function == expected_function ? "given" : "other",
           stream == expected_stream ? "given" : "other");
}

static void print_api(int domain, uint32_t cbid, const CallbackData *data)
{
    uint64_t token = 0xC0FFEE0000000000ull | data->correlation_id;
    printf("  %s %s %u %s symbol=%s id=%+d context=%s", data->site == SITE_ENTER ? "ENTER" : "EXIT ",
           domain == DOMAIN_DRIVER ? "driver" : "runtime", cbid, data->function_name,
           data->symbol_name ? data->symbol_name : "(null)", relative(data->correlation_id),
           data->context == context ? "own" : data->context ? "other" : "null");
    if (domain == DOMAIN_DRIVER) print_params(cbid, data->params);
    if (data->site == SITE_ENTER) {
        printf(" slot=%s", *data->correlation_data ? "used" : "zero");
        *data->correlation_data = token;
    } else {
        printf(" slot=%s result=%u", *data->correlation_data == token ? "kept" : "other", *(const unsigned *)data->return_value);
    }
    printf("\n");
}

/* Modules of the driver's own come and go as it likes: only ours are told. */
static void print_module(const char *event, const ResourceData *data)
{
    static uint32_t ids[16];
    const ModuleResourceData *m = data->descriptor;
    size_t known = 0;
    if (!memmem(m->cubin, m->cubin_size, "conf_short", 10)) return;
    while (known < 16 && ids[known] && ids[known] != m->module_id) known++;
    if (known < 16) ids[known] = m->module_id;
    static const void *bytes[16];
    static size_t sizes[16];
    bool same = known < 16 && bytes[known] == m->cubin && sizes[known] == m->cubin_size;
    if (known < 16 && !bytes[known]) {
        bytes[known] = m->cubin;
        sizes[known] = m->cubin_size;
        same = true;
    }
    printf("  %s module=#%zu elf=%s cubin=%s context=%s\n", event, known + 1,
           memcmp(m->cubin, "\177ELF", 4) == 0 ? "yes" : "no", same ? "same bytes" : "other bytes",
           data->context == context ? "own" : "other");
}

void on_callback(void *user, int domain, uint32_t cbid, const void *data)
{
    (void)user;
    if (domain == DOMAIN_DRIVER || domain == DOMAIN_RUNTIME) {
        const CallbackData *api = data;
        print_api(domain, cbid, api);
        if (in_callback) in_callback(api->site, cbid, api);
    } else if (domain == DOMAIN_RESOURCE) {
        switch (cbid) {
        case RESOURCE_MODULE_LOADED: print_module("MODULE_LOADED", data); break;
        case RESOURCE_MODULE_UNLOAD_STARTING: print_module("MODULE_UNLOAD_STARTING", data); break;
        case RESOURCE_MODULE_PROFILED: print_module("MODULE_PROFILED", data); break;
        case RESOURCE_CU_INIT_FINISHED: printf("  CU_INIT_FINISHED\n"); break;
        case RESOURCE_CONTEXT_CREATED: printf("  CONTEXT_CREATED\n"); break;
        default: printf("  resource %u\n", cbid); break;
        }
    }
}

/* ---- buffers and records ---- */

enum { BUFFER_SIZE = 256 * 1024, MAX_RECORDS = 512 };
static atomic_int requested, returned, told_requested, told_returned;
static Kernel5 records[MAX_RECORDS];
bool quiet_buffers;
static atomic_int record_count;

int buffers_requested(void) { return requested; }
int buffers_outstanding(void) { return requested - returned; }

void tell_buffers(void)
{
    int r = requested, d = returned;
    if (!quiet_buffers && (r != told_requested || d != told_returned))
        printf(" buffers: %d requested, %d returned, %d outstanding", r - told_requested, d - told_returned, r - d);
    told_requested = r;
    told_returned = d;
    printf("\n");
}

void on_request(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_SIZE);
    *size = *buffer ? BUFFER_SIZE : 0;
    *max_records = 0;
    requested++;
    if (!quiet_buffers) printf("  buffer requested\n");
}

static void complete(const char *who, CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t valid)
{
    void *record = NULL;
    uint8_t *previous = NULL;
    size_t count = 0, step = 0;
    bool even = true;
    unsigned result;
    while ((result = cupti.cuptiActivityGetNextRecord(buffer, valid, &record)) == 0) {
        if (previous) {
            size_t distance = (size_t)((uint8_t *)record - previous);
            if (step && step != distance) even = false;
            step = distance;
        }
        previous = record;
        count++;
        int slot = record_count++;
        if (slot < MAX_RECORDS) memcpy(&records[slot], record, sizeof *records);
    }
    if (count == 1) step = valid;
    if (!quiet_buffers)
        printf("  buffer returned%s: %zu records, steps of %zu%s, validSize %s, then %u; context=%s stream=%u\n", who, count, step,
               even ? "" : " (uneven)", valid == count * step ? "exact" : "differs", result, ctx ? "set" : "null", stream);
    free(buffer);
    returned++;
}

void on_complete(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)size;
    complete("", ctx, stream, buffer, valid);
}

void on_complete_other(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)size;
    complete(" to the second tool", ctx, stream, buffer, valid);
}

static int by_id_and_node(const void *left, const void *right)
{
    const Kernel5 *a = left, *b = right;
    if (a->correlation_id != b->correlation_id) return a->correlation_id < b->correlation_id ? -1 : 1;
    if (a->graph_node_id != b->graph_node_id) return a->graph_node_id < b->graph_node_id ? -1 : 1;
    return a->start < b->start ? -1 : a->start > b->start;
}

/* The n-th distinct value seen since the process began; 0 for 0. */
static size_t ordinal(uint64_t *seen, size_t room, uint64_t value)
{
    size_t i = 0;
    if (!value) return 0;
    while (i < room && seen[i] && seen[i] != value) i++;
    if (i < room) seen[i] = value;
    return i + 1;
}

int print_records(void)
{
    static uint64_t streams[32], graphs[32], nodes[64];
    uint32_t own = 0;
    int count = record_count < MAX_RECORDS ? record_count : MAX_RECORDS;
    cupti.cuptiGetContextId(context, &own);
    qsort(records, (size_t)count, sizeof *records, by_id_and_node);
    for (int i = 0; i < count; i++) {
        const Kernel5 *r = &records[i];
        printf("record kind=%u id=%+d name=%s grid=%d,%d,%d block=%d,%d,%d shared=%d+%d device=%u context=%s", r->kind,
               relative(r->correlation_id), r->name ? r->name : "(null)", r->grid[0], r->grid[1], r->grid[2], r->block[0],
               r->block[1], r->block[2], r->static_shared, r->dynamic_shared, r->device, r->context == own ? "own" : "other");
        printf(" stream=#%zu graph=#%zu node=#%zu launch=%u queued=%s submitted=%s", ordinal(streams, 32, (uint64_t)r->stream + 1),
               ordinal(graphs, 32, r->graph_id), ordinal(nodes, 64, r->graph_node_id), r->launch_type, r->queued ? "set" : "0",
               r->submitted ? "set" : "0");
        printf(" times=%s completed=%s\n", r->start && r->start <= r->end ? "start<=end" : !r->start && !r->end ? "0/0" : "odd",
               r->completed == r->end ? "end" : r->completed ? "other" : "0");
    }
    if (!count) printf("no records\n");
    record_count = 0;
    return count;
}

void settle(void)
{
    CALL(cu.cuCtxSynchronize());
    CALL(cupti.cuptiActivityFlushAll(0));
    print_records();
}

/* ---- common steps ---- */

void use_context(void)
{
    QUIET(cu.cuCtxSetCurrent(context));
}

void load_module(void)
{
    QUIET(cu.cuModuleLoadData(&module, conformance_ptx));
    QUIET(cu.cuModuleGetFunction(&f_short, module, "conf_short"));
    QUIET(cu.cuModuleGetFunction(&f_other, module, "conf_other"));
    QUIET(cu.cuModuleGetFunction(&f_spin, module, "conf_spin"));
}

void start_cuda(void)
{
    QUIET(cu.cuInit(0));
    QUIET(cu.cuDeviceGet(&device, 0));
    QUIET(cu.cuDevicePrimaryCtxRetain(&context, device));
    use_context();
}

/* Lazily loaded functions may wait for running kernels at their first launch. */
void warm_up(void)
{
    unsigned long long none = 0;
    void *args[] = {&none};
    QUIET(cu.cuLaunchKernel(f_short, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    QUIET(cu.cuLaunchKernel(f_other, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    QUIET(cu.cuLaunchKernel(f_spin, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
    QUIET(cu.cuCtxSynchronize());
}

void subscribe(void)
{
    CALL(cupti.cuptiSubscribe(&subscriber, on_callback, NULL));
}

void enable_launch_callbacks(void)
{
    static const uint32_t cbids[] = {
        CBID_cuLaunchKernel, CBID_cuLaunchKernel_ptsz, CBID_cuLaunchCooperativeKernel, CBID_cuLaunchCooperativeKernel_ptsz,
        CBID_cuGraphLaunch, CBID_cuGraphLaunch_ptsz, CBID_cuLaunchKernelEx, CBID_cuLaunchKernelEx_ptsz,
    };
    for (size_t i = 0; i < sizeof cbids / sizeof *cbids; i++)
        QUIET(cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER, cbids[i]));
}

void enable_activity(void)
{
    uint8_t off = 0;
    size_t size = sizeof off;
    CALL(cupti.cuptiActivitySetAttribute(ATTR_PER_THREAD_ACTIVITY_BUFFER, &size, &off));
    CALL(cupti.cuptiActivityRegisterCallbacks(on_request, on_complete));
    CALL(cupti.cuptiActivityEnable(KIND_CONCURRENT_KERNEL));
}

CUresult launch(CUfunction f, CUstream stream)
{
    expect(f, stream);
    return cu.cuLaunchKernel(f, 2, 3, 1, 32, 2, 1, 0, stream, NULL, NULL);
}

CUresult launch_spin(CUstream stream)
{
    void *args[] = {&long_ns};
    expect(f_spin, stream);
    return cu.cuLaunchKernel(f_spin, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

CUresult launch_graph(CUgraphExec exec, CUstream stream)
{
    expect(exec, stream);
    return cu.cuGraphLaunch(exec, stream);
}

CUgraphExec capture_graph(CUstream stream, int kernels)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CALL(cu.cuStreamBeginCapture_v2(stream, CAPTURE_MODE_RELAXED));
    for (int i = 0; i < kernels; i++)
        CALL(launch(i % 2 ? f_other : f_short, stream));
    CALL(cu.cuStreamEndCapture(stream, &graph));
    CALL(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}
