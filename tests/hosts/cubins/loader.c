/*
 * Loads images of machine code, word by word, in every way that the driver offers. Prints what it did.
 *
 *   hold               take CUPTI before the driver is there: what others see of modules they see without it
 *   init               driver, context
 *   module FILE | data FILE | dataex FILE | fatbin FILE | library FILE | libraryfile FILE     load
 *   wrapper FILE | librarywrapper FILE      load through the small struct by which compiled programs do it
 *   use                of the library loaded last: have the driver load it into the context
 *   drop               unload what was loaded first of what is left
 *   many N FILE        load N images that differ in a byte each; all are there at the same time
 *   gate, say TEXT
 *
 * Images in memory are overwritten and given back as soon as the driver has accepted them.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;

#define FUNCTIONS(f) \
	f(cuInit, (unsigned)) \
	f(cuDeviceGet, (int *, int)) \
	f(cuDevicePrimaryCtxRetain, (handle *, int)) \
	f(cuCtxSetCurrent, (handle)) \
	f(cuModuleLoad, (handle *, const char *)) \
	f(cuModuleLoadData, (handle *, const void *)) \
	f(cuModuleLoadDataEx, (handle *, const void *, unsigned, int *, handle *)) \
	f(cuModuleLoadFatBinary, (handle *, const void *)) \
	f(cuModuleUnload, (handle)) \
	f(cuLibraryLoadData, (handle *, const void *, int *, handle *, unsigned, int *, handle *, unsigned)) \
	f(cuLibraryLoadFromFile, (handle *, const char *, int *, handle *, unsigned, int *, handle *, unsigned)) \
	f(cuLibraryGetModule, (handle *, handle)) \
	f(cuLibraryUnload, (handle))
#define DECLARE(name, args) static int(*name) args;
FUNCTIONS(DECLARE)

#define MOST 4096
static struct {
	handle handle;
	int(*unload)(handle);
} loaded[MOST];
static int from, count;

static void die(const char *what, int code)
{
	fprintf(stderr, "loader: %s: %d\n", what, code);
	exit(70);
}

static void check(const char *what, int code)
{
	if (code)
		die(what, code);
}

static void keep(handle h, int(*unload)(handle))
{
	if (count == MOST)
		die("too many images", MOST);
	loaded[count].handle = h;
	loaded[count++].unload = unload;
}

/* A file in memory, and the zero that ends a text. */
static char *read_file(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	char *bytes;

	if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) == 0)
		die(path, 0);
	rewind(file);
	bytes = calloc(1, *size + 1);
	if (!bytes || fread(bytes, 1, *size, file) != *size)
		die(path, 1);
	fclose(file);
	return bytes;
}

static void give_back(char *bytes, size_t size)
{
	memset(bytes, 0xee, size);
	free(bytes);
}

static void load(const char *way, const void *image)
{
	handle h;

	if (!strcmp(way, "data") || !strcmp(way, "wrapper"))
		check(way, cuModuleLoadData(&h, image));
	else if (!strcmp(way, "dataex"))
		check(way, cuModuleLoadDataEx(&h, image, 0, NULL, NULL));
	else if (!strcmp(way, "fatbin"))
		check(way, cuModuleLoadFatBinary(&h, image));
	else
		check(way, cuLibraryLoadData(&h, image, NULL, NULL, 0, NULL, NULL, 0));
	keep(h, strncmp(way, "library", 7) ? cuModuleUnload : cuLibraryUnload);
}

static void load_memory(const char *way, const char *path)
{
	size_t size;
	char *bytes = read_file(path, &size);

	if (strstr(way, "wrapper")) {
		struct {
			int magic, version;
			const void *data;
			void *none;
		} wrapper = { 0x466243b1, 1, bytes, NULL };

		load(way, &wrapper);
	} else
		load(way, bytes);
	give_back(bytes, size);
}

static void load_many(long n, const char *path)
{
	size_t size;
	char *bytes = read_file(path, &size);

	for (long i = 0; i < n; i++) {
		/* The end of an ELF file's identification is padding. */
		memcpy(bytes + 10, &i, 4);
		load("data", bytes);
	}
	give_back(bytes, size);
}

static void nothing(void *data, unsigned domain, unsigned cbid, const void *info)
{
	(void)data, (void)domain, (void)cbid, (void)info;
}

static void hold(void)
{
	static handle subscriber;
	void *cupti = dlopen("libcupti.so.13", RTLD_NOW);
	int (*subscribe)(handle *, void (*)(void *, unsigned, unsigned, const void *), void *) =
		cupti ? dlsym(cupti, "cuptiSubscribe") : NULL;

	if (!subscribe)
		die("no cuptiSubscribe", 0);
	check("cuptiSubscribe", subscribe(&subscriber, nothing, NULL));
}

static void init(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	handle context;
	int device;

	if (!cuda)
		die(dlerror(), 0);
#define FIND(name, args) \
	*(void **)&name = dlsym(cuda, #name); \
	if (!name) \
		die("no " #name, 0);
	FUNCTIONS(FIND)
	check("cuInit", cuInit(0));
	check("cuDeviceGet", cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

static void gate(void)
{
	char line[64];

	puts("gate");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		exit(71);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i];
		handle h;

#define IS(text) (!strcmp(word, text))
#define NEXT (++i < argc ? argv[i] : (die("a word is missing", i), ""))
		if (IS("hold"))
			hold();
		else if (IS("init"))
			init();
		else if (IS("gate"))
			gate();
		else if (IS("say"))
			puts(NEXT);
		else if (IS("module")) {
			check(word, cuModuleLoad(&h, NEXT));
			keep(h, cuModuleUnload);
		} else if (IS("libraryfile")) {
			check(word, cuLibraryLoadFromFile(&h, NEXT, NULL, NULL, 0, NULL, NULL, 0));
			keep(h, cuLibraryUnload);
		} else if (IS("use")) {
			check(word, cuLibraryGetModule(&h, loaded[count - 1].handle));
		} else if (IS("drop")) {
			check(word, loaded[from].unload(loaded[from].handle));
			from++;
		} else if (IS("many")) {
			long n = atol(NEXT);

			load_many(n, NEXT);
		} else
			load_memory(word, NEXT);
	}
	return 0;
}
