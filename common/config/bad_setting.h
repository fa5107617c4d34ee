// Bad(): what every source of settings answers to a value it cannot take.

#ifndef PENSTOCK_COMMON_CONFIG_BAD_SETTING_H_
#define PENSTOCK_COMMON_CONFIG_BAD_SETTING_H_

#include <string>
#include <utility>

#include "common/base/status.h"

namespace penstock::internal {

inline Status Bad(std::string what) { return Status(Code::kInvalidArgument, std::move(what)); }

}  // namespace penstock::internal

#endif  // PENSTOCK_COMMON_CONFIG_BAD_SETTING_H_
