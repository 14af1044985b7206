// A stand-in for the driver, libcuda.so.1, on a machine without a GPU: the calls that the device's backend makes, memory
// of its own, and kernels run by the host shim. The program under test is not changed: it loads this library instead.
//
// - Work is put on a stream and done when somebody waits, as late as a driver may do it: a missing wait shows.
// - Device memory is out of reach of the host between calls, poisoned when it is new, gone when it is freed, and followed
//   by a page that nobody may touch: a pointer that is used where or when it must not be ends the program.
// - Faults are asked for by the environment, or in a file that tests write and read: see Control.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>

#include "abi.cuh"

extern "C" int shim_has(const char* name);
extern "C" int shim_launch(const char* name, unsigned grid, unsigned block, unsigned shared_bytes, void** args,
                           unsigned long long seed);
extern "C" const char* shim_last_error();

#define API extern "C" __attribute__((visibility("default")))

using Result = int;
using Pointer = unsigned long long;

namespace {

constexpr Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100,
                 INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500, LAUNCH_OUT_OF_RESOURCES = 701,
                 LAUNCH_FAILED = 719;
constexpr size_t PAGE = 4096, ALIGNMENT = 256, SPACE = size_t(1) << 38;

long number(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

struct Event;

// What waits on a stream. `event` is set for a record.
struct Work {
    std::function<Result()> run;
    Event* event;
};

struct Stream {
    std::deque<Work> queue;
};

struct Event {
    Stream* stream = nullptr;  // where its last record still waits
    double ms = 0;
};

struct Function {
    std::string name;
};

struct Allocation {
    uintptr_t page;
    size_t pages_bytes;
    size_t bytes;
};

// What tests say and ask, in a file of theirs (STANDIN_CONTROL) or in memory: numbers of 8 bytes.
struct Control {
    long launch_fault = -1;  // so many launches go well, then one does not; -1: all do
    long launch_code = LAUNCH_OUT_OF_RESOURCES;
    long alloc_fault = -1;
    long vanish = -1;  // so many calls go well, then none does
    long live = 0, peak = 0, pinned = 0;  // bytes
    long launches = 0;
};

volatile Control& control() {
    static volatile Control* control = [] {
        const char* path = getenv("STANDIN_CONTROL");
        const int file = path ? open(path, O_RDWR) : -1;
        void* shared = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        return shared == MAP_FAILED ? new Control : static_cast<Control*>(shared);
    }();
    return *control;
}

// Counts down to a fault.
bool strikes(volatile long& fault) {
    if (fault < 0) return false;
    fault = fault - 1;
    return fault < 0;
}

struct State {
    std::recursive_mutex lock;
    uintptr_t space = 0, next = 0;
    std::map<Pointer, Allocation> allocations;
    size_t total = size_t(number("STANDIN_MEMORY_BYTES", 4L << 30));
    std::map<void*, size_t> pinned_blocks;
    std::map<std::string, Function> functions;
    std::deque<Stream*> streams;
    Result sticky = SUCCESS;
    unsigned long long seed = 1;
    double clock_ms = 0;
    int depth = 0;
};

State& state() {
    static State* state = new State;
    return *state;
}

void inject(const std::string& what, long after, long code) {
    if (what == "launch") { control().launch_fault = after; control().launch_code = code ? code : LAUNCH_OUT_OF_RESOURCES; }
    if (what == "alloc") control().alloc_fault = after;
    if (what == "vanish") control().vanish = after;
}

// STANDIN_FAULTS=launch:12:701,alloc:3,vanish:40
void faults_of_environment() {
    const char* text = getenv("STANDIN_FAULTS");
    std::string rest = text ? text : "";
    while (!rest.empty()) {
        const size_t comma = rest.find(',');
        const std::string one = rest.substr(0, comma);
        const size_t first = one.find(':'), second = one.find(':', first + 1);
        if (first != std::string::npos)
            inject(one.substr(0, first), atol(one.c_str() + first + 1), second == std::string::npos ? 0 : atol(one.c_str() + second + 1));
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    }
}

// A call: alone, and refused once the device is gone. A fault that counts calls counts each of them.
struct Call {
    std::lock_guard<std::recursive_mutex> guard;
    Result refused;
    Call() : guard(state().lock), refused(SUCCESS) {
        State& s = state();
        if (strikes(control().vanish)) s.sticky = DEVICE_UNAVAILABLE;
        refused = s.sticky;
    }
};
#define CALL                  \
    Call call;                \
    if (call.refused) return call.refused

// For as long as it lives, device memory is in reach.
struct Reach {
    Reach() { if (state().depth++ == 0) protect(PROT_READ | PROT_WRITE); }
    ~Reach() { if (--state().depth == 0) protect(PROT_NONE); }
    static void protect(int how) {
        State& s = state();
        if (s.next > s.space) mprotect(reinterpret_cast<void*>(s.space), s.next - s.space, how);
    }
};

// Pages of an empty file: whoever touches them is ended, whatever their protection says.
void* close_off(void* at, size_t bytes, size_t offset, int how) {
    static const int empty = fileno(tmpfile());
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | how, empty, off_t(offset));
}

bool is_inside(Pointer at, size_t bytes) {
    State& s = state();
    auto after = s.allocations.upper_bound(at);
    if (after == s.allocations.begin()) return false;
    const auto& [pointer, allocation] = *std::prev(after);
    return at + bytes <= pointer + allocation.bytes;
}

Result fail(Result code, const char* what) {
    fprintf(stderr, "stand-in: %s\n", what);
    state().sticky = code;
    return code;
}

Result step(Stream* stream) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (work.event && work.event->stream == stream) {
        bool again = false;
        for (auto& later : stream->queue) again |= later.event == work.event;
        if (!again) work.event->stream = nullptr;
    }
    return state().sticky ? state().sticky : work.run();
}

