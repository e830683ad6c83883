// Four numbers at a time, and what all kernels share.
//
// In front of this file stands `device.cuh`.

struct half_t {
  unsigned short bits;
};

// Loops that are no loops: the body gets each number as a constant, to look up places with while it is compiled.
template <int VALUE>
struct Number {
  __device__ constexpr operator int() const { return VALUE; }
};

template <int BEGIN, int END, class Body>
__device__ __forceinline__ void for_each(const Body& body) {
  if constexpr (BEGIN < END) {
    body(Number<BEGIN>{});
    for_each<BEGIN + 1, END>(body);
  }
}

struct Vector {
  float4 of;
};

__device__ __forceinline__ Vector operator*(float a, Vector b) {
  return {{a * b.of.x, a * b.of.y, a * b.of.z, a * b.of.w}};
}
__device__ __forceinline__ Vector operator*(Vector a, Vector b) {
  return {{a.of.x * b.of.x, a.of.y * b.of.y, a.of.z * b.of.z, a.of.w * b.of.w}};
}
__device__ __forceinline__ Vector operator+(Vector a, Vector b) {
  return {{a.of.x + b.of.x, a.of.y + b.of.y, a.of.z + b.of.z, a.of.w + b.of.w}};
}
__device__ __forceinline__ Vector operator-(Vector a, Vector b) {
  return {{a.of.x - b.of.x, a.of.y - b.of.y, a.of.z - b.of.z, a.of.w - b.of.w}};
}
__device__ __forceinline__ float dot(Vector a, Vector b) {
  return a.of.x * b.of.x + a.of.y * b.of.y + a.of.z * b.of.z + a.of.w * b.of.w;
}

// Rows of edges are read and written once; nodes are read by every edge.
__device__ __forceinline__ Vector vector_of(uint2 words) {
  const float2 first = widened(words.x), second = widened(words.y);
  return {{first.x, first.y, second.x, second.y}};
}
__device__ __forceinline__ uint2 halves_of(Vector value) {
  return {narrowed(value.of.x, value.of.y), narrowed(value.of.z, value.of.w)};
}
__device__ __forceinline__ Vector load_row(const float* place) { return {load_16(place)}; }
__device__ __forceinline__ Vector load_row(const half_t* place) { return vector_of(load_8(place)); }
__device__ __forceinline__ Vector load_node(const float* place) { return {load_again(place)}; }
__device__ __forceinline__ void store_row(float* place, Vector value) { store_16(place, value.of); }
__device__ __forceinline__ void store_row(half_t* place, Vector value) { store_8(place, halves_of(value)); }

// To nearest, ties to even, to the 10 bits of TF32; NaN, which adding to bits may destroy, stays.
__device__ __forceinline__ float to_tf32(float value) {
  const unsigned int bits = bits_of(value);
  const bool is_number = (bits & 0x7FFFFFFFu) <= 0x7F800000u;
  return is_number ? of_bits((bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu) : value;
}
__device__ __forceinline__ Vector to_tf32(Vector value) {
  return {{to_tf32(value.of.x), to_tf32(value.of.y), to_tf32(value.of.z), to_tf32(value.of.w)}};
}
