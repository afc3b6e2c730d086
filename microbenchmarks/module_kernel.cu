// What `modules` loads.
extern "C" __global__ void module_kernel() {}
