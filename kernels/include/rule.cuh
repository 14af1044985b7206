// The certified rule on one element, line by line as in `crates/driftless-numerics/src`: families as in `family/*.rs`, the
// exact test as in `rule/judge.rs`, the cheap one as in `rule/quick.rs`. What those compute from the settings of a step
// comes here as numbers (`rule/lowered.rs`).
//
// Every operation is FP32, to nearest, rounds once, in the order written, and is spelled so that no compiler contracts it.
// A family is a structure of static functions, so that each kernel is a loop of its own without a branch on the family.
#pragma once
#include "abi.cuh"
#include "bf16.cuh"

DEVICE float magnitude_of(float x) {
    return __uint_as_float(__float_as_uint(x) & ~SIGN);
}

DEVICE float opposite(float x) {
    return __uint_as_float(__float_as_uint(x) ^ SIGN);
}

// The next float toward negative infinity, where -0.0 comes next after +0.0.
DEVICE float step_down(float x) {
    const i32 bits = i32(__float_as_uint(x));
    const i32 place = i32(u32(bits ^ ((bits >> 31) & 0x7fffffff)) - 1u);
    return __uint_as_float(u32(place ^ ((place >> 31) & 0x7fffffff)));
}

// What families share unless they say otherwise.
template <Cast CAST>
struct AdamFamily {
    static constexpr Cast cast = CAST;
    static constexpr bool reads_second_moments = true;

    DEVICE float update(const RuleScalars& s, float m, float v) {
        const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(v), s.inverse_root), s.eps);
        return __fmul_rn(s.step_size, __fdiv_rn(m, denominator));
    }
    DEVICE bool are_numbers(const RuleScalars& s, float m, float v) {
        return (__float_as_uint(m) & ~SIGN) <= LARGEST && v >= 0.0f && v <= s.largest_second_moment;
    }
    DEVICE float update_error(const RuleScalars& s, float, float u) {
        return __fadd_rn(__fmul_rn(s.rho, magnitude_of(u)), s.eta);
    }
};

// What a family adds: the way back over one step, `y` before the step given its update `q`; `family/torch.rs` and so on.
struct Torch : AdamFamily<Cast::NearestEven> {
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        return __fsub_rn(__fmul_rn(s.keep[0], y), q);
    }
};

struct TorchFusedCuda : AdamFamily<Cast::NearestEven> {
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        // Four times 2^-52.
        constexpr double slack = 4.0 * 2.220446049250313e-16;
        const double wide = y;
        const double magnitude = magnitude_of(y);
        const double decayed = __dsub_rn(__dsub_rn(wide, __dmul_rn(s.loss_double, wide)), __dmul_rn(slack, magnitude));
        return __fsub_rn(__double2float_rn(decayed), q);
    }
};

struct Apex : AdamFamily<Cast::NearestEven> {
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        const float error = __fmul_rn(s.rho, __fmul_rn(s.loss, magnitude_of(y)));
        return __fsub_rn(y, __fadd_rn(__fadd_rn(q, __fmul_rn(s.loss, y)), error));
    }
};

struct TeRemainder : AdamFamily<Cast::HalfAway> {
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        return Apex::replay(s, y, q);
    }
};

struct DeepspeedCpu : AdamFamily<Cast::NearestEven> {
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        return __fsub_rn(__fmaf_rn(y, opposite(s.loss), y), q);
    }
};

struct Bitsandbytes : AdamFamily<Cast::NearestEven> {
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        const float z = __fsub_rn(y, q);
        const float one = __fmul_rn(s.keep[0], z), other = __fmul_rn(s.keep[1], z);
        // NaN compares with nothing, and then both are NaN.
        return one < other ? one : other;
    }
};

template <Cast CAST>
struct UndecayedFamily : AdamFamily<CAST> {
    DEVICE float replay(const RuleScalars&, float y, float q) {
        return __fsub_rn(y, q);
    }
};
struct Undecayed : UndecayedFamily<Cast::NearestEven> {};
struct UndecayedHalfAway : UndecayedFamily<Cast::HalfAway> {};

// Two steps down: whatever an order of evaluation rounds differently is one float at the decay and one at the end.
struct Agnostic : AdamFamily<Cast::NearestEven> {
    DEVICE float update_error(const RuleScalars& s, float x, float u) {
        const float of_update = __fmul_rn(s.unknown_update, magnitude_of(u));
        return __fadd_rn(__fadd_rn(of_update, __fmul_rn(s.unknown_weight, magnitude_of(x))), s.eta);
    }
    DEVICE float replay(const RuleScalars& s, float y, float q) {
        return step_down(__fsub_rn(step_down(__fmul_rn(s.keep[0], y)), q));
    }
};

template <Cast CAST>
struct SgdFamily : UndecayedFamily<CAST> {
    static constexpr bool reads_second_moments = false;

    DEVICE float update(const RuleScalars& s, float m, float) {
        return __fmul_rn(s.step_size, m);
    }
    DEVICE bool are_numbers(const RuleScalars&, float m, float) {
        return (__float_as_uint(m) & ~SIGN) <= LARGEST;
    }
};
struct Sgd : SgdFamily<Cast::NearestEven> {};
struct SgdHalfAway : SgdFamily<Cast::HalfAway> {};

