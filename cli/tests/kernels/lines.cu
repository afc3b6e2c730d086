// Kernels whose line tables have all that occurs: inlined and called functions, another file, a template, a name
// that is longer than what consumers read, shared memory, double precision.
#include "inlined.h"

__device__ __noinline__ int called(int x)
{
	if (x & 1)
		return x * x % 7;
	return x / 3;
}

__global__ void calls(int *data, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		data[i] = called(data[i]);
}

template <typename T> __global__ void inlines(T *data, int n)
{
	int i = threadIdx.x;
	if (i < n)
		data[i] = polynomial(data[i], n);
	__syncthreads();
}

template __global__ void inlines<float>(float *, int);
template __global__ void inlines<double>(double *, int);

struct a_type_whose_name_is_longer_than_the_one_hundred_and_twenty_seven_bytes_that_every_consumer_of_the_samples_reads_of_the_name_of_a_function {
	int value;
};
template __global__ void inlines<int>(int *, int);
__global__ void long_name(a_type_whose_name_is_longer_than_the_one_hundred_and_twenty_seven_bytes_that_every_consumer_of_the_samples_reads_of_the_name_of_a_function *data)
{
	data[threadIdx.x].value += 1;
}

extern "C" __global__ void shared_sum(const double *in, double *out)
{
	__shared__ double part[256];
	part[threadIdx.x] = in[threadIdx.x];
	__syncthreads();
	for (int half = 128; half > 0; half /= 2) {
		if (threadIdx.x < half)
			part[threadIdx.x] += part[threadIdx.x + half];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		*out = part[0];
}
