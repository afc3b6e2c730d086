/*
 * What one launch call costs the thread that makes it, in ns: the median over chunks of calls, timed
 * back to back. The stream is empty when a chunk begins and a chunk is shorter than its queue, so no
 * call waits for the GPU. Prints one JSON object; see --help. Nothing of CUDA is needed to build.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraphExec_st *CUgraphExec;

#define FUNCTIONS(F) \
	F(cuInit, (unsigned flags)) \
	F(cuDriverGetVersion, (int *version)) \
	F(cuDeviceGetCount, (int *count)) \
	F(cuDeviceGet, (int *device, int ordinal)) \
	F(cuDeviceGetName, (char *name, int length, int device)) \
	F(cuDevicePrimaryCtxRetain, (void **context, int device)) \
	F(cuDevicePrimaryCtxRelease_v2, (int device)) \
	F(cuCtxSetCurrent, (void *context)) \
	F(cuModuleLoadData, (void **module, const void *image)) \
	F(cuModuleGetFunction, (CUfunction *function, void *module, const char *name)) \
	F(cuStreamCreate, (CUstream *stream, unsigned flags)) \
	F(cuStreamSynchronize, (CUstream stream)) \
	F(cuLaunchKernel, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		unsigned shared, CUstream stream, void **params, void **extra)) \
	F(cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
	F(cuStreamEndCapture, (CUstream stream, void **graph)) \
	F(cuGraphInstantiateWithFlags, (CUgraphExec *exec, void *graph, unsigned long long flags)) \
	F(cuGraphLaunch, (CUgraphExec exec, CUstream stream))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)

#define EAGER_CHUNK 256
#define GRAPH_CHUNK 32
#define WARM_UP_CHUNKS 4

static const char PTX[] =
	".version 6.3\n.target sm_75\n.address_size 64\n"
	".visible .entry empty_kernel()\n{\n\tret;\n}\n";

static const char USAGE[] =
	"usage: launch_cost [--kind eager|graph:N|both] [--chunks N] [--seconds S]\n"
	"  --kind     eager: cuLaunchKernel; graph:N: cuGraphLaunch of N kernels; both: eager and graph:10 (default)\n"
	"  --chunks   of 256 calls (graphs: 32) per kind (400)\n"
	"  --seconds  at most that long per kind (10)\n"
	"  --check    only say which GPU there is\n"
	"Exit status: 0, 1 a call failed, 2 wrong use, 3 no driver or no GPU\n";

static CUfunction kernel;
static CUstream stream;
static CUgraphExec exec;

static void check(int result, const char *call)
{
	if (result) {
		fprintf(stderr, "launch_cost: %s gives %d\n", call, result);
		exit(1);
	}
}
#define CHECK(call) check(call, #call)

static void no_gpu(const char *why)
{
	fprintf(stderr, "launch_cost: no GPU: %s\n", why);
	exit(3);
}

static void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		no_gpu(dlerror());
#define LOOK_UP(name, parameters) \
	*(void **)&name = dlsym(library, #name); \
	if (!name) \
		no_gpu("libcuda.so.1 has no " #name);
	FUNCTIONS(LOOK_UP)
	int count = 0, result = cuInit(0);
	if (result || (result = cuDeviceGetCount(&count)) || count == 0) {
		char why[64];
		snprintf(why, sizeof why, "cuInit or cuDeviceGetCount gives %d, %d devices", result, count);
		no_gpu(why);
	}
}

static void launch_kernel(void)
{
	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void launch_graph(void)
{
	CHECK(cuGraphLaunch(exec, stream));
}

static void make_graph(int nodes)
{
	void *graph;
	/* Thread-local: other threads of the process do as they like. */
	CHECK(cuStreamBeginCapture_v2(stream, 1));
	for (int at = 0; at < nodes; at++)
		launch_kernel();
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
}

