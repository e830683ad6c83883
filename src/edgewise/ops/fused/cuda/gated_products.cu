// The gate activation and the second SO(2) map in one: warps that gate rows into shared memory, and warps that multiply them.
//
// A block keeps one share of the matrices in shared memory for good and sees tiles of rows pass by, so that matrices, which are
// larger than rows, cross the chip once. There are five shares: two of order 0, each with half of the outputs; two of order 1,
// each with half of the outputs of +1 and of -1; and one of order 2. Every block has two lines of work that have nothing but the
// matrices in common: four warps gate tiles of 64 edges, four others multiply them.
//
// A part is 64 channels of one degree, and of +m and -m for m > 0: what a slot between the two kinds of warps holds. In front of
// this file stand `device.cuh`, `hopper.cuh` and what `gated_products.py` writes: sizes, and `multiply`.

struct half_t {
  unsigned short bits;
};

constexpr int THREADS = WARPS * LANES, LINES = 2, WARPS_OF_LINE = 4;
constexpr int TILE = 64, PART = 64, PARTS_OF_DEGREE = HIDDEN / PART, CHUNK = 8;
constexpr int ROWS_OF_WARP = TILE / WARPS_OF_LINE, CHUNKS = PART / CHUNK, ROWS_AT_ONCE = LANES / CHUNKS;
constexpr int ROUNDS = ROWS_OF_WARP / ROWS_AT_ONCE;
constexpr unsigned int OPERAND_BYTES = TILE * PART * 2;
constexpr int MULTIPLYING_REGISTERS = 160, GATING_REGISTERS = 96;
constexpr float MINUS_LOG2_OF_E = -1.4426950408889634f;

// How many slots a line has, and how many operands of 64 edges and 64 channels each holds.
constexpr int OF_ORDER_0 = 1, OF_PAIRS = 2;
template <int OPERANDS>
constexpr int SLOTS = OPERANDS == OF_ORDER_0 ? 5 : 3;

// Shared memory: the matrices and the slots of both lines, then the bias, then the barriers.
constexpr unsigned int BIAS_VALUES = (2 * LMAX + 1) * HIDDEN, BIAS_PLACE = MATRICES_AND_SLOTS;
constexpr unsigned int BARRIERS_PLACE = BIAS_PLACE + 4 * BIAS_VALUES;

// What a block does.
struct Share {
  int order, half, block, blocks;
  int n_parts;
  const unsigned char* matrices;
  unsigned int matrix_bytes;
  int gates, values, outputs;  // columns
  __device__ __forceinline__ int between() const { return n_parts * PART; }  // columns from +m to -m
};

__device__ __forceinline__ Share share_of(const unsigned char* matrices, int blocks_of_0, int blocks_of_1) {
  Share share;
  int block = static_cast<int>(blockIdx.x);
  share.order = block < 2 * blocks_of_0 ? 0 : block < 2 * (blocks_of_0 + blocks_of_1) ? 1 : 2;
  block -= share.order == 0 ? 0 : share.order == 1 ? 2 * blocks_of_0 : 2 * (blocks_of_0 + blocks_of_1);
  // Blocks that gate the same rows stand side by side: what one reads is near for the other.
  share.half = share.order < 2 ? block % 2 : 0;
  share.block = share.order < 2 ? block / 2 : block;
  share.blocks = share.order == 0   ? blocks_of_0
                 : share.order == 1 ? blocks_of_1
                                    : static_cast<int>(gridDim.x) - 2 * (blocks_of_0 + blocks_of_1);
  share.n_parts = (LMAX + 1 - share.order) * PARTS_OF_DEGREE;
  if (share.order == 0) {
    share.matrix_bytes = BYTES_OF_0;
    share.matrices = matrices + share.half * BYTES_OF_0;
    share.gates = -HIDDEN;  // degree 0 has none
    share.values = LMAX * HIDDEN;
    share.outputs = share.half * (OUTPUTS_OF_0 / 2);
  } else {
    share.matrix_bytes = share.order == 1 ? BYTES_OF_1 : BYTES_OF_2;
    share.matrices = matrices + 2 * BYTES_OF_0 + (share.order == 1 ? share.half * BYTES_OF_1 : 2 * BYTES_OF_1);
    share.gates = (share.order - 1) * HIDDEN;
    share.values = share.order == 1 ? VALUES_OF_1 : VALUES_OF_2;
    share.outputs = share.order == 1 ? OUTPUTS_OF_0 + share.half * PAIR_COLUMNS : OUTPUTS_OF_0 + OUTPUTS_OF_1;
  }
  return share;
}

