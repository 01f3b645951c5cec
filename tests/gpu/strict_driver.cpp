// A CUDA driver without a GPU: `libcuda.so.1` for NVIDIA's own bindings. Device memory is host memory.
//
// It is the worst GPU that the rules allow, and it says so when they are broken:
//
//   * Nothing that is queued runs before the host waits for it. So a buffer that is used again too early gives wrong numbers.
//   * Each call is checked as a driver checks it, and what breaks a rule is answered with CUDA's own error code.
//   * Each operation on a stream notes which bytes it reads and writes. Two that touch the same bytes, one of them writing, must be ordered
//     by their stream, an event, or the host (vector clocks); bytes that nothing has written must not be read. Else the operation
//     fails (719), and with it the context, as after a kernel that fails.
//
// Kernels run by a callback (Triton's interpreter, see strict_driver.py), which also reads the arguments' sizes from the binary. What is
// not modelled does not exist: the bindings say that the function is not found.
//
// Handles are numbers that are never used again, so that a stale one is found.

#include "strict_machine.h"

// --- devices, contexts -----------------------------------------------------------------------------------------------

API int cuInit(unsigned) { initialized = true; return OK; }
API int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
API int cuDeviceGetCount(int *count) { MUST(initialized, NOT_INITIALIZED, "cuDeviceGetCount before cuInit"); *count = gpus; return OK; }
API int cuDeviceGet(int *device, int ordinal) {
    MUST(ordinal >= 0 && ordinal < gpus, INVALID_DEVICE, "cuDeviceGet of a GPU that is not there");
    *device = ordinal;
    return OK;
}
API int cuDeviceGetName(char *name, int length, int) { snprintf(name, length, "Strict GPU"); return OK; }
API int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 7, 16); uuid[15] = (char)device; return OK; }
API int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = memory_of_gpu; return OK; }
API int cuDeviceGetAttribute(int *value, int attribute, int) {
    static const std::map<int, int> known = {{1, 1024}, {8, SHARED_UNASKED}, {10, 32}, {12, REGISTERS}, {16, MULTIPROCESSORS}, {38, 1 << 16},
                                             {39, THREADS_OF_MP}, {75, 9}, {76, 0}, {81, SHARED_OF_MP}, {82, REGISTERS}, {97, SHARED_OF_BLOCK}};
    auto i = known.find(attribute);
    MUST(i != known.end(), INVALID_VALUE, "cuDeviceGetAttribute: attribute " + std::to_string(attribute) + " is not modelled");
    *value = i->second;
    return OK;
}
API int cuDevicePrimaryCtxRetain(Handle *made, int device) { *made = as_handle(context(device)); return OK; }
API int cuCtxSetCurrent(Handle given) {
    bool known = !given;
    for (int i = 0; i < gpus; i++) known |= (u64)given == context(i);
    MUST(known, INVALID_CONTEXT, "cuCtxSetCurrent to a context that does not exist");
    current = (u64)given;
    return OK;
}
API int cuCtxGetCurrent(Handle *found) { *found = as_handle(current); return OK; }
API int cuCtxSynchronize() {
    ENTER("cuCtxSynchronize")
    std::vector<std::shared_ptr<Stream>> all;
    for (auto &[handle, s] : streams) if (s->gpu == gpu) all.push_back(s);
    for (auto &s : all) if (int code = wait_until(hold, *s, s->queued, s->clock)) return code;
    return OK;
}
API int cuDeviceCanAccessPeer(int *can, int, int) { *can = 1; return OK; }
API int cuCtxEnablePeerAccess(Handle other, unsigned flags) {
    ENTER("cuCtxEnablePeerAccess")
    for (int i = 0; i < gpus; i++)
        if ((u64)other == context(i)) {
            MUST(i != gpu && !flags, INVALID_VALUE, "cuCtxEnablePeerAccess to itself");
            return peers.insert({gpu, i}).second ? OK : PEER_ALREADY_ENABLED;
        }
    return refuse(INVALID_CONTEXT, "cuCtxEnablePeerAccess to a context that does not exist");
}
API int cuGetErrorName(int code, const char **name) {
    static thread_local char text[40];
    static const std::map<int, const char *> names = {
        {1, "INVALID_VALUE"}, {2, "OUT_OF_MEMORY"}, {3, "NOT_INITIALIZED"}, {101, "INVALID_DEVICE"}, {200, "INVALID_IMAGE"},
        {201, "INVALID_CONTEXT"}, {209, "NO_BINARY_FOR_GPU"}, {400, "INVALID_HANDLE"}, {401, "ILLEGAL_STATE"}, {500, "NOT_FOUND"},
        {600, "NOT_READY"}, {700, "ILLEGAL_ADDRESS"}, {701, "LAUNCH_OUT_OF_RESOURCES"}, {704, "PEER_ACCESS_ALREADY_ENABLED"},
        {716, "MISALIGNED_ADDRESS"}, {719, "LAUNCH_FAILED"}, {720, "COOPERATIVE_LAUNCH_TOO_LARGE"}, {900, "STREAM_CAPTURE_UNSUPPORTED"},
        {901, "STREAM_CAPTURE_INVALIDATED"}, {905, "STREAM_CAPTURE_ISOLATION"}, {907, "CAPTURED_EVENT"},
        {908, "STREAM_CAPTURE_WRONG_THREAD"}};
    auto i = names.find(code);
    snprintf(text, sizeof text, "CUDA_ERROR_%s", i == names.end() ? std::to_string(code).c_str() : i->second);
    *name = text;
    return OK;
}
API int cuGetErrorString(int, const char **text) { *text = "the strict driver's answer"; return OK; }

