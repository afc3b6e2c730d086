/*
 * What a GPU program does that tools have broken, one case a run. Prints what must be the same with and without a
 * tool. Driver API only, found at run time; kernels are PTX of our own.
 *
 *   cases errors            calls that fail, and one that works
 *   cases entry-points      ten launches by each entry point
 *   cases capture           a kernel's first launch is inside a capture; its nodes; ten replays
 *   cases graphs SECONDS    a graph of 24 kernels and 7 copies, replayed all the time; a new one each second
 *   cases contexts N        threads that make and destroy contexts on all devices, N rounds
 *   cases rate SECONDS      launches a second, on stderr
 */
#include "../interposer/cuda.h"

static const char PTX[] =
	".version 5.0\n.target sm_52\n.address_size 64\n"
	".visible .entry first(.param .u64 p)\n{\n .reg .b64 %d<2>; .reg .b32 %r<3>;\n ld.param.u64 %d1, [p];\n"
	" ld.global.u32 %r1, [%d1]; add.s32 %r2, %r1, 1; st.global.u32 [%d1], %r2;\n ret;\n}\n"
	".visible .entry second(.param .u64 p)\n{\n ret;\n}\n";

#define MORE(f) \
	f(cuDeviceGetCount, (int *)) \
	f(cuCtxCreate_v2, (handle *, unsigned, int)) \
	f(cuCtxDestroy_v2, (handle)) \
	f(cuMemAlloc_v2, (unsigned long long *, size_t)) \
	f(cuMemFree_v2, (unsigned long long)) \
	f(cuMemcpyDtoDAsync_v2, (unsigned long long, unsigned long long, size_t, handle)) \
	f(cuLibraryGetKernel, (handle *, handle, const char *)) \
	f(cuGraphGetNodes, (handle, handle *, size_t *)) \
	f(cuGraphExecDestroy, (handle)) \
	f(cuStreamSynchronize, (handle))
#define OPTIONAL(name, args) static int(*name) args;
MORE(OPTIONAL)

static struct cuda cuda;
static unsigned long long memory;
static handle first;

static void begin(void)
{
	int device;

	cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
	cuda_find(&cuda);
#define LOOK(name, args) *(void **)&name = dlsym(cuda.library, #name);
	MORE(LOOK)
	check("cuInit", cuda.cuInit(0));
	check("cuDeviceGet", cuda.cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(&cuda.context, device));
	check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(cuda.context));
	check("cuMemAlloc", cuMemAlloc_v2(&memory, 4096));
}

static void load(void)
{
	check("cuModuleLoadData", cuda.cuModuleLoadData(&cuda.module, PTX));
	check("cuModuleGetFunction", cuda.cuModuleGetFunction(&first, cuda.module, "first"));
}