// The tiles that a line of work takes, in turn.
struct Tiles {
  int first, step, end, n_rows;
};

// Slots that are filled and emptied in turn, each with a barrier for both.
template <int OPERANDS>
struct Slots {
  unsigned int rows, barriers;
  unsigned int number = 0, parity = 0;

  __device__ __forceinline__ Slots(unsigned int rows_of_lines, unsigned int barriers_of_lines, int line)
      : rows(rows_of_lines + line * (SLOTS<OPERANDS> * OPERANDS * OPERAND_BYTES)),
        barriers(barriers_of_lines + line * (16 * SLOTS<OPERANDS>)) {}
  __device__ __forceinline__ unsigned int place() const { return rows + number * (OPERANDS * OPERAND_BYTES); }
  __device__ __forceinline__ unsigned int filled() const { return barriers + 8 * number; }
  __device__ __forceinline__ unsigned int emptied() const { return filled() + 8 * SLOTS<OPERANDS>; }
  // Of the slot in front of this one: after `next`, of the one that was in use.
  __device__ __forceinline__ unsigned int emptied_before() const {
    return barriers + 8 * SLOTS<OPERANDS> + 8 * (number == 0 ? SLOTS<OPERANDS> - 1 : number - 1);
  }
  __device__ __forceinline__ void next() {
    if (++number == SLOTS<OPERANDS>) {
      number = 0;
      parity ^= 1;
    }
  }
};

// ---- Warps that gate

// What a thread has loaded of a part: 16 bytes of channels of some rows.
template <int OPERANDS>
struct Loaded {
  uint4 values[ROUNDS][OPERANDS], gates[ROUNDS];
};

template <int OPERANDS>
__device__ __forceinline__ void load_part(Loaded<OPERANDS>& into, int round, const half_t* before, const Share& share, int row,
                                          int n_rows, int part, int chunk) {
  // Rows beyond the last are that one again: what is made of them is not stored.
  const half_t* columns = before + static_cast<long long>(row < n_rows ? row : n_rows - 1) * BEFORE + part * PART + chunk * CHUNK;
  into.values[round][0] = load_once(columns + share.values);
  if constexpr (OPERANDS == OF_PAIRS) into.values[round][1] = load_once(columns + share.values + share.between());
  if (OPERANDS == OF_PAIRS || part >= PARTS_OF_DEGREE) into.gates[round] = load_once(columns + share.gates);
}

// 1 / (1 + exp(-x)), where `shift` is the bias times -log2 e.
__device__ __forceinline__ float sigmoid(float gate, float shift) {
  return inverse_of(1.f + two_to_the(gate * MINUS_LOG2_OF_E + shift));
}

__device__ __forceinline__ void load_bias(float (&bias)[CHUNK], unsigned int place) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = load_shared(place + 16 * half);
    bias[4 * half] = four.x, bias[4 * half + 1] = four.y, bias[4 * half + 2] = four.z, bias[4 * half + 3] = four.w;
  }
}

