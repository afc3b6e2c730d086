/*
 * Threads that meet at a barrier, make contexts on several devices at once, launch and destroy them. Then one context
 * after the other, each on a device of its own, and at a gate (a line of output, one of input or its end) before it goes.
 *
 *   contexts THREADS ROUNDS DEVICES
 */
#include "../interposer/cuda.h"

static struct cuda cuda;
static int (*create)(handle *, unsigned, int), (*destroy)(handle);
static pthread_barrier_t barrier;
static long rounds, devices;
static atomic_ulong launched;

static void begin(struct cuda *own, int ordinal)
{
	int device;

	check("cuDeviceGet", cuda.cuDeviceGet(&device, ordinal));
	check("cuCtxCreate", create(&own->context, 0, device));
	check("cuModuleLoadData", own->cuModuleLoadData(&own->module, KERNEL_TEXT));
	check("cuModuleGetFunction", own->cuModuleGetFunction(&own->function, own->module, "host_kernel"));
	cuda_launch(own, 2);
	atomic_fetch_add(&launched, 2);
	check("cuCtxSynchronize", own->cuCtxSynchronize());
}

static void *work(void *argument)
{
	long index = (intptr_t)argument;

	for (long round = 0; round < rounds; round++) {
		struct cuda own = cuda;

		pthread_barrier_wait(&barrier);
		begin(&own, (index + round) % devices);
		pthread_barrier_wait(&barrier);
		check("cuCtxDestroy", destroy(own.context));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long count = argc > 3 ? atol(argv[1]) : 1;
	pthread_t threads[64];

	rounds = argc > 3 ? atol(argv[2]) : 1;
	devices = argc > 3 ? atol(argv[3]) : 1;
	cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
	cuda_find(&cuda);
	*(void **)&create = dlsym(cuda.library, "cuCtxCreate_v2");
	*(void **)&destroy = dlsym(cuda.library, "cuCtxDestroy_v2");
	check("cuInit", cuda.cuInit(0));
	pthread_barrier_init(&barrier, NULL, count);
	for (long i = 0; i < count; i++)
		check("pthread_create", pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i));
	for (long i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	for (long i = 0; i < devices; i++) {
		struct cuda own = cuda;
		int next;

		begin(&own, i);
		puts("gate");
		fflush(stdout);
		while ((next = getchar()) != '\n' && next != EOF)
			;
		check("cuCtxDestroy", destroy(own.context));
	}
	printf("launched %lu\n", (unsigned long)launched);
	return 0;
}
