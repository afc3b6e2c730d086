// Graphs of empty kernels, by the number of their nodes.
#include "common.h"

static const char USAGE[] =
	"usage: graphs [--nodes N] [--seconds S] [--shape chain|wide]\n"
	"Replays a graph of N kernels, or of 1, 10, 100 and 1000 in turn, for S seconds (3) each. chain: each node\n"
	"follows the one before (default); wide: none waits for another. Prints launches and ns per launch call.\n";

__global__ void graph_node() {}

static cudaGraphExec_t make(int nodes, bool wide)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaGraphNode_t node = nullptr;
	CHECK(cudaGraphCreate(&graph, 0));
	for (int at = 0; at < nodes; at++) {
		cudaKernelNodeParams params{};
		void *none = nullptr;
		params.func = reinterpret_cast<void *>(graph_node);
		params.gridDim = params.blockDim = dim3(1);
		params.kernelParams = &none;
		cudaGraphNode_t previous = node;
		bool follows = at > 0 && !wide;
		CHECK(cudaGraphAddKernelNode(&node, graph, follows ? &previous : nullptr, follows ? 1 : 0, &params));
	}
	CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
	CHECK(cudaGraphDestroy(graph));
	return exec;
}

int main(int argc, char **argv)
{
	Options options(argc, argv, USAGE);
	int only = options.count("--nodes", 0);
	double seconds = options.number("--seconds", 3);
	bool wide = std::strcmp(options.text("--shape", "chain"), "wide") == 0;
	options.end();

	cudaStream_t stream;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	for (int nodes : { 1, 10, 100, 1000 }) {
		if (only > 0)
			nodes = only;
		cudaGraphExec_t exec = make(nodes, wide);
		long launches = 0;
		double calls = 0, begin = now_s();
		while (now_s() - begin < seconds) {
			double chunk = now_s();
			for (int call = 0; call < 16; call++)
				CHECK(cudaGraphLaunch(exec, stream));
			calls += now_s() - chunk;
			launches += 16;
			CHECK(cudaStreamSynchronize(stream));
		}
		std::printf("%d nodes: %ld launches, %ld kernels, %.0f ns per launch call\n", nodes, launches, launches * nodes,
			    calls * 1e9 / launches);
		CHECK(cudaGraphExecDestroy(exec));
		if (only > 0)
			break;
	}
}
