// The machine under the strict driver's functions (strict_driver.cpp): its state, what the tests ask of it, and the rules of memory and streams.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

typedef uint64_t u64;
typedef void *Handle;

enum Code {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701, PEER_ALREADY_ENABLED = 704, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719,
    COOPERATIVE_TOO_LARGE = 720, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908,
    NOT_YET = -1,  // ours: an operation waits for another one
};

// What a block, a multiprocessor and a GPU of sm_90 have.
const int SHARED_OF_BLOCK = 232448, SHARED_UNASKED = 49152, SHARED_OF_MP = 233472, REGISTERS = 65536, THREADS_OF_MP = 2048, MULTIPROCESSORS = 132;

typedef std::map<int, u64> Clock;  // stream -> its operations that have run before

static void join(Clock &into, const Clock &other) {
    for (auto &[stream, at] : other) {
        u64 &mine = into[stream];
        if (at > mine) mine = at;
    }
}

struct Operation {
    std::string what;
    std::function<int(Operation &)> run;
    int gpu = 0, stream = 0;
    u64 at = 0;
    Clock before;
};

struct Capture {
    std::vector<Operation> nodes;
    int mode;
    size_t thread;
    bool valid = true;
};

struct Stream {
    int number, gpu;
    std::deque<Operation> queue;  // what has not run
    u64 queued = 0, done = 0;
    Clock clock;
    std::shared_ptr<Capture> capture;
};

struct Event {
    int gpu;
    unsigned flags;
    std::shared_ptr<Stream> stream;  // none: not recorded
    std::shared_ptr<Capture> capture;
    u64 at = 0;
    int asked = 0;
    Clock clock;
};

struct Function {
    int id, gpu, registers = 0, shared = SHARED_UNASKED;
    std::vector<int> offsets, sizes;
};

struct Access {
    u64 low, high;
    bool writes;
    int stream;
    u64 at;
    std::string what;
};

struct Memory {
    u64 size = 0;
    int gpu = 0, file = -1;
    bool opened = false;             // another process's
    u64 written_low = ~0ull, written_high = 0;
    std::vector<Access> accesses;    // what later ones have to be ordered behind
};

static std::recursive_mutex lock;
static std::condition_variable_any changed;
typedef std::unique_lock<std::recursive_mutex> Locked;

static int gpus = 0, failed = 0, patience = -1, world = 0;
static bool own_handles = false;  // whether a process may open its own memory, as if it were another one
static u64 memory_of_gpu = 1 << 30, next_handle = 0x1000;
static bool initialized = false;
static std::map<u64, std::shared_ptr<Stream>> streams;
static std::map<u64, std::shared_ptr<Event>> events;
static std::map<u64, int> modules;
static std::map<u64, int> module_gpu;
static std::map<u64, std::shared_ptr<Function>> functions;
static std::map<u64, std::shared_ptr<Capture>> graphs, executables;
static std::map<u64, Memory> memory;
static std::map<u64, u64> pinned, freed;
static std::set<std::pair<int, int>> peers;
static Clock host;  // what the host has waited for
static thread_local u64 current;

static u64 fresh() { return next_handle += 16; }
static Handle as_handle(u64 number) { return (Handle)number; }
static u64 context(int gpu) { return 0xC000000000ull + 0x10000ull * world + 16 * (gpu + 1); }

// --- to and from the tests -------------------------------------------------------------------------------------------

typedef int (*Load)(const void *image);                       // -> the image's number, or minus an error code
typedef int (*Find)(int image, const char *name, u64 function);
typedef int (*Execute)(int function, u64 operation, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, const void *arguments);
typedef int (*Refused)(int code, const char *why);
typedef int (*Work)(int number, u64 operation);                // -> OK, NOT_YET or an error
static Load load_image;
static Find find_function;
static Execute execute;
static Refused on_refused;
static Work on_work;

static int refuse(int code, const std::string &why) {
    if (on_refused) on_refused(code, why.c_str());
    return code;
}

API void strict_callbacks(Load a, Find b, Execute c, Refused d, Work e) {
    load_image = a, find_function = b, execute = c, on_refused = d, on_work = e;
}