// NU-3: comparisons with NaN are false.
template <class Family>
DEVICE bool are_numbers(const RuleScalars& s, float x, float m, float v) {
    return (__float_as_uint(x) & ~SIGN) < INFINITY_CELL && Family::are_numbers(s, m, v);
}

// NU-2: whether an element provably was between two edges, both of which replay to beyond where it is now.
template <class Family>
DEVICE bool stays_between(const RuleScalars& s, CellEdges edges, float x, float m, float v, float u) {
    const float e = Family::update_error(s, x, u);
    // The second test is the mirror image of the first, bit for bit.
    const float above = Family::replay(s, edges.above, __fadd_rn(u, e));
    const float below = Family::replay(s, opposite(edges.below), opposite(__fsub_rn(u, e)));
    return above > x && below > opposite(x) && are_numbers<Family>(s, x, m, v);
}

// NU-4: an update that is exactly zero and, at a zero weight, of the sign that changes nothing.
DEVICE bool is_idle(const RuleScalars& s, float x, float m) {
    const bool at_zero = x == 0.0f && __float_as_uint(m) == 0 && s.certifies_idle_zeros != 0;
    return at_zero || (m == 0.0f && x != 0.0f && s.certifies_idle_weights != 0);
}

// Whether an element provably stayed in its cell; `u` is its update.
template <class Family>
DEVICE bool certifies(const RuleScalars& s, float x, float m, float v, float u) {
    if (stays_between<Family>(s, edges_of(Family::cast, x), x, m, v, u)) {
        return true;
    }
    return are_numbers<Family>(s, x, m, v) && is_idle(s, x, m);
}

// Whether the optimizer's moments can make this update, or are no numbers.
DEVICE bool is_within_bound(const RuleScalars& s, float m, float v, float u) {
    const bool numbers = (__float_as_uint(m) & ~SIGN) <= LARGEST && (__float_as_uint(v) & ~SIGN) <= LARGEST;
    return !numbers || magnitude_of(u) <= s.largest_update;
}

// How far an element provably moved at most: 0 one step, 1 at most 31, 2 unknown (NU-5).
template <class Family>
DEVICE u32 step_class(const RuleScalars& s, float x, float m, float v) {
    const float u = Family::update(s, m, v);
    CellEdges edges;
    if (edges_around(Family::cast, x, 1, edges) && stays_between<Family>(s, edges, x, m, v, u)) {
        return 0;
    }
    return edges_around(Family::cast, x, 31, edges) && stays_between<Family>(s, edges, x, m, v, u) ? 1 : 2;
}

// The class of an element whose old and new bits are known.
DEVICE u32 class_between(u32 old_bits, u32 new_bits) {
    const i32 steps = i32(key_of(new_bits)) - i32(key_of(old_bits));
    const i32 distance = steps < 0 ? -steps : steps;
    return distance <= 1 ? 0 : distance <= 31 ? 1 : 2;
}

// NU-6: a test without root, division or edges that only certified elements within their bound pass.
// `quotient` is at least |u| / step_size, and u has the sign of m.
// Without a branch and without a conversion: a count of floats is turned into a float by way of its bits.
DEVICE bool quick_certifies(const RuleScalars& s, float x, float m, float quotient) {
    constexpr u32 spare = 32, cell = 0x10000;
    constexpr u32 least_bits = 24u << 23, exponent = 0x7f800000u;
    // 2^23, from where floats are one apart.
    constexpr u32 one_apart = 0x4b000000u;
    const u32 magnitude = __float_as_uint(x) & ~SIGN;
    const bool is_ordinary = magnitude - least_bits < INFINITY_CELL - least_bits;
    const u32 toward_zero = (magnitude + 0x8000u) & 0xffffu;
    const bool grows_back = i32(__float_as_uint(x) ^ __float_as_uint(m)) >= 0;
    const u32 room = grows_back ? cell - toward_zero : toward_zero;
    const float along = __fsub_rn(__uint_as_float(one_apart + room), 8388608.0f + float(spare));
    const float against = __fsub_rn(float(cell - 2 * spare), along);
    const float unit = __uint_as_float((magnitude - 0x8000u) & exponent);
    const float rest = __fadd_rn(__fmul_rn(magnitude_of(x), s.quick_weight), s.quick_always);
    // NU-3: comparisons with NaN are false.
    return (__fadd_rn(__fmul_rn(quotient, s.quick_along), rest) < __fmul_rn(along, unit)) &
           (__fadd_rn(__fmul_rn(quotient, s.quick_either), rest) < __fmul_rn(against, unit)) &
           (quotient <= s.quick_largest_quotient) & is_ordinary;
}

template <class Family>
DEVICE bool surely(const RuleScalars& s, float x, float m, float v) {
    if (!Family::reads_second_moments) {
        return quick_certifies(s, x, m, magnitude_of(m));
    }
    // Half of a bit pattern that is no positive number means nothing, and does not pass below.
    const float estimate = __uint_as_float(0x5f3759dfu - (__float_as_uint(v) >> 1));
    const float by_root = __fmul_rn(estimate, s.quick_root);
    const float least = by_root < s.quick_inverse_eps ? by_root : s.quick_inverse_eps;
    const bool is_small = __float_as_uint(v) <= s.quick_second_moment_bits;
    return is_small & quick_certifies(s, x, m, __fmul_rn(magnitude_of(m), least));
}
