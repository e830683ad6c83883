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
