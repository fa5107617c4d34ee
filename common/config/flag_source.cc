#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/base/utf8.h"
#include "common/config/assignment.h"
#include "common/config/bad_setting.h"

namespace penstock::internal {

std::string Printable(std::string_view value) {
  constexpr size_t kShown = 64;
  std::string out;
  std::string_view rest = value.substr(0, kShown);
  while (!rest.empty()) {
    const size_t length = Utf8Length(rest);
    out += length > 0 ? rest.substr(0, length) : "?";
    rest.remove_prefix(std::max<size_t>(1, length));
  }
  if (value.size() > kShown) out += "...";
  return out;
}

std::string QuoteValue(std::string_view value) { return fmt::format("\"{}\"", Printable(value)); }

Result<std::vector<Assignment>> ReadFlags(
    std::span<const std::string> args,
    const std::function<bool(std::string_view name)>& is_switch) {
  std::vector<Assignment> found;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    if (!arg.starts_with("--") || arg.size() < 3) {
      return Bad(
          fmt::format("argument {} is no option; options are --name=value", QuoteValue(arg)));
    }
    Assignment a;
    const size_t equals = arg.find('=');
    a.written = arg.substr(0, equals);
    a.source = fmt::format("flag {}", Printable(a.written));
    a.name = a.written.substr(2);
    std::ranges::replace(a.name, '-', '_');
    if (equals != std::string_view::npos) {
      a.values.emplace_back(arg.substr(equals + 1));
    } else if (is_switch(a.name)) {
      a.values.emplace_back("true");
    } else if (i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      a.values.push_back(args[++i]);
    } else {
      return Bad(fmt::format("{} has no value", a.source));
    }
    const auto twice =
        std::ranges::find_if(found, [&](const Assignment& b) { return b.name == a.name; });
    if (twice != found.end()) return Bad(fmt::format("{} is given twice", a.source));
    found.push_back(std::move(a));
  }
  return found;
}

}  // namespace penstock::internal
