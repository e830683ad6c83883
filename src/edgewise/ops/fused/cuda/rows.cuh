// Rows of edges and nodes as the kernels read them: a warp holds 128 channels of a coefficient, four a lane.
//
// In front of this file stand `device.cuh`, `vectors.cuh` and what `_source.py` writes: constants from `layout.py`, and the types of rows,
// operand_t of what matrix products read and row_t of everything else.

constexpr int WARP_CHANNELS = LANES * LANE_CHANNELS;
constexpr int THREADS = WARPS * LANES;
constexpr int N_COEFFICIENTS = (LMAX + 1) * (LMAX + 1);
constexpr bool WHOLE_WARPS = CHANNELS % WARP_CHANNELS == 0;

__device__ constexpr int least(int a, int b) { return a < b ? a : b; }

// Where a coefficient, the first part of its operand, the second behind that one, and the factors of the orders +-M stand in the rows of an edge; how M and M + 1 are coupled.
template <int DEGREE, int ORDER>
constexpr int coefficient = COEFFICIENT[DEGREE][ORDER + MMAX];
template <int DEGREE, int ORDER>
constexpr int operand = OPERAND[DEGREE][ORDER + MMAX];
template <int ORDER>
constexpr int next_part = NEXT_PART[ORDER < 0 ? -ORDER : ORDER];
template <int DEGREE, int M>
constexpr int radial_factor = RADIAL_FACTOR[DEGREE][M];
template <int DEGREE, int M>
constexpr float coupling = COUPLING[DEGREE][M];

// Writes a coefficient as `operands.store_operand` does; a place has WIDTH columns.
template <int DEGREE, int ORDER, int WIDTH>
__device__ __forceinline__ void store_operand(operand_t* row, Vector value) {
  operand_t* place = row + operand<DEGREE, ORDER> * WIDTH;
  if constexpr (PARTS == 2) {
    const uint2 high = halves_of(value);
    store_8(place, high);
    store_8(place + next_part<ORDER> * WIDTH, halves_of(LOW_SCALE * (value - vector_of(high))));
  } else if constexpr (ROUNDED_TO_TF32) {
    store_row(place, to_tf32(value));
  } else {
    store_row(place, value);
  }
}

// The rotation of one degree of an edge, in registers; scalars are not turned.
template <int DEGREE>
struct Rotation {
  static constexpr int SIZE = 2 * DEGREE + 1;
  static constexpr int FIRST = ROTATION[DEGREE][MMAX + 1 - HIGHEST[DEGREE]];
  static constexpr int PARTS = (FIRST + (2 * HIGHEST[DEGREE] + 1) * SIZE - 1) / 4 - FIRST / 4 + 1;
  float4 parts[PARTS];

  __device__ __forceinline__ explicit Rotation(const float* geometry) {
    if constexpr (DEGREE > 0) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) parts[part] = load_again(geometry + (FIRST / 4 + part) * 4);
    }
  }

  template <int ORDER, int COLUMN>
  __device__ __forceinline__ float at() const {
    if constexpr (DEGREE == 0) {
      return 1.f;
    } else {
      constexpr int place = ROTATION[DEGREE][MMAX + 1 + ORDER] + COLUMN - FIRST / 4 * 4;
      const float4 part = parts[place / 4];
      return place % 4 == 0 ? part.x : place % 4 == 1 ? part.y : place % 4 == 2 ? part.z : part.w;
    }
  }

  // One coefficient in the edge's frame, of all those of a degree.
  template <int ORDER>
  __device__ __forceinline__ Vector into_frame(const Vector (&x)[SIZE]) const {
    Vector y = at<ORDER, 0>() * x[0];
    for_each<1, SIZE>([&](auto column) { y = y + at<ORDER, column>() * x[column]; });
    return y;
  }

  // One coefficient in the nodes' frame, of those of the orders up to KEPT.
  template <int KEPT, int COLUMN>
  __device__ __forceinline__ Vector out_of_frame(const Vector (&b)[2 * KEPT + 1]) const {
    Vector sum = at<-KEPT, COLUMN>() * b[0];
    for_each<1 - KEPT, KEPT + 1>([&](auto order) { sum = sum + at<order, COLUMN>() * b[order + KEPT]; });
    return sum;
  }

  // Adds all of them to the rows of a group that begins at the coefficient BEFORE; an order at a time, for few registers.
  template <int KEPT, int BEFORE, int ROWS>
  __device__ __forceinline__ void add_out_of_frame(Vector (&total)[ROWS], const Vector (&b)[2 * KEPT + 1]) const {
    for_each<-KEPT, KEPT + 1>([&](auto order) { add_order<order, BEFORE>(total, b[order + KEPT]); });
  }

  template <int ORDER, int BEFORE, int ROWS>
  __device__ __forceinline__ void add_order(Vector (&total)[ROWS], Vector b) const {
    for_each<0, SIZE>([&](auto column) {
      Vector& sum = total[DEGREE * DEGREE + column - BEFORE];
      sum = sum + at<ORDER, column>() * b;
    });
  }
};

