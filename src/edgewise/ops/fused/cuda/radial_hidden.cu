// Radial networks up to their last layer, values and slopes, with the formula of `radial_network.hidden_with_slope`.
//
// A warp does 16 edges, the rows of its products. Columns come in groups of 16, and columns of a group in an order of their own:
// of the two products that make a group, a lane has in each of its two rows four columns that stand side by side. What the first
// layer leaves in a lane is just what the product of the second takes from it, so lanes exchange nothing but sums over columns.
//
// Weights lie in shared memory as lanes take them: for each group, step of 16 summed values, and part, high or low, what each
// lane takes of the matrix, 16 bytes. Means over columns have been taken off them, so that layer norms only have to divide. In
// front of this file stand `vectors.cuh` and what `_radial_form.py` writes.

constexpr int THREADS = WARPS * LANES;
constexpr int GROUPS = WIDTH / TILE;  // of columns; also steps of the second layer's sums
constexpr int ASIDE = GROUPS * 4 * LANES;
constexpr int BASIS_PART = BASIS_STEPS * GROUPS * 2 * LANES, LINEAR_PART = GROUPS * GROUPS * 2 * LANES;
constexpr int VECTORS_PART = 5 * WIDTH / 4;
static_assert((BASIS_PART + LINEAR_PART + VECTORS_PART + WARPS * ASIDE) * 16 == SHARED_BYTES, "the launch's shared memory");

// A lane's share of 16 rows and 16 columns: of the columns 2 pair and 2 pair + 1 those of its first row, then of its second.
struct Share {
  float pair[2][4];

  __device__ __forceinline__ float& at(int row, int column) { return pair[column / 2][2 * row + column % 2]; }
  __device__ __forceinline__ float at(int row, int column) const { return pair[column / 2][2 * row + column % 2]; }
};

__device__ __forceinline__ void set_columns(Share& x, int row, float4 four) {
  x.at(row, 0) = four.x;
  x.at(row, 1) = four.y;
  x.at(row, 2) = four.z;
  x.at(row, 3) = four.w;
}

__device__ __forceinline__ void add_columns(Share& x, int row, float4 four) {
  set_columns(x, row, {x.at(row, 0) + four.x, x.at(row, 1) + four.y, x.at(row, 2) + four.z, x.at(row, 3) + four.w});
}

__device__ __forceinline__ float4 columns_of(const Share& x, int row) {
  return {x.at(row, 0), x.at(row, 1), x.at(row, 2), x.at(row, 3)};
}

// The same as products take it, in two parts of float16: high + low / LOW_SCALE.
struct Parts {
  unsigned int high[4], low[4];

  __device__ __forceinline__ void set(const Share& x) {
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      const float first = x.pair[place / 2][place % 2 * 2], second = x.pair[place / 2][place % 2 * 2 + 1];
      high[place] = narrowed(first, second);
      const float2 rounded = widened(high[place]);
      low[place] = narrowed(LOW_SCALE * (first - rounded.x), LOW_SCALE * (second - rounded.y));
    }
  }
};

struct WithSlope {
  Share value, slope;
};

// One group of columns of the product with a matrix, of whose four products of parts the three that matter are summed.
template <int STEPS>
__device__ __forceinline__ WithSlope product(const Parts (&value)[STEPS], const Parts (&slope)[STEPS], const uint4* matrix) {
  WithSlope large = {}, small = {};
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const uint4 high = matrix[2 * step * LANES], low = matrix[(2 * step + 1) * LANES];
    // Sums that do not wait for one another stand side by side.
    add_product(small.value.pair[0], value[step].low, high.x, high.y);
    add_product(small.slope.pair[0], slope[step].low, high.x, high.y);
    add_product(small.value.pair[1], value[step].low, high.z, high.w);
    add_product(small.slope.pair[1], slope[step].low, high.z, high.w);
    add_product(large.value.pair[0], value[step].high, high.x, high.y);
    add_product(large.slope.pair[0], slope[step].high, high.x, high.y);
    add_product(large.value.pair[1], value[step].high, high.z, high.w);
    add_product(large.slope.pair[1], slope[step].high, high.z, high.w);
    add_product(small.value.pair[0], value[step].high, low.x, low.y);
    add_product(small.slope.pair[0], slope[step].high, low.x, low.y);
    add_product(small.value.pair[1], value[step].high, low.z, low.w);
    add_product(small.slope.pair[1], slope[step].high, low.z, low.w);
  }
#pragma unroll
  for (int place = 0; place < 8; ++place) {
    large.value.pair[place / 4][place % 4] += 1.f / LOW_SCALE * small.value.pair[place / 4][place % 4];
    large.slope.pair[place / 4][place % 4] += 1.f / LOW_SCALE * small.slope.pair[place / 4][place % 4];
  }
  return large;
}

// What a layer norm needs to know of both rows of a lane, whose values and slopes have no mean.
struct Norm {
  float squares[2] = {}, along[2] = {};

