// What GPUs of the Hopper generation alone have: barriers in shared memory, copies that nobody waits for, matrix products of four
// warps together, and registers that warps hand to each other. Places in shared memory are numbers of 32 bits.

extern __shared__ __align__(1024) unsigned char dynamic_memory[];

__device__ __forceinline__ unsigned int shared_start() {
  return static_cast<unsigned int>(__cvta_generic_to_shared(dynamic_memory));
}

__device__ __forceinline__ void store_shared(unsigned int place, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ float4 load_shared(unsigned int place) {
  float4 found;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
               : "r"(place)
               : "memory");
  return found;
}

// Read-only, and not kept in the first cache: rows are read once by each multiprocessor.
__device__ __forceinline__ uint4 load_once(const void* place) {
  uint4 found;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "l"(place));
  return found;
}

__device__ __forceinline__ void bring_near(const void* place, unsigned int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(place), "r"(bytes) : "memory");
}

__device__ __forceinline__ float two_to_the(float exponent) {
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(exponent));
  return found;
}

__device__ __forceinline__ unsigned int lane_number() {
  unsigned int found;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(found));
  return found;
}

// Tells the compiler that all lanes have the same value, so that it may keep it in a register of the warp.
__device__ __forceinline__ unsigned int same_in_warp(unsigned int value) { return __shfl_sync(~0u, value, 0); }

// A barrier of 8 bytes turns from one phase to the next once so many have arrived, and the bytes that were announced as well.
__device__ __forceinline__ void make_barrier(unsigned int place, unsigned int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place), "r"(arrivals) : "memory");
}

// Makes new barriers known to what copies; threads know of them after the next barrier of the block.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_and_announce(unsigned int barrier, unsigned int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase of a parity; that of parity 1 has ended in a new barrier.
__device__ __forceinline__ void wait_for(unsigned int barrier, unsigned int parity) {
  asm volatile(
      "{\n.reg .pred ended;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n@ended bra DONE;\nbra AGAIN;\n"
      "DONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies to shared memory; the barrier gets the bytes.
__device__ __forceinline__ void copy_in(unsigned int place, const void* source, unsigned int bytes, unsigned int barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(place),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

// Lets products see what this thread has stored into shared memory; stands in front of an arrival.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most so many of the runs of products that have ended last are still under way.
template <int RUNS>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(RUNS) : "memory");
}

// Keeps the compiler from reading sums before it has waited for them.
template <int SIZE>
__device__ __forceinline__ void sums_are_there(float (&sums)[SIZE]) {
#pragma unroll
  for (int number = 0; number < SIZE; ++number) asm volatile("" : "+f"(sums[number])::"memory");
}

// An operand in shared memory as products take it: rows of 128 bytes, eight of them in 1024 bytes that begin at a multiple of
// 1024, with the 16 bytes number j of row r at j ^ r. Adding 2 goes on by 16 values of each row.
__device__ __forceinline__ unsigned int operand_at(unsigned int place) { return same_in_warp(place >> 4 | 0x10000u); }

__device__ __forceinline__ unsigned long long descriptor(unsigned int operand) {
  unsigned long long found;
  asm("mov.b64 %0, {%1, %2};" : "=l"(found) : "r"(operand), "r"(0x40000040u));
  return found;
}