Result drain(Stream* stream) {
    Reach reach;
    while (stream && !stream->queue.empty()) if (Result failed = step(stream)) return failed;
    return state().sticky;
}

Result drain_all() {
    for (Stream* stream : state().streams) if (Result failed = drain(stream)) return failed;
    return state().sticky;
}

Result wait_for(Event* event) {
    Reach reach;
    while (event->stream && !event->stream->queue.empty()) if (Result failed = step(event->stream)) return failed;
    return state().sticky;
}

Stream* stream_of(void* handle) {
    static Stream* standard = [] { auto* stream = new Stream; state().streams.push_back(stream); return stream; }();
    return handle ? static_cast<Stream*>(handle) : standard;
}

void put(void* stream, std::function<Result()> run, Event* event = nullptr) {
    stream_of(stream)->queue.push_back({std::move(run), event});
}

}  // namespace

API Result cuInit(unsigned) {
    std::lock_guard<std::recursive_mutex> guard(state().lock);
    static const bool once = [] { faults_of_environment(); return true; }();
    (void)once;
    return number("STANDIN_DEVICES", 2) == 0 ? NO_DEVICE : SUCCESS;
}
API Result cuDriverGetVersion(int* version) { *version = int(number("STANDIN_DRIVER_VERSION", 13000)); return SUCCESS; }
API Result cuDeviceGetCount(int* count) { *count = int(number("STANDIN_DEVICES", 2)); return SUCCESS; }
API Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < number("STANDIN_DEVICES", 2) ? SUCCESS : INVALID_DEVICE;
}
API Result cuDeviceGetName(char* name, int length, int) { snprintf(name, size_t(length), "stand-in"); return SUCCESS; }
API Result cuDeviceGetAttribute(int* value, int attribute, int) {
    const long capability = number("STANDIN_CAPABILITY", 90);
    *value = attribute == 75 ? int(capability / 10) : attribute == 76 ? int(capability % 10)
             : attribute == 1  ? int(number("STANDIN_THREADS", 64))
                               : 1;
    return SUCCESS;
}
API Result cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = state().total; return SUCCESS; }
API Result cuDevicePrimaryCtxRetain(void** context, int device) {
    CALL;
    *context = reinterpret_cast<void*>(uintptr_t(0x1000 + device));
    return SUCCESS;
}
API Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
static thread_local void* current;
API Result cuCtxSetCurrent(void* context) { current = context; return SUCCESS; }
API Result cuCtxGetCurrent(void** context) { *context = current; return SUCCESS; }
API Result cuCtxSynchronize() { CALL; return drain_all(); }

