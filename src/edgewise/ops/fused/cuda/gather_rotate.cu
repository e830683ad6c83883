// Node -> edge and its adjoint, with the formulas of `edge_steps.gather_rotate` and `gather_rotate_adjoint`.
//
// A warp does one end of an edge: rows of both ends stand side by side, 2 * CHANNELS to a coefficient.

template <int DEGREE>
__device__ __forceinline__ void forward_degree(const float* x, const float* geometry, const row_t* radial, operand_t* out) {
  constexpr int KEPT = least(DEGREE, MMAX);
  Vector of_node[2 * DEGREE + 1];
  load_degree<DEGREE>(of_node, x);
  Vector factors[KEPT + 1];
  for_each<0, KEPT + 1>([&](auto m) { factors[m] = load_row(radial + radial_factor<DEGREE, m> * (2 * CHANNELS)); });
  const Rotation<DEGREE> rotation(geometry);
  for_each<-KEPT, KEPT + 1>([&](auto order) {
    constexpr int m = order;
    const Vector y = rotation.template into_frame<m>(of_node);
    store_operand<DEGREE, m, 2 * CHANNELS>(out, factors[m < 0 ? -m : m] * y);
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gather_rotate(const float* __restrict__ nodes, const int* __restrict__ ends, const float* __restrict__ geometry,
              const row_t* __restrict__ radial, operand_t* __restrict__ out, const int* __restrict__ n_live, int n_edges) {
  const int lane = threadIdx.x % LANES;
  const long long task = blockIdx.x * static_cast<long long>(WARPS) + threadIdx.x / LANES, edge = task / 2;
  const int end = task % 2;
  // Before the number of edges is looked at, so that both loads are under way together.
  const long long atom = edge < n_edges ? ends[end * static_cast<long long>(n_edges) + edge] : 0;
  if (edge >= *n_live) return;
  for (int channel = lane * LANE_CHANNELS; channel < CHANNELS; channel += WARP_CHANNELS) {
    const int column = end * CHANNELS + channel;
    const float* x = nodes + atom * (N_COEFFICIENTS * CHANNELS) + channel;
    const row_t* r = radial + edge * (FACTORS * 2 * CHANNELS) + column;
    operand_t* o = out + edge * (PARTS * COEFFICIENTS * 2 * CHANNELS) + column;
    for_each<0, GROUPS>([&](auto group) {
      if (blockIdx.y == group) {
        for_each<Group<group>::FIRST, Group<group>::END>(
            [&](auto degree) { forward_degree<degree>(x, geometry + edge * GEOMETRY, r, o); });
      }
    });
  }
}

// Adds this lane's share of torque and slope; gives `finish` the rotation and b, of which it makes the node's share D^T b.
template <int DEGREE, class Finish>
__device__ __forceinline__ void adjoint_degree(const float* x, const float* geometry, const row_t* radial,
                                               const row_t* radial_slope, const row_t* gradient, Tangents& tangents,
                                               const Finish& finish) {
  constexpr int KEPT = least(DEGREE, MMAX), TOP = HIGHEST[DEGREE];
  const Rotation<DEGREE> rotation(geometry);
  Vector y[2 * TOP + 1], b[2 * KEPT + 1];
  {
    Vector of_node[2 * DEGREE + 1];
    load_degree<DEGREE>(of_node, x);
    for_each<-TOP, TOP + 1>([&](auto m) { y[m + TOP] = rotation.template into_frame<m>(of_node); });
  }
  for_each<0, KEPT + 1>([&](auto order) {
    constexpr int m = order, place = radial_factor<DEGREE, m> * (2 * CHANNELS);
    const Vector factor = load_row(radial + place), factor_slope = load_row(radial_slope + place);
    const Vector plus = load_row(gradient + coefficient<DEGREE, m> * (2 * CHANNELS));
    b[KEPT + m] = factor * plus;
    Vector along = plus * y[TOP + m];
    if constexpr (m > 0) {
      const Vector minus = load_row(gradient + coefficient<DEGREE, -m> * (2 * CHANNELS));
      b[KEPT - m] = factor * minus;
      along = along + minus * y[TOP - m];
    }
    tangents.slope += dot(along, factor_slope);
  });
  tangents.add_torque<DEGREE, KEPT, TOP>(b, y);
  finish(rotation, b);
}

template <int DEGREE, int N_ORDERS>
__device__ __forceinline__ void store_share(row_t* rows, const Rotation<DEGREE>& rotation, const Vector (&b)[N_ORDERS]) {
  for_each<0, 2 * DEGREE + 1>([&](auto column) {
    constexpr int place = (DEGREE * DEGREE + column) * CHANNELS;
    store_row(rows + place, rotation.template out_of_frame<N_ORDERS / 2, column>(b));
  });
}

template <int BEFORE, int ROWS, int DEGREE, int N_ORDERS>
__device__ __forceinline__ void add_share(Vector (&total)[ROWS], const Rotation<DEGREE>& rotation,
                                          const Vector (&b)[N_ORDERS]) {
  rotation.template add_out_of_frame<N_ORDERS / 2, BEFORE>(total, b);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gather_rotate_to_source(const float* __restrict__ nodes, const int* __restrict__ ends, const float* __restrict__ scales,
                        const float* __restrict__ geometry, const row_t* __restrict__ radial,
                        const row_t* __restrict__ radial_slope, const row_t* __restrict__ gradient,
                        row_t* __restrict__ rows, float* __restrict__ tangents, const int* __restrict__ n_live,
                        int n_edges) {
  const int lane = threadIdx.x % LANES;
  const long long edge = blockIdx.x * static_cast<long long>(WARPS) + threadIdx.x / LANES;
  const bool within = edge < n_edges;
  const long long atom = within ? ends[edge] : 0;
  const int target = within ? ends[n_edges + edge] : 0;
  if (edge >= *n_live) return;
  for_each<0, GROUPS>([&](auto group) {
    if (blockIdx.y == group) {
      float* own = tangents + (Group<group>::FIRST * static_cast<long long>(n_edges) + edge) * 3;
      const float before = lane < 3 ? own[lane] : 0.f, unscaled = 1.f / scales[target];
      Tangents found;
      for (int channel = lane * LANE_CHANNELS; channel < CHANNELS; channel += WARP_CHANNELS) {
        const float* x = nodes + atom * (N_COEFFICIENTS * CHANNELS) + channel;
        const long long factors = edge * (FACTORS * 2 * CHANNELS) + channel;
        const row_t* g = gradient + edge * (COEFFICIENTS * 2 * CHANNELS) + channel;
        row_t* to_source = rows + edge * (N_COEFFICIENTS * CHANNELS) + channel;
        for_each<Group<group>::FIRST, Group<group>::END>([&](auto degree) {
          adjoint_degree<degree>(x, geometry + edge * GEOMETRY, radial + factors, radial_slope + factors, g, found,
                                 [&](auto& rotation, auto& b) { store_share(to_source, rotation, b); });
        });
      }
      found.sum_lanes();
      found.add_to(own, before, unscaled, lane);
    }
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gather_rotate_to_target(const float* __restrict__ nodes, const int* __restrict__ starts,
                        const float* __restrict__ scales, const float* __restrict__ geometry,
                        const row_t* __restrict__ radial, const row_t* __restrict__ radial_slope,
                        const row_t* __restrict__ gradient, float* __restrict__ to_nodes, float* __restrict__ tangents,
                        int n_edges, int n_atoms) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, atom = blockIdx.x;
  __shared__ float4 others[SHARED];
  const Slice slice = slice_of_edges(starts, atom);
  const float unscaled = 1.f / scales[atom];
  for_each<0, GROUPS>([&](auto group) {
    if (blockIdx.y == group) {
      using Own = Group<group>;
      for (int first = 0; first < CHANNELS; first += WARP_CHANNELS) {
        const int channel = first + lane * LANE_CHANNELS;
        const bool active = WHOLE_WARPS || channel < CHANNELS;
        const float* x = nodes + atom * static_cast<long long>(N_COEFFICIENTS * CHANNELS) + channel;
        Vector total[Own::ROWS] = {};
        for (long long edge = slice.begin + warp; edge < slice.end; edge += WARPS) {
          float* own = tangents + ((LMAX + 1 + Own::FIRST) * static_cast<long long>(n_edges) + edge) * 3;
          const float before = lane < 3 ? own[lane] : 0.f;
          Tangents found;
          if (active) {
            const long long factors = edge * (FACTORS * 2 * CHANNELS) + CHANNELS + channel;
            const row_t* g = gradient + edge * (COEFFICIENTS * 2 * CHANNELS) + CHANNELS + channel;
            for_each<Own::FIRST, Own::END>([&](auto degree) {
              adjoint_degree<degree>(
                  x, geometry + edge * GEOMETRY, radial + factors, radial_slope + factors, g, found,
                  [&](auto& rotation, auto& b) { add_share<Own::BEFORE>(total, rotation, b); });
            });
          }
          found.sum_lanes();
          found.add_to(own, before, unscaled, lane);
        }
        sum_warps(total, others, warp, lane);
        if (warp == 0 && active) {
          const long long place = (blockIdx.z * static_cast<long long>(n_atoms) + atom) * N_COEFFICIENTS + Own::BEFORE;
          store_nodes(to_nodes + place * CHANNELS + channel, total, unscaled);
        }
      }
    }
  });
}