template <int OPERANDS>
__device__ __forceinline__ void gate_tiles(const Share& share, const Tiles& tiles, const half_t* before, unsigned int start,
                                           Slots<OPERANDS> slots, int warp) {
  const int lane = static_cast<int>(lane_number()), chunk = lane % CHUNKS;
  const int own_row = warp * ROWS_OF_WARP + lane / CHUNKS;
  const unsigned int bias_place = start + BIAS_PLACE + 4 * CHUNK * chunk;
  Loaded<OPERANDS> loaded;
  if (tiles.first < tiles.end) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round)
      load_part(loaded, round, before, share, tiles.first * TILE + own_row + ROWS_AT_ONCE * round, tiles.n_rows, 0, chunk);
  }
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.step) {
    const int coming = (tile + tiles.step) * TILE + warp * ROWS_OF_WARP + lane;
    if (lane < ROWS_OF_WARP && coming < tiles.n_rows) {
      const half_t* columns = before + static_cast<long long>(coming) * BEFORE;
      if constexpr (OPERANDS == OF_PAIRS) {
        bring_near(columns + share.gates, 2 * share.between());
        bring_near(columns + share.values, 4 * share.between());
      } else {
        bring_near(columns, 2 * BIAS_VALUES);  // the columns that have a bias are those of order 0
      }
    }
#pragma unroll 1
    for (int part = 0; part < share.n_parts; ++part) {
      const bool last = part + 1 == share.n_parts;
      const int next_tile = last ? tile + tiles.step : tile, next_part = last ? 0 : part + 1;
      const bool own_gate = OPERANDS == OF_ORDER_0 && part < PARTS_OF_DEGREE;
      float bias[CHUNK], shift[CHUNK];
      load_bias(shift, bias_place + 4 * ((own_gate ? share.values : share.gates) + part * PART));
#pragma unroll
      for (int channel = 0; channel < CHUNK; ++channel) shift[channel] *= MINUS_LOG2_OF_E;
      if constexpr (OPERANDS == OF_ORDER_0) load_bias(bias, bias_place + 4 * (share.values + part * PART));
      wait_for(slots.emptied(), slots.parity ^ 1);
#pragma unroll
      for (int round = 0; round < ROUNDS; ++round) {
        const int row = own_row + ROWS_AT_ONCE * round;
        const uint4 gates = own_gate ? loaded.values[round][0] : loaded.gates[round];
        const unsigned int words[] = {gates.x, gates.y, gates.z, gates.w};
        unsigned int made[OPERANDS][4];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const float2 gate = widened(words[word]);
          const float first = sigmoid(gate.x, shift[2 * word]), second = sigmoid(gate.y, shift[2 * word + 1]);
#pragma unroll
          for (int number = 0; number < OPERANDS; ++number) {
            const uint4 values = loaded.values[round][number];
            float2 value = widened(word == 0 ? values.x : word == 1 ? values.y : word == 2 ? values.z : values.w);
            if constexpr (OPERANDS == OF_ORDER_0) value.x += bias[2 * word], value.y += bias[2 * word + 1];
            made[number][word] = narrowed(value.x * first, value.y * second);
          }
        }
        const unsigned int place = slots.place() + row * (2 * PART) + ((chunk ^ (row % CHUNKS)) << 4);
#pragma unroll
        for (int number = 0; number < OPERANDS; ++number)
          store_shared(place + number * OPERAND_BYTES,
                       uint4{made[number][0], made[number][1], made[number][2], made[number][3]});
        if (next_tile < tiles.end)
          load_part(loaded, round, before, share, next_tile * TILE + row, tiles.n_rows, next_part, chunk);
      }
      show_to_products();
      __syncwarp();
      if (lane == 0) arrive(slots.filled());
      slots.next();
    }
  }
}

// ---- Warps that multiply

// Stores the sums of a thread, 8 columns of two rows at a time: the rows of the matrices are in an order that makes them
// neighbours.
template <int SIZE>
__device__ __forceinline__ void store_sums(const float (&sums)[SIZE], half_t* out, int row, int n_rows, int column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= n_rows) continue;
    half_t* place = out + (row + 8 * half) * static_cast<long long>(AFTER) + column;
#pragma unroll
    for (int group = 0; group < SIZE / 16; ++group) {
      const float* own = sums + 16 * group + 2 * half;
      *reinterpret_cast<uint4*>(place + 32 * group) =
          uint4{narrowed(own[0], own[1]), narrowed(own[4], own[5]), narrowed(own[8], own[9]), narrowed(own[12], own[13])};
    }
  }
}

__device__ __forceinline__ void multiply_order_0(const Share& share, const Tiles& tiles, half_t* out, unsigned int start,
                                                 Slots<OF_ORDER_0> slots, int warp) {
  constexpr unsigned int MATRIX = OUTPUTS_OF_0 / 2 * PART * 2;
  const int lane = static_cast<int>(lane_number());
  // Zeros that nobody reads: without them compilers of CUDA 12 wait behind each product.
  float sums[OUTPUTS_OF_0 / 4] = {};
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.step) {
#pragma unroll 1
    for (int part = 0; part < share.n_parts; ++part) {
      wait_for(slots.filled(), slots.parity);
      const unsigned int rows = operand_at(slots.place()), matrix = operand_at(start + part * MATRIX);
      begin_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) multiply<1>(sums, rows + 2 * step, matrix + 2 * step, part + step != 0);
      end_products();
      wait_for_products<1>();
      if (part != 0 && lane == 0) arrive(slots.emptied_before());
      slots.next();
    }
    wait_for_products<0>();
    sums_are_there(sums);
    if (lane == 0) arrive(slots.emptied_before());
    const int row = tile * TILE + warp * 16 + lane / 4;
    store_sums(sums, out, row, tiles.n_rows, share.outputs + CHUNK * (lane % 4));
  }
}

