// Stands in for `hopper.cuh` on a CPU, behind `emulated.cuh`. Products happen when a thread waits for them, so that a slot that is
// given away too early is seen in the results, or with EARLY at once, so that one that is read before it is filled is seen. A
// barrier that does not turn within a minute ends the process.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>

alignas(1024) static unsigned char dynamic_memory[SHARED_BYTES];

static std::atomic<bool> is_stuck{false};

static inline unsigned int shared_start() { return 1024; }  // where a block's own memory begins on the GPU
static inline unsigned char* shared_place(unsigned int place, unsigned int bytes) {
  if (place < 1024 || place - 1024 + bytes > sizeof(dynamic_memory)) {
    std::fprintf(stderr, "%u bytes at %u are not in shared memory\n", bytes, place);
    std::abort();
  }
  return dynamic_memory + (place - 1024);
}

static inline void store_shared(unsigned int place, uint4 value) { std::memcpy(shared_place(place, 16), &value, 16); }
static inline float4 load_shared(unsigned int place) {
  float4 found;
  std::memcpy(&found, shared_place(place, 16), 16);
  return found;
}
static inline uint4 load_once(const void* place) { return *static_cast<const uint4*>(place); }
static inline void bring_near(const void* place, unsigned int bytes) {
  if (reinterpret_cast<std::uintptr_t>(place) % 16 || bytes % 16 || !bytes) std::abort();
  // Reads, so that a place outside of the tensor may be noticed.
  volatile unsigned char last = static_cast<const unsigned char*>(place)[bytes - 1];
  static_cast<void>(last);
}
static inline float two_to_the(float exponent) { return std::exp2(exponent); }
static inline unsigned int lane_number() { return threadIdx.x % LANES; }
static inline unsigned int same_in_warp(unsigned int value) { return value; }
static inline void __syncwarp() { whole_warp[threadIdx.x / LANES]->arrive_and_wait(); }

struct Barrier {
  std::mutex held;
  std::condition_variable turned;
  unsigned int arrivals = 0, missing = 0, phase = 0;
  long long bytes = 0;

  void turn_if_complete() {
    if (missing || bytes) return;
    missing = arrivals;
    ++phase;
    turned.notify_all();
  }
};
static std::array<Barrier, 32> barriers_of_block;

static inline Barrier& barrier_at(unsigned int place) {
  shared_place(place, 8);
  return barriers_of_block.at((place - 1024 - BARRIERS_START) / 8);
}
static inline void make_barrier(unsigned int place, unsigned int arrivals) {
  Barrier& barrier = barrier_at(place);
  barrier.arrivals = barrier.missing = arrivals;
  barrier.phase = 0;
  barrier.bytes = 0;
}
static inline void publish_barriers() {}
static inline void arrive_and_announce(unsigned int place, unsigned int bytes) {
  Barrier& barrier = barrier_at(place);
  const std::lock_guard lock(barrier.held);
  if (!barrier.missing) std::abort();
  --barrier.missing;
  barrier.bytes += bytes;
  barrier.turn_if_complete();
}
static inline void arrive(unsigned int place) { arrive_and_announce(place, 0); }
static inline void wait_for(unsigned int place, unsigned int parity) {
  Barrier& barrier = barrier_at(place);
  std::unique_lock lock(barrier.held);
  const auto ended = [&] { return barrier.phase % 2 != parity || is_stuck; };
  if (!barrier.turned.wait_for(lock, std::chrono::seconds(60), ended)) is_stuck = true;
  if (is_stuck) {
    std::fprintf(stderr, "stuck: barrier %u, thread %u\n", (place - 1024 - BARRIERS_START) / 8, threadIdx.x);
    std::_Exit(3);
  }
}
static inline void copy_in(unsigned int place, const void* source, unsigned int bytes, unsigned int barrier_place) {
  if (place % 16 || bytes % 16 || reinterpret_cast<std::uintptr_t>(source) % 16) std::abort();
  std::memcpy(shared_place(place, bytes), source, bytes);
  Barrier& barrier = barrier_at(barrier_place);
  const std::lock_guard lock(barrier.held);
  barrier.bytes -= bytes;
  barrier.turn_if_complete();
}
static inline void show_to_products() {}
template <int REGISTERS>
void take_registers() {}
template <int REGISTERS>
void give_registers() {}
template <int SIZE>
void sums_are_there(float (&)[SIZE]) {}

static inline unsigned int operand_at(unsigned int place) {
  if (place % 1024) std::abort();
  return place >> 4 | 0x10000u;
}

// A value of an operand: the swizzle of 128 bytes changes places as they come out, wherever the operand begins.
static inline float value_of(unsigned int operand, unsigned int row, unsigned int column) {
  static const std::vector<float> wide = [] {
    std::vector<float> made(65536);
    for (unsigned int bits = 0; bits < 65536; ++bits) made[bits] = widened(bits).x;
    return made;
  }();
  const unsigned int place = ((operand & 0x3FFFu) << 4) + row / 8 * 1024 + row % 8 * 128 + 2 * column;
  unsigned short bits;
  std::memcpy(&bits, shared_place(place ^ (place >> 7 & 7u) << 4, 2), 2);
  return wide[bits];
}

struct Product {
  float* sums;
  int size, sign;
  unsigned int rows, matrix;
  bool adds;
};
static thread_local std::vector<Product> begun;
static thread_local std::vector<std::vector<Product>> under_way;

static inline void begin_products() {}
static inline void end_products() {
  under_way.push_back(begun);
  begun.clear();
}
static inline void finish(const Product& product) {
  const unsigned int warp = threadIdx.x / LANES % 4, lane = threadIdx.x % LANES;
  float of_rows[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) of_rows[half][k] = value_of(product.rows, 16 * warp + lane / 4 + 8 * half, k);
  for (int number = 0; number < product.size; ++number) {
    const unsigned int column = number / 4 * 8 + lane % 4 * 2 + number % 2;
    float sum = product.adds ? product.sums[number] : 0.f;
    for (int k = 0; k < 16; ++k) sum += product.sign * of_rows[number / 2 % 2][k] * value_of(product.matrix, column, k);
    product.sums[number] = sum;
  }
}
template <int SIGN, int SIZE>
void multiply(float (&sums)[SIZE], unsigned int rows, unsigned int matrix, bool adds) {
  const Product product{sums, SIZE, SIGN, rows, matrix, adds};
  if (EARLY) {
    finish(product);
  } else {
    begun.push_back(product);
  }
}
template <int RUNS>
void wait_for_products() {
  while (under_way.size() > RUNS) {
    for (const Product& product : under_way.front()) finish(product);
    under_way.erase(under_way.begin());
  }
  __syncwarp();  // the lanes of a warp wait together
}