static double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Median ns per call; `chunks` becomes the number that were timed. */
static double median_cost(void (*launch)(void), int calls, int *chunks, double seconds)
{
	double *cost = calloc((size_t)*chunks, sizeof *cost), end = now_ns() + seconds * 1e9;
	int timed = 0;
	for (int chunk = -WARM_UP_CHUNKS; chunk < *chunks && (timed == 0 || now_ns() < end); chunk++) {
		CHECK(cuStreamSynchronize(stream));
		double begin = now_ns();
		for (int call = 0; call < calls; call++)
			launch();
		double took = now_ns() - begin;
		if (chunk >= 0)
			cost[timed++] = took / calls;
	}
	CHECK(cuStreamSynchronize(stream));
	qsort(cost, (size_t)timed, sizeof *cost, ascending);
	double median = (cost[timed / 2] + cost[(timed - 1) / 2]) / 2;
	free(cost);
	*chunks = timed;
	return median;
}

/* Whether our library is mapped here, by any name that it is copied to. */
static int is_profiled(void)
{
	return dlsym(RTLD_DEFAULT, "parcagpu_status") != NULL;
}

/* Whether CUPTI came into this process: it does when somebody listens, and stays. */
static int is_cupti(struct dl_phdr_info *object, size_t size, void *data)
{
	(void)size, (void)data;
	return strstr(object->dlpi_name, "/libcupti.so") != NULL;
}

static void describe(void)
{
	char name[128] = "?";
	int version = 0;
	CHECK(cuDeviceGetName(name, sizeof name, 0));
	CHECK(cuDriverGetVersion(&version));
	for (char *c = name; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '?';
	printf("{\"gpu\":\"%s\",\"cuda\":\"%d.%d\",\"profiled\":%s", name, version / 1000, version % 1000 / 10,
	       is_profiled() ? "true" : "false");
}

static int positive(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);
	if (end == text || *end || value < 1 || value > 1000000) {
		fprintf(stderr, "launch_cost: not a number from 1 to 1000000: %s\n", text);
		exit(2);
	}
	return (int)value;
}

int main(int argc, char **argv)
{
	int chunks = 400, eager = 1, nodes = 10, only_check = 0;
	double seconds = 10;
	for (int at = 1; at < argc; at++) {
		const char *option = argv[at], *value = at + 1 < argc ? argv[at + 1] : "";
		if (strcmp(option, "--check") == 0) {
			only_check = 1;
			continue;
		}
		at++;
		if (strcmp(option, "--chunks") == 0) {
			chunks = positive(value);
		} else if (strcmp(option, "--seconds") == 0) {
			seconds = positive(value);
		} else if (strcmp(option, "--kind") == 0 && strcmp(value, "eager") == 0) {
			nodes = 0;
		} else if (strcmp(option, "--kind") == 0 && strncmp(value, "graph:", 6) == 0) {
			eager = 0;
			nodes = positive(value + 6);
		} else if (strcmp(option, "--kind") != 0 || strcmp(value, "both") != 0) {
			fputs(USAGE, stderr);
			return 2;
		}
	}

	load_driver();
	describe();
	if (only_check) {
		puts("}");
		return 0;
	}
	int device;
	void *context, *module;
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, PTX));
	CHECK(cuModuleGetFunction(&kernel, module, "empty_kernel"));
	CHECK(cuStreamCreate(&stream, 1));
	if (eager) {
		int timed = chunks;
		double cost = median_cost(launch_kernel, EAGER_CHUNK, &timed, seconds);
		printf(",\"eager_ns\":%.1f,\"eager_chunks\":%d", cost, timed);
	}
	if (nodes) {
		int timed = chunks;
		make_graph(nodes);
		double cost = median_cost(launch_graph, GRAPH_CHUNK, &timed, seconds);
		printf(",\"graph_ns\":%.1f,\"graph_chunks\":%d,\"graph_nodes\":%d", cost, timed, nodes);
	}
	printf(",\"cupti\":%s}\n", dl_iterate_phdr(is_cupti, NULL) ? "true" : "false");
	CHECK(cuDevicePrimaryCtxRelease_v2(device));
	return 0;
}
