# The names people know from the C++ library. Each calls a script, which has the options.
MAKEFLAGS += --no-print-directory

.PHONY: local debug clean test test-nvtx test-nvtx-real test-pc-mock test-pc-real test-multi generate bpf-test \
	microbenchmarks build-amd64 build-arm64 build-all docker-push

local:
	@scripts/build
debug:
	@scripts/build --debug
clean:
	@scripts/build --clean
test:
	@scripts/test
bpf-test:
	@scripts/test --require bpf
generate:
	@scripts/not-yet $@ "a step to generate sources (the build makes what it needs)"
test-nvtx:
	@scripts/test-nvtx
test-nvtx-real:
	@scripts/test-nvtx-real
test-pc-mock:
	@scripts/test-pc-mock
test-pc-real:
	@scripts/test-pc-real
test-multi:
	@scripts/not-yet $@ "a test with several GPUs"
microbenchmarks:
	@microbenchmarks/build
build-amd64:
	@scripts/build-release amd64
build-arm64:
	@scripts/build-release arm64
build-all:
	@scripts/build-release amd64 arm64
docker-push:
	@scripts/docker-push "$(IMAGE)"
