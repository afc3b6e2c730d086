// Many modules: the same code loaded over and over, each copy launched, some unloaded again.
#include "common.h"

#include <cuda.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static const char USAGE[] =
	"usage: modules [--modules N] [--rounds R] [--file FILE]\n"
	"Loads FILE (module_kernel.fatbin beside this program) N times (200), launches a kernel of every copy and\n"
	"unloads all, R times (3). Prints the time of a load, a launch and an unload.\n";

static std::string beside(const char *program, const char *name)
{
	std::string path(program);
	size_t slash = path.rfind('/');
	return (slash == std::string::npos ? std::string() : path.substr(0, slash + 1)) + name;
}

int main(int argc, char **argv)
{
	Options options(argc, argv, USAGE);
	int count = options.count("--modules", 200), rounds = options.count("--rounds", 3);
	std::string file = options.text("--file", beside(argv[0], "module_kernel.fatbin").c_str());
	options.end();
	std::ifstream input(file, std::ios::binary);
	std::vector<char> image((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
	if (image.empty()) {
		std::fprintf(stderr, "%s cannot be read\n", file.c_str());
		return 1;
	}
	// PTX is text.
	image.push_back('\0');

	CHECK(cudaFree(nullptr));
	auto load = driver_function<decltype(&cuModuleLoadData)>("cuModuleLoadData");
	auto get = driver_function<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
	auto launch = driver_function<decltype(&cuLaunchKernel)>("cuLaunchKernel");
	auto unload = driver_function<decltype(&cuModuleUnload)>("cuModuleUnload");
	for (int round = 0; round < rounds; round++) {
		std::vector<CUmodule> modules(count);
		double begin = now_s();
		for (auto &module : modules)
			CHECK(load(&module, image.data()));
		double loaded = now_s();
		for (auto &module : modules) {
			CUfunction function;
			CHECK(get(&function, module, "module_kernel"));
			CHECK(launch(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
		}
		CHECK(cudaDeviceSynchronize());
		double launched = now_s();
		for (auto &module : modules)
			CHECK(unload(module));
		std::printf("%d modules of %zu bytes: load %.0f us, launch %.1f us, unload %.0f us each\n", count, image.size() - 1,
			    (loaded - begin) * 1e6 / count, (launched - loaded) * 1e6 / count, (now_s() - launched) * 1e6 / count);
	}
}