API Result cuStreamCreate(void** stream, unsigned) {
    CALL;
    auto* made = new Stream;
    state().streams.push_back(made);
    *stream = made;
    return SUCCESS;
}
API Result cuStreamDestroy_v2(void* stream) {
    CALL;
    drain(stream_of(stream));
    auto& all = state().streams;
    all.erase(std::remove(all.begin(), all.end(), stream_of(stream)), all.end());
    delete static_cast<Stream*>(stream);
    return SUCCESS;
}
API Result cuStreamSynchronize(void* stream) { CALL; return drain(stream_of(stream)); }
API Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
    CALL;
    // Only what was put on the other stream until now is waited for.
    Stream* other = static_cast<Event*>(event)->stream;
    const size_t count = other ? other->queue.size() : 0;
    auto left = std::make_shared<size_t>(count);
    if (other && other != stream_of(stream)) {
        put(other, [left] { *left = 0; return SUCCESS; });
        put(stream, [other, left] {
            while (*left && !other->queue.empty()) if (Result failed = step(other)) return failed;
            return SUCCESS;
        });
    }
    return SUCCESS;
}
API Result cuEventCreate(void** event, unsigned) { CALL; *event = new Event; return SUCCESS; }
API Result cuEventDestroy_v2(void* event) {
    std::lock_guard<std::recursive_mutex> guard(state().lock);
    if (state().sticky) return state().sticky;
    wait_for(static_cast<Event*>(event));
    delete static_cast<Event*>(event);
    return SUCCESS;
}
API Result cuEventRecord(void* event, void* stream) {
    CALL;
    auto* recorded = static_cast<Event*>(event);
    recorded->stream = stream_of(stream);
    put(stream, [recorded] { recorded->ms = state().clock_ms; return SUCCESS; }, recorded);
    return SUCCESS;
}
API Result cuEventSynchronize(void* event) { CALL; return wait_for(static_cast<Event*>(event)); }
API Result cuEventQuery(void* event) { CALL; return wait_for(static_cast<Event*>(event)); }
API Result cuEventElapsedTime_v2(float* ms, void* first, void* last) {
    CALL;
    if (Result failed = wait_for(static_cast<Event*>(last))) return failed;
    *ms = float(static_cast<Event*>(last)->ms - static_cast<Event*>(first)->ms);
    return SUCCESS;
}

API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
    CALL;
    *free = state().total - size_t(control().live);
    *total = state().total;
    return SUCCESS;
}
API Result cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
    CALL;
    State& s = state();
    if (bytes == 0) return INVALID_VALUE;
    volatile Control& told = control();
    if (strikes(told.alloc_fault)) return OUT_OF_MEMORY;
    if (size_t(told.live) + bytes > s.total) return OUT_OF_MEMORY;
    if (!s.space) {
        void* space = close_off(nullptr, SPACE, 0, 0);
        if (space == MAP_FAILED) return OUT_OF_MEMORY;
        s.space = s.next = reinterpret_cast<uintptr_t>(space);
    }
    const size_t pages_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (s.next + pages_bytes + PAGE > s.space + SPACE) return OUT_OF_MEMORY;
    const uintptr_t page = s.next;
    // The end is as near to the page that nobody may touch as the alignment allows.
    const uintptr_t at = page + (pages_bytes - bytes) / ALIGNMENT * ALIGNMENT;
    s.next += pages_bytes + PAGE;
    void* pages = mmap(reinterpret_cast<void*>(page), pages_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (pages == MAP_FAILED) return OUT_OF_MEMORY;
    memset(pages, 0xA5, pages_bytes);
    if (s.depth == 0) mprotect(pages, pages_bytes, PROT_NONE);
    s.allocations[at] = {page, pages_bytes, bytes};
    told.live = told.live + long(bytes);
    if (told.live > told.peak) told.peak = told.live;
    *pointer = at;
    return SUCCESS;
}
API Result cuMemFree_v2(Pointer pointer) {
    CALL;
    if (Result failed = drain_all()) return failed;
    State& s = state();
    auto found = s.allocations.find(pointer);
    if (found == s.allocations.end()) return fail(INVALID_VALUE, "memory that is not allocated was freed");
    const uintptr_t page = found->second.page;
    close_off(reinterpret_cast<void*>(page), found->second.pages_bytes, page - s.space, MAP_FIXED);
    control().live = control().live - long(found->second.bytes);
    s.allocations.erase(found);
    return SUCCESS;
}
API Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    CALL;
    *pointer = malloc(bytes);
    memset(*pointer, 0x5A, bytes);
    state().pinned_blocks[*pointer] = bytes;
    control().pinned = control().pinned + long(bytes);
    return SUCCESS;
}
API Result cuMemFreeHost(void* pointer) {
    std::lock_guard<std::recursive_mutex> guard(state().lock);
    if (state().sticky) return state().sticky;
    control().pinned = control().pinned - long(state().pinned_blocks[pointer]);
    state().pinned_blocks.erase(pointer);
    free(pointer);
    return SUCCESS;
}
API Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
    CALL;
    if (!is_inside(to, bytes)) return fail(INVALID_VALUE, "a copy to memory that is not allocated");
    put(stream, [=] { memcpy(reinterpret_cast<void*>(to), from, bytes); state().clock_ms += 1e-9 * double(bytes); return SUCCESS; });
    return SUCCESS;
}
API Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
    CALL;
    if (!is_inside(from, bytes)) return fail(INVALID_VALUE, "a copy from memory that is not allocated");
    put(stream, [=] { memcpy(to, reinterpret_cast<void*>(from), bytes); state().clock_ms += 1e-9 * double(bytes); return SUCCESS; });
    return SUCCESS;
}
API Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* stream) {
    CALL;
    if (!is_inside(to, bytes) || !is_inside(from, bytes)) return fail(INVALID_VALUE, "a copy between memory that is not allocated");
    put(stream, [=] {
        memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        state().clock_ms += 1e-9 * double(bytes);
        return SUCCESS;
    });
    return SUCCESS;
}
API Result cuMemsetD8Async(Pointer at, unsigned char value, size_t bytes, void* stream) {
    CALL;
    if (!is_inside(at, bytes)) return fail(INVALID_VALUE, "memory that is not allocated was set");
    put(stream, [=] { memset(reinterpret_cast<void*>(at), value, bytes); return SUCCESS; });
    return SUCCESS;
}