// --- memory ----------------------------------------------------------------------------------------------------------

static void *map_file(int file, u64 size) { return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0); }

API int cuMemAlloc_v2(u64 *address, size_t size) {
    ENTER("cuMemAlloc")
    if (int code = unsafe("cuMemAlloc")) return code;
    MUST(size, INVALID_VALUE, "cuMemAlloc of 0 bytes");
    u64 used = 0;
    for (auto &[at, m] : memory) used += m.gpu == gpu && !m.opened ? m.size : 0;
    if (used + size > memory_of_gpu) return OUT_OF_MEMORY;
    int file = memfd_create("strict GPU", MFD_CLOEXEC);  // a file, so that other processes can open it
    if (file < 0 || ftruncate(file, (off_t)size)) return OUT_OF_MEMORY;
    void *made = map_file(file, size);
    if (made == MAP_FAILED) { close(file); return OUT_OF_MEMORY; }
    memset(made, 0xAA, std::min<u64>(size, 64 << 20));
    Memory m;
    m.size = size, m.gpu = gpu, m.file = file;
    memory[*address = (u64)made] = m;
    return OK;
}

API int cuMemFree_v2(u64 address) {
    ENTER("cuMemFree")
    if (int code = unsafe("cuMemFree")) return code;
    auto i = memory.find(address);
    MUST(i != memory.end() && !i->second.opened, INVALID_VALUE, "cuMemFree of what is no allocation of this process");
    run_all();  // a driver waits for the GPU here
    i = memory.find(address);
    u64 size = i->second.size;
    close(i->second.file);
    memory.erase(i);
    mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);  // no later allocation has this address
    freed[address] = size;
    return failed;
}

API int cuMemGetAddressRange_v2(u64 *base, size_t *size, u64 address) {
    ENTER("cuMemGetAddressRange")
    auto i = find_memory(address);
    MUST(i != memory.end(), INVALID_VALUE, "cuMemGetAddressRange of what is no memory");
    *base = i->first, *size = i->second.size;
    return OK;
}

API int cuMemHostAlloc(Handle *address, size_t size, unsigned) {
    ENTER("cuMemHostAlloc")
    if (int code = unsafe("cuMemHostAlloc")) return code;
    *address = aligned_alloc(4096, (size + 4095) & ~4095ull);
    pinned[(u64)*address] = size;
    return OK;
}

struct IpcHandle { u64 process, file, size; char rest[40]; };

API int cuIpcGetMemHandle(IpcHandle *handle, u64 address) {
    ENTER("cuIpcGetMemHandle")
    auto i = memory.find(address);
    MUST(i != memory.end() && !i->second.opened, INVALID_VALUE, "cuIpcGetMemHandle of what is no allocation of this process");
    // A real driver gives one, which leads to the granule: to whatever else it has cut out of that.
    MUST(i->second.size % (2u << 20) == 0, INVALID_VALUE, "cuIpcGetMemHandle of less than whole granules of 2 MiB, which other allocations share");
    *handle = {(u64)getpid(), (u64)i->second.file, i->second.size, {}};
    return OK;
}

