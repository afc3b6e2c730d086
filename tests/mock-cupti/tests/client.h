/* What the test clients share: declarations, look-up, one expectation macro, a loaded kernel. */
#ifndef CLIENT_H
#define CLIENT_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

typedef void (*callback_fn)(void *, uint32_t, uint32_t, const void *);
typedef void (*request_fn)(uint8_t **, size_t *, size_t *);
typedef void (*complete_fn)(void *, uint32_t, uint8_t *, size_t, size_t);

/* CUpti_CallbackData */
struct callback_data {
	uint32_t site;
	const char *function_name;
	const void *params;
	const int *result;
	const char *symbol;
	void *context;
	uint32_t context_uid;
	uint64_t *correlation_data;
	uint32_t correlation_id;
};

/* The fields of a kernel record that the tests read, at the offsets that every CUPTI has. */
#define FIELD(record, type, offset) (*(const type *)((const char *)(record) + (offset)))
#define START(record) FIELD(record, uint64_t, 16)
#define END(record) FIELD(record, uint64_t, 24)
#define CORRELATION(record) FIELD(record, uint32_t, 92)
#define NAME(record) FIELD(record, const char *, 104)
#define NODE(record) FIELD(record, uint64_t, 144)
#define GRAPH(record) FIELD(record, uint32_t, 156)

#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) F(cuDriverGetVersion, (int *)) F(cuDevicePrimaryCtxRetain, (void **, int)) \
	F(cuCtxSetCurrent, (void *)) F(cuCtxSynchronize, (void)) F(cuStreamCreate, (void **, unsigned)) \
	F(cuStreamSynchronize, (void *)) F(cuStreamQuery, (void *)) \
	F(cuStreamBeginCapture_v2, (void *, int)) F(cuStreamEndCapture, (void *, void **)) \
	F(cuModuleLoadData, (void **, const void *)) F(cuModuleUnload, (void *)) \
	F(cuModuleGetFunction, (void **, void *, const char *)) \
	F(cuLibraryLoadData, (void **, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
	F(cuLibraryGetKernel, (void **, void *, const char *)) F(cuLibraryUnload, (void *)) \
	F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	F(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long)) F(cuGraphLaunch, (void *, void *)) \
	F(cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *)) \
	F(mockrt_launch, (void *, const unsigned *, const unsigned *, unsigned, void *, void **)) \
	F(cuptiSubscribe, (void **, callback_fn, void *)) F(cuptiUnsubscribe, (void *)) \
	F(cuptiEnableCallback, (uint32_t, void *, uint32_t, uint32_t)) \
	F(cuptiActivityRegisterCallbacks, (request_fn, complete_fn)) F(cuptiActivityEnable, (uint32_t)) \
	F(cuptiActivityDisable, (uint32_t)) F(cuptiActivityFlushAll, (uint32_t)) \
	F(cuptiActivityGetNextRecord, (uint8_t *, size_t, void **)) \
	F(cuptiActivityGetNumDroppedRecords, (void *, uint32_t, size_t *)) \
	F(cuptiActivitySetAttribute, (uint32_t, size_t *, void *)) F(cuptiGetVersion, (uint32_t *)) \
	F(cuptiFinalize, (void)) F(cuCtxCreate_v2, (void **, unsigned, int)) F(cuCtxDestroy_v2, (void *)) \
	F(cuptiPCSamplingEnable, (void *)) F(cuptiPCSamplingDisable, (void *)) F(cuptiPCSamplingStart, (void *)) \
	F(cuptiPCSamplingStop, (void *)) F(cuptiPCSamplingGetData, (void *)) \
	F(cuptiPCSamplingSetConfigurationAttribute, (void *)) F(cuptiPCSamplingGetNumStallReasons, (void *)) \
	F(cuptiPCSamplingGetStallReasons, (void *)) F(cuptiGetCubinCrc, (void *)) \
	F(cuptiRegisterComputeCrcCallback, (void (*)(const void *, size_t, uint64_t *)))

#define POINTER(name, args) static int(*name) args;
FUNCTIONS(POINTER)

static const char PTX[] =
	".version 5.0\n.target sm_52\n.address_size 64\n"
	".visible .entry _Z5shortv() { ret; }\n"
	".visible .entry _Z15long_ns2000000000v() { ret; }\n"
	".visible .entry one_ns1000000() { ret; }\n"
	".visible .entry three_ns3000000() { ret; }\n";

static void *context, *module, *short_kernel, *long_kernel, *stream;
/* Long enough to be running whatever else the machine does. */
#define LONG_NS 2000000000

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	EXPECT(library);
	return library;
}

/* Finds every function, driver first. */
static inline void load(void)
{
	void *cuda = open_library("libcuda.so.1"), *cupti = open_library("libcupti.so.13");
#define FIND(name, args) \
	*(void **)&name = dlsym(cuda, #name); \
	if (!name) \
		*(void **)&name = dlsym(cupti, #name);
	FUNCTIONS(FIND)
}

/* Initialises the driver and loads the kernels. */
static inline void start_driver(void)
{
	EXPECT(cuInit(0) == 0);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0) == 0);
	EXPECT(cuCtxSetCurrent(context) == 0);
	EXPECT(cuModuleLoadData(&module, PTX) == 0);
	EXPECT(cuModuleGetFunction(&short_kernel, module, "_Z5shortv") == 0);
	EXPECT(cuModuleGetFunction(&long_kernel, module, "_Z15long_ns2000000000v") == 0);
	EXPECT(cuStreamCreate(&stream, 1) == 0);
}

static inline int launch(void *kernel)
{
	return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

#endif
