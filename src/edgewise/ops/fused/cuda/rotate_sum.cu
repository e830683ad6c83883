// Edge -> node and its adjoint, with the formulas of `edge_steps.rotate_sum` and `rotate_sum_adjoint`.
//
// The orders of the features end at ORDERS: MMAX, or 0 for the degree embedding.

// The features of one degree of an edge, with the bias that belongs to m = 0.
template <int DEGREE, int KEPT>
__device__ __forceinline__ void load_features(Vector (&z)[2 * KEPT + 1], const row_t* features, const float* bias) {
  for_each<-KEPT, KEPT + 1>(
      [&](auto m) { z[m + KEPT] = load_row(features + coefficient<DEGREE, m> * CHANNELS); });
  z[KEPT] = z[KEPT] + load_node(bias + DEGREE * CHANNELS);
}

// Adds one degree of an edge's message to the rows of a group.
template <int DEGREE, int BEFORE, int ROWS>
__device__ __forceinline__ void add_message(Vector (&total)[ROWS], const row_t* features, const float* bias,
                                            const float* geometry) {
  constexpr int KEPT = least(DEGREE, ORDERS);
  const float envelope = load_again(geometry).x;
  Vector z[2 * KEPT + 1];
  load_features<DEGREE, KEPT>(z, features, bias);
  for_each<0, 2 * KEPT + 1>([&](auto order) { z[order] = envelope * z[order]; });
  const Rotation<DEGREE> rotation(geometry);
  rotation.template add_out_of_frame<KEPT, BEFORE>(total, z);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rotate_sum(const row_t* __restrict__ features, const float* __restrict__ bias, const int* __restrict__ starts,
           const float* __restrict__ geometry, float* __restrict__ nodes, int n_atoms) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, atom = blockIdx.x;
  __shared__ float4 others[SHARED];
  const Slice slice = slice_of_edges(starts, atom);
  for_each<0, GROUPS>([&](auto group) {
    if (blockIdx.y == group) {
      using Own = Group<group>;
      for (int first = 0; first < CHANNELS; first += WARP_CHANNELS) {
        const int channel = first + lane * LANE_CHANNELS;
        const bool active = WHOLE_WARPS || channel < CHANNELS;
        Vector total[Own::ROWS] = {};
        for (long long edge = slice.begin + warp; active && edge < slice.end; edge += WARPS) {
          const float* of_edge = geometry + edge * GEOMETRY;
          const row_t* z = features + edge * (COEFFICIENTS * CHANNELS) + channel;
          for_each<Own::FIRST, Own::END>(
              [&](auto degree) { add_message<degree, Own::BEFORE>(total, z, bias + channel, of_edge); });
        }
        sum_warps(total, others, warp, lane);
        if (warp == 0 && active) {
          const long long place = (blockIdx.z * static_cast<long long>(n_atoms) + atom) * N_COEFFICIENTS + Own::BEFORE;
          store_nodes(nodes + place * CHANNELS + channel, total, 1.f);
        }
      }
    }
  });
}

// Writes the gradients of one degree's features; adds this lane's share of torque, without the envelope, and of slope.
template <int DEGREE>
__device__ __forceinline__ void adjoint_degree(const float* gradient, const row_t* features, const float* bias,
                                               const row_t* features_slope, const float* geometry, operand_t* out,
                                               float envelope, float envelope_slope, float scale, Tangents& tangents) {
  constexpr int KEPT = least(DEGREE, ORDERS), TOP = least(HIGHEST[DEGREE], ORDERS + 1);
  Vector z[2 * KEPT + 1], y[2 * TOP + 1];
  load_features<DEGREE, KEPT>(z, features, bias);
  {
    Vector of_node[2 * DEGREE + 1];
    load_degree<DEGREE>(of_node, gradient);
    const Rotation<DEGREE> rotation(geometry);
    for_each<-TOP, TOP + 1>([&](auto m) { y[m + TOP] = rotation.template into_frame<m>(of_node); });
  }
  for_each<-KEPT, KEPT + 1>([&](auto m) {
    tangents.slope += envelope_slope * dot(y[m + TOP], z[m + KEPT]);
    if constexpr (EMBEDDING) {
      tangents.slope += envelope * dot(y[m + TOP], load_row(features_slope + coefficient<DEGREE, m> * CHANNELS));
    } else {
      store_operand<DEGREE, m, CHANNELS>(out, (envelope * scale) * y[m + TOP]);
    }
  });
  tangents.add_torque<DEGREE, KEPT, TOP>(z, y);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rotate_sum_to_edges(const float* __restrict__ gradient, const int* __restrict__ ends, const float* __restrict__ scales,
                    const float* __restrict__ geometry, const row_t* __restrict__ features,
                    const float* __restrict__ bias, const row_t* __restrict__ features_slope, operand_t* __restrict__ out,
                    float* __restrict__ tangents, const int* __restrict__ n_live, int n_edges) {
  const int lane = threadIdx.x % LANES;
  const long long edge = blockIdx.x * static_cast<long long>(WARPS) + threadIdx.x / LANES;
  const long long target = edge < n_edges ? ends[n_edges + edge] : 0;
  if (edge >= *n_live) return;
  const float* of_edge = geometry + edge * GEOMETRY;
  const float envelope = of_edge[0], envelope_slope = of_edge[ENVELOPE_SLOPE], scale = scales[target];
  for_each<0, GROUPS>([&](auto group) {
    if (blockIdx.y == group) {
      float* own = tangents + (Group<group>::FIRST * static_cast<long long>(n_edges) + edge) * 3;
      const float before = lane < 3 ? own[lane] : 0.f;
      Tangents found;
      for (int channel = lane * LANE_CHANNELS; channel < CHANNELS; channel += WARP_CHANNELS) {
        const float* g = gradient + target * (N_COEFFICIENTS * CHANNELS) + channel;
        const long long here = edge * (COEFFICIENTS * CHANNELS) + channel;
        const long long operands = here + edge * ((PARTS - 1) * COEFFICIENTS * CHANNELS);
        for_each<Group<group>::FIRST, Group<group>::END>([&](auto degree) {
          adjoint_degree<degree>(g, features + here, bias + channel, features_slope + here, of_edge, out + operands,
                                 envelope, envelope_slope, scale, found);
        });
      }
      found.torque_x *= envelope;
      found.torque_z *= envelope;
      found.sum_lanes();
      found.add_to(own, before, 1.f, lane);
    }
  });
}
