/* SPDX-License-Identifier: Apache-2.0 */
/* What the probes of libparcagpu.so point to, for eBPF programs. Twin of the crate parcagpu-abi.
 * Include a header with the kernel's __u8..__u64 types first. */
#ifndef PARCAGPU_H
#define PARCAGPU_H

#define PARCAGPU_BATCH_MAX 128
#define PARCAGPU_NVTX_BATCH_MAX 256
#define PARCAGPU_STALL_REASON_SLOTS 64
#define PARCAGPU_STALL_REASON_NAME_LEN 64

/* First 160 bytes of a CUPTI kernel record. Times in ns of CUPTI's clock, 0 when unknown. */
struct parcagpu_kernel {
	__u32 kind; /* 3 or 10 */
	__u8 cache_config;
	__u8 shared_memory_config;
	__u16 registers_per_thread;
	__u32 partitioned_cache_requested;
	__u32 partitioned_cache_executed;
	__u64 start;
	__u64 end;
	__u64 completed;
	__u32 device_id;
	__u32 context_id;
	__u32 stream_id;
	__s32 grid[3];
	__s32 block[3];
	__s32 static_shared_memory;
	__s32 dynamic_shared_memory;
	__u32 local_memory_per_thread;
	__u32 local_memory_total;
	__u32 correlation_id;
	__s64 grid_id;
	__u64 name; /* char *, may be null */
	__u64 reserved0;
	__u64 queued;
	__u64 submitted;
	__u8 launch_type;
	__u8 carveout_requested;
	__u8 carveout;
	__u8 padding;
	__u32 shared_memory_executed;
	__u64 graph_node_id;
	__u32 shmem_limit_config;
	__u32 graph_id;
};

struct parcagpu_stall_reason {
	__u32 index;
	__u32 samples;
};

struct parcagpu_pc_sample {
	__u64 size;
	__u64 cubin_crc;
	__u64 pc_offset;
	__u32 function_index;
	__u32 pad;
	__u64 function_name; /* char * */
	__u64 stall_reason_count;
	__u64 stall_reasons; /* struct parcagpu_stall_reason *, 64 readable entries */
	__u32 correlation_id;
	__u32 padding;
};

struct parcagpu_nvtx_event {
	__u64 timestamp_ns; /* CLOCK_MONOTONIC */
	__u32 tid;
	__u32 correlation_id;
	__u32 domain_id;
	__u16 kind; /* 1 push, 2 pop, 3 start, 4 end, 5 mark */
	__u16 flags; /* bits 0-3: payload type */
	__u32 color;
	__u32 device_id;
	__u64 payload;
	__u64 range_id;
	__u64 message; /* char * */
};

#define PARCAGPU_AT(type, field, at) \
	_Static_assert(__builtin_offsetof(struct type, field) == (at), #type "." #field)

_Static_assert(sizeof(struct parcagpu_kernel) == 160, "parcagpu_kernel");
PARCAGPU_AT(parcagpu_kernel, start, 16);
PARCAGPU_AT(parcagpu_kernel, end, 24);
PARCAGPU_AT(parcagpu_kernel, device_id, 40);
PARCAGPU_AT(parcagpu_kernel, stream_id, 48);
PARCAGPU_AT(parcagpu_kernel, correlation_id, 92);
PARCAGPU_AT(parcagpu_kernel, name, 104);
PARCAGPU_AT(parcagpu_kernel, graph_node_id, 144);
PARCAGPU_AT(parcagpu_kernel, graph_id, 156);
_Static_assert(sizeof(struct parcagpu_pc_sample) == 64, "parcagpu_pc_sample");
PARCAGPU_AT(parcagpu_pc_sample, cubin_crc, 8);
PARCAGPU_AT(parcagpu_pc_sample, function_name, 32);
PARCAGPU_AT(parcagpu_pc_sample, stall_reasons, 48);
PARCAGPU_AT(parcagpu_pc_sample, correlation_id, 56);
_Static_assert(sizeof(struct parcagpu_nvtx_event) == 56, "parcagpu_nvtx_event");
PARCAGPU_AT(parcagpu_nvtx_event, domain_id, 16);
PARCAGPU_AT(parcagpu_nvtx_event, kind, 20);
PARCAGPU_AT(parcagpu_nvtx_event, payload, 32);
PARCAGPU_AT(parcagpu_nvtx_event, message, 48);

#endif
