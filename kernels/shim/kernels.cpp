// The kernels of this folder, compiled for the host, by name.
#include "launch.h"

// One file after the other: names that two of them share would be an error here and nowhere else.
#include "../detect.cu"
#include "../pending.cu"
#include "../remap.cu"
#include "../gather.cu"
#include "../scatter.cu"
#include "../digest.cu"
#include "../block16.cu"

#if defined(SHIM_TESTS)
#include "faulty.cuh"
#include "probe.cuh"
#endif

namespace {

struct Entry {
    const char* name;
    shim::Body body;
};

template <class Args, void (*KERNEL_OF)(Args)>
void call(const void* args) {
    KERNEL_OF(*static_cast<const Args*>(args));
}

#define ENTRY(name, Args) {#name, call<const Args, name>}

const Entry ENTRIES[] = {
    ENTRY(driftless_detect_agnostic, DetectArgs),
    ENTRY(driftless_detect_torch, DetectArgs),
    ENTRY(driftless_detect_torch_fused_cuda, DetectArgs),
    ENTRY(driftless_detect_apex, DetectArgs),
    ENTRY(driftless_detect_te_remainder, DetectArgs),
    ENTRY(driftless_detect_deepspeed_cpu, DetectArgs),
    ENTRY(driftless_detect_bitsandbytes, DetectArgs),
    ENTRY(driftless_detect_undecayed, DetectArgs),
    ENTRY(driftless_detect_undecayed_half_away, DetectArgs),
    ENTRY(driftless_detect_sgd, DetectArgs),
    ENTRY(driftless_detect_sgd_half_away, DetectArgs),
    ENTRY(driftless_detect_compare, DetectArgs),
    ENTRY(driftless_detect_marked, DetectArgs),
    ENTRY(driftless_detect_rest, DetectArgs),
    ENTRY(driftless_fill_bits, FillArgs),
    ENTRY(driftless_put, PutArgs),
    ENTRY(driftless_mark, MarkArgs),
    ENTRY(driftless_count_bits, CountArgs),
    ENTRY(driftless_remap_plan, RemapArgs),
    ENTRY(driftless_remap, RemapArgs),
    ENTRY(driftless_gather, GatherArgs),
    ENTRY(driftless_scatter_check, ScatterArgs),
    ENTRY(driftless_scatter, ScatterArgs),
    ENTRY(driftless_scatter_all, ScatterArgs),
    ENTRY(driftless_peek, ScatterArgs),
    ENTRY(driftless_undo, ScatterArgs),
    ENTRY(driftless_undo_all, ScatterArgs),
    ENTRY(driftless_rehash, RehashArgs),
    ENTRY(driftless_block16_decode, Block16Args),
    ENTRY(driftless_block16_directory, Block16Args),
    ENTRY(driftless_block16_encode, Block16Args),
#if defined(SHIM_TESTS)
    FAULTY_ENTRIES PROBE_ENTRIES
#endif
};

thread_local std::string last_error;

int refuse(const std::string& what) {
    last_error = what;
    return 1;
}

}  // namespace

// Whether there is a kernel of this name.
extern "C" int shim_has(const char* name) {
    for (const Entry& entry : ENTRIES) {
        if (std::strcmp(entry.name, name) == 0) {
            return 1;
        }
    }
    return 0;
}

// Why the last launch of this thread failed; valid until its next one.
extern "C" const char* shim_last_error() {
    return last_error.c_str();
}

// Runs a kernel to its end: 0, or 1 and an error. `args[0]` points to its structure; the order of threads follows from
// `seed` alone.
extern "C" int shim_launch(const char* name, unsigned grid, unsigned block, unsigned shared_bytes, void** args,
                           unsigned long long seed) {
    if (grid == 0 || block == 0 || block > 1024 || block % 32 != 0 || shared_bytes != 0) {
        return refuse("a launch takes blocks of 32 to 1024 threads in whole warps, and no dynamic shared memory");
    }
    for (const Entry& entry : ENTRIES) {
        if (std::strcmp(entry.name, name) == 0) {
            last_error = shim::run({entry.body, args[0], grid, block, seed});
            return last_error.empty() ? 0 : 1;
        }
    }
    return refuse(std::string("no kernel of the name ") + name);
}
