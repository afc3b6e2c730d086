// A program for trying parcagpu on: two kernels read the same numbers, one in order and one by a list of where
// they lie. Which one is slow, and at which line does it wait?
//
//   nvcc -lineinfo -arch=native -o slow docs/slow.cu
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>

constexpr int N = 1 << 22, STEPS = 8;

static void check(cudaError_t result, const char *what)
{
	if (result == cudaSuccess)
		return;
	std::fprintf(stderr, "slow: %s gives %d\n", what, static_cast<int>(result));
	std::exit(1);
}

__global__ void scale(const float *in, float *out)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	out[i] = in[i] * 2;
}

__global__ void gather(const float *in, const int *next, float *out)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	float sum = 0;
	for (int step = 0; step < STEPS; step++) {
		sum += in[i];
		i = next[i];
	}
	out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

int main()
{
	using namespace std::chrono;
	float *in, *out;
	int *next;
	check(cudaMalloc(&in, N * sizeof *in), "cudaMalloc");
	check(cudaMalloc(&out, N * sizeof *out), "cudaMalloc");
	check(cudaMalloc(&next, N * sizeof *next), "cudaMalloc");
	// One cycle through all of them, each far from the one before.
	std::vector<int> order(N);
	for (long at = 0; at < N; at++)
		order[at] = static_cast<int>((at + 2654435) % N);
	check(cudaMemcpy(next, order.data(), N * sizeof *next, cudaMemcpyHostToDevice), "cudaMemcpy");

	int rounds = 0;
	for (auto begin = steady_clock::now(); steady_clock::now() - begin < seconds(3); rounds++) {
		scale<<<N / 256, 256>>>(in, out);
		gather<<<N / 256, 256>>>(in, next, out);
		check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	}
	std::printf("%d rounds\n", rounds);
}
