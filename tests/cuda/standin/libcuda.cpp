// A stand-in for the driver, libcuda.so.1, on a machine without a GPU: the calls that the device's backend makes, memory
// of its own, and kernels run by the host shim. The program under test is not changed: it loads this library instead.
//
// - Work is put on a stream and done by its own thread, later: see streams.h. A missing wait shows.
// - Pinned memory is read and written when a copy is done, not when it is asked for.
// - Device memory is out of reach of the host, poisoned when it is new, gone as soon as it is freed, whoever still works
//   on it, and followed by a page that nobody may touch: a pointer that is used where or when it must not be ends the
//   program.
// - Faults are asked for by the environment, or in a file that tests write and read: see Control.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.cuh"
#include "streams.h"

extern "C" int shim_has(const char* name);
extern "C" int shim_launch(const char* name, unsigned grid, unsigned block, unsigned shared_bytes, void** args,
                           unsigned long long seed);
extern "C" const char* shim_last_error();

#define API extern "C" __attribute__((visibility("default")))

using Pointer = unsigned long long;
using standin::Lock;
using standin::Point;
using standin::Result;
using standin::Stream;

namespace {

constexpr Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100,
                 INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
                 NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_OUT_OF_RESOURCES = 701, LAUNCH_FAILED = 719;
constexpr size_t PAGE = 4096, ALIGNMENT = 256, SPACE = size_t(1) << 38;

long number(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

// What an event stands for since it was last recorded.
struct Record {
    Point point;
    double ms = 0;
};

struct Event {
    std::shared_ptr<Record> record;  // none before the first
    bool is_timed;
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
    long held = 0;  // so many pieces of work from now on are done no sooner than somebody waits for them
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
    standin::Streams streams;
    std::map<void*, std::shared_ptr<Stream>> handles;
    uintptr_t space = 0, next = 0;
    std::map<Pointer, Allocation> allocations;
    size_t total = size_t(number("STANDIN_MEMORY_BYTES", 4L << 30));
    std::map<void*, size_t> pinned_blocks;
    std::map<std::string, Function> functions;
    unsigned long long seed = 1;
    double clock_ms = 0;
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
    Lock lock;
    Result refused;
    Call() : lock(state().streams.lock) {
        standin::Streams& streams = state().streams;
        if (strikes(control().vanish)) streams.sticky = DEVICE_UNAVAILABLE;
        refused = streams.sticky;
    }
};
#define CALL                  \
    Call call;                \
    if (call.refused) return call.refused

thread_local void* current;

int device_of_current() { return int(reinterpret_cast<uintptr_t>(current) - 0x1000); }

// Brings device memory within reach of this process, or out of it.
void set_reach(bool is_in_reach) {
    State& s = state();
    if (s.next > s.space)
        mprotect(reinterpret_cast<void*>(s.space), s.next - s.space, is_in_reach ? PROT_READ | PROT_WRITE : PROT_NONE);
}

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

bool is_pinned(const void* at, size_t bytes) {
    auto after = state().pinned_blocks.upper_bound(const_cast<void*>(at));
    if (after == state().pinned_blocks.begin()) return false;
    const auto& [block, size] = *std::prev(after);
    return static_cast<const char*>(at) + bytes <= static_cast<char*>(block) + size;
}

Result fail(Result code, const char* what) {
    fprintf(stderr, "stand-in: %s\n", what);
    state().streams.sticky = code;
    return code;
}

// Says what it was that ended the program.
void on_fault(int signal, siginfo_t* info, void*) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    constexpr char WHAT[] = "stand-in: device memory was touched that is freed, or was never allocated, or by the host\n";
    if (at >= state().space && at < state().space + SPACE && write(2, WHAT, sizeof(WHAT) - 1) < 0) _exit(1);
    std::signal(signal, SIG_DFL);
}

void start() {
    standin::Streams& streams = state().streams;
    streams.seed = uint64_t(number("STANDIN_SEED", 1));
    streams.most_delay_us = uint64_t(number("STANDIN_DELAY_US", 20000));
    streams.reach = set_reach;
    faults_of_environment();
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGBUS, SIGSEGV}) sigaction(signal, &action, nullptr);
}

// A stream by its handle: 0 and 1 are the legacy default stream. Nothing for a handle that is of no stream.
std::shared_ptr<Stream> stream_of(void* handle) {
    if (reinterpret_cast<uintptr_t>(handle) <= 1) return current ? state().streams.standard(device_of_current()) : nullptr;
    auto found = state().handles.find(handle);
    return found == state().handles.end() ? nullptr : found->second;
}

