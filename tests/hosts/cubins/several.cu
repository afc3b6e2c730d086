/* Machine code of every kind that a profiler may meet in a cubin: several kernels, one of them a template's, a
 * function that is called, shared and constant memory. */
__constant__ int table[100];

__device__ __noinline__ float accumulate(float x, int n)
{
	float sum = 0;

	for (int i = 0; i < n; i++)
		sum += __sinf(x * i);
	return sum;
}

extern "C" __global__ void first(float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = accumulate(out[i], n);
}

template <typename T> __global__ void second(T *out)
{
	__shared__ T turned[64];

	turned[threadIdx.x] = out[threadIdx.x];
	__syncthreads();
	out[threadIdx.x] = turned[63 - threadIdx.x];
}
template __global__ void second<double>(double *);
template __global__ void second<int>(int *);

__global__ void third(int *out)
{
	out[threadIdx.x] = table[threadIdx.x % 100];
}