API int cuIpcOpenMemHandle_v2(u64 *address, IpcHandle handle, unsigned flags) {
    ENTER("cuIpcOpenMemHandle")
    MUST(flags == 1, INVALID_VALUE, "cuIpcOpenMemHandle without CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS");
    MUST(own_handles || handle.process != (u64)getpid(), INVALID_CONTEXT, "cuIpcOpenMemHandle of this process's own memory");
    char path[80];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)handle.process, (unsigned long long)handle.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID_HANDLE;  // its process has ended
    void *made = map_file(file, handle.size);
    Memory m;
    m.size = handle.size, m.gpu = gpu, m.file = file, m.opened = true;
    memory[*address = (u64)made] = m;
    return OK;
}

API int cuIpcCloseMemHandle(u64 address) {
    ENTER("cuIpcCloseMemHandle")
    auto i = memory.find(address);
    MUST(i != memory.end() && i->second.opened, INVALID_VALUE, "cuIpcCloseMemHandle of what was not opened");
    run_all();
    i = memory.find(address);
    u64 size = i->second.size;
    close(i->second.file);
    memory.erase(i);
    mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    freed[address] = size;
    return failed;
}

// --- copies ----------------------------------------------------------------------------------------------------------

// A copy between the host and a GPU must not be captured: its graph would read or write a buffer that others use by then.
#define HOST_COPY(what, host_address)                                                                               \
    ENTER(what) STREAM(what)                                                                                        \
    MUST(is_pinned(host_address, size), INVALID_VALUE, what ": the host's side is not pinned, so the thread may wait"); \
    if (s->capture) return invalidate(*s->capture, CAPTURE_UNSUPPORTED, what " on a captured stream");

API int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t size, Handle stream) {
    HOST_COPY("cuMemcpyHtoDAsync", from)
    MUST(holds(to, size), INVALID_VALUE, "cuMemcpyHtoDAsync to what is no memory of a GPU");
    return queue(*s, "a copy to the GPU", [=](Operation &op) {
        int code = touch(op, to, size, true, false);
        if (!code) memcpy((void *)to, from, size);
        return code;
    });
}

API int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t size, Handle stream) {
    HOST_COPY("cuMemcpyDtoHAsync", to)
    MUST(holds(from, size), INVALID_VALUE, "cuMemcpyDtoHAsync from what is no memory of a GPU");
    return queue(*s, "a copy to the host", [=](Operation &op) {
        int code = touch(op, from, size, false, false);
        if (!code) memcpy(to, (void *)from, size);
        return code;
    });
}

API int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, Handle stream) {
    ENTER("cuMemcpyDtoDAsync") STREAM("cuMemcpyDtoDAsync")
    MUST(holds(to, size) && holds(from, size), INVALID_VALUE, "cuMemcpyDtoDAsync between what is no memory of a GPU");
    return queue(*s, "a copy on the GPU", [=](Operation &op) {
        int code = touch(op, from, size, false, false);
        if (!code) code = touch(op, to, size, true, false);
        if (!code) memmove((void *)to, (void *)from, size);
        return code;
    });
}

API int cuMemcpyPeerAsync(u64 to, Handle, u64 from, Handle, size_t size, Handle stream) { return cuMemcpyDtoDAsync_v2(to, from, size, stream); }

API int cuMemsetD8Async(u64 to, unsigned char value, size_t size, Handle stream) {
    ENTER("cuMemsetD8Async") STREAM("cuMemsetD8Async")
    MUST(holds(to, size), INVALID_VALUE, "cuMemsetD8Async of what is no memory of a GPU");
    return queue(*s, "a memset", [=](Operation &op) {
        int code = touch(op, to, size, true, false);
        if (!code) memset((void *)to, value, size);
        return code;
    });
}

// --- streams, events -------------------------------------------------------------------------------------------------