  __device__ __forceinline__ void add(const WithSlope& x) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        squares[row] += x.value.at(row, column) * x.value.at(row, column);
        along[row] += x.value.at(row, column) * x.slope.at(row, column);
      }
    }
  }

  // From sums over a lane's columns to the inverse deviation and the share of the value that the slope loses.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int bit = 1; bit < 4; bit *= 2) {
        squares[row] += of_other_lane(squares[row], bit);
        along[row] += of_other_lane(along[row], bit);
      }
      squares[row] = inverse_root_of(1.f / WIDTH * squares[row] + EPSILON);
      along[row] *= 1.f / WIDTH * squares[row] * squares[row];
    }
  }

  // Layer norm and SiLU of a group.
  __device__ __forceinline__ void apply(WithSlope& x, const float4* scales, const float4* shifts) const {
    const float4 scale = *scales, shift = *shifts;
    const float scale_of[4] = {scale.x, scale.y, scale.z, scale.w}, shift_of[4] = {shift.x, shift.y, shift.z, shift.w};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        float &value = x.value.at(row, column), &slope = x.slope.at(row, column);
        const float factor = squares[row] * scale_of[column];
        slope = factor * (slope - along[row] * value);
        const float y = factor * value + shift_of[column], s = inverse_of(1.f + power_of_e(-y));
        value = y * s;
        slope *= s + value * (1.f - s);
      }
    }
  }
};

// Writes four columns of a row as `RowFormat.hidden` lays them out.
template <int COLUMNS>
__device__ __forceinline__ void store_columns(operand_t* row, int column, Vector x) {
  operand_t* place = row + column;
  if constexpr (PARTS == 2) {
    const uint2 high = halves_of(x);
    store_8(place, halves_of(LOW_SCALE * (x - vector_of(high))));
    store_8(place + WIDTH, high);
    store_8(place + 2 * WIDTH, high);
  } else if constexpr (COLUMNS == WIDTH) {
    store_row(place, x);
  } else if constexpr (ROUNDED_TO_TF32) {
    const Vector high = to_tf32(x);
    store_row(place, high);
    store_row(place + WIDTH, to_tf32(x - high));
  } else {
    const uint2 high = halves_of(x);
    store_8(place, high);
    store_8(place + WIDTH, halves_of(x - vector_of(high)));
  }
}

// Both rows of a lane's share of a group; the first column of the lane is given.
template <int COLUMNS>
__device__ __forceinline__ void store_share(operand_t* out, long long edge, int live, int column, const Share& x) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (edge + 8 * row < live) {
      store_columns<COLUMNS>(out + (edge + 8 * row) * COLUMNS, column, {columns_of(x, row)});
    }
  }
}

// What stands behind the columns in "split": two ones that multiply both parts of a bias, or none.
template <int COLUMNS>
__device__ __forceinline__ void store_constants(operand_t* out, long long edge, int live, float constant) {
  if constexpr (PARTS == 2) {
    const float4 constants = {of_bits(narrowed(constant, constant)), 0.f, 0.f, 0.f};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (edge + 8 * row < live) store_16(out + (edge + 8 * row) * COLUMNS + 3 * WIDTH, constants);
    }
  }
}

// What the first layer reads of 16 edges: lanes below 16 have distance and source, the others the target.
struct Edge {
  float distance = 0.f;
  int atom = 0, element = 0;

  __device__ __forceinline__ void load_ends(const float* distances, const int* ends, int tile, int live, int n_edges,
                                            int lane) {
    const long long edge = tile * static_cast<long long>(TILE) + lane % TILE;
    const bool within = edge < live;
    distance = within ? distances[edge] : 0.f;
    atom = within ? ends[lane / TILE * static_cast<long long>(n_edges) + edge] : 0;
  }
  __device__ __forceinline__ void load_element(const int* numbers) { element = numbers[atom]; }
};

// Puts a lane's share of a group aside in shared memory, where no other lane reads it, and takes it back.
__device__ __forceinline__ void put_aside(float4* place, const Share& x) {
#pragma unroll
  for (int side = 0; side < 2; ++side) place[side * LANES] = columns_of(x, side);
}

