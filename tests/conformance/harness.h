/* What the sections share: the libraries, a context with kernels, the log of callbacks and buffers. */
#pragma once
#include "abi.h"
#include <stdbool.h>
#include <stdio.h>

extern struct cuda_table cu;
extern struct cupti_table cupti;
extern const char conformance_ptx[];
extern unsigned long long long_ns;

extern CUdevice device;
extern CUcontext context;
extern CUmodule module;
extern CUfunction f_short, f_other, f_spin;
extern CUpti_SubscriberHandle subscriber;

/* Set where buffers come and go on CUPTI's own threads: their order is then nobody's promise. */
extern bool quiet_buffers;

/* Called inside every API callback, after its line was printed. */
extern void (*in_callback)(int site, uint32_t cbid, const CallbackData *data);

void load_libraries(const char *libcuda, const char *libcupti);
void *must_dlsym(void *library, const char *name);
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Runs `expr`, a driver or CUPTI call, between two lines, and says what it did to the buffers. */
#define CALL(expr) \
    ({ \
        printf("> %s\n", #expr); \
        unsigned result_ = (expr); \
        printf("< %u", result_); \
        tell_buffers(); \
        result_; \
    })
/* The same for calls that must succeed and say nothing. */
#define QUIET(expr) \
    do { \
        unsigned result_ = (expr); \
        if (result_) fail("%s returned %u", #expr, result_); \
    } while (0)

void tell_buffers(void);
int buffers_outstanding(void);
int buffers_requested(void);

void start_cuda(void);
void load_module(void);
void warm_up(void);
void subscribe(void);
void enable_launch_callbacks(void);
void enable_activity(void);
void on_callback(void *user, int domain, uint32_t cbid, const void *data);
void on_request(uint8_t **buffer, size_t *size, size_t *max_records);
void on_complete(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
void on_complete_other(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
void use_context(void);

CUresult launch(CUfunction f, CUstream stream);
CUresult launch_spin(CUstream stream);
CUresult launch_graph(CUgraphExec exec, CUstream stream);
CUgraphExec capture_graph(CUstream stream, int kernels);
void expect(const void *function, CUstream stream);

/* Sync, flush(0), print and forget all records that arrived. */
void settle(void);
int print_records(void);
