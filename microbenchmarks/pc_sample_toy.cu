// Kernels that each wait for one known thing, so that PC samples have a known answer.
#include "common.h"

static const char USAGE[] =
	"usage: pc_sample_toy [--kernel NAME] [--seconds S]\n"
	"Runs one kernel, or each in turn, for S seconds (3) and prints what it mostly waits for:\n"
	"  memory_dependency  loads of which each needs the one before: long_scoreboard\n"
	"  math_pipe          double precision beyond what the pipe takes: math_pipe_throttle\n"
	"  barrier            warps that wait for one slow warp: barrier\n"
	"  shared_conflicts   shared memory, all lanes in one bank: short_scoreboard, mio_throttle\n"
	"  fixed_latency      one warp, each instruction needs the one before: wait, fixed latency dependency\n"
	"  asleep             __nanosleep: sleeping\n";

constexpr int CHAIN = 1 << 22;

__global__ void memory_dependency(const int *next, int *out, int steps)
{
	int at = (blockIdx.x * blockDim.x + threadIdx.x) * 97 % CHAIN;
	for (int step = 0; step < steps; step++)
		at = next[at];
	if (at == -1)
		*out = at;
}

__global__ void math_pipe(const int *, int *out, int steps)
{
	double a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
	for (int step = 0; step < steps; step++) {
		a = fma(a, 1.0000001, 0.5);
		b = fma(b, 1.0000001, 0.5);
		c = fma(c, 1.0000001, 0.5);
		d = fma(d, 1.0000001, 0.5);
	}
	if (a + b + c + d == -1)
		*out = 1;
}

__global__ void barrier(const int *, int *out, int steps)
{
	float x = threadIdx.x;
	for (int step = 0; step < steps / 16; step++) {
		if (threadIdx.x < 32)
			for (int work = 0; work < 64; work++)
				x = fmaf(x, 1.0001f, 0.5f);
		__syncthreads();
	}
	if (x == -1)
		*out = 1;
}

__global__ void shared_conflicts(const int *, int *out, int steps)
{
	__shared__ volatile int bank[32 * 32];
	int sum = 0;
	bank[threadIdx.x % 1024] = threadIdx.x;
	__syncthreads();
	for (int step = 0; step < steps; step++)
		sum += bank[(threadIdx.x % 32) * 32 + (step & 31)];
	if (sum == -1)
		*out = sum;
}

__global__ void fixed_latency(const int *, int *out, int steps)
{
	float x = threadIdx.x;
	for (int step = 0; step < steps * 4; step++)
		x = fmaf(x, 1.0001f, 0.5f);
	if (x == -1)
		*out = 1;
}

__global__ void asleep(const int *, int *, int steps)
{
	for (int step = 0; step < steps / 64; step++)
		__nanosleep(1000);
}

using Kernel = void (*)(const int *, int *, int);
struct Toy {
	const char *name;
	Kernel kernel;
	int blocks_per_sm, threads;
	const char *waits_for;
};

static const Toy TOYS[] = {
	{ "memory_dependency", memory_dependency, 4, 128, "long_scoreboard" },
	{ "math_pipe", math_pipe, 4, 512, "math_pipe_throttle" },
	{ "barrier", barrier, 4, 256, "barrier" },
	{ "shared_conflicts", shared_conflicts, 2, 512, "short_scoreboard or mio_throttle" },
	{ "fixed_latency", fixed_latency, 1, 32, "wait" },
	{ "asleep", asleep, 1, 64, "sleeping" },
};

int main(int argc, char **argv)
{
	Options options(argc, argv, USAGE);
	const char *name = options.text("--kernel", nullptr);
	double seconds = options.number("--seconds", 3);
	options.end();

	cudaDeviceProp device;
	CHECK(cudaGetDeviceProperties(&device, 0));
	int *next, *out;
	CHECK(cudaMallocManaged(&next, CHAIN * sizeof *next));
	CHECK(cudaMalloc(&out, sizeof *out));
	// One cycle through all, far apart each time: 2,654,435 and the length have no common divisor.
	for (long at = 0; at < CHAIN; at++)
		next[at] = static_cast<int>((at + 2654435) % CHAIN);
	bool found = false;
	for (const Toy &toy : TOYS) {
		if (name && std::strcmp(name, toy.name) != 0)
			continue;
		found = true;
		long launches = 0;
		double begin = now_s();
		while (now_s() - begin < seconds) {
			toy.kernel<<<device.multiProcessorCount * toy.blocks_per_sm, toy.threads>>>(next, out, 4096);
			CHECK(cudaGetLastError());
			CHECK(cudaDeviceSynchronize());
			launches++;
		}
		std::printf("%s: %ld launches, %.0f us each; waits for: %s\n", toy.name, launches, (now_s() - begin) * 1e6 / launches,
			    toy.waits_for);
	}
	if (!found)
		options.help(stderr, 2);
}
