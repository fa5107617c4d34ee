// WithoutGil: runs something that may block while other Python threads go on.
//
// Not pybind11's gil_scoped_release: taking the lock back ends a daemon thread when the interpreter
// is shutting down, by unwinding its stack, and that must not happen inside of a destructor.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_GIL_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_GIL_H_

#include <pybind11/pybind11.h>

#include <type_traits>
#include <utility>

namespace penstock::python {

// REQUIRES: the calling thread holds the GIL, and `call` throws nothing and touches no Python
// object.
template <typename Call>
auto WithoutGil(Call&& call) {
  PyThreadState* const thread = PyEval_SaveThread();
  if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
    std::forward<Call>(call)();
    PyEval_RestoreThread(thread);
  } else {
    auto result = std::forward<Call>(call)();
    PyEval_RestoreThread(thread);
    return result;
  }
}

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_GIL_H_
