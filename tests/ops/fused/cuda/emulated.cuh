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
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
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
static float in_lanes[WARPS][LANES];

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
static inline float of_lane(float value, int lane) {
  const int warp = threadIdx.x / LANES;
  in_lanes[warp][threadIdx.x % LANES] = value;
  whole_warp[warp]->arrive_and_wait();
  const float found = in_lanes[warp][lane];
  whole_warp[warp]->arrive_and_wait();
  return found;
}
static inline int of_lane(int value, int lane) {
  return static_cast<int>(bits_of(of_lane(of_bits(static_cast<unsigned int>(value)), lane)));
}
static inline float of_other_lane(float value, int bit) { return of_lane(value, threadIdx.x % LANES ^ bit); }

static inline float power_of_e(float value) { return std::exp(value); }
static inline float inverse_of(float value) { return 1.f / value; }
static inline float inverse_root_of(float value) { return 1.f / std::sqrt(value); }

// As much as any GPU has.
static float4 launched_with[228 * 1024 / 16];
static inline float4* shared_memory() { return launched_with; }

// What the lanes have of the factors of a product: pairs of numbers. There are two places, so that a lane can write those of the
// next product while others read.
struct Factors {
  float2 a[4], b[2];
};
static Factors factors[2][WARPS][LANES];
static thread_local int product_place;

static inline float half_of(float2 pair, int half) { return half ? pair.y : pair.x; }
static inline void add_product(float (&sum)[4], const unsigned int (&a)[4], unsigned int b, unsigned int b_8) {
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  product_place = 1 - product_place;
  Factors(&all)[LANES] = factors[product_place][warp];
  all[lane] = {{widened(a[0]), widened(a[1]), widened(a[2]), widened(a[3])}, {widened(b), widened(b_8)}};
  whole_warp[warp]->arrive_and_wait();
  for (int place = 0; place < 4; ++place) {
    const int row = lane / 4 + place / 2 * 8, column = lane % 4 * 2 + place % 2;
    double total = sum[place];
    for (int k = 0; k < 16; ++k) {
      const float2 left = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], right = all[column * 4 + k % 8 / 2].b[k / 8];
      total += static_cast<double>(half_of(left, k % 2)) * half_of(right, k % 2);
    }
    sum[place] = static_cast<float>(total);
  }
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
