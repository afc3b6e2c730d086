/*
 * The USDT probes of libparcagpu.so. This file states the real width of every argument; in the ELF
 * notes each argument is 8 bytes wide, so consumers cast.
 *
 * kernel_executed and activity_batch carry the same records: attach to both if you like, count one.
 * Pointers are valid while the probe fires; a cubin until its cubin_unloaded.
 */
provider parcagpu {
	/* On exit of a sampled launch, on the launching thread. cbid > 0: runtime API, cbid < 0: driver API. */
	probe cuda_correlation(uint32_t correlationId, int32_t cbid, char *name);
	/* One kernel record of a sampled launch. start and end in ns as CUPTI gives them, 0 and 0 when unknown. */
	probe kernel_executed(uint64_t start, uint64_t end, uint32_t correlationId, uint32_t deviceId, uint32_t streamId, uint32_t graphId, uint64_t graphNodeId, char *name);
	/* Up to 128 pointers to CUPTI kernel records (struct parcagpu_kernel in ebpf/parcagpu.h). */
	probe activity_batch(const void **ptrs, uint32_t count);
	/* Up to 128 pointers to PC samples (struct parcagpu_pc_sample). */
	probe pc_sample_batch(const void **records, uint32_t count);
	/* Table of 64-byte zero-padded names, index = stall reason. Always readable for 64 entries. */
	probe stall_reason_map(char *names, uint32_t count);
	/* ns per PC sample = 2^samplingFactor * 1e6 / clockKHz. */
	probe gpu_config(uint32_t deviceId, uint32_t samplingFactor, uint32_t clockKHz, uint32_t smCount);
	/* cubinCrc: IEEE CRC-32 of the bytes, zero-extended. */
	probe cubin_loaded(uint64_t cubinCrc, char *cubin, uint64_t cubinSize);
	probe cubin_unloaded(uint64_t cubinCrc);
	/* code: CUPTI's or the driver's number, 0 for configuration. */
	probe error(int32_t code, char *message, char *component);
	/* Up to 256 pointers to struct parcagpu_nvtx_event. */
	probe nvtx_event_batch(const void **ptrs, uint32_t count);
	/* kind: 1 OS thread, 2 CUDA stream, 3 CUDA device, 4 reserved, 5 NVTX domain. */
	probe nvtx_resource_name(uint32_t kind, uint64_t id, char *name);
};
