// Empty kernels as fast as the launch calls go: what a profiler adds to a launch shows here first.
#include "common.h"

#include <atomic>
#include <cuda.h>
#include <thread>
#include <vector>

static const char USAGE[] =
	"usage: rapid_launch [--api runtime|driver] [--threads N] [--seconds S]\n"
	"Launches an empty kernel from N threads (1), a stream each, for S seconds (5), by cudaLaunchKernel or\n"
	"cuLaunchKernel; prints launches, launches/s and ns per launch and thread.\n";

__global__ void rapid_empty() {}

int main(int argc, char **argv)
{
	Options options(argc, argv, USAGE);
	const char *api = options.text("--api", "runtime");
	int thread_count = options.count("--threads", 1);
	double seconds = options.number("--seconds", 5);
	options.end();
	bool driver = std::strcmp(api, "driver") == 0;
	if ((!driver && std::strcmp(api, "runtime") != 0) || thread_count < 1)
		options.help(stderr, 2);

	CHECK(cudaFree(nullptr));
	auto launch_kernel = driver_function<decltype(&cuLaunchKernel)>("cuLaunchKernel");
	cudaFunction_t function;
	CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void *>(rapid_empty)));
	std::atomic<long> launches{0};
	std::vector<std::thread> threads;
	double begin = now_s();
	for (int at = 0; at < thread_count; at++)
		threads.emplace_back([&] {
			cudaStream_t stream;
			CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
			long done = 0;
			while (now_s() - begin < seconds) {
				for (int call = 0; call < 256; call++)
					if (driver)
						CHECK(launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
					else
						CHECK(cudaLaunchKernel(reinterpret_cast<const void *>(rapid_empty), 1, 1, nullptr, 0, stream));
				done += 256;
				CHECK(cudaStreamSynchronize(stream));
			}
			launches += done;
		});
	for (auto &thread : threads)
		thread.join();
	double took = now_s() - begin;
	std::printf("%s: %ld launches, %.0f/s, %.0f ns per launch and thread\n", api, launches.load(), launches / took,
		    took * 1e9 * thread_count / launches);
}
