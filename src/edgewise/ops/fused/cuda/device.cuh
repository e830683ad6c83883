// What only a GPU has: streamed loads and stores, conversions and shuffles. No header is needed, so that NVRTC alone will do.

__device__ __forceinline__ uint2 load_8(const void* place) {
  // Read-only, and so free to move across stores.
  uint2 found;
  asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y) : "l"(place));
  return found;
}

__device__ __forceinline__ float4 load_16(const void* place) {
  float4 found;
  asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
      : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
      : "l"(place));
  return found;
}

__device__ __forceinline__ float4 load_again(const float* place) { return __ldg(reinterpret_cast<const float4*>(place)); }

__device__ __forceinline__ void store_8(void* place, uint2 value) { __stcs(reinterpret_cast<uint2*>(place), value); }

__device__ __forceinline__ void store_16(void* place, float4 value) { __stcs(reinterpret_cast<float4*>(place), value); }

// Two values of float16 in a word, the first in its lower half.
__device__ __forceinline__ float2 widened(unsigned int pair) {
  float2 found;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(found.x), "=f"(found.y)
      : "r"(pair));
  return found;
}

__device__ __forceinline__ unsigned int narrowed(float first, float second) {
  unsigned int found;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
  return found;
}

__device__ __forceinline__ unsigned int bits_of(float value) { return __float_as_uint(value); }

__device__ __forceinline__ float of_bits(unsigned int bits) { return __uint_as_float(bits); }

// The value of the lane whose number differs in one bit.
__device__ __forceinline__ float of_other_lane(float value, int bit) { return __shfl_xor_sync(~0u, value, bit); }

// The value of another lane.
__device__ __forceinline__ float of_lane(float value, int lane) { return __shfl_sync(~0u, value, lane); }
__device__ __forceinline__ int of_lane(int value, int lane) { return __shfl_sync(~0u, value, lane); }

// Powers of e, inverses and roots to some units in the last place; what is too small or too large becomes 0 or infinite.
__device__ __forceinline__ float power_of_e(float value) {
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(1.44269504f * value));
  return found;
}

__device__ __forceinline__ float inverse_of(float value) {
  float found;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(value));
  return found;
}

__device__ __forceinline__ float inverse_root_of(float value) {
  float found;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(value));
  return found;
}

// Shared memory beyond what a kernel declares; the launch says how much there is.
extern __shared__ float4 launched_with[];
__device__ __forceinline__ float4* shared_memory() { return launched_with; }

// Adds the product of two matrices of float16, 16 x 16 and 16 x 8, in float32. With row = lane / 4 and column = lane % 4, a lane
// has of the first matrix the pairs of columns 2 column of the rows row and row + 8, then the pairs 2 column + 8 of both; of the
// second the pairs of rows 2 column and 2 column + 8 in its column row; of the sum the pairs of columns 2 column of both rows.
__device__ __forceinline__ void add_product(float (&sum)[4], const unsigned int (&a)[4], unsigned int b, unsigned int b_8) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b_8));
}
