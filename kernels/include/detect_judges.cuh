// The four sources of `detect`: what says which elements may have changed.
//
// The twin of `Judge` in `crates/driftless-device/src/cpu/detect/judge.rs`.
//
// Each is a structure of static functions, called in this order for every quad and then for its marked elements:
//   load          what it reads beside the masters, into registers;
//   may_be_marked the first look at an element: false clears it;
//   settle        what becomes of older bits, once a quad has been looked at;
//   is_marked     the exact judgment of an element that the first look left, read again (`judges_twice`);
//   class_of      the step class of an element that is listed.
#pragma once
#include "detect_tile.cuh"
#include "rule.cuh"

// What a tile's elements say of their piece: see `DetectArgs::exceeded` and `unfit`.
struct Noted {
    u32 exceeded;
    bool is_unfit;
};

// By the certified rule of a family: what it does not certify is marked.
template <class Family>
struct ByRule {
    static constexpr bool serves_fp32 = false;
    // Whether the first look is a guess: it clears only what `is_marked` would not mark.
    static constexpr bool judges_twice = true;
    struct State {
        float m[VECTOR];
        float v[VECTOR];
    };
    DEVICE Cast cast_by(const DetectArgs&) {
        return Family::cast;
    }
    DEVICE void load(const DetectArgs& args, const Quad& quad, State& state) {
        load_floats(args.exp_avg, quad, state.m);
        if (Family::reads_second_moments) {
            load_floats(args.exp_avg_sq, quad, state.v);
        }
    }
    // NU-6: nearly all elements end here.
    DEVICE bool may_be_marked(const DetectArgs& args, u32 k, float x, u32, const State& state) {
        return !surely<Family>(args.rule, x, state.m[k], Family::reads_second_moments ? state.v[k] : 0.0f);
    }
    DEVICE bool is_marked(const DetectArgs& args, u32 at, Noted& noted) {
        const float x = args.master[at], m = args.exp_avg[at];
        const float v = Family::reads_second_moments ? args.exp_avg_sq[at] : 0.0f;
        const float u = Family::update(args.rule, m, v);
        if (!is_within_bound(args.rule, m, v, u)) {
            // The bits of positive floats rise with them, so that the largest code is that of the largest update.
            const u32 magnitude = __float_as_uint(u) & ~SIGN;
            const u32 code = magnitude > INFINITE ? 1 : magnitude + 2;
            noted.exceeded = code > noted.exceeded ? code : noted.exceeded;
        }
        return !certifies<Family>(args.rule, x, m, v, u);
    }
    DEVICE u32 class_of(const DetectArgs& args, u32 at, float x, u32) {
        return step_class<Family>(args.rule, x, args.exp_avg[at], Family::reads_second_moments ? args.exp_avg_sq[at] : 0.0f);
    }
    DEVICE void settle(const DetectArgs&, const Part&, const Quad&, u32, const u32 (&)[VECTOR]) {}
};

DEVICE Cast cast_of(const DetectArgs& args) {
    return args.flags & DETECT_HALF_AWAY ? Cast::HalfAway : Cast::NearestEven;
}

// By comparison with older bits. They are brought up to date here only where nothing is listed (a sweep that collects):
// the class of a change that is listed is read off the older bits, and `driftless_put` replaces them behind it.
struct ByOldBits {
    static constexpr bool serves_fp32 = false;
    static constexpr bool judges_twice = false;
    struct State {
        u32 old_bits[VECTOR];
    };
    DEVICE Cast cast_by(const DetectArgs& args) {
        return cast_of(args);
    }
    DEVICE void load(const DetectArgs& args, const Quad& quad, State& state) {
        load_words(args.previous, quad, state.old_bits);
    }
    DEVICE bool may_be_marked(const DetectArgs&, u32 k, float, u32 bits, const State& state) {
        return bits != state.old_bits[k];
    }
    DEVICE bool is_marked(const DetectArgs&, u32, Noted&) {
        return true;
    }
    DEVICE u32 class_of(const DetectArgs& args, u32 at, float, u32 bits) {
        return class_between(args.previous[at], bits);
    }
    DEVICE void settle(const DetectArgs& args, const Part&, const Quad& quad, u32 marks, const u32 (&bits)[VECTOR]) {
        if (!(args.flags & DETECT_UPDATE)) {
            return;
        }
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            if (marks >> k & 1u) {
                args.previous[quad.at + k] = u16(bits[k]);
            }
        }
    }
};

// By the bits that an optimizer wrote in the step.
struct ByMarks {
    static constexpr bool serves_fp32 = false;
    static constexpr bool judges_twice = false;
    struct State {
        u32 marks;
    };
    DEVICE Cast cast_by(const DetectArgs& args) {
        return cast_of(args);
    }
    DEVICE void load(const DetectArgs& args, const Quad& quad, State& state) {
        state.marks = bits_of_set(args.changed, quad);
    }
    DEVICE bool may_be_marked(const DetectArgs&, u32 k, float, u32, const State& state) {
        return state.marks >> k & 1u;
    }
    DEVICE bool is_marked(const DetectArgs&, u32, Noted&) {
        return true;
    }
    DEVICE u32 class_of(const DetectArgs&, u32, float, u32) {
        return 2;
    }
    DEVICE void settle(const DetectArgs&, const Part&, const Quad&, u32, const u32 (&)[VECTOR]) {}
};

// By nobody: the part goes whole, or was not touched.
struct ByNobody {
    static constexpr bool serves_fp32 = true;
    static constexpr bool judges_twice = false;
    struct State {};
    DEVICE Cast cast_by(const DetectArgs& args) {
        return cast_of(args);
    }
    DEVICE void load(const DetectArgs&, const Quad&, State&) {}
    DEVICE bool may_be_marked(const DetectArgs&, u32, float, u32, const State&) {
        return false;
    }
    DEVICE bool is_marked(const DetectArgs&, u32, Noted&) {
        return false;
    }
    DEVICE u32 class_of(const DetectArgs&, u32, float, u32) {
        return 2;
    }
    DEVICE void settle(const DetectArgs& args, const Part& part, const Quad& quad, u32, const u32 (&bits)[VECTOR]) {
        if (!(part.flags & PART_REPLACE)) {
            return;
        }
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            if (is_valid(quad, k)) {
                args.previous[quad.at + k] = u16(bits[k]);
            }
        }
    }
};