API int cuStreamCreate(Handle *made, unsigned flags) {
    ENTER("cuStreamCreate")
    MUST(flags <= 1, INVALID_VALUE, "cuStreamCreate with unknown flags");
    auto s = std::make_shared<Stream>();
    u64 handle = fresh();
    s->number = (int)handle, s->gpu = gpu;
    streams[handle] = s;
    *made = as_handle(handle);
    return OK;
}

API int cuStreamSynchronize(Handle stream) {
    ENTER("cuStreamSynchronize") STREAM("cuStreamSynchronize")
    if (s->capture) return invalidate(*s->capture, CAPTURE_UNSUPPORTED, "cuStreamSynchronize of a captured stream");
    return wait_until(hold, *s, s->queued, Clock(s->clock));
}

API int cuStreamWaitEvent(Handle stream, Handle event, unsigned) {
    ENTER("cuStreamWaitEvent") STREAM("cuStreamWaitEvent")
    auto i = events.find((u64)event);
    MUST(i != events.end(), INVALID_HANDLE, "cuStreamWaitEvent for an event that does not exist");
    Event &e = *i->second;
    if (s->capture && e.stream && e.capture != s->capture)
        return invalidate(*s->capture, CAPTURE_ISOLATION, "cuStreamWaitEvent: a captured stream waits for what is outside of its capture");
    if (!s->capture && e.capture)
        return invalidate(*e.capture, CAPTURE_ISOLATION, "cuStreamWaitEvent: a stream that is not captured waits for what is captured");
    if (s->capture || !e.stream) return OK;
    join(s->clock, e.clock);
    auto other = e.stream;
    u64 at = e.at;
    return queue(*s, "a wait", [=](Operation &) { return run(*other, at); });
}

API int cuEventCreate(Handle *made, unsigned flags) {
    ENTER("cuEventCreate")
    u64 handle = fresh();
    events[handle] = std::make_shared<Event>();
    events[handle]->gpu = gpu, events[handle]->flags = flags;
    *made = as_handle(handle);
    return OK;
}

API int cuEventDestroy_v2(Handle event) {
    ENTER("cuEventDestroy")
    MUST(events.erase((u64)event), INVALID_HANDLE, "cuEventDestroy of an event that does not exist");
    return OK;
}

API int cuEventRecord(Handle event, Handle stream) {
    ENTER("cuEventRecord") STREAM("cuEventRecord")
    auto i = events.find((u64)event);
    MUST(i != events.end(), INVALID_HANDLE, "cuEventRecord of an event that does not exist");
    Event &e = *i->second;
    MUST(e.gpu == s->gpu, INVALID_HANDLE, "cuEventRecord of an event of another GPU");
    e.stream = s, e.capture = s->capture, e.at = s->queued, e.asked = 0, e.clock = s->clock;
    return OK;
}

#define EVENT(what)                                                                                     \
    auto i = events.find((u64)event);                                                                   \
    MUST(i != events.end(), INVALID_HANDLE, what " of an event that does not exist");                   \
    auto e = i->second;                                                                                 \
    if (e->capture) return invalidate(*e->capture, CAPTURED_EVENT, what " of an event that is captured");

API int cuEventSynchronize(Handle event) {
    ENTER("cuEventSynchronize") EVENT("cuEventSynchronize")
    return e->stream ? wait_until(hold, *e->stream, e->at, e->clock) : OK;
}

API int cuEventQuery(Handle event) {
    ENTER("cuEventQuery") EVENT("cuEventQuery")
    if (!e->stream) return OK;
    if (patience >= 0 && ++e->asked > patience) run(*e->stream, e->at);
    if (failed) return failed;
    if (e->stream->done < e->at) return NOT_READY;
    join(host, e->clock);
    return OK;
}

API int cuEventElapsedTime_v2(float *milliseconds, Handle first, Handle last) {
    ENTER("cuEventElapsedTime")
    auto a = events.find((u64)first), b = events.find((u64)last);
    MUST(a != events.end() && b != events.end(), INVALID_HANDLE, "cuEventElapsedTime of an event that does not exist");
    for (auto &e : {a->second, b->second}) {
        MUST(!(e->flags & 2), INVALID_HANDLE, "cuEventElapsedTime of an event that was made without timing");
        MUST(e->stream, INVALID_HANDLE, "cuEventElapsedTime of an event that was not recorded");
        if (e->stream->done < e->at) return NOT_READY;
    }
    *milliseconds = 0.5f * ((float)b->second->at - (float)a->second->at);  // each operation takes as long
    return OK;
}
API int cuEventElapsedTime(float *milliseconds, Handle first, Handle last) { return cuEventElapsedTime_v2(milliseconds, first, last); }

