// The functions of include/*.cuh, one by one, for tests: a kernel's marks show only on which side of an edge a number
// falls, these show its bits; and few tiles at a time never look back far, this does.
#pragma once
#include "../include/rule.cuh"
#include "../include/scan.cuh"

constexpr u32 PROBED = 8;

struct ProbeArgs {
    const float* x;
    const float* m;
    const float* v;
    // Any number in the place of an edge, and of an update.
    const float* y;
    const float* q;
    // PROBED words per element.
    u32* out;
    u64 count;
    RuleScalars rule;
};

template <class Family>
DEVICE void probe(const ProbeArgs& args) {
    for (u64 i = threadIdx.x; i < args.count; i += blockDim.x) {
        const float x = args.x[i], m = args.m[i], v = args.v[i];
        const float u = Family::update(args.rule, m, v);
        const CellEdges edges = edges_of(Family::cast, x);
        u32* const out = args.out + PROBED * i;
        out[0] = __float_as_uint(u);
        out[1] = __float_as_uint(Family::update_error(args.rule, x, args.q[i]));
        out[2] = __float_as_uint(Family::replay(args.rule, args.y[i], args.q[i]));
        out[3] = __float_as_uint(edges.above);
        out[4] = __float_as_uint(edges.below);
        out[5] = bf16_bits(Family::cast, x);
        out[6] = certifies<Family>(args.rule, x, m, v, u) ? 1 : 0;
        // Whoever passes the cheap test must pass the exact one.
        out[7] = surely<Family>(args.rule, x, m, v) ? 1 : 0;
    }
}

#define PROBE(form, Family)                         \
    KERNEL probe_##form(ARGS(ProbeArgs) args) {     \
        probe<Family>(args);                        \
    }

PROBE(agnostic, Agnostic)
PROBE(torch, Torch)
PROBE(torch_fused_cuda, TorchFusedCuda)
PROBE(apex, Apex)
PROBE(te_remainder, TeRemainder)
PROBE(deepspeed_cpu, DeepspeedCpu)
PROBE(bitsandbytes, Bitsandbytes)
PROBE(undecayed, Undecayed)
PROBE(undecayed_half_away, UndecayedHalfAway)
PROBE(sgd, Sgd)
PROBE(sgd_half_away, SgdHalfAway)

struct LookBackArgs {
    u64* states;
    // What lies before the tile.
    u64* before;
    u32 tile;
    u32 aggregate;
};

KERNEL probe_look_back(ARGS(LookBackArgs) args) {
    const u64 before = look_back(args.states, args.tile, args.aggregate);
    if (lane_of() == 0) {
        *args.before = before;
    }
}

#define PROBE_ENTRIES                                                                                      \
    ENTRY(probe_agnostic, ProbeArgs), ENTRY(probe_torch, ProbeArgs),                                       \
        ENTRY(probe_torch_fused_cuda, ProbeArgs), ENTRY(probe_apex, ProbeArgs),                            \
        ENTRY(probe_te_remainder, ProbeArgs), ENTRY(probe_deepspeed_cpu, ProbeArgs),                       \
        ENTRY(probe_bitsandbytes, ProbeArgs), ENTRY(probe_undecayed, ProbeArgs),                           \
        ENTRY(probe_undecayed_half_away, ProbeArgs), ENTRY(probe_sgd, ProbeArgs),                          \
        ENTRY(probe_sgd_half_away, ProbeArgs), ENTRY(probe_look_back, LookBackArgs),
