// One thread that goes round many streams, with kernels that overlap.
#include "common.h"

#include <vector>

static const char USAGE[] =
	"usage: streams [--streams N] [--seconds S] [--microseconds U]\n"
	"Launches a kernel that runs U microseconds (20) on one multiprocessor, on N streams in turn (64), for S\n"
	"seconds (5). Prints launches and how many kernels ran side by side on average.\n";

__global__ void stream_spin(long long cycles)
{
	long long begin = clock64();
	while (clock64() - begin < cycles) {
	}
}

int main(int argc, char **argv)
{
	Options options(argc, argv, USAGE);
	int count = options.count("--streams", 64);
	double seconds = options.number("--seconds", 5), microseconds = options.number("--microseconds", 20);
	options.end();
	if (count < 1)
		options.help(stderr, 2);

	int khz;
	CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
	long long cycles = static_cast<long long>(microseconds * khz / 1000);
	std::vector<cudaStream_t> streams(count);
	for (auto &stream : streams)
		CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	long launches = 0;
	double begin = now_s();
	while (now_s() - begin < seconds) {
		for (auto &stream : streams) {
			stream_spin<<<1, 32, 0, stream>>>(cycles);
			CHECK(cudaGetLastError());
		}
		launches += count;
		CHECK(cudaDeviceSynchronize());
	}
	double took = now_s() - begin;
	std::printf("%d streams: %ld launches, %.0f/s, %.1f kernels side by side\n", count, launches, launches / took,
		    launches * microseconds * 1e-6 / took);
}