// --- kernels ---------------------------------------------------------------------------------------------------------

API int cuModuleLoadData(Handle *made, const void *image) {
    ENTER("cuModuleLoadData")
    int number = load_image(image);
    MUST(number >= 0, -number, "cuModuleLoadData of what is no binary for this GPU");
    u64 handle = fresh();
    modules[handle] = number, module_gpu[handle] = gpu;
    *made = as_handle(handle);
    return OK;
}

API int cuModuleGetFunction(Handle *made, Handle module, const char *name) {
    ENTER("cuModuleGetFunction")
    auto i = modules.find((u64)module);
    MUST(i != modules.end(), INVALID_HANDLE, "cuModuleGetFunction of a module that does not exist");
    u64 handle = fresh();
    auto f = functions[handle] = std::make_shared<Function>();
    f->gpu = module_gpu[i->first];
    f->id = find_function(i->second, name, handle);
    MUST(f->id >= 0, NOT_FOUND, std::string("cuModuleGetFunction: the binary has no function ") + name);
    *made = as_handle(handle);
    return OK;
}

API int cuFuncSetAttribute(Handle function, int attribute, int value) {
    ENTER("cuFuncSetAttribute")
    auto i = functions.find((u64)function);
    MUST(i != functions.end(), INVALID_HANDLE, "cuFuncSetAttribute of a function that does not exist");
    MUST(attribute == 8, INVALID_VALUE, "cuFuncSetAttribute: only the most dynamic shared memory is modelled");
    MUST(value >= 0 && value <= SHARED_OF_BLOCK, INVALID_VALUE,
         "cuFuncSetAttribute: " + std::to_string(value) + " bytes of shared memory, and a block has at most " + std::to_string(SHARED_OF_BLOCK));
    i->second->shared = value;
    return OK;
}

static int launch(Handle function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle stream,
                  void **parameters, void **extra, bool cooperative) {
    ENTER("cuLaunchKernel") STREAM("cuLaunchKernel")
    auto i = functions.find((u64)function);
    MUST(i != functions.end(), INVALID_HANDLE, "cuLaunchKernel of a function that does not exist");
    auto f = i->second;
    MUST(f->gpu == gpu && s->gpu == gpu, INVALID_HANDLE, "cuLaunchKernel: function, stream and current context are not of one GPU");
    MUST(x && y && z, INVALID_VALUE, "cuLaunchKernel of an empty grid");
    MUST(x <= 2147483647u && y <= 65535 && z <= 65535, INVALID_VALUE, "cuLaunchKernel of too large a grid");
    const unsigned long long threads = 1ull * bx * by * bz;
    MUST(threads && threads <= 1024, INVALID_VALUE, "cuLaunchKernel: a block has 1 to 1024 threads");
    MUST((int)shared <= f->shared, INVALID_VALUE, "cuLaunchKernel with more shared memory than was asked for");
    MUST(f->registers * (int)threads <= REGISTERS, LAUNCH_OUT_OF_RESOURCES, "cuLaunchKernel: the block's registers are more than there are");
    MUST(parameters && !extra, INVALID_VALUE, "cuLaunchKernel wants the addresses of the arguments");
    if (cooperative) {
        int blocks = std::min<int>(THREADS_OF_MP / (int)threads, SHARED_OF_MP / ((int)shared + 1024));
        if (f->registers) blocks = std::min(blocks, REGISTERS / (f->registers * (int)threads));
        MUST(1ull * x * y * z <= 1ull * blocks * MULTIPROCESSORS, COOPERATIVE_TOO_LARGE, "cuLaunchCooperativeKernel: not all blocks run at the same time");
    }
    size_t total = f->offsets.empty() ? 0 : f->offsets.back() + f->sizes.back();
    auto copy = std::make_shared<std::vector<char>>(total + 8);  // a driver copies the arguments, as many bytes as the binary says
    for (size_t n = 0; n < f->offsets.size(); n++) memcpy(copy->data() + f->offsets[n], parameters[n], f->sizes[n]);
    return queue(*s, "a kernel", [=](Operation &op) { return execute(f->id, (u64)&op, x, y, z, (unsigned)threads, shared, copy->data()); });
}