API Result cuModuleLoadData(void** module, const void* image) {
    CALL;
    // PTX is text, a compiled image an ELF file; anything else is a damaged file.
    const char* text = static_cast<const char*>(image);
    const bool is_image = memcmp(text, "\x7f" "ELF", 4) == 0 || strstr(text, ".version") != nullptr;
    if (!is_image) return INVALID_IMAGE;
    *module = malloc(1);
    return SUCCESS;
}
API Result cuModuleUnload(void* module) { free(module); return SUCCESS; }
API Result cuModuleGetFunction(void** function, void*, const char* name) {
    CALL;
    if (!shim_has(name)) return NOT_FOUND;
    *function = &(state().functions[name] = Function{name});
    return SUCCESS;
}

// The size of a kernel's one argument.
static size_t args_bytes(const std::string& name) {
    const auto starts = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
    if (starts("driftless_detect")) return sizeof(DetectArgs);
    if (starts("driftless_remap")) return sizeof(RemapArgs);
    if (starts("driftless_scatter") || starts("driftless_undo")) return sizeof(ScatterArgs);
    if (name == "driftless_gather") return sizeof(GatherArgs);
    if (name == "driftless_rehash") return sizeof(RehashArgs);
    if (name == "driftless_fill_bits") return sizeof(FillArgs);
    if (name == "driftless_mark") return sizeof(MarkArgs);
    if (name == "driftless_count_bits") return sizeof(CountArgs);
    if (name == "driftless_put") return sizeof(PutArgs);
    return sizeof(Block16Args);
}

API Result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared_bytes, void* stream, void** params, void**) {
    CALL;
    State& s = state();
    control().launches = control().launches + 1;
    if (strikes(control().launch_fault)) {
        const Result code = Result(control().launch_code);
        if (code == LAUNCH_FAILED) s.sticky = LAUNCH_FAILED;
        return code;
    }
    if (gx == 0 || gy != 1 || gz != 1 || by != 1 || bz != 1 || bx == 0 || bx > 1024) return INVALID_VALUE;
    // Arguments are the driver's when the call returns.
    const std::string name = static_cast<Function*>(function)->name;
    auto args = std::make_shared<std::string>(static_cast<const char*>(params[0]), args_bytes(name));
    put(stream, [=] {
        void* first = args->data();
        state().clock_ms += 1e-3;
        if (shim_launch(name.c_str(), gx, bx, shared_bytes, &first, ++state().seed) == 0) return SUCCESS;
        fprintf(stderr, "stand-in: %s: %s\n", name.c_str(), shim_last_error());
        state().sticky = LAUNCH_FAILED;
        return LAUNCH_FAILED;
    });
    return SUCCESS;
}

API Result cuGetErrorName(Result code, const char** name) {
    *name = code == OUT_OF_MEMORY             ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == DEVICE_UNAVAILABLE      ? "CUDA_ERROR_DEVICE_UNAVAILABLE"
            : code == LAUNCH_OUT_OF_RESOURCES ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
            : code == LAUNCH_FAILED           ? "CUDA_ERROR_LAUNCH_FAILED"
            : code == INVALID_IMAGE           ? "CUDA_ERROR_INVALID_IMAGE"
                                              : "CUDA_ERROR";
    return SUCCESS;
}
// NVRTC asks a driver that it finds for tables of its own functions: there are none here.
API Result cuGetExportTable(const void** table, const void*) { *table = nullptr; return NOT_FOUND; }
API Result cuGetErrorString(Result, const char** text) { *text = "an error of the stand-in"; return SUCCESS; }
