// The types of options. Each function ties a variable of the program to a way of reading it: the
// variable's value at that moment is the default.
//
// Every rule is exact: no leading or trailing text, no guessing between units, no silent cutting to
// a range. Errors (kInvalidArgument) say what was expected; the option table adds which option, the
// value and where it came from.

#ifndef PENSTOCK_COMMON_CONFIG_OPTION_TYPE_H_
#define PENSTOCK_COMMON_CONFIG_OPTION_TYPE_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/status.h"

namespace penstock {

struct OptionType {
  std::string placeholder;  // In the help text: "SIZE".
  std::string rule;         // In the help text: "1MiB to 4GiB"; may be empty.
  bool is_switch = false;   // As a flag, the name alone means true.
  // Both change the variable only when they return OK.
  std::function<Status(std::string_view)> set;
  std::function<Status(std::span<const std::string>)> set_list;  // Empty: not a list.
  std::function<std::string()> get;                              // The value, as `set` reads it.
};

struct TextRule {
  std::string placeholder = "TEXT";
  bool may_be_empty = false;
  // Further demands; the message of its error says what is wanted.
  std::function<Status(std::string_view)> check;
};
// UTF-8 without control characters, at most 4,096 bytes.
OptionType TextOption(std::string* value, TextRule rule = {});

// "true" or "false".
OptionType SwitchOption(bool* value);

template <typename T>
struct Range {
  T min;
  T max;
};

// Decimal digits, with a minus sign where the range allows it; no leading zeros.
OptionType IntegerOption(std::function<void(int64_t)> set, std::function<int64_t()> get,
                         Range<int64_t> range);
template <std::integral T>
OptionType IntegerOption(T* value, Range<T> range) {
  return IntegerOption(
      [value](int64_t n) { *value = static_cast<T>(n); },
      [value] { return static_cast<int64_t>(*value); },
      Range<int64_t>{static_cast<int64_t>(range.min), static_cast<int64_t>(range.max)});
}

inline constexpr uint64_t kMaxOptionBytes = std::numeric_limits<int64_t>::max();

// ParseBytes() of common/base/units.h.
OptionType BytesOption(uint64_t* value, Range<uint64_t> range = {0, kMaxOptionBytes});
// The same, or "auto" for an empty value: the program chooses.
OptionType AutoBytesOption(std::optional<uint64_t>* value,
                           Range<uint64_t> range = {0, kMaxOptionBytes});

// ParseDuration() of common/base/units.h.
OptionType DurationOption(Duration* value,
                          Range<Duration> range = {Duration::zero(), Deadline::kMax});

// A YAML sequence, or elements separated by commas. Elements follow `rule`; spaces around them are
// dropped. An empty list can only be written in YAML, as [].
OptionType ListOption(std::vector<std::string>* value, TextRule rule = {});

// One of some words.
OptionType ChoiceOption(std::vector<std::string> words, std::function<void(size_t)> set,
                        std::function<size_t()> get);
template <typename E>
OptionType ChoiceOption(E* value, const std::vector<std::pair<std::string, E>>& choices) {
  std::vector<std::string> words;
  std::vector<E> values;
  for (const auto& [word, v] : choices) {
    words.push_back(word);
    values.push_back(v);
  }
  return ChoiceOption(
      std::move(words), [value, values](size_t i) { *value = values[i]; },
      [value, values] {
        size_t i = 0;
        while (i + 1 < values.size() && values[i] != *value) ++i;
        return i;
      });
}

}  // namespace penstock

#endif  // PENSTOCK_COMMON_CONFIG_OPTION_TYPE_H_