API void strict_reset(int count, u64 bytes) {
    Locked hold(lock);
    for (auto &[at, m] : memory) {
        munmap((void *)at, m.size);
        if (m.file >= 0) close(m.file);
    }
    for (auto &[at, size] : freed) munmap((void *)at, size);
    for (auto &[at, size] : pinned) free((void *)at);
    streams.clear(), events.clear(), modules.clear(), module_gpu.clear(), functions.clear(), graphs.clear(), executables.clear();
    memory.clear(), freed.clear(), pinned.clear(), peers.clear(), host.clear();
    load_image = nullptr, find_function = nullptr, execute = nullptr, on_refused = nullptr, on_work = nullptr;  // of tests that are over
    gpus = count, memory_of_gpu = bytes, failed = 0, patience = -1, initialized = own_handles = false;
    world++;
}

API void strict_function(u64 function, int count, const int *offsets, const int *sizes, int registers) {
    auto &f = functions[function];
    f->offsets.assign(offsets, offsets + count);
    f->sizes.assign(sizes, sizes + count);
    f->registers = registers;
}

API void strict_fail(int code) { failed = code; }
API void strict_patience(int times) { patience = times; }
API void strict_own_handles(int may) { own_handles = may; }
API void strict_memory(u64 bytes) { memory_of_gpu = bytes; }

API int strict_allocations(u64 *at, u64 *size, int *gpu, int most, int opened) {
    Locked hold(lock);
    int n = 0;
    for (auto &[address, m] : memory)
        if (m.opened == (bool)opened && n < most) at[n] = address, size[n] = m.size, gpu[n++] = m.gpu;
    return n;
}

// --- memory: who may touch what, and when ----------------------------------------------------------------------------

static std::map<u64, Memory>::iterator find_memory(u64 address) {
    auto i = memory.upper_bound(address);
    if (i == memory.begin()) return memory.end();
    --i;
    return address < i->first + i->second.size ? i : memory.end();
}

API u64 strict_bytes_at(u64 address, u64 *base) {  // from there to the end of its allocation; 0: no memory of this process's GPUs
    Locked hold(lock);
    auto i = find_memory(address);
    if (i == memory.end()) return 0;
    *base = i->first;
    return i->first + i->second.size - address;
}

static bool holds(u64 address, u64 size) {
    auto i = find_memory(address);
    return i != memory.end() && address + size <= i->first + i->second.size;
}

static bool was_freed(u64 address) {
    auto i = freed.upper_bound(address);
    return i != freed.begin() && address < std::prev(i)->first + std::prev(i)->second;
}

static bool is_pinned(const void *address, u64 size) {
    auto i = pinned.upper_bound((u64)address);
    return i != pinned.begin() && (u64)address + size <= std::prev(i)->first + std::prev(i)->second;
}

static std::string place(u64 address, const Memory &m, u64 base) {
    char text[120];
    snprintf(text, sizeof text, "byte %llu of %llu of GPU %d's memory", (unsigned long long)(address - base), (unsigned long long)m.size, m.gpu);
    return text;
}

static int touch(Operation &op, u64 low, u64 size, bool writes, bool by_kernel) {
    if (!size) return OK;
    u64 high = low + size;
    auto i = find_memory(low);
    if (i == memory.end() || high > i->first + i->second.size)
        return refuse(ILLEGAL_ADDRESS, op.what + (was_freed(low) ? " uses memory that was freed" : " touches what is no memory of a GPU"));
    Memory &m = i->second;
    if (by_kernel && m.gpu != op.gpu && !peers.count({op.gpu, m.gpu}))
        return refuse(ILLEGAL_ADDRESS, op.what + " touches another GPU's memory without access to it");
    if (!writes && !m.opened && (high <= m.written_low || low >= m.written_high))
        return refuse(LAUNCH_FAILED, op.what + " reads what nothing has written: " + place(low, m, i->first));
    std::vector<Access> kept;
    for (Access &a : m.accesses) {
        bool overlaps = a.low < high && low < a.high;
        if (overlaps && (writes || a.writes) && a.stream != op.stream && op.before[a.stream] < a.at)
            return refuse(LAUNCH_FAILED, op.what + (writes ? " writes" : " reads") + " what " + a.what + (a.writes ? " writes" : " reads")
                          + " on another stream, and nothing orders them: " + place(low, m, i->first));
        bool superseded = a.low >= low && a.high <= high && (writes || (!a.writes && a.stream == op.stream));
        if (!superseded && host[a.stream] < a.at) kept.push_back(a);  // what the host has waited for is before all that comes
    }
    kept.push_back({low, high, writes, op.stream, op.at, op.what});
    m.accesses.swap(kept);
    if (writes) m.written_low = std::min(m.written_low, low), m.written_high = std::max(m.written_high, high);
    return OK;
}

