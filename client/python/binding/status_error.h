// StatusError: a Status on its way to Python, where it becomes a penstock.PenstockError.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_STATUS_ERROR_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_STATUS_ERROR_H_

#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace penstock::python {

class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)), text_(status_.ToString()) {}
  StatusError(Code code, std::string message) : StatusError(Status(code, std::move(message))) {}

  const Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Status status_;
  std::string text_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}
template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return std::move(result).value();
}

// Makes StatusErrors arrive in Python as what penstock._status.make_error() returns.
void RegisterStatusError();

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_STATUS_ERROR_H_
