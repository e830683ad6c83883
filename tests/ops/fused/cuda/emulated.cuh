// Runs the kernels on a CPU: a thread for each thread of a block, one block after the other. Stands in for `device.cuh`.

#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 {
  unsigned int x, y;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3_ {
  unsigned int x, y, z;
};

static thread_local dim3_ threadIdx, blockIdx;
static dim3_ gridDim;
static std::unique_ptr<std::barrier<>> whole_block;
static std::vector<std::unique_ptr<std::barrier<>>> whole_warp;
static float of_lane[WARPS][LANES];

static inline uint2 load_8(const void* place) { return *static_cast<const uint2*>(place); }
static inline float4 load_16(const void* place) { return *static_cast<const float4*>(place); }
static inline float4 load_again(const float* place) { return *reinterpret_cast<const float4*>(place); }
static inline void store_8(void* place, uint2 value) { *static_cast<uint2*>(place) = value; }
static inline void store_16(void* place, float4 value) { *static_cast<float4*>(place) = value; }

static inline float2 widened(unsigned int pair) {
  _Float16 two[2];
  std::memcpy(two, &pair, 4);
  return {static_cast<float>(two[0]), static_cast<float>(two[1])};
}
static inline unsigned int narrowed(float first, float second) {
  const _Float16 two[2] = {static_cast<_Float16>(first), static_cast<_Float16>(second)};
  unsigned int pair;
  std::memcpy(&pair, two, 4);
  return pair;
}
static inline unsigned int bits_of(float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
static inline float of_bits(unsigned int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
static inline float of_other_lane(float value, int bit) {
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  of_lane[warp][lane] = value;
  whole_warp[warp]->arrive_and_wait();
  const float found = of_lane[warp][lane ^ bit];
  whole_warp[warp]->arrive_and_wait();
  return found;
}
static inline void __syncthreads() { whole_block->arrive_and_wait(); }

template <class... Arguments, std::size_t... PLACES>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<PLACES...>) {
  kernel(*static_cast<std::remove_const_t<Arguments>*>(arguments[PLACES])...);
}

// Arguments come as pointers to their values, as the driver takes them.
template <class... Arguments>
void run(void (*kernel)(Arguments...), unsigned int x, unsigned int y, unsigned int z, void** arguments) {
  constexpr int n_threads = WARPS * LANES;
  gridDim = {x, y, z};
  whole_block = std::make_unique<std::barrier<>>(n_threads);
  whole_warp.clear();
  for (int warp = 0; warp < WARPS; ++warp) whole_warp.push_back(std::make_unique<std::barrier<>>(LANES));
  std::barrier<> between(n_threads);
  std::vector<std::thread> threads;
  for (unsigned int thread = 0; thread < n_threads; ++thread) {
    threads.emplace_back([&, thread] {
      threadIdx = {thread, 0, 0};
      for (unsigned int block = 0; block < x * y * z; ++block) {
        blockIdx = {block % x, block / x % y, block / x / y};
        call(kernel, arguments, std::index_sequence_for<Arguments...>{});
        between.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}
