#include "common/config/option_type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "common/base/nearest.h"
#include "common/base/units.h"
#include "common/base/utf8.h"

namespace penstock {
namespace {

constexpr size_t kMaxTextBytes = 4096;

Status Want(std::string what) {
  return Status(Code::kInvalidArgument, fmt::format("want {}", what));
}

Status CheckText(const TextRule& rule, std::string_view text) {
  if (text.empty() && !rule.may_be_empty) return Want("a value that is not empty");
  if (text.size() > kMaxTextBytes) return Want(fmt::format("at most {} bytes", kMaxTextBytes));
  for (std::string_view rest = text; !rest.empty();) {
    const size_t length = Utf8Length(rest);
    if (length == 0) return Want("UTF-8 without control characters");
    rest.remove_prefix(length);
  }
  return rule.check ? rule.check(text) : Status::Ok();
}

std::string_view TrimSpaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::vector<std::string> SplitAtCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.emplace_back(TrimSpaces(text.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

Status SetList(const TextRule& rule, std::span<const std::string> elements,
               std::vector<std::string>* value) {
  for (size_t i = 0; i < elements.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        CheckText(rule, elements[i]).Annotate(fmt::format("element {}", i + 1)));
  }
  value->assign(elements.begin(), elements.end());
  return Status::Ok();
}

Result<int64_t> ParseInteger(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool leading_zero = digits.size() > 1 && digits.front() == '0';
  if (error != std::errc() || end != text.data() + text.size() || leading_zero || text == "-0") {
    return Want("a whole number");
  }
  return number;
}

std::string BytesRule(Range<uint64_t> range) {
  if (range.max >= kMaxOptionBytes) {
    return range.min == 0 ? "" : fmt::format("at least {}", FormatBytes(range.min));
  }
  return fmt::format("{} to {}", FormatBytes(range.min), FormatBytes(range.max));
}

Result<uint64_t> ParseBytesWithin(std::string_view text, Range<uint64_t> range) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
  if (bytes < range.min || bytes > range.max) return Want(BytesRule(range));
  return bytes;
}

}  // namespace

OptionType TextOption(std::string* value, TextRule rule) {
  OptionType type;
  type.placeholder = rule.placeholder;
  type.get = [value] { return *value; };
  type.set = [value, rule = std::move(rule)](std::string_view text) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(rule, text));
    *value = text;
    return Status::Ok();
  };
  return type;
}

OptionType SwitchOption(bool* value) {
  OptionType type;
  type.placeholder = "BOOL";
  type.is_switch = true;
  type.get = [value] { return *value ? "true" : "false"; };
  type.set = [value](std::string_view text) {
    if (text != "true" && text != "false") return Want("true or false");
    *value = text == "true";
    return Status::Ok();
  };
  return type;
}

OptionType IntegerOption(std::function<void(int64_t)> set, std::function<int64_t()> get,
                         Range<int64_t> range) {
  OptionType type;
  type.placeholder = "N";
  type.rule = fmt::format("{} to {}", range.min, range.max);
  type.get = [get = std::move(get)] { return std::to_string(get()); };
  type.set = [set = std::move(set), range](std::string_view text) -> Status {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(text));
    if (number < range.min || number > range.max) {
      return Want(fmt::format("a whole number from {} to {}", range.min, range.max));
    }
    set(number);
    return Status::Ok();
  };
  return type;
}

OptionType BytesOption(uint64_t* value, Range<uint64_t> range) {
  OptionType type;
  type.placeholder = "SIZE";
  type.rule = BytesRule(range);
  type.get = [value] { return FormatBytes(*value); };
  type.set = [value, range](std::string_view text) -> Status {
    PENSTOCK_ASSIGN_OR_RETURN(*value, ParseBytesWithin(text, range));
    return Status::Ok();
  };
  return type;
}

OptionType AutoBytesOption(std::optional<uint64_t>* value, Range<uint64_t> range) {
  OptionType type;
  type.placeholder = "SIZE|auto";
  type.rule = BytesRule(range);
  type.get = [value] { return *value ? FormatBytes(**value) : "auto"; };
  type.set = [value, range](std::string_view text) -> Status {
    if (text == "auto") {
      value->reset();
      return Status::Ok();
    }
    const Result<uint64_t> bytes = ParseBytesWithin(text, range);
    if (!bytes.ok()) {
      return Status(bytes.status().code(), bytes.status().message() + ", or auto");
    }
    *value = *bytes;
    return Status::Ok();
  };
  return type;
}

OptionType DurationOption(Duration* value, Range<Duration> range) {
  OptionType type;
  type.placeholder = "TIME";
  type.rule = fmt::format("{} to {}", FormatDuration(range.min), FormatDuration(range.max));
  type.get = [value] { return FormatDuration(*value); };
  type.set = [value, range, rule = type.rule](std::string_view text) -> Status {
    PENSTOCK_ASSIGN_OR_RETURN(const Duration duration, ParseDuration(text));
    if (duration < range.min || duration > range.max) return Want(rule);
    *value = duration;
    return Status::Ok();
  };
  return type;
}

OptionType ListOption(std::vector<std::string>* value, TextRule rule) {
  OptionType type;
  type.placeholder = rule.placeholder + ",...";
  type.get = [value] { return fmt::format("{}", fmt::join(*value, ",")); };
  type.set = [value, rule](std::string_view text) {
    return SetList(rule, SplitAtCommas(text), value);
  };
  type.set_list = [value, rule = std::move(rule)](std::span<const std::string> elements) {
    return SetList(rule, elements, value);
  };
  return type;
}

OptionType ChoiceOption(std::vector<std::string> words, std::function<void(size_t)> set,
                        std::function<size_t()> get) {
  OptionType type;
  type.placeholder = fmt::format("{}", fmt::join(words, "|"));
  type.get = [words, get = std::move(get)] { return words[get()]; };
  type.set = [words, set = std::move(set)](std::string_view text) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] != text) continue;
      set(i);
      return Status::Ok();
    }
    const std::vector<std::string_view> views(words.begin(), words.end());
    const std::string_view nearest = Nearest(text, views);
    return Want(fmt::format("one of {}{}", fmt::join(words, ", "),
                            nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  };
  return type;
}

}  // namespace penstock
