// What a kernel's C++ sources register themselves with. The builder compiles them with TORCH_EXTENSION_NAME defined as
// the build's id: the namespace of its operators (torch.ops.<id>) and the name of its Python extension.
#pragma once

#include <Python.h>

// The arguments of TORCH_LIBRARY are pasted, so a macro given as NAME has to be expanded one step earlier.
#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) STABLE_TORCH_LIBRARY(NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) STABLE_TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)

#define KERNELS_TEXT_OF(NAME) #NAME
#define KERNELS_TEXT(NAME) KERNELS_TEXT_OF(NAME)
#define KERNELS_INIT_OF(NAME) PyInit_##NAME
#define KERNELS_INIT(NAME) KERNELS_INIT_OF(NAME)

// An empty Python module: importing it loads the library, and that runs the registrations in it.
#define REGISTER_EXTENSION(NAME)                                                                                \
  PyMODINIT_FUNC KERNELS_INIT(NAME)(void) {                                                                     \
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, KERNELS_TEXT(NAME), nullptr, 0, nullptr, nullptr, \
                                        nullptr, nullptr, nullptr};                                             \
    return PyModule_Create(&module);                                                                            \
  }