template <int DEGREE>
__device__ __forceinline__ void load_degree(Vector (&x)[2 * DEGREE + 1], const float* nodes) {
#pragma unroll
  for (int row = 0; row < 2 * DEGREE + 1; ++row) x[row] = load_node(nodes + (DEGREE * DEGREE + row) * CHANNELS);
}

// What an edge's geometry receives: the torque about x and z, and dE/dd.
struct Tangents {
  float torque_x = 0.f, torque_z = 0.f, slope = 0.f;

  // <b, L_k y> of one degree: b has the orders up to KEPT, y those up to TOP, at most one more.
  template <int DEGREE, int KEPT, int TOP>
  __device__ __forceinline__ void add_torque(const Vector (&b)[2 * KEPT + 1], const Vector (&y)[2 * TOP + 1]) {
    for_each<0, least(KEPT + 1, TOP)>([&](auto order) {
      constexpr int m = order, n = m + 1;
      float about_x = -dot(b[KEPT + m], y[TOP + n]), about_z = dot(b[KEPT + m], y[TOP - n]);
      if constexpr (m > 0) {
        about_x -= dot(b[KEPT - m], y[TOP - n]);
        about_z -= dot(b[KEPT - m], y[TOP + n]);
      }
      if constexpr (n <= KEPT) {
        about_x += dot(b[KEPT + n], y[TOP + m]);
        about_z -= dot(b[KEPT - n], y[TOP + m]);
        if constexpr (m > 0) {
          about_x += dot(b[KEPT - n], y[TOP - m]);
          about_z += dot(b[KEPT + n], y[TOP - m]);
        }
      }
      torque_x += coupling<DEGREE, m> * about_x;
      torque_z += coupling<DEGREE, m> * about_z;
    });
  }

  // The sums over a warp, in every lane; always in the same order.
  __device__ __forceinline__ void sum_lanes() {
#pragma unroll
    for (int bit = LANES / 2; bit; bit /= 2) {
      torque_x += of_other_lane(torque_x, bit);
      torque_z += of_other_lane(torque_z, bit);
      slope += of_other_lane(slope, bit);
    }
  }

  // Three lanes keep one number each; a warp owns those it adds to.
  __device__ __forceinline__ void add_to(float* place, float before, float factor, int lane) const {
    if (lane < 3) place[lane] = before + factor * (lane == 0 ? torque_x : lane == 1 ? torque_z : slope);
  }
};

// The degrees of a group are done by the same warp; together they fit into its registers.
template <int GROUP>
struct Group {
  static constexpr int FIRST = GROUP_STARTS[GROUP], END = GROUP_STARTS[GROUP + 1];
  static constexpr int BEFORE = FIRST * FIRST, ROWS = END * END - BEFORE;
};

struct Slice {
  long long begin, end;
};

// The edges into an atom that a block does; each of its warps takes every WARPS-th.
__device__ __forceinline__ Slice slice_of_edges(const int* starts, int atom) {
  const long long start = starts[atom], n = starts[atom + 1] - start;
  return {start + n * blockIdx.z / gridDim.z, start + n * (blockIdx.z + 1) / gridDim.z};
}

// Room for the totals of half the warps of a block.
constexpr int SHARED = WARPS / 2 * MOST_ROWS * LANES;

// Adds the totals of a block's warps in a fixed order; the first warp has the sum.
template <int ROWS>
__device__ __forceinline__ void sum_warps(Vector (&total)[ROWS], float4 (&others)[SHARED], int warp, int lane) {
#pragma unroll
  for (int half = WARPS / 2; half; half /= 2) {
    if (warp >= half && warp < 2 * half) {
#pragma unroll
      for (int row = 0; row < ROWS; ++row) others[((warp - half) * ROWS + row) * LANES + lane] = total[row].of;
    }
    __syncthreads();
    if (warp < half) {
#pragma unroll
      for (int row = 0; row < ROWS; ++row) total[row] = total[row] + Vector{others[(warp * ROWS + row) * LANES + lane]};
    }
    __syncthreads();
  }
}

template <int ROWS>
__device__ __forceinline__ void store_nodes(float* nodes, const Vector (&total)[ROWS], float factor) {
#pragma unroll
  for (int row = 0; row < ROWS; ++row) *reinterpret_cast<float4*>(nodes + row * CHANNELS) = (factor * total[row]).of;
}

template <int ROWS>
__device__ __forceinline__ void add_nodes(float* nodes, const Vector (&total)[ROWS], float factor) {
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    float4* place = reinterpret_cast<float4*>(nodes + row * CHANNELS);
    *place = (Vector{*place} + factor * total[row]).of;
  }
}
