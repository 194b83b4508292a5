// Compiled by nvcc, where there is one, to a PTX and a cubin that the tests load.
extern "C" __global__ void berth_scale(const float* from, float* to, unsigned count, float factor, double offset) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] * factor + static_cast<float>(offset);
}
