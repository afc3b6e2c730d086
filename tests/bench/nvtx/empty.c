// An NVTX tool that does nothing: what any tool costs at least.
#include <stddef.h>
#include <stdint.h>

typedef int (*get_module)(int module, void ****table, unsigned int *size);

struct callbacks {
	size_t size;
	get_module module;
};

static int push_a(const char *message)
{
	(void)message;
	return -2;
}

static int pop(void)
{
	return -2;
}

int InitializeInjectionNvtx2(const void *(*get)(uint32_t))
{
	const struct callbacks *callbacks = get(1);
	void ***table;
	unsigned int size;

	if (!callbacks || !callbacks->module(1, &table, &size) || size < 12)
		return 0;
	*table[9] = (void *)push_a;
	*table[11] = (void *)pop;
	return 1;
}

int InitializeInjectionNvtxExtension(void *info)
{
	(void)info;
	return 1;
}