API int strict_access(u64 operation, u64 low, u64 size, int writes) { return touch(*(Operation *)operation, low, size, writes, true); }
API void strict_name(u64 operation, const char *name) { ((Operation *)operation)->what = name; }

// --- streams: nothing runs before it has to --------------------------------------------------------------------------

static int run(Stream &s, u64 upto) {
    while (s.done < upto) {
        Operation op = std::move(s.queue.front());
        s.queue.pop_front();
        s.done++;
        int code = failed ? OK : op.run(op);  // nothing runs after a failure
        if (code == NOT_YET) {
            s.queue.push_front(std::move(op));
            s.done--;
            return NOT_YET;
        }
        if (code && !failed) failed = code;
    }
    return OK;
}

static void run_all() {
    std::vector<std::shared_ptr<Stream>> all;
    for (auto &[handle, s] : streams) all.push_back(s);
    for (auto &s : all) run(*s, s->queued);
}

static int gpu_of_current() {
    for (int i = 0; i < gpus; i++)
        if (current == context(i)) return i;
    return -1;
}

static std::shared_ptr<Stream> find_stream(Handle h) {
    u64 number = (u64)h;
    if (number <= 2) number = 2 + 4 * (u64)std::max(gpu_of_current(), 0);  // the default stream of the current GPU
    auto i = streams.find(number);
    if (i != streams.end()) return i->second;
    if (number >= 0x1000) return nullptr;
    auto made = std::make_shared<Stream>();
    made->number = (int)number, made->gpu = (int)(number / 4);
    return streams[number] = made;
}

static int queue(Stream &s, const std::string &what, std::function<int(Operation &)> work) {
    Operation op{what, std::move(work), s.gpu, s.number, 0, {}};
    if (s.capture) {
        if (!s.capture->valid) return refuse(CAPTURE_INVALIDATED, what + " on a stream whose capture is invalid");
        s.capture->nodes.push_back(std::move(op));
        return OK;
    }
    join(s.clock, host);
    op.at = s.clock[s.number] = ++s.queued;
    op.before = s.clock;
    s.queue.push_back(std::move(op));
    changed.notify_all();
    return OK;
}

static int wait_until(Locked &hold, Stream &s, u64 at, const Clock &known) {
    while (!failed && run(s, at) == NOT_YET) changed.wait_for(hold, std::chrono::milliseconds(1));
    if (failed) return failed;
    join(host, known);
    return OK;
}

static int invalidate(Capture &capture, int code, const std::string &why) {
    capture.valid = false;
    return refuse(code, why);
}

// What may not be called while another stream is captured in this mode: 0 global, 1 of this thread, 2 relaxed.
static size_t this_thread() { static thread_local char mark; return (size_t)&mark; }
static int unsafe(const char *what) {
    for (auto &[handle, s] : streams)
        if (s->capture && (s->capture->mode == 0 || (s->capture->mode == 1 && s->capture->thread == this_thread())))
            return invalidate(*s->capture, CAPTURE_UNSUPPORTED, std::string(what) + " while a stream is captured");
    return OK;
}

#define ENTER(what)                                                                              \
    Locked hold(lock);                                                                           \
    if (!initialized) return refuse(NOT_INITIALIZED, what " before cuInit");                     \
    const int gpu = gpu_of_current();                                                            \
    if (gpu < 0) return refuse(INVALID_CONTEXT, what " without a current context in its thread"); \
    if (failed) return failed;
#define STREAM(what)                                                                             \
    auto s = find_stream(stream);                                                                \
    if (!s) return refuse(INVALID_HANDLE, what " on a stream that does not exist");
#define MUST(condition, code, why) \
    if (!(condition)) return refuse(code, why);

API int strict_queue(u64 stream, int number) {
    Locked hold(lock);
    auto s = find_stream((Handle)stream);
    return s ? queue(*s, "a library", [=](Operation &op) { return on_work(number, (u64)&op); }) : INVALID_HANDLE;
}
API long strict_queued(u64 stream) {
    Locked hold(lock);
    return find_stream((Handle)stream)->queued;
}
API int strict_run(u64 stream, u64 upto) {  // whether it has come as far
    Locked hold(lock);
    return run(*find_stream((Handle)stream), upto) != NOT_YET;
}