Result put(void* handle, std::function<Result()> run, std::vector<Point> after = {}, Point* point = nullptr) {
    auto stream = stream_of(handle);
    if (!stream) return fail(INVALID_HANDLE, "a stream that is not there was used");
    volatile Control& told = control();
    const bool held = told.held > 0;
    if (held) told.held = told.held - 1;
    const Point put = state().streams.put(stream, held, std::move(run), std::move(after));
    if (point) *point = put;
    return SUCCESS;
}

// Work on device memory at `places`, which must still be there when it is done.
struct Place {
    Pointer at;
    size_t bytes;
};
Result put_copy(void* handle, std::vector<Place> places, std::function<void()> run) {
    for (auto& place : places)
        if (!is_inside(place.at, place.bytes)) return fail(INVALID_VALUE, "a copy of memory that is not allocated");
    return put(handle, [=] {
        for (auto& place : places)
            if (!is_inside(place.at, place.bytes)) return fail(ILLEGAL_ADDRESS, "memory was freed before a copy of it was done");
        run();
        state().clock_ms += 1e-9 * double(places[0].bytes);
        return SUCCESS;
    });
}

}  // namespace

API Result cuInit(unsigned) {
    Lock lock(state().streams.lock);
    static const bool once = [] { start(); return true; }();
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
API Result cuCtxSetCurrent(void* context) { current = context; return SUCCESS; }
API Result cuCtxGetCurrent(void** context) { *context = current; return SUCCESS; }
API Result cuCtxSynchronize() {
    CALL;
    std::vector<Point> points;
    for (auto& stream : state().streams.all)
        if (stream->device == device_of_current()) points.push_back(stream->now(stream));
    for (auto& point : points) if (Result failed = state().streams.wait(call.lock, point)) return failed;
    return SUCCESS;
}

API Result cuStreamCreate(void** stream, unsigned flags) {
    CALL;
    if (!current) return INVALID_CONTEXT;
    auto made = state().streams.make(device_of_current(), (flags & 1) == 0);
    *stream = made.get();
    state().handles[made.get()] = made;
    return SUCCESS;
}
// "In case the device is still doing work in the stream, the function will return immediately."
API Result cuStreamDestroy_v2(void* handle) {
    CALL;
    auto found = state().handles.find(handle);
    if (found == state().handles.end()) return INVALID_HANDLE;
    state().streams.end(found->second);
    state().handles.erase(found);
    return SUCCESS;
}
API Result cuStreamSynchronize(void* handle) {
    CALL;
    auto stream = stream_of(handle);
    if (!stream) return fail(INVALID_HANDLE, "a stream that is not there was waited for");
    return state().streams.wait(call.lock, stream->now(stream));
}
// Only what was put on the other stream before the event was last recorded is waited for; nothing if it never was.
API Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
    CALL;
    auto record = static_cast<Event*>(event)->record;
    return record ? put(stream, [] { return SUCCESS; }, {record->point}) : SUCCESS;
}
API Result cuEventCreate(void** event, unsigned flags) {
    CALL;
    *event = new Event{nullptr, (flags & 2) == 0};
    return SUCCESS;
}
// An event that is not complete may be destroyed: whoever waits for it does so still.
API Result cuEventDestroy_v2(void* event) {
    Lock lock(state().streams.lock);
    if (state().streams.sticky) return state().streams.sticky;
    delete static_cast<Event*>(event);
    return SUCCESS;
}
API Result cuEventRecord(void* event, void* stream) {
    CALL;
    auto record = std::make_shared<Record>();
    static_cast<Event*>(event)->record = record;
    return put(stream, [record] { record->ms = state().clock_ms; return SUCCESS; }, {}, &record->point);
}
API Result cuEventSynchronize(void* event) {
    CALL;
    auto record = static_cast<Event*>(event)->record;
    return record ? state().streams.wait(call.lock, record->point) : SUCCESS;
}
API Result cuEventQuery(void* event) {
    CALL;
    auto record = static_cast<Event*>(event)->record;
    return !record || record->point.is_reached() ? SUCCESS : NOT_READY;
}
API Result cuEventElapsedTime_v2(float* ms, void* first, void* last) {
    CALL;
    for (void* event : {first, last}) {
        const auto* recorded = static_cast<Event*>(event);
        if (!recorded->record || !recorded->is_timed) return INVALID_HANDLE;
        if (!recorded->record->point.is_reached()) return NOT_READY;
    }
    *ms = float(static_cast<Event*>(last)->record->ms - static_cast<Event*>(first)->record->ms);
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
    if (!current) return INVALID_CONTEXT;
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
    mprotect(pages, pages_bytes, PROT_NONE);
    s.allocations[at] = {page, pages_bytes, bytes};
    told.live = told.live + long(bytes);
    if (told.live > told.peak) told.peak = told.live;
    *pointer = at;
    return SUCCESS;
}
// "This API may perform implicit synchronization": so this one does not.
API Result cuMemFree_v2(Pointer pointer) {
    CALL;
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
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return OUT_OF_MEMORY;
    memset(pages, 0x5A, bytes);
    state().pinned_blocks[*pointer = pages] = bytes;
    control().pinned = control().pinned + long(bytes);
    return SUCCESS;
}
API Result cuMemFreeHost(void* pointer) {
    Lock lock(state().streams.lock);
    if (state().streams.sticky) return state().streams.sticky;
    auto found = state().pinned_blocks.find(pointer);
    if (found == state().pinned_blocks.end()) return fail(INVALID_VALUE, "host memory that is not pinned was freed");
    control().pinned = control().pinned - long(found->second);
    munmap(pointer, found->second);
    state().pinned_blocks.erase(found);
    return SUCCESS;
}
// "API synchronization behavior", asynchronous copies: fully asynchronous with pinned memory, which is therefore read
// when the copy is done. "If pageable memory must first be staged to pinned memory, the driver may synchronize with the
// stream and stage the copy": it is staged here at once, and from the device it comes when the copy is done.
API Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
    CALL;
    void* target = reinterpret_cast<void*>(to);
    if (is_pinned(from, bytes)) return put_copy(stream, {{to, bytes}}, [=] { memcpy(target, from, bytes); });
    auto staged = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
    return put_copy(stream, {{to, bytes}}, [=] { memcpy(target, staged->data(), bytes); });
}
API Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
    CALL;
    return put_copy(stream, {{from, bytes}}, [=] { memcpy(to, reinterpret_cast<void*>(from), bytes); });
}
API Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* stream) {
    CALL;
    return put_copy(stream, {{to, bytes}, {from, bytes}},
                    [=] { memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
}
API Result cuMemsetD8Async(Pointer at, unsigned char value, size_t bytes, void* stream) {
    CALL;
    return put_copy(stream, {{at, bytes}}, [=] { memset(reinterpret_cast<void*>(at), value, bytes); });
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
    if (starts("driftless_scatter") || starts("driftless_undo") || name == "driftless_peek") return sizeof(ScatterArgs);
    if (name == "driftless_gather") return sizeof(GatherArgs);
    if (name == "driftless_rehash") return sizeof(RehashArgs);
    if (name == "driftless_fill_bits") return sizeof(FillArgs);
    if (name == "driftless_mark") return sizeof(MarkArgs);
    if (name == "driftless_count_bits") return sizeof(CountArgs);
    if (name == "driftless_put") return sizeof(PutArgs);
    if (starts("driftless_block16")) return sizeof(Block16Args);
    return 0;
}

API Result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared_bytes, void* stream, void** params, void**) {
    CALL;
    State& s = state();
    control().launches = control().launches + 1;
    if (strikes(control().launch_fault)) {
        // What a kernel does wrong is heard of when somebody waits for it.
        const Result code = Result(control().launch_code);
        return code == LAUNCH_FAILED ? put(stream, [=] { return code; }) : code;
    }
    if (gx == 0 || gy != 1 || gz != 1 || by != 1 || bz != 1 || bx == 0 || bx > 1024) return INVALID_VALUE;
    // Arguments are the driver's when the call returns.
    const std::string name = static_cast<Function*>(function)->name;
    const size_t bytes = args_bytes(name);
    if (bytes == 0) return INVALID_HANDLE;
    auto args = std::make_shared<std::string>(static_cast<const char*>(params[0]), bytes);
    const unsigned long long seed = ++s.seed;
    return put(stream, [=] {
        void* first = args->data();
        state().clock_ms += 1e-3;
        if (shim_launch(name.c_str(), gx, bx, shared_bytes, &first, seed) == 0) return SUCCESS;
        fprintf(stderr, "stand-in: %s: %s\n", name.c_str(), shim_last_error());
        return LAUNCH_FAILED;
    });
}

API Result cuGetErrorName(Result code, const char** name) {
    *name = code == OUT_OF_MEMORY             ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == DEVICE_UNAVAILABLE      ? "CUDA_ERROR_DEVICE_UNAVAILABLE"
            : code == LAUNCH_OUT_OF_RESOURCES ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
            : code == LAUNCH_FAILED           ? "CUDA_ERROR_LAUNCH_FAILED"
            : code == INVALID_IMAGE           ? "CUDA_ERROR_INVALID_IMAGE"
            : code == ILLEGAL_ADDRESS         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : code == INVALID_HANDLE          ? "CUDA_ERROR_INVALID_HANDLE"
                                              : "CUDA_ERROR";
    return SUCCESS;
}
// NVRTC asks a driver that it finds for tables of its own functions: there are none here.
API Result cuGetExportTable(const void** table, const void*) { *table = nullptr; return NOT_FOUND; }
API Result cuGetErrorString(Result, const char** text) { *text = "an error of the stand-in"; return SUCCESS; }