API int cuLaunchKernel(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle stream, void **parameters, void **extra) {
    return launch(f, x, y, z, bx, by, bz, shared, stream, parameters, extra, false);
}
API int cuLaunchCooperativeKernel(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle stream, void **parameters) {
    return launch(f, x, y, z, bx, by, bz, shared, stream, parameters, nullptr, true);
}

// --- graphs ----------------------------------------------------------------------------------------------------------

API int cuStreamBeginCapture_v2(Handle stream, int mode) {
    ENTER("cuStreamBeginCapture") STREAM("cuStreamBeginCapture")
    MUST((u64)stream > 2, CAPTURE_UNSUPPORTED, "cuStreamBeginCapture of the default stream");
    MUST(!s->capture, ILLEGAL_STATE, "cuStreamBeginCapture of a stream that is captured already");
    s->capture = std::make_shared<Capture>();
    s->capture->mode = mode, s->capture->thread = this_thread();
    return OK;
}

API int cuStreamEndCapture(Handle stream, Handle *made) {
    ENTER("cuStreamEndCapture") STREAM("cuStreamEndCapture")
    *made = nullptr;
    MUST(s->capture, ILLEGAL_STATE, "cuStreamEndCapture of a stream that is not captured");
    MUST(s->capture->mode == 2 || s->capture->thread == this_thread(), CAPTURE_WRONG_THREAD, "cuStreamEndCapture in another thread");
    auto capture = s->capture;
    s->capture = nullptr;
    if (!capture->valid) return CAPTURE_INVALIDATED;  // it was told before why
    for (auto &[handle, e] : events)
        if (e->capture == capture) e->capture = nullptr, e->stream = nullptr;
    u64 handle = fresh();
    graphs[handle] = capture;
    *made = as_handle(handle);
    return OK;
}

API int cuGraphInstantiateWithFlags(Handle *made, Handle graph, unsigned long long) {
    ENTER("cuGraphInstantiate")
    auto i = graphs.find((u64)graph);
    MUST(i != graphs.end(), INVALID_HANDLE, "cuGraphInstantiate of a graph that does not exist");
    u64 handle = fresh();
    executables[handle] = i->second;
    *made = as_handle(handle);
    return OK;
}
API int cuGraphDestroy(Handle graph) {
    Locked hold(lock);
    MUST(graphs.erase((u64)graph), INVALID_HANDLE, "cuGraphDestroy of a graph that does not exist");
    return OK;
}
API int cuGraphExecDestroy(Handle graph) {
    Locked hold(lock);
    executables.erase((u64)graph);  // the last ones go when Python ends, maybe after their driver
    return OK;
}
API int cuGraphLaunch(Handle graph, Handle stream) {
    ENTER("cuGraphLaunch") STREAM("cuGraphLaunch")
    auto i = executables.find((u64)graph);
    MUST(i != executables.end(), INVALID_HANDLE, "cuGraphLaunch of a graph that does not exist");
    MUST(!s->capture, CAPTURE_UNSUPPORTED, "cuGraphLaunch on a captured stream");
    auto nodes = i->second->nodes;
    for (auto &node : nodes) queue(*s, node.what, node.run);
    return OK;
}

// --- how the bindings find all this ----------------------------------------------------------------------------------

API int cuGetProcAddress_v2(const char *symbol, void **found, int, u64, int *status) {
    static void *self = nullptr;
    if (!self) {
        Dl_info info;
        dladdr((void *)cuInit, &info);
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    std::string name = !strcmp(symbol, "cuGraphInstantiate") ? "cuGraphInstantiateWithFlags" : symbol;
    *found = dlsym(self, (name + "_v2").c_str());
    if (!*found) *found = dlsym(self, name.c_str());
    if (status) *status = *found ? 0 : 1;
    return *found ? OK : NOT_FOUND;
}
API int cuGetProcAddress(const char *symbol, void **found, int version, u64 flags) { return cuGetProcAddress_v2(symbol, found, version, flags, nullptr); }
