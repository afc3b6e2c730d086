/*
 * The part of the CUDA driver API the demo uses, declared here: nothing of CUDA is needed to build.
 * Functions are looked up in libcuda.so.1 at run time; with -DDEMO_LINKED (and -lcuda) they are
 * called directly.
 */
#ifndef DEMO_DRIVER_H
#define DEMO_DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

typedef struct {
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
	CUfunction func;
	unsigned grid[3], block[3], shared;
	void **params, **extra;
	void *kern, *ctx;
} CUkernelNodeParams;

/* Needed by every run. */
#define DRIVER_FUNCTIONS(F) \
	F(cuInit, (unsigned flags)) \
	F(cuDeviceGet, (CUdevice *device, int ordinal)) \
	F(cuDeviceGetName, (char *name, int length, CUdevice device)) \
	F(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device)) \
	F(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) \
	F(cuCtxSetCurrent, (CUcontext context)) \
	F(cuCtxSynchronize, (void)) \
	F(cuMemAlloc_v2, (CUdeviceptr *address, size_t size)) \
	F(cuMemFree_v2, (CUdeviceptr address)) \
	F(cuModuleLoadData, (CUmodule *module, const void *image)) \
	F(cuModuleUnload, (CUmodule module)) \
	F(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name)) \
	F(cuStreamCreate, (CUstream *stream, unsigned flags)) \
	F(cuStreamDestroy_v2, (CUstream stream)) \
	F(cuStreamSynchronize, (CUstream stream)) \
	F(cuGetErrorName, (CUresult result, const char **name)) \
	F(cuLaunchKernel, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		unsigned shared, CUstream stream, void **params, void **extra)) \
	F(cuGraphCreate, (CUgraph *graph, unsigned flags)) \
	F(cuGraphDestroy, (CUgraph graph)) \
	F(cuGraphExecDestroy, (CUgraphExec exec)) \
	F(cuGraphLaunch, (CUgraphExec exec, CUstream stream)) \
	F(cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
	F(cuStreamEndCapture, (CUstream stream, CUgraph *graph))

/* Needed only by the options that name them; older drivers lack some. */
#define OPTIONAL_FUNCTIONS(F) \
	F(cuLaunchKernel_ptsz, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		unsigned shared, CUstream stream, void **params, void **extra)) \
	F(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)) \
	F(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)) \
	F(cuLaunchCooperativeKernel, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
		unsigned bz, unsigned shared, CUstream stream, void **params)) \
	F(cuLaunchCooperativeKernel_ptsz, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
		unsigned bz, unsigned shared, CUstream stream, void **params)) \
	F(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream)) \
	F(cuGraphAddKernelNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, \
		const CUkernelNodeParams *params)) \
	F(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags))

/* The simulated driver's own stand-in for the CUDA runtime. */
#define SIMULATED_FUNCTIONS(F) \
	F(mockrt_launch, (CUfunction f, const unsigned *grid, const unsigned *block, unsigned shared, CUstream stream, \
		void **params)) \
	F(mockrt_graph_launch, (CUgraphExec exec, CUstream stream))

#define POINTER(name, args) extern CUresult(*p_##name) args;
DRIVER_FUNCTIONS(POINTER)
OPTIONAL_FUNCTIONS(POINTER)
SIMULATED_FUNCTIONS(POINTER)
#undef POINTER

/* Finds the driver; ends the program when there is none. */
void load_driver(void);

/* Ends the program with status 1 and a line naming the function, unless the result is 0. */
void check(CUresult result, const char *function);
#define CHECK(name, ...) (p_##name ? check(p_##name(__VA_ARGS__), #name) : check(-1, #name))

#endif
