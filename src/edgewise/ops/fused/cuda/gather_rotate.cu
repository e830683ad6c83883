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

// Adds this lane's share of torque and slope, and to the total of a group's degrees D^T b, the node's share. Gradients are
// multiplied by a factor first.
template <int DEGREE, int BEFORE, int ROWS>
__device__ __forceinline__ void adjoint_degree(const float* x, const float* geometry, const row_t* radial,
                                               const row_t* radial_slope, const row_t* gradient, float scale,
                                               Tangents& tangents, Vector (&total)[ROWS]) {
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
    const Vector plus = scale * load_row(gradient + coefficient<DEGREE, m> * (2 * CHANNELS));
    b[KEPT + m] = factor * plus;
    Vector along = plus * y[TOP + m];
    if constexpr (m > 0) {
      const Vector minus = scale * load_row(gradient + coefficient<DEGREE, -m> * (2 * CHANNELS));
      b[KEPT - m] = factor * minus;
      along = along + minus * y[TOP - m];
    }
    tangents.slope += dot(along, factor_slope);
  });
  tangents.add_torque<DEGREE, KEPT, TOP>(b, y);
  rotation.template add_out_of_frame<KEPT, BEFORE>(total, b);
}

constexpr int SOURCE = 0, TARGET = 1;

// Edges that a block looks up at once, 8 bytes for each.
constexpr int LOOKED_UP = 2 * SHARED;

// A block sums the shares of one end of an atom's edges: those out of it come in the order of their sources, which is in
// `order`, those into it as they stand. What the kernel of the sources has stored is added to the targets' sum.
template <int END>
__device__ __forceinline__ void gather_rotate_to_nodes(const float* nodes, const int* targets, const int* order,
                                                       const int* starts, const float* scales, const float* geometry,
                                                       const row_t* radial, const row_t* radial_slope,
                                                       const row_t* gradient, float* to_nodes, float* tangents, int n_edges,
                                                       int n_atoms) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, atom = blockIdx.x;
  __shared__ float4 others[SHARED];
  const Slice slice = slice_of_edges(starts, atom);
  // Powers of two, so that it does not matter when they are taken out.
  const float of_atom = END == TARGET ? 1.f / scales[atom] : 1.f;
  for_each<0, GROUPS>([&](auto group) {
    if (blockIdx.y == group) {
      using Own = Group<group>;
      for (int first = 0; first < CHANNELS; first += WARP_CHANNELS) {
        const int channel = first + lane * LANE_CHANNELS, column = END * CHANNELS + channel;
        const bool active = WHOLE_WARPS || channel < CHANNELS;
        const float* x = nodes + atom * static_cast<long long>(N_COEFFICIENTS * CHANNELS) + channel;
        Vector total[Own::ROWS] = {};
        const auto do_edge = [&](long long edge, float scale) {
          float* own = tangents + ((END * (LMAX + 1) + Own::FIRST) * static_cast<long long>(n_edges) + edge) * 3;
          const float before = lane < 3 ? own[lane] : 0.f;
          Tangents found;
          if (active) {
            const long long factors = edge * (FACTORS * 2 * CHANNELS) + column;
            const row_t* g = gradient + edge * (COEFFICIENTS * 2 * CHANNELS) + column;
            for_each<Own::FIRST, Own::END>([&](auto degree) {
              adjoint_degree<degree, Own::BEFORE>(x, geometry + edge * GEOMETRY, radial + factors, radial_slope + factors, g,
                                                  scale, found, total);
            });
          }
          found.sum_lanes();
          found.add_to(own, before, of_atom, lane);
        };
        if constexpr (END == TARGET) {
          for (long long edge = slice.begin + warp; edge < slice.end; edge += WARPS) do_edge(edge, 1.f);
        } else {
          // Which edges they are is looked up together, so that warps seldom wait for the number of their next edge.
          uint2* looked_up = reinterpret_cast<uint2*>(others);
          const int n = static_cast<int>(slice.end - slice.begin);
          const auto look_up = [&](int number) {
            const int edge = order[slice.begin + number];
            return uint2{static_cast<unsigned int>(edge), bits_of(1.f / scales[targets[edge]])};
          };
          for (int number = threadIdx.x; number < least(n, LOOKED_UP); number += THREADS) looked_up[number] = look_up(number);
          __syncthreads();
#pragma unroll 1
          for (int number = warp; number < n; number += WARPS) {
            const uint2 edge = number < LOOKED_UP ? looked_up[number] : look_up(number);
            do_edge(edge.x, of_bits(edge.y));
          }
          __syncthreads();
        }
        sum_warps(total, others, warp, lane);
        if (warp == 0 && active) {
          const long long place = (blockIdx.z * static_cast<long long>(n_atoms) + atom) * N_COEFFICIENTS + Own::BEFORE;
          float* out = to_nodes + place * CHANNELS + channel;
          if constexpr (END == TARGET) {
            add_nodes(out, total, of_atom);
          } else {
            store_nodes(out, total, of_atom);
          }
        }
      }
    }
  });
}

// One block less than the others have room for: what it takes to look edges up does not fit into the registers of four.
extern "C" __global__ void __launch_bounds__(THREADS, least(BLOCKS, 3))
gather_rotate_to_source(const float* __restrict__ nodes, const int* __restrict__ ends, const int* __restrict__ order,
                        const int* __restrict__ starts, const float* __restrict__ scales, const float* __restrict__ geometry,
                        const row_t* __restrict__ radial, const row_t* __restrict__ radial_slope,
                        const row_t* __restrict__ gradient, float* __restrict__ to_nodes, float* __restrict__ tangents,
                        int n_edges, int n_atoms) {
  gather_rotate_to_nodes<SOURCE>(nodes, ends + n_edges, order, starts, scales, geometry, radial, radial_slope, gradient,
                                 to_nodes, tangents, n_edges, n_atoms);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gather_rotate_to_target(const float* __restrict__ nodes, const int* __restrict__ starts,
                        const float* __restrict__ scales, const float* __restrict__ geometry,
                        const row_t* __restrict__ radial, const row_t* __restrict__ radial_slope,
                        const row_t* __restrict__ gradient, float* __restrict__ to_nodes, float* __restrict__ tangents,
                        int n_edges, int n_atoms) {
  gather_rotate_to_nodes<TARGET>(nodes, nullptr, nullptr, starts, scales, geometry, radial, radial_slope, gradient, to_nodes,
                                 tangents, n_edges, n_atoms);
}