__device__ __forceinline__ void take_back(const float4* place, Share& x) {
#pragma unroll
  for (int side = 0; side < 2; ++side) set_columns(x, side, place[side * LANES]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
radial_hidden(const float* __restrict__ distances, const int* __restrict__ ends, const int* __restrict__ numbers,
              const float4* __restrict__ weights, const float* __restrict__ tables, operand_t* __restrict__ values,
              operand_t* __restrict__ slopes, const int* __restrict__ n_live, int n_edges, int n_elements, int first,
              float spacing, float half_inverse) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, live = *n_live;
  const int n_tiles = (live + TILE - 1) / TILE;
  const long long network = first + blockIdx.y;
  if (blockIdx.x >= n_tiles) return;
  float4* const shared = shared_memory();
  constexpr int n_weights = BASIS_PART + LINEAR_PART + VECTORS_PART;
  for (int place = threadIdx.x; place < n_weights; place += THREADS) shared[place] = weights[network * n_weights + place];
  __syncthreads();

  const int row = lane / 4, column = lane % 4 * 4;  // the first of a lane's rows, and of its columns in a group
  const uint4* const basis = reinterpret_cast<const uint4*>(shared) + lane;
  const uint4* const linear = basis + BASIS_PART;
  const float4* const vectors = shared + BASIS_PART + LINEAR_PART + column / 4;
  float4* const aside = shared + n_weights + warp * ASIDE + lane;
  const float* const table = tables + network * 2 * n_elements * WIDTH + column;
  operand_t* const own_values = values + blockIdx.y * static_cast<long long>(n_edges) * VALUE_COLUMNS;
  operand_t* const own_slopes = slopes + blockIdx.y * static_cast<long long>(n_edges) * SLOPE_COLUMNS;

  // Tiles go to blocks first, so that few of them are spread over all multiprocessors.
  const int step = gridDim.x * WARPS;
  int tile = blockIdx.x + gridDim.x * warp;
  Edge next;
  next.load_ends(distances, ends, tile, live, n_edges, lane);
  next.load_element(numbers);
  for (; tile < n_tiles; tile += step) {
    const Edge now = next;
    next.load_ends(distances, ends, tile + step, live, n_edges, lane);
    const float* rows[2][2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      rows[side][0] = table + of_lane(now.element, row + 8 * side) * WIDTH;
      rows[side][1] = table + (n_elements + of_lane(now.element, row + 8 * side + TILE)) * WIDTH;
    }
    Norm norm;
    {
      Parts gaussians[BASIS_STEPS], gaussian_slopes[BASIS_STEPS];
#pragma unroll
      for (int step = 0; step < BASIS_STEPS; ++step) {
        WithSlope gaussian;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const float distance = of_lane(now.distance, row + 8 * side);
#pragma unroll
          for (int place = 0; place < 4; ++place) {
            const int k = step * TILE + column + place;
            const float offset = (distance - k * spacing) * half_inverse;
            const float found = k < BASIS ? power_of_e(-0.5f * offset * offset) : 0.f;
            gaussian.value.at(side, place) = found;
            gaussian.slope.at(side, place) = -half_inverse * found * offset;
          }
        }
        gaussians[step].set(gaussian.value);
        gaussian_slopes[step].set(gaussian.slope);
      }
      Vector of_atoms[2][2];
#pragma unroll
      for (int end = 0; end < 4; ++end) of_atoms[end / 2][end % 2] = load_node(rows[end / 2][end % 2]);
#pragma unroll (BASIS_STEPS > 4 ? 1 : 2)
      for (int group = 0; group < GROUPS; ++group) {
        Vector of_next[2][2];
        const int following = group + 1 < GROUPS ? (group + 1) * TILE : 0;
#pragma unroll
        for (int end = 0; end < 4; ++end) of_next[end / 2][end % 2] = load_node(rows[end / 2][end % 2] + following);
        WithSlope found = product(gaussians, gaussian_slopes, basis + group * (BASIS_STEPS * 2 * LANES));
#pragma unroll
        for (int side = 0; side < 2; ++side) add_columns(found.value, side, (of_atoms[side][0] + of_atoms[side][1]).of);
        norm.add(found);
        put_aside(aside + group * 4 * LANES, found.slope);
        put_aside(aside + (group * 4 + 2) * LANES, found.value);
#pragma unroll
        for (int end = 0; end < 4; ++end) of_atoms[end / 2][end % 2] = of_next[end / 2][end % 2];
      }
    }
    norm.finish();
    Parts value[GROUPS], slope[GROUPS];
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      WithSlope x;
      take_back(aside + group * 4 * LANES, x.slope);
      take_back(aside + (group * 4 + 2) * LANES, x.value);
      norm.apply(x, vectors + group * 4, vectors + (WIDTH + group * TILE) / 4);
      value[group].set(x.value);
      slope[group].set(x.slope);
    }
    next.load_element(numbers);

    // Both factors fill the registers; what the product makes waits in shared memory, where no other lane reads it.
    norm = Norm();
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      WithSlope found = product(value, slope, linear + group * (GROUPS * 2 * LANES));
      const float4 bias = vectors[(2 * WIDTH + group * TILE) / 4];
#pragma unroll
      for (int side = 0; side < 2; ++side) add_columns(found.value, side, bias);
      norm.add(found);
      put_aside(aside + group * 4 * LANES, found.slope);
      put_aside(aside + (group * 4 + 2) * LANES, found.value);
    }
    norm.finish();
    const long long edge = tile * static_cast<long long>(TILE) + row;
#pragma unroll 2
    for (int group = 0; group < GROUPS; ++group) {
      WithSlope found;
      take_back(aside + group * 4 * LANES, found.slope);
      take_back(aside + (group * 4 + 2) * LANES, found.value);
      norm.apply(found, vectors + (3 * WIDTH + group * TILE) / 4, vectors + (4 * WIDTH + group * TILE) / 4);
      store_share<VALUE_COLUMNS>(own_values, edge, live, group * TILE + column, found.value);
      store_share<SLOPE_COLUMNS>(own_slopes, edge, live, group * TILE + column, found.slope);
    }
    if (column == 0) {
      store_constants<VALUE_COLUMNS>(own_values, edge, live, 1.f);
      store_constants<SLOPE_COLUMNS>(own_slopes, edge, live, 0.f);
    }
  }
}