static int launch(handle function, handle stream)
{
	void *parameters[] = { &memory };

	return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void synchronize(void)
{
	check("cuCtxSynchronize", cuda.cuCtxSynchronize());
}

static void errors(void)
{
	handle out = NULL;
	void *parameters[] = { &memory };

	load();
#define SHOW(call) printf("%s = %d\n", #call, call)
	SHOW(cuda.cuInit(0xffff));
	SHOW(cuda.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	SHOW(cuda.cuLaunchKernel(first, 1, 1, 1, 4096, 1, 1, 0, NULL, parameters, NULL));
	SHOW(cuda.cuLaunchKernel(first, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	SHOW(cuda.cuModuleLoadData(&out, NULL));
	SHOW(cuda.cuModuleLoadData(NULL, PTX));
	SHOW(cuda.cuModuleLoadData(&out, "this is no image"));
	SHOW(cuda.cuModuleLoad(&out, "/there/is/no/such/file"));
	SHOW(cuda.cuLibraryLoadData(&out, NULL, NULL, NULL, 0, NULL, NULL, 0));
	SHOW(cuda.cuModuleGetFunction(&out, cuda.module, "nothing"));
	SHOW(launch(first, NULL));
	SHOW(cuda.cuCtxSynchronize());
}

static handle capture(handle function, int kernels, int copies, size_t *nodes)
{
	handle stream, graph, exec;

	check("cuStreamCreate", cuda.cuStreamCreate(&stream, 1));
	/* Global: a call of anybody that is not allowed meanwhile spoils it. */
	check("cuStreamBeginCapture", cuda.cuStreamBeginCapture_v2(stream, 0));
	for (int i = 0; i < kernels; i++)
		check("captured launch", launch(function, stream));
	for (int i = 0; i < copies; i++)
		check("captured copy", cuMemcpyDtoDAsync_v2(memory + 2048, memory, 256, stream));
	check("cuStreamEndCapture", cuda.cuStreamEndCapture(stream, &graph));
	if (nodes && cuGraphGetNodes)
		check("cuGraphGetNodes", cuGraphGetNodes(graph, NULL, nodes));
	check("cuGraphInstantiate", cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static void entry_points(void)
{
	void *parameters[] = { &memory };
	struct config c = { { 1, 1, 1 }, { 1, 1, 1 }, 0, NULL, NULL, 0 };
	handle graph;

	load();
	graph = capture(first, 1, 0, NULL);
	for (int i = 0; i < 10; i++) {
		check("launch", launch(first, NULL));
		check("ptsz", cuda.cuLaunchKernel_ptsz(first, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
		check("ex", cuda.cuLaunchKernelEx(&c, first, parameters, NULL));
		check("ex ptsz", cuda.cuLaunchKernelEx_ptsz(&c, first, parameters, NULL));
		check("cooperative", cuda.cuLaunchCooperativeKernel(first, 1, 1, 1, 1, 1, 1, 0, NULL, parameters));
		check("cooperative ptsz", cuda.cuLaunchCooperativeKernel_ptsz(first, 1, 1, 1, 1, 1, 1, 0, NULL, parameters));
		check("graph", cuda.cuGraphLaunch(graph, NULL));
		check("graph ptsz", cuda.cuGraphLaunch_ptsz(graph, NULL));
	}
	synchronize();
	printf("80 launches\n");
}

static void lazy_capture(void)
{
	handle library, kernel, graph;
	size_t nodes = 0;

	check("cuLibraryLoadData", cuda.cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
	check("cuLibraryGetKernel", cuLibraryGetKernel(&kernel, library, "first"));
	graph = capture(kernel, 3, 0, &nodes);
	printf("%zu nodes\n", nodes);
	for (int i = 0; i < 10; i++)
		check("replay", cuda.cuGraphLaunch(graph, NULL));
	synchronize();
	printf("10 replays\n");
}

static void graphs(double seconds)
{
	int copies = cuMemcpyDtoDAsync_v2 ? 7 : 0;
	uint64_t end = now_ns() + seconds * 1e9, next = 0;
	handle old = NULL, graph = NULL;

	load();
	while (now_ns() < end) {
		if (now_ns() >= next) {
			next = now_ns() + 1000000000;
			if (old && cuGraphExecDestroy) {
				synchronize();
				check("cuGraphExecDestroy", cuGraphExecDestroy(old));
			}
			old = graph;
			graph = capture(first, 24, copies, NULL);
		}
		for (int i = 0; i < 20; i++) {
			check("replay", cuda.cuGraphLaunch(graph, NULL));
			if (old)
				check("replay", cuda.cuGraphLaunch(old, NULL));
		}
		synchronize();
		pause_ms(20);
	}
	printf("replayed\n");
}

static pthread_barrier_t barrier;
static long rounds;

static void *make_contexts(void *argument)
{
	int count = 1, device;
	long index = (intptr_t)argument;

	check("cuDeviceGetCount", cuDeviceGetCount(&count));
	for (long round = 0; round < rounds; round++) {
		handle context, module, function;

		pthread_barrier_wait(&barrier);
		check("cuDeviceGet", cuda.cuDeviceGet(&device, (index + round) % count));
		check("cuCtxCreate", cuCtxCreate_v2(&context, 0, device));
		check("cuModuleLoadData", cuda.cuModuleLoadData(&module, PTX));
		check("cuModuleGetFunction", cuda.cuModuleGetFunction(&function, module, "second"));
		check("launch", launch(function, NULL));
		synchronize();
		pthread_barrier_wait(&barrier);
		check("cuCtxDestroy", cuCtxDestroy_v2(context));
	}
	return NULL;
}

static void contexts(long count)
{
	enum { THREADS = 4 };
	pthread_t threads[THREADS];

	rounds = count;
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (long i = 0; i < THREADS; i++)
		check("pthread_create", pthread_create(&threads[i], NULL, make_contexts, (void *)(intptr_t)i));
	for (long i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%ld rounds\n", count);
}

static void rate(double seconds)
{
	uint64_t start = now_ns(), end = start + seconds * 1e9;
	long count = 0;

	load();
	for (; now_ns() < end; count++)
		check("launch", launch(first, NULL));
	synchronize();
	fprintf(stderr, "%.0f launches a second\n", count / ((now_ns() - start) / 1e9));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "1";

	setvbuf(stdout, NULL, _IOLBF, 0);
	begin();
	if (!strcmp(what, "errors"))
		errors();
	else if (!strcmp(what, "entry-points"))
		entry_points();
	else if (!strcmp(what, "capture"))
		lazy_capture();
	else if (!strcmp(what, "graphs"))
		graphs(atof(more));
	else if (!strcmp(what, "contexts"))
		contexts(atol(more));
	else if (!strcmp(what, "rate"))
		rate(atof(more));
	else
		die("no such case", argc);
	return 0;
}
