// The YAML file as a source of configuration. yaml-cpp throws; nothing that it throws leaves this
// file.

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "common/config/assignment.h"
#include "common/config/bad_setting.h"

namespace penstock::internal {
namespace {

constexpr size_t kMaxFileBytes = 1u << 20;
constexpr size_t kMaxAssignments = 4096;
constexpr int kMaxDepth = 8;

Result<std::string> ReadFile(const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "re"));
  if (!file) return Bad(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  std::string text(kMaxFileBytes + 1, '\0');
  const size_t size = std::fread(text.data(), 1, text.size(), file.get());
  if (std::ferror(file.get()) != 0) {
    return Bad(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  if (size > kMaxFileBytes) return Bad(fmt::format("{} is larger than 1MiB", path));
  text.resize(size);
  return text;
}

// Walks the document and collects what its leaves say.
class Flattener {
 public:
  explicit Flattener(std::string path) : path_(std::move(path)) {}

  Status Walk(const YAML::Node& map, const std::string& prefix, int depth) {
    if (depth > kMaxDepth) return Bad(fmt::format("{}: nested too deeply", At(map)));
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) return Bad(fmt::format("{}: a key is no word", At(map)));
      const std::string name = prefix + entry.first.Scalar();
      PENSTOCK_RETURN_IF_ERROR(First(name, At(entry.first)));
      if (entry.second.IsMap()) {
        PENSTOCK_RETURN_IF_ERROR(Walk(entry.second, name + ".", depth + 1));
      } else {
        PENSTOCK_RETURN_IF_ERROR(Leaf(name, At(entry.first), entry.second));
      }
    }
    return Status::Ok();
  }

  std::vector<Assignment> Release() { return std::move(found_); }

 private:
  std::string At(const YAML::Node& node) const {
    return fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  // yaml-cpp keeps both of two equal keys, settings and sections alike.
  Status First(const std::string& name, const std::string& at) {
    const auto [first, is_new] = first_at_.emplace(name, at);
    if (is_new) return Status::Ok();
    return Bad(
        fmt::format("{}: {} is given twice, first at {}", at, QuoteValue(name), first->second));
  }

  Status Leaf(const std::string& name, const std::string& at, const YAML::Node& node) {
    Assignment a{.name = name, .written = name, .source = at};
    if (node.IsScalar()) {
      a.values.push_back(node.Scalar());
    } else if (node.IsSequence()) {
      a.is_list = true;
      for (const YAML::Node& element : node) {
        if (!element.IsScalar()) {
          return Bad(fmt::format("{}: {}: an element of the list is no single value", at,
                                 QuoteValue(name)));
        }
        a.values.push_back(element.Scalar());
      }
    } else {
      a.no_value = true;
    }
    found_.push_back(std::move(a));
    return found_.size() <= kMaxAssignments ? Status::Ok() : Bad(at + ": too many settings");
  }

  const std::string path_;
  std::vector<Assignment> found_;
  std::map<std::string, std::string> first_at_;
};

Result<std::vector<Assignment>> ParseYaml(const std::string& path, const std::string& text) {
  const std::vector<YAML::Node> documents = YAML::LoadAll(text);
  if (documents.empty() || (documents.size() == 1 && documents[0].IsNull())) {
    return std::vector<Assignment>();
  }
  if (documents.size() > 1) return Bad(fmt::format("{}: more than one YAML document", path));
  if (!documents[0].IsMap()) {
    return Bad(fmt::format("{}:1: want settings such as \"name: value\"", path));
  }
  Flattener flattener(path);
  PENSTOCK_RETURN_IF_ERROR(flattener.Walk(documents[0], "", 1));
  return flattener.Release();
}

}  // namespace

Result<std::vector<Assignment>> ReadYamlText(const std::string& path, const std::string& text) {
  if (text.find('\0') != std::string::npos) return Bad(fmt::format("{}: no text file", path));
  try {
    return ParseYaml(path, text);
  } catch (const YAML::Exception& e) {
    return Bad(fmt::format("{}:{}: {}", path, e.mark.line + 1, e.msg));
  } catch (const std::exception& e) {
    return Bad(fmt::format("{}: {}", path, e.what()));
  }
}

Result<std::vector<Assignment>> ReadYamlFile(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ReadYamlText(path, text);
}

}  // namespace penstock::internal
