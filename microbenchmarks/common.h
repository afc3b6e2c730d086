// What the programs share: checks, options, time. Each program says with --help what it does.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <dlfcn.h>

#define CHECK(call) \
	do { \
		int result_ = static_cast<int>(call); \
		if (result_ != 0) { \
			std::fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, result_); \
			std::exit(1); \
		} \
	} while (0)

inline double now_s()
{
	using namespace std::chrono;
	return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Options are --name VALUE; what is asked for first is what the usage says.
class Options {
public:
	Options(int argc, char **argv, const char *usage) : argc_(argc), argv_(argv), usage_(usage)
	{
		for (int at = 1; at < argc; at++)
			if (std::strcmp(argv[at], "--help") == 0)
				help(stdout, 0);
	}

	const char *text(const char *name, const char *otherwise)
	{
		for (int at = 1; at + 1 < argc_; at += 2)
			if (std::strcmp(argv_[at], name) == 0) {
				known_ += 2;
				return argv_[at + 1];
			}
		return otherwise;
	}

	double number(const char *name, double otherwise)
	{
		const char *value = text(name, nullptr);
		if (!value)
			return otherwise;
		char *end;
		double number = std::strtod(value, &end);
		if (end == value || *end != '\0' || number < 0)
			help(stderr, 2);
		return number;
	}

	int count(const char *name, int otherwise) { return static_cast<int>(number(name, otherwise)); }

	// After the last question: an option that nobody asked for is none.
	void end()
	{
		if (known_ != argc_ - 1)
			help(stderr, 2);
	}

	[[noreturn]] void help(FILE *to, int status)
	{
		std::fputs(usage_, to);
		std::exit(status);
	}

private:
	int argc_;
	char **argv_;
	const char *usage_;
	int known_ = 0;
};

// The driver API without linking to it: its library comes with the driver only.
template <typename Function> Function driver_function(const char *name)
{
	static void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void *address = library ? dlsym(library, name) : nullptr;
	if (!address) {
		std::fprintf(stderr, "no %s in libcuda.so.1\n", name);
		std::exit(1);
	}
	return reinterpret_cast<Function>(address);
}