// With the blocks A and B of the matrix: +m gets A x(+m) - B x(-m), and -m gets B x(+m) + A x(-m).
__device__ __forceinline__ void multiply_pairs(const Share& share, const Tiles& tiles, half_t* out, unsigned int start,
                                               Slots<OF_PAIRS> slots, int warp) {
  constexpr unsigned int MATRIX = PAIR_COLUMNS * PART * 2;
  const int lane = static_cast<int>(lane_number());
  float plus[PAIR_COLUMNS / 2] = {}, minus[PAIR_COLUMNS / 2] = {};
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.step) {
#pragma unroll 1
    for (int part = 0; part < share.n_parts; ++part) {
      wait_for(slots.filled(), slots.parity);
      const unsigned int of_plus = operand_at(slots.place()), of_minus = of_plus + OPERAND_BYTES / 16;
      const unsigned int a = operand_at(start + part * (2 * MATRIX)), b = a + MATRIX / 16;
      begin_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply<1>(plus, of_plus + 2 * step, a + 2 * step, part + step != 0);
        multiply<1>(minus, of_plus + 2 * step, b + 2 * step, part + step != 0);
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply<-1>(plus, of_minus + 2 * step, b + 2 * step, true);
        multiply<1>(minus, of_minus + 2 * step, a + 2 * step, true);
      }
      end_products();
      wait_for_products<1>();
      if (part != 0 && lane == 0) arrive(slots.emptied_before());
      slots.next();
    }
    wait_for_products<0>();
    sums_are_there(plus);
    sums_are_there(minus);
    if (lane == 0) arrive(slots.emptied_before());
    const int row = tile * TILE + warp * 16 + lane / 4, column = share.outputs + CHUNK * (lane % 4);
    store_sums(plus, out, row, tiles.n_rows, column);
    store_sums(minus, out, row, tiles.n_rows, column + share.between());
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gated_products(const half_t* __restrict__ before, const float* __restrict__ bias, const unsigned char* __restrict__ matrices,
               half_t* __restrict__ out, const int* __restrict__ n_live, int capacity, int blocks_of_0, int blocks_of_1) {
  const int n_rows = *n_live < capacity ? *n_live : capacity, n_tiles = (n_rows + TILE - 1) / TILE;
  const Share share = share_of(matrices, blocks_of_0, blocks_of_1);
  if (LINES * share.block >= n_tiles) return;
  const unsigned int start = shared_start(), barriers = start + BARRIERS_PLACE, slots_place = start + share.matrix_bytes;
  const unsigned int matrices_are_there = barriers, barriers_of_lines = barriers + 8;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    make_barrier(matrices_are_there, 1);
    // Each slot has a barrier that says it is filled and one that says it is emptied; both wait for the four warps of a line.
    for (int number = 0; number < 2 * LINES * SLOTS<OF_ORDER_0>; ++number) make_barrier(barriers_of_lines + 8 * number, 4);
    publish_barriers();
  }
  if (4 * thread < static_cast<int>(BIAS_VALUES)) {
    store_shared(start + BIAS_PLACE + 16 * thread, *reinterpret_cast<const uint4*>(bias + 4 * thread));
  }
  __syncthreads();
  // Of each role there is one group of four warps for each line.
  const int warp = static_cast<int>(same_in_warp(threadIdx.x / LANES)), line = warp / WARPS_OF_LINE % LINES;
  const Tiles tiles{LINES * share.block + line, LINES * share.blocks, n_tiles, n_rows};
  if (warp < LINES * WARPS_OF_LINE) {
    take_registers<MULTIPLYING_REGISTERS>();
    if (thread == 0) {
      arrive_and_announce(matrices_are_there, share.matrix_bytes);
      for (unsigned int done = 0; done < share.matrix_bytes; done += COPIED_BYTES) {
        copy_in(start + done, share.matrices + done, COPIED_BYTES, matrices_are_there);
      }
    }
    __syncwarp();
    wait_for(matrices_are_there, 0);
    if (share.order == 0) {
      multiply_order_0(share, tiles, out, start, {slots_place, barriers_of_lines, line}, warp % WARPS_OF_LINE);
    } else {
      multiply_pairs(share, tiles, out, start, {slots_place, barriers_of_lines, line}, warp % WARPS_OF_LINE);
    }
  } else {
    give_registers<GATING_REGISTERS>();
    if (share.order == 0) {
      gate_tiles<OF_ORDER_0>(share, tiles, before, start, {slots_place, barriers_of_lines, line}, warp % WARPS_OF_LINE);
    } else {
      gate_tiles<OF_PAIRS>(share, tiles, before, start, {slots_place, barriers_of_lines, line}, warp % WARPS_OF_LINE);
    }
  }
}
