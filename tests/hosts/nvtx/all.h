// What the NVTX test programs share. C and C++, NVTX v3 and v2 headers.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <wchar.h>

#ifdef NVTX_V2
#include <nvToolsExt.h>
#include <nvToolsExtCuda.h>
#include <nvToolsExtCudaRt.h>
#include <nvToolsExtSync.h>
#else
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCuda.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#include <nvtx3/nvToolsExtSync.h>
#endif

// Waits for the test.
static inline void gate(void)
{
	char line[16];

	puts("gate");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(3);
}

static inline nvtxEventAttributes_t attributes(void)
{
	nvtxEventAttributes_t a;

	memset(&a, 0, sizeof(a));
	a.version = NVTX_VERSION;
	a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
	return a;
}

static inline nvtxEventAttributes_t worded(const char *text, uint32_t color)
{
	nvtxEventAttributes_t a = attributes();

	a.colorType = NVTX_COLOR_ARGB;
	a.color = color;
	a.messageType = NVTX_MESSAGE_TYPE_ASCII;
	a.message.ascii = text;
	return a;
}

static inline nvtxEventAttributes_t registered(nvtxStringHandle_t text)
{
	nvtxEventAttributes_t a = attributes();

	a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
	a.message.registered = text;
	return a;
}
