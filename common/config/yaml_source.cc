// The YAML file as a source of configuration. yaml-cpp throws; nothing that it throws leaves this
// file.

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>

#include "common/config/assignment.h"
#include "common/config/bad_setting.h"

namespace penstock::internal {
namespace {

constexpr size_t kMaxFileBytes = 1u << 20;
// Keys and elements of lists, each counted as often as aliases repeat it: a small file can write an
// endless one.
constexpr size_t kMaxEntries = 4096;
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
      PENSTOCK_RETURN_IF_ERROR(CountEntry(At(entry.first)));
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
        PENSTOCK_RETURN_IF_ERROR(CountEntry(at));
        a.values.push_back(element.Scalar());
      }
    } else {
      a.no_value = true;
    }
    found_.push_back(std::move(a));
    return Status::Ok();
  }

  Status CountEntry(const std::string& at) {
    return ++entries_ <= kMaxEntries ? Status::Ok() : Bad(at + ": too many settings");
  }

  const std::string path_;
  size_t entries_ = 0;
  std::vector<Assignment> found_;
  std::map<std::string, std::string> first_at_;
};

// Where a document begins; nothing else of it.
class DocumentStart : public YAML::EventHandler {
 public:
  const YAML::Mark& mark() const { return mark_; }

  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark mark_;
};

// yaml-cpp's own way to load all documents never ends on a stray comma: it makes one empty document
// there after the other without passing it.
Status AtMostOneDocument(const std::string& path, const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStart first;
  DocumentStart second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) return Status::Ok();
  const int line = second.mark().line + 1;
  if (second.mark().pos == first.mark().pos) {
    return Bad(fmt::format("{}:{}: want settings such as \"name: value\"", path, line));
  }
  return Bad(fmt::format("{}:{}: more than one YAML document", path, line));
}

Result<std::vector<Assignment>> ParseYaml(const std::string& path, const std::string& text) {
  PENSTOCK_RETURN_IF_ERROR(AtMostOneDocument(path, text));
  const YAML::Node document = YAML::Load(text);
  if (document.IsNull()) return std::vector<Assignment>();
  if (!document.IsMap()) {
    return Bad(fmt::format("{}:1: want settings such as \"name: value\"", path));
  }
  Flattener flattener(path);
  PENSTOCK_RETURN_IF_ERROR(flattener.Walk(document, "", 1));
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
