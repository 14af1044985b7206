// CUDA C++ on the host, for tests: enough of the language to run the kernels of this folder on a CPU.
//
// The threads of a block are fibers of one OS thread, resumed in a seeded random order together with those of a few
// other blocks. With -DSHIM_THREADS each is an OS thread, so that ThreadSanitizer and AddressSanitizer see them.
// Warp operations and barriers are true rendezvous: a lane waits until all that its mask names have come.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define ARGS(Type) const Type
#define SHARED(Type, name) Type& name = *static_cast<Type*>(shim::shared_memory(sizeof(Type)))
#define PAUSE() shim::pause()

namespace shim {

struct Index {
    unsigned x, y, z;
};

// Where the running thread is.
struct Place {
    Index thread, block, block_size, grid_size;
};
const Place& place();

enum class Op : uint8_t { Sync, Ballot, Shuffle, Reduce };

// The values of all lanes that the mask names, by lane, once all of them have come.
struct Met {
    uint64_t values[32];
};
Met meet(Op op, uint32_t mask, uint64_t value);

// `line` tells barriers apart: all threads of a block must meet at the same one.
void barrier(unsigned line);
void pause();
void* shared_memory(size_t bytes);
[[noreturn]] void fail(const char* what);

inline unsigned lane() {
    return place().thread.x % 32;
}

// The value that a shuffle hands to this lane.
inline uint64_t shuffled(uint32_t mask, uint64_t value, unsigned source) {
    const Met met = meet(Op::Shuffle, mask, value);
    if (!(mask >> source & 1)) {
        fail("a shuffle reads a lane outside of its mask");
    }
    return met.values[source];
}

template <class T>
T shuffle(uint32_t mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "at most eight bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shuffled(mask, bits, source);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace shim

#define threadIdx (shim::place().thread)
#define blockIdx (shim::place().block)
#define blockDim (shim::place().block_size)
#define gridDim (shim::place().grid_size)

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

#define __syncthreads() shim::barrier(__LINE__)
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
    shim::meet(shim::Op::Sync, mask, 0);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
    const shim::Met met = shim::meet(shim::Op::Ballot, mask, predicate != 0);
    uint32_t votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        votes |= (mask >> lane & 1 && met.values[lane]) ? 1u << lane : 0;
    }
    return votes;
}
inline int __any_sync(uint32_t mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(uint32_t mask, int predicate) {
    return __ballot_sync(mask, predicate) == mask;
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int source) {
    return shim::shuffle(mask, value, unsigned(source) % 32);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance) {
    const unsigned lane = shim::lane();
    return shim::shuffle(mask, value, lane >= distance ? lane - distance : lane);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned distance) {
    const unsigned lane = shim::lane();
    return shim::shuffle(mask, value, lane + distance < 32 ? lane + distance : lane);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
    return shim::shuffle(mask, value, (shim::lane() ^ unsigned(bits)) % 32);
}
inline unsigned __reduce_add_sync(uint32_t mask, unsigned value) {
    const shim::Met met = shim::meet(shim::Op::Reduce, mask, value);
    unsigned sum = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        sum += mask >> lane & 1 ? unsigned(met.values[lane]) : 0;
    }
    return sum;
}
inline unsigned __reduce_max_sync(uint32_t mask, unsigned value) {
    const shim::Met met = shim::meet(shim::Op::Reduce, mask, value);
    unsigned most = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned other = mask >> lane & 1 ? unsigned(met.values[lane]) : 0;
        most = other > most ? other : most;
    }
    return most;
}

template <class T>
T atomicAdd(T* place, T value) {
    return __atomic_fetch_add(place, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicOr(T* place, T value) {
    return __atomic_fetch_or(place, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicExch(T* place, T value) {
    return __atomic_exchange_n(place, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicMax(T* place, T value) {
    T found = __atomic_load_n(place, __ATOMIC_SEQ_CST);
    while (found < value && !__atomic_compare_exchange_n(place, &found, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return found;
}
inline void __threadfence() {
#ifndef SHIM_THREADS
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
    // ThreadSanitizer knows no fences; here every atomic operation is one.
}

inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}
inline int __ffs(int bits) {
    return __builtin_ffs(bits);
}
inline int __clz(int bits) {
    return bits ? __builtin_clz(unsigned(bits)) : 32;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned(uint64_t(a) * b >> 32);
}
template <class T>
T __ldg(const T* place) {
    return *place;
}

// Compiled with -ffp-contract=off, so that each of these rounds once.
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fsqrt_rn(float a) {
    return std::sqrt(a);
}
inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline double __dsub_rn(double a, double b) {
    return a - b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline float __double2float_rn(double a) {
    return float(a);
}
inline unsigned __float_as_uint(float a) {
    unsigned bits;
    std::memcpy(&bits, &a, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float a;
    std::memcpy(&a, &bits, sizeof a);
    return a;
}
