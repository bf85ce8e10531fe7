/* Every CUresult as X(code, name, meaning): what the simulated driver calls it. */
#ifndef CUDRIVER_CUDA_ERRORS_H
#define CUDRIVER_CUDA_ERRORS_H

/* clang-format off */
#define CUDRIVER_ERRORS(X) \
    X(0, CUDA_SUCCESS, "the call succeeded") \
    X(1, CUDA_ERROR_INVALID_VALUE, "a parameter is outside the acceptable range") \
    X(2, CUDA_ERROR_OUT_OF_MEMORY, "not enough memory (host, device, or address space) for the operation") \
    X(3, CUDA_ERROR_NOT_INITIALIZED, "driver not initialised: cuInit not called or failed") \
    X(4, CUDA_ERROR_DEINITIALIZED, "driver is shutting down") \
    X(5, CUDA_ERROR_PROFILER_DISABLED, "profiler not initialised for this run (visual profiler attached)") \
    X(6, CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialised (deprecated)") \
    X(7, CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started (deprecated)") \
    X(8, CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped (deprecated)") \
    X(34, CUDA_ERROR_STUB_LIBRARY, "the loaded libcuda is the toolkit's link-time stub, not the driver") \
    X(36, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "the call needs a driver newer than the one installed") \
    X(46, CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is unavailable now (busy, its compute mode, or permission)") \
    X(47, CUDA_ERROR_MULTICAST_RESOURCE_FULL, "the hardware resource for binding memory to a multicast object is exhausted") \
    X(100, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device was detected") \
    X(101, CUDA_ERROR_INVALID_DEVICE, "the device ordinal is not valid, or the action is not valid for the device") \
    X(102, CUDA_ERROR_DEVICE_NOT_LICENSED, "the device has no valid grid licence") \
    X(200, CUDA_ERROR_INVALID_IMAGE, "the device kernel image (module) is not valid") \
    X(201, CUDA_ERROR_INVALID_CONTEXT, "no valid current context, or the context handle is invalid") \
    X(202, CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current (deprecated)") \
    X(205, CUDA_ERROR_MAP_FAILED, "map or register of a resource failed") \
    X(206, CUDA_ERROR_UNMAP_FAILED, "unmap or unregister of a resource failed") \
    X(207, CUDA_ERROR_ARRAY_IS_MAPPED, "the array is mapped and cannot be destroyed") \
    X(208, CUDA_ERROR_ALREADY_MAPPED, "the resource is already mapped") \
    X(209, CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image in the module for this GPU") \
    X(210, CUDA_ERROR_ALREADY_ACQUIRED, "the resource is already acquired") \
    X(211, CUDA_ERROR_NOT_MAPPED, "the resource is not mapped") \
    X(212, CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "the mapped resource is not accessible as an array") \
    X(213, CUDA_ERROR_NOT_MAPPED_AS_POINTER, "the mapped resource is not accessible as a pointer") \
    X(214, CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error seen during execution") \
    X(215, CUDA_ERROR_UNSUPPORTED_LIMIT, "the CUlimit is not supported by the device") \
    X(216, CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "the context is already bound to a CPU thread") \
    X(217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access between these devices is not supported") \
    X(218, CUDA_ERROR_INVALID_PTX, "PTX JIT compilation failed") \
    X(219, CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "OpenGL or DirectX context error") \
    X(220, CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error during execution") \
    X(221, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "the PTX JIT compiler library was not found") \
    X(222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the PTX was made by a toolchain newer than the driver's JIT supports") \
    X(223, CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation is disabled") \
    X(224, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the execution-affinity type is not supported by the device") \
    X(225, CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "PTX to be JIT-compiled calls cudaDeviceSynchronize, which is unsupported") \
    X(226, CUDA_ERROR_CONTAINED, "an exception on the device was contained by GPU error containment") \
    X(227, CUDA_ERROR_INSUFFICIENT_LOADER_VERSION, "the driver's loader is too old for this fatbin") \
    X(300, CUDA_ERROR_INVALID_SOURCE, "the kernel source is invalid") \
    X(301, CUDA_ERROR_FILE_NOT_FOUND, "file not found") \
    X(302, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "a link to a shared object did not resolve") \
    X(303, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "a shared object failed to initialise") \
    X(304, CUDA_ERROR_OPERATING_SYSTEM, "an operating-system call failed") \
    X(400, CUDA_ERROR_INVALID_HANDLE, "a resource handle is not valid") \
    X(401, CUDA_ERROR_ILLEGAL_STATE, "a resource is not in a valid state for the operation") \
    X(402, CUDA_ERROR_LOSSY_QUERY, "an introspection would lose semantically important information") \
    X(500, CUDA_ERROR_NOT_FOUND, "a named symbol (function, global, texture) was not found") \
    X(600, CUDA_ERROR_NOT_READY, "asynchronous work issued earlier is not complete (not an error by itself)") \
    X(700, CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel load or store used an invalid address; the context is unusable") \
    X(701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "launch refused: not enough resources (registers, threads)") \
    X(702, CUDA_ERROR_LAUNCH_TIMEOUT, "the kernel ran past the watchdog; the context is unusable") \
    X(703, CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses an incompatible texturing mode") \
    X(704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled") \
    X(705, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled") \
    X(708, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is already initialised") \
    X(709, CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context is destroyed or is an uninitialised primary context") \
    X(710, CUDA_ERROR_ASSERT, "a device-side assert fired; the context is unusable") \
    X(711, CUDA_ERROR_TOO_MANY_PEERS, "the resources for peer access are exhausted") \
    X(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host range is already registered") \
    X(713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host pointer is not a registered region") \
    X(714, CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error; the context is unusable") \
    X(715, CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal instruction; the context is unusable") \
    X(716, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address; the context is unusable") \
    X(717, CUDA_ERROR_INVALID_ADDRESS_SPACE, "instruction used an address space it cannot; the context is unusable") \
    X(718, CUDA_ERROR_INVALID_PC, "the program counter wrapped; the context is unusable") \
    X(719, CUDA_ERROR_LAUNCH_FAILED, "exception during kernel execution; the context is unusable") \
    X(720, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "a cooperative launch has more blocks than fit") \
    X(721, CUDA_ERROR_TENSOR_MEMORY_LEAK, "a kernel ended without freeing its tensor memory") \
    X(800, CUDA_ERROR_NOT_PERMITTED, "the operation is not permitted") \
    X(801, CUDA_ERROR_NOT_SUPPORTED, "the operation is not supported on this system or device") \
    X(802, CUDA_ERROR_SYSTEM_NOT_READY, "the system is not ready for CUDA work (e.g. fabric manager / NVSwitch not up)") \
    X(803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "display driver and CUDA driver (libcuda) versions do not match") \
    X(804, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward-compatibility libcuda is in use but the visible hardware does not support it") \
    X(805, CUDA_ERROR_MPS_CONNECTION_FAILED, "the MPS client could not connect to the MPS daemon or server") \
    X(806, CUDA_ERROR_MPS_RPC_FAILURE, "the MPS RPC failed") \
    X(807, CUDA_ERROR_MPS_SERVER_NOT_READY, "the MPS server is not ready for new clients") \
    X(808, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "no resources left for an MPS client") \
    X(809, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "no resources left for an MPS device connection") \
    X(810, CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client was terminated by the server") \
    X(811, CUDA_ERROR_CDP_NOT_SUPPORTED, "the module uses dynamic parallelism that this configuration does not support") \
    X(812, CUDA_ERROR_CDP_VERSION_MISMATCH, "the module mixes incompatible versions of dynamic parallelism") \
    X(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted while the stream is capturing") \
    X(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated by an earlier error") \
    X(902, CUDA_ERROR_STREAM_CAPTURE_MERGE, "would merge two independent captures") \
    X(903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was not begun in this stream") \
    X(904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "the capture has a fork not joined to the origin stream") \
    X(905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a dependency would cross the capture boundary") \
    X(906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "disallowed implicit dependency on a capture (legacy stream)") \
    X(907, CUDA_ERROR_CAPTURED_EVENT, "not permitted on an event last recorded in a capturing stream") \
    X(908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "capture ended from another thread in a non-relaxed mode") \
    X(909, CUDA_ERROR_TIMEOUT, "the wait timed out") \
    X(910, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update violates instantiated-graph constraints") \
    X(911, CUDA_ERROR_EXTERNAL_DEVICE, "an error in a device outside the GPU") \
    X(912, CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster launch misconfigured") \
    X(913, CUDA_ERROR_FUNCTION_NOT_LOADED, "the function handle is not loaded") \
    X(914, CUDA_ERROR_INVALID_RESOURCE_TYPE, "a resource is not of a valid type") \
    X(915, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "resources are insufficient or not applicable") \
    X(916, CUDA_ERROR_KEY_ROTATION, "key-rotation sequence failed") \
    X(917, CUDA_ERROR_STREAM_DETACHED, "not permitted: the stream is detached") \
    X(918, CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, "graph recapture failed") \
    X(919, CUDA_ERROR_FABRIC_NOT_READY, "the GPU fabric is not ready yet; the call may be tried again") \
    X(999, CUDA_ERROR_UNKNOWN, "unknown internal error")
/* clang-format on */

#endif
