// What a kernel's C++ sources register themselves with. The builder compiles them with TORCH_EXTENSION_NAME defined as
// the build's id: the namespace of its operators (torch.ops.<id>) and the name of its Python extension.
#pragma once

#include "older_glibc.h"

#if __has_include(<Python.h>)
#include <Python.h>
#else
// A machine with a compiler often has Python without its headers. The little that REGISTER_EXTENSION needs is part of
// Python's stable ABI, whose layout does not change (PEP 384; `Include/moduleobject.h`).
#include <cstddef>

extern "C" {
struct _object {  // so named in Python's headers and in Torch's stub of them
  std::ptrdiff_t ob_refcnt;
  void* ob_type;
};
using PyObject = _object;
struct PyModuleDef_Base {
  PyObject ob_base;
  PyObject* (*m_init)();
  std::ptrdiff_t m_index;
  PyObject* m_copy;
};
struct PyModuleDef {
  PyModuleDef_Base m_base;
  const char* m_name;
  const char* m_doc;
  std::ptrdiff_t m_size;
  void *m_methods, *m_slots, *m_traverse, *m_clear, *m_free;
};
PyObject* PyModule_Create2(PyModuleDef*, int);
}

// clang-format off
#define PyModuleDef_HEAD_INIT {{1, nullptr}, nullptr, 0, nullptr}
// clang-format on
#define PyModule_Create(MODULE) PyModule_Create2(MODULE, 3)  // 3: the version of the stable ABI
#ifdef _WIN32
#define PyMODINIT_FUNC extern "C" __declspec(dllexport) PyObject*
#else
#define PyMODINIT_FUNC extern "C" __attribute__((visibility("default"))) PyObject*
#endif
#endif

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
