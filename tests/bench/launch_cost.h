/* What the files of launch_cost share: the driver's functions as looked up, and the kernel. */
#ifndef LAUNCH_COST_H
#define LAUNCH_COST_H

typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraphExec_st *CUgraphExec;

#define FUNCTIONS(F) \
	F(cuInit, (unsigned flags)) \
	F(cuDriverGetVersion, (int *version)) \
	F(cuDeviceGetCount, (int *count)) \
	F(cuDeviceGet, (int *device, int ordinal)) \
	F(cuDeviceGetName, (char *name, int length, int device)) \
	F(cuDevicePrimaryCtxRetain, (void **context, int device)) \
	F(cuDevicePrimaryCtxRelease_v2, (int device)) \
	F(cuCtxSetCurrent, (void *context)) \
	F(cuModuleLoadData, (void **module, const void *image)) \
	F(cuModuleGetFunction, (CUfunction *function, void *module, const char *name)) \
	F(cuLibraryLoadData, (void **library, const void *code, void *jit, void *jit_values, unsigned jit_count, void *options, \
		void **values, unsigned count)) \
	F(cuLibraryGetKernel, (void **kernel, void *library, const char *name)) \
	F(cuStreamCreate, (CUstream *stream, unsigned flags)) \
	F(cuStreamSynchronize, (CUstream stream)) \
	F(cuLaunchKernel, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		unsigned shared, CUstream stream, void **params, void **extra)) \
	F(cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
	F(cuStreamEndCapture, (CUstream stream, void **graph)) \
	F(cuGraphInstantiateWithFlags, (CUgraphExec *exec, void *graph, unsigned long long flags)) \
	F(cuGraphLaunch, (CUgraphExec exec, CUstream stream))

#define EXTERN(name, parameters) extern int(*name) parameters;
FUNCTIONS(EXTERN)

#define EAGER_CHUNK 256
#define THREADS_MAX 256
/* Launches a second of all threads together, in rows paced:N. */
#define PACED_RATE 200000.0

/* An empty one, in `context`. */
extern CUfunction kernel;
extern void *context;

void check(int result, const char *call);
#define CHECK(call) check(call, #call)
double now_ns(void);

/* Both: ns per launch of all threads together. */
double cost_of_threads(int count, double seconds);
double cost_of_paced_threads(int count, double seconds);

#endif
